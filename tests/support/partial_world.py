"""A partial view on two workers in one process, without machines: keys are read, evicted, read again, and move.

Whatever may vary does, at random: how an epoch is cut, when lookups ask for keys, when upqueries are answered, and when
which vnodes go to the other worker. A cone reads the lake by itself; it stands at the ends of epochs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from simulator.dataflow_world import run_of
from upriver.engine.batch import Batch
from upriver.engine.operators.operator import ExpressionEvaluator
from upriver.engine.region import Region
from upriver.hashing import Hashes, hash64
from upriver.ids import Epoch
from upriver.partial.cone import Cone, ConeReads
from upriver.partial.partial_region import KeysToRead, PartialRegion, UnansweredKeys, Upquery
from upriver.partial.rules import ALL_RULES
from upriver.plan.plan import DataflowPlan, LakeEdge, TableSpec
from upriver.plan.provenance import lake_edges
from upriver.state.vectors import NO_KEYS, Mask
from upriver.vnodes import vnodes_of

WORKERS, VNODES = 2, 8
CUTS_MAX = 3
KEYS_ASKED = 3
"""Keys that a lookup asks for in the middle of an epoch."""
ROWS_TAKEN = (2, 1000, 1000)
"""Rows of an answer that are taken in at a time."""
ODDS = 0.2
"""How likely each thing is that may happen between two pieces of an epoch."""


class EpochsRead:
    """The epochs of a lake in memory, read by key."""

    def __init__(self, tables: Mapping[str, TableSpec]) -> None:
        self._tables = tables
        self._epochs: list[Mapping[str, pa.RecordBatch]] = []
        self.clocks: list[int | None] = []
        """The instant of each epoch."""

    def __len__(self) -> int:
        return len(self._epochs)

    def publish(self, rows: Mapping[str, pa.RecordBatch], clock: int | None) -> None:
        self._epochs.append(rows)
        self.clocks.append(clock)

    def run(self, edge: LakeEdge, epoch: int) -> Batch:
        """The rows of an epoch, as the lake has them for the edge."""
        table = self._tables[edge.table]
        return run_of(self._epochs[epoch - 1].get(edge.table, empty(table)), edge, table)

    def of_keys(self, edge: LakeEdge, keys: Hashes, after: int, through: int) -> Batch:
        """The rows of these keys: by hash64, and those of one key in order."""
        runs = [self.run(edge, epoch) for epoch in range(after + 1, through + 1)]
        mine = [run.filtered(np.isin(run.hash64, keys)) for run in runs]
        hashes = np.concatenate([NO_KEYS, *(run.hash64 for run in mine)])
        order = np.argsort(hashes, kind="stable")
        rows = pa.concat_batches([empty(self._tables[edge.table]), *(run.rows for run in mine)])
        return Batch(rows.take(pa.array(order)), hashes[order])


def empty(table: TableSpec) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], table.schema)


class PartialWorld:
    """Workers that share the keys of a partial view."""

    def __init__(
        self, plan: DataflowPlan, tables: Mapping[str, TableSpec], evaluator: ExpressionEvaluator, rng: Random
    ) -> None:
        """plan: of a partial view."""
        assert plan.full_because is None
        self._edges = [entry.edge for entry in plan.regions[-1].inputs if isinstance(entry.edge, LakeEdge)]
        self._is_fed = not plan.is_cone
        self._rng = rng
        self._lake = EpochsRead(tables)
        self._owners = np.array([rng.randrange(WORKERS) for _ in range(VNODES)])
        self._workers: list[Share] = [
            (ConeShare if plan.is_cone else RegionShare)(plan, evaluator, self._lake, rng) for _ in range(WORKERS)
        ]
        self._seen: Hashes = NO_KEYS
        """Keys that were ever asked for."""

    def run_epoch(self, rows: Mapping[str, pa.RecordBatch], clock: int | None = None) -> None:
        """Take an epoch with these rows, by table, to its end. clock: its instant."""
        self._lake.publish(rows, clock)
        for worker in self._workers:
            worker.open(clock)
        self._disturb()
        for port, piece in self._pieces() if self._is_fed else ():
            for number, worker in enumerate(self._workers):
                worker.take(port, piece.filtered(self._is_at(number, piece.hash64)))
            self._disturb()
        for worker in self._workers:
            worker.settle()

    def lookup(self, keys: pa.RecordBatch) -> pa.Table:
        """The view's rows of these keys, each once; missing keys are filled."""
        hashes = hash64(keys.columns)
        self._seen = np.union1d(self._seen, hashes)
        answers = []
        for number, worker in enumerate(self._workers):
            mine = self._is_at(number, hashes)
            worker.want(np.unique(hashes[mine]))
            worker.settle()
            answers.append(worker.kept.lookup(hashes[mine], keys.filter(pa.array(mine))))
        return pa.Table.from_batches(answers)

    def evict(self, share: float) -> int:
        """Evict about so many of the keys; returns how many were present."""
        gone = self._seen[np.array([self._rng.random() < share for _ in self._seen], np.bool_)]
        return sum(worker.kept.evict(gone[self._is_at(number, gone)]) for number, worker in enumerate(self._workers))

    def _is_at(self, worker: int, hashes: Hashes) -> Mask:
        found: Mask = self._owners[vnodes_of(hashes, VNODES)] == worker
        return found

    def _pieces(self) -> list[tuple[int, Batch]]:
        """What the epoch brings, cut between keys; pieces of several ports in any order."""
        queues = []
        for port, edge in enumerate(self._edges):
            run = self._lake.run(edge, len(self._lake))
            places = [self._rng.randrange(len(run)) for _ in range(self._rng.randint(0, CUTS_MAX)) if len(run)]
            cuts = sorted(np.searchsorted(run.hash64, run.hash64[places]).tolist())
            queues.append([(port, run.slice(start, stop)) for start, stop in pairwise([0, *cuts, len(run)])])
        pieces = []
        while queues := [queue for queue in queues if queue]:
            pieces.append(self._rng.choice(queues).pop(0))
        return pieces

    def _disturb(self) -> None:
        """What may happen between two pieces."""
        for number, worker in enumerate(self._workers):
            if len(self._seen) and self._rng.random() < ODDS:
                asked = np.unique(np.array(self._rng.choices(self._seen.tolist(), k=KEYS_ASKED), np.uint64))
                worker.want(asked[self._is_at(number, asked)])
            if self._rng.random() < ODDS:
                worker.go_on()
        if self._rng.random() < ODDS:
            self.evict(ODDS)
        if self._rng.random() < ODDS:
            vnode = self._rng.randrange(VNODES)
            source = int(self._owners[vnode])
            self._workers[source].give(vnode, self._workers[1 - source])
            self._owners[vnode] = 1 - source


