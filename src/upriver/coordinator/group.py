"""The input and the result of a round of assignment: settings, group, plan, and each worker's tasks (document 002).

``MembershipConfig``: the assignor's settings, under their names in document 002 (and in KIP-441).

``Group``: tasks, workers, the copies they hold and how far behind these are, leavers, and the last round's memory.
Document 002's *instance* is an executor, its *stream thread* a worker, its *task* a vnode. Its "historical information
of last round assignment" comes in two parts, since a new leader has only one of them: ``held`` is what the members say
themselves when they join a round, ``memory`` is what only the leader of the last round knew.

``is_ready``, ``asking_for_a_round``: whether a copy is ready, and whether a worker asks for a round because of it.
Document 002: the tag ``isReady``, and ``learner.partial.rebalance`` with its eager and its stable approach.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NewType, Self

from upriver.errors import DeclarationError, ProtocolError
from upriver.ids import WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipConfig:
    """Document 002's configs, with its defaults where it gives any. Raises DeclarationError for an invalid value."""

    num_standby_replicas: int = 0
    """Copies of each stateful task that follow the active one, each on an instance of its own (``num.standby``)."""
    max_warmup_replicas: int = 2
    """Learners that may load at one time, over all workers. A learner that is a standby already does not count: it
    loads nothing. Document 002 has no such bound; the name, the default and the meaning are KIP-441's."""
    acceptable_lag_epochs: int = 1
    """A copy at most this many epochs behind is ready to take over. KIP-441 counts offsets; the default is ours."""
    scale_down_timeout_ms: int | None = None
    """A round waits this long for a worker that was told to leave (``scale.down.timeout.ms``). None: as long as it
    takes, the document's "infinity"."""
    learner_partial_rebalance: bool = True
    """A worker asks for a round whenever one of its learners is ready (``learner.partial.rebalance``); else only when
    all of them are."""
    eventual_balance: bool = True
    """Any worker with a low load learns tasks of those with more, which the document leaves to its version 4.0. False:
    only new workers do, as in its first version."""

    def __post_init__(self) -> None:
        _check_count("num_standby_replicas", self.num_standby_replicas, least=0)
        _check_count("max_warmup_replicas", self.max_warmup_replicas, least=1)
        _check_count("acceptable_lag_epochs", self.acceptable_lag_epochs, least=0)
        if self.scale_down_timeout_ms is not None:
            _check_count("scale_down_timeout_ms", self.scale_down_timeout_ms, least=0)
        _check_switch("learner_partial_rebalance", self.learner_partial_rebalance)
        _check_switch("eventual_balance", self.eventual_balance)


def _check_count(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise DeclarationError(f"{name} must be a whole number, {least} or more, not {value!r}")


def _check_switch(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise DeclarationError(f"{name} must be True or False, not {value!r}")


TaskId = NewType("TaskId", int)
"""What is assigned. A vnode's number, where tasks are vnodes."""

InstanceId = NewType("InstanceId", str)
"""A process that workers run in and are lost with: an executor."""


@dataclass(frozen=True, slots=True, order=True)
class Task:
    """stateful: there is state to restore (the document's tag ``isStateful``). A task without state moves at once."""

    id: TaskId
    stateful: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The workers that hold the copies of each task. A learner that was a standby remains one until it takes over."""

    active: Mapping[TaskId, WorkerId] = field(default_factory=dict)
    standby: Mapping[TaskId, frozenset[WorkerId]] = field(default_factory=dict)
    learner: Mapping[TaskId, WorkerId] = field(default_factory=dict)

    def among(self, workers: Collection[WorkerId], tasks: Collection[TaskId]) -> Self:
        """The part of it that concerns only these workers and tasks."""
        standby = {task: holders.intersection(workers) for task, holders in self.standby.items() if task in tasks}
        return type(self)(
            active={task: worker for task, worker in self.active.items() if worker in workers and task in tasks},
            standby={task: holders for task, holders in standby.items() if holders},
            learner={task: worker for task, worker in self.learner.items() if worker in workers and task in tasks},
        )

    def is_standby(self, task: TaskId, worker: WorkerId) -> bool:
        return worker in self.standby.get(task, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderMemory:
    """What a round knows of earlier rounds, and no member says. It is lost with the leader.

    members: the workers that took part in the last round; any other worker is new. A place that another process now
    fills must be left out. newcomers: those of them that were new and have not had their share yet.
    """

    members: frozenset[WorkerId] = frozenset()
    newcomers: frozenset[WorkerId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The input of a round of assignment. No order in it matters.

    instances: the living workers, by the instance they run in.
    held: what living members hold, tasks that they offer ("revoked" when they join) included. What it says of workers
        and tasks that are not there is ignored.
    lag_epochs: how many epochs each copy that is not active is behind. A copy that is not named is not ready.
    leaving: workers that were told to leave, and how many milliseconds ago.
    memory: of the last round; None if it was lost with the leader, or if there was no round.
    Raises ProtocolError for no worker, for one named twice, for one that leaves and is not there, for a task twice.
    """

    tasks: Collection[Task]
    instances: Mapping[InstanceId, Collection[WorkerId]]
    held: Assignment = field(default_factory=Assignment)
    lag_epochs: Mapping[TaskId, Mapping[WorkerId, int]] = field(default_factory=dict)
    leaving: Mapping[WorkerId, int] = field(default_factory=dict)
    memory: LeaderMemory | None = None

    def __post_init__(self) -> None:
        workers = [worker for members in self.instances.values() for worker in members]
        if not workers:
            raise ProtocolError("there is no worker to assign tasks to")
        if len(set(workers)) != len(workers):
            raise ProtocolError(f"a worker is in two instances, or twice in one: {sorted(workers)}")
        if unknown := sorted(self.leaving.keys() - set(workers)):
            raise ProtocolError(f"workers {unknown} leave, and are not there")
        if early := sorted(worker for worker, since_ms in self.leaving.items() if since_ms < 0):
            raise ProtocolError(f"workers {early} were told to leave less than 0 ms ago")
        if len({task.id for task in self.tasks}) != len(self.tasks):
            raise ProtocolError("a task is named twice")


def is_ready(task: TaskId, worker: WorkerId, group: Group, config: MembershipConfig) -> bool:
    """Whether the worker's copy is near enough to the active one to take over (rule A2)."""
    lag = group.lag_epochs.get(task, {}).get(worker)
    return lag is not None and lag <= config.acceptable_lag_epochs


def asking_for_a_round(group: Group, config: MembershipConfig) -> frozenset[WorkerId]:
    """The workers that request a round now, because their learners are ready (rule A12).

    Eager (the default): one ready learner is enough. Stable: all learners of the worker must be ready. A round that is
    held for another reason takes every ready learner, whichever worker has requested it.
    """
    learning: dict[WorkerId, list[bool]] = {}
    for task, worker in group.held.learner.items():
        learning.setdefault(worker, []).append(is_ready(task, worker, group, config))
    enough = any if config.learner_partial_rebalance else all
    return frozenset(worker for worker, ready in learning.items() if enough(ready))


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentPlan:
    """The result of a round.

    revoked: tasks that an owner that takes part gives up now, with that owner. another_round: another round follows,
    for learners that will be ready, moves that wait for them, or uneven loads. may_stop: workers told to leave that
    hold nothing any more, or are overdue. memory: for the next round's group.
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
    """A copy that a worker follows. is_learner: it takes over as soon as it is ready. is_ready: it could now."""

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


def tasks_of_workers(plan: AssignmentPlan, group: Group, config: MembershipConfig) -> dict[WorkerId, WorkerTasks]:
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
