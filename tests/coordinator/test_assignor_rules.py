"""The assignor's rules A1 to A15, one by one: ``docs/internals/membership.md``."""

from dataclasses import replace
from typing import Any

import pytest
from membership_kit import active, all_copies, alone, copies_of, following, lags, play, standby, tasks

from upriver.coordinator.assignor import Roster, assign, problems
from upriver.coordinator.group import (
    Assignment,
    Group,
    InstanceId,
    LeaderMemory,
    MembershipConfig,
    TaskId,
    asking_for_a_round,
)
from upriver.errors import DeclarationError, ProtocolError
from upriver.ids import WorkerId

T1, T2, T3, T4 = map(TaskId, range(1, 5))
S1, S2, S3, S4 = map(WorkerId, range(1, 5))
USUAL = MembershipConfig()
FIRST_VERSION = MembershipConfig(eventual_balance=False)


def known(group: Group) -> Group:
    """The leader remembers these very members."""
    return replace(group, memory=LeaderMemory(members=frozenset(w for ws in group.instances.values() for w in ws)))


def learning(lag: int | None) -> Group:
    """S1 has T1 and T2, S2 learns T1 and is so far behind."""
    held = Assignment(active=active(S1=[1, 2]), learner=active(S2=[1]))
    behind = {} if lag is None else lags([(T1, S2)], lag)
    return known(Group(tasks=tasks(1, 2), instances=alone(1, 2), held=held, lag_epochs=behind))


def test_a1_a_ready_learner_takes_over() -> None:
    plan = assign(learning(lag=0), USUAL)
    assert plan.assignment.active == active(S1=[2], S2=[1])
    assert plan.revoked == {T1: S1}
    assert not plan.assignment.learner


def test_a1_a_learner_that_leaves_does_not() -> None:
    plan = assign(replace(learning(lag=0), leaving={S2: 0}), USUAL)
    assert plan.assignment == Assignment(active=active(S1=[1, 2]))
    assert plan.may_stop == {S2}


@pytest.mark.parametrize(("lag", "ready"), [(0, True), (2, True), (3, False), (None, False)])
def test_a2_a_copy_is_ready_within_the_acceptable_lag(lag: int | None, ready: bool) -> None:
    plan = assign(learning(lag), MembershipConfig(acceptable_lag_epochs=2))
    assert plan.assignment.active[T1] == (S2 if ready else S1)


def test_a3_an_owner_keeps_its_task_until_another_worker_is_ready() -> None:
    """Also one that leaves, and though a standby could serve it at once."""
    held = Assignment(active=active(S1=[1], S2=[2]), standby=standby(S2=[1]))
    group = Group(tasks=tasks(1, 2), instances=alone(1, 2), held=held, leaving={S1: 0}, lag_epochs=lags([(T1, S2)]))
    plan = assign(known(group), MembershipConfig(num_standby_replicas=1))
    assert plan.assignment.active == held.active
    assert plan.assignment.learner == {T1: S2}


def lost(lag_of_learner: int, lag_of_standbys: dict[int, int]) -> Group:
    """T1's owner is gone; S2 learns it, S3 and S4 are its standbys."""
    held = Assignment(active=active(S2=[2], S3=[3], S4=[4]), learner=active(S2=[1]), standby=standby(S3=[1], S4=[1]))
    behind = {WorkerId(worker): epochs for worker, epochs in lag_of_standbys.items()}
    group = Group(
        tasks=tasks(1, 2, 3, 4), instances=alone(2, 3, 4), held=held, lag_epochs={T1: {S2: lag_of_learner} | behind}
    )
    return known(group)


@pytest.mark.parametrize(
    ("lag_of_learner", "lag_of_standbys", "chosen"),
    [
        (0, {3: 0, 4: 0}, S2),  # a ready learner
        (9, {3: 8, 4: 8}, S2),  # no replica is ready: the learner
        (9, {3: 8, 4: 1}, S4),  # a standby that is ready, before a learner that is not
        (9, {3: 1, 4: 0}, S4),  # the standby that is the least behind
        (9, {3: 1}, S3),  # of whose lag something is known
        (9, {3: 1, 4: 1}, S3),  # equals: the lower id
    ],
)
def test_a4_where_the_owner_is_lost_a_copy_takes_over(
    lag_of_learner: int, lag_of_standbys: dict[int, int], chosen: WorkerId
) -> None:
    assert assign(lost(lag_of_learner, lag_of_standbys), USUAL).assignment.active[T1] == chosen


