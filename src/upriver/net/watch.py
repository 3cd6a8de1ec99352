"""Time limits for calls that have none: a read of a socket ends only when bytes come or the socket is cut."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf


@dataclass(eq=False, slots=True)
class Limit:
    """A block's: what to ``call`` when it lasts until ``due_at``, and how many seconds later ``again_after`` that."""

    watch: "Watch"
    due_at: float
    again_after: float | None
    call: Callable[[], None]

    def __enter__(self) -> None:
        self.watch.begin(self)

    def __exit__(self, *_: object) -> None:
        self.watch.end(self)


class Watch:
    """Calls back when time is up, on one thread of its own that starts with the first use.

    The thread sleeps until the earliest time it has been told of, even if that has been taken back: so a use costs a
    few microseconds, and hardly ever wakes it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        """Guards all that follows."""
        self._due: dict[Limit, float] = {}
        """When."""
        self._wakes_at = inf
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def limit(self, due_at: float, call: Callable[[], None]) -> "Limit":
        """Call ``call`` if the block lasts until ``due_at``, in seconds of ``time.monotonic``.

        ``call`` must return at once. It never runs after the block.
        """
        return Limit(self, due_at, None, call)

    def every(self, seconds: float, call: Callable[[], None]) -> "Limit":
        """Call ``call`` each time that the block has lasted so many seconds more; else as :meth:`limit`."""
        return Limit(self, time.monotonic() + seconds, seconds, call)

    def begin(self, limit: "Limit") -> None:
        """See to a limit from now on."""
        with self._changed:
            self._due[limit] = limit.due_at
            if limit.due_at < self._wakes_at:
                self._wakes_at = limit.due_at
                self._wake()

    def end(self, limit: "Limit") -> None:
        """Forget a limit."""
        with self._changed:
            self._due.pop(limit, None)

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="upriver-watch", daemon=True)
            self._thread.start()
        self._changed.notify()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._is_closed:
                now = time.monotonic()
                for limit in [limit for limit, due_at in self._due.items() if due_at <= now]:
                    del self._due[limit]
                    if limit.again_after is not None:
                        self._due[limit] = now + limit.again_after
                    limit.call()
                self._wakes_at = min(self._due.values(), default=inf)
                self._changed.wait(None if self._wakes_at == inf else self._wakes_at - now)
