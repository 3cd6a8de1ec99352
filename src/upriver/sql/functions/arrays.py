"""Functions of arrays and of maps, without lambdas."""

from collections.abc import Callable, Sequence

import pyarrow as pa

from upriver.plan.relation import Scalar, any_fails
from upriver.plan.source import Place
from upriver.plan.types import (
    array_type,
    common_type,
    duck_name,
    is_array,
    is_map,
    is_nested,
    is_ordered,
    is_struct,
    is_untyped,
    map_type,
    parts_of,
    struct_type,
)
from upriver.sql.functions.arithmetic import CAST_IT, to_common
from upriver.sql.functions.casts import cast
from upriver.sql.functions.nested_values import ELEMENTS_MAX, TOO_MANY, each, field_sql, once, order_form, struct_sql
from upriver.sql.functions.patterns import plain_text
from upriver.sql.functions.scalars import Context, in_order, macro, opaque, strict, string_sql, typed_name
from upriver.sql.functions.signatures import RAISES, Function, OperandKind, Operands, Special, take

_ANY, _INT, _TEXT = OperandKind.ANY, OperandKind.INT, OperandKind.STRING
_SIMILAR = "Give it arrays of one type."


def need_array(context: Context, place: Place, value: Scalar) -> Scalar:
    """The value, if it is an array whose elements have a type."""
    if not is_array(value.type) or is_untyped(value.type):
        raise context.unsupported(place, f"{typed_name(value)} where an ARRAY is wanted", CAST_IT)
    return value


def need_map(context: Context, place: Place, value: Scalar) -> Scalar:
    """The value, if it is a map whose keys and values have a type."""
    if not is_map(value.type) or is_untyped(value.type):
        raise context.unsupported(place, f"{typed_name(value)} where a MAP is wanted", CAST_IT)
    return value


def _of_array(how: str, gives: Callable[[pa.DataType], pa.DataType] = lambda type: type) -> Special:
    """A function of one array. how: DuckDB SQL, with {0} for it. gives: the type of the result."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        array = need_array(context, place, operands[0])
        sql = once(array.sql, lambda a: how.replace("{0}", a))
        return opaque(strict(sql, gives(array.type), (array,)))

    return rule


def _with_element(how: str, gives: pa.DataType | None, is_strict: bool = True) -> Special:
    """A function of an array and a value like its elements. how: a macro. gives: ``None`` for the array's type.
    is_strict: whether it is NULL where the value is."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        array, value = _alike(context, place, operands[0], operands[1])
        if is_strict:
            array, value = in_order(array, value)
        nulls = None if is_strict else array.null_by
        sql = macro(how, array.sql, value.sql)
        return opaque(Scalar(sql, array.type if gives is None else gives, any_fails((array, value)), nulls=nulls))

    return rule


def _alike(context: Context, place: Place, array: Scalar, value: Scalar) -> tuple[Scalar, Scalar]:
    """An array and a value, in the common type of its elements and the value."""
    array = need_array(context, place, array)
    type = common_type(array.type.value_type, value.type)
    if type is None or not is_ordered(type):
        what = f"{typed_name(value)} with elements of {typed_name(array)}"
        raise context.unsupported(place, what, CAST_IT)
    return cast(context, place, array, array_type(type)), cast(context, place, value, type)


