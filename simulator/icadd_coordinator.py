"""The coordinator of the migration model: one rescale after the other, planned as the app's coordinator plans them.

The app's machine (:mod:`upriver.coordinator.rescale.machine`) has stages and epochs around that, which the model does
not have.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from upriver.coordinator.rescale.plan import AnnouncedPlan, RescalePlan
from upriver.errors import DeclarationError, IllegalEvent
from upriver.ids import MapVersion, VnodeId, WorkerId
from upriver.migration.events import AbortAsked, RescaleAnnounced
from upriver.migration.rules import MendedRules
from upriver.vnodes import VnodeMap


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRescale:
    """A request for these workers, or these moves. workers: ``None``: unchanged. moves: vnodes to move; ``None``: the
    map is evened out over the workers."""

    workers: tuple[WorkerId, ...] | None = None
    moves: Mapping[VnodeId, WorkerId] | None = None


@dataclass(frozen=True, slots=True)
class StartModelWorkers:
    """The plan's joining workers come up, each a member that owns nothing."""

    plan: RescalePlan


@dataclass(frozen=True, slots=True)
class TellDistributor:
    """To one region's distributor on one worker, after everything announced or aborted before."""

    worker: WorkerId
    region: str
    order: RescaleAnnounced | AbortAsked


@dataclass(frozen=True, slots=True)
class RetireModelWorker:
    """Close the worker's own upstream, then tell each region's distributor there; peers: the workers that stay."""

    worker: WorkerId
    peers: tuple[WorkerId, ...]


ModelAction = StartModelWorkers | TellDistributor | RetireModelWorker


class ModelCoordinator:
    """maps, workers: those of the last rescale that is over. announced: the plan under way. Values that are replaced,
    so that a copy is cheap."""

    def __init__(self, maps: Mapping[str, VnodeMap], workers: tuple[WorkerId, ...], rules: MendedRules) -> None:
        self.maps = maps
        self.workers = workers
        self.announced: AnnouncedPlan | None = None
        self._is_aborted = False
        self._rules = rules
        self._queue: tuple[ModelRescale, ...] = ()

    def copy(self) -> Self:
        return copy.copy(self)

    def ask(self, request: ModelRescale) -> list[ModelAction]:
        """A request, which waits for its turn (icadd.one_rescale_at_a_time); one that cannot be met is dropped."""
        if self.announced is not None and not self._rules.icadd_one_rescale_at_a_time:
            self.maps, self.workers = self.announced.plan.after, self.announced.plan.new
            return self._begin(request)
        self._queue = (*self._queue, request)
        return self._take_up()

    def settled(
        self, worker: WorkerId, region: str, version: MapVersion, kept: tuple[VnodeId, ...]
    ) -> list[ModelAction]:
        """A worker's report for one region; kept: slices that did not move."""
        announced = self.announced
        if announced is None or not announced.awaits(worker, region, version):
            if not self._rules.icadd_one_rescale_at_a_time:
                return []
            raise IllegalEvent(f"worker {worker} settled {region} at {version} unasked")
        self.announced = announced = announced.settled(worker, region, version, kept)
        retired = announced.is_leaver(worker)
        return [*([RetireModelWorker(worker, announced.workers)] if retired else []), *self._end_if_over(announced)]

    def peer_left(self, worker: WorkerId, region: str, leaver: WorkerId) -> list[ModelAction]:
        """A worker that stays has read all that ``leaver`` sent it in one region."""
        if self.announced is None:
            raise IllegalEvent(f"worker {leaver} left {region} of {worker} unasked")
        self.announced = self.announced.peer_left(worker, region, leaver)
        return self._end_if_over(self.announced)

    def abort(self) -> list[ModelAction]:
        """Keep what has not begun to move where it is. The next round gives all regions one map."""
        announced = self.announced
        if announced is None or self._is_aborted:
            return []
        self._is_aborted = True
        order = AbortAsked(version=announced.plan.version)
        return [TellDistributor(worker, region, order) for worker, region in announced.unsettled()]

    def _take_up(self) -> list[ModelAction]:
        actions: list[ModelAction] = []
        while self.announced is None and self._queue:
            request, *left = self._queue
            self._queue = tuple(left)
            actions += self._begin(request)
        return actions

    def _begin(self, request: ModelRescale) -> list[ModelAction]:
        new = self.workers if request.workers is None else request.workers
        try:
            plan = RescalePlan.made(self.maps, self.workers, new, request.moves)
        except DeclarationError:
            return []
        if plan.changes_nothing:
            return []
        self._is_aborted = False
        return [*([StartModelWorkers(plan)] if plan.joining else []), *self._announce(plan)]

    def _announce(self, plan: RescalePlan) -> list[ModelAction]:
        self.announced = announced = AnnouncedPlan.of(plan)
        return [TellDistributor(worker, region, announced.order(region)) for worker, region in announced.unsettled()]

    def _end_if_over(self, announced: AnnouncedPlan) -> list[ModelAction]:
        if not announced.is_over:
            return []
        self.maps, self.workers = announced.maps, announced.workers
        tidying = announced.tidying() if self._is_aborted else None
        if tidying is not None:
            return self._announce(tidying)
        self.announced = None
        return self._take_up()
