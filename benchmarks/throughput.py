"""Rows per second from Spark's source to a view of all rows: Upriver and Spark's own stateful streaming side by side.

The two take turns, each in a fresh process tree of its own, and this process only watches. What is measured, and
what it leaves out: ``docs/benchmarks.md``.
"""

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.contest import run_side
from benchmarks.contestant import RUN_S_MAX, SIDES, ContestOutcome, ContestTask
from benchmarks.events import EventsSpec, write_events
from benchmarks.figures import median
from benchmarks.process_tree import Meter, available_cores
from upriver.errors import ClusterError, UserError
from upriver.spark.session import heap_mb, memory_bytes

ERROR_LINES_MAX = 30
"""Lines of a failed side's output that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputMeasured:
    """One run of one side. seconds: from the first micro-batch's start until the view held all rows. start_s: from
    the start of the process to the first micro-batch, warm-up included. ingest_s: until Spark had
    committed the last micro-batch."""

    rows_per_s: float
    cpu_s: float
    rows_per_cpu_s: float
    peak_mb: float
    seconds: float
    ingest_s: float
    start_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputOptions:
    """What to measure. data: directory to keep the files in; ``None`` for a temporary one. cores: processors that
    each side may use. files_per_trigger: of a micro-batch. warm_up_files: taken the whole way once, before the run that
    counts; none measures a cold start. repeat: runs of each side. source: one of ``SOURCES``."""

    events: EventsSpec
    workers: int
    cores: int
    files_per_trigger: int
    warm_up_files: int
    repeat: int
    data: str | None
    source: str = "files"


def measure_throughput(options: ThroughputOptions, say: Any = print) -> dict[str, Any]:
    """Run both sides, ``repeat`` times and in turns; returns what ``--json`` prints. ``say`` is told how it goes."""
    _check_cores(options.cores)
    with tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory:
        data = Path(options.data or f"{directory}/events")
        write_events(data, options.events)
        say(f"{options.events.rows:,} rows, {options.events.keys:,} keys, in {options.events.files} files: {data}")
        runs: dict[str, list[tuple[ThroughputMeasured, ContestOutcome]]] = {side: [] for side in SIDES}
        for turn in range(options.repeat):
            for side in list(SIDES)[:: 1 if turn % 2 == 0 else -1]:
                work = Path(directory) / f"{side}-{turn}"
                measured, outcome = _run(side, options, data, work)
                say(f"{side:8} {measured.rows_per_s:12,.0f} rows/s, {outcome.differing} rows differ from Spark's batch")
                runs[side].append((measured, outcome))
    return _report(options, runs)


def _check_cores(cores: int) -> None:
    there_are = len(available_cores())
    if cores > there_are:
        raise UserError(f"cores={cores}: there are {there_are} for this process")


def _run(side: str, options: ThroughputOptions, data: Path, work: Path) -> tuple[ThroughputMeasured, ContestOutcome]:
    """One run of one side, in a process tree that ends with it. Raises ClusterError if it fails."""
    work.mkdir()
    task = ContestTask(
        side=side,
        data=str(data),
        work=str(work),
        result=str(work / "outcome.json"),
        workers=options.workers,
        cores=options.cores,
        files_per_trigger=options.files_per_trigger,
        warm_up_files=options.warm_up_files,
        source=options.source,
    )
    (work / "task.json").write_text(json.dumps(asdict(task)))
    started_at = time.time()
    watched = run_side("benchmarks.contestant", work / "task.json", work / "output", RUN_S_MAX)
    if watched.code != 0:
        failed = f"the {side} side of the benchmark failed ({watched.code}):"
        raise ClusterError("\n".join([failed, *watched.said[-ERROR_LINES_MAX:]]))
    outcome = ContestOutcome(**json.loads((work / "outcome.json").read_text()))
    return measure(options.events.rows, started_at, outcome, watched.meter), outcome


def measure(rows: int, started_at: float, outcome: ContestOutcome, meter: Meter) -> ThroughputMeasured:
    """A run's figures."""
    seconds = outcome.reflected_at - outcome.first_batch_at
    usage = meter.usage(outcome.first_batch_at, outcome.reflected_at)
    return ThroughputMeasured(
        rows_per_s=rows / seconds,
        cpu_s=usage.cpu_s,
        rows_per_cpu_s=rows / usage.cpu_s,
        peak_mb=usage.peak_mb,
        seconds=seconds,
        ingest_s=outcome.last_batch_at - outcome.first_batch_at,
        start_s=outcome.first_batch_at - started_at,
    )


def _report(
    options: ThroughputOptions, runs: dict[str, list[tuple[ThroughputMeasured, ContestOutcome]]]
) -> dict[str, Any]:
    sides = {side: medians([measured for measured, _ in outcomes]) for side, outcomes in runs.items()}
    outcomes = [outcome for side in runs.values() for _, outcome in side]
    return {
        "rows": options.events.rows,
        "keys": options.events.keys,
        "workers": options.workers,
        "cores": options.cores,
        "files": options.events.files,
        "columns": options.events.columns,
        "source": options.source,
        "files_per_trigger": options.files_per_trigger,
        "warm_up_files": options.warm_up_files,
        "micro_batches": outcomes[0].batches,
        "spark_shuffle_partitions": options.cores,
        "heap_mb": heap_mb(memory_bytes()),
        "repeat": options.repeat,
        **sides,
        "ratio": round(sides["upriver"]["rows_per_s"] / sides["spark"]["rows_per_s"], 2),
        "views_equal": all(outcome.differing == 0 and outcome.view_rows > 0 for outcome in outcomes),
    }


def medians(runs: Sequence[ThroughputMeasured]) -> dict[str, Any]:
    """The median of each figure over some runs of one side, and every run's rate."""
    figures = {name: median([getattr(run, name) for run in runs]) for name in asdict(runs[0])}
    whole = ("rows_per_s", "rows_per_cpu_s", "peak_mb")
    rounded = {name: round(figure, None if name in whole else 3) for name, figure in figures.items()}
    return rounded | {"rows_per_s_of_each_run": [round(run.rows_per_s) for run in runs]}
