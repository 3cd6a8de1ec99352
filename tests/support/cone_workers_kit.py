"""Two workers that keep cones of a small lake, for tests that say what happens in which order.

The machines are real. What their cones ask for is read, and what they say to each other carried, when a test says so.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from functools import partial

from cone_kit import EVALUATOR, Lake, planned
from machines_kit import HALVES, announce, asked, assign, hashed, opened, owners_with, vnode_map

from upriver.engine.region import Region
from upriver.ids import WorkerId
from upriver.protocol.messages import FromWorker
from upriver.protocol.peers import Envelope
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.worker_events import (
    Answer,
    EpochRead,
    FetchRows,
    MeetPeers,
    PeerSaid,
    PeersMet,
    ReadEpoch,
    Report,
    RowsFetched,
    SendPeer,
    WorkerEvent,
)
from upriver.vnodes import vnodes_of
from upriver.worker.serving import Serving
from upriver.worker.worker import WorkerMachine

PLAN = planned("fans")
WORKERS = (0, 1)
PAGE, OTHER_PAGE = (
    next(page for page in map(str, range(100)) if int(vnodes_of(hashed([page]), len(HALVES))[0]) == vnode)
    for vnode in (3, 2)
)
"""Kept by worker 0, the first in the vnode that moves."""
GIVES_3 = owners_with(HALVES, v3=1)
"""Worker 0 gives vnode 3 to worker 1."""


class Workers:
    """Workers 0 and 1, which keep cones of the view of the fans of each page."""

    def __init__(self, rules: Rules = ALL_RULES, memory_budget: int | None = None) -> None:
        self.lake = Lake(PLAN)
        build = partial(Region.build, evaluator=EVALUATOR)
        self.machines = [WorkerMachine(build, rules, memory_budget) for _ in WORKERS]
        self.fetches: list[deque[FetchRows]] = [deque() for _ in WORKERS]
        """By worker: what was asked for and is not read."""
        self.lines: defaultdict[tuple[int, int], deque[Envelope]] = defaultdict(deque)
        """By sender and receiver: what is on its way."""
        self.answers: dict[int, tuple[list[tuple[str, int]], int]] = {}
        """By ticket: the rows, and the answer's epoch."""
        self.reports: list[FromWorker] = []
        self._tickets = 0
        for worker in WORKERS:
            self.step(worker, assign(HALVES, worker, plans=(PLAN,), maps={PLAN.name: vnode_map(HALVES)}))

    def step(self, worker: int, event: WorkerEvent) -> None:
        for action in self.machines[worker].step(event):
            match action:
                case FetchRows():
                    self.fetches[worker].append(action)
                case ReadEpoch(epoch=epoch, channels=channels):
                    assert channels == (), "a cone reads by itself"
                    self.step(worker, EpochRead(epoch=epoch, promised={}))
                case SendPeer(to=to, envelope=envelope):
                    self.lines[worker, to].append(envelope)
                case MeetPeers(meet=meeting):
                    self.step(worker, PeersMet(meeting=meeting.meeting))
                case Answer():
                    rows = [(row["page"], row["n"]) for row in action.rows.to_pylist()]
                    self.answers[action.ticket] = rows, action.epoch
                case Report(message=message):
                    self.reports.append(message)

    def open(self, worker: int, epoch: int, mixed: bool = False) -> None:
        self.step(worker, opened(epoch, mixed))

    def fetch(self, worker: int) -> None:
        """All that the worker asks for is read."""
        while self.fetches[worker]:
            wish = self.fetches[worker].popleft()
            rows = tuple(self.lake.answer(wish.reads))
            self.step(worker, RowsFetched(generation=wish.generation, view=wish.view, task=wish.task, rows=rows))

    def look_up(self, worker: int, page: str) -> int:
        self._tickets += 1
        self.step(worker, asked(page, ticket=self._tickets, view=PLAN.name, key=PLAN.key[0]))
        return self._tickets

    def carry_all(self) -> None:
        while any(self.lines.values()):
            for (sender, receiver), line in list(self.lines.items()):
                while line:
                    self.step(receiver, PeerSaid(sender=WorkerId(sender), envelope=line.popleft()))

    def rescale(self, after: Sequence[int]) -> None:
        for worker in WORKERS:
            self.step(worker, announce(HALVES, after, *WORKERS, view=PLAN.name))
        self.carry_all()

    def phase(self, worker: int) -> Serving:
        phase = self.machines[worker].phase
        assert isinstance(phase, Serving)
        return phase

    def present(self, worker: int) -> list[int]:
        """What the worker's cone keeps."""
        keys: list[int] = self.phase(worker).regions.cones[PLAN.name].keys_of(0, 1).tolist()
        return keys
