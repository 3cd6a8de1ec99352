"""What Ctrl-C and SIGTERM do to a program that runs an app.

PySpark cancels all jobs at Ctrl-C, and with them the workers; SIGTERM ends Python at once, and leaves its workers to
find that out. Here Ctrl-C cancels the program's own jobs alone, and both say one line and stop the apps at the end of
the program. In a notebook, where the kernel takes Ctrl-C, it ends the cell, and the app goes on.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType, TracebackType
from typing import Any

from pyspark.sql import SparkSession

OURS = "Upriver: "
"""What the descriptions of all jobs of an app begin with."""
CANCEL_S_MAX = 2.0
"""Seconds for which the program waits until its own jobs are being cancelled."""


def take_signals(spark: SparkSession) -> None:
    """Take SIGINT from PySpark and SIGTERM from the system, for the rest of this program. A program that handles one
    itself keeps it, and so does one that calls this in another thread than its first."""
    if threading.current_thread() is not threading.main_thread():
        return
    if getattr(signal.getsignal(signal.SIGINT), "__module__", "").startswith("pyspark."):
        signal.signal(signal.SIGINT, partial(_interrupted, spark))
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _Termination())
    if not isinstance(sys.excepthook, _Interruption):
        sys.excepthook = _Interruption(sys.excepthook)


def _interrupted(spark: SparkSession, _signal: int, _frame: FrameType | None) -> None:
    """In another thread, since this one may be amid a call of the JVM's."""
    thread = threading.Thread(target=_cancel_the_programs_jobs, args=(spark,), name="upriver-interrupt", daemon=True)
    thread.start()
    thread.join(CANCEL_S_MAX)
    raise KeyboardInterrupt


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
