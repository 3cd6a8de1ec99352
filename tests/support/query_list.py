"""Queries of all kinds over the tables of query_kit.

Those of DUCK are read by DuckDB as Spark reads them. Those of UNNAMED have columns whose names only Spark knows.
"""

DUCK = """
SELECT s.k, name, i FROM sales s JOIN people q ON s.k = q.k;
SELECT s.k, name, city FROM sales s JOIN people q ON s.k = q.k JOIN places r ON r.k = q.k AND r.i = s.i;
SELECT s.k, s.i, q.name FROM sales s LEFT JOIN people q ON s.k = q.k AND s.i < q.j;
SELECT s.k, q.k AS other, q.name FROM sales s RIGHT JOIN people q ON s.k = q.k AND s.i > 1;
SELECT s.k, q.k AS other, s.i, q.j FROM sales s FULL OUTER JOIN people q ON s.k = q.k AND s.l = q.j;
SELECT s.k, s.i FROM sales s SEMI JOIN people q ON s.k = q.k AND q.name IS NOT NULL;
SELECT s.k, s.i FROM sales s ANTI JOIN people q ON s.k = q.k AND q.j > s.i;
SELECT s.k, name FROM sales s, people q WHERE s.k = q.k AND s.i > 1 AND q.j < 3;
SELECT s.k, name, city FROM sales s, places r, people q WHERE q.j = s.l AND r.k = q.k AND r.i IS NOT NULL;
SELECT s.i, q.j FROM sales s JOIN people q ON s.i = q.j;
SELECT s.i, q.j FROM sales s JOIN people q ON s.p = q.j + 1.25;
SELECT s.i AS a, t.i AS b FROM sales s JOIN sales t ON s.x = t.x AND s.i < t.i;
SELECT k, name, city FROM people JOIN places USING (k);
SELECT k, q.k AS k2, name, city FROM people q LEFT JOIN places r USING (k);
SELECT k, name, city FROM people RIGHT JOIN places USING (k);
SELECT k, name, city FROM people FULL JOIN places USING (k);
SELECT s.k, count(*) AS n FROM sales s JOIN people q ON s.k = q.k GROUP BY s.k;
SELECT q.name, sum(s.i) AS total, avg(s.x) AS mean FROM sales s JOIN people q ON s.k = q.k GROUP BY q.name
    HAVING count(*) > 2;
SELECT k, i, n FROM (SELECT k, i, count(*) AS n FROM sales GROUP BY k, i) WHERE n > 1;
SELECT n, count(*) AS groups FROM (SELECT k, count(*) AS n FROM sales GROUP BY k) GROUP BY n;
SELECT s.k, s.i, m.most FROM sales s JOIN (SELECT k, max(i) AS most FROM sales GROUP BY k) m ON s.k = m.k AND
    s.i = m.most;
WITH big AS (SELECT k, sum(l) AS total FROM sales GROUP BY k) SELECT q.name, b.total FROM big b JOIN people q ON
    b.k = q.k;
WITH a AS (SELECT k, i FROM sales WHERE i > 0), b AS (SELECT k FROM a WHERE i > 1) SELECT a.k, a.i FROM a JOIN b
    ON a.k = b.k;
WITH a(u, v) AS (SELECT k, i FROM sales) SELECT u, count(v) AS n FROM a GROUP BY u;
SELECT k, i, grouping(k) AS g, grouping_id(k, i) AS gi, count(*) AS n, sum(l) AS s, count(k) AS c FROM sales GROUP BY
    ROLLUP(k, i);
SELECT k, i + 1 AS j, count(*) AS n, max(i) AS m FROM sales GROUP BY CUBE(k, i + 1) HAVING count(*) > 1;
SELECT k, count(*) AS n FROM sales GROUP BY GROUPING SETS ((k, i), (k), (), ());
SELECT k, i, b, sum(x) AS s FROM sales GROUP BY b, ROLLUP(k, i);
SELECT k, b, count(*) AS n FROM sales GROUP BY ROLLUP(k), CUBE(b) HAVING grouping(k) = 0;
SELECT k, i FROM sales ORDER BY i;
SELECT * FROM (SELECT k, i FROM sales ORDER BY i) ORDER BY k DESC;
SELECT k, i, l FROM sales ORDER BY l DESC NULLS LAST, i NULLS FIRST, k NULLS FIRST LIMIT 5 OFFSET 3;
SELECT k, i FROM sales ORDER BY k NULLS FIRST, i NULLS FIRST OFFSET 50;
SELECT k, i FROM sales ORDER BY k LIMIT ALL;
SELECT count(*) AS n, g FROM (SELECT 1 AS g, k FROM sales LIMIT 7) GROUP BY g;
SELECT k, j FROM people UNION ALL SELECT k, i FROM sales ORDER BY 2 NULLS LAST, 1 NULLS LAST LIMIT 4;
SELECT k FROM sales UNION ALL SELECT k FROM people;
SELECT k FROM sales UNION SELECT k FROM people;
SELECT i FROM sales UNION SELECT j FROM people UNION SELECT x FROM sales;
SELECT k, i FROM sales EXCEPT SELECT k, i FROM places;
SELECT k FROM sales EXCEPT ALL SELECT k FROM people;
SELECT k FROM sales INTERSECT SELECT k FROM people;
SELECT k FROM sales INTERSECT ALL SELECT k FROM people;
SELECT k FROM sales UNION ALL SELECT k FROM people INTERSECT SELECT k FROM places;
(SELECT k FROM sales UNION ALL SELECT k FROM people) EXCEPT SELECT k FROM places;
SELECT k, count(*) AS n FROM (SELECT k FROM sales UNION ALL SELECT k FROM people) GROUP BY k;
SELECT DISTINCT k, b FROM sales;
SELECT DISTINCT x FROM sales;
SELECT DISTINCT k, count(*) AS n FROM sales GROUP BY k, i;
SELECT k, count(DISTINCT i) AS n, sum(DISTINCT i) AS s, count(DISTINCT x) AS xs FROM sales GROUP BY k;
SELECT k, count(*) FILTER (WHERE b) AS yes, sum(i) FILTER (WHERE i > 1) AS s, count(DISTINCT i) FILTER (WHERE
    NOT b) AS d FROM sales GROUP BY k;
SELECT k, stddev(i) AS a, stddev_pop(i) AS b, var_samp(p) AS c, var_pop(l) AS d FROM sales GROUP BY k;
SELECT k, bool_and(b) AS every_one, bool_or(b) AS any_one, count_if(i > 1) AS n FROM sales GROUP BY k;
SELECT * FROM (SELECT k, i, l, ROW_NUMBER() OVER (PARTITION BY k ORDER BY i DESC NULLS LAST, l NULLS FIRST, ts
    NULLS FIRST, p, d) AS n FROM sales) WHERE n <= 2;
SELECT k, i, n FROM (SELECT *, RANK() OVER (PARTITION BY k ORDER BY i NULLS FIRST) AS n FROM sales) WHERE n < 3
    AND i > 0;
SELECT k, i, n FROM (SELECT *, DENSE_RANK() OVER (PARTITION BY k ORDER BY i DESC NULLS LAST) AS n FROM sales) AS
    r WHERE r.n BETWEEN 1 AND 2;
SELECT k, i, n FROM (SELECT *, DENSE_RANK() OVER (PARTITION BY k ORDER BY i DESC NULLS LAST) AS n FROM sales) AS
    r WHERE r.n = 2;
WITH r AS (SELECT *, RANK() OVER (PARTITION BY k ORDER BY x DESC NULLS LAST) AS n FROM sales) SELECT r.k, r.x,
    q.name FROM people q JOIN r ON r.k = q.k AND r.n = 1;
SELECT k, c, n FROM (SELECT k, count(*) AS c, RANK() OVER (PARTITION BY b ORDER BY count(*) DESC) AS n FROM
    sales GROUP BY k, b) WHERE 1 >= n;
SELECT k, avg(i) AS m FROM (SELECT k, i, RANK() OVER (PARTITION BY k ORDER BY l DESC NULLS LAST) AS n FROM
    sales) WHERE n <= 3 GROUP BY k;
SELECT k, i, RANK() OVER (PARTITION BY k ORDER BY i NULLS FIRST) AS n FROM sales QUALIFY n = 1;
SELECT k, i FROM sales QUALIFY DENSE_RANK() OVER (PARTITION BY k ORDER BY i NULLS FIRST) <= 2;
SELECT k, i, RANK() OVER (PARTITION BY k ORDER BY i NULLS FIRST) AS n FROM sales;
SELECT k, i, RANK() OVER (PARTITION BY k ORDER BY i DESC NULLS LAST) AS n, DENSE_RANK() OVER w AS d, PERCENT_RANK() OVER
    w AS p, CUME_DIST() OVER w AS c FROM sales WINDOW w AS (PARTITION BY b ORDER BY l NULLS FIRST);
SELECT k, i, sum(l) OVER (PARTITION BY k) AS s, count(*) OVER () AS n, max(d) OVER (PARTITION BY b) AS d FROM sales;
SELECT k, i, sum(i) OVER (PARTITION BY k ORDER BY ts NULLS FIRST) AS s, avg(i) OVER (PARTITION BY k ORDER BY ts NULLS
    FIRST) AS a, min(p) OVER (PARTITION BY k ORDER BY i DESC NULLS LAST) AS m FROM sales;
SELECT k, i, count(i) FILTER (WHERE b) OVER (PARTITION BY k ORDER BY i NULLS FIRST) AS s, stddev(i) OVER (PARTITION BY
    k) AS d, bool_or(b) OVER (PARTITION BY i) AS o, sum(p) OVER (PARTITION BY i ORDER BY d NULLS LAST) AS p FROM sales;
SELECT k, ts, lag(ts) OVER (PARTITION BY k ORDER BY ts NULLS FIRST) AS a, lead(ts, 2) OVER (PARTITION BY k ORDER BY ts
    NULLS FIRST) AS b, ntile(3) OVER (ORDER BY l NULLS FIRST, ts NULLS FIRST, k NULLS FIRST) AS t FROM (SELECT k, ts,
    min(i) AS i, max(l) AS l, min(x) AS x, bool_or(b) AS b FROM sales WHERE ts IS NOT NULL GROUP BY k, ts) AS one;
SELECT k, ts, sum(i) OVER (PARTITION BY k ORDER BY ts NULLS FIRST ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING) AS s,
    max(x) OVER (PARTITION BY k ORDER BY ts NULLS FIRST ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS m,
    count(i) OVER (ORDER BY ts NULLS FIRST, k NULLS FIRST ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS n FROM
    (SELECT k, ts, min(i) AS i, max(l) AS l, min(x) AS x, bool_or(b) AS b FROM sales WHERE ts IS NOT NULL GROUP BY k,
    ts) AS one;
SELECT k, i, count(*) OVER (PARTITION BY k ORDER BY i NULLS FIRST RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS n,
    sum(l) OVER (ORDER BY i DESC NULLS LAST RANGE BETWEEN 2 PRECEDING AND CURRENT ROW) AS s FROM sales;
SELECT k, count(*) OVER (ORDER BY d NULLS FIRST RANGE BETWEEN INTERVAL '7' DAY PRECEDING AND CURRENT ROW) AS n, sum(i)
    OVER (PARTITION BY k ORDER BY ts NULLS FIRST RANGE BETWEEN INTERVAL '10' MINUTE PRECEDING AND INTERVAL '5' MINUTE
    FOLLOWING) AS s FROM sales;
SELECT k, ts, first_value(l) OVER (PARTITION BY k ORDER BY ts NULLS FIRST ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS
    f, last_value(l) OVER (PARTITION BY k ORDER BY ts NULLS FIRST ROWS BETWEEN CURRENT ROW AND 2 FOLLOWING) AS g,
    nth_value(l, 2) OVER (PARTITION BY k ORDER BY ts NULLS FIRST ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED
    FOLLOWING) AS h FROM (SELECT k, ts, min(i) AS i, max(l) AS l, min(x) AS x, bool_or(b) AS b FROM sales WHERE ts IS
    NOT NULL GROUP BY k, ts) AS one;
SELECT k, b, sum(l) AS s, sum(sum(l)) OVER (PARTITION BY k) AS t, RANK() OVER (ORDER BY sum(l) DESC NULLS LAST) AS n,
    count(*) OVER () AS c FROM sales GROUP BY k, b HAVING count(*) > 1;
SELECT DISTINCT k, sum(i) OVER (PARTITION BY k) AS s FROM sales;
SELECT k, i FROM (SELECT k, i, avg(i) OVER (PARTITION BY k) AS a FROM sales) WHERE i > a;
SELECT a.k, a.n, q.name FROM (SELECT k, count(*) OVER (PARTITION BY k) AS n FROM sales) a JOIN people q ON a.k = q.k;
WITH r AS (SELECT k, i, RANK() OVER (PARTITION BY k ORDER BY i NULLS FIRST) AS n FROM sales) SELECT r.k, r.n, s.i FROM r
    JOIN r AS s ON r.k = s.k AND r.n = s.n + 1;
SELECT k, i, l FROM sales ORDER BY l DESC NULLS LAST, i NULLS FIRST, k NULLS FIRST LIMIT 5;
SELECT k, sum(i) AS s FROM sales GROUP BY k ORDER BY s DESC NULLS LAST, k LIMIT 3;
SELECT k, i FROM sales WHERE k IN (SELECT k FROM people WHERE j > 1);
SELECT k, i FROM sales s WHERE EXISTS (SELECT 1 FROM people q WHERE q.k = s.k AND q.j > s.i) AND i > 0;
SELECT k, i FROM sales s WHERE NOT EXISTS (SELECT 1 FROM people q WHERE q.k = s.k AND q.j > s.i);
SELECT k, i FROM sales s WHERE i IN (SELECT j FROM people q WHERE q.k = s.k);
SELECT k, i FROM sales s WHERE (SELECT max(j) FROM people q WHERE q.k = s.k) IN (SELECT i FROM places);
SELECT k, i FROM sales s WHERE (SELECT min(j) FROM people q WHERE q.k = s.k) NOT IN (SELECT i FROM places r
    WHERE r.k = s.k);
SELECT s.k, q.name, count(*) AS n FROM sales s JOIN people q ON s.k = q.k GROUP BY ROLLUP(s.k, q.name);
SELECT k, i FROM sales WHERE (k, i) IN (SELECT k, max(i) FROM sales GROUP BY k);
SELECT name FROM people WHERE k IN (SELECT k FROM sales GROUP BY k HAVING count(*) > 10) AND NOT EXISTS (SELECT
    1 FROM places r WHERE r.k = people.k);
SELECT k FROM sales WHERE k IN (SELECT * FROM (SELECT k FROM people));
SELECT k, i FROM sales WHERE (k, i) IN (SELECT q.* FROM (SELECT DISTINCT k, j FROM people) q);
SELECT k FROM sales WHERE i IN (WITH c AS (SELECT j FROM people) SELECT DISTINCT * FROM c);
SELECT s.k, s.i FROM sales s WHERE EXISTS (SELECT 1 FROM people q JOIN places r ON q.k = r.k AND s.i = r.i WHERE
    q.k = s.k);
SELECT s.k FROM sales s WHERE NOT EXISTS (SELECT s.i FROM people q JOIN places r ON q.k = r.k AND s.k = r.k);
SELECT s.k, s.i FROM sales s WHERE EXISTS (SELECT i FROM people q WHERE j = s.i);
SELECT s.k, s.i FROM sales s WHERE l IN (SELECT i FROM people q WHERE j = l);
SELECT t.k, t.i, s.x FROM (SELECT 1 AS g, * FROM sales) AS t LEFT JOIN (SELECT g, sum(i) AS x FROM (SELECT 1 AS
    g, * FROM sales) GROUP BY g) AS s ON s.g = t.g;
SELECT g, count(*) AS n FROM (SELECT 1 AS g, * FROM sales) GROUP BY g;
SELECT a.k, a.l, sum(b.i) AS x FROM (SELECT DISTINCT k, l FROM sales) AS a JOIN sales AS b ON a.k = b.k AND
    b.l <= a.l GROUP BY a.k, a.l;
SELECT t.k, t.i, s.x FROM sales AS t JOIN (SELECT k, sum(i) AS x FROM sales GROUP BY k) AS s ON s.k = t.k;
SELECT s.k, s.i FROM sales s JOIN people q ON s.k IS NOT DISTINCT FROM q.k AND s.i = q.j;
SELECT z.u AS u, z.v AS v FROM (SELECT k, i FROM places) AS z(u, v) WHERE z.v IS NOT NULL;
SELECT upper(s.k) AS big, q.name || '!' AS loud FROM sales s JOIN people q ON upper(s.k) = upper(q.k);
SELECT s.k, t.k AS k2, u.k AS k3 FROM places s JOIN places t ON s.i = t.i LEFT JOIN places u ON u.k = t.k AND
    u.city = 'Rome';
"""

