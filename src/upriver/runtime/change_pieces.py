"""A view's changes in bounded pieces, for clients that cannot reach the lake.

A client asks for the piece behind a *position*, and each piece tells the next one. The position says all that the
coordinator must know, so it forgets a client without harm. It remembers the last readers of the log all the same, so
that a client that reads on does not begin the same version anew for each piece.

All work is done on the threads of the callers. ``READS_MAX`` of them read at a time; none keeps the coordinator's loop
waiting. A client that stops asking holds back nothing.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from upriver.arguments import seconds
from upriver.errors import Busy, ChangesGone, ProtocolError
from upriver.hashing import HASH64_MAX, Hashes
from upriver.ids import Epoch
from upriver.lake.lake import Lake
from upriver.runtime.change_feed import ChangeFeed
from upriver.state.changes import COMMIT_VERSION, SUBSCRIBED_KEYS_MAX, ChangePosition

PIECE_ROWS_MAX = 65_536
"""Rows of one piece."""
PIECE_BYTES_MAX = 16 << 20
"""Bytes of one piece, unless a single row has more."""
PIECE_VERSIONS_MAX = 10_000
"""Versions that one piece looks through: those without changes of the wanted keys, too."""
WAIT_S_MAX = 1.0
"""Seconds that a call waits for newer changes."""
LOOK_AGAIN_S = 0.25
"""Seconds between two looks of such a call."""
READS_MAX = 4
"""Calls that read the log at a time."""
READ_WAIT_S_MAX = 5.0
"""Seconds that a call waits until it may read."""
READERS_MAX = 8
"""Readers that are remembered; each holds the rows of one commit of the log at most."""


@dataclass(frozen=True, slots=True)
class PieceLimits:
    """What one piece has at most, and how many readers are remembered."""

    rows: int = PIECE_ROWS_MAX
    bytes: int = PIECE_BYTES_MAX
    versions: int = PIECE_VERSIONS_MAX
    readers: int = READERS_MAX


class _PieceReader:
    """Reads the log from a position on, through a version."""

    def __init__(
        self, batches: Iterator[pa.RecordBatch], position: ChangePosition, through: Epoch, limits: PieceLimits
    ) -> None:
        self._limits = limits
        self._batches = batches
        self._through = through
        self._rest: pa.RecordBatch | None = None
        self.position = position
        self.is_done = False
        to_skip = position.skip
        while to_skip and (batch := self._next()) is not None:
            if batch.num_rows > to_skip:
                self._rest = batch.slice(to_skip)
            to_skip = max(0, to_skip - batch.num_rows)

    def take(self) -> pa.RecordBatch | None:
        """The next rows; ``None`` if there are none, up to the last version of this reader."""
        taken: list[pa.RecordBatch] = []
        rows_left, bytes_left = self._limits.rows, self._limits.bytes
        while rows_left and bytes_left > 0 and (batch := self._next()) is not None:
            fits = min(rows_left, bytes_left * batch.num_rows // max(1, batch.nbytes))
            count = min(batch.num_rows, max(fits, 0 if taken else 1))
            if count:
                taken.append(batch.slice(0, count))
                rows_left -= count
                bytes_left -= taken[-1].nbytes
            if count < batch.num_rows:
                self._rest = batch.slice(count)
                break
        if self._rest is None:
            self._rest = self._next()
        rows = pa.concat_batches(taken) if taken else None
        self._move(rows)
        return rows

    def _next(self) -> pa.RecordBatch | None:
        if self._rest is not None:
            rest, self._rest = self._rest, None
            return rest
        return next((batch for batch in self._batches if batch.num_rows), None)

    def _move(self, rows: pa.RecordBatch | None) -> None:
        """Set the position behind these rows."""
        if self._rest is None:
            self.is_done = True
            self.position = ChangePosition(self._through)
            return
        assert rows is not None
        versions = rows.column(COMMIT_VERSION).to_numpy()
        last = versions[-1]
        if self._rest.column(COMMIT_VERSION)[0].as_py() != last:
            self.position = ChangePosition(Epoch(int(last)))
            return
        before, of_last = versions[versions != last], int((versions == last).sum())
        if len(before):
            self.position = ChangePosition(Epoch(int(before[-1])), of_last)
        else:
            self.position = ChangePosition(self.position.after, self.position.skip + of_last, self.position.first)


class ChangePieces:
    """Gives pieces to any number of clients, on their threads. clock: seconds, monotonic."""

    def __init__(
        self, lake: Lake, limits: PieceLimits = PieceLimits(), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._feed = ChangeFeed(lake, clock)
        self._reads = threading.BoundedSemaphore(READS_MAX)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        """Guards what follows."""
        self._readers: OrderedDict[tuple[str, ChangePosition, bytes | None], _PieceReader] = OrderedDict()

    def stop(self) -> None:
        """End the waiting calls."""
        self._stopped.set()

    def last(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The newest version of a view: ``{"view": name}`` gives ``{"last": version}``. Raises UnknownView for a view
        without a log, LakeError."""
        return {"last": self._feed.last(str(asked["view"]))}

    def piece(self, asked: Mapping[str, Any]) -> tuple[dict[str, Any], pa.RecordBatch | None]:
        """The changes behind a position, and the next position. No batch: there is nothing new, or no change of these
        keys.

        asked: ``view``, ``position``, ``keys`` (their hash64, or null for all), ``wait_s`` (seconds to wait for newer
        changes, ``WAIT_S_MAX`` at most). Raises UnknownView, ChangesGone, Busy, LakeError.
        """
        view, position = str(asked["view"]), ChangePosition.from_json(asked["position"])
        keys = _hashes(asked["keys"])
        last = self._newer(view, position.after, min(seconds("wait_s", asked["wait_s"]), WAIT_S_MAX))
        if position.after is not None and last <= position.after:
            return position.to_json(), None
        if not self._reads.acquire(timeout=READ_WAIT_S_MAX):
            raise Busy(f"{READS_MAX} other calls read changes at the moment")
        try:
            reader = self._reader(view, position, keys, last)
            rows = reader.take()
        finally:
            self._reads.release()
        if not reader.is_done:
            self._keep((view, reader.position, _named(keys)), reader)
        return reader.position.to_json(), rows

    def _newer(self, view: str, after: Epoch | None, wait_s: float) -> Epoch:
        """The newest version, once it is newer than ``after`` or the time is over."""
        give_up_at = self._clock() + wait_s
        while True:
            last = self._feed.last(view)
            seconds_left = give_up_at - self._clock()
            if after is None or last > after or seconds_left <= 0:
                return last
            if self._stopped.wait(min(LOOK_AGAIN_S, seconds_left)):
                return last

    def _reader(self, view: str, position: ChangePosition, keys: Hashes | None, last: Epoch) -> _PieceReader:
        with self._lock:
            known = self._readers.pop((view, position, _named(keys)), None)
        if known is not None:
            return known
        log = self._feed.log
        first = log.first(view)
        if position.after is None and position.skip and position.first != first:
            raise ChangesGone(
                f"view {view!r}: its changes were folded while they were read from the start; the oldest version is "
                f"now {first}: subscribe anew, and drop the rows that came so far"
            )
        begin = first if position.after is None else position.after
        through = Epoch(min(last, begin + self._limits.versions))
        batches = log.changes(view, position.after, through, keys=keys)
        start = position if position.after is not None else ChangePosition(None, position.skip, first)
        return _PieceReader(batches, start, through, self._limits)

    def _keep(self, name: tuple[str, ChangePosition, bytes | None], reader: _PieceReader) -> None:
        with self._lock:
            self._readers[name] = reader
            if len(self._readers) > self._limits.readers:
                self._readers.popitem(last=False)


def _hashes(keys: Any) -> Hashes | None:
    """Raises ProtocolError for anything but hashes."""
    if keys is None:
        return None
    if not isinstance(keys, list) or len(keys) > SUBSCRIBED_KEYS_MAX:
        raise ProtocolError(f"keys: give a list of at most {SUBSCRIBED_KEYS_MAX:,} hashes")
    if not all(isinstance(key, int) and 0 <= key <= HASH64_MAX for key in keys):
        raise ProtocolError(f"keys: a hash is a number from 0 to {HASH64_MAX}")
    return np.unique(np.array(keys, np.uint64))


def _named(keys: Hashes | None) -> bytes | None:
    return None if keys is None else keys.tobytes()
