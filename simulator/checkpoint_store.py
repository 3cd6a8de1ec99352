"""What the lake of a simulated cluster does with checkpoints: it takes what is copied, publishes them, or fails to."""

from simulator.checkers import machines_do_not_fail
from simulator.cluster import SimulatedCluster
from simulator.process import Process
from upriver.engine.region import FullRegionState
from upriver.errors import UpriverError
from upriver.ids import VnodeId
from upriver.plan.plan import DataflowPlan, RegionPlan
from upriver.protocol.coordinator_events import CheckpointPublished, CheckpointUnpublished
from upriver.protocol.worker_events import StateNotWritten, StateWritten


def store(cluster: SimulatedCluster, process: Process, fails: bool) -> None:
    """The lake takes the next thing that a process has copied. fails: it does not take the last of them."""
    checkpoint = process.writing.queue[0].checkpoint
    files = cluster.checkpoints.store(process.writing, str(process))
    if files is None:
        return
    if fails:
        cluster.step_worker(process, StateNotWritten(checkpoint=checkpoint, error="the disk is full"))
    else:
        cluster.step_worker(process, StateWritten(checkpoint=checkpoint, files=files))


def commit(cluster: SimulatedCluster, fails: bool) -> None:
    """The lake publishes a checkpoint, or fails to."""
    if fails:
        number = cluster.checkpoints.waiting.popleft().checkpoint
        cluster.step_coordinator(CheckpointUnpublished(checkpoint=number, error="the disk is full"))
        return
    plans = [plan for plan in cluster.view_observer.kept.values() if plan.full_because is not None]
    wish = cluster.checkpoints.publish(region.name for plan in plans for region in plan.spread)
    is_of_use = not cluster.lake.is_within_a_segment(wish.epoch)  # else no worker begins with it
    for plan in [plan for plan in plans if is_of_use and plan.name not in wish.failed]:
        for region in plan.spread:
            cluster.watcher.checkpoint_holds(plan, region.name, wish.epoch, _restored(cluster, plan, region))
    cluster.step_coordinator(CheckpointPublished(checkpoint=wish.checkpoint, files=wish.files))


def _restored(cluster: SimulatedCluster, plan: DataflowPlan, region: RegionPlan) -> FullRegionState:
    """All of a region, as a worker that begins with the newest checkpoint has it. Raises Violated if none can."""
    made = cluster.build_region(plan, region)
    chain = [checkpoint.epoch for checkpoint in cluster.checkpoints.chain(cluster.lake.is_within_a_segment)]
    for chunk in cluster.checkpoints.read(chain, region.name, map(VnodeId, range(cluster.vnodes))):
        try:
            made.install(chunk.parts)
        except UpriverError as error:
            raise machines_do_not_fail(error) from error
    return made
