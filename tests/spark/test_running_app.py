"""An app whose coordinator fails, on real Spark."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from upriver.app import App
from upriver.client.client import connect
from upriver.errors import ProtocolError
from upriver.ids import Epoch
from upriver.protocol.coordinator_events import EpochPublished

pytestmark = pytest.mark.spark

FOR_EVER_S, SECONDS_MAX = 600.0, 60.0
TOLD = r"^the coordinator has failed, which is a fault of Upriver: [^\n]+\. The lake is whole: call stop\(\) and start"


def break_down(app: App) -> None:
    """Have the coordinator hear of an epoch that follows on none."""
    running: Any = app._running_app
    running._running._inbox.put(EpochPublished(epoch=Epoch(10**6), rows={}))


def test_a_failed_coordinator_is_told_to_each_caller_and_the_app_starts_again(spark: Any, tmp_path: Path) -> None:
    with App(spark, tmp_path, workers=2, vnodes=16, ingest_tasks=1) as app, ThreadPoolExecutor() as threads:
        app.table("events", spark.createDataFrame([(1, 10), (2, 5), (1, 20)], "k long, v long"), key="k")
        app.view("sums", "SELECT k, sum(v) AS total FROM events GROUP BY k", key="k", partial=False)
        app.start(wait=True)
        with connect(app.address, app.token) as client:
            waiting = threads.submit(client.lookup, "sums", [1], at_least=10**6, timeout=FOR_EVER_S)
            break_down(app)
            with pytest.raises(ProtocolError, match=TOLD):
                waiting.result(SECONDS_MAX)
        calls: list[Callable[[], object]] = [
            app.wait,
            app.checkpoint,
            lambda: app.lookup("sums", [1, 2]),
            lambda: app.rescale(1),
            lambda: app.drop_view("sums"),
        ]
        for call in calls:
            with pytest.raises(ProtocolError, match=TOLD):
                call()
        assert app.status()["failure"].startswith("the coordinator has failed")
        app.stop()
        app.start(wait=True)
        assert app.status()["failure"] is None
        assert app.lookup("sums", [1, 2]).to_pylist() == [{"k": 1, "total": 30}, {"k": 2, "total": 5}]
