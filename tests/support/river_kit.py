"""What tests of the page share: an app whose status a test writes, behind the real HTTP door; and a browser."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyarrow as pa
import pytest
from client_kit import VNODES, View
from http_kit import EXPLAINED, HttpApp
from server_kit import TOKEN

from upriver.ids import Epoch, WorkerId
from upriver.protocol.freshness import FreshnessReport, TableFreshness
from upriver.protocol.lookups import ViewRoute
from upriver.vnodes import VnodeMap

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
BROWSER_MS_MAX = 20_000
"""Milliseconds that the page has to come to what a test waits for."""
NASTY = "<img src=x onerror=alert(1)>"
"""A name that would run if the page put it into HTML."""

Json = dict[str, Any]


def table(state: str = "running", **told: Any) -> Json:
    """A table's part of the status."""
    usual = {"state": state, "epoch": 41, "epoch_age_s": 0.6, "rows": 336_776, "rows_per_s": 120.0, "error": None}
    attempt = {"attempts": 1, "attempt_for_s": 90.0, "doing": None, "last_error": None, "last_error_age_s": None}
    return {**usual, "stalled_for_s": None, "retry_in_s": None, **attempt, **told}


def view(state: str = "running", **told: Any) -> Json:
    """A view's part of the status."""
    return {"state": state, "error": None, "rows": 4_043, "keys": 4_043, "bytes": 1_300_000, **told}


def worker(number: int, vnodes: int, **told: Any) -> Json:
    """A worker's part of the status."""
    usual = {"worker": number, "address": f"127.0.0.1:{4000 + number}", "epoch": 41, "vnodes": vnodes}
    return {**usual, "bytes": 52_000_000, "held_up": None, "restarts": 0, "last_failure": None, **told}


def progress(moved: int = 5, moving: int = 8, **told: Any) -> Json:
    """The progress of a rescale under way."""
    return {
        "ticket": 7,
        "strategy": "icadd",
        "from": 2,
        "to": 3,
        "state": "moving",
        "error": None,
        "workers": [],
        "vnodes_moving": moving,
        "vnodes_moved": moved,
        "keys_moved": 2_400,
        "keys_left": 1_600,
        "bytes_moved": 900_000,
        "bytes_left": 600_000,
        "seconds": 1.9,
        "seconds_left": 1.2,
        **told,
    }


def explained(name: str, tables: Sequence[str], state: str = "full") -> Json:
    """How a view of these tables is kept: a region for each."""
    region = EXPLAINED["regions"][0]
    regions = [
        {
            **region,
            "region": f"{name}/{table}",
            "routing_key": [f"{table}.key"],
            "sends": [{"to": name, "key": ["key"]}],
        }
        for table in tables[1:]
    ]
    last = {**region, "region": name, "routing_key": ["key"], "depth": len(regions), "state": state}
    sql = f"SELECT key, count(*) AS n\nFROM {' JOIN '.join(tables)}\nGROUP BY key"
    return {**EXPLAINED, "view": name, "sql": sql, "key": ["key"], "regions": [*regions, last]}


