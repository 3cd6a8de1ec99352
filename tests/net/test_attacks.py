"""What a stranger, a client with bad intent, and a broken peer can do: be refused, and cost what is named."""

import base64
import pickle
import queue
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from channel_kit import Hub, Recorder
from fuzz_kit import campaign
from lookup_kit import Answering, Given, KeysAsked, LookupStream, RawLine, answer_on, refusal_on
from server_kit import KEYS, SECONDS_MAX, SECRET, TOKEN, calls_server, client_of, peer_of

from upriver.client.lookups import KeySet
from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.errors import AccessDenied, Busy, ProtocolError, UnknownView, UpriverError, UserError
from upriver.hashing import hash64
from upriver.ids import WorkerId
from upriver.net.byte_stream import BUFFER_BYTES, GROWTH_BYTES, ByteStream
from upriver.net.channel import open_channel
from upriver.net.frames import MESSAGE_BYTES_MAX, PIECE, Joiner, Traffic
from upriver.net.gate import UNPROVED_S_MAX, CallerGate, Places
from upriver.net.handshake import (
    GREETING,
    HELLO,
    MAGIC,
    Exchange,
    HandshakeKeys,
    Identity,
    Purpose,
    greeting,
    hello,
    nonce,
)
from upriver.net.line import CALL_TERMS, KEYS_MAX, LOOKUP_TERMS, Line, answer_all
from upriver.net.lookups import LookupService
from upriver.net.remote import Connection, Remote, dial
from upriver.net.server import Caller, Listen, Server
from upriver.net.wire import Message, decode, decode_json, encode, encode_json
from upriver.options import Tokens
from upriver.runtime.coordinator_loop import CoordinatorLoop
from upriver.runtime.coordinator_service import REGISTER, CoordinatorService
from upriver.runtime.worker import WorkerConfig
from upriver.vnodes import VnodeMap

SUPPORT = Path(__file__).parents[1] / "support"
KEY = pa.schema([("k", pa.string())])
SPARE_BYTES = 64 << 20
"""That a process which is flooded may take besides."""
FLOOD_BYTES = 4 * SPARE_BYTES
FORTY = 40
"""Rightful callers."""


QUESTION = {"view": "v", "lookups": [(1, 1, None, False, 1.0)]}


def keys(*values: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.string())], schema=KEY)


def asked(batch: pa.RecordBatch) -> KeysAsked:
    return KeysAsked("v", batch, hash64(batch.columns), timeout=SECONDS_MAX)


def is_served(remote: Remote) -> bool:
    """Whether a rightful client gets an answer."""
    stream = LookupStream(remote, SECONDS_MAX)
    try:
        stream.ask(asked(keys("a")))
        return bool(stream.answer().rows == keys("a"))
    finally:
        stream.close()


def echo(wanted: KeysAsked) -> Given:
    return Given.of(wanted.keys)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(KEYS, {Purpose.LOOKUPS: LookupService(Answering(echo))}) as running:
        yield running


@contextmanager
def poor_server(memory_bytes: int = 0, files: int = 256) -> Iterator[Remote]:
    """A server in a process of its own."""
    command = [sys.executable, str(SUPPORT / "server_process.py"), str(memory_bytes), str(files)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=SUPPORT)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        remote = client_of(f"127.0.0.1:{int(process.stdout.readline())}")
        assert is_served(remote)
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "ready\n"
        yield remote
        assert process.poll() is None
    finally:
        process.stdin.close()
        process.kill()
        process.wait()
        process.stdout.close()


def reach(remote: Remote) -> socket.socket:
    host, _, port = remote.address.rpartition(":")
    return socket.create_connection((host, int(port)), SECONDS_MAX)


# B1: the token is not the cluster's secret ----------------------------------------------------------------------


@pytest.fixture
def coordinator() -> Iterator[tuple[CoordinatorLoop, CoordinatorService]]:
    loop = CoordinatorLoop(CoordinatorMachine(VnodeMap.initial(4, [WorkerId(0)]), ()))
    loop.start()
    service = CoordinatorService(loop, (), (), Listen(), KEYS)
    yield loop, service
    loop.stop(SECONDS_MAX)
    service.stop()


