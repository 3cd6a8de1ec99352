"""Join: pairs of rows of two inputs that agree in a key, kept up to date under changes of both.

The operator joins a batch of one side with the kept rows of the other side, and then keeps the batch. Both sides keep
their rows by the join's key (:class:`JoinStore`). A row with a null in its key that agrees with nothing is never kept:
its output follows at once.

JoinKeys gives each key a number, its *owner*, which both sides use. It counts how many rows each side has for the key.

JoinSide keeps the rows of one input: a multiset, reached by the owner of a row's key. Equal rows are one *entry*: a
slot with a count. An index over all columns finds a row's entry, so a row comes and goes at the same cost however many
rows share its key. A multimap knows the entries of each owner.

A row has a match as long as the other side has a row that agrees in the key and makes the condition true. Without a
condition, the key's row counts tell this for all of its rows at once. With a condition, matches are counted for each
row of a side whose rows may be put out alone.

Bands are comparisons of a column of one side with one of the other. Each side then has its entries in a RangeIndex,
too, so that a changed row meets only those rows of its key that are in its ranges.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch, no_rows
from upriver.engine.operators.bands import SideBands, bands_of
from upriver.engine.operators.compacted import USUAL, CompactionPace, TwoStores
from upriver.engine.operators.operator import ExpressionEvaluator, check_new, concatenated, part_of
from upriver.errors import BudgetExceeded, ProtocolError
from upriver.hashing import Hashes
from upriver.plan import plan as ops
from upriver.plan.column_names import quoted
from upriver.plan.plan import REPLICATED_ROWS_MAX, JoinKind, Replicated
from upriver.state.columns import array_of, cells_of, validity
from upriver.state.indexes import Entries, RoutedIndex
from upriver.state.multimap import Multimap
from upriver.state.range_index import Intervals, RangeIndex
from upriver.state.vectors import Mask, Positions, Slots, Vector, Weights, run_lengths, run_starts, true_at

_ALONE: dict[JoinKind, tuple[bool | None, bool | None]] = {
    JoinKind.INNER: (None, None),
    JoinKind.LEFT: (False, None),
    JoinKind.RIGHT: (None, False),
    JoinKind.FULL: (False, False),
    JoinKind.SEMI: (True, None),
    JoinKind.ANTI: (False, None),
}
"""For each side: ``SideShape.alone``."""


@dataclass(frozen=True, slots=True)
class SideShape:
    """One input.

    kept: the columns of its rows that are kept. shown: how many of these are put out: all or none. key: its columns of
    the join's key. strict: those of them in which a null agrees with nothing. alone: when its rows are put out on their
    own: while they have a match (True), while they have none (False), or never (``None``). counted: the matches of each
    of its rows are counted, because the counts of its key do not tell. bands: what its rows are searched by, if there
    are bands. replicated: what to say if a key has more than ``REPLICATED_ROWS_MAX`` rows on this side, if it may not.
    """

    kept: pa.Schema
    shown: int
    key: tuple[str, ...]
    strict: tuple[str, ...]
    alone: bool | None
    counted: bool
    bands: SideBands | None = None
    replicated: Replicated | None = None


@dataclass(frozen=True, slots=True)
class JoinShape:
    """A join.

    paired: pairs are put out. tested: the columns that the condition needs. key: the join's key, its columns named by
    their places. routing: the part of the key that is the routing key. output: the left input's columns, then, if
    paired, the right one's; all may be null.
    """

    sides: tuple[SideShape, SideShape]
    paired: bool
    condition: str | None
    tested: frozenset[str]
    key: pa.Schema
    routing: tuple[str, ...]
    output: pa.Schema

    @classmethod
    def of(
        cls, op: ops.JoinOp, inputs: tuple[pa.Schema, pa.Schema], routing: tuple[Sequence[str], Sequence[str]]
    ) -> Self:
        """inputs: schemas of the rows that will come. routing: the routing key, in columns of each input."""
        paired = op.kind not in (JoinKind.SEMI, JoinKind.ANTI)
        tested = {name for schema in inputs for name in schema.names if quoted(name) in (op.condition or "")}
        keys = (op.left_key, op.right_key)
        routed = set(zip(*routing, strict=True))
        # A semi join needs only the columns of the right rows that decide a match.
        matter = tested.union(op.right_key, (band.right for band in op.bands), inputs[1].names if paired else ())
        kept = (inputs[0], pa.schema([field for field in inputs[1] if field.name in matter]))
        sides = [
            SideShape(
                kept=schema,
                shown=len(schema) if paired or port == 0 else 0,
                key=key,
                strict=tuple(name for name, null_safe in zip(key, op.null_safe, strict=True) if not null_safe),
                alone=alone,
                counted=alone is not None and (op.condition is not None or bool(op.bands)),
                bands=bands,
                replicated=op.replicated if op.replicated is not None and op.replicated.port == port else None,
            )
            for port, (schema, key, alone, bands) in enumerate(
                zip(kept, keys, _ALONE[op.kind], bands_of(op, kept), strict=True)
            )
        ]
        output = [field.with_nullable(True) for side in sides for field in list(side.kept)[: side.shown]]
        return cls(
            sides=(sides[0], sides[1]),
            paired=paired,
            condition=op.condition,
            tested=frozenset(tested or op.left_key[:1]),  # without columns, the number of rows would be lost
            key=pa.schema([(str(place), inputs[0].field(name).type) for place, name in enumerate(op.left_key)]),
            routing=tuple(str(place) for place, pair in enumerate(zip(*keys, strict=True)) if pair in routed),
            output=pa.schema(output),
        )


class JoinKeys:
    """Keys that have rows on one side or on both. A key without rows is forgotten."""

    __slots__ = ("_index", "_totals")

    def __init__(self, shape: JoinShape) -> None:
        self._index = RoutedIndex(shape.key, shape.routing)
        self._totals: tuple[Vector[np.int64], Vector[np.int64]] = (Vector(np.int64), Vector(np.int64))

    def __len__(self) -> int:
        """How many owners there are, including those of forgotten keys."""
        return len(self._index)

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + sum(totals.nbytes for totals in self._totals)

    def owners(self, routed: Hashes, keys: Sequence[pa.Array]) -> Slots:
        """The owner of each key; unseen keys get one. routed: the hash64 of their routing keys."""
        owners = self._index.assign(routed, keys)
        for totals in self._totals:
            totals.resize(len(self))
        return owners

    def total(self, port: int, owners: Slots) -> Weights:
        """How many rows each of these keys has on that side."""
        total: Weights = self._totals[port].cells[owners]
        return total

    def add(self, port: int, owners: Slots, weight: Weights) -> None:
        """Add to the number of rows that these keys, which may be named often, have on that side."""
        np.add.at(self._totals[port].cells, owners, weight)

    def forget_empty(self, owners: Slots) -> None:
        """Forget the keys without rows among these, each named once."""
        self._index.forget(owners[~self._have_rows(owners)])

    def hashes_between(self, least: int, most: int) -> Hashes:
        """The hash64, in no particular order, of routing keys that have rows."""
        return self._index.hashes_between(least, most)

    def with_hash(self, routed: Hashes) -> tuple[Hashes, Slots]:
        """The keys of routing keys with these hash64, ascending and unique: the hash64 and the owner of each key.

        Sorted by hash64. Among keys with one hash64, those with left rows come first, then by age. A receiver that
        numbers keys as they come, first in the left rows and then in the right ones, gets this order again.
        """
        owners = self._index.with_hash(routed)
        hashes = self._index.hashes(owners)
        order = np.lexsort((owners, self.total(0, owners) == 0, hashes))
        return hashes[order], owners[order]

    def drop(self, routed: Hashes) -> Slots:
        """Forget all keys of routing keys with these hash64, ascending and unique; returns their owners."""
        owners = self._index.with_hash(routed)
        self._index.forget(owners)
        return owners

    def _have_rows(self, owners: Slots) -> Mask:
        left, right = self._totals
        some: Mask = (left.cells[owners] > 0) | (right.cells[owners] > 0)
        return some


FOUND_MIN = 64
"""Finding up to so many entries that are gone does not matter."""


@dataclass(frozen=True, slots=True)
class JoinChanges:
    """Entries whose count has changed, grouped by owner.

    For each group: its owner (ascending), the hash64 of its routing key, and how many entries it has, possibly none.
    For each entry: its slot, and by how much its count has changed, which is not zero.
    """

    owners: Slots
    routed: Hashes
    sizes: Positions
    slots: Slots
    weight: Weights

    @property
    def hash64(self) -> Hashes:
        """For each entry, the hash64 of its routing key."""
        return np.repeat(self.routed, self.sizes)


@dataclass(frozen=True, slots=True)
class Members:
    """The entries of some owners, one owner after the other. sizes: how many each owner has. slots: of the entries."""

    sizes: Positions
    slots: Slots


class JoinSide:
    """One side's entries."""

    __slots__ = ("_bands", "_by_owner", "_by_range", "_entries", "counts", "held", "matches")

    def __init__(self, shape: SideShape) -> None:
        self._entries = Entries(shape.kept, exact=shape.kept.names)
        self._by_owner = Multimap()
        self._bands = shape.bands
        self._by_range: RangeIndex | None = None
        """The entries that may meet all bands, once it is worth having."""
        self.counts: Vector[np.int64] = Vector(np.int64)
        """How often each entry's row is there. An entry whose count falls to zero is forgotten."""
        self.matches: Vector[np.int64] | None = Vector(np.int64) if shape.counted else None
        """How many rows of the other side each entry's row matches, if that is counted."""
        self.held = 0
        """How many entries there are."""

    def resize(self, size: int) -> None:
        """Make room for so many owners."""
        self._by_owner.resize(size)

    @property
    def slots(self) -> int:
        """How many slots are in use, including those of forgotten entries."""
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        matches = 0 if self.matches is None else self.matches.nbytes
        ranges = 0 if self._by_range is None else self._by_range.nbytes
        return self._entries.nbytes + self._by_owner.nbytes + ranges + self.counts.nbytes + matches

    def change(self, rows: Sequence[pa.Array], owners: Slots, routed: Hashes, weight: Weights | None) -> JoinChanges:
        """Add rows, or take them away. rows: the kept columns. owners, routed: the key's owner and hash64 for each row.

        Raises ProtocolError for a retraction of a row that is not there.
        """
        known = self.slots
        slots = self._assign(rows, len(owners))
        order, heads = _runs(owners << 32 | slots)
        net = run_lengths(heads, len(order)) if weight is None else np.add.reduceat(weight[order], heads)
        firsts = order[heads]
        owners, slots, routed = owners[firsts], slots[firsts], routed[firsts]
        self._count(known, owners, slots, self.counts.cells[slots] + net)
        changed = net != 0
        groups = run_starts(owners)
        sizes = np.add.reduceat(changed.astype(np.int64), groups)
        return JoinChanges(owners[groups], routed[groups], sizes, slots[changed], net[changed])

    def _count(self, known: int, owners: Slots, slots: Slots, counts: Weights) -> None:
        """Set the counts of these entries, each named once. Those from slot ``known`` on are new."""
        if (counts < 0).any():
            raise ProtocolError("a row was retracted more often than it is there")
        self.counts.cells[slots] = counts
        gone, new = counts == 0, slots >= known
        self.held += int(np.count_nonzero(new)) - int(np.count_nonzero(gone))
        if gone.any():
            self._entries.forget(slots[gone])
            self._by_owner.remove(owners[gone], slots[gone])
            new &= ~gone
        self._insert(owners[new], slots[new])

    def _insert(self, owners: Slots, slots: Slots) -> None:
        self._by_owner.insert(owners, slots)
        if self._by_range is not None:
            self._sort_in(self._by_range, owners, slots)

    def intervals(self, slots: Slots) -> tuple[Mask, Intervals]:
        """Which of these entries may meet all bands, and the values of all that the bands compare."""
        assert self._bands is not None, "a join without bands"
        return self._bands.intervals(lambda place: self.column(place, slots))

    @property
    def is_sorted(self) -> bool:
        """Whether entries can be searched by ranges."""
        return self._by_range is not None

    def sort(self, owners: Slots) -> None:
        """Sort the entries by ranges from now on. owners: all that there are."""
        self._by_range = RangeIndex()
        members = self.members(owners)
        self._sort_in(self._by_range, np.repeat(owners, members.sizes), members.slots)

    def _sort_in(self, index: RangeIndex, owners: Slots, slots: Slots) -> None:
        may, intervals = self.intervals(slots)
        index.insert(owners[may], slots[may], intervals.taken(true_at(may)))

    def in_ranges(self, owners: Slots, ranges: Intervals) -> Iterator[tuple[Positions, Slots]]:
        """The entries of these owners that are in the ranges: the owner's position, and the entry. Some at a time.
        They must be sorted."""
        assert self._by_range is not None, "entries that are not sorted"
        for places, slots in self._by_range.find(owners, ranges, self._is_there):
            there = self._is_there(slots)
            yield places[there], slots[there]

    def _is_there(self, slots: Slots) -> Mask:
        there: Mask = self.counts.cells[slots] > 0
        return there

    def members(self, owners: Slots) -> Members:
        """The entries of these owners, each named once; those of one owner in order of age."""
        positions, slots = self._by_owner.find(owners)
        there = self.counts.cells[slots] > 0
        sizes = np.bincount(positions, minlength=len(owners))
        if there.all():
            return Members(sizes, slots)
        members = Members(np.bincount(positions[there], minlength=len(owners)), slots[there])
        self._tidy(owners, sizes, members)
        return members

    def _tidy(self, owners: Slots, sizes: Positions, members: Members) -> None:
        """Store the list of an owner anew if most of the entries found are gone. sizes: how many were found."""
        stale = sizes > FOUND_MIN + 2 * members.sizes
        if stale.any():
            of_stale = np.repeat(stale, members.sizes)
            self._by_owner.replace(owners[stale], members.sizes[stale], members.slots[of_stale])

    def column(self, place: int, slots: Slots) -> pa.Array:
        """One of the kept columns, of these entries."""
        return self._entries.column(place, slots)

    def columns(self, slots: Slots) -> list[pa.Array]:
        """All of the kept columns, of these entries."""
        return self._entries.columns(slots)

    def install(self, rows: Sequence[pa.Array], owners: Slots, counts: Weights, matches: Weights | None) -> None:
        """Keep these entries, which are not here yet."""
        slots = self._assign(rows, len(owners))
        self.counts.cells[slots] = counts
        if self.matches is not None and matches is not None:
            self.matches.cells[slots] = matches
        self.held += len(slots)
        order = np.argsort(owners, kind="stable")
        self._insert(owners[order], slots[order])

    def forget(self, slots: Slots) -> None:
        """Forget these entries."""
        self._entries.forget(slots)
        self.counts.cells[slots] = 0
        self.held -= len(slots)

    def _assign(self, rows: Sequence[pa.Array], count: int) -> Slots:
        """The slot of each row; unseen rows get one."""
        slots = self._entries.assign(rows, count)
        self.counts.resize(self.slots)
        if self.matches is not None:
            self.matches.resize(self.slots)
        return slots


