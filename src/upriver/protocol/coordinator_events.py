"""The coordinator's events, and the actions that it asks for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from upriver.errors import UpriverError
from upriver.ids import BEGINNING, Channel, Epoch, FlowId, Incarnation, SnapshotId, VnodeId, WorkerId
from upriver.plan.plan import DataflowPlan
from upriver.protocol.messages import FlowStep, FromWorker, ToWorker
from upriver.protocol.strategies import Strategy
from upriver.state.changes import ChangePart
from upriver.state.checkpoint import FoundCheckpoints, StateFile
from upriver.state.failure import ViewFailure
from upriver.vnodes import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRegistered:
    """A process has come to fill a worker's place. Incarnations are given in order of registration. address: where
    its peers reach it. instance: the executor that it is lost with. died_in: the step in which the last process in this
    place has died, if the new one has found its mark."""

    worker: WorkerId
    incarnation: Incarnation
    address: str
    instance: str = ""
    died_in: FlowStep | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGone:
    """An incarnation's channel has closed."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOver:
    """An incarnation that is gone can no longer answer lookups: its lease has run out."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaversOverdue:
    """The current rescale, by learners, no longer waits for its leavers."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOverdue:
    """The current rescale no longer waits for flows whose open epochs have not ended."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingDue:
    """The time for the meeting after this one has come."""

    meeting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksOverdue:
    """Since ``LinksBroken`` of this time, a lease could have run out."""

    time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPublished:
    """The epoch's manifest is in the lake, or at the start of the app the segment that ends with it. rows: per channel,
    over all vnodes. after: the epoch before it, for a segment of several epochs; ``None``: the one before by number.
    rewritten: the epoch whose end a rewritten segment shows. clock: as in ``OpenEpoch``."""

    epoch: Epoch
    rows: Mapping[Channel, int]
    after: Epoch | None = None
    rewritten: Epoch = BEGINNING
    clock: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPublished:
    """A segment is in the lake that describes all epochs after ``after`` up to ``epoch`` as one. rows: as for
    ``EpochPublished``; there may be fewer than the epochs had apart."""

    epoch: Epoch
    after: Epoch
    rows: Mapping[Channel, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsRewritten:
    """These segments are in the lake without rows that have left by the end of ``as_of``: all that were rewritten as of
    this epoch, which is later than for any before."""

    as_of: Epoch
    segments: tuple[SegmentPublished, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonAsked:
    """A request for the last epoch that none needs apart from those before it."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSaid:
    """A message from a worker."""

    incarnation: Incarnation
    message: FromWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotAsked:
    """A client requests a scan of a view. ticket: names the request."""

    ticket: int
    view: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowBeginning:
    """The flow of a view that is added, and the checkpoints that there are of it."""

    flow: FlowId
    found: FoundCheckpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansWanted:
    """A request to change the views to these: those that stay the same do not notice. epochs: the lake's epochs, from
    the first on, those of a segment as one, with the rows on new channels too. More may have been published since.

    ticket: names the request. begins: by view that is added; the flow of any other gets the next number, and begins
    with nothing.
    """

    ticket: int
    plans: tuple[DataflowPlan, ...]
    epochs: tuple[EpochPublished, ...]
    begins: Mapping[str, FlowBeginning] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictWanted:
    """A request to evict these keys of a partial view at all workers. keys: their hash64; ``None`` for all keys."""

    ticket: int
    view: str
    keys: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWanted:
    """A request for a checkpoint, as of now. ticket: names the request."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPublished:
    """The checkpoint is in the lake, and can be restored. files: all its files."""

    checkpoint: int
    files: tuple[StateFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointUnpublished:
    """The checkpoint could not be published. error: why, for the user."""

    checkpoint: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesPublished:
    """The changes are in the log, for its readers."""

    taking: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesUnpublished:
    """The changes could not be published. error: why, for the user."""

    taking: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleWanted:
    """A request for this many workers, or these vnodes at these workers. ticket: names the request; never used twice.

    keys_max: keys to move at a time; ``None``: as many as the time allows.
    """

    ticket: int
    workers: int | None
    moves: Mapping[VnodeId, WorkerId] | None
    strategy: Strategy
    keys_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortWanted:
    """A request to abort the rescale: what has not begun to move stays where it is."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlWritten:
    """The control record of this number is in the lake, and so is everything that earlier ones say."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlUnwritten:
    """The control record of this number could not be written. Another attempt, or a later record, may succeed."""

    number: int
    error: UpriverError


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """The app is stopping."""


CoordinatorEvent = (
    WorkerRegistered
    | WorkerGone
    | LeaseOver
    | LeaversOverdue
    | DrainOverdue
    | MeetingDue
    | LinksOverdue
    | EpochPublished
    | SegmentPublished
    | SegmentsRewritten
    | HorizonAsked
    | WorkerSaid
    | SnapshotAsked
    | PlansWanted
    | EvictWanted
    | CheckpointWanted
    | CheckpointPublished
    | CheckpointUnpublished
    | ChangesPublished
    | ChangesUnpublished
    | RescaleWanted
    | AbortWanted
    | ControlWritten
    | ControlUnwritten
    | StopAsked
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonIs:
    """Epochs up to this one may be described as one: workers, checkpoints and restarts need none of them apart."""

    ticket: int
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Send to an incarnation."""

    incarnation: Incarnation
    message: ToWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnded:
    """Every row of the epoch and of all before it was applied, in this flow."""

    flow: FlowId
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
    """The snapshot cannot be taken; another request may succeed."""

    ticket: int
    error: UpriverError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansTaken:
    """The views have changed as requested. Those that are new answer lookups when they have caught up."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionOver:
    """Every worker has evicted the keys that were present when it got the request."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishCheckpoint:
    """All parts of a flow's checkpoint are in the lake: publish it. base: the epoch of the one that it builds on.
    failed: the views that have failed; the checkpoint has no useful state of them."""

    flow: FlowId
    checkpoint: int
    epoch: Epoch
    base: Epoch | None
    files: tuple[StateFile, ...]
    failed: Mapping[str, ViewFailure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReady:
    """The flow has a checkpoint of this epoch's end, or needs none. chain: the epochs of all useful ones, newest
    first."""

    flow: FlowId
    epoch: Epoch
    chain: tuple[Epoch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """The flow's checkpoint was given up; another request may succeed. why: for the user."""

    flow: FlowId
    epoch: Epoch
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsTaken:
    """Every flow has a checkpoint of this epoch's end, or of a later one, or needs none."""

    ticket: int
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointsFailed:
    """A flow's checkpoint was given up; another request may succeed. why: for the user."""

    ticket: int
    epoch: Epoch
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetCheckpoints:
    """No existing checkpoint of the flow is of use any more."""

    flow: FlowId


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishChanges:
    """All parts of the changes are in the lake: make them a version of the log.

    at: the epoch through which they are. views: those whose changes these are; the log of some ``begins`` with them.
    """

    taking: int
    at: Epoch
    views: tuple[str, ...]
    begins: tuple[str, ...]
    parts: tuple[ChangePart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorkers:
    """Fill these places, which are new or were given up before."""

    workers: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleBegun:
    """The rescale is under way. before, after: the number of workers before and after it. vnodes: how many move."""

    ticket: int
    before: int
    after: int
    vnodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingPostponed:
    """Workers could not meet, and try again later: after some time, say ``MeetingDue``."""

    meeting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksBroken:
    """Links between workers are broken. After a lease's time, say ``LinksOverdue``. time: how often a link broke while
    all others were whole."""

    time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveWorker:
    """If a task slot is free on another host, replace this process by one there. error: why, for the user."""

    worker: WorkerId
    incarnation: Incarnation
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBegun:
    """The rescale waits until each flow's open epochs have ended: after some time, say ``DrainOverdue``."""

    ticket: int


class RescaleOutcome(StrEnum):
    """How a rescale has ended: as requested; aborted, with what had not moved left where it was; not begun; or with
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
class WriteControl:
    """Write a control record: what the next driver has to know. Numbers count up from 1; a record makes all earlier
    ones obsolete.

    placement: in force. target: the placement that the cluster is on its way to; the next driver begins with it.
    ``None``: with ``placement``. begins, ends: the rescale that begins or has ended; its clients hear of it when the
    record is written.
    """

    number: int
    placement: Placement
    target: Placement | None = None
    begins: RescaleBegun | None = None
    ends: RescaleEnded | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceWorker:
    """The incarnation has failed, but another process may not: end it as if it had died. error: one line."""

    incarnation: Incarnation
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppFailed:
    """The app cannot go on. kind: class name of the error."""

    kind: str
    error: str


CoordinatorAction = (
    Tell
    | HorizonIs
    | EpochEnded
    | SnapshotReady
    | SnapshotFailed
    | PlansTaken
    | EvictionOver
    | PublishCheckpoint
    | CheckpointReady
    | CheckpointFailed
    | CheckpointsTaken
    | CheckpointsFailed
    | ForgetCheckpoints
    | PublishChanges
    | StartWorkers
    | RescaleBegun
    | DrainBegun
    | MeetingPostponed
    | LinksBroken
    | MoveWorker
    | RescaleEnded
    | WriteControl
    | ReplaceWorker
    | AppFailed
)
