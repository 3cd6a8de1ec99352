"""A worker's reads of the lake for one flow, a piece at a time: its slices of an epoch, or of checkpoints.

A lookup may have to wait until a piece is taken in. So the loop cuts what was read, by the time that earlier pieces
took. Where a thread reads ahead (``read_ahead.py``), the loop takes a piece when there is one, and never waits for it.

The worker retries a failed read, with backoff, from where it stood, for as long as it takes: a file may be repaired,
and a disk or a network come back. It answers lookups meanwhile. It does not wait for a damaged checkpoint: the state
can be computed again.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Self

import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.constants import constant_rows_of
from upriver.engine.row_text import error_text
from upriver.errors import CorruptCheckpoint, LakeError, ProtocolError
from upriver.hashing import Hashes
from upriver.ids import BEGINNING, Channel, Epoch, VnodeId
from upriver.lake.checkpoints import read_state
from upriver.lake.expiry import Aging
from upriver.lake.lake import CommitTimes, Lake
from upriver.lake.manifests import LakeEpochs
from upriver.lake.span_cache import SpanCache
from upriver.lake.spans import span_after
from upriver.plan.plan import ConstantEdge, TableSpec
from upriver.plan.row_order import has_order
from upriver.protocol.worker_events import (
    AllStateRead,
    EpochRead,
    ReadEpoch,
    ReadState,
    RowsRead,
    StateRead,
    StateUnread,
)
from upriver.runtime.pace import BUILD_ROWS_BUDGET_S, BUILD_ROWS_MIN, RowPace
from upriver.runtime.read_ahead import Piece, Reading, ReadNow
from upriver.state.checkpoint import CheckpointPlace
from upriver.state.runs import dated_rows
from upriver.state.vectors import true_at

NO_TABLES: Mapping[Channel, TableSpec] = MappingProxyType({})
NO_CONSTANTS: Mapping[Channel, ConstantEdge] = MappingProxyType({})

READ_AGAIN_S_MIN, READ_AGAIN_S_MAX = 0.1, 30.0
"""Seconds from a failed read to the retry: doubled each time."""


class FlowSource:
    """What one flow reads of the lake: slices of epochs, and state. Used by one thread at a time: the loop's, or one
    that reads ahead of it.

    vnodes: the lake's. tables: by channel, with the columns that are read. constants: rows that the first epoch has.
    commits: told of each manifest read.
    """

    def __init__(
        self,
        lake: Lake,
        spans: SpanCache,
        commits: CommitTimes,
        vnodes: int = 0,
        tables: Mapping[Channel, TableSpec] = NO_TABLES,
        constants: Mapping[Channel, ConstantEdge] = NO_CONSTANTS,
        place: CheckpointPlace | None = None,
    ) -> None:
        self.tables = tables
        self._lake = lake
        self._spans = spans
        self._commits = commits
        self._vnodes = vnodes
        self._constants = constants
        self._place = place
        self._aging = Aging(lake, tables, spans)

    def forget(self) -> None:
        """A file that is known here may be gone."""
        self._aging.forget()

    def for_another_thread(self) -> Self:
        """The same source. It shares nothing that a read changes, except what any thread may use."""
        other = copy(self)
        other._aging = Aging(self._lake, self.tables, self._spans)
        return other

    def pieces(self, asked: ReadEpoch | ReadState, taken: Counter[str]) -> Iterator[Piece]:
        """What was asked for, without the rows and chunks that were taken in. Rows come in the lake's own batches."""
        return self._epoch(asked, taken) if isinstance(asked, ReadEpoch) else self._state(asked, taken)

    def _state(self, asked: ReadState, taken: Counter[str]) -> Iterator[Piece]:
        if self._place is None:
            raise ProtocolError("state of views that have no checkpoints")
        self._commits.of(asked.chain[0])  # else the loop reads it for the first lookup
        try:
            for region, vnodes in asked.vnodes.items():
                chunks = read_state(self._lake, self._place, asked.chain, region, vnodes, self._vnodes)
                for chunk in islice(chunks, taken[region], None):
                    yield StateRead(region=region, chunk=chunk)
        except CorruptCheckpoint as error:
            yield StateUnread(error=str(error))
            return
        yield AllStateRead()

    def _epoch(self, asked: ReadEpoch, taken: Counter[str]) -> Iterator[Piece]:
        vnodes = frozenset(asked.vnodes)
        manifest = self._spans.epochs(
            self._lake.opened(span_after(asked.epoch, asked.after), asked.as_of), self.tables.keys()
        )
        self._commits.note(manifest)
        aged = Counter[Channel]()
        for channel in asked.channels:
            left_out = taken[channel]
            is_dated = channel in self.tables and has_order(self.tables[channel].schema.names)
            for rows, read in self._changes(manifest, channel, vnodes, asked.as_of):
                changes = rows.replaced(dated_rows(rows.rows, manifest.epoch_of(channel))) if is_dated else rows
                aged[channel] += len(changes) - read
                first = min(left_out, len(changes))  # files never change: the known rows come first again
                left_out -= first
                if first < len(changes):
                    batch = changes.slice(first, len(changes)) if first else changes
                    yield RowsRead(epoch=asked.epoch, channel=channel, batch=batch)
        promised = {channel: self._promised(manifest, channel, vnodes) for channel in asked.channels}
        yield EpochRead(epoch=asked.epoch, promised=promised, aged={name: rows for name, rows in aged.items() if rows})

    def _changes(
        self, manifest: LakeEpochs, channel: Channel, vnodes: frozenset[VnodeId], rewritten: Epoch
    ) -> Iterator[tuple[Batch, int]]:
        """As :meth:`Aging.changes`, of constant rows, too."""
        if channel not in self._constants:
            yield from self._aging.changes(manifest, channel, vnodes, rewritten)
        elif manifest.span.after == BEGINNING and len(rows := self._constant_rows(channel, vnodes)):
            yield rows, len(rows)

    def _promised(self, manifest: LakeEpochs, channel: Channel, vnodes: frozenset[VnodeId]) -> int:
        if channel in self._constants:
            return len(self._constant_rows(channel, vnodes)) if manifest.span.after == BEGINNING else 0
        return self._spans.rows_of(manifest, channel, vnodes)

    def _constant_rows(self, channel: Channel, vnodes: frozenset[VnodeId]) -> Batch:
        """What the first epoch has."""
        return constant_rows_of(self._constants[channel], vnodes, self._vnodes)


