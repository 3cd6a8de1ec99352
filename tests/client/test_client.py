"""The client against real servers: right rows in the right order, whatever moves, dies, freezes or is refused.

Many threads of one client, whose lookups are asked together, against real servers.
"""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from client_kit import EPOCH, PLANES, ROUTES, VNODES, Cluster, Row, View, Worker
from hypothesis import given, settings
from hypothesis import strategies as st
from rows_kit import rows_of
from server_kit import SECONDS_MAX, TOKEN

from upriver.client.client import Client, connect
from upriver.errors import (
    AccessDenied,
    ClusterError,
    DeclarationError,
    KeyTypeError,
    NotReady,
    RowError,
    StaleView,
    UnknownView,
    UserError,
    WaitTimeout,
    WorkerLost,
    WrongOwner,
)
from upriver.hashing import hash64
from upriver.ids import Epoch, VnodeId, WorkerId
from upriver.net.line import HEAD_BYTES_MAX, KEYS_BYTES_MAX
from upriver.protocol.freshness import FreshnessReport, TableFreshness
from upriver.protocol.lookups import ViewRoute
from upriver.vnodes import VnodeMap, vnodes_of


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    running = Cluster(2)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def shared() -> Iterator[Client]:
    """A client of three workers, for tests that change nothing."""
    running = Cluster(3)
    with running.connect() as connected:
        yield connected
    running.stop()


# What a client loads

MACHINERY = {
    *("duckdb", "sqlglot", "pyspark", "py4j", "upriver.app", "upriver.spark", "upriver.doors", "upriver.runtime"),
    *("upriver.lake", "upriver.coordinator", "upriver.worker", "upriver.migration", "upriver.partial"),
    *("upriver.sql", "upriver.engine"),
}
"""What a client does without. The contracts of ``.importlinter`` do not see what a library loads."""


@pytest.mark.parametrize(
    "code",
    [
        "upriver.connect",
        "upriver.connect_async",
        """
with upriver.connect(*sys.argv[1:]) as client:
    assert client.lookup_rows("planes", ["N7"]).to_pylist() == [{"tailnum": "N7", "flights": 7}]
    assert client.lookup("routes", [("JFK", 1), ("EWR", 2)]).num_rows
    assert client.status() and client.explain("planes")
""",
        """
import asyncio
async def main():
    async with await upriver.connect_async(*sys.argv[1:]) as client:
        assert await client.lookup_one("planes", "N7") == {"tailnum": "N7", "flights": 7}
asyncio.run(main())
""",
    ],
    ids=["connect", "connect_async", "lookup", "lookup_async"],
)
def test_a_client_is_light(cluster: Cluster, code: str) -> None:
    code = f"import sys, upriver\n{code}\nprint(*sys.modules)"
    command = [sys.executable, "-c", code, cluster.coordinator.address, TOKEN]
    loaded = set(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split())
    assert "upriver.client.client" in loaded
    assert not loaded & MACHINERY


# What a lookup gives


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 150).map(lambda number: f"N{number}"))))
def test_a_lookup_gives_the_rows_of_each_key_once_in_the_order_asked(shared: Client, keys: list[str | None]) -> None:
    table = shared.lookup("planes", keys)
    assert table.schema == PLANES.route.schema
    assert rows_of(table) == [row for key in dict.fromkeys(keys) for row in PLANES.rows_of((key,))]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["EWR", "JFK", "LGA", None]), st.sampled_from([1, 2, 3, None]))))
def test_so_does_one_of_several_columns_and_rows_for_each_key(shared: Client, keys: list[Row]) -> None:
    table = shared.lookup("routes", keys)
    assert table.schema == ROUTES.route.schema
    assert rows_of(table) == [row for key in dict.fromkeys(keys) for row in ROUTES.rows_of(key)]


@pytest.mark.parametrize(
    "keys",
    [
        [("JFK", 1), ("EWR", 2)],
        [{"dest": 1, "origin": "JFK"}, {"dest": 2, "origin": "EWR"}],
        pa.table({"origin": ["JFK", "EWR"], "dest": [1, 2]}),
        pa.RecordBatch.from_pydict({"dest": [1, 2], "origin": ["JFK", "EWR"]}),
    ],
)
def test_keys_come_in_many_forms(shared: Client, keys: Any) -> None:
    assert rows_of(shared.lookup("routes", keys)) == ROUTES.rows_of(("JFK", 1)) + ROUTES.rows_of(("EWR", 2))


