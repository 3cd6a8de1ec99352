"""Which thread feeds a worker's machine: the loop, or, while that has nothing to do, a lookup's thread.

What waits for a worker's loop: all in order, and lookups ahead of it.
What a worker does when there is time: upqueries that rest go on when they have rested.
"""

import math
import queue
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lookup_kit import KeysAsked, Served
from machines_kit import FLOW, HALVES, KEYS, SEEN, TABLE, VNODES, Seen, announce, assign, meet, owners_with
from upquery_kit import HERE, Workers, keys_of_worker_0

from upriver.errors import ProtocolError, UpriverError
from upriver.hashing import Hashes, hash64
from upriver.ids import WorkerId
from upriver.lake.lake import LakeRecord, OwnedLake
from upriver.net.lookups import LookupConnection, LookupRequest
from upriver.protocol.lookups import LookupTerms
from upriver.protocol.messages import ForShare, FromWorker, Probe, Retire
from upriver.protocol.peers import Envelope, ForRegion
from upriver.protocol.worker_events import KeysRead, LookupGivenUp, ShareAction, ShareEvent, ShareHears
from upriver.runtime.worker_loop import (
    FILL_REST_S_MAX,
    REQUESTS_TURN_MAX,
    BackgroundTask,
    BackgroundTasks,
    Inbox,
    WorkerLoop,
)
from upriver.worker.upqueries import CROWD_KEYS
from upriver.worker.worker import WorkerMachine

LOOKUPS_MAX = 10_000
"""Lookups until one has found the loop at rest; the first one or two do not, if anything."""
ANSWER_S_MAX = 30.0
SENT_S_MAX = 5.0
"""Less than a lookup waits: what is sent with its end has come too late."""


