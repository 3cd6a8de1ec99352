"""Tables from DataFrames that are not streaming: cut into epochs, each row once, wherever a load is resumed.

The lake records what was loaded, so that a start with other rows is noticed. The new rows are refused, or taken in as
an additional load, as the user chooses.

A *digest* describes the rows of a DataFrame in a few numbers: it tells whether the rows are the same as when they were
loaded, in any order. Each row is hashed over all its columns and the hashes are added up, so rows may come in any order
and equal rows count as often as they are there. Columns that Spark cannot hash, of maps and variants, have sums of
their own, over texts. The record of a load by version 0.2 lacks these: a change in such columns alone is not seen then.

The record of a load names the columns that its digest covers. If the DataFrame has other columns now, the rows are the
same if they are in those columns; rows in the lake have null in a column that is new. A digest that covers a column
that is gone cannot be compared: then the number of rows and their keys are.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from operator import or_
from typing import Any, Self
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    CalendarIntervalType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructType,
    VariantType,
)

from upriver.coordinator.sources import SourceFailure
from upriver.errors import DeclarationError, WaitTimeout
from upriver.ids import Epoch
from upriver.lake.lake import OwnedLake
from upriver.plan.plan import TableSpec
from upriver.runtime.source_supervisor import Seen
from upriver.spark.drain import POLL_S
from upriver.spark.ingest import LOAD_QUERY, STOP_POLL_S, BatchTasks, EpochLog, Layout, publish_batch
from upriver.spark.runs import SparkRows, quoted
from upriver.spark.session import cancel_jobs
from upriver.spark.sources import failure_of
from upriver.spark.tables import table_as_of

_PARTS = {"low": (0, 22), "middle": (22, 22), "high": (44, 20)}
"""Parts of a hash: the first bit and the number of bits. Sums of so few bits do not overflow below 2 ** 41 rows."""


def rows_digest(rows: DataFrame, key_hash: Column) -> dict[str, int | None]:
    """The number of rows, the ``xor`` of their keys' hashes, and sums of their hashes. One Spark job."""
    plain = [part for field in rows.schema for part in _parts(field.name, field.dataType)]
    others = [
        _hashable(F.col(quoted(field.name)), field.dataType)
        for field in rows.schema
        if not _can_be_hashed(field.dataType)
    ]
    sums = _sums("", plain)
    if others:  # the hash of the whole row, so that values that change places are seen
        sums += _sums("nested_", [*plain, *others])
    found = rows.agg(F.count(F.lit(1)).alias("rows"), F.bit_xor(key_hash).alias("keys"), *sums).first()
    assert found is not None
    return found.asDict()


def _sums(prefix: str, parts: Sequence[Column]) -> list[Column]:
    hashed = F.xxhash64(F.lit(0), *parts)
    return [
        F.coalesce(F.sum(F.shiftrightunsigned(hashed, first).bitwiseAND(F.lit((1 << bits) - 1))), F.lit(0)).alias(
            f"{prefix}{name}"
        )
        for name, (first, bits) in _PARTS.items()
    ]


def _hashable(column: Column, type: DataType) -> Column:
    """A value with maps or variants in it as text: maps by their entries, in the order of these."""
    match type:
        case MapType():
            entries = F.transform(
                F.map_entries(column),
                lambda entry: F.to_json(
                    F.array(_hashable(entry["key"], type.keyType), _hashable(entry["value"], type.valueType))
                ),
            )
            text = F.to_json(F.array_sort(entries))
        case ArrayType():
            text = F.to_json(F.transform(column, lambda element: _hashable(element, type.elementType)))
        case StructType():
            fields = F.array(*(_hashable(column[field.name], field.dataType) for field in type))
            text = F.when(column.isNotNull(), F.to_json(fields))
        case _:
            text = column.cast("string")
    return F.coalesce(F.concat(F.lit("+"), text), F.lit("-"))


Columns = tuple[tuple[str, str], ...]
"""Names of columns and Spark's names of their types."""


def columns_of(rows: DataFrame, names: Sequence[str]) -> Columns:
    """Those of these columns that the rows have."""
    types = {field.name: field.dataType.simpleString() for field in rows.schema}
    return tuple((name, types[name]) for name in names if name in types)


