"""Who takes part in a round, and who of them may be given anything. Document 002: "instances who are not marked
leaving", "resource available instances", and ``scale.down.timeout.ms``."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from upriver.coordinator.membership.config import MembershipConfig
from upriver.coordinator.membership.group import Group, InstanceId
from upriver.ids import WorkerId


@dataclass(frozen=True)
class Roster:
    """instance_of: the workers that take part. leaving: those of them that are to end with nothing, never all.
    overdue: leavers that are not waited for any more; they take no part, as if they were lost."""

    instance_of: Mapping[WorkerId, InstanceId]
    leaving: frozenset[WorkerId]
    overdue: frozenset[WorkerId]

    @classmethod
    def of(cls, group: Group, config: MembershipConfig) -> Self:
        """Where all would have to leave, none does (rule A13): a task has to be somewhere."""
        instance_of = {worker: name for name, members in group.instances.items() for worker in members}
        limit_ms = config.scale_down_timeout_ms
        late = {worker for worker, since_ms in group.leaving.items() if limit_ms is not None and since_ms >= limit_ms}
        overdue = _unless_all(late, instance_of)
        present = {worker: name for worker, name in instance_of.items() if worker not in overdue}
        return cls(present, _unless_all(group.leaving.keys() & present.keys(), present), overdue)

    @cached_property
    def staying(self) -> tuple[WorkerId, ...]:
        """Those that may be given something, in order of preference among equals: the first worker of each instance,
        then the second of each, so that instances fill alike; the lower id first."""
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
