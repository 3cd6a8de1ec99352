"""Cone: what one worker keeps of a partial view whose rows are exchanged (docs/internals/partial.md).

Theory of operation. A full view spreads each of its regions over all workers, and rows go from one to the other. A
worker keeps only those keys of a partial view that were looked up at it. In each region that feeds the last one, it
keeps only the keys that those *rest on*: all keys that can put out rows for them. The worker runs all regions of the
view itself, on these keys alone: a cone, with a looked-up key at its top. It reads whatever it needs from the lake by
key. It also reads from the lake what a key rests on: the key's columns are traced back to columns of a table that the
lake indexes (``plan/provenance.py``).

A cone does one thing at a time, from one epoch's end to the next:

- *advance* by an epoch: first it reads which keys come to rest on keys that they did not rest on before, and fills
  those as of the end of the last epoch. Then it reads the epoch's rows of all kept keys, and takes them in in one step;
- *fill* keys that were looked up: it reads all that they rest on, and runs that through separate regions. The cone then
  absorbs these. So rows that a bad row spoils are never taken in.

If an epoch's rows cannot be read or taken in, the cone forgets all kept keys. It fills each again at its next lookup;
a lookup of a key with a bad row fails with that row's error.

Between two steps all kept keys are as of the end of the same epoch, and nothing is pending. Rules
cones.keep_what_keys_rest_on, cones.never_back, partial.ask_where_the_key_goes and partial.asked_keys_stay:
``docs/internals/partial.md``.

ConeShape: which region feeds which in a view whose rows are exchanged, and how keys are traced back;
``docs/internals/partial.md``.

Supports: which keys of a producer region the kept keys of its consumer rest on, for one exchange edge.

A pair says that rows of the producer's key may go to the consumer's key. Some pairs may be out of date. No pair of a
kept consumer key may be missing.

ConeState: regions of a view at one worker, each with its kept keys, and why they are kept.

A key of the view's last region is kept because a lookup has asked for it. A key of any other region is kept because
kept keys of its consumers rest on it. Rows of other keys are dropped before any operator sees them.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
import pyarrow as pa

from upriver.engine.bad_rows import SetAside
from upriver.engine.batch import Batch, Outgoing
from upriver.engine.keeping import ALL_ROWS, FullRegionState, State
from upriver.engine.operators.view import LongRead
from upriver.errors import LakeError, ProtocolError, UpriverError
from upriver.hashing import Hashes, hash64
from upriver.ids import BEGINNING, Epoch
from upriver.partial.partial_region import KeysToRead, UnansweredKeys, Unfillable, WantedKeys
from upriver.partial.presence import PRESENT, Numbers, Presence
from upriver.partial.rules import UpqueryRules
from upriver.plan.plan import DataflowPlan, ExchangeEdge, RegionPlan
from upriver.plan.provenance import KeyTrace, traces
from upriver.state.vectors import NO_KEYS, Mask, Positions, contains, spread
from upriver.vnodes import vnode_range, vnodes_of


@dataclass(frozen=True, slots=True)
class ConeEdge:
    """An exchange edge, from one region of the cone to another. traces: of the consumer's keys."""

    consumer: str
    port: int
    producer: str
    traces: tuple[KeyTrace, ...]

    def pairs(self, rows: Sequence[tuple[KeyTrace, Batch]]) -> tuple[Hashes, Hashes]:
        """Of rows that were read along a trace each: the consumer's key, and the producer's key that it rests on."""
        none: Hashes = np.empty(0, np.uint64)
        consumers = [batch.hash64 for _, batch in rows]
        producers = [
            hash64([batch.rows.column(column) for column in trace.producer_key], len(batch)) for trace, batch in rows
        ]
        return np.concatenate([none, *consumers]), np.concatenate([none, *producers])


