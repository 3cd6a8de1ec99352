"""Queries of TPC-H's shapes: views of Upriver beside Spark's batch, which computes all again, and its stream.

All run one after another in one Spark session over the same Parquet files. For each query: *start*, until there are
workers; *load*, from then until all rows are reflected; then some *epochs*, each of a file of new orders and a file of
their lines, until these are reflected; then lookups of single keys. Spark's batch reads all files into the ``noop``
sink. Its stream, in update mode into the same sink, gets the same files; where Spark refuses it, ``spark_stream_why``
says why. Upriver's answer is compared with Spark's batch, row by row.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import median
from benchmarks.shop_queries import QUERIES, TABLE_KEYS, ShopQuery
from benchmarks.shop_rows import ShopSpec, write_rows
from upriver.app import App
from upriver.errors import UserError
from upriver.spark.frames import DataFrame, SparkSession, differing_rows
from upriver.spark.session import local_session

VIEW = "answer"
WAIT_S_MAX = 900.0
BATCHES = 3
"""Runs of Spark's batch query, of which the median counts."""
KEYS_MAX = 100
"""Keys that are looked up, one at a time."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TpchOptions:
    """queries: names out of QUERIES. epochs: of changes. orders: new ones of an epoch. has_stream: whether Spark's
    stream is run."""

    spec: ShopSpec
    queries: tuple[str, ...]
    workers: int
    cores: int
    epochs: int
    orders: int
    has_stream: bool


def measure_tpch(options: TpchOptions, say: Say = print) -> dict[str, Any]:
    """Returns what ``--json`` prints. Raises UserError for queries that there are not."""
    if unknown := [name for name in options.queries if name not in QUERIES]:
        raise UserError(f"no query {', '.join(unknown)}; there are: {', '.join(QUERIES)}")
    spark = local_session(options.workers, ingest_slots=options.cores, app_name="upriver-bench")
    try:
        queries = {}
        for name in options.queries:
            with tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory:
                queries[name] = Contest(spark, options, QUERIES[name], Path(directory)).run()
            say(f"{name}: {queries[name]}")
    finally:
        spark.stop()
    return {
        "scale": options.spec.scale,
        "orders": options.spec.orders,
        "orders_of_an_epoch": options.orders,
        "workers": options.workers,
        "queries": queries,
        "equal": all(figures["equal"] for figures in queries.values()),
    }


class Contest:
    """One query, on all sides."""

    def __init__(self, spark: SparkSession, options: TpchOptions, query: ShopQuery, directory: Path) -> None:
        self._spark, self._options, self._query, self._directory = spark, options, query, directory
        self._data = directory / "rows"

    def run(self) -> dict[str, Any]:
        """The figures: seconds, and how many times as long Spark takes."""
        self._write(0)
        ours = self._upriver()
        batch = self._batch()
        stream = self._stream() if self._options.has_stream else {"why": "not asked for"}
        found: dict[str, Any] = {"shape": self._query.shape, **ours, "spark_batch_s": batch}
        found |= {f"spark_stream_{name}": value for name, value in stream.items()}
        found["load_over_batch"] = round(ours["load_s"] / batch, 2)
        found["batch_over_epoch"] = round(batch / ours["epoch_s"], 1)
        if "epoch_s" in stream:
            found["stream_over_epoch"] = round(stream["epoch_s"] / ours["epoch_s"], 1)
        return found

    def _write(self, number: int) -> None:
        """The rows that are there at first (number 0), or those of an epoch. Only tables that the query reads."""
        spec, orders = self._options.spec, self._options.orders
        if number == 0:
            tables = {**spec.fixed(), **spec.sold(0, spec.orders)}
        else:
            tables = spec.sold(spec.orders + (number - 1) * orders, orders)
        write_rows(self._data, number, {name: rows for name, rows in tables.items() if name in self._query.tables})

    def _upriver(self) -> dict[str, Any]:
        with App(self._spark, str(self._directory / "lake"), workers=self._options.workers) as app:
            for name in self._query.tables:
                app.table(name, self._rows(name, streaming=True), key=TABLE_KEYS[name])
            app.view(VIEW, self._query.sql, key=self._query.key, partial=False)
            started = time.perf_counter()
            app.start()
            began = time.perf_counter()
            app.wait(WAIT_S_MAX)
            load_s = time.perf_counter() - began
            epochs = [
                self._epoch(number, lambda: app.wait(WAIT_S_MAX)) for number in range(1, self._options.epochs + 1)
            ]
            lookups = self._lookups(app)
            differing = differing_rows(app.read(VIEW), self._answer())
        return {
            "start_s": round(began - started, 2),
            "load_s": round(load_s, 2),
            "epoch_s": round(median(epochs), 3),
            "lookup_ms": None if not lookups else round(median(lookups) * 1e3, 2),
            "equal": differing == 0,
        }

    def _epoch(self, number: int, wait: Callable[[], object]) -> float:
        """Seconds until an epoch's rows are reflected, from when its files are there."""
        self._write(number)
        started = time.perf_counter()
        wait()
        return time.perf_counter() - started

    def _lookups(self, app: App) -> list[float]:
        """Seconds of each lookup of a key of the answer."""
        if self._query.key:
            rows = app.read(VIEW).select(*self._query.key).distinct().limit(KEYS_MAX).collect()
            keys: list[Any] = [tuple(row) if len(row) > 1 else row[0] for row in rows]
        else:
            keys = [()] * KEYS_MAX
        seconds = []
        for key in keys:
            started = time.perf_counter()
            app.lookup(VIEW, [key])
            seconds.append(time.perf_counter() - started)
        return seconds

    def _batch(self) -> float:
        seconds = []
        for _ in range(BATCHES):
            started = time.perf_counter()
            self._answer().write.format("noop").mode("overwrite").save()
            seconds.append(time.perf_counter() - started)
        return round(median(seconds), 2)

    def _stream(self) -> dict[str, Any]:
        """Spark's stream of the same files: the first ones at once, then those of each epoch."""
        later = self._directory / "later"
        for path in sorted(self._data.glob("*/*.parquet")):
            if path.stem != f"{0:06}":
                (later / path.parent.name).mkdir(parents=True, exist_ok=True)
                shutil.move(path, later / path.parent.name / path.name)
        for name in self._query.tables:
            self._rows(name, streaming=True).createOrReplaceTempView(name)
        try:
            writer = self._spark.sql(self._query.sql).writeStream.outputMode("update").format("noop")
            started = time.perf_counter()
            stream = writer.option("checkpointLocation", str(self._directory / "checkpoint")).start()
            stream.processAllAvailable()
            load_s = time.perf_counter() - started
        except Exception as error:  # of Spark's several classes: it refuses the query, at its start or its first batch
            return {"why": str(error).strip().splitlines()[0][:120]}
        epochs = []
        for number in range(1, self._options.epochs + 1):
            for path in later.glob(f"*/{number:06}.parquet"):
                shutil.move(path, self._data / path.parent.name / path.name)
            started = time.perf_counter()
            stream.processAllAvailable()
            epochs.append(time.perf_counter() - started)
        stream.stop()
        return {"load_s": round(load_s, 2), "epoch_s": round(median(epochs), 3)}

    def _answer(self) -> DataFrame:
        """Spark's batch query over all files."""
        for name in self._query.tables:
            self._rows(name, streaming=False).createOrReplaceTempView(name)
        return self._spark.sql(self._query.sql)

    def _rows(self, name: str, streaming: bool) -> DataFrame:
        path = str(self._data / name)
        if not streaming:
            return self._spark.read.parquet(path)
        return self._spark.readStream.schema(self._spark.read.parquet(path).schema).parquet(path)
