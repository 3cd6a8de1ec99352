"""The redistribute machine: document 001 with its races closed, behind the interface of ``icadd.Distributor``.

Theory of operation. Every worker is a distributor (X), and each worker with vnodes to give is an old owner (Z). When
the rescale is announced, X says SHUTDOWN or SCALEUP to every Z. A Z that has heard all X interrogates its operators
and sends everybody its sets: the keys that it has state of, the first of them on hold. X stores rows of the hold,
sends those of the whitelist to Z as before, and says FINAL of the hold. When all X are final, Z collects the hold,
sends its state to the new owner, and REDISTRIBUTE to all: those keys have gone, the next are on hold. So every row
takes one hop, and the order of a key is kept by the X that stores it.

Phases: :mod:`upriver.migration.redistribute_phases`. Rules: ``docs/design/redistribute.md``.
"""

from collections.abc import Callable, Mapping
from typing import Any

from upriver.errors import IllegalEvent, ProtocolError
from upriver.ids import MapVersion, WorkerId
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
from upriver.migration.messages import Acquire, Bye, Kept, RowsSent
from upriver.migration.phases import Left
from upriver.migration.redistribute_following import (
    announced,
    announced_early,
    kept,
    redistribute,
    rows_waiting,
    sets,
    settle_if_over,
)
from upriver.migration.redistribute_giving import (
    abort,
    announced_by,
    collect,
    collected,
    final,
    interrogated,
    may_collect,
)
from upriver.migration.redistribute_messages import Final, Redistribute, Scaleup, Sets, Shutdown
from upriver.migration.redistribute_phases import Collecting, Interrogating, Normal, Phase, Settling, Started
from upriver.migration.redistribute_routing import (
    route_own,
    route_own_normally,
    route_received,
    route_received_normally,
)
from upriver.migration.redistribute_rules import ALL_ON, RedistributeRules
from upriver.migration.redistribute_turn import RedistributeTurn
from upriver.migration.settling import gone, leave
from upriver.vnodes import VnodeMap


class Redistributor:
    """One worker's distributor of one region. ``step`` is the only way to change it; ``phase`` is a value."""

    def __init__(self, me: WorkerId, map: VnodeMap, rules: RedistributeRules = ALL_ON) -> None:
        """map: what the worker's peers route by; for a joining worker too, though it owns nothing there (D10)."""
        self.me = me
        self.rules = rules
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
        turn = RedistributeTurn(self.me, by=self.rules)
        self.phase = settle_if_over(turn, handler(turn, self.phase, event))
        return tuple(turn.actions)

    @property
    def can_collect(self) -> bool:
        """Whether ``CollectAsked`` would move a key."""
        return isinstance(self.phase, Collecting) and may_collect(self.rules.d8_all_are_final, self.phase)

    @property
    def rows_waiting(self) -> int:
        """Rows stored or parked here: they are in flight (D9)."""
        return rows_waiting(self.phase)

    def _check_version(self, event: Received) -> None:
        """Peers are at most one rescale ahead; and only rows, which may be slow, are ever of one that is over."""
        mine, theirs = _version_of(self.phase), event.message.version
        ahead = 1 if isinstance(self.phase, Normal) else 0
        if theirs > mine + ahead or (theirs < mine and not isinstance(event.message, RowsSent)):
            what = type(event.message).__name__
            raise ProtocolError(f"worker {self.me} at version {mine} got {what} of version {theirs}")


def _version_of(phase: Phase) -> MapVersion:
    return phase.migration.version if isinstance(phase, Started) else phase.map.version


def _rows_normally(turn: RedistributeTurn, phase: Normal, event: RowsArrived) -> Phase:
    route_own_normally(turn, phase, event.rows)
    return phase


def _received_normally(turn: RedistributeTurn, phase: Normal, event: Received) -> Phase:
    assert isinstance(event.message, RowsSent)
    route_received_normally(turn, phase, event.message.rows, event.sender)
    return phase


def _rows_started(turn: RedistributeTurn, phase: Started, event: RowsArrived) -> Phase:
    return route_own(turn, phase, event.rows)


def _received_started(turn: RedistributeTurn, phase: Started, event: Received) -> Phase:
    assert isinstance(event.message, RowsSent)
    return route_received(turn, phase, event.message.rows, event.sender)


def _acquired(turn: RedistributeTurn, phase: Started | Normal, event: Received) -> Phase:
    """Ahead of the REDISTRIBUTE that lets rows of these keys down, so the rescale is not over here (D4)."""
    assert isinstance(event.message, Acquire)
    if isinstance(phase, Normal) and turn.by.d4_one_copy_of_state:
        raise ProtocolError(f"worker {event.sender} sent {turn.me} the state of {event.message.keys} too late")
    turn.say(TakeState(keys=event.message.keys, state=event.message.state))
    return phase


def _nothing_to_abort(turn: RedistributeTurn, phase: Normal | Left, event: AbortAsked) -> Phase:
    if event.version > phase.map.version:
        raise IllegalEvent(f"worker {turn.me} at version {phase.map.version} cannot abort {event.version}")
    return phase


# A handler's phase and event are those of its key in the table, which no type checker can see.
_Handler = Callable[[RedistributeTurn, Any, Any], Phase]

_WHILE_STARTED: Mapping[type, _Handler] = {
    RowsArrived: _rows_started,
    RowsSent: _received_started,
    Sets: sets,
    Acquire: _acquired,
    Redistribute: redistribute,
    Kept: kept,
    AbortAsked: abort,
    Bye: gone,
}

_TABLE: Mapping[tuple[type, type], _Handler] = {
    (Normal, RowsArrived): _rows_normally,
    (Normal, RowsSent): _received_normally,
    (Normal, Acquire): _acquired,
    (Normal, Shutdown): announced_early,
    (Normal, Scaleup): announced_early,
    (Normal, RescaleAnnounced): announced,
    (Normal, AbortAsked): _nothing_to_abort,
    (Normal, InputClosed): leave,
    (Normal, Bye): gone,
    **{
        (phase, what): handler
        for phase in (Interrogating, Collecting, Settling)
        for what, handler in _WHILE_STARTED.items()
    },
    (Interrogating, Shutdown): announced_by,
    (Interrogating, Scaleup): announced_by,
    (Interrogating, Interrogated): interrogated,
    (Collecting, Final): final,
    (Collecting, CollectAsked): collect,
    (Collecting, Collected): collected,
    (Left, AbortAsked): _nothing_to_abort,
}
