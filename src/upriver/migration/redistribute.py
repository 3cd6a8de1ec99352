"""The redistribute machine: document 001 with its races closed, behind the interface of ``icadd.Distributor``.

Theory of operation. Every worker is a distributor (X), and each worker with vnodes to give is an old owner (Z). When
the rescale is announced, X says SHUTDOWN or SCALEUP to every Z. A Z that has heard all X interrogates its operators
and sends its sets to every X: the keys that it has state of, the first of them on hold. X stores rows of the hold,
sends those of the whitelist to Z as before, and says FINAL of the hold. When all X are final, Z collects the hold and
sends its state to the new owner. It sends REDISTRIBUTE to all: those keys have gone, the next are on hold. So every
row takes one hop, and the X that stores a key's rows keeps their order.

Phases: :mod:`upriver.migration.redistribute_phases`. Rules: ``docs/internals/redistribute.md``.

An old owner's part (the document's Z): sets, then the keys of each hold in turn.

A distributor's part (the document's X): it tells every old owner, and follows what each says.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from upriver.errors import IllegalEvent, ProtocolError
from upriver.hashing import Hashes
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
    Received,
    ReportSettled,
    RescaleAnnounced,
    RowsArrived,
    TakeState,
)
from upriver.migration.icadd import gone, leave
from upriver.migration.messages import Acquire, Bye, Final, Kept, Redistribute, RowsSent, Scaleup, Sets, Shutdown
from upriver.migration.phases import Left
from upriver.migration.redistribute_phases import (
    OwnerView,
    Phase,
    RedistributeCollecting,
    RedistributeInterrogating,
    RedistributeMigration,
    RedistributeNormal,
    RedistributeSettling,
    RedistributeTurn,
    Stage,
    Started,
    StartedPhase,
    owners_in,
    release,
    route_own,
    route_own_normally,
    route_received,
    route_received_normally,
    with_more,
    with_view,
)
from upriver.migration.rules import ALL_ON, RedistributeRules
from upriver.state.vectors import NO_KEYS, contains, key_set
from upriver.vnodes import VnodeMap


def own_vnodes(migration: RedistributeMigration, owner: WorkerId) -> tuple[VnodeId, ...]:
    """The vnodes that this old owner gives away, in order."""
    moves = migration.rescale.before.diff(migration.rescale.after)
    return tuple(vnode for vnode, (old, _) in moves.items() if old == owner)


def may_collect(by_all: bool, phase: RedistributeCollecting) -> bool:
    """Whether the keys on hold can be collected. by_all: redistribute.all_are_final."""
    peers = len(phase.migration.members) - 1
    final = not phase.unfinal if by_all else len(phase.unfinal) < peers
    return final and not phase.collecting and not phase.aborted and len(phase.hold) > 0


def new_owner(migration: RedistributeMigration, keys: Hashes) -> WorkerId:
    """The new owner of keys that go together, at least one."""
    return WorkerId(int(owners_in(migration.rescale.after, keys[:1])[0]))


def _is_set(keys: Hashes) -> bool:
    return bool((keys[1:] > keys[:-1]).all())


def _next_hold(keys: Hashes, after: VnodeMap, keys_max: int) -> int:
    """How many of the first keys go together: up to ``keys_max``, all to one new owner."""
    if not len(keys):
        return 0
    owners = owners_in(after, keys[:keys_max])
    return int(np.argmax(np.append(owners != owners[0], True)))


def rows_waiting(phase: Phase) -> int:
    """Rows stored for an old owner's answer, or parked ahead of their keys' state."""
    return sum(view.rows_waiting for view in phase.migration.views.values()) if isinstance(phase, Started) else 0


class RedistributeStep(RedistributeTurn):
    """One step of a redistributor: each method handles an event in a phase, and returns the next phase."""

    __slots__ = ()

    def announced_by(self, phase: RedistributeInterrogating, event: Received) -> Started:
        """SHUTDOWN or SCALEUP of one more distributor."""
        if event.sender not in phase.unannounced:
            raise ProtocolError(f"worker {event.sender} announced the rescale to {self.me} twice")
        return self.ask_if_announced(replace(phase, unannounced=phase.unannounced - {event.sender}))

    def ask_if_announced(self, phase: RedistributeInterrogating) -> Started:
        """redistribute.all_have_announced: ask the operators when every distributor has started; no worker gets rows by
        F' before that."""
        if phase.unannounced and self.by.redistribute_all_have_announced:
            return phase
        if phase.aborted:
            return self._keep(phase.migration)
        self.say(Interrogate(vnodes=own_vnodes(phase.migration, self.me)))
        return replace(phase, unannounced=frozenset())

    def interrogated(self, phase: RedistributeInterrogating, event: Interrogated) -> Started:
        """The sets go out: what the operators know, and what has passed since they were asked
        (redistribute.what_passes_is_listed)."""
        if phase.aborted:
            return self._keep(phase.migration)
        migration = phase.migration
        known = event.keys if _is_set(event.keys) else key_set(event.keys)
        keys = with_more(known, *(phase.recorded if self.by.redistribute_what_passes_is_listed else ()))
        holding = _next_hold(keys, migration.rescale.after, keys_max=1)
        for peer in self._peers(migration):
            self.tell(peer, Sets(version=migration.version, whitelist=keys[holding:], hold=keys[:holding]))
        view = migration.views[self.me].listed(keys, holding)
        if not len(keys) and not self.by.redistribute_final_of_nothing:
            return RedistributeSettling(migration=migration.with_view(self.me, view.moved_on(NO_KEYS, 0)))
        return RedistributeCollecting(
            migration=migration.with_view(self.me, view), own=self.me, unfinal=frozenset(self._peers(migration))
        )

    def final(self, phase: RedistributeCollecting, event: Received) -> Started:
        """One more distributor sends no rows of the hold any more. When it is the last, the hold can be collected."""
        message = event.message
        assert isinstance(message, Final)
        if event.sender not in phase.unfinal or not np.array_equal(message.keys, phase.hold):
            raise ProtocolError(f"worker {event.sender} is final of {message.keys}; {self.me} has {phase.hold} on hold")
        phase = replace(phase, unfinal=phase.unfinal - {event.sender})
        if phase.unfinal:
            return phase
        if phase.aborted:
            return self._keep(phase.migration)
        return phase if len(phase.hold) else self._move_on(phase, None)

    def collect(self, phase: RedistributeCollecting, event: CollectAsked) -> RedistributeCollecting:
        """The hold is collected; the next will have up to ``keys_max`` keys."""
        if not may_collect(self.by.redistribute_all_are_final, phase):
            raise IllegalEvent(f"worker {self.me} cannot collect {phase.hold}: {sorted(phase.unfinal)} are not final")
        self.say(Collect(keys=phase.hold))
        return replace(phase, collecting=True, keys_max=event.keys_max)

    def collected(self, phase: RedistributeCollecting, event: Collected) -> Started:
        """The keys on hold go to their new owner, and this worker tells every peer."""
        if not phase.collecting or not np.array_equal(event.keys, phase.hold):
            raise ProtocolError(f"worker {self.me} holds {phase.hold}, but was given the state of {event.keys}")
        if self.by.redistribute_one_copy_of_state:
            acquire = Acquire(version=phase.migration.version, keys=event.keys, state=event.state)
            self.send(new_owner(phase.migration, event.keys), acquire)
        return self._move_on(phase, event.state)

    def _move_on(self, phase: RedistributeCollecting, state: object) -> Started:
        """REDISTRIBUTE to all; it closes the sets, if they were open. The next keys are on hold from now on.

        state: of the keys that were on hold, None if there were none.
        """
        migration, view, moved = phase.migration, phase.view, phase.hold
        added = self._added(phase)
        left = view.after_hold(added)
        holding = _next_hold(left, migration.rescale.after, phase.keys_max)
        for peer in self._peers(migration):
            message = Redistribute(version=migration.version, keys=moved, following=left[:holding], added=added)
            self.tell(peer, message if self.by.redistribute_one_copy_of_state else replace(message, state=state))
        if len(moved):
            if not self.by.redistribute_one_copy_of_state:
                self.send(new_owner(migration, moved), Acquire(version=migration.version, keys=moved, state=state))
            self.say(Drop(keys=moved))
        phase = replace(
            phase,
            migration=migration.with_view(self.me, view.moved_on(left, holding)),
            unfinal=frozenset(self._peers(migration)) if holding else frozenset(),
            collecting=False,
            recorded=(),
        )
        phase = release(self, phase, self.me)
        return phase if holding else RedistributeSettling(migration=phase.migration)

    def _added(self, phase: RedistributeCollecting) -> Hashes:
        """redistribute.what_passes_is_listed: the keys met since the sets went out. Every X was final of them when it
        was final of the first hold."""
        if phase.view.stage is Stage.CLOSED or not self.by.redistribute_what_passes_is_listed:
            return NO_KEYS
        recorded = key_set(*phase.recorded)
        return recorded[~contains(phase.view.keys, recorded)]

    def abort(self, phase: Started, event: AbortAsked) -> Started:
        """redistribute.begun_is_finished: an old owner that has not begun keeps all. An old owner that has begun goes
        on to its end, because every X goes by F' already."""
        if event.version != phase.migration.version:
            raise IllegalEvent(f"worker {self.me} moves to version {phase.migration.version}, not {event.version}")
        if isinstance(phase, RedistributeInterrogating):  # the answer is on its way: wait for it
            return replace(phase, aborted=True)
        if (
            isinstance(phase, RedistributeSettling)
            or (phase.begun and self.by.redistribute_begun_is_finished)
            or phase.collecting
        ):
            return phase
        return replace(phase, aborted=True) if phase.unfinal else self._keep(phase.migration)

    def _keep(self, migration: RedistributeMigration) -> RedistributeSettling:
        """Every peer has started and is final of what was on hold: none of their messages is on its way."""
        for peer in self._peers(migration):
            self.send(peer, Kept(version=migration.version, vnodes=own_vnodes(migration, self.me)))
        kept = replace(migration.views[self.me], stage=Stage.KEPT, keys=NO_KEYS, holding=0)
        return release(self, RedistributeSettling(migration=migration.with_view(self.me, kept)), self.me)

    def _peers(self, migration: RedistributeMigration) -> tuple[WorkerId, ...]:
        return tuple(member for member in migration.members if member != self.me)

    def announced(self, phase: RedistributeNormal, event: RescaleAnnounced) -> Started:
        """The rescale begins here: every old owner is told, and goes on as before until it answers."""
        if event.before != phase.map or event.version != phase.map.version + 1:
            raise ProtocolError(
                f"worker {self.me} is at map {phase.map.version}: cannot go to {event.version} from here"
            )
        owners = sorted({old for old, _ in event.before.diff(event.after).values()})
        members = tuple(sorted({*event.old, *event.new}))
        for owner in owners:
            if owner != self.me:
                stays = owner in event.new
                self.tell(owner, Scaleup(version=event.version) if stays else Shutdown(version=event.version))
        migration = RedistributeMigration(
            rescale=event, members=members, views={owner: OwnerView() for owner in owners}
        )
        if self.me not in owners:
            if phase.announced_by:
                raise ProtocolError(
                    f"worker {self.me} has nothing to give, but {sorted(phase.announced_by)} asked for it"
                )
            return RedistributeSettling(migration=migration)
        unannounced = frozenset(members) - {self.me} - phase.announced_by
        return self.ask_if_announced(RedistributeInterrogating(migration=migration, unannounced=unannounced))

    def announced_early(self, phase: RedistributeNormal, event: Received) -> RedistributeNormal:
        """A peer has started a rescale that was not announced here yet."""
        if event.message.version <= phase.map.version or event.sender in phase.announced_by:
            raise ProtocolError(f"worker {event.sender} announced a rescale to {self.me} twice, or one that is over")
        return replace(phase, announced_by=phase.announced_by | {event.sender})

    def sets(self, phase: StartedPhase, event: Received) -> StartedPhase:
        """Rows of the whitelist still go to the old owner, and rows of the hold are stored. All others wait until the
        sets are closed (redistribute.new_keys_wait)."""
        message = event.message
        assert isinstance(message, Sets)
        view = self._view(phase.migration, event, Stage.ANNOUNCED)
        view = view.listed(np.concatenate((message.hold, message.whitelist)), len(message.hold))
        if len(message.whitelist) and not (len(message.hold) and message.hold[-1] < message.whitelist[0]):
            raise ProtocolError(f"worker {event.sender} has {message.hold} on hold, which are not its first keys")
        if not len(view.keys) and not self.by.redistribute_final_of_nothing:
            return with_view(phase, event.sender, view.moved_on(NO_KEYS, 0))
        self.tell(event.sender, Final(version=message.version, keys=message.hold))
        return with_view(phase, event.sender, view)

    def redistribute(self, phase: StartedPhase, event: Received) -> StartedPhase:
        """``keys`` are the new owner's: their stored rows go there, then FINAL of the next hold to the old owner."""
        message = event.message
        assert isinstance(message, Redistribute)
        view = self._view(phase.migration, event, Stage.LISTED, Stage.CLOSED)
        left = view.after_hold(message.added)
        holding = len(message.following)
        if not np.array_equal(message.keys, view.hold) or not np.array_equal(message.following, left[:holding]):
            raise ProtocolError(f"worker {event.sender} gave {message.keys}, but {view.hold} were on hold")
        if not self.by.redistribute_one_copy_of_state and len(message.keys):
            self._pass_state_on(phase.migration, message)
        phase = release(self, with_view(phase, event.sender, view.moved_on(left, holding)), event.sender)
        if holding:
            self.tell(event.sender, Final(version=message.version, keys=message.following))
        return phase

    def _pass_state_on(self, migration: RedistributeMigration, message: Redistribute) -> None:
        """As published: every X sends the state to the new owner, ahead of the rows that it has stored."""
        target = new_owner(migration, message.keys)
        if target == self.me:
            self.say(TakeState(keys=message.keys, state=message.state))
        else:
            self.send(target, Acquire(version=message.version, keys=message.keys, state=message.state))

    def kept(self, phase: StartedPhase, event: Received) -> StartedPhase:
        """The old owner keeps all that it had: stored rows go to it after all."""
        message = event.message
        assert isinstance(message, Kept)
        stages = [Stage.ANNOUNCED, Stage.LISTED] + [Stage.CLOSED] * (not self.by.redistribute_begun_is_finished)
        view = self._view(phase.migration, event, *stages)
        if message.vnodes != own_vnodes(phase.migration, event.sender):
            raise ProtocolError(f"worker {event.sender} keeps {message.vnodes}, which is not all that it was to give")
        view = replace(view, stage=Stage.KEPT, keys=NO_KEYS, holding=0)
        return release(self, with_view(phase, event.sender, view), event.sender)

    def _view(self, migration: RedistributeMigration, event: Received, *stages: Stage) -> OwnerView:
        view = migration.views.get(event.sender)
        if view is None or view.stage not in stages or view.over:
            raise ProtocolError(f"worker {event.sender} told {self.me} {type(event.message).__name__} out of turn")
        return view

    def settle_if_over(self, phase: Phase) -> Phase:
        """redistribute.settle_when_all_told: the rescale is over here when nothing is left to give, and every old owner
        is through."""
        if not isinstance(phase, RedistributeSettling):
            return phase
        migration = phase.migration
        leaves = self.me not in migration.rescale.new
        waits = not all(view.over for view in migration.views.values())
        if waits and not (leaves and not self.by.redistribute_settle_when_all_told):
            return phase
        keepers = [owner for owner, view in migration.views.items() if view.stage is Stage.KEPT]
        kept = tuple(sorted(vnode for owner in keepers for vnode in own_vnodes(migration, owner)))
        self.say(ReportSettled(version=migration.version, kept=kept))
        return RedistributeNormal(map=migration.rescale.after.keeping(migration.rescale.before, kept))

    def _rows_normally(self, phase: RedistributeNormal, event: RowsArrived) -> Phase:
        route_own_normally(self, phase, event.rows)
        return phase

    def _received_normally(self, phase: RedistributeNormal, event: Received) -> Phase:
        assert isinstance(event.message, RowsSent)
        route_received_normally(self, phase, event.message.rows, event.sender)
        return phase

    def _rows_started(self, phase: Started, event: RowsArrived) -> Phase:
        return route_own(self, phase, event.rows)

    def _received_started(self, phase: Started, event: Received) -> Phase:
        assert isinstance(event.message, RowsSent)
        return route_received(self, phase, event.message.rows, event.sender)

    def _acquired(self, phase: Started | RedistributeNormal, event: Received) -> Phase:
        """State comes ahead of the REDISTRIBUTE that lets rows of its keys down, so the rescale is not over here
        (redistribute.one_copy_of_state)."""
        assert isinstance(event.message, Acquire)
        if isinstance(phase, RedistributeNormal) and self.by.redistribute_one_copy_of_state:
            raise ProtocolError(f"worker {event.sender} sent {self.me} the state of {event.message.keys} too late")
        self.say(TakeState(keys=event.message.keys, state=event.message.state))
        return phase

    def _nothing_to_abort(self, phase: RedistributeNormal | Left, event: AbortAsked) -> Phase:
        if event.version > phase.map.version:
            raise IllegalEvent(f"worker {self.me} at version {phase.map.version} cannot abort {event.version}")
        return phase


