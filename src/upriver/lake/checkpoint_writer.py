"""Writes a worker's part of checkpoints on a thread of its own, so the worker's loop goes on meanwhile."""

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
"""Bytes of chunks that wait to be written. At this limit the worker stops copying state until there is room again; the
chunk that reaches it is still taken."""


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
    """The worker's loop calls ``write``, ``seal``, ``give_up``, ``close`` and ``room``; only ``close`` waits for the
    lake. The thread calls the callbacks. They must return at once and call nothing of this.

    A checkpoint has a number. Checkpoints come one after another: the first call for one gives up all with lower
    numbers. Late calls for a checkpoint that is given up, failed or sealed are ignored.
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
        number and the error, once; its files are removed. room_again: there is room after there was none.
        """
        self._lake = lake
        self._sealed = sealed
        self._failed = failed
        self._room_again = room_again
        self._sizes = sizes
        self._queued_bytes_max = queued_bytes_max
        self._queue: queue.SimpleQueue[_Write | _Seal | _GiveUp | None] = queue.SimpleQueue()
        """Bounded by the callers of ``write``, which check ``room``."""
        self._thread: threading.Thread | None = None
        self._part: tuple[int, StateFiles] | None = None
        """The number and the files of the checkpoint that is being written. The thread's own."""
        self._lock = threading.Lock()
        self._least: float = 0
        """Checkpoints with lower numbers are over. It changes under the lock, and the thread reports results under the
        same lock. So no result of a checkpoint is reported after ``give_up`` has returned."""
        self._queued_bytes = 0
        """Changed under the lock."""

    @property
    def room(self) -> bool:
        """Whether the next chunk should be copied now."""
        return self._queued_bytes < self._queued_bytes_max

    def write(self, number: int, epoch: Epoch, region: str, chunk: StateChunk) -> None:
        """Take a chunk of keys that no other chunk of this checkpoint's region has; the chunk must not change any more.
        epoch: the checkpoint is as of its end."""
        if self._begins(number):
            with self._lock:
                self._queued_bytes += chunk.nbytes
            self._put(_Write(number, epoch, region, chunk))

    def seal(self, number: int, epoch: Epoch) -> None:
        """All chunks of this checkpoint were given; there may be none."""
        if self._begins(number):
            self._put(_Seal(number, epoch))

    def give_up(self, number: int) -> None:
        """Give up this checkpoint and remove what was written. If it was sealed, its files belong to the driver, which
        sweeps them."""
        self._end(number + 1)
        if self._thread is not None:
            self._queue.put(_GiveUp())

    def close(self) -> None:
        """Give up what is under way, and wait for the thread to end, at most as long as one file takes."""
        self._end(math.inf)
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _begins(self, number: int) -> bool:
        """Begin the checkpoint, and give up all before it; whether it is still current."""
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
        except Exception as error:  # such as a full disk: no reason for a worker to stop
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
