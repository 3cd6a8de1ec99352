"""Explode: rows once for each element of a list that is computed from them."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.operators.stateless import Explode
from upriver.hashing import hash64
from upriver.plan.plan import ExplodeOp

ROWS = pa.schema([("k", pa.int64()), ("s", pa.string())])
SPLIT = """string_split("s", ',')"""


def exploded(op: ExplodeOp, rows: list[tuple[int, str | None]], weight: list[int] | None = None) -> Batch:
    columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(ROWS)]
    batch = pa.RecordBatch.from_arrays(columns, schema=ROWS)
    schema = pa.schema([*ROWS, *op.fields])
    weights = None if weight is None else np.array(weight, np.int64)
    return Explode(op, schema, Evaluator()).apply(0, Batch(batch, hash64([batch.column(0)]), weights))


def rows_of(batch: Batch) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in batch.rows.to_pylist()]


def test_each_row_comes_once_for_each_element_with_its_hash_and_its_weight() -> None:
    op = ExplodeOp(SPLIT, pa.string(), ("tag",), "pos")
    found = exploded(op, [(1, "a,b"), (2, None), (3, "c")], [1, 1, -1])
    assert rows_of(found) == [(1, "a,b", 0, "a"), (1, "a,b", 1, "b"), (3, "c", 0, "c")]
    assert found.weight is not None
    assert found.weight.tolist() == [1, 1, -1]
    assert found.hash64.tolist() == hash64([pa.array([1, 1, 3])]).tolist()


def test_a_row_without_an_element_stays_if_it_is_kept() -> None:
    op = ExplodeOp(SPLIT, pa.string(), ("tag",), "pos", keeps_empty=True)
    found = exploded(op, [(2, None), (3, "c"), (4, None)])
    assert rows_of(found) == [(2, None, None, None), (3, "c", 0, "c"), (4, None, None, None)]


def test_the_fields_of_a_struct_are_columns() -> None:
    elements = """[{'f0': "k", 'f1': "s"}, NULL, {'f0': CAST(NULL AS BIGINT), 'f1': 'x'}]"""
    op = ExplodeOp(elements, pa.struct([("a", pa.int64()), ("b", pa.string())]), ("x", "y"))
    assert rows_of(exploded(op, [(5, "q")])) == [(5, "q", 5, "q"), (5, "q", None, None), (5, "q", None, "x")]


def test_times_with_a_zone_stay_what_they_are() -> None:
    type = pa.timestamp("us", tz="Europe/Paris")
    op = ExplodeOp("""[make_timestamp("k")]""", type, ("at",))
    found = exploded(op, [(1_000_000, None)])
    assert found.rows.column("at").cast(pa.int64()).to_pylist() == [1_000_000]


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.text("ab,", max_size=5)), max_size=20), st.booleans())
def test_rows_are_those_of_python(rows: list[tuple[int, str | None]], keeps: bool) -> None:
    op = ExplodeOp(SPLIT, pa.string(), ("tag",), "pos", keeps_empty=keeps)
    expected: Counter[tuple[Any, ...]] = Counter()
    for key, text in rows:
        parts = [] if text is None else text.split(",")
        expected.update((key, text, place, part) for place, part in enumerate(parts))
        if keeps and not parts:
            expected[key, text, None, None] += 1
    assert Counter(rows_of(exploded(op, rows))) == expected


def test_a_list_that_cannot_be_computed_is_an_error() -> None:
    op = ExplodeOp("""[CAST("s" AS INTEGER)]""", pa.int32(), ("n",))
    with pytest.raises(Exception, match="many"):
        exploded(op, [(1, "many")])
