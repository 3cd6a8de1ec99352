"""``python -m benchmarks recovery``: what it calls right, and when it calls a cluster whole again."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from client_kit import Cluster, View
from hypothesis import given
from hypothesis import strategies as st
from server_kit import TOKEN

from benchmarks.__main__ import make_parser
from benchmarks.events import VIEW
from benchmarks.nexmark_queries import Refused
from benchmarks.probed_load import READY
from benchmarks.recovery import NOT_ASKED, report
from benchmarks.recovery_answers import RecoveryAnswers, served_again
from benchmarks.recovery_command import recovery_options, render_recovery
from benchmarks.recovery_feed import FeedSpec, RecoveryFeed
from benchmarks.recovery_kill import Watched, kill_worker, pid_listening
from benchmarks.recovery_prober import ANSWERS, FAILED, RecoveryProber, RecoveryTask
from benchmarks.recovery_spark import Committed, backlog_taken, spark_figures
from benchmarks.recovery_ways import WAYS, keys_of, way_figures
from upriver.errors import ClusterError
from upriver.ids import WorkerId
from upriver.protocol.lookups import ViewRoute

SPEC = FeedSpec(keys=10, epoch_rows=20)
Answer = tuple[float, float, int, int, int, int]


def answers(*found: Answer) -> RecoveryAnswers:
    """Of begun_at, answered_at, key, n, total, epoch."""
    return RecoveryAnswers.of(pa.table([list(column) for column in zip(*found, strict=True)], schema=ANSWERS))


def truth(epoch: int) -> dict[int, tuple[int, int]]:
    """Of each key, how many rows it has up to an epoch, and their sum, counted one by one."""
    rows = [row for file in range(1, epoch + 1) for row in SPEC.rows(file).to_pylist()]
    by_key = {key: [row["v"] for row in rows if row["k"] == key] for key in range(SPEC.keys)}
    return {key: (len(values), sum(values)) for key, values in by_key.items()}


# The rows --------------------------------------------------------------------------------------------------------


def test_the_first_file_has_each_key_once_and_files_are_read_in_their_order(tmp_path: Path) -> None:
    feed = RecoveryFeed(tmp_path / "events", SPEC)
    feed.put_base()
    assert [feed.put(), feed.put()] == [2, 3]
    paths = sorted((tmp_path / "events").glob("*.parquet"))
    found = [pq.read_table(path) for path in paths]
    assert found == [SPEC.rows(file) for file in (1, 2, 3)]
    assert found[0]["k"].to_pylist() == list(range(10))
    assert found[1].num_rows == 20
    assert found[1] != found[2]
    times = [path.stat().st_mtime for path in paths]
    assert times == sorted(set(times))


def test_many_keys_come_in_several_files() -> None:
    spec = FeedSpec(keys=1_000_001, epoch_rows=1)
    assert spec.base_files == 2
    assert spec.rows(2)["k"].to_pylist() == [1_000_000]


# Judging ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(-1, 1), st.integers(-1, 1)), max_size=8))
def test_an_answer_is_right_if_it_is_the_truth_of_its_epoch_and_none_goes_back(
    asked: list[tuple[int, int, int, int]],
) -> None:
    expected, newest = [], 0
    found = []
    for number, (key, epoch, n_off, total_off) in enumerate(asked):
        n, total = truth(epoch)[key]
        newest = max(newest, epoch)
        expected.append(epoch == newest and epoch <= 3 and n_off == total_off == 0)
        found.append((number + 0.0, number + 0.5, key, n + n_off, total + total_off, epoch))
    if found:
        assert answers(*found).right(SPEC, 3).tolist() == expected


def test_no_answer_is_neither_right_nor_what_others_are_measured_by() -> None:
    n, total = truth(1)[4]
    found = answers((0.0, 0.1, 4, FAILED, 0, 0), (0.2, 0.3, 4, n, total, 1), (0.4, 0.5, 4, FAILED, 0, 0))
    assert found.failed.tolist() == [True, False, True]
    assert found.right(SPEC, 1).tolist() == [False, True, False]


def test_keys_are_served_again_with_the_first_lookup_after_the_death_that_is_right_for_all_of_them() -> None:
    found = answers(
        (1.0, 5.0, 1, 1, 1, 1),  # began before the death: perhaps it was answered before
        (3.0, 3.1, 1, 1, 1, 1),
        (3.0, 3.1, 2, 1, 1, 1),  # together with the one before
        (3.2, 3.3, 1, FAILED, 0, 0),
        (3.4, 3.5, 1, 1, 1, 1),
        (3.6, 3.7, 1, 1, 1, 1),
    )
    is_right = np.array([True, True, False, False, True, True])
    assert served_again(found, is_right, after=2.0) == 3.5
    assert served_again(found, is_right, after=3.6) is None


@pytest.mark.parametrize(
    ("until", "again"), [(2.6, 2.5), (5.0, None)], ids=["a worker answers", "no worker answers any more"]
)
def test_the_longest_time_without_a_right_answer_counts(until: float, again: float | None) -> None:
    found = answers(
        (2.1, 2.2, 1, 1, 1, 1),
        (2.4, 2.5, 1, 1, 1, 1),
        (until - 0.1, until, 1, FAILED, 0, 0),
    )
    assert served_again(found, ~found.failed, after=2.0) == again


WATCHED = Watched(epoch=3, killed_at=10.0, died_at=10.01, noticed_at=10.25, caught_up_at=11.5)


def test_figures_are_seconds_since_the_kill() -> None:
    n, total = truth(3)[7]
    found = answers(
        (9.0, 9.1, 7, n, total, 3),
        (10.1, 10.6, 7, FAILED, 0, 0),
        (10.7, 10.75, 7, n + 1, total, 3),
        (10.8, 10.85, 7, n, total, 3),
    )
    figures = way_figures(found, SPEC, 3, WATCHED)
    assert (figures["noticed_s"], figures["served_again_s"], figures["caught_up_s"]) == (0.25, 0.85, 1.5)
    assert figures["served_after_noticed_s"] == 0.6
    assert (figures["answers"], figures["wrong_answers"], figures["failed"]) == (3, 1, 1)


def test_keys_that_were_never_served_again_are_an_error() -> None:
    with pytest.raises(ClusterError, match="no lookup was answered right for good"):
        way_figures(answers((10.1, 10.6, 7, FAILED, 0, 0)), SPEC, 3, WATCHED)


def test_spark_has_caught_up_with_what_was_there_when_it_first_served_again() -> None:
    commits = [Committed(batch=batch, began_at=at, committed_at=at + 1.0) for batch, at in [(4, 20.0), (5, 21.0)]]
    put_at = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert backlog_taken([], put_at) is None
    assert backlog_taken(commits, put_at) == commits[0]
    assert backlog_taken(commits, [*put_at, 20.9, 21.1]) == commits[1]
    assert backlog_taken(commits, [*put_at, 20.8, 20.9, 21.1]) is None
    figures = spark_figures(15.0, 15.25, commits[0], commits[1], 0)
    assert figures == {
        "noticed_s": 0.25,
        "served_again_s": 6.0,
        "served_after_noticed_s": 5.75,
        "caught_up_s": 7.0,
        "views_equal": True,
    }


# Looking up ------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two workers that keep ten keys; nothing ever changes."""
    cluster = Cluster(2)
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("total", pa.int64())])
    cluster.views[VIEW] = View(ViewRoute(("k",), schema), [(key, key + 100, -key) for key in range(10)])
    yield cluster
    cluster.stop()


