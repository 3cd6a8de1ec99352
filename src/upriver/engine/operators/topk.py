"""TopK: the first rows of each partition. When one of them is retracted, the next row takes its place.

The operator keeps all rows, equal ones as one *entry* with a count. A partition's best entries are its *top*, which
holds all that is put out and some more. A large partition keeps its other entries, unordered, in its *rest*. The
*bound* separates the two: an entry belongs to the top if it sorts no higher than the bound. So a batch costs as much as
it has rows, and as much as the top of each partition whose top it changes. An empty top is refilled with the best of
the rest, which costs one pass over the rest. A top that grows too long moves its worst entries to the rest.

Under ``row_number`` entries that tie are sorted by all their columns, so that no two tie. Under the other functions,
the order of ties does not matter.

Rows are sorted in Spark's order of each type: nulls where they are wanted, NaN above all numbers and equal to itself,
-0.0 equal to 0.0, strings by their UTF-8 bytes, arrays and structs value by value.

Values become integers, *cells*, that sort as the values do. A column may need several cells: a string compares its
first eight bytes, then eight more, and only then all bytes. So rows are sorted by one cell after the other, and each
later cell is computed only for the rows that still tie.

Ranks are the numbers of sorted rows under row_number, rank and dense_rank. A change of the ranks decides what is put
out.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upriver.engine.batch import Batch
from upriver.engine.operators.compacted import USUAL, CompactedStore, CompactionPace
from upriver.engine.operators.partitioned_rows import PartitionedRows, of_each
from upriver.hashing import Hashes, hash64
from upriver.plan import plan as ops
from upriver.plan.plan import Ranking
from upriver.state.columns import Cells, array_of, canonical, cells_of, is_fixed, validity
from upriver.state.indexes import Hasher
from upriver.state.multimap import Lists, LongLists
from upriver.state.pair_index import nested_ranks, sorted_by
from upriver.state.vectors import Mask, Positions, Slots, Vector, Weights, run_starts, true_at

Step = Callable[[pa.Array], Iterable[Cells]]
"""Gives integers that sort as the values do, the most significant part first."""

Read = Callable[[int, Positions], pa.Array]
"""Gives one column, by its place, of the rows at these positions."""

LONG_DECIMAL_DIGITS = 18
"""Decimals of so many digits fit in 64 bits."""

WORDS_MAX = 3
"""Words of eight bytes: behind the common prefix, so many words of a string are compared as numbers."""


@dataclass(frozen=True, slots=True)
class SortKey:
    """One column to sort by. place: of the column in its rows."""

    place: int
    type: pa.DataType
    descending: bool = False
    nulls_first: bool = True

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps that tell the column's values apart, one after the other."""
        return _steps_of(self.type)

    def cells(self, step: Step, values: pa.Array) -> Iterator[Cells]:
        """One step's integers, in this key's direction."""
        valid = validity(values) if values.null_count else None
        if valid is not None:
            yield (valid if self.nulls_first else ~valid).view(np.uint8)
        for part in step(values):
            cells = ~part if self.descending else part
            yield cells if valid is None else np.where(valid, cells, cells.dtype.type(0))


def in_order(groups: Positions, keys: Sequence[SortKey], read: Read) -> tuple[Positions, Mask]:
    """Sort rows by their group, then by the keys; rows that tie keep their order.

    groups: a number for each row. Returns the rows' positions in order, and where in this order a row differs from the
    row before it in its group or in a key.
    """
    order = np.argsort(groups, kind="stable")
    heads = np.ones(len(order), np.bool_)
    heads[1:] = groups[order[1:]] != groups[order[:-1]]
    places = _tied(heads)
    for key in keys:
        for step in key.steps:
            if not places.size:
                return order, heads
            rows = order[places]
            of_row = np.empty(len(order), np.int64)
            of_row[rows] = np.arange(len(rows))
            for part in key.cells(step, read(key.place, rows)):
                _refine(order, heads, places, part[of_row[order[places]]])
                places = _tied(heads)
    return order, heads


