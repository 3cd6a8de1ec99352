"""Subqueries in expressions: each becomes a column of the rows around it.

A subquery that is a value is an outer join: with its only row; or, if it names the query around it, with its groups by
what those names are compared with. Where they are compared by more than equalities, it is first joined to the different
values of these names. Aggregates over no rows have their value behind the join: a count is 0 there.

IN and EXISTS divide the rows by semi and anti joins, and each part gets its constant. As Spark computes it, IN is never
NULL here: where no ``y`` equals ``x``, and ``x`` or some ``y`` is NULL, ``x IN (SELECT y ...)`` is FALSE, and so is
``x NOT IN (SELECT y ...)``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from upriver.errors import UserError
from upriver.plan.clock import ClockOp
from upriver.plan.column_names import quoted
from upriver.plan.plan import AggregateCall, AggregateOp, AggregatePlan, JoinKind
from upriver.plan.relation import Relation, Scalar
from upriver.plan.types import duck_name
from upriver.sql.aggregates import has_aggregate, is_aggregate
from upriver.sql.clauses import END, Clauses, read_clauses
from upriver.sql.clock import is_clock_test, is_clock_value
from upriver.sql.clock_columns import clocked, with_clock_column
from upriver.sql.clock_functions import clock_column, clock_test
from upriver.sql.correlation import dependent_rows, is_key, same_value
from upriver.sql.detached import ATTACHED, detached, query_of, written_of
from upriver.sql.from_items import read_from
from upriver.sql.from_where import Dividing, selected_around, subquery_rows
from upriver.sql.one_row import of_everything
from upriver.sql.relations import (
    Condition,
    Output,
    at_most_one,
    conditions,
    distinct,
    join,
    kept,
    operands_of_equality,
    projected,
    renamed,
    union,
    widened,
    with_values,
)
from upriver.sql.scalars import Context, column_scalar
from upriver.sql.scope import Scope, Setting, as_node, bare, unique, worded
from upriver.sql.select import Groups

TRUE = Scalar("TRUE", pa.bool_(), nulls=frozenset())
FALSE = Scalar("FALSE", pa.bool_(), nulls=frozenset())
_TOO_MANY = "error('more than one row was returned by a subquery that is used as an expression')"
_INSTEAD = "Join with the subquery: LEFT JOIN (SELECT g, max(x) AS x FROM u GROUP BY g) AS s ON s.g = t.g."


def attach(
    setting: Setting,
    relation: Relation,
    scope: Scope,
    root: exp.Expr,
    taken: set[str],
    leaf: Callable[[exp.Expr], Scalar | None] | None = None,
) -> tuple[Relation, exp.Expr]:
    """The rows with a column for each detached subquery of a bound tree; and the tree with these columns.

    scope: the names of the rows' columns. taken: names that no other column may have, lower case; the new names are
    added. leaf: the meaning of nodes in the operands of IN; ``None``: they are columns of the rows.
    """
    holder = exp.Paren(this=root)
    for call in detached(holder):
        attaching = _Attaching(setting, relation, scope, call, taken, leaf)
        relation, name = attaching.attached(_is_negated(call))
        column = as_node(name, call)
        column.meta[ATTACHED] = True
        call.replace(column)
    found: exp.Expr = holder.this
    return relation, bare(found)


def _is_negated(call: exp.Expr) -> bool:
    """Whether it is under an odd number of NOTs, which Spark moves to the bottom of AND and OR."""
    negated, above = False, call.parent
    while isinstance(above, exp.And | exp.Or | exp.Not | exp.Paren):
        negated ^= isinstance(above, exp.Not)
        above = above.parent
    return negated


class _Attaching:
    """One subquery, and the rows that it is attached to."""

    def __init__(
        self,
        setting: Setting,
        relation: Relation,
        scope: Scope,
        call: exp.Expr,
        taken: set[str],
        leaf: Callable[[exp.Expr], Scalar | None] | None,
    ) -> None:
        self._leaf = leaf
        self._setting = setting
        self._relation = relation
        self._scope = scope
        self._call = call
        self._query = query_of(call)
        self._taken = taken
        self._taken.update(name.lower() for name in relation.schema.names)
        self._place = setting.source.place(self._query)

    def attached(self, is_negated: bool) -> tuple[Relation, str]:
        """The rows with the subquery's value in a column, and the column's name."""
        if is_clock_value(self._query):
            return self._shown()
        if is_clock_test(self._query):
            return self._timed()
        if isinstance(self._query, exp.In | exp.Exists):
            return self._tested(is_negated)
        return self._valued()

    # The clock

    def _shown(self) -> tuple[Relation, str]:
        value = clock_column(self._context(self._relation), self._query, worded(self._query))
        return with_clock_column(self._relation, value, self._taken, self._place)

    def _timed(self) -> tuple[Relation, str]:
        try:
            return self._tested_by_clock()
        except UserError:
            return self._compared_as_written()

    def _tested_by_clock(self) -> tuple[Relation, str]:
        around, context = self._relation, self._context(self._relation)
        operand = self._operand(around, self._call.expressions[0])
        output = unique("passes", self._taken)
        _, value = clock_test(context, self._query, operand.value, "", output)
        around, (column,) = with_values(around, [Output("compared", value)], self._taken)
        test, _ = clock_test(context, self._query, operand.value, column, output)
        return clocked(around, ClockOp((test,)), self._place), output

    def _compared_as_written(self) -> tuple[Relation, str]:
        """A comparison in another type than the clock's."""
        written = written_of(self._call)
        relation, node = attach(self._setting, self._relation, self._scope, written, self._taken, self._leaf)
        context = self._context(relation)
        leaf = context.leaf if self._leaf is None else self._leaf
        known = {field.name: column_scalar(field.name, field.type) for field in relation.schema}

        def attached(part: exp.Expr) -> Scalar | None:
            is_here = isinstance(part, exp.Column) and part.meta.get(ATTACHED)
            return known[part.name] if is_here else leaf(part)

        value = replace(context, leaf=attached).translate(node)
        relation, (name,) = with_values(relation, [Output("compared", value)], self._taken)
        return relation, name

    # IN and EXISTS

    def _tested(self, is_negated: bool) -> tuple[Relation, str]:
        query = self._query
        around = self._relation
        around, operands = with_values(around, self._operands(around), self._taken)
        nodes = [as_node(name, self._call) for name in operands]
        is_in = isinstance(query, exp.In)
        inner = subquery_rows(
            self._setting, query.args["query"] if is_in else query.this, around, self._scope, self._taken, is_in
        )
        name = unique("found" if is_in else "exists", self._taken)
        dividing = Dividing(self._setting, around, inner, query, self._taken)
        parts = dividing.parts(nodes, has_unknown=is_in and is_negated)
        values = [(parts.true, TRUE), (parts.unknown, TRUE), (parts.false, FALSE)]
        columns = kept(self._relation)
        divided = [
            projected(part, [*columns, Output(name, value)], self._place) for group, value in values for part in group
        ]
        return union(divided, self._place), name

    def _operands(self, around: Relation) -> list[Output]:
        return [self._operand(around, node) for node in self._call.expressions]

    def _operand(self, around: Relation, node: exp.Expr) -> Output:
        context = self._context(around)
        if self._leaf is not None:
            context = replace(context, leaf=self._leaf)
        return Output("operand", context.translate(node))

    def _context(self, *relations: Relation) -> Context:
        fails = frozenset[str]().union(*(relation.deferred for relation in relations))
        certain = frozenset[str]().union(*(relation.certain for relation in relations))
        return self._setting.context(*(relation.schema for relation in relations), fails=fails, certain=certain)

    # A value

    def _valued(self) -> tuple[Relation, str]:
        try:
            rows = self._setting.compile(self._setting, self._query.copy())
        except UserError:
            return self._dependent()
        if len(rows.columns) != 1 or rows.columns[0].end is not None:
            raise self._setting.source.wrong(self._query, "a subquery of several columns as a value", "SELECT one.")
        value = projected(
            rows.relation,
            [Output(unique("value", self._taken), self._column(rows.relation, rows.columns[0].name))],
            None,
        )
        single = value if at_most_one(value) else self._single(value)
        single = renamed(single, [unique("value", self._taken) for _ in single.schema])
        context = self._context(self._relation, single)
        joined = join(context, JoinKind.LEFT, self._relation, single, [], self._query, self._taken)
        return joined, single.schema.names[0]

    def _column(self, relation: Relation, name: str) -> Scalar:
        return column_scalar(name, relation.schema.field(name).type)

    def _single(self, rows: Relation) -> Relation:
        """The only row; an error if there are several."""
        (field,) = rows.schema
        calls = _only_of(field, self._taken)
        whole = of_everything(rows, list(kept(rows)), calls, {}, self._taken, self._place)
        return projected(whole, [Output(unique("value", self._taken), _only(calls, field))], self._place)

    def _dependent(self) -> tuple[Relation, str]:
        """The value of a subquery that names the query around."""
        select = _select_of(self._query)
        if select is not None:
            try:
                return self._correlated(select.copy())
            except UserError:
                pass  # its names are elsewhere than in WHERE
        found = dependent_rows(self._setting, self._query.copy(), self._relation, self._scope, self._taken)
        rows = found.rows
        if len(rows.columns) != 1 or rows.columns[0].end is not None:
            raise self._setting.source.wrong(self._query, "a subquery of several columns as a value", "SELECT one.")
        name, single = rows.columns[0].name, rows.relation
        value = self._column(single, name)
        on = found.on
        if not is_key(single, set(rows.keys)):
            keys = [as_node(key, self._call) for key in rows.keys]
            single, value = self._only_value(single, keys, value)
            names = dict(zip(rows.keys, single.schema.names, strict=False))
            on = [same_value(outer, names[key]) for outer, key in zip(found.names, rows.keys, strict=True)]
        context = self._context(self._relation, single)
        wanted = conditions(context, on)
        joined = join(context, JoinKind.LEFT, self._relation, single, wanted, self._query, self._taken)
        name = unique("value", self._taken)
        return widened(joined, [Output(name, value)], self._place), name

    def _correlated(self, select: exp.Select) -> tuple[Relation, str]:
        setting = self._setting
        clauses = read_clauses(setting.source, select)
        if len(clauses.items) != 1:
            raise setting.source.wrong(self._query, "a subquery of several columns as a value", "SELECT one.")
        source = read_from(setting, clauses, self._scope, self._taken)
        rows, outside = selected_around(setting, source, clauses.where, self._taken, self._relation)
        if not outside:
            what = "a name of the query around, anywhere but in the WHERE of a subquery that is a value,"
            raise setting.source.unsupported(self._query, what, _INSTEAD)
        rows, pairs = self._keyed(rows, outside)
        keys = list(dict.fromkeys(inner for _, inner, _ in pairs))  # the same one may be compared with several columns
        grouped, value = self._grouped(rows, keys, clauses, source.scope)
        names = dict(zip(keys, grouped.schema.names, strict=False))
        on = [_equal(outer, names[inner], safe) for outer, inner, safe in pairs]
        context = self._context(self._relation, grouped)
        joined = join(
            context, JoinKind.LEFT, self._relation, grouped, conditions(context, on), self._query, self._taken
        )
        name = unique("value", self._taken)
        return widened(joined, [Output(name, value)], self._place), name

    def _keyed(
        self, rows: Relation, outside: Sequence[Condition]
    ) -> tuple[Relation, list[tuple[exp.Expr, exp.Expr, bool]]]:
        """The subquery's rows; and pairs of what is compared: around, in these rows, and whether NULL equals
        NULL."""
        sides = [operands_of_equality(one.node, self._relation.schema, rows.schema) for one in outside]
        if all(side is not None for side in sides):
            return rows, [
                (*side, isinstance(one.node, exp.NullSafeEQ))
                for one, side in zip(outside, sides, strict=True)
                if side is not None
            ]
        named = sorted({name for one in outside for name in one.names if name in self._relation.schema.names})
        names = {name: unique(name, self._taken) for name in named}
        different = distinct(
            projected(
                self._relation, [Output(new, self._column(self._relation, old)) for old, new in names.items()], None
            ),
            self._place,
        )
        nodes = [_renamed(one.node, names) for one in outside]
        context = self._context(different, rows)
        joined = join(context, JoinKind.INNER, different, rows, conditions(context, nodes), self._query, self._taken)
        return joined, [(as_node(old, self._call), as_node(new, self._call), True) for old, new in names.items()]

    def _grouped(
        self, rows: Relation, keys: Sequence[exp.Expr], clauses: Clauses, scope: Scope
    ) -> tuple[Relation, Scalar]:
        """The subquery's groups by these keys; and its value, over a row of a group and one of the rows around."""
        context = self._context(rows)
        (item,) = clauses.items
        node = scope.bind(item.node)
        having = None if clauses.having is None else scope.bind(clauses.having)
        if not has_aggregate(node) and having is None:
            return self._only_value(rows, keys, context.translate(node))
        groups = Groups(context, tuple(keys), None, self._taken)

        def leaf(part: exp.Expr) -> Scalar | None:
            if isinstance(part, exp.Column) and part.name in self._relation.schema.names:
                return self._column(self._relation, part.name)
            return groups.over_no_rows(part) if is_aggregate(part) else groups.leaf(part)

        over = replace(context, leaf=leaf)
        value = over.translate(node)
        if having is not None:
            test = conditions(over, [having])
            asked = " AND ".join(one.value.sql for one in test)
            value = Scalar(f"CASE WHEN {asked} THEN {value.sql} END", value.type, True)
        return groups.relation(rows, self._place), value

    def _only_value(self, rows: Relation, keys: Sequence[exp.Expr], value: Scalar) -> tuple[Relation, Scalar]:
        context = self._context(rows)
        outputs = [Output(unique("key", self._taken), context.translate(key)) for key in keys]
        one = Output(unique("value", self._taken), value)
        source = projected(rows, [*outputs, one], self._place)
        calls = _only_of(source.schema.field(one.name), self._taken)
        plan = AggregatePlan(tuple(output.name for output in outputs), calls)
        fields = [source.schema.field(output.name) for output in outputs]
        schema = pa.schema([*fields, *(pa.field(call.output, call.type) for call in calls)])
        return Relation(AggregateOp(plan), (source,), schema, self._place), _only(calls, source.schema.field(one.name))


