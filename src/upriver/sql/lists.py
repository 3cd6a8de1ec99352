"""Lists that are computed from a row: ``split``, ``sequence``, ``array``, ``map``, and columns of type ARRAY or MAP."""

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.types as kinds
from sqlglot import exp

from upriver.plan.relation import Scalar
from upriver.plan.source import ELSEWHERE
from upriver.plan.types import duck_name, duck_type, is_date, is_instant, is_integer, is_wall_clock
from upriver.sql.operators import Interval, interval_of, to_common
from upriver.sql.patterns import plain_text, splitting
from upriver.sql.scalars import Context, column_scalar, in_order, intolerant, strict, string_sql, typed_name
from upriver.sql.signatures import OperandKind, take

_DAY_MICROS = 86_400_000_000
_STEPS = "Write its step as a constant: INTERVAL '1' DAY, INTERVAL '1' MONTH."

Listed = Callable[[Context, exp.Expr], Scalar]
"""A value of type ARRAY, or MAP as the ARRAY of its entries."""


def listed(context: Context, node: exp.Expr, columns: pa.Schema) -> Scalar:
    """The translation of a bound node that must be a list: of entries, key and value, if it is a map.

    columns: of the rows. Raises UnsupportedSql.
    """
    if isinstance(node, exp.Column):
        type = columns.field(node.name).type
        column = column_scalar(node.name, type)
        if kinds.is_list(type) and duck_type(type) is not None:
            return column
        if kinds.is_map(type):
            entry = pa.struct([("f0", type.key_type), ("f1", type.item_type)])
            if duck_type(entry) is not None:
                pair = "{'f0': e.key, 'f1': e.value}"
                entries = f"list_transform(map_entries({column.sql}), lambda e: {pair})"
                return strict(entries, pa.list_(entry), (column,))
    name = node.name.lower() if isinstance(node, exp.Anonymous) else ""
    if name not in LISTS:
        what = f"a list of {node.sql(dialect='spark')}"
        raise context.unsupported(node, what, "Give it a column of type ARRAY or MAP, split(s, ',') or sequence(a, b).")
    context.only(node, "this", "expressions")
    return LISTS[name](context, node)


def _array(context: Context, node: exp.Expr) -> Scalar:
    """``array(a, b, ...)``."""
    values = to_common(context, node, context.translate_all(node.expressions))
    if not values or duck_name(values[0].type) is None:
        raise context.unsupported(node, "array() of values without a type", "Give it values, and CAST(NULL AS ...).")
    fails = any(value.fails for value in values)
    return Scalar(f"[{', '.join(value.sql for value in values)}]", pa.list_(values[0].type), fails, nulls=frozenset())


def _map(context: Context, node: exp.Expr) -> Scalar:
    """``map(key, value, ...)`` with different constants as keys."""
    keys, values = node.expressions[::2], node.expressions[1::2]
    names = to_common(context, node, context.translate_all(keys))
    given = to_common(context, node, context.translate_all(values))
    constants = [name.constant for name in names]
    if not names or len(names) > len(given) or None in constants or len(set(constants)) < len(constants):
        what = "map() with keys that are not different constants"
        raise context.unsupported(node, what, "Write the keys as constants, each once.")
    if duck_name(given[0].type) is None:
        raise context.unsupported(node, f"map() of {typed_name(given[0])}", "CAST it.")
    pairs = zip(names, given, strict=True)
    entries = ", ".join(f"{{'f0': {name.sql}, 'f1': {value.sql}}}" for name, value in pairs)
    type = pa.struct([("f0", names[0].type), ("f1", given[0].type)])
    fails = any(value.fails for value in (*names, *given))
    return Scalar(f"[{entries}]", pa.list_(type), fails, nulls=frozenset())


def _split(context: Context, node: exp.Expr) -> Scalar:
    """``split(s, pattern[, limit])``: all parts, or at most so many, of which the last is the rest."""
    operands = context.translate_all(node.expressions)
    if not 2 <= len(operands) <= 3:
        raise context.unsupported(node, f"split() of {len(operands)} operands", "Give it a text and a pattern.")
    text = take(context, node, OperandKind.STRING, operands[0])
    limit = operands[2].constant if len(operands) > 2 else -1
    if not isinstance(limit, int):
        raise context.unsupported(node, "split() with a computed limit", "Write it as a number.")
    separator = plain_text(operands[1].constant)
    if separator is None:
        if limit > 0:
            what = "split() with a limit, by a regular expression"
            raise context.unsupported(node, what, "Leave the limit out, or split by letters without a meaning.")
        pattern = splitting(context, node, operands[1])
        return strict(f"string_split_regex({text.sql}, {string_sql(pattern)})", _TEXTS, (text,))
    parts = f"string_split({text.sql}, {string_sql(separator)})"
    if not separator:
        parts = f"CASE WHEN {text.sql} = '' THEN [''] ELSE string_split({text.sql}, '') END"
    if limit > 0:
        rest = f"array_to_string(p[{limit}:], {string_sql(separator)})"
        cut = f"CASE WHEN len(p) > {limit} THEN list_append(p[:{limit - 1}], {rest}) ELSE p END"
        parts = f"list_transform([{parts}], lambda p: {cut})[1]"
    return strict(parts, _TEXTS, (text,))


