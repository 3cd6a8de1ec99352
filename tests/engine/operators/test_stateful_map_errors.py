"""What a user's function may do wrong, and what is said of it; and that nothing of the batch is kept then."""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from state_kit import batch_of
from stateful_kit import map_op

from upriver.engine.operators.stateful_map import StatefulMap
from upriver.errors import RowError
from upriver.plan.plan import Per

SOURCE = pa.schema([("k", pa.string()), ("v", pa.int64()), ("day", pa.date32())])
STATE = pa.schema([("n", pa.int8()), ("seen", pa.list_(pa.int64()))])
OUTPUT = pa.schema([("total", pa.decimal128(10, 2)), ("who", pa.string())])
BAD = 99
"""The value at which the functions of these tests misbehave."""

HERE: dict[str, Any] = {}
"""What a function gives or raises; functions are pickled by name, so they find it here."""


def misbehaving(*given: Any) -> Any:
    """Of any form. Fine for all rows but those of value ``BAD``."""
    rows = given[1]
    values = rows.column("v").to_pylist() if isinstance(rows, pa.RecordBatch) else [rows.v]
    return HERE["bad" if BAD in values else "fine"](*given)


def boom(*given: Any) -> Any:
    raise ZeroDivisionError("a word of the user's")


FINE: dict[Per, Callable[..., Any]] = {
    Per.ROW: lambda key, row, state: (None, (1, [row.v])),
    Per.KEY: lambda key, rows, state: (None, (1, rows.column("v").to_pylist())),
    Per.BATCH: lambda keys, rows, states: (None, None, states_of(states.num_rows)),
}


def states_of(count: int) -> pa.RecordBatch:
    return pa.record_batch([[1] * count, [[0]] * count], schema=STATE)


def outcome(per: Per, bad: Callable[..., Any]) -> tuple[str, RowError]:
    """What is said when a function does ``bad`` to the second batch."""
    HERE.update(fine=FINE[per], bad=bad)
    operator = StatefulMap(map_op(misbehaving, SOURCE, ["k"], STATE, OUTPUT, per), [SOURCE], ["k"])
    operator.apply(0, batch_of(SOURCE, [("old", 1, None)], ["k"]))
    batch = batch_of(SOURCE, [("old", 2, None), ("new", 3, None), ("bad", BAD, None)], ["k"])
    hashes = np.unique(batch.hash64)
    before = operator.collect(hashes)
    with pytest.raises(RowError) as raised:
        operator.apply(0, batch)
    assert operator.collect(hashes) == before
    assert operator.held == 1
    return str(raised.value), raised.value


@pytest.mark.parametrize("per", list(Per))
def test_what_the_function_raises_is_told_with_its_line_and_key(per: Per) -> None:
    said, error = outcome(per, boom)
    assert "the function raised ZeroDivisionError: a word of the user's (line " in said
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert re.search(r"\(line \d+ of [^)]*test_stateful_map_errors.py\)", said)
    where = {
        Per.ROW: "for the key 'bad' and the row Row(k='bad', v=99, day=None)",
        Per.KEY: "for the key 'bad'",
        Per.BATCH: "for a batch of 3 rows of 3 keys, the first of which is (k = ",
    }
    assert where[per] in said
    assert said.endswith("Correct it, or let it skip such rows")


