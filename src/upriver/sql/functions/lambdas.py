"""Functions that take a lambda: transform, filter, exists, forall, aggregate, zip_with, and their kin over maps.

A lambda's variables become DuckDB's, with names of their own, since lambdas may stand in one another.
"""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from upriver.plan.relation import Scalar, any_fails
from upriver.plan.source import Place
from upriver.plan.types import array_type, duck_name, has_map, is_untyped, map_type, parts_of, same_type
from upriver.sql.functions.arithmetic import CAST_IT, as_condition
from upriver.sql.functions.arrays import need_array, need_map
from upriver.sql.functions.nested_values import each, once
from upriver.sql.functions.scalars import Context, in_order, macro, opaque, typed_name
from upriver.sql.functions.signatures import RAISES, Function, Lambda, OfLambdas, OperandKind, Operands

_ANY, _LAMBDA = OperandKind.ANY, OperandKind.LAMBDA


def _counted(context: Context, place: Place, function: Lambda, least: int, most: int) -> Lambda:
    """The lambda, with so many variables."""
    if not least <= function.count <= most:
        count = f"{least}" if least == most else f"{least} or {most}"
        raise context.source.wrong(place, f"a lambda of {function.count} variables", f"Here it has {count}.")
    return function


def _names(function: Lambda) -> list[str]:
    """DuckDB's names of its variables."""
    return [f"x{function.depth}_{number}" for number in range(function.count)]


def _body(function: Lambda, values: Sequence[Scalar]) -> Scalar:
    """Its body. values: of its variables, with the texts that name them."""
    return replace(function.body(values), constant=None, nulls=None, letters=None)


def _typed(context: Context, place: Place, body: Scalar) -> Scalar:
    if is_untyped(body.type):
        raise context.unsupported(place, "a lambda of nothing but NULL", "Give it a type: CAST(NULL AS ...).")
    return body


def _element(array: Scalar, name: str) -> Scalar:
    return Scalar(name, array.type.value_type)


def _with_index(function: Lambda, array: Scalar) -> tuple[str, Scalar]:
    """The variables of a lambda over elements, and over their places too if it has two; and its body."""
    names = _names(function)
    values = [_element(array, names[0])]
    values += [Scalar(f"CAST({name} - 1 AS INTEGER)", pa.int32(), nulls=frozenset()) for name in names[1:]]
    return ", ".join(names), _body(function, values)


def _over(sql: str, type: pa.DataType, fails: bool, *operands: Scalar) -> Scalar:
    """The result of a call that is NULL where one of these operands is."""
    nulls = frozenset[str]().union(*(operand.null_by for operand in operands))
    return opaque(Scalar(sql, type, fails or any_fails(operands), nulls=nulls))


def _transform(context: Context, place: Place, operands: Operands, lambdas: Sequence[Lambda]) -> Scalar:
    """``transform(a, x -> ...)`` or ``transform(a, (x, i) -> ...)``."""
    array = need_array(context, place, operands[0])
    names, body = _with_index(_counted(context, place, lambdas[0], 1, 2), array)
    body = _typed(context, place, body)
    sql = f"list_transform({array.sql}, lambda {names}: {body.sql})"
    return _over(sql, array_type(body.type), body.fails, array)


def _filter(context: Context, place: Place, operands: Operands, lambdas: Sequence[Lambda]) -> Scalar:
    """``filter(a, x -> ...)`` or ``filter(a, (x, i) -> ...)``."""
    array = need_array(context, place, operands[0])
    names, body = _with_index(_counted(context, place, lambdas[0], 1, 2), array)
    test = as_condition(context, place, body)
    sql = f"list_filter({array.sql}, lambda {names}: coalesce({test.sql}, FALSE))"
    return _over(sql, array.type, body.fails, array)


def _folded(array: Scalar, start: str, kept: pa.DataType, merged: str, names: tuple[str, str]) -> str:
    """DuckDB SQL of a value that the elements change one after the other. start: its first value. kept: its type.
    merged: its next value. names: of the pair of it and nothing, and of the pair of nothing and the element."""
    so_far, then = names
    nothing, empty = f"CAST(NULL AS {duck_name(kept)})", f"CAST(NULL AS {duck_name(array.type.value_type)})"
    pairs = each(array.sql, lambda one: f"{{'a': {nothing}, 'x': {one}}}")
    first = f"{{'a': CAST({start} AS {duck_name(kept)}), 'x': {empty}}}"
    then_all = f"{{'a': CAST({merged} AS {duck_name(kept)}), 'x': {then}.x}}"
    return f"(list_reduce({pairs}, lambda {so_far}, {then}: {then_all}, {first})).a"


