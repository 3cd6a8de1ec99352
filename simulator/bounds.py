"""How long a simulated cluster may take. One that has not come to rest by then never will."""

from collections.abc import Sequence

from simulator.cluster import SimulatedCluster
from simulator.lake import CUTS_MAX
from upriver.plan.flows import stages_of
from upriver.plan.plan import DataflowPlan

STEPS_TO_REST_MAX = 100_000
"""Things that happen until all is at rest: more than twice the most that any test takes. The sum below is for the worst
that can be, and grows so fast that a cluster that never rests would be watched for half an hour."""


def steps_to_rest(cluster: SimulatedCluster, plans: Sequence[DataflowPlan], vnodes: int, declared: int) -> int:
    """Twice what it takes each process to apply everything in the smallest slices that there can be, and each slice of
    each view to be spoken of by all, as often as everything may begin anew.

    plans: of all views that there can be. declared: how many wishes for other views are on their way.
    """
    slices_max = len(plans) * len(cluster.lake.edges) * (vnodes + CUTS_MAX)
    under_way = sum(len(process.down) + len(process.up) + 1 for process in cluster.processes.values())
    under_way += sum(len(line.said) for line in cluster.network.busy) + len(cluster.control.waiting)
    places_max = len(cluster.rescale_observer.places) + declared + len(cluster.view_observer.waiting) + 5
    epochs = places_max * (cluster.lake.published + 1) * (slices_max + 3)
    slices = places_max**2 * len(plans) * (vnodes + 10)
    depth = max(stages_of(plans).values())
    epochs *= 1 + 4 * (depth + 1) * places_max if depth else 1
    return 2 * under_way + 2 * (2 + len(cluster.rescale_observer.waiting)) * (epochs + slices)
