"""Views and tables as Spark DataFrames: ``spark.read.format("upriver")``, one partition for each group of vnodes
(document 003, "Batch").

Spark plans a Python data source once for each ``load()`` and then runs the plan for every action on that DataFrame. So
a plan names no snapshot, but itself. The tasks add the action that they belong to. The coordinator gives all tasks of
one action the same snapshot of a full view, taken at the first task's request. Tables and partial views are read from
the lake; there it gives them the same epoch.

Keys that are named when the DataFrame is made prune: only their vnodes are read. Filters are left to Spark. Spark could
push them down. But up to Spark 4.3 it would reuse the reader with these filters for other queries on the same
DataFrame, whatever their filters, which would give wrong answers (docs/internals/decisions/0007-scans-take-keys.md).
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from upriver.arguments import at_least
from upriver.client.key_texts import Numeral, json_text, keys_of_texts
from upriver.client.keys import Keys, key_batch
from upriver.client.scans import SNAPSHOT_S_MAX, SOURCE_S_MAX, snapshot_part
from upriver.errors import DeclarationError, KeyTypeError
from upriver.hashing import Hashes, hash64
from upriver.ids import Epoch
from upriver.lake.scan import scan_from_json
from upriver.net.remote import Connection, Remote
from upriver.net.wire import refusing_malformed
from upriver.plan.schemas import schema_from_json
from upriver.records import typed
from upriver.spark.changes import (
    ChangesPlan,
    ChangesReader,
    ChangesSource,
    app_of,
    app_options,
    means_changes,
    stream_reader,
)
from upriver.spark.partitions import partitioned_by
from upriver.spark.schema import spark_arrow_schema
from upriver.state.key_filter import KeyFilter
from upriver.vnodes import HashRange, VnodeGroup, check_vnodes, hashes_in

FORMAT = "upriver"
PART_S_MAX = 24 * 3600.0
"""Seconds that reading a worker's part may take: Spark reads no faster than it can use the rows."""
SCAN_KEYS_MAX = 100_000
"""Keys of one DataFrame: each task gets all of them."""


def _encoded(keys: pa.RecordBatch) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as writer:
        writer.write_batch(keys)
    return base64.b64encode(sink.getvalue()).decode("ascii")


@dataclass(frozen=True, slots=True)
class ScanSource:
    """The facts about a view or a table before it is read. key: the columns by whose hash64 its rows are divided. lake:
    in JSON, how it is read from the lake; ``None`` for a full view, which is read from the workers."""

    key: tuple[str, ...]
    schema: pa.Schema
    vnodes: int
    workers: int
    lake: Mapping[str, Any] | None

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """Raises as ``refusing_malformed`` has it for what is malformed."""
        key, schema = tuple(json["key"]), schema_from_json(json["schema"])
        check_vnodes(json["vnodes"])
        if not set(key) <= set(schema.names):
            raise ValueError(f"the key {key!r:.100} of ({', '.join(schema.names)})")
        return typed(cls(key, schema, json["vnodes"], at_least("workers", json["workers"], 1), json["lake"]))

    @property
    def spark_schema(self) -> StructType:
        return from_arrow_schema(self.schema, prefer_timestamp_ntz=True)

    @property
    def key_schema(self) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in self.key])


