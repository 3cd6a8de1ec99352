"""Graphs of stateful maps, kept by the real machines amid crashes, rescales and views that come and go: each map gives
what one process gives that follows the order of its rows by the letter."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random

import pytest
from soak import drawn_seed

from simulator.campaign import Simulator
from simulator.checkers import Violated
from simulator.map_graphs import DeclaredGraph, OneProcess, drawn_graph
from simulator.scenarios import DENSE, FOLLOWING, HARSH, SEGMENTED, ClusterScenario
from upriver.ids import Epoch

CALM_VIEWS = ClusterScenario(partial_share=0.0, failing_share=0.0, retained_share=0.0, steps=150)
KINDS: Mapping[str, ClusterScenario] = {
    "harsh": replace(CALM_VIEWS, weights={**HARSH, "sizes": (1, 3, 6)}),
    "followed": replace(CALM_VIEWS, weights={**FOLLOWING, "sizes": (1, 3, 6), "crash": 0.05}),
    "segmented": replace(CALM_VIEWS, weights={**DENSE, **SEGMENTED, "sizes": (1, 3), "checkpoint": 0.2, "crash": 0.1}),
}
"""In the last one, flows begin from segments: maps that read changes then see other changes than flows that do not."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_maps_give_what_one_process_gives_whatever_happens(kind: str, seed: int) -> None:
    play(kind, [seed])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "seeds", [pytest.param(3, marks=pytest.mark.verify), pytest.param(1_000, marks=pytest.mark.long)]
)
def test_maps_of_seeds_drawn_anew_do(kind: str, seeds: int) -> None:
    first = drawn_seed(f"graphs of maps, {kind}")
    play(kind, range(first, first + seeds))


def play(kind: str, seeds: Iterable[int]) -> None:
    simulator = Simulator(KINDS[kind])
    for seed in seeds:
        graph = DeclaredGraph(drawn_graph(Random(seed), may_change=kind != "segmented"))
        first, last = graph.maps[0].name, graph.maps[-1].name
        views = dict.fromkeys((first, last))
        later = {plan.name: plan for plan in (*graph.plans(), *(graph.view(f"of_{each}", each) for each in views))}
        world = simulator.world(seed, (*graph.together({}, *views), graph.view("late", last)), later)
        try:
            world.run(KINDS[kind].steps)
            simulator.come_to_rest(world)
            world.stop()
        except Violated as error:
            trace = "\n".join(world.cluster.trace[-60:])
            pytest.fail(f"play({kind!r}, [{seed}]): {error}\n{graph.maps}\n{trace}")
        lake, oracle = world.cluster.lake, OneProcess(graph)
        for epoch in range(1, lake.published + 1):
            oracle.run([dict([lake.published_rows(Epoch(epoch))])], lake.clock(Epoch(epoch)))
        for name in world.cluster.view_observer.possible:
            if name not in graph.keys:
                continue
            found = {
                key: [row[len(graph.keys[name]) :] for row in rows]
                for key, rows in world.cluster.oracle.at(name, lake.published).items()
            }
            assert found == {key: rows for key, rows in oracle.made[name].items() if rows}, f"play({kind!r}, [{seed}])"