class Redistributor:
    """One worker's distributor of one region. ``step`` is the only way to change it; ``phase`` is a value."""

    def __init__(self, me: WorkerId, map: VnodeMap, rules: RedistributeRules = ALL_ON) -> None:
        """map: the one that the worker's peers route by; a joining worker gets it too, though it owns nothing there
        (redistribute.joiner_knows_old_map)."""
        self.me = me
        self.rules = rules
        self.phase: Phase = RedistributeNormal(map=map)

    def step(self, event: Event) -> tuple[Action, ...]:
        """Advance by one event. Raises IllegalEvent where the phase does not allow it, ProtocolError for rows and
        messages that no peer would send if all kept the rules."""
        what = event.message if isinstance(event, Received) else event
        handler = _TABLE.get((type(self.phase), type(what)))
        if handler is None:
            raise IllegalEvent(f"worker {self.me} is {type(self.phase).__name__}: no place for {type(what).__name__}")
        if isinstance(event, Received):
            self._check_version(event)
        turn = RedistributeStep(self.me, by=self.rules)
        self.phase = turn.settle_if_over(handler(turn, self.phase, event))
        return tuple(turn.actions)

    @property
    def can_collect(self) -> bool:
        """Whether ``CollectAsked`` would move a key."""
        return isinstance(self.phase, RedistributeCollecting) and may_collect(
            self.rules.redistribute_all_are_final, self.phase
        )

    @property
    def rows_waiting(self) -> int:
        """Rows stored or parked here: they are in flight (redistribute.waiting_rows_in_flight)."""
        return rows_waiting(self.phase)

    def _check_version(self, event: Received) -> None:
        """Peers are at most one rescale ahead. Only rows, which may be slow, are ever of a rescale that is over."""
        mine, theirs = _version_of(self.phase), event.message.version
        ahead = 1 if isinstance(self.phase, RedistributeNormal) else 0
        if theirs > mine + ahead or (theirs < mine and not isinstance(event.message, RowsSent)):
            what = type(event.message).__name__
            raise ProtocolError(f"worker {self.me} at version {mine} got {what} of version {theirs}")


