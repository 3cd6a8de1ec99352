"""One SELECT as a relation: FROM and WHERE, then groups, then numbered rows, then the outputs.

Names in a SELECT's clauses may mean columns of FROM or outputs of the SELECT itself. In HAVING and ORDER BY an output
takes precedence, in GROUP BY and QUALIFY a column. GROUP BY and ORDER BY also accept an output's position. Each
returned tree is bound (see :mod:`upriver.sql.scope`), and shares no node with another one.

GROUP BY: the columns that the aggregate takes in, those that it gives out, and how the outputs are made of them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from upriver.errors import DeclarationError
from upriver.plan.column_names import columns_in
from upriver.plan.plan import ALL_ALIKE, AggregateCall, AggregateOp, AggregatePlan
from upriver.plan.relation import Relation, Scalar
from upriver.plan.source import ELSEWHERE, Source
from upriver.plan.types import is_map, is_null, is_ordered, is_untyped, parts_of
from upriver.sql.aggregates import (
    Call,
    aggregate_call,
    called,
    has_aggregate,
    is_aggregate,
    is_over,
    may_have_code,
    of_one_row,
    over_no_rows,
)
from upriver.sql.arrays import map_of, sorted_entries
from upriver.sql.canonical import canonical
from upriver.sql.clauses import Clauses, SelectItem, read_clauses
from upriver.sql.detached import ATTACHED, detach, detached, has_subquery
from upriver.sql.from_items import read_from
from upriver.sql.from_where import selected
from upriver.sql.generators import explode_items
from upriver.sql.grouping_sets import GroupingSets
from upriver.sql.lists_of_texts import write_out_listagg
from upriver.sql.one_row import of_each, of_everything
from upriver.sql.relations import (
    ALIKE,
    Output,
    comparable,
    computed,
    conditions,
    distinct,
    restricted,
    with_values,
)
from upriver.sql.scalars import Context, column_scalar, group_value, null, typed_name
from upriver.sql.scope import (
    Around,
    Scope,
    ScopeColumn,
    ScopeRows,
    Setting,
    as_node,
    bare,
    place,
    unique,
    uses_in,
    worded,
)
from upriver.sql.sessions import SESSION, merged
from upriver.sql.stars import is_star, star_items
from upriver.sql.window_functions import (
    WindowFunction,
    result_scalar,
    window_function,
    with_window_functions,
    write_out_windows,
)
from upriver.sql.windows import OrderKey, first_rows, sort_key, spread


class Names:
    """The names of one SELECT. items: its outputs, bound, with each star as the columns it stands for."""

    def __init__(self, scope: Scope, items: Sequence[SelectItem], schema: pa.Schema, rows: Context) -> None:
        """schema: of the rows beneath. rows: their context."""
        self._scope = scope
        self._rows = rows
        self._schema = schema
        self._source = scope.source
        self._grouping: dict[exp.Expr, exp.Expr] = {}
        """The grouping columns, by their canonical forms: each as it is first written."""
        self.items: tuple[SelectItem, ...] = ()
        for item in items:
            self.items += tuple(self._items(item))

    def group(self, nodes: Iterable[exp.Expr]) -> tuple[exp.Expr, ...]:
        """The grouping columns, each once; a window by its start and its end."""
        found: list[exp.Expr] = []
        for node in nodes:
            found += [bound for bound in self._group(bare(node)) if bound not in found]
        return tuple(found)

    def grouping_set(self, nodes: Iterable[exp.Expr]) -> tuple[exp.Expr, ...]:
        """The grouping columns of one set."""
        nodes = tuple(nodes)
        for node in nodes:
            if len(self.group([node])) > 1:
                what = "a window as a whole in ROLLUP, CUBE or GROUPING SETS"
                raise self._source.unsupported(node, what, "Take its start in a subquery, and group by that.")
        return self.group(nodes)

    def means_all(self, clauses: Clauses) -> bool:
        """Whether GROUP BY is followed by ALL, and that is no name."""
        node = clauses.group[0] if len(clauses.group) == 1 and clauses.sets is None else None
        if not isinstance(node, exp.Column) or node.table or node.name.upper() != "ALL":
            return False
        return not self._scope.knows(node) and self._aliased(node) is None

    def group_all(self) -> tuple[exp.Expr, ...]:
        """GROUP BY ALL: every output without an aggregate."""
        plain = [item for item in self.items if not has_aggregate(item.node) and item.node.find(exp.Window) is None]
        nodes = [node for item in plain for node in self._grouped(item, item.node)]
        return tuple(dict.fromkeys(nodes))

    def having(self, root: exp.Expr, group: Sequence[exp.Expr]) -> exp.Expr:
        """A condition on groups: inside aggregates, names mean columns only."""
        holder = exp.Paren(this=root)
        for column in list(root.find_all(exp.Column)):
            item = None if _is_aggregated(column) else self._aliased(column)
            if item is None:
                self._scope.bind_column(column)
                continue
            if self._scope.knows(column):
                grouped = as_node(self._scope.find(column)[0].name, column)
                if grouped in group and item.node != grouped:
                    what = f"{column.name!r}, a column and an alias of another one, in HAVING"
                    raise self._source.unsupported(column, what, "Name the alias otherwise.")
            column.replace(self._value(item, column))
        return bare(holder.this)

    def qualify(self, root: exp.Expr) -> exp.Expr:
        """A condition on numbered rows."""
        return self._bound_first(root, lambda column: None if self._scope.knows(column) else self._aliased(column))

    def order(self, root: exp.Expr) -> exp.Expr:
        """A sort expression."""
        root = bare(root)
        position = self._position(root)
        if position is not None:
            return self._value(position, root)
        return self._bound_first(root, lambda column: None if _is_aggregated(column) else self._aliased(column))

    def _bound_first(self, root: exp.Expr, output: Callable[[exp.Column], SelectItem | None]) -> exp.Expr:
        """The tree with each name as the output that it means, or otherwise as a column."""
        holder = exp.Paren(this=root)
        for column in list(root.find_all(exp.Column)):
            item = output(column)
            if item is None:
                self._scope.bind_column(column)
            else:
                column.replace(self._value(item, column))
        return bare(holder.this)

    # Outputs

    def _items(self, item: SelectItem) -> Iterator[SelectItem]:
        if is_star(item.node):
            yield from star_items(self._scope, self._schema, item.node)
        else:
            yield self._bound(item)

    def _bound(self, item: SelectItem) -> SelectItem:
        """The item, bound. An alias of an item before it stands for that item's expression."""
        window = self._window(item.node)
        if window is not None:
            return replace(item, node=as_node(window.name, item.node), window=window)
        return replace(item, node=self._bound_first(item.node, self._lateral))

    def _lateral(self, column: exp.Column) -> SelectItem | None:
        """The item before that a name means, if it is an alias and no column."""
        if isinstance(column.this, exp.Star) or column.table or self._scope.knows(column):
            return None
        found = [item for item in self.items if item.renamed and item.is_named(column.name)]
        if len(found) > 1:
            raise self._source.wrong(column, f"{column.name!r} is the alias of several columns", "Rename one.")
        return found[0] if found else None

    def _window(self, node: exp.Expr) -> ScopeColumn | None:
        """The window, if the node is a whole window."""
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star) or not self._scope.knows(node):
            return None
        column, fields = self._scope.find(node)
        return column if column.end is not None and not fields else None

    # The names of outputs

    def _group(self, node: exp.Expr) -> Iterator[exp.Expr]:
        item = self._position(node)
        if item is None and not (isinstance(node, exp.Column) and self._scope.knows(node)):
            item = self._aliased(node)
        if item is None:
            window = self._window(node)
            # A grouping column may stand in several sets, and binding changes it.
            item = SelectItem(node if window is not None else self._scope.bind(node.copy()), None, window=window)
        if has_aggregate(item.node):
            raise self._source.wrong(node, "GROUP BY of an aggregate", "Group by what is known before aggregation.")
        yield from self._grouped(item, node)

    def _grouped(self, item: SelectItem, node: exp.Expr) -> Iterator[exp.Expr]:
        """The grouping columns of an output. node: for its place."""
        if item.window is None or item.window.end is None:
            column = item.node.copy()
            yield self._grouping.setdefault(canonical(self._rows, column), column)
        else:
            yield from (as_node(name, node) for name in (item.window.name, item.window.end))

    def _position(self, node: exp.Expr) -> SelectItem | None:
        """The output at the position that a number gives."""
        if not isinstance(node, exp.Literal) or node.is_string or not node.this.isdigit():
            return None
        position = int(node.this)
        if not 1 <= position <= len(self.items):
            raise self._source.wrong(node, f"there is no column {position}", f"SELECT has {len(self.items)}.")
        return self.items[position - 1]

    def _aliased(self, node: exp.Expr) -> SelectItem | None:
        """The output that a name means."""
        if not isinstance(node, exp.Column) or node.table:
            return None
        return next((item for item in self.items if item.is_named(node.name)), None)

    def _value(self, item: SelectItem, node: exp.Expr) -> exp.Expr:
        if item.window is not None:
            what = "a window as a whole, which is a STRUCT, in an expression"
            raise self._source.unsupported(node, what, "Take its start or its end: window.start.")
        value = item.node.copy()
        place(value, node)
        return value


