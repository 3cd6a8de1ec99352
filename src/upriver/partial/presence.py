"""Presence: which keys of a region a worker keeps (docs/internals/partial.md).

A key is *missing*, *pending* or *present*. The worker stores nothing about a missing key, so it costs nothing to have,
to move or to lose. Keys are known by their hash64 alone: two keys with one hash64 come and go together.

LookupClock: when keys are read, in lookups, and how many were read, missing and evicted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.engine.operators.compacted import USUAL, CompactionPace, TwoStores
from upriver.hashing import HASH64_MAX, Hashes
from upriver.ids import Epoch
from upriver.state.columns import array_of, cells_of
from upriver.state.indexes import SlotIndex
from upriver.state.vectors import Mask, Slots, Vector, true_at

Numbers = npt.NDArray[np.int64]

PRESENT = 0
"""In place of an upquery's number: no upquery is under way. Numbers of upqueries are higher."""
MISSING = -1
"""In place of an upquery's number: nothing is known of the key."""
SAMPLE = 1024
"""About how many keys are sampled to estimate which keys were read the longest ago."""
SAMPLE_MIN = 8
"""At least how many sampled keys count as evictable: with fewer, evictable keys would be too sparse to find soon."""
GLANCE_SLOTS = 8_192
"""Slots that are searched at a time for keys to evict: some tens of microseconds."""
SEARCH_SLOTS = 131_072
"""Slots that one search covers, if it has found any key to evict: less than a millisecond."""
REMEMBERED_KEYS_MAX = 4_096
"""At most how many keys the remembered look has: enough for a lookup, hardly for an epoch's rows."""


@dataclass(frozen=True, slots=True)
class Look:
    """How keys stand, one number for each. upquery: ``MISSING``, ``PRESENT``, or the upquery that is under way.
    through: the last epoch whose rows the state has, or will have after the upquery; no meaning for a missing key.
    found: the slots of the known keys, valid until a key comes or goes."""

    upquery: Numbers
    through: Numbers
    found: Sequence[tuple["PresenceStore", Slots]]

    @property
    def missing(self) -> Mask:
        mask: Mask = self.upquery == MISSING
        return mask

    @property
    def present(self) -> Mask:
        mask: Mask = self.upquery == PRESENT
        return mask

    @property
    def pending(self) -> Mask:
        mask: Mask = self.upquery > PRESENT
        return mask


