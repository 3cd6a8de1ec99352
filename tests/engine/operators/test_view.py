"""Filter, project and view: what reaches the store, and what of it a reader sees."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from duckdb_kit import DuckDbEvaluator
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY, batch_of, keys_of, plain, plain_rows

from upriver.engine.batch import Batch
from upriver.engine.operators.compacted import CompactionPace
from upriver.engine.operators.rows import RowCounts, Rows
from upriver.engine.operators.stateless import Filter, Project
from upriver.engine.operators.view import SCAN_ROWS, CompactedViewStore, View
from upriver.plan.column_names import plain_columns
from upriver.plan.plan import Projection
from upriver.state.pair_index import ManyMembers

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.int64()), ('a "b"', pa.int64())])
KEY_SCHEMA = pa.schema([("k", pa.string())])
ROWS = [("a", 1, 10), ("b", 2, 20), (None, 3, 30), ("a", 4, 40), ("b", None, 50)]


def _batch() -> Batch:
    return batch_of(SCHEMA, ROWS, ["k"], [1, -1, 2, 1, 1])


def _projection(**columns: tuple[str, pa.DataType]) -> Projection:
    schema = pa.schema([(name, type) for name, (_, type) in columns.items()])
    return Projection(tuple(expression for expression, _ in columns.values()), schema)


def _view(output: Projection, having: str | None = None) -> tuple[View, DuckDbEvaluator]:
    rows, evaluator = Rows(SCHEMA, ["k"]), DuckDbEvaluator()
    rows.apply(batch_of(SCHEMA, ROWS, ["k"]))
    return View(rows, output, having, evaluator), evaluator


def _lookup(view: View, *keys: str | None) -> list[tuple[object, ...]]:
    hashes, asked = keys_of(KEY_SCHEMA, [(key,) for key in keys])
    return plain_rows(view.lookup(hashes, asked.columns))


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("build", [Rows, RowCounts])
def test_a_long_read_gives_what_was_there_when_it_began(build: type[Rows | RowCounts], turns: bool) -> None:
    pace = CompactionPace(forgotten_min=1, step_rows=1, step_calls=1)
    store: CompactedViewStore = CompactedViewStore(lambda: build(SCHEMA, ["k"]), pace)
    view = View(store, _projection(k=('"k"', pa.string()), x=('"x"', pa.int64())), None, DuckDbEvaluator())
    store.apply(batch_of(SCHEMA, [*ROWS, ("b", 2, 20)], ["k"]))
    if turns:
        store.drop(np.sort(keys_of(KEY_SCHEMA, [(None,), ("a",)])[0]))
        store.apply(batch_of(SCHEMA, [("a", 1, 10), ("a", 4, 40)], ["k"]))
    hashes, asked = keys_of(KEY_SCHEMA, [("b",), ("a",)])
    before = plain_rows(view.lookup(hashes, asked.columns))
    with pytest.raises(ManyMembers):
        view.lookup(hashes, asked.columns, rows_max=3)
    read = view.long_read(hashes, asked.columns)
    assert read.left == len(before) == 5
    parts = [read.next(2)]
    store.apply(batch_of(SCHEMA, [("a", 9, 90), ("b", 9, 90), *((f"c{n}", n, n) for n in range(40))], ["k"]))
    parts.append(read.next(2))
    store.drop(np.sort(hashes))
    store.apply(batch_of(SCHEMA, [("a", 8, 80)], ["k"]))
    parts.append(read.next(2))
    assert [row for part in parts for row in plain_rows(part)] == before
    assert read.left == 0


def test_one_key_is_found_in_all_levels_in_order_of_arrival() -> None:
    rows = Rows(SCHEMA, ["k"])
    for first in range(0, 20_000, 4_000):
        rows.apply(batch_of(SCHEMA, [("a", x, 0) for x in range(first, first + 4_000)], ["k"]))
    rows.apply(batch_of(SCHEMA, [("b", -1, 0), ("a", 20_000, 0)], ["k"]))
    hashes, asked = keys_of(KEY_SCHEMA, [("a",)])
    positions, slots = rows.find(hashes, asked.columns)
    assert rows.column("x", slots).to_pylist() == list(range(20_001))
    assert not positions.any()


def test_filter_keeps_hash_and_weight_with_their_row() -> None:
    batch = _batch()
    kept = Filter("x >= 2", DuckDbEvaluator()).apply(batch)
    expected = [place for place, x in enumerate(batch.rows.column("x").to_pylist()) if x is not None and x >= 2]
    assert kept.rows.equals(batch.rows.take(pa.array(expected)))
    assert kept.hash64.tolist() == batch.hash64[expected].tolist()
    assert batch.weight is not None
    assert kept.weight is not None
    assert kept.weight.tolist() == batch.weight[expected].tolist()


def test_plain_columns_pass_as_they_are_without_an_evaluator() -> None:
    batch, evaluator = _batch(), DuckDbEvaluator()
    project = Project(_projection(y=('"x"', pa.int64()), z=('"a ""b"""', pa.int64())), evaluator)
    rows = project.apply(batch.rows)
    assert rows.schema.names == ["y", "z"]
    assert rows.column("y").buffers()[1].address == batch.rows.column("x").buffers()[1].address
    assert rows.column("z").equals(batch.rows.column('a "b"'))
    assert evaluator.calls == 0