@pytest.mark.parametrize(
    ("lag_of_standbys", "leaver", "chosen"),
    [
        ({}, None, S3),
        ({3: 9}, None, S3),
        ({4: 9}, None, S4),  # of whose lag something is known
        ({3: 9, 4: 8}, None, S4),  # the least behind
        ({3: 8, 4: 9}, S3, S4),  # one that stays
        ({3: 0, 4: 9}, S3, S3),  # but before that, one that is ready: it serves until another has learned the task
    ],
)
def test_a4_a_standby_takes_over_where_no_worker_learns(
    lag_of_standbys: dict[int, int], leaver: WorkerId | None, chosen: WorkerId
) -> None:
    group = replace(lost(9, lag_of_standbys), leaving={} if leaver is None else {leaver: 0})
    plan = assign(replace(group, held=replace(group.held, learner={})), USUAL)
    assert plan.assignment.active[T1] == chosen
    assert plan.another_round == (leaver is not None)


def test_a4_of_equal_standbys_those_with_less_to_do() -> None:
    """All of a lost worker's tasks do not end up with one."""
    held = Assignment(active={}, standby=standby(S2=[1, 2, 3, 4], S3=[1, 2, 3, 4]))
    plan = assign(known(Group(tasks=tasks(1, 2, 3, 4), instances=alone(2, 3), held=held)), USUAL)
    assert plan.assignment.active == active(S2=[1, 3], S3=[2, 4])


def test_a5_a_task_without_a_copy_goes_to_the_least_loaded_worker() -> None:
    """S2 has none, but is to have three; S3 leaves."""
    held = Assignment(active=active(S1=[1, 2, 3, 4, 5, 6]), learner=active(S2=[1, 2, 3]))
    group = Group(tasks=tasks(1, 2, 3, 4, 5, 6, 7, 8), instances=alone(1, 2, 3, 4), held=held, leaving={S3: 0})
    plan = assign(known(group), USUAL)
    assert plan.assignment.active == {**held.active, **active(S4=[7, 8])}


def test_a5_workers_of_an_instance_come_in_turn() -> None:
    """Few tasks are spread over instances first."""
    instances = {InstanceId("a"): [S1, S2], InstanceId("b"): [S3, S4]}
    plan = assign(Group(tasks=tasks(1, 2, 3), instances=instances), USUAL)
    assert plan.assignment.active == active(S1=[1], S3=[2], S2=[3])


def test_a6_tasks_of_leavers_go_to_standbys_then_to_the_least_loaded_worker() -> None:
    held = Assignment(active=active(S1=[1, 2], S2=[3, 4], S3=[5]), standby=standby(S2=[2]))
    group = Group(tasks=tasks(1, 2, 3, 4, 5), instances=alone(1, 2, 3), held=held, leaving={S1: 0})
    plan = assign(known(group), MembershipConfig(num_standby_replicas=1))
    assert plan.assignment.learner == {T1: S3, T2: S2}


def test_a6_the_heaviest_leaver_comes_first() -> None:
    held = Assignment(active=active(S1=[1], S2=[2, 3]))
    group = Group(tasks=tasks(1, 2, 3), instances=alone(1, 2, 3), held=held, leaving={S1: 0, S2: 0})
    plan = assign(known(group), MembershipConfig(max_warmup_replicas=1))
    assert plan.assignment.learner == {T2: S3}
    assert plan.another_round


def test_a6_leavers_are_emptied_in_the_first_version_too() -> None:
    """Where no worker is new: "to instances who are not marked leaving"."""
    held = Assignment(active=active(S1=[1, 2], S2=[3], S3=[4]))
    group = Group(tasks=tasks(1, 2, 3, 4), instances=alone(1, 2, 3), held=held, leaving={S1: 0})
    rounds = play(known(group), FIRST_VERSION)
    assert rounds[-1].plan.assignment.active == active(S2=[1, 3], S3=[2, 4])
    assert rounds[-1].plan.may_stop == {S1}


def test_a6_newcomers_come_first_among_equals() -> None:
    held = Assignment(active=active(S1=[1]))
    group = Group(tasks=tasks(1), instances=alone(1, 2, 3), held=held, leaving={S1: 0})
    plan = assign(replace(group, memory=LeaderMemory(members=frozenset({S1, S2}))), USUAL)
    assert plan.assignment.learner == {T1: S3}


