"""What is not supported is refused when it is declared: with the construct, its place, and what to do instead."""

import re
from contextlib import nullcontext

import pyarrow as pa
import pytest
from sql_kit import local_plan, local_view, projection_of, spec

from simulator.shared_analyser import SharedAnalyser
from upriver.errors import UnsupportedSql
from upriver.plan.plan import FilterOp
from upriver.sql.views import CompiledView, compile_view

TABLE = spec(
    "t",
    pa.schema(
        [
            ("k", pa.string()),
            ("i", pa.int32()),
            ("l", pa.int64()),
            ("x", pa.float64()),
            ("f", pa.float32()),
            ("p", pa.decimal128(20, 2)),
            ("s", pa.string()),
            ("b", pa.bool_()),
            ("d", pa.date32()),
            ("n", pa.timestamp("us")),
            ("t", pa.timestamp("us", tz="Europe/Paris")),
            ("a", pa.list_(pa.int32())),
            ("m", pa.map_(pa.string(), pa.int32())),
            ("r", pa.struct([("z", pa.int32())])),
        ]
    ),
)

# ruff: noqa: E501  queries are easier to read on one line
# What is said; and the SQL, in which the place is marked with a caret.
QUERIES = """
a statement that is no query (DropTable) | ^DROP TABLE t
a statement that is no query (UnresolvedExecuteImmediate) | ^EXECUTE IMMEDIATE 'DROP TABLE t'
a ${variable} of the session | SELECT k, '^${spark.app.name}' AS e FROM t
a statement that is no query (ExplainCommand) | ^EXPLAIN SELECT k FROM t
a statement that is no query (InsertIntoStatement) | ^INSERT INTO t SELECT k FROM t
a statement that is no query (InsertIntoStatement) | ^FROM t INSERT INTO made SELECT k
a statement that is no query (InsertIntoStatement) | ^WITH u AS (SELECT k FROM t) INSERT INTO t SELECT k FROM u
sha2() of these bits | SELECT ^sha2(s, s) AS n FROM t
a name of two columns in EXCEPT ALL or INTERSECT ALL | ^SELECT i, i AS j FROM t EXCEPT ALL SELECT i, i FROM t
%s of DATE | SELECT ^format_string('%s', d) AS n FROM t
sha2() of these bits | SELECT ^sha2(s, i) AS n FROM t
LIMIT or OFFSET by anything but a number | SELECT k FROM t ^ORDER BY k OFFSET 1 + 1
LIMIT or OFFSET by anything but a number | SELECT k FROM t ^ORDER BY k LIMIT 1 + 1
TABLESAMPLE | SELECT k FROM t ^TABLESAMPLE (5 PERCENT)
a view without columns | SELECT * EXCEPT (k) FROM (SELECT k FROM t)
the column r, STRUCT<>, a struct without fields, | SELECT * EXCEPT (r.z) FROM t
the column z, STRUCT<A:INT,A:STRING>, a struct with two fields of one name, | SELECT named_struct('a', i, 'a', k) AS z FROM t
a column of nothing but NULL, 'n', | SELECT k, NULL AS n FROM t UNION ALL SELECT k, NULL FROM t
GROUP BY of 256 sets | SELECT k FROM t ^GROUP BY CUBE(k, i, l, x, f, p, s, b)
GROUP BY of 256 sets | SELECT k FROM t ^GROUP BY CUBE(k, i, l, x, f), ROLLUP(p, s, b), b, ROLLUP(d)
GROUP BY of MAP<STRING, INT> | SELECT 1 AS k FROM t ^GROUP BY ROLLUP(m)
GROUP BY of NULL | SELECT 1 AS k FROM t GROUP BY ^NULL
window() that puts each row in 3600 windows | ^SELECT window(n, '1 hour', '1 second').start AS a FROM t
RANGE of this distance | SELECT k, sum(i) OVER (ORDER BY n RANGE BETWEEN ^INTERVAL 1 MONTH PRECEDING AND CURRENT ROW) AS z FROM t
lag() of the row itself with IGNORE NULLS | SELECT k, ^lag(i, 0) IGNORE NULLS OVER (ORDER BY n) AS z FROM t
"""

