"""Truth: comparisons, AND and OR, CASE, IN, BETWEEN, LIKE, IS, and the syntax of CAST.

DuckDB evaluates both sides of AND and OR for every row; Spark stops early. This shows when the side that is not needed
fails (``b <> 0 AND a / b > 1``). The translator then writes a CASE: DuckDB evaluates only the branch that it takes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce

import pyarrow as pa
from sqlglot import exp

from upriver.plan.relation import Scalar, any_fails
from upriver.plan.source import ELSEWHERE, Place
from upriver.plan.types import DECIMAL_DIGITS_MAX, array_type, is_nested, map_type, struct_type
from upriver.sql.casts import cast
from upriver.sql.decimals import are_decimals, least_decimal
from upriver.sql.nested_values import order_form
from upriver.sql.operators import TYPES, boolean, suffixed, to_common, to_comparable
from upriver.sql.patterns import matches
from upriver.sql.scalars import (
    Context,
    Rule,
    in_order,
    intolerant,
    literal,
    macro,
    never_null,
    null,
    strict,
    string_sql,
)
from upriver.sql.signatures import OperandKind, take
from upriver.sql.tries import tried_cast


def comparison(sign: str) -> Rule:
    def rule(context: Context, node: exp.Expr) -> Scalar:
        context.only(node, "this", "expression")
        return compare(context, node, sign, context.translate(node.this), context.translate(node.expression))

    return rule


def comparables(context: Context, place: Place, left: Scalar, right: Scalar) -> tuple[Scalar, ...]:
    """Both values as of the type in which they are compared."""
    if are_decimals(left, right):
        left, right = least_decimal(context, place, left), least_decimal(context, place, right)
    return to_comparable(context, place, (left, right))


def compare(context: Context, place: Place, sign: str, left: Scalar, right: Scalar) -> Scalar:
    left, right = comparables(context, place, left, right)
    if sign == "IS NOT DISTINCT FROM" and left.sql == right.sql:  # as in Spark's optimizer
        return Scalar("TRUE", pa.bool_(), nulls=frozenset())
    if sign.startswith("IS "):
        sql = f"({left.sql} {sign} {right.sql})"
        return Scalar(sql, pa.bool_(), any_fails((left, right)), nulls=frozenset())
    left, right = in_order(left, right)
    if is_nested(left.type) and sign[0] in "<>" and sign != "<>":
        sides = (order_form(side.sql, side.type) for side in (left, right))
        return strict(f"({f' {sign} '.join(sides)})", pa.bool_(), (left, right))
    return strict(f"({left.sql} {sign} {right.sql})", pa.bool_(), (left, right))


# AND and OR


def chain(node: exp.Expr) -> list[exp.Expr]:
    """The operands of a chain of ANDs, or of ORs, in order."""
    parts: list[exp.Expr] = []
    todo = [node]
    while todo:
        part = todo.pop()
        if type(part) is type(node):
            todo += [part.args["expression"], part.this]
        else:
            parts.append(part)
    return parts


def _connected(word: str) -> Rule:
    def rule(context: Context, node: exp.Expr) -> Scalar:
        return connect(word, [boolean(context, part) for part in chain(node)])

    return rule


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


def conjuncts(node: exp.Expr) -> list[exp.Expr]:
    """The conditions that this one joins by AND."""
    return chain(node) if isinstance(node, exp.And) else [node]


def factored(node: exp.Expr) -> list[exp.Expr]:
    """The conditions that this one joins by AND, if it is an OR: those that each of its branches has, then the rest.
    As in Spark's optimizer, ``(a AND b) OR (a AND c)`` is ``a AND (b OR c)``."""
    if not isinstance(node, exp.Or):
        return [node]
    branches = [conjuncts(branch) for branch in chain(node)]
    common = [part for part in dict.fromkeys(branches[0]) if all(part in branch for branch in branches)]
    if not common:
        return [node]
    rests = [[part for part in branch if part not in common] for branch in branches]
    if not all(rests):
        return common
    return [*common, _joined(exp.Or, [_joined(exp.And, rest) for rest in rests])]


