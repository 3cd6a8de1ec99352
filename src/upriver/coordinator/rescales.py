"""The coordinator's rescales, from request to end; rules coordinator.lock_step, coordinator.between_epochs and
coordinator.leave_when_dry.

A rescale waits until the joining workers are up (``Starting``) and all members have opened channels to each other
(``Meeting``). It then waits until every open epoch has ended (``Draining``). Then keys move (``Moving``), as
:class:`upriver.coordinator.rescale_protocol.RescaleCoordinator` says; each epoch opens when all before it have ended.
``restart`` moves nothing: all workers begin anew by the new map and read everything again (``Reloading``). When a
worker is lost while keys move, all begin anew by the old map. With ``learner``, slices change hands one by one, as the
leader decides (``Learning``). DESIGN section 5; documents 000, 001 and 002.

``Meetings``: before workers speak to each other, each opens a channel to every other.

``RescaleQueue``: the rescales that wait, in the order of the requests (icadd.one_rescale_at_a_time).

``Handover``: which worker reads which slices of the epochs while keys move. Once a slice has moved in every region, its
new owner reads it from the next epoch on. A reader routes each row through the region's distributor, so any reader is
right. But the old owner would have to relay each row of the slice.

``LearnerRescales``: the stages of a rescale by learners, from the first meeting until the leavers have retired.
Document 002. The leader's rounds move slices one by one, while everything goes on. Then the staying workers meet
without the leavers, so that none of them depends on a leaver.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import assert_never

from upriver.coordinator import rescale_protocol as protocol
from upriver.coordinator.cluster import Cluster, Member
from upriver.coordinator.replication import Leader
from upriver.coordinator.rescale_protocol import (
    QUEUE_REQUESTS_MAX,
    RegionId,
    RescaleCoordinator,
    RescaleOver,
    RescalePlan,
    Ticket,
)
from upriver.coordinator.scans import Scans
from upriver.errors import DeclarationError, UpriverError, WorkerLost
from upriver.ids import Epoch, Incarnation, MapVersion, VnodeId, WorkerId
from upriver.protocol.coordinator_events import (
    AbortWanted,
    RescaleBegun,
    RescaleEnded,
    RescaleOutcome,
    RescaleWanted,
    StartWorkers,
)
from upriver.protocol.messages import (
    CloseInput,
    Meet,
    MetPeers,
    MigrationOrder,
    Moved,
    PeerLeft,
    PeersLost,
    Retire,
    Settled,
)
from upriver.protocol.strategies import Strategy
from upriver.vnodes import VnodeMap


class Meetings:
    """The meetings of all workers. number: of the last one."""

    def __init__(self, cluster: Cluster) -> None:
        self.number = 0
        self._cluster = cluster
        self._called: frozenset[Incarnation] = frozenset()
        """The incarnations that were called to the last meeting."""
        self._waiting: frozenset[Incarnation] = frozenset()
        """All and only those of them that lack a channel."""

    @property
    def is_over(self) -> bool:
        """Whether all workers that were called have met."""
        return not self._waiting

    @property
    def is_of_all(self) -> bool:
        """Whether the last meeting included all current workers, and no channel was lost since."""
        return self._called >= {member.incarnation for member in self._cluster.by_worker()}

    @property
    def have_all_met(self) -> bool:
        """Whether there is a channel between any two current workers."""
        return self.is_over and self.is_of_all

    def call(self, strategy: Strategy, keys_max: int | None) -> None:
        """Call all current workers to a meeting. strategy, keys_max: as in ``Meet``."""
        self.number += 1
        members = self._cluster.by_worker()
        self._called = self._waiting = frozenset(member.incarnation for member in members)
        peers = {member.worker: (member.incarnation, member.address) for member in members}
        self._cluster.tell_all(Meet(meeting=self.number, peers=peers, strategy=strategy, keys_max=keys_max))

    def met(self, member: Member, message: MetPeers) -> None:
        """A worker has all its channels."""
        if message.meeting == self.number:
            self._waiting -= {member.incarnation}

    def forget(self) -> None:
        """A channel is gone: all workers must meet again."""
        self._called = self._waiting = frozenset()


class RescaleQueue:
    """The requests that wait for their turn."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiting: list[RescaleWanted] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, request: RescaleWanted) -> None:
        """Queue a request, or refuse it if it cannot be met or there is no room."""
        if request.strategy is Strategy.LEARNER and request.moves is not None:
            self.refuse(request, "strategy 'learner' finds the places of slices by itself: give a number of workers")
        elif len(self._waiting) >= QUEUE_REQUESTS_MAX:
            self.refuse(request, f"{QUEUE_REQUESTS_MAX} rescales wait already")
        else:
            self._waiting.append(request)

    def take(self) -> RescaleWanted:
        """The next request."""
        return self._waiting.pop(0)

    def drop(self, ticket: int) -> bool:
        """Withdraw a request. Returns whether it was in the queue."""
        left = [request for request in self._waiting if request.ticket != ticket]
        has_waited, self._waiting = len(left) < len(self._waiting), left
        if has_waited:
            self._cluster.actions.append(RescaleEnded(ticket=ticket, outcome=RescaleOutcome.ABORTED, vnodes=0))
        return has_waited

    def refuse(self, request: RescaleWanted, why: str) -> None:
        """Refuse a request that has not begun."""
        error = DeclarationError(why)
        refused = RescaleEnded(ticket=request.ticket, outcome=RescaleOutcome.REFUSED, vnodes=0, error=error)
        self._cluster.actions.append(refused)


