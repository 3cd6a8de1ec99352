"""Compaction: which epochs become a segment next, and what is merged for it (docs/internals/lake.md).

``SegmentPlanner`` decides, and changes nothing. A ``Merge`` is the work of one task: the rows of some vnodes, out of
all runs of one lake edge in the segment's epochs. The driver writes a segment when all of its merges are done, so a
crash leaves runs that nothing names.

Of an upsert table, a merge keeps only the versions that still count.

A block with a file that cannot be read stays as it is, and is tried again later, for ever. Other blocks go on.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa

from upriver.engine.expressions import Evaluator
from upriver.engine.operators.operator import ExpressionEvaluator
from upriver.engine.operators.topk import SortKey, in_order
from upriver.engine.retention import Retention, remaining
from upriver.errors import CorruptFile, NotRead, ProtocolError, RowError
from upriver.ids import Channel, Epoch, Term, VnodeId
from upriver.lake.lake import Lake, OwnedLake
from upriver.lake.manifests import LakeEpochs, LastBatch, Segment
from upriver.lake.spans import EpochSpan, cover, due, newest_rewrite
from upriver.plan.plan import TableSpec, table_of
from upriver.plan.row_order import EPOCH_COLUMN, dated_schema
from upriver.state.indexes import Entries
from upriver.state.run_order import TaskRows, merged_order
from upriver.state.runs import RunInfo, dated_rows, describe_run, encode_run, run_schema
from upriver.state.span import TimeSpan
from upriver.state.vectors import Positions, true_at

MERGE_BYTES = 64 << 20
"""Bytes of runs that one task merges, as far as whole vnodes allow."""
VNODE_BYTES_MAX = 256 << 20
"""Bytes of one vnode that a task merges at most: epochs with more stay as they are."""
INDEX_BYTES_MAX = 8 << 30
"""Bytes of one index in a segment: epochs with more stay as they are. So no merge rewrites a whole history at once."""
AGAIN_S_MIN, AGAIN_S_MAX = 2.0, 600.0
"""Seconds until a block is tried again that has a file that cannot be read: doubled each time."""
PLAN_DIGITS = 16
"""Random hexadecimal digits in the names of a plan's runs."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Rows of the vnodes from ``first`` to before ``end`` of one lake edge. prefix: of the name of its run. sources:
    runs in order of epochs, then of tasks. source_epochs: for each, its epoch, or the last one of the segment that
    names it. retention: of the table, at the end of the epochs, or of the one as of which they are rewritten. task: of
    the merged run."""

    channel: Channel
    prefix: str
    first: VnodeId
    end: VnodeId
    sources: tuple[RunInfo, ...]
    source_epochs: tuple[Epoch, ...]
    retention: Retention | None = None
    task: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "channel": self.channel,
            "prefix": self.prefix,
            "first": self.first,
            "end": self.end,
            "sources": [run.to_json() for run in self.sources],
            "source_epochs": list(self.source_epochs),
            "retention": None if self.retention is None else self.retention.to_json(),
            "task": self.task,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        sources = tuple(RunInfo.from_json(run) for run in record["sources"])
        retention = None if record["retention"] is None else Retention.from_json(record["retention"])
        first, end = VnodeId(record["first"]), VnodeId(record["end"])
        epochs = tuple(map(Epoch, record["source_epochs"]))
        channel = Channel(record["channel"])
        return cls(channel, record["prefix"], first, end, sources, epochs, retention, record["task"])


@dataclass(frozen=True, slots=True)
class Unmerged:
    """Of a merge that cannot read a file. why: names the file."""

    why: str


MergeResult = RunInfo | Unmerged | None
"""The run of a merge; ``None`` if no rows are left."""


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """A segment to make. prefix: of the names of its merged runs; no other plan has it. pieces: by lake edge, in order
    of vnodes: runs that go on as they are, and merges."""

    span: EpochSpan
    prefix: str
    parts: tuple[LakeEpochs, ...]
    pieces: Mapping[Channel, tuple[RunInfo | Merge, ...]]

    @property
    def merges(self) -> tuple[Merge, ...]:
        """In order of channel and vnodes."""
        return tuple(piece for pieces in self.pieces.values() for piece in pieces if isinstance(piece, Merge))

    def segment(self, merged: Sequence[RunInfo | None], term: Term, now: float) -> Segment:
        """The segment. merged: the run of each merge; ``None`` if it has no rows."""
        if len(merged) != len(self.merges):
            raise ProtocolError(f"epochs {self.span.name}: {len(merged)} runs of {len(self.merges)} merges")
        made = iter(merged)
        runs: dict[Channel, tuple[RunInfo, ...]] = {}
        for channel, pieces in self.pieces.items():
            found = [next(made) if isinstance(piece, Merge) else piece for piece in pieces]
            runs[channel] = tuple(run for run in found if run is not None)
        return Segment(
            epoch=self.span.last,
            first=self.span.first,
            rewritten=self.span.rewritten,
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


@dataclass(frozen=True, slots=True)
class Setback:
    """Of a block that has a file that cannot be read. again_at: when to try again; ``wait_s`` after the last try."""

    why: str
    wait_s: float
    again_at: float


class SegmentPlanner:
    """Plans the segments of one lake. Remembers epochs that are too large to become one, and blocks with files that
    cannot be read."""

    def __init__(
        self,
        lake: Lake,
        vnodes: int,
        merge_bytes: int = MERGE_BYTES,
        vnode_bytes_max: int = VNODE_BYTES_MAX,
        index_bytes_max: int = INDEX_BYTES_MAX,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """vnodes: of the lake. The limits: each as the constant of its name says. now: the time in seconds."""
        self._lake = lake
        self._vnodes = vnodes
        self._merge_bytes = merge_bytes
        self._vnode_bytes_max = vnode_bytes_max
        self._index_bytes_max = index_bytes_max
        self._now = now
        self._too_large: set[EpochSpan] = set()
        self._setbacks: dict[EpochSpan, Setback] = {}

    @property
    def failures(self) -> list[str]:
        """Why blocks stay as they are, each naming a file that cannot be read."""
        return list(dict.fromkeys(setback.why for setback in self._setbacks.values()))

    def due(self, horizon: Epoch) -> list[EpochSpan]:
        """The segments to make, those first that others are made of. horizon: no epoch up to it is needed apart."""
        spans = list(due(self._lake.segments() | self._too_large, horizon))
        self._setbacks = {span: self._setbacks[span] for span in spans if span in self._setbacks}
        return [span for span in spans if not self.is_waiting(span)]

    def is_waiting(self, span: EpochSpan) -> bool:
        """Whether a block in it has a file that cannot be read, and is tried again later."""
        setbacks, now = self._setbacks.items(), self._now()
        return any(span.first <= block.first <= span.last and setback.again_at > now for block, setback in setbacks)

    def plan(self, span: EpochSpan, as_of: Epoch | None = None) -> SegmentPlan | None:
        """How to make a segment; ``None`` if its epochs are too large, it must wait, or a manifest cannot be read now.

        as_of: the epoch as of which segments may be rewritten now; ``None``: they may not. If a part was rewritten as
        of an epoch behind the segment's end, then so is the segment.
        """
        try:
            return self._plan(span, as_of)
        except (CorruptFile, NotRead) as error:
            self._set_back(span, str(error))
            return None

    def segment(self, plan: SegmentPlan, results: Sequence[MergeResult], term: Term) -> Segment | None:
        """The segment, to be written; ``None`` if a merge could not read a file. results: of its merges."""
        runs: list[RunInfo | None] = []
        for result in results:
            if isinstance(result, Unmerged):
                self._set_back(plan.span, result.why)
                return None
            runs.append(result)
        return plan.segment(runs, term, time.time())

    def _set_back(self, span: EpochSpan, why: str) -> None:
        before = self._setbacks.get(span.bare)
        wait_s = AGAIN_S_MIN if before is None else min(2 * before.wait_s, AGAIN_S_MAX)
        self._setbacks[span.bare] = Setback(
            f"epochs {span.first} to {span.last} stay as they are: {why}", wait_s, self._now() + wait_s
        )

    def _plan(self, span: EpochSpan, as_of: Epoch | None) -> SegmentPlan | None:
        segments = self._lake.segments()
        inside = [segment for segment in segments if segment.bare != span]
        spans = cover(inside, span.after, span.last, as_of=newest_rewrite(segments))
        parts = tuple(map(self._lake.epochs, spans))
        retained = parts[-1].retained
        if any(part.span.rewritten > span.last for part in parts):
            if as_of is None:
                return None
            span, retained = replace(span, rewritten=as_of), self._lake.retained(as_of)
        prefix = new_prefix(span)
        pieces: dict[Channel, tuple[RunInfo | Merge, ...]] = {}
        for channel in _channels_of(parts):
            having = [part for part in parts if part.runs_of(channel)]
            if len(having) < 2:
                pieces[channel] = tuple(run for part in having for run in _of_epoch(part, channel))
                continue
            runs = [(run, Epoch(run.epoch) or part.epoch) for part in having for run in part.runs_of(channel)]
            ranges = self._ranges([run for run, _ in runs])
            if ranges is None:
                self._too_large.add(span.bare)
                return None
            retention = retained.get(table_of(channel))
            pieces[channel] = tuple(
                _merge_of(channel, prefix, first, end, _within(runs, first, end), retention) for first, end in ranges
            )
        return SegmentPlan(span, prefix, parts, pieces)

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


def new_prefix(span: EpochSpan) -> str:
    """Of the names of runs that are merged for a plan of this span."""
    return f"{span.name}-{uuid4().hex[:PLAN_DIGITS]}"


def _channels_of(parts: Sequence[LakeEpochs]) -> list[Channel]:
    """The lake edges that all of these epochs have that have rows of the table. An index that is not complete may be
    in some only: a segment does not have it, and gets a supplement if the index is completed."""
    found = dict.fromkeys(channel for part in parts for channel in part.runs)
    tables = {channel: table_of(channel) for channel in found}
    return [
        channel for channel in found if all(channel in part.runs for part in parts if tables[channel] in part.batches)
    ]


def _of_epoch(part: LakeEpochs, channel: Channel) -> Iterable[RunInfo]:
    """The runs of an epoch, as a segment names them that takes them over as they are; or those of a segment."""
    runs = part.runs_of(channel)
    return runs if part.span.is_segment else (replace(run, epoch=part.epoch) for run in runs)


def _within(runs: Iterable[tuple[RunInfo, Epoch]], first: int, end: int) -> list[tuple[RunInfo, Epoch]]:
    """Those that have rows of these vnodes."""
    return [(run, epoch) for run, epoch in runs if any(first <= vnode < end for vnode, _ in run.vnode_rows)]


def dated(table: TableSpec) -> TableSpec:
    """The table, where rows have their epochs and are ordered by them first: an index over the rows of a segment then
    has those of one key in the order of their epochs, as the index from which it takes them."""
    return replace(table, schema=dated_schema(table.schema), order_by=(EPOCH_COLUMN, *table.order_by))


def _merge_of(
    channel: Channel,
    prefix: str,
    first: VnodeId,
    end: VnodeId,
    runs: Sequence[tuple[RunInfo, Epoch]],
    retention: Retention | None,
) -> Merge:
    """runs: each with its epoch."""
    sources, epochs = tuple(run for run, _ in runs), tuple(epoch for _, epoch in runs)
    return Merge(channel, prefix, first, end, sources, epochs, retention)


def merge_runs(lake: Lake, merge: Merge, table: TableSpec, vnodes: int, evaluator: Evaluator) -> RunInfo | None:
    """Carry out a merge: write one run, and return it; ``None`` if no rows are left. Raises CorruptFile, NotWritten.

    Rows are in the order of ``run_order``, and have their epochs. Of an upsert table, the newest version of each
    primary key stays, of those with one hash64. Rows that retention has removed are left out.
    """
    rows = _merged_rows(lake, merge, table, evaluator)
    if not len(rows):
        return None
    encoded = encode_run(pa.Table.from_batches([rows]))
    path = f"tables/{merge.channel}/{merge.prefix}-{uuid4().hex}.arrow"
    lake.files.create(path, encoded)
    info = replace(describe_run(path, encoded, rows.column(0).to_numpy(), vnodes), task=merge.task)
    if merge.retention is None:
        return info
    times = TimeSpan.of(rows.column(merge.retention.column))  # the lake's record has no retain
    return replace(info, span=times or TimeSpan.without_times(info.rows))


def _merged_rows(lake: Lake, merge: Merge, table: TableSpec, evaluator: Evaluator) -> pa.RecordBatch:
    schema = run_schema(dated_schema(table.schema))
    wanted = frozenset(map(VnodeId, range(merge.first, merge.end)))
    pieces, sources = [pa.RecordBatch.from_pylist([], schema=schema)], []
    for run, epoch in zip(merge.sources, merge.source_epochs, strict=True):
        if slices := run.slices_of(wanted):
            pieces += (dated_rows(rows, epoch) for rows in lake.open_run(run, schema).scan(slices, run.rows))
            sources.append(TaskRows(sum(count for _, count in slices), epoch, run.task))
    rows = pa.concat_batches(pieces)
    order = merged_order(rows.column(0).to_numpy(), rows, table.order_by, sources)
    if table.primary_key:
        in_turn = rows.take(pa.array(order))
        versions = in_turn.select(table.schema.names)
        order = order[newest_versions(in_turn.column(0).to_numpy(), versions, table, evaluator)]
    merged = rows.take(pa.array(order))
    if merge.retention is None:
        return merged
    return remaining(merged, table, merge.retention.column, merge.retention.cut)


def try_merge(lake: Lake, merge: Merge, table: TableSpec, vnodes: int, evaluator: Evaluator) -> MergeResult:
    """Carry out a merge, as far as its files can be read. Raises NotWritten."""
    try:
        return merge_runs(lake, merge, table, vnodes, evaluator)
    except (CorruptFile, NotRead) as error:
        return Unmerged(str(error))


def remove_strays(lake: OwnedLake, plans: Iterable[tuple[SegmentPlan, Segment | None]]) -> None:
    """Remove the runs that were written for these plans and that their segments do not have: a task failed, or ran
    twice. Call it when no task of theirs runs. Each plan is with its segment, if that was written."""
    prefixes: defaultdict[Channel, set[str]] = defaultdict(set)
    kept: set[str] = set()
    for plan, segment in plans:
        for merge in plan.merges:
            prefixes[merge.channel].add(plan.prefix)
        runs = () if segment is None else chain.from_iterable(segment.runs.values())
        kept.update(run.path for run in runs)
    for channel, expected in prefixes.items():
        names = [name for name in lake.files.names(f"tables/{channel}") if name.rpartition("-")[0] in expected]
        lake.files.remove_all(path for name in names if (path := f"tables/{channel}/{name}") not in kept)


def newest_versions(
    hashes: np.ndarray, rows: pa.RecordBatch, table: TableSpec, evaluator: ExpressionEvaluator
) -> Positions:
    """Which rows (their positions, ascending) are the newest version of their primary key, of those with one hash64.

    hashes: of each row. rows: in order of arrival, where their hash64 is the same: of versions that tie, the last one
    counts. A version for which ``deletes`` cannot be evaluated is set aside by every view; if there is one, all
    versions stay.
    """
    everything = np.arange(len(rows))
    if table.deletes is not None:
        try:
            evaluator.mask(rows, table.deletes)
        except RowError:
            return everything
    key = pa.schema([rows.schema.field(name) for name in table.primary_key])
    slots = Entries(key).assign([rows.column(name) for name in key.names], len(rows), None)
    _, hash_places = np.unique(hashes, return_inverse=True)
    _, groups = np.unique(hash_places * (slots.max(initial=0) + 1) + slots, return_inverse=True)
    order, _ = in_order(groups, _sort_keys(rows.schema, table.order_by), lambda place, at: rows.column(place).take(at))
    last = order[true_at(np.diff(groups[order], append=-1))]
    last.sort()
    return last


def _sort_keys(schema: pa.Schema, names: Sequence[str]) -> list[SortKey]:
    return [SortKey(schema.get_field_index(name), schema.field(name).type) for name in names]