def _runs(numbers: Slots) -> tuple[Positions, Positions]:
    """The order that sorts the numbers, and where in it each run of equal ones begins."""
    order = np.argsort(numbers)
    return order, run_starts(numbers[order])


PAIRS_MAX = 1 << 16
"""Pairs made at a time: if both sides have many rows of one key, this takes time, but not memory."""

SORTING_ROWS = 64
"""A side is sorted by ranges as soon as each row of a batch would be compared with more rows than this, on average.
Before, the index would take memory and save little."""


def pairs_of(
    changes: JoinChanges, members: Members, pairs_max: int = PAIRS_MAX
) -> Iterator[tuple[Positions, Positions]]:
    """All pairs of a changed entry and a member of its owner: their places in ``changes`` and in ``members``.

    members: those of the changes' owners. Up to ``pairs_max`` pairs at a time.
    """
    counts = np.repeat(members.sizes, changes.sizes)
    firsts = np.repeat(np.cumsum(members.sizes) - members.sizes, changes.sizes)
    ends = np.cumsum(counts)
    begins = ends - counts
    total = int(counts.sum())
    for start in range(0, total, pairs_max):
        stop = min(start + pairs_max, total)
        low, high = np.searchsorted(ends, start, side="right"), np.searchsorted(ends, stop, side="left") + 1
        lengths = np.minimum(ends[low:high], stop) - np.maximum(begins[low:high], start)
        changed = np.repeat(np.arange(low, high), lengths)
        yield changed, np.arange(start, stop) + (firsts - begins)[changed]


