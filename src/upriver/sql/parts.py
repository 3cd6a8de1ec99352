"""Parts of nested values: ``st.f``, ``a[0]``, ``m['k']``; and functions of places: element_at, get."""

import pyarrow as pa
from sqlglot import exp

from upriver.plan.relation import Scalar, any_fails
from upriver.plan.source import Place
from upriver.plan.types import (
    array_type,
    is_array,
    is_integer,
    is_map,
    is_null,
    is_string,
    is_struct,
    is_untyped,
    spark_name,
)
from upriver.sql.casts import cast
from upriver.sql.nested_values import each, field_sql
from upriver.sql.operators import CAST_IT, to_comparable
from upriver.sql.scalars import Context, in_order, intolerant, literal, macro, null, typed_name


def field(context: Context, place: Place, value: Scalar, name: str) -> Scalar:
    """``value.name``: a field of a struct, the fields of an array of structs, or the value of a map's key."""
    if is_map(value.type) and is_string(value.type.key_type):
        return of_key(context, place, value, literal(name, pa.string()))
    if is_struct(value.type):
        number = _number(context, place, value.type, name)
        made = Scalar(field_sql(value.sql, number), value.type.field(number).type, value.fails)
        return intolerant(made, (value,))
    if is_array(value.type) and is_struct(value.type.value_type):
        return fields_of(value, _number(context, place, value.type.value_type, name))
    raise context.source.wrong(place, f"{typed_name(value)} has no field {name!r}", "Only a STRUCT has fields.")


def fields_of(value: Scalar, number: int) -> Scalar:
    """A field of each struct of an array, as an array."""
    type = array_type(value.type.value_type.field(number).type)
    sql = each(value.sql, lambda one: field_sql(one, number))
    return intolerant(Scalar(sql, type, value.fails, nulls=value.null_by), (value,))


def _number(context: Context, place: Place, type: pa.DataType, name: str) -> int:
    found = [number for number, one in enumerate(type) if one.name.lower() == name.lower()]
    if len(found) == 1:
        return found[0]
    listed = f"The fields are {', '.join(one.name for one in type)}."
    how_many = "several fields" if found else "no field"
    raise context.source.wrong(place, f"{spark_name(type)} has {how_many} {name!r}", listed)


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


def bracket(context: Context, node: exp.Expr) -> Scalar:
    """``value[place]``."""
    context.only(node, "this", "expressions", "offset")
    value = context.translate(node.this)
    if len(node.expressions) != 1:
        raise context.unsupported(node, "several places in brackets", "Take one element after the other: a[0][1].")
    (inside,) = node.expressions
    if is_struct(value.type) or (is_array(value.type) and is_struct(value.type.value_type) and _is_text(inside)):
        if not _is_text(inside):
            raise context.source.wrong(node, f"{typed_name(value)} has no places", "Name a field: st['f'].")
        return field(context, node, value, inside.this)
    place = context.translate(inside)
    if is_map(value.type):
        return of_key(context, node, value, place)
    if is_array(value.type):
        return element(context, node, value, place, "spark_item")
    raise context.source.wrong(node, f"{typed_name(value)} has no elements", "An ARRAY, a MAP or a STRUCT has.")


def _is_text(node: exp.Expr) -> bool:
    return isinstance(node, exp.Literal) and bool(node.is_string)


def dot(context: Context, node: exp.Expr) -> Scalar:
    """``value.field``."""
    context.only(node, "this", "expression")
    if not isinstance(node.expression, exp.Identifier):
        raise context.unsupported(node, "this behind a dot", "Name a field: st.f.")
    return field(context, node, context.translate(node.this), node.expression.name)


def variable(context: Context, node: exp.Expr) -> Scalar:
    """A name that is no variable of a lambda around it."""
    raise context.source.wrong(node, f"{node.name!r} means nothing here", "A lambda names its variables: x -> x + 1.")
