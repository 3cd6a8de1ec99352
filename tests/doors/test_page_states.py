"""What holds of the page in all its states: to a screen reader, to the keyboard, in both themes, at two widths."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from http_kit import READER_TOKEN
from page_kit import ANIMATIONS, SPOKEN, check_keyboard, check_seen, check_spoken
from river_kit import NASTY, RiverApp, chromium, fail_flights, flights_app, opened, progress, table, view, worker

WIDTHS = (1280, 390, 320)
"""Pixels: a desk, a phone, and 400 % of zoom on a desk."""
LONG = "orders_of_all_customers_with_their_unpaid_amount_by_country_and_quarter_of_the_fiscal_year"

DRAWN = """(nodes) => nodes.map((node) => {
  const [kind, ...name] = node.dataset.node.split(":");
  const [state, reads] = [".state", ".visually-hidden"].map((part) => node.querySelector(part).textContent);
  return [kind, name.join(":"), state, reads];
})"""
ROWS = "(rows) => rows.map((row) => [...row.children].map((cell) => cell.textContent))"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture
def app() -> Iterator[RiverApp]:
    running = flights_app()
    yield running
    running.stop()


def fail_much(app: RiverApp) -> None:
    fail_flights(app)
    app.has_table("planes", table("stalled", stalled_for_s=75.0), age_s=75.0, cause="its source has stalled")
    app.has_view("broken", ["planes"], view("failed", error="RowError: " + "division by zero in a row " * 60))
    app.has_view(NASTY, ["planes"], view(error=NASTY))
    app.told_status["workers"] = [worker(0, 8, address=None, last_failure="killed"), worker(1, 8, held_up="no lake")]
    app.told_status["checkpoint"] = {"epoch": 3, "failed": "no space left on device"}


def warm_up(app: RiverApp) -> None:
    for name in list(app.tables):
        app.has_table(name, lacks="its source is still being read (2 epochs so far)", age_s=None)


def have_none(app: RiverApp) -> None:
    for name in list(app.told_status["views"]):
        app.forget_view(name)
    app.tables.clear()
    app.told_status["workers"] = []


def have_many(app: RiverApp) -> None:
    for number in range(46):
        tables = [["flights"], ["flights", "planes"], ["airlines"], ["flights", LONG]][number % 4]
        app.has_view(f"{LONG if number % 5 == 0 else 'report'}_{number:02}", tables)
    app.has_table(LONG, table("failed", error=f"{LONG}: " * 20))


def have_long_names(app: RiverApp) -> None:
    app.has_table(LONG, table("stalled", error="no"), age_s=200.0)
    app.has_view(LONG + "_view", [LONG, "flights"])
    app.has_view(LONG.replace("_", ""), [LONG], view("failed", error="no"))


def rescale(app: RiverApp) -> None:
    app.told_status["rescale"] = progress(moved=2)
    app.told_status["rescales_waiting"] = 2
    app.told_rescales += [
        {"ticket": 1, "from": 1, "to": 2, "outcome": "finished", "moved_keys": 12, "moved_bytes": 5, "seconds": 2.5}
    ]
    app.has_workers([0] * 6 + [2] * 2 + [1] * 8)


APPS: dict[str, Callable[[RiverApp], None]] = {
    "well": lambda app: None,
    "a failed source": fail_flights,
    "many failures": fail_much,
    "warming up": warm_up,
    "no views": have_none,
    "fifty views": have_many,
    "long names": have_long_names,
    "a rescale": rescale,
}


def check(page: Any) -> None:
    check_spoken(page)
    check_keyboard(page)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            check_seen(page)
    page.set_viewport_size({"width": WIDTHS[0], "height": 900})
    assert page.evaluate(ANIMATIONS) == 0


@pytest.mark.parametrize("state", APPS)
def test_each_state_of_an_app_is_seen_heard_and_reached(browser: Any, app: RiverApp, state: str) -> None:
    APPS[state](app)
    with opened(browser, app) as page:
        check(page)
        if page.locator(".more-troubles").is_visible():
            page.click(".more-troubles summary")
            check(page)


@pytest.mark.parametrize("state", ["well", "a failed source", "many failures", "a rescale"])
def test_a_screen_reader_hears_nothing_while_only_numbers_change(browser: Any, app: RiverApp, state: str) -> None:
    APPS[state](app)
    with opened(browser, app) as page:
        page.evaluate(SPOKEN)
        for _ in range(2):
            app.told_status["epoch"] += 1
            app.told_status["published"] += 1
            for told in app.tables.values():
                told["rows_per_s"] += 10.0
                told["rows"] += 10
            page.get_by_text(f"Epoch {app.told_status['epoch']}").first.wait_for()
        assert page.evaluate("window.spoken") == []


def open_details(kind: str) -> Callable[[Any, RiverApp], None]:
    def opener(page: Any, app: RiverApp) -> None:
        page.click(f'[data-node^="{kind}:"]')
        page.wait_for_selector("dialog[open] h2" if kind != "view" else "dialog[open] pre")

    return opener


def look_up(key: str, said: str) -> Callable[[Any, RiverApp], None]:
    def opener(page: Any, app: RiverApp) -> None:
        page.fill("#key-0", key)
        page.keyboard.press("Enter")
        page.get_by_text(said).first.wait_for()

    return opener


def lose(page: Any, app: RiverApp) -> None:
    app.server.close()
    page.get_by_text("Connection lost, trying again.").wait_for()


def end_session(page: Any, app: RiverApp) -> None:
    page.context.clear_cookies()
    page.goto(f"http://{app.server.address}/")
    page.get_by_role("button", name="Log in").wait_for()


def show_points(page: Any, app: RiverApp) -> None:
    page.wait_for_selector(".chart:visible")
    for summary in page.locator("details:visible > summary").all():
        summary.click()


DONE: dict[str, Callable[[Any, RiverApp], None]] = {
    "details of a table": open_details("table"),
    "details of a view": open_details("view"),
    "details of a worker": open_details("worker"),
    "as a table": lambda page, app: page.click("#as-table"),
    "a filter": lambda page, app: page.fill("#filter", "no such name"),
    "a key that is found": look_up("a", "1 row of"),
    "a key without rows": look_up("zzz", "no rows of this key"),
    "the points of charts": show_points,
    "a lost connection": lose,
    "the login": end_session,
}


@pytest.mark.parametrize("done", DONE)
def test_each_thing_that_a_viewer_does_is_seen_heard_and_reached(browser: Any, app: RiverApp, done: str) -> None:
    fail_flights(app)
    with opened(browser, app) as page:
        DONE[done](page, app)
        check(page)


def test_what_a_reader_may_not_do_is_said(browser: Any, app: RiverApp) -> None:
    with opened(browser, app, token=READER_TOKEN) as page:
        page.get_by_text("Log in with the operator's token").wait_for()
        check(page)


def test_the_tables_say_what_the_drawing_shows(browser: Any, app: RiverApp) -> None:
    fail_much(app)
    with opened(browser, app) as page:
        drawn = page.eval_on_selector_all("[data-node]", DRAWN)
        page.click("#as-table")
        rows = {row[0].removeprefix("Worker "): row for row in page.eval_on_selector_all("#tables tbody tr", ROWS)}
        assert set(rows) == {name for _, name, _, _ in drawn}
        for kind, name, state, reads in drawn:
            assert state in ("", rows[name][1])
            assert kind != "view" or reads == f"reads {rows[name][2]}"
