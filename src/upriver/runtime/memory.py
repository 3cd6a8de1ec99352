"""Memory that a worker has freed goes back to the system.

The C library and Arrow's pool keep it for later. After a large batch that is many times what the batch has left behind,
and from outside the process it looks like memory in use.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

PAUSE_S = 2.0
"""Seconds between two calls of ``trim_heap``."""


@contextmanager
def trimming_heap(pause_s: float = PAUSE_S) -> Iterator[None]:
    """Return free memory to the system every ``pause_s`` seconds, on a thread of its own, until the block ends.

    Meanwhile Arrow's arrays come from the C library: memory freed by Arrow's own pool comes back only on the thread
    that used it.
    """
    pool = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(pause_s):
            trim_heap()

    thread = threading.Thread(target=run, name="upriver-trim-heap", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        pa.set_memory_pool(pool)


def trim_heap() -> None:
    """Return free memory to the system, where the C library is glibc: some milliseconds, while other threads go on."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
