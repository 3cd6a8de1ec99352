"""Compaction and collection while an app runs: a thread of the driver plans, Spark's tasks merge.

One job at a time, of few tasks, in the scheduler pool ``POOL``. Ingest and lookups do not wait for it. The thread
shares one lock with the backfill of indexes: both rewrite the history of a table.
"""

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from upriver.engine.expressions import Evaluator
from upriver.errors import LakeInUse, ProtocolError
from upriver.ids import Epoch
from upriver.lake.collection import RemovedFiles, collect, remove_litter, superseded
from upriver.lake.compaction import Merge, MergeResult, SegmentPlan, SegmentPlanner, Unmerged, remove_strays, try_merge
from upriver.lake.lake import Lake, OwnedLake
from upriver.lake.manifests import Segment
from upriver.lake.reclamation import Reclamation
from upriver.lake.spans import EpochSpan, level_of, newest_rewrite
from upriver.lake.told_segments import EpochReaders, ToldSegments
from upriver.options import Compaction
from upriver.plan.plan import TableSpec, table_of
from upriver.spark.host import cause_of_job_failure, raised_in_task
from upriver.spark.ingest import STOP_POLL_S
from upriver.spark.session import cancel_jobs, map_in_arrow
from upriver.state.runs import RunInfo

_LOG = logging.getLogger("upriver.compaction")

POOL = "upriver-compaction"
"""Scheduler pool of the jobs. In a session with ``spark.scheduler.mode=FAIR``, its weight is that of the session's
allocation file."""
POLL_S, POLL_S_MAX = 2.0, 60.0
"""Seconds between two looks for work; after a failure doubled each time, up to the second number."""
COLLECT_S_MAX = 60.0
"""Seconds between two collections at most; a tenth of the grace, if that is less."""
HORIZON_S_MAX = 10.0
"""Seconds to wait for the coordinator's answer."""
JOB_SEGMENTS_MAX = 64
"""Segments of one job."""
FAILURES_SHOWN_MAX = 3
"""Failures that ``status`` shows."""
JOB_TASKS_MAX = 2
"""Tasks of one job: the rest of the slots stays with ingest."""
_MERGED = pa.schema([("merge", pa.int32()), ("run", pa.string()), ("why", pa.string())])
_MERGED_SQL = "merge int, run string, why string"


