"""Stateful maps that feed each other, on several workers, wherever keys move: each gets the rows of a key in the order
that ``plan/row_order.py`` says, and so gives and sets aside what one process does that follows the order by the
letter."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from soak import drawn_seed, examples

from simulator.dataflow_world import DataflowWorld
from simulator.map_graphs import SPECS, DeclaredGraph, OneProcess, drawn_graph
from simulator.oracle import rows_in
from simulator.tables import TABLES, Key, RowSource
from upriver.engine.expressions import Evaluator
from upriver.plan.flows import as_one
from upriver.plan.plan import Keep
from upriver.plan.planning import FEEDS_ALONE

SPANS_MAX, EPOCHS_MAX, ROWS_MAX = 3, 3, 8
CLOCK_S = 12
"""Seconds from one span to the next, whose rows are some seconds apart."""


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator()


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_a_graph_gives_what_one_process_gives(first: int, evaluator: Evaluator) -> None:
    for seed in range(first, first + examples(10)):
        play(seed, evaluator)


@pytest.mark.verify
def test_graphs_drawn_anew_do(evaluator: Evaluator) -> None:
    first = drawn_seed("graphs of maps")
    for seed in range(first, first + 50):
        play(seed, evaluator)


def play(seed: int, evaluator: Evaluator) -> None:
    rng = Random(seed)
    graph = DeclaredGraph(drawn_graph(rng, 4))
    spans = drawn_spans(rng)
    oracle = OneProcess(graph)
    clocks = [CLOCK_S * 1_000_000 * number for number in range(1, len(spans) + 1)]
    for span, clock in zip(spans, clocks, strict=True):
        oracle.run(span, clock)
    keep = {each.name: one for each in graph.maps if (one := drawn_keep(rng, each.name)) is not None}
    together = graph.together(keep)
    of_flows = (replace(as_one(together, plan.name), feeds=()) for plan in together if plan.is_kept)
    for plan in (*(plan for plan in graph.plans(keep) if keep.get(plan.name) != FEEDS_ALONE), *of_flows):
        world = DataflowWorld(plan, SPECS, evaluator, Random(seed))
        set_aside: Counter[tuple[str, str]] = Counter()
        for span, clock in zip(spans, clocks, strict=True):
            world.run_span(span, clock if plan.is_clocked else None)
            set_aside.update((aside.table, repr(row)) for aside in world.set_aside for row in rows_in(aside.rows))
        found: dict[Key, list[tuple[object, ...]]] = {}
        for row in world.scan().to_pylist():
            values = tuple(row.values())
            found.setdefault(values[: len(plan.key)], []).append(values[len(plan.key) :])
        made = {key: rows for key, rows in oracle.made[plan.name].items() if rows}
        expected = {key: kept(rows, keep.get(plan.name)) for key, rows in made.items()}
        assert found == expected, f"play({seed}): {plan.name} of {graph.maps}"
        bad = Counter((name, repr(row)) for name in plan.maps for row in oracle.set_aside.get(name, []))
        assert set_aside == bad, f"play({seed}): {plan.name} of {graph.maps}"


def drawn_keep(rng: Random, name: str) -> Keep | None:
    return rng.choice([None, FEEDS_ALONE, Keep(1), Keep(3), Keep(None, f"n_{name}", 2)])


def kept(rows: list[tuple[Any, ...]], keep: Keep | None) -> list[tuple[Any, ...]]:
    """rows: of one key; the second column is that by which some stay."""
    if keep is None or keep.rows is not None:
        return rows if keep is None else rows[-(keep.rows or 0) :]
    return [row for row in rows if row[1] > max(row[1] for row in rows) - keep.interval]


def drawn_spans(rng: Random) -> list[Sequence[dict[str, pa.RecordBatch]]]:
    """Epochs as flows read them: one after the other, or some at once."""
    source = RowSource(rng)
    return [
        [
            {table.name: source.rows(table, rng.randint(1, ROWS_MAX)) for table in TABLES if rng.random() < 0.6}
            for _ in range(rng.randint(1, EPOCHS_MAX))
        ]
        for _ in range(rng.randint(1, SPANS_MAX))
    ]
