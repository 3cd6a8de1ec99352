"""An old owner's part in ``redistribute`` (the document's Z): sets, then the keys of each hold in turn."""

from dataclasses import replace

import numpy as np

from upriver.errors import IllegalEvent, ProtocolError
from upriver.ids import VnodeId, WorkerId
from upriver.migration.actions import Collect, Drop, Interrogate
from upriver.migration.events import AbortAsked, CollectAsked, Collected, Interrogated, Received
from upriver.migration.messages import Acquire, Kept
from upriver.migration.redistribute_messages import Final, Redistribute, Sets
from upriver.migration.redistribute_phases import (
    Collecting,
    Interrogating,
    Migration,
    Settling,
    Stage,
    Started,
    with_more,
)
from upriver.migration.redistribute_routing import owners_in, release
from upriver.migration.redistribute_turn import RedistributeTurn
from upriver.state.keysets import NO_KEYS, contains, key_set
from upriver.vnodes import VnodeMap
from upriver.xxh64 import Hashes


def own_vnodes(migration: Migration, owner: WorkerId) -> tuple[VnodeId, ...]:
    """The vnodes that this old owner is to give away, in order."""
    moves = migration.rescale.before.diff(migration.rescale.after)
    return tuple(vnode for vnode, (old, _) in moves.items() if old == owner)


def announced_by(turn: RedistributeTurn, phase: Interrogating, event: Received) -> Started:
    """SHUTDOWN or SCALEUP of one more distributor."""
    if event.sender not in phase.unannounced:
        raise ProtocolError(f"worker {event.sender} announced the rescale to {turn.me} twice")
    return ask_if_announced(turn, replace(phase, unannounced=phase.unannounced - {event.sender}))


def ask_if_announced(turn: RedistributeTurn, phase: Interrogating) -> Started:
    """D7: when every distributor has started, the operators are asked; rows by F' can come nowhere before that."""
    if phase.unannounced and turn.by.d7_all_have_announced:
        return phase
    if phase.aborted:
        return _keep(turn, phase.migration)
    turn.say(Interrogate(vnodes=own_vnodes(phase.migration, turn.me)))
    return replace(phase, unannounced=frozenset())


def interrogated(turn: RedistributeTurn, phase: Interrogating, event: Interrogated) -> Started:
    """The sets go out: what the operators know, and what has passed since they were asked (D2)."""
    if phase.aborted:
        return _keep(turn, phase.migration)
    migration = phase.migration
    known = event.keys if _is_set(event.keys) else key_set(event.keys)
    keys = with_more(known, *(phase.recorded if turn.by.d2_what_passes_is_listed else ()))
    holding = _next_hold(keys, migration.rescale.after, keys_max=1)
    for peer in _peers(turn, migration):
        turn.tell(peer, Sets(version=migration.version, whitelist=keys[holding:], hold=keys[:holding]))
    view = migration.views[turn.me].listed(keys, holding)
    if not len(keys) and not turn.by.d3_final_of_nothing:
        return Settling(migration=migration.with_view(turn.me, view.moved_on(NO_KEYS, 0)))
    return Collecting(
        migration=migration.with_view(turn.me, view), own=turn.me, unfinal=frozenset(_peers(turn, migration))
    )


def final(turn: RedistributeTurn, phase: Collecting, event: Received) -> Started:
    """One more distributor sends no rows of the hold any more. When it is the last, the hold can be collected."""
    message = event.message
    assert isinstance(message, Final)
    if event.sender not in phase.unfinal or not np.array_equal(message.keys, phase.hold):
        raise ProtocolError(f"worker {event.sender} is final of {message.keys}; {turn.me} has {phase.hold} on hold")
    phase = replace(phase, unfinal=phase.unfinal - {event.sender})
    if phase.unfinal:
        return phase
    if phase.aborted:
        return _keep(turn, phase.migration)
    return phase if len(phase.hold) else _move_on(turn, phase, None)


def may_collect(by_all: bool, phase: Collecting) -> bool:
    """Whether the keys on hold can be collected. by_all: D8."""
    peers = len(phase.migration.members) - 1
    final = not phase.unfinal if by_all else len(phase.unfinal) < peers
    return final and not phase.collecting and not phase.aborted and len(phase.hold) > 0


