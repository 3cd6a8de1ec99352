"""What a refusal tells to write instead can be written: each advice is tried."""

import pyarrow as pa
import pytest
from sql_kit import local_view, spec

from upriver.errors import UnsupportedSql

T = spec(
    "t",
    pa.schema(
        [
            *(("k", pa.string()), ("x", pa.int32()), ("b", pa.bool_()), ("s", pa.string()), ("d", pa.date32())),
            *(("at", pa.timestamp("us")), ("ts", pa.timestamp("us", "UTC"))),
        ]
    ),
)
U = spec("u", pa.schema([("k", pa.string()), ("g", pa.string()), ("x", pa.int32())]))

# What is refused; the words of the advice; and the query as it is mended.
ADVICE = """
SELECT k FROM t ORDER BY x LIMIT 1 + 1 | Write the number | SELECT k FROM t ORDER BY x LIMIT 2
SELECT k FROM (SELECT k FROM t SORT BY x LIMIT 3) | Write ORDER BY | SELECT k FROM (SELECT k FROM t ORDER BY x LIMIT 3)
SELECT k FROM t ORDER BY (SELECT max(x) FROM u) | Leave it out | SELECT k FROM t
SELECT x, x AS y FROM t EXCEPT ALL SELECT x, x FROM u | Give one another name: SELECT a, a AS b | \
SELECT x, x AS y FROM t EXCEPT ALL SELECT x, x AS y FROM u
SELECT k, avg(ts - ts) AS z FROM t GROUP BY k | Take a number in its place: timestampdiff(SECOND, a, b) | \
SELECT k, avg(timestampdiff(SECOND, ts, ts)) AS z FROM t GROUP BY k
SELECT k, ts + (ts - at) AS z FROM t | t + INTERVAL '5' MINUTE | SELECT k, ts + INTERVAL '5' MINUTE AS z FROM t
SELECT k, listagg(s, ',') OVER (PARTITION BY k) AS z FROM t | \
FROM t JOIN (SELECT k, sum(x) AS x FROM t GROUP BY k) AS s ON s.k = t.k | \
SELECT t.k, t.x AS one, s.x AS z FROM t JOIN (SELECT k, listagg(s, ',') AS x FROM t GROUP BY k) AS s ON s.k = t.k
SELECT k, sum(x) OVER (ORDER BY d RANGE BETWEEN INTERVAL 1 MONTH PRECEDING AND CURRENT ROW) AS z FROM t | \
count in ROWS | SELECT k, sum(x) OVER (ORDER BY d ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS z FROM t
SELECT k, first_value(x) FILTER (WHERE b) OVER (PARTITION BY k ORDER BY d) AS z FROM t | Filter in a subquery | \
SELECT k, first_value(x) OVER (PARTITION BY k ORDER BY d) AS z FROM (SELECT * FROM t WHERE b)
SELECT k, concat(k, x / 2) AS z FROM t | CAST(CAST(x AS DECIMAL(18, 2)) AS STRING) | \
SELECT k, concat(k, CAST(CAST(x / 2 AS DECIMAL(18, 2)) AS STRING), format_number(x / 2, 2)) AS z FROM t
WITH RECURSIVE c AS (SELECT k, x FROM t UNION ALL SELECT k, x + 1 FROM c WHERE x < 5) SELECT k FROM c | \
once for each level | \
SELECT a.k, c.k AS above FROM t a LEFT JOIN t b ON b.x = a.x LEFT JOIN t c ON c.x = b.x
SELECT k, approx_count_distinct(x, 0.001) AS z FROM t GROUP BY k | take count(DISTINCT x) | \
SELECT k, count(DISTINCT x) AS z FROM t GROUP BY k
SELECT k, listagg(CAST(s AS BINARY)) AS z FROM t GROUP BY k | CAST what it lists to STRING | \
SELECT k, listagg(CAST(s AS STRING)) AS z FROM t GROUP BY k
SELECT k, listagg(s) WITHIN GROUP (ORDER BY x, k DESC) AS z FROM t GROUP BY k | ORDER BY x DESC, y DESC | \
SELECT k, listagg(s) WITHIN GROUP (ORDER BY x DESC, k DESC) AS z FROM t GROUP BY k
SELECT k, corr(DISTINCT x, x + 1) AS z FROM t GROUP BY k | FROM (SELECT DISTINCT ...) | \
SELECT k, corr(x, y) AS z FROM (SELECT DISTINCT k, x, x + 1 AS y FROM t) GROUP BY k
SELECT session_window.start AS z, k, count(*) AS n FROM t GROUP BY GROUPING SETS ((session_window(at, '5 minutes')), \
(k)) | Group by it in a subquery | SELECT z, k, sum(n) AS n FROM (SELECT session_window.start AS z, k, count(*) AS n \
FROM t GROUP BY session_window(at, '5 minutes'), k) GROUP BY GROUPING SETS ((z), (k))
SELECT k, count(*) AS n FROM t GROUP BY CUBE(k, x, b, s, d, at, ts, k || 'a') | GROUPING SETS (...), at most 128 | \
SELECT k, count(*) AS n FROM t GROUP BY GROUPING SETS ((k), (k, x), ())
SELECT k, json_tuple(s, 'a') AS z FROM t | Take explode(), posexplode(), inline() or stack() | \
SELECT k, stack(2, x, x + 1) AS z FROM t
SELECT k, array_sort(array(x, 2), (a, b) -> b - a) AS z FROM t | array_sort(transform(a, ...)) | \
SELECT k, array_sort(transform(array(x, 2), a -> -a)) AS z FROM t
SELECT k, element_at(array(1, 2), x) AS z FROM t | Write get(a, i), or coalesce(i, 0) for the index | \
SELECT k, get(array(1, 2), x) AS z, element_at(array(1, 2), coalesce(x, 0)) AS y FROM t
SELECT k, regexp_extract(s, '(a$|b$)', 1) AS z FROM t | Let it end with $ | \
SELECT k, regexp_extract(s, '(a|b)$', 1) AS z FROM t
"""


@pytest.mark.parametrize("line", ADVICE.strip().splitlines())
def test_what_is_told_to_be_written_can_be(line: str) -> None:
    refused, said, mended = (part.strip() for part in line.split(" | "))
    with pytest.raises(UnsupportedSql) as raised:
        local_view(refused, T, U)
    assert said in str(raised.value).splitlines()[0]
    assert local_view(mended, T, U).schema.names
