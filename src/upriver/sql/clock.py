"""The clock in SQL: comparisons ``value op f(now())``, and how they are found and written out.

A comparison with the clock is detached like a subquery (:mod:`upriver.sql.detached`), and becomes a BOOLEAN column of
the rows (:mod:`upriver.sql.clock_functions`). BETWEEN and IN are written as comparisons first, and differences such as
``datediff(current_date(), d) < 7`` as ``current_date() < date_add(d, 7)``.
"""

from collections.abc import Collection, Mapping

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from upriver.plan.clock import Comparison
from upriver.plan.source import Source

NOW = frozenset({"now", "current_timestamp"})
TODAY = frozenset({"current_date", "curdate"})
WORDS = frozenset({"current_date", "current_timestamp", "localtimestamp"})
"""Those that may be written without parentheses."""
CALLS = NOW | TODAY | {"localtimestamp", "unix_timestamp"}
"""Functions that give the time when they are called without operands."""
INSTEAD = (
    "Compare it with a value of the row: WHERE at > now() - INTERVAL 1 HOUR. For the time at which a row came, make it "
    "a column before app.table(): df.withColumn('came_at', current_timestamp())."
)
COMPARISONS: Mapping[type[exp.Expr], Comparison] = {
    exp.LT: Comparison.LESS,
    exp.LTE: Comparison.AT_MOST,
    exp.EQ: Comparison.EQUAL,
    exp.NEQ: Comparison.UNEQUAL,
    exp.GTE: Comparison.AT_LEAST,
    exp.GT: Comparison.MORE,
}


# Finding --------------------------------------------------------------------------------------------------------------


def is_clock(node: exp.Expr) -> bool:
    """Whether the node is a call that gives the time."""
    return isinstance(node, exp.Anonymous) and node.name.lower() in CALLS and not node.expressions


def has_clock(node: exp.Expr) -> bool:
    """Whether a value is computed from the clock itself: not from tests of it alone, nor by a query of its own."""
    return any(is_clock(part) for part in node.walk(prune=_is_apart))


def _is_apart(node: exp.Expr) -> bool:
    return isinstance(node, (*COMPARISONS, exp.Between, exp.In, exp.Exists, exp.Query))


def is_clock_test(node: exp.Expr) -> bool:
    """Whether the node compares the clock with something else."""
    return type(node) in COMPARISONS and has_clock(node.this) != has_clock(node.expression)


def tested(node: exp.Expr) -> exp.Expr:
    """The side of a test that is of the row."""
    side: exp.Expr = node.expression if has_clock(node.this) else node.this
    return side


# Writing out ----------------------------------------------------------------------------------------------------------


def written_out(root: exp.Expr, columns: Collection[str]) -> exp.Expr:
    """The tree with calls for words such as CURRENT_DATE, and with comparisons for all that can be one. It is changed
    in place. columns: the names of all columns of tables, which take precedence over the words."""
    aliases = {alias.alias.lower() for alias in root.find_all(exp.Alias)}
    taken = {name.lower() for name in columns} | aliases
    for column in list(root.find_all(exp.Column)):
        name = column.name.lower()
        if len(column.parts) == 1 and not column.this.args.get("quoted") and name in WORDS - taken:
            column.replace(_like(exp.Anonymous(this=name), column))
    for test in list(root.find_all(exp.Between, exp.In)):
        found = _as_comparisons(test) if any(map(has_clock, test.iter_expressions())) else None
        if found is not None:
            test.replace(exp.Paren(this=found))
    for comparison in list(root.find_all(*COMPARISONS)):
        if is_clock_test(comparison):
            _rearrange(comparison)
    return root


def _like(made: exp.Expr, node: exp.Expr) -> exp.Expr:
    made.meta.update(next((part.meta for part in node.walk() if "start" in part.meta), {}))
    return made


