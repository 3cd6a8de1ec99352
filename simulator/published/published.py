"""Document 000's rules as written, for the simulator only: they split state and lose order, and it shows how.

The phases, sets and rule numbers are the document's, one ``Done`` per worker. Where it says "local", a row from this
worker's own upstream has this worker as its sender. The rules that ship are those of :mod:`upriver.migration.icadd`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from upriver.errors import IllegalEvent
from upriver.hashing import Hashes
from upriver.ids import MapVersion, WorkerId
from upriver.migration.events import (
    Action,
    Collect,
    CollectAsked,
    Collected,
    Drop,
    Event,
    InputClosed,
    Interrogate,
    Interrogated,
    Leave,
    Received,
    ReportSettled,
    RescaleAnnounced,
    RowsArrived,
    Rule,
    TakeState,
)
from upriver.migration.messages import Acquire, ForwardedRows, RowsSent, WorkerDone
from upriver.migration.phases import Turn, Workers
from upriver.state.vectors import NO_KEYS, contains, key_set
from upriver.vnodes import VnodeMap, vnodes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """Rows go by F. ``finished`` is empty as the document has it: the set is made at Interrogate."""

    map: VnodeMap
    finished: frozenset[WorkerId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrogation:
    """The operators were asked for their keys; whitelist: what passed meanwhile."""

    rescale: RescaleAnnounced
    whitelist: Hashes
    finished: frozenset[WorkerId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """whitelist: keys with state here that must go; hold: those being collected; held: their rows. said_done: both
    are empty for good, and every worker was told."""

    rescale: RescaleAnnounced
    finished: frozenset[WorkerId]
    whitelist: Hashes
    hold: Hashes = field(default_factory=lambda: NO_KEYS)
    held: tuple[ForwardedRows, ...] = ()
    said_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """Rows go by F'."""

    map: VnodeMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A worker that is not in W', and whose own input is over."""

    map: VnodeMap


Phase = Before | Interrogation | Collection | After | Gone


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRules:
    """Single mends, to see which faults outlive them. All off is the document."""

    version_rule_asks_sender: bool = False
    """The version rule lets pass only what F(K) itself sent."""
    done_counts_early: bool = False
    """A Done that comes before this worker's own Interrogate is not lost."""


AS_WRITTEN = PublishedRules()


class PublishedDistributor:
    """One worker's distributor as document 000 has it, with the interface of ``Distributor``."""

    def __init__(self, me: WorkerId, map: VnodeMap, rules: PublishedRules = AS_WRITTEN) -> None:
        self.me = me
        self.rules = rules
        self.phase: Phase = Before(map=map)

    def step(self, event: Event) -> tuple[Action, ...]:
        """Advance by one event."""
        what = event.message if isinstance(event, Received) else event
        handler = _TABLE.get((type(self.phase), type(what)))
        if handler is None:
            raise IllegalEvent(f"worker {self.me} is {type(self.phase).__name__}: no place for {type(what).__name__}")
        turn = Turn(self.me)
        self.phase = _finish(turn, self.rules, handler(turn, self.rules, self.phase, event))
        return tuple(turn.actions)

    @property
    def can_collect(self) -> bool:
        """Whether ``CollectAsked`` would move a key."""
        return isinstance(self.phase, Collection) and not len(self.phase.hold) and len(self.phase.whitelist) > 0

    @property
    def rows_waiting(self) -> int:
        """Rows held here."""
        return sum(map(len, self.phase.held)) if isinstance(self.phase, Collection) else 0


def _version(phase: Phase) -> MapVersion:
    match phase:
        case Interrogation(rescale=rescale):
            return rescale.before.version
        case Collection(rescale=rescale):
            return rescale.after.version
        case Before(map=map) | After(map=map) | Gone(map=map):
            return map.version


def _owners(map: VnodeMap, rows: ForwardedRows) -> Workers:
    return map.owners_of(vnodes_of(rows.hash64, len(map.owners)))


def _rows_arrived(turn: Turn, rules: PublishedRules, phase: Phase, event: RowsArrived) -> Phase:
    return _route(turn, phase, event.rows, turn.me)


def _rows_received(turn: Turn, rules: PublishedRules, phase: Phase, event: Received) -> Phase:
    """The version rule, valid always: what carries a higher version than ours goes down, no matter what."""
    message = event.message
    assert isinstance(message, RowsSent)
    rows = message.rows
    if message.version > _version(phase):
        taken = rows.hash64 == rows.hash64
        if rules.version_rule_asks_sender:
            old = phase.map if isinstance(phase, Before | After | Gone) else phase.rescale.before
            taken = _owners(old, rows) == event.sender
        turn.pass_down(rows, taken, Rule.V)
        rows = rows.filtered(~taken)
    return _route(turn, phase, rows, event.sender) if len(rows) else phase


def _route(turn: Turn, phase: Phase, rows: ForwardedRows, sender: WorkerId) -> Phase:
    match phase:
        case Interrogation():
            return _route_interrogation(turn, phase, rows)
        case Collection():
            return _route_collection(turn, phase, rows, sender)
        case Before(map=map) | After(map=map) | Gone(map=map):
            owners = _owners(map, rows)
            turn.pass_down(rows, owners == turn.me, Rule.N1)
            turn.send_rows(map.version, rows, owners != turn.me, owners)
            return phase


