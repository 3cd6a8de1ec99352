"""More functions against real Spark, row by row: texts, regular expressions, decimals, times moved and formatted."""

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from sql_kit import by_spark, differences, evaluated, spec

from simulator.local_typer import LocalTyper
from upriver.errors import DeclarationError, RowError
from upriver.spark.typer import SparkTyper

pytestmark = pytest.mark.spark

ROWS = 120
NAN, INF = float("nan"), float("inf")
TIMES = [datetime(1970, 1, 1), None, datetime(7, 1, 1, 0, 0, 0, 1), datetime(2024, 2, 29, 12, 34, 56, 780000)]
TIMES += [datetime(2023, 12, 31, 23, 59, 59, 999999), datetime(9990, 6, 7, 8, 9), datetime(1960, 5, 6, 0, 7, 8)]
STRINGS = [
    "",
    "a",
    None,
    "abc",
    "ABC",
    " a b ",
    "ß",
    "a%b",
    "日本語",
    "e\u0301x",
    "😀z",
    "a.b.c",
    "foo123bar45",
    "a\nb",
]
STRINGS += ["b\n", "b\r\n", "b\n\n", "x-y_z", "(a|b)", "[a]", "\t\u000b", "aaa", "..", "a\u2028b", "ſK"]
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "s": (pa.string(), STRINGS),
    "u": (pa.string(), ["a", ".", "", None, "ab", "b", "xyz", "日"]),
    "i": (pa.int32(), [0, 1, -1, None, 3, 7, -2, 12]),
    "j": (pa.int32(), [5, -5, 1, None, 3, -1, 2]),
    "l": (pa.int64(), [0, None, 1, -1, 2**40, -7]),
    "x": (pa.float64(), [0.0, -0.0, None, 1.005, -1.005, 2.5, NAN, INF, -INF, 0.285, 1e15, 123456.789, 1e-7, -0.05]),
    "z": (pa.float64(), [1.005, -2.675, 0.5, 1234.5678, None, -0.0049999]),
    "f": (pa.float32(), [0.0, 1.5, None, -0.1, 3.25]),
    "p": (pa.decimal128(5, 2), [Decimal(v) for v in ("0.00", "1.25", "-1.25", "999.99", "-0.01")] + [None]),
    "q": (pa.decimal128(9, 4), [None, *map(Decimal, ("0.0001", "12345.6789", "-0.5000", "2.5000", "-3.3333"))]),
    "b": (pa.bool_(), [True, False, None]),
    "d": (
        pa.date32(),
        [date(1970, 1, 1), date(2024, 2, 29), None, date(2023, 12, 31), date(7, 1, 31), date(2024, 1, 31)],
    ),
    "n": (pa.timestamp("us"), TIMES),
    "t": (pa.timestamp("us", tz="UTC"), [None if t is None else t.replace(tzinfo=UTC) for t in TIMES]),
    "texts": (pa.string(), ["1", " 1.005 ", "-.5", "5.", None, "1e2", "+1.5", "1E-1", "0012.345", "\t7\n"]),
}


def listed(text: str) -> list[str]:
    """The expressions of a table in which each ends with a semicolon."""
    return [part.strip() for part in text.split(";") if part.strip()]


