"""Messages between the distributors of one region, over one FIFO channel per ordered pair of workers.

Every message carries the version of the map that its sender was at, or was on its way to.

``RedistributeMessage``: those of ``redistribute`` only (document 001), beside rows, Acquire, Kept and Bye. Z is an old
owner of keys that move. Every worker has a distributor, so every worker is an X of every Z.
"""

from dataclasses import dataclass
from typing import Protocol

from upriver.hashing import Hashes
from upriver.ids import MapVersion, VnodeId, WorkerId
from upriver.state.vectors import Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown:
    """To a Z that leaves: the sender is about to route by the map of this version, which has no place for it."""

    version: MapVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaleup:
    """To a Z that stays: the sender is about to route by the map of this version, which gives some of its keys away."""

    version: MapVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Sets:
    """From Z to every X: the keys that Z has state of and that must go. hold: the keys that go first."""

    version: MapVersion
    whitelist: Hashes
    hold: Hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """From X to Z: the sender sends it no more rows of ``keys``, nor of any key that was not in the sets."""

    version: MapVersion
    keys: Hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Redistribute:
    """From Z to every X: ``keys`` are the new owner's; ``following`` go next, and are on hold from now on.

    added: keys that Z has met since it sent the sets; only the first message of a Z has any. A key in neither the sets
    nor ``added`` is the new owner's. state: that of ``keys``, by the published rules only; by the others, Z sends it to
    the new owner in an Acquire ahead of this.
    """

    version: MapVersion
    keys: Hashes
    following: Hashes
    added: Hashes
    state: object = None


RedistributeMessage = Shutdown | Scaleup | Sets | Final | Redistribute


class ForwardedRows(Protocol):
    """Rows on their way, as a distributor sees them: :class:`upriver.engine.batch.Batch` is one."""

    @property
    def hash64(self) -> Hashes:
        """Of the region's key, one per row."""

    def __len__(self) -> int: ...

    def filtered(self, mask: Mask) -> "ForwardedRows":
        """The rows where ``mask`` is true, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSent:
    """Rows for the receiver to take, hold or relay."""

    version: MapVersion
    rows: ForwardedRows


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
