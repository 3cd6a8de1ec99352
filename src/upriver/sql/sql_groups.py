"""GROUP BY: which columns the aggregate takes in, which it gives out, and what the outputs are made of."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from upriver.plan.algebra import Relation, Scalar
from upriver.plan.ops import Aggregate
from upriver.plan.plan import AggregateCall, AggregatePlan
from upriver.plan.sql_source import ELSEWHERE
from upriver.plan.sql_types import duck_name, is_null
from upriver.sql.sql_aggregates import Call, aggregate_call, is_aggregate
from upriver.sql.sql_relations import Output, computed, group_value
from upriver.sql.sql_scalar import Context, column_scalar, typed_name
from upriver.sql.sql_scope import unique, uses_in, worded


class Groups:
    """The groups of one query. :meth:`leaf` translates expressions over them, and collects the aggregates."""

    def __init__(self, rows: Context, group: Sequence[exp.Expr], taken: set[str]) -> None:
        """taken: names that no column may have, lower case; those of all columns are added."""
        self._rows = rows
        self._taken = taken
        self._group = {node: unique(worded(node), taken) for node in group}
        self._calls: dict[tuple[str, str | None, bool, str | None], AggregateCall] = {}
        self._inputs: dict[str, Scalar] = {name: self._grouped(node) for node, name in self._group.items()}
        self._uses = uses_in(self._group)
        """How often what is computed of the rows names each of their columns."""

    def leaf(self, node: exp.Expr) -> Scalar | None:
        """What a node is over groups: a group column or an aggregate's result."""
        name = self._group.get(node)
        if name is not None:
            return column_scalar(name, self._inputs[name].type)
        if is_aggregate(node):
            call = self._call(node)
            return column_scalar(call.output, call.type)
        if isinstance(node, exp.Column):
            raise self._rows.source.wrong(
                node, f"{node.name!r} is neither in GROUP BY nor inside an aggregate", "Add it to GROUP BY."
            )
        return None

    def relation(self, rows: Relation, place: int | None) -> Relation:
        """The groups of these rows, with all aggregates that were asked for."""
        source = computed(rows, [Output(name, value) for name, value in self._inputs.items()], self._uses, place)
        plan = AggregatePlan(tuple(self._group.values()), tuple(self._calls.values()))
        fields = [source.schema.field(name) for name in plan.group]
        fields += [pa.field(call.output, call.type) for call in plan.calls]
        return Relation(Aggregate(plan), (source,), pa.schema(fields), place)

    def _grouped(self, node: exp.Expr) -> Scalar:
        value = self._rows.translate(node)
        if is_null(value.type) or duck_name(value.type) is None:
            raise self._rows.unsupported(node, f"GROUP BY of {typed_name(value)}", ELSEWHERE)
        return group_value(value)

    def _call(self, node: exp.Expr) -> AggregateCall:
        call = aggregate_call(self._rows, node)
        function, condition = (node.this, node.expression.this) if isinstance(node, exp.Filter) else (node, node)
        where = None if call.where is None else self._argument(call.where, _operand(condition))
        argument = (
            None if call.argument is None else self._argument(_guarded(call.argument, call.where), _operand(function))
        )
        return self._once(call, argument, where, node)

    def _argument(self, value: Scalar, node: exp.Expr) -> str:
        """The column of the aggregate's input that holds a value: a group's, or one of its own."""
        for name, known in self._inputs.items():
            if known.sql == value.sql and known.type == value.type:
                return name
        name = unique(worded(node), self._taken)
        self._inputs[name] = value
        return name

    def _once(self, call: Call, argument: str | None, where: str | None, node: exp.Expr) -> AggregateCall:
        key = (call.function, argument, call.distinct, where)
        if key not in self._calls:
            output = unique(worded(node), self._taken)
            self._calls[key] = AggregateCall(call.function, argument, output, call.type, call.distinct, where)
            self._uses.update(dict.fromkeys(uses_in([node]), 2))  # Spark takes nothing from below into an aggregate
        return self._calls[key]


def _guarded(value: Scalar, where: Scalar | None) -> Scalar:
    """What an aggregate takes in, which is computed only where its FILTER is true."""
    if where is None or not value.fails:
        return value
    return replace(value, sql=f"CASE WHEN {where.sql} THEN {value.sql} END")


def _operand(node: exp.Expr) -> exp.Expr:
    """What an aggregate function is called with; a condition, which is none, is taken as a whole."""
    if not is_aggregate(node) and not isinstance(node, exp.Distinct):
        return node
    operand: exp.Expr = node.expressions[0]
    return _operand(operand) if isinstance(operand, exp.Distinct) else operand
