"""Lookup streams: one round trip each, errors that leave the stream whole, which callers may have one and keep one."""

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from server_kit import KEYS, SECONDS_MAX, TOKEN, client_of, cut_connections

from upriver.client.lookups import FRESH_S, IDLE_STREAMS_MAX, LookupStream, LookupStreams
from upriver.errors import AccessDenied, ClusterError, RowError, WorkerLost
from upriver.hashing import hash64
from upriver.net.byte_stream import ByteStream
from upriver.net.gate import Places
from upriver.net.handshake import Purpose
from upriver.net.line import ANSWER_TERMS, LOOKUP_TERMS, Line
from upriver.net.lookups import LookupService
from upriver.net.remote import Remote, dial
from upriver.net.server import Caller, Server
from upriver.protocol.lookups import Answered, KeysAsked

KEY = pa.schema([("k", pa.string())])
ROWS = pa.schema([("k", pa.string()), ("at_least", pa.int64())])

VERSION = 3
FORTY_TWOS = np.full(3, 42, np.uint64)


def keys(*values: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.string())], schema=KEY)


class Worker:
    """Gives back each key with the epoch asked for; some keys and views make it fail."""

    def __init__(self) -> None:
        self.asked: queue.Queue[tuple[str, int, int | None, bool, float]] = queue.Queue()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def lookup(self, wanted: KeysAsked) -> Answered:
        view, keys, at_least = wanted.view, wanted.keys, wanted.at_least
        assert np.array_equal(wanted.hash64, hash64(keys.columns))
        self.asked.put((view, keys.num_rows, at_least, wanted.together, wanted.timeout))
        assert self.may_answer.wait(SECONDS_MAX)
        if "bad" in keys.column(0).to_pylist():
            raise RowError("division by zero")
        if view == "bare":
            return Answered(keys, 0, VERSION, False, False)
        epochs = pa.array([at_least] * keys.num_rows, pa.int64())
        rows = pa.RecordBatch.from_arrays([keys.column(0), epochs], schema=ROWS)
        return Answered(rows, at_least or 0, VERSION, True, True)


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def server(worker: Worker) -> Iterator[Server]:
    with lookup_server(worker) as running:
        yield running


def lookup_server(worker: Worker, places: Places | None = None) -> Server:
    return Server(KEYS, {Purpose.LOOKUPS: LookupService(worker.lookup)}, places=places)


@pytest.fixture
def streams(server: Server) -> Iterator[LookupStreams]:
    opened = LookupStreams(client_of("coordinator:1"))
    yield opened
    opened.close()


def borrow(streams: LookupStreams, server: Server) -> LookupStream:
    return streams.borrow(server.address, SECONDS_MAX)


def wanted(view: str, keys: pa.RecordBatch, at_least: int | None = None, together: bool = False) -> KeysAsked:
    return KeysAsked(view, keys, hash64(keys.columns), at_least, together, SECONDS_MAX)


def ask(stream: LookupStream, *values: str | None, at_least: int | None = None) -> list[str | None]:
    stream.ask(wanted("planes", keys(*values), at_least, at_least == 2))
    answer = stream.answer()
    assert (answer.rows.schema, answer.epoch, answer.version) == (ROWS, at_least or 0, VERSION)
    found: list[str | None] = answer.rows.column(0).to_pylist()
    return found


def test_a_stream_answers_question_after_question(server: Server, streams: LookupStreams, worker: Worker) -> None:
    stream = borrow(streams, server)
    for n in range(3):
        assert ask(stream, *"abc"[:n], None, at_least=n) == [*"abc"[:n], None]
        assert worker.asked.get(timeout=SECONDS_MAX) == ("planes", n + 1, n, n == 2, SECONDS_MAX)
    assert ask(stream, "x") == ["x"]
    streams.return_stream(stream)


def test_an_error_is_an_answer_and_the_stream_goes_on(server: Server, streams: LookupStreams) -> None:
    stream = borrow(streams, server)
    for _ in range(2):
        with pytest.raises(RowError, match=r"^division by zero$"):
            ask(stream, "bad")
        assert stream.is_in_step
        assert ask(stream, "good") == ["good"]
    streams.return_stream(stream)
    assert borrow(streams, server) is stream
    streams.return_stream(stream)


def test_views_of_different_schemas_take_turns_on_one_stream(server: Server, streams: LookupStreams) -> None:
    stream = borrow(streams, server)
    for _ in range(2):
        assert ask(stream, "a") == ["a"]
        stream.ask(wanted("bare", keys("b")))
        assert stream.answer() == Answered(keys("b"), 0, VERSION, False, False)
    numbers = pa.RecordBatch.from_arrays([pa.array([3])], names=["k"])  # the view has another key now
    stream.ask(wanted("bare", numbers))
    assert stream.answer().rows == numbers
    streams.return_stream(stream)


