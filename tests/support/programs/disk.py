"""A driver of its own, whose disk a test lets fail.

usage: disk.py ROOT EVENTS. Follows the Parquet files in EVENTS, of k, v and a text that need not be a number. For each
line that it reads it prints one JSON object: what came of it, or an error's class and message. ``start``: the app, on
the same root as before; where it is reached. ``wait FILES``: until all of so many files are taken, or a worker is held
up; the epoch. ``workers``: where each serves, and how often it was restarted.
``checkpoint``: its epoch. ``check``: how many rows of each view differ from Spark's own answer, and how many were set
aside. ``stop``: the app.
"""

import json
import sys
import time
from typing import Any

from session import OUR_DAEMON, session

from upriver.app import App
from upriver.errors import WaitTimeout
from upriver.options import Checkpoints
from upriver.spark.frames import differing_rows

SUMS = "SELECT k, count(*) AS n, sum(v) AS total FROM events GROUP BY k"
NUMBERS = "SELECT k, sum(cast(text AS int)) AS numbers FROM events {where} GROUP BY k"
SCHEMA = "k long, v long, text string"
WAIT_S, LOOK_S = 120.0, 2.0


class Driver:
    """One app after the other, on one root."""

    def __init__(self, root: str, events: str) -> None:
        self.spark = session("local[4]", OUR_DAEMON)
        self._root = root
        self._events = events
        self._app: App | None = None

    @property
    def app(self) -> App:
        assert self._app is not None
        return self._app

    def start(self) -> dict[str, Any]:
        app = App(self.spark, self._root, workers=2, ingest_tasks=1, checkpoints=Checkpoints(interval_s=None))
        rows = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(self._events)
        app.table("events", rows, key="k", on_bad_row="set_aside")
        app.view("sums", SUMS, key="k", partial=False)
        app.view("numbers", NUMBERS.format(where=""), key="k", partial=False)
        app.start()
        self._app = app
        return {"workers": [worker["address"] for worker in app.status()["workers"]]}

    def wait(self, files: str) -> dict[str, Any]:
        epoch, give_up_at = 0, time.monotonic() + WAIT_S
        while epoch < int(files):
            try:
                epoch = self.app.wait(LOOK_S)
            except WaitTimeout:
                if time.monotonic() > give_up_at or any(worker["held_up"] for worker in self.app.status()["workers"]):
                    raise
        return {"epoch": epoch}

    def workers(self) -> dict[str, Any]:
        workers = self.app.status()["workers"]
        return {"workers": [worker["address"] for worker in workers], "restarts": [w["restarts"] for w in workers]}

    def checkpoint(self) -> dict[str, Any]:
        return {"epoch": self.app.checkpoint(timeout=WAIT_S)}

    def check(self) -> dict[str, Any]:
        self.spark.read.schema(SCHEMA).parquet(self._events).createOrReplaceTempView("events")
        numbers = NUMBERS.format(where="WHERE text RLIKE '^[0-9]+$'")
        return {
            "sums": differing_rows(self.app.read("sums"), self.spark.sql(SUMS)),
            "numbers": differing_rows(self.app.read("numbers"), self.spark.sql(numbers)),
            "rejected": self.app.rejected("events").count(),
        }

    def stop(self) -> dict[str, Any]:
        self.app.stop()
        return {}


def main(root: str, events: str) -> None:
    driver = Driver(root, events)
    for line in sys.stdin:
        command, *arguments = line.split()
        try:
            answer = getattr(driver, command)(*arguments)
        except Exception as error:  # the test says which it is to be
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), flush=True)
    driver.spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