def test_only_computed_columns_are_evaluated() -> None:
    evaluator = DuckDbEvaluator()
    project = Project(_projection(d=("2 * x", pa.int64()), k=('"k"', pa.string()), n=("7", pa.int32())), evaluator)
    rows = project.apply(batch_of(SCHEMA, ROWS, []).rows)
    assert plain_rows(rows) == [(None if x is None else 2 * x, k, 7) for k, x, _ in ROWS]
    assert (rows.schema.types, evaluator.calls) == ([pa.int64(), pa.string(), pa.int32()], 1)


@pytest.mark.parametrize("expression", ['"x" + 1', "x", '"x" + "x"', '"x"."y"', '""', "'x'"])
def test_only_a_quoted_name_is_plain(expression: str) -> None:
    assert plain_columns(_projection(y=(expression, pa.int64()))) == {}


@MANY
@given(
    st.lists(st.lists(st.sampled_from(["a", "b", None, "none"]), max_size=5), max_size=5),
    st.sampled_from([None, "x > 2"]),
)
def test_several_questions_at_once_are_answered_as_each_by_itself(
    questions: list[list[str | None]], having: str | None
) -> None:
    view, _ = _view(_projection(k=('"k"', pa.string()), d=("2 * x", pa.int64())), having)
    hashes, asked = keys_of(KEY_SCHEMA, [(key,) for question in questions for key in question])
    ends = np.cumsum([len(question) for question in questions], dtype=np.int64)
    rows, ends = view.lookup_each(hashes, asked.columns, ends)
    starts = [0, *ends.tolist()]
    found = [plain_rows(rows.slice(start, stop - start)) for start, stop in pairwise(starts)]
    assert found == [_lookup(view, *question) for question in questions]


def test_a_key_asked_twice_is_answered_once_where_it_was_asked_first() -> None:
    view, evaluator = _view(plain(SCHEMA, "x", "k"))
    assert _lookup(view, "b", "none", "a", "b", None, "a", None) == [
        (2, "b"),
        (None, "b"),
        (1, "a"),
        (4, "a"),
        (3, None),
    ]
    assert _lookup(view, "none") == []
    assert _lookup(view) == []
    assert evaluator.calls == 0


def test_having_and_computed_output_see_the_stored_rows() -> None:
    output = _projection(double=('2 * "x"', pa.int64()), k=('"k"', pa.string()))
    view, _ = _view(output, having='"a ""b""" < 50 AND coalesce(k, \'\') <> \'none\'')
    assert _lookup(view, "a", "b", None) == [(2, "a"), (8, "a"), (4, "b"), (6, None)]
    assert _lookup(view, "nobody") == []
    assert view.scan().schema == output.schema
    assert sorted(plain_rows(view.scan()), key=str) == [(2, "a"), (4, "b"), (6, None), (8, "a")]


@MANY
@given(st.lists(st.none() | st.sampled_from("abcdefg"), max_size=30))
def test_a_scan_is_sorted_by_hash(keys: list[str | None]) -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.int32())])
    batch, rows = batch_of(schema, [(key, place) for place, key in enumerate(keys)], ["k"]), Rows(schema, ["k"])
    for place in range(len(keys)):  # in order of arrival, not of hash
        rows.apply(batch_of(schema, [(keys[place], place)], ["k"]))
    scanned = View(rows, plain(schema), None, DuckDbEvaluator()).scan()
    assert scanned.schema == schema
    assert plain_rows(scanned) == plain_rows(batch.rows)


def test_a_long_scan_comes_in_pieces() -> None:
    schema = pa.schema([("k", pa.int64())])
    rows = Rows(schema, ["k"])
    rows.apply(batch_of(schema, [(key,) for key in range(SCAN_ROWS + 1)], ["k"]))
    scanned = View(rows, plain(schema), None, DuckDbEvaluator()).scan()
    assert scanned.column("k").num_chunks == 2
    assert sorted(scanned.column("k").to_pylist()) == list(range(SCAN_ROWS + 1))


def test_a_hash_of_another_key_finds_nothing_and_so_does_that_of_none() -> None:
    """The client sends the hashes: a worker believes them, and compares the keys themselves."""
    view, _ = _view(_projection(k=("k", pa.string()), x=("x", pa.int64())))
    _, asked = keys_of(KEY_SCHEMA, [("a",), ("a",)])
    wrong, _ = keys_of(KEY_SCHEMA, [("b",), ("none",)])
    assert _lookup(view, "a")
    assert _lookup(view, "b")
    assert view.lookup(wrong, asked.columns).num_rows == 0
