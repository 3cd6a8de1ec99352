"""Every worked example of document 002, table by table, as the document prints it.

Each is tried both with the document's first version, where only new members learn, and with the balance that it
leaves to its version 4.0, which is the default.
"""

from dataclasses import replace

import pytest
from membership_kit import (
    Table,
    active,
    alone,
    following,
    held_by,
    joining_of,
    lags,
    play,
    standby,
    table,
    table_of,
    tasks,
)

from upriver.coordinator.assignor import assign
from upriver.coordinator.group import (
    ActiveTask,
    Assignment,
    AssignmentPlan,
    Group,
    LeaderMemory,
    MembershipConfig,
    StandbyTask,
    TaskId,
    asking_for_a_round,
    tasks_of_workers,
)
from upriver.ids import WorkerId

T1, T2, T3 = TaskId(1), TaskId(2), TaskId(3)
S1, S2, S3, S4, S5 = map(WorkerId, range(1, 6))
FIVE = tasks(1, 2, 3, 4, 5)

STABLE = """
    S1(assigned: [T1, T2], revoked: [], learning: [])
    S2(assigned: [T3, T4], revoked: [], learning: [])
    S3(assigned: [T5], revoked: [], learning: [])
"""
S4_JOINS = """
    S1(assigned: [T1, T2], revoked: [], learning: [])
    S2(assigned: [T3, T4], revoked: [], learning: [])
    S3(assigned: [T5], revoked: [], learning: [])
    S4(assigned: [], revoked: [], learning: [T1])
"""
S5_JOINS_WITH = """
    S1(assigned: [T2], revoked: [T1], learning: []) // T1 revoked because it's "being learned"
    S2(assigned: [T3, T4], revoked: [], learning: [])
    S3(assigned: [T5], revoked: [], learning: [])
    S4(assigned: [], revoked: [], learning: [T1])
    S5(assigned: [], revoked: [], learning: [])
"""
S5_JOINS = """
    S1(assigned: [T1, T2], revoked: [], learning: [])
    S2(assigned: [T3, T4], revoked: [], learning: [])
    S3(assigned: [T5], revoked: [], learning: [])
    S4(assigned: [], revoked: [], learning: [T1])
    S5(assigned: [], revoked: [], learning: [T3])
"""
S4_READY_WITH = """
    S1(assigned: [T2], revoked: [T1], learning: [])
    S2(assigned: [T4], revoked: [T3], learning: []) // T3 revoked because it's "being learned"
    S3(assigned: [T5], revoked: [], learning: [])
    S4(assigned: [], revoked: [], learning: [T1])
    S5(assigned: [], revoked: [], learning: [T3])
"""
S4_READY = """
    S1(assigned: [T2], revoked: [T1], learning: [])
    S2(assigned: [T3, T4], revoked: [], learning: [])
    S3(assigned: [T5], revoked: [], learning: [])
    S4(assigned: [T1], revoked: [], learning: [])
    S5(assigned: [], revoked: [], learning: [T3])
"""
S5_READY_WITH = """
    S1(assigned: [T2], revoked: [], learning: [])
    S2(assigned: [T4], revoked: [T3], learning: []) // T3 revoked because it's "being learned"
    S3(assigned: [T5], revoked: [], learning: [])
    S4(assigned: [T1], revoked: [], learning: [])
    S5(assigned: [], revoked: [], learning: [T3])
"""
S5_READY = """
    S1(assigned: [T2], revoked: [], learning: [])
    S2(assigned: [T4], revoked: [T3], learning: [])
    S3(assigned: [T5], revoked: [], learning: [])
    S4(assigned: [T1], revoked: [], learning: [])
    S5(assigned: [T3], revoked: [], learning: [])
"""
S1_CRASHES_WITH = """
    S2(assigned: [T3, T4], revoked: [], learning: [])
    S3(assigned: [T5], revoked: [], learning: [])
    S4(assigned: [], revoked: [], learning: [T1])
"""
S1_CRASHES = """
    S2(assigned: [T3, T4], revoked: [], learning: [])
    S3(assigned: [T5, T2], revoked: [], learning: [])
    S4(assigned: [T1], revoked: [], learning: [])
"""
LEADER_CRASH_BEFORE_WITH = """
    S2(assigned: [T2, T3, T4, T5], revoked: [], learning: [])
    S3(assigned: [], revoked: [], learning: [])
    S4(assigned: [], revoked: [], learning: [])
"""
LEADER_CRASH_BEFORE = """
    S2(assigned: [T2, T3, T4, T5], revoked: [], learning: [])
    S3(assigned: [T1], revoked: [], learning: [])
    S4(assigned: [], revoked: [], learning: [])
"""


