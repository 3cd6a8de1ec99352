"""One worker process of a simulated river: the real machine, and a small model of the shell around it."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from random import Random

import pyarrow as pa

from upriver.ids import Epoch, Incarnation, SnapshotId, VnodeId, WorkerId
from upriver.machines.messages import Assign, FromWorker, OpenEpoch, Retire, ToWorker
from upriver.machines.worker import (
    EpochRead,
    Following,
    LookupAsked,
    ReadEpoch,
    RowsRead,
    View,
    WorkerEvent,
    WorkerMachine,
)
from upriver.sim.lake import FakeLake


@dataclass(slots=True, eq=False, kw_only=True)
class Process:
    """From its registration until nothing of it can be heard any more.

    published_at_joining: the last epoch that the coordinator knew of when the process registered.
    """

    worker: WorkerId
    incarnation: Incarnation
    vnodes: tuple[VnodeId, ...]
    machine: WorkerMachine
    published_at_joining: Epoch
    applied: Epoch = field(default=Epoch(0))
    """The last epoch that the process has reported as finished."""
    runs: bool = True
    serves: bool = False
    """Assigned, and not told to retire."""
    torn: bool = False
    """A read has gone wrong, and the machine is to notice."""
    noticed_gone: bool = False
    """The coordinator has been told that the process is gone."""
    down: deque[ToWorker] = field(default_factory=deque)
    """On its way from the coordinator."""
    up: deque[FromWorker] = field(default_factory=deque)
    """On its way to the coordinator."""
    opened: list[OpenEpoch] = field(default_factory=list)
    """Heard already; the network may say it again."""
    unread: deque[RowsRead | EpochRead] = field(default_factory=deque)
    """What is left to read of the open epoch; empty between epochs."""
    held: dict[SnapshotId, pa.Table] = field(default_factory=dict)
    waiting: dict[int, LookupAsked] = field(default_factory=dict)
    """All and only the lookups without an answer, by ticket."""

    def __str__(self) -> str:
        return f"w{self.worker}#{self.incarnation}"

    @property
    def views(self) -> Mapping[str, View]:
        """The process's share of every view, for checkers to look at."""
        return self.machine.phase.views if isinstance(self.machine.phase, Following) else {}

    def note(self, event: WorkerEvent) -> None:
        """Note what any shell would know before the machine takes the event."""
        match event:
            case Assign():
                self.serves = True
            case Retire():
                self.serves = False
            case LookupAsked():
                self.waiting[event.ticket] = event

    def start_reading(self, action: ReadEpoch, lake: FakeLake, tear: bool, lots: Random) -> None:
        """Line up the process's slices of an epoch: in order on each edge, in any order between edges.

        tear: lose a slice, or read one twice.
        """
        runs = lake.runs(action.epoch)
        edges = [
            [
                RowsRead(epoch=action.epoch, channel=edge, batch=batch)
                for batch in runs[edge].slices_of(self.vnodes, lots)
            ]
            for edge in action.channels
            if edge in runs
        ]
        slices = _shuffled_together(edges, lots)
        full = [place for place, slice_ in enumerate(slices) if len(slice_.batch)]
        if tear and full:
            self.torn = True
            place = lots.choice(full)
            slices[place : place + 1] = [slices[place]] * lots.choice((0, 2))
        promised = lake.promised(action.epoch, self.vnodes)
        self.unread = deque(chain(slices, [EpochRead(epoch=action.epoch, promised=promised)]))

    def end(self) -> None:
        """The process is no more. What it has sent may still arrive."""
        self.runs = self.serves = False
        self.down.clear()
        self.unread.clear()
        self.held.clear()


def _shuffled_together(edges: Sequence[list[RowsRead]], lots: Random) -> list[RowsRead]:
    turns = [place for place, slices in enumerate(edges) for _ in slices]
    lots.shuffle(turns)
    following = [iter(slices) for slices in edges]
    return [next(following[place]) for place in turns]
