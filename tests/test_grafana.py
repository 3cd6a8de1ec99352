"""The dashboard for Grafana and the alerts ask for metrics that there are, and have the form that is wanted."""

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from metrics_kit import measured, parsed

from upriver.runtime.metrics import FAMILIES

DOCS = Path(__file__).parent.parent / "docs"
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana.json").read_text())
ALERTS = (DOCS / "alerts.yml").read_text()
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
METRIC = re.compile(r"upriver_\w+")
LABELS = re.compile(r"by \(([^)]*)\) \(\w*\(?(upriver_\w+)")
KINDS = {"row", "stat", "timeseries"}
VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)\}")


@pytest.fixture(scope="module")
def rendered() -> Iterator[set[str]]:
    """The names of all samples of an app."""
    with measured() as app:
        yield {sample.partition("{")[0] for sample in parsed(app.metrics.render().decode())}


def targets() -> Iterator[dict[str, Any]]:
    for panel in PANELS:
        yield from panel.get("targets", ())


def test_every_metric_of_the_dashboard_is_rendered(rendered: set[str]) -> None:
    asked = {name for target in targets() for name in METRIC.findall(target["expr"])}
    assert len(asked) > 30
    assert asked - rendered == set()


def test_every_metric_of_the_alerts_is_rendered(rendered: set[str]) -> None:
    asked = {name for line in ALERTS.splitlines() if "alert:" not in line for name in METRIC.findall(line)}
    assert len(asked) > 10
    assert asked - rendered == set()


def test_queries_group_by_labels_that_the_metric_has() -> None:
    labels = {spec.name: {*spec.labels, "le"} for spec in FAMILIES}
    grouped = [found for target in targets() for found in LABELS.findall(target["expr"])]
    assert len(grouped) > 15
    for by, metric in grouped:
        family = re.sub(r"_(bucket|sum|count)$", "", metric)
        assert {label.strip() for label in by.split(",")} <= labels[family], metric


def test_the_dashboard_has_the_form_that_grafana_imports() -> None:
    assert DASHBOARD["uid"] == "upriver"
    assert isinstance(DASHBOARD["schemaVersion"], int)
    assert {panel["type"] for panel in PANELS} == KINDS
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        assert panel["title"], panel["id"]
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == sorted(set(letters)) != [], panel["title"]


def test_variables_are_declared() -> None:
    known = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = {name or braced for name, braced in VARIABLE.findall(json.dumps(DASHBOARD))}
    assert {name for name in used if not name.startswith("__")} == known


def test_no_two_panels_overlap() -> None:
    places = [(panel["title"], panel["gridPos"]) for panel in PANELS]
    for (one, a), (other, b) in combinations(places, 2):
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart |= a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart, (one, other)
    assert all(place["x"] + place["w"] <= 24 for _, place in places)
