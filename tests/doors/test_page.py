"""The page in headless Chromium, over the real HTTP door: what it shows, to a keyboard, a phone and a screen reader.

What holds of the page in all its states: to a screen reader, to the keyboard, in both themes, at two widths.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from http_kit import READER_TOKEN
from page_kit import ANIMATIONS, SPOKEN, check_keyboard, check_seen, check_spoken
from river_kit import NASTY, RiverApp, chromium, fail_flights, flights_app, opened, progress, table, view, worker

PHONE = 375
"""Pixels of width."""

ASKS_FOR_THREE_WORKERS = """() => fetch("/v1/rescale", {
  method: "POST", body: JSON.stringify({workers: 3}), headers: {"content-type": "application/json"},
}).then((answer) => answer.status)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture
def app() -> Iterator[RiverApp]:
    running = flights_app()
    yield running
    running.stop()


def check_page(page: Any) -> None:
    """What holds of the page in every state: text that can be read, names for all controls, no scrolling sideways."""
    check_spoken(page)
    check_seen(page)
    assert [said for said in page.said if "status of 40" not in said] == []  # without a token, or without metrics


@pytest.mark.parametrize("dark", [False, True])
def test_a_failed_source_is_the_first_thing_that_a_viewer_reads(browser: Any, app: RiverApp, dark: bool) -> None:
    with opened(browser, app, dark=dark) as page:
        assert page.inner_text("#pill") == "All is well"
        assert page.locator(".trouble").count() == 0
        check_page(page)
        fail_flights(app)
        trouble = page.locator("main > :first-child .trouble")
        told = trouble.inner_text()
        assert "The source of table flights has failed. No new rows of it arrive." in told
        assert "part-0042.parquet was removed" in told
        assert "delays_by_hour, flights_by_carrier, flights_of_plane" in told
        assert "It is tried again in 12 s" in told
        assert "app.restart_source('flights')" in told
        assert page.inner_text('[data-node="table:flights"] .state') == "failed"
        assert page.inner_text('[data-node="view:delays_by_hour"] .state') == "stale"
        assert page.inner_text('[data-node="view:planes_by_maker"] .state') == ""
        assert page.locator('.edge[data-level="bad"]').count() == 3
        page.wait_for_function("document.querySelector('#announcer').textContent.includes('flights has failed')")
        check_page(page)
        trouble.get_by_role("button", name="More about table flights").click()
        assert page.locator("dialog").get_by_text("4", exact=True).count() == 1
        check_page(page)


def test_names_and_errors_are_text_and_nothing_else(browser: Any, app: RiverApp) -> None:
    app.has_table(NASTY, table("failed", error=f"cannot read {NASTY}"))
    app.has_view(NASTY, [NASTY], view("failed", error=NASTY))
    with opened(browser, app) as page:
        page.on("dialog", lambda _: page.said.append("a script of a name has run"))
        assert page.inner_text(f'[data-node="view:{NASTY}"] .name') == NASTY
        page.click(f'[data-node="view:{NASTY}"]')
        page.wait_for_selector("dialog pre")
        page.keyboard.press("Escape")
        page.select_option("#lookup-view", NASTY)
        page.fill("#key-0", NASTY)
        page.keyboard.press("Enter")
        assert page.wait_for_selector("#lookup tbody th").inner_text() == NASTY
        assert page.locator("img").count() == 0
        check_page(page)


def test_fifty_views_stay_legible_in_groups_that_open_and_filter(browser: Any, app: RiverApp) -> None:
    for number in range(46):
        app.has_view(f"report_{number:02}", [["flights"], ["flights", "planes"], ["airlines"]][number % 3])
    app.has_view("report_07", ["flights", "planes"], view("failed", error="RowError: no number"))
    with opened(browser, app, width=PHONE) as page:
        check_page(page)
    with opened(browser, app) as page:
        groups = page.locator(".node.group")
        assert groups.count() == 5
        height = page.locator("#drawing").bounding_box()["height"]
        assert height < 800
        assert page.locator(".node.view .name").all_inner_texts() == ["report_07"]
        groups.first.click()
        assert groups.first.get_attribute("aria-expanded") == "true"
        assert page.locator(".node.view").count() > 10
        page.fill("#filter", "report_1")
        assert page.locator(".node.view").count() == 10
        assert page.locator(".node.group").count() == 0
        page.fill("#filter", "no such view")
        assert page.get_by_text("No view of that name.").is_visible()
        check_page(page)


def test_vnodes_move_to_their_new_worker_during_a_rescale(browser: Any, app: RiverApp) -> None:
    with opened(browser, app, still=False) as page:
        place = "document.querySelectorAll('.vnode')[7].style.transform"
        before = page.evaluate(place)
        app.told_status["rescale"] = progress(moved=2)
        app.has_workers([0] * 6 + [2] * 2 + [1] * 8)
        page.wait_for_selector(".vnode.moved")
        assert page.evaluate(place) != before
        assert page.locator(".vnode.moved").count() == 2
        assert "worker 2 has 2" in page.get_attribute(".vnode-map", "aria-label")
        assert page.inner_text("#vnodes-lead") == "2 of 8 vnodes have moved to another worker."
        assert page.inner_text(".rescale-now") == "From 2 to 3 workers by icadd: moving"
        assert page.get_attribute("#rescale progress", "value") == "0.25"
        check_page(page)
        page.get_by_role("button", name="Abort the rescale").click()
        page.wait_for_selector("#rescale .said:not(:empty)")
        app.told_status["rescale"] = None
        page.wait_for_selector("#rescale-workers")