def test_many_keys_are_found_at_once(shared: Client) -> None:
    keys = [f"N{number}" for number in range(50_000)]
    assert rows_of(shared.lookup("planes", pa.array(keys))) == PLANES.rows[:-1]


def test_an_epoch_that_is_reached_may_be_asked_for(shared: Client) -> None:
    assert rows_of(shared.lookup("planes", ["N7"], at_least=EPOCH)) == [("N7", 7)]


def test_an_answer_says_which_epoch_it_reflects(shared: Client) -> None:
    rows, epoch = shared.lookup_with_epoch("planes", ["N1", "N2", "N3"], at_least=EPOCH)
    assert (rows_of(rows), epoch) == (rows_of(shared.lookup("planes", ["N1", "N2", "N3"])), EPOCH)
    assert shared.lookup_with_epoch("planes", [])[1] == 0


def test_status_and_explain_are_the_coordinator_s(shared: Client) -> None:
    assert shared.status() == {"epoch": EPOCH}
    assert shared.explain("planes") == {"view": "planes", "partial": False}


def test_a_view_s_key_is_told(shared: Client) -> None:
    assert shared.key_schema("routes") == pa.schema([("origin", pa.string()), ("dest", pa.int32())])
    with pytest.raises(UnknownView, match="there are: planes, routes"):
        shared.key_schema("plains")


# What a lookup refuses


def test_an_unknown_view_is_refused_with_the_views_there_are(shared: Client) -> None:
    with pytest.raises(UnknownView, match=r"^no view 'plains'; there are: planes, routes$"):
        shared.lookup("plains", ["N1"])


def test_a_table_in_place_of_a_view_is_refused_with_the_views_that_read_it(cluster: Cluster, client: Client) -> None:
    cluster.views["planes"] = replace(PLANES, route=replace(PLANES.route, tables=("flights",)))
    read = TableFreshness("finished", 0.0, "", None)
    cluster.freshness = FreshnessReport(Epoch(EPOCH), dict.fromkeys(("flights", "crews"), read))
    with pytest.raises(UnknownView, match=r"^no view 'flights': it is a table, .* These read it: planes$"):
        client.lookup("flights", ["N1"])
    with pytest.raises(UnknownView, match=r"^no view 'crews': it is a table, .* None reads it; there are: planes, "):
        client.lookup("crews", ["N1"])


def test_a_view_that_is_new_is_found(cluster: Cluster, client: Client) -> None:
    del cluster.views["planes"]
    with cluster.connect() as early:
        cluster.views["planes"] = PLANES
        assert rows_of(early.lookup("planes", ["N7"])) == [("N7", 7)]


def test_keys_of_a_wrong_type_ask_no_worker(cluster: Cluster, client: Client) -> None:
    with pytest.raises(KeyTypeError, match="key column 'tailnum' is of type string; given was 7 of type int"):
        client.lookup("planes", ["N1", 7])
    assert all(worker.asked.empty() for worker in cluster.workers.values())


def test_a_worker_s_error_is_raised_at_once_and_spoils_nothing(cluster: Cluster, client: Client) -> None:
    keys = [f"N{number}" for number in range(20)]

    def fail(_: int) -> None:
        raise RowError("division by zero")

    cluster.workers[WorkerId(0)].before = fail
    with pytest.raises(RowError, match=r"^division by zero$"):
        client.lookup("planes", keys)
    cluster.workers[WorkerId(0)].before = lambda _: None
    assert rows_of(client.lookup("planes", keys[::-1])) == PLANES.rows[19::-1]
    assert cluster.workers[WorkerId(0)].asked.qsize() == 2


def test_a_worker_that_does_not_know_a_new_view_yet_is_asked_again(cluster: Cluster, client: Client) -> None:
    refusals = [UnknownView.among("planes", {"routes": ()})] * 2

    def refuse(_: int) -> None:
        if refusals:
            raise refusals.pop()

    cluster.workers[WorkerId(0)].before = refuse
    assert rows_of(client.lookup("planes", [f"N{number}" for number in range(20)])) == PLANES.rows[:20]
    assert refusals == []


def test_a_view_that_was_dropped_is_refused_with_the_views_there_are(cluster: Cluster, client: Client) -> None:
    assert len(client.lookup("planes", ["N1"])) == 1

    def refuse(_: int) -> None:
        raise UnknownView.among("planes", {"routes": ()})

    del cluster.views["planes"]
    for worker in cluster.workers.values():
        worker.before = refuse
    with pytest.raises(UnknownView, match=r"^no view 'planes'; there are: routes$"):
        client.lookup("planes", ["N1"])


