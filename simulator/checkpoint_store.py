"""What the lake of a simulated cluster does with checkpoints: it takes what is copied, publishes them, or fails to."""

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
    view = part.plans[0].name
    files = cluster.checkpoints.of(view).store(part.writing, str(process))
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
        (plan,) = cluster.view_observer.flows[wish.flow]
        cluster.checkpoints.of(plan.name).publish(wish, [region.name for region in plan.spread])
        is_of_use = not cluster.lake.is_within_a_segment(wish.epoch)  # else no worker begins with it
        for region in plan.spread if is_of_use and plan.name not in wish.failed else ():
            cluster.watcher.checkpoint_holds(plan, region.name, wish.epoch, _restored(cluster, plan, region))
    cluster.step_coordinator(CheckpointPublished(checkpoint=wish.checkpoint, files=wish.files))


def _restored(cluster: SimulatedCluster, plan: DataflowPlan, region: RegionPlan) -> FullRegionState:
    """All of a region, as a worker that begins with the newest checkpoint has it. Raises Violated if none can."""
    made, checkpoints = cluster.build_region(plan, region), cluster.checkpoints.of(plan.name)
    chain = [checkpoint.epoch for checkpoint in checkpoints.chain(cluster.lake.is_within_a_segment)]
    for chunk in checkpoints.read(chain, region.name, map(VnodeId, range(cluster.vnodes))):
        try:
            made.install(chunk.parts)
        except UpriverError as error:
            raise machines_do_not_fail(error) from error
    return made
