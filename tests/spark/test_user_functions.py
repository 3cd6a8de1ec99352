"""Functions of users on Spark: a view that calls them is what Spark gives with the same functions registered."""

from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.functions import expr, udf
from pyspark.sql.pandas import functions as by_pandas
from pyspark.sql.pandas.functions import pandas_udf

from upriver.app import App
from upriver.errors import DeclarationError, RowError, UnsupportedSql
from upriver.lake.control import find_control
from upriver.lake.lake import Lake
from upriver.spark.frames import differing_rows

pytestmark = pytest.mark.spark

SQL = "SELECT grade(v) AS g, count(*) AS n, max(loud(s)) AS most FROM t WHERE longer(v) > 2 GROUP BY grade(v)"
WAIT_S = 120.0
of_arrow: Any = getattr(by_pandas, "arrow_udf", None)  # since Spark 4.1
of_pandas: Any = pandas_udf  # its types do not know a call by a function and a type


def grade(v: int | None) -> str | None:
    return None if v is None else "abc"[v % 3]


async def later(v: int | None) -> str:
    return "x"


def longer(v: pd.Series) -> pd.Series:
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


@pytest.mark.smoke
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
        ("f", {"function": later}, "function 'f': it makes a coroutine, and its code would not run"),
        ("abs", {}, "means something in Spark's SQL already"),
        ("count", {}, "means something in Spark's SQL already"),
        ("cast", {}, "means something in Spark's SQL already"),
        ("a b", {}, "letters, digits and _ only"),
        ("f", {"deterministic": False}, "deterministic=True"),
        ("f", {"arguments": ""}, "it needs an argument"),
        ("f", {"arguments": "a INT, b INT"}, "and is called with (a, b)"),
        ("f", {"returns": "NO TYPE"}, "function 'f': returns='NO TYPE' is not one type of Spark, such as 'DOUBLE'"),
        ("f", {"returns": "INTEGR"}, "function 'f': returns='INTEGR' is not one type of Spark, such as 'DOUBLE'"),
        ("f", {"returns": "INT, b INT"}, "is not one type of Spark"),
        ("f", {"returns": "MAP<INT, INT>"}, "does not take or give"),
        ("f", {"form": "key"}, "form is one of 'row', 'arrow', 'pandas'"),
    ],
)
def test_a_wrong_declaration_is_refused(
    spark: Any, tmp_path: Path, name: str, changes: dict[str, Any], said: str
) -> None:
    app = App(spark, tmp_path / "lake")
    with pytest.raises(DeclarationError) as raised:
        app.function(
            name, **{"function": grade, "returns": "STRING", "arguments": "v INT", "deterministic": True, **changes}
        )
    assert said in str(raised.value)


OF_SESSION = "SELECT grade_of(v) AS g, max(loud_of(s)) AS most FROM t WHERE longer_of(v) > 2 GROUP BY grade_of(v)"


@pytest.mark.smoke
def test_views_call_functions_of_the_session(spark: Any, tmp_path: Path) -> None:
    spark.udf.register("grade_of", grade, "string")
    spark.udf.register("longer_of", of_pandas(longer, "int"))
    spark.udf.register("loud_of", of_arrow(loud, "string") if of_arrow else udf(lambda s: s.upper(), "string"))
    rows = spark.range(60).selectExpr("id", "CAST(id % 7 AS INT) AS v", "concat('x', id) AS s")
    inline = udf(lambda v: "?" if v is None else str(v), "string")
    with App(spark, tmp_path / "lake", workers=1, vnodes=4, ingest_tasks=1) as app:
        t = app.table("t", rows, key="id")
        app.view("grades", OF_SESSION, key="g")
        app.view("texts", t.select("id", inline("v").alias("text"), expr("grade_of(v)").alias("g")), key="id")
        app.view("of_texts", "SELECT g, count(text) AS n FROM texts GROUP BY g", key="g")
        app.start(wait=True, timeout=WAIT_S)
        rows.createOrReplaceTempView("t")
        assert differing_rows(app.read("grades"), spark.sql(OF_SESSION)) == 0
        assert app.lookup("texts", [5]).to_pylist() == [{"id": 5, "text": "5", "g": "c"}]
        assert sum(row["n"] for row in app.lookup("of_texts", ["a", "b", "c"]).to_pylist()) == 60
        spark.udf.register("grade_of", lambda v: "same", "string")
        app.view("later", "SELECT id, grade_of(v) AS g FROM t", key="id")
        app.wait(WAIT_S)
        assert app.lookup("later", [5]).to_pylist() == [{"id": 5, "g": "same"}]
        assert app.lookup("texts", [5]).to_pylist() == [{"id": 5, "text": "5", "g": "c"}]
    spark.catalog.dropTempView("t")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("noise(v)", "column 12: noise(), which gives another answer each time"),
        ("none_of()", "column 12: the function none_of(), of no operands"),
        ("many(v)", "column 12: ARRAY<INT>, which many() takes or gives"),
        ("at_of(now())", "column 12: TIMESTAMP, which at_of() takes or gives"),
        ("long(v)", "column 12: the function long(), larger than a MiB or with broadcast variables"),
        ("total(v)", "column 12: the aggregate total()"),
    ],
)
def test_a_function_of_the_session_that_workers_cannot_call_is_refused(
    spark: Any, tmp_path: Path, call: str, said: str
) -> None:
    text = "x" * 3_000_000

    def total(v: pd.Series) -> float:
        return float(v.sum())

    spark.udf.register("noise", udf(lambda v: v, "int").asNondeterministic())
    spark.udf.register("none_of", lambda: 1, "int")
    spark.udf.register("many", lambda v: [v], "array<int>")
    spark.udf.register("at_of", lambda v: v, "timestamp")
    spark.udf.register("long", lambda v: text[v], "string")
    spark.udf.register("total", of_pandas(total, "double"))
    app = App(spark, tmp_path / "lake")
    app.table("t", spark.createDataFrame([(1, 2)], "id INT, v INT"), key="id")
    with pytest.raises(UnsupportedSql) as raised:
        app.view("v", f"SELECT id, {call} AS x FROM t GROUP BY ALL", key="id")
    assert said in str(raised.value)


def test_a_declared_function_is_not_the_one_of_its_name_in_the_session(spark: Any, tmp_path: Path) -> None:
    spark.udf.register("weight", lambda v: 1000, "int")
    with App(spark, tmp_path / "lake", workers=1, vnodes=4, ingest_tasks=1) as app:
        t = app.table("t", spark.createDataFrame([(1, 2)], "id INT, v INT"), key="id")
        app.function("weight", lambda v: 2 * v, returns="INT", arguments="v INT", deterministic=True)
        app.view("declared", "SELECT id, weight(v) AS w FROM t", key="id")
        app.view("of_session", t.select("id", expr("weight(v)").alias("w")), key="id")
        app.start(wait=True, timeout=WAIT_S)
        assert app.lookup("declared", [1]).to_pylist() == [{"id": 1, "w": 4}]
        assert app.lookup("of_session", [1]).to_pylist() == [{"id": 1, "w": 1000}]
