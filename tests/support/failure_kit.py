"""What tests of failures share: files that feed a table, a prober that looks keys up all the while and knows what is
right, and ways to harm processes."""

import ctypes
import errno
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rows_kit import rows_of

from upriver.client.client import Client
from upriver.errors import ClusterError

KEYS = 500
FILE_ROWS = 2_000
FILES = 40
LOOKUP_S_MAX = 30.0
Truth = Callable[[int, list[int]], Sequence[tuple[int, ...]]]
"""A view's rows of some keys at the end of an epoch."""
_PIDFD_GETFD = 438
"""Number of the system call, on all kinds of processors."""


class Feed:
    """Parquet files that come one after the other, each an epoch; and what the view is at the end of each epoch."""

    def __init__(self, directory: Path, files: int = FILES) -> None:
        """files: the most that can be fed."""
        self.directory = directory
        directory.mkdir()
        random = np.random.default_rng(7)
        self._keys = random.integers(0, KEYS, (files, FILE_ROWS))
        self._values = random.integers(0, 10, (files, FILE_ROWS))
        self.fed = 0

    def feed(self, files: int = 1) -> None:
        """Let so many more files be there, each at once and whole."""
        for number in range(self.fed, self.fed + files):
            hidden, path = self.directory / f".events-{number:03d}", self.directory / f"events-{number:03d}.parquet"
            pq.write_table(pa.table({"k": self._keys[number], "v": self._values[number]}), hidden)
            os.utime(hidden, (1_000_000 + number, 1_000_000 + number))
            hidden.rename(path)
        self.fed += files

    def view(self, epoch: int, keys: list[int]) -> list[tuple[int, int, int]]:
        """Key, count and sum of these keys at the end of an epoch."""
        counts = np.bincount(self._keys[:epoch].ravel(), minlength=KEYS)
        totals = np.bincount(self._keys[:epoch].ravel(), self._values[:epoch].ravel(), minlength=KEYS)
        return [(key, int(counts[key]), int(totals[key])) for key in keys if counts[key]]

    def sizes(self, epoch: int, numbers: list[int]) -> list[tuple[int, int]]:
        """How many keys have so many rows each at the end of an epoch, of these numbers of rows."""
        counts = np.bincount(self._keys[:epoch].ravel(), minlength=KEYS)
        sizes = np.bincount(counts, minlength=max(numbers) + 1)
        return [(number, int(sizes[number])) for number in numbers if number and sizes[number]]


@dataclass
class Prober:
    """Looks the same keys up without pause. faults: answers that were wrong, or older than one before.

    gap_s: the longest time without an answer since ``measure``. refusals: lookups that have failed clearly.
    """

    client: Client
    view: str
    truth: Truth
    keys: list[int]
    faults: list[str] = field(default_factory=list)
    answers: int = 0
    refusals: int = 0
    gap_s: float = 0.0
    _epoch: int = 0
    _answered_at: float = field(default_factory=time.monotonic)

    def look(self) -> bool:
        """Whether there was an answer."""
        try:
            rows, epoch = self.client.lookup_with_epoch(self.view, self.keys, timeout=LOOKUP_S_MAX)
        except ClusterError:
            self.refusals += 1
            return False
        found = rows_of(rows)
        if found != self.truth(epoch, self.keys):
            self.faults.append(f"epoch {epoch}: {found}")
        if epoch < self._epoch:
            self.faults.append(f"epoch {epoch} after epoch {self._epoch}")
        self.gap_s = max(self.gap_s, time.monotonic() - self._answered_at)
        self._epoch, self._answered_at = epoch, time.monotonic()
        self.answers += 1
        return True

    def measure(self) -> None:
        self.gap_s, self._answered_at = 0.0, time.monotonic()


@contextmanager
def probing(client: Client, feed: Feed) -> Iterator[Prober]:
    """A prober that runs, and was answered once before anything is done to harm it; no answer may be wrong."""
    prober = Prober(client, "sums", feed.view, list(range(0, KEYS, 25)))
    with asking(prober):
        yield prober


