"""The file with the mark of a worker's step: the next process in the slot finds in it what the last one died of.

The file is in memory that all processes of the host share. Its name is a secret of the app's run: no file of another
run is taken for it. A process reads the mark before it has the slot, and replaces the file once it has it. So a second
attempt of the same task, which the coordinator refuses, harms no mark.
"""

import mmap
import os
import tempfile
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from upriver.ids import WorkerId
from upriver.protocol.messages import FlowStep
from upriver.worker.step_mark import MARK_BYTES, StepMark, marked

SHARED_MEMORY = "/dev/shm"
"""Where there is one: a store into a file on a full disk may end the process."""
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


class MarkFile:
    """Of one slot. Raises no error: without a file, a death does not count."""

    def __init__(self, secret: bytes, worker: WorkerId, directory: str | None = None) -> None:
        """secret: of the app's run. directory: ``None``: in shared memory, or else among temporary files."""
        name = blake2b(str(worker).encode(), key=secret, digest_size=16).hexdigest()
        if directory is None:
            directory = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else tempfile.gettempdir()
        self._path = Path(directory) / f"upriver-{name}"
        self._warm_up = self._path.with_suffix(".warm-up")
        self._inode: int | None = None

    def last(self) -> FlowStep | None:
        """The step in which the last process of this slot was when it died on this host."""
        with suppress(OSError):
            file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | _FLAGS)
            try:
                is_ours = os.fstat(file).st_uid == os.geteuid()
                found = os.read(file, MARK_BYTES)
            finally:
                os.close(file)
            if is_ours and len(found) == MARK_BYTES:
                return marked(found)
        return None

    def begin_warm_up(self) -> bool:
        """Whether this process may warm up. Not if the last one has died while it did, or in a step: a view that kills
        a process may do so with made-up rows, too, and a process that dies before it has the slot counts for no
        view."""
        if self.last() is not None:
            return False
        try:
            self._warm_up.touch(exist_ok=False)
        except FileExistsError:
            self.end_warm_up()
            return False
        except OSError:
            pass  # there can be no file: then no process leaves one
        return True

    def end_warm_up(self) -> None:
        """This process has survived it. Once without is enough: the next one tries again."""
        with suppress(OSError):
            self._warm_up.unlink()

    def replace(self, mark: StepMark) -> None:
        """Keep this process's mark in a new file."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
            try:
                os.write(file, bytes(MARK_BYTES))
                self._inode = os.fstat(file).st_ino
                mark.keep_in(memoryview(mmap.mmap(file, MARK_BYTES)))
            finally:
                os.close(file)

    def remove(self) -> None:
        """This process ends by itself. The file may be another process's by now: that one stays."""
        with suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
