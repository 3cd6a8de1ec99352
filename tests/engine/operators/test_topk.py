"""TopK against DuckDB, over rows that come and go."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from duckdb_kit import by_duckdb
from fleet_kit import Fleet, changes_batch, changes_of, colliding, drawn_changes, plain_row
from hypothesis import given
from hypothesis import strategies as st
from state_kit import EAGER, MANY, TYPES, Row, column_values, plain_rows

from upriver.engine.operators.topk import TopK
from upriver.hashing import hash64
from upriver.plan import plan as ops
from upriver.plan.plan import Order, Ranking

RANKINGS = st.sampled_from(list(Ranking))


def top(op: ops.TopKOp, schema: pa.Schema, rows: Sequence[Row]) -> Counter[Row]:
    """The answer, from the rows alone. Of rows that tie, the other columns say which comes first."""
    batch = changes_batch(schema, [], [(row, 1) for row in rows]).rows
    output = schema if op.rank is None else schema.append(pa.field(op.rank, pa.int32()))
    others = [Order(name, False, True) for name in schema.names] if op.ranking is Ranking.ROW_NUMBER else []
    order = ", ".join(
        f'"{one.column}" {"DESC" if one.descending else "ASC"} NULLS {"FIRST" if one.nulls_first else "LAST"}'
        for one in (*op.order, *others)
    )
    partition = f"PARTITION BY {listed(op.partition)} " if op.partition else ""
    number = f"{op.ranking.upper()}() OVER ({partition}ORDER BY {order})"
    kept = listed(schema.names) + ("" if op.rank is None else f', CAST(number_ AS INTEGER) AS "{op.rank}"')
    sql = f"SELECT {kept} FROM (SELECT *, {number} AS number_ FROM given_rows) WHERE number_ <= {op.limit}"
    return Counter(plain_rows(by_duckdb(sql, given_rows=pa.Table.from_batches([batch])).cast(output)))


def listed(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def drawn_op(data: st.DataObject, partition: Sequence[str], columns: Sequence[str], limit: int = 4) -> ops.TopKOp:
    chosen = data.draw(st.lists(st.sampled_from(columns), min_size=1, unique=True))
    order = tuple(Order(name, data.draw(st.booleans()), data.draw(st.booleans())) for name in chosen)
    rank = data.draw(st.sampled_from([None, "n"]))
    return ops.TopKOp(tuple(partition), order, data.draw(st.integers(0, limit)), data.draw(RANKINGS), rank)


def run(data: st.DataObject, fleet: Fleet, op: ops.TopKOp, given_rows: Sequence[Row], batches: int) -> None:
    """Let the rows come in some batches, many of them go again, and keys move now and then."""
    given_form = {plain_row(row): row for row in given_rows}
    size = -(-len(given_rows) // batches)
    for start in range(0, batches * size, max(size, 1)):
        there = [given_form[row] for row in fleet.rows()]
        fleet.apply(drawn_changes(data, there, given_rows[start : start + size]))
        if data.draw(st.booleans()):
            there = [given_form[row] for row in fleet.rows()]
            put_out = top(dataclasses.replace(op, rank=None), fleet.schema, there)
            fleet.apply([(given_form[row], -1) for row in put_out.elements()])
        fleet.check(top(op, fleet.schema, [given_form[row] for row in fleet.rows()]))
        if data.draw(st.booleans()):
            fleet.move_some(data)


@MANY
@given(st.data(), st.lists(TYPES, min_size=1, max_size=3), st.booleans(), st.booleans())
def test_values_of_all_types_are_ranked(
    data: st.DataObject, types: list[pa.DataType], finer: bool, collide: bool
) -> None:
    fields = [("k", pa.int8()), ("p", data.draw(TYPES)), *((f"c{place}", type) for place, type in enumerate(types))]
    schema = pa.schema(fields)
    op = drawn_op(data, ["p", "k"] if finer else ["k"], schema.names[2:])
    size = data.draw(st.integers(0, 20))
    keys = data.draw(st.lists(st.sampled_from([1, 2, None]), min_size=size, max_size=size))
    others = [data.draw(column_values(type, size=size)) for _, type in fields[1:]]
    build = partial(TopK, op, schema, ["k"], colliding if collide else hash64, EAGER)
    run(data, Fleet(schema, ["k"], build), op, list(zip(keys, *others, strict=True)), 3)


SCHEMA = pa.schema([("k", pa.int8()), ("x", pa.int16()), ("s", pa.string())])
SMALL = st.tuples(st.integers(1, 2), st.none() | st.integers(0, 30), st.sampled_from(["", "a"]))


@MANY
@given(st.data(), st.lists(SMALL, min_size=30, max_size=120))
def test_large_partitions_have_a_rest(data: st.DataObject, rows: list[Row]) -> None:
    op = drawn_op(data, ["k"], ["x", "s"], limit=2)
    run(data, Fleet(SCHEMA, ["k"], partial(TopK, op, SCHEMA, ["k"], pace=EAGER)), op, rows, 4)


@pytest.mark.parametrize("ranking", Ranking)
@pytest.mark.parametrize("values", [2**15, 300])
def test_the_next_row_follows_however_many_go(ranking: Ranking, values: int) -> None:
    """The best rows of a very large partition go and others come, a few at a time, until there is none."""
    op = ops.TopKOp(("k",), (Order("x", True, False), Order("s", False, True)), 3, ranking, "n")
    rng = np.random.default_rng(4)
    left = [(1, int(x), str(y)) for x, y in rng.integers(0, values, (12_000, 2))]
    fleet = Fleet(SCHEMA, ["k"], partial(TopK, op, SCHEMA, ["k"]))
    fleet.apply([(row, 1) for row in left])
    for going in [*rng.choice([1, 20, 150, 1000], 15).tolist(), len(left), len(left)]:
        left = sorted(left, key=lambda row: (-row[1], row[2]))
        near = left[going : going + 500]
        coming = [(1, near[place][1], f"{place}") for place in rng.integers(0, len(near), min(going, 50, len(near)))]
        fleet.apply([(row, 1) for row in coming] + [(row, -1) for row in left[:going]])
        left = left[going:] + coming
        few = sorted(left, key=lambda row: (-row[1], row[2]))[:200]  # none of those behind has a number up to the limit
        assert {row: n for row, n in fleet.output.items() if n} == dict(top(op, SCHEMA, few))
    fleet.check(Counter())
    assert fleet.operators[0].held == 0


def test_a_batch_is_a_multiset_of_changes() -> None:
    op = ops.TopKOp(("k",), (Order("x", False, True),), 2, Ranking.ROW_NUMBER, None)
    topk = TopK(op, SCHEMA, ["k"])
    first, second, third = (1, 1, "a"), (1, 2, "a"), (1, 3, "a")
    out = topk.apply(0, changes_batch(SCHEMA, ["k"], [(first, -1), (first, 1), (second, 1), (third, 3), (third, -1)]))
    assert changes_of(out) == [(second, 1), (third, 1)]
    out = topk.apply(0, changes_batch(SCHEMA, ["k"], [(first, 2), (second, -1), (second, 1), (third, 0)]))
    assert changes_of(out) == [(first, 2), (second, -1), (third, -1)]
    out = topk.apply(0, changes_batch(SCHEMA, ["k"], [(first, 1), (third, 1)]))
    assert changes_of(out) == []
    assert topk.held == 3


def test_only_numbers_that_change_are_put_out() -> None:
    op = ops.TopKOp(("k",), (Order("x", False, True),), 3, Ranking.ROW_NUMBER, "n")
    topk = TopK(op, SCHEMA, ["k"])
    topk.apply(0, changes_batch(SCHEMA, ["k"], [((1, 1, "a"), 1), ((1, 3, "a"), 2)]))
    out = topk.apply(0, changes_batch(SCHEMA, ["k"], [((1, 2, "b"), 1)]))
    assert changes_of(out) == [((1, 2, "b", 2), 1), ((1, 3, "a", 2), -1)]


def test_a_value_comes_back_to_the_bit() -> None:
    schema = pa.schema([("k", pa.int8()), ("x", pa.float64()), ("tags", pa.list_(pa.float32()))])
    op = ops.TopKOp(("k",), (Order("x", True, False),), 1, Ranking.RANK, None)
    topk = TopK(op, schema, ["k"])
    out = topk.apply(0, changes_batch(schema, ["k"], [((1, -0.0, [-0.0, None]), 1), ((1, -1.0, []), 1)]))
    assert repr(changes_of(out)) == "[((1, -0.0, [-0.0, None]), 1)]"
    out = topk.apply(0, changes_batch(schema, ["k"], [((1, 0.0, [0.0, None]), 1), ((1, math.nan, None), 1)]))
    assert repr(changes_of(out)) == "[((1, nan, None), 1), ((1, -0.0, [-0.0, None]), -1)]"
    out = topk.apply(0, changes_batch(schema, ["k"], [((1, -math.nan, None), -1), ((1, 0.0, [-0.0, None]), -1)]))
    assert repr(changes_of(out)) == "[((1, nan, None), -1), ((1, -0.0, [-0.0, None]), 1)]"
    out = topk.apply(0, changes_batch(schema, ["k"], [((1, 0.0, [0.0, None]), -1)]))
    assert repr(changes_of(out)) == "[((1, -0.0, [-0.0, None]), -1), ((1, -1.0, []), 1)]"


def test_one_partition_of_all_rows() -> None:
    op = ops.TopKOp((), (Order("x", True, False),), 2, Ranking.ROW_NUMBER, None)
    fleet = Fleet(SCHEMA, [], partial(TopK, op, SCHEMA, []))
    fleet.apply([((key, key, ""), 1) for key in range(50)])
    fleet.check(Counter({(49, 49, ""): 1, (48, 48, ""): 1}))
    fleet.move([int(hash64([], 1)[0])], 1)
    fleet.apply([((49, 49, ""), -1)])
    fleet.check(Counter({(48, 48, ""): 1, (47, 47, ""): 1}))