NUMBERED = View(ViewRoute(("number",), pa.schema([("number", pa.int64()), ("tailnum", pa.string())])), [(1, "N1")])
"""Another view, by another key."""


def test_a_view_that_was_declared_anew_with_other_columns_is_read_as_it_is_now(
    cluster: Cluster, client: Client
) -> None:
    assert rows_of(client.lookup("planes", ["N1"])) == [("N1", 1)]
    schema = pa.schema([("tailnum", pa.string()), ("seats", pa.int32())])
    cluster.views["planes"] = View(ViewRoute(("tailnum",), schema), [("N1", 180)])
    assert client.lookup("planes", iter(["N1"])).schema == schema
    assert rows_of(client.lookup("planes", ["N1"])) == [("N1", 180)]


def test_so_is_one_that_was_declared_anew_with_another_key(cluster: Cluster, client: Client) -> None:
    assert rows_of(client.lookup("planes", ["N1"])) == [("N1", 1)]
    cluster.views["planes"] = NUMBERED
    assert rows_of(client.lookup("planes", [1])) == [(1, "N1")]
    with pytest.raises(KeyTypeError, match="int64"):
        client.lookup("planes", ["N1"])


def test_keys_for_the_view_as_it_was_are_refused(cluster: Cluster, client: Client) -> None:
    assert rows_of(client.lookup("planes", ["N1"])) == [("N1", 1)]
    cluster.views["planes"] = NUMBERED
    with pytest.raises(KeyTypeError, match="key column 'number' is of type int64"):
        client.lookup("planes", ["N1"])


def test_an_epoch_that_does_not_come_is_a_timeout(shared: Client) -> None:
    with pytest.raises(WaitTimeout, match=r"view 'planes': epoch 6 is not there yet after 10 s: the last .* is 5"):
        shared.lookup("planes", ["N1"], at_least=EPOCH + 1)


def test_keys_of_several_workers_are_all_as_of_one_epoch(cluster: Cluster, client: Client) -> None:
    behind, ahead = (cluster.workers[WorkerId(number)] for number in range(2))
    ahead.epoch = behind.comes_to = EPOCH + 2
    keys = [f"N{number}" for number in range(20)]
    rows, epoch = client.lookup_with_epoch("planes", keys)
    assert rows_of(rows) == PLANES.rows[:20]
    assert epoch == EPOCH + 2
    assert (behind.asked.qsize(), ahead.asked.qsize()) == (2, 1)  # the worker that was behind is asked once more
    assert behind.together
    assert ahead.together


def test_a_worker_that_stays_behind_is_a_timeout(cluster: Cluster, client: Client) -> None:
    cluster.workers[WorkerId(1)].epoch = EPOCH + 1
    with pytest.raises(WaitTimeout, match=f"view 'planes': epoch {EPOCH + 1} was not reached"):
        client.lookup("planes", [f"N{number}" for number in range(20)])


def test_a_single_key_need_not_wait_for_the_end_of_an_epoch(cluster: Cluster, client: Client) -> None:
    client.lookup("planes", ["N1", "N1"])
    assert {worker.together for worker in cluster.workers.values()} <= {None, False}


# Workers that move, go, and do not answer


def test_all_workers_are_asked_at_the_same_time(cluster: Cluster, client: Client) -> None:
    meeting = threading.Barrier(2)
    for worker in cluster.workers.values():
        worker.before = lambda _: meeting.wait(SECONDS_MAX)  # neither answers before both are asked
    assert len(client.lookup("planes", [f"N{number}" for number in range(20)])) == 20


def test_keys_that_have_moved_are_asked_of_their_new_owner(cluster: Cluster, client: Client) -> None:
    keys = [f"N{number}" for number in range(100)]
    assert len(client.lookup("planes", keys)) == 100
    cluster.vnode_map = cluster.vnode_map.moved({VnodeId(vnode): WorkerId(1) for vnode in range(VNODES)})
    assert rows_of(client.lookup("planes", keys)) == PLANES.rows[:100]
    asked = cluster.workers[WorkerId(1)].asked
    assert [asked.get(timeout=SECONDS_MAX) for _ in range(asked.qsize())][-1] < 100  # what was answered stays so


