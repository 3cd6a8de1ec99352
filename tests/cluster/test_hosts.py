"""A Spark cluster of several hosts, with speculation: workers come up by default, and one attempt of each stays. Links
between the hosts break.

All tests share one cluster, and most of them one app, which a late one stops: they run in order.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hosts_kit import CLIENT, MASTER, ONE, OTHER, WAIT_S, Hosts, LoopbackHosts, NamespaceHosts, StandaloneCluster
from standby_kit import await_that

pytestmark = pytest.mark.cluster

RIGHT = [{"grp": group, "n": 100} for group in range(7)]


@dataclass
class Running:
    """An app ``app`` on a cluster of two hosts. told: of its start. seen: what the driver has said since, until Spark
    had killed a copy of each worker's task."""

    cluster: StandaloneCluster
    told: dict[str, Any]
    seen: list[dict[str, Any]]

    def host_of(self, worker: int) -> str:
        address: str = self.seen[-1]["workers"][worker]["address"]
        return address.rpartition(":")[0]


def hosts() -> Hosts:
    try:
        return NamespaceHosts()
    except OSError as error:
        print(f"\nhosts share this one's network, since no namespace can be made: {error}")
        return LoopbackHosts()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    cluster = StandaloneCluster(hosts(), tmp_path_factory.mktemp("hosts"))
    try:
        told = cluster.ask("start", "app", {})
        assert "error" not in told, told
        seen = [cluster.ask("attempts", "app")]
        give_up_at = time.monotonic() + WAIT_S
        while not all(has_killed_copy(attempts) for attempts in seen[-1]["attempts"].values()):
            assert time.monotonic() < give_up_at, f"copies live: {seen[-1]['attempts']}"
            seen.append(cluster.ask("attempts", "app"))
        yield Running(cluster, told, seen)
    finally:
        cluster.stop()


def hosts_of(told: dict[str, Any]) -> set[str]:
    return {worker["address"].rpartition(":")[0] for worker in told["workers"]}


def has_killed_copy(attempts: list[list[Any]]) -> bool:
    return any(status == "KILLED" and is_copy for status, _, is_copy in attempts)


@pytest.fixture
def apart(running: Running) -> Running:
    """With hosts that do not share a network."""
    if isinstance(running.cluster.hosts, LoopbackHosts):
        pytest.skip("no network namespaces can be made here: that takes root and `ip netns`")
    return running


def test_leases_one_attempt_stays_a_copy_of_a_workers_task_is_killed_and_the_worker_stays(running: Running) -> None:
    """Spark starts one copy on each host that has had none: on two hosts, one in all."""
    assert sorted(running.seen[-1]["attempts"]) == ["Upriver: worker 0", "Upriver: worker 1"]
    for (status, host, _), *copies in running.seen[-1]["attempts"].values():
        assert status == "RUNNING"
        (other,) = {*running.cluster.hosts.addresses[ONE : OTHER + 1]} - {host}
        assert copies == [["KILLED", other, True]]
    for seen in running.seen:
        assert seen["found"] == RIGHT
        assert [(worker["restarts"], worker["last_failure"]) for worker in seen["workers"]] == [(0, None), (0, None)]
        addresses = [worker["address"] for worker in seen["workers"]]
        assert addresses == [worker["address"] for worker in running.told["workers"]]


def test_an_app_that_finds_too_few_free_slots_counts_those_that_are_taken(running: Running) -> None:
    told: list[str] = []

    def counts_two() -> bool:
        """Not while the executor still ends a copy that Spark has killed."""
        refused = running.cluster.ask("start", "other", {}, 1.0)
        assert refused["error"] == "TooFewSlots"
        told.append(refused["message"])
        assert "3 task slots are needed" in told[-1]
        return "2 of 4 are taken: by other jobs, or by another app's workers" in told[-1]

    await_that(counts_two, lambda: told[-1])


def test_each_tells_the_address_by_which_others_reach_it(apart: Running) -> None:
    addresses = apart.cluster.hosts.addresses
    assert apart.told["address"].startswith(f"{addresses[MASTER]}:")
    for worker in (0, 1):
        ((_, host, _), *_) = apart.seen[-1]["attempts"][f"Upriver: worker {worker}"]
        assert apart.host_of(worker) == host
    assert apart.host_of(0) != apart.host_of(1)


def test_loopback_is_refused_with_the_way_out(apart: Running) -> None:
    refused = apart.cluster.ask("start", "other", {"listen": "127.0.0.1:0"})
    assert refused["error"] == "DeclarationError"
    assert "Leave listen out: the app then listens as Spark's driver does, on 10.77.0.1" in refused["message"]


def test_keys_move_between_hosts_and_are_looked_up_from_a_third(apart: Running) -> None:
    assert len(apart.cluster.ask("rescale", "app", 3)["workers"]) == 3
    code = (
        "import upriver\n"
        f"with upriver.connect({apart.told['address']!r}, {apart.told['token']!r}) as client:\n"
        "    print(client.lookup('totals', list(range(7))).to_pylist())\n"
    )
    assert apart.cluster.run(CLIENT, code) == f"{RIGHT}\n"
    assert hosts_of(apart.cluster.ask("attempts", "app")) == {*apart.cluster.hosts.addresses[ONE : OTHER + 1]}
    left = apart.cluster.ask("rescale", "app", 2)
    assert len(left["workers"]) == len(hosts_of(left)) == 2  # from the host that has two


