"""Lookup streams: one round trip each, errors that leave the stream whole, and who may keep one."""

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from upriver.errors import AccessDenied, ClusterError, ProtocolError, RowError, WorkerLost
from upriver.shell.flight import FlightBase
from upriver.shell.lookup import IDLE_STREAMS_MAX, LOOKUP, Answered, LookupExchange, LookupStream, LookupStreams
from upriver.shell.remote import Connection, Remote
from upriver.shell.wire import decode_json, encode_json

TOKEN = "s3cret-t0ken"
SECONDS_MAX = 10.0
"""Seconds that a test waits for what must come at once."""
KEYS = pa.schema([("k", pa.string())])
ROWS = pa.schema([("k", pa.string()), ("at_least", pa.int64())])

VERSION = 3


def keys(*values: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.string())], schema=KEYS)


class Worker:
    """Gives back each key with the epoch asked for; some keys and views make it fail."""

    def __init__(self) -> None:
        self.asked: queue.Queue[tuple[str, int, int | None, bool, float]] = queue.Queue()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def lookup(self, view: str, keys: pa.RecordBatch, at_least: int | None, together: bool, timeout: float) -> Answered:
        self.asked.put((view, keys.num_rows, at_least, together, timeout))
        assert self.may_answer.wait(SECONDS_MAX)
        if "bad" in keys.column(0).to_pylist():
            raise RowError("division by zero")
        if "odd" in keys.column(0).to_pylist():
            return Answered(keys, 0, VERSION, False)
        epochs = pa.array([at_least] * keys.num_rows, pa.int64())
        rows = pa.RecordBatch.from_arrays([keys.column(0), epochs], schema=ROWS)
        return Answered(rows, at_least or 0, VERSION, True)


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def server(worker: Worker) -> Iterator[FlightBase]:
    with FlightBase(TOKEN, exchanges={LOOKUP: LookupExchange(worker.lookup)}) as running:
        yield running


@pytest.fixture
def streams(server: FlightBase) -> Iterator[LookupStreams]:
    opened = LookupStreams(Remote("coordinator:1", TOKEN))
    yield opened
    opened.close()


def borrow(streams: LookupStreams, server: FlightBase, view: str = "planes") -> LookupStream:
    return streams.borrow(server.address, view, KEYS, SECONDS_MAX)


def ask(stream: LookupStream, *values: str | None, at_least: int | None = None) -> list[str | None]:
    stream.ask(keys(*values), at_least, at_least == 2, SECONDS_MAX)
    answer = stream.answer()
    assert (answer.rows.schema, answer.epoch, answer.version) == (ROWS, at_least or 0, VERSION)
    found: list[str | None] = answer.rows.column(0).to_pylist()
    return found


def test_a_stream_answers_question_after_question(server: FlightBase, streams: LookupStreams, worker: Worker) -> None:
    stream = borrow(streams, server)
    for n in range(3):
        assert ask(stream, *"abc"[:n], None, at_least=n) == [*"abc"[:n], None]
        assert worker.asked.get(timeout=SECONDS_MAX) == ("planes", n + 1, n, n == 2, SECONDS_MAX)
    assert ask(stream, "x") == ["x"]
    streams.give_back(stream)


def test_an_error_is_an_answer_and_the_stream_goes_on(server: FlightBase, streams: LookupStreams) -> None:
    stream = borrow(streams, server)
    for _ in range(2):
        with pytest.raises(RowError, match=r"^division by zero$"):
            ask(stream, "bad")
        assert stream.is_in_step
        assert ask(stream, "good") == ["good"]
    with pytest.raises(ProtocolError, match="rows of another schema"):
        ask(stream, "odd")
    assert ask(stream, "good") == ["good"]
    streams.give_back(stream)
    assert borrow(streams, server) is stream
    streams.give_back(stream)


def test_what_a_worker_says_of_its_answer_comes_beside_the_rows(server: FlightBase) -> None:
    with Connection(Remote(server.address, TOKEN)) as connection:
        writer, reader = connection.exchange(LOOKUP, "planes", timeout=SECONDS_MAX)
        writer.begin(KEYS)
        writer.write_with_metadata(keys("a"), encode_json({"at_least": 7, "together": False, "timeout": 1.0}))
        beside = {"epoch": 7, "map_version": VERSION, "relayed": True}
        assert decode_json(reader.read_chunk().app_metadata) == beside
        writer.write_metadata(encode_json({"at_least": None, "timeout": 1.0}))
        assert decode_json(reader.read_chunk().app_metadata)["message"] == "view 'planes': a lookup without keys"
        writer.done_writing()
        with pytest.raises(StopIteration):
            reader.read_chunk()
        writer.close()


def test_a_stream_that_was_given_back_is_lent_again(server: FlightBase, streams: LookupStreams) -> None:
    lent = [borrow(streams, server), borrow(streams, server), borrow(streams, server, "routes")]
    assert len(set(lent)) == 3
    streams.give_back(lent[1])
    lent.append(borrow(streams, server, "airlines"))
    assert lent[3] not in lent[:3]
    assert borrow(streams, server) is lent[1]
    for stream in lent:
        streams.give_back(stream)


def test_a_stream_that_waits_for_an_answer_is_not_lent_again(
    server: FlightBase, streams: LookupStreams, worker: Worker
) -> None:
    stream = borrow(streams, server)
    stream.ask(keys("late"), None, False, SECONDS_MAX)
    streams.give_back(stream)
    assert not stream.is_in_step
    fresh = borrow(streams, server)
    assert fresh is not stream
    assert ask(fresh, "a") == ["a"]
    streams.give_back(fresh)


def test_only_so_many_idle_streams_are_kept(server: FlightBase, streams: LookupStreams) -> None:
    lent = {borrow(streams, server) for _ in range(IDLE_STREAMS_MAX + 2)}
    for stream in lent:
        streams.give_back(stream)
    again = [borrow(streams, server) for _ in range(IDLE_STREAMS_MAX + 1)]
    assert len(lent.intersection(again)) == IDLE_STREAMS_MAX
    for stream in again:
        streams.give_back(stream)


def test_a_waiting_answer_can_be_cancelled(server: FlightBase, streams: LookupStreams, worker: Worker) -> None:
    worker.may_answer.clear()
    stream = borrow(streams, server)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, stream, "a")
        worker.asked.get(timeout=SECONDS_MAX)
        stream.cancel()
        with pytest.raises(WorkerLost, match=server.address):
            answer.result(SECONDS_MAX)
    worker.may_answer.set()
    streams.give_back(stream)


def test_a_worker_that_has_gone_is_lost(server: FlightBase, streams: LookupStreams) -> None:
    stream, idle = borrow(streams, server), borrow(streams, server)
    streams.give_back(idle)
    server.stop()
    with pytest.raises(WorkerLost, match=server.address):
        ask(stream, "a")
    assert not stream.is_in_step
    streams.give_back(stream)
    with pytest.raises(WorkerLost, match=server.address):
        ask(idle, "a")
    streams.keep_only([])
    with pytest.raises(WorkerLost, match=server.address):
        borrow(streams, server)


def test_closed_streams_are_not_lent(server: FlightBase, streams: LookupStreams) -> None:
    stream = borrow(streams, server)
    streams.close()
    with pytest.raises(ClusterError, match="closed"):
        borrow(streams, server)
    streams.give_back(stream)


def test_a_stranger_gets_no_stream(server: FlightBase) -> None:
    strange = LookupStreams(Remote("coordinator:1", "wrong"))
    with pytest.raises(AccessDenied):
        borrow(strange, server)
    strange.close()
