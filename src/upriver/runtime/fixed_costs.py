"""What views take at each worker with no key in them: a memory budget must have room for that."""

from collections.abc import Mapping, Sequence
from functools import partial

from upriver.engine.expressions import Evaluator
from upriver.engine.region import Region
from upriver.errors import BudgetExceeded
from upriver.ids import BEGINNING
from upriver.plan.plan import DataflowPlan
from upriver.protocol.rules import ALL_RULES
from upriver.worker.regions import BuildRegion, empty_state


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
