"""The worker machine follows others: what it takes in, and when, and what it tells; rules
replication.epoch_waits_for_followers and replication.taken_in_when_over."""

from followers_kit import WorkerGroup, seen, with_hashes
from machines_kit import ALL_MINE, KEYS, answered, asked, assign, hashed, meet, reports, said, sent, worker

from upriver.ids import Epoch, FeedId, VnodeId, WorkerId
from upriver.protocol.messages import FeedEnded, Follow, Unfollow
from upriver.protocol.peers import BeginFeed, EndFeed, Fed, FedThrough, RowsForwardedBack
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.worker_events import PeerLost, PeersMet, SendPeer

A, B, C = KEYS[0][0], KEYS[1][0], KEYS[2][0]
"""Keys of worker 0's first slices."""
THERE = KEYS[7][0]
"""A key of worker 1."""
FEED = FeedId(1)


def following(rules: Rules = ALL_RULES) -> WorkerGroup:
    """Worker 1 has caught up with slices 0 and 1 of worker 0, at epoch 1."""
    group = WorkerGroup(rules=rules)
    group.epoch(A, B, C, THERE)
    group.has_followers(1, 0, 0, 1)
    assert group.caught_up(1) == [(1, 1)]
    return group


def read_by_owner(group: WorkerGroup, *keys: str) -> None:
    """One more epoch: worker 0 is through it, and worker 1 has heard all of that."""
    group.open(*keys)
    group.end(0)
    group.carry_all()


# What is taken in ---------------------------------------------------------------------------------------------------


def test_the_owner_is_asked_for_the_slices() -> None:
    machine = worker(assign(ALL_MINE, me=1), meet(0, 1))
    (action,) = machine.step(Follow(feed=FEED, owner=WorkerId(0), vnodes=(VnodeId(2), VnodeId(5))))
    assert isinstance(action, SendPeer)
    assert action.envelope.content == BeginFeed(feed=FEED, vnodes=(VnodeId(2), VnodeId(5)))


def test_replication_taken_in_when_over_what_has_changed_in_an_epoch_is_taken_in_when_it_is_over_everywhere() -> None:
    group = following()
    read_by_owner(group, A, THERE)
    assert (group.followed(1), group.caught_up(1)) == ({A: [1], B: [1]}, [(1, 2)])
    group.end(1)
    assert group.followed(1) == {A: [1], B: [1]}
    group.over(2)
    assert group.followed(1) == {A: [1, 2], B: [1]}


def test_replication_taken_in_when_over_without_the_rule_it_is_taken_in_amid_the_epoch() -> None:
    group = following(Rules(replication_taken_in_when_over=False))
    read_by_owner(group, A, THERE)
    assert group.followed(1) == {A: [1, 2], B: [1]}


def test_what_comes_of_an_epoch_that_is_over_is_taken_in_at_once() -> None:
    group = following()
    group.open(A)
    for each in group.places:
        group.end(each)
    group.over(2)
    assert group.followed(1) == {A: [1], B: [1]}
    group.carry_all()
    assert group.followed(1) == {A: [1, 2], B: [1]}


def test_a_copy_takes_the_place_of_what_was_there_and_is_confirmed() -> None:
    group = following()
    again = Fed(feed=FEED, region="seen", epoch=Epoch(0), keys=hashed([B]), state=(with_hashes(seen({B: [7]})),))
    group.step(1, said(0, again))
    assert (group.followed(1), group.carry(1, 0)) == ({A: [1], B: [7]}, [RowsForwardedBack(feed=FEED)])


def test_what_is_followed_is_not_kept() -> None:
    group = following()
    assert group.kept(1) == {THERE: [1]}
    assert answered(group.machines[1].step(asked(A))) == {}
    stats = dict(group.phase(1).regions.stats()["seen"])
    assert stats["keys"] == 1


def test_a_worker_follows_several_at_a_time() -> None:
    group = WorkerGroup(owners=(0, 0, 1, 1, 1, 1, 1, 1), workers=3)
    group.epoch(A, B, C)
    group.has_followers(2, 0, 0, feed=1)
    group.has_followers(2, 1, 2, feed=2)
    group.epoch(A, C)
    assert [group.followed(2, feed) for feed in (1, 2)] == [{A: [1, 2]}, {C: [1, 2]}]
    assert group.caught_up(2)[-2:] == [(1, 2), (2, 2)]


# What is followed no more -------------------------------------------------------------------------------------------