def _is_aggregated(node: exp.Expr) -> bool:
    above = node.parent
    while above is not None and not is_aggregate(above):
        above = above.parent
    return above is not None


class Groups:
    """The groups of one query. :meth:`leaf` translates expressions over them, and collects the aggregates."""

    def __init__(
        self, rows: Context, group: Sequence[exp.Expr], sets: Sequence[Collection[exp.Expr]] | None, taken: set[str]
    ) -> None:
        """sets: the grouping sets; ``None`` if all of ``group`` is one.

        taken: names that no column may have, lower case; the names of all columns are added."""
        self._rows = rows
        self._taken = taken
        self._group = {node: unique(worded(node), taken) for node in group}
        self._forms = {canonical(rows, node): name for node, name in self._group.items()}
        self._is_plain = all(isinstance(node, exp.Column) for node in group)
        self._session: tuple[str, str] | None = None
        """The columns with the bounds of each row's own window, if sessions are grouped."""
        self._sets = None if sets is None else GroupingSets(rows, sets, self._forms, taken)
        self._calls: dict[AggregateCall, AggregateCall] = {}
        """By the same call without a name for its output."""
        self._maps: dict[str, pa.DataType] = {}
        """The types of grouping columns that are maps. Groups have their entries."""
        self._inputs: dict[str, Scalar] = {name: self._grouped(node, name) for node, name in self._group.items()}
        self._coded: dict[str, Scalar] = {}
        """What takes the place of some of them if Spark generates code, as it does if it may for all calls."""
        self._may_have_code = True
        self._uses = uses_in(self._group)
        """How often the inputs of the groups name each column of the rows."""

    def leaf(self, node: exp.Expr) -> Scalar | None:
        """The value of a node over groups: a group column or an aggregate's result."""
        name = self._forms.get(node if self._is_plain else canonical(self._rows, node))
        if name is not None:
            column = column_scalar(name, self._inputs[name].type)
            return map_of(column, self._maps[name]) if name in self._maps else column
        if is_aggregate(node):
            call = self._call(node)
            return column_scalar(call.output, call.type)
        value = None if self._sets is None else self._sets.leaf(self._rows, node)
        if value is not None:
            return value
        if isinstance(node, exp.Column):
            raise self._rows.source.wrong(
                node, f"{node.name!r} is neither in GROUP BY nor inside an aggregate", "Add it to GROUP BY."
            )
        return None

    def in_sessions(self, session: ScopeColumn, node: exp.Expr) -> None:
        """Merge the windows of session_window(). node: for its place. Raises UnsupportedSql if they are not grouped."""
        names = {node.name: name for node, name in self._group.items() if isinstance(node, exp.Column)}
        if session.name not in names or session.end not in names:
            raise self._rows.unsupported(node, "session_window() that is not in GROUP BY", "Put it there as a whole.")
        self._session = names[session.name], names[session.end]

    def over_no_rows(self, node: exp.Expr) -> Scalar:
        """An aggregate's result, which is NULL for want of a group."""
        call = self._call(node)
        return over_no_rows(call, column_scalar(call.output, call.type))

    def names(self) -> Mapping[str, str]:
        """For each grouping column that is a plain column of the rows: its name among the groups."""
        return {node.name: name for node, name in self._group.items() if isinstance(node, exp.Column)}

    def relation(self, rows: Relation, place: int | None) -> Relation:
        """The groups of these rows, with all collected aggregates."""
        values = self._inputs | (self._coded if self._may_have_code else {})
        inputs = [Output(name, value) for name, value in values.items()]
        calls = of_one_row(tuple(self._calls.values()))
        if not self._group and (self._sets is None or self._sets.is_whole):
            return of_everything(rows, inputs, calls, self._uses, self._taken, place)
        # Without any column, a batch would not know how many rows it has.
        inputs = inputs or [Output(unique(ALL_ALIKE, self._taken), ALIKE)]
        source = computed(rows, inputs, self._uses, place)
        if self._session is not None:
            others = [name for name in self._group.values() if name not in self._session]
            source = merged(source, others, *self._session, place)
        grouped = tuple(self._group.values())
        if self._sets is not None:
            source = self._sets.expanded(source, place)
            grouped += self._sets.columns
        plan = AggregatePlan(grouped, calls)
        fields = [source.schema.field(name) for name in plan.group]
        fields += [pa.field(call.output, call.type) for call in plan.calls]
        return Relation(AggregateOp(plan), (source,), pa.schema(fields), place)

    def _grouped(self, node: exp.Expr, name: str) -> Scalar:
        value = self._rows.translate(node)
        if is_map(value.type) and self._sets is None and all(map(is_ordered, parts_of(value.type))):
            self._maps[name] = value.type
            value = sorted_entries(value)
        if is_null(value.type) or not is_ordered(value.type):
            raise self._rows.unsupported(node, f"GROUP BY of {typed_name(value)}", ELSEWHERE)
        return group_value(value)

    def _call(self, node: exp.Expr) -> AggregateCall:
        call = aggregate_call(self._rows, node)
        filtered = node.this if isinstance(node, exp.IgnoreNulls | exp.RespectNulls) else node
        condition = filtered.expression.this if isinstance(filtered, exp.Filter) else called(node)
        self._may_have_code &= may_have_code(call)
        where = None if call.where is None else self._argument(call.where, call.coded, _operand(condition))
        values = () if call.argument is None else (call.argument, *call.others)
        columns = [self._guarded(value, call, _operand(called(node))) for value in values]
        return self._once(call, columns, where, node)

    def _guarded(self, value: Scalar, call: Call, node: exp.Expr) -> str:
        """The column of an argument, computed only where the FILTER of the aggregate is true."""
        if call.where is None or not value.fails:
            return self._argument(value, None, node)
        coded = None if call.coded is None else _only_where(call.coded, value)
        return self._argument(_only_where(call.where, value), coded, node)

    def _argument(self, value: Scalar, coded: Scalar | None, node: exp.Expr) -> str:
        """The column of the aggregate's input that holds a value: a group column, or one of its own. coded: what takes
        the value's place where Spark generates code."""
        grouped = set() if self._sets is None else set(self._group.values())  # NULL in some sets, unlike the argument
        for name, known in self._inputs.items():
            is_same = known.sql == value.sql and known.type == value.type and self._coded.get(name) == coded
            if name not in grouped and is_same:
                return name
        name = unique(worded(node), self._taken)
        self._inputs[name] = value
        if coded is not None:
            self._coded[name] = coded
        return name

    def _once(self, call: Call, columns: Sequence[str], where: str | None, node: exp.Expr) -> AggregateCall:
        argument = columns[0] if columns else None
        key = AggregateCall(
            call.function,
            argument,
            "",
            call.type,
            call.distinct,
            where,
            tuple(columns[1:]),
            call.fraction,
            call.between,
            fractions=call.fractions,
        )
        if key not in self._calls:
            self._calls[key] = replace(key, output=unique(worded(node), self._taken))
            self._uses.update(dict.fromkeys(uses_in([node]), 2))  # Spark moves nothing from below into an aggregate
        return self._calls[key]


