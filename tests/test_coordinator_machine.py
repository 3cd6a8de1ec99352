"""The coordinator machine, one event at a time: rules C1 to C4 of docs/design/0001-river.md."""

from collections.abc import Iterable

import pyarrow as pa
import pytest

from upriver.dataflow.plan import Projection, ViewPlan
from upriver.errors import ProtocolError, UnknownView, WaitTimeout, WorkerLost
from upriver.ids import Channel, Epoch, Incarnation, MapVersion, SnapshotId, VnodeId, WorkerId
from upriver.machines.coordinator import (
    EPOCHS_AHEAD_MAX,
    SNAPSHOTS_HELD_MAX,
    AppFailed,
    CoordinatorAction,
    CoordinatorEvent,
    CoordinatorMachine,
    EpochEnded,
    EpochPublished,
    SnapshotAsked,
    SnapshotFailed,
    SnapshotReady,
    StopAsked,
    Tell,
    WorkerGone,
    WorkerRegistered,
    WorkerSaid,
)
from upriver.machines.messages import (
    Assign,
    DropSnapshot,
    EpochFinished,
    OpenEpoch,
    Retire,
    SnapshotTaken,
    TakeSnapshot,
    ToWorker,
    WorkerFailed,
)
from upriver.vnodes import VnodeMap

CHANNEL, FEEDS_NOTHING = Channel("t/k"), Channel("t/other")
ROWS = Projection(("k",), pa.schema([("k", pa.string())]))
PLAN = ViewPlan(
    name="rows",
    sql="SELECT k FROM t",
    table="t",
    index=("k",),
    key=("k",),
    filter=None,
    project=ROWS,
    aggregate=None,
    having=None,
    output=ROWS,
)
MAP = VnodeMap(MapVersion(0), tuple(map(WorkerId, [0, 1, 0, 1])))


def came(worker: int, incarnation: int) -> WorkerRegistered:
    return WorkerRegistered(worker=WorkerId(worker), incarnation=Incarnation(incarnation))


def gone(incarnation: int) -> WorkerGone:
    return WorkerGone(incarnation=Incarnation(incarnation))


def published(epoch: int, rows: int = 0) -> EpochPublished:
    return EpochPublished(epoch=Epoch(epoch), rows={CHANNEL: rows, FEEDS_NOTHING: rows})


def finished(incarnation: int, epoch: int, received: int = 0) -> WorkerSaid:
    message = EpochFinished(epoch=Epoch(epoch), received={CHANNEL: received}, stats={})
    return WorkerSaid(incarnation=Incarnation(incarnation), message=message)


def taken(incarnation: int, snapshot: int) -> WorkerSaid:
    message = SnapshotTaken(snapshot=SnapshotId(snapshot), rows=0)
    return WorkerSaid(incarnation=Incarnation(incarnation), message=message)


def scan(ticket: int, view: str = "rows") -> SnapshotAsked:
    return SnapshotAsked(ticket=ticket, view=view)


def tell(incarnation: int, message: ToWorker) -> Tell:
    return Tell(incarnation=Incarnation(incarnation), message=message)


def opened(incarnation: int, *epochs: int) -> list[Tell]:
    return [tell(incarnation, OpenEpoch(epoch=Epoch(epoch))) for epoch in epochs]


def take(incarnation: int, snapshot: int, at: int) -> Tell:
    return tell(incarnation, TakeSnapshot(snapshot=SnapshotId(snapshot), view="rows", at=Epoch(at)))


def ended(*epochs: int) -> list[EpochEnded]:
    return [EpochEnded(epoch=Epoch(epoch)) for epoch in epochs]


def coordinator(*events: CoordinatorEvent) -> CoordinatorMachine:
    """A machine of two workers, 0 and 1, that has lived through these events."""
    machine = CoordinatorMachine(MAP, (PLAN,))
    for event in events:
        machine.step(event)
    return machine


def only(kind: type[CoordinatorAction], actions: Iterable[CoordinatorAction]) -> list[CoordinatorAction]:
    return [action for action in actions if isinstance(action, kind)]


BOTH: list[CoordinatorEvent] = [came(0, 1), came(1, 2)]


def test_a_worker_that_comes_is_assigned_its_vnodes_and_all_epochs_so_far() -> None:
    machine = coordinator(published(1), published(2))
    vnodes = (VnodeId(1), VnodeId(3))
    assign = Assign(worker=WorkerId(1), vnodes_total=4, vnodes=vnodes, plans=(PLAN,), serve_from=Epoch(2))
    assert machine.step(came(1, 5)) == [tell(5, assign), *opened(5, 1, 2)]


