"""Rows of partitions, equal ones as one *entry* with a count: what :mod:`upriver.engine.operators.topk` and
:mod:`upriver.engine.operators.window` keep of their input. Which entries a partition has, and in what order, they
decide themselves."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.operators.operator import check_new, net_changes, part_of
from upriver.errors import ProtocolError
from upriver.hashing import Hashes
from upriver.state.columns import array_of, cells_of
from upriver.state.indexes import Entries, Hasher, RoutedIndex
from upriver.state.vectors import Mask, Positions, Slots, Tally, Vector, Weights


@dataclass(frozen=True, slots=True)
class EntryChanges:
    """Entries that a batch names, ascending, and by how much it changes their counts. new: those that were not there.
    gone: which of ``slots`` are there no more. emptied: the partitions without an entry."""

    slots: Slots
    weight: Weights
    new: Slots
    gone: Mask
    emptied: Slots


class PartitionedRows:
    """The entries, each with its count and its partition."""

    __slots__ = ("_columns", "_counts", "_entries", "_owners", "_partitions", "_sizes", "held")

    def __init__(self, source: pa.Schema, partition: Sequence[str], routing: Sequence[str], hasher: Hasher) -> None:
        """source: of the rows. partition: its columns that partitions are by; routing: those of the routing key."""
        self._columns = [source.get_field_index(name) for name in partition]
        self._entries = Entries(source, source.names, hasher)
        self._counts: Vector[np.int64] = Vector(np.int64)
        self._owners: Vector[np.int64] = Vector(np.int64)
        """By entry: its count, and the slot of its partition."""
        self._partitions = RoutedIndex(pa.schema([source.field(place) for place in self._columns]), routing, hasher)
        self._sizes = Tally()
        """By partition: how many entries it has."""
        self.held = 0
        """How many entries there are."""

    @property
    def slots(self) -> int:
        """How many slots of entries are in use, including those of entries that are gone."""
        return len(self._entries)

    @property
    def partitions(self) -> int:
        """How many slots of partitions are in use."""
        return len(self._partitions)

    @property
    def nbytes(self) -> int:
        entries = self._entries.nbytes + self._counts.nbytes + self._owners.nbytes
        return entries + self._partitions.nbytes + self._sizes.nbytes

    def change(self, batch: Batch) -> EntryChanges:
        """Take a batch in. Entries that are gone stay until they are forgotten. Raises ProtocolError if a row is taken
        back that is not there."""
        slots, first, weight = net_changes(self._assign(batch.rows.columns, len(batch)), batch.weight)
        after = self._counts.cells[slots] + weight
        if (after < 0).any():
            raise ProtocolError("a row was retracted more often than it is there")
        self._counts.cells[slots] = after
        new, gone = (after > 0) & (after == weight), after == 0
        at = pa.array(first[new])
        self._own(slots[new], batch.hash64[first[new]], [batch.rows.column(place).take(at) for place in self._columns])
        return EntryChanges(slots, weight, slots[new], gone, self._lose(slots[gone & (weight < 0)]))

    def forget(self, changes: EntryChanges) -> None:
        """Free the slots of what these changes have left without a row."""
        self._entries.forget(changes.slots[changes.gone])
        self._partitions.forget(changes.emptied)

    def counts(self, slots: Slots) -> Weights:
        return self._counts.cells[slots]

    def owners(self, slots: Slots) -> Slots:
        """The partitions of these entries."""
        return self._owners.cells[slots]

    def sizes(self, owners: Slots) -> Weights:
        """How many entries these partitions have."""
        return self._sizes.counts[owners]

    def hashes(self, slots: Slots) -> Hashes:
        """The hash64 of the routing keys of these entries."""
        return self._partitions.hashes(self._owners.cells[slots])

    def column(self, place: int, slots: Slots) -> pa.Array:
        return self._entries.column(place, slots)

    def column_at(self, slots: Slots, place: int, at: Positions) -> pa.Array:
        """One column of the entries at these positions of ``slots``."""
        return self._entries.column(place, slots[at])

    def columns(self, slots: Slots) -> list[pa.Array]:
        return self._entries.columns(slots)

    def hashes_between(self, least: int, most: int) -> Hashes:
        return self._partitions.hashes_between(least, most)

    def with_hash(self, keys: Hashes) -> Slots:
        """The partitions of these routing keys."""
        return self._partitions.with_hash(keys)

    def collect(self, slots: Slots) -> pa.RecordBatch:
        """One row for each of these entries: the routing key's hash64, its columns, and its count. The entries of one
        routing key are in order of age."""
        hashes = self.hashes(slots)
        order = np.lexsort((slots, hashes))
        slots = slots[order]
        counts = array_of(pa.int64(), self._counts.cells[slots])
        return part_of(hashes[order], [*self._entries.columns(slots), counts])

    def install(self, part: pa.RecordBatch) -> tuple[Slots, Slots]:
        """Take in what ``collect`` has given. Returns the entries and their partitions, all new."""
        hashes, *columns, counts = part.columns
        known, partitions = self.slots, len(self._partitions)
        slots = self._assign(columns, len(part))
        self._counts.cells[slots] = cells_of(counts)
        self._own(slots, cells_of(hashes), [columns[place] for place in self._columns])
        touched = np.unique(self._owners.cells[slots])
        check_new(self.slots == known + len(slots) and not (touched < partitions).any())
        return slots, touched

    def drop(self, owners: Slots, slots: Slots) -> None:
        """Forget these partitions, and their entries."""
        self._entries.forget(slots)
        self._counts.cells[slots] = 0
        self.held -= len(slots)
        self._partitions.forget(owners)

    def _assign(self, columns: Sequence[pa.Array], count: int) -> Slots:
        slots = self._entries.assign(columns, count)
        for vector in (self._counts, self._owners):
            vector.resize(self.slots)
        return slots

    def _own(self, slots: Slots, routed: Hashes, partition: Sequence[pa.Array]) -> None:
        """Give these new entries their partitions. routed: the hash64 of their routing keys."""
        owners = self._partitions.assign(routed, partition)
        self._owners.cells[slots] = owners
        self._sizes.resize(len(self._partitions))
        self._sizes.add(owners, None)
        self.held += len(slots)

    def _lose(self, slots: Slots) -> Slots:
        """Note that these entries are gone. Returns the partitions that have no entry left."""
        owners = self._owners.cells[slots]
        _, emptied = self._sizes.add(owners, np.full(len(slots), -1))
        self.held -= len(slots)
        return owners[emptied]


def of_each(slots: Slots, named: Slots, weight: Weights) -> Weights:
    """The weight of each of these slots; zero for a slot that is not among those named, which are ascending."""
    if not len(named):
        return np.zeros(len(slots), np.int64)
    places = np.minimum(np.searchsorted(named, slots), len(named) - 1)
    return np.where(named[places] == slots, weight[places], 0)
