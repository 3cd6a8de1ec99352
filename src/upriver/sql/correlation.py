"""Subqueries of any form that name the query around them.

The query around gives each combination of the values that those names have, once. Every SELECT of the subquery is
joined to these values, and keeps them with its rows: it groups, numbers and limits rows within each combination. Each
row around then meets the rows that have its own values.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sqlglot import exp

from upriver.errors import DeclarationError, UserError
from upriver.plan.column_names import plain_columns
from upriver.plan.plan import AggregateOp, FilterOp, JoinKind, JoinOp, ProjectOp, Ranking, TopKOp, WindowOp
from upriver.plan.relation import Relation
from upriver.sql.relations import at_most_one, comparable, distinct, kept, projected, renamed
from upriver.sql.scope import Around, Scope, ScopeRows, Setting, as_node, unique


@dataclass(frozen=True, slots=True)
class Dependent:
    """The rows of a subquery, with column names of their own. keys: of its rows, in the order of ``names``, the columns
    around that it names. A row around meets the rows whose keys are the same, NULL included."""

    rows: ScopeRows
    names: tuple[str, ...]

    @property
    def on(self) -> list[exp.Expr]:
        """The equalities with the rows around, bound."""
        return [same_value(name, key) for name, key in zip(self.names, self.rows.keys, strict=True)]


def same_value(name: str, other: str) -> exp.Expr:
    """The condition that two columns are equal, or both NULL."""
    node = exp.column(name)
    return exp.NullSafeEQ(this=as_node(name, node), expression=as_node(other, node))


def dependent_rows(setting: Setting, query: exp.Expr, relation: Relation, scope: Scope, taken: set[str]) -> Dependent:
    """The rows of a subquery of these rows. scope: the names of their columns. taken: names that no other column may
    have, lower case; the new names are added. The query is used up.

    Raises UnsupportedSql, DeclarationError.
    """
    named = set(_named(setting, query, scope))
    names = tuple(name for name in relation.schema.names if name in named)
    alone = replace(setting, around=None)
    if not names:
        return Dependent(_apart(setting.compile(alone, query), taken), ())
    try:
        return Dependent(_apart(setting.compile(alone, query.copy()), taken), ())
    except UserError:
        pass  # it names the query around
    values = projected(relation, [one for one in kept(relation) if one.name in named], None)
    different = distinct(comparable(setting.source, values, query), setting.source.place(query))
    around = Around(different, scope.with_names({name: name for name in names}))
    return Dependent(_apart(setting.compile(replace(setting, around=around), query), taken), names)


def _apart(rows: ScopeRows, taken: set[str]) -> ScopeRows:
    """The rows with column names that are not taken."""
    names = {name: unique(name, taken) for name in rows.relation.schema.names}
    columns = tuple(
        replace(column, name=names[column.name], end=None if column.end is None else names[column.end])
        for column in rows.columns
    )
    keys = tuple(names[key] for key in rows.keys)
    return replace(rows, relation=renamed(rows.relation, list(names.values())), columns=columns, keys=keys)


def _named(setting: Setting, query: exp.Expr, scope: Scope) -> Iterator[str]:
    """The columns around that a subquery may name."""
    for node in query.find_all(exp.Column):
        if isinstance(node.this, exp.Star) or _is_own(setting, query, node):
            continue
        try:
            column, _ = scope.find(node)
        except DeclarationError:
            continue
        yield column.name
        if column.end is not None:
            yield column.end


def _is_own(setting: Setting, query: exp.Expr, node: exp.Column) -> bool:
    """Whether the name surely means a column of the subquery's own tables."""
    select = node.parent_select
    while select is not None:
        for item in _items(select):
            alias = item.alias_or_name.lower()
            if node.table:
                if alias and alias == node.parts[0].name.lower():
                    return True
            elif isinstance(item, exp.Table) and node.name.lower() in _titles(setting, item):
                return True
        if select is query:
            return False
        select = select.parent_select
    return False


def _items(select: exp.Expr) -> Iterator[exp.Expr]:
    """The items of a SELECT's FROM."""
    table = select.args.get("from_")
    if table is not None:
        yield table.this
    for step in select.args.get("joins") or ():
        yield step.this


def _titles(setting: Setting, table: exp.Table) -> set[str]:
    """The columns of a query of WITH, a table or a view, in lower case."""
    if table.args.get("alias") and table.args["alias"].columns:
        return set()
    known = table.name.lower()
    spec = next((spec for name, spec in setting.tables.items() if name.lower() == known), None)
    rows = setting.queries.get(known)
    if rows is None and spec is not None:
        return {title.lower() for title in spec.schema.names}
    rows = setting.view(known) if rows is None else rows
    return set() if rows is None else {column.title.lower() for column in rows.columns if column.title}


def is_key(relation: Relation, names: set[str]) -> bool:
    """Whether no two rows share the values of these columns."""
    if at_most_one(relation):
        return True
    match relation.op:
        case AggregateOp(plan):
            return set(plan.group) <= names
        case TopKOp():
            is_first = relation.op.limit == 1 and relation.op.ranking is Ranking.ROW_NUMBER
            return (is_first and set(relation.op.partition) <= names) or is_key(relation.inputs[0], names)
        case FilterOp() | WindowOp() | JoinOp(JoinKind.SEMI | JoinKind.ANTI):
            return is_key(relation.inputs[0], names)
        case ProjectOp(projection):
            sources = plain_columns(projection)
            return is_key(relation.inputs[0], {sources[name] for name in names if name in sources})
        case JoinOp(JoinKind.INNER | JoinKind.LEFT):
            left, right = relation.inputs
            return is_key(left, names) and is_key(right, set(relation.op.right_key))
        case _:
            return False
