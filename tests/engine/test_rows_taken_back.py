"""Rows that an operator puts out in the midst of an epoch, and takes back before its end, are no errors."""

from collections import Counter
from collections.abc import Mapping
from random import Random

import pyarrow as pa
import pytest
from duckdb_kit import by_duckdb
from soak import examples
from sql_kit import local_plan, spec
from state_kit import plain_rows

from simulator.dataflow_world import DataflowWorld
from upriver.engine.expressions import Evaluator
from upriver.errors import RowError
from upriver.plan.plan import DataflowPlan

T = spec("t", pa.schema([("k", pa.int64()), ("v", pa.int64())]))
U = spec("u", pa.schema([("k", pa.int64()), ("w", pa.int64())]))
TABLES = {table.name: table for table in (T, U)}
KEYS = 12
OF_ALL = "(SELECT count(*) / count(DISTINCT k) FROM u)"
ROWS_OF_BOTH = "(SELECT k, v FROM t UNION ALL SELECT k, w AS v FROM u) AS b"

MATCHED = "t LEFT JOIN u ON t.k = u.k"
QUOTIENT = f"SELECT 12 / coalesce(w, 0) AS h FROM {MATCHED}"
QUERIES = {
    "one row of no rows": "SELECT t.k AS g, count(*) AS n FROM t JOIN u ON t.k = u.k GROUP BY t.k "
    f"HAVING count(*) >= {OF_ALL}",
    "an unmatched row": f"SELECT h AS g, count(*) AS n FROM ({QUOTIENT}) AS i GROUP BY h",
    "a condition": f"SELECT v AS g, count(*) AS n FROM {MATCHED} WHERE 12 / coalesce(w, 0) > 1 GROUP BY v",
    "a condition of an inner join": "SELECT a.v AS g, count(*) AS n FROM (SELECT t.k, v, coalesce(w, 0) AS z "
    f"FROM {MATCHED}) AS a JOIN t AS b ON a.k = b.k AND 12 / (a.z + b.v * 0) > 1 GROUP BY a.v",
    "the ON of a left join": "SELECT a.v AS g, count(b.v) AS n FROM (SELECT t.k, v, coalesce(w, 0) AS z "
    f"FROM {MATCHED}) AS a LEFT JOIN t AS b ON a.k = b.k AND 12 / a.z > b.v GROUP BY a.v",
    "the ON of a right join": "SELECT b.v AS g, sum(a.v) AS n FROM (SELECT t.k, v, coalesce(w, 0) AS z "
    f"FROM {MATCHED}) AS a RIGHT JOIN t AS b ON a.k = b.k AND 12 / a.z > b.v GROUP BY b.v",
    "the ON of a full join": "SELECT a.v AS g, count(*) AS n FROM (SELECT t.k, v, coalesce(w, 0) AS z "
    f"FROM {MATCHED}) AS a FULL JOIN t AS b ON a.k = b.k AND 12 / a.z > b.v GROUP BY a.v",
    "a semi join": f"SELECT a.v AS g, count(*) AS n FROM (SELECT t.k, v, coalesce(w, 0) AS z FROM {MATCHED}) AS a "
    "WHERE EXISTS (SELECT 1 FROM t AS b WHERE a.k = b.k AND 12 / a.z > b.v) GROUP BY a.v",
    "an anti join": f"SELECT a.v AS g, count(*) AS n FROM (SELECT t.k, v, coalesce(w, 0) AS z FROM {MATCHED}) AS a "
    "WHERE NOT EXISTS (SELECT 1 FROM t AS b WHERE a.k = b.k AND 12 / a.z > b.v + 5) GROUP BY a.v",
    "the ON of a join without an equality": "SELECT a.v AS g, count(b.v) AS n FROM (SELECT t.k, v, coalesce(w, 0) AS z "
    f"FROM {MATCHED}) AS a LEFT JOIN t AS b ON 12 / a.z > b.v GROUP BY a.v",
    "a part of a group": "SELECT g, count(*) AS n FROM (SELECT 1 / sum(v) AS g "
    f"FROM {ROWS_OF_BOTH} GROUP BY k) AS s GROUP BY g",
    "two nodes, one after the other": "SELECT g, count(*) AS n FROM (SELECT 1 / (h - 3) AS g "
    f"FROM ({QUOTIENT}) AS i WHERE h <> 0) AS j GROUP BY g",
}


def rows(table: str, columns: Mapping[str, list[int]]) -> pa.RecordBatch:
    return pa.record_batch(dict(columns), schema=TABLES[table].schema)


FIRST = {
    "t": rows("t", {"k": [*range(KEYS), *range(KEYS)], "v": [1] * KEYS + [-1] * KEYS}),
    "u": rows("u", {"k": list(range(KEYS)), "w": [1 + k % 3 for k in range(KEYS)]}),
}
SECOND = {
    "t": rows("t", {"k": [20, 20, 21, 3], "v": [5, -5, 0, 1]}),
    "u": rows("u", {"k": [20, 21, 21], "w": [2, 6, 1]}),
}


def world(plan: DataflowPlan, seed: int) -> DataflowWorld:
    return DataflowWorld(plan, TABLES, Evaluator(), Random(seed))


@pytest.mark.parametrize("sql", QUERIES.values(), ids=QUERIES)
@pytest.mark.parametrize("seed", range(examples(2)))
def test_what_is_taken_back_in_the_same_epoch_fails_nothing(sql: str, seed: int) -> None:
    played = world(local_plan(sql, "g", T, U), seed)
    seen = {name: table.schema.empty_table() for name, table in TABLES.items()}
    for epoch in (FIRST, SECOND):
        played.run_epoch(epoch)
        seen = {name: pa.concat_tables([seen[name], pa.Table.from_batches([batch])]) for name, batch in epoch.items()}
        wanted = by_duckdb(sql, **seen)
        assert Counter(plain_rows(played.scan())) == Counter(plain_rows(wanted))


@pytest.mark.parametrize("sql", QUERIES.values(), ids=QUERIES)
def test_what_the_epoch_ends_with_is_an_error(sql: str) -> None:
    unmatched = {"t": FIRST["t"]} if sql != QUERIES["one row of no rows"] else {"u": FIRST["u"].slice(0, 0)}
    with pytest.raises(RowError, match="Division by zero"):
        world(local_plan(sql, "g", T, U), 1).run_epoch(unmatched)
