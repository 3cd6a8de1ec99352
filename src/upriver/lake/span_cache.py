"""Manifests and decoded rows of the spans that a worker has read last, for all its flows.

The flows of a worker read the same spans soon after each other. The first one reads the manifest and decodes the rows;
the others find them here. Files never change, so what is here stays right. Only an index that becomes complete adds
runs to a manifest: one that lacks a channel is read again.

Two flows can be in the middle of the same rows. ``_Shared`` reads a part when the first flow gets there. Flows that
read on threads wait for each other only there; no thread waits for the lake while it holds the cache's own lock. Rows
go as soon as all readers of their channel have read them, and else when they are the least recently used and the cache
is full. The rows of a long span are never kept, so a flow that is far behind does not push out what the others need.
"""

import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

import pyarrow as pa

from upriver.ids import Channel, VnodeId
from upriver.lake.lake import Lake
from upriver.lake.manifests import LakeEpochs
from upriver.lake.runs import WHOLE_BYTES_MAX
from upriver.lake.spans import EpochSpan
from upriver.plan.plan import TableSpec
from upriver.state.runs import RunInfo

CACHE_BYTES_MAX = 128 << 20
"""Bytes of decoded rows that are kept."""
ENTRY_BYTES_MAX = 32 << 20
"""Bytes of the decoded rows of one channel of one span that are kept; more are decoded by each reader."""
MANIFESTS_MAX = 64
"""Manifests and segments that are kept."""
COUNTS_MAX = 1_024
"""Numbers of rows that are kept."""

_Key = tuple[EpochSpan, Channel, frozenset[VnodeId]]


_Part = TypeVar("_Part")


class _Shared(Generic[_Part]):
    """What several flows read of one source. The first that needs a part reads it, and others wait for that. If it
    fails, it fails for all of them."""

    __slots__ = ("_lock", "_parts", "_source", "error")

    def __init__(self, source: Iterator[_Part]) -> None:
        self.error: BaseException | None = None
        """With which the source has failed."""
        self._source = source
        self._parts: list[_Part] = []
        self._lock = threading.Lock()
        """Held while a part is read."""

    def parts(self) -> Iterator[_Part]:
        """All parts, in order. Raises the error with which the source has failed."""
        place = 0
        while place < len(self._parts) or self._read(place):
            yield self._parts[place]
            place += 1

    def _read(self, place: int) -> bool:
        """Read the part of this place, unless another thread has; returns whether there is one."""
        with self._lock:
            if self.error is not None:
                raise self.error
            if place == len(self._parts):
                try:
                    self._parts.extend(islice(self._source, 1))
                except BaseException as error:
                    self.error = error
                    raise
            return place < len(self._parts)


class _SharedRows(_Shared[pa.RecordBatch]):
    """The batches of one channel of a span."""

    __slots__ = ("bytes", "reads", "table")

    def __init__(self, table: TableSpec, source: Iterator[pa.RecordBatch], bytes: int) -> None:
        super().__init__(source)
        self.table = table
        self.bytes = bytes
        self.reads = 0
        """How often all batches were read."""


