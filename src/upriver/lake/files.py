"""The files under a lake's root, in a local directory or an object store (object_store.py).

Only this module knows what is special about a local directory: reading parts of files, creating a file only if it is
absent, syncing, and locking the root. Elsewhere a path is relative to the root and uses ``/``. What is made here is
private to the user.
"""

import errno
import fcntl
import os
import socket
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Protocol

import pyarrow as pa

from upriver.errors import CorruptFile, LakeInUse, NotRead, NotWritten
from upriver.lake.address import object_address
from upriver.lake.object_store import open_object_store

LOCK_S_MAX, LOCK_POLL_S = 2.0, 0.05
"""Seconds to wait for a root in use, and between two tries: a process that ends frees the root a moment later."""
UNFINISHED = "unfinished"
"""Directory of unfinished files. A process that dies leaves them there; the next owner of the root sweeps them. An
object store has none: a put is atomic."""
FILE_MODE, DIRECTORY_MODE = 0o600, 0o700
"""Rights of what is made here: the user's own."""


class Files(Protocol):
    """Files under one root. A read is a copy, in memory of this process: later changes of a file do not affect it."""

    @property
    def request_bytes_min(self) -> int:
        """Fewer bytes take as long to read as so many."""

    @property
    def is_remote(self) -> bool:
        """Whether requests go over a network. A read may then take seconds, and its thread mostly waits."""

    def create(self, path: str, content: bytes | pa.Buffer) -> None:
        """Write a new file, which no reader sees half-written. Raises FileExistsError if it is there already,
        NotWritten if the filesystem refuses it, NotRead if a store does not tell which of the two. After the last two,
        the file may be there."""

    def read(self, path: str) -> pa.Buffer:
        """All of the file's bytes. Raises FileNotFoundError, NotRead."""

    def read_into(self, path: str, parts: Iterable[tuple[int, memoryview]]) -> int:
        """Copy bytes of the file: ``(first byte, where to)`` for each part. Returns the length of the file, in bytes.

        A part behind the file's end stays as it was. Raises FileNotFoundError, NotRead.
        """

    def names(self, directory: str) -> list[str]:
        """Names in a directory, sorted, without those that begin with a dot; none if it does not exist. Raises
        NotRead."""

    def tree(self, directory: str) -> list[str]:
        """Paths of all files below a directory, sorted, hidden ones too; none if it does not exist."""

    def remove(self, path: str) -> None:
        """Remove a file; no error if it is not there."""

    def remove_all(self, paths: Iterable[str]) -> None:
        """Remove many files, in any order, with few requests; no error if one is not there."""

    def make_directory(self, path: str) -> None:
        """Make a directory that only this user may enter, for files that others write; no error if it exists."""

    def remove_directory(self, path: str) -> None:
        """Remove a directory if it is empty; no error if it is not empty or does not exist."""

    def lock(self) -> IO[str] | None:
        """Take the root for this process until it ends or the returned file is closed. Raises LakeInUse, NotWritten."""


def open_files(root: str) -> Files:
    """The files under ``root``: a local directory, or a URI of an object store (``s3://...``).

    Raises DeclarationError for any other URI, or if the object store cannot be opened.
    """
    return LocalFiles(os.path.abspath(root)) if object_address(root) is None else open_object_store(root)


