"""Whether the app is ready, as far as is known: probes are answered from it, and so cost no call of the app."""

import time
from collections.abc import Callable

from upriver.errors import UpriverError

READY_EVERY_S = 0.25
"""Seconds between two looks at the app."""
READY_S_MAX = 5.0
"""Seconds for which a look holds: an app that has not answered for longer is not ready."""


class Readiness:
    """``look`` asks the app, on one thread; any thread reads ``is_ready``. check: raises UpriverError if the app is not
    ready, or does not answer. clock: seconds, monotonic."""

    def __init__(self, check: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._check = check
        self._clock = clock
        self._holds_until: float | None = None
        """When the last look is too old; ``None`` if it found the app not ready."""

    def look(self) -> None:
        began = self._clock()
        try:
            self._check()
        except UpriverError:
            self._holds_until = None
        else:
            self._holds_until = began + READY_S_MAX

    @property
    def is_ready(self) -> bool:
        holds_until = self._holds_until
        return holds_until is not None and self._clock() < holds_until