EXPRESSIONS = """
count() of NULL | ^count(NULL)
to_char() of DECIMAL(10,0) | ^to_char(i, '999')
corr(DISTINCT ...) | ^corr(DISTINCT i, l)
median(DISTINCT ...) | ^median(DISTINCT i)
listagg() in an order that goes both ways | listagg(s, ',') WITHIN GROUP (ORDER BY i, ^l DESC)
listagg() in an order that goes both ways | listagg(s, ',') WITHIN GROUP (ORDER BY ^i NULLS LAST)
try_sum() of DECIMAL(38,2) | ^try_sum(CAST(p AS DECIMAL(38,2)))
this part in parse_url() | ^parse_url(s, 'host')
str_to_map() by this separator | ^str_to_map(s, '.')
a replacement that is computed | ^regexp_replace(s, '(a)b', k)
'$2' in a replacement, which is no group, | ^regexp_replace(s, '(a)b', '$2')
'$' of more than 9 groups | ^regexp_replace(s, '(a)(a)(a)(a)(a)(a)(a)(a)(a)(a)', '$1')
replacing what a regular expression finds in nothing | ^regexp_replace(s, 'a*', 'b')
'$' elsewhere than at the end of this regular expression | ^regexp_extract(s, '(a$)', 0)
'$' elsewhere than at the end of this regular expression | ^regexp_extract(s, 'a$|b', 0)
'$' elsewhere than at the end of this regular expression | ^regexp_replace(s, '(?:a$|b)', 'x')
this group of a regular expression | ^regexp_extract(s, '(a)', 2)
a regular expression that is computed | s ^RLIKE k
'(?m' in a regular expression | s ^RLIKE '(?m)a'
'(?i' in a regular expression | s ^RLIKE 'b(?i)a'
'[A-z]' in a regular expression | s ^RLIKE '(?i)[A-z]'
'(?<n' in a regular expression | s ^RLIKE '(?<name>a)'
'\\\\b' in a regular expression | s ^RLIKE '\\\\ba'
'\\\\p{L}' in a regular expression | s ^RLIKE '\\\\p{L}'
'++' in a regular expression | s ^RLIKE 'a++'
'{1,2}+' in a regular expression | s ^RLIKE 'a{1,2}+'
'[^a&&b]' in a regular expression | s ^RLIKE '[^a&&b]'
'[a&&&&]' in a regular expression | s ^RLIKE '[a&&&&]'
'$' in a regular expression | s ^RLIKE 'a$b'
a regular expression with a part that does not end or does not begin | s ^RLIKE '(a'
a regular expression with more than 1000 repetitions | s ^RLIKE '(a{90}){90}'
a group that may come several times | ^regexp_extract(s, '(a|b)+', 1)
date_format() by 'DDD' | ^date_format(n, 'DDD')
this date_format() | ^date_format(n, s)
sha2() of these bits | ^sha2(s, 128)
rand(), which gives another answer each time, | ^rand()
uuid(), which gives another answer each time, | ^uuid()
a cast from DOUBLE to STRING | ^TRY_CAST(x AS STRING)
array_join() by a computed separator | ^array_join(array(s), s)
sum() of INTERVAL DAY TO SECOND | ^sum(n - n)
an INTERVAL times a number | ^(t - t) * 2
a cast from INTERVAL DAY TO SECOND to STRING | ^CAST(n - d AS STRING)
TIMESTAMP and this INTERVAL | ^t + (n - n)
a hash of INTERVAL DAY TO SECOND | ^hash(d - d)
typeof() of an interval | ^typeof(n - d)
unix_timestamp() by 'QQ' | ^unix_timestamp(s, 'QQ')
'\\\\' in a LIKE pattern, before anything but %, _ or itself, | s ^LIKE 'a\\\\b'
a value of the type that collate() gives | ^s COLLATE UTF8_LCASE
round() of DOUBLE to 16 places | ^round(x, 16)
round() of FLOAT to 0 places | ^round(f)
pmod() of DOUBLE and DOUBLE | ^pmod(x, i)
a cast from DOUBLE to STRING | ^CAST(x AS STRING)
a cast from FLOAT to STRING | ^s || f
a cast from DECIMAL(20,2) to TIMESTAMP | ^CAST(p AS TIMESTAMP)
'2024-02-30' as a DATE (it names a day that does not exist) | ^d > '2024-02-30'
'yesterday' as a DATE (a word that Spark replaces when it plans a query) | ^d > 'yesterday'
'12:00' as a TIMESTAMP_NTZ (it cannot be cast to TIMESTAMP_NTZ) | ^n > '12:00'
'12:00' as a TIMESTAMP (it lacks a date, and Spark adds the current one) | ^t > '12:00'
'now' as a TIMESTAMP (a word that Spark replaces when it plans a query) | ^TRY_CAST('now' AS TIMESTAMP)
the column e, VOID, with a part of nothing but NULL, | element_at(array(), 1)
the column e, ARRAY<VOID>, with a part of nothing but NULL, | map_keys(map())
the column e, MAP<VOID,VOID>, with a part of nothing but NULL, | map()
the column e, ARRAY<VOID>, with a part of nothing but NULL, | array()
the column e, INTERVAL YEAR | INTERVAL '1' YEAR
the column e, VOID, with a part of nothing but NULL, | explode(array())
date_format() by '[' | ^date_format(t, '[')
to_timestamp() by '' | ^to_timestamp(s, '')
a cast from DOUBLE to STRING | ^upper(x)
date_trunc() by a computed unit | ^date_trunc(s, n)
date_trunc() to 'fortnight' | ^date_trunc('fortnight', n)
a column of nothing but NULL, 'e', | NULL
"""