@dataclass(frozen=True, slots=True)
class ScannedView:
    """A view or a table of an app."""

    remote: Remote
    name: str

    def source(self) -> ScanSource:
        """Raises UnknownView, AccessDenied, ClusterError."""
        with Connection(self.remote) as coordinator:
            told = coordinator.act("source", {"name": self.name}, timeout=SOURCE_S_MAX)
            with refusing_malformed(coordinator.address):
                return ScanSource.from_json(told)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The groups of vnodes that are read, one for each partition, of ``all_groups``. keys: only the rows of these."""

    groups: tuple[VnodeGroup, ...]
    all_groups: int
    keys: pa.RecordBatch | None

    @classmethod
    def of(cls, options: Mapping[str, str], name: str, source: ScanSource) -> Self:
        """Raises DeclarationError, KeyTypeError."""
        groups = VnodeGroup.all(source.vnodes, _partitions(options.get("partitions"), source))
        keys = _keys(options, name, source)
        if keys is None:
            return cls(groups, len(groups), None)
        if keys.num_rows > SCAN_KEYS_MAX:
            raise DeclarationError(
                f"{name!r}: {keys.num_rows:,} keys are given, and a read takes {SCAN_KEYS_MAX:,}: join it with a "
                f"DataFrame of the keys instead"
            )
        hashes = np.sort(hash64(keys.columns, keys.num_rows))
        with_keys = tuple(group for group in groups if _some_in(group, hashes))
        return cls(with_keys or groups[:1], len(groups), keys)


def _some_in(group: VnodeGroup, sorted_hash64: Hashes) -> bool:
    places = hashes_in(group.hashes, sorted_hash64)
    return bool(places.start < places.stop)


def _partitions(option: str | None, source: ScanSource) -> int:
    if option is None:
        return min(source.workers, source.vnodes)
    if not option.strip().isdecimal():
        raise DeclarationError(f"partitions={option!r}: give a number, 1 to {source.vnodes}")
    return int(option)


def _keys(options: Mapping[str, str], name: str, source: ScanSource) -> pa.RecordBatch | None:
    encoded, text = options.get("arrow_keys"), options.get("keys")
    if None not in (encoded, text):
        raise DeclarationError(f"{name!r}: give keys or arrow_keys, not both")
    if encoded is not None:
        try:
            keys = pa.ipc.open_stream(base64.b64decode(encoded, validate=True)).read_all()
            keys.validate(full=True)
        except (ValueError, pa.ArrowException) as error:
            raise KeyTypeError(f"{name!r}: arrow_keys is not base64 of an Arrow stream: {error}") from error
        return key_batch(name, source.key_schema, keys)
    if text is None:
        return None
    try:
        values = json.loads(text, parse_float=Numeral)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list):
        raise KeyTypeError(f"{name!r}: keys={text!r:.100} is not a JSON list of keys")
    texts = [_key_text(name, source.key_schema, value if isinstance(value, list) else [value]) for value in values]
    return key_batch(name, source.key_schema, keys_of_texts(name, source.key_schema, texts))


def _key_text(name: str, key: pa.Schema, parts: list[Any]) -> str:
    """A key as ``keys_of_texts`` takes it, which reads a list that does not fit as a text."""
    fits = len(parts) == len(key) and all(
        isinstance(part, str | None) or not pa.types.is_string(field.type)
        for part, field in zip(parts, key, strict=True)
    )
    if not fits:
        columns = ", ".join(f"{field.name} {field.type}" for field in key)
        raise KeyTypeError(f"{name!r}: {json_text(parts):.100} is no key of ({columns})")
    return json_text(parts)


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """What to read, checked."""

    asked: ScannedView
    source: ScanSource
    wanted: _Wanted
    options: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(
        cls,
        remote: Remote,
        name: str,
        partitions: int | None = None,
        keys: Keys | None = None,
        store: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """remote: the running app, with its token. name: of a view or a table. partitions: how many groups of vnodes;
        by default as many as workers. keys: only the rows of these. store: settings that open the lake's object store,
        as of a Root: an option has them, as it has the token. Spark shows options in no plan, and redacts these names.

        Raises UnknownView, DeclarationError, KeyTypeError, AccessDenied, ClusterError.
        """
        asked = ScannedView(remote, name)
        source = asked.source()
        options = {**app_options(remote), "view": name}
        if partitions is not None:
            options["partitions"] = str(partitions)
        if keys is not None:
            options["arrow_keys"] = _encoded(key_batch(name, source.key_schema, keys))
        if store:
            options["lake_secrets"] = json.dumps(dict(store))
        return cls(asked, source, _Wanted.of(options, name, source), options)

    def load(self, spark: SparkSession) -> DataFrame:
        """The rows. Each action on the DataFrame reads them as they are at that moment, as of one epoch."""
        # Spark asks the source for its schema here. Told the schema, it would look for the source at the first action,
        # and in the session that is active then, which may be another.
        return spark.read.format(register_source(spark)).options(**self.options).load()

    def divide(self, rows: DataFrame) -> DataFrame:
        """The same rows, computed by Spark, with a partition for each group of vnodes; even for those without a key."""
        vnodes, groups = self.source.vnodes, self.wanted.all_groups
        columns = [F.col("`{}`".format(name.replace("`", "``"))) for name in self.source.key]
        bits = vnodes.bit_length() - 1
        vnode = F.shiftrightunsigned(F.xxhash64(*columns), 64 - bits) if bits else F.lit(0)
        group = F.floor(((vnode + 1) * groups - 1) / vnodes)  # as VnodeGroup.all divides
        return partitioned_by(rows, groups, group.cast("int"))


def register_source(spark: SparkSession) -> str:
    """Let the session read views; returns the format by which it does: ``upriver``, or one of its own.

    Once a session has read by a format, Spark 4.3 lets no session that is made later register it, and does not find it
    there.
    """
    try:
        spark.dataSource.register(UpriverDataSource)
        return FORMAT
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    of_session = f"{FORMAT}_{spark._jsparkSession.sessionUUID().replace('-', '')}"

    class OfSession(UpriverDataSource):
        @classmethod
        def name(cls) -> str:
            return of_session

    spark.dataSource.register(OfSession)
    return of_session


def load_changes(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """The changes of a view as a streaming DataFrame."""
    return spark.readStream.format(register_source(spark)).options(**options).load()


class UpriverDataSource(DataSource):
    """The data source ``upriver``.

    Options: ``address`` and ``token`` of a running app; ``tls``, if it has a certificate, as ``upriver.connect`` takes
    it: a file that the driver reads, or ``true``; ``view``, the name of a view or a table; ``partitions``, how many
    groups of vnodes; ``keys``, a JSON list of the keys whose rows are read, or ``arrow_keys``, base64 of an Arrow
    stream of them.

    With ``changes`` (``true``), or with ``root`` in place of ``address`` and ``token``, a view's changes are read from
    its log in the lake, as a batch or as a stream (``spark.readStream``); changes.py has the further options.

    Register it with ``spark.dataSource.register(UpriverDataSource)``; ``App.read`` does so by itself.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        if means_changes(self.options):
            return ChangesSource.of(self.options).schema()
        return self._asked().source().spark_schema

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if not means_changes(self.options):
            raise DeclarationError('a stream has the changes of a view: give option("changes", "true")')
        return stream_reader(ChangesPlan.of(self.options).of_stream())

    def reader(self, schema: StructType) -> DataSourceReader:
        if means_changes(self.options):
            return ChangesReader(ChangesPlan.of(self.options).of_batch())
        asked = self._asked()
        source = asked.source()
        if _columns(schema) != (own := _columns(source.spark_schema)):
            raise DeclarationError(
                f"view {asked.name!r} has the columns {own}, not {_columns(schema)}: leave schema() "
                f"out, or read the view again if the app was started anew"
            )
        store = json.loads(self.options.get("lake_secrets", "{}"))
        return GroupReader(asked, source, _Wanted.of(self.options, asked.name, source), store)

    def _asked(self) -> ScannedView:
        missing = [option for option in ("address", "token", "view") if not self.options.get(option)]
        if missing:
            raise DeclarationError(f'format "{FORMAT}" needs the options address, token and view; missing: {missing}')
        return ScannedView(app_of(self.options), self.options["view"])


