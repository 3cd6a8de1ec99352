"""Cones against full views: whatever is published, looked up, evicted and given up, and between whichever reads."""

from typing import Any

import numpy as np
from cone_kit import SQL, WITH_BAD_ROWS, ComparedCone, hashed, offer, trade, visit
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from soak import examples

from upriver.vnodes import vnodes_of

KEYS = (None, "", "a", "b", "c")
"""Of all views."""
TEXTS = st.sampled_from(KEYS)
NUMBERS = st.none() | st.integers(1, 4)
"""Few, so that rows meet; some keys rest on much, and some numbers are rested on by many."""
SITES = st.none() | st.integers(0, 2)
ROWS = (
    st.builds(visit, TEXTS, NUMBERS, SITES)
    | st.builds(trade, TEXTS, NUMBERS)
    | st.builds(offer, SITES, TEXTS, TEXTS, NUMBERS, st.sampled_from([None, False, False, True]))
)
SOME = st.lists(TEXTS, min_size=1, max_size=3, unique=True)
READS = st.integers(0, 8)
VNODES = 4


class Cones(RuleBasedStateMachine):
    """One view; some of its keys are kept."""

    @initialize(view=st.sampled_from(sorted(SQL.keys() - WITH_BAD_ROWS)), rows_max=st.sampled_from([1, 3, 1_000]))
    def begin(self, view: str, rows_max: int) -> None:
        self.driven = ComparedCone(view)
        self.driven.rows_max = rows_max
        self.empty_bytes = self.driven.cone.stats()["live_bytes"]
        self.asked: set[int] = set()
        """Keys that a lookup has asked for, and that were neither evicted nor given up since."""

    def _work(self, reads: int) -> None:
        """Some of what is to be read is read; it may well be that something is under way then."""
        for _ in range(reads):
            self.driven.step()

    @rule(rows=st.lists(ROWS, min_size=1, max_size=8), reads=READS)
    def publish(self, rows: list[Any], reads: int) -> None:
        self.driven.publish(*rows)
        self._work(reads)

    @rule(keys=SOME, reads=READS)
    def want(self, keys: list[str | None], reads: int) -> None:
        self.driven.want(*keys)
        self.asked |= set(hashed(*keys).tolist())
        self._work(reads)

    @rule()
    def work_on(self) -> None:
        self.driven.finish()

    @precondition(lambda self: self.driven.is_at_work)
    @rule()
    def overtake(self) -> None:
        """What is under way takes long."""
        self.driven.overtake()
        self.driven.begin()

    @precondition(lambda self: self.driven.unread)
    @rule(places=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def read_in_any_order(self, places: list[int]) -> None:
        for place in places:
            if self.driven.is_at_work:
                self.driven.go_on(place)
            self.driven.begin()

    @precondition(lambda self: self.driven.cone.unfilled)
    @rule(rows_max=st.integers(1, 5))
    def take_in(self, rows_max: int) -> None:
        self.driven.unread += self.driven.cone.take_in(rows_max)
        self.driven.begin()

    @precondition(lambda self: self.driven.present)
    @rule(keys=SOME, reads=READS)
    def evict(self, keys: list[str | None], reads: int) -> None:
        present = set(self.driven.present) & set(hashed(*keys).tolist())
        assert self.driven.evict(*keys) == len(present)
        self.asked -= present
        self._work(reads)

    @precondition(lambda self: self.driven.present)
    @rule(keys_max=st.integers(1, 3), waiting=SOME)
    def evict_oldest(self, keys_max: int, waiting: list[str | None]) -> None:
        before = set(self.driven.present)
        evicted = self.driven.cone.evict_oldest(keys_max, [hashed(*waiting)])
        left = set(self.driven.present)
        assert evicted == len(before - left) <= keys_max
        assert before & set(hashed(*waiting).tolist()) <= left
        self.asked -= before - left

    @precondition(lambda self: self.driven.cone.has_leftovers)
    @rule(keys_max=st.integers(1, 3), reads=READS)
    def drop_forgotten(self, keys_max: int, reads: int) -> None:
        assert 0 < self.driven.cone.drop_forgotten(keys_max) <= keys_max
        self._work(reads)

    @precondition(lambda self: self.asked - set(self.driven.present))
    @rule(keys=SOME, reads=READS)
    def give_up(self, keys: list[str | None], reads: int) -> None:
        missing = np.setdiff1d(hashed(*keys), np.array(self.driven.present, np.uint64))
        awaited = self.driven.cone.awaited(missing).any()
        assert self.driven.cone.give_up(hashed(*keys)) == awaited
        assert not self.driven.cone.awaited(missing).any()
        self.asked -= set(hashed(*keys).tolist()) - set(self.driven.present)
        self._work(reads)

    @precondition(lambda self: self.asked)
    @rule(vnode=st.integers(0, VNODES - 1))
    def move(self, vnode: int) -> None:
        """A slice goes to another worker."""
        before = self.driven.cone.keys_of(vnode, VNODES).tolist()
        assert self.driven.cone.leave(vnode, VNODES).tolist() == before
        self.driven.cone.give_up_vnode(vnode, VNODES)
        self.asked = {key for key in self.asked if vnodes_of(np.array([key], np.uint64), VNODES)[0] != vnode}

    @invariant()
    def just_what_was_asked_for_is_present(self) -> None:
        assert set(self.driven.present) <= self.asked
        hidden = self.asked - set(self.driven.shown)
        assert all(self.driven.cone.awaited(np.array([key], np.uint64)).any() for key in hidden)

    @invariant()
    def present_keys_are_as_in_a_full_view(self) -> None:
        if self.driven.is_at_work:
            self.driven.check_rows()
        else:
            self.driven.check()

    @invariant()
    def without_present_keys_nothing_is_kept_between_two_pieces_of_work(self) -> None:
        stats = self.driven.cone.stats()
        if not self.driven.is_at_work and not self.driven.present:
            assert (stats["resting"], stats["rows"], stats["pending"]) == (0, 0, 0)
            if not self.driven.cone.has_leftovers:
                assert (stats["held"], stats["live_bytes"]) == (0, self.empty_bytes)

    def teardown(self) -> None:
        """Every key is looked up in the end; then all are evicted."""
        if not hasattr(self, "driven"):
            return
        self.driven.fill(*KEYS)
        assert self.driven.present == hashed(*KEYS).tolist()
        assert self.driven.cone.applied == self.driven.published
        self.driven.check()
        assert self.driven.evict(*KEYS) == len(KEYS)
        self.driven.drop_forgotten()
        self.without_present_keys_nothing_is_kept_between_two_pieces_of_work()


Cones.TestCase.settings = settings(
    derandomize=True,
    deadline=None,
    max_examples=examples(20),
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestCones = Cones.TestCase
