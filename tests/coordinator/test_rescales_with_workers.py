"""Real machines in one thread: a coordinator and its workers rescale while rows and lookups come; nothing is random."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest
from coordinator_kit import Recorded
from machines_kit import CHANNEL, KEYS, PLAN, VNODES, Seen, asked, rows
from soak import examples

from upriver.ids import Epoch, Incarnation, VnodeId, WorkerId
from upriver.protocol.coordinator_events import (
    CoordinatorAction,
    CoordinatorEvent,
    EpochPublished,
    RescaleEnded,
    RescaleWanted,
    SnapshotAsked,
    SnapshotReady,
    StartWorkers,
    Tell,
    WorkerGone,
    WorkerRegistered,
    WorkerSaid,
)
from upriver.protocol.messages import Assign
from upriver.protocol.strategies import Strategy
from upriver.protocol.worker_events import (
    Answer,
    EpochRead,
    HoldSnapshot,
    MeetPeers,
    PeerLost,
    PeerSaid,
    PeersMet,
    ReadEpoch,
    Refuse,
    Report,
    RowsRead,
    SendPeer,
    Stop,
    TimeToMove,
    WorkerAction,
    WorkerEvent,
)
from upriver.vnodes import VnodeMap
from upriver.worker.serving import Serving
from upriver.worker.worker import WorkerMachine

COORDINATOR = 0
"""Its number among the incarnations, which begin at 1."""
STEPS_MAX = 100_000
HISTORY = [[keys[number % 4] for keys in KEYS for number in (epoch, 2 * epoch, epoch)] for epoch in range(1, 31)]
"""Per epoch, from the first on, the keys of its rows: two keys of each vnode, one of them with two rows."""
ALL_KEYS = sorted({key for epoch in HISTORY for key in epoch})

Pick = Callable[[Sequence[tuple[int, int]]], tuple[int, int]]
"""Which of the channels with anything in them is next."""


def oldest(channels: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return channels[0]


def lowest(channels: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return min(channels)


def highest(channels: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return max(channels)


def seen_by(epoch: int) -> dict[str, list[int]]:
    """What the view lists as of an epoch."""
    listed: dict[str, list[int]] = {}
    for number, keys in enumerate(HISTORY[:epoch], 1):
        for key in keys:
            listed.setdefault(key, []).append(number)
    return listed


class LoopbackCluster:
    """A coordinator, its workers, and a queue for each ordered pair of them; ``run`` delivers until nothing is left.

    Channels are served as ``pick`` says, each in order. A worker reads its slices and moves keys by events to itself,
    which wait in a channel from it to itself.
    """

    def __init__(self, pick: Pick) -> None:
        self.pick = pick
        first = VnodeMap.initial(VNODES, [WorkerId(0)])
        self.coordinator = Recorded(first, (PLAN,))
        self.workers: dict[int, WorkerMachine] = {}
        self.places: dict[int, WorkerId] = {}
        self.met: dict[int, dict[WorkerId, int]] = {}
        """Per incarnation, those that it has a channel to."""
        self.killed: set[int] = set()
        self.channels: dict[tuple[int, int], deque[Any]] = {}
        self.published = 0
        self.ended: list[RescaleEnded] = []
        self.answers: dict[int, Answer | Refuse] = {}
        self.snapshots: list[SnapshotReady] = []
        self.held: dict[tuple[int, int], dict[str, list[int]]] = {}
        self._incarnations = count(1)
        self._tickets = count(1)
        self.start(WorkerId(0))
        self.run()

    def start(self, worker: WorkerId) -> None:
        incarnation = next(self._incarnations)
        self.workers[incarnation], self.places[incarnation] = WorkerMachine(lambda *_: Seen()), worker
        registered = WorkerRegistered(worker=worker, incarnation=Incarnation(incarnation), address="")
        self.put(incarnation, COORDINATOR, registered)

    def kill(self, worker: int) -> None:
        """The worker's newest incarnation is lost, with all that is on its way to it or from it; another comes."""
        (incarnation,) = (i for i in self.workers if self.places[i] == worker)
        del self.workers[incarnation]
        self.killed.add(incarnation)
        for other in self.workers:
            if incarnation in self.met.get(other, {}).values():
                self.put(other, other, PeerLost(why=f"worker {worker} is gone"))
        self.channels = {ends: queue for ends, queue in self.channels.items() if incarnation not in ends}
        self.put(incarnation, COORDINATOR, WorkerGone(incarnation=Incarnation(incarnation)))
        self.start(WorkerId(worker))

    def put(self, source: int, target: int, what: CoordinatorEvent | WorkerEvent) -> None:
        self.channels.setdefault((source, target), deque()).append(what)

    def deliver_one(self) -> bool:
        """False if there is nothing to deliver."""
        if not self.channels:
            return False
        ends = self.pick(list(self.channels))
        queue = self.channels.pop(ends)
        what = queue.popleft()
        if queue:
            self.channels[ends] = queue
        if ends[1] == COORDINATOR:
            self.tell_coordinator(what)
        else:
            self.tell_worker(ends[1], what)
        return True

    def run(self, deliveries: int = STEPS_MAX) -> None:
        """Deliver so many, or all there are."""
        for _ in range(deliveries):
            if not self.deliver_one():
                return
        assert deliveries < STEPS_MAX, "it goes on for ever"

    def tell_coordinator(self, event: CoordinatorEvent) -> None:
        for action in self.coordinator.step(event):
            self._do(action)

    def _do(self, action: CoordinatorAction) -> None:
        match action:
            case Tell() if action.incarnation in self.workers:
                self.put(COORDINATOR, action.incarnation, action.message)
            case StartWorkers():
                for worker in action.workers:
                    self.start(worker)
            case RescaleEnded():
                self.ended.append(action)
            case SnapshotReady():
                self.snapshots.append(action)

    def tell_worker(self, me: int, event: WorkerEvent) -> None:
        if me not in self.workers:
            return
        if isinstance(event, Assign):  # a worker that begins anew reads no more of what it was reading
            own = [e for e in self.channels.pop((me, me), ()) if not isinstance(e, RowsRead | EpochRead)]
            self.channels.update({(me, me): deque(own)} if own else {})
        machine = self.workers[me]
        for action in machine.step(event):
            self._carry_out(me, action)
        if machine.can_move and not any(isinstance(e, TimeToMove) for e in self.channels.get((me, me), ())):
            self.put(me, me, TimeToMove(keys_max=2))

    def _carry_out(self, me: int, action: WorkerAction) -> None:
        match action:
            case Report():
                self.put(me, COORDINATOR, WorkerSaid(incarnation=Incarnation(me), message=action.message))
            case SendPeer():
                target = self.met[me][action.to]
                if target in self.workers:
                    self.put(me, target, PeerSaid(sender=self.places[me], envelope=action.envelope))
                else:
                    assert self.killed, "nothing is said to a worker that has left, unless a rescale has failed"
            case MeetPeers():
                self.met[me] = {worker: incarnation for worker, (incarnation, _) in action.meet.peers.items()}
                dead = self.killed.intersection(self.met[me].values())
                self.put(me, me, PeerLost(why="gone") if dead else PeersMet(meeting=action.meet.meeting))
            case ReadEpoch():
                for event in slices(action.epoch, action.vnodes):
                    self.put(me, me, event)
            case HoldSnapshot():
                self.held[me, action.snapshot] = {row["k"]: row["seen"] for row in action.rows.to_pylist()}
            case Answer() | Refuse():
                self.answers[action.ticket] = action
            case Stop():
                del self.workers[me]
                self.put(me, COORDINATOR, WorkerGone(incarnation=Incarnation(me)))

    # What users do

    def publish(self) -> None:
        self.published += 1
        epoch = EpochPublished(epoch=Epoch(self.published), rows={CHANNEL: len(HISTORY[self.published - 1])})
        self.tell_coordinator(epoch)

    def rescale(self, workers: int | None, strategy: Strategy = Strategy.ICADD, **moves: int) -> None:
        """``moves``: ``v3=1`` wants vnode 3 at worker 1."""
        named = {VnodeId(int(vnode[1:])): WorkerId(worker) for vnode, worker in moves.items()} or None
        request = RescaleWanted(ticket=next(self._tickets), workers=workers, moves=named, strategy=strategy)
        self.tell_coordinator(request)

    def look_up(self, incarnation: int, keys: Sequence[str], at_least: int = 0) -> int:
        """Ask one worker; returns the lookup's ticket."""
        ticket = next(self._tickets)
        self.tell_worker(incarnation, asked(*keys, ticket=ticket, at_least=at_least))
        return ticket

    def scan(self) -> None:
        self.tell_coordinator(SnapshotAsked(ticket=next(self._tickets), view="seen"))

    def play(self, between: int = 7) -> list[int]:
        """Publish the rest of the history, asking every worker for every key and for a snapshot again and again.

        between: deliveries from one such round to the next. Returns the tickets of the lookups.
        """
        tickets: list[int] = []
        while self.published < len(HISTORY):
            self.publish()
            if self.published % 5 == 0:
                self.scan()
            tickets += [self.look_up(incarnation, ALL_KEYS) for incarnation in list(self.workers)]
            self.run(deliveries=between)
        self.run()
        return tickets