def test_keys_that_a_worker_had_to_ask_another_for_are_asked_of_that_one_by_and_by(
    cluster: Cluster, client: Client
) -> None:
    old, new = cluster.workers[WorkerId(0)], cluster.workers[WorkerId(1)]
    asked = [f"N{number}" for number in range(100)]
    owners = cluster.vnode_map.owners_of(vnodes_of(hash64([pa.array(asked)], len(asked)), VNODES))
    keys = [key for key, owner in zip(asked, owners, strict=True) if owner == old.number]
    cluster.vnode_map = VnodeMap(cluster.vnode_map.version, (new.number,) * VNODES)  # while keys move, no newer one
    old.relays = True
    give_up_at = time.monotonic() + SECONDS_MAX
    while new.asked.empty() and time.monotonic() < give_up_at:
        assert rows_of(client.lookup("planes", keys)) == [row for row in PLANES.rows if row[0] in keys]
    assert old.asked.qsize() > 0
    assert new.asked.get(timeout=SECONDS_MAX) == len(keys)


def test_a_worker_that_comes_back_elsewhere_is_found(cluster: Cluster, client: Client) -> None:
    keys = [f"N{number}" for number in range(20)]
    assert len(client.lookup("planes", keys)) == 20
    cluster.workers[WorkerId(0)].stop()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.lookup, "planes", keys)
        cluster.workers[WorkerId(0)] = Worker(WorkerId(0), cluster)
        cluster.addresses[WorkerId(0)] = cluster.workers[WorkerId(0)].server.address
        assert rows_of(answer.result(SECONDS_MAX)) == PLANES.rows[:20]


def test_a_worker_that_does_not_come_back_is_named(cluster: Cluster, client: Client) -> None:
    address = cluster.addresses[WorkerId(0)]
    cluster.workers[WorkerId(0)].stop()
    keys = [f"N{number}" for number in range(20)]
    with pytest.raises(WorkerLost, match=f"view 'planes': no answer from worker 0 in 0.2 s: {address}"):
        client.lookup("planes", keys, timeout=0.2)
    del cluster.addresses[WorkerId(0)]
    client.refresh()
    with pytest.raises(WorkerLost, match=r"view 'planes': no answer from worker 0 in 0\.2 s: worker 0 is not up"):
        client.lookup("planes", keys, timeout=0.2)


def test_a_worker_that_always_refuses_is_a_timeout(cluster: Cluster, client: Client) -> None:
    def refuse(_: int) -> None:
        raise WrongOwner("not mine yet")

    for worker in cluster.workers.values():
        worker.before = refuse
    with pytest.raises(WaitTimeout, match=r"view 'planes': no answer from worker \d in 0\.2 s: not mine yet"):
        client.lookup("planes", ["N1"], timeout=0.2)


def test_a_worker_that_hangs_is_given_up(cluster: Cluster, client: Client) -> None:
    wake = threading.Event()
    for worker in cluster.workers.values():
        worker.before = lambda _: wake.wait(SECONDS_MAX)
    with pytest.raises(WorkerLost, match=r"view 'planes': no answer from worker \d in 0\.1 s"):
        client.lookup("planes", ["N1"], timeout=0.1)
    wake.set()
    assert len(client.lookup("planes", ["N1"])) == 1


# Connecting and closing


@pytest.mark.parametrize("prefix", ["", "grpc://"])
def test_an_address_may_have_a_scheme(cluster: Cluster, prefix: str) -> None:
    with connect(prefix + cluster.coordinator.address, TOKEN) as client:
        assert client.status() == {"epoch": EPOCH}


def test_a_stranger_is_refused(cluster: Cluster) -> None:
    with pytest.raises(AccessDenied):
        connect(cluster.coordinator.address, "wrong")


def test_an_app_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(ClusterError, match=address):
            connect(address, TOKEN, timeout=0.2)
    with pytest.raises(
        ClusterError, match=rf"{address} cannot be reached: .+\. Check that the app runs, that this is its "
    ):
        connect(address, TOKEN)
    with pytest.raises(UserError, match="host:port"):
        connect("nowhere", TOKEN)


def test_a_closed_client_says_so(cluster: Cluster) -> None:
    client = cluster.connect()
    assert len(client.lookup("planes", ["N1"])) == 1
    client.close()
    client.close()
    for use in (client.status, lambda: client.lookup("planes", ["N1"])):
        with pytest.raises(ClusterError, match="closed"):
            use()


