"""Windowed against all rows sorted and evaluated in Python."""

from collections.abc import Sequence
from functools import partial

import pyarrow as pa
from fleet_kit import Fleet, colliding, drawn_changes, plain_row
from hypothesis import given
from hypothesis import strategies as st
from state_kit import EAGER, MANY, TYPES, Row, column_values
from window_kit import answer

from upriver.engine.operators.window import Windowed
from upriver.hashing import hash64
from upriver.plan.plan import FrameUnit, Order, WindowCall, WindowFrame, WindowOp

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
    result = {"count": LONG, "avg": REAL, "sum": REAL if pa.types.is_floating(type) else LONG}.get(function, type)
    return WindowCall(function, column, output, result, frame, where)


def drawn_op(data: st.DataObject, partition: Sequence[str], schema: pa.Schema) -> WindowOp:
    chosen = data.draw(st.lists(st.sampled_from(schema.names[2:]), unique=True, max_size=2))
    order = tuple(Order(name, data.draw(st.booleans()), data.draw(st.booleans())) for name in chosen)
    in_distances = len(chosen) == 1 and schema.field(chosen[0]).type == pa.int16()
    calls = [drawn_call(data, number, schema, in_distances) for number in range(data.draw(st.integers(1, 4)))]
    return WindowOp(tuple(partition), order, tuple(calls))


def run(data: st.DataObject, fleet: Fleet, op: WindowOp, given_rows: Sequence[Row], batches: int) -> None:
    """Let the rows come in some batches, some of them go again, and keys move now and then."""
    given_form = {plain_row(row): row for row in given_rows}
    size = -(-len(given_rows) // batches)
    for start in range(0, batches * size, max(size, 1)):
        there = [given_form[row] for row in fleet.rows()]
        fleet.apply(drawn_changes(data, there, given_rows[start : start + size]))
        fleet.check(answer(op, fleet.schema, fleet.rows()))
        if data.draw(st.booleans()):
            fleet.move_some(data)


SCHEMA = pa.schema([("k", pa.int8()), ("p", pa.string()), ("x", pa.int16()), ("f", REAL), ("b", pa.bool_())])
SMALL = st.tuples(
    st.integers(1, 2),
    st.sampled_from([None, "a", "b"]),
    st.none() | st.integers(-6, 6),
    st.none() | st.sampled_from([0.5, -1.5, 1e300, -1e300, 3.0]),
    st.none() | st.booleans(),
)


@MANY
@given(st.data(), st.lists(SMALL, max_size=30), st.booleans())
def test_rows_have_the_results_of_their_partitions(data: st.DataObject, rows: list[Row], finer: bool) -> None:
    op = drawn_op(data, ["p", "k"] if finer else ["k"], SCHEMA)
    run(data, Fleet(SCHEMA, ["k"], partial(Windowed, op, SCHEMA, ["k"], pace=EAGER)), op, rows, 4)


@MANY
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