@dataclass(frozen=True, slots=True)
class ConeShape:
    """regions: each after those that feed it; the last one has the view's store. edges: all exchange edges."""

    view: str
    regions: tuple[RegionPlan, ...]
    edges: tuple[ConeEdge, ...]

    @classmethod
    def of(cls, plan: DataflowPlan) -> Self:
        """Raises ProtocolError for a view whose keys cannot be traced: such a view must be full."""
        edges = [
            ConeEdge(region.name, port, entry.edge.region, _traced(plan, region.name, port))
            for region in plan.regions
            for port, entry in enumerate(region.inputs)
            if isinstance(entry.edge, ExchangeEdge)
        ]
        return cls(plan.name, plan.regions, tuple(edges))

    @property
    def top(self) -> str:
        """The region whose keys lookups ask for."""
        return self.regions[-1].name

    def into(self, region: str) -> tuple[ConeEdge, ...]:
        return tuple(edge for edge in self.edges if edge.consumer == region)

    def out_of(self, region: str) -> tuple[ConeEdge, ...]:
        return tuple(edge for edge in self.edges if edge.producer == region)

    def below(self, region: str) -> tuple[RegionPlan, ...]:
        """This region and all that feed it, each after those that feed it."""
        names = {region}
        for plan in reversed(self.regions):
            if plan.name in names:
                names |= {edge.producer for edge in self.into(plan.name)}
        return tuple(plan for plan in self.regions if plan.name in names)


def _traced(plan: DataflowPlan, region: str, port: int) -> tuple[KeyTrace, ...]:
    found = traces(plan, region, port)
    if found is None:
        raise ProtocolError(f"view {plan.name!r}: the keys of region {region!r} cannot be traced at port {port}")
    return found


class Supports:
    """Pairs of hash64. Adding new pairs copies all pairs. Dropping only marks pairs, and now and then copies the
    rest."""

    __slots__ = ("_consumers", "_counts", "_gone", "_held", "_known", "_producers")

    def __init__(self) -> None:
        self._consumers, self._producers = NO_KEYS, NO_KEYS
        """The pairs, each once, sorted by consumer, then by producer."""
        self._gone = np.zeros(0, np.bool_)
        """Which of the pairs were dropped."""
        self._held = 0
        """How many pairs were not dropped."""
        self._known, self._counts = NO_KEYS, np.zeros(0, np.int64)
        """The producers, ascending, each once, and how many pairs each is in: 0 if all were dropped."""

    def __len__(self) -> int:
        return self._held

    @property
    def nbytes(self) -> int:
        arrays = (self._consumers, self._producers, self._gone, self._known, self._counts)
        return sum(array.nbytes for array in arrays)

    def add(self, consumers: Hashes, producers: Hashes) -> None:
        """Add these pairs; some may be there already, or be named twice."""
        consumers, producers = _distinct(consumers, producers)
        places = self._places_of(consumers, producers)
        is_there = self._has(places, consumers, producers)
        again = places[is_there][self._gone[places[is_there]]]
        self._gone[again] = False
        self._held += len(again)
        self._count(self._producers[again])
        if not is_there.all():  # in most epochs all are: then only looking them up is paid for
            self._insert(places[~is_there], consumers[~is_there], producers[~is_there])

    def _insert(self, places: Positions, consumers: Hashes, producers: Hashes) -> None:
        self._consumers = np.insert(self._consumers, places, consumers)
        self._producers = np.insert(self._producers, places, producers)
        self._gone = np.insert(self._gone, places, False)
        self._held += len(places)
        self._count(producers)

    def _places_of(self, consumers: Hashes, producers: Hashes) -> Positions:
        """The position of each of these pairs, or where to insert it: one binary search for all at once."""
        first = self._consumers.searchsorted(consumers)
        end = self._consumers.searchsorted(consumers, "right")
        while (first < end).any():
            middle = (first + end) // 2
            is_open = first < end
            is_after = is_open & (self._producers[np.minimum(middle, len(self._producers) - 1)] < producers)
            first = np.where(is_after, middle + 1, first)
            end = np.where(is_open & ~is_after, middle, end)
        return first

    def _has(self, places: Positions, consumers: Hashes, producers: Hashes) -> Mask:
        """Which of these pairs are there, at their places, dropped or not."""
        if not len(self._consumers):
            return np.zeros(len(consumers), np.bool_)
        at = np.minimum(places, len(self._consumers) - 1)
        mask: Mask = (self._consumers[at] == consumers) & (self._producers[at] == producers)
        return mask

    def _count(self, producers: Hashes) -> None:
        """Each mention of a producer counts one more pair for it."""
        found, counts = np.unique(producers, return_counts=True)
        places = self._known.searchsorted(found)
        is_known = contains(self._known, found)
        self._counts[places[is_known]] += counts[is_known]
        if not is_known.all():
            self._counts = np.insert(self._counts, places[~is_known], counts[~is_known])
            self._known = np.insert(self._known, places[~is_known], found[~is_known])

    def rests_on(self, producers: Hashes) -> Mask:
        """Which of these producers some consumer rests on."""
        if not len(self._known):
            return np.zeros(len(producers), np.bool_)
        nearest = np.minimum(self._known.searchsorted(producers), len(self._known) - 1)
        mask: Mask = (self._known[nearest] == producers) & (self._counts[nearest] > 0)
        return mask

    def consumers_of(self, producers: Hashes) -> Hashes:
        """The consumers that rest on any of these producers, ascending, each once. Looks at all pairs."""
        return np.unique(self._consumers[np.isin(self._producers, producers) & ~self._gone])

    def of(self, consumers: Hashes) -> tuple[Hashes, Hashes]:
        """The pairs of these consumers (ascending, each once)."""
        places = self._pairs_of(consumers)
        return self._consumers[places], self._producers[places]

    def drop(self, consumers: Hashes) -> Hashes:
        """Drop all pairs of these consumers (ascending, each once). Returns the producers that no consumer rests on any
        more, ascending."""
        places = self._pairs_of(consumers)
        lost, counts = np.unique(self._producers[places], return_counts=True)
        self._gone[places] = True
        self._held -= len(places)
        at = self._known.searchsorted(lost)
        self._counts[at] -= counts
        idle: Hashes = lost[self._counts[at] == 0]
        if 2 * self._held < len(self._gone):
            self._forget_dropped()
        return idle

    def _forget_dropped(self) -> None:
        self._consumers, self._producers = self._consumers[~self._gone], self._producers[~self._gone]
        self._gone = np.zeros(self._held, np.bool_)
        is_held = self._counts > 0
        self._known, self._counts = self._known[is_held], self._counts[is_held]

    def _pairs_of(self, consumers: Hashes) -> Positions:
        """The places of the pairs of these consumers that were not dropped."""
        starts = self._consumers.searchsorted(consumers)
        places = spread(starts, self._consumers.searchsorted(consumers, "right") - starts)
        return places[~self._gone[places]]


