"""The phases of the mended ICADD machine, and where rows go in each.

The ``route_*`` functions are the numbered rules of ``docs/internals/icadd.md`` as masks over a batch. The masks of one
batch never overlap, and together they cover it. A and B are a row's old and new owner.

All phases are values: a step makes the next one.

``Normal`` -> (``Interrogating`` -> ``Collecting``)* -> ``Settling`` -> ``Normal``;
``Normal`` -> ``Left`` for a worker that is retired.
A slice is a vnode that changes its owner.

``Turn``: one step of a distributor in the making.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from upriver.errors import ProtocolError
from upriver.hashing import Hashes
from upriver.ids import MapVersion, VnodeId, WorkerId
from upriver.migration.events import Action, PassDown, RescaleAnnounced, Rule, Send
from upriver.migration.messages import ForwardedRows, Message, RowsSent
from upriver.migration.rules import ALL_RULES, MendedRules
from upriver.state.vectors import NO_KEYS, Mask, contains
from upriver.vnodes import VnodeArray, VnodeMap, vnodes_of


class Fate(IntEnum):
    """What became of a slice, as far as this worker knows."""

    OPEN = 0
    DONE = 1
    KEPT = 2


Fates = npt.NDArray[np.uint8]
"""A :class:`Fate` per vnode; ``OPEN`` where nothing moves."""


@dataclass(frozen=True, slots=True)
class Parked:
    """Rows that came straight from ``origin`` ahead of its mark."""

    origin: WorkerId
    rows: ForwardedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Early:
    """What peers said of the next rescale before it was announced here.

    done, kept: slices. opened: slices and origins whose relayed mark came. parked: in order of arrival. marked:
    slices that were marked at once, which happens only without icadd.mark_after_start.
    """

    done: frozenset[VnodeId] = frozenset()
    kept: frozenset[VnodeId] = frozenset()
    opened: frozenset[tuple[VnodeId, WorkerId]] = frozenset()
    parked: tuple[Parked, ...] = ()
    marked: frozenset[VnodeId] = frozenset()


NOTHING_EARLY = Early()


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One rescale as this worker sees it.

    fates: per vnode. undecided: how many slices are OPEN. unmarked: per slice given away here, all and only the
    origins that may still send its rows here. closed: per origin, all and only the slices coming here whose relayed
    mark is missing. parked: in order of arrival.
    """

    rescale: RescaleAnnounced
    members: tuple[WorkerId, ...]
    fates: Fates
    undecided: int
    unmarked: Mapping[VnodeId, frozenset[WorkerId]]
    closed: Mapping[WorkerId, frozenset[VnodeId]]
    parked: tuple[Parked, ...]

    @property
    def version(self) -> MapVersion:
        return self.rescale.version

    def decided(self, vnodes: Collection[VnodeId], fate: Fate) -> Self:
        """The same, with the fate of these slices known."""
        fates = self.fates.copy()
        fates[list(vnodes)] = fate
        return replace(self, fates=fates, undecided=self.undecided - len(vnodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal:
    """Rows go by ``map``."""

    map: VnodeMap
    early: Early = NOTHING_EARLY


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrogating:
    """The operators were asked which keys of the last of ``slices`` have state.

    slices: given together, all from here to one worker. found: keys of those before the last. recorded: the hash64 of
    rows of any of them passed down since the first was asked about. remaining: slices not begun, in order. aborted:
    this worker keeps the slices once the operators have answered.
    """

    migration: Migration
    slices: tuple[VnodeId, ...]
    remaining: tuple[VnodeId, ...]
    found: Hashes = field(default_factory=lambda: NO_KEYS)
    recorded: tuple[Hashes, ...] = ()
    aborted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Collecting:
    """The keys of ``slices`` move to their new owner.

    whitelist: keys whose state is here. hold: keys whose state is being collected; ``held``: their rows, in order. A
    key of the slices in neither has its state at the new owner, or nowhere. begun: a key was collected, or a row
    relayed: the new owner has state, and the slices cannot be kept (icadd.begun_slice_is_finished).
    """

    migration: Migration
    slices: tuple[VnodeId, ...]
    remaining: tuple[VnodeId, ...]
    whitelist: Hashes
    hold: Hashes = field(default_factory=lambda: NO_KEYS)
    held: tuple[ForwardedRows, ...] = ()
    begun: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """Nothing more to give; marks, or the fates of other workers' slices, are missing."""

    migration: Migration


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The end. map: the one that the other workers route by now."""

    map: VnodeMap


Started = Interrogating | Collecting | Settling
Phase = Normal | Started | Left


Workers = npt.NDArray[np.integer[Any]]
"""A worker per row."""


@dataclass(slots=True)
class Turn:
    """``me`` acts by ``rules``; ``actions`` come out in order. together: keys for which slices are given together."""

    me: WorkerId
    rules: MendedRules = ALL_RULES
    together: int = 1
    actions: list[Action] = field(default_factory=list)

    def say(self, action: Action) -> None:
        self.actions.append(action)

    def send(self, to: WorkerId, message: Message) -> None:
        self.actions.append(Send(to=to, message=message))

    def pass_down(self, rows: ForwardedRows, mask: Mask, rule: Rule) -> None:
        """The masked rows go to the operators here."""
        if mask.any():
            self.say(PassDown(rows=rows.filtered(mask), rule=rule))

    def send_rows(self, version: MapVersion, rows: ForwardedRows, mask: Mask, targets: Workers) -> None:
        """Each masked row goes to its target; targets: per row of ``rows``."""
        if mask.any():
            for target in np.unique(targets[mask]).tolist():
                there = rows.filtered(mask & (targets == target))
                self.send(WorkerId(target), RowsSent(version=version, rows=there))


StartedPhase = TypeVar("StartedPhase", bound=Started)


def route_own_normally(turn: Turn, phase: Normal, rows: ForwardedRows) -> None:
    """N1: A = me: down. N2: else to A."""
    owners = phase.map.owners_of(vnodes_of(rows.hash64, len(phase.map.owners)))
    here = owners == turn.me
    turn.pass_down(rows, here, Rule.N1)
    turn.send_rows(phase.map.version, rows, ~here, owners)


def route_received_normally(turn: Turn, phase: Normal, sender: WorkerId, message: RowsSent) -> Normal:
    """N1: A = me: down. N3: from A, which has started: down. Other rows came straight, ahead of the rescale: parked.

    Raises ProtocolError for rows that are not for this worker by either map.
    """
    rows = message.rows
    owners = phase.map.owners_of(vnodes_of(rows.hash64, len(phase.map.owners)))
    here = owners == turn.me
    turn.pass_down(rows, here, Rule.N1)
    if here.all():
        return phase
    if message.version <= phase.map.version:
        raise ProtocolError(f"worker {turn.me} got rows from {sender} that belong to {np.unique(owners[~here])}")
    trusted = ~here & ((owners == sender) | (not turn.rules.icadd_take_from_old_owner_only))
    turn.pass_down(rows, trusted, Rule.N3)
    straight = ~(here | trusted)
    if not straight.any():
        return phase
    parked = Parked(sender, rows.filtered(straight))
    return replace(phase, early=replace(phase.early, parked=(*phase.early.parked, parked)))


def route_started(turn: Turn, phase: StartedPhase, rows: ForwardedRows, sender: WorkerId) -> StartedPhase:
    """Rows while a rescale is on. sender: ``turn.me`` for rows from this worker's own upstream."""
    places = _places(phase.migration, rows)
    mine = places.old == turn.me
    phase = _route_mine(turn, phase, rows, places, mine)
    if mine.all():
        return phase
    if sender == turn.me:
        straight = _route_others_own(turn, phase.migration, rows, places, mine)
    else:
        straight = _route_others_received(turn, rows, places, mine, sender)
    if not straight.any():
        return phase
    migration = _route_straight(turn, phase.migration, rows, places.vnodes, straight, sender)
    return replace(phase, migration=migration)


@dataclass(frozen=True, slots=True)
class _Places:
    """Per row: its vnode, A, B, and what became of its slice; moving: A is not B, and the slice was not kept."""

    vnodes: VnodeArray
    old: Workers
    new: Workers
    done: Mask
    moving: Mask


def _places(migration: Migration, rows: ForwardedRows) -> _Places:
    before, after = migration.rescale.before, migration.rescale.after
    vnodes = vnodes_of(rows.hash64, len(before.owners))
    old, new, fates = before.owners_of(vnodes), after.owners_of(vnodes), migration.fates[vnodes]
    return _Places(vnodes, old, new, fates == Fate.DONE, (old != new) & (fates != Fate.KEPT))


def _route_mine(turn: Turn, phase: StartedPhase, rows: ForwardedRows, places: _Places, mine: Mask) -> StartedPhase:
    """A = me: whichever worker sent the rows, this worker puts the rows of a key in order.

    I1.1: in the slices being interrogated: whitelist, down. C1.1: whitelisted: down. C1.2: on hold: held.
    I1.2: not moving, or not begun: down. C2: of a slice begun or done, and neither whitelisted nor on hold: to B.
    """
    moving = mine & places.moving
    gone = moving & places.done
    if isinstance(phase, Interrogating):
        asked = moving & _are_of(phase.slices, places.vnodes)
        turn.pass_down(rows, mine & ~gone & ~asked, Rule.I1_2)
        turn.pass_down(rows, asked, Rule.I1_1)
        if asked.any():
            phase = replace(phase, recorded=(*phase.recorded, rows.hash64[asked]))
    elif isinstance(phase, Collecting):
        current = moving & _are_of(phase.slices, places.vnodes)
        turn.pass_down(rows, mine & ~gone & ~current, Rule.I1_2)
        whitelisted = current & contains(phase.whitelist, rows.hash64)
        turn.pass_down(rows, whitelisted, Rule.C1_1)
        on_hold = current & contains(phase.hold, rows.hash64)
        relayed = current & ~whitelisted & ~on_hold
        held = (*phase.held, rows.filtered(on_hold)) if on_hold.any() else phase.held
        begun = phase.begun or (bool(relayed.any()) and turn.rules.icadd_begun_slice_is_finished)
        phase = replace(phase, held=held, begun=begun)
        gone |= relayed
    else:
        turn.pass_down(rows, mine & ~gone, Rule.I1_2)
    turn.send_rows(phase.migration.version, rows, gone, places.new)
    return phase


def _are_of(slices: Sequence[VnodeId], vnodes: VnodeArray) -> Mask:
    found: Mask = vnodes == slices[0]
    for vnode in slices[1:]:
        found |= vnodes == vnode
    return found


def _route_others_own(turn: Turn, migration: Migration, rows: ForwardedRows, places: _Places, mine: Mask) -> Mask:
    """A is not me, from upstream here. I2: before Done: to A. C3.3: after it: straight to B; returned if B = me."""
    after_done = places.moving & (places.done | (not turn.rules.icadd_old_owner_first))
    turn.send_rows(migration.version, rows, ~mine & ~after_done, places.old)
    straight = ~mine & after_done
    here: Mask = straight & (places.new == turn.me)
    turn.send_rows(migration.version, rows, straight & ~here, places.new)
    return here


def _route_others_received(turn: Turn, rows: ForwardedRows, places: _Places, mine: Mask, sender: WorkerId) -> Mask:
    """A is not me, from a peer. C3.1: from A, relayed or its own: down. Other rows came straight: returned.

    Raises ProtocolError for rows that are not for this worker by either map.
    """
    misled = ~mine & ~((places.new == turn.me) & places.moving)
    if misled.any():
        raise ProtocolError(f"worker {turn.me} got rows from {sender} of vnodes {np.unique(places.vnodes[misled])}")
    from_old_owner = ~mine & (places.old == sender)
    turn.pass_down(rows, from_old_owner, Rule.C3_1)
    straight: Mask = ~mine & ~from_old_owner
    return straight


def _route_straight(
    turn: Turn,
    migration: Migration,
    rows: ForwardedRows,
    vnodes: VnodeArray,
    straight: Mask,
    origin: WorkerId,
) -> Migration:
    """C3.2: B = me and the rows did not pass A: parked until their origin's mark came by way of A, then down."""
    closed = np.array(sorted(migration.closed[origin]), np.int32)
    parked = straight & np.isin(vnodes, closed) & turn.rules.icadd_park_behind_marker
    turn.pass_down(rows, straight & ~parked, Rule.C3_2)
    if not parked.any():
        return migration
    return replace(migration, parked=(*migration.parked, Parked(origin, rows.filtered(parked))))


def open_slice(turn: Turn, migration: Migration, vnode: VnodeId, origin: WorkerId) -> Migration:
    """The origin's mark of the slice came by way of A: the rows parked behind it go down, in order (C3.2)."""
    vnodes_total = len(migration.rescale.before.owners)
    still_parked = []
    for parked in migration.parked:
        if parked.origin != origin:
            still_parked.append(parked)
            continue
        released = vnodes_of(parked.rows.hash64, vnodes_total) == vnode
        turn.pass_down(parked.rows, released, Rule.C3_2)
        if not released.all():
            still_parked.append(Parked(origin, parked.rows.filtered(~released)))
    closed = dict(migration.closed)
    closed[origin] = closed[origin] - {vnode}
    return replace(migration, closed=closed, parked=tuple(still_parked))
