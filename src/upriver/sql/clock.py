"""The clock in SQL: comparisons ``value op f(now())``, values ``f(now())``, and how they are found and written out.

A comparison with the clock is detached like a subquery (:mod:`upriver.sql.detached`), and becomes a BOOLEAN column of
the rows (:mod:`upriver.sql.clock_functions`). BETWEEN and IN are written as comparisons first, and differences such as
``datediff(current_date(), d) < 7`` as ``current_date() < date_add(d, 7)``. What cannot be such a test is left as it is
written: the values of the clock in it are detached, and become columns of the rows.
"""

from collections.abc import Callable, Collection, Mapping

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
_OF_DAYS = frozenset(
    {"datediff", "day", "dayofmonth", "dayofweek", "dayofyear", "month", "quarter", "weekday", "weekofyear"}
)
_TEST, _VALUE = "clock_test", "clock_value"
"""Marks in a node's meta. Of a test: the comparison as it is written."""
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
    """Whether the node compares the clock with something else, and :func:`arranged` has found that it is a test."""
    return _TEST in node.meta


def is_clock_value(node: exp.Expr) -> bool:
    """Whether the node is a value of the clock, which :func:`arranged` has found."""
    return _VALUE in node.meta


def as_written(test: exp.Expr) -> exp.Expr:
    """A copy of the comparison as it was before it was made a test."""
    written: exp.Expr = test.meta[_TEST]
    return written.copy()


def _compares(node: exp.Expr) -> bool:
    """Whether the node compares the clock with something else."""
    return type(node) in COMPARISONS and has_clock(node.this) != has_clock(node.expression)


def tested(node: exp.Expr) -> exp.Expr:
    """The side of a test that is of the row."""
    side: exp.Expr = node.expression if node.this is _clock_side(node) else node.this
    return side


# Writing out ----------------------------------------------------------------------------------------------------------


def written_out(root: exp.Expr, columns: Collection[str]) -> exp.Expr:
    """The tree with calls for words such as CURRENT_DATE. It is changed in place. columns: the names of all columns of
    tables, which take precedence over the words."""
    aliases = {alias.alias.lower() for alias in root.find_all(exp.Alias)}
    taken = {name.lower() for name in columns} | aliases
    for column in list(root.find_all(exp.Column)):
        name = column.name.lower()
        if len(column.parts) == 1 and not column.this.args.get("quoted") and name in WORDS - taken:
            column.replace(_like(exp.Anonymous(this=name), column))
    return root


def arranged(root: exp.Expr, is_tested: Callable[[exp.Expr], bool], is_shown: Callable[[exp.Expr], bool]) -> exp.Expr:
    """The tree with marks on tests and values of the clock, and with comparisons for all that can be one. It is changed
    in place. is_tested, is_shown: whether an expression is a function of the clock of which there are tests, or
    values."""
    if not any(map(is_clock, root.walk())):
        return root
    for node in list(root.find_all(exp.Between, exp.In)):
        found = _as_comparisons(node, is_tested) if any(map(has_clock, node.iter_expressions())) else None
        if found is not None:
            node.replace(exp.Paren(this=found))
    for comparison in list(root.find_all(*COMPARISONS)):
        if _compares(comparison):
            written = comparison.copy()
            _rearrange(comparison)
            if is_tested(_clock_side(comparison)):
                _mark_values(written, is_shown)
                comparison.meta[_TEST] = written
            else:
                comparison.set("this", written.this)
                comparison.set("expression", written.expression)
    _mark_values(root, is_shown)
    return root


def _clock_side(node: exp.Expr) -> exp.Expr:
    side: exp.Expr = node.this if has_clock(node.this) else node.expression
    return side


def _mark_values(node: exp.Expr, is_shown: Callable[[exp.Expr], bool]) -> None:
    """Mark the largest expressions that are values of the clock."""
    if not any(map(is_clock, node.walk())):
        return
    if is_shown(node):
        node.meta[_VALUE] = True
    elif is_clock(node):
        _replace_by_cast(node)
    else:
        _take_days(node, is_shown)
        for part in list(node.iter_expressions()):
            _mark_values(part, is_shown)


def _take_days(node: exp.Expr, is_shown: Callable[[exp.Expr], bool]) -> None:
    """Let a function that takes in nothing but dates have the date of a time: that changes once a day."""
    if isinstance(node, exp.Anonymous) and node.name.lower() in _OF_DAYS:
        for operand in node.expressions:
            day = _call("to_date", operand.copy())
            if any(is_clock(part) and part.name.lower() not in TODAY for part in operand.walk()) and is_shown(day):
                operand.replace(_like(day, operand))


def _replace_by_cast(call: exp.Expr) -> None:
    """Compute from now() what goes down in this time zone, when its clocks are put back."""
    now = exp.Anonymous(this="now")
    now.meta.update(call.meta)
    to = "DATE" if call.name.lower() in TODAY else "TIMESTAMPNTZ"
    call.replace(exp.Cast(this=now, to=exp.DataType.build(to)))
    now.meta[_VALUE] = True


def _like(made: exp.Expr, node: exp.Expr) -> exp.Expr:
    made.meta.update(next((part.meta for part in node.walk() if "start" in part.meta), {}))
    return made


def _as_comparisons(node: exp.Expr, is_tested: Callable[[exp.Expr], bool]) -> exp.Expr | None:
    """BETWEEN as two comparisons; IN as several, if each with the clock is a test."""
    value = node.this
    if isinstance(node, exp.Between):
        low = exp.GTE(this=value.copy(), expression=node.args["low"].copy())
        high = exp.LTE(this=value.copy(), expression=node.args["high"].copy())
        return exp.And(this=low, expression=high)
    if node.args.get("query") is not None or isinstance(value, exp.Tuple) or not node.expressions:
        return None
    equals = [exp.EQ(this=value.copy(), expression=other.copy()) for other in node.expressions]
    timed = [equal for equal in equals if has_clock(equal.this) or has_clock(equal.expression)]
    if not all(_compares(equal) and is_tested(_clock_side(equal)) for equal in timed):
        return None
    found: exp.Expr = equals[0]
    for equal in equals[1:]:
        found = exp.Or(this=found, expression=equal)
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
