"""The metrics keep to Prometheus' conventions, have the values that happened, and are listed in the guide."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from metrics_kit import Measured, measured, parsed
from prometheus_client.parser import text_string_to_metric_families

from upriver.errors import DeclarationError
from upriver.runtime.metrics import COUNTER, FAMILIES, GAUGE, HISTOGRAM

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "monitoring.md"
NOT_BASE = re.compile(r"_(ms|millis|milliseconds|micros|minutes|hours|kb|mb|kilobytes|megabytes|percent)(_|$)")
ROW = re.compile(r"^\| `(upriver_\w+)` \| (\w+) \| ([^|]*) \| ([^|]+) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def app() -> Iterator[Measured]:
    with measured() as app:
        yield app


@pytest.fixture(scope="module")
def text(app: Measured) -> str:
    return app.metrics.render().decode()


def test_all_families_are_rendered_once_with_their_help(text: str) -> None:
    found = [
        (family.name + "_total" if family.type == COUNTER else family.name, family.type, family.documentation)
        for family in text_string_to_metric_families(text)
    ]
    assert found == [(spec.name, spec.kind, spec.help) for spec in FAMILIES]


def test_each_family_has_a_value(text: str) -> None:
    samples = {name.partition("{")[0] for name in parsed(text)}
    missing = {spec.name for spec in FAMILIES if spec.kind != HISTOGRAM} - samples
    missing |= {spec.name for spec in FAMILIES if spec.kind == HISTOGRAM and f"{spec.name}_count" not in samples}
    assert missing == set()


def test_values_are_what_happened(text: str) -> None:
    found = parsed(text)
    view, of_worker = '{view="rows"}', '{view="rows",worker="0"}'
    assert found["upriver_ended_epoch"] == 2
    assert found['upriver_table_lag_epochs{table="t"}'] == 1
    assert found['upriver_table_lag_rows{table="t"}'] == 4
    assert found['upriver_epoch_duration_seconds_count{stage="apply"}'] == 1, "the epoch before the start is not timed"
    assert found["upriver_lake_runs"] == 6
    assert found["upriver_lake_bytes"] == 2 * 100 * (5 + 3 + 4)
    assert found["upriver_lake_written_bytes_total"] == 2 * 100 * (3 + 4)
    assert found[f"upriver_view_state_bytes{of_worker}"] == 4096
    assert found[f"upriver_view_missed_keys_total{of_worker}"] == 2
    assert found[f"upriver_lookup_duration_seconds_count{view}"] == 1
    assert found[f"upriver_lookup_keys_total{view}"] == 2
    assert found[f"upriver_lookup_waits_total{view}"] == 1
    assert found[f"upriver_lookup_errors_total{view}"] == 1
    assert found['upriver_worker_lookups_total{worker="0"}'] == 2
    assert found[f"upriver_upqueries_total{view}"] == 2


def test_names_keep_to_the_conventions() -> None:
    for spec in FAMILIES:
        assert re.fullmatch(r"upriver(_[a-z]+)+", spec.name)
        assert spec.name.endswith("_total") == (spec.kind == COUNTER), spec.name
        assert not NOT_BASE.search(spec.name), spec.name
        assert not {"gauge", "counter", "histogram"} & set(spec.name.split("_")), spec.name
        assert re.fullmatch(r"\w[^|]*\.", spec.help), spec.help
        assert spec.kind in (GAUGE, COUNTER, HISTOGRAM)
        assert not set(spec.labels) & {"le", "quantile", "job", "instance"}, spec.name


def test_histograms_are_cumulative(text: str) -> None:
    found = parsed(text)
    buckets = [value for name, value in found.items() if name.startswith("upriver_lookup_duration_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == found['upriver_lookup_duration_seconds_count{view="rows"}']


def test_the_guide_lists_exactly_the_metrics() -> None:
    rows = ROW.findall(PAGE.read_text())
    told = [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), help) for name, kind, labels, help in rows]
    assert sorted(told) == sorted((spec.name, spec.kind, spec.labels, spec.help) for spec in FAMILIES)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool, of Prometheus, is not on the PATH")
def test_promtool_finds_no_fault(text: str) -> None:
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, timeout=60)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_without_the_extra_one_line_names_it(app: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(DeclarationError, match=r"^metrics need prometheus-client, .*pip install 'upriver\[http\]'$"):
        app.metrics.render()
