"""Two hosts do not reach each other, one way or both, while the driver reaches both: all views answer meanwhile."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hosts_kit import ONE, OTHER, NamespaceHosts, StandaloneCluster
from standby_kit import await_that

pytestmark = pytest.mark.cluster
EPOCHS = 5
"""Epochs of the view without exchanges that end while the link is broken."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    try:
        hosts = NamespaceHosts()
    except OSError as error:
        pytest.skip(f"no network namespaces can be made here: {error}")
    running = StandaloneCluster(hosts, tmp_path_factory.mktemp("links"))
    try:
        told = running.ask("tick", "app")
        assert "error" not in told, told
        await_that(lambda: all(running.ask("look", "app")["found"].values()))
        yield running
    finally:
        running.stop()


def looked(cluster: StandaloneCluster, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Look until something is so. Every look must find rows of all views."""
    seen: list[dict[str, Any]] = []

    def is_so() -> bool:
        seen.append(cluster.ask("look", "app"))
        assert seen[-1].get("found") == {"counts": True, "sizes": True}, seen[-1]
        return until(seen[-1])

    await_that(is_so, lambda: seen[-1])
    return seen[-1]


@pytest.mark.parametrize("ways", [((ONE, OTHER),), ((OTHER, ONE),), ((ONE, OTHER), (OTHER, ONE))])
def test_all_views_answer_while_two_workers_do_not_reach_each_other(
    cluster: StandaloneCluster, ways: tuple[tuple[int, int], ...]
) -> None:
    hosts = cluster.hosts
    assert isinstance(hosts, NamespaceHosts)
    before = looked(cluster, lambda seen: seen["links"] == [] and seen["epochs"]["sizes"] > 0)
    for host, other in ways:
        hosts.cut(host, other)
    broken = looked(cluster, lambda seen: seen["links"] == [[0, 1]])
    later = looked(cluster, lambda seen: seen["epochs"]["counts"] >= broken["epochs"]["counts"] + EPOCHS)
    assert later["epochs"]["sizes"] == broken["epochs"]["sizes"]
    for host, other in ways:
        hosts.mend(host, other)
    whole = looked(cluster, lambda seen: seen["links"] == [])
    looked(cluster, lambda seen: seen["epochs"]["sizes"] >= whole["epochs"]["counts"])
    assert whole["restarts"] == before["restarts"]
