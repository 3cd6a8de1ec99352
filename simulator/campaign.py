"""Many seeds, each a cluster of its own. The same scenario and seed play out the same, to the last line."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Any

import duckdb

from simulator.bounds import STEPS_TO_REST_MAX
from simulator.checkers import Violated
from simulator.scenarios import DRAWN, ClusterScenario, compiled_views, retained
from simulator.tables import SETS_ASIDE
from simulator.world import World
from upriver.engine.expressions import Evaluator
from upriver.engine.region import Region
from upriver.plan.plan import DataflowPlan
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.worker.regions import BuildRegion

TRACE_TAIL_LINES = 60
"""Lines of a trace that a message about a violation gives."""


@dataclass(frozen=True, slots=True)
class Violation:
    """What was wrong. step: how many things had happened by then. checker: the name of the one that noticed."""

    step: int
    checker: str
    message: str


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """One seed played out. steps: how many things happened. trace: in lines. counters: how often what happened."""

    seed: int
    steps: int
    violation: Violation | None
    trace: tuple[str, ...]
    counters: Mapping[str, int]

    def __str__(self) -> str:
        if self.violation is None:
            return f"seed {self.seed}: {self.steps} steps, nothing wrong"
        found = self.violation
        head = f"seed {self.seed}, step {found.step}, {found.checker}: {found.message}"
        return "\n".join([head, *self.trace[-TRACE_TAIL_LINES:]])


class Simulator:
    """Plays seeds of one scenario with the same rules."""

    def __init__(
        self,
        scenario: ClusterScenario = DRAWN,
        rules: Rules = ALL_RULES,
        build_region: BuildRegion | None = None,
        steps_to_rest_max: int = STEPS_TO_REST_MAX,
    ) -> None:
        """build_region: makes empty regions, real ones unless it is given. steps_to_rest_max: after which a cluster
        will never rest."""
        self._scenario = scenario
        self._rules = rules
        self._build_region = build_region or partial(Region.build, evaluator=Evaluator(), sets_aside=SETS_ASIDE)
        self._steps_to_rest_max = steps_to_rest_max
        self._database = duckdb.connect(config={"threads": 1})

    def world(
        self,
        seed: int,
        plans: tuple[DataflowPlan, ...] | None = None,
        later: Mapping[str, DataflowPlan] = MappingProxyType({}),
    ) -> World:
        """The cluster of a seed at its beginning. plans: in place of the scenario's views. later: as of
        :class:`.ViewObserver`.

        Raises DeclarationError for a number of workers that cannot be.
        """
        rng = Random(f"retention {seed}")  # of its own: what else a seed draws does not depend on it
        way = rng.choice(self._scenario.ways) if rng.random() < self._scenario.retained_share else None
        return World(
            Random(seed),
            self._scenario,
            plans or compiled_views(self._scenario.views, way),
            self._rules,
            self._build_region,
            retained(way),
            self._steps_to_rest_max,
            later,
        )

    def play(self, seed: int) -> RunOutcome:
        """Let the scenario's number of things happen, then let all come to rest and stop."""
        world = self.world(seed)
        violation = None
        try:
            world.run(self._scenario.steps)
            self.come_to_rest(world)
            world.stop()
        except Violated as error:
            violation = Violation(world.steps, error.checker, error.problem)
        except Exception as error:
            error.add_note(f"in seed {seed}, step {world.steps}")
            raise
        return RunOutcome(
            seed, world.steps, violation, tuple(world.cluster.trace), dict(world.cluster.watcher.counters)
        )

    def come_to_rest(self, world: World) -> None:
        """Let all accidents in a cluster end. Raises Violated unless all is right then."""
        world.come_to_rest(self._database)


def campaign(simulator: Simulator, first_seed: int, runs: int) -> dict[str, Any]:
    """Play ``runs`` seeds from ``first_seed`` on, to the last one whatever they show.

    A JSON object: ``runs``; ``violations``, the number of seeds that had one; ``counters``, how often what happened
    in all of them; and of the first violation ``seed``, ``step``, ``checker``, ``message`` and ``trace`` (lines).
    """
    counters: Counter[str] = Counter()
    found: dict[str, Any] = {}
    violations = 0
    for outcome in map(simulator.play, range(first_seed, first_seed + runs)):
        counters.update(outcome.counters)
        if outcome.violation is not None:
            violations += 1
            found = found or {"seed": outcome.seed, **asdict(outcome.violation), "trace": list(outcome.trace)}
    return {"runs": runs, "violations": violations, "counters": dict(sorted(counters.items())), **found}
