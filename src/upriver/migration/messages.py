"""What the distributors of one region say to each other, over one FIFO channel per ordered pair of workers.

Every message carries the version of the map that its sender was at, or was on its way to.
"""

from dataclasses import dataclass
from typing import Protocol

from upriver.ids import MapVersion, VnodeId, WorkerId
from upriver.migration.redistribute_messages import Final, Redistribute, Scaleup, Sets, Shutdown
from upriver.state.vectors import Mask
from upriver.xxh64 import Hashes


class Rows(Protocol):
    """Rows on their way, as a distributor sees them: :class:`upriver.engine.batch.Batch` is one."""

    @property
    def hash64(self) -> Hashes:
        """Of the region's key, one per row."""

    def __len__(self) -> int: ...

    def filtered(self, mask: Mask) -> "Rows":
        """The rows where ``mask`` is true, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSent:
    """Rows for the receiver to take, hold or relay."""

    version: MapVersion
    rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquire:
    """The state of ``keys`` is the receiver's from now on. state: what Collect gathered, for operators only."""

    version: MapVersion
    keys: Hashes
    state: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The sender has given away every key of the slice."""

    version: MapVersion
    vnode: VnodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The rescale was aborted before the sender gave these slices away: they stay where they are."""

    version: MapVersion
    vnodes: tuple[VnodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """To the slice's old owner: the sender sends it no more rows of the slice."""

    version: MapVersion
    vnode: VnodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedMark:
    """From the slice's old owner to the new one: all that ``origin`` sent by the old way is ahead of this."""

    version: MapVersion
    vnode: VnodeId
    origin: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Bye:
    """The sender has left; this is the last that comes from it."""

    version: MapVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDone:
    """Published rules only: the sender has no more state to give."""

    version: MapVersion


Message = (
    RowsSent
    | Acquire
    | Done
    | Kept
    | Mark
    | RelayedMark
    | Bye
    | WorkerDone
    | Shutdown
    | Scaleup
    | Sets
    | Final
    | Redistribute
)
