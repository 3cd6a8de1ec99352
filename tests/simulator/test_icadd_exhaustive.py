"""Every way that a small rescale can go, by the rules that ship: nothing is split, lost, doubled or out of order."""

import pytest

from simulator.icadd_cases import PAIR, SMALL_CASES, TINY
from simulator.icadd_scenario import Scenario, mended
from simulator.icadd_search import Search, tell

STATES_MAX = 50_000


@pytest.mark.parametrize("case", SMALL_CASES, ids=lambda case: case.name.replace(" ", "_"))
def test_all_ways_of_a_small_case_are_clean(case: Scenario) -> None:
    searched = Search(case, mended()).everything(STATES_MAX)
    assert searched.complete, f"more than {STATES_MAX} states"
    stories = ["\n".join(tell(case, mended(), finding)) for finding in searched.findings.values()]
    assert not stories, stories[0]
    assert searched.ends > 0
    assert searched.trapped == 0, "from some states there is no end"


def test_the_search_sees_more_than_one_way() -> None:
    assert Search(TINY, mended()).everything(STATES_MAX).states > 100
    assert Search(PAIR, mended()).everything(STATES_MAX).states > 1_000


def test_a_search_that_is_cut_short_says_so() -> None:
    assert not Search(PAIR, mended()).everything(100).complete
