"""How far a worker is: which epochs it has opened, read, applied, and knows to be over.

``EpochProgress`` is what all other components ask when they must know as of which epoch the state here is. Only
``Epochs`` and a restore move it.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from upriver.errors import IllegalEvent, ProtocolError
from upriver.ids import BEGINNING, Channel, Epoch, VnodeId
from upriver.protocol.messages import OpenEpoch


@dataclass(frozen=True, slots=True)
class UnreadEpoch:
    """An epoch that is open and not being read yet."""

    epoch: Epoch
    vnodes: tuple[VnodeId, ...]
    mixed: bool
    after: Epoch | None
    as_of: Epoch
    clock: int | None


@dataclass(slots=True)
class EpochReading:
    """The epoch whose slices are being read. read: rows so far, per channel that feeds a region."""

    epoch: Epoch
    mixed: bool
    read: dict[Channel, int]
    clock: int | None
    """The epoch's instant, until the clock has got there."""
    is_read: bool = False
    """All slices were read; cones may not be through the epoch yet."""
    aged: Mapping[Channel, int] = field(default_factory=dict)
    """As in ``EpochRead``; known at the end."""


@dataclass(slots=True)
class EpochCounts:
    """An epoch's rows here so far, by region: those that have come, that were taken in, and that were sent to it. The
    totals only grow, so a report of them that comes late or twice tells the coordinator nothing wrong."""

    applied: Counter[str] = field(default_factory=Counter)
    settled: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    has_put_off: bool = False
    """Rows were put off that are not reported."""


