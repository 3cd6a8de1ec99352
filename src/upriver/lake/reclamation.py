"""Reclamation: segments are rewritten without the rows that have left their table (docs/internals/retention.md).

A segment has the rows that remain at its own end. Most of them leave later, and a large segment may not be merged
again for very long. So a run is rewritten when at least half of its rows have left, by the times that its entry in the
segment names. The segment that names the new runs says as of which epoch it was rewritten: a reader before that epoch
would miss rows in it. Nothing is read to find what is due. A run without any row that remains is left out unread.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from upriver.engine.retention import Retention, all_left, gives_up_rows
from upriver.ids import Channel, Epoch, VnodeId
from upriver.lake.compaction import Merge, SegmentPlan, new_prefix
from upriver.lake.lake import Lake
from upriver.lake.manifests import LakeEpochs
from upriver.lake.spans import EpochSpan
from upriver.plan.plan import TableSpec, table_of
from upriver.state.runs import RunInfo
from upriver.state.span import TIME_MIN

OLD_ROWS_SHARE = 0.5
"""The share of a run's rows that have left when it is rewritten."""
REWRITTEN_BYTES_MIN = 64 << 10
"""Bytes of rows that have left, from which on a run is rewritten. A segment gives up a run without any row that remains
whatever its size."""


@dataclass(frozen=True, slots=True)
class ExpiredRows:
    """Of a table in the lake: rows that have left it and are still in its files, at least, over all indexes; their
    bytes; and how many segments or manifests are to be rewritten for them."""

    rows: int = 0
    bytes: int = 0
    due: int = 0

    def __add__(self, other: "ExpiredRows") -> "ExpiredRows":
        return ExpiredRows(self.rows + other.rows, self.bytes + other.bytes, self.due + other.due)


def due_at(run: RunInfo, *, of_segment: bool, bytes_min: int = REWRITTEN_BYTES_MIN) -> int | None:
    """The cut at which a run is to be rewritten; ``None``: at none. of_segment: not of a single epoch, whose runs are
    merged soon."""
    if run.span is None:  # written before the table had a retention
        return TIME_MIN if of_segment or run.bytes >= bytes_min else None
    timed = run.rows - run.span.nulls
    if timed < run.rows * OLD_ROWS_SHARE or not timed:
        return None
    if run.bytes * OLD_ROWS_SHARE >= bytes_min:
        times = [*run.span.marks, run.span.newest]
        return next(time for time in times if run.span.old_rows(run.rows, time) >= run.rows * OLD_ROWS_SHARE)
    return run.span.newest if of_segment else None


class Reclamation:
    """Finds the segments of one lake that are to be rewritten. Remembers of each manifest and segment when that is."""

    def __init__(self, lake: Lake, vnodes: int, bytes_min: int = REWRITTEN_BYTES_MIN) -> None:
        """vnodes: of the lake. bytes_min: as ``REWRITTEN_BYTES_MIN``."""
        self._lake = lake
        self._vnodes = vnodes
        self._bytes_min = bytes_min
        self._due_at: dict[EpochSpan, Mapping[str, int]] = {}
        """By span that readers use: by table, the cut at which some run is to be rewritten."""

    def due(self, as_of: Epoch, tables: Mapping[str, TableSpec]) -> list[EpochSpan]:
        """The spans to rewrite as of an epoch. tables: all in the lake. Raises CorruptFile."""
        cuts = {name: retained.cut for name, retained in self._given_up(as_of, tables).items()}
        if not cuts:
            return []
        spans = [span for span in self._lake.spans(as_of) if span.last < as_of]
        known = self._due_at
        self._due_at = {span: known[span] if span in known else self._times(span) for span in spans}
        return [span for span in spans if any(_reaches(cuts.get(name), at) for name, at in self._due_at[span].items())]

    def plan(self, span: EpochSpan, as_of: Epoch, tables: Mapping[str, TableSpec]) -> SegmentPlan:
        """How to rewrite a span. Raises CorruptFile."""
        epochs, retained = self._lake.epochs(span), self._given_up(as_of, tables)
        new = replace(span, rewritten=as_of)
        prefix = new_prefix(new)
        pieces: dict[Channel, tuple[RunInfo | Merge, ...]] = {}
        for channel, runs in epochs.runs.items():
            retention = retained.get(table_of(channel))
            if retention is None:
                pieces[channel] = runs
                continue
            table = tables[table_of(channel)]
            left = [run for run in runs if not all_left(table, run.span, retention.column, retention.cut)]
            pieces[channel] = tuple(self._piece(channel, prefix, run, retention, span) for run in left)
        return SegmentPlan(new, prefix, (epochs,), pieces)

    def expired(self, as_of: Epoch, tables: Mapping[str, TableSpec]) -> dict[str, ExpiredRows]:
        """By table with a retention whose rows the lake gives up: what has left by the end of an epoch. Reads the
        manifests of all spans. Raises CorruptFile."""
        given_up = self._given_up(as_of, tables)
        found = dict.fromkeys(given_up, ExpiredRows())
        due = set(self.due(as_of, tables))
        for span in self._lake.spans(as_of) if given_up else ():
            epochs = self._lake.epochs(span)
            for name, retention in given_up.items():
                assert retention.cut is not None
                runs = [run for channel in epochs.runs if table_of(channel) == name for run in epochs.runs[channel]]
                cut = retention.cut
                old = [(run, run.span.old_rows(run.rows, cut)) for run in runs if run.span is not None]
                is_due = span in due and _reaches(cut, self._due_at[span].get(name))
                bytes_of = sum(run.bytes * rows // max(1, run.rows) for run, rows in old)
                found[name] += ExpiredRows(sum(rows for _, rows in old), bytes_of, int(is_due))
        return found

    def _given_up(self, as_of: Epoch, tables: Mapping[str, TableSpec]) -> dict[str, Retention]:
        """The retention of the tables whose rows the lake gives up."""
        return {
            name: retention
            for name, retention in self._lake.retained(as_of).items()
            if retention.cut is not None and gives_up_rows(tables[name], retention.column)
        }

    def _times(self, span: EpochSpan) -> Mapping[str, int]:
        epochs: LakeEpochs = self._lake.epochs(span)
        found: dict[str, int] = {}
        for channel, runs in epochs.runs.items():
            for run in runs:
                at = due_at(run, of_segment=len(span) > 1, bytes_min=self._bytes_min)
                if at is not None:
                    found[table_of(channel)] = min(at, found.get(table_of(channel), at))
        return found

    def _piece(
        self, channel: Channel, prefix: str, run: RunInfo, retention: Retention, span: EpochSpan
    ) -> RunInfo | Merge:
        """How to rewrite a run of a span; the run as it is, if that is not due."""
        if not _reaches(retention.cut, due_at(run, of_segment=len(span) > 1, bytes_min=self._bytes_min)):
            return run
        return Merge(channel, prefix, VnodeId(0), VnodeId(self._vnodes), (run,), (span.last,), retention, run.task)


def _reaches(cut: int | None, at: int | None) -> bool:
    return cut is not None and at is not None and at <= cut