def test_an_epoch_is_opened_for_all_who_are_there() -> None:
    assert coordinator(came(1, 7)).step(published(1)) == opened(7, 1)
    assert coordinator(*BOTH).step(published(1)) == [*opened(1, 1), *opened(2, 1)]


def test_epochs_are_published_without_gaps() -> None:
    for epoch in (1, 3):
        with pytest.raises(ProtocolError, match=f"epoch {epoch} was published after 1"):
            coordinator(published(1)).step(published(epoch))


def test_c1_an_epoch_ends_when_every_worker_has_finished_it() -> None:
    machine = coordinator(*BOTH, published(1, rows=3))
    assert machine.step(finished(2, 1, received=1)) == []
    assert machine.step(finished(1, 1, received=2)) == ended(1)


def test_c1_a_place_that_nobody_fills_holds_the_epoch() -> None:
    machine = coordinator(came(0, 1), published(1))
    assert machine.step(finished(1, 1)) == []
    machine.step(came(1, 2))
    assert machine.step(finished(2, 1)) == ended(1)


def test_c1_a_lost_worker_has_finished_nothing_and_its_successor_does_it_again() -> None:
    machine = coordinator(*BOTH, published(1, rows=3), finished(1, 1, received=2), gone(1))
    assert machine.step(finished(2, 1, received=1)) == []
    machine.step(came(0, 3))
    assert machine.step(finished(3, 1, received=2)) == ended(1)


def test_c1_an_epoch_that_has_ended_does_not_end_again() -> None:
    machine = coordinator(*BOTH, published(1), finished(1, 1), finished(2, 1), gone(1), came(0, 3))
    assert machine.step(finished(3, 1)) == []


def test_c1_nothing_is_kept_of_epochs_that_have_ended() -> None:
    machine = coordinator(*BOTH, published(1), finished(1, 1), finished(2, 1), gone(1), came(0, 3), finished(3, 1))
    assert (machine._promised, machine._received) == ({}, {})


def test_c1_epochs_end_in_order() -> None:
    machine = coordinator(*BOTH, published(1), published(2), finished(2, 1), finished(2, 2))
    assert machine.step(finished(1, 1)) == ended(1)
    assert machine.step(finished(1, 2)) == ended(2)
    assert machine.ended == 2


@pytest.mark.parametrize("received", [0, 1, 3])
def test_c1_rows_that_went_in_and_did_not_come_out_fail_the_app(received: int) -> None:
    machine = coordinator(*BOTH, published(1, rows=2), finished(1, 1, received=0))
    (failed,) = machine.step(finished(2, 1, received=received))
    assert failed == AppFailed(kind="ProtocolError", error=f"epoch 1: {received} rows came out of t/k and 2 went in")


def test_c2_what_a_lost_worker_reports_is_ignored() -> None:
    machine = coordinator(*BOTH, published(1), gone(1))
    failure = WorkerSaid(incarnation=Incarnation(1), message=WorkerFailed(kind="RowError", error="overflow"))
    for late in (finished(1, 1), taken(1, 1), failure):
        assert machine.step(late) == []
    assert machine.step(finished(2, 1)) == []


def test_c2_a_new_incarnation_takes_the_place_of_one_that_is_still_there() -> None:
    machine = coordinator(*BOTH, published(1))
    actions = machine.step(came(0, 3))
    assert actions[0] == tell(1, Retire())
    assert actions[-1:] == opened(3, 1)
    machine.step(finished(2, 1))
    assert machine.step(finished(1, 1)) == []
    assert machine.step(gone(1)) == []
    assert machine.step(finished(3, 1)) == ended(1)


def test_c3_a_worker_is_sent_only_so_many_epochs_ahead() -> None:
    ahead = EPOCHS_AHEAD_MAX
    machine = coordinator(*(published(epoch) for epoch in range(1, ahead + 3)), came(1, 2))
    assert only(Tell, machine.step(came(0, 1)))[1:] == opened(1, *range(1, ahead + 1))
    assert machine.step(finished(1, 1)) == opened(1, ahead + 1)
    assert machine.step(finished(1, 2)) == opened(1, ahead + 2)
    assert machine.step(finished(1, 3)) == []
    assert machine.step(published(ahead + 3)) == opened(1, ahead + 3)


