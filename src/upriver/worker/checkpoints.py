"""A worker's part of checkpoints: copied as of the cut, written, and restored; rules checkpoints.copy_before_change,
checkpoints.restore_first and checkpoints.dropped_have_changed.

``docs/internals/checkpoints.md``. A worker takes its part when it stands at the cut: each region then knows which keys
belong to the checkpoint. The worker copies them when there is time, and always before they change.

Also a worker's parts of snapshots; rule worker.snapshot_at_cut.
"""

from upriver.engine.row_text import error_text
from upriver.errors import IllegalEvent, ProtocolError, UpriverError
from upriver.ids import BEGINNING, Epoch
from upriver.protocol.messages import (
    CheckpointSpoilt,
    CheckpointWritten,
    DropCheckpoint,
    DropSnapshot,
    KeepCheckpoint,
    Restored,
    SnapshotSpoilt,
    SnapshotTaken,
    TakeCheckpoint,
    TakeSnapshot,
    Unrestored,
)
from upriver.protocol.worker_events import (
    AllStateRead,
    ForgetSnapshot,
    ForgetState,
    HoldSnapshot,
    ReadState,
    SealState,
    StateNotWritten,
    StateRead,
    StateUnread,
    StateWritten,
    TimeToCopy,
    WriteState,
)
from upriver.state.checkpoint import StateChunk
from upriver.worker.serving import Serving


def snapshot_asked(phase: Serving, event: TakeSnapshot) -> None:
    phase.snapshots.append(event)
    take_snapshots(phase)


def snapshot_dropped(phase: Serving, event: DropSnapshot) -> None:
    phase.snapshots = [asked for asked in phase.snapshots if asked.snapshot != event.snapshot]
    phase.actions.append(ForgetSnapshot(snapshot=event.snapshot))


def take_snapshots(phase: Serving) -> None:
    """Take this worker's part of every snapshot whose cut it has reached."""
    at_cut = [asked for asked in phase.snapshots if _at_cut(phase, asked)]
    phase.snapshots = [asked for asked in phase.snapshots if asked not in at_cut]
    for asked in at_cut:
        _take(phase, asked)


def _take(phase: Serving, asked: TakeSnapshot) -> None:
    try:
        rows = phase.shares[asked.view].region.scan()
    except Exception as error:  # the state is right: only the reader gets the error
        what = str(error) if isinstance(error, UpriverError) else error_text(error)
        phase.say(SnapshotSpoilt(snapshot=asked.snapshot, error=f"view {asked.view!r}: {what}"))
        return
    phase.actions.append(HoldSnapshot(snapshot=asked.snapshot, rows=rows))
    phase.say(SnapshotTaken(snapshot=asked.snapshot, rows=rows.num_rows))


def _at_cut(phase: Serving, asked: TakeSnapshot) -> bool:
    return not phase.rules.worker_snapshot_at_cut or stands_at(phase, asked.at)


def stands_at(phase: Serving, cut: Epoch) -> bool:
    """Whether all state here is as of the end of this epoch. Raises ProtocolError if the worker is past it."""
    if phase.applied > cut:
        raise ProtocolError(f"the end of epoch {cut} is asked for, and {phase.applied} is applied")
    is_over = phase.reflected == cut if phase.is_staged else phase.reading is None
    return phase.applied == cut and is_over


# Restoring


def restore(phase: Serving) -> None:
    """Restore the state from checkpoints, if there are any. Until that is done, this worker reflects nothing."""
    chain = phase.assignment.chain
    if not chain:
        return
    vnodes = {
        name: phase.assignment.maps[name].vnodes_of_worker(phase.me)
        for name, share in phase.shares.items()
        if share.changes is not None
    }
    if not any(vnodes.values()):
        phase.say(Restored())
        return
    phase.is_restoring = True
    if phase.rules.checkpoints_restore_first:
        phase.applied = phase.reflected = BEGINNING
    phase.actions.append(ReadState(chain=chain, vnodes={name: of_one for name, of_one in vnodes.items() if of_one}))


