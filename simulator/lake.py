"""The lake of a simulated cluster: epochs in memory, each edge's rows sorted by hash64 as Spark would leave them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from simulator.tables import NO_RETENTION, TABLES
from upriver.engine.batch import Batch, no_rows
from upriver.engine.constants import constant_rows
from upriver.engine.retention import (
    Retention,
    gives_up_rows,
    leaving,
    remaining,
    retained_after,
    together,
    too_old,
)
from upriver.engine.retention import (
    as_of as as_of_cut,
)
from upriver.hashing import Hashes, hash64
from upriver.ids import BEGINNING, Channel, Epoch, VnodeId
from upriver.lake.spans import EpochSpan, cover, due, newest_rewrite, opened, single
from upriver.plan.plan import DataflowPlan, TableSpec
from upriver.plan.provenance import lake_edges
from upriver.plan.retention import Retain
from upriver.plan.row_order import dated_schema
from upriver.protocol.coordinator_events import EpochPublished
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.state.span import TimeSpan
from upriver.vnodes import offsets_by_vnode

FAN_IN = 2
"""As of the lake: few epochs make segments of several levels."""
KEPT_SHARE = 0.3
"""Of the runs of a span that is rewritten, those that go on as they are."""
CUTS_MAX = 3  # places where a worker's rows of one edge and epoch are cut, besides the gaps between its vnodes


NO_ROWS = MappingProxyType({table.name: no_rows(table.schema) for table in TABLES})
"""By table."""


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """One edge's rows of one epoch, by hash64 and then in order. ``offsets``: where each vnode's rows begin."""

    batch: Batch
    offsets: npt.NDArray[np.int64]

    def rows_of(self, vnodes: Sequence[VnodeId]) -> int:
        """How many rows those vnodes have."""
        owned = np.array(vnodes, np.int64)
        return int((self.offsets[owned + 1] - self.offsets[owned]).sum())

    def slices_of(self, vnodes: Sequence[VnodeId], rng: Random, *, whole_keys: bool) -> list[tuple[Batch, bool]]:
        """Those vnodes' rows in order, cut at random places, with ``whole_keys`` never between the rows of one key; and
        whether rows of the last key come in the next one."""
        ranges = [(int(self.offsets[vnode]), int(self.offsets[vnode + 1])) for vnode in vnodes]
        joined: list[tuple[int, int]] = []
        for first, end in ranges:
            if joined and joined[-1][1] == first:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((first, end))
        rows = len(self.batch)
        drawn = [rng.randrange(rows) for _ in range(rng.choice((0, 0, 1, CUTS_MAX)))] if rows else []
        cuts = set(np.searchsorted(self.batch.hash64, self.batch.hash64[drawn]).tolist() if whole_keys else drawn)
        hashes = self.batch.hash64
        return [
            (self.batch.slice(start, stop), stop < end and bool(hashes[stop] == hashes[stop - 1]))
            for first, end in joined
            if first < end
            for start, stop in _cut(first, end, cuts)
        ]


def _cut(first: int, end: int, cuts: Iterable[int]) -> Iterable[tuple[int, int]]:
    return pairwise([first, *sorted(cut for cut in cuts if first < cut < end), end])


class FakeLake:
    """All epochs published so far. Tables are kept in the order of the indexes that were asked for by ``keep``."""

    def __init__(
        self,
        plans: Sequence[DataflowPlan],
        vnodes: int,
        retains: Mapping[str, Retain] = NO_RETENTION,
        rules: Rules = ALL_RULES,
    ) -> None:
        """plans: all that it can be asked to keep indexes for. retains: by table, for those whose rows leave. rules:
        retention.*, which are rules for shells."""
        self._vnodes = vnodes
        self._retains = retains
        self._rules = rules
        self._retained: list[Mapping[str, Retention]] = [{}]
        """By epoch, from 0 on: at its end."""
        self._changes: dict[tuple[EpochSpan, Epoch], Mapping[Channel, SimulatedRun]] = {}
        edges = [edge for plan in plans for edge in lake_edges(plan)]
        self._indexes = {edge.channel: (edge.table, edge.index) for edge in edges}
        self._dated = frozenset(edge.channel for edge in edges if edge.is_dated)
        """The edges whose rows are read with their epochs."""
        self._constants = {
            channel: self._run_of(constant_rows(edge)) for plan in plans for channel, edge in plan.constants.items()
        }
        """The rows of constant edges, which the first epoch brings; no manifest tells of them."""
        self._kept: set[Channel] = set()
        """The edges that manifests tell of, those of old epochs too."""
        self._epochs: list[Mapping[Channel, SimulatedRun]] = []
        self._segments: dict[EpochSpan, Mapping[Channel, SimulatedRun]] = {}
        self._collected: set[EpochSpan] = set()
        self.missed: set[str] = set()
        """What was removed and read all the same."""
        self._came: list[tuple[str, pa.RecordBatch]] = []
        """By epoch: the table, and its rows."""

    def clock(self, epoch: Epoch) -> int:
        """The instant of an epoch: as many seconds as epochs and rows had come by then."""
        return int(epoch + sum(rows.num_rows for _, rows in self._came[:epoch])) * 1_000_000

    def keep(self, plans: Iterable[DataflowPlan]) -> None:
        """Make the indexes that these plans need, for all epochs; none is ever given up."""
        self._kept |= {edge.channel for plan in plans for edge in lake_edges(plan)}

    @property
    def edges(self) -> tuple[Channel, ...]:
        return tuple(self._indexes)

    @property
    def published(self) -> Epoch:
        return Epoch(len(self._epochs))

    def publish(self, table: str, rows: pa.RecordBatch) -> Epoch:
        """One more epoch: rows of one table, as one micro-batch gives them, on each edge of that table."""
        edges = {channel: index for channel, (source, index) in self._indexes.items() if source == table}
        epoch = pa.repeat(pa.scalar(self.published + 1, pa.uint32()), rows.num_rows)
        dated = pa.RecordBatch.from_arrays([*rows.columns, epoch], schema=dated_schema(rows.schema))
        self._epochs.append(
            {channel: self._run(dated if channel in self._dated else rows, index) for channel, index in edges.items()}
        )
        self._came.append((table, rows))
        retain = self._retains.get(table)
        span = None if retain is None else TimeSpan.of(rows.column(retain.column))
        self._retained.append(retained_after(self._retained[-1], table, retain, span))
        return self.published

    def _run(self, rows: pa.RecordBatch, index: tuple[str, ...]) -> SimulatedRun:
        hashes = hash64([rows.column(column) for column in index], rows.num_rows)
        order = np.argsort(hashes, kind="stable")
        return self._run_of(Batch(rows.take(pa.array(order)), hashes[order]))

    def _run_of(self, batch: Batch) -> SimulatedRun:
        return SimulatedRun(batch, offsets_by_vnode(batch.hash64, self._vnodes))

    def changes(self, span: EpochSpan, as_of: Epoch = BEGINNING) -> Mapping[Channel, SimulatedRun]:
        """The changes of an epoch, or of a segment, on each edge: its rows, less those that come too old, and the
        retractions; and constant rows. as_of: as in ``ReadEpoch``."""
        runs = self.of(span)
        if (span, as_of) not in self._changes:
            changed = {channel: self._changed(channel, span, run, as_of) for channel, run in runs.items()}
            self._changes[span, as_of] = {**changed, **self._constants_of(span)}
        return self._changes[span, as_of]

    def published_changes(self, epoch: Epoch) -> Mapping[Channel, SimulatedRun]:
        """The changes of an epoch as the oracle has seen them, whether it is still there apart or not."""
        return self._changes.get((single(epoch), BEGINNING), self.runs(epoch))

    def _changed(self, channel: Channel, span: EpochSpan, run: SimulatedRun, rewritten: Epoch) -> SimulatedRun:
        retention = self._retention(self._spec(channel).name, span.last, span.after)
        if retention is None:
            return run
        come = run.batch
        if self._rules.retention_late_rows_stay_out:
            come = as_of_cut(come, self._spec(channel), retention.column, retention.cut)
        if not self._rules.retention_retract_with_epoch:
            return self._run_of(come)
        return self._run_of(
            together(come, self._leaving(self._rows(channel, span.after, BEGINNING, rewritten), retention))
        )

    def _leaving(self, earlier: Batch, retention: Retention) -> Batch:
        return leaving(earlier, retention.column, retention.before, retention.cut)

    def _spec(self, channel: Channel) -> TableSpec:
        return next(table for table in TABLES if table.name == self._indexes[channel][0])

    def aged(
        self, span: EpochSpan, vnodes: Sequence[VnodeId], channels: Iterable[Channel], as_of: Epoch = BEGINNING
    ) -> dict[Channel, int]:
        """How many more changes than rows the epochs have for these vnodes on these edges."""
        runs, changes = self.of(span), self.changes(span, as_of)
        mine = [channel for channel in channels if channel in runs]
        return {channel: changes[channel].rows_of(vnodes) - runs[channel].rows_of(vnodes) for channel in mine}

    def _constants_of(self, span: EpochSpan) -> Mapping[Channel, SimulatedRun]:
        return self._constants if span.after == BEGINNING else {}

    def runs(self, epoch: Epoch) -> Mapping[Channel, SimulatedRun]:
        """The epoch's rows on each edge that has any part in it, as they were published."""
        return self._epochs[epoch - 1]

    # Segments

    def spans(self, through: Epoch, after: Epoch = BEGINNING, as_of: Epoch = BEGINNING) -> list[EpochSpan]:
        """All epochs after one and up to another, in as few spans as there are."""
        return list(cover(self._segments.keys() - self._collected, after, through, FAN_IN, as_of))

    def opened(self, span: EpochSpan, as_of: Epoch) -> EpochSpan:
        """The span as a reader opens it that takes segments as of an epoch up to this one."""
        return opened(self._segments.keys() - self._collected, span, as_of)

    def due(self, horizon: Epoch) -> list[EpochSpan]:
        """The segments to make."""
        return list(due(self._segments.keys(), horizon, FAN_IN))

    @property
    def newest_rewrite(self) -> Epoch:
        """The last epoch as of which a segment was rewritten."""
        return newest_rewrite(self._segments)

    @property
    def gives_up_rows(self) -> bool:
        """Whether rows leave some table."""
        return bool(self._retains)

    def compact(self, span: EpochSpan, horizon: Epoch) -> EpochSpan | None:
        """Make a segment of these epochs, unless it must wait. horizon: no epoch up to it is needed apart."""
        inner = [segment for segment in self._segments if segment.bare != span]
        spans = list(cover(inner, span.after, span.last, FAN_IN, self.newest_rewrite))
        if any(part.rewritten > span.last for part in spans):
            if horizon <= self.newest_rewrite:
                return None
            span = replace(span, rewritten=horizon)
        parts = [self.of(part) for part in spans]
        channels = dict.fromkeys(channel for part in parts for channel in part)
        self._segments[span] = {
            channel: self._merged(channel, span.as_of, [part[channel].batch for part in parts if channel in part])
            for channel in channels
        }
        return span

    def rewrite(self, as_of: Epoch, rng: Random) -> list[EpochSpan]:
        """Rewrite some spans without some of the rows that have left by the end of an epoch."""
        old = [span for span in self.spans(as_of) if span.last < as_of]
        made = []
        for span in rng.sample(old, rng.randint(min(1, len(old)), len(old))):
            runs = {channel: self._without_old(channel, as_of, run, rng) for channel, run in self.of(span).items()}
            made.append(replace(span, rewritten=as_of))
            self._segments[made[-1]] = runs
        return made

    def _without_old(self, channel: Channel, as_of: Epoch, run: SimulatedRun, rng: Random) -> SimulatedRun:
        table = self._spec(channel)
        retention = self._retained[as_of].get(table.name)
        if retention is None or not gives_up_rows(table, retention.column) or rng.random() < KEPT_SHARE:
            return run
        return self._run_of(run.batch.filtered(~too_old(run.batch.rows, retention.column, retention.cut)))

    def _merged(self, channel: Channel, last: Epoch, batches: Sequence[Batch]) -> SimulatedRun:
        rows = pa.concat_batches([batch.rows for batch in batches])
        hashes = np.concatenate([batch.hash64 for batch in batches])
        order = np.argsort(hashes, kind="stable")
        table = self._spec(channel)
        if table.primary_key:
            order = order[_newest(table, hashes[order], rows.take(pa.array(order)))]
        retention = self._retained[last].get(table.name)
        merged = rows.take(pa.array(order)).append_column("hash", pa.array(hashes[order]))
        if retention is not None:
            merged = remaining(merged, table, retention.column, retention.cut)
        return self._run_of(Batch(merged.select(rows.schema.names), merged.column("hash").to_numpy()))

    def collect(self, horizon: Epoch, is_read: Callable[[EpochSpan], bool]) -> None:
        """Forget what segments up to the horizon have. is_read: whether a reader may need the epochs of a segment
        apart."""
        for segment in [segment for segment in self._segments if segment.as_of <= horizon and not is_read(segment)]:
            self._collected |= {single(epoch) for epoch in range(segment.first, segment.last + 1)}
            inside = {s for s in self._segments if s.first in segment and s.last in segment}
            self._collected |= {s for s in inside if s.bare != segment.bare or s < segment}

    def of(self, span: EpochSpan) -> Mapping[Channel, SimulatedRun]:
        """The runs on each edge of an epoch, or of a segment."""
        if not self.has(span):
            self.missed.add(span.name)
        return self._segments[span] if span.is_segment else self._epochs[span.last - 1]

    def is_within_a_segment(self, epoch: Epoch) -> bool:
        """Whether a segment has this epoch and the epoch after it."""
        return any(segment.has_within(epoch) for segment in self._segments)

    def has(self, span: EpochSpan) -> bool:
        """Whether the epoch or segment is there, apart from others."""
        return span not in self._collected

    def events(self) -> tuple[EpochPublished, ...]:
        """All that a coordinator is told at its start."""
        return tuple(
            EpochPublished(
                epoch=span.last,
                rows=self.rows(span),
                after=span.after,
                rewritten=span.rewritten,
                clock=self.clock(span.last),
            )
            for span in self.spans(self.published)
        )

    def rows_of_keys(self, channel: Channel, keys: Hashes, through: Epoch, after: Epoch = BEGINNING) -> Batch:
        """All changes of these keys on one edge, after one epoch and through another: by hash64, then in order."""
        come = _of_keys(self._rows(channel, through, after), keys)
        table = self._spec(channel)
        now = self._retention(table.name, through, after)
        if now is None or not self._rules.retention_read_what_remains:
            return come
        earlier = _of_keys(self._rows(channel, after, BEGINNING), keys)
        return together(as_of_cut(come, table, now.column, now.cut), self._leaving(earlier, now))

    def _retention(self, table: str, through: Epoch, after: Epoch) -> Retention | None:
        """The table's retention at the end of the epochs after one and up to another, taken as one."""
        now, before = self._retained[through].get(table), self._retained[after].get(table)
        return None if now is None else replace(now, before=None if before is None else before.cut)

    def _rows(self, channel: Channel, through: Epoch, after: Epoch, as_of: Epoch = BEGINNING) -> Batch:
        """All rows on one edge, after one epoch and through another: by hash64, then in order."""
        parts = [self.of(span) for span in self.spans(through, after, as_of)]
        mine = [NO_ROWS[self._indexes[channel][0]], *(part[channel].batch for part in parts if channel in part)]
        rows = pa.concat_batches([batch.undated.rows for batch in mine])
        hash64 = np.concatenate([batch.hash64 for batch in mine])
        order = np.argsort(hash64, kind="stable")
        return Batch(rows.take(pa.array(order)), hash64[order])

    def rows(self, span: EpochSpan) -> dict[Channel, int]:
        """What the manifest or segment promises by now, over all vnodes."""
        return {channel: len(run.batch) for channel, run in self.of(span).items() if channel in self._kept}

    def promised(self, span: EpochSpan, vnodes: Sequence[VnodeId], channels: Iterable[Channel]) -> dict[Channel, int]:
        """What the manifest or segment promises on these edges, for these vnodes, and constant rows."""
        runs = {**self.of(span), **self._constants_of(span)}
        return {channel: runs[channel].rows_of(vnodes) if channel in runs else 0 for channel in channels}

    def all_rows(self) -> dict[str, pa.Table]:
        """Every row published so far that counts, by table."""
        return {table.name: self._all_rows(table) for table in TABLES}

    def _all_rows(self, table: TableSpec) -> pa.Table:
        versions = pa.Table.from_batches([rows for name, rows in self._came if name == table.name], table.schema)
        rows, retain = current(table, versions), self._retains.get(table.name)
        if retain is None or retain.interval is None or not versions.num_rows:
            return rows
        cut = (pc.max(versions.column(retain.column)).as_py() or 0) - retain.interval
        times = rows.column(retain.column)
        return rows.filter(pc.fill_null(pc.greater(times, cut), True))

    def published_rows(self, epoch: Epoch) -> tuple[str, pa.RecordBatch]:
        """The table that has got rows with the epoch, and the rows."""
        return self._came[epoch - 1]

    def rows_of(self, table: str, epoch: Epoch) -> pa.RecordBatch | None:
        """What the table has got with the epoch; ``None`` if it is another's."""
        name, rows = self._came[epoch - 1]
        retention = self._retained[epoch].get(table)
        if name == table and retention is not None:
            rows = rows.filter(pa.array(~too_old(rows, retention.column, retention.cut)))
        return rows if name == table else None


def _of_keys(batch: Batch, keys: Hashes) -> Batch:
    return batch.filtered(np.isin(batch.hash64, keys))


def _newest(table: TableSpec, hashes: Hashes, rows: pa.RecordBatch) -> list[int]:
    """The last version of each primary key, of those with one hash64. The rows are in order of ``seq``, by hash64."""
    keys = zip(hashes.tolist(), *(rows.column(column).to_pylist() for column in table.primary_key), strict=True)
    return sorted({key: place for place, key in enumerate(keys)}.values())


def current(table: TableSpec, versions: pa.Table) -> pa.Table:
    """What the rows of a table, in order of ``seq``, come to."""
    if not table.primary_key:
        return versions
    keys = zip(*(versions.column(column).to_pylist() for column in table.primary_key), strict=True)
    last = {key: place for place, key in enumerate(keys)}
    rows = versions.take(pa.array(last.values(), pa.int64()))
    return rows.filter(pc.invert(pc.fill_null(rows.column("gone"), False)))
