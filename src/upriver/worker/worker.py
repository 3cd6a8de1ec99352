"""The worker machine: a worker's shares of all flows, and what the worker does for all of them.

Each share is a machine of its own (``FlowShare``). The worker hands each event to the share of its flow, and names the
flow in what the share says and wants. What comes for a flow that the worker has no share of changes nothing.

The worker answers probes, meets its peers, and divides its time and memory. There is one meeting for all shares: the
worker opens the channels once, and tells the coordinator once that it has met, or that a channel is lost. Slices of
work go to the shares in turn. An error of one share fails the views of its flow (flows.fail_alone). A mark says which
share is being stepped: the next process in the worker's place finds it, if this one dies (flows.fail_when_deadly).
"""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from upriver.errors import ProtocolError, UnknownView, UpriverError, WrongOwner
from upriver.ids import Epoch, FlowId, SnapshotId, WorkerId
from upriver.protocol.messages import (
    Assign,
    CloseInput,
    DropFlow,
    ForShare,
    Here,
    Meet,
    MetPeers,
    OfShare,
    PeersLost,
    Probe,
    Resume,
    Retire,
)
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.worker_events import (
    Answer,
    AnswerTogether,
    ForgetSnapshot,
    HoldSnapshot,
    LookupAsked,
    LookupGivenUp,
    LookupsAsked,
    MeetPeers,
    PeerLost,
    PeerSaid,
    PeersMet,
    Refuse,
    Report,
    SendPeer,
    ShareAction,
    ShareEvent,
    ShareHears,
    ShareWants,
    Stop,
    TimeToAnswer,
    TimeToCopy,
    TimeToEvict,
    TimeToFeed,
    TimeToFill,
    TimeToMove,
    TimeToSettle,
    TimeToTakeIn,
    TimeToWork,
    WorkerAction,
    WorkerEvent,
)
from upriver.state.failure import ViewFailure
from upriver.worker.long_answers import ANSWER_ROWS_MAX
from upriver.worker.lookups import tickets_of
from upriver.worker.memory import MemoryBudget
from upriver.worker.peers import is_member
from upriver.worker.regions import BuildRegion
from upriver.worker.share import FlowShare
from upriver.worker.step_mark import StepMark
from upriver.worker.upqueries import CROWD_KEYS

SliceOfWork = TimeToMove | TimeToCopy | TimeToFeed | TimeToTakeIn | TimeToAnswer | TimeToSettle
"""Work that one share does at a time."""

EventButLookup = (
    ForShare
    | DropFlow
    | Probe
    | Meet
    | CloseInput
    | Retire
    | ShareHears
    | LookupGivenUp
    | PeersMet
    | PeerSaid
    | PeerLost
    | TimeToWork
)

HAS_WORK: dict[type[SliceOfWork], Callable[[FlowShare], bool]] = {
    TimeToMove: lambda share: share.can_move,
    TimeToCopy: lambda share: share.can_copy,
    TimeToFeed: lambda share: share.can_feed,
    TimeToTakeIn: lambda share: share.unfilled > 0,
    TimeToAnswer: lambda share: share.unread > 0,
    TimeToSettle: lambda share: share.unsettled > 0,
}
"""Whether a share has such work."""


class WorkerMeeting:
    """The last meeting that the worker was told of, for all its shares."""

    def __init__(self) -> None:
        self._meet: Meet | None = None
        """``None`` if a peer of it was lost since."""
        self._has_met = False
        self._left: set[WorkerId] = set()
        """Peers of it that have taken leave of all shares."""

    def begin(self, meet: Meet) -> None:
        self._meet, self._has_met = meet, False
        self._left.clear()

    def end(self, meeting: int) -> bool:
        """A channel is open to each peer. Returns whether this is about the last meeting."""
        if self._meet is None or self._meet.meeting != meeting:
            return False
        self._has_met = True
        return True

    def note_left(self, shares: Iterable[FlowShare]) -> None:
        """Note the peers that have taken leave of all shares."""
        parted = [share.parted for share in shares]
        self._left |= frozenset.intersection(*parted) if parted else frozenset()

    def lose(self, event: PeerLost) -> PeersLost | None:
        """A channel is gone. Returns what to tell the coordinator: nothing if the peer has left, or was not there."""
        meet = self._meet
        if meet is None or event.peer in self._left or not is_member(event, meet):
            return None
        self._meet = None
        return PeersLost(meeting=meet.meeting, why=event.why, peer=event.peer, unreached=event.unreached)

    @property
    def news(self) -> list[Meet | PeersMet]:
        """What a share that begins now must hear of the meeting."""
        meet = self._meet
        if meet is None:
            return []
        there = {peer: who for peer, who in meet.peers.items() if peer not in self._left}
        begun = replace(meet, peers=there)
        return [begun, PeersMet(meeting=meet.meeting)] if self._has_met else [begun]


