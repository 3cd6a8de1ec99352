"""Presence against a dict of what is known: whatever comes in whatever order, and while memory is given back."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from soak import examples

from upriver.engine.operators.compacted import USUAL, CompactionPace
from upriver.hashing import Hashes
from upriver.ids import Epoch
from upriver.partial.presence import MISSING, PRESENT, Presence

EDGES = [0, 1, 2**56 - 1, 2**56, 2**63, 2**64 - 2, 2**64 - 1]
FEW = [*EDGES, *(place * 0x0101_0101_0101_0101 for place in range(2, 35, 3))]
"""hash64 of the keys that the state machine knows: on both sides of the bounds, and some in between."""
KEYS = st.lists(st.sampled_from(FEW), unique=True, max_size=len(FEW)).map(sorted)
QUICK = CompactionPace(forgotten_min=3, step_rows=2)
"""A turnover begins soon, and takes many steps."""
MANY_KEYS = 20_000


def hashes(keys: Sequence[int]) -> Hashes:
    return np.array(keys, np.uint64)


@dataclass(frozen=True)
class Known:
    """What is known of a key. read: when it was last read."""

    upquery: int
    through: int
    read: int


ALL = hashes(FEW[::-1])
"""The same array each time, as a lookup's keys are: what was found of it before must not be told again."""


class PresenceMachine(RuleBasedStateMachine):
    """Two workers' presence of the same region."""

    @initialize(pace=st.sampled_from([USUAL, QUICK]))
    def begin(self, pace: CompactionPace) -> None:
        self.workers = [Presence(pace), Presence(pace)]
        self.known: list[dict[int, Known]] = [{}, {}]
        self.now = 0

    def _tick(self) -> int:
        self.now += 1
        return self.now

    @rule(worker=st.integers(0, 1), keys=KEYS, upquery=st.sampled_from([PRESENT, PRESENT, 1, 7]), rng=st.randoms())
    def put(self, worker: int, keys: list[int], upquery: int, rng: Random) -> None:
        through, now = len(keys), self._tick()
        shuffled = list(keys)
        rng.shuffle(shuffled)
        self.workers[worker].put(hashes(shuffled), upquery, Epoch(through), now)
        self.known[worker] |= dict.fromkeys(keys, Known(upquery, through, now))

    @rule(worker=st.integers(0, 1), keys=KEYS)
    def touch(self, worker: int, keys: list[int]) -> None:
        now = self._tick()
        self.workers[worker].touch(ALL if keys == sorted(FEW) else hashes([*keys, *keys[:2]]), now)
        for key in self.known[worker].keys() & set(keys):
            old = self.known[worker][key]
            self.known[worker][key] = Known(old.upquery, old.through, now)

    @rule(worker=st.integers(0, 1), keys=KEYS)
    def drop(self, worker: int, keys: list[int]) -> None:
        self.workers[worker].drop(hashes(keys))
        for key in keys:
            self.known[worker].pop(key, None)

    @rule(source=st.integers(0, 1), keys=KEYS)
    def move(self, source: int, keys: list[int]) -> None:
        """Present keys go to the other worker, which may know something else of them; others are not spoken of."""
        target, now = 1 - source, self._tick()
        state = self.workers[source].collect(hashes(keys))
        moved = [key for key in keys if key in self.known[source] and self.known[source][key].upquery == PRESENT]
        assert state.column(0).to_pylist() == moved
        self.workers[target].install(state, now)
        for key in moved:
            self.known[target][key] = Known(PRESENT, self.known[source][key].through, now)
        self.drop(source, keys)

    @precondition(lambda self: any(self.known))
    @rule(worker=st.integers(0, 1), keys_max=st.integers(0, 2 * len(FEW)), ago=st.integers(0, 10))
    def the_oldest_are_those_read_longest_ago(self, worker: int, keys_max: int, ago: int) -> None:
        before = self.now + 1 - ago
        oldest = self.workers[worker].oldest(keys_max, before).tolist()
        may_go = {key: it.read for key, it in self.known[worker].items() if it.upquery == PRESENT and it.read < before}
        assert oldest == sorted(set(oldest) & may_go.keys())
        in_turn = sorted(may_go.values())[:keys_max]
        assert len(oldest) == len(in_turn)
        assert all(may_go[key] <= in_turn[-1] for key in oldest), "of those read at the same time, any may go first"

    @invariant()
    def what_is_known_is_what_was_said_last(self) -> None:
        for presence, known in zip(self.workers, self.known, strict=True):
            assert presence.known == len(known)
            look = presence.look(ALL)
            nothing = Known(MISSING, 0, 0)
            assert look.upquery.tolist() == [known.get(key, nothing).upquery for key in FEW[::-1]]
            there = [
                (key, through) for key, through in zip(FEW[::-1], look.through.tolist(), strict=True) if key in known
            ]
            assert all(known[key].through == through for key, through in there)
            assert (look.missing.astype(int) + look.pending + look.present == 1).all()

    @invariant()
    def keys_are_found_by_range(self) -> None:
        for presence, known in zip(self.workers, self.known, strict=True):
            present = sorted(key for key, it in known.items() if it.upquery == PRESENT)
            pending = sorted(known.keys() - set(present))
            for least, most in [(0, 2**64 - 1), (2**56, 2**64 - 1), (0, 2**56 - 1), (2**63, 2**63)]:
                assert sorted(presence.present(least, most).tolist()) == [k for k in present if least <= k <= most]
                assert sorted(presence.pending(least, most).tolist()) == [k for k in pending if least <= k <= most]


