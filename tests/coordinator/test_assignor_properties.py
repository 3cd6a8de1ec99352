"""What holds of the assignor for every group: drawn groups, and whole plays of rounds from them."""

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st
from membership_kit import ROUNDS_MAX, Copy, Played, all_copies, copies_of, following, lags, play

from upriver.coordinator.assignor import assign
from upriver.coordinator.group import (
    Assignment,
    AssignmentPlan,
    Group,
    InstanceId,
    LeaderMemory,
    MembershipConfig,
    Task,
    TaskId,
)
from upriver.ids import WorkerId

WORKERS = [WorkerId(number) for number in range(1, 9)]
STRANGERS = [*WORKERS, WorkerId(90), WorkerId(91)]
"""Some that hold tasks are gone."""

configs = st.builds(
    MembershipConfig,
    num_standby_replicas=st.integers(0, 3),
    max_warmup_replicas=st.integers(1, 5),
    acceptable_lag_epochs=st.integers(0, 2),
    scale_down_timeout_ms=st.none() | st.just(1_000),
    learner_partial_rebalance=st.booleans(),
    eventual_balance=st.booleans(),
)


@st.composite
def assignments(draw: st.DrawFn, tasks: Collection[TaskId]) -> Assignment:
    """Anything that members might say they hold, the impossible included."""
    some = st.lists(st.sampled_from(sorted(tasks)), unique=True) if tasks else st.just([])
    worker = st.sampled_from(STRANGERS)
    return Assignment(
        active={task: draw(worker) for task in draw(some)},
        standby={task: draw(st.frozensets(worker, min_size=1, max_size=3)) for task in draw(some)},
        learner={task: draw(worker) for task in draw(some)},
    )


@st.composite
def groups(draw: st.DrawFn, stateless: bool = True, anything_held: bool = True, leave: bool = True) -> Group:
    tasks = [Task(TaskId(n), not stateless or draw(st.booleans())) for n in range(draw(st.integers(0, 16)))]
    workers = draw(st.lists(st.sampled_from(WORKERS), unique=True, min_size=1))
    instances: dict[InstanceId, list[WorkerId]] = {}
    for worker in workers:
        instances.setdefault(InstanceId(draw(st.sampled_from("abcd"))), []).append(worker)
    ids = {task.id for task in tasks}
    owners = st.fixed_dictionaries({task: st.sampled_from(STRANGERS) for task in sorted(ids)})
    held = draw(assignments(ids)) if anything_held else Assignment(active=draw(owners))
    leavers = draw(st.lists(st.sampled_from(workers[1:]), unique=True)) if leave and workers[1:] else []
    copies = draw(st.lists(st.sampled_from(sorted(copies_of(held))), unique=True)) if copies_of(held) else []
    members = draw(st.frozensets(st.sampled_from(WORKERS)))
    return Group(
        tasks=tasks,
        instances=instances,
        held=held,
        lag_epochs=lags(copies, draw(st.integers(0, 2))),
        leaving={worker: draw(st.sampled_from([0, 999, 1_000])) for worker in leavers},
        memory=draw(st.none() | st.just(LeaderMemory(members=members, newcomers=members & set(workers[:1])))),
    )


def workers_of(group: Group) -> set[WorkerId]:
    return {worker for members in group.instances.values() for worker in members}


def loads(owners: Iterable[WorkerId], workers: Iterable[WorkerId]) -> list[int]:
    count = Counter(owners)
    return [count[worker] for worker in workers]


def is_even(counts: list[int]) -> bool:
    return max(counts) - min(counts) <= 1


def stateful_ids(group: Group) -> set[TaskId]:
    return {task.id for task in group.tasks if task.stateful}


@given(groups(), configs)
def test_every_task_is_active_once_at_a_living_worker(group: Group, config: MembershipConfig) -> None:
    active = assign(group, config).assignment.active
    assert active.keys() == {task.id for task in group.tasks}
    assert set(active.values()) <= workers_of(group)


@given(groups(), configs)
def test_copies_of_a_task_are_on_instances_of_their_own(group: Group, config: MembershipConfig) -> None:
    plan = assign(group, config).assignment
    instance = {worker: name for name, members in group.instances.items() for worker in members}
    for task, holders in plan.standby.items():
        assert task in stateful_ids(group)
        assert len(holders) <= config.num_standby_replicas
        assert len({instance[worker] for worker in {plan.active[task], *holders}}) == 1 + len(holders)
    assert plan.learner.keys() <= stateful_ids(group)
    assert all(plan.active[task] != worker for task, worker in plan.learner.items())


