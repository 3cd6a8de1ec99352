"""The phases of the redistribute machine, and a distributor's view of each old owner. All are values.

``Normal`` -> (``Interrogating`` -> ``Collecting``, for an old owner) -> ``Settling`` -> ``Normal``;
``Normal`` -> ``Left`` for a worker that is retired.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Self, TypeVar

import numpy as np

from upriver.ids import MapVersion, WorkerId
from upriver.migration.events import RescaleAnnounced
from upriver.migration.phases import Left, Parked
from upriver.state.keysets import NO_KEYS, contains, key_set
from upriver.state.vectors import Mask
from upriver.vnodes import VnodeMap
from upriver.xxh64 import Hashes


def with_more(keys: Hashes, *more: Hashes) -> Hashes:
    """The set ``keys`` and these hashes, in any order and with any repeats; without sorting all of the set again."""
    new = key_set(*more)
    new = new[~contains(keys, new)]
    return np.insert(keys, np.searchsorted(keys, new), new) if len(new) else keys


class Stage(IntEnum):
    """How far an old owner's keys have gone, as a distributor sees it."""

    ANNOUNCED = 0
    """It was told SHUTDOWN or SCALEUP; everything still goes to it."""
    LISTED = 1
    """Its sets have come; keys that are in none may be added."""
    CLOSED = 2
    """What is in no set is its new owner's."""
    KEPT = 3
    """The rescale was aborted before it began: nothing moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One old owner as one distributor sees it.

    keys: what it has still to give, in the order in which it goes: first the ``holding`` keys on hold, then the
    whitelist. waiting: rows that can go neither to the old owner nor to the new one yet, and where they came from.
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
        """Whether nothing more will be heard of it."""
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
class Migration:
    """One rescale as this worker sees it. views: of every worker that has vnodes to give."""

    rescale: RescaleAnnounced
    members: tuple[WorkerId, ...]
    views: Mapping[WorkerId, View]

    @property
    def version(self) -> MapVersion:
        return self.rescale.version

    def with_view(self, owner: WorkerId, view: View) -> Self:
        return replace(self, views={**self.views, owner: view})


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal:
    """Rows go by ``map``. announced_by: who has said SHUTDOWN or SCALEUP of a rescale not announced here yet."""

    map: VnodeMap
    announced_by: frozenset[WorkerId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrogating:
    """This worker has vnodes to give. Once ``unannounced`` is empty its operators are asked which keys have state.

    unannounced: all and only the distributors whose SHUTDOWN or SCALEUP is missing. recorded: the hash64 of rows
    passed down since the operators were asked. aborted: everything is to be kept.
    """

    migration: Migration
    unannounced: frozenset[WorkerId]
    recorded: tuple[Hashes, ...] = ()
    aborted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Collecting:
    """The keys of this worker's own view move, those on hold first.

    unfinal: all and only the distributors whose FINAL of the hold is missing. collecting: the operators were asked for
    the state of the hold. keys_max: of the next hold. recorded: as long as the sets are not closed, the hash64 of rows
    passed down. aborted: everything is to be kept.
    """

    migration: Migration
    own: WorkerId
    unfinal: frozenset[WorkerId]
    collecting: bool = False
    keys_max: int = 1
    recorded: tuple[Hashes, ...] = ()
    aborted: bool = False

    @property
    def view(self) -> View:
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
class Settling:
    """Nothing to give; other old owners are not through."""

    migration: Migration


Started = Interrogating | Collecting | Settling
Phase = Normal | Started | Left

StartedPhase = TypeVar("StartedPhase", bound=Started)


def with_view(phase: StartedPhase, owner: WorkerId, view: View) -> StartedPhase:
    """The same phase, with another view of one old owner."""
    return replace(phase, migration=phase.migration.with_view(owner, view))
