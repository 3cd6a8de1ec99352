"""How many rows a worker takes in at a time: whoever looks a key up may have to wait until they are taken in."""

import time
from collections.abc import Callable

from upriver.runtime.slice_pace import SlicePace

ROWS_BUDGET_S = 0.01
"""Seconds of processor time that a piece may take to be taken in."""
ROWS_AIM_SHARE = 0.75
"""Of that time."""
ROWS_MIN = 8_192
"""Rows of a piece, however long the last one took: each has a cost of its own, and with fewer rows that would be most
of it."""
ROWS_TIMED_MIN = ROWS_MIN // 2
"""Rows of a piece that tells something of how long others will take."""


class RowPace:
    """Follows from what pieces have taken."""

    def __init__(self) -> None:
        self._pace = SlicePace(ROWS_BUDGET_S, aim_share=ROWS_AIM_SHARE)

    @property
    def rows(self) -> int:
        """Of the next piece, at most."""
        return max(ROWS_MIN, self._pace.keys)

    def timed(self, rows: int, take_in: Callable[[], object]) -> None:
        """Have so many rows taken in."""
        if rows < ROWS_TIMED_MIN:
            take_in()
            return
        began = time.thread_time()
        take_in()
        self._pace.took(rows, time.thread_time() - began)
