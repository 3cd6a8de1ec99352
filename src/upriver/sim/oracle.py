"""What is right: one worker that owns everything and applies each epoch in one piece, and SQL over all rows."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from upriver.dataflow.graph import DataflowPlan
from upriver.ids import Epoch, VnodeId, WorkerId
from upriver.machines.following import BuildRegion, Following
from upriver.machines.messages import Assign, BeginStage, OpenEpoch
from upriver.machines.worker import WorkerMachine
from upriver.machines.worker_events import EpochRead, RowsRead
from upriver.sim.lake import FakeLake
from upriver.sim.tables import Key, hashes_of_keys
from upriver.vnodes import VnodeMap

Row = tuple[Any, ...]
Rows = Mapping[Key, Sequence[Row]]
"""A view's rows by key, each key's in order."""


def by_key(rows: pa.Table | pa.RecordBatch, plan: DataflowPlan) -> dict[Key, list[Row]]:
    """Rows of a view, as Python values."""
    keys = zip(*(rows.column(column).to_pylist() for column in plan.key), strict=True)
    found: dict[Key, list[Row]] = {}
    for key, row in zip(keys, zip(*(column.to_pylist() for column in rows.columns), strict=True), strict=True):
        found.setdefault(key, []).append(row)
    return found


class Oracle:
    """Every view as of every epoch."""

    def __init__(self, plans: Sequence[DataflowPlan], vnodes: int, build_region: BuildRegion) -> None:
        self._plans = plans
        self._machine = WorkerMachine(build_region)
        self._deepest = max((plan.depth for plan in plans), default=0)
        alone = VnodeMap.initial(vnodes, [WorkerId(0)])
        self._everything = alone.vnodes_of_worker(WorkerId(0))
        everything = Assign(
            worker=WorkerId(0),
            plans=tuple(plans),
            maps={region.name: alone for plan in plans for region in plan.regions},
            reads=self._everything,
            start_at=Epoch(0),
            serve_from=Epoch(0),
            generation=0,
        )
        self._machine.step(everything)
        self._history: list[dict[str, Rows]] = [{plan.name: {} for plan in plans}]
        shift = 64 - (vnodes.bit_length() - 1)
        self.vnode_of: dict[str, dict[Key, int]] = {
            plan.name: {key: hash64 >> shift for key, hash64 in hashes_of_keys(plan.key).items()} for plan in plans
        }
        """By view: the vnode of every key that there can be."""

    def publish(self, epoch: Epoch, lake: FakeLake) -> None:
        """Apply one more epoch."""
        self._machine.step(OpenEpoch(epoch=epoch, mixed=False))
        runs = lake.runs(epoch)
        for channel, run in runs.items():
            self._machine.step(RowsRead(epoch=epoch, channel=channel, batch=run.batch))
        self._machine.step(EpochRead(epoch=epoch, promised=lake.promised(epoch, self._everything)))
        for stage in range(1 + self._deepest if self._deepest else 0):
            self._machine.step(BeginStage(epoch=epoch, stage=stage))
        assert isinstance(self._machine.phase, Following)
        shares = self._machine.phase.shares
        changed = {p.name: by_key(shares[p.name].region.scan(), p) for p in self._plans if p.channels & runs.keys()}
        self._history.append({**self._history[-1], **changed})

    def at(self, view: str, epoch: Epoch) -> Rows:
        """The whole view at the end of an epoch."""
        return self._history[epoch][view]

    def epochs_that_show(self, view: str, key: Key, rows: Sequence[Row], first: Epoch) -> list[Epoch]:
        """The epochs from ``first`` on as of whose end the key has these rows."""
        later = enumerate(self._history[first:], first)
        return [Epoch(epoch) for epoch, views in later if views[view].get(key, []) == rows]

    def share(self, view: str, epoch: Epoch, vnodes: Collection[VnodeId]) -> dict[Key, Sequence[Row]]:
        """The part of the view that lies in ``vnodes``, at the end of an epoch."""
        vnode_of = self.vnode_of[view]
        return {key: rows for key, rows in self.at(view, epoch).items() if vnode_of[key] in vnodes}


def sql_answer(plan: DataflowPlan, tables: Mapping[str, pa.Table], database: duckdb.DuckDBPyConnection) -> Counter[Row]:
    """What DuckDB says of the view's SQL over all rows: an oracle that shares no code with ours."""
    for name, rows in tables.items():
        database.register(name, rows)
    try:
        return Counter(database.execute(plan.sql).fetchall())
    finally:
        for name in tables:
            database.unregister(name)