def test_closing_ends_lookups_that_wait(cluster: Cluster, client: Client) -> None:
    wake = threading.Event()
    for worker in cluster.workers.values():
        worker.before = lambda _: wake.wait(SECONDS_MAX)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.lookup, "planes", [f"N{number}" for number in range(20)])
        for worker in cluster.workers.values():
            assert worker.asked.get(timeout=SECONDS_MAX)
        client.close()
        with pytest.raises(ClusterError):
            answer.result(SECONDS_MAX)
    wake.set()


def test_an_idle_client_does_not_keep_workers_from_stopping(cluster: Cluster, client: Client) -> None:
    assert len(client.lookup("planes", [f"N{number}" for number in range(20)])) == 20
    cluster.stop()
    with pytest.raises(ClusterError):
        client.lookup("planes", ["N1"])


PROCESS = """
import sys
sys.modules["pyspark"] = None  # importing it fails
import upriver
client = upriver.connect(sys.argv[1], sys.argv[2])
print(client.lookup("planes", ["N7", "N9"]).to_pylist())
"""


def test_a_process_without_spark_looks_up_and_ends(cluster: Cluster) -> None:
    command = [sys.executable, "-c", PROCESS, cluster.coordinator.address, TOKEN]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "[{'tailnum': 'N7', 'flights': 7}, {'tailnum': 'N9', 'flights': 9}]\n"
    assert (ended.returncode, ended.stderr) == (0, "")


# How fresh an answer is


def fresh(age_s: float | None = 0.5, lacks: str | None = None, state: str = "running") -> FreshnessReport:
    """What a coordinator tells whose view ``planes`` reads a table ``flights``."""
    return FreshnessReport(Epoch(EPOCH), {"flights": TableFreshness(state, age_s, "its source has failed: why", lacks)})


@pytest.fixture
def dated() -> Iterator[Cluster]:
    """Two workers, and a view of a table of which the coordinator knows."""
    running = Cluster(2)
    route = ViewRoute(PLANES.route.key, PLANES.route.schema, ("flights",))
    running.views["planes"] = View(route, PLANES.rows)
    running.freshness = fresh()
    yield running
    running.stop()


def test_a_lookup_before_the_app_is_ready_waits_unless_older_rows_are_allowed(dated: Cluster) -> None:
    dated.freshness = fresh(lacks="epoch 2 of 5 is reflected")
    with dated.connect() as client:
        for timeout in (0, 0.05):
            said = rf"view 'planes' is not ready after {timeout} s: table 'flights': epoch 2 of 5 is reflected\. Give a"
            with pytest.raises(NotReady, match=said):
                client.lookup("planes", ["N1"], timeout=timeout)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.lookup, "planes", ["N1"], timeout=SECONDS_MAX)
            for _ in range(3):
                dated.asked_freshness.get(timeout=SECONDS_MAX)
            dated.freshness = fresh()
            assert rows_of(waiting.result(SECONDS_MAX)) == [("N1", 1)]
        dated.freshness = fresh(lacks="epoch 2 of 5 is reflected")
    with dated.connect() as client:
        assert rows_of(client.lookup("planes", ["N1"], allow_warming=True)) == [("N1", 1)]
        dated.freshness = fresh()
        assert rows_of(client.lookup("planes", ["N1"])) == [("N1", 1)]


def test_an_answer_tells_of_itself_in_the_metadata_of_its_schema(dated: Cluster) -> None:
    for worker, epoch in zip(dated.workers.values(), (EPOCH, EPOCH), strict=True):
        worker.epoch, worker.committed_at = epoch, 60.0
    with dated.connect() as client:
        metadata = client.lookup("planes", [f"N{number}" for number in range(20)]).schema.metadata
        assert metadata[b"upriver.epoch"] == b"%d" % EPOCH
        assert metadata[b"upriver.committed_at"] == b"1970-01-01T00:01:00+00:00"
        assert metadata[b"upriver.sources"] == b"running"
        assert 0.5 <= float(metadata[b"upriver.age_s"]) < SECONDS_MAX
        assert client.lookup("planes", []).schema.metadata[b"upriver.epoch"] == b"0"


def test_an_answer_that_may_be_older_than_allowed_is_refused(dated: Cluster) -> None:
    dated.freshness = fresh(age_s=31.0, state="failed")
    with dated.connect() as client:
        with pytest.raises(StaleView, match=r"3\d\.\d s old, and at most 30 s are allowed: table 'flights'"):
            client.lookup("planes", ["N1"], max_age=30)
        found = client.lookup("planes", ["N1"], max_age=300)
        assert rows_of(found) == [("N1", 1)]
        assert found.schema.metadata[b"upriver.sources"] == b"failed: flights"
        with pytest.raises(UserError, match="max_age"):
            client.lookup("planes", ["N1"], max_age=-1)