def state_read(phase: Serving, event: StateRead) -> None:
    """The state of some keys has been read."""
    if not phase.is_restoring:
        raise IllegalEvent(f"state of region {event.region!r}, and nothing is being restored")
    phase.shares[event.region].restore(event.chunk)


def state_unread(phase: Serving, event: StateUnread) -> None:
    """The state cannot be read. The coordinator decides what the worker restores instead."""
    chain = phase.assignment.chain
    if not (phase.is_restoring and chain):
        raise IllegalEvent("state cannot be read, and nothing is being restored")
    phase.say(Unrestored(checkpoint=chain[0], error=event.error))


def all_state_read(phase: Serving, event: AllStateRead) -> None:
    """The state is restored as of the end of the newest checkpoint's epoch."""
    if not phase.is_restoring:
        raise IllegalEvent("all state was read, and nothing is being restored")
    phase.is_restoring = False
    phase.applied = phase.reflected = phase.assignment.start_at
    phase.say(Restored())


# Taking


def checkpoint_asked(phase: Serving, event: TakeCheckpoint) -> None:
    phase.checkpoint = event
    take_checkpoint(phase)


def take_checkpoint(phase: Serving) -> None:
    """Take this worker's part of the checkpoint, if the worker stands at the cut."""
    asked = phase.checkpoint
    if asked is None or not stands_at(phase, asked.at):
        return
    phase.checkpoint, phase.copying, phase.is_sealed = None, asked, False
    for share in phase.shares.values():
        share.cut(whole=asked.whole)
    _seal(phase)


def can_copy(phase: Serving) -> bool:
    """Whether ``TimeToCopy`` would copy a key."""
    return phase.copying is not None and not phase.is_sealed


def time_to_copy(phase: Serving, event: TimeToCopy) -> None:
    """Copy the next keys."""
    left = event.keys_max
    for region, share in phase.shares.items():
        while left > 0 and (chunk := share.copy(left)) is not None:
            left -= len(chunk.keys)
            write_chunk(phase, region, chunk)
    _seal(phase)


def write_chunk(phase: Serving, region: str, chunk: StateChunk) -> None:
    copying = phase.copying
    if copying is None:
        raise ProtocolError(f"region {region!r} was copied, and no checkpoint is being taken")
    phase.actions.append(WriteState(checkpoint=copying.checkpoint, at=copying.at, region=region, chunk=chunk))


def _seal(phase: Serving) -> None:
    """Seal the worker's part, if no region has keys left to copy."""
    copying = phase.copying
    is_left = any(share.is_to_copy for share in phase.shares.values())
    if copying is None or phase.is_sealed or is_left:
        return
    phase.is_sealed = True
    phase.actions.append(SealState(checkpoint=copying.checkpoint, at=copying.at))


def state_written(phase: Serving, event: StateWritten) -> None:
    if phase.copying is not None and phase.copying.checkpoint == event.checkpoint:
        phase.say(CheckpointWritten(checkpoint=event.checkpoint, files=event.files))


def state_not_written(phase: Serving, event: StateNotWritten) -> None:
    if phase.copying is not None and phase.copying.checkpoint == event.checkpoint:
        phase.say(CheckpointSpoilt(checkpoint=event.checkpoint, error=event.error))


def checkpoint_kept(phase: Serving, event: KeepCheckpoint) -> None:
    if phase.copying is not None and phase.copying.checkpoint == event.checkpoint:
        phase.copying = None
        for share in phase.shares.values():
            share.keep_cut()


def checkpoint_dropped(phase: Serving, event: DropCheckpoint) -> None:
    """The checkpoint is given up: its keys count as changed again (checkpoints.dropped_have_changed)."""
    if phase.checkpoint is not None and phase.checkpoint.checkpoint == event.checkpoint:
        phase.checkpoint = None
    if phase.copying is None or phase.copying.checkpoint != event.checkpoint:
        return
    phase.copying = None
    phase.actions.append(ForgetState(checkpoint=event.checkpoint))
    for share in phase.shares.values():
        share.drop_cut()
