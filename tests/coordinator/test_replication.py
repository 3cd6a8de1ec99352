"""The leader: which workers stand by, when an epoch is over, and which take over from a lost one; rule
replication.epoch_waits_for_followers."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from coordinator_kit import PLAN, listeners, only, planned, scan
from stages_kit import STAGED
from standbys_kit import THIRDS, Group

from upriver.errors import WorkerLost
from upriver.ids import Epoch, FeedId, WorkerId
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import PlansWanted, SnapshotFailed
from upriver.protocol.messages import (
    Assign,
    CaughtUp,
    EpochFinished,
    FeedEnded,
    Follow,
    Here,
    MetPeers,
    OpenEpoch,
    PeersLost,
    Probe,
    Resume,
    Retire,
    StartedAnew,
    Unfollow,
)

PARTIAL = replace(PLAN, full_because=None)
QUARTERS = (0, 1, 2, 3)
"""What workers 0 to 3 own."""


def running(owners: Sequence[int] = THIRDS, standbys: int = 1, plans: Sequence[DataflowPlan] = (PLAN,)) -> Group:
    """All have their standbys, and have finished an epoch."""
    group = Group(owners, standbys, plans)
    group.epoch()
    assert (group.ended, group.standing()) == (1, (standbys, len(owners), 0))
    return group


# Which workers stand by
# ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instances", "standbys", "followers"),
    [
        ("abc", 1, [1, 1, 1, 1, 1, 1]),
        ("abc", 2, [2, 2, 2, 2, 2, 2]),
        ("abc", 3, [2, 2, 2, 2, 2, 2]),
        ("aab", 2, [1, 1, 1, 1, 1, 1]),
        ("aaa", 1, [0, 0, 0, 0, 0, 0]),
    ],
)
def test_each_copy_is_on_an_instance_of_its_own(instances: str, standbys: int, followers: list[int]) -> None:
    group = Group(THIRDS, standbys, instances=tuple(instances))
    followed = group.followed()
    assert [len(workers) for workers in followed.values()] == followers
    for vnode, workers in followed.items():
        copies = [group.owners[vnode], *workers]
        assert len({instances[worker] for worker in copies}) == len(copies)


def test_no_worker_follows_without_standbys_or_in_a_partial_view() -> None:
    for group in (Group(standbys=0), Group(standbys=1, plans=[PARTIAL]), Group(standbys=1, plans=[])):
        group.epoch()
        assert only(Follow, group.log) == []
        assert group.standing()[1:] == (0, 0)


@pytest.mark.parametrize(
    ("instances", "standbys", "why"),
    [
        (["a/1", "a/1", "a/1"], 1, "workers 0, 1, 2 in one executor on a. A standby is never in .*: 2 executors must"),
        (["a/1", "b/1", "b/1"], 2, "worker 0 in an executor on a; workers 1, 2 in one executor on b. .*: 3 executors"),
    ],
)
def test_the_status_says_why_standbys_have_no_place(instances: list[str], standbys: int, why: str) -> None:
    group = Group(standbys=standbys, instances=instances)
    group.epoch()
    told = group.machine.leader.standing()
    assert (told["wanted"], told["ready"]) == (standbys, 0)
    assert re.match(why, told["why"])
    group.instances[1] = "c/1"
    group.instances[0] = "a/2"
    group.come(0, 1)
    group.epoch()
    assert group.machine.leader.why_unplaced is None


def test_the_status_says_why_there_are_no_standbys_yet_or_never() -> None:
    partial = Group(plans=[PARTIAL])
    assert partial.machine.leader.standing()["why"].startswith("every view is partial")
    group = Group(silent=[CaughtUp])
    group.epoch()
    assert group.machine.leader.standing()["why"].startswith("0 of 6 vnodes are copied so far")
    group.lose(2)
    assert group.machine.leader.standing()["why"] == "worker 2 is not up"
    assert Group(standbys=0).machine.leader.standing()["why"] is None


def test_a_feed_that_has_ended_begins_again() -> None:
    group = running()
    feed, (_, following) = next(iter(group.feeds.items()))
    actions = group.says(following.owner, FeedEnded(feed=feed))
    assert only(Unfollow, actions) == [Unfollow(feed=feed, vnodes=following.vnodes)]
    assert [(again.owner, again.vnodes) for again in only(Follow, actions)] == [(following.owner, following.vnodes)]
    assert group.standing() == (1, 6, 0)
    assert group.says(following.owner, FeedEnded(feed=FeedId(99))) == []


def test_where_views_become_full_workers_know_that_others_may_take_over() -> None:
    group = Group(plans=[PARTIAL])
    actions = group.happens(PlansWanted(ticket=1, plans=(PARTIAL, planned("more")), epochs=()))
    assert [assign.reversible for assign in only(Assign, actions)] == [True] * 3


# replication.epoch_waits_for_followers
# -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plans", [[PLAN], [STAGED]])
def test_replication_epoch_waits_for_followers_that_were_complete(plans: Sequence[DataflowPlan]) -> None:
    group = running(plans=plans)
    group.silent = {CaughtUp}
    group.epoch()
    assert group.ended == 1
    *most, (last, message) = group.unsaid
    group.unsaid = most
    group.speak()
    assert group.ended == 1
    group.unsaid = [(last, message)]
    group.speak()
    assert group.ended == 2


def test_replication_epoch_waits_for_followers_a_standby_that_was_never_complete_is_not_waited_for() -> None:
    group = Group(silent=[CaughtUp])
    group.epoch()
    assert (group.ended, group.standing()) == (1, (1, 0, 0))
    group.speak()
    group.epoch()
    assert (group.ended, group.standing()) == (2, (1, 6, 0))


def test_replication_epoch_waits_for_followers_nor_is_a_lost_standby() -> None:
    group = running(standbys=2)
    group.silent = {CaughtUp}
    group.lose(1)
    group.lease_over(2)
    group.speak()
    group.epoch()
    assert group.ended == 2


# A worker is lost ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plans", [[PLAN], [STAGED]])
def test_others_take_over_when_the_lost_worker_can_answer_no_lookup_any_more(plans: Sequence[DataflowPlan]) -> None:
    group = running(plans=plans)
    assert only(Resume, group.lose(1)) == []
    assert (group.owners, group.machine.leader.takes_over, group.machine.leader.is_settled) == (THIRDS, True, False)
    actions = group.lease_over(2)
    assert listeners(Resume, actions) == [1, 3]
    assert only(Assign, actions) == []
    for resume in only(Resume, actions):
        assert (resume.at, resume.serve_from, resume.generation) == (1, 1, 1)
        assert {vnode_map.owners for vnode_map in resume.maps.values()} == {(0, 0, 0, 0, 2, 2)}
    assert [resume.reads for resume in only(Resume, actions)] == [(0, 1, 2, 3), (4, 5)]
    assert (group.workers, group.machine.leader.vacant) == ((0, 2), frozenset({1}))
    group.epoch()
    assert (group.ended, group.standing()) == (2, (1, 6, 0))


def test_the_lease_may_have_run_out_before_it_is_known_that_the_worker_is_gone() -> None:
    group = running()
    group.lease_over(2)
    assert listeners(Resume, group.lose(1)) == [1, 3]


def test_an_epoch_that_was_open_is_opened_again_when_others_have_taken_over_and_met() -> None:
    group = running()
    group.places.pop(1)  # it says nothing any more
    assert listeners(OpenEpoch, group.epoch()) == [1, 2, 3]
    group.places[1] = 2
    group.lose(1)
    assert group.ended == 1
    group.silent = {MetPeers}
    (resume, _) = only(Resume, group.lease_over(2))
    assert (resume.at, resume.serve_from) == (1, 2)
    assert group.ended == 1
    assert listeners(OpenEpoch, group.speak()) == [1, 3]
    assert group.ended == 2


def test_a_successor_is_told_to_keep_nothing_and_then_learns_its_share() -> None:
    group = running()
    group.lose(1)
    group.lease_over(2)
    (assign,) = only(Assign, group.come(1))
    assert (assign.worker, assign.reads, assign.start_at) == (WorkerId(1), (), Epoch(1))
    assert (group.workers, group.machine.leader.vacant) == ((0, 1, 2), frozenset())
    group.epoch()
    assert sorted(group.owners) == [0, 0, 1, 1, 2, 2]
    assert (group.standing(), group.machine.leader.is_settled) == ((1, 6, 0), True)
    assert len(only(Assign, group.log)) == 4


def test_a_worker_that_comes_before_others_have_taken_over_waits() -> None:
    group = running()
    group.lose(1)
    assert only(Assign, group.come(1)) == []
    actions = group.lease_over(2)
    assert listeners(Resume, actions) == [1, 3, *(1, 4, 3)]
    assert listeners(Assign, actions) == [4]
    group.epoch()
    assert sorted(group.owners) == [0, 0, 1, 1, 2, 2]


def test_a_worker_that_puts_another_out_of_its_place_need_not_wait_for_the_lease() -> None:
    group = running()
    actions = group.come(1)
    assert listeners(Retire, actions) == [2]
    assert listeners(Resume, actions) == [1, 3, *(1, 4, 3)]
    assert sorted(group.owners) == [0, 0, 1, 1, 2, 2]


def test_while_others_are_to_take_over_nothing_is_scanned() -> None:
    group = running()
    group.lose(1)
    group.come(1)
    (failed,) = group.happens(scan(7))
    assert isinstance(failed, SnapshotFailed)
    assert isinstance(failed.error, WorkerLost)


# No worker can take over
# -----------------------------------------------------------------------------------------------


def fallen_back(group: Group, *lost: int) -> None:
    """No worker has resumed: the workers that fill the lost places keep what was kept there."""
    assert not group.machine.leader.takes_over
    before = group.owners
    group.come(*lost)
    group.epoch()
    assert only(Resume, group.log) == []
    assert (group.owners, group.ended, group.machine.leader.vacant) == (before, group.machine.published, frozenset())


@pytest.mark.parametrize("plans", [[PLAN], [STAGED]])
def test_without_standbys_the_place_is_filled_as_ever(plans: Sequence[DataflowPlan]) -> None:
    group = Group(standbys=0, plans=plans)
    group.epoch()
    group.lose(1)
    group.lease_over(2)
    fallen_back(group, 1)


@pytest.mark.parametrize("plans", [[PLAN], [STAGED]])
def test_without_a_standby_that_has_caught_up_the_place_is_filled_as_ever(plans: Sequence[DataflowPlan]) -> None:
    group = Group(plans=plans, silent=[CaughtUp])
    group.epoch()
    group.lose(1)
    group.lease_over(2)
    group.speak()
    fallen_back(group, 1)


def test_a_standby_on_the_lost_instance_is_lost_with_it() -> None:
    group = running(QUARTERS)
    assert group.followed() == {0: [1], 1: [0], 2: [3], 3: [2]}
    group.lose(0)
    assert group.machine.leader.takes_over
    group.lose(1)
    group.lease_over(1, 2)
    fallen_back(group, 0, 1)
    assert group.standing() == (1, 4, 0)


@pytest.mark.parametrize("plans", [[PLAN], [STAGED]])
def test_a_successor_that_has_come_by_then_is_told_what_to_keep_after_all(plans: Sequence[DataflowPlan]) -> None:
    group = running(QUARTERS, plans=plans)
    group.lose(0)
    assert only(Assign, group.come(0)) == []
    actions = group.lose(1)
    assert listeners(Assign, actions) == ([5] if plans == [PLAN] else [])  # the others: when all begin anew
    fallen_back(group, 1)


def test_two_that_are_lost_are_replaced_when_both_leases_have_run_out() -> None:
    group = running(QUARTERS, standbys=2)
    assert group.followed() == {0: [1, 2], 1: [0, 3], 2: [0, 3], 3: [1, 2]}
    group.lose(1, 2)
    assert only(Resume, group.lease_over(2)) == []
    assert listeners(Resume, group.lease_over(3)) == [1, 4]
    assert (sorted(group.owners), group.workers) == ([0, 0, 3, 3], (0, 3))
    assert group.machine.leader.vacant == {1, 2}
    group.come(1, 2)
    group.epoch()
    group.epoch()
    assert (sorted(group.owners), group.standing()) == ([0, 1, 2, 3], (2, 4, 0))


def test_one_that_is_lost_after_another_was_replaced_is_replaced_too() -> None:
    group = running()
    group.lose(1)
    group.lease_over(2)
    group.epoch()
    group.lose(2)
    assert listeners(Resume, group.lease_over(3)) == [1]
    assert (set(group.owners), group.workers) == ({0}, (0,))
    group.epoch()
    assert (group.ended, group.standing()) == (3, (1, 0, 0))


# A channel is lost --------------------------------------------------------------------------------------------------


def test_a_peer_that_cannot_be_reached_is_asked_first_whether_it_is_there() -> None:
    group = running(plans=[STAGED])
    group.silent = {Here}
    actions = group.cannot_reach(0, 1)
    assert listeners(Probe, actions) == [2]
    assert only(Assign, actions) == []
    assert not group.machine.leader.is_settled
    group.lose(1)
    assert listeners(Resume, group.lease_over(2)) == [1, 3]
    group.epoch()
    assert (group.ended, only(Assign, group.log)[3:]) == (2, [])


def test_if_it_is_there_rows_that_were_exchanged_are_lost_and_all_begin_anew() -> None:
    group = running(plans=[STAGED])
    group.silent = {EpochFinished}
    group.epoch()
    group.silent.clear()
    assert listeners(Assign, group.cannot_reach(0, 1)) == [1, 2, 3]
    group.epoch()
    assert (group.ended, group.standing()) == (3, (1, 6, 0))


def test_if_it_is_there_and_no_epoch_is_open_all_meet_again() -> None:
    group = running(plans=[STAGED])
    assert listeners(Assign, group.cannot_reach(0, 1)) == []
    group.epoch()
    assert (group.ended, group.standing()) == (2, (1, 6, 0))


def test_if_it_is_there_and_no_rows_are_exchanged_all_meet_again() -> None:
    group = running()
    actions = group.cannot_reach(0, 1)
    assert (listeners(Probe, actions), only(Assign, actions)) == ([2], [])
    group.epoch()
    assert (group.ended, group.standing()) == (2, (1, 6, 0))


def test_a_peer_without_a_replacement_is_not_asked() -> None:
    group = Group(standbys=0, plans=[STAGED], silent={EpochFinished})
    group.epoch()
    actions = group.cannot_reach(0, 1)
    assert (only(Probe, actions), listeners(Assign, actions)) == ([], [1, 2, 3])


def test_nor_is_one_that_is_not_known() -> None:
    group = running(plans=[STAGED])
    group.silent = {EpochFinished}
    group.epoch()
    actions = group.says(0, PeersLost(meeting=1, why="its socket is closed"))
    assert (only(Probe, actions), listeners(Assign, actions)) == ([], [1, 2, 3])


def test_nothing_is_torn_for_a_peer_that_is_known_to_be_lost() -> None:
    group = running(plans=[STAGED])
    group.lose(1)
    assert only(Probe, group.cannot_reach(0, 1)) == []
    assert listeners(Resume, group.lease_over(2)) == [1, 3]


def test_a_doubt_is_over_when_all_have_resumed_though_its_answer_was_of_before() -> None:
    group = running()
    group.silent = {Here, StartedAnew, MetPeers, CaughtUp}
    group.cannot_reach(0, 2)
    group.lose(1)
    group.lease_over(2)
    group.speak()
    group.come(1)
    group.epoch()
    assert (group.machine.leader.is_settled, group.ended) == (True, 2)
