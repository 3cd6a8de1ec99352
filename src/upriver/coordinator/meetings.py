"""Meetings: before workers speak to each other, each opens a channel to every other."""

from upriver.coordinator.cluster import Cluster
from upriver.coordinator.places import WorkerProcess
from upriver.ids import Incarnation, WorkerId
from upriver.protocol.messages import Meet, MetPeers
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
        self._cluster.places.tell_all(Meet(meeting=self.number, peers=peers, strategy=strategy, keys_max=keys_max))

    def met(self, process: WorkerProcess, message: MetPeers) -> None:
        """A worker has all its channels."""
        if self.is_last(message.meeting):
            self._waiting -= {process.incarnation}

    def is_last(self, meeting: int) -> bool:
        """Whether this is the last meeting, and it is not forgotten."""
        return meeting == self.number and bool(self._called)

    def forget(self) -> None:
        """A channel is gone: all workers must meet again."""
        self._called = self._waiting = frozenset()
