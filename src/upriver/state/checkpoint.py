"""Checkpoints: the state of regions as of the end of one epoch, in chunks, each of some keys.

Rules checkpoints.*: ``docs/internals/checkpoints.md``.

A checkpoint has the keys that have changed since its *base*, the checkpoint before it, or all of them if it has no
base. So a *chain* of checkpoints, newest first, each with the next one as its base, has all keys. The state of a key is
in the newest checkpoint that names it. Neither the worker that wrote a chunk nor its vnode map matters: a chunk names
its keys by hash64. A chunk is written as Arrow IPC streams of one batch each, one after another: first its keys, then
its parts.

ChangedKeys: which keys of a region have changed since the last checkpoint, and which of them are not copied yet for the
next one. A checkpoint is as of the end of an epoch, and is copied while the next epochs flow: so a key is copied before
it changes, or when there is time, whichever comes first (rule checkpoints.copy_before_change).

SliceLog: which keys of some slices are still to copy to a follower: at first all, then those that have changed. A copy
of a key may be as of any moment: a later change is logged, and the key is copied again. If nothing is left to copy at
the end of an epoch, a follower that has all copies has the slices as of that end.

Undo: the state of a region's keys before the open epoch changed them. With it a worker restores the region as if that
epoch had never been opened (rule replication.put_back in ``docs/internals/standbys.md``).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from upriver.errors import ProtocolError
from upriver.hashing import Hashes
from upriver.ids import Epoch, Hash64, VnodeId
from upriver.state.failure import ViewFailure
from upriver.state.vectors import NO_KEYS, Mask, contains, key_set, true_at
from upriver.vnodes import vnodes_of

_KEYS = pa.schema([pa.field("hash64", pa.uint64(), nullable=False)])


@dataclass(frozen=True, slots=True)
class StateChunk:
    """The state of some keys in a region.

    keys: their hash64, ascending and unique. parts: as a region collects them, each with the hash64 of its rows' key in
    its first column. A key without a row in any part has no state any more.
    """

    keys: Hashes
    parts: tuple[pa.RecordBatch, ...]

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + sum(int(part.nbytes) for part in self.parts)

    def among(self, vnodes: Collection[VnodeId], count: int) -> "StateChunk":
        """The part of it with keys of these vnodes. count: the lake's."""
        wanted = np.zeros(count, np.bool_)
        wanted[list(vnodes)] = True
        mask = wanted[vnodes_of(self.keys, count)]
        if mask.all():
            return self
        keys = self.keys[mask]
        return StateChunk(keys, tuple(_rows_of(part, keys) for part in self.parts))