def _only_where(where: Scalar, value: Scalar) -> Scalar:
    return replace(value, sql=f"CASE WHEN {where.sql} THEN {value.sql} END")


def _operand(node: exp.Expr) -> exp.Expr:
    """The argument of an aggregate function; a node that is no aggregate, such as a condition, stays whole."""
    if not is_aggregate(node) and not isinstance(node, exp.Distinct):
        return node
    if not node.expressions and isinstance(node.parent, exp.WithinGroup):
        return bare(node.parent.expression.expressions[0].this)  # of mode(), which is given nothing else
    operand: exp.Expr = node.expressions[0]
    return _operand(operand) if isinstance(operand, exp.Distinct) else operand


def select(setting: Setting, tree: exp.Select) -> ScopeRows:
    """Raises UnsupportedSql, DeclarationError."""
    untyped, around = setting.untyped, setting.around
    setting = replace(setting, untyped=False)
    write_out_windows(setting.source, tree)
    write_out_listagg(setting.source, tree)
    clauses = read_clauses(setting.source, tree)
    taken: set[str] = set()
    source = read_from(setting, clauses, None, taken)
    relation = selected(setting, source, clauses.where, taken)
    relation, scope = spread(setting, relation, source.scope, tree, taken)
    if scope is not source.scope:
        clauses = _reread(setting, tree, clauses)
    relation, scope, more = *explode_items(setting, relation, scope, tree, taken), scope
    if scope is not more:
        clauses = read_clauses(setting.source, tree)
    setting = replace(setting, around=None)
    return _Selection(setting, clauses, relation, scope, taken, untyped, around, source.keys).rows()


