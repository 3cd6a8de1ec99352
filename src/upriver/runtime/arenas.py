"""One arena for all threads, so that what each of them frees can be given back to the system.

glibc gives each thread an arena of its own. The free end of such an arena goes back only while its own thread frees
something, and only if it is longer than twice the longest array that was ever freed. ``malloc_trim``
(:func:`upriver.runtime.memory.trim_heap`) frees only the end of the main arena.

Existing arenas stay, including those of threads of the parent process, and new threads are given them. Arrow begins a
thread as soon as it is loaded, so this module loads nothing.
"""

import ctypes

ARENAS_MAX = 1
"""Arenas that new threads are spread over, beside the existing ones."""
_M_ARENA_MAX = -8
"""Of glibc's ``malloc.h``."""


def share_free_memory() -> None:
    """Make threads that begin from now on use one arena, where the C library is glibc. This cannot be undone."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS_MAX)
