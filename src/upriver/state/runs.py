"""Runs: the form of a table in the lake. A run is one Arrow IPC file of rows sorted by hash64.

docs/internals/lake.md describes the format. The Arrow file holds one record batch,
uncompressed: a first column ``hash64`` (uint64), then the user's columns. So any rows lie in a few ranges of bytes.
Sorting by hash64 groups the rows by vnode: a worker's share is a few slices. Which worker owns a vnode does not matter
to this module.

Behind the Arrow file stand the checksums of its blocks, 8 bytes each, little endian. So a reader checks only the blocks
that it uses. The manifest has the checksum of these checksums.
"""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from upriver.errors import CorruptFile
from upriver.hashing import Hashes
from upriver.ids import VnodeId
from upriver.plan.row_order import EPOCH_COLUMN, ORDER_COLUMNS
from upriver.records import typed
from upriver.state.span import TimeSpan
from upriver.state.vectors import spread
from upriver.vnodes import VNODES_MAX, offsets_by_vnode

HASH_COLUMN = "hash64"
RESERVED_COLUMNS = frozenset({HASH_COLUMN, *ORDER_COLUMNS})
"""Names that no column of a table has, in lower case."""
CHECKSUM = "xxh3_64"
BLOCK_BYTES = 4 << 10
"""Bytes of an Arrow file that share one checksum. Larger blocks make small reads cost more. Smaller blocks make large
reads cost more. This is a page of memory, which takes longer to get than to check."""
CHECKSUM_BYTES = 8

Checksums = npt.NDArray[np.uint64]
_STORED = np.dtype("<u8")


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a manifest says of one run.

    path: under the lake's root. rows, bytes: of the file. checksum: xxh3_64 of the checksums of its blocks, in
    hexadecimal. vnode_rows: (vnode, rows) of exactly the vnodes that have rows, ascending. block_bytes: of a block. It
    is 0 for a run that is older than blocks: such a run is only an Arrow file, and ``checksum`` covers all of it. span:
    of a table with retention; ``None`` if it is not known, or no row has a time. task: of the batch that wrote it: runs
    of one task have no key in common but at their ends, and are listed in order; runs of two tasks may have the same
    keys. epoch: of its rows, if a segment names it as the batch wrote it; 0: that of its manifest, or a merged run,
    whose rows have theirs in the last column.
    """

    path: str
    rows: int
    bytes: int
    checksum: str
    vnode_rows: tuple[tuple[VnodeId, int], ...]
    block_bytes: int = 0
    span: TimeSpan | None = None
    task: int = 0
    epoch: int = 0

    @property
    def blocks(self) -> int:
        """How many blocks have a checksum."""
        return -(-self.bytes // (self.block_bytes + CHECKSUM_BYTES)) if self.block_bytes else 0

    @property
    def arrow_bytes(self) -> int:
        """Bytes of the Arrow file, behind which the checksums stand."""
        return self.bytes - self.blocks * CHECKSUM_BYTES

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "rows": self.rows,
            "bytes": self.bytes,
            CHECKSUM: self.checksum,
            "vnode_rows": [list(pair) for pair in self.vnode_rows],
            "block_bytes": self.block_bytes,
            **({} if self.span is None else {"span": self.span.to_json()}),
            **({"task": self.task} if self.task else {}),
            **({"epoch": self.epoch} if self.epoch else {}),
        }

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        given = json["vnode_rows"]
        vnode_rows = _unpacked(given) if isinstance(given, str) else tuple(map(tuple, given))
        rows = [rows for _, rows in vnode_rows]
        if sum(rows) != json["rows"] or min(rows, default=0) < 0 or min(json["bytes"], json.get("block_bytes", 0)) < 0:
            raise ValueError(
                f"a run of {json['rows']!r} rows and {json['bytes']!r} bytes, with {sum(rows)} rows in vnodes"
            )
        run = cls(
            json["path"],
            json["rows"],
            json["bytes"],
            json[CHECKSUM],
            vnode_rows,
            json.get("block_bytes", 0),
            TimeSpan.from_json(json.get("span")),
            json.get("task", 0),
            json.get("epoch", 0),
        )
        return typed(run)

    def rows_of(self, vnodes: Iterable[VnodeId]) -> int:
        """Rows of those vnodes, without opening the file."""
        wanted = frozenset(vnodes)
        return sum(rows for vnode, rows in self.vnode_rows if vnode in wanted)

    def slices_of(self, vnodes: Iterable[VnodeId]) -> list[tuple[int, int]]:
        """(first row, rows) of those vnodes, ascending; neighbours joined."""
        wanted = frozenset(vnodes)
        slices: list[tuple[int, int]] = []
        start = first = end = 0
        for vnode, rows in self.vnode_rows:
            after = start + rows
            if vnode in wanted:
                if end < start:
                    if first < end:
                        slices.append((first, end - first))
                    first = start
                end = after
            start = after
        if first < end:
            slices.append((first, end - first))
        return slices


PACKED_VNODES_MIN = 16
"""Vnodes with rows from which on their rows are packed in an entry, which is shorter then."""


def packed_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of ``RunInfo.to_json`` with its rows by vnode packed: a seventh of the bytes if all vnodes have rows.

    Packed are the rows of each vnode from 0 to the last that has some, as 8 bytes, little endian: the first byte of
    each, then the second of each, and so on; by zlib, in base64.
    """
    if len(entry["vnode_rows"]) < PACKED_VNODES_MIN:
        return dict(entry)
    vnodes, counts = np.array(entry["vnode_rows"], np.int64).T
    rows = np.zeros(vnodes[-1] + 1, _STORED)
    rows[vnodes] = counts
    planes = rows.view(np.uint8).reshape(-1, rows.itemsize).T.tobytes()
    return {**entry, "vnode_rows": b64encode(zlib.compress(planes)).decode()}


