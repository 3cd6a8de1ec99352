"""Cone: what one worker keeps of a partial view whose rows are exchanged (docs/internals/partial.md).

Theory of operation. A full view spreads each of its regions over all workers, and rows go from one to the other. A
worker keeps only those keys of a partial view that were looked up at it. In each region that feeds the last one, it
keeps only the keys that those *rest on*: all keys that can put out rows for them. The worker runs all regions of the
view itself, on these keys alone: a cone, with a looked-up key at its top. It reads whatever it needs from the lake by
key. It also reads from the lake what a key rests on: the key's columns are traced back to columns of a table that the
lake indexes (``plan/provenance.py``).

A cone has two kinds of tasks:

- *advance* by an epoch: first it reads which keys come to rest on keys that they did not rest on before, and fills
  those as of the end of the last epoch. Then it reads the epoch's rows of all kept keys, and takes them in. If they are
  many, it does so some at a time: lookups of keys that they may change wait, others are answered;
- *fill* keys that were looked up: it reads all that they rest on, and runs that through separate regions. So rows that
  a bad row spoils are never taken in. The separate regions take many rows in some at a time, while the cone answers
  lookups and advances. When they have all rows, they catch up with the cone, and the filled keys *join* it.

A task begins beside another one only if that is long: if it reads many rows, or takes many in. One epoch is
taken in at a time, and none while keys join.

If an epoch's rows cannot be read or taken in, the cone forgets all kept keys. It fills each again at its next lookup;
a lookup of a key with a bad row fails with that row's error.

Between two epochs all kept keys are as of the end of the same epoch, and nothing is pending. Rules
cones.whole_epochs, cones.keep_what_keys_rest_on, cones.never_back, cones.catch_up_first, cones.join_between_epochs,
partial.ask_where_the_key_goes and partial.asked_keys_stay: ``docs/internals/partial.md``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from upriver.engine.bad_rows import SetAside
from upriver.engine.batch import Batch, Outgoing
from upriver.engine.operators.view import LongRead
from upriver.engine.region import FullRegionState, State
from upriver.errors import LakeError, ProtocolError, UpriverError
from upriver.hashing import Hashes
from upriver.ids import BEGINNING, Epoch
from upriver.partial.cone_state import ConeEdge, ConeShape, ConeState, RowsAt
from upriver.partial.cone_tasks import ConeTask, ConeTasks, Fill, NextTurn, Work
from upriver.partial.partial_region import ANSWER_ROWS_MAX, KeysToRead, UnansweredKeys, Unfillable, WantedKeys
from upriver.partial.presence import LookupClock, Numbers, Presence
from upriver.partial.rules import UpqueryRules
from upriver.plan.plan import DataflowPlan, RegionPlan
from upriver.state.vectors import NO_KEYS, Mask, Positions, contains
from upriver.vnodes import vnode_range, vnodes_of

FILLED_KEYS_MAX = 65_536
"""Keys that one fill takes; more wait for the next fill."""


@dataclass(frozen=True, slots=True)
class ConeReads:
    """Rows that a task needs. task: its number."""

    task: int
    reads: tuple[KeysToRead, ...]


What = TypeVar("What")


class Cone:
    """See the module's docstring. ``work`` begins tasks; ``proceed`` and ``take_in`` go on with them."""

    gathered = waiting = unsettled = 0
    """As in :class:`RegionState`: nothing comes over exchange edges."""

    def __init__(
        self, plan: DataflowPlan, build: Callable[[RegionPlan], FullRegionState], rules: UpqueryRules, start_at: Epoch
    ) -> None:
        """build: makes an empty region. start_at: the epoch at whose end it begins."""
        self._shape = ConeShape.of(plan)
        self._plans = plan.regions
        self._build = build
        self._rules = rules
        self._state = self._empty(start_at)
        self._wanted = WantedKeys()
        self._not_before = start_at
        """Another worker has shown keys of this cone as of this epoch."""
        self._tasks = ConeTasks()
        self._changing = NO_KEYS
        """The keys that the rest of an epoch may change: a lookup waits for it."""
        self._unanswered: list[UnansweredKeys] = []
        self._unfillable = Unfillable()
        self._clock = LookupClock()

    def _empty(self, through: Epoch) -> ConeState:
        return ConeState(self._shape, self._plans, self._build, through)

    @property
    def applied(self) -> Epoch:
        """All kept keys are as of the end of this epoch."""
        return self._state.through

    @property
    def _top(self) -> FullRegionState:
        return self._state.regions[self._shape.top]

    @property
    def _presence(self) -> Presence:
        return self._state.presence[self._shape.top]

    # Tasks ------------------------------------------------------------------------------------------------------------

    @property
    def puts_off(self) -> bool:
        """Whether keys wait to be filled, and a fill may begin."""
        return bool(self._wanted) and self._tasks.may_begin and self._tasks.has_room

    @property
    def done(self) -> int:
        """How many tasks have ended."""
        return self._tasks.done

    def overtake(self, number: int) -> None:
        """Reading for this task takes long: others may begin beside it."""
        self._tasks.overtake(number)

    def work(self, opened: Epoch, keys_max: int = FILLED_KEYS_MAX) -> list[ConeReads]:
        """Begin the tasks that may begin, and go on with those whose turn it is. Returns what they need to read.

        opened: the epoch to advance to. keys_max: how many keys may be filled. Tasks that read nothing are done at
        once.
        """
        found: list[ConeReads] = []
        while (task := self._next(opened, keys_max)) is not None:
            found += self._reads_of(task, task.go_on(None), ANSWER_ROWS_MAX)
        return found

    def proceed(self, number: int, rows: Sequence[Batch], rows_max: int = ANSWER_ROWS_MAX) -> list[ConeReads]:
        """Go on with the rows that a task needs. rows_max: how many to take in now; ``take_in`` takes in the rest.
        Returns what the task needs to read next."""
        task = self._tasks.of_number(number)
        return self._reads_of(task, task.go_on(rows), rows_max)

    def proceed_without(self, number: int, error: UpriverError) -> list[ConeReads]:
        """As :meth:`proceed`: the rows cannot be read."""
        task = self._tasks.of_number(number)
        return self._reads_of(task, task.go_on_without(error), ANSWER_ROWS_MAX)

    @property
    def unfilled(self) -> int:
        """About how many rows ``take_in`` would take in."""
        return sum(task.unfilled for task in self._tasks)

    def take_in(self, rows_max: int) -> list[ConeReads]:
        """Take in about so many rows for the task with the fewest: short fills overtake long ones. Returns as
        :meth:`proceed`."""
        task = min((task for task in self._tasks if task.unfilled), key=lambda task: task.unfilled)
        return self._reads_of(task, task.go_on(rows_max), 0)

    def _reads_of(self, task: ConeTask, goes_on: bool, rows_max: int) -> list[ConeReads]:
        """What a task needs to read that has just gone on. rows_max: how many rows it may still take in."""
        while goes_on and task.unfilled and rows_max > 0:
            rows_max, goes_on = 0, task.go_on(rows_max)
        if not goes_on:
            self._tasks.end(task)
            return []
        task.is_long |= task.unfilled > 0
        return [ConeReads(task.number, task.request)] if isinstance(task.request, tuple) else []

    def _next(self, opened: Epoch, keys_max: int) -> ConeTask | None:
        """A task to begin, or whose turn it is. Epochs and fills take turns."""
        tasks = self._tasks
        may_advance = self.applied < opened and tasks.takes_none_in
        if (waiting := tasks.waiting_fill(may_advance)) is not None:
            return waiting
        if not tasks.may_begin:
            return None
        if tasks.has_room and tasks.fills_have_turn(may_advance):
            task = self._next_fill(min(keys_max, FILLED_KEYS_MAX))
            if task is not None:
                return task
        tasks.pass_turn()
        return tasks.begin_epoch(self._advance_all(opened)) if may_advance else None

    def _next_fill(self, keys_max: int) -> ConeTask | None:
        """A fill to begin, if keys are wanted that are not kept."""
        while self._wanted and keys_max:
            keys = self._wanted.take(keys_max)
            fill = Fill(keys[~self._state.has(self._shape.top, keys)])
            if len(fill.keys):
                return self._tasks.begin_fill(fill, self._fill_wanted(fill))
        return None

    def unanswered(self) -> list[UnansweredKeys]:
        """The keys that could not be filled since the last call: they are missing."""
        found, self._unanswered = self._unanswered, []
        self._unfillable.add(found)
        return found

    # Fills ------------------------------------------------------------------------------------------------------------

    def _fill_wanted(self, fill: Fill) -> Work[None]:
        unanswered = yield from self._in_halves(fill.keys, lambda keys: self._fill_beside(fill, keys))
        self._unanswered += unanswered  # as it is now: ``+= yield from`` would add to the list of the fill's beginning

    def _in_halves(self, keys: Hashes, fill_all: Callable[[Hashes], Work[None]]) -> Work[list[UnansweredKeys]]:
        """Fill these missing keys (ascending, each once); in halves, if they cannot all be filled.

        Returns the keys that cannot be filled, because of a bad row or because the lake cannot be read.
        """
        if not len(keys):
            return []
        try:
            yield from fill_all(keys)
        except LakeError as error:
            return [UnansweredKeys(keys, error)]
        except Exception as error:  # of any class: it is about some of these keys
            if len(keys) == 1:
                return [UnansweredKeys.because(keys, error)]
            half = len(keys) // 2
            first = yield from self._in_halves(keys[:half], fill_all)
            return first + (yield from self._in_halves(keys[half:], fill_all))
        return []

    def _fill_beside(self, fill: Fill, keys: Hashes) -> Work[None]:
        """Fill these keys of the last region, while the cone advances. Then they join it."""
        fill.apart = self._apart(self._shape.top, keys, self.applied)
        yield from self._fill_apart(fill.apart, self._shape.top)
        yield from self._catch_up(fill.apart)
        while self._rules.cones_join_between_epochs and not self._tasks.takes_none_in:
            yield NextTurn()
        with self._tasks.joining(fill):
            yield from self._catch_up(fill.apart)
            self._join(fill.apart, np.intersect1d(keys, fill.keys))

    def _catch_up(self, apart: ConeState) -> Work[None]:
        """cones.catch_up_first: take in the epochs that the cone has taken in since the fill began."""
        while apart.through < self.applied and self._rules.cones_catch_up_first:
            yield from self._advance(apart, self.applied)

    def _join(self, apart: ConeState, keys: Hashes) -> None:
        """These keys were filled, and are kept from now on. The smaller state is copied to the larger."""
        top = self._shape.top
        kept = keys[apart.has(top, keys)]
        apart.presence[top].touch(kept, self._clock.tick())
        if apart.size > self._state.size and apart.regions.keys() == self._state.regions.keys():
            apart.forget(top, np.setdiff1d(apart.keys(top), kept))
            apart.absorb(self._state, top, self._state.keys(top))
            self._state = apart
        else:
            self._state.absorb(apart, top, kept)
        self._unfillable.filled(kept)

    def _apart(self, region: str, keys: Hashes, through: Epoch) -> ConeState:
        """A separate cone for these keys of the region. It has no rows."""
        apart = ConeState(self._shape, self._shape.below(region), self._build, through)
        apart.put(region, keys, self._clock.now)
        return apart

    def _fill_apart(self, apart: ConeState, region: str) -> Work[None]:
        """Have a separate cone take in all rows of its keys of the region, and of all that they rest on."""
        plans = self._shape.below(region)
        for plan in reversed(plans):
            for edge in self._shape.into(plan.name):
                consumers, producers = yield from self._pairs(edge, apart.keys(plan.name), BEGINNING, apart.through)
                apart.rest(edge, consumers, producers)
                apart.put(edge.producer, np.unique(producers), self._clock.now)
        rows = yield from self._rows(apart, BEGINNING, apart.through)
        yield from apart.take(rows, apart.through)

    # Epochs -----------------------------------------------------------------------------------------------------------

    def _advance_all(self, epoch: Epoch) -> Work[None]:
        """Bring all kept keys to the end of this epoch, which is the next one."""
        try:
            yield from self._advance(self._state, epoch)
        except Exception:  # of any class: filling a key shows whether the error is that key's
            self._state = self._empty(epoch)

    def _advance(self, state: ConeState, epoch: Epoch) -> Work[None]:
        """Bring all keys of a state to the end of this epoch."""
        for plan in reversed(self._shape.regions):
            for edge in self._shape.into(plan.name):
                yield from self._gain(state, edge, epoch)
        rows = yield from self._rows(state, state.through, epoch)
        if state is self._state:
            yield from self._take_epoch(rows, epoch)
        else:
            yield from state.take(rows, epoch)

    def _take_epoch(self, rows: RowsAt, epoch: Epoch) -> Work[None]:
        """cones.whole_epochs: take in an epoch's rows of all kept keys. Most epochs are through with the first lot."""
        work = self._state.take(rows, epoch)
        try:
            left = work.send((yield next(work)))
            self._changing = self._state.changed_by(rows)
            while True:
                left = work.send((yield left))
        except StopIteration:
            return
        finally:
            self._changing = NO_KEYS

    def _gain(self, state: ConeState, edge: ConeEdge, epoch: Epoch) -> Work[None]:
        """cones.keep_what_keys_rest_on: keep what keys of the edge's consumer come to rest on in this epoch."""
        keys = state.keys(edge.consumer)
        consumers, producers = yield from self._pairs(edge, keys, state.through, epoch)
        filled = NO_KEYS
        while self._rules.cones_keep_what_keys_rest_on:
            kept = state.has(edge.consumer, consumers)  # some may be evicted meanwhile, with what they rested on
            consumers, producers = consumers[kept], producers[kept]
            lacking = np.unique(producers[~state.has(edge.producer, producers)])
            if not len(lacking):
                break
            for bad in (
                yield from self._in_halves(lacking, lambda some: self._fill_producers(state, edge.producer, some))
            ):
                hopeless = np.unique(consumers[np.isin(producers, bad.keys)])
                state.forget(edge.consumer, hopeless[state.has(edge.consumer, hopeless)])
            filled = np.union1d(filled, lacking)
        state.rest(edge, consumers, producers)
        state.release(edge.producer, filled)

    def _fill_producers(self, state: ConeState, region: str, keys: Hashes) -> Work[None]:
        """Fill keys of a region that kept keys come to rest on, as of the end of the last epoch."""
        apart = self._apart(region, keys, state.through)
        yield from self._fill_apart(apart, region)
        state.absorb(apart, region, keys)

    # Reading ----------------------------------------------------------------------------------------------------------

    def _pairs(self, edge: ConeEdge, keys: Hashes, after: Epoch, through: Epoch) -> Work[tuple[Hashes, Hashes]]:
        """The pairs that rows of these epochs give to keys of the edge's consumer."""
        reads = [(trace, KeysToRead(trace.channel, keys, after, through)) for trace in edge.traces]
        return edge.pairs((yield from _read(reads)))

    def _rows(self, state: ConeState, after: Epoch, through: Epoch) -> Work[Mapping[tuple[str, int], Batch]]:
        """The rows of these epochs of all keys that are kept."""
        reads: list[tuple[tuple[str, int], KeysToRead]] = []
        for plan in self._shape.regions:
            if plan.name in state.regions and plan.lake_ports:
                keys = state.keys(plan.name)
                reads += [
                    ((plan.name, port), KeysToRead(channel, keys, after, through)) for port, channel in plan.lake_ports
                ]
        return dict((yield from _read(reads)))

    # Lookups ----------------------------------------------------------------------------------------------------------

    def lacks(self, hash64: Hashes) -> bool:
        """Whether some of these keys cannot be shown yet."""
        return not bool(self.present(hash64).all())

    def present(self, hash64: Hashes) -> Mask:
        """Which of these keys can be shown."""
        if self._is_early:
            return np.zeros(len(hash64), np.bool_)
        return self._state.has(self._shape.top, hash64) & ~self._changes(hash64)

    def awaited(self, hash64: Hashes) -> Mask:
        """Which of these keys a lookup must wait for before it asks again."""
        if self._is_early:
            return np.ones(len(hash64), np.bool_)
        return np.isin(hash64, self._tasks.filling) | self._wanted.among(hash64) | self._changes(hash64)

    def _changes(self, hash64: Hashes) -> Mask:
        """Which of these keys may have a part of an epoch's rows."""
        return contains(self._changing, hash64) if self._rules.cones_whole_epochs else np.zeros(len(hash64), np.bool_)

    @property
    def _is_early(self) -> bool:
        return self.applied < self._not_before and self._rules.cones_never_back

    def want(self, hash64: Hashes) -> None:
        """A lookup waits for these keys: fill those that are missing."""
        missing = hash64[~self._state.has(self._shape.top, hash64)]
        self._clock.want(self._presence, hash64, len(missing))
        self._wanted.add(missing[~np.isin(missing, self._tasks.filling)])

    def wait_until(self, epoch: Epoch) -> None:
        """Show nothing as of an epoch before this one (cones.never_back)."""
        self._not_before = Epoch(max(self._not_before, epoch))

    def lookup(self, hash64: Hashes, keys: pa.RecordBatch, rows_max: int | None = None) -> pa.RecordBatch:
        """As :meth:`Region.lookup`, for keys that are all present."""
        self._clock.read(self._presence, hash64)
        return self._top.lookup(hash64, keys, rows_max)

    def lookup_each(
        self, hash64: Hashes, keys: pa.RecordBatch, ends: Positions, rows_max: int | None = None
    ) -> tuple[pa.RecordBatch, Positions]:
        """As :meth:`Region.lookup_each`, for such keys."""
        self._clock.read(self._presence, hash64)
        return self._top.lookup_each(hash64, keys, ends, rows_max)

    def long_read(self, hash64: Hashes, keys: pa.RecordBatch) -> LongRead:
        """As :meth:`Region.long_read`, for such keys."""
        self._clock.read(self._presence, hash64)
        return self._top.long_read(hash64, keys)

    def through(self, hash64: Hashes) -> Numbers:
        """For each of these present keys, the epoch that it reflects to the end."""
        return np.full(len(hash64), self.applied, np.int64)

    def scan(self) -> pa.Table:
        """The rows of the present keys, sorted by hash64. Raises RowError if an output expression fails."""
        return self._top.scan()

    def stats(self) -> Mapping[str, int]:
        """As :meth:`PartialRegion.stats`, of all regions together; resting: keys of the regions before the last."""
        top, kept = self._top.stats(), self._state.stats()
        beside = [apart.stats() for apart in self._tasks.apart]
        present = self._presence.known
        return {
            "rows": top["rows"],
            "keys": top["keys"],
            "held": kept["held"],
            "gathered": 0,
            "bytes": kept["bytes"] + sum(stats["bytes"] for stats in beside),
            "live_bytes": kept["live_bytes"] + sum(stats["live_bytes"] for stats in beside),
            "present": present,
            "pending": len(self._tasks.filling),
            "resting": sum(presence.known for presence in self._state.presence.values()) - present,
            **self._clock.stats(),
            "unfillable": len(self._unfillable),
        }

    # Evictions --------------------------------------------------------------------------------------------------------

    def evict(self, keys: Hashes) -> int:
        """Evict these keys (ascending, unique), and what only they rest on; returns how many were present.

        ``drop_forgotten`` drops the state of what they rested on.
        """
        present = keys[self._state.has(self._shape.top, keys)]
        self._state.forget(self._shape.top, present)
        self._clock.evict(len(present))
        return len(present)

    def evict_oldest(self, keys_max: int, waiting: Sequence[Hashes]) -> int:
        """As :meth:`PartialRegion.evict_oldest` (partial.asked_keys_stay)."""
        stay = waiting if self._rules.partial_asked_keys_stay else ()
        oldest = self._clock.oldest(self._presence, keys_max, stay)
        return self.evict(oldest) if len(oldest) else 0

    @property
    def has_leftovers(self) -> bool:
        """Whether ``drop_forgotten`` has anything to drop."""
        return self._state.has_leftovers

    def drop_forgotten(self, keys_max: int) -> int:
        """Free the memory of up to ``keys_max`` forgotten keys; returns their number, 0 if there are none."""
        return self._state.drop_forgotten(keys_max)

    # Moves: a cone sends no state; the new owner fills the keys -------------------------------------------------------

    def give_up_vnode(self, vnode: int, vnodes: int) -> bool:
        """As :meth:`PartialRegion.give_up_vnode` (partial.ask_where_the_key_goes)."""
        unsettled = np.union1d(self._wanted.keys, self._tasks.filling)
        self._unfillable.leave(vnode, vnodes)
        return self.give_up(unsettled[vnodes_of(unsettled, vnodes) == vnode])

    def give_up(self, keys: Hashes) -> bool:
        """As :meth:`PartialRegion.give_up`."""
        gives_up = bool(np.isin(keys, self._tasks.filling).any() or self._wanted.among(keys).any())
        if self._rules.partial_ask_where_the_key_goes:
            self._tasks.give_up(keys)
            self._wanted.remove(keys)
        return gives_up

    def leave(self, vnode: int, vnodes: int) -> Hashes:
        """Evict the vnode's keys. Returns them: their new owner fills them."""
        keys = self.keys_of(vnode, vnodes)
        self.evict(keys)
        return keys

    def keys_of(self, vnode: int, vnodes: int) -> Hashes:
        """The hash64 of all present keys of that vnode, ascending. vnodes: the lake's."""
        return np.sort(self._presence.present(*vnode_range(vnode, vnodes)))

    def drop(self, keys: Hashes) -> None:
        """Forget these keys: they are missing."""
        self._state.forget(self._shape.top, keys)

    def collect(self, keys: Hashes) -> State:
        raise ProtocolError(f"view {self._shape.view!r}: state of {len(keys)} keys was to travel")

    def install(self, state: State) -> None:
        raise ProtocolError(f"view {self._shape.view!r}: state has come, which never travels")

    # For rows from other workers, which never come --------------------------------------------------------------------

    def due(self, clock: int) -> Hashes:
        """No view that depends on the clock is a cone."""
        return NO_KEYS

    def advance(self, clock: int) -> None:
        pass

    def show_due(self) -> None:
        pass

    def left_out(self) -> Sequence[SetAside]:
        return ()

    def settle(self, rows_max: int) -> int:
        return 0

    def drain(self, rows_max: int) -> Sequence[Outgoing]:
        return ()


def _read(reads: Sequence[tuple[What, KeysToRead]]) -> Work[list[tuple[What, Batch]]]:
    """The rows of each read that has any keys."""
    asked = [(what, read) for what, read in reads if len(read.keys)]
    if not asked:
        return []
    rows = yield tuple(read for _, read in asked)
    return [(what, batch) for (what, _), batch in zip(asked, rows, strict=True)]