class EpochProgress:
    """The worker's place in the order of epochs."""

    def __init__(self, start_at: Epoch, reads: tuple[VnodeId, ...], *, is_staged: bool) -> None:
        """start_at: the epoch as of whose end the worker starts. is_staged: whether rows are exchanged."""
        self.applied = start_at
        """The last epoch whose slices were all read."""
        self.reflected = start_at
        """The last epoch whose rows for the keys kept here are all known to be applied."""
        self.opened = start_at
        """The last epoch that the coordinator has opened."""
        self.arrived = BEGINNING
        """The last epoch that keys from peers may have rows of."""
        self.reads = reads
        """The vnodes whose slices this worker reads of the epochs that are opened from now on."""
        self.reading: EpochReading | None = None
        """``None`` between two epochs."""
        self._unread = deque[UnreadEpoch]()
        self._counts = defaultdict[Epoch, EpochCounts](EpochCounts)
        """Of the last epoch that is over, and of all later ones."""
        self._late = set[Epoch]()
        """The finished epochs whose rows have come in this step."""
        self._is_staged = is_staged
        self._segments: dict[Epoch, Epoch] = {}
        """For the opened epochs that end a segment of several: the epoch before it. The lake has few segments."""

    @property
    def begun(self) -> Epoch:
        """The last epoch that this worker has begun to read."""
        return self.applied if self.reading is None else self.reading.epoch

    @property
    def begun_anywhere(self) -> Epoch:
        """The last epoch that this worker, or a peer whose keys have come here, has begun to read."""
        return Epoch(max(self.begun, self.arrived))

    @property
    def has_unread(self) -> bool:
        """Whether an epoch is open and not being read yet."""
        return bool(self._unread)

    @property
    def is_between_epochs(self) -> bool:
        """Whether every epoch that was opened here is over everywhere."""
        return self.reading is None and not self._unread and self.applied == self.reflected

    @property
    def has_whole_epochs(self) -> bool:
        """Whether keys are as of the end of the epoch that this worker reflects, except those filled up to a later
        one."""
        if self.reading is not None or self.reflected != self.applied or self.reflected < self.arrived:
            return False
        return not self._has_counts_of_next

    @property
    def has_rows_of_next(self) -> bool:
        """Whether rows of a later epoch than the last applied one may be here: then that one is over everywhere, if
        rows are exchanged."""
        return self.reading is not None or self.arrived > self.applied or self._has_counts_of_next

    @property
    def _has_counts_of_next(self) -> bool:
        return any(epoch > self.applied and counts.applied.total() for epoch, counts in self._counts.items())

    def stands_at(self, cut: Epoch) -> bool:
        """Whether all state here is as of the end of this epoch. Raises ProtocolError if the worker is past it."""
        if self.applied > cut:
            raise ProtocolError(f"the end of epoch {cut} is asked for, and {self.applied} is applied")
        is_over = self.reflected == cut if self._is_staged else self.reading is None
        return self.applied == cut and is_over

    def count(self, epoch: Epoch, region: str, rows: int) -> None:
        """Rows of this epoch have come to a region."""
        self._counts[epoch].applied[region] += rows
        if epoch <= self.applied:
            self._late.add(epoch)

    def count_put_off(self, epoch: Epoch, region: str, rows: int) -> None:
        """worker.put_off_rows_count: a node of the region has failed on so many rows. The region sends them to itself,
        and takes them in at its stage, wherever their keys are by then."""
        counts = self._counts[epoch]
        counts.sent[region] += rows
        counts.has_put_off = True
        self.count(epoch, region, rows)

    def counts(self, epoch: Epoch) -> EpochCounts:
        return self._counts[epoch]

    def take_late(self) -> list[Epoch]:
        """The finished epochs whose rows have come since the last call, ascending."""
        late = sorted(self._late)
        self._late.clear()
        return late

    def receive_keys(self, begun: Epoch) -> None:
        """Keys have come from a peer that has begun this epoch."""
        self.arrived = Epoch(max(self.arrived, begun))

    def read_vnodes(self, vnodes: tuple[VnodeId, ...]) -> None:
        """Read these slices of all epochs that are opened from now on."""
        self.reads = vnodes

    def open(self, event: OpenEpoch) -> None:
        self.opened = event.epoch
        if event.after is not None and event.after != event.epoch - 1:
            self._segments[event.epoch] = event.after
        self._unread.append(UnreadEpoch(event.epoch, self.reads, event.mixed, event.after, event.as_of, event.clock))

    def after(self, epoch: Epoch) -> Epoch | None:
        """The epoch before it, if it ends a segment of several."""
        return self._segments.get(epoch)

    def begin_next(self, channels: Iterable[Channel]) -> UnreadEpoch:
        """Begin to read the next epoch that is open. channels: those that feed a region."""
        unread = self._unread.popleft()
        self.reading = EpochReading(unread.epoch, unread.mixed, dict.fromkeys(channels, 0), unread.clock)
        return unread

    def reading_of(self, epoch: Epoch, what: str) -> EpochReading:
        """The epoch that is being read. Raises IllegalEvent if it is another one. what: came of this epoch."""
        reading = self.reading
        if reading is None or epoch != reading.epoch:
            raise IllegalEvent(f"{what} of epoch {epoch}, which is not being read; {self.applied} is applied")
        return reading

    def take_clock(self) -> int | None:
        """The instant of the epoch that is being read, once."""
        assert self.reading is not None
        clock, self.reading.clock = self.reading.clock, None
        return clock

    def count_read(self, channel: Channel, rows: int) -> None:
        """So many rows of the epoch that is being read have come on this channel."""
        assert self.reading is not None
        self.reading.read[channel] += rows

    def end_reading(self, aged: Mapping[Channel, int]) -> None:
        """All slices of the epoch that is being read have come."""
        assert self.reading is not None
        self.reading.is_read, self.reading.aged = True, aged

    def finish(self, epoch: Epoch) -> None:
        """All slices of the epoch that was being read are applied."""
        self.applied, self.reading = epoch, None

    def reflect(self, epoch: Epoch) -> None:
        """All rows of this epoch are applied."""
        self.reflected = epoch
        for earlier in [counted for counted in self._counts if counted < epoch]:
            del self._counts[earlier]

    def stand_at(self, epoch: Epoch) -> None:
        """The state is as of the end of this epoch: what it is restored to."""
        self.applied = self.reflected = epoch
