"""The worker machine: keeps its vnodes' share of every view current and answers lookups on it.

Theory of operation. A worker is assigned once per incarnation. From then on the coordinator opens epochs, in order;
the worker asks the shell to read its slices of each (``ReadEpoch``), applies them as they come (``RowsRead``) and
reports the epoch when the shell has read them all (``EpochRead``). Lookups come at any time between two events, and see
each key either before or after the epoch that is being read. A key's rows of one epoch lie in one slice or in slices
that follow each other, so only the key of the last row received can be between the two; a lookup of it waits for the
slice that follows.

Phases: ``Unassigned`` -> ``Following`` -> ``Retired``. Rules W1 to W6: ``docs/design/0001-river.md``.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa

from upriver.dataflow.batch import Batch, Hashes
from upriver.dataflow.plan import ViewPlan
from upriver.errors import IllegalEvent, ProtocolError, RowError, UnknownView, UpriverError, WrongOwner
from upriver.ids import Channel, Epoch, SnapshotId
from upriver.machines.messages import (
    Assign,
    DropSnapshot,
    EpochFinished,
    FromWorker,
    OpenEpoch,
    Retire,
    SnapshotTaken,
    TakeSnapshot,
)
from upriver.machines.rules import ALL_RULES, Rules
from upriver.vnodes import vnodes_of

LOOKUPS_PARKED_MAX = 10_000
"""Lookups that wait for an epoch at one worker; one more is refused."""


class View(Protocol):
    """One view's share at this worker, as :class:`upriver.dataflow.region.Region` keeps it."""

    def apply(self, batch: Batch) -> None: ...

    def lookup(self, hash64: Hashes, keys: pa.RecordBatch) -> pa.RecordBatch: ...

    def scan(self) -> pa.Table: ...

    def stats(self) -> Mapping[str, int]: ...


