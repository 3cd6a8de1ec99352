"""Pending changes: how the rows of a view looked before each epoch that has changed them, until the change log has it.

A region of a logged view notes the *image* of a key, its rows in the view, before an epoch first changes it. At a cut
the worker compares each image with the next one, or with the rows as they are: the differences are the key's changes
in each version. Images are state of the region like any other. They move with their key, and are in checkpoints and in
copies for followers. So the worker that has the key at the cut knows all of its changes, however often the key has
moved, and whatever was lost meanwhile (``docs/internals/changes.md``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.engine.batch import Batch, one_batch
from upriver.engine.change_kinds import ChangeKind, Kinds, in_kinds
from upriver.engine.operators.gather import Gather
from upriver.engine.operators.operator import consolidated
from upriver.errors import ProtocolError
from upriver.hashing import HASH64_MAX, Hashes, hash64
from upriver.ids import Epoch
from upriver.state.columns import array_of, canonical, cells_of
from upriver.state.indexes import first_equal
from upriver.state.vectors import NO_KEYS, Mask, Positions, contains, key_set, true_at

Versions = npt.NDArray[np.int64]
ReadKeys = Callable[[Hashes, Sequence[pa.Array]], pa.RecordBatch]
"""Reads the view's rows of these keys."""


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Changes of a view, in the order of their versions, and among those of one version of the key's hash64.

    kinds: a :class:`ChangeKind` for each row.
    """

    rows: pa.RecordBatch
    hash64: Hashes
    versions: Versions
    kinds: Kinds

    def __len__(self) -> int:
        return int(self.rows.num_rows)


class PendingChanges:
    """Keeps images by key. A key that had no rows has an image without rows: ``_keys`` has it, and ``_rows`` none."""

    __slots__ = ("_before", "_key", "_keys", "_noted", "_rows", "_version", "_view", "logged")

    def __init__(self, key: Sequence[str], view: pa.Schema, routing_key: pa.Schema) -> None:
        """key: the view's key, columns of ``view``, with the values of the routing key, in its order; no column: all
        rows have one key. routing_key: the columns by whose hash64 the region is kept."""
        self.logged: Epoch | None = None
        """The version through which the log has the changes; ``None`` before the log begins: nothing is noted then."""
        self._key = tuple(key)
        self._view = view
        self._version = Epoch(0)
        """The epoch that rows come of."""
        self._keys = Gather(_with_version(routing_key))
        self._rows = Gather(_with_version(view))
        self._noted: _NotedKeys | None = None
        """The keys with an image of before this version; ``None`` if that must be looked up."""

    # Noting

    def begin(self, version: Epoch) -> None:
        """Rows of this epoch come from now on."""
        if version != self._version:
            self._version, self._noted = version, None

    def note(self, hashes: Hashes, keys: Sequence[pa.Array], read: ReadKeys) -> None:
        """These keys are about to change. hashes, keys: of each row that changes them."""
        if self.logged is None or self._version <= self.logged:
            return
        if self._noted is None:
            self._noted = self._noted_now()
        new = self._noted.add(hashes, keys)
        if not len(new):
            return
        places = pa.array(new)
        some, columns = hashes[new], [column.take(places) for column in keys]
        image = read(some, columns)
        self._keys.add(Batch(self._dated(columns, len(new), self._keys.schema), some))
        if image.num_rows:
            of_rows = _hashes([image.column(name) for name in self._key], image.num_rows, some)
            self._rows.add(Batch(self._dated(image.columns, image.num_rows, self._rows.schema), of_rows))

    def _dated(self, columns: Sequence[pa.Array], rows: int, schema: pa.Schema) -> pa.RecordBatch:
        version = array_of(pa.int64(), np.full(rows, self._version, np.int64))
        return pa.RecordBatch.from_arrays([version, *columns], schema=schema)

    def _noted_now(self) -> "_NotedKeys":
        noted = _NotedKeys()
        kept = _all(self._keys)
        of_this = _versions(kept) == self._version
        if of_this.any():
            entries = kept.filtered(of_this)
            noted.add(entries.hash64, entries.rows.columns[1:])
        return noted

    def _after_logged(self, gather: Gather) -> Batch:
        """The rows of later versions than the logged one; they stay."""
        kept = _all(gather)
        return kept if self.logged is None else kept.filtered(_versions(kept) > self.logged)

    # The log

    def log_through(self, version: Epoch | None) -> None:
        """The log has the changes through this version: their images go."""
        self.logged = version
        for gather in (self._keys, self._rows):
            kept = gather.take(HASH64_MAX)
            if kept is not None and version is not None:
                gather.add(kept.filtered(_versions(kept) > version))
        self._noted = None

    def changes(self, read: ReadKeys) -> ChangedRows:
        """All changes after the logged version. read: reads the rows as they are now."""
        keys, images = self._after_logged(self._keys), self._after_logged(self._rows)
        if not len(keys):
            return _no_changes(self._view)
        place = {name: number for number, name in enumerate(self._view.names)}
        return _differences(_Images(self._view, [place[name] for name in self._key], keys, images), read)

    def all_inserted(self, rows: pa.Table, hashes: Hashes, version: Epoch) -> ChangedRows:
        """All rows of the view, in order of their hash64, as inserts. hashes: of their keys."""
        batch = one_batch([pa.RecordBatch.from_pylist([], self._view), *rows.to_batches()])
        of_rows = _hashes([batch.column(name) for name in self._key], batch.num_rows, hashes)
        versions, kinds = np.full(len(of_rows), version, np.int64), np.full(len(of_rows), ChangeKind.INSERT, np.int8)
        return ChangedRows(batch, of_rows, versions, kinds)

    # As a keeper of a region

    parts = 2

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._rows.nbytes

    @property
    def live_nbytes(self) -> int:
        return self.nbytes

    def hashes_between(self, least: int, most: int) -> Hashes:
        return self._keys.hashes_between(least, most)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """The images of these keys, ascending and unique. They stay here, too."""
        return self._keys.collect(keys), self._rows.collect(keys)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        """Add images that were collected elsewhere."""
        for gather, part in zip((self._keys, self._rows), state, strict=True):
            gather.install(part)
        self._noted = None

    def drop(self, keys: Hashes) -> None:
        """Forget the images of these keys."""
        self._keys.drop(keys)
        self._rows.drop(keys)
        self._noted = None


class _NotedKeys:
    """A set of keys."""

    __slots__ = ("_chunks", "_hashes")

    def __init__(self) -> None:
        self._hashes: Hashes = NO_KEYS
        """Of all keys, ascending."""
        self._chunks: list[tuple[Hashes, list[pa.Array]]] = []

    def add(self, hashes: Hashes, keys: Sequence[pa.Array]) -> Positions:
        """Add the keys of these rows. Returns the first row of each key that was not in the set."""
        columns = [canonical(column) for column in keys]
        new = np.unique(first_equal(hashes, columns))
        may_be_known = contains(self._hashes, hashes[new])
        if may_be_known.any():
            new = new[~self._are_known(hashes, columns, new, may_be_known)]
        if len(new):
            places = pa.array(new)
            self._chunks.append((hashes[new], [column.take(places) for column in columns]))
            self._hashes = key_set(self._hashes, hashes[new])
        return new

    def _are_known(self, hashes: Hashes, columns: Sequence[pa.Array], new: Positions, doubted: Mask) -> Mask:
        """Which of the rows ``new`` have a key of the set. doubted: those whose hash has one."""
        rows = new[doubted]
        wanted = key_set(hashes[rows])
        near = [(of, cells, true_at(contains(wanted, of))) for of, cells in self._chunks]
        known = sum(len(places) for _, _, places in near)
        all_hashes = np.concatenate([*(of[places] for of, _, places in near), hashes[rows]])
        all_columns = [
            pa.concat_arrays(
                [*(cells[number].take(pa.array(places)) for _, cells, places in near), column.take(pa.array(rows))]
            )
            for number, column in enumerate(columns)
        ]
        found: Mask = np.zeros(len(new), np.bool_)
        found[doubted] = first_equal(all_hashes, all_columns)[known:] < known
        return found


@dataclass(frozen=True)
class _Images:
    """The images of some keys. view: of their rows. key: the places of the key's columns in it. keys, rows: as in
    :class:`PendingChanges`, each behind its version."""

    view: pa.Schema
    key: Sequence[int]
    keys: Batch
    rows: Batch

    @cached_property
    def numbers(self) -> Positions:
        """For each image, the number of the first image of the same key."""
        return first_equal(self.keys.hash64, [canonical(column) for column in self.keys.rows.columns[1:]])

    def numbers_of(self, hashes: Hashes, rows: Sequence[pa.Array]) -> Positions:
        """As ``numbers``, for rows of the view. Raises ProtocolError for a row of another key."""
        if not self.key:
            return np.zeros(len(hashes), np.int64)
        columns = [
            canonical(pa.concat_arrays([column, rows[place]]))
            for column, place in zip(self.keys.rows.columns[1:], self.key, strict=True)
        ]
        found = first_equal(np.concatenate([self.keys.hash64, hashes]), columns)[len(self.keys) :]
        if len(found) and int(found.max()) >= len(self.keys):
            raise ProtocolError("a row of a key that has no image was found among its changes")
        return found


def _differences(images: _Images, read: ReadKeys) -> ChangedRows:
    """Compare each image with the next of its key, or with the rows as they are."""
    numbers, versions = images.numbers, _versions(images.keys)
    one_each = pa.array(np.unique(numbers))
    now = read(images.keys.hash64[one_each.to_numpy()], [c.take(one_each) for c in images.keys.rows.columns[1:]])
    now_hashes = _hashes([now.column(place) for place in images.key], now.num_rows, images.keys.hash64)
    # The images in order: those of one key after each other, and by version.
    order = np.lexsort((versions, numbers))
    numbers, versions = numbers[order], versions[order]
    codes = _code(numbers, versions, versions)
    follows = np.concatenate([[False], numbers[1:] == numbers[:-1]])
    before = np.where(follows, np.concatenate([[-1], versions[:-1]]), -1)
    """The version of the image before, which this one shows the end of."""
    image_versions = _versions(images.rows)
    of_images = images.numbers_of(images.rows.hash64, images.rows.rows.columns[1:])
    ended = before[np.searchsorted(codes, _code(of_images, image_versions, versions))]
    last = versions[np.searchsorted(numbers, images.numbers_of(now_hashes, now.columns), side="right") - 1]
    weight = np.ones(len(images.rows), np.int64) if images.rows.weight is None else images.rows.weight
    ends = true_at(ended >= 0)
    image_rows = pa.RecordBatch.from_arrays(images.rows.rows.columns[1:], schema=images.view)
    rows = pa.concat_batches(
        [image_rows, image_rows.take(pa.array(ends)), pa.RecordBatch.from_arrays(now.columns, schema=images.view)]
    )
    dated = [array_of(pa.int64(), np.concatenate([image_versions, ended[ends], last])), *rows.columns]
    net = consolidated(
        Batch(
            pa.RecordBatch.from_arrays(dated, [str(place) for place in range(len(dated))]),
            np.concatenate([images.rows.hash64, images.rows.hash64[ends], now_hashes]),
            np.concatenate([-weight, weight[ends], np.ones(now.num_rows, np.int64)]),
        )
    )
    return _in_kinds(net, images)


def _code(numbers: Positions, versions: Versions, all_versions: Versions) -> Positions:
    """One number for a key's number and a version, in the same order."""
    known = np.unique(all_versions)
    return numbers * len(known) + np.searchsorted(known, versions)


