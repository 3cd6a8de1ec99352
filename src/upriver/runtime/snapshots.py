"""Snapshots: a worker's parts, and which snapshot each scan reads.

A worker holds its parts of snapshots from when they are taken until they are dropped; scans read them meanwhile. A
worker that leaves a running app waits for the scans that were promised its parts.

All tasks of one scan read the same snapshot, whichever task asks first.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf
from time import monotonic

import pyarrow as pa

from upriver.errors import ProtocolError, WaitTimeout
from upriver.hashing import Hashes, hash64
from upriver.ids import SnapshotId
from upriver.runtime.coordinator_loop import SnapshotParts
from upriver.vnodes import HashRange, hashes_in

AGAIN_S = 5.0
"""Seconds after a scan of a part in which another scan of the same action may ask for it: a self-join has several."""


@dataclass(slots=True)
class SnapshotPart:
    """A worker's part of one snapshot. rows: sorted by the hash64 of the view's key. readers: how many scans are
    reading it. read_at: when the last scan was through, by the monotonic clock."""

    rows: pa.Table
    readers: int = 0
    read_at: float = inf
    _sorted: tuple[tuple[str, ...], Hashes] | None = None
    """The key by which a scan has asked for rows, and the hash64 of the rows."""
    _hashing: threading.Lock = field(default_factory=threading.Lock)
    """Held while the hashes are computed: only the scans of this part wait for that."""

    def rows_in(self, key: Sequence[str], ranges: Iterable[HashRange]) -> pa.Table:
        """The rows whose key has its hash64 in one of the ranges. key: the view's key columns. Nothing is copied."""
        with self._hashing:
            if self._sorted is None or self._sorted[0] != tuple(key):
                self._sorted = tuple(key), _hashes_of(self.rows, key)
            _, hashes = self._sorted
        places = [hashes_in(range, hashes) for range in ranges]
        parts = [self.rows.slice(place.start, place.stop - place.start) for place in places]
        return pa.concat_tables([self.rows.slice(0, 0), *parts])

    def wanted_until(self, again_s: float) -> float:
        return inf if self.readers else self.read_at + again_s


def _hashes_of(rows: pa.Table, key: Sequence[str]) -> Hashes:
    missing = [name for name in key if name not in rows.schema.names]
    if missing:
        raise ProtocolError(f"the view has no column {missing[0]!r} any more; read the view again")
    hashes = hash64([rows.column(name) for name in key], rows.num_rows)
    if (hashes[1:] < hashes[:-1]).any():
        raise ProtocolError(f"the rows are not in the order of ({', '.join(key)}); read the view again")
    return hashes


class HeldSnapshots:
    """Parts by snapshot. Called by any thread. again_s: as ``AGAIN_S``."""

    def __init__(self, again_s: float = AGAIN_S) -> None:
        self._again_s = again_s
        self._parts: dict[SnapshotId, SnapshotPart] = {}
        self._is_hurried = False
        self._changed = threading.Condition()
        """Guards and announces the above."""

    def hold(self, snapshot: SnapshotId, rows: pa.Table) -> None:
        with self._changed:
            self._parts[snapshot] = SnapshotPart(rows)

    def forget(self, snapshot: SnapshotId) -> None:
        with self._changed:
            self._parts.pop(snapshot, None)
            self._changed.notify_all()

    def read(self, snapshot: SnapshotId, view: str, first: int = 0) -> SnapshotPart:
        """The part, for a scan that calls :meth:`was_read` at its end.

        view: for the message. first: the row from which they are wanted; a scan begins with 0. Raises WaitTimeout if
        they are not held any more.
        """
        with self._changed:
            part = self._parts.get(snapshot)
            if part is None:
                raise WaitTimeout(f"view {view!r}: snapshot {snapshot} is no longer held; read the view again")
            part.readers += not first
            return part

    def was_read(self, snapshot: SnapshotId) -> None:
        """A scan has read all that it wants of this part."""
        with self._changed:
            if (part := self._parts.get(snapshot)) and part.readers:
                part.readers -= 1
                part.read_at = monotonic()
                self._changed.notify_all()

    def wait_read(self, seconds: float) -> None:
        """Wait until no scan wants a part that is held here, or no reader is left; at most so many seconds."""
        end = monotonic() + seconds
        with self._changed:
            while not self._is_hurried and (left := min(self._wanted_until(), end) - monotonic()) > 0:
                self._changed.wait(left)

    def hurry(self) -> None:
        """No process is left that could read."""
        with self._changed:
            self._is_hurried = True
            self._changed.notify_all()

    def _wanted_until(self) -> float:
        return max((part.wanted_until(self._again_s) for part in self._parts.values()), default=-inf)


SCANS_KNOWN_MAX = 10_000
"""Scans whose snapshots are remembered. Far more than workers hold: a late task must get an error that its scan's
snapshot is gone, not another snapshot."""

TakeSnapshot = Callable[[str, float], SnapshotParts]
"""Takes a snapshot of a view, within so many seconds."""


class SharedScans:
    """Remembers which snapshot each scan reads. Called by many threads at once."""

    def __init__(self, take: TakeSnapshot) -> None:
        self._take = take
        self._lock = threading.Lock()
        self._taken: OrderedDict[tuple[str, str], Future[SnapshotParts]] = OrderedDict()
        """By view and scan, in order of the first call. Guarded by the lock."""

    def parts(self, view: str, scan: str, seconds: float) -> SnapshotParts:
        """The scan's snapshot of the view, taken at the first call; further callers wait for it meanwhile.

        scan: any name that no other scan has. Raises the error of taking the snapshot; the next call tries again.
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
