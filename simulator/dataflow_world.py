"""One view's dataflow on several workers in one process, without machines: rows, stages, and keys that move meanwhile.

Whatever may vary does, at random: how batches are cut, in which order pieces, workers and deliveries come, and
when which vnodes of which region go to which worker. One thing may not: the rows of a key that an epoch has on a lake
edge stay together and in order. Those of an exchange edge are settled in parts where the plan allows it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upriver.engine.bad_rows import SetAside
from upriver.engine.batch import Batch, Outgoing
from upriver.engine.constants import constant_rows
from upriver.engine.operators.operator import ExpressionEvaluator
from upriver.engine.region import Region
from upriver.hashing import hash64
from upriver.ids import BEGINNING, Epoch
from upriver.lake.compaction import dated
from upriver.plan.flows import stages_of
from upriver.plan.plan import NOT_WANTED, ConstantEdge, DataflowPlan, LakeEdge, TableSpec
from upriver.plan.row_order import dated_schema
from upriver.state.pair_index import sorted_by
from upriver.vnodes import vnodes_of

CUTS_MAX = 3
"""Cuts of one batch."""
SETTLED_MAX = 8
"""Rows that are settled, unless it is said otherwise, or drained at a time."""
PIECES_MIN = 20
"""In about so many pieces rows are settled that are more than that allows: very many pieces would take minutes."""

Delivery = tuple[str, int, Batch]
"""A region, one of its ports, and rows for it."""


class DataflowWorld:
    """Workers that share the keys of each region of one view."""

    def __init__(
        self,
        plan: DataflowPlan,
        tables: Mapping[str, TableSpec],
        evaluator: ExpressionEvaluator,
        rng: Random,
        workers: int = 3,
        vnodes: int = 8,
        moves_odds: float = 0.3,
        sets_aside: Collection[str] = (),
        settled_max: int = SETTLED_MAX,
    ) -> None:
        """moves_odds: how likely it is that vnodes move at a point at which they may. sets_aside: tables whose bad rows
        are set aside. settled_max: rows that are settled at a time."""
        plan = replace(plan, full_because=NOT_WANTED)  # all keys are kept here
        self._plan = plan
        self._tables = tables
        self._rng = rng
        self._vnodes = vnodes
        self._moves_odds = moves_odds
        self._settled_max = settled_max
        self.parts = 0
        """How often a part of a key was settled, and others waited."""
        self._owners = {
            region.name: np.array([rng.randrange(workers) for _ in range(vnodes)]) for region in plan.regions
        }
        """By region, of each vnode."""
        self.workers = [
            {region.name: Region.build(plan, region, evaluator, sets_aside) for region in plan.regions}
            for _ in range(workers)
        ]
        """By worker and region."""
        self.set_aside: list[SetAside] = []
        """In this epoch."""
        self._epoch = BEGINNING
        """The last one."""

    def run_epoch(self, rows: Mapping[str, pa.RecordBatch], clock: int | None = None) -> None:
        """Take an epoch with these rows, by table, to its end. clock: its instant. Some workers begin it before rows
        come to them, others after that."""
        self.run_span([rows], clock)

    def run_span(self, epochs: Sequence[Mapping[str, pa.RecordBatch]], clock: int | None = None) -> None:
        """Take several epochs as one, as a flow reads a segment. clock: the instant of the last one."""
        self.set_aside = []
        first, self._epoch = self._epoch + 1, Epoch(self._epoch + len(epochs))
        for each in (region for worker in self.workers for region in worker.values()):
            each.begin(self._epoch)
        workers = [] if clock is None else self._rng.sample(self.workers, len(self.workers))
        early = self._rng.randint(0, len(workers))
        self._advance(workers[:early], clock)
        for region, port, batch in self._shuffled([list(queue) for queue in self._from_the_lake(epochs, first)]):
            self._deliver(region, port, batch)
        self._advance(workers[early:], clock)
        stages = stages_of([self._plan])
        for stage in range(max(stages.values()) + 1):
            self._run_stage([name for name, found in stages.items() if found == stage])

    def _advance(self, workers: Sequence[Mapping[str, Region]], clock: int | None) -> None:
        for worker in workers:
            for region in worker.values():
                assert clock is not None
                region.advance(clock)
            self._maybe_move()

    def scan(self) -> pa.Table:
        """The whole view."""
        return pa.concat_tables([worker[self._plan.name].scan() for worker in self.workers])

    def lookup(self, keys: pa.RecordBatch) -> pa.Table:
        """The view's rows of these keys, each looked up where it is."""
        hashes = hash64(keys.columns)
        owners = self._owners[self._plan.name][vnodes_of(hashes, self._vnodes)]
        answers = []
        for number, worker in enumerate(self.workers):
            mine = owners == number
            answers.append(worker[self._plan.name].lookup(hashes[mine], keys.filter(pa.array(mine))))
        return pa.Table.from_batches(answers)

    def move(self, region: str, vnode: int, target: int) -> None:
        """Give a vnode of a region to a worker."""
        source = int(self._owners[region][vnode])
        if source != target:
            old, new = self.workers[source][region], self.workers[target][region]
            keys = old.keys_of(vnode, self._vnodes)
            new.install(old.collect(keys))
            new.show_due()
            old.drop(keys)
            self._owners[region][vnode] = target

    # An epoch ---------------------------------------------------------------------------------------------------------

    def _from_the_lake(
        self, epochs: Sequence[Mapping[str, pa.RecordBatch]], first: int
    ) -> Iterator[Iterator[Delivery]]:
        """What each lake edge brings, in order. first: the first of these epochs."""
        tables = {table for rows in epochs for table in rows}
        batches = {
            table: rows_of_span([rows.get(table) for rows in epochs], self._tables[table], first) for table in tables
        }
        for region in self._plan.regions:
            for port, entry in enumerate(region.inputs):
                if isinstance(entry.edge, ConstantEdge) and first == 1:
                    yield iter([(region.name, port, constant_rows(entry.edge))])
                if isinstance(entry.edge, LakeEdge) and entry.edge.table in tables:
                    read = run_of(batches[entry.edge.table], entry.edge, dated(self._tables[entry.edge.table]))
                    batch = read if entry.edge.is_dated else read.undated
                    # Between two keys: where the first row comes that has the hash of the one drawn, or one above.
                    cuts = np.searchsorted(batch.hash64, [batch.hash64[cut - 1] for cut in self._cuts(batch) if cut])
                    yield ((region.name, port, piece) for piece in _cut(batch, cuts.tolist()))

    def _run_stage(self, regions: Sequence[str]) -> None:
        """Settle what these regions have gathered, wherever it moves meanwhile, and send on what has come out."""
        while waiting := [(worker, name) for worker in self.workers for name in regions if worker[name].waiting]:
            worker, name = self._rng.choice(waiting)
            most = max(self._settled_max, worker[name].waiting // PIECES_MIN)
            _, keys = worker[name].settle_in_parts(self._rng.randint(1, most))
            self.parts += len(keys)
            self.set_aside += worker[name].left_out()
            self._maybe_move()
        sent: list[list[Delivery]] = []
        for worker in self.workers:
            for name in regions:
                while worker[name].unsettled:
                    drained = worker[name].drain(self._rng.randint(1, SETTLED_MAX))
                    sent += [self._delivery(outgoing) for outgoing in drained]
        for name, port, piece in self._shuffled(sent):
            self._deliver(name, port, piece)

    def _delivery(self, outgoing: Outgoing) -> list[Delivery]:
        return [(outgoing.to, outgoing.port, piece) for piece in self._pieces(outgoing.batch)]

    def _shuffled(self, queues: list[list[Delivery]]) -> Iterator[Delivery]:
        """All deliveries, those of one queue in order; keys may move between any two."""
        queues = [queue for queue in queues if queue]
        while queues:
            queue = self._rng.choice(queues)
            yield queue.pop(0)
            self._maybe_move()
            queues = [queue for queue in queues if queue]

    def _deliver(self, region: str, port: int, batch: Batch) -> None:
        owners = self._owners[region][vnodes_of(batch.hash64, self._vnodes)]
        for number, worker in enumerate(self.workers):
            mine: npt.NDArray[np.bool_] = owners == number
            if mine.any():
                worker[region].apply(port, batch.filtered(mine))
                self.set_aside += worker[region].left_out()

    def _maybe_move(self) -> None:
        if self._rng.random() < self._moves_odds:
            region = self._rng.choice(self._plan.regions).name
            for vnode in self._rng.sample(range(self._vnodes), self._rng.randint(1, self._vnodes)):
                self.move(region, vnode, self._rng.randrange(len(self.workers)))

    def _pieces(self, batch: Batch) -> Iterator[Batch]:
        return _cut(batch, self._cuts(batch))

    def _cuts(self, batch: Batch) -> list[int]:
        return [self._rng.randint(0, len(batch)) for _ in range(self._rng.randint(0, CUTS_MAX))]


def _cut(batch: Batch, places: Sequence[int]) -> Iterator[Batch]:
    return (batch.slice(start, stop) for start, stop in pairwise(sorted({0, len(batch), *places})))


def rows_of_span(epochs: Sequence[pa.RecordBatch | None], table: TableSpec, first: int) -> pa.RecordBatch:
    """The rows of some epochs, each with its epoch. first: the first one."""
    schema = dated_schema(table.schema)
    parts = [pa.RecordBatch.from_pylist([], schema)]
    for epoch, rows in enumerate(epochs, start=first):
        if rows is not None:
            numbers = pa.repeat(pa.scalar(epoch, pa.uint32()), len(rows))
            parts.append(pa.RecordBatch.from_arrays([*rows.columns, numbers], schema=schema))
    return pa.concat_batches(parts)


def run_of(rows: pa.RecordBatch, edge: LakeEdge, table: TableSpec) -> Batch:
    """An epoch's rows as the lake has them for an edge: sorted by hash64, then by ``order_by``."""
    if table.order_by and rows.num_rows:
        order = sorted_by([(column, "ascending") for column in table.order_by], "at_start")
        rows = rows.take(pc.sort_indices(rows, **order))
    hashes = hash64([rows.column(column) for column in edge.index], rows.num_rows)
    by_hash = np.argsort(hashes, kind="stable")
    return Batch(rows.take(pa.array(by_hash)), hashes[by_hash])
