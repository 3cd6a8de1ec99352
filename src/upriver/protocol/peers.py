"""The messages between workers, over one FIFO channel for each ordered pair of workers.

All messages between two workers, about all regions, take this one channel, so none overtakes another (document 000,
silent assumption; ``docs/internals/icadd.md``).

Also the outcomes of an event that a shard has taken, which the worker handles.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.engine.bad_rows import SetAside
from upriver.engine.batch import Batch
from upriver.errors import UpriverError
from upriver.hashing import Hashes
from upriver.ids import BEGINNING, Epoch, FeedId, FlowId, VnodeId, WorkerId
from upriver.migration.events import Leave, ReportGone, ReportSettled, Send
from upriver.migration.messages import Message
from upriver.state.checkpoint import StateChunk
from upriver.state.failure import ViewFailure

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Portion:
    """Rows of one epoch on their way to their keys' state. port: of the region, where the rows come in."""

    epoch: Epoch
    port: int
    batch: Batch

    @property
    def hash64(self) -> Hashes:
        return self.batch.hash64

    def __len__(self) -> int:
        return len(self.batch)

    def filtered(self, mask: Mask) -> "Portion":
        """The rows where ``mask`` is true, in order."""
        return Portion(self.epoch, self.port, self.batch.filtered(mask))


@dataclass(frozen=True, slots=True)
class PeerLookup:
    """Keys of a lookup at worker ``asker``, on their way to their state: a lookup is routed as rows are.

    ticket: the asker's name for the lookup. hash64: one per key. at_least: an epoch that the answer must reflect.
    together: whether all keys must be as of the end of the epoch that the answer tells.
    """

    ticket: int
    asker: WorkerId
    at_least: Epoch
    keys: pa.RecordBatch
    hash64: Hashes
    together: bool

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def filtered(self, mask: Mask) -> "PeerLookup":
        """The keys where ``mask`` is true, in order."""
        if mask.all():
            return self
        keys = self.keys.filter(pa.array(mask))
        return PeerLookup(self.ticket, self.asker, self.at_least, keys, self.hash64[mask], self.together)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForRegion:
    """From one distributor of a region to another. Rows in it are Portions or Questions.

    begun: the last epoch that the sender has begun to read. State that it sends may have rows of it
    (worker.between_epochs).
    """

    region: str
    message: Message
    begun: Epoch = BEGINNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Hot:
    """A slice goes to the receiver, but its keys stay behind. keys: the hash64 of the most recently read ones.

    shown: no lookup at the sender has seen any of the slice's keys as of a later epoch; 0 if that does not matter.
    """

    region: str
    keys: Hashes
    shown: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The state of the last ``Acquire`` is in place: the receiver may send the next.

    seconds: the time that it took. Machines have no clock, so their shell fills it in.
    """

    region: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLookupAnswered:
    """To the asker: the rows of this many (``keys``) keys of its lookup, as of ``epoch`` at least."""

    ticket: int
    keys: int
    rows: pa.RecordBatch
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLookupRefused:
    """To the asker: its lookup cannot be answered."""

    ticket: int
    error: UpriverError


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLookupGivenUp:
    """From the asker: it no longer waits for its lookup."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginFeed:
    """To the owner of these slices: send all state of them, and then what changes."""

    feed: FeedId
    vnodes: tuple[VnodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFeed:
    """To the owner: the sender no longer follows these slices under this feed."""

    feed: FeedId
    vnodes: tuple[VnodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """To the follower: a region's whole state of these keys (ascending, unique), which replaces the earlier state.

    epoch: the state is as of its end, and the follower takes it in when that epoch is over. 0: it is as of no epoch's
    end, and the rest comes later.
    """

    feed: FeedId
    region: str
    epoch: Epoch
    keys: Hashes
    state: tuple[pa.RecordBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FedThrough:
    """To the follower: everything as of the end of this epoch has been sent."""

    feed: FeedId
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsForwardedBack:
    """To the owner: the follower has taken in a ``Fed`` of no epoch, and the owner may send the next."""

    feed: FeedId


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedHere:
    """The view has failed at the sender: its messages after this one have no state of the view."""

    view: str
    failure: ViewFailure


FEED_MESSAGES = (BeginFeed, EndFeed, Fed, FedThrough, RowsForwardedBack)
FeedMessage = BeginFeed | EndFeed | Fed | FedThrough | RowsForwardedBack
PeerMessage = (
    ForRegion | Hot | Installed | PeerLookupAnswered | PeerLookupRefused | PeerLookupGivenUp | FailedHere | FeedMessage
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Between two workers' shares of a flow.

    generation: how often all shares of the flow have been assigned anew, or have resumed. The receiver ignores messages
    of an older one, except feeds and failures of views, which stay valid when all resume. It ignores messages of a flow
    that it has no share of."""

    flow: FlowId
    generation: int
    content: PeerMessage


@dataclass(frozen=True, slots=True)
class Applied:
    """Rows of an epoch have come to the region."""

    epoch: Epoch
    rows: int


@dataclass(frozen=True, slots=True)
class PutOff:
    """A node of the region has failed on so many rows of an epoch, which wait for the region's stage. epoch: ``None``
    for the last that has begun at this worker, or at the one that the keys have come from."""

    epoch: Epoch | None
    rows: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows of an epoch have come that the view cannot be computed from."""

    epoch: Epoch
    aside: SetAside


@dataclass(frozen=True, slots=True)
class AskedHere:
    """The lookup's keys belong here: this worker has their state, if there is any."""

    question: PeerLookup


@dataclass(frozen=True, slots=True)
class Gave:
    """The state of this many keys was collected, and is no longer here."""

    keys: int


@dataclass(frozen=True, slots=True)
class Took:
    """The state of this many keys has come, and is in place."""

    keys: int


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """Keys that were present here; their new owner fills them. shown: no lookup has seen any of them as of a later
    epoch."""

    to: WorkerId
    keys: Hashes
    shown: Epoch


@dataclass(frozen=True, slots=True)
class OwnersChanged:
    """Lookups wait here for keys that will not be present here."""


@dataclass(frozen=True, slots=True)
class Copied:
    """A checkpoint's copy of some keys, made before they change."""

    chunk: StateChunk


Outcome = (
    LeftBehind
    | OwnersChanged
    | Applied
    | PutOff
    | LeftOut
    | AskedHere
    | Gave
    | Took
    | Copied
    | Send
    | ReportSettled
    | ReportGone
    | Leave
)
