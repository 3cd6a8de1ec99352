"""From the changes of another database to the rows of an upsert table.

A change becomes a version of its row: the row's columns, a position that orders the versions of one key, and the
operation. ``deletes`` names the versions that delete. A change of a row's key deletes the old key and adds the new one.

Positions come from the database, not from Kafka: a topic that gets partitions sends a key elsewhere, where offsets
begin at 0. Two changes of one key have the positions of their commits, since the database locks the row in between.
"""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from upriver.arguments import class_name, names, text
from upriver.errors import DeclarationError

Key = str | Sequence[str]
Schema = str | StructType


class UpsertTable(TypedDict):
    """What ``app.table`` takes: ``app.table("orders", **debezium(...))``."""

    rows: DataFrame
    primary_key: list[str]
    order_by: list[str]
    deletes: str


_POSITIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "postgresql": {"_lsn": ("lsn", "BIGINT")},
    "mysql": {"_file": ("file", "BIGINT"), "_pos": ("pos", "BIGINT"), "_row": ("row", "INT")},
    "sqlserver": {
        "_commit_lsn": ("commit_lsn", "STRING"),
        "_change_lsn": ("change_lsn", "STRING"),
        "_event_serial_no": ("event_serial_no", "BIGINT"),
    },
    "oracle": {"_scn": ("scn", "DECIMAL(38,0)"), "_ts_ms": ("ts_ms", "BIGINT")},
}
"""By database: the columns of a change's position, each with its field of ``source`` and its type."""
_SAME = {"mariadb": "mysql", "postgres": "postgresql"}
_OPERATION, _ORDER, _STEP = "_op", "_transaction_order", "_step"
_UNITS = ("millis", "micros", "nanos")
_BAD = ("fail", "skip")
_NUMBER = r"^-?[0-9]+$"
_SHOWN_CHARS_MAX = 200
"""Characters of a bad envelope that the error shows."""


def debezium(
    df: DataFrame,
    *,
    schema: Schema,
    key: Key,
    database: str = "postgresql",
    value: str = "value",
    time_unit: str = "micros",
    on_bad_envelope: str = "fail",
) -> UpsertTable:
    """The arguments of ``app.table`` for a topic of Debezium: ``app.table("orders", **debezium(raw, ...))``.

    df: a DataFrame whose column ``value`` is the message's value, JSON as text or bytes, with or without the wrapper
    ``{"schema": ..., "payload": ...}``; such as Spark's Kafka reader gives. schema: the row's columns, as DDL or a
    StructType. Numbers are taken for DATE (days), TIMESTAMP and TIMESTAMP_NTZ (``time_unit``: ``millis``, ``micros`` or
    ``nanos``, as the connector writes them), and texts too (``ZonedTimestamp``, ISO dates); a DECIMAL comes as text or
    number (``decimal.handling.mode=string``). key: its primary key. database: ``postgresql``, ``mysql``, ``mariadb``,
    ``sqlserver`` or ``oracle``, whose log positions order the changes.

    The rows have the columns of ``schema``, then ``_op`` (``c``, ``u``, ``d`` or ``r``), the position (``_lsn`` for
    PostgreSQL), and ``_transaction_order`` if the connector sends transaction metadata, else null. An update that
    changes the key deletes the old key. Tombstones are left out.

    on_bad_envelope: what happens to a message that is no such envelope, has no key, or truncates the table, which no
    upsert table can do. With ``fail``, the table's source fails with an error that shows it; with ``skip``, the message
    is left out. Raises DeclarationError.
    """
    about = "debezium"
    row, unique = _row_of(about, schema), list(names(f"{about}: key", key))
    positions = _positions(about, database)
    added = (_OPERATION, *positions, _ORDER, _STEP)
    _check_choice(f"{about}: time_unit", time_unit, _UNITS)
    _check_choice(f"{about}: on_bad_envelope", on_bad_envelope, _BAD)
    _check_columns(about, df, [text(f"{about}: value", value)])
    _check_names(about, row, unique, added)
    raw = df.where(F.col(value).isNotNull()).select(F.col(value).cast("string").alias("text"))
    changes = _parsed(raw, row, [field for field, _ in _POSITIONS[_known(database)].values()])
    changes = _checked(changes, unique, skips=on_bad_envelope == "skip")
    columns = [_decoded(F.col(f"row.`{field.name}`"), field.dataType, time_unit).alias(field.name) for field in row]
    position = [_position(name, field, kind) for name, (field, kind) in positions.items()]
    order = F.col("change.transaction.total_order").cast("bigint").alias(_ORDER)
    rows = _versions(changes, unique).select(
        *columns, F.col("op").alias(_OPERATION), *position, order, F.col("step").alias(_STEP)
    )
    return UpsertTable(
        rows=rows, primary_key=unique, order_by=[*positions, _ORDER, _STEP], deletes=f"{_OPERATION} = 'd'"
    )


