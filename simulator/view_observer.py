"""The observer of views that come and go: which there can be, which are kept, and which are wanted."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from simulator import checkers
from simulator.checkers import require
from upriver.ids import FlowId
from upriver.plan.plan import DataflowPlan, view_of
from upriver.protocol.coordinator_events import PlansTaken, PlansWanted
from upriver.protocol.messages import Assign, DropFlow, ForShare, ToWorker


class ViewObserver:
    """Raises Violated at the first thing that is wrong.

    possible: by name, every view that there can be. later: of those that share stateful maps, the same views planned by
    themselves, as they are declared when the app runs. kept: by name, those that the coordinator has taken last.
    waiting: by ticket, all and only the wishes for other views that were told to it and not met, in order. flows: of
    those that some worker was told of, the views that are kept. gone: the flows that there are no more. left: the
    views that were dropped while others of their flow stayed.
    """

    def __init__(
        self,
        possible: Sequence[DataflowPlan],
        kept: Sequence[DataflowPlan],
        later: Mapping[str, DataflowPlan] = MappingProxyType({}),
    ) -> None:
        self.possible = {plan.name: plan for plan in possible}
        self.later = later
        self.kept = {plan.name: plan for plan in kept}
        self.waiting: dict[int, PlansWanted] = {}
        self.flows: dict[FlowId, tuple[DataflowPlan, ...]] = {}
        self.gone: set[FlowId] = set()
        self.left: set[str] = set()
        self._plans: dict[FlowId, tuple[DataflowPlan, ...]] = {}

    def of_another_driver(self) -> "ViewObserver":
        """Of a driver that begins with what is kept: maps feed what reads them still."""
        fed: list[DataflowPlan] = []
        for plan in self.kept.values():
            readers = {other.name for other in self.kept.values() if plan.name in other.fed_by}
            fed.append(replace(plan, feeds=tuple(send for send in plan.feeds if view_of(send.to) in readers)))
        return ViewObserver(tuple(self.possible.values()), tuple(fed), self.later)

    def plans_of(self, flow: FlowId) -> tuple[DataflowPlan, ...]:
        """Of a flow that some worker was ever told of."""
        return self._plans.get(flow, ())

    def flow_of(self, view: str) -> FlowId | None:
        """The flow of a view that is kept, if any worker was told of it."""
        return next((flow for flow, plans in self.flows.items() if view in [plan.name for plan in plans]), None)

    def told(self, message: ToWorker, *, rescale_is_on: bool) -> None:
        """The coordinator speaks to some worker."""
        match message:
            case ForShare(flow=flow, message=Assign(plans=plans)) if flow not in self.flows:
                require(checkers.no_flow_comes_back, flow, self.gone)
                if self._is_begun(plans):
                    require(checkers.flows_change_between_rescales, rescale_is_on)
                self.flows[flow] = self._plans[flow] = plans
            case ForShare(flow=flow):
                require(checkers.no_flow_comes_back, flow, self.gone)
            case DropFlow(flow=flow):
                require(checkers.flows_change_between_rescales, rescale_is_on)
                self._drop(flow)

    def _is_begun(self, plans: Sequence[DataflowPlan]) -> bool:
        """Whether a flow of these views begins now, beside others: the app has not begun with it."""
        return not all(plan.name in self.kept for plan in plans)

    def wanted(self, wish: PlansWanted) -> None:
        self.waiting[wish.ticket] = wish

    def taken(self, action: PlansTaken) -> None:
        require(checkers.wishes_are_met_in_order, action.ticket, self.waiting)
        self.kept = {plan.name: plan for plan in self.waiting.pop(action.ticket).plans}
        for flow, plans in list(self.flows.items()):
            left = tuple(plan for plan in plans if plan.name in self.kept)
            if left:
                self.left |= {plan.name for plan in plans if plan.name not in self.kept}
                self.flows[flow] = left
            else:
                self._drop(flow)

    def _drop(self, flow: FlowId) -> None:
        self.gone.add(flow)
        self.flows.pop(flow, None)
