"""What a round of assignment decides, and how each worker sees it: document 002's tags."""

from collections.abc import Mapping
from dataclasses import dataclass

from upriver.coordinator.membership.config import MembershipConfig
from upriver.coordinator.membership.group import Assignment, Group, LeaderMemory, TaskId
from upriver.coordinator.membership.readiness import is_ready
from upriver.ids import WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a round has decided.

    revoked: tasks that an owner, who takes part, gives up now, and who that is. another_round: there is more to come:
    learners that will be ready, moves that wait for them, or loads that are uneven. may_stop: workers told to leave
    that have nothing any more, or are not waited for. memory: for the next round's group.
    """

    assignment: Assignment
    revoked: Mapping[TaskId, WorkerId]
    another_round: bool
    may_stop: frozenset[WorkerId]
    memory: LeaderMemory


@dataclass(frozen=True, slots=True)
class ActiveTask:
    """A task that a worker serves. is_stateful: there is state to restore. being_learned: another worker learns it."""

    id: TaskId
    is_stateful: bool
    being_learned: bool


@dataclass(frozen=True, slots=True)
class StandbyTask:
    """A copy that a worker follows. is_learner: it is to take over as soon as it is ready. is_ready: it could now."""

    id: TaskId
    is_stateful: bool
    is_learner: bool
    is_ready: bool


@dataclass(frozen=True, slots=True)
class WorkerTasks:
    """One worker's part of a plan, each ascending by task. A learner that is a standby as well is there once."""

    active: tuple[ActiveTask, ...]
    standby: tuple[StandbyTask, ...]
    revoked: tuple[TaskId, ...]


def tasks_of_workers(plan: Plan, group: Group, config: MembershipConfig) -> dict[WorkerId, WorkerTasks]:
    """Every living worker's part of the plan, ascending by worker. group: the one that the plan was made for."""
    assignment = plan.assignment
    stateful = {task.id for task in group.tasks if task.stateful}
    active: dict[WorkerId, list[ActiveTask]] = {}
    for task, worker in sorted(assignment.active.items()):
        active.setdefault(worker, []).append(ActiveTask(task, task in stateful, task in assignment.learner))
    copies = {(worker, task) for task, worker in assignment.learner.items()}
    copies |= {(worker, task) for task, holders in assignment.standby.items() for worker in holders}
    standby: dict[WorkerId, list[StandbyTask]] = {}
    for worker, task in sorted(copies):
        learns = assignment.learner.get(task) == worker
        ready = is_ready(task, worker, group, config)
        standby.setdefault(worker, []).append(StandbyTask(task, task in stateful, learns, ready))
    return {
        worker: WorkerTasks(
            tuple(active.get(worker, ())),
            tuple(standby.get(worker, ())),
            tuple(sorted(task for task, owner in plan.revoked.items() if owner == worker)),
        )
        for worker in sorted(worker for members in group.instances.values() for worker in members)
    }
