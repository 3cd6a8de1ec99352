"""FROM and WHERE: tables, views, WITH queries and subqueries, how they are joined, and which rows are left.

A condition on one table alone is applied before that table is joined, as Spark does it. IN and EXISTS with a subquery
are semi joins, NOT EXISTS is an anti join.

FROM is read in two rounds. The first finds which names there are: each item of FROM, and each ON, from left to right.
The second joins. Only then WHERE is known, which has the equality of a join by a comma.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from upriver.plan.plan import ALL_ALIKE, JoinKind, Scan, TableSpec
from upriver.plan.relation import Relation, Scalar
from upriver.sql.aggregates import has_aggregate
from upriver.sql.clauses import END, Clauses, SelectItem, read_clauses
from upriver.sql.constants import numbers, values
from upriver.sql.detached import detach, has_subquery
from upriver.sql.generators import Generated, exploded, generated, is_generator
from upriver.sql.logic import conjuncts
from upriver.sql.one_row import one_row
from upriver.sql.operators import to_common
from upriver.sql.pivots import pivoted
from upriver.sql.relations import (
    ALIKE,
    Condition,
    Output,
    conditions,
    distinct,
    equates,
    join,
    kept,
    projected,
    renamed,
    restricted,
    union,
    widened,
    with_values,
)
from upriver.sql.scalars import Context, construct
from upriver.sql.scope import Entry, Scope, ScopeColumn, ScopeRows, Setting, as_node, bare, unique, worded

NO_TABLE = "FROM takes a declared table, a view, a subquery, a query of WITH, VALUES or range()."
_PARTS = {"db": "a database before a table", "sample": "TABLESAMPLE", "version": "VERSION"}
_KINDS = {
    ("", ""): JoinKind.INNER,
    ("", "INNER"): JoinKind.INNER,
    ("", "CROSS"): JoinKind.INNER,
    ("LEFT", ""): JoinKind.LEFT,
    ("LEFT", "OUTER"): JoinKind.LEFT,
    ("RIGHT", ""): JoinKind.RIGHT,
    ("RIGHT", "OUTER"): JoinKind.RIGHT,
    ("FULL", ""): JoinKind.FULL,
    ("FULL", "OUTER"): JoinKind.FULL,
    ("", "SEMI"): JoinKind.SEMI,
    ("LEFT", "SEMI"): JoinKind.SEMI,
    ("", "ANTI"): JoinKind.ANTI,
    ("LEFT", "ANTI"): JoinKind.ANTI,
}


@dataclass(frozen=True, slots=True)
class FromMember:
    """One item of FROM. lasts: whether each row of the FROM contains a row of it: no outer join may replace it by
    NULLs."""

    relation: Relation
    node: exp.Expr
    lasts: bool = True


@dataclass(frozen=True, slots=True)
class JoinStep:
    """A join to the items before it. merged: columns that it creates from either side."""

    kind: JoinKind
    member: FromMember
    on: tuple[exp.Expr, ...]
    merged: tuple[Output, ...] = ()


@dataclass(frozen=True, slots=True)
class ExplodeStep:
    """A generator over the items before it. names: of its columns. node: its call."""

    call: Generated
    names: tuple[str, ...]
    node: exp.Expr


@dataclass(frozen=True, slots=True)
class From:
    """A FROM before WHERE decides how it is joined. schema: all columns, including those of the right side of a semi
    join, which the result lacks. correlated: conditions of inner joins, not bound yet, that name the enclosing query.
    They are applied like those of WHERE."""

    first: FromMember
    steps: tuple[JoinStep | ExplodeStep, ...]
    scope: Scope
    schema: pa.Schema
    correlated: tuple[exp.Expr, ...] = ()

    @property
    def joins(self) -> list[JoinStep]:
        return [step for step in self.steps if isinstance(step, JoinStep)]

    @property
    def members(self) -> list[FromMember]:
        """The items that are relations by themselves."""
        return [self.first, *(step.member for step in self.joins)]


def read_from(setting: Setting, clauses: Clauses, outer: Scope | None, taken: set[str]) -> From:
    """outer: the scope of the enclosing query, if its names may be used. taken: names that no column may have, lower
    case; the names of all columns are added."""
    reader = _Reader(setting, taken, outer)
    first, steps = reader.read(clauses)
    aliases = [entry.alias.lower() for entry in reader.scope.entries if entry.alias]
    twice = next((alias for alias in aliases if aliases.count(alias) > 1), None)
    if twice is not None:
        nodes = [first.node, *(step.node if isinstance(step, ExplodeStep) else step.member.node for step in steps)]
        node = [node for node in nodes if node.alias_or_name.lower() == twice][-1]
        raise setting.source.unsupported(node, f"{twice!r} twice in FROM", "Give one an alias: ... AS other.")
    scope = replace(reader.scope, outer=outer)
    return From(first, tuple(steps), scope, pa.schema(reader.fields), tuple(reader.correlated))


class _Reader:
    """Reads joins from left to right; for Spark, a comma is a join, too. scope, fields: of the items read so far."""

    scope: Scope
    fields: list[pa.Field]
    correlated: list[exp.Expr]

    def __init__(self, setting: Setting, taken: set[str], outer: Scope | None) -> None:
        self._outer = outer
        self.correlated = []
        self._setting = setting
        self._source = setting.source
        self._taken = taken
        self.fields = []

    def read(self, clauses: Clauses) -> tuple[FromMember, list[JoinStep | ExplodeStep]]:
        if clauses.table is None:
            relation = one_row(unique(ALL_ALIKE, self._taken))
            self.fields += relation.schema
            self.scope = Scope(self._source, (), ())
            return FromMember(relation, clauses.items[0].node), [*map(self._explosion, clauses.laterals)]
        first, self.scope = self._member(clauses.table)
        steps: list[JoinStep | ExplodeStep] = []
        for node in clauses.joins:
            step = self._lateral(node) if isinstance(node.this, exp.Lateral) else self._step(node)
            if isinstance(step, JoinStep) and step.kind in (JoinKind.RIGHT, JoinKind.FULL):
                first = replace(first, lasts=False)
                steps = [_not_lasting(other) for other in steps]
                self._check_uncorrelated()
            steps.append(step)
        return first, [*steps, *map(self._explosion, clauses.laterals)]

    def _lateral(self, node: exp.Join) -> ExplodeStep:
        """``JOIN LATERAL explode(...)``, also by a comma."""
        words, on = (node.side.upper(), node.kind.upper()), node.args.get("on")
        kind = _KINDS.get(words)
        if node.method or node.args.get("using") or kind not in (JoinKind.INNER, JoinKind.LEFT):
            raise self._source.unsupported(node.this, "this join with LATERAL", "Write INNER or LEFT JOIN LATERAL.")
        if on is not None and not _is_true(bare(on)):
            instead = "Write the condition in WHERE." if kind is JoinKind.INNER else "Write ON TRUE."
            raise self._source.unsupported(node.this, "LATERAL with a condition in ON", instead)
        return self._explosion(node.this, kind is JoinKind.LEFT)

    def _explosion(self, node: exp.Lateral, keeps_empty: bool = False) -> ExplodeStep:
        """LATERAL VIEW, or what stands behind LATERAL."""
        if isinstance(node.this, exp.Subquery):
            instead = "Join with the subquery ON an equality, or write its columns into SELECT."
            raise self._source.unsupported(node, "LATERAL (SELECT ...)", instead)
        context = self._setting.context(pa.schema(self.fields))
        bound = self.scope.bind(node.this.copy())
        call = generated(context, bound, pa.schema(self.fields), keeps_empty or bool(node.args.get("outer")))
        alias = node.args.get("alias")
        titles = [title.name for title in alias.args.get("columns") or ()] if alias is not None else []
        if titles and len(titles) != len(call.titles):
            what = f"{node.alias!r} names {len(titles)} columns of {len(call.titles)}"
            raise self._source.wrong(alias, what, "Name each.")
        titles = titles or list(call.titles)
        names = tuple(unique(title, self._taken) for title in titles)
        self.fields += call.op(names).fields
        columns = tuple(ScopeColumn(title, name) for title, name in zip(titles, names, strict=True))
        self.scope = self.scope.beside(Scope.of(self._source, Entry(node.alias, columns)))
        return ExplodeStep(call, names, node)

    def _step(self, node: exp.Join) -> JoinStep:
        for part in node.args:
            if part not in ("this", "side", "kind", "method", "on", "using") and node.args[part]:
                raise self._source.unsupported(node, f"a join with {part}", "Leave it out.")
        words = node.side.upper(), node.kind.upper()
        kind, method = _KINDS.get(words), node.method.upper()
        if kind is None or method not in ("", "NATURAL"):
            named = " ".join(word for word in (method, *words, "JOIN") if word)
            raise self._source.unsupported(node.this, named, "Write a LEFT, RIGHT, FULL or INNER JOIN ... ON.")
        member, right = self._member(node.this)
        member = replace(member, lasts=kind not in (JoinKind.LEFT, JoinKind.FULL))
        titles = [title.name for title in node.args.get("using") or ()]
        if method:
            titles = _common(self.scope.columns, right.columns)
        left, both = self.scope, self.scope.beside(right)
        alone = kind in (JoinKind.SEMI, JoinKind.ANTI)
        if titles:
            step, merged = self._using(node, kind, member, right, titles)
            others = () if alone else (column for column in right.columns if not _among(column, titles))
            rest = (column for column in left.columns if not _among(column, titles))
            columns = (*merged, *rest, *others)
            self.scope = replace(left if alone else both, columns=columns)
            return step
        on = self._own_conditions(node.args.get("on"), kind, both)
        self.scope = left if alone else both
        return JoinStep(kind, member, () if on is None or _is_true(on) else (both.bind(on),))

    def _own_conditions(self, on: exp.Expr | None, kind: JoinKind, both: Scope) -> exp.Expr | None:
        """ON without the conditions that name the enclosing query."""
        parts = [] if on is None else conjuncts(bare(on))
        queries = [part for part in parts if has_subquery(part)]
        if queries and kind is not JoinKind.INNER:
            what = "a subquery in the ON of an outer join"
            raise self._source.unsupported(queries[0], what, "Join with the subquery first.")
        others = [] if self._outer is None else parts
        others = [part for part in others if not all(map(both.knows, part.find_all(exp.Column)))]
        others += [part for part in queries if part not in others]
        if not others:
            return on
        if kind is not JoinKind.INNER:
            raise self._outside(others[0])
        self.correlated += others
        own = [part for part in parts if part not in others]
        return exp.and_(*own, copy=False) if own else None

    def _check_uncorrelated(self) -> None:
        if self.correlated:
            raise self._outside(self.correlated[0])

    def _outside(self, node: exp.Expr) -> Exception:
        what = "a name of the query around in the ON of an outer join"
        return self._source.unsupported(
            node, what, "Put the condition into the subquery's WHERE, if it means the same."
        )

    def _using(
        self, node: exp.Join, kind: JoinKind, member: FromMember, right: Scope, titles: Iterable[str]
    ) -> tuple[JoinStep, list[ScopeColumn]]:
        """The step, and the merged columns of both sides."""
        columns: list[ScopeColumn] = []
        merged: list[Output] = []
        on: list[exp.EQ] = []
        for title in titles:
            pair = exp.column(title), exp.column(title)
            for name in pair:
                name.this.meta.update(_place_of(node, title))
            one, other = self.scope.find(pair[0])[0], right.find(pair[1])[0]
            if one.end is not None or other.end is not None:
                raise self._source.unsupported(pair[0], "USING a window", "Join ON its start and its end.")
            on.append(exp.EQ(this=as_node(one.name, pair[0]), expression=as_node(other.name, pair[1])))
            if kind is JoinKind.FULL:
                merged.append(self._either(on[-1]))
                columns.append(ScopeColumn(one.title, merged[-1].name))
            else:
                columns.append(ScopeColumn(one.title, other.name if kind is JoinKind.RIGHT else one.name))
        return JoinStep(kind, member, tuple(on), tuple(merged)), columns

    def _either(self, equality: exp.EQ) -> Output:
        """The column of a FULL JOIN USING: from whichever side has a row."""
        context = self._setting.context(pa.schema(self.fields))
        one, other = to_common(context, equality, context.translate_all((equality.this, equality.expression)))
        value = Scalar(f"coalesce({one.sql}, {other.sql})", one.type)
        name = unique(f"coalesce({worded(equality.this)}, {worded(equality.expression)})", self._taken)
        self.fields.append(pa.field(name, value.type))
        return Output(name, value)

    def _member(self, node: exp.Expr) -> tuple[FromMember, Scope]:
        rows = self._rows(node)
        relation = self._apart(rows.relation, node.alias_or_name)
        names = dict(zip(rows.relation.schema.names, relation.schema.names, strict=True))
        self.fields += relation.schema
        titles = self._titles(node, rows)
        columns = tuple(
            ScopeColumn(title, names[column.name], None if column.end is None else names[column.end])
            for title, column in zip(titles, rows.columns, strict=True)
        )
        return FromMember(relation, node), Scope.of(self._source, Entry(node.alias_or_name, columns))

    def _apart(self, relation: Relation, alias: str) -> Relation:
        """The relation with column names that no other item of FROM has."""
        names = {name.lower() for name in relation.schema.names}
        if self._taken.isdisjoint(names):
            self._taken.update(names)
            return relation
        before = f"{alias}." if alias else ""
        return renamed(relation, [unique(f"{before}{name}", self._taken) for name in relation.schema.names])

    def _titles(self, node: exp.Expr, rows: ScopeRows) -> list[str | None]:
        alias = node.args.get("alias")
        given = [] if alias is None else [title.name for title in alias.args.get("columns") or ()]
        if not given:
            return [column.title for column in rows.columns]
        if len(given) != len(rows.columns):
            what = f"{node.alias!r} names {len(given)} columns of {len(rows.columns)}"
            raise self._source.wrong(alias, what, "Name each.")
        return list(given)

    def _rows(self, node: exp.Expr) -> ScopeRows:
        pivots = node.args.get("pivots")
        if pivots:
            node.set("pivots", None)
            rows = self._rows(node)
            node.set("alias", pivots[0].args.get("alias"))  # its own is not known outside
            if len(pivots) > 1:
                raise self._source.unsupported(pivots[1], "a second PIVOT", "Write it around a subquery.")
            return pivoted(self._setting, pivots[0], rows)
        if isinstance(node, exp.Subquery) and not isinstance(node.this, exp.Table):
            self._only(node, "this", "alias", "with_")
            return self._setting.compile(self._setting, node)
        if isinstance(node, exp.Subquery):
            raise self._source.unsupported(node, "a join in parentheses", "Write SELECT * FROM before it.")
        if isinstance(node, exp.Table) and is_generator(node.this):
            self._only(node, "this", "alias")
            return self._made(node)
        if isinstance(node, exp.Values):
            self._only(node, "expressions", "alias")
            return values(self._setting, node)
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Anonymous) and node.this.name.lower() == "range":
            self._only(node, "this", "alias")
            return numbers(self._setting, node, node.this.expressions)
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            raise self._source.unsupported(node, "FROM anything but a table", NO_TABLE)
        self._only(node, "this", "alias")
        return self._named(node)

    def _made(self, node: exp.Table) -> ScopeRows:
        """The rows of a generator by itself, over no other rows."""
        start = one_row("the row")
        call = generated(self._setting.context(pa.schema([])), bare(node.this.copy()), pa.schema([]), False)
        rows = exploded(start, call, call.titles, self._source.place(node))
        columns = tuple(ScopeColumn(title, title) for title in call.titles)
        return ScopeRows(projected(rows, [one for one in kept(rows) if one.name in call.titles], None), columns)

    def _only(self, node: exp.Expr, *parts: str) -> None:
        for part, value in node.args.items():
            if part not in parts and value not in (None, False, []):
                raise self._source.unsupported(node, _PARTS.get(part, f"{construct(node)} with {part}"), NO_TABLE)

    def _named(self, node: exp.Table) -> ScopeRows:
        name = node.name.lower()
        query = self._setting.queries.get(name)
        if query is not None:
            return query
        spec = next((spec for known, spec in self._setting.tables.items() if known.lower() == name), None)
        if spec is not None:
            return _scanned(spec, self._source.place(node))
        view = self._setting.view(name)
        if view is None:
            known = ", ".join(sorted(self._setting.tables)) or "none yet"
            raise self._source.wrong(node, f"there is no table {node.name!r}", f"Declared with app.table(): {known}.")
        return view


def _scanned(spec: TableSpec, place: int | None) -> ScopeRows:
    columns = tuple(ScopeColumn(name, name) for name in spec.schema.names)
    return ScopeRows(Relation(Scan(spec.name), (), spec.schema, place), columns)


def _not_lasting(step: JoinStep | ExplodeStep) -> JoinStep | ExplodeStep:
    """The step before a join that may have NULLs in place of its rows."""
    return step if isinstance(step, ExplodeStep) else replace(step, member=replace(step.member, lasts=False))


def _common(left: Sequence[ScopeColumn], right: Sequence[ScopeColumn]) -> list[str]:
    return [column.title for column in left if column.title and any(other.is_titled(column.title) for other in right)]


def _among(column: ScopeColumn, titles: Iterable[str]) -> bool:
    return any(column.is_titled(title) for title in titles)


def _is_true(node: exp.Expr) -> bool:
    return isinstance(node, exp.Boolean) and bool(node.this)


def _place_of(node: exp.Join, title: str) -> dict[str, object]:
    named = next((name for name in node.args.get("using") or () if name.name == title), node.this)
    return next((dict(part.meta) for part in named.walk() if "start" in part.meta), {})


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
    relation = _Joiner(context, source, inside, taken).joined(where)
    for part in nested:
        relation = _semi_joined(setting, relation, replace(source.scope, outer=None), part, taken)
    for part in valued:
        scope = replace(source.scope, outer=None)
        relation, node = setting.attach(setting, relation, scope, scope.bind(detach(part)), taken, None)
        context = setting.context(relation.schema, fails=relation.deferred, certain=relation.certain)
        relation = restricted(relation, conditions(context, [node]), setting.source.place(where))
    return relation, outside


class _Joiner:
    """Joins the items of FROM. It applies each condition of WHERE and of inner joins once, as early as it is useful."""

    def __init__(self, context: Context, source: From, where: Iterable[Condition], taken: set[str]) -> None:
        self._context = context
        self._from = source
        self._taken = taken
        on = conditions(context, [node for step in source.joins if _is_free(step) for node in step.on])
        self._open = [*on, *where]
        fails = any(member.relation.can_fail for member in source.members)
        fails |= any(step.call.elements.fails for step in source.steps if isinstance(step, ExplodeStep))
        self._in_order = fails or any(one.value.fails for one in self._open)

    def joined(self, where: exp.Expr | None) -> Relation:
        place = self._context.source.place(where)
        if not self._from.steps:
            return restricted(self._from.first.relation, self._open, place)
        relation = self._member(self._from.first)
        waiting: list[tuple[Relation, FromMember]] = []
        for step in self._from.steps:
            if isinstance(step, ExplodeStep):
                while waiting:
                    relation, waiting = self._crossed(relation, waiting)
                relation = exploded(relation, step.call, step.names, self._context.source.place(step.node))
                continue
            right = self._member(step.member)
            if _is_free(step):
                waiting.append((right, step.member))
            else:
                on = conditions(self._context, step.on)
                while waiting and not all(one.names <= {*relation.schema.names, *right.schema.names} for one in on):
                    relation, waiting = self._crossed(relation, waiting)
                relation = join(self._context, step.kind, relation, right, on, step.member.node, self._taken)
                relation = widened(relation, step.merged, None)
            relation, waiting = self._caught_up(relation, waiting)
        while waiting:
            relation, waiting = self._crossed(relation, waiting)
        return restricted(relation, self._open, place)

    def _crossed(
        self, relation: Relation, waiting: list[tuple[Relation, FromMember]]
    ) -> tuple[Relation, list[tuple[Relation, FromMember]]]:
        """Join the first waiting item, without an equality, and then all that can be joined by one."""
        first, *rest = waiting
        return self._caught_up(self._inner(relation, *first), rest)

    def _caught_up(
        self, relation: Relation, waiting: list[tuple[Relation, FromMember]]
    ) -> tuple[Relation, list[tuple[Relation, FromMember]]]:
        """Join every waiting item that can be joined by now."""
        ready = next((pair for pair in waiting if self._meet(relation, pair[0])), None)
        if ready is None:
            return relation, waiting
        rest = [pair for pair in waiting if pair is not ready]
        return self._caught_up(self._inner(relation, *ready), rest)

    def _inner(self, left: Relation, right: Relation, member: FromMember) -> Relation:
        lefts, rights = set(left.schema.names), set(right.schema.names)

        def serves(one: Condition) -> bool:
            return bool(one.names & lefts) and bool(one.names & rights) and one.names <= lefts | rights

        return join(self._context, JoinKind.INNER, left, right, self._take(serves), member.node, self._taken)

    def _meet(self, left: Relation, right: Relation) -> bool:
        return any(equates(condition, left.schema, right.schema) for condition in self._open)

    def _member(self, member: FromMember) -> Relation:
        """The rows of one item of FROM, filtered by the conditions on that item alone. If anything can fail, no
        condition is applied here: all are applied in their written order, and pushed down from there."""
        if not member.lasts or self._in_order:
            return member.relation
        names = set(member.relation.schema.names)
        own = self._take(lambda one: bool(one.names) and one.names <= names)
        return restricted(member.relation, own, self._context.source.place(own[0].node) if own else None)

    def _take(self, wanted: Callable[[Condition], bool]) -> list[Condition]:
        taken = [one for one in self._open if wanted(one)]
        self._open = [one for one in self._open if one not in taken]
        return taken


def _is_free(step: JoinStep) -> bool:
    """Whether the time of the join does not matter: it is an inner join, and no later join keeps rows without a
    match."""
    return step.kind is JoinKind.INNER and step.member.lasts


# Subqueries in WHERE


def _is_nested(node: exp.Expr) -> bool:
    inner = node.this if isinstance(node, exp.Not) else node
    return isinstance(inner, exp.Exists) or (isinstance(inner, exp.In) and inner.args.get("query") is not None)


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
    if select is None:
        return _independent(setting, query, scope, taken)
    clauses = read_clauses(setting.source, select)
    source = read_from(setting, clauses, scope, taken)
    relation, outside = selected_around(setting, source, clauses.where, taken, around)
    items = (
        [node for item in clauses.items for node in _selected_items(setting, source.scope, item)] if is_compared else []
    )
    return Subquery(relation, outside, items)


def _selected_items(setting: Setting, scope: Scope, item: SelectItem) -> list[exp.Expr]:
    """The bound nodes of an item of SELECT: a star gives several."""
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


def _independent(setting: Setting, query: exp.Expr, scope: Scope, taken: set[str]) -> Subquery:
    """A subquery that does more than filter rows: it may not name the enclosing query."""
    own = {table.alias_or_name.lower() for table in query.find_all(exp.Table, exp.Subquery)}
    around = {entry.alias.lower() for entry in scope.entries} - own
    for node in query.find_all(exp.Column):
        if node.table.lower() in around:
            what = f"{node.table!r}, of the query around it, in a subquery that groups or the like"
            raise setting.source.unsupported(node, what, "Let the subquery group by the column, and join with it.")
    rows = setting.compile(setting, query)
    relation = renamed(rows.relation, [unique(name, taken) for name in rows.relation.schema.names])
    names = dict(zip(rows.relation.schema.names, relation.schema.names, strict=True))
    return Subquery(relation, [], [as_node(names[column.name], query) for column in rows.columns])


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
