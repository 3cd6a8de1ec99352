"""A flow's checkpoints: one at a time, each through a cut of all workers; rules checkpoints.all_parts,
checkpoints.keys_stay and checkpoints.given_up_when_torn.

``docs/internals/checkpoints.md``. A checkpoint is requested, cut and written by every worker, and published. A
checkpoint that fails is given up; the next one makes up for it.

``CheckpointRequests``: a user's request is for a checkpoint of every flow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from upriver.coordinator.flow import Flow, Member
from upriver.ids import Epoch, FlowId, WorkerId
from upriver.protocol.coordinator_events import (
    CheckpointFailed,
    CheckpointPublished,
    CheckpointReady,
    CheckpointsFailed,
    CheckpointsTaken,
    CheckpointUnpublished,
    CheckpointWanted,
    CoordinatorAction,
    ForgetCheckpoints,
    PublishCheckpoint,
)
from upriver.protocol.messages import (
    CheckpointNotTaken,
    CheckpointWritten,
    DropCheckpoint,
    KeepCheckpoint,
    TakeCheckpoint,
    Unrestored,
)
from upriver.state.checkpoint import Checkpoint, StateFile

CHAIN_MAX = 16
"""Checkpoints of one chain at most: a worker that restores reads all of them."""
OUTGROWN_EPOCHS = 256
"""Epochs after which a checkpoint is dropped if no interval renews it: epochs behind it cannot become segments with
those before it."""
WANTED_MAX = 1000
"""Requests that wait for checkpoints that cannot begin yet; one more is refused."""


@dataclass(slots=True, kw_only=True)
class Taking:
    """A checkpoint on its way. parts: the files of each worker that has written its whole part. is_published: the
    coordinator has ordered its publication. is_torn: a worker that knew what changed since the cut was lost after
    that."""

    number: int
    at: Epoch
    base: Epoch | None
    workers: tuple[WorkerId, ...]
    parts: dict[WorkerId, tuple[StateFile, ...]] = field(default_factory=dict)
    is_published: bool = False
    is_torn: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointAnswer:
    """What has become of a request at one flow. epoch: of its checkpoint. why: why it was given up; ``None``: it is
    taken."""

    ticket: int
    epoch: Epoch
    why: str | None


class CheckpointTaker:
    """Takes a flow's checkpoints. The chain of those that are kept is in the flow."""

    def __init__(
        self,
        flow: Flow,
        kept: Sequence[Checkpoint],
        every_epochs: int | None,
        outgrown_epochs: int | None,
    ) -> None:
        """kept: the chain, newest first. every_epochs: how many epochs end between two; ``None``: only on request.
        outgrown_epochs: after how many the newest is dropped; ``None``: never."""
        self._flow = flow
        self._every_epochs = every_epochs
        self._outgrown_epochs = outgrown_epochs
        self._keys = [checkpoint.keys for checkpoint in reversed(kept)]
        """The number of keys in each checkpoint of the chain, oldest first."""
        self._wanted: list[int] = []
        """Tickets of the requests that wait for the next checkpoint to begin."""
        self._served: list[int] = []
        """Tickets of the requests that the checkpoint on its way answers."""
        self._answered: list[CheckpointAnswer] = []
        self._begun_at = Epoch(0)
        """The cut of the last checkpoint that has begun: after it was given up, the next is not due at once."""
        self._taking: Taking | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no checkpoint is on its way, so that keys may move (checkpoints.keys_stay)."""
        return self._taking is None or not self._flow.rules.checkpoints_keys_stay

    @property
    def cuts(self) -> list[Epoch]:
        """The epoch as of whose end a checkpoint is being taken, if one is."""
        return [] if self._taking is None else [self._taking.at]

    def wanted(self, ticket: int) -> None:
        """A request for a checkpoint of everything that has ended by now."""
        self._wanted.append(ticket)

    def take_answered(self) -> list[CheckpointAnswer]:
        """What has become of requests since the last call."""
        answered, self._answered = self._answered, []
        return answered

    def begin(self) -> None:
        """Begin a checkpoint, if one is requested or due. Nothing else is under way; no worker can be past the cut."""
        flow = self._flow
        if self._taking is not None or not flow.can_be_cut() or not (self._wanted or self._is_due()):
            return
        at = flow.ledger.through if flow.in_step else flow.opened
        chain = flow.chain or ()
        self._served, self._wanted, self._begun_at = self._wanted, [], at
        if at <= self._newest() or flow.keeps_only_what_is_read:  # there is nothing more to keep
            self._serve(at)
            return
        lacks = flow.has_lost_changes and flow.rules.checkpoints_whole_after_losses
        base = chain[0] if chain and not (lacks or self._is_long()) else None
        number = flow.places.next_checkpoint()
        self._taking = Taking(number=number, at=at, base=base, workers=flow.workers)
        for worker in flow.workers:
            flow.tell(flow.members[worker], TakeCheckpoint(checkpoint=number, at=at, whole=base is None))

    def _is_due(self) -> bool:
        last = max(self._newest(), self._begun_at)
        return self._every_epochs is not None and self._flow.ledger.through - last >= self._every_epochs

    def _newest(self) -> Epoch:
        return self._flow.chain[0] if self._flow.chain else Epoch(0)

    def _is_long(self) -> bool:
        """Whether restoring the chain costs more than twice what its state does, or reads too many checkpoints."""
        return len(self._keys) >= CHAIN_MAX or sum(self._keys[1:]) > self._keys[0]

    # Workers' messages

    def written(self, member: Member, message: CheckpointWritten) -> None:
        """A worker's part is in the lake. The last part makes the checkpoint whole."""
        taking = self._of(message.checkpoint)
        if taking is None or taking.is_published:
            return
        taking.parts[member.worker] = message.files
        if taking.parts.keys() >= set(taking.workers) or not self._flow.rules.checkpoints_all_parts:
            taking.is_published = True
            files = tuple(file for worker in sorted(taking.parts) for file in taking.parts[worker])
            recorded = self._flow.rules.views_failed_are_recorded  # views.failed_are_recorded
            self._flow.act(
                PublishCheckpoint(
                    flow=self._flow.id,
                    checkpoint=taking.number,
                    epoch=taking.at,
                    base=taking.base,
                    files=files,
                    failed=dict(self._flow.failed) if recorded else {},
                )
            )

    def not_taken(self, member: Member, message: CheckpointNotTaken) -> None:
        if self._of(message.checkpoint) is not None:
            self._give_up(f"worker {member.worker}: {message.error}")

    # The lake's answers

    def published(self, event: CheckpointPublished) -> None:
        """From now on a worker that replaces a lost one begins with this checkpoint."""
        taking = self._of(event.checkpoint)
        if taking is None:
            return
        flow, self._taking = self._flow, None
        keys = sum(file.keys for file in event.files)
        self._keys = [keys] if taking.base is None else [*self._keys, keys]
        is_whole = taking.base is None
        knows_changes = is_whole and not taking.is_torn  # checkpoints.whole_after_losses
        flow.checkpointed(taking.at, is_whole=is_whole, knows_changes=knows_changes)
        flow.tell_all(KeepCheckpoint(checkpoint=taking.number))
        self._serve(taking.at)

    def unpublished(self, event: CheckpointUnpublished) -> None:
        if self._of(event.checkpoint) is not None:
            self._give_up(event.error)

    def _of(self, number: int) -> Taking | None:
        return self._taking if self._taking is not None and self._taking.number == number else None

    # Accidents

    def torn(self) -> None:
        """checkpoints.given_up_when_torn: a worker is lost, or all begin anew. A checkpoint that is already being
        published is whole all the same."""
        taking = self._taking
        if taking is not None and taking.is_published:
            taking.is_torn = True
        elif taking is not None and self._flow.rules.checkpoints_given_up_when_torn:
            self._give_up("a worker was lost, or all have begun anew")

    def damaged(self, message: Unrestored) -> None:
        """checkpoints.damaged_is_skipped: a file of the chain is damaged. The newest checkpoint is left out from now
        on. If the file belongs to an older one, a worker reports it again. Changes are known only since the newest
        checkpoint, so the next one is whole."""
        flow = self._flow
        if not flow.chain or flow.chain[0] != message.checkpoint:
            return  # another worker has said so
        if not flow.rules.checkpoints_damaged_is_skipped:
            return
        if self._taking is not None:
            self._give_up(message.error)
        flow.skip_newest_checkpoint()
        del self._keys[len(flow.chain) :]
        self._say_failed((), message.checkpoint, message.error)

    def end(self) -> None:
        """The flow is gone, and no checkpoint of it is of use any more."""
        if self._taking is not None:
            self._give_up("its view is dropped")
        self._answer(self._wanted, self._flow.ledger.through, None)
        self._wanted = []
        if self._flow.chain is not None:
            self._flow.act(ForgetCheckpoints(flow=self._flow.id))

    def drop_outgrown(self) -> None:
        """Drop the checkpoints if many epochs have ended since the newest, and no worker restores from them
        (checkpoints.kept_while_read): else these epochs would stay apart for as long as no other is taken."""
        flow = self._flow
        if self._outgrown_epochs is None or not flow.chain or self._taking is not None or flow.counts_changes:
            return
        is_read = flow.rules.checkpoints_kept_while_read and not flow.is_complete()
        if not is_read and flow.ledger.through - flow.chain[0] > self._outgrown_epochs:
            self._keys.clear()
            flow.drop_checkpoints()
            flow.act(ForgetCheckpoints(flow=flow.id))

    def _give_up(self, why: str) -> None:
        taking, self._taking = self._taking, None
        assert taking is not None
        self._flow.tell_all(DropCheckpoint(checkpoint=taking.number))
        served, self._served = self._served, []
        self._say_failed(served, taking.at, why)

    def _say_failed(self, tickets: Sequence[int], at: Epoch, why: str) -> None:
        self._answer(tickets, at, why)
        self._flow.act(CheckpointFailed(flow=self._flow.id, epoch=at, why=why))

    def _serve(self, at: Epoch) -> None:
        served, self._served = self._served, []
        self._answer(served, at, None)
        self._flow.act(CheckpointReady(flow=self._flow.id, epoch=at, chain=self._flow.chain or ()))

    def _answer(self, tickets: Sequence[int], at: Epoch, why: str | None) -> None:
        self._answered += [CheckpointAnswer(ticket, at, why) for ticket in tickets]


