"""Truth: comparisons, AND and OR, CASE, IN, BETWEEN, LIKE, IS, and the syntax of CAST.

DuckDB evaluates both sides of AND and OR for every row; Spark stops early. This shows when the side that is not needed
fails (``b <> 0 AND a / b > 1``). The translator then writes a CASE: DuckDB evaluates only the branch that it takes.
"""

from collections.abc import Sequence

import pyarrow as pa

from upriver.plan.relation import Scalar, any_fails
from upriver.plan.source import Place
from upriver.plan.types import is_nested
from upriver.sql.functions.arithmetic import to_common, to_comparable
from upriver.sql.functions.decimals import are_decimals, least_decimal
from upriver.sql.functions.nested_values import order_form
from upriver.sql.functions.scalars import (
    FALSE,
    TRUE,
    Context,
    in_order,
    intolerant,
    macro,
    never_null,
    strict,
    string_sql,
)
from upriver.sql.functions.signatures import OperandKind, take


def comparables(context: Context, place: Place, left: Scalar, right: Scalar) -> tuple[Scalar, ...]:
    """Both values as of the type in which they are compared."""
    if are_decimals(left, right):
        left, right = least_decimal(context, place, left), least_decimal(context, place, right)
    return to_comparable(context, place, (left, right))


def compare(context: Context, place: Place, sign: str, left: Scalar, right: Scalar) -> Scalar:
    left, right = comparables(context, place, left, right)
    if sign == "IS NOT DISTINCT FROM" and left.sql == right.sql:  # as in Spark's optimizer
        return TRUE
    if sign.startswith("IS "):
        sql = f"({left.sql} {sign} {right.sql})"
        return Scalar(sql, pa.bool_(), any_fails((left, right)), nulls=frozenset())
    left, right = in_order(left, right)
    if is_nested(left.type) and sign[0] in "<>" and sign != "<>":
        sides = (order_form(side.sql, side.type) for side in (left, right))
        return strict(f"({f' {sign} '.join(sides)})", pa.bool_(), (left, right))
    return strict(f"({left.sql} {sign} {right.sql})", pa.bool_(), (left, right))


# AND and OR


def connect(word: str, parts: Sequence[Scalar]) -> Scalar:
    """``AND`` or ``OR`` of the parts; a part that can fail is evaluated only if those before it do not decide."""
    head, rest = parts[0], parts[1:]
    if not rest:
        return head
    if not any_fails(rest):
        sql = f" {word} ".join(part.sql for part in parts)
        return Scalar(f"({sql})", pa.bool_(), head.fails)
    tail = connect(word, rest)
    decided, result = (f"NOT {head.sql}", "FALSE") if word == "AND" else (head.sql, "TRUE")
    return Scalar(f"CASE WHEN {decided} THEN {result} ELSE ({head.sql} {word} {tail.sql}) END", pa.bool_(), fails=True)


def conjunction(parts: Sequence[Scalar]) -> str:
    """All parts. As in Spark, a row stops at the first part that is not true."""
    head, rest = parts[0], parts[1:]
    if not any_fails(rest):
        return " AND ".join(part.sql for part in parts)
    return f"CASE WHEN {head.sql} THEN {conjunction(rest)} ELSE FALSE END"


# CASE and its kin


def choose(context: Context, place: Place, branches: Sequence[tuple[Scalar, Scalar]], otherwise: Scalar) -> Scalar:
    """CASE WHEN: the value of the first branch whose condition is true."""
    *values, last = to_common(context, place, [*(value for _, value in branches), otherwise])
    conditions = [condition for condition, _ in branches]
    whens = " ".join(
        f"WHEN {condition.sql} THEN {value.sql}" for condition, value in zip(conditions, values, strict=True)
    )
    sql = f"CASE {whens} ELSE {last.sql} END"
    chosen = Scalar(sql, last.type, any_fails((*conditions, *values, last)))
    return chosen if any(value.null_by for value in (*values, last)) else never_null(chosen)


# IN, BETWEEN, IS


