"""The assignor: document 002's "Algorithm incremental-rebalancing" as a pure function of a group.

Rules A1 to A15 are in ``docs/design/membership.md``. A round changes as little as it can: a task that somebody serves
goes only to a worker that is ready to serve it, and to become so is what the round has others learn. So it takes
several rounds until all is where it is to be, and a plan says whether there is more to come.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from upriver.coordinator.membership.actives import actives_with_a_copy, spread
from upriver.coordinator.membership.config import MembershipConfig
from upriver.coordinator.membership.group import Assignment, Group, LeaderMemory, TaskId
from upriver.coordinator.membership.moves import (
    Moving,
    Takers,
    empty_leavers,
    even_out,
    kept_learners,
    moving_of,
    short_of_tasks,
)
from upriver.coordinator.membership.plan import Plan
from upriver.coordinator.membership.roster import Roster
from upriver.coordinator.membership.standbys import place_standbys
from upriver.coordinator.membership.validity import problems
from upriver.errors import ProtocolError
from upriver.ids import WorkerId


def assign(group: Group, config: MembershipConfig) -> Plan:
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
    """What all steps go by. held: what those who take part hold of the tasks that there are, stateless ones active
    only. stateful, stateless: ascending."""

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
    """Without memory nobody knows who is new, and nobody takes (rule A15; the document's "leader crash before")."""
    if group.memory is None:
        return Takers((), frozenset())
    new = frozenset(w for w in roster.staying if w not in group.memory.members or w in group.memory.newcomers)
    return Takers(tuple(w for w in roster.staying if config.eventual_balance or w in new), new)


def _place_stateful(
    with_a_copy: Mapping[TaskId, WorkerId],
    kept: Mapping[TaskId, WorkerId],
    terms: _Terms,
    config: MembershipConfig,
) -> tuple[dict[TaskId, WorkerId], Moving]:
    """Where stateful tasks are active, and what is to be learned besides what is ``kept``."""
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
    """Where stateless tasks are active, and how many tasks of both kinds each worker is to have. They move at once,
    so as to even out what stateful tasks leave uneven (rule A14)."""
    active = {task: with_an_owner[task] for task in terms.stateless if task in with_an_owner}
    lost = [task for task in terms.stateless if task not in with_an_owner]
    active |= spread(lost, Counter(stateful_load) + Counter(active.values()), terms.roster)

    moving = moving_of(active, (), stateful_load, {}, warmups_left=None)
    empty_leavers(moving, terms.takers, terms.roster)
    even_out(moving, terms.takers, terms.roster)
    return active | moving.moves, moving.load


def _planned(
    assignment: Assignment, moving: Moving, total: Mapping[WorkerId, int], terms: _Terms, config: MembershipConfig
) -> Plan:
    roster, active = terms.roster, assignment.active
    short = short_of_tasks(moving.load, roster.staying) | short_of_tasks(total, roster.staying)
    standbys = {worker for holders in assignment.standby.values() for worker in holders}
    busy = standbys.union(active.values(), assignment.learner.values())
    waiting = short.union(assignment.learner.values())  # what is being learned may be lost on the way
    newcomers = terms.takers.newcomers if moving.postponed else terms.takers.newcomers & waiting
    return Plan(
        assignment=assignment,
        revoked={task: owner for task, owner in sorted(terms.held.active.items()) if active[task] != owner},
        # A move that has to wait does so for a learner: where there is none, nothing waits.
        another_round=bool(assignment.learner) or (config.eventual_balance and bool(short)),
        may_stop=roster.overdue | (roster.leaving - busy),
        memory=LeaderMemory(members=frozenset(roster.instance_of), newcomers=newcomers),
    )
