"""What people are told of workers that were lost: when, and how long it took until their keys were served again.

Kept beside the coordinator machine, which decides; this looks at it after each step, and at the clock.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from upriver.coordinator.cluster import Cluster, Member
from upriver.ids import BEGINNING, Epoch, Incarnation, WorkerId

RECOVERIES_KEPT_MAX = 20
"""Recoveries that are told of; the oldest are forgotten first."""


@dataclass(slots=True)
class Recovery:
    """A worker was lost, and its place is filled again. noticed: by the clock. assigned: who is in the place by now, in
    which generation. serve_from: the epoch that it is to reflect before it answers."""

    worker: WorkerId
    noticed: float
    served_again_s: float | None = None
    assigned: tuple[Incarnation, int] | None = None
    serve_from: Epoch = BEGINNING

    def is_over(self, cluster: Cluster, places: Mapping[WorkerId, Member | None]) -> bool:
        """Whether lookups of the keys of who was lost are answered again. places: who is in each that takes part."""
        if self.worker not in places:  # others have taken over, and go on from the last epoch's end
            has_resumed = all(member.generation == cluster.generation for member in cluster.by_worker())
            return has_resumed and cluster.ledger.through >= cluster.serve_from
        member = places[self.worker]
        return member is not None and self.serves(cluster, member)

    def serves(self, cluster: Cluster, member: Member) -> bool:
        """Whether lookups of the place's keys are answered again: whoever is in it has restored what it keeps, and
        reflects all that was published when it was told to keep it (W3)."""
        if not member.assigned:
            return False
        ledger, assigned = cluster.ledger, (member.incarnation, cluster.generation)
        if self.assigned != assigned:
            self.assigned, self.serve_from = assigned, ledger.published
        reflected = ledger.through if ledger.is_staged else member.finished
        return member.is_restored and reflected >= self.serve_from


class Recoveries:
    """The last ``RECOVERIES_KEPT_MAX`` of them. ``look`` is for one thread, ``status`` for any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._filled: dict[WorkerId, Incarnation] = {}
        """Who was in each place at the last look."""
        self._kept: tuple[Recovery, ...] = ()
        """In the order in which they were noticed. Never changed, but replaced: others may be reading it."""
        self._is_over = False

    def look(self, cluster: Cluster) -> None:
        """The coordinator has made a step."""
        if self._is_over:
            return
        places = {worker: cluster.members.get(worker) for worker in cluster.workers}
        for worker, before in self._filled.items():
            member = places.get(worker)
            if worker in places and (member is None or member.incarnation != before):
                self._lost(worker)
        self._filled = {worker: member.incarnation for worker, member in places.items() if member is not None}
        for recovery in self._kept:
            if recovery.served_again_s is None and recovery.is_over(cluster, places):
                recovery.served_again_s = self._clock() - recovery.noticed

    def end(self) -> None:
        """Whoever goes from now on was sent, and nobody comes in his place."""
        self._is_over = True

    def _lost(self, worker: WorkerId) -> None:
        """One that is lost again before it served is one recovery, which takes longer."""
        if all(kept.worker != worker or kept.served_again_s is not None for kept in self._kept):
            self._kept = (*self._kept, Recovery(worker, self._clock()))[-RECOVERIES_KEPT_MAX:]

    def status(self) -> list[dict[str, Any]]:
        """Oldest first. noticed_ago_s: seconds since it was noticed that the worker was lost. served_again_s: seconds
        from then until its keys were served again; ``None`` while they are not."""
        now = self._clock()
        return [
            {
                "worker": int(kept.worker),
                "noticed_ago_s": round(now - kept.noticed, 3),
                "served_again_s": None if kept.served_again_s is None else round(kept.served_again_s, 3),
            }
            for kept in self._kept
        ]
