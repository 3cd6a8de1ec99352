"""Sinks on Spark: the rows that a batch leaves in a table, and the messages that it makes."""

import json
import random
import re
import traceback
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

import pytest
from changes_kit import SCHEMA, Change, Rows, change, merged, random_history
from pyspark.errors import PySparkException

from upriver.errors import ClusterError, DeclarationError
from upriver.sinks import keep_equal, publish_to_kafka
from upriver.spark.merges import rows_by_count, rows_by_last_state, whole_rows
from upriver.spark.sinks import kafka_messages, short_errors

pytestmark = pytest.mark.spark

COLUMNS = ("k", "n")
TABLE = "k string, n long"


def show(spark: Any, changes: list[Change], table: Rows) -> None:
    shuffled = random.Random(1).sample(changes, len(changes))  # the order of a batch's rows does not matter
    spark.createDataFrame(shuffled, SCHEMA).createOrReplaceTempView("changes")
    spark.createDataFrame(list(table.elements()), TABLE).createOrReplaceTempView("kept")


def apply(spark: Any, query: str, table: Rows) -> Rows:
    return merged(table, spark.sql(query).collect())


def test_a_table_with_equal_rows_follows_batch_by_batch(spark: Any) -> None:
    history, states = random_history(7, 24, one_row=False)
    assert any(count > 1 for state in states for count in state.values())
    table = Rows()
    for first, last in ((0, 1), (1, 9), (9, 24)):
        show(spark, [each for version in history[first:last] for each in version], table)
        table = apply(spark, rows_by_count("kept", "changes", ["k"], COLUMNS), table)
        assert table == states[last - 1]
    show(spark, [each for version in history for each in version], Rows())
    assert Rows(map(tuple, spark.sql(whole_rows("changes", COLUMNS)).collect())) == states[-1]


def test_without_a_key_all_rows_are_replaced(spark: Any) -> None:
    show(spark, [change(("b", 1), "insert", 2), change(("a", 1), "delete", 3)], Rows([("a", 1), ("a", 1)]))
    told = [tuple(row) for row in spark.sql(rows_by_count("kept", "changes", [], COLUMNS)).collect()]
    assert Rows(told) == Rows([("delete", None, None), ("insert", "a", 1), ("insert", "b", 1)])


def test_the_last_state_of_each_key_may_be_applied_twice(spark: Any) -> None:
    history, states = random_history(3, 24, one_row=True)
    table = Rows()
    for first, last in ((0, 10), (10, 24)):
        show(spark, [each for version in history[first:last] for each in version], table)
        query = rows_by_last_state("changes", ["k"], COLUMNS)
        table = apply(spark, query, apply(spark, query, table))
        assert table == states[last - 1]


def test_a_set_never_stands_for_a_multiset(spark: Any) -> None:
    in_one_version = [change(("a", 1), "insert", 1), change(("a", 2), "insert", 1)]
    in_two = [change(("a", 1), "insert", 1), change(("a", 1), "insert", 2)]
    for changes in (in_one_version, in_two):
        show(spark, changes, Rows())
        with pytest.raises(PySparkException, match="a key of the view has several rows"):
            spark.sql(rows_by_last_state("changes", ["k"], COLUMNS)).collect()


def test_a_table_that_did_not_equal_the_view_is_found_out(spark: Any) -> None:
    show(spark, [change(("a", 1), "delete", 5)], Rows([("a", 2)]))
    with pytest.raises(PySparkException, match="it did not equal the view where these changes begin"):
        spark.sql(rows_by_count("kept", "changes", ["k"], COLUMNS)).collect()
    with pytest.raises(PySparkException, match="read the changes from the start"):
        spark.sql(whole_rows("changes", COLUMNS)).collect()


def messages(spark: Any, changes: list[Change], **options: Any) -> list[tuple[Any, Any, dict[str, str]]]:
    rows = kafka_messages(spark.createDataFrame(changes, SCHEMA), ["k"], **options).collect()
    texts = [{header["key"]: bytes(header["value"]).decode() for header in row["headers"]} for row in rows]
    values = [None if row["value"] is None else json.loads(row["value"]) for row in rows]
    return [(json.loads(row["key"]), value, text) for row, value, text in zip(rows, values, texts, strict=True)]


def test_messages_have_tombstones_and_the_order_of_versions(spark: Any) -> None:
    changes = [
        change(("a", 2), "delete", 3),
        change(("a", 1), "update_preimage", 2),
        change(("a", 2), "update_postimage", 2),
        change(("a", 1), "insert", 1),
        change((None, None), "insert", 1),
    ]
    told = messages(spark, changes, tombstones=True)
    of_a = [(value and value["n"], text) for key, value, text in told if key == {"k": "a"}]
    assert of_a == [
        (1, {"_change_type": "insert", "_commit_version": "1"}),
        (2, {"_change_type": "update_postimage", "_commit_version": "2"}),
        (None, {"_change_type": "delete", "_commit_version": "3"}),
    ]
    at = "2026-01-01T00:00:00.000000Z"
    null = {"k": None, "n": None, "_change_type": "insert", "_commit_version": 1, "_commit_timestamp": at}
    assert [value for key, value, _ in told if key == {"k": None}] == [null]