def _of_two(how: str, gives: pa.DataType | None = None) -> Special:
    """A function of two arrays of a common type. how: a macro."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        pair = [need_array(context, place, value) for value in to_common(context, place, operands)]
        if not is_ordered(pair[0].type):
            raise context.unsupported(place, f"comparing elements of {typed_name(pair[0])}", _SIMILAR)
        left, right = in_order(*pair)
        type = left.type if gives is None else gives
        return opaque(Scalar(macro(how, left.sql, right.sql), type, any_fails(pair)))

    return rule


def zipped(context: Context, place: Place, names: Sequence[str], operands: Operands) -> Scalar:
    """``arrays_zip(a, b, ...)``: structs of the elements at each place, NULL where an array is shorter."""
    arrays = in_order(*(need_array(context, place, value) for value in operands))
    type = array_type(struct_type(names, [array.type.value_type for array in arrays]))

    def made(given: str) -> str:
        fields = [field_sql(given, number) for number in range(len(arrays))]
        longest = f"greatest({', '.join(f'len({one})' for one in fields)})"
        structs = each(
            f"range(1, {longest} + 1)", lambda at: struct_sql([f"list_extract({one}, {at})" for one in fields]), given
        )
        return f"CASE WHEN {' OR '.join(f'{one} IS NULL' for one in fields)} THEN NULL ELSE {structs} END"

    return opaque(strict(once(struct_sql([array.sql for array in arrays]), made), type, arrays))


def _joined(context: Context, place: Place, operands: Operands) -> Scalar:
    """``array_join(a, separator[, word for NULL])``."""
    array = need_array(context, place, operands[0])
    if is_nested(array.type.value_type):
        raise context.unsupported(place, f"array_join() of {typed_name(array)}", "Give it an ARRAY<STRING>.")
    array = cast(context, place, array, array_type(pa.string()))
    if not isinstance(operands[1].constant, str):
        raise context.unsupported(place, "array_join() by a computed separator", "Write it in quotes.")
    texts = [take(context, place, _TEXT, value) for value in operands[1:]]
    parts = in_order(array, *texts)
    name = "spark_array_join" if len(texts) == 1 else "spark_array_join_all"
    return opaque(strict(macro(name, *(part.sql for part in parts)), pa.string(), parts))


def _sorted(descends: bool, nulls_first: bool) -> Callable[[str, pa.DataType], str]:
    order = f"'{'DESC' if descends else 'ASC'}', 'NULLS {'FIRST' if nulls_first else 'LAST'}'"

    def sql(array: str, type: pa.DataType) -> str:
        if not is_nested(type):
            return f"list_sort({array}, {order})"
        test = "IS NOT NULL" if nulls_first != descends else "IS NULL"
        keyed = each(array, lambda one: f"{{'n': {one} {test}, 'k': {order_form(one, type)}, 'v': {one}}}")
        return each(f"list_sort({keyed}, {order})", lambda one: f"{one}.v")

    return sql


def _sort(puts_nulls_first: bool) -> Special:
    """``array_sort(a)``: ascending, NULL last; ``sort_array(a[, ascending])``: NULL first, or last if it descends."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        array = need_array(context, place, operands[0])
        if not is_ordered(array.type):
            raise context.unsupported(place, f"sorting {typed_name(array)}", "Sort an array of other values.")
        ascends = operands[1].constant if len(operands) > 1 else True
        if not isinstance(ascends, bool):
            raise context.unsupported(place, "an order that is not written out", "Write TRUE or FALSE.")
        made = _sorted(not ascends, puts_nulls_first and ascends)
        return opaque(strict(made(array.sql, array.type.value_type), array.type, (array,)))

    return rule


def _extreme(name: str, function: str) -> Special:
    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        array = need_array(context, place, operands[0])
        type = array.type.value_type
        if is_nested(type):
            instead = "Take an element of the sorted array: sort_array(a)[0]."
            raise context.unsupported(place, f"{name}() of {typed_name(array)}", instead)
        return opaque(Scalar(f"CAST({function}({array.sql}) AS {duck_name(type)})", type, array.fails))

    return rule


def _repeated(context: Context, place: Place, operands: Operands) -> Scalar:
    """``array_repeat(value, times)``."""
    value, times = operands[0], take(context, place, _INT, operands[1])
    if is_untyped(value.type):
        raise context.unsupported(place, f"array_repeat() of {typed_name(value)}", CAST_IT)
    bounded = once(times.sql, lambda n: f"CASE WHEN {n} > {ELEMENTS_MAX} THEN {TOO_MANY} ELSE CAST({n} AS BIGINT) END")
    sql = each(f"range(0, {bounded})", lambda _: value.sql, value.sql)
    return opaque(Scalar(sql, array_type(value.type), True, nulls=times.null_by))


