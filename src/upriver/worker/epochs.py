"""A worker's epochs: opened, read, applied, finished, and their stages; rules worker.each_epoch_once,
worker.counts_match and worker.settle_what_comes_late."""

from collections.abc import Sequence

from upriver.engine.region import ALL_ROWS
from upriver.errors import IllegalEvent, ProtocolError
from upriver.ids import Channel, Epoch, VnodeId, preceding
from upriver.migration.events import RowsArrived
from upriver.protocol.messages import (
    NO_STAGE,
    BeginStage,
    EpochFinished,
    EpochOver,
    OpenEpoch,
    RowsApplied,
    RowsSettled,
    StageDone,
)
from upriver.protocol.peers import Portion
from upriver.protocol.rules import Rules
from upriver.protocol.worker_events import AllStateRead, EpochRead, ReadEpoch, RowsRead, SetRowsAside, TimeToSettle
from upriver.worker.changes import ChangeParts
from upriver.worker.checkpoints import CheckpointParts
from upriver.worker.distributors import Distributors
from upriver.worker.peers import StepOutput
from upriver.worker.progress import EpochProgress
from upriver.worker.regions import Regions
from upriver.worker.replication import Replication
from upriver.worker.upqueries import Upqueries

EPOCHS_BEHIND_MAX = 8
"""Epochs at most whose rows are applied together, if all are open."""


