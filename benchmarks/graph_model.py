"""A graph of two functions: the first counts the rows of a key and sends each on by another key, under which the second
counts and adds up. What the second gives does not depend on the order of rows, so Spark's answer is the same.

The functions go to the workers by value, since the workers do not have this module.
"""

import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle

from benchmarks.events import SCHEMA, TABLE, VIEW
from upriver.engine.stateful import MapInputs, Readable
from upriver.plan.plan import DataflowPlan, Keep, Per, TableSpec
from upriver.spark.functions import declare_stateful_map
from upriver.sql.views import MapRelation, mapped_rows, mapped_view

EVENTS = TableSpec(TABLE, SCHEMA, ("k",))
FIRST = "sent"
"""The name of the first map; the second one has that of the view."""
FACTOR = 7_919
"""A prime: the second key is this many times the first, modulo the number of keys, so each key has another one. With 1,
it is the same."""
LAST = Keep(rows=1)
"""Of each key of the second map the last row stays: its totals."""
COUNT = pa.schema([("n", pa.int64())])
SENT = pa.schema([("j", pa.int64()), ("v", pa.int64())])
TOTALS = pa.schema([("n", pa.int64()), ("total", pa.int64())])


def expected_sql(keys: int) -> str:
    """What the second function gives at last, by its key, in Spark SQL over the events."""
    return f"SELECT k * {FACTOR} % {keys} AS j, count(*) AS n, sum(v) AS total FROM {TABLE} GROUP BY 1"


def functions(keys: int, per: str, factor: int = FACTOR) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The two functions, in one of their forms."""
    first, second = _FORMS[Per(per)]
    return first(keys, factor), second


def sent_by_row(keys: int, factor: int) -> Callable[..., Any]:
    def sent(k: int, row: Any, state: Any) -> Any:
        return [(k * factor % keys, row.v)], (1 if state is None else state.n + 1,)

    return sent


def added_by_row(j: int, row: Any, state: Any) -> Any:
    n, total = (0, 0) if state is None else state
    after = n + 1, total + row.v
    return [after], after


def sent_by_key(keys: int, factor: int) -> Callable[..., Any]:
    def sent(k: int, rows: pa.RecordBatch, state: Any) -> Any:
        j = pa.array(np.full(rows.num_rows, k * factor % keys))
        given = pa.RecordBatch.from_arrays([j, rows["v"]], ["j", "v"])
        return given, (rows.num_rows + (0 if state is None else state.n),)

    return sent


def added_by_key(j: int, rows: pa.RecordBatch, state: Any) -> Any:
    n, total = (0, 0) if state is None else state
    after = n + rows.num_rows, total + pc.sum(rows["v"]).as_py()
    return [after], after


def sent_by_batch(keys: int, factor: int) -> Callable[..., Any]:
    def sent(owners: Any, rows: pa.RecordBatch, states: pa.RecordBatch) -> Any:
        n = states["n"].fill_null(0).to_numpy() + np.bincount(owners, minlength=states.num_rows)
        j = pa.array(rows["k"].to_numpy() * factor % keys)
        given = pa.RecordBatch.from_arrays([j, rows["v"]], ["j", "v"])
        return owners, given, pa.RecordBatch.from_arrays([pa.array(n)], ["n"])

    return sent


def added_by_batch(owners: Any, rows: pa.RecordBatch, states: pa.RecordBatch) -> Any:
    count = states.num_rows
    n = states["n"].fill_null(0).to_numpy() + np.bincount(owners, minlength=count)
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    total = states["total"].fill_null(0).to_numpy() + np.add.reduceat(rows["v"].to_numpy(), starts)
    after = pa.RecordBatch.from_arrays([pa.array(n), pa.array(total)], ["n", "total"])
    return np.arange(count), after, after


_FORMS: Mapping[Per, tuple[Callable[[int, int], Callable[..., Any]], Callable[..., Any]]] = MappingProxyType(
    {
        Per.ROW: (sent_by_row, added_by_row),
        Per.KEY: (sent_by_key, added_by_key),
        Per.BATCH: (sent_by_batch, added_by_batch),
    }
)


def send_by_value() -> None:
    """Let functions of this module go to workers as those of a user's program do."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def graph_plan(keys: int, per: str, factor: int = FACTOR) -> DataflowPlan:
    """The second map's dataflow, which has the first one; of each key it keeps the last row."""
    send_by_value()
    first, second = functions(keys, per, factor)
    inputs = MapInputs(((Readable.of_table(EVENTS), ("k",)),))
    op = declare_stateful_map(FIRST, inputs, first, SENT, COUNT, per=per, timezone="UTC")
    sent = mapped_rows(op, [MapRelation.of_table(EVENTS)])
    inputs = MapInputs(((Readable("the stateful map", FIRST, op.output, upstream=op.key), ("j",)),))
    op = declare_stateful_map(VIEW, inputs, second, TOTALS, TOTALS, per=per, timezone="UTC")
    return mapped_view(VIEW, mapped_rows(op, [sent]), {TABLE: EVENTS}, LAST)
