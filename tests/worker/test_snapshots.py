"""The worker machine's parts of snapshots: rule worker.snapshot_at_cut of docs/internals/epochs.md."""

from collections.abc import Sequence

import pyarrow as pa
import pytest
from machines_kit import FLOW, SEEN, Seen, applied, assign, finished, opened, read, reading, reports, rows, take, worker

from upriver.errors import ProtocolError, RowError
from upriver.ids import SnapshotId
from upriver.protocol.messages import DropSnapshot, EpochFinished, SnapshotNotTaken, SnapshotTaken
from upriver.protocol.worker_events import ForgetSnapshot, HoldSnapshot, Report, ShareEvent
from upriver.worker.share import FlowShare


def test_worker_snapshot_at_cut_a_snapshot_is_taken_at_once_when_the_worker_stands_at_its_cut() -> None:
    machine = worker(assign(), *applied("ab"))
    part = pa.table({"k": ["a", "b"], "seen": [[1], [1]]}, schema=SEEN)
    expected = [
        HoldSnapshot(snapshot=SnapshotId(7), rows=part),
        Report(message=SnapshotTaken(snapshot=SnapshotId(7), rows=2)),
    ]
    assert machine.step(take(7, at=1)) == expected


def test_worker_snapshot_at_cut_a_snapshot_waits_for_its_cut_and_sees_nothing_of_the_next_epoch() -> None:
    machine = worker(assign(), opened(1), opened(2), rows(1, "a"))
    assert machine.step(take(7, at=1)) == []
    report, hold, taken, next_read = machine.step(read(1, 1))
    assert isinstance(hold, HoldSnapshot)
    assert hold.rows.to_pylist() == [{"k": "a", "seen": [1]}]
    assert [report, taken, next_read] == [
        Report(message=finished(1, read=1, applied=1, keys=1, total=1)),
        Report(message=SnapshotTaken(snapshot=SnapshotId(7), rows=1)),
        reading(2),
    ]


@pytest.mark.parametrize("already", [applied("a", "b"), [*applied("a"), opened(2), rows(2, "b"), read(2, 1)]])
def test_worker_snapshot_at_cut_a_cut_that_the_worker_has_passed_is_a_fault(already: Sequence[ShareEvent]) -> None:
    with pytest.raises(ProtocolError, match="the end of epoch 1 is asked for, and 2 is applied"):
        worker(assign(), *already).step(take(7, at=1))


def test_worker_snapshot_at_cut_a_cut_that_the_worker_is_just_leaving_is_a_fault_and_not_taken() -> None:
    machine = worker(assign(), *applied("a"), opened(2), rows(2, "b"))
    assert machine.step(take(7, at=1)) == []
    with pytest.raises(ProtocolError, match="the end of epoch 1 is asked for, and 2 is applied"):
        machine.step(read(2, 1))


def test_worker_snapshot_at_cut_cuts_go_back_when_the_foremost_worker_was_lost_and_each_is_taken_at_its_own() -> None:
    machine = worker(assign(), opened(1), opened(2), take(7, at=2), take(8, at=1))
    for epoch, snapshot in ((1, 8), (2, 7)):
        held = [action for action in machine.step(read(epoch, 0)) if isinstance(action, HoldSnapshot)]
        assert [action.snapshot for action in held] == [snapshot]


class Unreadable(Seen):
    """A view one of whose output expressions fails."""

    def scan(self) -> pa.Table:
        raise RowError("division by zero")


def test_a_view_that_cannot_be_read_fails_the_snapshot_and_not_the_worker() -> None:
    machine = FlowShare(FLOW, lambda *_: Unreadable())
    machine.step(assign())
    actions = machine.step(take(7, at=0))
    assert reports(actions) == [SnapshotNotTaken(snapshot=SnapshotId(7), error="view 'seen': division by zero")]
    assert HoldSnapshot not in map(type, actions)
    machine.step(opened(1))
    assert reports(machine.step(read(1, 0)), EpochFinished)  # all goes on


def test_a_snapshot_without_readers_is_not_taken() -> None:
    machine = worker(assign(), opened(1), take(7, at=1))
    assert machine.step(DropSnapshot(snapshot=SnapshotId(7))) == [ForgetSnapshot(snapshot=SnapshotId(7))]
    assert reports(machine.step(read(1, 0)), SnapshotTaken) == []


def test_a_snapshot_without_readers_is_forgotten() -> None:
    machine = worker(assign(), take(7, at=0))
    assert machine.step(DropSnapshot(snapshot=SnapshotId(7))) == [ForgetSnapshot(snapshot=SnapshotId(7))]
