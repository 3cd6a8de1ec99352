"""A driver of its own, whose processes a test harms.

usage: failures.py MASTER ROOT EVENTS [SETTINGS]. Follows the Parquet files in EVENTS. SETTINGS: of the app, as JSON.
Prints one JSON object for each line that it reads: first, unasked, where it is reached; for ``check FILES``, when all
of so many files are taken, how many keys the view has and how many rows of all views differ from Spark's own answers;
for ``add VIEW``, when there is one more view; for ``group``, what each worker keeps and follows, and Spark's task
slots; for ``maps``, all maps that there were so far.
"""

import json
import sys
import threading
from typing import Any

from pyspark.sql import SparkSession
from session import OUR_DAEMON, options_of, session

from upriver.app import App
from upriver.spark.frames import differing_rows
from upriver.spark.session import free_slots

SCHEMA = "k long, v long"
SUMS = "SELECT k, count(*) AS n, sum(v) AS total FROM events GROUP BY k"
SIZES = "SELECT n, count(*) AS keys FROM (SELECT k, count(*) AS n FROM events GROUP BY k) AS counts GROUP BY n"
VIEWS = {"sums": (SUMS, "k"), "sizes": (SIZES, "n")}
WAIT_S = 120.0
LOOK_S = 0.001
"""Seconds between two looks at the map."""


def main(master: str, root: str, events: str, settings: str = "{}") -> None:
    # A worker that is stopped is to come back, not to be killed.
    spark = session(master, {**OUR_DAEMON, "spark.python.task.killTimeout": "1h"})
    app = App(spark, root, ingest_tasks=1, **{"workers": 2, **options_of(json.loads(settings))})
    app.table("events", spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(events), key="k")
    views = ["sums"]
    add(app, "sums")
    app.start(wait=True)
    maps = Maps(app)
    say({"address": app.address, "token": app.token})
    for line in sys.stdin:
        match line.split():
            case "check", files:
                say(check(spark, app, events, views, int(files)))
            case "add", view:
                add(app, view)
                views.append(view)
                say({"views": views})
            case ["group"]:
                say({**group(app), "slots": free_slots(spark)})
            case ["maps"]:
                say({"maps": maps.seen})
            case _:
                break
    app.stop()
    spark.stop()


def add(app: App, view: str) -> None:
    sql, key = VIEWS[view]
    app.view(view, sql, key=key, partial=False)


def check(spark: SparkSession, app: App, events: str, views: list[str], files: int) -> dict[str, Any]:
    while app.wait(WAIT_S) < files:
        pass
    spark.read.schema(SCHEMA).parquet(events).createOrReplaceTempView("events")
    differing = [differing_rows(app.read(view), spark.sql(VIEWS[view][0])) for view in views]
    return {"keys": app.read("sums").count(), "differing": sum(differing)}


def group(app: App) -> dict[str, Any]:
    """No user is told of it, so this looks where it is. followers: of each flow, pairs of a vnode and the worker that
    follows it. born: of each flow, the generation in which all began anew last."""
    running: Any = app._running_app
    cluster = running._running._machine.cluster
    followers = [[(int(vnode), int(follower)) for vnode, follower in flow.feeds.fed()] for flow in cluster]
    born = [flow.generation.born for flow in cluster]
    return {"owners": list(map(int, cluster.vnode_map.owners)), "followers": followers, "born": born}


class Maps:
    """Notes all maps, as ``status`` has them. A client that asks over the network may come too late for one that was
    there for some milliseconds."""

    def __init__(self, app: App) -> None:
        self._running_app: Any = app._running_app
        self.seen: list[tuple[int, list[int]]] = []
        """Of each, in order, its version and the workers that have any vnode by it."""
        threading.Thread(target=self._look, name="maps", daemon=True).start()

    def _look(self) -> None:
        never = threading.Event()
        while not never.wait(LOOK_S):
            newest = self._running_app._running._machine.vnode_map
            if not self.seen or newest.version != self.seen[-1][0]:
                self.seen.append((int(newest.version), list(map(int, newest.workers))))


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
