"""A view of rows that may be taken back: equal rows are kept once, counted, and read as often as they are there."""

from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import (
    EAGER,
    MANY,
    Row,
    comings_and_goings,
    keys_of,
    pieces,
    plain,
    plain_rows,
    table_batch,
    through_the_wire,
)

from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.operators.rows import RowCounts
from upriver.engine.operators.view import CompactedViewStore, View
from upriver.errors import ProtocolError
from upriver.hashing import Hashes, hash64

SCHEMA = pa.schema([("x", pa.float64()), ("k", pa.string()), ("tags", pa.list_(pa.int32()))])
KEY = pa.schema([SCHEMA.field("k")])
KEYS = [None, "", "a", "b"]
ROW = st.tuples(
    st.sampled_from([None, 0.0, -0.0, float("nan"), 1.5]),
    st.sampled_from(KEYS),
    st.none() | st.lists(st.none() | st.integers(0, 1), max_size=2),
)
EVALUATOR = Evaluator()


def batch(rows: list[Row], weight: list[int] | None = None) -> Batch:
    return table_batch(SCHEMA, rows, ["k"], hash64, weight)


def counted(rows: pa.RecordBatch | pa.Table) -> Counter[str]:
    return Counter(map(repr, plain_rows(rows)))


def view_of(store: CompactedViewStore) -> View:
    return View(store, plain(SCHEMA), None, EVALUATOR)


def check(view: View, store: CompactedViewStore, left: list[Row]) -> None:
    """All that is left is read, by key and as a whole."""
    wanted = counted(batch(left).rows)
    assert counted(view.scan()) == wanted
    hashes, asked = keys_of(KEY, [(key,) for key in [*KEYS, *KEYS]])
    assert counted(view.lookup(hashes, asked.columns)) == wanted
    assert (store.rows, store.keys) == (sum(wanted.values()), len({row[1] for row in left}))
    assert store.held == len(wanted)


@MANY
@given(data=st.data(), rows=st.lists(ROW, max_size=20), cuts=st.lists(st.integers(0, 60), max_size=4))
def test_what_is_left_is_read(data: st.DataObject, rows: list[Row], cuts: list[int]) -> None:
    """Memory is given back eagerly, so that the store is often two."""
    store = CompactedViewStore(partial(RowCounts, SCHEMA, ["k"]), EAGER)
    changes, left = comings_and_goings(data, rows)
    for piece in pieces(batch([row for row, _ in changes], [weight for _, weight in changes]), cuts):
        assert piece.weight is not None
        order = data.draw(st.permutations(range(len(piece)))) if len(piece) else []
        store.apply(Batch(piece.rows.take(pa.array(order, pa.int64())), piece.hash64[order], piece.weight[order]))
    check(view_of(store), store, left)


@MANY
@given(rows=st.lists(ROW, max_size=20), goes=st.lists(st.sampled_from(KEYS)))
def test_keys_move_with_all_their_rows(rows: list[Row], goes: list[str | None]) -> None:
    build = partial(CompactedViewStore, partial(RowCounts, SCHEMA, ["k"]), EAGER)
    old, new = build(), build()
    old.apply(batch(rows))
    keys: Hashes = np.unique(keys_of(KEY, [(key,) for key in goes])[0])
    state = old.collect(keys)
    new.install(through_the_wire(state))
    old.drop(keys)
    check(view_of(new), new, [row for row in rows if row[1] in goes])
    check(view_of(old), old, [row for row in rows if row[1] not in goes])
    assert [part.schema for part in new.collect(keys)] == [part.schema for part in old.collect(keys)]
    if state[0].num_rows:
        with pytest.raises(ProtocolError, match="has state here"):
            new.install(state)


def test_weights_count_copies() -> None:
    store = CompactedViewStore(partial(RowCounts, SCHEMA, ["k"]))
    store.apply(batch([(1.5, "a", None), (0.0, "a", []), (0.0, "b", [0])], [3, 1, 0]))
    store.apply(batch([(1.5, "a", None)], [-2]))
    check(view_of(store), store, [(1.5, "a", None), (0.0, "a", [])])
    store.apply(batch([(1.5, "a", None), (-0.0, "a", [])], [-1, -1]))
    check(view_of(store), store, [])


def test_an_update_in_one_batch_replaces_the_row() -> None:
    store = CompactedViewStore(partial(RowCounts, SCHEMA, ["k"]))
    store.apply(batch([(1.5, "a", [0])]))
    nan = float("nan")
    store.apply(batch([(1.5, "a", [0]), (0.0, "a", [1]), (0.0, "a", [1]), (nan, "a", [1])], [-1, 1, -1, 1]))
    check(view_of(store), store, [(nan, "a", [1])])
    store.apply(batch([(nan, "a", [1])], [-1]))
    check(view_of(store), store, [])


@pytest.mark.parametrize(
    "gone", [[(1.5, "a", None)] * 2, [(1.0, "a", None)], [(1.5, "b", None)], [(1.5, None, None)], [(1.5, "a", [])]]
)
def test_a_row_that_is_not_there_cannot_go(gone: list[Row]) -> None:
    store = RowCounts(SCHEMA, ["k"])
    store.apply(batch([(1.5, "a", None), (0.0, "b", None)]))
    with pytest.raises(ProtocolError, match="retracted"):
        store.apply(batch(gone, [-1] * len(gone)))