def best_of(rows: Positions, count: int, keys: Sequence[SortKey], read: Read) -> Positions:
    """A subset of these rows, in no particular order, that holds the first ``count`` of them and few more.

    Does not sort all rows. count: 1 or more.
    """
    certain = [rows[:0]]
    for key in keys:
        for step in key.steps:
            if len(rows) <= 2 * count:
                break
            chosen = np.arange(len(rows))
            for part in key.cells(step, read(key.place, rows)):
                cells = part[chosen]
                last = np.partition(cells, count - 1)[count - 1]
                better = cells < last
                certain.append(rows[chosen[better]])
                count -= int(np.count_nonzero(better))
                chosen = chosen[cells == last]
            rows = rows[chosen]
    return np.concatenate([*certain, rows])


def _tied(heads: Mask) -> Positions:
    """The places of rows that tie with another row. heads: where each tie begins."""
    tied = ~heads
    tied[:-1] |= tied[1:]
    return true_at(tied)


def _refine(order: Positions, heads: Mask, places: Positions, cells: Cells) -> None:
    """Sort the rows at these places of the order by their cells, within each tie."""
    bits = len(places).bit_length()
    key = np.cumsum(heads[places]) - 1 << bits | _ranks_of(cells)
    sorting = _sorted(key, 2 * bits)
    in_turn = key[sorting]
    order[places] = order[places[sorting]]
    heads[places[1:]] |= in_turn[1:] != in_turn[:-1]


def _ranks_of(cells: Cells) -> Positions:
    """Numbers from 0 on, without gaps, that sort as the cells do. Avoids a stable sort, which takes longer."""
    order = np.argsort(cells)
    in_turn = cells[order]
    ranks = np.empty(len(cells), np.int64)
    ranks[order] = np.cumsum(np.concatenate([[False], in_turn[1:] != in_turn[:-1]]))
    return ranks


def _sorted(key: Positions, bits: int) -> Positions:
    """The positions of these numbers in their order; equal ones keep their order.

    bits: the most bits that a number has, at most 62.
    """
    of_position = len(key).bit_length()
    if bits + of_position > 63:
        return np.argsort(key, kind="stable")
    packed = key << of_position | np.arange(len(key))
    packed.sort()
    positions: Positions = packed & ((1 << of_position) - 1)
    return positions


# Steps: what lies under a null is arbitrary. --------------------------------------------------------------------------


def _steps_of(type: pa.DataType) -> tuple[Step, ...]:
    if pa.types.is_null(type):
        return ()
    if pa.types.is_decimal128(type):
        return (_decimals,)
    if is_fixed(type) and type.bit_width <= 64:
        return (_floats if pa.types.is_floating(type) else _integers,)
    if pa.types.is_string(type) or pa.types.is_binary(type):
        return _words, _ranks
    if pa.types.is_large_string(type) or pa.types.is_large_binary(type):
        return (_ranks,)
    return (_nested_ranks,)


def _integers(values: pa.Array) -> Iterator[Cells]:
    yield cells_of(values)


def _floats(values: pa.Array) -> Iterator[Cells]:
    cells = cells_of(canonical(values))
    width = cells.dtype.itemsize
    bits = cells.view(f"i{width}")
    # As integers, the bits of negative floats sort in reverse: invert all of them except the sign.
    yield bits ^ (bits >> (8 * width - 1) & np.iinfo(bits.dtype).max)


def _decimals(values: pa.Array) -> Iterator[Cells]:
    words = cells_of(values).view(np.int64).reshape(-1, 2)
    if values.type.precision > LONG_DECIMAL_DIGITS:
        yield words[:, 1]
        yield words[:, 0].view(np.uint64)
    else:
        yield words[:, 0]