def _unpacked(packed: str) -> tuple[tuple[VnodeId, int], ...]:
    unpacked = zlib.decompressobj().decompress(b64decode(packed), VNODES_MAX * _STORED.itemsize)
    planes = np.frombuffer(unpacked, np.uint8).reshape(_STORED.itemsize, -1)
    rows = planes.T.copy().view(_STORED).ravel()
    vnodes = np.flatnonzero(rows)
    return tuple(zip(map(VnodeId, vnodes.tolist()), rows[vnodes].tolist(), strict=True))


def run_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of a table's runs."""
    return pa.schema([pa.field(HASH_COLUMN, pa.uint64(), nullable=False), *schema])


def dated_rows(rows: pa.RecordBatch, epoch: int) -> pa.RecordBatch:
    """Rows with the column of their epochs at the end; those of a run that is not merged are of this epoch."""
    place = rows.num_columns - 1
    epochs = pc.fill_null(rows.column(place), pa.scalar(epoch, pa.uint32()))
    return rows.set_column(place, rows.schema.field(place), epochs)


def without_epochs(schema: pa.Schema) -> pa.Schema:
    """The schema of a run, without the epochs of its rows."""
    place = schema.get_field_index(EPOCH_COLUMN)
    return schema if place < 0 else schema.remove(place)


def encode_rows(rows: pa.Table) -> pa.Buffer:
    """The bytes of an Arrow file of one record batch. The size is known in advance: they are laid out in place."""
    rows = rows.combine_chunks()
    sizer = pa.MockOutputStream()
    with pa.ipc.new_file(sizer, rows.schema) as writer:
        writer.write_table(rows)
    content = pa.allocate_buffer(sizer.size())
    with pa.ipc.new_file(pa.FixedSizeBufferWriter(content), rows.schema) as writer:
        writer.write_table(rows)
    return content


