"""The observer of views that come and go: which there can be, which are kept, and which are wanted."""

from collections.abc import Sequence

from simulator import checkers
from simulator.checkers import require
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import PlansTaken, PlansWanted


class ViewObserver:
    """Raises Violated at the first thing that is wrong.

    possible: by name, every view that there can be. kept: by name, those that the coordinator has taken last.
    waiting: by ticket, all and only the wishes for other views that were told to it and not met, in order.
    """

    def __init__(self, possible: Sequence[DataflowPlan], kept: Sequence[DataflowPlan]) -> None:
        self.possible = {plan.name: plan for plan in possible}
        self.kept = {plan.name: plan for plan in kept}
        self.waiting: dict[int, PlansWanted] = {}

    def wanted(self, wish: PlansWanted) -> None:
        self.waiting[wish.ticket] = wish

    def taken(self, action: PlansTaken) -> None:
        require(checkers.wishes_are_met_in_order, action.ticket, self.waiting)
        self.kept = {plan.name: plan for plan in self.waiting.pop(action.ticket).plans}
