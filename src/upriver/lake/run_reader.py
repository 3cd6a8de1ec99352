"""The rows of one run, by place or by key: only the bytes that they lie in are read, and all of these are checked."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.lake.column_bytes import ColumnBytes
from upriver.lake.sorted_hashes import SortedHashes
from upriver.lake.verified_file import VerifiedFile, saying_what_helps
from upriver.state.ragged import spread
from upriver.state.runs import RunInfo, cut, decode_content, ends_in, gathered, grouped
from upriver.state.vectors import Positions
from upriver.xxh64 import Hashes

STRETCH_BYTES_MAX = 8 << 20
"""Bytes of a file that a scan reads at a time, or as many more as the rows of one key take. They stay in memory as long
as any of their rows are in use."""
FEW_KEYS_MAX = 8
"""So many keys are looked up one by one: with numpy, each run would cost more than all of them."""
GAP_ROWS_MAX = 4_096
"""A scan reads so many rows that it leaves out along with those before and behind them."""

_ARROW_HEAD_BYTES = 8
_ARROW_TAIL_BYTES = 10
"""Of an Arrow file: its magic and padding; the length of its footer, and its magic."""


class RunReader:
    """Used by one thread. Each method raises CorruptFile, which names the file, if bytes that it needs are damaged.

    The rows that it gives lie in memory of this process: nothing that happens to the file changes them.
    """

    def __init__(self, info: RunInfo, schema: pa.Schema, file: VerifiedFile) -> None:
        """schema: of the run, with its hash64."""
        self._info = info
        self._schema = schema
        self._user_schema = pa.schema(list(schema)[1:])
        self._file = file
        if not file.is_whole:
            self._fill_metadata()
        self._decode()

    @saying_what_helps()
    def _decode(self) -> None:
        self._rows = decode_content(self._info, self._file.content, self._schema)
        """Right where it was filled."""
        base = self._file.content.address
        self._columns: tuple[ColumnBytes, ...] = ()
        if not self._file.is_whole:
            self._columns = tuple(ColumnBytes.of(column, base) for column in self._rows.columns)
        hash64 = self._rows.column(0)
        first_byte = hash64.buffers()[1].address - base if len(hash64) else 0
        self._hashes = SortedHashes(self._file, hash64.to_numpy(), first_byte, self._info.block_bytes)

    def _fill_metadata(self) -> None:
        """What an Arrow file has before and behind its columns."""
        end = self._info.arrow_bytes
        footer = self._number(end - _ARROW_TAIL_BYTES, end)
        self._fill(end - _ARROW_TAIL_BYTES - footer, end)
        place = _ARROW_HEAD_BYTES
        for _message in ("schema", "record batch"):
            place += _ARROW_HEAD_BYTES + self._number(place + 4, place + _ARROW_HEAD_BYTES)
            self._fill(0, place)

    def _number(self, start: int, end: int) -> int:
        self._fill(start, end)
        return int.from_bytes(memoryview(self._file.content)[start : start + 4], "little")

    def _fill(self, start: int, end: int) -> None:
        self._file.fill([(start, end)])

    def __len__(self) -> int:
        return self._info.rows

    @property
    def filled_bytes(self) -> int:
        """How many of the file's bytes were read, and lie in memory."""
        return self._file.filled_bytes

    def all_rows(self) -> pa.RecordBatch:
        """All rows, with their hash64."""
        return self._part(0, len(self))

    def scan(self, slices: Sequence[tuple[int, int]], rows_max: int) -> Iterator[pa.RecordBatch]:
        """The rows of these slices, which are ascending, with their hash64, in batches of about ``rows_max``: no batch
        ends between two rows of one key. Few rows of slices that are near each other come as one batch. No more than a
        stretch of them is in memory, besides what is still in use of the batches."""
        for near in [slices] if self._file.is_whole else self._near(slices, self._stretch_rows(rows_max)):
            first, end = near[0][0], sum(near[-1])
            part = self._part(first, end)
            end_of_key = ends_in(part.column(0).to_numpy())
            for group in grouped([(start - first, count) for start, count in near], rows_max, end_of_key):
                yield gathered(part, group)

    def _near(self, slices: Iterable[tuple[int, int]], rows_max: int) -> Iterator[list[tuple[int, int]]]:
        """The same slices, as many at a time as are near each other, in about so many rows."""
        near: list[tuple[int, int]] = []
        for start, count in cut(slices, rows_max, self._hashes.end_of_key):
            if near and (start - sum(near[-1]) > GAP_ROWS_MAX or start + count - near[0][0] > rows_max):
                yield near
                near = []
            near.append((start, count))
        if near:
            yield near

    def batches(self, rows_max: int) -> Iterator[pa.RecordBatch]:
        """All rows in order, with their hash64, in batches of at most ``rows_max``, which may end anywhere."""
        stretch_rows = self._stretch_rows(rows_max)
        for first in range(0, len(self), stretch_rows):
            part = self._part(first, min(first + stretch_rows, len(self)))
            for start in range(0, len(part), rows_max):
                yield part.slice(start, rows_max)

    def _stretch_rows(self, rows_max: int) -> int:
        return max(rows_max, STRETCH_BYTES_MAX * len(self) // max(1, self._info.bytes))

    def _part(self, first: int, end: int) -> pa.RecordBatch:
        """These rows, in memory that goes with them."""
        if self._file.is_whole:
            return self._rows.slice(first, end - first)
        columns = [column.rows(first, end, self._file.copied) for column in self._columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def rows_of(self, keys: Hashes) -> list[Batch]:
        """A copy of the rows of the keys with these hash64 (ascending, each once), without the column of their hash64,
        as one batch; none if there are none."""
        starts, ends = self._hashes.places_of(keys)
        if not len(starts):
            return []
        self._fill_many(starts, ends)
        return [self._batch(self._rows.take(pa.array(spread(starts, ends - starts))))]

    def rows_of_few(self, keys: Sequence[int]) -> list[Batch]:
        """The same of few keys."""
        places = self._few_places(keys)
        if not places:
            return []
        self._fill_rows(places)
        starts, ends = np.array(places, np.int64).T
        return [self._batch(self._rows.take(pa.array(spread(starts, ends - starts))))]

    def slices_of(self, keys: Sequence[int]) -> list[Batch]:
        """The same, one slice for each key that has rows. They are no copies, and keep in memory all that was read of
        the run."""
        places = self._few_places(keys)
        if not places:
            return []
        self._fill_rows(places)
        return [self._batch(self._rows.slice(start, end - start)) for start, end in places]

    def _batch(self, rows: pa.RecordBatch) -> Batch:
        return Batch(pa.RecordBatch.from_arrays(rows.columns[1:], schema=self._user_schema), rows.column(0).to_numpy())

    def _few_places(self, keys: Sequence[int]) -> list[tuple[int, int]]:
        """(first row, row behind the last) of each of the keys that has rows."""
        hashes, rows, behind = self._hashes, self._info.rows, 0
        places: list[tuple[int, int]] = []
        for key in keys:
            start = hashes.start_of(key, behind, rows)
            if hashes.is_at(start, key):
                behind = hashes.end_of(key, start + 1, rows)
                places.append((start, behind))
        return places

    def _fill_rows(self, places: Iterable[tuple[int, int]]) -> None:
        """Have all columns' bytes of these rows filled: from the first of each to before the second. Where the bytes of
        a text or a list are is known once its offsets are filled: each turn reads what is known by then."""
        pending = [(column, start, end) for start, end in places if start < end for column in self._columns]
        while pending:
            self._file.fill(bytes_of for part, start, end in pending for bytes_of in part.own_bytes(start, end))
            pending = [below for part, start, end in pending for below in part.below(start, end)]

    def _fill_many(self, starts: Positions, ends: Positions) -> None:
        """The same of very many rows apart."""
        pending = [(column, starts, ends) for column in self._columns if len(starts)]
        while pending:
            ranges = [bytes_of for part, start, end in pending for bytes_of in part.own_bytes(start, end)]
            none = np.empty(0, np.int64)
            self._file.fill_many(
                np.concatenate([none, *(first for first, _ in ranges)]),
                np.concatenate([none, *(last for _, last in ranges)]),
            )
            pending = [below for part, start, end in pending for below in part.below_many(start, end)]