def _columns(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)


@dataclass(frozen=True)
class ScanPartition(InputPartition):
    """One of the plan's tasks, for a group of vnodes. plan: names the plan."""

    plan: str
    group: VnodeGroup


class GroupReader(DataSourceReader):
    """Reads groups of vnodes, in Spark's tasks."""

    def __init__(self, asked: ScannedView, source: ScanSource, wanted: _Wanted, store: Mapping[str, str]) -> None:
        """store: settings that open the lake's object store; without any, a task uses its environment."""
        self._asked = asked
        self._store = store
        self._source = source
        self._wanted = wanted

    def partitions(self) -> Sequence[InputPartition]:
        plan = uuid4().hex
        return [ScanPartition(plan, group) for group in self._wanted.groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one group, in batches as Spark takes them: in UTC, whatever the session's zone."""
        assert isinstance(partition, ScanPartition)
        schema = spark_arrow_schema(self._source.spark_schema, "UTC")
        keys = None if self._wanted.keys is None else KeyFilter(self._wanted.keys)
        hashes = None if keys is None else keys.hashes[hashes_in(partition.group.hashes, keys.hashes)]
        asked = {"view": self._asked.name, "scan": f"{partition.plan}-{_action()}"}
        with Connection(self._asked.remote) as coordinator:
            snapshot = coordinator.act("scan", asked, timeout=SNAPSHOT_S_MAX)
        for batch in self._rows(snapshot, partition.group, hashes):
            yield (batch if keys is None else keys.rows_of(batch)).cast(schema)

    def _rows(self, snapshot: Mapping[str, Any], group: VnodeGroup, hashes: Hashes | None) -> Iterator[pa.RecordBatch]:
        """The rows of these vnodes; if hashes are given, only rows whose key has one of them."""
        if snapshot["lake"] != self._source.lake:
            raise DeclarationError(f"view {self._asked.name!r} has been declared anew; read it again")
        return rows_of_group(self._asked, self._source, snapshot, group, hashes, self._store)


def rows_of_group(
    asked: ScannedView,
    source: ScanSource,
    snapshot: Mapping[str, Any],
    group: VnodeGroup,
    hashes: Hashes | None,
    store: Mapping[str, str],
) -> Iterator[pa.RecordBatch]:
    """The rows of these vnodes, from the lake or from all workers. snapshot: ``epoch``, ``snapshot`` and ``addresses``.
    hashes: only rows whose key has one of them. store: settings that open the lake's object store."""
    if source.lake is not None:
        yield from scan_from_json(source.lake, store).rows(Epoch(snapshot["epoch"]), group, hashes)
        return
    ranges: Sequence[HashRange] = [group.hashes] if hashes is None else [(hash, hash) for hash in hashes.tolist()]
    wanted = {"snapshot": snapshot["snapshot"], "view": asked.name, "key": list(source.key)}
    wanted["ranges"] = [list(range) for range in ranges]
    for address in snapshot["addresses"] if ranges else ():
        yield from snapshot_part(asked.remote.at(address), wanted, source.schema, PART_S_MAX)


def _action() -> str:
    """Names the action that this task belongs to; the same in all its tasks."""
    context = TaskContext.get()
    assert context is not None
    execution = context.getLocalProperty("spark.sql.execution.id")
    return f"e{execution}" if execution is not None else f"s{context.stageId()}"
