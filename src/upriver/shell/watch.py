"""Time limits for calls that have none: a read of a Flight stream ends only when it is cancelled."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf


class Watch:
    """Calls back when time is up, on one thread of its own that starts with the first use.

    The thread sleeps until the earliest time it has been told of, even if that has been taken back: so a use costs a
    few microseconds, and hardly ever wakes it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        """Guards all that follows."""
        self._due: dict[object, tuple[float, float | None, Callable[[], None]]] = {}
        """When, how much later again, and what."""
        self._wakes_at = inf
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @contextmanager
    def limit(self, due_at: float, call: Callable[[], None]) -> Iterator[None]:
        """Call ``call`` if the block lasts until ``due_at``, in seconds of ``time.monotonic``.

        ``call`` must return at once. It never runs after the block.
        """
        with self._called(due_at, None, call):
            yield

    @contextmanager
    def every(self, seconds: float, call: Callable[[], None]) -> Iterator[None]:
        """Call ``call`` each time that the block has lasted so many seconds more; else as :meth:`limit`."""
        with self._called(time.monotonic() + seconds, seconds, call):
            yield

    @contextmanager
    def _called(self, due_at: float, again_after: float | None, call: Callable[[], None]) -> Iterator[None]:
        ticket = object()
        with self._changed:
            self._due[ticket] = due_at, again_after, call
            if due_at < self._wakes_at:
                self._wakes_at = due_at
                self._wake()
        try:
            yield
        finally:
            with self._changed:
                self._due.pop(ticket, None)

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
                for ticket in [ticket for ticket, (due_at, *_) in self._due.items() if due_at <= now]:
                    _, again_after, call = self._due.pop(ticket)
                    if again_after is not None:
                        self._due[ticket] = now + again_after, again_after, call
                    call()
                self._wakes_at = min((due_at for due_at, *_ in self._due.values()), default=inf)
                self._changed.wait(None if self._wakes_at == inf else self._wakes_at - now)
