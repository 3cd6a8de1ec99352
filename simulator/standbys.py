"""What followers hold when a simulated cluster has come to rest."""

from collections import Counter
from collections.abc import Collection, Sequence

from simulator import checkers
from simulator.checkers import require
from simulator.oracle import Oracle, by_key
from simulator.process import Process
from upriver.ids import Epoch, VnodeId
from upriver.plan.plan import DataflowPlan
from upriver.worker.serving import Serving


def standbys_are_right(
    running: Sequence[Process],
    plans: Sequence[DataflowPlan],
    failed: Collection[str],
    oracle: Oracle,
    published: Epoch,
    wanted: int,
) -> None:
    """Every slice has as many standbys as there are to be, on other instances, and each has what its owner has. failed:
    of the views."""
    full = [plan for plan in plans if plan.full_because is not None and plan.name not in failed]
    copies = Counter[VnodeId]()
    vnodes = 0
    for process in running:
        phase = process.machine.phase
        if not (isinstance(phase, Serving) and full):
            continue
        vnodes = phase.regions.vnodes
        behind = [feed for feed, shadow in phase.replication.followed.items() if not shadow.is_as_of(published)]
        require(checkers.standbys_have_caught_up, behind)
        for shadow in phase.replication.followed.values():
            copies.update(shadow.vnodes)
            for plan in full:
                found = by_key(shadow.regions[plan.name].scan(), plan)
                expected = oracle.share(plan.name, published, shadow.vnodes)
                require(checkers.standbys_equal_the_oracle, expected, found)
    possible = min(wanted, max(0, len(running) - 1))
    by_vnode = {VnodeId(vnode): copies[VnodeId(vnode)] for vnode in range(vnodes)}
    require(checkers.slices_have_their_standbys, possible, by_vnode)
