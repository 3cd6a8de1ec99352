"""One side of a benchmark, run in a process tree of its own, while this process only watches."""

import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.process_tree import Meter

SAMPLE_S = 0.25
"""Seconds between two looks at a side's process tree."""
START_S_MAX = 300.0
"""Seconds that a side may take beside the measured span: start of Spark, comparison of the answers."""


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A run that is over. code: what it ended with, 0 if all went well. said: the lines of its output that say
    anything. meter: of its process tree."""

    code: int
    said: list[str]
    meter: Meter


def with_rows(progress: Iterable[Any]) -> list[Any]:
    """Of a streaming query's micro-batches, those that had rows. Spark counts no rows of files that its tasks read
    themselves, but it tells how long they took."""
    return [batch for batch in progress if "addBatch" in batch.durationMs]


def run_side(module: str, task: Path, output: Path, run_s_max: float) -> WatchedRun:
    """Run a module on its task's file until it ends, or has had all its time: ``run_s_max`` beside START_S_MAX.

    output: the file that takes in what it says.
    """
    deadline = time.monotonic() + run_s_max + START_S_MAX
    command = [sys.executable, "-m", module, str(task)]
    with output.open("wb") as sink, subprocess.Popen(command, stdout=sink, stderr=sink) as process:
        meter = Meter(process.pid)
        try:
            while process.poll() is None and time.monotonic() < deadline:
                meter.sample()
                time.sleep(SAMPLE_S)
        finally:
            process.kill()  # no more than a precaution if it has ended; Spark's JVM follows its driver
    said = [line for line in output.read_text(errors="replace").splitlines() if line.strip()]
    return WatchedRun(process.returncode, said, meter)
