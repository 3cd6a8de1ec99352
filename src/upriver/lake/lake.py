"""The lake: an app's durable state. One directory of runs, manifests and the app's record (docs/internals/lake.md).

::

    app.json                                   format, vnodes, tables with their indexes: written once, compared after
    tables/<table>/<index>/<batch>-<id>-<part>.arrow   runs
    epochs/<epoch>.json                        manifests; a manifest's existence is the epoch's commit
    schemas/<table>/<n>.json                   the table as it is kept since its columns changed, or it was added
    retracted/<table>/<n>.json                 that record does not count: the source of the table has failed at once
    segments/<last>-<first>.json               segments: the epochs of a block as one, with merged runs (spans.py)
    segments/<last>-<first>-<epoch>.json       the same, rewritten without rows that have left by a later epoch
    indexes/<table>/<index>.json               an index that the table has got since; once it is there, it is complete
    supplements/<table>/<index>/<epoch>.json   such an index's runs of an epoch whose manifest does not have it, or of
                                               a segment (of the segment's name)
    rejected/<table>/<epoch>-<checksum>.arrow  rows that were set aside (rejected.py)
    checkpoints/<place>/<epoch>/               what a flow's regions keep at the end of an epoch (checkpoints.py)
    changes/                                   the logs of views' changes (change_log.py)
    control/<term>.json                        one per driver that has owned the root
    bad_rows/<term>-<number>.json              the tables whose bad rows are set aside, since that has changed in a term
    cluster/<term>-<number>.json               workers, vnode map, rescales and views, for the next driver (control.py)
    seals/<term>.json                          which files of earlier drivers count (seals.py)
    ingest/<table>/                            Spark's own checkpoint of the table's stream
    loads/<table>.json                         how a table that is not a stream is cut into batches, and a digest
    loads/<table>/<n>.json                     the same of an additional load, of a DataFrame whose rows had changed
    unfinished/                                files being written

The order of writes, rules lake.*: ``docs/internals/lake.md``.

Runs are named after the batch that wrote them and not after the epoch, which is assigned only when the batch is
published. The random ``<id>`` keeps a task that Spark runs twice from writing one file twice.

A JSON file is ``{"xxh3_64": ..., "record": ...}``: a damaged digit would still be JSON, and another number.

Lake reads it. OwnedLake may change it, for the one driver that owns it. CommitTimes gives the times at which epochs
were committed, from the manifests; a worker sends them with its answers.
"""

import json
import threading
import time
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, Any, Self, TypeVar
from uuid import uuid4

import pyarrow as pa

from upriver.engine.batch import one_batch
from upriver.engine.retention import Retention, retained_after
from upriver.errors import CorruptFile, DeclarationError, LakeError, LakeInUse, NotWritten, ProtocolError
from upriver.ids import BEGINNING, Channel, Epoch, Term, VnodeId
from upriver.lake.evolution import evolved
from upriver.lake.files import UNFINISHED, Files, open_files
from upriver.lake.manifests import LakeEpochs, Manifest, Segment, runs_from_json
from upriver.lake.runs import (
    REMEDY,
    STRETCH_BYTES_MAX,
    WHOLE_BYTES_MAX,
    RunReader,
    VerifiedFile,
    is_known,
    saying_what_helps,
)
from upriver.lake.seals import NO_SEAL, RETRACTED, SEALED, SEALS, Seal, of_term, split_term
from upriver.lake.spans import EpochSpan, cover, opened, parts_of, single
from upriver.plan.plan import TableSpec, lake_channel, table_of
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.records import typed
from upriver.state.run_order import merged
from upriver.state.runs import CHECKSUM, RunInfo, checksum_of, packed_entry, run_schema, without_epochs
from upriver.state.schemas import can_become

Said = TypeVar("Said")
Told = TypeVar("Told")

_FAULTS = (
    *(LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError),
    *(OSError, EOFError, zlib.error, pa.ArrowException),
)
"""What a record of another form raises where it is read; the latter ones: of a schema or packed numbers in it."""
NAMES_SHOWN_MAX = 3
"""Names of files that an error shows."""

FORMAT = 5
_FORMATS_READ = (1, 2, 3, 4, FORMAT)
"""1: before there were upsert tables. 2: before the blocks of a run had checksums (version 0.1); its old runs have
none. 3: before there were segments, other columns and retention (version 0.2). 4: before several tasks could have rows
of one key of an epoch."""
TASKS_FORMAT = 5
"""From this format on, runs of several tasks may have rows of one key of an epoch, and entries of runs are packed.
Earlier versions would read such rows in a wrong order, so a root of an earlier format gets none."""
TERMS_KEPT_MAX = 16
"""Records of drivers that are kept, the last ones: one counts."""
SEGMENTS = "segments"
"""Directory of segments."""
SLICE_ROWS_MAX = 65_536
"""Rows of one batch that a worker applies without looking at its inbox; more, if they are all of one key."""


