"""Rows from which a view cannot be computed, and how they are found: by halves."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.errors import RowError

Attempt = Callable[[Batch], object]
"""Raises RowError if any of the rows is bad. It keeps nothing of them, and sees each by itself."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """Rows of a table that were left out of a view. rows: with the table's schema. errors: what is wrong with each."""

    view: str
    table: str
    rows: pa.RecordBatch
    errors: Sequence[str]


def bad_rows(batch: Batch, attempt: Attempt) -> Iterator[tuple[int, str]]:
    """The rows on which the attempt fails, ascending, each with what is wrong; it fails on the whole batch.

    k bad rows of n take O(k log n) attempts, on O(n log k) rows in all.
    """

    def error(start: int, stop: int) -> str | None:
        try:
            attempt(batch.slice(start, stop))
        except RowError as failed:
            return str(failed)
        return None

    def among(start: int, stop: int) -> Iterator[tuple[int, str]]:
        """Of these rows, which have a bad one."""
        if stop - start == 1:
            found = error(start, stop)
            if found is not None:
                yield start, found
            return
        middle = (start + stop) // 2
        first_is_bad = error(start, middle) is not None
        if first_is_bad:
            yield from among(start, middle)
        if not first_is_bad or error(middle, stop) is not None:
            yield from among(middle, stop)

    yield from among(0, len(batch))