class Epochs:
    """Reads the open epochs one after the other, and settles their stages."""

    def __init__(
        self,
        progress: EpochProgress,
        regions: Regions,
        upqueries: Upqueries,
        replication: Replication,
        checkpoints: CheckpointParts,
        changes: ChangeParts,
        distributors: Distributors,
        output: StepOutput,
        rules: Rules,
    ) -> None:
        self.progress = progress
        self._epochs_behind = 0
        """Epochs that were read since all rows were applied."""
        self._stage = NO_STAGE
        """The last stage of the epoch read last that has begun here."""
        self._is_settling = False
        """That stage is not done here."""
        self._regions = regions
        self._upqueries = upqueries
        self._replication = replication
        self._checkpoints = checkpoints
        self.changes = changes
        self._distributors = distributors
        self._output = output
        self._rules = rules

    def all_state_read(self, _event: AllStateRead) -> None:
        """The state is restored as of the end of the newest checkpoint's epoch."""
        self._checkpoints.end_restore()
        self._regions.stats()  # for ``MemoryBudget.weigh``
        self._checkpoints.take_snapshots()
        self.changes.take_due()
        self._distributors.ask_again()
        self.read_next()

    def open_epoch(self, event: OpenEpoch) -> None:
        """Epochs are read one after the other, each with the slices that this worker read when the epoch was opened."""
        if self._rules.worker_each_epoch_once:
            if event.epoch <= self.progress.opened:
                return
            if self.progress.opened != preceding(event.epoch, event.after):
                raise ProtocolError(f"epoch {event.epoch} was opened after {self.progress.opened}")
        self.progress.open(event)
        self.read_next()

    def read_next(self) -> None:
        """Read the next epoch that is open, if nothing is being read."""
        must_wait = self._checkpoints.is_restoring and self._rules.checkpoints_restore_first
        if self.progress.reading is not None or not self.progress.has_unread or must_wait:
            return
        unread = self.progress.begin_next(self._regions.fed_by)
        channels = tuple(self._regions.fed_by)
        read = ReadEpoch(
            epoch=unread.epoch,
            channels=channels,
            vnodes=unread.vnodes,
            after=unread.after,
            as_of=unread.as_of,
            in_parts=self._regions.taken_in_parts if self._may_part(unread.vnodes) else frozenset(),
        )
        self._output.add(read)
        self._upqueries.work_on_all()

    def _may_part(self, vnodes: Sequence[VnodeId]) -> bool:
        """worker.moving_keys_whole: whether the rows that a key of these slices has in the lake may come in several
        pieces. After a rescale a worker may still read slices that another one keeps."""
        return self._regions.keep_all(vnodes) or not self._rules.worker_moving_keys_whole

    def rows_read(self, event: RowsRead) -> None:
        """Rows go through the distributor of every region that they feed."""
        reading = self.progress.reading_of(event.epoch, "rows")
        self._advance()
        if event.channel not in reading.read:
            raise IllegalEvent(f"rows of {event.channel}, which feeds no region here")
        if not len(event.batch):
            return
        self.progress.count_read(event.channel, len(event.batch))
        for region, port in self._regions.fed_by[event.channel]:
            if event.goes_on:
                self._regions.shards[region].expect_more(event.epoch, event.batch.hash64[-1:])
            batch = event.batch if (region, port) in self._regions.dated_ports else event.batch.undated
            self._distributors.route(region, RowsArrived(rows=Portion(event.epoch, port, batch)))

    def epoch_read(self, event: EpochRead) -> None:
        """All of this worker's slices were read."""
        reading = self.progress.reading_of(event.epoch, "end")
        self._advance()
        due = {channel: rows + event.aged.get(channel, 0) for channel, rows in event.promised.items()}
        if self._rules.worker_counts_match:
            for channel in sorted({channel for channel, _ in due.items() ^ reading.read.items()}):
                there, came = due.get(channel, 0), reading.read.get(channel, 0)
                what = f"{there} rows of {channel} are in the lake, and {came} came"
                self._fail_fed(channel, f"epoch {event.epoch}: {what}")
        self.progress.end_reading(event.aged)
        self.finish()

    def _fail_fed(self, channel: Channel, what: str) -> None:
        """The views that the channel feeds have other rows here than the lake has: they fail."""
        for region, _ in self._regions.fed_by.get(channel, []):
            with self._regions.shards[region].contained("reading the lake"):
                raise ProtocolError(what)

    def _advance(self) -> None:
        """With the first that is read of an epoch, the clock gets to its instant. Until then the state here is as of
        the epoch before."""
        clock = self.progress.take_clock()
        if clock is not None:
            self._distributors.advance(self.progress.begun, clock)

    def finish(self) -> None:
        """Finish the epoch, if all of this worker's slices were read, and every cone is through it."""
        reading = self.progress.reading
        if reading is None or not reading.is_read:
            return
        epoch = reading.epoch
        if any(cone.applied < epoch for cone in self._regions.cones.values()) or self._distributors.awaits_loads:
            return
        self.progress.finish(epoch)
        self._stage = NO_STAGE
        if not (reading.mixed and self._rules.worker_wait_until_over):
            self._regions.epoch_over(epoch)
            self.progress.reflect(epoch)
        self._catch_up(goes_on=self.progress.has_unread and not reading.mixed)
        counts = self.progress.counts(epoch)
        if counts.has_put_off:
            self._report_settled(epoch)
        applied = {name: counts.applied[name] for name in self._regions.shards}
        stats = self._regions.stats()
        self._output.report(
            EpochFinished(epoch=epoch, read=reading.read, applied=applied, stats=stats, aged=reading.aged)
        )
        if not self._regions.is_staged:
            self._replication.feed_epoch()
        self._checkpoints.take_due()
        self.changes.take_due()
        self._distributors.ask_again()
        self.read_next()

    def _catch_up(self, *, goes_on: bool) -> None:
        """Apply the rows that wait, unless there is another epoch to read at once."""
        self._epochs_behind += 1
        if not goes_on or self._epochs_behind == EPOCHS_BEHIND_MAX:
            self._epochs_behind = 0
            self._regions.catch_up()

    def epoch_over(self, event: EpochOver) -> None:
        """Every row of a mixed epoch is where it belongs."""
        self._regions.epoch_over(event.epoch)
        self.progress.reflect(Epoch(max(self.progress.reflected, event.epoch)))
        self._replication.take_in(event.epoch)
        self._replication.feed_between_epochs()
        self._checkpoints.take_due()
        self.changes.take_due()
        self._distributors.ask_again()

    def begin_stage(self, event: BeginStage) -> None:
        """All rows of the epoch for regions of this depth are gathered, here or at other workers."""
        if event.epoch != self.progress.applied or event.stage != self._stage + 1:
            raise ProtocolError(
                f"stage {event.stage} of epoch {event.epoch} begins, and stage {self._stage} of"
                f" {self.progress.applied} is done"
            )
        self._stage, self._is_settling = event.stage, True

    @property
    def unsettled(self) -> int:
        """Rows that this worker must take in or send before it is done with the current stage."""
        return sum(self._regions.shards[region].region.unsettled for region in self._settling())

    def time_to_settle(self, event: TimeToSettle) -> None:
        if self._is_settling:
            self._settle(self._settling(), event.rows_max)

    def end_stage(self) -> None:
        """worker.whole_stages: this worker is done with a stage when it has taken in all rows gathered for it, and has
        sent all results."""
        if not self._is_settling or (self.unsettled and self._rules.worker_whole_stages):
            return
        self._is_settling = False
        self._output.report(StageDone(epoch=self.progress.applied, stage=self._stage, stats=self._regions.stats()))
        if self._stage == self._regions.deepest:
            self._replication.feed_epoch()

    def settle_late_rows(self) -> None:
        """worker.settle_what_comes_late: take in rows that another worker gathered, and that came with their key's
        state after their stage was done here. Rows of a later epoch wait for their own stage."""
        if self.progress.has_rows_of_next:
            return
        here = self._settling()
        late = [
            region
            for region, shard in self._regions.shards.items()
            if self._regions.depths[region] <= self._stage and region not in here and shard.region.waiting
        ]
        if late and self._rules.worker_settle_what_comes_late:
            self._settle(late, ALL_ROWS)

    def _settling(self) -> list[str]:
        """The regions whose stage has begun and is not done here."""
        if not self._is_settling:
            return []
        return [region for region, depth in self._regions.depths.items() if depth == self._stage]

    def _settle(self, regions: list[str], rows_max: int) -> None:
        """Take in about ``rows_max`` rows that these regions have gathered, and send the results."""
        epoch, left = self.progress.applied, rows_max
        counts = self.progress.counts(epoch)
        for region in regions:
            if left <= 0 or not self._regions.shards[region].region.unsettled:
                continue
            rows, outgoing = self._regions.shards[region].settle(epoch, left)
            for aside in self._regions.shards[region].region.left_out():
                if self._rules.worker_set_aside_at_once:
                    self._output.add(SetRowsAside(epoch=epoch, aside=aside, after=self.progress.after(epoch)))
            counts.settled[region] += rows
            left -= rows
            for out in (out for out in outgoing if not self._regions.has_failed(out.to)):
                counts.sent[out.to] += len(out.batch)
                left -= len(out.batch)
                self._distributors.route(out.to, RowsArrived(rows=Portion(epoch, out.port, out.batch)))
        self._report_settled(epoch)

    def _report_settled(self, epoch: Epoch) -> None:
        counts = self.progress.counts(epoch)
        counts.has_put_off = False
        self._output.report(RowsSettled(epoch=epoch, settled=dict(counts.settled), sent=dict(counts.sent)))

    def report_late_rows(self) -> None:
        """Report the rows of finished epochs that this step has applied, after those that were put off."""
        for epoch in self.progress.take_late():
            if self.progress.counts(epoch).has_put_off:
                self._report_settled(epoch)
            self._output.report(RowsApplied(epoch=epoch, applied=dict(self.progress.counts(epoch).applied)))