def test_an_executor_without_the_package_is_found_by_the_first_task(running: Running) -> None:
    running.cluster.ask("stop", "app")
    bare = os.path.join(sys.base_prefix, "bin", "python3")
    refused = running.cluster.ask("start", "bare", {}, 30.0, bare)
    assert refused["error"] == "ClusterError"
    assert "lack" in refused["message"]
    assert "docs/guide/clusters.md" in refused["message"]


def test_one_host_of_several_with_another_version_is_found(running: Running, tmp_path: Path) -> None:
    odd = running.cluster.hosts.addresses[OTHER]
    (tmp_path / "odd" / "sqlglot-1.2.3.dist-info").mkdir(parents=True)
    (tmp_path / "odd" / "sqlglot-1.2.3.dist-info" / "METADATA").write_text("Name: sqlglot\nVersion: 1.2.3\n")
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$SPARK_LOCAL_IP" = {odd} ] && export PYTHONPATH={tmp_path}/odd:$PYTHONPATH\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    refused = running.cluster.ask("start", "odd", {}, 30.0, str(python))
    assert refused["error"] == "ClusterError"
    assert "has sqlglot 1.2.3, and the driver" in refused["message"]


# Links between the hosts

EPOCHS = 3
"""Epochs of the view without exchanges that end while a link is broken."""
VIEWS = ("counts", "sizes")


class Ticking:
    """An app whose table grows, on two hosts with a network each."""

    def __init__(self, running: Running) -> None:
        assert isinstance(running.cluster.hosts, NamespaceHosts)
        self.cluster, self.hosts = running.cluster, running.cluster.hosts

    def start(self, workers: int) -> None:
        told = self.cluster.ask("tick", "ticking", workers)
        assert "error" not in told, told
        await_that(lambda: all(self.told()["found"].values()))

    def told(self) -> dict[str, Any]:
        return self.cluster.ask("look", "ticking")

    def look(self, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Look until something is so. Every look must find all rows of both views."""
        seen: list[dict[str, Any]] = []

        def is_so() -> bool:
            seen.append(self.told())
            assert seen[-1].get("found") == dict.fromkeys(VIEWS, True), seen[-1]
            return until(seen[-1])

        await_that(is_so, lambda: seen[-1])
        return seen[-1]


@pytest.fixture
def ticking(apart: Running) -> Iterator[Ticking]:
    apart.cluster.ask("stop", "app")
    yield Ticking(apart)
    apart.cluster.ask("stop", "ticking")


def ended(view: str, epoch: int) -> Callable[[dict[str, Any]], bool]:
    """Whether a view has ended this epoch."""
    return lambda seen: bool(seen["epochs"][view] >= epoch)


def test_links_broken_one_way_or_both_stop_no_answers_and_restart_no_worker(ticking: Ticking) -> None:
    """Of three workers, the one that is alone on its host does not reach the two others, whose host is full."""
    hosts = ticking.hosts
    ticking.start(3)
    for ways in (((ONE, OTHER),), ((ONE, OTHER), (OTHER, ONE))):
        before = ticking.look(lambda seen: seen["links"] == [] and len(seen["hosts"]) == 3)
        for host, other in ways:
            hosts.cut(host, other)
        broken = ticking.look(lambda seen: len(seen["links"]) == 2)
        (alone,) = (worker for worker in (0, 1, 2) if before["hosts"].count(before["hosts"][worker]) == 1)
        assert all(alone in link for link in broken["links"])
        later = ticking.look(ended("counts", broken["epochs"]["counts"] + EPOCHS))
        assert later["epochs"]["sizes"] == broken["epochs"]["sizes"]
        for host, other in ways:
            hosts.mend(host, other)
        whole = ticking.look(lambda seen: seen["links"] == [])
        ticking.look(ended("sizes", whole["epochs"]["counts"]))
        assert whole["restarts"] == before["restarts"]


def test_coordinator_move_cut_off_a_worker_moves_to_the_host_of_the_other(ticking: Ticking) -> None:
    ticking.start(2)
    before = ticking.look(lambda seen: len({*seen["hosts"]}) == 2)
    ticking.hosts.cut(ONE, OTHER)
    try:
        ticking.look(lambda seen: seen["links"] == [[0, 1]])
        both = before["hosts"][:1] * 2
        await_that(lambda: ticking.told().get("hosts") == both, ticking.told)
        last = ticking.told()["epochs"]["counts"]
        after = ticking.look(ended("sizes", last + 1))
        assert after["links"] == []
        assert after["failures"][1] == "worker 1 failed: it does not reach worker 0, and moves to another host"
    finally:
        ticking.hosts.mend(ONE, OTHER)
