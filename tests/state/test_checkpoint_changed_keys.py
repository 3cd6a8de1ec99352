"""Which keys have changed since a checkpoint, and which are yet to be copied; rules checkpoints.copy_before_change and
checkpoints.dropped_have_changed."""

import pickle
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY

from upriver.hashing import Hashes
from upriver.state.checkpoint import LOGGED_MIN, ChangedKeys
from upriver.state.vectors import key_set

ALL_KEYS_MAX = 1_000


def hashes(*keys: int) -> Hashes:
    return np.array(keys, np.uint64)


class Model:
    """The same with sets. cut: what the checkpoint that is being taken is to have; ``None`` if there is none."""

    def __init__(self) -> None:
        self.since: set[int] = set()
        self.cut: set[int] | None = None
        self.copied: list[int] = []

    @property
    def lacks(self) -> list[int]:
        return sorted((self.cut or set()) - set(self.copied))

    def end(self) -> None:
        self.cut, self.copied = None, []


class Both:
    """What is to be tested and the model, side by side."""

    def __init__(self) -> None:
        self.changes, self.model = ChangedKeys(), Model()

    def change(self, keys: Sequence[int]) -> None:
        """These keys change: what the checkpoint has of them is copied first."""
        self._copied(self.changes.before(hashes(*keys)), [key for key in self.model.lacks if key in set(keys)])
        self.note(keys)

    def note(self, keys: Sequence[int]) -> None:
        self.changes.note(hashes(*keys))
        self.model.since |= set(keys)

    def cut(self, everything: set[int] | None) -> None:
        if self.model.cut is None:
            self.changes.cut(None if everything is None else hashes(*sorted(everything)))
            self.model.cut = set(self.model.since if everything is None else everything)
            self.model.since = set()

    def next(self, keys_max: int) -> None:
        lacks = self.model.lacks
        self._copied(self.changes.next(keys_max), lacks[:keys_max])
        if len(lacks) < keys_max:
            assert not self.changes.left

    def keep(self) -> None:
        self.changes.keep()
        self.model.end()

    def drop(self) -> None:
        self.changes.drop()
        self.model.since |= self.model.cut or set()
        self.model.end()

    def _copied(self, found: Hashes, expected: list[int]) -> None:
        assert (found.dtype, found.tolist()) == (np.dtype(np.uint64), expected)
        self.model.copied += expected
        assert len(self.model.copied) == len(set(self.model.copied))

    def check(self) -> None:
        if self.model.lacks:
            assert self.changes.left

    def check_all_is_copied(self) -> None:
        """What is left comes, and then all of the cut has come once."""
        self.next(ALL_KEYS_MAX)
        assert sorted(self.model.copied) == sorted(self.model.cut or set())
        assert not self.changes.left


KEYS = st.integers(0, 9) | st.sampled_from([2**63, 2**64 - 1])
BATCHES = st.lists(KEYS, max_size=6)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["change", "note"]), BATCHES | BATCHES.map(sorted)),
    st.tuples(st.just("cut"), st.none() | st.sets(KEYS, max_size=9)),
    st.tuples(st.just("next"), st.integers(0, 4)),
    st.tuples(st.sampled_from(["keep", "drop"])),
)


@MANY
@given(st.lists(STEPS, max_size=30))
def test_checkpoints_copy_before_change_each_key_of_the_cut_is_copied_once_and_before_it_changes(
    steps: list[tuple[object, ...]],
) -> None:
    both = Both()
    for name, *arguments in steps:
        getattr(both, str(name))(*arguments)
        both.check()
    both.check_all_is_copied()
    both.keep()
    both.cut(None)
    both.check_all_is_copied()


def test_nothing_is_to_be_copied_before_a_cut() -> None:
    changes = ChangedKeys()
    changes.note(hashes(1, 2))
    assert (changes.left, changes.before(hashes(1)).tolist(), changes.next(5).tolist()) == (False, [], [])


def test_a_batch_of_no_keys_changes_nothing() -> None:
    both = Both()
    both.change([])
    both.cut(None)
    both.change([])
    assert not both.changes.left


def test_keys_that_were_copied_before_they_changed_are_passed_over() -> None:
    both = Both()
    both.note([1, 2, 3, 4, 5])
    both.cut(None)
    both.change([2, 3])
    assert both.changes.next(2).tolist() == [1, 4]
    assert both.changes.next(2).tolist() == [5]
    assert not both.changes.left


def test_keys_that_were_copied_when_there_was_time_are_not_copied_before_they_change() -> None:
    both = Both()
    both.note([1, 2, 3])
    both.cut(None)
    both.next(2)
    assert both.changes.before(hashes(1, 2, 3)).tolist() == [3]


def test_checkpoints_dropped_have_changed_what_a_dropped_checkpoint_was_to_have_has_still_changed() -> None:
    both = Both()
    both.note([1, 2])
    both.cut(None)
    both.change([2, 3])
    both.drop()
    assert not both.changes.left
    both.cut(None)
    assert both.changes.next(ALL_KEYS_MAX).tolist() == [1, 2, 3]


def test_what_a_checkpoint_has_that_is_kept_has_not_changed_since() -> None:
    both = Both()
    both.note([1, 2])
    both.cut(None)
    both.change([2, 3])
    both.keep()
    assert not both.changes.left
    both.cut(None)
    assert both.changes.next(ALL_KEYS_MAX).tolist() == [2, 3]


def test_everything_is_cut_whatever_has_changed() -> None:
    both = Both()
    both.note([1, 2])
    both.cut({2, 7})
    assert both.changes.next(ALL_KEYS_MAX).tolist() == [2, 7]
    both.keep()
    both.cut(None)
    assert not both.changes.left


@pytest.mark.parametrize("is_sorted", [True, False])
def test_keys_that_change_again_and_again_take_no_more_room(is_sorted: bool) -> None:
    rng = np.random.default_rng(5)
    keys = key_set(rng.integers(0, 2**64, LOGGED_MIN // 4, np.uint64))
    keys = keys if is_sorted else rng.permutation(keys)
    changes = ChangedKeys()
    most = 0
    for _ in range(40):
        changes.note(keys)
        most = max(most, len(pickle.dumps(changes)))
    assert most < 2 * keys.itemsize * LOGGED_MIN
    changes.cut()
    assert (changes.next(10 * LOGGED_MIN) == np.sort(keys)).all()


def test_as_many_keys_as_there_are_may_change() -> None:
    changes = ChangedKeys()
    for first in range(0, 6 * LOGGED_MIN, LOGGED_MIN // 2):
        changes.note(np.arange(first, first + LOGGED_MIN // 2 + 5, dtype=np.uint64))
    changes.cut()
    found = changes.next(10 * LOGGED_MIN)
    assert (len(found), found[0], found[-1]) == (6 * LOGGED_MIN + 5, 0, 6 * LOGGED_MIN + 4)
    assert (np.diff(found) == 1).all()
