"""The processes for users' functions at one worker: one for each flow that has functions.

A flow with functions has an evaluator of its own, too: while DuckDB waits for a function, the worker steps other flows,
which must not come upon a DuckDB in mid-query.
"""

from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from upriver.engine.expressions import Evaluator
from upriver.engine.operators.map_rows import maps_in
from upriver.engine.region import FullRegionState, Region
from upriver.ids import FlowId
from upriver.logs import LogSettings
from upriver.plan.flows import flows_of
from upriver.plan.plan import DataflowPlan, RegionPlan, StatefulMapOp
from upriver.runtime.function_process import FUNCTION_TIMEOUT_S, FunctionProcess
from upriver.worker.regions import BuildRegion

SPARES_MAX = 4
"""Processes for functions that a worker starts before it joins."""


@dataclass(slots=True)
class _OfFlow:
    """What a flow's functions run in."""

    process: FunctionProcess
    evaluator: Evaluator


@dataclass(slots=True)
class FlowFunctions:
    """Used by the thread that feeds the worker's machine; any thread calls ``close``.

    build_plain: builds a region without users' functions. sets_aside: the tables whose bad rows are left out, as of
    now. timeout_s: as for :class:`FunctionProcess`. meanwhile: does work of other flows than this one, while a function
    of it is called; returns whether there was any.
    """

    build_plain: BuildRegion
    sets_aside: Callable[[], Collection[str]] = frozenset
    timeout_s: float = FUNCTION_TIMEOUT_S
    logs: LogSettings | None = None
    meanwhile: Callable[[FlowId], bool] = field(default=lambda flow: False)
    _flows: dict[FlowId, _OfFlow] = field(default_factory=dict)
    _spare: dict[str, FunctionProcess] = field(default_factory=dict)
    """By the first view with functions of a flow that will come: a process that has them."""

    def begin_spares(self, plans: Iterable[DataflowPlan]) -> None:
        """Start a process for each flow that will come with functions, ``SPARES_MAX`` at most: before the worker joins,
        so that keys that move to it do not wait for that."""
        flows = (list(filter(calls_functions, flow)) for flow in flows_of(plans))
        for flow in islice(filter(None, flows), SPARES_MAX):
            process = FunctionProcess(self.timeout_s, logs=self.logs)
            with suppress(OSError):  # if it cannot be started, the views fail when their flow begins, and nothing else
                for plan in flow:
                    for function in plan.functions:
                        process.column_function(function)
                    for op, rows in maps_in(plan):
                        process.map_call(op, rows)
                self._spare[flow[0].name] = process

    def load_spares(self) -> None:
        """Wait until all of them have their functions."""
        for process in self._spare.values():
            process.load()

    @property
    def spares(self) -> dict[str, int | None]:
        """By the first view with functions of a flow, the process that waits for it."""
        return {view: process.pid for view, process in self._spare.items()}

    def process_of(self, flow: FlowId) -> int | None:
        """The process of a flow with functions."""
        return self._flows[flow].process.pid

    @property
    def flows(self) -> AbstractSet[FlowId]:
        """The flows that call functions."""
        return self._flows.keys()

    def builder(self, flow: FlowId) -> BuildRegion:
        """Builds regions of this flow."""
        return partial(self._build, flow)

    def _build(self, flow: FlowId, plan: DataflowPlan, region: RegionPlan) -> FullRegionState:
        if not calls_functions(plan):
            return self.build_plain(plan, region)
        of_flow = self._flows.get(flow)
        if of_flow is None:
            process = self._spare.pop(plan.name, None) or FunctionProcess(self.timeout_s, logs=self.logs)
            process.work_meanwhile(lambda: self.meanwhile(flow))
            of_flow = self._flows[flow] = _OfFlow(process, Evaluator(process))
        return Region.build(plan, region, of_flow.evaluator, self.sets_aside(), of_flow.process)

    def drop(self, flow: FlowId) -> None:
        """The flow is gone: end its process."""
        of_flow = self._flows.pop(flow, None)
        if of_flow is not None:
            of_flow.process.close()
            of_flow.process.reap()

    def interrupt(self, flow: FlowId) -> None:
        """The flow will be dropped: a call under way fails."""
        if flow in self._flows:
            self._flows[flow].process.close()

    def close(self) -> None:
        """End all processes: calls under way fail."""
        for process in [*self._spare.values(), *(of_flow.process for of_flow in list(self._flows.values()))]:
            process.close()

    def reap(self) -> None:
        """After ``close``: forget all processes."""
        for process in self._spare.values():
            process.reap()
        for flow in list(self._flows):
            self.drop(flow)


def calls_functions(plan: DataflowPlan) -> bool:
    """Whether a view has users' functions."""
    return bool(plan.functions) or any(
        isinstance(node.op, StatefulMapOp) for region in plan.regions for node in region.nodes
    )