def slices(epoch: Epoch, vnodes: Sequence[VnodeId]) -> list[WorkerEvent]:
    """What reading these vnodes' rows of the epoch brings: one key's rows at a time."""
    mine = {key for vnode in vnodes for key in KEYS[vnode]}
    keys = [key for key in HISTORY[epoch - 1] if key in mine]
    read: list[WorkerEvent] = [rows(epoch, *([key] * keys.count(key))) for key in dict.fromkeys(keys)]
    return [*read, EpochRead(epoch=epoch, promised={CHANNEL: len(keys)})]


def found(answer: Answer | Refuse) -> dict[str, list[int]]:
    assert isinstance(answer, Answer)
    return {row["k"]: row["seen"] for row in answer.rows.to_pylist()}


def check_all_answers_at_the_end(cluster: LoopbackCluster) -> None:
    """Whichever worker is asked for the last epoch."""
    for incarnation in list(cluster.workers):
        ticket = cluster.look_up(incarnation, ALL_KEYS, at_least=cluster.published)
        cluster.run()
        assert found(cluster.answers[ticket]) == seen_by(cluster.published)


def check_answers_on_the_way(cluster: LoopbackCluster, tickets: Sequence[int]) -> None:
    """Each answer has, per key, all rows up to its epoch, in order, and of later epochs all of a key's rows or none."""
    final = seen_by(len(HISTORY))
    answers = [answer for ticket in tickets if isinstance(answer := cluster.answers[ticket], Answer)]
    assert answers
    for answer in answers:
        reflected = found(answer)
        for key, epochs in final.items():
            listed = reflected.get(key, [])
            assert listed == [epoch for epoch in epochs if epoch <= max([answer.epoch, *listed])]


