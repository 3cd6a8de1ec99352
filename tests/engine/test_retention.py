"""Which rows leave a table, and when."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.engine.batch import Batch
from upriver.engine.retention import Retention, all_left, as_of, leaving, remaining, retained_after, together
from upriver.hashing import hash64
from upriver.plan.plan import TableSpec
from upriver.plan.retention import Retain
from upriver.state.span import TimeSpan

SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.date32())])
APPENDED = TableSpec("t", SCHEMA, key=("k",))
UPSERTED = TableSpec("t", SCHEMA, key=("k",), order_by=("at",), primary_key=("k",))
DROPPABLE = TableSpec(
    "t",
    pa.schema([SCHEMA.field("k"), pa.field("at", pa.date32(), nullable=False)]),
    key=("k",),
    order_by=("at",),
    primary_key=("k",),
)
Row = tuple[int, int | None]
ROWS = st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(-20, 60)), max_size=8)


def batch_of(rows: list[Row]) -> Batch:
    keys = pa.array([key for key, _ in rows], pa.int64())
    dates = pa.array([at for _, at in rows], pa.int32()).cast(pa.date32())
    hashes = hash64([keys], len(rows))
    order = np.argsort(hashes, kind="stable")
    batch = pa.RecordBatch.from_arrays([keys, dates], schema=SCHEMA)
    return Batch(batch.take(pa.array(order)), hashes[order])


def rows_of(batch: Batch) -> list[Row]:
    return list(zip(batch.rows.column(0).to_pylist(), batch.rows.column(1).cast(pa.int32()).to_pylist(), strict=True))


def right(rows: list[Row], interval: int) -> list[Row]:
    """As SQL says it: ``at IS NULL OR at > max(at) - interval``."""
    newest = max((at for _, at in rows if at is not None), default=0)
    return [(key, at) for key, at in rows if at is None or at > newest - interval]


@given(st.lists(ROWS, max_size=6), st.integers(1, 40))
def test_the_changes_of_all_epochs_add_up_to_the_rows_that_remain(epochs: list[list[Row]], interval: int) -> None:
    retained: dict[str, Retention] = {}
    here: Counter[Row] = Counter()
    came: list[Row] = []
    for rows in epochs:
        span = TimeSpan.of(batch_of(rows).rows.column(1)) if rows else None
        retained = retained_after(retained, "t", Retain("at", interval, ""), span)
        now = retained["t"]
        earlier = leaving(batch_of(came), "at", now.before, now.cut)
        changes = together(as_of(batch_of(rows), APPENDED, "at", now.cut), earlier)
        assert (changes.hash64[:-1] <= changes.hash64[1:]).all()
        weights = np.ones(len(changes), np.int64) if changes.weight is None else changes.weight
        for row, weight in zip(rows_of(changes), weights.tolist(), strict=True):
            here[row] += weight
        came += rows
        assert +here == Counter(right(came, interval))
        assert min(here.values(), default=0) >= 0
        kept = remaining(batch_of(came).rows, APPENDED, "at", now.cut)
        assert Counter(rows_of(Batch(kept, np.zeros(kept.num_rows, np.uint64)))) == +here


def test_a_row_as_old_as_the_interval_has_left() -> None:
    now = Retention("at").advanced(30, TimeSpan(0, 30, 0))
    assert now.cut == 0
    assert rows_of(as_of(batch_of([(1, 0), (2, 1)]), APPENDED, "at", now.cut)) == [(2, 1)]


def test_the_cut_never_falls_and_stays_without_an_interval() -> None:
    cut = Retention("at").advanced(5, TimeSpan(0, 20, 0))
    assert (cut.newest, cut.before, cut.cut, cut.moves) == (20, None, 15, True)
    longer = cut.advanced(50, TimeSpan(0, 10, 0))
    assert (longer.newest, longer.before, longer.cut, longer.moves) == (20, 15, 15, False)
    assert longer.advanced(None, TimeSpan(0, 99, 0)) == Retention("at", 99, 15, 15)
    assert longer.advanced(2, None) == Retention("at", 20, 15, 18)
    assert retained_after({"t": cut}, "other", None, TimeSpan(0, 99, 0)) == {"t": Retention("at", 20, 15, 15)}


@pytest.mark.parametrize("table", [UPSERTED, DROPPABLE], ids=["nulls may come", "no nulls"])
def test_versions_come_with_weight_zero_when_they_are_too_old(table: TableSpec) -> None:
    batch = batch_of([(1, 3), (2, 9), (1, None)])
    found = as_of(batch, table, "at", 5)
    assert found.weight is not None
    assert dict(zip(rows_of(found), found.weight.tolist(), strict=True)) == {(1, 3): 0, (2, 9): 1, (1, None): 1}


def test_a_version_leaves_the_lake_only_if_no_older_one_could_come_back() -> None:
    rows = batch_of([(1, 3), (2, 9)]).rows
    assert remaining(rows, UPSERTED, "at", 5).num_rows == 2
    assert remaining(rows, DROPPABLE, "at", 5).num_rows == 1


@pytest.mark.parametrize(
    ("table", "span", "cut", "gone"),
    [
        (APPENDED, TimeSpan(1, 5, 0), 5, True),
        (APPENDED, TimeSpan(1, 6, 0), 5, False),
        (APPENDED, TimeSpan(1, 5, 1), 5, False),
        (APPENDED, None, 5, False),
        (APPENDED, TimeSpan(1, 5, 0), None, False),
        (UPSERTED, TimeSpan(1, 5, 0), 5, False),
        (DROPPABLE, TimeSpan(1, 5, 0), 5, True),
    ],
)
def test_a_run_is_of_no_use_when_all_its_rows_have_left(table: TableSpec, span: Any, cut: Any, gone: bool) -> None:
    assert all_left(table, span, "at", cut) is gone


@pytest.mark.parametrize("type", [pa.int8(), pa.int64(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_spans_are_whole_numbers_of_any_type(type: pa.DataType) -> None:
    numbers = pa.array([3, None, -7], pa.int32() if type == pa.date32() else pa.int64()).cast(type)
    assert TimeSpan.of(numbers) == TimeSpan(-7, 3, 1)
    assert TimeSpan.of(pa.chunked_array([numbers, numbers])) == TimeSpan(-7, 3, 2)
    assert TimeSpan.of(pa.nulls(2, type)) is None
    assert TimeSpan.from_json(TimeSpan(-7, 3, 1).to_json()) == TimeSpan(-7, 3, 1)
