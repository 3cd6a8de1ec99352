"""One arena for all threads of a worker, so that what each of them frees can be given back to the system.

glibc gives each thread an arena of its own. The free end of such a one goes back only while that very thread frees
something, and only if it is longer than twice the longest array that was ever freed; whoever asks for all free memory
(:mod:`upriver.runtime.giving_back`) gets the end of the main arena, and none of the others'.

Arenas that there are stay, those of threads of the process that this one was forked from, too, and new threads are
given them. Arrow begins a thread as soon as it is loaded. So this module loads nothing.
"""

import ctypes

ARENAS_MAX = 1
"""Arenas that threads to come are spread over, beside those that there are."""
_M_ARENA_MAX = -8
"""Of glibc's ``malloc.h``."""


def share_free_memory() -> None:
    """Have threads that begin from now on use one arena, where the C library is glibc. This cannot be taken back."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS_MAX)
