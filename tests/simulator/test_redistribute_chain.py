"""Several operators of a region answer as one; the traces are those of document 001."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.published.redistribute_chain import (
    FinalOf,
    OperatorChain,
    RedistributeOf,
    left_after,
    passed,
)
from upriver.migration.rules import ALL_ON


@dataclass(frozen=True)
class Holder:
    """An operator with a named state for each key."""

    name: str
    state: Mapping[int, str]

    @property
    def keys(self) -> np.ndarray:
        return hashes(*sorted(self.state))

    def collect(self, keys: np.ndarray) -> object:
        return [self.state[key] for key in keys.tolist()]


def hashes(*keys: int) -> np.ndarray:
    return np.array(keys, np.uint64)


def holder(name: str, *keys: int) -> Holder:
    return Holder(name, {key: f"{name}:{key}" for key in keys})


def told(message: FinalOf | RedistributeOf) -> str:
    """A message as the document writes it."""
    keys = ",".join(map(str, message.keys.tolist()))
    if isinstance(message, FinalOf):
        return f"FINAL({keys})"
    following = ",".join(map(str, message.following.tolist())) or "None"
    return f"REDISTRIBUTE({keys}, {{{', '.join(sorted(message.state))}}}, {following})"


def drained(operators: Sequence[Holder], keys_max: int = 1) -> list[str]:
    """The chain is given FINAL of the keys that it named last, and forgets them, until it names none."""
    story: list[str] = []
    following = OperatorChain(operators).keys()[:keys_max]
    while len(following):
        message = OperatorChain(operators).collect(following, keys_max)
        story.append(told(message))
        gone = set(following.tolist())
        operators = [Holder(o.name, {k: s for k, s in o.state.items() if k not in gone}) for o in operators]
        following = message.following
    return story


def test_one_operator_drains_key_by_key() -> None:
    assert drained([holder("Z", 4, 5, 6)]) == [
        "REDISTRIBUTE(4, {Z}, 5)",
        "REDISTRIBUTE(5, {Z}, 6)",
        "REDISTRIBUTE(6, {Z}, None)",
    ]


def test_two_operators_merge_forward_and_name_the_next() -> None:
    assert drained([holder("Z1", 4, 5), holder("Z2", 5, 6)]) == [
        "REDISTRIBUTE(4, {Z1}, 5)",
        "REDISTRIBUTE(5, {Z1, Z2}, 6)",
        "REDISTRIBUTE(6, {Z2}, None)",
    ]


def test_final_passes_a_worker_without_state_and_redistribute_passes_unchanged() -> None:
    first, second = holder("Z1", 4), holder("Z2", 6, 7)
    forwarded = passed(first, FinalOf(keys=hashes(6)), 1)
    assert told(forwarded) == "FINAL(6)"
    answered = passed(second, forwarded, 1)
    assert told(answered) == "REDISTRIBUTE(6, {Z2}, 7)"
    assert told(passed(first, answered, 1)) == told(answered)


def test_p5_the_sets_are_those_of_all_operators() -> None:
    operators = [holder("Z1", 4, 5), holder("Z2", 5, 6)]
    assert OperatorChain(operators).keys().tolist() == [4, 5, 6]
    assert OperatorChain(operators, replace(ALL_ON, redistribute_sets_are_united=False)).keys().tolist() == [4, 5]


def test_several_keys_at_a_time() -> None:
    assert drained([holder("Z1", 1, 2, 5), holder("Z2", 2, 3)], keys_max=2) == [
        "REDISTRIBUTE(1,2, {Z1, Z2}, 5)",
        "REDISTRIBUTE(5, {Z1}, 3)",
        "REDISTRIBUTE(3, {Z2}, None)",
    ]


def test_a_key_that_no_worker_has_is_answered_all_the_same() -> None:
    message = OperatorChain([holder("Z1"), holder("Z2", 8)]).collect(hashes(3))
    assert told(message) == "REDISTRIBUTE(3, {}, 8)"


@given(st.lists(st.sets(st.integers(0, 20)), min_size=1, max_size=4), st.integers(1, 4))
def test_every_operator_gives_each_of_its_keys_once(keys: list[set[int]], keys_max: int) -> None:
    operators = [holder(f"Z{number}", *some) for number, some in enumerate(keys)]
    left, given_away = OperatorChain(operators).keys(), list[str]()
    while len(left):
        now, left = left[:keys_max], left[keys_max:]
        for part in OperatorChain(operators).collect(now).state.values():
            assert isinstance(part, list)
            given_away += part
    assert sorted(given_away) == sorted(state for operator in operators for state in operator.state.values())


def test_what_is_left_is_in_order() -> None:
    assert left_after(holder("Z", 9, 1, 5), hashes(5)).tolist() == [1, 9]
