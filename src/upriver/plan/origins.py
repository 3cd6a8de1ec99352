"""What a column in the midst of a dataflow is, for people: the names there are the front end's own.

A column is called by the table's column that it is, or by how it is made of such columns.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from upriver.plan.column_names import columns_in, quoted, with_texts
from upriver.plan.graph import DataflowPlan, LakeEdge, Node, RegionPlan
from upriver.plan.ops import Aggregate, Op, Project, StatefulMap, TopK
from upriver.plan.plan import AggregateCall, AggregatePlan

EXPRESSION_CHARS_MAX = 60
"""Of an expression that stands for a column; of a longer one it is only said what it is made of."""

Below = Callable[[int, str], str]
"""What a column of an operator's input is, given the input's number and the column."""


@dataclass(frozen=True, slots=True)
class Origins:
    """What the columns of a plan's regions are, traced back over exchange edges to the tables."""

    plan: DataflowPlan

    def of(self, region: RegionPlan, number: int, column: str) -> str:
        """What a column of an input, or of a node, of a region is. number: as the region counts them."""
        if number >= len(region.inputs):
            node = region.nodes[number - len(region.inputs)]
            return origin(node.op, column, *self.below(region, node))
        edge = region.inputs[number].edge
        if isinstance(edge, LakeEdge):
            return f"{edge.table}.{column}"
        source = next(other for other in self.plan.regions if other.name == edge.region)
        return self.of(source, len(source.inputs) + len(source.nodes) - 1, column)

    def below(self, region: RegionPlan, node: Node) -> tuple[list[pa.Schema], Below]:
        """The schemas of a node's inputs, and what their columns are."""
        schemas = [*(entry.schema for entry in region.inputs), *(other.schema for other in region.nodes)]
        names = [partial(self.of, region, number) for number in node.inputs]
        return [schemas[number] for number in node.inputs], lambda place, name: names[place](name)


def origin(op: Op, column: str, inputs: Sequence[pa.Schema], below: Below) -> str:
    """What a column of an operator's output is. inputs: the schemas of the operator's inputs."""
    match op:
        case Project(projection):
            return shown(projection.expressions[projection.schema.get_field_index(column)], lambda name: below(0, name))
        case Aggregate(plan) if column not in plan.group:
            return result(plan, column, lambda name: below(0, name))
        case TopK() if column == op.rank:
            return f"{op.ranking}()"
        case StatefulMap() if column not in op.key:
            return f"the stateful map's {column}"
        case _:
            place = next(place for place, schema in enumerate(inputs) if column in schema.names)
            return below(place, column)


def result(plan: AggregatePlan, column: str, name_of: Callable[[str], str]) -> str:
    """What a column of an aggregate's output is. name_of: what a column of its input is."""
    call = next((call for call in plan.calls if call.output == column), None)
    return name_of(column) if call is None else called(call, name_of)


def called(call: AggregateCall, name_of: Callable[[str], str]) -> str:
    """``sum(DISTINCT table.column) FILTER (WHERE ...)``."""
    argument = "*" if call.argument is None else f"{'DISTINCT ' if call.distinct else ''}{name_of(call.argument)}"
    where = "" if call.where is None else f" FILTER (WHERE {name_of(call.where)})"
    return f"{call.function.removesuffix('_star')}({argument}){where}"


def shown(expression: str, name_of: Callable[[str], str]) -> str:
    """As :func:`spelled`; if that is too long to stand for a column, ``f(...)`` of what it is made of."""
    text = spelled(expression, name_of)
    if len(text) <= EXPRESSION_CHARS_MAX or expression in map(quoted, columns_in(expression)):
        return text
    return _made_of(expression, name_of)


def spelled(expression: str, name_of: Callable[[str], str]) -> str:
    """The expression over what its columns are, with Spark's names of types; ``f(...)`` if it has words of the engine
    that evaluates it."""
    text = _OF_SPARK.sub(r"\1(", expression)
    if _FOREIGN.search(text) is not None:
        return _made_of(expression, name_of)
    return with_texts(_CONSTANT.sub(r"\1", _typed(text)), name_of)


def _made_of(expression: str, name_of: Callable[[str], str]) -> str:
    return f"f{listed(dict.fromkeys(name_of(column) for column in sorted(columns_in(expression))))}"


def _typed(expression: str) -> str:
    """With Spark's names of types after AS."""
    return _TYPE.sub(lambda match: f" AS {_TYPES[match[1]]}", expression)


_CONSTANT = re.compile(r"CAST\((-?\d+(?:\.\d+)?) AS \w+(?:\(\d+, ?\d+\))?\)")
"""A number of a type that is written out."""
_TYPES = {"INTEGER": "INT", "VARCHAR": "STRING", "HUGEINT": "DECIMAL(38,0)"}
_TYPE = re.compile(rf" AS ({'|'.join(_TYPES)})\b")
_OF_SPARK = re.compile(r"\bspark_(upper|lower|reverse|lpad|rpad|split_part|substring|right|floor|ceil)\(")
"""Macros that are called as Spark's functions are."""
_FOREIGN = re.compile(
    r"spark_\w+\(|list_transform|regexp_\w+\(|strftime|epoch_us|to_months|\bDECIMAL\(38, |ESCAPE|//|\bCASE WHEN NOT "
)
"""Words of the engine that evaluates expressions."""


def listed(columns: Iterable[str]) -> str:
    """``(a, b)``."""
    return f"({', '.join(columns)})"
