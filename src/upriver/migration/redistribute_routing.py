"""Where rows go under ``redistribute``: masks over a batch, which never overlap and together cover it.

A row's distributor sends it either to its old owner or to its new one, or stores it: there is no detour. A and B are
the row's old and new owner. Rule names are those of ``docs/design/redistribute.md``.
"""

from dataclasses import dataclass, replace

import numpy as np

from upriver.errors import ProtocolError
from upriver.ids import WorkerId
from upriver.migration.actions import Rule
from upriver.migration.messages import Rows
from upriver.migration.phases import Parked
from upriver.migration.redistribute_phases import (
    Collecting,
    Interrogating,
    Migration,
    Normal,
    Stage,
    StartedPhase,
    View,
    with_view,
)
from upriver.migration.redistribute_turn import RedistributeTurn
from upriver.migration.turn import Workers
from upriver.state.vectors import Mask
from upriver.vnodes import VnodeMap, vnodes_of
from upriver.xxh64 import Hashes


def owners_in(map: VnodeMap, hashes: Hashes) -> Workers:
    """The owner of each hash64 by this map."""
    return map.owners_of(vnodes_of(hashes, len(map.owners)))


def route_own_normally(turn: RedistributeTurn, phase: Normal, rows: Rows) -> None:
    """N1: A = me: down. N2: else to A."""
    owners = owners_in(phase.map, rows.hash64)
    here = owners == turn.me
    turn.pass_down(rows, here, Rule.N1)
    turn.send_rows(phase.map.version, rows, ~here, owners)


def route_received_normally(turn: RedistributeTurn, phase: Normal, rows: Rows, sender: WorkerId) -> None:
    """N1: down, even if the sender has started: nothing goes by F' before this worker has itself started (D7).

    Raises ProtocolError for rows that are not for this worker.
    """
    owners = owners_in(phase.map, rows.hash64)
    misled = owners != turn.me
    if misled.any():
        raise ProtocolError(f"worker {turn.me} got rows from {sender} that belong to {np.unique(owners[misled])}")
    turn.pass_down(rows, ~misled, Rule.N1)


@dataclass(frozen=True, slots=True)
class _Places:
    """Per row: A, B, and whether they differ."""

    old: Workers
    new: Workers
    moving: Mask


def _places(migration: Migration, rows: Rows) -> _Places:
    old = owners_in(migration.rescale.before, rows.hash64)
    new = owners_in(migration.rescale.after, rows.hash64)
    return _Places(old, new, old != new)


def route_own(turn: RedistributeTurn, phase: StartedPhase, rows: Rows) -> StartedPhase:
    """From upstream here. I1.2, I2: what does not move goes to A as ever; what moves, as its old owner's view says."""
    places = _places(phase.migration, rows)
    here = places.old == turn.me
    turn.pass_down(rows, ~places.moving & here, Rule.I1_2)
    turn.send_rows(phase.migration.version, rows, ~places.moving & ~here, places.old)
    for owner in phase.migration.views:
        mask = places.moving & (places.old == owner)
        if mask.any():
            phase = _route_own_of(turn, phase, owner, rows.filtered(mask))
    return phase


def route_received(turn: RedistributeTurn, phase: StartedPhase, rows: Rows, sender: WorkerId) -> StartedPhase:
    """From a peer. A = me: down: the sender knows the sets, and this worker is where the state is. B = me: by the view
    of A that this worker has.

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
    """This old owner's view has changed: what waited for that is routed anew, in order."""
    view = phase.migration.views[owner]
    phase = with_view(phase, owner, replace(view, waiting=()))
    for parked in view.waiting:
        if parked.origin == turn.me:
            phase = _route_own_of(turn, phase, owner, parked.rows)
        else:
            phase = _route_straight_of(turn, phase, owner, parked.rows, parked.origin)
    return phase


def _route_own_of(turn: RedistributeTurn, phase: StartedPhase, owner: WorkerId, rows: Rows) -> StartedPhase:
    """Moving rows of one A. I2 (I1.1, C1.1 if A = me): announced, kept or whitelisted: to A.
    C1.2: on hold, or in no set and the sets are open (D1): stored. C3.3 (C3.2 if B = me): given: to B."""
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
    turn: RedistributeTurn, phase: StartedPhase, owner: WorkerId, rows: Rows, sender: WorkerId
) -> StartedPhase:
    """C3.2: B = me, and a peer knows already that the key is mine: parked until I know it too (D5), then down."""
    given = _given(turn, phase.migration, owner, rows.hash64) | (not turn.by.d5_straight_rows_wait)
    turn.pass_down(rows, given, Rule.C3_2)
    return _waiting(phase, owner, Parked(sender, rows), ~given)


def _waiting(phase: StartedPhase, owner: WorkerId, parked: Parked, mask: Mask) -> StartedPhase:
    if not mask.any():
        return phase
    view = phase.migration.views[owner]
    waiting = (*view.waiting, Parked(parked.origin, parked.rows.filtered(mask)))
    return with_view(phase, owner, replace(view, waiting=waiting))


def _given(turn: RedistributeTurn, migration: Migration, owner: WorkerId, hashes: Hashes) -> Mask:
    """For each of an old owner's moving rows, whether it belongs to the new owner by now (D1, D6)."""
    view = migration.views[owner]
    early = view.stage is Stage.LISTED and not turn.by.d1_new_keys_wait
    early |= view.stage is Stage.ANNOUNCED and not turn.by.d6_each_owner_by_itself and _any_listed(migration)
    return (replace(view, stage=Stage.CLOSED) if early else view).given(hashes)


def _any_listed(migration: Migration) -> bool:
    return any(view.stage is not Stage.ANNOUNCED for view in migration.views.values())


def _take_as_old_owner(turn: RedistributeTurn, phase: StartedPhase, rows: Rows, mask: Mask) -> StartedPhase:
    """I1.1: the operators were asked, or the sets are open: recorded (D2), down. C1.1: else: down."""
    if not mask.any():
        return phase
    recording = isinstance(phase, Interrogating) and not phase.unannounced
    recording |= isinstance(phase, Collecting) and _is_open(phase.view)
    turn.pass_down(rows, mask, Rule.I1_1 if recording else Rule.C1_1)
    if recording and isinstance(phase, Interrogating | Collecting):
        return replace(phase, recorded=(*phase.recorded, rows.hash64[mask]))
    return phase


def _is_open(view: View) -> bool:
    return view.stage is Stage.LISTED
