"""Expressions of all kinds, by topic, and those that fail, over columns of awkward values."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from upriver.sql.signatures import Function, OperandKind

ROWS = 180
NAN, INF = float("nan"), float("inf")
INTEGERS = [0, 1, -1, None, 7, -7, 100, 11, 2]
DATES = [date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29), None, date(1, 1, 1), date(9999, 12, 31)]
DATES += [date(2021, 1, 1), date(2024, 12, 30), date(1582, 10, 10), date(2024, 1, 7), date(1900, 3, 1)]
TIMES = [datetime(1970, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999), None, datetime(1, 1, 1, 0, 0, 0, 1)]
TIMES += [datetime(2024, 2, 29, 12, 34, 56, 780000), datetime(9999, 12, 31, 23, 59, 59), datetime(1960, 5, 6, 7, 8)]
STRINGS = ["", "a", None, "abc", "ABC", " a b ", "ß", "ÄÖü", "a%b", "a_b", "日本語", "e\u0301x", "😀z", "\t\n"]
STRINGS += ["x'y\"z", "a\\b", "ΑΣ", "ΑΣΒ Σ ΟΔΥΣΣΕΥΣ.", "İstanbul", "a\u00a0", "ǅ", "straße ﬁ", "\u1c89\u1c8a", "0"]
MOMENTS = ["2024-02-29 12:34:56", "2024-02-29T01:02:03.123456", None, "1999-12-31 23:59:59", "2024-2-9 1:2:3"]
MOMENTS += ["2023-02-29", "2024-03-31 02:30:00", "2024-01-01", "1", "2024-10-27 02:30:00.5", " 1970-01-01 00:00:60"]
MOMENTS += ["2024-01-01 24:00:00"]
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    # Small integers, with which arithmetic stays in range; then the ends of each range.
    "y": (pa.int8(), [0, 1, -1, None, 7, -7, 10, 11]),
    "h": (pa.int16(), [3, None, -3, 0, 120, 1, 17]),
    "i": (pa.int32(), INTEGERS),
    "j": (pa.int32(), [5, -5, 1, None, 3, -1, 2]),
    "l": (pa.int64(), [0, None, 1, -1, 9007199254740993, 2**40, -(2**40), 86399, -86401]),
    "ymax": (pa.int8(), [127, -128, None]),
    "imax": (pa.int32(), [2**31 - 1, -(2**31), None, 0]),
    "lmax": (pa.int64(), [2**63 - 1, -(2**63), None, 0]),
    "f": (pa.float32(), [0.0, 1.5, None, -0.1, 3.25, NAN, -0.0, 16777217.0]),
    "x": (pa.float64(), [0.0, -0.0, None, 1.5, -1.5, 2.5, NAN, INF, -INF, 0.1, 1e300, -0.4, 0.49999999999999994]),
    "w": (pa.float64(), [1.5, 2.0, None, -0.5, NAN, 3.0, INF]),
    "z": (pa.float64(), [0.0, -0.0, 1.9, -1.9, None, 2147483647.9, -2147483648.9, 127.5]),
    "p": (pa.decimal128(5, 2), [Decimal(v) for v in ("0.00", "1.25", "-1.25", "1.50", "999.99", "-0.01")] + [None]),
    "q": (pa.decimal128(20, 4), [None, *map(Decimal, ("0.0000", "1234567890123456.7891", "-0.5000", "2.5000"))]),
    "b": (pa.bool_(), [True, False, None]),
    "c": (pa.bool_(), [True, True, False, False, None]),
    "s": (pa.string(), STRINGS),
    "u": (pa.string(), ["a", "b", "", None, "abc", "%", "bc"]),
    "d": (pa.date32(), DATES),
    "e": (pa.date32(), [date(2024, 1, 31), date(1970, 1, 1), None, date(1900, 2, 28), date(2024, 2, 29)]),
    "n": (pa.timestamp("us"), TIMES),
    "t": (pa.timestamp("us", tz="UTC"), [None if t is None else t.replace(tzinfo=UTC) for t in TIMES]),
    "digits": (pa.string(), ["1", " 15 ", "+5", "-0", None, "007", "\t-12\n", "127"]),
    "floats": (
        pa.string(),
        ["1", " 1.5 ", "-.5", "5.", None, "1e3", "NaN", "nan", "-Infinity", "inf", "2.5d", "1e400"],
    ),
    "days": (
        pa.string(),
        ["2024-02-29", "2024-2-9", " 2024-01-01 ", None, "1999", "2001-7", "2024-01-02T10", "2020-1-5 x"],
    ),
    "moments": (pa.string(), MOMENTS),
    "truths": (pa.string(), ["true", "F", None, " yes ", "0", "N", "1", "False"]),
}


def listed(text: str) -> list[str]:
    """The expressions of a table in which each ends with a semicolon."""
    return [part.strip() for part in text.split(";") if part.strip()]


TOPICS = {
    "literals": listed(
        r"""
        1; -2147483648; 2147483648; -9223372036854775808; 9223372036854775808; 1.50; 0.00; 00.10; 5.; .5; 1e3;
        1.5e-3; 5L; -5S; 7Y; 1.5D; -1.5F; 'it\'s'; "double"; 'a' 'b'; '\n\t\\'; '\''; 'a\%\_'; true;
        DATE '2024-02-29'; TIMESTAMP_NTZ '2024-02-29 01:02:03.5'; '日本'; TIMESTAMP '2024-02-29 01:02:03';
        TIMESTAMP '2024-02-29 01:02:03+05:30'; CAST(NULL AS INT); - -1; +1; -(1); -(2147483648);
        """
    ),
    "integers": listed(
        r"""
        CAST(NULL AS INT) % 0; CAST(NULL AS BIGINT) DIV 0; CAST(NULL AS DOUBLE) / 0; nullif(i, i) % (j - j);
        i % nullif(j, j);
        i + j; i - j; i * j; i + 1; 1 - i; y + y; y * y; h * h; y + h; i + l; -i; -y; -l; - -i; i / j; l / 3;
        i / 0.5D; y / 2; i DIV j; l DIV 7; i % j; l % 7; y % 3; y % (h + 1S); y % 3 % 5Y; imax % -1; lmax % -1L;
        abs(i); abs(l); abs(y); mod(i, j); div(i, j); pmod(i, 3); pmod(l, 7); negative(i); i & j; i | j; i ^ j; ~i;
        y & h; l ^ i; floor(i); ceil(l); round(i); round(i, 2); imax + 0; lmax - 0; imax * 1L; try_divide(i, j - 5);
        ~y; i << j; l << j; imax << 1; lmax << y; i >> j; l >> 3; imax >> j; lmax >> y; y << 9; h >> 1; i << 33;
        l << -1; shiftrightunsigned(i, j); shiftrightunsigned(l, y); shiftrightunsigned(imax, 1);
        shiftrightunsigned(lmax, 7); shiftleft(y, 3); shiftright(l, i); i + 1 << 2 + 1; i << 1 < j;
        (i << 1) & 3; i << 1 >> 2;
        """
    ),
    "doubles": listed(
        r"""
        x + w; x - w; x * w; w / 4; x / w; x % 0.7D; w % 1.25D; -x; abs(x); sqrt(w); sqrt(i); round(x); round(w);
        floor(z); ceil(z); ceil(w % 2D); x + i; x * l; f + f; f * f; f + x; f + i; f / 2; -f; f % 2F; x + p;
        x + 1.5; x * q; isnan(x); isnan(f); nanvl(x, 0D); nanvl(x, i); greatest(x, w); least(x, w, 0D);
        try_divide(x, w - 2); greatest(f, i); x + 1e0; abs(f);
        """
    ),
    "decimals": listed(
        r"""
        p + p; p - q; p * p; p * q; p + 1; p * 2; p - i; p * 1.5; q + 12345L; -p; abs(q); p + l; floor(p); ceil(p);
        floor(q); round(p, 1); round(q); round(p); round(p, 5); p + 0; p * 100; greatest(p, q); least(p, 1); p + y;
        p / 2D; CAST(p AS DOUBLE) / 3;
        """
    ),
    "comparisons": listed(
        r"""
        i > 1.5; x = 0; l = 9007199254740993; x = 0.1; f = 0.1; d >= '2024-02-29'; '1970-01-01' = d;
        n < '2024-02-29 12:34:56.79'; t = '1970-01-01 00:00:00'; t >= DATE '1970-01-01'; s = ''; b = true;
        NOT b = c; i IS NULL; i IS NOT NULL; b IS TRUE; b IS NOT TRUE; b IS FALSE; s IS NOT DISTINCT FROM u;
        s IS DISTINCT FROM u; NULL <=> i; i <=> NULL; NULL = i; isnull(s); isnotnull(x); i = NULL;
        """
    ),
    "logic": listed(
        r"""
        b AND c; b OR c; NOT b; !b; b AND NULL; NULL OR c; b AND c OR NOT b; b OR c AND NOT c; b AND (c OR b);
        i > 0 AND j > 0 AND l > 0; j <> 1 AND i / (j - 1) > 0; j = 1 OR i DIV (j - 1) = 0; b <> c;
        NOT (j <> 1 AND i % (j - 1) = 0); (i IS NULL OR i = 0) OR 10 DIV i > 1; b AND i / 2 > 1 AND c;
        """
    ),
    "choices": listed(
        r"""
        CASE WHEN b THEN i ELSE l END; CASE WHEN b THEN i END; CASE i WHEN 1 THEN 'one' WHEN 7 THEN 'seven' END;
        CASE WHEN j = 0 THEN 0 WHEN j > 0 THEN i DIV j ELSE -1 END; IF(b, x, p); if(c, 1, 1.5); coalesce(i, j, 0);
        coalesce(NULL, s, 'none'); nvl(i, l); ifnull(s, u); nvl2(i, s, u); nullif(i, j); nullif(i, 1L);
        nullif(s, ''); coalesce(d, n); CASE WHEN i = 0 THEN NULL ELSE 10 / i END; coalesce(x, 1); nvl(f, 1);
        greatest(i, j, l); least(s, u); greatest(d, e); if(i > 0, 'a', NULL); coalesce(p, l);
        CASE WHEN b THEN NULL WHEN c THEN 1Y ELSE h END; greatest(NULL, i);
        """
    ),
    "sets": listed(
        r"""
        i IN (1, 7, NULL); i NOT IN (1, 7); i IN (1, 2L, j); s IN ('a', '', 'ß'); x IN (0, 1.5); x IN (x, w);
        d IN ('1970-01-01', '2024-02-29'); i BETWEEN -1 AND 7; i NOT BETWEEN j AND 10; s BETWEEN 'a' AND 'b';
        d BETWEEN '1900-01-01' AND '2000-01-01'; x BETWEEN -1.5 AND w; NULL IN (1); i IN (j, 10 DIV (j * j + 1));
        b IN (true); p IN (1.25, 0); i BETWEEN NULL AND 5;
        """
    ),
    "strings": listed(
        r"""
        trim('ßÄ日' FROM s); trim('x' FROM s); '\r\b\"' || s; s LIKE 'ß';
        s LIKE '%日%'; s LIKE '_日_'; left(s, 9);
        upper(s); lower(s); length(s); char_length(s); len(u); trim(s); ltrim(s); rtrim(s); btrim(s, ' a');
        trim('a', s); ltrim('a ', s); TRIM(BOTH 'ab' FROM s); TRIM(LEADING 'a' FROM s); TRIM(TRAILING FROM s);
        trim(u FROM s); s || u; concat(s, '-', u); concat(s, i, b, d, p); concat_ws('-', s, u); concat_ws(u, s, s);
        left(s, 2); left(s, i); right(s, 2); right(s, i); right(s, 0); replace(s, 'a', 'xy'); replace(s, u, '');
        replace(s, u); startswith(s, u); endswith(s, u); contains(s, u); instr(s, u); locate(u, s);
        position(u IN s); ucase(s); lcase(s); upper(u || s); s LIKE 'a%'; s LIKE '%a%'; s LIKE 'a_b';
        s LIKE 'a\\%b'; s LIKE 'a!_b' ESCAPE '!'; s NOT LIKE '%b'; s LIKE ''; s LIKE '___'; s LIKE '%\\\\%';
        s LIKE ANY ('a', '%b%'); s NOT LIKE ALL ('a', '%b'); s LIKE ALL ('a%'); s NOT LIKE ANY ('a%', '%c');
        s LIKE SOME ('a_c'); s ILIKE ANY ('A%', '%X'); s NOT ILIKE ALL ('A%'); u LIKE ALL ('%b%', '%c') OR b;
        NULL LIKE 'a'; s || NULL; character_length(s); substring(s, 2); substr(s, -2); substring(s FROM 2);
        substring(s FROM 2 FOR 1); substring(s, i);
        """
    ),
    "casts": listed(
        r"""
        CAST(i AS BIGINT); CAST(h AS TINYINT); CAST(i AS DOUBLE); CAST(l AS DOUBLE); CAST(i AS FLOAT);
        CAST(l AS FLOAT); CAST(z AS INT); CAST(z AS BIGINT); CAST(z % 100 AS TINYINT); CAST(f AS DOUBLE);
        CAST(9223372036854775807e0 AS BIGINT); CAST(i AS DECIMAL(10,2)); CAST(p AS INT); CAST(q AS BIGINT);
        CAST(p AS DECIMAL(7,1)); CAST(q AS DECIMAL(38,10)); CAST(p AS DOUBLE); CAST(q AS DOUBLE); CAST(l AS STRING);
        CAST(p AS STRING); CAST(q AS STRING); CAST(b AS STRING); CAST(b AS INT); CAST(b AS DOUBLE);
        CAST(i AS BOOLEAN); CAST(x AS BOOLEAN); CAST(p AS BOOLEAN); int(z); string(i); bigint(digits);
        CAST(digits AS TINYINT); CAST(floats AS DOUBLE); CAST(days AS DATE); to_date(days); date(days);
        CAST(truths AS BOOLEAN); CAST(d AS STRING); CAST(n AS STRING); CAST(d AS TIMESTAMP_NTZ); CAST(n AS DATE);
        CAST(t AS DATE); CAST(t AS STRING); CAST(t AS BIGINT); CAST(t AS TIMESTAMP_NTZ); CAST(n AS TIMESTAMP);
        CAST(d AS TIMESTAMP); i::double; CAST('2024-02-29' AS DATE); CAST(1.255 AS DECIMAL(5,2));
        CAST(NULL AS STRING); to_date(n); CAST(1.5 AS INT); CAST(s AS STRING); CAST(s AS VARCHAR(2)); double(i);
        CAST(-0.5 AS DECIMAL(1,0));
        """
    ),
    "times": listed(
        r"""
        extract(hour FROM n); date_part('month', t); date_add(e, 30); date_sub(e, j); e + 1; 1 + e; e - j; e + y;
        datediff(d, e); date_diff(e, d); add_months(e, 1); add_months(e, j); last_day(d); unix_date(d); last_day(n);
        unix_seconds(t); unix_millis(t); unix_micros(t); timestamp_seconds(i); timestamp_millis(l % 1000000);
        timestamp_micros(l); d = date_trunc('month', d); dateadd(e, 1); greatest(t, n);
        """
    ),
    "nested": listed(
        r"""
        upper(lower(upper(s))); try_divide(w, try_divide(x, try_divide(w, x)));
        ((((w / 2) / 3) / 4) / 5) / 6; 5 DIV (7 DIV (9 DIV 2));
        substring('1' || substring('2' || substring('3' || substring('4' || substring(s, j), j, 5), j), -6, 7), i);
        CAST(CAST(CAST(CAST(d AS STRING) AS DATE) AS STRING) AS DATE); right(right(right(upper(s), 4), j + 2), i);
        floor(ceil(floor(z / 3D) / 5D) * 1.5D); CASE WHEN j <> 1 THEN 8 DIV (60 DIV (j - 1)) = 0 OR b END AND c;
        (i % 5) % (j % 3 + 4) BETWEEN l % 2 AND (i * 3) % 7; nullif(upper(s), upper(u)); i DIV 2 IN (j DIV 2, l DIV 3);
        b AND upper(s) = 'A' AND i DIV 2 = 0 AND (c OR j DIV 2 = 1 OR i % 3 = 1) AND NOT (j / 2 > 1 AND i / 3 < 2)
        """
    ),
    "precedence": listed(
        r"""
        i + j * l % 5; i - j - 1; i || j || 'x'; 'x' || CAST(i AS STRING); NOT i = j AND b; NOT b OR c; !b = c;
        (i & j) | (3 ^ 5); i + 1 & j; i = j = c; - i * j; -i % 3; i BETWEEN 1 AND 2 + 3 AND b; (i IS NULL) = b;
        NOT i IS NULL; i * j DIV 3; 10 - 5 - 2; 2 + 3 * 4 - 1; s LIKE 'a%' AND b; b OR c AND b OR c; ~i & 3; ~i + 1;
        i < j = b; i + j < l AND l > 0 OR b; -i::double; NOT NOT b; i = 1 OR i = 2 AND j = 3; i % 3 * 2;
        i < j IS NULL; s || u LIKE 'a%'; b AND c = b; NOT b IN (c); NOT s LIKE 'a' AND b; - i & j; i | j = 3;
        1 + i IN (1, 2); i / 2 * 3; i DIV 2 * 3; -(i) + 1; i - -1; CASE WHEN b THEN i END + 1; i > 1 IS TRUE;
        i <=> j = c;
        """
    ),
}
TOPICS["comparisons"] += [
    pair.replace(" ", f" {sign} ")
    for pair in ("i j", "x w", "s u", "p q", "b c", "d e", "n d", "f x", "i x", "l imax", "p i", "x p", "t n", "q x")
    for sign in ("=", "<>", "<", "<=", ">", ">=", "<=>", "==", "!=")
]
TOPICS["strings"] += [f"substring(s, {p}, {n})" for p in (-30, -2, 0, 1, 2, "i", "y") for n in (-1, 0, 2, "j")]
DATE_PARTS = ("year", "quarter", "month", "day", "dayofmonth", "dayofweek", "weekday", "dayofyear", "weekofyear")
UNITS = ("year", "QUARTER", "month", "week", "DD", "hour", "MINUTE", "second", "millisecond", "microsecond")
TOPICS["times"] += [f"{part}({column})" for column in "dnt" for part in DATE_PARTS]
TOPICS["times"] += [f"{part}({column})" for column in "nt" for part in ("hour", "minute", "second")]
TOPICS["times"] += [f"date_trunc('{unit}', {column})" for column in "dnt" for unit in UNITS]
TOPICS["times"] += [f"trunc(d, '{unit}')" for unit in ("year", "quarter", "MM", "week")]
TOPICS["times"] += [
    f"extract({part} FROM d)" for part in ("year", "month", "day", "week", "quarter", "doy", "dayofweek")
]


def table() -> pa.RecordBatch:
    """Rows that pair the values of the columns in many ways; ``r`` numbers them."""
    arrays = [pa.array([values[row % len(values)] for row in range(ROWS)], type) for type, values in COLUMNS.values()]
    return pa.RecordBatch.from_arrays([pa.array(range(ROWS), pa.int32()), *arrays], names=["r", *COLUMNS])


FAILING = listed(
    r"""
    imax + 1; imax - 1; imax * 2; -imax; abs(imax); ymax * 2Y; ymax + ymax; lmax + 1L; lmax * 2; -lmax;
    lmax DIV -1; i / 0; i / (j - 5); x / 0D; i DIV 0; i % 0; x % 0D; CAST(imax AS SMALLINT); CAST(lmax AS INT);
    CAST(x AS INT); CAST(w AS BIGINT); CAST(z AS TINYINT); CAST(p AS DECIMAL(3,2)); CAST(q AS INT);
    CAST(i AS DECIMAL(2,1)); CAST(u AS INT); CAST('1.5' AS INT); CAST(digits AS TINYINT) + 1Y; CAST(u AS DATE);
    CAST(u AS BOOLEAN); CAST(u AS DOUBLE); floor(x); ceil(w); CAST(1e19 AS BIGINT);
    date_add(d, 2147483647) = d AND CAST('x' AS INT) = 1; timestamp_seconds(lmax); b AND 1 / i > 0;
    c OR 1 DIV i = 1; CASE WHEN b THEN 1 DIV i ELSE 0 END; coalesce(NULL, 1 DIV i); i IN (5, 1 DIV i);
    greatest(1, 1 DIV i); i + 10 DIV (j - 5); i DIV (10 DIV (j - 5)); s || CAST(10 DIV (j - 5) AS STRING);
    10 DIV (j - 5) < i; greatest(i, 10 DIV (j - 5)); i <=> 10 DIV (j - 5); concat_ws(s, CAST(10 DIV (j - 5) AS STRING));
    """
)


BY_KIND: Mapping[OperandKind, Sequence[str]] = {
    OperandKind.STRING: ("s", "u", "k"),
    OperandKind.INT: ("i", "j", "imax", "y"),
    OperandKind.WHOLE: ("l", "i", "lmax", "y"),
    OperandKind.DOUBLE: ("x", "w", "i", "f", "p"),
    OperandKind.BYTES: ("s", "bin", "k"),
    OperandKind.BINARY: ("bin",),
    OperandKind.CONDITION: ("b", "c"),
    OperandKind.DATE: ("d", "e", "o", "n", "ltz"),
    OperandKind.CLOCK: ("n", "t", "ntz", "ltz"),
    OperandKind.INSTANT: ("t", "ltz"),
    OperandKind.MOMENT: ("d", "n", "t", "ltz"),
    OperandKind.NUMBER: ("i", "x", "p", "lmax", "f"),
}
"""The columns of the awkward rows that a kind of operand is tried with."""
CALLS = 4
"""Calls that are made from the kinds of a function's operands."""


def calls_of(function: Function) -> list[str]:
    """Its samples; if it has none, calls over columns of the kinds that it takes."""
    if function.samples:
        return [sample.strip() for sample in function.samples.split(";")]
    found = []
    for turn in range(CALLS):
        given = (BY_KIND[kind][(turn + place) % len(BY_KIND[kind])] for place, kind in enumerate(function.takes))
        found.append(f"{function.all_names[turn % len(function.all_names)]}({', '.join(given)})")
    return list(dict.fromkeys(found))
