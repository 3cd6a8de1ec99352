"""Shard: one worker's share of one region, behind the distributor that all its events go through.

Rows, lookups and state take the same way: an event goes to the distributor, and the shard applies the resulting actions
to the state at once. So the operators answer an Interrogate or a Collect before any other event comes.

Rows that go down right after each other are taken in together: few rows cost operators nearly as much as many.

``FailedRegion``: stands in for a region of a view that has failed; rule ``views.fail_alone``,
``docs/internals/failures.md``. The view's regions still take part in everything that concerns every region: rows come
to them and are counted, stages begin and end, rescales pass through. They hold no state, and answer only with the
error.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from upriver.engine.bad_rows import SetAside
from upriver.engine.batch import Batch, Outgoing
from upriver.engine.keeping import ALL_ROWS, FullRegionState, RegionState, State
from upriver.engine.operators.operator import concatenated
from upriver.engine.operators.view import LongRead
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
    Took,
)
from upriver.protocol.rules import Rules
from upriver.protocol.strategies import MIGRATORS, Migrator, Strategy, new_owner
from upriver.state.checkpoint import ChangedKeys, SliceLog, StateChunk, Undo
from upriver.state.failure import ViewFailure
from upriver.state.keysets import NO_KEYS, key_set


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


class FailedRegion:
    """Stands in for a region of a view that has failed. It counts rows that come over exchange edges until their stage:
    the epoch ends when as many rows were taken in as were sent."""

    def __init__(
        self, failure: ViewFailure, gathered: int, exchange_ports: Collection[int], build: Callable[[], FullRegionState]
    ) -> None:
        """gathered: rows that waited in the region. exchange_ports: the ports that other regions feed. build: makes an
        empty region, which counts the gathered rows in state that comes from another worker."""
        self.failure = failure
        self.gathered = gathered
        self._exchange_ports = frozenset(exchange_ports)
        self._build = build

    @property
    def unsettled(self) -> int:
        return self.gathered

    def apply(self, port: int, batch: Batch) -> None:
        if port in self._exchange_ports:
            self.gathered += len(batch)

    def left_out(self) -> Sequence[SetAside]:
        return ()

    def settle(self, rows_max: int) -> int:
        settled, self.gathered = self.gathered, 0
        return settled

    def drain(self, rows_max: int) -> Sequence[Outgoing]:
        return ()

    def lookup(self, hash64: Hashes, keys: pa.RecordBatch, rows_max: int | None = None) -> pa.RecordBatch:
        raise self.failure.raised()

    def lookup_each(
        self, hash64: Hashes, keys: pa.RecordBatch, lengths: Sequence[int], rows_max: int | None = None
    ) -> list[pa.RecordBatch]:
        raise self.failure.raised()

    def long_read(self, hash64: Hashes, keys: pa.RecordBatch) -> LongRead:
        raise self.failure.raised()

    def scan(self) -> pa.Table:
        raise self.failure.raised()

    def stats(self) -> Mapping[str, int]:
        return {"rows": 0, "keys": 0, "held": 0, "gathered": self.gathered, "bytes": 0, "live_bytes": 0}

    def keys_of(self, vnode: int, vnodes: int) -> Hashes:
        return NO_KEYS

    def collect(self, keys: Hashes) -> State:
        """No state at all: by this, another worker sees that the view has failed here."""
        return ()

    def install(self, state: State) -> None:
        if state and self._exchange_ports:
            apart = self._build()
            apart.install(state)
            self.gathered += apart.gathered

    def drop(self, keys: Hashes) -> None:
        pass


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
        failed_region: Callable[[ViewFailure, int], FailedRegion],
        *,
        state_stays: bool,
    ) -> None:
        """failed_region: makes the stand-in once the view has failed, from the failure and the number of gathered rows.
        state_stays: the region's state never moves to another worker, whatever the strategy."""
        self.region: RegionState = region
        self.failure: ViewFailure | None = None
        """Why the region's view has failed here."""
        self.changes: ChangedKeys | None = None
        """The keys changed since the last checkpoint; ``None`` without checkpoints. Partial regions have none: their
        keys are filled again."""
        self.undo: Undo | None = None
        """The state before the open epoch; ``None`` unless standbys may take over at any epoch's end."""
        self.logs: dict[FeedId, SliceLog] = {}
        """By feed: what a follower of the region's slices still needs."""
        self.partial = region if isinstance(region, PartialRegion | Cone) else None
        """The region, if it is partial."""
        self.cone = region if isinstance(region, Cone) else None
        self._state_stays = state_stays
        self._failed_region = failed_region
        self._apply = _apply_all(region)
        self._behind_since: Epoch | None = None
        self._behind_until = Epoch(0)
        """These two: the first and the last epoch of rows that are not applied yet."""
        self.leaves_keys = False
        """Whether keys stay behind in this rescale, and the new owner fills them."""
        self.migrator = migrator
        self.travelled = Travelled()
        self.version: MapVersion = migrator.phase.map.version
        """The version of the map that places the keys; while they move, of the last one."""
        self._name = name
        self._vnodes = vnodes
        self._rules = rules

    @property
    def keeps_every_key(self) -> bool:
        """Whether all keys of this worker's slices have their state here."""
        return self.partial is None and self.failure is None

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
        """Carry out an action of the distributor. Returns the events that this gives the distributor."""
        match action:
            case PassDown(rows=Portion() as portion):
                if self._rules.checkpoints_copy_before_change:
                    outcomes += self._copied_before(portion.batch.hash64)
                self._save(portion.batch.hash64)
                self._note(portion.batch.hash64)
                with self.contained(f"epoch {portion.epoch}"):
                    self._apply(portion)
                self._fall_behind(portion.epoch)
                outcomes.append(Applied(portion.epoch, len(portion)))
                outcomes += [LeftOut(portion.epoch, aside) for aside in self.region.left_out()]
            case PassDown(rows=PeerLookup() as question):
                outcomes.append(AskedHere(question))
            case Interrogate(vnodes=asked):
                if self.leaves_keys:
                    outcomes += self._leave(asked)
                keys = [self.region.keys_of(vnode, self._vnodes) for vnode in asked]
                uprooted = [self.partial.uproot(vnode, self._vnodes) for vnode in asked] if self.partial else []
                outcomes += [OwnersChanged()] if any(uprooted) else []
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
                self._note_moved(action.keys)
                outcomes.append(Took(len(action.keys)))
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
        if self.changes is not None:
            self.changes.cut(self.region.keys_of(0, 1) if whole else None)

    @property
    def is_to_copy(self) -> bool:
        """Whether keys are left to copy for the checkpoint."""
        return self.changes is not None and self.changes.left

    def copy(self, keys_max: int) -> StateChunk | None:
        """The state of the checkpoint's next keys; ``None`` if all are copied."""
        due = NO_KEYS if self.changes is None else self.changes.next(keys_max)
        return self._some_of(due)

    def keep_cut(self) -> None:
        """The checkpoint is in the lake."""
        if self.changes is not None:
            self.changes.keep()

    def drop_cut(self) -> None:
        """The checkpoint is given up."""
        if self.changes is None:
            return
        if self._rules.checkpoints_dropped_have_changed:
            self.changes.drop()
        else:
            self.changes.keep()

    def _copied_before(self, hashes: Hashes) -> list[Outcome]:
        due = NO_KEYS if self.changes is None else self.changes.before(hashes)
        chunk = self._some_of(due)
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

    def _note(self, hashes: Hashes) -> None:
        if self.changes is not None:
            self.changes.note(hashes)
        for log in self.logs.values():
            log.note(hashes)

    def _note_moved(self, keys: Hashes) -> None:
        if self._rules.checkpoints_moved_keys_change:
            self._note(keys)

    # Followers

    def follow(self, feed: FeedId, vnodes: Sequence[VnodeId]) -> None:
        """A worker follows these slices from now on."""
        everything = key_set(*(self.region.keys_of(vnode, self._vnodes) for vnode in vnodes))
        self.logs[feed] = SliceLog(vnodes, self._vnodes, everything)

    def copy_for(self, feed: FeedId, keys_max: int) -> StateChunk | None:
        """The state of the next keys to copy for a follower; ``None`` if all are copied."""
        log = self.logs[feed]
        return self._some_of(log.next(keys_max)) if log.left else None

    def rest_for(self, feed: FeedId) -> StateChunk:
        """At the end of an epoch: the state of all keys that have changed for a follower."""
        return self._chunk_of(self.logs[feed].rest())

    def _save(self, hashes: Hashes) -> None:
        if self.undo is not None:
            self.undo.save(self._chunk_of(self.undo.unsaved(hashes)))

    def put_back(self) -> None:
        """Go back to the state as of the end of the last epoch that is over (replication.put_back)."""
        if self.failure is not None:
            self.region = self._stand_in(0)  # gathered rows will come again
            return
        self.region.drain(ALL_ROWS)  # discard the epoch's results
        for chunk in self.undo.take() if self.undo is not None else ():
            self.region.drop(chunk.keys)
            self._install(chunk.parts)
            for log in self.logs.values() if self._rules.replication_put_back_has_changed else ():
                log.note(chunk.keys)

    def take_over(self, chunk: StateChunk) -> None:
        """This worker keeps these keys from now on."""
        self._install(chunk.parts)
        self._note_moved(chunk.keys)

    def give_up(self, vnodes: Sequence[VnodeId]) -> None:
        """Another worker keeps these slices from now on."""
        for vnode in vnodes:
            if self.partial is not None:
                self.partial.uproot(vnode, self._vnodes)
                self.partial.leave(vnode, self._vnodes)
            else:
                keys = self.region.keys_of(vnode, self._vnodes)
                self.region.drop(keys)
                self._note_moved(keys)

    def succeed(self, old: "Shard") -> None:
        """Go on with the old shard's state, by this shard's map, when all resume."""
        old.catch_up()
        self.region, self.partial, self.cone, self._apply = old.region, old.partial, old.cone, old._apply
        self.changes, self.undo, self.logs, self.failure = old.changes, old.undo, old.logs, old.failure

    # Rows

    @property
    def is_behind(self) -> bool:
        """Whether rows have come that are not applied yet."""
        return isinstance(self.partial, PartialRegion) and self.partial.is_behind

    def _fall_behind(self, epoch: Epoch) -> None:
        """Rows of this epoch have come, and may wait before they are applied."""
        if isinstance(self.partial, PartialRegion) and self.partial.is_behind:
            self._behind_since, self._behind_until = self._behind_since or epoch, epoch
            if self.partial.must_catch_up:
                self.catch_up()

    def catch_up(self, hash64: Hashes | None = None) -> None:
        """Apply the rows that wait; with ``hash64``, only if some of these keys have any."""
        if self._behind_since is None or not isinstance(self.partial, PartialRegion):
            return
        if hash64 is None or self.partial.is_behind_with(hash64):
            since, self._behind_since = self._behind_since, None
            until = self._behind_until
            when = f"epoch {until}" if since == until else f"one of the epochs {since} to {until}"
            with self.contained(when):
                self.partial.catch_up()

    def settle(self, epoch: Epoch, rows_max: int) -> tuple[int, Sequence[Outgoing]]:
        """Take in about ``rows_max`` gathered rows. Returns how many, and about as many result rows to send, of this
        call or earlier ones."""
        before, settled = self.region.gathered, 0
        with self.contained(f"epoch {epoch}"):
            settled = self.region.settle(rows_max)
            return settled, self.region.drain(rows_max)
        self.region = self._stand_in(before)
        return self.region.settle(rows_max), ()

    # Failing

    @property
    def view(self) -> str:
        """The view that the region belongs to."""
        return self._name.partition("/")[0]

    def fail(self, failure: ViewFailure) -> None:
        """Drop the state, and answer only with the error. If there are two failures, the second one counts: it is the
        coordinator's."""
        is_first, self.failure = self.failure is None, failure
        self.region = self._stand_in(self.region.gathered)
        if not is_first:
            return
        self.partial = self.cone = self.changes = self.undo = None
        self.logs.clear()
        self.leaves_keys, self._behind_since = False, None

    def _stand_in(self, gathered: int) -> FailedRegion:
        assert self.failure is not None
        stands_in = self._failed_region(self.failure, gathered)
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
