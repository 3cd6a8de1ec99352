"""A view that cannot be computed fails alone, at every worker, and its lookups say why;
``docs/internals/failures.md``."""

from dataclasses import replace
from typing import Any

import coordinator_kit as driver
import numpy as np
import pytest
from coordinator_kit import BOTH, coordinator, failures, finished, gone, listeners, only, published, scan, wanted
from graphs_kit import reading_of
from machines_kit import (
    ALL_MINE,
    FLOW,
    HALVES,
    KEYS,
    PLAN,
    Seen,
    announce,
    answered,
    asked,
    assign,
    batch,
    meet,
    opened,
    owners_with,
    planned,
    read,
    refused,
    reports,
    rows,
    said,
    sent,
    take,
    vnode_map,
    worker,
)

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.errors import DeclarationError, ProtocolError, RowError, UnknownView
from upriver.ids import Epoch, MapVersion
from upriver.migration.messages import Acquire
from upriver.plan.plan import SendEdge
from upriver.protocol import messages
from upriver.protocol.coordinator_events import PlansWanted, PublishCheckpoint
from upriver.protocol.peers import FailedHere, ForRegion
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.strategies import Strategy
from upriver.protocol.worker_events import PeersMet, Refuse
from upriver.state.checkpoint import Checkpoint, FoundCheckpoints
from upriver.state.failure import ERROR_CHARS_MAX, ViewFailure
from upriver.worker.failed_region import FailedRegion
from upriver.worker.share import FlowShare

FAILURE = ViewFailure(kind="RowError", error="view 'seen', epoch 1: overflow")
OTHER = planned("other")
TWO: dict[str, Any] = {"plans": (PLAN, OTHER), "maps": {name: vnode_map(ALL_MINE) for name in ("seen", "other")}}


FEEDING = replace(PLAN, feeds=(SendEdge("reader", 0, ("k",)),))
READER = reading_of(planned("reader"), "seen")
FLOW_OF_TWO: dict[str, Any] = {
    "plans": (FEEDING, READER),
    "maps": {name: vnode_map(ALL_MINE) for name in ("seen", "reader")},
}
"""The second plan is computed from the first one's rows."""


def bad(epoch: int, *keys: str) -> Any:
    return replace(rows(99, *keys), epoch=Epoch(epoch))


class Broken(Seen):
    """A region with a fault of ours."""

    def apply(self, port: int, batch: Any) -> None:
        raise ZeroDivisionError("by nought")


# At a worker --------------------------------------------------------------------------------------------------------


def test_the_epoch_ends_with_all_its_rows_counted() -> None:
    machine = worker(assign(), opened(1), bad(1, "a", "b"))
    (report,) = reports(machine.step(read(1, 2)), messages.EpochFinished)
    assert (report.applied, report.stats["seen"]["keys"]) == ({"seen": 2}, 0)


def test_another_view_over_the_same_rows_goes_on() -> None:
    machine = FlowShare(FLOW, lambda plan, _: Broken() if plan.name == "seen" else Seen())
    machine.step(assign(**TWO))
    machine.step(opened(1))
    (failed,) = reports(machine.step(rows(1, "a")), messages.ViewFailed)
    assert failed == messages.ViewFailed(
        view="seen",
        failure=ViewFailure(kind="ProtocolError", error="view 'seen', epoch 1: ZeroDivisionError: by nought"),
    )
    machine.step(read(1, 1))
    assert answered(machine.step(asked("a", ticket=2, view="other"))) == {2: ({"a": [1]}, 1)}
    assert refused(machine.step(asked("a"))) == {1: ProtocolError}


def test_what_reads_a_failed_one_fails_too() -> None:
    machine = FlowShare(FLOW, lambda plan, _: Broken() if plan.name == "seen" else Seen())
    machine.step(assign(**FLOW_OF_TWO))
    machine.step(opened(1))
    failed = reports(machine.step(rows(1, "a")), messages.ViewFailed)
    assert [each.view for each in failed] == ["seen", "reader"]
    assert failed[1].failure.error.startswith("view 'reader' reads 'seen', which has failed: view 'seen', epoch 1")
    assert refused(machine.step(asked("a", view="reader"))) == {1: ProtocolError}


