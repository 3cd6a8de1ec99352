"""What the lake of a simulated cluster does with checkpoints: it takes what is copied, publishes them, or fails to."""

from collections.abc import Sequence

from simulator.checkers import machines_do_not_fail
from simulator.cluster import SimulatedCluster
from simulator.process import Process, SharePart
from upriver.engine.region import FullRegionState
from upriver.errors import UpriverError
from upriver.ids import VnodeId
from upriver.plan.plan import DataflowPlan, RegionPlan
from upriver.protocol.coordinator_events import CheckpointPublished, CheckpointUnpublished
from upriver.protocol.worker_events import StateNotWritten, StateWritten


def store(cluster: SimulatedCluster, process: Process, part: SharePart, fails: bool) -> None:
    """The lake takes the next thing that a share has copied. fails: it does not take the last of them."""
    checkpoint = part.writing.queue[0].checkpoint
    files = cluster.checkpoints.of(part.plans).store(part.writing, str(process))
    if files is None:
        return
    if fails:
        cluster.answer(process, part, StateNotWritten(checkpoint=checkpoint, error="the disk is full"))
    else:
        cluster.answer(process, part, StateWritten(checkpoint=checkpoint, files=files))


def commit(cluster: SimulatedCluster, fails: bool) -> None:
    """The lake publishes a checkpoint, or fails to. One of a flow that is gone is not there, whatever it says."""
    wish = cluster.checkpoints.waiting.popleft()
    if fails:
        cluster.step_coordinator(CheckpointUnpublished(checkpoint=wish.checkpoint, error="the disk is full"))
        return
    if wish.flow not in cluster.view_observer.gone:
        plans = cluster.view_observer.plans_of(wish.flow)
        cluster.checkpoints.of(plans).publish(wish, [region.name for plan in plans for region in plan.spread])
        is_of_use = not cluster.lake.is_within_a_segment(wish.epoch)  # else no worker begins with it
        for plan in plans if is_of_use else ():
            for region in plan.spread if plan.name not in wish.failed else ():
                restored = _restored(cluster, plans, plan, region)
                cluster.watcher.checkpoint_holds(plan, region.name, wish.epoch, restored)
    cluster.step_coordinator(CheckpointPublished(checkpoint=wish.checkpoint, files=wish.files))


def _restored(
    cluster: SimulatedCluster, flow: Sequence[DataflowPlan], plan: DataflowPlan, region: RegionPlan
) -> FullRegionState:
    """All of a region of a flow, as a worker that begins with the newest checkpoint has it. Raises Violated if none
    can."""
    made, checkpoints = cluster.build_region(plan, region), cluster.checkpoints.of(flow)
    chain = [checkpoint.epoch for checkpoint in checkpoints.chain(cluster.lake.is_within_a_segment)]
    for chunk in checkpoints.read(chain, region.name, map(VnodeId, range(cluster.vnodes))):
        try:
            made.install(chunk.parts)
        except UpriverError as error:
            raise machines_do_not_fail(error) from error
    return made
