"""Many thousands of values, too many to record: cases of all letters, digits of numbers, quotients."""

import random
import struct
from decimal import Context, Decimal
from typing import Any
from unicodedata import category

import pyarrow as pa
import pytest
from awkward_kit import INF
from conformance_kit import listed
from sql_kit import by_spark, differences, evaluated, spec

from simulator.shared_analyser import SharedAnalyser
from upriver.spark.analyser import SparkAnalyser

pytestmark = pytest.mark.spark
EXACT = Context(prec=60)


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
    ours = evaluated(rows, expressions, SharedAnalyser({"t": spec("t", rows.schema)}))
    assert differences(ours, by_spark(spark, rows, expressions), expressions, rows) == []


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
    ours = evaluated(rows, expressions, SparkAnalyser(spark, {"t": spec("t", rows.schema)}))
    assert differences(ours, by_spark(spark, rows, expressions), expressions, rows) == []


def test_digits_of_many_doubles_equal_spark(spark: Any) -> None:
    draw = random.Random(3)
    ties = [(draw.randrange(-(10**6), 10**6) * 10 + 5) / 10 ** draw.randrange(1, 9) for _ in range(4000)]
    others = [draw.uniform(-1, 1) * 10.0 ** draw.randrange(-9, 17) for _ in range(4000)]
    rows = pa.record_batch({"r": pa.array(range(8000), pa.int32()), "x": ties + others})
    expressions = [f"round(x, {places})" for places in (1, 2, 3, 4, 6, 9)]
    expressions += ["CAST(x AS DECIMAL(38,2))", "CAST(x AS DECIMAL(38,6))", "CAST(x AS DECIMAL(38,15))"]
    ours = evaluated(rows, expressions, SharedAnalyser({"t": spec("t", rows.schema)}))
    assert differences(ours, by_spark(spark, rows, expressions), expressions, rows) == []


def test_quotients_of_many_decimals_equal_spark(spark: Any) -> None:
    draw = random.Random(4)
    sizes = [10 ** draw.randrange(1, 13) for _ in range(5000)]
    left = pa.array([Decimal(draw.randrange(-size, size)).scaleb(-3) for size in sizes], pa.decimal128(12, 3))
    right = [Decimal(draw.randrange(1, 10 ** draw.randrange(1, 8))).scaleb(-2) for _ in sizes]
    arrays = [pa.array(range(5000), pa.int32()), left, pa.array(right, pa.decimal128(7, 2))]
    rows = pa.RecordBatch.from_arrays(arrays, names=["r", "a", "b"])
    expressions = ["a / b", "a % b", "b / 3", "a / 8", "-a / b", "1 / b", "a / -b", "b % 0.07"]
    ours = evaluated(rows, expressions, SharedAnalyser({"t": spec("t", rows.schema)}))
    assert differences(ours, by_spark(spark, rows, expressions), expressions, rows) == []
