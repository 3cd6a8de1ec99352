"""Unfillable: the keys of a partial view that could not be filled when they were last asked for, and why not.

Each of them is missing; a lookup of it tries again. They are remembered to be counted, and for nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from upriver.engine.row_text import error_text
from upriver.errors import ProtocolError, UpriverError
from upriver.vnodes import vnodes_of
from upriver.xxh64 import Hashes

UNFILLABLE_KEYS_MAX = 65_536
"""Keys that are remembered; with more, the count says so many."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Keys that have no answer, and why."""

    keys: Hashes
    error: UpriverError

    @classmethod
    def because(cls, keys: Hashes, error: Exception) -> "Unanswered":
        """An error of another package is a fault of ours."""
        if isinstance(error, UpriverError):
            return cls(keys, error)
        return cls(keys, ProtocolError(error_text(error)))


class Unfillable:
    """Of one partial view at one worker."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: set[int] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, unanswered: Sequence[Unanswered]) -> None:
        for of_one in unanswered:
            room = max(0, UNFILLABLE_KEYS_MAX - len(self._keys))
            self._keys.update(of_one.keys[:room].tolist())

    def filled(self, keys: Hashes) -> None:
        """These keys are present."""
        if self._keys:
            self._keys.difference_update(keys.tolist())

    def leave(self, vnode: int, vnodes: int) -> None:
        """The vnode's keys are kept elsewhere from now on. vnodes: the lake's."""
        if self._keys:
            keys = np.fromiter(self._keys, np.uint64, len(self._keys))
            self._keys.difference_update(keys[vnodes_of(keys, vnodes) == vnode].tolist())
