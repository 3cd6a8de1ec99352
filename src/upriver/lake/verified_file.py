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
from upriver.state.runs import (
    Checksums,
    RunInfo,
    check_blocks,
    check_length,
    checked_content,
    cut_into_blocks,
    decode_checksums,
)
from upriver.state.vectors import Positions, true_at

WHOLE_BYTES_MAX = 512 << 10
"""A file of at most so many bytes is read at once: that takes less time than to read some of its blocks."""
REMEDY = "Restore the file as it was, or start on another root"
"""For what nothing else has."""

ReadInto = Callable[[Iterable[tuple[int, memoryview]]], int]
"""As ``Files.read_into``, of one file."""

HUGE_BYTES = 2 << 20
"""Neighbouring blocks of so many bytes are put into huge pages, which takes less than half the time. Others are not:
one block would take a whole page."""

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
        encoded = np.empty(self._info.bytes, np.uint8)  # memory that the process has already, as far as it has any
        check_length(self._info, self._read_into([(0, encoded.data)]))
        self.content = checked_content(self._info, pa.py_buffer(encoded))
        self.filled_bytes = self._info.bytes

    @saying_what_helps()
    def _begin(self) -> None:
        info = self._info
        stored = bytearray(info.bytes - info.arrow_bytes)
        check_length(info, self._read_into([(info.arrow_bytes, memoryview(stored))]))
        self._checksums = decode_checksums(info, stored)
        self._missing = bytearray(b"\1") * info.blocks
        self._memory = mmap.mmap(-1, info.arrow_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        self._advise(mmap.MADV_NOHUGEPAGE, 0, info.arrow_bytes)
        self.content = pa.py_buffer(self._memory)
        self.filled_bytes = 0

    def _advise(self, advice: int, start: int, end: int) -> None:
        """start: that of a page."""
        with suppress(OSError):  # a system without huge pages
            self._memory.madvise(advice, start, end - start)

    @saying_what_helps()
    def copied(self, start: int, end: int) -> pa.Buffer:
        """Bytes of the file, checked, in memory that goes with them. For many that lie together, which are used once.
        Raises CorruptFile."""
        if self.is_whole:
            return self.content.slice(start, end - start)
        size = self._info.block_bytes
        first, behind = start // size, -(-end // size)
        memory = np.empty(min(behind * size, self._info.arrow_bytes) - first * size, np.uint8)
        content = memory.data
        check_length(self._info, self._read_into([(first * size, content)]))
        self._check(range(first, behind), cut_into_blocks(content, size), self._checksums[first:behind])
        return pa.py_buffer(memory).slice(start - first * size, end - start)

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
        if is_asked.any():
            self._fill(true_at(is_asked).tolist())

    @saying_what_helps()
    def _fill(self, blocks: Iterable[int]) -> None:
        if (together := self._request_blocks) > 1:
            starts = {block // together * together for block in blocks}
            blocks = (block for start in starts for block in range(start, min(start + together, len(self._missing))))
        missing = sorted(block for block in blocks if self._missing[block])
        size, length, content = self._info.block_bytes, self._info.arrow_bytes, memoryview(self._memory)
        parts = [(first * size, min(behind * size, length)) for first, behind in _neighbours(missing)]
        for start, end in parts:
            if end - start >= HUGE_BYTES:
                self._advise(mmap.MADV_HUGEPAGE, -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end)
        check_length(self._info, self._read_into([(start, content[start:end]) for start, end in parts]))
        contents = (content[block * size : (block + 1) * size] for block in missing)
        self._check(missing, contents, self._checksums[missing])
        for block in missing:
            self._missing[block] = 0
        self.filled_bytes += sum(end - start for start, end in parts)

    def _check(self, blocks: Sequence[int], contents: Iterable[memoryview], checksums: Checksums) -> None:
        check_blocks(self._info, blocks, contents, checksums.tolist())


def _neighbours(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """(first block, block behind the last) of blocks, ascending, that follow each other."""
    runs: list[tuple[int, int]] = []
    first = behind = -1
    for block in blocks:
        if block != behind:
            if behind >= 0:
                runs.append((first, behind))
            first = block
        behind = block + 1
    return [*runs, (first, behind)]
