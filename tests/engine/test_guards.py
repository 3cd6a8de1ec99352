"""An error counts only where Spark would raise it: not on rows that a guard excludes, wherever the guard stands."""

import re

import pyarrow as pa
import pytest
from guards_kit import kept

from upriver.engine.expressions import Evaluator
from upriver.errors import RowError

EVALUATOR = Evaluator()
ROWS = {
    "t": pa.record_batch(
        {
            "id": pa.array([1, 2, 3, 4, 5], pa.int32()),
            "k": ["a", "a", "bad", "b", None],
            "s": ["7", "x", "y", "9", "z"],
            "v": pa.array([2, 0, 0, 5, 0], pa.int32()),
        }
    ),
    "u": pa.record_batch(
        {"n": pa.array([1, 2, 3], pa.int32()), "k": ["a", "bad", "b"], "w": pa.array([10, 0, 4], pa.int32())}
    ),
}
X = "(SELECT id, k, s, v, 10 / v AS x FROM t)"
WHOLE = "WHERE s RLIKE '^[0-9]+$'"

# The view's key, the rows of t and of u that Spark would fail on, what the others come to; and the SQL.
CASES = f"""
k | | | a 5.0 2, b 2.0 1, bad None 1, None None 1 | SELECT k, sum(10 / v) FILTER (WHERE v <> 0) AS s, count(*) AS n FROM t GROUP BY k
k | | | a 7, b 9, bad None, None None | SELECT k, sum(CAST(s AS INT)) FILTER ({WHOLE}) AS x FROM t GROUP BY k
k | 2,3,5 | | a 5.0 1, b 2.0 1 | SELECT k, sum(x) FILTER (WHERE v <> 0) AS x, count(*) AS n FROM {X} GROUP BY k
k | 2,3,5 | | a 5.0 5.0, b 2.0 2.0 | SELECT k, sum(x) FILTER (WHERE v <> 0) AS x, max(x) AS y FROM {X} GROUP BY k
k | 3 | | a 12, b 15, None None | SELECT k, sum(10 + v) FILTER (WHERE 1 / length(k) < 10 / v) AS x FROM t WHERE id <> 2 GROUP BY k
id | | | 1 7, 4 9 | SELECT id, x FROM (SELECT id, s, CAST(s AS INT) AS x FROM t) {WHOLE}
id | | | 1 5.0, 4 2.0 | SELECT id, x FROM {X} WHERE v > 0 AND x > 1
id | 2,3,5 | | 1 5.0, 4 2.0 | SELECT id, x FROM {X} WHERE x > 1 AND v > 0
id | 2,3 | | 1, 4 | SELECT id FROM t WHERE 10 / v > length(k)
id | 2,3,5 | | 1, 4 | SELECT id FROM t WHERE (10 / v > length(k)) IS NOT NULL
id | 2,3,5 | | 1, 4 | SELECT id FROM t WHERE 10 / v > 0 AND length(k) > 0
id | | | 5 | SELECT id FROM t WHERE NOT length(k) * v IS NOT NULL
id | | | 5 | SELECT id FROM t WHERE (length(k) * v IS NOT NULL) = FALSE
id | 2,3 | | 1, 4 | SELECT id FROM t WHERE CAST(s AS INT) > length(k)
id | | | 1, 4 | SELECT id FROM (SELECT id, v, x, y FROM (SELECT id, v, x, x + 1 AS y FROM {X})) WHERE v > 0 AND y > 1
k | 2 | | a 5.0, b 2.0 | SELECT k, sum(10 / v) AS x FROM t GROUP BY k HAVING k <> 'bad'
k | | | b 2.0 | SELECT k, x FROM (SELECT k, sum(10 / v) AS x FROM t GROUP BY k HAVING count(*) > 0) WHERE k LIKE 'b' AND x > 1
k | | | B 2.0 | SELECT k, x FROM (SELECT upper(k) AS k, sum(10 / v) AS x FROM t GROUP BY upper(k)) WHERE k = 'B'
k | | | b | SELECT k FROM (SELECT DISTINCT k, 10 / v AS x FROM t) WHERE k = 'b'
k | | | b 4 | SELECT k, id FROM (SELECT k, id, row_number() OVER (PARTITION BY k ORDER BY 10 / v, id) AS n FROM t) WHERE n = 1 AND k = 'b'
id | 2,3,5 | | 1 5.0, 4 2.0 | SELECT id, x FROM (SELECT id, 10 / v AS x, row_number() OVER (PARTITION BY k ORDER BY id DESC) AS n FROM t) WHERE n = 1
id | | | 1 5.0, 2 None, 3 None, 4 2.0, 5 None | SELECT id, CASE WHEN v <> 0 THEN x END AS x FROM {X}
id | | | 1 5.0, 2 None, 3 None, 4 2.0, 5 None | SELECT id, if(v = 0, NULL, x) AS x FROM (SELECT id, v, x FROM {X})
id | | | 1 5.0, 2 -1.0, 3 -1.0, 4 2.0, 5 -1.0 | SELECT id, coalesce(CASE WHEN v = 0 THEN -1D END, x) AS x FROM {X}
id | 2,3,5 | | 1 5.0 6.0, 4 2.0 3.0 | SELECT id, CASE WHEN v <> 0 THEN x END AS x, CASE WHEN v <> 0 THEN x + 1 END AS y FROM {X}
id | | | 1 True, 2 True, 3 True, 4 False, 5 True | SELECT id, v = 0 OR x > 3 AS y FROM {X}
id | | | 1, 4 | SELECT id FROM (SELECT id, 10 / v AS x, v FROM t UNION ALL SELECT n, 1D, 0 FROM u) WHERE v <> 0
id | | | 1 0.5, 1 5.0, 4 0.2, 4 2.0 | SELECT id, CASE WHEN v <> 0 THEN x END AS x FROM (SELECT id, 10 / v AS x, v FROM t UNION ALL SELECT id, 1 / v, v FROM t) WHERE v > 0 AND id + x < 6.5
id | | | 1, 4 | SELECT t.id FROM t JOIN u ON CAST(t.s AS INT) = u.n + 6 {WHOLE.replace(" s ", " t.s ")}
id | 2,3,5 | | 1, 4 | SELECT t.id FROM t JOIN u ON CAST(t.s AS INT) = u.n + 6
id | | | 1 1.0, 4 2.5 | SELECT t.id, x FROM t JOIN (SELECT k, 10 / w AS x FROM u) u ON t.k = u.k WHERE t.k <> 'bad' AND t.v > 0
id | | 2 | 1 1.0, 2 1.0, 4 2.5 | SELECT t.id, x FROM t JOIN (SELECT k, 10 / w AS x FROM u) u ON t.k = u.k
id | | | 1 1.0, 2 1.0, 4 2.5 | SELECT t.id, x FROM t LEFT JOIN (SELECT k, w, 10 / w AS x FROM u) u ON t.k = u.k WHERE u.w <> 0
id | | | 1 1.0, 2 1.0, 4 2.5 | SELECT t.id, x FROM t FULL JOIN (SELECT k, w, 10 / w AS x FROM u) u ON t.k = u.k WHERE u.w <> 0 AND t.id > 0
id | | 2 | 1 1.0, 2 1.0, 3 None, 4 2.5, 5 None | SELECT t.id, x FROM t LEFT JOIN (SELECT k, w, 10 / w AS x FROM u) u ON t.k = u.k WHERE coalesce(u.w, 1) <> 0
id | | | 1 1.0, 4 2.5 | SELECT t.id, x FROM (SELECT k, w, 10 / w AS x FROM u) u RIGHT JOIN t ON t.k = u.k AND 10 / t.v > 0 WHERE u.w <> 0 AND t.v <> 0
id | 3 | | 1 2.0, 2 None, 4 5.0, 5 None | SELECT id, length(nullif(k, if(id = 2, 'a', 'c'))) + 10 / v + id - id + 1 - 20 / v + 5 AS x FROM t WHERE id <> 5 OR k IS NULL
id | 2,3 | | 1 -4.0, 4 -1.0, 5 None | SELECT id, length(k) + (10 / v - 20 / v) AS x FROM t
id | 2,3,5 | | 1 -4.0, 4 -1.0 | SELECT id, (10 / v - 20 / v) + length(k) AS x FROM t
id | 2,3 | | 1, 4 | SELECT id FROM t WHERE length(k) < 10 / v
id | | | 1 5, 2 0, 3 0, 4 2, 5 0 | SELECT id, if(v = 0, 0, 10 DIV v) AS x FROM t
id | 2,3,5 | | 1 0, 4 0 | SELECT id, length(k) DIV (10 DIV v + 10) AS x FROM t
id | 2,3 | | 1 5, 4 2, 5 None | SELECT id, (10 DIV v) DIV length(k) AS x FROM t
id | 2,3 | | 1 a5, 4 b2, 5 None | SELECT id, k || CAST(10 DIV v AS STRING) AS x FROM t
id | | | 1 1.0, 2 1.0, 3 None, 4 2.5, 5 None | SELECT t.id, x FROM t LEFT JOIN (SELECT k, w, 10 / w AS x FROM u) u ON t.k = u.k AND u.w > 0
id | 2,3,5 | | 1 1, 4 3 | SELECT id, n FROM {X} t JOIN u ON t.k = u.k WHERE x < 20
id | 2,3,5 | | 1, 4 | SELECT id FROM t WHERE k IN (SELECT k FROM u WHERE w > 0) AND 10 / v > 1
id | | | 1 5.0, 4 2.0 | SELECT id, 10 / v AS x FROM t WHERE EXISTS (SELECT 1 / w FROM u WHERE u.k = t.k) AND v <> 0
id | | | 3, 5 | SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND w > 0 AND 10 / w > 0)
k | | | a 2, b 1, bad 1, None 1 | WITH c AS (SELECT k, 10 / v AS x FROM t) SELECT k, count(*) AS n FROM c GROUP BY k
id | | | 1, 2, 3, 4, 5 | SELECT id FROM {X}
y | | | 0.0 3, 2.0 1, 5.0 1 | SELECT if(v = 0, 0D, x) AS y, count(*) AS n FROM {X} GROUP BY if(v = 0, 0D, x)
k | 2,3,5 | | a 5.0, b 2.0 | SELECT k, sum(CASE WHEN v <> 0 THEN x END) AS x FROM {X} GROUP BY k
id | 2,3,5 | | 1, 4 | SELECT id FROM {X} WHERE x IS NOT NULL
k | | | b 2.0 | SELECT k, x FROM {X} WHERE k = 'b' INTERSECT SELECT k, x FROM {X} WHERE v = 5
k | | | b 2.0 | SELECT k, x FROM (SELECT k, x FROM {X} EXCEPT SELECT k, w / 4D FROM u) WHERE k = 'b'
id | 2,3,5 | | 1 5.0 | SELECT id, 10 / v AS x FROM t ORDER BY id LIMIT 1
id | | | 1, 4 | SELECT id FROM t WHERE (id / v) IS NOT NULL AND v > 0
id | | | 1, 4 | SELECT id FROM (SELECT id, v, id / v AS x FROM t) WHERE x IS NOT NULL AND v > 0
id | 2,3,5 | | 1, 4 | SELECT id FROM t WHERE (10 / v) IS NOT NULL AND v > 0
id | | | 1, 4 | SELECT id FROM t WHERE (id / v > length(k)) IS NOT NULL AND v > 0
id | 2,3,5 | | 1, 4 | SELECT id FROM t WHERE k IS NOT NULL AND 10 / v > 1
id | 2,3 | | 1, 4 | SELECT id FROM t WHERE k IS NOT NULL AND coalesce(10 / v, length(k)) > 1
id | 2,3 | | 1, 4 | SELECT id FROM (SELECT id, length(k) + 10 / v AS x FROM t) WHERE x > 1
k | | | a 2, b 1, bad 1, None 1 | SELECT k, count(greatest(1, 10 / v)) AS n FROM t GROUP BY k
k | | | a 2, b 1, bad 1, None 1 | SELECT k, count(x) AS n FROM (SELECT k, 10 / v <=> 1 AS x FROM t) GROUP BY k
k | 2,3,5 | | a 1, b 1 | SELECT k, count(DISTINCT greatest(1, 10 / v)) AS n FROM t GROUP BY k
id | | | 1, 2, 3, 4, 5 | SELECT id FROM (SELECT id, greatest(1, 10 / v) AS x FROM t) WHERE x IS NOT NULL
id | 2,3,5 | | | SELECT id FROM t WHERE v = id AND 10 / id > 1
id | | | | SELECT id FROM t WHERE id IN (1, 4) AND v = id AND 10 / id > 1
id | | | | SELECT id FROM (SELECT id, v FROM t) WHERE v = id AND 10 / v > 1 AND id > 5
day | | | 1970-01-01 7 | SELECT day, sum(x) FILTER (WHERE s = '7') AS x FROM (SELECT CAST(at AS DATE) AS day, s, CAST(s AS INT) AS x FROM (SELECT if(s = '7', '1970-01-01', s) AS at, s FROM t)) WHERE s = '7' AND day < DATE '2000-01-01' GROUP BY day
"""  # noqa: E501


