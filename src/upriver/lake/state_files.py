"""The files into which one worker writes its part of one checkpoint. Nobody reads them before it is published."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa

from upriver.ids import Epoch
from upriver.lake.checkpoints import checkpoint_directory
from upriver.lake.lake import Lake
from upriver.state.checkpoint import Span, StateChunk, StateFile, encode_chunk, merged
from upriver.state.runs import checksum_of

SPAN_BYTES_MIN = 256 << 10
"""Chunks with fewer bytes are merged: each costs a manifest some 80 bytes, and its file the schemas of its parts."""

FILE_BYTES_MAX = 64 << 20
"""Bytes of all files that are growing, in memory. At so many the longest is completed; a chunk is never parted."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """When chunks are put together, and files completed."""

    span_bytes_min: int = SPAN_BYTES_MIN
    file_bytes_max: int = FILE_BYTES_MAX


USUAL = Sizes()


class StateFiles:
    """Used by one thread. A file appears under its name, whole and durable, when it is completed."""

    def __init__(self, lake: Lake, epoch: Epoch, sizes: Sizes = USUAL) -> None:
        self._lake = lake
        self._directory = checkpoint_directory(epoch)
        self._sizes = sizes
        self._growing: dict[str, _Growing] = {}
        """By region."""
        self._completed: list[StateFile] = []

    def add(self, region: str, chunk: StateChunk) -> None:
        """Take a chunk of keys that no other chunk of this checkpoint has. Raises NotWritten, ProtocolError."""
        if not len(chunk.keys):
            return
        growing = self._growing.setdefault(region, _Growing(region))
        growing.add(chunk, self._sizes.span_bytes_min)
        if sum(each.nbytes for each in self._growing.values()) >= self._sizes.file_bytes_max:
            longest = max(self._growing.values(), key=lambda each: each.nbytes)
            self._complete(longest)

    def complete(self) -> tuple[StateFile, ...]:
        """All files, now that all chunks were given. Raises NotWritten, ProtocolError."""
        for growing in tuple(self._growing.values()):
            self._complete(growing)
        return tuple(self._completed)

    def drop(self) -> None:
        """Remove what was written, as far as that can be done: the driver sweeps the rest."""
        self._growing.clear()
        for file in self._completed:
            with suppress(OSError):
                self._lake.files.remove(f"{self._directory}/{file.name}")
        self._completed.clear()

    def _complete(self, growing: "_Growing") -> None:
        del self._growing[growing.region]
        # Spark may run a worker's task twice: no two files have one name.
        file, content = growing.finished(f"{uuid4().hex}.arrows")
        self._lake.files.create(f"{self._directory}/{file.name}", content)
        self._completed.append(file)


class _Growing:
    """A file that is not complete. nbytes: about as many as it has."""

    def __init__(self, region: str) -> None:
        self.region = region
        self._sink = pa.BufferOutputStream()
        self._spans: list[Span] = []
        self._keys = 0
        self._small: list[StateChunk] = []
        """Chunks that become one span."""
        self._small_bytes = 0

    @property
    def nbytes(self) -> int:
        return int(self._sink.tell()) + self._small_bytes

    def add(self, chunk: StateChunk, span_bytes_min: int) -> None:
        self._keys += len(chunk.keys)
        if chunk.nbytes >= span_bytes_min:
            self._put([chunk])  # by itself: small ones may be of keys from anywhere
            return
        self._small.append(chunk)
        self._small_bytes += chunk.nbytes
        if self._small_bytes >= span_bytes_min:
            self._put_small()

    def finished(self, name: str) -> tuple[StateFile, pa.Buffer]:
        """The file and its bytes."""
        self._put_small()
        content = self._sink.getvalue()
        checksums = tuple(checksum_of(content.slice(span.offset, span.length)) for span in self._spans)
        file = StateFile(
            name=name,
            region=self.region,
            keys=self._keys,
            nbytes=content.size,
            spans=tuple(self._spans),
            checksums=checksums,
        )
        return file, content

    def _put_small(self) -> None:
        if self._small:
            self._put(self._small)
        self._small, self._small_bytes = [], 0

    def _put(self, chunks: Iterable[StateChunk]) -> None:
        self._spans.append(encode_chunk(merged(tuple(chunks)), self._sink))