_TEXTS = pa.list_(pa.string())


def _sequence(context: Context, node: exp.Expr) -> Scalar:
    """``sequence(start, stop[, step])``, both inclusive."""
    operands = node.expressions
    if not 2 <= len(operands) <= 3:
        raise context.unsupported(node, f"sequence() of {len(operands)} operands", "Give it a start and an end.")
    bounds = to_common(context, node, context.translate_all(operands[:2]))
    type = bounds[0].type
    step = operands[2] if len(operands) > 2 else None
    if is_integer(type):
        return _whole_numbers(context, node, bounds, step)
    if is_date(type) or is_instant(type) or is_wall_clock(type):
        interval = Interval(0, _DAY_MICROS, in_days=True) if step is None else _interval(step)
        if interval is not None and (interval.months or interval.micros):
            return _moments(context, node, bounds, interval)
        raise context.unsupported(node, "sequence() by this step", _STEPS)
    raise context.unsupported(node, f"sequence() of {typed_name(bounds[0])}", ELSEWHERE)


def _interval(step: exp.Expr) -> Interval | None:
    return interval_of(step) if isinstance(step, exp.Interval) else None


_WRONG_WAY = "error('sequence() with a step that does not lead from its start to its end')"


def _whole_numbers(context: Context, node: exp.Expr, bounds: tuple[Scalar, ...], step: exp.Expr | None) -> Scalar:
    by = None if step is None else context.translate(step)
    if by is not None and not is_integer(by.type):
        raise context.unsupported(node, f"sequence() by {typed_name(by)}", "Give it a whole number.")
    taken = in_order(*bounds, *([] if by is None else [by]))
    given = ", ".join(f"'v{number}': CAST({value.sql} AS BIGINT)" for number, value in enumerate(taken))
    if by is None:
        found = "generate_series(v.v0, v.v1, CASE WHEN v.v0 <= v.v1 THEN 1 ELSE -1 END)"
    else:
        right = "(v.v2 > 0 AND v.v0 < v.v1) OR (v.v2 < 0 AND v.v0 > v.v1)"
        found = f"CASE WHEN v.v0 = v.v1 THEN [v.v0] WHEN {right} THEN generate_series(v.v0, v.v1, v.v2) "
        found += f"WHEN v.v0 + v.v1 + v.v2 IS NOT NULL THEN {_WRONG_WAY} END"
    type = bounds[0].type
    sql = f"CAST(list_transform([{{{given}}}], lambda v: {found})[1] AS {duck_name(type)}[])"
    return strict(sql, pa.list_(type), taken, fails=by is not None)


def _moments(context: Context, node: exp.Expr, bounds: tuple[Scalar, ...], interval: Interval) -> Scalar:
    """Dates, or times: the n-th is so many steps behind the start."""
    type = bounds[0].type
    if is_instant(type) and (interval.months or interval.in_days):
        context.need_utc(node, "sequence() by days or months")
    start, stop = in_order(*bounds)
    given = f"'a': CAST({start.sql} AS TIMESTAMP), 'b': CAST({stop.sql} AS TIMESTAMP)"
    length = interval.micros or interval.months
    if interval.months:
        count = f"datediff('month', v.a, v.b) // {length} + 1"
        moment = f"v.a + to_months(CAST(n * {length} AS INTEGER))"
    else:
        count = f"(epoch_us(v.b) - epoch_us(v.a)) // {length}"
        moment = f"make_timestamp(epoch_us(v.a) + n * {length})"
    compared = "<=" if length > 0 else ">="
    made = f"list_transform(generate_series(0, {count}), lambda n: {moment})"
    if interval.months:
        made = f"list_filter({made}, lambda m: m {compared} v.b)"
    right = f"v.a {compared} v.b"
    found = f"CASE WHEN v.a = v.b THEN [v.a] WHEN {right} THEN {made} "
    found += f"WHEN v.a IS NOT NULL AND v.b IS NOT NULL THEN {_WRONG_WAY} END"
    sql = f"CAST(list_transform([{{{given}}}], lambda v: {found})[1] AS {duck_name(type)}[])"
    return intolerant(strict(sql, pa.list_(type), (start, stop), fails=True), (start, stop))


LISTS: Mapping[str, Listed] = {"array": _array, "map": _map, "split": _split, "sequence": _sequence}
"""The functions that give lists."""
