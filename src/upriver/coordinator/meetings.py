"""Meetings: before workers speak to each other, each opens a channel to every other."""

from upriver.coordinator.cluster import Cluster
from upriver.coordinator.places import WorkerProcess
from upriver.ids import Incarnation, WorkerId
from upriver.protocol.coordinator_events import MeetingPostponed
from upriver.protocol.messages import Meet, MetPeers, PeersLost
from upriver.protocol.strategies import Strategy


class Meetings:
    """The meetings of all workers. number: of the last one."""

    def __init__(self, cluster: Cluster) -> None:
        self.number = 0
        self._cluster = cluster
        self._called: frozenset[Incarnation] = frozenset()
        """The incarnations that were called to the last meeting."""
        self._waiting: frozenset[Incarnation] = frozenset()
        """All and only those of them that lack a channel."""
        self._peers: dict[WorkerId, Incarnation] = {}
        """The same incarnations, by place."""
        self.broken: tuple[tuple[WorkerId, WorkerId], ...] = ()
        """The two ends of each link that has broken, or could not be made, since all workers last met. Another thread
        may read it."""
        self.is_postponed = False
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

    def call(self, strategy: Strategy, keys_max: int | None) -> None:
        """Call all current workers to a meeting. strategy, keys_max: as in ``Meet``."""
        self.number += 1
        processes = self._cluster.places.by_worker()
        self._called = self._waiting = frozenset(process.incarnation for process in processes)
        peers = {process.worker: (process.incarnation, process.address) for process in processes}
        self._peers = {worker: incarnation for worker, (incarnation, _) in peers.items()}
        self.is_postponed = False
        self._cluster.places.tell_all(Meet(meeting=self.number, peers=peers, strategy=strategy, keys_max=keys_max))

    def met(self, process: WorkerProcess, message: MetPeers) -> None:
        """A worker has all its channels."""
        if self.is_last(message.meeting):
            self._waiting -= {process.incarnation}
            if self.have_all_met:
                self.broken = ()

    def lost(self, process: WorkerProcess, message: PeersLost) -> bool:
        """A worker has lost a channel, or has none. Returns whether there is anything to do about it: not if workers
        meet again already. A link counts as broken if both its ends are there, as far as the coordinator knows."""
        peer = message.peer if message.unreached is None else message.unreached
        if peer is not None and message.meeting == self.number:
            there = self._cluster.processes.get(peer)
            if there is not None and there.incarnation == self._peers.get(peer):
                ends = (min(process.worker, peer), max(process.worker, peer))
                self.broken = tuple(sorted({*self.broken, ends}))
        if not self.is_last(message.meeting):
            return False
        if self._waiting and self.broken:
            self.is_postponed = True
            self._cluster.act(MeetingPostponed(meeting=self.number))
        self.forget()
        return True

    def due(self, meeting: int) -> None:
        """The time for the meeting after this one has come."""
        self.is_postponed &= meeting != self.number

    def gone(self, worker: WorkerId) -> None:
        """The process in this place is gone: its links are not broken."""
        self.broken = tuple(ends for ends in self.broken if worker not in ends)

    def is_last(self, meeting: int) -> bool:
        """Whether this is the last meeting, and it is not forgotten."""
        return meeting == self.number and bool(self._called)

    def forget(self) -> None:
        """A channel is gone: all workers must meet again."""
        self._called = self._waiting = frozenset()
