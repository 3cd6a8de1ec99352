"""A worker's memory budget: when keys are evicted, and how many may be filled. No key is filled before there is room
(partial.room_first); ``docs/internals/partial.md``.

Also the work of a worker's cones, which read the lake by themselves, epoch by epoch and key by key.
"""

from collections import Counter

from upriver.errors import BudgetExceeded
from upriver.partial.cone import Cone, Reads
from upriver.partial.partial_region import UPQUERY_KEYS_MAX
from upriver.protocol.worker_events import FetchRows
from upriver.state.failure import ViewFailure
from upriver.worker.serving import Serving

KEPT_SHARE, KEPT_SHARE_MAX = 0.5, 0.55
"""Parts of the budget: above the first, keys are evicted; above the second, no keys are filled while it is full."""
FILLED_KEYS_MIN = 64
"""Keys that may be filled in one go even if there is little room: fewer take hardly less time."""


def weigh(phase: Serving) -> None:
    """Check whether keys must be evicted. If views that cannot evict take more than the budget, the largest ones fail
    until the other views have room."""
    if phase.memory_budget is not None:
        _check_full(phase, phase.memory_budget)
        phase.is_over_budget = is_over(phase)


def is_over(phase: Serving) -> bool:
    """Whether keys must be evicted: kept keys use more than half of the budget that full regions leave.

    The other half is for evicted keys, and for reclaiming their memory: it comes back when there is as much of it as of
    kept keys. Evictions begin when the first half is full, even if no key was evicted before. Otherwise many keys would
    have to go at once when memory begins to come back, and every lookup that waits for a key would wait for that.
    """
    budget = phase.memory_budget
    if budget is None:
        return False
    left, _, lives = _bytes(phase, budget)
    return lives > KEPT_SHARE * left


def room_of(phase: Serving, region: str) -> int:
    """How many keys of a partial region may be filled now, in one go (partial.room_first)."""
    budget = phase.memory_budget
    if budget is None or not phase.rules.upqueries.partial_room_first:
        return UPQUERY_KEYS_MAX
    left, takes, lives = _bytes(phase, budget)
    spare = max(left - takes, int(KEPT_SHARE_MAX * left) - lives)
    if spare >= 0:
        of_one = phase.last_stats[region]
        return max(FILLED_KEYS_MIN, spare * max(of_one["present"], 1) // max(of_one["live_bytes"], 1))
    # If no key can be evicted, a lookup that waits for room would wait for ever.
    return 0 if phase.is_over_budget or phase.has_leftovers else UPQUERY_KEYS_MAX


def _bytes(phase: Serving, budget: int) -> tuple[int, int, int]:
    """The bytes that full regions leave of the budget; those that partial regions take; and the part of these that
    kept keys take."""
    stats = phase.last_stats
    partial = [stats[name] for name, share in phase.shares.items() if share.partial is not None]
    full = sum(stats[name]["bytes"] for name, share in phase.shares.items() if share.partial is None)
    return budget - full, sum(of_one["bytes"] for of_one in partial), sum(of_one["live_bytes"] for of_one in partial)


def _check_full(phase: Serving, budget: int) -> None:
    """Views that keep all keys cannot evict: one of them fails, rather than the process. The largest fails, since it
    leaves the most room to the other views."""
    stats = phase.last_stats
    of_views = Counter[str]()
    for name, share in phase.shares.items():
        if share.keeps_every_key:
            of_views[share.view] += stats[name]["live_bytes"]
    takes = ", ".join(f"{view} {nbytes:,}" for view, nbytes in of_views.most_common())
    while of_views.total() > budget:
        ((view, _),) = of_views.most_common(1)
        del of_views[view]
        error = BudgetExceeded(
            f"worker {phase.me} keeps every key of these views, and they take more bytes than memory_budget={budget:,}:"
            f" {takes}. Give more memory or workers, or let views be partial"
        )
        failure = ViewFailure.of(error, f"view {view!r}")
        for share in phase.shares.values():
            if share.view == view:
                share.fail(failure)


def work_on_all(phase: Serving) -> None:
    """Let every cone that has work begin with it."""
    for view, cone in phase.cones.items():
        work_on(phase, view, cone)


def work_on(phase: Serving, view: str, cone: Cone) -> None:
    """Let a cone begin with its next work, unless it is at work already."""
    reads = None
    with phase.shares[view].contained("reading the lake"):
        reads = cone.work(phase.begun, room_of(phase, view))
    fetch(phase, view, reads)


def fetch(phase: Serving, view: str, reads: Reads | None) -> None:
    """Have rows read for a cone, if it needs any."""
    if reads is not None:
        phase.actions.append(FetchRows(generation=phase.refilled_since, view=view, reads=reads))
