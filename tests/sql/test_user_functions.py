# ruff: noqa: E501  queries are easier to read on one line
"""Views that call functions of users: wherever an expression may stand, over any cut of epochs while keys move."""

from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from rows_kit import rows_of
from sql_kit import spec
from user_function_kit import user_function

from simulator.dataflow_world import DataflowWorld
from simulator.shared_analyser import SharedAnalyser
from upriver.engine.expressions import Evaluator
from upriver.errors import DeclarationError, UnsupportedSql
from upriver.lake.checkpoint_places import plan_digest
from upriver.lake.control import ControlRecord
from upriver.plan.explain import explain, render
from upriver.plan.plan import DataflowPlan, FunctionForm, UserFunction
from upriver.protocol.plans import plan_from_json, plan_to_json
from upriver.sql.views import declare_view
from upriver.vnodes import Placement

T = spec("t", pa.schema([("k", pa.int32()), ("v", pa.float64()), ("s", pa.string())]))
ROWS = [(1, 1.5, "a"), (2, None, "b"), (3, 2.5, None), (4, 4.0, "a")]
DOUBLE = user_function("double_of", lambda v: None if v is None else 2 * v, [pa.float64()], pa.float64())
UPPER = user_function("loud", lambda s: pc.utf8_upper(s), [pa.string()], pa.string(), FunctionForm.ARROW)
FUNCTIONS = {"double_of": DOUBLE, "loud": UPPER}


def planned(sql: str, functions: dict[str, UserFunction], key: str = "k") -> DataflowPlan:
    return declare_view("v", sql, key, {"t": T}, {}, SharedAnalyser({"t": T}, functions))


@pytest.mark.parametrize(
    ("sql", "key", "wanted"),
    [
        ("SELECT k, DOUBLE_OF(v) AS d FROM t", "k", [(1, 3.0), (2, None), (3, 5.0), (4, 8.0)]),
        ("SELECT k FROM t WHERE double_of(k) > 4 AND loud(s) = 'A'", "k", [(4,)]),
        ("SELECT loud(s) AS u, sum(double_of(v)) AS d FROM t GROUP BY loud(s)", "u", [("A", 11.0), ("B", None), (None, 5.0)]),
        ("SELECT a.k, b.k AS j FROM t a JOIN t b ON double_of(a.k) = b.k", "k", [(1, 2), (2, 4)]),
        ("SELECT a.k, b.s FROM t a LEFT JOIN t b ON a.k = b.k AND double_of(a.v + b.v) > 8", "k", [(1, None), (2, None), (3, None), (4, "a")]),
        ("SELECT k, row_number() OVER (ORDER BY double_of(-k)) AS n FROM t", "k", [(1, 4), (2, 3), (3, 2), (4, 1)]),
    ],
)  # fmt: skip
def test_a_function_may_stand_where_an_expression_may(sql: str, key: str, wanted: list[tuple[object, ...]]) -> None:
    plan = planned(sql, FUNCTIONS, key)
    assert plan_from_json(plan_to_json(plan)) == plan
    world = DataflowWorld(plan, {"t": T}, Evaluator(), Random(1))
    for start in (0, 2):
        world.run_epoch({"t": pa.RecordBatch.from_pylist(
            [dict(zip(T.schema.names, row, strict=True)) for row in ROWS[start : start + 2]], T.schema
        )})  # fmt: skip
    assert sorted(rows_of(world.scan()), key=repr) == sorted(wanted, key=repr)


def test_a_plan_has_the_functions_that_it_calls_and_explain_says_what_they_cost() -> None:
    plan = planned("SELECT k, double_of(v) AS d FROM t", FUNCTIONS)
    assert plan.functions == (DOUBLE,)
    told = render(explain(plan, {"t": T}))
    assert "double_of(t.v)" in told
    assert "calls double_of(), a Python function: once for each row" in told


@pytest.mark.parametrize(
    ("error", "sql", "said"),
    [
        (UnsupportedSql, "SELECT k, double_of(s) AS d FROM t", "STRING as an argument of double_of() that is DOUBLE"),
        (DeclarationError, "SELECT double_of(c) AS k FROM VALUES (double_of(1)) AS u(c)", "INVALID_INLINE_TABLE"),
        (DeclarationError, "SELECT k, double_of(v, v) AS d FROM t", "It is declared with 1 arguments"),
        (DeclarationError, "SELECT k, other(v) AS d FROM t", "UNRESOLVED_ROUTINE"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_refused(error: type[Exception], sql: str, said: str) -> None:
    with pytest.raises(error) as raised:
        planned(sql, FUNCTIONS)
    assert said in str(raised.value)


def test_a_changed_function_makes_another_view_and_another_state() -> None:
    sql = "SELECT k, double_of(v) AS d FROM t"
    changed = user_function("double_of", lambda v: 2 * (v or 0.0), [pa.float64()], pa.float64())
    before, after = planned(sql, FUNCTIONS), planned(sql, {"double_of": changed})
    assert plan_digest(before) != plan_digest(after)
    record = ControlRecord(placement=Placement.initial(8, 1)).with_views([before], 1.0)
    assert ControlRecord.from_json(record.to_json()) == record
    assert record.with_views([before], 2.0).gone == ()
    (gone,) = record.with_views([after], 2.0).gone
    assert (gone.name, gone.ended) == ("v", "replaced")
