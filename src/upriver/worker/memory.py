"""A worker's memory budget: whether keys must be evicted, and how many may be filled. No key is filled before there is
room (partial.room_first); ``docs/internals/partial.md``. A budget must have room for what views take without keys.

All flows share the budget, so a step of one flow may make room for another, or fail a view of it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from upriver.engine.expressions import Evaluator
from upriver.engine.region import Region
from upriver.errors import BudgetExceeded
from upriver.ids import BEGINNING, FlowId
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
    """Bytes that the regions of all flows together may take at a worker."""

    def __init__(self, budget: int | None = None, rules: Rules = ALL_RULES) -> None:
        """budget: bytes; ``None`` for any."""
        self.is_over_budget = False
        """Regions take too much memory, and there are keys to evict."""
        self._budget = budget
        self._flows: dict[FlowId, Regions] = {}
        """The regions of each flow."""
        self._building: set[FlowId] = set()
        """The flows that are built beside others."""
        self._has_changed = False
        """Memory was weighed, or a flow has left, since ``take_changed``."""
        self._rules = rules

    @property
    def is_limited(self) -> bool:
        return self._budget is not None

    def enter(self, flow: FlowId, regions: Regions, *, builds: bool = False) -> None:
        """These are the flow's regions from now on. builds: it is built beside others, until :meth:`serves`."""
        self._flows[flow] = regions
        self._building = (self._building | {flow}) if builds else (self._building - {flow})
        self.is_over_budget = self.is_over_budget and self.is_over()

    def serves(self, flow: FlowId) -> None:
        """The flow is built."""
        self._building.discard(flow)

    def leave(self, flow: FlowId) -> None:
        """The flow keeps nothing here any more."""
        self._flows.pop(flow, None)
        self._building.discard(flow)
        self.is_over_budget = self.is_over_budget and self.is_over()
        self._has_changed = True

    def take_changed(self) -> bool:
        """Whether other flows may have room now, or a view that fails, since the last call."""
        has_changed, self._has_changed = self._has_changed and self.is_limited, False
        return has_changed

    def weigh_evicted(self, *, can_evict: bool) -> None:
        """Keys were evicted: check whether more must be. can_evict: whether there are more."""
        self.is_over_budget = can_evict and self.is_over()
        self._has_changed = True

    def weigh(self) -> None:
        """Check whether keys must be evicted. If views that cannot evict take more than the budget, the largest ones
        fail until the other views have room."""
        if self._budget is not None:
            self._check_full(self._budget)
            self.is_over_budget = self.is_over()
            self._has_changed = True

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

    def room_of(self, regions: Regions, region: str) -> int:
        """How many keys of a partial region may be filled now, in one go (partial.room_first)."""
        budget = self._budget
        if budget is None or not self._rules.upqueries.partial_room_first:
            return UPQUERY_KEYS_MAX
        left, takes, lives = self._bytes(budget)
        spare = max(left - takes, int(KEPT_SHARE_MAX * left) - lives)
        if spare >= 0:
            of_one = regions.last_stats[region]
            return max(FILLED_KEYS_MIN, spare * max(of_one["present"], 1) // max(of_one["live_bytes"], 1))
        # If no key can be evicted, a lookup that waits for room would wait for ever.
        has_leftovers = any(of_flow.has_leftovers for of_flow in self._flows.values())
        return 0 if self.is_over_budget or has_leftovers else UPQUERY_KEYS_MAX

    def _bytes(self, budget: int) -> tuple[int, int, int]:
        """The bytes that full regions leave of the budget; those that partial regions take; and the part of these that
        kept keys take."""
        full = takes = lives = 0
        for regions in self._flows.values():
            stats = regions.last_stats
            for name, shard in regions.shards.items():
                if shard.partial is None:
                    full += stats[name]["bytes"]
                else:
                    takes += stats[name]["bytes"]
                    lives += stats[name]["live_bytes"]
        return budget - full, takes, lives

    def _check_full(self, budget: int) -> None:
        """Views that keep all keys cannot evict: one of them fails, rather than the process: one that is built, if
        there is any (flows.build_fails_first), and of others the largest, since it leaves the most room to the rest."""
        of_views = Counter[tuple[FlowId, str]]()
        for flow, regions in self._flows.items():
            stats = regions.last_stats
            for name, shard in regions.full.items():
                of_views[flow, shard.view] += stats[name]["live_bytes"]
        takes = ", ".join(f"{view} {nbytes:,}" for (_, view), nbytes in of_views.most_common())
        while of_views.total() > budget:
            built = [of_one for of_one in of_views if of_one[0] in self._building]
            first = built if self._rules.flows_build_fails_first else []
            flow, view = max(first or of_views, key=of_views.__getitem__)
            del of_views[flow, view]
            regions = self._flows[flow]
            error = BudgetExceeded(
                f"worker {regions.me} keeps every key of these views, and they take more bytes than"
                f" memory_budget={budget:,}: {takes}. Give more memory or workers, or let views be partial"
            )
            regions.fail_shards(view, ViewFailure.of(error, f"view {view!r}"))


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