def _in_kinds(net: Batch, images: _Images) -> ChangedRows:
    """Pair the rows that go with those that come, of each key and version."""
    weight = np.ones(len(net), np.int64) if net.weight is None else net.weight
    places = np.repeat(np.arange(len(net)), np.abs(weight))
    versions, hashes = _versions(net)[places], net.hash64[places]
    numbers = images.numbers_of(net.hash64, net.rows.columns[1:])[places]
    order = np.lexsort((numbers, hashes, versions))
    groups = np.empty(len(order), np.int64)
    groups[order] = np.cumsum(_begins(versions[order], numbers[order]))
    in_turn, kinds = in_kinds(groups, (weight > 0)[places])
    taken = net.rows.take(pa.array(places[in_turn]))
    rows = pa.RecordBatch.from_arrays(taken.columns[1:], schema=images.view)
    return ChangedRows(rows, hashes[in_turn], versions[in_turn], kinds)


def _begins(versions: Versions, numbers: Positions) -> Mask:
    """Whether a row is the first of its version and key; those of one are neighbours."""
    begins = np.ones(len(numbers), np.bool_)
    begins[1:] = (versions[1:] != versions[:-1]) | (numbers[1:] != numbers[:-1])
    return begins


def _hashes(key: Sequence[pa.Array], rows: int, of_keys: Hashes) -> Hashes:
    """The hash64 of rows of the view. of_keys: of their keys, one or more."""
    return hash64(key, rows) if key or not rows else np.full(rows, of_keys[0], np.uint64)


def _no_changes(view: pa.Schema) -> ChangedRows:
    rows = pa.RecordBatch.from_pylist([], view)
    return ChangedRows(rows, NO_KEYS, np.empty(0, np.int64), np.empty(0, np.int8))


def _all(gather: Gather) -> Batch:
    """All rows, which stay."""
    part = gather.collect(key_set(gather.hashes_between(0, HASH64_MAX)))
    hashes, weight, *columns = part.columns
    return Batch(pa.RecordBatch.from_arrays(columns, schema=gather.schema), cells_of(hashes), cells_of(weight))


def _versions(rows: Batch) -> Versions:
    versions: Versions = cells_of(rows.rows.column(0))
    return versions


def _with_version(schema: pa.Schema) -> pa.Schema:
    """Behind a version, with numbers in place of names, which may be the same as those of others."""
    fields = [pa.field(str(number), field.type) for number, field in enumerate(schema, start=1)]
    return pa.schema([pa.field("0", pa.int64()), *fields])