def cases() -> list[list[str]]:
    return [re.split(r"\s*\|\s*", line, maxsplit=4) for line in CASES.strip().splitlines()]


def told(rows: pa.Table) -> str:
    rows = rows.sort_by([(name, "ascending") for name in rows.schema.names])
    return ", ".join(" ".join(map(str, row)) for row in zip(*rows.to_pydict().values(), strict=True))


@pytest.mark.parametrize(("key", "of_t", "of_u", "answer", "sql"), cases())
def test_rows_are_set_aside_where_spark_would_raise(key: str, of_t: str, of_u: str, answer: str, sql: str) -> None:
    found = kept(sql, key, ROWS, EVALUATOR, sets_aside=True)
    assert told(found.rows) == answer
    assert {name: ",".join(map(str, numbers)) for name, numbers in found.aside.items()} == {"t": of_t, "u": of_u}


@pytest.mark.parametrize(("key", "of_t", "of_u", "answer", "sql"), cases())
def test_a_view_fails_where_spark_would_raise(key: str, of_t: str, of_u: str, answer: str, sql: str) -> None:
    if of_t or of_u:
        with pytest.raises(RowError):
            kept(sql, key, ROWS, EVALUATOR, sets_aside=False)
    else:
        assert told(kept(sql, key, ROWS, EVALUATOR, sets_aside=False).rows) == answer
