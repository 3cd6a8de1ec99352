"""What people are told of workers that were lost, beside a coordinator machine that lives through it.

What people are told of a rescale by learners, who take slices over one after the other.
"""

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from checkpoints_kit import checkpointing, found, restored
from coordinator_kit import BOTH, UP, anew, came, coordinator, finished, gone, met, published, said, wanted
from rescale_kit import status
from stages_kit import STAGED
from standbys_kit import Group

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.ids import Epoch, FlowId, WorkerId
from upriver.protocol.coordinator_events import CoordinatorEvent, RescaleBegun, RescaleEnded, RescaleOutcome
from upriver.protocol.messages import EpochFinished, FromShare, Moved, PeersLost, StageDone, StartedAnew, TookOver
from upriver.protocol.strategies import Strategy
from upriver.runtime.coordinator_loop import CoordinatorLoop
from upriver.runtime.journal import CoordinatorJournal
from upriver.runtime.status import RECOVERIES_KEPT_MAX, Recoveries, RescaleReports
from upriver.text import render_status


class Watched:
    """A machine whose steps take a second each, looked at after each."""

    def __init__(self, machine: CoordinatorMachine) -> None:
        self.machine = machine
        self.now = 100.0
        self.recoveries = Recoveries(lambda: self.now)
        self.recoveries.look(machine.cluster)

    def live(self, *events: CoordinatorEvent) -> list[tuple[int, float, float | None]]:
        """Live through these; what is told then."""
        for event in events:
            self.now += 1.0
            self.machine.step(event)
            self.recoveries.look(self.machine.cluster)
        told = self.recoveries.status()
        return [(each["worker"], each["noticed_ago_s"], each["served_again_s"]) for each in told]


@pytest.fixture
def cluster() -> Watched:
    """Two workers that have finished an epoch."""
    return Watched(coordinator(*BOTH, published(1), finished(1, 1), finished(2, 1)))


def test_nothing_is_told_where_no_worker_was_lost(cluster: Watched) -> None:
    assert Watched(coordinator()).live(*BOTH) == []
    assert cluster.live(published(2), finished(1, 2)) == []


def test_keys_are_served_again_when_what_was_published_by_then_is_reflected(cluster: Watched) -> None:
    assert cluster.live(gone(2)) == [(1, 0.0, None)]
    assert cluster.live(published(2), came(1, 3)) == [(1, 2.0, None)]
    assert cluster.live(published(3), finished(3, 1)) == [(1, 4.0, None)]
    assert cluster.live(finished(3, 2)) == [(1, 5.0, 5.0)]
    assert cluster.live(finished(3, 3)) == [(1, 6.0, 5.0)]


def test_a_worker_that_is_replaced_before_its_channel_has_closed_was_lost(cluster: Watched) -> None:
    assert cluster.live(came(1, 3), gone(2)) == [(1, 1.0, None)]
    assert cluster.live(finished(3, 1)) == [(1, 2.0, 2.0)]


def test_a_worker_that_is_lost_again_before_it_serves_is_told_of_once(cluster: Watched) -> None:
    assert cluster.live(gone(2), came(1, 3), gone(3)) == [(1, 2.0, None)]
    assert cluster.live(came(1, 4), finished(4, 1)) == [(1, 4.0, 4.0)]
    assert cluster.live(gone(4)) == [(1, 5.0, 4.0), (1, 0.0, None)]


def test_what_checkpoints_have_is_to_be_restored_first() -> None:
    cluster = Watched(checkpointing(*BOTH, restored(1), restored(2), checkpoints=[found(1)]))
    assert cluster.live(gone(1), came(0, 3)) == [(0, 1.0, None)]
    assert cluster.live(restored(3)) == [(0, 2.0, 2.0)]


def test_where_keys_move_all_begin_anew_and_the_joiner_is_told_of_no_more() -> None:
    cluster = Watched(coordinator(published(1), *UP[:2], finished(1, 1), finished(2, 1), *UP[2:]))
    assert cluster.live(gone(3)) == []
    cluster = Watched(coordinator(published(1), *UP[:2], finished(1, 1), finished(2, 1), *UP[2:]))
    assert cluster.live(gone(2), came(1, 4), anew(1)) == [(1, 2.0, None)]
    assert cluster.live(finished(4, 1)) == [(1, 3.0, 3.0)]


def test_a_worker_that_leaves_by_a_rescale_was_not_lost(cluster: Watched) -> None:
    assert cluster.live(wanted(1, workers=1, strategy=Strategy.RESTART), anew(1), finished(1, 1), gone(2)) == []


