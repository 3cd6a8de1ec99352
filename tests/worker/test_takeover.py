"""A worker is lost, and all go on with what they keep: what is put back, and taken over; rules replication.put_back
and replication.caught_up."""

from collections.abc import Sequence
from typing import Any

import pytest
from copying_kit import copied, copy, keep, take
from followers_kit import A2, TAKEN_OVER, THIRDS, A, B, C, Crew, FadingShadow, rescued, right, standing_by, torn
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
from upriver.protocol.rules import Rules


@pytest.mark.parametrize("through", [(), (1,), (1, 2), (2,)])
def test_s3_whoever_is_through_the_torn_epoch_no_row_is_lost_or_doubled(through: Sequence[int]) -> None:
    crew = standing_by()
    crew.open(A, C)
    crew.read(0, A)
    for worker in through:
        crew.end(worker)
    crew.carry_all()
    crew.die(0)
    crew.all_resume(TAKEN_OVER, at=1)
    assert rescued(crew) == {A: [1], A2: [1], B: [1], C: [1]}
    crew.epoch(A, C)
    assert rescued(crew) == right(crew) == {A: [1, 2], A2: [1], B: [1], C: [1, 2]}


def test_s3_switched_off_doubles_rows() -> None:
    crew = torn(A, C, rules=Rules(replication_put_back=False))
    crew.all_resume(TAKEN_OVER, at=1)
    crew.epoch(A, C)
    assert rescued(crew) == {A: [1, 2], A2: [1], B: [1], C: [1, 2, 2]}


def test_s3_what_the_lost_one_has_said_of_the_torn_epoch_is_of_no_use() -> None:
    crew = torn(A, B)
    assert crew.shadow(2).later
    crew.decide(TAKEN_OVER, at=1)
    told = reports(crew.resume(2), TookOver)
    assert [(each.vnodes, each.keys) for each in told] == [(3, 3)]
    assert crew.kept(2) == {A: [1], A2: [1], B: [1]}


def test_s3_a_key_that_was_new_or_gone_in_the_torn_epoch_is_not_or_there_again() -> None:
    crew = Crew(build=lambda *_: FadingShadow())
    crew.epoch(C)
    crew.open(C, KEYS[5][0])
    crew.end(1)
    assert crew.kept(1) == {KEYS[5][0]: [2]}
    crew.all_resume(HALVES, at=1)
    assert crew.kept(1) == {C: [1]}


def test_s3_what_was_gathered_is_put_back_too() -> None:
    crew = Crew(owners=ALL_MINE, workers=1, build=built, assigned=staged)
    first, last = "seen/0", "seen"
    crew.epoch(A)
    crew.open(A, B)
    crew.end(0)
    crew.stage(0)
    assert crew.kept(0, first) == {A: [1, 2], B: [2]}
    assert crew.phase(0).regions.shards[last].region.gathered == 2
    crew.all_resume(ALL_MINE, at=1)
    assert (crew.kept(0, first), crew.kept(0, last)) == ({A: [1]}, {OTHER_END[A]: [1]})
    assert crew.phase(0).regions.shards[last].region.gathered == 0
    crew.epoch(A, B)
    assert crew.kept(0, last) == {OTHER_END[A]: [1, 2], OTHER_END[B]: [2]}


def test_s3_rows_that_have_come_out_of_the_torn_epoch_go_nowhere() -> None:
    crew = Crew(owners=ALL_MINE, workers=1, build=built, assigned=staged)
    crew.open(A)
    crew.read(0, A)
    crew.all_resume(ALL_MINE, at=0)
    crew.epoch(B)
    assert crew.kept(0, "seen") == {OTHER_END[B]: [1]}


def test_s4_who_has_not_caught_up_takes_nothing_over() -> None:
    crew = Crew(owners=THIRDS, workers=3)
    crew.epoch(A, B)
    crew.follow(2, 0, 0, 1, 2)
    crew.carry_all()
    crew.feed(0, 1)
    crew.carry_all()
    crew.die(0)
    crew.decide(TAKEN_OVER, at=1)
    with pytest.raises(ProtocolError, match=r"worker 2 is to take slices \[0, 1, 2\] over, and has not followed them"):
        crew.resume(2)


def test_s4_nor_who_caught_up_in_an_epoch_that_is_put_back() -> None:
    crew = Crew(owners=THIRDS, workers=3)
    crew.epoch(A)
    crew.follow(2, 0, 0, 1, 2)
    crew.carry_all()
    crew.open(A)
    crew.feed(0)
    crew.end(0)
    crew.carry_all()
    assert crew.caught_up(2) == [(1, 2)]
    crew.die(0)
    crew.decide(TAKEN_OVER, at=1)
    with pytest.raises(ProtocolError, match="has not followed them"):
        crew.resume(2)


def test_s4_switched_off_loses_what_has_not_come() -> None:
    crew = Crew(owners=THIRDS, workers=3, rules=Rules(replication_caught_up=False))
    crew.epoch(A, B)
    crew.follow(2, 0, 0, 1, 2)
    crew.carry_all()
    crew.feed(0, 1)
    crew.carry_all()
    crew.die(0)
    crew.all_resume(TAKEN_OVER, at=1)
    assert crew.kept(2) == {A: [1]}


def test_slices_that_nobody_has_followed_cannot_be_taken_over() -> None:
    crew = Crew()
    crew.decide(owners_with(HALVES, v0=1), at=0)
    with pytest.raises(ProtocolError, match=r"slices \[0\] over"):
        crew.resume(1)


def test_rows_of_the_torn_epoch_cannot_come_after_all_have_resumed() -> None:
    crew = torn(A, C)
    crew.all_resume(TAKEN_OVER, at=1)
    with pytest.raises(IllegalEvent, match="epoch 2, which is not being read"):
        crew.step(1, read(2, 1))


# Checkpoints ----------------------------------------------------------------------------------------------------------


def checkpointed(build: Any = None) -> Crew:
    """Slices of a lost worker are taken over after a checkpoint that has them."""
    crew = standing_by(chain=(), **({} if build is None else {"build": build}))
    for worker in crew.places:
        for event in (take(1, at=1, whole=True), copy(), keep(1)):
            crew.step(worker, event)
    return crew


def test_v4_what_was_taken_over_is_in_the_next_checkpoint() -> None:
    crew = checkpointed()
    crew.epoch(A)
    crew.die(0)
    crew.all_resume(TAKEN_OVER, at=2)
    crew.step(2, take(2, at=2))
    assert copied(crew.step(2, copy())) == {A: [1, 2], A2: [1], B: [1]}


def test_v4_what_was_given_up_is_in_the_next_checkpoint_as_gone() -> None:
    crew = checkpointed()
    crew.all_resume(owners_with(THIRDS, v0=2), at=1)
    crew.step(0, take(2, at=1))
    assert copied(crew.step(0, copy())) == {A: [], A2: []}


def test_v9_what_a_lost_owner_kept_no_more_nobody_names_so_the_next_checkpoint_is_to_be_whole() -> None:
    crew = checkpointed(lambda *_: FadingShadow())
    crew.epoch(A)
    assert A not in crew.followed(2)
    crew.die(0)
    crew.all_resume(TAKEN_OVER, at=2)
    crew.step(2, take(2, at=2))
    assert copied(crew.step(2, copy())) == {A2: [1], B: [1]}
    crew.step(2, keep(2))
    crew.step(2, take(3, at=2, whole=True))
    assert copied(crew.step(2, copy())) == {A2: [1], B: [1]}