def test_large_questions_and_answers_come_whole(server: Server, streams: LookupStreams) -> None:
    stream = borrow(streams, server)
    many = [f"key {number}" for number in range(300_000)]
    assert ask(stream, *many) == many
    assert ask(stream) == []
    streams.return_stream(stream)


def test_a_stream_that_was_given_back_is_lent_again(server: Server, streams: LookupStreams) -> None:
    lent = [borrow(streams, server), borrow(streams, server), borrow(streams, server)]
    assert len(set(lent)) == 3
    streams.return_stream(lent[1])
    assert borrow(streams, server) is lent[1]
    for stream in lent:
        streams.return_stream(stream)


def test_a_stream_that_waits_for_an_answer_is_not_lent_again(
    server: Server, streams: LookupStreams, worker: Worker
) -> None:
    stream = borrow(streams, server)
    stream.ask(wanted("planes", keys("late")))
    streams.return_stream(stream)
    assert not stream.is_in_step
    fresh = borrow(streams, server)
    assert fresh is not stream
    assert ask(fresh, "a") == ["a"]
    streams.return_stream(fresh)


def test_only_so_many_idle_streams_are_kept(server: Server, streams: LookupStreams) -> None:
    lent = {borrow(streams, server) for _ in range(IDLE_STREAMS_MAX + 2)}
    for stream in lent:
        streams.return_stream(stream)
    again = [borrow(streams, server) for _ in range(IDLE_STREAMS_MAX + 1)]
    assert len(lent.intersection(again)) == IDLE_STREAMS_MAX
    for stream in again:
        streams.return_stream(stream)


def test_a_waiting_answer_can_be_cancelled(server: Server, streams: LookupStreams, worker: Worker) -> None:
    worker.may_answer.clear()
    stream = borrow(streams, server)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, stream, "a")
        worker.asked.get(timeout=SECONDS_MAX)
        stream.cancel("has had its time")
        with pytest.raises(WorkerLost, match=server.address):
            answer.result(SECONDS_MAX)
    worker.may_answer.set()
    streams.return_stream(stream)


def test_a_worker_that_has_gone_is_lost(server: Server, streams: LookupStreams) -> None:
    stream, idle = borrow(streams, server), borrow(streams, server)
    streams.return_stream(idle)
    server.stop()
    with pytest.raises(WorkerLost, match=server.address):
        ask(stream, "a")
    assert not stream.is_in_step
    streams.return_stream(stream)
    with pytest.raises(WorkerLost, match=server.address):
        ask(idle, "a")
    streams.keep_only([])
    with pytest.raises(WorkerLost, match=server.address):
        borrow(streams, server)


def test_closed_streams_are_not_lent(server: Server, streams: LookupStreams) -> None:
    stream = borrow(streams, server)
    streams.close()
    with pytest.raises(ClusterError, match="closed"):
        borrow(streams, server)
    streams.return_stream(stream)


def test_a_stranger_gets_no_stream(server: Server) -> None:
    strange = LookupStreams(Remote.parse("coordinator:1", "wrong"))
    with pytest.raises(AccessDenied):
        borrow(strange, server)
    strange.close()


def test_tls_is_refused(server: Server) -> None:
    """Workers have none: what is meant to be secret would go as it is."""
    secret = LookupStreams(Remote.parse("coordinator:1", TOKEN, b"PEM"))
    with pytest.raises(ClusterError, match="TLS"):
        borrow(secret, server)
    secret.close()


def test_only_so_many_are_let_in(worker: Worker) -> None:
    server = lookup_server(worker, Places(clients=2))
    streams = LookupStreams(client_of("coordinator:1"))
    lent = [borrow(streams, server), borrow(streams, server)]
    assert [ask(stream, "a") for stream in lent] == [["a"], ["a"]]
    with pytest.raises(ClusterError, match=r"2 client connections .*ulimit -n"):
        borrow(streams, server)
    assert [ask(stream, "a") for stream in lent] == [["a"], ["a"]]
    streams.close()
    for stream in lent:
        streams.return_stream(stream)
    server.stop()


def test_a_stream_that_the_worker_has_closed_is_not_lent_again(server: Server, streams: LookupStreams) -> None:
    stream = borrow(streams, server)
    assert ask(stream, "a") == ["a"]
    assert stream.may_be_used(FRESH_S)
    cut_connections(server.port)
    assert not stream.may_be_used(FRESH_S)
    streams.return_stream(stream)


def opened(server: Server) -> tuple[ByteStream, Line]:
    stream, _ = dial(client_of(server.address), Purpose.LOOKUPS, SECONDS_MAX)
    return stream, Line(stream, ANSWER_TERMS)


