"""What the assignor is given: tasks, workers, what they hold, how far it is, who leaves, and what its last round knew.

Document 002's *instance* is an executor, its *stream thread* a worker, its *task* a vnode. Its "historical information
of last round assignment" comes in two parts, since a new leader has only one of them: ``held`` is what the members say
themselves when they join a round, ``memory`` is what only the leader of the last round knew.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NewType, Self

from upriver.errors import ProtocolError
from upriver.ids import WorkerId

TaskId = NewType("TaskId", int)
"""What is assigned. A vnode's number, where tasks are vnodes."""

InstanceId = NewType("InstanceId", str)
"""A process that workers run in and are lost with: an executor."""


@dataclass(frozen=True, slots=True, order=True)
class Task:
    """stateful: there is state to restore (the document's tag ``isStateful``). What has none moves at once."""

    id: TaskId
    stateful: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Who holds which copy of each task. A learner that was a standby remains one until it takes over."""

    active: Mapping[TaskId, WorkerId] = field(default_factory=dict)
    standby: Mapping[TaskId, frozenset[WorkerId]] = field(default_factory=dict)
    learner: Mapping[TaskId, WorkerId] = field(default_factory=dict)

    def among(self, workers: Collection[WorkerId], tasks: Collection[TaskId]) -> Self:
        """What of it there still is when there are only these workers and tasks."""
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
    """What a round knows of those before it, and no member says. It is lost with the leader.

    members: who took part in the last round; whoever else is there now is new. A worker's place that another process
    fills must be left out. newcomers: those of them that were new and have not had their share yet.
    """

    members: frozenset[WorkerId] = frozenset()
    newcomers: frozenset[WorkerId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All that a round of assignment goes by. The order of nothing in it matters.

    instances: the living workers, by the instance they run in.
    held: what living members hold, tasks that they offer ("revoked" when they join) included. What it says of workers
        and tasks that are not there is ignored.
    lag_epochs: how far each copy is behind, of those that are not active. A copy that is not named is not ready.
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
        if strangers := sorted(self.leaving.keys() - set(workers)):
            raise ProtocolError(f"workers {strangers} leave, and are not there")
        if early := sorted(worker for worker, since_ms in self.leaving.items() if since_ms < 0):
            raise ProtocolError(f"workers {early} were told to leave less than 0 ms ago")
        if len({task.id for task in self.tasks}) != len(self.tasks):
            raise ProtocolError("a task is named twice")
