"""Natural batching at the client: lookups that are made while a request is under way go together in the next one, and
each has its own answer, error and time limit."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from client_kit import VNODES
from server_kit import SECONDS_MAX, client_of, keys_of
from tls_kit import IDENTITY

from upriver.client.async_lines import AsyncLines
from upriver.client.key_plans import KeyPlan
from upriver.client.lookup_lines import (
    REQUEST_KEYS_MAX,
    REQUEST_LOOKUPS_MAX,
    KeyRequest,
    ThreadLine,
    ThreadLines,
    WorkerAnswer,
)
from upriver.client.lookups import KeySet
from upriver.errors import ClusterError, RowError, UpriverError, WorkerLost
from upriver.hashing import hash64
from upriver.ids import Epoch, WorkerId
from upriver.net.handshake import Purpose
from upriver.net.line import Frame, Line
from upriver.net.lookups import LookupConnection, LookupRequest, LookupService
from upriver.net.server import Server
from upriver.net.tls import TlsIdentity
from upriver.protocol.lookups import Answered, Routing, ViewRoute
from upriver.vnodes import VnodeMap

ROUTE = ViewRoute(("k",), pa.schema([("k", pa.int64()), ("twice", pa.int64())]))
HERE = WorkerId(0)
THREADS = 40
Shown = TlsIdentity | None
"""What the worker shows."""


class Scripted:
    """A worker that does with each request what the test says."""

    def __init__(self) -> None:
        self.requests: queue.Queue[LookupRequest] = queue.Queue()
        self.left: queue.Queue[LookupConnection] = queue.Queue()

    def ask(self, request: LookupRequest) -> None:
        self.requests.put(request)

    def leave(self, connection: LookupConnection) -> None:
        self.left.put(connection)

    def next(self) -> "Came":
        return Came(self.requests.get(timeout=SECONDS_MAX))


class Came:
    """A request that has come. keys: of each of its lookups."""

    def __init__(self, request: LookupRequest) -> None:
        self.request = request
        ends = np.cumsum([lookup.keys for lookup in request.lookups]).tolist()
        values = request.keys.column(0).to_pylist()
        self.keys = [values[end - lookup.keys : end] for lookup, end in zip(request.lookups, ends, strict=True)]

    def answer(self, *places: int, epoch: int = 1) -> "Came":
        """Answer these lookups, or all."""
        places = places or tuple(range(len(self.keys)))
        values = [key for place in places for key in self.keys[place]]
        twice = [None if value is None else 2 * value for value in values]
        rows = pa.RecordBatch.from_arrays(
            [pa.array(values, pa.int64()), pa.array(twice, pa.int64())], schema=ROUTE.schema
        )
        ends = np.cumsum([len(self.keys[place]) for place in places])
        self.request.connection.answer(self.request, places, rows, ends, Answered(epoch, 0))
        self.request.connection.flush()
        return self

    def refuse(self, place: int, error: UpriverError) -> "Came":
        self.request.connection.refuse(self.request, place, error)
        self.request.connection.flush()
        return self

    def take(self) -> "Came":
        self.request.connection.take(self.request)
        self.request.connection.flush()
        return self


@pytest.fixture
def worker() -> Scripted:
    return Scripted()


@pytest.fixture(params=[None, IDENTITY], ids=["plain", "tls"])
def tls(request: pytest.FixtureRequest) -> Shown:
    given: Shown = request.param
    return given


@pytest.fixture
def server(worker: Scripted, tls: Shown) -> Iterator[Server]:
    with Server(keys_of(tls), {Purpose.LOOKUPS: LookupService(worker)}) as running:
        yield running


class Asking:
    """Lookups of one key or more at one worker."""

    def __init__(self, server: Server) -> None:
        self.address = server.address
        vnode_map = VnodeMap.initial(VNODES, [HERE])
        self._plan = KeyPlan(ROUTE, Routing(vnode_map, {HERE: server.address}, {"v": ROUTE}, Epoch(0)))

    def of(self, *keys: int | None, seconds: float = SECONDS_MAX, at_least: int | None = None) -> KeyRequest:
        if len(keys) == 1:
            short = self._plan.short(keys[0])
            assert short is not None
            return self._request(short, seconds, at_least)
        batch = pa.RecordBatch.from_arrays([pa.array(keys, pa.int64())], schema=ROUTE.key_schema)
        return self._request(KeySet.of(batch), seconds, at_least)

    def _request(self, keys: Any, seconds: float, at_least: int | None) -> KeyRequest:
        return KeyRequest("v", ROUTE, keys, at_least, False, time.monotonic() + seconds, HERE, self.address)


def rows_of(request: KeyRequest) -> list[tuple[Any, ...]]:
    """The rows that have come. Raises the error that has."""
    if isinstance(request.outcome, WorkerAnswer):
        return list(zip(*(column.to_pylist() for column in request.outcome.batch.columns), strict=True))
    assert request.outcome is not None
    raise request.outcome


def twice(*keys: int | None) -> list[tuple[Any, ...]]:
    return [(key, None if key is None else 2 * key) for key in keys]


class Threads:
    """Lookups on threads of one client."""

    def __init__(self, server: Server, tls: Shown = None, recheck: Callable[[], None] = lambda: None) -> None:
        self.asking = Asking(server)
        self.lines = ThreadLines(client_of("coordinator:1", tls), recheck)
        self._pool = ThreadPoolExecutor(THREADS)

    def begin(self, *keys: int | None, **limits: Any) -> "Future[list[tuple[Any, ...]]]":
        request = self.asking.of(*keys, **limits)
        return self._pool.submit(self._ask, request)

    def _ask(self, request: KeyRequest) -> list[tuple[Any, ...]]:
        self.lines.ask([request])
        return rows_of(request)

    def wait_queued(self, lookups: int) -> None:
        """Until so many lookups wait for the request under way."""
        (line,) = self.lines._lines.values()
        give_up_at = time.monotonic() + SECONDS_MAX
        while len(line._waiting) < lookups:
            assert time.monotonic() < give_up_at
            threading.Event().wait(0.001)

    def close(self) -> None:
        self.lines.close()
        self._pool.shutdown()


@pytest.fixture
def threads(server: Server, tls: Shown) -> Iterator[Threads]:
    running = Threads(server, tls)
    yield running
    running.close()


def result(lookup: "Future[list[tuple[Any, ...]]]") -> list[tuple[Any, ...]]:
    return lookup.result(SECONDS_MAX)


def test_lookups_made_while_a_request_is_under_way_are_the_next_one(threads: Threads, worker: Scripted) -> None:
    first = threads.begin(1)
    came = worker.next()
    others = [threads.begin(key) for key in (2, None, 4)] + [threads.begin(5, 6, None)]
    threads.wait_queued(4)
    assert worker.requests.empty()
    came.answer().take()
    assert result(first) == twice(1)
    came = worker.next()
    assert sorted(came.keys, key=str) == [[2], [4], [5, 6, None], [None]]
    came.answer().take()
    assert [result(lookup) for lookup in others] == [twice(2), twice(None), twice(4), twice(5, 6, None)]


def test_one_that_waits_at_the_worker_delays_no_other(threads: Threads, worker: Scripted) -> None:
    """Its request is taken, so the next ones go; answers come in any order."""
    late = threads.begin(1)
    first = worker.next().take()
    for key in (2, 3):
        early = threads.begin(key)
        worker.next().answer().take()
        assert result(early) == twice(key)
    assert not late.done()
    first.answer()
    assert result(late) == twice(1)


def test_each_has_its_own_error_and_its_own_answer(threads: Threads, worker: Scripted) -> None:
    first = threads.begin(0)
    came = worker.next()
    lookups = {key: threads.begin(key) for key in (1, 2, 3)}
    threads.wait_queued(3)
    came.answer().take()
    came = worker.next()
    places = {keys[0]: place for place, keys in enumerate(came.keys)}
    came.refuse(places[2], RowError("division by zero")).answer(places[3]).answer(places[1]).take()
    assert (result(first), result(lookups[1]), result(lookups[3])) == (twice(0), twice(1), twice(3))
    with pytest.raises(RowError, match="division by zero"):
        result(lookups[2])


def test_each_has_its_own_terms(threads: Threads, worker: Scripted) -> None:
    threads.begin(0)
    came = worker.next()
    threads.begin(1, at_least=7, seconds=5.0)
    threads.begin(2, seconds=50.0)
    threads.wait_queued(2)
    came.answer().take()
    came = worker.next()
    terms = {keys[0]: lookup for keys, lookup in zip(came.keys, came.request.lookups, strict=True)}
    assert {key: each.at_least for key, each in terms.items()} == {1: 7, 2: None}
    assert terms[1].timeout <= 5.0 < terms[2].timeout <= 50.0
    came.answer().take()


def test_one_whose_time_is_over_ends_alone(threads: Threads, worker: Scripted) -> None:
    """The worker says nothing at all: the client gives up the one, and its late answer is dropped."""
    waits = threads.begin(1)
    came = worker.next()
    over = threads.begin(2, seconds=-1.0)  # and the second in which the worker might still say so
    with pytest.raises(WorkerLost, match="has not answered in time"):
        result(over)
    came.answer().take()
    assert result(waits) == twice(1)
    later = threads.begin(3)
    came = worker.next()
    assert came.keys == [[3]]  # what was given up is not sent
    came.answer().take()
    assert result(later) == twice(3)


def test_a_thread_that_reads_for_others_hands_on_when_it_ends(threads: Threads, worker: Scripted) -> None:
    reads = threads.begin(1)
    came = worker.next().take()
    others = [threads.begin(key) for key in range(2, 10)]
    held: list[Came] = []
    while sum(len(each.keys) for each in held) < len(others):
        held.append(worker.next().take())
    came.answer()
    assert result(reads) == twice(1)
    for each in reversed(held):
        each.answer()
    assert [result(lookup) for lookup in others] == [twice(key) for key in range(2, 10)]


def test_a_request_has_only_so_many_lookups_and_keys(threads: Threads, worker: Scripted) -> None:
    asking, lines = threads.asking, threads.lines
    first = threads.begin(-1)
    came = worker.next()
    (line,) = lines._lines.values()
    large = asking.of(*range(REQUEST_KEYS_MAX + 10))
    requests = [*(asking.of(key) for key in range(REQUEST_LOOKUPS_MAX + 5)), large]
    for request in requests:
        line.ask(request)
    came.answer().take()
    assert result(first) == twice(-1)
    reads = threads.begin(-2)  # a thread that reads, to the end
    sizes: list[int] = []
    while sum(sizes) < len(requests) + 1:
        came = worker.next()
        sizes.append(len(came.keys))
        came.answer().take()
    assert sizes == [REQUEST_LOOKUPS_MAX, 5, 1, 1]
    assert result(reads) == twice(-2)
    assert rows_of(large) == twice(*range(REQUEST_KEYS_MAX + 10))


def test_a_lost_worker_is_told_to_all_that_wait_and_reached_again(threads: Threads, worker: Scripted) -> None:
    lookups = [threads.begin(1)]
    came = worker.next()
    lookups.append(threads.begin(2))
    threads.wait_queued(1)
    came.request.connection._stream.cut()
    for lookup in lookups:
        with pytest.raises(WorkerLost):
            result(lookup)
    again = threads.begin(3)
    worker.next().answer().take()
    assert result(again) == twice(3)


class LosesItsStream(ThreadLine):
    """While a thread has a frame in its hands, another one loses the stream, and a third one asks."""

    def __init__(self, asking: "Asking", tls: Shown) -> None:
        super().__init__(client_of(asking.address, tls), lambda: None)
        self.first, self.later = asking.of(1), asking.of(3)
        self._has_lost = False

    def _take_frame(self, line: Line, frame: Frame) -> None:
        if not self._has_lost:
            self._has_lost = True
            self._lose_stream(self._stream, WorkerLost("it has not read in time"))
            self.ask(self.later)
        super()._take_frame(line, frame)


def test_a_frame_of_a_lost_stream_is_no_answer_to_what_waits_now(server: Server, worker: Scripted, tls: Shown) -> None:
    line = LosesItsStream(Asking(server), tls)
    line.ask(line.first)
    worker.next().answer().take()
    line.wait(line.first)
    with pytest.raises(WorkerLost, match="in time"):
        rows_of(line.first)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(line.wait, line.later)
        worker.next().answer().take()
        waiting.result(SECONDS_MAX)
    assert rows_of(line.later) == twice(3)
    line.end(ClusterError("the client is closed"))


def test_an_interrupt_ends_one_lookup_and_no_other(server: Server, worker: Scripted, tls: Shown) -> None:
    """It strikes one of the two threads that wait, perhaps the one that reads for both."""
    interrupts = [KeyboardInterrupt()]

    def interrupt() -> None:
        if interrupts:
            raise interrupts.pop()

    threads = Threads(server, tls, interrupt)
    lookups = [threads.begin(1)]
    came = [worker.next().take()]
    lookups.append(threads.begin(2))
    came.append(worker.next().take())
    done, (left,) = wait(lookups, SECONDS_MAX, FIRST_COMPLETED)
    assert [type(lookup.exception()) for lookup in done] == [KeyboardInterrupt]
    for each in came:
        each.answer()
    assert result(left) in (twice(1), twice(2))
    threads.close()


def test_closing_ends_all_that_wait(threads: Threads, worker: Scripted) -> None:
    lookups = [threads.begin(1)]
    worker.next()
    lookups += [threads.begin(2), threads.begin(3)]
    threads.wait_queued(2)
    threads.lines.close()
    for lookup in lookups:
        with pytest.raises(ClusterError, match="closed"):
            result(lookup)
    with pytest.raises(ClusterError, match="closed"):
        result(threads.begin(4))


def test_an_answer_that_is_no_answer_is_an_error_and_the_line_is_opened_anew(
    threads: Threads, worker: Scripted
) -> None:
    lookup = threads.begin(1)
    came = worker.next()
    rows = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], schema=ROUTE.schema)
    connection, number = came.request.connection, came.request.lookups[0].number
    head = {"view": "v", "epoch": 1, "map_version": 0, "answers": [(number, 2)]}
    connection._stream.write(connection._line.encoded(head, rows)[0])
    with pytest.raises(UpriverError, match="other rows than it says"):
        result(lookup)
    again = threads.begin(3)
    worker.next().answer().take()
    assert result(again) == twice(3)


# In an event loop


def run(main: Callable[[AsyncLines], Coroutine[Any, Any, None]], tls: Shown) -> None:
    async def with_lines() -> None:
        lines = AsyncLines(client_of("coordinator:1", tls), asyncio.to_thread, lambda: None)
        try:
            await asyncio.wait_for(main(lines), SECONDS_MAX)
        finally:
            lines.close()

    asyncio.run(with_lines())


async def look_up(lines: AsyncLines, request: KeyRequest) -> list[tuple[Any, ...]]:
    await lines.ask([request])
    return rows_of(request)


async def turn() -> None:
    """Let the tasks that have begun go on."""
    turned = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turned.set_result, None)
    await turned


async def came_of(worker: Scripted) -> Came:
    return await asyncio.to_thread(worker.next)


def begin(lines: AsyncLines, asking: Asking, keys: Sequence[int | None]) -> "list[asyncio.Task[Any]]":
    return [asyncio.create_task(look_up(lines, asking.of(key))) for key in keys]


def test_tasks_share_requests_as_threads_do(server: Server, worker: Scripted, tls: Shown) -> None:
    asking = Asking(server)

    async def main(lines: AsyncLines) -> None:
        (first,) = begin(lines, asking, [1])
        came = await came_of(worker)
        before = threading.active_count()
        others = begin(lines, asking, range(2, 60))
        await turn()
        came.answer().take()
        assert await first == twice(1)
        came = await came_of(worker)
        assert came.keys == [[key] for key in range(2, 60)]
        came.answer().take()
        assert await asyncio.gather(*others) == [twice(key) for key in range(2, 60)]
        assert threading.active_count() <= before

    run(main, tls)


def test_a_cancelled_task_disturbs_no_other(server: Server, worker: Scripted, tls: Shown) -> None:
    asking = Asking(server)

    async def main(lines: AsyncLines) -> None:
        (sent,) = begin(lines, asking, [1])
        came = await came_of(worker)
        queued, other = begin(lines, asking, [2, 3])
        await turn()
        for cancelled in (sent, queued):
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        came.answer().take()
        came = await came_of(worker)
        assert came.keys == [[3]]
        came.answer().take()
        assert await other == twice(3)

    run(main, tls)


def test_a_task_that_waits_delays_no_other_and_has_its_own_error(server: Server, worker: Scripted, tls: Shown) -> None:
    asking = Asking(server)

    async def main(lines: AsyncLines) -> None:
        (late,) = begin(lines, asking, [1])
        first = (await came_of(worker)).take()
        (early,) = begin(lines, asking, [2])
        (await came_of(worker)).answer().take()
        assert await early == twice(2)
        first.refuse(0, RowError("division by zero"))
        with pytest.raises(RowError, match="division by zero"):
            await late

    run(main, tls)


def test_a_task_s_time_is_over_although_the_worker_says_nothing(server: Server, worker: Scripted, tls: Shown) -> None:
    asking = Asking(server)

    async def main(lines: AsyncLines) -> None:
        with pytest.raises(WorkerLost, match="has not answered in time"):
            await look_up(lines, asking.of(1, seconds=-1.0))
        (await came_of(worker)).answer().take()
        (later,) = begin(lines, asking, [2])
        (await came_of(worker)).answer().take()
        assert await later == twice(2)

    run(main, tls)


def test_a_large_request_is_written_as_the_worker_reads(server: Server, worker: Scripted, tls: Shown) -> None:
    asking, many = Asking(server), range(500_000)

    async def main(lines: AsyncLines) -> None:
        large = asyncio.create_task(look_up(lines, asking.of(*many)))
        (await came_of(worker)).answer().take()
        assert await large == twice(*many)

    run(main, tls)


def test_threads_write_large_requests_too(threads: Threads, worker: Scripted) -> None:
    many = range(500_000)
    for _ in range(2):  # also while another thread reads
        lookup = threads.begin(*many)
        worker.next().answer().take()
        assert result(lookup) == twice(*many)
        threads.begin(1)
        worker.next().take()


def test_hashes_go_with_the_keys(threads: Threads, worker: Scripted) -> None:
    first = threads.begin(1)
    came = worker.next()
    others = [threads.begin(2), threads.begin(3, 4), threads.begin(None)]
    threads.wait_queued(3)
    came.answer().take()
    came = worker.next()
    assert np.array_equal(came.request.hash64, hash64(came.request.keys.columns))
    came.answer().take()
    assert [result(lookup) for lookup in (first, *others)] == [twice(1), twice(2), twice(3, 4), twice(None)]
