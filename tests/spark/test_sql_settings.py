"""Spark sessions in which SQL means something else, or whose columns do: refused by name, with a way out that works."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from sql_kit import spec

from upriver.app import App
from upriver.errors import DeclarationError, UnsupportedSql
from upriver.spark.analyser import SparkAnalyser
from upriver.spark.schema import arrow_schema
from upriver.spark.session import NEEDED, ZONE, checked_settings
from upriver.sql.views import compile_view
from upriver.zones import zone_info, zone_name

pytestmark = pytest.mark.spark

OTHERWISE = {
    "spark.sql.functionResolution.sessionOrder": "first",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
}
"""Values of settings that are no truths, under which SQL means something else."""
LEGACY = {
    "spark.sql.legacy.setopsPrecedence.enabled": "true",
    "spark.sql.legacy.statisticalAggregate": "true",
    "spark.sql.legacy.literal.pickMinimumPrecision": "false",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "true",
    "spark.sql.legacy.nullInEmptyListBehavior": "true",
    "spark.sql.legacy.sizeOfNull": "false",
    "spark.sql.collation.allowInMapKeys": "true",
}
HARMLESS = {
    "spark.sql.legacy.createHiveTableByDefault": "true",
    "spark.sql.legacy.charVarcharAsString": "true",
    "spark.sql.legacy.sizeOfNull": "true",
    "spark.sql.legacy.setopsPrecedence.enabled": "FALSE",
    "spark.sql.functionsCollation": "UTF8_LCASE",
    "spark.sql.shuffle.partitions": "3",
}
"""Settings that change no query, or that are as they are by default, or that Spark does not know."""
SHORT = (
    "ACT AET AGT ART AST BET BST CAT CNT CST CTT EAT ECT EST HST IET IST JST MIT MST NET NST PLT PNT PRT PST SST VST"
)
ZONES = ["+05:30", "+5:30", "UTC+01:00", "GMT+2", "UT+3", "Z", "-08", "SystemV/PST8", "Europe/Berlin"]
WORDS = "stream values lateral select window left anti on inner union t orders view date user range any"
MOMENTS = (0, 86_400 * 182, 1_719_792_000, 1_735_689_600)
"""Seconds since 1970, in winters and summers."""


def test_each_setting_that_changes_the_meaning_is_refused_with_the_value_that_works(spark: Any) -> None:
    for name, needed in NEEDED.items():
        session = spark.newSession()
        session.conf.set(name, OTHERWISE.get(name) or ("false" if needed == "true" else "true"))
        with pytest.raises(DeclarationError, match=f"has {name} = ") as refused:
            checked_settings(session)
        assert f"spark.conf.set('{name}', '{needed}')" in str(refused.value)
        session.conf.set(name, needed)
        assert checked_settings(session)[name] == needed, "the way out works"


def test_legacy_settings_and_collations_are_refused_unless_they_change_no_query(spark: Any) -> None:
    for name, value in LEGACY.items():
        session = spark.newSession()
        session.conf.set(name, value)
        with pytest.raises(DeclarationError, match=f"has {name} = {value}"):
            checked_settings(session)
        session.conf.unset(name)
        checked_settings(session)
    session = spark.newSession()
    for name, value in HARMLESS.items():
        session.conf.set(name, value)
    checked_settings(session)


def test_a_session_that_has_changed_is_refused_when_the_next_view_is_declared(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    app = App(session, tmp_path / "lake")
    app.table("t", session.range(3).withColumnRenamed("id", "k"), "k")
    for name, value, refusal in (
        ("spark.sql.orderByOrdinal", "false", "spark.sql.orderByOrdinal = false"),
        (ZONE, "PST", f"{ZONE} = America/Los_Angeles, and had UTC"),
    ):
        before = session.conf.get(name)
        session.conf.set(name, value)
        with pytest.raises(DeclarationError, match=refusal):
            app.view("v", "SELECT k FROM t", "k")
        session.conf.set(name, before)
    app.view("v", "SELECT k FROM t", "k")


def test_an_app_can_be_made_in_any_session_and_declares_nothing_in_some(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
    app = App(session, tmp_path / "lake")
    with pytest.raises(DeclarationError, match=r"spark.sql.legacy.timeParserPolicy = LEGACY"):
        app.table("t", session.range(3).withColumnRenamed("id", "k"), "k")
    session.conf.unset("spark.sql.legacy.timeParserPolicy")
    app.table("t", session.range(3).withColumnRenamed("id", "k"), "k")


def test_zones_mean_to_python_what_they_mean_to_spark(spark: Any) -> None:
    session = spark.newSession()
    for zone in (*ZONES, *SHORT.split(" ")):
        session.conf.set(ZONE, zone)
        name = zone_name(zone)
        listed = ", ".join(f"CAST(timestamp_seconds({seconds}) AS STRING)" for seconds in MOMENTS)
        theirs = list(session.sql(f"SELECT {listed}").first())
        moments = (pa.scalar(seconds, pa.timestamp("s", "UTC")).as_py() for seconds in MOMENTS)
        ours = [moment.astimezone(zone_info(name)).strftime("%Y-%m-%d %H:%M:%S") for moment in moments]
        assert ours == theirs, zone
        rows = session.sql("SELECT 1 AS k, timestamp_seconds(0) AS at")
        assert arrow_schema(rows, "t").field("at").type == pa.timestamp("us", name)
        tables = {"t": spec("t", arrow_schema(rows, "t"))}
        assert SparkAnalyser(session, tables).analysed("v", "SELECT at FROM t", {}).schema.field(
            "at"
        ).type == pa.timestamp("us", name)


def test_a_function_in_sql_of_the_users_own_is_refused_as_that(spark: Any) -> None:
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION plus_one_more(x INT) RETURNS INT RETURN x + 1")
    analyser = SparkAnalyser(spark, {"t": spec("t", pa.schema([("k", pa.int32())]))})
    with pytest.raises(
        UnsupportedSql, match=r"line 1, column 11: the function plus_one_more\(\), which is registered"
    ) as refused:
        analyser.analysed("v", "SELECT k, plus_one_more(k) AS x FROM t", {})
    assert "Declare it by app.function()." in str(refused.value)
    with pytest.raises(DeclarationError, match="UNRESOLVED_ROUTINE") as mistaken:
        analyser.analysed("v", "SELECT k, plus_one_less(k) AS x FROM t", {})
    assert not isinstance(mistaken.value, UnsupportedSql)


def test_a_table_has_a_name_by_which_both_read_it_or_is_refused(spark: Any) -> None:
    refused = set()
    for name in WORDS.split(" "):
        tables = {name: spec(name, pa.schema([("k", pa.int32())]))}
        analyser = SparkAnalyser(spark, tables)
        try:
            analyser.check_name("table", name)
        except DeclarationError as error:
            refused.add(name)
            said = str(error)
            assert f"table '{name}' cannot be read by that name" in said
            analyser.check_name("table", f"{name}_rows")
        else:
            assert compile_view("v", f"SELECT s.k FROM {name} s", tables, {}, analyser).schema.names == ["k"]
    assert {"stream", "lateral"} <= refused
    assert refused.isdisjoint({"t", "orders", "date"})


def test_char_columns_and_collations_are_refused_with_a_way_out_that_works(spark: Any) -> None:
    written = "__CHAR_VARCHAR_TYPE_STRING"
    for column, type, as_string in (
        (F.lit("a  ").alias("c", metadata={written: "char(3)"}), r"char\(3\)", "string"),
        (F.array(F.lit("a  ")).alias("c", metadata={written: "array<char(3)>"}), r"array<char\(3\)>", "array<string>"),
        (F.lit("a").cast("string collate unicode_ci").alias("c"), "collation UNICODE_CI", "STRING COLLATE UTF8_BINARY"),
        (F.array(F.lit("a").cast("string collate unicode_ci")).alias("c"), "collation UNICODE_CI", "array<string>"),
    ):
        rows = spark.range(1).select(column)
        with pytest.raises(DeclarationError, match=f"table 't': column 'c' .*{type}") as refused:
            arrow_schema(rows, "t")
        if "array" not in as_string or "char" in type:
            assert f"CAST it to {as_string}" in str(refused.value)
        mended = rows.select(F.expr(f"CAST(c AS {as_string})").alias("c"))
        assert arrow_schema(mended, "t").names == ["c"]
    padded = spark.range(1).select(F.lit("a").alias("c", metadata={written: "varchar(3)"}))
    assert arrow_schema(padded, "t").field("c").type == pa.string(), "VARCHAR is compared as it is"
