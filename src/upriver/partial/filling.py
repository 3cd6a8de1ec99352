"""Filling: an upquery's answer on its way into a region, some rows at a time.

Its keys are pending until the last row is in. If the view cannot be computed from one of the rows, all state of the
keys that it came with is dropped again, and these are filled in halves, until the key with the bad row is alone.
"""

from collections.abc import Sequence

from upriver.engine.batch import Batch
from upriver.ids import Epoch
from upriver.partial.unfillable import Unanswered
from upriver.xxh64 import Hashes


class Filling:
    """number: the upquery's. keys: that the rows are of, ascending and unique. through: the last epoch that was
    read."""

    def __init__(self, number: int, keys: Hashes, rows: Sequence[tuple[int, Batch]], through: Epoch) -> None:
        """rows: by port, in order."""
        self.number = number
        self.keys = keys
        self.through = through
        self.unanswered: list[Unanswered] = []
        """Keys of which the view cannot be computed."""
        self._ports = tuple(reversed(rows))
        """The right side of a left join first: no left row is put out alone."""
        self._groups = [keys] if len(keys) else []
        """Keys that are filled together; those of the last group now, those of the others later."""
        self._port = self._row = 0
        """Where the rows begin that the last group still needs."""

    @property
    def group(self) -> Hashes:
        """The keys that are being filled."""
        return self._groups[-1]

    @property
    def left(self) -> int:
        """How many rows, at least, are to be looked through; 0 if there is nothing more to do."""
        if not self._groups:
            return 0
        rows = sum(len(batch) for _, batch in self._ports)
        seen = sum(len(batch) for _, batch in self._ports[: self._port]) + self._row
        return rows - seen + rows * (len(self._groups) - 1)

    def take(self, rows_max: int) -> tuple[int, Batch] | None:
        """The next rows of one port, among which are those of the group; ``None`` if there are no more for any."""
        while self._groups:
            while self._port < len(self._ports):
                port, batch = self._ports[self._port]
                start, end = self._row, min(self._row + rows_max, len(batch))
                self._port, self._row = (self._port, end) if end < len(batch) else (self._port + 1, 0)
                if start < end:
                    return port, batch.slice(start, end)
            self._groups.pop()
            self._port = self._row = 0
        return None

    def spoil(self, error: Exception) -> None:
        """One of the group's rows is bad: begin with its halves. There must be no state of its keys."""
        keys = self._groups.pop()
        self._port = self._row = 0
        if len(keys) == 1:
            self.unanswered.append(Unanswered.because(keys, error))
            return
        half = len(keys) // 2
        self._groups += [keys[half:], keys[:half]]
