"""SlotIndex: from exact keys to dense slots. The one hash index of the in-memory state.

A row first walks the table to the entry with its hash's tag; then the real keys of all rows are compared in one go, and
the few that met another key walk on. Two keys with one hash64 so keep separate slots. An index without columns is one
of the hashes themselves.

Slots count up in order of arrival and are never used again: a key that was forgotten and comes back is a new one. The
memory of what is forgotten comes back when the whole index goes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from upriver.errors import ProtocolError
from upriver.state.columns import Column, canonical, column_of, same
from upriver.state.table import Table
from upriver.state.vectors import Positions, Slots, Vector, run_lengths, run_starts, true_at
from upriver.xxh64 import Hashes

_SLOTS_MAX = 0xFFFF_FFFF

_BLOCK = 1 << 56
"""Hashes of a block: every 256th part of all."""
_SCAN_SLOTS = 1 << 15
"""Slots that are looked through at a time, so that what this takes meanwhile stays in the processor's cache. All at
once took up to ten times as long, as the system had to find fresh memory for it."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Which slots have a hash of the block ``number``, in order of their hashes; known of the first ``seen`` slots."""

    number: int
    seen: int
    slots: Slots


class SlotIndex:
    """Exact keys, each with a slot."""

    __slots__ = ("_block", "_columns", "_has_twins", "_hashes", "_table")

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        """types: of the key's columns; none is nested. Without any, the hash is the key."""
        self._columns: tuple[Column, ...] = tuple(column_of(type) for type in types)
        self._hashes: Vector[np.uint64] = Vector(np.uint64)
        self._table = Table()
        self._has_twins = False
        """Two keys with one hash may be here; nearly always there are none, and who has found one may stop."""
        self._block: _Block | None = None
        """The one that was asked for last."""

    def __len__(self) -> int:
        return len(self._hashes)

    @property
    def hashes(self) -> Hashes:
        """The hash of each slot's key."""
        return self._hashes.cells

    @property
    def nbytes(self) -> int:
        return self._table.nbytes + self._hashes.nbytes + sum(column.nbytes for column in self._columns)

    def column(self, place: int, slots: Slots) -> pa.Array:
        """One column of these slots' keys."""
        return self._columns[place].take(slots)

    def find(self, hashes: Hashes, keys: Sequence[pa.Array]) -> Slots:
        """The slot of each key, -1 for one without. keys: columns of the index's types, one value per hash."""
        return self._find(hashes, [canonical(column) for column in keys])

    def assign(self, hashes: Hashes, keys: Sequence[pa.Array]) -> Slots:
        """The slot of each key; unseen keys get the next slots, in order of their first row.

        Runs of equal neighbours, which batches sorted by hash are made of, are looked up once.
        """
        keys = [canonical(column) for column in keys]
        heads = run_heads(hashes, keys)
        if len(heads) == len(hashes):
            return self._assign(hashes, keys)
        slots = self._assign(hashes[heads], _rows(keys, heads))
        return np.repeat(slots, run_lengths(heads, len(hashes)))

    def with_hash(self, hashes: Hashes) -> Slots:
        """The slots of all keys with any of these hashes, which are unique, in no particular order."""
        if not self._has_twins:
            slots = self._find(hashes, ())
            return slots[slots >= 0]
        positions, slots = self._table.tagged(hashes)
        same_hash: Slots = slots[self.hashes[slots] == hashes[positions]]
        return same_hash

    def between(self, least: int, most: int) -> Slots:
        """All slots, forgotten ones too, whose hash lies between these two or is one of them, in no particular order.

        Who asks for one small range after the other has all hashes looked through once per block, not once per range.
        """
        block = least // _BLOCK
        if block != most // _BLOCK:
            return self._scanned(0, least, most)
        if self._block is None or self._block.number != block:
            slots = self._scanned(0, block * _BLOCK, block * _BLOCK + _BLOCK - 1)
            self._block = _Block(block, len(self), slots[np.argsort(self.hashes[slots])])
        seen = self._block.slots
        hashes = self.hashes[seen]
        start = np.searchsorted(hashes, np.uint64(least), side="left")
        stop = np.searchsorted(hashes, np.uint64(most), side="right")
        return np.concatenate([seen[start:stop], self._scanned(self._block.seen, least, most)])

    def forget(self, slots: Slots) -> None:
        """Nobody finds these slots any more; their keys, should they come back, get new ones."""
        self._table.forget(self.hashes[slots], slots)

    def _scanned(self, first: int, least: int, most: int) -> Slots:
        """Of the slots from ``first`` on, those whose hash lies between these two or is one of them."""
        from_least, width = np.uint64(least), np.uint64(most - least)
        found = [
            # One comparison for two: what is below ``least`` wraps round and is far beyond.
            start + true_at(self.hashes[start : start + _SCAN_SLOTS] - from_least <= width)
            for start in range(first, len(self), _SCAN_SLOTS)
        ]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _find(self, hashes: Hashes, keys: Sequence[pa.Array]) -> Slots:
        """The slot of each key, -1 for one without; without keys, of the first one that is met with the hash."""
        slots, places = self._table.walk(hashes)
        strangers = self._strangers(slots, hashes, keys)
        while strangers.size:
            theirs = hashes[strangers]
            self._has_twins |= bool((self.hashes[slots[strangers]] == theirs).any())
            slots[strangers], places[strangers] = self._table.walk(theirs, places[strangers] + 1)
            strangers = strangers[self._strangers(slots[strangers], theirs, _rows(keys, strangers))]
        return slots

    def _assign(self, hashes: Hashes, keys: Sequence[pa.Array]) -> Slots:
        slots = self._find(hashes, keys)
        unseen = true_at(slots < 0)
        if unseen.size:
            slots[unseen] = self._add(hashes[unseen], _rows(keys, unseen))
        return slots

    def _add(self, hashes: Hashes, keys: Sequence[pa.Array]) -> Slots:
        """Give slots to keys that have none; a key may occur more than once among them."""
        first, are_alike = _first_equal(hashes, keys)
        self._has_twins |= are_alike
        new = true_at(first == np.arange(len(first)))
        size = len(self)
        if size + len(new) > _SLOTS_MAX:
            raise ProtocolError(f"an index of {size:,} keys is full")
        numbers = np.empty(len(first), np.int64)
        numbers[new] = np.arange(size, size + len(new))
        self._hashes.extend(hashes[new])
        for column, values in zip(self._columns, _rows(keys, new), strict=True):
            column.append(values)
        self._table.add(self.hashes, len(new))
        return numbers[first]

    def _strangers(self, slots: Slots, hashes: Hashes, keys: Sequence[pa.Array]) -> Positions:
        """The rows whose slot holds another key than theirs."""
        (found,) = (slots >= 0).nonzero()
        if not found.size:
            return found
        if not keys:
            strangers: Positions = found[self.hashes[slots[found]] != hashes[found]]
            return strangers
        if found.size < len(slots):
            slots, keys = slots[found], _rows(keys, found)
        differs = np.zeros(len(slots), np.bool_)
        for column, values in zip(self._columns, keys, strict=True):
            differs |= ~column.holds(slots, values)
        return found[differs]


