"""Sinks for the changes of a view, in the form that ``DataStreamWriter.foreachBatch`` takes."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from pyspark.sql.window import Window

from upriver.arguments import flag, names, some_text
from upriver.errors import ClusterError, DeclarationError
from upriver.logs import shorten_errors
from upriver.spark.merges import (
    merge,
    rows_by_count,
    rows_by_last_state,
    table_in_sql,
    whole_rows,
)
from upriver.spark.runs import quoted
from upriver.state.changes import CHANGE_COLUMNS, CHANGE_TYPE, COMMIT_VERSION

_LOG = logging.getLogger("upriver.sinks")
FORMATS = ("delta", "iceberg")
EXISTING = ("refuse", "replace", "continue")
WRITER = "upriver.writer"
"""The property of a table that names the query which keeps it."""
_QUERY_ID = "sql.streaming.queryId"
"""The local property in which Spark tells the id of the query, which its checkpoint keeps."""
_TXN_APP, _TXN_VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
"""Settings of Delta: a transaction of an application and a version that a table has had is skipped."""
_ABSENT = ("DELTA_MISSING_DELTA_TABLE", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND")
"""Conditions of errors by which Delta says that a path has no table."""
_INTERRUPTIONS = ("java.lang.InterruptedException", "java.io.InterruptedIOException", "ClosedByInterruptException")
"""Errors of Java that mean that the query is stopped."""
_PROXY_ERROR = "py4j.protocol.Py4JJavaError: An error occurred while calling Spark"
"""How an error begins in which Spark looks for an interruption."""
_REASON_CHARS_MAX = 1000
"""Characters of an error of Java that are told."""
_VALUE = "upriver value"
"""A column of messages in the making."""
_JSON = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""How messages have values. By default Spark cuts times to milliseconds, and writes them in the session's zone."""
_CHANGES, _ROWS = "upriver_changes", "upriver_rows"
"""Temporary views of a batch's session."""


class BatchFunction(Protocol):
    """What ``foreachBatch`` takes."""

    def __call__(self, rows: DataFrame, batch: int, /) -> None: ...


@shorten_errors
def keep_equal(
    table: str,
    key: str | Sequence[str],
    *,
    format: str = "delta",
    existing: str = "refuse",
    writer: str | None = None,
) -> BatchFunction:
    """Keep a table equal to a view: ``app.changes(view).writeStream.foreachBatch(keep_equal(...))``.

    table: its name, or for Delta its path. It is made at the first batch if it is absent, with the view's columns. key:
    the view's key, or any columns whose values few rows share: each batch replaces all rows of the keys that its
    changes name, by one MERGE. format: ``delta`` or ``iceberg``. With Delta, equal rows and several rows of a key are
    kept as often as the view has them. With Iceberg, each key must have one row; a batch that shows several is refused.

    existing: what happens to a table that another writer has made. With ``refuse``, the query fails and says so. With
    ``replace``, its rows are replaced by the view's, in the first batch of the query; the changes must be read from the
    start. With ``continue``, it is taken as it is: it must equal the view where the changes begin. writer: names the
    query in the table; by default its id, which its checkpoint keeps. A batch that is repeated after a failure changes
    nothing. Raises DeclarationError.
    """
    if format not in FORMATS:
        raise DeclarationError(f"format={format!r}: give {' or '.join(map(repr, FORMATS))}")
    if existing not in EXISTING:
        raise DeclarationError(f"existing={existing!r}: give {', '.join(map(repr, EXISTING))}")
    in_sql = table_in_sql(some_text("table", table), format)
    return _KeptTable(in_sql, names("key", key), format, existing, writer)


