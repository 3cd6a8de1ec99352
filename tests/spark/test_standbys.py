"""Rescales while workers stand by for each other, and losses after and amid them, on real processes."""

from collections.abc import Iterator
from typing import Any

import pytest
from learner_kit import VNODES, RunningCluster, amid, over
from standby_kit import await_recovery, await_standbys, recoveries_of

from upriver.options import Standbys

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def standing(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """Of three workers that stand by for each other."""
    cluster = RunningCluster(spark, tmp_path_factory.mktemp("standing"), workers=3, standbys=Standbys(replicas=1))
    yield cluster
    cluster.app.stop()


def test_keys_move_while_others_stand_by(standing: RunningCluster) -> None:
    """They do not while keys move; afterwards they do again, and take over."""
    app = standing.app
    with standing.checked():
        for workers in (4, 2, 3):
            await_standbys(app.status)
            over(app.rescale(workers), f"by icadd to {workers}")
            await_standbys(app.status)
            assert app.status()["standbys"] == {"wanted": 1, "ready": VNODES, "learners": 0, "why": None}
        known = len(recoveries_of(app.status, 1))
        standing.kill(1)
        print(f"\nserved again {await_recovery(app.status, 1, known)} s after it was noticed")
        await_standbys(app.status)


@pytest.mark.long
def test_a_worker_is_killed_amid_learning_while_others_stand_by(standing: RunningCluster) -> None:
    app = standing.app
    with standing.checked():
        await_standbys(app.status)
        rescale = app.rescale(4, strategy="learner")
        amid(rescale)
        standing.kill(0)
        over(rescale, "3 to 4 with standbys, and worker 0 was killed")
        await_standbys(app.status)
        assert standing.vnodes() == [VNODES // 4] * 4
        over(app.rescale(3, strategy="learner"), "4 to 3 with standbys")
        await_standbys(app.status)
    standing.equals_spark()