def _sliced(context: Context, place: Place, operands: Operands) -> Scalar:
    array = need_array(context, place, operands[0])
    start, length = (take(context, place, OperandKind.WHOLE, value) for value in operands[1:])
    parts = in_order(array, start, length)
    return opaque(strict(macro("spark_slice", *(part.sql for part in parts)), array.type, parts, fails=True))


def _inserted(context: Context, place: Place, operands: Operands) -> Scalar:
    """``array_insert(a, place, value)``: NULLs fill up what lies between."""
    array, value = _alike(context, place, operands[0], operands[2])
    array, index = in_order(array, take(context, place, _INT, operands[1]))
    empty = f"CAST(NULL AS {duck_name(value.type)})"
    given = f"{{'a': {array.sql}, 'n': CAST({index.sql} AS BIGINT), 'v': {value.sql}}}"

    def inserted(g: str) -> str:
        size, at = f"len({g}.a)", f"(CASE WHEN {g}.n > 0 THEN {g}.n - 1 ELSE len({g}.a) + {g}.n + 1 END)"
        wide = f"greatest({size}, abs({g}.n)) > {ELEMENTS_MAX}"
        missing = each(f"range(0, greatest({at} - {size}, -{at}))", lambda _: empty)
        within = f"({g}.a[1:{at}] || [{g}.v] || {g}.a[{at} + 1:])"
        return (
            f"CASE WHEN {g}.a IS NULL OR {g}.n IS NULL THEN NULL WHEN {g}.n = 0 THEN error('The place 0 is invalid') "
            f"WHEN {wide} THEN {TOO_MANY} WHEN {at} > {size} THEN {g}.a || {missing} || [{g}.v] "
            f"WHEN {at} < 0 THEN [{g}.v] || {missing} || {g}.a WHEN {at} = 0 THEN [{g}.v] || {g}.a ELSE {within} END"
        )

    nulls = array.null_by | index.null_by
    return opaque(Scalar(once(given, inserted), array.type, fails=True, nulls=nulls))


def _flat(context: Context, place: Place, operands: Operands) -> Scalar:
    """``flatten(a)``: NULL if one of the arrays in it is."""
    array = need_array(context, place, operands[0])
    if not is_array(array.type.value_type):
        raise context.unsupported(place, f"flatten() of {typed_name(array)}", "Give it an array of arrays.")
    return opaque(Scalar(macro("spark_flatten", array.sql), array.type.value_type, array.fails))


# Maps


def _of_map(how: str, gives: Callable[[pa.DataType], pa.DataType]) -> Special:
    """A function of one map. how: DuckDB SQL, with {0} for it."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        value = need_map(context, place, operands[0])
        return opaque(strict(how.replace("{0}", value.sql), gives(value.type), (value,)))

    return rule


def _entries(context: Context, place: Place, operands: Operands) -> Scalar:
    value = need_map(context, place, operands[0])
    sql = each(f"map_entries({value.sql})", lambda one: struct_sql([f"{one}.key", f"{one}.value"]))
    return opaque(strict(sql, array_type(struct_type(["key", "value"], parts_of(value.type))), (value,)))


def sorted_entries(value: Scalar) -> Scalar:
    """The entries of a map in the order of its keys: the same for equal maps, by which Spark groups them."""
    pair = struct_type(["key", "value"], parts_of(value.type))
    entries = each(f"map_entries({value.sql})", lambda one: struct_sql([f"{one}.key", f"{one}.value"]))
    return strict(_sorted(False, False)(entries, pair), array_type(pair), (value,))


def map_of(entries: Scalar, type: pa.DataType) -> Scalar:
    """The inverse of :func:`sorted_entries`. type: the map's."""

    def made(a: str) -> str:
        keys, values = each(a, lambda one: field_sql(one, 0)), each(a, lambda one: field_sql(one, 1))
        return f"CASE WHEN {a} IS NOT NULL THEN MAP({keys}, {values}) END"

    return strict(once(entries.sql, made), type, (entries,))


