"""The phases of the mended machine. All are values: a step makes the next one.

``Normal`` -> (``Interrogating`` -> ``Collecting``)* -> ``Settling`` -> ``Normal``;
``Normal`` -> ``Left`` for a worker that is retired.
A slice is a vnode that changes its owner.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Self

import numpy as np
import numpy.typing as npt

from upriver.ids import MapVersion, VnodeId, WorkerId
from upriver.migration.events import RescaleAnnounced
from upriver.migration.messages import Rows
from upriver.state.keysets import NO_KEYS
from upriver.vnodes import VnodeMap
from upriver.xxh64 import Hashes


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
    rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Early:
    """What peers said of the next rescale before it was announced here.

    done, kept: slices. opened: slices and origins whose relayed mark came. parked: in order of arrival. marked:
    slices that were marked at once, which only a broken H3 does.
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

    slices: to be given together, all from here to one worker. found: keys of those before the last. recorded: the
    hash64 of rows of any of them passed down since the first was asked about. remaining: slices not begun, in order.
    aborted: the slices are to be kept once the operators have answered.
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

    whitelist: keys whose state is here. hold: keys whose state is being collected; ``held``: their rows, in order.
    A key of the slices in neither has its state at the new owner, or nowhere. begun: a key
    was collected, or a row relayed: the new owner has state, and the slices cannot be kept (H4).
    """

    migration: Migration
    slices: tuple[VnodeId, ...]
    remaining: tuple[VnodeId, ...]
    whitelist: Hashes
    hold: Hashes = field(default_factory=lambda: NO_KEYS)
    held: tuple[Rows, ...] = ()
    begun: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """Nothing more to give; marks, or the fates of others' slices, are missing."""

    migration: Migration


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The end. map: what the others route by now."""

    map: VnodeMap


Started = Interrogating | Collecting | Settling
Phase = Normal | Started | Left
