"""A worker's reads of the lake for one flow, a piece at a time: its slices of an epoch, or of checkpoints.

A lookup may have to wait until a piece is taken in. So the number of rows of a piece follows from the time that earlier
pieces took.

The worker retries a failed read, with backoff, from where it stood, for as long as it takes: a file may be repaired,
and a disk or a network come back. It answers lookups meanwhile. It does not wait for a damaged checkpoint: the state
can be computed again.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from types import MappingProxyType

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
from upriver.state.checkpoint import CheckpointPlace
from upriver.state.vectors import true_at

Piece = RowsRead | EpochRead | StateRead | AllStateRead | StateUnread

NO_CONSTANTS: Mapping[Channel, ConstantEdge] = MappingProxyType({})

READ_AGAIN_S_MIN, READ_AGAIN_S_MAX = 0.1, 30.0
"""Seconds from a failed read to the retry: doubled each time."""


class LakeReader:
    """The reads of one flow in one worker's loop. ``tables``: by channel that its views read. commits: told of each
    manifest read. spans: what the worker's flows have read of the lake; ``None``: this one is the only flow."""

    def __init__(
        self,
        lake: Lake,
        commits: CommitTimes,
        now: Callable[[], float] = time.monotonic,
        spans: SpanCache | None = None,
    ) -> None:
        """now: the time in seconds."""
        self._lake = lake
        self._spans = SpanCache(lake) if spans is None else spans
        self._now = now
        self._commits = commits
        self._vnodes = 0
        self.tables: Mapping[Channel, TableSpec] = {}
        self._constants: Mapping[Channel, ConstantEdge] = {}
        self._place: CheckpointPlace | None = None
        """Where the checkpoints of the views are."""
        self._aging = Aging(lake, self.tables, self._spans)
        self._pieces: Iterator[Piece] = iter(())
        self._paces: defaultdict[Channel, RowPace] = defaultdict(RowPace)
        """By channel: the cost of a row depends on what the views compute from it."""
        self._asked: ReadEpoch | ReadState | None = None
        """What is being read."""
        self._taken: Counter[str] = Counter()
        """How many rows by channel, or chunks by region, were taken in of it."""
        self.held_up: str | None = None
        """Why the last read failed, until a read succeeds."""
        self._again_s = READ_AGAIN_S_MIN
        self._again_at = 0.0
        """When to retry; valid while ``held_up``."""

    @property
    def is_on(self) -> bool:
        """Whether another piece can be read now."""
        return self._asked is not None and self.due_in_s == 0

    @property
    def due_in_s(self) -> float:
        """Seconds until the next read or retry; infinite if there is nothing to read."""
        if self._asked is None:
            return math.inf
        return 0.0 if self.held_up is None else max(0.0, self._again_at - self._now())

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
        self._paces = defaultdict(partial(RowPace, BUILD_ROWS_BUDGET_S, BUILD_ROWS_MIN) if builds else RowPace)
        self._spans.remove_reader(self.tables)
        self._spans.add_reader(tables)
        self._vnodes, self.tables, self._constants, self._place = vnodes, tables, constants, place
        self._aging = Aging(self._lake, tables, self._spans)
        self.give_up()

    def caught_up(self) -> None:
        """The flow is served from now on."""
        self._paces = defaultdict(RowPace)

    def close(self) -> None:
        """The flow is gone."""
        self.give_up()
        self._spans.remove_reader(self.tables)
        self.tables = {}

    def begin(self, asked: ReadEpoch | ReadState) -> None:
        self.give_up()
        self._asked = asked
        self._pieces = self._read(asked)

    def feed(self, take_in: Callable[[Piece], object]) -> None:
        """Read the next piece and take it in, unless it cannot be read."""
        try:
            piece = next(self._pieces)
        except (LakeError, OSError, pa.ArrowException) as error:
            self._hold_up(error)
            return
        self.held_up, self._again_s = None, READ_AGAIN_S_MIN
        if isinstance(piece, EpochRead | AllStateRead | StateUnread):
            self._asked = None
            take_in(piece)
        elif isinstance(piece, RowsRead):
            self._paces[piece.channel].timed(len(piece.batch), partial(take_in, piece))
            self._taken[piece.channel] += len(piece.batch)
        else:
            take_in(piece)
            self._taken[piece.region] += 1

    def _hold_up(self, error: Exception) -> None:
        assert self._asked is not None
        told = error_text(error)
        self.held_up = f"epoch {self._asked.epoch}: {told}" if isinstance(self._asked, ReadEpoch) else told
        self._again_at = self._now() + self._again_s
        self._again_s = min(2 * self._again_s, READ_AGAIN_S_MAX)
        self._aging.forget()
        self._pieces = self._read(self._asked)

    def give_up(self) -> None:
        """Stop the read under way: the rest is of no use, or will be read again."""
        self._asked, self._pieces = None, iter(())
        self._taken.clear()
        self.held_up, self._again_s = None, READ_AGAIN_S_MIN

    def _read(self, asked: ReadEpoch | ReadState) -> Iterator[Piece]:
        """The pieces that were not taken in."""
        return self._epoch(asked) if isinstance(asked, ReadEpoch) else self._state(asked)

    def _state(self, asked: ReadState) -> Iterator[Piece]:
        if self._place is None:
            raise ProtocolError("state of views that have no checkpoints")
        try:
            for region, vnodes in asked.vnodes.items():
                chunks = read_state(self._lake, self._place, asked.chain, region, vnodes, self._vnodes)
                for chunk in islice(chunks, self._taken[region], None):
                    yield StateRead(region=region, chunk=chunk)
        except CorruptCheckpoint as error:
            yield StateUnread(error=str(error))
            return
        yield AllStateRead()

    def _epoch(self, asked: ReadEpoch) -> Iterator[Piece]:
        vnodes = frozenset(asked.vnodes)
        manifest = self._spans.epochs(
            self._lake.opened(span_after(asked.epoch, asked.after), asked.as_of), self.tables.keys()
        )
        self._commits.note(manifest)
        aged = Counter[Channel]()
        for channel in asked.channels:
            taken = self._taken[channel]
            for changes, read in self._changes(manifest, channel, vnodes, asked.as_of):
                aged[channel] += len(changes) - read
                first = min(taken, len(changes))  # files never change: the known rows come first again
                taken -= first
                while first < len(changes):
                    end = end_of_piece(changes.hash64, first, self._paces[channel].rows)
                    yield RowsRead(epoch=asked.epoch, channel=channel, batch=changes.slice(first, end))
                    first = end
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


def end_of_piece(hashes: Hashes, first: int, rows_max: int) -> int:
    """The end of the piece that begins at ``first``: at most ``rows_max`` rows, and the rest of its last key's rows.
    The rows that are left are cut into pieces of equal size."""
    left = len(hashes) - first
    end = first + math.ceil(left / math.ceil(left / rows_max))
    others = true_at(hashes[end:] != hashes[end - 1])
    return end + int(others[0]) if others.size else len(hashes)
