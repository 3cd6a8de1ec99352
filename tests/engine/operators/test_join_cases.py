"""Joins, case by case: what a single change makes of what was put out before."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from join_kit import Case, join_of, weighed
from state_kit import MANY, Row

from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.operators.compacted import FORGOTTEN_MIN
from upriver.engine.operators.join import (
    FOUND_MIN,
    Join,
    JoinChanges,
    JoinShape,
    JoinSide,
    Members,
    SideShape,
    pairs_of,
)
from upriver.errors import RowError
from upriver.plan import plan as ops
from upriver.plan.plan import JoinKind

LEFT = [("k", pa.int64()), ("x", pa.string())]
RIGHT = [("k2", pa.int64()), ("y", pa.string())]
NO_ROW = (None, None)


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator()


def _changes(case: Case, join: Join, port: int, *changes: tuple[Row, int]) -> Counter[Row]:
    return weighed(join.apply(port, case.batch(port, changes)))


def test_a_left_row_is_matched_and_alone_again(evaluator: Evaluator) -> None:
    case = join_of(JoinKind.LEFT, LEFT, RIGHT)
    join = case.build(evaluator)
    a, r, s = (1, "a"), (1, "r"), (1, "s")
    assert _changes(case, join, 0, (a, 2)) == {a + NO_ROW: 2}
    assert _changes(case, join, 1, (r, 1)) == {a + NO_ROW: -2, a + r: 2}
    assert _changes(case, join, 1, (s, 1), (r, -1)) == {a + r: -2, a + s: 2}
    assert _changes(case, join, 0, (a, -1)) == {a + s: -1}
    assert _changes(case, join, 1, (s, -1)) == {a + s: -1, a + NO_ROW: 1}
    assert _changes(case, join, 0, (a, -1)) == {a + NO_ROW: -1}
    assert join.held == 0


def test_a_condition_decides_for_each_row(evaluator: Evaluator) -> None:
    case = join_of(JoinKind.ANTI, LEFT, RIGHT, '"x" < "y"')
    join = case.build(evaluator)
    a, m, z = (1, "a"), (1, "m"), (1, "z")
    assert _changes(case, join, 0, (a, 1), (m, 1), (z, 1)) == {a: 1, m: 1, z: 1}
    assert _changes(case, join, 1, ((1, "n"), 3)) == {a: -1, m: -1}
    assert _changes(case, join, 1, ((1, "b"), 1), ((1, "n"), -2)) == {}
    assert _changes(case, join, 1, ((1, "n"), -1)) == {m: 1}
    assert _changes(case, join, 1, ((1, None), 1)) == {}


@pytest.mark.parametrize("kind", list(JoinKind))
def test_what_goes_and_comes_back_in_a_batch_changes_nothing(kind: JoinKind, evaluator: Evaluator) -> None:
    case = join_of(kind, LEFT, RIGHT)
    join = case.build(evaluator)
    for port, row in ((0, (1, "a")), (1, (1, "r")), (0, (2, "b")), (1, (3, "s"))):
        _changes(case, join, port, (row, 1))
    held = join.held
    for port in (0, 1):
        for row in ((1, "a"), (1, "r")):
            there = (port == 0) == (row[1] == "a")
            first = -1 if there else 1
            output = join.apply(port, case.batch(port, [(row, first), (row, -first)]))
            assert len(output) == 0
    assert join.held == held


@pytest.mark.parametrize("kind", list(JoinKind))
def test_a_null_that_matches_nothing_is_not_kept(kind: JoinKind, evaluator: Evaluator) -> None:
    case = join_of(kind, LEFT, RIGHT)
    fleet = case.fleet(evaluator)
    for weight in (3, -1, -2):
        for port in (0, 1):
            fleet.apply([((None, "a"), weight)], port)
        case.check(fleet)
        assert fleet.operators[0].held == 0


def test_a_null_safe_null_matches_a_null(evaluator: Evaluator) -> None:
    case = join_of(JoinKind.INNER, LEFT, RIGHT, null_safe=True)
    join = case.build(evaluator)
    _changes(case, join, 0, ((None, "a"), 1))
    assert _changes(case, join, 1, ((None, "r"), 1), ((0, "s"), 1)) == {(None, "a", None, "r"): 1}


def test_of_a_semi_joins_right_rows_only_what_they_match_by_is_kept(evaluator: Evaluator) -> None:
    for condition, held in ((None, 1), ('"y" > "x"', 2)):
        case = join_of(JoinKind.SEMI, [*LEFT, ("p", pa.int8())], [*RIGHT, ("q", pa.int8())], condition)
        join = case.build(evaluator)
        _changes(case, join, 1, *(((1, "ab"[n % 2], n), 1) for n in range(10)))
        assert join.held == held
        assert _changes(case, join, 0, ((1, "A", 0), 2)) == {(1, "A", 0): 2}
        assert _changes(case, join, 1, *(((1, "ab"[n % 2], n), -1) for n in range(9))) == {}
        assert _changes(case, join, 1, ((1, "b", 9), -1)) == {(1, "A", 0): -2}


def test_rows_take_each_other_back_bit_by_bit(evaluator: Evaluator) -> None:
    """A row comes with -0.0 and goes with 0.0, which is equal: what is put out goes as it came."""
    floats = [("k", pa.float64()), ("x", pa.float64())], [("k2", pa.float64()), ("y", pa.list_(pa.float64()))]
    case = join_of(JoinKind.INNER, *floats)
    join = case.build(evaluator)
    _changes(case, join, 1, ((0.0, [math.nan]), 1), ((math.nan, None), 1))
    came = join.apply(0, case.batch(0, [((-0.0, -0.0), 1), ((math.nan, 1.0), 1)]))
    went = join.apply(0, case.batch(0, [((0.0, 0.0), -1), ((math.nan, 1.0), -1)]))
    assert repr(came.rows.to_pylist()) == repr(went.rows.to_pylist())
    assert {repr(row) for row in came.rows.to_pylist()} == {
        "{'k': -0.0, 'x': -0.0, 'k2': 0.0, 'y': [nan]}",
        "{'k': nan, 'x': 1.0, 'k2': nan, 'y': None}",
    }


def test_a_pair_on_which_the_condition_fails_is_told(evaluator: Evaluator) -> None:
    case = join_of(JoinKind.LEFT, LEFT, RIGHT, 'CAST("x" AS INTEGER) < CAST("y" AS INTEGER)')
    join = case.build(evaluator)
    _changes(case, join, 0, ((1, "one"), 1), ((2, "2"), 1))
    assert _changes(case, join, 1, ((2, "3"), 1)) == {(2, "2", *NO_ROW): -1, (2, "2", 2, "3"): 1}
    with pytest.raises(RowError, match="one"):
        join.apply(1, case.batch(1, [((1, "3"), 1)]))


def test_the_routing_key_may_be_a_part_of_the_key() -> None:
    op = ops.JoinOp(JoinKind.INNER, ("k", "x"), ("k2", "y"), (False, False), None)
    inputs = (pa.schema(LEFT), pa.schema(RIGHT))
    assert JoinShape.of(op, inputs, (["x"], ["y"])).routing == ("1",)
    assert JoinShape.of(op, inputs, (["x", "k"], ["y", "k2"])).routing == ("0", "1")


def test_state_that_has_moved_is_in_the_same_order(evaluator: Evaluator) -> None:
    """Of three keys under one routing key, the oldest has right rows only."""
    op = ops.JoinOp(JoinKind.FULL, ("k", "x"), ("k2", "y"), (False, False), None)
    case = Case(op, (pa.schema(LEFT), pa.schema(RIGHT)), (["k"], ["k2"]))
    fleet = case.fleet(evaluator)
    fleet.apply([((1, "a"), 1), ((1, "b"), 1)], 1)
    fleet.apply([((1, "c"), 1), ((1, "b"), 1)])
    for turn in (1, 0, 1):
        fleet.move(case.batch(0, [((1, "a"), 1)]).hash64.tolist(), to=turn)
    fleet.apply([((1, "a"), 1), ((1, "c"), -1)])
    case.check(fleet)


def test_memory_of_rows_that_are_gone_comes_back(evaluator: Evaluator) -> None:
    case = join_of(JoinKind.INNER, LEFT, RIGHT)
    join = Join(case.op, *case.inputs, *case.routing, evaluator)
    rows = [((key, "a name that takes some room"), 1) for key in range(4 * FORGOTTEN_MIN)]
    for port in (0, 1):
        join.apply(port, case.batch(port, rows))
    full = join.nbytes
    for start in range(0, len(rows), 50):
        gone = [(row, -1) for row, _ in rows[start : start + 50] if row[0] % 8]
        for port in (0, 1):
            join.apply(port, case.batch(port, gone))
    assert join.held == len(rows) // 4
    assert join.nbytes < full / 2
    for port in (0, 1):
        join.apply(port, case.batch(port, [(row, -1) for row, _ in rows if not row[0] % 8]))
    assert join.held == 0
    assert join.nbytes < full / 8


def test_a_left_key_may_stand_against_two_right_columns(evaluator: Evaluator) -> None:
    op = ops.JoinOp(JoinKind.INNER, ("k", "k"), ("k2", "k3"), (False, True), None)
    inputs = pa.schema([("k", pa.int8())]), pa.schema([("k2", pa.int8()), ("k3", pa.int8())])
    case = Case(op, inputs, (["k"], ["k2"]))
    join = case.build(evaluator)
    _changes(case, join, 1, ((1, 1), 1), ((1, 2), 1), ((1, None), 1))
    assert _changes(case, join, 0, ((1,), 1)) == {(1, 1, 1): 1}


@MANY
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=6), st.integers(1, 12))
def test_pairs_come_a_few_at_a_time(sizes: list[tuple[int, int]], pairs_max: int) -> None:
    changed, kept = (np.array([size[side] for size in sizes], np.int64) for side in (0, 1))
    places = np.arange(int(changed.sum()))
    changes = JoinChanges(np.arange(len(sizes)), np.zeros(len(sizes), np.uint64), changed, places, places)
    blocks = list(pairs_of(changes, Members(kept, np.arange(int(kept.sum()))), pairs_max))
    assert all(0 < len(block) <= pairs_max for block, _ in blocks)
    ends = np.cumsum([(0, 0), *sizes], axis=0).tolist()
    assert [pair for block in blocks for pair in zip(*(part.tolist() for part in block), strict=True)] == [
        (a, b)
        for (first_a, first_b), (last_a, last_b) in pairwise(ends)
        for a in range(first_a, last_a)
        for b in range(first_b, last_b)
    ]


def test_many_rows_of_one_key_on_both_sides(evaluator: Evaluator) -> None:
    """More pairs than are made at a time; all rows of one side go again, at the cost of what they put out."""
    case = join_of(JoinKind.FULL, LEFT, RIGHT, '"x" = "y"')
    join = case.build(evaluator)
    rows = [((1, str(n)), 1) for n in range(400)]
    assert len(join.apply(0, case.batch(0, rows))) == 400
    matched = weighed(join.apply(1, case.batch(1, rows)))
    assert matched == {row + NO_ROW: -1 for row, _ in rows} | {row + row: 1 for row, _ in rows}
    batch = case.batch(1, rows)
    gone = weighed(join.apply(1, Batch(batch.rows, batch.hash64, np.full(len(batch), -1))))
    assert gone == {row: -weight for row, weight in matched.items()}


def _replace(side: JoinSide, owner: int, old: list[str], new: list[str]) -> None:
    """In one batch, and with it a row that comes and goes."""
    texts = [*old, *new, "passing", "passing"]
    weight = np.array([-1] * len(old) + [1] * len(new) + [1, -1])
    owners = np.full(len(texts), owner)
    side.change([pa.array(owners), pa.array(texts)], owners, np.zeros(len(texts), np.uint64), weight)


@pytest.mark.parametrize("count", [1, 100])
def test_rows_that_are_gone_are_not_found_again_and_again(count: int) -> None:
    """All rows of a key are replaced with every batch: a lookup costs in proportion to those that are there."""
    side = JoinSide(SideShape(pa.schema(LEFT), len(LEFT), ("k",), ("k",), None, False))
    side.resize(2)
    _replace(side, 1, [], ["other"])
    old: list[str] = []
    for version in range(30):
        new = [f"{n} of {version}" for n in range(count)]
        _replace(side, 0, old, new)
        old = new
        members = side.members(np.array([1, 0]))
        assert members.sizes.tolist() == [1, count]
        assert side.column(1, members.slots).to_pylist() == ["other", *new]
        _, looked_at = side._by_owner.find(np.array([0]))
        assert len(looked_at) <= (1 if count == 1 else FOUND_MIN + 2 * count)
