"""Latch: what one thread waits for and another one does. An Event or a Future would do; this costs a tenth of one."""

import threading


class Latch:
    """Shut until it is opened, once, by any thread. One thread waits for that."""

    __slots__ = ("_shut",)

    def __init__(self) -> None:
        self._shut = threading.Lock()
        self._shut.acquire()

    def open(self) -> None:
        """Let whoever waits go on."""
        self._shut.release()

    def wait(self, seconds: float = threading.TIMEOUT_MAX) -> bool:
        """Whether it was opened in so many seconds. Not to be called again once it was."""
        return self._shut.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX))
