"""Workers as Spark tasks: one job of one long-running task for each worker.

WorkerHost is the driver's side. It asks Spark to run the task on the executor that :mod:`upriver.coordinator.spread`
chooses. :mod:`upriver.coordinator.restarts` decides which life of a worker runs, and when the next one starts;
WorkerHost carries it out. When a life is lost, its job is cancelled, whatever Spark thinks of it. So it does not matter
whether Spark would run a failed task again (``local[N]`` does not). Nor does it matter whether the process can be
reached: a stopped process keeps its slot until Spark has killed it, some four seconds later.

:func:`run_task` is the executor's side: it runs inside a worker's Spark task.

This module also finds why a Spark job has failed, as an error of Upriver raised in a task, or as one line for people;
and chooses the Python of the executors.
"""

import logging
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import assert_never
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext, TaskContext
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession

from upriver import logs
from upriver.arguments import class_name
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
    one_line,
)
from upriver.coordinator.spread import ExecutorId, ExecutorSlots, executor_elsewhere, executor_for_worker
from upriver.engine.row_text import failure_text
from upriver.errors import ClusterError, DeclarationError, DuplicateAttempt, UpriverError
from upriver.ids import WorkerId
from upriver.net.wire import error_from_json
from upriver.plan.plan import DataflowPlan
from upriver.runtime.worker import WorkerConfig, serve_worker
from upriver.spark.placement import executors_of, one_task, running_attempts
from upriver.spark.session import cancel_jobs, check_session, is_stopped

_LOG = logging.getLogger("upriver.workers")

KILLED_S_MAX = 10.0
"""Seconds that a second attempt of a worker's task waits for Spark to kill it, as the coordinator has requested. If it
ended by itself, Spark would either count a failure of the task, or consider the task done and kill the worker."""


def run_task(config: WorkerConfig, worker: WorkerId, _: Iterable[int]) -> Iterable[int]:
    """Fill a worker's place until it retires. The task's one row stays unread: so Spark ends the process, instead of
    keeping it, with its memory, for another task."""
    if config.logs is not None:
        logs.configure(format=config.logs.format, level=config.logs.level)
    pa.set_cpu_count(1)  # the task has one slot
    pa.set_io_thread_count(1)
    context = TaskContext.get()
    assert context is not None
    try:
        serve_worker(replace(config, attempt=context.taskAttemptId()), worker)
    except DuplicateAttempt:
        time.sleep(KILLED_S_MAX)
        raise
    return ()


_LAST_LINE = re.compile(r"^upriver\.errors\.(\w+): (.*)$", re.MULTILINE)
"""The line of a traceback that names an error of Upriver."""
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"(?:\w+\.)*(\w+)(?:: (.*))?")
"""The line of a traceback that names the error."""
_LOST_TASK = re.compile(r"Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \((\S+) executor (\S+)\): (.*)")
_PYTHON_FAILED = re.compile(r"Error from python worker:\s*(\S.*)")
_STAGE_FAILED = re.compile(r"Job aborted due to stage failure: (.*)")
_PLAIN_KINDS = ("Exception", "RuntimeError")
"""Classes of errors that add nothing to their message."""
_CANCELLED = re.compile(r"Job \d+ cancelled.*")


def raised_in_task(error: PythonException) -> UpriverError | PythonException:
    """The task's error as it was raised there, without Spark's stack; unchanged if it is no error of Upriver."""
    found = _LAST_LINE.findall(str(error))
    if not found:
        return error
    kind, message = found[-1]  # the earlier ones are its causes
    return error_from_json({"error": kind, "message": message})


def cause_of_job_failure(error: BaseException) -> str:
    """Why the job has failed, in one line, without stacks: the error that its task raised, and on which host.

    ``error``: what the job's action raised in the driver; an error that is none of a job is told with its class.
    """
    is_of_job = isinstance(error, Py4JJavaError | PySparkException)
    return cause_in_text(str(error)) if is_of_job else failure_text(error)


def cause_in_text(text: str) -> str:
    """The same of an error's text, as Spark gives it."""
    lost = _LOST_TASK.search(text)
    where = f" (on {lost[1]}, executor {lost[2]})" if lost else ""
    raised = _raised_in(text)
    if raised is not None:
        return f"{raised}{where}"
    if found := _PYTHON_FAILED.search(text):
        return f"{found[1].strip()}{where}"
    if lost:
        return f"{lost[3].strip()}{where}"
    for pattern in (_CANCELLED, _STAGE_FAILED):
        if found := pattern.search(text):
            return found[found.lastindex or 0].strip()
    return next((line.strip() for line in text.splitlines() if line.strip()), "the job has failed")


