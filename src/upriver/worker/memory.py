"""A worker's cones: they read the lake by themselves, epoch by epoch and key by key; ``docs/internals/partial.md``.

How much a worker may keep, and how much more: under a memory budget nothing is filled before there is room
(partial.room_first).
"""

from collections import Counter

from upriver.errors import BudgetExceeded
from upriver.partial.cone import Cone, Reads
from upriver.partial.partial_region import UPQUERY_KEYS_MAX
from upriver.protocol.worker_events import FetchRows
from upriver.state.failure import ViewFailure
from upriver.worker.serving import Serving

KEPT_SHARE, KEPT_SHARE_MAX = 0.5, 0.55
"""Of the budget: from which on keys are evicted, and more than which nobody fills while the budget is full."""
FILLED_KEYS_MIN = 64
"""Keys that may be filled in one go, however little room there is: fewer take hardly less time."""


def weigh(phase: Serving) -> None:
    """See whether memory is to be given back. If what cannot be takes more than there is, the largest views fail until
    the others have room."""
    if phase.memory_budget is not None:
        _check_full(phase, phase.memory_budget)
        phase.is_over_budget = is_over(phase)


def is_over(phase: Serving) -> bool:
    """Whether keys are to be evicted: more than half is in use of what full regions leave of the budget.

    The other half is for what was forgotten, whose memory comes back when there is as much of it as of what is kept,
    and for doing that. Evictions begin when the half is full, whether or not anything was forgotten: else many keys
    would have to go at once when memory begins to come back, and all who wait for a key would wait for that.
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
    # Where all that there is must stay, whoever waits for room would wait for ever.
    return 0 if phase.is_over_budget or phase.has_leftovers else UPQUERY_KEYS_MAX


def _bytes(phase: Serving, budget: int) -> tuple[int, int, int]:
    """What regions that keep every key leave of the budget; what all others take, and what of it is for something that
    is kept."""
    stats = phase.last_stats
    partial = [stats[name] for name, share in phase.shares.items() if share.partial is not None]
    full = sum(stats[name]["bytes"] for name, share in phase.shares.items() if share.partial is None)
    return budget - full, sum(of_one["bytes"] for of_one in partial), sum(of_one["live_bytes"] for of_one in partial)


def _check_full(phase: Serving, budget: int) -> None:
    """Views that keep all keys can evict none: one of them fails, rather than the process. The largest one, since it
    leaves the most room to the others."""
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
    """Let every cone that has something to do begin with it."""
    for view, cone in phase.cones.items():
        work_on(phase, view, cone)


def work_on(phase: Serving, view: str, cone: Cone) -> None:
    """Let a cone begin with the next thing that it has to do, unless it is at it."""
    reads = None
    with phase.shares[view].contained("reading the lake"):
        reads = cone.work(phase.begun, room_of(phase, view))
    fetch(phase, view, reads)


def fetch(phase: Serving, view: str, reads: Reads | None) -> None:
    """Have rows read for a cone, if it needs any."""
    if reads is not None:
        phase.actions.append(FetchRows(generation=phase.refilled_since, view=view, reads=reads))
