"""A lake of dataflow_kit's tables, written without Spark, in the order of all indexes that some plans need."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from dataflow_kit import TABLES

from upriver.engine.retention import Retention
from upriver.hashing import hash64
from upriver.ids import Channel, Epoch
from upriver.lake.lake import LakeRecord, OwnedLake
from upriver.lake.manifests import Manifest
from upriver.plan.plan import DataflowPlan, TableSpec, lake_channel
from upriver.plan.provenance import indexes_of
from upriver.state.run_order import sorted_order
from upriver.state.runs import RunInfo, describe_run, encode_run, run_schema


class WrittenLake:
    """Three tasks write each epoch, each row by any of them, as two runs for each index; any of them may be empty."""

    def __init__(
        self, root: Path, plans: Sequence[DataflowPlan], vnodes: int, tables: Mapping[str, TableSpec] = TABLES
    ) -> None:
        self.root = str(root)
        self.vnodes = vnodes
        self._tables = tables
        self._indexes = indexes_of(tables.values(), plans)
        self._lake = OwnedLake(self.root, LakeRecord(vnodes, tuple(tables.values()), self._indexes), {})

    @property
    def last(self) -> Epoch:
        return self._lake.last_epoch()

    def publish(self, table: str, rows: pa.RecordBatch, retained: Mapping[str, Retention] | None = None) -> None:
        """Add an epoch with these rows. retained: the retention of tables at its end."""
        epoch = Epoch(self.last + 1)
        runs, task_of = {}, np.random.default_rng(epoch).integers(0, 3, rows.num_rows)
        for index in self._indexes[table]:
            channel = lake_channel(table, index)
            runs[channel] = tuple(
                run
                for task in range(3)
                for run in self._runs(table, index, rows.filter(pa.array(task_of == task)), task)
            )
        manifest = Manifest(epoch=epoch, term=self._lake.term, table=table, query="q", batch=epoch, runs=runs)
        self._lake.publish(replace(manifest, retained=retained or {}))

    def _runs(self, table: str, index: tuple[str, ...], rows: pa.RecordBatch, task: int) -> list[RunInfo]:
        channel, hashes = lake_channel(table, index), hash64([rows.column(name) for name in index], rows.num_rows)
        order = sorted_order(hashes, rows, self._tables[table].order_by)
        kept = pa.table([pa.array(hashes), *rows.columns], schema=run_schema(self._tables[table].schema))
        cut = int(np.searchsorted(hashes[order], np.uint64(2**63)))
        halves = [kept.take(pa.array(half)) for half in (order[:cut], order[cut:])]
        name = f"{self.last + 1}-{task}"
        return [replace(self._run(channel, f"{name}-{part}", half), task=task) for part, half in enumerate(halves)]

    def _run(self, channel: Channel, name: str, rows: pa.Table) -> RunInfo:
        path, encoded = f"tables/{channel}/{name}.arrow", encode_run(rows)
        self._lake.files.create(path, encoded)
        return describe_run(path, encoded, rows.column(0).to_numpy(), self.vnodes)

    def release(self) -> None:
        self._lake.release()
