"""What the keys of a region were before the epoch that is open has changed them, so that it can be as if that had never
been opened (rule S3 in ``docs/design/standbys.md``)."""

import numpy as np

from upriver.state.checkpoint import StateChunk
from upriver.state.keysets import contains, key_set
from upriver.xxh64 import Hashes


class Undo:
    """Of one region at one worker. Takes as much memory as the state of the keys that one epoch changes."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: list[StateChunk] = []
        """No two of them name the same key."""

    def unsaved(self, hashes: Hashes) -> Hashes:
        """Of keys that are about to change, those that are not saved. Ascending, unique."""
        keys = key_set(hashes)
        for chunk in self._chunks:
            if not len(keys):
                break
            if chunk.keys[0] <= keys[-1] and keys[0] <= chunk.keys[-1]:  # an epoch is read in order: most are not
                keys = keys[~contains(chunk.keys, keys)]
        return keys

    def save(self, chunk: StateChunk) -> None:
        """What some keys are before they change; of those alone that :meth:`unsaved` has named."""
        if len(chunk.keys):
            self._chunks.append(chunk)

    def take(self) -> list[StateChunk]:
        """All that was saved. It is forgotten here."""
        chunks, self._chunks = self._chunks, []
        return chunks

    def forget(self) -> None:
        """The epoch is over: nobody will want to go back before it."""
        self._chunks.clear()

    @property
    def nbytes(self) -> int:
        return int(np.sum([chunk.nbytes for chunk in self._chunks], dtype=np.int64))
