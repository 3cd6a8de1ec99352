"""Scans: all tasks of one scan read one snapshot, whichever of them asks first."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

from upriver.runtime.coordinator_loop import SnapshotParts

SCANS_KNOWN_MAX = 10_000
"""Scans whose snapshots are remembered. Far more than workers hold: a task that comes late is told that its scan's
snapshot is gone, and is not given another one."""

TakeSnapshot = Callable[[str, float], SnapshotParts]
"""Has a snapshot of a view taken, in so many seconds."""


class Scans:
    """Remembers which snapshot each scan reads. Called by many threads at once."""

    def __init__(self, take: TakeSnapshot) -> None:
        self._take = take
        self._lock = threading.Lock()
        self._taken: OrderedDict[tuple[str, str], Future[SnapshotParts]] = OrderedDict()
        """By view and scan, in order of the first call. Guarded by the lock."""

    def parts(self, view: str, scan: str, seconds: float) -> SnapshotParts:
        """The scan's snapshot of the view, taken when first asked for; all who ask meanwhile wait for it.

        scan: any name that no other scan has. Raises what taking the snapshot raised; the next call tries again.
        """
        with self._lock:
            taken = self._taken.get((view, scan))
            is_first = taken is None
            if taken is None:
                taken = self._taken[view, scan] = Future()
                if len(self._taken) > SCANS_KNOWN_MAX:
                    self._taken.popitem(last=False)
        if is_first:
            self._settle(view, scan, taken, seconds)
        return taken.result()

    def _settle(self, view: str, scan: str, taken: Future[SnapshotParts], seconds: float) -> None:
        try:
            taken.set_result(self._take(view, seconds))
        except BaseException as error:
            with self._lock:
                self._taken.pop((view, scan), None)
            taken.set_exception(error)