@pytest.mark.parametrize("known", [TOKEN.encode(), b"", bytes(32), b"guessed"])
def test_a_client_s_token_registers_no_worker(
    coordinator: tuple[CoordinatorLoop, CoordinatorService], known: bytes
) -> None:
    loop, service = coordinator
    forged = Message(REGISTER, {"worker": 0, "life": 1, "attempt": 0, "address": "127.0.0.1:1", "instance": "forged"})
    recorder = Recorder()
    with pytest.raises(AccessDenied, match="cluster's secret"):
        open_channel(Remote(service.address, known), forged, recorder.receiver)
    assert loop.addresses() == {}
    assert recorder.messages.empty()
    end = open_channel(peer_of(service.address), forged, recorder.receiver)
    assert loop.addresses() == {WorkerId(0): "127.0.0.1:1"}
    end.close()


def test_the_secret_opens_nothing_of_clients(server: Server) -> None:
    """A worker that is broken into does not become an operator by it."""
    with pytest.raises(AccessDenied):
        dial(peer_of(server.address), Purpose.LOOKUPS, SECONDS_MAX)


OPERATIONS: dict[str, dict[str, object]] = {
    "rescale": {"workers": 2, "moves": None, "strategy": "icadd", "keys_max": None},
    "rescale_abort": {"ticket": 0},
    "evict": {"view": "v", "keys": None},
}
READER = "only-reads"


def test_a_reader_s_token_opens_what_reads_and_nothing_else() -> None:
    loop = CoordinatorLoop(CoordinatorMachine(VnodeMap.initial(4, [WorkerId(0)]), ()))
    loop.start()
    service = CoordinatorService(loop, (), (), Listen(), HandshakeKeys(TOKEN, SECRET, READER))
    reader = Connection(Remote.parse(service.address, READER))
    try:
        assert reader.act("status", timeout=SECONDS_MAX)["workers"] is not None
        for action, fields in OPERATIONS.items():
            with pytest.raises(AccessDenied, match=f"'{action}' needs the operator's token"):
                reader.act(action, fields, timeout=SECONDS_MAX)
        with pytest.raises(AccessDenied):
            dial(Remote(service.address, READER.encode()), Purpose.CHANNEL, SECONDS_MAX)
        with Connection(client_of(service.address)) as operator, pytest.raises(UnknownView):  # the action itself
            operator.act("evict", OPERATIONS["evict"], timeout=SECONDS_MAX)
    finally:
        reader.close()
        service.stop()
        loop.stop(SECONDS_MAX)


def test_readers_look_up_and_a_server_without_their_token_does_not_know_them(server: Server) -> None:
    services = {Purpose.LOOKUPS: LookupService(Answering(echo))}
    with Server(HandshakeKeys(TOKEN, SECRET, READER), services) as serving:
        assert is_served(Remote.parse(serving.address, READER))
        assert is_served(client_of(serving.address))
        for wrong in (READER + "x", READER.upper(), READER[:-1]):
            with pytest.raises(AccessDenied):
                dial(Remote.parse(serving.address, wrong), Purpose.LOOKUPS, SECONDS_MAX)
    with pytest.raises(AccessDenied):
        dial(Remote.parse(server.address, READER), Purpose.LOOKUPS, SECONDS_MAX)


def test_both_tokens_must_differ_and_be_well_formed() -> None:
    for operator, reader in (("same", "same"), ("one", " blank"), ("one", "")):
        with pytest.raises(UserError):
            Tokens(operator=operator, reader=reader)


def test_the_proof_of_one_purpose_is_none_of_another(server: Server) -> None:
    with reach(client_of(server.address)) as caller:
        stream = ByteStream(caller)
        _, server_nonce = GREETING.unpack(stream.read(GREETING.size, time.monotonic() + SECONDS_MAX))
        said = hello(Exchange(Purpose.CALLS, server_nonce, nonce()), TOKEN.encode())
        stream.write(said.replace(b"calls\0\0\0", b"lookups\0"))
        assert stream.read(1, time.monotonic() + SECONDS_MAX) == b"\x01"


def test_a_proof_is_good_for_one_connection(server: Server) -> None:
    with reach(client_of(server.address)) as first, reach(client_of(server.address)) as second:
        streams = ByteStream(first), ByteStream(second)
        give_up_at = time.monotonic() + SECONDS_MAX
        nonces = [GREETING.unpack(stream.read(GREETING.size, give_up_at))[1] for stream in streams]
        said = hello(Exchange(Purpose.LOOKUPS, nonces[0], nonce()), TOKEN.encode())
        for stream in streams:
            stream.write(said)
        assert [stream.read(1, give_up_at) for stream in streams] == [b"\x00", b"\x01"]