def test_a7_learners_are_picked_from_the_heaviest_until_loads_are_within_one() -> None:
    held = Assignment(active=active(S1=[1, 2, 3], S2=[4, 5, 6, 7], S3=[8]))
    group = Group(tasks=tasks(*range(1, 9)), instances=alone(1, 2, 3), held=held)
    assert assign(known(group), USUAL).assignment.learner == {T4: S3}


def test_a7_a_task_that_the_taker_is_a_standby_of_is_picked_first() -> None:
    held = Assignment(active=active(S1=[1, 2, 3]), standby=standby(S2=[3]))
    group = Group(tasks=tasks(1, 2, 3), instances=alone(1, 2), held=held)
    assert assign(known(group), MembershipConfig(num_standby_replicas=1)).assignment.learner == {T3: S2}


def test_a7_newcomers_come_first_among_equals() -> None:
    held = Assignment(active=active(S1=[1, 2, 3]))
    group = Group(
        tasks=tasks(1, 2, 3),
        instances=alone(1, 2, 3),
        held=held,
        memory=LeaderMemory(members=frozenset({S1, S2})),
    )
    assert assign(group, MembershipConfig(max_warmup_replicas=1)).assignment.learner == {T1: S3}


def test_a8_no_more_learners_load_than_the_budget_allows() -> None:
    """Two at a time, so three rounds for five tasks, and one to take the last one over; a newcomer remains one."""
    held = Assignment(active=active(S1=list(range(1, 11))))
    memory = LeaderMemory(members=frozenset({S1}))
    group = Group(tasks=tasks(*range(1, 11)), instances=alone(1, 2), held=held, memory=memory)
    rounds = play(group, FIRST_VERSION)
    assert [len(played.plan.assignment.learner) for played in rounds] == [2, 2, 1, 0]
    assert [played.plan.memory.newcomers for played in rounds] == [{S2}, {S2}, {S2}, set()]


def test_a8_a_learner_that_is_a_standby_does_not_count() -> None:
    numbers = list(range(1, 11))
    held = Assignment(active=active(S1=numbers), standby=standby(S2=numbers))
    group = Group(tasks=tasks(*numbers), instances=alone(1, 2), held=held)
    config = MembershipConfig(num_standby_replicas=1, max_warmup_replicas=1)
    first = assign(known(group), config)
    assert len(first.assignment.learner) == 5
    assert first.assignment.standby == held.standby
    last = assign(following(known(group), first, all_copies(first)), config)
    assert last.assignment.standby == standby(S1=numbers[:5], S2=numbers[5:])


def test_a8_while_leavers_wait_nothing_is_evened_out() -> None:
    """S2 gets enough from S1 in later rounds; what it is a standby of need not move to it."""
    held = Assignment(active=active(S1=[1, 2, 3], S2=[4], S3=[5, 6, 7, 8]), standby=standby(S2=[5]))
    group = Group(tasks=tasks(*range(1, 9)), instances=alone(1, 2, 3), held=held, leaving={S1: 0})
    rounds = play(known(group), MembershipConfig(max_warmup_replicas=1))
    assert [set(played.plan.assignment.learner) for played in rounds] == [{1}, {2}, {3}, set()]


def test_a8_while_leavers_wait_newcomers_remain_new() -> None:
    """No worker has two tasks more than S3 yet, but what S1 has is still to come."""
    held = Assignment(active=active(S1=[1, 2, 3, 4]), standby=standby(S2=[3, 4]))
    memory = LeaderMemory(members=frozenset({S1, S2}))
    group = Group(tasks=tasks(1, 2, 3, 4), instances=alone(1, 2, 3), held=held, leaving={S1: 0}, memory=memory)
    plan = assign(group, MembershipConfig(max_warmup_replicas=1, eventual_balance=False))
    assert plan.assignment.learner == active(S3=[1], S2=[3, 4])
    assert plan.memory == LeaderMemory(members=frozenset({S1, S2, S3}), newcomers=frozenset({S3}))


def test_a9_learners_that_there_are_go_on() -> None:
    """Though S3 would be the better place by now."""
    held = Assignment(active=active(S1=[1, 2, 3, 4]), learner=active(S2=[1, 2, 3]))
    group = Group(tasks=tasks(1, 2, 3, 4), instances=alone(1, 2, 3), held=held)
    assert assign(known(group), MembershipConfig(max_warmup_replicas=9)).assignment.learner == held.learner


def test_a9_but_not_those_of_leavers() -> None:
    held = Assignment(active=active(S1=[1, 2]), learner=active(S2=[1]))
    group = Group(tasks=tasks(1, 2), instances=alone(1, 2, 3), held=held, leaving={S2: 0})
    plan = assign(known(group), USUAL)
    assert plan.assignment.learner == {T1: S3}
    assert plan.may_stop == {S2}


