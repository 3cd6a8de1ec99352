"""The regions that a worker keeps: a shard of each, what feeds it, and what it takes.

``Regions`` begins with an empty shard of every region of the assigned views. A view that has failed, or that cannot
be built, has stand-ins (rule ``views.fail_alone``).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from upriver.engine.region import FullRegionState
from upriver.errors import ProtocolError
from upriver.ids import Channel, Epoch, VnodeId, WorkerId
from upriver.partial.cone import Cone
from upriver.partial.partial_region import PartialRegion
from upriver.plan.flows import readers_of, stages_of
from upriver.plan.plan import DataflowPlan, LakeEdge, RegionPlan, view_of
from upriver.protocol.messages import Assign
from upriver.protocol.rules import Rules
from upriver.protocol.strategies import Strategy
from upriver.state.failure import ViewFailure
from upriver.vnodes import VnodeMap
from upriver.worker.change_logs import ChangeLogs
from upriver.worker.failed_region import FailedRegion
from upriver.worker.migrators import MIGRATORS, Migrator
from upriver.worker.shard import Shard

Stats = Mapping[str, Mapping[str, int]]
"""By region, as in ``EpochFinished``."""
BuildRegion = Callable[[DataflowPlan, RegionPlan], FullRegionState]
"""Makes an empty region of a view."""


class Regions:
    """The shards of all regions, by the region's name, and the failures of their views."""

    def __init__(self, event: Assign, build_region: BuildRegion, rules: Rules) -> None:
        """Empty shards."""
        self.me = event.worker
        self.shards: dict[str, Shard] = {}
        """The shard of every region, by name."""
        self.fed_by: dict[Channel, list[tuple[str, int]]] = {}
        """The regions that each channel feeds, each with the port."""
        self.dated_ports = frozenset(
            (region.name, port)
            for plan in event.plans
            for region in plan.spread
            for port, entry in enumerate(region.inputs)
            if isinstance(entry.edge, LakeEdge) and entry.edge.is_dated
        )
        """The ports whose rows have their epochs. If one port of a channel does, its rows are read with them."""
        self.views: Mapping[str, pa.Schema] = {plan.name: plan.key_schema for plan in event.plans}
        """The key of each view, by the view's name: the key of its last region, which lookups read."""
        self.depths: Mapping[str, int] = stages_of(event.plans)
        """The depth of every region, by name."""
        self.lake_ports: dict[str, tuple[tuple[int, Channel], ...]] = {}
        """The ports and channels of every region, by name: what upqueries read."""
        self.maps = event.maps
        """The maps that were assigned, by region. Rescales change those of the shards."""
        self.failed: dict[str, ViewFailure] = dict(event.failed)
        """The failures of views, here or at other workers."""
        self.taken_in_parts = _taken_in_parts(event.plans)
        """The channels whose rows of one key may come some at a time, if this worker keeps the key."""
        self.is_clocked = any(plan.is_clocked for plan in event.plans)
        """Whether a view depends on the clock."""
        self._plans = event.plans
        self._build_region = build_region
        self._stats: Stats = {}
        """The last stats of the regions."""
        make = MIGRATORS[Strategy.ICADD]
        for plan in event.plans:
            for region in plan.spread:
                migrator = make(event.worker, event.maps[region.name], None)
                waits = self.depths[region.name] > 0
                shard = _empty_shard(event, plan, region, migrator, build_region, rules, rows_wait=waits)
                self.shards[region.name] = shard
                self.lake_ports[region.name] = region.lake_ports
                for port, channel in region.lake_ports:
                    self.fed_by.setdefault(channel, []).append((region.name, port))

    @property
    def is_staged(self) -> bool:
        """Whether rows are exchanged."""
        return any(self.depths.values())

    @property
    def deepest(self) -> int:
        """The last stage of each epoch."""
        return max(self.depths.values(), default=0)

    @property
    def vnodes(self) -> int:
        """The number of vnodes in the lake."""
        return len(next(iter(self.maps.values())).owners)

    @property
    def full(self) -> dict[str, Shard]:
        """The shards that keep every key of their slices."""
        return {name: shard for name, shard in self.shards.items() if shard.keeps_every_key}

    @property
    def cones(self) -> Mapping[str, Cone]:
        """The cones, by view."""
        return {name: shard.cone for name, shard in self.shards.items() if shard.cone is not None}

    @property
    def has_leftovers(self) -> bool:
        """Whether some cone has state of evicted keys."""
        return any(shard.cone is not None and shard.cone.has_leftovers for shard in self.shards.values())

    def empty_full(self) -> dict[str, FullRegionState]:
        """Another empty region for each that keeps every key."""
        return {
            region.name: self._build_region(plan, region)
            for plan in self._plans
            for region in plan.spread
            if self.shards[region.name].keeps_every_key
        }

    def map_of(self, region: str) -> VnodeMap | None:
        """The map that places the region's keys; ``None`` while they move."""
        return self.shards[region].vnode_map

    def keeps(self, vnode: VnodeId) -> bool:
        """Whether this worker keeps the slice. All regions use one map, except while keys move."""
        return all(
            (vnode_map := self.map_of(name)) is not None and vnode_map.owners[vnode] == self.me for name in self.shards
        )

    def keep_all(self, vnodes: Sequence[VnodeId]) -> bool:
        """Whether this worker keeps all of these slices, and no key moves."""
        maps = [self.map_of(name) for name in self.shards]
        places = np.array(vnodes, np.int64)
        return all(each is not None and bool((each.owners_of(places) == self.me).all()) for each in maps)

    def catch_up(self) -> None:
        """Apply all rows that have come."""
        for shard in self.shards.values():
            shard.catch_up()

    def epoch_over(self, epoch: Epoch) -> None:
        """All its rows are applied: its keys are whole, and no takeover will go back before it."""
        for shard in self.shards.values():
            shard.unfinished.over(epoch)
            shard.logs.forget_saved()

    def stats(self) -> Stats:
        """The current stats of every region."""
        self._stats = {name: shard.region.stats() for name, shard in self.shards.items()}
        return self._stats

    @property
    def last_stats(self) -> Stats:
        """The stats as of the last look: looking at all regions takes milliseconds."""
        return self._stats if self._stats.keys() == self.shards.keys() else self.stats()

    def stats_after(self, region: str) -> Stats:
        """The current stats, if only this region can have changed since the last look."""
        self._stats = {**self.last_stats, region: self.shards[region].region.stats()}
        return self._stats

    def has_failed(self, region: str) -> bool:
        """Whether a region's view has failed, or is dropped: it needs no rows."""
        return view_of(region) in self.failed

    def readers(self, view: str) -> tuple[str, ...]:
        """What cannot be computed without a view, and has not failed."""
        return tuple(reader for reader in readers_of(self._plans, view) if reader not in self.failed)

    @property
    def served(self) -> tuple[str, ...]:
        """The views that are not dropped."""
        return tuple(view for view in self.views if view not in self.failed or not self.failed[view].is_dropped)

    def fail_view(self, view: str, failure: ViewFailure) -> list[str]:
        """The view has failed: drop its state. Returns its regions."""
        self.failed[view] = failure
        return self.fail_shards(view, failure)

    def fail_shards(self, view: str, failure: ViewFailure) -> list[str]:
        """Drop the view's state; ``FailedViews`` has not reported it yet. Returns the view's regions."""
        regions = [name for name, shard in self.shards.items() if shard.view == view]
        for name in regions:
            self.shards[name].fail(failure)
        return regions

    # Takeover

    def settled_maps(self) -> dict[str, VnodeMap]:
        """The map that places each region's keys. Raises ProtocolError while keys move."""
        maps: dict[str, VnodeMap] = {}
        for name in self.shards:
            vnode_map = self.map_of(name)
            if vnode_map is None:
                raise ProtocolError(f"all resume, and keys of region {name!r} are moving")
            maps[name] = vnode_map
        return maps

    def succeed(self, old: "Regions", *, keep_partial: bool, put_back: bool) -> None:
        """Keep full regions as of the end of the last epoch (replication.put_back). Keep partial regions as they are
        if ``keep_partial``: else they may have rows of an unfinished epoch, and begin empty."""
        for name, shard in self.shards.items():
            before = old.shards[name]
            if before.partial is None and put_back:
                before.put_back()
            if before.partial is None or keep_partial:
                shard.succeed(before)

    def change_hands(self, before: Mapping[str, VnodeMap]) -> tuple[set[VnodeId], dict[VnodeId, WorkerId]]:
        """Give up slices that another worker owns now. Returns the slices of full regions that this worker owns now,
        and the owner until now of all that changed hands. A failed region holds nothing to take over."""
        gained: set[VnodeId] = set()
        owners: dict[VnodeId, WorkerId] = {}
        for name, shard in self.shards.items():
            moved = before[name].diff(self.maps[name])
            shard.give_up([vnode for vnode, (was, _) in moved.items() if was == self.me])
            if shard.keeps_every_key:
                gained |= {vnode for vnode, (_, now) in moved.items() if now == self.me}
                owners |= {vnode: was for vnode, (was, _) in moved.items()}
        return gained, owners

    def moved_since(self, before: Mapping[str, VnodeMap]) -> set[VnodeId]:
        """The slices that have changed hands in some region."""
        return {vnode for name, vnode_map in before.items() for vnode in vnode_map.diff(self.maps[name])}


