"""A disk that takes no more, under an app on real processes: it says which file could not be written and what helps,
and when there is room again and the app is started again on the same root, nothing is lost and nothing is there twice.

Which write is the one that fails is chosen by the process that the system lets write no files (``RLIMIT_FSIZE``); any
user may do that. On a filesystem of its own, where one can be mounted, it is whichever comes first when there is no
room.
"""

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.process_tree import process_table
from benchmarks.recovery_kill import pid_listening

pytestmark = pytest.mark.cluster

PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "disk.py"
ROWS, BAD = 500, 10
"""Rows of a file, and those of them that are set aside."""
DISK_BYTES = 8 << 20
MOUNT = f'mount -t tmpfs -o size={DISK_BYTES} none "$0"'
PAGE_BYTES = 4096
HELP = (
    r": cannot be written \(File too large\)\. Free space, or repair the disk; if the app has failed, start it again.*"
)
Answer = dict[str, Any]


def unshared(directory: Path) -> list[str]:
    """How to start a process that has a mount of its own; nothing, if this system forbids it."""
    for alone in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        try:
            tried = subprocess.run([*alone, "sh", "-c", MOUNT, str(directory)], stderr=subprocess.DEVNULL)
        except FileNotFoundError:
            return []
        if tried.returncode == 0:
            return [*alone, "sh", "-c", f'{MOUNT} && exec "$@"', str(directory)]
    return []


