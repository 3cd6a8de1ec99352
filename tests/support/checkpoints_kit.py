"""Short words for tests of the coordinator's checkpoints: what is wanted, what workers and the lake say, and what comes
of it. See coordinator_kit."""

from collections.abc import Sequence
from dataclasses import replace

from coordinator_kit import BOTH, PLAN, Recorded, finished, only, published, said, vnode_map

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.ids import Epoch
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import (
    CheckpointFailed,
    CheckpointPublished,
    CheckpointReady,
    CheckpointsFailed,
    CheckpointsTaken,
    CheckpointUnpublished,
    CheckpointWanted,
    CoordinatorAction,
    CoordinatorEvent,
    PublishCheckpoint,
    WorkerSaid,
)
from upriver.protocol.messages import (
    CheckpointNotTaken,
    CheckpointWritten,
    KeepCheckpoint,
    Restored,
    TakeCheckpoint,
)
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.state.checkpoint import Checkpoint, FoundCheckpoints, StateFile

PARTIAL = replace(PLAN, full_because=None)

# What happens --------------------------------------------------------------------------------------------------------


def want(ticket: int = 0) -> CheckpointWanted:
    return CheckpointWanted(ticket=ticket)


def part_of(incarnation: int, checkpoint: int, keys: int) -> StateFile:
    """What a worker has written; it says nothing that the machine would look at, but for the keys."""
    name = f"{checkpoint}-{incarnation}"
    return StateFile(name=name, region="rows", keys=keys, nbytes=8, spans=(), checksums=())


def written(incarnation: int, checkpoint: int = 1, keys: int = 1, flow: int = 1) -> WorkerSaid:
    files = (part_of(incarnation, checkpoint, keys),)
    return said(incarnation, CheckpointWritten(checkpoint=checkpoint, files=files), flow)


def not_taken(incarnation: int, checkpoint: int = 1) -> WorkerSaid:
    return said(incarnation, CheckpointNotTaken(checkpoint=checkpoint, error="the disk is full"))


def in_lake(wish: PublishCheckpoint) -> CheckpointPublished:
    return CheckpointPublished(checkpoint=wish.checkpoint, files=wish.files)


def not_in_lake(checkpoint: int = 1) -> CheckpointUnpublished:
    return CheckpointUnpublished(checkpoint=checkpoint, error="the disk is gone")


def restored(incarnation: int) -> WorkerSaid:
    return said(incarnation, Restored())


def flown(epoch: int, *incarnations: int) -> list[CoordinatorEvent]:
    """A whole epoch of no rows."""
    return [published(epoch), *(finished(incarnation, epoch) for incarnation in incarnations or (1, 2))]


def found(epoch: int, base: int | None = None, keys: int = 1) -> Checkpoint:
    """What a driver finds in the lake when it begins."""
    files = (part_of(0, epoch, keys),)
    on = None if base is None else Epoch(base)
    return Checkpoint(epoch=Epoch(epoch), base=on, regions={"rows": ""}, files=files)


# The machine ---------------------------------------------------------------------------------------------------------


def checkpointing(
    *events: CoordinatorEvent,
    plans: Sequence[DataflowPlan] = (PLAN,),
    checkpoints: Sequence[Checkpoint] = (),
    every: int | None = None,
    rules: Rules = ALL_RULES,
    outgrown: int | None = None,
) -> CoordinatorMachine:
    """Of two workers, 0 and 1, that take checkpoints, having lived through these events. every: so many epochs.
    outgrown: a checkpoint is dropped after so many."""
    chains = {plan.name: FoundCheckpoints(None, tuple(checkpoints)) for plan in plans}
    machine = Recorded(vnode_map(), tuple(plans), rules, chains, every, outgrown_epochs=outgrown)
    happens(machine, *events)
    return machine


def at(epoch: int, *events: CoordinatorEvent, every: int | None = None, rules: Rules = ALL_RULES) -> CoordinatorMachine:
    """The same; both workers are there, incarnations 1 and 2, and all epochs through this one have ended before."""
    whole = [event for number in range(1, epoch + 1) for event in flown(number)]
    return checkpointing(*BOTH, *whole, *events, every=every, rules=rules)


def happens(machine: CoordinatorMachine, *events: CoordinatorEvent) -> list[CoordinatorAction]:
    return [action for event in events for action in machine.step(event)]


def taken(machine: CoordinatorMachine, checkpoint: int, keys: int = 1) -> list[CoordinatorAction]:
    """Both workers have written so many keys each, and the lake has all of it: what comes of that."""
    (wish,) = only(PublishCheckpoint, happens(machine, *(written(i, checkpoint, keys) for i in (1, 2))))
    return machine.step(in_lake(wish))


def next_one(machine: CoordinatorMachine, epoch: int, keys: int = 1) -> tuple[bool, tuple[int, ...]]:
    """One more epoch, and a checkpoint of so many keys of each worker: whether it is whole, and the chain then."""
    happens(machine, *flown(epoch))
    (ask, _) = only(TakeCheckpoint, machine.step(want(epoch)))
    assert ask.at == epoch
    (told,) = only(CheckpointReady, taken(machine, ask.checkpoint, keys))
    return ask.whole, told.chain


# What came out -------------------------------------------------------------------------------------------------------


def asked_for(actions: Sequence[CoordinatorAction]) -> list[tuple[int, int, bool]]:
    """Of each worker that is told to take its part: the checkpoint, the epoch, whether of everything."""
    return [(ask.checkpoint, ask.at, ask.whole) for ask in only(TakeCheckpoint, actions)]


def kept(actions: Sequence[CoordinatorAction]) -> list[int]:
    return [told.checkpoint for told in only(KeepCheckpoint, actions)]


def ready(actions: Sequence[CoordinatorAction]) -> list[tuple[tuple[int, ...], int, tuple[int, ...]]]:
    """The requests that are answered, and epoch and chain of each flow that has a checkpoint."""
    tickets = tuple(told.ticket for told in only(CheckpointsTaken, actions))
    return [(tickets, told.epoch, told.chain) for told in only(CheckpointReady, actions)]


def failed(actions: Sequence[CoordinatorAction]) -> list[tuple[tuple[int, ...], int, str]]:
    """The requests that are refused, and epoch of each flow whose checkpoint was given up, and why."""
    tickets = tuple(told.ticket for told in only(CheckpointsFailed, actions))
    return [(tickets, told.epoch, told.why) for told in only(CheckpointFailed, actions)]
