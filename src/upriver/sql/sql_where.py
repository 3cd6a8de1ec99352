"""FROM and WHERE together: in what order things are joined, and what is asked of their rows before that.

A condition on one table alone is asked before it is joined, as Spark does it. IN and EXISTS with a subquery are semi
joins, NOT EXISTS is an anti join.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from sqlglot import exp

from upriver.plan.algebra import Relation
from upriver.plan.ops import JoinKind
from upriver.sql.sql_aggregates import has_aggregate
from upriver.sql.sql_clauses import Item, read_clauses, refuse_subquery
from upriver.sql.sql_conditions import Condition, conditions, restricted
from upriver.sql.sql_from import From, Member, Step, read_from
from upriver.sql.sql_joins import equates, join, without_equality
from upriver.sql.sql_logic import conjuncts
from upriver.sql.sql_relations import renamed, widened
from upriver.sql.sql_scalar import Context, construct
from upriver.sql.sql_scope import Scope, as_node, bare, unique
from upriver.sql.sql_setting import Setting


def selected(setting: Setting, source: From, where: exp.Expr | None, taken: set[str]) -> Relation:
    """The rows of FROM for which WHERE is true. taken: as ``read_from`` has it."""
    relation, outside = _selected(setting, source, where, taken, None)
    assert not outside, "a condition on a query that is not there"
    return relation


def _selected(
    setting: Setting, source: From, where: exp.Expr | None, taken: set[str], around: Relation | None
) -> tuple[Relation, list[Condition]]:
    """Also the conditions that are about the query around."""
    parts = list(source.correlated)
    parts += [] if where is None else [bare(part) for part in conjuncts(bare(where))]
    nested = [part for part in parts if _is_nested(part)]
    plain = [part for part in parts if part not in nested]
    for part in plain:
        refuse_subquery(setting.source, part)
    schemas = [source.schema] if around is None else [source.schema, around.schema]
    members = [source.first, *(step.member for step in source.steps)]
    relations = [*(member.relation for member in members), *([] if around is None else [around])]
    fails = frozenset[str]().union(*(relation.deferred for relation in relations))
    context = setting.context(*schemas, fails=fails)
    asked = conditions(context, [source.scope.bind(part) for part in plain])
    inside = [condition for condition in asked if condition.names <= set(source.schema.names)]
    outside = [condition for condition in asked if condition not in inside]
    relation = _Joiner(context, source, inside, taken).joined(where)
    for part in nested:
        relation = _semi_joined(setting, relation, replace(source.scope, outer=None), part, taken)
    return relation, outside


class _Joiner:
    """Joins what stands in FROM. Each condition of WHERE, and of inner joins, is asked once, where it serves first."""

    def __init__(self, context: Context, source: From, where: Iterable[Condition], taken: set[str]) -> None:
        self._context = context
        self._from = source
        self._taken = taken
        on = conditions(context, [node for step in source.steps if _is_free(step) for node in step.on])
        self._open = [*on, *where]
        members = [source.first, *(step.member for step in source.steps)]
        fails = any(member.relation.can_fail for member in members) or any(one.value.fails for one in self._open)
        self._in_order = fails

    def joined(self, where: exp.Expr | None) -> Relation:
        place = self._context.source.place(where)
        if not self._from.steps:
            return restricted(self._from.first.relation, self._open, place)
        relation = self._member(self._from.first)
        waiting: list[tuple[Relation, Member]] = []
        for step in self._from.steps:
            right = self._member(step.member)
            if _is_free(step):
                waiting.append((right, step.member))
            else:
                relation = self._stepped(relation, right, step, [member for _, member in waiting])
            relation, waiting = self._caught_up(relation, waiting)
        for right, member in waiting:
            relation = self._inner(relation, right, member)
        return restricted(relation, self._open, place)

    def _stepped(self, relation: Relation, right: Relation, step: Step, waiting: list[Member]) -> Relation:
        """A join that stays where it is written, unless it needs what is not joined yet."""
        on = conditions(self._context, step.on)
        names = {*relation.schema.names, *right.schema.names}
        missing = next((member for member in waiting if not all(one.names <= names for one in on)), None)
        if missing is not None:
            raise without_equality(self._context, missing.node)
        relation = join(self._context, step.kind, relation, right, on, step.member.node, self._taken)
        return widened(relation, step.merged, None)

    def _caught_up(
        self, relation: Relation, waiting: list[tuple[Relation, Member]]
    ) -> tuple[Relation, list[tuple[Relation, Member]]]:
        """With all joined that can be by now."""
        ready = next((pair for pair in waiting if self._meet(relation, pair[0])), None)
        if ready is None:
            return relation, waiting
        rest = [pair for pair in waiting if pair is not ready]
        return self._caught_up(self._inner(relation, *ready), rest)

    def _inner(self, left: Relation, right: Relation, member: Member) -> Relation:
        lefts, rights = set(left.schema.names), set(right.schema.names)

        def serves(one: Condition) -> bool:
            return bool(one.names & lefts) and bool(one.names & rights) and one.names <= lefts | rights

        return join(self._context, JoinKind.INNER, left, right, self._take(serves), member.node, self._taken)

    def _meet(self, left: Relation, right: Relation) -> bool:
        return any(equates(condition, left.schema, right.schema) for condition in self._open)

    def _member(self, member: Member) -> Relation:
        """The rows of one thing in FROM, chosen by what is asked of them alone. If anything can fail, all is asked in
        the order in which it is written, and goes down from there."""
        if not member.lasts or self._in_order:
            return member.relation
        names = set(member.relation.schema.names)
        own = self._take(lambda one: bool(one.names) and one.names <= names)
        return restricted(member.relation, own, self._context.source.place(own[0].node) if own else None)

    def _take(self, wanted: Callable[[Condition], bool]) -> list[Condition]:
        taken = [one for one in self._open if wanted(one)]
        self._open = [one for one in self._open if one not in taken]
        return taken


def _is_free(step: Step) -> bool:
    """Whether it makes no difference when the join is done: it is an inner one, and none behind keeps other rows."""
    return step.kind is JoinKind.INNER and step.member.lasts


# Subqueries in WHERE


def _is_nested(node: exp.Expr) -> bool:
    inner = node.this if isinstance(node, exp.Not) else node
    return isinstance(inner, exp.Exists) or (isinstance(inner, exp.In) and inner.args.get("query") is not None)


@dataclass(frozen=True, slots=True)
class _Subquery:
    """relation: its rows, by names of their own. on: what ties them to the query around. items: what it selects."""

    relation: Relation
    on: list[Condition]
    items: list[exp.Expr]


def _semi_joined(setting: Setting, relation: Relation, scope: Scope, node: exp.Expr, taken: set[str]) -> Relation:
    """The rows for which the subquery of an IN or EXISTS has a row, or, with NOT, has none."""
    kind = JoinKind.ANTI if isinstance(node, exp.Not) else JoinKind.SEMI
    test = node.this if isinstance(node, exp.Not) else node
    if isinstance(test, exp.In) and kind is JoinKind.ANTI:
        instead = "Write NOT EXISTS (SELECT 1 FROM ... WHERE an equality), which minds no NULLs."
        raise setting.source.unsupported(node, "NOT IN (SELECT ...)", instead)
    query = test.args["query"] if isinstance(test, exp.In) else test.this
    inner = _subquery(setting, query, relation, scope, taken, is_compared=isinstance(test, exp.In))
    on = [*inner.on, *_pairs(setting, test, inner, scope, relation)] if isinstance(test, exp.In) else inner.on
    if not any(equates(condition, relation.schema, inner.relation.schema) for condition in on):
        what = f"{construct(test)} without an equality with the query around it"
        raise setting.source.unsupported(query, what, "Write it: EXISTS (SELECT 1 FROM u WHERE u.x = t.x).")
    context = setting.context(relation.schema, inner.relation.schema, fails=relation.deferred | inner.relation.deferred)
    return join(context, kind, relation, inner.relation, on, query, taken)


def _pairs(setting: Setting, test: exp.Expr, inner: _Subquery, scope: Scope, relation: Relation) -> list[Condition]:
    """What IN compares with what, as conditions."""
    operands = test.this.expressions if isinstance(test.this, exp.Tuple) else [test.this]
    if len(operands) != len(inner.items):
        what = f"IN compares {len(operands)} values with {len(inner.items)} columns"
        raise setting.source.wrong(test, what, "SELECT as many.")
    pairs = [
        exp.EQ(this=scope.bind(operand), expression=item) for operand, item in zip(operands, inner.items, strict=True)
    ]
    fails = relation.deferred | inner.relation.deferred
    return conditions(setting.context(relation.schema, inner.relation.schema, fails=fails), pairs)


def _subquery(
    setting: Setting, query: exp.Expr, around: Relation, scope: Scope, taken: set[str], *, is_compared: bool
) -> _Subquery:
    """is_compared: whether it makes a difference what the query selects; under EXISTS it does not."""
    select = _simple(query)
    if select is None:
        return _independent(setting, query, scope, taken)
    clauses = read_clauses(setting.source, select)
    source = read_from(setting, clauses, scope, taken)
    relation, outside = _selected(setting, source, clauses.where, taken, around)
    items = (
        [node for item in clauses.items for node in _selected_items(setting, source.scope, item)] if is_compared else []
    )
    return _Subquery(relation, outside, items)


def _selected_items(setting: Setting, scope: Scope, item: Item) -> list[exp.Expr]:
    """What an item of SELECT comes to, bound: a star is several."""
    star = item.node.this if isinstance(item.node, exp.Column) else item.node
    if not isinstance(star, exp.Star):
        return [scope.bind(item.node)]
    if any(star.args.values()):
        raise setting.source.unsupported(item.node, "a star with EXCEPT or the like", "List the columns.")
    columns = scope.starred(item.node)
    if any(column.end is not None for column in columns):
        what = "a window as a whole, which is a STRUCT, in a comparison"
        raise setting.source.unsupported(item.node, what, "List the columns: window.start.")
    return [as_node(column.name, item.node) for column in columns]


def _independent(setting: Setting, query: exp.Expr, scope: Scope, taken: set[str]) -> _Subquery:
    """A subquery that does more than choose rows: it may not name the query around."""
    own = {table.alias_or_name.lower() for table in query.find_all(exp.Table, exp.Subquery)}
    around = {entry.alias.lower() for entry in scope.entries} - own
    for node in query.find_all(exp.Column):
        if node.table.lower() in around:
            what = f"{node.table!r}, of the query around it, in a subquery that groups or the like"
            raise setting.source.unsupported(node, what, "Let the subquery group by the column, and join with it.")
    rows = setting.compile(setting, query)
    relation = renamed(rows.relation, [unique(name, taken) for name in rows.relation.schema.names])
    names = dict(zip(rows.relation.schema.names, relation.schema.names, strict=True))
    return _Subquery(relation, [], [as_node(names[column.name], query) for column in rows.columns])


def _simple(query: exp.Expr) -> exp.Select | None:
    """The SELECT, if it does nothing but choose rows, so that it may name the query around."""
    while isinstance(query, exp.Subquery) and not any(value for part, value in query.args.items() if part != "this"):
        query = query.this
    if not isinstance(query, exp.Select):
        return None
    more = any(query.args.get(part) for part in ("group", "having", "qualify", "order", "limit", "with_"))
    return None if more or any(has_aggregate(item) or item.find(exp.Window) for item in query.expressions) else query
