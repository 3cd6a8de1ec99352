"""Meetings: before workers speak to each other, each opens a channel to every other."""

from collections import Counter
from collections.abc import Mapping

from upriver.coordinator.cluster import Cluster
from upriver.coordinator.places import WorkerProcess, listed
from upriver.ids import Incarnation, WorkerId
from upriver.protocol.coordinator_events import LinksBroken, MeetingPostponed, MoveWorker
from upriver.protocol.messages import Meet, MetPeers, PeersLost
from upriver.protocol.strategies import Strategy

MOVES_MAX = 3
"""Processes of one place that are to run elsewhere because of broken links, until one of them reaches all others."""


class Meetings:
    """The meetings of all workers. number: of the last one."""

    def __init__(self, cluster: Cluster) -> None:
        self.number = 0
        self._cluster = cluster
        self._called: frozenset[Incarnation] = frozenset()
        """The incarnations that were called to the last meeting."""
        self._waiting: frozenset[Incarnation] = frozenset()
        """All and only those of them that lack a channel."""
        self._peers: dict[int, Mapping[WorkerId, Incarnation]] = {}
        """By number, of the last meeting and the one before: the incarnations that were called, by place."""
        self._broken = frozenset[frozenset[Incarnation]]()
        """The two ends of each link that has broken, or could not be made, since all workers last met."""
        self._times_broken = 0
        """How often a link broke while all others were whole."""
        self._moved: dict[WorkerId, set[Incarnation]] = {}
        """By place: the processes that were to run elsewhere, since one there last reached all others."""
        self._is_postponed = False
        """The last meeting has failed, and the next one is not due."""

    @property
    def is_over(self) -> bool:
        """Whether all workers that were called have met."""
        return not self._waiting

    @property
    def lacking(self) -> frozenset[WorkerId]:
        """The workers that lack a channel."""
        return frozenset(p.worker for p in self._cluster.places.by_worker() if p.incarnation in self._waiting)

    @property
    def is_of_all(self) -> bool:
        """Whether the last meeting included all current workers, and no channel was lost since."""
        return self._called >= {process.incarnation for process in self._cluster.places.by_worker()}

    @property
    def have_all_met(self) -> bool:
        """Whether there is a channel between any two current workers."""
        return self.is_over and self.is_of_all

    @property
    def is_postponed(self) -> bool:
        """Whether the next meeting is not due, because links are broken."""
        return self._is_postponed and bool(self.broken)

    @property
    def broken(self) -> tuple[tuple[WorkerId, WorkerId], ...]:
        """The places at the two ends of each link that has broken, or could not be made, since all workers last met. A
        link to a process that is gone is not broken. Another thread may read it."""
        if not self._broken:
            return ()
        here = {process.incarnation: process.worker for process in list(self._cluster.processes.values())}
        links = (sorted(here[end] for end in ends) for ends in self._broken if ends <= here.keys())
        return tuple(sorted((one, other) for one, other in links))

    def call(self, strategy: Strategy, keys_max: int | None) -> None:
        """Call all current workers to a meeting. strategy, keys_max: as in ``Meet``."""
        self.number += 1
        processes = self._cluster.places.by_worker()
        self._called = self._waiting = frozenset(process.incarnation for process in processes)
        peers = {process.worker: (process.incarnation, process.address) for process in processes}
        last = self.number - 1
        called = {process.worker: process.incarnation for process in processes}
        self._peers = {last: self._peers.get(last, {}), self.number: called}
        self._is_postponed = False
        self._cluster.places.tell_all(Meet(meeting=self.number, peers=peers, strategy=strategy, keys_max=keys_max))

    def met(self, process: WorkerProcess, message: MetPeers) -> None:
        """A worker has all its channels."""
        if self.is_last(message.meeting):
            self._waiting -= {process.incarnation}
            self._moved.pop(process.worker, None)
            if self.have_all_met:
                self._broken = frozenset()

    def lost(self, process: WorkerProcess, message: PeersLost) -> bool:
        """A worker has lost a channel, or has none. Returns whether there is anything to do about it: not if workers
        meet again already. A link counts as broken if both its ends are there, as far as the coordinator knows. The
        other workers that an end does not reach may say so when a new meeting was called."""
        peer = message.peer if message.unreached is None else message.unreached
        there = None if peer is None else self._cluster.processes.get(peer)
        if there is not None and there.incarnation == self._peers.get(message.meeting, {}).get(there.worker):
            self._break(frozenset({process.incarnation, there.incarnation}))
        if not self.is_last(message.meeting):
            return False
        if self._waiting and self.broken:
            self._is_postponed = True
            self._cluster.act(MeetingPostponed(meeting=self.number))
        self.forget()
        return True

    def _break(self, ends: frozenset[Incarnation]) -> None:
        if not self.broken:
            self._times_broken += 1
            self._cluster.act(LinksBroken(time=self._times_broken))
        self._broken |= {ends}

    def overdue(self, time: int, *, may_move: bool) -> None:
        """coordinator.move_cut_off: links have been broken for long. The end with most of them moves; of several the
        one of the highest number."""
        ends = Counter(worker for link in self.broken for worker in link)
        if not ends or time != self._times_broken:
            return
        self._cluster.act(LinksBroken(time=time))
        worker = max(ends, key=lambda each: (ends[each], each))
        process, moved = self._cluster.processes[worker], self._moved.setdefault(worker, set())
        if not may_move or len({*moved, process.incarnation}) > MOVES_MAX:
            return
        moved.add(process.incarnation)
        others = sorted({end for link in self.broken if worker in link for end in link} - {worker})
        why = f"it does not reach {listed(others)}, and moves to another host"
        self._cluster.act(MoveWorker(worker=worker, incarnation=process.incarnation, error=why))

    def due(self, meeting: int) -> None:
        """The time for the meeting after this one has come."""
        self._is_postponed &= meeting != self.number

    def is_last(self, meeting: int) -> bool:
        """Whether this is the last meeting, and it is not forgotten."""
        return meeting == self.number and bool(self._called)

    def forget(self) -> None:
        """A channel is gone: all workers must meet again."""
        self._called = self._waiting = frozenset()
