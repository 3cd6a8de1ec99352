"""Views of stateful maps on several workers, wherever keys move: each equals the same query over what the maps give."""

from random import Random

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY, Row, plain_rows
from stateful_kit import folded, recall_op

from simulator.dataflow_world import DataflowWorld
from simulator.shared_analyser import SharedAnalyser
from upriver.engine.expressions import Evaluator
from upriver.plan.plan import Per, TableSpec
from upriver.plan.source import Source
from upriver.sql.views import MapRelation, declare, mapped_rows

EVENTS = TableSpec(
    "events", pa.schema([("k", pa.string()), ("g", pa.int8()), ("at", pa.int64())]), ("k",), order_by=("at",)
)
EVENT = st.tuples(st.sampled_from(["a", "b", "c", "", None]), st.sampled_from([1, 2, None]), st.integers(0, 99))
QUERIES = {
    "by_key": ("SELECT k, count(*) AS c, sum(was_at) AS s FROM by_k GROUP BY k", "k"),
    "by_other": ("SELECT was_g, count(*) AS c, max(was_at) AS m FROM by_k GROUP BY was_g", "was_g"),
    "filtered": ("SELECT k, n, was_at + 1 AS later FROM by_k WHERE n > 0 AND was_g = 1", "k"),
    "finer": ("SELECT k, g, sum(n) AS s FROM by_both GROUP BY k, g", "g"),
    "joined": ("SELECT a.k, a.n, b.g FROM by_k AS a JOIN by_both AS b ON a.was_at = b.was_at", "k"),
    "beside": ("SELECT a.n, e.g FROM by_k AS a JOIN events AS e ON a.was_at = e.at", "g"),
    "all": ("SELECT count(*) AS c, sum(n) AS s FROM by_both", "c"),
}
MAPS = {"by_k": ["k"], "by_both": ["k", "g"]}


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator()


@MANY
@given(
    epochs=st.lists(st.lists(EVENT, max_size=12), min_size=1, max_size=4),
    per=st.sampled_from(list(Per)),
    name=st.sampled_from(sorted(QUERIES)),
    seed=st.integers(0, 2**32),
)
def test_a_view_equals_its_query_over_what_the_maps_give(
    epochs: list[list[Row]], per: Per, name: str, seed: int, evaluator: Evaluator
) -> None:
    sql, key = QUERIES[name]
    ops = {one: recall_op(EVENTS.schema, columns, per) for one, columns in MAPS.items()}
    known = {"events": EVENTS, **{one: TableSpec(one, op.output, op.key) for one, op in ops.items()}}
    analyser = SharedAnalyser(known)
    maps = {one: mapped_rows(op, [MapRelation.of_table(EVENTS)]) for one, op in ops.items()}
    plan = declare(Source("v", sql), analyser.analysed("v", sql, {}), key, {"events": EVENTS}, analyser, maps)
    world = DataflowWorld(plan, {"events": EVENTS}, evaluator, Random(seed))
    seen: list[Row] = []
    for rows in epochs:
        batch = as_batch(rows, EVENTS.schema)
        world.run_epoch({"events": batch})
        seen += sorted(rows, key=lambda row: row[2])
    with duckdb.connect() as duck:
        given_rows = {"events": pa.Table.from_batches([as_batch(seen, EVENTS.schema)])}
        for one, columns in MAPS.items():
            made, _ = folded(seen, [EVENTS.schema.names.index(column) for column in columns])
            rows = [(*of, *row) for of, given in made.items() for row in given]
            given_rows[one] = pa.Table.from_batches([as_batch(rows, ops[one].output)])
        for one, table in given_rows.items():
            duck.register(one, table)
        expected = duck.execute(sql).fetchall()
    assert sorted(map(repr, plain_rows(world.scan()))) == sorted(map(repr, expected))


def as_batch(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
