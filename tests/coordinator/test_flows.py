"""Flows: views that are added and dropped while the app runs, and what happens to one changes no other; rules
flows.change_between_rescales and flows.fail_when_deadly."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from coordinator_kit import (
    BOTH,
    CHANNEL,
    PLAN,
    TABLE,
    UP,
    Recorded,
    abort,
    anew,
    came,
    coordinator,
    failures,
    finished,
    gone,
    listeners,
    met,
    moved,
    only,
    outcomes,
    planned,
    published,
    said,
    scan,
    settled,
    share,
    wanted,
)
from relation_kit import count, dataflow, group
from relation_kit import scan as scan_of

from upriver.coordinator.coordinator import DEATHS_MAX
from upriver.errors import ProtocolError, UnknownView, WorkerLost
from upriver.ids import Epoch, FlowId, WorkerId
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import (
    CoordinatorEvent,
    DrainOverdue,
    EpochEnded,
    EpochPublished,
    EvictionOver,
    EvictWanted,
    PlansTaken,
    PlansWanted,
    RescaleBegun,
    SegmentPublished,
)
from upriver.protocol.messages import (
    Assign,
    DropFlow,
    EpochFinished,
    FailView,
    FlowStep,
    FromShare,
    MigrationOrder,
    OpenEpoch,
    StartedAnew,
    TookOver,
    ViewFailed,
)
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.strategies import Strategy
from upriver.state.failure import ViewFailure

OTHER = planned(name="other", key="j")
STAGED = dataflow("sizes", group(count(scan_of(TABLE), "k"), "n", keys=("count_star", None, pa.int64())), ("n",), TABLE)
MOVED = [moved(2, 3), settled(1), settled(2), settled(3)]
"""The rescale of ``UP`` to its end."""
THROUGH_1 = [*BOTH, published(1), finished(1, 1), finished(2, 1)]
BEGUN = [anew(1, 0, flow=2), anew(2, 0, flow=2)]
"""The shares of a view that is added have begun."""
ROW_FAILED = ViewFailure(kind="RowError", error="overflow")


def views(ticket: int, *plans: DataflowPlan, epochs: int = 0) -> PlansWanted:
    rows = {channel: 0 for plan in plans for channel in plan.channels}
    there = tuple(EpochPublished(epoch=Epoch(epoch), rows=rows) for epoch in range(1, epochs + 1))
    return PlansWanted(ticket=ticket, plans=plans, epochs=there)


def taken_in(machine: Recorded, *events: CoordinatorEvent) -> list[int]:
    """The tickets of the requests for views that are met meanwhile."""
    return [action.ticket for event in events for action in only(PlansTaken, machine.step(event))]


def ended(machine: Recorded, *events: CoordinatorEvent) -> list[tuple[int, int]]:
    """The flows and epochs that end."""
    return [(done.flow, done.epoch) for event in events for done in only(EpochEnded, machine.step(event))]


def test_each_view_is_a_flow_with_epochs_of_its_own() -> None:
    machine = coordinator(*BOTH, plans=(PLAN, OTHER))
    assert machine.of_shares(published(1), OpenEpoch) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert ended(machine, finished(1, 1), finished(2, 1)) == [(1, 1)]
    assert machine.of_shares(published(2), OpenEpoch) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert ended(machine, finished(1, 2), finished(2, 2)) == [(1, 2)]
    assert (machine.cluster.ended, machine.cluster.ended_by_view()) == (0, {"rows": 2, "other": 0})
    of_other = [finished(who, epoch, flow=2, view="other") for epoch in (1, 2) for who in (1, 2)]
    assert ended(machine, *of_other) == [(2, 1), (2, 2)]
    assert machine.cluster.ended == 2


def test_a_view_that_is_added_is_told_to_every_worker_and_no_other_hears_of_it() -> None:
    machine = coordinator(*THROUGH_1)
    actions = machine.step(views(7, PLAN, OTHER, epochs=1))
    assigned = [(a.worker, a.plans, a.start_at, a.serve_from, a.generation) for a in only(Assign, actions)]
    assert assigned == [(0, (OTHER,), 0, 1, 0), (1, (OTHER,), 0, 1, 0)]
    assert only(PlansTaken, actions) == [PlansTaken(ticket=7)]
    assert len(only(OpenEpoch, actions)) == 2, "the new flow reads what there is"
    assert share(machine, WorkerId(0)).finished == 1
    assert machine.plans == (PLAN, OTHER)


def test_it_is_built_until_it_has_caught_up_and_meanwhile_the_others_count() -> None:
    machine = coordinator(*THROUGH_1, views(7, PLAN, OTHER, epochs=1), published(2), finished(1, 2), finished(2, 2))
    (_, built) = machine.cluster
    assert (built.is_building, machine.cluster.ended) == (True, 2)
    for event in BEGUN:
        machine.step(event)
    for epoch in (1, 2):
        assert built.is_building
        for incarnation in (1, 2):
            machine.step(finished(incarnation, epoch, flow=2, view="other"))
    assert (built.is_building, machine.cluster.ended) == (False, 2)


def test_a_view_that_is_added_while_an_epoch_is_open_waits_for_nothing() -> None:
    machine = coordinator(*BOTH, published(1), finished(1, 1))
    assert taken_in(machine, views(7, PLAN, OTHER, epochs=1)) == [7]
    assert machine.of_shares(published(2), OpenEpoch) == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_epochs_that_come_while_it_is_asked_for_are_not_forgotten() -> None:
    machine = coordinator(*BOTH, *(published(epoch) for epoch in (1, 2, 3)))
    machine.step(views(7, PLAN, OTHER, epochs=2))
    (_, built) = machine.cluster
    assert built.ledger.epochs.between(Epoch(0), Epoch(9)) == [1, 2, 3]


def test_a_worker_that_is_not_there_is_told_when_it_comes() -> None:
    machine = coordinator(*BOTH, gone(2))
    assert taken_in(machine, views(7, PLAN, OTHER)) == [7]
    assert machine.of_shares(came(1, 3), Assign) == [(1, 3), (2, 3)]


def test_a_view_that_is_dropped_is_gone_at_once_and_no_other_hears_of_it() -> None:
    machine = coordinator(*BOTH, published(1), plans=(PLAN, OTHER))
    actions = machine.step(views(7, PLAN))
    assert [drop.flow for drop in only(DropFlow, actions)] == [2, 2]
    assert (only(Assign, actions), machine.plans) == ([], (PLAN,))
    assert ended(machine, finished(1, 1), finished(2, 1)) == [(1, 1)]


@pytest.mark.parametrize(
    "message",
    [
        EpochFinished(epoch=Epoch(1), read={}, applied={}, stats={}),
        EpochFinished(epoch=Epoch(99), read={}, applied={}, stats={}),
        StartedAnew(generation=7),
        TookOver(vnodes=1, keys=1, bytes=1),
        ViewFailed(view="other", failure=ROW_FAILED),
    ],
)
def test_what_comes_of_a_flow_that_is_gone_changes_nothing(message: FromShare) -> None:
    machine = coordinator(*BOTH, published(1), views(7, PLAN), plans=(PLAN, OTHER))
    assert machine.step(said(1, message, flow=2)) == []
    assert machine.cluster.failed == {}


def test_a_view_of_a_name_that_was_dropped_is_another_flow() -> None:
    machine = coordinator(*THROUGH_1, views(7), views(8, PLAN))
    assert list(machine.cluster.flows) == [2]
    assert machine.step(finished(1, 1)) == [], "the first flow is gone"


def test_a_view_that_is_declared_otherwise_is_another_flow() -> None:
    machine = coordinator(*BOTH, plans=(PLAN, OTHER))
    actions = machine.step(views(7, PLAN, planned("other", "k")))
    assert [drop.flow for drop in only(DropFlow, actions)] == [2, 2]
    assert {tuple(plan.key for plan in assign.plans) for assign in only(Assign, actions)} == {(("k",),)}


def test_a_view_that_fails_fails_alone() -> None:
    machine = coordinator(*BOTH, published(1), plans=(PLAN, OTHER))
    assert len(only(FailView, machine.step(said(1, ViewFailed(view="other", failure=ROW_FAILED), flow=2)))) == 2
    assert machine.cluster.failed == {"other": ROW_FAILED}
    assert machine.step(said(1, ViewFailed(view="rows", failure=ROW_FAILED), flow=2)) == [], "it is not that flow's"


def test_without_views_epochs_are_over_when_they_are_published() -> None:
    machine = coordinator(*BOTH, published(1), plans=())
    assert machine.cluster.ended == 1
    assert machine.of_shares(views(7, PLAN, epochs=1), Assign) == [(1, 1), (1, 2)]


def test_views_change_in_order() -> None:
    machine = coordinator(*UP, views(7, OTHER), views(8, PLAN, OTHER))
    assert taken_in(machine, *MOVED) == [7, 8]
    assert machine.plans == (OTHER, PLAN)


def test_flows_change_between_rescales_after_one_and_before_the_next() -> None:
    machine = coordinator(*UP, wanted(2, workers=2))
    assert taken_in(machine, views(7, PLAN, OTHER), *MOVED[:-1]) == []
    actions = machine.step(MOVED[-1])
    assert outcomes(actions) == [(1, "finished", 1)]
    taken = actions.index(PlansTaken(ticket=7))
    assert only(RescaleBegun, actions[:taken]) == []
    assert [begun.ticket for begun in only(RescaleBegun, actions[taken:])] == [2]


def test_a_rescale_that_has_waited_until_the_last_view_is_dropped_is_refused_at_once() -> None:
    machine = coordinator(*UP, wanted(2, workers=2), views(7))
    answers = [outcome for event in MOVED for outcome in outcomes(machine.step(event))]
    assert sorted(answers) == [(1, "finished", 1), (2, "refused", 0)]


def test_workers_that_a_restart_has_added_are_told_of_flows_that_come_and_go() -> None:
    machine = coordinator(*BOTH, wanted(1, workers=3, strategy=Strategy.RESTART), came(2, 3))
    for incarnation in (1, 2):
        machine.step(said(incarnation, StartedAnew(generation=1)))
    assert listeners(Assign, machine.step(views(7, PLAN, OTHER))) == [1, 2, 3]
    assert listeners(DropFlow, machine.step(views(8, PLAN))) == [1, 2, 3]


def test_a_partial_view_that_is_added_is_served_at_once() -> None:
    """It begins with the last epoch, and no message follows."""
    machine = coordinator(*THROUGH_1)
    actions = machine.step(views(7, PLAN, replace(OTHER, full_because=None), epochs=1))
    (_, built) = machine.cluster
    assert only(EpochEnded, actions) == [EpochEnded(flow=built.id, epoch=Epoch(1))]
    assert not built.is_building


def test_flows_change_between_rescales_without_the_rule_they_change_while_keys_move() -> None:
    machine = coordinator(*UP, rules=Rules(flows_change_between_rescales=False))
    assert taken_in(machine, views(7, PLAN, OTHER)) == [7]


def test_a_segment_that_comes_while_views_wait_to_change_is_read_as_one_then() -> None:
    """Its epochs may be removed as soon as none needs them apart, and the request names them so."""
    machine = coordinator(*BOTH, *(published(epoch) for epoch in (1, 2, 3)), *UP[2:])
    machine.step(views(7, PLAN, OTHER, epochs=3))
    machine.step(SegmentPublished(epoch=Epoch(2), after=Epoch(0), rows={CHANNEL: 0}))
    read = [finished(who, epoch) for who in (1, 2, 3) for epoch in (1, 2, 3)]
    assert taken_in(machine, *read, *MOVED) == [7]
    (_, built) = machine.cluster
    assert built.ledger.epochs.between(Epoch(0), Epoch(9)) == [2, 3]


def test_a_scan_of_a_view_that_is_dropped_fails_and_one_of_an_unknown_view_too() -> None:
    machine = coordinator(*BOTH, scan(5))
    assert failures(machine.step(views(7, OTHER))) == {5: WorkerLost}
    assert failures(machine.step(scan(6))) == {6: UnknownView}


def test_an_eviction_of_a_view_that_is_dropped_is_over() -> None:
    machine = coordinator(*BOTH, EvictWanted(ticket=3, view="rows", keys=None))
    actions = machine.step(views(7, OTHER))
    assert EvictionOver(ticket=3) in actions, "no message follows the change"
    assert EvictionOver(ticket=4) in machine.step(EvictWanted(ticket=4, view="rows", keys=None))


def test_a_rescale_when_there_is_no_view_any_more_is_refused() -> None:
    machine = coordinator(*BOTH, published(1), views(7))
    assert outcomes(machine.step(wanted(2, workers=3))) == [(2, "refused", 0)]


def test_where_a_worker_is_lost_only_flows_that_exchange_rows_begin_anew() -> None:
    machine = coordinator(*BOTH, plans=(PLAN, STAGED))
    meet_all(machine)
    machine.step(published(1))
    machine.step(gone(2))
    assert machine.of_shares(came(1, 3), Assign) == [(1, 3), (2, 1), (2, 3)]
    assert [flow.generation.number for flow in machine.cluster] == [0, 1]


def meet_all(machine: Recorded) -> None:
    """All workers have met, as soon as they are told to."""
    for incarnation in (1, 2):
        machine.step(met(incarnation))


def test_no_row_is_sent_to_a_share_that_has_not_begun() -> None:
    machine = coordinator(*THROUGH_1)
    machine.step(views(7, PLAN, STAGED, epochs=1))
    assert machine.of_shares(met(1), OpenEpoch) == machine.of_shares(met(2), OpenEpoch) == []
    assert machine.of_shares(anew(1, 0, flow=2), OpenEpoch) == []
    assert machine.of_shares(anew(2, 0, flow=2), OpenEpoch) == [(2, 1), (2, 2)]


def test_a_view_that_has_failed_holds_no_other_up() -> None:
    machine = coordinator(*BOTH, published(1), plans=(PLAN, OTHER))
    machine.step(said(1, ViewFailed(view="other", failure=ROW_FAILED), flow=2))
    assert ended(machine, finished(1, 1), finished(2, 1)) == [(1, 1)]
    assert machine.cluster.ended == 1


def rescaled_to(*events: CoordinatorEvent) -> Recorded:
    """Worker 2, incarnation 3, joins while a view is built that has read nothing yet."""
    built = [*THROUGH_1, views(7, PLAN, OTHER, epochs=1)]
    return coordinator(*built, wanted(1, workers=3), came(2, 3), met(1), met(2), met(3), *events)


def test_a_rescale_does_not_wait_for_a_view_that_is_built_and_that_begins_anew_by_the_new_map() -> None:
    machine = rescaled_to()
    assert machine.of_shares(published(2), OpenEpoch) == [(1, 1), (1, 2), (1, 3)], "nothing is read for a while"
    for event in (*(finished(who, 2) for who in (1, 2, 3)), moved(2, 3), settled(1), settled(2)):
        machine.step(event)
    actions = machine.step(settled(3))
    assert outcomes(actions) == [(1, "finished", 1)]
    assert [(a.worker, a.generation, a.maps["other"].version) for a in only(Assign, actions)] == [
        (worker, 1, 1) for worker in (0, 1, 2)
    ]
    assert len({vnode_map.owners for vnode_map in machine.cluster.maps.values()}) == 1


def test_a_rescale_that_is_aborted_before_keys_move_lets_it_go_on() -> None:
    machine = coordinator(
        *THROUGH_1, published(2), views(7, PLAN, OTHER, epochs=1), wanted(1, workers=1), met(1), met(2)
    )
    assert machine.of_shares(published(3), OpenEpoch) == []
    actions = machine.step(abort(1))
    assert (outcomes(actions), only(Assign, actions)) == ([(1, "aborted", 0)], [])
    assert len(only(OpenEpoch, actions)) > 0


def test_a_flow_that_does_not_drain_in_time_begins_anew_by_the_new_map() -> None:
    events = [*BOTH, published(1), finished(1, 1), finished(2, 1), wanted(1, workers=3), came(2, 3)]
    machine = coordinator(*events, finished(3, 1), met(1), met(2), met(3), plans=(PLAN, OTHER))
    assert only(MigrationOrder, machine.step(published(2))) == []
    assert {order.region for order in only(MigrationOrder, machine.step(DrainOverdue(ticket=1)))} == {"rows"}
    events = [*(finished(who, 2) for who in (1, 2, 3)), *MOVED]
    actions = [action for event in events for action in machine.step(event)]
    assert outcomes(actions) == [(1, "finished", 1)]
    assert [(assign.plans, assign.generation) for assign in only(Assign, actions)] == [((OTHER,), 1)] * 3


def test_two_views_are_built_at_a_time() -> None:
    more = [planned(name) for name in ("a", "b", "c")]
    machine = coordinator(*THROUGH_1)
    assert machine.of_shares(views(7, PLAN, *more, epochs=1), OpenEpoch) == [(2, 1), (2, 2), (3, 1), (3, 2)]
    for event in (*BEGUN, finished(1, 1, flow=2, view="a")):
        machine.step(event)
    assert machine.of_shares(finished(2, 1, flow=2, view="a"), OpenEpoch) == [(4, 1), (4, 2)]


def test_what_a_share_cannot_have_said_is_its_workers_fault() -> None:
    machine = coordinator(*BOTH, rules=Rules(workers_faults_are_theirs=False))
    with pytest.raises(ProtocolError, match="reports epoch 5"):
        machine.step(finished(1, 5))


# flows.fail_when_deadly


def deaths(epochs: Sequence[int], worker: int = 0, first: int = 3, flow: int = 1) -> list[CoordinatorEvent]:
    """The process in this place dies in a step of the flow at each of these epochs. first: the incarnation of the first
    process that comes after a death; the one before has died in the first step."""
    lost = [worker + 1, *range(first, first + len(epochs))]
    events: list[CoordinatorEvent] = []
    for n, epoch in enumerate(epochs):
        events += [gone(lost[n]), came(worker, lost[n + 1], FlowStep(FlowId(flow), Epoch(epoch)))]
    return events


def two_flows(*events: CoordinatorEvent, rules: Rules = ALL_RULES) -> Recorded:
    """Two flows, of whose first epoch nothing is finished."""
    return coordinator(*BOTH, published(1), *events, plans=(PLAN, OTHER), rules=rules)


def test_flows_fail_when_deadly_a_flow_fails_alone_when_a_process_has_not_survived_an_epoch_so_often() -> None:
    *before, last = deaths([1] * DEATHS_MAX)
    machine = two_flows(*before)
    assert machine.cluster.failed == {}
    actions = machine.step(last)
    (told,) = only(FailView, actions)
    failure = machine.cluster.failed["rows"]
    assert (told.view, told.failure, [*machine.cluster.failed]) == ("rows", failure, ["rows"])
    said = "view 'rows': the process of worker 0 has died 3 times running while it computed the view at epoch 1"
    assert (failure.kind, failure.error.startswith(said)) == ("ViewCrashed", True)
    assert [[*assign.failed] for assign in only(Assign, actions)] == [["rows"], []]
    assert ended(machine, finished(2, 1, flow=2, view="other"), finished(5, 1, flow=2, view="other")) == [(2, 1)]


def test_flows_fail_when_deadly_switched_off_it_goes_on_for_ever() -> None:
    machine = two_flows(*deaths([1] * 9), rules=replace(ALL_RULES, flows_fail_when_deadly=False))
    assert machine.cluster.failed == {}


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([*deaths([1, 1]), *deaths([1, 1], worker=1, first=7)], id="in several places"),
        pytest.param([*deaths([1, 1], flow=1), gone(4), came(0, 5, FlowStep(FlowId(2), Epoch(1)))], id="of two flows"),
        pytest.param(deaths([1, 1, 2, 1, 1]), id="at several epochs"),
        pytest.param([*deaths([1, 1]), gone(4), came(0, 5), gone(5), came(0, 6)], id="outside of a step"),
        pytest.param(deaths([1] * 9, flow=7), id="of a flow that is gone"),
    ],
)
def test_other_deaths_do_not_count(events: list[CoordinatorEvent]) -> None:
    assert two_flows(*events).cluster.failed == {}


def test_deaths_at_an_epoch_that_every_share_has_finished_since_are_forgotten() -> None:
    machine = two_flows(*deaths([1, 1]), finished(2, 1), finished(4, 1), gone(4))
    machine.step(came(0, 5, FlowStep(FlowId(1), Epoch(1))))
    assert machine.cluster.failed == {}


def test_a_share_that_is_not_through_the_epoch_forgets_no_deaths() -> None:
    machine = two_flows(*deaths([1, 1]), finished(2, 1), gone(4))
    machine.step(came(0, 5, FlowStep(FlowId(1), Epoch(1))))
    assert [*machine.cluster.failed] == ["rows"]


def test_a_view_that_was_deadly_may_be_dropped_and_declared_again() -> None:
    machine = two_flows(*deaths([1] * DEATHS_MAX))
    assert taken_in(machine, views(8, OTHER, epochs=1), views(9, OTHER, PLAN, epochs=1)) == [8, 9]
    assert machine.cluster.failed == {}
    assert [plan.name for plan in machine.plans] == ["other", "rows"]
