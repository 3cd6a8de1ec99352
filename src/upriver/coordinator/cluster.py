"""The coordinator's view of its workers: which are there, what each keeps, and what each is told."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile

from upriver.coordinator.epochs import Ledger
from upriver.coordinator.published import Compacted
from upriver.coordinator.spread import staying_workers
from upriver.ids import BEGINNING, Epoch, Incarnation, VnodeId, WorkerId
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import CoordinatorAction, EpochPublished, Tell
from upriver.protocol.messages import (
    Assign,
    Counted,
    EpochFinished,
    Evicted,
    FromWorker,
    HeldUp,
    KeysUnfilled,
    OpenEpoch,
    ReadVnodes,
    Restored,
    Resume,
    Retire,
    StageDone,
    StartedAnew,
    ToWorker,
)
from upriver.protocol.rules import Rules
from upriver.state.failure import ViewFailure
from upriver.vnodes import VnodeMap

EPOCHS_AHEAD_MAX = 4
"""Epochs that a worker is sent before it has reported them."""


@dataclass(slots=True, kw_only=True)
class Member:
    """The current incarnation in one worker's place.

    assigned: it was told what it keeps. is_restored: it has restored what checkpoints have of that. generation: of
    what it says. reads: the vnodes whose slices it was told to read. instance: the executor that it is lost with.
    """

    worker: WorkerId
    incarnation: Incarnation
    address: str
    instance: str = ""
    assigned: bool = False
    is_restored: bool = False
    generation: int = 0
    reads: tuple[VnodeId, ...] = ()
    sent: Epoch = field(default=Epoch(0))
    finished: Epoch = field(default=Epoch(0))
    stats: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    held_up: str | None = None
    """Why it cannot read the lake: it tries again."""
    unfilled: dict[str, ViewFailure] = field(default_factory=dict)
    """By partial view: why the last key that failed to fill could not be filled."""

    def heard(self, message: FromWorker, *, keeps_highest: bool) -> None:
        """The worker reports how it is. keeps_highest: rule coordinator.late_reports_change_nothing."""
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
            case HeldUp():
                self.held_up = message.error


@dataclass(slots=True)
class Generation:
    """What all workers speak as. number: how often all began anew or resumed. born: the number when all began anew
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


