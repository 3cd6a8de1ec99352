"""Writes a worker's part of checkpoints on a thread of its own, so the worker's loop goes on meanwhile."""

import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from upriver.ids import Epoch
from upriver.lake.checkpoints import USUAL, Sizes, StateFiles
from upriver.lake.lake import Lake
from upriver.state.checkpoint import CheckpointPlace, StateChunk, StateFile

QUEUED_BYTES_MAX = 32 << 20
"""Bytes of chunks that wait to be written. At this limit the worker stops copying state until there is room again; the
chunk that reaches it is still taken."""


@dataclass(frozen=True, slots=True)
class _Write:
    place: CheckpointPlace
    number: int
    epoch: Epoch
    region: str
    chunk: StateChunk


@dataclass(frozen=True, slots=True)
class _Seal:
    place: CheckpointPlace
    number: int
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class _GiveUp:
    pass


class CheckpointWriter:
    """The worker's loop calls ``write``, ``seal``, ``give_up``, ``drop``, ``close`` and ``room``; only ``close`` waits
    for the lake. The thread calls the callbacks. They must return at once and call nothing of this.

    A checkpoint has a number, which no other has. Those of one place come one after another: the first call for one
    gives up all of its place with lower numbers. Late calls for a checkpoint that is given up, failed or sealed are
    ignored. Checkpoints of several places may be written at a time.
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
        self._parts: dict[str, tuple[int, StateFiles]] = {}
        """By place, the number and the files of the checkpoint that is being written. The thread's own."""
        self._lock = threading.Lock()
        self._least: defaultdict[str, float] = defaultdict(float)
        """By place: its checkpoints with lower numbers are over. It changes under the lock, and the thread reports
        results under the same lock. So no result of a checkpoint is reported after ``give_up`` has returned."""
        self._begun: dict[str, int] = {}
        """By place, the last checkpoint that has begun. Changed under the lock."""
        self._is_closed = False
        self._queued_bytes = 0
        """Changed under the lock."""

    @property
    def room(self) -> bool:
        """Whether the next chunk should be copied now."""
        return self._queued_bytes < self._queued_bytes_max

    def write(self, place: CheckpointPlace, number: int, epoch: Epoch, region: str, chunk: StateChunk) -> None:
        """Take a chunk of keys that no other chunk of this checkpoint's region has; the chunk must not change any more.
        epoch: the checkpoint is as of its end."""
        if self._begins(place, number):
            with self._lock:
                self._queued_bytes += chunk.nbytes
            self._put(_Write(place, number, epoch, region, chunk))

    def seal(self, place: CheckpointPlace, number: int, epoch: Epoch) -> None:
        """All chunks of this checkpoint were given; there may be none."""
        if self._begins(place, number):
            self._put(_Seal(place, number, epoch))

    def give_up(self, place: CheckpointPlace, number: int) -> None:
        """Give up this checkpoint and remove what was written. If it was sealed, its files belong to the driver, which
        sweeps them."""
        with self._lock:
            self._end(place, number)
        if self._thread is not None:
            self._queue.put(_GiveUp())

    def drop(self, place: CheckpointPlace) -> None:
        """The flow is gone: give up its checkpoint, if one is under way. A later flow may take the place."""
        with self._lock:
            begun = self._begun.get(place.name)
        if begun is not None:
            self.give_up(place, begun)

    def close(self) -> None:
        """Give up what is under way, and wait for the thread to end, at most as long as one file takes."""
        with self._lock:
            self._is_closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _begins(self, place: CheckpointPlace, number: int) -> bool:
        """Begin the checkpoint, and give up all of its place before it; whether it is still current."""
        with self._lock:
            if self._is_over(place.name, number):
                return False
            self._least[place.name] = self._begun[place.name] = number
            return True

    def _is_over(self, place: str, number: int) -> bool:
        return self._is_closed or number < self._least[place]

    def _end(self, place: CheckpointPlace, number: int) -> None:
        """The checkpoint is over. The lock is held."""
        self._least[place.name] = max(self._least[place.name], number + 1)

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
            if not self._is_over(work.place.name, work.number):
                self._files_of(work).add(work.region, work.chunk)
                self._bound_growing()
        except Exception as error:  # such as a full disk: no reason for a worker to stop
            self._spoil(work, error)
        self._make_room(work.chunk.nbytes)

    def _seal(self, work: _Seal) -> None:
        if self._is_over(work.place.name, work.number):
            return
        try:
            files = self._files_of(work).complete()
        except Exception as error:
            self._spoil(work, error)
            return
        with self._lock:
            if not self._is_over(work.place.name, work.number):
                self._end(work.place, work.number)
                del self._parts[work.place.name]
                self._sealed(work.number, files)
        self._drop_if_over()

    def _files_of(self, work: _Write | _Seal) -> StateFiles:
        self._drop_if_over()
        if work.place.name not in self._parts:
            self._parts[work.place.name] = work.number, StateFiles(self._lake, work.place, work.epoch, self._sizes)
        return self._parts[work.place.name][1]

    def _bound_growing(self) -> None:
        """The files that grow are bounded all together, those of all places."""
        parts = [files for _, files in self._parts.values()]
        if sum(files.growing_bytes for files in parts) >= self._sizes.file_bytes_max:
            max(parts, key=lambda files: files.growing_bytes).complete_longest()

    def _drop_if_over(self) -> None:
        over = [place for place, (number, _) in self._parts.items() if self._is_over(place, number)]
        for place in over:
            self._parts.pop(place)[1].drop()

    def _spoil(self, work: _Write | _Seal, error: Exception) -> None:
        with self._lock:
            if not self._is_over(work.place.name, work.number):
                self._end(work.place, work.number)
                self._failed(work.number, f"{type(error).__name__}: {error}")
        self._drop_if_over()

    def _make_room(self, nbytes: int) -> None:
        with self._lock:
            had_room = self.room
            self._queued_bytes -= nbytes
            has_room = self.room
        if has_room and not had_room:
            self._room_again()
