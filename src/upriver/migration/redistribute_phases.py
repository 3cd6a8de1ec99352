"""Where rows go under ``redistribute``: masks over a batch, which never overlap and together cover it.

A row's distributor sends it either to its old owner or to its new one, or stores it: there is no detour. A and B are
the row's old and new owner. Rule names are those of ``docs/internals/redistribute.md``.

The phases of the redistribute machine, and a distributor's view of each old owner. All are values.

``RedistributeNormal`` -> (``RedistributeInterrogating`` -> ``RedistributeCollecting``, for an old owner) ->
``RedistributeSettling`` -> ``RedistributeNormal``; ``RedistributeNormal`` -> ``Left`` for a worker that is retired.

``RedistributeTurn``: one step of a redistribute machine in the making.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Self, TypeVar

import numpy as np

from upriver.errors import ProtocolError
from upriver.hashing import Hashes
from upriver.ids import MapVersion, WorkerId
from upriver.migration.events import RescaleAnnounced, Rule
from upriver.migration.messages import ForwardedRows, RedistributeMessage
from upriver.migration.phases import Left, Parked, Turn, Workers
from upriver.migration.rules import ALL_ON, RedistributeRules
from upriver.state.vectors import NO_KEYS, Mask, contains, key_set
from upriver.vnodes import VnodeMap, vnodes_of


def with_more(keys: Hashes, *more: Hashes) -> Hashes:
    """The set ``keys`` and these hashes, in any order and with any repeats; without sorting all of the set again."""
    new = key_set(*more)
    new = new[~contains(keys, new)]
    return np.insert(keys, np.searchsorted(keys, new), new) if len(new) else keys


class Stage(IntEnum):
    """How far an old owner's keys have gone, as a distributor sees it."""

    ANNOUNCED = 0
    """The distributor has told it SHUTDOWN or SCALEUP; all rows still go to it."""
    LISTED = 1
    """Its sets have come; it may add keys that are in neither set."""
    CLOSED = 2
    """A key that is in no set is its new owner's."""
    KEPT = 3
    """The rescale was aborted before it began: nothing moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerView:
    """One old owner as one distributor sees it.

    keys: what it still has to give, in that order: first the ``holding`` keys on hold, then the whitelist. waiting:
    rows that can go neither to the old owner nor to the new one yet, and where they came from.
    """

    stage: Stage = Stage.ANNOUNCED
    keys: Hashes = field(default_factory=lambda: NO_KEYS)
    holding: int = 0
    waiting: tuple[Parked, ...] = ()

    @property
    def hold(self) -> Hashes:
        return self.keys[: self.holding]

    @property
    def whitelist(self) -> Hashes:
        return self.keys[self.holding :]

    @property
    def over(self) -> bool:
        """Whether no more messages about its keys will come."""
        return self.stage is Stage.KEPT or (self.stage is Stage.CLOSED and not len(self.keys))

    @property
    def rows_waiting(self) -> int:
        return sum(len(parked.rows) for parked in self.waiting)

    def stays(self, hashes: Hashes) -> Mask:
        """For each of its rows, whether it still goes to the old owner."""
        if self.stage in (Stage.ANNOUNCED, Stage.KEPT):
            return np.ones(len(hashes), np.bool_)
        return contains(self.whitelist, hashes)

    def given(self, hashes: Hashes) -> Mask:
        """For each of its rows, whether its key is the new owner's."""
        if self.stage is not Stage.CLOSED:
            return np.zeros(len(hashes), np.bool_)
        return ~contains(self.keys, hashes)

    def listed(self, keys: Hashes, holding: int) -> Self:
        return replace(self, stage=Stage.LISTED, keys=keys, holding=holding)

    def after_hold(self, added: Hashes) -> Hashes:
        """What is left to give once the keys on hold have gone."""
        return with_more(self.whitelist, added)

    def moved_on(self, keys: Hashes, holding: int) -> Self:
        return replace(self, stage=Stage.CLOSED, keys=keys, holding=holding)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedistributeMigration:
    """One rescale as this worker sees it. views: of every worker that has vnodes to give."""

    rescale: RescaleAnnounced
    members: tuple[WorkerId, ...]
    views: Mapping[WorkerId, OwnerView]

    @property
    def version(self) -> MapVersion:
        return self.rescale.version

    def with_view(self, owner: WorkerId, view: OwnerView) -> Self:
        return replace(self, views={**self.views, owner: view})