def _detached(source: Source, clauses: Clauses) -> Clauses:
    """The clauses with their subqueries detached: names are bound without looking into them."""
    if clauses.sets is not None and any(map(has_subquery, clauses.group)):
        node = next(filter(has_subquery, clauses.group))
        what = "a subquery in ROLLUP, CUBE or GROUPING SETS"
        raise source.unsupported(node, what, "Compute it in a subquery, and group by its column.")
    part = clauses.part
    for ordered in () if part is None else part.order:
        ordered.set("this", detach(ordered.this))
    return replace(
        clauses,
        items=tuple(replace(item, node=detach(item.node)) for item in clauses.items),
        group=tuple(map(detach, clauses.group)),
        having=None if clauses.having is None else detach(clauses.having),
        qualify=None if clauses.qualify is None else detach(clauses.qualify),
    )


def _reread(setting: Setting, tree: exp.Select, before: Clauses) -> Clauses:
    """The clauses after calls of window() became names. Outputs keep the names that they had before."""
    clauses = read_clauses(setting.source, tree)
    pairs = zip(clauses.items, before.items, strict=True)
    return replace(clauses, items=tuple(replace(item, name=known.name) for item, known in pairs))


@dataclass(frozen=True, slots=True)
class _Bound:
    """The clauses, bound. windows: the window functions, each with the name of the column of its results, which the
    trees have in its places."""

    items: tuple[SelectItem, ...]
    group: tuple[exp.Expr, ...]
    sets: tuple[tuple[exp.Expr, ...], ...] | None
    having: exp.Expr | None
    qualify: exp.Expr | None
    order: tuple[exp.Expr, ...]
    windows: Mapping[exp.Expr, str]

    @property
    def trees(self) -> list[exp.Expr]:
        """All of them but the grouping columns."""
        whole = [tree for tree in (self.having, self.qualify) if tree is not None]
        return [*(item.node for item in self.items), *whole, *self.order, *self.windows]

    def changed(self, change: Callable[[exp.Expr], exp.Expr]) -> "_Bound":
        """With these trees changed."""
        return replace(
            self,
            items=tuple(replace(item, node=change(item.node)) for item in self.items),
            having=None if self.having is None else change(self.having),
            qualify=None if self.qualify is None else change(self.qualify),
            order=tuple(map(change, self.order)),
            windows={change(node.copy()): name for node, name in self.windows.items()},
        )

    def apart(self, keys: Sequence[str]) -> "_Bound":
        """With the groups and windows of each combination of these columns' values apart."""
        columns = [as_node(key, exp.column(key)) for key in keys]
        windows: dict[exp.Expr, str] = {}
        for node, name in self.windows.items():
            window = node.copy()
            window.set("partition_by", [*(window.args.get("partition_by") or ()), *(one.copy() for one in columns)])
            windows[window] = name
        group = (*self.group, *(one for one in columns if one not in self.group))
        sets = None if self.sets is None else tuple((*one, *columns) for one in self.sets)
        return replace(self, group=group, sets=sets, windows=windows)


