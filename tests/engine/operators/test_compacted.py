"""The memory of what is forgotten comes back in time, a little with each call, and no answer changes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import EAGER, MANY, batch_of

from upriver.engine.batch import Batch
from upriver.engine.operators.aggregate import Aggregate
from upriver.engine.operators.compacted import FORGOTTEN_MIN, STEP_ROWS, CompactionPace, TwoStores
from upriver.engine.operators.rows import RowCounts, Rows
from upriver.engine.operators.view import CompactedViewStore, Store
from upriver.plan.plan import AggregateCall, AggregatePlan

SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])


def _apply(stores: TwoStores[RowCounts], batch: Batch) -> None:
    for store, share in stores.shares(batch.hash64):
        store.apply(batch.filtered(share))
    stores.tidy()


def _stores(step_rows: int, step_calls: int = 1) -> TwoStores[RowCounts]:
    return TwoStores(partial(RowCounts, SCHEMA, ["k"]), CompactionPace(100, step_rows, step_calls))


@pytest.mark.parametrize("step_calls", [1, 1000])
def test_a_turnover_ends_in_time(step_calls: int) -> None:
    """Each batch takes back all rows of the last one: more slots are forgotten with a call than a step moves rows."""
    stores = _stores(10, step_calls)
    _apply(stores, batch_of(SCHEMA, [(-key, 0) for key in range(1, 2000)], ["k"]))
    most = 0
    for turn in range(60):
        rows = [(key, turn) for key in range(500)]
        _apply(stores, batch_of(SCHEMA, rows, ["k"]))
        _apply(stores, batch_of(SCHEMA, rows, ["k"], [-1] * len(rows)))
        most = max(most, stores.slots)
    assert stores.held == 1999
    assert most < 5 * stores.held


def test_a_call_that_uses_few_slots_moves_few_rows() -> None:
    stores = _stores(step_rows=10)
    rows = batch_of(SCHEMA, [(key, 0) for key in range(2000)], ["k"])
    _apply(stores, rows)
    stores.drop(np.sort(rows.hash64)[:1100])
    calls = 0
    while len(list(stores.shares(rows.hash64))) > 1:
        slots = stores.slots
        _apply(stores, batch_of(SCHEMA, [(-1 - calls, 0)], ["k"]))
        calls += 1
        assert stores.slots - slots < 100
    assert calls > 50
    assert stores.slots == stores.held == 900 + calls


def test_most_calls_move_nothing() -> None:
    stores = _stores(step_rows=10, step_calls=5)
    rows = batch_of(SCHEMA, [(key, 0) for key in range(2000)], ["k"])
    _apply(stores, rows)
    stores.drop(np.sort(rows.hash64)[:1100])
    moves = []
    while len(stores.all) > 1:
        held = stores.all[0].held
        stores.tidy()
        moves.append(len(stores.all) == 1 or stores.all[0].held > held)
    assert stores.slots == stores.held == 900
    assert len(moves) / 20 < sum(moves) <= len(moves) / 5 + 1


# CompactedStore

WIDER = pa.schema([("k", pa.int64()), ("g", pa.string()), ("x", pa.int64())])
CALLS = (AggregateCall("count_star", None, "n", pa.int64()), AggregateCall("sum", "x", "s", pa.int64()))
EXTREMES = (*CALLS, AggregateCall("min", "g", "least", pa.string()), AggregateCall("max", "x", "most", pa.int64()))
BUILDERS: dict[str, Callable[[], Store]] = {
    "groups": partial(Aggregate, AggregatePlan(("k",), CALLS), WIDER, ["k"]),
    "finer groups": partial(Aggregate, AggregatePlan(("k", "g"), CALLS), WIDER, ["k"]),
    "retracting groups": partial(Aggregate, AggregatePlan(("k",), CALLS, retracts=True), WIDER, ["k"]),
    "values": partial(Aggregate, AggregatePlan(("k",), EXTREMES, retracts=True), WIDER, ["k"]),
    "rows": partial(Rows, WIDER, ["k"]),
    "retracting rows": partial(RowCounts, WIDER, ["k"]),
}


def _answer(store: Store, slots: np.ndarray[Any, Any]) -> list[tuple[Any, ...]]:
    return list(zip(*(store.column(name, slots).to_pylist() for name in store.schema.names), strict=True))


@pytest.mark.parametrize("kind", BUILDERS)
def test_memory_of_what_is_forgotten_comes_back(kind: str) -> None:
    store = CompactedViewStore(BUILDERS[kind])
    rows = [(key, f"name{key}", key if key % 3 else None) for key in range(4 * FORGOTTEN_MIN)]
    batch = batch_of(WIDER, rows, ["k"])
    store.apply(batch)
    full = store.nbytes
    order = np.argsort(batch.rows.column("k").to_numpy())
    going = batch.hash64[order][np.arange(len(rows)) % 8 > 0]
    for start in range(0, len(going), 1000):
        store.drop(np.sort(going[start : start + 1000]))
    for _ in range(2 * len(rows) // STEP_ROWS + 20):
        store.apply(batch_of(WIDER, [], ["k"]))
    assert (store.rows, store.keys) == (len(rows) // 8, len(rows) // 8)
    assert store.slots <= store.held + FORGOTTEN_MIN
    assert store.nbytes < full / 2
    assert sorted(row[0] for row in _answer(store, store.by_hash())) == list(range(0, len(rows), 8))


@pytest.mark.parametrize("kind", BUILDERS)
def test_nothing_left_means_no_memory(kind: str) -> None:
    store = CompactedViewStore(BUILDERS[kind])
    empty = store.nbytes
    batch = batch_of(WIDER, [(key, "", 1) for key in range(FORGOTTEN_MIN + 1)], ["k"])
    store.apply(batch)
    store.drop(np.unique(batch.hash64))
    assert (store.held, store.keys, store.slots, store.nbytes) == (0, 0, 0, empty)


@pytest.mark.parametrize("kind", BUILDERS)
@MANY
@given(data=st.data())
def test_no_answer_changes_while_it_goes_on(kind: str, data: st.DataObject) -> None:
    plain, turning = BUILDERS[kind](), CompactedViewStore(BUILDERS[kind], EAGER)
    every = batch_of(WIDER, [(key, "", 0) for key in range(30)], ["k"])
    row = st.tuples(st.integers(0, 29), st.sampled_from(["a", "b"]), st.none() | st.integers(0, 9))
    for _ in range(data.draw(st.integers(1, 8))):
        batch = batch_of(WIDER, data.draw(st.lists(row, max_size=20)), ["k"])
        gone = np.sort(data.draw(st.permutations(every.hash64.tolist()))[: data.draw(st.integers(0, 20))]).astype(
            np.uint64
        )
        for store in (plain, turning):
            store.apply(batch)
            store.drop(gone)
        assert (turning.rows, turning.held, turning.keys) == (plain.rows, plain.held, plain.keys)
        assert _answer(turning, turning.by_hash()) == _answer(plain, plain.by_hash())
        asked = pa.array(data.draw(st.permutations(range(30))))
        keys = every.rows.take(asked).column("k")
        hashes = every.hash64[asked.to_numpy()]
        found, wanted = turning.find(hashes, [keys]), plain.find(hashes, [keys])
        assert found[0].tolist() == wanted[0].tolist()
        assert _answer(turning, found[1]) == _answer(plain, wanted[1])