class Driver:
    """A driver in a process of its own, what feeds it, and its disk. workers: where those of its app serve."""

    def __init__(self, directory: Path) -> None:
        self._disk, self._events = directory / "disk", directory / "events"
        self._disk.mkdir()
        self._events.mkdir()
        wrapper = unshared(self._disk)
        self.has_mount = bool(wrapper)
        self.fed = 0
        self.workers: list[str] = []
        self._process = subprocess.Popen(
            [*wrapper, sys.executable, str(PROGRAM), str(self._disk / "lake"), str(self._events)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def ask(self, command: str) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        answer: Answer = json.loads(self._process.stdout.readline())
        return answer

    def end(self) -> None:
        self._process.communicate(timeout=60)

    def start(self) -> None:
        self.workers = self.ask("start")["workers"]

    def stop(self) -> None:
        assert self.ask("stop") == {}
        self.workers = []

    def feed(self) -> Answer:
        """One more file; what comes of it."""
        rng = np.random.default_rng(self.fed)
        texts = ["not a number" if row % (ROWS // BAD) == 0 else str(row) for row in range(ROWS)]
        rows = pa.table({"k": rng.integers(0, 100, ROWS), "v": rng.integers(0, 10, ROWS), "text": texts})
        hidden = self._events / f".{self.fed}"
        pq.write_table(rows, hidden)
        hidden.rename(self._events / f"{self.fed:03d}.parquet")
        self.fed += 1
        return self.ask(f"wait {self.fed}")

    def check_on_the_same_root(self) -> None:
        """Start the app again: every view is Spark's own answer, and each bad row is there once."""
        self.stop()
        self.start()
        assert self.ask(f"wait {self.fed}") == {"epoch": self.fed}
        assert self.ask("check") == {"sums": 0, "numbers": 0, "rejected": BAD * self.fed}

    # Harm

    def processes(self, kind: str) -> set[int]:
        """The processes that write the lake's files: the driver, Spark's JVM, the workers, and Spark's tasks."""
        driver, workers = {self._process.pid}, {pid_listening(address) for address in self.workers}
        started_by = {process.pid: process.parent for process in process_table()}
        (jvm,) = {pid for pid, parent in started_by.items() if parent in driver}
        below = {jvm}
        while more := {pid for pid, parent in started_by.items() if parent in below} - below:
            below |= more
        return {"driver": driver, "spark": {jvm}, "workers": workers, "tasks": below - {jvm} - workers}[kind]

    @contextmanager
    def unable_to_write(self, kind: str) -> Iterator[None]:
        """These may write no file meanwhile."""
        processes = self.processes(kind)
        _limit_files(processes, 0)
        try:
            yield
        finally:
            _limit_files(processes, resource.RLIM_INFINITY)

    @contextmanager
    def full(self, room: int) -> Iterator[None]:
        """Meanwhile there is room for so many bytes only."""
        if not self.has_mount:
            pytest.skip("this system lets no user mount a filesystem of their own: unshare --mount has failed")
        disk = Path(f"/proc/{self._process.pid}/root{self._disk}")  # as the driver sees it
        sizes = os.statvfs(disk)
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(sizes.f_bavail * sizes.f_frsize - room))
        try:
            yield
        finally:
            ballast.unlink()


def _limit_files(processes: Iterable[int], size: int) -> None:
    for process in processes:
        try:
            resource.prlimit(process, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        except ProcessLookupError:
            continue  # Spark has no more use for it


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    running = Driver(tmp_path_factory.mktemp("full"))
    running.start()
    assert running.feed() == {"epoch": 1}
    yield running
    running.end()


def check_told(answer: Answer, kind: str, what: str) -> None:
    """One clear error: in one line it names the file, and says what to do."""
    assert answer["error"] == kind
    assert re.fullmatch(what, answer["message"])


def test_a_run_that_cannot_be_written(driver: Driver) -> None:
    with driver.unable_to_write("tasks"):
        told = driver.feed()
    check_told(told, "IngestFailed", rf"table 'events': its source has failed: /.*/lake/tables/events/k/.*{HELP}")
    driver.check_on_the_same_root()


def test_a_manifest_that_cannot_be_written(driver: Driver) -> None:
    with driver.unable_to_write("driver"):
        told = driver.feed()
    check_told(told, "IngestFailed", rf"table 'events': its source has failed: /.*/lake/epochs/\d+\.json{HELP}")
    driver.check_on_the_same_root()


def test_sparks_own_checkpoint_that_cannot_be_written(driver: Driver) -> None:
    with driver.unable_to_write("spark"):
        told = driver.feed()
    said = r".*File too large\)? \(its checkpoint is /.*/lake/ingest/events; it reads /.*\)\. It continues where it was"
    check_told(told, "IngestFailed", f"table 'events': its source has failed: {said}.*")
    driver.check_on_the_same_root()


def test_rows_to_be_set_aside_that_cannot_be_written_hold_their_worker_up_until_they_can(driver: Driver) -> None:
    """A checkpoint that cannot be written is given up, and nothing else."""
    with driver.unable_to_write("workers"):
        told = driver.ask("checkpoint")
        check_told(told, "LakeError", rf".* was given up: worker \d: NotWritten: /.*/lake/checkpoints/\w+/\d+/.*{HELP}")
        assert driver.ask(f"wait {driver.fed}") == {"epoch": driver.fed}
        told = driver.feed()
        assert told["error"] == "WaitTimeout"
        assert re.search(r"/lake/rejected/events/\S+: cannot be written \(File too large\)", told["message"])
    assert driver.ask(f"wait {driver.fed}") == {"epoch": driver.fed}
    assert driver.ask("workers") == {"workers": driver.workers, "restarts": [0, 0]}
    driver.check_on_the_same_root()
    assert driver.ask("checkpoint") == {"epoch": driver.fed}


def test_a_control_record_that_cannot_be_written(driver: Driver) -> None:
    driver.stop()
    with driver.unable_to_write("driver"):
        check_told(driver.ask("start"), "NotWritten", rf"/.*/lake/control/\d+\.json{HELP}")
    driver.start()
    driver.feed()
    driver.check_on_the_same_root()


@pytest.mark.parametrize("pages", [*(pytest.param(pages, marks=pytest.mark.long) for pages in (0, 11)), 8])
def test_a_disk_without_room(driver: Driver, pages: int) -> None:
    """With room for so many pages: another write each time is the first that finds none."""
    with driver.full(pages * PAGE_BYTES):
        while "error" not in (told := driver.feed()):
            pass
    print(f"\n{pages} pages: {told}")
    assert "No space left on device" in told["message"]
    driver.check_on_the_same_root()
