"""The state of a worker that applies epochs and answers lookups.

Also the state of its feeds, and of the slices that it follows; rules replication.epoch_waits_for_followers to
replication.put_back_has_changed, ``docs/internals/standbys.md``.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from upriver.engine.keeping import FullRegionState
from upriver.engine.operators.view import LongRead
from upriver.hashing import Hashes
from upriver.ids import BEGINNING, Channel, Epoch, FeedId, Incarnation, VnodeId, WorkerId
from upriver.partial.cone import Cone
from upriver.partial.partial_region import PartialRegion
from upriver.plan.plan import DataflowPlan, RegionPlan
from upriver.protocol.messages import NO_STAGE, Assign, FromWorker, Meet, TakeCheckpoint, TakeSnapshot
from upriver.protocol.peers import BeginFeed, Envelope, PeerLookup, PeerMessage
from upriver.protocol.rules import Rules
from upriver.protocol.strategies import MIGRATORS, Migrator, Strategy
from upriver.protocol.worker_events import Report, SendPeer, WorkerAction
from upriver.state.checkpoint import ChangedKeys, StateChunk, Undo
from upriver.state.failure import ViewFailure
from upriver.state.keysets import key_set
from upriver.vnodes import VnodeMap
from upriver.worker.shard import FailedRegion, Shard


@dataclass(slots=True)
class ReplicaFeed:
    """A feed at the owner. to, incarnation: the follower. vnodes: the slices. out: loads sent that are not known to be
    taken in. is_whole: the follower has had everything at the end of some epoch."""

    to: WorkerId
    incarnation: Incarnation | None
    vnodes: set[VnodeId]
    out: int = 0
    is_whole: bool = False


@dataclass(slots=True)
class ReplicaSlices:
    """A feed at the follower: its slices, as of the end of epoch ``through``, once all of them are here.

    regions: those that keep every key, by name. since: the first epoch at whose end everything was here. later: changes
    of epochs that may not be over, in the order of their arrival.
    """

    owner: WorkerId
    vnodes: set[VnodeId]
    regions: dict[str, FullRegionState]
    since: Epoch | None = None
    through: Epoch = BEGINNING
    later: list[tuple[Epoch, str, StateChunk]] = field(default_factory=list)

    def replace(self, region: str, chunk: StateChunk) -> None:
        """Replace the state of these keys. A region whose view has failed keeps nothing."""
        kept = self.regions.get(region)
        if kept is not None:
            kept.drop(chunk.keys)
            kept.install(chunk.parts)

    def forget_regions(self, regions: Collection[str]) -> None:
        """The view of these regions has failed."""
        for name in regions:
            self.regions.pop(name, None)
        self.later = [entry for entry in self.later if entry[1] not in regions]

    def take_in(self, epoch: Epoch) -> None:
        """The epoch is over everywhere: take in its changes."""
        due = [(region, chunk) for of, region, chunk in self.later if of <= epoch]
        self.later = [entry for entry in self.later if entry[0] > epoch]
        for region, chunk in due:
            self.replace(region, chunk)

    def go_back_to(self, epoch: Epoch) -> None:
        """Discard changes of later epochs: they will come again."""
        self.later = [entry for entry in self.later if entry[0] <= epoch]
        if self.since is not None and self.since > epoch:
            self.since = None
        self.through = Epoch(min(self.through, epoch))

    def is_as_of(self, epoch: Epoch) -> bool:
        """Whether everything is here as of the end of this epoch."""
        return self.since is not None and self.since <= epoch <= self.through

    def hand_over(self, vnodes: Collection[VnodeId], count: int) -> dict[str, StateChunk]:
        """Remove and return the whole state of these slices, by region. count: the number of vnodes in the lake."""
        handed = {}
        for name, region in self.regions.items():
            keys = key_set(*(region.keys_of(vnode, count) for vnode in vnodes))
            handed[name] = StateChunk(keys, tuple(region.collect(keys)))
        self.forget(vnodes, count)
        return handed

    def forget(self, vnodes: Collection[VnodeId], count: int) -> None:
        """Keep nothing of these slices."""
        self.vnodes.difference_update(vnodes)
        self.later = [(epoch, region, chunk.among(self.vnodes, count)) for epoch, region, chunk in self.later]
        for region in self.regions.values() if self.vnodes else ():
            for vnode in vnodes:
                region.drop(region.keys_of(vnode, count))


Stats = Mapping[str, Mapping[str, int]]
"""By region, as in ``EpochFinished``."""
BuildRegion = Callable[[DataflowPlan, RegionPlan], FullRegionState]
"""Makes an empty region of a view."""


@dataclass(frozen=True, slots=True)
class Unread:
    """An epoch that is open and not being read yet."""

    epoch: Epoch
    vnodes: tuple[VnodeId, ...]
    mixed: bool


@dataclass(slots=True)
class EpochReading:
    """The epoch whose slices are being read. read: rows so far, per channel that feeds a region."""

    epoch: Epoch
    mixed: bool
    read: dict[Channel, int]
    is_read: bool = False
    """All slices were read; cones may not be through the epoch yet."""


@dataclass(slots=True)
class PendingLookup:
    """A lookup that a client has sent to this worker. left: keys without an answer. together: all parts must be as of
    one epoch. epoch: the lowest of the parts. relayed: whether a peer had some of the keys. held_up: whether some of
    those here were not present, or about to move."""

    view: str
    left: int
    parts: list[pa.RecordBatch]
    together: bool
    epoch: Epoch | None = None
    relayed: bool = False
    held_up: bool = False


@dataclass(slots=True, eq=False)
class LongAnswer:
    """A lookup whose rows are read some at a time. epoch: of the answer. parts: the rows read so far."""

    view: str
    question: PeerLookup
    read: LongRead
    epoch: Epoch
    parts: list[pa.RecordBatch] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WaitingLookup:
    """A lookup whose keys belong here, and that waits for a later epoch or for keys that are not present."""

    view: str
    question: PeerLookup


@dataclass(frozen=True, slots=True)
class Told:
    """What the worker last told the coordinator of a region's migration: the distributor's phase, the given slices."""

    phase: str
    vnodes_left: int
    gone: frozenset[VnodeId]


@dataclass(slots=True)
class Evicting:
    """A requested eviction. number: of the request. left: the hash64 (ascending) of the keys not handled yet."""

    number: int
    view: str
    left: Hashes


CROWD_KEYS = 4
"""Upqueries rest if at least this many keys are requested while one is under way: about as many more will be requested
in the same time again. With fewer, the waiting lookups would gain nothing."""

NOTHING_TOLD = Told("", -1, frozenset())


@dataclass(slots=True, kw_only=True)
class Serving:
    """Applies epochs, answers lookups, gives and takes keys."""

    assignment: Assign
    rules: Rules
    shares: dict[str, Shard]
    """The shard of every region, by name."""
    views: Mapping[str, pa.Schema]
    """The key of each view, by the view's name: the key of its last region, which lookups read."""
    depths: Mapping[str, int]
    """The depth of every region, by name."""
    build_region: BuildRegion
    lake_ports: Mapping[str, tuple[tuple[int, Channel], ...]]
    """The ports and channels of every region, by name: what upqueries read."""
    fed_by: dict[Channel, list[tuple[str, int]]]
    """The regions that each channel feeds, each with the port."""
    reads: tuple[VnodeId, ...]
    applied: Epoch
    """The last epoch whose slices were all read."""
    reflected: Epoch
    """The last epoch whose rows for the keys kept here are all known to be applied."""
    opened: Epoch
    """The last epoch that the coordinator has opened."""
    arrived: Epoch = BEGINNING
    """The last epoch that keys from peers may have rows of."""
    unread: deque[Unread] = field(default_factory=deque)
    reading: EpochReading | None = None
    """``None`` between two epochs."""
    epochs_behind: int = 0
    """Epochs that were read since all rows were applied."""
    counts: defaultdict[Epoch, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Rows that have come per region, of epochs that are not finished here."""
    late: Counter[tuple[Epoch, str]] = field(default_factory=Counter)
    """Rows that have come per region in this step, of epochs that are finished here."""
    stage: int = NO_STAGE
    """The last stage of the epoch read last that has begun here."""
    is_settling: bool = False
    """That stage is not done here."""
    asked: dict[int, PendingLookup] = field(default_factory=dict)
    """All and only the lookups that clients have sent here and that have no answer, by ticket."""
    waiting: list[WaitingLookup] = field(default_factory=list)
    """All and only the lookups that wait here for a later epoch, or for keys that are not present."""
    long_answers: list[LongAnswer] = field(default_factory=list)
    """Those that are being read, the oldest first."""
    answer_rows_max: int | None = None
    """Rows of a lookup that are read in one go; ``None``: any."""
    memory_budget: int | None = None
    """Bytes that all regions together may take; ``None``: any."""
    is_over_budget: bool = False
    """Regions take too much memory, and there are keys to evict."""
    _stats: Stats = field(default_factory=dict)
    """The last stats of the regions."""
    evictions: deque[Evicting] = field(default_factory=deque)
    """The requested evictions that are not done."""
    evicted: int = 0
    """Keys that the last step of an eviction handled."""
    crowd_keys: int = CROWD_KEYS
    """Upqueries rest if at least this many keys are requested while one is under way."""
    fills_rest: bool = False
    """Many keys were requested while an upquery was under way: the next one waits for more keys until ``TimeToFill``.
    """
    uprooted: bool = False
    """Some waiting lookups need keys that will be present at another worker."""
    is_restoring: bool = False
    """This worker's state is being read from checkpoints."""
    failed: dict[str, ViewFailure] = field(default_factory=dict)
    """The failures of views, here or at other workers."""
    checkpoint: TakeCheckpoint | None = None
    """The checkpoint whose cut lies ahead."""
    copying: TakeCheckpoint | None = None
    """The checkpoint that is being taken, until the coordinator keeps or drops it."""
    is_sealed: bool = False
    """All of this worker's part was copied."""
    born: int = 0
    """The generation in which this worker last began anew."""
    refilled_since: int = 0
    """The generation in which partial regions last began empty."""
    hungry: list[tuple[WorkerId, BeginFeed]] = field(default_factory=list)
    """Feeds that begin when the open epoch is over, with their followers."""
    feeds: dict[FeedId, ReplicaFeed] = field(default_factory=dict)
    """The feeds from this worker to its followers."""
    shadows: dict[FeedId, ReplicaSlices] = field(default_factory=dict)
    """The slices that this worker follows."""
    snapshots: list[TakeSnapshot] = field(default_factory=list)
    """All and only the snapshots whose cut lies ahead. Cuts may go back, when the foremost worker is lost."""
    meet: Meet | None = None
    """The last meeting that this worker was told of, unless a peer was lost since."""
    met: Meet | None = None
    """The last meeting whose channels are all open, or were."""
    peers: dict[WorkerId, Incarnation] = field(default_factory=dict)
    """The workers that can be asked: all that met at the last rescale, this worker too, except those that have left.
    Empty if one was lost since."""
    left: set[WorkerId] = field(default_factory=set)
    """Peers that have taken leave, and have no successor yet. There is no channel to them."""
    loads_out: int = 0
    """Loads of state that were sent and are not known to be installed."""
    given: int = 0
    taken: int = 0
    """These two: keys whose state was sent and installed since the last meeting."""
    has_left: bool = False
    """No rows come here any more, and no lookup can be sent on."""
    pause: int | None = None
    """Keys stay where they are: the name of the pause."""
    told: dict[str, Told] = field(default_factory=dict)
    """What this worker last told the coordinator of each region's migration."""
    actions: list[WorkerAction] = field(default_factory=list)
    """The actions of the current step."""

    @property
    def me(self) -> WorkerId:
        return self.assignment.worker

    def say(self, message: FromWorker) -> None:
        """Send to the coordinator."""
        self.actions.append(Report(message=message))

    def tell(self, peer: WorkerId, content: PeerMessage) -> None:
        envelope = Envelope(generation=self.assignment.generation, content=content)
        self.actions.append(SendPeer(to=peer, envelope=envelope))

    def reaches(self, asker: WorkerId) -> bool:
        """Whether there is, or was, a channel to the worker that asked. That incarnation may be long gone, with another
        one in its place."""
        if self.met is None or asker not in self.met.peers or asker in self.left:
            return False
        return self.meet is None or self.meet.peers.get(asker) == self.met.peers[asker]

    @property
    def is_staged(self) -> bool:
        """Whether rows are exchanged."""
        return any(self.depths.values())

    @property
    def vnodes(self) -> int:
        """The number of vnodes in the lake."""
        return len(next(iter(self.assignment.maps.values())).owners)

    @property
    def deepest(self) -> int:
        """The last stage of each epoch."""
        return max(self.depths.values(), default=0)

    @property
    def begun(self) -> Epoch:
        """The last epoch that this worker has begun to read."""
        return self.applied if self.reading is None else self.reading.epoch

    @property
    def is_between_epochs(self) -> bool:
        """Whether every epoch that was opened here is over everywhere."""
        return self.reading is None and not self.unread and self.applied == self.reflected

    def catch_up(self) -> None:
        """Apply all rows that have come."""
        for share in self.shares.values():
            share.catch_up()

    def forget_undo(self) -> None:
        """The last epoch is over: no takeover will go back before it."""
        for share in self.shares.values():
            if share.undo is not None:
                share.undo.forget()

    def stats(self) -> Stats:
        """The current stats of every region."""
        self._stats = {name: share.region.stats() for name, share in self.shares.items()}
        return self._stats

    @property
    def last_stats(self) -> Stats:
        """The stats as of the last look: looking at all regions takes milliseconds."""
        return self._stats if self._stats.keys() == self.shares.keys() else self.stats()

    def stats_after(self, region: str) -> Stats:
        """The current stats, if only this region can have changed since the last look."""
        self._stats = {**self.last_stats, region: self.shares[region].region.stats()}
        return self._stats

    @property
    def cones(self) -> Mapping[str, Cone]:
        """The cones, by view."""
        return {name: share.cone for name, share in self.shares.items() if share.cone is not None}

    @property
    def has_leftovers(self) -> bool:
        """Whether some cone has state of evicted keys."""
        return any(share.cone is not None and share.cone.has_leftovers for share in self.shares.values())

    def map_of(self, region: str) -> VnodeMap | None:
        """The map that places the region's keys; ``None`` while they move."""
        return getattr(self.shares[region].migrator.phase, "map", None)


def started(
    event: Assign,
    build_region: BuildRegion,
    rules: Rules,
    memory_budget: int | None,
    crowd_keys: int,
    answer_rows_max: int | None,
) -> Serving:
    """The state of a worker that holds nothing. memory_budget: bytes that all regions together may take; ``None`` for
    any. crowd_keys: see ``CROWD_KEYS``. answer_rows_max: rows of a lookup that are read in one go; ``None``: any."""
    make = MIGRATORS[Strategy.ICADD]
    shares: dict[str, Shard] = {}
    fed_by: dict[Channel, list[tuple[str, int]]] = {}
    for plan in event.plans:
        for region in plan.spread:
            migrator = make(event.worker, event.maps[region.name], None)
            shares[region.name] = _share(event, plan, region, migrator, build_region, rules)
            for port, channel in region.lake_ports:
                fed_by.setdefault(channel, []).append((region.name, port))
    return Serving(
        assignment=event,
        rules=rules,
        memory_budget=memory_budget,
        crowd_keys=crowd_keys,
        answer_rows_max=answer_rows_max,
        shares=shares,
        build_region=build_region,
        born=event.generation,
        refilled_since=event.generation,
        failed=dict(event.failed),
        views={plan.name: plan.key_schema for plan in event.plans},
        depths={name: depth for plan in event.plans for name, depth in plan.stages.items()},
        lake_ports={region.name: region.lake_ports for plan in event.plans for region in plan.spread},
        fed_by=fed_by,
        reads=event.reads,
        applied=event.start_at,
        reflected=event.start_at,
        opened=event.start_at,
    )


def _share(
    event: Assign,
    plan: DataflowPlan,
    region: RegionPlan,
    migrator: Migrator,
    build_region: BuildRegion,
    rules: Rules,
) -> Shard:
    """A shard that holds nothing; a failed one, if the view has failed or its region cannot be made."""
    build = partial(build_region, plan, region)
    exchange_ports = range(len(region.inputs)) - dict(region.lake_ports).keys()
    failed_region = partial(FailedRegion, exchange_ports=exchange_ports, build=build)
    failure, state = event.failed.get(plan.name), None
    try:
        state = empty_state(plan, region, build_region, rules, event.start_at) if failure is None else None
    except Exception as error:  # of any kind: a user's function is loaded here
        if not rules.views_fail_alone:  # views.fail_alone
            raise
        failure = ViewFailure.of(error, f"view {plan.name!r}")
    kept = failed_region(failure, 0) if state is None and failure is not None else state
    assert kept is not None
    vnodes = len(event.maps[region.name].owners)
    share = Shard(region.name, kept, migrator, vnodes, rules, failed_region, state_stays=plan.is_cone)
    if failure is not None:
        share.fail(failure)
    elif share.partial is None:
        share.changes = ChangedKeys() if event.chain is not None else None
        share.undo = Undo() if event.reversible else None
    return share


def empty_state(
    plan: DataflowPlan, region: RegionPlan, build_region: BuildRegion, rules: Rules, start_at: Epoch
) -> FullRegionState | PartialRegion | Cone:
    """An empty region that keeps all keys, or, in a partial view, the keys that are read."""
    if plan.is_cone:
        return Cone(plan, partial(build_region, plan), rules.upqueries, start_at)
    if plan.full_because is None:
        return PartialRegion(partial(build_region, plan, region), rules.upqueries)
    return build_region(plan, region)
