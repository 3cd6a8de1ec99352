"""The changes of a view as a DataFrame, streaming or not: the part of ``spark.read.format("upriver")`` that reads the
change log in the lake. The app need not run.

A stream's offset is a version, so the rows of a batch depend on its two offsets alone. Two things would spoil that, and
the offsets carry what prevents them. The log's oldest versions are folded into a base: an offset names the base with
which the stream began, and a read fails if the log has another one by then. Spark asks for the first offset again if
the first batch did not end: so the end of each batch says where the stream began, and that counts.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self, SupportsIndex

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from upriver.arguments import whole
from upriver.errors import ChangesGone, DeclarationError
from upriver.ids import Epoch
from upriver.lake.address import Root, object_address
from upriver.lake.change_log import ChangeLog, LogRecord
from upriver.lake.lake import Lake
from upriver.net.remote import Connection, Remote
from upriver.net.tls import TlsTrust
from upriver.records import typed
from upriver.spark.schema import spark_arrow_schema
from upriver.state.changes import NOW, changes_schema
from upriver.vnodes import VnodeGroup

try:  # since Spark 4.2
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
except ImportError:  # pragma: no cover
    ADMITS = False
else:
    ADMITS = True
"""Whether Spark lets a Python source say how much a batch reads."""

EARLIEST, LATEST = "earliest", "latest"
CHANGE_OPTIONS = (
    *("root", "startingversion", "endingversion", "startingtimestamp", "endingtimestamp"),
    "maxversionspertrigger",
)
"""Options that mean changes, in lower case, as ``changes`` does."""
ROW_OPTIONS = ("keys", "arrow_keys")
"""Options that only a reader of a view's rows has."""
ROOT_S_MAX = 10.0
"""Seconds in which the coordinator must say where the lake is."""
PARTITIONS_DEFAULT = 2
"""Groups of vnodes that a batch is read in, unless the caller says otherwise."""


def means_changes(options: Mapping[str, str]) -> bool:
    """Whether a reader with these options reads changes, and not the rows of a view. Raises DeclarationError for
    options that do not go together."""
    given = {name.lower(): value for name, value in options.items()}
    changes = given.get("changes", "").lower()
    if changes not in ("", "true", "false"):
        raise DeclarationError(f"changes={given['changes']!r}: give true or false")
    of_changes = [name for name in options if name.lower() in CHANGE_OPTIONS]
    if changes == "false" and of_changes:
        raise DeclarationError(
            f"{of_changes[0]} is an option of reading changes, and changes=false: leave out one of them"
        )
    is_meant = changes == "true" or bool(of_changes)
    of_rows = [name for name in options if name.lower() in ROW_OPTIONS]
    if is_meant and of_rows:
        raise DeclarationError(
            f"{of_rows[0]}: changes are read of all keys: leave it out, and choose rows of the DataFrame by where(...)"
        )
    return is_meant


def starting_option(since: str | SupportsIndex | datetime | None) -> dict[str, str]:
    """The option ``startingVersion`` or ``startingTimestamp`` of a reader. Raises DeclarationError."""
    if isinstance(since, datetime):
        return {"startingTimestamp": _moment("since", since.isoformat()).isoformat()}
    if isinstance(since, str) and since not in (EARLIEST, LATEST, NOW):
        raise DeclarationError(f"since={since!r}: give None, {NOW!r}, a version, which is an epoch, or a datetime")
    words = since if isinstance(since, str) else EARLIEST if since is None else str(whole("since", since))
    return {"startingVersion": words}


@dataclass(frozen=True, slots=True)
class ChangesStart:
    """Where reading begins. version: behind which, or with the base at which."""

    version: Epoch
    with_base: bool

    def to_json(self) -> dict[str, Any]:
        return {"version": self.version, "base": self.with_base}

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        return typed(cls(Epoch(json["version"]), json["base"]))


@dataclass(frozen=True, slots=True)
class ChangesOffset:
    """Where a batch ends, or the first one begins. version: through which all is read; ``None``: nothing is read yet.
    start: of the stream."""

    version: Epoch | None
    start: ChangesStart

    @property
    def after(self) -> ChangesStart:
        """Where the next batch begins."""
        return self.start if self.version is None else ChangesStart(self.version, False)

    def to_json(self) -> dict[str, Any]:
        return {"version": self.version, "start": self.start.to_json()}

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        version = json["version"]
        return typed(cls(None if version is None else Epoch(version), ChangesStart.from_json(json["start"])))


