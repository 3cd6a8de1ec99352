"""Rescales by learners, on real processes, while rows stream in and people look keys up."""

from collections.abc import Iterator
from typing import Any

import pytest
from failure_kit import is_there
from learner_kit import VNODES, RunningCluster, amid, over
from standby_kit import await_that

from upriver.errors import UserError

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def cluster(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """Of two workers; every test leaves it with two."""
    cluster = RunningCluster(spark, tmp_path_factory.mktemp("learners"))
    yield cluster
    cluster.app.stop()


def test_slices_are_learned_while_a_stream_goes_on(cluster: RunningCluster) -> None:
    with cluster.checked():
        for before, after, moved in ((2, 4, 16), (4, 1, 24), (1, 2, 16)):
            report = over(cluster.app.rescale(after, strategy="learner"), f"{before} to {after}")
            assert (report["strategy"], report["from"], report["to"]) == ("learner", before, after)
            assert report["moved_vnodes"] == moved
            assert report["moved_keys"] > 0
            assert report["moved_bytes"] > 0
            assert cluster.vnodes() == [VNODES // after] * after
            assert cluster.app.status()["standbys"] == {"wanted": 0, "ready": 0, "learners": 0, "why": None}
    cluster.equals_spark()


def test_a_retired_worker_leaves_no_process(cluster: RunningCluster) -> None:
    """It would keep the memory that it has taken."""
    over(cluster.app.rescale(3), "2 to 3")
    retiring = cluster.process_of(2)
    over(cluster.app.rescale(2), "3 to 2")
    await_that(lambda: not is_there(retiring))


@pytest.mark.parametrize("after", [4, 1], ids=["some came", "one was to leave"])
def test_learning_is_aborted(cluster: RunningCluster, after: int) -> None:
    with cluster.checked():
        rescale = cluster.app.rescale(after, strategy="learner")
        amid(rescale)
        rescale.abort()
        assert rescale.wait(timeout=120)["outcome"] in ("aborted", "finished")
        over(cluster.app.rescale(2, strategy="learner"), "back to 2")
    assert sum(cluster.vnodes()) == VNODES


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.long), 3], ids=["an old owner", "a learner"])
def test_a_worker_is_killed_amid_learning(cluster: RunningCluster, victim: int) -> None:
    with cluster.checked():
        rescale = cluster.app.rescale(4, strategy="learner")
        amid(rescale)
        cluster.kill(victim)
        over(rescale, f"2 to 4, and worker {victim} was killed")
        assert cluster.vnodes() == [VNODES // 4] * 4
        over(cluster.app.rescale(2, strategy="learner"), "4 to 2")


def test_a_worker_is_killed_that_is_to_leave_when_others_have_learned(cluster: RunningCluster) -> None:
    with cluster.checked():
        over(cluster.app.rescale(3, strategy="learner"), "2 to 3")
        rescale = cluster.app.rescale(2, strategy="learner")
        amid(rescale)
        cluster.kill(2)
        over(rescale, "3 to 2, and the one that was to leave was killed")
        await_that(lambda: cluster.vnodes() == [VNODES // 2] * 2, cluster.app.status)
    cluster.equals_spark()


def test_learners_find_places_by_themselves(cluster: RunningCluster) -> None:
    before = cluster.app.status()["map_version"]
    with pytest.raises(UserError, match="'learner' finds the places of slices by itself: give a number of workers"):
        cluster.app.rescale(moves={0: 1}, strategy="learner").wait()
    assert cluster.app.status()["map_version"] == before
