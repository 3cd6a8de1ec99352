"""Joins against a join in plain Python: whatever the types, the order, the batches and the moves of state."""

import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fleet_kit import Changes
from hypothesis import given
from hypothesis import strategies as st
from join_kit import Case, Truth, drawn, run, weighed
from state_kit import MANY, TYPES, VALUES, Row

from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.operators.join import PAIRS_MAX, Gains, Join
from upriver.errors import BudgetExceeded
from upriver.plan import plan as ops
from upriver.plan.plan import REPLICATED_ROWS_MAX, Band, JoinKind, Replicated

KINDS = st.sampled_from(list(JoinKind))
SMALL = st.none() | st.integers(0, 2)
"""What a condition compares."""


def _less(left: Row, right: Row) -> bool:
    return left[0] is not None and right[0] is not None and left[0] < right[0]


CONDITIONS: list[tuple[str | None, Truth]] = [
    (None, lambda left, right: True),
    ('"lx" < "rx"', _less),
    ('"lx" IS DISTINCT FROM "rx"', lambda left, right: left[0] != right[0]),
    ('"lx" = 1 OR "rx" = 1', lambda left, right: left[0] == 1 or right[0] == 1),
    ('"rx" IS NULL', lambda left, right: right[0] is None),
    ("FALSE", lambda left, right: False),
]
"""Predicates over the first column of each side."""


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator()


def _case(data: st.DataObject) -> Case:
    """A join on one to three columns, which are routed by all of them, in any order, or by some."""
    types = data.draw(st.lists(TYPES, min_size=1, max_size=3))
    schemas = tuple(
        pa.schema(
            [
                (f"{side}x", pa.int8()),
                *((f"{side}k{place}", type) for place, type in enumerate(types)),
                (f"{side}v", data.draw(TYPES)),
            ]
        )
        for side in "lr"
    )
    left, right = (tuple(f"{side}k{place}" for place in range(len(types))) for side in "lr")
    routed = data.draw(st.permutations(range(len(types))))[: data.draw(st.integers(1, len(types)))]
    condition, truth = data.draw(st.sampled_from(CONDITIONS))
    null_safe = tuple(data.draw(st.lists(st.booleans(), min_size=len(types), max_size=len(types))))
    op = ops.JoinOp(data.draw(KINDS), left, right, null_safe, condition)
    routing = ([left[place] for place in routed], [right[place] for place in routed])
    return Case(op, (schemas[0], schemas[1]), routing, truth)


def _rows_of(data: st.DataObject, case: Case) -> list[st.SearchStrategy[Row]]:
    """Rows of each side: few keys, which both share, and few payloads."""

    def few(type: pa.DataType) -> st.SearchStrategy[object]:
        values = data.draw(st.lists(VALUES[type], min_size=1, max_size=2))
        return st.sampled_from([*values, *([None] * data.draw(st.integers(0, 1)))])

    left, right = case.inputs
    keys = [few(left.field(name).type) for name in case.op.left_key]
    return [st.tuples(SMALL, *keys, few(schema.field(len(schema) - 1).type)) for schema in (left, right)]


@MANY
@given(data=st.data())
def test_what_comes_out_is_the_join_of_what_went_in(data: st.DataObject, evaluator: Evaluator) -> None:
    case = _case(data)
    rows = _rows_of(data, case)

    def changes(port: int, there: dict[Row, int]) -> Changes:
        """Some rows come and go at once."""
        passing = [(row, weight) for row in data.draw(st.lists(rows[port], max_size=1)) for weight in (2, -1, -1)]
        return [*passing[:1], *drawn(data, there, data.draw(st.lists(rows[port], max_size=10))), *passing[1:]]

    run(data, case, case.fleet(evaluator, collide=data.draw(st.booleans())), changes)


# Bands