@contextmanager
def asking(*probers: Prober) -> Iterator[None]:
    """As ``probing``, with probers that take turns."""
    answered, is_over = threading.Event(), threading.Event()

    def run() -> None:
        while not is_over.is_set():
            for prober in probers:
                if not prober.look():
                    is_over.wait(0.05)
            if all(prober.answers > 0 for prober in probers):
                answered.set()

    turn_s = len(probers) * (LOOKUP_S_MAX + 5)
    thread = threading.Thread(target=run, name="probers")
    thread.start()
    try:
        assert answered.wait(turn_s), "no lookup is answered"
        yield
    finally:
        is_over.set()
        thread.join(turn_s)
    assert not thread.is_alive(), "a lookup hangs"
    for prober in probers:
        assert prober.faults == []


def check_lookup(client: Client, view: str, truth: Truth, keys: list[int], at_least: int) -> None:
    """What is found of these keys, as of this epoch or a later one, is right."""
    rows, epoch = client.lookup_with_epoch(view, keys, at_least=at_least, timeout=LOOKUP_S_MAX)
    found, right = rows_of(rows), truth(epoch, keys)
    assert found == right, f"{view}, epoch {epoch}: {found} were found, not {right}"


def check_single_lookup(client: Client, view: str, feed: Feed, key: int) -> None:
    """What is found of a key is right at the end of the answer's epoch or of a later one: the lookup of a single key
    waits for no epoch's end, so that its worker may be amid the next one."""
    rows, epoch = client.lookup_with_epoch(view, [key], timeout=LOOKUP_S_MAX)
    found, right = rows_of(rows), [feed.view(end, [key]) for end in range(epoch, feed.fed + 1)]
    assert found in right, f"{view}, epoch {epoch} or later: {found} was found, none of {right}"


def addresses(client: Client) -> dict[int, str | None]:
    """Where the worker in each place serves."""
    return {worker["worker"]: worker["address"] for worker in client.status()["workers"]}


@dataclass
class Replacement:
    """Times since a worker was harmed, in seconds: until it was given up, and until another had its place."""

    began: float = field(default_factory=time.monotonic)
    noticed_s: float = 0.0
    replaced_s: float = 0.0

    def wait(self, client: Client, worker: int, old: str, seconds: float = 60.0) -> str:
        """Block until another has the worker's place; where it serves."""
        while (now := addresses(client)[worker]) == old or now is None:
            elapsed = time.monotonic() - self.began
            assert elapsed < seconds, f"worker {worker} is not replaced"
            if now is None and not self.noticed_s:
                self.noticed_s = elapsed
        self.replaced_s = time.monotonic() - self.began
        self.noticed_s = self.noticed_s or self.replaced_s
        return now


def parent_of(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def cut_between(one: int, other: int) -> int:
    """Cut all TCP connections between two processes, as a network would; how many there were.

    The kernel lends us a copy of the one's socket, and we shut that down.
    """
    ends: dict[tuple[object, object], list[socket.socket]] = defaultdict(list)
    for pid in (one, other):
        for connection in _connections(pid):
            names = connection.getsockname()[:2], connection.getpeername()[:2]
            ends[min(names), max(names)].append(connection)
    cut = 0
    for sockets in ends.values():
        if len(sockets) == 2:
            sockets[0].shutdown(socket.SHUT_RDWR)
            cut += 1
        for each in sockets:
            each.close()
    return cut


def _connections(pid: int) -> Iterator[socket.socket]:
    """Copies of a process's connected TCP sockets."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.pidfd_open(pid)
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            if not _link(entry).startswith("socket:"):
                continue
            descriptor = libc.syscall(_PIDFD_GETFD, handle, int(entry.name), 0)
            if descriptor < 0:
                if ctypes.get_errno() == errno.EBADF:
                    continue  # closed since it was listed
                pytest.skip(f"this system lends no sockets: {os.strerror(ctypes.get_errno())}")
            copy = socket.socket(fileno=descriptor)
            if copy.family in (socket.AF_INET, socket.AF_INET6) and _is_connected(copy):
                yield copy
            else:
                copy.close()
    finally:
        os.close(handle)


def _link(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""


def _is_connected(candidate: socket.socket) -> bool:
    try:
        candidate.getpeername()
    except OSError:
        return False
    return True
