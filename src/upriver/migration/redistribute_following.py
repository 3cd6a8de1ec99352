"""A distributor's part in ``redistribute`` (the document's X): it tells every old owner, and follows what each says."""

from dataclasses import replace

import numpy as np

from upriver.errors import ProtocolError
from upriver.migration.actions import ReportSettled, TakeState
from upriver.migration.events import Received, RescaleAnnounced
from upriver.migration.messages import Acquire, Kept
from upriver.migration.redistribute_giving import ask_if_announced, new_owner, own_vnodes
from upriver.migration.redistribute_messages import Final, Redistribute, Scaleup, Sets, Shutdown
from upriver.migration.redistribute_phases import (
    Interrogating,
    Migration,
    Normal,
    Phase,
    Settling,
    Stage,
    Started,
    StartedPhase,
    View,
    with_view,
)
from upriver.migration.redistribute_routing import release
from upriver.migration.redistribute_turn import RedistributeTurn
from upriver.state.keysets import NO_KEYS


def announced(turn: RedistributeTurn, phase: Normal, event: RescaleAnnounced) -> Started:
    """The rescale begins here: every old owner is told, and goes on as before until it answers."""
    if event.before != phase.map or event.version != phase.map.version + 1:
        raise ProtocolError(f"worker {turn.me} is at map {phase.map.version}: cannot go to {event.version} from here")
    owners = sorted({old for old, _ in event.before.diff(event.after).values()})
    members = tuple(sorted({*event.old, *event.new}))
    for owner in owners:
        if owner != turn.me:
            stays = owner in event.new
            turn.tell(owner, Scaleup(version=event.version) if stays else Shutdown(version=event.version))
    migration = Migration(rescale=event, members=members, views={owner: View() for owner in owners})
    if turn.me not in owners:
        if phase.announced_by:
            raise ProtocolError(f"worker {turn.me} has nothing to give, but {sorted(phase.announced_by)} asked for it")
        return Settling(migration=migration)
    unannounced = frozenset(members) - {turn.me} - phase.announced_by
    return ask_if_announced(turn, Interrogating(migration=migration, unannounced=unannounced))


def announced_early(turn: RedistributeTurn, phase: Normal, event: Received) -> Normal:
    """A peer has started a rescale that was not announced here yet."""
    if event.message.version <= phase.map.version or event.sender in phase.announced_by:
        raise ProtocolError(f"worker {event.sender} announced a rescale to {turn.me} twice, or one that is over")
    return replace(phase, announced_by=phase.announced_by | {event.sender})


def sets(turn: RedistributeTurn, phase: StartedPhase, event: Received) -> StartedPhase:
    """Its whitelist still goes to the old owner, its hold is stored; all else waits for the sets to be closed (D1)."""
    message = event.message
    assert isinstance(message, Sets)
    view = _view(turn, phase.migration, event, Stage.ANNOUNCED)
    view = view.listed(np.concatenate((message.hold, message.whitelist)), len(message.hold))
    if len(message.whitelist) and not (len(message.hold) and message.hold[-1] < message.whitelist[0]):
        raise ProtocolError(f"worker {event.sender} has {message.hold} on hold, which are not its first keys")
    if not len(view.keys) and not turn.by.d3_final_of_nothing:
        return with_view(phase, event.sender, view.moved_on(NO_KEYS, 0))
    turn.tell(event.sender, Final(version=message.version, keys=message.hold))
    return with_view(phase, event.sender, view)


def redistribute(turn: RedistributeTurn, phase: StartedPhase, event: Received) -> StartedPhase:
    """``keys`` are the new owner's: what was stored of them goes there, then FINAL of the next to the old owner."""
    message = event.message
    assert isinstance(message, Redistribute)
    view = _view(turn, phase.migration, event, Stage.LISTED, Stage.CLOSED)
    left = view.after_hold(message.added)
    holding = len(message.following)
    if not np.array_equal(message.keys, view.hold) or not np.array_equal(message.following, left[:holding]):
        raise ProtocolError(f"worker {event.sender} gave {message.keys}, but {view.hold} were on hold")
    if not turn.by.d4_one_copy_of_state and len(message.keys):
        _pass_state_on(turn, phase.migration, message)
    phase = release(turn, with_view(phase, event.sender, view.moved_on(left, holding)), event.sender)
    if holding:
        turn.tell(event.sender, Final(version=message.version, keys=message.following))
    return phase


def _pass_state_on(turn: RedistributeTurn, migration: Migration, message: Redistribute) -> None:
    """As published: every X sends the state to the new owner, ahead of the rows that it has stored."""
    target = new_owner(migration, message.keys)
    if target == turn.me:
        turn.say(TakeState(keys=message.keys, state=message.state))
    else:
        turn.send(target, Acquire(version=message.version, keys=message.keys, state=message.state))


def kept(turn: RedistributeTurn, phase: StartedPhase, event: Received) -> StartedPhase:
    """The old owner keeps all that it had: what was stored goes to it after all."""
    message = event.message
    assert isinstance(message, Kept)
    stages = [Stage.ANNOUNCED, Stage.LISTED] + [Stage.CLOSED] * (not turn.by.d11_begun_is_finished)
    view = _view(turn, phase.migration, event, *stages)
    if message.vnodes != own_vnodes(phase.migration, event.sender):
        raise ProtocolError(f"worker {event.sender} keeps {message.vnodes}, which is not all that it was to give")
    view = replace(view, stage=Stage.KEPT, keys=NO_KEYS, holding=0)
    return release(turn, with_view(phase, event.sender, view), event.sender)


def _view(turn: RedistributeTurn, migration: Migration, event: Received, *stages: Stage) -> View:
    view = migration.views.get(event.sender)
    if view is None or view.stage not in stages or view.over:
        raise ProtocolError(f"worker {event.sender} told {turn.me} {type(event.message).__name__} out of turn")
    return view


def settle_if_over(turn: RedistributeTurn, phase: Phase) -> Phase:
    """D12: the rescale is over here when nothing is left to give, and every old owner is through."""
    if not isinstance(phase, Settling):
        return phase
    migration = phase.migration
    leaves = turn.me not in migration.rescale.new
    waits = not all(view.over for view in migration.views.values())
    if waits and not (leaves and not turn.by.d12_settle_when_all_told):
        return phase
    keepers = [owner for owner, view in migration.views.items() if view.stage is Stage.KEPT]
    kept = tuple(sorted(vnode for owner in keepers for vnode in own_vnodes(migration, owner)))
    turn.say(ReportSettled(version=migration.version, kept=kept))
    return Normal(map=migration.rescale.after.keeping(migration.rescale.before, kept))


def rows_waiting(phase: Phase) -> int:
    """Rows stored for an old owner's answer, or parked ahead of their keys' state."""
    return sum(view.rows_waiting for view in phase.migration.views.values()) if isinstance(phase, Started) else 0
