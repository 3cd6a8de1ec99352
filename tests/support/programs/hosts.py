"""A driver of its own on a cluster of several hosts, whose Spark starts copies of tasks that take long.

usage: hosts.py MASTER HOST ROOT. HOST: where the driver listens. For each line that it reads, a command with its
arguments as one JSON list, it prints one JSON object: what came of it, or an error's class and message. ``start NAME
SETTINGS TIMEOUT_S [PYTHON]``: an app on ROOT/NAME, whose workers run that interpreter; where it is reached. ``attempts
NAME``: of each worker's task, and what a lookup finds. ``rescale NAME WORKERS``. ``stop NAME``. ``tick NAME WORKERS``:
an app whose table grows all the time, with a view of one region, ``counts``, and a view that exchanges rows, ``sizes``.
``look NAME``: the status of its links and workers, and of each view the epoch and whether a lookup of each group finds
it.
"""

import json
import sys
from typing import Any

from session import OUR_DAEMON, options_of, session

from upriver.app import App
from upriver.spark.session import require_slots

SLOTS, GROUPS, ROWS = 4, 7, 700
TOTALS = "SELECT grp, count(*) AS n FROM rows GROUP BY grp"
WAIT_S = 60.0
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.task.duration.threshold": "1s",  # without it, Spark starts no copy of a task that is alone
}


class Driver:
    """One session, and the apps on it."""

    def __init__(self, master: str, host: str, root: str) -> None:
        listen = {"spark.driver.host": host, "spark.driver.bindAddress": host}
        self.spark = session(master, {**OUR_DAEMON, **SPECULATION, **listen})
        require_slots(self.spark, SLOTS - 1)
        self._root = root
        self._apps: dict[str, App] = {}

    def start(
        self, name: str, settings: dict[str, Any], timeout_s: float = WAIT_S, python: str = sys.executable
    ) -> dict[str, Any]:
        self.spark.sparkContext.pythonExec = python
        app = App(self.spark, f"{self._root}/{name}", **{"workers": 2, "ingest_tasks": 1, **options_of(settings)})
        app.table("rows", self.spark.range(ROWS).selectExpr("id", f"id % {GROUPS} AS grp"), key="id")
        app.view("totals", TOTALS, key="grp", partial=False)
        app.start(timeout=timeout_s, wait=True)
        self._apps[name] = app
        return {"address": app.address, "token": app.token, "workers": app.status()["workers"]}

    def tick(self, name: str, workers: int) -> dict[str, Any]:
        self.spark.sparkContext.pythonExec = sys.executable
        app = App(self.spark, f"{self._root}/{name}", workers=workers, ingest_tasks=1)
        ticks = self.spark.readStream.format("rate").option("rowsPerSecond", 20).load()
        app.table("ticks", ticks.selectExpr("value AS id", f"value % {GROUPS} AS grp"), key="id")
        app.view("counts", "SELECT grp, count(*) AS n FROM ticks GROUP BY grp", key="grp", partial=False)
        sizes = f"SELECT grp * 3 % {GROUPS} AS grp, sum(n) AS m FROM counts GROUP BY grp * 3 % {GROUPS}"
        app.view("sizes", sizes, key="grp", partial=False)
        app.start(timeout=WAIT_S, wait=True)
        self._apps[name] = app
        return {"workers": app.status()["workers"]}

    def look(self, name: str) -> dict[str, Any]:
        app = self._apps[name]
        views = ("counts", "sizes")
        found = {view: all(app.lookup(view, [group]).num_rows for group in range(GROUPS)) for view in views}
        status = app.status()
        return {
            "found": found,
            "epochs": {view: status["views"][view]["epoch"] for view in views},
            "links": status["broken_links"],
            "failures": [worker["last_failure"] for worker in status["workers"]],
            "restarts": [worker["restarts"] for worker in status["workers"]],
            "hosts": [worker["address"].rpartition(":")[0] for worker in status["workers"] if worker["address"]],
        }

    def attempts(self, name: str) -> dict[str, Any]:
        """Of each worker's task: status and host of each attempt, in order, and whether it is a copy."""
        context: Any = self.spark.sparkContext._jsc.sc()
        store = context.statusStore()
        jobs, attempts = store.jobsList(None), {}
        for job in (jobs.apply(number) for number in range(jobs.size())):
            what = job.description().get() if job.description().isDefined() else ""
            if what.startswith("Upriver: worker"):
                tasks = store.taskList(job.stageIds().apply(0), 0, 100)
                each = sorted(
                    (tasks.apply(number) for number in range(tasks.size())), key=lambda task: int(task.taskId())
                )
                attempts[what] = [[task.status(), task.host(), task.speculative()] for task in each]
        app = self._apps[name]
        found = app.lookup("totals", list(range(GROUPS))).to_pylist()
        return {"attempts": attempts, "workers": app.status()["workers"], "found": found}

    def rescale(self, name: str, workers: int) -> dict[str, Any]:
        app = self._apps[name]
        app.rescale(workers).wait(timeout=WAIT_S)
        return {"workers": app.status()["workers"]}

    def stop(self, name: str) -> dict[str, Any]:
        self._apps.pop(name).stop()
        return {}


def main(master: str, host: str, root: str) -> None:
    driver = Driver(master, host, root)
    for line in sys.stdin:
        command, arguments = line.split(maxsplit=1)
        try:
            answer = getattr(driver, command)(*json.loads(arguments))
        except Exception as error:  # the test says which it is to be
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), flush=True)
    driver.spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