def _version_of(phase: Phase) -> MapVersion:
    return phase.migration.version if isinstance(phase, Started) else phase.map.version


# A handler's phase and event are those of its key in the table, which no type checker can see.
_Handler = Callable[[RedistributeStep, Any, Any], Phase]

_WHILE_STARTED: Mapping[type, _Handler] = {
    RowsArrived: RedistributeStep._rows_started,
    RowsSent: RedistributeStep._received_started,
    Sets: RedistributeStep.sets,
    Acquire: RedistributeStep._acquired,
    Redistribute: RedistributeStep.redistribute,
    Kept: RedistributeStep.kept,
    AbortAsked: RedistributeStep.abort,
    Bye: gone,
}

_TABLE: Mapping[tuple[type, type], _Handler] = {
    (RedistributeNormal, RowsArrived): RedistributeStep._rows_normally,
    (RedistributeNormal, RowsSent): RedistributeStep._received_normally,
    (RedistributeNormal, Acquire): RedistributeStep._acquired,
    (RedistributeNormal, Shutdown): RedistributeStep.announced_early,
    (RedistributeNormal, Scaleup): RedistributeStep.announced_early,
    (RedistributeNormal, RescaleAnnounced): RedistributeStep.announced,
    (RedistributeNormal, AbortAsked): RedistributeStep._nothing_to_abort,
    (RedistributeNormal, InputClosed): leave,
    (RedistributeNormal, Bye): gone,
    **{
        (phase, what): handler
        for phase in (RedistributeInterrogating, RedistributeCollecting, RedistributeSettling)
        for what, handler in _WHILE_STARTED.items()
    },
    (RedistributeInterrogating, Shutdown): RedistributeStep.announced_by,
    (RedistributeInterrogating, Scaleup): RedistributeStep.announced_by,
    (RedistributeInterrogating, Interrogated): RedistributeStep.interrogated,
    (RedistributeCollecting, Final): RedistributeStep.final,
    (RedistributeCollecting, CollectAsked): RedistributeStep.collect,
    (RedistributeCollecting, Collected): RedistributeStep.collected,
    (Left, AbortAsked): RedistributeStep._nothing_to_abort,
}
