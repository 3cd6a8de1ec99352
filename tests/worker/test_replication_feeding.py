"""The worker machine feeds who follows it: what is copied, and when all was said; rules
replication.epoch_waits_for_followers and replication.put_back_has_changed."""

from dataclasses import replace

import pytest
from copying_kit import Fading
from followers_kit import WorkerGroup
from machines_kit import ALL_MINE, KEYS, PLAN, assign, meet, planned, said, vnode_map, worker
from stages_kit import OTHER_END, built, staged
from workers_kit import vnode_of

from upriver.ids import Epoch, FeedId, Incarnation, VnodeId, WorkerId
from upriver.protocol.messages import FeedEnded
from upriver.protocol.peers import BeginFeed, EndFeed, FedThrough, PeerMessage, RowsForwardedBack
from upriver.protocol.worker_events import PeerLost, Report, TimeToFeed
from upriver.worker.replication import LOADS_OUT_MAX

A, A2, B, C = KEYS[0][0], KEYS[0][1], KEYS[1][0], KEYS[2][0]
"""Keys of worker 0, ascending by hash64: two of its first slice, one each of the next ones."""
THERE = KEYS[7][0]
"""A key of worker 1."""


def fed(*keys_max: int) -> tuple[WorkerGroup, list[object]]:
    """Worker 1 follows slices 0 and 1 of worker 0, which copies so many keys at a time; what has come to be."""
    group = WorkerGroup()
    group.epoch(A, A2, B, C, THERE)
    group.follow(1, 0, 0, 1)
    group.carry(1, 0)
    found: list[object] = []
    for keys in keys_max:
        group.feed(0, keys)
        found.append([loaded for *_, loaded in group.fed(0, 1)])
        group.carry_all()
    return group, found


def test_replication_epoch_waits_for_followers_all_keys_of_the_slices_are_copied_and_then_all_was_said() -> None:
    group, found = fed(2, 2)
    assert found == [[{A: [1], A2: [1]}], [{B: [1]}]]
    assert not group.machines[0].can_feed
    assert (group.followed(1), group.caught_up(1)) == ({A: [1], A2: [1], B: [1]}, [(1, 1)])


def test_where_nothing_is_kept_all_is_said_at_once() -> None:
    group = WorkerGroup()
    group.follow(1, 0, 0)
    group.carry_all()
    assert (group.followed(1), group.caught_up(1)) == ({}, [(1, 0)])


def test_a_key_that_changes_while_others_are_copied_is_fed_again() -> None:
    group, _ = fed(1)
    group.open(A, C)
    group.read(0, A, C)
    group.feed(0)
    group.carry_all()
    assert group.followed(1) == {A: [1], A2: [1], B: [1]}
    group.end(0, A, C)
    assert group.fed(0, 1) == [(2, "seen", {A: [1, 2]})]
    group.carry_all()
    assert group.caught_up(1) == [(1, 2)]


def test_replication_epoch_waits_for_followers_all_is_not_said_while_keys_are_left_to_copy() -> None:
    group, _ = fed(1)
    group.epoch(A, B)
    assert (group.caught_up(1), group.followed(1)) == ([], {A: [1]})
    group.feed(0)
    assert group.fed(0, 1) == [(0, "seen", {A2: [1], B: [1, 2]}), (2, "seen", {A: [1, 2], B: [1, 2]})]
    group.carry_all()
    assert (group.followed(1), group.caught_up(1)) == ({A: [1, 2], A2: [1], B: [1, 2]}, [(1, 2)])


def test_replication_epoch_waits_for_followers_nor_before_the_epochs_end_when_one_is_being_read() -> None:
    group, _ = fed()
    group.open(A)
    group.feed(0)
    group.carry_all()
    assert (group.caught_up(1), group.machines[0].can_feed) == ([], False)
    group.end(0)
    group.carry_all()
    assert group.caught_up(1) == [(1, 2)]


def test_at_each_epochs_end_what_has_changed_is_said_and_that_it_was_all() -> None:
    group, _ = fed(9)
    group.open(B, C, THERE)
    group.end(0)
    assert group.fed(0, 1) == [(2, "seen", {B: [1, 2]})]
    assert group.carry(0, 1)[-1] == FedThrough(feed=FeedId(1), epoch=Epoch(2))
    group.end(1)
    group.over(2)
    group.open(THERE)
    group.end(0)
    assert group.fed(0, 1) == []
    assert group.carry(0, 1) == [FedThrough(feed=FeedId(1), epoch=Epoch(3))]


def test_a_key_that_is_gone_is_named_and_nothing_is_kept_of_it() -> None:
    group = WorkerGroup(build=lambda *_: Fading())
    group.epoch(A, B)
    group.has_followers(1, 0, 0, 1)
    group.open(A)
    group.end(0)
    assert group.fed(0, 1) == [(2, "seen", {A: []})]
    group.carry_all()
    group.over(2)
    assert group.followed(1) == {B: [1]}


def test_so_many_loads_are_on_their_way_at_a_time() -> None:
    group, _ = fed()
    for _ in range(LOADS_OUT_MAX):
        group.feed(0, 1)
    assert not group.machines[0].can_feed
    assert group.machines[0].step(TimeToFeed(keys_max=1)) == []
    assert len(group.fed(0, 1)) == LOADS_OUT_MAX
    group.carry(0, 1, 1)
    assert group.carry(1, 0) == [RowsForwardedBack(feed=FeedId(1))]
    assert group.machines[0].can_feed