class _Selection:
    """The clauses behind FROM and WHERE. relation: their rows; scope: the names of their columns; taken: names that no
    other column may have; untyped, around: see Setting; keys: the columns with the values of the query around."""

    def __init__(
        self,
        setting: Setting,
        clauses: Clauses,
        relation: Relation,
        scope: Scope,
        taken: set[str],
        untyped: bool,
        around: Around | None,
        keys: tuple[str, ...],
    ) -> None:
        self._around = around
        self._keys = keys
        self._taken = taken
        self._setting = setting
        self._source = setting.source
        self._clauses = _detached(setting.source, clauses)
        self._relation = relation
        self._scope = scope
        self._untyped = untyped
        self._place = setting.source.place(clauses.items[0].node)

    def rows(self) -> ScopeRows:
        bound = self._with_subqueries_of_rows(self._with_grouped_subqueries(self._bind()))
        is_whole = bool(self._keys) and not bound.group and bound.sets in (None, ((),))
        bound = replace(bound, sets=None) if is_whole else bound
        bound = bound.apart(self._keys) if self._keys else bound
        below = self._relation
        rows = self._setting.context(below.schema, fails=below.deferred, certain=below.certain)
        names = set(bound.windows.values())
        groups = Groups(rows, bound.group, bound.sets, {name.lower() for name in names}) if self._groups() else None
        self._in_sessions(groups)
        over = rows if groups is None else replace(rows, leaf=groups.leaf)
        relation = self._relation
        is_ahead = groups is not None and any(map(detached, bound.trees))
        if groups is not None and is_ahead:
            relation, bound, over = self._with_subqueries_of_groups(groups, bound, over, is_whole)
        functions = [window_function(over, node, name) for node, name in bound.windows.items()]
        over = _with_results(over, functions)
        # Everything is translated before any of it is built: only then all aggregates are known.
        columns, outputs = self._outputs(over, bound.items, groups is None)
        having = [] if bound.having is None else conditions(over, [bound.having])
        qualify = [] if bound.qualify is None else conditions(over, [bound.qualify])
        keys = self._sort_keys(over, bound.order, outputs)
        if groups is not None and not is_ahead:
            relation = self._grouped(groups, bound, is_whole)
        relation = restricted(relation, having, self._source.place(self._clauses.having))
        if functions:
            relation, outputs = _before_windows(relation, outputs, names)
            relation = with_window_functions(relation, functions)
        relation = restricted(relation, qualify, self._source.place(self._clauses.qualify))
        uses = uses_in([*(item.node for item in bound.items), *bound.order])
        kept = self._key_outputs(over, outputs)
        relation = self._built(relation, [*outputs, *kept], keys, uses, [one.name for one in kept])
        return ScopeRows(relation, columns, self._around, tuple(one.name for one in kept))

    def _key_outputs(self, over: Context, outputs: Sequence[Output]) -> list[Output]:
        """The values of the query around, beside the outputs."""
        taken = {one.name.lower() for one in outputs}
        return [Output(unique(key, taken), over.translate(as_node(key, exp.column(key)))) for key in self._keys]

    def _grouped(self, groups: Groups, bound: _Bound, is_whole: bool) -> Relation:
        """The groups. is_whole: whether all rows are one group, for each combination of values of the query around."""
        relation = groups.relation(self._relation, self._place_of_groups(bound))
        if not is_whole or self._around is None:
            return relation
        names = groups.names()
        return of_each(self._around.values, relation, [names[key] for key in self._keys], self._taken)

    def _place_of_groups(self, bound: _Bound) -> int | None:
        return self._source.place(bound.group[0]) if bound.group else self._place

    def _with_grouped_subqueries(self, bound: _Bound) -> _Bound:
        """With columns of the rows for the subqueries in GROUP BY, there and where the same expressions are used."""
        values: dict[exp.Expr, exp.Expr] = {}
        for node in bound.group:
            if detached(node):
                self._relation, values[node] = self._setting.attach(
                    self._setting, self._relation, self._scope, node.copy(), self._taken, None
                )
        if not values:
            return bound

        def resolved(tree: exp.Expr) -> exp.Expr:
            holder = exp.Paren(this=tree)
            for node in list(holder.walk(prune=lambda part: part in values)):
                if node in values:
                    node.replace(values[node].copy())
            return bare(holder.this)

        group = tuple(dict.fromkeys(values.get(node, node) for node in bound.group))
        sets = None if bound.sets is None else tuple(tuple(map(resolved, one)) for one in bound.sets)
        return replace(bound.changed(resolved), group=group, sets=sets)

    def _with_subqueries_of_rows(self, bound: _Bound) -> _Bound:
        """With a column of the rows for each subquery; if rows are grouped, for those inside of aggregates alone."""
        is_grouped = self._groups()

        def resolved(tree: exp.Expr) -> exp.Expr:
            holder = exp.Paren(this=tree)
            aggregates = (node for node in holder.walk(prune=is_aggregate) if is_aggregate(node))
            for node in list(aggregates) if is_grouped else [tree]:
                if detached(node):
                    self._relation, found = self._setting.attach(
                        self._setting, self._relation, self._scope, node.copy(), self._taken, None
                    )
                    node.replace(found)
            return bare(holder.this)

        return bound.changed(resolved) if any(map(detached, bound.trees)) else bound

    def _with_subqueries_of_groups(
        self, groups: Groups, bound: _Bound, over: Context, is_whole: bool
    ) -> tuple[Relation, _Bound, Context]:
        """The groups, with a column for each subquery; the trees with these columns, and their context."""
        for tree in bound.trees:
            for node in tree.walk():
                is_part = isinstance(node.parent, exp.Filter)
                if is_aggregate(node) and not is_over(node) and not is_part:
                    over.translate(node)
        relation = self._grouped(groups, bound, is_whole)
        scope = self._scope.with_names(groups.names())

        def resolved(tree: exp.Expr) -> exp.Expr:
            nonlocal relation
            try:
                relation, found = self._setting.attach(self._setting, relation, scope, tree, self._taken, over.leaf)
            except DeclarationError:
                what = "a subquery that names more of the query around than its GROUP BY does"
                instead = "Group in a subquery, with all that is needed, and ask about its rows."
                raise self._source.unsupported(tree, what, instead) from None
            return found

        bound = bound.changed(resolved)
        known = {field.name: column_scalar(field.name, field.type) for field in relation.schema}

        def leaf(node: exp.Expr) -> Scalar | None:
            if isinstance(node, exp.Column) and node.meta.get(ATTACHED):
                return known[node.name]
            return over.leaf(node)

        return relation, bound, replace(over, leaf=leaf)

    def _built(
        self,
        relation: Relation,
        outputs: Sequence[Output],
        keys: Sequence[OrderKey],
        uses: Mapping[str, int],
        apart: Sequence[str],
    ) -> Relation:
        """uses: how often outputs and keys name each column. apart: the outputs from the query around."""
        part = self._clauses.part
        if part is not None and not self._clauses.distinct:
            return first_rows(relation, outputs, keys, uses, part, self._place, apart)
        relation = computed(relation, outputs, uses, self._place)
        if self._clauses.distinct:
            relation = distinct(comparable(self._source, relation, self._clauses.items[0].node), self._place)
        if part is not None:
            kept = [Output(one.name, column_scalar(one.name, one.value.type)) for one in outputs]
            relation = first_rows(relation, kept, keys, {}, part, self._place, apart)
        return relation

    def _order(self) -> tuple[exp.Ordered, ...]:
        return () if self._clauses.part is None else self._clauses.part.order

    # Names

    def _groups(self) -> bool:
        """Whether rows are grouped; without GROUP BY, all rows are one group."""
        clauses = self._clauses
        if clauses.group or clauses.sets is not None or clauses.having is not None:
            return True
        nodes = [*(item.node for item in clauses.items), *(ordered.this for ordered in self._order())]
        return any(map(has_aggregate, nodes))

    def _bind(self) -> _Bound:
        clauses = self._clauses
        schema = self._relation.schema
        names = Names(self._scope, clauses.items, schema, self._setting.context(schema))
        group = names.group_all() if names.means_all(clauses) else names.group(clauses.group)
        having = None if clauses.having is None else names.having(clauses.having, group)
        qualify = None if clauses.qualify is None else names.qualify(clauses.qualify)
        order = tuple(names.order(ordered.this) for ordered in self._order())
        trees = [*(item.node for item in names.items), having, qualify, *order]
        windows = self._windows([tree for tree in trees if tree is not None])
        return _Bound(
            items=tuple(replace(item, node=_over_results(item.node, windows)) for item in names.items),
            group=group,
            sets=None if clauses.sets is None else tuple(map(names.grouping_set, clauses.sets)),
            having=None if having is None else _over_results(having, windows),
            qualify=None if qualify is None else _over_results(qualify, windows),
            order=tuple(_over_results(node, windows) for node in order),
            windows=windows,
        )

    def _windows(self, trees: Sequence[exp.Expr]) -> dict[exp.Expr, str]:
        """The window functions, each once, and the name of the column of its results."""
        taken = {name.lower() for name in self._relation.schema.names}
        found: dict[exp.Expr, str] = {}
        for tree in trees:
            for node in tree.find_all(exp.Window):
                if node not in found:
                    found[node.copy()] = unique(worded(node), taken)
        return found

    def _in_sessions(self, groups: Groups | None) -> None:
        """Let the groups merge sessions, if the SELECT calls session_window()."""
        session = next((column for column in self._scope.hidden if column.is_titled(SESSION)), None)
        if session is None:
            return
        node = self._clauses.items[0].node
        if groups is None:
            raise self._source.unsupported(node, "session_window() without GROUP BY", "Group by it.")
        groups.in_sessions(session, node)

    # Outputs

    def _outputs(
        self, context: Context, items: Sequence[SelectItem], plain: bool
    ) -> tuple[tuple[ScopeColumn, ...], list[Output]]:
        """The columns of the rows for names, and how they are computed."""
        taken: set[str] = set()
        columns: list[ScopeColumn] = []
        outputs: list[Output] = []
        for item in items:
            wanted = item.name or worded(item.node)
            if item.window is None:
                value = self._value(context, item.node, plain)
                columns.append(ScopeColumn(item.name, unique(wanted, taken), None, is_null(value.type), item.node))
                outputs.append(Output(columns[-1].name, null(pa.bool_()) if is_null(value.type) else value))
            else:
                bounds = unique(f"{wanted}.start", taken), unique(f"{wanted}.end", taken)
                columns.append(ScopeColumn(item.name, *bounds, node=item.node))
                nodes = item.node, as_node(item.window.end or "", item.node)
                outputs += [Output(*pair) for pair in zip(bounds, context.translate_all(nodes), strict=True)]
        return tuple(columns), outputs

    def _value(self, context: Context, node: exp.Expr, plain: bool) -> Scalar:
        """An output. plain: whether a plain column may have any type."""
        if plain and isinstance(node, exp.Column) and node.name in self._relation.schema.names:
            return column_scalar(node.name, self._relation.schema.field(node.name).type)
        value = context.translate(node)
        if is_untyped(value.type) and not (self._untyped and is_null(value.type)):
            what = "nothing but NULL" if is_null(value.type) else typed_name(value)
            raise context.unsupported(node, f"a column of {what}", "Give it a type: CAST(NULL AS ...).")
        return value

    def _sort_keys(self, context: Context, nodes: Sequence[exp.Expr], outputs: Sequence[Output]) -> list[OrderKey]:
        """The sort keys of ORDER BY: over the same rows as the outputs, or over the outputs, if they are DISTINCT."""
        pairs = zip(self._order(), nodes, strict=True)
        keys = [sort_key(context, ordered, node) for ordered, node in pairs]
        if not self._clauses.distinct:
            return keys
        names = {output.value.sql: output.name for output in outputs}
        for ordered, key in zip(self._order(), keys, strict=True):
            if key.value.sql not in names:
                raise self._source.wrong(ordered, "SELECT DISTINCT is sorted by what it does not select", "Select it.")
        return [replace(key, value=column_scalar(names[key.value.sql], key.value.type)) for key in keys]


