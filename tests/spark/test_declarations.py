"""What is declared wrongly is refused by its name, when it is declared, and in words of ours."""

from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import functions as F

from upriver.app import App
from upriver.arguments import names, text
from upriver.client.client import connect
from upriver.errors import DeclarationError, UnknownView, UpriverError, UserError
from upriver.net.remote import TOKEN_CHARS_MAX

COLUMN = "give the name of a column, or a list of names"
CONNECT = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
"""As it is known without the packages that a real one needs."""
FRAMES: list[tuple[Any, str]] = [
    (pd.DataFrame({"k": [1]}), "DataFrame: spark.createDataFrame(rows)"),
    (pa.table({"k": [1]}), "pyarrow.lib.Table: spark.createDataFrame(rows)"),
    ([(1, 2)], "list: spark.createDataFrame(rows, schema)"),
    ("SELECT 1", "str"),
]
APPS: list[tuple[dict[str, Any], str]] = [
    ({"workers": "2"}, "workers='2': give a whole number, not a str"),
    ({"workers": 2.0}, "workers=2.0: give a whole number, not a float"),
    ({"workers": True}, "workers=True: give a whole number, not a bool"),
    ({"workers": [2]}, "workers=[2]: give a whole number, not a list"),
    ({"vnodes": "256"}, "vnodes='256': give a whole number, not a str"),
    ({"vnodes": 256.0}, "vnodes=256.0: give a whole number, not a float"),
    ({"ingest_tasks": "x"}, "ingest_tasks='x': give a whole number, not a str"),
    ({"ingest_tasks": 1.5}, "ingest_tasks=1.5: give a whole number, not a float"),
    ({"root": None}, "root=None: give a text"),
    ({"root": ""}, "root='': give a text that is not empty"),
    ({"listen": 5}, 'listen=5: give "host:port"'),
    ({"listen": "127.0.0.1"}, "listen='127.0.0.1': give \"host:port\""),
    ({"tokens": "secret"}, "tokens: give upriver.Tokens(...), not a str"),
    ({"wokers": 2}, "wokers=: App has no such option; did you mean workers=?"),
    ({"spark": "local"}, "spark='local': give a pyspark.sql.SparkSession, not a str"),
    ({"spark": CONNECT}, "spark is a session of Spark Connect, which cannot run an app: "),
]
TABLES: list[tuple[dict[str, Any], str]] = [
    ({"name": None}, "table None: a name is letters (a to z)"),
    ({"rows": None}, "table 't': give a Spark DataFrame, not a NoneType"),
    ({"rows": None, "trigger": {"once": True}}, "table 't': give a Spark DataFrame, not a NoneType"),
    ({"key": None}, f"table 't': key=None: {COLUMN}"),
    ({"key": 5}, f"table 't': key=5: {COLUMN}"),
    ({"key": ["k", 5]}, f"table 't': key=['k', 5]: {COLUMN}"),
    ({"order_by": {"k": 1}}, f"table 't': order_by={{'k': 1}}: {COLUMN}"),
    ({"name": "t" * 200}, "table 'tttttttttttttttttttt'...: a name has at most 128 characters, not 200"),
    ({"primary_key": "k", "order_by": "v", "deletes": 5}, "table 't': deletes=5: give a text"),
]
VIEWS: list[tuple[dict[str, Any], str]] = [
    ({"sql": None}, "view 'v': sql=None: give a text"),
    ({"partial": "no"}, "view 'v': partial='no': give True or False, not a str"),
    ({"partial": None}, "view 'v': partial=None: give True or False, not a NoneType"),
    ({"sql": "SELECT k FROM s"}, "view 'v': line 1, column 15: no table or view 's' is declared; there are: t, u"),
    ({"sql": "SELECT k\nFROM u JOIN a.t USING (k)"}, "view 'v': line 2, column 13: no table or view 'a.t' is declared"),
    (
        {"sql": "SELECT k FROM parquet.`/etc/hostname`"},
        "view 'v': line 1, column 15: no table or view 'parquet./etc/ho",
    ),
    ({"timeout": "soon"}, "timeout='soon': give a number of seconds, not a str"),
    ({"key": None}, f"view 'v': key=None: {COLUMN}"),
    ({"key": ["k", None]}, f"view 'v': key=['k', None]: {COLUMN}"),
]
ADDRESSES: list[Any] = [5, "127.0.0.1:99999", "a b:1", "::1:1", "127.0.0.1:٣", "%zz:80", "nowhere", "http://x:1"]