class LocalFiles:
    """A local directory."""

    request_bytes_min = 1
    is_remote = False

    def __init__(self, root: str) -> None:
        self._root = root

    def create(self, path: str, content: bytes | pa.Buffer) -> None:
        target = os.path.join(self._root, path)
        with _writing(target):
            self._create(target, content)

    def _create(self, target: str, content: bytes | pa.Buffer) -> None:
        _ensure_directory(os.path.dirname(target))
        _ensure_directory(os.path.join(self._root, UNFINISHED))
        with _unfinished(self) as name:
            unfinished = os.path.join(self._root, name)
            with open(unfinished, "xb", opener=_open_private) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(unfinished, target)  # unlike a rename, fails when the target is there
        _sync_directory(os.path.dirname(target))

    def read(self, path: str) -> pa.Buffer:
        full_path = os.path.join(self._root, path)
        with _reading(full_path), open(full_path, "rb", buffering=0) as file:
            return pa.py_buffer(file.readall())

    def read_into(self, path: str, parts: Iterable[tuple[int, memoryview]]) -> int:
        full_path = os.path.join(self._root, path)
        with _reading(full_path):
            descriptor = os.open(full_path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                for first, target in parts:
                    if (count := os.preadv(descriptor, [target], first)) != len(target):
                        _read_rest(descriptor, first, target, count)
                return os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)

    def names(self, directory: str) -> list[str]:
        full_path = os.path.join(self._root, directory)
        try:
            with _reading(full_path):
                return sorted(n for n in os.listdir(full_path) if not n.startswith("."))
        except FileNotFoundError:
            return []

    def tree(self, directory: str) -> list[str]:
        found = []
        for parent, _, names in os.walk(os.path.join(self._root, directory)):
            found += [os.path.relpath(os.path.join(parent, name), self._root) for name in names]
        return sorted(found)

    def remove(self, path: str) -> None:
        try:
            os.remove(os.path.join(self._root, path))
        except FileNotFoundError:
            return

    def remove_all(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.remove(path)

    def make_directory(self, path: str) -> None:
        directory = os.path.join(self._root, path)
        with _writing(directory):
            _ensure_directory(directory)

    def remove_directory(self, path: str) -> None:
        try:
            os.rmdir(os.path.join(self._root, path))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise

    def lock(self) -> IO[str] | None:
        path = os.path.join(self._root, ".lock")
        with _writing(path):
            _ensure_directory(self._root)
            # The kernel frees this lock when the process dies, however it dies.
            file = open(path, "a+", encoding="utf-8", opener=_open_private)  # noqa: SIM115
        try:
            _wait_for_lock(file)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or "an unknown process"
            file.close()
            way = "look up with upriver.connect(root=...), stop it, or choose another root"
            raise LakeInUse(f"{self._root} is in use by {holder}: {way}") from error
        with suppress(OSError):  # on a full disk, a refused process cannot name this one
            file.truncate(0)
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
        return file


def _read_rest(descriptor: int, first: int, target: memoryview, done: int) -> None:
    """One call may read less than requested; it reads nothing at the end of the file. done: bytes read before."""
    count = done
    while count and done < len(target):
        count = os.preadv(descriptor, [target[done:]], first + done)
        done += count


def _wait_for_lock(file: IO[str]) -> None:
    """Raises OSError if another process keeps it."""
    deadline = time.monotonic() + LOCK_S_MAX
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(LOCK_POLL_S)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Name the file in an error of a read. A missing file keeps its own error."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (IsADirectoryError, NotADirectoryError) as error:
        raise CorruptFile(f"{path}: cannot be read ({error.strerror})") from error
    except (OSError, pa.ArrowException) as error:
        why = getattr(error, "strerror", None) or error
        raise NotRead(f"{path}: cannot be read now ({why})") from error
    except ValueError as error:
        raise CorruptFile(f"{path!r}: not the name of a file ({error})") from error


@contextmanager
def _writing(path: str) -> Iterator[None]:
    """Name the file in an error of a write, with advice."""
    try:
        yield
    except FileExistsError:
        raise
    except (OSError, pa.ArrowException) as error:
        why = getattr(error, "strerror", None) or error
        way = "Let this process write there" if _is_barred(error) else "Free space, or repair the disk"
        raise NotWritten(
            f"{path}: cannot be written ({why}). {way}; if the app has failed, start it again on the same root: "
            "it continues where it was"
        ) from error


def _is_barred(error: Exception) -> bool:
    """Whether permissions or the path are at fault, so that more room on the disk would not help."""
    return getattr(error, "errno", None) in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT)


@contextmanager
def _unfinished(files: Files) -> Iterator[str]:
    """A path of its own to write to, removed in the end."""
    path = f"{UNFINISHED}/{uuid.uuid4().hex}"
    try:
        yield path
    finally:
        files.remove(path)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)


def _ensure_directory(directory: str) -> None:
    """Make a directory, as durable as its future files."""
    if os.path.isdir(directory):
        return
    parent = os.path.dirname(directory)
    _ensure_directory(parent)
    try:
        os.mkdir(directory, DIRECTORY_MODE)
    except FileExistsError:
        if not os.path.isdir(directory):  # else another process has made it
            raise _in_the_way(directory) from None
    _sync_directory(parent)


def _in_the_way(directory: str) -> NotADirectoryError:
    """Not a FileExistsError: that would say that the file itself exists."""
    return NotADirectoryError(errno.ENOTDIR, f"{directory} is not a directory")


def _sync_directory(directory: str) -> None:
    """Make the names in a directory as durable as the files."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
