"""Relations of one row: an aggregate without GROUP BY, which has its row over no rows, too.

The groups of a constant have a row only if there are rows. So they are joined to a row that is always there. It comes
from the query itself.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from upriver.plan.column_names import quoted, unique
from upriver.plan.plan import (
    ALL_ALIKE,
    ALL_ALIKE_TYPE,
    AggregateCall,
    AggregateOp,
    AggregatePlan,
    JoinKind,
    JoinOp,
    ValuesOp,
)
from upriver.plan.relation import Relation, Scalar
from upriver.plan.schemas import rows_to_bytes
from upriver.plan.types import duck_name
from upriver.sql.functions.aggregates import over_no_rows
from upriver.sql.functions.scalars import column_scalar
from upriver.sql.relations import ALIKE, Output, computed, projected


def one_row(name: str) -> Relation:
    """One row, with nothing but a column of this name that all rows have alike."""
    rows = pa.RecordBatch.from_arrays([pa.array([0], ALL_ALIKE_TYPE)], [name])
    return Relation(ValuesOp(rows_to_bytes(rows)), (), rows.schema)


def of_everything(
    rows: Relation,
    inputs: Sequence[Output],
    calls: Sequence[AggregateCall],
    uses: Mapping[str, int],
    taken: set[str],
    place: int | None,
) -> Relation:
    """The row of aggregates over all rows. inputs: the columns that the calls name. uses: how often the inputs, as
    written, name each column of the rows. taken: names that no other column may have, lower case."""
    here, there = unique(ALL_ALIKE, taken), unique(ALL_ALIKE, taken)
    source = computed(rows, [Output(there, ALIKE), *inputs], uses, place)
    results = [pa.field(call.output, call.type) for call in calls]
    schema = pa.schema([source.schema.field(there), *results])
    grouped = Relation(AggregateOp(AggregatePlan((there,), tuple(calls))), (source,), schema, place)
    first = one_row(here)
    both = pa.schema([*first.schema, *schema])
    joined = Relation(JoinOp(JoinKind.LEFT, (here,), (there,), (False,), None), (first, grouped), both, place)
    values = [Output(call.output, over_no_rows(call, column_scalar(call.output, call.type))) for call in calls]
    return projected(joined, [Output(here, column_scalar(here, ALL_ALIKE_TYPE)), *values], place)


def only_row(rows: Relation, keys: Sequence[str], taken: set[str], place: int | None) -> Relation:
    """The only row for each combination of keys; without keys one row always. The other columns raise if there are
    several rows, and are NULL if there is none. taken: as for ``of_everything``."""
    others = [field for field in rows.schema if field.name not in keys]
    count = AggregateCall("count_star", None, unique("rows", taken), pa.int64())
    calls = [AggregateCall("any_value", field.name, unique("any", taken), field.type) for field in others]
    if keys:
        plan = AggregatePlan(tuple(keys), (count, *calls))
        fields = [*map(rows.schema.field, keys), *(pa.field(call.output, call.type) for call in plan.calls)]
        groups = Relation(AggregateOp(plan), (rows,), pa.schema(fields), place)
    else:
        inputs = [Output(field.name, column_scalar(field.name, field.type)) for field in rows.schema]
        groups = of_everything(rows, inputs, (count, *calls), {}, taken, place)
    outputs = [Output(key, column_scalar(key, rows.schema.field(key).type)) for key in keys]
    for field, call in zip(others, calls, strict=True):
        failing = f"CASE WHEN {quoted(count.output)} > 1 THEN CAST({_TOO_MANY} AS {duck_name(field.type)})"
        outputs.append(Output(field.name, Scalar(f"{failing} ELSE {quoted(call.output)} END", field.type, fails=True)))
    return projected(groups, outputs, place)


_TOO_MANY = "error('more than one row was returned by a subquery that is used as an expression')"
