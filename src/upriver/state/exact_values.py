"""Columns in forms of which Python has every value.

Spark has values that Python has not: points in time beyond the years 1 to 9999, and texts whose bytes are no UTF-8. Any
column can be had in a form that Python can read, compare and print: points in time as numbers, texts as bytes. Nested
values are treated likewise, part by part.
"""

from typing import Any

import pyarrow as pa


def exact_type(type: pa.DataType) -> pa.DataType:
    """The type of the exact form of this type's values; the bytes of both are the same."""
    if pa.types.is_date32(type) or pa.types.is_time32(type):
        return pa.int32()
    if pa.types.is_temporal(type) and type.bit_width == pa.int64().bit_width:
        return pa.int64()
    if pa.types.is_string(type):
        return pa.binary()
    if pa.types.is_large_string(type):
        return pa.large_binary()
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field.name, exact_type(field.type)) for field in type])
    if pa.types.is_map(type):
        return pa.map_(exact_type(type.key_type), exact_type(type.item_type))
    if pa.types.is_list(type):
        return pa.list_(pa.field(type.value_field.name, exact_type(type.value_type)))
    return type


def exact(column: pa.Array) -> pa.Array:
    """The column in its exact form; nothing is copied."""
    type = exact_type(column.type)
    return column if type == column.type else column.view(type)


def exact_list(column: pa.Array) -> list[Any]:
    """The column's values as Python values, in their exact form: never an error."""
    values: list[Any] = exact(column).to_pylist()
    return values
