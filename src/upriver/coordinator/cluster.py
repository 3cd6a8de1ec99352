"""The app as the coordinator sees it: its flows, and the places, the map and the processes that they share."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from upriver.coordinator.checkpoints import CheckpointTaker
from upriver.coordinator.epochs import Ledger, LoggedVersions
from upriver.coordinator.feeds import FeedBook
from upriver.coordinator.flow import Flow
from upriver.coordinator.places import WorkerPlaces, WorkerProcess
from upriver.coordinator.published import Compacted, PublishedEpochs
from upriver.coordinator.scans import Scans
from upriver.errors import UnknownView, WorkerLost
from upriver.ids import BEGINNING, Epoch, FlowId, WorkerId
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import CoordinatorAction, EpochPublished, FlowBeginning
from upriver.protocol.messages import DropFlow, Retire
from upriver.protocol.rules import Rules
from upriver.state.checkpoint import FoundCheckpoints
from upriver.state.failure import ViewFailure
from upriver.vnodes import VnodeMap

NO_LOGS: Mapping[str, Epoch] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRules:
    """every_epochs: how many epochs end between two checkpoints; ``None``: only on request. outgrown_epochs: after how
    many the newest is dropped; ``None``: never."""

    every_epochs: int | None = None
    outgrown_epochs: int | None = None


class ServedFlow(Flow):
    """A flow with what acts on it: its snapshots, its checkpoints, and its feeds."""

    def __init__(
        self,
        flow: FlowId,
        plans: tuple[DataflowPlan, ...],
        places: WorkerPlaces,
        ledger: Ledger,
        found: FoundCheckpoints,
        every: CheckpointRules | None,
        serves_from: Epoch | None,
    ) -> None:
        """found: the checkpoints from which it restores its state. every: when more are taken; ``None``: never.
        serves_from: the epoch that it has to reflect before its views are served for the first time; ``None``: it is
        one of those that the app begins with."""
        super().__init__(flow, plans, places, ledger, found, takes_checkpoints=every is not None)
        if found.chain:
            ledger.resume(found.chain[0].epoch)
        every = every or CheckpointRules()
        self.scans = Scans(self)
        self.checkpoints = CheckpointTaker(self, found.chain, every.every_epochs, every.outgrown_epochs)
        self.feeds = FeedBook(self)
        self._serves_from = serves_from
        self.stands_aside = False
        """It takes no part in the rescale that is on, and begins anew by the new map."""

    @property
    def is_building(self) -> bool:
        """As :attr:`Flow.is_building`."""
        return self._serves_from is not None

    @property
    def is_to_begin(self) -> bool:
        """Whether it begins anew whenever slices change hands: standbys have nothing of it."""
        return self.is_building or self.stands_aside

    @property
    def built(self) -> float:
        """The share of the rows to read that workers have read of a flow that is built."""
        read = min((member.finished for member in self.members.copy().values()), default=BEGINNING)
        return self.ledger.share_of_rows(read)

    def stand_aside(self) -> None:
        """A rescale begins to move keys without this flow, which begins anew by the new map."""
        self.stands_aside = True

    def join_in(self) -> bool:
        """The rescale is over. Returns whether the flow has stood aside."""
        stood_aside, self.stands_aside = self.stands_aside, False
        return stood_aside

    def serve(self, ended: Epoch) -> None:
        """Its views are served from now on, if it has caught up. ended: the last epoch that all other flows reflect."""
        if self._serves_from is not None and self.is_complete():
            through = self.ledger.ended
            if through >= self._serves_from and through >= ended:
                self._serves_from = None


BUILDS_MAX = 2
"""Flows that are built at a time: of those behind them, no epoch is opened yet."""


class Cluster:
    """All flows of an app. One that is added gets a place for itself at every worker, and no other hears of it."""

    def __init__(self, places: WorkerPlaces, every: CheckpointRules | None, ended_logs: Mapping[str, Epoch]) -> None:
        """every: when checkpoints are taken; ``None``: never. ended_logs: the last version of every change log that
        there has ever been, by view."""
        self.places = places
        self.flows: dict[FlowId, ServedFlow] = {}
        self.ended = BEGINNING
        """The last epoch that all views reflect that are served."""
        self._every = every
        self._epochs = PublishedEpochs()
        """All in the lake, for flows to come."""
        self._log_ends = dict(ended_logs)
        self._last_flow = FlowId(0)

    def __iter__(self) -> Iterator[ServedFlow]:
        return iter(tuple(self.flows.values()))

    @property
    def rules(self) -> Rules:
        return self.places.rules

    @property
    def plans(self) -> tuple[DataflowPlan, ...]:
        """Of all flows' views."""
        return tuple(plan for flow in tuple(self.flows.values()) for plan in flow.views)

    @property
    def failed(self) -> dict[str, ViewFailure]:
        """The views that have failed, and why."""
        failed = ((plan.name, flow.failed.get(plan.name)) for flow in self for plan in flow.views)
        return {view: failure for view, failure in failed if failure is not None}

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """Every place that takes part in epochs."""
        return self.places.workers

    @property
    def reading(self) -> VnodeMap:
        """Which worker reads each vnode's slices."""
        return self.places.reading

    @property
    def processes(self) -> Mapping[WorkerId, WorkerProcess]:
        """The process in each place that has one."""
        return self.places.processes

    @property
    def maps(self) -> dict[str, VnodeMap]:
        """The map of each region, by its name among all: all the same as ``reading`` unless a rescale is on."""
        return {flow.name_of(region): vnode_map for flow in self for region, vnode_map in flow.maps.items()}

    @property
    def vnode_map(self) -> VnodeMap:
        """The owner of each vnode; while a rescale is on, the owner before it."""
        return next((vnode_map for flow in self for vnode_map in flow.maps.values()), self.reading)

    @property
    def lookup_map(self) -> VnodeMap:
        """The worker to ask for the keys of a slice: the one that reads it. That is the new owner as soon as the whole
        slice has moved. Any worker can answer; the old owner would relay the lookup. The version is the regions': so a
        client that uses this map while keys move learns when all have moved."""
        return VnodeMap(self.vnode_map.version, self.reading.owners)

    def act(self, *actions: CoordinatorAction) -> None:
        """Add to the actions of the current step."""
        self.places.act(*actions)

    # Epochs

    @property
    def published(self) -> Epoch:
        """The last epoch in the lake."""
        return self._epochs.last

    def publish(self, event: EpochPublished) -> None:
        """An epoch is in the lake, or at the start a segment."""
        self._epochs.add(event)
        for flow in self:
            flow.ledger.epochs.add(event)

    def compacted(self, event: Compacted) -> None:
        """The lake has a segment that a flow adopts when none of its workers stands among its epochs."""
        self._epochs.compacted(event)
        self._adopt_all()
        for flow in self:
            flow.ledger.epochs.compacted(event)

    def see_what_ended(self) -> None:
        """Note which epochs all views reflect that are served."""
        for flow in self:
            flow.serve(self.ended)
        served = [flow.ledger.ended for flow in self if not (flow.is_building or flow.has_failed)]
        self.ended = Epoch(max(self.ended, min(served))) if served else self.published

    def ended_by_view(self) -> dict[str, Epoch]:
        """The last epoch that each view reflects that has not failed. Another thread may call it."""
        return {plan.name: flow.ledger.ended for flow in self if not flow.has_failed for plan in flow.views}

    # Flows

    def flow_of(self, view: str) -> ServedFlow | None:
        """The flow of a view; ``None`` if there is no view of that name."""
        return next((flow for flow in self if any(plan.name == view for plan in flow.views)), None)

    def region(self, name: str) -> tuple[ServedFlow, str]:
        """The flow of a region, and the region's name in it. name: among those of all flows."""
        found = ((flow, region) for flow in self for region in flow.maps if flow.name_of(region) == name)
        return next(found)

    def unknown(self, view: str) -> UnknownView:
        """The error for a view that no flow has."""
        return UnknownView.among(view, {plan.name: plan.tables for plan in self.plans})

    def begin_with(self, plans: tuple[DataflowPlan, ...], found: FoundCheckpoints, logs: Mapping[str, Epoch]) -> None:
        """The app begins with a flow of these views: flow 1, 2 and so on. found: the checkpoints of it. logs: the last
        version of each change log that goes on, by view."""
        self._make(self._next_flow, plans, found, logs, serves_from=None)

    @property
    def _next_flow(self) -> FlowId:
        return FlowId(self._last_flow + 1)

    def know(self, epochs: Iterable[EpochPublished], since: Collection[Compacted]) -> None:
        """These are the lake's first epochs, with the rows of new indexes. since: as in ``PublishedEpochs.replace``."""
        self._epochs.replace(epochs, since)
        self._adopt_all()

    def add(self, plan: DataflowPlan, begins: FlowBeginning | None) -> ServedFlow:
        """A flow of this view is built, beside the others, from ``build`` on."""
        begins = begins or FlowBeginning(flow=self._next_flow, found=FoundCheckpoints())
        return self._make(begins.flow, (plan,), begins.found, NO_LOGS, serves_from=self.published)

    def waits_to_be_built(self, flow: ServedFlow) -> bool:
        """Whether others that are built come first."""
        building = [other.id for other in self if other.is_building]
        return flow.id in building[BUILDS_MAX:]

    def build(self, flow: ServedFlow) -> None:
        """Tell every worker what it keeps of a flow."""
        for process in self.places.by_worker():
            flow.assign_place(process)

    def _make(
        self,
        number: FlowId,
        plans: tuple[DataflowPlan, ...],
        found: FoundCheckpoints,
        logs: Mapping[str, Epoch],
        serves_from: Epoch | None,
    ) -> ServedFlow:
        self._last_flow = FlowId(max(self._last_flow, number))
        ledger = Ledger(plans, self.rules, LoggedVersions(found=logs, ended=self._log_ends), self._epochs.copy())
        flow = ServedFlow(number, plans, self.places, ledger, found, self._every, serves_from)
        self.flows[flow.id] = flow
        return flow

    def drop(self, flow: ServedFlow) -> None:
        """The flow is gone. What was asked of it is refused, and no worker keeps anything of it."""
        flow.scans.end(WorkerLost("the view was dropped; there is nothing to scan any more"))
        flow.checkpoints.end()
        self._log_ends.update((view, at) for view, at in flow.ledger.logged.items() if at is not None)
        del self.flows[flow.id]
        self.places.tell_all(DropFlow(flow=flow.id))

    def leave(self, flow: ServedFlow, view: str) -> None:
        """A view is gone, and what else is in its flow stays."""
        flow.leave(view)
        at = flow.ledger.end_log(view)
        if at is not None:
            self._log_ends[view] = at

    def _adopt_all(self) -> None:
        """Flows to come begin with segments as they are."""
        self._epochs.adopt(())
        self._epochs.adopt_rewritten(())

    # Workers

    def assign_place(self, process: WorkerProcess) -> None:
        """Tell a process that it keeps what its place does of each flow, as of the flow's newest checkpoint. A flow
        whose shares are all to begin anew waits for that."""
        process.assigned = True
        for flow in self:
            if not flow.is_torn:
                flow.assign_place(process)

    def join(self, process: WorkerProcess) -> None:
        """Tell a process that it keeps nothing yet of any flow, as of the flow's last ended epoch."""
        process.assigned = True
        for flow in self.taking_part:
            if process.worker not in flow.members:
                through = flow.ledger.through
                flow.assign(process, start_at=through, serve_from=Epoch(max(through, flow.generation.serve_from)))

    def remove(self, worker: WorkerId) -> WorkerProcess:
        """The place is empty from now on. Returns the process that was there."""
        process = self.places.leave(worker)
        for flow in self:
            flow.lose(worker)
            flow.scans.lost(process.incarnation)
        return process

    def admit(self, workers: Collection[WorkerId]) -> None:
        """These places take part in epochs from now on."""
        self.places.take_part({*self.workers, *workers})

    def leave_out(self, workers: Collection[WorkerId]) -> None:
        """These places take no part in epochs any more."""
        self.places.take_part(set(self.workers) - set(workers))

    def go_back_to(self, workers: tuple[WorkerId, ...]) -> list[WorkerProcess]:
        """Only these places take part in epochs. Returns the processes of others, which are removed."""
        self.places.take_part(workers)
        return [self.remove(worker) for worker in sorted(set(self.processes) - set(workers))]

    def lose_changes(self) -> None:
        """As :meth:`Flow.lose_changes`, of every flow."""
        for flow in self:
            flow.lose_changes()

    # What holds of all flows

    @property
    def keeps_only_what_is_read(self) -> bool:
        """Whether all views are partial."""
        return bool(self.flows) and all(flow.keeps_only_what_is_read for flow in self)

    @property
    def in_step(self) -> bool:
        """Whether some flow's workers speak to each other."""
        return any(flow.in_step for flow in self)

    @property
    def has_begun(self) -> bool:
        """Whether any epoch was opened since all shares of some flow began."""
        return any(flow.has_begun for flow in self)

    @property
    def is_torn(self) -> bool:
        """Whether all shares of some flow must begin anew."""
        return any(flow.is_torn for flow in self)

    def is_complete(self) -> bool:
        """Whether every place is filled, and every share has restored its state."""
        return self.places.is_filled() and all(flow.is_complete() for flow in self)

    @property
    def taking_part(self) -> list[ServedFlow]:
        """The flows that take part in the rescale that is on, or would."""
        return [flow for flow in self if not flow.stands_aside]

    def is_quiet(self) -> bool:
        """Whether every epoch that was opened has ended, and every share has caught up."""
        return self.places.is_filled() and all(flow.is_quiet() for flow in self.taking_part)

    def speaks_no_more(self) -> bool:
        """Whether no epoch is open for which workers speak to each other, or it is to be repeated."""
        in_step = (flow for flow in self.taking_part if flow.in_step)
        return self.places.is_filled() and all(flow.is_torn or flow.is_quiet() for flow in in_step)

    def is_scanned(self) -> bool:
        """Whether some snapshot is being taken."""
        return not all(flow.scans.is_idle for flow in self.taking_part)

    # Maps

    def go_by(self, maps: Mapping[str, VnodeMap]) -> None:
        """These are the maps of the regions, all the same, and of those too that are not named."""
        (vnode_map, *_) = maps.values()
        self.places.read_by(vnode_map)
        for flow in self:
            flow.go_by({region: maps.get(flow.name_of(region), vnode_map) for region in flow.maps})

    def go_by_one(self, vnode_map: VnodeMap) -> None:
        """This is the map of every region."""
        self.places.read_by(vnode_map)
        for flow in self:
            flow.go_by(dict.fromkeys(flow.maps, vnode_map))

    def adopt(self, maps: Mapping[str, VnodeMap], workers: tuple[WorkerId, ...]) -> int:
        """Take over these maps and workers, and retire all other workers. Returns how many vnodes have moved."""
        vnodes = len(self.vnode_map.diff(next(iter(maps.values()))))
        self.go_by(maps)
        self.places.take_part(workers)
        for worker in sorted(set(self.processes) - set(workers)):
            self.lose_changes()
            self.places.tell(self.remove(worker), Retire())
        return vnodes

    def read_by(self, vnode_map: VnodeMap) -> None:
        """From each flow's next epoch on, slices are read by this map."""
        self.places.read_by(vnode_map)
        for flow in self:
            flow.read_slices()