def begin_of(start: ChangesOffset, end: ChangesOffset) -> ChangesStart:
    """Where the batch between two offsets begins. A first offset may be newer than the one with which the stream began
    in truth: the end knows that one."""
    return end.start if start.version is None else start.after


def next_version(begin: ChangesStart, last: Epoch, versions_max: int | None) -> Epoch:
    """Through which version the next batch reads. last: in the log. versions_max: ``None``: no limit."""
    through = last if versions_max is None else min(last, Epoch(begin.version + versions_max - begin.with_base))
    return max(through, begin.version)


_OWN_ROOTS = "own_roots"
"""The option with what the app's own processes trust, as PEM."""


def app_of(options: Mapping[str, str]) -> Remote:
    """The running app of a reader's options ``address``, ``token`` and, if it has a certificate, ``tls``. Raises
    UserError."""
    own_roots = options.get(_OWN_ROOTS)
    tls = options.get("tls") if own_roots is None else TlsTrust(own_roots.encode(), None)
    return Remote.parse(options["address"], options["token"], tls)


def app_options(remote: Remote) -> dict[str, str]:
    """The options for a reader in the app's own processes. They have no private key."""
    options = {"address": remote.address, "token": remote.key.decode()}
    if remote.tls is not None and remote.tls.roots is not None:
        options[_OWN_ROOTS] = remote.tls.roots.decode()
    return options


@dataclass(frozen=True, slots=True)
class ChangesSource:
    """The log of a view, as any process opens it. store: settings that open the lake's object store."""

    root: str
    view: str
    store: Mapping[str, str]

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """From the options of a reader: ``view``, and ``root``, or ``address`` and ``token`` of a running app, which
        says where its lake is. Raises DeclarationError, UnknownView, AccessDenied, ClusterError."""
        view, root, address, token = (options.get(name) or "" for name in ("view", "root", "address", "token"))
        if not view or not (root or (address and token)):
            raise DeclarationError(
                "to read changes, give the options view, and root or both address and token of a running app"
            )
        if not root:
            with Connection(app_of(options)) as coordinator:
                root = str(coordinator.act("change_log", {"view": view}, timeout=ROOT_S_MAX)["root"])
        elif object_address(root) is None:
            root = os.path.abspath(root)  # tasks may run elsewhere
        return cls(root, view, json.loads(options.get("lake_secrets", "{}")))

    def log(self) -> ChangeLog:
        return ChangeLog(Lake(Root(self.root, self.store)))

    def schema(self) -> StructType:
        """Raises UnknownView for a view without a log."""
        return _spark_schema(self.log().record(self.view))

    def start(self, log: ChangeLog, version: str | None, at: datetime | None) -> ChangesStart:
        """Where a reader begins that gives this ``startingVersion`` or ``startingTimestamp``. Raises DeclarationError,
        UnknownView, ChangesGone."""
        if at is not None:
            return self._start_at(log, at)
        given = (version or EARLIEST).strip().lower()
        if given == EARLIEST:
            return ChangesStart(log.first(self.view), True)
        if given in (LATEST, NOW):
            return ChangesStart(log.last(self.view), False)
        wanted = _number("startingVersion", given, 0)
        if wanted == (first := log.first(self.view)):  # its changes are all rows that the view had then
            return ChangesStart(first, True)
        return ChangesStart(Epoch(wanted - 1), False)

    def _start_at(self, log: ChangeLog, at: datetime) -> ChangesStart:
        """Where a reader begins that wants what was committed at a moment or later."""
        if at.timestamp() > time.time():
            raise DeclarationError(
                f"startingTimestamp={at.isoformat()!r} lies in the future: give {LATEST!r} as "
                "startingVersion for what comes from now on"
            )
        folded, last, found = log.folded(self.view), log.last(self.view), log.version_at(self.view, at)
        if folded is not None and at < folded.at:
            raise ChangesGone(
                f"view {self.view!r}: not all of its changes since {at.isoformat()} are in its log, whose oldest "
                f"version, {folded.version}, was committed at {folded.at.isoformat()}. Give that time, or read from "
                f"the start: both give all rows of that version and what follows"
            )
        if found is None:
            return ChangesStart(last, False)
        first = log.first(self.view)
        return ChangesStart(first, True) if found.version <= first else ChangesStart(Epoch(found.version - 1), False)

    def end(self, log: ChangeLog, version: Epoch | None, at: datetime | None) -> Epoch:
        """The last version that a reader gives which names a last one, or a last moment, or neither."""
        last = log.last(self.view)
        if at is not None:
            found = log.version_at(self.view, at + timedelta(microseconds=1))
            return last if found is None else Epoch(found.version - 1)
        return last if version is None else min(last, version)

    def read(self, begin: ChangesStart, through: Epoch, group: VnodeGroup) -> Iterator[pa.RecordBatch]:
        """The changes of a group of vnodes, as Spark takes them. Raises ChangesGone."""
        log = self.log()
        self.check(log, begin)
        schema = spark_arrow_schema(_spark_schema(log.record(self.view)), "UTC")
        for batch in log.changes(self.view, None if begin.with_base else begin.version, through, group):
            self.check(log, begin)  # as of this batch, the base may be another one
            yield batch.cast(schema)

    def check(self, log: ChangeLog, begin: ChangesStart) -> None:
        """Raise ChangesGone unless the log still has what is behind ``begin``."""
        first = log.first(self.view)
        if begin.version < first or (begin.with_base and begin.version != first):
            raise ChangesGone(
                f"view {self.view!r}: its changes after version {begin.version} are gone, and the oldest version in "
                f"its log is {first}. Start a query with a new checkpoint, from the start, which gives all rows of "
                f"that version and what follows"
            )


