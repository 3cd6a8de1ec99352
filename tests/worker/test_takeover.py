"""A worker is lost, and all go on with what they keep: what is put back, and taken over; rules replication.put_back
and replication.caught_up."""

from collections.abc import Sequence
from typing import Any

import pytest
from copying_kit import copied, copy, keep, take
from followers_kit import A2, TAKEN_OVER, THIRDS, A, B, C, FadingReplica, WorkerGroup, rescued, right, standing_by, torn
from machines_kit import (
    ALL_MINE,
    HALVES,
    KEYS,
    owners_with,
    read,
    reports,
)
from stages_kit import OTHER_END, built, staged

from upriver.errors import IllegalEvent, ProtocolError
from upriver.protocol.messages import TookOver


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