FEW: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-128, -1, 0, 1, 127],
    pa.int64(): [-(2**63), -1, 0, 1, 2**63 - 1],
    pa.float64(): [-math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, math.nan],
    pa.decimal128(10, 2): [Decimal("-1.50"), Decimal("-0.01"), Decimal("0.00"), Decimal("1.50")],
    pa.decimal128(38, 2): [Decimal("-1e30"), Decimal("-0.01"), Decimal("0.00"), Decimal("1e30")],
    pa.date32(): [date(1960, 1, 1), date(1970, 1, 1), date(2024, 2, 29)],
    pa.timestamp("us"): [datetime(1960, 1, 1), datetime(1970, 1, 1), datetime(2024, 2, 29, 1, 2, 3, 4)],
}
TRIED = {"la": 1, "ra": 1, "lb": 2, "rb": 2}
"""The columns that bands compare, with their places in a row."""


def _order(value: Any) -> tuple[bool, Any]:
    """Spark's order: NaN is the greatest, and equals itself."""
    is_nan = value == "NaN"
    return is_nan, 0.0 if is_nan else value


def _meets(op: ops.JoinOp, left: Row, right: Row) -> bool:
    """By the words of JoinOp."""
    rows = {"l": left, "r": right}
    unknown = {name[0] for name in op.tried if rows[name[0]][TRIED[name]] is None}
    compared = {name for band in op.bands for name in (band.left, band.right)}
    if any(name[0] not in unknown and rows[name[0]][TRIED[name]] is None for name in compared):
        return False
    if unknown:
        return True
    for band in op.bands:
        one, other = left[TRIED[band.left]], right[TRIED[band.right]]
        one, other = _order(one), _order(other)
        if not (one <= other if band.at_most else one >= other):
            return False
    return True


def _case_of_bands(data: st.DataObject) -> Case:
    type = data.draw(st.sampled_from(list(FEW)))
    schemas = [pa.schema([(f"{side}k", pa.int8()), (f"{side}a", type), (f"{side}b", type)]) for side in "lr"]
    band = st.builds(Band, st.sampled_from(["la", "lb"]), st.sampled_from(["ra", "rb"]), st.booleans())
    bands = tuple(data.draw(st.lists(band, min_size=1, max_size=3, unique=True)))
    named = sorted({name for one in bands for name in (one.left, one.right)})
    tried = tuple(data.draw(st.lists(st.sampled_from(named), max_size=2, unique=True)))
    kind = data.draw(st.sampled_from(list(JoinKind)))
    condition = data.draw(st.sampled_from([None, '"la" IS DISTINCT FROM "rb"']))
    op = ops.JoinOp(kind, ("lk",), ("rk",), (False,), condition, bands, tried)

    def truth(left: Row, right: Row) -> bool:
        differs = condition is None or left[1] != right[2]
        return differs and _meets(op, left, right)

    return Case(op, (schemas[0], schemas[1]), (["lk"], ["rk"]), truth)


@MANY
@given(data=st.data())
def test_what_comes_out_is_the_join_by_bands(data: st.DataObject, evaluator: Evaluator) -> None:
    case = _case_of_bands(data)
    value = st.none() | st.sampled_from(FEW[case.inputs[0].types[1]])
    rows = st.lists(st.tuples(st.sampled_from([1, 1, 2, None]), value, value), max_size=8)
    fleet = case.fleet(evaluator, data.draw(st.sampled_from([0, 2, 1000])))
    run(data, case, fleet, lambda _, there: drawn(data, there, data.draw(rows)))


def _at_work(evaluator: Evaluator, kind: JoinKind, size: int) -> tuple[Join, Case]:
    """A join of so many points, all of one key, with as many intervals: point n is in the intervals that begin at n - 1
    and n."""
    schemas = (
        pa.schema([("lk", pa.int8()), ("t", pa.int64())]),
        pa.schema([("rk", pa.int8()), ("start", pa.int64()), ("stop", pa.int64())]),
    )
    bands = (Band("t", "start", False), Band("t", "stop", True))
    op = ops.JoinOp(kind, ("lk",), ("rk",), (False,), '"t" >= "start" AND "t" <= "stop"', bands)
    case = Case(op, schemas, (["lk"], ["rk"]))
    return Join(op, *schemas, *case.routing, evaluator), case