@dataclass(frozen=True, slots=True)
class LakeRecord:
    """The contents of a lake. tables: each with all columns that it has ever had, in their widest types. indexes: for
    each table, the keys in whose order it is kept. settings: of the Spark session; they decide what SQL means. format:
    of the root; the newest for a new one."""

    vnodes: int
    tables: tuple[TableSpec, ...]
    indexes: Mapping[str, tuple[tuple[str, ...], ...]]
    settings: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "vnodes": self.vnodes,
            "tables": [table.to_json() for table in self.tables],
            "indexes": {table: [list(key) for key in keys] for table, keys in self.indexes.items()},
            "settings": dict(self.settings),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        tables = tuple(TableSpec.from_json(table) for table in record["tables"])
        indexes = {table: tuple(tuple(key) for key in keys) for table, keys in record["indexes"].items()}
        if lacking := {table.name for table in tables} - indexes.keys():
            raise ValueError(f"no indexes of {', '.join(lacking)}")
        return typed(cls(record["vnodes"], tables, indexes, record.get("settings", {}), record["format"]))

    def changes(self, declared: "LakeRecord", root: str) -> tuple[TableSpec, ...]:
        """The tables that ``declared`` adds, or whose columns it changes, as the lake keeps them from now on.

        Raises DeclarationError unless ``declared`` can work on the lake that this record describes.
        """
        if declared.vnodes != self.vnodes:
            raise DeclarationError(
                f"{root} has {self.vnodes} vnodes and {declared.vnodes} were requested; they are fixed for the "
                f"life of a lake: leave vnodes={self.vnodes}, or start on another root"
            )
        for name in sorted(self.settings.keys() & declared.settings.keys()):
            if (before := self.settings[name]) != (now := declared.settings[name]):
                raise DeclarationError(
                    f"{root} was made in a Spark session with {name} = {before}, and this one has {now}, under which "
                    f"SQL means something else: spark.conf.set({name!r}, {before!r}), or start on another root"
                )
        kept = {table.name: table for table in self.tables}
        tables = tuple(
            evolved(kept[table.name], table, self.indexes[table.name], root) if table.name in kept else table
            for table in declared.tables
        )
        return tuple(table for table in tables if table != kept.get(table.name))

    def lacking(self, declared: "LakeRecord") -> list[tuple[str, tuple[str, ...]]]:
        """(table, index) of all indexes that are declared but not kept."""
        return [
            (table.name, index)
            for table in declared.tables
            for index in declared.indexes[table.name]
            if index not in self.indexes[table.name]
        ]


@dataclass(frozen=True, slots=True)
class _TableChange:
    """The record of a table that was added, or whose columns have changed. indexes: of a table that was added."""

    table: TableSpec
    indexes: tuple[tuple[str, ...], ...]

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        return typed(cls(TableSpec.from_json(record["table"]), tuple(map(tuple, record["indexes"]))))


def epoch_path(epoch: Epoch) -> str:
    return f"epochs/{epoch:012d}.json"


def schema_path(table: str, number: int) -> str:
    return f"schemas/{table}/{number}.json"


def segment_path(span: EpochSpan) -> str:
    return f"{SEGMENTS}/{span.name}.json"


def index_path(channel: Channel) -> str:
    return f"indexes/{channel}.json"


def supplement_path(channel: Channel, span: EpochSpan) -> str:
    name = span.name if span.is_segment else f"{span.last:012d}"
    return f"supplements/{channel}/{name}.json"


def term_path(term: Term) -> str:
    return f"control/{term:08d}.json"


def bad_rows_path(term: Term, number: int) -> str:
    return f"bad_rows/{term:08d}-{number:08d}.json"


def _seal_path(term: Term) -> str:
    return f"{SEALS}/{term:08d}.json"


def address_path(term: Term) -> str:
    return f"addresses/{term}.json"