def within(context: Context, place: Place, value: Scalar, items: Sequence[Scalar]) -> Scalar:
    """``value IN (items)``."""
    value, *items = to_comparable(context, place, (value, *items))
    if len(items) == 1 and items[0].constant is not None:  # as in Spark's optimizer
        return compare(context, place, "=", value, items[0])
    if any_fails(items):
        pairs = [in_order(value, item) for item in items]
        return connect("OR", [strict(f"({one.sql} = {other.sql})", pa.bool_(), (one, other)) for one, other in pairs])
    listed = ", ".join(item.sql for item in items)
    return Scalar(f"({value.sql} IN ({listed}))", pa.bool_(), value.fails)


def is_null_test(value: Scalar) -> Scalar:
    """``IS NULL``. As in Spark's optimizer, a value that cannot be NULL is not computed for it."""
    if not value.null_by:
        return FALSE
    return Scalar(f"({value.sql} IS NULL)", pa.bool_(), value.fails, nulls=frozenset())


def not_null_test(value: Scalar) -> Scalar:
    """``IS NOT NULL``."""
    sql = f"({value.sql} IS NOT NULL)" if value.null_by else "TRUE"
    fails = value.fails and bool(value.null_by)
    test = Scalar(sql, pa.bool_(), fails, nulls=frozenset(), is_test=True)
    return intolerant(test, (value,))


def negation(value: Scalar) -> Scalar:
    return strict(f"(NOT {value.sql})", pa.bool_(), (value,))


# LIKE


def like(
    context: Context, place: Place, value: Scalar, pattern: Scalar, escape: str, is_negated: bool = False
) -> Scalar:
    """``value LIKE pattern ESCAPE escape``."""
    value, pattern = (take(context, place, OperandKind.STRING, one) for one in (value, pattern))
    if not isinstance(pattern.constant, str):
        return _like_computed(value, pattern, escape, is_negated)
    _check_pattern(context, place, pattern.constant, escape)
    word = "NOT LIKE" if is_negated else "LIKE"
    return strict(f"({value.sql} {word} {pattern.sql} ESCAPE {string_sql(escape)})", pa.bool_(), (value, pattern))


def _like_computed(value: Scalar, pattern: Scalar, escape: str, is_negated: bool) -> Scalar:
    """``LIKE`` with a pattern of each row, which fails where an escape stands before a plain letter."""
    value, pattern = in_order(value, pattern)
    sql = macro("spark_like", value.sql, pattern.sql, string_sql(escape))
    return strict(f"(NOT {sql})" if is_negated else sql, pa.bool_(), (value, pattern), fails=True)


def like_any_case(
    context: Context, place: Place, value: Scalar, pattern: Scalar, escape: str, is_negated: bool = False
) -> Scalar:
    """``value ILIKE pattern``."""
    value, pattern = (take(context, place, OperandKind.STRING, one) for one in (value, pattern))
    if not isinstance(pattern.constant, str) or not pattern.constant.isascii():
        low, low_pattern = (strict(macro("spark_lower", one.sql), pa.string(), (one,)) for one in (value, pattern))
        return _like_computed(low, low_pattern, escape, is_negated)
    _check_pattern(context, place, pattern.constant, escape)
    word = "NOT LIKE" if is_negated else "LIKE"
    small = macro("spark_lower", (value if value.letters is None else value.letters).sql)
    sql = f"({small} {word} {string_sql(pattern.constant.lower())} ESCAPE {string_sql(escape)})"
    return strict(sql, pa.bool_(), (value, pattern))


def _check_pattern(context: Context, place: Place, pattern: str, escape: str) -> None:
    at = pattern.find(escape)
    while at >= 0:
        if pattern[at + 1 : at + 2] not in {"%", "_", escape}:
            what = f"{escape!r} in a LIKE pattern, before anything but %, _ or itself,"
            raise context.unsupported(
                place, what, f"Double it, or name another: ESCAPE {'/' if escape != '/' else '!'!r}."
            )
        at = pattern.find(escape, at + 2)


# CAST