def test_a10_a_standby_is_on_another_instance_than_the_active_one() -> None:
    """Not on the same executor, though another worker there has less to do."""
    instances = {InstanceId("a"): [S1, S2], InstanceId("b"): [S3]}
    held = Assignment(active=active(S1=[1], S3=[2, 3]))
    group = Group(tasks=tasks(1, 2, 3), instances=instances, held=held)
    config = MembershipConfig(num_standby_replicas=2, eventual_balance=False)
    plan = assign(known(group), config)
    assert plan.assignment.standby[T1] == {S3}
    assert plan.assignment.standby[T2] | plan.assignment.standby[T3] == {S1, S2}
    assert assign(replace(group, instances={InstanceId("a"): [S1, S2]}), config).assignment.standby == {}


def test_a10_a_standby_stays_where_it_is_unless_the_active_one_comes_there() -> None:
    instances = {InstanceId("a"): [S1], InstanceId("b"): [S2, S3], InstanceId("c"): [S4]}
    held = Assignment(active=active(S1=[1, 2]), learner=active(S2=[1]), standby=standby(S3=[1, 2]))
    group = Group(tasks=tasks(1, 2), instances=instances, held=held, lag_epochs=lags([(T1, S2)]))
    plan = assign(known(group), MembershipConfig(num_standby_replicas=1))
    assert plan.assignment.active[T1] == S2
    assert plan.assignment.standby == standby(S1=[1], S3=[2])


def test_a10_a_standby_is_on_another_host_than_the_active_one_where_there_is_one() -> None:
    """Though another executor on the host has the state, or less to do; it returns where no other host has room."""
    instances = {InstanceId("h/1"): [S1], InstanceId("h/2"): [S2], InstanceId("i/1"): [S3]}
    held = Assignment(active=active(S1=[1, 2], S3=[3, 4]), standby=standby(S2=[1, 2]))
    config = MembershipConfig(num_standby_replicas=1, eventual_balance=False)
    group = known(Group(tasks=tasks(1, 2, 3, 4), instances=instances, held=held))
    assert assign(group, config).assignment.standby == {T1: {S3}, T2: {S3}, T3: {S2}, T4: {S2}}
    less = replace(group, instances={InstanceId("h/1"): [S1], InstanceId("h/2"): [S2], InstanceId("h/3"): [S3]})
    assert assign(less, config).assignment.standby[T1] == {S2}


def test_a10_the_standby_that_learns_is_the_last_to_end() -> None:
    """When there are to be fewer."""
    held = Assignment(active=active(S1=[1]), learner=active(S3=[1]), standby=standby(S2=[1], S3=[1]))
    group = Group(tasks=tasks(1), instances=alone(1, 2, 3), held=held)
    assert assign(known(group), MembershipConfig(num_standby_replicas=1)).assignment.standby == {T1: {S3}}


def test_a11_the_worker_that_gave_a_task_up_becomes_its_standby() -> None:
    """Document 002: "to previous active task owners after learner transfer in this round". S3 has less to do."""
    group = known(replace(learning(lag=0), instances=alone(1, 2, 3)))
    plan = assign(group, MembershipConfig(num_standby_replicas=1, eventual_balance=False))
    assert plan.assignment.standby[T1] == {S1}


def test_a11_a_standby_goes_to_the_least_loaded_worker_and_stays() -> None:
    """What a worker learns counts as what it has: that is all S3 has."""
    held = Assignment(active=active(S1=[1], S2=[2, 3]))
    group = Group(tasks=tasks(1, 2, 3), instances=alone(1, 2, 3, 4), held=held, leaving={S4: 0})
    plan = assign(known(group), MembershipConfig(num_standby_replicas=1))
    assert plan.assignment.learner == {T2: S3}
    assert plan.assignment.standby == standby(S1=[2], S2=[1], S3=[3])


def test_a11_each_task_gets_its_first_standby_before_any_its_second() -> None:
    held = Assignment(active=active(S1=[1], S2=[2], S3=[3]), standby=standby(S2=[1], S3=[1]))
    group = Group(tasks=tasks(1, 2, 3), instances=alone(1, 2, 3), held=held)
    for replicas in (1, 2):
        plan = assign(known(group), MembershipConfig(num_standby_replicas=replicas))
        assert {len(plan.assignment.standby[task]) for task in (T1, T2, T3)} == {replicas}
        assert len(copies_of(plan.assignment)) == 3 * replicas


