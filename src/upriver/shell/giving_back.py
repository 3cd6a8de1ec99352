"""Memory that a worker has freed goes back to the system.

The C library and Arrow's pool keep what is freed for later. After a large batch that is many times what the batch has
left behind, and nobody who looks at the process can tell it from what the worker keeps.

glibc gives each thread an arena of its own. The free end of such a one goes back only while that very thread frees
something, and only if it is longer than the longest array that was ever freed; whoever asks for all free memory gets
the end of the main arena, and none of the others'. So the threads of a worker share one.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

PAUSE_S = 2.0
"""Seconds from one time to the next."""
ARENAS_MAX = 1
"""Arenas that threads to come are spread over, beside those that there are."""
_M_ARENA_MAX = -8
"""Of glibc's ``malloc.h``."""


def share_free_memory() -> None:
    """Have threads that begin from now on use one arena, where the C library is glibc. This cannot be taken back."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS_MAX)


@contextmanager
def giving_back(pause_s: float = PAUSE_S) -> Iterator[None]:
    """Give free memory back every so many seconds, on a thread of its own, until the block ends.

    Arrow's arrays come from the C library meanwhile: what a pool of its own has freed comes back on the thread alone
    that has used it.
    """
    pool = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(pause_s):
            give_back()

    thread = threading.Thread(target=run, name="upriver-giving-back", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        pa.set_memory_pool(pool)


def give_back() -> None:
    """Give back what is free now, where the C library is glibc: some milliseconds, in which the interpreter goes on."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