@pytest.fixture(params=[False, True], ids=["first version", "eventual balance"])
def config(request: pytest.FixtureRequest) -> MembershipConfig:
    return MembershipConfig(eventual_balance=request.param)


def joined(members: Table, memory: LeaderMemory | None) -> Group:
    """The group of members that join so, with the document's five tasks."""
    return Group(tasks=FIVE, instances=alone(*members), held=held_by(members), memory=memory)


def s4_has_joined(config: MembershipConfig) -> tuple[Group, AssignmentPlan]:
    """The "First Rebalance" of the first two tables."""
    members = table(STABLE)
    stable = joined(members, LeaderMemory(members=frozenset({S1, S2, S3})))
    group = replace(stable, instances=alone(1, 2, 3, 4))
    return group, assign(group, config)


def s5_has_joined(config: MembershipConfig) -> tuple[Group, AssignmentPlan]:
    group, plan = s4_has_joined(config)
    group = replace(following(group, plan), instances=alone(1, 2, 3, 4, 5))
    return group, assign(group, config)


def s4_is_ready(config: MembershipConfig) -> tuple[Group, AssignmentPlan]:
    group, plan = s5_has_joined(config)
    group = following(group, plan, ready={(T1, S4)})
    return group, assign(group, config)


def test_scale_up_stable_state(config: MembershipConfig) -> None:
    """Table Scale-up, "Group stable state: S1[T1, T2], S2[T3, T4], S3[T5]": a round changes nothing, and is the
    last."""
    members = table(STABLE)
    plan = assign(joined(members, LeaderMemory(members=frozenset({S1, S2, S3}))), config)
    assert table_of(plan, members) == members
    assert not plan.another_round


def test_scale_up_first_rebalance(config: MembershipConfig) -> None:
    """Table Scale-up, "#First Rebalance": "there is no real ownership transfer"."""
    _, plan = s4_has_joined(config)
    assert table_of(plan, (1, 2, 3, 4)) == table(S4_JOINS)
    assert plan.another_round


def test_scale_up_second_rebalance(config: MembershipConfig) -> None:
    """Table Scale-up, "#Second Rebalance": what members join with is printed, and what the leader makes of it.

    The members' "T1 revoked" is an offer: the leader gives T1 back to S1, since S4 is not ready.
    """
    _, plan = s4_has_joined(config)
    assert joining_of(plan, (1, 2, 3, 4, 5)) == table(S5_JOINS_WITH)
    assert held_by(table(S5_JOINS_WITH)) == plan.assignment
    _, plan = s5_has_joined(config)
    assert table_of(plan, (1, 2, 3, 4, 5)) == table(S5_JOINS)
    assert plan.another_round


def test_scale_up_third_rebalance(config: MembershipConfig) -> None:
    """Table Scale-up, "#Third Rebalance": S4 takes T1 over. Here "revoked" in the leader's table is no offer: S1 gives
    T1 up. The document uses one word for both."""
    _, before = s5_has_joined(config)
    assert joining_of(before, (1, 2, 3, 4, 5)) == table(S4_READY_WITH)
    _, plan = s4_is_ready(config)
    assert table_of(plan, (1, 2, 3, 4, 5)) == table(S4_READY)
    assert plan.another_round


