"""The parts of the change log: files with rows of one view, sorted by version and then by hash64.

Many parts are read in one order, some at a time: as much is held as parts overlap. A reader that has got the rows up to
some version and hash64 has the same rows whatever files the log consists of (docs/internals/changes.md).
"""

from collections.abc import Callable, Iterable, Iterator
from uuid import uuid4

import numpy as np
import pyarrow as pa

from upriver.errors import CorruptFile
from upriver.hashing import Hashes
from upriver.ids import Epoch
from upriver.lake.lake import Lake
from upriver.state.changes import COMMIT_VERSION, ChangePart, part_schema
from upriver.state.runs import HASH_COLUMN, checksum_of, encode_rows

ROWS = "changes/rows"
PART_BYTES_MAX = 32 << 20
"""Bytes of a part in memory, unless a key has more in one version."""

ReadPart = Callable[[ChangePart], pa.RecordBatch]


def write_parts(
    lake: Lake, view: str, name: str, rows: pa.Table, bytes_max: int = PART_BYTES_MAX
) -> tuple[ChangePart, ...]:
    """Write rows as parts; when this returns they are in the lake, and nothing names them. rows: of ``part_schema``,
    sorted by version and hash64. name: what is unique about them, but for a random number. Raises NotWritten."""
    return tuple(_write(lake, view, name, piece) for piece in _pieces(rows.combine_chunks(), bytes_max))


def _write(lake: Lake, view: str, name: str, rows: pa.Table) -> ChangePart:
    encoded = encode_rows(rows)
    path = f"{ROWS}/{view}/{name}-{uuid4().hex[:16]}.arrow"
    lake.files.create(path, encoded)
    versions, hashes = rows.column(COMMIT_VERSION), rows.column(HASH_COLUMN)
    return ChangePart(
        view=view,
        path=path,
        rows=rows.num_rows,
        bytes=encoded.size,
        checksum=checksum_of(encoded),
        first=Epoch(versions[0].as_py()),
        last=Epoch(versions[-1].as_py()),
        start=hashes[0].as_py(),
        end=hashes[-1].as_py(),
    )


def _pieces(rows: pa.Table, bytes_max: int) -> Iterator[pa.Table]:
    """The rows in pieces of about so many bytes, each with all rows that a key has in a version."""
    if not rows.num_rows:
        return
    versions, hashes = _order(rows)
    is_new = (np.diff(versions, prepend=-1) != 0) | (np.diff(hashes, prepend=hashes[:1]) != 0)
    starts = np.flatnonzero(is_new)
    count = -(-rows.nbytes // bytes_max)
    wanted = np.linspace(0, rows.num_rows, count, endpoint=False)
    cuts = np.unique(starts[np.minimum(np.searchsorted(starts, wanted), len(starts) - 1)])
    for start, stop in zip(cuts, [*cuts[1:], rows.num_rows], strict=True):
        yield rows.slice(start, stop - start)


def read_part(lake: Lake, part: ChangePart, view: pa.Schema) -> pa.RecordBatch:
    """The rows of a part, verified. view: the columns of its view. Raises CorruptFile, FileNotFoundError."""
    path = f"{lake.root}/{part.path}"
    encoded = lake.files.read(part.path)
    if checksum_of(encoded) != part.checksum:
        raise CorruptFile(f"{path}: its checksum is not that of its commit")
    rows = pa.ipc.open_file(encoded).get_batch(0)
    if not rows.schema.equals(part_schema(view)):
        raise CorruptFile(f"{path}: its columns are not those of the log of view {part.view!r}")
    return rows


def in_order(parts: Iterable[ChangePart], read: ReadPart) -> Iterator[pa.RecordBatch]:
    """The rows of parts by version and hash64, some at a time. All rows that a key has in a version come in one batch,
    in the order in which they lie in their part. read: gives the rows of a part, or some of them."""
    waiting = sorted(parts, key=lambda part: (part.first, part.start))
    held: list[pa.RecordBatch] = []
    for place, part in enumerate(waiting, 1):
        held.append(read(part))
        ready = held
        if place < len(waiting):
            bound = waiting[place]
            cuts = [_rows_before(rows, bound.first, bound.start) for rows in held]
            ready = [rows.slice(0, cut) for rows, cut in zip(held, cuts, strict=True)]
            held = [rows.slice(cut) for rows, cut in zip(held, cuts, strict=True) if cut < rows.num_rows]
        ready = [rows for rows in ready if rows.num_rows]
        if ready:
            yield _sorted(ready)


def _rows_before(rows: pa.RecordBatch, version: Epoch, hash64: int) -> int:
    """How many rows lie before that version and hash64."""
    versions, hashes = _order(rows)
    start, stop = np.searchsorted(versions, version, "left"), np.searchsorted(versions, version, "right")
    return int(start + np.searchsorted(hashes[start:stop], np.uint64(hash64), "left"))


def _sorted(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    rows = pa.concat_batches(batches)
    versions, hashes = _order(rows)
    return rows.take(pa.array(np.lexsort((hashes, versions))))  # stable


def _order(rows: pa.RecordBatch | pa.Table) -> tuple["np.ndarray[tuple[int], np.dtype[np.int64]]", Hashes]:
    """The versions and the hash64 of rows."""
    return rows.column(COMMIT_VERSION).to_numpy(), rows.column(HASH_COLUMN).to_numpy()
