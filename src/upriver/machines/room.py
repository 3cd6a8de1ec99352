"""How much a worker may keep, and how much more: under a memory budget nothing is filled before there is room (P9)."""

from upriver.errors import BudgetExceeded
from upriver.machines.following import Following, Stats
from upriver.upquery.partial_region import UPQUERY_KEYS_MAX

FILLED_KEYS_MIN = 64
"""Keys that may be filled in one go, however little room there is: fewer take hardly less time."""


def weigh(phase: Following) -> None:
    """See whether memory is to be given back. Raises BudgetExceeded if what cannot be takes more than there is."""
    if phase.memory_budget is not None:
        stats = phase.last_stats
        _check_full(phase, stats, phase.memory_budget)
        phase.is_over_budget = is_over(stats, phase.memory_budget)


def is_over(stats: Stats, budget: int | None) -> bool:
    """Whether more is kept than should be. What was forgotten comes back in time, at the latest when there is as much
    of it as of what is kept; so while less than half of the budget is in use, there is nothing to do but wait."""
    return budget is not None and _spare(stats, budget) < 0


def room_of(phase: Following, region: str) -> int:
    """How many keys of a partial region may be filled now, in one go (P9)."""
    budget = phase.memory_budget
    if budget is None or not phase.rules.upqueries.p9_room_first:  # P9
        return UPQUERY_KEYS_MAX
    if phase.is_over_budget or phase.has_leftovers:
        return 0
    stats = phase.last_stats
    spare, of_one = _spare(stats, budget), stats[region]
    if spare < 0:
        return UPQUERY_KEYS_MAX  # all that there is must stay: whoever waits for it would wait for ever
    return max(FILLED_KEYS_MIN, spare * max(of_one["present"], 1) // max(of_one["live_bytes"], 1))


def _spare(stats: Stats, budget: int) -> int:
    """Bytes that more may be kept of, below zero if it is too much already."""
    takes, lives = (sum(of_one[what] for of_one in stats.values()) for what in ("bytes", "live_bytes"))
    return max(budget - takes, budget // 2 - lives)


def _check_full(phase: Following, stats: Stats, budget: int) -> None:
    """Regions that keep all keys can evict none: better to say so than to let the process die."""
    full = {name: stats[name]["live_bytes"] for name, share in phase.shares.items() if share.partial is None}
    if sum(full.values()) > budget:
        takes = ", ".join(f"{name} {of_one:,}" for name, of_one in sorted(full.items(), key=lambda item: -item[1]))
        raise BudgetExceeded(
            f"worker {phase.me} keeps every key of these regions, and they take more bytes than"
            f" memory_budget={budget:,}: {takes}. Give more memory or workers, or let views be partial"
        )
