"""Cone: what one worker keeps of a partial view whose rows are exchanged (document 004; DESIGN section 7).

Theory of operation. A full view spreads each of its regions over all workers, and rows go from one to the other. Of a
partial view a worker keeps just the keys that were looked up at it, and of each region that feeds the last, just the
keys that those *rest on*: all that can put out rows for them. It runs all regions of the view itself, on these keys
alone: a cone, with a key that is looked up at its top. Whatever it needs for that it reads from the lake by key. What a
key rests on is read from the lake, too: its columns are traced back to columns of a table, of which the lake has an
index (``plan/provenance.py``).

A cone does one thing at a time, from one epoch's end to the next:

- *advance* by an epoch: first it reads which keys come to rest on what they have not rested on before, and fills that
  as of the end of the last epoch; then it reads the epoch's rows of all kept keys, and takes them in in one step;
- *fill* keys that were looked up: it reads all that they rest on, and runs that through regions of its own, which are
  then taken into the cone. So rows that a bad one spoils are never taken in.

If an epoch's rows cannot be read, or cannot be taken in, all kept keys are forgotten, and filled when they are looked
up: a lookup of a key with a bad row says so.

Between two steps all kept keys are as of the end of one epoch, and nothing is pending. Rules K1, K2, P5 and P6:
``docs/design/partial.md``.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch, Outgoing
from upriver.engine.keeping import Region, State
from upriver.engine.operators.view import LongRead
from upriver.engine.set_aside import SetAside
from upriver.errors import LakeError, ProtocolError, UpriverError
from upriver.ids import BEGINNING, Epoch
from upriver.partial.cone_shape import ConeShape, Edge
from upriver.partial.cone_state import ConeState
from upriver.partial.presence import Numbers
from upriver.partial.reads import Read
from upriver.partial.rules import UpqueryRules
from upriver.partial.unfillable import Unanswered, Unfillable
from upriver.partial.wanted import Wanted
from upriver.plan.graph import DataflowPlan, RegionPlan
from upriver.state.keysets import NO_KEYS
from upriver.state.vectors import Mask
from upriver.vnodes import vnode_range, vnodes_of
from upriver.xxh64 import Hashes

FILLED_KEYS_MAX = 65_536
"""Keys that are filled in one go; more wait for the next."""

Reads = tuple[Read, ...]
What = TypeVar("What")
Result = TypeVar("Result")
Work = Generator[Reads, Sequence[Batch], Result]
"""A piece of work that is done bit by bit: it asks for rows of the lake, and goes on when they are there."""


class Cone:
    """See the module's docstring. ``work`` and ``proceed`` are called in turn."""

    gathered = unsettled = 0
    """As of :class:`Keeping`: nothing comes over exchange edges."""

    def __init__(
        self, plan: DataflowPlan, build: Callable[[RegionPlan], Region], rules: UpqueryRules, start_at: Epoch
    ) -> None:
        """build: makes an empty region. start_at: the epoch at whose end it begins."""
        self.applied = start_at
        """All kept keys are as of the end of this epoch."""
        self._shape = ConeShape.of(plan)
        self._plans = plan.regions
        self._build = build
        self._rules = rules
        self._begin_empty()
        self._wanted = Wanted()
        self._filling: Hashes = NO_KEYS
        """What was wanted and is being filled, unless it was given up."""
        self._not_before = start_at
        """Keys came here from a worker that has shown them as of this epoch."""
        self._under_way: Work[None] | None = None
        self._filled_last = False
        self._unanswered: list[Unanswered] = []
        self._unfillable = Unfillable()
        self._now = 1
        """The time, in lookups."""
        self._looked_up = 0
        self._missed = 0
        self._evicted = 0

    def _begin_empty(self) -> None:
        """Keep no key."""
        self._state = ConeState(self._shape, self._plans, self._build)
        self._top = self._state.regions[self._shape.top]
        self._presence = self._state.presence[self._shape.top]

    # Work -------------------------------------------------------------------------------------------------------------

    @property
    def puts_off(self) -> bool:
        """Whether keys are to be filled, and nothing is under way."""
        return bool(self._wanted) and self._under_way is None

    def work(self, opened: Epoch, keys_max: int = FILLED_KEYS_MAX) -> Reads | None:
        """What is to be read for the next piece of work; ``None`` if there is none, or one is under way. opened: the
        epoch to come to. keys_max: that may be filled. What needs nothing read is done at once."""
        while self._under_way is None:
            self._under_way = self._next(opened, keys_max)
            if self._under_way is None:
                return None
            reads = self._go_on(lambda work: next(work))
            if reads is not None:
                return reads
        return None

    def proceed(self, rows: Sequence[Batch]) -> Reads | None:
        """Go on with the rows that were asked for last. Returns as :meth:`work`, and ``None`` when the piece of work is
        done."""
        return self._go_on(lambda work: work.send(rows))

    def proceed_without(self, error: UpriverError) -> Reads | None:
        """Go on without the rows that were asked for last: they cannot be read. Returns as :meth:`proceed`."""
        return self._go_on(lambda work: work.throw(error))

    def _go_on(self, step: Callable[[Work[None]], Reads]) -> Reads | None:
        assert self._under_way is not None
        try:
            return step(self._under_way)
        except StopIteration:
            self._under_way = None
            return None

    def _next(self, opened: Epoch, keys_max: int) -> Work[None] | None:
        """Lookups and epochs take turns."""
        is_behind = self.applied < opened
        if self._wanted and keys_max and not (is_behind and self._filled_last):
            self._filled_last = True
            return self._fill_wanted(min(keys_max, FILLED_KEYS_MAX))
        self._filled_last = False
        return self._advance(Epoch(self.applied + 1)) if is_behind else None

    def unanswered(self) -> list[Unanswered]:
        """The keys that could not be filled since the last time: they are missing."""
        found, self._unanswered = self._unanswered, []
        self._unfillable.add(found)
        return found

    def _fill_wanted(self, keys_max: int) -> Work[None]:
        keys = self._wanted.take(keys_max)
        self._filling = keys[~self._state.has(self._shape.top, keys)]
        self._unanswered += yield from self._fill(self._shape.top, self._filling)
        self._filling = NO_KEYS

    def _fill(self, region: str, keys: Hashes) -> Work[list[Unanswered]]:
        """Keep these missing keys (ascending, each once) of a region, as of the last epoch, with all that they rest on.
        Returns those of which that is impossible: because of a bad row, or since the lake cannot be read."""
        if not len(keys):
            return []
        try:
            filled = yield from self._filled(region, keys)
        except LakeError as error:
            return [Unanswered(keys, error)]
        except Exception as error:  # whatever it is, it is about some of these keys
            if len(keys) == 1:
                return [Unanswered.because(keys, error)]
            half = len(keys) // 2
            first = yield from self._fill(region, keys[:half])
            return first + (yield from self._fill(region, keys[half:]))
        kept = np.intersect1d(keys, self._filling) if region == self._shape.top else keys
        self._state.absorb(filled, region, kept, self.applied, self._tick())
        if region == self._shape.top:
            self._unfillable.filled(kept)
        return []

    def _filled(self, region: str, keys: Hashes) -> Work[ConeState]:
        """A cone apart that has these keys of the region, and all that they rest on."""
        plans = self._shape.below(region)
        apart = ConeState(self._shape, plans, self._build)
        apart.put(region, keys, self.applied, self._now)
        for plan in reversed(plans):
            for edge in self._shape.into(plan.name):
                consumers, producers = yield from self._pairs(edge, apart.keys(plan.name), BEGINNING, self.applied)
                apart.rest(edge, consumers, producers)
                apart.put(edge.producer, np.unique(producers), self.applied, self._now)
        rows = yield from self._rows(apart, BEGINNING, self.applied)
        apart.take(rows)
        return apart

    def _advance(self, epoch: Epoch) -> Work[None]:
        """All kept keys are as of the end of this epoch then, which is the next one."""
        try:
            for plan in reversed(self._shape.regions):
                for edge in self._shape.into(plan.name):
                    yield from self._gain(edge, epoch)
            rows = yield from self._rows(self._state, self.applied, epoch)
            self._state.take(rows)
        except Exception:  # whatever it is: to fill a key finds out whether it is about that one
            self._begin_empty()
        self.applied = epoch

    def _gain(self, edge: Edge, epoch: Epoch) -> Work[None]:
        """K1: Keep what keys of the edge's consumer rest on since this epoch, and have not before."""
        keys = self._state.keys(edge.consumer)
        consumers, producers = yield from self._pairs(edge, keys, self.applied, epoch)
        filled = NO_KEYS
        while self._rules.k1_keep_what_keys_rest_on:  # K1
            kept = self._state.has(edge.consumer, consumers)  # some may be evicted meanwhile, and what they rested on
            consumers, producers = consumers[kept], producers[kept]
            lacking = np.unique(producers[~self._state.has(edge.producer, producers)])
            if not len(lacking):
                break
            for bad in (yield from self._fill(edge.producer, lacking)):
                hopeless = np.unique(consumers[np.isin(producers, bad.keys)])
                self._state.forget(edge.consumer, hopeless[self._state.has(edge.consumer, hopeless)])
            filled = np.union1d(filled, lacking)
        self._state.rest(edge, consumers, producers)
        self._state.release(edge.producer, filled)

    # Reading ----------------------------------------------------------------------------------------------------------

    def _pairs(self, edge: Edge, keys: Hashes, after: Epoch, through: Epoch) -> Work[tuple[Hashes, Hashes]]:
        """On what keys of the edge's consumer rest by rows of these epochs."""
        reads = [(trace, Read(trace.channel, keys, after, through)) for trace in edge.traces]
        return edge.pairs((yield from _read(reads)))

    def _rows(self, state: ConeState, after: Epoch, through: Epoch) -> Work[Mapping[tuple[str, int], Batch]]:
        """The rows of these epochs of all keys that are kept."""
        reads: list[tuple[tuple[str, int], Read]] = []
        for plan in self._shape.regions:
            if plan.name in state.regions and plan.lake_ports:
                keys = state.keys(plan.name)
                reads += [((plan.name, port), Read(channel, keys, after, through)) for port, channel in plan.lake_ports]
        return dict((yield from _read(reads)))

    # Lookups ----------------------------------------------------------------------------------------------------------

    def lacks(self, hash64: Hashes) -> bool:
        """Whether some of these keys cannot be shown yet."""
        return self._is_early or not bool(self._state.has(self._shape.top, hash64).all())

    def awaited(self, hash64: Hashes) -> Mask:
        """For which of these keys there is something to wait for before they are asked for again."""
        if self._is_early:
            return np.ones(len(hash64), np.bool_)
        return np.isin(hash64, self._filling) | self._wanted.among(hash64)

    @property
    def _is_early(self) -> bool:
        return self.applied < self._not_before and self._rules.k2_never_back  # K2

    def want(self, hash64: Hashes) -> None:
        """Somebody waits for these keys: those that are missing are to be filled."""
        missing = hash64[~self._state.has(self._shape.top, hash64)]
        self._presence.touch(hash64, self._tick())
        self._missed += len(missing)
        self._wanted.add(missing[~np.isin(missing, self._filling)])

    def wait_until(self, epoch: Epoch) -> None:
        """Show nothing as of an epoch before this one (K2)."""
        self._not_before = Epoch(max(self._not_before, epoch))

    def lookup(self, hash64: Hashes, keys: pa.RecordBatch, rows_max: int | None = None) -> pa.RecordBatch:
        """As :meth:`Region.lookup`, of keys that are all present."""
        self._note_read(hash64)
        return self._top.lookup(hash64, keys, rows_max)

    def lookup_each(
        self, hash64: Hashes, keys: pa.RecordBatch, lengths: Sequence[int], rows_max: int | None = None
    ) -> list[pa.RecordBatch]:
        """As :meth:`Region.lookup_each`, of such keys."""
        self._note_read(hash64)
        return self._top.lookup_each(hash64, keys, lengths, rows_max)

    def long_read(self, hash64: Hashes, keys: pa.RecordBatch) -> LongRead:
        """As :meth:`Region.long_read`, of such keys."""
        self._note_read(hash64)
        return self._top.long_read(hash64, keys)

    def _note_read(self, hash64: Hashes) -> None:
        self._presence.touch(hash64, self._tick())
        self._looked_up += len(hash64)

    def through(self, hash64: Hashes) -> Numbers:
        """Of each of these present keys, the epoch as of whose end it is."""
        return np.full(len(hash64), self.applied, np.int64)

    def scan(self) -> pa.Table:
        """The rows of the present keys, sorted by hash64. Raises RowError if an output expression fails."""
        return self._top.scan()

    def stats(self) -> Mapping[str, int]:
        """As :meth:`PartialRegion.stats`, of all regions together; resting: keys of the regions before the last."""
        of_all = [region.stats() for region in self._state.regions.values()]
        top = self._top.stats()
        present = self._presence.known
        return {
            "rows": top["rows"],
            "keys": top["keys"],
            "held": sum(stats["held"] for stats in of_all),
            "gathered": 0,
            "bytes": sum(stats["bytes"] for stats in of_all) + self._state.nbytes,
            "live_bytes": sum(stats["live_bytes"] for stats in of_all) + self._state.live_nbytes,
            "present": present,
            "pending": len(self._filling),
            "resting": sum(presence.known for presence in self._state.presence.values()) - present,
            "looked_up": self._looked_up,
            "missed": self._missed,
            "evicted": self._evicted,
            "unfillable": len(self._unfillable),
        }

    def _tick(self) -> int:
        self._now += 1
        return self._now

    # Evictions --------------------------------------------------------------------------------------------------------

    def evict(self, keys: Hashes) -> int:
        """Keep these keys (ascending, unique) no more, nor what they alone rest on; returns how many were present. The
        state of what they rested on is to be let go."""
        present = keys[self._state.has(self._shape.top, keys)]
        self._state.forget(self._shape.top, present)
        self._evicted += len(present)
        return len(present)

    def evict_oldest(self, keys_max: int, waiting: Sequence[Hashes]) -> int:
        """As :meth:`PartialRegion.evict_oldest` (P6)."""
        oldest = self._presence.oldest(keys_max, self._now)
        if waiting and self._rules.p6_asked_keys_stay:  # P6
            oldest = np.setdiff1d(oldest, np.concatenate(waiting))
        return self.evict(oldest) if len(oldest) else 0

    @property
    def has_leftovers(self) -> bool:
        """Whether there is anything to let go."""
        return self._state.has_leftovers

    def let_go(self, keys_max: int) -> int:
        """Give back the memory of up to so many keys that are forgotten; returns of how many. 0: there were none."""
        return self._state.let_go(keys_max)

    # Moves: no state of a cone travels; its keys are filled where they go ---------------------------------------------

    def uproot(self, vnode: int, vnodes: int) -> bool:
        """As :meth:`PartialRegion.uproot` (P5)."""
        unsettled = np.union1d(self._wanted.keys, self._filling)
        self._unfillable.leave(vnode, vnodes)
        return self.give_up(unsettled[vnodes_of(unsettled, vnodes) == vnode])

    def give_up(self, keys: Hashes) -> bool:
        """As :meth:`PartialRegion.give_up`."""
        gives_up = bool(np.isin(keys, self._filling).any() or self._wanted.among(keys).any())
        if self._rules.p5_ask_where_the_key_goes:  # P5
            self._filling = np.setdiff1d(self._filling, keys)
            self._wanted.remove(keys)
        return gives_up

    def leave(self, vnode: int, vnodes: int) -> Hashes:
        """Keep the vnode's keys no more. Returns them: they are to be filled where they go."""
        keys = self.keys_of(vnode, vnodes)
        self.evict(keys)
        return keys

    def keys_of(self, vnode: int, vnodes: int) -> Hashes:
        """The hash64 of all present keys of that vnode, ascending. vnodes: the lake's."""
        return np.sort(self._presence.present(*vnode_range(vnode, vnodes)))

    def drop(self, keys: Hashes) -> None:
        """These keys are missing."""
        self._state.forget(self._shape.top, keys)

    def collect(self, keys: Hashes) -> State:
        raise ProtocolError(f"view {self._shape.view!r}: state of {len(keys)} keys was to travel")

    def install(self, state: State) -> None:
        raise ProtocolError(f"view {self._shape.view!r}: state has come, which never travels")

    # What a region fed by others would do: nothing comes --------------------------------------------------------------

    def left_out(self) -> Sequence[SetAside]:
        return ()

    def settle(self, rows_max: int) -> int:
        return 0

    def drain(self, rows_max: int) -> Sequence[Outgoing]:
        return ()


def _read(reads: Sequence[tuple[What, Read]]) -> Work[list[tuple[What, Batch]]]:
    """The rows of each, if it is of any keys."""
    asked = [(what, read) for what, read in reads if len(read.keys)]
    if not asked:
        return []
    rows = yield tuple(read for _, read in asked)
    return [(what, batch) for (what, _), batch in zip(asked, rows, strict=True)]
