"""The demo's prober: it knows a wrong answer when it sees one, and tells what was under way when."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from client_kit import PLANES, Cluster, View
from server_kit import SECONDS_MAX, TOKEN

from upriver.demo_prober import WARM_UP, DemoProber, DemoProbes, DemoProbeTask, Witness, probe
from upriver.errors import ClusterError, WorkerLost

KEYS = tuple(f"N{number}" for number in range(0, 150, 10))
"""Some of them have no rows."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    running = Cluster(2)
    yield running
    running.stop()


def task(address: str = "127.0.0.1:1", **fields: Any) -> DemoProbeTask:
    return DemoProbeTask(
        address=address, token=TOKEN, view="planes", key="tailnum", count="flights", keys=KEYS, **fields
    )


def answer(*rows: tuple[str | None, int]) -> pa.Table:
    return pa.table({"tailnum": [key for key, _ in rows], "flights": pa.array([n for _, n in rows], pa.int64())})


def test_what_may_be_is_right() -> None:
    witness = Witness("tailnum", "flights")
    answers = [("a", answer()), ("a", answer(("a", 2))), (None, answer((None, 1))), ("a", answer(("a", 2)))]
    assert [witness.fault(key, found) for key, found in answers] == [None] * 4


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (answer(("a", 4)), "the count went back from 5 to 4"),
        (answer(), "the count went back from 5 to 0"),
        (answer(("b", 6)), r"the answer has rows of ['b']"),
        (answer(("a", 6), ("a", 6)), r"the answer has rows of ['a', 'a']"),
        (answer(("a", 6), ("b", 6)), r"the answer has rows of ['a', 'b']"),
    ],
)
def test_what_cannot_be_is_wrong(wrong: pa.Table, said: str) -> None:
    witness = Witness("tailnum", "flights")
    assert witness.fault("a", answer(("a", 5))) is None
    assert witness.fault("a", wrong) == f"'a': {said}"


def test_a_lookup_that_fails_is_wrong_and_the_next_is_asked() -> None:
    stopped = threading.Event()
    asked: list[str | None] = []

    def look_up(key: str | None) -> pa.Table:
        asked.append(key)
        if len(asked) == WARM_UP + 10:
            stopped.set()
        if len(asked) in (3, 7):
            raise WorkerLost(f"lookup {len(asked)}")
        return answer()

    probes = probe(task(), look_up, stopped)
    assert (probes.wrong, probes.first_wrong) == (2, f"{asked[2]!r}: WorkerLost: lookup 3")
    assert len(probes.began) == len(probes.seconds) == 10
    assert set(asked) <= set(KEYS)
    assert len(set(asked)) > 5


def test_lookups_of_a_time_are_those_under_way_then() -> None:
    probes = DemoProbes(
        began=np.array([0.0, 1, 2, 3]), seconds=np.array([0.5, 1.5, 0.25, 1]), wrong=0, first_wrong=None
    )
    assert probes.between(1.75, 2.1).tolist() == [1.5, 0.25]
    assert probes.between(2.25, 3.0).tolist() == [1.5]
    assert probes.between(5, 6).tolist() == []


def probe_until(cluster: Cluster, lookups: int) -> DemoProbes:
    """What a prober's process sees until the workers have been asked so often."""
    enough = threading.Event()
    asked = iter(range(1, 10**9))

    def count(_: int) -> None:
        if next(asked) == lookups:
            enough.set()

    for worker in cluster.workers.values():
        worker.before = count
    with DemoProber(task(cluster.coordinator.address)) as prober:
        assert enough.wait(SECONDS_MAX * 3)
        return prober.stop()


def test_a_process_probes_until_it_is_told_to_stop(cluster: Cluster) -> None:
    probes = probe_until(cluster, 200)
    assert (probes.wrong, probes.first_wrong) == (0, None)
    assert len(probes.seconds) >= 100
    assert (probes.seconds > 0).all()
    assert (np.diff(probes.began) > 0).all()


def test_a_process_sees_counts_that_are_wrong(cluster: Cluster) -> None:
    rows = [(key, -1) for key in KEYS]
    cluster.views["planes"] = View(PLANES.route, rows)
    probes = probe_until(cluster, 100)
    assert probes.wrong == len(KEYS)  # each once: from then on it stays as it is
    assert probes.first_wrong is not None
    assert "the count went back from 0 to -1" in probes.first_wrong


def test_a_process_that_fails_says_so() -> None:
    with DemoProber(task()) as prober, pytest.raises(ClusterError, match="the prober has failed, with status 1"):
        prober.stop()
