"""``python -m benchmarks evolve``: what the views must answer, and what is made of the answers."""

from collections import Counter
from collections.abc import Callable, Iterable

import pyarrow as pa

from benchmarks.evolve import is_right, window_figures
from benchmarks.evolve_model import ADDED, BUCKETS, EXCHANGED, FULL, WARM, WARM_KEYS, EvolveModel
from benchmarks.evolve_prober import ANSWERS, FAILED


def test_the_truth_is_that_of_the_rows() -> None:
    model = EvolveModel(1_234)
    rows: dict[int, list[int]] = {}
    for number in range(model.rows):
        rows.setdefault(number % model.keys, []).append(number)
    folds: dict[str, Callable[[Iterable[int]], int]] = {FULL: sum, WARM: max, ADDED: min}
    for view, fold in folds.items():
        n, total = model.truth(view)
        assert n.tolist() == [len(rows[key]) for key in range(model.keys)]
        assert total.tolist() == [fold(rows[key]) for key in range(model.keys)]
    buckets = Counter(sum(values) % BUCKETS for values in rows.values())
    n, total = model.truth(EXCHANGED)
    assert n.tolist() == [buckets[bucket] for bucket in range(BUCKETS)]
    assert total.sum() == sum(range(model.rows))
    assert set(model.keys_of(EXCHANGED)) == set(buckets)
    assert len(EvolveModel(100_000).keys_of(WARM)) == WARM_KEYS


def test_lookups_are_of_the_window_that_they_fall_into_and_wrong_ones_are_found() -> None:
    model = EvolveModel(100)
    n, total = (values.tolist() for values in model.truth(FULL))
    answers = [
        (FULL, 0.0, 0.5, 3, n[3], total[3]),
        (FULL, 0.9, 1.3, 4, n[4], total[4]),  # the change begins meanwhile
        (FULL, 1.5, 1.6, 5, n[5], total[5] + 1),
        (FULL, 1.7, 1.8, 5, FAILED, 0),
        (WARM, 2.5, 2.6, 1, *(values.tolist()[1] for values in model.truth(WARM))),
    ]
    table = pa.table([list(column) for column in zip(*answers, strict=True)], schema=ANSWERS)
    figures = window_figures(table, model, 1.0, 2.0)
    assert (figures["wrong_answers"], figures["failed"], figures["answers"]) == (1, 1, 5)
    full = {"p99_ms_before": 500.0, "p99_ms_during": 400.0, "p99_ms_after": None, "longest_ms": 400.0}
    assert figures["others"][FULL] == full
    assert figures["others"][WARM]["p99_ms_after"] == 100.0
    assert not is_right({"add": figures, "drop": {"skipped": "why"}, "table": {"skipped": "why"}})
    assert is_right({"add": {"wrong_answers": 0}, "drop": {"skipped": "why"}, "table": {"skipped": "why"}})
