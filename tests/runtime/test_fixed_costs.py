"""What views take with no key in them, and budgets that have no room for that."""

import pytest
from cone_kit import SQL, planned
from sql_kit import local_plan

from simulator.tables import TABLES
from upriver.errors import BudgetExceeded
from upriver.runtime.fixed_costs import fixed_bytes, require_memory

BYTES_MAX = 16_384
"""Of one view: so that many of them fit into the smallest budget that there is."""


@pytest.mark.parametrize("view", SQL)
def test_a_view_without_keys_takes_next_to_nothing(view: str) -> None:
    plan = planned(view)
    assert 0 < fixed_bytes([plan])[plan.name] < BYTES_MAX


def test_a_budget_without_room_for_the_views_is_refused_and_they_are_named() -> None:
    plans = [local_plan(*SQL[view], *TABLES, name=view) for view in ("fans", "supply")]
    fixed = fixed_bytes(plans)
    total = sum(fixed.values())
    require_memory(plans, total)
    require_memory(plans, None)
    takes = f"supply {fixed['supply']:,}, fans {fixed['fans']:,}"
    said = rf"take {total:,} bytes .* more than memory_budget={total - 1:,}: {takes}\. Give more memory, or keep fewer"
    with pytest.raises(BudgetExceeded, match=said):
        require_memory(plans, total - 1)
