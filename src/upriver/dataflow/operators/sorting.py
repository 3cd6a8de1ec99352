"""Sorting rows in Spark's order of each type: nulls where they are wanted, NaN above all numbers and equal to itself,
-0.0 equal to 0.0, strings by their UTF-8 bytes, arrays and structs value by value.

Values become integers, *cells*, that sort as they do. A column may take several steps to tell all its values apart:
of a string first eight bytes are compared, and only where those are equal more. So rows are sorted by one step after
the other, each step for those rows alone that tie in all steps before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upriver.state.columns import Cells, canonical, cells_of, is_fixed, validity
from upriver.state.entries import comparable
from upriver.state.vectors import Mask, Positions

Step = Callable[[pa.Array], Sequence[Cells]]
"""Gives integers that sort as the values do, as far as they go: the most significant first; none if all are equal."""

Read = Callable[[int, Positions], pa.Array]
"""Gives one column, by its place, of the rows at these positions."""

PREFIX_BYTES = (0, 8, 16)
"""Where the parts of a string begin that are compared as numbers, before whole strings are."""


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

    def cells(self, step: Step, values: pa.Array) -> list[Cells]:
        """One step's integers, in this key's direction."""
        cells = [~part if self.descending else part for part in step(values)]
        if not values.null_count or not cells:
            return cells
        valid = validity(values)
        in_front = valid if self.nulls_first else ~valid
        return [in_front.view(np.uint8), *(np.where(valid, part, part.dtype.type(0)) for part in cells)]


def in_order(groups: Positions, keys: Sequence[SortKey], read: Read) -> tuple[Positions, Mask]:
    """Sort rows by their group, then by the keys; rows that tie stay in the order in which they are.

    groups: a number for each row. Returns the rows' positions in order; and where in this order a row differs from the
    one before it in its group or in a key.
    """
    order = np.argsort(groups, kind="stable")
    heads = np.ones(len(order), np.bool_)
    heads[1:] = groups[order[1:]] != groups[order[:-1]]
    for key in keys:
        for step in key.steps:
            tied = ~heads
            tied[:-1] |= tied[1:]
            places = np.flatnonzero(tied)
            if not places.size:
                return order, heads
            cells = key.cells(step, read(key.place, order[places]))
            if cells:
                _refine(order, heads, places, cells)
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


def _refine(order: Positions, heads: Mask, places: Positions, cells: Sequence[Cells]) -> None:
    """Sort the rows at these places of the order, ties of several rows, by their cells, within each tie."""
    ties = np.cumsum(heads[places])
    sorting = np.lexsort((*reversed(cells), ties)) if ties[-1] > 1 else np.lexsort((*reversed(cells),))
    order[places] = order[places[sorting]]
    for part in cells:
        in_turn = part[sorting]
        heads[places[1:]] |= in_turn[1:] != in_turn[:-1]


# Steps: what lies under a null is arbitrary. --------------------------------------------------------------------------


def _steps_of(type: pa.DataType) -> tuple[Step, ...]:
    if pa.types.is_null(type):
        return ()
    if pa.types.is_decimal128(type):
        return (_decimals,)
    if is_fixed(type) and type.bit_width <= 64:
        return (_floats if pa.types.is_floating(type) else _integers,)
    if pa.types.is_string(type) or pa.types.is_binary(type):
        return (*(partial(_eight_bytes, start) for start in PREFIX_BYTES), _ranks)
    if pa.types.is_large_string(type) or pa.types.is_large_binary(type):
        return (_ranks,)
    return (_ranks_one_by_one,)


def _integers(values: pa.Array) -> Sequence[Cells]:
    return (cells_of(values),)


def _floats(values: pa.Array) -> Sequence[Cells]:
    cells = cells_of(canonical(values))
    width = cells.dtype.itemsize
    bits = cells.view(f"i{width}")
    # As integers, the bits of negative floats run the wrong way: turn all of them round but the sign.
    return (bits ^ (bits >> (8 * width - 1) & np.iinfo(bits.dtype).max),)


def _decimals(values: pa.Array) -> Sequence[Cells]:
    words = cells_of(values).view(np.int64).reshape(-1, 2)
    if values.type.precision <= 18:
        return (words[:, 0],)
    return words[:, 1], words[:, 0].view(np.uint64)


def _eight_bytes(start: int, values: pa.Array) -> Sequence[Cells]:
    """Eight bytes of each value from there on as one number, zeros behind its end."""
    _, offset_buffer, data = values.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
    begins, left = offsets[:-1] + start, np.clip(np.diff(offsets) - start, 0, 8)
    if not left.any():
        return ()
    text = np.frombuffer(data or b"", np.uint8)[: offsets[-1]]
    padded = np.concatenate([text, np.zeros(8, np.uint8)])
    at_every_byte: Cells = np.ndarray((len(text) + 1,), ">u8", padded, strides=(1,))
    words = at_every_byte[np.minimum(begins, len(text))].astype(np.uint64)
    unwanted = (64 - 8 * left).astype(np.uint64)
    return (np.where(left > 0, words >> unwanted % 64 << unwanted % 64, np.uint64(0)),)


def _ranks(values: pa.Array) -> Sequence[Cells]:
    ranks = pc.rank(values, sort_keys=[("", "ascending", "at_start")], tiebreaker="dense")
    return (ranks.to_numpy().astype(np.int64),)


def _ranks_one_by_one(values: pa.Array) -> Sequence[Cells]:
    """Of values that Arrow does not compare."""
    forms = [comparable(value) for value in values.to_pylist()]
    ranks = {form: rank for rank, form in enumerate(sorted(set(forms)))}
    return (np.array([ranks[form] for form in forms], np.int64),)
