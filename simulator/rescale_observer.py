"""The observer of rescales: what users have wished for, what has begun, and how it has ended."""

from simulator import checkers
from simulator.checkers import require
from simulator.view_observer import ViewObserver
from simulator.watcher import Watcher
from upriver.ids import WorkerId
from upriver.protocol.coordinator_events import (
    AbortWanted,
    RescaleBegun,
    RescaleEnded,
    RescaleOutcome,
    RescaleWanted,
    StartWorkers,
)
from upriver.protocol.strategies import Strategy


class RescaleObserver:
    """Raises Violated at the first thing that is wrong.

    waiting: by ticket, all and only the wishes that have not ended.
    """

    def __init__(self, watcher: Watcher, view_observer: ViewObserver, vnodes: int) -> None:
        self.waiting: dict[int, RescaleWanted] = {}
        self._watcher = watcher
        self._view_observer = view_observer
        self._vnodes = vnodes
        self._aborted: set[int] = set()
        self._current: int | None = None
        self._places_before: set[WorkerId] = set()

    @property
    def is_on(self) -> bool:
        """Whether a rescale has begun and not ended."""
        return self._current is not None

    @property
    def places(self) -> list[WorkerId]:
        """Where a process is wanted."""
        return sorted(self._watcher.places | self._watcher.awaited | self._watcher.vacant)

    def wished(self, wish: RescaleWanted | AbortWanted) -> None:
        if isinstance(wish, AbortWanted):
            self._aborted.add(wish.ticket)
        else:
            self.waiting[wish.ticket] = wish

    def starts(self, action: StartWorkers) -> None:
        self._watcher.awaited |= set(action.workers)

    def begun(self, action: RescaleBegun) -> None:
        self._current = action.ticket
        self._places_before = set(self._watcher.places)

    def ended(self, action: RescaleEnded) -> None:
        require(checkers.everybody_is_answered_once, action.ticket, self.waiting)
        wish = self.waiting.pop(action.ticket)
        if action.outcome is RescaleOutcome.FAILED:
            self._watcher.places = set(self._places_before)
        if action.ticket == self._current:
            self._current = None
            self._watcher.awaited.clear()
        places = self._watcher.places
        possible = wish.workers is None or 1 <= wish.workers <= self._vnodes
        possible &= wish.moves is None or places >= set(wish.moves.values())
        possible &= bool(self._view_observer.kept)
        possible &= wish.moves is None or wish.strategy is not Strategy.LEARNER
        aborted, disturbed = action.ticket in self._aborted, self._watcher.losses > 0
        require(checkers.a_rescale_ends_for_a_reason, action.outcome, possible, aborted, disturbed)
        if action.outcome is RescaleOutcome.FINISHED and wish.workers is not None:
            require(checkers.a_rescale_leaves_as_many_workers_as_wanted, wish.workers, places)
        self._watcher.counters[f"rescales_{action.outcome}"] += 1
        if action.outcome is RescaleOutcome.FINISHED and action.vnodes:
            self._watcher.counters["restarts" if wish.strategy is Strategy.RESTART else "rescales_live"] += 1
