"""The coordinator's rescales, from the wish to the end; rules C5, C6 and C8.

A rescale waits until the workers that join are up (``Starting``), and all members have opened channels to each other
(``Meeting``), then until every epoch that was opened has ended (``Draining``). Then the keys move (``Moving``), as
:class:`upriver.coordinator.rescale_protocol.RescaleCoordinator` says, and epochs are opened when all before them have
ended. ``restart`` moves nothing: all workers begin anew by the new map and read everything again (``Reloading``); so
they do, by the old map, when a worker is lost while keys move. With ``learner`` slices change hands one by one, as the
leader says (``Learning``). DESIGN section 5; documents 000, 001 and 002.
"""

from collections.abc import Sequence
from typing import assert_never

from upriver.coordinator import rescale_protocol as protocol
from upriver.coordinator.cluster import Cluster, Member
from upriver.coordinator.handover import Handover
from upriver.coordinator.leader import Leader
from upriver.coordinator.learner_rescales import LearnerRescales
from upriver.coordinator.meetings import Meetings
from upriver.coordinator.rescale_protocol import RegionId, Ticket
from upriver.coordinator.rescale_queue import RescaleQueue
from upriver.coordinator.rescale_stages import (
    PERMITS,
    Draining,
    Idle,
    Learning,
    Meeting,
    Moving,
    Numbered,
    Parting,
    Permits,
    Reloading,
    Stage,
    Starting,
    at_once,
)
from upriver.coordinator.scans import Scans
from upriver.errors import UpriverError, WorkerLost
from upriver.ids import Epoch, MapVersion, WorkerId
from upriver.protocol.coordinator_events import (
    AbortWanted,
    Outcome,
    RescaleBegun,
    RescaleEnded,
    RescaleWanted,
    StartWorkers,
)
from upriver.protocol.messages import CloseInput, Moved, Order, PeerLeft, PeersLost, Retire, Settled
from upriver.protocol.strategies import Strategy
from upriver.vnodes import VnodeMap

MEETINGS_AGAIN_MAX = 5
"""Times that the members of a rescale meet again because a channel was lost before keys have moved."""


