"""What happens to a worker, besides the coordinator's messages, and what it wants done."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from upriver.engine.bad_rows import SetAside
from upriver.engine.batch import Batch
from upriver.errors import UpriverError
from upriver.hashing import Hashes
from upriver.ids import Channel, Epoch, Incarnation, MapVersion, SnapshotId, VnodeId, WorkerId
from upriver.partial.partial_region import ANSWER_ROWS_MAX, KeysToRead, Upquery
from upriver.protocol.messages import FromWorker, Meet, ToWorker
from upriver.protocol.peers import Envelope
from upriver.state.checkpoint import StateChunk, StateFile


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsRead:
    """Some rows of the open epoch were read, in hash64 order within the epoch and channel. All rows of one key that
    an epoch has on a channel come in one batch."""

    epoch: Epoch
    channel: Channel
    batch: Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRead:
    """All rows of the epoch were read. promised: rows per channel of this worker's vnodes, from the manifest."""

    epoch: Epoch
    promised: Mapping[Channel, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupAsked:
    """Somebody asks for keys of a view. hash64: of the keys, one per row of ``keys``.

    ticket: names the asker, and no other that ever asked any worker: answers may come late, to who is in its place.
    together: all keys are to be as of the end of one epoch.
    """

    ticket: int
    view: str
    keys: pa.RecordBatch
    hash64: Hashes
    at_least: Epoch
    together: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupGivenUp:
    """Who asked does not wait any more."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersMet:
    """A channel is open to every peer of the meeting, and to no other."""

    meeting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSaid:
    """The next thing on the channel from a peer."""

    sender: WorkerId
    envelope: Envelope


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLost:
    """The channel to a peer has ended, with or without a goodbye, or could not be opened.

    peer, incarnation: whose; ``None`` if that is not known. why: for a person.
    """

    why: str
    peer: WorkerId | None = None
    incarnation: Incarnation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToMove:
    """There is time to give up to ``keys_max`` keys away."""

    keys_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysRead:
    """An upquery has its answer: the rows of all its keys, by port of the region, in order. through: the last epoch
    that was read. rows_max: how many of the rows are taken in with it; there will be ``TimeToTakeIn`` for the others.
    The rest is that of ``ReadKeys``."""

    generation: int
    region: str
    number: int
    rows: tuple[tuple[int, Batch], ...]
    through: Epoch
    rows_max: int = ANSWER_ROWS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToAnswer:
    """There is time to read about ``rows_max`` more rows of a long answer."""

    rows_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToTakeIn:
    """There is time to take in about ``rows_max`` more rows of an upquery's answer."""

    rows_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysUnread:
    """An upquery cannot be answered: the lake cannot be read. The rest is that of ``ReadKeys``."""

    generation: int
    region: str
    number: int
    error: UpriverError


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToFill:
    """There is time for the next upqueries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsFetched:
    """What ``FetchRows`` has asked for, one batch for each of its reads."""

    generation: int
    view: str
    rows: tuple[Batch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsUnfetched:
    """What ``FetchRows`` has asked for cannot be read."""

    generation: int
    view: str
    error: UpriverError


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToEvict:
    """There is time to forget up to ``keys_max`` keys."""

    keys_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRead:
    """What the checkpoints have of some keys of a region."""

    region: str
    chunk: StateChunk


@dataclass(frozen=True, slots=True, kw_only=True)
class StateUnread:
    """A file of the checkpoints is damaged, or gone. error: which one, for a person."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllStateRead:
    """The checkpoints have no more for this worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToCopy:
    """There is time to copy up to ``keys_max`` keys for the checkpoint that is being taken."""

    keys_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToFeed:
    """There is time to copy up to ``keys_max`` keys for whoever follows this worker."""

    keys_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToSettle:
    """There is time to take in about ``rows_max`` rows of the stage that has begun."""

    rows_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWritten:
    """All that was copied for the checkpoint is in the lake."""

    checkpoint: int
    files: tuple[StateFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateNotWritten:
    """What was copied for the checkpoint cannot be written. error: why, for a person."""

    checkpoint: int
    error: str


WorkerEvent = (
    ToWorker
    | RowsRead
    | EpochRead
    | LookupAsked
    | LookupGivenUp
    | PeersMet
    | PeerSaid
    | PeerLost
    | TimeToMove
    | KeysRead
    | KeysUnread
    | TimeToFill
    | TimeToTakeIn
    | TimeToAnswer
    | RowsFetched
    | RowsUnfetched
    | TimeToEvict
    | StateRead
    | StateUnread
    | AllStateRead
    | TimeToCopy
    | TimeToFeed
    | TimeToSettle
    | StateWritten
    | StateNotWritten
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEpoch:
    """Read the slices of ``vnodes`` of the epoch, then say ``EpochRead``."""

    epoch: Epoch
    channels: tuple[Channel, ...]
    vnodes: tuple[VnodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadKeys:
    """Read all rows of the upquery's keys that the lake has on these channels, through its epoch, and through those
    after it that are published, up to ``EPOCHS_AHEAD_MAX`` of them (partial.read_ahead); then say ``KeysRead``. ports:
    of the region, each with the channel that feeds it."""

    generation: int
    region: str
    upquery: Upquery
    ports: tuple[tuple[int, Channel], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRows:
    """Read this out of the lake for the view's cone, then say ``RowsFetched``."""

    generation: int
    view: str
    reads: tuple[KeysToRead, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadState:
    """Read out of these checkpoints, newest first, what is kept of the vnodes of each region, then say
    ``AllStateRead``. No epoch is read meanwhile."""

    chain: tuple[Epoch, ...]
    vnodes: Mapping[str, tuple[VnodeId, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteState:
    """Write a chunk of a region for a checkpoint, which will be that of this epoch."""

    checkpoint: int
    at: Epoch
    region: str
    chunk: StateChunk


@dataclass(frozen=True, slots=True, kw_only=True)
class SealState:
    """All chunks of the checkpoint were given: when they are in the lake, say ``StateWritten``."""

    checkpoint: int
    at: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetState:
    """What was written for the checkpoint is of no use."""

    checkpoint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRowsAside:
    """Write rows of the epoch to the lake's rejected rows, before anything that follows is done.

    Rows of an epoch and an edge that are equal come together, so no two of these for one edge have equal rows.
    """

    epoch: Epoch
    aside: SetAside


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Send to the coordinator."""

    message: FromWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPeer:
    """Put on the channel to a peer."""

    to: WorkerId
    envelope: Envelope


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetPeers:
    """See to it that there is one channel to each peer named, and to no other; then say ``PeersMet``."""

    meet: Meet


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The rows asked for, as of ``epoch`` at least; if they were to be together, as of its very end. parts: they are in
    one batch or more, in order.

    version: of the map by which their keys are kept. relayed: whether some of them are kept by a peer, which is worth
    asking at once. held_up: whether some were not present here at first, or about to move: a lookup of other keys would
    not have had to wait for that.
    """

    ticket: int
    parts: tuple[pa.RecordBatch, ...]
    epoch: Epoch
    version: MapVersion
    relayed: bool
    held_up: bool

    @property
    def rows(self) -> pa.RecordBatch:
        """All of them; copies those of several parts."""
        return self.parts[0] if len(self.parts) == 1 else pa.concat_batches(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """The lookup cannot be answered here."""

    ticket: int
    error: UpriverError


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldSnapshot:
    """Keep the rows for scans until ``ForgetSnapshot``."""

    snapshot: SnapshotId
    rows: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetSnapshot:
    """Let the rows go."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The worker is done."""


WorkerAction = (
    ReadEpoch
    | ReadKeys
    | FetchRows
    | ReadState
    | WriteState
    | SealState
    | ForgetState
    | SetRowsAside
    | Report
    | SendPeer
    | MeetPeers
    | Answer
    | Refuse
    | HoldSnapshot
    | ForgetSnapshot
    | Stop
)
