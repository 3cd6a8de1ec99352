"""What the others' progress means here: fates of slices, marks, and when the rescale is over for this worker."""

from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np

from upriver.errors import ProtocolError
from upriver.ids import MapVersion, VnodeId
from upriver.migration.actions import Leave, ReportGone, ReportSettled
from upriver.migration.events import InputClosed, Received
from upriver.migration.messages import Bye, Done, Kept, Mark, RelayedMark
from upriver.migration.phases import Fate, Left, Migration, Normal, Phase, Settling, Started
from upriver.migration.routing import open_slice
from upriver.migration.turn import Turn
from upriver.vnodes import VnodeMap

StartedPhase = TypeVar("StartedPhase", bound=Started)
AnyPhase = TypeVar("AnyPhase")


class AtRest(Protocol):
    """A phase, of whatever strategy, in which rows go by one map."""

    @property
    def map(self) -> VnodeMap: ...


def version_of(phase: Phase) -> MapVersion:
    """The version that everything sent from this phase carries."""
    return phase.migration.version if isinstance(phase, Started) else phase.map.version


def early(turn: Turn, phase: Normal, event: Received) -> Normal:
    """M7: the sender has started a rescale that was not announced here yet; what it says is kept for then."""
    message = event.message
    if message.version <= phase.map.version:
        raise ProtocolError(f"worker {turn.me} got {type(message).__name__} of a rescale that is over")
    if not turn.rules.m7_early_messages_kept:
        return phase
    known = phase.early
    match message:
        case Done(vnode=vnode):
            known = replace(known, done=known.done | {vnode})
            if not turn.rules.h3_mark_after_start:
                turn.send(event.sender, Mark(version=message.version, vnode=vnode))
                known = replace(known, marked=known.marked | {vnode})
        case Kept(vnodes=vnodes):
            known = replace(known, kept=known.kept | set(vnodes))
        case RelayedMark(vnode=vnode, origin=origin):
            known = replace(known, opened=known.opened | {(vnode, origin)})
    return replace(phase, early=known)


def others_done(turn: Turn, phase: StartedPhase, event: Received) -> StartedPhase:
    """From now on this worker's own rows of the slice go straight; the Mark says so by the old way."""
    message = event.message
    assert isinstance(message, Done)
    _check_owner(turn, phase.migration, message.vnode, event)
    if turn.rules.m3_old_owner_first:
        turn.send(event.sender, Mark(version=message.version, vnode=message.vnode))
    return replace(phase, migration=phase.migration.decided((message.vnode,), Fate.DONE))


def others_kept(turn: Turn, phase: StartedPhase, event: Received) -> StartedPhase:
    """The slices stay: nobody will go straight, so no marks will come."""
    message = event.message
    assert isinstance(message, Kept)
    _check_owner(turn, phase.migration, message.vnodes[0], event)
    closed = {origin: vnodes.difference(message.vnodes) for origin, vnodes in phase.migration.closed.items()}
    migration = phase.migration.decided(message.vnodes, Fate.KEPT)
    return replace(phase, migration=replace(migration, closed=closed))


def _check_owner(turn: Turn, migration: Migration, vnode: VnodeId, event: Received) -> None:
    if migration.rescale.before.owners[vnode] != event.sender or migration.fates[vnode] != Fate.OPEN:
        raise ProtocolError(f"worker {event.sender} told {turn.me} of slice {vnode}, which is not its own, or over")


def marked(turn: Turn, phase: StartedPhase, event: Received) -> StartedPhase:
    """The sender sends this slice's rows here no more; B learns so behind all of them that were relayed."""
    message, migration = event.message, phase.migration
    assert isinstance(message, Mark)
    if event.sender not in migration.unmarked.get(message.vnode, ()):
        raise ProtocolError(f"worker {event.sender} marked slice {message.vnode} of {turn.me} twice, or not its own")
    relayed = RelayedMark(version=message.version, vnode=message.vnode, origin=event.sender)
    turn.send(migration.rescale.after.owners[message.vnode], relayed)
    unmarked = dict(migration.unmarked)
    unmarked[message.vnode] = unmarked[message.vnode] - {event.sender}
    return replace(phase, migration=replace(migration, unmarked=unmarked))


def relayed_mark(turn: Turn, phase: StartedPhase, event: Received) -> StartedPhase:
    """All that the origin sent by the old way has come: its straight rows may go down."""
    message = event.message
    assert isinstance(message, RelayedMark)
    if message.vnode not in phase.migration.closed[message.origin]:
        raise ProtocolError(f"worker {turn.me} was told twice of {message.origin}'s mark of slice {message.vnode}")
    return replace(phase, migration=open_slice(turn, phase.migration, message.vnode, message.origin))


def settle_if_over(turn: Turn, phase: Phase) -> Phase:
    """The rescale is over here when every slice's fate is known, no origin can still send rows to give away, and
    every origin's straight rows are let through."""
    if not isinstance(phase, Settling) or phase.migration.undecided:
        return phase
    migration = phase.migration
    kept = tuple(map(VnodeId, np.flatnonzero(migration.fates == Fate.KEPT).tolist()))
    map_now = migration.rescale.after.keeping(migration.rescale.before, kept)
    leaves = turn.me not in migration.rescale.new and turn.me not in map_now.workers
    waits = any(migration.unmarked.values()) or any(migration.closed.values())
    if waits and not (leaves and not turn.rules.m8_leave_after_marks):
        return phase
    turn.say(ReportSettled(version=migration.version, kept=kept))
    return Normal(map=map_now)


def leave(turn: Turn, phase: AtRest, event: InputClosed) -> Left:
    """Nobody sends rows here by this map; what this worker owes its peers is ahead of its Bye."""
    if turn.me in phase.map.workers:
        raise ProtocolError(f"worker {turn.me} cannot leave: it owns vnodes {phase.map.vnodes_of_worker(turn.me)}")
    for peer in event.peers:
        turn.send(peer, Bye(version=phase.map.version))
    turn.say(Leave())
    return Left(map=phase.map)


def gone(turn: Turn, phase: AnyPhase, event: Received) -> AnyPhase:
    """A peer has left. Only then may another rescale begin: no row of its is on its way any more."""
    turn.say(ReportGone(peer=event.sender))
    return phase
