"""Window functions give what Spark gives over the same rows, with awkward values, after rows were replaced and deleted.

The order of each window leaves no ties where it matters. The dataflow runs in this process, and keys move.
"""

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from query_kit import same_rows
from rows_kit import rows_of
from state_kit import Row

from simulator.dataflow_world import DataflowWorld
from upriver.engine.expressions import Evaluator
from upriver.plan.plan import DataflowPlan, TableSpec
from upriver.spark.typer import SparkTyper
from upriver.sql.queries import declare_view

pytestmark = pytest.mark.spark

START = datetime(2024, 2, 27, tzinfo=UTC)
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "k": (pa.string(), ["a", "b", "", None]),
    "i": (pa.int32(), [0, 1, 2, -4, 7, None, 2**31 - 40, -(2**31) + 40]),
    "l": (pa.int64(), [0, 5, -(2**40), 2**40, None, 2**53 + 1]),
    "f": (pa.float64(), [0.0, -0.0, 0.5, -2.25, math.nan, math.inf, None, 1e300, -1e300]),
    "g": (pa.float32(), [0.0, 0.5, math.nan, -math.inf, None, 3.0]),
    "p": (pa.decimal128(12, 2), [Decimal("0.01"), Decimal("-9999999999.99"), Decimal("3.33"), None]),
    "s": (pa.string(), ["", "ä", "Z", "z", "\U0001f600", "\uffee", None]),
    "b": (pa.bool_(), [True, False, None]),
    "d": (pa.date32(), [date(2024, 2, 27) + timedelta(days=day) for day in (0, 1, 3, 9, 31)] + [None]),
    "ts": (pa.timestamp("us", "UTC"), [START + timedelta(minutes=m) for m in (0, 4, 5, 61, 1500)] + [None]),
}
SCHEMA = pa.schema(
    [("id", pa.int64()), *((name, type) for name, (type, _) in VALUES.items()), ("n", pa.int64()), ("gone", pa.bool_())]
)
TABLE = TableSpec("t", SCHEMA, ("id",), ("n",), ("id",), '"gone"')
EPOCHS, IDS = 3, 60

