"""Lists that are computed from a row: what generators take, ``split`` and ``sequence``."""

import pyarrow as pa

from upriver.plan.relation import Scalar
from upriver.plan.source import ELSEWHERE, Place
from upriver.plan.types import (
    array_type,
    duck_name,
    is_date,
    is_instant,
    is_integer,
    is_wall_clock,
)
from upriver.sql.functions.arithmetic import DAY_MICROS, Interval, to_common
from upriver.sql.functions.nested_values import ELEMENTS_MAX, TOO_MANY
from upriver.sql.functions.patterns import plain_text, splitting
from upriver.sql.functions.scalars import Context, in_order, intolerant, strict, string_sql, typed_name
from upriver.sql.functions.signatures import RAISES, Function, OperandKind, Operands, take

_STEPS = "Write its step as a constant: INTERVAL '1' DAY, INTERVAL '1' MONTH."


def _split(context: Context, place: Place, operands: Operands) -> Scalar:
    """``split(s, pattern[, limit])``: all parts, or at most ``limit``; the last one is the rest."""
    text = take(context, place, OperandKind.STRING, operands[0])
    limit = operands[2].constant if len(operands) > 2 else -1
    if not isinstance(limit, int):
        raise context.unsupported(place, "split() with a computed limit", "Write it as a number.")
    separator = plain_text(operands[1].constant)
    if separator is None:
        if limit > 0:
            what = "split() with a limit, by a regular expression"
            raise context.unsupported(place, what, "Leave the limit out, or split by letters without a meaning.")
        pattern = splitting(context, place, operands[1])
        return strict(f"string_split_regex({text.sql}, {string_sql(pattern)})", _TEXTS, (text,))
    parts = f"string_split({text.sql}, {string_sql(separator)})"
    if not separator:
        parts = f"CASE WHEN {text.sql} = '' THEN [''] ELSE string_split({text.sql}, '') END"
    if limit > 0:
        rest = f"array_to_string(p[{limit}:], {string_sql(separator)})"
        cut = f"CASE WHEN len(p) > {limit} THEN list_append(p[:{limit - 1}], {rest}) ELSE p END"
        parts = f"list_transform([{parts}], lambda p: {cut})[1]"
    return strict(parts, _TEXTS, (text,))


_TEXTS = array_type(pa.string())


def sequence(context: Context, place: Place, operands: Operands, step: Scalar | Interval | None) -> Scalar:
    """``sequence(start, stop[, step])``, both inclusive. step: an Interval if it is written as one."""
    bounds = to_common(context, place, operands)
    type = bounds[0].type
    if is_integer(type) and not isinstance(step, Interval):
        return _whole_numbers(context, place, bounds, step)
    if is_date(type) or is_instant(type) or is_wall_clock(type):
        interval = Interval(0, DAY_MICROS, in_days=True) if step is None else step
        if isinstance(interval, Interval) and (interval.months or interval.micros):
            return _moments(context, place, bounds, interval)
        raise context.unsupported(place, "sequence() by this step", _STEPS)
    raise context.unsupported(place, f"sequence() of {typed_name(bounds[0])}", ELSEWHERE)


_WRONG_WAY = "error('sequence() with a step that does not lead from its start to its end')"


def _whole_numbers(context: Context, place: Place, bounds: tuple[Scalar, ...], by: Scalar | None) -> Scalar:
    if by is not None and not is_integer(by.type):
        raise context.unsupported(place, f"sequence() by {typed_name(by)}", "Give it a whole number.")
    taken = in_order(*bounds, *([] if by is None else [by]))
    given = ", ".join(f"'v{number}': CAST({value.sql} AS BIGINT)" for number, value in enumerate(taken))
    distance = "abs(CAST(v.v1 AS HUGEINT) - v.v0)"
    if by is None:
        found = f"CASE WHEN {distance} >= {ELEMENTS_MAX} THEN {TOO_MANY} "
        found += "ELSE generate_series(v.v0, v.v1, CASE WHEN v.v0 <= v.v1 THEN 1 ELSE -1 END) END"
    else:
        right = "(v.v2 > 0 AND v.v0 < v.v1) OR (v.v2 < 0 AND v.v0 > v.v1)"
        too_many = f"({right}) AND {distance} >= {ELEMENTS_MAX} * abs(CAST(v.v2 AS HUGEINT))"
        found = f"CASE WHEN v.v0 = v.v1 THEN [v.v0] WHEN {too_many} THEN {TOO_MANY} "
        found += f"WHEN {right} THEN generate_series(v.v0, v.v1, v.v2) "
        found += f"WHEN v.v0 IS NOT NULL AND v.v1 IS NOT NULL AND v.v2 IS NOT NULL THEN {_WRONG_WAY} END"
    type = bounds[0].type
    sql = f"CAST(list_transform([{{{given}}}], lambda v: {found})[1] AS {duck_name(type)}[])"
    return strict(sql, array_type(type), taken, fails=True)


def _moments(context: Context, place: Place, bounds: tuple[Scalar, ...], interval: Interval) -> Scalar:
    """Dates, or times: the n-th is so many steps behind the start."""
    type = bounds[0].type
    if is_instant(type) and (interval.months or interval.in_days):
        context.need_utc(place, "sequence() by days or months")
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
    found = f"CASE WHEN v.a = v.b THEN [v.a] WHEN {right} AND {count} >= {ELEMENTS_MAX} THEN {TOO_MANY} "
    found += f"WHEN {right} THEN {made} "
    found += f"WHEN v.a IS NOT NULL AND v.b IS NOT NULL THEN {_WRONG_WAY} END"
    sql = f"CAST(list_transform([{{{given}}}], lambda v: {found})[1] AS {duck_name(type)}[])"
    return intolerant(strict(sql, array_type(type), (start, stop), fails=True), (start, stop))


LISTS: tuple[Function, ...] = (
    Function(
        "split",
        (OperandKind.STRING, OperandKind.WRITTEN, OperandKind.INT),
        _split,
        "ARRAY<STRING>",
        least=2,
        samples="split(s, 'b'); split(s, '[a-c]'); split(s, ''); split(s, 'a', 2); split(u, 'b', -1)",
    ),
    Function(
        "sequence",
        (OperandKind.ANY, OperandKind.ANY, OperandKind.ANY),
        None,
        "ARRAY of the common type",
        least=2,
        fails=f"where the step leads away from the end, and for more than {ELEMENTS_MAX:,} elements",
        lenient=RAISES,
        samples="sequence(i, j); sequence(i, i + 3, 1); sequence(DATE '2024-01-01', DATE '2024-01-03')",
    ),
)
"""Functions that give lists."""