def _route_interrogation(turn: Turn, phase: Interrogation, rows: ForwardedRows) -> Phase:
    """1.1: F(K) here, F'(K) not: whitelist, down. 1.2: F(K) and F'(K) here: down. 2: F(K) not here: to F(K)."""
    old, new = _owners(phase.rescale.before, rows), _owners(phase.rescale.after, rows)
    going = (old == turn.me) & (new != turn.me)
    turn.pass_down(rows, going, Rule.I1_1)
    turn.pass_down(rows, (old == turn.me) & (new == turn.me), Rule.I1_2)
    turn.send_rows(_version(phase), rows, old != turn.me, old)
    return replace(phase, whitelist=key_set(phase.whitelist, rows.hash64[going]))


def _route_collection(turn: Turn, phase: Collection, rows: ForwardedRows, sender: WorkerId) -> Phase:
    """F'(K) not here: 1.1 whitelisted: down; 1.2 on hold: held; 2 neither: to F'(K).
    3: F'(K) here: if F(K) is the sender: down, else to F(K)."""
    old, new = _owners(phase.rescale.before, rows), _owners(phase.rescale.after, rows)
    going = new != turn.me
    whitelisted = going & contains(phase.whitelist, rows.hash64)
    on_hold = going & contains(phase.hold, rows.hash64)
    turn.pass_down(rows, whitelisted, Rule.C1_1)
    if on_hold.any():
        phase = replace(phase, held=(*phase.held, rows.filtered(on_hold)))
    turn.send_rows(_version(phase), rows, going & ~whitelisted & ~on_hold, new)
    from_old = (old == sender) | (old == turn.me)
    turn.pass_down(rows, ~going & from_old, Rule.C3)
    turn.send_rows(_version(phase), rows, ~going & ~from_old, old)
    return phase


def _announced(turn: Turn, rules: PublishedRules, phase: Before, event: RescaleAnnounced) -> Phase:
    turn.say(Interrogate(vnodes=event.before.vnodes_of_worker(turn.me)))
    return Interrogation(rescale=event, whitelist=NO_KEYS, finished=phase.finished)


def _interrogated(turn: Turn, rules: PublishedRules, phase: Interrogation, event: Interrogated) -> Phase:
    known = key_set(phase.whitelist, event.keys)
    after = phase.rescale.after
    going = after.owners_of(vnodes_of(known, len(after.owners))) != turn.me
    return Collection(rescale=phase.rescale, whitelist=known[going], finished=phase.finished)


def _collect(turn: Turn, rules: PublishedRules, phase: Collection, event: CollectAsked) -> Phase:
    """One key at a time, whatever there is time for."""
    turn.say(Collect(keys=phase.whitelist[:1]))
    return replace(phase, hold=phase.whitelist[:1], whitelist=phase.whitelist[1:])


def _collected(turn: Turn, rules: PublishedRules, phase: Collection, event: Collected) -> Phase:
    """Acquire to F'(K), the held rows behind it, then Drop."""
    version, after = phase.rescale.after.version, phase.rescale.after
    target = WorkerId(int(after.owners_of(vnodes_of(event.keys, len(after.owners)))[0]))
    turn.send(target, Acquire(version=version, keys=event.keys, state=event.state))
    for rows in phase.held:
        turn.send(target, RowsSent(version=version, rows=rows))
    turn.say(Drop(keys=event.keys))
    return replace(phase, hold=NO_KEYS, held=())


def _acquired(turn: Turn, rules: PublishedRules, phase: Phase, event: Received) -> Phase:
    assert isinstance(event.message, Acquire)
    turn.say(TakeState(keys=event.message.keys, state=event.message.state))
    return phase


def _done_before(turn: Turn, rules: PublishedRules, phase: Before, event: Received) -> Phase:
    """There is no set yet to add the sender to."""
    return replace(phase, finished=phase.finished | {event.sender}) if rules.done_counts_early else phase


def _done(turn: Turn, rules: PublishedRules, phase: Interrogation | Collection, event: Received) -> Phase:
    return replace(phase, finished=phase.finished | {event.sender})


def _leave(turn: Turn, rules: PublishedRules, phase: After, event: InputClosed) -> Phase:
    turn.say(Leave())
    return Gone(map=phase.map)


def _ignored(turn: Turn, rules: PublishedRules, phase: After, event: Received) -> Phase:
    return phase


def _finish(turn: Turn, rules: PublishedRules, phase: Phase) -> Phase:
    """Done when whitelist and hold are empty; over when all of W are done; a leaver may then go."""
    if not isinstance(phase, Collection):
        return phase
    if not phase.said_done and not len(phase.whitelist) and not len(phase.hold):
        for peer in sorted({*phase.rescale.old, *phase.rescale.new} - {turn.me}):
            turn.send(peer, WorkerDone(version=phase.rescale.after.version))
        phase = replace(phase, said_done=True, finished=phase.finished | {turn.me})
    if not (phase.said_done and phase.finished.issuperset(phase.rescale.old)):
        return phase
    turn.say(ReportSettled(version=phase.rescale.after.version, kept=()))
    return After(map=phase.rescale.after)


# A handler's phase and event are those of its key in the table, which no type checker can see.
_Handler = Callable[[Turn, PublishedRules, Any, Any], Phase]

_PHASES = (Before, Interrogation, Collection, After)

_TABLE: Mapping[tuple[type, type], _Handler] = {
    **{(phase, RowsArrived): _rows_arrived for phase in _PHASES},
    **{(phase, RowsSent): _rows_received for phase in _PHASES},
    **{(phase, Acquire): _acquired for phase in _PHASES},
    (Before, RescaleAnnounced): _announced,
    (Before, WorkerDone): _done_before,
    (Interrogation, Interrogated): _interrogated,
    (Interrogation, WorkerDone): _done,
    (Collection, CollectAsked): _collect,
    (Collection, Collected): _collected,
    (Collection, WorkerDone): _done,
    (After, WorkerDone): _ignored,
    (After, InputClosed): _leave,
}