def test_one_that_is_read_goes_on_without_its_reader() -> None:
    machine = worker(assign(**FLOW_OF_TWO), messages.FailView(view="reader", failure=ViewFailure.dropped("reader")))
    for event in (opened(1), rows(1, "a")):
        assert reports(machine.step(event), messages.ViewFailed) == []
    assert refused(machine.step(asked("a", view="reader"))) == {1: UnknownView}


def test_views_fail_readers_without_the_rule_a_reader_goes_on_with_what_it_has() -> None:
    machine = worker(assign(**FLOW_OF_TWO), rules=Rules(views_fail_readers=False))
    machine.step(opened(1))
    machine.step(bad(1, "a"))
    assert [each.view for each in reports(machine.step(read(1, 1)), messages.ViewFailed)] == []
    assert refused(machine.step(asked("a"))) == {1: RowError}
    assert answered(machine.step(asked("a", ticket=2, view="reader"))) == {2: ({}, 1)}
    coordinator_of_both = CoordinatorMachine(driver.vnode_map(), (*DRIVEN,), Rules(views_fail_readers=False))
    for event in [*BOTH, FAILED]:
        coordinator_of_both.step(event)
    assert coordinator_of_both.cluster.failed.keys() == {"rows"}


class Lost(Seen):
    """A region that cannot find its keys when they are to move or to go."""

    def keys_of(self, vnode: int, vnodes: int) -> Any:
        raise LookupError("no index")


def test_a_region_that_cannot_find_its_keys_fails_as_they_move_and_they_move_on() -> None:
    machine = FlowShare(FLOW, lambda *_: Lost())
    for event in (assign(HALVES), meet(0, 1), PeersMet(meeting=1)):
        machine.step(event)
    actions = machine.step(announce(HALVES, owners_with(HALVES, v3=1)))
    (failed,) = reports(actions, messages.ViewFailed)
    assert failed.failure.error == "view 'seen', keeping its keys: LookupError: no index"
    assert refused(machine.step(asked(KEYS[0][0]))) == {1: ProtocolError}


def test_a_view_whose_region_cannot_be_made_fails_at_once() -> None:
    def build(plan: Any, _: Any) -> Seen:
        if plan.name == "seen":
            raise DeclarationError("no module 'shop'")
        return Seen()

    machine = FlowShare(FLOW, build)
    (failed,) = reports(machine.step(assign(**TWO)), messages.ViewFailed)
    assert failed.failure == ViewFailure(kind="DeclarationError", error="view 'seen': no module 'shop'")
    assert refused(machine.step(asked("a"))) == {1: DeclarationError}


def test_lookups_that_wait_are_refused_with_the_error_and_later_ones_at_once() -> None:
    machine = worker(assign(), asked("a", at_least=5))
    actions = machine.step(messages.FailView(view="seen", failure=FAILURE))
    assert refused(actions) == {1: RowError}
    assert reports(actions) == []
    assert refused(machine.step(asked("a", ticket=2, at_least=9))) == {2: RowError}


def test_what_the_coordinator_says_is_the_cause() -> None:
    machine = worker(assign(), opened(1), bad(1, "a"))
    other = replace(FAILURE, error="view 'seen', epoch 1: overflow elsewhere")
    machine.step(messages.FailView(view="seen", failure=other))
    (refusal,) = machine.step(asked("a"))
    assert isinstance(refusal, Refuse)
    assert str(refusal.error) == other.error


def test_a_snapshot_of_it_cannot_be_had() -> None:
    machine = worker(assign(failed={"seen": FAILURE}))
    (not_taken,) = reports(machine.step(take(1, at=0)), messages.SnapshotNotTaken)
    assert FAILURE.error in not_taken.error


def test_a_worker_that_is_told_so_at_first_keeps_nothing_and_counts_on() -> None:
    machine = worker(assign(failed={"seen": FAILURE}), opened(1), rows(1, "a"))
    (report,) = reports(machine.step(read(1, 1)), messages.EpochFinished)
    assert (report.applied, report.stats["seen"]["keys"]) == ({"seen": 1}, 0)


