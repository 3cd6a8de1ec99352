"""What one worker's loop has to do with the lake: epochs and state to read, keys to read for upqueries, state and rows
that were set aside to write.

Each flow has a reader of its own. The readers take turns, a piece each, and one that is held up holds no other up. A
flow that is built beside others reads when no other has anything to read, and at least ``BUILD_SHARE`` of the time.
From a store behind a network, threads read ahead of the loop, which does not wait for rows and state then. The threads
that read ahead, read keys and write are the worker's; what they answer goes to the flow that has asked.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from typing import assert_never

from upriver.engine.operators.map_rows import rows_set_aside
from upriver.errors import ProtocolError
from upriver.ids import Epoch, FlowId
from upriver.lake.change_writer import ChangeWriter
from upriver.lake.checkpoint_writer import CheckpointWriter
from upriver.lake.compaction import dated
from upriver.lake.flow_threads import FlowThreads
from upriver.lake.history import UpqueryReader
from upriver.lake.lake import CommitTimes, Lake
from upriver.lake.rejected import RejectedWriter
from upriver.lake.span_cache import SpanCache
from upriver.plan.provenance import lake_edges
from upriver.protocol.messages import Assign, EpochFinished, FromWorker, HeldUp, OfShare
from upriver.protocol.worker_events import (
    FetchRows,
    ForgetState,
    LakeAnswer,
    LakeWish,
    ReadEpoch,
    ReadKeys,
    ReadState,
    SealState,
    SetRowsAside,
    ShareHears,
    StateNotWritten,
    StateWritten,
    WriteChanges,
    WriteState,
)
from upriver.runtime.lake_reader import LakeReader
from upriver.runtime.read_ahead import Piece, ReadAhead, Reading, ReadNow
from upriver.state.checkpoint import CheckpointPlace, StateFile

_LOG = logging.getLogger("upriver.worker")

BUILD_SHARE = 0.1
"""At least which share of the time that goes to reading is that of flows that are built, if they have anything to
read."""
READ_THREADS_MAX = 16
"""Threads that read ahead from a store behind a network. Flows share them (``FlowThreads``)."""


class WorkerLake:
    """Used by the loop's thread; any thread calls ``committed_at`` and reads ``held_up``.

    hear: takes events for the machine, from any thread. fail: takes the error with which another thread has ended.
    wake: there may be something to do again. report: sends to the coordinator.
    """

    def __init__(
        self,
        lake: Lake,
        hear: Callable[[ShareHears], None],
        fail: Callable[[BaseException], None],
        wake: Callable[[], None],
        report: Callable[[FromWorker], None],
    ) -> None:
        self._lake = lake
        self._hear = hear
        self._wake = wake
        self._report = report
        self._commits = CommitTimes(lake)
        self._spans = SpanCache(lake)
        self._threads = FlowThreads("upriver-reads", READ_THREADS_MAX)
        self._readers: dict[FlowId, LakeReader] = {}
        self._last_read = FlowId(-1)
        """The flow that the last piece was of."""
        self._building: dict[FlowId, Epoch] = {}
        """The flows that are built, each with the epoch that it must apply to be served."""
        self._owed_s = 0.0
        """The seconds that flows that are built may read before others do."""
        self._places: dict[FlowId, CheckpointPlace] = {}
        """Where the checkpoints of each flow are that has any."""
        self._upqueries = UpqueryReader(lake, fail)
        self._checkpoints = CheckpointWriter(lake, self._written, self._not_written, wake)
        self._changes = ChangeWriter(lake, self._commits.of)
        self._rejected = RejectedWriter(lake, report)
        self._checkpointed: dict[int, FlowId] = {}
        """The flow of each checkpoint that is being written."""
        self.upqueries = Counter[str]()
        """Upqueries, and reads of cones, that were begun, by view."""
        self.sets_aside: frozenset[str] = frozenset()
        """The tables whose bad rows are set aside, as of the last assignment."""
        self.held_up: str | None = None
        """The last report to the coordinator on why the lake cannot be read or written."""

    def assign(self, flow: FlowId, event: Assign) -> None:
        """Read the tables of the flow's views from now on, and give up what is under way for it. Raises ProtocolError
        if the lake has no record of its app."""
        record = self._lake.record()
        if record is None:
            raise ProtocolError(f"{self._lake.root}: no app.json, but a worker was assigned")
        self.sets_aside = self._lake.sets_aside()
        tables = {table.name: table for table in record.tables}
        edges = sorted((edge for plan in event.plans for edge in lake_edges(plan)), key=lambda edge: edge.is_dated)
        channels = {edge.channel: dated(tables[edge.table]) if edge.is_dated else tables[edge.table] for edge in edges}
        constants = {channel: edge for plan in event.plans for channel, edge in plan.constants.items()}
        reader = self._readers.get(flow)
        if reader is None:
            begin = partial(self._begin, flow)
            reader = self._readers[flow] = LakeReader(self._lake, self._commits, spans=self._spans, begin=begin)
        reader.assign(record.vnodes, channels, constants, event.checkpoints, builds=event.builds)
        if event.builds:
            self._building[flow] = event.serve_from
        if event.checkpoints is not None:
            self._places[flow] = event.checkpoints
        self._changes.assign(event.worker)
        self._rejected.assign([*record.tables, *(rows for plan in event.plans for rows in rows_set_aside(plan))])

    def _begin(self, flow: FlowId, pieces: Iterator[Piece]) -> Reading:
        if self._lake.files.is_remote:
            self._threads.drop(flow)  # a read that was given up before it began: so one job of each flow waits at most
            return ReadAhead(pieces, partial(self._threads.do, flow), self._wake)
        return ReadNow(pieces)

    def drop(self, flow: FlowId) -> None:
        """The flow is gone: read and write nothing for it any more."""
        reader = self._readers.pop(flow, None)
        if reader is not None:
            reader.close()
        self._threads.drop(flow)
        self._upqueries.drop(flow)
        self._building.pop(flow, None)
        for checkpoint in [number for number, of in list(self._checkpointed.items()) if of == flow]:
            self._checkpointed.pop(checkpoint, None)
        if flow in self._places:
            self._checkpoints.drop(self._places.pop(flow))

    def carry_out(self, flow: FlowId, action: LakeWish) -> None:
        """Do what the flow's share wants."""
        match action:
            case ReadEpoch() | ReadState():
                self._readers[flow].begin(action)
            case WriteState():
                self._checkpointed[action.checkpoint] = flow
                self._checkpoints.write(self._places[flow], action.checkpoint, action.at, action.region, action.chunk)
            case SealState():
                self._checkpointed[action.checkpoint] = flow
                self._checkpoints.seal(self._places[flow], action.checkpoint, action.at)
            case ForgetState():
                self._give_up_checkpoint(flow, action.checkpoint)
            case WriteChanges():
                self._changes.write(action, self._hears(flow))
            case SetRowsAside():
                self._rejected.set_aside(action)
            case ReadKeys() | FetchRows():
                self.upqueries[action.region if isinstance(action, ReadKeys) else action.view] += 1
                self._upqueries.ask(flow, action, self._readers[flow].tables, self._hears(flow))
            case _:
                assert_never(action)

    def _hears(self, flow: FlowId) -> Callable[[LakeAnswer], None]:
        """Tells the flow's share, on any thread."""
        return lambda event: self._hear(ShareHears(flow=flow, event=event))

    def _give_up_checkpoint(self, flow: FlowId, checkpoint: int) -> None:
        self._checkpointed.pop(checkpoint, None)
        if flow in self._places:
            self._checkpoints.give_up(self._places[flow], checkpoint)

    def report_behind_writes(self, message: FromWorker) -> None:
        """Send the message once the rows that were set aside before it are written."""
        match message:
            case OfShare(flow=flow, message=EpochFinished(epoch=epoch)) if epoch >= self._building.get(flow, epoch + 1):
                del self._building[flow]
                self._readers[flow].caught_up()
        self._rejected.report(message)

    def give_up_read(self, flow: FlowId) -> None:
        """Stop the flow's read under way: the rest is of no use, or will be read again."""
        if flow in self._readers:
            self._readers[flow].give_up()

    @property
    def can_read(self) -> bool:
        """Whether to read another piece now: not while rows that were set aside wait to be written."""
        return self._rejected.held_up is None and any(reader.is_on for reader in self._readers.values())

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
        due = [self._rejected.due_in_s]
        if self._rejected.held_up is None:
            due += [reader.due_in_s for reader in self._readers.values()]
        return min(due)

    def write(self) -> None:
        """Retry the writes that wait, if it is time."""
        if self.must_write:
            self._rejected.try_again()

    def read(self, take_in: Callable[[ShareHears], object], paused: AbstractSet[FlowId] = frozenset()) -> bool:
        """Read the next piece of the flow whose turn it is, and take it in, unless it cannot be read. paused: the flows
        whose turn it is not. Returns whether some flow had anything to read."""
        due = [flow for flow, reader in self._readers.items() if reader.is_on and flow not in paused]
        served = [flow for flow in due if flow not in self._building]
        built = [flow for flow in due if flow in self._building]
        gives_way = bool(served) and not (built and self._owed_s > 0)
        turns = served if gives_way else built or served
        if not turns:
            return False
        flow = self._last_read = min(turns, key=lambda flow: (flow <= self._last_read, flow))
        began = time.perf_counter()
        self._readers[flow].feed(lambda piece: take_in(ShareHears(flow=flow, event=piece)))
        seconds = time.perf_counter() - began
        if not built:
            self._owed_s = 0.0
        elif gives_way:
            self._owed_s += BUILD_SHARE / (1 - BUILD_SHARE) * seconds
        else:
            self._owed_s -= seconds
        return True

    def tell_held_up(self) -> None:
        """Report whether the lake can be read and written, if that has changed."""
        reads = (reader.held_up for reader in self._readers.values())
        held_up = self._rejected.held_up or next(filter(None, reads), None)
        if held_up != self.held_up:
            self.held_up = held_up
            _LOG.warning("the lake cannot be used: %s", held_up) if held_up else _LOG.info("the lake can be used again")
            self._report(HeldUp(error=held_up))

    def committed_at(self, epoch: Epoch) -> float | None:
        """As :meth:`CommitTimes.of`."""
        return self._commits.of(epoch)

    def close(self) -> None:
        """End the threads. A thread that waits for the lake does not keep the process."""
        self._threads.close()
        self._upqueries.close()
        self._checkpoints.close()
        self._changes.close()

    def _written(self, checkpoint: int, files: tuple[StateFile, ...]) -> None:
        self._tell_of_checkpoint(StateWritten(checkpoint=checkpoint, files=files))

    def _not_written(self, checkpoint: int, error: str) -> None:
        self._tell_of_checkpoint(StateNotWritten(checkpoint=checkpoint, error=error))

    def _tell_of_checkpoint(self, event: StateWritten | StateNotWritten) -> None:
        """On the writer's thread."""
        flow = self._checkpointed.pop(event.checkpoint, None)
        if flow is not None:  # else it was given up
            self._hear(ShareHears(flow=flow, event=event))