TOPICS = {
    "texts": listed(
        r"""
        lpad(s, 5, u); lpad(s, i, 'xy'); lpad(s, 4); rpad(s, 5, u); rpad(s, j, ''); rpad(s, 2); repeat(s, i);
        space(i); reverse(s); translate(s, u, 'xy'); translate(s, 'aab', '12'); translate(s, u, ''); ascii(s);
        split_part(s, '.', 2); split_part(s, u, 1); split_part(s, u, -1); split_part(s, '.', j); octet_length(s);
        md5(s); sha(s); sha1(s); sha2(s, 256); sha2(s, 0); s ILIKE 'A%'; s ILIKE '%K'; s NOT ILIKE 'abc'; s ILIKE '_';
        equal_null(s, u); nullifzero(i); zeroifnull(l); equal_null(i, l); reverse(reverse(upper(s)));
        """
    ),
    "patterns": listed(
        r"""
        s RLIKE 'a'; s RLIKE '^a'; s RLIKE 'b$'; s RLIKE '^.$'; s RLIKE 'a.b'; s RLIKE '\\d+'; s RLIKE '[a-c]{2,3}';
        s RLIKE '^(a|b|foo)'; s RLIKE '\\s'; s RLIKE '[^a-z]'; s RLIKE '^$'; s RLIKE '日.+'; s RLIKE '\\w-\\w';
        s RLIKE '\\.'; s RLIKE '[\\w.]+$'; s REGEXP '(?:fo+|b)[0-9]*'; regexp_like(s, 'x?y'); regexp(s, '[-x]');
        NOT s RLIKE 'a'; s RLIKE '\\[a\\]'; s RLIKE '\\(a\\|b\\)'; s RLIKE '[\\s]'; s RLIKE '\\S\\W\\D'; s RLIKE 'a*?b';
        regexp_extract(s, '([a-z]+)(\\d+)'); regexp_extract(s, '([a-z]+)(\\d+)', 2); regexp_extract(s, '.', 0);
        regexp_extract(s, '(x)?a', 1); regexp_extract(s, '[^.]+', 0); regexp_extract(s, '(a+?)(a*)', 2);
        regexp_replace(s, 'a', 'xy'); regexp_replace(s, '[0-9]+', '#'); regexp_replace(s, '\\W', '');
        regexp_replace(s, '^.', 'first'); regexp_replace(s, '(a|b)+', '-'); NULL RLIKE 'a';
        regexp_extract(s, '([a-z])$'); regexp_extract(s, '.$', 0); regexp_extract(s, '(.)(.)$', 2);
        regexp_extract(s, '[^b]*$', 0); regexp_extract(s, '(&|^)([^&]*)', 2); regexp_extract(s, '(a|b)$', 0);
        regexp_replace(s, '[a-z]$', '#'); regexp_replace(s, '(a|b)$', '-'); regexp_replace(s, '[&.]', '+');
        regexp_extract(s || '&x=1&y=2', '(&|^)y=([^&]*)', 2); regexp_replace(s || 'b', 'b+$', '');
        s RLIKE ''; s RLIKE r'^\w+\d$'; r'a\d' || s; s RLIKE '(a{2}){1,2}';
        """
    ),
    "decimals": listed(
        r"""
        p / 2; p / 3; q / 7; p / nullif(q, 0); q / nullif(p, 0); 1 / nullif(p, 0); p / nullif(i, 0); 2.5 / 3; p / 0.3;
        -p / 7; (p + 1) / 9; p % 2; p % nullif(q, 0); q % nullif(p, 0); -q % 0.7; p % nullif(i, 0); p % 1.25; q % 3;
        10 % nullif(p, 0.00); p / 2 + q / 4; p % 7 = 0; sign(p); sign(i); signum(x); sign(f); sign(-x);
        """
    ),
    "roundings": listed(
        r"""
        round(x, 1); round(x, 2); round(z, 3); round(x, 15); round(x * 3, 4); round(x / 7, 5); round(z, 2) * 2;
        CAST(z AS DECIMAL(9,2)); CAST(z AS DECIMAL(20,10)); CAST(x * 0 AS DECIMAL(5,2)); CAST(f AS DECIMAL(20,15));
        CAST(texts AS DECIMAL(9,2)); CAST(texts AS DECIMAL(20,6)); CAST(nullif(x, x) AS DECIMAL(5,2));
        """
    ),
    "times": listed(
        r"""
        d + INTERVAL 1 MONTH; d - INTERVAL '2' YEAR; d + INTERVAL 3 DAYS; d - INTERVAL 1 WEEK; INTERVAL 1 DAY + d;
        n + INTERVAL 1 MONTH; n - INTERVAL '90' MINUTE; t + INTERVAL '1.5' SECOND; t - INTERVAL 2 DAYS;
        n - INTERVAL 1 DAY; t + INTERVAL '1 hour 5 minutes'; t - INTERVAL 7 MICROSECONDS; t > n - INTERVAL 1 SECOND;
        t + INTERVAL 1 HOUR;
        make_date(2000 + i, 2, 3); date_from_unix_date(i * 1000); dayname(d); monthname(d); dayname(t);
        date_format(t, 'yyyy-MM-dd HH:mm:ss'); date_format(n, 'yyyyMMdd'); date_format(d, 'yy/M/d H-m-s');
        date_format(t, 'EEE EEEE MMM MMMM hh h a'); date_format(t, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'");
        date_format(n, "SSSSSS ''%d'' E"); date_format(t, '日 yyyy');
        unix_timestamp(t); unix_timestamp(n); unix_timestamp(d); to_unix_timestamp(t); unix_micros(t) - unix_micros(t);
        unix_micros(CAST(n AS TIMESTAMP)) - unix_micros(CAST(n AS TIMESTAMP)); datediff(d, d);
        """
    ),
}


