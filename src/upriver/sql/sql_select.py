"""One SELECT as a relation: FROM and WHERE, then groups, then numbered rows, then the outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from upriver.plan.algebra import Relation, Scalar
from upriver.plan.column_names import quoted
from upriver.plan.sql_types import is_null
from upriver.sql.sql_aggregates import has_aggregate
from upriver.sql.sql_clauses import Clauses, Item, read_clauses
from upriver.sql.sql_conditions import conditions, restricted
from upriver.sql.sql_from import read_from
from upriver.sql.sql_groups import Groups
from upriver.sql.sql_names import Names
from upriver.sql.sql_relations import Output, comparable, computed, distinct, with_values
from upriver.sql.sql_scalar import Context, column_scalar, null
from upriver.sql.sql_scope import Column, Rows, Scope, as_node, unique, uses_in, worded
from upriver.sql.sql_setting import Setting
from upriver.sql.sql_topk import RANK_TYPE, SortKey, check_window, first_rows, numbered, ranked, sort_key
from upriver.sql.sql_where import selected
from upriver.sql.sql_windows import spread


def select(setting: Setting, tree: exp.Select) -> Rows:
    """Raises UnsupportedSql, DeclarationError."""
    untyped = setting.untyped
    setting = replace(setting, untyped=False)
    clauses = read_clauses(setting.source, tree)
    taken: set[str] = set()
    source = read_from(setting, clauses, None, taken)
    relation = selected(setting, source, clauses.where, taken)
    relation, scope = spread(setting, relation, source.scope, tree)
    if scope is not source.scope:
        clauses = _reread(setting, tree, clauses)
    return _Selection(setting, clauses, relation, scope, untyped).rows()


def _reread(setting: Setting, tree: exp.Select, before: Clauses) -> Clauses:
    """The clauses, in which calls of window() have become names. What was not named by that, is not."""
    clauses = read_clauses(setting.source, tree)
    pairs = zip(clauses.items, before.items, strict=True)
    return replace(clauses, items=tuple(replace(item, name=known.name) for item, known in pairs))


@dataclass(frozen=True, slots=True)
class _Bound:
    """The clauses, bound. window: the one that numbers rows, whose places in the trees are the column ``rank``."""

    items: tuple[Item, ...]
    group: tuple[exp.Expr, ...]
    having: exp.Expr | None
    qualify: exp.Expr | None
    order: tuple[exp.Expr, ...]
    window: exp.Expr | None
    rank: str


class _Selection:
    """What is behind FROM and WHERE. relation: their rows; scope: what can be named of them; untyped: see Setting."""

    def __init__(self, setting: Setting, clauses: Clauses, relation: Relation, scope: Scope, untyped: bool) -> None:
        self._setting = setting
        self._source = setting.source
        self._clauses = clauses
        self._relation = relation
        self._scope = scope
        self._untyped = untyped
        self._place = setting.source.place(clauses.items[0].node)

    def rows(self) -> Rows:
        bound = self._bind()
        rows = self._setting.context(self._relation.schema, fails=self._relation.deferred)
        groups = Groups(rows, bound.group, {bound.rank.lower()}) if self._groups() else None
        over = _with_rank(rows if groups is None else replace(rows, leaf=groups.leaf), bound.rank)
        # All is translated before any of it is built: only then it is known which aggregates there are.
        columns, outputs = self._outputs(over, bound.items, groups is None)
        having = [] if bound.having is None else conditions(over, [bound.having])
        window = None if bound.window is None else numbered(over, bound.window)
        qualify = [] if bound.qualify is None else conditions(over, [bound.qualify])
        keys = self._sort_keys(over, bound.order, outputs)
        relation = self._relation
        if groups is not None:
            place = self._source.place(bound.group[0])
            relation = restricted(groups.relation(relation, place), having, self._source.place(self._clauses.having))
        if window is not None:
            relation, outputs = _before_ranking(relation, outputs, bound.rank)
            relation = ranked(relation, window, bound.rank, self._source.place(bound.window))
        relation = restricted(relation, qualify, self._source.place(self._clauses.qualify))
        uses = uses_in([*(item.node for item in bound.items), *bound.order])
        return Rows(self._built(relation, outputs, keys, uses), columns)

    def _built(
        self, relation: Relation, outputs: Sequence[Output], keys: Sequence[SortKey], uses: Mapping[str, int]
    ) -> Relation:
        """uses: how often outputs and keys name each column."""
        limit = self._clauses.limit
        if limit is not None and not self._clauses.distinct:
            return first_rows(relation, outputs, keys, uses, limit, self._place)
        relation = computed(relation, outputs, uses, self._place)
        if self._clauses.distinct:
            relation = distinct(comparable(self._source, relation, self._clauses.items[0].node), self._place)
        if limit is not None:
            kept = [Output(one.name, column_scalar(one.name, one.value.type)) for one in outputs]
            relation = first_rows(relation, kept, keys, {}, limit, self._place)
        return relation

    # Names

    def _groups(self) -> bool:
        """Whether rows are grouped. A group of all rows is refused."""
        if self._clauses.group or self._clauses.group_all:
            return True
        nodes = [item.node for item in self._clauses.items]
        aggregated = next((node for node in nodes if has_aggregate(node)), self._clauses.having)
        if aggregated is None:
            return False
        instead = (
            "GROUP BY the columns that the view is looked up by; for one row of all, by a constant: "
            "SELECT g, count(*) AS n FROM (SELECT 1 AS g, * FROM t) GROUP BY g."
        )
        raise self._source.unsupported(nodes[0], "an aggregate without GROUP BY", instead)

    def _bind(self) -> _Bound:
        clauses = self._clauses
        names = Names(self._scope, clauses.items, bool(clauses.group) or clauses.group_all)
        group = names.group_all() if clauses.group_all else names.group(clauses.group)
        having = None if clauses.having is None else names.having(clauses.having, group)
        qualify = None if clauses.qualify is None else names.qualify(clauses.qualify)
        order = tuple(names.order(ordered.this) for ordered in clauses.order)
        trees = [*(item.node for item in names.items), having, qualify, *order]
        window = self._window([tree for tree in trees if tree is not None])
        rank = "" if window is None else worded(window)
        rank = unique(rank, {name.lower() for name in self._relation.schema.names})
        return _Bound(
            items=tuple(replace(item, node=_numbering(item.node, rank)) for item in names.items),
            group=group,
            having=None if having is None else _numbering(having, rank),
            qualify=None if qualify is None else _numbering(qualify, rank),
            order=tuple(_numbering(node, rank) for node in order),
            window=window,
            rank=rank,
        )

    def _window(self, trees: Sequence[exp.Expr]) -> exp.Expr | None:
        """The one call that numbers rows."""
        found: exp.Expr | None = None
        for tree in trees:
            for node in tree.find_all(exp.Window):
                check_window(self._source, node)
                if found is not None and node != found:
                    instead = "Number the rows once more in a query around this one."
                    raise self._source.unsupported(node, "a second window function in one SELECT", instead)
                found = node.copy()
        return found

    # Outputs

    def _outputs(self, context: Context, items: Sequence[Item], plain: bool) -> tuple[tuple[Column, ...], list[Output]]:
        """What can be named of the rows, and how their columns are computed."""
        taken: set[str] = set()
        columns: list[Column] = []
        outputs: list[Output] = []
        for item in items:
            wanted = item.name or worded(item.node)
            if item.window is None:
                value = self._value(context, item.node, plain)
                columns.append(Column(item.name, unique(wanted, taken), None, is_null(value.type), item.node))
                outputs.append(Output(columns[-1].name, null(pa.bool_()) if is_null(value.type) else value))
            else:
                bounds = unique(f"{wanted}.start", taken), unique(f"{wanted}.end", taken)
                columns.append(Column(item.name, *bounds, node=item.node))
                nodes = item.node, as_node(item.window.end or "", item.node)
                outputs += [Output(*pair) for pair in zip(bounds, context.translate_all(nodes), strict=True)]
        return tuple(columns), outputs

    def _value(self, context: Context, node: exp.Expr, plain: bool) -> Scalar:
        """An output. plain: whether a column as it is may be of any type."""
        if plain and isinstance(node, exp.Column) and node.name in self._relation.schema.names:
            return column_scalar(node.name, self._relation.schema.field(node.name).type)
        value = context.translate(node)
        if is_null(value.type) and not self._untyped:
            raise context.unsupported(node, "a column of nothing but NULL", "Give it a type: CAST(NULL AS ...).")
        return value

    def _sort_keys(self, context: Context, nodes: Sequence[exp.Expr], outputs: Sequence[Output]) -> list[SortKey]:
        """What ORDER BY sorts by: over what the outputs are over; over the outputs, if they are DISTINCT."""
        pairs = zip(self._clauses.order, nodes, strict=True)
        keys = [sort_key(context, ordered, node) for ordered, node in pairs]
        if not self._clauses.distinct:
            return keys
        names = {output.value.sql: output.name for output in outputs}
        for ordered, key in zip(self._clauses.order, keys, strict=True):
            if key.value.sql not in names:
                raise self._source.wrong(ordered, "SELECT DISTINCT is sorted by what it does not select", "Select it.")
        return [replace(key, value=column_scalar(names[key.value.sql], key.value.type)) for key in keys]


def _before_ranking(relation: Relation, outputs: Sequence[Output], rank: str) -> tuple[Relation, list[Output]]:
    """The relation with a column for each output that can fail, but for those that need the rank: as Spark does it,
    they are computed of all rows. And what the outputs are made of then."""
    early = [one for one in outputs if one.value.fails and quoted(rank) not in one.value.sql]
    relation, names = with_values(relation, early, {rank.lower(), *(name.lower() for name in relation.schema.names)})
    values = {one.name: column_scalar(name, one.value.type) for one, name in zip(early, names, strict=True)}
    return relation, [replace(one, value=values.get(one.name, one.value)) for one in outputs]


def _with_rank(context: Context, rank: str) -> Context:
    """In which ``rank`` is the number of a row."""

    def leaf(node: exp.Expr) -> Scalar | None:
        if isinstance(node, exp.Column) and node.name == rank:
            return column_scalar(rank, RANK_TYPE)
        return context.leaf(node)

    return replace(context, leaf=leaf)


def _numbering(tree: exp.Expr, rank: str) -> exp.Expr:
    """A copy of the tree with the column ``rank`` for each window function."""
    holder = exp.Paren(this=tree.copy())
    for node in list(holder.find_all(exp.Window)):
        node.replace(as_node(rank, node))
    found: exp.Expr = holder.this
    return found
