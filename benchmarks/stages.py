"""Where the time goes: each step from Spark's source to a worker's view, alone, over the throughput benchmark's rows.

Spark's steps may use all the task slots they are given; the worker's run in one thread, as in a worker, which here
owns all vnodes. The first micro-batch is reported apart: in it the JVM interprets what it has compiled later.
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from benchmarks.events import SCHEMA, TABLE, TOTALS, VIEW, EventsSpec, write_events
from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.region import Region
from upriver.ids import Epoch, Term, VnodeId
from upriver.lake.lake import Lake
from upriver.lake.manifests import Manifest
from upriver.plan.plan import TableSpec, lake_channel
from upriver.spark.analyser import SparkAnalyser
from upriver.spark.frames import DataFrame, SparkSession
from upriver.spark.ingest import Layout
from upriver.spark.runs import Lot, SparkRows, write_runs
from upriver.spark.session import local_session
from upriver.sql.views import declare_view
from upriver.vnodes import VNODES_DEFAULT

EVENTS = TableSpec(TABLE, SCHEMA, ("k",))
ALL_VNODES = frozenset(VnodeId(vnode) for vnode in range(VNODES_DEFAULT))

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOptions:
    """What to measure. cores: Spark's task slots. files_per_trigger: of a micro-batch."""

    events: EventsSpec
    cores: int
    files_per_trigger: int


def measure_stages(options: StageOptions, say: Any = print) -> dict[str, Any]:
    """Measure each step; returns what ``--json`` prints. ``say`` is told how it goes."""
    spark = local_session(0, ingest_slots=options.cores, app_name="upriver-bench")
    try:
        with tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory:
            data, root = Path(directory) / "events", f"{directory}/lake"
            write_events(data, options.events)
            batches = _micro_batches(spark, data, options.files_per_trigger)
            say("Spark: read the source, and ingest")
            layout = Layout(root=root, table=EVENTS, vnodes=VNODES_DEFAULT, groups=options.cores)
            _, scanning = _timed(_scan, batches)
            manifests, ingesting = _timed(partial(_ingest, layout), list(enumerate(batches)))
            say("a worker: read the runs, and apply them")
            read, reading = _timed(partial(_read, Lake(root)), manifests)
            _, applying = _timed(_region(spark), read)
            rows = [sum(manifest.rows().values()) for manifest in manifests]
    finally:
        spark.stop()
    seconds = {"spark_scan": scanning, "ingest": ingesting, "worker_read": reading, "worker_apply": applying}
    return {
        "rows": options.events.rows,
        "keys": options.events.keys,
        "cores": options.cores,
        "stages": {stage: rates(rows, spent) for stage, spent in seconds.items()},
    }


def _timed(step: Callable[[_Given], _Made], inputs: Iterable[_Given]) -> tuple[list[_Made], list[float]]:
    """What a step makes of each input, and the seconds it takes."""
    made, seconds = [], []
    for given in inputs:
        started = time.perf_counter()
        made.append(step(given))
        seconds.append(time.perf_counter() - started)
    return made, seconds


def rates(rows: Sequence[int], seconds: Sequence[float]) -> dict[str, int]:
    """Rows per second of the first micro-batch, and of all later ones (of the first, if it is the only one)."""
    later = slice(1, None) if len(rows) > 1 else slice(None)
    return {
        "first_rows_per_s": round(rows[0] / seconds[0]),
        "rows_per_s": round(sum(rows[later]) / sum(seconds[later])),
    }


def _micro_batches(spark: SparkSession, data: Path, files: int) -> list[DataFrame]:
    paths = sorted(str(path) for path in data.glob("*.parquet"))
    return [spark.read.parquet(*paths[first : first + files]) for first in range(0, len(paths), files)]


def _scan(batch: DataFrame) -> None:
    batch.write.format("noop").mode("overwrite").save()


def _ingest(layout: Layout, numbered: tuple[int, DataFrame]) -> Manifest:
    number, batch = numbered
    runs = write_runs(SparkRows(batch), layout.writer(Lot(number, EVENTS.key)), layout.groups)
    return Manifest(epoch=Epoch(number + 1), term=Term(1), table=TABLE, query="bench", batch=number, runs=runs)


def _read(lake: Lake, manifest: Manifest) -> list[Batch]:
    slices = lake.read(manifest, lake_channel(TABLE, EVENTS.key), ALL_VNODES, EVENTS)
    return [
        Batch(pa.RecordBatch.from_arrays(rows.columns[1:], schema=SCHEMA), rows.column(0).to_numpy()) for rows in slices
    ]


def _region(spark: SparkSession) -> Callable[[Sequence[Batch]], None]:
    """A worker's share of the view, which here is all of it; the result applies an epoch to it."""
    tables = {TABLE: EVENTS}
    plan = declare_view(VIEW, TOTALS, "k", tables, {}, SparkAnalyser(spark, tables))
    region = Region.build(plan, plan.regions[-1], Evaluator())

    def apply(epoch: Sequence[Batch]) -> None:
        for batch in epoch:
            region.apply(0, batch)

    return apply
