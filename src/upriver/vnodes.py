"""Virtual nodes: the top bits of a hash64, and the map that says which worker owns each.

A key's vnode never changes; a rescale changes only the map. The number of vnodes is a power of two, fixed for the
life of a lake, so *sorted by hash64* means *grouped by vnode*.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, groupby, islice, pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from upriver.arguments import whole
from upriver.errors import DeclarationError, ProtocolError
from upriver.hashing import Hashes
from upriver.ids import MapVersion, VnodeId, WorkerId

VNODES_DEFAULT = 256
VNODES_MAX = 65_536

VnodeArray = npt.NDArray[np.int32]
"""Vnodes of rows, one per row."""

_Workers = npt.NDArray[np.int64]
_Integers = npt.NDArray[np.integer[Any]]


def check_vnodes(vnodes: int) -> None:
    """Raise DeclarationError unless ``vnodes`` is a power of two from 1 to 65,536."""
    if not isinstance(vnodes, int) or not 1 <= vnodes <= VNODES_MAX or vnodes & (vnodes - 1):
        raise DeclarationError(f"vnodes must be a power of two from 1 to {VNODES_MAX}, not {vnodes!r}")


def vnodes_of(hash64: Hashes, vnodes: int) -> VnodeArray:
    """The vnode of each hash: its top log2(vnodes) bits."""
    check_vnodes(vnodes)
    if vnodes == 1:  # a shift by all 64 bits has no defined result
        return np.zeros(len(hash64), np.int32)
    return (hash64 >> _vnode_shift(vnodes)).astype(np.int32)


def vnode_range(vnode: int, vnodes: int) -> tuple[int, int]:
    """The least and the highest hash64 of a vnode, for so many vnodes."""
    width = 2**64 // vnodes
    return vnode * width, (vnode + 1) * width - 1


HashRange = tuple[int, int]
"""The least and the highest hash64 of a range, both of them in it."""


@dataclass(frozen=True, slots=True)
class VnodeGroup:
    """The vnodes from ``first`` to before ``behind``, out of ``vnodes``."""

    first: int
    behind: int
    vnodes: int

    @classmethod
    def all(cls, vnodes: int, groups: int) -> tuple[Self, ...]:
        """So many groups of about the same size, in order: each vnode is in one of them.

        Group g begins with vnode ``g * vnodes // groups``. So the groups depend on the two numbers alone, and two reads
        with the same numbers have the same groups. Raises DeclarationError unless 1 <= groups <= vnodes.
        """
        check_vnodes(vnodes)
        if not 1 <= groups <= vnodes:
            raise DeclarationError(f"{groups} partitions: there are 1 to {vnodes}, as many as vnodes at most")
        firsts = [group * vnodes // groups for group in range(groups + 1)]
        return tuple(cls(first, behind, vnodes) for first, behind in pairwise(firsts))

    @property
    def hashes(self) -> HashRange:
        """The hash64 of these vnodes."""
        return vnode_range(self.first, self.vnodes)[0], vnode_range(self.behind - 1, self.vnodes)[1]


def hashes_in(range: HashRange, sorted_hash64: Hashes) -> slice:
    """The places of the hashes in a range. sorted_hash64: ascending as unsigned numbers; this is not checked."""
    least, highest = map(np.uint64, range)
    return slice(int(np.searchsorted(sorted_hash64, least)), int(np.searchsorted(sorted_hash64, highest, "right")))


def offsets_by_vnode(sorted_hash64: Hashes, vnodes: int) -> npt.NDArray[np.int64]:
    """Where each vnode's rows begin, and the end of the last: vnode v has rows ``[offsets[v], offsets[v + 1])``.

    sorted_hash64: ascending as unsigned numbers; this is not checked.
    """
    check_vnodes(vnodes)
    first_hashes = np.arange(1, vnodes, dtype=np.uint64) << _vnode_shift(vnodes)
    inner = np.searchsorted(sorted_hash64, first_hashes)
    return np.concatenate(([0], inner, [len(sorted_hash64)])).astype(np.int64)


def _vnode_shift(vnodes: int) -> np.uint64:
    return np.uint64(64 - (vnodes.bit_length() - 1))


@dataclass(frozen=True)
class VnodeMap:
    """Which worker owns each vnode: ``owners[vnode]``.

    version: how often the map has changed since the first. A map is a value: a change makes another, one version later.
    A map may have any number of vnodes; only hashing requires a power of two.
    """

    version: MapVersion
    owners: tuple[WorkerId, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.owners) <= VNODES_MAX:
            raise DeclarationError(f"a vnode map has 1 to {VNODES_MAX} vnodes, not {len(self.owners)}")
        if min(self.owners) < 0:
            raise DeclarationError(f"a worker id is 0 or more, not {min(self.owners)}")

    @classmethod
    def initial(cls, vnodes: int, workers: Sequence[WorkerId]) -> Self:
        """Version 0: each worker owns one range of vnodes, in order of worker id.

        Raises DeclarationError for no workers, for a worker named twice, and for more workers than vnodes.
        """
        sorted_workers = _sorted_workers(workers, vnodes)
        counts = _even_counts(vnodes, np.zeros(len(sorted_workers), np.int64))
        return cls(MapVersion(0), _as_tuple(np.repeat(sorted_workers, counts)))

    def rebalanced(self, workers: Sequence[WorkerId]) -> Self:
        """The next version, for exactly these workers: even, and with the least possible number of vnodes moved.

        Counts are within one of each other. The result depends only on the map and the set of workers. The same set
        gives this very map, even if moves have made it uneven. Raises as :meth:`initial` does.
        """
        sorted_workers = _sorted_workers(workers, len(self.owners))
        if tuple(sorted_workers.tolist()) == self.workers:
            return self
        return self._next(_as_tuple(_least_moved(self._owners, sorted_workers)))

    def moved(self, moves: Mapping[VnodeId, WorkerId]) -> Self:
        """The next version, with only these vnodes moved; this very map, if that changes nothing.

        Raises DeclarationError for an impossible vnode or worker id; the map does not know whether the workers live.
        """
        owners = list(self.owners)
        for vnode, worker in moves.items():
            if not 0 <= vnode < len(owners):
                raise DeclarationError(f"there is no vnode {vnode}: they are 0 to {len(owners) - 1}")
            owners[vnode] = worker
        return self if tuple(owners) == self.owners else self._next(tuple(owners))

    def keeping(self, before: "VnodeMap", vnodes: Collection[VnodeId]) -> Self:
        """This map, except for these vnodes, which stay where the map ``before`` has them."""
        if not vnodes:
            return self
        owners = list(self.owners)
        for vnode in vnodes:
            owners[vnode] = before.owners[vnode]
        return type(self)(self.version, tuple(owners))

    @cached_property
    def workers(self) -> tuple[WorkerId, ...]:
        """The workers that own any vnode, in order."""
        return tuple(sorted(set(self.owners)))

    def vnodes_of_worker(self, worker: WorkerId) -> tuple[VnodeId, ...]:
        """The worker's vnodes, in order; none if the map does not know the worker."""
        return tuple(map(VnodeId, np.flatnonzero(self._owners == worker).tolist()))

    def owners_of(self, vnodes: _Integers) -> _Workers:
        """The owner of each of ``vnodes``, an array as :func:`vnodes_of` gives it."""
        return self._owners[vnodes]

    def diff(self, other: "VnodeMap") -> dict[VnodeId, tuple[WorkerId, WorkerId]]:
        """The changes from this map to ``other``: by vnode, in order, the owner here and the owner there."""
        if len(self.owners) != len(other.owners):
            raise ProtocolError(f"maps of {len(self.owners)} and of {len(other.owners)} vnodes cannot be compared")
        changed = np.flatnonzero(self._owners != other._owners).tolist()
        return {VnodeId(vnode): (self.owners[vnode], other.owners[vnode]) for vnode in changed}

    def to_json(self) -> dict[str, Any]:
        """``owners`` is run-length encoded: pairs of a worker and how many vnodes in a row it owns."""
        runs = [[worker, len(list(run))] for worker, run in groupby(self.owners)]
        return {"version": self.version, "owners": runs}

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_json`."""
        runs = [(WorkerId(whole("worker", worker)), whole("vnodes", length)) for worker, length in json["owners"]]
        if not all(0 <= worker < 1 << 31 and 0 < length <= VNODES_MAX for worker, length in runs):
            raise ProtocolError(f"owners of vnodes are malformed: {json['owners']!r:.100}")
        owners = tuple(worker for worker, length in runs for _ in range(length))
        return cls(MapVersion(whole("version", json["version"])), owners)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle is the two fields, without the cached properties.
        return type(self), (self.version, self.owners)

    @cached_property
    def _owners(self) -> _Workers:
        owners = np.array(self.owners, np.int64)
        owners.setflags(write=False)
        return owners

    def _next(self, owners: tuple[WorkerId, ...]) -> Self:
        return type(self)(MapVersion(self.version + 1), owners)


@dataclass(frozen=True, slots=True)
class Placement:
    """The workers of an app, and which of them owns each vnode. A worker may own none."""

    workers: tuple[WorkerId, ...]
    vnode_map: VnodeMap

    @classmethod
    def initial(cls, vnodes: int, workers: int) -> Self:
        """So many workers, from 0 on. Raises as :meth:`VnodeMap.initial` does."""
        members = tuple(map(WorkerId, range(workers)))
        return cls(members, VnodeMap.initial(vnodes, members))

    def resized(self, size: int) -> Self:
        """So many workers, and the least possible number of vnodes moved. Raises as :meth:`VnodeMap.initial` does."""
        if size == len(self.workers):
            return self
        workers = resized(self.workers, size)
        return type(self)(workers, self.vnode_map.rebalanced(workers))

    def to_json(self) -> dict[str, Any]:
        return {"workers": list(self.workers), "map": self.vnode_map.to_json()}

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_json`. Raises ProtocolError if a worker that owns a vnode is missing."""
        placement = cls(tuple(map(WorkerId, json["workers"])), VnodeMap.from_json(json["map"]))
        if not set(placement.vnode_map.workers) <= set(placement.workers):
            raise ProtocolError(
                f"workers {placement.vnode_map.workers} own vnodes, and the workers are {placement.workers}"
            )
        return placement


def resized(workers: tuple[WorkerId, ...], size: int | None) -> tuple[WorkerId, ...]:
    """So many workers; ``None``: these. The lowest free ids join, the highest leave."""
    if size is None:
        return workers
    free = (WorkerId(number) for number in count() if number not in workers)
    return tuple(sorted([*workers[: max(0, size)], *islice(free, max(0, size - len(workers)))]))


def _sorted_workers(workers: Sequence[WorkerId], vnodes: int) -> _Workers:
    if not 1 <= len(workers) <= vnodes:
        raise DeclarationError(f"{vnodes} vnodes can be spread over 1 to {vnodes} workers, not over {len(workers)}")
    if len(set(workers)) != len(workers):
        raise DeclarationError(f"a worker is named twice: {sorted(workers)}")
    return np.array(sorted(workers), np.int64)


def _even_counts(vnodes: int, held: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many vnodes each worker should own, given how many each holds: within one of each other.

    Workers that hold more than the lower count get the higher count first: each of them then gives up one vnode less.
    For any other worker the higher count saves no move.
    """
    lower, higher_places = divmod(vnodes, len(held))
    counts = np.full(len(held), lower, np.int64)
    holders_first = np.argsort(held <= lower, kind="stable")
    counts[holders_first[:higher_places]] += 1
    return counts


def _least_moved(owners: _Workers, workers: _Workers) -> _Workers:
    """Even ``owners`` out over ``workers`` (sorted): each keeps its lowest vnodes, up to its count. The others go to
    the workers below their count, in order of vnode and worker.

    So the vnodes moved are V - sum(min(c, q)) - min(r, how many c > q), over the counts c of the workers that stay,
    where q, r = divmod(V, workers). Fewer is impossible.
    """
    places = np.minimum(np.searchsorted(workers, owners), len(workers) - 1)
    stays = workers[places] == owners
    held = np.bincount(places[stays], minlength=len(workers))
    counts = _even_counts(len(owners), held)

    by_owner = np.argsort(np.where(stays, places, len(workers)), kind="stable")[: held.sum()]
    ranks = np.arange(len(by_owner)) - np.repeat(np.cumsum(held) - held, held)
    kept = by_owner[ranks < counts[places[by_owner]]]
    moving = np.ones(len(owners), np.bool_)
    moving[kept] = False

    balanced = owners.copy()
    balanced[moving] = np.repeat(workers, np.maximum(counts - held, 0))
    return balanced


def _as_tuple(owners: _Workers) -> tuple[WorkerId, ...]:
    return tuple(map(WorkerId, owners.tolist()))