@dataclass(frozen=True, slots=True)
class Span:
    """Where a chunk is in its file, in bytes, and the range of its keys' hash64."""

    offset: int
    length: int
    least: Hash64
    most: Hash64


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile:
    """One worker's chunks of one region in one checkpoint. name: of the file, in the checkpoint's directory. keys: how
    many the chunks name. checksum: of each chunk, in the order of ``spans``."""

    name: str
    region: str
    keys: int
    nbytes: int
    spans: tuple[Span, ...]
    checksums: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint. epoch: all regions are as of its end. base: the epoch of the checkpoint before it.

    regions: those whose state it has, each with the fingerprint of the plan that the state belongs to. keys: how many
    all files name. failed: the views that had failed, by name; their state in it is useless.
    """

    epoch: Epoch
    base: Epoch | None
    regions: Mapping[str, str]
    files: tuple[StateFile, ...]
    failed: Mapping[str, ViewFailure] = field(default_factory=dict)

    @property
    def keys(self) -> int:
        return sum(file.keys for file in self.files)


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """Where the checkpoints of one flow are, and how their records name its views and regions.

    name: of the directory. It follows from the plans of the flow without their names. views: the flow's views. The
    records give a view by its number among these, and the region ``view/2`` as ``number/2``. So a view that is renamed
    finds its state.
    """

    name: str
    views: tuple[str, ...]

    def to_record(self, name: str) -> str:
        """The name of a view or a region as records have it. Raises ProtocolError if it is not of this flow."""
        view, slash, rest = name.partition("/")
        if view not in self.views:
            raise ProtocolError(f"{name!r} is of no view whose checkpoints are in {self.name}")
        return f"{self.views.index(view)}{slash}{rest}"

    def from_record(self, name: str) -> str:
        """The inverse of :meth:`to_record`. Raises ValueError, AttributeError or LookupError for anything else."""
        number, slash, rest = name.partition("/")
        if not (number.isascii() and number.isdecimal()):
            raise ValueError(f"{name!r} names no view or region")
        return f"{self.views[int(number)]}{slash}{rest}"


@dataclass(frozen=True, slots=True)
class FoundCheckpoints:
    """What a flow begins with. place: where its checkpoints are; ``None`` if all its views are partial, so that no
    checkpoint has state of them. chain: the checkpoints from which workers restore its state, newest first."""

    place: CheckpointPlace | None = None
    chain: tuple[Checkpoint, ...] = ()


def encode_chunk(chunk: StateChunk, sink: pa.NativeFile) -> Span:
    """Write a chunk of at least one key. Returns where it is. Raises ProtocolError for keys that are not in order."""
    keys, offset = chunk.keys, sink.tell()
    if not len(keys) or not (keys[:-1] < keys[1:]).all():
        raise ProtocolError(f"{len(keys)} keys, not ascending, in a chunk of a checkpoint")
    named = pa.RecordBatch.from_arrays([pa.array(keys, pa.uint64())], schema=_KEYS)
    for batch in (named, *chunk.parts):
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
    return Span(offset, sink.tell() - offset, Hash64(int(keys[0])), Hash64(int(keys[-1])))


def decode_chunk(encoded: pa.Buffer) -> StateChunk:
    """The inverse of :func:`encode_chunk`; no copy is made. Raises ValueError or OSError for anything else."""
    source = pa.BufferReader(encoded)
    batches: list[pa.RecordBatch] = []
    while source.tell() < source.size():
        with pa.ipc.open_stream(source) as reader:
            batches += reader
    named, *parts = batches
    if not named.schema.equals(_KEYS):
        raise ValueError("it names no keys")
    return StateChunk(named.column(0).to_numpy(), tuple(parts))


def merged(chunks: Sequence[StateChunk]) -> StateChunk:
    """One chunk out of at least one, of a region and of different keys. Raises ProtocolError for a key that two of them
    name."""
    if len(chunks) == 1:
        return chunks[0]
    keys = _in_order([chunk.keys for chunk in chunks])
    if (keys[1:] == keys[:-1]).any():
        raise ProtocolError("a key is in two chunks of one checkpoint")
    return StateChunk(keys, tuple(map(pa.concat_batches, zip(*(chunk.parts for chunk in chunks), strict=True))))


def newest_of(
    checkpoints: Iterable[Iterable[StateChunk]], vnodes: Iterable[VnodeId], count: int
) -> Iterator[StateChunk]:
    """The state of the keys of these vnodes, out of the chunks of a chain, newest checkpoint first.

    count: the lake's vnodes. No two of the returned chunks have state of one key.
    """
    wanted = np.zeros(count, np.bool_)
    wanted[list(vnodes)] = True
    known = NO_KEYS
    for chunks in checkpoints:
        named = [known]
        for chunk in chunks:
            mine = chunk.keys[wanted[vnodes_of(chunk.keys, count)]]
            fresh = mine[~contains(known, mine)]
            named.append(fresh)
            if len(fresh):
                yield StateChunk(fresh, tuple(_rows_of(part, fresh) for part in chunk.parts))
        known = _in_order(named)


def _in_order(sets: Sequence[Hashes]) -> Hashes:
    """All keys of disjoint sets: a merge, ten times faster than ``key_set`` for a million."""
    return np.sort(np.concatenate(sets), kind="stable")


def _rows_of(part: pa.RecordBatch, keys: Hashes) -> pa.RecordBatch:
    mask = contains(keys, part.column(0).to_numpy())
    return part if mask.all() else part.filter(pa.array(mask))


LOGGED_MIN = 65_536
"""Hashes that are logged before repeats are removed."""


class ChangedKeys:
    """The keys of one region at one worker, by hash64. Rules checkpoints.copy_before_change,
    checkpoints.moved_keys_change and checkpoints.dropped_have_changed: ``docs/internals/checkpoints.md``."""

    __slots__ = ("_cursor", "_cut", "_is_copied", "_logged", "_repeats_due", "_since")

    def __init__(self) -> None:
        self._logged: list[Hashes] = []
        """Keys that have changed since the last cut, in any order and with repeats."""
        self._since = 0
        """How many hashes are in the log."""
        self._repeats_due = LOGGED_MIN
        self._cut: Hashes = NO_KEYS
        """The keys of the checkpoint that is being taken, ascending and unique."""
        self._is_copied: Mask = np.empty(0, np.bool_)
        """For each key of the cut, whether it is copied."""
        self._cursor = 0
        """All keys of the cut before this place are copied."""

    @property
    def left(self) -> bool:
        """Whether keys of the cut are not copied yet."""
        return self._cursor < len(self._cut)

    @property
    def logged(self) -> int:
        """How many keys have changed since the last cut, or a little more."""
        return self._since

    def note(self, hashes: Hashes) -> None:
        """Note that these keys change, or are gone."""
        if not len(hashes):
            return
        fresh = hashes[true_at(hashes[1:] != hashes[:-1])]  # batches are sorted: most repeats are neighbours
        self._logged += [fresh, hashes[-1:]]
        self._since += len(fresh) + 1
        if self._since > self._repeats_due:
            self._logged = [key_set(*self._logged)]
            self._since = len(self._logged[0])
            self._repeats_due = max(LOGGED_MIN, 2 * self._since)

    def cut(self, everything: Hashes | None = None) -> None:
        """Take a checkpoint at this point: of the keys that have changed since the last one, or of ``everything``,
        ascending and unique."""
        self._cut = key_set(*self._logged) if everything is None else everything
        self._logged, self._since, self._repeats_due = [], 0, LOGGED_MIN
        self._is_copied, self._cursor = np.zeros(len(self._cut), np.bool_), 0

    def before(self, hashes: Hashes) -> Hashes:
        """The keys, of those about to change, that must be copied first; they count as copied. Ascending, unique."""
        if not self.left:
            return NO_KEYS
        touched = key_set(hashes)
        mine = touched[contains(self._cut, touched)]
        places = np.searchsorted(self._cut, mine)
        due = mine[~self._is_copied[places]]
        self._is_copied[places] = True
        return due

    def next(self, keys_max: int) -> Hashes:
        """Up to so many keys to copy now; they count as copied. Ascending, unique."""
        due: list[Hashes] = []
        wanted = keys_max
        while wanted > 0 and self.left:
            end = min(self._cursor + wanted, len(self._cut))
            due.append(self._cut[self._cursor : end][~self._is_copied[self._cursor : end]])
            self._is_copied[self._cursor : end] = True
            wanted -= len(due[-1])
            self._cursor = end
        return np.concatenate(due) if due else NO_KEYS

    def keep(self) -> None:
        """The checkpoint is kept: the next one need not have its keys."""
        self._cut, self._is_copied, self._cursor = NO_KEYS, np.empty(0, np.bool_), 0

    def drop(self) -> None:
        """The checkpoint is given up: its keys still count as changed."""
        self.note(self._cut)
        self.keep()


ALL_KEYS = 2**63 - 1
PASS_KEYS_MIN = 4_096
"""Keys that have changed while others were copied: up to so many wait for the epoch's end."""


