"""One worker process of a simulated cluster: the real machine, and a small model of the shell around it."""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random

import pyarrow as pa

from simulator.fake_checkpoints import FlowCheckpoints, Writing
from simulator.lake import FakeLake
from simulator.tables import Key
from upriver.errors import NotRead
from upriver.hashing import HASH64_MAX
from upriver.ids import Channel, Epoch, FlowId, Incarnation, MapVersion, SnapshotId, WorkerId
from upriver.lake.spans import EpochSpan, span_after
from upriver.migration.messages import Bye
from upriver.plan.plan import DataflowPlan, view_of
from upriver.protocol.messages import (
    Assign,
    CloseInput,
    DropFlow,
    ForShare,
    FromWorker,
    Meet,
    MigrationOrder,
    OpenEpoch,
    Resume,
    Retire,
    ToShare,
    ToWorker,
)
from upriver.protocol.peers import Envelope, ForRegion
from upriver.protocol.rules import Rules
from upriver.protocol.worker_events import (
    AllStateRead,
    ChangesNotStored,
    EpochRead,
    FetchRows,
    KeysRead,
    KeysUnread,
    LakeAnswer,
    LookupAsked,
    LookupGivenUp,
    PeerLost,
    PeerSaid,
    PeersMet,
    ReadEpoch,
    ReadKeys,
    ReadState,
    ReadTakesLong,
    RowsFetched,
    RowsRead,
    RowsUnfetched,
    ShareHears,
    StateNotWritten,
    StateRead,
    StateUnread,
    WorkerEvent,
    WriteChanges,
)
from upriver.vnodes import VnodeMap
from upriver.worker.held_events import HeldEvents, OfAllShares, Rest
from upriver.worker.serving import Serving
from upriver.worker.shard import Shard
from upriver.worker.share import Retired, Unassigned
from upriver.worker.worker import WorkerMachine

HEARD_KEPT_MAX = 40
"""Messages of a process that the coordinator may hear again."""


@dataclass(frozen=True, slots=True)
class SimulatedLookup:
    """A lookup without an answer. seen: per key, the latest epoch that any lookup had shown when this one began."""

    lookup: LookupAsked
    seen: Mapping[Key, Epoch]


