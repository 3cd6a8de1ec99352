"""All workers go on with what they keep, after a loss or between two epochs: what is put back, and taken over; rules
replication.put_back, replication.put_back_has_changed and replication.caught_up."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from copying_kit import copied, copy, keep, take
from followers_kit import A2, TAKEN_OVER, THIRDS, A, B, C, FadingReplica, WorkerGroup, rescued, right, standing_by, torn
from machines_kit import (
    ALL_MINE,
    HALVES,
    KEYS,
    announce,
    asked,
    of_region,
    owners_with,
    read,
    refused,
    reports,
    rows_from,
    said,
)
from stages_kit import OTHER_END, built, staged
from upquery_kit import PARTIAL, Workers, present

from upriver.errors import IllegalEvent, ProtocolError, WrongOwner
from upriver.ids import Epoch, FeedId
from upriver.migration.messages import Bye
from upriver.protocol.messages import CaughtUp, Resume, StartedAnew, TookOver
from upriver.protocol.peers import FedThrough
from upriver.protocol.rules import ALL_RULES, Rules


@pytest.mark.parametrize("through", [(), (1,), (1, 2), (2,)])
def test_replication_put_back_whichever_workers_finished_the_torn_epoch_no_row_is_lost_or_doubled(
    through: Sequence[int],
) -> None:
    group = standing_by()
    group.open(A, C)
    group.read(0, A)
    for worker in through:
        group.end(worker)
    group.carry_all()
    group.die(0)
    group.all_resume(TAKEN_OVER, at=1)
    assert rescued(group) == {A: [1], A2: [1], B: [1], C: [1]}
    group.epoch(A, C)
    assert rescued(group) == right(group) == {A: [1, 2], A2: [1], B: [1], C: [1, 2]}


def test_replication_put_back_what_the_lost_one_has_said_of_the_torn_epoch_is_of_no_use() -> None:
    group = torn(A, B)
    assert group.shadow(2).later
    group.decide(TAKEN_OVER, at=1)
    told = reports(group.resume(2), TookOver)
    assert [(each.vnodes, each.keys) for each in told] == [(3, 3)]
    assert group.kept(2) == {A: [1], A2: [1], B: [1]}


def test_replication_put_back_a_key_that_was_new_or_gone_in_the_torn_epoch_is_not_or_there_again() -> None:
    group = WorkerGroup(build=lambda *_: FadingReplica())
    group.epoch(C)
    group.open(C, KEYS[5][0])
    group.end(1)
    assert group.kept(1) == {KEYS[5][0]: [2]}
    group.all_resume(HALVES, at=1)
    assert group.kept(1) == {C: [1]}


def test_replication_put_back_what_was_gathered_is_put_back_too() -> None:
    group = WorkerGroup(owners=ALL_MINE, workers=1, build=built, assigned=staged)
    first, last = "seen/0", "seen"
    group.epoch(A)
    group.open(A, B)
    group.end(0)
    group.stage(0)
    assert group.kept(0, first) == {A: [1, 2], B: [2]}
    assert group.phase(0).regions.shards[last].region.gathered == 2
    group.all_resume(ALL_MINE, at=1)
    assert (group.kept(0, first), group.kept(0, last)) == ({A: [1]}, {OTHER_END[A]: [1]})
    assert group.phase(0).regions.shards[last].region.gathered == 0
    group.epoch(A, B)
    assert group.kept(0, last) == {OTHER_END[A]: [1, 2], OTHER_END[B]: [2]}


def test_replication_put_back_rows_that_have_come_out_of_the_torn_epoch_go_nowhere() -> None:
    group = WorkerGroup(owners=ALL_MINE, workers=1, build=built, assigned=staged)
    group.open(A)
    group.read(0, A)
    group.all_resume(ALL_MINE, at=0)
    group.epoch(B)
    assert group.kept(0, "seen") == {OTHER_END[B]: [1]}


def test_replication_caught_up_a_standby_that_has_not_caught_up_takes_nothing_over() -> None:
    group = WorkerGroup(owners=THIRDS, workers=3)
    group.epoch(A, B)
    group.follow(2, 0, 0, 1, 2)
    group.carry_all()
    group.feed(0, 1)
    group.carry_all()
    group.die(0)
    group.decide(TAKEN_OVER, at=1)
    with pytest.raises(ProtocolError, match=r"worker 2 is to take slices \[0, 1, 2\] over, and has not followed them"):
        group.resume(2)


def test_replication_caught_up_nor_does_a_standby_that_caught_up_in_an_epoch_that_is_put_back() -> None:
    group = WorkerGroup(owners=THIRDS, workers=3)
    group.epoch(A)
    group.follow(2, 0, 0, 1, 2)
    group.carry_all()
    group.open(A)
    group.feed(0)
    group.end(0)
    group.carry_all()
    assert group.caught_up(2) == [(1, 2)]
    group.die(0)
    group.decide(TAKEN_OVER, at=1)
    with pytest.raises(ProtocolError, match="has not followed them"):
        group.resume(2)


def test_slices_that_no_worker_has_followed_cannot_be_taken_over() -> None:
    group = WorkerGroup()
    group.decide(owners_with(HALVES, v0=1), at=0)
    with pytest.raises(ProtocolError, match=r"slices \[0\] over"):
        group.resume(1)


def test_rows_of_the_torn_epoch_cannot_come_after_all_have_resumed() -> None:
    group = torn(A, C)
    group.all_resume(TAKEN_OVER, at=1)
    with pytest.raises(IllegalEvent, match="epoch 2, which is not being read"):
        group.step(1, read(2, 1))


# Checkpoints ----------------------------------------------------------------------------------------------------------


def checkpointed(build: Any = None) -> WorkerGroup:
    """Slices of a lost worker are taken over after a checkpoint that has them."""
    group = standing_by(chain=(), **({} if build is None else {"build": build}))
    for worker in group.places:
        for event in (take(1, at=1, whole=True), copy(), keep(1)):
            group.step(worker, event)
    return group


def test_checkpoints_moved_keys_change_what_was_taken_over_is_in_the_next_checkpoint() -> None:
    group = checkpointed()
    group.epoch(A)
    group.die(0)
    group.all_resume(TAKEN_OVER, at=2)
    group.step(2, take(2, at=2))
    assert copied(group.step(2, copy())) == {A: [1, 2], A2: [1], B: [1]}


def test_checkpoints_moved_keys_change_what_was_given_up_is_in_the_next_checkpoint_as_gone() -> None:
    group = checkpointed()
    group.all_resume(owners_with(THIRDS, v0=2), at=1)
    group.step(0, take(2, at=1))
    assert copied(group.step(0, copy())) == {A: [], A2: []}


def test_checkpoints_whole_after_losses_of_an_owner_whose_dropped_keys_no_other_names() -> None:
    group = checkpointed(lambda *_: FadingReplica())
    group.epoch(A)
    assert A not in group.followed(2)
    group.die(0)
    group.all_resume(TAKEN_OVER, at=2)
    group.step(2, take(2, at=2))
    assert copied(group.step(2, copy())) == {A2: [1], B: [1]}
    group.step(2, keep(2))
    group.step(2, take(3, at=2, whole=True))
    assert copied(group.step(2, copy())) == {A2: [1], B: [1]}


# Between two epochs -------------------------------------------------------------------------------------------------


def test_a_learner_takes_its_slices_over_and_the_owner_gives_them_up() -> None:
    group = WorkerGroup()
    group.epoch(A, A2, B, C)
    group.has_followers(1, 0, 0)
    group.decide(owners_with(HALVES, v0=1), at=1)
    assert reports(group.resume(0)) == [StartedAnew(generation=1)]
    (anew, told) = reports(group.resume(1))
    assert (anew, told.vnodes, told.keys) == (StartedAnew(generation=1), 1, 2)
    assert told.bytes > 0
    assert (group.kept(0), group.kept(1)) == ({B: [1]}, {A: [1], A2: [1], C: [1]})
    assert not group.phase(0).replication.feeds
    assert not group.phase(1).replication.followed
    group.meet()
    group.epoch(A, B)
    assert (group.kept(0), group.kept(1)) == ({B: [1, 2]}, {A: [1, 2], A2: [1], C: [1]})


def test_slices_that_stay_are_followed_all_the_same() -> None:
    group = WorkerGroup()
    group.epoch(A, B)
    group.has_followers(1, 0, 0, 1)
    group.all_resume(owners_with(HALVES, v0=1), at=1)
    assert group.caught_up(1)[-1] == (1, 1)
    group.epoch(A, B)
    assert (group.kept(1), group.followed(1)) == ({A: [1, 2]}, {B: [1, 2]})
    assert group.caught_up(1)[-1] == (1, 2)


def test_a_follower_that_was_being_fed_is_fed_on() -> None:
    group = WorkerGroup()
    group.epoch(A, A2, B)
    group.follow(1, 0, 0, 1)
    group.carry_all()
    group.feed(0, 1)
    group.all_resume(HALVES, at=1)
    group.carry_all()
    assert group.caught_up(1) == []
    group.feed(0)
    group.carry_all()
    assert (group.followed(1), group.caught_up(1)) == ({A: [1], A2: [1], B: [1]}, [(1, 1)])


def test_a_waiting_client_is_to_ask_again() -> None:
    group = WorkerGroup()
    group.step(0, asked(A, ticket=4, at_least=1))
    group.decide(HALVES, at=0)
    assert refused(group.resume(0)) == {4: WrongOwner}


def test_a_map_cannot_change_below_keys_that_move() -> None:
    group = WorkerGroup()
    group.step(0, announce(HALVES, owners_with(HALVES, v0=1), 0, 1))
    group.decide(HALVES, at=0)
    with pytest.raises(ProtocolError, match="all resume, and keys of region 'seen' are moving"):
        group.resume(0)


def test_worker_own_generation_only_rows_of_the_generation_before_are_not_listened_to() -> None:
    group = torn(A, C)
    group.all_resume(TAKEN_OVER, at=1)
    assert group.machines[2].step(rows_from(0, 2, A)) == []
    assert group.machines[2].step(of_region(0, Bye(version=group.phase(2).regions.shards["seen"].version))) == []


def test_an_epoch_that_was_open_is_opened_again_and_its_rows_of_before_have_no_place() -> None:
    group = torn(A, C)
    group.all_resume(TAKEN_OVER, at=1)
    assert (group.phase(1).progress.opened, group.phase(1).progress.applied, group.phase(1).progress.reading) == (
        1,
        1,
        None,
    )


# Feeds that go on ---------------------------------------------------------------------------------------------------


def put_back_while_copied(rules: Rules) -> WorkerGroup:
    """Worker 1 gets a key as the torn epoch has changed it, before it has caught up; then all resume at the epoch
    before, and it gets the rest."""
    group = WorkerGroup(rules=rules)
    group.epoch(A, A2, B)
    group.open(A)
    group.read(0, A)
    group.follow(1, 0, 0, 1)
    group.carry_all()
    group.feed(0, 1)
    group.carry_all()
    assert group.followed(1) == {A: [1, 2]}
    group.all_resume(HALVES, at=1)
    group.feed(0)
    group.carry_all()
    assert group.caught_up(1) == [(1, 1)]
    return group


def test_replication_put_back_has_changed_a_key_that_was_put_back_is_fed_again() -> None:
    group = put_back_while_copied(ALL_RULES)
    assert group.followed(1) == {A: [1], A2: [1], B: [1]} == group.kept(0)


def test_replication_put_back_has_changed_switched_off_leaves_the_follower_with_what_was_never_so() -> None:
    group = put_back_while_copied(Rules(replication_put_back_has_changed=False))
    assert group.kept(0) == {A: [1], A2: [1], B: [1]}
    assert group.followed(1) == {A: [1, 2], A2: [1], B: [1]}


def test_a_standby_that_had_caught_up_says_so_again_and_is_fed_on() -> None:
    group = standing_by()
    group.has_followers(2, 1, 4, feed=2)
    group.open(A, C)
    group.end(1)
    group.carry_all()
    group.die(0)
    group.decide(TAKEN_OVER, at=1)
    assert reports(group.resume(2), CaughtUp) == [CaughtUp(feed=FeedId(2), epoch=Epoch(1))]
    group.resume(1)
    group.meet()
    group.caught_up(2)
    group.carry_all()
    assert (group.followed(2, 2), group.caught_up(2)) == ({C: [1]}, [(2, 1)])
    group.epoch(C)
    assert (group.followed(2, 2), group.caught_up(2)) == ({C: [1, 2]}, [(2, 2)])


def test_a_standby_that_caught_up_in_the_torn_epoch_catches_up_when_it_is_gone_through_again() -> None:
    group = torn(A, C)
    group.has_followers(2, 1, 4, feed=2)
    group.caught_up(2)
    group.all_resume(TAKEN_OVER, at=1)
    group.carry_all()
    assert (group.followed(2, 2), group.caught_up(2)) == ({C: [1]}, [(2, 1)])
    group.epoch(A, C)
    assert (group.followed(2, 2), group.caught_up(2)) == ({C: [1, 2]}, [(2, 2)])


def test_what_was_said_of_the_torn_epoch_and_comes_late_does_no_harm() -> None:
    group = WorkerGroup()
    group.epoch(A, B)
    group.has_followers(1, 0, 0, 1)
    group.open(A)
    group.end(0)
    group.decide(HALVES, at=1)
    group.resume(1)
    group.caught_up(1)
    group.carry(0, 1)
    assert group.caught_up(1) == []
    assert group.shadow(1).through == 1
    group.resume(0)
    group.meet()
    group.carry_all()
    assert (group.followed(1), group.caught_up(1)) == ({A: [1], B: [1]}, [(1, 1)])
    group.epoch(A)
    assert group.followed(1) == group.kept(0) == {A: [1, 2], B: [1]}


def test_that_all_was_said_does_not_count_when_it_was_said_before_all_resumed() -> None:
    group = WorkerGroup()
    group.has_followers(1, 0, 0)
    group.all_resume(HALVES, at=0)
    group.caught_up(1)
    late = FedThrough(feed=FeedId(1), epoch=Epoch(7))
    assert group.machines[1].step(said(0, late, generation=0)) == []
    assert group.shadow(1).through == 0


def test_an_owner_that_took_over_feeds_its_followers() -> None:
    group = torn(A, C)
    group.all_resume(TAKEN_OVER, at=1)
    group.has_followers(1, 2, 0, 1, 2, 3, feed=9)
    group.epoch(A, B)
    assert group.followed(1, 9) == group.kept(2) == {A: [1, 2], A2: [1], B: [1, 2]}


# What is kept because it is read --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_torn", "keys"), [(False, 2), (True, 0)])
def test_what_is_kept_because_it_is_read_stays_if_no_epoch_is_torn(is_torn: bool, keys: int) -> None:
    workers = Workers()
    workers.epoch(A, B)
    workers.fill(0, A, B)
    if is_torn:
        workers.publish(A)
        workers.open(0, 2, mixed=True)
    resume(workers, HALVES)
    assert present(workers, 0)["keys"] == keys
    ticket = workers.look_up(0, A)
    while workers.upqueries[0]:
        workers.answer(0)
    assert workers.answers[ticket][0] == {
        A: [1, 2] if is_torn else [1]
    }  # partial.read_ahead: an epoch ahead is read, if there is one


def test_what_is_kept_because_it_is_read_goes_with_its_slice_and_is_filled_elsewhere() -> None:
    workers = Workers()
    workers.epoch(A, B)
    workers.fill(0, A, B)
    resume(workers, owners_with(HALVES, v0=1))
    assert (present(workers, 0)["keys"], present(workers, 1)["keys"]) == (1, 0)
    workers.fill(1, A)
    assert workers.answers[max(workers.answers)] == ({A: [1]}, 1)


def resume(workers: Workers, after: Sequence[int]) -> None:
    group = WorkerGroup(plans=(PARTIAL,))
    group.decide(after, at=1)
    for worker in (0, 1):
        order = group.order_for(worker)
        assert isinstance(order, Resume)
        workers.step(worker, replace(order, generation=1))


def test_replication_caught_up_without_the_rule_a_standby_takes_over_less_than_there_was() -> None:
    group = WorkerGroup(owners=THIRDS, workers=3, rules=Rules(replication_caught_up=False))
    group.epoch(A, B)
    group.follow(2, 0, 0, 1, 2)
    group.carry_all()
    group.feed(0, 1)
    group.carry_all()
    group.die(0)
    group.decide(TAKEN_OVER, at=1)
    group.resume(2)
    assert not {A, B} <= group.kept(2, "seen").keys()
