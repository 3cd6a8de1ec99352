"""The rows of single keys, out of all epochs of a lake edge: the answers to upqueries.

UpqueryReader reads them out of the lake on threads of its own, so the worker's loop goes on meanwhile, and a short
read does not wait for a long one.

KeyHistory keeps, of each manifest, only where its runs are, and in which parts of the hash space they have rows. So it
opens no run without the keys. Runs stay open, with what was read of them, as long as there is room.

Catalogue lists the runs of a lake edge, in order. Each epoch adds a run, and a reader of a key has to look into all of
them. An hour of small epochs gives thousands of runs, and looking into one costs more than its few rows. So the
catalogue merges small neighbouring runs in memory, and merges merged ones again: of n small runs, about the logarithm
of n are left.
"""

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.coordinator.flow import EPOCHS_AHEAD_MAX
from upriver.engine.batch import Batch
from upriver.engine.retention import Retention, as_of, leaving, together
from upriver.engine.row_text import error_text
from upriver.errors import CorruptFile, LakeError, ProtocolError, UpriverError
from upriver.hashing import Hashes
from upriver.ids import BEGINNING, Channel, Epoch, FlowId, VnodeId
from upriver.lake.flow_threads import FlowThreads
from upriver.lake.lake import Lake
from upriver.lake.manifests import LakeEpochs
from upriver.lake.runs import FEW_KEYS_MAX, RunReader, Tell, tell_no_one
from upriver.lake.spans import EpochSpan, cover
from upriver.plan.plan import TableSpec
from upriver.protocol.worker_events import (
    FetchRows,
    KeysRead,
    KeysUnread,
    ReadKeys,
    ReadTakesLong,
    RowsFetched,
    RowsUnfetched,
)
from upriver.state.run_order import TaskRows, merged_order
from upriver.state.runs import RunInfo, run_schema
from upriver.state.vectors import contains, spread, true_at
from upriver.vnodes import vnodes_of

