"""Evictions that somebody wants: over when every worker that was told has done it, or is no more."""

from upriver.coordinator.cluster import Cluster
from upriver.ids import Incarnation
from upriver.protocol.coordinator_events import EvictionOver, EvictWanted
from upriver.protocol.messages import Evict


class Evictions:
    """All that are under way."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiting: dict[int, set[Incarnation]] = {}
        """By ticket: who was told and has not answered."""

    def wanted(self, event: EvictWanted) -> None:
        self._waiting[event.ticket] = {member.incarnation for member in self._cluster.by_worker()}
        self._cluster.tell_all(Evict(eviction=event.ticket, view=event.view, keys=event.keys))

    def done(self, incarnation: Incarnation, eviction: int) -> None:
        self._waiting.get(eviction, set()).discard(incarnation)

    def end(self) -> None:
        """Say which are over. Who is lost has forgotten everything."""
        here = {member.incarnation for member in self._cluster.by_worker()}
        for ticket in [ticket for ticket, waiting in self._waiting.items() if not waiting & here]:
            del self._waiting[ticket]
            self._cluster.actions.append(EvictionOver(ticket=ticket))
