"""The benchmark of an app on a lake of many epochs: every view is what Spark says, and what it shows."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.lake import AgingLake, LakeOptions
from benchmarks.lake_app import measure_app_on, render_lake_app

OPTIONS = LakeOptions(epochs=(40,), keys=50, seed=1)
STARTED = {"start_s", "ready_s", "first_lookup_ms", "cold_lookup_p50_ms", "cold_lookup_p99_ms", "driver_mb", "right"}


def test_ages_stand_beside_their_growth() -> None:
    epochs = {"1000": {"start_s": 2.0, "right": True}, "100000": {"start_s": 3.0, "right": True}}
    measured = {"epochs": epochs, "growth": {"start_s": 1.5}, "uncompacted": {"compacted_s": 9.0, "right": True}}
    shown = render_lake_app({**measured, "right": True})
    assert [line.split() for line in shown.splitlines() if "100,000" in line or "last over" in line] == [
        ["100,000", "3.0"],
        ["last", "over", "first", "1.5"],
    ]
    assert "compacted_s" in shown
    assert shown.endswith("Every answer was right.")


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("is_compacted", [True, False])
def test_an_app_on_an_old_lake_answers_as_spark_does(spark: Any, tmp_path: Path, is_compacted: bool) -> None:
    aging = AgingLake(str(tmp_path / "lake"), OPTIONS)
    aging.age(40) if is_compacted else aging.publish_through(40)
    aging.release()
    measured = measure_app_on(spark, tmp_path, aging, is_compacted)
    assert measured["right"]
    assert measured.keys() >= STARTED
    assert ("new_view_s" in measured) == is_compacted