class LakeReader:
    """The reads of one flow in one worker's loop. commits: told of each manifest read. spans: what the worker's flows
    have read of the lake; ``None``: this one is the only flow. begin: how to read."""

    def __init__(
        self,
        lake: Lake,
        commits: CommitTimes,
        now: Callable[[], float] = time.monotonic,
        spans: SpanCache | None = None,
        begin: Callable[[Iterator[Piece]], Reading] = ReadNow,
    ) -> None:
        """now: the time in seconds."""
        self._lake = lake
        self._spans = SpanCache(lake) if spans is None else spans
        self._now = now
        self._begin = begin
        self._commits = commits
        self._source = FlowSource(lake, self._spans, commits)
        self._paces: defaultdict[Channel, RowPace] = defaultdict(RowPace)
        """By channel: the cost of a row depends on what the views compute from it."""
        self._asked: ReadEpoch | ReadState | None = None
        """What is being read."""
        self._reading: Reading | None = None
        """``None``: nothing is asked for, or the last read failed."""
        self._uncut: RowsRead | None = None
        """Rows that were read, and come next."""
        self._taken: Counter[str] = Counter()
        """How many rows by channel, or chunks by region, were taken in of what is being read."""
        self.held_up: str | None = None
        """Why the last read failed, until a read succeeds."""
        self._again_s = READ_AGAIN_S_MIN
        self._again_at = 0.0
        """When to retry; valid after a read has failed."""

    @property
    def tables(self) -> Mapping[Channel, TableSpec]:
        """By channel that the flow's views read."""
        return self._source.tables

    @property
    def is_on(self) -> bool:
        """Whether there is another piece now, or a retry is due."""
        return self.due_in_s == 0

    @property
    def due_in_s(self) -> float:
        """Seconds until the next piece or retry. Infinite if there is nothing to read, or until a thread that reads
        ahead wakes the loop."""
        if self._asked is None:
            return math.inf
        if self._reading is None:
            return max(0.0, self._again_at - self._now())
        return 0.0 if self._uncut is not None or self._reading.is_ready else math.inf

    def assign(
        self,
        vnodes: int,
        tables: Mapping[Channel, TableSpec],
        constants: Mapping[Channel, ConstantEdge] = NO_CONSTANTS,
        place: CheckpointPlace | None = None,
        *,
        builds: bool = False,
    ) -> None:
        """Read these tables, constant rows and checkpoints from now on, and give up what is under way. vnodes: the
        lake's. builds: in short pieces, until :meth:`caught_up`."""
        self.give_up()
        self._paces = defaultdict(partial(RowPace, BUILD_ROWS_BUDGET_S, BUILD_ROWS_MIN) if builds else RowPace)
        self._spans.remove_reader(self.tables)
        self._spans.add_reader(tables)
        self._source = FlowSource(self._lake, self._spans, self._commits, vnodes, tables, constants, place)

    def caught_up(self) -> None:
        """The flow is served from now on."""
        self._paces = defaultdict(RowPace)

    def close(self) -> None:
        """The flow is gone."""
        self.give_up()
        self._spans.remove_reader(self.tables)
        self._source = FlowSource(self._lake, self._spans, self._commits)

    def begin(self, asked: ReadEpoch | ReadState) -> None:
        self.give_up()
        self._asked = asked
        self._reading = self._begin(self._source.pieces(asked, Counter()))

    def feed(self, take_in: Callable[[Piece], object]) -> None:
        """Take the next piece in, unless it cannot be read. If a retry is due, begin with it."""
        if self._reading is None:
            assert self._asked is not None
            self._reading = self._begin(self._source.pieces(self._asked, Counter(self._taken)))
        if not self.is_on:
            return
        piece: Piece | None = self._uncut
        if piece is None:
            try:
                piece = self._reading.next()
            except (LakeError, OSError, pa.ArrowException) as error:
                self._hold_up(error)
                return
            self.held_up, self._again_s = None, READ_AGAIN_S_MIN
        match piece:
            case RowsRead():
                self._take_rows(piece, take_in)
            case StateRead():
                self._taken[piece.region] += 1
                take_in(piece)
            case _:
                self._asked = self._reading = None
                take_in(piece)

    def _take_rows(self, rows: RowsRead, take_in: Callable[[Piece], object]) -> None:
        """Take in as many of the rows as the pace allows; the others are the next piece."""
        batch, pace = rows.batch, self._paces[rows.channel]
        assert isinstance(self._asked, ReadEpoch)
        in_parts = rows.channel in self._asked.in_parts
        end = end_of_piece(batch.hash64, 0, pace.rows, whole_keys=not in_parts)
        self._uncut = None
        if end < len(batch):
            self._uncut = replace(rows, batch=batch.slice(end, len(batch)))
            goes_on = in_parts and bool(batch.hash64[end] == batch.hash64[end - 1])
            rows = replace(rows, batch=batch.slice(0, end), goes_on=goes_on)
        self._taken[rows.channel] += end
        pace.timed(end, partial(take_in, rows))

    def _hold_up(self, error: Exception) -> None:
        assert self._asked is not None
        told = error_text(error)
        self.held_up = f"epoch {self._asked.epoch}: {told}" if isinstance(self._asked, ReadEpoch) else told
        self._again_at = self._now() + self._again_s
        self._again_s = min(2 * self._again_s, READ_AGAIN_S_MAX)
        self._source.forget()
        self._reading = None

    def give_up(self) -> None:
        """Stop the read under way: the rest is of no use, or will be read again."""
        if self._reading is not None and self._reading.stop():
            self._source = self._source.for_another_thread()
        self._asked = self._reading = self._uncut = None
        self._taken.clear()
        self.held_up, self._again_s = None, READ_AGAIN_S_MIN


def end_of_piece(hashes: Hashes, first: int, rows_max: int, *, whole_keys: bool) -> int:
    """The end of the piece that begins at ``first``: at most ``rows_max`` rows; with ``whole_keys`` also the rest of
    its last key's rows. The rows that are left are cut into pieces of equal size."""
    left = len(hashes) - first
    end = first + math.ceil(left / math.ceil(left / rows_max))
    if not whole_keys:
        return end
    others = true_at(hashes[end:] != hashes[end - 1])
    return end + int(others[0]) if others.size else len(hashes)
