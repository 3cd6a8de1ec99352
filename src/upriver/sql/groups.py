"""The groups of some rows: the columns that the aggregate takes in, and those that it gives.

The grouping columns and the arguments are computed in one projection beneath. An argument that can fail is computed
only where the FILTER of its aggregate is true.
"""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from upriver.plan.column_names import plain_column, unique
from upriver.plan.plan import AggregateCall, AggregateOp, AggregatePlan
from upriver.plan.relation import Relation, Scalar
from upriver.plan.source import ELSEWHERE
from upriver.plan.types import is_map, is_null, is_ordered, parts_of
from upriver.sql.aggregate_calls import planned
from upriver.sql.functions.aggregates import Call, may_have_code, of_one_row
from upriver.sql.functions.arrays import map_of, sorted_entries
from upriver.sql.functions.logic import connect
from upriver.sql.functions.scalars import column_scalar, group_value, typed_name
from upriver.sql.one_row import of_everything
from upriver.sql.relations import Output, computed, projected
from upriver.sql.sessions import merged
from upriver.sql.time_windows import are_sessions, field_of, is_window, window_of
from upriver.sql.translation import Translation
from upriver.sql.tree import TreeNode, changed

CALL = "AggregateExpression"
GROUPING_ID = "spark_grouping_id"
"""The column that tells grouping sets apart."""


