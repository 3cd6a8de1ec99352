"""Views as Spark DataFrames: ``spark.read.format("upriver")``, one partition for each worker (document 003, "Batch").

Spark plans a Python data source once for each ``load()`` and then runs the plan for every action on that DataFrame. So
a plan names no snapshot, but itself. The tasks add the action that they belong to. The coordinator gives all tasks of
one action the same snapshot, taken at the first task's request.

Filters are left to Spark. Spark could push them down. But up to Spark 4.3 it would reuse the reader with these filters
for other queries on the same DataFrame, whatever their filters, which would give wrong answers. A test shows it. For
the rows of a few keys, use a lookup.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from upriver.errors import DeclarationError, UnknownView, UpriverError, WorkerLost
from upriver.net.lookups import Routing
from upriver.net.remote import Connection, Remote
from upriver.spark.schema import spark_arrow_schema

FORMAT = "upriver"
PLAN_S_MAX = 10.0
"""Seconds in which the coordinator must name the workers."""
READ_S_MAX = 2.0
"""Seconds to tell a worker that its part was read."""
SNAPSHOT_S_MAX = 90.0
"""Seconds to wait for a snapshot: more than the coordinator gives the workers, so that its error comes first."""
PART_S_MAX = 24 * 3600.0
"""Seconds that reading a worker's part may take: Spark reads no faster than it can use the rows."""


def read_view(spark: SparkSession, address: str, token: str, view: str) -> DataFrame:
    """A view as a DataFrame. Each action on it reads the whole view at that moment, as of one epoch.

    address, token: of the running app. Raises UnknownView, AccessDenied, ClusterError.
    """
    schema = _Asked(Remote.parse(address, token), view).plan().schema  # errors are raised here, unwrapped
    spark.dataSource.register(UpriverDataSource)
    options = {"address": address, "token": token, "view": view}
    return spark.read.format(FORMAT).schema(schema).options(**options).load()


@dataclass(frozen=True, slots=True)
class _Plan:
    """The facts about a view before it is read."""

    schema: StructType
    workers: int


@dataclass(frozen=True, slots=True)
class _Asked:
    """A view of an app."""

    remote: Remote
    view: str

    def plan(self) -> _Plan:
        """Raises UnknownView, AccessDenied, ClusterError."""
        with Connection(self.remote) as coordinator:
            routing = Routing.from_json(coordinator.act("routing", timeout=PLAN_S_MAX))
        if self.view not in routing.views:
            raise UnknownView.among(self.view, routing.views)
        return _Plan(from_arrow_schema(routing.views[self.view].schema), len(routing.vnode_map.workers))


class UpriverDataSource(DataSource):
    """The data source ``upriver``. Options: address and token of a running app, view.

    Register it with ``spark.dataSource.register(UpriverDataSource)``; ``App.read`` does so by itself.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return self._asked().plan().schema

    def reader(self, schema: StructType) -> DataSourceReader:
        asked = self._asked()
        plan = asked.plan()
        if _columns(schema) != _columns(plan.schema):
            raise DeclarationError(
                f"view {asked.view!r} has the columns {_columns(plan.schema)}, not {_columns(schema)}: leave schema() "
                f"out, or read the view again if the app was started anew"
            )
        return ViewReader(asked.remote, asked.view, schema, plan.workers)

    def _asked(self) -> _Asked:
        missing = [option for option in ("address", "token", "view") if not self.options.get(option)]
        if missing:
            raise DeclarationError(f'format "{FORMAT}" needs the options address, token and view; missing: {missing}')
        return _Asked(Remote.parse(self.options["address"], self.options["token"]), self.options["view"])


def _columns(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)


@dataclass(frozen=True)
class ScanPartition(InputPartition):
    """One of the plan's tasks: part ``number`` of ``parts``. plan: names the plan."""

    plan: str
    number: int
    parts: int


class ViewReader(DataSourceReader):
    """Reads a view's parts, in Spark's tasks."""

    def __init__(self, remote: Remote, view: str, schema: StructType, workers: int) -> None:
        self._remote = remote
        self._view = view
        self._schema = schema
        self._workers = workers

    def partitions(self) -> Sequence[InputPartition]:
        plan = uuid4().hex
        return [ScanPartition(plan, number, self._workers) for number in range(self._workers)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of every ``parts``-th worker: of one, unless there are more workers than when this was planned."""
        assert isinstance(partition, ScanPartition)
        schema = spark_arrow_schema(self._schema, "UTC")  # Spark takes rows in UTC, whatever the session's zone
        asked = {"view": self._view, "scan": f"{partition.plan}-{_action()}"}
        with Connection(self._remote) as coordinator:
            snapshot = coordinator.act("scan", asked, timeout=SNAPSHOT_S_MAX)
        for address in snapshot["addresses"][partition.number :: partition.parts]:
            for batch in self._read_worker(address, snapshot["snapshot"]):
                yield batch.cast(schema)

    def _read_worker(self, address: str, snapshot: int) -> Iterator[pa.RecordBatch]:
        asked: dict[str, Any] = {"snapshot": snapshot, "view": self._view}
        with Connection(self._remote.at(address), WorkerLost) as worker:
            try:
                yield from worker.get("snapshot", asked, timeout=PART_S_MAX)
            finally:
                with suppress(UpriverError):  # a leaving worker need not wait for this call
                    worker.act("snapshot_read", {"snapshot": snapshot}, timeout=READ_S_MAX)


def _action() -> str:
    """Names the action that this task belongs to; the same in all its tasks."""
    context = TaskContext.get()
    assert context is not None
    execution = context.getLocalProperty("spark.sql.execution.id")
    return f"e{execution}" if execution is not None else f"s{context.stageId()}"
