"""Processes that compact and collect, killed at random moments: of an app, of its tasks, of the command line."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
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
    names_in,
    session_of,
)
from segments_kit import BY_ID, BY_K, BY_N, EVENTS, USERS, Row, owned, publish, rows_through

from upriver.lake.lake import Lake, OwnedLake
from upriver.lake.spans import single

FILES, FILE_ROWS, KEYS = 12, 40, 60
COMMAND_S_MAX = 60

pytestmark = pytest.mark.cluster


def named(lake: Lake) -> set[str]:
    """The paths of all runs that a manifest or a segment names."""
    spans = {*map(single, lake.numbers("epochs")), *lake.segments()}
    return {run.path for span in spans for runs in lake.epochs(span).runs.values() for run in runs}


def check_clean(root: Path, levels: list[int]) -> None:
    """Nothing is left to do, and nothing that is not needed. levels: epochs of each span."""
    lake = Lake(str(root))
    assert [len(span) for span in lake.spans(lake.last_epoch())] == levels
    assert set(lake.run_paths()) == named(lake)
    assert len(list(lake.numbers("epochs"))) == levels.count(1)
    assert names_in(root / "unfinished") == []


# An app


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
        os.kill(random.choice(tasks), signal.SIGKILL)
        await_change(driver, root / "control" if random.random() < 0.1 else root / random.choice(SIGNS))
        has_not_ended(driver, random.uniform(0, 0.5))
    if random.random() < 0.5:
        driver.send_signal(signal.SIGKILL)
        driver.wait(timeout=30)
    kill_session(driver)
    driver.wait(timeout=30)


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 2), *(pytest.param(seed, 5, marks=pytest.mark.long) for seed in range(2, 6))]
)
def test_an_app_that_is_killed_while_it_compacts_and_collects_loses_no_row_and_leaves_no_litter(
    start: Drivers, tmp_path: Path, events: Path, seed: int, kills: int
) -> None:
    root, random = tmp_path / "lake", Random(seed)
    settings = '{"compaction_grace_s": 0, "checkpoint_interval_s": 1}'
    for _ in range(kills):
        harm(start("local[5]", root, events, settings), root, random)
    told = finish(start("local[5]", root, events, settings))
    assert Counter(told["differing"]).total() == 0, told
    assert told["lake"]["failed"] is None
    check_clean(root, [16, 16, 1, 1, 1, 1])


# The command line


def publish_some(lake: OwnedLake, epochs: int) -> None:
    for _ in range(epochs):
        number = lake.last_epoch()
        if number % 8 == 3:
            publish(lake, USERS, [(number % 5, number, "Ulm"), (number % 3, number, None)])
        else:
            publish(lake, EVENTS, [(number % 3, number), (7, number)])


def all_rows(root: Path) -> list[list[Row]]:
    """Of an upsert table, how many keys: versions that a newer one has replaced leave it."""
    lake = Lake(str(root))
    users = sorted({row[:2] for row in rows_through(lake, BY_ID)})
    return [sorted(rows_through(lake, BY_K)), sorted(rows_through(lake, BY_N)), users]


def upriver_lake(action: str, root: Path) -> Driver:
    options = ["--grace", "0"] if action == "collect" else []
    command = [sys.executable, "-m", "upriver", "lake", action, str(root), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process: Driver) -> str:
    out, _ = process.communicate(timeout=COMMAND_S_MAX)
    assert process.returncode == 0, out
    return out


def test_commands_that_are_killed_lose_no_row_and_the_next_ones_finish_their_work(tmp_path: Path) -> None:
    root, random = tmp_path / "lake", Random(1)
    for action, sign in [("compact", "tables/events/k"), ("compact", "segments"), ("collect", "epochs")] * 2:
        with owned(root) as lake:
            publish_some(lake, 32)
        rows = all_rows(root)
        process = upriver_lake(action, root)
        await_change(process, root / sign)
        has_not_ended(process, random.choice([0.0, random.uniform(0, 0.05)]))
        process.kill()
        process.communicate(timeout=COMMAND_S_MAX)
        assert all_rows(root) == rows
    ended(upriver_lake("compact", root))
    ended(upriver_lake("collect", root))
    assert all_rows(root) == rows
    check_clean(root, [16] * 12)