ONE_ROW = """
SELECT count(*) AS n, sum(i) AS s FROM sales WHERE i > 100;
SELECT k, i FROM sales WHERE i > (SELECT avg(i) FROM sales);
SELECT k, i, (SELECT max(j) FROM people) AS m FROM sales;
SELECT k, i, (SELECT count(*) FROM people q WHERE q.k = s.k) AS m FROM sales s;
SELECT k, i, (SELECT 2 * count(*) + coalesce(max(q.j), 7) FROM people q WHERE q.k = s.k AND q.j > 1) AS m FROM sales s;
SELECT k, i FROM sales s WHERE i < (SELECT max(j) FROM people q WHERE q.k = s.k);
SELECT k, sum(i) AS t FROM sales GROUP BY k HAVING sum(i) > (SELECT sum(j) FROM people);
SELECT k, sum(i) AS t, count(*) > (SELECT max(j) FROM people) AS m FROM sales s GROUP BY k;
SELECT k, i FROM sales s WHERE i IN (SELECT j FROM people) OR k = 'a';
SELECT k, (i IN (SELECT j FROM people)) IS TRUE AS f FROM sales;
SELECT k, EXISTS (SELECT 1 FROM people q WHERE q.k = s.k) AS e FROM sales s;
SELECT k, i FROM sales WHERE i NOT IN (SELECT j FROM people);
SELECT k, i FROM sales WHERE i NOT IN (SELECT j FROM people WHERE j IS NOT NULL);
SELECT k, i FROM sales WHERE i NOT IN (SELECT j FROM people WHERE j > 100);
SELECT k, i FROM sales s WHERE i NOT IN (SELECT j FROM people q WHERE q.k = s.k);
SELECT k, i FROM sales s WHERE (k, i) NOT IN (SELECT k, j FROM people);
SELECT k, i FROM sales s WHERE (k, i) NOT IN (SELECT k, j FROM people WHERE k IS NOT NULL AND j IS NOT NULL);
SELECT k, i, (SELECT count(*) FROM people q WHERE q.j < s.i) AS m FROM sales s;
SELECT k, i FROM sales s WHERE NOT EXISTS (SELECT 1 FROM people q WHERE q.j > s.i) OR i IS NULL;
SELECT k, CASE WHEN (SELECT count(*) FROM people) > 3 THEN (SELECT min(j) FROM people) ELSE (SELECT max(j) FROM
    people) END AS c FROM places;
SELECT count(*) AS n, (SELECT max(j) FROM people) AS m FROM sales;
SELECT sum((SELECT max(j) FROM people q WHERE q.k = s.k)) AS m FROM sales s;
SELECT s.k, q.name FROM sales s JOIN people q ON s.k = q.k AND s.i > (SELECT avg(i) FROM sales);
SELECT k, i, (SELECT p.city FROM places p WHERE p.k = s.k AND p.i = 1 AND p.city = 'zz') AS c FROM sales s;
SELECT k, sum(i) AS t FROM sales GROUP BY k HAVING count(*) IN (SELECT j FROM people) OR k IS NULL;
SELECT k, i FROM sales s WHERE i > 0.5 * (SELECT avg(j) FROM people q WHERE q.k = s.k) AND EXISTS (SELECT 1 FROM
    places p WHERE p.k = s.k);
SELECT k, i FROM sales s WHERE i = (SELECT max(j) FROM people q WHERE q.k = s.k HAVING count(*) > 1);
SELECT k, j FROM people WHERE j IN (SELECT i FROM sales WHERE l > (SELECT avg(l) FROM sales));
SELECT s.k, q.j FROM sales s, people q WHERE (s.k = q.k AND s.i > 2) OR (s.k = q.k AND q.j > 1);
SELECT s.k, q.j FROM sales s, people q WHERE (s.k = q.k AND s.i > 2 AND q.j = 1) OR (s.k = q.k);
SELECT s.k, q.j FROM sales s FULL JOIN people q ON s.i > q.j;
SELECT s.k, q.j FROM sales s, people q RIGHT JOIN places r ON r.k = s.k WHERE q.j = 1;
SELECT 1 AS one, 'a' AS two;
SELECT x, count(*) AS n FROM (VALUES (1, 'a'), (2, 'b'), (1, NULL)) AS t(x, y) GROUP BY x;
SELECT s.k, t.y FROM sales s JOIN (VALUES (1, 'a'), (2, 'b')) AS t(x, y) ON s.i = t.x;
SELECT k FROM sales UNION ALL SELECT 'z' AS k;
SELECT (SELECT count(*) FROM sales) AS a, (SELECT max(j) FROM people) AS b;
SELECT k FROM sales WHERE i IN (SELECT 1 UNION ALL SELECT 3);
SELECT k, i FROM sales s WHERE EXISTS (SELECT 1);
SELECT k, i FROM sales s WHERE i > (SELECT 1);
"""
"""One-row relations, subqueries in expressions, and joins without an equality."""

