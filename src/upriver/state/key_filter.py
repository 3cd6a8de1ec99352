"""KeyFilter: the rows of given keys, out of rows that may have others.

Keys are first told apart by their hash64. Different keys can have one hash, so the values decide.
"""

from functools import cached_property

import numpy as np
import pyarrow as pa

from upriver.hashing import Hashes, hash64
from upriver.state.columns import canonical, same


class KeyFilter:
    """Keys to filter by. A null is a key like any other, all NaNs are one, and so are the two zeros."""

    def __init__(self, keys: pa.RecordBatch) -> None:
        """keys: the key's columns, by their names in the rows; a key may be there twice."""
        hashes = hash64(keys.columns, keys.num_rows)
        order = np.argsort(hashes, kind="stable")
        self._names = keys.schema.names
        self._hashes = hashes[order]
        self._columns = [canonical(column).take(pa.array(order)) for column in keys.columns]

    @cached_property
    def hashes(self) -> Hashes:
        """The hash64 of the keys, ascending, each once."""
        return np.unique(self._hashes)

    @cached_property
    def _most(self) -> int:
        """How many keys have the same hash, at most."""
        return int(np.unique(self._hashes, return_counts=True)[1].max(initial=0))

    def rows_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of these keys, in order. rows: with the key's columns, of the keys' types."""
        columns = [canonical(rows.column(name)) for name in self._names]
        hashes = hash64(columns, rows.num_rows)
        firsts = np.searchsorted(self._hashes, hashes)
        is_wanted = np.zeros(rows.num_rows, np.bool_)
        for further in range(self._most):
            places = np.minimum(firsts + further, len(self._hashes) - 1)
            is_same = self._hashes[places] == hashes
            for column, keys in zip(columns, self._columns, strict=True):
                is_same &= same(column, keys.take(pa.array(places)))
            is_wanted |= is_same
        return rows.filter(pa.array(is_wanted))
