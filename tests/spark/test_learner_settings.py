"""Rescales by learners with other settings than the usual ones, on real processes."""

from collections.abc import Iterator
from typing import Any

import pytest
from learner_kit import VNODES, River, over

pytestmark = pytest.mark.spark

JOINING = 2


@pytest.fixture(scope="module")
def river(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[River]:
    """Of two workers. All may learn at once; nobody takes anything over before it has learned everything; and who
    leaves is hardly waited for."""
    settings = {"learner_partial_rebalance": False, "max_warmup_replicas": VNODES, "scale_down_timeout_ms": 1}
    river = River(spark, tmp_path_factory.mktemp("learners"), **settings)
    yield river
    river.app.stop()


def test_slices_are_taken_over_when_all_of_a_worker_are_learned(river: River) -> None:
    with river.checked():
        before = river.app.status()["map_version"]
        report = over(river.app.rescale(2 + JOINING, strategy="learner"), "2 to 4, all at once")
        assert report["moved_vnodes"] == VNODES // 2
        assert river.vnodes() == [VNODES // 4] * 4
        assert river.app.status()["map_version"] - before <= JOINING
    river.equals_spark()


def test_who_leaves_is_not_waited_for_any_longer_than_it_may_take(river: River) -> None:
    """What nobody has learned by then is read again from the lake."""
    with river.checked():
        over(river.app.rescale(1, strategy="learner"), "4 to 1, without waiting")
        assert river.vnodes() == [VNODES]
    river.equals_spark()