def _of_text(context: Context, place: Place, operands: Operands) -> Scalar:
    """``str_to_map(s[, between pairs[, between key and value]])``; a key without a value has NULL."""
    text = take(context, place, _TEXT, operands[0])
    written = [operand.constant for operand in operands[1:]]
    pair, colon = (plain_text(mark) for mark in (*written, *(",", ":")[len(written) :]))
    if not pair or not colon:
        raise context.unsupported(place, "str_to_map() by this separator", "Write letters that mean themselves.")
    pairs = f"string_split({text.sql}, {string_sql(pair)})"

    def made(p: str) -> str:
        mark = string_sql(colon)
        keys = each(p, lambda one: f"string_split({one}, {mark})[1]")
        values = each(p, lambda one: f"substring({one}, nullif(instr({one}, {mark}), 0) + {len(colon)})")
        return macro("spark_map", keys, values)

    type = map_type(pa.string(), pa.string())
    return opaque(strict(once(pairs, made), type, (text,), fails=True))


def _contains_key(context: Context, place: Place, operands: Operands) -> Scalar:
    value, key = need_map(context, place, operands[0]), operands[1]
    keys = Scalar(f"map_keys({value.sql})", array_type(value.type.key_type), value.fails, nulls=value.null_by)
    return _with_element("spark_array_contains", pa.bool_())(context, place, (keys, key))


def _from_arrays(context: Context, place: Place, operands: Operands) -> Scalar:
    """``map_from_arrays(keys, values)``."""
    keys, values = in_order(*(need_array(context, place, value) for value in operands))
    return _made(context, place, keys.sql, values.sql, keys.type.value_type, values.type.value_type, (keys, values))


def _made(
    context: Context,
    place: Place,
    keys: str,
    values: str,
    key: pa.DataType,
    value: pa.DataType,
    operands: Sequence[Scalar],
) -> Scalar:
    if not is_ordered(key):
        raise context.unsupported(place, "a map whose keys hold maps", "Take other keys.")
    return opaque(Scalar(macro("spark_map", keys, values), map_type(key, value), fails=True))


def _from_entries(context: Context, place: Place, operands: Operands) -> Scalar:
    """``map_from_entries(a)``, of an array of structs of two fields; NULL if one of the structs is."""
    array = need_array(context, place, operands[0])
    pair = array.type.value_type
    if not is_struct(pair) or pair.num_fields != 2 or not is_ordered(pair.field(0).type):
        raise context.unsupported(place, f"map_from_entries() of {typed_name(array)}", "Give it structs of two fields.")

    def made(a: str) -> str:
        parts = each(a, lambda one: field_sql(one, 0)), each(a, lambda one: field_sql(one, 1))
        is_null = f"{a} IS NULL OR len(list_filter({a}, lambda e: e IS NULL)) > 0"
        return f"CASE WHEN {is_null} THEN NULL ELSE {macro('spark_map', *parts)} END"

    type = map_type(pair.field(0).type, pair.field(1).type)
    return opaque(Scalar(once(array.sql, made), type, fails=True))


def _united(context: Context, place: Place, operands: Operands) -> Scalar:
    """``map_concat(a, b, ...)``. Spark raises if a key comes twice."""
    maps = [need_map(context, place, value) for value in to_common(context, place, operands)]
    keys, values = (" || ".join(f"{function}({one.sql})" for one in maps) for function in ("map_keys", "map_values"))
    return opaque(Scalar(macro("spark_map", f"({keys})", f"({values})"), maps[0].type, fails=True))


_TYPE, _TWICE = "the array's type", "where a key is NULL, or comes twice"
_COMMON, _OF_ELEMENT = "ARRAY of the common type", "the element's type"
_BOOLEAN = "BOOLEAN"