def probe(cluster: Cluster, keys: list[int], enough: int) -> list[dict[str, Any]]:
    """What the prober writes down of at least so many lookups."""
    asked = threading.Semaphore(0)
    for worker in cluster.workers.values():
        worker.before = lambda _: asked.release()

    def told() -> Iterator[str]:
        for _ in range(enough):
            assert asked.acquire(timeout=60)
        yield from ()

    task = RecoveryTask(address=cluster.coordinator.address, view=VIEW, keys=keys, result="")
    with cluster.connect() as client:
        prober = RecoveryProber(client, task)
        found: list[dict[str, Any]] = prober.probe(told()).to_pylist()
    return found


def test_the_prober_writes_down_what_it_is_answered(cluster: Cluster) -> None:
    found = probe(cluster, list(range(10)), enough=30)
    assert len(found) >= 30
    assert {row["key"] for row in found} == set(range(10))
    assert all((row["n"], row["total"]) == (row["key"] + 100, -row["key"]) for row in found)
    assert all(row["begun_at"] < row["answered_at"] for row in found)


def test_the_process_of_a_prober_says_when_its_clock_starts_and_leaves_its_answers_in_a_file(
    cluster: Cluster, tmp_path: Path
) -> None:
    result, path = tmp_path / "found.arrows", tmp_path / "task.json"
    task = RecoveryTask(address=cluster.coordinator.address, view=VIEW, keys=list(range(10)), result=str(result))
    path.write_text(json.dumps(asdict(task)))
    command = [sys.executable, "-m", "benchmarks.recovery_prober", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print(TOKEN, file=process.stdin, flush=True)
        assert process.stdout.readline().strip() == READY
        told, _ = process.communicate("epoch\n", timeout=60)
    assert (told, process.returncode) == ("", 0)
    assert pa.ipc.open_stream(result.read_bytes()).schema == ANSWERS


def test_a_key_that_is_not_found_has_no_rows_and_hides_nothing(cluster: Cluster) -> None:
    found = probe(cluster, [3, 77], enough=2)
    assert {(row["n"], row["total"]) for row in found} == {(0, 0)}


def test_the_victims_keys_are_those_that_are_routed_to_it(cluster: Cluster) -> None:
    shares = [keys_of(cluster.coordinator.address, TOKEN, 1000, WorkerId(worker)).tolist() for worker in (0, 1)]
    assert all(shares)
    assert sorted(shares[0] + shares[1]) == list(range(1000))
    with pytest.raises(ClusterError, match="owns none"):
        keys_of(cluster.coordinator.address, TOKEN, 1000, WorkerId(9))


# Killing ---------------------------------------------------------------------------------------------------------

LISTEN = (
    "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); s.accept()"
)


@pytest.fixture
def listener() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that listens, and where."""
    with subprocess.Popen([sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, f"127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


def status(addresses: list[str | None], epochs: list[int | None], published: int) -> dict[str, Any]:
    places = [
        {"worker": worker, "address": address, "epoch": epoch, "vnodes": 128}
        for worker, (address, epoch) in enumerate(zip(addresses, epochs, strict=True))
    ]
    return {"workers": places, "published": published, "failure": None}


def test_a_river_is_whole_again_when_all_workers_have_what_is_published(
    listener: tuple[subprocess.Popen[str], str],
) -> None:
    process, address = listener
    told = iter(
        [
            status(["a:1", address], [7, 7], 7),
            status(["a:1", address], [7, 7], 7),  # no process has noticed
            status(["a:1", None], [7, None], 7),
            status(["a:1", None], [8, None], 8),
            status(["a:1", "c:3"], [8, 5], 8),
            status(["a:1", "c:3"], [8, 8], 9),
        ]
    )
    last = status(["a:1", "c:3"], [9, 9], 9)
    seen: list[float] = []

    def ask() -> Mapping[str, Any]:
        seen.append(time.perf_counter())
        return next(told, last)

    watched = kill_worker(ask, 1, 60.0)
    assert process.wait(60) == -signal.SIGKILL
    assert watched.epoch == 7
    assert seen[2] < watched.noticed_at < seen[3]
    assert watched.killed_at < watched.noticed_at < seen[6] < watched.caught_up_at
    assert watched.killed_at < watched.died_at < watched.caught_up_at


def test_a_river_that_fails_or_never_recovers_is_an_error(listener: tuple[subprocess.Popen[str], str]) -> None:
    _, address = listener
    assert pid_listening(address) == listener[0].pid
    whole = status([address], [1], 1)
    told = iter([whole])
    with pytest.raises(ClusterError, match="lost 6 times"):
        kill_worker(lambda: next(told, whole | {"failure": "worker 0 was lost 6 times"}), 0, 60.0)


def test_one_that_never_recovers_is_an_error(listener: tuple[subprocess.Popen[str], str]) -> None:
    _, address = listener
    with pytest.raises(ClusterError, match="has not caught up"):
        kill_worker(lambda: status([address], [1], 1), 0, 0.1)


def test_a_worker_that_is_not_up_is_not_killed() -> None:
    with pytest.raises(ClusterError, match="is not up"):
        kill_worker(lambda: status([None], [None], 1), 0, 1.0)


# What is reported -------------------------------------------------------------------------------------------------


OPTIONS = recovery_options(make_parser().parse_args(["recovery"]))

FIGURES = {
    "noticed_s": 0.25,
    "served_again_s": 0.85,
    "served_after_noticed_s": 0.6,
    "caught_up_s": 1.5,
    "answers": 1234,
    "wrong_answers": 0,
    "failed": 3,
    "replayed_epochs": 12,
    "keys_of_worker": 650,
    "views_equal": True,
}
SPARKS = spark_figures(15.0, 15.25, *(Committed(batch=0, began_at=20.0, committed_at=21.0),) * 2, 0)


def test_what_is_not_measured_is_null_and_why_stands_beside_it() -> None:
    results = dict.fromkeys(WAYS, FIGURES) | {"standby": Refused("there is one executor")}
    found = json.loads(json.dumps(report(OPTIONS, results | {"spark": SPARKS})))
    assert {"checkpoint", "standby", "partial", "spark"} <= found.keys()
    assert (found["standby"], found["standby_why"]) == (None, "there is one executor")
    assert (found["checkpoint"], found["checkpoint_why"]) == (FIGURES, None)
    assert found["spark"]["served_again_s"] == 6.0
    assert found["right"] is True
    shown = render_recovery(found)
    assert "there is one executor" in shown
    assert "1,234" in shown
    assert "All answers were right" in shown
    without = report(OPTIONS, results | {"spark": NOT_ASKED})
    assert (without["spark"], without["spark_why"]) == (None, "not asked for")


@pytest.mark.parametrize("fault", [{"wrong_answers": 1}, {"views_equal": False}])
def test_a_fault_is_not_hidden(fault: dict[str, Any]) -> None:
    results = dict.fromkeys(WAYS, FIGURES) | {"partial": FIGURES | fault, "spark": SPARKS}
    found = report(OPTIONS, results)
    assert found["right"] is False
    assert "NOT ALL IS RIGHT" in render_recovery(found)