def _spark_schema(record: LogRecord) -> StructType:
    return from_arrow_schema(changes_schema(record.schema), prefer_timestamp_ntz=True)


class OpenedLog:
    """The log of a source, opened once in each process: it remembers the commits that it has read. A task, which gets a
    reader, opens it anew."""

    def __init__(self, source: ChangesSource) -> None:
        self._source = source
        self._log: ChangeLog | None = None

    def get(self) -> ChangeLog:
        if self._log is None:
            self._log = self._source.log()
        return self._log

    def __getstate__(self) -> dict[str, Any]:
        return {"_source": self._source, "_log": None}


@dataclass(frozen=True)
class ChangesPartition(InputPartition):
    """What one task reads."""

    begin: ChangesStart
    through: Epoch
    group: VnodeGroup


@dataclass(frozen=True, slots=True)
class ChangesPlan:
    """The options of a reader, checked."""

    source: ChangesSource
    starting_version: str | None
    starting_at: datetime | None
    ending_version: Epoch | None
    ending_at: datetime | None
    partitions: int | None
    versions_max: int | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """From the options of a reader. Raises as :meth:`ChangesSource.of` does."""
        limit, ending, groups = (options.get(name) for name in ("maxVersionsPerTrigger", "endingVersion", "partitions"))
        for end in ("starting", "ending"):
            if None not in (options.get(f"{end}Version"), options.get(f"{end}Timestamp")):
                raise DeclarationError(f"give {end}Version or {end}Timestamp, not both")
        if limit is not None and not ADMITS:
            raise DeclarationError("maxVersionsPerTrigger needs Spark 4.2 or newer: leave it out")
        return cls(
            ChangesSource.of(options),
            options.get("startingVersion"),
            _moment_of(options, "startingTimestamp"),
            None if ending is None else Epoch(_number("endingVersion", ending, 1)),
            _moment_of(options, "endingTimestamp"),
            None if groups is None else _number("partitions", groups, 1),
            None if limit is None else _number("maxVersionsPerTrigger", limit, 1),
        )

    def of_stream(self) -> Self:
        """The same, for a stream. Raises DeclarationError for an end, which a stream has not."""
        for name, given in (("endingVersion", self.ending_version), ("endingTimestamp", self.ending_at)):
            if given is not None:
                raise DeclarationError(f"{name}: a stream has no end: leave it out, or use spark.read")
        return self

    def of_batch(self) -> Self:
        """The same, for a batch. Raises DeclarationError for a limit, which a batch has not."""
        if self.versions_max is not None:
            raise DeclarationError(
                "maxVersionsPerTrigger: a batch has all versions: leave it out, or give endingVersion"
            )
        return self

    def between(self, log: ChangeLog, begin: ChangesStart, through: Epoch) -> list[ChangesPartition]:
        """The tasks that read what is behind ``begin``. Raises DeclarationError for an impossible number of them."""
        if through < begin.version or (through == begin.version and not begin.with_base):
            return []
        self.source.check(log, begin)
        record = Lake(Root(self.source.root, self.source.store)).record()
        vnodes = 1 if record is None else record.vnodes
        groups = VnodeGroup.all(vnodes, min(vnodes, PARTITIONS_DEFAULT) if self.partitions is None else self.partitions)
        return [ChangesPartition(begin, through, group) for group in groups]