MERGED_TOGETHER = 16
"""How many runs, or merged runs, are merged into one."""
SMALL_BYTES = 64 << 10
"""A run is small up to this length of its file; larger runs are searched where they are."""
MERGED_BYTES_MAX = 64 << 20
"""Bytes of merged rows for one lake edge. Later runs stay in their files."""
TIDIED_RUNS_MAX = 64
"""Runs that one call looks at: the first call on a long history does not wait until all of it is merged."""


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run of an epoch, or of several as one. info: without its vnode_rows. places: bit p is set if it has rows at
    place p."""

    span: EpochSpan
    info: RunInfo
    places: int

    @property
    def first(self) -> Epoch:
        return self.span.first

    @property
    def last(self) -> Epoch:
        return self.span.last


@dataclass(frozen=True, slots=True)
class Merged:
    """Runs of the epochs ``first`` to ``last``, merged, in the order of ``run_order``. An epoch that several tasks
    have written is in one of them as a whole.

    epochs: of each row; of a row of a segment, the segment's last. places: as for a run. level: how many times these
    rows were merged.
    """

    first: Epoch
    last: Epoch
    rows: Batch
    epochs: npt.NDArray[np.int64]
    places: int
    level: int

    @property
    def nbytes(self) -> int:
        return int(self.rows.rows.nbytes + self.rows.hash64.nbytes + self.epochs.nbytes)

    def between(self, after: Epoch, through: Epoch) -> Batch:
        """The rows of all epochs after ``after`` up to and including ``through``."""
        if after < self.first and self.last <= through:
            return self.rows
        return self.rows.filtered((after < self.epochs) & (self.epochs <= through))


@dataclass(frozen=True, slots=True)
class Merging:
    """When to merge: each field as the constant of its name says."""

    together: int = MERGED_TOGETHER
    small_bytes: int = SMALL_BYTES
    bytes_max: int = MERGED_BYTES_MAX
    tidied_max: int = TIDIED_RUNS_MAX


USUAL = Merging()


def _may_leave(run: OpenRun | Merged, before: int | None, cut: int | None) -> bool:
    """Whether a run may have rows that remain at one cut, and not at a later one."""
    if isinstance(run, Merged) or run.info.span is None or cut is None:
        return True
    return run.info.span.oldest <= cut and (before is None or run.info.span.newest > before)


class Catalogue:
    """All runs of one lake edge up to and including the epoch ``through``, in the order in which they are read."""

    def __init__(self, merging: Merging) -> None:
        self.through = Epoch(0)
        self.spans: list[EpochSpan] = []
        """The spans that were added, in order."""
        self._as_of: list[Epoch] = []
        """By span: the last epoch as of which it or an earlier one was rewritten, or its own end."""
        self._merging = merging
        self._tidy: list[OpenRun | Merged] = []
        """The first runs, merged where possible."""
        self._levels: list[int] = []
        """For each of these: how many times it was merged; -1 if it will not be merged any more."""
        self._untidy: deque[OpenRun] = deque()
        """All other runs."""
        self._merged_bytes = 0
        self._cuts: list[tuple[Epoch, Retention]] = []
        """The retention of the edge's table, from each epoch on at whose end it was another than before."""

    def add(self, span: EpochSpan, runs: Sequence[OpenRun], retention: Retention | None = None) -> None:
        """Add the runs of the next epochs, if they have any. retention: of the table, at the end of the epochs."""
        self._untidy.extend(runs)
        if retention is not None and (not self._cuts or self._cuts[-1][1].cut != retention.cut):
            self._cuts.append((span.last, retention))
        self._as_of.append(max([span.as_of, *self._as_of[-1:]]))
        self.spans.append(span)
        self.through = span.last

    def is_cut_by(self, epoch: Epoch) -> bool:
        """Whether the end of this epoch lies within a segment, or before the one as of which an earlier segment was
        rewritten."""
        begun = bisect_right(self.spans, epoch, key=lambda span: span.first)
        return begun > 0 and epoch < self._as_of[begun - 1]

    def retention(self, through: Epoch) -> Retention | None:
        """The table's retention at the end of an epoch; ``None`` if there was none."""
        place = bisect_right(self._cuts, through, key=lambda since: since[0])
        return self._cuts[place - 1][1] if place else None

    def between(self, after: Epoch, through: Epoch) -> list[OpenRun | Merged]:
        """The runs with the rows of all epochs after ``after`` up to and including ``through``. Merged ones may hold
        rows of other epochs, too."""
        tidy = self._tidy[bisect_right(self._tidy, after, key=lambda run: run.last) :]
        untidy = islice(self._untidy, bisect_right(self._untidy, after, key=lambda run: run.last), None)
        found = [*tidy, *untidy]
        return found[: bisect_right(found, through, key=lambda run: run.first)]

    def tidy(self, table: TableSpec, read: Callable[[RunInfo], Batch]) -> None:
        """Merge some runs. table: of the edge. read: gives the rows of a run. If it raises LakeError, that run stays as
        it is."""
        left = self._merging.tidied_max
        while left > 0 and self._untidy:
            runs = [self._untidy.popleft()]
            while self._untidy and self._untidy[0].span == runs[0].span:
                runs.append(self._untidy.popleft())
            left -= len(runs)
            if len({run.info.task for run in runs}) > 1:
                self._tidy_tasks(runs, table, read)
                runs = []
            for run in runs:
                self._tidy.append(run)
                self._levels.append(0 if run.info.bytes <= self._merging.small_bytes else -1)
                while self._merge_last(table, read):
                    pass

    def _tidy_tasks(self, runs: Sequence[OpenRun], table: TableSpec, read: Callable[[RunInfo], Batch]) -> None:
        """Tidy the runs of several tasks: an epoch is merged as a whole, or stays outside of merged runs."""
        self._tidy += runs
        is_small = sum(run.info.bytes for run in runs) <= self._merging.small_bytes
        self._levels += [-1] * len(runs)
        if is_small and self._merge(len(runs), table, read, 0):
            while self._merge_last(table, read):
                pass

    def _merge_last(self, table: TableSpec, read: Callable[[RunInfo], Batch]) -> bool:
        """Merge the last runs if there are enough of one level; false if it merges none."""
        count = self._merging.together
        level = self._levels[-1]
        if level < 0 or len(self._levels) < count or set(self._levels[-count:]) != {level}:
            return False
        if self._merge(count, table, read, level + 1):
            return True
        if self._merged_bytes < self._merging.bytes_max:
            self._levels[-count:] = [-1] * count  # a reader of these rows gets the error
        return False

    def _merge(self, count: int, table: TableSpec, read: Callable[[RunInfo], Batch], level: int) -> bool:
        """Merge the last runs, if there is room and they can be read."""
        parts = self._tidy[-count:]
        if self._merged_bytes >= self._merging.bytes_max:
            return False
        try:
            merged = _merged(parts, table, read, level)
        except LakeError:
            return False
        self._tidy[-count:], self._levels[-count:] = [merged], [level]
        self._merged_bytes += merged.nbytes - sum(part.nbytes for part in parts if isinstance(part, Merged))
        return True


