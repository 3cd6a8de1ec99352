"""Epochs that the log publishes by itself, because rows leave a table at once. Needs no session."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ingest_kit import TABLE, Driver, driving

from upriver.engine.retention import Retention
from upriver.ids import Epoch, VnodeId
from upriver.lake.ingest_history import IngestHistory
from upriver.plan.plan import lake_channel
from upriver.plan.retention import Retain
from upriver.spark.ingest import EpochLog
from upriver.state.runs import RunInfo
from upriver.state.span import TimeSpan

RUN = RunInfo("r", 1, 1, "", ((VnodeId(0), 1),), span=TimeSpan(5, 30, 0))


def log_of(driver: Driver, interval: int | None) -> EpochLog:
    """The log of a start that declares this interval."""
    history = IngestHistory()
    for epoch in range(1, driver.lake.last_epoch() + 1):
        history.add(driver.lake.manifest(Epoch(epoch)))
    return EpochLog(driver.lake, history, lambda _: None, retains={TABLE.name: Retain("n", interval, "")})


def publish(log: EpochLog, batch: int, run: RunInfo = RUN) -> None:
    runs = {lake_channel(TABLE.name, index): (run,) for index in log.indexes(TABLE.name)}
    assert log.publish(TABLE.name, "q", batch, runs) == ()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with driving(tmp_path / "lake") as drive:
        yield drive()


def test_a_shorter_interval_applies_at_once_and_a_longer_one_later(driver: Driver) -> None:
    publish(log_of(driver, 20), 0)
    assert driver.lake.manifest(Epoch(1)).retained == {TABLE.name: Retention("n", 30, None, 10)}
    for interval in (20, 25, None):
        log = log_of(driver, interval)
        log.retire_rows()
        assert log.last == 1
    log = log_of(driver, 5)
    log.retire_rows()
    log.retire_rows()
    found = driver.lake.manifest(Epoch(2))
    assert (log.last, found.query, found.batch, set(found.rows().values())) == (2, "q", 0, {0})
    assert found.retained == {TABLE.name: Retention("n", 30, 10, 25)}
    publish(log_of(driver, 100), 1, replace(RUN, span=TimeSpan(0, 40, 0)))
    assert driver.lake.manifest(Epoch(3)).retained == {TABLE.name: Retention("n", 40, 25, 25)}


def test_a_table_without_rows_gets_no_epoch(driver: Driver) -> None:
    log = log_of(driver, 5)
    log.retire_rows()
    assert log.last == 0
