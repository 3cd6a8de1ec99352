"""A worker's epochs: opened, read, applied, finished; rules W1 and W2."""

from collections import Counter

from upriver.errors import IllegalEvent, ProtocolError
from upriver.ids import Epoch
from upriver.machines.following import Following, Reading, Unread
from upriver.machines.messages import EpochFinished, EpochOver, OpenEpoch, RowsApplied
from upriver.machines.peers import Portion
from upriver.machines.routes import ask_again, route
from upriver.machines.snapshots import take_snapshots
from upriver.machines.worker_events import EpochRead, ReadEpoch, RowsRead
from upriver.migration.events import RowsArrived


def open_epoch(phase: Following, event: OpenEpoch) -> None:
    """Epochs are read one after the other, each with the slices that were this worker's to read when it was opened."""
    if phase.rules.w1_each_epoch_once:  # W1
        if event.epoch <= phase.opened:
            return
        if event.epoch != phase.opened + 1:
            raise ProtocolError(f"epoch {event.epoch} was opened after {phase.opened}")
    phase.opened = event.epoch
    phase.unread.append(Unread(event.epoch, phase.reads, event.mixed))
    _read_next(phase)


def _read_next(phase: Following) -> None:
    if phase.reading is not None or not phase.unread:
        return
    unread = phase.unread.popleft()
    phase.reading = Reading(unread.epoch, unread.mixed, dict.fromkeys(phase.fed_by, 0))
    phase.actions.append(ReadEpoch(epoch=unread.epoch, channels=tuple(phase.fed_by), vnodes=unread.vnodes))


def rows_read(phase: Following, event: RowsRead) -> None:
    """Rows go through the distributor of every view that they feed."""
    reading = phase.reading
    if reading is None or event.epoch != reading.epoch:
        raise IllegalEvent(f"rows of epoch {event.epoch}, which is not being read; {phase.applied} is applied")
    if event.channel not in reading.read:
        raise IllegalEvent(f"rows of {event.channel}, which feeds no view here")
    if not len(event.batch):
        return
    reading.read[event.channel] += len(event.batch)
    for view in phase.fed_by[event.channel]:
        route(phase, view, RowsArrived(rows=Portion(event.epoch, event.batch)))


def epoch_read(phase: Following, event: EpochRead) -> None:
    """All of this worker's slices were read."""
    reading = phase.reading
    if reading is None or event.epoch != reading.epoch:
        raise IllegalEvent(f"end of epoch {event.epoch}, which is not being read; {phase.applied} is applied")
    if phase.rules.w2_counts_match and reading.read != event.promised:  # W2
        raise ProtocolError(f"epoch {event.epoch}: promised {event.promised}, read {reading.read}")
    phase.applied, phase.reading = event.epoch, None
    if not (reading.mixed and phase.rules.w6_wait_until_over):  # W6
        phase.reflected = event.epoch
    counts = phase.counts.pop(event.epoch, Counter())
    stats = {name: share.view.stats() for name, share in phase.shares.items()}
    applied = {name: counts[name] for name in phase.shares}
    phase.say(EpochFinished(epoch=event.epoch, read=reading.read, applied=applied, stats=stats))
    take_snapshots(phase)
    ask_again(phase)
    _read_next(phase)


def epoch_over(phase: Following, event: EpochOver) -> None:
    """Every row of a mixed epoch is where it belongs."""
    phase.reflected = Epoch(max(phase.reflected, event.epoch))
    ask_again(phase)


def report_late_rows(phase: Following) -> None:
    """Tell of rows of finished epochs that this step has applied."""
    late: dict[Epoch, dict[str, int]] = {}
    for (epoch, view), rows in phase.late.items():
        late.setdefault(epoch, {})[view] = rows
    phase.late.clear()
    for epoch in sorted(late):
        phase.say(RowsApplied(epoch=epoch, applied=late[epoch]))