class Lake:
    """A lake, as any process may read it. ``root`` is a directory, or the URI of an object store. files: those under
    the root, if not as usual. rules: succession.*."""

    def __init__(self, root: str, files: Files | None = None, rules: Rules = ALL_RULES) -> None:
        self.root = root
        self.files: Files = open_files(root) if files is None else files
        self._rules = rules
        self._seal = NO_SEAL
        """The newest one of the last look."""
        self._paths: dict[str, dict[str, str]] = {}
        """By directory, what counted at the last look. Replaced, and never changed."""
        self._run_schemas: dict[str, tuple[pa.Schema, ...]] = {}
        """By table, as far as they were asked for. Replaced, and never changed."""

    def check_not_foreign(self) -> None:
        """Raise DeclarationError for a directory with files and none of a lake. Nothing there is written or swept."""
        others = [name for name in self.files.names("") if name not in (UNFINISHED, "lost+found")]
        if not others or "app.json" in others:
            return
        if not (self.last_number("control") or self.last_number("epochs")):  # else the record is lost
            some = ", ".join(others[:NAMES_SHOWN_MAX]) + (", ..." if len(others) > NAMES_SHOWN_MAX else "")
            raise DeclarationError(
                f"root={str(self.root)!r}: there are files already, and none of an app: {some}. Give a new or an "
                f"empty directory"
            )

    @saying_what_helps()
    def record(self) -> LakeRecord | None:
        """The record of the lake; ``None`` if no app was ever started on this root. Raises CorruptFile, and
        DeclarationError for a lake of a later version."""
        try:
            record = self.read_record("app.json")
        except FileNotFoundError:
            return None
        self._check_format(record.get("format"))
        first = self._told("app.json", record, LakeRecord.from_json)
        tables, indexes = {table.name: table for table in first.tables}, dict(first.indexes)
        for name in self.files.names("schemas"):
            for change in self._schema_changes(name):
                tables[name] = change.table
                indexes.setdefault(name, change.indexes)
        indexes = {table: (*keys, *self._added(table)) for table, keys in indexes.items()}
        return replace(first, tables=tuple(tables.values()), indexes=indexes)

    def kept_record(self) -> LakeRecord:
        """The record of a lake on which an app was started. Raises as :meth:`record` does, and CorruptFile if it is
        gone."""
        if (record := self.record()) is None:
            raise CorruptFile(f"{self.root}/app.json: the file is gone. {REMEDY}")
        return record

    def _check_format(self, found: object) -> None:
        if found in _FORMATS_READ:
            return
        if isinstance(found, int) and found > FORMAT:
            raise DeclarationError(
                f"{self.root} was made by a later version of Upriver: its app.json has format {found}, and this "
                f"version reads formats 1 to {FORMAT}. Install the version that made it, or start on another root"
            )
        raise CorruptFile(f"{self.root}/app.json: format {found!r}, and not one of 1 to {FORMAT}")

    def _schema_changes(self, table: str) -> Iterator["_TableChange"]:
        """The records of a table's changes, oldest first."""
        retracted = self.counted(f"{RETRACTED}/{table}")
        for number in sorted(self.numbers(f"schemas/{table}")):
            if f"{number}.json" in retracted:
                continue
            change = self.read_as(path := schema_path(table, number), _TableChange.from_json)
            if change.table.name != table:
                raise CorruptFile(f"{self.root}/{path}: its content names table {change.table.name!r}")
            yield change

    @saying_what_helps()
    def run_schemas(self, table: str) -> tuple[pa.Schema, ...]:
        """The schemas that runs of a table have, oldest first; none for a table that is not in the lake."""
        kept = self.read_as("app.json", LakeRecord.from_json).tables
        changed = (change.table for change in self._schema_changes(table))
        return tuple(run_schema(each.schema) for each in (*kept, *changed) if each.name == table)

    def _may_have(self, run: RunInfo, wanted: pa.Schema, found: pa.Schema) -> bool:
        """Whether a run may have the schema ``found`` in its file, and be read in the schema ``wanted``."""
        table, found = run.path.removeprefix("tables/").partition("/")[0], without_epochs(found)
        if found not in self._run_schemas.get(table, ()):
            self._run_schemas[table] = self.run_schemas(table)
        return found in self._run_schemas[table] and can_become(found, wanted)

    def _added(self, table: str) -> list[tuple[str, ...]]:
        """The indexes that the table got after the lake was first started."""
        added = []
        for channel in self.added_channels(table):
            path = self.path_of(index_path(channel))
            index = self.read_as(path, lambda record: _names(record.get("index", [])))
            if lake_channel(table, index) != channel:
                raise CorruptFile(f"{self.root}/{path}: its content names ({', '.join(index)})")
            added.append(index)
        return added

    def added_channels(self, table: str) -> list[Channel]:
        return [Channel(f"{table}/{name.removesuffix('.json')}") for name in self.counted(f"indexes/{table}")]

    def last_epoch(self) -> Epoch:
        """The highest epoch published; 0 if none."""
        in_segments = max((span.last for span in self.segments()), default=0)
        return Epoch(max(self.last_number("epochs"), in_segments))

    def segments(self) -> frozenset[EpochSpan]:
        """The epochs that have a segment; one may contain others. Raises CorruptFile."""
        found = set()
        self.look_for_seal()
        for name in self.counted(SEGMENTS):
            span = EpochSpan.of_name(name.removesuffix(".json"))
            if span is None:
                raise CorruptFile(f"{self.root}/{SEGMENTS}/{name}: not a file of this lake")
            found.add(span)
        return frozenset(found)

    def spans(self, through: Epoch, after: Epoch = BEGINNING, as_of: Epoch = BEGINNING) -> list[EpochSpan]:
        """All epochs after one and up to another, in as few spans as the lake has them in. as_of: as for ``cover``."""
        return list(cover(self.segments(), after, through, as_of=as_of))

    def retained(self, through: Epoch) -> Mapping[str, Retention]:
        """The retention of tables at the end of an epoch. Raises CorruptFile."""
        spans = self.spans(through)
        return self.epochs(spans[-1]).retained if spans else {}

    def clock(self, through: Epoch) -> int | None:
        """The instant of an epoch, in microseconds since 1970; ``None`` if it is not known. Raises CorruptFile."""
        spans = self.spans(through)
        return self.epochs(spans[-1]).clock if spans else None

    def opened(self, span: EpochSpan, as_of: Epoch) -> EpochSpan:
        """The span as a reader opens it that takes segments as of an epoch up to this one."""
        return opened(self.segments(), span, as_of) if as_of > span.last else span

    def epochs(self, span: EpochSpan) -> LakeEpochs:
        """The manifest or the segment of a span, with the runs of all indexes that are complete. Raises CorruptFile."""
        return self.segment(span) if span.is_segment else self.manifest(span.last)

    def has_epoch(self, epoch: Epoch) -> bool:
        """Whether the epoch is published, and is there apart from the epochs before it."""
        try:
            self.files.read_into(epoch_path(epoch), ())
        except FileNotFoundError:
            return False
        return True

    def ending_with(self, epoch: Epoch) -> LakeEpochs:
        """The smallest of the manifest and the segments that end with this epoch. Raises CorruptFile."""
        spans = [span for span in self.segments() if span.last == epoch]
        return self.manifest(epoch) if self.has_epoch(epoch) or not spans else self.segment(min(spans, key=len))

    def ends_a_span(self, epoch: Epoch) -> bool:
        """Whether this epoch is the last of a segment, or still there apart."""
        return self.has_epoch(epoch) or any(span.last == epoch for span in self.segments())

    def manifest(self, epoch: Epoch) -> Manifest:
        """The manifest of a published epoch, with the runs of all indexes that are complete. Raises CorruptFile."""
        manifest = self.bare_manifest(epoch)
        added = self._supplements(manifest)
        return replace(manifest, runs={**manifest.runs, **added}) if added else manifest

    def segment(self, span: EpochSpan) -> Segment:
        """A segment, with the runs of all indexes that are complete. Raises CorruptFile."""
        segment = self.bare_segment(span)
        added = self._supplements(segment)
        return replace(segment, runs={**segment.runs, **added}) if added else segment

    def bare_epochs(self, span: EpochSpan) -> LakeEpochs:
        """A manifest or a segment as it was written, without supplements. Raises CorruptFile."""
        return self.bare_segment(span) if span.is_segment else self.bare_manifest(span.last)

    @saying_what_helps()
    def bare_manifest(self, epoch: Epoch) -> Manifest:
        """A manifest as it was written, without supplements. Raises CorruptFile."""
        return self._of_epoch(epoch_path(epoch), epoch, Manifest.from_json)

    @saying_what_helps()
    def bare_segment(self, span: EpochSpan) -> Segment:
        """A segment as it was written, without supplements. Raises CorruptFile."""
        path = self.path_of(segment_path(span))
        try:
            segment = self._of_epoch(path, span.last, Segment.from_json)
            if segment.span != span:
                raise CorruptFile(f"{self.root}/{path}: its content is of epochs {segment.span.name}")
        except CorruptFile as error:
            there = self.segments() | set(map(single, self.numbers("epochs")))
            if parts_of(there, span, self.last_epoch()):
                way_out = "All that it was made of is still there: the next start of the app goes on with that"
                raise CorruptFile(f"{error}. {way_out}") from error
            raise
        return segment

    @saying_what_helps()
    def _supplements(self, epochs: LakeEpochs) -> dict[Channel, tuple[RunInfo, ...]]:
        """The runs of the complete indexes that these epochs lack."""
        added = (channel for table in epochs.batches for channel in self.added_channels(table))
        return {channel: self.supplement_runs(channel, epochs.span) for channel in added if channel not in epochs.runs}

    def supplement_runs(self, channel: Channel, span: EpochSpan) -> tuple[RunInfo, ...]:
        """An index's runs of epochs that lack it."""
        path = self.path_of(supplement_path(channel, span))
        found, runs = self._of_epoch(path, span.last, _supplement)
        if found != channel:
            raise CorruptFile(f"{self.root}/{path}: its content names {found}")
        return runs

    def _of_epoch(self, path: str, epoch: Epoch, read: Callable[[dict[str, Any]], Told]) -> Told:
        """As :meth:`read_as`, of a file whose record names its epoch."""
        try:
            record = self.read_record(path)
        except FileNotFoundError as error:
            lost = (
                "the file is gone, or the segment that replaced it" if path == epoch_path(epoch) else "the file is gone"
            )
            raise CorruptFile(f"{self.root}/{path}: {lost}") from error
        if record.get("epoch") != epoch:
            raise CorruptFile(f"{self.root}/{path}: its content names epoch {record.get('epoch')}")
        return self._told(path, record, read)

    def supplement_channels(self) -> list[Channel]:
        """The indexes, complete or not, that have supplements."""
        return self._channels_under("supplements")

    def _channels_under(self, directory: str) -> list[Channel]:
        tables = self.files.names(directory)
        return [Channel(f"{table}/{name}") for table in tables for name in self.files.names(f"{directory}/{table}")]

    def run_paths(self) -> list[str]:
        """The paths of all runs that there are, named by a manifest or not."""
        channels = self._channels_under("tables")
        return [f"tables/{channel}/{name}" for channel in channels for name in self.files.names(f"tables/{channel}")]

    def supplemented(self, channel: Channel) -> set[EpochSpan]:
        """The spans whose runs of an index, complete or not, are in a supplement."""
        names = (name.removesuffix(".json") for name in self.counted(f"supplements/{channel}"))
        return {EpochSpan.of_name(name) or single(int(name)) for name in names}

    def sets_aside(self) -> frozenset[str]:
        """The tables whose bad rows are set aside, according to the driver that took the root last."""
        term = Term(self.last_number("control"))
        if not term:
            return frozenset()
        since = max(self._bad_rows_of(term), default=0)
        path = bad_rows_path(term, since) if since else term_path(term)
        return self.read_as(path, lambda record: frozenset(_names(record.get("set_aside", []))))

    def _bad_rows_of(self, term: Term) -> Iterator[int]:
        """The numbers of a term's records of which tables' bad rows are set aside."""
        for name in self.files.names("bad_rows"):
            of, _, number = name.removesuffix(".json").partition("-")
            if of == f"{term:08d}":
                yield int(number)

    def read(
        self, manifest: LakeEpochs, channel: Channel, vnodes: frozenset[VnodeId], table: TableSpec
    ) -> Iterator[pa.RecordBatch]:
        """Those vnodes' rows of these epochs on one lake edge, with their hash64, in batches of about
        ``SLICE_ROWS_MAX``.

        Small slices come together as one batch. No batch ends between two rows of one key.
        """
        held: list[pa.RecordBatch] = []
        rows = 0
        slices = ((run, run.slices_of(vnodes)) for run in manifest.runs_of(channel))
        for piece in self.read_slices(slices, table):
            if held and rows + len(piece) > SLICE_ROWS_MAX:
                yield one_batch(held)
                held, rows = [], 0
            held.append(piece)
            rows += len(piece)
        if held:
            yield one_batch(held)

    def read_slices(
        self, slices: Iterable[tuple[RunInfo, Sequence[tuple[int, int]]]], table: TableSpec
    ) -> Iterator[pa.RecordBatch]:
        """Rows of one lake edge and one epoch, or several as one, with their hash64, in the order of ``run_order``: in
        batches of at most about ``SLICE_ROWS_MAX``; no batch ends between two rows of one key.

        slices: (first row, rows) of each run, ascending.
        """
        by_task: dict[int, list[tuple[RunInfo, Sequence[tuple[int, int]]]]] = {}
        for run, of_run in slices:
            if of_run:
                by_task.setdefault(run.task, []).append((run, of_run))
        share, schema = max(1, len(by_task)), run_schema(table.schema)
        sequences = [self._scanned(by_task[task], schema, share) for task in sorted(by_task)]
        return merged(sequences, table.order_by)

    def _scanned(
        self, slices: Iterable[tuple[RunInfo, Sequence[tuple[int, int]]]], schema: pa.Schema, share: int
    ) -> Iterator[pa.RecordBatch]:
        """What one of ``share`` tasks has written, which are read together."""
        for run, of_run in slices:
            yield from self.open_run(run, schema).scan(of_run, SLICE_ROWS_MAX // share, STRETCH_BYTES_MAX // share)

    def open_run(self, run: RunInfo, schema: pa.Schema) -> RunReader:
        """A run's rows, each checked as it is read. schema: of the rows, with their hash64; the run may have been
        written with an older schema of its table, or with more columns. Raises CorruptFile."""
        read_into, request_bytes_min = partial(self.read_into, run.path), self.files.request_bytes_min
        whole_bytes_max = WHOLE_BYTES_MAX if all(map(is_known, schema.types)) else run.bytes
        file = VerifiedFile(run, read_into, request_bytes_min, whole_bytes_max)
        return RunReader(run, schema, file, partial(self._may_have, run, schema))

    @saying_what_helps()
    def read_into(self, path: str, parts: Iterable[tuple[int, memoryview]]) -> int:
        """As ``Files.read_into``; raises CorruptFile for a file that is gone or cannot be read."""
        try:
            return self.files.read_into(path, parts)
        except FileNotFoundError as error:
            raise CorruptFile(f"{self.root}/{path}: the file is gone") from error
        except (OSError, pa.ArrowException) as error:
            raise CorruptFile(f"{self.root}/{path}: cannot be read ({error})") from error

    def read_record(self, path: str) -> dict[str, Any]:
        """A JSON file's record, verified. Raises FileNotFoundError, CorruptFile."""
        content = self.files.read(path).to_pybytes()
        sealed_record = content[_SEAL_BYTES:-1]
        if content != _with_seal(sealed_record):
            raise CorruptFile(f"{self.root}/{path}: its checksum is not that of its content")
        return self._told(path, sealed_record, _object)

    def read_as(self, path: str, read: Callable[[dict[str, Any]], Told]) -> Told:
        """What ``read`` makes of a JSON file's record, verified. Raises FileNotFoundError, CorruptFile, which names the
        file, also if ``read`` finds a record of another form."""
        return self._told(path, self.read_record(path), read)

    def _told(self, path: str, said: Said, read: Callable[[Said], Told]) -> Told:
        try:
            return read(said)
        except (*_FAULTS, DeclarationError, ProtocolError) as error:
            form = f"{type(error).__name__}: {error!s:.200}"
            raise CorruptFile(f"{self.root}/{path}: not a record of its kind ({form})") from error

    def counted(self, directory: str) -> dict[str, str]:
        """The files of a directory that count: the path of each by its name, without the term that the name may have
        (succession.sealed_files)."""
        found = {}
        for name in self.files.names(directory):
            if self._seal.counts(path := f"{directory}/{name}"):
                found[split_term(name)[0]] = path
        self._paths = {**self._paths, directory: found}
        return found

    def path_of(self, path: str) -> str:
        """Where a file that counts lies: ``path``, or the same with the term of the driver that wrote it."""
        directory, _, name = path.rpartition("/")
        known = self._paths.get(directory, {})
        return known[name] if name in known else self.counted(directory).get(name, path)

    def announced(self) -> str | None:
        """Where the last app on this root answers, or did; ``None`` if none has said so."""
        with suppress(FileNotFoundError):  # a newer one has taken its place
            if term := self.last_number("addresses"):
                return self.read_as(address_path(Term(term)), lambda record: str(record["address"]))
        return None

    def look_for_seal(self) -> None:
        """Learn which files of earlier drivers count."""
        while self._rules.succession_sealed_files and (term := self.last_number(SEALS)) > self._seal.term:
            with suppress(FileNotFoundError):  # a newer one has taken its place
                self._seal = self.read_as(_seal_path(Term(term)), Seal.from_json)

    def last_number(self, directory: str) -> int:
        """The highest number in the names of a directory's files; 0 if there is none."""
        return max(self.numbers(directory), default=0)

    def numbers(self, directory: str) -> Iterator[int]:
        """The numbers in the names of a directory's files. Raises CorruptFile for another name."""
        for name in self.files.names(directory):
            number = name.removesuffix(".json")
            if not number.isdecimal():
                raise CorruptFile(f"{self.root}/{directory}/{name}: not a file of this lake")
            yield int(number)


def sealed(record: Any) -> bytes:
    """A JSON file with the record and its checksum."""
    return _with_seal(json.dumps(record, separators=(",", ":")).encode())


def _supplement(record: dict[str, Any]) -> tuple[Any, tuple[RunInfo, ...]]:
    return record.get("channel"), runs_from_json(record["runs"])


def _object(text: bytes) -> dict[str, Any]:
    record = json.loads(text)
    if not isinstance(record, dict):
        raise TypeError(f"{type(record).__name__} where an object belongs")
    return record


def _names(listed: Any) -> tuple[str, ...]:
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise TypeError(f"{listed!r:.100} where names belong")
    return tuple(listed)


def _with_seal(record: bytes) -> bytes:
    return f'{{"{CHECKSUM}":"{checksum_of(record)}","record":'.encode() + record + b"}"


_SEAL_BYTES = len(_with_seal(b"")) - 1
"""Bytes of a file before its record."""


def _is_of(path: str, channels: Container[str]) -> bool:
    """Whether a supplement is of one of these lake edges; another file is."""
    return not path.startswith("supplements/") or path.removeprefix("supplements/").rpartition("/")[0] in channels


class OwnedLake(Lake):
    """A lake that this driver owns. A change takes effect once its record is written."""

    def __init__(
        self,
        root: str,
        declared: LakeRecord,
        control: Mapping[str, Any],
        files: Files | None = None,
        rules: Rules = ALL_RULES,
    ) -> None:
        """Take the root: lock it, compare or write its record, and open a new term.

        control: facts about this driver to record. Raises LakeInUse, DeclarationError, CorruptFile.
        """
        super().__init__(root, files, rules)
        self.check_not_foreign()
        self._owner = uuid4().hex
        self._hear_succeeded: Callable[[LakeInUse], None] = lambda _: None
        self._lock: IO[str] | None = self.files.lock()
        self._names_term = self._lock is None or bool(self.files.names(SEALS))
        self._is_fenced = True
        """Or has no predecessor whose writes may come late."""
        try:
            self.term = self._take(declared, control)
        except BaseException:
            self.release()
            raise
        self._is_fenced = self._lock is not None or self.term == 1

    def _take(self, declared: LakeRecord, control: Mapping[str, Any]) -> Term:
        term, last = Term(self.last_number("control") + 1), self.last_epoch()
        kept = self.record()
        if kept is None and (last or term > 1):  # the record is the first file written
            raise CorruptFile(f"{self.root}/app.json: the file is gone. {REMEDY}")
        changes = () if kept is None else kept.changes(declared, self.root)
        self._format = FORMAT if kept is None else kept.format
        try:
            if kept is None:
                self.write_record("app.json", declared.to_json())
            self.write_record(term_path(term), {**control, "term": term, "owner": self._owner})
        except FileExistsError as error:
            raise LakeInUse(f"{self.root}: another driver is starting on it") from error
        self._check_creates(term)
        self.term = term
        for table in changes:
            self._keep(table, declared.indexes[table.name])
        return term

    def _check_creates(self, term: Term) -> None:
        """Raise DeclarationError unless the filesystem refuses to create a file that is there."""
        path = term_path(term)
        try:  # with other bytes, which a second attempt does not take for its own
            self.write_record(path, {**self.read_record(path), "again": True})
        except FileExistsError:
            return
        raise DeclarationError(  # lake.create_is_exclusive
            f"{self.root}: its store overwrites a file that is to be new, so two drivers could both commit an epoch. "
            "Use a store that knows conditional writes (If-None-Match)"
        )

    def _keep(self, table: TableSpec, indexes: Iterable[tuple[str, ...]]) -> None:
        """Keep a table like this from now on. indexes: of a table that is new."""
        path = schema_path(table.name, 1 + self.last_number(f"schemas/{table.name}"))
        record = {"table": table.to_json(), "indexes": [list(index) for index in indexes]}
        self.commit(path, record, f"the columns of table {table.name!r}")

    # Tables that come and go

    def add_table(self, declared: LakeRecord) -> bool:
        """Keep the tables of ``declared`` from now on, too, each with all columns that it has ever had. Returns whether
        the record has changed. Raises DeclarationError if they do not fit this lake, LakeInUse, NotWritten."""
        kept = self.kept_record()
        changes = kept.changes(declared, self.root)
        for table in changes:
            self._keep(table, declared.indexes[table.name])
        return bool(changes)

    def retract_table(self, table: str) -> None:
        """Forget a table that this driver has added, and that has no rows. Raises LakeInUse, NotWritten."""
        number = self.last_number(f"schemas/{table}")
        path = self.own_path(f"{RETRACTED}/{table}/{number}.json")
        self.commit(path, {"table": table, "number": number}, f"that table {table!r} is not added")

    def set_bad_rows_aside(self, tables: Iterable[str]) -> None:
        """The bad rows of these tables are set aside from now on, and those of no other. Raises LakeInUse,
        NotWritten."""
        wanted = sorted(tables)
        if frozenset(wanted) == self.sets_aside():
            return
        path = bad_rows_path(self.term, 1 + max(self._bad_rows_of(self.term), default=0))
        self.commit(path, {"set_aside": wanted}, "which tables' bad rows are set aside")

    def write_record(self, path: str, record: Mapping[str, Any]) -> None:
        """Create a JSON file. Raises FileExistsError, NotWritten."""
        self.files.create(path, sealed(record))

    # Succession

    @property
    def is_fenced(self) -> bool:
        """Whether no write of an earlier driver counts that the store carries out from now on."""
        return self._is_fenced

    def fence(self) -> None:
        """Make sure that no write of an earlier driver counts that the store carries out from now on. Before this, a
        driver removes no file and assigns no epoch. Does nothing where the lock is enough, and the second time.

        Commits an epoch without rows. Raises LakeInUse, CorruptFile, NotWritten.
        """
        if self._is_fenced:
            return
        self._seal_files()
        while self._rules.succession_fence_first:
            epoch = Epoch(self.last_epoch() + 1)
            self.check_owner()  # after the look: a successor's fence has this epoch or a later one
            with suppress(FileExistsError):  # the last one of the driver before has come to pass
                self.write_record(epoch_path(epoch), self._without_rows(epoch).to_json())
                break
        self._is_fenced = True

    def _seal_files(self) -> None:
        """Seal what is there: this driver's term is open, so an earlier driver removes nothing because of a file that
        it has made later."""
        self.look_for_seal()
        there = [path for directory in SEALED for path in self.files.tree(directory) if path.endswith(".json")]
        complete = {channel for table in self.files.names("indexes") for channel in self.added_channels(table)}
        seal = Seal(self.term, frozenset(path for path in there if self._seal.counts(path) and _is_of(path, complete)))
        self.write_record(_seal_path(self.term), seal.to_json())
        self.look_for_seal()
        self._paths = {}
        self.files.remove_all(_seal_path(Term(term)) for term in self.numbers(SEALS) if term < self.term)

    def _without_rows(self, epoch: Epoch) -> Manifest:
        """The next epoch, with no batch of any table."""
        before = self.bare_epochs(self.spans(Epoch(epoch - 1))[-1]) if epoch > 1 else None
        return Manifest(
            epoch=epoch,
            term=self.term,
            table="",
            query="",
            batch=-1,
            committed_at=max(time.time(), (before and before.committed_at) or 0.0),  # lake.instants_never_fall
            retained={} if before is None else retained_after(before.retained, "", None, None),
        )

    def announce(self, address: str) -> None:
        """Record where this driver's app answers, in place of earlier ones. Raises LakeInUse, NotWritten."""
        self.commit(address_path(self.term), {"address": address}, "the app's address")
        self.remove_all(address_path(Term(term)) for term in self.numbers("addresses") if term < self.term)

    def on_succeeded(self, hear: Callable[[LakeInUse], None]) -> None:
        """hear: is told when another driver has taken the root; maybe more than once, and from any thread."""
        self._hear_succeeded = hear

    @property
    def has_late_writes(self) -> bool:
        """Whether writes of earlier drivers may come at any time, and the rules are to guard against that."""
        return self._lock is None and self.term > 1 and self._rules.succession_fence_first

    def own_path(self, path: str) -> str:
        """Where this driver writes a file that counts by its term."""
        return of_term(path, self.term) if self._names_term else path

    def remove_all(self, paths: Iterable[str]) -> None:
        """Remove files that nothing needs. The caller has found that before this call, which checks that the root is
        still this driver's (succession.check_before_removal). Raises LakeInUse."""
        doomed = list(paths)
        self.fence()
        if self._rules.succession_check_before_removal:
            self.check_owner()
        self.files.remove_all(doomed)

    # Commits

    def publish(self, manifest: Manifest) -> None:
        """Commit an epoch. Raises LakeInUse if another driver has taken the root, NotWritten. After NotWritten, the
        epoch may yet be in the lake."""
        self.check_owner()
        epoch = manifest.epoch
        try:
            self.write_record(epoch_path(epoch), self._with_runs(manifest.to_json(), manifest.runs))
        except FileExistsError as error:
            if self.manifest(epoch).term == self.term:  # lake.own_epoch_is_found
                raise NotWritten(f"{self.root}: epoch {epoch} is there, by an attempt that seemed to fail") from error
            self.check_owner()
            raise LakeInUse(f"{self.root}: epoch {epoch} was published by another driver") from error

    def publish_segment(self, segment: Segment) -> None:
        """Commit a segment. Raises LakeInUse if another driver has taken the root."""
        span = segment.span
        record = self._with_runs(segment.to_json(), segment.runs)
        self.commit(self.own_path(segment_path(span)), record, f"the segment of epochs {span.name}")

    def _with_runs(self, record: dict[str, Any], runs: Mapping[Channel, Iterable[RunInfo]]) -> dict[str, Any]:
        """A record with the entries of its runs as the root's format has them."""
        return {**record, "runs": {channel: self._entries(of_channel) for channel, of_channel in runs.items()}}

    def _entries(self, runs: Iterable[RunInfo]) -> list[dict[str, Any]]:
        entries = [run.to_json() for run in runs]
        return entries if self._format < TASKS_FORMAT else [packed_entry(entry) for entry in entries]

    def supplement(self, channel: Channel, span: EpochSpan, runs: Iterable[RunInfo]) -> None:
        """Write an index's runs of some epochs; readers ignore them before ``complete``. Raises LakeInUse."""
        record = {"channel": channel, "epoch": span.last, "runs": self._entries(runs)}
        self.commit(self.own_path(supplement_path(channel, span)), record, f"epoch {span.last} of {channel}")

    def complete(self, table: str, index: tuple[str, ...]) -> None:
        """Commit an index that has its runs of every epoch, some perhaps in supplements. Raises LakeInUse."""
        channel = lake_channel(table, index)
        self.commit(self.own_path(index_path(channel)), {"table": table, "index": list(index)}, f"index {channel}")

    def commit(self, path: str, record: Mapping[str, Any], what: str) -> None:
        """Create a JSON file that commits ``what``. Raises LakeInUse if another driver has taken the root, NotWritten,
        also if the file is there: an attempt that seemed to fail has made it."""
        self.check_owner()
        try:
            self.write_record(path, record)
        except FileExistsError as error:
            self.check_owner()
            raise NotWritten(f"{self.root}/{path}: {what} is there, by an attempt that seemed to fail") from error

    def check_owner(self) -> None:
        """Raise LakeInUse if another driver has opened a later term, or this term at the same moment."""
        last = Term(self.last_number("control"))
        if last == self.term and self.read_record(term_path(last)).get("owner") == self._owner:  # lake.one_owner
            return
        error = LakeInUse(
            f"{self.root}: another driver has taken it over; this one must stop. {self._owner_of(last)} owns it: stop "
            f"this app, and use that one; only one app may run on a root"
        )
        self._hear_succeeded(error)
        raise error

    def _owner_of(self, term: Term) -> str:
        """A driver, as far as its record can be read."""
        try:
            record = self.read_record(term_path(term))
        except (LakeError, OSError):
            record = {}
        known = [f"{name} {record[fact]}" for name, fact in (("process", "process"), ("on", "host")) if fact in record]
        return f"The driver of term {term}" + (f" ({' '.join(known)})" if known else "")

    def sweep(self) -> None:
        """Remove unfinished files, records of old drivers, the supplements of indexes that are not complete, and late
        files of earlier drivers. The driver must not be writing anything meanwhile."""
        self.fence()
        self.files.remove_all(f"{UNFINISHED}/{name}" for name in self.files.names(UNFINISHED))
        litter = [term_path(Term(term)) for term in sorted(self.numbers("control"))[:-TERMS_KEPT_MAX]]
        own = f"{self.term:08d}-"
        litter += [f"bad_rows/{name}" for name in self.files.names("bad_rows") if not name.startswith(own)]
        for channel in self.supplement_channels():  # before their runs: a supplement names existing files
            if channel not in self.added_channels(table_of(channel)):
                litter += (f"supplements/{channel}/{name}" for name in self.files.names(f"supplements/{channel}"))
        if self._seal != NO_SEAL:
            there = [path for directory in SEALED for path in self.files.tree(directory) if path.endswith(".json")]
            litter += (path for path in there if not self._seal.counts(path))
        self.remove_all(dict.fromkeys(litter))

    def release(self) -> None:
        """Release the root."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


COMMITS_MAX = 64
"""The last epochs whose commit times a worker remembers."""


class CommitTimes:
    """The commit times at one worker. Used by any thread."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._lock = threading.Lock()
        """Held to note a time."""
        self._times: dict[Epoch, float | None] = {}
        """Replaced, and never changed."""

    def note(self, manifest: LakeEpochs) -> None:
        """Note that the worker has read an epoch's manifest."""
        if self._times.get(manifest.epoch) is not None:
            return
        self._note(manifest.epoch, manifest.committed_at)

    def of(self, epoch: Epoch) -> float | None:
        """In seconds since 1970; ``None`` if there is no such epoch, or the lake does not know.

        Reads the manifest, once, of an epoch whose rows the worker did not read: the last epoch of a checkpoint, or an
        epoch before the worker's first.
        """
        if epoch not in self._times and epoch > 0:
            try:
                self.note(self._lake.ending_with(epoch))
            except (LakeError, OSError):
                self._note(epoch, None)
        return self._times.get(epoch)

    def _note(self, epoch: Epoch, committed_at: float | None) -> None:
        with self._lock:
            times = {**self._times, epoch: committed_at}
            self._times = dict(list(times.items())[-COMMITS_MAX:])
