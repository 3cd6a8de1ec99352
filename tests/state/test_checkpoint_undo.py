"""What keys were before an epoch has changed them; rule replication.put_back."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY

from upriver.hashing import Hashes
from upriver.state.checkpoint import StateChunk, Undo

ROWS = pa.schema([("0", pa.uint64()), ("1", pa.int64())])


class Change(NamedTuple):
    """A batch of an epoch: each of these keys becomes something else. is_gone: nothing is kept of it any more."""

    keys: list[int]
    is_gone: bool


KEYS = st.integers(0, 9) | st.sampled_from([2**63, 2**64 - 1])
STATE = st.dictionaries(KEYS, st.integers(1, 9), max_size=8)
BATCHES = st.builds(Change, st.lists(KEYS, max_size=6) | st.lists(KEYS, max_size=6).map(sorted), st.booleans())


def hashes(*keys: int) -> Hashes:
    return np.array(keys, np.uint64)


def chunk_of(state: dict[int, int], keys: Sequence[int]) -> StateChunk:
    """What is kept of these keys."""
    rows = [{"0": key, "1": state[key]} for key in keys if key in state]
    return StateChunk(hashes(*keys), (pa.RecordBatch.from_pylist(rows, ROWS),))


def change(undo: Undo, state: dict[int, int], keys: Sequence[int], *, is_gone: bool = False) -> list[int]:
    """Save what is to be saved, and change the keys; which ones were saved."""
    unsaved: list[int] = undo.unsaved(hashes(*keys)).tolist()
    undo.save(chunk_of(state, unsaved))
    for key in keys:
        if is_gone:
            state.pop(key, None)
        else:
            state[key] = state.get(key, 0) + 100
    return unsaved


def put_back(undo: Undo, state: dict[int, int]) -> dict[int, int]:
    """The state with what was saved in place of what there is."""
    found = dict(state)
    for chunk in undo.take():
        for key in chunk.keys.tolist():
            found.pop(key, None)
        for row in chunk.parts[0].to_pylist():
            assert row["0"] not in found
            found[row["0"]] = row["1"]
    return found


@MANY
@given(STATE, st.lists(st.lists(BATCHES, max_size=6), min_size=1, max_size=3))
def test_replication_put_back_all_is_as_it_was_before_the_epoch_whatever_has_changed_in_it(
    state: dict[int, int], epochs: list[list[Change]]
) -> None:
    undo = Undo()
    for epoch in epochs:
        undo.forget()
        before = dict(state)
        for keys, is_gone in epoch:
            change(undo, state, keys, is_gone=is_gone)
    assert put_back(undo, state) == before


def test_a_key_is_saved_once_in_an_epoch() -> None:
    undo, state = Undo(), {1: 5}
    assert change(undo, state, [1, 2]) == [1, 2]
    assert change(undo, state, [2, 3]) == [3]
    assert change(undo, state, [3, 1]) == []
    assert put_back(undo, state) == {1: 5}


def test_keys_that_come_in_any_order_and_more_than_once_are_named_ascending_and_once() -> None:
    assert Undo().unsaved(hashes(7, 2**64 - 1, 3, 7)).tolist() == [3, 7, 2**64 - 1]
    assert Undo().unsaved(hashes()).tolist() == []


def test_no_keys_are_nothing_to_save() -> None:
    undo = Undo()
    undo.save(chunk_of({}, []))
    assert (undo.unsaved(hashes(1)).tolist(), undo.take()) == ([1], [])


def test_what_was_taken_or_forgotten_is_there_no_more() -> None:
    undo, state = Undo(), {1: 5}
    change(undo, state, [1])
    assert undo.nbytes > 0
    assert len(undo.take()) == 1
    assert (undo.take(), undo.nbytes) == ([], 0)
    change(undo, state, [1])
    undo.forget()
    assert (undo.take(), undo.nbytes) == ([], 0)
    assert change(undo, state, [1]) == [1]
