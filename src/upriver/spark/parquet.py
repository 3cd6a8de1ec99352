"""Files of Parquet as Arrow, with the values that Spark's own reader would give. Runs in executors.

Spark has planned the batch: a scan names the files, the ranges of bytes in them, and the columns. Here each range is
read: a row group belongs to the range that has its middle.

What Spark would see is decided by Parquet's own schema, which Spark reads, too; a writer's notes beside it, such as
Arrow's, count for nothing. A file that may have other values for Spark than for pyarrow raises :class:`NotAsArrow`,
which names the column: another type than the scan wants, a nested column, dates of the Julian calendar. So does a file
that pyarrow cannot read. Spark then reads the files itself, and its own settings decide what a broken one means.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from upriver.errors import UpriverError
from upriver.lake.address import Root
from upriver.lake.object_store import ReadFrom, open_object_store

if TYPE_CHECKING:
    from upriver.spark.computed_rows import ComputedRows  # DuckDB comes with it, which most tasks do without

READ_ROWS_MAX = 500_000
READ_BYTES_MAX = 16 << 20
READ_TEXT_ROWS_MAX = 20_000
"""Rows, and about bytes, that are read at once; rows with texts, since a file does not tell how long these are."""
BUFFER_BYTES = 1 << 20
"""Bytes of a column that are in memory before they are decoded."""

_SPARK_VERSION = b"org.apache.spark.version"
_JULIAN_DATES = b"org.apache.spark.legacyDateTime"
_JULIAN_INT96 = b"org.apache.spark.legacyINT96"
_GREGORIAN_SINCE, _GREGORIAN_INT96_SINCE = "3.0.0", "3.1.0"
"""Versions of Spark, as texts, from which on dates and timestamps of its files are Gregorian unless the file notes it.
"""


_SECONDS_MAX = ((1 << 63) - 1) // 10**9
"""Seconds since 1970, or before, of timestamps in INT96 that pyarrow gives as Spark does: their nanoseconds have 64
bits. Much earlier days, and a time of day that is negative, come out as other times, and beyond."""


class NotAsArrow(Exception):
    """Rows of files that only Spark can read as Spark does."""


class FileChanged(Exception):
    """A file has changed since Spark listed it, and was to stay as it was."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range of a file's bytes. path: on a disk, or a URI of an object store. values: of the columns that the file's
    directory names, as Arrow takes them. size, modified_ms: of the whole file, as it was when Spark planned; ``None``
    if that may change until it is read."""

    path: str
    start: int
    end: int
    values: tuple[Any, ...] = ()
    size: int | None = None
    modified_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ScannedColumn:
    """A column of a scan. type: as the scan wants it. name: in the files. place: among a range's values. Without
    either, it is null."""

    type: pa.DataType
    name: str | None = None
    place: int | None = None


@dataclass(frozen=True, slots=True)
class FileScan:
    """What tasks read; picklable. tasks: the ranges of each. columns: one for each of the rows; with ``steps``, those
    that these use. is_case_sensitive: whether ``a`` and ``A`` are two columns. buckets: the roots of object stores by
    which the paths of files begin."""

    tasks: tuple[tuple[FileRange, ...], ...]
    columns: tuple[ScannedColumn, ...]
    is_case_sensitive: bool
    buckets: tuple[Root, ...] = ()
    steps: "ComputedRows | None" = None

    def rows(self, task: int) -> Iterator[pa.RecordBatch]:
        """The rows of a task, in batches of bounded size. Raises NotAsArrow or FileChanged, perhaps after some rows."""
        with nullcontext() if self.steps is None else self.steps.evaluating() as computed:
            for each in self.tasks[task]:
                try:
                    for rows in self._rows_of(each):
                        yield rows if computed is None else computed(rows)
                except (OSError, ValueError, TypeError, NotImplementedError, pa.ArrowException, UpriverError) as error:
                    raise NotAsArrow(f"{each.path}: {_first_line(error)}") from error

    def _rows_of(self, each: FileRange) -> Iterator[pa.RecordBatch]:
        source = self._opened(each)
        with pq.ParquetFile(source, buffer_size=BUFFER_BYTES, coerce_int96_timestamp_unit="us") as file:
            groups = groups_in(file.metadata, each.start, each.end)
            if not groups:
                return
            columns = self._columns_of(file, each.path)
            _check_int96(file, groups, each.path, columns, source)
            names = list(dict.fromkeys(name for name in columns if name is not None))
            rows_max = self._rows_max(file, groups, names)
            for rows in _batches(file, groups, names, rows_max):
                yield from cut(self._as_scanned(rows, columns, each), READ_BYTES_MAX)
        if each.size is not None:
            self._opened(each)  # it has not changed meanwhile, either

    def _rows_max(self, file: pq.ParquetFile, groups: Sequence[int], names: Sequence[str]) -> int:
        """Rows to read at once. What a file has of repeated or missing values tells little of their size in memory."""
        widths: list[int] = [column.type.bit_width // 8 + 1 for column in self.columns if not _is_long(column.type)]
        texts = len(self.columns) - len(widths)
        if texts:
            kept = sum(file.metadata.row_group(group).total_byte_size for group in groups)
            widths.append(kept // max(1, sum(file.metadata.row_group(group).num_rows for group in groups)))
        rows: int = max(1, READ_BYTES_MAX // max(1, sum(widths)))
        return min(rows, READ_TEXT_ROWS_MAX if texts else READ_ROWS_MAX)

    def _opened(self, each: FileRange) -> Any:
        """What pyarrow opens. Raises FileChanged."""
        for bucket in self.buckets:
            if each.path.startswith(f"{bucket}/"):
                files, name = open_object_store(bucket), each.path.removeprefix(f"{bucket}/")
                if each.size is not None:
                    _check_unchanged(each, *files.modified(name))
                return ReadFrom(files, name)
        if each.size is not None:
            now = Path(each.path).stat()
            _check_unchanged(each, now.st_size, now.st_mtime_ns // 1_000_000)
        return each.path

    def _columns_of(self, file: pq.ParquetFile, path: str) -> list[str | None]:
        """The name that each column of the scan has in a file; ``None`` for one that it lacks."""
        names = file.schema_arrow.names
        by_name: dict[str, list[int]] = {}
        for place, name in enumerate(names):
            by_name.setdefault(self._folded(name), []).append(place)
        found: list[str | None] = []
        for column in self.columns:
            places = by_name.get(self._folded(column.name), []) if column.name is not None else []
            if len(places) > 1:
                raise NotAsArrow(f"{path}: it has several columns {column.name!r}")
            found.append(names[places[0]] if places else None)
        _check_columns(file, [(name, column) for name, column in zip(found, self.columns, strict=True) if name], path)
        return found

    def _folded(self, name: str) -> str:
        return name if self.is_case_sensitive else name.lower()

    def _as_scanned(self, rows: pa.RecordBatch, names: Sequence[str | None], each: FileRange) -> pa.RecordBatch:
        arrays = []
        for column, name in zip(self.columns, names, strict=True):
            if name is not None:
                arrays.append(_cast(rows.column(name), column.type))
            else:
                value = None if column.place is None else each.values[column.place]
                arrays.append(pa.repeat(pa.scalar(value, column.type), len(rows)))
        fields = [pa.field(f"c{place}", column.type) for place, column in enumerate(self.columns)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _check_unchanged(each: FileRange, size: int, modified_ms: int) -> None:
    if size != each.size or each.modified_ms not in (None, modified_ms):
        raise FileChanged(f"the file {each.path} has changed since the DataFrame was made")


def _is_long(type: pa.DataType) -> bool:
    """Whether values may have any length."""
    return bool(pa.types.is_string(type) or pa.types.is_binary(type))


def _batches(file: pq.ParquetFile, groups: Sequence[int], names: list[str], rows_max: int) -> Iterator[pa.RecordBatch]:
    """The rows of some row groups, in the columns of these names."""
    if names:
        yield from file.iter_batches(rows_max, row_groups=groups, columns=names, use_threads=False)
        return
    left = sum(file.metadata.row_group(group).num_rows for group in groups)
    for begin in range(0, left, rows_max):
        rows = min(rows_max, left - begin)
        yield pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


def cut(rows: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about so many bytes at most."""
    parts = min(len(rows), rows.nbytes // bytes_max + 1)
    if parts <= 1:
        yield rows
        return
    size = -(-len(rows) // parts)
    yield from (rows.slice(start, size) for start in range(0, len(rows), size))


def groups_in(metadata: pq.FileMetaData, start: int, end: int) -> list[int]:
    """The numbers of the row groups whose middle is in a range of bytes, which ends before ``end``."""
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = [group.column(place) for place in range(group.num_columns)]
        first = min((_first_byte(chunk) for chunk in chunks), default=0)
        if start <= first + sum(chunk.total_compressed_size for chunk in chunks) // 2 < end:
            found.append(number)
    return found


def _first_byte(chunk: pq.ColumnChunkMetaData) -> int:
    pages = [chunk.data_page_offset, chunk.dictionary_page_offset if chunk.has_dictionary_page else None]
    return min(int(page) for page in pages if page is not None)


def _cast(column: pa.Array, type: pa.DataType) -> pa.Array:
    values = column.storage if isinstance(column, pa.ExtensionArray) else column
    return values if values.type == type else values.cast(type)


def _leaves(file: pq.ParquetFile) -> dict[str, Any]:
    """By its path, each column of a file as Parquet's own schema has it."""
    return {leaf.path: leaf for leaf in map(file.schema.column, range(len(file.schema)))}


def _check_columns(file: pq.ParquetFile, columns: Iterable[tuple[str, ScannedColumn]], path: str) -> None:
    """Raise NotAsArrow for a column that Spark may read as other values than pyarrow."""
    leaves = _leaves(file)
    notes = file.metadata.metadata or {}
    for name, column in columns:
        leaf = leaves.get(name)
        if leaf is None or "." in name or leaf.max_repetition_level or leaf.max_definition_level > 1:
            raise NotAsArrow(f"{path}: column {name!r} is nested, or has a dot in its name")
        if not _is_read_alike(leaf, column.type):
            kept = f"{leaf.physical_type} ({leaf.logical_type})"
            raise NotAsArrow(f"{path}: column {name!r} is {kept}, and the table reads it as {column.type}")
        if _is_julian(leaf, column.type, notes):
            raise NotAsArrow(f"{path}: column {name!r} is of a Spark that kept days before 1582 in another calendar")


def _check_int96(
    file: pq.ParquetFile, groups: Sequence[int], path: str, columns: Iterable[str | None], source: Any
) -> None:
    """Raise NotAsArrow for a timestamp in INT96 that pyarrow may give as another one."""
    wanted = set(columns)
    names = [name for name, leaf in _leaves(file).items() if name in wanted and leaf.physical_type == "INT96"]
    if not names:
        return
    with pq.ParquetFile(source, buffer_size=BUFFER_BYTES, coerce_int96_timestamp_unit="s") as seconds:
        for rows in seconds.iter_batches(READ_ROWS_MAX, row_groups=groups, columns=names, use_threads=False):
            for name, column in zip(names, rows.columns, strict=True):
                ends = pc.min_max(column.cast(pa.int64())).as_py()
                if not all(end is None or abs(end) < _SECONDS_MAX for end in ends.values()):
                    raise NotAsArrow(f"{path}: column {name!r} is INT96 with times before 1678 or after 2261")


def _is_julian(leaf: Any, type: pa.DataType, notes: Mapping[bytes, bytes]) -> bool:
    """Whether Spark moves early days of the column. notes: of the file."""
    if not pa.types.is_temporal(type):
        return False
    is_int96 = leaf.physical_type == "INT96"
    since, note = (_GREGORIAN_INT96_SINCE, _JULIAN_INT96) if is_int96 else (_GREGORIAN_SINCE, _JULIAN_DATES)
    version = notes.get(_SPARK_VERSION)
    return version is not None and (version.decode(errors="replace") < since or note in notes)


_INTEGERS = {
    pa.int8(): {("INT32", 8, True)},
    pa.int16(): {("INT32", 8, True), ("INT32", 16, True), ("INT32", 8, False)},
    pa.int32(): {
        ("INT32", 8, True),
        ("INT32", 16, True),
        ("INT32", 32, True),
        ("INT32", 8, False),
        ("INT32", 16, False),
    },
    pa.int64(): {("INT64", 64, True), ("INT32", 32, True), ("INT32", 32, False)},
}
"""For a type of integers: how a file may keep it, as the physical type, bits and whether there is a sign."""
_INTEGER_BITS = {"INT32": 32, "INT64": 64}
_TEXTS = frozenset({"STRING", "ENUM", "JSON", "NONE"})


def _is_read_alike(leaf: Any, type: pa.DataType) -> bool:
    """Whether Spark and pyarrow give the same values for a column of a file, if a column of the type is wanted."""
    physical, logical = str(leaf.physical_type), str(leaf.logical_type.type)
    match type:
        case pa.DataType() if type in _INTEGERS:
            if logical == "NONE":
                return (physical, _INTEGER_BITS.get(physical), True) in _INTEGERS[type]
            told = json.loads(leaf.logical_type.to_json())
            return logical == "INT" and (physical, told["bitWidth"], told["isSigned"]) in _INTEGERS[type]
        case pa.DataType() if pa.types.is_boolean(type):
            return physical == "BOOLEAN"
        case pa.DataType() if pa.types.is_float32(type):
            return physical == "FLOAT"
        case pa.DataType() if pa.types.is_float64(type):
            return physical in ("FLOAT", "DOUBLE")
        case pa.DataType() if pa.types.is_string(type):
            return physical == "BYTE_ARRAY" and logical in _TEXTS
        case pa.DataType() if pa.types.is_binary(type):
            return physical == "BYTE_ARRAY" and logical == "NONE"
        case pa.DataType() if pa.types.is_date32(type):
            return logical == "DATE"
        case pa.Decimal128Type():
            is_same = (leaf.precision, leaf.scale) == (type.precision, type.scale)
            return logical == "DECIMAL" and physical != "BYTE_ARRAY" and is_same
        case pa.TimestampType():
            if physical == "INT96":
                return type.tz is not None
            told = json.loads(leaf.logical_type.to_json()) if logical == "TIMESTAMP" else {}
            is_fine = told.get("timeUnit") in ("milliseconds", "microseconds")
            return physical == "INT64" and is_fine and told["isAdjustedToUTC"] == (type.tz is not None)
        case _:
            return False
