"""The app: a user declares, starts and queries it."""

import atexit
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self, SupportsIndex, Unpack

import pyarrow as pa

from upriver.arguments import flag, more_than_none, names, seconds, text, whole
from upriver.client.client import Client, Keys, LookupLimits, connect_to
from upriver.client.keys import key_batch
from upriver.client.lookup_steps import check_limits
from upriver.client.queries import QUERY, QUERY_S, Parameters
from upriver.client.rescale import Rescale
from upriver.coordinator.control import WORKERS_DEFAULT
from upriver.doors.doors import OpenDoors, listens_of
from upriver.doors.gateway import Gateway
from upriver.engine.operators.map_rows import rows_schema
from upriver.engine.stateful import MapInputs, Readable, in_order, keep_of
from upriver.errors import DeclarationError, LakeInUse, NotReady, UnknownView, WaitTimeout
from upriver.ids import Epoch
from upriver.lake.address import Root
from upriver.lake.change_log import wait_begun, with_change_log
from upriver.lake.control import find_control
from upriver.lake.lake import Lake
from upriver.lake.scan import prunable
from upriver.logs import warn_caller, with_short_errors
from upriver.net.server import listen_at, listen_for
from upriver.options import Checkpoints, Compaction, Doors, Standbys, Tls, Tokens
from upriver.plan.explain import render, why_full
from upriver.plan.plan import DataflowPlan, FunctionForm, Per, TableSpec, UserFunction
from upriver.plan.planning import plan_together
from upriver.plan.source import Source
from upriver.progress import progress_shown
from upriver.runtime.clock_ticks import TICK_S
from upriver.runtime.function_process import FUNCTION_TIMEOUT_S
from upriver.runtime.leases import SILENCE_S, FailureDetection
from upriver.settings import absolute, check_name, check_sizes, check_task_memory, groups_of
from upriver.shutdown import run_all
from upriver.spark.analysed_plans import compile_walker
from upriver.spark.analyser import SparkAnalyser
from upriver.spark.changes import starting_option
from upriver.spark.declared_tables import StartedSource
from upriver.spark.frames import DataFrame, SparkSession
from upriver.spark.functions import Columns, declare_stateful_map
from upriver.spark.host import use_own_python
from upriver.spark.leaves import Leaves
from upriver.spark.loads import OnChange
from upriver.spark.roots import check_stream_root, checked_root
from upriver.spark.running_app import AppConfig, RunningApp
from upriver.spark.runs import TASK_MEMORY
from upriver.spark.scan import ScanRequest, load_changes
from upriver.spark.session import check_session, spark_hosts
from upriver.spark.signals import aside, stop_alone, stop_first, take_signals
from upriver.spark.sources import check_stream, check_trigger
from upriver.spark.tables import declared_table, only_keys, read_rejected, rows_of_keys
from upriver.spark.user_functions import Returns, declare_function
from upriver.spark.view_frames import ViewFrames
from upriver.sql.views import MAP_OF, MapRelation, declared_view, map_of, mapped_rows, mapped_view
from upriver.state.key_filter import KeyFilter
from upriver.vnodes import VNODES_DEFAULT

REPLAN_S_MAX = 120.0
"""Seconds in which a view can be added to a running app, or dropped, unless the caller says otherwise."""


_RUNNING: dict[str, "App"] = {}
"""By root: the app of this process that runs on it."""