def test_a_long_error_is_cut() -> None:
    failure = ViewFailure.of(RowError("x" * 3 * ERROR_CHARS_MAX), "view 'v'")
    assert len(failure.error) < ERROR_CHARS_MAX + 50


def test_rows_that_are_exchanged_are_counted_until_their_stage() -> None:
    empty = Seen()
    region = FailedRegion(FAILURE, gathered=2, exchange_ports=[1], build=lambda: empty)
    region.apply(0, batch(1, "a"))
    region.apply(1, batch(1, "b", "c"))
    assert (region.gathered, region.unsettled) == (4, 4)
    assert (region.settle(1), region.gathered, list(region.drain(1))) == (4, 0, [])


# Among workers ------------------------------------------------------------------------------------------------------


def with_a_peer(rules: Rules = ALL_RULES) -> FlowShare:
    return worker(assign(HALVES), meet(0, 1), PeersMet(meeting=1), opened(1), rules=rules)


def test_peers_are_told_ahead_of_all_else_that_a_step_says() -> None:
    machine = with_a_peer()
    actions = machine.step(bad(1, KEYS[0][0]))
    assert [type(action).__name__ for action in actions][:2] == ["Report", "SendPeer"]
    assert sent(actions) == [(1, FailedHere(view="seen", failure=FAILURE))]


def test_without_the_rule_a_peer_goes_on_until_the_coordinator_says_so() -> None:
    """It would take over what it has copied of a view that has failed, and show it, if that is not all."""
    assert sent(with_a_peer(Rules(views_fail_ahead=False)).step(bad(1, KEYS[0][0]))) == []


def test_a_peer_fails_the_view_too_and_says_so() -> None:
    machine = with_a_peer()
    actions = machine.step(said(1, FailedHere(view="seen", failure=FAILURE)))
    assert reports(actions) == [messages.ViewFailed(view="seen", failure=FAILURE)]
    assert refused(machine.step(asked(KEYS[0][0]))) == {1: RowError}
    assert machine.step(said(1, FailedHere(view="seen", failure=FAILURE))) == []


def test_keys_that_come_without_any_state_fail_the_view() -> None:
    keys = np.array([1], np.uint64)
    load = ForRegion(region="seen", message=Acquire(version=MapVersion(1), keys=keys, state=()))
    machine = worker(assign(HALVES, me=1), meet(0, 1), PeersMet(meeting=1))
    machine.step(announce(HALVES, owners_with(HALVES, v3=1)))
    (failed,) = reports(machine.step(said(0, load)), messages.ViewFailed)
    assert failed.view == "seen"


# At the coordinator -------------------------------------------------------------------------------------------------

DRIVEN = (replace(driver.PLAN, feeds=(SendEdge("reader", 0, ("k",)),)), reading_of(driver.planned("reader"), "rows"))
ROWS_FAILED = ViewFailure(kind="RowError", error="overflow in view rows")
FAILED = driver.said(2, messages.ViewFailed(view="rows", failure=ROWS_FAILED))


def test_all_workers_are_told_and_the_first_cause_counts() -> None:
    machine = coordinator(*BOTH)
    assert listeners(messages.FailView, machine.step(FAILED)) == [1, 2]
    assert machine.step(driver.said(1, messages.ViewFailed(view="rows", failure=FAILURE))) == []
    assert machine.cluster.failed == {"rows": ROWS_FAILED}


def test_epochs_end_all_the_same() -> None:
    machine = coordinator(*BOTH, published(1, rows=2), FAILED, finished(1, 1, applied=1))
    assert driver.ended(1)[0] in machine.step(finished(2, 1, applied=1))


def test_a_worker_that_comes_later_is_told_with_its_assignment() -> None:
    machine = coordinator(*BOTH, FAILED, gone(2))
    (assigned,) = only(messages.Assign, machine.step(driver.came(1, 3)))
    assert assigned.failed == {"rows": ROWS_FAILED}


def test_a_scan_of_it_fails_at_once_with_the_error() -> None:
    assert failures(coordinator(*BOTH, FAILED).step(scan(1))) == {1: RowError}


