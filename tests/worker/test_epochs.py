"""The worker machine's epochs: rules worker.each_epoch_once, worker.counts_match and worker.wait_until_over of
docs/internals/epochs.md and docs/internals/rescale.md."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from machines_kit import (
    CHANNEL,
    HALVES,
    KEYS,
    PLAN,
    answered,
    applied,
    asked,
    assign,
    finished,
    meet,
    opened,
    over,
    planned,
    read,
    reading,
    reports,
    rows,
    rows_from,
    sent,
    vnode_map,
    worker,
)

from upriver.errors import ProtocolError
from upriver.ids import Channel, Epoch, VnodeId
from upriver.migration.messages import RowsSent
from upriver.protocol.messages import EpochFinished, ReadVnodes, RowsApplied, ViewFailed
from upriver.protocol.peers import Portion
from upriver.protocol.worker_events import EpochRead, ReadEpoch, Report, ShareEvent
from upriver.state.failure import ViewFailure

MINE, ALSO_MINE, THEIRS = KEYS[0][0], KEYS[1][0], KEYS[7][0]
"""By the map HALVES, seen from worker 0."""


def test_an_epoch_is_read_applied_and_reported() -> None:
    machine = worker(assign())
    assert machine.step(opened(1)) == [reading(1)]
    assert machine.step(rows(1, "a", "b")) == []
    assert machine.step(rows(1, "b")) == []
    assert machine.step(read(1, 3)) == [Report(message=finished(1, read=3, applied=3, keys=2, total=3))]


def test_an_epoch_without_rows_is_reported_too() -> None:
    machine = worker(assign(), opened(1), rows(1))
    assert reports(machine.step(read(1, 0))) == [finished(1, read=0, applied=0, keys=0, total=0)]


def test_rows_reach_every_view_that_their_channel_feeds() -> None:
    twins = assign(plans=(PLAN, planned(name="twin")), maps=dict.fromkeys(("seen", "twin"), vnode_map([0] * 8)))
    machine = worker(twins, *applied("ab"))
    for view in ("seen", "twin"):
        assert answered(machine.step(asked("a", view=view))) == {1: ({"a": [1]}, 1)}


def test_each_channel_is_read_once_and_counted_by_itself() -> None:
    elsewhere = planned(name="elsewhere", key="e")
    two = assign(plans=(PLAN, elsewhere), maps=dict.fromkeys(("seen", "elsewhere"), vnode_map([0] * 8)))
    machine = worker(two, opened(1), rows(1, "a"), rows(1, "b", "c", channel="t/e"))
    promised = {CHANNEL: 1, Channel("t/e"): 2}
    (report,) = reports(machine.step(replace(read(1, 0), promised=promised)))
    assert isinstance(report, EpochFinished)
    assert (report.read, report.applied) == (promised, {"seen": 1, "elsewhere": 2})


def test_worker_each_epoch_once_the_next_epoch_is_read_when_the_one_before_is_applied() -> None:
    machine = worker(assign(), opened(1))
    assert machine.step(opened(2)) == []
    assert machine.step(read(1, 0))[-1] == reading(2)


@pytest.mark.parametrize("already", [[opened(1)], [opened(1), opened(2)], applied("a"), applied("a", "b")])
def test_worker_each_epoch_once_an_epoch_opened_twice_is_applied_once(already: Sequence[ShareEvent]) -> None:
    machine, undisturbed = worker(assign(), *already), worker(assign(), *already)
    assert machine.step(opened(1)) == []
    following = [opened(epoch) for epoch in (1, 2, 3)]
    assert [machine.step(event) for event in following] == [undisturbed.step(event) for event in following]


@pytest.mark.parametrize("already", [[], applied("a"), [opened(1), opened(2)]])
def test_worker_each_epoch_once_a_gap_between_epochs_is_a_fault(already: Sequence[ShareEvent]) -> None:
    with pytest.raises(ProtocolError, match="epoch 4 was opened after"):
        worker(assign(), *already).step(opened(4))


@pytest.mark.parametrize("promised", [0, 1, 3])
def test_worker_counts_match_more_or_fewer_rows_than_promised_fail_the_views_that_read_them(promised: int) -> None:
    elsewhere = planned("other", "e")
    machine = worker(assign(plans=(PLAN, elsewhere), maps=dict.fromkeys(("seen", "other"), vnode_map([0] * 8))))
    machine.step(opened(1))
    machine.step(rows(1, "a", "b"))
    (channel,) = elsewhere.channels
    (failed, end) = reports(machine.step(EpochRead(epoch=Epoch(1), promised={CHANNEL: promised, channel: 0})))
    told = f"view 'seen', reading the lake: epoch 1: {promised} rows of t/k are in the lake, and 2 came"
    assert failed == ViewFailed(view="seen", failure=ViewFailure(kind="ProtocolError", error=told))
    assert isinstance(end, EpochFinished)


def test_worker_counts_match_counts_the_rows_read_here_wherever_they_are_applied() -> None:
    machine = worker(assign(HALVES), meet(0, 1), opened(1, mixed=True), rows(1, MINE, THEIRS))
    assert reports(machine.step(read(1, 2))) == [finished(1, read=2, applied=1, keys=1, total=1)]


def test_rows_of_a_key_that_is_kept_elsewhere_go_to_their_peer() -> None:
    machine = worker(assign(HALVES), meet(0, 1), opened(1, mixed=True))
    ((to, message),) = sent(machine.step(rows(1, MINE, THEIRS)))
    assert isinstance(message, RowsSent)
    assert isinstance(message.rows, Portion)
    assert (to, message.rows.epoch, message.rows.batch.rows.column("k").to_pylist()) == (1, 1, [THEIRS])


def test_rows_from_a_peer_count_for_the_epoch_that_is_not_finished_here() -> None:
    machine = worker(assign(HALVES), meet(0, 1), opened(1, mixed=True))
    assert not reports(machine.step(rows_from(1, 1, MINE)), RowsApplied)
    machine.step(rows(1, MINE))
    assert reports(machine.step(read(1, 1))) == [finished(1, read=1, applied=2, keys=1, total=2)]


def test_rows_of_an_epoch_that_has_not_been_opened_here_count_when_it_is() -> None:
    machine = worker(assign(HALVES), meet(0, 1), rows_from(1, 1, MINE), opened(1, mixed=True))
    assert reports(machine.step(read(1, 0))) == [finished(1, read=0, applied=1, keys=1, total=1)]


def test_rows_that_come_after_their_epoch_is_finished_here_are_told_at_once() -> None:
    machine = worker(assign(HALVES), meet(0, 1), opened(1, mixed=True), read(1, 0))
    late = reports(machine.step(rows_from(1, 1, MINE, ALSO_MINE)), RowsApplied)
    assert late == [RowsApplied(epoch=opened(1).epoch, applied={"seen": 2})]
    again = reports(machine.step(rows_from(1, 1, MINE)), RowsApplied)
    assert again == [RowsApplied(epoch=opened(1).epoch, applied={"seen": 3})]


def test_worker_wait_until_over_a_mixed_epoch_is_reflected_when_it_is_over_everywhere() -> None:
    machine = worker(assign(HALVES), meet(0, 1), opened(1, mixed=True), rows(1, MINE), asked(MINE, at_least=1))
    assert answered(machine.step(read(1, 1))) == {}
    machine.step(rows_from(1, 1, MINE))
    assert answered(machine.step(over(1))) == {1: ({MINE: [1, 1]}, 1)}


def test_worker_wait_until_over_a_lookup_that_asks_for_an_epoch_before_does_not_wait_for_a_mixed_one() -> None:
    machine = worker(assign(HALVES), meet(0, 1), opened(1, mixed=True), rows(1, MINE), read(1, 1))
    assert answered(machine.step(asked(MINE))) == {1: ({MINE: [1]}, 0)}


def test_an_epoch_that_is_not_mixed_is_reflected_when_it_is_read() -> None:
    machine = worker(assign(), opened(1), asked("a", at_least=1))
    assert answered(machine.step(read(1, 0))) == {1: ({}, 1)}


def test_other_vnodes_are_read_from_the_next_epoch_on_that_is_opened() -> None:
    machine = worker(assign(HALVES), opened(1), opened(2))
    assert machine.step(ReadVnodes(vnodes=(VnodeId(7),))) == []
    begun = [action for epoch in (1, 2) for action in machine.step(read(epoch, 0)) if isinstance(action, ReadEpoch)]
    assert begun == [reading(2, range(4))]
    of_another = replace(reading(3, [7]), in_parts=frozenset())  # it keeps the keys
    assert machine.step(opened(3)) == [of_another]
