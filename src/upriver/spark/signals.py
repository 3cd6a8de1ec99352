"""What Ctrl-C, SIGTERM and ``spark.stop()`` do to a program that runs an app.

PySpark cancels all jobs at Ctrl-C, and with them the workers; SIGTERM ends Python at once, and leaves its workers to
find that out. Here Ctrl-C cancels the program's own jobs alone, and both say one line and stop the apps at the end of
the program. In a notebook, where the kernel takes Ctrl-C, it ends the cell, and the app goes on.

A Spark context that stops under a running app ends its workers and streams in mid-work, and Spark logs a stack for
each. Here the context's apps stop first.

A Ctrl-C amid a call of the JVM makes py4j close the connections of all threads, the workers' jobs among them, and log a
stack for each. So a call that Ctrl-C has cancelled returns first, and what waits for long in the JVM does so on another
thread (:func:`aside`). What py4j logs all the same is dropped.
"""

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, TypeVar

from pyspark import SparkContext
from pyspark.sql import SparkSession

from upriver.shutdown import run_all

T = TypeVar("T")
OURS = "Upriver: "
"""What the descriptions of all jobs of an app begin with."""
PY4J_SAYS = (
    "KeyboardInterrupt while sending command.",
    "Exception while sending command.",
    "Exception occurred while shutting down connection",
)
"""What py4j logs of calls that have ended with a connection, each with a stack. It raises an error besides."""
PY4J_LOGGERS = ("root", "py4j.clientserver")
LOOK_S = 0.5
"""Seconds after which a wait sees a Ctrl-C that came just before it: Python does not wake from a lock for that."""
CANCEL_S_MAX = 2.0
"""Seconds for which the program waits until its own jobs are being cancelled, and its call of the JVM has returned."""


def take_signals(spark: SparkSession) -> None:
    """Take SIGINT from PySpark and SIGTERM from the system, for the rest of this program. A program that handles one
    itself keeps it, and so does one that calls this in another thread than its first."""
    if threading.current_thread() is not threading.main_thread():
        return
    if getattr(signal.getsignal(signal.SIGINT), "__module__", "").startswith("pyspark."):
        signal.signal(signal.SIGINT, _Interrupts(spark))
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _Termination())
    if not isinstance(sys.excepthook, _Interruption):
        sys.excepthook = _Interruption(sys.excepthook)
    for name in PY4J_LOGGERS:
        logging.getLogger(name).addFilter(_is_not_py4js)  # a second time this adds nothing


def _is_not_py4js(record: logging.LogRecord) -> bool:
    return record.msg not in PY4J_SAYS


def aside(call: Callable[[], T]) -> T:
    """Make a call on another thread, if this is the program's first one, which Ctrl-C interrupts. After that the call
    goes on by itself."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="upriver-wait", daemon=True).start()
    while not wait([done], LOOK_S).done:
        pass
    return done.result()


class _Interrupts:
    """Handles Ctrl-C: cancels the program's own jobs, and raises KeyboardInterrupt. If this thread is amid a call of
    the JVM, that returns first, unless it takes longer than ``CANCEL_S_MAX``."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._thread = threading.get_ident()
        self._calls = 0
        """Calls of the JVM that this thread is amid: one, or one within another's callback."""
        self._has_come = self._is_late = False
        self._has_returned = threading.Event()
        client: Any = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
        before = getattr(client.send_command, "__self__", None)  # that of an earlier session
        self._send: Callable[..., Any] = before._send if isinstance(before, _Interrupts) else client.send_command
        client.send_command = self.send

    def send(self, *command: Any, **options: Any) -> Any:
        """In place of the ``send_command`` of py4j's client, through which all calls of the JVM go."""
        if threading.get_ident() != self._thread:
            return self._send(*command, **options)
        self._calls += 1
        try:
            return self._send(*command, **options)
        finally:
            self._calls -= 1
            if self._has_come and not self._calls:
                self._has_come = False
                self._has_returned.set()
                raise KeyboardInterrupt

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        """The jobs are cancelled on another thread, since this one may be amid a call of the JVM."""
        is_late, self._is_late = self._is_late, False
        if self._has_come:
            self._has_come = False
            raise KeyboardInterrupt
        if is_late:  # the call has returned just now
            return
        thread = threading.Thread(target=self._cancel, name="upriver-interrupt", daemon=True)
        if self._calls:
            self._has_come = True
            self._has_returned.clear()
            thread.start()
        else:
            thread.start()
            thread.join(CANCEL_S_MAX)
            raise KeyboardInterrupt

    def _cancel(self) -> None:
        _cancel_the_programs_jobs(self._spark)
        if self._has_come and not self._has_returned.wait(CANCEL_S_MAX):
            self._is_late = True
            signal.pthread_kill(self._thread, signal.SIGINT)


def _cancel_the_programs_jobs(spark: SparkSession) -> None:
    with suppress(Exception):  # of any class: a JVM that has gone runs no jobs
        context: Any = spark.sparkContext._jsc.sc()
        for job in context.statusTracker().getActiveJobIds():
            described = context.statusStore().job(job).description()
            if not (described.isDefined() and described.get().startswith(OURS)):
                context.cancelJob(job)


class _Termination:
    """Handles SIGTERM: the program ends as by ``sys.exit``, and at its very end by the signal itself, which its parent
    is to see."""

    def __init__(self) -> None:
        self._has_come = False
        atexit.register(self._end)  # ahead of the apps' own, and so called after them

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        self._has_come = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the program at once
        print("upriver: terminated: the app stops", file=sys.stderr, flush=True)
        raise SystemExit(128 + signal.SIGTERM)

    def _end(self) -> None:
        if self._has_come:
            os.kill(os.getpid(), signal.SIGTERM)


class _Interruption:
    """A hook for exceptions that end the program, which says in one line that it was interrupted."""

    def __init__(self, before: Callable[[type[BaseException], BaseException, TracebackType | None], object]) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            print("upriver: interrupted: the app stops", file=sys.stderr, flush=True)
        else:
            self._before(kind, error, trace)


class _ContextStop:
    """In place of the ``stop`` of a Spark context: stops the context's apps first, with one line. Without apps the
    context has its own method again."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._stop = context.stop
        self._apps: list[Callable[[], object]] = []
        context.stop = self  # type: ignore[method-assign]

    def __call__(self) -> None:
        print("upriver: the Spark session is stopped: the app stops first", file=sys.stderr, flush=True)
        run_all(*self._apps[::-1], self._stop)

    def add(self, stop: Callable[[], object]) -> None:
        self._apps.append(stop)

    def remove(self, stop: Callable[[], object]) -> None:
        if stop in self._apps:
            self._apps.remove(stop)
        if not self._apps and self._context.stop is self:
            vars(self._context).pop("stop")


def stop_first(spark: SparkSession, stop: Callable[[], object]) -> None:
    """Have ``spark.stop()`` call an app's ``stop`` before it stops Spark."""
    present: Any = spark.sparkContext.stop
    (present if isinstance(present, _ContextStop) else _ContextStop(spark.sparkContext)).add(stop)


def stop_alone(spark: SparkSession, stop: Callable[[], object]) -> None:
    """The inverse of :func:`stop_first`, for an app that has stopped."""
    present: Any = spark.sparkContext.stop
    if isinstance(present, _ContextStop):
        present.remove(stop)