def test_a_view_that_is_declared_otherwise_begins_anew_and_one_that_is_not_stays_failed() -> None:
    other = driver.planned("other")
    machine = coordinator(*BOTH, FAILED, plans=(driver.PLAN, other))
    machine.step(PlansWanted(ticket=1, plans=(driver.PLAN,), epochs=()))
    assert machine.cluster.failed == {"rows": ROWS_FAILED}
    corrected = replace(driver.PLAN, sql="SELECT j")
    machine.step(PlansWanted(ticket=2, plans=(corrected,), epochs=()))
    assert machine.cluster.failed == {}


def test_what_failed_of_a_view_that_was_dropped_concerns_no_view_of_now() -> None:
    corrected = replace(driver.PLAN, sql="SELECT j")
    machine = coordinator(*BOTH, PlansWanted(ticket=1, plans=(corrected,), epochs=()))
    machine.step(FAILED)
    assert machine.cluster.failed == {}
    machine.step(driver.anew(2, 0, flow=2))
    machine.step(driver.said(2, messages.ViewFailed(view="rows", failure=ROWS_FAILED), flow=2))
    assert machine.cluster.failed == {"rows": ROWS_FAILED}


def test_what_reads_a_failed_one_fails_at_every_worker() -> None:
    machine = coordinator(*BOTH, plans=DRIVEN)
    actions = machine.step(FAILED)
    assert {(each.view, each.failure) for each in only(messages.FailView, actions)} == {
        ("rows", ROWS_FAILED),
        ("reader", ROWS_FAILED.of_reader("reader", "rows")),
    }
    assert machine.cluster.failed.keys() == {"rows", "reader"}


def test_a_reader_is_dropped_and_what_it_reads_stays() -> None:
    machine = coordinator(*BOTH, plans=DRIVEN)
    first, reader = machine.cluster.plans
    actions = machine.step(PlansWanted(ticket=1, plans=(first,), epochs=()))
    assert only(messages.DropFlow, actions) == []
    assert {each.view for each in only(messages.FailView, actions)} == {"reader"}
    assert (machine.cluster.plans, machine.cluster.failed) == ((first,), {})
    assert machine.cluster.flow_of("reader") is None
    assert [flow.plans for flow in machine.cluster] == [(first, reader)]
    again = machine.step(PlansWanted(ticket=2, plans=(first, driver.planned("reader")), epochs=()))
    assert [assigned.plans[0].name for assigned in only(messages.Assign, again)] == ["reader", "reader"]
    assert machine.cluster.flow_of("reader") is not machine.cluster.flow_of("rows")
    gone = machine.step(PlansWanted(ticket=3, plans=(), epochs=()))
    assert len(only(messages.DropFlow, gone)) == 4


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_rescale_goes_on(strategy: Any) -> None:
    machine = coordinator(*BOTH, FAILED)
    machine.step(wanted(1, workers=3, strategy=strategy))
    (assigned, *_) = only(messages.Assign, machine.step(driver.came(2, 3)))
    assert assigned.failed == {"rows": ROWS_FAILED}


def test_a_checkpoint_names_it_and_a_driver_that_begins_with_that_knows_it() -> None:
    machine = CoordinatorMachine(driver.vnode_map(), (driver.PLAN,), checkpoints={}, checkpoint_epochs=1)
    for event in [*BOTH, published(1, rows=0), finished(1, 1), FAILED]:
        machine.step(event)
    actions = driver.unwrapped(machine.step(finished(2, 1)))
    (ask, _) = only(messages.TakeCheckpoint, actions)
    machine.step(driver.said(1, messages.CheckpointWritten(checkpoint=ask.checkpoint, files=())))
    (publish,) = only(
        PublishCheckpoint, machine.step(driver.said(2, messages.CheckpointWritten(checkpoint=ask.checkpoint, files=())))
    )
    assert publish.failed == {"rows": ROWS_FAILED}
    found = Checkpoint(epoch=Epoch(1), base=None, regions={}, files=(), failed={**publish.failed, "gone": FAILURE})
    begins = {"rows": FoundCheckpoints(None, (found,))}
    again = CoordinatorMachine(driver.vnode_map(), (driver.PLAN,), checkpoints=begins)
    assert again.cluster.failed == {"rows": ROWS_FAILED}