def test_messages_of_keys_with_several_rows_have_every_change(spark: Any) -> None:
    changes = [change(("a", 1), "insert", 1), change(("a", 1), "insert", 1), change(("a", 1), "delete", 2)]
    with pytest.raises(PySparkException, match="tombstones=False"):
        messages(spark, changes, tombstones=True)
    told = messages(spark, changes, tombstones=False)
    assert [value["_change_type"] for _, value, _ in told] == ["insert", "insert", "delete"]


def test_messages_say_each_value_exactly_and_one_key_in_one_way(spark: Any) -> None:
    """Whatever zone the session is in: times have microseconds, and keys of maps are texts."""
    times = "at timestamp, wall timestamp_ntz, parts array<struct<at: timestamp>>"
    kinds = f"{times}, number double, by_at map<timestamp, int>, by_bytes map<binary, timestamp_ntz>"
    moments = [datetime(2026, 11, 1, 5, 30, 0, micros, tzinfo=UTC) for micros in (123456, 123457)]
    walls = [moment.replace(tzinfo=None) for moment in moments]
    rows = [
        (at, wall, [(at,)], number, {at: 1}, {b"\xff": wall})
        for at, wall, number in zip(moments * 2, walls * 2, (0.0, 0.0, -0.0, float("nan")), strict=True)
    ]
    changes = [(*row, "insert", version, moments[0]) for version, row in enumerate(rows)]
    schema = f"{kinds}, _change_type string, _commit_version long, _commit_timestamp timestamp"
    key = ["at", "wall", "parts", "number"]
    told = list[list[tuple[str, str]]]()
    for zone in ("America/New_York", "UTC"):
        session = spark.newSession()
        session.conf.set("spark.sql.session.timeZone", zone)
        made = kafka_messages(session.createDataFrame(changes, schema), key, tombstones=False).collect()
        told.append(sorted((row["key"], row["value"]) for row in made))
    assert told[0] == told[1]
    assert len({of_key for of_key, _ in told[0]}) == 3  # 0.0 and -0.0 are one key
    first = {
        "at": "2026-11-01T05:30:00.123456Z",
        "wall": "2026-11-01T05:30:00.123456",
        "parts": [{"at": "2026-11-01T05:30:00.123456Z"}],
        "number": 0.0,
        "by_at": {"2026-11-01T05:30:00.123456Z": 1},
        "by_bytes": {"/w==": "2026-11-01T05:30:00.123456"},
    }
    assert first.items() <= min((json.loads(value) for _, value in told[0]), key=itemgetter("_commit_version")).items()


def test_sinks_refuse_what_they_cannot_do(spark: Any) -> None:
    with pytest.raises(DeclarationError, match="format='orc'"):
        keep_equal("t", "k", format="orc")
    with pytest.raises(DeclarationError, match="existing='maybe'"):
        keep_equal("t", "k", existing="maybe")
    with pytest.raises(DeclarationError, match="give catalog"):
        keep_equal("/data/t", "k", format="iceberg")
    with pytest.raises(DeclarationError, match=r"lack _change_type.*app.changes"):
        keep_equal("t", "k")(spark.range(1), 0)
    rows = spark.createDataFrame([change(("a", 1), "insert", 1)], SCHEMA)
    with pytest.raises(DeclarationError, match="key names 'x'; the view's columns are k, n"):
        publish_to_kafka("localhost:1", "t", "x")(rows, 0)
    with pytest.raises(DeclarationError, match="writer="):
        keep_equal("t", "k")(rows, 0)


def test_an_error_of_java_is_told_in_one_line_and_an_interruption_as_spark_knows_it(spark: Any) -> None:
    """Spark searches the text by a regular expression that overflows the stack of the query's thread on a long one."""
    java = spark.sparkContext._jvm.java
    with pytest.raises(ClusterError, match=r"^batch 3: java\.lang\.NullPointer") as refused, short_errors("batch 3"):
        java.util.Objects.requireNonNull(None, "x" * 10_000)
    java.lang.Thread.currentThread().interrupt()
    with pytest.raises(ClusterError, match=r"^batch 3: the query is stopped") as stopped, short_errors("batch 3"):
        java.lang.Thread.sleep(1)
    as_spark_has_it = "".join(traceback.format_exception(stopped.value))
    assert re.search(
        r"py4j\.protocol\.Py4JJavaError: An error occurred while calling.*InterruptedException", as_spark_has_it
    )
    assert max(len(str(each.value)) for each in (refused, stopped)) < 1100
