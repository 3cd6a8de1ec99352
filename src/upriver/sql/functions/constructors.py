"""Constructors of arrays, structs and maps, their sizes, and their elements by place or key."""

import pyarrow as pa

from upriver.plan.relation import Scalar, any_fails
from upriver.plan.source import Place
from upriver.plan.types import (
    EMPTY_MAP,
    array_type,
    has_map,
    is_array,
    is_integer,
    is_map,
    is_null,
    is_untyped,
    map_type,
    struct_type,
)
from upriver.sql.functions.arithmetic import to_common
from upriver.sql.functions.casts import cast
from upriver.sql.functions.nested_values import struct_sql
from upriver.sql.functions.parts import element, of_key
from upriver.sql.functions.scalars import Context, macro, never_null, null, strict, typed_name
from upriver.sql.functions.signatures import RAISES, Function, OperandKind, Operands, Special

_ANY = OperandKind.ANY
NOT_ONE = "It takes an ARRAY or a MAP."


def array_of(context: Context, place: Place, operands: Operands) -> Scalar:
    """``array(a, b, ...)``: of the common type of all."""
    if not operands:
        return never_null(Scalar("[]", array_type(pa.null())))
    values = to_common(context, place, operands)
    sql = f"[{', '.join(value.sql for value in values)}]"
    return never_null(Scalar(sql, array_type(values[0].type), any_fails(values)))


def _named_struct(context: Context, place: Place, operands: Operands) -> Scalar:
    """``named_struct('a', 1, 'b', 2)``."""
    names = [name.constant for name in operands[::2]]
    if len(operands) % 2 or not all(isinstance(name, str) for name in names):
        raise context.unsupported(place, "these operands of named_struct()", "Write named_struct('a', 1, 'b', x).")
    return named(context, place, list(map(str, names)), operands[1::2])


def named(context: Context, place: Place, names: list[str], values: Operands) -> Scalar:
    untyped = next((value for value in values if is_untyped(value.type)), None)
    if untyped is not None:
        raise context.unsupported(place, "a field of nothing but NULL", "Give it a type: CAST(NULL AS ...).")
    type = struct_type(names, [value.type for value in values])
    return never_null(Scalar(struct_sql([value.sql for value in values]), type, any_fails(values)))


def _map(context: Context, place: Place, operands: Operands) -> Scalar:
    """``map(k, v, ...)``. Spark raises if a key is NULL, or comes twice."""
    if not operands:
        return never_null(Scalar("MAP {}", EMPTY_MAP))
    if len(operands) % 2:
        raise context.unsupported(place, f"map() of {len(operands)} operands", "Give a value for each key.")
    keys, values = to_common(context, place, operands[::2]), to_common(context, place, operands[1::2])
    return made_map(context, place, keys, values)


def made_map(context: Context, place: Place, keys: Operands, values: Operands) -> Scalar:
    if is_untyped(keys[0].type) or is_untyped(values[0].type) or has_map(keys[0].type):
        what = f"a map of {typed_name(keys[0])} to {typed_name(values[0])}"
        raise context.unsupported(place, what, "Give both a type: CAST(NULL AS ...).")
    listed = (f"[{', '.join(part.sql for part in parts)}]" for parts in (keys, values))
    return never_null(Scalar(macro("spark_map", *listed), map_type(keys[0].type, values[0].type), fails=True))


def _size(context: Context, place: Place, operands: Operands) -> Scalar:
    (value,) = operands
    if is_null(value.type):
        return null(pa.int32())
    if not (is_array(value.type) or is_map(value.type)):
        raise context.unsupported(place, f"the size of {typed_name(value)}", NOT_ONE)
    function = "len" if is_array(value.type) else "cardinality"
    return strict(f"CAST({function}({value.sql}) AS INTEGER)", pa.int32(), (value,))


def _element(how: str) -> Special:
    """``element_at`` and its kin. how: the macro for arrays."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        value, index = operands
        if is_array(value.type):
            index = cast(context, place, index, pa.int32()) if is_integer(index.type) else index
            return element(context, place, value, index, how)
        if is_map(value.type) and how != "spark_get":
            return of_key(context, place, value, index)
        raise context.unsupported(place, f"an element of {typed_name(value)}", NOT_ONE)

    return rule


_OUTSIDE = "where the index is outside of the array"
_ELEMENT = "the element's type"

CONSTRUCTORS: tuple[Function, ...] = (
    Function(
        "array",
        (_ANY,),
        array_of,
        "ARRAY of the common type",
        least=0,
        repeats=True,
        nulls="never",
        samples="array(i, j, NULL); array(x, l); array(s, u); array(ai, array(j)); array(st, NULL); array(mp)",
    ),
    Function(
        "struct",
        (_ANY,),
        None,
        "STRUCT",
        repeats=True,
        nulls="never",
        samples="struct(i, s AS t, x + 1); struct(ai, st, mp)",
    ),
    Function(
        "named_struct",
        (OperandKind.WRITTEN, _ANY),
        _named_struct,
        "STRUCT",
        repeats=True,
        nulls="never",
        samples="named_struct('a', i, 'B', s); named_struct('n', st, 'l', axs)",
    ),
    Function(
        "map",
        (_ANY, _ANY),
        _map,
        "MAP of the common types",
        least=0,
        repeats=True,
        nulls="never",
        fails="where a key is NULL, or comes twice",
        lenient=RAISES,
        samples="coalesce(mp, map()); map(i, s); map('a', i, 'b', j); map(x, l, w, i); map(ai, st)",
    ),
    Function(
        "size cardinality",
        (_ANY,),
        _size,
        "INT",
        samples="size(coalesce(ai, array())); cardinality(coalesce(mp, map('a', 1)))",
    ),
    Function(
        "element_at",
        (_ANY, _ANY),
        _element("spark_element_at"),
        _ELEMENT,
        nulls="also where a map has no such key",
        fails=f"{_OUTSIDE}, or 0",
        lenient="NULL; for 0 it raises",
        samples="element_at(ai, j); element_at(mp, s); element_at(mp, 'a'); element_at(axs, -1); element_at(dm, x)",
    ),
    Function(
        "try_element_at",
        (_ANY, _ANY),
        _element("spark_try_element_at"),
        _ELEMENT,
        nulls=f"also {_OUTSIDE}, or a map has no such key",
        fails="for 0",
        lenient=RAISES,
        samples="try_element_at(ai, j); try_element_at(mp, s)",
    ),
    Function(
        "get",
        (_ANY, OperandKind.WHOLE),
        _element("spark_get"),
        _ELEMENT,
        nulls=f"also {_OUTSIDE}; the first index is 0",
        samples="get(ai, j); get(axs, 0); get(texts, 1)",
    ),
)
"""Constructors, sizes and elements."""