def run_heads(hashes: Hashes, keys: Sequence[pa.Array]) -> Positions:
    """Where a row's key differs from the key of the row before it; the first row always does."""
    if len(hashes) < 2:
        return np.arange(len(hashes))
    begins = np.ones(len(hashes), np.bool_)
    differs = np.not_equal(hashes[1:], hashes[:-1], out=begins[1:])
    if not differs.all():
        for column in keys:
            differs |= ~same(column[1:], column[:-1])
    return true_at(begins)


def first_equal(hashes: Hashes, keys: Sequence[pa.Array]) -> Positions:
    """For each row, the first row with the same key. Equal keys must have equal hashes; without columns, these are the
    keys."""
    return _first_equal(hashes, keys)[0]


def _first_equal(hashes: Hashes, keys: Sequence[pa.Array]) -> tuple[Positions, bool]:
    """As :func:`first_equal`; and whether two different keys may have the same hash: at least, they were compared."""
    first, are_alike = np.empty(len(hashes), np.int64), False
    rows = np.arange(len(hashes))
    while rows.size:
        # Sorted as one number, the row's below as much of the hash as there is room for, which is faster than in pairs.
        below = np.uint64((1 << len(rows).bit_length()) - 1)
        packed = np.sort(hashes[rows] & ~below | np.arange(len(rows), dtype=np.uint64))
        in_turn, places = packed & ~below, (packed & below).view(np.int64)
        heads = run_starts(in_turn)
        if len(heads) == len(rows):
            first[rows] = rows
            break
        leaders = np.empty(len(rows), np.int64)
        leaders[places] = rows[np.repeat(places[heads], run_lengths(heads, len(rows)))]
        equal = hashes[rows] == hashes[leaders]
        for column in keys:
            equal &= same(column.take(pa.array(rows)), column.take(pa.array(leaders)))
        first[rows[equal]] = leaders[equal]
        rows = rows[~equal]
        are_alike |= bool(rows.size)
    return first, are_alike


def _rows(keys: Sequence[pa.Array], rows: Positions) -> Sequence[pa.Array]:
    """rows: ascending, each once."""
    if keys and len(rows) == len(keys[0]):
        return keys
    taken = pa.array(rows)
    return [column.take(taken) for column in keys]
