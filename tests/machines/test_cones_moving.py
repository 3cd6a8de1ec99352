"""A key of a cone that moves is not shown as of an earlier epoch by its new owner; rule K2.

The machines are real. What their cones ask for is read, and what they say to each other carried, when a test says so.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from cone_kit import EVALUATOR, Lake, planned, trade, visit
from machines_kit import HALVES, announce, asked, assign, hashed, meet, opened, owners_with, vnode_map

from upriver.dataflow.running import Region
from upriver.ids import WorkerId
from upriver.machines.following import Following
from upriver.machines.peers import Envelope
from upriver.machines.rules import ALL_RULES, Rules
from upriver.machines.worker import WorkerMachine
from upriver.machines.worker_events import (
    Answer,
    EpochRead,
    FetchRows,
    MeetPeers,
    PeerSaid,
    PeersMet,
    ReadEpoch,
    RowsFetched,
    SendPeer,
    WorkerEvent,
)
from upriver.upquery.rules import ALL_RULES as ALL_UPQUERY_RULES
from upriver.vnodes import vnodes_of

PLAN = planned("fans")
WORKERS = (0, 1)
PAGE = next(page for page in map(str, range(100)) if int(vnodes_of(hashed([page]), len(HALVES))[0]) == 3)
"""Kept by worker 0, in the vnode that moves."""
GIVES_3 = owners_with(HALVES, v3=1)
"""Worker 0 gives vnode 3 to worker 1."""


class Workers:
    """Workers 0 and 1, which keep cones of the view of the fans of each page."""

    def __init__(self, rules: Rules = ALL_RULES) -> None:
        self.lake = Lake(PLAN)
        self.machines = [WorkerMachine(partial(Region.build, evaluator=EVALUATOR), rules) for _ in WORKERS]
        self.fetches: list[deque[FetchRows]] = [deque() for _ in WORKERS]
        """By worker: what was asked for and is not read."""
        self.lines: defaultdict[tuple[int, int], deque[Envelope]] = defaultdict(deque)
        """By sender and receiver: what is on its way."""
        self.answers: dict[int, tuple[list[tuple[str, int]], int]] = {}
        """By ticket: the rows, and the answer's epoch."""
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

    def open(self, worker: int, epoch: int, mixed: bool = False) -> None:
        self.step(worker, opened(epoch, mixed))

    def fetch(self, worker: int) -> None:
        """All that the worker asks for is read."""
        while self.fetches[worker]:
            wish = self.fetches[worker].popleft()
            rows = tuple(self.lake.answer(wish.reads))
            self.step(worker, RowsFetched(generation=wish.generation, view=wish.view, rows=rows))

    def look_up(self, worker: int, page: str) -> int:
        self._tickets += 1
        self.step(worker, asked(page, ticket=self._tickets, view=PLAN.name))
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

    def present(self, worker: int) -> list[int]:
        """What the worker's cone keeps."""
        phase = self.machines[worker].phase
        assert isinstance(phase, Following)
        keys: list[int] = phase.cones[PLAN.name].keys_of(0, 1).tolist()
        return keys


def ahead(rules: Rules = ALL_RULES) -> Workers:
    """Both workers have applied the first epoch, and met; worker 0 alone has applied the second, and shown the page as
    of its end."""
    workers = Workers(rules)
    workers.lake.publish(visit(PAGE, 1), trade("X", 1))
    workers.lake.publish(trade("Y", 1))
    for worker in WORKERS:
        workers.open(worker, 1)
        workers.step(worker, meet(*WORKERS))
    first = workers.look_up(0, PAGE)
    workers.fetch(0)
    assert workers.answers[first] == ([(PAGE, 1)], 1)
    workers.open(0, 2)
    workers.fetch(0)
    assert workers.answers[workers.look_up(0, PAGE)] == ([(PAGE, 2)], 2)
    return workers


@pytest.mark.parametrize("looked_up_at", WORKERS)
def test_k2_a_key_that_moved_is_not_shown_as_of_an_earlier_epoch(looked_up_at: int) -> None:
    workers = ahead()
    workers.rescale(GIVES_3)
    assert workers.present(0) == []
    ticket = workers.look_up(looked_up_at, PAGE)
    workers.carry_all()
    workers.fetch(1)
    workers.carry_all()
    assert workers.present(1) == hashed([PAGE]).tolist(), "as of the first epoch"
    assert ticket not in workers.answers
    workers.open(1, 2)
    workers.fetch(1)
    workers.carry_all()
    rows, _ = workers.answers[ticket]
    assert rows == [(PAGE, 2)]


def test_k2_switched_off_shows_the_key_as_it_was_before() -> None:
    workers = ahead(replace(ALL_RULES, upqueries=replace(ALL_UPQUERY_RULES, k2_never_back=False)))
    workers.rescale(GIVES_3)
    ticket = workers.look_up(1, PAGE)
    workers.fetch(1)
    assert workers.answers[ticket] == ([(PAGE, 1)], 1)


def test_keys_that_were_read_lately_are_filled_where_they_go_before_anybody_asks() -> None:
    workers = ahead()
    workers.open(1, 2)
    workers.rescale(GIVES_3)
    workers.fetch(1)
    assert workers.present(1) == hashed([PAGE]).tolist()
    assert workers.answers[workers.look_up(1, PAGE)] == ([(PAGE, 2)], 2)
    assert workers.present(0) == []


def test_p5_a_key_whose_slice_moves_while_it_is_filled_is_filled_where_it_goes() -> None:
    workers = Workers()
    workers.lake.publish(visit(PAGE, 1), trade("X", 1))
    for worker in WORKERS:
        workers.open(worker, 1)
        workers.step(worker, meet(*WORKERS))
    ticket = workers.look_up(0, PAGE)
    workers.rescale(GIVES_3)
    workers.fetch(0)
    assert workers.present(0) == []
    workers.fetch(1)
    workers.carry_all()
    assert workers.answers[ticket] == ([(PAGE, 1)], 1)
    assert workers.present(1) == hashed([PAGE]).tolist()