class SpanCache:
    """Reads spans of a lake, and keeps them for a while. Used by any thread.

    bytes_max: as ``CACHE_BYTES_MAX``. entry_bytes_max: as ``ENTRY_BYTES_MAX``.
    """

    def __init__(self, lake: Lake, bytes_max: int = CACHE_BYTES_MAX, entry_bytes_max: int = ENTRY_BYTES_MAX) -> None:
        self._lake = lake
        self._bytes_max = bytes_max
        self._entry_bytes_max = entry_bytes_max
        self._lock = threading.Lock()
        """Of all that follows."""
        self._readers = Counter[Channel]()
        self._manifests: OrderedDict[EpochSpan, _Shared[LakeEpochs]] = OrderedDict()
        self._counts: OrderedDict[_Key, int] = OrderedDict()
        """How many rows there are."""
        self._rows: OrderedDict[_Key, _SharedRows] = OrderedDict()
        """Least recently used first."""
        self.bytes = 0
        """About how many bytes the rows that are kept take."""

    def add_reader(self, channels: Iterable[Channel]) -> None:
        """A flow more reads these channels."""
        with self._lock:
            self._readers.update(list(channels))

    def remove_reader(self, channels: Iterable[Channel]) -> None:
        """A flow that was added with these channels reads no more."""
        with self._lock:
            self._readers.subtract(list(channels))
            for key in [key for key, rows in self._rows.items() if rows.reads >= self._readers[key[1]]]:
                self._forget(key)

    def epochs(self, span: EpochSpan, channels: Collection[Channel]) -> LakeEpochs:
        """As :meth:`Lake.epochs`, with the runs of these channels at least. Raises CorruptFile."""
        manifest = next(self._shared_epochs(span).parts())
        if not all(map(manifest.has_runs_of, channels)):
            with self._lock:
                self._manifests.pop(span, None)
            manifest = next(self._shared_epochs(span).parts())
        return manifest

    def _shared_epochs(self, span: EpochSpan) -> _Shared[LakeEpochs]:
        with self._lock:
            shared = self._manifests.get(span)
            if shared is None or shared.error is not None:
                shared = self._manifests[span] = _Shared(map(self._lake.epochs, [span]))  # reads nothing yet
                if len(self._manifests) > MANIFESTS_MAX:
                    self._manifests.popitem(last=False)
            self._manifests.move_to_end(span)
            return shared

    def rows_of(self, manifest: LakeEpochs, channel: Channel, vnodes: frozenset[VnodeId]) -> int:
        """As :meth:`LakeEpochs.rows_of`."""
        if not manifest.runs_of(channel):
            return 0
        key = (manifest.span, channel, vnodes)
        with self._lock:
            count = self._counts.get(key)
            if count is None:
                count = self._counts[key] = manifest.rows_of(channel, vnodes)
                if len(self._counts) > COUNTS_MAX:
                    self._counts.popitem(last=False)
            return count

    def read(
        self, manifest: LakeEpochs, channel: Channel, vnodes: frozenset[VnodeId], table: TableSpec
    ) -> Iterator[pa.RecordBatch]:
        """As :meth:`Lake.read`."""
        runs = manifest.runs_of(channel)
        if not runs:
            return iter(())
        key = (manifest.span, channel, vnodes)
        with self._lock:
            shared = self._rows.get(key)
            if shared is None or shared.error is not None or shared.table != table:
                source = self._lake.read(manifest, channel, vnodes, table)  # reads nothing yet
                size = _decoded_bytes(runs, vnodes)
                if self._readers[channel] < 2 or size > self._entry_bytes_max:
                    return source
                self._forget(key)
                shared = self._keep(key, _SharedRows(table, source, size))
            self._rows.move_to_end(key)
        return self._read_shared(key, shared)

    def _read_shared(self, key: _Key, shared: _SharedRows) -> Iterator[pa.RecordBatch]:
        yield from shared.parts()
        with self._lock:
            shared.reads += 1
            if shared.reads >= self._readers[key[1]] and self._rows.get(key) is shared:
                self._forget(key)

    def _keep(self, key: _Key, shared: _SharedRows) -> _SharedRows:
        self._rows[key] = shared
        self.bytes += shared.bytes
        while self.bytes > self._bytes_max and len(self._rows) > 1:
            self._forget(next(iter(self._rows)))
        return shared

    def _forget(self, key: _Key) -> None:
        if key in self._rows:
            self.bytes -= self._rows.pop(key).bytes


def _decoded_bytes(runs: Iterable[RunInfo], vnodes: frozenset[VnodeId]) -> int:
    """About how many bytes the rows of these vnodes take in memory. The rows of a small file keep all of it there."""
    return sum(
        run.bytes if run.bytes <= WHOLE_BYTES_MAX else run.bytes * run.rows_of(vnodes) // max(1, run.rows)
        for run in runs
    )
