"""An app goes on with the root of an old version: every answer stays what Spark SQL says."""

import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from old_root_kit import EXPECTED, FILES, KEY, OLD_ROOTS, PARTIAL, PRICES, STREAMS, declared_app, rows_of, write_file
from rows_kit import differing_rows
from standby_kit import await_that

from upriver.lake.lake import Lake
from upriver.lake.spans import FAN_IN
from upriver.options import Compaction

pytestmark = pytest.mark.spark

NEW_FILES = 5
WAIT_S_MAX = 120.0


def check(spark: Any, app: Any, files: int) -> None:
    """Every view, and each of its keys, is what Spark says of so many files of each stream."""
    for table, (_, schema) in STREAMS.items():
        rows = [row for file in range(files) for row in rows_of(table, file)]
        spark.createDataFrame(rows, schema).createOrReplaceTempView(table)
    spark.createDataFrame(PRICES, "g long, price double").createOrReplaceTempView("prices")
    for view, sql in EXPECTED.items():
        expected = spark.sql(sql)
        assert differing_rows(app.read(view), expected) == 0, view
        rows = expected.collect()
        found = app.lookup(view, sorted({row[KEY[view]] for row in rows})).to_pylist()
        assert Counter(map(repr, found)) == Counter(repr(row.asDict()) for row in rows), view


def unpack(version: str, directory: Path) -> Path:
    """The root, whose Spark checkpoints name the streams' files in this directory."""
    root = directory / "lake"
    with tarfile.open(OLD_ROOTS / f"{version}.tar.xz") as archive:
        archive.extractall(root, filter="data")
    for log in root.glob("ingest/*/sources/0/*"):
        log.write_text(log.read_text().replace("file:///old/", f"file://{directory}/"))
    return root


def test_an_app_goes_on_with_a_root_of_version_0_1(spark: Any, tmp_path: Path) -> None:
    root = unpack("0.1", tmp_path)
    epochs = Lake(str(root)).last_epoch()
    assert epochs == 2 * FILES + 1
    for file in range(FILES + 1):
        for table in STREAMS:
            write_file(tmp_path, table, file)
    with declared_app(spark, root, tmp_path, compaction=Compaction(grace_s=0.5)).start(timeout=WAIT_S_MAX) as app:
        app.wait(timeout=WAIT_S_MAX)
        check(spark, app, FILES + 1)
        for file in range(FILES + 1, FILES + NEW_FILES):
            for table in STREAMS:
                write_file(tmp_path, table, file)
        assert app.wait(timeout=WAIT_S_MAX) == epochs + 2 * NEW_FILES > FAN_IN
        app.checkpoint(timeout=WAIT_S_MAX)
        await_that(lambda: app.status()["lake"]["removed_epochs"] == FAN_IN, app.status)
        check(spark, app, FILES + NEW_FILES)
        app.evict(PARTIAL)
        check(spark, app, FILES + NEW_FILES)
