"""From the changes of another database to the rows of an upsert table.

A change becomes a version of its row: the row's columns, a position that orders the versions of one key, and the
operation. ``deletes`` names the versions that delete. A change of a row's key deletes the old key and adds the new one.

Positions come from the database, not from Kafka: a topic that gets partitions sends a key elsewhere, where offsets
begin at 0. Two changes of one key have the positions of their commits, since the database locks the row in between.
After a failover, the binlog of another server of MySQL has other positions: there the times of commits come first.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from hashlib import md5
from operator import and_, or_
from typing import NotRequired, TypedDict
from uuid import UUID

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from upriver.arguments import class_name, flag, names, some_text, text
from upriver.errors import DeclarationError
from upriver.logs import shorten_errors
from upriver.spark.runs import quoted

Key = str | Sequence[str]
Schema = str | StructType


class UpsertTable(TypedDict):
    """What ``app.table`` takes: ``app.table("orders", **debezium(...))``."""

    rows: DataFrame
    key: NotRequired[list[str]]
    primary_key: list[str]
    order_by: list[str]
    deletes: str


_POSITIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "postgresql": {"_lsn": ("lsn", "BIGINT")},
    "mysql": {
        "_commit": ("gtid", "BIGINT"),
        "_file": ("file", "BIGINT"),
        "_pos": ("pos", "BIGINT"),
        "_row": ("row", "INT"),
    },
    "sqlserver": {
        "_commit_lsn": ("commit_lsn", "STRING"),
        "_change_lsn": ("change_lsn", "STRING"),
        "_event_serial_no": ("event_serial_no", "BIGINT"),
    },
    "oracle": {
        "_scn": ("scn", "DECIMAL(38,0)"),
        "_rs_id": ("rs_id", "STRING"),
        "_ssn": ("ssn", "BIGINT"),
        "_lcr_position": ("lcr_position", "STRING"),
    },
}
"""By database: the columns of a change's position, each with its field of ``source`` and its type."""
_TIMES = ("ts_us", "ts_ms")
"""Fields of ``source``: when the change was committed."""
_MARIADB_GTID = r"^[0-9]+-[0-9]+-([0-9]+)$"
"""Domain, server, and a number that grows over all servers."""
_UNAVAILABLE = "__debezium_unavailable_value"
_SAME = {"mariadb": "mysql", "postgres": "postgresql"}
_OPERATION, _ORDER, _STEP = "_op", "_transaction_order", "_step"
_UNITS = ("millis", "micros", "nanos")
_UNITS_OF_KINDS = {
    "org.apache.kafka.connect.data.Timestamp": "millis",
    "io.debezium.time.Timestamp": "millis",
    "io.debezium.time.MicroTimestamp": "micros",
    "io.debezium.time.NanoTimestamp": "nanos",
}
"""By the name that the schema in a message gives a column's type: the unit of its numbers."""
_DECIMALS = ("string", "precise")
_DECIMAL_BYTES_MAX = 16
"""Bytes of an unscaled number with 38 digits."""
_BAD = ("fail", "skip")
_NUMBER = r"^-?[0-9]+$"
_DECIMAL = r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*$"
_BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_SHOWN_CHARS_MAX = 200
"""Characters of a bad envelope that the error shows."""


