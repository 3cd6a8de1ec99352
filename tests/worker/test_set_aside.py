"""worker.set_aside_at_once: rows that are left out of a view are set aside by the step that leaves them out, before it
is told of."""

from dataclasses import replace

from machines_kit import (
    ALL_MINE,
    HALVES,
    KEYS,
    assign,
    batch,
    finished,
    meet,
    of_region,
    opened,
    read,
    reports,
    rows,
    worker,
)
from stages_kit import staged, staged_worker

from upriver.ids import Epoch, MapVersion
from upriver.migration.messages import RowsSent
from upriver.protocol.messages import RowsApplied, ViewFailed
from upriver.protocol.peers import Portion
from upriver.protocol.rules import Rules
from upriver.protocol.worker_events import Report, RowsRead, SetRowsAside, ShareAction
from upriver.state.failure import ViewFailure

BAD = 98
"""In the column of the epoch: a row that is set aside."""


def bad_rows(epoch: int, *keys: str) -> RowsRead:
    return replace(rows(BAD, *keys), epoch=Epoch(epoch))


def aside(actions: list[ShareAction]) -> list[tuple[int, str, str, list[str], list[str]]]:
    """Epoch, view, table, the rows' keys, the errors."""
    return [
        (
            action.epoch,
            action.aside.view,
            action.aside.table,
            action.aside.rows["k"].to_pylist(),
            [*action.aside.errors],
        )
        for action in actions
        if isinstance(action, SetRowsAside)
    ]


def test_worker_set_aside_at_once_rows_are_set_aside_as_they_come_and_count_as_applied() -> None:
    machine = worker(assign(), opened(1), rows(1, "a"))
    assert aside(machine.step(bad_rows(1, "b", "c"))) == [
        (1, "seen", "t", ["b"], ["overflow"]),
        (1, "seen", "t", ["c"], ["overflow"]),
    ]
    assert aside(machine.step(rows(1, "d"))) == []
    assert reports(machine.step(read(1, 4))) == [finished(1, read=4, applied=4, keys=2, total=2)]


def test_worker_set_aside_at_once_rows_that_come_late_are_set_aside_before_it_is_told_that_they_came() -> None:
    key = KEYS[0][0]
    machine = worker(assign(HALVES), meet(0, 1), opened(1, mixed=True), read(1, 0))
    late = RowsSent(version=MapVersion(0), rows=Portion(Epoch(1), 0, batch(BAD, key)))
    actions = machine.step(of_region(1, late))
    kinds = [type(action.message) if isinstance(action, Report) else type(action) for action in actions]
    assert (kinds[0], kinds[-1]) == (SetRowsAside, RowsApplied)
    assert aside(actions) == [(1, "seen", "t", [key], ["overflow"])]


def test_without_w10_they_are_not_reported() -> None:
    machine = worker(assign(), opened(1), rules=Rules(worker_set_aside_at_once=False))
    assert machine.step(bad_rows(1, "a")) == []


def test_a_worker_that_begins_anew_sets_the_same_rows_aside_again() -> None:
    machine = worker(assign(), opened(1), bad_rows(1, "a"), read(1, 1), assign(generation=1), opened(1))
    assert aside(machine.step(bad_rows(1, "a"))) == [(1, "seen", "t", ["a"], ["overflow"])]


def test_a_bad_row_is_an_error_that_names_the_region_too_if_it_is_not_the_views_last() -> None:
    bad = replace(rows(99, KEYS[0][0]), epoch=Epoch(1))
    (report,) = staged_worker(staged(ALL_MINE), opened(1)).step(bad)
    failure = ViewFailure(kind="RowError", error="view 'seen', region 'seen/0', epoch 1: overflow")
    assert report == Report(message=ViewFailed(view="seen", failure=failure))