class Share(ABC):
    """A worker's share of a view."""

    kept: PartialRegion | Cone

    @abstractmethod
    def open(self, clock: int | None) -> None:
        """The lake's last epoch begins."""

    @abstractmethod
    def take(self, port: int, piece: Batch) -> None:
        """Rows of the epoch come."""

    @abstractmethod
    def go_on(self) -> None:
        """One of the things happens that are to be done."""

    @abstractmethod
    def settle(self) -> None:
        """All that is to be done is done."""

    @abstractmethod
    def give(self, vnode: int, other: Any) -> None:
        """The vnode goes to the other worker."""

    def want(self, keys: Hashes) -> None:
        self.kept.want(keys)


class RegionShare(Share):
    """Of a view of one region: rows come, and its state moves."""

    kept: PartialRegion

    def __init__(self, plan: DataflowPlan, evaluator: ExpressionEvaluator, lake: EpochsRead, rng: Random) -> None:
        (region,) = plan.regions
        self._edges = [entry.edge for entry in region.inputs if isinstance(entry.edge, LakeEdge)]
        self.kept = PartialRegion(lambda: Region.build(plan, region, evaluator), ALL_RULES)
        self._lake, self._rng = lake, rng
        self._upqueries: list[Upquery] = []

    def open(self, clock: int | None) -> None:
        if clock is not None:
            self.kept.advance(clock)

    def take(self, port: int, piece: Batch) -> None:
        if len(piece):
            self.kept.take(Epoch(len(self._lake)), port, piece)

    def go_on(self) -> None:
        steps = [self._begin, self.kept.catch_up]
        steps += [self._answer] if self._upqueries else []
        steps += [self._fill] if self.kept.unfilled else []
        self._rng.choice(steps)()

    def settle(self) -> None:
        while True:
            self._begin()
            if self._upqueries:
                self._answer()
            elif self.kept.unfilled:
                self._fill()
            else:
                break
        self.kept.catch_up()

    def give(self, vnode: int, other: "RegionShare") -> None:
        self.kept.catch_up()
        self.kept.give_up_vnode(vnode, VNODES)
        keys = self.kept.keys_of(vnode, VNODES)
        other.kept.install(self.kept.collect(keys))
        other.kept.show_due()
        self.kept.drop(keys)

    def _begin(self) -> None:
        upquery = self.kept.upquery(Epoch(len(self._lake)))
        self._upqueries += [] if upquery is None else [upquery]

    def _answer(self) -> None:
        upquery = self._upqueries.pop(self._rng.randrange(len(self._upqueries)))
        through = len(self._lake) if self._rng.random() < ODDS else upquery.through
        rows = [(port, self._lake.of_keys(edge, upquery.keys, 0, through)) for port, edge in enumerate(self._edges)]
        rows_max = self._rng.choice(ROWS_TAKEN)
        self._check(self.kept.answer(upquery.number, rows, Epoch(through), rows_max, self._lake.clocks[through - 1]))

    def _fill(self) -> None:
        self._check(self.kept.fill(self._rng.choice(ROWS_TAKEN)))

    def _check(self, unanswered: Sequence[UnansweredKeys] | None) -> None:
        for keys in unanswered or ():
            raise keys.error


