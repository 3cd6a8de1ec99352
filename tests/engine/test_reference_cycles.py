"""What is let go is freed at once: nothing that keeps state refers to itself, and so waits for the collector."""

import gc
from collections import Counter

import pytest
from conformance_kit import View, read_file
from recorded_answers import FOLDER

from simulator.shared_analyser import SharedAnalyser
from upriver.engine.expressions import Evaluator
from upriver.plan.plan import DataflowPlan
from upriver.runtime.worker import warm_up
from upriver.sql.views import declare_view
from upriver.state.indexes import HashTable
from upriver.state.vectors import Vector

FILE = read_file(FOLDER / "queries.test")
EVALUATOR = Evaluator()


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """What other tests have left takes half a second to look through."""
    gc.freeze()


@pytest.mark.parametrize("view", FILE.views, ids=lambda view: f"line {view.line}")
def test_regions_of_a_view_are_freed_without_the_collector(view: View) -> None:
    plan = declare_view("v", view.sql, view.key, FILE.tables, {}, SharedAnalyser(FILE.tables))
    assert not _left_by(plan)


def _left_by(plan: DataflowPlan) -> Counter[str]:
    """What keeps state and is left for the collector, of regions that have seen rows, were moved, read and let go."""
    gc.disable()
    try:
        gc.set_debug(gc.DEBUG_SAVEALL)
        warm_up([plan], EVALUATOR)
        gc.collect()
        return Counter(type(item).__name__ for item in gc.garbage if isinstance(item, Vector | HashTable))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
