"""Every operator and function that may stand in a view gives, row by row, what real Spark gives."""

import random
import struct
from collections import Counter
from decimal import Context, Decimal
from typing import Any
from unicodedata import category

import pyarrow as pa
import pytest
from expressions_kit import FAILING, INF, TOPICS, listed, table
from guards_kit import kept
from pyspark.errors import PySparkException
from sql_kit import by_spark, differences, evaluated, optimizing, spec
from state_kit import plain_rows

from simulator.local_typer import LocalTyper
from upriver.engine.expressions import Evaluator
from upriver.errors import DeclarationError, RowError
from upriver.spark.typer import SparkTyper

pytestmark = pytest.mark.spark
EXACT = Context(prec=60)


@pytest.mark.parametrize("topic", TOPICS)
def test_expressions_equal_spark(spark: Any, topic: str) -> None:
    rows, expressions = table(), TOPICS[topic]
    typer = SparkTyper(spark, {"t": spec("t", rows.schema)})
    ours = evaluated(rows, expressions, typer)
    assert differences(ours, by_spark(spark, rows, expressions), expressions, rows) == []


@pytest.mark.parametrize("text", FAILING)
def test_what_fails_in_spark_fails_here(spark: Any, text: str) -> None:
    rows = table()
    with pytest.raises(PySparkException):
        by_spark(spark, rows, [text])
    with pytest.raises((RowError, DeclarationError)):  # constants are refused when they are declared
        evaluated(rows, [text], LocalTyper({"t": spec("t", rows.schema)}))


def test_cases_of_all_letters_equal_spark(spark: Any) -> None:
    letters = [chr(point) for point in range(1, 0x110000) if not 0xD800 <= point < 0xE000]
    cased = [letter for letter in letters if letter.upper() != letter or letter.lower() != letter]
    rare = {"Lo", "So", "Cn", "Co"}
    new = [letter for letter in letters[:0x20000] if category(letter) not in rare or ord(letter) % 16 == 6]
    around = ["", "a", "Β", ".", " ", "'", "\u0301", "ʰ", "ⅷ", "1", "Σ", "中", "\u0897", "\ua7dc", "ʕ", "\U0001171e"]
    sigmas = [before + other + "Σ" + after for before in around for other in around for after in around]
    texts = [*cased, *(form.format(letter) for letter in new for form in ("{0}", "aΣ{0}a", "a{0}Σ")), *sigmas]
    rows = pa.record_batch({"r": pa.array(range(len(texts)), pa.int32()), "s": texts})
    expressions = ["upper(s)", "lower(s)", "upper('ß' || s)", "upper(lower(s))", "lower(upper(s))", "lower(lower(s))"]
    ours = evaluated(rows, expressions, LocalTyper({"t": spec("t", rows.schema)}))
    assert differences(ours, by_spark(spark, rows, expressions), expressions, rows) == []


def test_cases_of_cases_equal_spark_across_subqueries(spark: Any) -> None:
    rows = pa.record_batch({"r": pa.array(range(6), pa.int32()), "s": ["ẞ", "ı", "ΑΣ", "İ", "ŉ", None]})
    found = by_spark(spark, rows, ["s"])
    assert found.num_rows == 6
    for sql in (
        "SELECT r, upper(l) AS x FROM (SELECT r, lower(s) AS l FROM t)",
        "SELECT r, upper(l) AS x, lower(l) AS y, l FROM (SELECT r, lower(s) AS l FROM t)",
        "SELECT r, lower(u) = 'ı' AS x FROM (SELECT r, upper(trim(s)) AS u FROM t) WHERE lower(u) <> 'i'",
        "SELECT r, x FROM (SELECT r, s, upper(s) AS x FROM t) WHERE lower(x) = lower(s)",
        "SELECT r, lower(upper(s)) ILIKE 'I%' AS x FROM t",
        "SELECT upper(l) AS r, count(*) AS n FROM (SELECT lower(s) AS l FROM t) GROUP BY upper(l)",
    ):
        mine = kept(sql, "r", {"t": rows}, Evaluator(), sets_aside=False).rows
        with optimizing(spark):
            theirs = spark.sql(sql).toArrow()
        assert Counter(plain_rows(mine)) == Counter(plain_rows(theirs)), sql


def test_conversions_of_many_numbers_equal_spark(spark: Any) -> None:
    draw = random.Random(5)
    doubles = [struct.unpack("<d", draw.randbytes(8))[0] for _ in range(3000)]
    doubles = [value if abs(value) < INF else draw.uniform(-1e18, 1e18) for value in doubles]
    units = [draw.randrange(-(10 ** draw.randrange(1, 39)), 10 ** draw.randrange(1, 39)) for _ in doubles]
    rows = pa.record_batch(
        {
            "r": pa.array(range(len(doubles)), pa.int32()),
            "x": doubles,
            "near": [draw.randrange(-10_000, 10_000) / 4 for _ in doubles],
            "p": pa.array([Decimal(unit % 10**15).scaleb(-6) for unit in units], pa.decimal128(15, 6)),
            "q": pa.array([Decimal(unit % 10**38).scaleb(-19, EXACT) for unit in units], pa.decimal128(38, 19)),
            "l": pa.array([unit % 2**64 - 2**63 for unit in units], pa.int64()),
            "text": [repr(value) for value in doubles],
            "digits": [f"{unit / 10**6:.4f}" for unit in units],
        }
    )
    expressions = listed(
        """
        CAST(p AS DOUBLE); CAST(q AS DOUBLE); CAST(l AS DOUBLE); CAST(l AS FLOAT); CAST(text AS DOUBLE); x * near;
        CAST(digits AS DOUBLE); round(near); floor(near); ceil(near); round(p, 3); CAST(p AS DECIMAL(12,2)); x + near;
        CAST(q AS DECIMAL(30,3)); CAST(p AS BIGINT); CAST(q AS STRING);
        p * 1.37; p + q % 1D; near % 0.7D; l / 3; l % 977; x / nullif(near, 0D); CAST(near AS INT); l DIV 1000; p + l;
        x = CAST(text AS DOUBLE); q > p; floor(p); ceil(q)
        """
    )
    ours = evaluated(rows, expressions, SparkTyper(spark, {"t": spec("t", rows.schema)}))
    assert differences(ours, by_spark(spark, rows, expressions), expressions, rows) == []