def _quantified(word: str, decided: str, start: str) -> OfLambdas:
    """``exists(a, x -> ...)`` and ``forall(a, x -> ...)``. Spark stops at the element that decides."""

    def rule(context: Context, place: Place, operands: Operands, lambdas: Sequence[Lambda]) -> Scalar:
        array = need_array(context, place, operands[0])
        function = _counted(context, place, lambdas[0], 1, 1)
        (name,) = _names(function)
        names = f"{name}_s", f"{name}_t"
        test = as_condition(context, place, _body(function, [_element(array, f"({names[1]}).x")]))
        is_decided = f"({names[0]}).a IS {decided}"
        merged = f"CASE WHEN {is_decided} THEN {decided} ELSE (({names[0]}).a {word} {test.sql}) END"
        sql = _folded(array, start, pa.bool_(), merged, names)
        return opaque(Scalar(sql, pa.bool_(), test.fails or array.fails))

    return OfLambdas(rule)


def _aggregate(context: Context, place: Place, operands: Operands, lambdas: Sequence[Lambda]) -> Scalar:
    """``aggregate(a, start, (acc, x) -> ...[, acc -> ...])``."""
    array, start = need_array(context, place, operands[0]), _typed(context, place, operands[1])
    function = _counted(context, place, lambdas[0], 2, 2)
    name = _names(function)[0]
    names = f"{name}_s", f"{name}_t"
    values = [Scalar(f"({names[0]}).a", start.type), _element(array, f"({names[1]}).x")]
    merged = _body(function, values)
    if not same_type(merged.type, start.type):
        what = f"a start of {typed_name(start)} with a lambda that gives {typed_name(merged)}"
        raise context.unsupported(place, what, "CAST the start to the type of the lambda.")
    made = _folded(array, start.sql, start.type, merged.sql, names)
    result = merged
    if len(operands) > 3:
        finish = _counted(context, place, lambdas[1], 1, 1)
        (last,) = _names(finish)
        result = _typed(context, place, _body(finish, [Scalar(last, start.type)]))
        made = f"list_transform([{made}], lambda {last}: {result.sql})[1]"
    sql = f"CASE WHEN ({array.sql}) IS NOT NULL THEN {made} END"
    return opaque(Scalar(sql, result.type, any_fails((array, start, merged, result))))


def _zip_with(context: Context, place: Place, operands: Operands, lambdas: Sequence[Lambda]) -> Scalar:
    """``zip_with(a, b, (x, y) -> ...)``: the shorter array continues with NULL."""
    arrays = [need_array(context, place, value) for value in operands[:2]]
    function = _counted(context, place, lambdas[0], 2, 2)
    name = _names(function)[0]
    pairs = [_element(array, f"{name}.{part}") for array, part in zip(arrays, "ab", strict=True)]
    body = _typed(context, place, _body(function, pairs))

    def zipped(given: str) -> str:
        count = f"greatest(len({given}.a), len({given}.b)) + 1"
        pair = each(
            f"range(1, {count})",
            lambda at: f"{{'a': list_extract({given}.a, {at}), 'b': list_extract({given}.b, {at})}}",
            given,
        )
        made = f"list_transform({pair}, lambda {name}: {body.sql})"
        return f"CASE WHEN {given}.a IS NOT NULL AND {given}.b IS NOT NULL THEN {made} END"

    sql = once(f"{{'a': {arrays[0].sql}, 'b': {arrays[1].sql}}}", zipped, body.sql)
    return _over(sql, array_type(body.type), body.fails, *arrays)


