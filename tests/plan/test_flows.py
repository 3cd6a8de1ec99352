"""Maps and what reads them are one flow: planned together, computed once, and dropped one by one."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from simulator.map_graphs import DeclaredGraph, GraphMap
from upriver.lake.change_writer import log_fingerprints, with_marks
from upriver.lake.checkpoint_places import FlowState, state_of
from upriver.plan.flows import RunningPlans, as_one, flows_of, readers_of, stages_of
from upriver.plan.plan import DataflowPlan, Per, StatefulMapOp
from upriver.plan.planning import FEEDS_ALONE

FIRST = GraphMap("m0", (("trades", ("sym",)),), Per.ROW, tells_source=False)
SECOND = GraphMap("m1", (("m0", ("to_m0",)),), Per.KEY, tells_source=False)
OTHER = GraphMap("m2", (("visits", ("page",)),), Per.ROW, tells_source=False)


@pytest.fixture(scope="module")
def graph() -> DeclaredGraph:
    return DeclaredGraph([FIRST, SECOND, OTHER])


def declared(graph: DeclaredGraph) -> list[DataflowPlan]:
    return [*graph.plans(), graph.view("of_m0", "m0"), graph.view("of_m1", "m1")]


def maps_of(plan: DataflowPlan) -> list[str]:
    return [node.op.name for region in plan.regions for node in region.nodes if isinstance(node.op, StatefulMapOp)]


def names(plans: Sequence[DataflowPlan]) -> list[str]:
    return [plan.name for plan in plans]


def test_each_map_is_computed_once_and_feeds_what_reads_it(graph: DeclaredGraph) -> None:
    together = graph.together({}, "m0", "m1")
    assert sorted(name for plan in together for name in maps_of(plan)) == ["m0", "m1", "m2"]
    first = together[names(together).index("m0")]
    assert {send.to for send in first.feeds} == {"m1", "of_m0"}
    assert first.regions[-1].sent < first.regions[-1].last, "what is kept has no columns of the order"
    assert [sorted(names(flow)) for flow in flows_of(together)] == [["m2"], ["m0", "m1", "of_m0", "of_m1"]]


def test_plans_of_a_flow_come_behind_those_that_feed_them(graph: DeclaredGraph) -> None:
    flow = flows_of(graph.together({}, "m0", "m1"))[-1]
    stages = stages_of(flow)
    assert stages["m0"] < stages["m1"] < stages["of_m1"]
    assert stages["m0"] < stages["of_m0"]
    assert readers_of(flow, "m0") == tuple(name for name in names(flow) if name != "m0")
    assert (readers_of(flow, "m1"), readers_of(flow, "of_m0")) == (("of_m1",), ())
    assert {region.name for region in as_one(flow, "of_m1").regions} >= {"m0", "m1", "of_m1"}
    assert as_one(flow, "of_m1").channels == as_one(flow, "m0").channels


def test_a_map_that_keeps_no_rows_is_a_part_of_its_only_reader(graph: DeclaredGraph) -> None:
    (plan, other) = graph.together({"m0": FEEDS_ALONE})
    assert (maps_of(plan), plan.is_kept, names([other])) == (["m0", "m1"], True, ["m2"])


def test_a_map_that_keeps_no_rows_has_no_store_if_several_read_it(graph: DeclaredGraph) -> None:
    together = graph.together({"m0": FEEDS_ALONE}, "m0")
    first = together[names(together).index("m0")]
    assert (maps_of(first), first.is_kept, first.regions[-1].leaves) == (["m0"], False, None)
    assert {send.to for send in first.feeds} == {"m1", "of_m0"}


def test_a_map_that_keeps_no_rows_and_that_nobody_reads_is_not_computed(graph: DeclaredGraph) -> None:
    assert names(graph.together({"m2": FEEDS_ALONE})) == ["m0", "m1"]


def test_what_is_dropped_and_declared_again_runs_by_itself(graph: DeclaredGraph) -> None:
    plans = declared(graph)
    together = graph.together({}, "m0", "m1")
    running = RunningPlans(plans, together)
    assert running.of(plans) == together
    assert names(running.of(plans[:-1])) == [name for name in names(together) if name != "of_m1"]
    again = running.of(plans)
    assert again[-1] == plans[-1]
    assert maps_of(again[-1]) == ["m0", "m1"], "it computes the maps that it reads"


def test_a_map_that_only_feeds_others_runs_as_long_as_one_of_them(graph: DeclaredGraph) -> None:
    together = graph.together({"m0": FEEDS_ALONE}, "m0")
    plans = [plan for plan in declared(graph) if plan.name in ("m1", "m2", "of_m0")]
    running = RunningPlans(plans, together)
    assert names(running.of(plans)) == names(together)
    assert "m0" in names(running.of([plan for plan in plans if plan.name != "m1"]))
    assert names(running.of([plan for plan in plans if plan.name == "m2"])) == ["m2"]


def test_the_state_of_a_flow_depends_on_all_its_plans(graph: DeclaredGraph) -> None:
    def found(*views: str) -> FlowState:
        (flow,) = (flow for flow in flows_of(graph.together({}, *views)) if len(flow) > 1)
        state = state_of(flow)
        assert state is not None
        assert state.regions.keys() == {region.name for plan in flow for region in plan.regions}
        return state

    both, one, other = found("m0", "m1"), found("m0"), found("m1")
    assert len({both.digest, one.digest, other.digest}) == 3
    assert both.regions["of_m1"] == other.regions["of_m1"], "what reads a map does not change the map"
    forgetful = DeclaredGraph([replace(FIRST, per=Per.BATCH), SECOND])
    (flow,) = flows_of(forgetful.together({}, "m1"))
    changed = state_of(flow)
    assert changed is not None
    assert changed.regions["of_m1"] != both.regions["of_m1"], "another map changes what reads it"


def test_change_logs_go_on_however_a_view_is_planned(graph: DeclaredGraph) -> None:
    alone = [replace(plan, logs_changes=True) for plan in declared(graph)]
    together = [replace(plan, logs_changes=True) for plan in graph.together({}, "m0", "m1")]
    marked = with_marks(together, alone)
    assert log_fingerprints(marked) == log_fingerprints(alone)
    assert log_fingerprints(together) != log_fingerprints(alone)
