"""What a lake consists of: its spans, its runs by index and level, which segments are due, and which files may go."""

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from upriver.errors import CorruptFile
from upriver.ids import Channel, Epoch
from upriver.lake.change_log import ChangeLog
from upriver.lake.checkpoints import newest, places
from upriver.lake.collection import RemovedFiles, collectable, superseded
from upriver.lake.compaction import VNODE_BYTES_MAX, SegmentPlanner
from upriver.lake.lake import Lake
from upriver.lake.manifests import LakeEpochs, Manifest, Segment
from upriver.lake.reclamation import ExpiredRows, Reclamation
from upriver.lake.spans import EpochSpan, level_of
from upriver.state.checkpoint import CheckpointPlace
from upriver.state.runs import RunInfo

K = TypeVar("K")
V = TypeVar("V")

KEPT_MAX = 200_000
"""Manifests, segments and supplements that a report keeps, of about 1 kB for each run; it reads others again."""
LOOKS_MAX = 3
"""Looks at a lake whose app removes files meanwhile."""


@dataclass(frozen=True, slots=True)
class Tier:
    """The runs of one index in the spans of one level. spans: that have rows of the index."""

    spans: int = 0
    runs: int = 0
    rows: int = 0
    bytes: int = 0

    def __add__(self, other: "Tier") -> "Tier":
        return Tier(self.spans + other.spans, self.runs + other.runs, self.rows + other.rows, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeReport:
    """epochs: the last one. spans: in which a reader finds all of them. indexes: by lake edge and level; level 0 is of
    epochs that are in no segment. horizon: up to which a stopped app's lake may be compacted. due: segments to make up
    to there. expired: by table whose rows leave by age. too_large: blocks up to there that have too much for one.
    removable: what may be removed now."""

    root: str
    epochs: Epoch
    spans: int
    manifests: int
    segments: int
    indexes: Mapping[Channel, Mapping[int, Tier]]
    horizon: Epoch
    due: int
    expired: Mapping[str, ExpiredRows]
    too_large: int
    removable: RemovedFiles

    def to_json(self) -> dict[str, Any]:
        return {
            "root": self.root,
            "epochs": self.epochs,
            "spans": self.spans,
            "manifests": self.manifests,
            "segments": self.segments,
            "indexes": {
                channel: {str(level): asdict(tier) for level, tier in tiers.items()}
                for channel, tiers in self.indexes.items()
            },
            "horizon": self.horizon,
            "due": self.due,
            "expired": {table: asdict(rows) for table, rows in self.expired.items()},
            "too_large": self.too_large,
            "removable": self.removable.to_json(),
        }


def horizon_of_stopped(lake: Lake) -> Epoch:
    """The last epoch that nothing needs apart from those before it, if no app runs: a flow's restore begins at the end
    of its newest checkpoint's epoch, and the change log goes on after its last version, so no segment may contain such
    an end and epochs after it. Raises CorruptFile."""
    logged = ChangeLog(lake).end()
    restored = [newest(lake, CheckpointPlace(name, ())) for name in places(lake)]
    ends = [lake.last_epoch(), *restored, logged.through if logged.begins else None]
    return min(end for end in ends if end is not None)


def report_of(lake: Lake, grace_s: float) -> LakeReport:
    """A report of a lake, whose app may be running. grace_s: seconds for which replaced files stay. Raises
    CorruptFile."""
    for look in range(LOOKS_MAX):
        there = _spans_there(lake)
        try:
            return _report_of(lake, grace_s)
        except CorruptFile:
            if look == LOOKS_MAX - 1 or _spans_there(lake) == there:
                raise
    raise AssertionError("the last look returns or raises")


class ReadOnce(Lake):
    """A lake whose manifests, segments and supplements are read once each. Its runs are without their vnode_rows."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake.root)
        self.files = lake.files
        self._manifests: dict[Epoch, Manifest] = {}
        self._segments: dict[EpochSpan, Segment] = {}
        self._runs: dict[tuple[Channel, EpochSpan], tuple[RunInfo, ...]] = {}

    def bare_manifest(self, epoch: Epoch) -> Manifest:
        if epoch in self._manifests:
            return self._manifests[epoch]
        read = super().bare_manifest(epoch)
        return self._kept(self._manifests, epoch, replace(read, runs=_without_vnodes(read)))

    def bare_segment(self, span: EpochSpan) -> Segment:
        if span in self._segments:
            return self._segments[span]
        read = super().bare_segment(span)
        return self._kept(self._segments, span, replace(read, runs=_without_vnodes(read)))

    def supplement_runs(self, channel: Channel, span: EpochSpan) -> tuple[RunInfo, ...]:
        if (channel, span) in self._runs:
            return self._runs[channel, span]
        runs = tuple(replace(run, vnode_rows=()) for run in super().supplement_runs(channel, span))
        return self._kept(self._runs, (channel, span), runs)

    def _kept(self, known: dict[K, V], name: K, read: V) -> V:
        if len(self._manifests) + len(self._segments) + len(self._runs) < KEPT_MAX:
            known[name] = read
        return read


def _without_vnodes(epochs: LakeEpochs) -> dict[Channel, tuple[RunInfo, ...]]:
    return {channel: tuple(replace(run, vnode_rows=()) for run in runs) for channel, runs in epochs.runs.items()}


def _spans_there(lake: Lake) -> tuple[object, ...]:
    return (*lake.numbers("epochs"), *sorted(lake.segments()))


def _report_of(lake: Lake, grace_s: float) -> LakeReport:
    lake, planned = ReadOnce(lake), lake
    last, segments, horizon = lake.last_epoch(), lake.segments(), horizon_of_stopped(lake)
    spans = lake.spans(last)
    indexes: defaultdict[Channel, defaultdict[int, Tier]] = defaultdict(lambda: defaultdict(Tier))
    bytes_through = [0]
    for span in spans:
        bytes_through.append(bytes_through[-1])
        for channel, runs in lake.epochs(span).runs.items():
            rows, length = sum(run.rows for run in runs), sum(run.bytes for run in runs)
            indexes[channel][level_of(span)] += Tier(1 if runs else 0, len(runs), rows, length)
            bytes_through[-1] += length
    due = list(_due(planned, horizon, spans, bytes_through))
    record = lake.kept_record()
    tables = {table.name: table for table in record.tables}
    return LakeReport(
        root=str(lake.root),
        epochs=last,
        spans=len(spans),
        manifests=sum(1 for _ in lake.numbers("epochs")),
        segments=len(segments),
        indexes={channel: dict(sorted(indexes[channel].items())) for channel in sorted(indexes)},
        horizon=horizon,
        due=sum(due),
        expired=Reclamation(lake, record.vnodes).expired(horizon, tables),
        too_large=len(due) - sum(due),
        removable=collectable(lake, superseded(lake, horizon, time.time() - grace_s)),
    )


def _due(lake: Lake, horizon: Epoch, spans: Sequence[EpochSpan], bytes_through: Sequence[int]) -> Iterator[bool]:
    """Of each block without a segment, whether it may get one. bytes_through: before each span, and after the last."""
    record = lake.kept_record()
    plans, ends = SegmentPlanner(lake, record.vnodes), [span.last for span in spans]
    for block in plans.due(horizon):
        length = bytes_through[bisect_right(ends, block.last)] - bytes_through[bisect_right(ends, block.after)]
        yield length <= VNODE_BYTES_MAX or plans.plan(block) is not None  # a plan reads the manifests once more
