"""A flow as the coordinator sees it: its views, how far its epochs have come, and its share at each worker.

Each flow has epochs, generations, checkpoints and failures of its own: what happens to one changes no other. Workers'
places, the map and the processes are those of all (``WorkerPlaces``).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import dropwhile

from upriver.coordinator.epochs import Ledger
from upriver.coordinator.places import WorkerPlaces, WorkerProcess
from upriver.ids import BEGINNING, Epoch, FlowId, Incarnation, VnodeId, WorkerId
from upriver.plan.flows import readers_of
from upriver.plan.plan import DataflowPlan, view_of
from upriver.protocol.coordinator_events import CoordinatorAction, Tell
from upriver.protocol.messages import (
    Assign,
    Counted,
    EpochFinished,
    Evicted,
    ForShare,
    FromShare,
    KeysUnfilled,
    OpenEpoch,
    ReadVnodes,
    Restored,
    Resume,
    StageDone,
    StartedAnew,
    ToShare,
)
from upriver.protocol.rules import Rules
from upriver.state.checkpoint import FoundCheckpoints
from upriver.state.failure import ViewFailure
from upriver.vnodes import VnodeMap

UNHEARD = -1
"""The generation of a share that has yet to say that it has begun."""
EPOCHS_AHEAD_MAX = 4
"""Epochs that a worker is sent before it has reported them."""


@dataclass(slots=True, kw_only=True)
class Member:
    """The flow's share at the current incarnation in one worker's place.

    is_restored: it has restored what checkpoints have of what it keeps. generation: of what it says. reads: the vnodes
    whose slices it was told to read.
    """

    worker: WorkerId
    incarnation: Incarnation
    is_restored: bool = False
    generation: int = 0
    reads: tuple[VnodeId, ...] = ()
    sent: Epoch = field(default=Epoch(0))
    finished: Epoch = field(default=Epoch(0))
    stats: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unfilled: dict[str, ViewFailure] = field(default_factory=dict)
    """By partial view: why the last key that failed to fill could not be filled."""

    def heard(self, message: FromShare, *, keeps_highest: bool) -> None:
        """The share reports how it is. keeps_highest: rule coordinator.late_reports_change_nothing."""
        if isinstance(message, EpochFinished | Counted | Evicted | StageDone):
            self.stats = message.stats
        match message:
            case StartedAnew():
                self.generation = max(message.generation, self.generation if keeps_highest else 0)
            case EpochFinished():
                self.finished = Epoch(max(message.epoch, self.finished if keeps_highest else BEGINNING))
            case KeysUnfilled():
                self.unfilled[message.view] = message.failure
            case Restored():
                self.is_restored = True


@dataclass(slots=True)
class Generation:
    """What all shares speak as. number: how often all began anew or resumed. born: the number when all began anew
    last; in later generations they keep their state. serve_from: what was published when this one began: clients may
    have seen some of it by then."""

    number: int = 0
    born: int = 0
    serve_from: Epoch = BEGINNING

    def begin_anew(self, published: Epoch) -> None:
        """All workers begin from a checkpoint, or from nothing."""
        self.resume(published)
        self.born = self.number

    def resume(self, seen: Epoch) -> None:
        """All workers go on with the state they keep."""
        self.number += 1
        self.serve_from = seen


@dataclass(slots=True)
class SentEpochs:
    """for_all: the last epoch that was opened for all workers at a time. ever: the highest epoch that any worker was
    ever sent: clients may have seen some of it."""

    for_all: Epoch = BEGINNING
    ever: Epoch = BEGINNING


class Flow:
    """One view or more with all regions that they need.

    It is *building* until it has caught up for the first time (``is_building``), then *serving*, and *gone* when it is
    in the cluster no more.
    """

    def __init__(
        self,
        flow: FlowId,
        plans: tuple[DataflowPlan, ...],
        places: WorkerPlaces,
        ledger: Ledger,
        found: FoundCheckpoints,
        *,
        takes_checkpoints: bool,
    ) -> None:
        """found: the checkpoints to begin with. takes_checkpoints: whether there will be others."""
        self.id = flow
        self.plans = plans
        self.places = places
        self.ledger = ledger
        self.chain: tuple[Epoch, ...] | None = None
        """The checkpoints to begin with, newest first; ``None``: none are ever taken."""
        if takes_checkpoints:
            self.chain = tuple(checkpoint.epoch for checkpoint in found.chain)
        self._checkpoint_place = found.place
        failed = found.chain[0].failed if found.chain else {}
        self.failed: dict[str, ViewFailure] = {plan.name: failed[plan.name] for plan in plans if plan.name in failed}
        """The views that have failed, and why; and those that are gone."""
        self._gone = frozenset[str]()
        """The views that were dropped, while what else is in the flow stays. They are as failed ones, and have no
        name."""
        self.maps: dict[str, VnodeMap] = {region.name: places.reading for plan in plans for region in plan.spread}
        """Of each region: all the same as ``reading`` unless a rescale is on."""
        self.generation = Generation()
        self.sent = SentEpochs()
        self.members: dict[WorkerId, Member] = {}
        """The share at each worker that was assigned one."""
        self._deaths: dict[WorkerId, tuple[Epoch, int]] = {}
        """By place: the epoch at which a worker's process has died in a step of this flow, and how often running."""
        self.is_torn = False
        """coordinator.anew_when_torn: exchanged rows may be lost, so all shares must begin anew."""
        self.has_lost_changes = False
        """checkpoints.whole_after_losses: only a worker that is gone knew which keys have changed since the newest
        checkpoint."""

    def __repr__(self) -> str:
        return f"Flow {self.id} ({', '.join(plan.name for plan in self.views)})"

    @property
    def counts_changes(self) -> bool:
        """Whether what it computes depends on where one epoch ends and the next begins."""
        return any(plan.counts_changes for plan in self.plans)

    @property
    def views(self) -> tuple[DataflowPlan, ...]:
        """The plans of those views and stateful maps that are not dropped."""
        gone = self._gone
        return tuple(plan for plan in self.plans if plan.name not in gone)

    @property
    def rules(self) -> Rules:
        return self.places.rules

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """Every place that takes part in epochs."""
        return self.places.workers

    @property
    def reading(self) -> VnodeMap:
        """Which worker reads each vnode's slices."""
        return self.places.reading

    @property
    def is_building(self) -> bool:
        """Whether it was added to a running app, and has yet to catch up for the first time."""
        return False

    def act(self, *actions: CoordinatorAction) -> None:
        """Add to the actions of the current step."""
        self.places.act(*actions)

    # Members

    def lose(self, worker: WorkerId) -> None:
        """The incarnation in this place is gone, and what it applied with it."""
        self.members.pop(worker, None)
        self.ledger.forget(worker)

    def by_worker(self) -> list[Member]:
        """All members, in order of place."""
        return [self.members[worker] for worker in sorted(self.members)]

    def of_incarnation(self, incarnation: Incarnation) -> Member | None:
        return next((member for member in self.by_worker() if member.incarnation == incarnation), None)

    # Checkpoints and failures

    def tear(self) -> None:
        """All shares must begin anew."""
        self.is_torn = True

    def lose_changes(self) -> None:
        """A worker is gone that alone knew which of its keys have changed (checkpoints.whole_after_losses)."""
        self.has_lost_changes = True

    def checkpointed(self, at: Epoch, *, is_whole: bool, knows_changes: bool) -> None:
        """The newest checkpoint is as of this epoch. is_whole: workers need no older one. knows_changes: workers know
        all that has changed since."""
        self.chain = (at,) if is_whole else (at, *(self.chain or ()))
        self.has_lost_changes &= not knows_changes

    def drop_checkpoints(self) -> None:
        """Workers begin with nothing, and the next checkpoint is whole."""
        assert self.chain
        self.chain = ()

    def skip_newest_checkpoint(self) -> None:
        """Workers begin with the one before; checkpoints.not_within_a_segment: that is not within a segment."""
        assert self.chain
        self.chain = self.chain[1:]
        if self.rules.checkpoints_not_within_a_segment:
            self.chain = tuple(dropwhile(self.ledger.epochs.is_within_a_segment, self.chain))
        self.lose_changes()

    def fail(self, view: str, failure: ViewFailure) -> Mapping[str, ViewFailure]:
        """A view has failed. Returns those that fail by that, each with its cause. The first failure counts.
        views.fail_readers: what reads a stateful map fails with it, for the map's rows come no more."""
        readers = readers_of(self.plans, view) if self.rules.views_fail_readers else ()
        causes = failure.with_readers(view, readers)
        new = {name: cause for name, cause in causes.items() if name not in self.failed}
        self.failed.update(new)
        return new

    def name_of(self, region: str) -> str:
        """A region's name among those of all flows: another view may have the name of one that is gone."""
        return f"{region} of flow {self.id}" if view_of(region) in self._gone else region

    def leave(self, view: str) -> None:
        """A view is dropped, and others of the flow stay."""
        self._gone |= {view}

    def count_death(self, worker: WorkerId, epoch: Epoch) -> int:
        """The process in this place has died in a step of the flow, at this epoch. Returns how often running."""
        at, running = self._deaths.get(worker, (epoch, 0))
        self._deaths[worker] = epoch, running + 1 if at == epoch else 1
        return self._deaths[worker][1]

    def forget_deaths(self) -> None:
        """Forget those at epochs that every share has finished since."""
        for worker, (epoch, _) in list(self._deaths.items()):
            if self.has_caught_up(epoch):
                del self._deaths[worker]

    def is_complete(self) -> bool:
        """Whether every place is filled, and every share has restored its state."""
        return all(worker in self.members and self.members[worker].is_restored for worker in self.workers)

    @property
    def keeps_only_what_is_read(self) -> bool:
        """Whether all views are partial."""
        return all(plan.full_because is None for plan in self.plans)

    @property
    def start_at(self) -> Epoch:
        """The epoch that a share may begin at with what checkpoints have of its keys. Where all views are partial, it
        begins with nothing."""
        if self.keeps_only_what_is_read:
            return self.ledger.through
        return self.chain[0] if self.chain else BEGINNING

    @property
    def in_step(self) -> bool:
        """Whether epochs are opened one at a time, and workers speak to each other."""
        return self.ledger.is_staged or self.places.is_followed

    @property
    def has_begun(self) -> bool:
        """Whether any epoch was opened since all shares began."""
        return self.ledger.through > 0 or any(member.sent > 0 for member in self.by_worker())

    def speaks_as_one(self) -> bool:
        """Whether every share has begun in the flow's generation, so that none ignores what another sends it."""
        return all(
            worker in self.members and self.members[worker].generation == self.generation.number
            for worker in self.workers
        )

    @property
    def has_failed(self) -> bool:
        """Whether all its views have failed."""
        return self.failed.keys() >= {plan.name for plan in self.plans}

    def is_quiet(self) -> bool:
        """Whether every epoch that was opened has ended, and every share has caught up."""
        if not self.is_complete():
            return False
        members = [self.members[worker] for worker in self.workers]
        return all(member.finished == member.sent == self.ledger.through for member in members)

    def can_be_cut(self) -> bool:
        """Whether all shares will come to a cut at or after the last ended epoch. Where workers go in step, they must
        stand at the cut: no row of the next epoch leaves a worker before all have read it, and so stood there."""
        if not self.in_step:
            return self.is_complete()
        return self.is_quiet() and self.ledger.through >= self.ledger.ended

    def has_caught_up(self, until: Epoch) -> bool:
        """Whether every place is filled, and every share has finished this epoch."""
        if not self.is_complete() or (self.ledger.is_staged and self.ledger.through < until):
            return False
        return all(member.finished >= until for member in self.by_worker())

    def tell(self, member: Member, message: ToShare) -> None:
        self.act(Tell(incarnation=member.incarnation, message=ForShare(flow=self.id, message=message)))

    def tell_all(self, message: ToShare) -> None:
        for member in self.by_worker():
            self.tell(member, message)

    def assign(self, process: WorkerProcess, start_at: Epoch, serve_from: Epoch) -> None:
        """Tell a process what it keeps, as of ``start_at``."""
        member = self.members.get(process.worker)
        if member is None or member.incarnation != process.incarnation:
            generation = UNHEARD if self.is_building else self.generation.number  # a meeting follows its assignment
            member = Member(worker=process.worker, incarnation=process.incarnation, generation=generation)
            self.members[process.worker] = member  # any other will say when it has started anew
        member.is_restored = not self.chain
        member.sent = member.finished = start_at
        member.unfilled.clear()
        member.reads = self.reading.vnodes_of_worker(member.worker)
        assign = Assign(
            worker=member.worker,
            plans=self.plans,
            maps=dict(self.maps),
            reads=member.reads,
            start_at=start_at,
            serve_from=Epoch(max(serve_from, start_at)),
            generation=self.generation.number,
            chain=self.chain,
            reversible=self.places.is_reversible,
            failed=dict(self.failed),
            logged=self.ledger.noted,
            checkpoints=self._checkpoint_place,
            builds=self.is_building,
        )
        self.tell(member, assign)

    def assign_place(self, process: WorkerProcess) -> None:
        """Tell a process that it keeps what its place does, as of the newest checkpoint."""
        if not (self.has_begun or self.by_worker()) and self.keeps_only_what_is_read:
            self.ledger.pass_over()
        self.assign(process, start_at=self.start_at, serve_from=self.ledger.published)

    def start_anew(self) -> None:
        """All shares begin from the newest checkpoint, or from nothing, as another generation. They record what changes
        from there on."""
        self.is_torn = self.has_lost_changes = False
        self.sent.for_all = BEGINNING
        self.generation.begin_anew(self.ledger.published)
        self.ledger.start_anew(self.chain[0] if self.chain else BEGINNING)
        for worker, process in sorted(self.places.processes.items()):
            if process.assigned or worker in self.workers:  # else it joins when all workers are ready
                process.assigned = True  # the other flows begin anew, too, if it was not
                self.assign(process, start_at=self.start_at, serve_from=self.ledger.published)

    def resume(self, vnode_map: VnodeMap) -> None:
        """All shares go on by this map with the state they keep, as of the last epoch's end, as another generation."""
        at, generation = self.ledger.through, self.generation
        generation.resume(Epoch(max(generation.serve_from, self.opened)))
        self.go_by(dict.fromkeys(self.maps, vnode_map))
        self.ledger.start_anew(at)
        for member in self.by_worker():
            member.sent = member.finished = at
            member.reads = vnode_map.vnodes_of_worker(member.worker)
            resume = Resume(
                maps=dict(self.maps),
                reads=member.reads,
                at=at,
                serve_from=generation.serve_from,
                generation=generation.number,
            )
            self.tell(member, resume)

    def go_by(self, maps: Mapping[str, VnodeMap]) -> None:
        """These are the maps of the regions."""
        self.maps = dict(maps)

    def read_slices(self) -> None:
        """From the next epoch on, slices are read by the map of all."""
        for member in self.by_worker():
            vnodes = self.reading.vnodes_of_worker(member.worker)
            if vnodes != member.reads:
                member.reads = vnodes
                self.tell(member, ReadVnodes(vnodes=vnodes))

    @property
    def opened(self) -> Epoch:
        """The last epoch that any worker was sent."""
        return Epoch(max([self.ledger.ended, *(member.sent for member in self.by_worker())]))

    def open_ahead(self, last: Epoch) -> None:
        """Let every member have as many epochs as it may, up to ``last``."""
        for member in self.by_worker():
            for epoch in self.ledger.epochs.between(member.finished, last, EPOCHS_AHEAD_MAX):
                if epoch > member.sent:
                    self._open(member, epoch, mixed=self.ledger.through < epoch <= self.sent.for_all)

    # Segments

    @property
    def stands(self) -> list[tuple[Epoch, Epoch]]:
        """Where workers stand, or may begin: the last epoch that is finished, and the last that was sent."""
        members = [(member.finished, member.sent) for member in self.members.values()]
        through = self.ledger.through
        begin = [(epoch, epoch) for epoch in self._newest_checkpoint]
        logged = [(epoch, epoch) for epoch in self._logged]
        return [(through, Epoch(max(through, self.sent.for_all))), *begin, *logged, *members]

    @property
    def _newest_checkpoint(self) -> tuple[Epoch, ...]:
        """The one that workers begin with. The older ones of the chain may be of epochs within segments: they give
        state, and no worker begins there (checkpoints.not_within_a_segment)."""
        return (self.chain or ())[:1]

    @property
    def _logged(self) -> tuple[Epoch, ...]:
        """The last versions of change logs: workers need the epochs after them apart (changes.not_within_a_segment)."""
        if not self.rules.changes_not_within_a_segment:
            return ()
        return tuple(epoch for epoch in self.ledger.logged.values() if epoch is not None)

    def adopt_segments(self, cuts: Collection[Epoch]) -> None:
        """coordinator.none_within_a_segment: open the epochs of segments as one where no worker stands among them, or
        is to stop there, or may begin there soon. coordinator.rewritten_for_all. cuts: where that is."""
        stands = [*self.stands, *((cut, cut) for cut in cuts)]
        epochs = self.ledger.epochs
        epochs.adopt(stands if self.rules.coordinator_none_within_a_segment else [])
        epochs.adopt_rewritten(stands if self.rules.coordinator_rewritten_for_all else [])

    def horizon(self, cuts: Collection[Epoch]) -> Epoch:
        """The last epoch that none needs apart from those before it: every worker is through it, and begins again at a
        later one or at the first. No segment before it waits. cuts: where workers are to stop, or may begin soon.

        A map that gets net changes would get others, and give other rows than before, if a worker that begins at the
        first epoch found some of them merged. So none is merged before there is a checkpoint to begin with."""
        if self.counts_changes and not self.chain:
            return BEGINNING
        waits = self.ledger.epochs.first_waiting
        members = [member.finished for member in self.by_worker()]
        known = [self.ledger.through, self.ledger.ended, *self._newest_checkpoint, *self._logged, *members, *cuts]
        return Epoch(min(known if waits is None else [*known, waits]))

    @property
    def may_open_next(self) -> bool:
        """Whether there is an epoch to open, and all that were opened have ended."""
        return self.ledger.published > self.ledger.through and self.is_quiet()

    def open_next(self, *, keys_move: bool) -> None:
        """Open the next epoch for all workers. Its rows may be applied at other workers than those that read them.

        Unless workers go through each epoch in step, epochs that have piled up are opened too, as many as may be open.
        """
        at_once = 1 if self.in_step else EPOCHS_AHEAD_MAX
        for epoch in self.ledger.epochs.between(self.ledger.through, self.ledger.published, at_once):
            self.sent.for_all = epoch
            if keys_move:
                self.ledger.open_mixed(epoch)
            for worker in self.workers:
                self._open(self.members[worker], epoch, mixed=True)

    def _open(self, member: Member, epoch: Epoch, *, mixed: bool) -> None:
        member.sent, self.sent.ever = epoch, Epoch(max(epoch, self.sent.ever))
        epochs = self.ledger.epochs
        opened = epochs[epoch]
        clock = opened.clock if self.rules.clock_own_instant else epochs.clock
        self.tell(
            member,
            OpenEpoch(epoch=epoch, mixed=mixed, after=opened.after, as_of=epochs.as_of, clock=clock),
        )
