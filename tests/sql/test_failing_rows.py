"""What cannot be computed from its rows is told in the words of the query: which part of it, from what, what to do."""

import re
from random import Random

import pyarrow as pa
import pytest
from awkward_kit import awkward
from sql_kit import local_plan, spec

from simulator.dataflow_world import DataflowWorld
from upriver.engine.expressions import GUARD, Evaluator
from upriver.errors import RowError

MOST = 2**63 - 1
T = spec("t", pa.schema([("k", pa.string()), ("i", pa.int32()), ("l", pa.int64()), ("s", pa.string())]))
U = spec("u", pa.schema([("k", pa.string()), ("i", pa.int32()), ("w", pa.int64())]))
ROWS = {
    "t": pa.record_batch([["a", "a"], [0, 7], [MOST, MOST], ["abc", "1"]], schema=T.schema),
    "u": pa.record_batch([["a"], [7], [0]], schema=U.schema),
}

# What is said behind the table, if one is named; and the SQL.
OF_ONE_ROW = """
column z: The text 'abc' cannot be cast to an integer | SELECT k, CAST(s AS INT) AS z FROM t
column z: Overflow in addition of BIGINT (9223372036854775807 + 1)! | SELECT k, i, l + 1 AS z FROM t
column 1 / i: Division by zero | SELECT k, sum(1 / i) AS z FROM t GROUP BY k
column 1 / i > 0: Division by zero | SELECT k, sum(l) FILTER (WHERE 1 / i > 0) AS z FROM t GROUP BY k
column CAST(s AS INT): The text 'abc' | SELECT CAST(s AS INT) AS k, count(*) AS n FROM t GROUP BY CAST(s AS INT)
column CAST(t.s AS INT): The text 'abc' | SELECT t.k FROM t JOIN u ON CAST(t.s AS INT) = u.i
column 1 / i: Division by zero | SELECT k FROM t QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY 1 / i) = 1
column y: Division by zero | WITH c AS (SELECT k, 1 / i AS y FROM t) SELECT k, max(y) AS z FROM c GROUP BY k
a condition: Division by zero | SELECT k FROM t WHERE 1 / i > 0
"""
OF_SEVERAL = """
column z: Division by zero (row: l = 9223372036854775807, w = 0) | SELECT k, l / w AS z FROM t JOIN u USING (k)
a condition: Division by zero (row: l = 9223372036854775807, w = 0) | SELECT k FROM t JOIN u USING (k) WHERE l / w > 1
column z: Overflow in addition of BIGINT (9223372036854775807 + 1)! (row: max(l) = 9223372036854775807) | \
SELECT k, max(l) + 1 AS z FROM t GROUP BY k
a condition: Division by zero (row: min(i) = 0) | SELECT k FROM t GROUP BY k HAVING 1 / min(i) > 0
column 1 / min(i): Division by zero (row: min(i) = 0) | \
SELECT k, count(*) AS n FROM t GROUP BY k ORDER BY 1 / min(i) LIMIT 1
column z: Division by zero (row: n = 1) | \
SELECT k, 1 / (n - 1) AS z FROM (SELECT k, RANK() OVER (ORDER BY i) AS n FROM t) WHERE n < 3
"""
OF_SUMS = """
sum(l) does not fit BIGINT for k = a. sum(CAST( | SELECT k, sum(l) AS z FROM t GROUP BY k
sum(l) does not fit BIGINT for k = a. sum(CAST( | SELECT k FROM t GROUP BY k HAVING sum(l) > 1
sum(t.l) does not fit BIGINT for upper(t.k) = A. sum(CAST( | \
SELECT upper(t.k) AS k, sum(t.l) AS z FROM u JOIN t ON u.k = t.k GROUP BY upper(t.k)
"""


def told(sql: str, rows: dict[str, pa.RecordBatch] = ROWS, key: str = "k") -> str:
    """What is said of the first row at fault."""
    specs = [spec(name, batch.schema) for name, batch in rows.items()]
    plan = local_plan(sql, key, *specs)
    world = DataflowWorld(plan, {table.name: table for table in specs}, Evaluator(), Random(1), moves_odds=0)
    try:
        world.run_epoch(rows)
        world.scan()
    except RowError as error:
        return str(error)
    raise AssertionError("no row is at fault")


def cases(lines: str) -> list[list[str]]:
    return [line.split(" | ") for line in lines.strip().splitlines()]


@pytest.mark.parametrize(("what", "sql"), cases(OF_ONE_ROW))
def test_a_row_of_a_table(what: str, sql: str) -> None:
    message = told(sql)
    assert message.startswith(f"table 't': {what}")
    assert " in the row (k = a, i = " in message
    assert message.endswith(f"). {GUARD}, or have such rows set aside: app.table(..., on_bad_row='set_aside')")


def test_a_row_is_named_whatever_its_neighbours_hold() -> None:
    rows = {"t": awkward().combine_chunks().to_batches()[0]}
    message = told("SELECT id, 1 / v AS z FROM t", {"t": rows["t"].slice(0, 1)}, "id")
    assert "column z: Division by zero in the row (id = 0, v = 0, y = 127, " in message
    assert r"k = a\xffb, d = +10000-01-01, n = +10000-01-01 00:00:00.000001, " in message
    assert message.isprintable()
    for row, sql, what in (
        (0, "SELECT id, upper(k) AS z FROM t", "the text in k is no UTF-8"),
        (0, "SELECT id, CAST(k AS INT) AS z FROM t", "the text in k is no UTF-8"),
        (3, "SELECT id, year(n) AS z FROM t", "the TIMESTAMP_NTZ in n is too far to compute with"),
    ):
        message = told(sql, {"t": rows["t"].slice(row, 1)}, "id")
        assert f"column z: {what} in the row (id = {row}, " in message


@pytest.mark.parametrize(("what", "sql"), cases(OF_SEVERAL))
def test_rows_that_were_brought_together(what: str, sql: str) -> None:
    assert re.sub("^table '[tu]': ", "", told(sql)) == f"{what}. {GUARD}"


@pytest.mark.parametrize(("what", "sql"), cases(OF_SUMS))
def test_a_sum_that_does_not_fit(what: str, sql: str) -> None:
    assert what in told(sql)
