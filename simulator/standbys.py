"""What followers hold when a simulated cluster has come to rest."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from simulator import checkers
from simulator.checkers import require
from simulator.oracle import Oracle, by_key
from simulator.process import Process
from upriver.ids import Epoch, FlowId, VnodeId
from upriver.plan.plan import DataflowPlan
from upriver.worker.serving import Serving
from upriver.worker.share import Retired, Unassigned


def standbys_are_right(
    running: Sequence[Process],
    flows: Mapping[FlowId, Sequence[DataflowPlan]],
    failed: Collection[str],
    oracle: Oracle,
    published: Epoch,
    wanted: int,
) -> None:
    """Every slice of each flow has as many standbys as there are to be, on other instances, and each has what its owner
    has. failed: of the views."""
    for flow, plans in flows.items():
        if all(plan.full_because is not None and plan.name not in failed for plan in plans):
            _check_flow([process.phase(flow) for process in running], plans, oracle, published, wanted)


def _check_flow(
    phases: Sequence[Unassigned | Serving | Retired],
    plans: Sequence[DataflowPlan],
    oracle: Oracle,
    published: Epoch,
    wanted: int,
) -> None:
    """phases: of the flow's share at each process."""
    copies = Counter[VnodeId]()
    vnodes = 0
    for phase in phases:
        if not isinstance(phase, Serving):
            continue
        vnodes = phase.regions.vnodes
        behind = [feed for feed, shadow in phase.replication.followed.items() if not shadow.is_as_of(published)]
        require(checkers.standbys_have_caught_up, behind)
        for shadow in phase.replication.followed.values():
            copies.update(shadow.vnodes)
            for plan in plans:
                found = by_key(shadow.regions[plan.name].scan(), plan)
                expected = oracle.share(plan.name, published, shadow.vnodes)
                require(checkers.standbys_equal_the_oracle, expected, found)
    possible = min(wanted, max(0, len(phases) - 1))
    by_vnode = {VnodeId(vnode): copies[VnodeId(vnode)] for vnode in range(vnodes)}
    require(checkers.slices_have_their_standbys, possible, by_vnode)
