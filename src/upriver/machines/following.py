"""The state of a worker that follows the river."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from upriver.dataflow.plan import ViewPlan
from upriver.ids import Channel, Epoch, Incarnation, VnodeId, WorkerId
from upriver.machines.messages import Assign, FromWorker, Meet, TakeSnapshot
from upriver.machines.peers import Envelope, PeerMessage, Question
from upriver.machines.rules import Rules
from upriver.machines.share import Share, View
from upriver.machines.strategies import MIGRATORS, Strategy
from upriver.machines.worker_events import Report, SendPeer, WorkerAction
from upriver.vnodes import VnodeMap

BuildView = Callable[[ViewPlan], View]
"""Makes a view's empty state from its plan."""


@dataclass(frozen=True, slots=True)
class Unread:
    """An epoch that is open and not being read yet."""

    epoch: Epoch
    vnodes: tuple[VnodeId, ...]
    mixed: bool


@dataclass(slots=True)
class Reading:
    """The epoch whose slices are being read. read: rows so far, per channel that feeds a view."""

    epoch: Epoch
    mixed: bool
    read: dict[Channel, int]


@dataclass(slots=True)
class Asked:
    """A lookup that this worker was asked for. left: keys without an answer. epoch: the least of the parts'."""

    view: str
    left: int
    parts: list[pa.RecordBatch]
    epoch: Epoch | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A question whose keys' state is here, and that asks for a later epoch."""

    view: str
    question: Question


@dataclass(frozen=True, slots=True)
class Told:
    """What the coordinator was told of a view's migration: the distributor's phase, and which slices are given."""

    phase: str
    vnodes_left: int
    gone: frozenset[VnodeId]


NOTHING_TOLD = Told("", -1, frozenset())


@dataclass(slots=True, kw_only=True)
class Following:
    """Applies epochs, answers lookups, gives and takes keys."""

    assignment: Assign
    rules: Rules
    shares: dict[str, Share]
    fed_by: dict[Channel, list[str]]
    """The views that each channel feeds."""
    reads: tuple[VnodeId, ...]
    applied: Epoch
    """The last epoch whose slices were all read."""
    reflected: Epoch
    """The last epoch of which every row that concerns a key kept here is known to be applied."""
    opened: Epoch
    """The last epoch that the coordinator has opened."""
    unread: deque[Unread] = field(default_factory=deque)
    reading: Reading | None = None
    """``None`` between two epochs."""
    counts: defaultdict[Epoch, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Rows applied per view, of epochs that are not finished here."""
    late: Counter[tuple[Epoch, str]] = field(default_factory=Counter)
    """Rows applied in this step, of epochs that are finished here."""
    asked: dict[int, Asked] = field(default_factory=dict)
    """All and only the lookups that were asked for here and have no answer, by ticket."""
    waiting: list[Waiting] = field(default_factory=list)
    """All and only the questions that wait here for a later epoch."""
    snapshots: list[TakeSnapshot] = field(default_factory=list)
    """All and only the snapshots whose cut lies ahead. Cuts may go back, when the foremost worker is lost."""
    meet: Meet | None = None
    """The last meeting that this worker was told of, unless a peer was lost since."""
    met: Meet | None = None
    """The last meeting whose channels are all open, or were."""
    peers: dict[WorkerId, Incarnation] = field(default_factory=dict)
    """Who can be asked: all who have met at the last rescale, this worker too, but for those who have left; nobody if
    one was lost since."""
    left: set[WorkerId] = field(default_factory=set)
    """Who has taken leave, and is not in its place again. There is no channel to them."""
    loads_out: int = 0
    """Loads of state that were sent and are not known to be installed."""
    given: int = 0
    taken: int = 0
    """Keys whose state was sent and installed since the last meeting."""
    has_left: bool = False
    """No rows come here any more, and no question can be sent on."""
    pause: int | None = None
    """Keys stay where they are: the name of the pause."""
    told: dict[str, Told] = field(default_factory=dict)
    """What the coordinator was last told of each view's migration."""
    actions: list[WorkerAction] = field(default_factory=list)
    """What the step under way wants done."""

    @property
    def me(self) -> WorkerId:
        return self.assignment.worker

    def say(self, message: FromWorker) -> None:
        """To the coordinator."""
        self.actions.append(Report(message=message))

    def tell(self, peer: WorkerId, content: PeerMessage) -> None:
        envelope = Envelope(generation=self.assignment.generation, content=content)
        self.actions.append(SendPeer(to=peer, envelope=envelope))

    def reaches(self, asker: WorkerId) -> bool:
        """Whether there is, or was, a channel to a worker that has asked something. Who it was may be gone for long,
        and another may be in its place."""
        if self.met is None or asker not in self.met.peers or asker in self.left:
            return False
        return self.meet is None or self.meet.peers.get(asker) == self.met.peers[asker]

    def map_of(self, view: str) -> VnodeMap | None:
        """The map by which the view's keys are kept; ``None`` while they move."""
        return getattr(self.shares[view].migrator.phase, "map", None)


def started(event: Assign, build_view: BuildView, rules: Rules) -> Following:
    """A worker that holds nothing."""
    make = MIGRATORS[Strategy.ICADD]
    shares = {
        plan.name: Share(
            plan.name,
            build_view(plan),
            make(event.worker, event.maps[plan.name]),
            len(event.maps[plan.name].owners),
        )
        for plan in event.plans
    }
    fed_by: dict[Channel, list[str]] = {}
    for plan in event.plans:
        fed_by.setdefault(plan.channel, []).append(plan.name)
    return Following(
        assignment=event,
        rules=rules,
        shares=shares,
        fed_by=fed_by,
        reads=event.reads,
        applied=event.start_at,
        reflected=event.start_at,
        opened=event.start_at,
    )
