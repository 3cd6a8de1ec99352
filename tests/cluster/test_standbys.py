"""Workers, and an executor, of a small cluster are killed or stopped while others stand by: these take over at once.

Each test prints what it has measured; ``pytest -s`` shows it.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cluster_kit import RunningCluster
from failure_kit import KEYS, Prober, addresses, asking, check_lookup, is_there, parent_of, probing
from standby_kit import Watcher, await_recovery, await_standbys, await_that, feeding, recoveries_of

from benchmarks.recovery_kill import pid_listening
from upriver.errors import WorkerLost, WrongOwner

pytestmark = pytest.mark.cluster

WORKERS = 3
SLOTS = 2
"""Of each executor: one executor can be lost."""
CLUSTER = f"local-cluster[{WORKERS},{SLOTS},1024]"
VNODES = 32
FILES = 600
"""More than the tests can feed."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    directory = tmp_path_factory.mktemp("standbys")
    running = RunningCluster(directory, CLUSTER, FILES, workers=WORKERS, vnodes=VNODES, standbys={"replicas": 1})
    running.client.lookup("sums", [0], at_least=running.feed.fed, timeout=60)
    yield running
    running.stop()


def address(cluster: RunningCluster, worker: int) -> str:
    found = addresses(cluster.client)[worker]
    assert found is not None
    return found


def executor_of(cluster: RunningCluster, worker: int) -> int:
    """The process of the JVM whose Python daemon has forked the worker."""
    return parent_of(parent_of(pid_listening(address(cluster, worker))))


@contextmanager
def others_take_over(cluster: RunningCluster, victims: list[int], what: str) -> Iterator[None]:
    """What is harmed inside is served by standbys before its place is filled, and no worker begins anew. Then its place
    is filled, and has its share, and all stand by again."""
    client = cluster.client
    await_that(lambda: cluster.ask("group")["slots"] == WORKERS * SLOTS)  # those of an executor that was lost are back
    await_standbys(client.status)
    born, before = cluster.ask("group")["born"], Watcher(client.status).look()
    known = {victim: len(recoveries_of(client.status, victim)) for victim in victims}
    with Watcher(client.status).watching() as watcher:
        began = time.monotonic()
        yield
        recoveries = [await_recovery(client.status, *victim) for victim in known.items()]
        served_s = time.monotonic() - began
        await_standbys(client.status)
        whole_s = time.monotonic() - began
    assert cluster.ask("group")["born"] == born, "all have begun anew"
    for victim in victims:
        maps = [(version, workers) for version, workers in cluster.ask("maps")["maps"] if version >= before.version]
        empty = [version for version, workers in maps if victim not in workers]
        assert empty, maps
        assert min(empty) > before.version
    assert all(sum(scene.vnodes.values()) == VNODES for scene in watcher.scenes)
    assert all(addresses(client)[victim] != before.addresses[victim] for victim in victims)
    print(f"\n{what}: served again {recoveries} s after it was noticed, {served_s:.2f} s after it was done;", end=" ")
    print(f"the place has its share {whole_s:.2f} s after it was done")


def served_until_now(cluster: RunningCluster, prober: Prober) -> None:
    """What is fed by now is there to be looked up, all of it, and right."""
    check_lookup(cluster.client, "sums", cluster.feed.view, list(range(KEYS)), cluster.feed.fed)
    print(f"the longest that a lookup waited was {prober.gap_s:.2f} s")


def test_each_vnode_is_followed_on_another_executor(cluster: RunningCluster) -> None:
    with feeding(cluster.feed, cluster.client.status):
        await_standbys(cluster.client.status)
    assert cluster.client.status()["standbys"] == {"wanted": 1, "ready": VNODES, "learners": 0, "why": None}
    group = cluster.ask("group")
    executors = {worker: executor_of(cluster, worker) for worker in range(WORKERS)}
    assert len(set(executors.values())) == WORKERS  # spread, though each executor has room for two
    for pairs in group["followers"]:
        followers = dict(pairs)
        assert sorted(followers) == list(range(VNODES))
        for vnode, owner in enumerate(group["owners"]):
            assert executors[followers[vnode]] != executors[owner]


def test_others_take_over_from_a_python_worker_that_is_killed(cluster: RunningCluster) -> None:
    with feeding(cluster.feed, cluster.client.status), probing(cluster.client, cluster.feed) as prober:
        with others_take_over(cluster, [0], "kill -9 of a Python worker"):
            prober.measure()
            os.kill(pid_listening(address(cluster, 0)), signal.SIGKILL)
        served_until_now(cluster, prober)


def test_others_take_over_from_an_executor_that_is_killed(cluster: RunningCluster) -> None:
    executor = executor_of(cluster, 1)
    victims = [worker for worker in range(WORKERS) if executor_of(cluster, worker) == executor]
    with feeding(cluster.feed, cluster.client.status), probing(cluster.client, cluster.feed) as prober:
        with others_take_over(cluster, victims, f"kill -9 of an executor with {len(victims)} workers"):
            prober.measure()
            os.kill(executor, signal.SIGKILL)
        served_until_now(cluster, prober)
    assert not is_there(executor)


def test_a_worker_that_was_stopped_says_nothing_when_others_have_taken_over(cluster: RunningCluster) -> None:
    await_standbys(cluster.client.status)
    old, wanted = address(cluster, 2), cluster.all_at(2)
    process = pid_listening(old)
    with (
        cluster.streams_to(old, 8) as streams,
        feeding(cluster.feed, cluster.client.status),
        probing(cluster.client, cluster.feed) as prober,
    ):
        with others_take_over(cluster, [2], "SIGSTOP of a Python worker"):
            prober.measure()
            os.kill(process, signal.SIGSTOP)
        try:
            served_until_now(cluster, prober)
            for stream in streams:
                stream.ask(wanted)  # it finds these when it wakes up
        finally:
            os.kill(process, signal.SIGCONT)
        for stream in streams:
            with pytest.raises((WrongOwner, WorkerLost)):
                stream.answer()
    await_that(lambda: not is_there(process))


@pytest.mark.long
def test_others_take_over_amid_an_epoch_whose_rows_are_exchanged(cluster: RunningCluster) -> None:
    """The victim is stopped until an epoch is open that cannot end without it: what the others have of that epoch is
    put back, and comes again."""
    cluster.ask("add sizes")
    prober = Prober(cluster.client, "sums", cluster.feed.view, list(range(0, KEYS, 25)))
    sizes = Prober(cluster.client, "sizes", cluster.feed.sizes, list(range(1, 4 * FILES)))
    with feeding(cluster.feed, cluster.client.status), asking(prober, sizes):
        for victim in (2, 0):
            with others_take_over(cluster, [victim], "kill -9 of a Python worker amid an epoch, with exchanges"):
                prober.measure()
                process = pid_listening(address(cluster, victim))
                os.kill(process, signal.SIGSTOP)
                await_that(lambda: is_amid_an_epoch(cluster))
                os.kill(process, signal.SIGKILL)
            served_until_now(cluster, prober)
    cluster.check()


def is_amid_an_epoch(cluster: RunningCluster) -> bool:
    status = cluster.client.status()
    return bool(status["published"] > status["epoch"])