@dataclass(frozen=True, slots=True, kw_only=True)
class RedistributeNormal:
    """Rows go by ``map``. announced_by: workers that said SHUTDOWN or SCALEUP of a rescale not announced here yet."""

    map: VnodeMap
    announced_by: frozenset[WorkerId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RedistributeInterrogating:
    """This worker has vnodes to give. Once ``unannounced`` is empty its operators are asked which keys have state.

    unannounced: all and only the distributors whose SHUTDOWN or SCALEUP is missing. recorded: the hash64 of rows
    passed down since the operators were asked. aborted: this worker will keep everything.
    """

    migration: RedistributeMigration
    unannounced: frozenset[WorkerId]
    recorded: tuple[Hashes, ...] = ()
    aborted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RedistributeCollecting:
    """The keys of this worker's own view move, those on hold first.

    unfinal: all and only the distributors whose FINAL of the hold is missing. collecting: the operators were asked for
    the state of the hold. keys_max: of the next hold. recorded: as long as the sets are not closed, the hash64 of rows
    passed down. aborted: this worker will keep everything.
    """

    migration: RedistributeMigration
    own: WorkerId
    unfinal: frozenset[WorkerId]
    collecting: bool = False
    keys_max: int = 1
    recorded: tuple[Hashes, ...] = ()
    aborted: bool = False

    @property
    def view(self) -> OwnerView:
        """This worker's own keys."""
        return self.migration.views[self.own]

    @property
    def hold(self) -> Hashes:
        return self.view.hold

    @property
    def whitelist(self) -> Hashes:
        return self.view.whitelist

    @property
    def begun(self) -> bool:
        """Whether some state has left, or may leave at any moment."""
        return self.collecting or self.view.stage is Stage.CLOSED


@dataclass(frozen=True, slots=True, kw_only=True)
class RedistributeSettling:
    """Nothing to give; other old owners are not through."""

    migration: RedistributeMigration


Started = RedistributeInterrogating | RedistributeCollecting | RedistributeSettling
Phase = RedistributeNormal | Started | Left

StartedPhase = TypeVar("StartedPhase", bound=Started)


def with_view(phase: StartedPhase, owner: WorkerId, view: OwnerView) -> StartedPhase:
    """The same phase, with another view of one old owner."""
    return replace(phase, migration=phase.migration.with_view(owner, view))


@dataclass(slots=True)
class RedistributeTurn(Turn):
    """A turn that goes by the rules of redistribute: ``by``."""

    by: RedistributeRules = ALL_ON

    def tell(self, to: WorkerId, message: RedistributeMessage) -> None:
        self.send(to, message)


def owners_in(map: VnodeMap, hashes: Hashes) -> Workers:
    """The owner of each hash64 by this map."""
    return map.owners_of(vnodes_of(hashes, len(map.owners)))


def route_own_normally(turn: RedistributeTurn, phase: RedistributeNormal, rows: ForwardedRows) -> None:
    """N1: A = me: down. N2: else to A."""
    owners = owners_in(phase.map, rows.hash64)
    here = owners == turn.me
    turn.pass_down(rows, here, Rule.N1)
    turn.send_rows(phase.map.version, rows, ~here, owners)


def route_received_normally(
    turn: RedistributeTurn, phase: RedistributeNormal, rows: ForwardedRows, sender: WorkerId
) -> None:
    """N1: down, even if the sender has started: no row goes by F' before this worker has itself started
    (redistribute.all_have_announced).

    Raises ProtocolError for rows that are not for this worker.
    """
    owners = owners_in(phase.map, rows.hash64)
    misled = owners != turn.me
    if misled.any():
        raise ProtocolError(f"worker {turn.me} got rows from {sender} that belong to {np.unique(owners[misled])}")
    turn.pass_down(rows, ~misled, Rule.N1)


@dataclass(frozen=True, slots=True)
class _RedistributePlaces:
    """Per row: A, B, and whether they differ."""

    old: Workers
    new: Workers
    moving: Mask


def _places(migration: RedistributeMigration, rows: ForwardedRows) -> _RedistributePlaces:
    old = owners_in(migration.rescale.before, rows.hash64)
    new = owners_in(migration.rescale.after, rows.hash64)
    return _RedistributePlaces(old, new, old != new)


def route_own(turn: RedistributeTurn, phase: StartedPhase, rows: ForwardedRows) -> StartedPhase:
    """From upstream here. I1.2, I2: rows that do not move go to A as ever; those that move go by their old owner's
    view."""
    places = _places(phase.migration, rows)
    here = places.old == turn.me
    turn.pass_down(rows, ~places.moving & here, Rule.I1_2)
    turn.send_rows(phase.migration.version, rows, ~places.moving & ~here, places.old)
    for owner in phase.migration.views:
        mask = places.moving & (places.old == owner)
        if mask.any():
            phase = _route_own_of(turn, phase, owner, rows.filtered(mask))
    return phase


def route_received(turn: RedistributeTurn, phase: StartedPhase, rows: ForwardedRows, sender: WorkerId) -> StartedPhase:
    """From a peer. A = me: down: the sender knows the sets, and this worker has the state. B = me: by this worker's
    view of A.

    Raises ProtocolError for rows that are not for this worker by either map.
    """
    places = _places(phase.migration, rows)
    here = places.old == turn.me
    misled = ~here & ~(places.moving & (places.new == turn.me))
    if misled.any():
        raise ProtocolError(f"worker {turn.me} got rows from {sender} that belong to {np.unique(places.old[misled])}")
    turn.pass_down(rows, here & ~places.moving, Rule.I1_2)
    phase = _take_as_old_owner(turn, phase, rows, here & places.moving)
    for owner in phase.migration.views if not here.all() else ():
        mask = ~here & (places.old == owner)
        if mask.any():
            phase = _route_straight_of(turn, phase, owner, rows.filtered(mask), sender)
    return phase


def release(turn: RedistributeTurn, phase: StartedPhase, owner: WorkerId) -> StartedPhase:
    """This old owner's view has changed: route the rows that waited for that anew, in order."""
    view = phase.migration.views[owner]
    phase = with_view(phase, owner, replace(view, waiting=()))
    for parked in view.waiting:
        if parked.origin == turn.me:
            phase = _route_own_of(turn, phase, owner, parked.rows)
        else:
            phase = _route_straight_of(turn, phase, owner, parked.rows, parked.origin)
    return phase


def _route_own_of(turn: RedistributeTurn, phase: StartedPhase, owner: WorkerId, rows: ForwardedRows) -> StartedPhase:
    """Moving rows of one A. I2 (I1.1, C1.1 if A = me): announced, kept or whitelisted: to A.
    C1.2: on hold, or in no set and the sets are open (redistribute.new_keys_wait): stored. C3.3 (C3.2 if B = me):
    given: to B."""
    migration = phase.migration
    given = _given(turn, migration, owner, rows.hash64)
    stays = migration.views[owner].stays(rows.hash64) & ~given
    if owner == turn.me:
        phase = _take_as_old_owner(turn, phase, rows, stays)
    elif stays.any():
        turn.send_rows(migration.version, rows, stays, np.full(len(rows), owner))
    if given.any():
        new = owners_in(migration.rescale.after, rows.hash64)
        turn.pass_down(rows, given & (new == turn.me), Rule.C3_2)
        turn.send_rows(migration.version, rows, given & (new != turn.me), new)
    return _waiting(phase, owner, Parked(turn.me, rows), ~(stays | given))


def _route_straight_of(
    turn: RedistributeTurn, phase: StartedPhase, owner: WorkerId, rows: ForwardedRows, sender: WorkerId
) -> StartedPhase:
    """C3.2: B = me, and a peer knows already that the key is mine: parked until I know it too
    (redistribute.straight_rows_wait), then down."""
    given = _given(turn, phase.migration, owner, rows.hash64) | (not turn.by.redistribute_straight_rows_wait)
    turn.pass_down(rows, given, Rule.C3_2)
    return _waiting(phase, owner, Parked(sender, rows), ~given)


def _waiting(phase: StartedPhase, owner: WorkerId, parked: Parked, mask: Mask) -> StartedPhase:
    if not mask.any():
        return phase
    view = phase.migration.views[owner]
    waiting = (*view.waiting, Parked(parked.origin, parked.rows.filtered(mask)))
    return with_view(phase, owner, replace(view, waiting=waiting))


def _given(turn: RedistributeTurn, migration: RedistributeMigration, owner: WorkerId, hashes: Hashes) -> Mask:
    """For each of an old owner's moving rows, whether it belongs to the new owner by now (redistribute.new_keys_wait,
    redistribute.each_owner_by_itself)."""
    view = migration.views[owner]
    early = view.stage is Stage.LISTED and not turn.by.redistribute_new_keys_wait
    early |= view.stage is Stage.ANNOUNCED and not turn.by.redistribute_each_owner_by_itself and _any_listed(migration)
    return (replace(view, stage=Stage.CLOSED) if early else view).given(hashes)


def _any_listed(migration: RedistributeMigration) -> bool:
    return any(view.stage is not Stage.ANNOUNCED for view in migration.views.values())


def _take_as_old_owner(turn: RedistributeTurn, phase: StartedPhase, rows: ForwardedRows, mask: Mask) -> StartedPhase:
    """I1.1: the operators were asked, or the sets are open: recorded (redistribute.what_passes_is_listed), down. C1.1:
    else: down."""
    if not mask.any():
        return phase
    recording = isinstance(phase, RedistributeInterrogating) and not phase.unannounced
    recording |= isinstance(phase, RedistributeCollecting) and _is_open(phase.view)
    turn.pass_down(rows, mask, Rule.I1_1 if recording else Rule.C1_1)
    if recording and isinstance(phase, RedistributeInterrogating | RedistributeCollecting):
        return replace(phase, recorded=(*phase.recorded, rows.hash64[mask]))
    return phase


def _is_open(view: OwnerView) -> bool:
    return view.stage is Stage.LISTED
