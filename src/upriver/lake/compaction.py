"""Compaction: which epochs become a segment next, and what is merged for it (docs/internals/lake.md).

``Compaction`` decides, and changes nothing. A ``Merge`` is the work of one task: the rows of some vnodes, out of all
runs of one lake edge in the segment's epochs. The driver writes a segment when all of its merges are done, so a crash
leaves runs that nothing names.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa

from upriver.engine.expressions import Evaluator
from upriver.engine.retention import Retention, remaining
from upriver.engine.versions import newest_versions
from upriver.errors import ProtocolError
from upriver.ids import Channel, Epoch, Term, VnodeId
from upriver.lake.lake import Lake, OwnedLake
from upriver.lake.manifests import LakeEpochs, LastBatch, Segment
from upriver.lake.spans import EpochSpan, cover, due
from upriver.plan.plan import TableSpec, table_of
from upriver.state.runs import RunInfo, describe_run, encode_run, run_schema
from upriver.state.span import TimeSpan

MERGE_BYTES = 64 << 20
"""Bytes of runs that one task merges, as far as whole vnodes allow."""
VNODE_BYTES_MAX = 256 << 20
"""Bytes of one vnode that a task merges at most: epochs with more stay as they are."""
INDEX_BYTES_MAX = 8 << 30
"""Bytes of one index in a segment: epochs with more stay as they are. So no merge rewrites a whole history at once."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Rows of the vnodes from ``first`` to before ``end`` of one lake edge. sources: runs in order of epochs.
    retention: of the table, at the end of the epochs."""

    channel: Channel
    span: EpochSpan
    first: VnodeId
    end: VnodeId
    sources: tuple[RunInfo, ...]
    retention: Retention | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "channel": self.channel,
            "span": [self.span.first, self.span.last],
            "first": self.first,
            "end": self.end,
            "sources": [run.to_json() for run in self.sources],
            "retention": None if self.retention is None else self.retention.to_json(),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        first, last = record["span"]
        sources = tuple(RunInfo.from_json(run) for run in record["sources"])
        span = EpochSpan(Epoch(first), Epoch(last))
        retention = None if record["retention"] is None else Retention.from_json(record["retention"])
        first_vnode, end = VnodeId(record["first"]), VnodeId(record["end"])
        return cls(Channel(record["channel"]), span, first_vnode, end, sources, retention)


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """A segment to make. kept: runs that go on as they are. merges: in order of channel and vnodes."""

    span: EpochSpan
    parts: tuple[LakeEpochs, ...]
    kept: Mapping[Channel, tuple[RunInfo, ...]]
    merges: tuple[Merge, ...]

    def segment(self, merged: Sequence[RunInfo | None], term: Term, now: float) -> Segment:
        """The segment. merged: the run of each merge; ``None`` if it has no rows."""
        if len(merged) != len(self.merges):
            raise ProtocolError(f"epochs {self.span.name}: {len(merged)} runs of {len(self.merges)} merges")
        runs: dict[Channel, tuple[RunInfo, ...]] = dict(self.kept)
        for merge, run in zip(self.merges, merged, strict=True):
            runs[merge.channel] = (*runs.get(merge.channel, ()), *([] if run is None else [run]))
        return Segment(
            epoch=self.span.last,
            first=self.span.first,
            term=term,
            made_at=now,
            committed_at=self.parts[-1].committed_at,
            last_batches=_batches_of(self.parts),
            runs=runs,
            retained=_retained_over(self.parts),
        )


def _batches_of(parts: Iterable[LakeEpochs]) -> dict[str, LastBatch]:
    found: dict[str, LastBatch] = {}
    for part in parts:
        for table, last in part.batches.items():
            found[table] = last.after(found.get(table))
    return found


def _retained_over(parts: Sequence[LakeEpochs]) -> dict[str, Retention]:
    """The retention at the end of the last of these, whose rows come as those of one epoch."""
    first = parts[0].retained
    return {
        table: replace(retained, before=first[table].before if table in first else None)
        for table, retained in parts[-1].retained.items()
    }


class Compaction:
    """Plans the segments of one lake. Remembers epochs that are too large to become one."""

    def __init__(
        self,
        lake: Lake,
        vnodes: int,
        merge_bytes: int = MERGE_BYTES,
        vnode_bytes_max: int = VNODE_BYTES_MAX,
        index_bytes_max: int = INDEX_BYTES_MAX,
    ) -> None:
        """vnodes: of the lake. The limits: each as the constant of its name says."""
        self._lake = lake
        self._vnodes = vnodes
        self._merge_bytes = merge_bytes
        self._vnode_bytes_max = vnode_bytes_max
        self._index_bytes_max = index_bytes_max
        self._too_large: set[EpochSpan] = set()

    def due(self, horizon: Epoch) -> Iterator[EpochSpan]:
        """The segments to make, those first that others are made of. horizon: no epoch up to it is needed apart."""
        return due(self._lake.segments() | self._too_large, horizon)

    def plan(self, span: EpochSpan) -> SegmentPlan | None:
        """How to make a segment; ``None`` if its epochs are too large. Raises CorruptFile."""
        inside = [segment for segment in self._lake.segments() if segment != span]
        parts = tuple(self._lake.epochs(part) for part in cover(inside, span.after, span.last))
        kept: dict[Channel, tuple[RunInfo, ...]] = {}
        merges: list[Merge] = []
        for channel in _channels_of(parts):
            sources = [part.runs_of(channel) for part in parts]
            having = [runs for runs in sources if runs]
            if len(having) < 2:
                kept[channel] = having[0] if having else ()
                continue
            runs = tuple(run for of_part in having for run in of_part)
            ranges = self._ranges(runs)
            if ranges is None:
                self._too_large.add(span)
                return None
            retention = parts[-1].retained.get(table_of(channel))
            merges += [Merge(channel, span, first, end, _within(runs, first, end), retention) for first, end in ranges]
        return SegmentPlan(span, parts, kept, tuple(merges))

    def _ranges(self, runs: Sequence[RunInfo]) -> list[tuple[VnodeId, VnodeId]] | None:
        """Ranges of vnodes of about ``MERGE_BYTES`` each; ``None`` if there is too much."""
        bytes_of = np.zeros(self._vnodes)
        for run in runs:
            vnodes, rows = np.array(run.vnode_rows, np.int64).reshape(-1, 2).T
            bytes_of[vnodes] += rows * (run.bytes / max(1, run.rows))
        total = float(bytes_of.sum())
        if total > self._index_bytes_max or bytes_of.max() > self._vnode_bytes_max:
            return None
        pieces = max(1, math.ceil(total / self._merge_bytes))
        so_far = np.cumsum(bytes_of)
        ends = np.searchsorted(so_far, total * np.arange(1, pieces) / pieces, side="left") + 1
        places = [0, *dict.fromkeys(int(end) for end in ends if end < self._vnodes), self._vnodes]
        return [(VnodeId(first), VnodeId(end)) for first, end in pairwise(places)]


def _channels_of(parts: Sequence[LakeEpochs]) -> list[Channel]:
    """The lake edges that all of these epochs have that have rows of the table. An index that is not complete may be
    in some only: a segment does not have it, and gets a supplement if the index is completed."""
    found = dict.fromkeys(channel for part in parts for channel in part.runs)
    tables = {channel: table_of(channel) for channel in found}
    return [
        channel for channel in found if all(channel in part.runs for part in parts if tables[channel] in part.batches)
    ]


def _within(runs: Iterable[RunInfo], first: int, end: int) -> tuple[RunInfo, ...]:
    return tuple(run for run in runs if any(first <= vnode < end for vnode, _ in run.vnode_rows))


def merge_runs(lake: Lake, merge: Merge, table: TableSpec, vnodes: int, evaluator: Evaluator) -> RunInfo | None:
    """Carry out a merge: write one run, and return it; ``None`` if no rows are left. Raises CorruptFile, NotWritten.

    Rows are in the order of hash64, those of one key in the order of the sources. Of an upsert table, the newest
    version of each primary key stays, of those with one hash64. Rows that retention has removed are left out.
    """
    rows = _merged_rows(lake, merge, table, evaluator)
    if not len(rows):
        return None
    encoded = encode_run(pa.Table.from_batches([rows]))
    path = f"tables/{merge.channel}/{merge.span.name}-{uuid4().hex}.arrow"
    lake.files.create(path, encoded)
    info = describe_run(path, encoded, rows.column(0).to_numpy(), vnodes)
    if merge.retention is None:
        return info
    return replace(info, span=TimeSpan.of(rows.column(merge.retention.column)))  # the lake's record has no retain


def _merged_rows(lake: Lake, merge: Merge, table: TableSpec, evaluator: Evaluator) -> pa.RecordBatch:
    schema = run_schema(table.schema)
    wanted = frozenset(map(VnodeId, range(merge.first, merge.end)))
    pieces = [pa.RecordBatch.from_pylist([], schema=schema)]
    for run in merge.sources:
        if slices := run.slices_of(wanted):
            pieces += lake.open_run(run, schema).scan(slices, run.rows)
    rows = pa.concat_batches(pieces)
    order = np.argsort(rows.column(0).to_numpy(), kind="stable")
    if table.primary_key:
        in_turn = rows.take(pa.array(order))
        versions = in_turn.select(table.schema.names)
        order = order[newest_versions(in_turn.column(0).to_numpy(), versions, table, evaluator)]
    merged = rows.take(pa.array(order))
    if merge.retention is None:
        return merged
    return remaining(merged, table, merge.retention.column, merge.retention.cut)


def compact(lake: OwnedLake, horizon: Epoch) -> Iterator[Segment]:
    """Make all segments that are due, in this process, and give each once it is committed: for a root without an app.
    horizon: no epoch up to it is needed apart. Raises CorruptFile, NotWritten, LakeInUse."""
    record = lake.record()
    assert record is not None
    tables = {table.name: table for table in record.tables}
    plans, evaluator = Compaction(lake, record.vnodes), Evaluator()
    while spans := list(plans.due(horizon)):
        for span in spans:
            if (plan := plans.plan(span)) is not None:
                merged = [
                    merge_runs(lake, merge, tables[table_of(merge.channel)], record.vnodes, evaluator)
                    for merge in plan.merges
                ]
                segment = plan.segment(merged, lake.term, time.time())
                lake.publish_segment(segment)
                yield segment