ROW_FAULTS: dict[str, tuple[Callable[..., Any], str]] = {
    "no pair": (lambda key, row, state: None, "None is not (rows, state)"),
    "three": (lambda key, row, state: ([], state, 1), "is not (rows, state)"),
    "a bare row": (lambda key, row, state: (("1", "x"), state), "'1' is no output row: that is a tuple or a dict of"),
    "a dict for rows": (lambda key, row, state: ({"total": 1, "who": "x"}, None), "'total' is no output row"),
    "no rows": (lambda key, row, state: (7, None), "TypeError: 'int' object is not iterable"),
    "a short row": (lambda key, row, state: ([(1,)], None), "has 1 values, not the 2 columns total, who"),
    "a float": (
        lambda key, row, state: ([(Decimal(1), "x"), (1.5, "x")], None),
        "column total of the output row: 1.5 is not a Decimal, which decimal128(10, 2) needs",
    ),
    "a wide state": (lambda key, row, state: ([], (128, [])), "column n of the state: 128 does not fit int8"),
    "a state of text": (lambda key, row, state: ([], "ab"), "'ab' is no state: that is a tuple or a dict"),
    "a nested float": (lambda key, row, state: ([], (1, [0.5])), "[0.5] is not a list, each item an int"),
    "a late fault": (lambda key, row, state: ((1 / 0 for _ in [1]), None), "ZeroDivisionError"),
}


@pytest.mark.parametrize("fault", ROW_FAULTS)
def test_what_a_function_of_rows_may_not_give(fault: str) -> None:
    bad, message = ROW_FAULTS[fault]
    said, _ = outcome(Per.ROW, bad)
    assert message in said
    assert "the key 'bad'" in said


KEY_FAULTS: dict[str, tuple[Callable[..., Any], str]] = {
    "no pair": (lambda key, rows, state: rows, "is not (rows, state)"),
    "an array": (lambda key, rows, state: (rows["v"], None), "is no output row: that is a tuple or a dict of the 2"),
    "a float": (lambda key, rows, state: ([(1, "x"), (0.5, "x")], None), "column total of the output row: 0.5 is not"),
    "the input": (lambda key, rows, state: (rows, None), "the columns k, v, day are not just the 2 columns total, who"),
    "a lossy column": (
        lambda key, rows, state: (pa.record_batch({"total": [1.234], "who": ["x"]}), None),
        "column total of the output row is double, and declared as decimal128(10, 2)",
    ),
    "an open state": (lambda key, rows, state: (None, {"n": 1}), "does not have just the 2 columns n, seen"),
}


@pytest.mark.parametrize("fault", KEY_FAULTS)
def test_what_a_function_of_keys_may_not_give(fault: str) -> None:
    bad, message = KEY_FAULTS[fault]
    said, _ = outcome(Per.KEY, bad)
    assert message in said
    assert "for the key 'bad' the function returned a value that is not declared" in said


ROWS = pa.record_batch(
    [pa.array([1, 2]).cast(pa.decimal128(21, 2)).cast(pa.decimal128(10, 2)), ["x", "y"]], schema=OUTPUT
)
BATCH_FAULTS: dict[str, tuple[Callable[..., Any], str]] = {
    "a pair": (lambda keys, rows, states: (None, states), "is not (keys, rows, states)"),
    "no states": (lambda keys, rows, states: (None, None, None), "None is no pyarrow.RecordBatch or Table"),
    "too few states": (lambda keys, rows, states: (None, None, states.slice(1)), "2 states for 3 keys"),
    "too few keys": (lambda keys, rows, states: ([0], ROWS, states), "2 rows with the keys array([0])"),
    "no keys": (lambda keys, rows, states: (None, ROWS, states), "one integer for each row is needed"),
    "half keys": (lambda keys, rows, states: ([0, 0.5], ROWS, states), "one integer for each row is needed"),
    "keys beyond": (lambda keys, rows, states: ([0, 3], ROWS, states), "keys from 0 to 3, of 3"),
    "keys below": (lambda keys, rows, states: ([-1, 0], ROWS, states), "keys from -1 to 0, of 3"),
    "other rows": (lambda keys, rows, states: (keys, rows, states), "the columns k, v, day are not just"),
}


@pytest.mark.parametrize("fault", BATCH_FAULTS)
def test_what_a_function_of_batches_may_not_give(fault: str) -> None:
    bad, message = BATCH_FAULTS[fault]
    said, _ = outcome(Per.BATCH, bad)
    assert message in said
    assert "for a batch of 3 rows of 3 keys" in said


