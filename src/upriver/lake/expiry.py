"""The rows that leave a table as epochs go by, as one worker reads them (docs/internals/retention.md).

An epoch's changes are its own rows that remain, and the retractions of earlier rows that its cut has reached. The
retractions are read from the lake once more. A run is opened for them when the cut reaches its oldest row. From then on
its rows are in memory, in the order of their times, until the cut has passed the newest. So the memory that this takes
follows from how much the times of one run differ, and not from the size of the table.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch, no_rows, one_batch
from upriver.engine.operators.operator import concatenated
from upriver.engine.retention import Retention, as_of, together
from upriver.ids import BEGINNING, Channel, Epoch, VnodeId
from upriver.lake.lake import SLICE_ROWS_MAX, Lake
from upriver.lake.manifests import LakeEpochs
from upriver.lake.span_cache import SpanCache
from upriver.plan.plan import TableSpec
from upriver.state.runs import RunInfo, run_schema
from upriver.state.span import TIME_MIN, TimeSpan, times_of
from upriver.state.vectors import true_at

KNOWN_SPANS_MAX = 1_024
"""Epochs and segments whose runs are known; with more the worker begins anew, since most are in segments by then."""


class DueRun:
    """A run with rows that have left the table, and others that have not."""

    __slots__ = ("_hashes", "_rows", "_times", "_vnodes", "info", "newest")

    def __init__(self, info: RunInfo, newest: int) -> None:
        """newest: the time of its newest row."""
        self.info = info
        self.newest = newest
        self._vnodes: frozenset[VnodeId] | None = None
        """Those whose rows are here; ``None``: not read yet."""

    def leaving(
        self, lake: Lake, table: TableSpec, vnodes: frozenset[VnodeId], retention: Retention
    ) -> Sequence[Batch]:
        """Retractions of these vnodes' rows that leave with an epoch, in no order."""
        before = TIME_MIN if retention.before is None else retention.before
        assert retention.cut is not None
        if self._vnodes != vnodes:
            self._read(lake, table, vnodes, retention.column, before)
        start, end = np.searchsorted(self._times, [before, retention.cut], side="right").tolist()
        if start == end:
            return []
        return [Batch(self._rows.slice(start, end - start), self._hashes[start:end], np.full(end - start, -1))]

    def _read(self, lake: Lake, table: TableSpec, vnodes: frozenset[VnodeId], column: str, before: int) -> None:
        rows = _read_rows(lake, table, self.info, vnodes)
        times, known = times_of(rows.column(column))
        places = true_at(known & (times > before))
        places = places[np.argsort(times[places], kind="stable")]
        taken = rows.take(pa.array(places))
        self._times = times[places]
        self._hashes = taken.column(0).to_numpy()
        self._rows = pa.RecordBatch.from_arrays(taken.columns[1:], schema=table.schema)
        self._vnodes = vnodes


def _read_rows(lake: Lake, table: TableSpec, info: RunInfo, vnodes: frozenset[VnodeId] | None) -> pa.RecordBatch:
    """The rows of these vnodes in a run, with their hash64; ``None``: of all."""
    schema = run_schema(table.schema)
    slices = info.slices_of(vnodes if vnodes is not None else [vnode for vnode, _ in info.vnode_rows])
    pieces = list(lake.open_run(info, schema).scan(slices, SLICE_ROWS_MAX)) if slices else []
    return one_batch(pieces) if pieces else pa.RecordBatch.from_pylist([], schema)