@given(groups(leave=False), configs)
def test_there_are_as_many_standbys_as_instances_allow(group: Group, config: MembershipConfig) -> None:
    """One fewer where the task's learner has an instance that is not to be a standby's as well."""
    plan = assign(group, config).assignment
    for task in stateful_ids(group):
        free = len(group.instances) - 1 - (task in plan.learner)
        assert len(plan.standby.get(task, ())) >= min(config.num_standby_replicas, free)


@given(groups(), configs)
def test_a_served_task_goes_only_to_a_ready_worker(group: Group, config: MembershipConfig) -> None:
    """Document 002: "if given task is currently active, reassignment must happen only to stream threads who are
    declared ready to serve this task". A task without state needs nothing to be ready."""
    plan = assign(group, config)
    there = workers_of(group) - plan.may_stop
    for task in stateful_ids(group):
        owner, now = group.held.active.get(task), plan.assignment.active[task]
        if owner in there and now != owner:
            assert group.held.learner[task] == now
            assert group.lag_epochs[task][now] <= config.acceptable_lag_epochs


@given(groups(), configs)
def test_learners_stay_within_their_budget(group: Group, config: MembershipConfig) -> None:
    """Those that load: where a standby is, nothing has to be loaded. Learners that there are already go on."""
    learner = assign(group, config).assignment.learner.items()
    cold = {(task, worker) for task, worker in learner if not group.held.is_standby(task, worker)}
    begun = cold - set(group.held.learner.items())
    assert not begun or len(cold) <= config.max_warmup_replicas


@given(groups(), configs, st.randoms(use_true_random=False))
def test_the_order_of_nothing_matters(group: Group, config: MembershipConfig, rng: Random) -> None:
    def shuffled(mapping: Any) -> Any:
        return dict(rng.sample(sorted(mapping.items()), len(mapping)))

    held = group.held
    other = replace(
        group,
        tasks=rng.sample(list(group.tasks), len(group.tasks)),
        instances={name: rng.sample(members, len(members)) for name, members in shuffled(group.instances).items()},
        held=Assignment(active=shuffled(held.active), standby=shuffled(held.standby), learner=shuffled(held.learner)),
        leaving=shuffled(group.leaving),
    )
    assert assign(other, config) == assign(group, config)


@given(groups(), configs)
def test_leavers_get_nothing_and_end_with_nothing(group: Group, config: MembershipConfig) -> None:
    first = assign(group, config)
    assert not {worker for _, worker in copies_of(first.assignment)} & group.leaving.keys()
    for task, worker in first.assignment.active.items():
        copies = {group.held.active.get(task), group.held.learner.get(task), *group.held.standby.get(task, ())}
        assert worker not in group.leaving or worker in copies
    last = play(group, config)[-1]
    assert not set(last.plan.assignment.active.values()) & group.leaving.keys()
    assert last.group.leaving.keys() <= last.plan.may_stop


@given(groups(), configs)
def test_where_all_are_to_leave_the_last_ones_stay(group: Group, config: MembershipConfig) -> None:
    """A task has to be somewhere: it is as if no worker had been told to leave, but for those whose time is over."""
    late = {worker for worker, since_ms in group.leaving.items() if since_ms == 1_000}
    told = replace(group, leaving={worker: 1_000 if worker in late else 0 for worker in workers_of(group)})
    overdue = late if config.scale_down_timeout_ms == 1_000 else set()
    remaining = {name: [w for w in members if w not in overdue] for name, members in group.instances.items()}
    plan = assign(told, config)
    assert plan.may_stop == overdue
    assert plan == replace(assign(replace(group, instances=remaining, leaving={}), config), may_stop=plan.may_stop)


@given(groups(), configs)
def test_a_worker_that_may_stop_has_nothing(group: Group, config: MembershipConfig) -> None:
    plan = assign(group, config)
    assert plan.may_stop <= group.leaving.keys()
    assert not plan.may_stop & set(plan.assignment.active.values())
    assert not plan.may_stop & {worker for _, worker in copies_of(plan.assignment)}