def merged_batches(pieces: Sequence[Batch], table: TableSpec, sources: Sequence[TaskRows]) -> Batch:
    """Rows of a table in the order of ``run_order``, copied. pieces, sources: as for ``merged_order``; a source may
    have several pieces, or none."""
    hash64 = np.concatenate([np.empty(0, np.uint64), *(piece.hash64 for piece in pieces)])
    none = pa.RecordBatch.from_pylist([], table.schema)  # concat_batches needs at least one batch, and copies all
    rows = pa.concat_batches([none, *(piece.rows for piece in pieces)])
    is_of_one_task = len({source.task for source in sources}) < 2
    if is_of_one_task and (hash64[:-1] <= hash64[1:]).all():
        return Batch(rows, hash64)
    order = merged_order(hash64, rows, table.order_by, sources)
    return Batch(rows.take(pa.array(order)), hash64[order])


def _source(run: OpenRun | Merged, rows: int, number: int) -> TaskRows:
    """number: of the run among others. An epoch is in one merged run, or in none: there it is not merged again."""
    return TaskRows(rows, -1 - number, 0) if isinstance(run, Merged) else TaskRows(rows, run.last, run.info.task)


def _merged(
    parts: Sequence[OpenRun | Merged], table: TableSpec, read: Callable[[RunInfo], Batch], level: int
) -> Merged:
    batches = [part.rows if isinstance(part, Merged) else read(part.info) for part in parts]
    epochs = [
        part.epochs if isinstance(part, Merged) else np.full(len(batch), part.last, np.int64)
        for part, batch in zip(parts, batches, strict=True)
    ]
    hash64 = np.concatenate([batch.hash64 for batch in batches])
    rows = pa.concat_batches([batch.rows for batch in batches])
    sources = [
        _source(part, len(batch), number) for number, (part, batch) in enumerate(zip(parts, batches, strict=True))
    ]
    order = merged_order(hash64, rows, table.order_by, sources)
    last = parts[-1]
    places = 0
    for part in parts:
        places |= part.places
    return Merged(
        first=parts[0].first,
        last=last.last,
        rows=Batch(rows.take(pa.array(order)), hash64[order]),
        epochs=np.concatenate(epochs)[order],
        places=places,
        level=level,
    )


OPEN_RUNS_MAX = 4_096
"""Runs that stay open. One costs about 8 kB and a mapping of memory, but no file descriptor. Linux gives a process
65,530 mappings."""

OPEN_BYTES_MAX = 128 << 20
"""Bytes read of all runs that stay open. A run of which more was read by itself is open only while it is read."""

OUTGROWN_SPANS = 128
"""Spans more in a catalogue until it is begun anew, if the lake has them in segments by then."""

PLACES_MAX = 256
"""Equal parts of the hash space; for each part it is known whether a run has rows in it."""


