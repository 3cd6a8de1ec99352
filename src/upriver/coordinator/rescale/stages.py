"""The stages of a rescale, each with what it needs, and what may go on meanwhile.

``Idle`` -> ``Recording`` -> ``Starting`` -> ``Meeting`` -> ``Draining`` -> ``Moving`` -> ``Idle``. A ``restart`` goes
from ``Starting`` to ``Draining`` and ``Reloading``; ``learner`` goes from ``Meeting`` to ``Learning`` and ``Parting``.

``Handover``: which worker reads which slices of the epochs while keys move. Once a slice has moved in every region, its
new owner reads it from the next epoch on. A reader routes each row through the region's distributor, so any reader is
right. But the old owner would have to relay each row of the slice.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

from upriver.coordinator.places import WorkerProcess
from upriver.coordinator.rescale.plan import AnnouncedPlan, RescalePlan, first
from upriver.ids import Epoch, FlowId, VnodeId, WorkerId
from upriver.protocol.coordinator_events import RescaleBegun, RescaleOutcome, RescaleWanted
from upriver.vnodes import VnodeMap


class Handover:
    """before, after: the map of all regions. With no region, nothing is handed over."""

    def __init__(self, before: VnodeMap, after: VnodeMap, regions: Iterable[str]) -> None:
        self._before, self._after = before, after
        self._gone: dict[str, set[VnodeId]] = {region: set() for region in regions}
        self._handed: set[VnodeId] = set()

    def gone(self, region: str, vnodes: Collection[VnodeId]) -> None:
        """These slices of the region have moved to their new owner completely."""
        self._gone[region].update(vnodes)

    def take(self) -> VnodeMap | None:
        """The map that the next epoch is read by; ``None``: the same as for the last one."""
        if not self._gone:
            return None
        gone = set.intersection(*self._gone.values())
        if gone == self._handed:
            return None
        self._handed = gone
        left = self._before.diff(self._after).keys() - gone
        return self._after.keeping(self._before, left)


@dataclass(frozen=True, slots=True)
class AcceptedRescale:
    """The request whose turn it is, and what it comes to."""

    request: RescaleWanted
    plan: RescalePlan

    @property
    def begun(self) -> RescaleBegun:
        before, after = len(self.plan.old), len(self.plan.new)
        return RescaleBegun(ticket=self.request.ticket, before=before, after=after, vnodes=self.plan.vnodes)


@dataclass(frozen=True, slots=True)
class Idle:
    """No rescale is on."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The control record that says what the rescale leads to is on its way to the lake. number: the record's."""

    rescale: AcceptedRescale
    number: int


MEETINGS_AGAIN_MAX = 5
"""Times that the members of a rescale meet again because a channel was lost before keys have moved."""


@dataclass(frozen=True, slots=True)
class Starting:
    """The workers that join are not all up; or they are, and epochs end for which workers speak to each other
    (``drains``): no worker joins amid one. meetings_left: how often members may still meet again."""

    rescale: AcceptedRescale
    meetings_left: int = MEETINGS_AGAIN_MAX
    drains: bool = False


@dataclass(frozen=True, slots=True)
class Meeting:
    """Not all members have all their channels. meetings_left: as in ``Starting``."""

    rescale: AcceptedRescale
    meetings_left: int


@dataclass(frozen=True, slots=True)
class Draining:
    """No epoch is opened until all that are open have ended. meetings_left: as in ``Starting``."""

    rescale: AcceptedRescale
    meetings_left: int


@dataclass(slots=True, eq=False)
class Moving:
    """Keys move. announced: what workers were told, and have reported. handover: which worker reads which slices
    meanwhile. leaving: all and only the workers that have nothing left and whose input is not closed, each with its
    peers. is_aborted: by request."""

    rescale: AcceptedRescale
    announced: AnnouncedPlan
    handover: Handover
    leaving: dict[WorkerId, tuple[WorkerId, ...]] = field(default_factory=dict)
    is_aborted: bool = False

    @classmethod
    def begun(cls, rescale: AcceptedRescale) -> Self:
        """No worker has reported anything yet."""
        plan = rescale.plan
        return cls(rescale, AnnouncedPlan.of(plan), Handover(first(plan.before), first(plan.after), plan.before))


@dataclass(frozen=True, slots=True)
class Learning:
    """Learners take slices over, as the leader decides. before: the map before the rescale. outcome: how the rescale
    will end."""

    rescale: AcceptedRescale
    before: VnodeMap
    outcome: RescaleOutcome


@dataclass(frozen=True, slots=True)
class Parting:
    """All slices are learned, and the staying workers meet without the leavers. The leavers retire after that: no
    worker then expects to hear from them. before, outcome: as in ``Learning``."""

    rescale: AcceptedRescale
    before: VnodeMap
    outcome: RescaleOutcome
    leavers: tuple[WorkerProcess, ...]


@dataclass(frozen=True, slots=True)
class Reloading:
    """All workers read every epoch again: of each flow those up to ``until``. vnodes: how many have moved."""

    rescale: AcceptedRescale
    until: Mapping[FlowId, Epoch]
    vnodes: int


Stage = Idle | Recording | Starting | Meeting | Draining | Moving | Learning | Parting | Reloading


@dataclass(frozen=True, slots=True, kw_only=True)
class Permits:
    """What may go on at a stage, besides the rescale.

    meetings: besides the rescale's own. scans: snapshots, while epochs flow. rounds: slices may change hands as the
    leader decides. take_over: standbys may take over from a lost worker.
    """

    meetings: bool
    scans: bool
    rounds: bool
    take_over: bool


PERMITS: Mapping[type[Stage], Permits] = MappingProxyType(
    {
        Idle: Permits(meetings=True, scans=True, rounds=True, take_over=True),
        Recording: Permits(meetings=True, scans=True, rounds=False, take_over=False),
        Starting: Permits(meetings=True, scans=True, rounds=False, take_over=False),
        Meeting: Permits(meetings=False, scans=True, rounds=False, take_over=False),
        Draining: Permits(meetings=False, scans=False, rounds=False, take_over=False),
        Moving: Permits(meetings=False, scans=False, rounds=False, take_over=False),
        Learning: Permits(meetings=True, scans=True, rounds=True, take_over=True),
        Parting: Permits(meetings=True, scans=True, rounds=False, take_over=True),
        Reloading: Permits(meetings=True, scans=True, rounds=False, take_over=False),
    }
)
