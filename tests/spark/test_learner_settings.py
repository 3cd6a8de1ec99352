"""Rescales by learners with other settings than the usual ones, on real processes."""

from collections.abc import Iterator
from typing import Any

import pytest
from learner_kit import VNODES, RunningCluster, over

from upriver.options import Standbys

pytestmark = pytest.mark.spark

JOINING = 2


@pytest.fixture(scope="module")
def cluster(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """Of two workers. All may learn at once; no worker takes anything over before it has learned everything; and one
    that leaves is hardly waited for."""
    standbys = Standbys(partial_rebalance=False, warmup_replicas=VNODES, leave_timeout_ms=1)
    cluster = RunningCluster(spark, tmp_path_factory.mktemp("learners"), standbys=standbys)
    yield cluster
    cluster.app.stop()


@pytest.mark.long
def test_slices_are_taken_over_when_all_of_a_worker_are_learned(cluster: RunningCluster) -> None:
    with cluster.checked():
        before = cluster.app.status()["map_version"]
        report = over(cluster.app.rescale(2 + JOINING, strategy="learner"), "2 to 4, all at once")
        assert report["moved_vnodes"] == VNODES // 2
        assert cluster.vnodes() == [VNODES // 4] * 4
        assert cluster.app.status()["map_version"] - before <= JOINING
    cluster.equals_spark()


def test_a_leaver_is_waited_for_no_longer_than_it_may_take(cluster: RunningCluster) -> None:
    """What no worker has learned by then is read again from the lake."""
    with cluster.checked():
        over(cluster.app.rescale(1, strategy="learner"), "4 to 1, without waiting")
        assert cluster.vnodes() == [VNODES]
    cluster.equals_spark()
