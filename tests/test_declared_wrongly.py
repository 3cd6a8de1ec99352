"""What is declared wrongly is refused by its name, when it is declared, and in words of ours."""

from pathlib import Path
from typing import Any

import pytest

from upriver.app import App
from upriver.client import connect
from upriver.errors import DeclarationError, UnknownView, UpriverError, UserError
from upriver.given import names, text
from upriver.shell.remote import TOKEN_CHARS_MAX

COLUMN = "give the name of a column, or a list of names"
APPS: list[tuple[dict[str, Any], str]] = [
    ({"workers": "2"}, "workers='2': give a whole number, not a str"),
    ({"workers": 2.0}, "workers=2.0: give a whole number, not a float"),
    ({"workers": True}, "workers=True: give a whole number, not a bool"),
    ({"workers": None}, "workers=None: give a whole number, not a NoneType"),
    ({"vnodes": "256"}, "vnodes must be a power of two from 1 to 65536, not '256'"),
    ({"vnodes": 256.0}, "vnodes must be a power of two from 1 to 65536, not 256.0"),
    ({"ingest_tasks": "x"}, "ingest_tasks='x': give a whole number, not a str"),
    ({"ingest_tasks": 1.5}, "ingest_tasks=1.5: give a whole number, not a float"),
    ({"root": None}, "root=None: give a text"),
    ({"root": ""}, "root='': give a text that is not empty"),
    ({"bind": 5}, "bind=5: give a text"),
    ({"bind": "127.0.0.1:5555"}, "bind='127.0.0.1:5555': give a host alone, without a port, as in bind='127.0.0.1'"),
    ({"bind": ""}, "bind='': give a text that is not empty"),
    ({"token": ""}, f"a token is 1 to {TOKEN_CHARS_MAX:,} printable ASCII characters"),
    ({"token": 5}, f"a token is 1 to {TOKEN_CHARS_MAX:,} printable ASCII characters"),
    ({"token": "x" * (TOKEN_CHARS_MAX + 1)}, f"a token is 1 to {TOKEN_CHARS_MAX:,} printable ASCII characters"),
    ({"spark": "local"}, "spark='local': give a SparkSession, not a str"),
]
TABLES: list[tuple[dict[str, Any], str]] = [
    ({"name": None}, "table None: a name is letters"),
    ({"rows": None}, "table 't': give a Spark DataFrame, not a NoneType"),
    ({"rows": None, "trigger": {"once": True}}, "table 't': give a Spark DataFrame, not a NoneType"),
    ({"key": None}, f"table 't': key=None: {COLUMN}"),
    ({"key": 5}, f"table 't': key=5: {COLUMN}"),
    ({"key": ["k", 5]}, f"table 't': key=['k', 5]: {COLUMN}"),
    ({"order_by": {"k": 1}}, f"table 't': order_by={{'k': 1}}: {COLUMN}"),
    ({"primary_key": "k", "order_by": "v", "deletes": 5}, "table 't': deletes=5: give a text"),
]
VIEWS: list[tuple[dict[str, Any], str]] = [
    ({"sql": None}, "view 'v': sql=None: give a text"),
    ({"key": None}, f"view 'v': key=None: {COLUMN}"),
    ({"key": ["k", None]}, f"view 'v': key=['k', None]: {COLUMN}"),
]
ADDRESSES: list[Any] = [None, 5, "127.0.0.1:99999", "a b:1", "::1:1", "127.0.0.1:٣", "%zz:80", "nowhere", "http://x:1"]


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


@pytest.mark.parametrize("token", [5, None, "", " x", "ü", "x" * (TOKEN_CHARS_MAX + 1)])
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
    with pytest.raises(DeclarationError) as error:
        app.view(**{"name": "v", "sql": "SELECT k, v FROM t", "key": "k", **wrong})
    assert said(error).startswith(words)
    with pytest.raises(UnknownView):
        app.drop_view(["v"])  # type: ignore[arg-type]


@pytest.mark.spark
def test_what_only_spark_can_say(spark: Any, tmp_path: Path) -> None:
    for trigger, words in ({"bogus": 1}, "bogus"), ({"processingTime": "nonsense"}, "nonsense"):
        app = App(spark, tmp_path / "lake", workers=1)
        (tmp_path / "files").mkdir(exist_ok=True)
        app.table("t", spark.readStream.schema("k int").parquet(str(tmp_path / "files")), key="k", trigger=trigger)
        with pytest.raises(DeclarationError, match=f"table 't': trigger=.*{words}"):
            app.start()
    with pytest.raises(DeclarationError, match="trigger='soon': give a dict"):
        App(spark, tmp_path).table("s", spark.readStream.schema("k int").parquet(str(tmp_path)), "k", trigger="soon")  # type: ignore[arg-type]
