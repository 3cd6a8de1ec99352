"""Writes a worker's part of checkpoints, on a thread of its own: the worker's loop goes on meanwhile."""

import math
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from upriver.ids import Epoch
from upriver.lake.checkpoints import USUAL, Sizes, StateFiles
from upriver.lake.lake import Lake
from upriver.state.checkpoint import StateChunk, StateFile

QUEUED_BYTES_MAX = 32 << 20
"""Bytes of chunks that wait to be written. Whoever copies state stops there until there is room again; the chunk with
which so many are reached is still taken."""


@dataclass(frozen=True, slots=True)
class _Write:
    number: int
    epoch: Epoch
    region: str
    chunk: StateChunk


@dataclass(frozen=True, slots=True)
class _Seal:
    number: int
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class _GiveUp:
    pass


class CheckpointWriter:
    """``write``, ``seal``, ``give_up``, ``close`` and ``room`` are for the worker's loop; only ``close`` waits for the
    lake. The callbacks are called by the thread, and must return at once and call nothing of this.

    A checkpoint has a number. They come one after another: with the first that is heard of one, all with lower numbers
    are given up. What comes late for one that is given up, spoilt or sealed is dropped without a word.
    """

    def __init__(
        self,
        lake: Lake,
        sealed: Callable[[int, tuple[StateFile, ...]], None],
        failed: Callable[[int, str], None],
        room_again: Callable[[], None] = lambda: None,
        sizes: Sizes = USUAL,
        queued_bytes_max: int = QUEUED_BYTES_MAX,
    ) -> None:
        """sealed: takes a checkpoint's number and all its files, which are in the lake and durable. failed: takes its
        number and what has gone wrong, once; its files are removed. room_again: there is room after there was none.
        """
        self._lake = lake
        self._sealed = sealed
        self._failed = failed
        self._room_again = room_again
        self._sizes = sizes
        self._queued_bytes_max = queued_bytes_max
        self._queue: queue.SimpleQueue[_Write | _Seal | _GiveUp | None] = queue.SimpleQueue()
        """Bounded by whoever asks for ``room``."""
        self._thread: threading.Thread | None = None
        self._part: tuple[int, StateFiles] | None = None
        """Of the checkpoint that is being written, by number. The thread's own."""
        self._lock = threading.Lock()
        self._least: float = 0
        """Checkpoints with lower numbers are over. Changed under the lock, under which it is also told what became of
        one: so nothing is told of a checkpoint once ``give_up`` has returned."""
        self._queued_bytes = 0
        """Changed under the lock."""

    @property
    def room(self) -> bool:
        """Whether the next chunk should be copied now."""
        return self._queued_bytes < self._queued_bytes_max

    def write(self, number: int, epoch: Epoch, region: str, chunk: StateChunk) -> None:
        """Take a chunk of keys that no other chunk of this checkpoint's region has; nothing may change it any more.
        epoch: the checkpoint is as of its end."""
        if self._begins(number):
            with self._lock:
                self._queued_bytes += chunk.nbytes
            self._put(_Write(number, epoch, region, chunk))

    def seal(self, number: int, epoch: Epoch) -> None:
        """All chunks of this checkpoint were given, be it none."""
        if self._begins(number):
            self._put(_Seal(number, epoch))

    def give_up(self, number: int) -> None:
        """Nobody waits for this checkpoint any more: what was written is removed. But the files of one that was sealed
        are the driver's, which sweeps them."""
        self._end(number + 1)
        if self._thread is not None:
            self._queue.put(_GiveUp())

    def close(self) -> None:
        """Give up what is under way, and wait for the thread to end: as long as one file takes."""
        self._end(math.inf)
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _begins(self, number: int) -> bool:
        """Whether the checkpoint is not over."""
        with self._lock:
            self._least = max(self._least, number)
            return number == self._least

    def _end(self, least: float) -> None:
        with self._lock:
            self._least = max(self._least, least)

    def _put(self, work: _Write | _Seal) -> None:
        if self._thread is None:  # a worker that takes no checkpoints has none
            self._thread = threading.Thread(target=self._work, name="upriver-checkpoints", daemon=True)
            self._thread.start()
        self._queue.put(work)

    # On the thread ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            match work:
                case _Write():
                    self._write(work)
                case _Seal():
                    self._seal(work)
                case _GiveUp():
                    self._drop_if_over()
        self._drop_if_over()

    def _write(self, work: _Write) -> None:
        try:
            if work.number >= self._least:
                self._part_of(work.number, work.epoch).add(work.region, work.chunk)
        except Exception as error:  # a full disk, above all: no reason for a worker to stop
            self._spoil(work.number, error)
        self._make_room(work.chunk.nbytes)

    def _seal(self, work: _Seal) -> None:
        if work.number < self._least:
            return
        try:
            files = self._part_of(work.number, work.epoch).complete()
        except Exception as error:
            self._spoil(work.number, error)
            return
        with self._lock:
            if work.number >= self._least:
                self._least = work.number + 1
                self._part = None
                self._sealed(work.number, files)
        self._drop_if_over()

    def _part_of(self, number: int, epoch: Epoch) -> StateFiles:
        self._drop_if_over()
        if self._part is None:
            self._part = number, StateFiles(self._lake, epoch, self._sizes)
        return self._part[1]

    def _drop_if_over(self) -> None:
        if self._part is not None and self._part[0] < self._least:
            self._part[1].drop()
            self._part = None

    def _spoil(self, number: int, error: Exception) -> None:
        with self._lock:
            if number >= self._least:
                self._least = number + 1
                self._failed(number, f"{type(error).__name__}: {error}")
        self._drop_if_over()

    def _make_room(self, nbytes: int) -> None:
        with self._lock:
            had_room = self.room
            self._queued_bytes -= nbytes
            has_room = self.room
        if has_room and not had_room:
            self._room_again()
