"""What a table has brought: rows, epochs, and how many rows a second of late. Status and metrics read it here."""

from collections import deque

from upriver.ids import Epoch

RATE_WINDOW_S = 60
"""Whole seconds, before now, of which the rate is the mean."""


class TableCounts:
    """One table's epochs, counted as they are committed."""

    def __init__(self) -> None:
        self.rows = 0
        """Of all epochs; of an upsert table, versions."""
        self.epochs = 0
        self.last_epoch = Epoch(0)
        """The table's last one; 0 if it has none."""
        self.committed_at: float | None = None
        """When the last one was, in seconds since 1970; ``None`` if there is none, or nothing says when."""
        self._recent: deque[tuple[int, int]] = deque()
        """(second, rows committed in it), of at most ``RATE_WINDOW_S`` seconds."""

    def add(self, epoch: Epoch, rows: int, committed_at: float | None) -> None:
        """An epoch of the table is in the lake: one of earlier days, or of now."""
        self.rows += rows
        self.epochs += 1
        self.last_epoch = epoch
        self.committed_at = committed_at
        if committed_at is not None:
            second = int(committed_at)
            if self._recent and self._recent[-1][0] >= second:
                second, before = self._recent.pop()
                rows += before
            self._recent.append((second, rows))
            while self._recent[0][0] <= second - RATE_WINDOW_S:
                self._recent.popleft()

    def age_s(self, now: float) -> float | None:
        """Seconds since the last epoch was committed. now: in seconds since 1970."""
        return None if self.committed_at is None else max(0.0, now - self.committed_at)

    def rows_per_s(self, now: float) -> float:
        """Rows a second, over the last ``RATE_WINDOW_S`` seconds."""
        return sum(rows for second, rows in self._recent if second > now - RATE_WINDOW_S) / RATE_WINDOW_S
