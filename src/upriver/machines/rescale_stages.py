"""The stages of a rescale as the coordinator goes through them; see :mod:`upriver.machines.rescales`."""

from dataclasses import dataclass, field

from upriver.ids import Epoch, WorkerId
from upriver.machines.handover import Handover
from upriver.migration.coordinator import RescaleOver


@dataclass(frozen=True, slots=True)
class Idle:
    """No rescale is on."""


@dataclass(frozen=True, slots=True)
class Starting:
    """The workers that join are not all up."""

    joining: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True)
class Meeting:
    """Not all members have all their channels."""


@dataclass(frozen=True, slots=True)
class Draining:
    """No epoch is opened until all that are open have ended."""


@dataclass(slots=True)
class Moving:
    """Keys move. handover: who reads which slices meanwhile. leaving: all and only the workers that have nothing left,
    and whose input is not closed; with the peers to take leave of. over: all keys have moved, and only the epoch that
    is open has to end."""

    handover: Handover
    leaving: dict[WorkerId, tuple[WorkerId, ...]] = field(default_factory=dict)
    over: RescaleOver | None = None


@dataclass(frozen=True, slots=True)
class Reloading:
    """All workers read everything up to ``until`` again. vnodes: how many have moved."""

    until: Epoch
    vnodes: int


Stage = Idle | Starting | Meeting | Draining | Moving | Reloading