def in_columns(rows: DataFrame, columns: Columns) -> DataFrame:
    """The rows in those of these columns that they have, with these types. A value that its type lacks is null."""
    types = dict(columns_of(rows, rows.columns))
    return rows.select(
        *(
            F.col(quoted(name)) if types[name] == type else F.col(quoted(name)).try_cast(type).alias(name)
            for name, type in columns
            if name in types
        )
    )


def is_same(kept: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether two digests describe the same rows. An old digest may lack numbers, which are then not compared."""
    return all(kept[name] == found[name] for name in found if name in kept)


def _parts(name: str, type: DataType) -> list[Column]:
    """The part of a column that a row's hash covers. Spark's hash skips nulls, so their places are included, too."""
    column = F.col(quoted(name))
    if not _can_be_hashed(type):
        return []
    if isinstance(type, StringType):
        column = column.cast("binary")  # independent of its collation
    parts = [column, column.isNull()]
    return [*parts, column.cast("string")] if isinstance(type, ArrayType | StructType) else parts


def _can_be_hashed(type: DataType) -> bool:
    match type:
        case ArrayType():
            return _can_be_hashed(type.elementType)
        case StructType():
            return all(_can_be_hashed(field.dataType) for field in type)
        case VariantType():
            return False
        case _:
            return isinstance(type, AtomicType | NullType | CalendarIntervalType)


LOAD_EPOCH_ROWS = 1_000_000
"""Rows of one epoch of a DataFrame that is not streaming, approximately; one key's rows stay together."""


class OnChange(StrEnum):
    """What happens to a DataFrame whose rows differ from those that were loaded before."""

    REFUSE = "refuse"
    """The table's source fails with an error that says so."""
    TAKE_IN = "take_in"
    """A table with a primary key loads all rows again, as versions. Any other table adds the rows that are new; the
    load is refused if rows are gone."""


@dataclass(frozen=True, slots=True)
class _Load:
    """A load that has begun. digest: of the DataFrame's rows. first: its first batch, of ``slices``.

    since: only rows are loaded that the table lacked at the end of this epoch; ``None``: all. columns: that the digest
    covers; ``None`` in a record that is older than this field: the first columns that the table has had.
    """

    digest: Mapping[str, Any]
    first: int
    slices: int
    since: Epoch | None
    columns: Columns | None

    def to_json(self) -> dict[str, Any]:
        own = {"first": self.first, "slices": self.slices, "since": self.since, "columns": self.columns}
        return {**self.digest, **own}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        digest = dict(record)
        slices, first, since = digest.pop("slices"), digest.pop("first", 0), digest.pop("since", None)
        columns = digest.pop("columns", None)
        covered = None if columns is None else tuple((name, type) for name, type in columns)
        return cls(digest, first, slices, None if since is None else Epoch(since), covered)


def _load_path(table: str, number: int) -> str:
    return f"loads/{table}/{number}.json" if number else f"loads/{table}.json"


class _LoadAttempt:
    """One run of a load, in a thread of its own. load: runs until it is done or ``stopping`` is set."""

    def __init__(self, number: int, table: str, load: Callable[["_LoadAttempt"], None]) -> None:
        self.number = number
        self.batches = 0
        """Committed."""
        self.error: Exception | None = None
        self.is_compared = threading.Event()
        """Whether the rows are the same as at an earlier load is known, or there was none; or the attempt is over."""
        self.done = threading.Event()
        self.stopping = threading.Event()
        self.tag = f"upriver-load-{uuid4().hex}"
        """The tag of its Spark jobs."""
        self._load = load
        self.thread = threading.Thread(target=self._run, name=f"upriver-load-{table}", daemon=True)

    def _run(self) -> None:
        try:
            self._load(self)
        except Exception as error:  # the supervisor sees it
            if not self.stopping.is_set():
                self.error = error
        self.done.set()
        self.is_compared.set()


class LoadIngest:
    """A DataFrame that is not streaming: one epoch per slice of about ``epoch_rows`` rows.

    A slice is a set of the table's keys, chosen by their hash, so that the same rows fall into the same slices when a
    load is resumed after a crash.
    """

    def __init__(
        self,
        rows: DataFrame,
        layout: Layout,
        log: EpochLog,
        lake: OwnedLake,
        on_change: OnChange = OnChange.REFUSE,
        epoch_rows: int = LOAD_EPOCH_ROWS,
    ) -> None:
        self._rows = rows
        self._layout = layout
        self._given = replace(layout.table, schema=_given(layout.table, rows))
        """The table in the columns that the DataFrame has."""
        self._log = log
        self._lake = lake
        self._on_change = on_change
        self._epoch_rows = epoch_rows
        self._tasks = BatchTasks(layout.groups)
        self._running: _LoadAttempt | None = None

    def start(self, attempt: int) -> None:
        """Start to load, in a thread."""
        self._running = _LoadAttempt(attempt, self._layout.table.name, self._load)
        self._running.thread.start()

    def _load(self, attempt: _LoadAttempt) -> None:
        table, context = self._layout.table, self._rows.sparkSession.sparkContext
        context.addJobTag(attempt.tag)
        context.setJobDescription(f"Upriver: load {table.name}")
        before = self._log.query_of(table.name)
        if before not in (None, LOAD_QUERY):
            raise DeclarationError(f"it was fed by a stream in {self._layout.root}; feed it one again.")
        key_hash = F.xxhash64(*(F.col(quoted(column)) for column in table.key))
        with _computed_once(self._rows) as rows:
            if self._last_load() is None:
                attempt.is_compared.set()
            load = self._begun(rows, lambda columns: rows_digest(in_columns(rows, columns), key_hash))
            attempt.is_compared.set()
            if load.since is None:
                self._publish(rows, key_hash, load, attempt)
            else:
                with _computed_once(self._added(rows, load.since)) as added:
                    self._publish(added, key_hash, load, attempt)

    def _publish(self, rows: DataFrame, key_hash: Column, load: "_Load", attempt: _LoadAttempt) -> None:
        """Publish the slices of a load that are not in the lake yet."""
        number = F.pmod(key_hash, F.lit(load.slices))
        published = self._log.last_batch(self._layout.table.name)
        for batch in range(max(load.first, published + 1), load.first + load.slices):
            if attempt.stopping.is_set():
                return
            of_batch = rows.where(number == batch - load.first)
            publish_batch(SparkRows(of_batch), self._layout, self._log, LOAD_QUERY, batch, self._tasks)
            attempt.batches += 1

    def _begun(self, rows: DataFrame, digest_of: Callable[[Columns], Mapping[str, Any]]) -> "_Load":
        """The load of these rows, as it is recorded in the lake, or recorded now."""
        last, columns = self._last_load(), columns_of(rows, self._given.schema.names)
        if last is None:
            digest = digest_of(columns)
            return self._record(0, _Load(digest, 0, self._slices(digest["rows"]), None, columns))
        number, load = last
        covered = self._first_columns() if load.columns is None else load.columns
        found = digest_of(covered)
        has_all = {name for name, _ in covered} <= set(rows.columns)
        digest = found if covered == columns else digest_of(columns)
        comparable = found if has_all else {name: found[name] for name in ("rows", "keys")}
        if is_same(load.digest, comparable) and not self._loads_new_values(rows, covered):
            if covered == columns:
                return load
            self._check_whole(load)
            return self._record(number + 1, replace(load, digest=digest, columns=columns))
        if self._on_change is OnChange.REFUSE:
            way = (
                "to load all of them again as versions"
                if self._layout.table.primary_key
                else "to take in what is new; if rows change or go, give it a primary_key, on another root"
            )
            raise DeclarationError(
                f"the DataFrame has other rows than were loaded into {self._layout.root} ({load.digest['rows']:,} rows "
                f"then, {digest['rows']:,} now). Declare the table with on_changed_rows='take_in' {way}; use a "
                f"streaming DataFrame for rows that keep coming; or start on another root."
            )
        first = self._log.last_batch(self._layout.table.name) + 1
        if self._layout.table.primary_key:  # of each row, the last version counts, however often it comes
            return self._record(number + 1, _Load(digest, first, self._slices(digest["rows"]), None, columns))
        since = self._log.last
        added = self._added(rows, since)
        self._check_none_gone(rows, since)
        return self._record(number + 1, _Load(digest, first, self._slices(added.count()), since, columns))

    def _loads_new_values(self, rows: DataFrame, covered: Columns) -> bool:
        """Whether to load all rows again because they have values in columns that were not there at the last load."""
        if self._on_change is OnChange.REFUSE or not self._layout.table.primary_key:
            return False
        known = {name for name, _ in covered}
        new = [F.col(quoted(name)).isNotNull() for name in self._given.schema.names if name not in known]
        return bool(new) and not rows.where(reduce(or_, new)).isEmpty()

    def _first_columns(self) -> Columns:
        """The first columns that the table has had."""
        schema = self._lake.run_schemas(self._layout.table.name)[0].remove(0)
        types = from_arrow_schema(schema, prefer_timestamp_ntz=True)
        return tuple((field.name, field.dataType.simpleString()) for field in types)

    def _check_whole(self, load: _Load) -> None:
        """The rows that a load lacks are told by all columns, so those must be the same until it has all rows."""
        if load.since is not None and self._log.last_batch(self._layout.table.name) < load.first + load.slices - 1:
            raise DeclarationError(
                "its last load was interrupted, and the DataFrame's columns have changed since. Start once with the "
                "columns as they were, until the table is loaded."
            )

    def _slices(self, rows: int) -> int:
        return max(1, -(-rows // self._epoch_rows))

    def _last_load(self) -> "tuple[int, _Load] | None":
        """The last load that has begun, and its number: 0, plus one for each time that rows had changed."""
        table = self._layout.table.name
        number = self._lake.last_number(f"loads/{table}")
        try:
            return number, _Load.from_json(self._lake.read_record(_load_path(table, number)))
        except FileNotFoundError:
            return None

    def _record(self, number: int, load: "_Load") -> "_Load":
        self._lake.write_record(_load_path(self._layout.table.name, number), load.to_json())
        return load

    def _added(self, rows: DataFrame, since: Epoch) -> DataFrame:
        """Rows that the table lacked at the end of an epoch; of equal rows, as many as it lacked."""
        return self._compared(rows).exceptAll(self._loaded(rows, since))

    def _check_none_gone(self, rows: DataFrame, since: Epoch) -> None:
        if not self._loaded(rows, since).exceptAll(self._compared(rows)).isEmpty():
            raise DeclarationError(
                f"rows that were loaded into {self._layout.root} have changed, or are gone from the DataFrame, and a "
                f"table without a primary_key keeps all rows. Start on another root; give a primary_key if rows change."
            )

    def _compared(self, rows: DataFrame) -> DataFrame:
        return rows.select(*(F.col(quoted(name)) for name in self._given.schema.names))

    def _loaded(self, rows: DataFrame, since: Epoch) -> DataFrame:
        return table_as_of(rows.sparkSession, self._layout.root, self._given, since)

    def look(self) -> Seen:
        """The state of the load."""
        running = self._running
        assert running is not None
        is_over = running.done.is_set()  # before its error, which is set by then
        failure = None if running.error is None else self.failure_of(running.error)
        return Seen(running.number, running.batches, is_over=is_over, failure=failure)

    def wait_compared(self, seconds: float) -> None:
        assert self._running is not None
        self._running.is_compared.wait(max(0.0, seconds))

    def failure_of(self, error: Exception) -> SourceFailure:
        """The meaning of an error of the load."""
        return failure_of(error)

    def drain(self, seconds_left: Callable[[], float]) -> None:
        running = self._running
        assert running is not None
        while not running.done.wait(POLL_S):
            if seconds_left() <= 0:
                raise WaitTimeout(f"table {self._layout.table.name!r} is still being loaded; wait longer")

    def stop(self) -> None:
        """End the load; a slice in flight is abandoned and comes again with the next attempt."""
        if (running := self._running) is None:
            return
        running.stopping.set()
        while running.thread.is_alive():
            cancel_jobs(self._rows.sparkSession, running.tag)
            running.thread.join(STOP_POLL_S)


def _given(table: TableSpec, rows: DataFrame) -> pa.Schema:
    """The columns of a table that the rows have."""
    return pa.schema([field for field in table.schema if field.name in rows.columns])


@contextmanager
def _computed_once(rows: DataFrame) -> Iterator[DataFrame]:
    """The same rows, cached by Spark meanwhile. A DataFrame that the user has cached stays cached afterwards."""
    level = rows.storageLevel
    if level.useMemory or level.useDisk:
        yield rows
        return
    cached = rows.persist()
    try:
        yield cached
    finally:
        cached.unpersist()