def said(error: pytest.ExceptionInfo[UpriverError]) -> str:
    return str(error.value)


@pytest.mark.parametrize("given", [["a", "b"], ("a", "b"), {"a": 0, "b": 0}.keys()])
def test_names_in_any_collection(given: Any) -> None:
    assert names("key", given) == ("a", "b")
    assert names("key", "ab") == ("ab",)
    assert text("bind", "host") == "host"


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_that_is_none(address: Any) -> None:
    with pytest.raises(UserError, match="is not of the form host:port"):
        connect(address, "token")


@pytest.mark.parametrize("token", [5, "", " x", "ü", "x" * (TOKEN_CHARS_MAX + 1)])
def test_a_token_that_is_none(token: Any) -> None:
    with pytest.raises(UserError, match="a token is 1 to"):
        connect("127.0.0.1:1", token)


@pytest.mark.spark
@pytest.mark.parametrize(("wrong", "words"), APPS)
def test_an_app(spark: Any, tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        App(**{"spark": spark, "root": tmp_path, **wrong})
    assert said(error).startswith(words)


@pytest.mark.spark
@pytest.mark.parametrize(("wrong", "words"), TABLES)
def test_a_table(spark: Any, tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
    rows = spark.sql("SELECT 1 AS k, 2 AS v")
    with pytest.raises(DeclarationError) as error:
        App(spark, tmp_path).table(**{"name": "t", "rows": rows, "key": "k", **wrong})
    assert said(error).startswith(words)


@pytest.mark.spark
@pytest.mark.parametrize(("wrong", "words"), VIEWS)
def test_a_view(spark: Any, tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
    app = App(spark, tmp_path)
    app.table("t", spark.sql("SELECT 1 AS k, 2 AS v"), key="k")
    app.view("u", "SELECT k FROM t", key="k")
    with pytest.raises(DeclarationError) as error:
        app.view(**{"name": "v", "sql": "SELECT k, v FROM t", "key": "k", **wrong})
    assert said(error).startswith(words)
    with pytest.raises(UnknownView):
        app.drop_view(["v"])  # type: ignore[arg-type]


@pytest.mark.spark
def test_what_spark_says_is_told_in_one_line(spark: Any, tmp_path: Path) -> None:
    app = App(spark, tmp_path)
    app.table("t", spark.sql("SELECT 1 AS k, 2 AS v"), key="k")
    for sql in ("SELECT k, v, sum(v) AS s FROM t GROUP BY k", "SELECT * FROM read_csv('/etc/hostname')"):
        with pytest.raises(DeclarationError) as error:
            app.view("v", sql, key="k")
        assert len(said(error).splitlines()) == 1
    with pytest.raises(DeclarationError, match=r"^table 's': column 'i' is interval year: .*CAST it to STRING, or l"):
        app.table("s", spark.sql("SELECT 1 AS k, INTERVAL 1 YEAR AS i"), key="k")
    with pytest.raises(DeclarationError, match=r"^stateful map 'm': per=\['row'\]; it is one of"):
        app.stateful_map("m", "t", "k", print, "n int", per=["row"])  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match=r"^no table \['t'\]; there are: t$"):
        app.rejected(["t"])  # type: ignore[arg-type]


@pytest.mark.spark
def test_what_only_spark_can_say(spark: Any, tmp_path: Path) -> None:
    for trigger, words in (
        ({"bogus": 1}, "bogus"),
        ({"every": "1 second"}, "give one of {'processingTime': '1 second'}, {'availableNow': True} or {'once': True}"),
        ({"processingTime": "1 second", "once": True}, "give one of"),
        ({"continuous": "1 second"}, "give one of"),
        ({"availableNow": False}, "Give one of"),
        ({"processingTime": "nonsense"}, "nonsense"),
    ):
        (tmp_path / "files").mkdir(exist_ok=True)
        rows = spark.readStream.schema("k int").parquet(str(tmp_path / "files"))
        with pytest.raises(DeclarationError) as error:
            App(spark, tmp_path / "lake").table("t", rows, key="k", trigger=trigger)
        assert said(error).startswith("table 't': trigger=")
        assert words in said(error)
    for refused in (rows.groupBy("k").count(), rows.orderBy("k"), rows.dropDuplicates(["k"]).groupBy("k").count()):
        with pytest.raises(DeclarationError, match=r"^table 't': Spark cannot append the rows [^\n]* in a view's SQL$"):
            App(spark, tmp_path / "lake").table("t", refused, key="k")
    App(spark, tmp_path / "lake").table("t", rows.dropDuplicates(["k"]), key="k", trigger={"availableNow": True})
    with pytest.raises(DeclarationError, match="on_changed_rows is 'refuse' or 'take_in', not 'ignore'"):
        App(spark, tmp_path / "lake").table("t", rows, key="k", on_changed_rows="ignore")
    with pytest.raises(DeclarationError, match="trigger='soon': give a dict"):
        App(spark, tmp_path / "lake").table("s", rows, "k", trigger="soon")  # type: ignore[arg-type]


@pytest.mark.spark
def test_a_watermark_that_would_have_no_effect_is_refused_wherever_it_is(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    rows = spark.readStream.schema("k int, at timestamp").parquet(str(tmp_path / "files"))
    late, names = rows.withWatermark("at", "10 minutes"), spark.sql("SELECT 1 AS k, 'one' AS name")
    app = App(spark, tmp_path / "lake")
    words = r"^table 't': withWatermark\('at', '10 minutes'\) has no effect on a table, .* retain= of app.table"
    for ignored in (
        late,
        late.select("k"),
        late.where("k > 1").withColumn("n", F.col("k") + 1),
        rows.union(late),
        late.join(names, "k"),
        rows.dropDuplicates(["k"]).withWatermark("at", "10 minutes"),
    ):
        with pytest.raises(DeclarationError, match=words):
            app.table("t", ignored, key="k")
    for number, used in enumerate(
        (
            late.dropDuplicatesWithinWatermark(["k"]),
            late.select("k", "at").dropDuplicates(["k", "at"]),
            late.groupBy(F.window("at", "1 hour").alias("w")).count().selectExpr("w.start AS k"),
            late.join(
                rows.selectExpr("k AS j", "at AS then").withWatermark("then", "0 seconds"),
                F.expr("k = j AND at = then"),
            ),
        )
    ):
        app.table(f"used_{number}", used, key="k")
    with pytest.raises(DeclarationError, match="on_changed_rows='take_in' is for a DataFrame that is not streaming"):
        app.table("t", rows, key="k", on_changed_rows="take_in")


@pytest.mark.spark
@pytest.mark.parametrize(("rows", "words"), FRAMES)
def test_rows_of_other_packages_are_named_with_the_way_to_spark_s(
    spark: Any, tmp_path: Path, rows: Any, words: str
) -> None:
    with pytest.raises(DeclarationError) as error:
        App(spark, tmp_path).table("t", rows, key="k")
    assert said(error).startswith("table 't': give a Spark DataFrame, not a ")
    assert said(error).endswith(words)
    package = type(rows).__module__.partition(".")[0]
    assert package == "builtins" or f"not a {package}." in said(error)


@pytest.mark.spark
def test_a_mistake_is_told_once_and_not_logged_beside(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(spark, tmp_path)
    app.table("t", spark.sql("SELECT 1 AS k, 2 AS v"), key="k")
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before = list(logger.filters), logger.level
    logger.addHandler(caplog.handler)
    try:
        with pytest.raises(DeclarationError, match="`kk` cannot be resolved"):
            app.view("v", "SELECT kk FROM t", key="kk")
        assert caplog.records == []
        with pytest.raises(PySparkException):
            spark.sql("SELECT kk FROM nowhere")  # the user's own queries are logged as before
        assert (logger.filters, logger.level) == before
        assert len(caplog.records) == 1
    finally:
        logger.removeHandler(caplog.handler)


@pytest.mark.spark
def test_what_a_running_app_refuses(spark: Any, tmp_path: Path) -> None:
    rows = spark.sql("SELECT 1 AS k, 2 AS v")
    app = App(spark, tmp_path, workers=1, vnodes=16)
    app.table("t", rows, key="k")
    app.view("v", "SELECT k, v FROM t", key="k")
    with app.start(wait=True):
        with pytest.raises(DeclarationError, match=r"^the app is running already: call stop\(\) before it is started"):
            app.start()
        with pytest.raises(DeclarationError, match=r"^table 'v': there is a table or a view of that name already"):
            app.table("v", rows, key="k")
        with pytest.raises(DeclarationError, match=r"^table 't' is read by view 'v': drop what reads it first"):
            app.drop_table("t")
        with pytest.raises(DeclarationError, match=r"^moves: there is no worker 77: give one of 0, or ask for more w"):
            app.rescale(moves={1: 77})
        with pytest.raises(DeclarationError, match=r"^moves: there is no vnode 16: give vnodes from 0 to 15"):
            app.rescale(moves={16: 0})
        with pytest.raises(DeclarationError, match="allow_warming='no': give True or False, not a str"):
            app.lookup("v", [1], allow_warming="no")  # type: ignore[arg-type]
        with pytest.raises(DeclarationError, match="maxage=5: a lookup has no such limit; it has at_least, max_age, a"):
            app.lookup("v", [1], maxage=5)  # type: ignore[call-arg]
        with pytest.raises(DeclarationError, match=r"^no table \['t'\]; there are: t$"):
            app.restart_source(["t"])  # type: ignore[arg-type]
        status = app.status()
        assert status["rescales_waiting"] == 0
        assert {*status["views"]["v"]} >= {"cached_keys", "filling_keys", "state_rows", "waiting_rows", "used_bytes"}
        documented = (Path(__file__).parents[2] / "docs" / "guide" / "operations.md").read_text()
        told = {*status, *status["workers"][0], *status["views"]["v"], *status["checkpoint"], *status["standbys"]}
        assert [name for name in sorted(told) if f"`{name}`" not in documented] == []


WRONG_MAPS: dict[str, tuple[dict[str, Any], str]] = {
    "no source": ({"source": ""}, "give either source=... with key=..., or sources="),
    "both": ({"sources": {"t": "k"}}, "give either source=... with key=..., or sources="),
    "no sources": ({"source": "", "sources": {}}, "give either source=... with key=..., or sources="),
    "a list": ({"source": "", "sources": ["t"]}, "give either source=... with key=..., or sources="),
    "some names": ({"source": ["t", "u"]}, "source=['t', 'u']: give one name; several go into sources="),
    "no function": ({"func": None}, "it needs a function and the columns of its rows"),
    "unknown": ({"source": "x"}, "there is no table, view or stateful map 'x'; there are: t, odd, u, other"),
    "itself": ({"source": "m"}, "there is no table, view or stateful map 'm'"),
    "types of the key": ({"source": "", "sources": {"t": "k", "u": "s"}}, "its key is t.k, INT, and u.s, STRING"),
    "columns of the key": (
        {"source": "", "sources": {"t": ["k", "v"], "u": "k"}},
        "its key has 2 columns of 't', and 1",
    ),
    "one name": ({"source": "", "sources": {"t": "k", "other": "k"}}, "t.v is INT, and other.v is STRING"),
    "taken name": ({"source": "", "sources": {"odd": "source"}}, "the table 'odd' has a column 'source'"),
    "keep": ({"keep": -1}, "keep=-1: at least 0 is needed"),
    "keep by no column": ({"keep": "1 day"}, """keep='1 day' names no column; give one, such as keep=("at","""),
    "keep for no time": ({"keep": ("n", None)}, "keep=('n', None) has no interval"),
    "keep by what": ({"keep": ("z", 3)}, "keep=('z', 3) names 'z'; its columns are k, n"),
    "no changes": ({"keep": 0, "changes": True}, "with keep=0 it has no rows, and so no changes"),
    "bad rows": ({"on_bad_row": "drop"}, "on_bad_row='drop'; it is 'fail' or 'set_aside'"),
    "version": ({"version": 2.5}, "version=2.5: give a text or a whole number"),
    "order": ({"source": "u", "order_by": "s"}, "order_by is of one table without a primary key"),
    "reserved": ({"schema": "`upriver epoch` INT"}, "schema: the column name 'upriver epoch' is reserved"),
}


@pytest.mark.spark
@pytest.mark.parametrize("wrong", WRONG_MAPS)
def test_a_stateful_map(spark: Any, tmp_path: Path, wrong: str) -> None:
    changes, words = WRONG_MAPS[wrong]
    app = App(spark, tmp_path)
    app.table("t", spark.sql("SELECT 1 AS k, 2 AS v"), key="k")
    app.table("odd", spark.sql("SELECT 'a' AS source"), key="source")
    app.view("u", "SELECT k, string(v) AS s FROM t", key="k")
    app.view("other", "SELECT k, string(v) AS v FROM t", key="k")
    fine = {"source": "t", "key": "k", "func": lambda key, row, state: (None, state), "schema": "n INT"}
    with pytest.raises(DeclarationError) as error:
        app.stateful_map("m", **{**fine, **changes})
    assert said(error).startswith(f"stateful map 'm': {words}")
    with pytest.raises(UnknownView):
        app.drop_view("m")
