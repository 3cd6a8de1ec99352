"""The stages of a rescale as the coordinator goes through them; see :mod:`upriver.coordinator.rescales`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from upriver.coordinator import rescale_protocol as protocol
from upriver.coordinator.cluster import Member
from upriver.coordinator.handover import Handover
from upriver.coordinator.rescale_protocol import RegionId, RescaleCoordinator, RescaleOver
from upriver.ids import Epoch, WorkerId
from upriver.protocol.coordinator_events import Outcome
from upriver.vnodes import VnodeMap


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
class Learning:
    """Learners take slices over, as the leader says. before: the map of before. joining: who has come for it. outcome:
    what it is to end as."""

    before: VnodeMap
    joining: tuple[WorkerId, ...]
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Parting:
    """All is learned, and who stays meets without the leavers: they retire when nobody expects to hear of them."""

    before: VnodeMap
    outcome: Outcome
    leavers: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Reloading:
    """All workers read everything up to ``until`` again. vnodes: how many have moved."""

    until: Epoch
    vnodes: int


Stage = Idle | Starting | Meeting | Draining | Moving | Learning | Parting | Reloading


@dataclass(frozen=True, slots=True, kw_only=True)
class Permits:
    """What may go on at a stage, besides the rescale.

    meetings: others than the rescale's own. scans: snapshots, while epochs flow. rounds: slices may change hands as the
    leader says. take_over: and when a worker is lost.
    """

    meetings: bool
    scans: bool
    rounds: bool
    take_over: bool


PERMITS: Mapping[type[Stage], Permits] = MappingProxyType(
    {
        Idle: Permits(meetings=True, scans=True, rounds=True, take_over=True),
        Starting: Permits(meetings=True, scans=True, rounds=False, take_over=False),
        Meeting: Permits(meetings=False, scans=True, rounds=False, take_over=False),
        Draining: Permits(meetings=False, scans=False, rounds=False, take_over=False),
        Moving: Permits(meetings=False, scans=False, rounds=False, take_over=False),
        Learning: Permits(meetings=True, scans=True, rounds=True, take_over=True),
        Parting: Permits(meetings=True, scans=True, rounds=False, take_over=True),
        Reloading: Permits(meetings=True, scans=True, rounds=False, take_over=False),
    }
)


class Numbered:
    """The regions of all views, as the protocol counts them. ids: by name. names: by number."""

    def __init__(self, maps: Mapping[str, VnodeMap]) -> None:
        self._maps = dict(maps)
        self.ids = {region: RegionId(place) for place, region in enumerate(maps)}
        self.names = {place: region for region, place in self.ids.items()}

    def protocol(self, workers: tuple[WorkerId, ...]) -> RescaleCoordinator:
        """At its beginning, with these workers."""
        return RescaleCoordinator({place: self._maps[region] for region, place in self.ids.items()}, workers)


def at_once(steps: RescaleCoordinator) -> RescaleOver:
    """Take the protocol to its end, as if all keys had moved by now."""
    if isinstance(steps.phase, protocol.Starting):
        steps.step(protocol.WorkersStarted())
    actions: tuple[protocol.Action, ...] = ()
    while isinstance(phase := steps.phase, protocol.Rescaling):
        if phase.waiting:
            worker, region = min(phase.waiting)
            event: protocol.Event = protocol.RegionSettled(
                worker=worker, region=region, version=phase.plan.version, kept=()
            )
        else:
            worker, region, leaver = min(phase.unread)
            event = protocol.PeerGone(worker=worker, region=region, leaver=leaver)
        actions = steps.step(event)
    over = actions[-1]
    assert isinstance(over, RescaleOver)
    return over
