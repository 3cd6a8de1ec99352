"""A rescale as the client sees it that asked for it: asking, following, waiting, aborting; on a real server with canned
answers."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from client_kit import VNODES, Cluster
from rescale_kit import TICKET, UNDERWAY, Coordinator, Json, progress, report

import upriver
from upriver.app import App
from upriver.client.client import Client
from upriver.client.rescale import STRATEGIES
from upriver.errors import ClusterError, DeclarationError, TooFewSlots, UserError, WaitTimeout
from upriver.protocol.strategies import Strategy


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def cluster(coordinator: Coordinator) -> Iterator[Cluster]:
    running = Cluster(2, coordinator.actions())
    yield running
    running.stop()


# Asking


def test_a_number_of_workers_is_asked_for(coordinator: Coordinator, client: Client) -> None:
    rescale = client.rescale(4, strategy="redistribute", keys_max=100)
    assert isinstance(rescale, upriver.Rescale)
    assert rescale.ticket == TICKET
    asked = {"workers": 4, "moves": None, "strategy": "redistribute", "keys_max": 100}
    assert coordinator.heard() == [("rescale", asked)]


def test_moves_are_asked_for_in_any_integers(coordinator: Coordinator, client: Client) -> None:
    client.rescale(moves={np.int64(3): np.int32(1), VNODES - 1: 0})  # type: ignore[dict-item]
    asked = {"workers": None, "moves": {"3": 1, str(VNODES - 1): 0}, "strategy": "icadd", "keys_max": None}
    assert coordinator.heard() == [("rescale", asked)]


WORKERS_WRONG = f"give at least 1, and at most {VNODES}"
NONSENSE: list[tuple[Json, str]] = [
    ({}, "Give workers .*, or moves"),
    ({"workers": 3, "moves": {1: 1}}, "workers and moves: give one of them"),
    ({"workers": 0}, rf"workers=0: {WORKERS_WRONG}"),
    ({"workers": -1}, rf"workers=-1: {WORKERS_WRONG}"),
    ({"workers": VNODES + 1}, rf"workers={VNODES + 1}: {WORKERS_WRONG}: each owns a vnode"),
    ({"workers": True}, "workers=True: give a whole number, not a bool"),
    ({"workers": 2.0}, r"workers=2\.0: give a whole number, not a float"),
    ({"workers": "3"}, "workers='3': give a whole number, not a str"),
    (
        {"workers": 3, "strategy": "magic"},
        "strategy='magic': give one of 'icadd', 'redistribute', 'lazy', 'learner', 'restart'",
    ),
    ({"workers": 3, "strategy": None}, "strategy=None: give one of"),
    ({"workers": 3, "strategy": ["icadd"]}, "strategy=.*: give one of"),
    ({"workers": 3, "keys_max": 0}, "keys_max=0: give at least 1 key at a time, or None"),
    ({"workers": 3, "keys_max": 1.5}, r"keys_max=1\.5: give a whole number"),
    ({"moves": {}}, "moves=.*: give at least one vnode"),
    ({"moves": [(1, 2)]}, r"moves=\[\(1, 2\)\]: give a mapping"),
    ({"moves": {VNODES: 1}}, f"moves: there is no vnode {VNODES}: give vnodes from 0 to {VNODES - 1}"),
    ({"moves": {-1: 1}}, "moves: there is no vnode -1"),
    ({"moves": {"1": 1}}, "moves: vnode='1': give a whole number"),
    ({"moves": {1: True}}, "moves: worker of vnode 1=True: give a whole number"),
    ({"moves": {1: math.nan}}, "moves: worker of vnode 1=nan: give a whole number"),
    ({"moves": {1: -2}}, "moves: there is no worker -2: give workers from 0 on"),
]


@pytest.mark.parametrize(("arguments", "said"), NONSENSE)
def test_nonsense_is_refused_and_no_request_is_sent(
    coordinator: Coordinator, client: Client, arguments: Json, said: str
) -> None:
    with pytest.raises(DeclarationError, match=said):
        client.rescale(**arguments)
    assert coordinator.heard() == []


def test_the_strategies_are_those_of_the_coordinator() -> None:
    assert set(STRATEGIES) == {str(strategy) for strategy in Strategy}


def test_what_the_coordinator_refuses_comes_as_it_is(coordinator: Coordinator, client: Client) -> None:
    coordinator.fail("rescale", TooFewSlots("6 task slots are needed"))
    with pytest.raises(TooFewSlots, match=r"^6 task slots are needed$"):
        client.rescale(4)


# Following, waiting, aborting


def test_progress_is_the_coordinator_s(coordinator: Coordinator, client: Client) -> None:
    assert client.rescale_of(TICKET).progress() == UNDERWAY[0]
    assert coordinator.heard() == [("rescale_progress", {"ticket": TICKET})]


def test_a_rescale_is_followed_to_its_end(coordinator: Coordinator, client: Client) -> None:
    expected = list(coordinator.script)
    assert list(client.rescale_of(TICKET).follow()) == expected
    known = [asked["unless"] for _, asked in coordinator.heard()]
    assert known == [None, *(told["state"] for told in expected[:-1])]


def test_waiting_ends_with_the_report(coordinator: Coordinator, client: Client) -> None:
    assert client.rescale(3).wait() == coordinator.report
    heard = [action for action, _ in coordinator.heard()]
    assert heard == ["rescale", *["rescale_progress"] * 4, "rescale_report"]


@pytest.mark.parametrize("timeout", [0.0, 0.05])
def test_waiting_in_vain_says_where_it_stands(coordinator: Coordinator, client: Client, timeout: float) -> None:
    coordinator.script = [progress("moving", 1200, 34)]
    with pytest.raises(WaitTimeout, match=rf"^rescale 7 is moving, 1,200 of 1,234 keys moved, after {timeout:g} s"):
        client.rescale_of(TICKET).wait(timeout=timeout)


@pytest.mark.parametrize(
    ("outcome", "error", "raised"),
    [("refused", "worker 9 is not there", UserError), ("failed", "worker 1 was lost", ClusterError)],
)
def test_waiting_for_what_fails_says_why(
    coordinator: Coordinator, client: Client, outcome: str, error: str, raised: type[Exception]
) -> None:
    coordinator.script, coordinator.report = [progress(outcome, error=error)], report(outcome, error)
    rescale = client.rescale_of(TICKET)
    with pytest.raises(raised, match=f"^rescale 7 (was )?{outcome}: {error}$"):
        rescale.wait()
    assert rescale.report() == coordinator.report


def test_an_aborted_rescale_has_a_report_too(coordinator: Coordinator, client: Client) -> None:
    coordinator.report = report("aborted")
    rescale = client.rescale_of(TICKET)
    rescale.abort()
    assert rescale.wait()["outcome"] == "aborted"
    assert coordinator.heard()[0] == ("rescale_abort", {"ticket": TICKET})


def test_there_is_no_report_before_the_end(coordinator: Coordinator, client: Client) -> None:
    coordinator.fail("rescale_report", UserError("rescale 7 is not over"))
    with pytest.raises(UserError, match=r"^rescale 7 is not over$"):
        client.rescale_of(TICKET).report()


def test_a_closed_client_follows_nothing(cluster: Cluster) -> None:
    client = cluster.connect()
    rescale = client.rescale_of(TICKET)
    client.close()
    with pytest.raises(ClusterError, match="closed"):
        rescale.wait()


# The app


@pytest.mark.parametrize("budget", [0, -1.0, math.nan, math.inf, True, "5", None])
def test_a_step_has_some_time(budget: Any) -> None:
    with pytest.raises(DeclarationError, match=r"migration_step_budget_ms=.*: give milliseconds, more than 0"):
        App(None, "lake", migration_step_budget_ms=budget)  # type: ignore[arg-type]
