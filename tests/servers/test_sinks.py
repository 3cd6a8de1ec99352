"""Sinks with the real thing: Delta, Iceberg, Kafka. Each is written by a query that fails between its sink and its
checkpoint, and goes on."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from changes_kit import Change, Rows, arrow_changes, random_history
from confluent_kafka import Consumer

if TYPE_CHECKING:
    from servers.kafka import KafkaBroker

pytestmark = pytest.mark.servers

SUPPORT = Path(__file__).parents[1] / "support"
PROGRAM = SUPPORT / "programs" / "sinks.py"
CUTS = (0, 9, 17, 24)
"""Versions at which a batch ends."""
RUN_S_MAX = 280
READ_S_MAX = 30.0
"""Seconds in which a consumer gets what is there."""


def write(folder: Path, history: Sequence[Sequence[Change]]) -> None:
    (folder / "changes").mkdir()
    for number, (first, last) in enumerate(pairwise(CUTS)):
        rows = [each for version in history[first:last] for each in version]
        file = folder / "changes" / f"{number}.parquet"
        pq.write_table(arrow_changes(rows), file)
        os.utime(file, (number, number))  # Spark takes files in the order of their times


def spark_jars(connector: str) -> str:
    """For ``spark.jars``. Skips the test where this machine or this version of Spark has none."""
    from servers.connectors import jars_for
    from servers.maven import Missing

    try:
        return ",".join(map(str, jars_for(connector)))
    except Missing as missing:
        pytest.skip(str(missing))


def run(folder: Path, sink: str, settings: dict[str, Any]) -> Rows:
    """The rows of the table that is kept."""
    command = [sys.executable, str(PROGRAM), str(folder), sink, json.dumps(settings)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, env=environ)
    assert ran.returncode == 0, ran.stderr[-3000:]
    printed = json.loads(ran.stdout.splitlines()[-1])
    assert printed["written"] == [0, 1, 1, 2]
    return Rows(map(tuple, printed["rows"]))


def test_a_delta_table_equals_a_view_with_equal_rows(tmp_path: Path) -> None:
    settings = {
        "spark.jars": spark_jars("delta"),
        "spark.databricks.delta.snapshotPartitions": 1,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    history, states = random_history(11, CUTS[-1], one_row=False)
    write(tmp_path, history)
    (tmp_path / "table" / "_delta_log" / "_staged_commits").mkdir(parents=True)  # as a kill leaves it
    assert run(tmp_path, "delta", settings) == states[-1]


def test_an_iceberg_table_equals_a_view_with_one_row_for_each_key(tmp_path: Path) -> None:
    settings = {
        "spark.jars": spark_jars("iceberg"),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(tmp_path / "warehouse"),
    }
    history, states = random_history(11, CUTS[-1], one_row=True)
    write(tmp_path, history)
    assert run(tmp_path, "iceberg", settings) == states[-1]


def test_a_consumer_of_kafka_counts_each_change_once(tmp_path: Path, kafka: "KafkaBroker") -> None:
    settings = {"spark.jars": spark_jars("kafka")}
    kafka.topic(name="changes")
    history, states = random_history(11, CUTS[-1], one_row=True)
    write(tmp_path, history)
    published = sum(change[2] != "update_preimage" for version in history for change in version)
    run(tmp_path, kafka.servers, settings)
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": "test", "auto.offset.reset": "earliest"})
    consumer.subscribe(["changes"])
    view, versions, taken = dict[str, Any](), dict[str, int](), 0
    give_up_at = time.monotonic() + READ_S_MAX
    while taken < published and time.monotonic() < give_up_at:
        messages: list[Any] = consumer.consume(100, timeout=1.0)
        for message in messages:
            key, headers = message.key().decode(), {name: text.decode() for name, text in message.headers()}
            if (version := int(headers["_commit_version"])) <= versions.get(key, 0):
                continue  # published again
            versions[key], taken = version, taken + 1
            value = message.value()
            view[key] = None if value is None else json.loads(value)
    consumer.close()
    assert taken == published
    assert Rows((row["k"], row["n"]) for row in view.values() if row is not None) == states[-1]
