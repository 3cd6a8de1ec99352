"""Drivers of one store that carries out their writes at any later time: no file that counts lacks what it names, each
batch is in one epoch, a driver that was succeeded commits nothing; and each rule of succession is needed."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields

import pytest
from worlds_kit import seeds, without

from simulator.checkers import Violated
from simulator.late_drivers import LateWorld
from upriver.protocol.rules import Rules

FOUND_AT: Mapping[str, Mapping[int, str]] = {
    "succession_fence_first": {
        19: r"changes/rows/v/part-",
        24: r"tables/events/k/[0-9a-f]+\.arrow: the file is gone",
    },
    "succession_sealed_files": {
        3: r"supplements/events/n/000000000001\.json: the file is gone",
        31: r"tables/events/k/000000000016-000000000001-\S+\.arrow: the file is gone",
    },
    "succession_check_before_removal": {91: r"tables/events/k/[0-9a-f]+\.arrow: the file is gone"},
}
"""By rule: seeds at which its absence is found, and what is wrong then."""


def test_late_writes_lose_nothing(request: pytest.FixtureRequest) -> None:
    counters = Counter[str]()
    for seed in range(seeds(request.config)):
        world = LateWorld(seed)
        world.play()
        counters += world.counters
    done = ("landed", "succeeded", "epochs", "segments", "collected", "commits", "folds", "checkpoints", "controls")
    assert all(counters[what] for what in done)


def test_every_rule_is_tried() -> None:
    assert list(FOUND_AT) == [field.name for field in fields(Rules) if field.name.startswith("succession_")]


@pytest.mark.parametrize(("rule", "seed"), [(rule, seed) for rule, found in FOUND_AT.items() for seed in found])
def test_without_a_rule_a_seed_finds_something_wrong(rule: str, seed: int) -> None:
    with pytest.raises(Violated, match=FOUND_AT[rule][seed]):
        LateWorld(seed, without(rule)).play()
