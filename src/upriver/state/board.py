"""Board: rows of keys that were looked up lately, in memory that others read while it changes.

A view's owner writes, one thread at a time; readers (:class:`upriver.state.board_reader.BoardReader`) take no lock. All
rows on a board are as of the end of one epoch, which its head tells. Whoever writes makes a number in the head odd
before and even after; a reader who finds it odd, or another than before, has read nothing.

Keys may be taken down at any time, and make room for others where there is none: a board is to spare a round trip, and
knows nothing that its owner does not know better.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.ids import Epoch
from upriver.state.board_layout import (
    CLOSED,
    GOOD_UNTIL_AT,
    HEAD,
    IN_USE,
    NAME_AT,
    NAME_BYTES,
    WAYS,
    BoardLayout,
    Raw,
    view,
)
from upriver.state.columns import taken
from upriver.state.vectors import Hashes, Mask, Positions, true_at

SEEN_BITS = 2**17
"""By so many low bits of their hashes it is remembered which keys may be on a board: a batch of rows has few of them,
and only those are looked for."""
ASKED_PLACES, ASKED_MAX = 2**19, 2**16
"""By so many low bits of their hashes it is remembered which keys were asked for. When so many were, all are forgotten:
of those that were not asked for, few are to be taken for some that were."""
NOWHERE = 0
"""In place of a hash64, where no key is. The one key of that hash is never put on a board."""

_CHANGES, _STATE, _EPOCH = range(3)


class Board:
    """The owner's side. memory: writable, of ``layout.nbytes``, all zero; name: 16 bytes.

    Until ``turn`` is called first, nobody reads it.
    """

    def __init__(self, layout: BoardLayout, memory: Any, name: bytes) -> None:
        self.layout = layout
        self.nbytes = layout.nbytes
        self._head: npt.NDArray[np.int64] = view(memory, np.int64, 0, 3)
        self._good_until: npt.NDArray[np.float64] = view(memory, np.float64, GOOD_UNTIL_AT, 1)
        view(memory, np.uint8, NAME_AT, NAME_BYTES)[:] = np.frombuffer(name, np.uint8)
        self._hashes: Hashes = view(memory, np.uint64, HEAD.size, layout.places)
        self._marks = view(memory, np.uint8, layout.marks_at, layout.places)
        self._rows: Raw = view(memory, layout.row_type, layout.rows_at, layout.places)
        self._next = np.zeros(layout.buckets, np.int64)
        """The place of each bucket that is given away next."""
        self._seen = np.zeros(SEEN_BITS, np.bool_)
        self._asked = np.zeros(ASKED_PLACES, np.bool_)
        self._asked_keys = 0
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_in_use(self) -> bool:
        """Whether others may read it."""
        return bool(self._head[_STATE] == IN_USE)

    @property
    def epoch(self) -> Epoch:
        """As of whose end all rows are."""
        return Epoch(int(self._head[_EPOCH]))

    def good_until(self, time: float) -> None:
        """It may be read until then, by the clock that its readers go by, too. Any thread may say so."""
        self._good_until[0] = time

    def turn(self, epoch: Epoch) -> None:
        """All rows that are still here are as of the end of this epoch, and others may read them."""
        with self._changing():
            self._head[_EPOCH], self._head[_STATE] = epoch, CLOSED if self._is_closed else IN_USE

    def asked_again(self, hash64: Hashes) -> Mask:
        """Which of these keys somebody has asked for before. Of the others most never will be again, and to put a key
        up takes longer than to look it up. They are all remembered now."""
        places = _low_bits(hash64, ASKED_PLACES)
        again: Mask = self._asked[places]
        new = len(again) - int(np.count_nonzero(again))
        if new:
            if self._asked_keys >= ASKED_MAX:
                self._asked[:], self._asked_keys = False, 0
            self._asked[places] = True
            self._asked_keys += new
        return again

    def put(self, hash64: Hashes, rows: pa.RecordBatch) -> None:
        """Put up keys, each named once, with a row each, as of ``epoch``. Those that are there already stay as they
        are, and those that no place has room for are left out."""
        may_come = (hash64 != NOWHERE) & (self._places_of(hash64) < 0)
        if self._is_closed or not may_come.any():
            return
        may_come &= self.layout.fits(rows)
        if not may_come.all():
            hash64, rows = hash64[may_come], taken(rows, true_at(may_come))
        if not len(hash64):
            return
        raw = self.layout.raw(rows)
        places, of_keys = self._free_places(hash64)
        with self._changing():
            self._rows[places], self._hashes[places], self._marks[places] = raw[of_keys], hash64[of_keys], 0
        self._seen[_low_bits(hash64, SEEN_BITS)] = True

    def take_down(self, hash64: Hashes) -> None:
        """These keys are not to be found here any more, in any order and with any repeats."""
        may_be_here = self._seen[_low_bits(hash64, SEEN_BITS)]
        if not may_be_here.any():
            return
        places = self._places_of(hash64[may_be_here])
        places = places[places >= 0]
        if len(places):
            with self._changing():
                self._hashes[places] = NOWHERE

    def take_all_down(self) -> None:
        """No key is to be found here any more."""
        with self._changing():
            self._hashes[:] = NOWHERE
        self._seen[:] = False

    @property
    def keys(self) -> Hashes:
        """The hash64 of all keys that are here, in no particular order."""
        keys: Hashes = self._hashes[self._hashes != NOWHERE]
        return keys

    def read_lately(self) -> Hashes:
        """The hash64 of keys that somebody has read here since the last time."""
        (marked,) = self._marks.copy().nonzero()  # a copy: others write meanwhile
        self._marks[marked] = 0
        hashes: Hashes = self._hashes[marked]
        known: Hashes = hashes[hashes != NOWHERE]
        return known

    def close(self) -> None:
        """Nobody may read it any more. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self.turn(self.epoch)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Nobody who reads meanwhile has read anything. An error leaves it so: what was written is not known then."""
        self._head[_CHANGES] |= 1
        yield
        self._head[_CHANGES] += 1

    def _places_of(self, hash64: Hashes) -> Positions:
        """The place of each key; -1 if it has none."""
        buckets = self.layout.buckets_of(hash64)
        is_it: Mask = self._hashes.reshape(-1, WAYS)[buckets] == hash64[:, None]
        return np.where(is_it.any(1), buckets * WAYS + is_it.argmax(1), -1)

    def _free_places(self, hash64: Hashes) -> tuple[Positions, Positions]:
        """The next places of these keys' buckets, whoever has been there, and which of the keys are to have them:
        all, unless a bucket has fewer places than come to it at a time."""
        buckets = self.layout.buckets_of(hash64)
        order = buckets.argsort(kind="stable")
        buckets = buckets[order]
        is_first = np.concatenate([[True], buckets[1:] != buckets[:-1]])
        begin = np.maximum.accumulate(np.where(is_first, np.arange(len(buckets)), 0))
        turns = np.arange(len(buckets)) - begin
        has_place = turns < WAYS
        order, buckets, turns = order[has_place], buckets[has_place], turns[has_place]
        places = buckets * WAYS + (self._next[buckets] + turns) % WAYS
        self._next[buckets] = (places + 1) % WAYS  # of each bucket, the last one counts
        return places, order


def _low_bits(hash64: Hashes, places: int) -> Positions:
    return (hash64 & np.uint64(places - 1)).astype(np.int64)