class Kept(Seen):
    """Has each key in one epoch. Notes the threads that read it, and two that read it at once."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: set[str] = set()
        self.is_broken = False
        self._alone = threading.Lock()

    def lookup(self, hash64: Hashes, keys: pa.RecordBatch, rows_max: int | None = None) -> pa.RecordBatch:
        assert self._alone.acquire(blocking=False), "two threads feed the machine"
        try:
            if self.is_broken:
                raise ZeroDivisionError("a region that is broken")
            self.readers.add(threading.current_thread().name)
            names = keys.column(0).to_pylist()
            return pa.RecordBatch.from_pylist([{"k": name, "seen": [1]} for name in names], schema=SEEN)
        finally:
            self._alone.release()


class Nobody:
    """There are no peers."""

    def send(self, to: WorkerId, envelope: Envelope) -> None:
        raise AssertionError(f"{envelope} to {to}")

    def flush(self) -> None:
        pass


class Running:
    """A loop on a thread of its own."""

    def __init__(self, loop: WorkerLoop, region: Kept) -> None:
        self.loop = loop
        self.region = region
        self.said: list[FromWorker] = []
        self.thread = threading.Thread(target=loop.run, args=(self.said.extend, print, Nobody()), name="loop")
        self.served = Served(loop)

    def lookup(self, *keys: str) -> list[str]:
        names = pa.RecordBatch.from_arrays([pa.array(keys, pa.string())], names=["k"])
        asked = KeysAsked("seen", names, hash64(names.columns), together=len(keys) > 1, timeout=ANSWER_S_MAX)
        return list(self.served.look_up(asked).rows.column("k").to_pylist())


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with _lake(tmp_path) as lake:
        region = Kept()
        machine = WorkerMachine(lambda *_: region)
        machine.step(ForShare(flow=FLOW, message=assign()))
        running = Running(WorkerLoop(machine, lake, step_budget_s=0.005), region)
        running.thread.start()
        yield running
        running.loop.hear(Retire())
        running.thread.join(ANSWER_S_MAX)
        assert not running.thread.is_alive()
        running.served.stop()


@contextmanager
def _lake(directory: Path) -> Iterator[OwnedLake]:
    record = LakeRecord(VNODES, (TABLE,), {TABLE.name: (TABLE.key,)})
    lake = OwnedLake(str(directory / "lake"), record, {})
    try:
        yield lake
    finally:
        lake.release()


def until_a_caller_feeds(running: Running) -> None:
    """Look up until the loop was at rest for once."""
    for _ in range(LOOKUPS_MAX):
        running.lookup("a")
        if running.region.readers - {"loop"}:
            return
    raise AssertionError(f"{LOOKUPS_MAX} lookups, and the loop was never at rest")


def test_a_lookup_that_finds_the_loop_at_rest_is_answered_on_the_thread_of_its_connection(running: Running) -> None:
    until_a_caller_feeds(running)
    assert "upriver-lookups" in running.region.readers


def test_many_lookups_at_once_feed_the_machine_one_at_a_time(running: Running) -> None:
    """The region itself notices two."""
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda number: running.lookup(f"key {number}"), range(2_000)))
    assert found == [[f"key {number}"] for number in range(2_000)]


def test_a_region_that_breaks_as_it_is_read_fails_that_lookup_alone(running: Running) -> None:
    until_a_caller_feeds(running)
    running.region.is_broken = True
    with pytest.raises(ProtocolError, match="view 'seen': ZeroDivisionError: a region that is broken"):
        running.lookup("a")
    running.region.is_broken = False
    assert running.lookup("a") == ["a"]


def test_after_the_loop_has_ended_a_lookup_is_refused(running: Running) -> None:
    assert running.lookup("a", "b") == ["a", "b"]
    running.loop.hear(Retire())
    running.thread.join(ANSWER_S_MAX)
    with pytest.raises(UpriverError, match="retired"):
        running.lookup("a")


class AskedAsATurnEnds:
    """A client, whose requests come just as the loop has done all its work; and the channels to the peers."""

    def __init__(self, loop: WorkerLoop) -> None:
        self.sent = queue.SimpleQueue[Envelope]()
        self._loop = loop
        self._said = deque[Envelope]()
        self._requests = deque[LookupRequest]()

    def ask(self, request: LookupRequest) -> None:
        self._requests.append(request)
        self._loop.hear(Probe(probe=1))  # it has a turn

    def leave(self, connection: LookupConnection) -> None:
        self._loop.leave(connection)

    def send(self, to: WorkerId, envelope: Envelope) -> None:
        self._said.append(envelope)

    def flush(self) -> None:
        while self._said:
            self.sent.put(self._said.popleft())
        while self._requests:
            self._loop.ask(self._requests.popleft())


def test_a_lookup_that_comes_as_a_turn_ends_asks_a_peer_at_once(tmp_path: Path) -> None:
    with _lake(tmp_path) as lake:
        machine = WorkerMachine(lambda *_: Kept())
        machine.step(ForShare(flow=FLOW, message=assign(HALVES)))
        machine.step(meet(0, 1))
        machine.step(ForShare(flow=FLOW, message=announce(HALVES, owners_with(HALVES, v3=1))))
        loop = WorkerLoop(machine, lake, step_budget_s=0.005)
        client = AskedAsATurnEnds(loop)
        served, thread = Served(client), threading.Thread(target=loop.run, args=(lambda _: None, print, client))
        names = pa.RecordBatch.from_arrays([pa.array(KEYS[7][:1], pa.string())], names=["k"])
        thread.start()
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(served.look_up, KeysAsked.of("seen", names))
            sent = client.sent.get(timeout=SENT_S_MAX)
            assert isinstance(sent.content, ForRegion)
            loop.hear(Retire())
            with pytest.raises(UpriverError, match=r"keeps nothing|retired"):
                asked.result(ANSWER_S_MAX)
        thread.join(ANSWER_S_MAX)
        assert not thread.is_alive()
        served.stop()


def request(number: int) -> LookupRequest:
    keys = pa.RecordBatch.from_pydict({"k": [number]})
    terms = LookupTerms(number, 1, None, False, ANSWER_S_MAX)
    connection: Any = None  # no inbox answers
    return LookupRequest("v", keys, hash64(keys.columns), [terms], connection, 0.0, 1)


def numbers(requests: list[LookupRequest]) -> list[int]:
    return [request.lookups[0].number for request in requests]


def given_up(ticket: int) -> LookupGivenUp:
    return LookupGivenUp(ticket=ticket)


def test_events_come_in_their_order_and_the_waiting_thread_can_be_woken() -> None:
    inbox = Inbox()
    inbox.put(given_up(1))
    inbox.wake()
    inbox.put(given_up(2))
    assert [inbox.next(None) for _ in range(3)] == [given_up(1), None, given_up(2)]
    with pytest.raises(queue.Empty):
        inbox.next(0)


def test_requests_are_taken_together_and_apart_from_events() -> None:
    inbox = Inbox()
    inbox.put(given_up(1))
    for number in (7, 8):
        inbox.ask(request(number))
    assert inbox.has_requests
    assert numbers(inbox.requests()) == [7, 8]
    assert inbox.next(None) == given_up(1)
    assert not inbox.has_requests
    assert inbox.requests() == []


def test_only_so_many_requests_are_taken_at_once() -> None:
    inbox = Inbox()
    for number in range(REQUESTS_TURN_MAX + 2):
        inbox.ask(request(number))
    assert len(inbox.requests()) == REQUESTS_TURN_MAX
    assert numbers(inbox.requests()) == [REQUESTS_TURN_MAX, REQUESTS_TURN_MAX + 1]


class Paced(Workers):
    """Worker 0 has chores, which take the answers of its upqueries in."""

    def __init__(self) -> None:
        super().__init__()
        only_share: Any = self.machines[0]
        self.chores = BackgroundTasks(only_share, self._work, lambda: True)

    def _work(self, task: BackgroundTask) -> None:
        super().step(0, task.event if isinstance(task, ShareHears) else task)

    def step(self, worker: int, event: ShareEvent) -> list[ShareAction]:
        if not isinstance(event, KeysRead):
            return super().step(worker, event)
        self.chores.fill(ShareHears(flow=FLOW, event=event))
        return []


@pytest.fixture
def workers() -> Paced:
    return Paced()


def test_upqueries_that_rest_go_on_by_themselves(workers: Paced) -> None:
    first, *crowd, late = keys_of_worker_0(CROWD_KEYS + 2)
    workers.epoch(first, *crowd, late)
    for key in (first, *crowd):
        workers.look_up(0, key)
    workers.answer(0)
    workers.look_up(0, late)
    assert not workers.upqueries[0]
    assert workers.chores.due_in_s <= FILL_REST_S_MAX
    while not workers.chores.are_due:
        assert not workers.upqueries[0]
    workers.chores.do()
    assert workers.answer(0) == sorted([*crowd, late])


def test_nothing_is_due_for_a_single_question(workers: Paced) -> None:
    workers.look_up(0, HERE)
    workers.answer(0)
    assert not workers.chores.are_due
    assert workers.chores.due_in_s == math.inf
