"""What comes of an event that a share has taken, for the worker to see to.

What workers say to each other, over one FIFO channel for each ordered pair of workers.

All that is said of all regions between two workers takes this one way, so nothing overtakes anything (document 000,
silent assumption; ``docs/internals/icadd.md``).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.engine.bad_rows import SetAside
from upriver.engine.batch import Batch
from upriver.errors import UpriverError
from upriver.hashing import Hashes
from upriver.ids import BEGINNING, Epoch, FeedId, VnodeId, WorkerId
from upriver.migration.events import Leave, ReportGone, ReportSettled, Send
from upriver.migration.messages import Message
from upriver.state.checkpoint import StateChunk
from upriver.state.failure import ViewFailure

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Portion:
    """Rows of one epoch on their way to where their keys' state is. port: of the region, at which they come in."""

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
    """Keys that somebody has asked ``asker`` for, on their way to where their state is: a lookup goes as rows go.

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

    begun: the last epoch of which the sender has begun to read rows: state that it sends may have them
    (worker.between_epochs).
    """

    region: str
    message: Message
    begun: Epoch = BEGINNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Hot:
    """Of a slice that goes to the receiver and whose keys stay behind: the hash64 of those that were read last.

    shown: no lookup at the sender has seen any of the slice's keys as of a later epoch; 0 if that is of no matter.
    """

    region: str
    keys: Hashes
    shown: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The state of the last ``Acquire`` is in place: the receiver may send the next.

    seconds: that it took; machines have no clock, so their shell puts it in.
    """

    region: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLookupAnswered:
    """To the asker: the rows of ``keys`` of the keys of its lookup, as of ``epoch`` at least."""

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
    """From the asker: nobody waits for its lookup any more."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginFeed:
    """To the owner of these slices: send what you keep of them, and what changes."""

    feed: FeedId
    vnodes: tuple[VnodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFeed:
    """To the owner: nobody follows these slices any more under this feed."""

    feed: FeedId
    vnodes: tuple[VnodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """To who follows: all that a region keeps of these keys (ascending, unique), in place of what was kept of them.

    epoch: as of whose end, not to be taken in before that epoch is over; 0 if it is as of no epoch's end, and what is
    missing comes later.
    """

    feed: FeedId
    region: str
    epoch: Epoch
    keys: Hashes
    state: tuple[pa.RecordBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FedThrough:
    """To who follows: all was said as of the end of this epoch."""

    feed: FeedId
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsForwardedBack:
    """To the owner: a ``Fed`` of no epoch is taken in, and the next may come."""

    feed: FeedId


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedHere:
    """The view has failed at the sender: what comes after this has no state of it."""

    view: str
    failure: ViewFailure


FEED_MESSAGES = (BeginFeed, EndFeed, Fed, FedThrough, RowsForwardedBack)
FeedMessage = BeginFeed | EndFeed | Fed | FedThrough | RowsForwardedBack
PeerMessage = (
    ForRegion | Hot | Installed | PeerLookupAnswered | PeerLookupRefused | PeerLookupGivenUp | FailedHere | FeedMessage
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """generation: how often all workers have been assigned anew, or have resumed; what is of an older one is not
    opened, but for feeds and failures of views, which outlive that all resume."""

    generation: int
    content: PeerMessage


@dataclass(frozen=True, slots=True)
class Applied:
    """Rows of an epoch have come to the region."""

    epoch: Epoch
    rows: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows of an epoch have come from which the view cannot be computed."""

    epoch: Epoch
    aside: SetAside


@dataclass(frozen=True, slots=True)
class AskedHere:
    """The state of the question's keys is here, if there is any."""

    question: PeerLookup


@dataclass(frozen=True, slots=True)
class Gave:
    """The state of so many keys was collected, and is here no more."""

    keys: int


@dataclass(frozen=True, slots=True)
class Took:
    """The state of so many keys has come, and is in place."""

    keys: int


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """Keys that were present here, to be filled at their new owner. shown: no lookup has seen any of them as of a later
    epoch."""

    to: WorkerId
    keys: Hashes
    shown: Epoch


@dataclass(frozen=True, slots=True)
class OwnersChanged:
    """Questions wait here for keys that will not be present here."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What a checkpoint is to have of some keys, which change now."""

    chunk: StateChunk


Outcome = (
    LeftBehind
    | OwnersChanged
    | Applied
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