@dataclass(slots=True, kw_only=True)
class Cluster:
    """workers: every place that takes part in epochs. reading: which worker reads each vnode's slices. maps: of each
    region; all the same as ``reading`` unless a rescale is on."""

    plans: tuple[DataflowPlan, ...]
    rules: Rules
    workers: tuple[WorkerId, ...]
    reading: VnodeMap
    maps: dict[str, VnodeMap]
    ledger: Ledger
    generation: Generation = field(default_factory=Generation)
    sent: SentEpochs = field(default_factory=SentEpochs)
    is_followed: bool = False
    """Workers follow each other, or may."""
    is_reversible: bool = False
    """Standbys may take over from a lost worker, as of the last epoch's end."""
    chain: tuple[Epoch, ...] | None = None
    """Checkpoints to begin with, newest first; ``None``: none are ever taken."""
    has_lost_changes: bool = False
    """checkpoints.whole_after_losses: only a worker that is gone knew which keys have changed since the newest
    checkpoint."""
    failed: dict[str, ViewFailure] = field(default_factory=dict)
    """The views that have failed, and why: until they are dropped or declared otherwise."""
    members: dict[WorkerId, Member] = field(default_factory=dict)
    actions: list[CoordinatorAction] = field(default_factory=list)
    """The actions of the current step."""

    def begin_step(self) -> None:
        """No action is decided on yet."""
        self.actions = []

    def act(self, *actions: CoordinatorAction) -> None:
        """Add to the actions of the current step."""
        self.actions += actions

    # Members

    def enter(self, member: Member) -> None:
        """This incarnation is in its place from now on."""
        self.members[member.worker] = member

    def remove(self, worker: WorkerId) -> Member:
        """The place is empty from now on. Returns the member that was there."""
        return self.members.pop(worker)

    def admit(self, workers: Collection[WorkerId]) -> None:
        """These places take part in epochs from now on."""
        self.workers = tuple(sorted({*self.workers, *workers}))

    def leave_out(self, workers: Collection[WorkerId]) -> None:
        """These places take no part in epochs any more."""
        self.workers = tuple(worker for worker in self.workers if worker not in workers)

    def go_back_to(self, workers: tuple[WorkerId, ...]) -> list[Member]:
        """Only these places take part in epochs. Returns the members of others, which are removed."""
        self.workers = workers
        return [self.members.pop(worker) for worker in sorted(set(self.members) - set(workers))]

    def follow(self, *, is_followed: bool, is_reversible: bool) -> None:
        """Whether workers follow each other, and whether standbys may take over."""
        self.is_followed, self.is_reversible = is_followed, is_reversible

    def staying(self, size: int | None) -> tuple[WorkerId, ...]:
        """The workers that stay if a rescale leaves only so many; ``None``: all."""
        instances = {worker: member.instance for worker, member in tuple(self.members.items())}
        return self.workers if size is None else staying_workers(self.workers, size, instances)

    # Checkpoints and failures

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

    def fail(self, view: str, failure: ViewFailure) -> None:
        """A view has failed."""
        self.failed[view] = failure

    def by_worker(self) -> list[Member]:
        """All members that were assigned, in order of place."""
        return [self.members[worker] for worker in sorted(self.members) if self.members[worker].assigned]

    def of_incarnation(self, incarnation: Incarnation) -> Member | None:
        return next((m for _, m in sorted(self.members.items()) if m.incarnation == incarnation), None)

    def is_complete(self) -> bool:
        """Whether every place is filled, and every worker has restored its state."""
        return all(worker in self.members and self.members[worker].is_restored for worker in self.workers)

    @property
    def keeps_only_what_is_read(self) -> bool:
        """Whether all views are partial."""
        return bool(self.plans) and all(plan.full_because is None for plan in self.plans)

    @property
    def start_at(self) -> Epoch:
        """The epoch that a worker may begin at with what checkpoints have of its keys. Where all views are partial, it
        begins with nothing."""
        if self.keeps_only_what_is_read:
            return self.ledger.through
        return self.chain[0] if self.chain else BEGINNING

    @property
    def in_step(self) -> bool:
        """Whether epochs are opened one at a time, and workers speak to each other."""
        return self.ledger.is_staged or self.is_followed

    @property
    def has_begun(self) -> bool:
        """Whether any epoch was opened since all workers began."""
        return self.ledger.through > 0 or any(member.sent > 0 for member in self.by_worker())

    def is_filled(self) -> bool:
        """Whether there is a worker in every place, assigned or not."""
        return self.members.keys() >= set(self.workers)

    def is_quiet(self) -> bool:
        """Whether every epoch that was opened has ended, and every worker has caught up."""
        if not self.is_complete():
            return False
        members = [self.members[worker] for worker in self.workers]
        return all(member.finished == member.sent == self.ledger.through for member in members)

    def can_be_cut(self) -> bool:
        """Whether all workers will come to a cut at or after the last ended epoch. Where workers go in step, they must
        stand at the cut: no row of the next epoch leaves a worker before all have read it, and so stood there."""
        if not self.in_step:
            return self.is_complete()
        return self.is_quiet() and self.ledger.through >= self.ledger.ended

    def has_caught_up(self, until: Epoch) -> bool:
        """Whether every place is filled, and every worker has finished this epoch."""
        if not self.is_complete() or (self.ledger.is_staged and self.ledger.through < until):
            return False
        return all(member.finished >= until for member in self.by_worker())

    def tell(self, member: Member, message: ToWorker) -> None:
        self.act(Tell(incarnation=member.incarnation, message=message))

    def tell_all(self, message: ToWorker) -> None:
        for member in self.by_worker():
            self.tell(member, message)

    def assign(self, member: Member, start_at: Epoch, serve_from: Epoch) -> None:
        """Tell a member what it keeps, as of ``start_at``."""
        if not member.assigned:  # it has said nothing yet; else it will say when it has started anew
            member.generation = self.generation.number
        member.assigned = True
        member.is_restored = not self.chain
        member.sent = member.finished = start_at
        member.unfilled.clear()
        member.held_up = None
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
            reversible=self.is_reversible,
            failed=dict(self.failed),
            logged=self.ledger.noted,
        )
        self.tell(member, assign)

    def assign_place(self, member: Member) -> None:
        """Tell a member that it keeps what its place does, as of the newest checkpoint."""
        if not (self.has_begun or self.by_worker()) and self.keeps_only_what_is_read:
            self.ledger.pass_over()
        self.assign(member, start_at=self.start_at, serve_from=self.ledger.published)

    def start_anew(self) -> None:
        """All workers begin from the newest checkpoint, or from nothing, as another generation. They record what
        changes from there on."""
        self.has_lost_changes, self.sent.for_all = False, BEGINNING
        self.generation.begin_anew(self.ledger.published)
        self.ledger.start_anew(self.chain[0] if self.chain else BEGINNING)
        for worker, member in sorted(self.members.items()):
            if member.assigned or worker in self.workers:  # else it joins when all workers are ready
                self.assign(member, start_at=self.start_at, serve_from=self.ledger.published)

    def resume(self, vnode_map: VnodeMap) -> None:
        """All workers go on by this map with the state they keep, as of the last epoch's end, as another generation."""
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

    def replan(
        self, plans: tuple[DataflowPlan, ...], epochs: Sequence[EpochPublished], since: Sequence[Compacted]
    ) -> None:
        """Keep these views, by the map that there is. epochs: from the first on. since: as in
        ``PublishedEpochs.replace``. A failed view that stays the same stays failed."""
        before = {plan.name: plan for plan in self.plans}
        same = [plan.name for plan in plans if plan.name in self.failed and plan == before[plan.name]]
        self.failed = {view: self.failed[view] for view in same}
        self.ledger.log([plan.name for plan in plans if plan.logs_changes and plan == before.get(plan.name)], plans)
        self.plans = plans
        self.chain = None if self.chain is None else ()
        self.maps = {region.name: self.reading for plan in plans for region in plan.spread}
        self.ledger.replan(plans, epochs, since)

    def go_by(self, maps: Mapping[str, VnodeMap]) -> None:
        """These are the maps of the regions, all the same."""
        self.maps, self.reading = dict(maps), next(iter(maps.values()))

    def adopt(self, maps: Mapping[str, VnodeMap], workers: tuple[WorkerId, ...]) -> int:
        """Take over these maps and workers, and retire all other workers. Returns how many vnodes have moved."""
        vnodes = len(next(iter(self.maps.values())).diff(next(iter(maps.values()))))
        self.go_by(maps)
        self.workers = workers
        for worker in sorted(set(self.members) - set(workers)):
            self.lose_changes()
            self.tell(self.remove(worker), Retire())
        return vnodes

    def read_by(self, vnode_map: VnodeMap) -> None:
        """From the next epoch on, slices are read by this map."""
        self.reading = vnode_map
        for member in self.by_worker():
            vnodes = vnode_map.vnodes_of_worker(member.worker)
            if vnodes != member.reads:
                member.reads = vnodes
                self.tell(member, ReadVnodes(vnodes=vnodes))

    @property
    def vnode_map(self) -> VnodeMap:
        """The owner of each vnode; while a rescale is on, the owner before it."""
        return next(iter(self.maps.values()), self.reading)

    @property
    def lookup_map(self) -> VnodeMap:
        """The worker to ask for the keys of a slice: the one that reads it. That is the new owner as soon as the whole
        slice has moved. Any worker can answer; the old owner would relay the lookup. The version is the regions': so a
        client that uses this map while keys move learns when all have moved."""
        return VnodeMap(self.vnode_map.version, self.reading.owners)

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
        later one or at the first. No segment before it waits. cuts: where workers are to stop, or may begin soon."""
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
