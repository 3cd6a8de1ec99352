"""The messages between the coordinator and a worker, over one FIFO channel each way.

Most are of one flow: they go between the flow and its share at the worker, in ``ForShare`` and ``OfShare``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from upriver.ids import (
    BEGINNING,
    Channel,
    Epoch,
    FeedId,
    FlowId,
    Incarnation,
    MapVersion,
    SnapshotId,
    VnodeId,
    WorkerId,
)
from upriver.migration.events import AbortAsked, RescaleAnnounced
from upriver.plan.plan import DataflowPlan
from upriver.protocol.strategies import Strategy
from upriver.state.changes import ChangePart
from upriver.state.checkpoint import CheckpointPlace, StateFile
from upriver.state.failure import ViewFailure
from upriver.vnodes import VnodeMap


class FlowStep(NamedTuple):
    """A step of a flow's share. epoch: the first one that the share is not through."""

    flow: FlowId
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """All workers go on as another generation, with their state as of the end of epoch ``at``: changes of a later epoch
    are put back. The worker gives up slices that these maps give to another. It takes over slices that it followed and
    now owns. The other fields are as in ``Assign``.
    """

    maps: Mapping[str, VnodeMap]
    reads: tuple[VnodeId, ...]
    at: Epoch
    serve_from: Epoch
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """Have the owner of these slices send all its state of them, and then what changes. Say ``CaughtUp`` for each epoch
    through whose end the state is here. feed: names this feed, and is never used again."""

    feed: FeedId
    owner: WorkerId
    vnodes: tuple[VnodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfollow:
    """Follow these slices of the feed no more."""

    feed: FeedId
    vnodes: tuple[VnodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Say ``Here``: a peer could not reach this worker."""

    probe: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """The follower has all state that the owner keeps of the feed's slices, as of the end of this epoch."""

    feed: FeedId
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEnded:
    """The feed has ended: the follower has to begin again. The owner of the slices says so; or the follower, if the
    owner may never have heard of the feed (replication.unfed_says_so)."""

    feed: FeedId


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """The answer to a ``Probe``."""

    probe: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TookOver:
    """This worker has taken over this many slices that it followed, with this many keys and bytes of state, over all
    regions that keep every key."""

    vnodes: int
    keys: int
    bytes: int


NO_STAGE = -1
"""The stage of an epoch before its first stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """What a worker keeps of a flow: the first message to its share, and again when all shares of the flow start anew.

    maps: of each region. reads: the vnodes whose slices this worker reads. start_at: the epoch that its state
    reflects, once it is restored. serve_from: it answers no lookup before it has applied this epoch.
    generation: how often all workers have been assigned anew. chain: the epochs of the checkpoints, newest first, from
    which it restores its state before it says ``Restored``; ``()``: it begins with nothing; ``None``: it begins with
    nothing, and no checkpoint will be taken. reversible: standbys may take over at any epoch's end (``Resume``).
    failed: the views that have failed, and why. logged: the epoch through which the change log has each logged view's
    changes; ``None``: the log of that view has not begun. builds: the flow is built beside others that are served: its
    share says ``StartedAnew`` at first, too, and gives way to theirs until it has applied ``serve_from``. checkpoints:
    where the flow's checkpoints are; ``None`` if it has no full views.
    """

    worker: WorkerId
    plans: tuple[DataflowPlan, ...]
    maps: Mapping[str, VnodeMap]
    reads: tuple[VnodeId, ...]
    start_at: Epoch
    serve_from: Epoch
    generation: int
    chain: tuple[Epoch, ...] | None = None
    reversible: bool = False
    failed: Mapping[str, ViewFailure] = field(default_factory=dict)
    logged: Mapping[str, Epoch | None] = field(default_factory=dict)
    checkpoints: CheckpointPlace | None = None
    builds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FailView:
    """The view has failed at some worker: keep nothing of it any more, and answer its lookups with this failure."""

    view: str
    failure: ViewFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEpoch:
    """The epoch's manifest is in the lake: apply it.

    after: the epoch before it, for an epoch that ends a segment of several, which are applied as one; ``None``: the one
    before by number. mixed: rows may be applied at other workers than those that read them. So a worker that has read
    its slices still waits for ``EpochOver``. as_of: segments that were rewritten as of this epoch, or as of an earlier
    one, are read as they are now (coordinator.rewritten_for_all). clock: the epoch's instant, in microseconds since
    1970; ``None`` if the lake does not have it.
    """

    epoch: Epoch
    mixed: bool
    after: Epoch | None = None
    as_of: Epoch = BEGINNING
    clock: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginStage:
    """Every row of the epoch for regions of this depth has arrived at its worker. Take in the gathered rows, send the
    results of these regions, and say ``StageDone``."""

    epoch: Epoch
    stage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOver:
    """Every row of a mixed epoch was applied at its worker."""

    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadVnodes:
    """Read the slices of these vnodes, from the next opened epoch on."""

    vnodes: tuple[VnodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meet:
    """Open a channel to each of these peers, and say ``MetPeers``.

    meeting: names this one. peers: all members of the coming rescale, this worker too, with the incarnation and the
    address of each. strategy: of the rescale. keys_max: keys to move at a time; ``None``: as many as the time allows.
    """

    meeting: int
    peers: Mapping[WorkerId, tuple[Incarnation, str]]
    strategy: Strategy
    keys_max: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationOrder:
    """An order to the distributor of one region."""

    region: str
    order: RescaleAnnounced | AbortAsked


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseInput:
    """This worker reads no more rows of any epoch of these flows: take leave of these peers."""

    flows: tuple[FlowId, ...]
    peers: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseEpochs:
    """Give no more keys away until ``ContinueEpochs``, and say ``Still``."""

    pause: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinueEpochs:
    """Keys may move again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeSnapshot:
    """Keep a copy of the view as of the end of epoch ``at``."""

    snapshot: SnapshotId
    view: str
    at: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSnapshot:
    """The snapshot is no longer needed."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Evict these keys of a partial view, and say ``Evicted``. keys: their hash64; ``None`` for all keys."""

    eviction: int
    view: str
    keys: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeCheckpoint:
    """Copy what has changed since the last checkpoint, as of the end of epoch ``at``, and say ``CheckpointWritten``.
    whole: copy everything."""

    checkpoint: int
    at: Epoch
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepCheckpoint:
    """The checkpoint is in the lake, and the next one builds on it."""

    checkpoint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCheckpoint:
    """The checkpoint is given up."""

    checkpoint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeChanges:
    """Write the changes of logged views that the log does not have, as of the end of epoch ``at``, and say
    ``ChangesWritten``. begins: the views whose log begins with this: all their rows are written."""

    taking: int
    at: Epoch
    begins: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesLogged:
    """The change log has all changes of these views through this epoch: forget them."""

    through: Mapping[str, Epoch]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesWritten:
    """This worker's part of the changes is in the lake, in these parts."""

    taking: int
    parts: tuple[ChangePart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesNotWritten:
    """This worker's part of the changes could not be written. error: why, for the user."""

    taking: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """Stop and give the task slot back."""


ToShare = (
    Assign
    | FailView
    | Resume
    | Follow
    | Unfollow
    | OpenEpoch
    | BeginStage
    | EpochOver
    | ReadVnodes
    | MigrationOrder
    | PauseEpochs
    | ContinueEpochs
    | TakeSnapshot
    | DropSnapshot
    | Evict
    | TakeCheckpoint
    | KeepCheckpoint
    | DropCheckpoint
    | TakeChanges
    | ChangesLogged
)
"""What a flow tells its share at a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForShare:
    """To the worker's share of this flow. The first one is an ``Assign``."""

    flow: FlowId
    message: ToShare


@dataclass(frozen=True, slots=True, kw_only=True)
class DropFlow:
    """The flow is gone: keep nothing of it, and answer nothing for it."""

    flow: FlowId


ToWorker = ForShare | DropFlow | Probe | Meet | CloseInput | Retire


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Keys were filled or evicted. stats: as in ``EpochFinished``."""

    stats: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysUnfilled:
    """Keys of a partial view could not be filled: they are missing, and lookups of them fail. failure: the last one."""

    view: str
    failure: ViewFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """This worker has done what ``Evict`` says. stats: as in ``EpochFinished``."""

    eviction: int
    stats: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedAnew:
    """The share has been assigned again: its messages from here on are of this generation."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """This worker has restored its state, as of the epoch that it was told to start at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrestored:
    """This worker cannot restore its state: it waits to be assigned again. checkpoint: the epoch of the chain's newest
    one. error: which file is damaged, for the user."""

    checkpoint: Epoch
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldUp:
    """The worker cannot read the lake, and tries again. error: why, for the user; ``None``: it goes on."""

    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten:
    """This worker's part of the checkpoint is in the lake, in these files."""

    checkpoint: int
    files: tuple[StateFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointNotTaken:
    """This worker's part of the checkpoint could not be written. error: why, for the user."""

    checkpoint: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFinished:
    """The worker has read its slices of the epoch. read: rows per channel. applied: rows that have come per region; in
    a mixed epoch only those that have come here so far. stats: per region, rows, keys and bytes held. aged: as in
    ``EpochRead``."""

    epoch: Epoch
    read: Mapping[Channel, int]
    applied: Mapping[str, int]
    stats: Mapping[str, Mapping[str, int]]
    aged: Mapping[Channel, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsApplied:
    """More rows of an epoch that this worker has finished have come. applied: per region, all that have come so far."""

    epoch: Epoch
    applied: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSettled:
    """Rows that were gathered here are taken in, or a node has failed on some. settled: how many rows each region has
    taken in of this epoch so far. sent: how many rows went to each region so far, as results of these rows and of the
    epoch's rows from the lake. A region sends itself the rows that one of its nodes has failed on
    (worker.put_off_rows_count)."""

    epoch: Epoch
    settled: Mapping[str, int]
    sent: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDone:
    """This worker has done what ``BeginStage`` says. stats: as in ``EpochFinished``."""

    epoch: Epoch
    stage: int
    stats: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetPeers:
    """A channel is open to every peer."""

    meeting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersLost:
    """A channel of this meeting is gone, or could not be opened. why: for the user. peer: the worker at its other end,
    if there was one. unreached: the worker to which no channel could be opened."""

    meeting: int
    why: str
    peer: WorkerId | None = None
    unreached: WorkerId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """This worker routes the region's rows by the map of this version, and waits for no peer. kept: slices that
    stayed."""

    region: str
    version: MapVersion
    kept: tuple[VnodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLeft:
    """Nothing of the region is on its way here from a peer that leaves."""

    region: str
    peer: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Still:
    """This worker gives no keys away. given, taken: keys whose state it has sent and installed since its assignment."""

    pause: int
    given: int
    taken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """This worker's progress with a region since the last rescale began. phase: the distributor's.

    keys, bytes: given away. keys_left, vnodes_left: still to give, the keys estimated. gone: slices that have moved
    completely since the last ``Moved``. forwarded: own rows sent to a peer. bounced: a peer's rows sent on.
    """

    region: str
    phase: str
    keys: int
    bytes: int
    keys_left: int
    vnodes_left: int
    gone: tuple[VnodeId, ...]
    forwarded: int
    bounced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """The cost of a rescale to this worker so far, in milliseconds. stall: the longest time that its loop took for one
    step of migration. hold: the longest time that a key that came here was in service at no worker."""

    stall_ms: float
    hold_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken:
    """The worker holds its part of the snapshot. rows: of that part."""

    snapshot: SnapshotId
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotNotTaken:
    """The worker holds no part of the snapshot: an output expression of the view fails. error: why, for the user."""

    snapshot: SnapshotId
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewFailed:
    """The view can no longer be computed: this worker keeps nothing of it any more."""

    view: str
    failure: ViewFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailed:
    """The worker cannot go on; ``error`` says why, for the user. ``kind`` is the error's class name."""

    kind: str
    error: str


FromShare = (
    StartedAnew
    | Restored
    | Unrestored
    | CaughtUp
    | FeedEnded
    | TookOver
    | CheckpointWritten
    | CheckpointNotTaken
    | ChangesWritten
    | ChangesNotWritten
    | EpochFinished
    | Counted
    | KeysUnfilled
    | Evicted
    | RowsApplied
    | RowsSettled
    | StageDone
    | Settled
    | PeerLeft
    | Still
    | Moved
    | SnapshotTaken
    | SnapshotNotTaken
    | ViewFailed
)
"""What a share tells its flow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfShare:
    """From the worker's share of this flow."""

    flow: FlowId
    message: FromShare


FromWorker = OfShare | HeldUp | Here | MetPeers | PeersLost | WorkerLoad | WorkerFailed
