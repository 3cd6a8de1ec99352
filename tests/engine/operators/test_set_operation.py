"""SetOperation against counters."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

import pyarrow as pa
import pytest
from fleet_kit import Fleet, changes_batch, colliding, drawn_changes, plain_row
from hypothesis import given
from hypothesis import strategies as st
from state_kit import EAGER, MANY, TYPES, Row, column_values

from upriver.engine.operators.set_operation import SetOperation
from upriver.errors import ProtocolError
from upriver.hashing import hash64
from upriver.plan import plan as ops
from upriver.plan.plan import SetKind

OPS = [ops.SetOperationOp(kind, all) for kind in SetKind for all in (False, True)]
SCHEMA = pa.schema([("k", pa.int8()), ("s", pa.string())])


def answer(op: ops.SetOperationOp, left: Sequence[Row], right: Sequence[Row]) -> Counter[Row]:
    """The rows, from the inputs alone."""
    a, b = Counter(left), Counter(right)
    if op.all:
        return a - b if op.kind is SetKind.EXCEPT else a & b
    return Counter(a.keys() - b.keys() if op.kind is SetKind.EXCEPT else a.keys() & b.keys())


@MANY
@given(st.data(), st.sampled_from(OPS), st.lists(TYPES, min_size=1, max_size=3), st.booleans())
def test_rows_are_counted_on_both_sides(
    data: st.DataObject, op: ops.SetOperationOp, types: list[pa.DataType], collide: bool
) -> None:
    schema = pa.schema([(f"c{place}", type) for place, type in enumerate(types)])
    routing = schema.names[: data.draw(st.integers(1, len(types)))]
    size = data.draw(st.integers(1, 8))
    pool = list(zip(*(data.draw(column_values(type, size=size)) for type in types), strict=True))
    given_form = {plain_row(row): row for row in pool}
    fleet = Fleet(schema, routing, partial(SetOperation, op, schema, routing, colliding if collide else hash64, EAGER))
    for _ in range(data.draw(st.integers(1, 6))):
        port = data.draw(st.integers(0, 1))
        there = [given_form[row] for row in fleet.rows(port)]
        fleet.apply(drawn_changes(data, there, data.draw(st.lists(st.sampled_from(pool), max_size=8))), port)
        fleet.check(answer(op, fleet.rows(0), fleet.rows(1)))
        if data.draw(st.booleans()):
            fleet.move_some(data)


def test_nested_values_are_compared() -> None:
    schema = pa.schema([("k", pa.int8()), ("tags", pa.list_(pa.string())), ("x", pa.float64())])
    fleet = Fleet(schema, ["k"], partial(SetOperation, OPS[0], schema, ["k"]))
    fleet.apply([((1, ["a", None], 0.0), 1), ((1, [], None), 1), ((1, None, None), 1)])
    fleet.apply([((1, ["a", None], -0.0), 1), ((1, [], None), 1)], port=1)
    fleet.check(Counter({(1, None, None): 1}))
    fleet.move([int(hash64([pa.array([1], pa.int8())])[0])], 1)
    fleet.apply([((1, ["a", None], 0.0), -1)], port=1)
    fleet.check(Counter({(1, None, None): 1, (1, ("a", None), 0.0): 1}))


def test_a_number_has_one_form() -> None:
    schema = pa.schema([("x", pa.float64())])
    operation = SetOperation(OPS[0], schema, ["x"])
    out = operation.apply(0, changes_batch(schema, ["x"], [((-0.0,), 1)]))
    assert repr(out.rows.to_pylist()) == "[{'x': 0.0}]"


def test_a_row_that_is_on_the_other_side_cannot_be_retracted() -> None:
    operation = SetOperation(OPS[0], SCHEMA, ["k"])
    operation.apply(0, changes_batch(SCHEMA, ["k"], [((1, "a"), 1)]))
    with pytest.raises(ProtocolError, match="more often than it is there"):
        operation.apply(1, changes_batch(SCHEMA, ["k"], [((1, "a"), -1)]))
