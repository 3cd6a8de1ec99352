"""The newest version of each primary key, against a loop over the versions."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
from duckdb_kit import DuckDbEvaluator
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY, order_of

from upriver.engine.expressions import Evaluator
from upriver.lake.compaction import newest_versions
from upriver.plan.plan import TableSpec

SCHEMA = pa.schema(
    [("a", pa.float64()), ("b", pa.string()), ("v", pa.float64()), ("w", pa.string()), ("op", pa.string())]
)
TABLE = TableSpec("t", SCHEMA, ("a",), ("v", "w"), ("a", "b"), "\"op\" = 'D'")
UNEVALUABLE = TableSpec("t", SCHEMA, ("a",), ("v", "w"), ("a", "b"), 'CAST("op" AS INTEGER) = 1')
NUMBERS = st.none() | st.sampled_from([0.0, -0.0, math.nan, -math.nan, 1.0, -math.inf])
TEXTS = st.none() | st.sampled_from(["", "a", "ab", "ä"])
ROWS = st.lists(
    st.tuples(st.integers(0, 2), NUMBERS, TEXTS, NUMBERS, TEXTS, st.sampled_from(["U", "D", None])), max_size=25
)
Row = tuple[Any, ...]


def rank(value: Any) -> tuple[Any, ...]:
    """Sorts as Spark does: nulls first, NaN last and equal to itself, -0.0 equal to 0.0."""
    if value is None:
        return (False,)
    return (True, value.encode() if isinstance(value, str) else order_of(value))


def newest(rows: list[Row], order_by: tuple[int, ...]) -> list[int]:
    best: dict[tuple[Any, ...], tuple[list[Any], int]] = {}
    for place, row in enumerate(rows):
        key, order = (row[0], rank(row[1]), rank(row[2])), [rank(row[at]) for at in order_by]
        if key not in best or order >= best[key][0]:
            best[key] = (order, place)
    return sorted(place for _, place in best.values())


def batch_of(rows: list[Row]) -> tuple[np.ndarray, pa.RecordBatch]:
    columns = list(zip(*rows, strict=True)) or [()] * 6
    arrays = [pa.array(column, field.type) for column, field in zip(columns[1:], SCHEMA, strict=True)]
    return np.array(columns[0], np.uint64), pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@MANY
@given(ROWS, st.sampled_from([(), ("v",), ("v", "w")]))
def test_the_last_of_the_highest_versions_of_each_key_with_one_hash64_stays(
    rows: list[Row], order_by: tuple[str, ...]
) -> None:
    """Rows with one hash64 may have several keys, and those of one key several hash64: by an index that is not its
    own."""
    table = TableSpec("t", SCHEMA, ("a",), order_by, ("a", "b"), TABLE.deletes)
    found = newest_versions(*batch_of(rows), table, DuckDbEvaluator())
    assert found.tolist() == newest(rows, tuple(1 + SCHEMA.get_field_index(name) for name in order_by))


def test_all_versions_stay_if_one_cannot_be_judged() -> None:
    rows: list[Row] = [(0, 1.0, "a", 1.0, "", "1"), (0, 1.0, "a", 2.0, "", "0"), (0, 1.0, "a", 0.0, "", "x")]
    assert newest_versions(*batch_of(rows), UNEVALUABLE, Evaluator()).tolist() == [0, 1, 2]
    assert newest_versions(*batch_of(rows[:2]), UNEVALUABLE, Evaluator()).tolist() == [1]


def test_without_deletes_nothing_is_judged() -> None:
    table = TableSpec("t", SCHEMA, ("a",), ("v",), ("a",))
    rows: list[Row] = [(0, 1.0, "a", 1.0, "", "1"), (0, 1.0, "b", 1.0, "", "x")]
    assert newest_versions(*batch_of(rows), table, DuckDbEvaluator()).tolist() == [1]
