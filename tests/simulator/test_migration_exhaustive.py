"""Every way that a small rescale can go, by the rules that ship: nothing is split, lost, doubled or out of order."""

import pytest

from simulator.icadd_cases import PAIR, SMALL_CASES, TINY
from simulator.icadd_scenario import Rulebook, Scenario, mended
from simulator.icadd_search import Search, tell
from simulator.redistribute_cases import REDISTRIBUTE_CASES
from simulator.redistribute_rulebook import redistribute_rulebook

STATES_MAX = 50_000
QUICK = {
    "icadd": ("tiny", "pair", "down", "new key", "bounced", "quiet"),
    "redistribute": ("tiny", "bounced", "quiet", "one origin", "second operator", "abort two keys"),
}
"""Cases of few states. The others take a second or more each."""
MANY = ("graph of new key", "cross", "slow", "up and down", "two regions")
"""Cases of so many states that the soak alone searches them."""


def marks_of(protocol: str, name: str) -> tuple[pytest.MarkDecorator, ...]:
    if name in MANY:
        return (pytest.mark.long,)
    return () if name in QUICK[protocol] else (pytest.mark.verify,)


PROTOCOLS: dict[str, tuple[Rulebook, tuple[Scenario, ...]]] = {
    "icadd": (mended(), SMALL_CASES),
    "redistribute": (redistribute_rulebook(), (*SMALL_CASES, *REDISTRIBUTE_CASES)),
}


@pytest.mark.parametrize(
    ("protocol", "case"),
    [
        pytest.param(
            protocol,
            case,
            id=f"{protocol}-{case.name}".replace(" ", "_"),
            marks=marks_of(protocol, case.name),
        )
        for protocol, (_, cases) in PROTOCOLS.items()
        for case in cases
    ],
)
def test_all_ways_of_a_small_case_are_clean(protocol: str, case: Scenario) -> None:
    rulebook, _ = PROTOCOLS[protocol]
    searched = Search(case, rulebook).everything(STATES_MAX)
    assert searched.complete, f"more than {STATES_MAX} states"
    stories = ["\n".join(tell(case, rulebook, finding)) for finding in searched.findings.values()]
    assert not stories, stories[0]
    assert searched.ends > 0
    assert searched.trapped == 0, "from some states there is no end"


def test_the_search_sees_more_than_one_way() -> None:
    assert Search(TINY, mended()).everything(STATES_MAX).states > 100
    assert Search(PAIR, mended()).everything(STATES_MAX).states > 1_000
    assert Search(PAIR, redistribute_rulebook()).everything(STATES_MAX).states > 500


def test_a_search_that_is_cut_short_says_so() -> None:
    assert not Search(PAIR, mended()).everything(100).complete