class Handover:
    """before, after: the map of all regions. With no region, nothing is handed over."""

    def __init__(self, before: VnodeMap, after: VnodeMap, regions: Sequence[str]) -> None:
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
    """Keys move. handover: which worker reads which slices meanwhile. leaving: all and only the workers that have
    nothing left and whose input is not closed, each with its peers. over: all keys have moved, and only the open epoch
    has to end."""

    handover: Handover
    leaving: dict[WorkerId, tuple[WorkerId, ...]] = field(default_factory=dict)
    over: RescaleOver | None = None


@dataclass(frozen=True, slots=True)
class Learning:
    """Learners take slices over, as the leader decides. before: the map before the rescale. joining: the workers that
    joined for it. outcome: how the rescale will end."""

    before: VnodeMap
    joining: tuple[WorkerId, ...]
    outcome: RescaleOutcome


@dataclass(frozen=True, slots=True)
class Parting:
    """All slices are learned, and the staying workers meet without the leavers. The leavers retire after that: no
    worker then expects to hear from them."""

    before: VnodeMap
    outcome: RescaleOutcome
    leavers: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Reloading:
    """All workers read every epoch up to ``until`` again. vnodes: how many have moved."""

    until: Epoch
    vnodes: int


Stage = Idle | Starting | Meeting | Draining | Moving | Learning | Parting | Reloading


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
        Starting: Permits(meetings=True, scans=True, rounds=False, take_over=False),
        Meeting: Permits(meetings=False, scans=True, rounds=False, take_over=False),
        Draining: Permits(meetings=False, scans=False, rounds=False, take_over=False),
        Moving: Permits(meetings=False, scans=False, rounds=False, take_over=False),
        Learning: Permits(meetings=True, scans=True, rounds=True, take_over=True),
        Parting: Permits(meetings=True, scans=True, rounds=False, take_over=True),
        Reloading: Permits(meetings=True, scans=True, rounds=False, take_over=False),
    }
)


class NumberedRescale:
    """The regions of all views, numbered for the protocol. ids: by name. names: by number."""

    def __init__(self, maps: Mapping[str, VnodeMap]) -> None:
        self._maps = dict(maps)
        self.ids = {region: RegionId(place) for place, region in enumerate(maps)}
        self.names = {place: region for region, place in self.ids.items()}

    def protocol(self, workers: tuple[WorkerId, ...]) -> RescaleCoordinator:
        """The protocol at its beginning, with these workers."""
        return RescaleCoordinator({place: self._maps[region] for region, place in self.ids.items()}, workers)


def at_once(steps: RescaleCoordinator) -> RescaleOver:
    """Take the protocol to its end, as if all keys had moved by now."""
    if isinstance(steps.phase, protocol.AwaitingWorkers):
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