class WorkerMachine:
    """``step(event) -> actions``; see the module's docstring. shares: by flow, in the order of their first
    assignment."""

    def __init__(
        self,
        build_region: BuildRegion,
        rules: Rules = ALL_RULES,
        memory_budget: int | None = None,
        crowd_keys: int = CROWD_KEYS,
        answer_rows_max: int = ANSWER_ROWS_MAX,
        builders: Callable[[FlowId], BuildRegion] | None = None,
    ) -> None:
        """memory_budget: bytes that the worker's state may take; ``None`` for any. crowd_keys, answer_rows_max: see
        the constants. builders: what builds the regions of each flow; ``None``: ``build_region`` does."""
        self.shares: dict[FlowId, FlowShare] = {}
        self.evicted = 0
        """Keys that the last ``TimeToEvict`` handled: fewer than it allows, if there were no more."""
        self.paused: AbstractSet[FlowId] = frozenset()
        """The flows whose shares are not stepped now, because they wait for functions of users."""
        self._builders = (lambda _: build_region) if builders is None else builders
        self._rules = rules
        self._memory = MemoryBudget(memory_budget, rules)
        self._crowd_keys = crowd_keys
        self._answer_rows_max = answer_rows_max
        self.mark = StepMark()
        """Of the step that a share is in."""
        self._meeting = WorkerMeeting()
        self._share_of_view: dict[str, FlowShare] = {}
        """The share that answers lookups of each view: the first one that was assigned with it."""
        self._gone: set[FlowId] = set()
        """The flows that were dropped."""
        self._held: dict[FlowId, set[SnapshotId]] = {}
        """The snapshots that are held for each flow."""
        self._last_turn: dict[type, FlowId] = {}
        """The flow that did the last slice of each kind of work."""
        self._is_retired = False

    def pause(self, flows: AbstractSet[FlowId]) -> None:
        """From now on, step the shares of these flows by no event for several shares, and by no slice of work. The
        caller must not step them by anything else."""
        self.paused = flows

    def is_gone(self, flow: FlowId) -> bool:
        """Whether the flow was dropped, or the worker retires: it will have no share of it."""
        return flow in self._gone or self._is_retired

    def flow_of(self, view: str) -> FlowId | None:
        """The flow that answers lookups of the view; ``None`` if no share has it."""
        share = self._share_of_view.get(view)
        return None if share is None else share.flow

    def flow_asked(self, ticket: int) -> FlowId | None:
        """The flow that a client has sent this lookup to, and that has not answered."""
        return next((share.flow for share in list(self.shares.values()) if share.has_asked(ticket)), None)

    @property
    def _free(self) -> list[FlowShare]:
        """The shares that may be stepped. A list: a step may let others come and go, while a function is called."""
        return [share for flow, share in self.shares.items() if flow not in self.paused]

    # Work for which there is time

    @property
    def next_to_move(self) -> str | None:
        """The region that ``TimeToMove`` would move keys of; ``None`` if there is none."""
        share = self._in_turn(TimeToMove)
        return None if share is None else share.next_to_move

    @property
    def can_move(self) -> bool:
        """Whether ``TimeToMove`` would move a key."""
        return any(share.can_move for share in self._free)

    @property
    def can_copy(self) -> bool:
        """Whether ``TimeToCopy`` would copy a key."""
        return any(share.can_copy for share in self._free)

    @property
    def can_feed(self) -> bool:
        """Whether ``TimeToFeed`` would copy a key."""
        return any(share.can_feed for share in self._free)

    @property
    def can_fill(self) -> bool:
        """Whether upqueries rest until ``TimeToFill``."""
        return any(share.can_fill for share in self._free)

    @property
    def unread(self) -> int:
        """About how many rows ``TimeToAnswer`` would read."""
        share = self._in_turn(TimeToAnswer)
        return 0 if share is None else share.unread

    @property
    def unfilled(self) -> int:
        """About how many rows ``TimeToTakeIn`` would take in."""
        share = self._in_turn(TimeToTakeIn)
        return 0 if share is None else share.unfilled

    @property
    def unsettled(self) -> int:
        """About how many rows ``TimeToSettle`` would take in or send."""
        share = self._in_turn(TimeToSettle)
        return 0 if share is None else share.unsettled

    @property
    def must_evict(self) -> bool:
        """Whether ``TimeToEvict`` has work: a requested eviction, state that evicted keys have left behind, or keys to
        evict because memory is over budget."""
        return self._memory.is_over_budget or any(share.has_own_evictions for share in self._free)

    def _in_turn(self, kind: type[SliceOfWork]) -> FlowShare | None:
        """The share that does the next slice of such work: the first one after the last that has any."""
        return self._next_with(kind, HAS_WORK[kind])

    def _next_with(self, kind: type, has_work: Callable[[FlowShare], bool]) -> FlowShare | None:
        last = self._last_turn.get(kind)
        first: FlowShare | None = None
        is_after = False
        for flow, share in self.shares.items():
            if (is_after or first is None) and flow not in self.paused and has_work(share):
                if is_after or last not in self.shares:
                    return share
                first = share
            is_after |= flow == last
        return first

    # Steps

    def step(self, event: WorkerEvent) -> list[WorkerAction]:
        """Advance by one event. Raises IllegalEvent when the phase of a share does not allow it, and ProtocolError
        for what the coordinator or a peer may not do."""
        if isinstance(event, LookupAsked | LookupsAsked):
            share = self._share_of_view.get(event.view)
            if share is None:
                return [self._refused(event.view, ticket) for ticket in tickets_of(event)]
            of_share = self._stepped(share, event)
            if len(of_share) == 1 and isinstance(of_share[0], Answer | AnswerTogether):  # as nearly always
                return [of_share[0]]
            actions = self._wrapped(share.flow, of_share)
        elif self._is_retired:
            return [Stop()] if isinstance(event, Retire) else []
        else:
            actions = self._handle(event)
        if not self.paused and self._memory.take_changed() and len(self.shares) > 1:
            actions += self._use_room()
        return actions

    def _refused(self, view: str, ticket: int) -> Refuse:
        """No share has the view."""
        error: UpriverError = WrongOwner("this worker owns nothing")
        if self.shares:
            error = UnknownView.among(view, dict.fromkeys(self._share_of_view, ()))
        return Refuse(ticket=ticket, error=error)

    def _handle(self, event: EventButLookup) -> list[WorkerAction]:
        match event:
            case ForShare(flow=flow, message=Assign() as assign):
                return self._assign(flow, assign)
            case ForShare(flow=flow, message=message):
                return self._step_flow(flow, message)
            case ShareHears(flow=flow, event=answer):
                return self._step_flow(flow, answer)
            case PeerSaid():
                return self._step_flow(event.envelope.flow, event)
            case LookupGivenUp(ticket=ticket):
                asked = self.flow_asked(ticket)
                return [] if asked is None else self._step_flow(asked, event)
            case DropFlow(flow=flow):
                return self._drop(flow)
            case Probe(probe=probe):
                return [Report(message=Here(probe=probe))]
            case Meet():
                self._meeting.begin(event)
                return [*self._step_all(event), MeetPeers(meet=event)]
            case PeersMet(meeting=meeting):
                met: list[WorkerAction] = []
                if self._meeting.end(meeting):
                    met.append(Report(message=MetPeers(meeting=meeting)))
                return met + self._step_all(event)
            case PeerLost():
                return self._lose_peer(event)
            case CloseInput(flows=flows):
                stepped = [flow for flow in flows if flow not in self.paused]
                return [action for flow in stepped for action in self._step_flow(flow, event)]
            case TimeToFill():
                resting = [share for share in self._free if share.can_fill]
                return [action for share in resting for action in self._step_share(share, event)]
            case Retire():
                return self._retire()
            case TimeToEvict():
                return self._evict(event)
            case _:
                return self._work(event)

    def _step_flow(self, flow: FlowId, event: ShareEvent) -> list[WorkerAction]:
        """The event is of this flow; it changes nothing if there is no share of it."""
        share = self.shares.get(flow)
        return [] if share is None else self._step_share(share, event)

    def _step_all(self, event: ShareEvent) -> list[WorkerAction]:
        return [action for share in self._free for action in self._step_share(share, event)]

    def step_rest(self, flow: FlowId, event: Meet | PeersMet | PeerLost | CloseInput) -> list[WorkerAction]:
        """Step a share that was paused when the others were stepped by the event."""
        is_meant = not isinstance(event, CloseInput) or flow in event.flows
        return self._step_flow(flow, event) if is_meant else []

    def _step_share(self, share: FlowShare, event: ShareEvent) -> list[WorkerAction]:
        return self._wrapped(share.flow, self._stepped(share, event))

    def _stepped(self, share: FlowShare, event: ShareEvent) -> list[ShareAction]:
        """Step the share by the event, under its mark."""
        epoch = Epoch(event.start_at + 1) if isinstance(event, Assign) else share.unfinished
        outer = self.mark.begin(share.flow, epoch)
        try:
            actions = share.step(event)
        except Exception as error:  # of any class: the worker's other flows are not at fault
            if isinstance(event, Assign | Resume):
                raise
            actions = self._fail(share, error, event)
        self.mark.end(outer)
        return actions

    def _fail(self, share: FlowShare, error: Exception, event: ShareEvent | None = None) -> list[ShareAction]:
        """flows.fail_alone: a step of the share has failed, and so do its views. Lookups that have led to this are
        refused. Raises the error if the coordinator or a peer is at fault: a worker that begins anew may do better."""
        if isinstance(error, ProtocolError) or not (self._rules.flows_fail_alone and share.is_serving):
            raise error
        actions = share.fail(error)
        if isinstance(event, LookupAsked | LookupsAsked):
            over = {action.ticket for action in actions if isinstance(action, Answer | Refuse)}
            failure = ViewFailure.of(error, f"view {event.view!r}")
            left = [ticket for ticket in tickets_of(event) if ticket not in over]
            actions += [Refuse(ticket=ticket, error=failure.raised()) for ticket in left]
        return actions

    def _wrapped(self, flow: FlowId, actions: list[ShareAction]) -> list[WorkerAction]:
        """The share's actions as the worker's: with the flow, where it counts."""
        wrapped: list[WorkerAction] = []
        for action in actions:
            match action:
                case Answer() | AnswerTogether() | Refuse() | SendPeer():
                    wrapped.append(action)
                case Report(message=message):
                    wrapped.append(Report(message=OfShare(flow=flow, message=message)))
                case HoldSnapshot(snapshot=snapshot):
                    self._held.setdefault(flow, set()).add(snapshot)
                    wrapped.append(action)
                case ForgetSnapshot(snapshot=snapshot):
                    self._held.get(flow, set()).discard(snapshot)
                    wrapped.append(action)
                case _:
                    wrapped.append(ShareWants(flow=flow, action=action))
        return wrapped

    # Flows come and go

    def _assign(self, flow: FlowId, event: Assign) -> list[WorkerAction]:
        """Begin with a share of the flow, or begin anew. It can speak to the peers that the worker has met."""
        if flow in self._gone:
            return []
        self._meeting.note_left(self.shares.values())
        share = self.shares.get(flow)
        if share is None:
            share = self.shares[flow] = FlowShare(
                flow, self._builders(flow), self._rules, self._memory, self._crowd_keys, self._answer_rows_max
            )
        actions = self._forget_snapshots(flow)
        for each in (event, *self._meeting.news):
            actions += self._step_share(share, each)
        self._find_views()
        return actions

    def _drop(self, flow: FlowId) -> list[WorkerAction]:
        """The flow is gone: keep nothing of it. It never comes back."""
        self._meeting.note_left(self.shares.values())
        self._gone.add(flow)
        share = self.shares.pop(flow, None)
        if share is None:
            return []
        self._find_views()
        ended = share.end(WrongOwner("the view was dropped or replaced; ask again"))
        return [*self._wrapped(flow, ended), *self._forget_snapshots(flow)]

    def _find_views(self) -> None:
        self._share_of_view = {}
        for share in self.shares.values():
            for view in share.views:
                self._share_of_view.setdefault(view, share)

    def _forget_snapshots(self, flow: FlowId) -> list[WorkerAction]:
        return [ForgetSnapshot(snapshot=snapshot) for snapshot in sorted(self._held.pop(flow, ()))]

    def _retire(self) -> list[WorkerAction]:
        """Refuse all lookups, and keep nothing any more."""
        actions = self._step_all(Retire())
        self.shares.clear()
        self._share_of_view.clear()
        self._is_retired = True
        return [*actions, Stop()]

    # Peers

    def _lose_peer(self, event: PeerLost) -> list[WorkerAction]:
        self._meeting.note_left(self.shares.values())
        actions, lost = self._step_all(event), self._meeting.lose(event)
        return actions if lost is None else [*actions, Report(message=lost)]

    # Slices of work

    def _work(self, event: SliceOfWork) -> list[WorkerAction]:
        """A slice of such work, by the share whose turn it is."""
        share = self._in_turn(type(event))
        if share is None:
            return []
        self._last_turn[type(event)] = share.flow
        return self._step_share(share, event)

    def _evict(self, event: TimeToEvict) -> list[WorkerAction]:
        """Evict what a share is asked for, and what it has left behind; else keys of the largest partial region that
        can evict."""
        share = self._next_with(TimeToEvict, lambda share: share.has_own_evictions)
        if share is not None:
            self._last_turn[TimeToEvict] = share.flow
            actions = self._step_share(share, event)
            self.evicted = share.evicted
            return actions
        actions, self.evicted = [], 0
        for share in sorted(self._free, key=lambda share: share.largest_partial, reverse=True):
            actions += self._step_share(share, event)
            self.evicted = share.evicted
            if self.evicted:
                break
        return actions

    def _use_room(self) -> list[WorkerAction]:
        """A share has made room, or taken it: other shares go on, or have a view that fails for lack of room."""
        actions: list[WorkerAction] = []
        for share in self._free:
            try:
                changed = share.memory_changed()
            except Exception as error:  # as in _stepped
                changed = self._fail(share, error)
            actions += self._wrapped(share.flow, changed)
        return actions