class KeyHistory:
    """Rows of some keys, out of all runs of a lake edge. Used by any thread.

    runs_max, bytes_max: of the runs that stay open from one call to the next. merging: when to merge small ones.
    """

    def __init__(
        self,
        lake: Lake,
        runs_max: int = OPEN_RUNS_MAX,
        bytes_max: int = OPEN_BYTES_MAX,
        merging: Merging = USUAL,
    ) -> None:
        self._lake = lake
        self._merging = merging
        self._catalogues: dict[Channel, Catalogue] = {}
        self._segments: dict[Channel, frozenset[EpochSpan]] = {}
        """By channel with a catalogue: the segments that there were when it was begun."""
        self._outgrown_at: dict[Channel, int] = {}
        """By channel: the number of spans at which to look for new segments."""
        self._locks: dict[Channel, threading.Lock] = {}
        """By channel; held by a thread that uses its catalogue, which may read the lake meanwhile."""
        self.opened = OpenRuns(lake, runs_max, bytes_max)

    def rows_of(
        self,
        channel: Channel,
        table: TableSpec,
        keys: Hashes,
        through: Epoch,
        after: Epoch = BEGINNING,
        tell: Tell = tell_no_one,
    ) -> Batch:
        """All rows on a lake edge of the keys with these hash64 (ascending, each once), of all epochs after ``after``
        up to and including ``through``: in the order of ``run_order``.

        Of a table that retains rows by a time, these are the changes from the end of ``after`` to the end of
        ``through``: retractions, too, and only rows that remain. The rows are copies: they keep no file open. The first
        call for an edge reads all its manifests; without keys it reads nothing else. tell: is told of each run how many
        rows will be read. Raises CorruptFile, and ProtocolError for an index that is not complete.
        """
        known = self._segments.get(channel)
        try:
            return self._rows_of(channel, table, keys, through, after, tell)
        except CorruptFile:
            if not self._renew(channel, known):
                raise
            return self._rows_of(channel, table, keys, through, after, tell)

    def _rows_of(
        self, channel: Channel, table: TableSpec, keys: Hashes, through: Epoch, after: Epoch, tell: Tell
    ) -> Batch:
        with self._lock_of(channel):
            catalogue = self._catalogue(channel, table, through)
            if catalogue.is_cut_by(after) or catalogue.is_cut_by(through):
                catalogue = self._exact(channel, table, through, after)
            runs = catalogue.between(after, through)
            before, now = catalogue.retention(after), catalogue.retention(through)
            moves = after != BEGINNING and now is not None and (before is None or before.cut != now.cut)
            earlier = catalogue.between(BEGINNING, after) if moves else []
        rows = self._read(runs, keys, table, (after, through), tell)
        if now is None:
            return rows
        rows, cut = as_of(rows, table, now.column, now.cut), None if before is None else before.cut
        due = [run for run in earlier if _may_leave(run, cut, now.cut)]
        known = self._read(due, keys, table, (BEGINNING, after), tell)
        return together(rows, leaving(known, now.column, cut, now.cut))

    def _lock_of(self, channel: Channel) -> threading.Lock:
        return self._locks.setdefault(channel, threading.Lock())

    def _read(
        self,
        runs: Sequence[OpenRun | Merged],
        keys: Hashes,
        table: TableSpec,
        epochs: tuple[Epoch, Epoch],
        tell: Tell,
    ) -> Batch:
        """The keys' rows in these runs, of the epochs after the first up to and including the second."""
        wanted = _bits(np.unique(vnodes_of(keys, self._places)).tolist())
        asked = [run for run in runs if run.places & wanted]
        found = self._found(asked, keys, table, *epochs, tell)
        sources = [
            _source(run, sum(map(len, pieces)), number)
            for number, (run, pieces) in enumerate(zip(asked, found, strict=True))
        ]
        return merged_batches([piece for pieces in found for piece in pieces], table, sources)

    def _found(
        self,
        runs: Sequence[OpenRun | Merged],
        keys: Hashes,
        table: TableSpec,
        after: Epoch,
        through: Epoch,
        tell: Tell,
    ) -> list[list[Batch]]:
        """The keys' rows in each of the runs."""
        few = keys.tolist() if len(keys) <= FEW_KEYS_MAX else None
        at_hand = [isinstance(run, Merged) or run.info in self.opened for run in runs]
        pieces: dict[int, list[Batch]] = {}
        # Open runs come first: opening the others closes them. In order of epochs, with one run more than may stay
        # open, each run would be closed just before its turn.
        for number in sorted(range(len(runs)), key=lambda number: not at_hand[number]):
            run = runs[number]
            if isinstance(run, OpenRun):
                # A slice keeps its run open: if all runs are opened anew, all of them would be open at once.
                stays = run.info in self.opened
                reader = self.opened.take(run.info, table.schema)
                if few is None:
                    pieces[number] = reader.rows_of(keys, tell)
                else:
                    pieces[number] = reader.slices_of(few, tell) if stays else reader.rows_of_few(few, tell)
                self.opened.keep(run.info, reader)
            elif few is None:
                pieces[number] = _copy_of(run.between(after, through), keys)
            else:
                pieces[number] = _slices_of(run.between(after, through), few)
        return [pieces[number] for number in range(len(runs))]

    def _catalogue(self, channel: Channel, table: TableSpec, through: Epoch) -> Catalogue:
        """The runs of the edge, of all epochs up to and including ``through`` at least."""
        catalogue = self._catalogues.get(channel)
        if catalogue is None or self._is_outgrown(channel, catalogue, through):
            catalogue = self._catalogues[channel] = Catalogue(self._merging)
            self._segments[channel] = self._lake.segments()
        if through > catalogue.through:
            self._extend(catalogue, channel, table, cover(self._segments[channel], catalogue.through, through))
        catalogue.tidy(table, lambda run: self.opened.rows_once(run, table.schema))
        return catalogue

    def _is_outgrown(self, channel: Channel, catalogue: Catalogue, through: Epoch) -> bool:
        """Whether the lake has the epochs in far fewer spans by now."""
        if len(catalogue.spans) < self._outgrown_at.get(channel, OUTGROWN_SPANS):
            return False
        fewer = sum(1 for _ in cover(self._lake.segments(), BEGINNING, through))
        self._outgrown_at[channel] = len(catalogue.spans) + OUTGROWN_SPANS
        if 2 * fewer > len(catalogue.spans):
            return False
        self._outgrown_at[channel] = fewer + OUTGROWN_SPANS
        return True

    def _renew(self, channel: Channel, known: frozenset[EpochSpan] | None) -> bool:
        """Forget a catalogue whose epochs are in segments now, since some of its files are gone; whether it makes sense
        to read once more. known: the segments that the reader began with; another thread may have the new ones since.
        """
        with self._lock_of(channel):
            segments = self._lake.segments()
            if self._segments.get(channel) != segments:
                self._catalogues.pop(channel, None)
            return segments != known

    def _exact(self, channel: Channel, table: TableSpec, through: Epoch, after: Epoch) -> Catalogue:
        """A catalogue in which both epochs end a span. They may end within a segment, so its parts are read: their
        files stay for some time (segments.grace)."""
        catalogue = Catalogue(self._merging)
        self._extend(catalogue, channel, table, [*self._lake.spans(after), *self._lake.spans(through, after)])
        return catalogue

    def _extend(self, catalogue: Catalogue, channel: Channel, table: TableSpec, spans: Iterable[EpochSpan]) -> None:
        for span in spans:
            epochs = self._lake.epochs(span)
            catalogue.add(span, self._runs_in(epochs, channel), epochs.retained.get(table.name))

    def _runs_in(self, epochs: LakeEpochs, channel: Channel) -> list[OpenRun]:
        return [
            OpenRun(epochs.span, replace(info, vnode_rows=()), self._places_of(vnode for vnode, _ in info.vnode_rows))
            for info in epochs.runs_of(channel)
        ]

    def _places_of(self, vnodes: Iterable[VnodeId]) -> int:
        return _bits(vnode * self._places // self._vnodes for vnode in vnodes)

    @property
    def _places(self) -> int:
        return min(self._vnodes, PLACES_MAX)

    @cached_property
    def _vnodes(self) -> int:
        record = self._lake.record()
        if record is None:
            raise ProtocolError(f"{self._lake.root}: no app.json, but its history was requested")
        return record.vnodes


class OpenRuns:
    """The runs of a lake that stay open. The least recently read one is closed first. A thread that has taken a run has
    it for itself: another one opens it once more."""

    def __init__(self, lake: Lake, runs_max: int, bytes_max: int) -> None:
        self._lake = lake
        self._runs_max = runs_max
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._open: OrderedDict[str, RunReader] = OrderedDict()
        """By path."""
        self.bytes = 0
        """Bytes read of the open runs."""

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, run: RunInfo) -> bool:
        return run.path in self._open

    def take(self, run: RunInfo, schema: pa.Schema) -> RunReader:
        """A run, for a partial read; it stays open if it is given back by ``keep``. schema: of the user's columns.
        Raises CorruptFile."""
        return self._taken(run) or self._opened(run, schema)

    def keep(self, run: RunInfo, reader: RunReader) -> None:
        """Give back a run that was taken and read."""
        filled_bytes = reader.filled_bytes
        if filled_bytes > self._bytes_max:
            return
        self._taken(run)  # another thread may have opened it, too
        with self._lock:
            self._open[run.path] = reader
            self.bytes += filled_bytes
            while len(self._open) > self._runs_max or self.bytes > self._bytes_max:
                _, evicted = self._open.popitem(last=False)
                self.bytes -= evicted.filled_bytes

    def rows_once(self, run: RunInfo, schema: pa.Schema) -> Batch:
        """All rows of a run that will not be read again. schema: of the user's columns. Raises CorruptFile."""
        rows = self.take(run, schema).all_rows()
        return Batch(pa.RecordBatch.from_arrays(rows.columns[1:], schema=schema), rows.column(0).to_numpy())

    def _opened(self, run: RunInfo, schema: pa.Schema) -> RunReader:
        return self._lake.open_run(run, run_schema(schema))

    def _taken(self, run: RunInfo) -> RunReader | None:
        with self._lock:
            reader = self._open.pop(run.path, None)
            if reader is not None:
                self.bytes -= reader.filled_bytes
        return reader