@pytest.mark.parametrize("kind", [JoinKind.INNER, JoinKind.FULL])
@pytest.mark.parametrize("first", [0, 1])
def test_the_condition_is_tested_on_the_pairs_that_are_put_out(kind: JoinKind, first: int) -> None:
    """20,000 rows of one key on either side are 400 million pairs."""
    size = 20_000
    counting = _Counting()
    join, case = _at_work(counting, kind, size)
    numbers = np.arange(size)
    columns = [[np.zeros(size, np.int8), numbers], [np.zeros(size, np.int8), numbers, numbers + 1]]
    made = []
    for port in (first, 1 - first):
        arrays = [pa.array(column) for column in columns[port]]
        rows = pa.RecordBatch.from_arrays(arrays, schema=case.inputs[port])
        made.append(join.apply(port, Batch(rows, np.zeros(size, np.uint64))))
    pairs = 2 * size - 1
    assert counting.tested == pairs
    assert len(made[1]) == pairs + (size if kind is JoinKind.FULL else 0)


class _Counting(Evaluator):
    """Counts the rows on which conditions are evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.tested = 0

    def mask(self, rows: pa.RecordBatch, predicate: str) -> Any:
        self.tested += rows.num_rows
        return super().mask(rows, predicate)


def test_gains_keep_few_numbers() -> None:
    gains = Gains()
    slots = np.arange(PAIRS_MAX // 2)
    for turn in range(20):
        gains.add(slots, np.full(len(slots), turn % 3 - 1), slots.astype(np.uint64))
        assert gains._size <= gains._room
    named, net, routed = gains.net()
    assert named.tolist() == routed.tolist() == slots.tolist()
    assert set(net.tolist()) == {sum(turn % 3 - 1 for turn in range(20))}


def test_a_row_whose_bound_cannot_be_computed_meets_all(evaluator: Evaluator) -> None:
    schemas = pa.schema([("k", pa.int8()), ("t", pa.int64())]), pa.schema([("k2", pa.int8()), ("least", pa.int64())])
    op = ops.JoinOp(JoinKind.INNER, ("k",), ("k2",), (False,), None, (Band("t", "least", False),), ("least",))
    case = Case(op, schemas, (["k"], ["k2"]))
    join = case.build(evaluator)
    join.apply(1, case.batch(1, [((1, None), 1), ((1, 5), 1)]))
    made = weighed(join.apply(0, case.batch(0, [((1, 4), 1), ((1, 5), 1), ((1, None), 1)])))
    assert made == {(1, 4, 1, None): 1, (1, 5, 1, None): 1, (1, 5, 1, 5): 1}


def test_a_side_in_all_slots_has_a_bound(evaluator: Evaluator) -> None:
    schemas = pa.schema([("k", pa.int32()), ("a", pa.int64())]), pa.schema([("k2", pa.int32()), ("b", pa.int64())])
    op = ops.JoinOp(JoinKind.SEMI, ("k",), ("k2",), (False,), None, replicated=Replicated(1, ("prices", "rates")))
    case = Case(op, schemas, (["k"], ["k2"]))

    def rows(port: int, key: int, first: int, count: int) -> Batch:
        arrays = [pa.array(np.full(count, key, np.int32)), pa.array(np.arange(first, first + count))]
        return Batch(pa.RecordBatch.from_arrays(arrays, schema=schemas[port]), np.full(count, key, np.uint64))

    join = case.build(evaluator)
    for port, key in ((0, 1), (0, 2), (1, 1), (1, 2)):
        join.apply(port, rows(port, key, 0, REPLICATED_ROWS_MAX))
    join.apply(0, rows(0, 1, REPLICATED_ROWS_MAX, 1))
    with pytest.raises(BudgetExceeded, match=r"more than 100,000 rows from 'prices' and 'rates' .* column of equality"):
        join.apply(1, rows(1, 2, REPLICATED_ROWS_MAX, 1))
