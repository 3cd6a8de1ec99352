"""Types and values as PostgreSQL's clients know them: OIDs, and values as texts and as binary.

Arrays of plain values are arrays; structs, maps and arrays of them are json. Whole numbers above 64 bits are numeric.
"""

import datetime
import json
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from upriver.doors.exact_numbers import alike_decimals, checked_decimal, value_of_text
from upriver.doors.postgres.messages import FieldShown, WireError
from upriver.engine.row_text import readable
from upriver.plan.types import is_nested

_DAY_ZERO = datetime.date(2000, 1, 1)
_EPOCH_DAYS = 10_957
"""Days from 1970 to 2000, from which PostgreSQL counts."""
_EPOCH_MICROS = _EPOCH_DAYS * 86_400_000_000


@dataclass(frozen=True, slots=True)
class PostgresType:
    """size: bytes of a value, -1 if they vary. array: the OID of arrays of it. duck: DuckDB's name."""

    name: str
    oid: int
    size: int
    array: int
    duck: str
    category: str = "S"
    shown: str = ""
    """As format_type gives it."""


BOOL = PostgresType("bool", 16, 1, 1000, "BOOLEAN", "B", "boolean")
BYTEA = PostgresType("bytea", 17, -1, 1001, "BLOB", "U", "bytea")
INT8 = PostgresType("int8", 20, 8, 1016, "BIGINT", "N", "bigint")
INT2 = PostgresType("int2", 21, 2, 1005, "SMALLINT", "N", "smallint")
INT4 = PostgresType("int4", 23, 4, 1007, "INTEGER", "N", "integer")
TEXT = PostgresType("text", 25, -1, 1009, "VARCHAR", "S", "text")
JSON = PostgresType("json", 114, -1, 199, "VARCHAR", "U", "json")
FLOAT4 = PostgresType("float4", 700, 4, 1021, "FLOAT", "N", "real")
FLOAT8 = PostgresType("float8", 701, 8, 1022, "DOUBLE", "N", "double precision")
DATE = PostgresType("date", 1082, 4, 1182, "DATE", "D", "date")
TIME = PostgresType("time", 1083, 8, 1183, "TIME", "D", "time without time zone")
TIMESTAMP = PostgresType("timestamp", 1114, 8, 1115, "TIMESTAMP", "D", "timestamp without time zone")
TIMESTAMPTZ = PostgresType("timestamptz", 1184, 8, 1185, "TIMESTAMPTZ", "D", "timestamp with time zone")
INTERVAL = PostgresType("interval", 1186, 16, 1187, "INTERVAL", "T", "interval")
NUMERIC = PostgresType("numeric", 1700, -1, 1231, "DECIMAL", "N", "numeric")
OID = PostgresType("oid", 26, 4, 1028, "UINTEGER", "N", "oid")
_ALSO = (
    PostgresType("char", 18, 1, 1002, "VARCHAR", "Z", '"char"'),
    PostgresType("name", 19, 64, 1003, "VARCHAR", "S", "name"),
    OID,
    PostgresType("unknown", 705, -2, 0, "VARCHAR", "X", "unknown"),
    PostgresType("bpchar", 1042, -1, 1014, "VARCHAR", "S", "character"),
    PostgresType("varchar", 1043, -1, 1015, "VARCHAR", "S", "character varying"),
    PostgresType("regclass", 2205, 4, 2210, "VARCHAR", "N", "regclass"),
    PostgresType("uuid", 2950, 16, 2951, "UUID", "U", "uuid"),
    PostgresType("jsonb", 3802, -1, 3807, "VARCHAR", "U", "jsonb"),
)
TYPES = (
    *(BOOL, BYTEA, INT8, INT2, INT4, TEXT, JSON, FLOAT4, FLOAT8, DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL, NUMERIC),
    *_ALSO,
)
INT2_VECTOR, OID_VECTOR = pa.list_(pa.uint16()), pa.list_(pa.uint64())
"""Of columns of the catalog: PostgreSQL's int2vector and oidvector. No view has unsigned numbers."""
_VECTORS: tuple[tuple[pa.DataType, int, PostgresType], ...] = ((INT2_VECTOR, 22, INT2), (OID_VECTOR, 30, OID))
"""Their OIDs, and the types of their elements."""
BY_OID = {type.oid: type for type in TYPES}
ELEMENTS = {type.array: type for type in TYPES if type.array}
"""The type of an array's elements, by the array's OID."""

