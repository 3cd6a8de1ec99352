"""The second and third step of document 002's algorithm: which tasks are to be elsewhere, and where.

    Keep existing learner tasks' assignment unchanged. Pick new learner tasks out of heaviest loaded instances.
    Assign learner tasks: to new-coming instances with abundant resource; to instances who are not marked "leaving";
    to instances with corresponding standby tasks

What a worker has to do is counted by where tasks are *going*: a task that is being learned counts for its learner, and
no more for its owner. The document's second rebalance (T3 is picked, not T2) comes out in no other way.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from upriver.coordinator.membership.group import Assignment, TaskId
from upriver.coordinator.membership.roster import Roster
from upriver.ids import WorkerId


@dataclass(frozen=True, slots=True)
class Takers:
    """all: who may be given tasks to even the loads out. newcomers: those who come first among equals."""

    all: tuple[WorkerId, ...]
    newcomers: frozenset[WorkerId]


@dataclass(slots=True)
class Moving:
    """Moves as they are found.

    load: how many tasks each worker will have when all moves are made. movable: by worker, the tasks that may still
    leave it, ascending. standby: who has a copy already. warmups_left: how many learners may still begin to load; None
    for no bound. postponed: there is more to move than may be moved now.
    """

    load: Counter[WorkerId]
    movable: Mapping[WorkerId, list[TaskId]]
    standby: Mapping[TaskId, frozenset[WorkerId]]
    warmups_left: int | None
    moves: dict[TaskId, WorkerId] = field(default_factory=dict)
    postponed: bool = False

    def is_cold(self, task: TaskId, worker: WorkerId) -> bool:
        return worker not in self.standby.get(task, ())

    def move(self, task: TaskId, giver: WorkerId, taker: WorkerId) -> None:
        """Or postpone it, if it were one learner too many (rule A8). Either way the task is settled for this round."""
        self.movable[giver].remove(task)
        if self.warmups_left is not None and self.is_cold(task, taker):
            if self.warmups_left <= 0:
                self.postponed = True
                return
            self.warmups_left -= 1
        self.moves[task] = taker
        self.load[giver] -= 1
        self.load[taker] += 1


def moving_of(
    going: Mapping[TaskId, WorkerId],
    settled: Iterable[TaskId],
    besides: Mapping[WorkerId, int],
    standby: Mapping[TaskId, frozenset[WorkerId]],
    warmups_left: int | None,
) -> Moving:
    """going: where each task is, or is on its way to. settled: those that are on their way. besides: how many tasks of
    another kind each worker has."""
    movable: dict[WorkerId, list[TaskId]] = {}
    for task in sorted(going.keys() - set(settled)):
        movable.setdefault(going[task], []).append(task)
    return Moving(Counter(besides) + Counter(going.values()), movable, standby, warmups_left)


def empty_leavers(moving: Moving, takers: Takers, roster: Roster) -> None:
    """All that leavers have goes elsewhere (rule A6): to a standby of it if there is one, since "we shall prioritize
    stream threads which currently have standby tasks that match", else to whoever has the least to do.

    The leaver with most to do comes first. One task may have to wait and a later one not: of that there is a standby.
    """
    load = moving.load

    def best_taker(task: TaskId) -> WorkerId:
        return min(
            roster.staying,
            key=lambda w: (moving.is_cold(task, w), load[w], w not in takers.newcomers, roster.rank[w]),
        )

    while givers := [worker for worker in sorted(roster.leaving) if moving.movable.get(worker)]:
        giver = max(givers, key=lambda w: (len(moving.movable[w]), -w))
        task = moving.movable[giver][0]
        moving.move(task, giver, best_taker(task))


def even_out(moving: Moving, takers: Takers, roster: Roster) -> None:
    """From the worker with most to do to the taker with the least, as long as they are more than one task apart (rule
    A7). Of the giver's tasks, one that the taker is a standby of; else the first.

    Each move brings two workers nearer to each other, so this ends. While leavers wait, who will have how much is not
    known: nothing is evened out then.
    """
    load = moving.load
    while takers.all and not moving.postponed:
        taker = min(takers.all, key=lambda w: (load[w], w not in takers.newcomers, roster.rank[w]))
        givers = [worker for worker in roster.staying if moving.movable.get(worker)]
        giver = max(givers, key=lambda w: (load[w], -roster.rank[w]), default=taker)
        if load[giver] - load[taker] <= 1:
            return
        tasks = moving.movable[giver]
        moving.move(next((task for task in tasks if not moving.is_cold(task, taker)), tasks[0]), giver, taker)


def kept_learners(held: Assignment, active: Mapping[TaskId, WorkerId], roster: Roster) -> dict[TaskId, WorkerId]:
    """The learners that there are and go on (rule A9): all but those that have taken over, and those of leavers."""
    return {
        task: worker for task, worker in held.learner.items() if active[task] != worker and worker not in roster.leaving
    }


def short_of_tasks(load: Mapping[WorkerId, int], workers: Collection[WorkerId]) -> frozenset[WorkerId]:
    """Those of these workers that have two tasks less than another, or less than that."""
    most = max(load.get(worker, 0) for worker in workers)
    return frozenset(worker for worker in workers if most - load.get(worker, 0) > 1)