@pytest.mark.parametrize("place", [0, -1])
def test_a_proof_is_good_as_a_whole(server: Server, place: int) -> None:
    with reach(client_of(server.address)) as caller:
        stream = ByteStream(caller)
        _, server_nonce = GREETING.unpack(stream.read(GREETING.size, time.monotonic() + SECONDS_MAX))
        said = bytearray(hello(Exchange(Purpose.CALLS, server_nonce, nonce()), TOKEN.encode()))
        said[len(said) - 32 if place == 0 else -1] ^= 1
        stream.write(bytes(said))
        assert stream.read(1, time.monotonic() + SECONDS_MAX) == b"\x01"


def test_the_keys_are_shown_by_nothing_that_is_printed() -> None:
    config = WorkerConfig(root="/lake", coordinator="h:1", keys=KEYS, bind="h", plans=())
    remote = peer_of("h:1")
    session = Exchange(Purpose.CHANNEL, nonce(), nonce()).session_of_caller(SECRET)
    for shown in (config, remote, KEYS, session):
        for secret in (SECRET, TOKEN.encode(), session.sends, session.hears):
            assert repr(secret)[2:-1] not in repr(shown)
            assert secret.hex() not in repr(shown)
    assert pickle.loads(pickle.dumps(config)) == config  # it does travel, in the closure of Spark's task


# B2, B3, B5: unauthenticated callers ---------------------------------------------------------------


@pytest.mark.parametrize("begins", [b"", MAGIC + b"calls\0\0\0", b"POST / HTTP/1.1\r\n", b"\0" * HELLO.size])
def test_a_stranger_s_bytes_are_not_kept(begins: bytes) -> None:
    """Sixteen unauthenticated callers send 4 GiB between them, if they are let; the process may take 64 MiB for it."""
    with poor_server(SPARE_BYTES) as remote, ExitStack() as opened:
        for _ in range(16):
            stranger = opened.enter_context(reach(remote))
            sent = 0
            with suppress(OSError):
                stranger.sendall(begins)
                while sent < FLOOD_BYTES:
                    sent += stranger.send(bytes(1 << 20))
            assert sent < FLOOD_BYTES
        assert is_served(remote)


def test_idle_strangers_leave_descriptors_to_the_lake_and_to_clients() -> None:
    with poor_server(files=64) as remote, ExitStack() as opened:
        for _ in range(200):
            opened.enter_context(reach(remote))
        with Connection(remote) as connection:
            assert connection.act("files", timeout=SECONDS_MAX) == {"opened": 10}
        assert all(is_served(remote) for _ in range(FORTY))


def test_idle_clients_leave_descriptors_to_the_lake() -> None:
    """They have the token, and get as many lines as there are places."""
    with poor_server(files=64) as remote, ExitStack() as opened, Connection(remote) as connection:
        assert connection.act("files", timeout=SECONDS_MAX) == {"opened": 10}
        for _ in range(200):
            with suppress(UpriverError):
                opened.callback(LookupStream(remote, SECONDS_MAX).close)
        assert connection.act("files", timeout=SECONDS_MAX) == {"opened": 10}


def test_strangers_do_not_fill_a_server() -> None:
    gate = CallerGate(Places(unauthenticated=8))
    with (
        Server(KEYS, {Purpose.LOOKUPS: LookupService(Answering(echo))}, gate=gate) as server,
        ExitStack() as opened,
    ):
        remote = client_of(server.address)
        unauthenticated = [opened.enter_context(reach(remote)) for _ in range(300)]
        assert all(is_served(remote) for _ in range(FORTY))
        assert len(unauthenticated[0].recv(1 << 10)) in (0, GREETING.size)
        assert unauthenticated[0].recv(1) == b""  # the oldest one was dropped


def test_a_stranger_has_so_many_seconds() -> None:
    now = [0.0]
    gate = CallerGate(clock=lambda: now[0])
    with (
        Server(KEYS, {Purpose.LOOKUPS: LookupService(Answering(echo))}, gate=gate) as server,
        reach(client_of(server.address)) as slow,
    ):
        assert len(slow.recv(GREETING.size)) == GREETING.size
        now[0] = UNPROVED_S_MAX - 0.001
        slow.sendall(MAGIC)
        assert is_served(client_of(server.address))
        now[0] = UNPROVED_S_MAX
        assert is_served(client_of(server.address))
        assert slow.recv(1) == b""


@pytest.mark.parametrize("files", [64, 256, 1024, 1 << 20])
def test_a_quarter_of_the_descriptors_is_kept_for_the_lake(files: int) -> None:
    places = Places.within(files)
    assert places.unauthenticated + places.clients + places.channels <= 3 * files / 4
    assert (places.unauthenticated, places.of(Identity.CLIENT)) <= (256, 4096)


