"""The old owner's part: start of a rescale, then Interrogate, Collect, Acquire, Drop, Done, slice by slice.

Slices of few keys that go to one worker are given together: a step costs something however few its keys are.
"""

from dataclasses import replace

import numpy as np

from upriver.errors import IllegalEvent, ProtocolError
from upriver.ids import VnodeId, WorkerId
from upriver.migration.actions import Collect, Drop, Interrogate
from upriver.migration.events import AbortAsked, CollectAsked, Collected, Interrogated, RescaleAnnounced
from upriver.migration.messages import Acquire, Done, Kept, Mark, Message, RowsSent
from upriver.migration.phases import Collecting, Early, Fate, Interrogating, Migration, Normal, Settling, Started
from upriver.migration.routing import open_slice
from upriver.migration.turn import Turn
from upriver.state.keysets import NO_KEYS, key_set

TOGETHER_KEYS = 256
"""Slices of one new owner are given together until they have so many keys, unless the user has said how many keys
are to be moved at a time. More would be moved in several steps anyway, and rows of those that have moved are relayed
until the last has."""
TOGETHER_MAX = 16
"""Slices that are given together: to ask the operators about each costs something too."""


def announced(turn: Turn, phase: Normal, event: RescaleAnnounced) -> Started:
    """The rescale begins here. What came early counts now (M7); slices whose Done came early are marked now (H3)."""
    if event.before != phase.map or event.version != phase.map.version + 1:
        raise ProtocolError(f"worker {turn.me} is at map {phase.map.version}: cannot go to {event.version} from here")
    migration = _migration(turn.me, event, phase.early)
    for vnode, origin in sorted(phase.early.opened):
        migration = open_slice(turn, migration, vnode, origin)
    for vnode, (old_owner, _) in event.before.diff(event.after).items():
        switched = migration.fates[vnode] == Fate.DONE or not turn.rules.m3_old_owner_first
        if old_owner != turn.me and switched and vnode not in phase.early.marked:
            turn.send(old_owner, Mark(version=event.version, vnode=vnode))
    return _next_slice(turn, migration, tuple(migration.unmarked))


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


def _next_slice(turn: Turn, migration: Migration, remaining: tuple[VnodeId, ...]) -> Started:
    if not remaining:
        return Settling(migration=migration)
    turn.say(Interrogate(vnodes=remaining[:1]))
    return Interrogating(migration=migration, slices=remaining[:1], remaining=remaining[1:])


def interrogated(turn: Turn, phase: Interrogating, event: Interrogated) -> Started:
    """The slices' whitelist is complete: what the operators know, and what passed since they were asked (M4)."""
    if phase.aborted:
        return _keep(turn, phase.migration, phase.slices)
    recorded = phase.recorded if turn.rules.m4_whitelist_what_passes else ()
    whitelist = key_set(phase.found, event.keys, *recorded)
    another = _another_slice(phase) if 0 < len(whitelist) < turn.together else None
    if another is not None:
        turn.say(Interrogate(vnodes=(another,)))
        remaining = tuple(vnode for vnode in phase.remaining if vnode != another)
        return replace(phase, slices=(*phase.slices, another), remaining=remaining, found=whitelist, recorded=())
    collecting = Collecting(
        migration=phase.migration, slices=phase.slices, remaining=phase.remaining, whitelist=whitelist
    )
    if len(whitelist):
        return collecting
    _say_done(turn, collecting)
    return _past_slices(turn, collecting)


def _another_slice(phase: Interrogating) -> VnodeId | None:
    """One that may be given together with those that were asked about."""
    if len(phase.slices) == TOGETHER_MAX:
        return None
    owners = phase.migration.rescale.after.owners
    return next((vnode for vnode in phase.remaining if owners[vnode] == owners[phase.slices[0]]), None)


def collect(turn: Turn, phase: Collecting, event: CollectAsked) -> Collecting:
    """The next keys go from the whitelist to the hold, in order of hash64."""
    if len(phase.hold) or not len(phase.whitelist):
        raise IllegalEvent(f"worker {turn.me} cannot collect: {len(phase.hold)} keys are on hold")
    hold, whitelist = phase.whitelist[: event.keys_max], phase.whitelist[event.keys_max :]
    turn.say(Collect(keys=hold))
    if not turn.rules.h2_done_when_both_empty and not len(whitelist):
        _say_done(turn, phase)
    return replace(phase, hold=hold, whitelist=whitelist, begun=True)


def collected(turn: Turn, phase: Collecting, event: Collected) -> Started:
    """The keys on hold go to B, their rows behind them (H1); when none are left the slices are Done (H2)."""
    if not np.array_equal(event.keys, phase.hold):
        raise ProtocolError(f"worker {turn.me} holds {phase.hold}, but was given the state of {event.keys}")
    version = phase.migration.version
    state: list[Message] = [Acquire(version=version, keys=event.keys, state=event.state)]
    held: list[Message] = [RowsSent(version=version, rows=rows) for rows in phase.held]
    for message in state + held if turn.rules.h1_state_before_held_rows else held + state:
        turn.send(phase.migration.rescale.after.owners[phase.slices[0]], message)
    turn.say(Drop(keys=event.keys))
    phase = replace(phase, hold=NO_KEYS, held=())
    if len(phase.whitelist):
        return phase
    if turn.rules.h2_done_when_both_empty:
        _say_done(turn, phase)
    return _past_slices(turn, phase)


def abort(turn: Turn, phase: Started, event: AbortAsked) -> Started:
    """What is neither Done nor begun is kept. A slice of which a key or a row went to B is finished (H4)."""
    if event.version != phase.migration.version:
        raise IllegalEvent(f"worker {turn.me} moves to version {phase.migration.version}, not {event.version}")
    if isinstance(phase, Settling):
        return phase
    if isinstance(phase, Collecting) and not phase.begun:
        return _keep(turn, phase.migration, (*phase.slices, *phase.remaining))
    migration = _keep(turn, phase.migration, phase.remaining).migration
    if isinstance(phase, Interrogating):  # the answer is on its way, and must not be taken for a later one's
        return replace(phase, migration=migration, remaining=(), aborted=True)
    return replace(phase, migration=migration, remaining=())


def _say_done(turn: Turn, phase: Collecting) -> None:
    for vnode in phase.slices:
        _broadcast(turn, phase.migration, Done(version=phase.migration.version, vnode=vnode))


def _past_slices(turn: Turn, phase: Collecting) -> Started:
    return _next_slice(turn, phase.migration.decided(phase.slices, Fate.DONE), phase.remaining)


def _keep(turn: Turn, migration: Migration, vnodes: tuple[VnodeId, ...]) -> Settling:
    if vnodes:
        _broadcast(turn, migration, Kept(version=migration.version, vnodes=vnodes))
    unmarked = {vnode: origins for vnode, origins in migration.unmarked.items() if vnode not in vnodes}
    return Settling(migration=replace(migration.decided(vnodes, Fate.KEPT), unmarked=unmarked))


def _broadcast(turn: Turn, migration: Migration, message: Message) -> None:
    for member in migration.members:
        if member != turn.me:
            turn.send(member, message)
