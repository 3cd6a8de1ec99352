"""The rows of one run, by place or by key: only the bytes that they lie in are read, and all of these are checked."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from upriver.dataflow.batch import Batch
from upriver.shell.column_bytes import ColumnBytes
from upriver.shell.verified_file import VerifiedFile, saying_what_helps
from upriver.state.ragged import spread
from upriver.state.runs import RunInfo, decode_content, gathered, grouped
from upriver.state.vectors import Positions
from upriver.xxh64 import Hashes

STRETCH_BYTES_MAX = 8 << 20
"""Bytes of a file that a scan reads at a time, or as many more as the rows of one key take. They stay in memory as long
as any of their rows are in use."""
FEW_KEYS_MAX = 8
"""So many keys are looked up one by one: with numpy, each run would cost more than all of them."""
NEAR_ROWS = 64
"""A key's last row is first looked for so many rows behind its first one."""

_HASH_BYTES = 8
"""Blocks end between two hashes: both begin at a multiple of so many bytes."""
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
        self._hash64: Hashes = self._rows.column(0).to_numpy()
        """Right where it was filled."""
        if self._file.is_whole:
            self._columns: tuple[ColumnBytes, ...] = ()
            self._sorted: memoryview | _FilledHashes = self._hash64.data
        else:
            base = self._file.content.address
            self._columns = tuple(ColumnBytes.of(column, base) for column in self._rows.columns)
            self._sorted = _FilledHashes(self._file, self._hash64, self._rows.column(0).buffers()[1].address - base)

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
        self._fill_rows([(0, len(self))])
        return self._rows

    def scan(self, slices: Sequence[tuple[int, int]], rows_max: int) -> Iterator[pa.RecordBatch]:
        """The rows of these slices, which are ascending, with their hash64, in batches of about ``rows_max``: no batch
        ends between two rows of one key. Few rows of many slices come as one batch. No more than a stretch of them is
        in memory, besides what is still in use of the batches."""
        for stretch in grouped(slices, self._stretch_rows(rows_max), self._end_of_key):
            part = self._fork()
            part._fill_rows((first, first + count) for first, count in stretch)
            for group in grouped(stretch, rows_max, part._end_of_key):
                yield gathered(part._rows, group)

    def batches(self, rows_max: int) -> Iterator[pa.RecordBatch]:
        """All rows in order, with their hash64, in batches of at most ``rows_max``, which may end anywhere."""
        stretch_rows = self._stretch_rows(rows_max)
        for first in range(0, len(self), stretch_rows):
            part, end = self._fork(), min(first + stretch_rows, len(self))
            part._fill_rows([(first, end)])
            for start in range(first, end, rows_max):
                yield part._rows.slice(start, min(rows_max, end - start))

    def _stretch_rows(self, rows_max: int) -> int:
        return max(rows_max, STRETCH_BYTES_MAX * len(self) // max(1, self._info.bytes))

    def _fork(self) -> "RunReader":
        return self if self._file.is_whole else RunReader(self._info, self._schema, self._file.fork())

    def _end_of_key(self, row: int, end: int) -> int:
        hashes = self._sorted
        return bisect_right(hashes, hashes[row], row, end)

    def rows_of(self, keys: Hashes) -> list[Batch]:
        """A copy of the rows of the keys with these hash64 (ascending, each once), without the column of their hash64,
        as one batch; none if there are none."""
        if len(keys) <= FEW_KEYS_MAX:
            places = self._few_places(keys.tolist())
            self._fill_rows(places)
            starts, ends = np.array(places, np.int64).reshape(-1, 2).T
        else:
            starts, ends = self._places(keys)
            self._fill_many(starts, ends)
        if not len(starts):
            return []
        return [self._batch(self._rows.take(pa.array(spread(starts, ends - starts))))]

    def slices_of(self, keys: Hashes) -> list[Batch]:
        """The same for few keys, one slice for each that has rows. They are no copies, and keep in memory all that was
        read of the run."""
        places = self._few_places(keys.tolist())
        self._fill_rows(places)
        return [self._batch(self._rows.slice(start, end - start)) for start, end in places]

    def _batch(self, rows: pa.RecordBatch) -> Batch:
        return Batch(pa.RecordBatch.from_arrays(rows.columns[1:], schema=self._user_schema), rows.column(0).to_numpy())

    def _few_places(self, keys: Sequence[int]) -> list[tuple[int, int]]:
        """(first row, row behind the last) of each of the keys that has rows."""
        hashes, rows = self._sorted, len(self)  # to bisect takes a fifth of what searchsorted needs to begin with
        places: list[tuple[int, int]] = []
        for key in keys:
            start = bisect_left(hashes, key, places[-1][1] if places else 0)
            if start < rows and hashes[start] == key:
                end = bisect_right(hashes, key, start, min(start + NEAR_ROWS, rows))
                places.append((start, bisect_right(hashes, key, end) if end == start + NEAR_ROWS else end))
        return places

    def _places(self, keys: Hashes) -> tuple[Positions, Positions]:
        """The same for many keys."""
        rows = len(self)
        if not rows:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        if self._file.is_whole or len(keys) * self._rows_of_block >= rows:
            self._fill_hashes(np.array([0]), np.array([rows]))
            starts = self._hash64.searchsorted(keys)
            is_there = self._hash64[np.minimum(starts, rows - 1)] == keys
            return starts[is_there], self._hash64.searchsorted(keys[is_there], "right")
        starts = self._search(keys, np.zeros(len(keys), np.int64), rows, or_equal=False)
        nearest = np.minimum(starts, rows - 1)
        self._fill_hashes(nearest, nearest + 1)
        is_there = self._hash64[nearest] == keys
        starts, keys = starts[is_there], keys[is_there]
        return starts, self._search(keys, starts, rows, or_equal=True)

    @property
    def _rows_of_block(self) -> int:
        """How many hashes are read at a time at least."""
        return max(1, self._info.block_bytes // self._hash64.itemsize)

    def _search(self, keys: Hashes, low: Positions, rows: int, *, or_equal: bool) -> Positions:
        """As ``searchsorted`` from the rows ``low`` on, of all keys at a time; of the hashes, only those that are
        compared are read."""
        low, high = low.copy(), np.full(len(keys), rows)
        while (searched := low < high).any():
            middle = (low + high) >> 1
            self._fill_hashes(middle[searched], middle[searched] + 1)
            there = self._hash64[np.minimum(middle, rows - 1)]
            is_below = (there <= keys if or_equal else there < keys) & searched
            low = np.where(is_below, middle + 1, low)
            high = np.where(searched & ~is_below, middle, high)
        return low

    def _fill_hashes(self, starts: Positions, ends: Positions) -> None:
        for column in self._columns[:1]:
            for bytes_of in column.own_bytes(starts, ends):
                self._file.fill_many(*bytes_of)

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


class _FilledHashes:
    """The hashes of a run, for ``bisect``: filled as they are looked at."""

    def __init__(self, file: VerifiedFile, hashes: Hashes, first_byte: int) -> None:
        self._file, self._hashes, self._first_byte = file, hashes.data, first_byte

    def __len__(self) -> int:
        return len(self._hashes)

    def __getitem__(self, row: int) -> int:
        byte = self._first_byte + row * _HASH_BYTES
        if self._file.is_missing(byte):
            self._file.fill([(byte, byte + _HASH_BYTES)])
        hash64: int = self._hashes[row]
        return hash64