# Events, besides the coordinator's messages ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsRead:
    """Some rows of the open epoch were read, in hash64 order within the epoch and channel."""

    epoch: Epoch
    channel: Channel
    batch: Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRead:
    """All rows of the epoch were read. promised: rows per channel of this worker's vnodes, from the manifest."""

    epoch: Epoch
    promised: Mapping[Channel, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupAsked:
    """Somebody asks for keys of a view. ticket: names the asker. hash64: of the keys, one per row of ``keys``."""

    ticket: int
    view: str
    keys: pa.RecordBatch
    hash64: Hashes
    at_least: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupGivenUp:
    """Who asked does not wait any more."""

    ticket: int


WorkerEvent = (
    Assign | OpenEpoch | TakeSnapshot | DropSnapshot | Retire | RowsRead | EpochRead | LookupAsked | LookupGivenUp
)

# Actions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEpoch:
    """Read this worker's slices of the epoch, then say ``EpochRead``."""

    epoch: Epoch
    channels: tuple[Channel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Send to the coordinator."""

    message: FromWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The rows asked for, as of ``epoch`` at least."""

    ticket: int
    rows: pa.RecordBatch
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """The lookup cannot be answered here."""

    ticket: int
    error: UpriverError


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldSnapshot:
    """Keep the rows for scans until ``ForgetSnapshot``."""

    snapshot: SnapshotId
    rows: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetSnapshot:
    """Let the rows go."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The worker is done."""


WorkerAction = ReadEpoch | Report | Answer | Refuse | HoldSnapshot | ForgetSnapshot | Stop

# Phases ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Unassigned:
    """Registered, and told nothing yet."""


@dataclass(slots=True, kw_only=True)
class Reading:
    """The epoch whose slices are being read."""

    epoch: Epoch
    received: dict[Channel, int]
    """Rows so far, per channel that feeds a view."""
    last_hash: dict[Channel, np.uint64] = field(default_factory=dict)
    """Per channel, the hash64 of the last row so far: more of its key's rows may follow."""


@dataclass(slots=True, kw_only=True)
class Following:
    """Applies epochs and answers lookups."""

    assignment: Assign
    views: dict[str, View]
    fed_by: dict[Channel, list[str]]
    """The views that each channel feeds."""
    channel_of: dict[str, Channel]
    """The channel that feeds each view."""
    owned: np.ndarray
    """One boolean per vnode."""
    applied: Epoch = field(default=Epoch(0))
    opened: Epoch = field(default=Epoch(0))
    """The last epoch that the coordinator has opened."""
    unread: deque[Epoch] = field(default_factory=deque)
    """Epochs that are open and not being read yet, in order."""
    reading: Reading | None = None
    """``None`` between two epochs."""
    parked: list[LookupAsked] = field(default_factory=list)
    """All and only the lookups that wait for a later epoch, or for the rest of a key's rows."""
    snapshots: list[TakeSnapshot] = field(default_factory=list)
    """All and only the snapshots whose cut lies ahead. Cuts may go back, when the foremost worker is lost."""


@dataclass(slots=True)
class Retired:
    """Told to stop."""


class WorkerMachine:
    """``step(event) -> actions``; see the module's docstring.

    build_view: makes a view's empty state from its plan.
    """

    def __init__(self, build_view: Callable[[ViewPlan], View], rules: Rules = ALL_RULES) -> None:
        self._build_view = build_view
        self._rules = rules
        self.phase: Unassigned | Following | Retired = Unassigned()

    def step(self, event: WorkerEvent) -> list[WorkerAction]:
        """Advance by one event. Raises IllegalEvent when the phase does not allow it, RowError for a bad row."""
        match self.phase, event:
            case (Unassigned(), Assign()):
                return self._assigned(event)
            case (_, Retire()):
                return self._retire()
            case (Unassigned() | Retired(), LookupAsked()):
                return [Refuse(ticket=event.ticket, error=WrongOwner("this worker owns nothing"))]
            case (Following() as phase, OpenEpoch()):
                return self._open(phase, event)
            case (Following() as phase, RowsRead()):
                return self._apply(phase, event)
            case (Following() as phase, EpochRead()):
                return self._finish(phase, event)
            case (Following() as phase, LookupAsked()):
                return self._asked(phase, event)
            case (Following() as phase, LookupGivenUp()):
                phase.parked = [lookup for lookup in phase.parked if lookup.ticket != event.ticket]
                return []
            case (Following() as phase, TakeSnapshot()):
                phase.snapshots.append(event)
                return self._take_snapshots(phase)
            case (Following() as phase, DropSnapshot()):
                phase.snapshots = [asked for asked in phase.snapshots if asked.snapshot != event.snapshot]
                return [ForgetSnapshot(snapshot=event.snapshot)]
            case (Retired(), _) | (_, LookupGivenUp()):
                return []
        raise IllegalEvent(f"{type(event).__name__} in phase {type(self.phase).__name__}")

    def _assigned(self, event: Assign) -> list[WorkerAction]:
        views = {plan.name: self._build_view(plan) for plan in event.plans}
        fed_by: dict[Channel, list[str]] = {}
        for plan in event.plans:
            fed_by.setdefault(plan.channel, []).append(plan.name)
        owned = np.zeros(event.vnodes_total, dtype=bool)
        owned[list(event.vnodes)] = True
        channel_of = {plan.name: plan.channel for plan in event.plans}
        self.phase = Following(assignment=event, views=views, fed_by=fed_by, channel_of=channel_of, owned=owned)
        return []

    def _retire(self) -> list[WorkerAction]:
        phase, self.phase = self.phase, Retired()
        parked = phase.parked if isinstance(phase, Following) else []
        gone = WrongOwner("this worker has retired")
        return [*(Refuse(ticket=lookup.ticket, error=gone) for lookup in parked), Stop()]

    # Epochs

    def _open(self, phase: Following, event: OpenEpoch) -> list[WorkerAction]:
        if self._rules.w1_each_epoch_once:  # W1
            if event.epoch <= phase.opened:
                return []
            if event.epoch != phase.opened + 1:
                raise ProtocolError(f"epoch {event.epoch} was opened after {phase.opened}")
        phase.opened = event.epoch
        phase.unread.append(event.epoch)
        return self._read_next(phase)

    def _read_next(self, phase: Following) -> list[WorkerAction]:
        if phase.reading is not None or not phase.unread:
            return []
        epoch = phase.unread.popleft()
        phase.reading = Reading(epoch=epoch, received=dict.fromkeys(phase.fed_by, 0))
        return [ReadEpoch(epoch=epoch, channels=tuple(phase.fed_by))]

    def _apply(self, phase: Following, event: RowsRead) -> list[WorkerAction]:
        reading = phase.reading
        if reading is None or event.epoch != reading.epoch:
            raise IllegalEvent(f"rows of epoch {event.epoch}, which is not being read; {phase.applied} is applied")
        if event.channel not in reading.received:
            raise IllegalEvent(f"rows of {event.channel}, which feeds no view here")
        if not len(event.batch):
            return []
        reading.received[event.channel] += len(event.batch)
        reading.last_hash[event.channel] = event.batch.hash64[-1]
        for name in phase.fed_by[event.channel]:
            try:
                phase.views[name].apply(event.batch)
            except RowError as error:
                raise RowError(f"view {name!r}, epoch {event.epoch}: {error}") from error
        return self._unpark(phase)

    def _finish(self, phase: Following, event: EpochRead) -> list[WorkerAction]:
        if phase.reading is None or event.epoch != phase.reading.epoch:
            raise IllegalEvent(f"end of epoch {event.epoch}, which is not being read; {phase.applied} is applied")
        received = phase.reading.received
        if self._rules.w2_counts_match and received != event.promised:  # W2
            raise ProtocolError(f"epoch {event.epoch}: promised {event.promised}, received {received}")
        phase.applied, phase.reading = event.epoch, None
        stats = {name: view.stats() for name, view in phase.views.items()}
        report = Report(message=EpochFinished(epoch=event.epoch, received=received, stats=stats))
        return [report, *self._take_snapshots(phase), *self._unpark(phase), *self._read_next(phase)]

    # Lookups

    def _asked(self, phase: Following, event: LookupAsked) -> list[WorkerAction]:
        if event.view not in phase.views:
            return [Refuse(ticket=event.ticket, error=UnknownView.among(event.view, phase.views))]
        foreign = ~phase.owned[vnodes_of(event.hash64, len(phase.owned))]
        if self._rules.w4_own_vnodes_only and foreign.any():  # W4
            return [Refuse(ticket=event.ticket, error=WrongOwner(f"{int(foreign.sum())} keys are not kept here"))]
        if self._must_wait(phase, event):
            if len(phase.parked) >= LOOKUPS_PARKED_MAX:
                full = WrongOwner(f"{LOOKUPS_PARKED_MAX} lookups wait here already")
                return [Refuse(ticket=event.ticket, error=full)]
            phase.parked.append(event)
            return []
        return [self._answer(phase, event)]

    def _must_wait(self, phase: Following, event: LookupAsked) -> bool:
        replaying = self._rules.w3_wait_for_replay and phase.applied < phase.assignment.serve_from  # W3
        return replaying or phase.applied < event.at_least or self._is_torn(phase, event)

    def _is_torn(self, phase: Following, event: LookupAsked) -> bool:
        """Whether only a part of some key's rows of the epoch may have been applied."""
        if phase.reading is None or not self._rules.w6_whole_keys:  # W6
            return False
        last_hash = phase.reading.last_hash.get(phase.channel_of[event.view])
        return last_hash is not None and last_hash in event.hash64

    def _answer(self, phase: Following, event: LookupAsked) -> WorkerAction:
        try:
            rows = phase.views[event.view].lookup(event.hash64, event.keys)
        except UpriverError as error:
            return Refuse(ticket=event.ticket, error=error)
        return Answer(ticket=event.ticket, rows=rows, epoch=phase.applied)

    def _unpark(self, phase: Following) -> list[WorkerAction]:
        if not phase.parked:
            return []
        ready = [lookup for lookup in phase.parked if not self._must_wait(phase, lookup)]
        phase.parked = [lookup for lookup in phase.parked if self._must_wait(phase, lookup)]
        return [self._answer(phase, lookup) for lookup in ready]

    # Snapshots

    def _take_snapshots(self, phase: Following) -> list[WorkerAction]:
        actions: list[WorkerAction] = []
        at_cut = [asked for asked in phase.snapshots if self._at_cut(phase, asked)]
        phase.snapshots = [asked for asked in phase.snapshots if asked not in at_cut]
        for asked in at_cut:
            rows = phase.views[asked.view].scan()
            actions.append(HoldSnapshot(snapshot=asked.snapshot, rows=rows))
            actions.append(Report(message=SnapshotTaken(snapshot=asked.snapshot, rows=rows.num_rows)))
        return actions

    def _at_cut(self, phase: Following, asked: TakeSnapshot) -> bool:
        if not self._rules.w5_snapshot_at_cut:  # W5
            return True
        if phase.applied > asked.at:
            raise ProtocolError(f"snapshot {asked.snapshot} wants epoch {asked.at}, {phase.applied} is applied")
        return phase.applied == asked.at and phase.reading is None
