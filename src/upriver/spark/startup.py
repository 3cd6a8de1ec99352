"""A start under one deadline.

Its steps run on a thread of their own, because not every step has a timeout. After the deadline, Startup cancels the
Spark jobs of the step, which ends nearly all steps at once, and tells the caller which step it was.
"""

import atexit
import logging
import threading
import time
from collections.abc import Callable
from uuid import uuid4

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from upriver.errors import WaitTimeout
from upriver.progress import Told
from upriver.spark.session import DESCRIPTION, cancel_jobs

_LOG = logging.getLogger("upriver.app")

GRACE_S = 0.2
"""Seconds after the deadline in which a step may itself report what it lacks."""
UNWIND_S_MAX = 0.3
"""Seconds for which the caller waits until a step with cancelled jobs ends."""
LINGER_S_MAX = 120.0
"""Seconds for which a step's jobs are cancelled if it takes longer to end: a file system hangs, or Spark plans a query.
When the step returns, its results are given back."""
EXIT_S_MAX = 5.0
"""Seconds for which a program that ends waits for the step. A thread that still runs then keeps what it refers to, and
DuckDB reports that as leaks, in forty lines."""
_CANCEL_EVERY_S = 0.1


class Startup:
    """One start: the caller uses ``run``, the thread of the steps uses the rest.

    seconds: for all steps together. abandon: gives back the results of a step that returns after the deadline. told:
    takes each step.
    """

    def __init__(self, spark: SparkSession, seconds: float, abandon: Callable[[], None], told: Told) -> None:
        self._spark = spark
        self._context = spark.sparkContext
        self._seconds = seconds
        self._abandon = abandon
        self._told = told
        self._deadline = time.monotonic() + seconds
        self._tag = f"upriver-start-{uuid4().hex}"
        self._at = "starting"
        self._done = threading.Event()
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._described: str | None = None
        """The user's description of this thread's jobs."""

    def run(self, steps: Callable[[], None], detail: Callable[[], str]) -> None:
        """Run the steps. detail: more information for a WaitTimeout.

        Raises what a step raises, and WaitTimeout if the steps take too long.
        """
        thread = InheritableThread(target=self._run, args=(steps,), name="upriver-start", daemon=True)
        thread.start()
        try:
            in_time = self._done.wait(max(0.0, self.seconds_left()) + GRACE_S)
            late = None if in_time else WaitTimeout(f"{self.late()}{detail()}")
        except BaseException:  # the user has interrupted it
            self._end(thread)
            raise
        if late is not None:
            self._end(thread)
            raise late
        thread.join()
        if self._error is not None:
            raise self._error

    def late(self) -> str:
        return f"the app is not up after {self._seconds:g} s: it was {self._at}"

    def _end(self, thread: threading.Thread) -> None:
        """End the current step if possible; otherwise it ends later, while the caller goes on. thread: of the steps."""
        self._is_over.set()
        ending = threading.Thread(target=self._cancel_jobs, name="upriver-start-end", daemon=True)
        ending.start()
        atexit.register(ending.join, EXIT_S_MAX)
        atexit.register(thread.join, EXIT_S_MAX)
        self._done.wait(UNWIND_S_MAX)

    def _cancel_jobs(self) -> None:
        give_up_at = time.monotonic() + LINGER_S_MAX
        while not self._done.is_set() and time.monotonic() < give_up_at:
            cancel_jobs(self._spark, self._tag)  # repeatedly: a job may be about to begin
            self._done.wait(_CANCEL_EVERY_S)

    def _run(self, steps: Callable[[], None]) -> None:
        try:
            self._context.addJobTag(self._tag)
            self._described = self._context.getLocalProperty(DESCRIPTION)
            self._context.setLocalProperty(DESCRIPTION, self._described or "Upriver: start")
            steps()
        except BaseException as error:
            self._error = error
        finally:
            if self._is_over.is_set():
                self._abandon()
            self._done.set()

    def at(self, step: str) -> None:
        """Note that this step begins, such as "reading the lake". Raises WaitTimeout after the deadline."""
        self._at = step
        self._told(step)
        _LOG.info("start: %s", step)
        self._context.setLocalProperty(DESCRIPTION, self._described or f"Upriver: start, {step}")
        self.check()

    def check(self) -> None:
        """Raise WaitTimeout after the deadline."""
        if self._is_over.is_set() or self.seconds_left() < 0:
            raise WaitTimeout(self.late())

    def seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def outlive(self) -> None:
        """Jobs that are started from now on outlive the start: they inherit neither tag nor description."""
        self._context.removeJobTag(self._tag)
        self._context.setLocalProperty(DESCRIPTION, self._described)  # type: ignore[arg-type]  # None unsets it
