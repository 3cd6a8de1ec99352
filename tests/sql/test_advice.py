"""What a refusal tells to write instead can be written: each advice is tried."""

import pyarrow as pa
import pytest
from sql_kit import local_view, spec

from upriver.errors import UnsupportedSql
from upriver.sql.resolved.views import MAP_OF

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
SELECT k FROM (SELECT k FROM t ORDER BY x) LIMIT 3 | which rows come first: ORDER BY ... LIMIT k | \
SELECT k FROM t ORDER BY x LIMIT 3
SELECT k FROM t ORDER BY x LIMIT 1 + 1 | Give how many rows, 1 or more | SELECT k FROM t ORDER BY x LIMIT 2
SELECT k, avg(ts - ts) AS z FROM t GROUP BY k | Take a number in its place: timestampdiff(SECOND, a, b) | \
SELECT k, avg(timestampdiff(SECOND, ts, ts)) AS z FROM t GROUP BY k
SELECT k, ts + 1 AS z FROM t | t + INTERVAL '5' MINUTE | SELECT k, ts + INTERVAL '5' MINUTE AS z FROM t
SELECT k, d * 2 AS z FROM t | Use date_add() or datediff() | SELECT k, date_add(d, 2) AS z FROM t
SELECT k, count(DISTINCT x) OVER (PARTITION BY k) AS z FROM t | \
FROM t JOIN (SELECT k, sum(x) AS x FROM t GROUP BY k) AS s ON s.k = t.k | \
SELECT t.k, t.x AS one, s.x AS z FROM t JOIN (SELECT k, count(DISTINCT x) AS x FROM t GROUP BY k) AS s ON s.k = t.k
SELECT k, sum(x) OVER (ORDER BY k RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS z FROM t | count in ROWS | \
SELECT k, sum(x) OVER (ORDER BY k ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS z FROM t
SELECT k, RANK() OVER (ORDER BY k ROWS 1 PRECEDING) AS z FROM t | Leave the frame out | \
SELECT k, RANK() OVER (ORDER BY k) AS z FROM t
SELECT k, concat(k, x / 2) AS z FROM t | CAST(CAST(x AS DECIMAL(18, 2)) AS STRING) | \
SELECT k, concat(k, CAST(CAST(x / 2 AS DECIMAL(18, 2)) AS STRING), format_number(x / 2, 2)) AS z FROM t
WITH RECURSIVE u AS (SELECT k, x FROM t) SELECT k FROM u | once for each level | \
SELECT a.k, c.k AS above FROM t a LEFT JOIN t b ON b.x = a.x LEFT JOIN t c ON c.x = b.x
SELECT k, approx_count_distinct(x, 0.001) AS z FROM t GROUP BY k | take count(DISTINCT x) | \
SELECT k, count(DISTINCT x) AS z FROM t GROUP BY k
SELECT k, count(*) AS n, explode(split(s, ',')) AS z FROM t GROUP BY k | \
FROM (SELECT explode(x) AS e, ... FROM t) | \
SELECT k, z, count(*) AS n FROM (SELECT k, explode(split(s, ',')) AS z FROM t) GROUP BY k, z
SELECT k, listagg(x, ',') WITHIN GROUP (ORDER BY x) AS z FROM t GROUP BY k | listagg(CAST(x AS STRING), ',') | \
SELECT k, listagg(CAST(x AS STRING), ',') WITHIN GROUP (ORDER BY x) AS z FROM t GROUP BY k
SELECT k, listagg(s) WITHIN GROUP (ORDER BY x, k DESC) AS z FROM t GROUP BY k | ORDER BY x DESC, y DESC | \
SELECT k, listagg(s) WITHIN GROUP (ORDER BY x DESC, k DESC) AS z FROM t GROUP BY k
SELECT k, corr(DISTINCT x, x + 1) AS z FROM t GROUP BY k | FROM (SELECT DISTINCT ...) | \
SELECT k, corr(x, y) AS z FROM (SELECT DISTINCT k, x, x + 1 AS y FROM t) GROUP BY k
SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u RIGHT JOIN t v ON u.k = v.k AND u.x = t.x WHERE u.k = t.k) | \
Put the condition into the subquery's WHERE | \
SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u RIGHT JOIN t v ON u.k = v.k WHERE u.k = t.k AND u.x = t.x)
SELECT k FROM t WHERE x IN (SELECT x FROM u WHERE u.k = t.k ORDER BY g LIMIT 2) | \
Number the rows by ROW_NUMBER() in a subquery, and ask for n <= k | SELECT k FROM t WHERE x IN \
(SELECT x FROM (SELECT x, ROW_NUMBER() OVER (ORDER BY g) AS n FROM u WHERE u.k = t.k) WHERE n <= 2)
SELECT t.k FROM t LEFT JOIN u ON t.k = u.k AND EXISTS (SELECT 1 FROM u v WHERE v.x = t.x AND v.g = u.g) | \
Compute it in a subquery of the one side, and join with that | SELECT t.k FROM t LEFT JOIN \
(SELECT u.k, v.x FROM u JOIN (SELECT DISTINCT g, x FROM u) v ON v.g = u.g) w ON t.k = w.k AND t.x = w.x
SELECT k FROM t GROUP BY ROLLUP(k, (SELECT max(x) FROM u)) | Compute it in a subquery, and group by its column | \
SELECT k FROM (SELECT k, (SELECT max(x) FROM u) AS m FROM t) GROUP BY ROLLUP(k, m)
SELECT k FROM t GROUP BY k HAVING EXISTS (SELECT 1 FROM u WHERE u.x < sum(t.x)) | \
Group in a subquery, with all that is needed | \
SELECT k FROM (SELECT k, sum(x) AS s FROM t GROUP BY k) AS z WHERE EXISTS (SELECT 1 FROM u WHERE u.x < z.s)
SELECT k, regexp_extract(s, '(a$|b$)', 1) AS z FROM t | Let it end with $ | \
SELECT k, regexp_extract(s, '(a|b)$', 1) AS z FROM t
SELECT k FROM t WHERE s = '${spark.app.name}' | concat('$', '{...') | \
SELECT k FROM t WHERE s = concat('$', '{spark.app.name}')
"""


@pytest.mark.parametrize("line", ADVICE.strip().splitlines())
def test_what_is_told_to_be_written_can_be(line: str) -> None:
    refused, said, mended = (part.strip() for part in line.split(" | "))
    with pytest.raises(UnsupportedSql) as raised:
        local_view(refused, T, U)
    assert said in str(raised.value).splitlines()[0]
    assert local_view(mended, T, U).schema.names


def test_a_stateful_map_in_from_is_refused_as_what_it_is() -> None:
    with pytest.raises(UnsupportedSql, match="FROM tallies, which is a stateful map, is not supported") as raised:
        local_view("SELECT k FROM tallies", T, tallies=f"{MAP_OF}t")
    assert "app.read() of the map" in str(raised.value)
    assert str(raised.value).endswith("SELECT k FROM tallies\n              ^")
    with pytest.raises(UnsupportedSql, match="FROM tallies, which is a stateful map"):
        local_view("SELECT k FROM w", T, w="SELECT k FROM tallies", tallies=f"{MAP_OF}t")
