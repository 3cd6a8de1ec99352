"""Events of the distributor of one region on one worker, and the actions that it asks for.

The actions of one step are carried out in order.
"""

from dataclasses import dataclass
from enum import StrEnum

from upriver.hashing import Hashes
from upriver.ids import MapVersion, VnodeId, WorkerId
from upriver.migration.messages import ForwardedRows, Message
from upriver.vnodes import VnodeMap


class Rule(StrEnum):
    """The rule by which rows go down here; ``docs/internals/icadd.md`` explains each, and those that send rows on.

    The letter is the phase: normal, interrogation, collection; V is the published version rule.
    """

    N1 = "N1"
    N2 = "N2"
    N3 = "N3"
    I1_1 = "I1.1"
    I1_2 = "I1.2"
    C1_1 = "C1.1"
    C3 = "C3"
    C3_1 = "C3.1"
    C3_2 = "C3.2"
    V = "V"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassDown:
    """Hand rows to the region's operators on this worker. rule: why they belong here."""

    rows: ForwardedRows
    rule: Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Put a message on the channel to another worker."""

    to: WorkerId
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrogate:
    """Ask the operators which keys of ``vnodes`` have state, behind all rows passed down before."""

    vnodes: tuple[VnodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect:
    """Ask the operators for the state of ``keys``. They keep it until Drop; no row of these keys comes meanwhile."""

    keys: Hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeState:
    """Give the operators the state of ``keys``, ahead of all rows passed down later."""

    keys: Hashes
    state: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """The operators may forget ``keys``."""

    keys: Hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettled:
    """Tell the coordinator that this worker routes by the new map and waits for no peer. kept: see ``Kept``."""

    version: MapVersion
    kept: tuple[VnodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """No peer can still send anything of this region here, and this worker owes no peer any rows: its part may end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportGone:
    """Tell the coordinator that nothing from ``peer`` is on its way here any more: the channel may be closed."""

    peer: WorkerId


Action = PassDown | Send | Interrogate | Collect | TakeState | Drop | ReportSettled | Leave | ReportGone


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsArrived:
    """Rows came from upstream on this worker."""

    rows: ForwardedRows


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
    """Every operator of the region has seen the Interrogate. keys: all keys of the asked vnodes that have state."""

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
    """Keep whatever has not begun to move to the map of this version."""

    version: MapVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class InputClosed:
    """The coordinator has retired this worker, and nothing more will come from its own upstream.

    peers: the workers that stay, in order.
    """

    peers: tuple[WorkerId, ...]


Event = RowsArrived | Received | RescaleAnnounced | Interrogated | CollectAsked | Collected | AbortAsked | InputClosed
