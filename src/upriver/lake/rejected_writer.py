"""Writes the rows that a worker sets aside, and passes its reports on behind them.

Whatever a worker reports may depend on rows that were left out, so it is said when those are in the lake. If the lake
takes no more, the reports wait, and the writes are tried again with back-off for as long as it takes: a disk gets room
again. Lookups are answered meanwhile, as of epochs that have ended.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable

from upriver.engine.row_text import error_text
from upriver.errors import LakeError
from upriver.lake.lake import Lake
from upriver.lake.rejected import Rejected
from upriver.plan.plan import TableSpec
from upriver.protocol.messages import FromWorker
from upriver.protocol.worker_events import SetRowsAside

WRITE_AGAIN_S_MIN, WRITE_AGAIN_S_MAX = 0.1, 10.0
"""Seconds from a write that has failed to the next try: twice as many each time."""
OWED_MAX = 10_000
"""Writes and reports that wait at most. With more the worker fails, and what it has not reported comes again."""


class RejectedWriter:
    """Of one worker's loop. report: sends to the coordinator."""

    def __init__(self, lake: Lake, report: Callable[[FromWorker], None], now: Callable[[], float] = time.monotonic):
        """now: the time in seconds."""
        self._lake = lake
        self._send = report
        self._now = now
        self._rejected: dict[str, Rejected] = {}
        """By table."""
        self._owed: deque[SetRowsAside | FromWorker] = deque()
        """What waits, in order; first a write, if anything."""
        self.held_up: str | None = None
        """Why the first write failed when it was last tried."""
        self._again_s = WRITE_AGAIN_S_MIN
        self._again_at = 0.0

    @property
    def due_in_s(self) -> float:
        """Seconds until a write is tried again; infinitely many if none waits."""
        return max(0.0, self._again_at - self._now()) if self._owed else math.inf

    def assign(self, tables: Iterable[TableSpec]) -> None:
        """Rows of these tables may be set aside from now on."""
        self._rejected = {table.name: Rejected(self._lake, table) for table in tables}

    def set_aside(self, action: SetRowsAside) -> None:
        """Write the rows, now or as soon as it can be done. Raises NotWritten if too many wait already."""
        if self._owed:
            self._wait(action)
        else:
            try:
                self._write(action)
            except LakeError as error:
                self._owed.append(action)
                self._hold_up(error)

    def report(self, message: FromWorker) -> None:
        """Send it, behind what waits."""
        if self._owed:
            self._wait(message)
        else:
            self._send(message)

    def try_again(self) -> None:
        """Do what waits, until a write fails."""
        while self._owed:
            first = self._owed[0]
            if isinstance(first, SetRowsAside):
                try:
                    self._write(first)
                except LakeError as error:
                    self._hold_up(error)
                    return
            else:
                self._send(first)
            self._owed.popleft()
        self.held_up, self._again_s = None, WRITE_AGAIN_S_MIN

    def _write(self, action: SetRowsAside) -> None:
        aside = action.aside
        self._rejected[aside.table].add(action.epoch, aside.view, aside.rows, aside.errors)

    def _wait(self, what: SetRowsAside | FromWorker) -> None:
        if len(self._owed) >= OWED_MAX:
            raise LakeError(f"rows that were set aside cannot be written: {self.held_up}")
        self._owed.append(what)

    def _hold_up(self, error: LakeError) -> None:
        self.held_up = error_text(error)
        self._again_at = self._now() + self._again_s
        self._again_s = min(2 * self._again_s, WRITE_AGAIN_S_MAX)
