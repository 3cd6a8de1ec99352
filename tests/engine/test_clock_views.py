"""Views that depend on the clock, from SQL to the answer: at each epoch as DuckDB has them with its instant."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from random import Random

import pyarrow as pa
import pytest
from duckdb_kit import by_duckdb
from hypothesis import given, settings
from hypothesis import strategies as st
from state_kit import MANY, plain_rows

from simulator.dataflow_world import DataflowWorld
from simulator.local_typer import LocalTyper
from upriver.engine.expressions import Evaluator
from upriver.plan.plan import TableSpec
from upriver.sql.queries import declare_view

INSTANT = pa.timestamp("us", "UTC")
EVENTS = TableSpec(
    "events",
    pa.schema([("k", pa.int32()), ("seen", INSTANT), ("until", INSTANT), ("n", pa.int64())]),
    key=("k",),
)
TASKS = TableSpec(
    "tasks",
    pa.schema([("id", pa.int32()), ("k", pa.int32()), ("due", pa.date32()), ("seq", pa.int64()), ("gone", pa.bool_())]),
    key=("k",),
    order_by=("seq",),
    primary_key=("id",),
    deletes='"gone"',
)
TABLES = {table.name: table for table in (EVENTS, TASKS)}
CURRENT = (
    "SELECT id, k, due FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY seq DESC) AS nth FROM tasks) "
    "WHERE nth = 1 AND gone IS NOT TRUE"
)
TYPER = LocalTyper(TABLES)
EVALUATOR = Evaluator()
BEGIN = datetime(2024, 2, 27, 22, tzinfo=UTC)

NOW, TODAY = "TIMESTAMPTZ '{now}'", "CAST(TIMESTAMP '{now}' AS DATE)"
VIEWS = {
    "the last hour": (
        "SELECT k, seen, n FROM events WHERE seen > now() - INTERVAL 1 HOUR",
        ("k",),
        f"SELECT k, seen, n FROM events WHERE seen > {NOW} - INTERVAL 1 HOUR",
    ),
    "valid now": (
        "SELECT k, n FROM events WHERE current_timestamp BETWEEN seen AND until",
        ("k",),
        f"SELECT k, n FROM events WHERE {NOW} BETWEEN seen AND until",
    ),
    "groups of the last hour": (
        "SELECT k, count(*) AS c, max(n) AS m FROM events WHERE now() - seen < INTERVAL 1 HOUR GROUP BY k",
        ("k",),
        f"SELECT k, count(*), max(n) FROM events WHERE seen > {NOW} - INTERVAL 1 HOUR GROUP BY k",
    ),
    "one row": (
        "SELECT count(*) AS c, sum(n) AS s FROM events WHERE seen >= current_date() - 1",
        (),
        f"SELECT count(*), sum(n) FROM events WHERE seen >= {TODAY} - 1",
    ),
    "groups by another key": (
        "SELECT n, count(*) AS c FROM events WHERE unix_timestamp(seen) <= unix_timestamp() + 600 GROUP BY n",
        ("n",),
        f"SELECT n, count(*) FROM events WHERE floor(epoch(seen)) <= floor(epoch({NOW})) + 600 GROUP BY n",
    ),
    "active in the last hours": (
        "SELECT k, max(seen) AS last FROM events GROUP BY k HAVING max(seen) >= now() - INTERVAL 3 HOURS",
        ("k",),
        f"SELECT k, max(seen) FROM events GROUP BY k HAVING max(seen) >= {NOW} - INTERVAL 3 HOURS",
    ),
    "counted by age": (
        "SELECT k, count(*) AS c, count(*) FILTER (WHERE seen > now() - INTERVAL 2 HOURS) AS young, "
        "sum(CASE WHEN seen > now() THEN 1 ELSE 0 END) AS ahead FROM events GROUP BY k",
        ("k",),
        f"SELECT k, count(*), count(*) FILTER (seen > {NOW} - INTERVAL 2 HOURS), "
        f"sum(CASE WHEN seen > {NOW} THEN 1 ELSE 0 END) FROM events GROUP BY k",
    ),
    "told by the clock": (
        "SELECT k, n, CASE WHEN seen > now() THEN 'to come' WHEN until > now() THEN 'on' ELSE 'over' END AS state "
        "FROM events",
        ("k",),
        f"SELECT k, n, CASE WHEN seen > {NOW} THEN 'to come' WHEN until > {NOW} THEN 'on' ELSE 'over' END FROM events",
    ),
    "compared as told by the clock": (
        "SELECT k, count(*) AS c FROM events WHERE CASE WHEN until > now() THEN 'on' ELSE 'over' END IN ('on', 'off') "
        "AND (seen > now()) = (n > 0) GROUP BY k HAVING count(*) FILTER (WHERE seen > now() - INTERVAL 2 HOURS) >= 1",
        ("k",),
        f"SELECT k, count(*) FROM events WHERE until > {NOW} AND (seen > {NOW}) = (n > 0) GROUP BY k "
        f"HAVING count(*) FILTER (seen > {NOW} - INTERVAL 2 HOURS) >= 1",
    ),
    "beside a subquery of the clock": (
        "SELECT id, k FROM tasks t WHERE id < (SELECT count(*) FROM events WHERE seen > now()) "
        "AND (SELECT max(seen) FROM events e WHERE e.k = t.k) > now() - INTERVAL 1 HOUR",
        ("k",),
        f"SELECT id, k FROM tasks t WHERE id < (SELECT count(*) FROM events WHERE seen > {NOW}) "
        f"AND (SELECT max(seen) FROM events e WHERE e.k = t.k) > {NOW} - INTERVAL 1 HOUR",
    ),
    "due today or overdue": (
        "SELECT id, k, due FROM tasks WHERE due = current_date OR due < date_sub(current_date(), 1)",
        ("k",),
        f"SELECT id, k, due FROM tasks WHERE due = {TODAY} OR due < {TODAY} - 1",
    ),
    "datediff": (
        "SELECT id, k FROM tasks WHERE datediff(current_date(), due) BETWEEN 1 AND 2 AND due IN (current_date() - 1)",
        ("id",),
        f"SELECT id, k FROM tasks WHERE {TODAY} - due BETWEEN 1 AND 2 AND due = {TODAY} - 1",
    ),
    "this month": (
        "SELECT id, k FROM tasks WHERE due >= trunc(current_date(), 'MM') AND due < add_months(current_date(), 1) "
        "AND year(due) = year(current_date()) AND due <> last_day(now())",
        ("k",),
        f"SELECT id, k FROM tasks WHERE due >= date_trunc('month', {TODAY}) AND due < {TODAY} + INTERVAL 1 MONTH "
        f"AND year(due) = year({TODAY}) AND due <> last_day({TODAY})",
    ),
    "join": (
        "SELECT e.k, e.n, t.id FROM events e JOIN tasks t ON e.k = t.k WHERE e.seen > now() - INTERVAL 1 DAY "
        "AND t.due >= current_date()",
        ("k",),
        f"SELECT e.k, e.n, t.id FROM events e JOIN tasks t ON e.k = t.k WHERE e.seen > {NOW} - INTERVAL 1 DAY "
        f"AND t.due >= {TODAY}",
    ),
    "union and subquery": (
        "SELECT k, n FROM events WHERE seen > now() - INTERVAL 30 MINUTES AND k IN (SELECT k FROM tasks WHERE due > "
        "current_date()) UNION ALL SELECT k, n FROM events WHERE date_trunc('day', now()) > seen",
        ("k",),
        f"SELECT k, n FROM events WHERE seen > {NOW} - INTERVAL 30 MINUTES AND k IN (SELECT k FROM tasks WHERE due > "
        f"{TODAY}) UNION ALL SELECT k, n FROM events WHERE CAST({TODAY} AS TIMESTAMP) > CAST(seen AS TIMESTAMP)",
    ),
    "age in days": (
        "SELECT id, k, datediff(current_date(), due) AS age, CASE WHEN due < current_date() THEN 'overdue' "
        "WHEN datediff(now(), due) / 2 > -2 THEN 'soon' END AS state FROM tasks",
        ("id",),
        f"SELECT id, k, {TODAY} - due, CASE WHEN due < {TODAY} THEN 'overdue' WHEN ({TODAY} - due) / 2 > -2 THEN "
        "'soon' END FROM tasks",
    ),
    "the clock as a column": (
        "SELECT k, now() AS at, date_trunc('month', current_date()) AS month, hour(current_timestamp) AS h, n FROM "
        "events WHERE month(seen) = month(now()) OR until > now()",
        ("k",),
        f"SELECT k, {NOW}, CAST(date_trunc('month', {TODAY}) AS TIMESTAMPTZ), hour(TIMESTAMP '{{now}}'), n FROM events "
        f"WHERE month(CAST(seen AS TIMESTAMP)) = month({TODAY}) OR until > {NOW}",
    ),
    "counted with the time": (
        "SELECT now() AS at, count(*) AS c, max(datediff(now(), seen)) AS oldest FROM events",
        (),
        f"SELECT {NOW}, count(*), max({TODAY} - CAST(CAST(seen AS TIMESTAMP) AS DATE)) FROM events",
    ),
    "groups by processing time": (
        "SELECT k, count(*) AS c, window.start AS b, window.end AS e FROM (SELECT *, current_timestamp() AS p "
        "FROM events) GROUP BY k, window(p, '30 minutes')",
        ("k",),
        f"SELECT k, count(*), time_bucket(INTERVAL 30 MINUTES, {NOW}), time_bucket(INTERVAL 30 MINUTES, {NOW}) + "
        "INTERVAL 30 MINUTES FROM events GROUP BY k",
    ),
    "by the month alone": (
        "SELECT trunc(current_date(), 'MM') AS m, count(*) AS c, sum(CASE WHEN due < current_date() THEN 1 ELSE 0 END) "
        "AS o FROM tasks GROUP BY trunc(current_date(), 'MM')",
        ("m",),
        f"SELECT date_trunc('month', {TODAY}), count(*), sum(CASE WHEN due < {TODAY} THEN 1 ELSE 0 END) FROM tasks "
        "GROUP BY 1",
    ),
    "by age": (
        "SELECT datediff(current_date(), due) AS age, count(*) AS c, max(id) AS m FROM tasks GROUP BY 1 "
        "HAVING count(*) < day(now())",
        ("age",),
        f"SELECT {TODAY} - due, count(*), max(id) FROM tasks GROUP BY 1 HAVING count(*) < day({TODAY})",
    ),
    "joined by the clock": (
        "SELECT e.k, e.n, t.id FROM events e LEFT JOIN tasks t ON e.k = t.k AND datediff(current_date(), t.due) = e.n",
        ("k",),
        f"SELECT e.k, e.n, t.id FROM events e LEFT JOIN tasks t ON e.k = t.k AND {TODAY} - t.due = e.n",
    ),
    "over a window, by age": (
        "SELECT id, k, sum(id) OVER (PARTITION BY k ORDER BY datediff(current_date(), due), id) AS s, "
        "rank() OVER (PARTITION BY k, due < current_date() ORDER BY id) AS r FROM tasks",
        ("k",),
        f"SELECT id, k, CAST(sum(id) OVER (PARTITION BY k ORDER BY {TODAY} - due NULLS FIRST, id) AS BIGINT), "
        f"rank() OVER (PARTITION BY k, due < {TODAY} ORDER BY id) FROM tasks",
    ),
    "the last days": (
        "SELECT c.day, count(t.id) AS n FROM (SELECT explode(sequence(date_sub(current_date(), 3), current_date())) "
        "AS day) c LEFT JOIN tasks t ON t.due = c.day GROUP BY c.day",
        ("day",),
        f"SELECT c.d, count(t.id) FROM (SELECT CAST(unnest(generate_series({TODAY} - 3, {TODAY}, INTERVAL 1 DAY)) AS "
        "DATE) AS d) c LEFT JOIN tasks t ON t.due = c.d GROUP BY c.d",
    ),
}

MOMENTS = st.none() | st.integers(-400, 1200).map(lambda tens: BEGIN + timedelta(minutes=10 * tens))
KEYS = st.sampled_from([None, 0, 1, 2, 3])
DAYS = st.none() | st.integers(-4, 40).map(lambda days: date(2024, 2, 27) + timedelta(days=days))
EVENT = st.tuples(KEYS, MOMENTS, MOMENTS, st.integers(0, 2))
TASK = st.tuples(st.integers(0, 5), KEYS, DAYS, st.sampled_from([None, False, True]))


@pytest.mark.parametrize("view", VIEWS)
@settings(MANY, max_examples=12)
@given(data=st.data())
def test_view_is_right_at_each_epoch_while_keys_move(data: st.DataObject, view: str) -> None:
    sql, key, oracle = VIEWS[view]
    plan = declare_view("v", sql, key, TABLES, {}, TYPER)
    world = DataflowWorld(plan, TABLES, EVALUATOR, Random(data.draw(st.integers(0, 2**32))))
    rows = {name: table.schema.empty_table() for name, table in TABLES.items()}
    now, seq = BEGIN, 0
    for _ in range(5):
        now += timedelta(minutes=data.draw(st.sampled_from([0, 1, 10, 45, 120, 1_440, 30_000])))
        events = data.draw(st.lists(EVENT, max_size=6))
        tasks = data.draw(st.lists(TASK, max_size=4))
        versions = [(*task[:3], seq + number, task[3]) for number, task in enumerate(tasks)]
        seq += len(tasks)
        come = {"events": batch(EVENTS, events), "tasks": batch(TASKS, versions)}
        rows = {name: pa.concat_tables([table, pa.Table.from_batches([come[name]])]) for name, table in rows.items()}
        world.run_epoch(come, round(now.timestamp() * 1_000_000))
        current = by_duckdb(CURRENT, tasks=rows["tasks"])
        wanted = by_duckdb(oracle.replace("{now}", f"{now:%Y-%m-%d %H:%M:%S}"), events=rows["events"], tasks=current)
        answer = world.scan()
        wanted = wanted.rename_columns(answer.schema.names).cast(answer.schema)
        assert Counter(plain_rows(answer)) == Counter(plain_rows(wanted)), now


def batch(table: TableSpec, rows: Sequence[tuple[object, ...]]) -> pa.RecordBatch:
    columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(table.schema)]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)