def delta_cdf(df: DataFrame, *, key: Key, keys_change: bool = True) -> UpsertTable:
    """The arguments of ``app.table`` for a change feed of Delta: ``app.table("people", **delta_cdf(df, key="id"))``.

    df: a DataFrame that is read with ``readChangeFeed``, streaming or not, with all columns of the feed. key: a column
    or columns whose values no two rows of the Delta table share. keys_change: whether an update may change a row's key;
    with False the images of rows before updates are left out, which halves the rows of updates.

    The rows keep the feed's columns; ``_step`` is added, which has a version's deletes before its inserts.
    Raises DeclarationError.
    """
    about = "delta_cdf"
    unique = list(names(f"{about}: key", key))
    _check_columns(about, df, ["_change_type", "_commit_version"], " Read the table with option readChangeFeed true")
    _check_columns(about, df, unique)
    if _STEP in df.columns:
        raise DeclarationError(f"{about}: the DataFrame has a column {_STEP!r}, which is added; rename it")
    rows = df if keys_change else df.where("_change_type <> 'update_preimage'")
    gone = "_change_type IN ('delete', 'update_preimage')"
    step = F.when(F.expr(gone), 0).otherwise(1).alias(_STEP)
    return UpsertTable(
        rows=rows.select("*", step), primary_key=unique, order_by=["_commit_version", _STEP], deletes=gone
    )


def _row_of(about: str, schema: Schema) -> StructType:
    try:
        made = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except PySparkException as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise DeclarationError(
            f"{about}: schema: {schema!r} is no list of columns such as 'id BIGINT': {first}"
        ) from None
    if not isinstance(made, StructType):
        raise DeclarationError(f"{about}: schema: give columns as DDL or a StructType, not a {class_name(schema)}")
    return made


def _known(database: str) -> str:
    return _SAME.get(database, database)


def _positions(about: str, database: str) -> Mapping[str, tuple[str, str]]:
    _check_choice(f"{about}: database", database, (*_POSITIONS, *_SAME))
    return _POSITIONS[_known(database)]


def _check_choice(what: str, given: object, choices: Sequence[str]) -> None:
    if given not in choices:
        raise DeclarationError(f"{what}={given!r}: give one of {', '.join(map(repr, choices))}")


def _check_columns(about: str, df: DataFrame, needed: Sequence[str], way: str = "") -> None:
    if not isinstance(df, DataFrame):
        raise DeclarationError(f"{about}: give a Spark DataFrame, not a {class_name(df)}")
    for column in needed:
        if column not in df.columns:
            raise DeclarationError(f"{about}: the DataFrame has no column {column!r} but {', '.join(df.columns)}.{way}")


def _check_names(about: str, row: StructType, key: Sequence[str], added: Sequence[str]) -> None:
    for column in key:
        if column not in row.names:
            raise DeclarationError(f"{about}: key names {column!r}; the schema's columns are {', '.join(row.names)}")
    for column in row.names:
        if column.lower() in added:
            raise DeclarationError(
                f"{about}: the schema has a column {column!r}, which is added to each row; leave it out"
            )


