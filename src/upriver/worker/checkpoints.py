"""A worker's part of checkpoints: copied as of the cut, written, and restored; rules checkpoints.copy_before_change,
checkpoints.restore_first and checkpoints.dropped_have_changed.

``docs/internals/checkpoints.md``. A worker takes its part when it stands at the cut: each region then knows which keys
belong to the checkpoint. The worker copies them when there is time, and always before they change.

Also a worker's parts of snapshots; rule worker.snapshot_at_cut.
"""

from upriver.engine.row_text import failure_text
from upriver.errors import IllegalEvent, ProtocolError
from upriver.ids import BEGINNING
from upriver.protocol.messages import (
    Assign,
    CheckpointNotTaken,
    CheckpointWritten,
    DropCheckpoint,
    DropSnapshot,
    KeepCheckpoint,
    Restored,
    SnapshotNotTaken,
    SnapshotTaken,
    TakeCheckpoint,
    TakeSnapshot,
    Unrestored,
)
from upriver.protocol.rules import Rules
from upriver.protocol.worker_events import (
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
from upriver.worker.peers import StepOutput
from upriver.worker.progress import EpochProgress
from upriver.worker.regions import Regions


class CheckpointParts:
    """This worker's parts of checkpoints and snapshots."""

    def __init__(
        self, event: Assign, regions: Regions, progress: EpochProgress, output: StepOutput, rules: Rules
    ) -> None:
        self.is_restoring = False
        """This worker's state is being read from checkpoints."""
        self._checkpoint: TakeCheckpoint | None = None
        """The checkpoint whose cut lies ahead."""
        self._copying: TakeCheckpoint | None = None
        """The checkpoint that is being taken, until the coordinator keeps or drops it."""
        self._is_sealed = False
        """All of this worker's part was copied."""
        self._snapshots: list[TakeSnapshot] = []
        """All and only the snapshots whose cut lies ahead. Cuts may go back, when the foremost worker is lost."""
        self._chain = event.chain
        self._start_at = event.start_at
        self._regions = regions
        self._progress = progress
        self._output = output
        self._rules = rules

    def succeed(self, old: "CheckpointParts") -> None:
        """Go on with the checkpoint that is being taken, after all have resumed."""
        self._checkpoint, self._copying, self._is_sealed = old._checkpoint, old._copying, old._is_sealed

    def take_due(self) -> None:
        """Take this worker's part of every snapshot and checkpoint whose cut it has reached."""
        self.take_snapshots()
        self._take_checkpoint()

    def snapshot_asked(self, event: TakeSnapshot) -> None:
        self._snapshots.append(event)
        self.take_snapshots()

    def snapshot_dropped(self, event: DropSnapshot) -> None:
        self._snapshots = [asked for asked in self._snapshots if asked.snapshot != event.snapshot]
        self._output.add(ForgetSnapshot(snapshot=event.snapshot))

    def take_snapshots(self) -> None:
        """Take this worker's part of every snapshot whose cut it has reached."""
        at_cut = [asked for asked in self._snapshots if self._at_cut(asked)]
        self._snapshots = [asked for asked in self._snapshots if asked not in at_cut]
        for asked in at_cut:
            self._take(asked)

    def _take(self, asked: TakeSnapshot) -> None:
        try:
            rows = self._regions.shards[asked.view].region.scan()
        except Exception as error:  # the state is right: only the reader gets the error
            what = f"view {asked.view!r}: {failure_text(error)}"
            self._output.report(SnapshotNotTaken(snapshot=asked.snapshot, error=what))
            return
        self._output.add(HoldSnapshot(snapshot=asked.snapshot, rows=rows))
        self._output.report(SnapshotTaken(snapshot=asked.snapshot, rows=rows.num_rows))

    def _at_cut(self, asked: TakeSnapshot) -> bool:
        return not self._rules.worker_snapshot_at_cut or self._progress.stands_at(asked.at)

    # Restoring

    def restore(self) -> None:
        """Restore the state from checkpoints, if there are any. Until that is done, this worker reflects nothing."""
        chain = self._chain
        if not chain:
            return
        vnodes = {
            name: self._regions.maps[name].vnodes_of_worker(self._regions.me)
            for name, shard in self._regions.shards.items()
            if shard.logs.has_checkpoints
        }
        if not any(vnodes.values()):
            self._output.report(Restored())
            return
        self.is_restoring = True
        if self._rules.checkpoints_restore_first:
            self._progress.stand_at(BEGINNING)
        self._output.add(ReadState(chain=chain, vnodes={name: of_one for name, of_one in vnodes.items() if of_one}))

    def state_read(self, event: StateRead) -> None:
        """The state of some keys has been read."""
        if not self.is_restoring:
            raise IllegalEvent(f"state of region {event.region!r}, and nothing is being restored")
        self._regions.shards[event.region].restore(event.chunk)

    def state_unread(self, event: StateUnread) -> None:
        """The state cannot be read. The coordinator decides what the worker restores instead."""
        chain = self._chain
        if not (self.is_restoring and chain):
            raise IllegalEvent("state cannot be read, and nothing is being restored")
        self._output.report(Unrestored(checkpoint=chain[0], error=event.error))

    def end_restore(self) -> None:
        """The state is restored as of the end of the newest checkpoint's epoch."""
        if not self.is_restoring:
            raise IllegalEvent("all state was read, and nothing is being restored")
        self.is_restoring = False
        self._progress.stand_at(self._start_at)
        self._output.report(Restored())

    # Taking

    def checkpoint_asked(self, event: TakeCheckpoint) -> None:
        self._checkpoint = event
        self._take_checkpoint()

    def _take_checkpoint(self) -> None:
        """Take this worker's part of the checkpoint, if the worker stands at the cut."""
        asked = self._checkpoint
        if asked is None or not self._progress.stands_at(asked.at):
            return
        self._checkpoint, self._copying, self._is_sealed = None, asked, False
        for shard in self._regions.shards.values():
            shard.cut(whole=asked.whole)
        self._seal()

    @property
    def can_copy(self) -> bool:
        """Whether ``TimeToCopy`` would copy a key."""
        return self._copying is not None and not self._is_sealed

    def time_to_copy(self, event: TimeToCopy) -> None:
        """Copy the next keys."""
        left = event.keys_max
        for region, shard in self._regions.shards.items():
            while left > 0 and (chunk := shard.copy(left)) is not None:
                left -= len(chunk.keys)
                self.write_chunk(region, chunk)
        self._seal()

    def write_chunk(self, region: str, chunk: StateChunk) -> None:
        copying = self._copying
        if copying is None:
            raise ProtocolError(f"region {region!r} was copied, and no checkpoint is being taken")
        self._output.add(WriteState(checkpoint=copying.checkpoint, at=copying.at, region=region, chunk=chunk))

    def _seal(self) -> None:
        """Seal the worker's part, if no region has keys left to copy."""
        copying = self._copying
        is_left = any(shard.logs.is_to_copy for shard in self._regions.shards.values())
        if copying is None or self._is_sealed or is_left:
            return
        self._is_sealed = True
        self._output.add(SealState(checkpoint=copying.checkpoint, at=copying.at))

    def state_written(self, event: StateWritten) -> None:
        if self._copying is not None and self._copying.checkpoint == event.checkpoint:
            self._output.report(CheckpointWritten(checkpoint=event.checkpoint, files=event.files))

    def state_not_written(self, event: StateNotWritten) -> None:
        if self._copying is not None and self._copying.checkpoint == event.checkpoint:
            self._output.report(CheckpointNotTaken(checkpoint=event.checkpoint, error=event.error))

    def checkpoint_kept(self, event: KeepCheckpoint) -> None:
        if self._copying is not None and self._copying.checkpoint == event.checkpoint:
            self._copying = None
            for shard in self._regions.shards.values():
                shard.logs.keep_cut()

    def checkpoint_dropped(self, event: DropCheckpoint) -> None:
        """The checkpoint is given up: its keys count as changed again (checkpoints.dropped_have_changed)."""
        if self._checkpoint is not None and self._checkpoint.checkpoint == event.checkpoint:
            self._checkpoint = None
        if self._copying is None or self._copying.checkpoint != event.checkpoint:
            return
        self._copying = None
        self._output.add(ForgetState(checkpoint=event.checkpoint))
        for shard in self._regions.shards.values():
            shard.drop_cut()