def test_an_answer_of_an_epoch_before_the_one_that_was_told_is_not_taken(dated: Cluster) -> None:
    worker_epochs = [worker.epoch for worker in dated.workers.values()]
    dated.freshness = replace(fresh(), epoch=Epoch(EPOCH + 1))
    for worker in dated.workers.values():
        worker.comes_to = EPOCH + 1
    with dated.connect() as client:
        assert client.lookup_with_epoch("planes", ["N1"], max_age=60)[1] == EPOCH + 1
    assert worker_epochs == [EPOCH, EPOCH]


def test_an_epoch_that_is_not_there_yet_is_told_with_the_last_one(dated: Cluster) -> None:
    with (
        dated.connect() as client,
        pytest.raises(WaitTimeout, match=f"epoch 999 is not there yet after 1 s: the last .* is {EPOCH}$"),
    ):
        client.lookup("planes", ["N1"], at_least=999, timeout=1)


def test_more_keys_than_a_worker_takes_at_once_are_refused_before_they_are_sent(cluster: Cluster) -> None:
    one = b"x" * (KEYS_BYTES_MAX - HEAD_BYTES_MAX)
    keys = pa.array([one.decode()], pa.large_string())
    with (
        cluster.connect() as client,
        pytest.raises(
            DeclarationError, match=r"view 'planes': 1 keys of 267,386,\d+ bytes are too many for one lookup"
        ),
    ):
        client.lookup("planes", keys)
    assert all(worker.asked.empty() for worker in cluster.workers.values())


THREADS = 24
"""Many more than go by themselves."""


def test_many_threads_may_look_up_at_once(client: Client) -> None:
    def look_up(thread: int) -> None:
        for number in range(thread, 100, 8):
            keys = [f"N{number}", "N0"]
            assert rows_of(client.lookup("planes", keys)) == list(dict.fromkeys([(f"N{number}", number), ("N0", 0)]))
            assert rows_of(client.lookup("planes", keys[:1])) == [(f"N{number}", number)]
            assert rows_of(client.lookup("routes", [("JFK", number % 4)])) == ROUTES.rows_of(("JFK", number % 4))
            with pytest.raises(UnknownView):
                client.lookup("plains", keys)

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(look_up, range(THREADS))) == [None] * THREADS


def test_a_lookup_that_is_asked_with_others_has_their_errors_not(cluster: Cluster, client: Client) -> None:
    """One worker refuses every lookup of more than one key."""

    def refuse(keys: int) -> None:
        if keys > 1:
            raise RowError(f"{keys} keys")

    cluster.workers[WorkerId(0)].before = refuse

    def look_up(thread: int) -> list[Row]:
        return [row for number in range(50) for row in rows_of(client.lookup("planes", [f"N{thread + number}"]))]

    with ThreadPoolExecutor(THREADS) as pool:
        for thread, rows in enumerate(pool.map(look_up, range(THREADS))):
            assert rows == PLANES.rows[thread : thread + 50]


# Where the app is


def test_address_and_token_come_from_the_environment_unless_they_are_given(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "token"
    held.write_text(f"{TOKEN}\n")
    monkeypatch.setenv("UPRIVER_ADDRESS", cluster.coordinator.address)
    monkeypatch.setenv("UPRIVER_TOKEN_FILE", str(held))
    monkeypatch.delenv("UPRIVER_TOKEN", raising=False)
    with connect() as client:
        assert client.routing().epoch == EPOCH
    monkeypatch.setenv("UPRIVER_TOKEN", "another")
    with pytest.raises(AccessDenied):
        connect()
    with connect(cluster.coordinator.address, TOKEN) as client:
        assert client.routing().epoch == EPOCH


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "no address: give app.address, host:port, the app's root, or set UPRIVER_ADDRESS"),
        ({"UPRIVER_ADDRESS": "h:1"}, "no token: give app.token, or set UPRIVER_TOKEN or UPRIVER_TOKEN_FILE"),
        (
            {"UPRIVER_ADDRESS": "h:1", "UPRIVER_TOKEN_FILE": "/nowhere"},
            "UPRIVER_TOKEN_FILE='/nowhere': the token",
        ),
    ],
)
def test_what_the_environment_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], said: str
) -> None:
    for name in ("UPRIVER_ADDRESS", "UPRIVER_TOKEN", "UPRIVER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=said):
        connect()