class SliceLog:
    """The log of one region at one worker, for one follower."""

    __slots__ = ("_changes", "_mine")

    def __init__(self, vnodes: Collection[VnodeId], count: int, everything: Hashes) -> None:
        """count: the lake's vnodes. everything: the keys of these that have state by now, ascending and unique."""
        self._mine = np.zeros(count, np.bool_)
        self._mine[list(vnodes)] = True
        self._changes = ChangedKeys()
        self._changes.cut(everything[self._of_mine(everything)])

    def note(self, hashes: Hashes) -> None:
        """Note that these keys change; some may belong to other slices."""
        self._changes.note(hashes[self._of_mine(hashes)])

    @property
    def is_in_pass(self) -> bool:
        """Whether keys are left of a pass that has begun."""
        return self._changes.left

    @property
    def left(self) -> bool:
        """Whether keys must be copied before the next epoch's end."""
        return self._changes.left or self._changes.logged >= PASS_KEYS_MIN

    def next(self, keys_max: int) -> Hashes:
        """Up to so many of these keys. Ascending, unique."""
        if not self._changes.left:
            self._changes.cut()
        return self._kept(self._changes.next(keys_max))

    def rest(self) -> Hashes:
        """At the end of an epoch, when none are left before it: all keys that have changed. Ascending, unique."""
        self._changes.cut()
        return self._kept(self._changes.next(ALL_KEYS))

    def keep_only(self, vnodes: Collection[VnodeId]) -> None:
        """Keep only these slices; the others have no follower any more."""
        kept = np.zeros(len(self._mine), np.bool_)
        kept[list(vnodes)] = True
        self._mine &= kept

    def _kept(self, keys: Hashes) -> Hashes:
        return keys[self._of_mine(keys)]

    def _of_mine(self, hashes: Hashes) -> Mask:
        mine: Mask = self._mine[vnodes_of(hashes, len(self._mine))]
        return mine


class Undo:
    """The undo log of one region at one worker. Takes as much memory as the state of the keys that one epoch
    changes."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: list[StateChunk] = []
        """No two chunks name the same key."""

    def unsaved(self, hashes: Hashes) -> Hashes:
        """The keys, of those about to change, that are not saved. Ascending, unique."""
        keys = key_set(hashes)
        for chunk in self._chunks:
            if not len(keys):
                break
            if chunk.keys[0] <= keys[-1] and keys[0] <= chunk.keys[-1]:  # an epoch is in order: few overlap
                keys = keys[~contains(chunk.keys, keys)]
        return keys

    def save(self, chunk: StateChunk) -> None:
        """Save the state of some keys before they change; only keys that :meth:`unsaved` has named."""
        if len(chunk.keys):
            self._chunks.append(chunk)

    def take(self) -> list[StateChunk]:
        """All saved chunks. They are forgotten here."""
        chunks, self._chunks = self._chunks, []
        return chunks

    def forget(self) -> None:
        """The epoch is over: the region never goes back before its end."""
        self._chunks.clear()

    @property
    def nbytes(self) -> int:
        return int(np.sum([chunk.nbytes for chunk in self._chunks], dtype=np.int64))
