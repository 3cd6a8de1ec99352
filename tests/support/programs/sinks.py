"""Runs a stream of changes into a sink, in a session of its own. The query fails when its second batch is written and
Spark does not know yet; then it goes on. Prints, as JSON, the rows of the table that was kept.

usage: sinks.py FOLDER SINK SETTINGS; SETTINGS: of the session, in JSON. FOLDER/changes has the changes, a file for each
batch. SINK: ``delta``, ``iceberg`` or the address of a Kafka broker.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from changes_kit import SCHEMA
from pyspark.errors import PySparkException
from session import session

from upriver.sinks import keep_equal, publish_to_kafka

TOPIC = "changes"


class FailingSink:
    """Fails behind its second batch, the first time."""

    def __init__(self, sink: Callable[[Any, int], None]) -> None:
        self._sink = sink
        self.written: list[int] = []

    def __call__(self, rows: Any, batch: int) -> None:
        self._sink(rows, batch)
        self.written.append(batch)
        if self.written == [0, 1]:
            raise RuntimeError("killed before the batch was committed")


def main(folder: Path, sink: str, settings: dict[str, Any]) -> None:
    spark = session("local[2]", settings)
    spark.sparkContext.setLogLevel("OFF")
    table = {"delta": str(folder / "table"), "iceberg": "lake.db.kept"}.get(sink, "")
    write = keep_equal(table, "k", format=sink) if table else publish_to_kafka(sink, TOPIC, "k")
    failing = FailingSink(write)
    for _ in range(2):
        changes = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "changes"))
        query = changes.writeStream.foreachBatch(failing).trigger(availableNow=True)
        try:
            query.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
        except PySparkException:
            assert failing.written == [0, 1]
    rows: list[Any] = []
    if table:
        name = f"delta.`{table}`" if sink == "delta" else table
        rows = [list(row) for row in spark.table(name).collect()]
    print(json.dumps({"written": failing.written, "rows": rows}))


main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
