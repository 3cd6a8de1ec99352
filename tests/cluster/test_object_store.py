"""A stream into a lake in S3, with Spark's checkpoint there: a driver is killed in mid-batch, and another goes on."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3_kit import S3Server, s3a_jars

from upriver.ids import Epoch
from upriver.lake.lake import Lake

PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "s3_app.py"
FILES = 4
ROWS = 300

pytestmark = pytest.mark.cluster


class Drivers:
    """Starts drivers, each in a session of its own; none outlives the test."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._environ = {**os.environ, **environ}
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        driver = subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env=self._environ,
        )
        self._started.append(driver)
        return driver

    def kill(self, driver: "subprocess.Popen[str]") -> None:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()

    def stop(self) -> None:
        for driver in self._started:
            self.kill(driver)


@pytest.fixture
def drivers(s3: S3Server) -> Iterator[Drivers]:
    drivers = Drivers(s3.environ)
    yield drivers
    drivers.stop()


@pytest.mark.long
def test_a_stream_goes_on_after_a_kill_in_mid_batch(tmp_path: Path, s3: S3Server, drivers: Drivers) -> None:
    """The first driver dies with the runs of its third batch written, and the batch not committed."""
    jars, root, random = str(s3a_jars()), s3.new_root("s3"), np.random.default_rng(7)
    for number in range(FILES):
        rows = {"k": random.integers(0, 50, ROWS), "v": random.integers(0, 10, ROWS)}
        pq.write_table(pa.table(rows), tmp_path / f"{number}.parquet")
    s3.hold("epochs/000000000003.json")
    killed = drivers.start(root, str(tmp_path), jars)
    s3.wait_held()
    drivers.kill(killed)
    s3.drop_held()
    lake = Lake(root)
    assert lake.last_epoch() == 2
    before = lake.files.tree("tables")

    driver = drivers.start(root.replace("s3://", "s3a://"), str(tmp_path), jars)
    said, _ = driver.communicate("finish\n")
    assert [json.loads(line) for line in said.splitlines()[1:]] == [{"epoch": FILES + 1, "differing": 0, "workers": 2}]
    manifests = [lake.manifest(Epoch(epoch)) for epoch in range(1, FILES + 2)]
    assert [manifest.term for manifest in manifests] == [1, 1, 2, 2, 2]
    assert [manifest.table for manifest in manifests] == ["events", "events", "", "events", "events"]
    assert len({manifest.query for manifest in manifests if manifest.table}) == 1
    named = {run.path for manifest in manifests for runs in manifest.runs.values() for run in runs}
    assert set(lake.files.tree("tables")) == named
    assert set(before) - named  # the killed driver's third batch, which was swept
    assert lake.files.names("unfinished") == []
    assert f"ingest/events/commits/{FILES - 1}" in lake.files.tree("ingest")