def _before_windows(relation: Relation, outputs: Sequence[Output], results: set[str]) -> tuple[Relation, list[Output]]:
    """The relation with a column for each output that can fail, except those that need a window function's results; and
    the new sources of the outputs. As in Spark, these columns are computed for all rows."""
    early = [one for one in outputs if one.value.fails and results.isdisjoint(columns_in(one.value.sql))]
    relation, names = with_values(relation, early, {name.lower() for name in (*results, *relation.schema.names)})
    values = {one.name: column_scalar(name, one.value.type) for one, name in zip(early, names, strict=True)}
    return relation, [replace(one, value=values.get(one.name, one.value)) for one in outputs]


def _with_results(context: Context, functions: Sequence[WindowFunction]) -> Context:
    """The context in which the results of window functions are columns, too."""
    results = {function.name: result_scalar(function) for function in functions}

    def leaf(node: exp.Expr) -> Scalar | None:
        if isinstance(node, exp.Column) and node.name in results:
            return results[node.name]
        return context.leaf(node)

    return replace(context, leaf=leaf)


def _over_results(tree: exp.Expr, windows: Mapping[exp.Expr, str]) -> exp.Expr:
    """A copy of the tree with a column in place of each window function."""
    holder = exp.Paren(this=tree.copy())
    for node in list(holder.find_all(exp.Window)):
        node.replace(as_node(windows[node], node))
    found: exp.Expr = holder.this
    return found
