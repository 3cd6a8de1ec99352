"""The benchmark of a lake's age: what it writes is compacted, and what it reads is right."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.lake import AgingLake, LakeOptions, measure_lake, render_lake_ages
from upriver.lake.lake import Lake
from upriver.lake.report import report_of

OPTIONS = LakeOptions(epochs=(20, 300), keys=50, seed=1)
NAMES = ["files", "start_s", "first_upquery_ms", "cold_lookup_p50_ms", "cold_lookup_p99_ms", "driver_mb", "new_view_s"]


@pytest.fixture
def aging(tmp_path: Path) -> Iterator[AgingLake]:
    lake = AgingLake(str(tmp_path), OPTIONS)
    yield lake
    lake.release()


def test_each_age_has_the_figures_by_name() -> None:
    said: list[str] = []
    measured = measure_lake(OPTIONS, said.append)
    assert json.loads(json.dumps(measured))["right"]
    assert {age: list(figures) for age, figures in measured["epochs"].items()} == {"20": NAMES, "300": NAMES}
    assert list(measured["growth"]) == NAMES
    assert said[0] == "writing epochs up to 20"
    assert render_lake_ages(measured).endswith("Every answer was right.")


def test_nothing_is_left_to_compact_or_to_remove(aging: AgingLake) -> None:
    aging.age(300)
    report = report_of(Lake(aging.root), 0.0)
    assert (report.epochs, report.due, report.removable.epochs) == (300, 0, 0)
    assert report.spans == 1 + 2 + 12  # of 256, 16 and 1 epochs
    assert report.manifests == 12
