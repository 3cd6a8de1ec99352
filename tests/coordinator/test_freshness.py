"""How fresh views are, and when an app is ready."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from upriver.coordinator.freshness import (
    FAILED,
    FAILING,
    MARKS_MAX,
    RATE_WINDOW_S,
    STALLED,
    Freshness,
    Progress,
    ReadThrough,
    TableCounts,
)
from upriver.ids import Epoch, WorkerId
from upriver.protocol.freshness import NOTHING_KNOWN, FreshnessReport

UNCOMMITTED = "its source has not answered since, or has rows that are not committed yet"


def at(ended: int, published: int | None = None, missing: Sequence[int] = ()) -> Progress:
    return Progress(Epoch(ended), Epoch(ended if published is None else published), tuple(map(WorkerId, missing)))


def mark(seconds: float, epoch: int) -> ReadThrough:
    return ReadThrough(seconds, Epoch(epoch))


# Ready


def test_a_new_table_is_ready_once_all_that_its_source_had_is_reflected() -> None:
    freshness = Freshness({"orders": False})
    assert freshness.report(at(0), 10.0).lacks(["orders"]) == (
        "table 'orders': its source is still being read (0 epochs so far)"
    )
    assert freshness.report(at(0, published=1), 10.0).lacks(["orders"]) == (
        "table 'orders': its source is still being read (1 epoch so far)"
    )
    freshness.read_through("orders", mark(10.0, 3))
    assert freshness.report(at(2, published=3), 10.0).lacks(["orders"]) == ("table 'orders': epoch 2 of 3 is reflected")
    assert freshness.report(at(2, published=3, missing=[1]), 10.0).lacks(["orders"]) == (
        "table 'orders': epoch 2 of 3 is reflected, and worker 1 is not up"
    )
    assert freshness.report(at(3), 10.0).lacks(["orders"]) is None


def test_what_was_in_the_lake_at_the_start_is_waited_for() -> None:
    freshness = Freshness({"orders": True}, Epoch(7))
    freshness.read_through("orders", mark(10.0, 7))
    assert freshness.report(at(5, published=7, missing=[0, 2]), 10.0).lacks(["orders"]) == (
        "table 'orders': epoch 5 of 7 is reflected, and workers 0, 2 are not up"
    )
    assert freshness.report(at(7), 10.0).lacks(["orders"]) is None


def test_a_table_whose_source_has_failed_says_so_or_serves_the_rows_that_it_had() -> None:
    freshness = Freshness({"old": True, "new": False}, Epoch(4))
    for table in ("old", "new"):
        freshness.stands(table, FAILED, "a file is damaged")
    assert freshness.report(at(3), 1.0).lacks(["old"]) == "table 'old': epoch 3 of 4 is reflected"
    report = freshness.report(at(4), 1.0)
    assert report.lacks(["old"]) is None
    assert report.lacks(["old", "new"]) == "table 'new': its source has failed: a file is damaged"
    freshness.stands("new", FAILING, "a file is damaged")
    again = "table 'new': its source has failed, and is being tried again: a file is damaged"
    assert freshness.report(at(4), 1.0).lacks(["new"]) == again
    freshness.read_through("new", mark(2.0, 5))
    assert freshness.report(at(4), 2.0).lacks(["new"]) == "table 'new': epoch 4 of 5 is reflected"


def test_the_app_is_not_ready_while_a_source_has_failed_for_good_before_it_was_read() -> None:
    freshness = Freshness({"old": True, "read": True})
    freshness.read_through("read", mark(1.0, 0))
    for table in ("old", "read"):
        freshness.stands(table, FAILED, "other rows", is_final=True)
    report = FreshnessReport.from_json(freshness.report(at(0), 2.0).to_json())
    assert report.lacks(["old", "read"]) is None  # lookups give what there is
    assert report.app_lacks() == "table 'old': its source has failed: other rows"
    freshness.stands("old", FAILED, "no answer")  # it is tried again, and may have had more rows
    assert freshness.report(at(0), 2.0).app_lacks() == "table 'old': its source has failed: no answer"


def test_a_mark_of_the_run_before_makes_a_table_ready_and_not_the_app() -> None:
    freshness = Freshness({"orders": True, "new": True}, Epoch(4), {"orders": mark(-60.0, 3)})
    assert freshness.report(at(3, published=4), 1.0).lacks(["orders"]) == "table 'orders': epoch 3 of 4 is reflected"
    report = freshness.report(at(4), 1.0)
    assert report.lacks(["orders"]) is None
    assert report.age_s(["orders"]) == 61.0
    assert report.lacks(["new"]) == "table 'new': its source is still being read (4 epochs so far)"
    freshness.read_through("new", mark(2.0, 4))
    report = FreshnessReport.from_json(freshness.report(at(4), 2.0).to_json())
    assert report.lacks(report.tables) is None
    assert report.app_lacks() == "table 'orders': its source is still being read (4 epochs so far)"
    assert freshness.marks(Epoch(4)) == {"orders": mark(-60.0, 3), "new": mark(2.0, 4)}
    freshness.stands("orders", FAILED, "no answer")  # it is tried again
    assert freshness.report(at(4), 2.0).app_lacks() is None
    freshness.stands("orders", FAILED, "other rows", is_final=True)
    assert freshness.report(at(4), 2.0).app_lacks() == "table 'orders': its source has failed: other rows"
    freshness.read_through("orders", mark(3.0, 5))
    assert freshness.report(at(4), 3.0).age_s(["orders"]) == 63.0
    assert freshness.report(at(5), 3.0).app_lacks() is None
    assert freshness.marks(Epoch(5))["orders"] == mark(3.0, 5)


def test_a_table_that_was_never_read_through_is_ready_only_as_long_as_its_source_has_failed() -> None:
    freshness = Freshness({"old": True})
    freshness.stands("old", FAILED, "no room")
    assert freshness.report(at(0), 1.0).lacks(["old"]) is None  # answers name the failed source
    freshness.stands("old", "running")
    assert (
        freshness.report(at(0), 1.0).lacks(["old"]) == "table 'old': its source is still being read (0 epochs so far)"
    )


def test_a_table_that_is_ready_stays_so() -> None:
    freshness = Freshness({"old": True})
    freshness.read_through("old", mark(1.0, 0))
    assert freshness.report(at(0), 1.0).lacks(["old"]) is None
    for state in (FAILED, "running"):
        freshness.stands("old", state)
        assert freshness.report(at(0), 1.0).lacks(["old"]) is None


def test_a_mark_that_comes_after_the_first_does_not_put_ready_off() -> None:
    freshness = Freshness({"orders": False})
    for number in range(5):
        freshness.read_through("orders", mark(10.0 + number, 3 + number))
    assert freshness.report(at(3, published=7), 20.0).lacks(["orders"]) is None


def test_a_table_that_is_added_is_not_ready_until_its_source_is_read_and_the_app_stays_ready() -> None:
    freshness = Freshness({"orders": False})
    freshness.read_through("orders", mark(1.0, 1))
    assert freshness.report(at(1), 1.0).app_lacks() is None
    freshness.add("late", had_rows=False)
    report = freshness.report(at(1), 2.0)
    assert report.lacks(["late"]) == "table 'late': its source is still being read (1 epoch so far)"
    assert (report.lacks(["orders"]), report.app_lacks(), report.later) == (None, None, ("late",))
    freshness.stands("late", "failed", "no answer", is_final=True)
    assert freshness.report(at(1), 2.0).app_lacks() is None
    freshness.stands("late", "running")
    freshness.read_through("late", mark(3.0, 2))
    assert freshness.report(at(1, published=2), 3.0).lacks(["late"]) == "table 'late': epoch 1 of 2 is reflected"
    assert freshness.report(at(2), 3.0).lacks(["late"]) is None
    freshness.forget("late")
    freshness.forget("late")
    assert list(freshness.report(at(2), 3.0).tables) == list(freshness.marks(Epoch(2))) == ["orders"]


def test_a_table_that_is_declared_again_serves_what_was_read_before() -> None:
    freshness = Freshness({})
    freshness.add("orders", had_rows=True, before=mark(1.0, 3))
    report = freshness.report(at(3), 5.0)
    assert (report.lacks(["orders"]), report.age_s(["orders"])) == (None, 4.0)
    assert FreshnessReport.from_json(report.to_json()) == report


def test_without_tables_nothing_is_waited_for() -> None:
    assert NOTHING_KNOWN.lacks(["orders"]) is None
    assert NOTHING_KNOWN.age_s(["orders"]) is None
    assert NOTHING_KNOWN.sources(["orders"]) is None
    assert NOTHING_KNOWN.cause(["orders"]) == "nothing is known of its sources"


# Fresh


def test_an_idle_source_keeps_its_views_fresh() -> None:
    freshness = Freshness({"orders": False})
    for moment in (1.0, 2.0, 3.0):
        freshness.read_through("orders", mark(moment, 1))
    assert freshness.report(at(1), 3.25).age_s(["orders"]) == 0.25


def test_a_view_is_as_old_as_the_oldest_of_its_tables() -> None:
    freshness = Freshness({"orders": False, "customers": False, "other": False})
    freshness.read_through("orders", mark(9.0, 1))
    freshness.read_through("customers", mark(4.0, 1))
    report = freshness.report(at(1), 10.0)
    assert report.age_s(["orders"]) == 1.0
    assert report.age_s(["orders", "customers"]) == 6.0
    assert report.cause(["orders", "customers"]) == f"table 'customers': {UNCOMMITTED}"
    assert report.age_s(["orders", "other"]) is None
    assert report.cause(["orders", "other"]).startswith("table 'other'")


def test_the_cause_of_an_age_is_told() -> None:
    freshness = Freshness({"orders": False})
    freshness.read_through("orders", mark(1.0, 1))
    assert freshness.report(at(1), 2.0).cause(["orders"]) == f"table 'orders': {UNCOMMITTED}"
    assert freshness.report(at(1, published=5, missing=[1]), 2.0).cause(["orders"]) == (
        "table 'orders': epoch 1 of 5 is reflected, and worker 1 is not up"
    )
    freshness.read_through("orders", mark(2.0, 3))
    freshness.read_through("orders", mark(3.0, 4))
    assert freshness.report(at(1, published=9), 4.0).cause(["orders"]) == "table 'orders': epoch 1 of 3 is reflected"
    freshness.stands("orders", STALLED, "no trigger for 40 s")
    assert (
        freshness.report(at(1), 4.0).cause(["orders"]) == "table 'orders': its source has stalled: no trigger for 40 s"
    )
    freshness.stands("orders", FAILED, "a file is damaged")
    assert freshness.report(at(1), 4.0).cause(["orders"]) == "table 'orders': its source has failed: a file is damaged"


def test_the_states_of_sources_are_told() -> None:
    freshness = Freshness({"a": False, "b": False, "c": False, "d": False})
    assert freshness.report(at(0), 1.0).sources("abcd") == "running"
    freshness.stands("a", "finished")
    assert freshness.report(at(0), 1.0).sources("ab") == "running"
    for table, state in (("b", FAILED), ("c", STALLED), ("d", FAILED)):
        freshness.stands(table, state, "why")
    assert freshness.report(at(0), 1.0).sources("abcd") == "failed: b, d; stalled: c"


def test_a_report_survives_its_json() -> None:
    freshness = Freshness({"orders": False, "customers": True}, Epoch(2))
    freshness.read_through("orders", mark(1.0, 1))
    freshness.stands("customers", FAILED, "no room")
    report = freshness.report(at(2), 4.0)
    assert FreshnessReport.from_json(report.to_json()) == report


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=3 * MARKS_MAX))
def test_an_age_is_never_less_than_it_is(steps: list[tuple[bool, int]]) -> None:
    """Beside a twin that forgets no mark; with few marks the two say the same."""
    freshness, marks = Freshness({"t": False}), []
    published = ended = 0
    for number, (is_mark, by) in enumerate(steps):
        if is_mark:
            published += by
            marks.append((float(number), published))
            freshness.read_through("t", mark(float(number), published))
        else:
            ended = min(published, ended + by)
        told = freshness.report(at(ended, published), float(number)).age_s(["t"])
        counts = [moment for moment, epoch in marks if epoch <= ended]
        true_age = number - max(counts) if counts else None
        if len(marks) <= MARKS_MAX:
            assert told == true_age
        assert told is None or (true_age is not None and told >= true_age)


def test_many_marks_that_wait_take_bounded_memory_and_the_newest_counts() -> None:
    freshness = Freshness({"t": False})
    for number in range(1000):
        freshness.read_through("t", mark(float(number), number + 1))
    assert freshness.report(at(1000), 1000.0).age_s(["t"]) == 1.0


# Counts


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
