"""The order of rows: sorted and merged as a sort of all of them by Python does, whichever tasks have which rows."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import examples

from upriver.state.run_order import TaskRows, merged, merged_order, sorted_order
from upriver.state.runs import run_schema

SCHEMA = run_schema(pa.schema([("a.b", pa.float64()), ("b", pa.string()), ("n", pa.int64())]))
HASHES = st.sampled_from([0, 3, 7, 2**63, 2**64 - 2, 2**64 - 1])
FLOATS = st.sampled_from([None, -math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, math.nan])
TEXTS = st.sampled_from([None, "", "a", "é"])
ROWS = st.lists(st.tuples(HASHES, FLOATS, TEXTS), max_size=30)
ORDERS = st.sampled_from([(), ("a.b",), ("b",), ("b", "a.b")])
Row = tuple[Any, ...]


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(SCHEMA)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def numbers_of(*batches: pa.RecordBatch) -> list[int]:
    return [number for batch in batches for number in batch.column("n").to_pylist()]


def rank(value: Any) -> Row:
    """Nulls first, NaN last."""
    if isinstance(value, float):
        return (True, math.isnan(value), 0.0 if math.isnan(value) else value)
    return (value is not None, False, value)


def key_of(row: Row, order_by: Sequence[str]) -> Row:
    return (row[0], *(rank(row[SCHEMA.get_field_index(name)]) for name in order_by))


def in_order(rows: Sequence[Row], order_by: Sequence[str]) -> list[Row]:
    return sorted(rows, key=lambda row: key_of(row, order_by))


@settings(derandomize=True, deadline=None, max_examples=examples(200))
@given(ROWS, ORDERS)
def test_rows_are_sorted_by_hash_then_by_order_by(values: list[Row], order_by: tuple[str, ...]) -> None:
    rows = [(*row, number) for number, row in enumerate(values)]
    batch = batch_of(rows)
    order = sorted_order(batch.column(0).to_numpy(), batch, order_by)
    assert numbers_of(batch.take(pa.array(order))) == [row[-1] for row in in_order(rows, order_by)]


@st.composite
def cut_sequences(draw: st.DrawFn, sequences: Sequence[Sequence[Row]]) -> list[list[pa.RecordBatch]]:
    """Each sequence in batches that end anywhere, some of them empty."""
    cut = []
    for rows in sequences:
        ends = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=4)))
        cut.append([batch_of(rows[first:end]) for first, end in zip([0, *ends], [*ends, len(rows)], strict=True)])
    return cut


@settings(derandomize=True, deadline=None, max_examples=examples(300))
@given(st.data(), st.lists(ROWS, max_size=4), ORDERS)
def test_any_partition_over_tasks_is_merged_in_order(
    data: st.DataObject, values: list[list[Row]], order_by: tuple[str, ...]
) -> None:
    """Of rows that tie, those of the first task come first, in its order."""
    numbered = iter(range(1000))
    tasks = [in_order([(*row, next(numbered)) for row in rows], order_by) for rows in values]
    expected = [row[-1] for row in in_order([row for rows in tasks for row in rows], order_by)]
    batches = list(merged(data.draw(cut_sequences(tasks)), order_by))
    assert numbers_of(*batches) == expected
    hashes = [set(batch.column(0).to_pylist()) for batch in batches]
    assert all(hashes)
    assert sum(map(len, hashes)) == len(set().union(*hashes))  # no key is in two batches


@settings(derandomize=True, deadline=None, max_examples=examples(200))
@given(st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 2)), ROWS, max_size=6), ORDERS)
def test_epochs_come_before_order_by(values: dict[tuple[int, int], list[Row]], order_by: tuple[str, ...]) -> None:
    """A sequence is in order by itself, even if ``order_by`` says something else: a merged run has older rows first."""
    numbered, sources, rows = iter(range(1000)), list[TaskRows](), list[Row]()
    expected: dict[int, list[Row]] = {}
    for (epoch, task), of_task in sorted(values.items()):
        is_alone = [of for of, _ in values].count(epoch) == 1
        own = [(*row, next(numbered)) for row in in_order(of_task, () if is_alone else order_by)]
        sources.append(TaskRows(len(own), epoch, task))
        rows += own
        together = [*expected.get(epoch, ()), *own]
        expected[epoch] = in_order(together, () if is_alone else order_by)
    batch = batch_of(rows)
    order = merged_order(batch.column(0).to_numpy(), batch, order_by, sources)
    by_hash = in_order([row for epoch in sorted(expected) for row in expected[epoch]], ())
    assert numbers_of(batch.take(pa.array(order))) == [row[-1] for row in by_hash]


def test_a_single_sequence_is_neither_sorted_nor_copied() -> None:
    rows = batch_of([(7, 2.0, "b", 0), (7, 1.0, "a", 1), (9, 1.0, "a", 2)])
    (only,) = merged([[rows]], ("b",))
    assert only.column("n").buffers()[1].address == rows.column("n").buffers()[1].address
    assert numbers_of(only) == [0, 1, 2]


def test_a_merge_reads_each_sequence_a_little_ahead() -> None:
    """Of four long sequences, two batches each are read for the first result."""
    read = [0] * 4

    def sequence(task: int) -> Iterator[pa.RecordBatch]:
        for first in range(0, 1000, 10):
            read[task] += 1
            yield batch_of([(4 * number + task, None, None, number) for number in range(first, first + 10)])

    batches = merged([sequence(task) for task in range(4)], ("b",))
    next(batches)
    assert max(read) <= 2
    for number, _ in enumerate(batches, start=2):
        assert max(read) - min(read) <= 1
        assert max(read) <= number + 1
