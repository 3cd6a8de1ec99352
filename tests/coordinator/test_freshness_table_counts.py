"""Rows and epochs of a table, and how many of late."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from upriver.coordinator.freshness import RATE_WINDOW_S, TableCounts
from upriver.ids import Epoch


def counted(epochs: Sequence[tuple[float | None, int]]) -> TableCounts:
    """(when it was committed, its rows) of each epoch."""
    counts = TableCounts()
    for number, (committed_at, rows) in enumerate(epochs, 1):
        counts.add(Epoch(number), rows, committed_at)
    return counts


def test_a_table_without_epochs() -> None:
    counts = counted([])
    assert (counts.rows, counts.epochs, counts.last_epoch) == (0, 0, 0)
    assert (counts.age_s(9.0), counts.rows_per_s(9.0)) == (None, 0.0)


def test_epochs_from_before_commit_times_were_kept_count_without_an_age() -> None:
    counts = counted([(None, 7), (None, 8)])
    assert (counts.rows, counts.last_epoch, counts.age_s(9.0), counts.rows_per_s(9.0)) == (15, 2, None, 0.0)


def test_a_clock_that_was_set_back_gives_no_negative_age() -> None:
    counts = counted([(100.0, 1), (40.0, 2)])
    assert counts.age_s(30.0) == 0.0
    assert counts.rows_per_s(100.5) == 3 / RATE_WINDOW_S


@given(st.lists(st.tuples(st.floats(0, 400), st.integers(0, 1000)), max_size=60), st.floats(0, 100))
def test_the_rate_is_that_of_the_last_seconds(epochs: list[tuple[float, int]], later: float) -> None:
    in_order = sorted(epochs)
    now = (in_order[-1][0] if in_order else 0.0) + later
    counts = counted(in_order)
    recent = sum(rows for at, rows in in_order if int(at) > now - RATE_WINDOW_S)
    assert counts.rows_per_s(now) == recent / RATE_WINDOW_S
    assert counts.rows == sum(rows for _, rows in in_order)
    assert len(counts._recent) <= RATE_WINDOW_S
