"""Two workers that keep a partial view of what a small lake has, for tests that say what happens in which order.

The machines are real. The view lists the epochs of each key's rows, so an answer shows which rows were lost or doubled.
"""

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from machines_kit import (
    FLOW,
    HALVES,
    KEYS,
    PLAN,
    ROWS,
    Seen,
    announce,
    asked,
    assign,
    batch,
    hashed,
    meet,
    move,
    opened,
    over,
)
from workers_kit import SteppedWorkers, vnode_of

from simulator.clients import answers_apart
from upriver.coordinator.flow import EPOCHS_AHEAD_MAX
from upriver.engine.batch import Batch
from upriver.errors import UpriverError
from upriver.ids import Epoch
from upriver.partial.partial_region import ANSWER_ROWS_MAX
from upriver.partial.rules import ALL_RULES as ALL_UPQUERY_RULES
from upriver.plan.plan import DataflowPlan
from upriver.protocol import worker_events
from upriver.protocol.messages import Evict
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.strategies import Strategy
from upriver.worker.memory import MemoryBudget
from upriver.worker.share import FlowShare

PARTIAL = replace(PLAN, full_because=None)
WORKERS = (0, 1)
HERE, ALSO_HERE, THIRD = KEYS[0][0], KEYS[1][0], KEYS[2][0]
THERE = KEYS[7][0]
ROW_BYTES = 100_000
"""What a row takes, by the region's account."""


class Weighed(Seen):
    """Tells how many bytes it takes."""

    def stats(self) -> dict[str, int]:
        taken = ROW_BYTES * sum(map(len, self.epochs.values()))
        return {**super().stats(), "bytes": taken, "live_bytes": taken}