def _words(values: pa.Array) -> Iterator[Cells]:
    """Each value's next eight bytes as one number, with zeros behind its end; begins where two values first differ."""
    _, offset_buffer, data = values.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
    text = np.frombuffer(data or b"", np.uint8)[: offsets[-1]]
    padded = np.concatenate([text, np.zeros(8, np.uint8)])
    at_every_byte: Cells = np.ndarray((len(text) + 1,), ">u8", padded, strides=(1,))
    start = _common_bytes(values)
    for begin in range(start, start + 8 * WORDS_MAX, 8):
        left = np.clip(np.diff(offsets) - begin, 0, 8)
        if not left.any():
            return
        words = at_every_byte[np.minimum(offsets[:-1] + begin, len(text))].astype(np.uint64)
        unwanted = (64 - 8 * left).astype(np.uint64) % np.uint64(64)
        yield np.where(left > 0, words >> unwanted << unwanted, np.uint64(0))


def _common_bytes(values: pa.Array) -> int:
    """The length of the prefix that all values share, in bytes."""
    extremes = pc.min_max(values.cast(pa.binary()))
    least, most = extremes["min"].as_py() or b"", extremes["max"].as_py() or b""
    shared = min(len(least), len(most))
    return next((place for place in range(shared) if least[place] != most[place]), shared)


def _ranks(values: pa.Array) -> Iterator[Cells]:
    ranks = pc.rank(values, **sorted_by([("", "ascending")], "at_start"), tiebreaker="dense")
    yield ranks.to_numpy().astype(np.int64)


def _nested_ranks(values: pa.Array) -> Iterator[Cells]:
    yield nested_ranks(values)


@dataclass(frozen=True, slots=True)
class Ranked:
    """Entries in order: one partition after the other, each from its best on.

    slots, counts: each entry's slot, and how often the entry is there. partitions: each entry's partition number,
    ascending from 0 without gaps. starts: where each partition begins. peers: where an entry differs from the entry
    before it in the columns that it is sorted by.
    """

    slots: Slots
    counts: Weights
    partitions: Positions
    starts: Positions
    peers: Mask


@dataclass(frozen=True, slots=True)
class Numbers:
    """For each entry: the number of its first copy, and how many of its copies have a number up to the limit."""

    first: Positions
    copies: Weights


def number(ranked: Ranked, counts: Weights, ranking: Ranking, limit: int) -> Numbers:
    """counts: how many copies of each entry to assume; the number of an entry without copies means nothing."""
    if ranking is Ranking.ROW_NUMBER:
        ahead = _before(counts)
        ahead -= ahead[ranked.starts][ranked.partitions]
        return Numbers(ahead + 1, np.clip(limit - ahead, 0, counts))
    leaders = true_at(ranked.peers)
    among = np.cumsum(ranked.peers) - 1
    totals = np.add.reduceat(counts, leaders) if len(leaders) else counts
    ahead = _before(totals if ranking is Ranking.RANK else np.sign(totals))[among]
    ahead -= ahead[ranked.starts][ranked.partitions]
    return Numbers(ahead + 1, np.where(ahead < limit, counts, 0))


def _before(counts: Weights) -> Weights:
    """For each count, the sum of all counts before it."""
    return np.cumsum(counts) - counts


@dataclass(frozen=True, slots=True)
class RankChanges:
    """Changes of the output: the entry's place in its order, its number, and the change of its count."""

    places: Positions
    numbers: Positions
    weight: Weights


def changes(before: Numbers, after: Numbers) -> RankChanges:
    """What to put out if the output has no column for the number."""
    weight = after.copies - before.copies
    places = true_at(weight)
    return RankChanges(places, after.first[places], weight[places])


def numbered_changes(before: Numbers, after: Numbers, ranking: Ranking) -> RankChanges:
    """What to put out if the output has a column for the number."""
    moved = true_at((before.copies != after.copies) | (before.first != after.first))
    parts = [_numbered(numbers, moved, ranking, sign) for numbers, sign in ((before, -1), (after, 1))]
    places, numbers, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.lexsort((numbers, places))
    places, numbers, weight = places[order], numbers[order], weight[order]
    heads = true_at(np.concatenate([[True], (np.diff(places) != 0) | (np.diff(numbers) != 0)])[: len(places)])
    weight = np.add.reduceat(weight, heads) if len(heads) else weight
    some = weight != 0
    return RankChanges(places[heads][some], numbers[heads][some], weight[some])


