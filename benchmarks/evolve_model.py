"""The rows and the views of ``python -m benchmarks evolve``, and what each view must answer."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TABLE, QUIET = "events", "quiet"
"""The table of all rows, and one with a single row, which the idle views read."""
FULL, WARM, EXCHANGED, ADDED = "full", "warm", "exchanged", "added"
OTHERS = (FULL, WARM, EXCHANGED)
"""The views that are looked up while another one changes."""
ROWS_PER_KEY = 10
WARM_KEYS = 2_000
"""Keys of the partial view that are looked up before anything changes."""
BUCKETS = 1_000
"""Keys of the view with an exchange."""

Numbers = npt.NDArray[np.int64]

SQL: Mapping[str, str] = {
    FULL: f"SELECT k, count(*) AS n, sum(v) AS total FROM {TABLE} GROUP BY k",
    WARM: f"SELECT k, count(*) AS n, max(v) AS total FROM {TABLE} GROUP BY k",
    EXCHANGED: f"""
        SELECT bucket AS k, count(*) AS n, sum(total) AS total
        FROM (SELECT k, sum(v) AS total, sum(v) % {BUCKETS} AS bucket FROM {TABLE} GROUP BY k)
        GROUP BY bucket
        """,
    ADDED: f"SELECT k, count(*) AS n, min(v) AS total FROM {TABLE} GROUP BY k",
}
"""By view. All have the columns ``k``, the key, ``n`` and ``total``."""


@dataclass(frozen=True, slots=True)
class EvolveModel:
    """The rows ``(k, v)``: ``v`` counts from 0, and ``k`` is the rest of its division by the number of keys."""

    rows: int

    @property
    def keys(self) -> int:
        return max(1, self.rows // ROWS_PER_KEY)

    @property
    def columns(self) -> list[str]:
        """Of the rows, out of ``spark.range(rows)``."""
        return [f"id % {self.keys} AS k", "id AS v"]

    def truth(self, view: str) -> tuple[Numbers, Numbers]:
        """``n`` and ``total`` of each key of a view, from 0 up; ``n`` is 0 for a key that it has not."""
        keys = np.arange(self.keys)
        n = self.rows // self.keys + (keys < self.rows % self.keys)
        last = keys + (n - 1) * self.keys
        sums = (keys + last) * n // 2
        if view == EXCHANGED:
            counts, totals = np.zeros(BUCKETS, np.int64), np.zeros(BUCKETS, np.int64)
            np.add.at(counts, sums % BUCKETS, 1)
            np.add.at(totals, sums % BUCKETS, sums)
            return counts, totals
        return n, {FULL: sums, WARM: last, ADDED: keys}[view]

    def keys_of(self, view: str) -> Numbers:
        """The keys of a view that are looked up: those of the partial view all fit in its memory."""
        found = np.flatnonzero(self.truth(view)[0])
        return found[:WARM_KEYS] if view == WARM else found
