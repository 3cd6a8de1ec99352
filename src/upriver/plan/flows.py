"""What the plans of a flow are to each other: a stateful map and what reads it are one flow.

A map that several read is computed once, in the regions of its own plan, and its rows go to regions of the plans that
read it. Such plans have one epoch, and are computed, checkpointed and moved together. All functions here take plans in
an order in which each comes behind those that feed it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from upriver.plan.plan import DataflowPlan, ExchangeEdge


def flows_of(plans: Iterable[DataflowPlan]) -> tuple[tuple[DataflowPlan, ...], ...]:
    """The plans by flow: those that feed each other are in one."""
    flows: list[tuple[DataflowPlan, ...]] = []
    for plan in plans:
        joined = [flow for flow in flows if any(other.name in plan.fed_by for other in flow)]
        apart = [flow for flow in flows if flow not in joined]
        flows = [*apart, (*(other for flow in joined for other in flow), plan)]
    return tuple(flows)


def stages_of(plans: Iterable[DataflowPlan]) -> Mapping[str, int]:
    """For each spread region of a flow: the stage of an epoch in which it takes in exchanged rows, and tries those
    again that it failed on; 0 if it does neither."""
    stages: dict[str, int] = {}
    for plan in plans:
        if plan.full_because is None:
            stages[plan.name] = 0
            continue
        for region in plan.regions:
            fed_by = [stages[entry.edge.region] for entry in region.inputs if isinstance(entry.edge, ExchangeEdge)]
            stages[region.name] = 1 + max(fed_by, default=0 if plan.unsure(region) else -1)
    return stages


def readers_of(plans: Iterable[DataflowPlan], view: str) -> tuple[str, ...]:
    """The plans of a flow that cannot be computed without this one: those that it feeds, and those that they feed."""
    readers = [view]
    for plan in plans:
        if not plan.fed_by.isdisjoint(readers):
            readers.append(plan.name)
    return tuple(readers[1:])


class RunningPlans:
    """Which plans run for those that an app declares. The ones that it was started with were planned together; one that
    is declared later runs by itself, with the maps that it reads."""

    def __init__(self, declared: Iterable[DataflowPlan], together: Sequence[DataflowPlan]) -> None:
        """together: those of ``declared``, in which each map is computed once, and maps that only feed others."""
        self._begun = {plan.name: plan for plan in declared}
        """As they were declared, of those that have stayed so since."""
        self._together = tuple(together)

    def of(self, declared: Sequence[DataflowPlan]) -> tuple[DataflowPlan, ...]:
        """The plans that run for these, which are all that the app declares now."""
        kept = [plan.name for plan in declared if self._begun.get(plan.name) == plan]
        self._begun = {name: plan for name, plan in self._begun.items() if name in kept}
        fed = set(kept)
        for plan in reversed(self._together):
            fed |= plan.fed_by if plan.name in fed else frozenset()
        going_on = [plan for plan in self._together if plan.name in fed]
        return (*going_on, *(plan for plan in declared if plan.name not in kept))


def as_one(plans: Sequence[DataflowPlan], view: str) -> DataflowPlan:
    """A plan of a flow, with the regions of all maps that feed it: what all of it is computed from."""
    wanted = {view}
    for plan in reversed(plans):
        wanted |= plan.fed_by if plan.name in wanted else frozenset()
    found = next(plan for plan in plans if plan.name == view)
    return replace(found, regions=tuple(region for plan in plans if plan.name in wanted for region in plan.regions))