@shorten_errors
def debezium(
    df: DataFrame,
    *,
    schema: Schema,
    key: Key,
    database: str = "postgresql",
    value: str = "value",
    time_unit: str | Mapping[str, str] = "micros",
    decimals: str = "string",
    on_bad_envelope: str = "fail",
    whole_rows: bool = False,
    unavailable: str = _UNAVAILABLE,
) -> UpsertTable:
    """The arguments of ``app.table`` for a topic of Debezium: ``app.table("orders", **debezium(raw, ...))``.

    df: a DataFrame whose column ``value`` is the message's value, JSON as text or bytes, with or without the wrapper
    ``{"schema": ..., "payload": ...}``; such as Spark's Kafka reader gives. schema: the row's columns, as DDL or a
    StructType. key: its primary key. database: ``postgresql``, ``mysql``, ``mariadb``, ``sqlserver`` or ``oracle``,
    whose log positions order the changes.

    Numbers are taken for DATE (days), TIMESTAMP and TIMESTAMP_NTZ, and texts too (``ZonedTimestamp``, ISO dates).
    time_unit: of the numbers of TIMESTAMP and TIMESTAMP_NTZ, ``millis``, ``micros`` or ``nanos``; or a dict of units by
    column, where the others are in ``micros``. decimals: how a DECIMAL comes, by the connector's
    ``decimal.handling.mode``: ``string`` (also numbers), or ``precise`` (base64 of bytes, with the declared scale). A
    message with the wrapper tells the unit and the scale of each column, and they win.

    The rows have the columns of ``schema``, then ``_op`` (``c``, ``u``, ``d`` or ``r``), the position (``_lsn`` for
    PostgreSQL), and ``_transaction_order`` if the connector sends transaction metadata, else null. An update that
    changes the key deletes the old key. Tombstones are left out.

    on_bad_envelope: what happens to a message that is no such envelope, has no key, lacks a value that the database
    has not logged, or truncates the table. With ``fail``, the table's source fails with an error that shows it; with
    ``skip``, the message is left out. unavailable: the connector's ``unavailable.value.placeholder``.

    whole_rows: updates and deletes come with the whole row before them (PostgreSQL: ``REPLICA IDENTITY FULL``). A
    change then deletes the row that it shows. Tables need this whose keys the database checks only behind a statement:
    ``UPDATE t SET id = id + 1`` gives a key to a row before it takes it from another. All columns must be of types that
    a key may have. Raises DeclarationError.
    """
    about = "debezium"
    row, unique = _row_of(about, schema), list(names(f"{about}: key", key))
    positions = _positions(about, database)
    added = (_OPERATION, *positions, _ORDER, _STEP)
    units = _units(about, row, time_unit)
    _check_choice(f"{about}: decimals", decimals, _DECIMALS)
    _check_choice(f"{about}: on_bad_envelope", on_bad_envelope, _BAD)
    _check_columns(about, df, [text(f"{about}: value", value)])
    _check_names(about, row, unique, added)
    told_apart_by = row.names if flag(f"{about}: whole_rows", whole_rows) else unique
    faults = _faults(row, unique, some_text(f"{about}: unavailable", unavailable), whole_rows=whole_rows)
    if _known(database) == "oracle":
        faults.append((~_is_ordered(positions), _UNORDERED))
    raw = df.where(F.col(value).isNotNull()).select(F.col(value).cast("string").alias("text"))
    changes = _parsed(raw, row, dict.fromkeys([*(field for field, _ in positions.values()), *_TIMES]))
    versions = _versions(_checked(changes, faults, skips=on_bad_envelope == "skip"), unique, told_apart_by)
    columns = [_decoded(field, units.get(field.name, "micros"), decimals).alias(field.name) for field in row]
    rows = versions.select(*columns, *_order(positions))
    order_by, gone = [*positions, _ORDER, _STEP], f"{_OPERATION} = 'd'"
    table = UpsertTable(rows=rows, primary_key=told_apart_by, order_by=order_by, deletes=gone)
    return UpsertTable(**table, key=unique) if whole_rows else table


@shorten_errors
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


def _units(about: str, row: StructType, given: object) -> Mapping[str, str]:
    """The unit of each column of a time."""
    if not isinstance(given, Mapping):
        _check_choice(f"{about}: time_unit", given, _UNITS)
        return dict.fromkeys(row.names, str(given))
    times = [field.name for field in row if isinstance(field.dataType, TimestampType | TimestampNTZType)]
    for column, unit in given.items():
        if column not in times:
            raise DeclarationError(
                f"{about}: time_unit names {column!r}; columns of times are: {', '.join(times) or 'none'}"
            )
        _check_choice(f"{about}: time_unit of {column!r}", unit, _UNITS)
    return given


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