def _slices_of(run: Batch, keys: list[int]) -> list[Batch]:
    """The keys' rows, one slice for each that has any."""
    hashes = run.hash64.data  # bisecting it takes a fifth of what searchsorted needs to begin with
    slices = []
    for key in keys:
        start = bisect_left(hashes, key)
        if start < len(hashes) and hashes[start] == key:
            slices.append(run.slice(start, bisect_right(hashes, key, start)))
    return slices


def _copy_of(run: Batch, keys: Hashes) -> list[Batch]:
    """The keys' rows, as one batch; an empty list if there are none."""
    hashes = run.hash64
    if not len(hashes):
        return []
    keys = keys[keys.searchsorted(hashes[0]) : keys.searchsorted(hashes[-1], "right")]
    if not len(keys):
        return []
    if len(keys) < len(hashes):
        starts = hashes.searchsorted(keys)
        is_there = hashes[starts] == keys  # no key is above the last hash
        starts = starts[is_there]
        positions = spread(starts, hashes.searchsorted(keys[is_there], "right") - starts)
    else:
        positions = true_at(contains(keys, hashes))
    return [Batch(run.rows.take(pa.array(positions)), hashes[positions])] if len(positions) else []


def _bits(numbers: Iterable[int]) -> int:
    """The number with the bits of these numbers set."""
    return sum(1 << number for number in set(numbers))


