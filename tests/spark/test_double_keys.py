"""Keys that are doubles, from ingest to lookup: for Spark all zeros are one, and all NaNs, whatever their bits."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from state_kit import plain_rows, plainly

from upriver.app import App

pytestmark = pytest.mark.spark

NANS = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001], np.uint64).view(np.float64)
VALUES = np.array([0.0, -0.0, *NANS, 1.5, -np.inf])
VIEWS = {
    "plain": "SELECT x, id FROM events",
    "groups": "SELECT x, count(*) AS n, min(id) AS least FROM events GROUP BY x",
    "floats": "SELECT CAST(f AS DOUBLE) AS x, count(*) AS n FROM events GROUP BY CAST(f AS DOUBLE)",
    "regrouped": "SELECT x, sum(n) AS n FROM (SELECT x, f, count(*) AS n FROM events GROUP BY x, f) GROUP BY x",
    "distinct_rows": "SELECT DISTINCT x, f FROM events",
    "joined": "SELECT e.x, e.id, o.id AS other FROM events e JOIN others o ON e.x = o.f",
    "outer_joined": "SELECT x, e.id, o.id AS other FROM events e FULL JOIN others o USING (x)",
    "without": "SELECT x, f FROM others EXCEPT ALL SELECT x, f FROM events",
    "current": "SELECT x, id FROM versions",
}
VERSIONS = "(SELECT *, row_number() OVER (PARTITION BY x ORDER BY id DESC) AS nth FROM events)"
CURRENT = f"SELECT x, id FROM {VERSIONS} WHERE nth = 1"


def rows_of(seed: int, count: int = 60) -> pa.Table:
    draw = np.random.default_rng(seed)
    places, others, nulls = (draw.integers(0, len(VALUES), count) for _ in range(3))
    with np.errstate(invalid="ignore"):
        floats = VALUES[others].astype(np.float32)
    columns = [pa.array(np.arange(count)), pa.array(VALUES[places], mask=nulls == 0), pa.array(floats)]
    return pa.table(columns, ["id", "x", "f"])


@pytest.fixture(scope="module")
def app(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    path: Path = tmp_path_factory.mktemp("doubles")
    events, others = (spark.createDataFrame(rows_of(seed)) for seed in (1, 2))
    events.createOrReplaceTempView("events")
    others.createOrReplaceTempView("others")
    app = App(spark, str(path), workers=2, vnodes=16)
    app.table("events", events, key="x")
    app.table("others", others, key="id")
    app.table("versions", events, primary_key="x", order_by="id")
    for name, sql in VIEWS.items():
        app.view(name, sql, key="x")
    with app:
        app.start()
        app.wait()
        yield app


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_equals_spark_sql_and_so_does_each_lookup(spark: Any, app: App, name: str) -> None:
    wanted = Counter(plain_rows(spark.sql(CURRENT if name == "current" else VIEWS[name]).toArrow()))
    assert Counter(plain_rows(app.read(name).toArrow())) == wanted
    for value in [None, *VALUES.tolist()]:
        found = app.lookup(name, pa.table({"x": pa.array([value], pa.float64())}))
        assert Counter(plain_rows(found)) == Counter(
            {row: times for row, times in wanted.items() if row[0] == plainly(value)}
        ), value


def test_a_key_in_several_spellings_is_asked_for_once(app: App) -> None:
    found = app.lookup("groups", VALUES.tolist())
    assert found.num_rows == len({plainly(value) for value in VALUES.tolist()})
