"""A worker's memory budget: whether keys must be evicted, and how many may be filled. No key is filled before there is
room (partial.room_first); ``docs/internals/partial.md``. A budget must have room for what views take without keys."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from upriver.engine.expressions import Evaluator
from upriver.engine.region import Region
from upriver.errors import BudgetExceeded
from upriver.ids import BEGINNING
from upriver.partial.partial_region import UPQUERY_KEYS_MAX
from upriver.plan.plan import DataflowPlan
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.state.failure import ViewFailure
from upriver.worker.regions import BuildRegion, Regions, empty_state

KEPT_SHARE, KEPT_SHARE_MAX = 0.5, 0.55
"""Parts of the budget: above the first, keys are evicted; above the second, no keys are filled while it is full."""
FILLED_KEYS_MIN = 64
"""Keys that may be filled in one go even if there is little room: fewer take hardly less time."""


class MemoryBudget:
    """Bytes that all regions together may take."""

    def __init__(self, budget: int | None, regions: Regions, rules: Rules) -> None:
        """budget: bytes; ``None`` for any."""
        self.is_over_budget = False
        """Regions take too much memory, and there are keys to evict."""
        self._budget = budget
        self._regions = regions
        self._rules = rules

    @property
    def is_limited(self) -> bool:
        return self._budget is not None

    def weigh_evicted(self, *, can_evict: bool) -> None:
        """Keys were evicted: check whether more must be. can_evict: whether there are more."""
        self.is_over_budget = can_evict and self.is_over()

    def weigh(self) -> None:
        """Check whether keys must be evicted. If views that cannot evict take more than the budget, the largest ones
        fail until the other views have room."""
        if self._budget is not None:
            self._check_full(self._budget)
            self.is_over_budget = self.is_over()

    def is_over(self) -> bool:
        """Whether keys must be evicted: kept keys use more than half of the budget that full regions leave.

        The other half is for evicted keys, and for reclaiming their memory: it comes back when there is as much of it
        as of kept keys. Evictions begin when the first half is full, even if no key was evicted before. Otherwise many
        keys would have to go at once when memory begins to come back, and every lookup that waits for a key would wait
        for that.
        """
        budget = self._budget
        if budget is None:
            return False
        left, _, lives = self._bytes(budget)
        return lives > KEPT_SHARE * left

    def room_of(self, region: str) -> int:
        """How many keys of a partial region may be filled now, in one go (partial.room_first)."""
        budget = self._budget
        if budget is None or not self._rules.upqueries.partial_room_first:
            return UPQUERY_KEYS_MAX
        left, takes, lives = self._bytes(budget)
        spare = max(left - takes, int(KEPT_SHARE_MAX * left) - lives)
        if spare >= 0:
            of_one = self._regions.last_stats[region]
            return max(FILLED_KEYS_MIN, spare * max(of_one["present"], 1) // max(of_one["live_bytes"], 1))
        # If no key can be evicted, a lookup that waits for room would wait for ever.
        return 0 if self.is_over_budget or self._regions.has_leftovers else UPQUERY_KEYS_MAX

    def _bytes(self, budget: int) -> tuple[int, int, int]:
        """The bytes that full regions leave of the budget; those that partial regions take; and the part of these that
        kept keys take."""
        stats = self._regions.last_stats
        partial = [stats[name] for name, shard in self._regions.shards.items() if shard.partial is not None]
        full = sum(stats[name]["bytes"] for name, shard in self._regions.shards.items() if shard.partial is None)
        return (
            budget - full,
            sum(of_one["bytes"] for of_one in partial),
            sum(of_one["live_bytes"] for of_one in partial),
        )

    def _check_full(self, budget: int) -> None:
        """Views that keep all keys cannot evict: one of them fails, rather than the process. The largest fails, since
        it leaves the most room to the other views."""
        stats = self._regions.last_stats
        of_views = Counter[str]()
        for name, shard in self._regions.full.items():
            of_views[shard.view] += stats[name]["live_bytes"]
        takes = ", ".join(f"{view} {nbytes:,}" for view, nbytes in of_views.most_common())
        while of_views.total() > budget:
            ((view, _),) = of_views.most_common(1)
            del of_views[view]
            error = BudgetExceeded(
                f"worker {self._regions.me} keeps every key of these views, and they take more bytes than"
                f" memory_budget={budget:,}: {takes}. Give more memory or workers, or let views be partial"
            )
            failure = ViewFailure.of(error, f"view {view!r}")
            self._regions.fail_shards(view, failure)


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
