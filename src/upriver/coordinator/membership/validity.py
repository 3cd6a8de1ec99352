"""What no assignment may be, whatever the group: checked at the end of every round."""

from collections.abc import Collection, Iterator

from upriver.coordinator.membership.config import MembershipConfig
from upriver.coordinator.membership.group import Assignment, TaskId
from upriver.coordinator.membership.roster import Roster
from upriver.ids import WorkerId


def problems(
    assignment: Assignment,
    stateful: Collection[TaskId],
    stateless: Collection[TaskId],
    roster: Roster,
    config: MembershipConfig,
) -> tuple[str, ...]:
    """What is wrong with the assignment, in words; nothing, if it is one.

    Each task is active at one worker that takes part. Only stateful tasks have other copies. A learner is not where
    the task is active. The active copy and the standbys of a task are on an instance each, and there are not too many
    standbys. A leaver is given neither a learner nor a standby.
    """
    return (
        *_wrong_actives(assignment, {*stateful, *stateless}, roster),
        *_wrong_learners(assignment, set(stateful), roster),
        *_wrong_standbys(assignment, set(stateful), roster, config),
    )


def _wrong_actives(assignment: Assignment, tasks: set[TaskId], roster: Roster) -> Iterator[str]:
    if wrong := sorted(tasks ^ assignment.active.keys()):
        yield f"tasks {wrong} are active nowhere, or are not there"
    for task, worker in sorted(assignment.active.items()):
        if worker not in roster.instance_of:
            yield f"task {task} is active at worker {worker}, which takes no part"


def _wrong_learners(assignment: Assignment, stateful: set[TaskId], roster: Roster) -> Iterator[str]:
    for task, worker in sorted(assignment.learner.items()):
        if task not in stateful:
            yield f"worker {worker} learns task {task}, which has no state"
        elif worker == assignment.active.get(task):
            yield f"worker {worker} learns task {task}, which it has"
        if worker not in roster.rank or worker in roster.leaving:
            yield f"worker {worker} learns task {task}, and does not stay"


def _wrong_standbys(
    assignment: Assignment, stateful: set[TaskId], roster: Roster, config: MembershipConfig
) -> Iterator[str]:
    for task, standbys in sorted(assignment.standby.items()):
        if away := sorted(standbys - set(roster.staying)):
            yield f"workers {away} are standbys of task {task}, and do not stay"
            continue
        holders: list[WorkerId] = [assignment.active[task], *standbys] if task in assignment.active else [*standbys]
        if task not in stateful:
            yield f"there are standbys of task {task}, which has no state"
        if len({roster.instance_of.get(worker) for worker in holders}) < len(holders):
            yield f"two copies of task {task} are on one instance: workers {sorted(holders)}"
        if len(standbys) > config.num_standby_replicas:
            yield f"task {task} has {len(standbys)} standbys, of {config.num_standby_replicas}"