def _numbered(numbers: Numbers, places: Positions, ranking: Ranking, sign: int) -> tuple[Positions, Positions, Weights]:
    """The rows put out of the entries at these places: place, number, and the signed number of copies."""
    first, copies = numbers.first[places], numbers.copies[places]
    if ranking is not Ranking.ROW_NUMBER:
        some = copies > 0
        return places[some], first[some], sign * copies[some]
    # Each copy has a number of its own.
    ends = np.cumsum(copies)
    nth = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - copies, copies)
    return np.repeat(places, copies), np.repeat(first, copies) + nth, np.full(len(nth), sign)


SORTED_ENTRIES_MAX = 4096
"""A rest of up to so many entries is sorted whole; of a longer one the best are picked first."""


class TopK(CompactedStore):
    """The rows of each partition whose number is at most the limit."""

    def __init__(
        self,
        op: ops.TopKOp,
        source: pa.Schema,
        routing: Sequence[str],
        hasher: Hasher = hash64,
        pace: CompactionPace = USUAL,
    ) -> None:
        """source: of the input. routing: the routing key's columns, all in the partition. hasher: of rows, and of
        partitions that are finer than the routing key. eagerness: how soon and how fast to compact."""
        output = source if op.rank is None else source.append(pa.field(op.rank, pa.int32()))
        super().__init__(output, partial(_Partitions, op, source, output, tuple(routing), hasher), pace)