def _distinct(consumers: Hashes, producers: Hashes) -> tuple[Hashes, Hashes]:
    """Each pair once, sorted by consumer, then by producer."""
    order = np.lexsort((producers, consumers))
    consumers, producers = consumers[order], producers[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (consumers[1:] != consumers[:-1]) | (producers[1:] != producers[:-1])
    return consumers[is_first], producers[is_first]


RowsAt = Mapping[tuple[str, int], Batch]
"""Rows of lake edges, by region and port."""


class ConeState:
    """Some regions of a view: a region and all that feed it, or all."""

    def __init__(
        self, shape: ConeShape, plans: Sequence[RegionPlan], build: Callable[[RegionPlan], FullRegionState]
    ) -> None:
        """plans: of the regions that are kept. build: makes an empty one."""
        self.regions = {plan.name: build(plan) for plan in plans}
        """Each after those that feed it."""
        self.presence = {plan.name: Presence() for plan in plans}
        self._shape = shape
        self._lake_ports = {plan.name: [port for port, _ in plan.lake_ports] for plan in plans}
        self._supports = {edge: Supports() for edge in shape.edges if edge.consumer in self.regions}
        self._leftovers: dict[str, list[Hashes]] = {plan.name: [] for plan in plans}
        """By region, keys that are forgotten. Their state is still there, unless they were kept again since."""

    @property
    def nbytes(self) -> int:
        return sum(presence.nbytes for presence in self.presence.values()) + self._beside_nbytes

    @property
    def live_nbytes(self) -> int:
        return sum(presence.live_nbytes for presence in self.presence.values()) + self._beside_nbytes

    @property
    def _beside_nbytes(self) -> int:
        leftovers = sum(keys.nbytes for lots in self._leftovers.values() for keys in lots)
        return leftovers + sum(supports.nbytes for supports in self._supports.values())

    # Keys -------------------------------------------------------------------------------------------------------------

    def keys(self, region: str) -> Hashes:
        """The kept keys of a region, ascending."""
        return np.sort(self.presence[region].present())

    def has(self, region: str, keys: Hashes) -> Mask:
        """Which of these keys are kept."""
        return self.presence[region].look(keys).present

    def put(self, region: str, keys: Hashes, through: Epoch, now: int) -> None:
        """Keep these keys (ascending, each once) from now on. now: in lookups."""
        self.presence[region].put(keys, PRESENT, through, now)

    def rest(self, edge: ConeEdge, consumers: Hashes, producers: Hashes) -> None:
        """Note which producers kept consumers rest on."""
        self._supports[edge].add(consumers, producers)

    def forget(self, region: str, keys: Hashes) -> None:
        """Forget these keys (ascending, each once), the keys that rest on them, and the keys that only they rested on.

        A key may rest on thousands. So the regions keep their state for now, and ``let_go`` drops it later.
        """
        for edge in self._shape.out_of(region):
            if edge in self._supports:
                consumers = self._supports[edge].consumers_of(keys)
                if len(consumers):
                    self.forget(edge.consumer, consumers)
        self._drop(region, keys)

    def _drop(self, region: str, keys: Hashes) -> None:
        """As :meth:`forget`, for keys that no consumer rests on."""
        if region == self._shape.top:
            self.regions[region].drop(keys)
        else:
            self._leftovers[region].append(keys)
        self.presence[region].drop(keys[self.has(region, keys)])
        for edge in self._shape.into(region):
            self.release(edge.producer, self._supports[edge].drop(keys))

    def release(self, region: str, keys: Hashes) -> None:
        """Forget those of these keys (ascending, each once) that are kept and that no consumer rests on."""
        idle = keys[self.has(region, keys)]
        for edge in self._shape.out_of(region):
            if edge in self._supports:
                idle = idle[~self._supports[edge].rests_on(idle)]
        if len(idle):
            self._drop(region, idle)

    @property
    def has_leftovers(self) -> bool:
        """Whether ``let_go`` has anything to drop."""
        return any(self._leftovers.values())

    def let_go(self, keys_max: int) -> int:
        """Drop the state of up to ``keys_max`` forgotten keys; returns their number."""
        for region, lots in self._leftovers.items():
            if lots:
                lot = lots.pop()
                keys, rest = lot[:keys_max], lot[keys_max:]
                if len(rest):
                    lots.append(rest)
                self.regions[region].drop(keys[~self.has(region, keys)])
                return len(keys)
        return 0

    # Rows -------------------------------------------------------------------------------------------------------------

    def take(self, rows: RowsAt) -> None:
        """Take in rows of one epoch, or of all epochs up to one, as the regions of all workers together would.

        Raises RowError as :meth:`Region.apply`.
        """
        for name, region in self.regions.items():
            for port in reversed(self._lake_ports[name]):  # the right side of a left join first
                mine = self._mine(name, rows.get((name, port)))
                if mine is not None:
                    region.apply(port, mine)
            region.settle(ALL_ROWS)
            for out in region.drain(ALL_ROWS):
                mine = self._mine(out.to, out.batch) if out.to in self.regions else None
                if mine is not None:
                    self.regions[out.to].apply(out.port, mine)

    def _mine(self, region: str, batch: Batch | None) -> Batch | None:
        """The rows of kept keys; ``None`` for none."""
        if batch is None or not len(batch):
            return None
        kept = self.has(region, batch.hash64)
        return batch.filtered(kept) if kept.any() else None

    def absorb(self, other: "ConeState", top: str, keys: Hashes, through: Epoch, now: int) -> None:
        """Take over another state's keys (ascending, each once) of its last region, ``top``, and what they rest on.

        Both states are as of the end of the same epoch. through, now: as in :meth:`put`.
        """
        new = {name: self._lacking(name, keys if name == top else other.keys(name)) for name in other.regions}
        for name, missing in new.items():
            if len(missing):
                if self._leftovers[name]:
                    self.regions[name].drop(missing)
                self.regions[name].install(other.regions[name].collect(missing))
                self.put(name, missing, through, now)
        for edge, supports in other._supports.items():
            self._supports[edge].add(*supports.of(new[edge.consumer]))
        for name in reversed([name for name in new if name != top]):
            self.release(name, new[name])  # kept only for keys that are no longer wanted

    def _lacking(self, region: str, keys: Hashes) -> Hashes:
        missing: Hashes = keys[~self.has(region, keys)]
        return missing


FILLED_KEYS_MAX = 65_536
"""Keys that one fill takes; more wait for the next fill."""

Reads = tuple[KeysToRead, ...]
What = TypeVar("What")
Result = TypeVar("Result")
Work = Generator[Reads, Sequence[Batch], Result]
"""Work in steps: it requests rows of the lake, and continues when they are there."""


class Cone:
    """See the module's docstring. ``work`` and ``proceed`` are called in turn."""

    gathered = unsettled = 0
    """As in :class:`RegionState`: nothing comes over exchange edges."""

    def __init__(
        self, plan: DataflowPlan, build: Callable[[RegionPlan], FullRegionState], rules: UpqueryRules, start_at: Epoch
    ) -> None:
        """build: makes an empty region. start_at: the epoch at whose end it begins."""
        self.applied = start_at
        """All kept keys are as of the end of this epoch."""
        self._shape = ConeShape.of(plan)
        self._plans = plan.regions
        self._build = build
        self._rules = rules
        self._begin_empty()
        self._wanted = WantedKeys()
        self._filling: Hashes = NO_KEYS
        """Keys that are being filled, except those given up since."""
        self._not_before = start_at
        """Another worker has shown keys of this cone as of this epoch."""
        self._under_way: Work[None] | None = None
        self._filled_last = False
        self._unanswered: list[UnansweredKeys] = []
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
        """Whether keys wait to be filled, and nothing is under way."""
        return bool(self._wanted) and self._under_way is None

    def work(self, opened: Epoch, keys_max: int = FILLED_KEYS_MAX) -> Reads | None:
        """Begin the next work, and return what it needs to read; ``None`` if there is no work, or some is under way.

        opened: the epoch to advance to. keys_max: how many keys may be filled. Work that reads nothing is done at once.
        """
        while self._under_way is None:
            self._under_way = self._next(opened, keys_max)
            if self._under_way is None:
                return None
            reads = self._go_on(lambda work: next(work))
            if reads is not None:
                return reads
        return None

    def proceed(self, rows: Sequence[Batch]) -> Reads | None:
        """Go on with the rows that were requested last. Returns as :meth:`work`, and ``None`` when the work is done."""
        return self._go_on(lambda work: work.send(rows))

    def proceed_without(self, error: UpriverError) -> Reads | None:
        """Go on without the rows that were requested last: they cannot be read. Returns as :meth:`proceed`."""
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

    def unanswered(self) -> list[UnansweredKeys]:
        """The keys that could not be filled since the last call: they are missing."""
        found, self._unanswered = self._unanswered, []
        self._unfillable.add(found)
        return found

    def _fill_wanted(self, keys_max: int) -> Work[None]:
        keys = self._wanted.take(keys_max)
        self._filling = keys[~self._state.has(self._shape.top, keys)]
        self._unanswered += yield from self._fill(self._shape.top, self._filling)
        self._filling = NO_KEYS

    def _fill(self, region: str, keys: Hashes) -> Work[list[UnansweredKeys]]:
        """Fill these missing keys (ascending, each once) of a region, and all that they rest on, as of the last epoch.

        Returns the keys that cannot be filled, because of a bad row or because the lake cannot be read.
        """
        if not len(keys):
            return []
        try:
            filled = yield from self._filled(region, keys)
        except LakeError as error:
            return [UnansweredKeys(keys, error)]
        except Exception as error:  # of any class: it is about some of these keys
            if len(keys) == 1:
                return [UnansweredKeys.because(keys, error)]
            half = len(keys) // 2
            first = yield from self._fill(region, keys[:half])
            return first + (yield from self._fill(region, keys[half:]))
        kept = np.intersect1d(keys, self._filling) if region == self._shape.top else keys
        self._state.absorb(filled, region, kept, self.applied, self._tick())
        if region == self._shape.top:
            self._unfillable.filled(kept)
        return []

    def _filled(self, region: str, keys: Hashes) -> Work[ConeState]:
        """A separate cone that has these keys of the region, and all that they rest on."""
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
        """Bring all kept keys to the end of this epoch, which is the next one."""
        try:
            for plan in reversed(self._shape.regions):
                for edge in self._shape.into(plan.name):
                    yield from self._gain(edge, epoch)
            rows = yield from self._rows(self._state, self.applied, epoch)
            self._state.take(rows)
        except Exception:  # of any class: filling a key shows whether the error is that key's
            self._begin_empty()
        self.applied = epoch

    def _gain(self, edge: ConeEdge, epoch: Epoch) -> Work[None]:
        """cones.keep_what_keys_rest_on: keep what keys of the edge's consumer come to rest on in this epoch."""
        keys = self._state.keys(edge.consumer)
        consumers, producers = yield from self._pairs(edge, keys, self.applied, epoch)
        filled = NO_KEYS
        while self._rules.cones_keep_what_keys_rest_on:
            kept = self._state.has(edge.consumer, consumers)  # some may be evicted meanwhile, with what they rested on
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
        return self._is_early or not bool(self._state.has(self._shape.top, hash64).all())

    def awaited(self, hash64: Hashes) -> Mask:
        """Which of these keys a lookup must wait for before it asks again."""
        if self._is_early:
            return np.ones(len(hash64), np.bool_)
        return np.isin(hash64, self._filling) | self._wanted.among(hash64)

    @property
    def _is_early(self) -> bool:
        return self.applied < self._not_before and self._rules.cones_never_back

    def want(self, hash64: Hashes) -> None:
        """A lookup waits for these keys: fill those that are missing."""
        missing = hash64[~self._state.has(self._shape.top, hash64)]
        self._presence.touch(hash64, self._tick())
        self._missed += len(missing)
        self._wanted.add(missing[~np.isin(missing, self._filling)])

    def wait_until(self, epoch: Epoch) -> None:
        """Show nothing as of an epoch before this one (cones.never_back)."""
        self._not_before = Epoch(max(self._not_before, epoch))

    def lookup(self, hash64: Hashes, keys: pa.RecordBatch, rows_max: int | None = None) -> pa.RecordBatch:
        """As :meth:`Region.lookup`, for keys that are all present."""
        self._note_read(hash64)
        return self._top.lookup(hash64, keys, rows_max)

    def lookup_each(
        self, hash64: Hashes, keys: pa.RecordBatch, lengths: Sequence[int], rows_max: int | None = None
    ) -> list[pa.RecordBatch]:
        """As :meth:`Region.lookup_each`, for such keys."""
        self._note_read(hash64)
        return self._top.lookup_each(hash64, keys, lengths, rows_max)

    def long_read(self, hash64: Hashes, keys: pa.RecordBatch) -> LongRead:
        """As :meth:`Region.long_read`, for such keys."""
        self._note_read(hash64)
        return self._top.long_read(hash64, keys)

    def _note_read(self, hash64: Hashes) -> None:
        self._presence.touch(hash64, self._tick())
        self._looked_up += len(hash64)

    def through(self, hash64: Hashes) -> Numbers:
        """For each of these present keys, the epoch that it reflects to the end."""
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
        """Evict these keys (ascending, unique), and what only they rest on; returns how many were present.

        ``let_go`` drops the state of what they rested on.
        """
        present = keys[self._state.has(self._shape.top, keys)]
        self._state.forget(self._shape.top, present)
        self._evicted += len(present)
        return len(present)

    def evict_oldest(self, keys_max: int, waiting: Sequence[Hashes]) -> int:
        """As :meth:`PartialRegion.evict_oldest` (partial.asked_keys_stay)."""
        oldest = self._presence.oldest(keys_max, self._now)
        if waiting and self._rules.partial_asked_keys_stay:
            oldest = np.setdiff1d(oldest, np.concatenate(waiting))
        return self.evict(oldest) if len(oldest) else 0

    @property
    def has_leftovers(self) -> bool:
        """Whether ``let_go`` has anything to drop."""
        return self._state.has_leftovers

    def let_go(self, keys_max: int) -> int:
        """Free the memory of up to ``keys_max`` forgotten keys; returns their number, 0 if there are none."""
        return self._state.let_go(keys_max)

    # Moves: a cone sends no state; the new owner fills the keys -------------------------------------------------------

    def uproot(self, vnode: int, vnodes: int) -> bool:
        """As :meth:`PartialRegion.uproot` (partial.ask_where_the_key_goes)."""
        unsettled = np.union1d(self._wanted.keys, self._filling)
        self._unfillable.leave(vnode, vnodes)
        return self.give_up(unsettled[vnodes_of(unsettled, vnodes) == vnode])

    def give_up(self, keys: Hashes) -> bool:
        """As :meth:`PartialRegion.give_up`."""
        gives_up = bool(np.isin(keys, self._filling).any() or self._wanted.among(keys).any())
        if self._rules.partial_ask_where_the_key_goes:
            self._filling = np.setdiff1d(self._filling, keys)
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