@dataclass(slots=True, eq=False, kw_only=True)
class SharePart:
    """A process's share of one flow, as the shell and an observer know it."""

    flow: FlowId
    assigned: Assign
    """The last assignment that the process has heard, as later orders have changed it."""
    applied: Epoch
    """The last epoch that the process has reported as finished, since that assignment."""
    peers: dict[WorkerId, Incarnation] = field(default_factory=dict)
    """The members that the share can ask, itself among them: those of the last rescale that have not taken leave; none,
    if it was told of no rescale since it was assigned, or has lost a peer since."""
    left: set[WorkerId] = field(default_factory=set)
    """The peers that have taken leave of this share."""
    all_there: bool = False
    """It has lost no peer since it was told of the last meeting."""
    leaves: bool = False
    """It was told to take leave of its peers."""
    torn: Channel | None = None
    """A read of this channel has gone wrong, and the machine is to notice."""
    opened: list[OpenEpoch] = field(default_factory=list)
    """Heard already; the network may say it again."""
    unread: deque[RowsRead | EpochRead | StateRead | AllStateRead | StateUnread] = field(default_factory=deque)
    """What is left to read of the open epoch, or of the checkpoints to begin with; empty between epochs."""
    writing: Writing = field(default_factory=Writing)
    """Copied for checkpoints, and on its way to the lake."""
    changes: deque[WriteChanges] = field(default_factory=deque)
    """To be written to the change log."""
    upqueries: list[tuple[ReadKeys | FetchRows, Epoch]] = field(default_factory=list)
    """To be answered; some perhaps for what was kept before all began anew. Each with the last epoch that there was
    when it was asked for: it is read at once, and its answer may come late."""

    @property
    def plans(self) -> tuple[DataflowPlan, ...]:
        """Of the flow's views."""
        return self.assigned.plans

    @property
    def generation(self) -> int:
        return self.assigned.generation

    @property
    def alone(self) -> bool:
        """Whether it can ask no peer."""
        return not self.peers

    @property
    def reads_mixed(self) -> bool:
        """Whether the epoch opened last may have rows for peers."""
        return bool(self.opened) and self.opened[-1].mixed

    def note(self, message: ToShare, meet: Meet | None) -> None:
        """Note what the shell knows before the share takes the message. meet: the process's last meeting."""
        match message:
            case Resume():
                self._go_on(message)
            case MigrationOrder() if meet is not None and self.all_there:
                self.peers = {peer: who for peer, (who, _) in meet.peers.items() if peer not in self.left}
            case OpenEpoch() if message not in self.opened:
                self.opened.append(message)

    def begin(self, assign: Assign, left: Collection[WorkerId], *, all_there: bool) -> None:
        """What was read and heard is of no use any more. left, all_there: of the process's last meeting."""
        self.assigned, self.leaves, self.torn = assign, False, None
        self.applied = assign.start_at
        self.peers.clear()
        self.left, self.all_there = set(left), all_there
        self.unread.clear()
        self.opened.clear()

    def _go_on(self, resume: Resume) -> None:
        assign = replace(
            self.assigned,
            maps=resume.maps,
            reads=resume.reads,
            start_at=resume.at,
            serve_from=resume.serve_from,
            generation=resume.generation,
        )
        self.begin(assign, (), all_there=False)

    def meets(self, meet: Meet) -> None:
        """The process is told of another meeting."""
        if any(meet.peers.get(peer, (None, ""))[0] != who for peer, who in self.peers.items()):
            self.peers.clear()
        self.left -= meet.peers.keys()
        self.all_there = True

    def loses(self, event: PeerLost, meet: Meet | None) -> None:
        """The process loses a peer."""
        if counts(event, meet, self.left):
            self.peers.clear()
            self.all_there = False

    def late(self) -> list[WorkerEvent]:
        """What may still come for the share after its flow was dropped."""
        messages: list[ToShare] = [self.assigned, *self.opened]
        answers: list[LakeAnswer] = [*self.unread]
        answers += [self._unread_keys(asked) for asked, _ in self.upqueries]
        answers += [StateNotWritten(checkpoint=action.checkpoint, error="gone") for action in self.writing.queue]
        answers += [ChangesNotStored(taking=action.taking, error="gone") for action in self.changes]
        return [
            *(ForShare(flow=self.flow, message=message) for message in messages),
            *(ShareHears(flow=self.flow, event=answer) for answer in answers),
        ]

    @staticmethod
    def _unread_keys(asked: ReadKeys | FetchRows) -> KeysUnread | RowsUnfetched:
        error = NotRead("the file is gone")
        if isinstance(asked, FetchRows):
            return RowsUnfetched(generation=asked.generation, view=asked.view, task=asked.task, error=error)
        number = asked.upquery.number
        return KeysUnread(generation=asked.generation, region=asked.region, number=number, error=error)

    def start_reading(self, action: ReadEpoch, lake: FakeLake, tear: bool, rng: Random) -> None:
        """Line up slices of an epoch, or of a segment: in order on each edge, in any order between edges.

        tear: lose a slice, or read one twice.
        """
        span = lake.opened(span_after(action.epoch, action.after), action.as_of)
        runs = lake.changes(span, action.as_of)
        edges = [
            [
                RowsRead(epoch=action.epoch, channel=edge, batch=batch, goes_on=goes_on)
                for batch, goes_on in runs[edge].slices_of(action.vnodes, rng, whole_keys=edge not in action.in_parts)
            ]
            for edge in action.channels
            if edge in runs
        ]
        slices = _shuffled_together(edges, rng)
        full = [place for place, slice_ in enumerate(slices) if len(slice_.batch)]
        if tear and full:
            place = rng.choice(full)
            self.torn = slices[place].channel
            times = rng.choice((0, 2))
            if slices[place].batch.weight is not None:
                times = 0  # a retraction that is read twice makes its view fail before the end of the epoch is read
            slices[place : place + 1] = [slices[place]] * times
        promised = lake.promised(span, action.vnodes, action.channels)
        aged = lake.aged(span, action.vnodes, action.channels, action.as_of)
        self.unread = deque(chain(slices, [EpochRead(epoch=action.epoch, promised=promised, aged=aged)]))

    def start_restoring(self, action: ReadState, checkpoints: FlowCheckpoints, rng: Random) -> None:
        """Line up what the checkpoints have, in any order."""
        found = [
            StateRead(region=region, chunk=chunk) for region, chunk in checkpoints.read_all(action.chain, action.vnodes)
        ]
        rng.shuffle(found)
        self.unread = deque([*found, AllStateRead()])

    def fail_to_restore(self) -> None:
        """A file of the checkpoints is damaged."""
        self.unread = deque([StateUnread(error="a file is damaged")])

    def cuts(self, segment: EpochSpan) -> bool:
        """Whether a read under way begins or ends within a segment, or before that as of which it was rewritten."""
        for asked, published in self.upqueries:
            if isinstance(asked, FetchRows):
                ends = [end for read in asked.reads for end in (read.after, read.through)]
            else:
                ends = [asked.upquery.through, published, *range(asked.upquery.through, published)]
            if any(segment.first <= end < segment.as_of for end in ends):
                return True
        return False

    def next_answer(self, lake: FakeLake, ahead: int, rows_max: int, rng: Random) -> KeysRead | RowsFetched:
        """The answer to some request. ahead: how many epochs more an upquery reads, if they are published. rows_max:
        how many of its rows are taken in at once."""
        asked, published = self.upqueries.pop(rng.randrange(len(self.upqueries)))
        if isinstance(asked, FetchRows):
            rows = tuple(lake.rows_of_keys(read.channel, read.keys, read.through, read.after) for read in asked.reads)
            return RowsFetched(
                generation=asked.generation, view=asked.view, task=asked.task, rows=rows, rows_max=rows_max
            )
        keys, through = asked.upquery.keys, Epoch(min(asked.upquery.through + ahead, published))
        return KeysRead(
            generation=asked.generation,
            region=asked.region,
            number=asked.upquery.number,
            rows=tuple((port, lake.rows_of_keys(channel, keys, through)) for port, channel in asked.ports),
            through=through,
            clock=lake.clock(through),
            rows_max=rows_max,
        )

    def long_read(self, rng: Random) -> ReadTakesLong:
        """Some read takes long."""
        asked, _ = rng.choice(self.upqueries)
        if isinstance(asked, FetchRows):
            return ReadTakesLong(generation=asked.generation, region=asked.view, number=asked.task)
        return ReadTakesLong(generation=asked.generation, region=asked.region, number=asked.upquery.number)


