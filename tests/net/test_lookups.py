"""Lookups on the wire: each lookup of a request has its own answer, errors leave the line whole, what makes no sense is
refused."""

import queue
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from lookup_kit import Answering, Given, KeysAsked, LookupStream, RawLine, answer_on, refusal_on
from server_kit import KEYS, SECONDS_MAX, client_of

from upriver.errors import AccessDenied, ClusterError, RowError, WorkerLost
from upriver.hashing import hash64
from upriver.net.frames import Traffic
from upriver.net.gate import CallerGate, Places
from upriver.net.handshake import Purpose
from upriver.net.line import Frame
from upriver.net.lookups import LOOKUPS_MAX, PIECE_BYTES, LookupService
from upriver.net.remote import Remote
from upriver.net.server import Server
from upriver.protocol.lookups import LookupTerms

KEY = pa.schema([("k", pa.string())])
ROWS = pa.schema([("k", pa.string()), ("at_least", pa.int64())])

VERSION = 3
FORTY_TWOS = np.full(3, 42, np.uint64)


def keys(*values: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.string())], schema=KEY)


class Worker:
    """Gives back each key with the epoch asked for; some keys and views make it fail, and some keys wait."""

    def __init__(self) -> None:
        self.asked: queue.Queue[tuple[str, int, int | None, bool, float]] = queue.Queue()
        self.may_answer = threading.Event()

    def lookup(self, wanted: KeysAsked) -> Given:
        view, keys, at_least = wanted.view, wanted.keys, wanted.at_least
        assert np.array_equal(wanted.hash64, hash64(keys.columns))
        self.asked.put((view, keys.num_rows, at_least, wanted.together, wanted.timeout))
        values = keys.column(0).to_pylist()
        if "late" in values:
            assert self.may_answer.wait(SECONDS_MAX)
        if "bad" in values:
            raise RowError("division by zero")
        if view == "bare":
            return Given.of(keys, 0, VERSION)
        epochs = pa.array([at_least] * keys.num_rows, pa.int64())
        rows = pa.RecordBatch.from_arrays([keys.column(0), epochs], schema=ROWS)
        return Given.of(rows, at_least or 0, VERSION, relayed=True, held_up=True)


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def server(worker: Worker) -> Iterator[Server]:
    with lookup_server(worker) as running:
        yield running


@pytest.fixture
def stream(server: Server) -> Iterator[LookupStream]:
    opened = LookupStream(client_of(server.address), SECONDS_MAX)
    yield opened
    opened.close()


def lookup_server(worker: Worker, gate: CallerGate | None = None) -> Server:
    return Server(KEYS, {Purpose.LOOKUPS: LookupService(Answering(worker.lookup))}, gate=gate)


def wanted(view: str, keys: pa.RecordBatch, at_least: int | None = None, together: bool = False) -> KeysAsked:
    return KeysAsked.of(view, keys, at_least, together)


def ask(stream: LookupStream, *values: str | None, at_least: int | None = None) -> list[str | None]:
    stream.ask(wanted("planes", keys(*values), at_least, at_least == 2))
    given = stream.answer()
    assert (given.rows.schema, given.answered.epoch, given.answered.version) == (ROWS, at_least or 0, VERSION)
    found: list[str | None] = given.rows.column(0).to_pylist()
    return found


def test_a_line_answers_lookup_after_lookup(stream: LookupStream, worker: Worker) -> None:
    for n in range(3):
        assert ask(stream, *"abc"[:n], None, at_least=n) == [*"abc"[:n], None]
        assert worker.asked.get(timeout=SECONDS_MAX) == ("planes", n + 1, n, n == 2, SECONDS_MAX)
    assert ask(stream, "x") == ["x"]


def test_an_error_is_an_answer_and_the_line_goes_on(stream: LookupStream) -> None:
    for _ in range(2):
        with pytest.raises(RowError, match=r"^division by zero$"):
            ask(stream, "bad")
        assert ask(stream, "good") == ["good"]


def test_views_of_different_schemas_take_turns_on_one_line(stream: LookupStream) -> None:
    for _ in range(2):
        assert ask(stream, "a") == ["a"]
        stream.ask(wanted("bare", keys("b")))
        assert stream.answer() == Given.of(keys("b"), 0, VERSION)
    numbers = pa.RecordBatch.from_arrays([pa.array([3])], names=["k"])  # the view has another key now
    stream.ask(wanted("bare", numbers))
    assert stream.answer().rows == numbers


