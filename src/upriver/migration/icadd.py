"""The ICADD machine: moves the keys of one region on one worker while its rows flow (document 000, mended).

Theory of operation. A rescale moves slices, vnodes whose owner changes, from their old owner A to their new owner B.
A interrogates its operators for a slice's keys (or those of several slices, if they are few), collects the keys a few
at a time, sends each with its held rows to B, drops it, and says Done of the slice to everybody. Until then everybody
sends the slice's rows to A, which takes, holds or relays each: so there is one place where a key's rows are put in
order. On Done each origin sends A a last Mark and goes straight to B; A relays the Mark, and B parks the origin's
straight rows until it came.

Phases: :mod:`upriver.migration.phases`. Rules: ``docs/design/icadd.md``. Nothing here waits for all workers;
:mod:`upriver.coordinator.rescale_protocol` only sees to it that one rescale is over before the next begins.
"""

from collections.abc import Callable, Mapping
from typing import Any

from upriver.errors import IllegalEvent, ProtocolError
from upriver.ids import WorkerId
from upriver.migration.actions import Action, TakeState
from upriver.migration.events import (
    AbortAsked,
    CollectAsked,
    Collected,
    Event,
    InputClosed,
    Interrogated,
    Received,
    RescaleAnnounced,
    RowsArrived,
)
from upriver.migration.giving import TOGETHER_KEYS, abort, announced, collect, collected, interrogated
from upriver.migration.messages import Acquire, Bye, Done, Kept, Mark, RelayedMark, RowsSent
from upriver.migration.phases import Collecting, Interrogating, Left, Normal, Phase, Settling, Started
from upriver.migration.routing import route_own_normally, route_received_normally, route_started
from upriver.migration.rules import ALL_RULES, MendedRules
from upriver.migration.settling import (
    early,
    gone,
    leave,
    marked,
    others_done,
    others_kept,
    relayed_mark,
    settle_if_over,
    version_of,
)
from upriver.migration.turn import Turn
from upriver.vnodes import VnodeMap


class Distributor:
    """One worker's distributor of one region. ``step`` is the only way to change it; ``phase`` is a value."""

    def __init__(
        self, me: WorkerId, map: VnodeMap, rules: MendedRules = ALL_RULES, together: int = TOGETHER_KEYS
    ) -> None:
        """map: what the worker's peers route by; for a joining worker too, though it owns nothing there (M5).

        together: slices that go to one worker are given together until they have so many keys; 1: one by one."""
        self.me = me
        self.rules = rules
        self.together = together
        self.phase: Phase = Normal(map=map)

    def step(self, event: Event) -> tuple[Action, ...]:
        """Advance by one event. Raises IllegalEvent where the phase does not allow it, ProtocolError for rows and
        messages that no peer would send if all kept the rules."""
        what = event.message if isinstance(event, Received) else event
        handler = _TABLE.get((type(self.phase), type(what)))
        if handler is None:
            raise IllegalEvent(f"worker {self.me} is {type(self.phase).__name__}: no place for {type(what).__name__}")
        if isinstance(event, Received):
            self._check_version(event)
        turn = Turn(self.me, self.rules, self.together)
        self.phase = settle_if_over(turn, handler(turn, self.phase, event))
        return tuple(turn.actions)

    @property
    def can_collect(self) -> bool:
        """Whether ``CollectAsked`` would move a key."""
        return isinstance(self.phase, Collecting) and not len(self.phase.hold) and len(self.phase.whitelist) > 0

    @property
    def rows_waiting(self) -> int:
        """Rows held or parked here: they are in flight (M10)."""
        phase = self.phase
        held = sum(map(len, phase.held)) if isinstance(phase, Collecting) else 0
        if isinstance(phase, Normal):
            return sum(len(parked.rows) for parked in phase.early.parked)
        if isinstance(phase, Started):
            return held + sum(len(parked.rows) for parked in phase.migration.parked)
        return 0

    def _check_version(self, event: Received) -> None:
        """Peers are at most one rescale ahead; and only rows, which may be slow, are ever of one that is over."""
        mine, theirs = version_of(self.phase), event.message.version
        ahead = 1 if isinstance(self.phase, Normal) else 0
        if theirs > mine + ahead or (theirs < mine and not isinstance(event.message, RowsSent)):
            what = type(event.message).__name__
            raise ProtocolError(f"worker {self.me} at version {mine} got {what} of version {theirs}")


def _rows_normally(turn: Turn, phase: Normal, event: RowsArrived) -> Phase:
    route_own_normally(turn, phase, event.rows)
    return phase


def _received_normally(turn: Turn, phase: Normal, event: Received) -> Phase:
    assert isinstance(event.message, RowsSent)
    return route_received_normally(turn, phase, event.sender, event.message)


def _rows_started(turn: Turn, phase: Started, event: RowsArrived) -> Phase:
    return route_started(turn, phase, event.rows, turn.me)


def _received_started(turn: Turn, phase: Started, event: Received) -> Phase:
    assert isinstance(event.message, RowsSent)
    return route_started(turn, phase, event.message.rows, event.sender)


def _acquired(turn: Turn, phase: Normal | Started, event: Received) -> Phase:
    """State is taken in every phase: its old owner sends it ahead of all rows of its keys."""
    assert isinstance(event.message, Acquire)
    turn.say(TakeState(keys=event.message.keys, state=event.message.state))
    return phase


def _nothing_to_abort(turn: Turn, phase: Normal | Left, event: AbortAsked) -> Phase:
    if event.version > version_of(phase):
        raise IllegalEvent(f"worker {turn.me} at version {version_of(phase)} cannot abort {event.version}")
    return phase


# A handler's phase and event are those of its key in the table, which no type checker can see.
_Handler = Callable[[Turn, Any, Any], Phase]

_WHILE_STARTED: Mapping[type, _Handler] = {
    RowsArrived: _rows_started,
    RowsSent: _received_started,
    Acquire: _acquired,
    Done: others_done,
    Kept: others_kept,
    Mark: marked,
    RelayedMark: relayed_mark,
    AbortAsked: abort,
    Bye: gone,
}

_TABLE: Mapping[tuple[type, type], _Handler] = {
    (Normal, RowsArrived): _rows_normally,
    (Normal, RowsSent): _received_normally,
    (Normal, Acquire): _acquired,
    (Normal, Done): early,
    (Normal, Kept): early,
    (Normal, RelayedMark): early,
    (Normal, RescaleAnnounced): announced,
    (Normal, AbortAsked): _nothing_to_abort,
    **{
        (phase, what): handler
        for phase in (Interrogating, Collecting, Settling)
        for what, handler in _WHILE_STARTED.items()
    },
    (Interrogating, Interrogated): interrogated,
    (Collecting, CollectAsked): collect,
    (Collecting, Collected): collected,
    (Normal, InputClosed): leave,
    (Normal, Bye): gone,
    (Left, AbortAsked): _nothing_to_abort,
}
