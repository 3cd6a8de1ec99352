"""Every query of the list through the planner, and on several workers while keys move: it gives what its tree gives."""

from random import Random

import pyarrow as pa
import pyarrow.types as kinds
import pytest
from query_kit import evaluated, relation_sql, rows, same_rows, tables
from query_list import DUCK, SPARK, queries

from simulator.dataflow_world import DataflowWorld
from simulator.local_typer import LocalTyper
from upriver.engine.expressions import Evaluator
from upriver.plan.plan import DataflowPlan
from upriver.plan.planning import plan_regions
from upriver.sql.queries import compile_view

TABLES = tables()
EVALUATOR = Evaluator()
EPOCHS = 2


@pytest.mark.parametrize("sql", queries(DUCK + SPARK))
def test_a_view_is_what_its_tree_says_while_keys_move(sql: str) -> None:
    view = compile_view("v", sql, TABLES, {}, LocalTyper(TABLES))
    key = next((field.name for field in view.schema if not kinds.is_floating(field.type)), view.schema.names[0])
    regions = plan_regions("v", view.relation, [key], TABLES)
    world = DataflowWorld(DataflowPlan("v", sql, (key,), view.schema, regions), TABLES, EVALUATOR, Random(len(sql)))
    for epoch in range(EPOCHS):
        world.run_epoch({name: part(table, epoch) for name, table in rows().items()})
    found = [tuple(row.values()) for row in world.scan().to_pylist()]
    assert same_rows(found, evaluated(relation_sql(view.relation)))


def part(table: pa.Table, epoch: int) -> pa.RecordBatch:
    """The rows that come in an epoch."""
    start, stop = (table.num_rows * number // EPOCHS for number in (epoch, epoch + 1))
    return table.slice(start, stop - start).combine_chunks().to_batches()[0]
