"""An app and its tasks, killed at random moments while they compact and collect."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drivers_kit import (
    Driver,
    Drivers,
    await_change,
    drivers,
    finish,
    has_not_ended,
    kill_session,
    live_processes,
    session_of,
)
from segments_kit import check_clean

FILES, FILE_ROWS, KEYS = 6, 80, 60

pytestmark = pytest.mark.cluster


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """Parquet files of few rows, in order of modification. No two rows have one number."""
    directory, random = tmp_path / "events", np.random.default_rng(7)
    directory.mkdir()
    for number in range(FILES):
        numbers = number * FILE_ROWS + random.permutation(FILE_ROWS)
        path = directory / f"events-{number:03d}.parquet"
        pq.write_table(pa.table({"k": random.integers(0, KEYS, FILE_ROWS), "n": numbers}), path)
        os.utime(path, (1_000_000 + number,) * 2)
    return directory


@pytest.fixture
def start() -> Iterator[Drivers]:
    with drivers("aging.py") as started:
        yield started


SIGNS = ("segments", "segments", "epochs", "tables/events/k", "tables/users/k")
"""Directories of a root: a process is killed some time after one of them has changed, perhaps for the last time."""


def harm(driver: Driver, root: Path, random: Random) -> None:
    """At a moment that is drawn: kill a Python process of Spark's, then the driver, or all of its processes."""
    await_change(driver, root / random.choice(SIGNS))
    has_not_ended(driver, random.choice([0.0, random.uniform(0, 0.2), random.uniform(0, 2)]))
    tasks = [pid for pid, command in live_processes() if session_of(pid) == driver.pid and "daemon" in command]
    if tasks and random.random() < 0.5:
        with suppress(ProcessLookupError):
            os.kill(random.choice(tasks), signal.SIGKILL)
        await_change(driver, root / random.choice(SIGNS))
        has_not_ended(driver, random.uniform(0, 0.5))
    if random.random() < 0.5:
        driver.send_signal(signal.SIGKILL)
        driver.wait(timeout=30)
    kill_session(driver)
    driver.wait(timeout=30)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "kills"), [(1, 2), (2, 4), (3, 4)])
def test_an_app_that_is_killed_while_it_compacts_and_collects_loses_no_row_and_leaves_no_litter(
    start: Drivers, tmp_path: Path, events: Path, seed: int, kills: int
) -> None:
    root, random = tmp_path / "lake", Random(seed)
    settings = '{"compaction": {"grace_s": 0}, "checkpoints": {"interval_s": 1}}'
    for _ in range(kills):
        harm(start("local[5]", root, events, settings), root, random)
    told = finish(start("local[5]", root, events, settings))
    assert Counter(told["differing"]).total() == 0, told
    assert told["lake"]["failed"] is None
    check_clean(root, [16, 1, 1])
