"""Worlds of the simulator with event weights where much goes on at once: played to their end, or until something is
wrong."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from random import Random
from typing import Any

import duckdb
import pytest

from simulator.bounds import STEPS_TO_REST_MAX
from simulator.campaign import compiled_views
from simulator.checkers import Violated
from simulator.event_weights import PLACES_MAX, EventWeights
from simulator.tables import ALL_VIEWS, EXCHANGED, NO_RETENTION, SETS_ASIDE
from simulator.world import World
from upriver.engine.expressions import Evaluator
from upriver.engine.region import Region
from upriver.ids import WorkerId
from upriver.plan.plan import DataflowPlan
from upriver.plan.retention import Retain
from upriver.protocol.rules import ALL_RULES, Rules

STEPS, WORKERS = 300, 3
SEEDS_MAX = 150
"""Seeds within which the absence of any rule must show."""
RIGHT_SEEDS, SOAK_SEEDS = 6, 2_000
STEPS_WITHOUT_A_RULE_MAX = 15_000
"""Steps after which a world without a rule will never rest. With all rules, these worlds take a fifth of it."""

MadeFor = Mapping[str, Any]
"""Fields of ``EventWeights`` that are not left to chance."""

BUSY: MadeFor = {
    "publish": 1.0,
    "sizes": (1, 3, 8),
    "lookup": 1.0,
    "pace": (3.0,) * PLACES_MAX,
    "hear": 6.0,
    "carry": 4.0,
    "dial": 4.0,
    "notice": 2.0,
    "move": 2.0,
    "keys_max": 3,
    "store": 6.0,
}


@cache
def flowing() -> tuple[DataflowPlan, ...]:
    """Views of one region each."""
    return tuple(plan for plan in compiled_views(ALL_VIEWS) if not plan.depth)


@cache
def exchanged() -> tuple[DataflowPlan, ...]:
    """Views of several regions."""
    return compiled_views(EXCHANGED)


def without(rule: str) -> Rules:
    """All rules but this one."""
    switched: dict[str, Any] = {rule: False}
    return Rules(**switched)


@dataclass(frozen=True, slots=True)
class Worlds:
    """Worlds of these views. partial_share: of the views that keep only what is read. failing_share: of the
    worlds, those where views can fail. retains: by table, how rows leave; the plans must know. logged_share: of the
    full views, those whose changes are logged."""

    plans: tuple[DataflowPlan, ...]
    partial_share: float
    database: duckdb.DuckDBPyConnection
    failing_share: float = 0.0
    retains: Mapping[str, Retain] = field(default_factory=lambda: NO_RETENTION)
    logged_share: float = 0.0

    def of(
        self, seed: int, made_for: MadeFor, rules: Rules = ALL_RULES, steps_to_rest_max: int = STEPS_TO_REST_MAX
    ) -> World:
        rng, everyone = Random(seed), [WorkerId(worker) for worker in range(WORKERS)]
        weights = replace(EventWeights.drawn(rng, everyone).calmed(), **made_for)
        build_region = partial(Region.build, evaluator=Evaluator(), sets_aside=SETS_ASIDE)
        return World(
            rng,
            WORKERS,
            self.plans,
            rules,
            build_region,
            weights,
            self.partial_share,
            failing_share=self.failing_share,
            retains=self.retains,
            steps_to_rest_max=steps_to_rest_max,
            logged_share=self.logged_share,
        )

    def play(self, world: World) -> World:
        """To its end. Raises Violated."""
        world.run(STEPS)
        world.come_to_rest(self.database)
        return world

    def counted(self, weathers: Iterable[MadeFor]) -> Counter[str]:
        """What happened in worlds of these weathers, by seed from 0 on, with all rules on."""
        counters = Counter[str]()
        for seed, made_for in enumerate(weathers):
            world = self.of(seed, made_for)
            try:
                self.play(world).stop()
            except Exception as error:
                error.add_note(f"seed {seed}")
                raise
            counters += world.cluster.watcher.counters
        return counters

    def first_wrong(self, rule: str, made_for: MadeFor, first_seed: int = 0) -> str:
        """The checker that is the first to find something wrong without the rule. first_seed: to be played."""
        rules = without(rule)
        worlds = (
            self.of(seed, made_for, rules, STEPS_WITHOUT_A_RULE_MAX) for seed in seeds_from(first_seed, SEEDS_MAX)
        )
        with pytest.raises(Violated) as found:
            deque(map(self.play, worlds), maxlen=0)
        return found.value.checker


def seeds_from(first: int, seeds_max: int) -> list[int]:
    """All of so many seeds, those before the first one at the end."""
    return [*range(first, seeds_max), *range(first)]


def seeds(config: pytest.Config) -> int:
    """How many worlds are to be played with all rules on."""
    return SOAK_SEEDS if config.getoption("--soak") else RIGHT_SEEDS