class Gains:
    """How many matches entries have gained, or lost. It keeps at most about twice as many numbers as there are such
    entries, and some."""

    __slots__ = ("_parts", "_room", "_size")

    def __init__(self) -> None:
        self._parts: list[tuple[Slots, Weights, Hashes]] = []
        self._size, self._room = 0, PAIRS_MAX

    def add(self, slots: Slots, gained: Weights, routed: Hashes) -> None:
        """slots: entries, which may be named often. routed: the hash64 of their routing keys."""
        self._parts.append((slots, gained, routed))
        self._size += len(slots)
        if self._size > self._room:
            self._parts = [self.net()]
            self._size = len(self._parts[0][0])
            self._room = 2 * self._size + PAIRS_MAX

    def net(self) -> tuple[Slots, Weights, Hashes]:
        """Each entry once, ascending, with what it has gained and its hash64."""
        if not self._parts:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64)
        slots, gained, routed = (np.concatenate([part[place] for part in self._parts]) for place in range(3))
        named, firsts, places = np.unique(slots, return_index=True, return_inverse=True)
        net = np.zeros(len(named), np.int64)
        np.add.at(net, places, gained)
        return named, net, routed[firsts]


_Other = TypeVar("_Other", Slots, None)


class JoinStore:
    """The rows of both sides."""

    __slots__ = ("_evaluator", "_keys", "_shape", "_sides", "_sorting_rows")

    def __init__(self, shape: JoinShape, evaluator: ExpressionEvaluator, sorting_rows: int) -> None:
        self._shape = shape
        self._sorting_rows = sorting_rows
        self._evaluator = evaluator
        self._keys = JoinKeys(shape)
        self._sides = (JoinSide(shape.sides[0]), JoinSide(shape.sides[1]))

    @property
    def held(self) -> int:
        """How many different rows are kept."""
        return sum(side.held for side in self._sides)

    @property
    def slots(self) -> int:
        return sum(side.slots for side in self._sides)

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + sum(side.nbytes for side in self._sides)

    def apply(self, port: int, batch: Batch) -> list[Batch]:
        """Take in changes of one side; returns the changes of the output that follow, in any number of batches.

        Raises RowError if the condition fails on a pair, BudgetExceeded if a side that is in all slots gets too long.
        """
        shape = self._shape.sides[port]
        owners = self._owners(batch.hash64, [batch.rows.column(name) for name in shape.key])
        rows = [batch.rows.column(name) for name in shape.kept.names]
        changes = self._sides[port].change(rows, owners, batch.hash64, batch.weight)
        before = self._keys.total(port, changes.owners)
        self._keys.add(port, np.repeat(changes.owners, changes.sizes), changes.weight)
        rows = self._keys.total(port, changes.owners).max(initial=0)
        if shape.replicated is not None and rows > REPLICATED_ROWS_MAX:
            raise BudgetExceeded(shape.replicated.advice)
        if self._shape.condition is None and shape.bands is None:
            follows = list(self._by_key(port, changes, before > 0))
        else:
            follows = list(self._by_row(port, changes))
        self._keys.forget_empty(changes.owners)
        return follows

    def hashes_between(self, least: int, most: int) -> Hashes:
        return self._keys.hashes_between(least, most)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """The left rows, then the right ones: the routing key's hash64, the row's count, how many rows it matches (if
        that is counted), and its columns."""
        hashes, owners = self._keys.with_hash(keys)
        return tuple(_state(side, hashes, owners) for side in self._sides)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        """Raises ProtocolError if there is state of one of the keys already."""
        _, known = self._keys.with_hash(np.unique(np.concatenate([cells_of(part.column(0)) for part in state])))
        check_new(not known.size)
        for port, (side, shape, part) in enumerate(zip(self._sides, self._shape.sides, state, strict=True)):
            hashes, counts, *columns = part.columns
            matches = cells_of(columns.pop(0)) if shape.counted else None
            owners = self._owners(cells_of(hashes), [columns[shape.kept.names.index(name)] for name in shape.key])
            side.install(columns, owners, cells_of(counts), matches)
            self._keys.add(port, owners, cells_of(counts))

    def drop(self, keys: Hashes) -> None:
        owners = self._keys.drop(keys)
        for side in self._sides:
            side.forget(side.members(owners).slots)

    def _owners(self, routed: Hashes, keys: Sequence[pa.Array]) -> Slots:
        owners = self._keys.owners(routed, keys)
        for side in self._sides:
            side.resize(len(self._keys))
        return owners

    def _by_key(self, port: int, changes: JoinChanges, before: Mask) -> Iterator[Batch]:
        """The output if all rows of a key match. before: which of the changed keys had rows on this side."""
        own, other = self._shape.sides[port], self._shape.sides[1 - port]
        after = self._keys.total(port, changes.owners) > 0
        if self._shape.paired:
            members = self._sides[1 - port].members(changes.owners)
            for changed, places in pairs_of(changes, members):
                yield self._pairs(port, changes, changed, members.slots[places])
        if own.alone is not None:
            matched = np.repeat(self._keys.total(1 - port, changes.owners) > 0, changes.sizes)
            yield self._alone(port, changes, matched)
        if other.alone is not None:
            turned = before != after
            members = self._sides[1 - port].members(changes.owners[turned])
            matched, hashes = (np.repeat(of_key[turned], members.sizes) for of_key in (after, changes.routed))
            yield self._turned(1 - port, members.slots, matched, hashes)

    def _by_row(self, port: int, changes: JoinChanges) -> Iterator[Batch]:
        """The output if bands or a condition decide which rows of a key match."""
        own, other = self._sides[port], self._sides[1 - port]
        met, gains, hashes = np.zeros(len(changes.slots), np.int64), Gains(), changes.hash64
        for changed, slots in self._candidates(port, changes):
            if self._shape.condition is not None:
                rows = self._test(port, changes.slots[changed], slots)
                true = self._evaluator.mask(rows, self._shape.condition)
                changed, slots = changed[true], slots[true]
            if own.matches is not None:
                np.add.at(met, changed, other.counts.cells[slots])
            if other.matches is not None:
                gains.add(slots, changes.weight[changed], hashes[changed])
            if self._shape.paired:
                yield self._pairs(port, changes, changed, slots)
        if own.matches is not None:
            own.matches.cells[changes.slots] = met
            yield self._alone(port, changes, met > 0)
        if other.matches is not None:
            slots, gained, hashes = gains.net()
            before = other.matches.cells[slots]
            other.matches.cells[slots] = before + gained
            turned = (before > 0) != (before + gained > 0)
            yield self._turned(1 - port, slots[turned], before[turned] == 0, hashes[turned])

    def _candidates(self, port: int, changes: JoinChanges) -> Iterator[tuple[Positions, Slots]]:
        """The pairs of a changed entry and an entry of the other side that agree in the key and meet all bands: places
        in ``changes``, and the partners."""
        own, other = self._shape.sides[port].bands, self._shape.sides[1 - port].bands
        partners = self._sides[1 - port]
        if own is None or other is None:
            members = partners.members(changes.owners)
            for changed, places in pairs_of(changes, members):
                yield changed, members.slots[places]
            return
        may, intervals = self._sides[port].intervals(changes.slots)
        ranges = own.ranges(intervals, len(other.places))
        if not partners.is_sorted and self._has_many_pairs(port, changes):
            partners.sort(np.arange(len(self._keys)))
        if partners.is_sorted:
            asking = true_at(may)
            owners = np.repeat(changes.owners, changes.sizes)[asking]
            for places, slots in partners.in_ranges(owners, ranges.taken(asking)):
                yield asking[places], slots
        else:
            members = partners.members(changes.owners)
            they_may, of_members = partners.intervals(members.slots)
            for changed, places in pairs_of(changes, members):
                met = may[changed] & they_may[places] & of_members.taken(places).meets(ranges.taken(changed))
                yield changed[met], members.slots[places[met]]

    def _has_many_pairs(self, port: int, changes: JoinChanges) -> bool:
        """Whether the pairs of the changed entries with the rows of their keys are worth a sorted index."""
        pairs = int((self._keys.total(1 - port, changes.owners) * changes.sizes).sum())
        return pairs > self._sorting_rows * len(changes.slots)

    def _test(self, port: int, slots: Slots, others: Slots) -> pa.RecordBatch:
        """The columns that the condition needs, for these pairs. slots: on that side. others: on the other one."""
        columns = {
            name: side.column(place, of_side)
            for side, shape, of_side in zip(self._sides, self._shape.sides, _by_port(port, slots, others), strict=True)
            for place, name in enumerate(shape.kept.names)
            if name in self._shape.tested
        }
        return pa.RecordBatch.from_pydict(columns)

    def _pairs(self, port: int, changes: JoinChanges, changed: Positions, others: Slots) -> Batch:
        """Output for pairs that come and go. changed: places in ``changes``. others: their partners."""
        weight = changes.weight[changed] * self._sides[1 - port].counts.cells[others]
        return self._batch(_by_port(port, changes.slots[changed], others), changes.hash64[changed], weight)

    def _alone(self, port: int, changes: JoinChanges, matched: Mask) -> Batch:
        """Output for changed rows of a side that are put out alone, depending on whether they match."""
        shown = matched == self._shape.sides[port].alone
        return self._batch(_by_port(port, changes.slots[shown], None), changes.hash64[shown], changes.weight[shown])

    def _turned(self, port: int, slots: Slots, matched: Mask, hashes: Hashes) -> Batch:
        """Output for unchanged rows that got their first match or lost their last. matched: which match from now on."""
        counts = self._sides[port].counts.cells[slots]
        weight = np.where(matched == self._shape.sides[port].alone, counts, -counts)
        return self._batch(_by_port(port, slots, None), hashes, weight)

    def _batch(self, slots: tuple[Slots | None, Slots | None], hashes: Hashes, weight: Weights) -> Batch:
        """Output rows of these entries of both sides; ``None``: nulls on that side."""
        columns = [
            pa.nulls(len(weight), shape.kept.field(place).type) if of_side is None else side.column(place, of_side)
            for side, shape, of_side in zip(self._sides, self._shape.sides, slots, strict=True)
            for place in range(shape.shown)
        ]
        return Batch(pa.RecordBatch.from_arrays(columns, schema=self._shape.output), hashes, weight)