def marked(text: str, before: str = "") -> tuple[str, str, int | None]:
    """(what is said, the SQL with ``before`` in front, the marked place's offset)."""
    what, sql = (part.strip() for part in text.split(" | ", 1))
    place = sql.find("^")
    return what, before + sql.replace("^", "", 1), len(before) + place if place >= 0 else None


def check(message: str, what: str, place: int | None) -> None:
    """The message says what, where and what to do."""
    first, *shown = message.splitlines()
    assert what in first
    assert re.search(r"is not supported\. [A-Z].+\.$", first)
    if place is not None:
        assert f"line 1, column {place + 1}: " in first
        assert shown[1] == " " * place + "^"


@pytest.mark.parametrize("line", QUERIES.strip().splitlines())
def test_a_query_is_refused(line: str) -> None:
    what, sql, place = marked(line)
    with pytest.raises(UnsupportedSql) as raised:
        local_view(sql, TABLE)
    check(str(raised.value), what, place)


@pytest.mark.parametrize("line", EXPRESSIONS.strip().splitlines())
def test_an_expression_is_refused(line: str) -> None:
    what, sql, place = marked(line, "SELECT k, ")
    grouped = (
        " GROUP BY k"
        if re.search(r"\b(count|sum|avg|bool_and|mode|corr|median|bit_and|percentile|listagg|max|try_sum)\(", sql)
        else ""
    )
    with pytest.raises(UnsupportedSql) as raised:
        local_view(f"{sql} AS e FROM t{grouped}", TABLE)
    check(str(raised.value), what, place)


def in_paris(sql: str) -> CompiledView:
    """A view of a session in Paris."""
    return compile_view("v", sql, {"t": TABLE}, {}, SharedAnalyser({"t": TABLE}, timezone="Europe/Paris"))


@pytest.mark.parametrize(
    "text",
    [
        "sequence(t, t + INTERVAL 1 HOUR, INTERVAL 1 DAY)",
        "sum(i) OVER (ORDER BY t RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW)",
    ],
)
def test_what_counts_days_of_a_timestamps_clock_needs_a_session_in_utc(text: str) -> None:
    sql = f"SELECT k, {text} AS e FROM t"
    assert local_view(sql, TABLE).relation
    with pytest.raises(
        UnsupportedSql, match=r"session's time zone \(Europe/Paris\).*Set spark.sql.session.timeZone to UTC"
    ):
        in_paris(sql)


def test_a_timestamp_in_quotes_is_read_in_the_sessions_time_zone() -> None:
    sql = "SELECT k, t > '2024-07-01 12:00:00' AS e FROM t WHERE t > TIMESTAMP '2024-01-01 00:00:00' AND hour(n) > 1"
    view = in_paris(sql)
    assert projection_of(view).expressions[1] == "(\"t\" > TIMESTAMP '2024-07-01 10:00:00')"
    where = view.relation.inputs[0].op
    assert isinstance(where, FilterOp)
    assert "TIMESTAMP '2023-12-31 23:00:00'" in where.predicate


def test_an_expression_may_not_grow_without_bound() -> None:
    nested = "s"
    for _ in range(8):
        nested = f"substring({nested}, i, i)"
    with pytest.raises(UnsupportedSql, match=r"nested as deeply|as large as this"):
        local_view("SELECT k, " + "abs(" * 3000 + "i" + ")" * 3000 + " AS e FROM t", TABLE)
    assert projection_of(local_view(f"SELECT k, {nested} AS e FROM t", TABLE)).expressions


@pytest.mark.parametrize(("joins", "most"), [(24, None), (76, "nested as deeply")])
def test_joins_that_merge_one_column_again_and_again(joins: int, most: str | None) -> None:
    sql = "SELECT count(*) AS n FROM t" + "".join(f" FULL JOIN t AS t{n} USING (i)" for n in range(joins))
    with nullcontext() if most is None else pytest.raises(UnsupportedSql, match=most):
        local_plan(sql, "n", TABLE)
