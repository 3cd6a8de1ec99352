"""A view that is added to a running app with a long history: how long until it answers its first lookup."""

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.vote_model import ARTICLE, KEY, SQL, VOTE
from upriver.app import App
from upriver.client.client import connect
from upriver.spark.frames import SparkSession

LOAD_S_MAX = 1_200.0
"""Seconds until the app has taken in all rows."""
ROWS_PER_ARTICLE = 10
"""Votes of each article; the same for all."""
FIRST = "SELECT article_id, count(*) AS n, count(DISTINCT user) AS users FROM vote GROUP BY article_id"
"""What the app keeps before, partial as well."""
SECOND = "SELECT article_id, max(user) AS last FROM vote GROUP BY article_id"
"""Added once, before the view that is timed: code is loaded."""


def measure_new_view(spark: SparkSession, rows: int, workers: int) -> dict[str, Any]:
    """As ``--json`` prints it: milliseconds for the view to be declared, and for the first lookup after that.

    rows: votes in the lake when the view is added.
    """
    articles = max(1, rows // ROWS_PER_ARTICLE)
    titled = "concat('Article ', lpad(CAST(id AS STRING), 12, '0')) AS title"
    votes = spark.range(rows).selectExpr(f"id % {articles} AS article_id", "id AS user")
    with (
        tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory,
        App(spark, str(Path(directory) / "lake"), workers=workers) as app,
    ):
        app.table(ARTICLE.name, spark.range(articles).selectExpr("id", titled), key="id")
        app.table(VOTE.name, votes, key="article_id")
        app.view("before", FIRST, key="article_id")
        app.start()
        app.wait(LOAD_S_MAX)
        app.view("warm_up", SECOND, key="article_id")
        with connect(app.address, app.token) as client:
            client.lookup("warm_up", [0], timeout=LOAD_S_MAX)
            began = time.perf_counter()
            app.view("added", SQL, key=KEY)
            declared = time.perf_counter()
            found = client.lookup("added", [articles - 1], timeout=LOAD_S_MAX)
            answered = time.perf_counter()
    votes_found = found["n"].to_pylist()
    return {
        "rows": rows,
        "declared_ms": round((declared - began) * 1e3, 1),
        "first_lookup_ms": round((answered - declared) * 1e3, 1),
        "total_ms": round((answered - began) * 1e3, 1),
        "answer_is_right": votes_found == [len(range(articles - 1, rows, articles))],
    }
