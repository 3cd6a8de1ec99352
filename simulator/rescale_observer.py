"""The observer of rescales: what users have wished for, what has begun, how it has ended, and what the next driver must
know of it."""

from collections.abc import Sequence

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
    WriteControl,
)
from upriver.protocol.strategies import Strategy
from upriver.vnodes import Placement


class RescaleObserver:
    """Raises Violated at the first thing that is wrong. waiting: by ticket, all and only the wishes that have not ended
    as far as clients know."""

    def __init__(
        self, watcher: Watcher, view_observer: ViewObserver, placement: Placement, found: Placement | None = None
    ) -> None:
        """placement: that the driver begins with. found: that the lake has until this driver has written a record."""
        self.waiting: dict[int, RescaleWanted] = {}
        self.drains: int | None = None
        """The rescale that waits, or has waited, until open epochs have ended."""
        self._watcher = watcher
        self._view_observer = view_observer
        self._aborted: set[int] = set()
        self._current: int | None = None
        self._places_before: set[WorkerId] = set()
        self._known = placement
        """What clients have heard of last, when a rescale had ended or none had begun."""
        self._found = found
        self._begun: RescaleBegun | None = None
        """The rescale whose beginning was announced to clients, and whose end was not."""
        self._records: dict[int, WriteControl] = {}
        """By ticket: the record of a rescale's end."""
        self._targets: dict[int, int] = {}
        """By ticket: how many workers a rescale leads to that the lake was told of."""
        self._unrecorded: set[int] = set()
        """Rescales that the lake could not be told of when they were to begin."""
        self._doubtful = 0
        """The number of the last record that the lake has not taken, and clients need not wait for; 0 for none."""

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
        self._current, self._begun = action.ticket, action
        self._places_before = set(self._watcher.places)

    def records(self, action: WriteControl) -> None:
        """A record is on its way to the lake; a rescale may have ended with it."""
        if action.begins is not None:
            self._targets[action.begins.ticket] = action.begins.after
        ended = action.ends
        if ended is not None:
            self._records[ended.ticket] = action
            self._judge(ended)

    def ended(self, action: RescaleEnded) -> None:
        """Clients hear of the end of a rescale."""
        require(checkers.everybody_is_answered_once, action.ticket, self.waiting)
        if action.ticket not in self._records:
            self._judge(action)
        wish, record = self.waiting.pop(action.ticket), self._records.pop(action.ticket, None)
        if record is not None:
            self._begun, self._known = None, record.placement
        self._watcher.counters[f"rescales_{action.outcome}"] += 1
        if action.outcome is RescaleOutcome.FINISHED and action.vnodes:
            self._watcher.counters["restarts" if wish.strategy is Strategy.RESTART else "rescales_live"] += 1

    def _judge(self, ended: RescaleEnded) -> None:
        """A rescale has ended, whether its clients know or not."""
        wish = self.waiting[ended.ticket]
        if ended.outcome is RescaleOutcome.FAILED:
            self._watcher.places = set(self._places_before)
        if ended.ticket == self._current:
            self._current = None
            self._watcher.awaited.clear()
        places = self._watcher.places
        possible = wish.workers is None or 1 <= wish.workers <= len(self._known.vnode_map.owners)
        possible &= wish.moves is None or places >= set(wish.moves.values())
        possible &= bool(self._view_observer.kept)
        possible &= wish.moves is None or wish.strategy is not Strategy.LEARNER
        possible &= ended.ticket not in self._unrecorded
        aborted, disturbed = ended.ticket in self._aborted, self._watcher.losses > 0
        require(checkers.a_rescale_ends_for_a_reason, ended.outcome, possible, aborted, disturbed)
        if ended.outcome is RescaleOutcome.FINISHED and wish.workers is not None:
            require(checkers.a_rescale_leaves_as_many_workers_as_wanted, wish.workers, places)

    # What is in the lake

    def recorded(self, number: int) -> None:
        """The lake has taken the records up to this number."""
        self._found = None
        if number >= self._doubtful:
            self._doubtful = 0

    def unrecorded(self, records: Sequence[WriteControl]) -> None:
        """The lake does not take these records for now."""
        self._doubtful = max(self._doubtful, records[-1].number)
        self._unrecorded |= {record.begins.ticket for record in records if record.begins is not None}

    def another_driver(self, found: Placement) -> None:
        """Another driver comes, and finds this placement in the lake. A rescale whose beginning was announced
        to clients leads to its target, or back if it was to be aborted."""
        if self._doubtful:
            return
        allowed = {len(self._known.workers)}
        if self._begun is not None:
            allowed = {self._begun.after}
            if self._begun.ticket in self._aborted:
                allowed.add(self._begun.before)
        if self._found is not None:
            allowed.add(len(self._found.workers))
        allowed |= {after for ticket, after in self._targets.items() if ticket in self._aborted & self.waiting.keys()}
        require(checkers.another_driver_knows_what_clients_have_heard, allowed, len(found.workers))