def with_checksums(content: pa.Buffer, block_bytes: int = BLOCK_BYTES) -> pa.Buffer:
    """A file's bytes, then the checksums of their blocks. The last block may be shorter."""
    blocks = cut_into_blocks(memoryview(content), block_bytes)
    sums = np.array([*map(xxhash.xxh3_64_intdigest, blocks)], _STORED)
    whole = pa.allocate_buffer(content.size + sums.nbytes)
    sink = pa.FixedSizeBufferWriter(whole)
    sink.write(content)
    sink.write(sums)
    return whole


def encode_run(rows: pa.Table, block_bytes: int = BLOCK_BYTES) -> pa.Buffer:
    """The bytes of a run. ``rows`` has a run's schema and is sorted by hash64."""
    return with_checksums(encode_rows(rows), block_bytes)


def decode_checksums(info: RunInfo, stored: bytes | bytearray | memoryview) -> Checksums:
    """The checksums of a run's blocks, which stand behind its Arrow file. Raises CorruptFile if their checksum is not
    the manifest's."""
    if (found := xxhash.xxh3_64_hexdigest(stored)) != info.checksum:
        raise CorruptFile(
            f"{info.path}: its blocks' checksums have checksum {found} where the manifest says {info.checksum}"
        )
    return np.frombuffer(stored, _STORED)


def check_blocks(
    info: RunInfo, blocks: Sequence[int], contents: Iterable[memoryview], checksums: Sequence[int]
) -> None:
    """Raise CorruptFile unless these blocks have these checksums. blocks: their numbers. contents: of each."""
    found = [*map(xxhash.xxh3_64_intdigest, contents)]
    if found != checksums:
        place = next(place for place, checksum in enumerate(checksums) if found[place] != checksum)
        start = blocks[place] * info.block_bytes
        raise CorruptFile(
            f"{info.path}: bytes {start} to {min(start + info.block_bytes, info.arrow_bytes)} have checksum "
            f"{found[place]:016x} where the run says {checksums[place]:016x}"
        )


def cut_into_blocks(content: memoryview, block_bytes: int) -> Iterator[memoryview]:
    """content: of neighbouring blocks; the last block may be shorter."""
    return (content[start : start + block_bytes] for start in range(0, len(content), block_bytes))


def describe_run(
    path: str, encoded: pa.Buffer, hash64: np.ndarray, vnodes: int, block_bytes: int = BLOCK_BYTES
) -> RunInfo:
    """The manifest entry of an encoded run; ``hash64`` is its first column."""
    offsets = offsets_by_vnode(hash64, vnodes)
    rows = np.diff(offsets)
    present = np.flatnonzero(rows)
    vnode_rows = tuple((VnodeId(int(v)), int(rows[v])) for v in present)
    checksum = checksum_of(encoded.slice(_arrow_bytes(encoded.size, block_bytes)))
    return RunInfo(path, len(hash64), encoded.size, checksum, vnode_rows, block_bytes)


def checksum_of(encoded: bytes | pa.Buffer) -> str:
    """xxh3_64 of the bytes, in hexadecimal."""
    return xxhash.xxh3_64_hexdigest(encoded)


def checked_content(info: RunInfo, encoded: pa.Buffer) -> pa.Buffer:
    """The Arrow file in the bytes of a whole run, after every checksum was verified. No copy is made.

    Raises CorruptFile, which names the file and its damage.
    """
    check_length(info, encoded.size)
    if not info.block_bytes:
        if (found := checksum_of(encoded)) != info.checksum:
            raise CorruptFile(f"{info.path}: checksum {found} where the manifest says {info.checksum}")
        return encoded
    content = memoryview(encoded)
    checksums = decode_checksums(info, content[info.arrow_bytes :])
    blocks = cut_into_blocks(content[: info.arrow_bytes], info.block_bytes)
    check_blocks(info, range(info.blocks), blocks, checksums.tolist())
    return encoded.slice(0, info.arrow_bytes)