ReadRequest = ReadKeys | FetchRows
Answer = KeysRead | KeysUnread | RowsFetched | RowsUnfetched
Heard = Answer | ReadTakesLong
Hear = Callable[[Heard], None]
"""Takes answers, and news of reads that take long, from any thread."""


READERS_MAX, REMOTE_READERS_MAX = 5, 16
"""Threads that read keys from a local directory, and from a store behind a network, where they mostly wait. Flows share
them (``FlowThreads``): one has at most 3, or 8. With as many long reads under way, its further reads wait."""
LONG_READ_ROWS = 65_536
"""A read of more rows takes long, some tens of milliseconds: the worker may begin others."""


class _ReadLength:
    """Of one read: says so, once, when it takes long."""

    def __init__(self, say: Callable[[], None]) -> None:
        self._say = say
        self._rows = 0

    def __call__(self, rows: int) -> None:
        """So many rows more are about to be read."""
        was_short = self._rows <= LONG_READ_ROWS
        self._rows += rows
        if was_short and self._rows > LONG_READ_ROWS:
            self._say()


class UpqueryReader:
    """The worker's loop calls its methods; the threads call ``hear`` and ``fail``."""

    def __init__(self, lake: Lake, fail: Callable[[BaseException], None]) -> None:
        """fail: takes an error with which a read has ended without an answer."""
        self._lake = lake
        self._history = KeyHistory(lake)
        self._fail = fail
        self._threads = FlowThreads("upriver-upqueries", REMOTE_READERS_MAX if lake.files.is_remote else READERS_MAX)

    def ask(self, flow: FlowId, request: ReadRequest, tables: Mapping[Channel, TableSpec], hear: Hear) -> None:
        """tables: of the channels. hear: takes the answer. Each region has a bounded number of requests under way."""
        self._threads.do(flow, partial(self._answer, request, tables, hear))

    def drop(self, flow: FlowId) -> None:
        """The flow is gone: begin no read for it any more."""
        self._threads.drop(flow)

    def close(self) -> None:
        """End the threads; answers of reads under way are not used any more."""
        self._threads.close()

    def _answer(self, request: ReadRequest, tables: Mapping[Channel, TableSpec], hear: Hear) -> None:
        try:
            hear(self._answered(request, tables, hear))
        except BaseException as error:
            self._fail(error)

    def _answered(self, request: ReadRequest, tables: Mapping[Channel, TableSpec], hear: Hear) -> Answer:
        """Answer a read that fails with its error. Only lookups that need it fail, and they may ask again."""
        try:
            if isinstance(request, FetchRows):
                return self._fetched(request, tables, hear)
            return self._read(request, tables, hear)
        except UpriverError as error:
            return _unanswered(request, error)
        except Exception as error:  # of any class: it concerns these keys only
            return _unanswered(request, ProtocolError(f"the lake's rows cannot be read: {error_text(error)}"))

    def _fetched(self, action: FetchRows, tables: Mapping[Channel, TableSpec], hear: Hear) -> RowsFetched:
        tell = _length_of(hear, action.generation, action.view, action.task)
        rows = tuple(
            self._history.rows_of(read.channel, tables[read.channel], read.keys, read.through, read.after, tell)
            for read in action.reads
        )
        return RowsFetched(generation=action.generation, view=action.view, task=action.task, rows=rows)

    def _read(self, action: ReadKeys, tables: Mapping[Channel, TableSpec], hear: Hear) -> KeysRead:
        keys, through = action.upquery.keys, action.upquery.through
        tell = _length_of(hear, action.generation, action.region, action.upquery.number)
        while through < action.upquery.through + EPOCHS_AHEAD_MAX and self._lake.has_epoch(
            Epoch(through + 1)
        ):  # partial.read_ahead
            through = Epoch(through + 1)
        rows = tuple(
            (port, self._history.rows_of(channel, tables[channel], keys, through, tell=tell))
            for port, channel in action.ports
        )
        return KeysRead(
            generation=action.generation,
            region=action.region,
            number=action.upquery.number,
            rows=rows,
            through=through,
            clock=self._lake.clock(through) if action.needs_clock else None,
        )


def _length_of(hear: Hear, generation: int, region: str, number: int) -> _ReadLength:
    takes_long = ReadTakesLong(generation=generation, region=region, number=number)
    return _ReadLength(lambda: hear(takes_long))


def _unanswered(request: ReadRequest, error: UpriverError) -> KeysUnread | RowsUnfetched:
    if isinstance(request, FetchRows):
        return RowsUnfetched(generation=request.generation, view=request.view, task=request.task, error=error)
    return KeysUnread(generation=request.generation, region=request.region, number=request.upquery.number, error=error)