PresenceMachine.TestCase.settings = settings(
    derandomize=True,
    deadline=None,
    max_examples=examples(40),
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)
TestPresence = PresenceMachine.TestCase


def spread(count: int) -> Hashes:
    """So many hash64, evenly spread and ascending."""
    return np.arange(count, dtype=np.uint64) * np.uint64(2**64 // count)


def test_missing_keys_cost_nothing() -> None:
    presence = Presence()
    empty = presence.nbytes
    keys = spread(MANY_KEYS)
    assert presence.look(keys).missing.all()
    presence.touch(keys, 5)
    presence.drop(keys)
    assert presence.collect(keys).num_rows == 0
    assert presence.nbytes == empty
    assert (presence.known, presence.live_nbytes) == (0, 0)


def test_memory_of_forgotten_keys_comes_back_while_others_are_known() -> None:
    presence = Presence()
    keys = spread(MANY_KEYS)
    presence.put(keys, PRESENT, Epoch(1), 1)
    full, stay = presence.nbytes, keys[::10].copy()
    presence.drop(keys[np.arange(MANY_KEYS) % 10 > 0])
    for now in range(MANY_KEYS // 500):
        presence.put(stay[:1], PRESENT, Epoch(2), now)
        assert presence.look(stay).present.all()
    assert presence.known == len(stay)
    assert presence.nbytes < full / 4
    assert presence.live_nbytes == presence.nbytes
    assert presence.look(keys).present.sum() == len(stay)


def test_a_turnover_does_not_make_keys_seem_old() -> None:
    """While keys move over, those that have moved are not the first to go: a key that is read all the time stays."""
    presence = Presence()
    keys = spread(MANY_KEYS)
    presence.put(keys, PRESENT, Epoch(1), 1)
    read_often = keys[:50]
    presence.drop(keys[MANY_KEYS // 3 :])
    for now in range(2, 20):
        presence.touch(read_often, now)
        presence.drop(presence.oldest(300, now))
    assert presence.look(read_often).present.all()
    assert presence.known == MANY_KEYS // 3 - 18 * 300


def test_of_many_keys_the_oldest_are_found_by_a_sample() -> None:
    presence = Presence()
    keys = spread(MANY_KEYS)
    rng = np.random.default_rng(1)
    ages = rng.permutation(MANY_KEYS)
    for age in range(0, MANY_KEYS, 100):
        presence.put(keys[ages // 100 == age // 100], PRESENT, Epoch(1), age // 100)
    read = dict(zip(keys.tolist(), (ages // 100).tolist(), strict=True))
    evicted = 0
    while evicted < MANY_KEYS // 2:
        oldest = presence.oldest(100, MANY_KEYS)
        assert 0 < len(oldest) <= 100
        evicted += len(oldest)
        assert max(read[key] for key in oldest.tolist()) * 100 < evicted + MANY_KEYS // 20
        presence.drop(oldest)


def test_one_key_that_may_go_is_found_among_many_that_may_not() -> None:
    presence = Presence()
    keys = spread(MANY_KEYS)
    presence.put(keys, PRESENT, Epoch(1), 9)
    presence.put(keys[7777:7778], PRESENT, Epoch(1), 3)
    assert presence.oldest(5, before=9).tolist() == keys[7777:7778].tolist()
    presence.put(keys[7777:7778], 1, Epoch(1), 3)
    assert presence.oldest(5, before=9).tolist() == []