def staged_epoch(epoch: int, *incarnations: int) -> Sequence[CoordinatorEvent]:
    """A whole epoch of no rows, through both stages."""
    none: Any = {"epoch": Epoch(epoch), "applied": {}}
    steps: list[FromShare] = [
        EpochFinished(**none, read={}, stats={}),
        *(StageDone(epoch=Epoch(epoch), stage=stage, stats={}) for stage in (0, 1)),
    ]
    return [said(incarnation, step) for step in steps for incarnation in incarnations]


def test_exchanged_rows_are_reflected_when_the_epoch_is_over() -> None:
    machine = coordinator(*BOTH, met(1), met(2), published(1), plans=[STAGED])
    cluster = Watched(machine)
    assert cluster.live(*staged_epoch(1, 1, 2)) == []
    cluster.live(gone(2), came(1, 3), anew(1), met(1, meeting=2), met(3, meeting=2))
    *most, last = staged_epoch(1, 1, 3)
    assert cluster.live(*most) == [(1, 9.0, None)]
    assert cluster.live(last) == [(1, 10.0, 10.0)]


def test_both_ends_of_a_broken_link_are_named(caplog: pytest.LogCaptureFixture) -> None:
    machine = coordinator(*BOTH, met(1), met(2), published(1), plans=[STAGED])
    loop = CoordinatorLoop(machine)
    journal = CoordinatorJournal(machine, loop.rescales)
    lost = said(1, PeersLost(meeting=1, why="silence", peer=WorkerId(1)))
    with caplog.at_level(logging.INFO, "upriver.workers"):
        journal.note(lost, machine.step(lost))
        assert loop.status()["broken_links"] == [[0, 1]]
        assert "workers 0 and 1 do not reach each other" in render_status(loop.status())
        for event in (met(1, meeting=2), met(2, meeting=2)):
            journal.note(event, machine.step(event))
    assert loop.status()["broken_links"] == []
    assert caplog.messages == ["workers 0 and 1 do not reach each other", "all workers reach each other again"]


def test_others_that_take_over_serve_the_keys_when_all_have_resumed() -> None:
    group = Group()
    cluster = Watched(group.machine)
    group.epoch()
    cluster.recoveries.look(group.machine.cluster)
    group.silent = {StartedAnew}
    assert cluster.live(gone(2)) == [(1, 0.0, None)]
    del group.places[1]
    group.lease_over(2)
    assert cluster.live() == [(1, 0.0, None)]
    group.speak()
    assert cluster.live(published(2)) == [(1, 1.0, 1.0)]
    group.come(1)
    assert [told[0] for told in cluster.live(published(3))] == [1]


def test_an_epoch_that_was_open_when_others_took_over_is_to_be_gone_through_first() -> None:
    group = Group()
    cluster = Watched(group.machine)
    group.silent = {EpochFinished}
    group.epoch()
    cluster.live(gone(2))
    del group.places[1]
    group.unsaid.clear()
    group.lease_over(2)
    assert cluster.live(published(2)) == [(1, 1.0, None)]
    group.speak()
    assert cluster.live(published(3)) == [(1, 2.0, 2.0)]


def test_the_oldest_are_forgotten(cluster: Watched) -> None:
    for incarnation in range(2, RECOVERIES_KEPT_MAX + 5):
        told = cluster.live(gone(incarnation), came(1, incarnation + 1), finished(incarnation + 1, 1))
    assert len(told) == RECOVERIES_KEPT_MAX
    assert told[-1] == (1, 2.0, 2.0)


def test_workers_that_are_sent_at_the_end_were_not_lost(cluster: Watched) -> None:
    cluster.recoveries.end()
    assert cluster.live(gone(1), gone(2)) == []


def test_the_status_shows_them(cluster: Watched) -> None:
    cluster.live(gone(2), came(1, 3), finished(3, 1), gone(1))
    shown = render_status({**status(None), "recoveries": cluster.recoveries.status()})
    assert "lost worker  noticed   served again\n" in shown
    assert "          1  3 s ago  after 2.000 s\n" in shown
    assert "          0  0 s ago        not yet" in shown
    assert "lost" not in render_status(status(None))


def test_the_status_shows_how_what_is_kept_for_readers_has_done() -> None:
    told = status(None)
    assert "missed" not in render_status(told)
    numbers = {"state": "running", "rows": 1, "keys": 2, "bytes": 3, "looked_up": 12_345, "missed": 6, "evicted": 0}
    nobody = {"worker": 1, "address": None, "epoch": None, "vnodes": 0, "bytes": None}
    shown = render_status({**told, "workers": [*told["workers"], nobody], "views": {**told["views"], "trips": numbers}})
    assert "view    rows  keys  bytes  looked up  missed  evicted\n" in shown
    assert "trips      1     2      3     12,345       6        0" in shown
    assert "planes    12    12  3,456\n" in shown
    assert "\n     1                           0\n" in shown