def _as_comparisons(node: exp.Expr) -> exp.Expr | None:
    value = node.this
    if isinstance(node, exp.Between):
        low = exp.GTE(this=value.copy(), expression=node.args["low"].copy())
        high = exp.LTE(this=value.copy(), expression=node.args["high"].copy())
        return exp.And(this=low, expression=high)
    if node.args.get("query") is not None or isinstance(value, exp.Tuple) or not node.expressions:
        return None
    found: exp.Expr | None = None
    for other in node.expressions:
        equal = exp.EQ(this=value.copy(), expression=other.copy())
        found = equal if found is None else exp.Or(this=found, expression=equal)
    return found


def _rearrange(node: exp.Expr) -> None:
    """Bring what is of the row to the other side: ``now() - at < x`` becomes ``now() < at + x``."""
    while True:
        side, other = ("this", "expression") if has_clock(node.this) else ("expression", "this")
        mixed = node.args[side].unnest()
        found = _parted(mixed, node.args[other]) if mixed.find(exp.Column) else None
        if found is None:
            return
        clock, rest, is_taken_off = found
        if is_taken_off:
            side, other = other, side
        if not any("start" in part.meta for part in rest.walk()):
            _like(rest, node)
        node.set(side, clock)
        node.set(other, rest)


def _parted(mixed: exp.Expr, result: exp.Expr) -> tuple[exp.Expr, exp.Expr, bool] | None:
    """The part of a sum or a difference that has the clock; what it is compared with instead, if the whole was compared
    with ``result``; and whether the part is taken off, so that the two change sides."""
    is_days = isinstance(mixed, exp.Anonymous) and mixed.name.lower() in ("datediff", "date_diff")
    if is_days and len(mixed.expressions) == 2:
        first, second = mixed.expressions
    elif isinstance(mixed, exp.Add | exp.Sub):
        first, second = mixed.this, mixed.expression
    else:
        return None
    if has_clock(first) == has_clock(second):
        return None
    clock, rest = (first, second) if has_clock(first) else (second, first)
    clock, rest, result = clock.copy(), rest.copy(), result.copy()
    if isinstance(mixed, exp.Add):
        return clock, exp.Sub(this=_whole(result), expression=_whole(rest)), False
    is_taken_off = clock == second
    if is_days:
        name = "date_sub" if is_taken_off else "date_add"
        return _call("to_date", clock), _call(name, rest, result), is_taken_off
    kind = exp.Sub if is_taken_off else exp.Add
    return clock, kind(this=_whole(rest), expression=_whole(result)), is_taken_off


def _call(name: str, *operands: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=list(operands))


def _whole(node: exp.Expr) -> exp.Expr:
    return exp.Paren(this=node) if isinstance(node, exp.Binary) else node


# Spark's answer -------------------------------------------------------------------------------------------------------


def with_instant(sql: str, micros: int, columns: Collection[str]) -> str:
    """The SQL with an instant, in microseconds since 1970, in place of the clock. columns: as for ``written_out``."""
    source, found, end = Source("", sql), list[str](), 0
    tokens, taken = source.tokens(), {name.lower() for name in columns}
    for place, token in enumerate(tokens):
        name, following = token.text.lower(), [after.token_type for after in tokens[place + 1 : place + 3]]
        is_call = following == [TokenType.L_PAREN, TokenType.R_PAREN]
        is_word = name in WORDS - taken and following[:1] != [TokenType.L_PAREN]
        before = tokens[place - 1].token_type if place else None
        if name in CALLS and (is_call or is_word) and before not in (TokenType.DOT, TokenType.ALIAS):
            last = tokens[place + 2] if is_call else token
            found += [sql[end : token.start], _instant(name, micros)]
            end = last.end + 1
    return "".join([*found, sql[end:]])


def _instant(name: str, micros: int) -> str:
    now = f"timestamp_micros({micros}L)"
    if name in NOW:
        return now
    if name == "unix_timestamp":
        return f"{micros // 1_000_000}L"
    return f"CAST({now} AS {'DATE' if name in TODAY else 'TIMESTAMP_NTZ'})"