class RiverApp(HttpApp):
    """An :class:`HttpApp` whose tables, views, workers and rescale a test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.explanations: dict[str, Json] = {}
        self.since: dict[str, float] = {}
        """When each view was declared."""
        self.told_rescales: list[Json] = []
        self.cluster.views.clear()
        self.told_status = {"epoch": 41, "published": 41, "tables": {}, "views": {}, "workers": [], "rescale": None}

    def _actions(self) -> Mapping[str, Any]:
        return {
            **super()._actions(),
            "explain": lambda asked: self.explanations[asked["view"]],
            "rescales": lambda _: {"rescales": self.told_rescales},
            "views": lambda _: {
                "views": [{"name": name, "since": at, "until": None} for name, at in self.since.items()]
            },
        }

    @property
    def tables(self) -> dict[str, Json]:
        found: dict[str, Json] = self.told_status["tables"]
        return found

    def has_table(
        self,
        name: str,
        told: Json | None = None,
        *,
        age_s: float | None = 0.6,
        cause: str = "",
        lacks: str | None = None,
    ) -> None:
        """Declare a table, or change its source."""
        self.tables[name] = told or table()
        freshness = TableFreshness(self.tables[name]["state"], age_s, cause, lacks)
        self.cluster.freshness = FreshnessReport(Epoch(41), {**self.cluster.freshness.tables, name: freshness})

    def has_view(
        self, name: str, tables: Sequence[str], told: Json | None = None, *, state: str = "full", since: float = 1.0
    ) -> None:
        """Declare a view, or change its state."""
        self.since[name] = since
        self.told_status["views"][name] = told or view()
        schema = pa.schema([("key", pa.string()), ("n", pa.int64())])
        self.cluster.views[name] = View(ViewRoute(("key",), schema, tuple(tables)), [("a", 1), ("b", 2), (NASTY, 3)])
        self.explanations[name] = explained(name, tables, state)

    def forget_view(self, name: str) -> None:
        """Drop a view."""
        for views in (self.told_status["views"], self.cluster.views, self.explanations, self.since):
            del views[name]

    def has_workers(self, owners: Sequence[int]) -> None:
        """The worker of each vnode. The map is a version later if that has changed and no rescale is on: it only grows
        at the end of a rescale, as in a coordinator."""
        before = self.cluster.vnode_map
        is_later = tuple(owners) != tuple(before.owners) and self.told_status["rescale"] is None
        version = type(before.version)(before.version + is_later)
        self.cluster.vnode_map = VnodeMap(version, tuple(map(WorkerId, owners)))
        self.told_status["workers"] = [worker(number, list(owners).count(number)) for number in sorted(set(owners))]


def flights_app() -> RiverApp:
    """An app of three tables, five views and two workers, all well."""
    app = RiverApp()
    app.has_table("flights")
    app.has_table("planes", table(rows=3_322, rows_per_s=0.0), age_s=0.9)
    app.has_table("airlines", table("finished", rows=16, rows_per_s=0.0), age_s=0.4)
    app.has_view("flights_by_carrier", ["flights", "airlines"])
    app.has_view("delays_by_hour", ["flights"])
    app.has_view(
        "flights_of_plane", ["flights", "planes"], view(cached_keys=212, looked_up=900, missed=212), state="partial"
    )
    app.has_view("planes_by_maker", ["planes"])
    app.has_workers([0] * (VNODES // 2) + [1] * (VNODES // 2))
    return app


def fail_flights(app: RiverApp) -> None:
    """The source of flights fails, and is retried."""
    told = table(
        "failed",
        rows_per_s=0.0,
        retry_in_s=12.0,
        attempts=4,
        epoch_age_s=190.0,
        error="FileNotFoundError: /data/flights/part-0042.parquet was removed while the source was reading it",
    )
    app.has_table("flights", told, age_s=192.4, cause="its source has failed")


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser. Skips the test where there is none."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium on the PATH")
    playwright_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra test")
    with playwright_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield running
        running.close()


@contextmanager
def viewed(
    browser: Any,
    address: str,
    token: str,
    *,
    width: int = 1280,
    height: int = 900,
    dark: bool = False,
    still: bool = True,
) -> Iterator[Any]:
    """The page at an address, logged in. ``said``: the errors that its console has. still: without motion."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce" if still else "no-preference",
    )
    context.set_default_timeout(BROWSER_MS_MAX)
    page = context.new_page()
    page.said = []
    page.on("console", lambda told: page.said.append(told.text) if told.type == "error" else None)
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.goto(f"http://{address}/")
    page.fill("#token", token)
    page.click("button[type=submit]")
    page.wait_for_selector("body[data-state=live]")
    yield page
    context.close()


def opened(browser: Any, app: RiverApp, *, token: str = TOKEN, **view: Any) -> AbstractContextManager[Any]:
    """As ``viewed``, of an app whose status a test writes."""
    return viewed(browser, app.server.address, token, **view)