def test_an_operator_begins_a_rescale_and_a_reader_cannot(browser: Any, app: RiverApp) -> None:
    with opened(browser, app) as page:
        page.fill("#rescale-workers", "3")
        page.get_by_role("button", name="Rescale").click()
        page.get_by_text("The rescale has begun.").wait_for()
        page.get_by_text("is finished.").wait_for()
        assert page.get_by_text("The rescale has begun.").count() == 0
    with opened(browser, app, token=READER_TOKEN) as page:
        page.get_by_text("Log in with the operator's token").wait_for()
        assert page.locator("#rescale button, #rescale input").count() == 0
        assert page.evaluate(ASKS_FOR_THREE_WORKERS) == 403


def test_a_key_is_looked_up_with_its_epoch(browser: Any, app: RiverApp) -> None:
    with opened(browser, app, width=PHONE) as page:
        page.fill("#key-0", "a")
        page.keyboard.press("Enter")
        said = page.wait_for_selector("#lookup .said:not(:empty)").inner_text()
        assert said.startswith("1 row of delays_by_hour, as of epoch 5")
        assert page.locator("#lookup td").all_inner_texts() == ["1"]
        page.fill("#key-0", "nothing")
        page.keyboard.press("Enter")
        page.get_by_text("The view has no rows of this key.").wait_for()
        check_page(page)


def test_the_page_works_by_keyboard_alone(browser: Any, app: RiverApp) -> None:
    with opened(browser, app) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the river"
        seen = []
        for _ in range(24):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.dataset.node ?? document.activeElement.id"))
        order = [
            "theme",
            "filter",
            "as-table",
            "table:airlines",
            "view:delays_by_hour",
            "worker:0",
            "rescale-workers",
            "lookup-view",
        ]
        assert [name for name in seen if name in order] == order
        page.focus('[data-node="view:delays_by_hour"]')
        page.keyboard.press("Enter")
        assert page.wait_for_selector("dialog pre").is_visible()
        assert page.evaluate("document.querySelector('dialog').contains(document.activeElement)")
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.dataset.node") == "view:delays_by_hour"
        page.focus("#as-table")
        page.keyboard.press("Space")
        assert page.locator("#tables tbody tr").count() == 3 + 4 + 2
        assert not page.locator("#drawing").is_visible()
        check_page(page)


def test_colours_follow_the_switch(browser: Any, app: RiverApp) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, app) as page:
        light = page.evaluate(ground)
        page.select_option("#theme", "dark")
        assert page.evaluate(ground) != light
        check_page(page)
        page.reload()
        page.wait_for_selector("body[data-state=live]")
        assert page.input_value("#theme") == "dark"


def test_an_app_without_views_and_one_that_stops_say_so(browser: Any, app: RiverApp) -> None:
    for name in list(app.told_status["views"]):
        app.forget_view(name)
    app.tables.clear()
    app.has_table("orders", lacks="its source is still being read (2 epochs so far)")
    with opened(browser, app, width=PHONE) as page:
        assert page.inner_text("#pill") == "Getting ready"
        assert page.get_by_text("No views yet: app.view(name, sql, key=...) declares one.").is_visible()
        assert page.get_by_text("There are no views to look up in yet.").is_visible()
        assert page.inner_text('[data-node="table:orders"] .state') == "warming up"
        check_page(page)
        app.server.close()
        page.get_by_text("Connection lost, trying again.").wait_for()
        assert page.inner_text("#pill") == "Not connected"


def test_what_moves_stands_still_for_a_viewer_that_asks_for_less_motion(browser: Any, app: RiverApp) -> None:
    flows = "[...document.querySelectorAll('.flow')].filter((each) => getComputedStyle(each).display !== 'none').length"
    with opened(browser, app, still=True) as page:
        assert page.evaluate(flows) == 0
    with opened(browser, app, still=False) as page:
        assert page.evaluate(flows) == 3


WIDTHS = (1280, 390, 320)
"""Pixels: a desk, a phone, and 400 % of zoom on a desk."""
LONG = "orders_of_all_customers_with_their_unpaid_amount_by_country_and_quarter_of_the_fiscal_year"

DRAWN = """(nodes) => nodes.map((node) => {
  const [kind, ...name] = node.dataset.node.split(":");
  const [state, reads] = [".state", ".visually-hidden"].map((part) => node.querySelector(part).textContent);
  return [kind, name.join(":"), state, reads];
})"""
ROWS = "(rows) => rows.map((row) => [...row.children].map((cell) => cell.textContent))"


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