class LearnerRescales:
    """Goes from stage to stage; the caller keeps the current stage."""

    def __init__(self, cluster: Cluster, scans: Scans, meetings: Meetings, leader: Leader) -> None:
        self._cluster = cluster
        self._scans = scans
        self._meetings = meetings
        self._leader = leader

    def begin(self, plan: RescalePlan) -> Learning:
        self._leader.learn(set(plan.old) - set(plan.new))
        return Learning(self._cluster.reading, plan.joining, RescaleOutcome.FINISHED)

    def abort(self, stage: Learning) -> Learning:
        """The workers that joined leave again. Slices that have moved to staying workers remain there."""
        self._leader.learn(stage.joining)
        return Learning(stage.before, stage.joining, RescaleOutcome.ABORTED)

    def advance(self, stage: Learning | Parting) -> Learning | Parting | None:
        """The stage after this one, or this one while it is not finished; ``None`` when the rescale is over."""
        match stage:
            case Learning() if self._may_part():
                return self._part(stage)
            case Parting(leavers=leavers) if self._meetings.is_over:
                for leaver in leavers:
                    self._cluster.tell(leaver, Retire())
                self._leader.stop_learning()
                return None
        return stage

    def _may_part(self) -> bool:
        """Whether the leavers hold nothing any more, and nothing is under way."""
        has_learned = self._leader.has_learned and self._meetings.have_all_met
        return has_learned and self._cluster.is_quiet() and self._scans.is_idle

    def _part(self, stage: Learning) -> Parting:
        cluster, leaving = self._cluster, self._leader.leaving
        leavers = [cluster.members.pop(worker) for worker in sorted(leaving & cluster.members.keys())]
        cluster.workers = tuple(worker for worker in cluster.workers if worker not in leaving)
        if leavers:
            cluster.has_lost_changes = True
            self._meetings.call(Strategy.ICADD, None)
        return Parting(stage.before, stage.outcome, tuple(leavers))


MEETINGS_AGAIN_MAX = 5
"""Times that the members of a rescale meet again because a channel was lost before keys have moved."""


