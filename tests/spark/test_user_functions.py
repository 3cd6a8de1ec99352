"""Functions of users on Spark: a view that calls them is what Spark gives with the same functions registered."""

from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.functions import udf

from upriver.app import App
from upriver.errors import DeclarationError, RowError
from upriver.lake.control import find_control
from upriver.lake.lake import Lake
from upriver.spark.frames import differing_rows

pytestmark = pytest.mark.spark

SQL = "SELECT grade(v) AS g, count(*) AS n, max(loud(s)) AS most FROM t WHERE longer(v) > 2 GROUP BY grade(v)"
WAIT_S = 120.0


def grade(v: int | None) -> str | None:
    return None if v is None else "abc"[v % 3]


def longer(v: "pd.Series[int]") -> "pd.Series[int]":
    return v + 1


def loud(s: pa.Array) -> pa.Array:
    return pc.utf8_upper(s)


def declared(spark: Any, root: Path, graded: Any) -> App:
    app = App(spark, root, workers=1, vnodes=4, ingest_tasks=1)
    app.table("t", spark.range(60).selectExpr("id", "CAST(id % 7 AS INT) AS v", "concat('x', id) AS s"), key="id")
    app.function("grade", graded, returns="STRING", arguments="v INT", deterministic=True)
    app.function("longer", longer, returns="INT", arguments="v INT", form="pandas", deterministic=True)
    app.function("loud", loud, returns="STRING", arguments="s STRING", form="arrow", deterministic=True)
    app.view("grades", SQL, key="g", partial=False)
    app.view("some", "SELECT id, grade(v) AS g FROM t", key="id")
    return app


def test_views_call_functions_and_a_changed_function_makes_another_view(spark: Any, tmp_path: Path) -> None:
    root, by_spark = tmp_path / "lake", spark.newSession()
    by_spark.udf.register("grade", udf(grade, "string", useArrow=False))
    by_spark.sql("SELECT id, CAST(id % 7 AS INT) AS v, concat('x', id) AS s FROM range(60)").createOrReplaceTempView(
        "t"
    )
    wanted = by_spark.sql(SQL.replace("loud", "upper").replace("longer(v)", "v + 1")).toArrow().to_pylist()
    with declared(spark, root, grade) as app:
        app.start(wait=True, timeout=WAIT_S)
        found = app.lookup("grades", ["a", "b", "c"]).to_pylist()
        assert sorted(map(str, found)) == sorted(map(str, wanted))
        assert app.lookup("some", [5]).to_pylist() == [{"id": 5, "g": "c"}]
        assert (
            differing_rows(
                app.read("some"), spark.range(60).selectExpr("id", "substring('abcabca', id % 7 + 1, 1) AS g")
            )
            == 0
        )
        app.function("failing", lambda v: 1 // v, returns="BIGINT", arguments="v BIGINT", deterministic=True)
        app.view("broken", "SELECT id, failing(id) AS f FROM t", key="id", partial=False)
        app.wait(WAIT_S)
        with pytest.raises(RowError, match=r"failing\(\) raised ZeroDivisionError.*id = 0"):
            app.lookup("broken", [1])
        app.drop_view("broken")
    with declared(spark, root, lambda v: None if v is None else "xyz"[v % 3]) as app:
        app.start(wait=True, timeout=WAIT_S)
        assert {row["g"] for row in app.read("grades").toArrow().to_pylist()} == {"x", "y", "z"}
    record = find_control(Lake(str(root))).record
    assert record is not None
    assert {view.name: view.ended for view in record.gone if view.ended == "replaced"} == {
        "grades": "replaced",
        "some": "replaced",
    }


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("abs", {}, "means something in Spark's SQL already"),
        ("count", {}, "means something in Spark's SQL already"),
        ("case", {}, "means something in Spark's SQL already"),
        ("a b", {}, "letters, digits and _ only"),
        ("f", {"deterministic": False}, "deterministic=True"),
        ("f", {"arguments": ""}, "it needs an argument"),
        ("f", {"arguments": "a INT, b INT"}, "and is called with (a, b)"),
        ("f", {"returns": "NO TYPE"}, "is no list of columns"),
        ("f", {"returns": "MAP<INT, INT>"}, "does not take or give"),
        ("f", {"form": "key"}, "form is one of 'row', 'arrow', 'pandas'"),
    ],
)
def test_a_wrong_declaration_is_refused(
    spark: Any, tmp_path: Path, name: str, changes: dict[str, Any], said: str
) -> None:
    app = App(spark, tmp_path / "lake")
    with pytest.raises(DeclarationError) as raised:
        app.function(name, grade, **{"returns": "STRING", "arguments": "v INT", "deterministic": True, **changes})
    assert said in str(raised.value)