def test_large_requests_and_answers_come_whole(stream: LookupStream) -> None:
    many = [f"key {number}" for number in range(600_000)]
    assert keys(*many).nbytes > PIECE_BYTES
    assert ask(stream, *many) == many
    assert ask(stream) == []


def test_lookups_of_one_request_are_answered_each_by_itself(stream: LookupStream, worker: Worker) -> None:
    """One waits, one fails, and one has no rows: the others have their answers all the same."""
    parts = [("a", "b"), ("late",), ("bad", "c"), (), ("d",)]
    terms = [LookupTerms(number, len(part), number, False, 1.0) for number, part in enumerate(parts, 1)]
    batch = keys(*(key for part in parts for key in part))
    stream.line.send({"view": "planes", "lookups": terms}, batch, hash64(batch.columns))
    found: dict[int, object] = {}
    while len(found) < len(parts):
        frame = answer_on(stream.line)
        assert frame is not None
        found |= outcomes(frame)
        if len(found) == len(parts) - 1:
            assert 2 not in found
            worker.may_answer.set()
    rows = {number: [(key, number) for key in part] for number, part in enumerate(parts, 1)}
    assert found == {**rows, 3: "division by zero"}


def outcomes(frame: Frame) -> dict[int, object]:
    """What a frame says of each lookup: its rows, or the message of an error."""
    found: dict[int, object] = {number: message for number, _, message in frame.head.get("refused", ())}
    start = 0
    for number, count in frame.head.get("answers", ()):
        assert frame.batch is not None
        columns = [column.to_pylist() for column in frame.batch.slice(start, count).columns]
        found[number] = list(zip(*columns, strict=True))
        start += count
    return found


def test_more_lookups_than_may_wait_are_refused(stream: LookupStream, worker: Worker) -> None:
    stream.ask(wanted("planes", keys("late")))
    terms = [LookupTerms(number, 0, None, False, 1.0) for number in range(2, LOOKUPS_MAX + 2)]
    stream.line.send({"view": "planes", "lookups": terms}, keys())
    assert "16,384 lookups of this client wait already" in refusal_on(stream.line)
    worker.may_answer.set()


def test_a_waiting_answer_can_be_cut(stream: LookupStream, worker: Worker) -> None:
    stream.ask(wanted("planes", keys("late")))
    worker.asked.get(timeout=SECONDS_MAX)
    stream.cut()
    with pytest.raises(WorkerLost, match=stream.address):
        stream.answer()
    worker.may_answer.set()


def test_a_large_request_is_no_longer_under_way_when_its_client_has_gone(worker: Worker) -> None:
    traffic = Traffic()
    with Server(KEYS, {Purpose.LOOKUPS: LookupService(Answering(worker.lookup))}, traffic=traffic) as server:
        stream = LookupStream(client_of(server.address), SECONDS_MAX)
        stream.ask(wanted("planes", keys("late", "x" * (8 << 20))))
        worker.asked.get(timeout=SECONDS_MAX)
        assert traffic.bytes > 4 << 20
        stream.close()
        for thread in threading.enumerate():
            if thread.name == "upriver-lookups":
                thread.join(SECONDS_MAX)
        assert traffic.bytes == 0
        worker.may_answer.set()


def test_a_worker_that_has_gone_is_lost(server: Server, stream: LookupStream) -> None:
    assert ask(stream, "a") == ["a"]
    server.stop()
    with pytest.raises(WorkerLost, match=server.address):
        ask(stream, "a")


def test_a_stranger_gets_no_line(server: Server) -> None:
    with pytest.raises(AccessDenied):
        LookupStream(Remote.parse(server.address, "wrong"), SECONDS_MAX)


def test_only_so_many_are_let_in(worker: Worker) -> None:
    with lookup_server(worker, CallerGate(Places(clients=2))) as server:
        lent = [LookupStream(client_of(server.address), SECONDS_MAX) for _ in range(2)]
        assert [ask(stream, "a") for stream in lent] == [["a"], ["a"]]
        with pytest.raises(ClusterError, match=r"2 client connections.*ulimit -n"):
            LookupStream(client_of(server.address), SECONDS_MAX)
        assert [ask(stream, "a") for stream in lent] == [["a"], ["a"]]
        for stream in lent:
            stream.close()


