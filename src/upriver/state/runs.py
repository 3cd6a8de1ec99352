"""Runs: what the lake keeps a table in. A run is one Arrow IPC file of rows sorted by hash64.

Documents 003 ("Storage": ``table | vnode | key``) and DESIGN section 3. The file holds one record batch of the user's
columns behind a first column ``hash64`` (uint64), uncompressed, so that mapping it decodes nothing. Because the rows
are sorted by hash64 they are grouped by vnode: a worker's share is a few slices. Who owns a vnode is no business of
this module.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import xxhash

from upriver.errors import CorruptFile
from upriver.ids import VnodeId
from upriver.state.ragged import spread
from upriver.vnodes import offsets_by_vnode
from upriver.xxh64 import Hashes

HASH_COLUMN = "hash64"
CHECKSUM = "xxh3_64"


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a manifest says of one run.

    path: under the lake's root. rows, bytes: of the file. checksum: xxh3_64 of the whole file, in hexadecimal.
    vnode_rows: (vnode, rows) of all and only the vnodes that have rows, ascending.
    """

    path: str
    rows: int
    bytes: int
    checksum: str
    vnode_rows: tuple[tuple[VnodeId, int], ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "rows": self.rows,
            "bytes": self.bytes,
            CHECKSUM: self.checksum,
            "vnode_rows": [list(pair) for pair in self.vnode_rows],
        }

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        return cls(json["path"], json["rows"], json["bytes"], json[CHECKSUM], tuple(map(tuple, json["vnode_rows"])))

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


def run_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of a table's runs."""
    return pa.schema([pa.field(HASH_COLUMN, pa.uint64(), nullable=False), *schema])


def encode_run(rows: pa.Table) -> pa.Buffer:
    """The bytes of a run. ``rows`` has a run's schema and is sorted by hash64."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    return sink.getvalue()


def describe_run(path: str, encoded: pa.Buffer, hash64: np.ndarray, vnodes: int) -> RunInfo:
    """The manifest entry of an encoded run; ``hash64`` is its first column."""
    offsets = offsets_by_vnode(hash64, vnodes)
    rows = np.diff(offsets)
    present = np.flatnonzero(rows)
    vnode_rows = tuple((VnodeId(int(v)), int(rows[v])) for v in present)
    return RunInfo(path, len(hash64), encoded.size, checksum_of(encoded), vnode_rows)


def checksum_of(encoded: bytes | pa.Buffer) -> str:
    """xxh3_64 of the bytes, in hexadecimal."""
    return xxhash.xxh3_64_hexdigest(encoded)


def decode_run(info: RunInfo, encoded: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a run, verified: length, checksum, schema (a run's), row count. No copy is made.

    Raises CorruptFile, which names the file and what is wrong with it.
    """
    _check_length(info, encoded)
    if (found := checksum_of(encoded)) != info.checksum:
        raise CorruptFile(f"{info.path}: checksum {found} where the manifest says {info.checksum}")
    return decode_verified(info, encoded, schema)


def decode_verified(info: RunInfo, encoded: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The same for a run whose checksum was found right before: it is not computed, so few of its pages are touched."""
    _check_length(info, encoded)
    try:
        file = pa.ipc.open_file(encoded)
        batches = [file.get_batch(place) for place in range(file.num_record_batches)]
    except (pa.ArrowException, OSError) as error:
        raise CorruptFile(f"{info.path}: not an Arrow file ({error})") from error
    if not file.schema.equals(schema):
        raise CorruptFile(f"{info.path}: its columns are {named_columns(file.schema)}, not {named_columns(schema)}")
    if len(batches) > 1:
        raise CorruptFile(f"{info.path}: {len(batches)} record batches, and a run has one")
    rows = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema)
    if rows.num_rows != info.rows:
        raise CorruptFile(f"{info.path}: {rows.num_rows} rows where the manifest says {info.rows}")
    return rows


def _check_length(info: RunInfo, encoded: pa.Buffer) -> None:
    if encoded.size != info.bytes:
        raise CorruptFile(f"{info.path}: {encoded.size} bytes where the manifest says {info.bytes}")


def named_columns(schema: pa.Schema) -> str:
    """The columns of a schema with their types, for messages."""
    return ", ".join(f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in schema)


def grouped(
    slices: Sequence[tuple[int, int]], rows_max: int, rows: pa.RecordBatch
) -> Iterator[Sequence[tuple[int, int]]]:
    """The same slices in groups of about ``rows_max`` rows: a key's rows stay together. rows: those of the run."""
    if sum(count for _, count in slices) <= rows_max:
        yield slices  # as of most epochs; to look at each slice takes longer than to read them
    else:
        yield from together(cut(slices, rows_max, rows.column(0).to_numpy()), rows_max)


def cut(slices: Iterable[tuple[int, int]], rows_max: int, hash64: Hashes) -> Iterator[tuple[int, int]]:
    """The same slices in pieces of about ``rows_max`` rows: a key's rows stay together, however many there are.

    hash64: of all rows, ascending.
    """
    for start, rows in slices:
        first, end = start, start + rows
        while end - first > rows_max:
            last = first + rows_max - 1
            after = min(int(np.searchsorted(hash64, hash64[last], side="right")), end)
            yield first, after - first
            first = after
        if first < end:
            yield first, end - first


def together(slices: Iterable[tuple[int, int]], rows_max: int) -> Iterator[list[tuple[int, int]]]:
    """The same slices, as many at a time as have at most so many rows, but one at least."""
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
    """The rows of these slices, which are some. Of one alone, they are not copied."""
    if len(slices) == 1:
        return rows.slice(*slices[0])
    return rows.take(pa.array(spread(*np.array(slices).T)))
