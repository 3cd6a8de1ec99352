"""What is right: one worker that owns everything and applies each epoch in one piece, and SQL over all rows."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from simulator.lake import FakeLake
from simulator.tables import BAD_ROWS, ORDERED, VALUES, Key, KeyHashes, hashes_of_keys
from upriver.engine.region import ALL_ROWS
from upriver.ids import Channel, Epoch, FlowId, VnodeId, WorkerId
from upriver.lake.spans import single
from upriver.plan.flows import as_one, stages_of
from upriver.plan.plan import DataflowPlan, StatefulMapOp
from upriver.protocol.messages import Assign, BeginStage, OpenEpoch
from upriver.protocol.worker_events import EpochRead, RowsRead, TimeToSettle
from upriver.sql.views import MAP_OF
from upriver.vnodes import VnodeMap
from upriver.worker.regions import BuildRegion
from upriver.worker.serving import Serving
from upriver.worker.share import FlowShare

Row = tuple[Any, ...]
Rows = Mapping[Key, Sequence[Row]]
"""A view's rows by key, each key's in order."""


def by_key(rows: pa.Table | pa.RecordBatch, plan: DataflowPlan) -> dict[Key, list[Row]]:
    """Rows of a view, as Python values; of a view whose keys' rows come in no order, sorted. Those of a stateful map
    come in order."""
    keys = zip(*(rows.column(column).to_pylist() for column in plan.key), strict=True)
    found: dict[Key, list[Row]] = {}
    for key, row in zip(keys, rows_in(rows), strict=True):
        found.setdefault(key, []).append(row)
    if plan.name not in ORDERED and not plan.sql.startswith(MAP_OF):
        for of_key in found.values():
            of_key.sort(key=_place)
    return found


def _place(row: Row) -> str:
    """By which rows are sorted; all zeros are one."""
    return repr([value + 0.0 if isinstance(value, float) else value for value in row])


def rows_in(rows: pa.Table | pa.RecordBatch) -> list[Row]:
    """As Python values."""
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


class Oracle:
    """Every view that there can be, as of every epoch, whether it is kept then or not."""

    def __init__(self, plans: Sequence[DataflowPlan], vnodes: int, build_region: BuildRegion) -> None:
        self._plans = plans
        self._machine = FlowShare(FlowId(0), build_region)
        self._deepest = max(stages_of(plans).values(), default=0)
        self._fed = {plan.name: as_one(plans, plan.name) for plan in plans}
        """Each with the regions of the maps that feed it."""
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
        self.failed: dict[str, Epoch] = {}
        """The views that cannot be computed from the rows that were published, and the epoch of the first such row."""
        self._channels = sorted({channel for plan in plans for channel in plan.channels})
        self._history: list[dict[str, Rows]] = [{plan.name: {} for plan in plans}]
        self._kept: list[dict[str, frozenset[int]]] = [{plan.name: frozenset() for plan in plans}]
        self.hashes = {plan.name: _hashes_of(plan) for plan in plans}
        """By view: hash64 of every key that there can be."""
        self._shift = 64 - (vnodes.bit_length() - 1)

    def publish(self, epoch: Epoch, lake: FakeLake) -> None:
        """Apply one more epoch."""
        self._machine.step(OpenEpoch(epoch=epoch, mixed=False, clock=lake.clock(epoch)))
        runs = lake.changes(single(epoch))
        for channel in filter(runs.__contains__, self._channels):
            self._machine.step(RowsRead(epoch=epoch, channel=channel, batch=runs[channel].batch))
        promised = lake.promised(single(epoch), self._everything, self._channels)
        aged = lake.aged(single(epoch), self._everything, self._channels)
        self._machine.step(EpochRead(epoch=epoch, promised=promised, aged=aged))
        for stage in range(1 + self._deepest if self._deepest else 0):
            self._machine.step(BeginStage(epoch=epoch, stage=stage))
            self._machine.step(TimeToSettle(rows_max=ALL_ROWS))
        assert isinstance(self._machine.phase, Serving)
        shares = self._machine.phase.regions.shards
        for plan in self._plans:
            if shares[plan.name].failure is not None:
                self.failed.setdefault(plan.name, epoch)
        going_on = [plan for plan in self._plans if plan.name not in self.failed]
        fed = [plan for plan in going_on if self._is_fed(plan.name, runs)]
        changed = {plan.name: by_key(shares[plan.name].region.scan(), plan) for plan in fed}
        self._history.append({**self._history[-1], **changed})
        kept = {plan.name: frozenset(shares[plan.name].region.keys_of(0, 1).tolist()) for plan in fed}
        self._kept.append({**self._kept[-1], **kept})

    def _is_fed(self, view: str, channels: Collection[Channel]) -> bool:
        """Whether an epoch with rows of these channels may change a view."""
        whole = self._fed[view]
        return whole.is_clocked or not whole.channels.isdisjoint(channels)

    def knows(self, view: str, epoch: Epoch) -> bool:
        """Whether the view can be computed through an epoch. If not, a worker may go on that has not heard so."""
        return view not in self.failed or epoch < self.failed[view]

    def at(self, view: str, epoch: Epoch) -> Rows:
        """The whole view at the end of an epoch."""
        return self._history[epoch][view]

    def keys_kept(self, view: str, epoch: Epoch) -> frozenset[int]:
        """hash64 of all keys that have state in the view's last region at the end of an epoch: also of groups that
        HAVING leaves out."""
        return self._kept[epoch][view]

    def epochs_that_show(self, view: str, key: Key, rows: Sequence[Row], first: Epoch) -> list[Epoch]:
        """The epochs from ``first`` on as of whose end the key has these rows."""
        later = enumerate(self._history[first:], first)
        return [Epoch(epoch) for epoch, views in later if views[view].get(key, []) == rows]

    def share(self, view: str, epoch: Epoch, vnodes: Collection[VnodeId]) -> dict[Key, Sequence[Row]]:
        """The part of the view that lies in ``vnodes``, at the end of an epoch."""
        return {key: rows for key, rows in self.at(view, epoch).items() if self.vnode_of(view, key) in vnodes}

    def keys_in(self, view: str, vnodes: Collection[VnodeId]) -> list[Key]:
        """Of the keys that there can be, those that lie there."""
        return [key for key, hash64 in self.hashes[view].items() if hash64 >> self._shift in vnodes]

    def vnode_of(self, view: str, key: Key) -> VnodeId:
        return VnodeId(self.hashes[view][key] >> self._shift)


def _hashes_of(plan: DataflowPlan) -> Mapping[Key, int]:
    if VALUES.keys() >= set(plan.key) and not has_maps(plan):
        return hashes_of_keys(plan.key)
    return KeyHashes([plan.schema.field(column).type for column in plan.key])


def sql_answer(
    plan: DataflowPlan, tables: Mapping[str, pa.Table], database: duckdb.DuckDBPyConnection, clock: int
) -> Counter[Row]:
    """What DuckDB says of the view's SQL over all good rows: an oracle that shares no code with ours. clock: the
    instant, in microseconds since 1970."""
    sql = plan.sql.replace("unix_timestamp()", str(clock // 1_000_000))
    for name, rows in tables.items():
        bad = bad_rows_of(plan.name, name, rows)
        database.register(name, rows if bad is None else rows.filter(pc.invert(bad)))
    try:
        return Counter(database.execute(sql).fetchall())
    finally:
        for name in tables:
            database.unregister(name)


def has_maps(plan: DataflowPlan) -> bool:
    """Whether a user's function computes rows of it, of which no SQL knows."""
    nodes = (node for region in plan.regions for node in region.nodes)
    return bool(plan.fed_by) or any(isinstance(node.op, StatefulMapOp) for node in nodes)


def bad_rows_of(view: str, table: str, rows: pa.Table | pa.RecordBatch) -> pa.Array | pa.ChunkedArray | None:
    """From which of a table's rows the view cannot be computed; ``None``: it can be from all."""
    source, column, value = BAD_ROWS.get(view, (None, "", None))
    return pc.fill_null(pc.equal(rows.column(column), value), False) if source == table else None
