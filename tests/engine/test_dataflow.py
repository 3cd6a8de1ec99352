"""Dataflows of several regions on several workers, while keys move: a view is always what DuckDB says it is."""

from random import Random

from dataflow_kit import CURRENT, TABLES, Query
from dataflow_lake import Lake, check
from hypothesis import given, settings
from hypothesis import strategies as st
from random_relations import relations
from relation_sql import sql_of
from soak import examples
from state_kit import MANY

from simulator.dataflow_world import DataflowWorld
from upriver.engine.expressions import Evaluator
from upriver.plan.relation import Relation

EVALUATOR = Evaluator()
FEWER = settings(MANY, max_examples=examples(10))


@FEWER
@given(data=st.data(), relation=relations(3))
def test_any_query_is_what_its_sql_says_while_keys_move(data: st.DataObject, relation: Relation) -> None:
    key = tuple(data.draw(st.permutations(["a", "b", "c"]))[: data.draw(st.integers(1, 3))])
    query = Query(relation, key, sql_of(relation, {"stock": f"SELECT * FROM {CURRENT}"}))
    rng = Random(data.draw(st.integers(0, 2**32)))
    world = DataflowWorld(query.plan("v"), TABLES, EVALUATOR, rng)
    lake = Lake(data, rng)
    for _ in range(2):
        world.run_epoch(lake.next_rows(8))
        check(query, world, lake.rows)
