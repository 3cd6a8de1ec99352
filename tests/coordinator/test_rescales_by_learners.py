"""Rescales by learners: a joiner learns its share, a leaver is learned from, and slices change hands between two
epochs; document 002."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import pytest
from coordinator_kit import PLAN, abort, listeners, only, outcomes, said, scan, settled, wanted
from stages_kit import STAGED
from standbys_kit import THIRDS, Config, Group

from upriver.coordinator.replication import EPOCHS_BETWEEN_MAX
from upriver.errors import DeclarationError
from upriver.ids import SnapshotId
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import (
    LeaversOverdue,
    PlansWanted,
    RescaleBegun,
    RescaleEnded,
    SnapshotReady,
    StartWorkers,
)
from upriver.protocol.messages import (
    Assign,
    CaughtUp,
    EpochFinished,
    Follow,
    OpenEpoch,
    PeersLost,
    Resume,
    Retire,
    SnapshotTaken,
    StartedAnew,
    Unfollow,
)
from upriver.protocol.strategies import Strategy

PARTIAL = replace(PLAN, full_because=None)
HALF = (0, 0, 0, 0, 1, 1, 1, 1)
"""What workers 0 and 1 own."""
TICKET = 1


def learning(
    workers: int,
    owners: Sequence[int] = HALF,
    plans: Sequence[DataflowPlan] = (PLAN,),
    standbys: int = 0,
    deaf: bool = False,
    **config: Unpack[Config],
) -> Group:
    """A rescale to so many workers, by learners, has been asked for; the joiners are there. deaf: no replica catches
    up."""
    group = Group(owners, standbys, plans, **config)
    group.epoch()
    if deaf:
        group.silent = {CaughtUp}
    group.happens(wanted(TICKET, workers=workers, strategy=Strategy.LEARNER))
    joining = [worker for start in only(StartWorkers, group.log) for worker in start.workers]
    group.come(*joining)
    return group


def ended(group: Group) -> list[tuple[int, str, int]]:
    return outcomes(group.log)


def flows(group: Group) -> None:
    """An epoch is opened for all, and ends."""
    before = len(group.log)
    group.epoch()
    assert group.ended == group.machine.published
    told = listeners(OpenEpoch, group.log[before:])
    assert {group.places[worker] for worker in group.workers} <= set(told)


@pytest.mark.parametrize("plans", [[PLAN], [STAGED], [PARTIAL]])
@pytest.mark.parametrize("standbys", [0, 1])
def test_a_joiner_learns_its_share_and_takes_it_over(plans: Sequence[DataflowPlan], standbys: int) -> None:
    group = learning(3, plans=plans, standbys=standbys)
    assert ended(group) == [(TICKET, "finished", 2)]
    assert [group.owners.count(worker) for worker in (0, 1, 2)] == [3, 3, 2]
    (begun,) = only(RescaleBegun, group.log)
    assert (begun.before, begun.after, begun.vnodes) == (2, 3, 2)
    assert len(only(Assign, group.log)) == 3
    flows(group)
    assert group.machine.leader.is_settled


@pytest.mark.parametrize("plans", [[PLAN], [STAGED], [PARTIAL]])
@pytest.mark.parametrize("standbys", [0, 1])
def test_a_leaver_ends_with_nothing_and_retires(plans: Sequence[DataflowPlan], standbys: int) -> None:
    group = learning(2, THIRDS, plans, standbys)
    assert ended(group) == [(TICKET, "finished", 2)]
    assert sorted(group.owners) == [0, 0, 0, 1, 1, 1]
    assert (listeners(Retire, group.log), group.places, group.workers) == ([3], {0: 1, 1: 2}, (0, 1))
    flows(group)
    if standbys and plans != [PARTIAL]:
        assert group.standing() == (1, 6, 0)


@pytest.mark.parametrize("standbys", [0, 1])
def test_a_worker_with_nothing_leaves_at_once(standbys: int) -> None:
    """Nothing moves, so no worker says anything more from which the coordinator could tell."""
    group = learning(3, standbys=standbys)
    one, other = (vnode for vnode, owner in enumerate(group.owners) if owner == 2)
    group.happens(wanted(2, moves={one: 0, other: 1}))
    group.happens(*(settled(group.places[worker], group.machine.vnode_map.version + 1) for worker in (0, 1, 2)))
    assert group.owners.count(2) == 0
    group.happens(wanted(3, workers=2, strategy=Strategy.LEARNER))
    assert ended(group)[-1] == (3, "finished", 0)
    assert (group.workers, sorted(group.places)) == ((0, 1), [0, 1])
    flows(group)


def test_a_stayer_does_not_miss_a_leaver() -> None:
    group = learning(2, THIRDS, [STAGED])
    assigned = len(only(Assign, group.log))
    group.happens(said(group.places[0], PeersLost(meeting=3, why="gone", peer=None)))
    flows(group)
    assert len(only(Assign, group.log)) == assigned


def test_so_many_learn_at_a_time_and_each_round_hands_over_what_is_learned() -> None:
    group = learning(2, (0,) * 4 + (1,) * 4 + (2,) * 4, deaf=True, max_warmup_replicas=2)
    rounds = 0
    while not ended(group):
        assert len({feed.vnodes for _, feed in group.feeds.values()}) <= 2
        group.say()
        rounds += 1
        assert rounds < 10
    assert len({resume.generation for resume in only(Resume, group.log)}) >= 2
    assert len(only(Assign, group.log)) == 3
    assert sorted(group.owners) == [0] * 6 + [1] * 6


def test_slices_stay_where_they_are_until_they_are_learned_and_epochs_flow_meanwhile() -> None:
    group = learning(3, deaf=True)
    for _ in range(3):
        flows(group)
    assert (group.owners, group.standing(), ended(group)) == (HALF, (0, 0, 2), [])
    group.speak()
    assert ended(group) == [(TICKET, "finished", 2)]


def test_replication_caught_up_a_standby_an_epoch_behind_takes_nothing_over_and_no_worker_begins_anew() -> None:
    group = learning(3, deaf=True)
    flows(group)
    late, group.unsaid = group.unsaid[:2], group.unsaid[2:]
    group.happens(*(said(who, message) for who, message in late))
    assert [message.epoch for _, message in late if isinstance(message, CaughtUp)] == [1, 1]
    assert (only(Resume, group.log), len(only(Assign, group.log)), group.owners) == ([], 3, HALF)
    group.speak()
    assert (ended(group), len(only(Assign, group.log))) == ([(TICKET, "finished", 2)], 3)


def test_replication_between_epochs_slices_change_hands_between_two_epochs() -> None:
    group = learning(3, deaf=True)
    group.silent = {CaughtUp, EpochFinished}
    group.epoch()
    group.say(CaughtUp)
    assert only(Resume, group.log) == []
    group.speak()
    assert {resume.at for resume in only(Resume, group.log)} == {2}
    assert ended(group) == [(TICKET, "finished", 2)]


@pytest.mark.parametrize("at_a_time", [1, 2, 30])
def test_replication_published_epochs_first_when_slices_have_changed_hands(at_a_time: int) -> None:
    """But no more than so many, or where epochs come faster than they go there would be no end."""
    group = learning(3, (0,) * 6 + (1,) * 6, deaf=True, max_warmup_replicas=1)
    group.silent = {CaughtUp, EpochFinished}
    rounds, first = 0, 0
    while rounds < 4:
        for _ in range(at_a_time):
            group.epoch()
        resumed = {resume.at for resume in only(Resume, group.say())}
        if resumed:
            (at,) = resumed
            assert first <= at <= first + 2
            rounds, first = rounds + 1, min(group.machine.published, at + EPOCHS_BETWEEN_MAX)
        assert group.machine.published < 100 * at_a_time
    group.speak()
    assert (ended(group), group.ended) == ([(TICKET, "finished", 4)], group.machine.published)


def test_replication_between_epochs_and_not_below_a_snapshot() -> None:
    group = learning(3, deaf=True)
    group.happens(scan(9))
    group.speak()
    assert only(Resume, group.log) == []
    for worker in group.workers:
        group.says(worker, SnapshotTaken(snapshot=SnapshotId(1), rows=0))
    assert len(only(SnapshotReady, group.log)) == 1
    assert ended(group) == [(TICKET, "finished", 2)]


def test_worker_own_generation_only_a_worker_that_caught_up_before_all_resumed_does_not_count() -> None:
    group = learning(3)
    number = next(iter(only(Follow, group.log))).feed
    assert group.says(0, CaughtUp(feed=number, epoch=group.machine.published)) == []
    flows(group)


# What ends before its time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plans", [[PLAN], [STAGED]])
@pytest.mark.parametrize("standbys", [0, 1])
def test_aborted_a_joiner_gives_all_back_and_goes(plans: Sequence[DataflowPlan], standbys: int) -> None:
    group = learning(3, plans=plans, standbys=standbys, deaf=True)
    assert list(group.workers) == [0, 1, 2]
    group.happens(abort(TICKET))
    group.speak()
    flows(group)
    assert ended(group) == [(TICKET, "aborted", 0)]
    assert (group.owners, group.workers, sorted(group.places)) == (HALF, (0, 1), [0, 1])
    flows(group)


def test_aborted_what_had_moved_by_then_is_learned_back() -> None:
    group = learning(3, deaf=True, max_warmup_replicas=1)
    group.say()
    assert group.owners.count(2) == 1
    group.happens(abort(TICKET))
    group.speak()
    assert [(ticket, outcome) for ticket, outcome, _ in ended(group)] == [(TICKET, "aborted")]
    assert sorted(group.owners) == [0] * 4 + [1] * 4
    flows(group)


def test_aborted_a_leaver_stays() -> None:
    group = learning(2, THIRDS, deaf=True)
    group.happens(abort(TICKET))
    group.speak()
    assert (sorted(group.owners), group.workers, listeners(Retire, group.log)) == (sorted(THIRDS), (0, 1, 2), [])
    assert [(ticket, outcome) for ticket, outcome, _ in ended(group)] == [(TICKET, "aborted")]
    flows(group)


def test_aborted_while_others_learn_no_worker_is_waited_for_any_more() -> None:
    group = learning(3, (0, 0, 0, 0, 1), deaf=True)
    group.silent = {CaughtUp, EpochFinished}
    group.epoch()
    group.say(CaughtUp)
    group.happens(abort(TICKET))
    group.silent = {CaughtUp}
    group.say(EpochFinished)
    assert (ended(group), sorted(group.owners)) == ([(TICKET, "aborted", 1)], [0, 0, 0, 1, 1])
    group.speak()
    flows(group)


def test_leavers_that_are_overdue_are_not_waited_for() -> None:
    group = learning(2, THIRDS, deaf=True, scale_down_timeout_ms=10)
    assert (group.owners, ended(group)) == (THIRDS, [])
    assert group.happens(LeaversOverdue(ticket=7)) == []
    actions = group.happens(LeaversOverdue(ticket=TICKET))
    assert only(Resume, actions) == []
    assert {assign.generation for assign in only(Assign, actions)} == {1}
    group.speak()
    flows(group)
    assert ended(group) == [(TICKET, "finished", 2)]
    assert (sorted(group.owners), group.workers, listeners(Retire, group.log)) == ([0, 0, 0, 1, 1, 1], (0, 1), [3])
    assert group.happens(LeaversOverdue(ticket=TICKET)) == []


def test_overdue_is_of_no_matter_where_no_worker_leaves() -> None:
    group = learning(3, deaf=True)
    assert group.happens(LeaversOverdue(ticket=TICKET)) == []
    group.speak()
    assert ended(group) == [(TICKET, "finished", 2)]


def test_moves_of_single_slices_cannot_be_learned() -> None:
    group = Group(HALF, standbys=0)
    (over,) = group.happens(wanted(TICKET, moves={0: 1}, strategy=Strategy.LEARNER))
    assert isinstance(over, RescaleEnded)
    assert (over.outcome, type(over.error)) == ("refused", DeclarationError)
    assert "strategy 'learner' finds the places of slices by itself" in str(over.error)


def test_as_many_as_there_are_is_over_at_once() -> None:
    group = learning(2)
    assert (ended(group), group.owners) == ([(TICKET, "finished", 0)], HALF)
    flows(group)


def test_views_that_are_dropped_while_a_worker_learns_leave_nobody_who_learns() -> None:
    group = learning(3, standbys=1)
    group.silent = {CaughtUp}
    group.lose(2)
    group.lease_over(3)
    group.come(2)
    assert not group.machine.leader.is_settled
    group.happens(PlansWanted(ticket=3, plans=(), epochs=()), wanted(4, workers=2))
    assert group.machine.leader.is_settled
    assert ended(group)[-1] == (4, "refused", 0)  # there is no view


# Other ways to rescale, and accidents ------------------------------------------------------------------------------


@pytest.mark.parametrize("plans", [[PLAN], [STAGED]])
def test_a_joiner_that_is_lost_is_waited_for(plans: Sequence[DataflowPlan]) -> None:
    group = learning(3, plans=plans, deaf=True)
    group.lose(2)
    group.lease_over(3)
    assert ended(group) == []
    group.silent.clear()
    group.unsaid.clear()
    group.come(2)
    flows(group)
    flows(group)
    assert (ended(group), group.owners.count(2)) == ([(TICKET, "finished", 2)], 2)


@pytest.mark.parametrize("plans", [[PLAN], [STAGED]])
def test_a_joiner_that_is_lost_where_others_stand_by_is_waited_for(plans: Sequence[DataflowPlan]) -> None:
    group = learning(3, plans=plans, standbys=1, deaf=True)
    group.lose(2)
    group.lease_over(3)
    assert ended(group) == []
    group.speak()
    group.come(2)
    flows(group)
    flows(group)
    assert (ended(group), group.owners.count(2)) == ([(TICKET, "finished", 2)], 2)


@pytest.mark.parametrize("strategy", [Strategy.ICADD, Strategy.RESTART])
def test_by_another_strategy_no_worker_follows_while_keys_move(strategy: Strategy) -> None:
    group = Group(HALF)
    group.epoch()
    actions = group.happens(wanted(TICKET, moves={0: 1}, strategy=strategy))
    assert len(only(Unfollow, actions)) == 2
    assert (only(StartedAnew, actions), group.standing()[2]) == ([], 0)


def test_the_next_rescale_has_its_turn_when_all_is_learned() -> None:
    group = learning(3, deaf=True)
    group.happens(wanted(2, workers=2, strategy=Strategy.LEARNER))
    assert ended(group) == []
    group.speak()
    assert ended(group) == [(1, "finished", 2), (2, "finished", 2)]
    assert (sorted(group.owners), group.workers) == ([0] * 4 + [1] * 4, (0, 1))
    flows(group)