def collect(turn: RedistributeTurn, phase: Collecting, event: CollectAsked) -> Collecting:
    """The hold is collected; the next will have up to ``keys_max`` keys."""
    if not may_collect(turn.by.d8_all_are_final, phase):
        raise IllegalEvent(f"worker {turn.me} cannot collect {phase.hold}: {sorted(phase.unfinal)} are not final")
    turn.say(Collect(keys=phase.hold))
    return replace(phase, collecting=True, keys_max=event.keys_max)


def collected(turn: RedistributeTurn, phase: Collecting, event: Collected) -> Started:
    """The keys on hold go to their new owner, and everybody is told."""
    if not phase.collecting or not np.array_equal(event.keys, phase.hold):
        raise ProtocolError(f"worker {turn.me} holds {phase.hold}, but was given the state of {event.keys}")
    if turn.by.d4_one_copy_of_state:
        acquire = Acquire(version=phase.migration.version, keys=event.keys, state=event.state)
        turn.send(new_owner(phase.migration, event.keys), acquire)
    return _move_on(turn, phase, event.state)


def new_owner(migration: Migration, keys: Hashes) -> WorkerId:
    """Of keys that go together; there is one at least."""
    return WorkerId(int(owners_in(migration.rescale.after, keys[:1])[0]))


def _move_on(turn: RedistributeTurn, phase: Collecting, state: object) -> Started:
    """REDISTRIBUTE to all; it closes the sets, if they were open. The next keys are on hold from now on.

    state: of the keys that were on hold, None if there were none.
    """
    migration, view, moved = phase.migration, phase.view, phase.hold
    added = _added(turn, phase)
    left = view.after_hold(added)
    holding = _next_hold(left, migration.rescale.after, phase.keys_max)
    for peer in _peers(turn, migration):
        message = Redistribute(version=migration.version, keys=moved, following=left[:holding], added=added)
        turn.tell(peer, message if turn.by.d4_one_copy_of_state else replace(message, state=state))
    if len(moved):
        if not turn.by.d4_one_copy_of_state:
            turn.send(new_owner(migration, moved), Acquire(version=migration.version, keys=moved, state=state))
        turn.say(Drop(keys=moved))
    phase = replace(
        phase,
        migration=migration.with_view(turn.me, view.moved_on(left, holding)),
        unfinal=frozenset(_peers(turn, migration)) if holding else frozenset(),
        collecting=False,
        recorded=(),
    )
    phase = release(turn, phase, turn.me)
    return phase if holding else Settling(migration=phase.migration)


def _is_set(keys: Hashes) -> bool:
    return bool((keys[1:] > keys[:-1]).all())


def _added(turn: RedistributeTurn, phase: Collecting) -> Hashes:
    """D2: the keys met since the sets went out; every X was final of them when it was final of the first hold."""
    if phase.view.stage is Stage.CLOSED or not turn.by.d2_what_passes_is_listed:
        return NO_KEYS
    recorded = key_set(*phase.recorded)
    return recorded[~contains(phase.view.keys, recorded)]


def _next_hold(keys: Hashes, after: VnodeMap, keys_max: int) -> int:
    """How many of the first keys go together: up to ``keys_max``, all to one new owner."""
    if not len(keys):
        return 0
    owners = owners_in(after, keys[:keys_max])
    return int(np.argmax(np.append(owners != owners[0], True)))


def abort(turn: RedistributeTurn, phase: Started, event: AbortAsked) -> Started:
    """D11: an old owner that has not begun keeps all; one that has goes on to its end, for X's go by F' already."""
    if event.version != phase.migration.version:
        raise IllegalEvent(f"worker {turn.me} moves to version {phase.migration.version}, not {event.version}")
    if isinstance(phase, Interrogating):  # what was asked for is on its way, and is waited for
        return replace(phase, aborted=True)
    if isinstance(phase, Settling) or (phase.begun and turn.by.d11_begun_is_finished) or phase.collecting:
        return phase
    return replace(phase, aborted=True) if phase.unfinal else _keep(turn, phase.migration)


def _keep(turn: RedistributeTurn, migration: Migration) -> Settling:
    """Everybody has started and is final of what was on hold: no message of theirs is on its way."""
    for peer in _peers(turn, migration):
        turn.send(peer, Kept(version=migration.version, vnodes=own_vnodes(migration, turn.me)))
    kept = replace(migration.views[turn.me], stage=Stage.KEPT, keys=NO_KEYS, holding=0)
    return release(turn, Settling(migration=migration.with_view(turn.me, kept)), turn.me)


def _peers(turn: RedistributeTurn, migration: Migration) -> tuple[WorkerId, ...]:
    return tuple(member for member in migration.members if member != turn.me)