def opened(server: Server) -> RawLine:
    return RawLine(client_of(server.address))


ONE = (1, 1, 7, False, 1.0)
REQUEST = {"view": "planes", "lookups": [ONE]}


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
    line = opened(server)
    for _ in range(2):
        line.write(frame)
        assert said in refusal_on(line)
        line.send(REQUEST, keys("a"))
        answer = answer_on(line)
        assert answer is not None
        assert answer.batch is not None
    line.close()


@pytest.mark.parametrize("frame", [b"\xff" * 32, b"\x09\0\0\0"], ids=["sizes that cannot be", "a beginning"])
def test_what_is_no_frame_ends_the_line_and_nothing_else(server: Server, stream: LookupStream, frame: bytes) -> None:
    line = opened(server)
    line.stream.write(frame)
    line.stream.end_writing()
    answer = line.receive()
    assert answer is None or answer.head["error"] == "SealBroken"
    line.close()
    assert ask(stream, "a") == ["a"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lookups": [(1, 1, "7", False, 1.0)]}, "malformed lookups: Expected `int | null`, got `str`"),
        ({"lookups": [(1, 1, 7.5, False, 1.0)]}, "malformed lookups: Expected `int | null`, got `float`"),
        ({"lookups": [(1, 1, None, False, None)]}, "malformed lookups: Expected `float`, got `null`"),
        ({"lookups": [(1, 1, None, False, -1)]}, "malformed lookups: Expected `float` >= 0.0"),
        ({"lookups": [(1, 1, None, 1, 1.0)]}, "malformed lookups: Expected `bool`, got `int`"),
        ({"lookups": []}, "0 lookups have other keys than the 1 given"),
        ({"lookups": [(1, 2, None, False, 1.0)]}, "1 lookups have other keys than the 1 given"),
        ({"lookups": [(1, -1, None, False, 1.0), (2, 2, None, False, 1.0)]}, "malformed lookups"),
        ({"lookups": None}, "malformed lookups"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_before_the_worker_hears_of_it(
    server: Server, worker: Worker, wrong: dict[str, object], said: str
) -> None:
    line = opened(server)
    line.send({**REQUEST, **wrong}, keys("a"))
    assert said in refusal_on(line)
    assert worker.asked.empty()
    line.send(REQUEST, keys("a"))
    assert answer_on(line) is not None
    line.close()


def test_a_request_without_keys_is_refused_and_the_line_goes_on(server: Server) -> None:
    line = opened(server)
    line.send(REQUEST)
    said = "view 'planes': a lookup is of a view by name, and has keys"
    answer = answer_on(line)
    assert answer is not None
    assert (answer.head, answer.batch) == ({"error": "ProtocolError", "message": said}, None)
    line.send(REQUEST, keys("a"))
    answer = answer_on(line)
    assert answer is not None
    beside, rows, _ = answer
    told = {name: beside[name] for name in ("view", "epoch", "map_version", "relayed", "held_up", "answers")}
    assert told == {
        "view": "planes",
        "epoch": 7,
        "map_version": VERSION,
        "relayed": True,
        "held_up": True,
        "answers": [[1, 1]],
    }
    assert rows == pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array([7])], schema=ROWS)
    line.close()


@pytest.mark.parametrize("said", [1, 3])
def test_hashes_of_other_keys_than_are_asked_for_are_refused(server: Server, worker: Worker, said: int) -> None:
    line = opened(server)
    line.send({"view": "planes", "lookups": [(1, 2, 7, False, 1.0)]}, keys("a", "b"), FORTY_TWOS[:said])
    assert "bytes of hashes for 2 rows" in refusal_on(line)
    assert worker.asked.empty()
    line.close()


def test_a_server_that_stops_ends_its_lines_and_can_be_stopped_again(server: Server) -> None:
    line = opened(server)
    line.send(REQUEST, keys("a"))
    assert answer_on(line) is not None
    server.stop()
    while line.receive() is not None:
        pass
    server.stop()
    line.close()
