"""Events that wait while users' functions are called: those of the shares that have called them.

A function's process may take long, and its worker goes on with its other flows meanwhile. What comes for a share that
waits for a function is held, in its order, as if it were in the inbox still. An event for all shares is stepped for the
others at once, and for this share later.
"""

from collections import Counter, deque
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from upriver.ids import FlowId
from upriver.protocol.messages import Assign, CloseInput, DropFlow, ForShare, Meet, Retire
from upriver.protocol.peers import Envelope
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.worker_events import (
    LookupAsked,
    LookupGivenUp,
    LookupsAsked,
    PeerLost,
    PeerSaid,
    PeersMet,
    ShareHears,
    WorkerEvent,
)
from upriver.worker.worker import WorkerMachine

OfAllShares = Meet | PeersMet | PeerLost | CloseInput


@dataclass(frozen=True, slots=True)
class Rest:
    """An event that all shares but these have been stepped by."""

    event: OfAllShares
    flows: frozenset[FlowId]


@dataclass(frozen=True, slots=True)
class _Held:
    """flows: that the event is for; ``None``: for all, and all that comes later waits for it."""

    event: WorkerEvent | Rest
    flows: frozenset[FlowId] | None

    @property
    def is_assign(self) -> bool:
        return isinstance(self.event, ForShare) and isinstance(self.event.message, Assign)


class HeldEvents:
    """Used by the loop's thread."""

    def __init__(self, machine: WorkerMachine, rules: Rules = ALL_RULES) -> None:
        self._machine = machine
        self._rules = rules
        self._held: deque[_Held] = deque()
        self._lookups: list[LookupAsked | LookupsAsked] = []
        self._flows = Counter[FlowId]()
        """How many events are held for each flow: all later ones of it wait, too."""
        self._assigns = 0
        self._for_all = 0

    def __bool__(self) -> bool:
        return bool(self._held)

    def __iter__(self) -> Iterator[WorkerEvent | Rest]:
        """What is held, in its order, without the lookups."""
        return (held.event for held in self._held)

    @property
    def flows(self) -> AbstractSet[FlowId]:
        """The flows that have waiting events."""
        return self._flows.keys()

    def next(self, waiting: AbstractSet[FlowId] = frozenset()) -> WorkerEvent | Rest | None:
        """Take the first event that need not wait; ``None`` if there is none. waiting: the flows whose shares wait for
        a function."""
        blocked = set(waiting)
        for place, held in enumerate(self._held):
            if held.flows is None:
                if blocked:
                    return None
                return self._taken(place, held).event
            free = held.flows - blocked
            if isinstance(held.event, Rest) and free:
                self._taken(place, held)
                if free < held.flows:
                    left = held.flows & blocked
                    self._add(replace(held, event=Rest(held.event.event, left), flows=left), place)
                return Rest(held.event.event, free)
            if free:
                return self._taken(place, held).event
            blocked |= held.flows
        return None

    def lookups(self) -> list[LookupAsked | LookupsAsked]:
        """Take the lookups."""
        lookups, self._lookups = self._lookups, []
        return lookups

    def passes(self, event: WorkerEvent, waiting: AbstractSet[FlowId]) -> bool:
        """Whether to step by the event now; what must wait is held. waiting: as in ``next``."""
        if isinstance(event, LookupAsked | LookupsAsked):
            if self._machine.flow_of(event.view) not in waiting:
                return True
            self._lookups.append(event)
            return False
        if self._for_all:
            return self._add(_Held(event, None))
        paused = waiting | (self._flows.keys() if self._rules.flows_held_in_order else frozenset())
        match event:
            case ForShare(flow=flow) | ShareHears(flow=flow) | DropFlow(flow=flow) if flow in paused:
                return self._add(_Held(event, frozenset({flow})))
            case PeerSaid(envelope=Envelope(flow=flow)) if flow in paused:
                return self._add(_Held(event, frozenset({flow})))
            case LookupGivenUp(ticket=ticket):
                asked = self._machine.flow_asked(ticket)
                if asked is not None and asked in paused:
                    return self._add(_Held(event, frozenset({asked})))
            case Retire():
                return self._add(_Held(event, None))
            case Meet() | PeersMet() | PeerLost() | CloseInput():
                if self._assigns:  # the share hears of the meeting as it begins, and must not hear of it again
                    return self._add(_Held(event, None))
                rest = frozenset(paused & self._machine.shares.keys())
                if rest:
                    self._add(_Held(Rest(event, rest), rest))
        return True

    def _add(self, held: _Held, place: int | None = None) -> bool:
        """Hold the event, behind all others unless a place is given; returns False."""
        self._held.insert(len(self._held) if place is None else place, held)
        self._count(held, 1)
        return False

    def _taken(self, place: int, held: _Held) -> _Held:
        del self._held[place]
        self._count(held, -1)
        return held

    def _count(self, held: _Held, by: int) -> None:
        self._assigns += by * held.is_assign
        self._for_all += by * (held.flows is None)
        for flow in held.flows or ():
            self._flows[flow] += by
            if not self._flows[flow]:
                del self._flows[flow]
