"""The changes of a view as Spark reads them, out of a log that the test writes."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from changes_kit import AT, Change, Rows, WrittenLog, change, random_history, stamped, sum_of
from pyspark.errors import PySparkException

from upriver.spark.changes import ADMITS
from upriver.spark.scan import UpriverDataSource, load_changes

pytestmark = pytest.mark.spark

STREAM_S_MAX = 60.0
"""Seconds in which a query must have failed."""
HISTORY, STATES = random_history(5, 12, one_row=False)


def told(first: int, last: int) -> list[Change]:
    """The changes of these versions."""
    return [each for version in HISTORY[first - 1 : last] for each in version]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[WrittenLog]:
    """The versions 1 to 5."""
    written = WrittenLog(tmp_path / "lake", "planes")
    written.commit(3, stamped(told(1, 3)))
    written.commit(5, stamped(told(4, 5)))
    yield written
    written.release()


class Reader:
    """A query that is started again and again, with one checkpoint. batches: those that its sink has finished."""

    def __init__(self, spark: Any, log: WrittenLog, folder: Path, **options: Any) -> None:
        self._spark, self._folder = spark, folder
        self._options = {"root": log.root, "view": "planes", **{name: str(each) for name, each in options.items()}}
        self.batches: list[list[Change]] = []

    def run(self, fails_in: int | None = None) -> None:
        """Read what there is. fails_in: the batch in which its sink fails."""

        def sink(rows: Any, batch: int) -> None:
            given = [tuple(row) for row in rows.collect()]
            if batch == fails_in:
                raise RuntimeError("the sink failed")
            self.batches.append(given)

        changes = load_changes(self._spark, self._options).writeStream.foreachBatch(sink)
        query = changes.option("checkpointLocation", str(self._folder / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()

    def run_after_failure(self) -> None:
        """Read what there is. Before Spark 4.2 a query that begins with a batch that has failed ends with that one."""
        for _ in range(1 if ADMITS else 2):
            self.run()

    @property
    def versions(self) -> list[list[int]]:
        return [sorted({row[3] for row in batch}) for batch in self.batches]

    @property
    def all(self) -> Rows:
        return Rows(row[:-1] for batch in self.batches for row in batch)


def exactly(first: int, last: int) -> Rows:
    return Rows(row[:-1] for row in told(first, last))


def test_a_query_reads_each_change_once_over_restarts(spark: Any, log: WrittenLog, tmp_path: Path) -> None:
    reader = Reader(spark, log, tmp_path, partitions=3)
    reader.run()
    log.commit(9, told(6, 9))
    with pytest.raises(PySparkException, match="the sink failed"):
        reader.run(fails_in=1)
    log.commit(12, told(10, 12))
    reader.run_after_failure()
    assert [batch and (batch[0], batch[-1]) for batch in reader.versions] == [(1, 5), (6, 9), (10, 12)]
    assert reader.all == exactly(1, 12)
    assert sum_of(row for batch in reader.batches for row in batch) == STATES[-1]
    for batch in reader.batches:  # the rows of a key come in order, and an image before is followed by the one after
        for key in {row[0] for row in batch}:
            own = [row[:-1] for row in batch if row[0] == key]
            first, last = own[0][3], own[-1][3]
            assert own == [row[:-1] for row in told(first, last) if row[0] == key]


def test_now_is_when_the_query_first_started(spark: Any, log: WrittenLog, tmp_path: Path) -> None:
    reader = Reader(spark, log, tmp_path, startingVersion="now")
    with pytest.raises(PySparkException, match="the sink failed"):
        reader.run(fails_in=0)
    log.commit(9, told(6, 9))
    reader.run_after_failure()
    assert reader.all == exactly(6, 9)


@pytest.mark.skipif(not ADMITS, reason="Spark 4.0 and 4.1 let no Python source say how much a batch reads")
def test_a_batch_has_so_many_versions(spark: Any, log: WrittenLog, tmp_path: Path) -> None:
    reader = Reader(spark, log, tmp_path, startingVersion=2, maxVersionsPerTrigger=3)
    reader.run()
    assert all(len(batch) <= 3 for batch in reader.versions)
    assert len(reader.batches) == 2
    assert reader.all == exactly(2, 5)


def test_a_batch_reader_ends_with_a_version(spark: Any, log: WrittenLog) -> None:
    spark.dataSource.register(UpriverDataSource)
    options = {"root": log.root, "view": "planes"}
    some = spark.read.format("upriver").options(**options, startingVersion="3", endingVersion="4").load()
    assert Rows(tuple(row)[:-1] for row in some.collect()) == exactly(3, 4)
    assert spark.read.format("upriver").options(**options, startingVersion="9").load().collect() == []
    moment = (AT + timedelta(seconds=4)).isoformat()
    of_moment = spark.read.format("upriver").options(**options, startingTimestamp=moment, endingTimestamp=moment)
    assert Rows(tuple(row)[:-1] for row in of_moment.load().collect()) == exactly(4, 4)
    with pytest.raises(PySparkException, match=r"startingVersion='x': give a number.*'earliest' or 'latest'"):
        spark.read.format("upriver").options(**options, startingVersion="x").load().collect()
    with pytest.raises(PySparkException, match=r"'boats' has no log of changes.*planes"):
        spark.readStream.format("upriver").options(root=log.root, view="boats").load()
    endless = spark.readStream.format("upriver").options(**options, endingVersion="4").load().writeStream
    with pytest.raises(PySparkException, match="endingVersion: a stream has no end"):
        endless.format("noop").start().awaitTermination(STREAM_S_MAX)
    with pytest.raises(PySparkException, match="root or both address and token"):
        spark.readStream.format("upriver").options(view="planes", changes="true").load()


def test_a_reader_of_a_log_that_began_anew_is_told_so(spark: Any, log: WrittenLog, tmp_path: Path) -> None:
    reader = Reader(spark, log, tmp_path)
    reader.run()
    log.commit(6, told(6, 6))
    with pytest.raises(PySparkException, match="the sink failed"):
        reader.run(fails_in=1)
    log.commit(9, [change(("a", 1), "insert", 8)], begins=8)
    with pytest.raises(PySparkException, match=r"after version 5 are gone.*log is 8.*new checkpoint"):
        reader.run()
    assert reader.all == exactly(1, 5)