def test_the_follower_with_the_fewest_slices_left_is_fed_next() -> None:
    group = WorkerGroup(owners=ALL_MINE, workers=3)
    group.epoch(A, A2, B, C)
    group.follow(1, 0, 0, 1, feed=1)
    group.follow(2, 0, 0, 2, feed=2)
    group.carry(1, 0)
    group.carry(2, 0)
    for _ in range(3):
        group.feed(0, 1)
    assert [[loaded for *_, loaded in group.fed(0, to)] for to in (1, 2)] == [[{A: [1]}, {A2: [1]}], [{A: [1]}]]


def test_all_regions_are_fed() -> None:
    plans, maps = (PLAN, planned("other")), dict.fromkeys(("seen", "other"), vnode_map(ALL_MINE))
    group = WorkerGroup(owners=ALL_MINE, plans=plans, maps=maps)
    group.epoch(A, B)
    group.has_followers(1, 0, 0)
    assert [group.followed(1, region=region) for region in ("seen", "other")] == [{A: [1]}, {A: [1]}]
    group.epoch(A)
    assert [group.followed(1, region=region) for region in ("seen", "other")] == [{A: [1, 2]}, {A: [1, 2]}]


def test_of_views_with_exchange_edges_all_is_said_when_the_last_stage_is_done() -> None:
    group = WorkerGroup(owners=ALL_MINE, build=built, assigned=staged)
    group.has_followers(1, 0, *range(8))
    assert group.caught_up(1) == [(1, 0)]
    group.open(A)
    for one in group.places:
        group.end(one)
    group.stage(0)
    assert group.fed(0, 1) == []
    group.stage(1)
    other = OTHER_END[A]
    assert group.fed(0, 1) == [(1, "seen/0", {A: [1]}), (1, "seen", {other: [1]})]
    group.carry_all()
    group.over(1)
    assert [group.followed(1, region=region) for region in ("seen/0", "seen")] == [{A: [1]}, {other: [1]}]
    assert group.caught_up(1) == [(1, 1)]


# Feeds that end -----------------------------------------------------------------------------------------------------


def test_slices_that_are_kept_elsewhere_are_not_fed() -> None:
    group = WorkerGroup()
    group.epoch(A, B, THERE)
    group.follow(1, 0, vnode_of(THERE), feed=1)
    group.has_followers(1, 0, vnode_of(B), vnode_of(THERE), feed=2)
    assert group.ended(0) == [1]
    assert group.followed(1, feed=2) == {B: [1]}


def test_a_follower_that_is_gone_is_not_fed() -> None:
    machine = worker(assign(ALL_MINE))
    wish = said(1, BeginFeed(feed=FeedId(3), vnodes=(VnodeId(0),)))
    assert machine.step(wish) == [Report(message=FeedEnded(feed=FeedId(3)))]


def test_slices_that_are_followed_no_more_are_not_fed() -> None:
    group, _ = fed(9)
    group.unfollow(1, vnode_of(A))
    group.carry_all()
    group.epoch(A, B)
    assert group.followed(1) == {B: [1, 2]}
    group.unfollow(1, vnode_of(B))
    group.carry_all()
    group.open(A, B)
    group.end(0)
    assert (group.carry(0, 1), group.ended(0), group.machines[0].can_feed) == ([], [], False)


@pytest.mark.parametrize(
    ("peer", "incarnation", "is_over"),
    [(1, 2, True), (None, None, True), (1, None, True), (2, 3, False), (1, 9, False)],
)
def test_a_feed_ends_with_the_channel_to_the_follower(peer: int | None, incarnation: int | None, is_over: bool) -> None:
    group, _ = fed(9)
    who = None if peer is None else WorkerId(peer)
    life = None if incarnation is None else Incarnation(incarnation)
    group.step(0, PeerLost(why="silence", peer=who, incarnation=life))
    assert group.ended(0) == ([1] if is_over else [])
    group.open(A)
    group.end(0)
    assert bool(group.fed(0, 1)) != is_over


def test_a_feed_ends_when_another_is_in_the_followers_place() -> None:
    group, _ = fed(9)
    again = meet(0, 1, meeting=2)
    group.step(0, again)
    assert group.ended(0) == []
    group.step(0, replace(again, peers={**again.peers, WorkerId(1): (Incarnation(7), "host-7")}))
    assert group.ended(0) == [1]


def test_what_comes_late_of_a_feed_that_is_over_is_no_news() -> None:
    group, _ = fed(1)
    group.lose(0, 1)
    late: list[PeerMessage] = [RowsForwardedBack(feed=FeedId(1)), EndFeed(feed=FeedId(1), vnodes=(VnodeId(0),))]
    assert [group.machines[0].step(said(1, message)) for message in late] == [[], []]
    assert group.machines[0].step(TimeToFeed(keys_max=1)) == []


def test_when_all_meet_again_it_is_said_again_that_all_was_said() -> None:
    group, _ = fed(9)
    group.meet()
    assert group.carry(0, 1) == [FedThrough(feed=FeedId(1), epoch=Epoch(1))]
    group.open(A)
    group.meet()
    assert group.carry(0, 1) == []


def test_a_worker_that_begins_anew_feeds_no_follower() -> None:
    group, _ = fed(1)
    group.step(0, assign(generation=1))
    assert not group.machines[0].can_feed
