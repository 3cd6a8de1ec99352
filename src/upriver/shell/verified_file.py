"""A run's Arrow file in memory of this process, filled block by block; each block is checked when it is read.

A file that is mapped may change, or end earlier, while a reader looks at it: the reader then sees other bytes than were
checked, or its process ends by SIGBUS. So nothing is mapped. What is read of a long file are the blocks that are asked
for; they lie in memory where they lie in the file, and what was not asked for takes no memory.
"""

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np
import pyarrow as pa

from upriver.errors import CorruptFile
from upriver.state.ragged import spread
from upriver.state.runs import Checksums, RunInfo, check_block, check_length, checked_content, decode_checksums
from upriver.state.vectors import Positions, true_at

WHOLE_BYTES_MAX = 512 << 10
"""A file of at most so many bytes is read at once: that takes less time than to read some of its blocks."""
REMEDY = "Restore the file as it was, or start on another root"
"""For what nothing else has."""

ReadInto = Callable[[Iterable[tuple[int, memoryview]]], int]
"""As ``Files.read_into``, of one file."""

_NO_RESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""What is not touched is not to count as memory. Python names it since 3.13."""


@contextmanager
def saying_what_helps() -> Iterator[None]:
    """Add to the error of a damaged file what can be done about it, unless it says so already."""
    try:
        yield
    except CorruptFile as error:
        if str(error).endswith(REMEDY):
            raise
        raise CorruptFile(f"{error}. {REMEDY}") from error


class VerifiedFile:
    """Used by one thread.

    content: of the length of the Arrow file; right where it was filled, and nowhere else. filled_bytes: how much of it.
    """

    def __init__(
        self,
        info: RunInfo,
        read_into: ReadInto,
        request_bytes_min: int = 1,
        whole_bytes_max: int = WHOLE_BYTES_MAX,
    ) -> None:
        """request_bytes_min: fewer take as long to read. whole_bytes_max: a longer file is filled as it is used, unless
        its blocks have no checksums. Raises CorruptFile."""
        self._info = info
        self._read_into = read_into
        self._request_blocks = -(-request_bytes_min // info.block_bytes) if info.block_bytes else 1
        self._checksums: Checksums = np.empty(0, np.uint64)
        self._missing = bytearray()
        """1 for each block that is not filled."""
        self.is_whole = not info.block_bytes or info.bytes <= whole_bytes_max
        if self.is_whole:
            self._read_all()
        else:
            self._begin()

    @saying_what_helps()
    def _read_all(self) -> None:
        encoded = bytearray(self._info.bytes)
        check_length(self._info, self._read_into([(0, memoryview(encoded))]))
        self.content = checked_content(self._info, pa.py_buffer(encoded))
        self.filled_bytes = self._info.bytes

    @saying_what_helps()
    def _begin(self) -> None:
        info = self._info
        stored = bytearray(info.bytes - info.arrow_bytes)
        check_length(info, self._read_into([(info.arrow_bytes, memoryview(stored))]))
        self._checksums = decode_checksums(info, stored)
        self._missing = bytearray(b"\1") * info.blocks
        self._allocate(mmap.MADV_NOHUGEPAGE)  # else one block might take 2 MiB

    def _allocate(self, advice: int) -> None:
        memory = mmap.mmap(-1, self._info.arrow_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        with suppress(OSError):  # a system without huge pages
            memory.madvise(advice)
        self._memory = memoryview(memory)
        self.content = pa.py_buffer(memory)
        self.filled_bytes = 0

    def fork(self) -> "VerifiedFile":
        """The same file, with the same blocks filled, in memory of its own: what is filled there goes with it. For
        blocks of which many lie together."""
        if self.is_whole:
            return self
        fork = object.__new__(VerifiedFile)
        fork._info, fork._read_into, fork._request_blocks = self._info, self._read_into, self._request_blocks
        fork._checksums, fork._missing, fork.is_whole = self._checksums, self._missing[:], False
        fork._allocate(mmap.MADV_HUGEPAGE)  # takes less than half the time
        for start, end in self._extents([block for block, is_missing in enumerate(self._missing) if not is_missing]):
            fork._memory[start:end] = self._memory[start:end]
        fork.filled_bytes = self.filled_bytes
        return fork

    def is_missing(self, byte: int) -> bool:
        """Whether the block of that byte is not filled."""
        return bool(self._missing[byte // self._info.block_bytes])

    def fill(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Have these ranges of bytes filled: of each its first, and the one behind its last. Raises CorruptFile."""
        if self.is_whole:
            return
        blocks: set[int] = set()
        for start, end in ranges:
            first, last = start // self._info.block_bytes, (end - 1) // self._info.block_bytes
            if self._missing.find(1, first, last + 1) >= 0:
                blocks.update(range(first, last + 1))
        if blocks:
            self._fill(blocks)

    def fill_many(self, starts: Positions, ends: Positions) -> None:
        """The same of very many ranges."""
        if self.is_whole:
            return
        first, last = starts // self._info.block_bytes, (ends - 1) // self._info.block_bytes
        is_asked = np.zeros(len(self._missing), np.bool_)
        is_asked[spread(first, np.maximum(last - first + 1, 0))] = True
        is_asked &= np.frombuffer(self._missing, np.bool_)
        if blocks := true_at(is_asked).tolist():
            self._fill(blocks)

    @saying_what_helps()
    def _fill(self, blocks: Iterable[int]) -> None:
        if (together := self._request_blocks) > 1:
            starts = {block // together * together for block in blocks}
            blocks = (block for start in starts for block in range(start, min(start + together, len(self._missing))))
        size, missing = self._info.block_bytes, sorted(block for block in blocks if self._missing[block])
        extents = self._extents(missing)
        check_length(self._info, self._read_into([(start, self._memory[start:end]) for start, end in extents]))
        for block in missing:
            end = min((block + 1) * size, self._info.arrow_bytes)
            check_block(self._info, block, self._memory[block * size : end], int(self._checksums[block]))
        for block in missing:
            self._missing[block] = 0
        self.filled_bytes += sum(end - start for start, end in extents)

    def _extents(self, blocks: Sequence[int]) -> list[tuple[int, int]]:
        """(first byte, byte behind the last) of blocks, ascending; neighbours joined."""
        extents: list[tuple[int, int]] = []
        size, end = self._info.block_bytes, self._info.arrow_bytes
        for block in blocks:
            start = block * size
            if extents and extents[-1][1] == start:
                start = extents.pop()[0]
            extents.append((start, min((block + 1) * size, end)))
        return extents
