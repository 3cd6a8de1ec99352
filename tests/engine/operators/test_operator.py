"""What holds of every operator that keeps state: what it refuses, and that memory comes back."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from duckdb_kit import DuckDbEvaluator
from fleet_kit import Changes, changes_batch
from stateful_kit import recall_op

from upriver.engine.operators.aggregate import Grouped
from upriver.engine.operators.join import Join
from upriver.engine.operators.latest import Latest
from upriver.engine.operators.set_operation import SetOperation
from upriver.engine.operators.stateful_map import StatefulMap
from upriver.engine.operators.topk import TopK
from upriver.engine.operators.window import Windowed
from upriver.errors import ProtocolError
from upriver.plan import plan as ops
from upriver.plan.plan import JoinKind, Order, Per, Ranking, SetKind

SCHEMA = pa.schema([("k", pa.int8()), ("x", pa.int64()), ("s", pa.string())])
OTHER = pa.schema([("k2", pa.int8()), ("y", pa.int64())])
BY_X = (Order("x", True, False),)
GROUPS = ops.AggregatePlan(("k",), (ops.AggregateCall("max", "x", "most", pa.int64()),), retracts=True)
NUMBER = ops.WindowCall("row_number", None, "w", pa.int32())
JOIN = ops.JoinOp(JoinKind.INNER, ("k",), ("k2",), (False,), None)
EXCEPT = ops.SetOperationOp(SetKind.EXCEPT, False)
OPERATORS: dict[str, Callable[[], Any]] = {
    "top": lambda: TopK(ops.TopKOp(("k",), BY_X, 2, Ranking.ROW_NUMBER, None), SCHEMA, ["k"]),
    "window": lambda: Windowed(ops.WindowOp(("k",), BY_X, (NUMBER,)), SCHEMA, ["k"]),
    "set operation": lambda: SetOperation(EXCEPT, SCHEMA, ["k"]),
    "join": lambda: Join(JOIN, SCHEMA, OTHER, ["k"], ["k2"], DuckDbEvaluator()),
    "groups": lambda: Grouped(GROUPS, SCHEMA, ["k"]),
    "latest": lambda: Latest(ops.LatestOp(("k",), ("x",), None), SCHEMA, ["k"], DuckDbEvaluator()),
    "stateful map": lambda: StatefulMap(recall_op(SCHEMA, ["k"], Per.ROW), [SCHEMA], ["k"]),
}
ROW = (1, 1, "a")


def applied(operator: Any, changes: Changes) -> Any:
    operator.apply(0, changes_batch(SCHEMA, ["k"], changes))
    return operator


@pytest.mark.parametrize("name", OPERATORS)
def test_state_of_a_key_that_is_there_is_not_installed(name: str) -> None:
    one, other = (applied(OPERATORS[name](), [(ROW, 1)]) for _ in range(2))
    with pytest.raises(ProtocolError, match="has state here"):
        other.install(one.collect(changes_batch(SCHEMA, ["k"], [(ROW, 1)]).hash64))


@pytest.mark.parametrize("name", ["top", "window", "set operation", "join"])
@pytest.mark.parametrize("gone", [(ROW, -2), ((1, 2, "a"), -1), ((2, 1, "a"), -1), ((1, None, "a"), -1)])
def test_a_row_that_is_not_there_cannot_be_retracted(name: str, gone: tuple[tuple[Any, ...], int]) -> None:
    with pytest.raises(ProtocolError, match="more often than it is there"):
        applied(applied(OPERATORS[name](), [(ROW, 1)]), [gone])


@pytest.mark.parametrize("name", ["top", "window", "set operation", "groups"])
def test_memory_comes_back(name: str) -> None:
    operator, most = OPERATORS[name](), 0
    for turn in range(40):
        rows = [(key % 100, turn + key % 50, f"{turn}-{key}") for key in range(200)]
        applied(applied(operator, [(row, 1) for row in rows]), [(row, -1) for row in rows])
        if turn < 10:
            most = max(most, operator.nbytes)
    assert operator.held == 0
    assert operator.nbytes <= 2 * most