def test_scale_up_fourth_rebalance(config: MembershipConfig) -> None:
    """Table Scale-up, "#Fourth Rebalance". The document contradicts itself: "Member S5 is ready", and the caption of
    its next line says "(S5 is not ready yet)", copied from above. S5 gets T3, so it is ready."""
    group, plan = s4_is_ready(config)
    assert joining_of(plan, (1, 2, 3, 4, 5)) == table(S5_READY_WITH)
    plan = assign(following(group, plan, ready={(T3, S5)}), config)
    assert table_of(plan, (1, 2, 3, 4, 5)) == table(S5_READY)
    assert not plan.another_round, 'the document: "Now the group reaches balance with 5 members each owning one task"'


@pytest.mark.parametrize("text", [S5_JOINS_WITH, S4_READY_WITH, S5_READY_WITH, S1_CRASHES_WITH])
def test_what_members_say_is_enough_without_memory(text: str, config: MembershipConfig) -> None:
    """The text: "Each worker stream thread maintains its own assignment status": learners go on when the leader has
    changed, and no new one is begun."""
    members = table(text)
    plan = assign(joined(members, None), config)
    assert all(plan.assignment.learner.get(task, worker) == worker for task, worker in held_by(members).learner.items())
    assert plan.assignment.learner.keys() <= held_by(members).learner.keys()


def test_scale_up_is_played_to_its_end(config: MembershipConfig) -> None:
    """The four rebalances once more, S4 and S5 joining at once: every member ends with one task."""
    group, _ = s4_has_joined(config)
    rounds = play(replace(group, instances=alone(1, 2, 3, 4, 5)), config)
    assert [len(played.plan.assignment.learner) for played in rounds] == [2, 0]
    assert sorted(rounds[-1].plan.assignment.active.values()) == [S1, S2, S3, S4, S5]


def test_scaling_up_from_scratch(config: MembershipConfig) -> None:
    """The text on scaling up from scratch: "all stream threads are new members. There is no need to start a learner
    stage"."""
    plan = assign(Group(tasks=FIVE, instances=alone(1, 2, 3)), config)
    assert plan.assignment.active == active(S1=[1, 4], S2=[2, 5], S3=[3])
    assert not plan.assignment.learner
    assert not plan.another_round
    assert plan.memory == LeaderMemory(members=frozenset({S1, S2, S3}))


def test_a_task_that_no_worker_has_moves_at_once_while_others_are_learned(config: MembershipConfig) -> None:
    """The text: "By identifying whether the given task is in the active task bucket for other members, if not we just
    transfer the ownership immediately": T8, which is new, goes to S4; T1, which is active, is learned first."""
    held = Assignment(active=active(S1=[1, 2, 3], S2=[4, 5], S3=[6, 7]))
    memory = LeaderMemory(members=frozenset({S1, S2, S3}))
    plan = assign(Group(tasks=tasks(*range(1, 9)), instances=alone(1, 2, 3, 4), held=held, memory=memory), config)
    assert plan.assignment.active == {**held.active, **active(S4=[8])}
    assert plan.assignment.learner == {T1: S4}


def test_scale_down_first_rebalance_is_that_of_scale_up(config: MembershipConfig) -> None:
    """Table Scale-down stream applications, "#First Rebalance". The title is a slip: nothing is scaled down, S1 crashes
    while a group is scaled up ("leader crash after" its learners were assigned)."""
    _, plan = s4_has_joined(config)
    assert table_of(plan, (1, 2, 3, 4)) == table(S4_JOINS)


