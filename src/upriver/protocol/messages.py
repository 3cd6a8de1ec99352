"""What the coordinator and a worker say to each other, over one FIFO channel each way.

What the coordinator and a worker say to each other of who follows whom, and of slices that change hands.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from upriver.ids import Channel, Epoch, FeedId, Incarnation, MapVersion, SnapshotId, VnodeId, WorkerId
from upriver.migration.events import AbortAsked, RescaleAnnounced
from upriver.plan.plan import DataflowPlan
from upriver.protocol.strategies import Strategy
from upriver.state.checkpoint import StateFile
from upriver.state.failure import ViewFailure
from upriver.vnodes import VnodeMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """All workers go on as another generation, with what they keep as of the end of epoch ``at``: what came of a later
    one is put back. Slices that are another's by these maps are given up; those that were followed here, and are this
    worker's now, are taken over. The rest is that of ``Assign``.
    """

    maps: Mapping[str, VnodeMap]
    reads: tuple[VnodeId, ...]
    at: Epoch
    serve_from: Epoch
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """Have the owner of these slices send all that it keeps of them, and then what changes, and say ``CaughtUp`` at the
    end of each epoch through which it is here. feed: names this, and nothing else that ever was."""

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
    """Say ``Here``: a peer says that it cannot be reached."""

    probe: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """All that the owner of a feed's slices keeps of them as of the end of this epoch is here."""

    feed: FeedId
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEnded:
    """By this feed nobody is fed any more: whoever follows is to begin again. Said by the owner of its slices; or by
    who follows, if the owner may never have heard of it (replication.unfed_says_so)."""

    feed: FeedId


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """To a ``Probe``."""

    probe: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TookOver:
    """This worker keeps so many slices now that it has followed, with so many keys and bytes of state, over all regions
    that keep every key."""

    vnodes: int
    keys: int
    bytes: int


NO_STAGE = -1
"""Of an epoch: before the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Who a worker is and what it keeps: the first message to a new incarnation, and again when all start anew.

    maps: of each region. reads: the vnodes whose slices this worker reads. start_at: the epoch that its state
    reflects, once it is restored. serve_from: it answers no lookup before it has applied this epoch.
    generation: how often all workers have been assigned anew. chain: the epochs of the checkpoints, newest first, out
    of which it restores what it keeps, and says ``Restored``; ``()``: it begins with nothing; ``None``: that, and no
    checkpoint will be taken. reversible: others may take over at any epoch's end (``Resume``). failed: the views that
    have failed, and why.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FailView:
    """The view has failed, at some worker: keep nothing of it any more, and answer its lookups with this."""

    view: str
    failure: ViewFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEpoch:
    """The epoch's manifest is in the lake: apply it.

    mixed: rows may be applied elsewhere than where they are read, so that a worker that has read its slices still
    waits for ``EpochOver``.
    """

    epoch: Epoch
    mixed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginStage:
    """Every row of the epoch for regions of this depth has arrived, wherever: take in what was gathered, send what has
    come of the epoch in these regions, and say ``StageDone``."""

    epoch: Epoch
    stage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOver:
    """Every row of a mixed epoch was applied, wherever."""

    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadVnodes:
    """From the next epoch that is opened on, read the slices of these vnodes."""

    vnodes: tuple[VnodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meet:
    """Open a channel to each of these peers, and say ``MetPeers``.

    meeting: names this one. peers: all members of the rescale to come, this worker too, with the incarnation and the
    address of each. strategy: by which the rescale will go. keys_max: keys to move at a time; ``None``: as many as
    the time allows.
    """

    meeting: int
    peers: Mapping[WorkerId, tuple[Incarnation, str]]
    strategy: Strategy
    keys_max: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationOrder:
    """To the distributor of one region."""

    region: str
    order: RescaleAnnounced | AbortAsked


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseInput:
    """No epoch will have this worker read anything more: take leave of these peers."""

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
    """Nobody reads the snapshot any more."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Keep these keys of a partial view no more, and say ``Evicted``. keys: their hash64; ``None`` for all keys."""

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
class Retire:
    """Stop and give the task slot back."""