def test_c4_a_snapshots_cut_is_the_highest_epoch_that_any_worker_has_been_sent() -> None:
    ahead = EPOCHS_AHEAD_MAX
    epochs = [published(epoch) for epoch in range(1, ahead + 3)]
    machine = coordinator(*BOTH, *epochs, finished(1, 1))
    assert machine.step(scan(9)) == [take(1, 1, at=ahead + 1), take(2, 1, at=ahead + 1)]
    assert machine.step(taken(2, 1)) == []
    assert machine.step(taken(1, 1)) == [SnapshotReady(ticket=9, snapshot=SnapshotId(1), epoch=Epoch(ahead + 1))]


def test_snapshots_do_not_mix() -> None:
    machine = coordinator(*BOTH, scan(8), scan(9))
    assert [machine.step(said) for said in (taken(1, 2), taken(1, 1))] == [[], []]
    assert machine.step(taken(2, 2)) == [SnapshotReady(ticket=9, snapshot=SnapshotId(2), epoch=Epoch(0))]
    assert machine.step(taken(2, 1)) == [SnapshotReady(ticket=8, snapshot=SnapshotId(1), epoch=Epoch(0))]


@pytest.mark.parametrize("said", [[], [taken(1, 1)]])
def test_a_snapshot_fails_with_any_worker_that_keeps_a_part_of_it(said: list[CoordinatorEvent]) -> None:
    machine = coordinator(*BOTH, scan(8), *said)
    (failed,) = machine.step(gone(1))
    assert isinstance(failed, SnapshotFailed)
    assert (failed.ticket, type(failed.error)) == (8, WorkerLost)
    assert machine.step(taken(2, 1)) == []


def test_a_snapshot_fails_with_the_worker_whose_place_is_taken() -> None:
    machine = coordinator(*BOTH, scan(8))
    failed = only(SnapshotFailed, machine.step(came(1, 3)))
    assert [action.ticket for action in failed if isinstance(action, SnapshotFailed)] == [8]


def test_a_snapshot_is_refused_while_a_worker_is_missing_or_the_view_is_unknown() -> None:
    (missing,) = coordinator(came(0, 1)).step(scan(8))
    assert isinstance(missing, SnapshotFailed)
    assert str(missing.error) == "workers [1] are not up; scan again when they are"
    (unknown,) = coordinator(*BOTH).step(scan(9, view="typo"))
    assert isinstance(unknown, SnapshotFailed)
    assert isinstance(unknown.error, UnknownView)
    assert str(unknown.error) == "no view 'typo'; there are: rows"


def test_so_many_snapshots_are_held_and_one_more_lets_the_oldest_go() -> None:
    machine = coordinator(*BOTH)
    for snapshot in range(1, SNAPSHOTS_HELD_MAX + 1):
        assert only(Tell, machine.step(scan(snapshot))) == [take(1, snapshot, at=0), take(2, snapshot, at=0)]
        machine.step(taken(1, snapshot))
        machine.step(taken(2, snapshot))
    drop = DropSnapshot(snapshot=SnapshotId(1))
    last = SNAPSHOTS_HELD_MAX + 1
    assert machine.step(scan(last)) == [take(1, last, at=0), take(2, last, at=0), tell(1, drop), tell(2, drop)]


def test_a_snapshot_that_is_pushed_out_before_it_is_ready_fails() -> None:
    machine = coordinator(*BOTH, *map(scan, range(1, SNAPSHOTS_HELD_MAX + 1)), taken(1, 1))
    failed = machine.step(scan(SNAPSHOTS_HELD_MAX + 1))[-1]
    assert isinstance(failed, SnapshotFailed)
    assert (failed.ticket, type(failed.error)) == (1, WaitTimeout)
    assert machine.step(taken(2, 1)) == []


def test_a_worker_that_cannot_go_on_fails_the_app() -> None:
    failure = WorkerFailed(kind="RowError", error="overflow in view rows")
    actions = coordinator(*BOTH).step(WorkerSaid(incarnation=Incarnation(2), message=failure))
    assert actions == [AppFailed(kind="RowError", error="overflow in view rows")]


def test_stopping_retires_all_workers_and_those_that_come_later() -> None:
    machine = coordinator(*BOTH)
    assert machine.step(StopAsked()) == [tell(1, Retire()), tell(2, Retire())]
    assert machine.step(came(0, 3)) == [tell(3, Retire())]


def test_a_worker_without_a_place_in_the_map_is_retired() -> None:
    machine = coordinator(*BOTH)
    assert machine.step(came(2, 3)) == [tell(3, Retire())]
    assert machine.step(published(1)) == [*opened(1, 1), *opened(2, 1)]
    assert machine.step(gone(3)) == []
