"""Migrators: the distributors of all strategies that move keys live, behind one interface."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from upriver.ids import VnodeId, WorkerId
from upriver.migration import redistribute_phases as redistribute
from upriver.migration.events import Action, Event
from upriver.migration.icadd import TOGETHER_KEYS, Distributor
from upriver.migration.phases import Collecting, Fate, Interrogating, Settling
from upriver.migration.redistribute import Redistributor
from upriver.protocol.strategies import Strategy
from upriver.vnodes import VnodeMap


class Migrator(Protocol):
    """The distributor at the input of one region on one worker, whatever its strategy."""

    def step(self, event: Event) -> tuple[Action, ...]: ...

    @property
    def phase(self) -> Any:
        """A value; the name of its class says where the distributor stands. It has a ``map`` when nothing moves."""
        ...

    @property
    def can_collect(self) -> bool:
        """Whether ``CollectAsked`` would move a key."""
        ...


MakeMigrator = Callable[[WorkerId, VnodeMap, int | None], Migrator]
"""Makes a migrator from the worker's id, the current map, and the user's limit of keys to move at a time, if any."""


def _icadd(me: WorkerId, map: VnodeMap, keys_max: int | None) -> Distributor:
    return Distributor(me, map, together=TOGETHER_KEYS if keys_max is None else keys_max)


def _redistribute(me: WorkerId, map: VnodeMap, keys_max: int | None) -> Redistributor:
    return Redistributor(me, map)


MIGRATORS: Mapping[Strategy, MakeMigrator] = MappingProxyType(
    {Strategy.ICADD: _icadd, Strategy.LAZY: _icadd, Strategy.REDISTRIBUTE: _redistribute}
)
"""For the strategies that move keys live."""


def left_to_give(phase: object) -> tuple[int, int]:
    """How many keys are known to move, and how many vnodes have not been interrogated yet for their keys."""
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
    """A worker keeps a key for certain, whatever moves meanwhile, if all these maps give it the key: rules N1 and I1.2.
    Empty if maps cannot tell."""
    if isinstance(phase, Interrogating | Collecting | Settling):
        return phase.migration.rescale.before, phase.migration.rescale.after
    vnode_map: VnodeMap | None = getattr(phase, "map", None)
    return () if vnode_map is None else (vnode_map,)


def new_owner(phase: object, vnode: VnodeId) -> WorkerId:
    """The worker that an interrogated slice goes to."""
    assert isinstance(phase, Interrogating)
    return phase.migration.rescale.after.owners[vnode]


def slices_given(phase: object, me: WorkerId) -> frozenset[VnodeId]:
    """This worker's slices that have moved completely. Empty with redistribute: its keys go in another order."""
    match phase:
        case Interrogating(migration=migration) | Collecting(migration=migration) | Settling(migration=migration):
            done = np.flatnonzero(migration.fates == Fate.DONE)
            given = done[migration.rescale.before.owners_of(done) == me]
            return frozenset(map(VnodeId, given.tolist()))
    return frozenset()
