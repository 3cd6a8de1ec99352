"""Stateful maps against a fold in plain Python: whatever the form, the types, the batches and the moves of state."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY, TYPES, Row, batch_of, column_values
from stateful_kit import Fleet, folded, map_op, recall_op

from upriver.engine.batch import Batch
from upriver.engine.operators.compacted import CompactionPace
from upriver.engine.operators.stateful_map import StatefulMap
from upriver.errors import DeclarationError, ProtocolError
from upriver.hashing import Hashes, hash64
from upriver.plan.plan import Per

CUTS = st.lists(st.integers(0, 60), max_size=6)
FORMS = st.sampled_from(list(Per))


def few_hashes(columns: Sequence[pa.Array]) -> Hashes:
    return (hash64(columns) & np.uint64(3)) << np.uint64(62)


HASHERS: list[Callable[[Sequence[pa.Array]], Hashes]] = [hash64, few_hashes]


@MANY
@given(st.data(), FORMS, st.lists(TYPES, min_size=2, max_size=4), st.sampled_from(HASHERS))
def test_a_function_sees_each_keys_rows_in_order_with_its_state(
    data: st.DataObject, per: Per, types: list[pa.DataType], hasher: Callable[[Sequence[pa.Array]], Hashes]
) -> None:
    source = pa.schema([(f"c{place}", type) for place, type in enumerate(types)])
    width = data.draw(st.integers(1, 2))
    key = source.names[:width]
    routing = data.draw(st.permutations(key))[: data.draw(st.integers(1, width))]
    fleet = Fleet(recall_op(source, key, per), source, routing, hasher)
    seen: list[Row] = []
    for _ in range(data.draw(st.integers(1, 3))):
        size = data.draw(st.integers(0, 20))
        rows = list(zip(*(data.draw(column_values(type, size=size)) for type in types), strict=True))
        batch = fleet.batch(rows, by_hash=data.draw(st.booleans()))
        fleet.apply(batch, data.draw(CUTS))
        seen += zip(*(column.to_pylist() for column in batch.rows.columns), strict=True)
        expected, held = folded(seen, range(width))
        assert fleet.given == expected
        fleet.check_held(held)
        for moved in data.draw(st.lists(st.sampled_from([0, *fleet.owners]), max_size=3)):
            if moved in fleet.owners:
                fleet.move(moved, to=data.draw(st.integers(0, 1)))


@pytest.mark.parametrize("per", list(Per))
def test_what_is_dropped_and_what_is_replaced_gives_its_memory_back(per: Per) -> None:
    source = pa.schema([("k", pa.int64()), ("s", pa.string())])
    operator = StatefulMap(recall_op(source, ["k"], per), source, ["k"], pace=CompactionPace(64, 16))
    most = []
    for turn in range(60):
        # 64 keys begin with each turn and have a row in each of four, after which their states are dropped.
        keys = range(64 * max(0, turn - 3), 64 * turn + 64)
        operator.apply(0, batch_of(source, [(key, "long" * 20) for key in keys], ["k"]))
        most.append(operator.nbytes)
    assert operator.held <= 256
    assert max(most[30:]) < 1.2 * max(most[:30])


def counting(key: int, row: tuple[int], state: tuple[int] | None) -> tuple[list[tuple[int]], tuple[int]]:
    n = 1 if state is None else state[0] + 1
    return [(n,)], (n,)


SOURCE = pa.schema([("k", pa.int64())])
COUNT = pa.schema([("n", pa.int64())])


def counter() -> StatefulMap:
    return StatefulMap(map_op(counting, SOURCE, ["k"], COUNT, COUNT), SOURCE, ["k"])


def test_the_output_is_the_key_then_what_the_function_gives() -> None:
    operator = counter()
    output = operator.apply(0, batch_of(SOURCE, [(7,), (8,), (7,)], ["k"]))
    assert sorted(output.rows.to_pylist(), key=str) == [{"k": 7, "n": 1}, {"k": 7, "n": 2}, {"k": 8, "n": 1}]
    assert output.rows.schema.names == ["k", "n"]
    assert output.hash64.tolist() == hash64([output.rows.column("k")]).tolist()
    assert operator.held == 2


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


def test_a_key_that_is_there_cannot_be_installed() -> None:
    operator = counter()
    batch = batch_of(SOURCE, [(7,)], ["k"])
    operator.apply(0, batch)
    with pytest.raises(ProtocolError, match="has state here"):
        operator.install(operator.collect(batch.hash64))


def test_two_keys_with_one_hash_have_states_of_their_own() -> None:
    operator = counter()
    batch = Batch(pa.record_batch([[7, 8, 7, 8]], schema=SOURCE), np.full(4, 5, np.uint64))
    assert sorted(map(str, operator.apply(0, batch).rows.to_pylist())) == sorted(
        str({"k": key, "n": n}) for key in (7, 8) for n in (1, 2)
    )
    assert operator.hashes_between(5, 5).tolist() == [5, 5]
    assert operator.collect(np.array([5], np.uint64))[0].num_rows == 2


@pytest.mark.parametrize(
    ("key", "routing", "message"),
    [(["k"], ["s"], "routed by"), (["s"], ["s"], "does not begin with the key")],
)
def test_an_op_that_contradicts_itself_is_refused(key: list[str], routing: list[str], message: str) -> None:
    source = pa.schema([("k", pa.int64()), ("s", pa.string())])
    op = replace(map_op(counting, source, ["k"], COUNT, COUNT), key=tuple(key))
    with pytest.raises(ProtocolError, match=message):
        StatefulMap(op, source, routing)


def test_a_function_whose_module_is_not_here_is_told_by_name() -> None:
    op = replace(map_op(counting, SOURCE, ["k"], COUNT, COUNT), function=b"cno_such_module\nf\n.")
    with pytest.raises(DeclarationError, match="No module named 'no_such_module'"):
        StatefulMap(op, SOURCE, ["k"])
