"""Manifests and decoded rows of the spans that a worker has read last, for all its flows.

The flows of a worker read the same spans soon after each other. The first one reads the manifest and decodes the rows;
the others find them here. Files never change, so what is here stays right. Only an index that becomes complete adds
runs to a manifest: one that lacks a channel is read again.

Flows take turns, a piece each, so two flows can be in the middle of the same rows. ``_SharedRows`` decodes a batch when
the first reader gets there. Rows go as soon as all readers of their channel have read them, and else when they are the
least recently used and the cache is full. The rows of a long span are never kept, so a flow that is far behind does
not push out what the others need.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator

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


class _SharedRows:
    """The batches of one source, for several readers: each is decoded when the first reader gets there."""

    __slots__ = ("_batches", "_error", "_source", "bytes", "reads", "table")

    def __init__(self, table: TableSpec, source: Iterator[pa.RecordBatch], bytes: int) -> None:
        self.table = table
        self.bytes = bytes
        self.reads = 0
        """How often all batches were read."""
        self._source: Iterator[pa.RecordBatch] | None = source
        self._batches: list[pa.RecordBatch] = []
        self._error: BaseException | None = None

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All batches, in order. Raises the error with which the source has failed."""
        place = 0
        while place < len(self._batches) or self._decode_next():
            yield self._batches[place]
            place += 1

    def _decode_next(self) -> bool:
        """Decode another batch; returns whether there is one."""
        if self._error is not None:
            raise self._error
        if self._source is None:
            return False
        try:
            batch = next(self._source, None)
        except BaseException as error:
            self._error = error
            raise
        if batch is None:
            self._source = None
            return False
        self._batches.append(batch)
        return True


class SpanCache:
    """Reads spans of a lake, and keeps them for a while. Used by one thread, the worker's loop.

    bytes_max: as ``CACHE_BYTES_MAX``. entry_bytes_max: as ``ENTRY_BYTES_MAX``.
    """

    def __init__(self, lake: Lake, bytes_max: int = CACHE_BYTES_MAX, entry_bytes_max: int = ENTRY_BYTES_MAX) -> None:
        self._lake = lake
        self._bytes_max = bytes_max
        self._entry_bytes_max = entry_bytes_max
        self._readers = Counter[Channel]()
        self._manifests: OrderedDict[EpochSpan, LakeEpochs] = OrderedDict()
        self._counts: OrderedDict[_Key, int] = OrderedDict()
        """How many rows there are."""
        self._rows: OrderedDict[_Key, _SharedRows] = OrderedDict()
        """Least recently used first."""
        self.bytes = 0
        """About how many bytes the rows that are kept take."""

    def add_reader(self, channels: Iterable[Channel]) -> None:
        """A flow more reads these channels."""
        self._readers.update(list(channels))

    def remove_reader(self, channels: Iterable[Channel]) -> None:
        """A flow that was added with these channels reads no more."""
        self._readers.subtract(list(channels))
        for key in [key for key, rows in self._rows.items() if rows.reads >= self._readers[key[1]]]:
            self._forget(key)

    def epochs(self, span: EpochSpan, channels: Collection[Channel]) -> LakeEpochs:
        """As :meth:`Lake.epochs`, with the runs of these channels at least. Raises CorruptFile."""
        kept = self._manifests.get(span)
        if kept is not None and all(map(kept.has_runs_of, channels)):
            self._manifests.move_to_end(span)
            return kept
        manifest = self._manifests[span] = self._lake.epochs(span)
        self._manifests.move_to_end(span)
        if len(self._manifests) > MANIFESTS_MAX:
            self._manifests.popitem(last=False)
        return manifest

    def rows_of(self, manifest: LakeEpochs, channel: Channel, vnodes: frozenset[VnodeId]) -> int:
        """As :meth:`LakeEpochs.rows_of`."""
        if not manifest.runs_of(channel):
            return 0
        key = (manifest.span, channel, vnodes)
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
        shared = self._rows.get(key)
        if shared is None or shared.has_failed or shared.table != table:
            source = self._lake.read(manifest, channel, vnodes, table)
            size = _decoded_bytes(runs, vnodes)
            if self._readers[channel] < 2 or size > self._entry_bytes_max:
                return source
            self._forget(key)
            shared = self._keep(key, _SharedRows(table, source, size))
        self._rows.move_to_end(key)
        return self._read_shared(key, shared)

    def _read_shared(self, key: _Key, shared: _SharedRows) -> Iterator[pa.RecordBatch]:
        yield from shared.batches()
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
