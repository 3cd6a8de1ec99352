"""Sources whose cursors can move: a lister, a distributor, a reader behind it (document 000, "Dealing with Sources").

A source that finds its own partitions makes keys inside a region, where no distributor sees them: a rescale would miss
those that came since the operators were interrogated. So it is split. The lister, upstream of a distributor keyed by
partition, says which partitions there are. The reader, an operator of the region, keeps one cursor per partition, and
moves as any other keyed state:

    [DirectoryLister] -- file names -------> [distributor] --> [PartitionReader]
    [TopicLister] -- (topic, partition) ---> [distributor] --> [PartitionReader]

What is read comes not through the distributor, so no hold stops it. The reader itself stops: from Collect on what comes
for a collected cursor is thrown away, and the new owner reads it again from where the cursor is. And a result counts
only if it begins where the cursor is; so it does not matter how many listers name a partition, or how often, or what
was requested, and by which reader, before the cursor came.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from upriver.errors import ProtocolError
from upriver.hashing import Hashes, hash64
from upriver.state.vectors import Mask, contains, key_set
from upriver.vnodes import vnodes_of

# Partitions -------------------------------------------------------------------------------------------------------


class FileName(NamedTuple):
    """A file of the directory; its offsets are bytes, or rows."""

    name: str


class TopicPartition(NamedTuple):
    """A partition of a topic; its offsets are the topic's own."""

    topic: str
    partition: int


Partition = TypeVar("Partition", bound=FileName | TopicPartition)


@dataclass(frozen=True, slots=True)
class PartitionType(Generic[Partition]):
    """make: of one value per column. schema: of the columns that name a partition, by which it is hashed."""

    make: Callable[..., Partition]
    schema: pa.Schema

    def columns(self, partitions: Sequence[Partition]) -> list[pa.Array]:
        """One array per column of the schema."""
        return [pa.array([it[place] for it in partitions], field.type) for place, field in enumerate(self.schema)]

    def hashes(self, partitions: Sequence[Partition]) -> Hashes:
        """The hash64 of each partition's name."""
        return hash64(self.columns(partitions), len(partitions))


FILES = PartitionType(FileName, pa.schema([pa.field("name", pa.string(), nullable=False)]))
TOPICS = PartitionType(
    TopicPartition,
    pa.schema([pa.field("topic", pa.string(), nullable=False), pa.field("partition", pa.int32(), nullable=False)]),
)


@dataclass(frozen=True, slots=True)
class Listing(Generic[Partition]):
    """Partitions on their way from a lister through a distributor: rows of nothing but a key."""

    partitions: tuple[Partition, ...]
    hash64: Hashes

    def __len__(self) -> int:
        return len(self.partitions)

    def filtered(self, mask: Mask) -> "Listing[Partition]":
        """Those where ``mask`` is true, in order."""
        kept = tuple(partition for partition, keep in zip(self.partitions, mask.tolist(), strict=True) if keep)
        return Listing(kept, self.hash64[mask])


# Listers ----------------------------------------------------------------------------------------------------------


class DirectoryLister:
    """Watches a directory. emitted: the names of all files that it has passed on."""

    def __init__(self) -> None:
        self.emitted: frozenset[FileName] = frozenset()

    def listed(self, names: Iterable[str]) -> Listing[FileName]:
        """The directory holds these files now; returns the new ones, in order of name."""
        new = tuple(sorted({FileName(name) for name in names} - self.emitted))
        self.emitted |= set(new)
        return Listing(new, FILES.hashes(new))


class TopicLister:
    """Asks for the partitions of topics. emitted: all that it has passed on."""

    def __init__(self) -> None:
        self.emitted: frozenset[TopicPartition] = frozenset()

    def listed(self, topics: Mapping[str, int]) -> Listing[TopicPartition]:
        """The topics have so many partitions now; returns the new ones, in order."""
        pairs = {TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)}
        new = tuple(sorted(pairs - self.emitted))
        self.emitted |= set(new)
        return Listing(new, TOPICS.hashes(new))


