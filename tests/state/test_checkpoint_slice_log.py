"""Which keys of some slices a follower is yet to have; rule replication.epoch_waits_for_followers."""

from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY

from upriver.hashing import Hashes
from upriver.ids import VnodeId
from upriver.state.checkpoint import PASS_KEYS_MIN, SliceLog
from upriver.state.vectors import key_set
from upriver.vnodes import vnodes_of

VNODES = 4
FIRST_OF = [vnode << 62 for vnode in range(VNODES)]
"""The least key of each vnode."""


def hashes(*keys: int) -> Hashes:
    return np.array(keys, np.uint64)


def vnodes(*numbers: int) -> set[VnodeId]:
    return set(map(VnodeId, numbers))


def log_of(followed: Collection[int], *everything: int) -> SliceLog:
    return SliceLog(vnodes(*followed), VNODES, hashes(*everything))


def of_slices(keys: Collection[int], slices: Collection[VnodeId]) -> list[int]:
    return sorted(key for key in keys if vnodes_of(hashes(key), VNODES)[0] in slices)


class Both:
    """A log, and by it a follower's copy of what is there: of each key, how often it had changed when it was copied."""

    def __init__(self, followed: set[VnodeId], state: dict[int, int]) -> None:
        self.followed, self.state = followed, state
        self.copy: dict[int, int] = {}
        self.log = SliceLog(followed, VNODES, hashes(*sorted(state)))

    def note(self, keys: list[int]) -> None:
        for key in keys:
            self.state[key] = self.state.get(key, 0) + 1
        self.log.note(hashes(*keys))

    def next(self, keys_max: int) -> None:
        if self.log.left:
            found = self.log.next(keys_max)
            assert len(found) <= keys_max
            self._take(found)

    def keep_only(self, slices: set[VnodeId]) -> None:
        self.followed = self.followed & slices
        self.copy = {key: self.copy[key] for key in of_slices(self.copy, self.followed)}
        self.log.keep_only(slices)

    def end(self) -> None:
        """What is left is copied, and at the end of an epoch the rest."""
        while self.log.left:
            self.next(3)
        self._take(self.log.rest())
        assert self.copy == {key: self.state[key] for key in of_slices(self.state, self.followed)}
        assert self.log.rest().tolist() == []

    def _take(self, found: Hashes) -> None:
        assert found.dtype == np.uint64
        keys = found.tolist()
        assert keys == sorted(set(keys))
        assert keys == of_slices(keys, self.followed)
        self.copy |= {key: self.state[key] for key in keys}


KEYS = st.sampled_from([first + more for first in FIRST_OF for more in (0, 1, 2)] + [2**64 - 1])
SLICES = st.sets(st.integers(0, VNODES - 1).map(VnodeId))
STEPS = st.one_of(
    st.tuples(st.just("note"), st.lists(KEYS, max_size=6)),
    st.tuples(st.just("next"), st.integers(1, 4)),
    st.tuples(st.just("keep_only"), SLICES),
    st.tuples(st.just("end")),
)


@MANY
@given(SLICES, st.dictionaries(KEYS, st.just(0)), st.lists(STEPS, max_size=25))
def test_replication_epoch_waits_for_followers_whose_copies_are_then_whole(
    followed: set[VnodeId], state: dict[int, int], steps: list[tuple[object, ...]]
) -> None:
    both = Both(followed, state)
    for name, *arguments in steps:
        getattr(both, str(name))(*arguments)
    both.end()


def test_at_first_all_keys_of_the_slices_are_copied_so_many_at_a_time() -> None:
    log = log_of([0, 2], *(first + more for first in FIRST_OF for more in (0, 1)))
    assert log.left
    assert log.next(3).tolist() == [0, 1, 2 << 62]
    assert log.left
    assert log.next(3).tolist() == [(2 << 62) + 1]
    assert (log.left, log.rest().tolist()) == (False, [])


def test_what_changes_meanwhile_is_copied_again_whether_it_was_copied_or_not() -> None:
    log = log_of([0], 1, 2)
    assert log.next(1).tolist() == [1]
    log.note(hashes(1, 2, 3, FIRST_OF[1]))
    assert log.next(9).tolist() == [2]
    assert (log.left, log.rest().tolist()) == (False, [1, 2, 3])


def test_slices_without_keys_are_nothing_to_copy_and_are_followed_all_the_same() -> None:
    log = log_of([0])
    assert not log.left
    log.note(hashes(5))
    assert (log.left, log.rest().tolist()) == (False, [5])


def test_what_is_followed_no_more_is_not_copied() -> None:
    log = log_of([0, 1], 1, FIRST_OF[1])
    log.keep_only(vnodes(1, 2))
    assert log.next(9).tolist() == [FIRST_OF[1]]
    log.note(hashes(1, FIRST_OF[1], FIRST_OF[2]))
    assert log.rest().tolist() == [FIRST_OF[1]]
    log.keep_only(vnodes(2))
    log.note(hashes(FIRST_OF[1], FIRST_OF[2]))
    assert log.rest().tolist() == []


@pytest.mark.parametrize(("changed", "is_left"), [(PASS_KEYS_MIN - 1, False), (PASS_KEYS_MIN, True)])
def test_many_keys_that_have_changed_do_not_wait_for_the_epochs_end(changed: int, is_left: bool) -> None:
    log = log_of([0])
    keys = np.arange(changed, dtype=np.uint64)
    log.note(keys)
    assert log.left == is_left
    if is_left:
        first = log.next(100)
        log.note(first[:1])
        assert (first == keys[:100]).all()
        assert (log.next(changed) == keys[100:]).all()
    assert len(key_set(log.rest())) == (1 if is_left else changed)
