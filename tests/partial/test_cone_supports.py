"""Supports against a set of pairs: whatever is added, named twice, and dropped, in whatever order."""

from collections.abc import Collection, Sequence

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from soak import examples

from upriver.hashing import Hashes
from upriver.partial.cone_state import Supports

KEYS = [0, 1, 5, 2**32, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
"""hash64 of consumers, and of producers too: they have nothing to do with each other."""
PAIRS = st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(KEYS)), max_size=20)
SOME = st.sets(st.sampled_from(KEYS)).map(sorted)
PAIR_BYTES_MAX = 33
"""Two numbers of a pair and a mark, and two numbers of its producer if no other pair has it."""


def hashes(keys: Collection[int]) -> Hashes:
    return np.array(list(keys), np.uint64)


class SupportsMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.supports = Supports()
        self.pairs: set[tuple[int, int]] = set()

    @property
    def producers(self) -> set[int]:
        return {producer for _, producer in self.pairs}

    @rule(pairs=PAIRS)
    def add(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.supports.add(hashes([pair[0] for pair in pairs]), hashes([pair[1] for pair in pairs]))
        self.pairs |= set(pairs)

    @rule(consumers=SOME)
    def drop(self, consumers: Sequence[int]) -> None:
        before = self.producers
        idle = self.supports.drop(hashes(consumers))
        self.pairs = {pair for pair in self.pairs if pair[0] not in consumers}
        assert idle.tolist() == sorted(before - self.producers)

    @rule(consumers=SOME)
    def pairs_are_found_by_consumer(self, consumers: Sequence[int]) -> None:
        found = self.supports.of(hashes(consumers))
        pairs = list(zip(*(part.tolist() for part in found), strict=True))
        assert pairs == sorted(pair for pair in self.pairs if pair[0] in consumers)

    @rule(producers=st.lists(st.sampled_from(KEYS)))
    def consumers_are_found_by_producer(self, producers: Sequence[int]) -> None:
        found = self.supports.consumers_of(hashes(producers)).tolist()
        assert found == sorted({consumer for consumer, producer in self.pairs if producer in producers})
        rested_on = self.supports.rests_on(hashes(producers)).tolist()
        assert rested_on == [producer in self.producers for producer in producers]

    @invariant()
    def each_pair_is_there_once(self) -> None:
        assert len(self.supports) == len(self.pairs)
        assert self.supports.nbytes <= 2 * PAIR_BYTES_MAX * len(self.pairs)  # no more than half of it is dropped


SupportsMachine.TestCase.settings = settings(
    derandomize=True,
    deadline=None,
    max_examples=examples(30),
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow],
)
TestSupports = SupportsMachine.TestCase


def test_of_no_pairs_nothing_is_known() -> None:
    supports = Supports()
    assert not supports.rests_on(hashes(KEYS)).any()
    assert supports.drop(hashes(KEYS)).tolist() == []
    assert supports.consumers_of(hashes(KEYS)).tolist() == []
    assert [part.tolist() for part in supports.of(hashes(KEYS))] == [[], []]
    assert supports.nbytes == 0
