"""Memory of a worker: one arena for all threads, giving free memory back to the system, and the budget's minimum.

One arena for all threads, so that what each of them frees can be given back to the system: glibc gives each thread an
arena of its own. The free end of such an arena goes back only while its own thread frees something, and only if it is
longer than twice the longest array that was ever freed. ``malloc_trim`` (:func:`give_back`) frees only the end of the
main arena.

Existing arenas stay, including those of threads of the parent process, and new threads are given them. Arrow begins a
thread as soon as it is loaded.

Memory that a worker has freed goes back to the system: the C library and Arrow's pool keep it for later. After a large
batch that is many times what the batch has left behind, and from outside the process it looks like memory in use.

What views take at each worker with no key in them: a memory budget must have room for that.
"""

import ctypes
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import pyarrow as pa

from upriver.engine.expressions import Evaluator
from upriver.engine.region import Region
from upriver.errors import BudgetExceeded
from upriver.ids import BEGINNING
from upriver.plan.plan import DataflowPlan
from upriver.protocol.rules import ALL_RULES
from upriver.worker.serving import BuildRegion, empty_state

ARENAS_MAX = 1
"""Arenas that new threads are spread over, beside the existing ones."""
_M_ARENA_MAX = -8
"""Of glibc's ``malloc.h``."""


def share_free_memory() -> None:
    """Make threads that begin from now on use one arena, where the C library is glibc. This cannot be undone."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS_MAX)


PAUSE_S = 2.0
"""Seconds between two calls of ``give_back``."""


@contextmanager
def giving_back(pause_s: float = PAUSE_S) -> Iterator[None]:
    """Give free memory back every ``pause_s`` seconds, on a thread of its own, until the block ends.

    Meanwhile Arrow's arrays come from the C library: memory freed by Arrow's own pool comes back only on the thread
    that used it.
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
    """Give back what is free now, where the C library is glibc: some milliseconds, while other threads go on."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def require_memory(plans: Sequence[DataflowPlan], budget: int | None) -> None:
    """Raise BudgetExceeded unless these views, empty, fit into the budget. budget: bytes for each worker; ``None`` for
    no limit."""
    if budget is None:
        return
    fixed = fixed_bytes(plans)
    if sum(fixed.values()) > budget:
        takes = ", ".join(f"{name} {of_one:,}" for name, of_one in sorted(fixed.items(), key=lambda item: -item[1]))
        raise BudgetExceeded(
            f"with no key in them, the views take {sum(fixed.values()):,} bytes of each worker, which is more than"
            f" memory_budget={budget:,}: {takes}. Give more memory, or keep fewer views"
        )


def fixed_bytes(plans: Sequence[DataflowPlan]) -> Mapping[str, int]:
    """By view: bytes of a worker's state that are there with no key at all."""
    build: BuildRegion = partial(Region.build, evaluator=Evaluator())
    return {plan.name: sum(_empty_bytes(plan, build)) for plan in plans}


def _empty_bytes(plan: DataflowPlan, build: BuildRegion) -> list[int]:
    return [empty_state(plan, region, build, ALL_RULES, BEGINNING).stats()["bytes"] for region in plan.spread]