class Rescales:
    """The coordinator calls ``advance`` after every step, the other methods when their event happens."""

    def __init__(self, cluster: Cluster, scans: Scans, meetings: Meetings, leader: Leader) -> None:
        self.stage: Stage = Idle()
        self._cluster = cluster
        self._leader = leader
        self._learners = LearnerRescales(cluster, scans, meetings, leader)
        self._scans = scans
        self._meetings = meetings
        self._numbered = NumberedRescale(cluster.maps)
        self._protocol = self._numbered.protocol(cluster.workers)
        self.queue = RescaleQueue(cluster)
        self._current: RescaleWanted | None = None
        """The current request; ``None`` if and only if the stage is Idle."""
        self._workers_before = cluster.workers
        self._orders: list[protocol.Announce] = []
        """Orders that the workers get once they have met."""
        self._meetings_left = 0

    def _begin_protocol(self) -> None:
        """Start a new protocol with the current regions, maps and workers."""
        self._numbered = NumberedRescale(self._cluster.maps)
        self._protocol = self._numbered.protocol(self._cluster.workers)

    @property
    def is_over(self) -> bool:
        """Whether no rescale is on."""
        return isinstance(self.stage, Idle)

    @property
    def permits(self) -> Permits:
        """What else may go on."""
        return PERMITS[type(self.stage)]

    @property
    def opens_epochs(self) -> bool:
        """Whether epochs may be opened that no worker has had yet."""
        return not (isinstance(self.stage, Draining) and self._cluster.rules.coordinator_between_epochs)

    @property
    def in_lock_step(self) -> bool:
        """coordinator.lock_step: whether epochs are opened when those before them have ended."""
        return isinstance(self.stage, Moving) and self._cluster.rules.coordinator_lock_step

    @property
    def holds_still(self) -> bool:
        """Whether keys that move can be told to stop where they are."""
        return isinstance(self.stage, Moving) and self._current is not None and self._current.strategy.holds_still

    def awaits(self, worker: WorkerId) -> bool:
        """Whether the worker is joining: it is told what it keeps when all workers are there."""
        return isinstance(self.stage, Starting | Draining) and worker in self._joining()

    def replanned(self) -> None:
        """The regions have changed, and all workers begin anew."""
        assert isinstance(self.stage, Idle)
        self._begin_protocol()
        self._scans.start_anew()
        self._meetings.forget()

    # Users' requests

    def abort_wanted(self, event: AbortWanted) -> None:
        """Abort the rescale. A restart that is reloading goes on: by then, no map says which keys are back."""
        if self.queue.drop(event.ticket):
            return
        if self._current is not None and self._current.ticket == event.ticket:
            if isinstance(self.stage, Learning):
                self.stage = self._learners.abort(self.stage)
            elif isinstance(self.stage, Moving):
                self._follow(self._protocol.step(protocol.AbortRescale(ticket=Ticket(event.ticket))))
            elif isinstance(self.stage, Starting | Meeting | Draining):
                self._send_joiners_home()
                self._end(RescaleOutcome.ABORTED, 0)

    # Workers' messages

    def moved(self, message: Moved) -> None:
        if isinstance(self.stage, Moving):
            self.stage.handover.gone(message.region, message.gone)

    def settled(self, member: Member, message: Settled) -> None:
        event = protocol.RegionSettled(
            worker=member.worker, region=self._numbered.ids[message.region], version=message.version, kept=message.kept
        )
        self._follow(self._protocol.step(event))

    def peer_left(self, member: Member, message: PeerLeft) -> None:
        event = protocol.PeerGone(worker=member.worker, region=self._numbered.ids[message.region], leaver=message.peer)
        self._follow(self._protocol.step(event))

    def lost(self, member: Member) -> None:
        """A worker is lost. While keys move, its state may have been on its way, so all workers begin anew. Before
        that, the rescale waits for another one in its place."""
        if isinstance(self.stage, Moving):
            self._fail(WorkerLost(f"worker {member.worker} was lost; all workers start anew by the old map"))
        elif isinstance(self.stage, Starting | Meeting | Draining):
            joining = self._joining()
            if member.worker in joining:
                self._cluster.workers = tuple(w for w in self._cluster.workers if w != member.worker)
            self.stage = Starting(joining)

    def all_begin_anew(self) -> None:
        """All workers begin anew, not because of this rescale. The rescale, which moves no keys yet, goes on."""
        assert not isinstance(self.stage, Moving)
        self._start_anew()
        if isinstance(self.stage, Meeting | Draining):
            self.stage = Starting(self._joining())

    def channel_lost(self, member: Member, message: PeersLost) -> None:
        """A channel is lost. While keys move, messages may be lost with it. Before that, workers only open it again."""
        if not isinstance(self.stage, Meeting | Draining | Moving):
            return
        if isinstance(self.stage, Moving) or self._meetings_left == 0:
            self._fail(WorkerLost(f"worker {member.worker}: {message.why}; all workers start anew by the old map"))
        else:
            self._meetings_left -= 1
            self.stage = Starting(self._joining())

    # Stages

    def open_next(self) -> None:
        """coordinator.lock_step: open the next epoch, if every open epoch has ended. Slices that have moved are read at
        their new owners."""
        if not self._cluster.may_open_next:
            return
        keys_move = isinstance(self.stage, Moving)
        if isinstance(self.stage, Moving) and not self.stage.leaving:
            reading = self.stage.handover.take()
            if reading is not None:
                self._cluster.read_by(reading)
        self._cluster.open_next(keys_move=keys_move)

    def advance(self, *, takes_up: bool) -> None:
        """Go on to the next stage, if this one is finished. takes_up: a waiting request may begin."""
        before = None
        while before != (self.stage, len(self.queue)):
            before = self.stage, len(self.queue)
            self._advance(takes_up)

    def _advance(self, takes_up: bool) -> None:
        cluster = self._cluster
        match self.stage:
            case Idle():
                if self.queue and takes_up:
                    self._take_up(self.queue.take())
            case Starting(joining):
                ready = cluster.members.keys() >= {*cluster.workers, *joining}
                if ready and (cluster.is_quiet() or not cluster.ledger.is_staged):
                    self._meet()
            case Meeting():
                if self._meetings.is_over:
                    self._met()
            case Learning() | Parting() as stage:
                following = self._learners.advance(stage)
                if following is None:
                    self._begin_protocol()
                    self._end(stage.outcome, len(stage.before.diff(cluster.reading)))
                else:
                    self.stage = following
            case Draining():
                quiet = cluster.is_quiet() and self._scans.is_idle
                if quiet or not cluster.rules.coordinator_between_epochs:
                    self._begin()
            case Moving(leaving=leaving, over=over):
                if cluster.is_quiet() or not cluster.rules.coordinator_leave_when_dry:
                    for worker in sorted(leaving):
                        self._close_input(worker, leaving[worker])
                    leaving.clear()
                at_end = cluster.is_quiet() and not self._scans.are_pending  # a leaver may hold a part of one
                if over is not None and (at_end or not cluster.rules.coordinator_lock_step):
                    self._settle(over)
            case Reloading(until, vnodes):
                if cluster.has_caught_up(until):
                    self._end(RescaleOutcome.FINISHED, vnodes)

    def _take_up(self, request: RescaleWanted) -> None:
        """A request's turn has come. Slices may have changed hands since the last one."""
        self._begin_protocol()
        if not self._numbered.ids:
            self.queue.refuse(request, "there is no view, and so nothing to rescale")
            return
        self._current = request
        self._workers_before = self._cluster.workers
        self._meetings_left = MEETINGS_AGAIN_MAX
        asked = protocol.RescaleAsked(ticket=Ticket(request.ticket), count=request.workers, moves=request.moves)
        self._follow(self._protocol.step(asked))

    def _meet(self) -> None:
        """All workers are there. Joining workers take part in epochs from now on, though they keep and read nothing. A
        restart needs neither them nor channels before it is done."""
        cluster, request = self._cluster, self._current
        assert request is not None
        if request.strategy is Strategy.RESTART:
            self.stage = Draining()
            return
        through = cluster.ledger.through
        serve_from = Epoch(max(through, cluster.serve_from))  # for keys that move there while workers repeat epochs
        for worker in self._joining():
            if not cluster.members[worker].assigned:
                cluster.assign(cluster.members[worker], start_at=through, serve_from=serve_from)
        cluster.workers = tuple(sorted({*cluster.workers, *self._joining()}))
        by = Strategy.ICADD if request.strategy is Strategy.LEARNER else request.strategy
        self._meetings.call(by, request.keys_max)
        self.stage = Meeting()

    def _met(self) -> None:
        """All workers have channels to each other."""
        assert self._current is not None
        if self._current.strategy is not Strategy.LEARNER:
            self.stage = Draining()
            return
        phase = self._protocol.phase
        assert isinstance(phase, protocol.AwaitingWorkers | protocol.Rescaling)
        self._orders.clear()
        self.stage = self._learners.begin(phase.plan)

    def overdue(self, ticket: int) -> None:
        """The rescale no longer waits for its leavers."""
        if self._current is not None and self._current.ticket == ticket:
            self._leader.is_overdue()

    def _begin(self) -> None:
        """The cluster is quiet: keys move, or all workers begin anew."""
        assert self._current is not None
        self._leader.keys_move()
        if self._current.strategy is Strategy.RESTART:
            self._settle_at_once()
        else:
            self._announce()

    def _joining(self) -> tuple[WorkerId, ...]:
        phase = self._protocol.phase
        return phase.plan.joining if isinstance(phase, protocol.AwaitingWorkers) else ()

    def _announce(self) -> None:
        phase, region = self._protocol.phase, RegionId(0)
        assert isinstance(phase, protocol.AwaitingWorkers | protocol.Rescaling)
        self.stage = Moving(Handover(phase.plan.before[region], phase.plan.after[region], list(self._numbered.ids)))
        if isinstance(self._protocol.phase, protocol.AwaitingWorkers):
            self._follow(self._protocol.step(protocol.WorkersStarted()))
        orders, self._orders = self._orders, []
        for order in orders:
            self._order(order)

    def _order(self, order: protocol.Announce) -> None:
        region = self._numbered.names[order.region]
        self._cluster.tell(self._cluster.members[order.worker], MigrationOrder(region=region, order=order.order))

    def _close_input(self, worker: WorkerId, peers: tuple[WorkerId, ...]) -> None:
        self._cluster.workers = tuple(w for w in self._cluster.workers if w != worker)
        self._cluster.tell(self._cluster.members[worker], CloseInput(peers=peers))

    # The protocol's actions

    def _follow(self, actions: Sequence[protocol.Action]) -> None:
        for action in actions:
            match action:
                case protocol.AskForWorkers(workers=workers):
                    self._say_begun()
                    self._cluster.actions.append(StartWorkers(workers=workers))
                    self.stage = Starting(workers)
                case protocol.Announce():
                    if isinstance(self.stage, Moving):
                        self._order(action)
                        continue
                    if isinstance(self.stage, Idle):
                        self._say_begun()
                        self.stage = Starting(())
                    self._orders.append(action)
                case protocol.RetireWorkers(worker=worker, peers=peers):
                    assert isinstance(self.stage, Moving)
                    self.stage.leaving[worker] = peers
                    self._cluster.read_by(self._protocol.maps_by_now[RegionId(0)])
                case protocol.RescaleOver():
                    if isinstance(self.stage, Moving):
                        self.stage.over = action
                    else:  # there was nothing to do
                        self._settle(action)
                case protocol.RescaleRefused(error=error):
                    self._end(RescaleOutcome.REFUSED, 0, error)
                case _:
                    assert_never(action)

    def _say_begun(self) -> None:
        phase = self._protocol.phase
        assert isinstance(phase, protocol.AwaitingWorkers | protocol.Rescaling)
        plan, region = phase.plan, RegionId(0)
        vnodes = len(plan.before[region].diff(plan.after[region]))
        self._cluster.actions.append(
            RescaleBegun(ticket=plan.ticket, before=len(plan.old), after=len(plan.new), vnodes=vnodes)
        )

    def _settle(self, over: protocol.RescaleOver) -> None:
        """All keys are at their new owners."""
        vnodes = self._adopt(over)
        self._cluster.read_by(self._cluster.reading)
        self._scans.all_have_moved()
        self._end(RescaleOutcome.ABORTED if over.aborted else RescaleOutcome.FINISHED, vnodes)

    def _adopt(self, over: protocol.RescaleOver) -> int:
        """Take over the final maps and workers. Returns how many vnodes have moved."""
        maps = {region: over.maps[place] for region, place in self._numbered.ids.items()}
        return self._cluster.adopt(maps, over.workers)

    def _settle_at_once(self) -> None:
        """Restart: no keys move; all workers begin anew by the new map."""
        over = at_once(self._protocol)
        self._orders.clear()
        vnodes = self._adopt(over)
        self._start_anew()
        self.stage = Reloading(self._cluster.ledger.ended, vnodes)

    def _start_anew(self) -> None:
        self._scans.start_anew()
        self._meetings.forget()
        self._cluster.start_anew()

    def _fail(self, error: UpriverError) -> None:
        """Go back to the old map: state on its way is lost, and every worker reads everything again."""
        cluster, phase = self._cluster, self._protocol.phase
        last = self._protocol.maps[RegionId(0)].version if isinstance(phase, protocol.NoRescale) else phase.plan.version
        version = MapVersion(last + 1)
        cluster.go_by({region: VnodeMap(version, vnode_map.owners) for region, vnode_map in cluster.maps.items()})
        self._send_joiners_home()
        self._start_anew()
        self._end(RescaleOutcome.FAILED, 0, error)

    def _send_joiners_home(self) -> None:
        """Retire the workers that joined. The workers are those of before the rescale, and no rescale has begun."""
        cluster = self._cluster
        cluster.workers = self._workers_before
        for worker in sorted(set(cluster.members) - set(cluster.workers)):
            joiner = cluster.members.pop(worker)
            cluster.tell(joiner, Retire())
            cluster.ledger.forget(worker)
            self._scans.lost(joiner.incarnation)
        self._meetings.forget()  # a worker may have been told to meet one that goes
        self._begin_protocol()
        self._orders.clear()

    def _end(self, outcome: RescaleOutcome, vnodes: int, error: UpriverError | None = None) -> None:
        request, self._current = self._current, None
        assert request is not None
        self.stage = Idle()
        self._cluster.actions.append(RescaleEnded(ticket=request.ticket, outcome=outcome, vnodes=vnodes, error=error))
