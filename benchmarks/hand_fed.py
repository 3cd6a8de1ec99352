"""An app without ingest: the benchmark writes runs and publishes epochs itself, one when it wants to.

Lake, coordinator and workers are the app's own, put together as :mod:`upriver.spark.running_app` does, and workers are
Spark tasks. What is left out is Spark's streaming, which would hide milliseconds behind its own hundreds.
"""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from benchmarks.events import SCHEMA, TABLE, TOTALS, VIEW
from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.hashing import hash64
from upriver.ids import Epoch, WorkerId
from upriver.lake.ingest_history import IngestHistory
from upriver.lake.lake import LakeRecord, OwnedLake
from upriver.lake.manifests import Manifest
from upriver.net.handshake import HandshakeKeys
from upriver.net.server import Listen
from upriver.plan.explain import why_full
from upriver.plan.plan import DataflowPlan, TableSpec, lake_channel
from upriver.plan.provenance import indexes_of
from upriver.runtime.coordinator_loop import CoordinatorLoop
from upriver.runtime.coordinator_service import CoordinatorService
from upriver.runtime.worker import WorkerConfig
from upriver.spark.analyser import SparkAnalyser
from upriver.spark.frames import SparkSession
from upriver.spark.host import WorkerHost
from upriver.spark.ingest import EpochLog
from upriver.sql.views import declare_view
from upriver.state.runs import RunInfo, describe_run, encode_run, run_schema
from upriver.vnodes import VNODES_DEFAULT, VnodeMap

BIND = "127.0.0.1"
START_S_MAX = 120.0
"""Seconds for the workers to come up."""
FEEDER = "hand-fed"
"""Stands in manifests for a streaming query."""
STOP_S_MAX = 30.0
"""Seconds for the workers to retire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandFedView:
    """A view to be kept, in Spark SQL. tables: that it reads. partial: keep only the keys that are looked up, if that
    can be."""

    name: str
    sql: str
    key: str
    tables: tuple[TableSpec, ...]
    partial: bool = False


TOTALS_OF_EVENTS = HandFedView(name=VIEW, sql=TOTALS, key="k", tables=(TableSpec(TABLE, SCHEMA, ("k",)),))


@dataclass(frozen=True, slots=True)
class FedEpoch:
    """An epoch that was published. begun_at: when its manifest was about to be written, before which no reader can have
    seen it; at: when it was in the lake. Both by ``time.perf_counter``."""

    epoch: Epoch
    begun_at: float
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HandFedPlan:
    """A view that is planned already, such as a stateful map. tables: that it reads."""

    plan: DataflowPlan
    tables: tuple[TableSpec, ...]


class HandFedApp:
    """Views on the lake at ``root``, kept by ``workers``. A context manager: up inside."""

    def __init__(
        self,
        spark: SparkSession,
        root: Path,
        workers: int,
        views: Sequence[HandFedView | HandFedPlan] = (TOTALS_OF_EVENTS,),
        memory_budget: int | None = None,
    ) -> None:
        """memory_budget: bytes of the state of each worker; ``None`` for any."""
        self.token = secrets.token_urlsafe(32)
        self._keys = HandshakeKeys(self.token, secrets.token_bytes(32))
        self._tables = {table.name: table for view in views for table in view.tables}
        analyser = SparkAnalyser(spark, self._tables)
        self.plans = tuple(self._planned(view, analyser) for view in views)
        self._memory_budget = memory_budget
        self._spark = spark
        self._root = str(root)
        self._workers = [WorkerId(number) for number in range(workers)]
        machine = CoordinatorMachine(VnodeMap.initial(VNODES_DEFAULT, self._workers), self.plans)
        self._coordinator = CoordinatorLoop(machine, lambda worker: self._host.start(worker))
        self._published_at = 0.0

    def _planned(self, view: HandFedView | HandFedPlan, analyser: SparkAnalyser) -> DataflowPlan:
        if isinstance(view, HandFedPlan):
            return view.plan
        plan = declare_view(view.name, view.sql, view.key, self._tables, {}, analyser)
        return replace(plan, full_because=why_full(plan, view.partial, ()))

    def __enter__(self) -> Self:
        tables = tuple(self._tables.values())
        self._lake = OwnedLake(self._root, LakeRecord(VNODES_DEFAULT, tables, indexes_of(tables, self.plans)), {})
        self._log = EpochLog(self._lake, IngestHistory(), self._published)
        self._coordinator.start()
        self._service = CoordinatorService(self._coordinator, self.plans, tables, Listen(host=BIND), self._keys)
        config = WorkerConfig(
            root=self._root,
            coordinator=self._service.address,
            keys=self._keys,
            bind=BIND,
            plans=self.plans,
            memory_budget=self._memory_budget,
        )
        self._host = WorkerHost(self._spark, config, self._coordinator.fail)
        try:
            for worker in self._workers:
                self._host.start(worker)
            self._coordinator.wait_joined(START_S_MAX)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._coordinator.check()  # if the app has failed, whatever else was raised follows from that
        finally:
            self._stop()

    def _stop(self) -> None:
        self._coordinator.stop(STOP_S_MAX)
        self._host.stop(STOP_S_MAX, STOP_S_MAX)
        self._service.stop()
        self._lake.release()

    @property
    def address(self) -> str:
        return self._service.address

    def publish(self, rows: pa.Table, table: str = TABLE) -> FedEpoch:
        """Make an epoch of rows of a table."""
        batch = self._log.last_batch(table) + 1
        runs = {
            lake_channel(table, index): (self._written(table, index, batch, rows),)
            for index in self._log.indexes(table)
        }
        begun_at = time.perf_counter()
        self._log.publish(table, FEEDER, batch, runs)
        return FedEpoch(self._log.last, begun_at, self._published_at)

    def _written(self, table: str, index: tuple[str, ...], batch: int, rows: pa.Table) -> RunInfo:
        """The rows in the order of one index, as a run."""
        hashes = hash64(rows.select(list(index)).columns)
        order = np.argsort(hashes)
        columns = [pa.array(hashes[order]), *rows.take(pa.array(order)).columns]
        encoded = encode_run(pa.Table.from_arrays(columns, schema=run_schema(self._tables[table].schema)))
        path = f"tables/{lake_channel(table, index)}/{batch:012d}-{FEEDER}.arrow"
        self._lake.files.create(path, encoded)
        return describe_run(path, encoded, hashes[order], VNODES_DEFAULT)

    def _published(self, manifest: Manifest) -> None:
        """Called by the log as soon as the manifest's ``create`` has returned."""
        self._published_at = time.perf_counter()
        self._coordinator.published(manifest)

    def wait(self, seconds: float) -> Epoch:
        """Until all that was published is reflected by every worker."""
        self._coordinator.wait_ended(self._log.last, seconds)
        return self._log.last

    def status(self) -> dict[str, Any]:
        """As ``App.status``."""
        return self._coordinator.status()
