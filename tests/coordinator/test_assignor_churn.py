"""Members come, leave and are lost in the middle of rounds; then nothing happens, and the group settles."""

from collections import Counter
from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from membership_kit import all_copies, following, play, tasks

from upriver.coordinator.assignor import assign
from upriver.coordinator.group import Assignment, AssignmentPlan, Group, InstanceId, MembershipConfig
from upriver.ids import WorkerId

TASKS = 24
WORKERS_MAX = 9


def test_rolling_bounce() -> None:
    """Each of three workers is stopped and comes back with nothing, one after the other. Its tasks are served by their
    standbys meanwhile, no other worker's tasks are taken from it while it is away, and all is even in the end."""
    config = MembershipConfig(num_standby_replicas=1)
    whole = {InstanceId(str(n)): [WorkerId(n)] for n in range(3)}
    last = play(Group(tasks=tasks(*range(TASKS)), instances=whole), config)[-1]
    for name in sorted(whole):
        settled = following(last.group, last.plan, all_copies(last.plan))
        away = replace(settled, instances={**whole, name: []})
        plan = assign(away, config)
        for task, owner in settled.held.active.items():
            after = plan.assignment.active[task]
            assert after in settled.held.standby[task] if [owner] == whole[name] else after == owner
        back = replace(following(away, plan, all_copies(plan)), instances=whole)
        last = play(back, config)[-1]
        assert set(Counter(last.plan.assignment.active.values()).values()) == {TASKS // 3}


configs = st.builds(
    MembershipConfig,
    num_standby_replicas=st.integers(0, 2),
    max_warmup_replicas=st.integers(1, 4),
    learner_partial_rebalance=st.booleans(),
)


class Churn(RuleBasedStateMachine):
    """A leader that holds a round after each thing that happens."""

    @initialize(config=configs, workers=st.integers(1, 4))
    def begin(self, config: MembershipConfig, workers: int) -> None:
        self.config = config
        self.hired = workers
        instances = {
            InstanceId(str(n % 3)): [WorkerId(w) for w in range(n, workers, 3)] for n in range(min(3, workers))
        }
        self.group = Group(tasks=tasks(*range(TASKS)), instances=instances)
        self.plan = assign(self.group, config)

    def round(self, group: Group) -> None:
        self.group, self.plan = group, assign(group, self.config)

    def next_group(self, ready: int = 0) -> Group:
        """So many copies are ready, the lowest first."""
        return following(self.group, self.plan, sorted(all_copies(self.plan))[:ready])

    @property
    def workers(self) -> list[WorkerId]:
        return sorted(worker for members in self.next_group().instances.values() for worker in members)

    @rule(instance=st.sampled_from("0123"), ready=st.integers(0, 9))
    @precondition(lambda self: len(self.workers) < WORKERS_MAX)
    def joins(self, instance: str, ready: int) -> None:
        group = self.next_group(ready)
        self.hired += 1
        members = [*group.instances.get(InstanceId(instance), []), WorkerId(self.hired)]
        self.round(replace(group, instances={**group.instances, InstanceId(instance): members}))

    @rule(place=st.integers(0, WORKERS_MAX), ready=st.integers(0, 9))
    def is_told_to_leave(self, place: int, ready: int) -> None:
        group = self.next_group(ready)
        worker = self.workers[place % len(self.workers)]
        self.round(replace(group, leaving={**group.leaving, worker: 0}))

    @rule(place=st.integers(0, WORKERS_MAX), ready=st.integers(0, 9), leader=st.booleans())
    @precondition(lambda self: len(self.workers) > 1)
    def is_lost(self, place: int, ready: int, leader: bool) -> None:
        """leader: what the leader remembers is lost with it."""
        group = self.next_group(ready)
        lost = self.workers[place % len(self.workers)]
        instances = {name: [w for w in members if w != lost] for name, members in group.instances.items()}
        leaving = {worker: since for worker, since in group.leaving.items() if worker != lost}
        memory = None if leader else group.memory
        self.round(replace(group, instances=instances, leaving=leaving, memory=memory))

    @rule(ready=st.integers(0, 99))
    def learners_get_ready(self, ready: int) -> None:
        self.round(self.next_group(ready))

    @rule()
    def settles(self) -> None:
        """Nothing happens any more: rounds end, in balance, with leavers gone and all standbys there."""
        last = play(self.next_group(), self.config)[-1]
        self.group, self.plan = last.group, last.plan
        told = set(self.group.leaving)
        everybody = {worker for members in self.group.instances.values() for worker in members}
        assert self.plan.may_stop == (set() if told == everybody else told)
        self.check_settled(self.next_group(), self.plan)

    def check_settled(self, group: Group, plan: AssignmentPlan) -> None:
        active = Counter(plan.assignment.active.values())
        counts = [active[worker] for worker in self.workers]
        assert max(counts) - min(counts) <= 1
        assert not plan.assignment.learner
        instances = sum(bool(members) for members in group.instances.values())
        wanted = min(self.config.num_standby_replicas, instances - 1)
        assert {len(plan.assignment.standby.get(task.id, ())) for task in group.tasks} == {wanted}

    @invariant()
    def every_task_is_served(self) -> None:
        held: Assignment = self.plan.assignment
        assert len(held.active) == TASKS
        assert set(held.active.values()) <= set(self.workers)


TestChurn = Churn.TestCase
