"""The coordinator's checkpoints: one at a time, each through a cut of all workers; rules checkpoints.all_parts,
checkpoints.keys_stay and checkpoints.given_up_when_torn.

``docs/internals/checkpoints.md``. A checkpoint is requested, cut and written by every worker, and published. A
checkpoint that fails is given up; the next one makes up for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from upriver.coordinator.cluster import Cluster, Member
from upriver.ids import Epoch, WorkerId
from upriver.protocol.coordinator_events import (
    CheckpointFailed,
    CheckpointPublished,
    CheckpointReady,
    CheckpointUnpublished,
    CheckpointWanted,
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
"""Requests that wait for a checkpoint that cannot begin yet; one more is refused."""


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


class CheckpointTaker:
    """Takes checkpoints. The chain of those that are kept is in the cluster."""

    def __init__(
        self,
        cluster: Cluster,
        kept: Sequence[Checkpoint],
        every_epochs: int | None,
        outgrown_epochs: int | None,
    ) -> None:
        """kept: the chain, newest first. every_epochs: how many epochs end between two; ``None``: only on request.
        outgrown_epochs: after how many the newest is dropped; ``None``: never."""
        self._cluster = cluster
        self._every_epochs = every_epochs
        self._outgrown_epochs = outgrown_epochs
        self._keys = [checkpoint.keys for checkpoint in reversed(kept)]
        """The number of keys in each checkpoint of the chain, oldest first."""
        self._wanted: list[int] = []
        """Tickets of the requests that wait for the next checkpoint to begin."""
        self._served: list[int] = []
        """Tickets of the requests that the checkpoint on its way answers."""
        self._last = 0
        self._begun_at = Epoch(0)
        """The cut of the last checkpoint that has begun: after it was given up, the next is not due at once."""
        self._taking: Taking | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no checkpoint is on its way, so that keys may move (checkpoints.keys_stay)."""
        return self._taking is None or not self._cluster.rules.checkpoints_keys_stay

    @property
    def cuts(self) -> list[Epoch]:
        """The epoch as of whose end a checkpoint is being taken, if one is."""
        return [] if self._taking is None else [self._taking.at]

    def wanted(self, event: CheckpointWanted) -> None:
        """A request for a checkpoint of everything that has ended by now."""
        if len(self._wanted) < WANTED_MAX:
            self._wanted.append(event.ticket)
        else:
            why = f"{WANTED_MAX} others wait already for one that cannot begin yet"
            self._say_failed((event.ticket,), self._cluster.ledger.through, why)

    def begin(self) -> None:
        """Begin a checkpoint, if one is requested or due. Nothing else is under way; no worker can be past the cut."""
        cluster = self._cluster
        if self._taking is not None or not cluster.can_be_cut() or not (self._wanted or self._is_due()):
            return
        at = cluster.ledger.through if cluster.in_step else cluster.opened
        chain = cluster.chain or ()
        self._served, self._wanted, self._begun_at = self._wanted, [], at
        if at <= self._newest() or cluster.keeps_only_what_is_read:  # there is nothing more to keep
            self._serve(at)
            return
        lacks = cluster.has_lost_changes and cluster.rules.checkpoints_whole_after_losses
        base = chain[0] if chain and not (lacks or self._is_long()) else None
        self._last += 1
        self._taking = Taking(number=self._last, at=at, base=base, workers=cluster.workers)
        for worker in cluster.workers:
            ask = TakeCheckpoint(checkpoint=self._last, at=at, whole=base is None)
            cluster.tell(cluster.members[worker], ask)

    def _is_due(self) -> bool:
        last = max(self._newest(), self._begun_at)
        return self._every_epochs is not None and self._cluster.ledger.through - last >= self._every_epochs

    def _newest(self) -> Epoch:
        return self._cluster.chain[0] if self._cluster.chain else Epoch(0)

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
        if taking.parts.keys() >= set(taking.workers) or not self._cluster.rules.checkpoints_all_parts:
            taking.is_published = True
            files = tuple(file for worker in sorted(taking.parts) for file in taking.parts[worker])
            recorded = self._cluster.rules.views_failed_are_recorded  # views.failed_are_recorded
            self._cluster.act(
                PublishCheckpoint(
                    checkpoint=taking.number,
                    epoch=taking.at,
                    base=taking.base,
                    files=files,
                    failed=dict(self._cluster.failed) if recorded else {},
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
        cluster, self._taking = self._cluster, None
        keys = sum(file.keys for file in event.files)
        self._keys = [keys] if taking.base is None else [*self._keys, keys]
        is_whole = taking.base is None
        knows_changes = is_whole and not taking.is_torn  # checkpoints.whole_after_losses
        cluster.checkpointed(taking.at, is_whole=is_whole, knows_changes=knows_changes)
        cluster.tell_all(KeepCheckpoint(checkpoint=taking.number))
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
        elif taking is not None and self._cluster.rules.checkpoints_given_up_when_torn:
            self._give_up("a worker was lost, or all have begun anew")

    def damaged(self, message: Unrestored) -> None:
        """checkpoints.damaged_is_skipped: a file of the chain is damaged. The newest checkpoint is left out from now
        on. If the file belongs to an older one, a worker reports it again. Changes are known only since the newest
        checkpoint, so the next one is whole."""
        cluster = self._cluster
        if not cluster.chain or cluster.chain[0] != message.checkpoint:
            return  # another worker has said so
        if not cluster.rules.checkpoints_damaged_is_skipped:
            return
        if self._taking is not None:
            self._give_up(message.error)
        cluster.skip_newest_checkpoint()
        del self._keys[len(cluster.chain) :]
        self._say_failed((), message.checkpoint, message.error)

    def forget(self) -> None:
        """The views have changed: no existing checkpoint holds their state."""
        if self._taking is not None:
            self._give_up("the views have changed")
        self._keys.clear()
        self._begun_at = Epoch(0)
        if self._cluster.chain:
            self._cluster.act(ForgetCheckpoints())

    def drop_outgrown(self) -> None:
        """Drop the checkpoints if many epochs have ended since the newest, and no worker restores from them
        (checkpoints.kept_while_read): else these epochs would stay apart for as long as no other is taken."""
        cluster = self._cluster
        if self._outgrown_epochs is None or not cluster.chain or self._taking is not None:
            return
        is_read = cluster.rules.checkpoints_kept_while_read and not cluster.is_complete()
        if not is_read and cluster.ledger.through - cluster.chain[0] > self._outgrown_epochs:
            self._keys.clear()
            cluster.drop_checkpoints()
            cluster.act(ForgetCheckpoints())

    def _give_up(self, why: str) -> None:
        taking, self._taking = self._taking, None
        assert taking is not None
        self._cluster.tell_all(DropCheckpoint(checkpoint=taking.number))
        served, self._served = self._served, []
        self._say_failed(served, taking.at, why)

    def _say_failed(self, tickets: Sequence[int], at: Epoch, why: str) -> None:
        self._cluster.act(CheckpointFailed(tickets=tuple(tickets), epoch=at, why=why))

    def _serve(self, at: Epoch) -> None:
        served, self._served = self._served, []
        self._cluster.act(CheckpointReady(tickets=tuple(served), epoch=at, chain=self._cluster.chain or ()))