class PresenceStore:
    """What is known of keys; one of the stores of :class:`TwoStores`."""

    __slots__ = ("_hand", "_index", "_kept", "_read", "_through", "_upquery", "held")

    def __init__(self) -> None:
        self._index = SlotIndex([])
        self._upquery: Vector[np.int64] = Vector(np.int64)
        self._through: Vector[np.int64] = Vector(np.int64)
        self._read: Vector[np.int64] = Vector(np.int64)
        """When the key was last read, in lookups."""
        self._kept: Vector[np.bool_] = Vector(np.bool_, fill=True)
        self._hand = 0
        """The slot where the next search for keys to evict begins."""
        self.held = 0

    @property
    def slots(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        columns = (self._upquery, self._through, self._read, self._kept)
        return self._index.nbytes + sum(column.nbytes for column in columns)

    def look(self, keys: Hashes) -> Look:
        slots = self._index.find(keys, [])
        known = slots >= 0
        if known.all():
            return Look(self._upquery.cells[slots], self._through.cells[slots], [(self, slots)])
        upquery = np.full(len(keys), MISSING, np.int64)
        through = np.zeros(len(keys), np.int64)
        found = slots[known]
        upquery[known], through[known] = self._upquery.cells[found], self._through.cells[found]
        return Look(upquery, through, [(self, found)])

    def put(self, keys: Hashes, upquery: Numbers | int, through: Numbers | int, read: Numbers | int) -> None:
        """Set what is known of these keys, each named once, whatever it was before. A single number is that of all."""
        slots = self._index.assign(keys, [])
        known = len(self._kept)
        for vector in (self._upquery, self._through, self._read, self._kept):
            vector.resize(len(self._index))
        self.held += len(self._index) - known
        self._upquery.cells[slots], self._through.cells[slots], self._read.cells[slots] = upquery, through, read

    def touch(self, slots: Slots, now: int) -> None:
        """These keys are read."""
        self._read.cells[slots] = now

    def sample(self, stride: int, before: int) -> Numbers:
        """When present keys were last read, for those last read before ``before``; looks at every ``stride``-th
        slot."""
        read: Numbers = self._read.cells[::stride][self._can_go(slice(None, None, stride), before - 1)]
        return read

    def read_until(self, cut: int, keys_max: int) -> Hashes:
        """Up to ``keys_max`` present keys that were last read at ``cut`` or before: not always all, but some if there
        are any. The next search goes on where this one ends."""
        found: list[Slots] = []
        count = seen = 0
        while seen < self.slots and count < keys_max and not (count and seen >= SEARCH_SLOTS):
            start = self._hand if self._hand < self.slots else 0
            stop = min(start + GLANCE_SLOTS, self.slots, start + self.slots - seen)
            slots = start + true_at(self._can_go(slice(start, stop), cut))
            found.append(slots[: keys_max - count])
            count += len(found[-1])
            seen += stop - start
            self._hand = stop
        return self._hashes(np.concatenate([np.empty(0, np.int64), *found]))

    def _can_go(self, slots: slice, cut: int) -> Mask:
        """Which of these slots hold a present key that was last read at ``cut`` or before."""
        can_go: Mask = self._kept.cells[slots] & (self._upquery.cells[slots] == PRESENT)
        return can_go & (self._read.cells[slots] <= cut)

    def present(self, least: int, most: int) -> Hashes:
        slots = self._between(least, most)
        return self._hashes(slots[self._upquery.cells[slots] == PRESENT])

    def pending(self, least: int, most: int) -> Hashes:
        slots = self._between(least, most)
        return self._hashes(slots[self._upquery.cells[slots] > PRESENT])

    def hashes_between(self, least: int, most: int) -> Hashes:
        return self._hashes(self._between(least, most))

    def _between(self, least: int, most: int) -> Slots:
        slots = self._index.between(least, most)
        return slots[self._kept.cells[slots]]

    def _hashes(self, slots: Slots) -> Hashes:
        hashes: Hashes = self._index.hashes[slots]
        return hashes

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        slots = self._index.with_hash(keys)
        slots = slots[np.argsort(self._index.hashes[slots])]
        cells = [vector.cells[slots] for vector in (self._upquery, self._through, self._read)]
        columns = [array_of(pa.uint64(), self._index.hashes[slots]), *(array_of(pa.int64(), c) for c in cells)]
        return (pa.RecordBatch.from_arrays(columns, ["hash64", "upquery", "through", "read"]),)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        for batch in state:
            self.put(*(cells_of(column) for column in batch.columns))

    def drop(self, keys: Hashes) -> None:
        slots = self._index.with_hash(keys)
        self._index.forget(slots)
        self._kept.cells[slots] = False
        self.held -= len(slots)


class Presence:
    """What is known of a region's keys at one worker, and when each was last read."""

    def __init__(self, pace: CompactionPace = USUAL) -> None:
        """eagerness: how soon and how fast memory is given back."""
        self._stores = TwoStores(PresenceStore, pace)
        self._last: tuple[Hashes, Look] | None = None
        """The keys of the last look, and how they stand: a lookup looks at the same keys several times."""

    @property
    def known(self) -> int:
        """How many keys are present or pending."""
        return self._stores.held

    @property
    def nbytes(self) -> int:
        return self._stores.nbytes

    @property
    def live_nbytes(self) -> int:
        """The part of ``nbytes`` that known keys take."""
        return self._stores.live_nbytes

    def look(self, keys: Hashes) -> Look:
        """How these keys stand, one for one. The caller must not write to ``keys``."""
        if self._last is not None and self._last[0] is keys:
            return self._last[1]
        look = self._look(keys)
        if len(keys) <= REMEMBERED_KEYS_MAX:
            self._last = keys, look
        return look

    def _look(self, keys: Hashes) -> Look:
        if len(self._stores.all) == 1:
            return self._stores.all[0].look(keys)
        upquery, through = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
        found: list[tuple[PresenceStore, Slots]] = []
        for store, share in self._stores.shares(keys):
            look = store.look(keys[share])
            upquery[share], through[share] = look.upquery, look.through
            found += look.found
        return Look(upquery, through, found)

    def put(self, keys: Hashes, upquery: int, through: Epoch, read: int) -> None:
        """Set how these keys, each named once, stand from now on."""
        self._last = None
        for store, part in self._stores.split_keys(keys):
            store.put(part, upquery, through, read)
        self._stores.tidy()

    def touch(self, keys: Hashes, now: int) -> None:
        """These keys are read now. now: in lookups."""
        for store, slots in self.look(keys).found:
            store.touch(slots, now)

    def oldest(self, keys_max: int, before: int) -> Hashes:
        """Up to ``keys_max`` present keys that were last read before ``before``, ascending. A sample picks those read
        the longest ago. Returns some if there are any."""
        stride = max(1, self._stores.slots // SAMPLE)
        sample = np.sort(np.concatenate([store.sample(stride, before) for store in self._stores.all]))
        seen = keys_max if stride == 1 else max(-(-keys_max // stride), SAMPLE_MIN)
        cut = int(sample[min(len(sample), seen) - 1]) if len(sample) else before - 1
        found: Hashes = np.empty(0, np.uint64)
        for store in self._stores.all:
            found = np.concatenate([found, store.read_until(cut, keys_max - len(found))])
        return np.sort(found)

    def present(self, least: int = 0, most: int = HASH64_MAX) -> Hashes:
        """The present keys with a hash64 from ``least`` to ``most``, in no particular order."""
        return np.concatenate([store.present(least, most) for store in self._stores.all])

    def pending(self, least: int = 0, most: int = HASH64_MAX) -> Hashes:
        """The pending keys, likewise."""
        return np.concatenate([store.pending(least, most) for store in self._stores.all])

    def collect(self, keys: Hashes) -> pa.RecordBatch:
        """What is known of those of these keys (ascending, unique) that are present, for :meth:`install` elsewhere."""
        return self._stores.collect(keys[self.look(keys).present])[0]

    def newest(self, keys: Hashes, keys_max: int) -> Hashes:
        """Up to ``keys_max`` of these present keys (ascending, unique), the most recently read; ascending."""
        known = self.collect(keys)
        hashes, read = cells_of(known.column("hash64")), cells_of(known.column("read"))
        return np.sort(hashes[np.argsort(-read, kind="stable")[:keys_max]])

    def install(self, state: pa.RecordBatch, now: int) -> None:
        """Take over what another worker knew of these keys. Its times of reading, in its lookups, mean nothing here."""
        read = array_of(pa.int64(), np.full(state.num_rows, now, np.int64))
        self.adopt(state.set_column(3, state.schema.field(3), read))

    def adopt(self, state: pa.RecordBatch) -> None:
        """Take over what this worker knew of these keys, the times of reading too."""
        self._last = None
        self._stores.install([state])

    def drop(self, keys: Hashes) -> None:
        """Forget these keys (ascending, unique): they are missing."""
        self._last = None
        self._stores.drop(keys)


class LookupClock:
    """The time of a partial view's keys at one worker, counted in lookups; and what its lookups have come to."""

    __slots__ = ("_evicted", "_looked_up", "_missed", "_now")

    def __init__(self) -> None:
        self._now = 1
        self._looked_up = 0
        self._missed = 0
        self._evicted = 0

    @property
    def now(self) -> int:
        return self._now

    def tick(self) -> int:
        """The next moment."""
        self._now += 1
        return self._now

    def read(self, presence: Presence, keys: Hashes) -> None:
        """A lookup reads these keys, which are present."""
        presence.touch(keys, self.tick())
        self._looked_up += len(keys)

    def want(self, presence: Presence, keys: Hashes, missing: int) -> None:
        """A lookup waits for these keys. missing: how many of them are."""
        presence.touch(keys, self.tick())
        self._missed += missing

    def evict(self, keys: int) -> None:
        """So many keys were evicted."""
        self._evicted += keys

    def oldest(self, presence: Presence, keys_max: int, waiting: Sequence[Hashes]) -> Hashes:
        """Up to ``keys_max`` keys to evict, roughly the least recently read; ascending. waiting: keys that stay."""
        oldest = presence.oldest(keys_max, self._now)
        return np.setdiff1d(oldest, np.concatenate(waiting)) if waiting else oldest

    def stats(self) -> Mapping[str, int]:
        """Since the beginning: keys that lookups have read, filled ones included; keys that were missing when a lookup
        asked for them; evicted keys."""
        return {"looked_up": self._looked_up, "missed": self._missed, "evicted": self._evicted}
