"""Joins against a join in plain Python: whatever the types, the order, the batches and the moves of state."""

import pyarrow as pa
import pytest
from fleet_kit import Changes
from hypothesis import given
from hypothesis import strategies as st
from join_kit import Case, Truth, drawn, run
from state_kit import MANY, TYPES, VALUES, Row

from upriver.engine.expressions import Evaluator
from upriver.plan import plan as ops
from upriver.plan.plan import JoinKind

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