def test_leader_crash_after_learners_were_assigned(config: MembershipConfig) -> None:
    """Table Scale-down stream applications, "#Second Rebalance": S1, the leader, crashes before S4 is ready. "S4 is
    learning T1 which has no current active task. We could rebalance T1, T2 immediately."

    The document does not say why T2 goes to S3 and not to S4, which has as much to do: the lower one is asked first.
    """
    _, before = s4_has_joined(config)
    members = table(S1_CRASHES_WITH)
    assert joining_of(before, members) == members
    for memory in (None, before.memory):
        plan = assign(joined(members, memory), config)
        assert table_of(plan, members) == table(S1_CRASHES)
        assert not plan.another_round, 'the document: "Now the group reaches balance."'


def test_leader_crash_before_learners_were_assigned() -> None:
    """Table Leader crash before: "no learner assignment since S2 doesn't know S4 is new member".

    Slips of the document: its first line names three threads and lists two; "New member S4 joins", while its tables
    have S3 as well, which gets T1. "Now the group reaches balance, although the eventual load is skewed" holds for its
    first version: no round is to follow.
    """
    members = table(LEADER_CRASH_BEFORE_WITH)
    plan = assign(joined(members, None), MembershipConfig(eventual_balance=False))
    assert table_of(plan, members) == table(LEADER_CRASH_BEFORE)
    assert not plan.another_round
    after = assign(following(joined(members, None), plan), MembershipConfig(eventual_balance=False))
    assert table_of(after, members) == table(LEADER_CRASH_BEFORE)


def test_leader_crash_before_is_evened_out_by_later_rounds() -> None:
    """The same table with eventual balance, version 4.0: the round is the document's, and the skew ends in the next."""
    members = table(LEADER_CRASH_BEFORE_WITH)
    rounds = play(joined(members, None), MembershipConfig())
    assert table_of(rounds[0].plan, members) == table(LEADER_CRASH_BEFORE)
    assert rounds[0].plan.another_round
    assert rounds[1].plan.assignment.learner == {T2: S4, T3: S3}
    assert rounds[-1].plan.assignment.active == active(S2=[4, 5], S3=[1, 3], S4=[2])


def test_task_tags(config: MembershipConfig) -> None:
    """The table of tags, over the third rebalance: beingLearned is an active task's; isLearner and isReady a standby
    task's; isStateful both's."""
    group, _ = s4_is_ready(config)
    _, before = s5_has_joined(config)
    seen = tasks_of_workers(before, group, config)
    assert seen[S1].active == (ActiveTask(T1, is_stateful=True, being_learned=True), ActiveTask(T2, True, False))
    assert seen[S2].active[0] == ActiveTask(T3, is_stateful=True, being_learned=True)
    assert seen[S4].standby == (StandbyTask(T1, is_stateful=True, is_learner=True, is_ready=True),)
    assert seen[S5].standby == (StandbyTask(T3, is_stateful=True, is_learner=True, is_ready=False),)
    after = tasks_of_workers(assign(group, config), group, config)
    assert after[S1].revoked == (T1,)
    assert after[S4].active == (ActiveTask(T1, is_stateful=True, being_learned=False),)


def test_task_tags_of_standbys(config: MembershipConfig) -> None:
    """A learner is "a special standby task": where it was a standby, it is one task. T3 has no state."""
    held = Assignment(active=active(S1=[1, 2], S2=[3]), standby=standby(S2=[1], S3=[2]), learner=active(S2=[1]))
    group = Group(
        tasks=[*tasks(1, 2), *tasks(3, stateful=False)],
        instances=alone(1, 2, 3),
        held=held,
        lag_epochs=lags([(T2, S3)]),
    )
    replicated = replace(config, num_standby_replicas=1)
    seen = tasks_of_workers(assign(group, replicated), group, replicated)
    assert seen[S2].active == (ActiveTask(T3, is_stateful=False, being_learned=False),)
    assert seen[S2].standby == (StandbyTask(T1, is_stateful=True, is_learner=True, is_ready=False),)
    assert seen[S3].standby == (StandbyTask(T2, is_stateful=True, is_learner=False, is_ready=True),)