_OF_ARROW: tuple[tuple[Callable[[pa.DataType], bool], PostgresType], ...] = (
    (kinds.is_boolean, BOOL),
    (lambda type: type in (pa.int8(), pa.int16(), pa.uint8()), INT2),
    (lambda type: type in (pa.int32(), pa.uint16()), INT4),
    (kinds.is_uint32, OID),
    (kinds.is_int64, INT8),
    (kinds.is_float32, FLOAT4),
    (kinds.is_floating, FLOAT8),
    (lambda type: bool(kinds.is_decimal(type) or kinds.is_uint64(type)), NUMERIC),
    (lambda type: bool(kinds.is_binary(type) or kinds.is_large_binary(type) or kinds.is_binary_view(type)), BYTEA),
    (kinds.is_date, DATE),
    (lambda type: bool(kinds.is_timestamp(type) and type.tz is not None), TIMESTAMPTZ),
    (kinds.is_timestamp, TIMESTAMP),
    (kinds.is_time, TIME),
    (lambda type: bool(kinds.is_duration(type) or kinds.is_interval(type)), INTERVAL),
    (is_nested, JSON),
)


def type_of(type: pa.DataType) -> PostgresType:
    """The type of a column that is no array of plain values; text for a type that PostgreSQL does not have."""
    return next((known for is_of, known in _OF_ARROW if is_of(type)), TEXT)


def is_array(type: pa.DataType) -> bool:
    """Whether a column is an array for PostgreSQL."""
    is_list = kinds.is_list(type) or kinds.is_large_list(type)
    return bool(is_list and not kinds.is_map(type) and not is_nested(type.value_type))


def field_of(field: pa.Field) -> FieldShown:
    """A column as a row description shows it."""
    for vector, oid, _ in _VECTORS:
        if field.type == vector:
            return FieldShown(field.name, oid, -1)
    if is_array(field.type):
        return FieldShown(field.name, type_of(field.type.value_type).array, -1)
    known = type_of(field.type)
    digits = -1
    if kinds.is_decimal(field.type):
        digits = ((field.type.precision << 16) | max(field.type.scale, 0)) + 4
    return FieldShown(field.name, known.oid, known.size, digits)


# Values to the caller


def encoded(column: pa.ChunkedArray, format: int) -> list[bytes | None]:
    """The values of a column, as texts (0) or in binary (1). Raises WireError for a format that there is not."""
    if format not in (0, 1):
        raise WireError("22023", f"format {format} of a column: there are 0 for text and 1 for binary")
    type = column.type
    for vector, _, element in _VECTORS:
        if type == vector:
            return _each(column, partial(_binary_array, element) if format else _vector_text)
    if is_array(type):
        element = type_of(type.value_type)
        if format:
            return _each(column, lambda values: _binary_array(element, values))
        return _each(column, lambda values: _array_text(element, values).encode())
    known = type_of(type)
    if kinds.is_timestamp(type) or kinds.is_date(type):
        return _times(column, known, format)
    if format == 0 and known in (INT2, INT4, INT8, TEXT) and not kinds.is_dictionary(type):
        return [None if value is None else value.encode() for value in readable(column.cast(pa.string()))]
    return _each(column, (_BINARY.get(known.name, _text_of) if format else _TEXTS.get(known.name, _text_of)))


def _each(column: pa.ChunkedArray, encode: Callable[[Any], bytes]) -> list[bytes | None]:
    return [None if value is None else encode(value) for value in readable(column)]


def _times(column: pa.ChunkedArray, known: PostgresType, format: int) -> list[bytes | None]:
    """Times before the year 1 and after 9999 have no Python form; in binary they are numbers anyway."""
    if kinds.is_date(column.type):
        days = column.cast(pa.date32()).cast(pa.int32()).to_pylist()
        if format:
            return [None if day is None else struct.pack("!i", day - _EPOCH_DAYS) for day in days]
    else:
        column = column.cast(pa.timestamp("us", column.type.tz))
        if format:
            micros = column.cast(pa.int64()).to_pylist()
            return [None if each is None else struct.pack("!q", each - _EPOCH_MICROS) for each in micros]
    return [None if value is None else str(value).encode() for value in readable(column)]


def _text_of(value: Any) -> bytes:
    return str(value).encode("utf-8", "surrogatepass")


def _float_text(value: Any) -> bytes:
    text = repr(value).removesuffix(".0")
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text, text).encode()


def _bytea_text(value: Any) -> bytes:
    return b"\\x" + bytes(value).hex().encode()


