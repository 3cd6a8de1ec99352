"""Times of rows as whole numbers, and the span that the rows of a run cover (docs/internals/retention.md)."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upriver.records import typed
from upriver.state.vectors import Mask

Times = npt.NDArray[np.int64]

TIME_MIN = -(2**63)
"""Below all times."""
PARTS = 8
"""Equal parts of a run's rows that have a time, between which a span names the times."""


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Of the column by which a table's rows are retained. oldest, newest: of the rows that have a value; ``TIME_MIN``
    if it is known that none has. nulls: the number of the other rows. marks: the newest time of the oldest eighth of
    the rows that have a value, of the oldest two eighths, and so on to seven; empty for fewer than ``PARTS`` rows, and
    in old runs."""

    oldest: int
    newest: int
    nulls: int
    marks: tuple[int, ...] = ()

    @classmethod
    def of(cls, column: pa.Array | pa.ChunkedArray) -> Self | None:
        """``None`` for a column without a value."""
        times, known = times_of(column)
        if not known.any():
            return None
        values = times[known]
        oldest, newest, nulls = int(values.min()), int(values.max()), len(times) - len(values)
        if len(values) < PARTS:
            return cls(oldest, newest, nulls)
        ranks = [-(-len(values) * part // PARTS) - 1 for part in range(1, PARTS)]
        return cls(oldest, newest, nulls, tuple(np.partition(values, ranks)[ranks].tolist()))

    @classmethod
    def without_times(cls, rows: int) -> Self:
        """Of so many rows that have no value."""
        return cls(TIME_MIN, TIME_MIN, rows)

    def old_rows(self, rows: int, cut: int) -> int:
        """How many of a run's rows have a time up to ``cut``, at least. rows: of the run."""
        timed = rows - self.nulls
        if self.newest <= cut:
            return timed
        return timed * sum(mark <= cut for mark in self.marks) // PARTS

    def to_json(self) -> list[int]:
        return [self.oldest, self.newest, self.nulls, *self.marks]

    @classmethod
    def from_json(cls, json: Any) -> Self | None:
        """``None`` of a run that is older than spans, or has none."""
        if json is None:
            return None
        oldest, newest, nulls, *marks = json
        return typed(cls(oldest, newest, nulls, tuple(marks)))


def times_of(column: pa.Array | pa.ChunkedArray) -> tuple[Times, Mask]:
    """The values as whole numbers, as ``plan/retention.py`` counts them, and where there is one: not for nulls."""
    chunk = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_date32(chunk.type):
        chunk = chunk.cast(pa.int32())
    whole = chunk.cast(pa.int64())
    known: Mask = whole.is_valid().to_numpy(zero_copy_only=False)
    return pc.fill_null(whole, 0).to_numpy(zero_copy_only=False), known
