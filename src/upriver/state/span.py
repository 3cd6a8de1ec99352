"""Times of rows as whole numbers, and the span that the rows of a run cover (docs/internals/retention.md)."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upriver.state.vectors import Mask

Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Of the column by which a table's rows are retained. oldest, newest: of the rows that have a value, at least one.
    nulls: the number of the other rows."""

    oldest: int
    newest: int
    nulls: int

    @classmethod
    def of(cls, column: pa.Array | pa.ChunkedArray) -> Self | None:
        """``None`` for a column without a value."""
        times, known = times_of(column)
        if not known.any():
            return None
        values = times[known]
        return cls(int(values.min()), int(values.max()), len(times) - len(values))

    def to_json(self) -> list[int]:
        return [self.oldest, self.newest, self.nulls]

    @classmethod
    def from_json(cls, json: Any) -> Self | None:
        """``None`` of a run that is older than spans, or has none."""
        return None if json is None else cls(*json)


def times_of(column: pa.Array | pa.ChunkedArray) -> tuple[Times, Mask]:
    """The values as whole numbers, as ``plan/retention.py`` counts them, and where there is one: not for nulls."""
    chunk = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_date32(chunk.type):
        chunk = chunk.cast(pa.int32())
    whole = chunk.cast(pa.int64())
    known: Mask = whole.is_valid().to_numpy(zero_copy_only=False)
    return pc.fill_null(whole, 0).to_numpy(zero_copy_only=False), known
