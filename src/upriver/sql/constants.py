"""Literals of Spark's analysed plans as DuckDB SQL.

The walker writes a date as days and a time as microseconds since 1970, a DECIMAL, a DOUBLE or a FLOAT as text, bytes in
base64. An array is a list, a struct the list of its fields, and a map two lists: of its keys, and of its values.
"""

import base64
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from upriver.plan.relation import Scalar
from upriver.plan.source import Place
from upriver.plan.types import (
    duck_name,
    is_array,
    is_date,
    is_decimal,
    is_floating,
    is_instant,
    is_interval,
    is_map,
    is_string,
    is_struct,
    is_untyped,
    is_wall_clock,
    parts_of,
    spark_name,
)
from upriver.sql.functions.nested_values import struct_sql
from upriver.sql.functions.scalars import Context, literal, macro, never_null, null

_EPOCH_DAY = date(1970, 1, 1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def constant(context: Context, place: Place, value: Any, type: pa.DataType) -> Scalar:
    """A literal. value: as the walker has written it."""
    if value is None:
        return null(type)
    if is_array(type) or is_map(type) or is_struct(type):
        return never_null(Scalar(_nested(context, place, value, type), type))
    if is_decimal(type):
        return literal(Decimal(value), type)
    if is_floating(type):
        if type == pa.float64():
            return literal(float(value), type)
        return never_null(Scalar(f"CAST('{value}' AS FLOAT)", type))
    if is_date(type):
        return never_null(Scalar(_day(value), type))
    if is_wall_clock(type) or is_instant(type):
        return never_null(Scalar(_moment(value), type))
    if is_interval(type):
        return never_null(Scalar(f"CAST({value} AS BIGINT)", type))
    if type == pa.binary():
        return never_null(Scalar(f"from_hex('{base64.b64decode(value).hex()}')", type))
    if is_string(type) and "\0" in value:
        raise context.unsupported(place, "NUL in a string", "Leave it out.")
    return literal(value, type)


def _day(days: int) -> str:
    try:
        return f"DATE '{(_EPOCH_DAY + timedelta(days=days)).isoformat()}'"
    except OverflowError:
        return macro("spark_epoch_day", f"CAST({days} AS INTEGER)")


def _moment(micros: int) -> str:
    try:
        clock = (_EPOCH + timedelta(microseconds=micros)).replace(tzinfo=None)
    except OverflowError:
        return f"make_timestamp(CAST({micros} AS BIGINT))"
    return f"TIMESTAMP '{clock.isoformat(sep=' ')}'"


def _nested(context: Context, place: Place, value: Any, type: pa.DataType) -> str:
    if is_untyped(type):
        raise context.unsupported(place, f"a constant of {spark_name(type)}", "Give it a type: CAST(NULL AS ...).")
    parts = parts_of(type)
    if is_struct(type):
        return struct_sql([constant(context, place, *pair).sql for pair in zip(value, parts, strict=True)])
    lists = [value] if is_array(type) else value
    texts = [
        f"CAST([{', '.join(constant(context, place, one, part).sql for one in items)}] AS {duck_name(part)}[])"
        for items, part in zip(lists, parts, strict=True)
    ]
    return texts[0] if is_array(type) else f"MAP({texts[0]}, {texts[1]})"
