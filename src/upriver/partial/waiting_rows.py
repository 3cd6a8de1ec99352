"""Rows of a partial region that wait: of present keys until a lookup reads them, of pending keys for their upquery."""

from dataclasses import dataclass

import numpy as np

from upriver.engine.batch import Batch
from upriver.hashing import Hashes
from upriver.ids import Epoch
from upriver.partial.presence import Presence

RETAINED_ROWS_MAX = 1_000_000
"""Rows of pending keys that are retained; with more, the keys are given up and asked for again."""
BEHIND_ROWS_MAX = 4_096
"""Rows of present keys that wait to be applied; with more, they are due."""


class RowsBehind:
    """By port, rows of present keys that are not applied yet, in the order in which they came."""

    __slots__ = ("_batches", "_keys", "_known")

    def __init__(self) -> None:
        self._batches: list[tuple[int, Batch]] = []
        self._keys: set[int] = set()
        """The hash64 of the first ``_known`` of these batches."""
        self._known = 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def are_due(self) -> bool:
        """Whether there are more than ``BEHIND_ROWS_MAX``."""
        return sum(len(batch) for _, batch in self._batches) > BEHIND_ROWS_MAX

    def add(self, port: int, batch: Batch) -> None:
        self._batches.append((port, batch))

    def has_some_of(self, keys: Hashes) -> bool:
        """Whether rows of some of these keys wait."""
        for _, batch in self._batches[self._known :]:
            self._keys.update(batch.hash64.tolist())
        self._known = len(self._batches)
        return not self._keys.isdisjoint(keys.tolist())

    def take(self) -> list[tuple[int, Batch]]:
        """Remove and return all of them."""
        batches = self._batches
        self._replace([])
        return batches

    def drop(self, keys: Hashes) -> None:
        """Remove the rows of these keys."""
        if self._batches:
            others = [(port, batch.filtered(~np.isin(batch.hash64, keys))) for port, batch in self._batches]
            self._replace([(port, batch) for port, batch in others if len(batch)])

    def _replace(self, batches: list[tuple[int, Batch]]) -> None:
        self._batches, self._keys, self._known = batches, set(), 0


@dataclass(frozen=True, slots=True)
class Retained:
    """Rows of pending keys, of an epoch that their upquery does not read."""

    epoch: Epoch
    port: int
    batch: Batch


class RetainedRows:
    """Rows of pending keys, in the order in which they came. rows_max: see ``RETAINED_ROWS_MAX``."""

    __slots__ = ("_batches", "_rows", "_rows_max")

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._batches: list[Retained] = []
        self._rows = 0

    @property
    def are_too_many(self) -> bool:
        """Whether there are more than ``rows_max``."""
        return self._rows > self._rows_max

    def add(self, rows: Retained) -> None:
        self._batches.append(rows)
        self._rows += len(rows.batch)

    def clear(self) -> None:
        self._batches, self._rows = [], 0

    def release(self, presence: Presence) -> list[Retained]:
        """Return all of them, and retain only the rows of keys that are pending now."""
        before = self._batches
        parts = [(kept, presence.look(kept.batch.hash64).pending) for kept in before]
        self._batches = [
            Retained(kept.epoch, kept.port, kept.batch.filtered(pending)) for kept, pending in parts if pending.any()
        ]
        self._rows = sum(len(kept.batch) for kept in self._batches)
        return before
