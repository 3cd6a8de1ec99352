"""The page of a real app in headless Chromium: failures, a lookup, a rescale, and what readers may not do."""

from pathlib import Path
from typing import Any

import pytest
from river_kit import chromium, viewed

from upriver import App
from upriver.options import Doors, Tokens

pytestmark = pytest.mark.spark

RESCALED_MS_MAX = 40_000
"""Milliseconds that a rescale may take on a loaded machine."""
ASKS_FOR_ONE_WORKER = """() => fetch("/v1/rescale", {
  method: "POST", body: JSON.stringify({workers: 1}), headers: {"content-type": "application/json"},
}).then((answer) => answer.status)"""


def test_a_viewer_sees_what_is_wrong_looks_up_and_rescales(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "payments").mkdir()
    (tmp_path / "payments" / "1.json").write_text('{"id": 1, "paid": "twelve euros"}')
    payments = spark.readStream.schema("id BIGINT, paid INT").option("mode", "FAILFAST")
    app = App(
        spark,
        str(tmp_path / "lake"),
        workers=1,
        vnodes=16,
        doors=Doors(http="127.0.0.1:0"),
        tokens=Tokens(operator="operates", reader="only-reads"),
    )
    app.table("orders", spark.range(100).selectExpr("id", "id % 4 AS customer"), key="id")
    app.table("payments", payments.json(str(tmp_path / "payments")), key="id")
    app.view("counts", "SELECT customer, count(*) AS n FROM orders GROUP BY customer", "customer")
    app.view("paid", "SELECT id, sum(paid) AS total FROM payments GROUP BY id", "id")
    with app.start(), chromium() as browser:  # in this order: beside a running browser the app did not come up
        with viewed(browser, app.http_address, "operates") as page:
            page.set_default_timeout(RESCALED_MS_MAX)
            page.wait_for_selector('[data-node="table:payments"][data-level="bad"]')
            page.wait_for_selector('[data-node="view:counts"][data-level="good"]')
            told = page.locator(".trouble").first.inner_text()
            assert "The source of table payments has failed. No new rows of it arrive." in told
            assert "twelve euros" in told
            assert page.inner_text("#river-lead").startswith("1 of 2 tables needs attention: payments (fail")
            page.select_option("#lookup-view", "counts")
            page.fill("#key-0", "3")
            page.keyboard.press("Enter")
            page.wait_for_selector("#lookup tbody tr")
            assert page.locator("#lookup tbody tr > *").all_inner_texts() == ["3", "25"]
            page.fill("#rescale-workers", "2")
            page.get_by_role("button", name="Rescale").click()
            page.wait_for_selector("#rescale tbody tr")
            assert page.locator("#rescale tbody tr > *").all_inner_texts()[:2] == ["1 to 2", "finished"]
            page.wait_for_function("document.querySelector('.vnode-map').ariaLabel.includes('worker 1 has 8')")
        with viewed(browser, app.http_address, "only-reads") as page:
            page.get_by_text("Log in with the operator's token").wait_for()
            assert page.locator("#rescale button, #rescale input").count() == 0
            assert page.evaluate(ASKS_FOR_ONE_WORKER) == 403
            assert len(app.status()["workers"]) == 2
