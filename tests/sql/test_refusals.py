"""What is not supported is refused when it is declared: with the construct, its place, and what to do instead."""

import re
from collections.abc import Mapping
from contextlib import nullcontext
from types import MappingProxyType

import pyarrow as pa
import pytest
from sql_kit import local_plan, local_view, projection_of, spec

from upriver.errors import UnsupportedSql
from upriver.plan.plan import FilterOp, UserFunction
from upriver.sql.resolved.views import compile_view

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
a statement that does not begin with SELECT or WITH | ^DROP TABLE t
a statement that does not begin with SELECT or WITH | ^EXPLAIN SELECT k FROM t
a statement that does not begin with SELECT or WITH | ^INSERT INTO t SELECT k FROM t
|> is not supported | FROM t ^|> WHERE i > 1
MULTITABLE INSERTS is not supported | FROM ^t INSERT INTO made SELECT k
INSERT is not supported | WITH ^u AS (SELECT k FROM t) INSERT INTO t SELECT k FROM u
a second statement | SELECT k FROM t; SELECT ^i FROM t
a name of the query around in the ON of an outer join | SELECT k FROM t z WHERE EXISTS (SELECT 1 FROM t RIGHT JOIN t u ON t.k = u.k AND u.i = z.i WHERE t.k = z.k)
LIMIT or OFFSET in a subquery of IN that names the query around | SELECT k FROM t z WHERE i IN (SELECT i FROM t WHERE k = z.k ORDER BY l LIMIT 2)
a subquery of both sides in the ON of an outer join | SELECT z.k FROM t z LEFT JOIN t w ON z.k = w.k AND EXISTS (SELECT 1 FROM t u WHERE u.i = z.i AND u.l = w.l)
a subquery in ROLLUP, CUBE or GROUPING SETS | SELECT k FROM t GROUP BY ROLLUP(k, (SELECT ^max(i) FROM t))
a subquery that names more of the query around than its GROUP BY does | SELECT k FROM t y GROUP BY k HAVING EXISTS (SELECT 1 FROM t u WHERE u.i < sum(y.i))
't' twice in FROM | SELECT k FROM t JOIN ^t USING (k)
a join in parentheses | SELECT t.k FROM (^t JOIN t AS u ON t.k = u.k) JOIN t AS w ON t.k = w.k
mixing STRING with INT | SELECT t.k FROM t JOIN t AS u ON ^t.s = u.i
comparing MAP | SELECT t.k FROM t JOIN (SELECT DISTINCT ^k, m FROM t) AS u ON t.k = u.k
the function f() is not supported | SELECT k FROM t LATERAL VIEW ^f(a) AS e
LIMIT or OFFSET in the order of another query | SELECT k FROM (SELECT k FROM t ORDER BY i) ^LIMIT 5
LIMIT or OFFSET in the order of another query | WITH u AS (SELECT k FROM t ORDER BY i) SELECT k FROM u ^LIMIT 5
a subquery in ORDER BY without LIMIT | SELECT k FROM t ORDER BY (SELECT ^i FROM t)
a subquery in SORT BY without LIMIT | SELECT k FROM (SELECT k FROM t SORT BY i = (SELECT ^max(i) FROM t))
sha2() of these bits | SELECT ^sha2(s, s) AS n FROM t
a name of two columns in EXCEPT ALL or INTERSECT ALL | SELECT i, i AS j FROM t EXCEPT ALL SELECT ^i, i FROM t
%s of DATE | SELECT ^format_string('%s', d) AS n FROM t
sha2() of these bits | SELECT ^sha2(s, i) AS n FROM t
OFFSET by anything but a number | SELECT k FROM t ORDER BY k ^OFFSET 1 + 1
LIMIT by anything but a number | SELECT k FROM t ORDER BY k ^LIMIT 1 + 1
LIMIT by anything but a number | SELECT k FROM t ORDER BY k ^LIMIT 0
SORT is not supported | SELECT k FROM t ^SORT BY k LIMIT 1
CLUSTER is not supported | SELECT k FROM t ^CLUSTER BY k LIMIT 1
DISTRIBUTE is not supported | SELECT k FROM t ^DISTRIBUTE BY k LIMIT 1
|> is not supported | SELECT k FROM t ^|> WHERE i > 1
TABLESAMPLE | SELECT k FROM ^t TABLESAMPLE (5 PERCENT)
PIVOT by anything but constants | SELECT k FROM (SELECT k, i, s FROM t) PIVOT (sum(i) FOR s IN (^k))
session_window() that is not in GROUP BY | SELECT ^session_window(n, '1 hour').start AS k, count(*) AS c FROM t GROUP BY session_window(n, '1 hour').start
window() of these lengths | SELECT count(*) AS c FROM t GROUP BY ^window(n, '2 hours', '1 hour', '1 hour')
session_window() without GROUP BY | SELECT ^session_window(n, '1 hour').start AS k FROM t
session_window() by anything but a gap | SELECT count(*) AS c FROM t GROUP BY session_window(n, ^i)
VERSION | SELECT k FROM ^t VERSION AS OF 1
a database before a table | SELECT k FROM ^db.t
FROM anything but a table | SELECT k FROM ^numbers(5)
WITH RECURSIVE | WITH ^RECURSIVE u AS (SELECT k FROM t) SELECT k FROM u
BY_NAME is not supported | SELECT k FROM t UNION ALL BY NAME SELECT k FROM t
mixing STRING with INT in one column | SELECT k FROM t UNION ALL SELECT ^i FROM t
comparing MAP | SELECT k, m FROM t EXCEPT SELECT ^k, m FROM t
a column of nothing but NULL | SELECT k, NULL AS n FROM t UNION ALL SELECT k, NULL FROM t
a column of nothing but NULL | SELECT k FROM (SELECT k, NULL AS n FROM t)
CUBE of 8 columns | SELECT k FROM t GROUP BY CUBE(^k, i, l, x, f, p, s, b)
GROUP BY of 256 sets | SELECT k FROM t GROUP BY CUBE(^k, i, l, x, f), ROLLUP(p, s, b), b, ROLLUP(d)
a window as a whole in ROLLUP | SELECT k FROM t GROUP BY ROLLUP(^window(n, '1 hour'), k)
GROUP BY of MAP | SELECT 1 AS k FROM t GROUP BY ROLLUP(^m)
GROUP BY of NULL | SELECT 1 AS k FROM t GROUP BY NULL
a star with more than EXCEPT | SELECT ^* REPLACE (i + 1 AS i) FROM t
EXCEPT of a part of a column | SELECT * EXCEPT (^r.z) FROM t
the star of a part of a column | SELECT k FROM (SELECT k, ^s.* FROM t)
a column and an alias of another one | SELECT k AS i, i AS k FROM t GROUP BY k, i HAVING ^k > 1
${spark.app.name}, in whose place Spark may put a setting, | SELECT k FROM t WHERE s = 'a^${spark.app.name}'
&, ^ | SELECT k, i & 1 | 2 AS z FROM t
&, ^ | SELECT k, i & 1 << 2 AS z FROM t
a window as a whole, which is a STRUCT, as a column of a view | SELECT k, ^window(n, '1 hour') AS w FROM t
a window as a whole, which is a STRUCT, as a column of a view | SELECT ^* FROM (SELECT window(n, '1 hour') AS w FROM t)
a window as a whole, which is a STRUCT, in an expression | SELECT k, coalesce(^window(n, '1 hour'), NULL) AS w FROM t
a window, a STRUCT, in a set operation | SELECT k FROM t UNION ALL SELECT ^window(n, '1 hour') AS w FROM t
a second window() in one SELECT | SELECT window(n, '1 hour').start AS a, ^window(t, '1 hour').start AS b FROM t
window() by anything but a length in quotes | SELECT window(n, ^'1 month').start AS a FROM t
window() by anything but a length in quotes | SELECT window(n, ^5).start AS a FROM t
window() of DATE | SELECT ^window(d, '1 hour').start AS a FROM t
window() of these lengths | SELECT ^window(n, '1 hour', '2 hours').start AS a FROM t
window() that puts each row in 3600 windows | SELECT ^window(n, '1 hour', '1 second').start AS a FROM t
window() of 1 operands | SELECT ^window(n).start AS a FROM t
collect_set(DISTINCT ...) OVER | SELECT k, ^collect_set(DISTINCT i) OVER (PARTITION BY k) AS z FROM t
ROWS or RANGE of RANK() | SELECT k, ^RANK() OVER (ORDER BY i ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS n FROM t
RANGE of this distance | SELECT k, ^sum(i) OVER (ORDER BY k RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS n FROM t
RANGE of this distance | SELECT k, ^sum(i) OVER (ORDER BY n RANGE BETWEEN INTERVAL 1 MONTH PRECEDING AND CURRENT ROW) AS z \
FROM t
a distance or a place that is no number | SELECT k, ^lag(i, i) OVER (ORDER BY n) AS z FROM t
lag() of the row itself with IGNORE NULLS | SELECT k, ^lag(i, 0) IGNORE NULLS OVER (ORDER BY n) AS z FROM t
sorting by MAP | SELECT k FROM (SELECT k, RANK() OVER (ORDER BY ^m) AS n FROM t) WHERE n = 1
mixing INT with STRING | SELECT k, max(i) AS z FROM t GROUP BY k HAVING ^z = 'a'
ARRAY<INT> where a STRING is wanted | SELECT k, max(a) AS z FROM t GROUP BY k ORDER BY ^upper(z) LIMIT 3
max() of MAP | SELECT k, ^max(m) AS z FROM t GROUP BY k HAVING z > 1
sorting by MAP | SELECT k, m FROM t ORDER BY ^m LIMIT 1
"""

EXPRESSIONS = """
a star inside an expression | count(^t.*)
sum() of STRING             | ^sum(s)
bool_and() of INT           | ^bool_and(i)
count() of NULL             | ^count(NULL)
mode() by a computed choice | ^mode(i, i > 1)
to_char() of INT            | ^to_char(i, '999')
corr() of STRING            | ^corr(s, i)
corr() of 1 operands        | ^corr(i)
corr(DISTINCT ...)          | ^corr(DISTINCT i, l)
median(DISTINCT ...)        | ^median(DISTINCT i)
bit_and() of STRING         | ^bit_and(s)
a percentage that is no number from 0 to 1 | percentile(i, ^l)
a percentage that is no number from 0 to 1 | percentile(i, ^2)
this listagg()              | ^listagg(s, ',', 'x')
this listagg()              | ^listagg(s, s) WITHIN GROUP (ORDER BY s)
listagg() in an order that goes both ways | listagg(s, ',') WITHIN GROUP (ORDER BY i, ^l DESC)
listagg() in an order that goes both ways | listagg(s, ',') WITHIN GROUP (ORDER BY ^i NULLS LAST)
listagg() of INT            | ^listagg(i, ',') WITHIN GROUP (ORDER BY i)
max() WITHIN GROUP          | ^max(i) WITHIN GROUP (ORDER BY i)
try_sum() of DECIMAL(38,2)  | ^try_sum(CAST(p AS DECIMAL(38,2)))
the function my_udf()       | ^my_udf(i)
this part in parse_url() | ^parse_url(s, 'host')
mask() by these letters | ^mask(s, 'ab')
str_to_map() by this separator | ^str_to_map(s, '.')
a replacement that is computed | ^regexp_replace(s, '(a)b', k)
'$2' in a replacement       | ^regexp_replace(s, '(a)b', '$2')
'$' of more than 9 groups   | ^regexp_replace(s, '(a)(a)(a)(a)(a)(a)(a)(a)(a)(a)', '$1')
replacing what a regular expression finds in nothing | ^regexp_replace(s, 'a*', 'b')
'$' elsewhere than at the end | ^regexp_extract(s, '(a$)', 0)
'$' elsewhere than at the end | ^regexp_extract(s, 'a$|b', 0)
'$' elsewhere than at the end | ^regexp_replace(s, '(?:a$|b)', 'x')
this group                  | ^regexp_extract(s, '(a)', 2)
a regular expression that is computed | ^s RLIKE k
'(?s' in a regular expression | ^s RLIKE '(?s)a'
'(?i' in a regular expression | ^s RLIKE 'b(?i)a'
'[A-z]' in a regular expression | ^s RLIKE '(?i)[A-z]'
'(?<n' in a regular expression | ^s RLIKE '(?<name>a)'
'\\\\b' in a regular expression | ^s RLIKE '\\\\ba'
'\\\\p{L}' in a regular expression | ^s RLIKE '\\\\p{L}'
'++' in a regular expression | ^s RLIKE 'a++'
'{1,2}+' in a regular expression | ^s RLIKE 'a{1,2}+'
'[a&&b]' in a regular expression | ^s RLIKE '[a&&b]'
'[[:alpha:]' in a regular expression | ^s RLIKE '[[:alpha:]]'
'$' in a regular expression | ^s RLIKE 'a$b'
a part that does not end or does not begin | ^s RLIKE '(a'
more than 1000 repetitions | ^s RLIKE '(a{90}){90}'
a group that may come several times | ^regexp_extract(s, '(a|b)+', 1)
date_format() by 'DDD'      | ^date_format(n, 'DDD')
this date_format()          | ^date_format(n, s)
sha2() of these bits        | ^sha2(s, 128)
rand(), which gives another answer each time | ^rand()
uuid(), which gives another answer each time | ^uuid()
a cast from DOUBLE to STRING | TRY_CAST(^x AS STRING)
transform() without a lambda | ^transform(a, i)
LAMBDA                      | size(^y -> y)
minus of BOOLEAN            | transform(a, y -> -(^y > 1))
array_join() by a computed separator | ^array_join(array(s), s)
sorting ARRAY<MAP<STRING, INT>> | ^sort_array(array(m))
STRING as the place of an element | ^a[s]
sum() of INTERVAL DAY TO SECOND | ^sum(n - n)
arithmetic on INTERVAL DAY TO SECOND | (^t - t) * 2
a cast from INTERVAL DAY TO SECOND to STRING | CAST(^n - d AS STRING)
TIMESTAMP + INTERVAL DAY TO SECOND | ^t + (n - n)
the field year of an INTERVAL | extract(YEAR FROM ^n - n)
a hash of INTERVAL DAY TO SECOND | ^hash(d - d)
typeof() of an interval | ^typeof(n - d)
TIMESTAMP + INT is not supported | ^t + 1
unix_timestamp() of INT | ^unix_timestamp(i)
unix_timestamp() by 'QQ' | ^unix_timestamp(s, 'QQ')
>>> is not supported | i ^>>> 1
shifting DOUBLE by INT | ^x << 1
shifting INT by BIGINT | ^i >> l
mixing ARRAY<INT> with MAP<STRING, INT> | ^coalesce(a, m)
HEX STRING                  | ^X'1F'
this INTERVAL               | coalesce(INTERVAL ^'1' MONTH)
this INTERVAL               | ^n + INTERVAL '1-2' YEAR TO MONTH
this INTERVAL               | ^n + INTERVAL '1 month 2 days'
DATE and INTERVAL of less than days | ^d + INTERVAL '1' HOUR
STRING and INTERVAL         | ^s - INTERVAL 1 DAY
this escape in a string     | ^'\\101'
ARRAY<INT> where a STRING is wanted | ^a LIKE 'x'
ARRAY<INT> where a STRING is wanted | ^s LIKE a
'\\\\' in a LIKE pattern, before anything but %, _ or itself, | ^s LIKE 'a\\\\b'
COLLATE                     | ^s COLLATE UTF8_LCASE
AT TIME ZONE                | ^n AT TIME ZONE 'UTC'
PLACEHOLDER                 | :given
mixing STRING with INT      | ^s = i
mixing STRING with INT      | ^s = 1
mixing INT with STRING      | ^i IN (1, 'a')
mixing DATE with INT        | ^coalesce(d, 1)
mixing BOOLEAN with INT     | ^b = 1
arithmetic on STRING        | ^s + 1
arithmetic on BOOLEAN       | ^b * 2
STRING DIV INT              | ^s DIV 2
round() of DOUBLE to 16 places | ^round(x, 16)
round() of FLOAT to 0 places | ^round(f)
pmod() of DOUBLE            | ^pmod(x, i)
a cast from DOUBLE to STRING | CAST(^x AS STRING)
a cast from FLOAT to STRING | ^s || f
a cast from DOUBLE to FLOAT | CAST(^x AS FLOAT)
a cast from INT to ARRAY<INT> | CAST(^i AS ARRAY<INT>)
'2024-02-30' as a DATE      | ^d > '2024-02-30'
'yesterday' as a DATE       | ^d > 'yesterday'
'12:00' as a TIMESTAMP_NTZ (it cannot be cast to TIMESTAMP_NTZ) | ^n > '12:00'
'12:00' as a TIMESTAMP (it lacks a date, and Spark adds the current one) | ^t > '12:00'
'now' as a TIMESTAMP (a word that Spark replaces when it plans a query) | TRY_CAST(^'now' AS TIMESTAMP)
an element of ARRAY<VOID>   | ^element_at(array(), 1)
an element of MAP<VOID, VOID> | ^map()['a']
MAP<VOID, VOID> where a MAP is wanted | ^map_keys(map())
a column of MAP<VOID, VOID> | ^map()
a column of ARRAY<VOID>     | ^array()
explode() of ARRAY<VOID>    | ^explode(array())
posexplode() of MAP<VOID, VOID> | ^posexplode(map())
explode() of NULL           | ^explode(NULL)
date_format() by '['        | ^date_format(t, '[')
to_timestamp() by ''        | ^to_timestamp(s, '')
STRING where a DATE is wanted | ^year(s)
ARRAY<INT> where a STRING is wanted | ^upper(a)
a cast from DOUBLE to STRING | ^upper(x)
BIGINT where an INT is wanted | ^left(s, l)
left() of 1 operands        | ^left(s)
date_trunc() by a computed unit | ^date_trunc(s, n)
date_trunc() to 'fortnight' | ^date_trunc('fortnight', n)
the field MILLENNIUM        | EXTRACT(MILLENNIUM FROM ^d)
STRING as a condition       | CASE WHEN ^s THEN 1 END
a column of nothing but NULL | NULL
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


class ParisTyper:
    """A session in Paris, whose columns are whatever the plan needs."""

    timezone = "Europe/Paris"
    functions: Mapping[str, UserFunction] = MappingProxyType({})

    def __init__(self, type: pa.DataType) -> None:
        self._type = type

    def schema_of(self, sql: str) -> pa.Schema:
        return pa.schema([("k", pa.string()), ("e", self._type)])

    def curve(self, bits: int) -> tuple[float, ...]:
        return ()


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
        compile_view("v", sql, {"t": TABLE}, {}, ParisTyper(pa.int32()))


def test_a_timestamp_in_quotes_is_read_in_the_sessions_time_zone() -> None:
    sql = "SELECT k, t > '2024-07-01 12:00:00' AS e FROM t WHERE t > TIMESTAMP '2024-01-01 00:00:00' AND hour(n) > 1"
    view = compile_view("v", sql, {"t": TABLE}, {}, ParisTyper(pa.bool_()))
    assert projection_of(view).expressions[1] == "(\"t\" > TIMESTAMP '2024-07-01 10:00:00')"
    where = view.relation.inputs[0].op
    assert isinstance(where, FilterOp)
    assert "TIMESTAMP '2023-12-31 23:00:00'" in where.predicate


def test_types_other_than_sparks_are_refused() -> None:
    with pytest.raises(UnsupportedSql, match="'e', BIGINT for Spark and INT here, is not supported"):
        compile_view("v", "SELECT k, i + 1 AS e FROM t", {"t": TABLE}, {}, ParisTyper(pa.int64()))


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


def test_sql_that_does_not_parse_here_is_told_with_its_place() -> None:
    with pytest.raises(UnsupportedSql, match=r"line 2, column 14: the SQL cannot be read from here on") as raised:
        local_view("SELECT k\nFROM t WHERE WHERE b", TABLE)
    assert str(raised.value).splitlines()[1] == "FROM t WHERE WHERE b"