def _by_port(port: int, own: Slots, other: _Other) -> tuple[Slots | _Other, Slots | _Other]:
    return (own, other) if port == 0 else (other, own)


def _state(side: JoinSide, hashes: Hashes, owners: Slots) -> pa.RecordBatch:
    """The entries of these owners. hashes: of their routing keys."""
    members = side.members(owners)
    numbers = [side.counts, *([] if side.matches is None else [side.matches])]
    counts = [array_of(pa.int64(), vector.cells[members.slots]) for vector in numbers]
    return part_of(np.repeat(hashes, members.sizes), [*counts, *side.columns(members.slots)])


class Join(TwoStores[JoinStore]):
    """An operator with two ports, the left and the right input. ``schema``: of its output, all of it nullable."""

    __slots__ = ("_nothing", "_shape", "schema")

    parts = 2

    def __init__(
        self,
        op: ops.JoinOp,
        left: pa.Schema,
        right: pa.Schema,
        left_routing: Sequence[str],
        right_routing: Sequence[str],
        evaluator: ExpressionEvaluator,
        pace: CompactionPace = USUAL,
        sorting_rows: int = SORTING_ROWS,
    ) -> None:
        """left, right: of the rows that will come. left_routing, right_routing: the routing key as columns of each: a
        part of the join's key, or all of it. pace: how soon and how fast to compact. sorting_rows: as the constant
        of that name."""
        self._shape = JoinShape.of(op, (left, right), (left_routing, right_routing))
        super().__init__(partial(JoinStore, self._shape, evaluator, sorting_rows), pace)
        self.schema = self._shape.output
        self._nothing = no_rows(self.schema)

    def apply(self, port: int, batch: Batch) -> Batch:
        """port: 0 for changes of the left input, 1 for the right. Raises RowError if the condition fails on a pair, and
        ProtocolError for a retraction of a row that is not there."""
        if batch.weight is not None:
            batch = batch.filtered(batch.weight != 0)
        keys = [batch.rows.column(name) for name in self._shape.sides[port].strict]
        outputs: list[Batch] = []
        if any(key.null_count for key in keys):
            matches = np.logical_and.reduce([validity(key) for key in keys])
            outputs += self._without_match(port, batch.filtered(~matches))
            batch = batch.filtered(matches)
        for store, part in self.split(batch):
            outputs += store.apply(port, part)
        self.tidy()
        return concatenated([output for output in outputs if len(output)] or [self._nothing])

    def _without_match(self, port: int, batch: Batch) -> list[Batch]:
        """The output for rows that match nothing."""
        if self._shape.sides[port].alone is not False:
            return []
        columns = [
            batch.rows.column(field.name) if side == port else pa.nulls(len(batch), field.type)
            for side, shape in enumerate(self._shape.sides)
            for field in list(shape.kept)[: shape.shown]
        ]
        return [batch.replaced(pa.RecordBatch.from_arrays(columns, schema=self.schema))]
