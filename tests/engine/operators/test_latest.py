"""Latest against a loop over the versions."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial

import pyarrow as pa
import pytest
from duckdb_kit import DuckDbEvaluator
from fleet_kit import Fleet, changes_batch, changes_of, colliding
from hypothesis import given
from hypothesis import strategies as st
from latest_kit import current
from state_kit import EAGER, MANY, TYPES, Row, column_values

from upriver.engine.batch import Batch
from upriver.engine.operators.latest import Latest
from upriver.errors import ProtocolError
from upriver.hashing import hash64
from upriver.plan import plan as ops

SCHEMA = pa.schema([("k", pa.int8()), ("v", pa.int32()), ("x", pa.float64()), ("op", pa.string())])
DELETED = "\"op\" = 'D'"
BY_VERSION = ops.LatestOp(("k",), ("v",), DELETED)
BY_ARRIVAL = ops.LatestOp(("k",), (), DELETED)


@MANY
@given(st.data(), st.lists(TYPES, min_size=1, max_size=2), st.lists(TYPES, max_size=2), st.booleans())
def test_the_highest_version_is_the_row(
    data: st.DataObject, keys: list[pa.DataType], order_by: list[pa.DataType], collide: bool
) -> None:
    key_fields = [(f"k{place}", type) for place, type in enumerate(keys)]
    order_fields = [(f"v{place}", type) for place, type in enumerate(order_by)]
    schema = pa.schema([*key_fields, *order_fields, ("x", pa.int8()), ("op", pa.string())])
    deleted = data.draw(st.sampled_from([None, DELETED]))
    op = ops.LatestOp(tuple(name for name, _ in key_fields), tuple(name for name, _ in order_fields), deleted)
    routing = schema.names[: data.draw(st.integers(1, len(keys)))]
    hasher = colliding if collide else hash64
    fleet = Fleet(schema, routing, lambda: Latest(op, schema, routing, DuckDbEvaluator(), hasher, EAGER))
    known = list(zip(*(data.draw(column_values(type, size=3)) for type in keys), strict=True))
    rest = st.tuples(st.integers(0, 2), st.sampled_from(["U", "D", None]))
    versions: list[Row] = []
    for _ in range(data.draw(st.integers(2, 6))):
        size = data.draw(st.integers(0, 8))
        ordered = list(zip(*(data.draw(column_values(type, size=size)) for type in order_by), strict=True))
        came = [
            (*data.draw(st.sampled_from(known)), *(ordered[place] if order_by else ()), *data.draw(rest))
            for place in range(size)
        ]
        batch = changes_batch(schema, [], [(row, 1) for row in came])
        versions += zip(*(column.to_pylist() for column in batch.rows.columns), strict=True)
        fleet.apply([(row, 1) for row in came])
        fleet.check(current(op, schema, versions))
        if data.draw(st.booleans()):
            fleet.move_some(data)


def latest(op: ops.LatestOp, *batches: Sequence[Row]) -> tuple[Latest, list[list[tuple[Row, int]]]]:
    """An operator that has taken these batches in, and what it put out for each."""
    operator = Latest(op, SCHEMA, ["k"], DuckDbEvaluator())
    return operator, [changes_of(operator.apply(0, versions_batch(rows))) for rows in batches]


def versions_batch(rows: Sequence[Row]) -> Batch:
    return changes_batch(SCHEMA, ["k"], [(row, 1) for row in rows])


OLD, NEW, GONE = (1, 1, 0.5, "U"), (1, 2, 1.5, "U"), (1, 3, None, "D")


def test_an_update_takes_the_old_row_back() -> None:
    _, changes = latest(BY_VERSION, [OLD], [NEW], [OLD], [NEW])
    assert changes == [[(OLD, 1)], [(OLD, -1), (NEW, 1)], [], []]


def test_of_equal_versions_the_last_to_come_is_the_row() -> None:
    again = (1, 1, 9.0, "U")
    _, changes = latest(BY_VERSION, [OLD, again], [OLD])
    assert changes == [[(again, 1)], [(again, -1), (OLD, 1)]]


def test_a_deleted_row_is_not_brought_back_by_an_older_version() -> None:
    later = (1, 4, 2.5, "U")
    operator, changes = latest(BY_VERSION, [OLD], [GONE], [NEW], [(1, 3, None, "D")], [later])
    assert changes == [[(OLD, 1)], [(OLD, -1)], [], [], [(later, 1)]]
    assert operator.held == 1


def test_a_deletion_may_come_before_what_it_deletes() -> None:
    _, changes = latest(BY_VERSION, [GONE], [NEW, OLD])
    assert changes == [[], []]


def test_a_deletion_is_forgotten_where_nothing_can_be_late() -> None:
    operator, changes = latest(BY_ARRIVAL, [GONE], [NEW, GONE], [NEW], [OLD], [GONE])
    assert changes == [[], [], [(NEW, 1)], [(NEW, -1), (OLD, 1)], [(OLD, -1)]]
    assert operator.held == 0


def test_a_deletion_moves_with_its_key() -> None:
    later = (1, 4, 2.5, "U")
    fleet = Fleet(SCHEMA, ["k"], partial(Latest, BY_VERSION, SCHEMA, ["k"], DuckDbEvaluator()))
    fleet.apply([(OLD, 1), (GONE, 1)])
    fleet.move(versions_batch([OLD]).hash64.tolist(), 2)
    fleet.apply([(NEW, 1)])
    fleet.check(Counter())
    fleet.apply([(later, 1)])
    fleet.check(Counter({later: 1}))


def test_a_row_has_the_key_that_came_with_it() -> None:
    op = ops.LatestOp(("x",), ("v",), None)
    operator = Latest(op, SCHEMA, ["x"], DuckDbEvaluator())
    minus, plus = (1, 1, -0.0, ""), (1, 2, 0.0, "")
    changes = [changes_of(operator.apply(0, changes_batch(SCHEMA, ["x"], [(row, 1)]))) for row in (minus, plus)]
    assert repr(changes) == repr([[(minus, 1)], [(minus, -1), (plus, 1)]])


def test_a_null_is_the_lowest_version_and_nan_the_highest() -> None:
    op = ops.LatestOp(("k",), ("x",), None)
    rows = [(1, 1, None, ""), (1, 2, -math.inf, ""), (1, 3, math.nan, ""), (1, 4, math.inf, ""), (1, 5, -math.nan, "")]
    _, changes = latest(op, *([row] for row in rows))
    assert [[(row[1], weight) for row, weight in each] for each in changes] == [
        [(1, 1)],
        [(1, -1), (2, 1)],
        [(2, -1), (3, 1)],
        [],
        [(3, -1), (5, 1)],
    ]


def test_a_version_of_no_weight_is_none() -> None:
    operator = Latest(BY_VERSION, SCHEMA, ["k"], DuckDbEvaluator())
    assert changes_of(operator.apply(0, changes_batch(SCHEMA, ["k"], [(OLD, 0)]))) == []
    assert operator.held == 0


def test_a_version_cannot_be_retracted() -> None:
    operator, _ = latest(BY_VERSION, [OLD])
    with pytest.raises(ProtocolError, match="cannot be retracted"):
        operator.apply(0, changes_batch(SCHEMA, ["k"], [(OLD, -1)]))


def test_values_of_nested_types_are_kept() -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("tags", pa.list_(pa.string()))])
    op = ops.LatestOp(("k",), ("v",), None)
    fleet = Fleet(schema, ["k"], partial(Latest, op, schema, ["k"], DuckDbEvaluator()))
    fleet.apply([(("a", 1, ["x", None]), 1), (("b", 1, []), 1)])
    fleet.move([int(hash64([pa.array(["a"])])[0])], 1)
    fleet.apply([(("a", 2, None), 1), (("b", 1, []), 1)])
    fleet.check(Counter({("a", 2, None): 1, ("b", 1, ()): 1}))


def test_memory_comes_back() -> None:
    operator = Latest(ops.LatestOp(("k",), ("v",), None), SCHEMA, ["k"], DuckDbEvaluator())
    rows = [(key % 100, key, None, f"{key}") for key in range(2000)]
    most = 0
    for turn in range(200):
        operator.apply(0, versions_batch([(key, v + turn, None, op) for key, v, _, op in rows[:100]]))
        if turn < 60:
            most = max(most, operator.nbytes)
    assert operator.held == 100
    assert operator.nbytes <= 2 * most
