"""Shard: one worker's share of one region, behind the distributor that all its events go through.

Rows, lookups and state take the same way: an event goes to the distributor, and the shard applies the resulting actions
to the state at once. So the operators answer an Interrogate or a Collect before any other event comes.

Rows that go down right after each other are taken in together: few rows cost operators nearly as much as many.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from upriver.engine.batch import Outgoing
from upriver.engine.operators.operator import concatenated
from upriver.engine.pending_changes import ChangedRows, PendingChanges
from upriver.engine.region import ALL_ROWS, FullRegionState, Region, RegionState, State
from upriver.errors import ProtocolError
from upriver.hashing import Hashes
from upriver.ids import Epoch, FeedId, MapVersion, VnodeId, WorkerId
from upriver.migration.events import (
    Action,
    Collect,
    CollectAsked,
    Collected,
    Drop,
    Event,
    Interrogate,
    Interrogated,
    Leave,
    PassDown,
    Received,
    ReportGone,
    ReportSettled,
    Send,
    TakeState,
)
from upriver.migration.messages import RowsSent
from upriver.partial.cone import Cone
from upriver.partial.partial_region import PartialRegion
from upriver.plan.plan import view_of
from upriver.protocol.peers import (
    Applied,
    AskedHere,
    Copied,
    Gave,
    LeftBehind,
    LeftOut,
    Outcome,
    OwnersChanged,
    PeerLookup,
    Portion,
    PutOff,
    Took,
)
from upriver.protocol.rules import Rules
from upriver.protocol.strategies import Strategy
from upriver.state.checkpoint import StateChunk
from upriver.state.failure import ViewFailure
from upriver.state.vectors import NO_KEYS, key_set
from upriver.vnodes import VnodeMap
from upriver.worker.change_logs import ChangeLogs
from upriver.worker.failed_region import FailedRegion
from upriver.worker.migrators import MIGRATORS, Migrator, new_owner
from upriver.worker.unfinished_keys import UnfinishedKeys


def joined(actions: Sequence[Action]) -> list[Action]:
    """The same actions, with neighbours of one epoch and one port joined, in their order, under the first one's rule.

    While a slice moves, two rules send the rows of a batch down: one for the slice's rows, one for all other rows.
    """
    found: list[Action] = []
    for place, run in groupby(actions, _place):
        alike = list(run)
        found += alike if place is None else [_as_one(alike, *place)]
    return found


def _place(action: Action) -> tuple[Epoch, int] | None:
    """The epoch and the port of rows that go down; ``None`` for any other action."""
    match action:
        case PassDown(rows=Portion(epoch=epoch, port=port)):
            return epoch, port
    return None


def _as_one(alike: Sequence[Action], epoch: Epoch, port: int) -> PassDown:
    downs = [action for action in alike if isinstance(action, PassDown)]
    batches = [down.rows.batch for down in downs if isinstance(down.rows, Portion)]
    return PassDown(rows=Portion(epoch, port, concatenated(batches)), rule=downs[0].rule)


@dataclass(slots=True)
class Travelled:
    """What this worker has sent away since the last rescale began. keys, bytes: of state. forwarded: own rows sent to a
    peer. bounced: a peer's rows sent on."""

    keys: int = 0
    bytes: int = 0
    forwarded: int = 0
    bounced: int = 0


