"""Views that are added and dropped while the app runs; rule coordinator.views_change_between_epochs."""

from coordinator_kit import (
    BOTH,
    PLAN,
    UP,
    anew,
    came,
    coordinator,
    failures,
    finished,
    gone,
    moved,
    only,
    opened,
    outcomes,
    planned,
    published,
    scan,
    settled,
    taken,
    wanted,
)

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.errors import UnknownView
from upriver.ids import Epoch
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import CoordinatorEvent, EpochPublished, PlansTaken, PlansWanted, RescaleBegun
from upriver.protocol.messages import Assign
from upriver.protocol.rules import Rules

OTHER = planned(name="other", key="j")
MOVED = [moved(2, 3), settled(1), settled(2), settled(3)]
"""The rescale of ``UP`` to its end."""


def views(ticket: int, *plans: DataflowPlan, epochs: int = 0) -> PlansWanted:
    rows = {channel: 1 for plan in plans for channel in plan.channels}
    there = tuple(EpochPublished(epoch=Epoch(epoch), rows=rows) for epoch in range(1, epochs + 1))
    return PlansWanted(ticket=ticket, plans=plans, epochs=there)


def taken_in(machine: CoordinatorMachine, *events: CoordinatorEvent) -> list[int]:
    """The tickets of the requests for views that are met meanwhile."""
    return [action.ticket for event in events for action in only(PlansTaken, machine.step(event))]


def test_all_workers_begin_anew_with_the_views_that_are_wanted() -> None:
    machine = coordinator(*BOTH, published(1), finished(1, 1), finished(2, 1))
    actions = machine.step(views(7, PLAN, OTHER, epochs=1))
    assigned = only(Assign, actions)
    assert [(assign.worker, assign.start_at, assign.serve_from, assign.generation) for assign in assigned] == [
        (0, 0, 1, 1),
        (1, 0, 1, 1),
    ]
    assert all(assign.plans == (PLAN, OTHER) for assign in assigned)
    assert only(PlansTaken, actions) == [PlansTaken(ticket=7)]
    assert machine.plans == (PLAN, OTHER)


def test_coordinator_views_change_between_epochs_and_none_is_opened_meanwhile() -> None:
    machine = coordinator(*BOTH, published(1))
    assert taken_in(machine, views(7, OTHER, epochs=1), finished(1, 1)) == []
    assert only(type(opened(1, 2)[0].message), machine.step(published(2))) == []
    assert taken_in(machine, finished(2, 1)) == [7]


def test_coordinator_views_change_between_epochs_views_change_when_the_snapshot_is_taken() -> None:
    machine = coordinator(*BOTH, scan(1))
    assert taken_in(machine, views(7, OTHER), taken(1, 1)) == []
    assert taken_in(machine, taken(2, 1)) == [7]


def test_coordinator_views_change_between_epochs_views_change_when_no_place_is_empty() -> None:
    machine = coordinator(*BOTH, gone(2))
    assert taken_in(machine, views(7, OTHER)) == []
    assert taken_in(machine, came(1, 3)) == [7]


def test_coordinator_views_change_between_epochs_after_a_rescale_and_before_the_next_one() -> None:
    machine = coordinator(*UP, wanted(2, workers=2))
    assert taken_in(machine, views(7, OTHER), *MOVED[:-1]) == []
    actions = machine.step(MOVED[-1])
    assert outcomes(actions) == [(1, "finished", 1)]
    taken = actions.index(PlansTaken(ticket=7))
    assert only(RescaleBegun, actions[:taken]) == []
    assert [begun.ticket for begun in only(RescaleBegun, actions[taken:])] == [2]


def test_coordinator_views_change_between_epochs_without_the_rule_views_change_while_an_epoch_is_open() -> None:
    machine = coordinator(*BOTH, published(1), rules=Rules(coordinator_views_change_between_epochs=False))
    assert taken_in(machine, views(7, OTHER, epochs=1)) == [7]


def test_changes_are_made_in_order() -> None:
    machine = coordinator(*BOTH, published(1))
    assert taken_in(machine, views(7, OTHER), views(8, PLAN, OTHER), finished(1, 1), finished(2, 1)) == [7]
    again = [report for incarnation in (1, 2) for report in (anew(incarnation), finished(incarnation, 1))]
    assert taken_in(machine, *again) == [8]
    assert machine.plans == (PLAN, OTHER)


def test_a_scan_that_waits_for_a_view_which_is_dropped_fails() -> None:
    machine = coordinator(*UP, scan(5))
    assert failures(machine.step(views(7, OTHER))) == {}
    assert failures([action for event in MOVED for action in machine.step(event)]) == {5: UnknownView}


def test_a_rescale_that_waits_until_there_is_no_view_any_more_is_refused() -> None:
    machine = coordinator(*BOTH, published(1), views(7))
    assert outcomes(machine.step(wanted(2, workers=3))) == []
    assert taken_in(machine, finished(1, 1)) == []
    actions = machine.step(finished(2, 1))
    assert only(PlansTaken, actions) == [PlansTaken(ticket=7)]
    assert outcomes(actions) == [(2, "refused", 0)]
