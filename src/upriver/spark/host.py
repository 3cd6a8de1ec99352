"""Workers as Spark tasks: one job of one long-running task for each worker. Driver side.

Spark places the task, and starts it again where it allows several failures. Where it gives up (``local[N]`` allows
one failure), the host starts another job, at most ``RESTARTS_MAX`` times for each place.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from uuid import uuid4

from pyspark.sql import SparkSession

from upriver.dataflow.graph import DataflowPlan
from upriver.errors import ClusterError, UpriverError, WorkerLost
from upriver.ids import WorkerId
from upriver.shell.worker import WorkerConfig
from upriver.spark.task import run_task

RESTARTS_MAX = 5
"""Times that a worker's job is started again before the app fails."""


class WorkerHost:
    """Starts and ends the jobs that workers live in.

    on_failure: told when a place cannot be filled any more.
    """

    def __init__(self, spark: SparkSession, config: WorkerConfig, on_failure: Callable[[UpriverError], None]) -> None:
        self._spark = spark
        self._config = config
        self._on_failure = on_failure
        self._tag = f"upriver-{uuid4().hex}"
        self._threads: list[threading.Thread] = []
        """One for each time that a place was filled; a worker that has left may take its time."""
        self._stopping = threading.Event()

    def replan(self, plans: tuple[DataflowPlan, ...]) -> None:
        """Workers that are started from now on are to keep these views."""
        self._config = replace(self._config, plans=plans)

    def start(self, worker: WorkerId) -> None:
        """Ask Spark for a slot and fill a worker's place; returns at once."""
        thread = threading.Thread(target=self._keep_up, args=(worker,), name=f"upriver-worker-{worker}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _keep_up(self, worker: WorkerId) -> None:
        self._spark.sparkContext.addJobTag(self._tag)
        cause: Exception | None = None
        for _ in range(1 + RESTARTS_MAX):
            try:
                self._run_job(worker)
                return  # it has retired
            except Exception as error:  # of many classes: whatever made the job fail, or the JVM itself is gone
                cause = error
            if self._stopping.is_set():
                return
            if self._spark_is_gone():
                self._on_failure(ClusterError(f"Spark is gone: {cause}"))
                return
        self._on_failure(WorkerLost(f"worker {worker} was lost {1 + RESTARTS_MAX} times; the last time: {cause}"))

    def _spark_is_gone(self) -> bool:
        try:
            return bool(self._spark.sparkContext._jsc.sc().isStopped())
        except Exception:  # there is nobody to ask
            return True

    def _run_job(self, worker: WorkerId) -> None:
        task = partial(run_task, self._config, worker)
        self._spark.range(0, 1, 1, 1).mapInArrow(task, "worker int").collect()

    def stop(self, seconds: float) -> None:
        """Wait until all jobs have ended, at most that long for each; then cancel those that have not."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(seconds)
        if any(thread.is_alive() for thread in self._threads):
            # Not interruptTag, which knows only the tags of the thread that calls it.
            self._spark.sparkContext.cancelJobsWithTag(self._tag)
            for thread in self._threads:
                thread.join(seconds)