def begun() -> RescaleReports:
    """Four slices are to be learned."""
    desk = RescaleReports(lambda: None)
    desk.wanted(wanted(1, workers=3, strategy=Strategy.LEARNER))
    desk.begun(RescaleBegun(ticket=1, before=2, after=3, vnodes=4))
    return desk


def told(desk: RescaleReports) -> tuple[object, ...]:
    progress = desk.case(1).progress()
    return tuple(progress[name] for name in ("state", "vnodes_moved", "keys_moved", "keys_left", "bytes_moved"))


def test_all_that_was_taken_over_is_added_up_and_what_is_left_is_as_much_per_slice() -> None:
    desk = begun()
    assert told(desk) == ("starting", 0, 0, 0, 0)
    desk.took_over(FlowId(1), TookOver(vnodes=1, keys=10, bytes=80))
    assert told(desk) == ("moving", 1, 10, 30, 80)
    desk.took_over(FlowId(1), TookOver(vnodes=2, keys=20, bytes=160))
    assert told(desk) == ("moving", 3, 30, 10, 240)
    assert desk.case(1).progress()["bytes_left"] == 80


def test_the_oldest_rescale_that_is_not_over_says_what_it_waits_for() -> None:
    desk = begun()
    desk.wanted(wanted(2, workers=2))
    desk.waits("worker 2 to start")
    assert [desk.case(ticket).progress()["waits_for"] for ticket in (1, 2)] == ["worker 2 to start", "its turn"]
    desk.ended(RescaleEnded(ticket=1, outcome=RescaleOutcome.ABORTED, vnodes=0))
    desk.waits("the lake, to record the rescale")
    assert [desk.case(ticket).progress()["waits_for"] for ticket in (1, 2)] == [None, "the lake, to record the rescale"]


def test_nothing_is_left_when_more_was_taken_over_than_there_was() -> None:
    desk = begun()
    desk.took_over(FlowId(1), TookOver(vnodes=6, keys=10, bytes=80))
    assert told(desk) == ("moving", 4, 10, 0, 80)


def test_what_has_moved_by_the_map_counts_though_no_worker_has_reported_it() -> None:
    handed_over = 3
    desk = RescaleReports(lambda: None, lambda: handed_over)
    desk.wanted(wanted(1, workers=2))
    desk.begun(RescaleBegun(ticket=1, before=1, after=2, vnodes=4))
    for view, left in (("v", 2), ("u", 3)):
        moved = Moved(
            region=view,
            phase="move",
            keys=5,
            bytes=9,
            keys_left=7,
            vnodes_left=left,
            gone=(),
            forwarded=0,
            bounced=0,
        )
        desk.moved(WorkerId(0), moved)
    told = desk.status()["rescale"]
    assert (told["vnodes_moved"], told["keys_left"]) == (3, 14)
    handed_over = 4
    told = desk.status()["rescale"]
    assert (told["vnodes_moved"], told["keys_left"], told["seconds_left"]) == (4, 0, 0.0)


def test_the_report_has_all_of_it() -> None:
    desk = begun()
    desk.took_over(FlowId(1), TookOver(vnodes=4, keys=30, bytes=240))
    desk.ended(RescaleEnded(ticket=1, outcome=RescaleOutcome.FINISHED, vnodes=4))
    report = desk.case(1).report()
    assert [report[name] for name in ("outcome", "moved_vnodes", "moved_keys", "moved_bytes")] == [
        "finished",
        4,
        30,
        240,
    ]
    assert told(desk) == ("finished", 4, 30, 0, 240)


def test_a_standby_that_takes_over_while_no_rescale_is_on_concerns_none() -> None:
    desk = RescaleReports(lambda: None)
    desk.took_over(FlowId(1), TookOver(vnodes=1, keys=10, bytes=80))
    desk.wanted(wanted(1, workers=3))
    desk.took_over(FlowId(1), TookOver(vnodes=1, keys=10, bytes=80))
    assert told(desk) == ("queued", 0, 0, 0, 0)


def test_a_waiting_caller_is_told_of_each_other_state_once() -> None:
    states: list[str] = []
    desk = RescaleReports(lambda: states.append(desk.case(1).state))
    desk.wanted(wanted(1, workers=3, strategy=Strategy.LEARNER))
    desk.begun(RescaleBegun(ticket=1, before=2, after=3, vnodes=4))
    desk.took_over(FlowId(1), TookOver(vnodes=2, keys=30, bytes=240))
    desk.took_over(FlowId(1), TookOver(vnodes=2, keys=30, bytes=240))
    desk.ended(RescaleEnded(ticket=1, outcome=RescaleOutcome.FINISHED, vnodes=4))
    assert states == ["starting", "moving", "finished"]