QUESTION = {"view": "planes", "at_least": 0, "together": False, "timeout": 1.0}


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (b"\x02\0\0\0" + bytes(12) + b"no", "no JSON"),
        (b"\x02" + bytes(7) + b"\x01" + bytes(7) + b"{}x", "malformed"),
        (b"\x00\x00\x08\x00" + bytes(12) + b"[" * (1 << 19), "nested too deeply"),
    ],
    ids=["a head that is no JSON", "a batch of no view", "JSON nested deeply"],
)
def test_a_frame_that_makes_no_sense_is_refused_and_the_line_goes_on(server: Server, frame: bytes, said: str) -> None:
    stream, line = opened(server)
    for _ in range(2):
        stream.write(frame)
        answer = line.receive()
        assert answer is not None
        assert said in answer.head["message"]
        line.send(QUESTION, keys("a"))
        answer = line.receive()
        assert answer is not None
        assert answer.batch is not None
    line.close()


@pytest.mark.parametrize("frame", [b"\xff" * 16, b"\x09\0\0\0"], ids=["sizes that cannot be", "a beginning"])
def test_what_is_no_frame_ends_the_line_and_nothing_else(server: Server, streams: LookupStreams, frame: bytes) -> None:
    caller, line = opened(server)
    caller.write(frame)
    caller.end_writing()
    answer = line.receive()
    assert answer is None or "too large" in answer.head["message"]
    line.close()
    stream = borrow(streams, server)
    assert ask(stream, "a") == ["a"]
    streams.return_stream(stream)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"at_least": "7"}, "at_least='7': give a whole number, not a str"),
        ({"at_least": 7.5}, "at_least=7.5: give a whole number, not a float"),
        ({"timeout": None}, "timeout=None: give a number of seconds, not a NoneType"),
        ({"timeout": -1}, "timeout=-1: give a number of seconds, 0 or more"),
        ({"together": 1}, "view 'planes', together 1: a lookup is of a view by name, together or not"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_before_the_worker_hears_of_it(
    server: Server, worker: Worker, wrong: dict[str, object], said: str
) -> None:
    _, line = opened(server)
    line.send({"view": "planes", "at_least": None, "together": False, "timeout": 1.0, **wrong}, keys("a"))
    answer = line.receive()
    assert answer is not None
    assert answer.head["message"] == said
    assert worker.asked.empty()
    line.close()


def test_a_question_without_keys_is_refused_and_the_line_goes_on(server: Server) -> None:
    _, line = opened(server)
    line.send({"view": "planes", "at_least": None, "together": False, "timeout": 1.0})
    answer = line.receive()
    assert answer is not None
    assert answer.head == {"error": "ProtocolError", "message": "view 'planes': a lookup without keys"}
    assert answer.batch is None
    line.send({"view": "planes", "at_least": 7, "together": False, "timeout": 1.0}, keys("a"))
    answer = line.receive()
    assert answer is not None
    beside, rows, _ = answer
    told = {name: beside[name] for name in ("view", "epoch", "map_version", "relayed", "held_up")}
    assert told == {"view": "planes", "epoch": 7, "map_version": VERSION, "relayed": True, "held_up": True}
    assert rows == pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array([7])], schema=ROWS)
    line.close()


@pytest.mark.parametrize("said", [1, 3])
def test_hashes_of_other_keys_than_are_asked_for_are_refused(server: Server, worker: Worker, said: int) -> None:
    _, line = opened(server)
    line.send({"view": "planes", "at_least": 7, "together": False, "timeout": 1.0}, keys("a", "b"), FORTY_TWOS[:said])
    answer = line.receive()
    assert answer is not None
    assert "bytes of hashes for 2 rows" in answer.head["message"]
    assert worker.asked.empty()
    line.close()


def test_an_answer_that_breaks_off_is_a_lost_worker(worker: Worker) -> None:
    class Broken:
        def serve(self, caller: Caller) -> None:
            Line(caller.stream, LOOKUP_TERMS).receive()
            caller.stream.write(b"\x09\0\0\0")

        def stop(self) -> None:
            """Nothing is left to say."""

    with Server(KEYS, {Purpose.LOOKUPS: Broken()}) as server:
        stream = LookupStream(client_of(server.address), SECONDS_MAX)
        stream.ask(wanted("planes", keys("a")))
        with pytest.raises(WorkerLost, match=server.address):
            stream.answer()
        assert not stream.is_in_step
        stream.close()


def test_a_server_that_stops_ends_its_lines_and_can_be_stopped_again(server: Server) -> None:
    _, line = opened(server)
    line.send({"view": "planes", "at_least": None, "together": False, "timeout": 1.0}, keys("a"))
    assert line.receive() is not None
    server.stop()
    assert line.receive() is None
    server.stop()
    line.close()
