"""The assignor: document 002's "Algorithm incremental-rebalancing" as a pure function of a group.

Rules A1 to A15 are in ``docs/internals/membership.md``. A round changes as little as it can. A task with an owner goes
only to a worker that is ready to serve it; the round makes other workers learn it first. So a rebalance takes several
rounds, and a plan says whether another one follows.

``Roster``: the workers that take part in a round, and those of them that may be given tasks. Document 002: "instances
who are not marked leaving", "resource available instances", and ``scale.down.timeout.ms``.

The first step of document 002's algorithm, "assign active tasks": one living worker for each task.

    To instances with learner tasks that indicate "ready"; to previous owners; to unready learner tasks owners;
    to instances with standby tasks; to instances who are not marked "leaving"; to resource available instances

The second and third step of document 002's algorithm: the tasks that move, and their new workers.

    Keep existing learner tasks' assignment unchanged. Pick new learner tasks out of heaviest loaded instances.
    Assign learner tasks: to new-coming instances with abundant resource; to instances who are not marked "leaving";
    to instances with corresponding standby tasks

A worker's load counts tasks by where they are *going*: a task that is being learned counts for its learner, and no
longer for its owner. Only so does the document's second rebalance come out (T3 is picked, not T2).

The last step of document 002's algorithm, "assign standby tasks".

    To instances without matching active tasks; to previous active task owners after learner transfer in this round;
    to resource abundant instances; to instances who are not marked "leaving". Based on num.standby.task config,
    standby task assignment could take multiple rounds

``problems`` checks what holds of every assignment, whatever the group, at the end of every round.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from upriver.coordinator.group import (
    Assignment,
    AssignmentPlan,
    Group,
    InstanceId,
    LeaderMemory,
    MembershipConfig,
    TaskId,
    is_ready,
)
from upriver.coordinator.spread import host_of
from upriver.errors import ProtocolError
from upriver.ids import WorkerId


@dataclass(frozen=True)
class Roster:
    """instance_of: the workers that take part. leaving: those of them that give everything up, never all of them.
    overdue: leavers that the round no longer waits for; they take no part, as if they were lost."""

    instance_of: Mapping[WorkerId, InstanceId]
    leaving: frozenset[WorkerId]
    overdue: frozenset[WorkerId]

    @classmethod
    def of(cls, group: Group, config: MembershipConfig) -> Self:
        """If all workers were leavers, none leaves (rule A13): a task has to be somewhere."""
        instance_of = {worker: name for name, members in group.instances.items() for worker in members}
        limit_ms = config.scale_down_timeout_ms
        late = {worker for worker, since_ms in group.leaving.items() if limit_ms is not None and since_ms >= limit_ms}
        overdue = _unless_all(late, instance_of)
        present = {worker: name for worker, name in instance_of.items() if worker not in overdue}
        return cls(present, _unless_all(group.leaving.keys() & present.keys(), present), overdue)

    @cached_property
    def staying(self) -> tuple[WorkerId, ...]:
        """The workers that may be given tasks, in order of preference among equals. The first worker of each instance
        comes first, then the second of each, so that instances fill alike; the lower id first."""
        staying = [worker for worker in sorted(self.instance_of) if worker not in self.leaving]
        seats: dict[InstanceId, int] = {}
        rows: dict[WorkerId, int] = {}
        for worker in staying:
            name = self.instance_of[worker]
            rows[worker] = seats.get(name, 0)
            seats[name] = rows[worker] + 1
        return tuple(sorted(staying, key=lambda worker: (rows[worker], worker)))

    @cached_property
    def rank(self) -> Mapping[WorkerId, int]:
        """A worker's place among equals; leavers come last."""
        return {worker: place for place, worker in enumerate((*self.staying, *sorted(self.leaving)))}


def _unless_all(some: set[WorkerId], workers: Mapping[WorkerId, InstanceId]) -> frozenset[WorkerId]:
    return frozenset() if len(some) == len(workers) else frozenset(some)