def _raised_in(text: str) -> str | None:
    """The last line of the first Python traceback, or of the last traceback chained to it; ``None`` without."""
    _, found, rest = text.partition(_TRACEBACK)
    if not found:
        return None
    raised: str | None = None
    in_traceback = True
    for line in rest.splitlines():
        if line.lstrip().startswith(("at ", "Caused by:", "Driver stacktrace")):
            break  # Java's stack repeats all of it
        if line.endswith(_TRACEBACK):
            in_traceback = True
        elif in_traceback and line and not line[0].isspace():
            raised, in_traceback = _without_module(line.strip()), False
    return raised


def _without_module(line: str) -> str:
    """``upriver.errors.ClusterError: text`` as ``ClusterError: text``; of a class that says nothing, the text alone."""
    named = _RAISED.fullmatch(line)
    if named is None:
        return line
    kind, message = named[1], named[2]
    if not message:
        return kind
    return message if kind in _PLAIN_KINDS else f"{kind}: {message}"


CANCEL_EVERY_S = 0.2
"""Seconds between two attempts to cancel jobs."""


class WorkerHost:
    """Starts and ends the jobs that run workers. Usable by any thread.

    on_failure: called when no worker can be started any more, because Spark is gone.
    """

    def __init__(self, spark: SparkSession, config: WorkerConfig, on_failure: Callable[[UpriverError], None]) -> None:
        self._spark = spark
        self._config = config
        self._on_failure = on_failure
        self._tag = f"upriver-{uuid4().hex}"
        self._lock = threading.Lock()
        """Guards all fields below."""
        self._restarts = Restarts()
        self._threads: list[threading.Thread] = []
        """One for each job; a worker that has left may need some time to end."""
        self._timers: dict[WorkerId, threading.Timer] = {}
        """The timers of the waiting restarts."""
        self._placing = threading.Lock()
        """Held while a worker's executor is chosen. Guards the next field."""
        self._asked_for: dict[WorkerId, tuple[int, ExecutorId]] = {}
        """Each worker's life, and the executor that Spark was asked to run it on."""
        self._moves: dict[WorkerId, ExecutorSlots] = {}
        """Where the next lives of workers are to run that leave their hosts."""

    def replan(self, plans: tuple[DataflowPlan, ...]) -> None:
        """Give workers that start from now on these views."""
        self._config = replace(self._config, plans=plans)

    def start(self, worker: WorkerId) -> None:
        """Ask Spark for a slot and fill a worker's place; returns at once."""
        self._step(PlaceWanted(worker=worker))

    def claim(self, worker: WorkerId, life: int, attempt: int, holder_has_lease: bool) -> Claim:
        """An attempt of a life's task claims its place; see :meth:`Restarts.claim`."""
        with self._lock:
            return self._restarts.claim(worker, life, attempt, time.monotonic(), holder_has_lease=holder_has_lease)

    def is_current(self, worker: WorkerId, life: int) -> bool:
        """Whether this life fills the place now."""
        with self._lock:
            return self._restarts.is_current(worker, life)

    def lost(self, worker: WorkerId, life: int, why: str) -> None:
        """A worker was given up: fill its place again, and end the old job. Returns at once."""
        if is_stopped(self._spark):
            self._on_failure(ClusterError(f"Spark is gone: {why}"))
        elif self._step(LifeLost(worker=worker, life=life, why=why, at=time.monotonic())):
            why = one_line(why)
            _LOG.warning("worker %d was lost, and is started again: %s", worker, why, extra={"worker": int(worker)})

    def move(self, worker: WorkerId, give_up: Callable[[], None]) -> None:
        """If another host than the worker's has a free slot, run the worker's next life there, and call ``give_up``,
        which ends this life. Returns at once."""
        with self._lock:
            self._run_thread(f"upriver-worker-{worker}-move", partial(self._move, worker, give_up))

    def _move(self, worker: WorkerId, give_up: Callable[[], None]) -> None:
        context = self._spark.sparkContext
        with self._lock:
            tag, holder = self._tag_of(worker, self._restarts.life(worker)), self._restarts.holder(worker)
        with self._placing:
            copies = running_attempts(context, tag)
            left = copies.pop(holder, None) if holder is not None else None
            workers = self._workers_on(context, but=worker)
            chosen = executor_elsewhere(executors_of(context), workers, left, copies.values())
            if chosen is not None:
                self._moves[worker] = chosen
        if chosen is not None:
            for (
                copy
            ) in copies:  # it may wait for what is behind the broken link, and its job's end does not interrupt it
                self.end_attempt(copy, "the worker moves to another host")
            give_up()

    def end_attempt(self, attempt: int, why: str) -> None:
        """Make Spark kill one attempt of a task. This does not count as a failure of the task."""
        self._spark.sparkContext._jsc.sc().killTaskAttempt(attempt, True, why)

    def history(self) -> Mapping[WorkerId, PlaceHistory]:
        """How often each place was filled again, and why its last worker was lost."""
        with self._lock:
            return self._restarts.history()

    def stop_restarts(self) -> None:
        """Do not replace lost workers from now on."""
        self._step(StopRestarts())
        with self._lock:
            timers = list(self._timers.values())
        for timer in timers:
            timer.cancel()
            timer.join()

    def stop(self, seconds: float, cancel_s: float) -> None:
        """Wait until all jobs have ended, for so many seconds in all; then cancel the others, and wait ``cancel_s``
        more."""
        self.stop_restarts()
        self._join(seconds)
        if any(thread.is_alive() for thread in self._threads):
            give_up_at = time.monotonic() + cancel_s
            while any(thread.is_alive() for thread in self._threads) and time.monotonic() < give_up_at:
                cancel_jobs(self._spark, self._tag)  # repeatedly: a job may be about to begin
                self._join(CANCEL_EVERY_S)

    def _join(self, seconds: float) -> None:
        give_up_at = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))

    def _step(self, event: RestartEvent) -> bool:
        """Returns whether anything followed."""
        with self._lock:
            actions = self._restarts.step(event)
            for action in actions:
                self._carry_out(action)
            return bool(actions)

    def _carry_out(self, action: RestartAction) -> None:
        """Runs with the lock held, and returns at once: calls to Spark run on a thread of their own."""
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
        except Exception as error:  # of many classes: the job has failed, or the JVM is gone
            self.lost(worker, life, cause_of_job_failure(error))
        finally:
            with self._placing:
                if self._asked_for.get(worker, (0,))[0] == life:
                    del self._asked_for[worker]

    def _executor_for(self, worker: WorkerId, life: int) -> ExecutorSlots | None:
        """The executor on which Spark should run this life; ``None``: any."""
        context = self._spark.sparkContext
        with self._lock:
            is_unlucky = self._restarts.losses(worker) > 1  # perhaps because of its executor
        if self._config.is_local:
            return None
        with self._placing:
            chosen = self._moves.pop(worker, None)
            if chosen is None and not is_unlucky:
                chosen = executor_for_worker(executors_of(context), self._workers_on(context, but=worker))
            if chosen is not None:
                self._asked_for[worker] = life, chosen.id
        return chosen

    def _workers_on(self, context: SparkContext, but: WorkerId) -> Counter[ExecutorId]:
        """How many workers run on each executor, without this one."""
        return Counter(
            next(iter(running_attempts(context, self._tag_of(other, life)).values()), asked_for)
            for other, (life, asked_for) in self._asked_for.items()
            if other != but
        )

    def _end(self, worker: WorkerId, life: int) -> None:
        cancel_jobs(self._spark, self._tag_of(worker, life))

    def _tag_of(self, worker: WorkerId, life: int) -> str:
        return f"{self._tag}-{worker}-{life}"

    def _run_job(self, worker: WorkerId, life: int) -> None:
        context, executor = self._spark.sparkContext, self._executor_for(worker, life)
        context.addJobTag(self._tag)
        context.addJobTag(self._tag_of(worker, life))
        context.setJobDescription(f"Upriver: worker {worker}")
        task = partial(run_task, replace(self._config, life=life), worker)
        # Not mapInArrow: planning a query and compiling code for it takes as long as the worker's own start.
        one_task(context, executor).mapPartitions(task).collect()