@dataclass(slots=True, eq=False, kw_only=True)
class Process:
    """From its registration until nothing of it can be heard any more. parts: its shares, by flow."""

    worker: WorkerId
    incarnation: Incarnation
    machine: WorkerMachine
    rules: Rules
    parts: dict[FlowId, SharePart] = field(default_factory=dict)
    gone: set[FlowId] = field(default_factory=set)
    """The flows that it has heard were dropped."""
    late: list[WorkerEvent] = field(default_factory=list)
    """What still comes for shares of these flows."""
    runs: bool = True
    is_dismissed: bool = False
    """Told to retire."""
    left: set[WorkerId] = field(default_factory=set)
    """The peers of the last meeting that have taken leave of all shares."""
    all_there: bool = False
    """It has lost no peer since it was told of the last meeting."""
    has_lost: bool = False
    """It has lost a peer since it last met all of them."""
    noticed_gone: bool = False
    """The coordinator has been told that the process is gone."""
    down: deque[ToWorker] = field(default_factory=deque)
    """On its way from the coordinator."""
    up: deque[FromWorker] = field(default_factory=deque)
    """On its way to the coordinator."""
    heard: deque[FromWorker] = field(default_factory=lambda: deque(maxlen=HEARD_KEPT_MAX))
    """What the coordinator has heard since the process last began anew: it may hear it again."""
    inbox: deque[PeersMet | PeerLost] = field(default_factory=deque)
    """What the shell has to tell."""
    held: dict[SnapshotId, pa.Table] = field(default_factory=dict)
    waiting: dict[int, SimulatedLookup] = field(default_factory=dict)
    """All and only the lookups without an answer, by ticket."""
    meet: Meet | None = None
    """The last meeting, by which keys move if they do."""
    versions: dict[str, MapVersion] = field(default_factory=dict)
    """By view: of the last answer."""
    calls: set[FlowId] = field(default_factory=set)
    """The flows whose shares wait for a user's function."""
    later: HeldEvents = field(init=False)
    """What has come for them, and waits, too."""

    def __post_init__(self) -> None:
        self.later = HeldEvents(self.machine, self.rules)

    def __str__(self) -> str:
        return f"w{self.worker}#{self.incarnation}"

    @property
    def serves(self) -> bool:
        """Whether it has a share, and was not told to retire."""
        return bool(self.parts) and not self.is_dismissed

    def phase(self, flow: FlowId) -> Unassigned | Serving | Retired:
        """Of the process's share of a flow."""
        share = self.machine.shares.get(flow)
        return Unassigned() if share is None else share.phase

    @property
    def shares(self) -> Mapping[str, Shard]:
        """The process's share of every region of every flow, for checkers to look at: of views of one name, of the one
        that is not dropped."""
        phases = [share.phase for share in self.machine.shares.values()]
        serving = [phase.regions for phase in phases if isinstance(phase, Serving)]
        served = {name for regions in serving for name in regions.shards if view_of(name) in regions.served}
        return {
            name: shard
            for regions in serving
            for name, shard in regions.shards.items()
            if view_of(name) in regions.served or name not in served
        }

    def part_of(self, view: str) -> SharePart | None:
        """The share of the flow that has this view."""
        return next((part for part in self.parts.values() if view in self.served(part)), None)

    def unlogged(self, view: str) -> frozenset[int]:
        """hash64 of the keys with changes that the view's log did not have when this process last looked."""
        pending = self.shares[view].pending
        return frozenset() if pending is None else frozenset(pending.hashes_between(0, HASH64_MAX).tolist())

    def map_of(self, region: str) -> VnodeMap | None:
        """By which the process keeps the region's keys; ``None`` while they move."""
        shares = self.shares
        return getattr(shares[region].migrator.phase, "map", None) if region in shares else None

    @property
    def plans(self) -> tuple[DataflowPlan, ...]:
        """Of the views that the process keeps a share of."""
        return tuple(plan for part in self.parts.values() for plan in part.plans)

    def served(self, part: SharePart) -> Sequence[str]:
        """The views of a part, but for such as were dropped while others of their flow stay."""
        phase = self.phase(part.flow)
        return phase.regions.served if isinstance(phase, Serving) else [plan.name for plan in part.plans]

    @property
    def views(self) -> list[str]:
        """The views that it serves."""
        return [view for part in self.parts.values() for view in self.served(part)]

    @property
    def alone(self) -> bool:
        """Whether no share can ask a peer."""
        return all(part.alone for part in self.parts.values())

    def generation(self, flow: FlowId) -> int:
        """Of its share of a flow; -1 if it has none."""
        return self.parts[flow].generation if flow in self.parts else -1

    def passes(self, event: WorkerEvent) -> bool:
        """Whether the machine takes the event now; else it waits."""
        if not (self.calls or self.later):
            return True
        passes = self.later.passes(event, self.calls)
        self._pause()
        return passes

    def holds(self, flow: FlowId) -> bool:
        """Whether what comes for the flow's share waits. The process reads nothing of the lake for it meanwhile."""
        return flow in self.calls or flow in self.later.flows

    def unheard(self) -> Iterator[Envelope]:
        """What peers have said that waits."""
        return (event.envelope for event in self.later if isinstance(event, PeerSaid))

    def next_held(self) -> WorkerEvent | Rest | None:
        """Take the first event that need not wait any more."""
        event = self.later.next(self.calls)
        self._pause()
        return event

    def call(self, flow: FlowId) -> None:
        """The flow's share calls a user's function, and waits for it."""
        self.calls.add(flow)
        self._pause()

    def called(self, flow: FlowId) -> None:
        """The function has returned."""
        self.calls.remove(flow)
        self._pause()

    def _pause(self) -> None:
        self.machine.pause(self.calls | self.later.flows if self.calls else frozenset())

    def note_rest(self, flow: FlowId, event: OfAllShares) -> None:
        """As :meth:`note`, before a share takes an event that others took before."""
        if flow in self.parts:
            self._note_at(self.parts[flow], event)

    def _note_at(self, part: SharePart, event: OfAllShares) -> None:
        match event:
            case PeerLost():
                part.loses(event, self.meet)
            case Meet():
                part.meets(event)
            case CloseInput(flows=flows):
                part.leaves |= part.flow in flows

    def _note_at_all(self, event: OfAllShares) -> None:
        """At each share that takes an event for all of them now."""
        for flow, part in self.parts.items():
            if flow not in self.machine.paused:
                self._note_at(part, event)

    def note(self, event: WorkerEvent) -> None:
        """Note what any shell would know before the machine takes the event."""
        match event:
            case ForShare(flow=flow, message=Assign() as assign):
                if flow not in self.gone:
                    self._begin(flow, assign)
            case ForShare(flow=flow, message=message) if flow in self.parts:
                self.parts[flow].note(message, self.meet)
            case DropFlow(flow=flow):
                self._drop(flow)
            case PeerLost():
                self._lose(event)
            case Meet():
                self._note_at_all(event)
                self.left.clear()
                self.meet = event
                self.all_there = True
            case PeerSaid(envelope=Envelope(flow=flow, content=ForRegion(message=Bye()))) if flow in self.parts:
                self.parts[flow].left.add(event.sender)
                self.parts[flow].peers.pop(event.sender, None)
            case PeersMet():
                self.has_lost = any(isinstance(event, PeerLost) for event in self.inbox)
            case CloseInput():
                self._note_at_all(event)
            case Retire():
                self.is_dismissed = True
            case LookupGivenUp():
                self.waiting.pop(event.ticket, None)

    def _begin(self, flow: FlowId, assign: Assign) -> None:
        self._note_left()
        part = self.parts.setdefault(flow, SharePart(flow=flow, assigned=assign, applied=assign.start_at))
        part.begin(assign, self.left, all_there=self.all_there)

    def _drop(self, flow: FlowId) -> None:
        self._note_left()
        self.gone.add(flow)
        part = self.parts.pop(flow, None)
        self.late += [] if part is None else part.late()

    def _lose(self, event: PeerLost) -> None:
        self._note_left()
        self._note_at_all(event)
        if counts(event, self.meet, self.left):
            self.all_there, self.has_lost = False, True

    def _note_left(self) -> None:
        """Note the peers that have taken leave of all shares."""
        left = [part.left for part in self.parts.values()]
        self.left |= set.intersection(*left) if left else set()

    def end(self) -> None:
        """The process is no more. What it has sent may still arrive."""
        self.runs, self.is_dismissed = False, True
        self.down.clear()
        self.inbox.clear()
        self.late.clear()
        self.held.clear()
        self.calls.clear()
        self.later = HeldEvents(self.machine, self.rules)
        self._pause()
        for part in self.parts.values():
            part.unread.clear()
            part.upqueries.clear()
            part.changes.clear()
            part.writing = Writing()

    def cuts(self, segment: EpochSpan) -> bool:
        """Whether a read under way begins or ends within a segment, or before that as of which it was rewritten."""
        return any(part.cuts(segment) for part in self.parts.values())


def counts(event: PeerLost, meet: Meet | None, left: Collection[WorkerId]) -> bool:
    """Whether it is a loss: the peer has not taken leave, and the last meeting has named it."""
    if event.peer is None or event.incarnation is None:
        return True
    named = None if meet is None else meet.peers.get(event.peer)
    return event.peer not in left and named is not None and named[0] == event.incarnation


def _shuffled_together(edges: Sequence[list[RowsRead]], rng: Random) -> list[RowsRead]:
    turns = [place for place, slices in enumerate(edges) for _ in slices]
    rng.shuffle(turns)
    following = [iter(slices) for slices in edges]
    return [next(following[place]) for place in turns]
