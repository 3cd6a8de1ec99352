"""What waits for a worker's loop. Lookups go ahead of everything else.

Everything else is taken in the order in which it came: that of each channel counts. A lookup has no place in it, since
its answer tells of which epoch it is; and whoever asks waits, as nobody does for a peer's rows.
"""

import queue
from collections import deque
from collections.abc import Iterator

from upriver.protocol.messages import ToWorker
from upriver.protocol.worker_events import LookupAsked, WorkerEvent


class Inbox:
    """``put`` and ``ask`` are called by any thread, everything else by the loop's."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[WorkerEvent | None] = queue.SimpleQueue()
        """``None`` wakes the loop: there is a lookup, or was."""
        self._lookups: deque[LookupAsked] = deque()

    def put(self, event: WorkerEvent | ToWorker) -> None:
        self._events.put(event)

    def ask(self, lookup: LookupAsked) -> None:
        self._lookups.append(lookup)
        self._events.put(None)

    def lookups(self) -> Iterator[LookupAsked]:
        """Take those that are there now; who comes meanwhile waits for the next time, so all else gets its turn."""
        for _ in range(len(self._lookups)):
            yield self._lookups.popleft()

    def next(self, seconds: float | None) -> WorkerEvent | None:
        """Take the next event; wait for it at most so long, or, with ``None``, until it comes. ``None``: only lookups
        have come. Raises queue.Empty."""
        return self._events.get(timeout=seconds)
