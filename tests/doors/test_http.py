"""The HTTP door over a real client: answers, refusals, and the bounds of both."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest
from http_kit import BEARER, DAYS, NO_TLS, HttpApp
from rescale_kit import TICKET
from server_kit import SECONDS_MAX, TOKEN
from standby_kit import await_that

from upriver.client.client import Client
from upriver.doors.gateway import Gateway
from upriver.doors.http.server import HttpServer
from upriver.doors.http.views import ARROW_TYPE, KEYS_MAX
from upriver.errors import NotReady
from upriver.net.server import Listen
from upriver.options import Tokens

Json = dict[str, Any]


@pytest.fixture(scope="module")
def app() -> Iterator[HttpApp]:
    running = HttpApp()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def http(app: HttpApp) -> Iterator[httpx.Client]:
    with app.caller() as caller:
        yield caller


DAY = {"customer": 1, "day": "2026-01-01", "total": "17.50", "at": "2026-01-01T12:00:00.000000Z"}
LARGE = {"customer": str(1 << 60), "day": "2026-01-02", "total": None, "at": None}


def test_views_are_listed_with_their_keys(http: httpx.Client) -> None:
    views = {view["view"]: view for view in http.get("/v1/views").json()["views"]}
    assert views["days"] == {"view": "days", "key": ["customer", "day"], "tables": ["orders"]}
    assert views.keys() == {"days", "planes", "routes"}


def test_a_view_is_described(http: httpx.Client) -> None:
    told = http.get("/v1/views/days").json()
    assert told["columns"][-1] == {"name": "at", "type": "TIMESTAMP"}
    assert told["is_partial"] is False
    assert "explain" in told


@pytest.mark.parametrize(
    ("query", "tails"),
    [
        ("key=N1", ["N1"]),
        ("key=N2&key=N1", ["N2", "N1"]),
        ("tailnum=N2&tailnum=N1&max_age=1e6", ["N2", "N1"]),
        ("key=[null]", [None]),
        ('key=["N3"]', ["N3"]),
        ("key=nothing", []),
    ],
)
def test_a_query_looks_keys_up(http: httpx.Client, query: str, tails: list[str]) -> None:
    if "max_age" in query:
        query = query.replace("&max_age=1e6", "&timeout=5")
    told = http.get(f"/v1/views/planes?{query}").json()
    assert [row["tailnum"] for row in told["rows"]] == tails
    assert told["view"] == "planes"
    assert {"epoch", "committed_at", "age_s", "sources"} <= told.keys()


@pytest.mark.parametrize("query", ["customer=1&day=2026-01-01", 'key=[1,"2026-01-01"]'])
def test_keys_of_several_columns_are_given_by_name_or_as_a_list(http: httpx.Client, query: str) -> None:
    assert http.get(f"/v1/views/days?{query}").json()["rows"] == [DAY]


@pytest.mark.parametrize(
    "keys",
    [
        [[str(1 << 60), "2026-01-02"], [1, "2026-01-01"]],
        [[1 << 60, "2026-01-02"], {"day": "2026-01-01", "customer": 1}],
    ],
)
def test_a_body_looks_keys_up_in_the_forms_that_rows_have(http: httpx.Client, keys: list[Any]) -> None:
    told = http.post("/v1/views/days/lookup", json={"keys": keys, "at_least": 5, "timeout": 5})
    assert told.json()["rows"] == [LARGE, DAY]
    assert told.headers["upriver-epoch"] == "5"


def test_rows_come_as_arrow_csv_and_lines_of_json(http: httpx.Client) -> None:
    asked = {"keys": [[1, "2026-01-01"], [1 << 60, "2026-01-02"]]}
    arrow = http.post("/v1/views/days/lookup", headers={"accept": ARROW_TYPE}, json=asked)
    table = pa.ipc.open_stream(arrow.content).read_all()
    assert table.schema == DAYS.route.schema
    assert table.schema.metadata[b"upriver.epoch"] == b"5"
    assert [tuple(row.values()) for row in table.to_pylist()] == [tuple(row) for row in DAYS.rows]
    csv = http.post("/v1/views/days/lookup", headers={"accept": "text/csv"}, json=asked)
    assert csv.text.splitlines()[1:] == [
        "1,2026-01-01,17.50,2026-01-01T12:00:00.000000Z",
        f"{1 << 60},2026-01-02,,",
    ]
    lines = http.post("/v1/views/days/lookup", headers={"accept": "application/x-ndjson"}, json=asked)
    assert [json.loads(line) for line in lines.text.splitlines()] == [DAY, LARGE]


def test_keys_come_as_arrow_too(http: httpx.Client) -> None:
    keys = pa.record_batch({"customer": pa.array([1]), "day": pa.array([DAYS.rows[0][1]])})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as writer:
        writer.write_batch(keys)
    body = bytes(sink.getvalue())
    told = http.post("/v1/views/days/lookup?timeout=5", content=body, headers={"content-type": ARROW_TYPE})
    assert told.json()["rows"] == [DAY]
    torn = http.post("/v1/views/days/lookup", content=body[:99], headers={"content-type": ARROW_TYPE})
    assert torn.status_code == 400


REFUSED: list[tuple[str, str, Any, int, str]] = [
    ("GET", "/v1/views/plains", None, 404, "there are: days, planes, routes"),
    ("GET", "/v1/views/plains?key=1", None, 404, "there are: days, planes, routes"),
    ("GET", "/v1/nothing", None, 404, "openapi.json"),
    ("DELETE", "/v1/views", None, 405, "GET"),
    ("GET", "/v1/views/days?key=1", None, 400, "give a JSON list of 2 values, of customer, day"),
    ("GET", "/v1/views/days?customer=1", None, 400, "give customer, day equally often"),
    ("GET", "/v1/views/days?customer=1&day=2026-01-01&key=[]", None, 400, "not by both"),
    ("GET", "/v1/views/days?customer=x&day=2026-01-01", None, 400, "key column 'customer'"),
    ("GET", "/v1/views/planes?key=N1&atleast=3", None, 400, "'atleast': it takes key, at_least"),
    ("GET", "/v1/views/planes?at_least=3", None, 400, "give a key"),
    ("GET", "/v1/views/planes?key=N1&at_least=-1", None, 400, "at_least"),
    ("GET", "/v1/views/planes?key=N1&timeout=1e9", None, 400, "at most 60 seconds"),
    ("GET", "/v1/views/planes?key=N1&timeout=1&timeout=2", None, 400, "give it once"),
    ("GET", "/v1/views/planes?key=%ff", None, 400, "cannot be read"),
    ("GET", "/v1/views/planes?key=N1&max_age=0", None, 503, "the app does not say|at most 0 s|not known"),
    ("GET", "/v1/status?verbose=1", None, 400, "it takes none"),
    ("POST", "/v1/views/planes/lookup", {}, 400, '"keys" is missing'),
    ("POST", "/v1/views/planes/lookup", [], 400, "not a JSON object"),
    ("POST", "/v1/views/planes/lookup", {"keys": [7]}, 400, "is a STRING; given was 7"),
    ("POST", "/v1/views/planes/lookup", {"keys": [["a", "b"]]}, 400, "1 columns, not 2"),
    ("POST", "/v1/views/planes/lookup", {"keys": [{"tail": 1}]}, 400, r"its key is \(tailnum\)"),
    ("POST", "/v1/views/planes/lookup", {"keys": [[["deep"]]]}, 400, "is a STRING"),
    ("POST", "/v1/views/planes/lookup", {"keys": [], "max_age": True}, 400, "max_age: give seconds"),
    ("POST", "/v1/views/planes/lookup", {"keys": ["a"] * (KEYS_MAX + 1)}, 413, "at most 10,000"),
    ("POST", "/v1/rescale", {"workers": 0}, 400, "workers=0"),
    ("POST", "/v1/rescale", {"workers": "3"}, 400, "give a whole number"),
    ("POST", "/v1/rescale", {"moves": {"a": 1}}, 400, "a vnode is a whole number"),
    ("GET", "/v1/rescale", None, 404, "no rescale is under way"),
    ("GET", "/v1/rescale?ticket=x", None, 400, "give a whole number"),
    ("POST", "/v1/views/planes/evict", {"keys": 1}, 400, "a list of keys"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "said"), REFUSED)
def test_a_refusal_is_a_problem_that_says_what_is_wrong(
    http: httpx.Client, method: str, path: str, body: Any, status: int, said: str
) -> None:
    answer = http.request(method, path, json=body)
    problem = answer.json()
    assert (answer.status_code, problem["status"]) == (status, status), problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert set(problem) == {"type", "title", "status", "detail"}
    assert re.search(said, problem["detail"]), problem


def test_a_rescale_is_begun_followed_and_aborted(app: HttpApp, http: httpx.Client) -> None:
    begun = http.post("/v1/rescale", json={"workers": 3, "strategy": "lazy"})
    assert (begun.status_code, begun.json()["ticket"], begun.json()["state"]) == (202, TICKET, "starting")
    app.told_status["rescale"] = begun.json()
    assert http.get("/v1/rescale").json()["state"] == "moving"
    assert http.delete("/v1/rescale").status_code == 202
    heard = app.coordinator.heard()
    assert heard[0] == ("rescale", {"workers": 3, "moves": None, "strategy": "lazy", "keys_max": None})
    assert ("rescale_abort", {"ticket": TICKET}) in heard
    app.told_status["rescale"] = None
    over = http.delete(f"/v1/rescale?ticket={TICKET}")
    assert (over.status_code, over.json()["title"]) == (409, "RescaleIsOver")


def test_the_app_is_asked_for_the_page_s_history_without_viewers(app: HttpApp) -> None:
    before = app.status_calls
    await_that(lambda: app.status_calls > before)
    assert app.status_calls == before + 1


def test_keys_are_evicted(app: HttpApp, http: httpx.Client) -> None:
    assert http.post("/v1/views/planes/evict", json={"keys": ["N1", "N2"]}).json() == {"view": "planes", "evicted": 2}
    assert http.post("/v1/views/planes/evict").json()["evicted"] == "all"
    assert [len(asked["keys"] or ()) for asked in app.evicted] == [2, 0]


def test_the_app_s_health_is_told_without_a_token(app: HttpApp) -> None:
    with app.caller({}) as anyone:
        assert anyone.get("/healthz").text == "ok\n"
        await_that(lambda: anyone.get("/readyz").text == "ready\n")
        assert anyone.get("/v1/status").status_code == 401


def test_a_door_of_an_app_that_starts_says_so() -> None:
    def connected() -> Client:
        raise NotReady("the app is starting: try again soon")

    server = HttpServer(Gateway(connected, Tokens(operator=TOKEN)), Listen())
    try:
        with httpx.Client(
            base_url=f"http://{server.address}", headers=BEARER, timeout=SECONDS_MAX, verify=NO_TLS
        ) as caller:
            assert caller.get("/healthz").text == "ok\n"
            assert (caller.get("/readyz").status_code, caller.get("/v1/views").status_code) == (503, 503)
            told = caller.get("/v1/status").json()
            assert told["detail"] == "the app is starting: try again soon"
    finally:
        server.close()
