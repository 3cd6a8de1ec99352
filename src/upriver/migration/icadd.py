"""The ICADD machine: moves the keys of one region on one worker while its rows flow (document 000, mended).

Theory of operation. A rescale moves slices, vnodes whose owner changes, from their old owner A to their new owner B.
A interrogates its operators for a slice's keys (or those of several slices, if they are few) and collects the keys a
few at a time. It sends each with its held rows to B, drops it, and says Done of the slice to every worker. Until then
every worker sends the slice's rows to A, which takes, holds or relays each: so one worker puts a key's rows in order.
On Done each origin sends A a last Mark and goes straight to B. A relays the Mark, and B parks the origin's straight
rows until the Mark comes.

Phases: :mod:`upriver.migration.phases`. Rules: ``docs/internals/icadd.md``. Nothing here waits for all workers;
:mod:`upriver.coordinator.rescale` only sees to it that one rescale is over before the next begins.

The old owner's part: start of a rescale, then Interrogate, Collect, Acquire, Drop, Done, slice by slice.

Slices of few keys that go to one worker are given together: a step costs something however few its keys are.

The other workers' progress: fates of slices, marks, and when the rescale is over for this worker.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np

from upriver.errors import IllegalEvent, ProtocolError
from upriver.ids import MapVersion, VnodeId, WorkerId
from upriver.migration.events import (
    AbortAsked,
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
    ReportGone,
    ReportSettled,
    RescaleAnnounced,
    RowsArrived,
    TakeState,
)
from upriver.migration.messages import Acquire, Bye, Done, Kept, Mark, Message, RelayedMark, RowsSent
from upriver.migration.phases import (
    Collecting,
    Early,
    Fate,
    Interrogating,
    Left,
    Migration,
    Normal,
    Phase,
    Settling,
    Started,
    Turn,
    open_slice,
    route_own_normally,
    route_received_normally,
    route_started,
)
from upriver.migration.rules import ALL_RULES, MendedRules
from upriver.state.vectors import NO_KEYS, key_set
from upriver.vnodes import VnodeMap

TOGETHER_KEYS = 256
"""Slices of one new owner are given together until they have so many keys, unless the user has set the number of keys
moved at a time. More keys would take several steps anyway, and A relays the rows of moved keys until the last has
moved."""
TOGETHER_MAX = 16
"""At most how many slices are given together: asking the operators about each costs something too."""


def _migration(me: WorkerId, rescale: RescaleAnnounced, early: Early) -> Migration:
    members = tuple(sorted({*rescale.old, *rescale.new}))
    moves = rescale.before.diff(rescale.after)
    coming = {vnode: old for vnode, (old, new) in moves.items() if new == me and vnode not in early.kept}
    closed = {origin: frozenset(vnode for vnode, old in coming.items() if old != origin) for origin in members}
    migration = Migration(
        rescale=rescale,
        members=members,
        fates=np.full(len(rescale.before.owners), Fate.OPEN, np.uint8),
        undecided=len(moves),
        unmarked={vnode: frozenset(members) - {me} for vnode, (old, _) in moves.items() if old == me},
        closed=closed,
        parked=early.parked,
    )
    return migration.decided(sorted(early.done), Fate.DONE).decided(sorted(early.kept), Fate.KEPT)


def _another_slice(phase: Interrogating) -> VnodeId | None:
    """A slice that may be given together with those that were asked about."""
    if len(phase.slices) == TOGETHER_MAX:
        return None
    owners = phase.migration.rescale.after.owners
    return next((vnode for vnode in phase.remaining if owners[vnode] == owners[phase.slices[0]]), None)


StartedPhase = TypeVar("StartedPhase", bound=Started)
AnyPhase = TypeVar("AnyPhase")


class AtRest(Protocol):
    """A phase of any strategy that routes rows by one map."""

    @property
    def map(self) -> VnodeMap: ...


def version_of(phase: Phase) -> MapVersion:
    """The version that everything sent from this phase carries."""
    return phase.migration.version if isinstance(phase, Started) else phase.map.version


def leave(turn: Turn, phase: AtRest, event: InputClosed) -> Left:
    """No peer sends rows here by this map. Whatever this worker owes its peers is ahead of its Bye."""
    if turn.me in phase.map.workers:
        raise ProtocolError(f"worker {turn.me} cannot leave: it owns vnodes {phase.map.vnodes_of_worker(turn.me)}")
    for peer in event.peers:
        turn.send(peer, Bye(version=phase.map.version))
    turn.say(Leave())
    return Left(map=phase.map)


def gone(turn: Turn, phase: AnyPhase, event: Received) -> AnyPhase:
    """A peer has left. Only then may another rescale begin: none of its rows is on its way any more."""
    turn.say(ReportGone(peer=event.sender))
    return phase


class IcaddTurn(Turn):
    """One step of a distributor: each method handles an event in a phase, and returns the next phase."""

    __slots__ = ()

    def announced(self, phase: Normal, event: RescaleAnnounced) -> Started:
        """The rescale begins here. Early messages count now (icadd.early_messages_kept). This worker now marks slices
        whose Done came early (icadd.mark_after_start)."""
        if event.before != phase.map or event.version != phase.map.version + 1:
            raise ProtocolError(
                f"worker {self.me} is at map {phase.map.version}: cannot go to {event.version} from here"
            )
        migration = _migration(self.me, event, phase.early)
        for vnode, origin in sorted(phase.early.opened):
            migration = open_slice(self, migration, vnode, origin)
        for vnode, (old_owner, _) in event.before.diff(event.after).items():
            switched = migration.fates[vnode] == Fate.DONE or not self.rules.icadd_old_owner_first
            if old_owner != self.me and switched and vnode not in phase.early.marked:
                self.send(old_owner, Mark(version=event.version, vnode=vnode))
        return self._next_slice(migration, tuple(migration.unmarked))

    def _next_slice(self, migration: Migration, remaining: tuple[VnodeId, ...]) -> Started:
        if not remaining:
            return Settling(migration=migration)
        self.say(Interrogate(vnodes=remaining[:1]))
        return Interrogating(migration=migration, slices=remaining[:1], remaining=remaining[1:])

    def interrogated(self, phase: Interrogating, event: Interrogated) -> Started:
        """The slices' whitelist is complete: what the operators know, and what passed since they were asked
        (icadd.whitelist_what_passes)."""
        if phase.aborted:
            return self._keep(phase.migration, phase.slices)
        recorded = phase.recorded if self.rules.icadd_whitelist_what_passes else ()
        whitelist = key_set(phase.found, event.keys, *recorded)
        another = _another_slice(phase) if 0 < len(whitelist) < self.together else None
        if another is not None:
            self.say(Interrogate(vnodes=(another,)))
            remaining = tuple(vnode for vnode in phase.remaining if vnode != another)
            return replace(phase, slices=(*phase.slices, another), remaining=remaining, found=whitelist, recorded=())
        collecting = Collecting(
            migration=phase.migration, slices=phase.slices, remaining=phase.remaining, whitelist=whitelist
        )
        if len(whitelist):
            return collecting
        self._say_done(collecting)
        return self._past_slices(collecting)

    def collect(self, phase: Collecting, event: CollectAsked) -> Collecting:
        """The next keys go from the whitelist to the hold, in order of hash64."""
        if len(phase.hold) or not len(phase.whitelist):
            raise IllegalEvent(f"worker {self.me} cannot collect: {len(phase.hold)} keys are on hold")
        hold, whitelist = phase.whitelist[: event.keys_max], phase.whitelist[event.keys_max :]
        self.say(Collect(keys=hold))
        if not self.rules.icadd_done_when_both_empty and not len(whitelist):
            self._say_done(phase)
        return replace(phase, hold=hold, whitelist=whitelist, begun=True)

    def collected(self, phase: Collecting, event: Collected) -> Started:
        """The keys on hold go to B, their rows behind them (icadd.state_before_held_rows); when none are left the
        slices are Done (icadd.done_when_both_empty)."""
        if not np.array_equal(event.keys, phase.hold):
            raise ProtocolError(f"worker {self.me} holds {phase.hold}, but was given the state of {event.keys}")
        version = phase.migration.version
        state: list[Message] = [Acquire(version=version, keys=event.keys, state=event.state)]
        held: list[Message] = [RowsSent(version=version, rows=rows) for rows in phase.held]
        for message in state + held if self.rules.icadd_state_before_held_rows else held + state:
            self.send(phase.migration.rescale.after.owners[phase.slices[0]], message)
        self.say(Drop(keys=event.keys))
        phase = replace(phase, hold=NO_KEYS, held=())
        if len(phase.whitelist):
            return phase
        if self.rules.icadd_done_when_both_empty:
            self._say_done(phase)
        return self._past_slices(phase)

    def abort(self, phase: Started, event: AbortAsked) -> Started:
        """Slices that are neither Done nor begun are kept. A slice is finished once one of its keys or rows went to B
        (icadd.begun_slice_is_finished)."""
        if event.version != phase.migration.version:
            raise IllegalEvent(f"worker {self.me} moves to version {phase.migration.version}, not {event.version}")
        if isinstance(phase, Settling):
            return phase
        if isinstance(phase, Collecting) and not phase.begun:
            return self._keep(phase.migration, (*phase.slices, *phase.remaining))
        migration = self._keep(phase.migration, phase.remaining).migration
        if isinstance(phase, Interrogating):  # the answer is on its way, and must not be taken for a later one's
            return replace(phase, migration=migration, remaining=(), aborted=True)
        return replace(phase, migration=migration, remaining=())

    def _say_done(self, phase: Collecting) -> None:
        for vnode in phase.slices:
            self._broadcast(phase.migration, Done(version=phase.migration.version, vnode=vnode))

    def _past_slices(self, phase: Collecting) -> Started:
        return self._next_slice(phase.migration.decided(phase.slices, Fate.DONE), phase.remaining)

    def _keep(self, migration: Migration, vnodes: tuple[VnodeId, ...]) -> Settling:
        if vnodes:
            self._broadcast(migration, Kept(version=migration.version, vnodes=vnodes))
        unmarked = {vnode: origins for vnode, origins in migration.unmarked.items() if vnode not in vnodes}
        return Settling(migration=replace(migration.decided(vnodes, Fate.KEPT), unmarked=unmarked))

    def _broadcast(self, migration: Migration, message: Message) -> None:
        for member in migration.members:
            if member != self.me:
                self.send(member, message)

    def early(self, phase: Normal, event: Received) -> Normal:
        """icadd.early_messages_kept: the sender has started a rescale that was not announced here yet. Its message is
        kept until then."""
        message = event.message
        if message.version <= phase.map.version:
            raise ProtocolError(f"worker {self.me} got {type(message).__name__} of a rescale that is over")
        if not self.rules.icadd_early_messages_kept:
            return phase
        known = phase.early
        match message:
            case Done(vnode=vnode):
                known = replace(known, done=known.done | {vnode})
                if not self.rules.icadd_mark_after_start:
                    self.send(event.sender, Mark(version=message.version, vnode=vnode))
                    known = replace(known, marked=known.marked | {vnode})
            case Kept(vnodes=vnodes):
                known = replace(known, kept=known.kept | set(vnodes))
            case RelayedMark(vnode=vnode, origin=origin):
                known = replace(known, opened=known.opened | {(vnode, origin)})
        return replace(phase, early=known)

    def others_done(self, phase: StartedPhase, event: Received) -> StartedPhase:
        """From now on this worker's own rows of the slice go straight; the Mark says so by the old way."""
        message = event.message
        assert isinstance(message, Done)
        self._check_owner(phase.migration, message.vnode, event)
        if self.rules.icadd_old_owner_first:
            self.send(event.sender, Mark(version=message.version, vnode=message.vnode))
        return replace(phase, migration=phase.migration.decided((message.vnode,), Fate.DONE))

    def others_kept(self, phase: StartedPhase, event: Received) -> StartedPhase:
        """The slices stay: no origin will go straight, so no marks will come."""
        message = event.message
        assert isinstance(message, Kept)
        self._check_owner(phase.migration, message.vnodes[0], event)
        closed = {origin: vnodes.difference(message.vnodes) for origin, vnodes in phase.migration.closed.items()}
        migration = phase.migration.decided(message.vnodes, Fate.KEPT)
        return replace(phase, migration=replace(migration, closed=closed))

    def _check_owner(self, migration: Migration, vnode: VnodeId, event: Received) -> None:
        if migration.rescale.before.owners[vnode] != event.sender or migration.fates[vnode] != Fate.OPEN:
            raise ProtocolError(f"worker {event.sender} told {self.me} of slice {vnode}, which is not its own, or over")

    def marked(self, phase: StartedPhase, event: Received) -> StartedPhase:
        """The sender sends no more rows of this slice here. B learns this behind all of those rows that were
        relayed."""
        message, migration = event.message, phase.migration
        assert isinstance(message, Mark)
        if event.sender not in migration.unmarked.get(message.vnode, ()):
            raise ProtocolError(
                f"worker {event.sender} marked slice {message.vnode} of {self.me} twice, or not its own"
            )
        relayed = RelayedMark(version=message.version, vnode=message.vnode, origin=event.sender)
        self.send(migration.rescale.after.owners[message.vnode], relayed)
        unmarked = dict(migration.unmarked)
        unmarked[message.vnode] = unmarked[message.vnode] - {event.sender}
        return replace(phase, migration=replace(migration, unmarked=unmarked))

    def relayed_mark(self, phase: StartedPhase, event: Received) -> StartedPhase:
        """All that the origin sent by the old way has come: its straight rows may go down."""
        message = event.message
        assert isinstance(message, RelayedMark)
        if message.vnode not in phase.migration.closed[message.origin]:
            raise ProtocolError(f"worker {self.me} was told twice of {message.origin}'s mark of slice {message.vnode}")
        return replace(phase, migration=open_slice(self, phase.migration, message.vnode, message.origin))

    def settle_if_over(self, phase: Phase) -> Phase:
        """The rescale is over here when every slice's fate is known, no origin can still send rows to give away, and
        every origin's straight rows are let through."""
        if not isinstance(phase, Settling) or phase.migration.undecided:
            return phase
        migration = phase.migration
        kept = tuple(map(VnodeId, np.flatnonzero(migration.fates == Fate.KEPT).tolist()))
        map_now = migration.rescale.after.keeping(migration.rescale.before, kept)
        leaves = self.me not in migration.rescale.new and self.me not in map_now.workers
        waits = any(migration.unmarked.values()) or any(migration.closed.values())
        if waits and not (leaves and not self.rules.icadd_leave_after_marks):
            return phase
        self.say(ReportSettled(version=migration.version, kept=kept))
        return Normal(map=map_now)

    def _rows_normally(self, phase: Normal, event: RowsArrived) -> Phase:
        route_own_normally(self, phase, event.rows)
        return phase

    def _received_normally(self, phase: Normal, event: Received) -> Phase:
        assert isinstance(event.message, RowsSent)
        return route_received_normally(self, phase, event.sender, event.message)

    def _rows_started(self, phase: Started, event: RowsArrived) -> Phase:
        return route_started(self, phase, event.rows, self.me)

    def _received_started(self, phase: Started, event: Received) -> Phase:
        assert isinstance(event.message, RowsSent)
        return route_started(self, phase, event.message.rows, event.sender)

    def _acquired(self, phase: Normal | Started, event: Received) -> Phase:
        """State is taken in every phase: its old owner sends it ahead of all rows of its keys."""
        assert isinstance(event.message, Acquire)
        self.say(TakeState(keys=event.message.keys, state=event.message.state))
        return phase

    def _nothing_to_abort(self, phase: Normal | Left, event: AbortAsked) -> Phase:
        if event.version > version_of(phase):
            raise IllegalEvent(f"worker {self.me} at version {version_of(phase)} cannot abort {event.version}")
        return phase