@dataclass(slots=True)
class _KeptTable:
    """Applies batches of changes to a table, which is given in SQL."""

    table: str
    key: tuple[str, ...]
    format: str
    existing: str
    writer: str | None
    _checked: bool = field(default=False, init=False)
    """Whether the table has been looked at."""

    def __call__(self, rows: DataFrame, batch: int) -> None:
        with short_errors(f"batch {batch} into table {self.table}"):
            self._apply(rows, batch)

    def _apply(self, rows: DataFrame, batch: int) -> None:
        columns = _own_columns(rows, self.key)
        spark = rows.sparkSession
        writer = self.writer or _query_id(spark)
        if not self._checked:
            self._make_ready(rows.select(*map(quoted, columns)), batch, writer)
            self._checked = True
        cached = rows.persist()
        try:
            cached.createOrReplaceTempView(_CHANGES)
            if batch == 0 and self.existing == "replace":
                spark.sql(whole_rows(_CHANGES, columns)).writeTo(self.table).overwrite(F.lit(True))
                spark.sql(f"ALTER TABLE {self.table} SET TBLPROPERTIES ('{WRITER}' = '{writer}')")
            else:
                self._merge(spark, columns, batch, writer)
        finally:
            cached.unpersist()

    def _merge(self, spark: SparkSession, columns: Sequence[str], batch: int, writer: str) -> None:
        if self.format == "delta":
            query = rows_by_count(self.table, _CHANGES, self.key, columns)
        else:
            query = rows_by_last_state(_CHANGES, self.key, columns)
        with _once(spark, writer, batch):
            # Computed once: a MERGE reads its source twice.
            source = spark.sql(query).persist()
            try:
                source.createOrReplaceTempView(_ROWS)
                spark.sql(merge(self.table, _ROWS, self.key, columns))
            finally:
                source.unpersist()

    def _make_ready(self, rows: DataFrame, batch: int, writer: str) -> None:
        """Make the table if it is absent, and refuse it if this query may not write it."""
        spark = rows.sparkSession
        if not _exists(spark, self.table):
            making = rows.limit(0).writeTo(self.table).using(self.format).tableProperty(WRITER, writer)
            if self.format == "delta":
                making.createOrReplace()  # a kill may leave a log without a commit, which create() takes for a table
            else:
                making.create()
            return
        own, theirs = _types(rows), _types(spark.table(self.table))
        if own != theirs:
            raise DeclarationError(
                f"table {self.table} has the columns {theirs}, and the view has {own}: change the table, or let "
                f"keep_equal make another one"
            )
        known = {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {self.table}").collect()}
        if known.get(WRITER) == writer or self.existing == "continue" or (self.existing, batch) == ("replace", 0):
            return
        raise DeclarationError(
            f"table {self.table} is there already, and this query has not made it. Give existing='replace' and a new "
            f"checkpoint to replace its rows by the view's, or existing='continue' if it equals the view where the "
            f"changes begin"
        )


def _exists(spark: SparkSession, table: str) -> bool:
    try:
        return spark.catalog.tableExists(table)
    except AnalysisException as error:
        if error.getCondition() in _ABSENT:
            return False
        raise


def _query_id(spark: SparkSession) -> str:
    found: str | None = spark.sparkContext.getLocalProperty(_QUERY_ID)
    if found is None:
        raise DeclarationError("keep_equal(...) is called outside of foreachBatch: give writer=, a name for the query")
    return found


@contextmanager
def short_errors(what: str) -> Iterator[None]:
    """Raise ClusterError for an error of Java, and log its stack trace.

    When a query is stopped amid a batch, Spark looks for the interruption in the text of the sink's error. It does so
    by a regular expression that overflows the thread's stack on a text as long as a stack trace.
    """
    try:
        yield
    except Py4JJavaError as error:
        text = str(error)
        _LOG.debug("%s: %s", what, text)
        name = next((name for name in _INTERRUPTIONS if name in text), None)
        if name is not None:
            raise ClusterError(f"{what}: the query is stopped. {_PROXY_ERROR}: {name}") from None
        raise ClusterError(f"{what}: {error.java_exception!s:.{_REASON_CHARS_MAX}}") from None


@contextmanager
def _once(spark: SparkSession, writer: str, batch: int) -> Iterator[None]:
    """Delta skips what is written meanwhile if this writer's batch, or a later one, is in the table. Other formats do
    not know these settings."""
    settings = {_TXN_APP: writer, _TXN_VERSION: str(batch)}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def _own_columns(rows: DataFrame, key: Sequence[str]) -> list[str]:
    """The view's columns. Raises DeclarationError for a DataFrame that has no changes, or not the key."""
    missing = [name for name in CHANGE_COLUMNS if name not in rows.columns]
    if missing:
        raise DeclarationError(
            f"these rows are no changes of a view: they lack {', '.join(missing)}. Read them by app.changes(view)"
        )
    columns = [name for name in rows.columns if name not in CHANGE_COLUMNS]
    for name in key:
        if name not in columns:
            raise DeclarationError(f"key names {name!r}; the view's columns are {', '.join(columns)}")
    return columns


def _types(rows: DataFrame) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in rows.dtypes)


