"""What happens to the coordinator, and what it wants done."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from upriver.errors import UpriverError
from upriver.ids import Channel, Epoch, Incarnation, SnapshotId, VnodeId, WorkerId
from upriver.plan.plan import DataflowPlan
from upriver.protocol.messages import FromWorker, ToWorker
from upriver.protocol.strategies import Strategy
from upriver.state.checkpoint import StateFile
from upriver.state.failure import ViewFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRegistered:
    """A process has come to fill a worker's place. Incarnations are given in order of registration. address: where
    its peers reach it. instance: what it is lost with, an executor."""

    worker: WorkerId
    incarnation: Incarnation
    address: str
    instance: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGone:
    """An incarnation's channel has closed."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOver:
    """An incarnation that is gone can answer nobody any more: its lease has run out."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaversOverdue:
    """The rescale under way, by learners, is to wait for who leaves no more."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPublished:
    """The epoch's manifest is in the lake. rows: per channel, over all vnodes."""

    epoch: Epoch
    rows: Mapping[Channel, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSaid:
    """A message from a worker."""

    incarnation: Incarnation
    message: FromWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotAsked:
    """Somebody wants to scan a view. ticket: names the asker."""

    ticket: int
    view: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansWanted:
    """These shall be the views from now on. epochs: of each epoch in the lake, from the first on, the rows per channel,
    those of channels that are new among them; epochs may have been published since.

    ticket: names the asker.
    """

    ticket: int
    plans: tuple[DataflowPlan, ...]
    epochs: tuple[Mapping[Channel, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictWanted:
    """Workers are to keep these keys of a partial view no more. keys: their hash64; ``None`` for all keys."""

    ticket: int
    view: str
    keys: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWanted:
    """Somebody wants a checkpoint, as of now. ticket: names who does."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPublished:
    """The checkpoint is in the lake, and can be restored. files: all that it has."""

    checkpoint: int
    files: tuple[StateFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointUnpublished:
    """The checkpoint could not be published. error: why, for a person."""

    checkpoint: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleWanted:
    """Somebody wants so many workers, or these vnodes at these workers. ticket: names the request; never used twice.

    keys_max: keys to move at a time; ``None``: as many as the time allows.
    """

    ticket: int
    workers: int | None
    moves: Mapping[VnodeId, WorkerId] | None
    strategy: Strategy
    keys_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortWanted:
    """What the rescale has not begun to move shall stay where it is."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """The app is stopping."""


CoordinatorEvent = (
    WorkerRegistered
    | WorkerGone
    | LeaseOver
    | LeaversOverdue
    | EpochPublished
    | WorkerSaid
    | SnapshotAsked
    | PlansWanted
    | EvictWanted
    | CheckpointWanted
    | CheckpointPublished
    | CheckpointUnpublished
    | RescaleWanted
    | AbortWanted
    | StopAsked
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Send to an incarnation."""

    incarnation: Incarnation
    message: ToWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnded:
    """Every row of the epoch was applied, and of those before it."""

    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReady:
    """Every one of ``workers`` holds its part of the view as of ``epoch``."""

    ticket: int
    snapshot: SnapshotId
    epoch: Epoch
    workers: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFailed:
    """The snapshot cannot be had; asking again may help."""

    ticket: int
    error: UpriverError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansTaken:
    """The views are those that were wanted. All workers begin anew, and answer when they have caught up."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionOver:
    """Every worker has evicted what was present there when it heard of it."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishCheckpoint:
    """All parts of the checkpoint are in the lake: let it exist. base: the epoch of the one that it builds on. failed:
    the views that have failed, of whose state it has nothing that is of use."""

    checkpoint: int
    epoch: Epoch
    base: Epoch | None
    files: tuple[StateFile, ...]
    failed: Mapping[str, ViewFailure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReady:
    """What ``tickets`` have waited for is in a checkpoint. chain: the epochs of all that are of use, newest first."""

    tickets: tuple[int, ...]
    epoch: Epoch
    chain: tuple[Epoch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """The checkpoint was given up; asking again may help. why: for a person."""

    tickets: tuple[int, ...]
    epoch: Epoch
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetCheckpoints:
    """None that there is will be of use: the views are others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorkers:
    """Fill these places, which are new or were given up before."""

    workers: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleBegun:
    """The rescale is under way: before, after: how many workers there are and are to be; vnodes: how many move."""

    ticket: int
    before: int
    after: int
    vnodes: int


class RescaleOutcome(StrEnum):
    """How a rescale has ended: as wanted; with what had not moved by then left where it was; not begun; or with
    everything as before."""

    FINISHED = "finished"
    ABORTED = "aborted"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleEnded:
    """vnodes: how many have moved. error: why it was refused or has failed."""

    ticket: int
    outcome: RescaleOutcome
    vnodes: int
    error: UpriverError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceWorker:
    """The incarnation has failed in a way that another process need not: end it as if it had died. error: one line."""

    incarnation: Incarnation
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppFailed:
    """The river cannot go on. kind: class name of the error."""

    kind: str
    error: str


CoordinatorAction = (
    Tell
    | EpochEnded
    | SnapshotReady
    | SnapshotFailed
    | PlansTaken
    | EvictionOver
    | PublishCheckpoint
    | CheckpointReady
    | CheckpointFailed
    | ForgetCheckpoints
    | StartWorkers
    | RescaleBegun
    | RescaleEnded
    | ReplaceWorker
    | AppFailed
)
