"""Epochs for views that depend on the clock: time moves with the epochs, so there must be one from time to time."""

import logging
import threading
from collections.abc import Callable

from upriver.engine.row_text import error_text
from upriver.errors import LakeError

_LOG = logging.getLogger("upriver.clock")

TICK_S = 10.0
"""Seconds between two epochs at most, if a view depends on the clock."""


class ClockTicks:
    """A thread that publishes an epoch without rows when none came for some time.

    tick: publishes one unless there is a newer one than so many seconds, and returns the seconds until the next is due.
    is_needed: whether a view depends on the clock.
    """

    def __init__(self, tick: Callable[[float], float], is_needed: Callable[[], bool], tick_s: float) -> None:
        self._tick = tick
        self._is_needed = is_needed
        self._tick_s = tick_s
        self._stopped = threading.Event()
        self._error: str | None = None
        self._thread = threading.Thread(target=self._run, name="upriver-clock", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when no epoch is being published."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        due_s = 0.0
        while not self._stopped.wait(due_s):
            due_s = self._tick_s
            if self._is_needed():
                try:
                    due_s = self._tick(self._tick_s)
                    self._error = None
                except (LakeError, OSError) as error:
                    self._tell(error_text(error))

    def _tell(self, error: str) -> None:
        """Log an error once, however often it comes."""
        if error != self._error:
            _LOG.warning("the clock of the views stands still, because no epoch can be committed: %s", error)
        self._error = error
