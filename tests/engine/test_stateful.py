"""A stateful map as a view of several workers: planned, fed epoch by epoch in order, moved at any point, looked up."""

from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY, Row, plain_rows
from stateful_kit import folded, map_op, recall_op

from simulator.dataflow_world import DataflowWorld
from upriver.engine.expressions import Evaluator
from upriver.plan.plan import DataflowPlan, Per, Scan, TableSpec
from upriver.plan.planning import plan_regions
from upriver.plan.relation import Relation

EVENTS = TableSpec(
    "events",
    pa.schema([("k", pa.string()), ("g", pa.int8()), ("at", pa.int64()), ("tags", pa.list_(pa.string()))]),
    ("k",),
    order_by=("at",),
)
EVENT = st.tuples(
    st.sampled_from(["a", "b", "c", "", None]),
    st.sampled_from([1, 2, None]),
    st.integers(0, 99),
    st.lists(st.sampled_from(["x", None]), max_size=2),
)


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator()


def plan_of(key: list[str], looked_up: list[str], per: Per) -> DataflowPlan:
    op = recall_op(EVENTS.schema, key, per)
    relation = Relation(op, (Relation(Scan(EVENTS.name), (), EVENTS.schema),), op.output)
    regions = plan_regions("recalled", relation, looked_up, {EVENTS.name: EVENTS})
    return DataflowPlan("recalled", "", tuple(looked_up), op.output, regions)


@MANY
@given(
    epochs=st.lists(st.lists(EVENT, max_size=12), min_size=1, max_size=4),
    per=st.sampled_from(list(Per)),
    keys=st.sampled_from([(["k"], ["k"]), (["k", "g"], ["g", "k"]), (["k", "g"], ["k"])]),
    seed=st.integers(0, 2**32),
)
def test_a_view_has_each_keys_rows_in_order_wherever_keys_move(
    epochs: list[list[Row]], per: Per, keys: tuple[list[str], list[str]], seed: int, evaluator: Evaluator
) -> None:
    key, looked_up = keys
    plan = plan_of(key, looked_up, per)
    world = DataflowWorld(plan, {EVENTS.name: EVENTS}, evaluator, Random(seed))
    seen: list[Row] = []
    for rows in epochs:
        columns = [[row[place] for row in rows] for place in range(len(EVENTS.schema))]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(values, type) for values, type in zip(columns, EVENTS.schema.types, strict=True)],
            schema=EVENTS.schema,
        )
        world.run_epoch({EVENTS.name: batch})
        seen += sorted(rows, key=lambda row: row[2])
    expected, _ = folded(seen, [EVENTS.schema.names.index(name) for name in key])
    found: dict[Row, list[Row]] = {}
    for row in plain_rows(world.scan()):
        found.setdefault(row[: len(key)], []).append(row[len(key) :])
    assert found == expected
    for of in expected:
        asked = [pa.array([of[key.index(name)]], EVENTS.schema.field(name).type) for name in plan.key]
        answer = world.lookup(pa.RecordBatch.from_arrays(asked, list(plan.key)))
        assert [row[len(key) :] for row in plain_rows(answer) if row[: len(key)] == of] == expected[of]


def picky(key: str, row: Any, state: None) -> tuple[list[tuple[int]], None]:
    if row.at == 3:
        raise ValueError("three")
    return [(row.at,)], None


@pytest.mark.parametrize("sets_aside", [True, False], ids=["of the map", "of its table"])
def test_a_row_that_a_map_rejects_is_the_maps_whichever_view_computes_it(
    sets_aside: bool, evaluator: Evaluator
) -> None:
    number = pa.schema([("n", pa.int64())])
    op = replace(map_op(picky, EVENTS.schema, ["k"], number, number), name="good", sets_aside=sets_aside)
    relation = Relation(op, (Relation(Scan(EVENTS.name), (), EVENTS.schema),), op.output)
    found = []
    for view in ("good", "its reader"):
        plan = DataflowPlan(view, "", ("k",), op.output, plan_regions(view, relation, ["k"], {EVENTS.name: EVENTS}))
        world = DataflowWorld(plan, {EVENTS.name: EVENTS}, evaluator, Random(1), sets_aside=[EVENTS.name])
        rows = [{"k": "a", "g": 1, "at": at, "tags": []} for at in range(6)]
        world.run_epoch({EVENTS.name: pa.RecordBatch.from_pylist(rows, EVENTS.schema)})
        found += [(each.view, each.table, each.rows["at"].to_pylist()) for each in world.set_aside]
    assert found == [("good", "good" if sets_aside else EVENTS.name, [3])] * 2
