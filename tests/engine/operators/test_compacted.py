"""TwoStores: the memory of what is forgotten comes back in time, a little with each call."""

from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from state_kit import batch_of

from upriver.engine.batch import Batch
from upriver.engine.operators.compacted import CompactionPace, TwoStores
from upriver.engine.operators.rows import RowCounts

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