def table() -> pa.RecordBatch:
    """Rows that pair the values of the columns in many ways; ``r`` numbers them."""
    arrays = [pa.array([values[row % len(values)] for row in range(ROWS)], type) for type, values in COLUMNS.values()]
    return pa.RecordBatch.from_arrays([pa.array(range(ROWS), pa.int32()), *arrays], names=["r", *COLUMNS])


@pytest.mark.parametrize("topic", TOPICS)
def test_functions_equal_spark(spark: Any, topic: str) -> None:
    rows, expressions = table(), TOPICS[topic]
    ours = evaluated(rows, expressions, SparkTyper(spark, {"t": spec("t", rows.schema)}))
    assert differences(ours, by_spark(spark, rows, expressions), expressions, rows) == []


def test_digits_of_many_doubles_equal_spark(spark: Any) -> None:
    draw = random.Random(3)
    ties = [(draw.randrange(-(10**6), 10**6) * 10 + 5) / 10 ** draw.randrange(1, 9) for _ in range(4000)]
    others = [draw.uniform(-1, 1) * 10.0 ** draw.randrange(-9, 17) for _ in range(4000)]
    rows = pa.record_batch({"r": pa.array(range(8000), pa.int32()), "x": ties + others})
    expressions = [f"round(x, {places})" for places in (1, 2, 3, 4, 6, 9)]
    expressions += ["CAST(x AS DECIMAL(38,2))", "CAST(x AS DECIMAL(38,6))", "CAST(x AS DECIMAL(38,15))"]
    ours = evaluated(rows, expressions, LocalTyper({"t": spec("t", rows.schema)}))
    assert differences(ours, by_spark(spark, rows, expressions), expressions, rows) == []


def test_quotients_of_many_decimals_equal_spark(spark: Any) -> None:
    draw = random.Random(4)
    sizes = [10 ** draw.randrange(1, 13) for _ in range(5000)]
    left = pa.array([Decimal(draw.randrange(-size, size)).scaleb(-3) for size in sizes], pa.decimal128(12, 3))
    right = [Decimal(draw.randrange(1, 10 ** draw.randrange(1, 8))).scaleb(-2) for _ in sizes]
    arrays = [pa.array(range(5000), pa.int32()), left, pa.array(right, pa.decimal128(7, 2))]
    rows = pa.RecordBatch.from_arrays(arrays, names=["r", "a", "b"])
    expressions = ["a / b", "a % b", "b / 3", "a / 8", "-a / b", "1 / b", "a / -b", "b % 0.07"]
    ours = evaluated(rows, expressions, LocalTyper({"t": spec("t", rows.schema)}))
    assert differences(ours, by_spark(spark, rows, expressions), expressions, rows) == []


FAILING = listed(
    r"""
    p / 0; p / (q - q); p % 0; split_part(s, 'a', 0); make_date(2024, 13, 1); make_date(2023, 2, 29);
    CAST(x AS DECIMAL(5,2)); CAST(s AS DECIMAL(5,2)); CAST(texts AS DECIMAL(2,1)); round(1 / (i - i), 2);
    """
)


@pytest.mark.parametrize("text", FAILING)
def test_what_fails_in_spark_fails_here(spark: Any, text: str) -> None:
    rows = table()
    with pytest.raises(PySparkException):
        by_spark(spark, rows, [text])
    with pytest.raises((RowError, DeclarationError)):  # constants are refused when they are declared
        evaluated(rows, [text], LocalTyper({"t": spec("t", rows.schema)}))
