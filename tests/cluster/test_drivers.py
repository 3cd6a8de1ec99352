"""Drivers of their own: killed in mid-stream, on several executor processes, stopped without a trace."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drivers_kit import Driver, Drivers, await_change, drivers, finish, has_not_ended, kill_session, processes_of

from upriver.ids import Epoch
from upriver.lake.lake import Lake

FILES = 6
ROWS = 2_000

pytestmark = pytest.mark.cluster


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """``FILES`` Parquet files of ``ROWS`` rows, in order of modification."""
    directory = tmp_path / "events"
    directory.mkdir()
    random = np.random.default_rng(7)
    for number in range(FILES):
        table = pa.table({"k": random.integers(0, 500, ROWS), "v": random.integers(0, 10, ROWS)})
        path = directory / f"events-{number:03d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
    return directory


@pytest.fixture
def start() -> Iterator[Drivers]:
    with drivers("app.py") as started:
        yield started


def test_killed_in_mid_stream_it_goes_on_where_it_was(start: Drivers, tmp_path: Path, events: Path) -> None:
    """The last driver runs its workers on executors, and leaves no process behind."""
    root = tmp_path / "lake"
    told: list[str] = []
    driver = start("local[4]", root, events)
    assert driver.stdout is not None
    for line in driver.stdout:
        told.append(line.strip())
        if line.strip() == "epoch 3":
            break
    driver.send_signal(signal.SIGKILL)
    driver.wait(timeout=30)
    assert "epoch 3" in told
    driver = start("local-cluster[2,2,1024]", root, events)
    assert finish(driver) == {"rows": FILES * ROWS, "differing": 0}
    assert processes_of(driver.pid) == []
    lake = Lake(str(root))
    manifests = [lake.manifest(Epoch(epoch)) for epoch in range(1, lake.last_epoch() + 1)]
    assert [manifest.batch for manifest in manifests] == list(range(len(manifests)))
    assert {manifest.term for manifest in manifests} == {1, 2}


SIGNS = (
    "",
    "control",
    "ingest/events",
    "ingest/events/offsets",
    "ingest/events/sources/0",
    "tables/events/k",
    "epochs",
)
"""Directories of a root: a driver is killed some time after one of them has changed; "" for its start."""


def kill_at_random(driver: Driver, root: Path, random: Random) -> None:
    """From its first second on: at a moment that is drawn, the driver alone or all of its processes."""
    sign, wait_s = random.choice(SIGNS), random.choice([0.0, random.uniform(0, 0.2), random.uniform(0, 2)])
    if sign:
        await_change(driver, root / sign)
    has_not_ended(driver, wait_s if sign else random.uniform(1, 12))
    if random.random() < 0.5:
        driver.send_signal(signal.SIGKILL)
    else:
        kill_session(driver)
    driver.wait(timeout=30)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "kills"), [(1, 4), *((seed, 5) for seed in range(2, 6))])
def test_killed_at_random_moments_it_starts_again_by_itself(
    start: Drivers, tmp_path: Path, events: Path, seed: int, kills: int
) -> None:
    root, random = tmp_path / "lake", Random(seed)
    for _ in range(kills):
        kill_at_random(start("local[4]", root, events), root, random)
    assert finish(start("local[4]", root, events)) == {"rows": FILES * ROWS, "differing": 0}