class Groups:
    """The groups of some rows. :meth:`column` collects the aggregates."""

    def __init__(
        self, translation: Translation, rows: Relation, grouping: Sequence[TreeNode], place: int | None
    ) -> None:
        self._translation, self._rows, self._place = translation, rows, place
        self._over = translation.over(rows)
        self._inputs: dict[str, Scalar] = {}
        """The columns that the aggregate takes in."""
        self._coded: dict[str, Scalar] = {}
        """What takes the place of some of them if Spark generates code, as it does if it may for all calls."""
        self._may_have_code = True
        self._uses = translation.uses(grouping)
        self._group: list[str] = []
        self._constants: dict[str, TreeNode] = {}
        """The columns of grouping expressions that are no columns of the rows, by their meaning."""
        self._session: tuple[str, str] | None = None
        """The columns with the bounds of each row's own window, if sessions are grouped."""
        self._calls: dict[AggregateCall, AggregateCall] = {}
        """By the same call without a name for its output."""
        self._columns: dict[tuple[AggregateCall, str], TreeNode] = {}
        """The columns of results, by their calls, and by what is made of these."""
        self._results: dict[str, Scalar] = {}
        """What is made of the columns of the groups: of maps, of windows, and of some calls."""
        self._has_sets = any(one.is_column and one.fields["name"] == GROUPING_ID for one in grouping)
        for one in {one.meaning: one for one in grouping}.values():
            self._add(one)

    # Grouping columns

    def _add(self, node: TreeNode) -> None:
        if is_window(node):
            self._add_window(node)
            return
        value = self._over.of(node)
        type = value.type
        # Spark itself loses NULLs in maps that are grouped by several sets.
        is_entries = is_map(type) and all(map(is_ordered, parts_of(type))) and not self._has_sets
        if is_entries:
            value = sorted_entries(value)
        name = self._translation.name(node) if node.is_column else self._unique(node)
        self._grouped(node, name, value)
        if is_entries:
            self._results[name] = map_of(column_scalar(name, value.type), type)
        if not node.is_column:
            self._constants[node.meaning] = self._translation.of_name(name, type)

    def _add_window(self, node: TreeNode) -> None:
        """A window of time is two columns: its start and its end."""
        names = self._translation.parts_of_window(node)
        bounds = [self._over.of(field_of(node, place)) for place in (0, 1)]
        for name, bound in zip(names, bounds, strict=True):
            self._grouped(node, name, bound)
        start, end = (column_scalar(name, bound.type) for name, bound in zip(names, bounds, strict=True))
        self._results[self._translation.name(node)] = window_of(start, end, node.type, not node.nullable)
        if are_sessions(node):
            self._session = names

    def _grouped(self, node: TreeNode, name: str, value: Scalar) -> None:
        if is_null(value.type) or not is_ordered(value.type):
            raise self._translation.source.unsupported(node.place, f"GROUP BY of {typed_name(value)}", ELSEWHERE)
        self._inputs[name] = group_value(value)
        self._group.append(name)

    def _unique(self, node: TreeNode) -> str:
        return unique(self._translation.worded(node), self._translation.taken)

    # Aggregates

    def over_groups(self, node: TreeNode) -> TreeNode:
        """An expression with columns of the groups in place of its aggregates and of grouping expressions."""
        return changed(node, self._column)

    def _column(self, node: TreeNode) -> TreeNode | None:
        return self.column(node) if node.kind == CALL else self._constants.get(node.meaning)

    def column(self, node: TreeNode, test: Scalar | None = None) -> TreeNode:
        """The column of an aggregate's result. test: which rows count for it, besides those of its FILTER; ``None`` for
        all."""
        found = planned(node, self._over)
        call, where, coded = found.call, found.call.where, found.call.coded
        if test is not None:
            where = test if where is None else connect("AND", [test, where])
            coded = None if coded is None else connect("AND", [test, coded])
        self._may_have_code &= may_have_code(call)
        operand = next(iter(node.children[0].children), node)
        counted = None if where is None else self._argument(where, coded, node.fields["filter"] or operand)
        values = () if call.argument is None else (call.argument, *call.others)
        columns = [self._guarded(value, call, operand) for value in values]
        for name in self._translation.uses([node]):
            self._uses[name] = 2  # Spark moves nothing from below into an aggregate
        made = self._once(call, columns, counted, node)
        value = found.value(column_scalar(made.output, made.type))
        return self._result(made, value, node)

    def column_of(self, call: Call, node: TreeNode) -> TreeNode:
        """The column of the result of a call without a FILTER that can fail. node: for its name."""
        where = None if call.where is None else self._argument(call.where, None, node)
        columns = [] if call.argument is None else [self._argument(call.argument, None, node)]
        made = self._once(call, columns, where, node)
        return self._result(made, column_scalar(made.output, made.type), node)

    def _result(self, made: AggregateCall, value: Scalar, node: TreeNode) -> TreeNode:
        key = made, value.sql
        if key not in self._columns:
            name = made.output if plain_column(value.sql) is not None else self._unique(node)
            if name != made.output:
                self._results[name] = value
            self._columns[key] = self._translation.of_name(name, value.type)
        return self._columns[key]

    def _guarded(self, value: Scalar, call: Call, node: TreeNode) -> str:
        """The column of an argument, computed only where the FILTER of the aggregate is true."""
        if call.where is None or not value.fails:
            return self._argument(value, None, node)
        coded = None if call.coded is None else _only_where(call.coded, value)
        return self._argument(_only_where(call.where, value), coded, node)

    def _argument(self, value: Scalar, coded: Scalar | None, node: TreeNode) -> str:
        """The column of the aggregate's input that holds a value: a group column, or one of its own. coded: what takes
        the value's place where Spark generates code."""
        for name, known in self._inputs.items():
            is_same = known.sql == value.sql and known.type == value.type and self._coded.get(name) == coded
            if is_same and name not in (self._session or ()):  # whose bounds become those of whole sessions
                return name
        plain = plain_column(value.sql) if coded is None else None
        name = self._unique(node) if plain is None or plain in self._inputs else plain
        self._inputs[name] = value
        if coded is not None:
            self._coded[name] = coded
        return name

    def _once(self, call: Call, columns: Sequence[str], where: str | None, node: TreeNode) -> AggregateCall:
        key = AggregateCall(
            call.function,
            columns[0] if columns else None,
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
            self._calls[key] = replace(key, output=self._unique(node))
        return self._calls[key]

    # The rows

    def relation(self) -> Relation:
        """The groups with all aggregates that were asked for."""
        rows = self._aggregated()
        if not self._results:
            return rows
        known = [Output(name, column_scalar(name, rows.schema.field(name).type)) for name in rows.schema.names]
        outputs = {one.name: one for one in known} | {name: Output(name, one) for name, one in self._results.items()}
        return projected(rows, outputs.values(), self._place)

    def _aggregated(self) -> Relation:
        values = self._inputs | (self._coded if self._may_have_code else {})
        inputs = [Output(name, value) for name, value in values.items()]
        calls = of_one_row(tuple(self._calls.values()))
        taken = self._translation.taken
        if not self._group:
            return of_everything(self._rows, inputs, calls, self._uses, taken, self._place)
        source = computed(self._rows, inputs, self._uses, self._place)
        if self._session is not None:
            others = [name for name in self._group if name not in self._session]
            source = merged(source, others, *self._session, self._place)
        plan = AggregatePlan(tuple(self._group), calls)
        fields = [source.schema.field(name) for name in plan.group]
        fields += [pa.field(call.output, call.type) for call in calls]
        return Relation(AggregateOp(plan), (source,), pa.schema(fields), self._place)


def _only_where(where: Scalar, value: Scalar) -> Scalar:
    return replace(value, sql=f"CASE WHEN {where.sql} THEN {value.sql} END")