SPARK = """
SELECT k, i IN (SELECT j FROM people) AS f, i NOT IN (SELECT j FROM people WHERE j IS NOT NULL) AS g FROM sales;
SELECT k, NOT (i IN (SELECT j FROM people) OR l > 2) AS g, i NOT IN (SELECT j FROM people) AS h FROM sales;
SELECT k, i, grouping_id() AS g, grouping(i) + grouping(k) AS h, count(*) AS n FROM sales GROUP BY k, i WITH CUBE;
SELECT k || 'z' AS z, x, count(x) AS n FROM sales GROUP BY k, x GROUPING SETS ((k), (x)) HAVING n > 2;
SELECT k, i, x, count(*) AS n, sum(i) FILTER (WHERE b) AS s FROM sales GROUP BY ROLLUP((k, i), x);
SELECT k, i, count(*) AS n FROM sales WHERE 1 = 0 GROUP BY CUBE(k, i);
SELECT 2 AS j, k, count(DISTINCT i) AS d FROM sales GROUP BY 2, GROUPING SETS ((k), ROLLUP(i, b));
SELECT k, i + 1 AS j, j * 2 AS m, upper(k) || m AS u FROM sales;
SELECT k, sum(i) AS total, total * 2 AS twice FROM sales GROUP BY k HAVING twice > 4;
SELECT k, i AS j, j AS m FROM sales;
SELECT k, (i, l).l AS m, ((k, 1), i).col1.k AS again, (i, k) = (i, k) AS f FROM sales;
SELECT k, 'it''s' || "a""b" || '''' AS c, 'a' 'b' AS e FROM sales;
SELECT k, a.j, b.name, c.city FROM people a LEFT JOIN people b USING (k) RIGHT JOIN places c USING (k);
SELECT k, a.j, c.city, d.i FROM people a FULL JOIN places c USING (k) FULL JOIN places d USING (k);
SELECT k FROM sales s WHERE EXISTS (SELECT 1 FROM people q WHERE q.k = s.k AND (q.j > 2 OR s.i = 2));
SELECT s.k FROM sales s WHERE s.k IN (SELECT q.k FROM people q WHERE q.j IN (SELECT i FROM places));
SELECT s.k FROM sales s WHERE EXISTS (SELECT 1 FROM people q WHERE q.k = s.k AND EXISTS (SELECT 1 FROM places r
    WHERE r.k = q.k));
SELECT s.k FROM sales s WHERE EXISTS (SELECT 1 FROM people q JOIN places r ON q.k = r.k WHERE q.k = s.k AND r.i
    < s.i);
SELECT s.k, q.j FROM sales s FULL JOIN people q ON q.k = s.k AND s.i = 1 AND q.j = 1;
SELECT s.k, q.j FROM sales s RIGHT JOIN people q ON q.k = s.k WHERE s.i = 1;
SELECT a.n, b.n AS m FROM (SELECT k, count(*) n FROM sales GROUP BY k) a JOIN (SELECT k, count(*) n FROM people
    GROUP BY k) b ON a.k <=> b.k;
SELECT p FROM sales UNION SELECT x FROM sales;
SELECT d FROM sales UNION SELECT ts FROM sales;
SELECT x FROM sales EXCEPT ALL SELECT 0.0D FROM sales;
SELECT x FROM sales INTERSECT ALL SELECT x FROM sales WHERE i > 0;
SELECT k, 1 AS c FROM sales UNION ALL SELECT k, NULL FROM people UNION ALL SELECT NULL, 2L FROM places;
SELECT c, count(*) AS n FROM (SELECT NULL AS c FROM sales UNION ALL SELECT name FROM people EXCEPT ALL SELECT
    'Ann' FROM people) GROUP BY c;
WITH s AS (SELECT k, max(i) AS m FROM sales GROUP BY k) SELECT x.k, x.m, y.m AS o FROM s x LEFT JOIN s y ON x.m
    = y.m AND x.k < y.k;
SELECT k, total, ROW_NUMBER() OVER (PARTITION BY k ORDER BY total DESC) AS n FROM (SELECT k, i, sum(l) AS total
    FROM sales WHERE l IS NOT NULL GROUP BY k, i) QUALIFY n = 1 AND total > 3;
SELECT s.k, s.i, s.n FROM (SELECT k, i, RANK() OVER (PARTITION BY k ORDER BY i DESC) + 0 AS m, RANK() OVER
    (PARTITION BY k ORDER BY i DESC) AS n FROM sales) s WHERE s.n <= 2;
SELECT k, i FROM (SELECT k, i, RANK() OVER (PARTITION BY x ORDER BY i) AS n FROM sales) WHERE n <= 1;
SELECT k, i FROM (SELECT k, i, RANK() OVER (ORDER BY p DESC, x NULLS LAST) AS n FROM sales) WHERE n <= 3;
SELECT k, i FROM (SELECT k, i, RANK() OVER (PARTITION BY k, upper(k) ORDER BY length(k), i DESC) AS n FROM
    sales) WHERE n <= 1 AND k <> 'a';
SELECT k AS i, i AS k FROM sales ORDER BY i, k LIMIT 5;
SELECT DISTINCT k AS a, i FROM sales ORDER BY a DESC, i LIMIT 4;
SELECT window.start AS s, k, count(*) AS n FROM sales GROUP BY k, window(ts, '30 minutes') HAVING window.end >
    TIMESTAMP '2024-01-01 00:30:00';
SELECT a.w.start AS s, a.k, b.name FROM (SELECT window(ts, '20 minutes') AS w, k FROM sales) a JOIN (SELECT
    window(at, '20 minutes') AS w, name FROM people) b ON a.w.start = b.w.start;
SELECT s.start AS st, n FROM (SELECT window AS s, count(*) AS n FROM sales GROUP BY window(ts, '10 minutes')) q;
SELECT k, count(DISTINCT x) AS c, sum(DISTINCT p) AS p, avg(DISTINCT i) AS a FROM sales GROUP BY k;
SELECT k, sum(x) FILTER (WHERE NOT isnan(x)) AS s, min(x) AS lo, max(x) AS hi, avg(p) AS ap FROM sales GROUP BY
    k;
SELECT coalesce(s.k, q.k) AS k, s.n, q.m FROM (SELECT k, count(*) AS n FROM sales GROUP BY k) s FULL JOIN
    (SELECT k, count(*) AS m FROM people GROUP BY k) q ON s.k = q.k;
SELECT s.d, q.at FROM sales s JOIN people q ON s.ts = q.at OR s.d = q.since WHERE s.k = q.k;
SELECT s.p, q.j FROM sales s JOIN people q ON s.p * 4 = q.j * 5;
SELECT k FROM sales s LEFT SEMI JOIN people q ON s.k = q.k LEFT ANTI JOIN places r ON r.k = s.k;
SELECT k, upper(k) AS u, count(*) AS c FROM sales GROUP BY ALL;
SELECT k, window(ts, '20 minutes').start AS s, sum(i) + count(*) AS c FROM sales GROUP BY ALL HAVING c > 2;
SELECT s.k, s.i FROM sales s JOIN people q ON s.k <=> q.k AND s.i = q.j;
SELECT * FROM people LEFT SEMI JOIN places USING (k);
SELECT * FROM people NATURAL FULL JOIN places;
SELECT q.*, r.k AS k3 FROM people q FULL JOIN places r USING (k);
SELECT s.k AS a, r.* FROM sales s, people q LEFT JOIN places r ON q.k = r.k WHERE s.k = q.k;
SELECT s.d, q.j FROM sales s JOIN people q ON s.ts = q.at;
SELECT s.d, s.i FROM sales s LEFT ANTI JOIN people q ON s.d = CAST(q.at AS DATE);
SELECT s.k, q.since FROM sales s JOIN people q ON s.d = q.since AND s.ts BETWEEN q.at - INTERVAL '10' MINUTE AND
    q.at;
SELECT k FROM sales MINUS SELECT k FROM people;
SELECT window.start, window.end, count(*) AS n FROM sales GROUP BY window(ts, '10 minutes');
SELECT k, window.start AS s, sum(i) AS total FROM sales GROUP BY k, window(ts, '10 minutes', '5 minutes');
SELECT window(ts, '7 minutes', '3 minutes', '1 minute').start AS s, count(*) AS n, count(k) AS m FROM sales
    GROUP BY window(ts, '7 minutes', '3 minutes', '1 minute');
SELECT w.start AS s, w.end AS e, n FROM (SELECT window(ts, '15 minutes') AS w, count(*) AS n FROM sales GROUP BY
    w) WHERE n > 2;
SELECT k, window(ts, '1 hour').end AS e FROM sales;
SELECT a.k, a.n, b.s FROM (SELECT k, count(*) AS n, window.start AS s FROM sales GROUP BY k, window(ts, '20
    minutes', '10 minutes')) a JOIN (SELECT max(n) AS most, s FROM (SELECT k, count(*) AS n, window.start AS s
    FROM sales GROUP BY k, window(ts, '20 minutes', '10 minutes')) GROUP BY s) b ON a.s = b.s AND a.n >= b.most;
SELECT k, i, rn FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k, i ORDER BY i) AS rn FROM sales) WHERE rn = 1;
SELECT k, i AS x FROM sales QUALIFY RANK() OVER (PARTITION BY k ORDER BY x) = 1;
SELECT k, ts, lag(i) IGNORE NULLS OVER w AS a, lead(l, 2, -1) IGNORE NULLS OVER w AS b, lead(i, -1) OVER w AS c,
    last_value(i) IGNORE NULLS OVER w AS e, first(i, true) OVER (w) AS f, nth_value(l, 2) IGNORE NULLS OVER w AS g,
    lag(k, 1, 'none') OVER w AS h, lag(x, 0) OVER w AS o FROM (SELECT k, ts, min(i) AS i, max(l) AS l, min(x) AS x,
    bool_or(b) AS b FROM sales WHERE ts IS NOT NULL GROUP BY k, ts) AS one WINDOW w AS (PARTITION BY k ORDER BY ts);
SELECT k, any_value(k) OVER (PARTITION BY k) AS a, last(b, true) OVER (PARTITION BY k, b) AS z, ntile(2) OVER v AS t
    FROM (SELECT k, ts, min(i) AS i, max(l) AS l, min(x) AS x, bool_or(b) AS b FROM sales WHERE ts IS NOT NULL GROUP
    BY k, ts) AS one WINDOW w AS (PARTITION BY b ORDER BY ts DESC, k), v AS w;
SELECT k, avg(p) OVER (PARTITION BY k ORDER BY i ROWS UNBOUNDED PRECEDING) AS a FROM (SELECT k, i, min(p) AS p FROM
    sales GROUP BY k, i);
SELECT k FROM sales UNION ALL SELECT name FROM people ORDER BY k DESC LIMIT 4;
SELECT DISTINCT k FROM sales ORDER BY k DESC LIMIT 2;
SELECT s.*, q.name FROM sales s JOIN people q ON s.k = q.k WHERE s.i / nullif(q.j - q.j, 0) > 0;
SELECT s.x, q.x AS y FROM sales s JOIN sales q ON s.x = q.x AND s.i = 1 AND q.i = 2;
SELECT d + INTERVAL 1 MONTH AS a, d - INTERVAL 3 DAYS AS b, ts + INTERVAL '90' MINUTE AS c, ts - INTERVAL 1 DAY
    AS e, k FROM sales;
"""

UNNAMED = """
SELECT k, any(b), any(b) FILTER (WHERE i > 1) FROM sales GROUP BY k HAVING any(b) OR count(*) > 1;
SELECT k, every(b), some(b), any_value(k), count(DISTINCT p), std(i) FROM sales GROUP BY k;
SELECT count(*), s.k FROM sales s JOIN people q USING (k) GROUP BY s.k, q.name;
"""


def queries(text: str) -> list[str]:
    """The queries, each on one line."""
    return [" ".join(part.split()) for part in text.split(";") if part.strip()]