W = "PARTITION BY k ORDER BY"
SELECTS = [
    f"""row_number() OVER ({W} i, id) AS a, rank() OVER ({W} f DESC) AS b, dense_rank() OVER ({W} s NULLS LAST) AS c,
    percent_rank() OVER ({W} p) AS d1, cume_dist() OVER ({W} b DESC) AS e, ntile(4) OVER (ORDER BY g, id DESC) AS f1""",
    f"""lag(s) OVER ({W} f, id) AS a, lead(p, 2) OVER ({W} f, id) AS b, lag(i, 3, -7) OVER ({W} f, id) AS c,
    lead(f, -1, 1) OVER ({W} f, id) AS d1, lag(d) IGNORE NULLS OVER ({W} ts DESC, id) AS e,
    lead(s, 2, 'none') IGNORE NULLS OVER ({W} ts DESC, id) AS f1""",
    f"""first_value(s) OVER ({W} g DESC, id ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING) AS a, last_value(g) IGNORE NULLS
    OVER ({W} g DESC, id) AS b, nth_value(p, 2) IGNORE NULLS OVER ({W} g DESC, id ROWS BETWEEN CURRENT ROW AND 3
    FOLLOWING) AS c, first(ts, true) OVER ({W} id) AS d1, nth_value(b, 3) OVER (PARTITION BY k, b ORDER BY id) AS e""",
    f"""sum(i) OVER ({W} f) AS a, avg(i) OVER ({W} s, id ROWS BETWEEN 3 PRECEDING AND 1 FOLLOWING) AS b, sum(l) OVER
    (PARTITION BY b) AS c, count(i) FILTER (WHERE b) OVER ({W} p DESC NULLS LAST) AS d1, avg(p) OVER ({W} id ROWS 2
    PRECEDING) AS e, sum(p) OVER ({W} p, id ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS f1""",
    f"""min(f) OVER ({W} id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS a, max(f) OVER ({W} id ROWS 3 PRECEDING) AS b,
    max(s) OVER ({W} id) AS c, min(s) OVER (PARTITION BY b ORDER BY d) AS d1, max(p) OVER () AS e, min(d) OVER ({W} i)
    AS f1, bool_and(b) OVER ({W} d) AS g1, bool_or(b) OVER ({W} id ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING) AS h""",
    f"""sum(f) FILTER (WHERE abs(f) < 10) OVER ({W} id ROWS 4 PRECEDING) AS a, sum(g) OVER ({W} d) AS b, stddev(i) OVER
    ({W} id ROWS 3 PRECEDING) AS c, var_pop(p) OVER ({W} d) AS d1, avg(f) FILTER (WHERE abs(f) < 10) OVER
    (PARTITION BY k, b) AS e""",
    f"""count(*) OVER ({W} i RANGE BETWEEN 2 PRECEDING AND 5 FOLLOWING) AS a, sum(l) OVER ({W} i DESC RANGE BETWEEN 3
    PRECEDING AND CURRENT ROW) AS b, count(*) OVER (ORDER BY d RANGE BETWEEN INTERVAL '2' DAY PRECEDING AND CURRENT ROW)
    AS c, count(*) OVER ({W} ts DESC NULLS FIRST RANGE BETWEEN INTERVAL '60' MINUTE PRECEDING AND INTERVAL '5' MINUTE
    FOLLOWING) AS d1, max(i) OVER ({W} ts RANGE BETWEEN INTERVAL '1' DAY FOLLOWING AND UNBOUNDED FOLLOWING) AS e,
    sum(i) OVER ({W} i NULLS LAST RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS f1""",
    f"""count(*) OVER ({W} p RANGE BETWEEN 3.32 PRECEDING AND 1 FOLLOWING) AS a, sum(l) OVER ({W} p DESC NULLS LAST
    RANGE BETWEEN 9999999999.99 FOLLOWING AND UNBOUNDED FOLLOWING) AS b, count(*) OVER ({W} f RANGE BETWEEN 2.75D
    PRECEDING AND 0.5D FOLLOWING) AS c, sum(i) OVER ({W} f DESC NULLS FIRST RANGE BETWEEN 1 PRECEDING AND CURRENT
    ROW) AS d1, min(s) OVER ({W} f RANGE BETWEEN 1e300D FOLLOWING AND 2e300D FOLLOWING) AS e""",
    f"""median(i) OVER (PARTITION BY k) AS a, percentile(p, 0.3) OVER ({W} id) AS b, max_by(s, id) OVER ({W} d) AS c,
    min_by(p, id) FILTER (WHERE b) OVER ({W} id ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING) AS d1, collect_list(s) OVER
    ({W} id) AS e, size(collect_set(f) OVER (PARTITION BY k)) AS f1, bit_xor(l) OVER ({W} id) AS g1, bit_and(i) OVER
    (PARTITION BY b) AS h, mode(s, true) OVER (PARTITION BY k) AS m""",
    f"""percentile_approx(i, array(0.1, 0.5)) OVER (PARTITION BY k) AS a, approx_count_distinct(p) OVER ({W} id) AS b,
    regr_count(i, l) OVER ({W} id) AS c, percentile_cont(0.25) WITHIN GROUP (ORDER BY i) OVER (PARTITION BY k) AS d1,
    try_sum(l) OVER ({W} id) AS e, collect_list(d) FILTER (WHERE b) OVER ({W} id ROWS 2 PRECEDING) AS f1,
    round(corr(i, l) FILTER (WHERE abs(i) < 9) OVER (PARTITION BY b), 9) AS g1, bit_or(i) OVER ({W} id ROWS BETWEEN
    2 FOLLOWING AND 3 FOLLOWING) AS h, round(kurtosis(i) FILTER (WHERE abs(i) < 9) OVER (PARTITION BY b), 9) AS m""",
]
QUERIES = [f"SELECT id, {columns} FROM t" for columns in SELECTS] + [
    """SELECT k, b, sum(i) AS a, sum(sum(i)) OVER (PARTITION BY k) AS c, rank() OVER (ORDER BY count(*) DESC, k, b)
    AS d1, avg(count(*)) OVER w AS e, sum(i) * 100 / sum(sum(i)) OVER w AS f1 FROM t WHERE abs(i) < 9 GROUP BY k, b
    WINDOW w AS (PARTITION BY b)""",
    """SELECT id, k, n1 FROM (SELECT id, k, i, avg(i) OVER (PARTITION BY k) AS m, row_number() OVER (PARTITION BY b
    ORDER BY id) AS n1 FROM t) WHERE i > m AND n1 <= 5""",
]


def versions(rng: Random) -> list[pa.RecordBatch]:
    """By epoch: new rows, and from the second on other versions of old ones. Some versions delete."""
    found = []
    for epoch in range(EPOCHS):
        ids = rng.sample(range(IDS), IDS if epoch == 0 else IDS // 3)
        rows = []
        for number, id in enumerate(ids):
            values = [rng.choice(choices) for _, choices in VALUES.values()]
            rows.append((id, *values, epoch * IDS + number, epoch > 0 and rng.random() < 0.3))
        columns = [pa.array(column, type) for column, type in zip(zip(*rows, strict=True), SCHEMA.types, strict=True)]
        found.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    return found


def test_window_functions_give_what_spark_gives(spark: Any) -> None:
    rng = Random(11)
    epochs = versions(rng)
    latest = {row[0]: row for batch in epochs for row in rows_of(batch)}
    current = [row for row in latest.values() if not row[-1]]
    columns = [pa.array(column, type) for column, type in zip(zip(*current, strict=True), SCHEMA.types, strict=True)]
    schema = from_arrow_schema(SCHEMA, prefer_timestamp_ntz=True)
    spark.createDataFrame(pa.table(columns, schema=SCHEMA), schema).createOrReplaceTempView("t")
    tables, evaluator = {"t": TABLE}, Evaluator()
    different = []
    for sql in QUERIES:
        plan = declare_view("v", sql, "id" if " id," in sql else "k", tables, {}, SparkTyper(spark, tables))
        found = maintained(plan, epochs, evaluator)
        if not same_rows(found, [tuple(row) for row in spark.sql(sql).collect()]):
            different.append(sql)
    assert not different


def maintained(plan: DataflowPlan, epochs: list[pa.RecordBatch], evaluator: Evaluator) -> list[Row]:
    world = DataflowWorld(plan, {"t": TABLE}, evaluator, Random(3))
    for batch in epochs:
        world.run_epoch({"t": batch})
    return rows_of(world.scan())