def runs_elsewhere(spark: SparkSession) -> bool:
    """Whether executors may have other packages than this process: only its own interpreter on its own machine
    cannot."""
    context = spark.sparkContext
    is_own = os.path.realpath(context.pythonExec) == os.path.realpath(sys.executable)
    return not (is_own and str(context.master).startswith("local"))


def use_own_python(spark: SparkSession) -> None:
    """In local mode, make Spark's Python workers use this interpreter.

    By default Spark starts the first ``python3`` on the PATH, which may lack our packages. On a cluster, and if the
    user has chosen one, the choice stands.
    """
    if not isinstance(spark, SparkSession):
        if ".connect." in type(spark).__module__:
            raise DeclarationError(
                "spark is a session of Spark Connect, which cannot run an app: its workers are tasks that the driver "
                "itself starts. Run the app where the driver is, with SparkSession.builder.master(...).getOrCreate(). "
                'Here, read its views with spark.read.format("upriver"), and their changes with '
                'spark.readStream.format("upriver")'
            )
        raise DeclarationError(f"spark={spark!r}: give a pyspark.sql.SparkSession, not a {class_name(spark)}")
    check_session(spark)
    context = spark.sparkContext
    chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if not chosen and str(context.master).startswith("local"):
        context.pythonExec = sys.executable
