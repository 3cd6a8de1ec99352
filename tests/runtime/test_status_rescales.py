"""What people are told of a rescale by learners, who take slices over one after the other."""

from coordinator_kit import wanted

from upriver.ids import WorkerId
from upriver.protocol.coordinator_events import RescaleBegun, RescaleEnded, RescaleOutcome
from upriver.protocol.messages import Moved, TookOver
from upriver.protocol.strategies import Strategy
from upriver.runtime.status import RescaleReports


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
    desk.took_over(TookOver(vnodes=1, keys=10, bytes=80))
    assert told(desk) == ("moving", 1, 10, 30, 80)
    desk.took_over(TookOver(vnodes=2, keys=20, bytes=160))
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
    desk.took_over(TookOver(vnodes=6, keys=10, bytes=80))
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
    desk.took_over(TookOver(vnodes=4, keys=30, bytes=240))
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
    desk.took_over(TookOver(vnodes=1, keys=10, bytes=80))
    desk.wanted(wanted(1, workers=3))
    desk.took_over(TookOver(vnodes=1, keys=10, bytes=80))
    assert told(desk) == ("queued", 0, 0, 0, 0)


def test_a_waiting_caller_is_told_of_each_other_state_once() -> None:
    states: list[str] = []
    desk = RescaleReports(lambda: states.append(desk.case(1).state))
    desk.wanted(wanted(1, workers=3, strategy=Strategy.LEARNER))
    desk.begun(RescaleBegun(ticket=1, before=2, after=3, vnodes=4))
    desk.took_over(TookOver(vnodes=2, keys=30, bytes=240))
    desk.took_over(TookOver(vnodes=2, keys=30, bytes=240))
    desk.ended(RescaleEnded(ticket=1, outcome=RescaleOutcome.FINISHED, vnodes=4))
    assert states == ["starting", "moving", "finished"]