class Rescales:
    """``advance`` is to be called after every step of the coordinator, the other methods when their time comes."""

    def __init__(self, cluster: Cluster, scans: Scans, meetings: Meetings, leader: Leader) -> None:
        self.stage: Stage = Idle()
        self._cluster = cluster
        self._leader = leader
        self._learners = LearnerRescales(cluster, scans, meetings, leader)
        self._scans = scans
        self._meetings = meetings
        self._numbered = Numbered(cluster.maps)
        self._protocol = self._numbered.protocol(cluster.workers)
        self.queue = RescaleQueue(cluster)
        self._current: RescaleWanted | None = None
        """The request that is on; ``None`` if and only if the stage is Idle."""
        self._workers_before = cluster.workers
        self._orders: list[protocol.Announce] = []
        """To be told to the workers once they have met."""
        self._meetings_left = 0

    def _begin_protocol(self) -> None:
        """With the regions, maps and workers that there are now."""
        self._numbered = Numbered(self._cluster.maps)
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
        """Whether epochs may be opened that nobody has had yet."""
        return not (isinstance(self.stage, Draining) and self._cluster.rules.c6_between_epochs)

    @property
    def in_lock_step(self) -> bool:
        """C5: whether epochs are opened when those before them have ended."""
        return isinstance(self.stage, Moving) and self._cluster.rules.c5_lock_step

    @property
    def holds_still(self) -> bool:
        """Whether keys that move stop where they are when they are told to."""
        return isinstance(self.stage, Moving) and self._current is not None and self._current.strategy.holds_still

    def awaits(self, worker: WorkerId) -> bool:
        """Whether the worker is to join, and is told what it keeps when all are there."""
        return isinstance(self.stage, Starting | Draining) and worker in self._joining()

    def replanned(self) -> None:
        """The regions are others now, and all begin anew."""
        assert isinstance(self.stage, Idle)
        self._begin_protocol()
        self._scans.start_anew()
        self._meetings.forget()

    # What users want

    def abort_wanted(self, event: AbortWanted) -> None:
        """Does nothing to a restart that is reloading: some keys are back and others not, by no map's order."""
        if self.queue.drop(event.ticket):
            return
        if self._current is not None and self._current.ticket == event.ticket:
            if isinstance(self.stage, Learning):
                self.stage = self._learners.abort(self.stage)
            elif isinstance(self.stage, Moving):
                self._follow(self._protocol.step(protocol.AbortWanted(ticket=Ticket(event.ticket))))
            elif isinstance(self.stage, Starting | Meeting | Draining):
                self._send_joiners_home()
                self._end(Outcome.ABORTED, 0)

    # What workers say

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
        """While keys move, its state may have been on its way, so all begin anew. Before that, it is waited for."""
        if isinstance(self.stage, Moving):
            self._fail(WorkerLost(f"worker {member.worker} was lost; all workers start anew by the old map"))
        elif isinstance(self.stage, Starting | Meeting | Draining):
            joining = self._joining()
            if member.worker in joining:
                self._cluster.workers = tuple(w for w in self._cluster.workers if w != member.worker)
            self.stage = Starting(joining)

    def all_begin_anew(self) -> None:
        """Not by a wish of this rescale. What is on the way to move is none the worse for it."""
        assert not isinstance(self.stage, Moving)
        self._start_anew()
        if isinstance(self.stage, Meeting | Draining):
            self.stage = Starting(self._joining())

    def channel_lost(self, member: Member, message: PeersLost) -> None:
        """While keys move, what was said over it may be lost. Before that, it is only to be opened again."""
        if not isinstance(self.stage, Meeting | Draining | Moving):
            return
        if isinstance(self.stage, Moving) or self._meetings_left == 0:
            self._fail(WorkerLost(f"worker {member.worker}: {message.why}; all workers start anew by the old map"))
        else:
            self._meetings_left -= 1
            self.stage = Starting(self._joining())

    # Stages

    def open_next(self) -> None:
        """C5: open what there is, if all that was opened has ended. Slices are read where they are kept by then."""
        if not self._cluster.may_open_next:
            return
        keys_move = isinstance(self.stage, Moving)
        if isinstance(self.stage, Moving) and not self.stage.leaving:
            reading = self.stage.handover.take()
            if reading is not None:
                self._cluster.read_by(reading)
        self._cluster.open_next(keys_move=keys_move)

    def advance(self, *, takes_up: bool) -> None:
        """Go on to the next stage, if its time has come. takes_up: a request that waits may begin."""
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
                if quiet or not cluster.rules.c6_between_epochs:  # C6
                    self._begin()
            case Moving(leaving=leaving, over=over):
                if cluster.is_quiet() or not cluster.rules.c8_leave_when_dry:  # C8
                    for worker in sorted(leaving):
                        self._close_input(worker, leaving[worker])
                    leaving.clear()
                at_end = cluster.is_quiet() and not self._scans.are_pending  # a leaver may hold a part of one
                if over is not None and (at_end or not cluster.rules.c5_lock_step):  # C5
                    self._settle(over)
            case Reloading(until, vnodes):
                if cluster.has_caught_up(until):
                    self._end(Outcome.FINISHED, vnodes)

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
        """All are there. Those who join take part in epochs from now on, though they keep and read nothing; a restart
        has no use for them, or for channels, before it is done."""
        cluster, request = self._cluster, self._current
        assert request is not None
        if request.strategy is Strategy.RESTART:
            self.stage = Draining()
            return
        through = cluster.ledger.through
        serve_from = Epoch(max(through, cluster.serve_from))  # for keys that move there while all go through it again
        for worker in self._joining():
            if not cluster.members[worker].assigned:
                cluster.assign(cluster.members[worker], start_at=through, serve_from=serve_from)
        cluster.workers = tuple(sorted({*cluster.workers, *self._joining()}))
        by = Strategy.ICADD if request.strategy is Strategy.LEARNER else request.strategy
        self._meetings.call(by, request.keys_max)
        self.stage = Meeting()

    def _met(self) -> None:
        """All have channels to each other."""
        assert self._current is not None
        if self._current.strategy is not Strategy.LEARNER:
            self.stage = Draining()
            return
        phase = self._protocol.phase
        assert isinstance(phase, protocol.Starting | protocol.Rescaling)
        self._orders.clear()
        self.stage = self._learners.begin(phase.plan)

    def overdue(self, ticket: int) -> None:
        """Who leaves is not waited for any more."""
        if self._current is not None and self._current.ticket == ticket:
            self._leader.is_overdue()

    def _begin(self) -> None:
        """All is quiet: keys move, or all begin anew."""
        assert self._current is not None
        self._leader.keys_move()
        if self._current.strategy is Strategy.RESTART:
            self._settle_at_once()
        else:
            self._announce()

    def _joining(self) -> tuple[WorkerId, ...]:
        phase = self._protocol.phase
        return phase.plan.joining if isinstance(phase, protocol.Starting) else ()

    def _announce(self) -> None:
        phase, region = self._protocol.phase, RegionId(0)
        assert isinstance(phase, protocol.Starting | protocol.Rescaling)
        self.stage = Moving(Handover(phase.plan.before[region], phase.plan.after[region], list(self._numbered.ids)))
        if isinstance(self._protocol.phase, protocol.Starting):
            self._follow(self._protocol.step(protocol.WorkersStarted()))
        orders, self._orders = self._orders, []
        for order in orders:
            self._order(order)

    def _order(self, order: protocol.Announce) -> None:
        region = self._numbered.names[order.region]
        self._cluster.tell(self._cluster.members[order.worker], Order(region=region, order=order.order))

    def _close_input(self, worker: WorkerId, peers: tuple[WorkerId, ...]) -> None:
        self._cluster.workers = tuple(w for w in self._cluster.workers if w != worker)
        self._cluster.tell(self._cluster.members[worker], CloseInput(peers=peers))

    # What the protocol wants

    def _follow(self, actions: Sequence[protocol.Action]) -> None:
        for action in actions:
            match action:
                case protocol.StartWorkers(workers=workers):
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
                case protocol.Retire(worker=worker, peers=peers):
                    assert isinstance(self.stage, Moving)
                    self.stage.leaving[worker] = peers
                    self._cluster.read_by(self._protocol.maps_by_now[RegionId(0)])
                case protocol.RescaleOver():
                    if isinstance(self.stage, Moving):
                        self.stage.over = action
                    else:  # there was nothing to do
                        self._settle(action)
                case protocol.RescaleRefused(error=error):
                    self._end(Outcome.REFUSED, 0, error)
                case _:
                    assert_never(action)

    def _say_begun(self) -> None:
        phase = self._protocol.phase
        assert isinstance(phase, protocol.Starting | protocol.Rescaling)
        plan, region = phase.plan, RegionId(0)
        vnodes = len(plan.before[region].diff(plan.after[region]))
        self._cluster.actions.append(
            RescaleBegun(ticket=plan.ticket, before=len(plan.old), after=len(plan.new), vnodes=vnodes)
        )

    def _settle(self, over: protocol.RescaleOver) -> None:
        """All keys are where they shall be."""
        vnodes = self._adopt(over)
        self._cluster.read_by(self._cluster.reading)
        self._scans.all_have_moved()
        self._end(Outcome.ABORTED if over.aborted else Outcome.FINISHED, vnodes)

    def _adopt(self, over: protocol.RescaleOver) -> int:
        """The maps and the workers are those. Returns how many vnodes have moved."""
        maps = {region: over.maps[place] for region, place in self._numbered.ids.items()}
        return self._cluster.adopt(maps, over.workers)

    def _settle_at_once(self) -> None:
        """Restart: nobody moves anything; by the new map, all begin anew."""
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
        """Back to the old map: whatever was on its way is lost, and everybody reads everything again."""
        cluster, phase = self._cluster, self._protocol.phase
        last = self._protocol.maps[RegionId(0)].version if isinstance(phase, protocol.Idle) else phase.plan.version
        version = MapVersion(last + 1)
        cluster.go_by({region: VnodeMap(version, vnode_map.owners) for region, vnode_map in cluster.maps.items()})
        self._send_joiners_home()
        self._start_anew()
        self._end(Outcome.FAILED, 0, error)

    def _send_joiners_home(self) -> None:
        """The workers are those of before, and no rescale has begun."""
        cluster = self._cluster
        cluster.workers = self._workers_before
        for worker in sorted(set(cluster.members) - set(cluster.workers)):
            joiner = cluster.members.pop(worker)
            cluster.tell(joiner, Retire())
            cluster.ledger.forget(worker)
            self._scans.lost(joiner.incarnation)
        self._meetings.forget()  # some may have been told to meet who goes
        self._begin_protocol()
        self._orders.clear()

    def _end(self, outcome: Outcome, vnodes: int, error: UpriverError | None = None) -> None:
        request, self._current = self._current, None
        assert request is not None
        self.stage = Idle()
        self._cluster.actions.append(RescaleEnded(ticket=request.ticket, outcome=outcome, vnodes=vnodes, error=error))