def _json_text(value: Any) -> bytes:
    return json.dumps(_jsonable(value), default=str, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _jsonable(value: Any) -> Any:
    """Maps, which Arrow gives as lists of pairs, stay so: their keys may be anything. Bytes are hexadecimal."""
    if isinstance(value, dict):
        return {name: _jsonable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(part) for part in value]
    return f"\\x{value.hex()}" if isinstance(value, bytes) else value


def _interval_text(value: Any) -> bytes:
    months, days, micros = _interval_parts(value)
    sign, rest = ("-" if micros < 0 else ""), abs(micros)
    seconds, fraction = divmod(rest, 1_000_000)
    clock = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    digits = f".{fraction:06}".rstrip("0") if fraction else ""
    return " ".join(
        [*([f"{months} mons"] if months else []), *([f"{days} days"] if days else []), clock + digits]
    ).encode()


def _interval_parts(value: Any) -> tuple[int, int, int]:
    """Months, days, microseconds."""
    if isinstance(value, datetime.timedelta):
        return 0, 0, value // datetime.timedelta(microseconds=1)
    months, days, nanos = value
    return int(months), int(days), int(nanos) // 1000


def _interval_binary(value: Any) -> bytes:
    months, days, micros = _interval_parts(value)
    return struct.pack("!qii", micros, days, months)


def _time_binary(value: Any) -> bytes:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return struct.pack("!q", seconds * 1_000_000 + value.microsecond)


def _numeric_binary(value: Any) -> bytes:
    """Digits of base 10,000: their count, the weight of the first, the sign, the scale, the digits."""
    number = Decimal(value)
    if not number.is_finite():
        return struct.pack("!hhHh", 0, 0, 0xC000, 0)
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    unscaled = int("".join(map(str, digits)) or "0") * 10 ** max(0, exponent)
    whole, fraction = divmod(unscaled, 10**scale)
    padded = str(fraction).zfill(scale) if scale else ""
    padded += "0" * (-len(padded) % 4)
    groups = [int(padded[place : place + 4]) for place in range(0, len(padded), 4)]
    weight = -1
    while whole:
        whole, group = divmod(whole, 10_000)
        groups.insert(0, group)
        weight += 1
    while groups and not groups[0]:
        groups.pop(0)
        weight -= 1
    while groups and not groups[-1]:
        groups.pop()
    return struct.pack(
        f"!hhHh{len(groups)}h", len(groups), weight if groups else 0, 0x4000 if sign else 0, scale, *groups
    )


_TEXTS: dict[str, Callable[[Any], bytes]] = {
    "bool": lambda value: b"t" if value else b"f",
    "bytea": _bytea_text,
    "float4": _float_text,
    "float8": _float_text,
    "numeric": lambda value: f"{value:f}".encode() if isinstance(value, Decimal) else str(value).encode(),
    "interval": _interval_text,
    "json": _json_text,
}
_BINARY: dict[str, Callable[[Any], bytes]] = {
    "bool": lambda value: b"\1" if value else b"\0",
    "bytea": bytes,
    "oid": struct.Struct("!I").pack,
    "int2": struct.Struct("!h").pack,
    "int4": struct.Struct("!i").pack,
    "int8": struct.Struct("!q").pack,
    "float4": struct.Struct("!f").pack,
    "float8": struct.Struct("!d").pack,
    "numeric": _numeric_binary,
    "interval": _interval_binary,
    "time": _time_binary,
    "json": _json_text,
    "date": lambda value: struct.pack("!i", (value - _DAY_ZERO).days),
    "timestamp": lambda value: struct.pack("!q", _micros(value)),
    "timestamptz": lambda value: struct.pack("!q", _micros(value)),
}


def _micros(value: datetime.datetime) -> int:
    """Since 2000."""
    return (value - datetime.datetime(2000, 1, 1, tzinfo=value.tzinfo and datetime.UTC)) // datetime.timedelta(
        microseconds=1
    )


def _array_text(element: PostgresType, values: Sequence[Any]) -> str:
    encode = _TEXTS.get(element.name, _text_of)
    texts = ("NULL" if value is None else _quoted(encode(value).decode("utf-8", "replace")) for value in values)
    return "{" + ",".join(texts) + "}"


def _vector_text(values: Sequence[Any]) -> bytes:
    return " ".join(map(str, values)).encode()


def _quoted(text: str) -> str:
    is_plain = text and text.upper() != "NULL" and not any(letter in '{}",\\' or letter.isspace() for letter in text)
    return text if is_plain else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _binary_array(element: PostgresType, values: Sequence[Any]) -> bytes:
    encode = _BINARY.get(element.name, _text_of)
    has_null = any(value is None for value in values)
    head = struct.pack("!iiI", 1 if values else 0, has_null, element.oid)
    parts = [b"\xff\xff\xff\xff" if value is None else _sized(encode(value)) for value in values]
    return head + (struct.pack("!ii", len(values), 1) if values else b"") + b"".join(parts)


def _sized(value: bytes) -> bytes:
    return struct.pack("!i", len(value)) + value


# Values from the caller


def decoded(value: bytes | None, format: int, oid: int) -> Any:
    """A parameter as DuckDB takes it: in the form of its type, or a text that a cast reads. Raises WireError."""
    if value is None:
        return None
    try:
        if format == 1:
            return _from_binary(value, oid)
        text = value.decode()
        if oid in ELEMENTS:
            return _alike([_from_text(part, ELEMENTS[oid].oid) for part in elements_of_text(text)])
        return _from_text(text, oid)
    except (ValueError, struct.error, OverflowError) as error:
        raise WireError("22P03", f"a parameter is no value of its type (oid {oid}): {error}") from error


