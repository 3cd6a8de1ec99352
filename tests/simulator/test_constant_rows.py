"""Views with rows that are in no table, in simulated clusters: with crashes, rescales and segments, as SQL has them."""

from simulator.campaign import Simulator
from simulator.tables import CONSTANT

STEPS, WORKERS, SEEDS = 60, 3, 4


def test_constant_rows_come_once_whatever_happens() -> None:
    simulator = Simulator(views=CONSTANT, retained_share=0.0)
    outcomes = [simulator.play(seed, STEPS, WORKERS) for seed in range(SEEDS)]
    assert [str(outcome) for outcome in outcomes if outcome.violation is not None] == []
    assert any(outcome.counters.get("epochs") for outcome in outcomes)
