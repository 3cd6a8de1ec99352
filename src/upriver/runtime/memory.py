"""What views take at each worker with no key in them: a budget of memory must have room for that.

One arena for all threads of a worker, so that what each of them frees can be given back to the system.

glibc gives each thread an arena of its own. The free end of such a one goes back only while that very thread frees
something, and only if it is longer than twice the longest array that was ever freed; whoever asks for all free memory
(:mod:`upriver.runtime.memory`) gets the end of the main arena, and none of the others'.

Arenas that there are stay, those of threads of the process that this one was forked from, too, and new threads are
given them. Arrow begins a thread as soon as it is loaded. So this module loads nothing.

Memory that a worker has freed goes back to the system.

The C library and Arrow's pool keep what is freed for later. After a large batch that is many times what the batch has
left behind, and nobody who looks at the process can tell it from what the worker keeps.
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
"""Arenas that threads to come are spread over, beside those that there are."""
_M_ARENA_MAX = -8
"""Of glibc's ``malloc.h``."""


def share_free_memory() -> None:
    """Have threads that begin from now on use one arena, where the C library is glibc. This cannot be taken back."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS_MAX)


PAUSE_S = 2.0
"""Seconds from one time to the next."""


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


def require_memory(plans: Sequence[DataflowPlan], budget: int | None) -> None:
    """Raise BudgetExceeded unless these views, empty, fit into the budget. budget: bytes for each worker; ``None`` for
    any."""
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
