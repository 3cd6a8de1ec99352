"""Groups in the words of document 002, and a driver that plays rounds of assignment.

``S1`` is worker 1, alone in an instance ``S1``; ``T1`` is task 1. A line of a table is one of the document's:
``S1(assigned: [T2], revoked: [T1], learning: [])``, whatever follows ``//``.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from upriver.coordinator.assignor import assign
from upriver.coordinator.group import Assignment, AssignmentPlan, Group, InstanceId, MembershipConfig, Task, TaskId
from upriver.ids import WorkerId

LINE = re.compile(r"S(\d+)\(assigned: \[(.*?)\], revoked: \[(.*?)\], learning: \[(.*?)\]\)")
ROUNDS_MAX = 1_000
"""Rounds after which a driver gives up."""

Copy = tuple[TaskId, WorkerId]
"""A task and a worker that has a copy of it, which is not active."""


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    assigned: frozenset[int] = frozenset()
    revoked: frozenset[int] = frozenset()
    learning: frozenset[int] = frozenset()


Table = dict[int, Row]


def table(text: str) -> Table:
    """The lines of a table, by worker. Their order, and that of tasks in them, is of no meaning."""
    found = LINE.findall(text)
    assert len(found) == len([line for line in text.splitlines() if line.strip()]), "not a table of the document"
    return {int(worker): Row(*(_tasks(column) for column in columns)) for worker, *columns in found}


def _tasks(text: str) -> frozenset[int]:
    return frozenset(int(name) for name in re.findall(r"T(\d+)", text))


def table_of(plan: AssignmentPlan, workers: Iterable[int]) -> Table:
    """A plan as the document prints the leader's assignment."""
    copies = plan.assignment
    return {w: Row(_of(copies.active, w), _of(plan.revoked, w), _of(copies.learner, w)) for w in workers}


def joining_of(plan: AssignmentPlan, workers: Iterable[int]) -> Table:
    """How these members join the round after a plan: tasks that are being learned are offered, as "revoked"."""
    learner = plan.assignment.learner
    rows = {}
    for worker in workers:
        active = _of(plan.assignment.active, worker)
        rows[worker] = Row(active - learner.keys(), active & learner.keys(), _of(learner, worker))
    return rows


def _of(tasks: Mapping[TaskId, WorkerId], worker: int) -> frozenset[int]:
    return frozenset(task for task, owner in tasks.items() if owner == worker)


def held_by(members: Table) -> Assignment:
    """What members hold that join so."""
    return Assignment(
        active={TaskId(task): WorkerId(w) for w, row in members.items() for task in row.assigned | row.revoked},
        learner={TaskId(task): WorkerId(w) for w, row in members.items() for task in row.learning},
    )


def tasks(*numbers: int, stateful: bool = True) -> list[Task]:
    return [Task(TaskId(number), stateful) for number in numbers]


def alone(*workers: int) -> dict[InstanceId, list[WorkerId]]:
    """Each worker in an instance of its own."""
    return {InstanceId(f"S{worker}"): [WorkerId(worker)] for worker in workers}


def active(**workers: list[int]) -> dict[TaskId, WorkerId]:
    """``S1=[1, 2]``: worker 1 has tasks 1 and 2."""
    return {TaskId(task): WorkerId(int(name[1:])) for name, numbers in workers.items() for task in numbers}


def standby(**workers: list[int]) -> dict[TaskId, frozenset[WorkerId]]:
    """``S1=[1, 2]``: worker 1 is a standby of tasks 1 and 2."""
    holders: dict[TaskId, frozenset[WorkerId]] = {}
    for name, numbers in workers.items():
        for number in numbers:
            holders[TaskId(number)] = holders.get(TaskId(number), frozenset()) | {WorkerId(int(name[1:]))}
    return holders


def copies_of(assignment: Assignment) -> set[Copy]:
    """All copies that are not active."""
    standbys = {(task, worker) for task, holders in assignment.standby.items() for worker in holders}
    return standbys | set(assignment.learner.items())


def lags(copies: Iterable[Copy], epochs: int = 0) -> dict[TaskId, dict[WorkerId, int]]:
    """These copies are so far behind; of others nothing is known."""
    found: dict[TaskId, dict[WorkerId, int]] = {}
    for task, worker in copies:
        found.setdefault(task, {})[worker] = epochs
    return found


@dataclass(frozen=True)
class Played:
    """A round: what went in, what came out."""

    group: Group
    plan: AssignmentPlan


def following(group: Group, plan: AssignmentPlan, ready: Collection[Copy] = ()) -> Group:
    """The next round's group, if no workers come or go but those that may: what the leader knows goes on."""
    instances = {
        name: [worker for worker in members if worker not in plan.may_stop] for name, members in group.instances.items()
    }
    return replace(
        group,
        instances=instances,
        held=plan.assignment,
        lag_epochs=lags(ready),
        leaving={worker: since for worker, since in group.leaving.items() if worker not in plan.may_stop},
        memory=plan.memory,
    )


def all_copies(plan: AssignmentPlan) -> set[Copy]:
    """Between two rounds, all that was begun gets ready."""
    return copies_of(plan.assignment)


def play(
    group: Group, config: MembershipConfig, ready: Callable[[AssignmentPlan], Collection[Copy]] = all_copies
) -> list[Played]:
    """Rounds until no other is needed. ready: the copies that are so when the next round is held."""
    rounds = [Played(group, assign(group, config))]
    while rounds[-1].plan.another_round:
        assert len(rounds) < ROUNDS_MAX, "no end of rounds"
        group = following(rounds[-1].group, rounds[-1].plan, ready(rounds[-1].plan))
        rounds.append(Played(group, assign(group, config)))
    return rounds
