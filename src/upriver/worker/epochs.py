"""A worker's epochs: opened, read, applied, finished, and their stages; rules worker.each_epoch_once,
worker.counts_match and worker.settle_what_comes_late.

``route`` and ``carry_out``: rows, lookups and state go into a region's distributor, and its outcomes are carried out.
"""

from collections import Counter

from upriver.engine.keeping import ALL_ROWS
from upriver.errors import IllegalEvent, ProtocolError
from upriver.ids import Epoch
from upriver.migration.events import Event, Leave, ReportGone, ReportSettled, RowsArrived, Send
from upriver.migration.messages import Acquire
from upriver.protocol.messages import (
    NO_STAGE,
    BeginStage,
    EpochFinished,
    EpochOver,
    Moved,
    OpenEpoch,
    PeerLeft,
    RowsApplied,
    RowsSettled,
    Settled,
    StageDone,
)
from upriver.protocol.peers import (
    Applied,
    AskedHere,
    Copied,
    ForRegion,
    Gave,
    Hot,
    LeftBehind,
    LeftOut,
    Outcome,
    OwnersChanged,
    PeerLookup,
    Portion,
    Took,
)
from upriver.protocol.strategies import left_to_give, slices_given
from upriver.protocol.worker_events import EpochRead, ReadEpoch, RowsRead, SetRowsAside, TimeToSettle
from upriver.worker.checkpoints import take_checkpoint, take_snapshots, write_chunk
from upriver.worker.lookups import answer_together, asked_here, no_longer_waiting
from upriver.worker.memory import work_on_all
from upriver.worker.replication import feed_between_epochs, feed_epoch, take_in
from upriver.worker.serving import NOTHING_TOLD, EpochReading, Serving, Told, Unread


def route(phase: Serving, region: str, event: Event) -> None:
    """Give a region's distributor an event, and handle all outcomes."""
    carry_out(phase, region, phase.shares[region].step(event))


