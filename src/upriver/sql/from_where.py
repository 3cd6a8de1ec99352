"""WHERE: which rows of FROM are left. IN and EXISTS with a subquery are semi joins, NOT EXISTS is an anti join."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from upriver.errors import UserError
from upriver.plan.plan import JoinKind
from upriver.plan.relation import Relation, Scalar
from upriver.sql.aggregates import has_aggregate
from upriver.sql.clauses import END, SelectItem, read_clauses
from upriver.sql.correlation import dependent_rows
from upriver.sql.detached import detach, has_subquery
from upriver.sql.from_items import read_from
from upriver.sql.joins import From, JoinOrder
from upriver.sql.logic import conjuncts
from upriver.sql.relations import (
    ALIKE,
    Condition,
    Output,
    conditions,
    distinct,
    join,
    kept,
    projected,
    restricted,
    union,
    with_values,
)
from upriver.sql.scope import Scope, ScopeColumn, Setting, as_node, bare, names_in, unique
from upriver.sql.stars import is_star, star_items


def selected(setting: Setting, source: From, where: exp.Expr | None, taken: set[str]) -> Relation:
    """The rows of FROM for which WHERE is true. taken: as for ``read_from``."""
    relation, outside = selected_around(setting, source, where, taken, None)
    assert not outside, "a condition on a query that is not there"
    return relation


def selected_around(
    setting: Setting, source: From, where: exp.Expr | None, taken: set[str], around: Relation | None
) -> tuple[Relation, list[Condition]]:
    """Returns also the conditions that name the enclosing query."""
    parts = list(source.correlated)
    parts += [] if where is None else [bare(part) for part in conjuncts(bare(where))]
    nested = [part for part in parts if _is_nested(part)]
    valued = [part for part in parts if part not in nested and has_subquery(part)]
    plain = [part for part in parts if part not in nested and part not in valued]
    schemas = [source.schema] if around is None else [source.schema, around.schema]
    members = source.members
    relations = [*(member.relation for member in members), *([] if around is None else [around])]
    fails = frozenset[str]().union(*(relation.deferred for relation in relations))
    certain = frozenset[str]().union(*(member.relation.certain for member in members if member.lasts))
    context = setting.context(*schemas, fails=fails, certain=certain)
    asked = conditions(context, [source.scope.bind(part) for part in plain])
    inside = [condition for condition in asked if condition.names <= set(source.schema.names)]
    outside = [condition for condition in asked if condition not in inside]
    relation = JoinOrder(context, source, inside, taken).joined(where)
    scope, setting = source.scope_of_rows, replace(setting, around=None)
    for part in nested:
        relation = _semi_joined(setting, relation, scope, part, taken)
    for part in valued:
        relation, node = setting.attach(setting, relation, scope, scope.bind(detach(part)), taken, None)
        context = setting.context(relation.schema, fails=relation.deferred, certain=relation.certain)
        relation = restricted(relation, conditions(context, [node]), setting.source.place(where))
    return relation, outside


# Subqueries in WHERE


def _is_nested(node: exp.Expr) -> bool:
    """Whether it is EXISTS, or IN of a subquery whose operands have none, and no part of an expression."""
    inner = node.this if isinstance(node, exp.Not) else node
    if isinstance(inner, exp.In) and inner.args.get("query") is not None:
        return not any(map(has_subquery, operands_of(inner)))
    return isinstance(inner, exp.Exists)


@dataclass(frozen=True, slots=True)
class Subquery:
    """relation: its rows, with column names of their own. on: conditions that name both queries. items: its outputs."""

    relation: Relation
    on: list[Condition]
    items: list[exp.Expr]


def _semi_joined(setting: Setting, relation: Relation, scope: Scope, node: exp.Expr, taken: set[str]) -> Relation:
    """The rows for which the subquery of IN or EXISTS has a row; with NOT, those for which it has none."""
    kind = JoinKind.ANTI if isinstance(node, exp.Not) else JoinKind.SEMI
    test = node.this if isinstance(node, exp.Not) else node
    query = test.args["query"] if isinstance(test, exp.In) else test.this
    inner = subquery_rows(setting, query, relation, scope, taken, isinstance(test, exp.In))
    on = inner.on
    if isinstance(test, exp.In):
        operands = [scope.bind(operand) for operand in operands_of(test)]
        if kind is JoinKind.ANTI:
            return _without(setting, relation, inner, test, operands, taken)
        on = [*on, *_pairs(setting, test, inner, operands, relation)]
    context = setting.context(relation.schema, inner.relation.schema, fails=relation.deferred | inner.relation.deferred)
    return join(context, kind, relation, inner.relation, on, query, taken)


def _without(
    setting: Setting, relation: Relation, inner: Subquery, test: exp.Expr, operands: Sequence[exp.Expr], taken: set[str]
) -> Relation:
    """The rows for which IN is false."""
    context = setting.context(relation.schema, fails=relation.deferred)
    around, names = with_values(relation, [Output("operand", context.translate(node)) for node in operands], taken)
    nodes = [as_node(name, node) for name, node in zip(names, operands, strict=True)]
    rows = Dividing(setting, around, inner, test, taken).parts(nodes, has_unknown=True).false
    return union([projected(part, kept(relation), None) for part in rows], None)


def operands_of(test: exp.Expr) -> list[exp.Expr]:
    """The operands of IN."""
    return list(test.this.expressions) if isinstance(test.this, exp.Tuple) else [test.this]


def _pairs(
    setting: Setting, test: exp.Expr, inner: Subquery, operands: Sequence[exp.Expr], relation: Relation
) -> list[Condition]:
    """The comparisons of IN, as conditions. operands: bound."""
    if len(operands) != len(inner.items):
        what = f"IN compares {len(operands)} values with {len(inner.items)} columns"
        raise setting.source.wrong(test, what, "SELECT as many.")
    pairs = [
        exp.EQ(this=operand.copy(), expression=item.copy()) for operand, item in zip(operands, inner.items, strict=True)
    ]
    fails = relation.deferred | inner.relation.deferred
    return conditions(setting.context(relation.schema, inner.relation.schema, fails=fails), pairs)


def subquery_rows(
    setting: Setting, query: exp.Expr, around: Relation, scope: Scope, taken: set[str], is_compared: bool
) -> Subquery:
    """is_compared: whether the outputs of the query matter; under EXISTS they do not."""
    select = _simple(query)
    if select is not None:
        try:
            return _filtering(setting, select.copy(), around, scope, taken, is_compared)
        except UserError:
            pass  # it does more than filter rows by names of the query around
    found = dependent_rows(setting, query.copy(), around, scope, taken)
    end = next((query.find(kind) for kind in (exp.Limit, exp.Offset) if query.find(kind)), None)
    if is_compared and found.names and end is not None:
        what = "LIMIT or OFFSET in a subquery of IN that names the query around, where Spark drops ORDER BY,"
        raise setting.source.unsupported(
            end, what, "Number the rows by ROW_NUMBER() in a subquery, and ask for n <= k."
        )
    fails = around.deferred | found.rows.relation.deferred
    context = setting.context(around.schema, found.rows.relation.schema, fails=fails)
    items: list[exp.Expr] = [
        as_node(column.name, query) for column in _without_windows(setting, query, found.rows.columns)
    ]
    return Subquery(found.rows.relation, conditions(context, found.on), items if is_compared else [])


def _filtering(
    setting: Setting, select: exp.Select, around: Relation, scope: Scope, taken: set[str], is_compared: bool
) -> Subquery:
    """A subquery that only filters rows: what names the query around stays a condition of the join."""
    clauses = read_clauses(setting.source, select)
    source = read_from(setting, clauses, scope, taken)
    relation, outside = selected_around(setting, source, clauses.where, taken, around)
    items: list[exp.Expr] = []
    for item in clauses.items if is_compared else ():
        items += _selected_items(setting, source.scope, source.schema, item)
    for node in items:
        if not names_in(node) <= set(relation.schema.names):
            what = "a name of the query around in what IN compares with"
            raise setting.source.unsupported(select, what, "Name it in the subquery's WHERE.")
    return Subquery(relation, outside, items)


def _selected_items(setting: Setting, scope: Scope, schema: pa.Schema, item: SelectItem) -> list[exp.Expr]:
    """The bound nodes of an item of SELECT: a star gives several. schema: of the rows beneath."""
    if not is_star(item.node):
        return [scope.bind(item.node)]
    items = list(star_items(scope, schema, item.node))
    _without_windows(setting, item.node, [one.window for one in items if one.window is not None])
    return [one.node for one in items]


def _without_windows(setting: Setting, node: exp.Expr, columns: Sequence[ScopeColumn]) -> Sequence[ScopeColumn]:
    """The columns. Raises UnsupportedSql for a whole window among them."""
    if any(column.end is not None for column in columns):
        what = "a window as a whole, which is a STRUCT, in a comparison"
        raise setting.source.unsupported(node, what, "List the columns: window.start.")
    return columns


def _simple(query: exp.Expr) -> exp.Select | None:
    """The SELECT, if it only filters rows, so that it may name the enclosing query."""
    while isinstance(query, exp.Subquery) and not any(value for part, value in query.args.items() if part != "this"):
        query = query.this
    if not isinstance(query, exp.Select):
        return None
    more = any(query.args.get(part) for part in ("group", "having", "qualify", *END, "with_"))
    return None if more or any(has_aggregate(item) or item.find(exp.Window) for item in query.expressions) else query


@dataclass(frozen=True, slots=True)
class Parts:
    """The rows for which IN or EXISTS is true, NULL or false, each in any number of parts."""

    true: list[Relation]
    unknown: list[Relation]
    false: list[Relation]


class Dividing:
    """The rows around IN or EXISTS, divided by whether it is true."""

    def __init__(self, setting: Setting, around: Relation, inner: Subquery, query: exp.Expr, taken: set[str]) -> None:
        self._setting = setting
        self._around = around
        self._inner = inner
        self._query = query
        self._taken = taken

    def parts(self, operands: Sequence[exp.Expr], has_unknown: bool) -> Parts:
        """operands: of IN, columns of the rows; none for EXISTS. has_unknown: whether NULL differs from FALSE."""
        on = self._inner.on
        if operands:
            on = [*on, *_pairs(self._setting, self._query, self._inner, operands, self._around)]
        true = self._joined(JoinKind.SEMI, self._around, self._inner.relation, on)
        rest = self._joined(JoinKind.ANTI, self._around, self._inner.relation, on)
        if not has_unknown:
            return Parts([true], [], [rest])
        if len(operands) > 1:
            return self._of_several(operands, true, rest)
        return self._of_one(operands[0], true, rest)

    def _of_one(self, operand: exp.Expr, true: Relation, rest: Relation) -> Parts:
        item = self._inner.items[0]
        nulls = self._reduced(restricted(self._inner.relation, self._test(item, self._inner.relation, True), None))
        unknown = [self._joined(JoinKind.SEMI, rest, nulls, self._inner.on)]
        rest = self._joined(JoinKind.ANTI, rest, nulls, self._inner.on)
        without = restricted(rest, self._test(operand, rest, True), None)
        some = self._reduced(self._inner.relation)
        unknown.append(self._joined(JoinKind.SEMI, without, some, self._inner.on))
        none = self._joined(JoinKind.ANTI, without, some, self._inner.on)
        return Parts([true], unknown, [restricted(rest, self._test(operand, rest, False), None), none])

    def _of_several(self, operands: Sequence[exp.Expr], true: Relation, rest: Relation) -> Parts:
        """Some pair of values is NULL, and no other pair of the same row differs."""
        pairs = _pairs(self._setting, self._query, self._inner, operands, rest)
        asked = Scalar(
            f"(({' AND '.join(pair.value.sql for pair in pairs)}) IS NOT FALSE)",
            pa.bool_(),
            any(pair.value.fails for pair in pairs),
            nulls=frozenset(),
        )
        names = frozenset[str]().union(*(pair.names for pair in pairs))
        on = [*self._inner.on, Condition(exp.Boolean(this=True), asked, names)]
        unknown = self._joined(JoinKind.SEMI, rest, self._inner.relation, on)
        return Parts([true], [unknown], [self._joined(JoinKind.ANTI, rest, self._inner.relation, on)])

    def _test(self, node: exp.Expr, relation: Relation, is_null: bool) -> list[Condition]:
        test: exp.Expr = exp.Is(this=node.copy(), expression=exp.Null())
        context = self._setting.context(relation.schema, fails=relation.deferred)
        return conditions(context, [test if is_null else exp.Not(this=test)])

    def _reduced(self, relation: Relation) -> Relation:
        """The different values that conditions on both queries need; one row, if they need none."""
        names = {name for one in self._inner.on for name in one.names} & set(relation.schema.names)
        columns = [output for output in kept(relation) if output.name in names]
        return distinct(projected(relation, columns or [Output(unique("some", self._taken), ALIKE)], None), None)

    def _joined(self, kind: JoinKind, left: Relation, right: Relation, on: Sequence[Condition]) -> Relation:
        context = self._setting.context(left.schema, right.schema, fails=left.deferred | right.deferred)
        return join(context, kind, left, right, on, self._query, self._taken)