class Distributor:
    """One worker's distributor of one region. ``step`` is the only way to change it; ``phase`` is a value."""

    def __init__(
        self, me: WorkerId, map: VnodeMap, rules: MendedRules = ALL_RULES, together: int = TOGETHER_KEYS
    ) -> None:
        """map: the one that the worker's peers route by; a joining worker gets it too, though it owns nothing there
        (icadd.joiner_knows_old_map).

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
        turn = IcaddTurn(self.me, self.rules, self.together)
        self.phase = turn.settle_if_over(handler(turn, self.phase, event))
        return tuple(turn.actions)

    @property
    def can_collect(self) -> bool:
        """Whether ``CollectAsked`` would move a key."""
        return isinstance(self.phase, Collecting) and not len(self.phase.hold) and len(self.phase.whitelist) > 0

    @property
    def rows_waiting(self) -> int:
        """Rows held or parked here: they are in flight (icadd.waiting_rows_in_flight)."""
        phase = self.phase
        held = sum(map(len, phase.held)) if isinstance(phase, Collecting) else 0
        if isinstance(phase, Normal):
            return sum(len(parked.rows) for parked in phase.early.parked)
        if isinstance(phase, Started):
            return held + sum(len(parked.rows) for parked in phase.migration.parked)
        return 0

    def _check_version(self, event: Received) -> None:
        """Peers are at most one rescale ahead. Only rows, which may be slow, are ever of a rescale that is over."""
        mine, theirs = version_of(self.phase), event.message.version
        ahead = 1 if isinstance(self.phase, Normal) else 0
        if theirs > mine + ahead or (theirs < mine and not isinstance(event.message, RowsSent)):
            what = type(event.message).__name__
            raise ProtocolError(f"worker {self.me} at version {mine} got {what} of version {theirs}")


# A handler's phase and event are those of its key in the table, which no type checker can see.
_Handler = Callable[[IcaddTurn, Any, Any], Phase]

_WHILE_STARTED: Mapping[type, _Handler] = {
    RowsArrived: IcaddTurn._rows_started,
    RowsSent: IcaddTurn._received_started,
    Acquire: IcaddTurn._acquired,
    Done: IcaddTurn.others_done,
    Kept: IcaddTurn.others_kept,
    Mark: IcaddTurn.marked,
    RelayedMark: IcaddTurn.relayed_mark,
    AbortAsked: IcaddTurn.abort,
    Bye: gone,
}

_TABLE: Mapping[tuple[type, type], _Handler] = {
    (Normal, RowsArrived): IcaddTurn._rows_normally,
    (Normal, RowsSent): IcaddTurn._received_normally,
    (Normal, Acquire): IcaddTurn._acquired,
    (Normal, Done): IcaddTurn.early,
    (Normal, Kept): IcaddTurn.early,
    (Normal, RelayedMark): IcaddTurn.early,
    (Normal, RescaleAnnounced): IcaddTurn.announced,
    (Normal, AbortAsked): IcaddTurn._nothing_to_abort,
    **{
        (phase, what): handler
        for phase in (Interrogating, Collecting, Settling)
        for what, handler in _WHILE_STARTED.items()
    },
    (Interrogating, Interrogated): IcaddTurn.interrogated,
    (Collecting, CollectAsked): IcaddTurn.collect,
    (Collecting, Collected): IcaddTurn.collected,
    (Normal, InputClosed): leave,
    (Normal, Bye): gone,
    (Left, AbortAsked): IcaddTurn._nothing_to_abort,
}