@pytest.mark.parametrize(("partial", "asks_after"), [(True, 1), (False, 2)], ids=["eager", "stable"])
def test_learner_partial_rebalance(partial: bool, asks_after: int) -> None:
    """The text on restoration times: "S1 takes two learner tasks T1, T2, where restoring time time(T1) < time(T2)":
    eager, it calls for a rebalance when T1 is ready, and when T2 is; stable, once, when both are."""
    config = MembershipConfig(learner_partial_rebalance=partial)
    learning = Assignment(active=active(S2=[1, 2, 3, 4]), learner=active(S1=[1, 2]))
    group = Group(tasks=tasks(1, 2, 3, 4), instances=alone(1, 2), held=learning)
    finished = [(), {(T1, S1)}, {(T1, S1), (T2, S1)}]
    asking = [asking_for_a_round(replace(group, lag_epochs=lags(copies)), config) for copies in finished]
    assert [bool(workers) for workers in asking] == [count >= asks_after for count in range(3)]
    assert asking[2] == {S1}


def test_scaling_down_prefers_standbys() -> None:
    """The text: "When performing learner assignment, we shall prioritize stream threads which currently have standby
    tasks that match learner assignment. Therefore the group should rebalance pretty soon and let the leaving member
    shutdown".

    The algorithm's own list has "to instances with corresponding standby tasks" last. That order holds between workers
    when loads are evened out; for what a leaver has this text does, since it speaks of nothing else. S2 would then have
    three tasks and S3 one, so S3 learns T2, of which it is a standby too.
    """
    config = MembershipConfig(num_standby_replicas=1)
    held = Assignment(active=active(S1=[1], S2=[2, 3], S3=[4]), standby=standby(S2=[1, 4], S3=[2, 3]))
    group = Group(
        tasks=tasks(1, 2, 3, 4),
        instances=alone(1, 2, 3),
        held=held,
        leaving={S1: 0},
        memory=LeaderMemory(members=frozenset({S1, S2, S3})),
    )
    first = assign(group, config)
    assert first.assignment.learner == {T1: S2, T2: S3}
    assert first.assignment.active == held.active
    assert not first.may_stop
    second = assign(following(group, first, ready={(T1, S2), (T2, S3)}), config)
    assert second.assignment.active == active(S2=[1, 3], S3=[2, 4])
    assert second.may_stop == {S1}


def test_new_instances_only_in_the_first_version() -> None:
    """The text: "The learner tasks shall only be assigned to new instances once": old ones stay as uneven as they
    are."""
    config = MembershipConfig(eventual_balance=False)
    held = Assignment(active=active(S1=[1, 2, 3, 4], S2=[]))
    group = Group(
        tasks=tasks(1, 2, 3, 4),
        instances=alone(1, 2, 3),
        held=held,
        memory=LeaderMemory(members=frozenset({S1, S2})),
    )
    rounds = play(group, config)
    assert {worker for played in rounds for worker in played.plan.assignment.learner.values()} == {S3}
    assert rounds[-1].plan.assignment.active == active(S1=[3, 4], S3=[1, 2])


@pytest.mark.parametrize("members", [frozenset({S1, S2, S3, S4, S5}), frozenset({S1, S2})])
def test_no_endless_shuffling_when_there_are_few_tasks(members: frozenset[WorkerId], config: MembershipConfig) -> None:
    """The text: "When the number of tasks are much smaller than total cluster capacity, we could fall in endless
    resource shuffling": no worker is two tasks behind another, so nothing moves."""
    held = Assignment(active=active(S1=[1], S2=[2]))
    group = Group(tasks=tasks(1, 2), instances=alone(1, 2, 3, 4, 5), held=held, memory=LeaderMemory(members=members))
    plan = assign(group, config)
    assert plan.assignment == held
    assert not plan.another_round
