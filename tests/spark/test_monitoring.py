"""What a real app measures, on Spark."""

from pathlib import Path
from typing import Any

import pytest
from metrics_kit import parsed
from standby_kit import await_that

from upriver.app import App

pytestmark = pytest.mark.spark


def test_a_real_app_measures_itself(spark: Any, tmp_path: Path) -> None:
    with App(spark, tmp_path, workers=2, vnodes=16, ingest_tasks=1) as app:
        app.table("events", spark.createDataFrame([(1, 10), (2, 5), (1, 20)], "k long, v long"), key="k")
        app.view("sums", "SELECT k, sum(v) AS total FROM events GROUP BY k", key="k")
        app.start(wait=True)
        for _ in range(3):
            app.lookup("sums", [1, 2])

        def found() -> dict[str, float]:
            return dict(parsed(app.metrics()))

        count = 'upriver_lookup_duration_seconds_count{view="sums"}'
        await_that(lambda: found().get(count, 0) >= 3, found)
        told = found()
        assert told['upriver_ingested_rows_total{table="events"}'] == 3
        assert told['upriver_source_state{state="finished",table="events"}'] == 1
        assert told['upriver_table_lag_rows{table="events"}'] == 0
        assert told['upriver_epoch_duration_seconds_count{stage="write"}'] == 1
        assert told['upriver_epoch_duration_seconds_count{stage="end"}'] == 1
        missed = [value for name, value in told.items() if name.startswith("upriver_view_missed_keys_total")]
        assert sum(missed) == 2
        assert told['upriver_upqueries_total{view="sums"}'] >= 1
        workers = [value for name, value in told.items() if name.startswith("upriver_worker_lookups_total")]
        assert sum(workers) == told[count]