def _only_of(field: pa.Field, taken: set[str]) -> tuple[AggregateCall, AggregateCall]:
    """The number of rows, and the value of one."""
    count = AggregateCall("count_star", None, unique("rows", taken), pa.int64())
    return count, AggregateCall("any_value", field.name, unique("any", taken), field.type)


def _only(calls: tuple[AggregateCall, AggregateCall], field: pa.Field) -> Scalar:
    count, value = (quoted(call.output) for call in calls)
    sql = f"CASE WHEN {count} > 1 THEN CAST({_TOO_MANY} AS {duck_name(field.type)}) ELSE {value} END"
    return Scalar(sql, field.type, fails=True)


def _equal(outer: exp.Expr, name: str, is_null_safe: bool) -> exp.Expr:
    kind = exp.NullSafeEQ if is_null_safe else exp.EQ
    return kind(this=outer.copy(), expression=as_node(name, outer))


def _renamed(node: exp.Expr, names: dict[str, str]) -> exp.Expr:
    holder = exp.Paren(this=node.copy())
    for column in list(holder.find_all(exp.Column)):
        if column.name in names:
            column.replace(as_node(names[column.name], column))
    found: exp.Expr = holder.this
    return found


def _select_of(query: exp.Expr) -> exp.Select | None:
    """The SELECT, if it may name the query around it."""
    while isinstance(query, exp.Subquery) and not any(value for part, value in query.args.items() if part != "this"):
        query = query.this
    more = ("group", "qualify", *END, "with_", "distinct")
    if not isinstance(query, exp.Select) or any(query.args.get(part) for part in more):
        return None
    return None if any(item.find(exp.Window) for item in query.expressions) else query
