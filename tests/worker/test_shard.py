"""Rows that go down one after the other are applied in one go, in their order, and nothing else is touched."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.ids import Epoch, MapVersion, WorkerId
from upriver.migration.events import Action, Interrogate, PassDown, Rule, Send
from upriver.migration.messages import Bye
from upriver.protocol.peers import Portion
from upriver.worker.shard import joined


def down(*numbers: int, epoch: int = 1, port: int = 0, taken_back: bool = False, rule: Rule = Rule.I1_2) -> PassDown:
    rows = pa.RecordBatch.from_arrays([pa.array(numbers)], names=["n"])
    weight = np.full(len(numbers), -1, np.int64) if taken_back else None
    return PassDown(rows=Portion(Epoch(epoch), port, Batch(rows, np.array(numbers, np.uint64), weight)), rule=rule)


def told(actions: Sequence[Action]) -> list[object]:
    """The rows of each that goes down, each with its hash64 and weight; other actions as they are."""
    found: list[object] = []
    for action in actions:
        if isinstance(action, PassDown):
            assert isinstance(action.rows, Portion)
            batch = action.rows.batch
            weight = np.ones(len(batch), np.int64) if batch.weight is None else batch.weight
            numbers = batch.rows.column(0).to_pylist()
            found.append(list(zip(numbers, batch.hash64.tolist(), weight.tolist(), strict=True)))
        else:
            found.append(action)
    return found


def test_neighbours_go_down_as_one_in_their_order() -> None:
    actions = joined([down(3, 1), down(2, taken_back=True, rule=Rule.C1_1), down(5)])
    assert told(actions) == [[(3, 3, 1), (1, 1, 1), (2, 2, -1), (5, 5, 1)]]


def test_of_another_epoch_or_port_they_stay_apart() -> None:
    actions = [down(1), down(2, epoch=2), down(3, epoch=2, port=1)]
    assert told(joined(actions)) == told(actions)


def test_what_has_something_else_in_between_stays_apart() -> None:
    asks = Interrogate(vnodes=())
    sends = Send(to=WorkerId(1), message=Bye(version=MapVersion(1)))
    actions: list[Action] = [down(1), asks, down(2), sends, down(3)]
    assert told(joined(actions)) == told(actions)
    assert joined([]) == []


def test_other_rows_than_portions_stay_as_they_are() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([1])], names=["n"])
    bare = PassDown(rows=Batch(rows, np.array([1], np.uint64)), rule=Rule.N1)
    assert joined([bare, bare]) == [bare, bare]