@shorten_errors
def publish_to_kafka(
    servers: str,
    topic: str,
    key: str | Sequence[str],
    *,
    tombstones: bool = True,
    options: Mapping[str, str] = MappingProxyType({}),
) -> BatchFunction:
    """Publish the changes of a view to Kafka: ``app.changes(view).writeStream.foreachBatch(publish_to_kafka(...))``.

    servers: as for ``kafka.bootstrap.servers``. A message's key is a JSON object of the key's columns; its value, of
    all columns, with ``_change_type``, ``_commit_version`` and ``_commit_timestamp``. Times have microseconds, and
    TIMESTAMPs are in UTC. Keys of maps are texts. The headers ``_change_type`` and ``_commit_version`` have the same as
    texts. The messages of one key come in the order of the versions, in one
    partition of the topic.

    tombstones: send a deletion as a message without a value, so that a compacted topic forgets the key, and leave
    ``update_preimage`` out. Each key must have one row; a batch that shows several is refused. With False, every change
    is a message with a value, for views whose keys have several rows. options: further ones of Spark's Kafka sink, such
    as ``kafka.security.protocol``.

    Each change is published at least once: a batch that is repeated after a failure is published again. Consumers
    leave out messages whose ``_commit_version`` is not above the last one of their key, or with ``tombstones=False``,
    rows that they have had of that version. Raises DeclarationError.
    """
    where = {"kafka.bootstrap.servers": some_text("servers", servers), "topic": some_text("topic", topic)}
    columns, deletes = names("key", key), flag("tombstones", tombstones)

    def publish(rows: DataFrame, batch: int) -> None:
        with short_errors(f"batch {batch} into topic {topic}"):
            messages = kafka_messages(rows, columns, tombstones=deletes)
            messages.write.format("kafka").options(**{**options, **where}).save()

    return publish


def kafka_messages(rows: DataFrame, key: Sequence[str], *, tombstones: bool) -> DataFrame:
    """The messages of a batch of changes, in the columns of Spark's Kafka sink: ``key``, ``value``, ``headers``."""
    _own_columns(rows, key)
    kind, version = F.col(CHANGE_TYPE), F.col(COMMIT_VERSION)
    by_key = [F.col(quoted(name)) for name in key] or [F.lit(1)]
    value = _as_json(rows, rows.columns)
    if tombstones:
        several = F.count(F.lit(1)).over(Window.partitionBy(*by_key, version)) > 1
        message = "a key of the view has several rows: give tombstones=False, which publishes each change of a row"
        checked = F.when(several, F.raise_error(F.lit(message))).otherwise(value)
        rows = rows.where(kind != "update_preimage").withColumn(_VALUE, checked)
        value = F.col(quoted(_VALUE))
        value = F.when(kind != "delete", value)
    removes_first = F.when(kind.isin("delete", "update_preimage"), 0).otherwise(1)
    headers = F.array(
        *(
            F.struct(F.lit(name).alias("key"), F.col(name).cast("string").cast("binary").alias("value"))
            for name in (CHANGE_TYPE, COMMIT_VERSION)
        )
    )
    message_key = _as_json(rows, key, is_key=True) if key else F.lit("{}")
    return (
        rows.repartition(*by_key)
        .sortWithinPartitions(*by_key, version, removes_first)
        .select(message_key.alias("key"), value.alias("value"), headers.alias("headers"))
    )


def _as_json(rows: DataFrame, columns: Sequence[str], *, is_key: bool = False) -> Column:
    """These columns as one JSON text, which says each value exactly. is_key: equal keys have one text."""
    told = [_told(F.col(quoted(name)), rows.schema[name].dataType, is_key=is_key).alias(name) for name in columns]
    return F.to_json(F.struct(*told), _JSON)


def _told(value: Column, kind: DataType, *, is_key: bool) -> Column:
    """The value in a type that ``to_json`` writes exactly: of a map's key it writes Java's own text, which of bytes is
    an address. -0.0 and 0.0 are one key."""
    changes = ['"map"', *(['"float"', '"double"'] if is_key else [])]
    if not any(name in kind.json() for name in changes):
        return value
    match kind:
        case MapType():
            pairs = F.transform(
                F.map_entries(value),
                lambda pair: F.struct(
                    _text(pair["key"], kind.keyType), _told(pair["value"], kind.valueType, is_key=False)
                ),
            )
            return F.map_from_entries(pairs)
        case ArrayType():
            return F.transform(value, lambda element: _told(element, kind.elementType, is_key=is_key))
        case StructType():
            fields = [_told(value[field.name], field.dataType, is_key=is_key).alias(field.name) for field in kind]
            return F.when(value.isNotNull(), F.struct(*fields))
        case FloatType() | DoubleType():
            return value + F.lit(0.0).cast(kind)
    return value


def _text(key: Column, kind: DataType) -> Column:
    """A key of a map as the text that it has as a value."""
    match kind:
        case ArrayType() | StructType():
            return F.to_json(_told(key, kind, is_key=False), _JSON)
        case TimestampType() | TimestampNTZType():
            return F.get_json_object(F.to_json(F.struct(key.alias("key")), _JSON), "$.key")
        case BinaryType():
            return F.base64(key)
    return key.cast("string")
