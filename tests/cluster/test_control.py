"""What the next driver goes on with when one is killed, on real processes."""

import os
import signal
from pathlib import Path

import pytest
from cluster_kit import ALONE, RunningCluster
from failure_kit import addresses

from benchmarks.recovery_kill import pid_listening

pytestmark = pytest.mark.cluster

PATIENT_S = 120.0
"""Seconds of silence: no worker is given up while it is stopped."""


@pytest.mark.long
def test_a_driver_killed_in_a_rescale_is_followed_by_one_that_goes_on_with_its_target(tmp_path: Path) -> None:
    cluster = RunningCluster(
        tmp_path, ALONE, workers=None, worker_silence_s=PATIENT_S, checkpoints={"interval_epochs": 1}
    )
    try:
        assert sorted(addresses(cluster.client)) == [0, 1], "of a new root"
        assert cluster.client.rescale(3).wait(PATIENT_S)["outcome"] == "finished"
        cluster.feed.feed()
        cluster.check()
        address = addresses(cluster.client)[1]
        assert address is not None
        stopped = pid_listening(address)
        os.kill(stopped, signal.SIGSTOP)  # so the rescale cannot end
        rescale = cluster.client.rescale(2)
        states = (progress["state"] for progress in rescale.follow(PATIENT_S))
        assert next(state for state in states if state != "queued") == "starting"
        cluster.driver.kill()
        cluster.driver.communicate(timeout=60)
        os.kill(stopped, signal.SIGKILL)
        cluster.client.close()
        cluster.feed.feed()
        cluster.start(ALONE)
        assert sorted(addresses(cluster.client)) == [0, 1], "the target of the rescale"
        cluster.check()
        told = [(entry["term"], entry["from"], entry["to"], entry["outcome"]) for entry in cluster.client.rescales()]
        assert told == [(1, 2, 3, "finished"), (1, 3, 2, "interrupted")]
        (view,) = cluster.client.views()
        assert (view["name"], view["key"], view["ended"]) == ("sums", ["k"], None)
    finally:
        cluster.stop()
