"""Changes of views for callers of an app, read from the lake."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator

import pyarrow as pa

from upriver.ids import Epoch
from upriver.lake.change_log import ChangeLog
from upriver.lake.lake import Lake
from upriver.state.key_filter import KeyFilter

LOOK_S = 0.5
"""Seconds between two looks into the lake for newer changes of a view, for all its readers together."""
VIEWS_MAX = 1_000
"""Views whose last version is remembered between two looks."""


class ChangeFeed:
    """The changes of one app's views. Usable by many threads. clock: seconds, monotonic."""

    def __init__(self, lake: Lake, clock: Callable[[], float] = time.monotonic) -> None:
        self.log = ChangeLog(lake)
        self._clock = clock
        self._lock = threading.Lock()
        """Held while a thread looks for newer changes; guards what follows."""
        self._last: OrderedDict[str, tuple[Epoch, float]] = OrderedDict()
        """By view: its last version, and when that was looked up."""

    def last(self, view: str) -> Epoch:
        """The newest version of a view's changes, as of at most ``LOOK_S`` ago. Raises UnknownView, LakeError."""
        with self._lock:
            known, looked_at = self._last.get(view, (Epoch(0), None))
            if looked_at is None or self._clock() >= looked_at + LOOK_S:
                known = self.log.last(view)
                self._last[view] = known, self._clock()
                self._last.move_to_end(view)
                if len(self._last) > VIEWS_MAX:
                    self._last.popitem(last=False)
            return known

    def changes(
        self, view: str, after: Epoch | None, through: Epoch, keys: KeyFilter | None = None
    ) -> Iterator[pa.RecordBatch]:
        """As ``ChangeLog.changes``. keys: only changes of these."""
        for batch in self.log.changes(view, after, through, keys=None if keys is None else keys.hashes):
            yield batch if keys is None else keys.rows_of(batch)
