"""Aggregates for which Spark may give one of several answers: first, last, approx_count_distinct, percentile_approx."""

import math
from collections import defaultdict
from functools import cache
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows_kit import rows_of
from sql_kit import local_plan

from simulator.dataflow_world import DataflowWorld
from upriver.engine.expressions import Evaluator
from upriver.engine.operators.cardinality import codes_of
from upriver.hashing import hash64
from upriver.plan.plan import TableSpec

ROWS = TableSpec(
    "t",
    pa.schema(
        [
            ("id", pa.int32()),
            ("k", pa.int32()),
            ("a", pa.int64()),
            ("s", pa.string()),
            ("n", pa.int32()),
            ("gone", pa.bool_()),
        ]
    ),
    key=("id",),
    order_by=("n",),
    primary_key=("id",),
    deletes='"gone"',
)
EPOCHS = st.lists(
    st.lists(
        st.tuples(
            st.integers(0, 9),
            st.integers(0, 2),
            st.none() | st.integers(-3, 3),
            st.none() | st.sampled_from("abc"),
            st.booleans(),
        ),
        max_size=12,
    ),
    min_size=1,
    max_size=3,
)
EVALUATOR = Evaluator()
planned = cache(lambda sql, key: local_plan(sql, key, ROWS))
some_examples = settings(max_examples=15)
Row = tuple[int, int, int | None, str | None]


def after_each(sql: str, key: str | tuple[str, ...], epochs: list[Any]) -> Any:
    """The rows of the table, and those of the view, after each epoch."""
    world = DataflowWorld(planned(sql, key), {"t": ROWS}, EVALUATOR, Random(len(epochs)))
    rows: dict[int, Row] = {}
    for number, epoch in enumerate(epochs):
        newest = {row[0]: row for row in epoch}
        for row in newest.values():
            rows.pop(row[0], None) if row[4] else rows.update({row[0]: row[:4]})
        changes = [(*row[:4], number, row[4]) for row in newest.values()]
        columns = [dict(zip(ROWS.schema.names, change, strict=True)) for change in changes]
        world.run_epoch({"t": pa.RecordBatch.from_pylist(columns, schema=ROWS.schema)} if changes else {})
        groups: dict[int, list[Row]] = defaultdict(list)
        for row in rows.values():
            groups[row[1]].append(row)
        yield groups, rows_of(world.scan())


@some_examples
@given(EPOCHS)
def test_first_and_last_are_of_one_row_of_their_group(epochs: list[Any]) -> None:
    sql = (
        "SELECT k, first(a) AS a, first(s) AS s, last(a) AS y, last(s) AS z, any_value(s) AS v, "
        "first(s) FILTER (WHERE a > 0) AS p, first(a) FILTER (WHERE a > 0) AS q, first(a) IGNORE NULLS AS g "
        "FROM t GROUP BY k"
    )
    for groups, found in after_each(sql, "k", epochs):
        assert {row[0] for row in found} == set(groups)
        for k, a, s, y, z, v, p, q, g in found:
            pairs = {(row[2], row[3]) for row in groups[k]}
            assert {(a, s), (y, z)} <= pairs
            assert v in {pair[1] for pair in pairs}
            filtered = {pair for pair in pairs if pair[0] is not None and pair[0] > 0}
            assert (q, p) in (filtered or {(None, None)})
            assert g in ({pair[0] for pair in pairs if pair[0] is not None} or {None})


def test_a_percentile_has_sparks_last_digit() -> None:
    """Asked of Spark 4.3: the middle of -20.55 and 100."""
    epoch = [(1, 0, -2055, None, False), (2, 0, 10_000, None, False)]
    ((_, found),) = after_each("SELECT k, percentile(a / 100.0D, 0.5) AS m FROM t GROUP BY k", "k", [epoch])
    assert [tuple(row) for row in found] == [(0, 39.724999999999994)]


@some_examples
@given(EPOCHS)
def test_lists_have_all_values_or_all_different_ones_in_order(epochs: list[Any]) -> None:
    sql = (
        "SELECT k, collect_list(s) AS l, collect_set(s) AS d, array_agg(a) FILTER (WHERE s = 'a') AS f, "
        "percentile_approx(a, array(0.5, 0.0)) AS p FROM t GROUP BY k"
    )
    for groups, found in after_each(sql, "k", epochs):
        for k, listed, different, filtered, places in found:
            texts = [row[3] for row in groups[k] if row[3] is not None]
            numbers = sorted(row[2] for row in groups[k] if row[2] is not None)
            assert listed == sorted(texts)
            assert different == sorted(set(texts))
            assert filtered == sorted(row[2] for row in groups[k] if row[2] is not None and row[3] == "a")
            assert places == ([numbers[(len(numbers) + 1) // 2 - 1], numbers[0]] if numbers else None)


@some_examples
@given(EPOCHS)
def test_few_distinct_values_are_counted_by_unused_registers(epochs: list[Any]) -> None:
    sql = "SELECT approx_count_distinct(a, 0.3) AS n FROM t"
    for groups, found in after_each(sql, (), epochs):
        values = {row[2] for rows in groups.values() for row in rows if row[2] is not None}
        codes = codes_of(hash64([pa.array(list(values), pa.int64())]).view("i8"), 4)
        unused = 16 - len(set((codes >> 6).tolist()))
        assert found == [(math.floor(16 * math.log(16 / unused) + 0.5),)]


@pytest.mark.parametrize("bits", [4, 9, 14, 20])
def test_a_code_is_the_register_and_how_many_zeros_follow(bits: int) -> None:
    rng = Random(bits)
    hashes = [0, -1, 1, *(rng.getrandbits(64) - 2**63 for _ in range(500))]
    for hash, code in zip(hashes, codes_of(pa.array(hashes, pa.int64()).to_numpy(), bits).tolist(), strict=True):
        word = hash % 2**64
        rest = (word << bits) % 2**64 | 1 << (bits - 1)
        assert code == (word >> (64 - bits)) << 6 | 65 - rest.bit_length()