def mixed(key: str, rows: pa.RecordBatch, state: Any) -> Any:
    """Two plain rows or a batch of one, by turns."""
    n = rows.num_rows
    return {0: None, 1: [(1, key), {"who": key, "total": n}], 2: ROWS.slice(0, 1)}[n - 1], None


def test_rows_of_a_key_may_be_plain_or_arrows() -> None:
    operator = StatefulMap(map_op(mixed, SOURCE, ["k"], STATE, OUTPUT, Per.KEY), [SOURCE], ["k"])
    rows = [(key, 0, None) for key, count in {"a": 1, "b": 2, "c": 3, "d": 2, "e": 3}.items() for _ in range(count)]
    output = operator.apply(0, batch_of(SOURCE, rows, ["k"]))
    given = sorted((row["k"], row["who"], int(row["total"])) for row in output.rows.to_pylist())
    assert given == [("b", "b", 1), ("b", "b", 2), ("c", "x", 1), ("d", "d", 1), ("d", "d", 2), ("e", "x", 1)]


def wrong_at_last(key: str, rows: pa.RecordBatch, state: Any) -> Any:
    return {1: [(1, key)], 2: ROWS, 3: [(1, key), (0.5, key)]}[rows.num_rows], None


def test_the_key_at_fault_is_told_whatever_came_before() -> None:
    operator = StatefulMap(map_op(wrong_at_last, SOURCE, ["k"], STATE, OUTPUT, Per.KEY), [SOURCE], ["k"])
    batch = batch_of(SOURCE, [(key, 0, None) for key in ("a", "b", "b", "c", "c", "c", "d")], [])
    with pytest.raises(RowError, match=r"for the key 'c' .* column total of the output row: 0\.5 is not a Decimal"):
        operator.apply(0, batch)


def test_keys_of_a_batch_may_be_an_arrow_array() -> None:
    HERE.update(fine=lambda keys, rows, states: (pa.array([0, 0]), ROWS, states_of(1)))
    operator = StatefulMap(map_op(misbehaving, SOURCE, ["k"], STATE, OUTPUT, Per.BATCH), [SOURCE], ["k"])
    output = operator.apply(0, batch_of(SOURCE, [("a", 1, None)], ["k"]))
    assert [(row["k"], row["who"]) for row in output.rows.to_pylist()] == [("a", "x"), ("a", "y")]


def changed_in_place(key: str, row: Any, state: Any) -> Any:
    """Changes the list that it was given, and keeps the one that it gave out."""
    seen = [] if state is None else state.seen
    seen.append(row.v)
    HERE.setdefault("kept", []).append(seen)
    return [(len(seen), repr(seen))], {"n": len(seen), "seen": seen}


def test_a_state_that_is_changed_from_outside_is_not_the_one_that_is_kept() -> None:
    HERE.clear()
    operator = StatefulMap(map_op(changed_in_place, SOURCE, ["k"], STATE, OUTPUT), [SOURCE], ["k"])
    for rows in ([("a", 1, None), ("a", 2, None)], [("a", 3, None)]):
        operator.apply(0, batch_of(SOURCE, rows, ["k"]))
        HERE["kept"][-1].append(777)
    output = operator.apply(0, batch_of(SOURCE, [("a", 4, None)], ["k"]))
    assert output.rows.column("who").to_pylist() == ["[1, 2, 3, 4]"]


def of_two(key: Any, row: Any, state: Any) -> Any:
    return [(0, f"{key!r} {state!r}")], (1, [row.v])


def test_a_key_of_several_columns_is_a_named_tuple() -> None:
    operator = StatefulMap(map_op(of_two, SOURCE, ["k", "day"], STATE, OUTPUT), [SOURCE], ["k", "day"])
    output = operator.apply(0, batch_of(SOURCE, [("a", 1, None), ("a", 2, None)], ["k", "day"]))
    assert output.rows.column("who").to_pylist() == [
        "Key(k='a', day=None) None",
        "Key(k='a', day=None) State(n=1, seen=[1])",
    ]