ToWorker = (
    Assign
    | FailView
    | Resume
    | Follow
    | Unfollow
    | Probe
    | OpenEpoch
    | BeginStage
    | EpochOver
    | ReadVnodes
    | Meet
    | MigrationOrder
    | CloseInput
    | PauseEpochs
    | ContinueEpochs
    | TakeSnapshot
    | DropSnapshot
    | Evict
    | TakeCheckpoint
    | KeepCheckpoint
    | DropCheckpoint
    | Retire
)


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
    """The worker has been assigned again: what it says from here on is of this generation."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What this worker keeps is here, as of the epoch that it was to start at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrestored:
    """This worker cannot restore what it keeps: it waits to be assigned again. checkpoint: the epoch of the newest one
    of the chain. error: which file is damaged, for a person."""

    checkpoint: Epoch
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldUp:
    """The worker cannot read the lake, and tries again. error: why, for a person; ``None``: it goes on."""

    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten:
    """This worker's part of the checkpoint is in the lake, in these files."""

    checkpoint: int
    files: tuple[StateFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpoilt:
    """This worker's part of the checkpoint could not be written. error: why, for a person."""

    checkpoint: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFinished:
    """The worker has read its slices of the epoch. read: rows per channel. applied: rows that have come per region; in
    a mixed epoch only those that have come here so far. stats: per region, rows, keys and bytes held."""

    epoch: Epoch
    read: Mapping[Channel, int]
    applied: Mapping[str, int]
    stats: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsApplied:
    """More rows of an epoch that this worker has finished have come. applied: per region."""

    epoch: Epoch
    applied: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSettled:
    """Rows that were gathered here are taken in. settled: how many, per region. sent: of what came of it, and of the
    epoch's rows of the lake, how many rows were sent to each region."""

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
    """A channel of this meeting is gone, or could not be opened. why: for a person. peer: to whom, if that is
    known."""

    meeting: int
    why: str
    peer: WorkerId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """This worker routes the region's rows by the map of this version, and waits for nobody. kept: slices that
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
    """How far this worker is with a region since its last rescale began. phase: the distributor's.

    keys, bytes: given away. keys_left, vnodes_left: still to give, the keys estimated. gone: slices that are wholly
    their new owner's since it last said how far it is. forwarded: own rows sent to a peer. bounced: a peer's rows sent
    on.
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
    """What a rescale cost this worker so far, in milliseconds. stall: the longest that its loop took for one step of
    migration. hold: the longest that a key which came here was nowhere in service."""

    stall_ms: float
    hold_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken:
    """The worker holds its part of the snapshot. rows: of that part."""

    snapshot: SnapshotId
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSpoilt:
    """The worker holds no part of the snapshot: an output expression of the view fails. error: why, for a person."""

    snapshot: SnapshotId
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewFailed:
    """The view cannot be computed on: this worker keeps nothing of it any more."""

    view: str
    failure: ViewFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailed:
    """The worker cannot go on; ``error`` says why, for a person. ``kind`` is the error's class name."""

    kind: str
    error: str


FromWorker = (
    StartedAnew
    | Restored
    | Unrestored
    | HeldUp
    | CaughtUp
    | FeedEnded
    | Here
    | TookOver
    | CheckpointWritten
    | CheckpointSpoilt
    | EpochFinished
    | Counted
    | KeysUnfilled
    | Evicted
    | RowsApplied
    | RowsSettled
    | StageDone
    | MetPeers
    | PeersLost
    | Settled
    | PeerLeft
    | Still
    | Moved
    | WorkerLoad
    | SnapshotTaken
    | SnapshotSpoilt
    | ViewFailed
    | WorkerFailed
)
