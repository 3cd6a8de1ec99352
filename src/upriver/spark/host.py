"""Workers as Spark tasks: one job of one long-running task for each worker. Driver side.

Spark places the task. Which life of a worker runs, and when the next one starts, is decided by
:mod:`upriver.coordinator.restarts`; this carries it out. A life's job is cancelled when the life is lost, whatever
Spark thinks of it. So it does not matter whether Spark would run a failed task again (``local[N]`` does not), nor
whether the process can be reached: one that is stopped keeps its slot until Spark has killed it, some four seconds
later.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import assert_never
from uuid import uuid4

from pyspark.sql import SparkSession

from upriver.coordinator.restarts import (
    Claim,
    EndLife,
    LifeLost,
    PlaceHistory,
    PlaceWanted,
    RestartAction,
    RestartAt,
    RestartDue,
    RestartEvent,
    Restarts,
    StartLife,
    StopRestarts,
)
from upriver.errors import ClusterError, UpriverError
from upriver.ids import WorkerId
from upriver.plan.graph import DataflowPlan
from upriver.runtime.worker import WorkerConfig
from upriver.spark.task import run_task
from upriver.spark.task_errors import cause_of_job_failure

CANCEL_EVERY_S = 0.2
"""Seconds between two attempts to cancel jobs."""


class WorkerHost:
    """Starts and ends the jobs that workers live in. Usable by any thread.

    on_failure: told when no worker can be started any more, since Spark is gone.
    """

    def __init__(self, spark: SparkSession, config: WorkerConfig, on_failure: Callable[[UpriverError], None]) -> None:
        self._spark = spark
        self._config = config
        self._on_failure = on_failure
        self._tag = f"upriver-{uuid4().hex}"
        self._lock = threading.Lock()
        """Guards all that follows."""
        self._restarts = Restarts()
        self._threads: list[threading.Thread] = []
        """One for each job; a worker that has left may take its time."""
        self._timers: dict[WorkerId, threading.Timer] = {}
        """Of the restarts that wait."""

    def replan(self, plans: tuple[DataflowPlan, ...]) -> None:
        """Workers that are started from now on are to keep these views."""
        self._config = replace(self._config, plans=plans)

    def start(self, worker: WorkerId) -> None:
        """Ask Spark for a slot and fill a worker's place; returns at once."""
        self._step(PlaceWanted(worker=worker))

    def claim(self, worker: WorkerId, life: int, attempt: int, holder_has_lease: bool) -> Claim:
        """An attempt of a life's task asks for its place; see :meth:`Restarts.claim`."""
        with self._lock:
            return self._restarts.claim(worker, life, attempt, time.monotonic(), holder_has_lease=holder_has_lease)

    def is_current(self, worker: WorkerId, life: int) -> bool:
        """Whether this life fills the place now."""
        with self._lock:
            return self._restarts.is_current(worker, life)

    def lost(self, worker: WorkerId, life: int, why: str) -> None:
        """A worker was given up: fill its place again, and see that the old job ends. Returns at once."""
        if self._spark_is_gone():
            self._on_failure(ClusterError(f"Spark is gone: {why}"))
        else:
            self._step(LifeLost(worker=worker, life=life, why=why, at=time.monotonic()))

    def end_attempt(self, attempt: int, why: str) -> None:
        """Have Spark kill one attempt of a task, which does not count as a failure of the task."""
        self._spark.sparkContext._jsc.sc().killTaskAttempt(attempt, True, why)

    def history(self) -> Mapping[WorkerId, PlaceHistory]:
        """How often each place was filled again, and why its last worker was lost."""
        with self._lock:
            return self._restarts.history()

    def stop_restarts(self) -> None:
        """From now on, a worker that is lost is not replaced."""
        self._step(StopRestarts())
        with self._lock:
            timers = list(self._timers.values())
        for timer in timers:
            timer.cancel()
            timer.join()

    def stop(self, seconds: float, cancel_s: float) -> None:
        """Wait until all jobs have ended, for so many seconds in all; then cancel those that have not, and wait
        ``cancel_s`` more."""
        self.stop_restarts()
        self._join(seconds)
        if any(thread.is_alive() for thread in self._threads):
            give_up_at = time.monotonic() + cancel_s
            while any(thread.is_alive() for thread in self._threads) and time.monotonic() < give_up_at:
                self._cancel(self._tag)  # again and again: a job may have been about to begin
                self._join(CANCEL_EVERY_S)

    def _join(self, seconds: float) -> None:
        give_up_at = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))

    def _step(self, event: RestartEvent) -> None:
        with self._lock:
            for action in self._restarts.step(event):
                self._carry_out(action)

    def _carry_out(self, action: RestartAction) -> None:
        """With the lock held, and at once: what asks Spark does so on a thread of its own."""
        match action:
            case StartLife(worker=worker, life=life):
                self._timers.pop(worker, None)
                self._run_thread(f"upriver-worker-{worker}", partial(self._live, worker, life))
            case EndLife(worker=worker, life=life):
                self._run_thread(f"upriver-worker-{worker}-end", partial(self._end, worker, life))
            case RestartAt(worker=worker, life=life, at=at):
                due = RestartDue(worker=worker, life=life)
                timer = threading.Timer(max(0.0, at - time.monotonic()), self._step, (due,))
                timer.name, timer.daemon = f"upriver-worker-{worker}-restart", True
                self._timers[worker] = timer
                timer.start()
            case _:
                assert_never(action)

    def _run_thread(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads = [*(other for other in self._threads if other.is_alive()), thread]
        thread.start()

    def _live(self, worker: WorkerId, life: int) -> None:
        """One life, from its job's beginning to its end."""
        try:
            self._run_job(worker, life)
        except Exception as error:  # of many classes: whatever made the job fail, or the JVM itself is gone
            self.lost(worker, life, cause_of_job_failure(error))

    def _end(self, worker: WorkerId, life: int) -> None:
        try:
            self._cancel(self._tag_of(worker, life))
        except Exception as error:
            if not self._spark_is_gone():
                raise
            self._on_failure(ClusterError(f"Spark is gone: {error}"))

    def _spark_is_gone(self) -> bool:
        try:
            return bool(self._spark.sparkContext._jsc.sc().isStopped())
        except Exception:  # the JVM does not answer
            return True

    def _tag_of(self, worker: WorkerId, life: int) -> str:
        return f"{self._tag}-{worker}-{life}"

    def _run_job(self, worker: WorkerId, life: int) -> None:
        context = self._spark.sparkContext
        context.addJobTag(self._tag)
        context.addJobTag(self._tag_of(worker, life))
        context.setJobDescription(f"Upriver: worker {worker}")
        task = partial(run_task, replace(self._config, life=life), worker)
        # Not mapInArrow: planning a query and compiling code for it takes as long as the worker's own start.
        context.parallelize([0], 1).mapPartitions(task).collect()

    def _cancel(self, tag: str) -> None:
        # Not interruptTag, which knows only the tags of the thread that calls it.
        self._spark.sparkContext.cancelJobsWithTag(tag)