def _joined(kind: type[exp.And | exp.Or], parts: Sequence[exp.Expr]) -> exp.Expr:
    """Copies of the parts, one or more, joined by AND or OR."""
    copies: Iterator[exp.Expr] = (part.copy() for part in parts)
    return reduce(lambda whole, part: kind(this=whole, expression=part), copies)


def conjunction(parts: Sequence[Scalar]) -> str:
    """All parts. As in Spark, a row stops at the first part that is not true."""
    head, rest = parts[0], parts[1:]
    if not any_fails(rest):
        return " AND ".join(part.sql for part in parts)
    return f"CASE WHEN {head.sql} THEN {conjunction(rest)} ELSE FALSE END"


def _not(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this")
    tested = node.this
    if isinstance(tested, exp.Is) and isinstance(tested.expression, exp.Null) and context.leaf(tested) is None:
        return not_null_test(context.translate(tested.this))
    return negation(boolean(context, tested))


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


def _case(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this", "ifs", "default")
    branches = []
    for branch in node.args["ifs"]:
        context.only(branch, "this", "true")
        if node.this is None:
            when = boolean(context, branch.this)
        else:
            when = compare(context, branch, "=", context.translate(node.this), context.translate(branch.this))
        branches.append((when, context.translate(branch.args["true"])))
    default = node.args.get("default")
    return choose(context, node, branches, null(pa.null()) if default is None else context.translate(default))


def _if(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this", "true", "false")
    if node.args.get("false") is None:
        raise context.unsupported(node, "IF with two operands", "Give the third.")
    value, otherwise = context.translate(node.args["true"]), context.translate(node.args["false"])
    return choose(context, node, [(boolean(context, node.this), value)], otherwise)


# IN, BETWEEN, IS


def _in(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this", "expressions")
    value, *items = context.translate_all((node.this, *node.expressions))
    return within(context, node, value, items)


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


def _between(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this", "low", "high")
    value, low, high = context.translate_all((node.this, node.args["low"], node.args["high"]))
    return connect("AND", [compare(context, node, ">=", value, low), compare(context, node, "<=", value, high)])


def is_null_test(value: Scalar) -> Scalar:
    """``IS NULL``. As in Spark's optimizer, a value that cannot be NULL is not computed for it."""
    if not value.null_by:
        return Scalar("FALSE", pa.bool_(), nulls=frozenset())
    return Scalar(f"({value.sql} IS NULL)", pa.bool_(), value.fails, nulls=frozenset())


def not_null_test(value: Scalar) -> Scalar:
    """``IS NOT NULL``."""
    sql = f"({value.sql} IS NOT NULL)" if value.null_by else "TRUE"
    fails = value.fails and bool(value.null_by)
    test = Scalar(sql, pa.bool_(), fails, nulls=frozenset(), is_test=True)
    return intolerant(test, (value,))


def negation(value: Scalar) -> Scalar:
    return strict(f"(NOT {value.sql})", pa.bool_(), (value,))


def _is(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this", "expression")
    if isinstance(node.expression, exp.Null):
        return is_null_test(context.translate(node.this))
    if isinstance(node.expression, exp.Boolean):
        value = boolean(context, node.this)
        sql = f"({value.sql} IS {'TRUE' if node.expression.this else 'FALSE'})"
        return Scalar(sql, pa.bool_(), value.fails, nulls=frozenset())
    raise context.unsupported(node, "this IS", "Use IS NULL, IS TRUE, IS FALSE or <=>.")


# LIKE


def _like(context: Context, node: exp.Expr) -> Scalar:
    return _each(context, node, lambda one: _matches(context, one, "\\"))


def _each(context: Context, node: exp.Expr, match: Callable[[exp.Expr], Scalar]) -> Scalar:
    """``LIKE pattern``; or ``LIKE ANY (...)`` and ``LIKE ALL (...)``, which are OR and AND of patterns."""
    several = node.expression
    if not isinstance(several, exp.Any | exp.All):
        return match(node)
    listed = several.this
    patterns = listed.expressions if isinstance(listed, exp.Tuple) else [listed]
    parts = [
        match(type(node)(this=node.this, expression=pattern, negate=node.args.get("negate"))) for pattern in patterns
    ]
    return connect("OR" if isinstance(several, exp.Any) else "AND", parts)


def _escaped_like(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this", "expression")
    escape = node.expression
    if not isinstance(node.this, exp.Like) or not isinstance(escape, exp.Literal) or len(escape.this) != 1:
        raise context.unsupported(node, "this ESCAPE", "Give one character in quotes, after LIKE.")
    return _matches(context, node.this, escape.this)


def _matches(context: Context, node: exp.Expr, escape: str) -> Scalar:
    context.only(node, "this", "expression", "negate")
    value, pattern = context.translate_all((node.this, node.expression))
    return like(context, node, value, pattern, escape, bool(node.args.get("negate")))


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


def _like_any_case(context: Context, node: exp.Expr) -> Scalar:
    """``ILIKE``: both sides in small letters."""
    return _each(context, node, lambda one: _matches_any_case(context, one))


def _matches_any_case(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this", "expression", "negate")
    value, pattern = context.translate_all((node.this, node.expression))
    return like_any_case(context, node, value, pattern, "\\", bool(node.args.get("negate")))


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


def _regular(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this", "expression")
    return matches(context, node, context.translate_all((node.this, node.expression)))


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


def cast_type(context: Context, node: exp.Expr) -> pa.DataType:
    """The type after AS."""
    context.only(node, "this", "expressions", "nested")
    name = node.this
    if name == exp.DType.STRUCT and all(isinstance(part, exp.ColumnDef) for part in node.expressions):
        types = [cast_type(context, part.args["kind"]) for part in node.expressions]
        return struct_type([part.name for part in node.expressions], types)
    if name in (exp.DType.ARRAY, exp.DType.MAP):
        return (array_type if name == exp.DType.ARRAY else map_type)(
            *(cast_type(context, part) for part in node.expressions)
        )
    if name == exp.DType.DECIMAL:
        sizes = [int(size.name) for size in node.expressions]
        precision, scale = [*sizes, *(10, 0)[len(sizes) :]]
        if precision <= DECIMAL_DIGITS_MAX:
            return pa.decimal128(precision, scale)
    if name in (exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ):
        return pa.timestamp("us", tz=context.timezone)
    if name not in TYPES or node.expressions:
        raise context.unsupported(node.parent or node, f"a cast to {node.sql('spark')}", ELSEWHERE)
    return TYPES[name]


def _cast(context: Context, node: exp.Expr) -> Scalar:
    number = suffixed(context, node)
    if number is not None:
        return number
    context.only(node, "this", "to")
    value = cast(context, node, context.translate(node.this), cast_type(context, node.args["to"]))
    return replace(
        value, constant=None, nulls=value.null_by
    )  # Spark's rules for literals cover only the literal itself


def _try_cast(context: Context, node: exp.Expr) -> Scalar:
    """``TRY_CAST(x AS type)``: NULL where the cast raises."""
    context.only(node, "this", "to", "safe")
    type = cast_type(context, node.args["to"])
    return replace(tried_cast(type)(context, node, (context.translate(node.this),)), constant=None)


LOGIC: dict[type[exp.Expr], Rule] = {
    exp.TryCast: _try_cast,
    exp.EQ: comparison("="),
    exp.NEQ: comparison("<>"),
    exp.LT: comparison("<"),
    exp.LTE: comparison("<="),
    exp.GT: comparison(">"),
    exp.GTE: comparison(">="),
    exp.NullSafeEQ: comparison("IS NOT DISTINCT FROM"),
    exp.NullSafeNEQ: comparison("IS DISTINCT FROM"),
    exp.And: _connected("AND"),
    exp.Or: _connected("OR"),
    exp.Not: _not,
    exp.Case: _case,
    exp.If: _if,
    exp.In: _in,
    exp.Between: _between,
    exp.Is: _is,
    exp.Like: _like,
    exp.Escape: _escaped_like,
    exp.ILike: _like_any_case,
    exp.RegexpLike: _regular,
    exp.Cast: _cast,
    exp.Boolean: lambda context, node: literal(bool(node.this), pa.bool_()),
    exp.Null: lambda context, node: null(pa.null()),
    exp.Paren: lambda context, node: context.translate(node.this),
}