def _from_text(text: str | None, oid: int) -> Any:
    if text is None or oid not in BY_OID:
        return text
    if oid == BYTEA.oid:
        return bytes.fromhex(text[2:]) if text.startswith("\\x") else text.encode()
    return value_of_text(BY_OID[oid].duck, text)


def _alike(values: list[Any]) -> list[Any]:
    """The elements of an array; decimals with as many places each."""
    return alike_decimals(values) if any(isinstance(value, Decimal) for value in values) else values


def _from_binary(value: bytes, oid: int) -> Any:
    if oid in ELEMENTS:
        return _from_binary_array(value)
    known = BY_OID.get(oid)
    if known is None:
        raise ValueError("this type is taken as a text, not in binary")
    return _FROM_BINARY.get(known.name, bytes.decode)(value)


def _from_binary_array(value: bytes) -> list[Any]:
    dimensions, _, element = struct.unpack_from("!iiI", value)
    if dimensions == 0:
        return []
    if dimensions != 1:
        raise ValueError("arrays have one dimension here")
    (count,) = struct.unpack_from("!i", value, 12)
    found: list[Any] = []
    place = 20
    for _ in range(count):
        (length,) = struct.unpack_from("!i", value, place)
        place += 4
        if length == -1:
            found.append(None)
            continue
        if length < 0 or place + length > len(value):
            raise ValueError("an array is shorter than it says")
        found.append(_from_binary(value[place : place + length], element))
        place += length
    return _alike(found)


def elements_of_text(text: str) -> list[str | None]:
    """Of ``{a,"b c",NULL}``: the elements as texts. Raises ValueError."""
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError("an array is written {a,b}")
    found: list[str | None] = []
    letters, part, is_quoted, is_in = iter(text[1:-1]), "", False, False
    for letter in letters:
        if letter == "\\":
            part += next(letters, "")
        elif letter == '"':
            is_quoted, is_in = True, not is_in
        elif letter == "," and not is_in:
            found.append(part if is_quoted or part.upper() != "NULL" else None)
            part, is_quoted = "", False
        elif letter in "{}" and not is_in:
            raise ValueError("arrays have one dimension here")
        else:
            part += letter
    if text != "{}":
        found.append(part if is_quoted or part.upper() != "NULL" else None)
    return found


def _numeric(value: bytes) -> Decimal:
    count, weight, sign, scale = struct.unpack_from("!HhHH", value)
    if sign not in (0, 0x4000):
        raise ValueError("a numeric that is not finite: a DECIMAL of a view is")
    groups = struct.unpack_from(f"!{count}H", value, 8)
    if len(value) != 8 + 2 * count or any(group > 9999 for group in groups):
        raise ValueError("a numeric is malformed")
    digits = "".join(f"{group:04}" for group in groups) or "0"
    exponent = 4 * (weight + 1 - count) if count else 0
    while -exponent > scale and digits.endswith("0"):  # a group has four places, the number perhaps fewer
        digits, exponent = digits[:-1] or "0", exponent + 1
    return checked_decimal(Decimal((sign == 0x4000, tuple(map(int, digits.lstrip("0") or "0")), exponent)))


def _interval(value: bytes) -> str:
    """As a text that DuckDB casts."""
    micros, days, months = struct.unpack("!qii", value)
    return f"{months} months {days} days {micros} microseconds"


_FROM_BINARY: dict[str, Callable[[bytes], Any]] = {
    "uuid": lambda value: str(uuid.UUID(bytes=value)),
    "jsonb": lambda value: value.removeprefix(b"\1").decode(),  # a number of its form, and the text
    "bool": lambda value: value != b"\0",
    "bytea": bytes,
    "int2": lambda value: struct.unpack("!h", value)[0],
    "int4": lambda value: struct.unpack("!i", value)[0],
    "int8": lambda value: struct.unpack("!q", value)[0],
    "oid": lambda value: struct.unpack("!I", value)[0],
    "float4": lambda value: struct.unpack("!f", value)[0],
    "float8": lambda value: struct.unpack("!d", value)[0],
    "numeric": _numeric,
    "interval": _interval,
    "time": lambda value: (
        datetime.datetime.min + datetime.timedelta(microseconds=struct.unpack("!q", value)[0])
    ).time(),
    "date": lambda value: _DAY_ZERO + datetime.timedelta(days=struct.unpack("!i", value)[0]),
    "timestamp": lambda value: (
        datetime.datetime(2000, 1, 1) + datetime.timedelta(microseconds=struct.unpack("!q", value)[0])
    ),
    "timestamptz": lambda value: (
        datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
        + datetime.timedelta(microseconds=struct.unpack("!q", value)[0])
    ),
}
