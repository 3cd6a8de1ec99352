"""Parts of nested values: ``st.f``, ``a[0]``, ``m['k']``; and functions of places: element_at, get."""

import pyarrow as pa

from upriver.plan.relation import Scalar, any_fails
from upriver.plan.source import Place
from upriver.plan.types import (
    array_type,
    is_integer,
    is_null,
    is_untyped,
)
from upriver.sql.functions.arithmetic import CAST_IT, to_comparable
from upriver.sql.functions.casts import cast
from upriver.sql.functions.nested_values import each, field_sql
from upriver.sql.functions.scalars import Context, in_order, intolerant, macro, null, typed_name


def fields_of(value: Scalar, number: int) -> Scalar:
    """A field of each struct of an array, as an array."""
    type = array_type(value.type.value_type.field(number).type)
    sql = each(value.sql, lambda one: field_sql(one, number))
    return intolerant(Scalar(sql, type, value.fails, nulls=value.null_by), (value,))


def of_key(context: Context, place: Place, value: Scalar, key: Scalar) -> Scalar:
    """The value of a map's key; NULL if it has none."""
    _check_typed(context, place, value)
    if is_null(key.type):
        return null(value.type.item_type)
    wanted = value.type.key_type
    (typed, key) = to_comparable(context, place, (null(wanted), key))
    if typed.type != wanted:
        raise context.unsupported(place, f"a {typed_name(key)} as a key of {typed_name(value)}", CAST_IT)
    value, key = in_order(value, key)
    sql = f"map_extract_value({value.sql}, {key.sql})"
    return intolerant(Scalar(sql, value.type.item_type, any_fails((value, key))), (value, key))


def element(context: Context, place: Place, value: Scalar, index: Scalar, how: str) -> Scalar:
    """An element of an array. how: the macro that finds it."""
    _check_typed(context, place, value)
    if is_null(index.type):
        return null(value.type.value_type)
    if not is_integer(index.type):
        raise context.unsupported(place, f"{typed_name(index)} as the place of an element", CAST_IT)
    value, index = in_order(value, cast(context, place, index, pa.int64()))
    fails = how != "spark_get" or any_fails((value, index))
    return intolerant(Scalar(macro(how, value.sql, index.sql), value.type.value_type, fails), (value, index))


def _check_typed(context: Context, place: Place, value: Scalar) -> None:
    if is_untyped(value.type):
        raise context.unsupported(place, f"an element of {typed_name(value)}", CAST_IT)
