"""What the lake of a simulated river does with checkpoints: it takes what is copied, publishes them, or fails to."""

from simulator.process import Process
from simulator.river import SimulatedCluster
from upriver.engine.keeping import FullRegionState
from upriver.ids import VnodeId
from upriver.plan.plan import DataflowPlan, RegionPlan
from upriver.protocol.coordinator_events import CheckpointPublished, CheckpointUnpublished
from upriver.protocol.worker_events import StateNotWritten, StateWritten


def store(river: SimulatedCluster, process: Process, spoilt: bool) -> None:
    """The lake takes the next thing that a process has copied. spoilt: it does not take the last of them."""
    checkpoint = process.writing.queue[0].checkpoint
    files = river.checkpoints.store(process.writing, str(process))
    if files is None:
        return
    if spoilt:
        river.step_worker(process, StateNotWritten(checkpoint=checkpoint, error="the disk is full"))
    else:
        river.step_worker(process, StateWritten(checkpoint=checkpoint, files=files))


def commit(river: SimulatedCluster, spoilt: bool) -> None:
    """The lake publishes a checkpoint, or fails to."""
    if spoilt:
        number = river.checkpoints.waiting.popleft().checkpoint
        river.step_coordinator(CheckpointUnpublished(checkpoint=number, error="the disk is full"))
        return
    plans = [plan for plan in river.repertoire.kept.values() if plan.full_because is not None]
    wish = river.checkpoints.publish(region.name for plan in plans for region in plan.spread)
    for plan in [plan for plan in plans if plan.name not in wish.failed]:
        for region in plan.spread:
            river.watcher.checkpoint_holds(plan, region.name, wish.epoch, _restored(river, plan, region))
    river.step_coordinator(CheckpointPublished(checkpoint=wish.checkpoint, files=wish.files))


def _restored(river: SimulatedCluster, plan: DataflowPlan, region: RegionPlan) -> FullRegionState:
    """All of a region, as whoever begins with the newest checkpoint has it."""
    made = river.build_region(plan, region)
    chain = [checkpoint.epoch for checkpoint in river.checkpoints.chain()]
    for chunk in river.checkpoints.read(chain, region.name, map(VnodeId, range(river.vnodes))):
        made.install(chunk.parts)
    return made
