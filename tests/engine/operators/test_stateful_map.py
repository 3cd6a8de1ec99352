"""Stateful maps: what comes out, what is kept, and what is refused. ``tests/engine/test_stateful.py`` compares views of
theirs with a fold in plain Python."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from state_kit import batch_of, through_the_wire
from stateful_kit import map_op, recall_op

from upriver.engine.batch import Batch
from upriver.engine.operators.compacted import CompactionPace
from upriver.engine.operators.stateful_map import StatefulMap
from upriver.errors import DeclarationError, ProtocolError
from upriver.hashing import hash64
from upriver.plan.plan import Per


@pytest.mark.parametrize("per", list(Per))
def test_what_is_dropped_and_what_is_replaced_gives_its_memory_back(per: Per) -> None:
    source = pa.schema([("k", pa.int64()), ("s", pa.string())])
    operator = StatefulMap(recall_op(source, ["k"], per), [source], ["k"], pace=CompactionPace(16, 4))
    most = []
    for turn in range(60):
        # 16 keys begin with each turn and have a row in each of four, after which their states are dropped.
        keys = range(16 * max(0, turn - 3), 16 * turn + 16)
        operator.apply(0, batch_of(source, [(key, "long" * 20) for key in keys], ["k"]))
        most.append(operator.nbytes)
    assert operator.held <= 64
    assert max(most[30:]) < 1.2 * max(most[:30])


def counting(key: int, row: tuple[int], state: tuple[int] | None) -> tuple[list[tuple[int]], tuple[int]]:
    n = 1 if state is None else state[0] + 1
    return [(n,)], (n,)


SOURCE = pa.schema([("k", pa.int64())])
COUNT = pa.schema([("n", pa.int64())])


def counter() -> StatefulMap:
    return StatefulMap(map_op(counting, SOURCE, ["k"], COUNT, COUNT), [SOURCE], ["k"])


def test_the_output_is_the_key_then_what_the_function_gives() -> None:
    operator = counter()
    output = operator.apply(0, batch_of(SOURCE, [(7,), (8,), (7,)], ["k"]))
    assert sorted(output.rows.to_pylist(), key=str) == [{"k": 7, "n": 1}, {"k": 7, "n": 2}, {"k": 8, "n": 1}]
    assert output.rows.schema.names == ["k", "n"]
    assert output.hash64.tolist() == hash64([output.rows.column("k")]).tolist()
    assert operator.held == 2


SHARED_ROW: list[int] = [0]
SHARED_LIST: list[int] = []
SHARED_ARRAY = np.zeros(1, np.int64)


def with_one_row(key: int, row: Any, state: None) -> tuple[list[list[int]], None]:
    SHARED_ROW[0] = row.v
    return [SHARED_ROW], None


def with_one_list(key: int, row: Any, state: None) -> tuple[list[tuple[list[int]]], None]:
    SHARED_LIST[:] = [row.v, row.v]
    return [(SHARED_LIST,)], None


def with_a_generator(key: int, row: Any, state: None) -> tuple[Iterator[tuple[list[int]]], None]:
    def growing() -> Iterator[tuple[list[int]]]:
        grown: list[int] = []
        for _ in range(3):
            grown.append(row.v)
            yield (grown,)

    return growing(), None


def with_one_array(key: int, rows: pa.RecordBatch, state: None) -> tuple[pa.RecordBatch, None]:
    SHARED_ARRAY[0] = rows["v"][0].as_py()
    return pa.record_batch({"v": pa.array(SHARED_ARRAY)}), None


NUMBER = pa.schema([("v", pa.int64())])
LIST = pa.schema([("v", pa.list_(pa.int64()))])


@pytest.mark.parametrize(
    ("function", "gives", "per", "expected"),
    [
        (with_one_row, NUMBER, Per.ROW, list(range(6))),
        (with_one_list, LIST, Per.ROW, [[v, v] for v in range(6)]),
        (with_a_generator, LIST, Per.ROW, [[v] * count for v in range(6) for count in (1, 2, 3)]),
        (with_one_array, NUMBER, Per.KEY, list(range(6))),
    ],
)
@pytest.mark.parametrize("together", [1, 2, 6])
def test_rows_that_share_a_list_or_an_array_are_the_same_wherever_a_batch_ends(
    function: Callable[..., Any], gives: pa.Schema, per: Per, expected: list[Any], together: int
) -> None:
    source = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    operator = StatefulMap(map_op(function, source, ["k"], COUNT, gives, per), [source], ["k"])
    made = []
    for first in range(0, 6, together):
        rows = [(v if per is Per.KEY else 0, v) for v in range(first, first + together)]
        made += operator.apply(0, batch_of(source, rows, ["k"])).rows.column("v").to_pylist()
    assert sorted(made) == sorted(expected)


def changed_while_rows_come(key: int, row: Any, state: Any) -> tuple[Iterator[tuple[int]], list[list[int]]]:
    seen = [] if state is None else state.seen
    seen.append(row.v)

    def rows() -> Iterator[tuple[int]]:
        seen.append(777)
        yield (len(seen),)

    return rows(), [seen]


def test_a_state_is_kept_as_it_was_returned() -> None:
    source, state = pa.schema([("k", pa.int64()), ("v", pa.int64())]), pa.schema([("seen", pa.list_(pa.int64()))])
    operator = StatefulMap(map_op(changed_while_rows_come, source, ["k"], state, COUNT), [source], ["k"])
    assert operator.apply(0, batch_of(source, [(0, 1), (0, 2)], ["k"])).rows["n"].to_pylist() == [2, 3]
    assert operator.apply(0, batch_of(source, [(0, 3)], ["k"])).rows["n"].to_pylist() == [4]


def test_an_empty_batch_gives_none() -> None:
    operator = counter()
    output = operator.apply(0, batch_of(SOURCE, [], ["k"]))
    assert (len(output), output.rows.schema, operator.held) == (0, operator_schema(), 0)


def operator_schema() -> pa.Schema:
    return pa.schema([*SOURCE, *COUNT])


def test_a_row_counts_as_often_as_its_weight_says() -> None:
    output = counter().apply(0, batch_of(SOURCE, [(7,), (8,), (9,)], ["k"], [2, 0, 1]))
    assert sorted(map(str, output.rows.to_pylist())) == ["{'k': 7, 'n': 1}", "{'k': 7, 'n': 2}", "{'k': 9, 'n': 1}"]


def test_a_retraction_is_a_fault_of_ours() -> None:
    operator = counter()
    operator.apply(0, batch_of(SOURCE, [(7,)], ["k"]))
    with pytest.raises(ProtocolError, match="append only"):
        operator.apply(0, batch_of(SOURCE, [(7,)], ["k"], [-1]))


def test_two_keys_with_one_hash_have_states_of_their_own_wherever_they_are() -> None:
    operator, other = counter(), counter()
    batch = Batch(pa.record_batch([[7, 8, 7, 8]], schema=SOURCE), np.full(4, 5, np.uint64))
    assert sorted(map(str, operator.apply(0, batch).rows.to_pylist())) == sorted(
        str({"k": key, "n": n}) for key in (7, 8) for n in (1, 2)
    )
    assert operator.hashes_between(5, 5).tolist() == [5, 5]
    state = operator.collect(np.array([5], np.uint64))
    assert state[0].num_rows == 2
    other.install(through_the_wire(state))
    operator.drop(np.array([5], np.uint64))
    assert operator.held == 0
    output = other.apply(0, batch.slice(0, 2))
    assert sorted(row["n"] for row in output.rows.to_pylist()) == [3, 3]


@pytest.mark.parametrize(
    ("key", "routing", "message"),
    [(["k"], ["s"], "routed by"), (["s"], ["s"], "does not begin with the key")],
)
def test_an_op_that_contradicts_itself_is_refused(key: list[str], routing: list[str], message: str) -> None:
    source = pa.schema([("k", pa.int64()), ("s", pa.string())])
    op = replace(map_op(counting, source, ["k"], COUNT, COUNT), key=tuple(key))
    with pytest.raises(ProtocolError, match=message):
        StatefulMap(op, [source], routing)


def test_a_function_whose_module_is_not_here_is_told_by_name() -> None:
    op = replace(map_op(counting, SOURCE, ["k"], COUNT, COUNT), function=b"cno_such_module\nf\n.")
    with pytest.raises(DeclarationError, match="No module named 'no_such_module'"):
        StatefulMap(op, [SOURCE], ["k"])
