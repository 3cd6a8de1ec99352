"""FROM: tables, views, WITH queries and subqueries, and how they are joined.

It is read in two rounds. The first finds out what can be named: each thing in FROM, and each ON, from left to right.
The second joins; only then WHERE is known, in which a join by a comma has its equality.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from upriver.plan.algebra import Relation, Scalar
from upriver.plan.ops import JoinKind, Scan
from upriver.plan.plan import TableSpec
from upriver.sql.sql_clauses import Clauses
from upriver.sql.sql_logic import conjuncts
from upriver.sql.sql_operators import to_common
from upriver.sql.sql_relations import Output, renamed
from upriver.sql.sql_scalar import construct
from upriver.sql.sql_scope import Column, Entry, Rows, Scope, as_node, bare, unique, worded
from upriver.sql.sql_setting import Setting

NO_TABLE = "FROM takes a declared table, a view, a subquery or a query of WITH."
_PARTS = {"db": "a database before a table", "pivots": "PIVOT", "sample": "TABLESAMPLE", "version": "VERSION"}
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
class Member:
    """One thing in FROM. lasts: whether each row of the FROM holds a row of it: no outer join may stand in for it."""

    relation: Relation
    node: exp.Expr
    lasts: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """A join to what stands before it. merged: columns that come of it, which are of the one side or the other."""

    kind: JoinKind
    member: Member
    on: tuple[exp.Expr, ...]
    merged: tuple[Output, ...] = ()


@dataclass(frozen=True, slots=True)
class From:
    """A FROM of which all is known but how it is joined by WHERE. schema: all columns, also those that no row will have
    in the end (of the right side of a semi join). correlated: conditions of inner joins, not bound yet, that name the
    query around: they are asked as those of WHERE are."""

    first: Member
    steps: tuple[Step, ...]
    scope: Scope
    schema: pa.Schema
    correlated: tuple[exp.Expr, ...] = ()


def read_from(setting: Setting, clauses: Clauses, outer: Scope | None, taken: set[str]) -> From:
    """outer: the scope of the query around, if its names may be used. taken: names that no column may have, lower case;
    those of all columns are added."""
    reader = _Reader(setting, taken, outer)
    first, steps = reader.read(clauses.table, clauses.joins)
    aliases = [entry.alias.lower() for entry in reader.scope.entries if entry.alias]
    twice = next((alias for alias in aliases if aliases.count(alias) > 1), None)
    if twice is not None:
        nodes = [first.node, *(step.member.node for step in steps)]
        node = [node for node in nodes if node.alias_or_name.lower() == twice][-1]
        raise setting.source.unsupported(node, f"{twice!r} twice in FROM", "Give one an alias: ... AS other.")
    scope = replace(reader.scope, outer=outer)
    return From(first, tuple(steps), scope, pa.schema(reader.fields), tuple(reader.correlated))


class _Reader:
    """Reads joins from left to right: for Spark, a comma is one of them. scope, fields: of what has been read."""

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

    def read(self, table: exp.Expr, joins: Sequence[exp.Join]) -> tuple[Member, list[Step]]:
        first, self.scope = self._member(table)
        steps: list[Step] = []
        for node in joins:
            step = self._step(node)
            if step.kind in (JoinKind.RIGHT, JoinKind.FULL):
                first = replace(first, lasts=False)
                steps = [replace(other, member=replace(other.member, lasts=False)) for other in steps]
                self._check_uncorrelated()
            steps.append(step)
        return first, steps

    def _step(self, node: exp.Join) -> Step:
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
        return Step(kind, member, () if on is None or _is_true(on) else (both.bind(on),))

    def _own_conditions(self, on: exp.Expr | None, kind: JoinKind, both: Scope) -> exp.Expr | None:
        """ON without the conditions that name the query around."""
        parts = [] if on is None or self._outer is None else conjuncts(bare(on))
        others = [part for part in parts if not all(map(both.knows, part.find_all(exp.Column)))]
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
        self, node: exp.Join, kind: JoinKind, member: Member, right: Scope, titles: Iterable[str]
    ) -> tuple[Step, list[Column]]:
        """The step, and the columns that both sides have become one in."""
        columns: list[Column] = []
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
                columns.append(Column(one.title, merged[-1].name))
            else:
                columns.append(Column(one.title, other.name if kind is JoinKind.RIGHT else one.name))
        return Step(kind, member, tuple(on), tuple(merged)), columns

    def _either(self, equality: exp.EQ) -> Output:
        """The column of a FULL JOIN USING: of whichever side there is."""
        context = self._setting.context(pa.schema(self.fields))
        one, other = to_common(context, equality, context.translate_all((equality.this, equality.expression)))
        value = Scalar(f"coalesce({one.sql}, {other.sql})", one.type)
        name = unique(f"coalesce({worded(equality.this)}, {worded(equality.expression)})", self._taken)
        self.fields.append(pa.field(name, value.type))
        return Output(name, value)

    def _member(self, node: exp.Expr) -> tuple[Member, Scope]:
        rows = self._rows(node)
        relation = self._apart(rows.relation, node.alias_or_name)
        names = dict(zip(rows.relation.schema.names, relation.schema.names, strict=True))
        self.fields += relation.schema
        titles = self._titles(node, rows)
        columns = tuple(
            Column(title, names[column.name], None if column.end is None else names[column.end])
            for title, column in zip(titles, rows.columns, strict=True)
        )
        return Member(relation, node), Scope.of(self._source, Entry(node.alias_or_name, columns))

    def _apart(self, relation: Relation, alias: str) -> Relation:
        """The relation by names that nothing else in FROM has."""
        names = {name.lower() for name in relation.schema.names}
        if self._taken.isdisjoint(names):
            self._taken.update(names)
            return relation
        before = f"{alias}." if alias else ""
        return renamed(relation, [unique(f"{before}{name}", self._taken) for name in relation.schema.names])

    def _titles(self, node: exp.Expr, rows: Rows) -> list[str | None]:
        alias = node.args.get("alias")
        given = [] if alias is None else [title.name for title in alias.args.get("columns") or ()]
        if not given:
            return [column.title for column in rows.columns]
        if len(given) != len(rows.columns):
            what = f"{node.alias!r} names {len(given)} columns of {len(rows.columns)}"
            raise self._source.wrong(alias, what, "Name each.")
        return list(given)

    def _rows(self, node: exp.Expr) -> Rows:
        if isinstance(node, exp.Subquery) and not isinstance(node.this, exp.Table):
            self._only(node, "this", "alias", "with_")
            return self._setting.compile(self._setting, node)
        if isinstance(node, exp.Subquery):
            raise self._source.unsupported(node, "a join in parentheses", "Write SELECT * FROM before it.")
        if isinstance(node, exp.Lateral | exp.Unnest):
            instead = "Explode in the DataFrame that you give to app.table(), or join ON an equality."
            raise self._source.unsupported(node, "LATERAL", instead)
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            what = "VALUES" if isinstance(node, exp.Values) else "FROM anything but a table"
            raise self._source.unsupported(node, what, NO_TABLE)
        self._only(node, "this", "alias")
        return self._named(node)

    def _only(self, node: exp.Expr, *parts: str) -> None:
        for part, value in node.args.items():
            if part not in parts and value not in (None, False, []):
                raise self._source.unsupported(node, _PARTS.get(part, f"{construct(node)} with {part}"), NO_TABLE)

    def _named(self, node: exp.Table) -> Rows:
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


def _scanned(spec: TableSpec, place: int | None) -> Rows:
    columns = tuple(Column(name, name) for name in spec.schema.names)
    return Rows(Relation(Scan(spec.name), (), spec.schema, place), columns)


def _common(left: Sequence[Column], right: Sequence[Column]) -> list[str]:
    return [column.title for column in left if column.title and any(other.is_titled(column.title) for other in right)]


def _among(column: Column, titles: Iterable[str]) -> bool:
    return any(column.is_titled(title) for title in titles)


def _is_true(node: exp.Expr) -> bool:
    return isinstance(node, exp.Boolean) and bool(node.this)


def _place_of(node: exp.Join, title: str) -> dict[str, object]:
    named = next((name for name in node.args.get("using") or () if name.name == title), node.this)
    return next((dict(part.meta) for part in named.walk() if "start" in part.meta), {})
