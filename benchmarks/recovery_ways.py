"""An app of several workers, of which one is killed, under a steady load: once for each way to recover.

A way is what the app is told when it is made, and how its view is kept. Everything else is the same for all.
"""

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.events import TABLE, TOTALS, VIEW
from benchmarks.nexmark_queries import Refused
from benchmarks.probed_load import ProbedLoad
from benchmarks.recovery_answers import RecoveryAnswers, served_again
from benchmarks.recovery_feed import FeedSpec, RecoveryFeed
from benchmarks.recovery_kill import Watched, kill_worker
from benchmarks.recovery_prober import RecoveryTask
from upriver.app import App
from upriver.errors import ClusterError
from upriver.hashing import hash64
from upriver.ids import WorkerId
from upriver.net.remote import Connection, Remote
from upriver.options import Checkpoints, Standbys
from upriver.protocol.lookups import Routing
from upriver.spark.frames import DataFrame, SparkSession, differing_rows
from upriver.vnodes import VNODES_DEFAULT, vnodes_of

LOAD_S_MAX = 900.0
"""Seconds until the view must hold all keys, and again until they must be in a checkpoint."""
RECOVERY_S_MAX = 300.0
"""Seconds until the app must have caught up after the kill."""
REFLECT_S_MAX = 120.0
"""Seconds until the last epoch must be reflected."""
ROUTING_S_MAX = 10.0
STANDBYS_POLL_S = 0.1
VICTIM = WorkerId(1)
"""Whose process is killed."""
PROBED_KEYS_MAX = 10_000
"""Keys of the victim's that are looked up."""
COMPARED_KEYS = 50_000
"""Keys of a lookup of those that read the whole of a partial view."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryWay:
    """settings: of the app. partial: whether the view keeps only what is read. replays: whether there are epochs since
    the last checkpoint that the new worker has to apply."""

    about: str
    partial: bool
    replays: bool
    standbys: Standbys = field(default_factory=Standbys)


WAYS: Mapping[str, RecoveryWay | Refused] = {
    "checkpoint": RecoveryWay(
        about="no standby: the last checkpoint, and the epochs since", partial=False, replays=True
    ),
    "standby": RecoveryWay(
        about="one standby of each vnode, which takes over",
        partial=False,
        replays=False,
        standbys=Standbys(replicas=1, warmup_replicas=64),
    ),
    "partial": RecoveryWay(about="a partial view: nothing at first, refilled on demand", partial=True, replays=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    """epochs_since: put between the checkpoint and the load. epoch_rows: of those, and of the steady ones, of which
    there are ``epochs_per_s``. steady_s: of load before the kill, and after all has caught up."""

    keys: int
    workers: int
    epoch_rows: int
    epochs_since: int
    epochs_per_s: float
    steady_s: float
    has_spark: bool
    seed: int = 1

    @property
    def feed(self) -> FeedSpec:
        return FeedSpec(keys=self.keys, epoch_rows=self.epoch_rows, seed=self.seed)


def measure_way(spark: SparkSession, options: RecoveryOptions, name: str, way: RecoveryWay, say: Say) -> dict[str, Any]:
    """Kill a worker of an app that recovers in this way; returns its figures.

    Raises ClusterError if the app fails, does not recover in time, or answers nothing.
    """
    say(f"{name}: {options.keys:,} keys, {options.workers} workers, of which one is killed; {way.about}")
    with tempfile.TemporaryDirectory(prefix="upriver-bench-") as name_of_directory:
        directory = Path(name_of_directory)
        feed = RecoveryFeed(directory / "events", options.feed)
        feed.put_base()
        lake = str(directory / "lake")
        checkpoints = Checkpoints(interval_s=None)
        with App(spark, lake, workers=options.workers, checkpoints=checkpoints, standbys=way.standbys) as app:
            app.table(TABLE, feed.stream(spark), key="k")
            app.view(VIEW, TOTALS, key="k", partial=way.partial)
            app.start()
            app.wait(LOAD_S_MAX)
            checkpoint = app.checkpoint(timeout=LOAD_S_MAX)
            for _ in range(options.epochs_since):
                feed.put()
            app.wait(LOAD_S_MAX)
            _wait_for_standbys(app)
            load = RecoveryLoad(app, feed, directory, options.epochs_per_s)
            with load:
                time.sleep(options.steady_s)
                load.check()
                watched = kill_worker(app.status, VICTIM, RECOVERY_S_MAX)
                time.sleep(options.steady_s)
                load.check()
            epoch = app.wait(REFLECT_S_MAX)
            if epoch != len(feed.put_at):
                raise ClusterError(f"{len(feed.put_at)} files have become {epoch} epochs: there was to be one for each")
            differing = _differing(spark, app, feed, way, directory)
        figures = way_figures(load.answers, options.feed, len(feed.put_at), watched) | {
            "replayed_epochs": watched.epoch - checkpoint if way.replays else 0,
            "keys_of_worker": load.keys_of_victim,
            "views_equal": differing == 0,
        }
    say(f"  {json.dumps(figures)}")
    return figures


def _wait_for_standbys(app: App) -> None:
    """Until every vnode has as many as there are to be."""
    deadline = time.monotonic() + LOAD_S_MAX
    while (standbys := app.status()["standbys"])["wanted"] and standbys["ready"] < VNODES_DEFAULT:
        if time.monotonic() > deadline:
            raise ClusterError(f"{LOAD_S_MAX:g} s after all rows were in, vnodes lack standbys: {standbys}")
        time.sleep(STANDBYS_POLL_S)


class RecoveryLoad(ProbedLoad):
    """Puts files at a steady pace and has the victim's keys looked up, as long as its context is open.

    ``answers`` are there when it has ended.
    """

    answers: RecoveryAnswers

    def __init__(self, app: App, feed: RecoveryFeed, directory: Path, epochs_per_s: float) -> None:
        self._feed_of_files = feed
        keys = keys_of(app.address, app.token, feed.spec.keys, VICTIM)
        self.keys_of_victim = len(keys)
        rng = np.random.default_rng(feed.spec.seed)
        probed = rng.choice(keys, min(PROBED_KEYS_MAX, len(keys)), replace=False)
        self._result = str(directory / "answers.arrow")
        task = RecoveryTask(address=app.address, view=VIEW, keys=probed.tolist(), result=self._result)
        super().__init__("benchmarks.recovery_prober", asdict(task), app.token, directory, epochs_per_s)

    def publish(self) -> Mapping[str, Any]:
        return {"file": self._feed_of_files.put()}

    def gather(self) -> None:
        self.answers = RecoveryAnswers.read(self._result)


def keys_of(address: str, token: str, keys: int, worker: WorkerId) -> Any:
    """Of the keys from 0 up to but without ``keys``, those that a worker owns. Raises ClusterError if it owns none."""
    with Connection(Remote.parse(address, token)) as coordinator:
        owners = Routing.from_json(coordinator.act("routing", timeout=ROUTING_S_MAX)).vnode_map
    numbers = np.arange(keys)
    found = numbers[owners.owners_of(vnodes_of(hash64([pa.array(numbers)]), len(owners.owners))) == worker]
    if not len(found):
        raise ClusterError(f"worker {worker} owns none of {keys} keys: give more")
    return found


def way_figures(answers: RecoveryAnswers, spec: FeedSpec, files: int, watched: Watched) -> dict[str, Any]:
    """Seconds since the kill, and what became of the lookups."""
    is_right = answers.right(spec, files)
    served_again_at = served_again(answers, is_right, watched.died_at)
    if served_again_at is None:
        raise ClusterError("no lookup was answered right for good after the kill, though all workers have caught up")
    return {
        "noticed_s": round(watched.noticed_at - watched.killed_at, 3),
        "served_again_s": round(served_again_at - watched.killed_at, 3),
        "served_after_noticed_s": round(served_again_at - watched.noticed_at, 3),
        "caught_up_s": round(watched.caught_up_at - watched.killed_at, 3),
        "answers": int(np.count_nonzero(~answers.failed)),
        "wrong_answers": int(np.count_nonzero(~answers.failed & ~is_right)),
        "failed": int(np.count_nonzero(answers.failed)),
    }


def _differing(spark: SparkSession, app: App, feed: RecoveryFeed, way: RecoveryWay, directory: Path) -> int:
    """Rows that the view or Spark SQL over the same rows has and the other has not."""
    feed.rows(spark).createOrReplaceTempView("rows_put")
    view = _looked_up(spark, app, feed.spec.keys, directory / "looked-up") if way.partial else app.read(VIEW)
    return differing_rows(view, spark.sql(TOTALS.replace(TABLE, "rows_put")))


def _looked_up(spark: SparkSession, app: App, keys: int, directory: Path) -> DataFrame:
    """The view's rows of all keys, by lookups: ``app.read`` of a partial view does not ask the workers."""
    directory.mkdir()
    for first in range(0, keys, COMPARED_KEYS):
        asked = pa.array(np.arange(first, min(first + COMPARED_KEYS, keys)))
        pq.write_table(app.lookup(VIEW, asked, timeout=REFLECT_S_MAX), directory / f"{first}.parquet")
    return spark.read.parquet(str(directory))
