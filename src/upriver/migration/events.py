"""What happens to the distributor of one region on one worker."""

from dataclasses import dataclass

from upriver.ids import MapVersion, WorkerId
from upriver.migration.messages import Message, Rows
from upriver.vnodes import VnodeMap
from upriver.xxh64 import Hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsArrived:
    """Rows came from upstream on this worker."""

    rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """The next message on the channel from ``sender``."""

    sender: WorkerId
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleAnnounced:
    """The coordinator wants ``after`` (F') in place of ``before`` (F).

    old, new: the workers of the old and of the new configuration (W and W'), in order. A worker may be in either
    without owning a vnode. after.version is before.version + 1.
    """

    before: VnodeMap
    after: VnodeMap
    old: tuple[WorkerId, ...]
    new: tuple[WorkerId, ...]

    @property
    def version(self) -> MapVersion:
        return self.after.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrogated:
    """Every operator of the region has seen the Interrogate. keys: all those asked about that have state."""

    keys: Hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectAsked:
    """There is time to move up to ``keys_max`` keys."""

    keys_max: int

    def __post_init__(self) -> None:
        if self.keys_max < 1:
            raise ValueError(f"at least one key is collected at a time, not {self.keys_max}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Every operator of the region has seen the Collect. state: all they keep for ``keys``."""

    keys: Hashes
    state: object


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortAsked:
    """What has not begun to move to the map of this version shall stay."""

    version: MapVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class InputClosed:
    """The coordinator has retired this worker, and nothing more will come from its own upstream.

    peers: the workers that stay, in order.
    """

    peers: tuple[WorkerId, ...]


Event = RowsArrived | Received | RescaleAnnounced | Interrogated | CollectAsked | Collected | AbortAsked | InputClosed