def _taken_in_parts(plans: Sequence[DataflowPlan]) -> frozenset[Channel]:
    regions = [(plan, region) for plan in plans for region in plan.spread]
    whole = {channel for plan, region in regions if not plan.takes_parts(region) for _, channel in region.lake_ports}
    return frozenset(channel for _, region in regions for _, channel in region.lake_ports) - whole


def _empty_shard(
    event: Assign,
    plan: DataflowPlan,
    region: RegionPlan,
    migrator: Migrator,
    build_region: BuildRegion,
    rules: Rules,
    *,
    rows_wait: bool,
) -> Shard:
    """A shard that holds nothing; a failed one, if the view has failed or its region cannot be made. rows_wait: for the
    region's stage."""
    build = partial(build_region, plan, region)
    lake_ports = dict(region.lake_ports)
    exchange_ports = range(len(region.inputs)) - lake_ports.keys()
    failed_region = partial(FailedRegion, exchange_ports=exchange_ports, build=build if rows_wait else None)
    failure, state = event.failed.get(plan.name), None
    try:
        state = empty_state(plan, region, build_region, rules, event.start_at) if failure is None else None
    except Exception as error:  # of any kind: a user's function is loaded here
        if not rules.views_fail_alone:  # views.fail_alone
            raise
        failure = ViewFailure.of(error, f"view {plan.name!r}")
    kept = failed_region(failure, 0) if state is None and failure is not None else state
    assert kept is not None
    vnodes = len(event.maps[region.name].owners)
    is_partial = isinstance(kept, PartialRegion | Cone)  # its keys are filled again
    logs = ChangeLogs(
        has_checkpoints=not is_partial and event.chain is not None, can_undo=not is_partial and event.reversible
    )
    are_parted = len(region.inputs) > 1 or plan.unsure(region)
    shard = Shard(
        region.name,
        kept,
        migrator,
        vnodes,
        rules,
        failed_region,
        logs,
        state_stays=plan.is_cone,
        parted_ports=lake_ports if are_parted else (),
    )
    if failure is not None:
        shard.fail(failure)
    return shard


def empty_state(
    plan: DataflowPlan, region: RegionPlan, build_region: BuildRegion, rules: Rules, start_at: Epoch
) -> FullRegionState | PartialRegion | Cone:
    """An empty region that keeps all keys, or, in a partial view, the keys that are read."""
    if plan.is_cone:
        return Cone(plan, partial(build_region, plan), rules.upqueries, start_at)
    if plan.full_because is None:
        return PartialRegion(partial(build_region, plan, region), rules.upqueries)
    return build_region(plan, region)
