"""Two workers that keep a partial view of what a small lake has, for tests that say what happens in which order.

The machines are real. The view lists the epochs of each key's rows, so an answer shows which rows were lost or doubled.
"""

import itertools
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from machines_kit import (
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
    read,
    rows,
)

from upriver.coordinator.cluster import EPOCHS_AHEAD_MAX
from upriver.engine.batch import Batch
from upriver.errors import UpriverError
from upriver.ids import Epoch, WorkerId
from upriver.partial.partial_region import ANSWER_ROWS_MAX
from upriver.partial.rules import ALL_RULES as ALL_UPQUERY_RULES
from upriver.plan.plan import DataflowPlan
from upriver.protocol import worker_events
from upriver.protocol.messages import Evict, FromWorker
from upriver.protocol.peers import Envelope
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.strategies import Strategy
from upriver.vnodes import vnodes_of
from upriver.worker.serving import Serving
from upriver.worker.worker import WorkerMachine

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


class Workers:
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
        self.machines = [WorkerMachine(lambda *_: Weighed(), rules, memory_budget) for _ in WORKERS]
        self.lake: list[tuple[str, ...]] = []
        """Of each epoch, the keys of its rows."""
        self.upqueries: list[deque[worker_events.ReadKeys]] = [deque() for _ in WORKERS]
        """By worker: those without an answer."""
        self.lines: defaultdict[tuple[int, int], deque[Envelope]] = defaultdict(deque)
        """By sender and receiver: what is on its way."""
        self.answers: dict[int, tuple[dict[str, list[int]], int]] = {}
        """By ticket: the epochs of each key that was found, and the answer's epoch."""
        self.held_up: set[int] = set()
        """Tickets of the answers that say so."""
        self.refusals: dict[int, UpriverError] = {}
        self.reports: list[FromWorker] = []
        self.generation = 0
        self._reading: list[worker_events.ReadEpoch | None] = [None for _ in WORKERS]
        self._tickets = 0
        for worker in WORKERS:
            self.step(worker, assign(owners, worker, plans=(self.plan,)))

    def step(self, worker: int, event: worker_events.WorkerEvent) -> list[worker_events.WorkerAction]:
        """Have something happen to a worker."""
        actions = self.machines[worker].step(event)
        for action in actions:
            match action:
                case worker_events.ReadKeys():
                    self.upqueries[worker].append(action)
                case worker_events.ReadEpoch():
                    self._reading[worker] = action
                case worker_events.SendPeer(to=to, envelope=envelope):
                    self.lines[worker, to].append(envelope)
                case worker_events.MeetPeers(meet=meeting):
                    self.step(worker, worker_events.PeersMet(meeting=meeting.meeting))
                case worker_events.Answer():
                    found = {row["k"]: row["seen"] for row in action.rows.to_pylist()}
                    self.answers[action.ticket] = found, action.epoch
                    self.held_up |= {action.ticket} if action.held_up else set()
                case worker_events.Refuse():
                    self.refusals[action.ticket] = action.error
                case worker_events.Report(message=message):
                    self.reports.append(message)
        return actions

    def start_anew(self, owners: Sequence[int] = HALVES) -> None:
        """All begin as another generation, at the last epoch that there is."""
        self.generation += 1
        start = Epoch(len(self.lake))
        for worker in WORKERS:
            again = assign(
                owners, worker, plans=(self.plan,), generation=self.generation, start_at=start, serve_from=start
            )
            self.step(worker, again)

    # Epochs

    def publish(self, *keys: str) -> int:
        """One more epoch, with a row of each of these keys."""
        self.lake.append(keys)
        return len(self.lake)

    def open(self, worker: int, epoch: int, mixed: bool = False) -> None:
        self.step(worker, opened(epoch, mixed))

    def read(self, worker: int, *keys: str) -> None:
        """The worker reads the rows of these keys in the open epoch."""
        self.step(worker, rows(self._epoch(worker).epoch, *sorted(keys, key=lambda key: int(hashed([key])[0]))))

    def end(self, worker: int, *already: str) -> None:
        """The worker reads what is left of its slices of the open epoch. already: keys whose rows it has read."""
        reading = self._epoch(worker)
        keys = self.lake[reading.epoch - 1]
        mine = [key for key in keys if int(vnodes_of(hashed([key]), len(HALVES))[0]) in reading.vnodes]
        left = [key for key in mine if key not in already]
        if left:
            self.read(worker, *left)
        self.step(worker, read(reading.epoch, len(mine)))

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

    def _epoch(self, worker: int) -> worker_events.ReadEpoch:
        reading = self._reading[worker]
        assert reading is not None
        return reading

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
        through = min(action.upquery.through + ahead, len(self.lake))
        wanted = set(action.upquery.keys.tolist())
        asked_for = sorted({key for keys in self.lake for key in keys if int(hashed([key])[0]) in wanted})
        found = [(key, epoch) for epoch, keys in enumerate(self.lake[:through], 1) for key in keys if key in asked_for]
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

    def carry(self, sender: int, receiver: int, count: int | None = None) -> None:
        """The next things that a worker has said to the other arrive; all of them, if no number is given."""
        line = self.lines[sender, receiver]
        for _ in range(len(line) if count is None else count):
            self.step(receiver, worker_events.PeerSaid(sender=WorkerId(sender), envelope=line.popleft()))

    def carry_all(self) -> None:
        while any(self.lines.values()):
            for sender, receiver in list(self.lines):
                self.carry(sender, receiver)

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


def following(workers: Workers, worker: int) -> Serving:
    phase = workers.machines[worker].phase
    assert isinstance(phase, Serving)
    return phase


def present(workers: Workers, worker: int, region: str = "seen") -> dict[str, int]:
    """What the worker's region says of itself."""
    return dict(following(workers, worker).regions.stats()[region])


def keys_of_worker_0(count: int) -> list[str]:
    """So many keys that it keeps."""
    found = (key for key in map("key {}".format, itertools.count()) if _owner_of(key) == 0)
    return list(itertools.islice(found, count))


def _owner_of(key: str) -> int:
    return HALVES[vnodes_of(hashed([key]), len(HALVES))[0]]
