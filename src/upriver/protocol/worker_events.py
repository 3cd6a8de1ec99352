"""The events of a worker and of its shares, besides the coordinator's messages, and the actions that they ask for.

A share of one flow takes a ``ShareEvent`` and asks for a ``ShareAction``. The worker hands the events of a flow to its
share, and names the flow in what the share says and wants: ``WorkerEvent``, ``WorkerAction``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa

from upriver.engine.bad_rows import SetAside
from upriver.engine.batch import Batch, one_batch
from upriver.engine.pending_changes import ChangedRows
from upriver.errors import UpriverError
from upriver.hashing import Hashes
from upriver.ids import BEGINNING, Channel, Epoch, FlowId, Incarnation, MapVersion, SnapshotId, VnodeId, WorkerId
from upriver.partial.partial_region import ANSWER_ROWS_MAX, KeysToRead, Upquery
from upriver.protocol.lookups import LookupTerms
from upriver.protocol.messages import CloseInput, FromShare, FromWorker, Meet, Retire, ToShare, ToWorker
from upriver.protocol.peers import Envelope
from upriver.state.changes import ChangePart
from upriver.state.checkpoint import StateChunk, StateFile
from upriver.state.vectors import Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsRead:
    """Some rows of the open epoch were read, in hash64 order within the epoch and channel. All rows of one key in an
    epoch and channel come in one batch, unless the channel is in ``ReadEpoch.in_parts``. goes_on: more rows of the
    batch's last key come in the next one."""

    epoch: Epoch
    channel: Channel
    batch: Batch
    goes_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRead:
    """All rows of the epoch were read. promised: rows per channel of this worker's vnodes, from the manifest. aged: of
    tables that retain rows by a time, the rows that were taken back, less those that came too old and were left out."""

    epoch: Epoch
    promised: Mapping[Channel, int]
    aged: Mapping[Channel, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupAsked:
    """A client looks up keys of a view. hash64: of the keys, one per row of ``keys``.

    ticket: names the lookup; no other lookup at any worker ever has it, because a late answer may reach a later worker
    in the asker's place. together: all keys must be as of the end of one epoch.
    """

    ticket: int
    view: str
    keys: pa.RecordBatch
    hash64: Hashes
    at_least: Epoch
    together: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupsAsked:
    """Clients look up keys of one view, in several lookups. keys, hash64: of all of them, one lookup after the other.

    ticket: of the first; each later one has the next. lookups: their terms, in order.
    """

    ticket: int
    view: str
    keys: pa.RecordBatch
    hash64: Hashes
    lookups: Sequence[LookupTerms]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupGivenUp:
    """The client no longer waits for its lookup."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersMet:
    """A channel is open to every peer of the meeting, and to no other."""

    meeting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSaid:
    """The next message on the channel from a peer."""

    sender: WorkerId
    envelope: Envelope


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLost:
    """The channel to a peer has ended, with or without a goodbye, or could not be opened.

    peer, incarnation: of the peer whose channel has ended; ``None`` if not known. unreached: the first peer to which no
    channel could be opened. why: for the user.
    """

    why: str
    peer: WorkerId | None = None
    incarnation: Incarnation | None = None
    unreached: WorkerId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToMove:
    """There is time to give up to ``keys_max`` keys away."""

    keys_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysRead:
    """An upquery has its answer: the rows of all its keys, by port of the region, in order. through: the last epoch
    that was read. clock: its instant, as in ``OpenEpoch``. rows_max: how many rows this event takes in;
    ``TimeToTakeIn`` takes in the rest. The other fields are as in ``ReadKeys``."""

    generation: int
    region: str
    number: int
    rows: tuple[tuple[int, Batch], ...]
    through: Epoch
    rows_max: int = ANSWER_ROWS_MAX
    clock: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToAnswer:
    """There is time to read about ``rows_max`` more rows of a long answer."""

    rows_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToTakeIn:
    """There is time to take in about ``rows_max`` more rows of an upquery's answer."""

    rows_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTakesLong:
    """Many rows are being read for an upquery, or for a task of a cone: others may begin. number: the upquery's or the
    task's. The other fields are as in ``ReadKeys``."""

    generation: int
    region: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysUnread:
    """An upquery cannot be answered: the lake cannot be read. The other fields are as in ``ReadKeys``."""

    generation: int
    region: str
    number: int
    error: UpriverError


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToFill:
    """There is time for the next upqueries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsFetched:
    """The rows that ``FetchRows`` asked for, one batch for each of its reads. rows_max: as in ``KeysRead``."""

    generation: int
    view: str
    task: int
    rows: tuple[Batch, ...]
    rows_max: int = ANSWER_ROWS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsUnfetched:
    """The rows that ``FetchRows`` asked for cannot be read."""

    generation: int
    view: str
    task: int
    error: UpriverError


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToEvict:
    """There is time to forget up to ``keys_max`` keys."""

    keys_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRead:
    """The checkpoints' state of some keys of a region."""

    region: str
    chunk: StateChunk


@dataclass(frozen=True, slots=True, kw_only=True)
class StateUnread:
    """A file of the checkpoints is damaged, or gone. error: which one, for the user."""

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
    """There is time to copy up to ``keys_max`` keys for a follower of this worker."""

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
    """The copies for the checkpoint cannot be written. error: why, for the user."""

    checkpoint: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesStored:
    """The changes are in the lake, in these parts."""

    taking: int
    parts: tuple[ChangePart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesNotStored:
    """The changes cannot be written. error: why, for the user."""

    taking: int
    error: str


LakeAnswer = (
    RowsRead
    | EpochRead
    | KeysRead
    | KeysUnread
    | ReadTakesLong
    | RowsFetched
    | RowsUnfetched
    | StateRead
    | StateUnread
    | AllStateRead
    | StateWritten
    | StateNotWritten
    | ChangesStored
    | ChangesNotStored
)
"""What the shell tells a share of its reads and writes of the lake."""

TimeToWork = (
    TimeToMove | TimeToFill | TimeToTakeIn | TimeToAnswer | TimeToEvict | TimeToCopy | TimeToFeed | TimeToSettle
)
"""There is time for a slice of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHears:
    """For the share of this flow: what its reads and writes of the lake have come to."""

    flow: FlowId
    event: LakeAnswer


ShareEvent = (
    ToShare
    | Meet
    | CloseInput
    | Retire
    | LakeAnswer
    | LookupAsked
    | LookupsAsked
    | LookupGivenUp
    | PeersMet
    | PeerSaid
    | PeerLost
    | TimeToWork
)
"""What happens to a share of one flow."""

WorkerEvent = (
    ToWorker | ShareHears | LookupAsked | LookupsAsked | LookupGivenUp | PeersMet | PeerSaid | PeerLost | TimeToWork
)
"""What happens to a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEpoch:
    """Read the slices of ``vnodes`` of the epoch, then say ``EpochRead``. after, as_of: as for ``OpenEpoch``.
    in_parts: the channels of which the rows of one key may come in several batches."""

    epoch: Epoch
    channels: tuple[Channel, ...]
    vnodes: tuple[VnodeId, ...]
    after: Epoch | None = None
    as_of: Epoch = BEGINNING
    in_parts: frozenset[Channel] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadKeys:
    """Read all rows of the upquery's keys on these channels from the lake, then say ``KeysRead``. Read through the
    upquery's epoch and up to ``EPOCHS_AHEAD_MAX`` published epochs after it (partial.read_ahead). ports: of the region,
    each with the channel that feeds it. needs_clock: whether the answer must tell the instant."""

    generation: int
    region: str
    upquery: Upquery
    ports: tuple[tuple[int, Channel], ...]
    needs_clock: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRows:
    """Read these rows from the lake for a task of the view's cone, then say ``RowsFetched``."""

    generation: int
    view: str
    task: int
    reads: tuple[KeysToRead, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadState:
    """Read the state of each region's vnodes from these checkpoints, newest first, then say ``AllStateRead``. No epoch
    is read meanwhile."""

    chain: tuple[Epoch, ...]
    vnodes: Mapping[str, tuple[VnodeId, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteState:
    """Write a chunk of a region for the checkpoint of epoch ``at``."""

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
    """The files that were written for the checkpoint are of no use."""

    checkpoint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRowsAside:
    """Write rows of the epoch to the lake's rejected rows, before any later action.

    Equal rows of an epoch and an edge come together, so no two of these actions for one edge have equal rows. after: as
    for ``OpenEpoch``.
    """

    epoch: Epoch
    aside: SetAside
    after: Epoch | None = None


Said = TypeVar("Said", FromShare, FromWorker)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Generic[Said]):
    """Send to the coordinator."""

    message: Said


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPeer:
    """Send to a peer over its channel."""

    to: WorkerId
    envelope: Envelope


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetPeers:
    """Make sure that there is one channel to each named peer, and to no other; then say ``PeersMet``."""

    meet: Meet


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The rows of a lookup, as of ``epoch`` at least; for ``together``, as of its very end. parts: the rows in one
    batch or more, in order.

    version: of the map that places their keys. relayed: whether a peer keeps some of them; the client should ask it
    directly next time. held_up: whether some were not present here at first, or about to move: a lookup of other keys
    would not have waited for that.
    """

    ticket: int
    parts: tuple[pa.RecordBatch, ...]
    epoch: Epoch
    version: MapVersion
    relayed: bool
    held_up: bool

    @property
    def rows(self) -> pa.RecordBatch:
        """All rows in one batch; copies them if there are several parts."""
        return one_batch(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTogether:
    """The rows of several lookups of a ``LookupsAsked``, as of ``epoch``, which has ended if a lookup is ``together``.
    tickets: of these lookups. ends: where the rows of each end. version: as of ``Answer``."""

    tickets: Sequence[int]
    rows: pa.RecordBatch
    ends: Positions
    epoch: Epoch
    version: MapVersion


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
    """Release the rows."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteChanges:
    """Write these changes to the lake, by view, then say ``ChangesStored``."""

    taking: int
    at: Epoch
    rows: Mapping[str, ChangedRows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The worker is done."""


LakeWish = (
    ReadEpoch | ReadKeys | FetchRows | ReadState | WriteState | SealState | ForgetState | SetRowsAside | WriteChanges
)
"""What a share wants of the lake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareWants:
    """The share of this flow wants something of the lake."""

    flow: FlowId
    action: LakeWish


ShareAction = LakeWish | Report[FromShare] | SendPeer | Answer | AnswerTogether | Refuse | HoldSnapshot | ForgetSnapshot
"""What a share of one flow wants done."""

WorkerAction = (
    ShareWants
    | Report[FromWorker]
    | SendPeer
    | MeetPeers
    | Answer
    | AnswerTogether
    | Refuse
    | HoldSnapshot
    | ForgetSnapshot
    | Stop
)
"""What a worker wants done."""