class AgingEdge:
    """The runs of one lake edge, up to some epoch, whose rows have not all left the table."""

    def __init__(self, table: TableSpec) -> None:
        self.table = table
        self._later: list[tuple[int, int, RunInfo]] = []
        """A heap of runs whose rows all remain, by the time of the oldest. The second number decides between equals."""
        self._due: list[DueRun] = []
        self._numbers = count()

    def add(self, run: RunInfo) -> None:
        """A run that is older than spans counts as due."""
        oldest = TIME_MIN if run.span is None else run.span.oldest
        heapq.heappush(self._later, (oldest, next(self._numbers), run))

    def leaving(self, lake: Lake, vnodes: frozenset[VnodeId], retention: Retention) -> Batch:
        """Retractions of these vnodes' rows that leave with an epoch, sorted by hash64."""
        assert retention.cut is not None
        before = TIME_MIN if retention.before is None else retention.before
        self._due = [run for run in self._due if run.newest > before]
        while self._later and self._later[0][0] <= retention.cut:
            _, _, run = heapq.heappop(self._later)
            span = run.span or TimeSpan.of(_read_rows(lake, self.table, run, None).column(retention.column))
            if span is not None and span.oldest > retention.cut:
                heapq.heappush(self._later, (span.oldest, next(self._numbers), run))
            elif span is not None and span.newest > before:
                self._due.append(DueRun(run, span.newest))
        parts = [part for run in self._due for part in run.leaving(lake, self.table, vnodes, retention)]
        if not parts:
            return no_rows(self.table.schema)
        rows = concatenated(parts)
        order = np.argsort(rows.hash64, kind="stable")
        return Batch(rows.rows.take(pa.array(order)), rows.hash64[order], np.full(len(rows), -1))


class Aging:
    """The changes of epochs on lake edges, for a worker that reads one epoch after the other."""

    def __init__(self, lake: Lake, tables: Mapping[Channel, TableSpec], spans: SpanCache | None = None) -> None:
        """tables: by channel. spans: shared with other readers of the lake; ``None``: with none."""
        self._lake = lake
        self._spans = SpanCache(lake) if spans is None else spans
        self._tables = tables
        self.forget()

    def forget(self) -> None:
        """Begin anew: a run that is known here may be gone."""
        self._through = BEGINNING
        self._last: LakeEpochs | None = None
        self._known_spans = 0
        self._edges = {channel: AgingEdge(table) for channel, table in self._tables.items()}

    def changes(
        self, manifest: LakeEpochs, channel: Channel, vnodes: frozenset[VnodeId], rewritten: Epoch = BEGINNING
    ) -> Iterator[tuple[Batch, int]]:
        """The changes of an epoch, or of a segment, for these vnodes, in batches sorted by hash64; with each, how many
        of its rows were read for it. All changes of a key come in one batch.

        rewritten: earlier epochs are taken from segments that were rewritten as of this epoch at the latest, as all
        workers have read them."""
        table = self._tables[channel]
        retention = manifest.retained.get(table.name)
        read = self._spans.read(manifest, channel, vnodes, table)
        if retention is None:
            yield from ((_batch(rows, table), len(rows)) for rows in read)
            return
        self._advance(manifest, rewritten)
        if retention.moves and table.name in manifest.batches:
            leave = self._edges[channel].leaving(self._lake, vnodes, retention)
        else:
            leave = no_rows(table.schema)
        done = 0
        for come in (_batch(rows, table) for rows in read):
            end = max(done, int(np.searchsorted(leave.hash64, come.hash64[-1], side="right"))) if len(leave) else 0
            batch = as_of(come, table, retention.column, retention.cut)
            yield together(batch, leave.slice(done, end)), len(come)
            done = end
        if done < len(leave):
            yield leave.slice(done, len(leave)), 0

    def _advance(self, manifest: LakeEpochs, rewritten: Epoch) -> None:
        """Know the runs of all epochs before these."""
        if self._through > manifest.span.after or self._known_spans > KNOWN_SPANS_MAX:
            self.forget()
        for span in self._lake.spans(manifest.span.after, self._through, rewritten):
            last = self._last
            earlier = last if last is not None and last.span == span else self._spans.epochs(span, self._tables.keys())
            for channel, edge in self._edges.items():
                if edge.table.name in earlier.batches:
                    for run in earlier.runs_of(channel):
                        edge.add(run)
            self._through = span.last
            self._known_spans += 1
        self._last = manifest


def _batch(rows: pa.RecordBatch, table: TableSpec) -> Batch:
    """Rows of a run, with their hash64 in the first column."""
    return Batch(pa.RecordBatch.from_arrays(rows.columns[1:], schema=table.schema), rows.column(0).to_numpy())
