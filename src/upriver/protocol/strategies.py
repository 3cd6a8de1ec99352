"""The ways in which keys can move from worker to worker, behind one interface."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from upriver.ids import VnodeId, WorkerId
from upriver.migration import redistribute_phases as redistribute
from upriver.migration.events import Action, Event
from upriver.migration.icadd import TOGETHER_KEYS, Distributor
from upriver.migration.phases import Collecting, Fate, Interrogating, Settling
from upriver.migration.redistribute import Redistributor
from upriver.vnodes import VnodeMap


class Strategy(StrEnum):
    """By what a rescale goes."""

    ICADD = "icadd"
    """Document 000: live, a few keys at a time, from worker to worker."""
    REDISTRIBUTE = "redistribute"
    """Document 001: live, a few keys at a time, on the word of every distributor."""
    LAZY = "lazy"
    """By ICADD, but keys of partial views stay behind: their new owner fills them when they are looked up, and at once
    those that were read last."""
    LEARNER = "learner"
    """Document 002: their new owner learns slices while the old one serves, and takes them over between two epochs."""
    RESTART = "restart"
    """Stop at an epoch's end, begin with the new map and nothing, read everything again."""

    @property
    def holds_still(self) -> bool:
        """Whether a worker that is told to give no more keys away has none on their way."""
        return self in (Strategy.ICADD, Strategy.LAZY)


class Migrator(Protocol):
    """The distributor at the input of one region on one worker, whatever its strategy."""

    def step(self, event: Event) -> tuple[Action, ...]: ...

    @property
    def phase(self) -> Any:
        """A value; its class's name says where the distributor stands. It has a ``map`` when nothing moves."""
        ...

    @property
    def can_collect(self) -> bool:
        """Whether ``CollectAsked`` would move a key."""
        ...


MakeMigrator = Callable[[WorkerId, VnodeMap, int | None], Migrator]
"""Of who it is, the map of now, and how many keys are to be moved at a time, if the user has said so."""


def _icadd(me: WorkerId, map: VnodeMap, keys_max: int | None) -> Distributor:
    return Distributor(me, map, together=TOGETHER_KEYS if keys_max is None else keys_max)


def _redistribute(me: WorkerId, map: VnodeMap, keys_max: int | None) -> Redistributor:
    return Redistributor(me, map)


MIGRATORS: Mapping[Strategy, MakeMigrator] = MappingProxyType(
    {Strategy.ICADD: _icadd, Strategy.LAZY: _icadd, Strategy.REDISTRIBUTE: _redistribute}
)
"""Of the strategies by which keys move live."""


def left_to_give(phase: object) -> tuple[int, int]:
    """Keys that are known to move, and vnodes of which nobody has asked yet which keys they have."""
    match phase:
        case Interrogating():
            return len(phase.found), 1 + len(phase.remaining)
        case Collecting():
            return len(phase.whitelist) + len(phase.hold), len(phase.remaining)
        case redistribute.RedistributeInterrogating(migration=migration):
            return 0, len(migration.rescale.before.diff(migration.rescale.after))
        case redistribute.RedistributeCollecting() as collecting:
            return len(collecting.whitelist) + len(collecting.hold), 0
    return 0, 0


def maps_of(phase: object) -> tuple[VnodeMap, ...]:
    """The maps by all of which a key must be a worker's to be kept there, whatever moves meanwhile: rules N1 and I1.2.
    None, if that cannot be told by maps."""
    if isinstance(phase, Interrogating | Collecting | Settling):
        return phase.migration.rescale.before, phase.migration.rescale.after
    vnode_map: VnodeMap | None = getattr(phase, "map", None)
    return () if vnode_map is None else (vnode_map,)


def new_owner(phase: object, vnode: VnodeId) -> WorkerId:
    """To whom a slice goes that is being interrogated."""
    assert isinstance(phase, Interrogating)
    return phase.migration.rescale.after.owners[vnode]


def slices_given(phase: object, me: WorkerId) -> frozenset[VnodeId]:
    """This worker's slices that are wholly their new owner's. With redistribute, keys go in an order of their own."""
    match phase:
        case Interrogating(migration=migration) | Collecting(migration=migration) | Settling(migration=migration):
            done = np.flatnonzero(migration.fates == Fate.DONE)
            given = done[migration.rescale.before.owners_of(done) == me]
            return frozenset(map(VnodeId, given.tolist()))
    return frozenset()
