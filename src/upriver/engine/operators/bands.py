"""Bands of a join: what a side's rows are searched by, and which ranges a row of the other side asks for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from upriver.plan.plan import Band, JoinOp
from upriver.state.columns import validity
from upriver.state.range_index import LEAST, MOST, Intervals, range_cells
from upriver.state.vectors import Mask


@dataclass(frozen=True, slots=True)
class SideBands:
    """One input of a join with bands.

    places: of the columns that the bands compare, among those that are kept; the one to search by comes first. tried:
    for each, whether it is null where it cannot be computed. asks: for each band, the column, the column of the other
    side (both as numbers in ``places``), and whether the other side's value must be at least this side's.
    """

    places: tuple[int, ...]
    tried: tuple[bool, ...]
    asks: tuple[tuple[int, int, bool], ...]

    def intervals(self, column: Callable[[int], pa.Array]) -> tuple[Mask, Intervals]:
        """Which of some rows may meet a band, and the values of all in each column. column: of the rows, by place."""
        columns = [column(place) for place in self.places]
        valid = np.array([validity(values) for values in columns])
        tried = np.array(self.tried)
        known = valid[tried].all(axis=0)
        cells = np.array([range_cells(values) for values in columns])
        least, most = np.where(known, cells, LEAST), np.where(known, cells, MOST)
        return ~known | valid.all(axis=0), Intervals(least, most)

    def ranges(self, own: Intervals, columns: int) -> Intervals:
        """The ranges that rows of this side ask for. own: the rows' values. columns: of the other side."""
        size = own.least.shape[1]
        least, most = np.full((columns, size), LEAST), np.full((columns, size), MOST)
        for place, other, is_least in self.asks:
            if is_least:
                np.maximum(least[other], own.least[place], out=least[other])
            else:
                np.minimum(most[other], own.most[place], out=most[other])
        return Intervals(least, most)


def bands_of(op: JoinOp, kept: tuple[pa.Schema, pa.Schema]) -> tuple[SideBands | None, SideBands | None]:
    """The bands as each side sees them. kept: the columns of each side that are kept."""
    if not op.bands:
        return None, None
    names = _by_use(op.bands, 0, op.tried), _by_use(op.bands, 1, op.tried)
    left, right = (
        SideBands(
            places=tuple(schema.get_field_index(name) for name in columns),
            tried=tuple(name in op.tried for name in columns),
            asks=tuple(
                (
                    columns.index(_sides(band)[port]),
                    names[1 - port].index(_sides(band)[1 - port]),
                    band.at_most != (port == 1),
                )
                for band in op.bands
            ),
        )
        for port, (schema, columns) in enumerate(zip(kept, names, strict=True))
    )
    return left, right


def _by_use(bands: Sequence[Band], port: int, tried: Sequence[str]) -> list[str]:
    """The columns of a side that bands compare. First those that bands bound from both sides and that are always
    known."""
    found: dict[str, set[bool]] = {}
    for band in bands:
        found.setdefault(_sides(band)[port], set()).add(band.at_most)
    return sorted(found, key=lambda name: (name in tried, -len(found[name])))


def _sides(band: Band) -> tuple[str, str]:
    return band.left, band.right
