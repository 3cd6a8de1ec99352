"""Spark Structured Streaming, killed and started again from its checkpoint.

In local mode the executor is the driver's JVM, so what is killed is all of Spark: the driver's process and its JVM, as
one process group. It is started again as soon as it is seen to have ended.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Self

from benchmarks.recovery_contestant import ContestantTask
from benchmarks.recovery_feed import RecoveryFeed
from benchmarks.recovery_ways import LOAD_S_MAX, RECOVERY_S_MAX, RecoveryOptions, Say
from upriver.errors import ClusterError

SLOTS = 2
"""For tasks, as many as Upriver's ingest has."""
POLL_S = 0.01
"""Seconds between two looks at what the query has said."""
END_S_MAX = 30.0
"""Seconds that the JVM may go on when its driver has ended."""
ERROR_LINES_MAX = 30
"""Lines of a failed query's output that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A micro-batch, in seconds of the epoch, by Spark's own report. batch: from 0 up, one for each file."""

    batch: int
    began_at: float
    committed_at: float


class SparkQuery:
    """The query's processes, from construction until ``kill`` or ``finish``; a context manager, which kills them."""

    def __init__(self, task: Path, output: Path) -> None:
        """output: takes in what the processes say besides."""
        self.commits: list[Committed] = []
        self._output = output
        self._differing: int | None = None
        command = [sys.executable, "-m", "benchmarks.recovery_contestant", str(task)]
        with output.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0
            )
        assert self._process.stdout is not None
        self._reading = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reading.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """``kill -9`` whatever is there of its processes, and wait until the driver's has ended."""
        with contextlib.suppress(ProcessLookupError):  # all have gone
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def finish(self, seconds: float) -> int:
        """Have it take what is left, and end; returns how many rows differ from Spark's batch query.

        Raises ClusterError if it fails, or takes longer.
        """
        assert self._process.stdin is not None
        try:
            print("finish", file=self._process.stdin, flush=True)
            self._process.wait(seconds)
        except BrokenPipeError:
            raise self._failed("has ended by itself") from None
        except subprocess.TimeoutExpired:
            raise self._failed(f"has not ended in {seconds:g} s") from None
        self._reading.join(END_S_MAX)  # the JVM has the other end too, and goes a little later
        if self._differing is None:
            raise self._failed("has not said how its state compares")
        return self._differing

    def check(self) -> None:
        """Raise ClusterError if it has ended by itself."""
        if self._process.poll() is not None:
            raise self._failed(f"has ended with {self._process.returncode}")

    def _failed(self, what: str) -> ClusterError:
        said = self._output.read_text(errors="replace").splitlines()[-ERROR_LINES_MAX:]
        return ClusterError("\n".join([f"Spark's side of the benchmark {what}:", *said]))

    def _read(self, told: IO[str]) -> None:
        for line in told:
            if not line.startswith("{"):
                continue  # the JVM may have something to say
            said = json.loads(line)
            if "differing" in said:
                self._differing = said["differing"]
            else:
                self.commits.append(Committed(**said))


def measure_spark(options: RecoveryOptions, say: Say) -> dict[str, Any]:
    """Feed a query as an app is fed, kill it, start it again; returns its figures.

    Raises ClusterError if it fails, or does not recover in time.
    """
    say(f"spark: {options.keys:,} keys; all of it is killed, and started again from its checkpoint")
    with tempfile.TemporaryDirectory(prefix="upriver-bench-") as name:
        directory = Path(name)
        feed = RecoveryFeed(directory / "events", options.feed)
        task = directory / "task.json"
        scratch = directory / "scratch"
        scratch.mkdir()
        task.write_text(json.dumps(asdict(_task(feed, directory / "checkpoint", scratch))))
        pace = SparkPace(feed, options.epochs_per_s)
        feed.put_base()
        with SparkQuery(task, directory / "first") as query:
            _until(query, lambda: len(query.commits) == feed.spec.base_files, LOAD_S_MAX, "taken the first rows")
            for _ in range(options.epochs_since):
                feed.put()
            files = len(feed.put_at)
            _until(query, lambda: query.commits[-1].batch == files - 1, LOAD_S_MAX, "taken the next rows")
            pace.keep(query, options.steady_s)
            killed_at = time.time()
            query.kill()
        noticed_at = time.time()
        with SparkQuery(task, directory / "second") as query:
            _until(query, lambda: _caught_up(query, feed) is not None, RECOVERY_S_MAX, "caught up", pace)
            caught_up = _caught_up(query, feed)
            assert caught_up is not None
            pace.keep(query, options.steady_s)
            differing = query.finish(RECOVERY_S_MAX)
    figures = spark_figures(killed_at, noticed_at, query.commits[0], caught_up, differing)
    say(f"  {json.dumps(figures)}")
    return figures


def _task(feed: RecoveryFeed, checkpoint: Path, scratch: Path) -> ContestantTask:
    return ContestantTask(files=str(feed.directory), checkpoint=str(checkpoint), scratch=str(scratch), slots=SLOTS)


class SparkPace:
    """Puts files when they are due, as long as the caller asks it to."""

    def __init__(self, feed: RecoveryFeed, per_s: float) -> None:
        self._feed = feed
        self._pause_s = 1 / per_s

    def tick(self) -> None:
        """Put a file if the last one is old enough."""
        if time.time() >= self._feed.put_at[-1] + self._pause_s:
            self._feed.put()

    def keep(self, query: SparkQuery, seconds: float) -> None:
        """Put files for so long, while the query runs."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            query.check()
            self.tick()
            time.sleep(POLL_S)


def _until(
    query: SparkQuery, reached: Callable[[], bool], seconds: float, what: str, pace: SparkPace | None = None
) -> None:
    """Wait until something holds; meanwhile files are put, if there is a pace to do it at."""
    deadline = time.monotonic() + seconds
    while not reached():
        query.check()
        if time.monotonic() > deadline:
            raise ClusterError(f"Spark has not {what} in {seconds:g} s")
        if pace is not None:
            pace.tick()
        time.sleep(POLL_S)


def _caught_up(query: SparkQuery, feed: RecoveryFeed) -> Committed | None:
    return backlog_taken(list(query.commits), list(feed.put_at))


def backlog_taken(commits: list[Committed], put_at: list[float]) -> Committed | None:
    """The first micro-batch with which all files were taken that were there when the first of ``commits`` had been
    committed; ``None`` if it is still to come."""
    backlog = sum(at <= commits[0].committed_at for at in put_at) if commits else 0
    return next((commit for commit in commits if commit.batch + 1 >= backlog), None)


def spark_figures(
    killed_at: float, noticed_at: float, first: Committed, caught_up: Committed, differing: int
) -> dict[str, Any]:
    """Seconds since the kill. first: micro-batch after the restart."""
    return {
        "noticed_s": round(noticed_at - killed_at, 3),
        "served_again_s": round(first.committed_at - killed_at, 3),
        "served_after_noticed_s": round(first.committed_at - noticed_at, 3),
        "caught_up_s": round(caught_up.committed_at - killed_at, 3),
        "views_equal": differing == 0,
    }
