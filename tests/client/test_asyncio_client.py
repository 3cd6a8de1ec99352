"""The client for asyncio: it never blocks the loop, and leaves no threads behind."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from changes_kit import VIEW, WrittenLog, change
from client_kit import PLANES, ROUTES, Cluster, View
from server_kit import SECONDS_MAX, TOKEN
from tls_kit import IDENTITY

import upriver
from upriver.client.asyncio_client import AsyncClient
from upriver.errors import AccessDenied, ClusterError, UnknownView, UserError
from upriver.lake.lake import Lake
from upriver.protocol.lookups import ViewRoute
from upriver.runtime.change_pieces import ChangePieces


@pytest.fixture(params=[None, IDENTITY], ids=["plain", "tls"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    running = Cluster(2, tls=request.param)
    yield running
    running.stop()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), SECONDS_MAX))


def asking(cluster: Cluster, threads: int) -> Coroutine[Any, Any, AsyncClient]:
    return upriver.connect_async(cluster.coordinator.address, TOKEN, tls=cluster.trusted, threads=threads)


def own_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("upriver-async")]


def assert_no_threads_are_left() -> None:
    for thread in own_threads():
        thread.join(SECONDS_MAX)
    assert not own_threads()


def test_many_lookups_at_once_and_each_form_of_an_answer(cluster: Cluster) -> None:
    async def main() -> None:
        async with await upriver.connect_async(
            cluster.coordinator.address, TOKEN, tls=cluster.trusted, threads=4
        ) as client:
            keys = [f"N{number}" for number in range(60)]
            found = await asyncio.gather(*(client.lookup_one("planes", key) for key in keys))
            assert found == [{"tailnum": key, "flights": number} for number, key in enumerate(keys)]
            assert len(own_threads()) <= 4
            assert await client.lookup_one("planes", "not there") is None
            with pytest.raises(UserError, match="has 2 rows: use lookup"):
                await client.lookup_one("routes", ("EWR", 1))
            rows = await client.lookup_rows("routes", [("EWR", 1)])
            assert rows.to_polars().rows() == ROUTES.rows_of(("EWR", 1))
            assert rows.to_pandas().to_dict("records") == rows.to_pylist()
            assert (await client.lookup("planes", [None])).to_pylist() == [{"tailnum": None, "flights": -1}]
            assert (await client.key_schema("planes")) == PLANES.route.key_schema
            with pytest.raises(UnknownView):
                await client.lookup("nowhere", ["a"])
        with pytest.raises(ClusterError, match="closed"):
            await client.status()
        await client.close()

    run(main)
    assert_no_threads_are_left()


def test_a_cancelled_lookup_blocks_neither_the_loop_nor_later_ones(cluster: Cluster) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def hold(_: int) -> None:
        begun.set()
        goes_on.wait(SECONDS_MAX)

    for worker in cluster.workers.values():
        worker.before = hold

    async def main() -> None:
        async with await upriver.connect_async(
            cluster.coordinator.address, TOKEN, tls=cluster.trusted, threads=2
        ) as client:
            held = asyncio.create_task(client.lookup("planes", ["N1"]))
            await asyncio.to_thread(begun.wait, SECONDS_MAX)
            held.cancel()
            with pytest.raises(asyncio.CancelledError):
                await held
            assert (await client.status())["epoch"] is not None  # on the other thread
            goes_on.set()
            assert await client.lookup_one("planes", "N2") == {"tailnum": "N2", "flights": 2}

    run(main)
    assert_no_threads_are_left()


def test_a_refused_connection_leaves_no_thread(cluster: Cluster) -> None:
    async def main() -> None:
        with pytest.raises(AccessDenied):
            await upriver.connect_async(cluster.coordinator.address, "another", tls=cluster.trusted)

    run(main)
    assert_no_threads_are_left()


def test_changes_come_as_an_async_iterator(tmp_path: Path) -> None:
    log = WrittenLog(tmp_path / "lake", "rows")
    log.commit(1, [change(("a", 1), "insert", 1)])
    pieces = ChangePieces(Lake(log.root))
    cluster = Cluster(1, {"change_last": pieces.last}, {"changes": lambda asked, _: pieces.piece(asked)})
    cluster.views["rows"] = View(ViewRoute(("k",), VIEW), [])

    async def main() -> None:
        async with await upriver.connect_async(
            cluster.coordinator.address, TOKEN, tls=cluster.trusted, threads=1
        ) as client:
            subscriptions: list[AsyncIterator[Any]] = [client.subscribe("rows") for _ in range(3)]
            for version in (1, 2):
                batches = await asyncio.gather(*(anext(each) for each in subscriptions))
                assert [batch.column("_commit_version").to_pylist() for batch in batches] == [[version]] * 3
                log.commit(version + 1, [change(("a", version + 1), "insert", version + 1)])
            waiting = asyncio.ensure_future(anext(subscriptions[0]))
            assert (await waiting).column("n").to_pylist() == [3]
            waiting = asyncio.ensure_future(anext(subscriptions[0]))  # nothing will come
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await client.status()

    try:
        run(main)
    finally:
        pieces.stop()
        cluster.stop()
        log.release()
    assert_no_threads_are_left()
