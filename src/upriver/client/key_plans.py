"""The short way of a single key to its owner: what a view's key type makes of a value is decided once.

A key of numbers, texts and nulls is hashed as it is, without an Arrow array. Any other key, and any value that the
column may not hold, takes the long way (:mod:`.keys`), which finds the same hash or says what is wrong.
"""

import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from xxhash import xxh64_intdigest

from upriver.client.lookup_lines import ShortKey
from upriver.hashing import HASH_SEED
from upriver.ids import WorkerId
from upriver.plan.schemas import EVERYTHING_KEY
from upriver.protocol.lookups import Routing, ViewRoute

SHORT_CHARS_MAX = 1_000
"""Characters of a text that takes the short way."""

Pack = Callable[[Any], bytes]
"""The bytes that are hashed of a value. Raises ``_FAULTS`` for one that takes the long way."""

_FAULTS = (TypeError, ValueError, struct.error)
_SEED = int(HASH_SEED)


def _pack_whole(bits: int) -> Pack:
    pack = struct.Struct("<q" if bits == 64 else "<i").pack
    least, highest = -(1 << bits - 1), (1 << bits - 1) - 1

    def packed(value: Any) -> bytes:
        if type(value) is not int or not least <= value <= highest:
            raise ValueError
        return pack(value)

    return packed


def _pack_text(value: Any) -> bytes:
    if type(value) is not str or len(value) > SHORT_CHARS_MAX:
        raise ValueError
    return value.encode()


_PACKS: tuple[tuple[pa.DataType, Pack], ...] = (
    (pa.int8(), _pack_whole(8)),
    (pa.int16(), _pack_whole(16)),
    (pa.int32(), _pack_whole(32)),
    (pa.int64(), _pack_whole(64)),
    (pa.string(), _pack_text),
)


class KeyPlan:
    """How keys of one view are asked for, by one routing."""

    __slots__ = ("_owners", "_packs", "_shift", "route", "routing")

    def __init__(self, route: ViewRoute, routing: Routing) -> None:
        self.route = route
        self.routing = routing
        packs = [next((pack for known, pack in _PACKS if known == type), None) for type in route.key_schema.types]
        self._packs: list[Pack] | None = None
        if route.key_schema != EVERYTHING_KEY:
            known = [pack for pack in packs if pack is not None]
            self._packs = known if len(known) == len(packs) else None
        self._owners = routing.vnode_map.owners
        self._shift = 64 - (len(self._owners).bit_length() - 1)

    def short(self, key: Any) -> ShortKey | None:
        """The key as it goes the short way; ``None`` if it does not."""
        packs = self._packs
        if packs is None:
            return None
        if len(packs) == 1:
            values: tuple[Any, ...] = (key,)
        elif type(key) is tuple and len(key) == len(packs):
            values = key
        else:
            return None
        hash = _SEED
        try:
            for value, pack in zip(values, packs, strict=True):
                if value is not None:
                    hash = xxh64_intdigest(pack(value), hash)
        except _FAULTS:
            return None
        return ShortKey(values, hash)

    def owner_of(self, key: ShortKey) -> WorkerId:
        """The worker that answers for the key."""
        return self._owners[key.hash >> self._shift]
