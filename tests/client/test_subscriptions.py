"""Subscriptions against a real server and a real log: each change once, in order, whatever is cut or forgotten."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from changes_kit import VIEW, Change, WrittenLog, change, random_history
from client_kit import Cluster, View
from middle_kit import Middle, NowAndThen
from server_kit import SECONDS_MAX, TOKEN, cut_connections

from upriver.client.client import Client, connect
from upriver.client.subscriptions import THROUGH, Subscription
from upriver.errors import ChangesGone, ClusterError, DeclarationError, ProtocolError, UnknownView
from upriver.ids import Epoch
from upriver.lake.lake import Lake
from upriver.protocol.lookups import ViewRoute
from upriver.runtime.change_pieces import ChangePieces, PieceLimits
from upriver.state.changes import ChangePosition

HISTORY, _ = random_history(5, 12, one_row=False)
ALL = [each for version in HISTORY for each in version]
LAST = 14
"""A version later than the last with changes."""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[WrittenLog]:
    written = WrittenLog(tmp_path / "lake", "rows")
    written.commit(3, [each for version in HISTORY[:3] for each in version])
    written.commit(LAST, [each for version in HISTORY[3:] for each in version])
    yield written
    written.release()


@pytest.fixture
def pieces(log: WrittenLog, request: pytest.FixtureRequest) -> Iterator[ChangePieces]:
    made = ChangePieces(Lake(log.root), getattr(request, "param", PieceLimits()))
    yield made
    made.stop()


@pytest.fixture
def cluster(pieces: ChangePieces) -> Iterator[Cluster]:
    running = Cluster(1, {"change_last": pieces.last}, {"changes": lambda asked, _: pieces.piece(asked)})
    running.views["rows"] = View(ViewRoute(("k",), VIEW), [])
    running.views["no_log"] = View(ViewRoute(("k",), VIEW), [])
    yield running
    running.stop()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.connect() as connected:
        yield connected


def told(batch: pa.RecordBatch) -> list[Change]:
    return [tuple(row.values()) for row in batch.to_pylist()]


def until(subscription: Subscription, version: int) -> list[pa.RecordBatch]:
    """Its batches, until all changes through a version have come."""
    batches = []
    while (subscription.through or 0) < version:
        if (batch := subscription.step(0.0)) is not None:
            batches.append(batch)
    return batches


def rows_of(batches: list[pa.RecordBatch]) -> list[Change]:
    return [row for batch in batches for row in told(batch)]


def in_order(changes: list[Change]) -> list[tuple[int, list[Change]]]:
    """By version, in the order in which they have come: its changes, sorted."""
    versions = dict.fromkeys(row[3] for row in changes)
    assert [row[3] for row in changes] == [v for v in versions for row in changes if row[3] == v]
    return [(version, sorted((row for row in changes if row[3] == version), key=repr)) for version in versions]


@pytest.mark.parametrize(
    ("pieces", "rows_max"),
    [
        (PieceLimits(), 65_536),
        (PieceLimits(rows=1), 1),
        (PieceLimits(rows=2, readers=0), 2),
        (PieceLimits(rows=5, versions=1), 5),
        (PieceLimits(bytes=1, readers=1), 1),
        (PieceLimits(bytes=200, readers=0), 65_536),
    ],
    indirect=["pieces"],
)
def test_each_change_comes_once_in_pieces_of_any_size(client: Client, rows_max: int) -> None:
    """Also if the coordinator forgets its readers after each piece."""
    batches = until(client.subscribe("rows"), LAST)
    assert max(batch.num_rows for batch in batches) <= rows_max
    assert in_order(rows_of(batches)) == in_order(ALL)
    for number, batch in enumerate(batches):  # a consumer that remembers what a batch says goes on from there
        through = batch.schema.metadata.get(THROUGH)
        done = [row for row in rows_of(batches[: number + 1]) if through is not None and row[3] <= int(through)]
        rest = rows_of(until(client.subscribe("rows", since=None if through is None else int(through)), LAST))
        assert in_order(done + rest) == in_order(ALL)


@pytest.mark.parametrize("pieces", [PieceLimits(rows=1)], indirect=True)
def test_connections_that_are_cut_and_a_coordinator_that_restarts_cost_nothing(
    client: Client, cluster: Cluster
) -> None:
    subscription, rows = client.subscribe("rows"), []
    for number in range(len(ALL)):
        if number % 7 == 3:
            cluster.restart()
        elif number % 3 == 0:
            cut_connections(cluster.coordinator.port)
        rows += told(next(subscription))
    assert in_order(rows) == in_order(ALL)


@pytest.mark.parametrize("pieces", [PieceLimits(rows=1)], indirect=True)
def test_whatever_a_man_in_the_middle_does_each_change_comes_once(cluster: Cluster) -> None:
    with Middle(cluster.coordinator.address) as middle, connect(middle.address, TOKEN) as client:
        subscription = client.subscribe("rows")
        middle.tamper = harm = NowAndThen(random.Random(3), 12)
        batches = until(subscription, LAST)
        assert harm.done
    assert in_order(rows_of(batches)) == in_order(ALL)


def test_only_the_changes_of_some_keys(client: Client) -> None:
    found = rows_of(until(client.subscribe("rows", ["a", None]), LAST))
    assert in_order(found) == in_order([row for row in ALL if row[0] in ("a", None)])
    assert not rows_of(until(client.subscribe("rows", ["not there"], since=4), LAST))


def test_later_changes_alone_come_as_they_are_committed(client: Client, log: WrittenLog) -> None:
    subscription = client.subscribe("rows", since="now")
    assert (subscription.through, subscription.step(0.0)) == (LAST, None)
    later = [change(("a", 9), "insert", 15)]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(next, subscription)
        log.commit(16, later)
        batch = waiting.result(SECONDS_MAX)
    assert told(batch) == later
    assert batch.schema.metadata[THROUGH] == b"16"


def test_changes_that_are_gone_are_named(client: Client, pieces: ChangePieces, log: WrittenLog) -> None:
    log.commit(20, [change(("a", 1), "insert", 20)], begins=20)
    with pytest.raises(ChangesGone, match="oldest version that its log has is 20"):
        next(client.subscribe("rows", since=LAST))
    folded = ChangePosition(None, 1, Epoch(1))
    with pytest.raises(ChangesGone, match="subscribe anew"):
        pieces.piece({"view": "rows", "position": folded.to_json(), "keys": None, "wait_s": 0})
    assert told(next(client.subscribe("rows"))) == [change(("a", 1), "insert", 20)]


def test_what_is_refused(client: Client, pieces: ChangePieces) -> None:
    with pytest.raises(DeclarationError, match="since='yesterday'"):
        client.subscribe("rows", since="yesterday")
    with pytest.raises(UnknownView, match="no view"):
        client.subscribe("nowhere")
    with pytest.raises(UnknownView, match="changes=True"):
        next(client.subscribe("no_log"))
    start = ChangePosition().to_json()
    for keys in ("a", [-1], ["a"], [1 << 64]):
        with pytest.raises(ProtocolError, match="keys:"):
            pieces.piece({"view": "rows", "position": start, "keys": keys, "wait_s": 0})


def test_a_client_that_is_closed_ends_its_subscriptions(client: Client, cluster: Cluster) -> None:
    subscription = client.subscribe("rows", timeout=3600)
    assert told(next(subscription))
    cluster.coordinator.stop()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(next, subscription)  # it asks again and again: the coordinator is gone
        client.close()
        with pytest.raises(ClusterError):
            waiting.result(SECONDS_MAX)
