"""Sorting rows in Spark's order of each type: nulls where they are wanted, NaN above all numbers and equal to itself,
-0.0 equal to 0.0, strings by their UTF-8 bytes, arrays and structs value by value.

Values become integers, *cells*, that sort as they do. It may take several to tell all values of a column apart: of a
string first eight bytes are compared, then eight more, and only then all. So rows are sorted by one part after the
other, each for those rows alone that tie in all parts before.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upriver.state.columns import Cells, canonical, cells_of, is_fixed, validity
from upriver.state.entries import comparable
from upriver.state.exact_values import exact_list
from upriver.state.ordering import sorted_by
from upriver.state.vectors import Mask, Positions, true_at

Step = Callable[[pa.Array], Iterable[Cells]]
"""Gives integers that sort as the values do, as far as they go: the most significant part first."""

Read = Callable[[int, Positions], pa.Array]
"""Gives one column, by its place, of the rows at these positions."""

LONG_DECIMAL_DIGITS = 18
"""Decimals of so many digits fit in 64 bits."""

WORDS_MAX = 3
"""Of eight bytes each: so much of strings, behind what all have in common, is compared as numbers."""


@dataclass(frozen=True, slots=True)
class SortKey:
    """What rows are sorted by. place: of the column in its rows."""

    place: int
    type: pa.DataType
    descending: bool = False
    nulls_first: bool = True

    @property
    def steps(self) -> tuple[Step, ...]:
        """What tells the column's values apart, one after the other."""
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
    """Sort rows by their group, then by the keys; rows that tie stay in the order in which they are.

    groups: a number for each row. Returns the rows' positions in order; and where in this order a row differs from the
    one before it in its group or in a key.
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
    """A part of these rows, in no particular order, that holds the first ``count`` of them, and few more.

    Costs no sort of all rows. count: 1 or more.
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
    """The places of ties of several rows. heads: where each tie begins."""
    tied = ~heads
    tied[:-1] |= tied[1:]
    return true_at(tied)


def _refine(order: Positions, heads: Mask, places: Positions, cells: Cells) -> None:
    """Sort the rows at these places of the order, ties of several rows, by their cells, within each tie."""
    bits = len(places).bit_length()
    key = np.cumsum(heads[places]) - 1 << bits | _ranks_of(cells)
    sorting = _sorted(key, 2 * bits)
    in_turn = key[sorting]
    order[places] = order[places[sorting]]
    heads[places[1:]] |= in_turn[1:] != in_turn[:-1]


def _ranks_of(cells: Cells) -> Positions:
    """Numbers from 0 on, without gaps, that sort as the cells do. Does without a stable sort, which takes longer."""
    order = np.argsort(cells)
    in_turn = cells[order]
    ranks = np.empty(len(cells), np.int64)
    ranks[order] = np.cumsum(np.concatenate([[False], in_turn[1:] != in_turn[:-1]]))
    return ranks


def _sorted(key: Positions, bits: int) -> Positions:
    """The positions of these numbers in their order; equal ones stay in the order in which they are.

    bits: that a number has at most, and no more than 62.
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
    return (_ranks_one_by_one,)


def _integers(values: pa.Array) -> Iterator[Cells]:
    yield cells_of(values)


def _floats(values: pa.Array) -> Iterator[Cells]:
    cells = cells_of(canonical(values))
    width = cells.dtype.itemsize
    bits = cells.view(f"i{width}")
    # As integers, the bits of negative floats run the wrong way: turn all of them round but the sign.
    yield bits ^ (bits >> (8 * width - 1) & np.iinfo(bits.dtype).max)


def _decimals(values: pa.Array) -> Iterator[Cells]:
    words = cells_of(values).view(np.int64).reshape(-1, 2)
    if values.type.precision > LONG_DECIMAL_DIGITS:
        yield words[:, 1]
        yield words[:, 0].view(np.uint64)
    else:
        yield words[:, 0]


def _words(values: pa.Array) -> Iterator[Cells]:
    """Eight bytes of each value as one number, zeros behind its end, from where two values first differ."""
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
    """How many bytes all values begin with."""
    extremes = pc.min_max(values.cast(pa.binary()))
    least, most = extremes["min"].as_py() or b"", extremes["max"].as_py() or b""
    shared = min(len(least), len(most))
    return next((place for place in range(shared) if least[place] != most[place]), shared)


def _ranks(values: pa.Array) -> Iterator[Cells]:
    ranks = pc.rank(values, **sorted_by([("", "ascending")], "at_start"), tiebreaker="dense")
    yield ranks.to_numpy().astype(np.int64)


def _ranks_one_by_one(values: pa.Array) -> Iterator[Cells]:
    """Of values that Arrow does not compare."""
    forms = [comparable(value) for value in exact_list(values)]
    ranks = {form: rank for rank, form in enumerate(sorted(set(forms)))}
    yield np.array([ranks[form] for form in forms], np.int64)