@given(groups(), configs)
def test_rounds_end_in_balance(group: Group, config: MembershipConfig) -> None:
    """Within one of each other, those with state and all together."""
    last = play(group, replace(config, eventual_balance=True))[-1]
    assert not last.plan.assignment.learner
    staying = workers_of(group) - group.leaving.keys()
    active = last.plan.assignment.active
    assert is_even(loads(active.values(), staying))
    assert is_even(loads((active[task] for task in stateful_ids(group)), staying))


@given(groups(), configs)
def test_a_settled_group_stays_as_it_is(group: Group, config: MembershipConfig) -> None:
    last = play(group, config)[-1]
    again = assign(following(last.group, last.plan, all_copies(last.plan)), config)
    assert again.assignment == last.plan.assignment
    assert not again.another_round
    assert not again.revoked


def moved(rounds: list[Played]) -> int:
    """How often a stateful task has left a living owner."""
    return sum(len(played.plan.revoked.keys() & stateful_ids(played.group)) for played in rounds)


def least_moves(group: Group) -> int:
    """By the formula of the vnode map, where owners that are gone have given up their tasks already."""
    staying = sorted(workers_of(group) - group.leaving.keys())
    there = [owner for owner in group.held.active.values() if owner in workers_of(group)]
    held = loads(there, staying)
    for _ in range(len(group.tasks) - len(there)):  # a task that is lost goes to the worker with the least
        held[held.index(min(held))] += 1
    lower, higher_places = divmod(len(group.tasks), len(staying))
    kept = sum(min(count, lower) for count in held) + min(higher_places, sum(count > lower for count in held))
    return len(group.tasks) - kept


@given(groups(stateless=False, anything_held=False), configs)
def test_no_more_moves_than_balance_needs(group: Group, config: MembershipConfig) -> None:
    """Sticky: of all ways to balance, one with the fewest tasks that leave their owner."""
    plain = replace(config, eventual_balance=True, num_standby_replicas=0, scale_down_timeout_ms=None)
    assert moved(play(group, plain)) == least_moves(group)


@given(groups(stateless=False, anything_held=False), configs)
def test_rounds_are_as_few_as_the_learner_budget_allows(group: Group, config: MembershipConfig) -> None:
    """Each round takes over what the one before has learned, and has as much as it may learned next; one round more
    where memory was lost."""
    plain = replace(config, eventual_balance=True, num_standby_replicas=0, scale_down_timeout_ms=None)
    rounds = play(group, plain)
    assert len(rounds) <= 1 + (group.memory is None) + math.ceil(least_moves(group) / plain.max_warmup_replicas)


@given(groups(), configs)
def test_rounds_are_bounded_whatever_is_held(group: Group, config: MembershipConfig) -> None:
    """A leaver's task may go to a standby first and once more when loads are evened out; learners that there are may go
    where no round would send them now. So a task moves three times at most."""
    tasks_count = len(stateful_ids(group))
    rounds = play(group, config)
    assert moved(rounds) <= 3 * tasks_count
    assert len(rounds) <= 3 + math.ceil(3 * tasks_count / config.max_warmup_replicas)


@given(groups(), configs, st.randoms(use_true_random=False))
def test_rounds_end_however_slowly_learners_get_ready(group: Group, config: MembershipConfig, rng: Random) -> None:
    """One learner at a time, any one, which every round takes over."""

    def one(plan: AssignmentPlan) -> Collection[Copy]:
        return rng.sample(sorted(plan.assignment.learner.items()), min(1, len(plan.assignment.learner)))

    rounds = play(group, config, one)
    assert len(rounds) < ROUNDS_MAX
    assert not rounds[-1].plan.assignment.learner


@given(groups(), configs)
def test_a_crash_takes_over_at_ready_standbys(group: Group, config: MembershipConfig) -> None:
    """Any worker is lost when all is settled: each of its tasks that has a standby is served by one in the next round,
    and no other task goes anywhere before it was learned."""
    replicated = replace(config, num_standby_replicas=max(1, config.num_standby_replicas))
    last = play(replace(group, leaving={}), replicated)[-1]
    settled = following(last.group, last.plan, all_copies(last.plan))
    assume(len(workers_of(settled)) > 1)
    lost = min(workers_of(settled))
    instances = {name: [w for w in members if w != lost] for name, members in settled.instances.items()}
    after = assign(replace(settled, instances=instances), replicated).assignment.active
    for task in stateful_ids(group):
        standbys = settled.held.standby.get(task, frozenset())
        if settled.held.active[task] != lost:
            assert after[task] == settled.held.active[task]
        elif standbys:
            assert after[task] in standbys
