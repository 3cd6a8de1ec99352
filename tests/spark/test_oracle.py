"""The oracle: over rows that Hypothesis makes, in batches that it cuts, every view equals Spark SQL."""

import datetime
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from soak import examples

from upriver.app import App
from upriver.spark.frames import differing_rows

pytestmark = pytest.mark.spark

SCHEMA = "k string, i int, l long, d double, m decimal(12,2), day date, at timestamp_ntz, b boolean"
KEYS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "longer than eight", "ключ", "日本"]))
# Halves add up exactly in any order, so that sums can be compared bit for bit.
HALVES = st.integers(-1000, 1000).map(lambda n: n / 2)
ROW = st.tuples(
    KEYS,
    st.one_of(st.none(), st.integers(-5, 5)),
    st.one_of(st.none(), st.integers(-(2**40), 2**40)),
    st.one_of(st.none(), HALVES),
    st.one_of(st.none(), st.integers(-10_000, 10_000).map(lambda n: Decimal(n) / 100)),
    st.one_of(st.none(), st.dates(datetime.date(2020, 1, 1), datetime.date(2020, 3, 1))),
    st.one_of(st.none(), st.datetimes(datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 2))),
    st.one_of(st.none(), st.booleans()),
)
BATCHES = st.lists(st.lists(ROW, max_size=12), min_size=1, max_size=3)

VIEWS = {
    "numbers": (
        "SELECT k, count(*) AS n, count(i) AS some, sum(i) AS si, sum(l) AS sl, sum(d) AS sd, sum(m) AS sm, "
        "avg(i) AS ai, avg(d) AS ad, avg(m) AS am FROM t GROUP BY k",
        ["k"],
    ),
    "extremes": (
        "SELECT k, min(i) AS mi, max(l) AS ml, min(d) AS md, max(m) AS mm, min(day) AS first, max(at) AS last, "
        "max(b) AS any FROM t GROUP BY k",
        ["k"],
    ),
    "pairs": ("SELECT k, i, count(*) AS n, max(k) AS same FROM t WHERE l IS NOT NULL GROUP BY k, i", ["k", "i"]),
    "finer": ("SELECT k, day, b, sum(l) AS total FROM t GROUP BY k, day, b", ["k"]),
    "by_day": ("SELECT day, count(*) AS n, min(at) AS first FROM t GROUP BY day", ["day"]),
    "by_flag": ("SELECT b, sum(m) AS total FROM t GROUP BY b HAVING count(*) > 1", ["b"]),
    "derived": (
        "SELECT k, sum(CASE WHEN i > 0 THEN i ELSE 0 END) AS up, max(l) - min(l) AS spread, "
        "sum(i) + count(*) AS mixed FROM t WHERE k <> '' OR k IS NULL GROUP BY k",
        ["k"],
    ),
    "rows": ("SELECT k, i, upper(k) AS loud, d * 2 AS twice FROM t WHERE i IS NULL OR i >= 0", ["k"]),
}


@settings(max_examples=examples(2), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=BATCHES)
def test_every_view_equals_spark_sql(spark: Any, batches: list[list[tuple[Any, ...]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "rows"
        for rows in batches:
            spark.createDataFrame(rows, SCHEMA).coalesce(1).write.mode("append").parquet(str(source))
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
        with App(spark, f"{directory}/lake", workers=2, vnodes=16) as app:
            app.table("t", stream, key="k", order_by="at")
            for name, (sql, key) in VIEWS.items():
                app.view(name, sql, key=key, partial=False)
            app.start()
            app.wait()
            spark.read.schema(SCHEMA).parquet(str(source)).createOrReplaceTempView("t")
            different = {name: differing_rows(app.read(name), spark.sql(sql)) for name, (sql, _) in VIEWS.items()}
            assert different == dict.fromkeys(VIEWS, 0)
