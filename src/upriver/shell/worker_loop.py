"""The worker's event loop: one thread that feeds the worker machine and carries out what it says.

Lookups come in on the server's threads and wait there for the loop. While an epoch is being read, the loop takes
from its inbox and from the lake in turn, so that neither lookups nor epochs starve.
"""

import itertools
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import assert_never

import pyarrow as pa

from upriver.dataflow.batch import Batch
from upriver.dataflow.plan import TableSpec
from upriver.errors import ProtocolError, UpriverError, WaitTimeout, WrongOwner
from upriver.hashing import hash64
from upriver.ids import Channel, Epoch, SnapshotId
from upriver.machines.messages import Assign, FromWorker, ToWorker, WorkerFailed
from upriver.machines.worker import (
    Answer,
    EpochRead,
    ForgetSnapshot,
    HoldSnapshot,
    LookupAsked,
    LookupGivenUp,
    ReadEpoch,
    Refuse,
    Report,
    RowsRead,
    Stop,
    WorkerAction,
    WorkerEvent,
    WorkerMachine,
)
from upriver.shell.lake import Lake

INBOX_TURN_MAX = 64
"""Events taken from the inbox between two slices of an epoch."""

Answered = tuple[pa.RecordBatch, Epoch]


class WorkerLoop:
    """Runs one worker. ``run`` is called by one thread, everything else by any.

    lake: to read slices from.
    """

    def __init__(self, machine: WorkerMachine, lake: Lake) -> None:
        self._machine = machine
        self._lake = lake
        self._report: Callable[[FromWorker], None] = _nobody_listens
        self._inbox: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()
        self._reading: Iterator[WorkerEvent] = iter(())
        self._is_reading = False
        self._assignment: Assign | None = None
        self._tables: dict[Channel, TableSpec] = {}
        self._tickets = itertools.count()
        self._waiting: dict[int, Future[Answered]] = {}
        """The askers of all and only the lookups that are not answered."""
        self._snapshots: dict[SnapshotId, pa.Table] = {}
        self._stopped = False
        self._is_over = False
        """Nobody will answer any more."""

    def hear(self, message: ToWorker) -> None:
        """Take a message from the coordinator."""
        self._inbox.put(message)

    def lookup(self, view: str, keys: pa.RecordBatch, at_least: int | None, timeout: float) -> Answered:
        """The rows of ``keys`` (the view's key columns) in this worker's share of the view, and their epoch.

        Blocks the caller, at most ``timeout`` seconds; then raises WaitTimeout.
        """
        ticket, asker = next(self._tickets), Future[Answered]()
        self._waiting[ticket] = asker
        if self._is_over:
            raise _retired()
        hashes = hash64(keys.columns, keys.num_rows)
        epoch = Epoch(at_least or 0)
        self._inbox.put(LookupAsked(ticket=ticket, view=view, keys=keys, hash64=hashes, at_least=epoch))
        try:
            return asker.result(timeout)
        except FutureTimeout as error:
            self._inbox.put(LookupGivenUp(ticket=ticket))
            raise WaitTimeout(f"view {view!r}: no answer in {timeout:g} s") from error
        finally:
            self._waiting.pop(ticket, None)

    def snapshot(self, snapshot: int, view: str) -> pa.Table:
        """This worker's part of a snapshot that was taken. Raises WaitTimeout if it is not held any more."""
        try:
            return self._snapshots[SnapshotId(snapshot)]
        except KeyError as error:
            raise WaitTimeout(
                f"view {view!r}: snapshot {snapshot} is not held any more; read the view again"
            ) from error

    def run(self, report: Callable[[FromWorker], None]) -> None:
        """Run until the worker retires or fails. report: sends to the coordinator, in order, without blocking.

        A failure is reported and ends the worker: another one in its place would fail at the same rows.
        """
        self._report = report
        try:
            while not self._stopped:
                self._turn()
                if self._is_reading and not self._stopped:
                    self._step(next(self._reading))
        except Exception as error:  # whatever it is, nobody shall wait for this worker in vain
            kind = type(error).__name__ if isinstance(error, UpriverError) else ProtocolError.__name__
            text = str(error) if isinstance(error, UpriverError) else repr(error)
            report(WorkerFailed(kind=kind, error=text))
        finally:
            self._is_over = True  # before the askers are told: who comes later sees it
            for ticket in list(self._waiting):
                self._settle(ticket, _retired())

    def _turn(self) -> None:
        """Take what is in the inbox; wait for it only if there is nothing to read from the lake."""
        for taken in range(INBOX_TURN_MAX):
            try:
                event = self._inbox.get(block=taken == 0 and not self._is_reading)
            except queue.Empty:
                return
            self._step(event)

    def _step(self, event: WorkerEvent) -> None:
        if isinstance(event, Assign):
            self._assigned(event)
        if isinstance(event, EpochRead):
            self._is_reading = False
        for action in self._machine.step(event):
            self._carry_out(action)

    def _assigned(self, event: Assign) -> None:
        record = self._lake.record()
        if record is None:
            raise ProtocolError(f"{self._lake.root}: no app.json, and yet a worker was assigned")
        tables = {table.name: table for table in record.tables}
        self._tables = {plan.channel: tables[plan.table] for plan in event.plans}
        self._assignment = event

    def _carry_out(self, action: WorkerAction) -> None:
        match action:
            case ReadEpoch():
                self._reading, self._is_reading = self._read(action), True
            case Report():
                self._report(action.message)
            case Answer():
                self._settle(action.ticket, (action.rows, action.epoch))
            case Refuse():
                self._settle(action.ticket, action.error)
            case HoldSnapshot():
                self._snapshots[action.snapshot] = action.rows
            case ForgetSnapshot():
                self._snapshots.pop(action.snapshot, None)
            case Stop():
                self._stopped = True
            case _:
                assert_never(action)

    def _settle(self, ticket: int, outcome: Answered | UpriverError) -> None:
        asker = self._waiting.pop(ticket, None)
        if asker is None:
            return  # it has stopped waiting
        if isinstance(outcome, UpriverError):
            asker.set_exception(outcome)
        else:
            asker.set_result(outcome)

    def _read(self, action: ReadEpoch) -> Iterator[WorkerEvent]:
        """This worker's slices of an epoch, as events."""
        assert self._assignment is not None
        vnodes = frozenset(self._assignment.vnodes)
        manifest = self._lake.manifest(action.epoch)
        for channel in action.channels:
            for rows in self._lake.read(manifest, channel, vnodes, self._tables[channel]):
                hashes = rows.column(0).to_numpy()
                user = pa.RecordBatch.from_arrays(rows.columns[1:], schema=self._tables[channel].schema)
                yield RowsRead(epoch=action.epoch, channel=channel, batch=Batch(user, hashes))
        promised = {channel: manifest.rows_of(channel, vnodes) for channel in action.channels}
        yield EpochRead(epoch=action.epoch, promised=promised)


def _retired() -> WrongOwner:
    return WrongOwner("this worker has retired")


def _nobody_listens(message: FromWorker) -> None:
    raise ProtocolError(f"{type(message).__name__} before the loop runs")