def test_a11_where_a_task_is_learned_no_standby_of_it_is_begun() -> None:
    """It would have to end when the learner takes over."""
    plan = assign(learning(lag=None), MembershipConfig(num_standby_replicas=1))
    assert plan.assignment.standby == standby(S2=[2])


@pytest.mark.parametrize("partial", [True, False])
def test_a12_a_worker_asks_for_a_round_of_its_own_learners_only(partial: bool) -> None:
    config = MembershipConfig(learner_partial_rebalance=partial)
    held = Assignment(active=active(S1=[1, 2, 3, 4]), learner=active(S2=[1], S3=[2, 3]), standby=standby(S4=[1]))
    group = Group(tasks=tasks(1, 2, 3, 4), instances=alone(1, 2, 3, 4), held=held)
    ready = replace(group, lag_epochs=lags([(T1, S2), (T2, S3), (T1, S4)]))
    assert asking_for_a_round(group, config) == set()
    assert asking_for_a_round(ready, config) == ({S2, S3} if partial else {S2})


@pytest.mark.parametrize(("limit_ms", "waited_for"), [(None, True), (1_001, True), (1_000, False), (0, False)])
def test_a13_a_leaver_is_waited_for_until_the_timeout(limit_ms: int | None, waited_for: bool) -> None:
    held = Assignment(active=active(S1=[1], S2=[2]), standby=standby(S3=[1]))
    group = Group(tasks=tasks(1, 2), instances=alone(1, 2, 3), held=held, leaving={S1: 1_000})
    plan = assign(known(group), MembershipConfig(scale_down_timeout_ms=limit_ms))
    assert plan.assignment.active[T1] == (S1 if waited_for else S3)
    assert plan.may_stop == (set() if waited_for else {S1})
    assert plan.revoked == {}


def test_a13_where_all_leave_none_does() -> None:
    held = Assignment(active=active(S1=[1], S2=[2]))
    group = Group(tasks=tasks(1, 2), instances=alone(1, 2), held=held, leaving={S1: 5, S2: 5})
    for limit_ms in (None, 0):
        plan = assign(known(group), MembershipConfig(scale_down_timeout_ms=limit_ms))
        assert plan.assignment == held
        assert not plan.another_round
        assert not plan.may_stop


def test_a14_a_task_without_state_moves_at_once() -> None:
    """From a leaver, and to even out what tasks with state leave uneven."""
    held = Assignment(active=active(S1=[1, 2, 3], S2=[4, 5, 6], S3=[7]))
    group = Group(
        tasks=[*tasks(1, 2), *tasks(3, 4, 5, 6, 7, stateful=False)],
        instances=alone(1, 2, 3),
        held=held,
        leaving={S3: 0},
    )
    plan = assign(known(group), MembershipConfig(num_standby_replicas=1))
    assert plan.assignment.active == active(S1=[1, 2, 3, 7], S2=[4, 5, 6])
    assert plan.assignment.learner == {T1: S2}
    assert plan.assignment.standby.keys() == {T2}
    assert plan.may_stop == {S3}


def test_a14_tasks_without_state_are_placed_beside_those_with() -> None:
    group = Group(tasks=[*tasks(1, stateful=False), *tasks(2, 3, 4)], instances=alone(1, 2))
    assert assign(group, USUAL).assignment.active == active(S1=[2, 4], S2=[3, 1])


def test_a14_what_is_said_of_other_copies_of_a_task_without_state_is_of_no_meaning() -> None:
    held = Assignment(active=active(S1=[1]), learner=active(S2=[1]), standby=standby(S2=[1]))
    group = Group(tasks=tasks(1, stateful=False), instances=alone(1, 2), held=held, lag_epochs=lags([(T1, S2)]))
    plan = assign(known(group), MembershipConfig(num_standby_replicas=1))
    assert plan.assignment == Assignment(active=active(S1=[1]))


@pytest.mark.parametrize("eventual_balance", [True, False])
def test_a15_without_memory_only_tasks_of_leavers_are_learned(eventual_balance: bool) -> None:
    held = Assignment(active=active(S1=[1, 2, 3, 4], S3=[5]))
    group = Group(tasks=tasks(1, 2, 3, 4, 5), instances=alone(1, 2, 3), held=held, leaving={S3: 0})
    plan = assign(group, MembershipConfig(eventual_balance=eventual_balance))
    assert plan.assignment.learner == active(S2=[5])
    assert plan.memory.members == {S1, S2, S3}


