"""Spark SQL's types, as Arrow spells them, and the common type of two of them.

A type here is always an Arrow type. ``pa.null()`` is the type of a bare NULL.
"""

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.types as kinds

DECIMAL_DIGITS_MAX = 38
_PLACES_KEPT = 6
"""Places that a result keeps where its digits are too many."""
DIGITS_OF_SUM = 10
"""How many more digits a sum of decimals has than its argument, for Spark."""

_DUCK_NAMES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.duration("us"): "BIGINT",
}
_SPARK_NAMES = _DUCK_NAMES | {
    pa.int32(): "INT",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.null(): "VOID",
    pa.duration("us"): "INTERVAL DAY TO SECOND",
}
EMPTY_MAP = pa.map_(pa.bool_(), pa.null())
"""The type of ``map()``: Arrow has no map whose keys are nothing but NULL."""
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_INTEGER_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}


def duck_name(type: pa.DataType) -> str | None:
    """DuckDB's name of the type, or ``None`` if no expression may use it. Timestamps are their UTC wall clock,
    intervals their microseconds, and the fields of structs are numbered: f0, f1, ... (:func:`field_name`)."""
    if kinds.is_nested(type):
        return _nested_name(type)
    if kinds.is_decimal128(type):
        return f"DECIMAL({type.precision}, {type.scale})"
    if kinds.is_timestamp(type) and type.unit == "us":
        return "TIMESTAMP"
    return _DUCK_NAMES.get(type)


def _nested_name(type: pa.DataType) -> str | None:
    parts = [duck_name(part) for part in parts_of(type)]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    if kinds.is_list(type):
        return f"{known[0]}[]"
    if kinds.is_map(type):
        return f"MAP({known[0]}, {known[1]})"
    if kinds.is_struct(type):
        return f"STRUCT({', '.join(f'{field_name(place)} {name}' for place, name in enumerate(known))})"
    return None


def field_name(place: int) -> str:
    """DuckDB's name of a struct's field: Spark's may differ in case alone, or be the same."""
    return f"f{place}"


def parts_of(type: pa.DataType) -> list[pa.DataType]:
    """The types of an array's element, of a map's key and value, or of a struct's fields; of other types none."""
    if kinds.is_map(type):
        return [type.key_type, type.item_type]
    if kinds.is_nested(type):
        return [type.field(place).type for place in range(type.num_fields)]
    return []


def check_names(fields: Iterable[pa.Field]) -> None:
    """Raise UnicodeDecodeError for a field whose name is no text, also within a nested type: Arrow does not check
    this."""
    for field in fields:
        _ = field.name
        if kinds.is_nested(field.type):
            check_names(field.type.field(place) for place in range(field.type.num_fields))


def with_parts(type: pa.DataType, parts: Sequence[pa.DataType]) -> pa.DataType:
    """The nested type with other parts."""
    if kinds.is_list(type):
        return array_type(parts[0])
    if kinds.is_map(type):
        return map_type(*parts)
    return struct_type([field.name for field in type], parts)


def array_type(element: pa.DataType) -> pa.DataType:
    """As Spark names it in Arrow."""
    return pa.list_(pa.field("element", element))


def map_type(key: pa.DataType, value: pa.DataType) -> pa.DataType:
    return pa.map_(key, value)


def struct_type(names: Sequence[str], types: Sequence[pa.DataType]) -> pa.DataType:
    return pa.struct([pa.field(name, type) for name, type in zip(names, types, strict=True)])


def spark_name(type: pa.DataType) -> str:
    """The name of the type for a user of Spark."""
    if kinds.is_decimal(type):
        return f"DECIMAL({type.precision},{type.scale})"
    if type == EMPTY_MAP:
        return "MAP<VOID, VOID>"
    if kinds.is_timestamp(type):
        return "TIMESTAMP" if type.tz else "TIMESTAMP_NTZ"
    if kinds.is_struct(type):
        return f"STRUCT<{', '.join(f'{field.name}: {spark_name(field.type)}' for field in type)}>"
    for nested, name in ((kinds.is_list, "ARRAY"), (kinds.is_map, "MAP")):
        if nested(type):
            return f"{name}<{', '.join(map(spark_name, parts_of(type)))}>"
    return _SPARK_NAMES.get(type, str(type).upper())


def same_type(left: pa.DataType, right: pa.DataType) -> bool:
    """Equal for Spark: a TIMESTAMP's time zone belongs to the session, not to the type."""
    if is_instant(left) and is_instant(right):
        return bool(left.unit == right.unit)
    if _are_alike(left, right):
        return all(map(same_type, parts_of(left), parts_of(right)))
    return bool(left == right)


