"""Many seeds, each a cluster of its own. The same seed, steps and workers play out the same, to the last line."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from random import Random
from typing import Any

import duckdb

from simulator.checkers import Violated
from simulator.local_typer import LocalTyper
from simulator.tables import ALL_VIEWS, NO_RETENTION, ORDERED, RETAINS, SETS_ASIDE, TABLES, ViewSpec
from simulator.world import FAILING_SHARE, PARTIAL_SHARE, STANDBYS_SHARE, World
from upriver.engine.expressions import Evaluator
from upriver.engine.region import Region
from upriver.plan.plan import DataflowPlan
from upriver.plan.retention import Retain
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.sql.queries import declare_view
from upriver.worker.regions import BuildRegion

RETAINED_SHARE = 0.3  # of the clusters: rows leave their tables
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
    """Plays seeds with the same rules; opening it costs more than a seed."""

    def __init__(
        self,
        rules: Rules = ALL_RULES,
        build_region: BuildRegion | None = None,
        views: Sequence[ViewSpec] = ALL_VIEWS,
        partial_share: float = PARTIAL_SHARE,
        faults: Collection[str] | None = None,
        standbys_share: float = STANDBYS_SHARE,
        failing_share: float = FAILING_SHARE,
        retained_share: float = RETAINED_SHARE,
        retains: Sequence[Mapping[str, Retain]] = RETAINS,
    ) -> None:
        """views: of which each seed draws some. build_region: makes empty regions, real ones unless it is given.
        partial_share: of the views that can be partial, those that are. faults: of ``FAULTS`` in ``event_weights.py``,
        the kinds that happen; drawn, unless they are given. standbys_share: of the clusters, those whose workers follow
        each other. failing_share: of the clusters, those where some views can fail. retained_share: of the clusters,
        those where rows leave their tables, in one of the ways that ``retains`` has by table."""
        self._retained_share = retained_share
        self._retains = retains
        self._failing_share = failing_share
        self._standbys_share = standbys_share
        self._partial_share = partial_share
        self._faults = faults
        evaluator = Evaluator()
        self._rules = rules
        self._build_region = build_region or partial(Region.build, evaluator=evaluator, sets_aside=SETS_ASIDE)
        self._views = views
        self._compiled: dict[int, tuple[DataflowPlan, ...]] = {}
        """By the number of a way in which rows leave; -1: they stay."""
        self._database = duckdb.connect(config={"threads": 1})

    def play(self, seed: int, steps: int, workers: int) -> RunOutcome:
        """Let ``steps`` things happen among ``workers`` workers, then let all come to rest and stop.

        Raises DeclarationError for a number of workers that cannot be.
        """
        way = self._drawn_way(seed)
        world = World(
            Random(seed),
            workers,
            self._plans(way),
            self._rules,
            self._build_region,
            partial_share=self._partial_share,
            faults=self._faults,
            standbys_share=self._standbys_share,
            failing_share=self._failing_share,
            retains=self._retained(way),
        )
        violation = None
        try:
            world.run(steps)
            world.come_to_rest(self._database)
            world.stop()
        except Violated as error:
            violation = Violation(world.steps, error.checker, error.problem)
        except Exception as error:
            error.add_note(f"in seed {seed}, step {world.steps}, {workers} workers")
            raise
        return RunOutcome(
            seed, world.steps, violation, tuple(world.cluster.trace), dict(world.cluster.watcher.counters)
        )

    def _drawn_way(self, seed: int) -> int:
        rng = Random(f"retention {seed}")  # of its own: what else a seed draws does not depend on it
        return rng.randrange(len(self._retains)) if rng.random() < self._retained_share else -1

    def _retained(self, way: int) -> Mapping[str, Retain]:
        return NO_RETENTION if way < 0 else self._retains[way]

    def _plans(self, way: int) -> tuple[DataflowPlan, ...]:
        """Rows that may leave have no order, and views of them neither."""
        if way not in self._compiled:
            views = [view for view in self._views if way < 0 or view.name not in ORDERED]
            self._compiled[way] = compiled_views(views, self._retained(way))
        return self._compiled[way]


def compiled_views(
    views: Sequence[ViewSpec] = ALL_VIEWS, retains: Mapping[str, Retain] = NO_RETENTION
) -> tuple[DataflowPlan, ...]:
    """The plans of the views that a simulated cluster can have. retains: by table, how rows leave."""
    tables = {table.name: replace(table, retain=retains.get(table.name)) for table in TABLES}
    typer = LocalTyper(tables)
    return tuple(declare_view(view.name, view.sql, view.key, tables, {}, typer) for view in views)


def run_seed(seed: int, steps: int, workers: int, rules: Rules = ALL_RULES) -> RunOutcome:
    """Play one seed."""
    return Simulator(rules).play(seed, steps, workers)


def campaign(
    first_seed: int,
    runs: int,
    steps: int,
    workers: int,
    rules: Rules = ALL_RULES,
    faults: Collection[str] | None = None,
) -> dict[str, Any]:
    """Play ``runs`` seeds from ``first_seed`` on, to the last one whatever they show.

    A JSON object: ``runs``; ``violations``, the number of seeds that had one; ``counters``, how often what happened
    in all of them; and of the first violation ``seed``, ``step``, ``checker``, ``message`` and ``trace`` (lines).
    """
    simulator = Simulator(rules, faults=faults)
    outcomes = (simulator.play(seed, steps, workers) for seed in range(first_seed, first_seed + runs))
    counters: Counter[str] = Counter()
    found: dict[str, Any] = {}
    violations = 0
    for outcome in outcomes:
        counters.update(outcome.counters)
        if outcome.violation is not None:
            violations += 1
            found = found or {"seed": outcome.seed, **asdict(outcome.violation), "trace": list(outcome.trace)}
    return {"runs": runs, "violations": violations, "counters": dict(sorted(counters.items())), **found}