class _Partitions:
    """The entries of each partition."""

    __slots__ = (
        "_bounds",
        "_in_top",
        "_keys",
        "_op",
        "_output",
        "_rest_of",
        "_rests",
        "_rows",
        "_tops",
    )

    def __init__(
        self, op: ops.TopKOp, source: pa.Schema, output: pa.Schema, routing: tuple[str, ...], hasher: Hasher
    ) -> None:
        self._op = op
        self._output = output
        self._keys = sort_keys(op.order, source)
        if op.ranking is Ranking.ROW_NUMBER:
            self._keys += tie_keys(op, source)
        self._rows = PartitionedRows(source, op.partition, routing, hasher)
        self._in_top: Vector[np.bool_] = Vector(np.bool_)
        """By entry: whether it belongs to the top."""
        self._tops = Lists()
        self._rest_of: Vector[np.int64] = Vector(np.int64, fill=-1)
        """By partition: its top, and the number of its rest, or -1."""
        self._rests = LongLists()
        self._bounds: Vector[np.int64] = Vector(np.int64)
        """By rest: its entries, and the bound, an entry. Any of them may be gone."""

    @property
    def held(self) -> int:
        """How many entries there are."""
        return self._rows.held

    @property
    def slots(self) -> int:
        """How many slots are in use, including those of entries that are gone."""
        return self._rows.slots

    @property
    def nbytes(self) -> int:
        partitions = self._tops.nbytes + self._rest_of.nbytes
        return self._rows.nbytes + self._in_top.nbytes + partitions + self._rests.nbytes + self._bounds.nbytes

    def apply(self, port: int, batch: Batch) -> Batch:
        changes = self._rows.change(batch)
        slots, weight = changes.slots, changes.weight
        self._enter(changes.new)
        touched = np.unique(self._rows.owners(slots[self._in_top.cells[slots] & (weight != 0)]))
        output = self._settle(touched, slots, weight)
        self._rows.forget(changes)
        return output

    def hashes_between(self, least: int, most: int) -> Hashes:
        return self._rows.hashes_between(least, most)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        return (self._rows.collect(self._members(keys)[1]),)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        for part in state:
            slots, touched = self._rows.install(part)
            self._enter(slots)
            long = touched[self._tops.lengths(touched) > 2 * self._wanted(touched)]
            ranked = self._ranked(long)
            self._keep(long, ranked, self._number(ranked, ranked.counts))

    def drop(self, keys: Hashes) -> None:
        self._rows.drop(*self._members(keys))

    def _members(self, keys: Hashes) -> tuple[Slots, Slots]:
        """The partitions of these routing keys, and their entries."""
        owners = self._rows.with_hash(keys)
        rests = self._rest_of.cells[owners]
        slots = np.concatenate([self._tops.find(owners)[1], self._rests.find(rests[rests >= 0])[1]])
        return owners, slots[self._rows.counts(slots) > 0]

    def _enter(self, slots: Slots) -> None:
        """Put these new entries in the tops or in the rests of their partitions."""
        self._in_top.resize(self._rows.slots)
        for vector in (self._tops, self._rest_of):
            vector.resize(self._rows.partitions)
        owners = self._rows.owners(slots)
        rests = self._rest_of.cells[owners]
        in_top = rests < 0
        in_top[~in_top] = self._within(slots[~in_top], rests[~in_top])
        self._in_top.cells[slots] = in_top
        self._tops.append(owners[in_top], slots[in_top])
        self._rests.append(rests[~in_top], slots[~in_top])

    def _within(self, slots: Slots, rests: Slots) -> Mask:
        """Which of these new entries sort before the bounds of these rests."""
        bounded = np.unique(rests)
        groups = np.concatenate([bounded, rests])
        order, _ = self._in_order(groups, np.concatenate([self._bounds.cells[bounded], slots]))
        # Each group holds one bound. The first group is past its bound at count 1, the second at count 2, and so on.
        behind = np.cumsum(order < len(bounded)) > np.searchsorted(bounded, groups[order])
        within = np.empty(len(groups), np.bool_)
        within[order] = ~behind
        return within[len(bounded) :]

    def _settle(self, touched: Slots, slots: Slots, weight: Weights) -> Batch:
        """Refill and cut the tops of these partitions, in which entries have changed; returns what to put out.

        slots, weight: all entries that have changed, ascending, and by how much.
        """
        ranked = self._ranked(touched)
        after = self._number(ranked, ranked.counts)
        while (dry := self._dry(touched, ranked, after)).size:
            self._refill(dry)
            ranked = self._ranked(touched)
            after = self._number(ranked, ranked.counts)
        before = self._number(ranked, ranked.counts - of_each(ranked.slots, slots, weight))
        if self._op.rank is None:
            output = self._batch(ranked, changes(before, after))
        else:
            output = self._batch(ranked, numbered_changes(before, after, self._op.ranking))
        self._keep(touched, ranked, after)
        return output

    def _batch(self, ranked: Ranked, changed: RankChanges) -> Batch:
        slots = ranked.slots[changed.places]
        columns = self._rows.columns(slots)
        if self._op.rank is not None:
            columns.append(array_of(pa.int32(), changed.numbers.astype(np.int32)))
        rows = pa.RecordBatch.from_arrays(columns, schema=self._output)
        return Batch(rows, self._rows.hashes(slots), changed.weight)

    def _ranked(self, owners: Slots) -> Ranked:
        """The tops of these partitions, sorted."""
        positions, slots = self._tops.find(owners)
        order, peers = self._in_order(positions, slots)
        positions, slots = positions[order], slots[order]
        starts = run_starts(positions)
        return Ranked(slots, self._rows.counts(slots), positions, starts, peers)

    def _in_order(self, groups: Positions, slots: Slots) -> tuple[Positions, Mask]:
        return in_order(groups, self._keys, partial(self._rows.column_at, slots))

    def _wanted(self, owners: Slots) -> Positions:
        """How long the tops of these partitions should be. A longer top absorbs more retractions before its next
        refill."""
        spare: Positions = np.sqrt(self._rows.sizes(owners)).astype(np.int64)
        return 2 * max(self._op.limit, 0) + 1 + spare

    def _number(self, ranked: Ranked, counts: Weights) -> Numbers:
        return number(ranked, counts, self._op.ranking, self._op.limit)

    def _dry(self, owners: Slots, ranked: Ranked, numbers: Numbers) -> Slots:
        """Partitions that may have to put out an entry of their rest: no entry of their top is beyond the limit."""
        beyond = ranked.partitions[numbers.copies < ranked.counts]
        dry: Slots = owners[(np.bincount(beyond, minlength=len(owners)) == 0) & (self._rest_of.cells[owners] >= 0)]
        return dry

    def _refill(self, owners: Slots) -> None:
        """Move the best entries of these rests to the tops: the wanted length, or the top's own if that is more."""
        rests = self._rest_of.cells[owners]
        positions, slots = self._rests.find(rests)
        left = self._rows.counts(slots) > 0
        there = true_at(left)
        best = self._best(positions[there], slots[there], np.maximum(self._wanted(owners), self._tops.lengths(owners)))
        chosen = there[best]
        left[chosen] = False
        self._rests.keep(rests, left)
        self._in_top.cells[slots[chosen]] = True
        self._tops.append(owners[positions[chosen]], slots[chosen])
        self._bounds.cells[rests[positions[chosen]]] = slots[chosen]  # if several aim at one rest, the last is kept
        self._rest_of.cells[owners[np.bincount(positions[left], minlength=len(owners)) == 0]] = -1

    def _best(self, groups: Positions, slots: Slots, counts: Positions) -> Positions:
        """The places of the best entries, sorted: so many of each group. groups: ascending."""
        sizes = np.bincount(groups, minlength=len(counts))
        ends = np.cumsum(sizes)
        large = sizes > np.maximum(SORTED_ENTRIES_MAX, 2 * counts)
        parts = [true_at(~large[groups])]
        for group in true_at(large):
            places = np.arange(ends[group] - sizes[group], ends[group])
            parts.append(best_of(places, int(counts[group]), self._keys, partial(self._rows.column_at, slots)))
        places = np.concatenate(parts)
        order, _ = self._in_order(groups[places], slots[places])
        places = places[order]
        groups = groups[places]
        best: Positions = places[_nth(groups, np.bincount(groups, minlength=len(counts))) < counts[groups]]
        return best

    def _keep(self, owners: Slots, ranked: Ranked, numbers: Numbers) -> None:
        """Store the entries of these sorted tops that still exist. A top that is too long moves its worst to its
        rest."""
        there = ranked.counts > 0
        slots, positions = ranked.slots[there], ranked.partitions[there]
        lengths = np.bincount(positions, minlength=len(owners))
        put_out = ranked.partitions[there & (numbers.copies == ranked.counts)]
        wanted = np.maximum(self._wanted(owners), np.bincount(put_out, minlength=len(owners)) + 1)
        kept = np.where(lengths > 2 * wanted, wanted, lengths)
        nth = _nth(positions, lengths)
        stays = nth < kept[positions]
        if not stays.all():
            last = nth == kept[positions] - 1
            cut = (kept < lengths)[positions]
            self._cut(owners[positions[cut & last]], slots[cut & last], owners[positions[~stays]], slots[~stays])
        self._tops.replace(owners, kept, slots[stays])

    def _cut(self, owners: Slots, bounds: Slots, their_owners: Slots, slots: Slots) -> None:
        """Set the bounds of these partitions, and put these entries, which are in no list yet, in their rests."""
        first = owners[self._rest_of.cells[owners] < 0]
        known = len(self._rests)
        for vector in (self._rests, self._bounds):
            vector.resize(known + len(first))
        self._rest_of.cells[first] = np.arange(known, known + len(first))
        self._bounds.cells[self._rest_of.cells[owners]] = bounds
        self._in_top.cells[slots] = False
        self._rests.append(self._rest_of.cells[their_owners], slots)


def sort_keys(order: Iterable[ops.Order], source: pa.Schema) -> list[SortKey]:
    """The columns to sort rows of this schema by."""
    keys = []
    for one in order:
        place = source.get_field_index(one.column)
        keys.append(SortKey(place, source.field(place).type, one.descending, one.nulls_first))
    return keys


def tie_keys(op: ops.TopKOp | ops.WindowOp, source: pa.Schema) -> list[SortKey]:
    """The other columns of a partition's rows: by them, no two entries tie."""
    told = {*op.partition, *(one.column for one in op.order)}
    return [SortKey(place, field.type) for place, field in enumerate(source) if field.name not in told]


def _nth(groups: Positions, sizes: Positions) -> Positions:
    """The number of each row in its group. groups: ascending. sizes: of each."""
    nth: Positions = np.arange(len(groups)) - (np.cumsum(sizes) - sizes)[groups]
    return nth