def _parsed(raw: DataFrame, row: StructType, fields: Iterable[str]) -> DataFrame:
    """The column ``change``: the envelope; null if the text is none. fields: of ``source``, as texts.

    The text is read as the one element of an array, with a field behind it. By itself, Spark would read the first JSON
    value in it, and nothing behind that.
    """
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
    message = StructType([*envelope, StructField("payload", StructType(envelope)), StructField("schema", _WRAPPER)])
    whole = StructType(
        [
            StructField("messages", ArrayType(message)),
            StructField("is_read", BooleanType()),
            StructField("_unread", StringType()),
        ]
    )
    array = F.concat(F.lit('{"messages":['), "text", F.lit('],"is_read":true}'))
    read = F.from_json(array, whole, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_unread"})
    is_one = F.col("read._unread").isNull() & F.col("read.is_read") & (F.size("read.messages") == 1)
    raw = raw.select("text", read.alias("read")).select(
        "text", is_one.alias("is_one"), F.expr("read.messages[0] parsed")
    )
    inner = F.struct(*(F.col(f"parsed.{field.name}") for field in envelope))
    change = F.coalesce("parsed.payload", inner).withField("kinds", F.expr(_KINDS))
    return raw.select("text", F.when(F.col("is_one"), change).alias("change"))


_PARAMETERS = MapType(StringType(), StringType())
_COLUMN = StructType().add("field", StringType()).add("name", StringType()).add("parameters", _PARAMETERS)
_ROWS = StructType().add("field", StringType()).add("fields", ArrayType(_COLUMN))
_WRAPPER = StructType().add("fields", ArrayType(_ROWS))
"""What is read of the schema in a message."""
_KINDS = """map_from_entries(transform(
    get(filter(parsed.schema.fields, part -> part.field = 'after'), 0).fields,
    part -> struct(part.field, struct(part.name AS name, part.parameters AS parameters))
))"""
"""By column, what the schema in a message says of its type; null without one."""


def _on_the_wire(kind: DataType) -> DataType:
    """Texts for types that JSON has none for: Debezium has several forms of each."""
    encoded = isinstance(kind, DateType | TimestampType | TimestampNTZType | DecimalType)
    return StringType() if encoded else kind


Fault = tuple[Column, str]
"""Whether a change has it, and what is said of it."""
_UNORDERED = (
    "debezium: a change of Oracle has no rs_id, no lcr_position and no transaction.total_order, so changes of one SCN "
    "have no order. Have the connector send transactions (provide.transaction.metadata=true)"
)


def _is_ordered(positions: Mapping[str, tuple[str, str]]) -> Column:
    """Whether a change has more of a position than its SCN. A snapshot needs no more."""
    finer = [F.col(f"change.source.{field}") for field, _ in positions.values() if field != "scn"]
    return (F.col("op") == "r") | F.coalesce(*finer, "change.transaction.total_order").isNotNull()


def _faults(row: StructType, key: Sequence[str], placeholder: str, *, whole_rows: bool) -> list[Fault]:
    """What keeps a change from being taken; the first one counts."""
    operation = F.col("op")
    no_key = [F.col(f"row.{quoted(column)}").isNull() for column in key]
    faults = [
        (
            operation == "t",
            "debezium: the source table was truncated, and an upsert table cannot delete all its rows at once. Have "
            "the connector skip truncates (skipped.operations=t), or give on_bad_envelope='skip'",
        ),
        (
            ~F.coalesce(operation.isin("c", "u", "d", "r"), F.lit(False)),
            "debezium: a message is no envelope of the declared schema",
        ),
        (reduce(or_, no_key), "debezium: a change has no value of the key"),
    ]
    for field in row:
        lacks = _is_placeholder(F.col(f"row.{quoted(field.name)}"), _on_the_wire(field.dataType), placeholder)
        if lacks is not None:
            what = (
                f"debezium: a change lacks the value of column {field.name!r}, which the database has not logged. For "
                f"PostgreSQL, ALTER TABLE ... REPLICA IDENTITY FULL; for Oracle, lob.enabled=true in the connector"
            )
            faults.append(((operation != "d") & lacks, what))
    if whole_rows:
        no_before = reduce(or_, [F.col(f"change.before.{quoted(column)}").isNull() for column in key])
        what = "debezium: an update has no row before it, as whole_rows=True needs it (REPLICA IDENTITY FULL)"
        faults.append(((operation == "u") & no_before, what))
    return faults


def _is_placeholder(column: Column, kind: DataType, text: str) -> Column | None:
    """Whether the connector has put its placeholder for the value, in the form that it has for the type; ``None``: it
    has none."""
    data = text.encode()
    match kind:
        case StringType():  # bytes may be declared as texts; hstore, as JSON; a decimal may be an object with its scale
            encoded = base64.b64encode(data).decode()
            uuid = UUID(bytes=md5(data, usedforsecurity=False).digest(), version=3)
            hstore = json.dumps({text: text}, separators=(",", ":"))
            forms = [text, encoded, data.hex(), data.hex().upper(), hstore, str(uuid)]
            is_decimal = column.startswith("{") & (F.get_json_object(column, "$.value") == encoded)
            return column.isin(forms) | F.coalesce(is_decimal, F.lit(False))
        case BinaryType():
            return column == F.lit(data)
        case MapType():
            return F.map_contains_key(column, text) if isinstance(kind.keyType, StringType) else None
        case ArrayType() if isinstance(kind.elementType, IntegralType):
            return column.cast("array<bigint>") == F.array(*map(F.lit, data)).cast("array<bigint>")
        case ArrayType():
            element = kind.elementType
            if _is_placeholder(F.lit(None), element, text) is None:
                return None
            return F.exists(column, lambda each: _or_false(_is_placeholder(each, element, text)))
        case StructType():
            parts = [_is_placeholder(column[field.name], field.dataType, text) for field in kind]
            known = [_or_false(part) for part in parts if part is not None]
            return reduce(or_, known) if known else None
    return None


def _or_false(condition: Column | None) -> Column:
    return F.lit(False) if condition is None else F.coalesce(condition, F.lit(False))


def _checked(changes: DataFrame, faults: Sequence[Fault], *, skips: bool) -> DataFrame:
    """The changes that can be taken, with the columns ``op`` and ``row``."""
    row = F.when(F.col("change.op") == "d", F.col("change.before")).otherwise(F.col("change.after"))
    changes = changes.select("text", "change", F.col("change.op").alias("op"), row.alias("row"))
    fault = F.coalesce(*(F.when(has_it, F.lit(what)) for has_it, what in faults))
    if skips:
        return changes.where(fault.isNull())
    message = F.concat(fault, F.lit(". The message: "), F.substring("text", 1, _SHOWN_CHARS_MAX))
    return changes.withColumn(
        "op", F.when(fault.isNull(), F.col("op")).otherwise(F.raise_error(message).cast("string"))
    )


def _versions(changes: DataFrame, key: Sequence[str], told_apart_by: Sequence[str]) -> DataFrame:
    """A version for each change; one more, before it, that deletes the old row if an update has changed one of the
    columns by which rows are told apart. key: of the source table."""
    has_before = reduce(and_, [F.col(f"change.before.{quoted(column)}").isNotNull() for column in key])
    moved = has_before & reduce(
        or_,
        [
            ~F.col(f"change.before.{quoted(column)}").eqNullSafe(F.col(f"row.{quoted(column)}"))
            for column in told_apart_by
        ],
    )
    new = F.struct(F.col("op"), F.col("row"), F.when(F.col("op") == "d", 0).otherwise(1).alias("step"))
    old = F.struct(F.lit("d").alias("op"), F.col("change.before").alias("row"), F.lit(0).alias("step"))
    both = F.when((F.col("op") == "u") & moved, F.array(old, new)).otherwise(F.array(new))
    return changes.select("change", F.explode(both).alias("version")).select("change", "version.*")


def _decoded(field: StructField, unit: str, decimals: str) -> Column:
    """A value on the wire in its declared type. unit: of its numbers, if the message has no schema that says it."""
    column, kind = F.col(f"row.{quoted(field.name)}"), field.dataType
    told = F.col("change.kinds").getItem(field.name)
    number = F.when(column.rlike(_NUMBER), column.cast("bigint"))
    match kind:
        case DateType():
            return F.coalesce(F.date_from_unix_date(number.cast("int")), _unless_number(column).cast(kind))
        case TimestampType() | TimestampNTZType():
            micros = _micros(number, unit)
            for name, other in _UNITS_OF_KINDS.items():
                micros = F.when(told["name"] == name, _micros(number, other)).otherwise(micros)
            return F.coalesce(_instant(micros, kind), _unless_number(column).cast(kind))
        case DecimalType():
            return _decimal(column, kind, told["parameters"]["scale"], decimals)
    return column


def _unless_number(column: Column) -> Column:
    return F.when(~column.rlike(_NUMBER), column)


def _micros(number: Column, unit: str) -> Column:
    match unit:
        case "millis":
            return number * 1000
        case "nanos":  # in whole numbers: a DOUBLE is too short
            return F.call_function("div", number - F.pmod(number, F.lit(1000)), F.lit(1000))
    return number


def _instant(micros: Column, kind: DataType) -> Column:
    """A TIMESTAMP_NTZ is counted from 1970 in no zone."""
    if isinstance(kind, TimestampType):
        return F.timestamp_micros(micros)
    return F.to_timestamp_ntz(F.lit("1970-01-01 00:00:00")) + F.make_dt_interval(
        F.lit(0), F.lit(0), F.lit(0), (micros.cast("decimal(20,0)") / F.lit(1_000_000)).cast("decimal(18,6)")
    )


def _decimal(column: Column, kind: DecimalType, told_scale: Column, decimals: str) -> Column:
    """A DECIMAL on the wire: a text or a number, base64 of its unscaled number, or an object with that and the scale,
    which columns have that take any scale."""
    object_scale, object_value = (F.get_json_object(column, f"$.{part}") for part in ("scale", "value"))
    of_object = _unscaled(object_value, object_scale, kind)
    if decimals == "precise":
        rest = _unscaled(column, F.coalesce(told_scale, F.lit(str(kind.scale))), kind)
    else:
        message = F.concat(
            F.lit("debezium: a DECIMAL is no number; if the connector has decimal.handling.mode=precise, give "),
            F.lit("decimals='precise'. The value: "),
            F.substring(column, 1, _SHOWN_CHARS_MAX),
        )
        is_number = column.rlike(_DECIMAL) | column.isNull()
        rest = F.when(is_number, column.cast(kind)).otherwise(F.raise_error(message).cast(kind))
    return F.when(column.startswith("{"), of_object).otherwise(rest)


def _unscaled(encoded: Column, scale: Column, kind: DecimalType) -> Column:
    """From base64 of a whole number as big-endian bytes in two's complement, and from its scale as a text."""
    digits = F.hex(F.unbase64(encoded))
    is_negative = F.substring(digits, 1, 1).isin(*"89ABCDEF")
    inverted = F.translate(digits, "0123456789ABCDEF", "FEDCBA9876543210")
    magnitude = F.lpad(F.when(is_negative, inverted).otherwise(digits), 2 * _DECIMAL_BYTES_MAX, "0")
    halves = [F.conv(F.substring(magnitude, place, 16), 16, 10).cast("decimal(20,0)") for place in (1, 17)]
    whole = (halves[0] * F.lit(Decimal(2**64))).cast("decimal(38,0)") + halves[1]
    # The sign is written: Spark's minus sign before a DECIMAL rounds it to 34 digits.
    sign, number = F.when(is_negative, "-").otherwise(""), F.when(is_negative, whole + 1).otherwise(whole)
    value = F.concat(sign, number.cast("decimal(38,0)").cast("string"), F.lit("E-"), scale).cast(kind)
    message = F.concat(
        F.lit("debezium: a DECIMAL is no base64 of at most 16 bytes, as decimal.handling.mode=precise has it; if the "),
        F.lit("connector has another mode, give decimals='string'. The value: "),
        F.substring(encoded, 1, _SHOWN_CHARS_MAX),
    )
    is_good = encoded.rlike(_BASE64) & F.length(digits).between(1, 2 * _DECIMAL_BYTES_MAX)
    return F.when(encoded.isNull(), None).when(is_good, value).otherwise(F.raise_error(message).cast(kind))


def _order(positions: Mapping[str, tuple[str, str]]) -> list[Column]:
    """The columns that are added to a row."""
    return [
        F.col("op").alias(_OPERATION),
        *(_position(name, field, kind) for name, (field, kind) in positions.items()),
        F.col("change.transaction.total_order").cast("bigint").alias(_ORDER),
        F.col("step").alias(_STEP),
    ]


def _position(name: str, field: str, kind: str) -> Column:
    """A part of the position; null where a snapshot has none, which comes first."""
    column = F.col(f"change.source.{field}")
    if name == "_commit":  # of MySQL with GTIDs, without which no connector goes on at another server
        millis, micros = (F.col(f"change.source.{field}").cast("bigint") for field in ("ts_ms", "ts_us"))
        number = F.regexp_extract(column, _MARIADB_GTID, 1)
        committed = F.when(number != "", number.cast("bigint")).otherwise(F.coalesce(micros, millis * 1000))
        return F.when(column.isNotNull() & (F.col("op") != "r"), committed).alias(name)
    if name == "_rs_id":  # three numbers in hexadecimal
        parts = F.transform(
            F.split(F.trim(F.lower(column)), r"\."), lambda part: F.lpad(F.ltrim(part, F.lit("0x")), 8, "0")
        )
        column = F.array_join(parts, ".")
    if name == "_file":  # mysql-bin.000017: the number, which grows beyond its zeros
        column = F.regexp_extract(column, r"([0-9]+)$", 1)
        column = F.when(column != "", column)
    return column.cast(kind).alias(name)
