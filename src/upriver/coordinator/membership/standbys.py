"""The last step of document 002's algorithm, "assign standby tasks".

To instances without matching active tasks; to previous active task owners after learner transfer in this round;
to resource abundant instances; to instances who are not marked "leaving". Based on num.standby.task config,
standby task assignment could take multiple rounds
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from upriver.coordinator.membership.group import Assignment, InstanceId, TaskId
from upriver.coordinator.membership.roster import Roster
from upriver.ids import WorkerId


def place_standbys(
    tasks: Sequence[TaskId],
    active: Mapping[TaskId, WorkerId],
    learner: Mapping[TaskId, WorkerId],
    held: Assignment,
    roster: Roster,
    replicas: int,
) -> dict[TaskId, frozenset[WorkerId]]:
    """So many standbys of each of these tasks, or fewer where there are not enough instances (rules A10, A11).

    held: of workers that take part only. The "multiple rounds" are those of the loop: each task gets its first standby
    before any gets its second, all in one assignment.
    """
    if not replicas:
        return {}
    standby = {task: _kept(task, active, learner, held, roster)[:replicas] for task in tasks}
    going = Counter({**active, **learner}.values())
    load = going + Counter(worker for holders in standby.values() for worker in holders)
    for turn in range(replicas):
        for task in (task for task in tasks if len(standby[task]) <= turn):
            copies = [active[task], *standby[task], *([learner[task]] if task in learner else [])]
            taken = {roster.instance_of[worker] for worker in copies}
            worker = _chosen(held.active.get(task), taken, load, roster)
            if worker is not None:
                standby[task].append(worker)
                load[worker] += 1
    return {task: frozenset(holders) for task, holders in standby.items() if holders}


def _kept(
    task: TaskId,
    active: Mapping[TaskId, WorkerId],
    learner: Mapping[TaskId, WorkerId],
    held: Assignment,
    roster: Roster,
) -> list[WorkerId]:
    """The standbys that there are and may remain, one per instance; what learns the task before all others."""
    taken: set[InstanceId] = {roster.instance_of[active[task]]}
    kept = []
    for worker in sorted(held.standby.get(task, ()), key=lambda w: (w != learner.get(task), w)):
        if worker not in roster.leaving and roster.instance_of[worker] not in taken:
            taken.add(roster.instance_of[worker])
            kept.append(worker)
    return kept


def _chosen(
    before: WorkerId | None, taken: set[InstanceId], load: Mapping[WorkerId, int], roster: Roster
) -> WorkerId | None:
    """Whoever had the task before, and so has its state; else whoever has the least to do.

    An owner that has the task still is not asked: its instance is taken.
    """
    free = [worker for worker in roster.staying if roster.instance_of[worker] not in taken]
    return min(free, key=lambda w: (w != before, load[w], roster.rank[w]), default=None)
