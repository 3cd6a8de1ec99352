"""Processes of a small cluster that are killed or stopped, while a prober looks keys up: no answer is ever wrong.

Each test prints what it has measured; ``pytest -s`` shows it.
"""

import os
import resource
import signal
import time
from collections.abc import Iterator

import pytest
from cluster_kit import ALONE, RunningCluster
from failure_kit import (
    KEYS,
    Prober,
    Replacement,
    addresses,
    check_lookup,
    check_single_lookup,
    is_there,
    parent_of,
    probing,
)
from lookup_kit import KeysAsked, LookupStream

from benchmarks.recovery_kill import pid_listening
from upriver.errors import WorkerLost, WrongOwner

pytestmark = pytest.mark.cluster
KEYS_ASKED = list(range(0, KEYS, 50))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    running = RunningCluster(tmp_path_factory.mktemp("failures"))
    yield running
    running.stop()


def survive(cluster: RunningCluster, prober: Prober, worker: int, old: str, what: str) -> None:
    """Another takes the worker's place, takes in what is fed meanwhile, and answers."""
    harmed = Replacement()
    prober.measure()
    cluster.feed.feed()
    harmed.wait(cluster.client, worker, old)
    cluster.client.lookup("sums", prober.keys, at_least=cluster.feed.fed, timeout=60)
    served_s = time.monotonic() - harmed.began
    cluster.check()
    recoveries = cluster.client.status()["recoveries"]  # an executor may have had both workers
    assert [told["served_again_s"] > 0 for told in recoveries if told["worker"] == worker][-1:] == [True]
    print(f"\n{what}: noticed after {harmed.noticed_s:.2f} s, replaced {harmed.replaced_s:.2f} s,", end=" ")
    print(f"new rows {served_s:.2f} s; the longest that a lookup waited was {prober.gap_s:.2f} s")


def test_a_python_worker_that_is_killed(cluster: RunningCluster) -> None:
    old = addresses(cluster.client)[0]
    assert old is not None
    with probing(cluster.client, cluster.feed) as prober:
        os.kill(pid_listening(old), signal.SIGKILL)
        survive(cluster, prober, 0, old, "kill -9 of a Python worker")
    assert addresses(cluster.client)[0] != old


def test_an_executor_that_is_killed(cluster: RunningCluster) -> None:
    old = addresses(cluster.client)[1]
    assert old is not None
    executor = parent_of(parent_of(pid_listening(old)))
    with probing(cluster.client, cluster.feed) as prober:
        os.kill(executor, signal.SIGKILL)
        survive(cluster, prober, 1, old, "kill -9 of an executor")
    assert not is_there(executor)


def test_a_worker_that_was_stopped_and_replaced_may_not_speak_when_it_wakes(cluster: RunningCluster) -> None:
    old = addresses(cluster.client)[0]
    assert old is not None
    process = pid_listening(old)
    with cluster.streams_to(old, 8) as streams, probing(cluster.client, cluster.feed) as prober:
        os.kill(process, signal.SIGSTOP)
        try:
            survive(cluster, prober, 0, old, "SIGSTOP of a Python worker")
            for stream in streams:
                stream.ask(cluster.all_at(0))  # it finds these when it wakes up
        finally:
            os.kill(process, signal.SIGCONT)
        for stream in streams:
            with pytest.raises((WrongOwner, WorkerLost)):
                stream.answer()
        cluster.check()


def test_a_worker_without_descriptors_is_held_up_answers_and_goes_on_when_it_has_some(cluster: RunningCluster) -> None:
    before = addresses(cluster.client)
    assert before[0] is not None
    process = pid_listening(before[0])
    soft, hard = resource.prlimit(process, resource.RLIMIT_NOFILE)
    check_lookup(cluster.client, "sums", cluster.feed.view, KEYS_ASKED, cluster.feed.fed)
    resource.prlimit(process, resource.RLIMIT_NOFILE, (0, hard))  # those that are open stay open
    try:
        cluster.feed.feed()
        give_up_at = time.monotonic() + 60
        while (told := cluster.client.status()["workers"][0])["held_up"] is None:
            assert time.monotonic() < give_up_at, f"worker 0 is not held up: {told}"
        for key in KEYS_ASKED:  # each alone: worker 1 is an epoch ahead, and keys asked together are as of one
            check_single_lookup(cluster.client, "sums", cluster.feed, key)
    finally:
        resource.prlimit(process, resource.RLIMIT_NOFILE, (soft, hard))
    assert "Too many open files" in told["held_up"]
    check_lookup(cluster.client, "sums", cluster.feed.view, KEYS_ASKED, cluster.feed.fed)
    cluster.check()
    assert addresses(cluster.client) == before


def ask_without_end(stream: LookupStream, wanted: KeysAsked) -> None:
    """Ask for some keys for a minute."""
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at:
        stream.ask(wanted)
        stream.answer()


def test_leases_speak_only_with_lease_workers_whose_driver_stands_still_say_nothing_and_go_on_after_it(
    cluster: RunningCluster,
) -> None:
    before, wanted = addresses(cluster.client), cluster.all_at(0)
    assert before[0] is not None
    with cluster.streams_to(before[0], 1) as (stream,):
        os.kill(cluster.driver.pid, signal.SIGSTOP)
        try:
            with pytest.raises(WrongOwner, match="no longer hears its coordinator"):
                ask_without_end(stream, wanted)  # it answers until its lease has run out
        finally:
            os.kill(cluster.driver.pid, signal.SIGCONT)
    cluster.check()
    assert addresses(cluster.client) == before


@pytest.mark.long
def test_a_driver_that_is_killed_and_started_again_on_the_same_root(cluster: RunningCluster) -> None:
    client = cluster.client
    with probing(client, cluster.feed):
        cluster.driver.kill()
        cluster.driver.communicate(timeout=30)
        client.close()  # no driver would answer it
    began = time.monotonic()
    cluster.feed.feed()
    cluster.start(ALONE)
    with probing(cluster.client, cluster.feed) as prober:
        cluster.client.lookup("sums", prober.keys, at_least=cluster.feed.fed, timeout=60)
        print(f"\nkill -9 of the driver: served {time.monotonic() - began:.2f} s after it was started again")
        cluster.check()