class Shard:
    """``step(event) -> outcomes``. Callers may read from ``region``."""

    def __init__(
        self,
        name: str,
        region: FullRegionState | PartialRegion | Cone | FailedRegion,
        migrator: Migrator,
        vnodes: int,
        rules: Rules,
        failed_region: Callable[..., FailedRegion],
        logs: ChangeLogs,
        *,
        state_stays: bool,
        parted_ports: Collection[int],
    ) -> None:
        """failed_region: makes the stand-in once the view has failed, from the failure, the number of gathered rows,
        and that of the rows that were put off.
        state_stays: the region's state never moves to another worker, whatever the strategy. parted_ports: those at
        which a part of a key's rows of an epoch is applied while others are to come."""
        self.region: RegionState = region
        self.failure: ViewFailure | None = None
        """Why the region's view has failed here."""
        self.logs = logs
        """Which keys have changed."""
        self.partial = region if isinstance(region, PartialRegion | Cone) else None
        """The region, if it is partial."""
        self._state_stays = state_stays
        self._failed_region = failed_region
        self._apply = _apply_all(region)
        self._behind: tuple[Epoch, Epoch] | None = None
        """The first and the last epoch of rows that are not applied yet."""
        self.leaves_keys = False
        """Whether keys stay behind in this rescale, and the new owner fills them."""
        self.unfinished = UnfinishedKeys()
        """The keys that have a part of an epoch's rows."""
        self._parted_ports = frozenset(parted_ports)
        self.migrator = migrator
        self.travelled = Travelled()
        self.version: MapVersion = migrator.phase.map.version
        """The version of the map that places the keys; while they move, of the last one."""
        self._name = name
        self._vnodes = vnodes
        self._rules = rules

    @property
    def cone(self) -> Cone | None:
        """The region, if it is a cone."""
        return self.partial if isinstance(self.partial, Cone) else None

    @property
    def pending(self) -> PendingChanges | None:
        """The changes that the view's log does not have yet; ``None`` if this region has no log."""
        return self.region.pending if isinstance(self.region, Region) else None

    @property
    def keeps_every_key(self) -> bool:
        """Whether all keys of this worker's slices have their state here."""
        return self.partial is None and self.failure is None

    @property
    def vnode_map(self) -> VnodeMap | None:
        """The map that places the region's keys; ``None`` while they move."""
        return getattr(self.migrator.phase, "map", None)

    @property
    def can_give(self) -> bool:
        """Whether ``give`` would move a key."""
        return self.migrator.can_collect

    def begin(self, strategy: Strategy, me: WorkerId, keys_max: int | None) -> None:
        """Use this strategy from now on. Nothing moves at this time. keys_max: as in ``Meet``."""
        by = Strategy.LAZY if self._state_stays else strategy
        self.migrator = MIGRATORS[by](me, self.migrator.phase.map, keys_max)
        self.leaves_keys = self.partial is not None and by is Strategy.LAZY
        self.travelled = Travelled()

    def step(self, event: Event) -> list[Outcome]:
        """Handle an event completely. An error in the region fails the view: see ``failure``."""
        outcomes: list[Outcome] = []
        events = deque([event])
        while events:
            current = events.popleft()
            for action in joined(self.migrator.step(current)):
                events.extend(self._carry_out(action, current, outcomes))
        self.version = getattr(self.migrator.phase, "map", self).version
        return outcomes

    def give(self, keys_max: int) -> list[Outcome]:
        """Send the next keys to their new owner."""
        return self.step(CollectAsked(keys_max=keys_max))

    def _carry_out(self, action: object, cause: Event, outcomes: list[Outcome]) -> list[Event]:
        """Carry out an action of the distributor. Returns the events that this gives the distributor. If the region
        fails, its stand-in carries the action out."""
        made: list[Outcome] = []
        with self.contained("keeping its keys"):
            events = self._carried_out(action, cause, made)
            outcomes += made
            return events
        return self._carried_out(action, cause, outcomes)

    def _carried_out(self, action: object, cause: Event, outcomes: list[Outcome]) -> list[Event]:
        match action:
            case PassDown(rows=Portion() as portion):
                if self._rules.checkpoints_copy_before_change:
                    outcomes += self._copied_before(portion.batch.hash64)
                self._save(portion.batch.hash64)
                self.logs.note(portion.batch.hash64)
                if portion.port in self._parted_ports:
                    self.expect_more(portion.epoch, portion.batch.hash64)
                self._begin(portion.epoch)
                before = self._put_off
                with self.contained(f"epoch {portion.epoch}"):
                    self._apply(portion)
                self._fall_behind(portion.epoch)
                outcomes += [Applied(portion.epoch, len(portion)), *self._put_off_since(before, portion.epoch)]
                outcomes += [LeftOut(portion.epoch, aside) for aside in self.region.left_out()]
            case PassDown(rows=PeerLookup() as question):
                outcomes.append(AskedHere(question))
            case Interrogate(vnodes=asked):
                if self.leaves_keys:
                    outcomes += self._leave(asked)
                keys = [self.region.keys_of(vnode, self._vnodes) for vnode in asked]
                given_up = [self.partial.give_up_vnode(vnode, self._vnodes) for vnode in asked] if self.partial else []
                outcomes += [OwnersChanged()] if any(given_up) else []
                return [Interrogated(keys=key_set(*keys))]
            case Collect(keys=keys):
                state = self._chunk_of(keys).parts
                self.travelled.keys += len(keys)
                self.travelled.bytes += sum(batch.nbytes for batch in state)
                outcomes.append(Gave(len(keys)))
                return [Collected(keys=keys, state=state)]
            case TakeState():
                if len(action.keys) and not action.state and self.failure is None:  # as a failed region collects
                    why = f"view {self.view!r} has failed on the worker that these keys have come from"
                    self.fail(ViewFailure(kind="RowError", error=why))
                self._install(_as_state(action.state))
                before = self._put_off
                with self.contained("taking state in"):
                    self.region.show_due()  # the peer's clock may be behind this worker's
                self._note_moved(action.keys)
                outcomes += [Took(len(action.keys)), *self._put_off_since(before)]
            case Drop(keys=keys):
                if self.partial and self.partial.give_up(keys):
                    outcomes.append(OwnersChanged())
                self.region.drop(keys)
                self._note_moved(keys)
            case Send():
                self._count(action, cause)
                outcomes.append(action)
            case ReportSettled() | ReportGone() | Leave():
                outcomes.append(action)
            case _:
                raise AssertionError(f"no distributor wants {action!r}")
        return []

    def _leave(self, vnodes: Sequence[VnodeId]) -> list[Outcome]:
        """Keep nothing of these slices, and tell their new owner which keys are worth filling."""
        assert self.partial is not None
        phase = self.migrator.phase
        shown = Epoch(0) if self.cone is None else self.cone.applied
        return [LeftBehind(new_owner(phase, vnode), self.partial.leave(vnode, self._vnodes), shown) for vnode in vnodes]

    # Checkpoints

    def restore(self, chunk: StateChunk) -> None:
        """Take in a checkpoint's state of some keys that have no state here."""
        self._install(chunk.parts)

    def cut(self, *, whole: bool) -> None:
        """Cut a checkpoint of the current state: of the keys that changed since the last one, or of all (``whole``)."""
        if self.logs.has_checkpoints:
            self.logs.cut(self.region.keys_of(0, 1) if whole else None)

    def copy(self, keys_max: int) -> StateChunk | None:
        """The state of the checkpoint's next keys; ``None`` if all are copied."""
        return self._some_of(self.logs.next_to_copy(keys_max))

    def drop_cut(self) -> None:
        """The checkpoint is given up (checkpoints.dropped_have_changed)."""
        if self._rules.checkpoints_dropped_have_changed:
            self.logs.drop_cut()
        else:
            self.logs.keep_cut()

    def _copied_before(self, hashes: Hashes) -> list[Outcome]:
        chunk = self._some_of(self.logs.copy_before(hashes))
        return [] if chunk is None else [Copied(chunk)]

    def _some_of(self, keys: Hashes) -> StateChunk | None:
        """The state of these keys; ``None`` if there are none, or the view has failed."""
        chunk = self._chunk_of(keys) if len(keys) else None
        return chunk if chunk is not None and len(chunk.keys) else None

    def _chunk_of(self, keys: Hashes) -> StateChunk:
        """The state of these keys; of no key, if the view has failed."""
        with self.contained("copying state"):
            if self.failure is None:
                return StateChunk(keys, tuple(self.region.collect(keys)))
        return StateChunk(NO_KEYS, ())

    def _install(self, state: State) -> None:
        """Take in state that comes from another worker or a checkpoint."""
        with self.contained("taking state in"):
            self.region.install(state)

    def _note_moved(self, keys: Hashes) -> None:
        if self._rules.checkpoints_moved_keys_change:
            self.logs.note(keys)

    # Followers

    def follow(self, feed: FeedId, vnodes: Sequence[VnodeId]) -> None:
        """A worker follows these slices from now on."""
        everything = key_set(*(self.region.keys_of(vnode, self._vnodes) for vnode in vnodes))
        self.logs.follow(feed, vnodes, self._vnodes, everything)

    def is_to_feed(self, feed: FeedId) -> bool:
        """Whether keys are left to copy for a follower."""
        return self.logs.is_to_feed(feed, self.region.waiting)

    def copy_for(self, feed: FeedId, keys_max: int) -> StateChunk | None:
        """The state of the next keys to copy for a follower; ``None`` if there are none to copy now."""
        due = self.logs.next_to_feed(feed, keys_max, self.region.waiting)
        return None if due is None else self._some_of(due)

    def rest_for(self, feed: FeedId) -> StateChunk:
        """At the end of an epoch: the state of all keys that have changed for a follower."""
        return self._chunk_of(self.logs.rest_to_feed(feed))

    def _save(self, hashes: Hashes) -> None:
        unsaved = self.logs.unsaved(hashes)
        if unsaved is not None:
            self.logs.save(self._chunk_of(unsaved))

    def put_back(self) -> None:
        """Go back to the state as of the end of the last epoch that is over (replication.put_back)."""
        if self.failure is not None:
            self.region = self._stand_in(0, 0)  # waiting rows will come again
            return
        with self.contained("going back to the last epoch's end"):
            self.region.drain(ALL_ROWS)  # discard the epoch's results
            for chunk in self.logs.take_saved():
                self.region.drop(chunk.keys)
                self._install(chunk.parts)
                if self._rules.replication_put_back_has_changed:
                    self.logs.note_for_followers(chunk.keys)

    def take_over(self, chunk: StateChunk) -> None:
        """This worker keeps these keys from now on."""
        self._install(chunk.parts)
        self._note_moved(chunk.keys)

    def give_up(self, vnodes: Sequence[VnodeId]) -> None:
        """Another worker keeps these slices from now on."""
        with self.contained("giving keys up"):
            for vnode in vnodes:
                if self.partial is not None:
                    self.partial.give_up_vnode(vnode, self._vnodes)
                    self.partial.leave(vnode, self._vnodes)
                else:
                    keys = self.region.keys_of(vnode, self._vnodes)
                    self.region.drop(keys)
                    self._note_moved(keys)

    def succeed(self, old: "Shard") -> None:
        """Go on with the old shard's state, by this shard's map, when all resume."""
        old.catch_up()
        self.region, self.partial, self._apply = old.region, old.partial, old._apply
        self.logs, self.failure = old.logs, old.failure

    # Rows

    def keys_came(self, epoch: Epoch, keys: Hashes) -> None:
        """Keys have come from a worker that has begun this epoch, perhaps with a part of its rows."""
        if self._parted_ports:
            self.expect_more(epoch, keys)

    def expect_more(self, epoch: Epoch, keys: Hashes) -> None:
        """More rows of these keys come in the epoch (worker.whole_keys)."""
        if self._rules.worker_whole_keys:
            self.unfinished.note(epoch, keys)

    @property
    def is_behind(self) -> bool:
        """Whether rows have come that are not applied yet."""
        return isinstance(self.partial, PartialRegion) and self.partial.is_behind

    def _fall_behind(self, epoch: Epoch) -> None:
        """Rows of this epoch have come, and may wait before they are applied."""
        if isinstance(self.partial, PartialRegion) and self.partial.is_behind:
            self._behind = (epoch if self._behind is None else self._behind[0], epoch)
            if self.partial.must_catch_up:
                self.catch_up()

    def catch_up(self, hash64: Hashes | None = None) -> None:
        """Apply the rows that wait; with ``hash64``, only if some of these keys have any."""
        if self._behind is None or not isinstance(self.partial, PartialRegion):
            return
        if hash64 is None or self.partial.is_behind_with(hash64):
            (since, until), self._behind = self._behind, None
            when = f"epoch {until}" if since == until else f"one of the epochs {since} to {until}"
            with self.contained(when):
                self.partial.catch_up()

    def advance(self, epoch: Epoch, clock: int) -> list[Outcome]:
        """The epoch begins here: the clock gets to its instant."""
        due, outcomes = NO_KEYS, list[Outcome]()
        with self.contained(f"epoch {epoch}"):
            due = self.region.due(clock)
        if len(due):
            outcomes += self._copied_before(due) if self._rules.checkpoints_copy_before_change else []
            self._save(due)
            self.logs.note(due)
        self._begin(epoch)
        before = self._put_off
        with self.contained(f"epoch {epoch}"):
            self.region.advance(clock)
        return [*outcomes, *self._put_off_since(before, epoch)]

    @property
    def _put_off(self) -> int:
        """Rows that a node has failed on, and that wait for the region's stage (worker.put_off_rows_count)."""
        return self.region.waiting - self.region.gathered if self._rules.worker_put_off_rows_count else 0

    def _put_off_since(self, before: int, epoch: Epoch | None = None) -> list[Outcome]:
        """The rows that were put off since then. No state has moved meanwhile."""
        return [PutOff(epoch, self._put_off - before)] if self._put_off > before else []

    def settle(self, epoch: Epoch, rows_max: int) -> tuple[int, Sequence[Outgoing]]:
        """Take in about ``rows_max`` waiting rows. Returns how many, and about as many result rows to send, of this
        call or earlier ones."""
        gathered, put_off = self.region.gathered, self._put_off
        self._begin(epoch)
        with self.contained(f"epoch {epoch}"):
            settled = self._settle(epoch, rows_max)
            return settled + put_off - self._put_off, self.region.drain(rows_max)
        self.region = self._stand_in(gathered, put_off)
        return self.region.settle(rows_max) + put_off, ()

    def _settle(self, epoch: Epoch, rows_max: int) -> int:
        """Take in about so many rows; those of a key in parts, unless it may move (worker.moving_keys_whole)."""
        keys_stay = self.vnode_map is not None or not self._rules.worker_moving_keys_whole
        if not keys_stay or not isinstance(self.region, Region):
            return self.region.settle(rows_max)
        settled, keys = self.region.settle_in_parts(rows_max)
        if not self.unfinished.among(keys).all():  # noted with the first part
            self.expect_more(epoch, keys)
        return settled

    # Changes

    def _begin(self, epoch: Epoch) -> None:
        """What changes from now on changes in this epoch."""
        if isinstance(self.region, Region):
            self.region.begin(epoch)

    def changes(self, at: Epoch) -> ChangedRows | None:
        """The changes through this epoch, whose end is now, that the log does not have; ``None`` if the view fails."""
        with self.contained(f"its changes through epoch {at}"):
            if isinstance(self.region, Region):
                return self.region.changes()
        return None

    def all_inserted(self, at: Epoch) -> ChangedRows | None:
        """All rows, as of the end of this epoch, which is now; ``None`` if the view fails."""
        with self.contained(f"its rows as of epoch {at}"):
            if isinstance(self.region, Region):
                return self.region.all_inserted(at)
        return None

    # Failing

    @property
    def view(self) -> str:
        """The view that the region belongs to."""
        return view_of(self._name)

    def fail(self, failure: ViewFailure) -> None:
        """Drop the state, and answer only with the error. If there are two failures, the second one counts: it is the
        coordinator's."""
        is_first, self.failure = self.failure is None, failure
        self.region = self._stand_in(self.region.gathered, self._put_off)
        if not is_first:
            return
        self.partial, self.logs = None, ChangeLogs()
        self.leaves_keys, self._behind = False, None

    def _stand_in(self, gathered: int, put_off: int) -> FailedRegion:
        assert self.failure is not None
        stands_in = self._failed_region(self.failure, gathered, put_off=put_off)
        self._apply = lambda portion: stands_in.apply(portion.port, portion.batch)
        return stands_in

    @contextmanager
    def contained(self, what: str) -> Iterator[None]:
        """Any error of the region fails the view, and nothing else (``views.fail_alone``)."""
        try:
            yield
        except Exception as error:
            if not self._rules.views_fail_alone:  # views.fail_alone
                raise
            region = f", region {self._name!r}" if "/" in self._name else ""
            self.fail(ViewFailure.of(error, f"view {self.view!r}{region}, {what}"))

    def _count(self, sent: Send, cause: Event) -> None:
        if isinstance(sent.message, RowsSent) and isinstance(sent.message.rows, Portion):
            if isinstance(cause, Received):
                self.travelled.bounced += len(sent.message.rows)
            else:
                self.travelled.forwarded += len(sent.message.rows)


def _apply_all(region: FullRegionState | PartialRegion | Cone | FailedRegion) -> Callable[[Portion], None]:
    """The function that applies rows to the region."""
    if isinstance(region, Cone):
        return _refuse
    if isinstance(region, PartialRegion):
        return lambda portion: region.take(portion.epoch, portion.port, portion.batch)
    return lambda portion: region.apply(portion.port, portion.batch)


def _refuse(portion: Portion) -> None:
    raise ProtocolError(f"{len(portion)} rows of epoch {portion.epoch} have come to a region that reads by itself")


def _as_state(state: Any) -> State:
    """The state that a migration message carries: migration treats it as opaque."""
    return tuple(state)