# The reader -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsCame(Generic[Partition]):
    """The distributor passed these down."""

    listing: Listing[Partition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """It is time to see whether partitions that were read to their end have grown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsRead(Generic[Partition]):
    """What a ``SourceRead`` has brought. records: those from ``offset`` to ``next_offset``; none, if the two are
    equal."""

    partition: Partition
    offset: int
    records: object
    next_offset: int

    def __post_init__(self) -> None:
        if not 0 <= self.offset <= self.next_offset:
            raise ProtocolError(f"{self.partition} was read from {self.offset} to {self.next_offset}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRead(Generic[Partition]):
    """Read a partition from ``offset``, at most so many records. One Read of a cursor is out at a time."""

    partition: Partition
    offset: int
    records_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Emit(Generic[Partition]):
    """Send records on, the first of which is at ``offset``."""

    partition: Partition
    offset: int
    records: object


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far one partition was read. reading: a Read from here is out."""

    hash64: int
    offset: int = 0
    reading: bool = False


class PartitionReader(Generic[Partition]):
    """One worker's reader: a machine for what is read, and keyed state for migration.

    cursors: of all and only the partitions whose cursor is here. sealed: keys that were collected and not yet dropped.
    What is read and not yet sent on is bounded by ``records_max`` per partition.
    """

    def __init__(self, type: PartitionType[Partition], records_max: int) -> None:
        self.type = type
        self.records_max = records_max
        self.cursors: dict[Partition, Cursor] = {}
        self.sealed: frozenset[int] = frozenset()

    def step(
        self, event: PartitionsCame[Partition] | Polled | RecordsRead[Partition]
    ) -> tuple[SourceRead[Partition] | Emit[Partition], ...]:
        """Advance by one event."""
        match event:
            case PartitionsCame(listing=listing):
                for partition, key in zip(listing.partitions, listing.hash64.tolist(), strict=True):
                    self.cursors.setdefault(partition, Cursor(key))
                return self._read(listing.partitions)
            case Polled():
                return self._read(sorted(self.cursors))
            case RecordsRead():
                return self._records(event)

    def _records(self, event: RecordsRead[Partition]) -> tuple[SourceRead[Partition] | Emit[Partition], ...]:
        partition, cursor = event.partition, self.cursors.get(event.partition)
        if cursor is None or cursor.hash64 in self.sealed or cursor.offset != event.offset:
            return ()  # asked for before the cursor went, or by a reader that had it earlier
        self.cursors[partition] = Cursor(cursor.hash64, event.next_offset)
        if event.next_offset == event.offset:
            return ()
        emit = Emit(partition=partition, offset=event.offset, records=event.records)
        return emit, *self._read([partition])

    def _read(self, partitions: Sequence[Partition]) -> tuple[SourceRead[Partition], ...]:
        reads = []
        for partition in partitions:
            cursor = self.cursors[partition]
            if not cursor.reading and cursor.hash64 not in self.sealed:
                self.cursors[partition] = replace(cursor, reading=True)
                reads.append(SourceRead(partition=partition, offset=cursor.offset, records_max=self.records_max))
        return tuple(reads)

    def keys_of(self, vnode: int, vnodes: int) -> Hashes:
        """All hash64 of this vnode that have a cursor, ascending, unique."""
        keys = key_set(np.array([cursor.hash64 for cursor in self.cursors.values()], np.uint64))
        there: Mask = vnodes_of(keys, vnodes) == vnode
        return keys[there]

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """The cursors of these keys: hash64, the columns that name the partition, offset. They stay, and stand still
        until they are dropped."""
        self.sealed |= set(keys.tolist())
        found = {partition: cursor for partition, cursor in sorted(self.cursors.items()) if _among(cursor, keys)}
        hashes = pa.array([cursor.hash64 for cursor in found.values()], pa.uint64())
        offsets = pa.array([cursor.offset for cursor in found.values()], pa.int64())
        columns = [hashes, *self.type.columns(list(found)), offsets]
        return (pa.RecordBatch.from_arrays(columns, names=["hash64", *self.type.schema.names, "offset"]),)

    def install(self, state: tuple[pa.RecordBatch, ...]) -> None:
        """Take such cursors; the keys have none here. They are read from the next ``Polled`` on."""
        for batch in state:
            hashes, *names, offsets = (column.to_pylist() for column in batch.columns)
            for key, name, offset in zip(hashes, zip(*names, strict=True), offsets, strict=True):
                partition = self.type.make(*name)
                if partition in self.cursors:
                    raise ProtocolError(f"the cursor of {partition} came to a reader that has one")
                self.cursors[partition] = Cursor(key, offset)

    def drop(self, keys: Hashes) -> None:
        """Forget the cursors of these keys."""
        self.sealed -= set(keys.tolist())
        self.cursors = {partition: cursor for partition, cursor in self.cursors.items() if not _among(cursor, keys)}


def _among(cursor: Cursor, keys: Hashes) -> bool:
    return bool(contains(keys, np.array([cursor.hash64], np.uint64))[0])