ARRAYS: tuple[Function, ...] = (
    Function(
        "array_contains",
        (_ANY, _ANY),
        _with_element("spark_array_contains", pa.bool_()),
        _BOOLEAN,
        nulls="also if it has NULL, and not the value",
        samples="array_contains(ai, i); array_contains(axs, x); array_contains(texts, s); array_contains(lists, bi)",
    ),
    Function(
        "array_position",
        (_ANY, _ANY),
        _with_element("spark_array_position", pa.int64()),
        "BIGINT; 0 if it is not there",
        samples="array_position(ai, i); array_position(axs, x); array_position(texts, u)",
    ),
    Function(
        "array_remove",
        (_ANY, _ANY),
        _with_element("spark_array_remove", None),
        _TYPE,
        samples="array_remove(ai, i); array_remove(axs, w); array_remove(sts, st)",
    ),
    Function(
        "array_append",
        (_ANY, _ANY),
        _with_element("spark_array_append", None, is_strict=False),
        _COMMON,
        nulls="where the array is",
        samples="array_append(ai, j); array_append(texts, u); array_append(ai, l)",
    ),
    Function(
        "array_prepend",
        (_ANY, _ANY),
        _with_element("spark_array_prepend", None, is_strict=False),
        _COMMON,
        nulls="where the array is",
        samples="array_prepend(ai, j); array_prepend(texts, u)",
    ),
    Function(
        "array_distinct",
        (_ANY,),
        _of_array("spark_array_distinct({0})"),
        _TYPE,
        samples="array_distinct(ai); array_distinct(axs); array_distinct(lists); array_distinct(sts)",
    ),
    Function(
        "array_union",
        (_ANY, _ANY),
        _of_two("spark_array_union"),
        _COMMON,
        samples="array_union(ai, bi); array_union(axs, axs); array_union(lists, lists)",
    ),
    Function(
        "array_intersect",
        (_ANY, _ANY),
        _of_two("spark_array_intersect"),
        _COMMON,
        samples="array_intersect(ai, bi); array_intersect(axs, array(x)); array_intersect(texts, array(s, u))",
    ),
    Function(
        "array_except",
        (_ANY, _ANY),
        _of_two("spark_array_except"),
        _COMMON,
        samples="array_except(ai, bi); array_except(axs, array(x)); array_except(sts, array(st))",
    ),
    Function(
        "arrays_overlap",
        (_ANY, _ANY),
        _of_two("spark_arrays_overlap", pa.bool_()),
        _BOOLEAN,
        nulls="also if only NULL could be in both",
        samples="arrays_overlap(ai, bi); arrays_overlap(axs, array(x)); arrays_overlap(texts, array(s))",
    ),
    Function(
        "array_insert",
        (_ANY, _INT, _ANY),
        _inserted,
        _COMMON,
        nulls="where the array or the place is",
        fails=f"for place 0, and for more than {ELEMENTS_MAX:,} elements",
        lenient=RAISES,
        samples="array_insert(ai, i, j); array_insert(texts, -2, u); array_insert(bi, j, l); array_insert(axs, y, x); "
        "array_insert(sts, 2, st); array_insert(ai, imax, 1)",
    ),
    Function(
        "array_size",
        (_ANY,),
        _of_array("CAST(len({0}) AS INTEGER)", lambda type: pa.int32()),
        "INT",
        samples="array_size(ai); array_size(lists)",
    ),
    Function(
        "array_compact",
        (_ANY,),
        _of_array("list_filter({0}, lambda e: e IS NOT NULL)"),
        _TYPE,
        samples="array_compact(ai); array_compact(sts)",
    ),
    Function(
        "arrays_zip",
        (_ANY,),
        None,
        "ARRAY of STRUCT",
        repeats=True,
        samples="arrays_zip(ai, texts); arrays_zip(bi)",
    ),
    Function(
        "array_join",
        (_ANY, _TEXT, _TEXT),
        _joined,
        "STRING",
        least=2,
        samples="array_join(texts, ','); array_join(ai, '_'); array_join(ai, ', ', 'none'); "
        "array_join(texts, '', '-'); array_join(texts, '-', u)",
    ),
    Function(
        "sort_array",
        (_ANY, OperandKind.CONDITION),
        _sort(puts_nulls_first=True),
        _TYPE,
        least=1,
        samples="sort_array(ai); sort_array(axs, false); sort_array(sts); sort_array(lists, false); sort_array(texts)",
    ),
    Function(
        "array_sort",
        (_ANY,),
        _sort(puts_nulls_first=False),
        _TYPE,
        samples="array_sort(ai); array_sort(axs); array_sort(sts); array_sort(lists)",
    ),
    Function(
        "array_min",
        (_ANY,),
        _extreme("array_min", "list_min"),
        _OF_ELEMENT,
        nulls="also without an element that is not NULL",
        samples="array_min(ai); array_min(axs); array_min(texts)",
    ),
    Function(
        "array_max",
        (_ANY,),
        _extreme("array_max", "list_max"),
        _OF_ELEMENT,
        nulls="also without an element that is not NULL",
        samples="array_max(ai); array_max(axs); array_max(texts)",
    ),
    Function(
        "array_repeat",
        (_ANY, _INT),
        _repeated,
        "ARRAY of the first operand's type",
        nulls="where the number is",
        fails=f"for more than {ELEMENTS_MAX:,} elements",
        lenient=RAISES,
        samples="array_repeat(s, j); array_repeat(st, 2)",
    ),
    Function(
        "slice",
        (_ANY, OperandKind.WHOLE, OperandKind.WHOLE),
        _sliced,
        _TYPE,
        fails="where the start is 0 or the length negative",
        lenient=RAISES,
        samples="slice(ai, 2, 2); slice(ai, j, y); slice(texts, -2, 1); slice(axs, -3, 9)",
    ),
    Function(
        "flatten",
        (_ANY,),
        _flat,
        "the type of its arrays",
        nulls="also where one of its arrays is",
        samples="flatten(lists); flatten(array(ai, bi))",
    ),
)
"""Of arrays."""