class ConeShare(Share):
    """Of a view with exchanges: it reads all rows by itself, and the other worker fills the keys that it gives away."""

    kept: Cone

    def __init__(self, plan: DataflowPlan, evaluator: ExpressionEvaluator, lake: EpochsRead, rng: Random) -> None:
        self._edges = {edge.channel: edge for edge in lake_edges(plan)}
        self.kept = Cone(plan, partial(Region.build, plan, evaluator=evaluator), ALL_RULES, Epoch(0))
        self._lake, self._rng = lake, rng
        self._unread: list[ConeReads] = []

    def open(self, clock: int | None) -> None:
        assert clock is None, "no view that depends on the clock is a cone"

    def take(self, port: int, piece: Batch) -> None:
        raise AssertionError("no rows come to a cone")

    def go_on(self) -> None:
        if self._unread:
            asked = self._unread.pop(self._rng.randrange(len(self._unread)))
            rows = [self._read(read) for read in asked.reads]
            self._unread += self.kept.proceed(asked.task, rows, self._rng.choice(ROWS_TAKEN))
        elif self.kept.unfilled:
            self._unread += self.kept.take_in(self._rng.choice(ROWS_TAKEN))
        else:
            self._unread += self.kept.work(Epoch(len(self._lake)))

    def settle(self) -> None:
        self.go_on()
        while self._unread or self.kept.unfilled or self.kept.puts_off or self.kept.applied < len(self._lake):
            self.go_on()
        for keys in self.kept.unanswered():
            raise keys.error

    def give(self, vnode: int, other: "ConeShare") -> None:
        self.kept.give_up_vnode(vnode, VNODES)
        other.kept.wait_until(self.kept.applied)
        other.kept.want(self.kept.leave(vnode, VNODES))

    def _read(self, read: KeysToRead) -> Batch:
        return self._lake.of_keys(self._edges[read.channel], read.keys, read.after, read.through)
