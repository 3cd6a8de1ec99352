"""Workers as Spark tasks: one job of one long-running task for each worker. Driver side.

Spark places the task. Whoever fills a worker's place has a *life*, with a number of its own, and a job. When the job
ends otherwise than in good order, or the coordinator gives the worker up (its channel has closed, or is silent), the
next life begins at once, in a job of its own, wherever there is a slot; and the old job is cancelled, whatever Spark
thinks of it. So it does not matter whether Spark would run a failed task again (``local[N]`` does not), nor whether the
process can be reached: one that is stopped keeps its slot until Spark has killed it, some four seconds later.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import uuid4

from pyspark.sql import SparkSession

from upriver.dataflow.graph import DataflowPlan
from upriver.errors import ClusterError, UpriverError, WorkerLost
from upriver.ids import WorkerId
from upriver.shell.worker import WorkerConfig
from upriver.spark.task import run_task

RESTARTS_MAX = 5
"""Times that a worker is started again within ``RESTARTS_WITHIN_S`` before the app fails."""
RESTARTS_WITHIN_S = 600.0
"""Seconds after which a restart counts no more: an app that runs for months may lose many workers."""


@dataclass(slots=True)
class _Place:
    """life: of who fills it, or last did. restarts: when it was filled again, by the monotonic clock."""

    life: int = 0
    restarts: deque[float] = field(default_factory=deque)

    def may_restart(self) -> bool:
        """Count a restart; whether there were not too many of late."""
        now = time.monotonic()
        while self.restarts and self.restarts[0] < now - RESTARTS_WITHIN_S:
            self.restarts.popleft()
        self.restarts.append(now)
        return len(self.restarts) <= RESTARTS_MAX


class WorkerHost:
    """Starts and ends the jobs that workers live in. Usable by any thread.

    on_failure: told when a place cannot be filled any more.
    """

    def __init__(self, spark: SparkSession, config: WorkerConfig, on_failure: Callable[[UpriverError], None]) -> None:
        self._spark = spark
        self._config = config
        self._on_failure = on_failure
        self._tag = f"upriver-{uuid4().hex}"
        self._lock = threading.Lock()
        """Guards all that follows."""
        self._places: dict[WorkerId, _Place] = {}
        self._threads: list[threading.Thread] = []
        """One for each job; a worker that has left may take its time."""
        self._is_stopping = False

    def replan(self, plans: tuple[DataflowPlan, ...]) -> None:
        """Workers that are started from now on are to keep these views."""
        self._config = replace(self._config, plans=plans)

    def start(self, worker: WorkerId) -> None:
        """Ask Spark for a slot and fill a worker's place; returns at once."""
        with self._lock:
            self._begin(worker, anew=False)

    def admits(self, worker: WorkerId, life: int) -> bool:
        """Whether this is the life that is to fill the place now."""
        with self._lock:
            place = self._places.get(worker)
            return place is not None and place.life == life and not self._is_stopping

    def lost(self, worker: WorkerId, life: int) -> None:
        """A worker was given up: fill its place again, and see that the old job ends. Returns at once."""
        self._replace(worker, life, "the channel to it is gone")

    def replace_nobody(self) -> None:
        """From now on, who is lost stays so."""
        with self._lock:
            self._is_stopping = True

    def stop(self, seconds: float) -> None:
        """Wait until all jobs have ended, at most that long for each; then cancel those that have not."""
        self.replace_nobody()
        for thread in self._threads:
            thread.join(seconds)
        if any(thread.is_alive() for thread in self._threads):
            self._cancel(self._tag)
            for thread in self._threads:
                thread.join(seconds)

    def _begin(self, worker: WorkerId, *, anew: bool) -> None:
        """Begin the next life in a place; ``anew``, the one before it was lost. With the lock held."""
        place = self._places.setdefault(worker, _Place())
        place.life += 1
        live = partial(self._live, worker, place.life, anew)
        thread = threading.Thread(target=live, name=f"upriver-worker-{worker}", daemon=True)
        self._threads = [*(other for other in self._threads if other.is_alive()), thread]
        thread.start()

    def _live(self, worker: WorkerId, life: int, anew: bool) -> None:
        """One life, from its job's beginning to its end."""
        try:
            if anew:
                self._cancel(self._tag_of(worker, life - 1))
            self._run_job(worker, life)
        except Exception as error:  # of many classes: whatever made the job fail, or the JVM itself is gone
            self._replace(worker, life, str(error))

    def _replace(self, worker: WorkerId, life: int, why: str) -> None:
        failure: UpriverError | None = None
        with self._lock:
            place = self._places[worker]
            if self._is_stopping or place.life != life:
                return
            if self._spark_is_gone():
                failure = ClusterError(f"Spark is gone: {why}")
            elif place.may_restart():
                self._begin(worker, anew=True)
            else:
                failure = WorkerLost(f"worker {worker} was lost {len(place.restarts)} times; the last time: {why}")
        if failure is not None:
            self._on_failure(failure)

    def _spark_is_gone(self) -> bool:
        try:
            return bool(self._spark.sparkContext._jsc.sc().isStopped())
        except Exception:  # there is nobody to ask
            return True

    def _tag_of(self, worker: WorkerId, life: int) -> str:
        return f"{self._tag}-{worker}-{life}"

    def _run_job(self, worker: WorkerId, life: int) -> None:
        context = self._spark.sparkContext
        context.addJobTag(self._tag)
        context.addJobTag(self._tag_of(worker, life))
        task = partial(run_task, replace(self._config, life=life), worker)
        # Not mapInArrow: planning a query and compiling code for it takes as long as the worker's own start.
        context.parallelize([0], 1).mapPartitions(task).collect()

    def _cancel(self, tag: str) -> None:
        # Not interruptTag, which knows only the tags of the thread that calls it.
        self._spark.sparkContext.cancelJobsWithTag(tag)