class ChangesReader(DataSourceReader):
    """The changes as they are when the DataFrame is made; not streaming."""

    def __init__(self, plan: ChangesPlan) -> None:
        self._plan = plan
        self._log = OpenedLog(plan.source)
        self._begin = plan.source.start(self._log.get(), plan.starting_version, plan.starting_at)
        self._through = plan.source.end(self._log.get(), plan.ending_version, plan.ending_at)

    def partitions(self) -> Sequence[InputPartition]:
        nothing = ChangesPartition(replace(self._begin, with_base=False), self._begin.version, VnodeGroup(0, 1, 1))
        return self._plan.between(self._log.get(), self._begin, self._through) or [nothing]  # Spark takes no empty list

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._plan.source, partition)


class ChangesStreamReader(DataSourceStreamReader):
    """The changes as a stream, for Spark 4.1, which asks for all that there is."""

    def __init__(self, plan: ChangesPlan) -> None:
        self._plan = plan
        self._log = OpenedLog(plan.source)
        self._start: ChangesStart | None = None

    def initialOffset(self) -> dict[str, Any]:
        return ChangesOffset(None, self._begin()).to_json()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        begin = self._begin()
        return ChangesOffset(max(begin.version, self._last()), begin).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ending = ChangesOffset.from_json(end)
        if ending.version is None:
            return []
        begin = begin_of(ChangesOffset.from_json(start), ending)
        return self._plan.between(self._log.get(), begin, ending.version)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._plan.source, partition)

    def _begin(self) -> ChangesStart:
        if self._start is None:
            plan = self._plan
            self._start = plan.source.start(self._log.get(), plan.starting_version, plan.starting_at)
        return self._start

    def _last(self) -> Epoch:
        return self._log.get().last(self._plan.source.view)


if ADMITS:

    class LimitedChangesStreamReader(ChangesStreamReader, SupportsTriggerAvailableNow):
        """The changes as a stream, some versions at a time."""

        def __init__(self, plan: ChangesPlan) -> None:
            super().__init__(plan)
            self._target: Epoch | None = None

        def getDefaultReadLimit(self) -> ReadLimit:
            # Spark knows limits of rows, files and bytes. A version counts as a file.
            limit = self._plan.versions_max
            return ReadAllAvailable() if limit is None else ReadMaxFiles(limit)

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # type: ignore[override]
            given = ChangesOffset.from_json(start)
            last = self._last() if self._target is None else self._target
            versions_max = limit.max_files if isinstance(limit, ReadMaxFiles) else None
            return ChangesOffset(next_version(given.after, last, versions_max), given.start).to_json()

        def reportLatestOffset(self) -> dict[str, Any]:
            return ChangesOffset(self._last(), self._begin()).to_json()

        def prepareForTriggerAvailableNow(self) -> None:
            self._target = self._last()


def stream_reader(plan: ChangesPlan) -> DataSourceStreamReader:
    """The reader that this Spark can use."""
    return LimitedChangesStreamReader(plan) if ADMITS else ChangesStreamReader(plan)


def _read(source: ChangesSource, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, ChangesPartition)
    if partition.begin.with_base or partition.begin.version < partition.through:
        yield from source.read(partition.begin, partition.through, partition.group)


def _moment_of(options: Mapping[str, str], name: str) -> datetime | None:
    given = options.get(name)
    return None if given is None else _moment(name, given)


def _moment(what: str, given: str) -> datetime:
    """A moment in UTC. A session's time zone is not known where its options are read, so a text must have one."""
    try:
        moment = datetime.fromisoformat(given.strip())
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise DeclarationError(f"{what}={given!r}: give a time with its zone, such as '2026-01-31T12:00:00Z'")
    return moment.astimezone(UTC)


def _number(what: str, given: str, least: int) -> int:
    if not given.strip().isdecimal() or int(given) < least:
        words = f", {EARLIEST!r} or {LATEST!r}" if what == "startingVersion" else ""
        raise DeclarationError(f"{what}={given!r}: give a number, {least} or more{words}")
    return int(given)