def actives_with_a_copy(
    tasks: Iterable[TaskId], held: Assignment, roster: Roster, group: Group, config: MembershipConfig
) -> dict[TaskId, WorkerId]:
    """The first four choices, for the tasks that have any copy: rules A1 to A4.

    held: of workers that take part only. Where an owner is lost, a ready standby comes before a learner that is not
    ready. The document lists it after the learner. But its "isReady" is a tag of all standby tasks, and where a ready
    worker exists, a task goes "only to stream threads who are declared ready to serve this task".
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
    """The best standby: it stays, is the least behind (unknown lag comes last), and has the least load."""
    return min(
        standbys, key=lambda w: (w in roster.leaving, w not in lags, lags.get(w, 0), load.get(w, 0), roster.rank[w])
    )


def spread(tasks: Iterable[TaskId], load: Mapping[WorkerId, int], roster: Roster) -> dict[TaskId, WorkerId]:
    """The last two choices: rule A5. Each task in turn goes to the staying worker with the least load.

    load: how many tasks each worker has already. No worker learns the task first: no copy could serve it meanwhile.
    """
    heap = [(load.get(worker, 0), place, worker) for place, worker in enumerate(roster.staying)]
    heapq.heapify(heap)
    placed: dict[TaskId, WorkerId] = {}
    for task in tasks:
        tasks_count, place, worker = heap[0]
        placed[task] = worker
        heapq.heapreplace(heap, (tasks_count + 1, place, worker))
    return placed


@dataclass(frozen=True, slots=True)
class Takers:
    """all: the workers that may be given tasks to even the loads out. newcomers: those that come first among equals."""

    all: tuple[WorkerId, ...]
    newcomers: frozenset[WorkerId]


@dataclass(slots=True)
class MovingTasks:
    """Moves as they are found.

    load: how many tasks each worker will have when all moves are made. movable: by worker, the tasks that may still
    leave it, ascending. standby: the workers that have a copy already. warmups_left: how many learners may still begin
    to load; None for no bound. postponed: there is more to move than may be moved now.
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
        """Move the task, or postpone it if it would be one learner too many (rule A8). Either way the task is settled
        for this round."""
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
) -> MovingTasks:
    """going: where each task is, or is on its way to. settled: those that are on their way. besides: how many tasks of
    another kind each worker has."""
    movable: dict[WorkerId, list[TaskId]] = {}
    for task in sorted(going.keys() - set(settled)):
        movable.setdefault(going[task], []).append(task)
    return MovingTasks(Counter(besides) + Counter(going.values()), movable, standby, warmups_left)


def empty_leavers(moving: MovingTasks, takers: Takers, roster: Roster) -> None:
    """Every task of a leaver moves (rule A6): to a standby of it if there is one, since "we shall prioritize stream
    threads which currently have standby tasks that match", else to the worker with the least load.

    The leaver with the most load comes first. A task may have to wait while a later one that has a standby moves.
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


def even_out(moving: MovingTasks, takers: Takers, roster: Roster) -> None:
    """Move tasks from the worker with the most load to the taker with the least, while they are more than one task
    apart (rule A7). A task that the taker is a standby of goes first; else the giver's first task.

    Each move brings two workers nearer to each other, so this ends. While leavers wait, the final loads are not known:
    nothing is evened out then.
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
    """The learners that go on (rule A9): all but those that have taken over, and those at leavers."""
    return {
        task: worker for task, worker in held.learner.items() if active[task] != worker and worker not in roster.leaving
    }


def short_of_tasks(load: Mapping[WorkerId, int], workers: Collection[WorkerId]) -> frozenset[WorkerId]:
    """Those of these workers that have at least two tasks less than another."""
    most = max(load.get(worker, 0) for worker in workers)
    return frozenset(worker for worker in workers if most - load.get(worker, 0) > 1)


def place_standbys(
    tasks: Sequence[TaskId],
    active: Mapping[TaskId, WorkerId],
    learner: Mapping[TaskId, WorkerId],
    held: Assignment,
    roster: Roster,
    replicas: int,
) -> dict[TaskId, frozenset[WorkerId]]:
    """Place this many standbys of each of these tasks, or fewer where there are not enough instances (rules A10, A11).

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
            worker = _chosen(task, taken, held, load, roster)
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
    """The standbys that may remain, one per instance. The task's learner comes first. Others on the host of a copy are
    left out: they are chosen again where no other host has room."""
    taken: set[InstanceId] = {roster.instance_of[active[task]]}
    kept = []
    for worker in sorted(held.standby.get(task, ()), key=lambda w: (w != learner.get(task), w)):
        instance = roster.instance_of[worker]
        is_beside = host_of(instance) in set(map(host_of, taken)) and worker != learner.get(task)
        if worker not in roster.leaving and instance not in taken and not is_beside:
            taken.add(instance)
            kept.append(worker)
    return kept


def _chosen(
    task: TaskId, taken: set[InstanceId], held: Assignment, load: Mapping[WorkerId, int], roster: Roster
) -> WorkerId | None:
    """A worker on a host without a copy, if there is one. Among these a standby, then the worker that had the task
    before, since both have its state; else the worker with the least load.

    The owner that still has the task is no candidate: its instance is taken.
    """
    hosts, before = set(map(host_of, taken)), held.active.get(task)
    free = [worker for worker in roster.staying if roster.instance_of[worker] not in taken]

    def order(worker: WorkerId) -> tuple[bool, bool, bool, int, int]:
        is_beside = host_of(roster.instance_of[worker]) in hosts
        return is_beside, not held.is_standby(task, worker), worker != before, load[worker], roster.rank[worker]

    return min(free, key=order, default=None)


def problems(
    assignment: Assignment,
    stateful: Collection[TaskId],
    stateless: Collection[TaskId],
    roster: Roster,
    config: MembershipConfig,
) -> tuple[str, ...]:
    """What is wrong with the assignment, in words; empty if it is valid.

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