# B5: clients that ask for too much ------------------------------------------------------------------------------


def opened(server: Server) -> RawLine:
    return RawLine(client_of(server.address))


def refused(line: Line) -> str:
    return refusal_on(line)


def test_memory_is_taken_as_bytes_come() -> None:
    """A promise of 1 GiB, of which 9 MiB come."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = ByteStream(socket.create_connection(listener.getsockname()))
        ours = ByteStream(listener.accept()[0])
    came = 9 << 20

    def send() -> None:
        theirs.write(bytes(came))
        theirs.close()

    sending = threading.Thread(target=send)
    sending.start()
    taken: list[int] = []
    tracemalloc.start()
    with pytest.raises(ConnectionError):
        ours.take(1 << 30, taken.append)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    sending.join()
    ours.close()
    assert sum(taken) + BUFFER_BYTES >= came
    assert peak < 3 * came + 2 * GROWTH_BYTES


def test_promises_that_are_not_kept_take_no_memory() -> None:
    with poor_server(SPARE_BYTES) as remote, ExitStack() as lines:
        for _ in range(8):
            line = RawLine(remote)
            lines.callback(line.close)
            line.stream.write(line.announce(LOOKUP_TERMS.head_bytes_max, 0, LOOKUP_TERMS.batch_bytes_max) + b"{")
        assert is_served(remote)


@pytest.mark.parametrize("place", range(3))
def test_a_frame_larger_than_may_be_ends_the_line(server: Server, place: int) -> None:
    terms = LOOKUP_TERMS
    sizes = [0, 0, 0]
    sizes[place] = (terms.head_bytes_max, terms.hashes_bytes_max, terms.batch_bytes_max)[place] + 1
    line = opened(server)
    line.stream.write(line.announce(*sizes))
    assert "too large" in refused(line)
    assert line.receive() is None
    line.close()
    assert is_served(client_of(server.address))


def question(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions | None = None) -> bytes:
    """A question with a batch that no client of ours would send."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    body = messages[-1].serialize().to_pybytes()
    schema = messages[0].serialize()
    told = base64.b64encode(schema.to_pybytes()).decode()
    head = encode_json({**QUESTION, "schema": told})
    return b"".join((struct.pack("<IIQ", len(head), 0, len(body)), head, body))


UNFOLDING = {
    "compressed": (pa.record_batch({"k": pa.array([0] * 1_000_000)}), "compressed"),
    "nulls": (pa.record_batch({"k": pa.nulls(1_000_000_000)}), "cannot be part of a key"),
    "dictionary": (pa.record_batch({"k": pa.array(["a"]).dictionary_encode()}), "dictionary"),
    "runs": (pa.record_batch({"k": pc.run_end_encode(pa.array([1, 1]))}), "cannot be part of a key"),
    "views": (pa.record_batch({"k": pa.array(["a"], pa.string_view())}), "cannot be part of a key"),
    "no columns": (pa.record_batch({"k": [1]}).select([]), "without a column"),
    "many": (pa.record_batch({"k": pa.array([None] * (KEYS_MAX + 1), pa.bool_())}), "at most"),
}


@pytest.mark.parametrize("kind", UNFOLDING)
def test_keys_that_unfold_are_refused_and_the_line_goes_on(server: Server, kind: str) -> None:
    batch, said = UNFOLDING[kind]
    options = pa.ipc.IpcWriteOptions(compression="zstd") if kind == "compressed" else None
    line = opened(server)
    line.write(question(batch, options))
    assert said in refused(line)
    line.write(question(keys("a")))
    answer = answer_on(line)
    assert answer is not None
    assert answer.batch == keys("a")
    line.close()


