"""An object store that carries out a driver's writes at any later time, and drivers that pause before any request.

The drivers run the lake's own code, each on a thread. One thread runs at a time: a driver that is about to send a
request hands over to the campaign, which says when it goes on.
"""

import threading
from collections.abc import Callable, Iterable
from random import Random
from typing import IO

import pyarrow as pa

from upriver.errors import NotWritten

LATE_SHARE, LATE_RUN_SHARE = 0.2, 0.02
"""Of the commits and removals, and of the other writes, those whose answer is lost, and that are carried out later."""
UNTOLD_SHARE = 0.04
"""Those that are carried out at once, and whose answer is lost."""

Write = Callable[[], None]


class StoredFiles:
    """The files of a store, by path. Each request is carried out at once."""

    request_bytes_min = 1
    is_remote = False

    def __init__(self, content: dict[str, bytes]) -> None:
        self.content = content

    def create(self, path: str, content: bytes | pa.Buffer) -> None:
        if path in self.content:
            raise FileExistsError(path)
        self.content[path] = bytes(content)

    def read(self, path: str) -> pa.Buffer:
        if path not in self.content:
            raise FileNotFoundError(path)
        return pa.py_buffer(self.content[path])

    def read_into(self, path: str, parts: Iterable[tuple[int, memoryview]]) -> int:
        content = bytes(self.read(path))
        for first, target in parts:
            piece = content[first : first + len(target)]
            target[: len(piece)] = piece
        return len(content)

    def names(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        return sorted({path[len(prefix) :].partition("/")[0] for path in self.tree(directory)})

    def tree(self, directory: str) -> list[str]:
        return sorted(path for path in self.content if not directory or path.startswith(f"{directory}/"))

    def remove(self, path: str) -> None:
        self.remove_all([path])

    def remove_all(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.content.pop(path, None)

    def make_directory(self, path: str) -> None:
        """A store has no directories."""

    def remove_directory(self, path: str) -> None:
        """A store has no directories."""

    def lock(self) -> IO[str] | None:
        return None


class Killed(BaseException):
    """The driver's process is gone."""


class Actor:
    """A thread that runs only within ``step``."""

    def __init__(self, work: Callable[["Actor"], None]) -> None:
        self._work = work
        self._may_go = threading.Semaphore(0)
        self._stands = threading.Semaphore(0)
        self._is_killed = False
        self.is_over = False
        self.is_deciding = False
        """Whether the next request is a commit, or a look at files that nothing may name."""
        self.error: BaseException | None = None
        """What has ended the work, if anything has."""
        threading.Thread(target=self._run, daemon=True).start()

    def step(self) -> None:
        """Go on until the next pause, or the end."""
        self._may_go.release()
        self._stands.acquire()

    def kill(self) -> None:
        self._is_killed = True
        while not self.is_over:
            self.step()

    def pause(self, is_deciding: bool = False) -> None:
        """On the thread: wait for the next ``step``."""
        self.is_deciding = is_deciding
        self._stands.release()
        self._may_go.acquire()
        if self._is_killed:
            raise Killed

    def _run(self) -> None:
        self._may_go.acquire()
        try:
            if not self._is_killed:
                self._work(self)
        except BaseException as error:
            self.error = error
        self.is_over = True
        self._stands.release()


class LateFiles(StoredFiles):
    """The store as one driver reaches it. in_flight: what is carried out later, of all drivers."""

    def __init__(self, content: dict[str, bytes], actor: Actor, rng: Random, in_flight: list[Write]) -> None:
        super().__init__(content)
        self._actor = actor
        self._rng = rng
        self._in_flight = in_flight
        self.is_calm = False
        """Whether each write is carried out at once, and answered."""

    def create(self, path: str, content: bytes | pa.Buffer) -> None:
        written = bytes(content)
        try:
            self._write(path, lambda: StoredFiles.create(self, path, written))
        except NotWritten:  # a second attempt, as of ``ObjectStoreFiles``
            try:
                self._write(path, lambda: StoredFiles.create(self, path, written))
            except FileExistsError:
                if self.content[path] != written:  # lake.own_create_is_recognised
                    raise

    def remove_all(self, paths: Iterable[str]) -> None:
        doomed = list(paths)
        if doomed:
            self._write(doomed[0], lambda: StoredFiles.remove_all(self, doomed))

    def _write(self, path: str, write: Write) -> None:
        commits = path.endswith(".json")
        self._actor.pause(commits)
        late = LATE_SHARE if commits else LATE_RUN_SHARE
        drawn = 1.0 if self.is_calm else self._rng.random()
        if drawn >= late:
            write()
        else:
            self._in_flight.append(write)
        if drawn < late + UNTOLD_SHARE:
            raise NotWritten(f"{path}: no answer")

    def read(self, path: str) -> pa.Buffer:
        self._actor.pause()
        return super().read(path)

    def tree(self, directory: str) -> list[str]:
        self._actor.pause(directory.startswith(("tables/", "changes/rows")))
        return super().tree(directory)
