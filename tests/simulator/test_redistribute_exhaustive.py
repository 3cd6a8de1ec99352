"""Every way that a small rescale can go by ``redistribute``: nothing is split, lost, doubled or out of order."""

import pytest

from simulator.icadd_cases import PAIR, SMALL_CASES
from simulator.icadd_scenario import Scenario
from simulator.icadd_search import Search, tell
from simulator.redistribute_cases import REDISTRIBUTE_CASES
from simulator.redistribute_rulebook import redistribute_rulebook

STATES_MAX = 20_000


@pytest.mark.parametrize("case", SMALL_CASES + REDISTRIBUTE_CASES, ids=lambda case: case.name.replace(" ", "_"))
def test_all_ways_of_a_small_case_are_clean(case: Scenario) -> None:
    searched = Search(case, redistribute_rulebook()).everything(STATES_MAX)
    assert searched.complete, f"more than {STATES_MAX} states"
    stories = ["\n".join(tell(case, redistribute_rulebook(), finding)) for finding in searched.findings.values()]
    assert not stories, stories[0]
    assert searched.ends > 0
    assert searched.trapped == 0, "from some states there is no end"


def test_the_search_sees_more_than_one_way() -> None:
    assert Search(PAIR, redistribute_rulebook()).everything(STATES_MAX).states > 500
