"""The coordinator's side of rescales: one at a time, in the order of the requests (icadd.one_rescale_at_a_time).

``NoRescale`` -> ``AwaitingWorkers`` (joining workers come up) -> ``Rescaling`` (until every worker has settled every
region, and leavers have left and all that they sent was read) -> ``NoRescale``, or the next in the queue. A request
that comes meanwhile waits. A leaver is retired as soon as it has settled every region: no worker sends to it any more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any, NewType

from upriver.errors import DeclarationError, IllegalEvent, ProtocolError
from upriver.ids import MapVersion, VnodeId, WorkerId
from upriver.migration.events import AbortAsked, RescaleAnnounced
from upriver.migration.rules import ALL_RULES, MendedRules
from upriver.vnodes import VnodeMap

RegionId = NewType("RegionId", int)
"""A region of the dataflow: each migrates by itself, and has its own map once a rescale was aborted."""

Ticket = NewType("Ticket", int)
"""Names one request for a rescale."""

QUEUE_REQUESTS_MAX = 16


# Events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleAsked:
    """A request for these workers, this many workers, or these moves.

    workers: the new configuration; ``None``: unchanged. count: how many workers; the lowest free ids join, the highest
    leave. moves: vnodes to move; ``None``: the map is evened out over the workers.
    """

    ticket: Ticket
    workers: tuple[WorkerId, ...] | None = None
    count: int | None = None
    moves: Mapping[VnodeId, WorkerId] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersStarted:
    """Every worker of ``AskForWorkers`` can be reached, and routes by the map of each region as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSettled:
    """A worker's report for one region; kept: slices that did not move."""

    worker: WorkerId
    region: RegionId
    version: MapVersion
    kept: tuple[VnodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerGone:
    """A worker that stays has read all that ``leaver`` sent it in one region."""

    worker: WorkerId
    region: RegionId
    leaver: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortRescale:
    """Keep what has not begun to move where it is. Does nothing to a request that is over."""

    ticket: Ticket


Event = RescaleAsked | WorkersStarted | RegionSettled | PeerGone | AbortRescale

# Actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AskForWorkers:
    """Start these workers, each a member that owns nothing; then say ``WorkersStarted``."""

    workers: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce:
    """To one region's distributor on one worker, after everything announced or aborted before."""

    worker: WorkerId
    region: RegionId
    order: RescaleAnnounced | AbortAsked


@dataclass(frozen=True, slots=True, kw_only=True)
class RetireWorkers:
    """Close the worker's own upstream, then tell each region's distributor there; peers: the workers that stay."""

    worker: WorkerId
    peers: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleOver:
    """Every worker routes by ``maps``, and the leavers have left. workers: those there now. aborted: by request."""

    ticket: Ticket
    maps: Mapping[RegionId, VnodeMap]
    workers: tuple[WorkerId, ...]
    aborted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleRefused:
    """The request cannot be met, and nothing was changed."""

    ticket: Ticket
    error: DeclarationError


Action = AskForWorkers | Announce | RetireWorkers | RescaleOver | RescaleRefused

# Phases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRescale:
    """Nothing moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RescalePlan:
    """One accepted request: the maps of each region, and the workers, before and after.

    aborted: slices that had not begun to move were left where they were.
    """

    ticket: Ticket
    before: Mapping[RegionId, VnodeMap]
    after: Mapping[RegionId, VnodeMap]
    old: tuple[WorkerId, ...]
    new: tuple[WorkerId, ...]
    aborted: bool = False

    @property
    def joining(self) -> tuple[WorkerId, ...]:
        return tuple(worker for worker in self.new if worker not in self.old)

    @property
    def members(self) -> tuple[WorkerId, ...]:
        return tuple(sorted({*self.old, *self.new}))

    @property
    def version(self) -> MapVersion:
        return next(iter(self.after.values())).version


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitingWorkers:
    """Joining workers come up; nothing was announced."""

    plan: RescalePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescaling:
    """waiting: all and only the workers and regions that have not settled. kept: slices that stay, per region.
    unread: all and only the workers, regions and retired leavers between which something may be on its way.
    """

    plan: RescalePlan
    waiting: frozenset[tuple[WorkerId, RegionId]]
    kept: Mapping[RegionId, tuple[VnodeId, ...]]
    unread: frozenset[tuple[WorkerId, RegionId, WorkerId]] = frozenset()


Phase = NoRescale | AwaitingWorkers | Rescaling


class RescaleCoordinator:
    """Decides which rescale runs. ``maps``, ``workers``: those of the last rescale that is over."""

    def __init__(
        self, maps: Mapping[RegionId, VnodeMap], workers: tuple[WorkerId, ...], rules: MendedRules = ALL_RULES
    ) -> None:
        self.maps = maps
        self.workers = workers
        self.rules = rules
        self.phase: Phase = NoRescale()
        self.queue: tuple[RescaleAsked, ...] = ()

    def step(self, event: Event) -> tuple[Action, ...]:
        """Advance by one event. Raises IllegalEvent where the phase does not allow it."""
        handler = _HANDLERS[type(event)]
        actions: list[Action] = []
        handler(self, event, actions)
        while isinstance(self.phase, NoRescale) and self.queue:
            request, *rest = self.queue
            self.queue = tuple(rest)
            self._begin(request, actions)
        return tuple(actions)

    def _asked(self, event: RescaleAsked, actions: list[Action]) -> None:
        if len(self.queue) >= QUEUE_REQUESTS_MAX:
            error = DeclarationError(f"{QUEUE_REQUESTS_MAX} rescales wait already")
            actions.append(RescaleRefused(ticket=event.ticket, error=error))
        elif self.rules.icadd_one_rescale_at_a_time or isinstance(self.phase, NoRescale):
            self.queue = (*self.queue, event)
        elif isinstance(self.phase, Rescaling):
            self.maps, self.workers = self.phase.plan.after, self.phase.plan.new
            self._begin(event, actions)

    def _begin(self, request: RescaleAsked, actions: list[Action]) -> None:
        try:
            plan = self._plan(request)
        except DeclarationError as error:
            actions.append(RescaleRefused(ticket=request.ticket, error=error))
            return
        if all(plan.after[region] == plan.before[region] for region in plan.before) and plan.new == plan.old:
            actions.append(RescaleOver(ticket=plan.ticket, maps=self.maps, workers=self.workers))
            return
        plan = replace(plan, after={region: _next_version(plan, region) for region in sorted(plan.before)})
        if plan.joining:
            actions.append(AskForWorkers(workers=plan.joining))
            self.phase = AwaitingWorkers(plan=plan)
        else:
            self._announce(plan, actions)

    def _plan(self, request: RescaleAsked) -> RescalePlan:
        new = self._workers_wanted(request)
        if not new or len(set(new)) != len(new):
            raise DeclarationError(f"a rescale needs one worker or more, each named once, not {new}")
        after = {}
        for region, map_now in self.maps.items():
            after[region] = map_now.rebalanced(new) if request.moves is None else map_now.moved(request.moves)
            homeless = set(after[region].workers) - set(new)
            if homeless:
                raise DeclarationError(f"workers {sorted(homeless)} would own vnodes, but are not among {list(new)}")
        return RescalePlan(ticket=request.ticket, before=self.maps, after=after, old=self.workers, new=new)

    def _workers_wanted(self, request: RescaleAsked) -> tuple[WorkerId, ...]:
        if request.workers is not None:
            return tuple(sorted(request.workers))
        if request.count is None:
            return self.workers
        free = (WorkerId(number) for number in count() if number not in self.workers)
        joining = islice(free, max(0, request.count - len(self.workers)))
        return tuple(sorted([*self.workers[: max(0, request.count)], *joining]))

    @property
    def maps_by_now(self) -> Mapping[RegionId, VnodeMap]:
        """The maps that the current rescale will end with. They are known once some worker has settled."""
        assert isinstance(self.phase, Rescaling)
        return _maps_now(self.phase)

    def _started(self, event: WorkersStarted, actions: list[Action]) -> None:
        if not isinstance(self.phase, AwaitingWorkers):
            raise IllegalEvent(f"the coordinator is {type(self.phase).__name__}: no workers were to be started")
        self._announce(self.phase.plan, actions)

    def _announce(self, plan: RescalePlan, actions: list[Action]) -> None:
        waiting = frozenset((worker, region) for worker in plan.members for region in plan.after)
        self.phase = Rescaling(plan=plan, waiting=waiting, kept={})
        for worker, region in sorted(waiting):
            before, after = plan.before[region], plan.after[region]
            order = RescaleAnnounced(before=before, after=after, old=plan.old, new=plan.new)
            actions.append(Announce(worker=worker, region=region, order=order))

    def _settled(self, event: RegionSettled, actions: list[Action]) -> None:
        phase, who = self.phase, (event.worker, event.region)
        if not isinstance(phase, Rescaling) or event.version != phase.plan.version or who not in phase.waiting:
            if not self.rules.icadd_one_rescale_at_a_time:
                return
            raise IllegalEvent(f"worker {event.worker} settled region {event.region} at {event.version} unasked")
        if phase.kept.get(event.region, event.kept) != event.kept:
            raise ProtocolError(f"workers do not agree on what of region {event.region} was kept")
        phase = replace(phase, waiting=phase.waiting - {who}, kept={**phase.kept, event.region: event.kept})
        if not any((event.worker, region) in phase.waiting for region in phase.plan.after):
            phase = _retire_leaver(phase, event.worker, actions)
        self.phase = phase
        self._end_if_over(phase, actions)

    def _peer_gone(self, event: PeerGone, actions: list[Action]) -> None:
        phase, who = self.phase, (event.worker, event.region, event.leaver)
        if not isinstance(phase, Rescaling) or who not in phase.unread:
            raise IllegalEvent(f"worker {event.leaver} left region {event.region} of {event.worker} unasked")
        self.phase = phase = replace(phase, unread=phase.unread - {who})
        self._end_if_over(phase, actions)

    def _end_if_over(self, phase: Rescaling, actions: list[Action]) -> None:
        if phase.waiting or phase.unread:
            return
        plan = phase.plan
        self.maps, self.workers = _maps_now(phase), _workers_now(phase)
        if plan.aborted and (tidying := _tidied(plan, self.maps, self.workers)) is not None:
            self._announce(tidying, actions)
            return
        self.phase = NoRescale()
        over = RescaleOver(ticket=plan.ticket, maps=self.maps, workers=self.workers, aborted=plan.aborted)
        actions.append(over)

    def _abort(self, event: AbortRescale, actions: list[Action]) -> None:
        """A rescale that is not announced yet is just given up. After an abort, another round gives all regions one map
        and retires the workers that own nothing."""
        phase = self.phase
        if any(request.ticket == event.ticket for request in self.queue):
            self.queue = tuple(request for request in self.queue if request.ticket != event.ticket)
            error = DeclarationError("the rescale was aborted while it waited for another")
            actions.append(RescaleRefused(ticket=event.ticket, error=error))
        if isinstance(phase, Rescaling) and phase.plan.ticket == event.ticket and not phase.plan.aborted:
            self.phase = replace(phase, plan=replace(phase.plan, aborted=True))
            for worker, region in sorted(phase.waiting):
                order = AbortAsked(version=phase.plan.version)
                actions.append(Announce(worker=worker, region=region, order=order))
        elif isinstance(phase, AwaitingWorkers) and phase.plan.ticket == event.ticket:
            self.phase = AwaitingWorkers(plan=replace(phase.plan, after=_same_owners(phase.plan), aborted=True))


def _next_version(plan: RescalePlan, region: RegionId) -> VnodeMap:
    """One region may have nothing to move; the regions' versions go up together all the same."""
    return VnodeMap(MapVersion(plan.before[region].version + 1), plan.after[region].owners)


def _same_owners(plan: RescalePlan) -> Mapping[RegionId, VnodeMap]:
    return {region: VnodeMap(plan.version, plan.before[region].owners) for region in plan.before}


def _tidied(plan: RescalePlan, maps: Mapping[RegionId, VnodeMap], workers: tuple[WorkerId, ...]) -> RescalePlan | None:
    """The round after an abort: all regions use the first one's map, and no worker is left that owns nothing. ``None``
    if that holds already."""
    goal = maps[min(maps)]
    if workers == goal.workers and all(map_now.owners == goal.owners for map_now in maps.values()):
        return None
    after = {region: VnodeMap(MapVersion(goal.version + 1), goal.owners) for region in maps}
    return replace(plan, before=maps, after=after, old=workers, new=goal.workers)


def _retire_leaver(phase: Rescaling, worker: WorkerId, actions: list[Action]) -> Rescaling:
    """Retire the worker, which has settled every region, if it leaves. It has heard the fate of every slice, so all
    regions' maps are known."""
    staying = _workers_now(phase)
    if worker in staying:
        return phase
    actions.append(RetireWorkers(worker=worker, peers=staying))
    unread = {(peer, region, worker) for peer in staying for region in phase.plan.after}
    return replace(phase, unread=phase.unread | unread)


def _maps_now(phase: Rescaling) -> Mapping[RegionId, VnodeMap]:
    before, after = phase.plan.before, phase.plan.after
    return {region: after[region].keeping(before[region], phase.kept[region]) for region in sorted(after)}


def _workers_now(phase: Rescaling) -> tuple[WorkerId, ...]:
    owners = {worker for region_map in _maps_now(phase).values() for worker in region_map.workers}
    return tuple(sorted({*phase.plan.new, *owners}))


_HANDLERS: Mapping[type, Callable[[RescaleCoordinator, Any, list[Action]], None]] = {
    RescaleAsked: RescaleCoordinator._asked,
    WorkersStarted: RescaleCoordinator._started,
    RegionSettled: RescaleCoordinator._settled,
    PeerGone: RescaleCoordinator._peer_gone,
    AbortRescale: RescaleCoordinator._abort,
}
