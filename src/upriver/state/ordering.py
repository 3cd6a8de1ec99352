"""The order of values as an order of machine integers, so that numpy can compare what Arrow keeps.

Numbers, booleans, dates and timestamps are integers already; floats are mapped to integers of the same order (NaN is
the greatest, as in Spark). Values of other types are ranked by Arrow, so their integers mean nothing beyond one call.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upriver.state.columns import Cells, canonical, cells_of, is_fixed

_NULLS_ARE_PLACED_BY_KEY = int(pa.__version__.partition(".")[0]) >= 25


def is_number(type: pa.DataType) -> bool:
    """Whether the values are, or map in order to, integers of at most 64 bits that mean the same in every call."""
    return is_fixed(type) and type.bit_width <= 64 and not pa.types.is_decimal(type)


def order_keys(values: pa.Array) -> Cells:
    """An integer for each value; equal values have equal ones. Nulls: no number may be null; others' come last."""
    if is_number(values.type):
        return ordered(cells_of(canonical(values)))
    return ranks(values, "ascending")


def ranks(values: pa.Array, order: str) -> Cells:
    """From 1 on, in this order (``ascending`` or ``descending``); equal values have one rank, and nulls the last."""
    found: Cells = pc.rank(values, **sorted_by([("", order)], "at_end"), tiebreaker="dense").to_numpy().astype(np.int64)
    return found


def sorted_by(keys: Sequence[tuple[str, str]], nulls: str) -> dict[str, Any]:
    """The arguments by which Arrow's ``rank`` and ``sort_indices`` sort by these (column, order), with the nulls of
    each column ``at_start`` or ``at_end``. Arrow takes the place of nulls with each key since 25, and before that only
    once for all of them."""
    if _NULLS_ARE_PLACED_BY_KEY:
        return {"sort_keys": [(*key, nulls) for key in keys]}
    return {"sort_keys": list(keys), "null_placement": nulls}


def ordered(cells: Cells) -> Cells:
    """Canonical floats as signed integers of the same order; other cells as they are."""
    if cells.dtype.kind != "f":
        return cells
    width = cells.dtype.itemsize
    bits = cells.view(f"i{width}")
    # As integers, the bits of negative floats run the wrong way: turn all of them round but the sign.
    in_order: Cells = bits ^ (bits >> (8 * width - 1) & np.iinfo(bits.dtype).max)
    return in_order


def from_ordered(cells: Cells, dtype: np.dtype[Any]) -> Cells:
    """The inverse of :func:`ordered`, which undoes itself."""
    return ordered(cells.view(dtype)).view(dtype) if dtype.kind == "f" else cells