def test_of_slices_that_are_followed_no_more_nothing_is_kept_and_the_owner_is_told() -> None:
    group = following()
    group.unfollow(1, 0)
    assert group.followed(1) == {B: [1]}
    assert group.carry(1, 0) == [EndFeed(feed=FEED, vnodes=(VnodeId(0),))]
    group.unfollow(1, 1)
    assert FEED not in group.phase(1).replication.followed
    assert group.carry(1, 0) == [EndFeed(feed=FEED, vnodes=(VnodeId(1),))]


def test_state_of_slices_that_are_followed_no_more_comes_late_and_is_not_taken_in() -> None:
    group = following()
    group.open(A, B)
    group.end(0)
    group.unfollow(1, 0)
    group.carry_all()
    group.end(1)
    group.over(2)
    assert group.followed(1) == {B: [1, 2]}
    group.epoch(A, B)
    assert group.followed(1) == {B: [1, 2, 3]}


def test_state_that_waits_for_the_epochs_end_goes_with_its_slice() -> None:
    group = following()
    read_by_owner(group, A, B)
    group.unfollow(1, 0)
    group.end(1)
    group.over(2)
    assert group.followed(1) == {B: [1, 2]}


def test_what_comes_of_a_feed_that_is_over_is_of_no_use() -> None:
    group = following()
    group.open(A)
    group.end(0)
    group.unfollow(1, 0, 1)
    told = len(group.said)
    group.carry(0, 1)
    assert len(group.said) == told
    group.carry_all()
    load = Fed(feed=FEED, region="seen", epoch=Epoch(0), keys=hashed([A]), state=(with_hashes(seen({A: [7]})),))
    assert group.machines[1].step(said(0, load)) == []
    assert group.machines[1].step(said(0, FedThrough(feed=FEED, epoch=Epoch(2)))) == []


def test_a_worker_that_follows_nothing_need_not_stop() -> None:
    assert worker(assign()).step(Unfollow(feed=FEED, vnodes=(VnodeId(0),))) == []


def test_an_owner_that_is_gone_is_told_nothing() -> None:
    group = following()
    group.step(1, meet(1, 2, meeting=2))
    group.unfollow(1, 0, 1)
    assert group.carry(1, 0) == []


def test_a_worker_that_begins_anew_follows_no_owner_and_listens_to_no_feed_of_before() -> None:
    group = following()
    group.open(A)
    group.end(0)
    group.step(1, assign((0,) * 4 + (1,) * 4, me=1, generation=1))
    assert group.phase(1).replication.followed == {}
    group.follow(1, 0, 0)
    group.carry(0, 1)
    assert group.followed(1) == {}


# What is lost with a channel -----------------------------------------------------------------------------------------


def ended_when_lost(rules: Rules = ALL_RULES, *, peer: int | None = 0) -> list[FeedId]:
    """Worker 1 follows worker 0, which has not answered, and worker 2, which has; the channel to ``peer`` breaks."""
    machine = worker(assign(ALL_MINE, me=1), meet(0, 1, 2), PeersMet(meeting=1), rules=rules)
    machine.step(Follow(feed=FEED, owner=WorkerId(0), vnodes=(VnodeId(2),)))
    machine.step(Follow(feed=FeedId(2), owner=WorkerId(2), vnodes=(VnodeId(3),)))
    machine.step(said(2, FedThrough(feed=FeedId(2), epoch=Epoch(0))))
    gone = None if peer is None else WorkerId(peer)
    lost = machine.step(PeerLost(peer=gone, incarnation=None, why="cut"))
    return [ended.feed for ended in reports(lost, FeedEnded)]


def test_replication_unfed_says_so_a_standby_that_has_not_caught_up_says_so_when_it_loses_the_channel() -> None:
    """What it asked may be lost, and then no other worker knows of it. Of a replica that has caught up, the owner
    knows."""
    assert ended_when_lost() == [FEED]
    assert ended_when_lost(peer=None) == [FEED]
    assert ended_when_lost(peer=2) == []


def test_replication_unfed_says_so_so_does_a_standby_that_is_told_to_follow_when_the_channel_is_lost() -> None:
    machine = worker(assign(ALL_MINE, me=1), meet(0, 1), PeersMet(meeting=1))
    machine.step(PeerLost(peer=WorkerId(0), incarnation=None, why="cut"))
    said = machine.step(Follow(feed=FEED, owner=WorkerId(0), vnodes=(VnodeId(2),)))
    assert (reports(said), sent(said)) == ([FeedEnded(feed=FEED)], [])
