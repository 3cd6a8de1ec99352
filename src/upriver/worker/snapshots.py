"""A worker's parts of snapshots; rule W5."""

from upriver.engine.row_text import error_text
from upriver.errors import ProtocolError, UpriverError
from upriver.ids import Epoch
from upriver.protocol.messages import DropSnapshot, SnapshotSpoilt, SnapshotTaken, TakeSnapshot
from upriver.protocol.worker_events import ForgetSnapshot, HoldSnapshot
from upriver.worker.following import Following


def snapshot_asked(phase: Following, event: TakeSnapshot) -> None:
    phase.snapshots.append(event)
    take_snapshots(phase)


def snapshot_dropped(phase: Following, event: DropSnapshot) -> None:
    phase.snapshots = [asked for asked in phase.snapshots if asked.snapshot != event.snapshot]
    phase.actions.append(ForgetSnapshot(snapshot=event.snapshot))


def take_snapshots(phase: Following) -> None:
    """Take this worker's part of every snapshot at whose cut it stands."""
    at_cut = [asked for asked in phase.snapshots if _at_cut(phase, asked)]
    phase.snapshots = [asked for asked in phase.snapshots if asked not in at_cut]
    for asked in at_cut:
        _take(phase, asked)


def _take(phase: Following, asked: TakeSnapshot) -> None:
    try:
        rows = phase.shares[asked.view].region.scan()
    except Exception as error:  # what is kept is right: the reader is told, and nothing else is the worse for it
        what = str(error) if isinstance(error, UpriverError) else error_text(error)
        phase.say(SnapshotSpoilt(snapshot=asked.snapshot, error=f"view {asked.view!r}: {what}"))
        return
    phase.actions.append(HoldSnapshot(snapshot=asked.snapshot, rows=rows))
    phase.say(SnapshotTaken(snapshot=asked.snapshot, rows=rows.num_rows))


def _at_cut(phase: Following, asked: TakeSnapshot) -> bool:
    return not phase.rules.w5_snapshot_at_cut or stands_at(phase, asked.at)  # W5


def stands_at(phase: Following, cut: Epoch) -> bool:
    """Whether everything here is as of the end of this epoch. Raises ProtocolError if it is past it."""
    if phase.applied > cut:
        raise ProtocolError(f"the end of epoch {cut} is asked for, and {phase.applied} is applied")
    is_over = phase.reflected == cut if phase.is_staged else phase.reading is None
    return phase.applied == cut and is_over
