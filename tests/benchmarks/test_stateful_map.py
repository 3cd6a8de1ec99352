"""The benchmark of stateful maps: it runs, both sides count right, and its figures belong together."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.stateful_map import FORMS, StatefulCase, StatefulMapOptions, measure_stateful_map
from benchmarks.stateful_map_spark import MicroBatch, SparkTotals, Totals, why_not


class Handle:
    """Of a processor without Spark: one value, for one key."""

    def __init__(self) -> None:
        self.value: tuple[int, int] | None = None

    def getValueState(self, name: str, columns: str) -> "Handle":
        return self

    def get(self) -> tuple[int, int] | None:
        return self.value

    def update(self, value: tuple[int, int]) -> None:
        self.value = value


def test_sparks_processor_keeps_a_count_and_a_sum() -> None:
    processor, handle = Totals(), Handle()
    processor.init(handle)
    frames = [pa.table({"k": [7, 7], "v": [1, 2]}).to_pandas(), pa.table({"k": [7], "v": [-5]}).to_pandas()]
    (first,) = processor.handleInputRows((7,), iter(frames), None)
    (second,) = processor.handleInputRows((7,), iter(frames[:1]), None)
    processor.close()
    assert first.to_dict("records") == [{"k": 7, "n": 3, "total": -2}]
    assert second.to_dict("records") == [{"k": 7, "n": 5, "total": 1}]


@pytest.mark.long
@pytest.mark.spark
def test_both_sides_are_measured_on_the_same_rows(spark: Any) -> None:
    case = StatefulCase(keys=50, rows=300, spark_rows=100, spark_rows_max=400)
    said: list[str] = []
    options = StatefulMapOptions(cases=(case,), spark_s=60.0)
    measured = json.loads(json.dumps(measure_stateful_map(spark, options, said.append)))
    assert "60 s" in measured["note"]
    assert len(measured["cases"]) == len(said) == 1
    for found in measured["cases"]:
        assert (found["keys"], found["equal"], found["rows"]) == (50, True, 700)
        for figures in ("upriver_rows_per_s", "alone"):
            assert set(found[figures]) == set(FORMS)
            assert all(rate > 0 for rate in found[figures].values())
        assert (found["spark_rows_per_s"] is None) == (found["ratio"] is None) == (found["why"] is not None)
        assert len(found["micro_batches"]) == (3 if found["why"] is None else 0)


@pytest.mark.spark
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_sparks_query_has_the_totals_of_what_it_was_fed(spark: Any, tmp_path: Path) -> None:
    with SparkTotals(spark, tmp_path, partitions=2) as query:
        taken = [query.take(pa.table({"k": [1, 2, 1], "v": [5, 6, 7]})), query.take(pa.table({"k": [2], "v": [1]}))]
        assert query.totals() == {1: (2, 12), 2: (2, 7)}
    assert [batch.rows for batch in taken] == [3, 1]
    assert all(batch.rows_per_s > 0 for batch in taken)
    assert MicroBatch(10, 4.0).rows_per_s == 2.5