@with_short_errors
class App:
    """Tables on Spark DataFrames, views on those tables, workers that keep the views.

    spark: a session with a free task slot for each worker and at least one more for ingest.
    root: directory of the lake, or its address in an object store: ``s3://``, ``s3a://``, ``gs://``, ``abfss://``,
    ``abfs://`` or ``az://``. Rows that are in it already are there again after a restart.
    workers: how many workers keep the views; ``None``: as many as when the app on this root stopped or was killed, or
    as many as a rescale led to that was interrupted then; on a new root two. vnodes: power of two, fixed for the life
    of the lake.
    listen: where the app itself answers, which ``upriver.connect`` takes, ``"0.0.0.0:7000"``; port 0 takes a free one.
    By default that is a free port on loopback, or, if executors are on other hosts, on the host of Spark's driver. The
    workers listen on the same host, on free ports. tokens: what clients must show; by default the operator's is made
    up. doors: where it answers over HTTP, PostgreSQL's wire and Arrow Flight. tls: the certificate that all of these
    and the workers show; then they serve no caller without TLS, and clients give ``connect(tls=...)``.
    memory_budget: bytes that the state of each worker may take; ``None``: no limit. Half of it is for keys that are
    kept: partial views forget the keys that were not read for the longest time, and fill them at their next read. If
    views that keep every key take more, the largest fails with BudgetExceeded. Views that take more even without a key
    are refused.
    standbys, checkpoints, compaction: copies of the workers' state; how often it is written to the lake; what becomes
    of old files there.
    ingest_tasks: Spark tasks that write a micro-batch at most; by default what fits beside the workers.
    ingest_task_memory: bytes of memory that the Python process of such a task may take, however large the micro-batch:
    what it cannot sort at once waits on a local disk of Spark's. The rows that one key has in a micro-batch come on
    top.
    migration_step_budget_ms: milliseconds that a worker may spend on one step of moving keys, during a rescale. With a
    small number keys wait less; with a large one the rescale ends sooner.
    worker_silence_s: seconds after which a silent worker is replaced; it must not answer after that.
    function_timeout: seconds after which a call of a function of yours that has not returned is ended, and its view
    fails (docs/guide/user-functions.md).
    clock_tick: seconds from one epoch to the next at most, if a view depends on the clock: its time moves with the
    epochs (docs/guide/sql/clock.md).
    replace: :meth:`start` first stops this process's app that runs on the same root, as when a notebook's cell is run
    again. Without it that raises LakeInUse, and so does another process's app in any case.
    earlier: options as earlier releases spelled them, such as ``bind`` or ``http``; a warning gives the new spelling.

    Usable as a context manager, which stops the app at the end.
    """

    _running_app: RunningApp | None = None
    _client: Client | None = None
    _doors: OpenDoors | None = None

    def __init__(
        self,
        spark: SparkSession,
        root: str | os.PathLike[str],
        *,
        workers: int | None = None,
        vnodes: int = VNODES_DEFAULT,
        listen: str | None = None,
        tokens: Tokens | None = None,
        doors: Doors | None = None,
        tls: Tls | None = None,
        memory_budget: int | None = None,
        standbys: Standbys | None = None,
        checkpoints: Checkpoints | None = None,
        compaction: Compaction | None = None,
        ingest_tasks: int | None = None,
        ingest_task_memory: int = TASK_MEMORY,
        migration_step_budget_ms: float = 5.0,
        worker_silence_s: float = SILENCE_S,
        clock_tick: float = TICK_S,
        function_timeout: float = FUNCTION_TIMEOUT_S,
        replace: bool = False,
        **earlier: Any,
    ) -> None:
        workers, vnodes, groups = check_sizes(workers, vnodes, ingest_tasks, migration_step_budget_ms, memory_budget)
        check_task_memory(ingest_task_memory)
        options = groups_of(
            {
                "listen": listen,
                "tokens": tokens,
                "standbys": standbys,
                "checkpoints": checkpoints,
                "compaction": compaction,
                "doors": doors,
                "tls": tls,
            },
            earlier,
        )
        listens_of(options.doors)
        use_own_python(spark)
        self._spark, self._replaces, self._doors_wanted = spark, flag("replace", replace), options.doors
        self._tls = options.tls
        given = None if options.listen is None else listen_at("listen", options.listen)
        self._config = AppConfig(
            root=checked_root(spark, absolute(root)),
            workers=workers,
            vnodes=vnodes,
            tokens=options.tokens,
            listen=listen_for(given, spark_hosts(spark)),
            tls=None if options.tls is None else options.tls.identity(),
            groups=groups,
            task_memory=ingest_task_memory,
            migration_step_budget_ms=migration_step_budget_ms,
            memory_budget=memory_budget,
            standbys=options.standbys,
            checkpoints=options.checkpoints,
            compaction=options.compaction,
            failure_detection=FailureDetection(worker_silence_s),
            clock_tick_s=more_than_none("clock_tick", clock_tick, "seconds"),
            function_timeout_s=more_than_none("function_timeout", function_timeout, "seconds"),
        )
        self._begin_declaring()

    # Declaring

    def _begin_declaring(self) -> None:
        """Nothing is declared yet."""
        self._changing = threading.RLock()
        """Held by a start, and while something is declared or dropped."""
        self._sources: dict[str, StartedSource] = {}
        self._tables: dict[str, TableSpec] = {}
        self._functions: dict[str, UserFunction] = {}  # by name in lower case
        self._leaves = Leaves(
            self._spark,
            lambda: self._analyser.session,
            self._config.listen,
            self._config.tls,
            self._config.tokens.operator,
            self._store,
            min(self._config.workers or WORKERS_DEFAULT, self._config.vnodes),
        )
        compile_walker(self._spark)
        self._analyser = SparkAnalyser(self._spark, self._tables, self._functions, self._leaves.own)
        self._frames = ViewFrames(self._spark, self._leaves, self._analyser, self._tables)
        self._plans: dict[str, DataflowPlan] = {}
        self._maps: dict[str, MapRelation] = {}
        self._feeding: dict[str, DataflowPlan] = {}
        """The stateful maps that only feed others, each planned by itself."""
        """The rows of stateful maps, which views compute for themselves."""
        self._relations: dict[str, MapRelation] = {}
        """The rows of views, which maps compute for themselves."""

    def table(
        self,
        name: str,
        rows: DataFrame,
        key: str | Sequence[str] = (),
        *,
        primary_key: str | Sequence[str] = (),
        order_by: str | Sequence[str] = (),
        deletes: str | None = None,
        on_bad_row: str = "fail",
        trigger: Mapping[str, Any] | None = None,
        on_changed_rows: str = "refuse",
        replace_source: bool = False,
        retain: tuple[str, str | timedelta | int | None] | None = None,
        timeout: float = REPLAN_S_MAX,
    ) -> DataFrame:
        """Declare a table, fed by a DataFrame, streaming or not; before the start, or while the app runs.

        All rows of an append table count. A table with a primary key is an upsert table: its rows are versions. Among
        the versions of one primary key, the last by ``order_by`` counts, in whatever order they come; views see no
        other.

        key: the column or columns by which its rows are kept; the primary key, unless given. order_by: within one
        epoch, rows of one key come in this order. deletes: for an upsert table, a condition in Spark SQL over its
        columns; a version for which it is true deletes the row. on_bad_row: what happens to a row from which a view
        cannot be computed (a cast that fails, an overflow, a stateful map's function that raises). With ``fail``, that
        view fails with an error that names the row, and the others go on. With ``set_aside``, the row is left out of
        that view, and is in :meth:`rejected`; docs/guide/sql/bad-rows.md says which rows that are. trigger: of the
        streaming query, as for ``DataStreamWriter.trigger``: ``{"processingTime": "1 second"}``,
        ``{"availableNow": True}``, or ``{"once": True}``.
        on_changed_rows: what happens to a DataFrame, not streaming, whose rows differ from those that were loaded when
        the app was last started. With ``refuse``, the table's source fails with an error that says so. With
        ``take_in``, a table with a primary key loads all rows again, as versions; one without adds the rows that are
        new, unless others are gone. replace_source: whether a streaming DataFrame takes the place of another source
        that has fed the table: its rows, all of them, come after those that are in the lake. At further starts with the
        same source this changes nothing.
        retain: a column and an interval, such as ``("at", "30 days")``: a row leaves the table, and every view, once
        the newest ``at`` is 30 days later. The interval is a text or a timedelta for a TIMESTAMP or a DATE, a number
        for an integer column, or ``None``, with which no further row leaves; docs/guide/sources.md has the rules.
        Returns the table as a DataFrame; views can be made of it (:meth:`view`). While the app runs, each of its
        actions reads the table as :meth:`read` does, all leaves of one action as of one epoch. Otherwise an action
        raises Spark's error with NotReady in its message; the same DataFrame gives rows when the app runs again.
        In a running app, the table's source starts beside the others, and the call returns when it runs: when its first
        batch is there, or its rows are compared with those that were loaded, or after ``COMPARISON_S_MAX`` seconds. A
        source that fails at once raises IngestFailed, and then the table is not declared. timeout: seconds for this.
        Raises DeclarationError, UnsupportedSql, or KeyTypeError for a key column of a type that cannot be hashed;
        IngestFailed, WaitTimeout.
        """
        with self._declaring(timeout):
            source = self._source_of(
                name,
                rows,
                on_bad_row=on_bad_row,
                trigger=trigger,
                on_changed_rows=on_changed_rows,
                replace_source=replace_source,
                key=key,
                primary_key=primary_key,
                order_by=order_by,
                deletes=deletes,
                retain=retain,
            )
            if self._running_app is not None:
                with progress_shown("adding a table") as told:
                    self._running_app.add_table(source, seconds("timeout", timeout), told)
            self._tables[name] = source.table
            self._sources[name] = source
            return self._leaves.frame(name, source.table.schema)

    def _source_of(
        self,
        name: str,
        rows: DataFrame,
        *,
        on_bad_row: str,
        trigger: Mapping[str, Any] | None,
        on_changed_rows: str,
        replace_source: bool,
        **declared: Any,
    ) -> StartedSource:
        """The source of a table that is to be declared. declared: as for :func:`declared_table`."""
        self._check_free("table", name)
        _check_table_options(name, rows, on_bad_row, on_changed_rows, replace_source)
        self._analyser.check_name("table", name)
        table = declared_table(name, rows, **declared)
        checked_trigger = check_trigger(name, rows, trigger)
        if rows.isStreaming:
            check_stream(name, rows)
            check_stream_root(self._spark, self._config.root, name)
        return StartedSource(
            table=table,
            rows=rows,
            trigger=checked_trigger,
            sets_aside=on_bad_row == "set_aside",
            on_change=OnChange(on_changed_rows),
            replaces_others=replace_source,
        )

    def view(
        self,
        name: str,
        sql: str | DataFrame,
        key: str | Sequence[str],
        *,
        partial: bool = True,
        changes: bool = False,
        timeout: float = REPLAN_S_MAX,
    ) -> DataFrame:
        """Declare a view on declared tables and views. Returns it as a DataFrame, as :meth:`table` does.

        sql: in Spark SQL, or a DataFrame made of those that :meth:`table` and this method return. What is not
        supported is refused here.
        key: the output column or columns by which the view is looked up; ``[]``: by ``()``, which gives all rows.
        partial: keep only the keys that are looked up, if the view is eligible; ``explain`` says whether it is, and why
        not. changes: write the view's changes to the change log, for streams of them; such a view keeps every key.
        In a running app, Spark first makes the indexes that the view needs. Then workers read the tables' history for
        this view alone: its lookups wait for that, and no other view notices. timeout: seconds for this to begin.
        Raises DeclarationError, UnsupportedSql; WaitTimeout, BudgetExceeded.
        """
        with self._declaring(timeout):
            self._check_free("view", name)
            self._analyser.check_name("view", name)
            source: Source
            if isinstance(sql, DataFrame):
                schemas = {one: rows.relation.schema for one, rows in self._maps.items()}
                schemas |= {view: plan.schema for view, plan in self._plans.items()}
                source, definition = self._frames.given(name, sql, schemas)
            else:
                source = Source(name, text(f"view {name!r}: sql", sql))
                definition = self._analyser.frame_of(name, sql, self._frames.definitions)
            analysed = self._analyser.analysed_frame(definition, name, source.sql)
            view, plan = declared_view(source, analysed, key, self._tables, self._analyser, self._maps)
            sets_aside = [table for table, source in self._sources.items() if source.sets_aside]
            if flag(f"view {name!r}: changes", changes):
                plan = with_change_log(plan)
            plan = replace(plan, full_because=why_full(plan, flag(f"view {name!r}: partial", partial), sets_aside))
            self._keep({**self._plans, name: plan}, timeout)
            self._relations[name] = MapRelation(view.relation, view.functions)
            self._frames.keep(name, definition)
            return self._leaves.frame(name, plan.schema)

    def stateful_map(
        self,
        name: str,
        source: str = "",
        key: str | Sequence[str] = (),
        func: Callable[..., Any] | None = None,
        schema: Columns = "",
        *,
        sources: Mapping[str, str | Sequence[str]] | None = None,
        state: Columns | None = None,
        per: str = Per.ROW,
        order_by: str | Sequence[str] = (),
        keep: int | tuple[str, str | timedelta | int] | None = None,
        on_bad_row: str = "fail",
        changes: bool = False,
        version: str | int | None = None,
        timeout: float = REPLAN_S_MAX,
    ) -> DataFrame:
        """Declare a view of what a Python function gives for each key's rows, in order, with a state for each key.

        source: a table, another stateful map, or a view. The function gets the rows of an append table and of a map; of
        a table with a primary key and of a view it gets the changes, behind the column ``change_type``. key: the
        source's columns by which the function is called.
        sources: in place of both, several sources, each with its key's columns: ``{"orders": "customer", "clicks":
        "user"}``. The function then gets rows with the columns of all, behind ``source`` and ``change_type``. The key
        is named as in the first source.
        func: gets a row, a key's rows, or many keys' rows at a time (``per``: ``"row"``, ``"key"``, ``"batch"``);
        docs/guide/stateful-maps.md says what it takes and gives, and in which order. schema: of the rows that it gives,
        behind the key's columns. state: of a key's state; ``None`` for any plain value. Both in Spark's DDL, or as a
        schema. order_by: of the rows of a key in one micro-batch of a table.
        keep: which rows stay: ``None``, all; a number, so many of each key, the last ones; a column and an interval,
        such as ``("at", "30 days")``, those that are not older than a key's newest row by so much. What reads the map
        gets every row. With 0, the map only feeds others, and cannot be looked up. on_bad_row: what happens to a row on
        which the function fails: ``"fail"``, the map and what reads it fail; ``"set_aside"``, the row is left out, and
        is in :meth:`rejected` of the map. changes: as for :meth:`view`. version: names the function's definition; by
        default its code does. timeout: as for :meth:`view`.
        Raises DeclarationError, KeyTypeError; WaitTimeout.
        """
        about = f"stateful map {name!r}"
        if func is None or (isinstance(schema, str) and not schema):
            raise DeclarationError(f"{about}: it needs a function and the columns of its rows: func=..., schema=...")
        if (sources is None) == (not source) or not (sources is None or (isinstance(sources, Mapping) and sources)):
            raise DeclarationError(f"{about}: give either source=... with key=..., or sources={{name: key, ...}}")
        if sources is None and not isinstance(source, str):
            raise DeclarationError(
                f"{about}: source={source!r}: give one name; several go into sources={{name: key, ...}}"
            )
        with self._declaring(timeout):
            self._check_free("stateful map", name)
            read = {source: key} if sources is None else dict(sources)
            found = [self._readable(about, one) for one in read]
            tables = self._ordered_tables(about, found, names(f"{about}: order_by", order_by))
            keys = [names(f"{about}: key", by) for by in read.values()]
            op = declare_stateful_map(
                name,
                MapInputs(tuple(zip(found, map(tuple, keys), strict=True)), tells_source=sources is not None),
                func,
                schema,
                state,
                per=per,
                version=version,
                on_bad_row=on_bad_row,
                timezone=self._analyser.timezone,
            )
            rows = mapped_rows(op, [self._rows_of(one) for one in found])
            plan = mapped_view(name, rows, {**self._tables, **tables}, keep_of(about, op.output, keep))
            feeds_others_alone = keep == 0
            if flag(f"{about}: changes", changes):
                if feeds_others_alone:
                    raise DeclarationError(f"{about}: with keep=0 it has no rows, and so no changes")
                plan = with_change_log(plan)
            self._tables |= tables
            for table, spec in tables.items():
                self._sources[table] = replace(self._sources[table], table=spec)
            if feeds_others_alone:
                self._feeding[name] = plan
            else:
                self._keep({**self._plans, name: plan}, timeout)
            self._maps[name] = rows
            self._frames.keep_map(name, op.output)
            return self._leaves.frame(name, op.output)

    def _readable(self, about: str, name: object) -> Readable:
        """A table, a map or a view, as a stateful map reads it. Raises DeclarationError if there is none."""
        if isinstance(name, str) and name in self._tables:
            return Readable.of_table(self._tables[name])
        if isinstance(name, str) and name in self._maps:
            op = map_of(self._maps[name])
            return Readable("the stateful map", name, op.output, upstream=op.key)
        if isinstance(name, str) and name in self._plans:
            return Readable("the view", name, self._plans[name].schema, changes=True)
        raise DeclarationError(
            f"{about}: there is no table, view or stateful map {name!r}; there are: "
            f"{', '.join(dict.fromkeys([*self._tables, *self._plans, *self._maps])) or 'none yet'}"
        )

    def _ordered_tables(self, about: str, found: Sequence[Readable], order_by: Sequence[str]) -> dict[str, TableSpec]:
        """The tables that get an order from a stateful map, before a start. Raises DeclarationError."""
        if not order_by:
            return {}
        tables = [self._tables[one.name] for one in found if one.name in self._tables and not one.changes]
        if len(found) > 1 or not tables:
            raise DeclarationError(
                f"{about}: order_by is of one table without a primary key: declare it with the table"
            )
        (table,) = tables
        ordered = in_order(table, order_by, about)
        if ordered != table and self._running_app is not None:
            raise DeclarationError(f"{about}: declare the table {table.name!r} with order_by={list(order_by)}")
        return {table.name: ordered}

    def _rows_of(self, source: Readable) -> MapRelation:
        """The rows of a source."""
        known = self._maps.get(source.name) or self._relations.get(source.name)
        return MapRelation.of_table(self._tables[source.name]) if known is None else known

    def function(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        returns: Returns,
        arguments: Columns,
        form: str = FunctionForm.ROW,
        deterministic: bool = False,
    ) -> None:
        """Let the SQL of views that are declared from now on call a Python function.

        returns: its type. arguments: their names and types, as columns. Both in Spark's DDL, or as Spark's or Arrow's
        objects. form: ``"row"``: it takes the values of a row; ``"arrow"``, ``"pandas"``: it takes a column for each
        argument, as an Arrow array or a pandas Series, and returns one. deterministic: must be True: the function
        depends on its arguments alone. docs/guide/user-functions.md says more. Raises DeclarationError.
        """
        declared = declare_function(
            name, function, returns, arguments, form, deterministic=deterministic, timezone=self._analyser.timezone
        )
        with self._declaring():
            if name.lower() in self._functions:
                raise DeclarationError(f"function {name!r} is declared already")
            self._analyser.check_function(name)
            self._functions[name.lower()] = declared

    def drop_view(self, name: str, *, timeout: float = REPLAN_S_MAX) -> None:
        """Drop a view or a stateful map, failed or not. Views and maps that read a view go on: they keep what they need
        of it themselves. A stateful map that others read is refused.

        timeout: as for :meth:`view`. Raises UnknownView, DeclarationError, WaitTimeout.
        """
        with self._declaring(timeout):
            if isinstance(name, str) and name in self._maps:
                self._check_unread(name)
            else:
                self._check_view(name)
            self._keep({view: plan for view, plan in self._plans.items() if view != name}, timeout)
            self._maps.pop(name, None)
            self._feeding.pop(name, None)
            self._relations.pop(name, None)
            self._frames.forget(name)

    def drop_table(self, name: str, *, timeout: float = REPLAN_S_MAX) -> None:
        """Drop a table that no view and no stateful map reads, whether the app runs or not.

        In a running app its source ends; the app, its views and the other sources go on. The table's rows stay in the
        lake, as those of a table that a start does not declare. If it is declared again, its source goes on where it
        was, by the rules of a start: with ``replace_source`` for another source, and ``on_changed_rows`` for a
        DataFrame that has changed. timeout: seconds for the source to end; after that, the call may be repeated. Raises
        DeclarationError, which names the views that read the table, or for a table that is not declared; WaitTimeout.
        """
        with self._declaring(timeout):
            self._check_table(name)
            readers = [_in_words(plan) for plan in self._plans.values() if name in plan.tables]
            fed = {one: rows for one, rows in self._maps.items() if one not in self._plans}
            readers += [f"stateful map {one!r}" for one, rows in fed.items() if name in rows.tables]
            if readers:
                raise DeclarationError(f"table {name!r} is read by {', '.join(readers)}: drop what reads it first")
            if self._running_app is not None:
                with progress_shown("dropping a table") as told:
                    self._running_app.drop_table(name, seconds("timeout", timeout), told)
            del self._sources[name], self._tables[name]

    def _check_table(self, name: str) -> None:
        """Raise DeclarationError unless a table has that name."""
        if not isinstance(name, str) or name not in self._tables:
            raise DeclarationError(f"no table {name!r}; there are: {', '.join(sorted(self._tables)) or 'none'}")

    def _check_view(self, name: str) -> None:
        """Raise UnknownView unless a view has that name."""
        self._check_kept(name)
        if not isinstance(name, str) or name not in self._plans:
            reads = {view: plan.tables for view, plan in self._plans.items()}
            raise UnknownView.among(name, reads, self._tables)

    def _check_kept(self, name: object) -> None:
        """Raise UnknownView for a stateful map that keeps no rows."""
        if isinstance(name, str) and name in self._maps and name not in self._plans:
            raise UnknownView(f"stateful map {name!r} keeps no rows, for it has keep=0: name what reads it instead")

    def _check_unread(self, name: str) -> None:
        """Raise DeclarationError if a view or another map reads a stateful map."""
        readers = [_in_words(plan) for plan in self._plans.values() if plan.name != name and name in plan.maps]
        readers += [
            f"stateful map {one!r}"
            for one, rows in self._maps.items()
            if one not in self._plans and any(source.name == name for source in map_of(rows).sources)
        ]
        if readers:
            raise DeclarationError(f"stateful map {name!r} is read by {', '.join(readers)}: drop what reads it first")

    def _check_free(self, what: str, name: str) -> None:
        check_name(what, name, dict.fromkeys([*self._sources, *self._plans, *self._maps]))

    def _keep(self, plans: dict[str, DataflowPlan], timeout: float) -> None:
        """Make these the app's views, whether it runs or not."""
        seconds_max = seconds("timeout", timeout)
        if self._running_app is not None:
            with progress_shown("changing the views") as told:
                self._running_app.replan(list(plans.values()), seconds_max, told)
        self._plans = plans

    @contextmanager
    def _declaring(self, timeout: float = REPLAN_S_MAX) -> Iterator[None]:
        """Declare or drop something, one thread at a time. Raises WaitTimeout after so many seconds."""
        if not self._changing.acquire(timeout=min(seconds("timeout", timeout), threading.TIMEOUT_MAX)):
            raise WaitTimeout(f"another thread has declared or dropped something for {timeout:g} s: call again")
        try:
            yield
        finally:
            self._changing.release()

    # Running

    def start(self, *, wait: bool = False, timeout: float = 120.0) -> Self:
        """Start workers and ingest; returns when every worker is up, in at most ``timeout`` seconds.

        wait: return only when the app is :attr:`ready`, too, within the same ``timeout``. If it is not ready by then,
        it is stopped, and NotReady says what is lacking; if a source fails for good meanwhile, such as a DataFrame
        whose rows have changed, IngestFailed says why. Without ``wait``, an UpriverWarning says why a source has failed
        for good. An UpriverWarning names each stateful map whose function is another than at the last start: its states
        and rows, and those of what reads it, are computed anew. Raises TooFewSlots, LakeInUse, NotWritten,
        DeclarationError if the lake holds something else, ClusterError, BudgetExceeded.
        """
        with self._declaring(timeout):
            return self._start(wait, timeout)

    def _start(self, wait: bool, timeout: float) -> Self:
        if self._running_app is not None:
            raise DeclarationError("the app is running already: call stop() before it is started again")
        if not self._sources:
            raise DeclarationError("there is nothing to start: declare a table first")
        check_session(self._spark)
        take_signals(self._spark)
        self._take_the_place_of_another()
        gateway = Gateway(self._connected, self._config.tokens, self._config.root)
        sources, plans = list(self._sources.values()), list(self._plans.values())
        relations = {one: rows.relation for one, rows in (*self._relations.items(), *self._maps.items())}
        together = plan_together([*self._feeding.values(), *plans], relations, self._tables)
        running = RunningApp(self._spark, self._config, sources, plans, together, {QUERY: gateway.query_piece})
        waits, give_up_at = flag("wait", wait), time.monotonic() + seconds("timeout", timeout)
        try:
            self._doors = OpenDoors(self._doors_wanted, gateway, self._tls)
            with progress_shown("start") as told:
                running.start(seconds("timeout", timeout), told)
            self._running_app = running
            for text in running.told_of_maps:
                warn_caller(text)
            self._client = connect_to(running.remote)
            self._leaves.serve(running.leaf_reads)
            if waits:
                with progress_shown("start: waiting until every view is complete", running.left):
                    running.wait_ready(max(0.0, give_up_at - time.monotonic()))
            else:
                running.warn(give_up_at - time.monotonic())
        except BaseException:
            self.stop()  # startup failed: the caller never receives an app that it could stop
            raise
        _RUNNING[self._config.root] = self
        stop_first(self._spark, self.stop)
        atexit.register(self.stop)  # a program that ends without stop() still ends its workers in good order
        return self

    def _connected(self) -> Client:
        if self._client is None:
            raise NotReady("the app is starting: try again soon")
        return self._client

    def _take_the_place_of_another(self) -> None:
        """Stop this process's app that runs on the same root. Raises LakeInUse without ``replace``."""
        before = _RUNNING.get(self._config.root)
        if before is None:
            return
        if not self._replaces:
            raise LakeInUse(
                f"{self._config.root} is in use by another App of this process: stop() it, or give "
                f"App(..., replace=True), which does so at start()"
            )
        before.stop()

    @property
    def root(self) -> str:
        """The lake's directory, or its address in an object store."""
        return self._config.root

    @property
    def _store(self) -> Mapping[str, str]:
        """Settings that open the lake's object store."""
        root = self._config.root
        return root.options if isinstance(root, Root) else {}

    @property
    def address(self) -> str:
        """The address of the running app for ``upriver.connect``: ``host:port``."""
        return self._running().address

    @property
    def http_address(self) -> str:
        """Where the app answers over HTTP: ``host:port``. Raises DeclarationError without ``Doors(http=...)``."""
        return self._door("http")

    @property
    def postgres_address(self) -> str:
        """The same for PostgreSQL's wire. Raises DeclarationError without ``Doors(postgres=...)``."""
        return self._door("postgres")

    @property
    def flight_address(self) -> str:
        """The same for Arrow Flight. Raises DeclarationError without ``Doors(flight=...)``."""
        return self._door("flight")

    def _door(self, name: str) -> str:
        self._running()
        assert self._doors is not None
        return self._doors.address(name)

    @property
    def token(self) -> str:
        """The operator's token, which opens everything. Keep it secret."""
        return self._config.tokens.operator

    @property
    def ready(self) -> bool:
        """Whether every view reflects everything there was at the start: all epochs in the lake, and all rows of the
        sources. Tables that were declared while the app runs do not count. False if the app does not run. For a table
        that an earlier run has read through, the source need not be alive, unless it has failed for good: then this is
        False, and lookups give what there is. Otherwise it stays true until :meth:`stop`, once it is; lookups of a view
        wait until its tables are ready."""
        return self._running_app is not None and self._running_app.is_ready

    def wait(self, timeout: float = 60.0, *, view: str | None = None) -> Epoch:
        """Block until every view reflects every row that the sources had at the call; returns the epoch.

        This also ends with a source that never pauses: only its rows at the call matter. view: wait for the sources of
        this view's tables alone, whatever becomes of others; if it has failed, raises why. Without ``view``, views that
        have failed are not waited for: ``status()`` and the log name them. Raises WaitTimeout after ``timeout``
        seconds; IngestFailed as soon as one of the sources has failed, while the others may still be read; UnknownView;
        or the error that made the app fail.
        """
        running, seconds_max = self._running(), seconds("timeout", timeout)
        with progress_shown("wait", lambda: running.left(view)):
            return aside(partial(running.wait, seconds_max, view))

    def lookup(self, view: str, keys: Keys, *, else_compute: bool = False, **limits: Unpack[LookupLimits]) -> pa.Table:
        """The view's rows of those keys, in the order in which the keys are given, as of the end of one epoch.

        limits: ``at_least``, ``max_age``, ``allow_warming`` and ``timeout``, as for ``Client.lookup``, which also
        documents keys and errors. else_compute: if ``timeout`` seconds do not suffice to fill missing keys, Spark
        computes the rows, as for :meth:`read`, instead of a WaitTimeout; ``at_least`` must still be reached.
        """
        running, computes = self._running(), flag("else_compute", else_compute)
        check_limits(limits)
        if isinstance(view, str):
            self._check_view(view)  # workers may not have heard yet that it was dropped
        assert self._client is not None
        try:
            return self._client.lookup(view, keys, **limits)
        except WaitTimeout:
            if not computes or running.epoch < (limits.get("at_least") or 0):
                raise
        request = ScanRequest.of(running.remote, view)
        wanted = key_batch(view, request.source.key_schema, keys)
        rows = self._computed(view, wanted) if self._is_partial(view) else request.load(self._spark)
        return rows_of_keys(rows, wanted)

    def query(self, sql: str, parameters: Parameters | None = None, *, timeout: float = QUERY_S) -> pa.Table:
        """The answer of a SELECT in Spark's SQL over views, as an Arrow table.

        As ``Client.query``, which documents parameters and errors.
        """
        self._running()
        assert self._client is not None
        return self._client.query(sql, parameters, timeout=timeout)

    def read(self, view: str, *, partitions: int | None = None, keys: Keys | None = None) -> DataFrame:
        """A view, or a table, as a Spark DataFrame, as of one epoch; of an upsert table, the rows as they are now.

        view: its name, or a table's. partitions: each partition has the rows of a range of vnodes; this is how many, by
        default as many as there are workers. Reads of equal ``partitions`` are divided in the same way, if their keys
        have the same types. keys: only the rows of these, as for :meth:`lookup`: of other vnodes nothing is read. The
        key of a table is its key; of an upsert table with a key outside of its primary key, the primary key.

        A view that keeps every key is read from the workers, and a table from the lake; each action on the DataFrame
        reads it as it is then. Spark computes a partial view from the lake's tables, as of the call. A view that is not
        ready is waited for, as by a lookup. Raises UnknownView, NotReady, KeyTypeError, DeclarationError for an
        impossible number of partitions, and the error of a view that has failed; if the view fails later, an action
        raises Spark's PythonException.
        """
        running = self._running()
        self._check_kept(view)
        if not isinstance(view, str) or view not in self._tables:
            running.check_view(view)  # fails here for an unknown or failed view, and not in the action
            assert self._client is not None
            self._client.wait_ready(view)
        request = ScanRequest.of(running.remote, view, partitions, keys, self._store)
        if not self._is_partial(view):
            return request.load(self._spark)
        rows = self._computed(view, request.wanted.keys)
        return request.divide(rows if request.wanted.keys is None else only_keys(rows, request.wanted.keys))

    def changes(
        self, view: str, since: str | SupportsIndex | datetime | None = None, *, partitions: int | None = None
    ) -> DataFrame:
        """The changes of a view that was declared with ``changes=True``, as a streaming DataFrame.

        Its columns are the view's, then ``_change_type`` (``insert``, ``update_preimage``, ``update_postimage``,
        ``delete``), ``_commit_version`` (the epoch) and ``_commit_timestamp``. since: ``None``: first the whole view
        as inserts, then its changes. ``"now"``: changes from the first start of the query on. A version: the changes
        of this epoch and later ones. A datetime with a time zone: changes that were committed then or later. Where a
        query has a Spark checkpoint, it goes on from there. partitions: tasks of a batch; the rows of a key are in one
        partition, ordered by version. The app need not run: its lake has the changes. Raises UnknownView;
        DeclarationError for a view without changes; WaitTimeout if the log of a running app has not begun in
        ``BEGIN_S_MAX`` seconds. If a version is no longer in the log, the query fails with ChangesGone.
        """
        self._check_view(view)
        if not self._plans[view].logs_changes:
            raise DeclarationError(f"view {view!r} has no log of its changes: declare it with changes=True")
        root = self._config.root
        if self._running_app is not None:
            wait_begun(Lake(root), view)
        options = {"root": str(root), "view": view, **starting_option(since)}
        if partitions is not None:
            options["partitions"] = str(whole("partitions", partitions))
        if isinstance(root, Root) and root.options:
            options["lake_secrets"] = json.dumps(dict(root.options))
        return load_changes(self._spark, options)

    def _is_partial(self, name: str) -> bool:
        return name in self._plans and self._plans[name].full_because is None

    def _computed(self, view: str, keys: pa.RecordBatch | None) -> DataFrame:
        """A partial view as Spark computes it. keys: rows of other keys may be missing."""
        root, epoch, plan = self._config.root, self._running().epoch, self._plans[view]
        micros = (Lake(root).clock(epoch) or 0) if plan.is_clocked else None
        pruned = {} if keys is None else prunable(plan)
        wanted = None if keys is None else KeyFilter(keys).hashes
        return self._frames.as_of(view, root, epoch, micros, pruned, wanted)

    def evict(self, view: str, keys: Keys | None = None) -> None:
        """Evict these keys of a partial view; ``None``: all. The next lookup of a key fills it again.

        As ``Client.evict``, which documents the errors.
        """
        self._running()
        assert self._client is not None
        self._client.evict(view, keys)

    def rejected(self, table: str) -> DataFrame:
        """The rows that were set aside, each once: ``epoch``, ``view``, ``error``, and the row as ``row``. table: its
        name, or that of a stateful map, whose rows are as its function gets them.

        A row that is bad for two views is there for each of them. Each action on the DataFrame reads the rows at that
        moment, among them all rows up to the epoch that ``wait`` returns. The app need not run. Raises DeclarationError
        for a table that is not declared.
        """
        if isinstance(table, str) and table in self._maps:
            op, inputs = map_of(self._maps[table]), self._maps[table].relation.inputs
            rows = TableSpec(table, rows_schema(op, [part.schema for part in inputs]), ())
            return read_rejected(self._spark, self._config.root, rows)
        self._check_table(table)
        return read_rejected(self._spark, self._config.root, self._tables[table])

    def rescale(
        self,
        workers: int | None = None,
        *,
        moves: Mapping[int, int] | None = None,
        strategy: str = "icadd",
        keys_max: int | None = None,
    ) -> Rescale:
        """Begin to change the number of workers or the vnodes that they own, while the app goes on; returns at once.

        workers: the new number. moves: instead, the new worker of each vnode that moves; all others stay. strategy:
        ``icadd`` (each key moves by itself, and waits only meanwhile), ``redistribute`` (each key moves when every
        worker holds its rows), ``lazy`` (keys of partial views do not move: the new owner refills them, most recently
        read first; other views as by ``icadd``), ``learner`` (new owners learn vnodes while the old ones serve, and
        take over between two epochs) or ``restart`` (stop, remap, go on). keys_max: keys that move at once; by default
        as many as ``migration_step_budget_ms`` allows. A rescale during another one waits. Raises DeclarationError for
        an impossible change, TooFewSlots.
        """
        self._running()
        assert self._client is not None
        return self._client.rescale(workers, moves=moves, strategy=strategy, keys_max=keys_max)

    def rescales(self) -> list[dict[str, Any]]:
        """The last rescales of the app, of its earlier starts, too, oldest first; also if the app does not run.

        Each has ``term`` (the how-manieth driver on the root) and ``ticket``, ``began_at`` (seconds since 1970),
        ``strategy``, ``from`` and ``to`` (workers), ``outcome`` (``None`` while it goes on; ``finished``, ``aborted``,
        ``failed``, ``refused``; ``interrupted`` if the driver ended during it), ``error`` (why), ``seconds`` (``None``
        if that is not known), ``moved_keys``, ``moved_bytes`` and ``moved_vnodes``.
        """
        if self._running_app is not None:
            return self._running_app.rescales()
        record = find_control(Lake(self._config.root)).record
        return [] if record is None else record.rescales_to_json()

    def checkpoint(self, *, timeout: float = 60.0) -> Epoch:
        """Write the state of all views to the lake, as of the end of an epoch, which is returned; the app goes on
        meanwhile.

        Partial views are not included: lookups fill their keys. Raises WaitTimeout after so many seconds, and LakeError
        if the checkpoint was given up, because a worker was lost or the lake refused it; the caller may then try again.
        """
        return self._running().checkpoint(seconds("timeout", timeout))

    def status(self) -> dict[str, Any]:
        """Epoch, map version, tables, workers with the bytes of their state, the state of each view, the last
        checkpoint, and the workers lost recently, with the seconds until their keys were served again; as a plain dict.

        ``["tables"][name]`` has the ``state`` of the table's source: ``running``, ``stalled`` (at work for
        ``STALLED_S`` without finishing a batch), ``failed``, ``failing`` (retried after a failure) or ``finished``. It
        has ``epoch``, its last one, and ``epoch_age_s``, seconds since that was committed; ``rows`` so far and
        ``rows_per_s``, over the last minute. It has ``error``, one line, ``retry_in_s``, seconds until the next retry,
        if there is one, ``stalled_for_s``, seconds without a finished batch, and ``attempts`` so far. Of the present
        attempt it has ``attempt_for_s``, its seconds, and ``doing``, by Spark's word; ``last_error`` and
        ``last_error_age_s`` are of the last failure since which there was no progress. ``way`` is how its rows come
        into the lake: Parquet files as Arrow, or as rows of Spark, and why. ``["views"][name]`` has the
        view's ``state``, ``running`` or ``failed``, and the ``error`` in one line: why it failed, or for a partial
        view, why a key could not be filled. ``["unrecorded"]``: why the lake does not know of the last change of the
        workers or the views, if it does not. ``["failure"]``: why the app cannot go on, or which sources have failed;
        lookups go on beside failed sources.
        """
        return self._running().status()

    def metrics(self) -> str:
        """What the app measures, in Prometheus' text format; docs/guide/monitoring.md lists it.

        Raises DeclarationError if the app does not run, or ``prometheus-client`` is not installed.
        """
        return self._running().metrics()

    def restart_source(self, table: str) -> None:
        """Retry a failed or stalled source now; a source that runs, or is finished, is left alone.

        Returns when the attempt has begun; :meth:`status` shows its progress. Raises DeclarationError for a table that
        is not declared, WaitTimeout.
        """
        self._running().restart_source(table)

    def explain(self, view: str) -> str:
        """How a view is kept: its regions, their keys and inputs, and whether it is partial or full, and why."""
        running = self._running()
        self._check_kept(view)
        return render(running.explain(view))

    def stop(self) -> None:
        """Stop ingest and workers. The lake stays; an app on the same root continues from there."""
        atexit.unregister(self.stop)
        stop_alone(self._spark, self.stop)
        if _RUNNING.get(self._config.root) is self:
            del _RUNNING[self._config.root]
        self._leaves.end()
        doors, client, running = self._doors, self._client, self._running_app
        self._doors = self._client = None
        steps: list[Callable[[], object]] = [part.close for part in (doors, client) if part is not None]
        try:
            with progress_shown("stop") as told:
                run_all(*steps, *([] if running is None else [partial(running.stop, told)]))
        finally:
            self._running_app = None

    def _running(self) -> RunningApp:
        if self._running_app is None:
            raise DeclarationError("the app is not running: call start() first")
        return self._running_app

    def __repr__(self) -> str:
        stands = "not running" if self._running_app is None else f"at {self._running_app.address}"
        return f"<upriver.App on {self._config.root}, {stands}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _in_words(plan: DataflowPlan) -> str:
    """A view or a stateful map, for a message."""
    return f"{'stateful map' if plan.sql.startswith(MAP_OF) else 'view'} {plan.name!r}"


def _check_table_options(
    name: str, rows: DataFrame, on_bad_row: str, on_changed_rows: str, replace_source: bool
) -> None:
    """The options of :meth:`App.table` that are one of a few values."""
    if on_bad_row not in ("fail", "set_aside"):
        raise DeclarationError(f"table {name!r}: on_bad_row is 'fail' or 'set_aside', not {on_bad_row!r}")
    if on_changed_rows not in list(OnChange):
        ways = " or ".join(map(repr, map(str, OnChange)))
        raise DeclarationError(f"table {name!r}: on_changed_rows is {ways}, not {on_changed_rows!r}")
    if flag(f"table {name!r}: replace_source", replace_source) and not getattr(rows, "isStreaming", False):
        raise DeclarationError(
            f"table {name!r}: replace_source=True is for a streaming DataFrame. on_changed_rows is for one that is not "
            f"streaming and has changed"
        )
    if on_changed_rows != OnChange.REFUSE and getattr(rows, "isStreaming", False):
        raise DeclarationError(
            f"table {name!r}: on_changed_rows={on_changed_rows!r} is for a DataFrame that is not streaming. "
            f"replace_source=True is for a streaming one that takes another one's place"
        )
