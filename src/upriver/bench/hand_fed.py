"""A river without ingest: the benchmark writes runs and publishes epochs itself, one when it wants to.

Lake, coordinator and workers are the app's own, put together as :mod:`upriver.spark.river` does, and workers are
Spark tasks. What is left out is Spark's streaming, which would hide milliseconds behind its own hundreds.
"""

import secrets
import time
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from upriver.bench.events import SCHEMA, TABLE, TOTALS, VIEW
from upriver.dataflow.plan import TableSpec
from upriver.dataflow.views import declare_view
from upriver.hashing import hash64
from upriver.ids import Epoch, WorkerId
from upriver.machines.coordinator import CoordinatorMachine
from upriver.shell.coordinator_loop import CoordinatorLoop
from upriver.shell.coordinator_service import CoordinatorService
from upriver.shell.lake import LakeRecord, Manifest
from upriver.shell.owned_lake import OwnedLake
from upriver.shell.worker import WorkerConfig
from upriver.spark.host import WorkerHost
from upriver.spark.ingest import EpochLog, History
from upriver.spark.names import SparkSession
from upriver.spark.typer import SparkTyper
from upriver.state.runs import describe_run, encode_run, run_schema
from upriver.vnodes import VNODES_DEFAULT, VnodeMap

BIND = "127.0.0.1"
START_S_MAX = 120.0
"""Seconds for the workers to come up."""
STOP_S_MAX = 30.0
"""Seconds for the workers to retire."""


class HandFedRiver:
    """The view ``totals`` of the table ``events``, on ``root``, kept by ``workers``. A context manager: up inside."""

    def __init__(self, spark: SparkSession, root: Path, workers: int) -> None:
        self.table = TableSpec(TABLE, SCHEMA, ("k",))
        self.token = secrets.token_urlsafe(32)
        tables = {TABLE: self.table}
        self._plan = declare_view(VIEW, TOTALS, "k", tables, {}, SparkTyper(spark, tables))
        (self._channel,) = self._plan.channels
        self._spark = spark
        self._root = str(root)
        self._workers = [WorkerId(number) for number in range(workers)]
        machine = CoordinatorMachine(VnodeMap.initial(VNODES_DEFAULT, self._workers), (self._plan,))
        self._coordinator = CoordinatorLoop(machine, lambda worker: self._host.start(worker))
        self._published_at = 0.0

    def __enter__(self) -> Self:
        self._lake = OwnedLake(self._root, LakeRecord(VNODES_DEFAULT, (self.table,), {TABLE: (self.table.key,)}), {})
        self._log = EpochLog(self._lake, History(), self._published)
        self._coordinator.start()
        self._service = CoordinatorService(self._coordinator, (self._plan,), (self.table,), BIND, self.token)
        config = WorkerConfig(
            root=self._root, coordinator=self._service.address, token=self.token, bind=BIND, plans=(self._plan,)
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
        self._stop()

    def _stop(self) -> None:
        self._coordinator.stop(STOP_S_MAX)
        self._host.stop(STOP_S_MAX)
        self._service.stop()
        self._lake.release()

    @property
    def address(self) -> str:
        return self._service.address

    def publish(self, rows: pa.Table) -> float:
        """Make an epoch of ``rows``; returns when its manifest was in the lake (``time.perf_counter``)."""
        hashes = hash64(rows.select(["k"]).columns)
        order = np.argsort(hashes)
        columns = [pa.array(hashes[order]), *rows.take(pa.array(order)).columns]
        encoded = encode_run(pa.Table.from_arrays(columns, schema=run_schema(SCHEMA)))
        batch = self._log.last_batch(TABLE) + 1
        path = f"tables/{self._channel}/{batch:012d}-hand-fed.arrow"
        self._lake.files.create(path, encoded)
        run = describe_run(path, encoded, hashes[order], VNODES_DEFAULT)
        self._log.publish(TABLE, "hand-fed", batch, {self._channel: (run,)})
        return self._published_at

    def _published(self, manifest: Manifest) -> None:
        """Called by the log as soon as the manifest's ``create`` has returned."""
        self._published_at = time.perf_counter()
        self._coordinator.published(manifest)

    def wait(self, seconds: float) -> Epoch:
        """Until all that was published is reflected by every worker."""
        self._coordinator.wait_ended(self._log.last, seconds)
        return self._log.last
