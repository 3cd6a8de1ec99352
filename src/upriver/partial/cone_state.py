"""What a cone keeps at one worker: its regions, their kept keys, and which keys rest on which;
``docs/internals/partial.md``.

ConeShape: which region feeds which in a view whose rows are exchanged, and how keys are traced back.

Supports: which keys of a producer region the kept keys of its consumer rest on, for one exchange edge.

A pair says that rows of the producer's key may go to the consumer's key. Some pairs may be out of date. No pair of a
kept consumer key may be missing.

ConeState: regions of a view at one worker, each with its kept keys, and why they are kept.

A key of the view's last region is kept because a lookup has asked for it. A key of any other region is kept because
kept keys of its consumers rest on it. Rows of other keys are dropped before any operator sees them.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from upriver.engine.batch import Batch
from upriver.engine.region import FullRegionState
from upriver.errors import ProtocolError
from upriver.hashing import Hashes, hash64
from upriver.ids import Epoch
from upriver.partial.presence import PRESENT, Presence
from upriver.plan.plan import DataflowPlan, ExchangeEdge, RegionPlan
from upriver.plan.provenance import KeyTrace, traces
from upriver.state.vectors import NO_KEYS, Mask, Positions, contains, key_set, spread


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


@dataclass(frozen=True, slots=True)
class RowsLeft:
    """There are about so many rows more to take in. Rows that are exchanged count twice, or more."""

    rows: int


class _Budget:
    """How many rows may be taken in before others get their turn."""

    def __init__(self) -> None:
        self._left = 0

    def some(self, rows: int) -> Generator[RowsLeft, int, int]:
        """Up to so many rows, at least one: ask for more if none is left."""
        while self._left <= 0:
            self._left = yield RowsLeft(rows)
        taken = min(rows, self._left)
        self._left -= taken
        return taken


class ConeState:
    """Some regions of a view: a region and all that feed it, or all."""

    def __init__(
        self,
        shape: ConeShape,
        plans: Sequence[RegionPlan],
        build: Callable[[RegionPlan], FullRegionState],
        through: Epoch,
    ) -> None:
        """plans: of the regions that are kept. build: makes an empty one."""
        self.through = through
        """All kept keys are as of the end of this epoch, unless some of a later one's rows are in."""
        self.regions = {plan.name: build(plan) for plan in plans}
        """Each after those that feed it."""
        self.presence = {plan.name: Presence() for plan in plans}
        self._shape = shape
        self._lake_ports = {plan.name: [port for port, _ in plan.lake_ports] for plan in plans}
        self._supports = {edge: Supports() for edge in shape.edges if edge.consumer in self.regions}
        self._leftovers: dict[str, list[Hashes]] = {plan.name: [] for plan in plans}
        """By region, keys that are forgotten. Their state is still there, unless they were kept again since."""

    def stats(self) -> Mapping[str, int]:
        """held: rows, groups and states of all regions. bytes, live_bytes: as of a region, of all that is here."""
        of_all = [region.stats() for region in self.regions.values()]
        presences = self.presence.values()
        beside = self._beside_nbytes
        return {
            "held": sum(stats["held"] for stats in of_all),
            "bytes": sum(stats["bytes"] for stats in of_all) + sum(known.nbytes for known in presences) + beside,
            "live_bytes": sum(stats["live_bytes"] for stats in of_all)
            + sum(known.live_nbytes for known in presences)
            + beside,
        }

    @property
    def size(self) -> int:
        """How many rows, groups and states there are, of the view's rows too: how long it takes to copy them."""
        return sum(stats["held"] + stats["rows"] for stats in (region.stats() for region in self.regions.values()))

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

    def put(self, region: str, keys: Hashes, now: int) -> None:
        """Keep these keys (ascending, each once) from now on. now: in lookups."""
        self.presence[region].put(keys, PRESENT, self.through, now)

    def rest(self, edge: ConeEdge, consumers: Hashes, producers: Hashes) -> None:
        """Note which producers kept consumers rest on."""
        self._supports[edge].add(consumers, producers)

    def forget(self, region: str, keys: Hashes) -> None:
        """Forget these keys (ascending, each once), the keys that rest on them, and the keys that only they rested on.

        A key may rest on thousands. So the regions keep their state for now, and ``drop_forgotten`` drops it later.
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
        """Whether ``drop_forgotten`` has anything to drop."""
        return any(self._leftovers.values())

    def drop_forgotten(self, keys_max: int) -> int:
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

    def changed_by(self, rows: RowsAt) -> Hashes:
        """The keys of the last region that these rows may change, ascending, each once. Looks at all pairs."""
        changed: dict[str, Hashes] = {}
        for name in self.regions:
            of_lake = [rows[name, port].hash64 for port in self._lake_ports[name] if (name, port) in rows]
            edges = self._shape.into(name)
            changed[name] = key_set(
                *of_lake, *(self._supports[edge].consumers_of(changed[edge.producer]) for edge in edges)
            )
        return changed[self._shape.top]

    def take(self, rows: RowsAt, through: Epoch) -> Generator[RowsLeft, int, None]:
        """Take in rows of the epochs after the last one up to ``through``, as the regions of all workers together
        would. It is sent how many rows to take in, again and again. No key is as of any epoch in between.

        Raises RowError as :meth:`Region.apply`.
        """
        budget = _Budget()
        for name, region in self.regions.items():
            batches = [(port, rows[name, port]) for port in self._lake_ports[name] if (name, port) in rows]
            # The fewest rows first: a row never meets very many rows of another side of a join in one step. Of equal
            # sides the right one first: a left join puts no left row out alone.
            for port, batch in sorted(batches, key=lambda each: (len(each[1]), -each[0])):
                start = 0
                while start < len(batch):
                    end = start + (yield from budget.some(len(batch) - start))
                    mine = self._mine(name, batch.slice(start, end))
                    if mine is not None:
                        region.apply(port, mine)
                    start = end
            yield from self._settle(region, budget)
        self.through = through

    def _settle(self, region: FullRegionState, budget: "_Budget") -> Generator[RowsLeft, int, None]:
        """Take a region's gathered rows in, and its output to the regions that it feeds."""
        while waiting := region.waiting:
            region.settle_first((yield from budget.some(waiting)))
        while unsettled := region.unsettled:
            for out in region.drain((yield from budget.some(unsettled))):
                mine = self._mine(out.to, out.batch) if out.to in self.regions else None
                if mine is not None:
                    self.regions[out.to].apply(out.port, mine)

    def _mine(self, region: str, batch: Batch | None) -> Batch | None:
        """The rows of kept keys; ``None`` for none."""
        if batch is None or not len(batch):
            return None
        kept = self.has(region, batch.hash64)
        return batch.filtered(kept) if kept.any() else None

    def absorb(self, other: "ConeState", top: str, keys: Hashes) -> None:
        """Take over another state's keys (ascending, each once) of its last region, ``top``, and what they rest on.

        Both states are as of the end of the same epoch.
        """
        new = {name: self._lacking(name, keys if name == top else other.keys(name)) for name in other.regions}
        for name, missing in new.items():
            if len(missing):
                if self._leftovers[name]:
                    self.regions[name].drop(missing)
                self.regions[name].install(other.regions[name].collect(missing))
                self.presence[name].adopt(other.presence[name].collect(missing))
        for edge, supports in other._supports.items():
            self._supports[edge].add(*supports.of(new[edge.consumer]))
        for name in reversed([name for name in new if name != top]):
            self.release(name, new[name])  # kept only for keys that are no longer wanted

    def _lacking(self, region: str, keys: Hashes) -> Hashes:
        missing: Hashes = keys[~self.has(region, keys)]
        return missing
