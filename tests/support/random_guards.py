"""Queries at random in which an expression that may fail stands behind a guard, or none, in any position."""

from collections.abc import Sequence
from random import Random

# ruff: noqa: E501  queries are easier to read on one line

GUARDS = (
    "i > 0",
    "j <> 5",
    "r % 3 = 0",
    "b",
    "s <> ''",
    "y IS NOT NULL AND c",
    "(l < 5 OR d > DATE '2000-01-01')",
    "TRUE",
)
FORMS = (
    "SELECT r, {e} AS made FROM rows_ WHERE {g}",
    "SELECT r, {e} AS made FROM rows_ WHERE {g} AND ({e}) IS NOT NULL",
    "SELECT r FROM rows_ WHERE ({e}) IS NULL AND {g}",
    "SELECT r, made FROM (SELECT *, {e} AS made FROM rows_) WHERE {g}",
    "SELECT r, made FROM (SELECT *, {e} AS made FROM rows_) WHERE {g} AND made IS NOT NULL",
    "SELECT r, CASE WHEN {g} THEN made END AS made FROM (SELECT *, {e} AS made FROM rows_)",
    "SELECT r, coalesce(if({g}, NULL, made), made) AS made FROM (SELECT *, {e} AS made FROM rows_)",
    "SELECT r, ({g}) AND made IS NULL AS made FROM (SELECT *, {e} AS made FROM rows_)",
    "SELECT r FROM (SELECT *, {e} AS made FROM rows_ WHERE {g})",
    "SELECT y AS r, count(*) AS n, count({e}) FILTER (WHERE {g}) AS made FROM rows_ GROUP BY y",
    "SELECT y AS r, count(made) FILTER (WHERE {g}) AS n, 1 AS made FROM (SELECT *, {e} AS made FROM rows_) GROUP BY y",
    "SELECT y AS r, count({e}) AS made FROM rows_ WHERE {g} GROUP BY y HAVING y > 0 AND count(*) > 0",
    "SELECT r, made FROM (SELECT y AS r, count({e}) AS made FROM rows_ GROUP BY y) WHERE r < 0",
    "SELECT r FROM (SELECT r, y, rank() OVER (PARTITION BY y ORDER BY {e}, r) AS n FROM rows_) WHERE n < 3 AND y > 0",
    "SELECT r, made FROM (SELECT r, {e} AS made, rank() OVER (ORDER BY r) AS n FROM rows_ WHERE {g}) WHERE n < 3",
    "SELECT a.r, made FROM other a JOIN (SELECT r, {e} AS made FROM rows_) q ON a.r = q.r WHERE a.r % 4 = 1",
    "SELECT id AS r, made FROM (SELECT r AS id FROM other) LEFT JOIN (SELECT *, {e} AS made FROM rows_) ON id = r AND {g}",
    "SELECT id AS r, made FROM (SELECT r AS id FROM other) LEFT JOIN (SELECT *, {e} AS made FROM rows_) ON id = r WHERE {g}",
    "SELECT r, made FROM (SELECT *, {e} AS made FROM rows_) FULL JOIN (SELECT r AS id FROM other) ON id = r WHERE {g} AND id < 90",
    "SELECT r, made FROM (SELECT *, {e} AS made FROM rows_) RIGHT JOIN (SELECT r AS id FROM other) ON id = r + 7 WHERE {g} AND r > 9",
    "SELECT r FROM rows_ a LEFT JOIN (SELECT r AS id, r % 5 AS rest FROM other) q ON r = id AND ({e}) IS NOT NULL WHERE rest > 0 AND {g}",
    "SELECT a.r FROM (SELECT *, {e} AS made FROM rows_) a JOIN (SELECT r AS id FROM other) o ON a.r = o.id AND made IS NOT NULL AND {g}",
    "SELECT r, j DIV (j - i) + length(s || CAST({e} AS STRING)) AS made FROM rows_ WHERE {g}",
    "SELECT r, coalesce(i, j) * length(CAST({e} AS STRING)) - l AS made FROM rows_ WHERE {g} AND i - length(CAST({e} AS STRING)) < 9",
    "SELECT CAST({e} AS STRING) AS r, count(*) AS made FROM rows_ WHERE {g} GROUP BY CAST({e} AS STRING)",
    "SELECT y AS r, count(*) AS made FROM rows_ WHERE {g} GROUP BY y HAVING max(CAST({e} AS STRING)) IS NOT NULL AND y < 9",
    "SELECT r FROM (SELECT r, rank() OVER (PARTITION BY CAST({e} AS STRING) ORDER BY r) AS n FROM rows_ WHERE {g}) WHERE n < 2",
    "SELECT a.r FROM rows_ a JOIN (SELECT CAST(r AS STRING) AS id FROM other) q ON CAST({e} AS STRING) = q.id WHERE {g}",
    "SELECT r FROM rows_ WHERE {g} AND CAST({e} AS STRING) IN (SELECT CAST(r AS STRING) FROM other WHERE r > 0)",
    "SELECT r FROM rows_ WHERE {g} AND EXISTS (SELECT {e} FROM other o WHERE o.r = rows_.r)",
    "SELECT r, made FROM (SELECT *, {e} AS made FROM rows_ UNION ALL SELECT *, {e} FROM rows_) WHERE {g}",
    "SELECT r FROM (SELECT DISTINCT r, b, c, i, j, l, s, y, d, {e} AS made FROM rows_) WHERE {g}",
)
"""r, made: the number of a row or group, and what is computed."""


def guarded(rng: Random, expressions: Sequence[str]) -> str:
    return rng.choice(FORMS).replace("{e}", rng.choice(expressions)).replace("{g}", rng.choice(GUARDS))