def check_snapshots(cluster: LoopbackCluster) -> None:
    assert cluster.snapshots
    for ready in cluster.snapshots:
        parts = [part for (_, snapshot), part in cluster.held.items() if snapshot == ready.snapshot]
        together = {key: epochs for part in parts for key, epochs in part.items()}
        assert sum(map(len, parts)) == len(together), "no key is in two parts"
        assert together == seen_by(ready.epoch)


def check_map(cluster: LoopbackCluster, workers: int) -> None:
    """So many workers are there, each keeps what the map says, and the map is even."""
    owners = np.array(cluster.coordinator.vnode_map.owners)
    assert sorted(cluster.places[incarnation] for incarnation in cluster.workers) == sorted(set(owners.tolist()))
    assert len(cluster.workers) == workers
    for incarnation, machine in cluster.workers.items():
        assert isinstance(machine.phase, Serving)
        view = machine.phase.regions.shards["seen"].region
        assert isinstance(view, Seen)
        mine = np.flatnonzero(owners == cluster.places[incarnation]).tolist()
        assert set(view.epochs) == {key for vnode in mine for key in KEYS[vnode]} & set(ALL_KEYS)


PICKS = pytest.mark.parametrize("pick", [oldest, lowest, highest])


@PICKS
@pytest.mark.parametrize("between", [1, 7, 40])
def test_from_one_worker_to_two_to_three_and_back_to_one_while_rows_and_lookups_come(pick: Pick, between: int) -> None:
    cluster = LoopbackCluster(pick)
    for workers in (2, 3, 1):
        cluster.rescale(workers)
    tickets = cluster.play(between)
    assert [str(end.outcome) for end in cluster.ended] == ["finished"] * 3
    assert set(cluster.answers) >= set(tickets)
    check_map(cluster, workers=1)
    check_answers_on_the_way(cluster, tickets)
    check_snapshots(cluster)
    check_all_answers_at_the_end(cluster)


@PICKS
def test_after_each_rescale_every_worker_answers_for_every_key(pick: Pick) -> None:
    cluster = LoopbackCluster(pick)
    for workers in (2, 3, 1):
        for _ in range(5):
            cluster.publish()
        cluster.rescale(workers)
        cluster.run()
        check_map(cluster, workers)
        check_all_answers_at_the_end(cluster)


@PICKS
def test_moves_and_moves_back_lose_nothing(pick: Pick) -> None:
    cluster = LoopbackCluster(pick)
    cluster.rescale(2)
    cluster.run(deliveries=60)
    cluster.rescale(None, v0=1, v7=0)
    cluster.rescale(None, v0=0, v7=1)
    tickets = cluster.play()
    assert [(str(end.outcome), end.vnodes) for end in cluster.ended] == [
        ("finished", 4),
        ("finished", 2),
        ("finished", 2),
    ]
    check_answers_on_the_way(cluster, tickets)
    check_snapshots(cluster)
    check_all_answers_at_the_end(cluster)


@PICKS
def test_a_restart_reads_everything_again(pick: Pick) -> None:
    cluster = LoopbackCluster(pick)
    cluster.rescale(3, Strategy.RESTART)
    cluster.rescale(2)
    cluster.play()
    assert [str(end.outcome) for end in cluster.ended] == ["finished"] * 2
    check_map(cluster, workers=2)
    check_all_answers_at_the_end(cluster)


@PICKS
@pytest.mark.parametrize("deliveries", range(0, 180, 180 // examples(5)))
def test_a_worker_that_is_lost_at_any_time_takes_nothing_with_it(pick: Pick, deliveries: int) -> None:
    cluster = LoopbackCluster(pick)
    cluster.rescale(2)
    cluster.run()
    cluster.rescale(3)
    for _ in range(10):
        cluster.publish()
    cluster.run(deliveries)
    cluster.kill(worker=0)
    cluster.run()
    cluster.rescale(4)
    cluster.play()
    assert [str(end.outcome) for end in cluster.ended] in (["finished"] * 3, ["finished", "failed", "finished"])
    check_map(cluster, workers=4)
    check_all_answers_at_the_end(cluster)