class Compactor:
    """Compacts and collects one lake. ``start`` once, ``stop`` once; any thread may ask for ``status``."""

    def __init__(
        self,
        spark: SparkSession,
        lake: OwnedLake,
        tables: Callable[[], Mapping[str, TableSpec]],
        readers: EpochReaders,
        history_lock: threading.Lock,
        settings: Compaction,
        replaced: Sequence[str] = (),
    ) -> None:
        """tables: all in the lake. history_lock: held by what rewrites a table's history. replaced: the damage that the
        start has repaired."""
        record = lake.kept_record()
        self._spark = spark
        self._lake = lake
        self._tables = tables
        self._vnodes = record.vnodes
        self._readers = readers
        self._told = ToldSegments(lake, readers)
        self._history_lock = history_lock
        self._settings = settings
        self._plans = SegmentPlanner(lake, record.vnodes)
        self._strays: list[tuple[SegmentPlan, Segment | None]] = []
        """Of the last job: tasks that failed, or ran twice, have left runs."""
        self._rewrites = Rewrites(lake, record.vnodes)
        self._tag = f"upriver-compaction-{uuid4().hex}"
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._report = CompactionReport(replaced)

    def start(self, suspects: Iterable[str]) -> None:
        """Begin. suspects: the runs that there were before this driver wrote any; those that nothing names are
        removed."""
        run = partial(self._run, tuple(suspects))
        self._thread = threading.Thread(target=run, name="upriver-compaction", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the work under way. What it has written is in the lake, or is removed after the next start."""
        self._stopping.set()
        while self._thread is not None and self._thread.is_alive():
            cancel_jobs(self._spark, self._tag)
            self._thread.join(STOP_POLL_S)

    def status(self) -> dict[str, Any]:
        return self._report.to_json()

    # On the thread

    def _run(self, suspects: tuple[str, ...]) -> None:
        context = self._spark.sparkContext
        context.addJobTag(self._tag)
        context.setLocalProperty("spark.scheduler.pool", POOL)
        chores = [
            Chore("the removal of files that nothing names", partial(self._remove_litter, suspects)),
            Chore("compaction", self._compact),
            Chore("collection", self._collect),
        ]
        while not self._stopping.wait(min(chore.due_in_s for chore in chores)):
            for chore in chores:
                if chore.due_in_s > 0 or self._stopping.is_set():
                    continue
                try:
                    chore.run()
                except LakeInUse:
                    return  # the app fails by itself
                except Exception as error:  # of any class: the chore is tried again, and nothing waits for it
                    if not self._stopping.is_set():
                        chore.failed(error)
            failed = filter(None, (chore.failure for chore in chores))
            self._report.failures([*failed, *self._plans.failures, *self._told.failures])

    def _remove_litter(self, suspects: Sequence[str]) -> float:
        if suspects:
            self._report.collected(remove_litter(self._lake, suspects))
        return math.inf

    def _compact(self) -> float:
        """Make the segments that are due first; returns the seconds until the next look."""
        if not self._settings.enabled:
            return math.inf
        with self._history_lock:
            self._told.tell()
        remove_strays(self._lake, self._strays)
        self._strays = []
        horizon = self._readers.horizon(HORIZON_S_MAX)
        with self._history_lock:
            as_of = self._rewrites.as_of(horizon)
            spans = self._plans.due(horizon)
            first = [span for span in spans if level_of(span) == level_of(spans[0])][:JOB_SEGMENTS_MAX]
            self._report.look(len(spans))
            planned = [self._plans.plan(span, as_of) for span in first]
            plans = [plan for plan in planned if plan is not None]
            if not plans and as_of is not None:
                plans = self._rewrites.plans(as_of, self._tables(), self._plans.is_waiting)
            self._strays = [(plan, None) for plan in plans]
            for plan, results in zip(plans, self._merge(plans), strict=True):
                segment = self._plans.segment(plan, results, self._lake.term)
                del self._strays[0]  # after a failed write the segment may be there: its runs stay
                if segment is not None:
                    self._publish(plan, segment)
                self._strays.append((plan, segment))
            self._told.tell()
        return 0.0 if plans else POLL_S

    def _publish(self, plan: SegmentPlan, segment: Segment) -> None:
        self._lake.publish_segment(segment)
        span = (segment.first, segment.epoch)
        if segment.rewritten:
            self._report.rewritten(plan, segment)
            _LOG.info("epochs %d to %d are written anew without rows that have left", *span)
        else:
            self._report.made(plan)
            _LOG.info("epochs %d to %d are one segment", *span)

    def _merge(self, plans: list[SegmentPlan]) -> list[list[MergeResult]]:
        """Carry out all merges of these plans with one Spark job; the results, by plan."""
        merges = [merge for plan in plans for merge in plan.merges]
        if not merges:
            return [[] for _ in plans]
        first, last = min(plan.span.first for plan in plans), max(plan.span.last for plan in plans)
        self._spark.sparkContext.setJobDescription(f"Upriver: compaction of epochs {first} to {last}")
        results = iter(merged_by_spark(self._spark, self._lake.root, self._vnodes, self._tables(), merges))
        return [[next(results) for _ in plan.merges] for plan in plans]

    def _collect(self) -> float:
        with self._history_lock:
            self._told.tell()
        horizon = self._readers.horizon(HORIZON_S_MAX)
        with self._history_lock:
            spans = superseded(self._lake, horizon, time.time() - self._settings.grace_s)
            running = takewhile(lambda _: not self._stopping.is_set(), spans)
            self._report.collected(collect(self._lake, list(running)))
        return max(POLL_S, min(COLLECT_S_MAX, self._settings.grace_s / 10))


class Rewrites:
    """The segments that are rewritten without rows that have left."""

    def __init__(self, lake: OwnedLake, vnodes: int) -> None:
        self._lake = lake
        self._reclamation = Reclamation(lake, vnodes)

    def as_of(self, horizon: Epoch) -> Epoch | None:
        """The epoch as of which segments may be rewritten now; ``None``: they may not. The readers take all that is
        rewritten as of one epoch at once: a later job has a later epoch."""
        return horizon if horizon > newest_rewrite(self._lake.segments()) else None

    def plans(
        self, as_of: Epoch, tables: Mapping[str, TableSpec], is_waiting: Callable[[EpochSpan], bool]
    ) -> list[SegmentPlan]:
        """How to rewrite all segments with many rows that have left by the end of an epoch, but those that wait.
        tables: in the lake."""
        due = self._reclamation.due(as_of, tables)
        return [self._reclamation.plan(span, as_of, tables) for span in due if not is_waiting(span)]


class Chore:
    """What the thread does again and again; after a failure later each time."""

    def __init__(self, name: str, work: Callable[[], float]) -> None:
        """work: returns the seconds until the next time."""
        self._name = name
        self._work = work
        self._wait_s = 0.0
        self._due_at = time.monotonic()
        self.failure: str | None = None
        """Why the last try failed, if it did."""

    @property
    def due_in_s(self) -> float:
        return max(0.0, self._due_at - time.monotonic())

    def run(self) -> None:
        """Raises what the work raises."""
        self._due_at = time.monotonic() + self._work()
        self.failure, self._wait_s = None, 0.0

    def failed(self, error: Exception) -> None:
        """``run`` has raised this."""
        self.failure = f"{self._name}: {cause_of_job_failure(error)}"
        self._wait_s = min(POLL_S_MAX, max(POLL_S, 2 * self._wait_s))
        self._due_at = time.monotonic() + self._wait_s


class CompactionReport:
    """What compaction has done since the start of the app. Written by one thread."""

    def __init__(self, replaced: Sequence[str]) -> None:
        """replaced: the damage that the start has repaired."""
        self._replaced = replaced
        self._due = 0
        self._made = 0
        self._merged_runs = 0
        self._rewritten = 0
        self._reclaimed_bytes = 0
        self._removed = RemovedFiles()
        self._damage: tuple[str, ...] = ()
        """Why the last collection has left files that could go otherwise."""
        self._failures: list[str] = []

    def look(self, due: int) -> None:
        """So many segments are due."""
        self._due = due

    def made(self, plan: SegmentPlan) -> None:
        """A segment is in the lake."""
        self._due, self._made = self._due - 1, self._made + 1
        self._merged_runs += sum(len(merge.sources) for merge in plan.merges)

    def rewritten(self, plan: SegmentPlan, segment: Segment) -> None:
        """A segment is in the lake without rows that have left."""
        self._rewritten += 1
        before = sum(run.bytes for part in plan.parts for runs in part.runs.values() for run in runs)
        self._reclaimed_bytes += before - sum(run.bytes for runs in segment.runs.values() for run in runs)

    def collected(self, removed: RemovedFiles) -> None:
        if removed.runs:
            _LOG.info("%d files of rows are removed, of %d bytes", removed.runs, removed.bytes)
        self._removed += replace(removed, damage=())
        self._damage = removed.damage

    def failures(self, failures: Iterable[str]) -> None:
        """All failures that there are now; new ones are logged."""
        before, self._failures = self._failures, list(dict.fromkeys((*failures, *self._damage)))
        for failure in self._failures:
            if failure not in before:
                _LOG.warning("%s (it is tried again)", failure)

    def to_json(self) -> dict[str, Any]:
        """due, made: segments. merged_runs: that segments have replaced. rewritten: segments, without rows that have
        left, whose bytes are reclaimed_bytes. removed_epochs: manifests and segments. replaced: damaged segments that
        have given way to their parts. failed: what has failed. Both name the file if it is one."""
        return {
            "due": self._due,
            "made": self._made,
            "merged_runs": self._merged_runs,
            "rewritten": self._rewritten,
            "reclaimed_bytes": self._reclaimed_bytes,
            "removed_epochs": self._removed.epochs,
            "removed_runs": self._removed.runs,
            "removed_bytes": self._removed.bytes,
            "replaced": "; ".join(self._replaced[:FAILURES_SHOWN_MAX]) or None,
            "failed": "; ".join(self._failures[:FAILURES_SHOWN_MAX]) or None,
        }


def merged_by_spark(
    spark: SparkSession, root: str, vnodes: int, tables: Mapping[str, TableSpec], merges: list[Merge]
) -> list[MergeResult]:
    """The result of each merge, by one Spark job. Raises NotWritten."""
    if not merges:
        return []
    named = [(number, json.dumps(merge.to_json())) for number, merge in enumerate(merges)]
    job = spark.createDataFrame(named, "merge int, task string").repartition(min(JOB_TASKS_MAX, len(named)))
    try:
        rows = map_in_arrow(job, partial(merge_all, root, vnodes, dict(tables)), _MERGED_SQL).collect()
    except PythonException as error:
        raise raised_in_task(error) from error
    found = {row["merge"]: _result(row["run"], row["why"]) for row in rows}
    if found.keys() != set(range(len(merges))):
        raise ProtocolError(f"{len(merges)} merges were asked for, and {len(found)} have come")
    return [found[number] for number in range(len(merges))]


def _result(run: str | None, why: str | None) -> MergeResult:
    if why is not None:
        return Unmerged(why)
    return None if run is None else RunInfo.from_json(json.loads(run))


def merge_all(
    root: str, vnodes: int, tables: Mapping[str, TableSpec], named: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One task: carry out its merges."""
    lake, evaluator = Lake(root), Evaluator()
    for batch in named:
        for given in batch.to_pylist():
            merge = Merge.from_json(json.loads(given["task"]))
            table = tables[table_of(merge.channel)]
            result = try_merge(lake, merge, table, vnodes, evaluator)
            run = json.dumps(result.to_json()) if isinstance(result, RunInfo) else None
            why = result.why if isinstance(result, Unmerged) else None
            yield pa.RecordBatch.from_pylist([{"merge": given["merge"], "run": run, "why": why}], schema=_MERGED)
