"""Drivers of one store that carries out their writes at any later time: no file that counts lacks what it names, each
batch is in one epoch, and a driver that was succeeded commits nothing."""

from collections import Counter

import pytest
from soak import drawn_seed

from simulator.checkers import Violated
from simulator.late_drivers import LateWorld
from simulator.replays import without

DONE = ("landed", "succeeded", "epochs", "segments", "collected", "commits", "folds", "checkpoints", "controls")


def test_late_writes_lose_nothing() -> None:
    counters = Counter[str]()
    for seed in range(3):
        world = LateWorld(seed)
        world.play()
        counters += world.counters
    assert all(counters[what] for what in DONE)


def test_a_seed_that_went_wrong_once() -> None:
    """A predecessor's removal of a superseded epoch came between a start's list of what is there and its read."""
    world = LateWorld(122_810_988)
    world.play()
    assert world.counters["landed"]


@pytest.mark.parametrize(
    "seeds", [pytest.param(20, marks=pytest.mark.verify), pytest.param(2_000, marks=pytest.mark.long)]
)
def test_late_writes_from_a_seed_drawn_anew_lose_nothing(seeds: int) -> None:
    first = drawn_seed("late writes")
    for seed in range(first, first + seeds):
        try:
            LateWorld(seed).play()
        except Violated as error:
            pytest.fail(f"LateWorld({seed}).play(): {error}")


@pytest.mark.parametrize(
    ("rule", "seed", "message"),
    [
        ("succession_fence_first", 19, r"changes/rows/v/part-"),
        ("succession_fence_first", 24, r"tables/events/k/[0-9a-f]+\.arrow: the file is gone"),
        ("succession_sealed_files", 14, r"supplements/events/n/000000000001\.json: the file is gone"),
        ("succession_sealed_files", 31, r"tables/events/k/000000000016-000000000001-\S+\.arrow: the file is gone"),
    ],
)
def test_a_rule_is_needed_for_each_kind_of_file(rule: str, seed: int, message: str) -> None:
    with pytest.raises(Violated, match=message):
        LateWorld(seed, without(rule)).play()
