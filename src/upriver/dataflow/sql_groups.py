"""GROUP BY: which columns the aggregate takes in, which it gives out, and what the outputs are made of."""

from collections.abc import Sequence

import pyarrow as pa
from sqlglot import exp

from upriver.dataflow.plan import AggregateCall
from upriver.dataflow.sql_functions import AGGREGATES
from upriver.dataflow.sql_query import is_aggregate
from upriver.dataflow.sql_scalar import Context, Scalar, column, typed_name
from upriver.dataflow.sql_source import ELSEWHERE
from upriver.dataflow.sql_types import DECIMAL_DIGITS_MAX, duck_name, is_decimal, is_floating, is_integer, is_null


class Groups:
    """The groups of one query. Expressions over them are translated with :meth:`leaf`, which collects the aggregates.

    inputs: name to expression over the table's rows, the group columns first. calls: the aggregates, each once.
    """

    def __init__(self, rows: Context, group: Sequence[exp.Expr]) -> None:
        self._rows = rows
        self._group = {node: f"group_{number}" for number, node in enumerate(group)}
        self._arguments: dict[exp.Expr, str] = {}
        self._calls: dict[tuple[str, str | None], AggregateCall] = {}
        self.inputs: dict[str, Scalar] = {name: self._grouped(node) for node, name in self._group.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The group columns."""
        return tuple(self._group.values())

    @property
    def calls(self) -> tuple[AggregateCall, ...]:
        return tuple(self._calls.values())

    def name_of(self, node: exp.Expr) -> str | None:
        """The group column that holds this expression."""
        return self._group.get(node)

    def leaf(self, node: exp.Expr) -> Scalar | None:
        """What a node is over groups: a group column or an aggregate's result."""
        name = self._group.get(node)
        if name is not None:
            return column(name, self.inputs[name].type)
        if is_aggregate(node):
            call = self._call(node)
            return column(call.output, call.type)
        if isinstance(node, exp.Column):
            raise self._rows.source.wrong(
                node, f"{node.name!r} is neither in GROUP BY nor inside an aggregate", "Add it to GROUP BY."
            )
        return None

    def _grouped(self, node: exp.Expr) -> Scalar:
        value = self._rows.translate(node)
        self._need_comparable(node, value, "GROUP BY")
        if is_floating(value.type):
            sql = f"CAST(spark_group({value.sql}) AS {duck_name(value.type)})"
            return Scalar(sql, value.type, value.fails)
        return value

    def _call(self, node: exp.Expr) -> AggregateCall:
        function = AGGREGATES[node.name.lower()]
        self._rows.only(node, "this", "expressions")
        if len(node.expressions) != 1:
            raise self._rows.unsupported(node, f"{node.name}() of {len(node.expressions)} operands", "Give it one.")
        operand = node.expressions[0]
        if isinstance(operand, exp.Distinct):
            raise self._rows.unsupported(node, f"{node.name}(DISTINCT ...)", ELSEWHERE)
        if function == "count" and (isinstance(operand, exp.Star) or _is_constant(operand)):
            return self._once("count_star", None, pa.int64())
        value = self._rows.translate(operand)
        return self._once(function, self._argument(operand, value), self._type(node, function, value))

    def _argument(self, node: exp.Expr, value: Scalar) -> str:
        name = self._group.get(node) or self._arguments.get(node)
        if name is None:
            name = self._arguments[node] = f"argument_{len(self._arguments)}"
            self.inputs[name] = value
        return name

    def _once(self, function: str, argument: str | None, type: pa.DataType) -> AggregateCall:
        output = f"aggregate_{len(self._calls)}"
        return self._calls.setdefault((function, argument), AggregateCall(function, argument, output, type))

    def _type(self, node: exp.Expr, function: str, value: Scalar) -> pa.DataType:
        """The type that Spark gives the aggregate."""
        self._need_comparable(node, value, f"{node.name}()")
        if function == "count":
            return pa.int64()
        if function in ("min", "max"):
            return value.type
        if is_decimal(value.type):
            digits, scale = value.type.precision, value.type.scale
            if function == "sum":
                return pa.decimal128(min(digits + 10, DECIMAL_DIGITS_MAX), scale)
            if digits + 4 <= DECIMAL_DIGITS_MAX:
                return pa.decimal128(digits + 4, scale + 4)
        if is_integer(value.type) or is_floating(value.type):
            return pa.int64() if function == "sum" and is_integer(value.type) else pa.float64()
        raise self._rows.unsupported(node, f"{node.name}() of {typed_name(value)}", "CAST it to a number.")

    def _need_comparable(self, node: exp.Expr, value: Scalar, what: str) -> None:
        if is_null(value.type) or duck_name(value.type) is None:
            raise self._rows.unsupported(node, f"{what} of {typed_name(value)}", ELSEWHERE)


def _is_constant(node: exp.Expr) -> bool:
    """``count(1)`` counts rows, as ``count(*)`` does."""
    return isinstance(node, exp.Literal | exp.Boolean)
