"""BoardReader: what somebody beside its owner finds on a board."""

from collections.abc import Callable
from typing import Any

import numpy as np

from upriver.ids import Epoch
from upriver.state.board_layout import CLOSED, HEAD, IN_USE, WAYS, BoardLayout, Raw, view
from upriver.state.vectors import Hashes, are_same


class BoardReader:
    """memory: the board's, writable, for the marks of what was read. clock: seconds, the one by which its owner says
    how long it may be read. Usable by many threads."""

    def __init__(self, layout: BoardLayout, memory: Any, clock: Callable[[], float]) -> None:
        self.layout = layout
        self._memory = memory
        self._clock = clock
        self._hashes: Hashes = view(memory, np.uint64, HEAD.size, layout.places)
        self._ways = self._hashes.reshape(-1, WAYS)
        self._marks = view(memory, np.uint8, layout.marks_at, layout.places)
        self._rows: Raw = view(memory, layout.row_type, layout.rows_at, layout.places)

    @property
    def name(self) -> bytes:
        """By which its owner has said that it can be told."""
        name: bytes = HEAD.unpack_from(self._memory)[4]
        return name

    @property
    def is_closed(self) -> bool:
        """Whether nothing will ever be found here again."""
        return bool(HEAD.unpack_from(self._memory)[1] == CLOSED)

    def find(self, hash64: Hashes) -> tuple[Raw, Epoch] | None:
        """The row of each of these keys, for the board's layout, and the epoch as of whose end all rows are; ``None``
        if some key is not here, or somebody was just changing something, or nothing may be read. Keys are told by their
        hashes alone: compare them with those of the rows."""
        changes, state, epoch, _, _ = HEAD.unpack_from(self._memory)
        if changes & 1 or state != IN_USE:
            return None
        buckets = self.layout.buckets_of(hash64)
        places = buckets * WAYS + (self._ways.take(buckets, 0) == hash64[:, None]).argmax(1)
        if not are_same(self._hashes.take(places), hash64):
            return None
        raw = self._rows.take(places)
        now_changes, _, _, good_until, _ = HEAD.unpack_from(self._memory)
        if now_changes != changes or self._clock() >= good_until:
            return None
        self._marks[places] = 1
        return raw, Epoch(epoch)
