"""What one worker's loop has to do with the lake: epochs and state to read, keys to read for upqueries, state and rows
that were set aside to write.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable
from typing import assert_never

from upriver.errors import ProtocolError
from upriver.ids import Epoch
from upriver.lake.change_writer import ChangeWriter
from upriver.lake.checkpoint_writer import CheckpointWriter
from upriver.lake.history import UpqueryReader
from upriver.lake.lake import CommitTimes, Lake
from upriver.lake.rejected import RejectedWriter
from upriver.plan.provenance import lake_edges
from upriver.protocol.messages import Assign, FromWorker, HeldUp
from upriver.protocol.worker_events import (
    FetchRows,
    ForgetState,
    ReadEpoch,
    ReadKeys,
    ReadState,
    SealState,
    SetRowsAside,
    StateNotWritten,
    StateWritten,
    WorkerEvent,
    WriteChanges,
    WriteState,
)
from upriver.runtime.lake_reader import LakeReader, Piece
from upriver.state.checkpoint import StateFile

_LOG = logging.getLogger("upriver.worker")

LakeAction = (
    ReadEpoch | ReadState | ReadKeys | FetchRows | WriteState | SealState | ForgetState | SetRowsAside | WriteChanges
)
"""What the worker machine wants of the lake."""


class WorkerLake:
    """Used by the loop's thread; any thread calls ``committed_at`` and reads ``held_up``.

    hear: takes events for the machine, from any thread. fail: takes the error with which another thread has ended.
    wake: there may be something to do again. report: sends to the coordinator.
    """

    def __init__(
        self,
        lake: Lake,
        hear: Callable[[WorkerEvent], None],
        fail: Callable[[BaseException], None],
        wake: Callable[[], None],
        report: Callable[[FromWorker], None],
    ) -> None:
        self._lake = lake
        self._hear = hear
        self._report = report
        self._commits = CommitTimes(lake)
        self._reader = LakeReader(lake, self._commits)
        self._upqueries = UpqueryReader(lake, hear, fail)
        self._checkpoints = CheckpointWriter(lake, self._written, self._not_written, wake)
        self._changes = ChangeWriter(lake, hear, self._commits.of)
        self._rejected = RejectedWriter(lake, report)
        self.upqueries = Counter[str]()
        """Upqueries, and reads of cones, that were begun, by view."""
        self.held_up: str | None = None
        """The last report to the coordinator on why the lake cannot be read or written."""

    def assign(self, event: Assign) -> None:
        """Read the tables of these views from now on. Raises ProtocolError if the lake has no record of its app."""
        record = self._lake.record()
        if record is None:
            raise ProtocolError(f"{self._lake.root}: no app.json, but a worker was assigned")
        tables = {table.name: table for table in record.tables}
        channels = {edge.channel: tables[edge.table] for plan in event.plans for edge in lake_edges(plan)}
        constants = {channel: edge for plan in event.plans for channel, edge in plan.constants.items()}
        self._reader.assign(record.vnodes, channels, constants)
        self._changes.assign(event.worker)
        self._rejected.assign(record.tables)

    def carry_out(self, action: LakeAction) -> None:
        match action:
            case ReadEpoch() | ReadState():
                self._reader.begin(action)
            case WriteState():
                self._checkpoints.write(action.checkpoint, action.at, action.region, action.chunk)
            case SealState():
                self._checkpoints.seal(action.checkpoint, action.at)
            case ForgetState():
                self._checkpoints.give_up(action.checkpoint)
            case WriteChanges():
                self._changes.write(action)
            case SetRowsAside():
                self._rejected.set_aside(action)
            case ReadKeys() | FetchRows():
                self.upqueries[action.region if isinstance(action, ReadKeys) else action.view] += 1
                self._upqueries.ask(action, self._reader.tables)
            case _:
                assert_never(action)

    def report_behind_writes(self, message: FromWorker) -> None:
        """Send the message once the rows that were set aside before it are written."""
        self._rejected.report(message)

    def give_up_read(self) -> None:
        """Stop the read under way: the rest is of no use, or will be read again."""
        self._reader.give_up()

    @property
    def can_read(self) -> bool:
        """Whether to read another piece now: not while rows that were set aside wait to be written."""
        return self._reader.is_on and self._rejected.held_up is None

    @property
    def has_room(self) -> bool:
        """Whether the lake keeps up with the state that is written for a checkpoint."""
        return self._checkpoints.room

    @property
    def must_write(self) -> bool:
        """Whether to retry the writes that wait."""
        return self._rejected.due_in_s == 0

    @property
    def due_in_s(self) -> float:
        """Seconds until the next read or retry; infinite if there is none."""
        reads_in_s = math.inf if self._rejected.held_up else self._reader.due_in_s
        return min(reads_in_s, self._rejected.due_in_s)

    def write(self) -> None:
        """Retry the writes that wait, if it is time."""
        if self.must_write:
            self._rejected.try_again()

    def read(self, take_in: Callable[[Piece], object]) -> None:
        """Read the next piece and take it in, unless it cannot be read."""
        self._reader.feed(take_in)

    def tell_held_up(self) -> None:
        """Report whether the lake can be read and written, if that has changed."""
        held_up = self._rejected.held_up or self._reader.held_up
        if held_up != self.held_up:
            self.held_up = held_up
            _LOG.warning("the lake cannot be used: %s", held_up) if held_up else _LOG.info("the lake can be used again")
            self._report(HeldUp(error=held_up))

    def committed_at(self, epoch: Epoch) -> float | None:
        """As :meth:`CommitTimes.of`."""
        return self._commits.of(epoch)

    def close(self) -> None:
        """End the threads."""
        self._upqueries.close()
        self._checkpoints.close()
        self._changes.close()

    def _written(self, checkpoint: int, files: tuple[StateFile, ...]) -> None:
        self._hear(StateWritten(checkpoint=checkpoint, files=files))

    def _not_written(self, checkpoint: int, error: str) -> None:
        self._hear(StateNotWritten(checkpoint=checkpoint, error=error))