def carry_out(phase: Serving, region: str, outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        match outcome:
            case Applied(epoch, rows):
                if epoch <= phase.applied:
                    phase.late[epoch, region] += rows
                else:
                    phase.counts[epoch][region] += rows
            case LeftOut(epoch, aside):
                if phase.rules.worker_set_aside_at_once:
                    phase.actions.append(SetRowsAside(epoch=epoch, aside=aside))
            case LeftBehind(to=peer, keys=keys, shown=shown):
                phase.tell(peer, Hot(region=region, keys=keys, shown=shown))
            case OwnersChanged():
                phase.uprooted = True
            case AskedHere(question):
                asked_here(phase, region, question)
            case Gave(keys):
                phase.given += keys
            case Took(keys):
                phase.taken += keys
            case Copied(chunk):
                write_chunk(phase, region, chunk)
            case Send(to=peer, message=message):
                phase.loads_out += isinstance(message, Acquire)
                phase.tell(peer, ForRegion(region=region, message=message, begun=phase.begun))
            case ReportSettled(version=version, kept=kept):
                tell_progress(phase, region)
                phase.say(Settled(region=region, version=version, kept=kept))
            case ReportGone(peer=peer):
                phase.peers.pop(peer, None)
                phase.left.add(peer)
                phase.say(PeerLeft(region=region, peer=peer))
            case Leave():
                phase.has_left = True  # the staying workers tell the coordinator


def ask(phase: Serving, region: str, question: PeerLookup) -> None:
    """Send a lookup to where its keys are. A lookup of no keys is answered here."""
    if len(question):
        route(phase, region, RowsArrived(rows=question))
    else:
        asked_here(phase, region, question)


def ask_again(phase: Serving) -> None:
    """Answer the lookups that have nothing to wait for any more, or route them."""
    for waiting in answer_together(phase, no_longer_waiting(phase)):
        ask(phase, waiting.view, waiting.question)


def tell_progress(phase: Serving, region: str) -> None:
    """Tell the coordinator the progress of a region's migration, if it has changed by a slice or a phase."""
    share = phase.shares[region]
    keys, vnodes = left_to_give(share.migrator.phase)
    name = type(share.migrator.phase).__name__
    before = phase.told.get(region, NOTHING_TOLD)
    if (before.phase, before.vnodes_left) == (name, vnodes):
        return
    gone = slices_given(share.migrator.phase, phase.me)
    phase.told[region] = Told(name, vnodes, gone)
    here = max(1, len(phase.reads))
    travelled = share.travelled
    phase.say(
        Moved(
            region=region,
            phase=name,
            keys=travelled.keys,
            bytes=travelled.bytes,
            keys_left=keys + vnodes * share.region.stats()["keys"] // here,
            vnodes_left=vnodes,
            gone=tuple(sorted(gone - before.gone)),
            forwarded=travelled.forwarded,
            bounced=travelled.bounced,
        )
    )


EPOCHS_BEHIND_MAX = 8
"""Epochs at most whose rows are applied together, if all are open."""


def open_epoch(phase: Serving, event: OpenEpoch) -> None:
    """Epochs are read one after the other, each with the slices that this worker read when the epoch was opened."""
    if phase.rules.worker_each_epoch_once:
        if event.epoch <= phase.opened:
            return
        if event.epoch != phase.opened + 1:
            raise ProtocolError(f"epoch {event.epoch} was opened after {phase.opened}")
    phase.opened = event.epoch
    phase.unread.append(Unread(event.epoch, phase.reads, event.mixed))
    read_next(phase)


def read_next(phase: Serving) -> None:
    """Read the next epoch that is open, if nothing is being read."""
    must_wait = phase.is_restoring and phase.rules.checkpoints_restore_first
    if phase.reading is not None or not phase.unread or must_wait:
        return
    unread = phase.unread.popleft()
    phase.reading = EpochReading(unread.epoch, unread.mixed, dict.fromkeys(phase.fed_by, 0))
    phase.actions.append(ReadEpoch(epoch=unread.epoch, channels=tuple(phase.fed_by), vnodes=unread.vnodes))
    work_on_all(phase)


def rows_read(phase: Serving, event: RowsRead) -> None:
    """Rows go through the distributor of every region that they feed."""
    reading = phase.reading
    if reading is None or event.epoch != reading.epoch:
        raise IllegalEvent(f"rows of epoch {event.epoch}, which is not being read; {phase.applied} is applied")
    if event.channel not in reading.read:
        raise IllegalEvent(f"rows of {event.channel}, which feeds no region here")
    if not len(event.batch):
        return
    reading.read[event.channel] += len(event.batch)
    for region, port in phase.fed_by[event.channel]:
        route(phase, region, RowsArrived(rows=Portion(event.epoch, port, event.batch)))


def epoch_read(phase: Serving, event: EpochRead) -> None:
    """All of this worker's slices were read."""
    reading = phase.reading
    if reading is None or event.epoch != reading.epoch:
        raise IllegalEvent(f"end of epoch {event.epoch}, which is not being read; {phase.applied} is applied")
    if phase.rules.worker_counts_match and reading.read != event.promised:
        raise ProtocolError(f"epoch {event.epoch}: promised {event.promised}, read {reading.read}")
    reading.is_read = True
    finish_epoch(phase)


def finish_epoch(phase: Serving) -> None:
    """Finish the epoch, if all of this worker's slices were read, and every cone is through it."""
    reading = phase.reading
    if reading is None or not reading.is_read or any(cone.applied < reading.epoch for cone in phase.cones.values()):
        return
    epoch = reading.epoch
    phase.applied, phase.reading, phase.stage = epoch, None, NO_STAGE
    if not (reading.mixed and phase.rules.worker_wait_until_over):
        phase.reflected = epoch
        phase.forget_undo()
    _catch_up(phase, goes_on=bool(phase.unread) and not reading.mixed)
    counts = phase.counts.pop(epoch, Counter())
    applied = {name: counts[name] for name in phase.shares}
    phase.say(EpochFinished(epoch=epoch, read=reading.read, applied=applied, stats=phase.stats()))
    if not phase.is_staged:
        feed_epoch(phase)
    take_snapshots(phase)
    take_checkpoint(phase)
    ask_again(phase)
    read_next(phase)


def _catch_up(phase: Serving, *, goes_on: bool) -> None:
    """Apply the rows that wait, unless there is another epoch to read at once."""
    phase.epochs_behind += 1
    if not goes_on or phase.epochs_behind == EPOCHS_BEHIND_MAX:
        phase.epochs_behind = 0
        phase.catch_up()


def epoch_over(phase: Serving, event: EpochOver) -> None:
    """Every row of a mixed epoch is where it belongs."""
    phase.reflected = Epoch(max(phase.reflected, event.epoch))
    phase.forget_undo()
    take_in(phase, event.epoch)
    feed_between_epochs(phase)
    take_snapshots(phase)
    take_checkpoint(phase)
    ask_again(phase)


def begin_stage(phase: Serving, event: BeginStage) -> None:
    """All rows of the epoch for regions of this depth are gathered, here or at other workers."""
    if event.epoch != phase.applied or event.stage != phase.stage + 1:
        raise ProtocolError(
            f"stage {event.stage} of epoch {event.epoch} begins, and stage {phase.stage} of {phase.applied} is done"
        )
    phase.stage, phase.is_settling = event.stage, True


def unsettled(phase: Serving) -> int:
    """Rows that this worker must take in or send before it is done with the current stage."""
    return sum(phase.shares[region].region.unsettled for region in _settling(phase))


def time_to_settle(phase: Serving, event: TimeToSettle) -> None:
    if phase.is_settling:
        _settle(phase, _settling(phase), event.rows_max)


def end_stage(phase: Serving) -> None:
    """worker.whole_stages: this worker is done with a stage when it has taken in all rows gathered for it, and has sent
    all results."""
    if not phase.is_settling or (unsettled(phase) and phase.rules.worker_whole_stages):
        return
    phase.is_settling = False
    phase.say(StageDone(epoch=phase.applied, stage=phase.stage, stats=phase.stats()))
    if phase.stage == phase.deepest:
        feed_epoch(phase)


def settle_late_rows(phase: Serving) -> None:
    """worker.settle_what_comes_late: take in rows that another worker gathered, and that came with their key's state
    after their stage was done here."""
    here = _settling(phase)
    late = [
        region
        for region, share in phase.shares.items()
        if phase.depths[region] <= phase.stage and region not in here and share.region.gathered
    ]
    if late and phase.rules.worker_settle_what_comes_late:
        _settle(phase, late, ALL_ROWS)


def _settling(phase: Serving) -> list[str]:
    """The regions whose stage has begun and is not done here."""
    return [region for region, depth in phase.depths.items() if depth == phase.stage] if phase.is_settling else []


def _settle(phase: Serving, regions: list[str], rows_max: int) -> None:
    """Take in about ``rows_max`` rows that these regions have gathered, and send the results."""
    settled, sent = Counter[str](), Counter[str]()
    left = rows_max
    for region in regions:
        if left <= 0 or not phase.shares[region].region.unsettled:
            continue
        rows, outgoing = phase.shares[region].settle(phase.applied, left)
        settled[region] += rows
        left -= rows
        for out in outgoing:
            sent[out.to] += len(out.batch)
            left -= len(out.batch)
            route(phase, out.to, RowsArrived(rows=Portion(phase.applied, out.port, out.batch)))
    phase.say(RowsSettled(epoch=phase.applied, settled=dict(settled), sent=dict(sent)))


def report_late_rows(phase: Serving) -> None:
    """Report the rows of finished epochs that this step has applied."""
    late: dict[Epoch, dict[str, int]] = {}
    for (epoch, region), rows in phase.late.items():
        late.setdefault(epoch, {})[region] = rows
    phase.late.clear()
    for epoch in sorted(late):
        phase.say(RowsApplied(epoch=epoch, applied=late[epoch]))
