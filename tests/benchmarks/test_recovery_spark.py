"""``python -m benchmarks recovery`` with few keys, the whole way: all is right again, and nothing outlives it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from benchmarks.recovery_contestant import ContestantTask
from benchmarks.recovery_feed import FeedSpec, RecoveryFeed

pytestmark = pytest.mark.spark

SPEC = FeedSpec(keys=10, epoch_rows=20)
BENCH = [sys.executable, "-m", "benchmarks", "recovery"]
SMALL = ["--keys", "2000", "--epoch-rows", "50", "--epochs-since", "2", "--epochs-per-s", "2", "--steady-s", "1"]


def marked(mark: str) -> set[int]:
    """The processes that have this in their environment, those that have ended and wait for their parent left out."""
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if f"MARK={mark}".encode() in (process / "environ").read_bytes():
                    found.add(int(process.name))
            except OSError:
                continue
    return found


def wait_until_gone(mark: str) -> None:
    deadline = time.monotonic() + 60
    while marked(mark) and time.monotonic() < deadline:
        os.sched_yield()
    assert marked(mark) == set()


@pytest.mark.long
def test_a_worker_is_killed_and_comes_back_in_every_way_that_there_is() -> None:
    """In a process of its own: the benchmark ends its Spark session, which all tests here share."""
    mark = uuid4().hex
    command, environ = [*BENCH, *SMALL, "--no-spark", "--json"], os.environ | {"MARK": mark}
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environ)
    assert run.returncode == 0, run.stderr
    measured = json.loads(run.stdout.splitlines()[-1])
    assert measured["right"] is True
    assert measured["spark"] is None
    for way in ("checkpoint", "partial"):
        figures = measured[way]
        assert figures["views_equal"] is True
        assert figures["wrong_answers"] == 0
        assert figures["answers"] > 0
        assert 0 < figures["keys_of_worker"] < 2000
        assert 0 < figures["noticed_s"] <= figures["caught_up_s"]
        assert figures["served_again_s"] > 0
    assert measured["checkpoint"]["replayed_epochs"] >= 2
    wait_until_gone(mark)


@pytest.mark.long
def test_spark_is_killed_and_comes_back_beside() -> None:
    run = subprocess.run([*BENCH, *SMALL, "--json"], capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr
    figures = json.loads(run.stdout.splitlines()[-1])["spark"]
    assert figures["views_equal"] is True
    assert 0 < figures["noticed_s"] < figures["served_again_s"] <= figures["caught_up_s"]


@pytest.mark.long
@pytest.mark.parametrize(("reached", "arguments"), [("spark: ", []), ("checkpoint: ", ["--no-spark"])])
def test_nothing_is_left_when_it_is_interrupted(reached: str, arguments: list[str]) -> None:
    mark = uuid4().hex
    command, environ = [*BENCH, *SMALL, *arguments], os.environ | {"MARK": mark}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environ) as bench:
        assert bench.stderr is not None
        next(line for line in bench.stderr if line.startswith(reached))
        while len(marked(mark)) < 3:  # a driver and a JVM besides, or a JVM and a daemon
            assert bench.poll() is None
        bench.send_signal(signal.SIGINT)
        bench.communicate(timeout=120)
    assert bench.returncode != 0
    wait_until_gone(mark)


@pytest.mark.long
def test_sparks_side_does_not_outlive_its_starter(tmp_path: Path) -> None:
    feed = RecoveryFeed(tmp_path / "events", SPEC)
    feed.put_base()
    task = ContestantTask(
        files=str(feed.directory), checkpoint=str(tmp_path / "checkpoint"), scratch=str(tmp_path), slots=1
    )
    (tmp_path / "task.json").write_text(json.dumps({name: getattr(task, name) for name in task.__slots__}))
    command = [sys.executable, "-m", "benchmarks.recovery_contestant", str(tmp_path / "task.json")]
    mark = uuid4().hex
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"MARK": mark},
    ) as contestant:
        assert contestant.stdin is not None
        assert contestant.stdout is not None
        assert json.loads(contestant.stdout.readline())["batch"] == 0
        contestant.stdin.close()
        assert contestant.wait(60) == 1
    wait_until_gone(mark)
