"""Windowed against DuckDB, over rows that come and go."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from decimal import ROUND_HALF_UP, Decimal, localcontext
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from duckdb_kit import by_duckdb
from fleet_kit import Fleet, changes_batch, changes_of, colliding, drawn_changes, plain_row
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import examples
from state_kit import EAGER, MANY, TYPES, Row, column_values, plain_rows
from window_sql import windowed_sql

from upriver.engine.batch import Batch
from upriver.engine.operators.window import Windowed
from upriver.engine.operators.window_frames import reach_of
from upriver.errors import RowError
from upriver.hashing import hash64
from upriver.plan.plan import AggregateCall, FrameUnit, Order, WindowCall, WindowFrame, WindowOp

INT, LONG, REAL = pa.int32(), pa.int64(), pa.float64()
PLACES = {
    "row_number": INT, "rank": INT, "dense_rank": INT, "percent_rank": REAL, "cume_dist": REAL, "ntile": INT,
}  # fmt: skip
VALUES = ("lag", "lead", "first_value", "last_value", "nth_value", "min", "max", "count")
DISTANCES = st.none() | st.integers(-3, 3)


def drawn_frame(data: st.DataObject, in_distances: bool) -> WindowFrame:
    unit = data.draw(st.sampled_from(FrameUnit))
    distances = DISTANCES if unit is FrameUnit.ROWS or in_distances else st.sampled_from([None, 0])
    start, end = data.draw(distances), data.draw(distances)
    if start is not None and end is not None:
        start, end = min(start, end), max(start, end)
    return WindowFrame(unit, start, end)


def drawn_call(data: st.DataObject, number: int, schema: pa.Schema, in_distances: bool) -> WindowCall:
    output = f"w{number}"
    frame = drawn_frame(data, in_distances)
    nth = data.draw(st.integers(1, 4))
    if data.draw(st.integers(0, 3)) == 0:
        function = data.draw(st.sampled_from(list(PLACES)))
        return WindowCall(function, None, output, PLACES[function], number=nth if function == "ntile" else 0)
    where = data.draw(st.sampled_from([None, "b"]))
    column = data.draw(st.sampled_from(schema.names[2:]))
    type = schema.field(column).type
    functions = [*VALUES, "count_star"]
    functions += ["sum", "avg"] if pa.types.is_floating(type) or pa.types.is_signed_integer(type) else []
    functions += ["bit_xor", "bit_or"] if pa.types.is_signed_integer(type) else []
    functions += ["bool_and", "bool_or"] if pa.types.is_boolean(type) else []
    function = data.draw(st.sampled_from(functions))
    ignores = data.draw(st.booleans())
    if function in ("lag", "lead"):
        default = data.draw(
            st.sampled_from([None, *(name for name in schema.names if schema.field(name).type == type)])
        )
        number = nth if ignores else data.draw(st.integers(-2, 3))
        return WindowCall(function, column, output, type, number=number, default=default, ignores_nulls=ignores)
    if function in ("first_value", "last_value", "nth_value"):
        number = nth if function == "nth_value" else 0
        return WindowCall(function, column, output, type, frame, number=number, ignores_nulls=ignores)
    if function == "count_star":
        return WindowCall(function, None, output, LONG, frame, where)
    if function in ("bit_xor", "bit_or"):
        aggregate = AggregateCall(function, column, "", type, where=where)
        return WindowCall(function, None, output, type, frame, aggregate=aggregate)
    result = {"count": LONG, "avg": REAL, "sum": REAL if pa.types.is_floating(type) else LONG}.get(function, type)
    return WindowCall(function, column, output, result, frame, where)


def drawn_op(data: st.DataObject, partition: Sequence[str], schema: pa.Schema) -> WindowOp:
    chosen = data.draw(st.lists(st.sampled_from(schema.names[2:]), unique=True, max_size=2))
    order = tuple(Order(name, data.draw(st.booleans()), data.draw(st.booleans())) for name in chosen)
    in_distances = len(chosen) == 1 and schema.field(chosen[0]).type in (pa.int16(), REAL)
    calls = [drawn_call(data, number, schema, in_distances) for number in range(data.draw(st.integers(1, 4)))]
    return WindowOp(tuple(partition), order, tuple(calls))


def answer(op: WindowOp, schema: pa.Schema, rows: Sequence[Row]) -> Counter[Row]:
    """The rows with their results."""
    batch = changes_batch(schema, [], [(row, 1) for row in rows]).rows
    found = by_duckdb(windowed_sql(op, schema, "given_rows"), given_rows=pa.Table.from_batches([batch]))
    output = pa.schema([*schema, *(pa.field(call.output, call.type) for call in op.calls)])
    return Counter(plain_rows(found.cast(output)))


def run(data: st.DataObject, fleet: Fleet, op: WindowOp, given_rows: Sequence[Row], batches: int) -> None:
    """Let the rows come in some batches, some of them go again, and keys move now and then."""
    given_form = {plain_row(row): row for row in given_rows}
    size = -(-len(given_rows) // batches)
    for start in range(0, batches * size, max(size, 1)):
        there = [given_form[row] for row in fleet.rows()]
        fleet.apply(drawn_changes(data, there, given_rows[start : start + size]))
        fleet.check(answer(op, fleet.schema, [given_form[row] for row in fleet.rows()]))
        if data.draw(st.booleans()):
            fleet.move_some(data)


SCHEMA = pa.schema([("k", pa.int8()), ("p", pa.string()), ("x", pa.int16()), ("f", REAL), ("b", pa.bool_())])
SMALL = st.tuples(
    st.integers(1, 2),
    st.sampled_from([None, "a", "b"]),
    st.none() | st.integers(-6, 6),
    st.none() | st.sampled_from([0.5, -1.5, 3.0]),
    st.none() | st.booleans(),
)


@settings(MANY, max_examples=examples(20))
@given(st.data(), st.lists(SMALL, max_size=30), st.booleans())
def test_rows_have_the_results_of_their_partitions(data: st.DataObject, rows: list[Row], finer: bool) -> None:
    op = drawn_op(data, ["p", "k"] if finer else ["k"], SCHEMA)
    run(data, Fleet(SCHEMA, ["k"], partial(Windowed, op, SCHEMA, ["k"], pace=EAGER)), op, rows, 4)


@settings(MANY, max_examples=examples(20))
@given(st.data(), st.lists(TYPES, min_size=1, max_size=3), st.booleans())
def test_values_of_all_types(data: st.DataObject, types: list[pa.DataType], collide: bool) -> None:
    fields = [("k", pa.int8()), ("p", data.draw(TYPES)), *((f"c{place}", type) for place, type in enumerate(types))]
    schema = pa.schema([*fields, ("b", pa.bool_())])
    op = drawn_op(data, ["k"], schema)
    calls = tuple(call for call in op.calls if call.function not in ("sum", "avg") and call.frame.unit == "rows")
    op = WindowOp(op.partition, op.order, calls)
    size = data.draw(st.integers(0, 15))
    keys = data.draw(st.lists(st.sampled_from([1, 2, None]), min_size=size, max_size=size))
    others = [data.draw(column_values(type, size=size)) for type in schema.types[1:]]
    build = partial(Windowed, op, schema, ["k"], colliding if collide else hash64, EAGER)
    run(data, Fleet(schema, ["k"], build), op, list(zip(keys, *others, strict=True)), 3)


def test_large_partitions() -> None:
    """A few rows come and go at a time, in partitions of several blocks."""
    frames = WindowFrame(FrameUnit.ROWS, -3, 1), WindowFrame(FrameUnit.RANGE, None, 0)
    near = (
        WindowCall("lag", "x", "w0", pa.int16(), number=2),
        WindowCall("sum", "f", "w1", REAL, frames[0], where="b"),
        WindowCall("max", "x", "w2", pa.int16(), frames[0]),
    )
    running = (WindowCall("sum", "x", "w3", LONG, frames[1]), WindowCall("dense_rank", None, "w4", INT))
    rng = np.random.default_rng(5)
    ops = [WindowOp(("k",), (Order("x", True, False), Order("f", False, True)), calls) for calls in (near, running)]
    fleets = [Fleet(SCHEMA, ["k"], partial(Windowed, op, SCHEMA, ["k"])) for op in ops]
    rows = [(1, None, int(x), int(f) / 4, bool(b)) for x, f, b in rng.integers(0, [20, 30, 2], (260, 3))]
    for come, go in ((130, 0), (3, 5), (1, 1), (40, 20)):
        changes = [(rows.pop(), 1) for _ in range(come)]
        there = fleets[0].rows()
        changes += [(there[place], -1) for place in rng.permutation(len(there))[:go]]
        for op, fleet in zip(ops, fleets, strict=True):
            fleet.apply(changes)
            fleet.check(answer(op, SCHEMA, fleet.rows()))


def windowed(*calls: WindowCall) -> Windowed:
    return Windowed(WindowOp(("k",), (Order("x", False, True),), calls), SCHEMA, ["k"])


def batch_of(changes: Sequence[tuple[Row, int]]) -> Batch:
    return changes_batch(SCHEMA, ["k"], changes)


def row(x: int, f: float = 0.5) -> Row:
    return (1, "a", x, f, True)


def told(operator: Windowed, changes: Sequence[tuple[Row, int]]) -> list[tuple[int, Any, int]]:
    """What is put out, in the order of the sort column: that, the first result, and the weight."""
    return sorted((row[2], row[5], weight) for row, weight in changes_of(operator.apply(0, batch_of(changes))))


def test_only_rows_whose_results_differ_are_put_out() -> None:
    lag = windowed(WindowCall("lag", "x", "w", pa.int16(), number=1))
    told(lag, [(row(x), 1) for x in (1, 2, 5, 6)])
    assert told(lag, [(row(3), 1)]) == [(3, 2, 1), (5, 2, -1), (5, 3, 1)]
    assert told(lag, [(row(6), -1), (row(1), 0)]) == [(6, 5, -1)]
    greatest = windowed(WindowCall("max", "f", "w", REAL, WindowFrame(FrameUnit.ROWS, None, 0)))
    told(greatest, [(row(x), 1) for x in range(5)])
    assert told(greatest, [(row(2, 7.5), 1), (row(3, 9.0), 1)]) == [
        (2, 7.5, 1), (3, 0.5, -1), (3, 7.5, 1), (3, 9.0, 1), (4, 0.5, -1), (4, 9.0, 1),
    ]  # fmt: skip


def test_equal_rows_are_rows_of_their_own() -> None:
    number = windowed(WindowCall("row_number", None, "w", INT))
    assert told(number, [(row(1), 2), (row(2), 1)]) == [(1, 1, 1), (1, 2, 1), (2, 3, 1)]
    assert told(number, [(row(1), -1)]) == [(1, 2, -1), (2, 2, 1), (2, 3, -1)]


@pytest.mark.parametrize(
    ("call", "back", "ahead"),
    [
        (WindowCall("lag", "x", "w", INT, number=2), 2, 0),
        (WindowCall("lag", "x", "w", INT, number=-2), 0, 2),
        (WindowCall("lead", "x", "w", INT, number=1, ignores_nulls=True), 0, None),
        (WindowCall("sum", "x", "w", LONG, WindowFrame(FrameUnit.ROWS, -3, 1)), 3, 1),
        (WindowCall("sum", "x", "w", LONG, WindowFrame(FrameUnit.ROWS, 1, 2)), 0, 2),
        (WindowCall("sum", "x", "w", LONG, WindowFrame(FrameUnit.ROWS, None, -1)), None, 0),
        (WindowCall("sum", "x", "w", LONG, WindowFrame(FrameUnit.RANGE, -1, 0)), None, 0),
        (WindowCall("ntile", None, "w", INT, number=2), None, None),
    ],
)
def test_how_far_the_changed_part_reaches(call: WindowCall, back: int | None, ahead: int | None) -> None:
    reach = reach_of(call)
    assert (reach.back, reach.ahead, reach.ties) == (back, ahead, call.frame.unit is FrameUnit.RANGE)


@pytest.mark.parametrize("values", [[2**62, 2**62], [-(2**62), -(2**62), -1]])
def test_a_sum_that_does_not_fit_is_an_error_with_the_row(values: list[int]) -> None:
    schema = pa.schema([("k", pa.int8()), ("l", LONG)])
    call = WindowCall("sum", "l", "total", LONG, WindowFrame(FrameUnit.ROWS, -2, 0))
    operator = Windowed(WindowOp(("k",), (Order("l", False, True),), (call,)), schema, ["k"])
    with pytest.raises(RowError, match=r"total does not fit BIGINT \(row: k = 1, l = -?\d+\)"):
        operator.apply(0, changes_batch(schema, ["k"], [((1, value), 1) for value in values]))


@pytest.mark.parametrize(
    ("frame", "descending", "values", "fails"),
    [
        ((-1, 1), False, [127], True),
        ((-1, 1), True, [127], True),
        ((-1, 1), False, [0, 127], True),
        ((-1, 1), False, [126, 127], False),  # the frame of 126 has all rows already
        ((-1, 0), False, [-128, 0], True),
        ((None, 1), False, [127, None], True),
        ((None, -1), False, [-127, -128], True),
        ((1, None), False, [127, 5], True),
        ((0, None), False, [127, -128], False),
        ((0, 127), False, [1], True),
        ((-1, 1), False, [126, -127, None], False),
    ],
)
def test_a_bound_beyond_the_type_of_the_sort_column_is_an_error(
    frame: tuple[int | None, int | None], descending: bool, values: list[int | None], fails: bool
) -> None:
    schema = pa.schema([("k", pa.int8()), ("y", pa.int8())])
    call = WindowCall("count_star", None, "n", LONG, WindowFrame(FrameUnit.RANGE, *frame))
    operator = Windowed(WindowOp(("k",), (Order("y", descending, True),), (call,)), schema, ["k"])
    changes = changes_batch(schema, ["k"], [((1, value), 1) for value in values])
    with pytest.raises(RowError, match="frame of n, counted from y, does not fit TINYINT") if fails else nullcontext():
        assert len(operator.apply(0, changes)) == len(values)


def test_sums_of_decimals_are_exact() -> None:
    type, results = pa.decimal128(28, 2), (pa.decimal128(38, 2), pa.decimal128(32, 6))
    schema = pa.schema([("k", pa.int8()), ("n", INT), ("p", type)])
    frame = WindowFrame(FrameUnit.ROWS, -1, 0)
    calls = WindowCall("sum", "p", "s", results[0], frame), WindowCall("avg", "p", "a", results[1], frame)
    operator = Windowed(WindowOp(("k",), (Order("n", False, True),), calls), schema, ["k"])
    values = [Decimal("99999999999999999999999999.99"), Decimal("0.02"), None, Decimal("-0.05")]
    out = operator.apply(0, changes_batch(schema, ["k"], [((1, n, value), 1) for n, value in enumerate(values)]))
    rows = sorted(zip(*(out.rows.column(name).to_pylist() for name in ("n", "s", "a")), strict=True))
    assert [row[1] for row in rows] == [values[0], Decimal("100000000000000000000000000.01"), values[1], values[3]]
    assert [row[2] for row in rows] == [values[0], Decimal("50000000000000000000000000.005"), values[1], values[3]]


def test_an_average_is_there_though_the_sum_has_more_digits_than_decimals() -> None:
    type, most = pa.decimal128(38, 38), Decimal("0." + "9" * 38)
    schema = pa.schema([("k", pa.int8()), ("n", INT), ("p", type)])
    call = WindowCall("avg", "p", "a", type, WindowFrame(FrameUnit.ROWS, None, 0))
    operator = Windowed(WindowOp(("k",), (Order("n", False, True),), (call,)), schema, ["k"])
    values = [*[most] * 4, most.copy_negate(), *[Decimal(0)] * 3]
    out = operator.apply(0, changes_batch(schema, ["k"], [((1, n, value), 1) for n, value in enumerate(values)]))
    rows = sorted(zip(*(out.rows.column(name).to_pylist() for name in ("n", "a")), strict=True))
    with localcontext(prec=100):
        means = [sum(values[: n + 1], Decimal(0)) / (n + 1) for n in range(len(values))]
        assert [mean for _, mean in rows] == [mean.quantize(Decimal(1).scaleb(-38), ROUND_HALF_UP) for mean in means]


def test_sums_of_floats_are_rounded_once() -> None:
    total = windowed(WindowCall("sum", "f", "w", REAL, WindowFrame(FrameUnit.ROWS, None, None)))
    found = changes_of(total.apply(0, batch_of([(row(x, f), 1) for x, f in enumerate([1e300, 0.5, -1e300])])))
    assert [out[5] for out, _ in found] == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("function", ["var_samp", "stddev_pop"])
def test_spreads_of_frames(function: str) -> None:
    spread = windowed(WindowCall(function, "f", "w", REAL, WindowFrame(FrameUnit.ROWS, -2, 0)))
    values = [1e8, 1e8 + 1, math.nan, 2.0, 4.0, 9.0]
    found = told(spread, [(row(x, value), 1) for x, value in enumerate(values)])
    of = statistics.variance if function == "var_samp" else statistics.pstdev
    wanted = [None if function == "var_samp" else 0.0, of(values[:2]), math.nan, math.nan, math.nan, of(values[3:])]
    assert [result for _, result, _ in found] == [
        result if result is None else pytest.approx(result, nan_ok=True) for result in wanted
    ]
