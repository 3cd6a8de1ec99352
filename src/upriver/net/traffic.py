"""What the large frames of all clients of one process may take of it: bytes at one time, and seconds to be read.

Small frames are bounded by the number of clients. A large one counts as it comes or goes, and what has no room is
refused, so that its memory is free at once: waiting for room would keep it.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from upriver.errors import Busy
from upriver.net.watch import Watch

LARGE_BYTES_MAX = 256 << 20
"""Bytes of large questions and answers that one process has under way. One alone may be larger."""
SEND_S_MAX = 30.0
"""Seconds in which a client must take at least a part of what it is sent."""
SEND_BYTES_PER_S_MIN = 64 << 10
"""Bytes a second that a client must take of a large answer, beside ``SEND_S_MAX``."""


class Traffic:
    """The large frames of one server. Usable by any thread."""

    def __init__(
        self,
        bytes_max: int = LARGE_BYTES_MAX,
        send_s_max: float = SEND_S_MAX,
        bytes_per_s_min: int = SEND_BYTES_PER_S_MIN,
    ) -> None:
        self._bytes_max = bytes_max
        self._send_s_max = send_s_max
        self._bytes_per_s_min = bytes_per_s_min
        self._watch = Watch()
        self._lock = threading.Lock()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Under way now."""
        return self._bytes

    def hold(self, nbytes: int) -> None:
        """Count bytes as under way. Raises Busy if there is no room for them."""
        with self._lock:
            if self._bytes and self._bytes + nbytes > self._bytes_max:
                raise Busy(
                    f"{self._bytes:,} bytes of other clients' large questions and answers are under way, of at most "
                    f"{self._bytes_max:,}: ask again soon, or for fewer keys at a time"
                )
            self._bytes += nbytes

    def let_go(self, nbytes: int) -> None:
        with self._lock:
            self._bytes -= nbytes

    @contextmanager
    def sending(self, nbytes: int, cut: Callable[[], None]) -> Iterator[None]:
        """Count so many bytes while the block sends them; ``cut`` is called if the client does not take them in time.

        Raises Busy.
        """
        self.hold(nbytes)
        try:
            due_at = time.monotonic() + self._send_s_max + nbytes / self._bytes_per_s_min
            with self._watch.limit(due_at, cut):
                yield
        finally:
            self.let_go(nbytes)

    def close(self) -> None:
        self._watch.close()
