"""The picture of an app: what it says of healthy apps, and of each thing that can be wrong, in plain words."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from river_kit import RiverApp, fail_flights, flights_app, progress, table, view, worker

from upriver.client.json_values import json_bytes
from upriver.doors.river import HISTORY, LEVELS, POINTS_MAX, SAMPLE_S, RiverFeed, picture
from upriver.ids import Epoch, MapVersion, WorkerId
from upriver.protocol.freshness import FreshnessReport, TableFreshness
from upriver.protocol.lookups import Routing
from upriver.vnodes import VnodeMap

Json = dict[str, Any]


@pytest.fixture
def app() -> Iterator[RiverApp]:
    running = flights_app()
    yield running
    running.stop()


def named(items: list[Json]) -> dict[str, Json]:
    return {item["name"]: item for item in items}


def test_an_app_that_is_well_has_no_troubles(app: RiverApp) -> None:
    told = app.gateway.river.picture()
    assert json.loads(json_bytes(told)) == told
    assert told["summary"] == {"level": "good", "text": "All is well. Answers are less than a second old."}
    assert told["troubles"] == []
    assert named(told["views"])["flights_of_plane"]["is_partial"]
    assert [region["name"] for region in named(told["views"])["flights_of_plane"]["regions"]] == [
        "flights_of_plane/planes",
        "flights_of_plane",
    ]
    assert told["vnodes"]["owners"] == [0] * 8 + [1] * 8
    assert {name: len(values) for name, values in told["history"].items()} == dict.fromkeys(HISTORY, 1)


def test_a_failed_source_says_why_which_views_are_stale_and_what_to_do(app: RiverApp) -> None:
    fail_flights(app)
    told = app.gateway.river.picture()
    (trouble,) = told["troubles"]
    assert (trouble["level"], trouble["kind"], trouble["name"]) == ("bad", "table", "flights")
    assert trouble["what"] == "The source of table flights has failed. No new rows of it arrive."
    assert trouble["why"].startswith("FileNotFoundError: /data/flights/part-0042.parquet")
    assert trouble["then"] == "It is tried again in 12 s. Attempts so far: 4."
    assert trouble["views"] == ["delays_by_hour", "flights_by_carrier", "flights_of_plane"]
    assert "app.restart_source('flights')" in trouble["hint"]
    assert told["summary"]["text"].endswith("3 views are stale by it.")
    levels = {name: each["level"] for name, each in named(told["views"]).items()}
    assert levels.pop("planes_by_maker") == "good"
    assert set(levels.values()) == {"warning"}


@pytest.mark.parametrize(
    ("status", "level", "what"),
    [
        ({"tables": {"t": table("failed", error="no")}}, "bad", "The source of table t has failed"),
        ({"tables": {"t": table("stalled", stalled_for_s=40.0)}}, "warning", "has finished no batch for 40 s"),
        ({"tables": {"t": table("stalled")}}, "warning", "makes no progress"),
        ({"tables": {"t": table("failing", error="no")}}, "bad", "The source of table t has failed"),
        ({"tables": {"old": table()}}, "warning", "Table old is behind: rows of the last 45 s may be missing."),
        ({"tables": {"new": table()}}, "note", "Table new is warming up"),
        ({"views": {"v": view("failed", error="x")}}, "bad", "View v has failed. Its lookups raise the error"),
        ({"views": {"v": view(error="x")}}, "warning", "View v could not fill a key."),
        ({"workers": [worker(0, 4, address=None)]}, "bad", "Worker 0 is not up. Lookups of its keys wait."),
        ({"workers": [worker(0, 4, held_up="x")]}, "warning", "Worker 0 cannot read the lake."),
        ({"failure": "disk full"}, "bad", "The app has failed."),
        ({"checkpoint": {"epoch": 3, "failed": "x"}}, "warning", "The last checkpoint was given up"),
        ({"lake": {"failed": "x"}}, "warning", "Old files of the lake are not merged or removed"),
        ({"standbys": {"why": "worker 1 is not up"}}, "note", "Not all standbys are ready."),
        ({"broken_links": [[0, 2]]}, "warning", "Workers 0 and 2 do not reach each other."),
        ({"unrecorded": "x"}, "warning", "The lake does not know of the last change"),
    ],
)
def test_each_trouble_is_told_in_plain_words(status: Mapping[str, Any], level: str, what: str) -> None:
    told = picture({"epoch": 5, **status}, ROUTING, {}, [], 1.0)
    (trouble,) = told["troubles"]
    assert trouble["level"] == level
    assert what in trouble["what"]
    assert told["summary"]["level"] == level


def test_an_error_of_spark_is_told_without_its_codes() -> None:
    error = (
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file /p/1.json. SQLSTATE: KD001 "
        "([CANNOT_PARSE_JSON_FIELD] Cannot parse the field name 'paid'. SQLSTATE: 2203G) Repair the file [1]."
    )
    told = picture({"epoch": 5, "tables": {"t": table("failing", error=error, attempts=3)}}, ROUTING, {}, [], 1.0)
    (trouble,) = told["troubles"]
    assert trouble["why"] == (
        "Encountered error while reading file /p/1.json. (Cannot parse the field name 'paid'.) Repair the file [1]."
    )
    assert trouble["then"] == "It is being tried again: attempt 3 has run for 90 s."
    assert told["tables"][0]["error"] == error


def test_the_worst_trouble_comes_first() -> None:
    tables = {"old": table(), "t": table("failed", error="no"), "new": table()}
    told = picture({"epoch": 5, "tables": tables, "failure": "table 't': no"}, ROUTING, {}, [], 1.0)
    assert [trouble["name"] for trouble in told["troubles"]] == ["t", "old", "new"]


REPORT = FreshnessReport(
    Epoch(5),
    {
        "old": TableFreshness("running", 45.0, "epoch 5 of 9 is reflected", None),
        "new": TableFreshness("running", None, "", "its source is still being read"),
    },
)
ROUTING = Routing(VnodeMap(MapVersion(0), (WorkerId(0),) * 4), {}, {}, Epoch(5), REPORT)
STATES = st.sampled_from(["running", "stalled", "failing", "failed", "finished"])
MAYBE = st.none() | st.floats(0, 1e6)
TABLES = st.builds(table, STATES, error=st.none() | st.text(), retry_in_s=MAYBE, stalled_for_s=MAYBE)
STATUSES = st.fixed_dictionaries(
    {
        "epoch": st.integers(0, 9),
        "tables": st.dictionaries(st.sampled_from(["old", "new", "t", ""]), TABLES),
        "views": st.dictionaries(st.text(max_size=3), st.builds(view, st.sampled_from(["running", "failed"]))),
        "workers": st.lists(st.builds(worker, st.integers(0, 3), st.just(1), address=st.none() | st.just("a:1"))),
        "rescale": st.none() | st.just(progress()),
        "failure": st.none() | st.text(),
    }
)


@given(STATUSES)
def test_any_status_gives_a_picture_whose_summary_is_its_worst_trouble(status: Json) -> None:
    told = picture(status, ROUTING, {}, [], 1.0)
    assert json.loads(json_bytes(told)) == told
    levels = [LEVELS.index(trouble["level"]) for trouble in told["troubles"]]
    assert levels == sorted(levels, reverse=True)
    assert all(trouble["what"] and trouble["level"] != "good" for trouble in told["troubles"])
    if levels:
        assert told["summary"]["level"] == LEVELS[levels[0]]
    assert all(each["level"] in LEVELS for each in [*told["tables"], *told["views"], *told["workers"]])


def test_viewers_share_a_picture_and_the_history_is_bounded(app: RiverApp) -> None:
    now = 100.0
    feed = RiverFeed(lambda: app.client, clock=lambda: now, today=lambda: now)
    first = feed.picture()
    assert feed.picture() is first
    for _ in range(POINTS_MAX + 5):
        now += 1.0
        last = feed.picture()
    assert len(last["history"]["at"]) == POINTS_MAX
    assert last["history"]["at"][-1] == now
    now += 0.6
    assert len(feed.picture()["history"]["at"]) == POINTS_MAX
    assert feed.picture()["history"]["at"][-1] == now - 0.6


def test_the_history_grows_without_viewers(app: RiverApp) -> None:
    now = 100.0
    feed = RiverFeed(lambda: app.client, clock=lambda: now, today=lambda: now)
    for _ in range(4):
        feed.sample()
        feed.sample()  # too soon
        now += SAMPLE_S
    assert feed.picture()["history"]["at"] == [100.0 + SAMPLE_S * place for place in range(5)]
    now += SAMPLE_S - 1  # a viewer was there meanwhile
    feed.sample()
    assert len(feed.picture()["history"]["at"]) == 6


def test_a_view_that_is_declared_anew_is_explained_anew(app: RiverApp) -> None:
    now = 100.0
    feed = RiverFeed(lambda: app.client, clock=lambda: now)
    assert len(named(feed.picture()["views"])["planes_by_maker"]["regions"]) == 1
    app.has_view("planes_by_maker", ["planes", "airlines"], since=2.0)
    app.forget_view("delays_by_hour")
    now += 1.0
    views = named(feed.picture()["views"])
    assert len(views["planes_by_maker"]["regions"]) == 2
    assert "delays_by_hour" not in views