MAPS: tuple[Function, ...] = (
    Function(
        "str_to_map",
        (_TEXT, OperandKind.WRITTEN, OperandKind.WRITTEN),
        _of_text,
        "MAP<STRING, STRING>",
        1,
        fails="where a key comes twice",
        lenient=RAISES,
        samples="str_to_map(s); str_to_map(urls, '&', '='); str_to_map(u || ':1,' || s || ':' || u); "
        "str_to_map(s, 'a', '::')",
    ),
    Function(
        "map_keys",
        (_ANY,),
        _of_map("map_keys({0})", lambda type: array_type(type.key_type)),
        "ARRAY",
        samples="map_keys(mp); map_keys(dm)",
    ),
    Function(
        "map_values",
        (_ANY,),
        _of_map("map_values({0})", lambda type: array_type(type.item_type)),
        "ARRAY",
        samples="map_values(mp)",
    ),
    Function("map_entries", (_ANY,), _entries, "ARRAY of STRUCT", samples="map_entries(mp); map_entries(dm)"),
    Function(
        "map_contains_key",
        (_ANY, _ANY),
        _contains_key,
        _BOOLEAN,
        samples="map_contains_key(mp, s); map_contains_key(dm, x)",
    ),
    Function(
        "map_from_arrays",
        (_ANY, _ANY),
        _from_arrays,
        "MAP",
        fails=f"{_TWICE}, or the numbers differ",
        lenient=RAISES,
        samples="map_from_arrays(array_distinct(array_compact(ai)), bi); map_from_arrays(bi, bi)",
    ),
    Function(
        "map_from_entries",
        (_ANY,),
        _from_entries,
        "MAP",
        nulls="also where an entry is",
        fails=_TWICE,
        lenient=RAISES,
        samples="map_from_entries(sts); map_from_entries(map_entries(mp))",
    ),
    Function(
        "map_concat",
        (_ANY,),
        _united,
        "MAP",
        repeats=True,
        fails=_TWICE,
        lenient=RAISES,
        samples="map_concat(mp, map('q', i)); map_concat(mp, mp); map_concat(mp)",
    ),
)
"""Of maps."""