@dataclass(slots=True)
class _Request:
    """waits_for: the flows that have not answered. epochs: of the checkpoints of those that have."""

    waits_for: set[FlowId]
    epochs: list[Epoch] = field(default_factory=list)


class CheckpointRequests:
    """The requests of users and of the interval. Each is answered when every flow has a checkpoint, or needs none."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Request] = {}

    @property
    def are_waiting(self) -> bool:
        """Whether any request has no answer."""
        return bool(self._waiting)

    def wanted(
        self, event: CheckpointWanted, takers: Mapping[FlowId, CheckpointTaker], through: Epoch
    ) -> list[CoordinatorAction]:
        """A request for a checkpoint of every flow. through: the last published epoch. Returns the answer, if there is
        one already."""
        if len(self._waiting) >= WANTED_MAX:
            why = f"{WANTED_MAX} others wait already for one that cannot begin yet"
            return [CheckpointsFailed(ticket=event.ticket, epoch=through, why=why)]
        if not takers:
            return [CheckpointsTaken(ticket=event.ticket, epoch=through)]
        self._waiting[event.ticket] = _Request(set(takers))
        for taker in takers.values():
            taker.wanted(event.ticket)
        return []

    def answered(self, flow: FlowId, taker: CheckpointTaker) -> list[CoordinatorAction]:
        """Take what has become of requests at a flow. Returns the answers to those that are over."""
        actions: list[CoordinatorAction] = []
        for answer in taker.take_answered():
            request = self._waiting.get(answer.ticket)
            if request is None:
                continue
            request.waits_for.discard(flow)
            request.epochs.append(answer.epoch)
            if answer.why is not None:
                actions.append(CheckpointsFailed(ticket=answer.ticket, epoch=answer.epoch, why=answer.why))
            elif not request.waits_for:
                actions.append(CheckpointsTaken(ticket=answer.ticket, epoch=min(request.epochs)))
            else:
                continue
            del self._waiting[answer.ticket]
        return actions