def decode_run(info: RunInfo, encoded: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a run, verified: length, checksums, schema (a run's), row count. No copy is made.

    Raises CorruptFile, which names the file and its damage.
    """
    return decode_content(info, checked_content(info, encoded), schema)


IsKept = Callable[[pa.Schema], bool]
"""Whether runs may have a schema besides the newest."""


def is_never_kept(_schema: pa.Schema) -> bool:
    """For runs that all have one schema."""
    return False


def decode_content(
    info: RunInfo, content: pa.Buffer, schema: pa.Schema, is_kept: IsKept = is_never_kept
) -> pa.RecordBatch:
    """The rows of a run's Arrow file, in the file's own schema: ``schema``, or one for which ``is_kept``.

    This reads only the file's metadata: the columns' bytes may be filled in later.
    """
    try:
        file = pa.ipc.open_file(content)
        batches = [file.get_batch(place) for place in range(file.num_record_batches)]
    except (pa.ArrowException, OSError) as error:
        raise CorruptFile(f"{info.path}: not an Arrow file ({error})") from error
    if not (file.schema.equals(schema) or is_kept(file.schema)):
        raise CorruptFile(f"{info.path}: its columns are {named_columns(file.schema)}, not {named_columns(schema)}")
    if len(batches) > 1:
        raise CorruptFile(f"{info.path}: {len(batches)} record batches, and a run has one")
    rows = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=file.schema)
    if rows.num_rows != info.rows:
        raise CorruptFile(f"{info.path}: {rows.num_rows} rows where the manifest says {info.rows}")
    return rows


def check_length(info: RunInfo, length: int) -> None:
    """Raise CorruptFile unless the file has as many bytes as the manifest says."""
    if length != info.bytes:
        raise CorruptFile(f"{info.path}: {length} bytes where the manifest says {info.bytes}")


def _arrow_bytes(length: int, block_bytes: int) -> int:
    """Bytes of the Arrow file in a run of that length."""
    return length - -(-length // (block_bytes + CHECKSUM_BYTES)) * CHECKSUM_BYTES


def named_columns(schema: pa.Schema) -> str:
    """The columns of a schema with their types, for messages."""
    return ", ".join(f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in schema)


EndOfKey = Callable[[int, int], int]
"""``end_of_key(row, end)``: the first row after ``row`` with another hash64; ``end`` if there is none before it."""


def ends_in(hash64: Hashes) -> EndOfKey:
    """hash64: of all rows, ascending."""
    return lambda row, end: row + int(np.searchsorted(hash64[row:end], hash64[row], side="right"))


def grouped(
    slices: Sequence[tuple[int, int]], rows_max: int, end_of_key: EndOfKey
) -> Iterator[Sequence[tuple[int, int]]]:
    """The same slices in groups of about ``rows_max`` rows: a key's rows stay together."""
    if sum(count for _, count in slices) <= rows_max:
        yield slices  # most epochs are small; looking at each slice takes longer than reading them
    else:
        yield from together(cut(slices, rows_max, end_of_key), rows_max)


def cut(slices: Iterable[tuple[int, int]], rows_max: int, end_of_key: EndOfKey) -> Iterator[tuple[int, int]]:
    """The same slices in pieces of about ``rows_max`` rows: a key's rows stay together, however many there are."""
    for start, rows in slices:
        first, end = start, start + rows
        while end - first > rows_max:
            after = end_of_key(first + rows_max - 1, end)
            yield first, after - first
            first = after
        if first < end:
            yield first, end - first


def together(slices: Iterable[tuple[int, int]], rows_max: int) -> Iterator[list[tuple[int, int]]]:
    """The same slices, as many at a time as have at most so many rows, but at least one."""
    group: list[tuple[int, int]] = []
    rows_of_group = 0
    for first, rows in slices:
        if group and rows_of_group + rows > rows_max:
            yield group
            group, rows_of_group = [], 0
        group.append((first, rows))
        rows_of_group += rows
    if group:
        yield group


def gathered(rows: pa.RecordBatch, slices: Sequence[tuple[int, int]]) -> pa.RecordBatch:
    """The rows of these slices, at least one. A single slice is not copied."""
    if len(slices) == 1:
        return rows.slice(*slices[0])
    return rows.take(pa.array(spread(*np.array(slices).T)))