def _map_zip_with(context: Context, place: Place, operands: Operands, lambdas: Sequence[Lambda]) -> Scalar:
    """``map_zip_with(m, n, (k, v, w) -> ...)``: over the keys of both, with NULL where a map has none."""
    maps = in_order(*(need_map(context, place, value) for value in operands[:2]))
    if not same_type(*(value.type.key_type for value in maps)):
        raise context.unsupported(place, f"{typed_name(maps[0])} with {typed_name(maps[1])}", CAST_IT)
    function = _counted(context, place, lambdas[0], 3, 3)
    name = _names(function)[0]
    types = (maps[0].type.key_type, *(value.type.item_type for value in maps))
    parts = [Scalar(f"{name}.{part}", type) for part, type in zip("kvw", types, strict=True)]
    body = _typed(context, place, _body(function, parts))

    def zipped(given: str) -> str:
        keys = f"list_concat(map_keys({given}.a), list_filter(map_keys({given}.b), "
        keys += f"lambda e: list_position(map_keys({given}.a), e) IS NULL))"
        entry = each(
            keys,
            lambda key: f"{{'k': {key}, 'v': map_extract({given}.a, {key})[1], 'w': map_extract({given}.b, {key})[1]}}",
            given,
        )
        made = f"MAP({keys}, list_transform({entry}, lambda {name}: {body.sql}))"
        return f"CASE WHEN {given}.a IS NOT NULL AND {given}.b IS NOT NULL THEN {made} END"

    sql = once(f"{{'a': {maps[0].sql}, 'b': {maps[1].sql}}}", zipped, body.sql)
    return _over(sql, map_type(types[0], body.type), body.fails, *maps)


def _entry(context: Context, place: Place, function: Lambda, value: Scalar) -> tuple[str, Scalar]:
    """The variable of an entry of a map, and the body of the lambda over its key and its value."""
    name = _names(_counted(context, place, function, 2, 2))[0]
    parts = [Scalar(f"{name}.{part}", type) for part, type in zip(("key", "value"), parts_of(value.type), strict=True)]
    return name, _body(function, parts)


def _map_filter(context: Context, place: Place, operands: Operands, lambdas: Sequence[Lambda]) -> Scalar:
    """``map_filter(m, (k, v) -> ...)``."""
    value = need_map(context, place, operands[0])
    name, body = _entry(context, place, lambdas[0], value)
    test = as_condition(context, place, body)
    kept = f"list_filter(map_entries({value.sql}), lambda {name}: coalesce({test.sql}, FALSE))"
    sql = once(kept, lambda one: f"MAP({each(one, lambda e: f'{e}.key')}, {each(one, lambda e: f'{e}.value')})")
    return _over(sql, value.type, body.fails, value)


def _transform_values(context: Context, place: Place, operands: Operands, lambdas: Sequence[Lambda]) -> Scalar:
    """``transform_values(m, (k, v) -> ...)``."""
    value = need_map(context, place, operands[0])
    name, body = _entry(context, place, lambdas[0], value)
    body = _typed(context, place, body)
    made = f"list_transform(map_entries({value.sql}), lambda {name}: {body.sql})"
    sql = f"MAP(map_keys({value.sql}), {made})"
    return _over(sql, map_type(value.type.key_type, body.type), body.fails, value)


def _transform_keys(context: Context, place: Place, operands: Operands, lambdas: Sequence[Lambda]) -> Scalar:
    """``transform_keys(m, (k, v) -> ...)``. Spark raises if a key is NULL, or comes twice."""
    value = need_map(context, place, operands[0])
    name, body = _entry(context, place, lambdas[0], value)
    body = _typed(context, place, body)
    if has_map(body.type):
        raise context.unsupported(place, f"a map with keys of {typed_name(body)}", CAST_IT)
    made = f"list_transform(map_entries({value.sql}), lambda {name}: {body.sql})"
    sql = macro("spark_map", made, f"map_values({value.sql})")
    return _over(sql, map_type(body.type, value.type.item_type), True, value)


_LIKE_BODY, _WHERE_BODY = "ARRAY of the lambda's type", "where the lambda does"
_IN_LAMBDA = "NULL in the place"

