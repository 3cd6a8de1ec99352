"""What a join keeps, and what follows from a change of it.

A row has a match as long as there is a row on the other side that agrees in the key and makes the condition true. Where
there is no condition, the keys know how many rows each side has, and a key's rows change their lot together. Where
there is one, matches are counted for each row of a side whose rows may be put out alone.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.operators.evaluator import Evaluator
from upriver.engine.operators.join_keys import JoinKeys
from upriver.engine.operators.join_pairs import pairs_of
from upriver.engine.operators.join_shape import JoinShape
from upriver.engine.operators.join_side import Changes, JoinSide
from upriver.engine.operators.parts import check_new, part_of
from upriver.state.columns import array_of, cells_of
from upriver.state.vectors import Mask, Positions, Slots, Weights
from upriver.xxh64 import Hashes

_Other = TypeVar("_Other", Slots, None)


class JoinStore:
    """The rows of both sides."""

    __slots__ = ("_evaluator", "_keys", "_shape", "_sides")

    def __init__(self, shape: JoinShape, evaluator: Evaluator) -> None:
        self._shape = shape
        self._evaluator = evaluator
        self._keys = JoinKeys(shape)
        self._sides = (JoinSide(shape.sides[0]), JoinSide(shape.sides[1]))

    @property
    def held(self) -> int:
        """How many different rows are kept."""
        return sum(side.held for side in self._sides)

    @property
    def slots(self) -> int:
        return sum(side.slots for side in self._sides)

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + sum(side.nbytes for side in self._sides)

    def apply(self, port: int, batch: Batch) -> list[Batch]:
        """Take in changes of one side; returns the changes of the output that follow, in any number of batches.

        Raises RowError if the condition fails on a pair.
        """
        shape = self._shape.sides[port]
        owners = self._owners(batch.hash64, [batch.rows.column(name) for name in shape.key])
        rows = [batch.rows.column(name) for name in shape.kept.names]
        changes = self._sides[port].change(rows, owners, batch.hash64, batch.weight)
        before = self._keys.total(port, changes.owners)
        self._keys.add(port, np.repeat(changes.owners, changes.sizes), changes.weight)
        if self._shape.condition is None:
            follows = list(self._by_key(port, changes, before > 0))
        else:
            follows = list(self._by_row(port, changes, self._shape.condition))
        self._keys.forget_empty(changes.owners)
        return follows

    def hashes_between(self, least: int, most: int) -> Hashes:
        return self._keys.hashes_between(least, most)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """The left rows, then the right ones: the routing key's hash64, how often the row is there, how many rows it
        matches if that is counted, and its columns."""
        hashes, owners = self._keys.with_hash(keys)
        return tuple(_state(side, hashes, owners) for side in self._sides)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        """Raises ProtocolError if something is kept of one of the keys."""
        _, known = self._keys.with_hash(np.unique(np.concatenate([cells_of(part.column(0)) for part in state])))
        check_new(not known.size)
        for port, (side, shape, part) in enumerate(zip(self._sides, self._shape.sides, state, strict=True)):
            hashes, counts, *columns = part.columns
            matches = cells_of(columns.pop(0)) if shape.counted else None
            owners = self._owners(cells_of(hashes), [columns[shape.kept.names.index(name)] for name in shape.key])
            side.install(columns, owners, cells_of(counts), matches)
            self._keys.add(port, owners, cells_of(counts))

    def drop(self, keys: Hashes) -> None:
        owners = self._keys.drop(keys)
        for side in self._sides:
            side.forget(side.members(owners).slots)

    def _owners(self, routed: Hashes, keys: Sequence[pa.Array]) -> Slots:
        owners = self._keys.owners(routed, keys)
        for side in self._sides:
            side.resize(len(self._keys))
        return owners

    def _by_key(self, port: int, changes: Changes, before: Mask) -> Iterator[Batch]:
        """What follows where all rows of a key match. before: which of the changed keys had rows on this side."""
        own, other = self._shape.sides[port], self._shape.sides[1 - port]
        after = self._keys.total(port, changes.owners) > 0
        if self._shape.paired:
            members = self._sides[1 - port].members(changes.owners)
            for changed, places in pairs_of(changes, members):
                yield self._pairs(port, changes, changed, members.slots[places])
        if own.alone is not None:
            matched = np.repeat(self._keys.total(1 - port, changes.owners) > 0, changes.sizes)
            yield self._alone(port, changes, matched)
        if other.alone is not None:
            turned = before != after
            members = self._sides[1 - port].members(changes.owners[turned])
            matched, hashes = (np.repeat(of_key[turned], members.sizes) for of_key in (after, changes.routed))
            yield self._turned(1 - port, members.slots, matched, hashes)

    def _by_row(self, port: int, changes: Changes, condition: str) -> Iterator[Batch]:
        """What follows where a condition decides which rows of a key match."""
        own, other = self._sides[port], self._sides[1 - port]
        members = other.members(changes.owners)
        met, gained = np.zeros(len(changes.slots), np.int64), np.zeros(len(members.slots), np.int64)
        for changed, places in pairs_of(changes, members):
            true = self._evaluator.mask(self._test(port, changes.slots[changed], members.slots[places]), condition)
            changed, places = changed[true], places[true]
            np.add.at(met, changed, other.counts.cells[members.slots[places]])
            np.add.at(gained, places, changes.weight[changed])
            if self._shape.paired:
                yield self._pairs(port, changes, changed, members.slots[places])
        if own.matches is not None:
            own.matches.cells[changes.slots] = met
            yield self._alone(port, changes, met > 0)
        if other.matches is not None:
            before = other.matches.cells[members.slots]
            other.matches.cells[members.slots] = before + gained
            turned = (before > 0) != (before + gained > 0)
            hashes = np.repeat(changes.routed, members.sizes)
            yield self._turned(1 - port, members.slots[turned], before[turned] == 0, hashes[turned])

    def _test(self, port: int, slots: Slots, others: Slots) -> pa.RecordBatch:
        """What the condition needs of these pairs. slots: on that side. others: on the other one."""
        columns = {
            name: side.column(place, of_side)
            for side, shape, of_side in zip(self._sides, self._shape.sides, _by_port(port, slots, others), strict=True)
            for place, name in enumerate(shape.kept.names)
            if name in self._shape.tested
        }
        return pa.RecordBatch.from_pydict(columns)

    def _pairs(self, port: int, changes: Changes, changed: Positions, others: Slots) -> Batch:
        """Pairs come and go. changed: places in ``changes``. others: their partners."""
        weight = changes.weight[changed] * self._sides[1 - port].counts.cells[others]
        return self._batch(_by_port(port, changes.slots[changed], others), changes.hash64[changed], weight)

    def _alone(self, port: int, changes: Changes, matched: Mask) -> Batch:
        """Rows come and go, alone if they match, or do not match, as they are to."""
        shown = matched == self._shape.sides[port].alone
        return self._batch(_by_port(port, changes.slots[shown], None), changes.hash64[shown], changes.weight[shown])

    def _turned(self, port: int, slots: Slots, matched: Mask, hashes: Hashes) -> Batch:
        """Rows that are there have found their first match, or lost their last one. matched: which, from now on."""
        counts = self._sides[port].counts.cells[slots]
        weight = np.where(matched == self._shape.sides[port].alone, counts, -counts)
        return self._batch(_by_port(port, slots, None), hashes, weight)

    def _batch(self, slots: tuple[Slots | None, Slots | None], hashes: Hashes, weight: Weights) -> Batch:
        """Output rows of these entries of both sides; ``None``: nulls on that side."""
        columns = [
            pa.nulls(len(weight), shape.kept.field(place).type) if of_side is None else side.column(place, of_side)
            for side, shape, of_side in zip(self._sides, self._shape.sides, slots, strict=True)
            for place in range(shape.shown)
        ]
        return Batch(pa.RecordBatch.from_arrays(columns, schema=self._shape.output), hashes, weight)


def _by_port(port: int, own: Slots, other: _Other) -> tuple[Slots | _Other, Slots | _Other]:
    return (own, other) if port == 0 else (other, own)


def _state(side: JoinSide, hashes: Hashes, owners: Slots) -> pa.RecordBatch:
    """The entries of these owners. hashes: of their routing keys."""
    members = side.members(owners)
    numbers = [side.counts, *([] if side.matches is None else [side.matches])]
    counts = [array_of(pa.int64(), vector.cells[members.slots]) for vector in numbers]
    return part_of(np.repeat(hashes, members.sizes), [*counts, *side.columns(members.slots)])