def test_a_compressed_batch_is_refused_on_channels_too() -> None:
    sink = pa.BufferOutputStream()
    zeros = pa.record_batch({"k": pa.array([0] * 1_000_000)})
    with pa.ipc.new_stream(sink, zeros.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(zeros)
    stream = sink.getvalue().to_pybytes()
    head = encode_json({"kind": "rows", "fields": {}, "sizes": [len(stream)]})
    with pytest.raises(ProtocolError, match="compressed"):
        decode(pa.py_buffer(struct.pack("<I", len(head)) + head + stream))


class Wide:
    """Answers with many bytes for each key."""

    def __init__(self, nbytes: int) -> None:
        self.rows = pa.record_batch({"k": [b"x" * nbytes]})
        self.asked: queue.Queue[str] = queue.Queue()

    def __call__(self, wanted: KeysAsked) -> Given:
        self.asked.put(wanted.view)
        return Given.of(self.rows)


LARGE_BYTES = 64 << 20
"""Of an answer: far more than sockets hold."""


def test_unread_answers_are_bounded_in_all() -> None:
    """One is under way, and does not get on. The others are told so at once, and take nothing."""
    wide = Wide(LARGE_BYTES)
    with Server(KEYS, {Purpose.LOOKUPS: LookupService(Answering(wide))}, traffic=Traffic(LARGE_BYTES)) as server:
        line = opened(server)
        line.send(QUESTION, keys("a"))
        assert not line.stream.is_at_end()  # its answer has begun to come
        for _ in range(8):
            other = LookupStream(client_of(server.address), SECONDS_MAX)
            other.ask(asked(keys("a")))
            with pytest.raises(Busy, match="under way"):
                other.answer()
            other.close()
        answer = answer_on(line)
        assert answer is not None
        assert answer.batch == wide.rows
        line.close()
        assert is_answered(server)


def is_answered(server: Server) -> bool:
    """Whether there is room again; the server's thread may need a moment to see that all was read."""
    stream = LookupStream(client_of(server.address), SECONDS_MAX)
    give_up_at = time.monotonic() + SECONDS_MAX
    while time.monotonic() < give_up_at:
        stream.ask(asked(keys("a")))
        with suppress(Busy):
            stream.answer()
            stream.close()
            return True
    return False


def test_a_client_that_never_reads_is_cut_off() -> None:
    wide = Wide(LARGE_BYTES)
    traffic = Traffic(LARGE_BYTES, send_s_max=0.05, bytes_per_s_min=1 << 40)
    with Server(KEYS, {Purpose.LOOKUPS: LookupService(Answering(wide))}, traffic=traffic) as server:
        line = opened(server)
        line.send(QUESTION, keys("a"))
        wide.asked.get(timeout=SECONDS_MAX)
        for thread in threading.enumerate():
            if thread.name == "upriver-lookups":
                thread.join(SECONDS_MAX)
        assert traffic.bytes == 0
        with pytest.raises(OSError, match=r"."):
            line.stream.take(LARGE_BYTES)
        line.close()


def test_a_line_on_which_nothing_comes_or_goes_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours = ByteStream(listener.accept()[0])
    ours.limit(send_s=0.05, idle_s=0.05)
    with pytest.raises(OSError, match=r"."):
        ours.is_at_end()
    with pytest.raises(OSError, match=r"."):
        ours.write(bytes(LARGE_BYTES))
    theirs.close()
    ours.close()


def test_schemas_without_end_end_the_line(server: Server) -> None:
    line = opened(server)
    wide = pa.schema([("k" * 100_000, pa.string())])
    said = ""
    for number in range(100):
        batch = pa.RecordBatch.from_arrays([pa.array(["a"])], schema=wide)
        line.send({**QUESTION, "view": f"v{number}"}, batch)
        answer = answer_on(line)
        assert answer is not None
        said = str(answer.head.get("message", ""))
        if said:
            break
    assert "schemas of more than" in said
    line.close()


# B5, B7: frames that make no sense ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 500 + b"]" * 500])
def test_json_nested_deeply_is_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_json(text)


def test_calls_nested_deeply_are_refused_and_the_line_goes_on() -> None:
    with calls_server() as server:
        line = RawLine(client_of(server.address), Purpose.CALLS)
        deep = b'{"act":"ping","fields":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001
        line.write(struct.pack("<IIQ", len(deep), 0, 0) + deep)
        assert "nested too deeply" in refused(line)
        line.send({"act": "ping", "fields": {}})
        answer = line.receive()
        assert answer is not None
        assert answer.head == {"answer": {}}
        line.close()


PIECES: dict[str, list[tuple[int, object]]] = {
    "without end": [(1, 10)] * 3,
    "too many": [(1, MESSAGE_BYTES_MAX)],
    "empty": [(0, 10)],
    "less than none": [(1, -1)],
    "no number": [(1, "10")],
    "yes": [(1, True)],
}


@pytest.mark.parametrize("kind", PIECES)
def test_pieces_that_do_not_go_on_are_refused(kind: str) -> None:
    joiner = Joiner()

    def join_all() -> None:
        for size, left in PIECES[kind]:
            head = Message(PIECE, {"left": left})
            joiner.join(head, pa.py_buffer(encode(head).to_pybytes() + bytes(size)))

    with pytest.raises(ProtocolError, match="malformed"):
        join_all()


SEEDS = random.Random(33).sample(range(1 << 30), 2)
FRAMES = 6_000
"""Of each seed: enough to end a process that checks less, many times over."""


@pytest.mark.parametrize("seed", [SEEDS[0], pytest.param(SEEDS[1], marks=pytest.mark.verify)])
def test_no_malformed_frame_ends_the_process(seed: int, tmp_path: Path) -> None:
    campaign(tmp_path, seed, FRAMES // 2, "frames", "bare_batches")


ANSWERS = 800
"""Enough to end a client that checks the structure alone, several times over."""


def test_no_malformed_answer_ends_a_client() -> None:
    """Of lookups, calls, scans, queries and changes: each is right, or an error that a client raises."""
    command = [sys.executable, str(SUPPORT / "answer_fuzz.py"), str(SEEDS[0]), str(ANSWERS)]
    tried = subprocess.run(command, capture_output=True, text=True, check=False, cwd=SUPPORT)
    assert tried.returncode == 0, f"seed {SEEDS[0]}: {tried.returncode}: {tried.stderr[-2000:]}"
    assert tried.stdout.startswith(f"{ANSWERS} answers")


def foreign_row(wanted: KeysAsked) -> Given:
    return Given.of(keys("b"))


def test_a_row_of_another_key_is_no_answer() -> None:
    with Server(KEYS, {Purpose.LOOKUPS: LookupService(Answering(foreign_row))}) as server:
        stream = LookupStream(client_of(server.address), SECONDS_MAX)
        stream.ask(asked(keys("a")))
        rows = stream.answer().rows
        with pytest.raises(ProtocolError, match="keys that were not asked for"):
            KeySet.of(keys("a")).places_of(rows)
        stream.close()


@pytest.mark.parametrize("broken", [{}, {"rows": "3"}, {"rows": 3}, {"rows": None}])
def test_rows_that_are_missing_are_an_error(broken: dict[str, object]) -> None:
    """A get's answer says how many rows there are: an answer without them is not taken for the end."""

    class Broken:
        def serve(self, caller: Caller) -> None:
            answer_all(Line(caller.stream, CALL_TERMS, caller.session), lambda _: (broken, None))

        def stop(self) -> None:
            pass

    with Server(KEYS, {Purpose.CALLS: Broken()}) as server, Connection(client_of(server.address)) as connection:
        with pytest.raises(ProtocolError, match=r"malformed answer|no rows of 'snapshot', of which 3 are left"):
            list(connection.get("snapshot", {}, KEY, timeout=SECONDS_MAX))
        with pytest.raises(ProtocolError, match="malformed answer"):
            connection.act("status", timeout=SECONDS_MAX)


def test_an_unauthenticated_frame_is_not_decoded() -> None:
    """A channel that another has got into the middle of: what is said there is not taken."""
    hub = Hub()
    with hub.server() as server:
        stream, _ = dial(peer_of(server.address), Purpose.CHANNEL, SECONDS_MAX)
        frame = encode(Message("hello", {"worker": 3})).to_pybytes()
        stream.write(struct.pack("<I", len(frame)) + frame + bytes(16))
        assert stream.is_at_end()
        assert hub.ends.empty()
        stream.close()


@dataclass
class Impostor:
    """Listens where a peer was, and lets every caller in."""

    listener: socket.socket

    def __call__(self) -> None:
        caller, _ = self.listener.accept()
        with caller:
            caller.sendall(greeting(nonce()))
            caller.recv(HELLO.size)
            caller.sendall(struct.pack("<BI32s", 0, 0, bytes(32)))


def test_a_worker_says_nothing_to_an_impostor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=Impostor(listener))
        thread.start()
        remote = peer_of(f"127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(AccessDenied, match="another server"):
            open_channel(remote, Message("hello"), Recorder().receiver)
        thread.join()


def test_a_question_is_not_under_way_any_more_when_its_answer_goes_out() -> None:
    wide = Wide(LARGE_BYTES)
    traffic = Traffic(LARGE_BYTES + (1 << 20))
    with Server(KEYS, {Purpose.LOOKUPS: LookupService(Answering(wide))}, traffic=traffic) as server:
        stream = LookupStream(client_of(server.address), SECONDS_MAX)
        stream.ask(asked(keys("x" * LARGE_BYTES)))
        assert stream.answer().rows == wide.rows
        stream.close()