LAMBDAS: tuple[Function, ...] = (
    Function(
        "transform",
        (_ANY, _LAMBDA),
        OfLambdas(_transform),
        _LIKE_BODY,
        nulls="where the array is",
        fails=_WHERE_BODY,
        lenient=_IN_LAMBDA,
        samples="transform(ai, X -> x * 2 + j); transform(lists, x -> transform(x, y -> y + size(x) + j)); "
        "transform(axs, (x, i) -> if(i = 0, NULL, x)); transform(sts, x -> x.a + 1); transform(ai, x -> 10 DIV x)",
    ),
    Function(
        "filter",
        (_ANY, _LAMBDA),
        OfLambdas(_filter),
        "the array's type",
        nulls="where the array is",
        fails=_WHERE_BODY,
        lenient="another array",
        samples="filter(ai, x -> x > 1); filter(texts, (x, i) -> i < 2 AND x <> u); filter(sts, x -> x IS NOT NULL)",
    ),
    Function(
        "exists",
        (_ANY, _LAMBDA),
        _quantified("OR", "TRUE", "FALSE"),
        "BOOLEAN",
        nulls="also where nothing decides and the lambda is NULL for an element",
        fails=_WHERE_BODY,
        lenient="another truth",
        samples="exists(ai, x -> x > 1); exists(ai, x -> x IS NULL); exists(ai, x -> 10 DIV x > 4)",
    ),
    Function(
        "forall",
        (_ANY, _LAMBDA),
        _quantified("AND", "FALSE", "TRUE"),
        "BOOLEAN",
        nulls="also where nothing decides and the lambda is NULL for an element",
        fails=_WHERE_BODY,
        lenient="another truth",
        samples="forall(ai, x -> x > 0); forall(axs, x -> x < 2); forall(ai, x -> 10 DIV x > 4)",
    ),
    Function(
        "aggregate reduce",
        (_ANY, _ANY, _LAMBDA, _LAMBDA),
        OfLambdas(_aggregate),
        "the lambda's type",
        least=3,
        nulls="where the array is, or a lambda gives NULL",
        fails=_WHERE_BODY,
        lenient="another value",
        samples="aggregate(ai, 0, (acc, x) -> acc + coalesce(x, 10)); reduce(ai, j, (a, x) -> a * 2 + x, a -> a + 1); "
        "aggregate(texts, '', (acc, x) -> acc || x); "
        "aggregate(axs, struct(0D AS s, 0 AS n), (a, x) -> struct(a.s + x AS s, a.n + 1 AS n), a -> a.s / a.n)",
    ),
    Function(
        "zip_with",
        (_ANY, _ANY, _LAMBDA),
        OfLambdas(_zip_with),
        _LIKE_BODY,
        nulls="where an array is",
        fails=_WHERE_BODY,
        lenient=_IN_LAMBDA,
        samples="zip_with(ai, bi, (x, y) -> coalesce(x, 0) + y); zip_with(ai, texts, (x, y) -> struct(y, x))",
    ),
    Function(
        "map_zip_with",
        (_ANY, _ANY, _LAMBDA),
        OfLambdas(_map_zip_with),
        "MAP of the lambda's type",
        nulls="where a map is",
        fails=_WHERE_BODY,
        lenient=_IN_LAMBDA,
        samples="map_zip_with(mp, map('abc', 5, 'zz', j), (k, v, w) -> struct(v, w, length(k))); "
        "map_zip_with(dm, dm, (k, v, w) -> v || w)",
    ),
    Function(
        "map_filter",
        (_ANY, _LAMBDA),
        OfLambdas(_map_filter),
        "the map's type",
        nulls="where the map is",
        fails=_WHERE_BODY,
        lenient="another map",
        samples="map_filter(mp, (k, v) -> v > 0); map_filter(dm, (k, v) -> k > 1)",
    ),
    Function(
        "transform_values",
        (_ANY, _LAMBDA),
        OfLambdas(_transform_values),
        "MAP of the lambda's type",
        nulls="where the map is",
        fails=_WHERE_BODY,
        lenient=_IN_LAMBDA,
        samples="transform_values(mp, (k, v) -> v + length(k)); transform_values(dm, (k, v) -> k)",
    ),
    Function(
        "transform_keys",
        (_ANY, _LAMBDA),
        OfLambdas(_transform_keys),
        "MAP of the lambda's type",
        nulls="where the map is",
        fails="where the lambda does, or a key is NULL or comes twice",
        lenient=RAISES,
        samples="transform_keys(mp, (k, v) -> k || 'z'); transform_keys(mp, (k, v) -> length(k))",
    ),
)
"""Functions with lambdas."""