def assign(group: Group, config: MembershipConfig) -> AssignmentPlan:
    """One round of assignment. The same for the same group, in whatever order its parts are given."""
    terms = _Terms.of(group, config)
    active = actives_with_a_copy([*terms.stateful, *terms.stateless], terms.held, terms.roster, group, config)
    kept = kept_learners(terms.held, active, terms.roster)
    stateful, moving = _place_stateful(active, kept, terms, config)
    learner = kept | moving.moves
    stateless, total = _place_stateless(active, moving.load, terms)
    assignment = Assignment(
        active=stateful | stateless,
        standby=place_standbys(
            terms.stateful, stateful, learner, terms.held, terms.roster, config.num_standby_replicas
        ),
        learner=learner,
    )
    if faults := problems(assignment, terms.stateful, terms.stateless, terms.roster, config):
        raise ProtocolError(f"an assignment that cannot be: {'; '.join(faults)}")
    return _planned(assignment, moving, total, terms, config)


@dataclass(frozen=True)
class _Terms:
    """The input of all steps. held: what the workers that take part hold of the group's tasks; stateless tasks have
    active copies only. stateful, stateless: ascending."""

    stateful: tuple[TaskId, ...]
    stateless: tuple[TaskId, ...]
    held: Assignment
    roster: Roster
    takers: Takers

    @classmethod
    def of(cls, group: Group, config: MembershipConfig) -> Self:
        roster = Roster.of(group, config)
        stateful = tuple(sorted(task.id for task in group.tasks if task.stateful))
        stateless = tuple(sorted(task.id for task in group.tasks if not task.stateful))
        everything = group.held.among(roster.instance_of.keys(), {*stateful, *stateless})
        copies = everything.among(roster.instance_of.keys(), set(stateful))
        held = Assignment(active=everything.active, standby=copies.standby, learner=copies.learner)
        return cls(stateful, stateless, held, roster, _takers(group, roster, config))


def _takers(group: Group, roster: Roster, config: MembershipConfig) -> Takers:
    """Without memory the leader does not know which workers are new, and no worker takes tasks (rule A15; the
    document's "leader crash before")."""
    if group.memory is None:
        return Takers((), frozenset())
    new = frozenset(w for w in roster.staying if w not in group.memory.members or w in group.memory.newcomers)
    return Takers(tuple(w for w in roster.staying if config.eventual_balance or w in new), new)


def _place_stateful(
    with_a_copy: Mapping[TaskId, WorkerId],
    kept: Mapping[TaskId, WorkerId],
    terms: _Terms,
    config: MembershipConfig,
) -> tuple[dict[TaskId, WorkerId], MovingTasks]:
    """Where stateful tasks are active, and the new learners besides those in ``kept``."""
    active = {task: with_a_copy[task] for task in terms.stateful if task in with_a_copy}
    lost = [task for task in terms.stateful if task not in with_a_copy]
    active |= spread(lost, Counter({**active, **kept}.values()), terms.roster)

    cold = sum(not terms.held.is_standby(task, worker) for task, worker in kept.items())
    going = {**active, **kept}
    moving = moving_of(going, kept, {}, terms.held.standby, config.max_warmup_replicas - cold)
    empty_leavers(moving, terms.takers, terms.roster)
    even_out(moving, terms.takers, terms.roster)
    return active, moving


def _place_stateless(
    with_an_owner: Mapping[TaskId, WorkerId], stateful_load: Mapping[WorkerId, int], terms: _Terms
) -> tuple[dict[TaskId, WorkerId], Mapping[WorkerId, int]]:
    """Where stateless tasks are active, and how many tasks of both kinds each worker gets. Stateless tasks move at
    once, to even out what stateful tasks leave uneven (rule A14)."""
    active = {task: with_an_owner[task] for task in terms.stateless if task in with_an_owner}
    lost = [task for task in terms.stateless if task not in with_an_owner]
    active |= spread(lost, Counter(stateful_load) + Counter(active.values()), terms.roster)

    moving = moving_of(active, (), stateful_load, {}, warmups_left=None)
    empty_leavers(moving, terms.takers, terms.roster)
    even_out(moving, terms.takers, terms.roster)
    return active | moving.moves, moving.load


def _planned(
    assignment: Assignment, moving: MovingTasks, total: Mapping[WorkerId, int], terms: _Terms, config: MembershipConfig
) -> AssignmentPlan:
    roster, active = terms.roster, assignment.active
    short = short_of_tasks(moving.load, roster.staying) | short_of_tasks(total, roster.staying)
    standbys = {worker for holders in assignment.standby.values() for worker in holders}
    busy = standbys.union(active.values(), assignment.learner.values())
    waiting = short.union(assignment.learner.values())  # what is being learned may be lost on the way
    newcomers = terms.takers.newcomers if moving.postponed else terms.takers.newcomers & waiting
    return AssignmentPlan(
        assignment=assignment,
        revoked={task: owner for task, owner in sorted(terms.held.active.items()) if active[task] != owner},
        # A postponed move waits for a learner: without learners, nothing waits.
        another_round=bool(assignment.learner) or (config.eventual_balance and bool(short)),
        may_stop=roster.overdue | (roster.leaving - busy),
        memory=LeaderMemory(members=frozenset(roster.instance_of), newcomers=newcomers),
    )
