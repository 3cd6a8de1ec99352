"""Rows on which a user's function fails: left out as if they had never come, in whichever form it is called."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY, Row, batch_of, plain_rows

from upriver.engine.batch import Batch
from upriver.engine.operators.map_calls import BisectedCalls, Given, Made
from upriver.engine.operators.stateful_map import StatefulMap
from upriver.engine.stateful import ANY_STATE, AnyState
from upriver.errors import RowError
from upriver.plan.plan import Per
from upriver.plan.plan import StatefulMapOp as Op
from upriver.plan.row_order import dated_schema

SOURCE = pa.schema([("k", pa.string()), ("v", pa.int64())])
GIVES = pa.schema([("before", pa.int64()), ("v", pa.int64())])
COUNT = pa.schema([("n", pa.int64())])
RAISES, MISFITS, FORGETS = 3, 4, 5
"""Values of ``v`` at which the functions do so."""
ROW = st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, FORGETS))


def by_row(key: Any, row: Any, state: list[int] | None) -> tuple[list[Row], list[int] | None]:
    """Changes its state in place, and gives rows, before it fails."""
    state = [] if state is None else state
    state.append(row.v)
    if row.v == RAISES:
        raise ValueError(f"three after {state[:-1]}")
    gives = [(len(state) - 1, "four" if row.v == MISFITS else row.v)]
    return gives, None if row.v == FORGETS else state


def by_key(key: Any, rows: pa.RecordBatch, state: list[int] | None) -> tuple[list[Row], list[int] | None]:
    gives: list[Row] = []
    for row in rows.to_struct_array().to_pylist():
        more, state = by_row(key, _Row(row["v"]), state)
        gives += more
    return gives, state


class _Row:
    def __init__(self, v: int) -> None:
        self.v = v


def by_batch(keys: Any, rows: pa.RecordBatch, states: pa.RecordBatch) -> tuple[Any, pa.RecordBatch, pa.RecordBatch]:
    kept = states["n"].to_pylist()
    gives: list[Row] = []
    for key, v in zip(keys.tolist(), rows["v"].to_pylist(), strict=True):
        if v in (RAISES, MISFITS):
            raise ValueError(v)
        gives.append((kept[key] or 0, v))
        kept[key] = None if v == FORGETS else (kept[key] or 0) + 1
    columns = [pa.array([row[place] for row in gives], pa.int64()) for place in range(2)]
    return keys, pa.record_batch(columns, schema=GIVES), pa.record_batch([pa.array(kept, pa.int64())], schema=COUNT)


FORMS: dict[Per, tuple[Callable[..., Any], pa.Schema]] = {
    Per.ROW: (AnyState(by_row), ANY_STATE),
    Per.KEY: (AnyState(by_key), ANY_STATE),
    Per.BATCH: (by_batch, COUNT),
}


def stateful_map(per: Per, source: pa.Schema = SOURCE) -> StatefulMap:
    """source: of the rows that will come."""
    function, state = FORMS[per]
    return StatefulMap(
        Op(("k",), pickle.dumps(function), per, state, pa.schema([SOURCE.field("k"), *GIVES])), [source], ("k",)
    )


def good_and_bad(rows: list[Row], per: Per) -> tuple[list[Row], list[Row]]:
    """Of one epoch."""
    bad = [row for row in rows if row[1] in (RAISES, MISFITS)]
    if per is not Per.ROW:
        bad_keys = {row[0] for row in bad}
        bad = [row for row in rows if row[0] in bad_keys]
    return [row for row in rows if row not in bad], bad


@pytest.mark.parametrize("per", list(Per))
@MANY
@given(batches=st.lists(st.lists(ROW, max_size=20), max_size=4))
def test_all_is_as_if_bad_rows_had_never_come(batches: list[list[Row]], per: Per) -> None:
    _compare(stateful_map(per), per, [(batch_of(SOURCE, rows, ["k"]), [rows]) for rows in batches])


@pytest.mark.parametrize("per", list(Per))
@MANY
@given(spans=st.lists(st.lists(st.lists(ROW, max_size=8), min_size=1, max_size=4), max_size=3))
def test_the_same_rows_are_left_out_however_many_epochs_come_at_once(spans: list[list[list[Row]]], per: Per) -> None:
    source, first, batches = dated_schema(SOURCE), 1, []
    for epochs in spans:
        rows = [(*row, number) for number, of_epoch in enumerate(epochs, start=first) for row in of_epoch]
        batches.append((batch_of(source, rows, ["k"]), epochs))
        first += len(epochs)
    _compare(stateful_map(per, source), per, batches)


def _compare(operator: StatefulMap, per: Per, batches: list[tuple[Batch, list[list[Row]]]]) -> None:
    """Apply the batches, each of these epochs, and compare them with the good rows of one epoch after the other."""
    counts: dict[Any, int] = {}
    for batch, epochs in batches:
        given_out, left_out, errors = operator.apply_good([batch])
        of_each = [good_and_bad(rows, per) for rows in epochs]
        good, bad = ([row for rows in kind for row in rows] for kind in zip(*of_each, strict=True))
        expected: dict[Any, list[Row]] = {}
        for key, v in good:
            expected.setdefault(key, []).append((key, counts.get(key, 0), v))
            counts[key] = 0 if v == FORGETS else counts.get(key, 0) + 1
        found: dict[Any, list[Row]] = {}
        for row in plain_rows(given_out.rows):
            found.setdefault(row[0], []).append(row)
        assert found == expected
        assert sorted(map(repr, plain_rows(left_out))) == sorted(map(repr, bad))
        assert len(errors) == len(bad)
        assert operator.held == sum(map(bool, counts.values()))


def test_each_row_is_told_with_its_own_error() -> None:
    rows = [("a", 1), ("a", RAISES), ("a", 2), ("b", MISFITS), ("a", RAISES), ("b", 1)]
    made, left_out, errors = stateful_map(Per.ROW).apply_good([batch_of(SOURCE, rows, ["k"])])
    told = [error for row, error in zip(plain_rows(left_out), errors, strict=True) if row == ("a", RAISES)]
    first, second = told
    assert "ValueError: three after [1] (line " in first
    assert "ValueError: three after [1, 2] (line " in second  # and not [1, 3, 2]: the first bad row has left nothing
    (misfit,) = set(errors) - set(told)
    assert "column v of the output row" in misfit
    assert sorted(plain_rows(made.rows)) == [("a", 0, 1), ("a", 1, 2), ("b", 0, 1)]


KEYS = 1024


@pytest.mark.parametrize(("bad", "calls_max"), [((), 1), ((5,), 1 + 2 * 10), ((5, 700), 1 + 2 + 2 * 2 * 9)])
def test_good_batches_pay_nothing_and_bad_rows_take_few_calls(bad: tuple[int, ...], calls_max: int) -> None:
    calls: list[int] = []

    def call(given: Given) -> Made:
        calls.append(given.keys.num_rows)
        found = set(bad).intersection(given.rows.column("v").to_pylist())
        if found:
            raise RowError(f"{found}")
        return Made(given.rows, np.arange(given.keys.num_rows), given.states, given.known)

    columns = [pa.array(map(str, range(KEYS))), pa.array(range(KEYS), pa.int64())]
    rows = pa.RecordBatch.from_arrays(columns, schema=SOURCE)
    states = pa.record_batch([pa.nulls(KEYS, pa.int64())], schema=COUNT)
    everything = Given(rows, np.arange(KEYS + 1), rows.select(["k"]), states, np.zeros(KEYS, np.bool_))
    sifted = BisectedCalls(call, Per.BATCH, SOURCE)(everything)
    assert sifted.bad.tolist() == list(bad)
    assert sifted.made.rows.column("v").to_pylist() == [v for v in range(KEYS) if v not in bad]
    assert len(calls) <= calls_max
