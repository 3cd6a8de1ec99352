"""The first step of document 002's algorithm, "assign active tasks": one living worker for each task.

To instances with learner tasks that indicate "ready"; to previous owners; to unready learner tasks owners;
to instances with standby tasks; to instances who are not marked "leaving"; to resource available instances
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping

from upriver.coordinator.membership.config import MembershipConfig
from upriver.coordinator.membership.group import Assignment, Group, TaskId
from upriver.coordinator.membership.readiness import is_ready
from upriver.coordinator.membership.roster import Roster
from upriver.ids import WorkerId


def actives_with_a_copy(
    tasks: Iterable[TaskId], held: Assignment, roster: Roster, group: Group, config: MembershipConfig
) -> dict[TaskId, WorkerId]:
    """The first four choices, for those of the tasks of which there is any copy: rules A1 to A4.

    held: of workers that take part only. Where an owner is lost, a standby that is ready comes before a learner that
    is not. The document's list has it after; but its "isReady" is a tag of all standby tasks, and a task goes "only to
    stream threads who are declared ready to serve this task" where there is one.
    """

    def ready(task: TaskId, worker: WorkerId) -> bool:
        return is_ready(task, worker, group, config)

    active: dict[TaskId, WorkerId] = {}
    lost: list[TaskId] = []
    for task in tasks:
        learner = held.learner.get(task)
        if learner is not None and learner not in roster.leaving and ready(task, learner):
            active[task] = learner
        elif task in held.active:
            active[task] = held.active[task]
        elif learner is not None and not any(ready(task, worker) for worker in held.standby.get(task, ())):
            active[task] = learner
        elif task in held.standby:
            lost.append(task)
    load = Counter(active.values())
    for task in lost:
        able = frozenset(worker for worker in held.standby[task] if ready(task, worker))
        lags = group.lag_epochs.get(task, {})
        active[task] = _best_standby(able or held.standby[task], lags, load, roster)
        load[active[task]] += 1
    return active


def _best_standby(
    standbys: Iterable[WorkerId], lags: Mapping[WorkerId, int], load: Mapping[WorkerId, int], roster: Roster
) -> WorkerId:
    """One that stays, is the least behind (who does not say comes last), and has the least to do."""
    return min(
        standbys, key=lambda w: (w in roster.leaving, w not in lags, lags.get(w, 0), load.get(w, 0), roster.rank[w])
    )


def spread(tasks: Iterable[TaskId], load: Mapping[WorkerId, int], roster: Roster) -> dict[TaskId, WorkerId]:
    """The last two choices: rule A5. Each task in turn goes to a worker that stays and has the least to do.

    load: how many tasks each worker has already. Nothing is learned first: there is no copy that could serve meanwhile.
    """
    heap = [(load.get(worker, 0), place, worker) for place, worker in enumerate(roster.staying)]
    heapq.heapify(heap)
    placed: dict[TaskId, WorkerId] = {}
    for task in tasks:
        tasks_count, place, worker = heap[0]
        placed[task] = worker
        heapq.heapreplace(heap, (tasks_count + 1, place, worker))
    return placed