class Workers(SteppedWorkers):
    """Workers 0 and 1. Nothing happens by itself: epochs are opened and read, upqueries answered, and what they say to
    each other carried, when a test says so."""

    def __init__(
        self,
        owners: Sequence[int] = HALVES,
        rules: Rules = ALL_RULES,
        memory_budget: int | None = None,
        plan: DataflowPlan = PARTIAL,
    ) -> None:
        """owners: of the vnodes."""
        self.rules, self.plan = rules, plan
        super().__init__(
            [FlowShare(FLOW, lambda *_: Weighed(), rules, MemoryBudget(memory_budget, rules)) for _ in WORKERS]
        )
        self.upqueries: list[deque[worker_events.ReadKeys]] = [deque() for _ in WORKERS]
        """By worker: those without an answer."""
        self.answers: dict[int, tuple[dict[str, list[int]], int]] = {}
        """By ticket: the epochs of each key that was found, and the answer's epoch."""
        self.held_up: set[int] = set()
        """Tickets of the answers that say so."""
        self.refusals: dict[int, UpriverError] = {}
        self.generation = 0
        self._tickets = 0
        for worker in WORKERS:
            self.step(worker, assign(owners, worker, plans=(self.plan,)))

    def take(self, worker: int, action: worker_events.ShareAction) -> None:
        match action:
            case worker_events.ReadKeys():
                self.upqueries[worker].append(action)
            case worker_events.AnswerTogether():
                for answer in answers_apart(action):
                    self.take(worker, answer)
            case worker_events.Answer():
                found = {row["k"]: row["seen"] for row in action.rows.to_pylist()}
                self.answers[action.ticket] = found, action.epoch
                self.held_up |= {action.ticket} if action.held_up else set()
            case worker_events.Refuse():
                self.refusals[action.ticket] = action.error

    def start_anew(self, owners: Sequence[int] = HALVES) -> None:
        """All begin as another generation, at the last epoch that there is."""
        self.generation += 1
        start = Epoch(len(self.epochs))
        for worker in WORKERS:
            again = assign(
                owners, worker, plans=(self.plan,), generation=self.generation, start_at=start, serve_from=start
            )
            self.step(worker, again)

    # Epochs

    def publish(self, *keys: str) -> int:
        """One more epoch, with a row of each of these keys."""
        self.epochs.append(keys)
        return len(self.epochs)

    def open(self, worker: int, epoch: int, mixed: bool = False) -> None:
        self.step(worker, opened(epoch, mixed))

    def epoch(self, *keys: str, mixed: bool = False) -> int:
        """One more epoch, from its publication to its end everywhere."""
        epoch = self.publish(*keys)
        for worker in WORKERS:
            self.open(worker, epoch, mixed)
            self.end(worker)
        self.carry_all()
        if mixed:
            for worker in WORKERS:
                self.step(worker, over(epoch))
        return epoch

    # Lookups

    def look_up(self, worker: int, *keys: str, at_least: int = 0, together: bool = False) -> int:
        """Ask a worker; returns the ticket. together: for all keys as of the end of one epoch."""
        self._tickets += 1
        self.step(worker, asked(*keys, ticket=self._tickets, at_least=at_least, together=together))
        return self._tickets

    def answer(self, worker: int, rows_max: int = ANSWER_ROWS_MAX) -> list[str]:
        """Answer the worker's oldest upquery out of the lake, by partial.read_ahead; returns the keys that it was for.
        rows_max: that are taken in with it."""
        action = self.upqueries[worker].popleft()
        ahead = EPOCHS_AHEAD_MAX if self.rules.upqueries.partial_read_ahead else 0
        through = min(action.upquery.through + ahead, len(self.epochs))
        wanted = set(action.upquery.keys.tolist())
        asked_for = sorted({key for keys in self.epochs for key in keys if int(hashed([key])[0]) in wanted})
        found = [
            (key, epoch) for epoch, keys in enumerate(self.epochs[:through], 1) for key in keys if key in asked_for
        ]
        self.step(
            worker,
            worker_events.KeysRead(
                generation=action.generation,
                region=action.region,
                number=action.upquery.number,
                rows=((0, _rows_of(found)),),
                through=Epoch(through),
                rows_max=rows_max,
            ),
        )
        return asked_for

    def fill(self, worker: int, *keys: str) -> None:
        """Have these keys be present."""
        ticket = self.look_up(worker, *keys)
        while self.upqueries[worker]:
            self.answer(worker)
            self.rest(worker)
        assert ticket in self.answers

    def rest(self, worker: int) -> None:
        """The worker's upqueries have rested, if they do."""
        if self.machines[worker].can_fill:
            self.step(worker, worker_events.TimeToFill())

    # Keys that move

    def meet(self, strategy: Strategy = Strategy.ICADD) -> None:
        for worker in WORKERS:
            self.step(worker, replace(meet(*WORKERS), strategy=strategy))

    def rescale(self, after: Sequence[int], *workers: int) -> None:
        """Tell the workers, all if none is named, that keys are to move from HALVES to ``after``."""
        for worker in workers or WORKERS:
            self.step(worker, announce(HALVES, after, *WORKERS))

    def move(self, worker: int, keys_max: int = 1) -> None:
        """There is time for the worker to give keys away."""
        assert self.machines[worker].can_move
        self.step(worker, move(keys_max))


def _rows_of(found: Sequence[tuple[str, int]]) -> Batch:
    """A row of each key and epoch, by hash64 and then in order."""
    in_order = sorted(found, key=lambda row: int(hashed([row[0]])[0]))
    pieces = [batch(epoch, key) for key, epoch in in_order]
    return Batch(
        pa.concat_batches([pa.RecordBatch.from_pylist([], ROWS), *(piece.rows for piece in pieces)]),
        hashed([key for key, _ in in_order]),
    )


def without(**rules: bool) -> Rules:
    """With these rules of partial state switched."""
    return replace(ALL_RULES, upqueries=replace(ALL_UPQUERY_RULES, **rules))


def evict(*keys: str, eviction: int = 1) -> Evict:
    """A user evicts these keys, or all."""
    return Evict(eviction=eviction, view="seen", keys=tuple(hashed(keys).tolist()) if keys else None)


def evict_at_once(workers: Workers, worker: int, *keys: str) -> None:
    """As :func:`evict`, and there is time for it."""
    workers.step(worker, evict(*keys))
    while workers.machines[worker].must_evict:
        workers.step(worker, worker_events.TimeToEvict(keys_max=10))


def present(workers: Workers, worker: int, region: str = "seen") -> dict[str, int]:
    """What the worker's region says of itself."""
    return dict(workers.phase(worker).regions.stats()[region])


def keys_of_worker_0(count: int) -> list[str]:
    """So many keys that it keeps."""
    found = (key for key in map("key {}".format, itertools.count()) if HALVES[vnode_of(key)] == 0)
    return list(itertools.islice(found, count))