def _are_alike(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether both are arrays, both maps, or both structs with the same names of fields."""
    if kinds.is_struct(left) and kinds.is_struct(right):
        return bool([field.name for field in left] == [field.name for field in right])
    return any(nested(left) and nested(right) for nested in (kinds.is_list, kinds.is_map))


def is_array(type: pa.DataType) -> bool:
    return bool(kinds.is_list(type))


def is_map(type: pa.DataType) -> bool:
    return bool(kinds.is_map(type))


def is_struct(type: pa.DataType) -> bool:
    return bool(kinds.is_struct(type))


def is_nested(type: pa.DataType) -> bool:
    return bool(kinds.is_nested(type))


def is_ordered(type: pa.DataType) -> bool:
    """Whether Spark compares its values, and an expression may use them: not maps, and nothing that holds one."""
    return is_null(type) or (duck_name(type) is not None and not has_map(type))


def has_ranges(type: pa.DataType) -> bool:
    """Whether 64-bit integers can stand for its values in Spark's order: numbers, dates and times."""
    return is_numeric(type) or is_date(type) or is_wall_clock(type) or is_instant(type)


def has_map(type: pa.DataType) -> bool:
    """Whether its values are maps, or hold some."""
    return is_map(type) or any(map(has_map, parts_of(type)))


def is_untyped(type: pa.DataType) -> bool:
    """Whether it is of nothing but NULL, or of parts that are."""
    return is_null(type) or any(map(is_untyped, parts_of(type)))


def is_null(type: pa.DataType) -> bool:
    return bool(kinds.is_null(type))


def is_boolean(type: pa.DataType) -> bool:
    return bool(kinds.is_boolean(type))


def is_integer(type: pa.DataType) -> bool:
    return type in _INTEGERS


def is_floating(type: pa.DataType) -> bool:
    return type in (pa.float32(), pa.float64())


def is_decimal(type: pa.DataType) -> bool:
    return bool(kinds.is_decimal128(type))


def is_numeric(type: pa.DataType) -> bool:
    return is_integer(type) or is_floating(type) or is_decimal(type)


def is_string(type: pa.DataType) -> bool:
    return bool(kinds.is_string(type))


def is_date(type: pa.DataType) -> bool:
    return bool(kinds.is_date32(type))


def is_interval(type: pa.DataType) -> bool:
    """An INTERVAL of days to microseconds, whichever of these fields Spark gives it."""
    return bool(type == pa.duration("us"))


def is_wall_clock(type: pa.DataType) -> bool:
    """TIMESTAMP_NTZ."""
    return bool(kinds.is_timestamp(type)) and type.tz is None


def is_instant(type: pa.DataType) -> bool:
    """TIMESTAMP: an instant that Spark shows in the session's time zone."""
    return bool(kinds.is_timestamp(type)) and type.tz is not None


def as_decimal(type: pa.DataType) -> pa.DataType | None:
    """The decimal that holds every value of an integer or decimal type; ``None`` for other types."""
    if is_decimal(type):
        return type
    digits = _INTEGER_DIGITS.get(type)
    return None if digits is None else pa.decimal128(digits, 0)


def adjusted_decimal(precision: int, scale: int) -> pa.DataType:
    """The type that Spark gives a result which may need so many digits. With too many it gives up places, down to six,
    so the digits before the point have room."""
    if precision <= DECIMAL_DIGITS_MAX:
        return pa.decimal128(precision, scale)
    places = max(DECIMAL_DIGITS_MAX - (precision - scale), min(scale, _PLACES_KEPT))
    return pa.decimal128(DECIMAL_DIGITS_MAX, places)


def bounded_decimal(precision: int, scale: int) -> pa.DataType:
    """The type of so many digits, or of as many as there are."""
    return pa.decimal128(min(precision, DECIMAL_DIGITS_MAX), min(scale, DECIMAL_DIGITS_MAX))


def _wider_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """A type with all digits before the point of both, and as many behind it as have room."""
    whole, scale = max(left.precision - left.scale, right.precision - right.scale), max(left.scale, right.scale)
    return pa.decimal128(min(whole + scale, DECIMAL_DIGITS_MAX), min(scale, DECIMAL_DIGITS_MAX - whole))


def _wider_number(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if is_integer(left) and is_integer(right):
        return max(left, right, key=_INTEGERS.index)
    if is_floating(left) or is_floating(right):
        return pa.float64()
    return _wider_decimal(as_decimal(left), as_decimal(right))


def is_wider(new: pa.DataType, old: pa.DataType) -> bool:
    """Whether each value of ``old`` is one of ``new``, by a step that Spark takes when it reads an old file: a longer
    integer, DOUBLE for FLOAT, a DECIMAL with no fewer digits on either side of its point, TIMESTAMP_NTZ for DATE."""
    if is_integer(old) and is_integer(new):
        return _INTEGERS.index(old) < _INTEGERS.index(new)
    if is_decimal(old) and is_decimal(new):
        is_as_long = old.scale <= new.scale and old.precision - old.scale <= new.precision - new.scale
        return bool(old != new and is_as_long)
    return (old, new) in ((pa.float32(), pa.float64()), (pa.date32(), pa.timestamp("us")))


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The common type that Spark uses to compare or choose between both; ``None`` if Upriver supports none.

    Strings meet only strings here: Spark would cast them, and fail on the first that does not parse.
    """
    if same_type(left, right):
        return left
    if is_null(left) or is_null(right):
        return right if is_null(left) else left
    if is_numeric(left) and is_numeric(right):
        return _wider_number(left, right)
    moments = [type for type in (left, right) if is_date(type) or is_wall_clock(type) or is_instant(type)]
    if len(moments) == 2:
        return next((type for type in moments if is_instant(type)), pa.timestamp("us"))
    if is_map(left) and is_map(right) and EMPTY_MAP in (left, right):
        return right if left == EMPTY_MAP else left
    if _are_alike(left, right):
        wider = [common_type(*pair) for pair in zip(parts_of(left), parts_of(right), strict=True)]
        known = [part for part in wider if part is not None]
        return with_parts(left, known) if len(known) == len(wider) else None
    return None


def decimal_sum_type(argument: pa.DataType) -> pa.DataType:
    """The type that Spark gives to a sum of decimals."""
    return bounded_decimal(argument.precision + DIGITS_OF_SUM, argument.scale)


def decimal_kernel(operation: str, *types: pa.DataType) -> str:
    """The name of the function of the evaluator's SQL that computes with decimals of any length. types: of the operands
    and of the result."""
    return "_".join(["kernel_decimal", operation, *(f"{type.precision}_{type.scale}" for type in types)])