# What is refused ----------------------------------------------------------------------------------------------------

S1, S2, S3, S4 = map(WorkerId, range(1, 5))


def test_the_documents_defaults() -> None:
    """Document 002: ``scale.down.timeout.ms`` "infinity", ``learner.partial.rebalance`` true. Kafka: no standbys, two
    warm-ups."""
    config = MembershipConfig()
    assert config.scale_down_timeout_ms is None
    assert config.learner_partial_rebalance is True
    assert (config.num_standby_replicas, config.max_warmup_replicas) == (0, 2)


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("num_standby_replicas", -1, 0),
        ("num_standby_replicas", True, 0),
        ("max_warmup_replicas", 0, 1),
        ("max_warmup_replicas", 1.5, 1),
        ("acceptable_lag_epochs", -1, 0),
        ("acceptable_lag_epochs", "1", 0),
        ("scale_down_timeout_ms", -1, 0),
        ("scale_down_timeout_ms", float("inf"), 0),
    ],
)
def test_a_count_that_cannot_be_is_refused(name: str, value: Any, least: int) -> None:
    with pytest.raises(DeclarationError, match=f"^{name} must be a whole number, {least} or more, not {value!r}$"):
        MembershipConfig(**{name: value})


@pytest.mark.parametrize("name", ["learner_partial_rebalance", "eventual_balance"])
@pytest.mark.parametrize("value", [1, None, "true"])
def test_a_switch_is_on_or_off(name: str, value: Any) -> None:
    with pytest.raises(DeclarationError, match=f"^{name} must be True or False, not {value!r}$"):
        MembershipConfig(**{name: value})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"instances": {}}, "no worker"),
        ({"instances": {InstanceId("a"): []}}, "no worker"),
        ({"instances": {InstanceId("a"): [S1], InstanceId("b"): [S1]}}, r"in two instances, or twice in one: \[1, 1\]"),
        ({"leaving": {S3: 0}}, r"workers \[3\] leave, and are not there"),
        ({"leaving": {S1: -1}}, r"workers \[1\] were told to leave less than 0 ms ago"),
        ({"tasks": tasks(1, 1)}, "a task is named twice"),
    ],
)
def test_a_group_that_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    group = Group(tasks=tasks(1), instances=alone(1, 2))
    with pytest.raises(ProtocolError, match=message):
        replace(group, **wrong)


INSTANCES = {InstanceId("a"): [S1, S2], InstanceId("b"): [S3]}
GOOD = Assignment(active=active(S1=[1], S3=[2, 3]), standby=standby(S3=[1], S2=[2]), learner=active(S2=[2]))


def problems_of(leaving: WorkerId | None = None, **changed: Any) -> tuple[str, ...]:
    """Of tasks 1 and 2, and 3, which has no state."""
    group = Group(tasks=tasks(1, 2, 3), instances=INSTANCES, leaving={} if leaving is None else {leaving: 0})
    config = MembershipConfig(num_standby_replicas=1)
    stateful, stateless = [TaskId(1), TaskId(2)], [TaskId(3)]
    return problems(replace(GOOD, **changed), stateful, stateless, Roster.of(group, config), config)


def test_an_assignment_that_may_be() -> None:
    assert problems_of() == ()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"active": active(S1=[1], S3=[2])}, "tasks [3] are active nowhere, or are not there"),
        ({"active": active(S1=[1], S3=[2, 3, 4])}, "tasks [4] are active nowhere, or are not there"),
        ({"active": active(S1=[1], S3=[2], S9=[3])}, "task 3 is active at worker 9, which takes no part"),
        ({"learner": active(S2=[3])}, "worker 2 learns task 3, which has no state"),
        ({"learner": active(S3=[2])}, "worker 3 learns task 2, which it has"),
        ({"learner": active(S9=[2])}, "worker 9 learns task 2, and does not stay"),
        ({"leaving": S2, "standby": {}}, "worker 2 learns task 2, and does not stay"),
        ({"leaving": S2, "learner": {}}, "workers [2] are standbys of task 2, and do not stay"),
        ({"standby": standby(S1=[3])}, "there are standbys of task 3, which has no state"),
        ({"standby": standby(S2=[1])}, "two copies of task 1 are on one instance: workers [1, 2]"),
        ({"standby": standby(S1=[2], S2=[2])}, "task 2 has 2 standbys, of 1"),
    ],
)
def test_a_problem_is_named(changed: dict[str, Any], problem: str) -> None:
    assert problem in problems_of(**changed)
