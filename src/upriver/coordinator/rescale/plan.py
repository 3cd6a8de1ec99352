"""What a rescale does, and what the workers have reported of it.

``RescalePlan``: the workers and each region's map, before and after. Each region migrates by itself, and has a map of
its own once a rescale was aborted.

``AnnouncedPlan``: a plan that all workers were told. It is over when every worker has settled every region, and every
leaver has left and all that it sent was read. A worker that owns nothing afterwards leaves as soon as it has settled
every region: no worker sends to it any more. Both are values.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from upriver.errors import DeclarationError, IllegalEvent, ProtocolError
from upriver.ids import MapVersion, VnodeId, WorkerId
from upriver.migration.events import RescaleAnnounced
from upriver.vnodes import VnodeMap


@dataclass(frozen=True, slots=True, kw_only=True)
class RescalePlan:
    """before, after: each region's map, by region. old, new: the workers."""

    before: Mapping[str, VnodeMap]
    after: Mapping[str, VnodeMap]
    old: tuple[WorkerId, ...]
    new: tuple[WorkerId, ...]

    @classmethod
    def made(
        cls,
        maps: Mapping[str, VnodeMap],
        old: tuple[WorkerId, ...],
        new: Sequence[WorkerId],
        moves: Mapping[VnodeId, WorkerId] | None,
    ) -> Self:
        """From these maps and workers to the workers ``new``. moves: vnodes to move; ``None``: the maps are evened out.

        All regions' versions go up by one together, also where nothing moves. Raises DeclarationError for what cannot
        be.
        """
        if not new or len(set(new)) != len(new):
            raise DeclarationError(f"a rescale needs one worker or more, each named once, not {tuple(new)}")
        after = {}
        for region, before in maps.items():
            goal = before.rebalanced(new) if moves is None else before.moved(moves)
            homeless = set(goal.workers) - set(new)
            if homeless:
                raise DeclarationError(f"workers {sorted(homeless)} would own vnodes, but are not among {list(new)}")
            after[region] = VnodeMap(MapVersion(before.version + 1), goal.owners)
        return cls(before=dict(maps), after=after, old=old, new=tuple(sorted(new)))

    def of(self, regions: Collection[str]) -> Self:
        """The part of it that is about these regions."""
        before = {region: vnode_map for region, vnode_map in self.before.items() if region in regions}
        return replace(self, before=before, after={region: self.after[region] for region in before})

    @property
    def changes_nothing(self) -> bool:
        same = all(self.after[region].owners == before.owners for region, before in self.before.items())
        return same and self.new == self.old

    @property
    def joining(self) -> tuple[WorkerId, ...]:
        return tuple(worker for worker in self.new if worker not in self.old)

    @property
    def members(self) -> tuple[WorkerId, ...]:
        """The workers that take part: those before and those after."""
        return tuple(sorted({*self.old, *self.new}))

    @property
    def version(self) -> MapVersion:
        """The version of each map after."""
        return first(self.after).version

    @property
    def vnodes(self) -> int:
        """How many vnodes get another owner. Outside a rescale all regions have the same map."""
        return len(first(self.before).diff(first(self.after)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedPlan:
    """waiting: all and only the workers and regions that have not settled. kept: slices that stay, per region. unread:
    all and only the workers, regions and leavers between which something may be on its way."""

    plan: RescalePlan
    waiting: frozenset[tuple[WorkerId, str]]
    kept: Mapping[str, tuple[VnodeId, ...]]
    unread: frozenset[tuple[WorkerId, str, WorkerId]] = frozenset()

    @classmethod
    def of(cls, plan: RescalePlan) -> Self:
        """No worker has reported anything yet."""
        waiting = frozenset((worker, region) for worker in plan.members for region in plan.after)
        return cls(plan=plan, waiting=waiting, kept={})

    def unsettled(self) -> Iterator[tuple[WorkerId, str]]:
        """The workers and regions that have not settled, in order."""
        return (
            (worker, region)
            for worker in self.plan.members
            for region in self.plan.after
            if (worker, region) in self.waiting
        )

    def order(self, region: str) -> RescaleAnnounced:
        """What a region's distributor at each worker is told."""
        plan = self.plan
        return RescaleAnnounced(before=plan.before[region], after=plan.after[region], old=plan.old, new=plan.new)

    def awaits(self, worker: WorkerId, region: str, version: MapVersion) -> bool:
        """Whether the worker has yet to settle this region at this version."""
        return version == self.plan.version and (worker, region) in self.waiting

    def has_settled(self, worker: WorkerId, region: str, version: MapVersion) -> bool:
        """Whether the worker has settled this region at this version, or the version is outdated."""
        is_told = (worker, region) not in self.waiting and worker in self.plan.members and region in self.plan.after
        return version < self.plan.version or (version == self.plan.version and is_told)

    def settled(self, worker: WorkerId, region: str, version: MapVersion, kept: tuple[VnodeId, ...]) -> Self:
        """A worker has settled a region, and these slices did not move. Raises IllegalEvent for a report that is not
        due, and ProtocolError for workers that disagree."""
        if not self.awaits(worker, region, version):
            raise IllegalEvent(f"worker {worker} settled region {region!r} at {version} unasked")
        if self.kept.get(region, kept) != kept:
            raise ProtocolError(f"workers do not agree on what of region {region!r} was kept")
        waiting = self.waiting - {(worker, region)}
        after = replace(self, waiting=waiting, kept={**self.kept, region: kept})
        return after._parting(worker) if after.is_leaver(worker) else after

    def is_leaver(self, worker: WorkerId) -> bool:
        """Whether the worker has settled every region and owns nothing any more. By then it has heard the fate of every
        slice, so all regions' maps are known."""
        all_settled = not any((worker, region) in self.waiting for region in self.plan.after)
        return all_settled and worker not in self.workers

    def _parting(self, leaver: WorkerId) -> Self:
        unread = {(peer, region, leaver) for peer in self.workers for region in self.plan.after}
        return replace(self, unread=self.unread | unread)

    def has_left(self, worker: WorkerId, region: str, leaver: WorkerId) -> bool:
        """Whether the worker has read all that a leaver sent it in this region."""
        return self.is_leaver(leaver) and (worker, region, leaver) not in self.unread

    def peer_left(self, worker: WorkerId, region: str, leaver: WorkerId) -> Self:
        """The worker has read all that a leaver sent it in this region. Raises IllegalEvent if that is not due."""
        if (worker, region, leaver) not in self.unread:
            raise IllegalEvent(f"worker {leaver} left region {region!r} of {worker} unasked")
        return replace(self, unread=self.unread - {(worker, region, leaver)})

    @property
    def is_over(self) -> bool:
        return not (self.waiting or self.unread)

    @property
    def maps(self) -> dict[str, VnodeMap]:
        """The maps that the plan ends with, by region. They are known once some worker has settled every region."""
        before, after = self.plan.before, self.plan.after
        return {region: after[region].keeping(before[region], self.kept[region]) for region in after}

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """The workers that the plan ends with; known as ``maps`` are."""
        owners = {worker for region_map in self.maps.values() for worker in region_map.workers}
        return tuple(sorted({*self.plan.new, *owners}))

    def tidying(self) -> RescalePlan | None:
        """The round after an abort: all regions use the first one's map, and no worker is left that owns nothing.
        ``None`` if that holds already."""
        maps, workers = self.maps, self.workers
        goal = first(maps)
        if workers == goal.workers and all(region_map.owners == goal.owners for region_map in maps.values()):
            return None
        after = dict.fromkeys(maps, VnodeMap(MapVersion(goal.version + 1), goal.owners))
        return RescalePlan(before=maps, after=after, old=workers, new=goal.workers)


def first(maps: Mapping[str, VnodeMap]) -> VnodeMap:
    """The first region's map: outside a rescale every region's."""
    return next(iter(maps.values()))
