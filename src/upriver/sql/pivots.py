"""PIVOT: groups by all other columns, with a column for each value and aggregate.

``PIVOT (sum(x) FOR k IN ('a', 'b'))`` is an aggregate with a FILTER for each value. For a group without a row of the
value Spark gives NULL, also for a count, if all aggregates are numbers or truths, which it aggregates in two phases.
Otherwise it gives each what it is over no rows, and ``first`` and ``last`` leave out NULL.
"""

from collections.abc import Iterator

from sqlglot import exp

from upriver.plan.source import Source
from upriver.plan.types import is_boolean, is_numeric
from upriver.sql.aggregates import aggregate_call, called, is_aggregate
from upriver.sql.scalars import construct
from upriver.sql.scope import Entry, Scope, ScopeRows, Setting

_ROWS = "rows of pivot"
_ENDS = frozenset({"first", "first_value", "last", "last_value"})
_FORM = "Write PIVOT (sum(x) FOR k IN ('a', 'b' AS c)), with aggregates and constants."


def pivoted(setting: Setting, pivot: exp.Expr, rows: ScopeRows) -> ScopeRows:
    """The rows of PIVOT over these rows. Raises UnsupportedSql, DeclarationError."""
    source = setting.source
    fields = pivot.args.get("fields") or [None]
    values = fields[0]
    if len(fields) != 1 or not isinstance(values, exp.In) or not values.expressions or not pivot.expressions:
        raise source.unsupported(pivot, "this PIVOT", _FORM)
    keys = [*values.this.expressions] if isinstance(values.this, exp.Tuple) else [values.this]
    calls = [_call(source, node) for node in pivot.expressions]
    used = {node.name.lower() for part in (*keys, *(call for call, _ in calls)) for node in part.find_all(exp.Column)}
    if any(column.end is not None for column in rows.columns):
        raise source.unsupported(pivot, "PIVOT over a window as a whole", "Select its start and its end before.")
    group = [column.title for column in rows.columns if column.title is not None and column.title.lower() not in used]
    if len(group) + len(used) < len(rows.columns):
        raise source.unsupported(pivot, "PIVOT over a column without a name", "Give it one in a subquery: ... AS name.")
    scope, context = Scope.of(source, Entry("", rows.columns)), setting.context(rows.relation.schema)
    types = [aggregate_call(context, scope.bind(call.copy())).type for call, _ in calls]
    in_phases = all(is_numeric(type) or is_boolean(type) for type in types)
    items: list[exp.Expr] = [_named(title) for title in group]
    for value in values.expressions:
        items += _columns(source, keys, value, calls, in_phases)
    select = exp.Select(expressions=items, from_=exp.From(this=exp.Table(this=exp.to_identifier(_ROWS, quoted=True))))
    if group:
        select.set("group", exp.Group(expressions=[_named(title) for title in group]))
    return setting.compile(setting.knowing({_ROWS: rows}), select)


def _named(title: str) -> exp.Column:
    return exp.Column(this=exp.to_identifier(title, quoted=True))


def _call(source: Source, node: exp.Expr) -> tuple[exp.Expr, str | None]:
    """An aggregate, and its alias."""
    call = node.this if isinstance(node, exp.Alias) else node
    if not is_aggregate(call) or isinstance(call, exp.Filter):
        raise source.unsupported(node, f"{construct(call)} in PIVOT", _FORM)
    return call, node.alias if isinstance(node, exp.Alias) else None


def _columns(
    source: Source, keys: list[exp.Expr], value: exp.Expr, calls: list[tuple[exp.Expr, str | None]], in_phases: bool
) -> Iterator[exp.Expr]:
    """The columns of one value. One whose name only Spark knows has no alias. in_phases: whether Spark aggregates in
    two phases."""
    alias = value.alias if isinstance(value, exp.PivotAlias | exp.Alias) else None
    constant = value.this if isinstance(value, exp.PivotAlias | exp.Alias) else value
    parts = constant.expressions if isinstance(constant, exp.Tuple) else [constant]
    if len(parts) != len(keys) or not all(isinstance(part, exp.Literal) for part in parts):
        raise source.unsupported(value, "PIVOT by anything but constants", _FORM)
    name = alias or (constant.name if isinstance(constant, exp.Literal) else None)
    for call, title in calls:
        tests = [exp.EQ(this=key.copy(), expression=part.copy()) for key, part in zip(keys, parts, strict=True)]
        where = exp.Where(this=exp.and_(*tests, copy=False))
        there = exp.Filter(this=exp.Anonymous(this="count", expressions=[exp.Star()]), expression=where)
        some = exp.GT(this=there, expression=exp.Literal.number(0))
        column: exp.Expr = exp.Filter(this=call.copy(), expression=where.copy())
        if in_phases:
            column = exp.Case(ifs=[exp.If(this=some, true=column)])
        elif called(call).name.lower() in _ENDS:
            column = exp.IgnoreNulls(this=column)
        known = name if len(calls) == 1 else f"{name}_{title}" if name and title else None
        yield column if known is None else exp.alias_(column, known, quoted=True)
