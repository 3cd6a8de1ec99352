"""The lake: what is durable. One directory of runs, manifests and the app's record (DESIGN section 3).

::

    app.json                                   format, vnodes, tables with their indexes: written once, compared after
    tables/<table>/<index>/<batch>-<part>-<id>.arrow   runs
    epochs/<epoch>.json                        manifests; a manifest's existence is the epoch's commit
    control/<term>.json                        one per driver that has owned the root
    ingest/<table>/                            Spark's own checkpoint of the table's stream
    loads/<table>.json                         how a table that is not a stream is cut into batches
    unfinished/                                files being written

Runs are named after the batch that wrote them and not after the epoch, which is given only when the batch is
published; the random ``<id>`` keeps a task that Spark runs twice from writing one file twice.

A JSON file is ``{"xxh3_64": ..., "record": ...}``: a damaged digit would be JSON still, and another number.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Self
from uuid import uuid4

import pyarrow as pa

from upriver.dataflow.plan import TableSpec
from upriver.errors import CorruptFile, DeclarationError, LakeInUse
from upriver.ids import Channel, Epoch, Term, VnodeId
from upriver.shell.files import UNFINISHED, Files, open_files
from upriver.state.runs import CHECKSUM, RunInfo, checksum_of, cut, decode_run, named_columns, run_schema

FORMAT = 1
SLICE_ROWS_MAX = 65_536
"""Rows of one batch that a worker applies without looking at its inbox; more, if they are all of one key."""


@dataclass(frozen=True, slots=True)
class LakeRecord:
    """What a lake holds. indexes: per table, the keys in whose order it is kept."""

    vnodes: int
    tables: tuple[TableSpec, ...]
    indexes: Mapping[str, tuple[tuple[str, ...], ...]]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "vnodes": self.vnodes,
            "tables": [table.to_json() for table in self.tables],
            "indexes": {table: [list(key) for key in keys] for table, keys in self.indexes.items()},
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        tables = tuple(TableSpec.from_json(table) for table in record["tables"])
        indexes = {table: tuple(tuple(key) for key in keys) for table, keys in record["indexes"].items()}
        return cls(record["vnodes"], tables, indexes)

    def check_unchanged(self, declared: "LakeRecord", root: str) -> None:
        """Raise DeclarationError unless ``declared`` can work on the lake that this record describes."""
        if declared.vnodes != self.vnodes:
            raise DeclarationError(
                f"{root} has {self.vnodes} vnodes and {declared.vnodes} are asked for; they are fixed for the "
                f"life of a lake: leave vnodes={self.vnodes}, or start on another root"
            )
        kept = {table.name: table for table in self.tables}
        for table in declared.tables:
            if table.name not in kept:
                raise DeclarationError(f"table {table.name!r} is not in {root}; start it on another root")
            if (difference := _difference(kept[table.name], table)) is not None:
                raise DeclarationError(f"table {table.name!r} is kept in {root} with {difference}")
            for key in declared.indexes[table.name]:
                if key not in self.indexes[table.name]:
                    raise DeclarationError(
                        f"table {table.name!r} is not kept in the order of ({', '.join(key)}) in {root}; a view "
                        f"with that key needs another root"
                    )


def _difference(kept: TableSpec, declared: TableSpec) -> str | None:
    if kept.key != declared.key:
        return f"key {kept.key}, not {declared.key}"
    if kept.order_by != declared.order_by:
        return f"order_by {kept.order_by}, not {declared.order_by}"
    if not kept.schema.equals(declared.schema):
        return f"columns {named_columns(kept.schema)}; declared are {named_columns(declared.schema)}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One epoch: the rows of one batch of one table. runs: per lake edge, in the order they are to be read.

    query, batch: name the batch at its source; no two epochs of a table have the same.
    """

    epoch: Epoch
    term: Term
    table: str
    query: str
    batch: int
    runs: Mapping[Channel, tuple[RunInfo, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "term": self.term,
            "table": self.table,
            "query": self.query,
            "batch": self.batch,
            "runs": {channel: [run.to_json() for run in runs] for channel, runs in self.runs.items()},
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        runs = {
            Channel(channel): tuple(RunInfo.from_json(run) for run in runs) for channel, runs in record["runs"].items()
        }
        return cls(
            epoch=Epoch(record["epoch"]),
            term=Term(record["term"]),
            table=record["table"],
            query=record["query"],
            batch=record["batch"],
            runs=runs,
        )

    def rows(self) -> dict[Channel, int]:
        """Rows per lake edge, over all vnodes."""
        return {channel: sum(run.rows for run in runs) for channel, runs in self.runs.items()}

    def rows_of(self, channel: Channel, vnodes: Iterable[VnodeId]) -> int:
        """Rows of those vnodes on one lake edge."""
        wanted = frozenset(vnodes)
        return sum(run.rows_of(wanted) for run in self.runs.get(channel, ()))


def _epoch_path(epoch: Epoch) -> str:
    return f"epochs/{epoch:012d}.json"


def _term_path(term: Term) -> str:
    return f"control/{term:08d}.json"


class Lake:
    """A lake, as anybody may read it. ``root`` is a directory or a URI."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.files: Files = open_files(root)

    def record(self) -> LakeRecord | None:
        """What the lake holds; ``None`` if nothing was ever started on this root. Raises CorruptFile."""
        try:
            record = self.read_record("app.json")
        except FileNotFoundError:
            return None
        if record.get("format") != FORMAT:
            raise CorruptFile(f"{self.root}/app.json: format {record.get('format')!r}, not {FORMAT}")
        return LakeRecord.from_json(record)

    def last_epoch(self) -> Epoch:
        """The highest epoch published; 0 if none."""
        return Epoch(self._last_number("epochs"))

    def manifest(self, epoch: Epoch) -> Manifest:
        """The manifest of a published epoch. Raises CorruptFile."""
        path = _epoch_path(epoch)
        try:
            record = self.read_record(path)
        except FileNotFoundError as error:
            raise CorruptFile(f"{self.root}/{path}: the manifest is gone") from error
        if record.get("epoch") != epoch:
            raise CorruptFile(f"{self.root}/{path}: it says that it is of epoch {record.get('epoch')}")
        return Manifest.from_json(record)

    def read(
        self, manifest: Manifest, channel: Channel, vnodes: frozenset[VnodeId], table: TableSpec
    ) -> Iterator[pa.RecordBatch]:
        """Those vnodes' rows of an epoch on one lake edge, with their hash64, in batches of about ``SLICE_ROWS_MAX``.

        No batch ends between two rows of one key.
        """
        held: pa.RecordBatch | None = None
        for piece in self._pieces(manifest, channel, vnodes, table):
            if held is not None and held.column(0)[-1] == piece.column(0)[0]:
                held = pa.concat_batches([held, piece])  # a key so large that its rows go on in the next run
                continue
            if held is not None:
                yield held
            held = piece
        if held is not None:
            yield held

    def _pieces(
        self, manifest: Manifest, channel: Channel, vnodes: frozenset[VnodeId], table: TableSpec
    ) -> Iterator[pa.RecordBatch]:
        schema = run_schema(table.schema)
        for run in manifest.runs.get(channel, ()):
            slices = run.slices_of(vnodes)
            if slices:
                rows = self.open_run(run, schema)
                for first, count in cut(slices, SLICE_ROWS_MAX, rows.column(0).to_numpy()):
                    yield rows.slice(first, count)

    def open_run(self, run: RunInfo, schema: pa.Schema) -> pa.RecordBatch:
        """All rows of a run, verified. Raises CorruptFile."""
        try:
            encoded = self.files.read(run.path)
        except FileNotFoundError as error:
            raise CorruptFile(f"{self.root}/{run.path}: the file is gone") from error
        except (OSError, pa.ArrowException) as error:
            raise CorruptFile(f"{self.root}/{run.path}: cannot be read ({error})") from error
        return decode_run(run, encoded, schema)

    def read_record(self, path: str) -> dict[str, Any]:
        """A JSON file's record, verified. Raises FileNotFoundError, CorruptFile."""
        content = self.files.read(path).to_pybytes()
        try:
            record = json.loads(content)["record"]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptFile(f"{self.root}/{path}: not a record ({error!r})") from error
        if content != _sealed(record):
            raise CorruptFile(f"{self.root}/{path}: its checksum is not that of its content")
        return dict(record)

    def _last_number(self, directory: str) -> int:
        """The highest of the numbers that a directory's files are named by; 0 if there is none."""
        last = 0
        for name in self.files.names(directory):
            number = name.removesuffix(".json")
            if not number.isdecimal():
                raise CorruptFile(f"{self.root}/{directory}/{name}: not a file of this lake")
            last = max(last, int(number))
        return last


class OwnedLake(Lake):
    """A lake, as the one driver that owns it may change it."""

    def __init__(self, root: str, declared: LakeRecord, control: Mapping[str, Any]) -> None:
        """Take the root: lock it, compare or write its record, and open a new term.

        control: what to remember of this driver. Raises LakeInUse, DeclarationError, CorruptFile.
        """
        super().__init__(root)
        self._owner = uuid4().hex
        self._lock: IO[str] | None = self.files.lock()
        try:
            self.term = self._take(declared, control)
        except BaseException:
            self.release()
            raise

    def _take(self, declared: LakeRecord, control: Mapping[str, Any]) -> Term:
        kept = self.record()
        term = Term(self._last_number("control") + 1)
        try:
            if kept is None:
                self.write_record("app.json", declared.to_json())
            else:
                kept.check_unchanged(declared, self.root)
            self.write_record(_term_path(term), {**control, "term": term, "owner": self._owner})
        except FileExistsError as error:
            raise LakeInUse(f"{self.root}: another driver is starting on it") from error
        return term

    def write_record(self, path: str, record: Mapping[str, Any]) -> None:
        """Create a JSON file. Raises FileExistsError."""
        self.files.create(path, _sealed(record))

    def publish(self, manifest: Manifest) -> None:
        """Commit an epoch. Raises LakeInUse if another driver has taken the root over."""
        if not self._is_owner():
            raise LakeInUse(f"{self.root}: another driver has taken it over; this one must stop")
        try:
            self.write_record(_epoch_path(manifest.epoch), manifest.to_json())
        except FileExistsError as error:
            raise LakeInUse(f"{self.root}: epoch {manifest.epoch} was published by another driver") from error

    def _is_owner(self) -> bool:
        """Whether no other driver has opened a term since, or this one's at the very moment when we did."""
        last_term = self._last_number("control")
        return last_term == self.term and self.read_record(_term_path(self.term))["owner"] == self._owner

    def sweep(self, kept: set[str]) -> int:
        """Remove what batches that were never published have left; returns how many runs.

        kept: the paths of all runs that a manifest names. For a driver that has not begun to write.
        """
        for name in self.files.names(UNFINISHED):
            self.files.remove(f"{UNFINISHED}/{name}")
        removed = 0
        for table in self.files.names("tables"):
            for index in self.files.names(f"tables/{table}"):
                for name in self.files.names(f"tables/{table}/{index}"):
                    path = f"tables/{table}/{index}/{name}"
                    if path not in kept:
                        self.files.remove(path)
                        removed += 1
        return removed

    def release(self) -> None:
        """Give the root up."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _sealed(record: Any) -> bytes:
    """A JSON file that holds the record, and tells damage."""
    content = json.dumps(record, separators=(",", ":")).encode()
    return f'{{"{CHECKSUM}":"{checksum_of(content)}","record":'.encode() + content + b"}"