def _parsed(raw: DataFrame, row: StructType, fields: Sequence[str]) -> DataFrame:
    """The column ``change``: the envelope; null if the text is none. fields: of ``source``, as texts."""
    wire = StructType([StructField(field.name, _on_the_wire(field.dataType)) for field in row])
    source = StructType([StructField(name, StringType()) for name in fields])
    transaction = StructType([StructField("total_order", StringType())])
    envelope = [
        StructField("before", wire),
        StructField("after", wire),
        StructField("op", StringType()),
        StructField("source", source),
        StructField("transaction", transaction),
    ]
    whole = StructType([*envelope, StructField("payload", StructType(envelope)), StructField("_unread", StringType())])
    parsed = F.from_json("text", whole, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_unread"})
    inner = F.struct(*(F.col(f"parsed.{field.name}") for field in envelope))
    return raw.select("text", parsed.alias("parsed")).select(
        "text",
        F.when(F.col("parsed._unread").isNotNull(), None)
        .otherwise(F.coalesce("parsed.payload", inner))
        .alias("change"),
    )


def _on_the_wire(kind: DataType) -> DataType:
    """Texts for types that JSON has none for: Debezium has several forms of each."""
    encoded = isinstance(kind, DateType | TimestampType | TimestampNTZType | DecimalType)
    return StringType() if encoded else kind


def _checked(changes: DataFrame, key: Sequence[str], *, skips: bool) -> DataFrame:
    """The changes that can be taken, with the columns ``op`` and ``row``."""
    operation = F.col("change.op")
    row = F.when(operation == "d", F.col("change.before")).otherwise(F.col("change.after"))
    changes = changes.select("text", "change", operation.alias("op"), row.alias("row"))
    has_key = F.lit(True)
    for column in key:
        has_key = has_key & F.col(f"row.`{column}`").isNotNull()
    is_good = F.coalesce(F.col("op").isin("c", "u", "d", "r") & has_key, F.lit(False))
    if skips:
        return changes.where(is_good)
    truncates = "debezium: the source table was truncated, and an upsert table cannot delete all its rows at once. "
    ways = "Have the connector skip truncates (skipped.operations=t), or give on_bad_envelope='skip'. "
    what = (
        F.when(F.col("op") == "t", truncates + ways)
        .when(F.col("op").isin("c", "u", "d", "r"), "debezium: a change has no value of the key. The message: ")
        .otherwise("debezium: a message is no envelope of the declared schema. The message: ")
    )
    message = F.concat(what, F.substring("text", 1, _SHOWN_CHARS_MAX))
    op = F.when(is_good, F.col("op")).otherwise(F.raise_error(message).cast("string"))
    return changes.withColumn("op", op)


def _versions(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """A version for each change; one more, before it, that deletes the old key if an update has changed the key."""
    moved = F.lit(False)
    for column in key:
        before = F.col(f"change.before.`{column}`")
        moved = moved | F.coalesce(before != F.col(f"row.`{column}`"), F.lit(False))
    new = F.struct(F.col("op"), F.col("row"), F.when(F.col("op") == "d", 0).otherwise(1).alias("step"))
    old = F.struct(F.lit("d").alias("op"), F.col("change.before").alias("row"), F.lit(0).alias("step"))
    both = F.when((F.col("op") == "u") & moved, F.array(old, new)).otherwise(F.array(new))
    return changes.select("change", F.explode(both).alias("version")).select("change", "version.*")


def _decoded(column: Column, kind: DataType, unit: str) -> Column:
    """A value on the wire in its declared type."""
    number = F.when(column.rlike(_NUMBER), column.cast("bigint"))
    match kind:
        case DateType():
            return F.coalesce(F.date_from_unix_date(number.cast("int")), _unless_number(column).cast(kind))
        case TimestampType() | TimestampNTZType():
            return F.coalesce(_instant(number, unit, kind), _unless_number(column).cast(kind))
        case DecimalType():
            return column.cast(kind)
    return column


def _unless_number(column: Column) -> Column:
    return F.when(~column.rlike(_NUMBER), column)


def _instant(number: Column, unit: str, kind: DataType) -> Column:
    """A TIMESTAMP_NTZ is counted from 1970 in no zone."""
    micros = {"millis": number * 1000, "micros": number, "nanos": F.floor(number / 1000).cast("bigint")}[unit]
    if isinstance(kind, TimestampType):
        return F.timestamp_micros(micros)
    return F.to_timestamp_ntz(F.lit("1970-01-01 00:00:00")) + F.make_dt_interval(
        F.lit(0), F.lit(0), F.lit(0), (micros.cast("decimal(20,0)") / F.lit(1_000_000)).cast("decimal(18,6)")
    )


def _position(name: str, field: str, kind: str) -> Column:
    """A part of the position; null where a snapshot has none, which comes first."""
    column = F.col(f"change.source.{field}")
    if name == "_file":  # mysql-bin.000017: the number, which grows beyond its zeros
        column = F.regexp_extract(column, r"([0-9]+)$", 1)
        column = F.when(column != "", column)
    return column.cast(kind).alias(name)
