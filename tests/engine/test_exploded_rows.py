"""Rows made of lists, as rows are replaced, deleted and set aside, and keys move."""

from functools import cache
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from rows_kit import rows_of
from sql_kit import local_plan

from simulator.dataflow_world import DataflowWorld
from upriver.engine.expressions import Evaluator
from upriver.engine.macros import CHARS_MAX
from upriver.errors import RowError
from upriver.plan.explain import explain, render
from upriver.plan.plan import TableSpec
from upriver.sql.functions.nested_values import ELEMENTS_MAX

ROWS = TableSpec(
    "t",
    pa.schema([("id", pa.int32()), ("s", pa.string()), ("low", pa.int32()), ("n", pa.int32()), ("gone", pa.bool_())]),
    key=("id",),
    order_by=("n",),
    primary_key=("id",),
    deletes='"gone"',
)
EVALUATOR = Evaluator()
planned = cache(lambda sql, key: local_plan(sql, key, ROWS))


def batch(epoch: list[Any], number: int) -> dict[str, pa.RecordBatch]:
    rows = [dict(zip(ROWS.schema.names, (*row[:3], number, row[3]), strict=True)) for row in epoch]
    return {"t": pa.RecordBatch.from_pylist(rows, schema=ROWS.schema)} if rows else {}


SEQUENCES = "SELECT id, explode(sequence(low, 3, 1)) AS x FROM t"


def test_a_row_whose_list_cannot_be_computed_is_set_aside() -> None:
    world = DataflowWorld(planned(SEQUENCES, "id"), {"t": ROWS}, EVALUATOR, Random(1), sets_aside={"t"})
    world.run_epoch(batch([(1, "", 2, False), (2, "", 4, False), (3, "", 3, False)], 0))
    assert sorted(rows_of(world.scan())) == [(1, 2), (1, 3), (3, 3)]
    assert [row["id"] for aside in world.set_aside for row in aside.rows.to_pylist()] == [2]


def test_or_it_fails_the_view() -> None:
    world = DataflowWorld(planned(SEQUENCES, "id"), {"t": ROWS}, EVALUATOR, Random(1))
    with pytest.raises(RowError, match="does not lead from its start to its end"):
        world.run_epoch(batch([(1, "", 2, False), (2, "", 4, False)], 0))


@pytest.mark.parametrize(
    "elements",
    [
        "sequence(low, 2000000000)",
        "sequence(low, -2000000000, -low)",
        "sequence(timestamp_seconds(low), timestamp_seconds(2000000000), INTERVAL 1 SECOND)",
        "array_repeat(low, low * 1000000)",
    ],
)
def test_a_list_of_too_many_elements_is_an_error_of_its_row(elements: str) -> None:
    sql = f"SELECT id, size({elements}) AS n FROM t WHERE low > 1"
    world = DataflowWorld(planned(sql, "id"), {"t": ROWS}, EVALUATOR, Random(1))
    with pytest.raises(RowError, match=f"A list of more than {ELEMENTS_MAX:,} elements"):
        world.run_epoch(batch([(1, "", 1, False), (2, "", 2, False)], 0))


def test_a_list_may_have_a_million_elements() -> None:
    sql = "SELECT id, size(sequence(low, 1000000)) AS n, size(array_repeat(0, low * 1000000)) AS m FROM t"
    world = DataflowWorld(planned(sql, "id"), {"t": ROWS}, EVALUATOR, Random(1))
    world.run_epoch(batch([(1, "", 1, False)], 0))
    assert rows_of(world.scan()) == [(1, ELEMENTS_MAX, ELEMENTS_MAX)]


@pytest.mark.parametrize(
    "text",
    [
        "repeat('abc', low * 4000000)",
        "space(low * 6000000)",
        "lpad('a', 1000000000 * low)",
        "rpad(CAST(id AS STRING), 2000000000)",
    ],
)
def test_a_text_that_is_made_too_long_is_an_error_of_its_row(text: str) -> None:
    sql = f"SELECT id, length({text}) AS n FROM t WHERE low > 1"
    world = DataflowWorld(planned(sql, "id"), {"t": ROWS}, EVALUATOR, Random(1))
    with pytest.raises(RowError, match=f"A text of more than {CHARS_MAX:,} characters"):
        world.run_epoch(batch([(1, "", 1, False), (2, "", 2, False)], 0))


def test_a_filter_on_other_columns_guards_the_list() -> None:
    world = DataflowWorld(planned(f"{SEQUENCES} WHERE low < 4", "id"), {"t": ROWS}, EVALUATOR, Random(1))
    world.run_epoch(batch([(1, "", 2, False), (2, "", 4, False)], 0))
    assert sorted(rows_of(world.scan())) == [(1, 2), (1, 3)]


def test_explain_says_what_is_exploded() -> None:
    sql = "SELECT part, count(*) AS n FROM t LATERAL VIEW explode(split(s, ',')) e AS part GROUP BY part"
    told = render(explain(planned(sql, "part"), {"t": ROWS}))
    assert "each row for each element of" in told
    assert "is an element of a list" in told
