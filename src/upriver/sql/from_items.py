"""FROM: tables, views, WITH queries and subqueries, and how they are joined.

FROM is read in two rounds. The first finds which names there are: each item of FROM, and each ON, from left to right.
The second joins (:mod:`upriver.sql.joins`). Only then WHERE is known, which has the equality of a join by a comma.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from upriver.errors import DeclarationError, UserError
from upriver.plan.plan import ALL_ALIKE, JoinKind, Scan, TableSpec
from upriver.plan.relation import Relation, Scalar
from upriver.sql.clauses import Clauses
from upriver.sql.constants import numbers, values
from upriver.sql.correlation import dependent_rows, same_value
from upriver.sql.detached import detach, detached, has_subquery, without_tests
from upriver.sql.generators import exploded, generated, is_generator
from upriver.sql.joins import ExplodeStep, From, FromMember, JoinOrder, JoinStep
from upriver.sql.logic import conjuncts
from upriver.sql.one_row import one_row
from upriver.sql.operators import to_common
from upriver.sql.pivots import pivoted
from upriver.sql.relations import Output, kept, projected, renamed
from upriver.sql.scalars import construct
from upriver.sql.scope import Entry, Scope, ScopeColumn, ScopeRows, Setting, as_node, bare, names_in, unique, worded
from upriver.sql.unpivots import unpivoted

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
    scope = replace(reader.scope, outer=reader.outer)
    return From(first, tuple(steps), scope, pa.schema(reader.fields), tuple(reader.correlated), reader.keys)


class _Reader:
    """Reads joins from left to right; for Spark, a comma is a join, too. scope, fields: of the items read so far.

    The values of a query around, if there is one, are the first item, without a name; behind a RIGHT or FULL JOIN, the
    last.
    """

    scope: Scope
    fields: list[pa.Field]
    correlated: list[exp.Expr]
    keys: tuple[str, ...] = ()

    def __init__(self, setting: Setting, taken: set[str], outer: Scope | None) -> None:
        self.outer = outer
        self.correlated = []
        self._setting = setting
        self._source = setting.source
        self._taken = taken
        self.fields = []
        self._values: Relation | None = None
        if setting.around is not None:
            names = {name: unique(f"outer.{name}", taken) for name in setting.around.values.schema.names}
            self._values = renamed(setting.around.values, list(names.values()))
            self.outer = setting.around.scope.with_names(names)
            self.keys = tuple(names.values())
            self.fields += self._values.schema

    def read(self, clauses: Clauses) -> tuple[FromMember, list[JoinStep | ExplodeStep]]:
        own = None if self._values is None else self.outer
        if clauses.table is None:
            self.scope = Scope(self._source, (), (), outer=own)
            first = FromMember(self._values or self._one_row(), clauses.items[0].node)
            return first, [*map(self._explosion, clauses.laterals)]
        self._first, scope = self._member(clauses.table)
        self.scope = replace(scope, outer=own)
        self._steps: list[JoinStep | ExplodeStep] = []
        is_last = any(node.side.upper() in ("RIGHT", "FULL") for node in clauses.joins)
        if self._values is not None and not is_last:
            self._steps = [JoinStep(JoinKind.INNER, self._first, self._same_values(self._first))]
            self._first = FromMember(self._values, clauses.table)
        for node in clauses.joins:
            step = self._lateral(node) if isinstance(node.this, exp.Lateral) else self._step(node)
            if isinstance(step, JoinStep) and step.kind in (JoinKind.RIGHT, JoinKind.FULL):
                self._first = replace(self._first, lasts=False)
                self._steps = [_not_lasting(other) for other in self._steps]
                self._check_uncorrelated()
            self._steps.append(step)
        if self._values is not None and is_last:
            self._check_independent()
            self._steps.append(JoinStep(JoinKind.INNER, FromMember(self._values, clauses.table), ()))
        return self._first, [*self._steps, *map(self._explosion, clauses.laterals)]

    def _one_row(self) -> Relation:
        relation = one_row(unique(ALL_ALIKE, self._taken))
        self.fields += relation.schema
        return relation

    def _same_values(self, member: FromMember) -> tuple[exp.Expr, ...]:
        """The conditions that a member's row is of the same values of the query around."""
        return tuple(same_value(*pair) for pair in zip(self.keys, member.keys, strict=True)) if member.keys else ()

    def _check_independent(self) -> None:
        """Raises UnsupportedSql if a join before the last needs the values of the query around."""
        joins = [step for step in self._steps if isinstance(step, JoinStep)]
        if len(joins) < len(self._steps):
            raise self._outside(self._first.node)
        for step in joins:
            is_early = step.kind is not JoinKind.INNER or not step.member.lasts
            for node in step.on if is_early else ():
                if not names_in(node).isdisjoint(self.keys):
                    raise self._outside(node)
        for member in (self._first, *(step.member for step in joins)):
            if member.keys:
                raise self._outside(member.node)

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
        return self._joined(node, kind, replace(member, lasts=kind not in (JoinKind.LEFT, JoinKind.FULL)), right)

    def _joined(self, node: exp.Join, kind: JoinKind, member: FromMember, right: Scope) -> JoinStep:
        titles = [title.name for title in node.args.get("using") or ()]
        if node.method:
            titles = _common(self.scope.columns, right.columns)
        left, both = self.scope, self.scope.beside(right)
        alone = kind in (JoinKind.SEMI, JoinKind.ANTI)
        if titles:
            step, merged = self._using(node, kind, member, right, titles)
            others = () if alone else (column for column in right.columns if not _among(column, titles))
            rest = (column for column in left.columns if not _among(column, titles))
            columns = (*merged, *rest, *others)
            self.scope = replace(left if alone else both, columns=columns)
            return replace(step, on=(*self._same_values(member), *step.on))
        member, attached, on = self._attached(node.args.get("on"), kind, member, right)
        on = self._own_conditions(on, kind, both)
        self.scope = left if alone else both
        own = () if on is None or _is_true(on) else (both.bind(on),)
        return JoinStep(kind, member, (*self._same_values(member), *own, *attached))

    def _attached(
        self, on: exp.Expr | None, kind: JoinKind, member: FromMember, right: Scope
    ) -> tuple[FromMember, list[exp.Expr], exp.Expr | None]:
        """The conditions of an outer join's ON that have subqueries, bound, with a column for each subquery: of the
        joined item, or of the items before. Also the item with these columns, and the rest of ON."""
        parts = [] if on is None else conjuncts(bare(on))
        queries = [part for part in parts if has_subquery(part)]
        if not queries or kind is JoinKind.INNER:
            return member, [], on
        found: list[exp.Expr] = []
        both, setting = self.scope.beside(right), replace(self._setting, around=None)
        for part in queries:
            tree = both.bind(detach(part.copy()))
            here = set(member.relation.schema.names)
            if not _operands(tree) <= here and not _operands(tree).isdisjoint(here):
                tree = without_tests(tree)
            operands = _operands(tree)
            try:
                if not operands <= here:
                    raise self._source.wrong(part, "operands of the other side", "")
                relation, node = setting.attach(setting, member.relation, right, tree.copy(), self._taken, None)
                self.fields += list(relation.schema)[len(member.relation.schema) :]
                member = replace(member, relation=relation)
            except UserError:
                before = self._before(part)
                if not operands <= set(before.schema.names):
                    raise self._of_both(part) from None
                try:
                    relation, node = setting.attach(setting, before, self.scope, tree, self._taken, None)
                except DeclarationError:
                    raise self._of_both(part) from None
                self.fields += list(relation.schema)[len(before.schema) :]
                self._first = replace(self._first, relation=relation)
            found.append(node)
        rest = [part for part in parts if part not in queries]
        return member, found, exp.and_(*rest, copy=False) if rest else None

    def _of_both(self, node: exp.Expr) -> Exception:
        what = "a subquery of both sides in the ON of an outer join"
        return self._source.unsupported(node, what, "Compute it in a subquery of the one side, and join with that.")

    def _before(self, node: exp.Expr) -> Relation:
        """The items so far, joined; they are one item from now on."""
        if self._values is not None and self._first.relation is not self._values:
            raise self._outside(node)
        if self._steps:
            schema = pa.schema(self.fields)
            source = From(self._first, tuple(self._steps), self.scope, schema)
            fails = frozenset[str]().union(*(member.relation.deferred for member in source.members))
            context = self._setting.context(schema, fails=fails)
            relation = JoinOrder(context, source, (), self._taken).joined(None)
            self._first, self._steps = FromMember(relation, self._first.node), []
        return self._first.relation

    def _lateral(self, node: exp.Join) -> JoinStep | ExplodeStep:
        """``JOIN LATERAL``, also by a comma, with ``explode(...)`` or a subquery."""
        words, on = (node.side.upper(), node.kind.upper()), node.args.get("on")
        kind = _KINDS.get(words)
        if node.method or node.args.get("using") or kind not in (JoinKind.INNER, JoinKind.LEFT):
            raise self._source.unsupported(node.this, "this join with LATERAL", "Write INNER or LEFT JOIN LATERAL.")
        if isinstance(node.this.this, exp.Subquery):
            return self._lateral_query(node, kind, node.this)
        if on is not None and not _is_true(bare(on)):
            instead = "Write the condition in WHERE." if kind is JoinKind.INNER else "Write ON TRUE."
            raise self._source.unsupported(node.this, "LATERAL with a condition in ON", instead)
        return self._explosion(node.this, kind is JoinKind.LEFT)

    def _explosion(self, node: exp.Lateral, keeps_empty: bool = False) -> ExplodeStep:
        """LATERAL VIEW, or what stands behind LATERAL."""
        tree = self.scope.bind(detach(node.this.copy()))
        if detached(tree):
            before, setting = self._before(node), replace(self._setting, around=None)
            relation, tree = setting.attach(setting, before, self.scope, tree, self._taken, None)
            self.fields += list(relation.schema)[len(before.schema) :]
            self._first = replace(self._first, relation=relation)
        context = self._setting.context(pa.schema(self.fields))
        call = generated(context, tree, keeps_empty or bool(node.args.get("outer")))
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

    def _lateral_query(self, node: exp.Join, kind: JoinKind, lateral: exp.Lateral) -> JoinStep:
        """A join with a subquery that may name the items before."""
        before = self._before(lateral)
        setting = replace(self._setting, around=None)
        found = dependent_rows(setting, lateral.this.copy(), before, self.scope, self._taken)
        self.fields += found.rows.relation.schema
        titles = self._titles(lateral, found.rows)
        pairs = zip(titles, found.rows.columns, strict=True)
        columns = tuple(ScopeColumn(title, column.name, column.end) for title, column in pairs)
        member = FromMember(found.rows.relation, lateral, lasts=kind is JoinKind.INNER)
        step = self._joined(node, kind, member, Scope.of(self._source, Entry(lateral.alias_or_name, columns)))
        return replace(step, on=(*found.on, *step.on))

    def _own_conditions(self, on: exp.Expr | None, kind: JoinKind, both: Scope) -> exp.Expr | None:
        """ON without the conditions that name the enclosing query."""
        parts = [] if on is None else conjuncts(bare(on))
        queries = [part for part in parts if has_subquery(part)]
        others = [] if self.outer is None or self._values is not None else parts
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
        keys = tuple(names[key] for key in rows.keys)
        return FromMember(relation, node, keys=keys), Scope.of(self._source, Entry(node.alias_or_name, columns))

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
            return self._turned(node, pivots)
        if isinstance(node, exp.Subquery) and not isinstance(node.this, exp.Table):
            self._only(node, "this", "alias", "with_")
            return compiled_inside(self._setting, node)
        if isinstance(node, exp.Subquery):
            raise self._source.unsupported(node, "a join in parentheses", "Write SELECT * FROM before it.")
        if isinstance(node, exp.Lateral) and isinstance(node.this, exp.Subquery):
            self._only(node, "this", "alias")
            return compiled_inside(self._setting, node.this)
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

    def _turned(self, node: exp.Expr, pivots: Sequence[exp.Expr]) -> ScopeRows:
        """The rows of PIVOT or UNPIVOT."""
        pivot, *more = pivots
        word = "UNPIVOT" if pivot.args.get("unpivot") else "PIVOT"
        node.set("pivots", None)
        rows, own = self._rows(node), node.alias_or_name
        if rows.around is not None:
            raise self._source.unsupported(pivot, f"{word} over names of the query around", "Join outside of it.")
        if more:
            raise self._source.unsupported(more[0], "a second PIVOT", "Write it around a subquery.")
        if word == "PIVOT":
            node.set("alias", pivot.args.get("alias"))  # its own is not known outside
            return pivoted(self._setting, pivot, rows)
        if pivot.args.get("alias") is not None:
            node.set("alias", pivot.args["alias"])
        return unpivoted(self._setting, pivot, rows, own)

    def _made(self, node: exp.Table) -> ScopeRows:
        """The rows of a generator by itself, over no other rows."""
        start, nothing = one_row("the row"), Scope(self._source, (), ())
        tree = detach(bare(node.this.copy()))
        start, tree = self._setting.attach(self._setting, start, nothing, tree, {"the row"}, None)
        call = generated(self._setting.context(start.schema), tree, False)
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
        if query is not None and query.around is not None and query.around is not self._setting.around:
            what = f"{node.name!r}, which names the query around, in a subquery of its own"
            raise self._source.unsupported(node, what, "Write its query in its place.")
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


def compiled_inside(setting: Setting, query: exp.Expr) -> ScopeRows:
    """The rows of a query in FROM or WITH. They depend on the query around only if it is named."""
    if setting.around is None:
        return setting.compile(setting, query)
    try:
        return setting.compile(replace(setting, around=None), query.copy())
    except UserError:
        return setting.compile(setting, query)


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


def _operands(tree: exp.Expr) -> frozenset[str]:
    """The columns that the operands of detached subqueries name."""
    return frozenset[str]().union(*(names_in(one) for call in detached(tree) for one in call.expressions))
