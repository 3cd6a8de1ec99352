"""TLS of the native port: secrecy, trust, and a connection of many threads.

Rules net.no_silent_plain_text, net.certificates_are_checked, net.proofs_cover_the_certificate.
"""

import os
import pickle
import queue
import select
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from channel_kit import HELLO, Hub, Recorder
from relay_kit import Relay, copied, copy_both
from server_kit import SECONDS_MAX, SECRET, TOKEN, calls_server, client_of, keys_of, peer_of
from tls_kit import AUTHORITY, IDENTITY, OWN, OWN_KEY, client_trust, issued, tls_sockets

from upriver.errors import AccessDenied, ClusterError, DeclarationError, UserError, WorkerLost
from upriver.net.byte_stream import ByteStream
from upriver.net.channel import ChannelEnd, ChannelLimits, open_channel
from upriver.net.frames import PIECE_BYTES_MAX
from upriver.net.gate import CallerGate, Places
from upriver.net.handshake import Purpose
from upriver.net.remote import Connection, Remote
from upriver.net.server import Calls, Server
from upriver.net.tls import (
    HANDSHAKE_BYTES_MAX,
    PLAIN_BYTES,
    RECEIVE_BYTES,
    RECORD_BYTES,
    TlsIdentity,
    TlsSocket,
    TlsTrust,
)
from upriver.net.wire import Message
from upriver.options import Tls

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "security.md"
KEY_LINE = OWN_KEY.read_text().splitlines()[1]


@pytest.fixture
def server() -> Iterator[Server]:
    with calls_server(tls=IDENTITY) as running:
        yield running


@pytest.fixture
def openssl() -> str:
    """The command of another implementation."""
    if (command := shutil.which("openssl")) is None:
        pytest.skip("openssl is not installed")
    if not subprocess.run([command, "version"], capture_output=True, text=True).stdout.startswith("OpenSSL"):
        pytest.skip("this openssl lacks options")
    return command


def ping(remote: Remote) -> None:
    with Connection(remote) as connection:
        assert connection.act("ping", timeout=SECONDS_MAX) == {}


# Which servers are trusted


@pytest.mark.parametrize(
    "given", [str(OWN), OWN, OWN.read_bytes(), OWN.read_text()], ids=["text", "path", "bytes", "pem as text"]
)
def test_a_client_names_what_it_trusts(server: Server, given: object) -> None:
    for host in ("127.0.0.1", "localhost"):
        ping(Remote.parse(f"grpc+tls://{host}:{server.port}", TOKEN, given))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("absent.pem", "tls='absent.pem': cannot be read: No such file"),
        (b"PEM", "tls=<bytes>: there are no certificates as PEM in it"),
        (OWN_KEY, "key.pem': there are no certificates as PEM in it"),
        (False, "tls=False: give the file with the certificates to trust"),
        ("", "tls='': give the file"),
        (7, "tls=7: give the file"),
    ],
)
def test_what_cannot_be_trusted_is_refused(given: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Remote.parse("localhost:80", TOKEN, given)


@pytest.mark.parametrize(
    ("name", "trust", "why"),
    [
        ("issued", client_trust(OWN), "certificate that is not trusted for '127.0.0.1'"),
        ("issued", TlsTrust(None, "127.0.0.1"), "certificate that is not trusted for '127.0.0.1'"),
        ("elsewhere", client_trust(AUTHORITY), "IP address mismatch"),
        ("expired", client_trust(AUTHORITY), "certificate has expired"),
        ("issued", client_trust(AUTHORITY, "app.example"), "Hostname mismatch"),
    ],
)
def test_a_server_that_cannot_be_verified_is_told_nothing(name: str, trust: TlsTrust, why: str) -> None:
    with calls_server(tls=issued(name)) as server, pytest.raises(AccessDenied, match=why):
        ping(Remote.parse(server.address, TOKEN, trust))


def test_one_end_alone_that_speaks_tls_says_so(server: Server) -> None:
    with pytest.raises(UserError, match=f"^{server.address} speaks TLS: give tls="):
        ping(client_of(server.address))
    with calls_server() as plain, pytest.raises(UserError, match=f"^{plain.address} does not speak TLS, and nothing"):
        ping(client_of(plain.address, IDENTITY))


def test_the_secret_without_a_certificate_opens_nothing() -> None:
    hub = Hub(tls=IDENTITY)
    with hub.server() as server:
        for identity in (None, issued("issued")):
            remote = Remote(server.address, SECRET, replace(IDENTITY.trust, identity=identity))
            with pytest.raises((AccessDenied, ClusterError), match=r"has shown no certificate|alert unknown ca"):
                open_channel(remote, HELLO, Recorder().receiver)
        assert hub.ends.empty()


@pytest.mark.parametrize("identity", [issued("issued"), issued("issued", None), issued("for_servers", None)])
def test_processes_of_an_app_trust_each_other(identity: TlsIdentity) -> None:
    identity.check()
    hub, recorder = Hub(tls=identity), Recorder()
    with hub.server() as server:
        end = open_channel(hub.peer(server), HELLO, recorder.receiver)
        hub.accepted()
        end.close()
        assert recorder.closing() is None


class Terminating(Relay):
    """Ends TLS with a certificate of his own, and passes all on over TLS to the server."""

    def __init__(self, identity: TlsIdentity, target: str) -> None:
        self._identity = identity
        super().__init__()
        self.target = target

    def pass_on(self, caller: socket.socket, app: socket.socket) -> None:
        with caller, app, suppress(OSError):
            near = TlsSocket.of_server(caller, self._identity.server_context())
            while not near.shake_hands():
                pass
            far = TlsSocket.of_caller(app, client_trust(AUTHORITY), time.monotonic() + SECONDS_MAX)
            back = threading.Thread(target=self._copy, args=(far, near))
            back.start()
            self._copy(near, far)
            back.join()

    @staticmethod
    def _copy(source: TlsSocket, sink: TlsSocket) -> None:
        with suppress(OSError):
            while some := source.recv(1 << 16):
                sink.sendall(some)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def test_another_good_certificate_on_the_way_is_noticed() -> None:
    """His is of the same authority and host: only the proofs tell him from the app."""
    with (
        calls_server(tls=issued("for_servers")) as server,
        Terminating(issued("issued"), server.address) as middle,
        pytest.raises(AccessDenied, match="another server ends TLS on the way"),
    ):
        ping(Remote.parse(middle.address, TOKEN, AUTHORITY))
    with calls_server(tls=issued("issued")) as server, Terminating(issued("issued"), server.address) as middle:
        ping(Remote.parse(middle.address, TOKEN, AUTHORITY))  # a holder of the key is the app


def test_a_key_in_place_of_a_file_is_in_no_message() -> None:
    content = OWN_KEY.read_bytes()
    for given in (content, bytearray(content), content.decode(), [content.decode()]):
        with pytest.raises(UserError, match="tls=<") as told:
            Remote.parse("localhost:80", TOKEN, given)
        with pytest.raises(DeclarationError, match="Tls: key: give the path of the file") as refused:
            Tls(certificate=OWN, key=given)  # type: ignore[arg-type]
        assert not [error for error in (told, refused) if KEY_LINE[:40] in str(error.value)]


def test_what_is_trusted_goes_to_spark_without_what_stands_beside_it() -> None:
    beside = b"# Autorit\xe9\n" + OWN_KEY.read_bytes() + OWN.read_bytes() + AUTHORITY.read_bytes()
    app = replace(IDENTITY, roots=beside)
    app.check()
    for trust in (app.client_trust, TlsTrust.of_client(beside, "127.0.0.1")):
        assert trust.roots is not None
        roots = trust.roots.decode("ascii")
        assert KEY_LINE not in roots
        assert roots.count("-----BEGIN") == 2
        with calls_server(tls=app) as server:
            ping(Remote.parse(server.address, TOKEN, TlsTrust(roots.encode(), None)))
    with pytest.raises(UserError, match="there are no certificates as PEM"):
        TlsTrust.of_client(AUTHORITY.read_bytes() + OWN.read_bytes()[:300], "127.0.0.1")


def test_a_key_is_in_no_text_and_goes_whole_in_a_pickle() -> None:
    keys = keys_of(IDENTITY)
    for shown in (keys, peer_of("host:1", IDENTITY), client_of("host:1", IDENTITY), IDENTITY, IDENTITY.trust):
        assert KEY_LINE not in repr(shown)
        assert "BEGIN" not in repr(shown)
    assert KEY_LINE.encode() not in pickle.dumps(client_of("host:1", IDENTITY))
    assert pickle.loads(pickle.dumps(keys)) == keys


def test_the_certificate_of_the_guide_is_one_for_clients_and_workers(openssl: str, tmp_path: Path) -> None:
    command = GUIDE.read_text().partition("```\nopenssl req ")[2].partition("\n```")[0]
    given = shlex.split(command.replace("\\\n", " "))
    subprocess.run([openssl, "req", *given], cwd=tmp_path, capture_output=True, check=True)
    certificate = tmp_path / "server.pem"
    identity = Tls(certificate=certificate, key=tmp_path / "server.key").identity()
    with calls_server(tls=identity) as server:
        for host in ("127.0.0.1", "localhost"):
            ping(Remote.parse(f"{host}:{server.port}", TOKEN, certificate))


# What strangers cost


def begun(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), SECONDS_MAX)


def first_message() -> bytes:
    """The first message of a handshake."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with suppress(TimeoutError):
            TlsSocket.of_caller(ours, client_trust(), time.monotonic())
        return theirs.recv(RECORD_BYTES)


def test_a_stranger_that_talks_on_is_dropped(server: Server) -> None:
    unending = b"\x16\x03\x01\x40\x00\x01\x00\xff\xff" + bytes(2 * HANDSHAKE_BYTES_MAX)
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"\x16" + bytes(2_000), unending):
        with begun(server) as stranger, suppress(ConnectionError):
            stranger.sendall(said)
            while stranger.recv(1 << 16):  # until it is dropped
                pass
    ping(client_of(server.address, IDENTITY))


def test_strangers_in_their_handshakes_keep_nobody_out() -> None:
    hello = first_message()
    gate = CallerGate(Places(unauthenticated=8))
    with Server(keys_of(IDENTITY), {Purpose.CALLS: Calls()}, gate=gate) as server:
        strangers = [begun(server) for _ in range(40)]
        for number, stranger in enumerate(strangers):
            with suppress(ConnectionError):
                stranger.sendall(hello[: number * 40])
        for _ in range(5):
            ping(client_of(server.address, IDENTITY))
        for stranger in strangers:
            stranger.close()
        ping(client_of(server.address, IDENTITY))


def test_a_stranger_has_no_more_time_for_two_handshakes() -> None:
    now = [0.0]
    gate = CallerGate(clock=lambda: now[0])
    with Server(keys_of(IDENTITY), {Purpose.CALLS: Calls()}, gate=gate) as server, begun(server) as connected:
        stranger = TlsSocket.of_caller(connected, client_trust(), time.monotonic() + SECONDS_MAX)
        assert stranger.recv(1 << 16)  # the greeting
        now[0] = 60.0
        ping(client_of(server.address, IDENTITY))  # the admission looks at the time
        assert stranger.recv(1 << 16) == b""


class Padded(Relay):
    """Passes on what a caller pads: it is told byte by byte, so that each is a record."""

    def __init__(self, target: str) -> None:
        self.heard: queue.Queue[int] = queue.Queue()
        """Bytes that have come of the caller; 0 at its end."""
        super().__init__()
        self.target = target

    def pass_on(self, caller: socket.socket, app: socket.socket) -> None:
        copy_both(caller, app, self._counted, copied)

    def _counted(self, source: socket.socket) -> Iterator[bytes]:
        try:
            for some in copied(source):
                yield some
                self.heard.put(len(some))
        finally:
            self.heard.put(0)


def test_a_stranger_whose_records_have_hardly_any_content_is_dropped(openssl: str) -> None:
    gate = CallerGate(clock=lambda: 0.0)
    with Server(keys_of(IDENTITY), {Purpose.CALLS: Calls()}, gate=gate) as server, Padded(server.address) as relay:
        command = [openssl, "s_client", "-connect", relay.address, "-CAfile", str(OWN), "-quiet"]
        with subprocess.Popen(
            [*command, "-record_padding", str(PLAIN_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as stranger:
            assert stranger.stdin is not None
            told = 0
            with suppress(BrokenPipeError):
                for _ in range(HANDSHAKE_BYTES_MAX // PLAIN_BYTES):
                    stranger.stdin.write(b"x")
                    stranger.stdin.flush()
                    told += PLAIN_BYTES
                    while told > 0 and (came := relay.heard.get(timeout=SECONDS_MAX)):
                        told -= came
            try:
                stranger.wait(SECONDS_MAX)  # the server has closed the connection
            finally:
                stranger.kill()
        ping(client_of(server.address, IDENTITY))


def test_a_server_that_says_a_little_more_and_more_has_no_more_time() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"\x16\x03\x03\x40\x00")  # of a record that is not over when the time is
        with pytest.raises(TimeoutError):
            TlsSocket.of_caller(ours, client_trust(), time.monotonic())
        assert theirs.recv(RECORD_BYTES)
        assert ours.recv(RECORD_BYTES, socket.MSG_DONTWAIT)  # was not even read


# Reading and writing


def talk(end: ChannelEnd, senders: int, frames: int) -> None:
    """Many threads send, each its numbers in order: most messages are small, some go in several pieces."""
    large = pa.RecordBatch.from_pydict({"n": pa.array(range(PIECE_BYTES_MAX // 5))})

    def send(sender: int) -> None:
        for number in range(frames):
            batches = (large,) if number % 20 == sender else ()
            end.send(Message("m", {"sender": sender, "number": number, "rest": "x" * (number * 997 % 9_000)}, batches))

    with ThreadPoolExecutor(senders) as pool:
        list(pool.map(send, range(senders)))


def heard(recorder: Recorder, senders: int, frames: int) -> None:
    numbers: dict[int, list[int]] = {sender: [] for sender in range(senders)}
    for _ in range(senders * frames):
        said = recorder.hear()
        numbers[said.fields["sender"]].append(said.fields["number"])
        assert sum(batch.num_rows for batch in said.batches) in (0, PIECE_BYTES_MAX // 5)
    assert numbers == {sender: list(range(frames)) for sender in range(senders)}


def test_many_threads_read_and_write_one_channel_at_once() -> None:
    hub, ours = Hub(ChannelLimits(), IDENTITY), Recorder()
    with hub.server() as server:
        end = open_channel(hub.peer(server), HELLO, ours.receiver)
        their_end, theirs = hub.accepted()
        with ThreadPoolExecutor(4) as pool:
            both = [pool.submit(talk, each, 4, 100) for each in (end, their_end)]
            both += [pool.submit(heard, each, 4, 100) for each in (ours, theirs)]
            for each in both:
                each.result(6 * SECONDS_MAX)
        end.close()
        assert (ours.closing(), theirs.closing()) == (None, None)


def test_what_the_network_takes_in_parts_comes_once_and_in_order() -> None:
    """What did not go at once is written at once later, in one piece or together with more."""
    near, far = tls_sockets()
    ours, theirs = ByteStream(near), ByteStream(far)
    data = os.urandom(6 << 20)
    came: queue.Queue[bytes] = queue.Queue()
    written = 0
    while more := ours.write_at_once(memoryview(data)[written : written + 300_000]):
        written += more
    assert near.unsent
    reading = threading.Thread(target=lambda: came.put(bytes(theirs.take(len(data) + 4))))
    reading.start()
    for _ in range(50):
        select.select((), (ours.fileno,), ())
        written += ours.write_at_once(memoryview(data)[written : written + 1_000])
    rest = memoryview(data)[written:]
    ours.write_together((rest[:10], b"", rest[10:2_000], rest[2_000:], b"end!"))
    reading.join()
    assert came.get_nowait() == data + b"end!"
    for stream in (ours, theirs):
        stream.close()


def test_nothing_decrypted_stays_behind_where_a_loop_waits_for_the_descriptor() -> None:
    near, far = tls_sockets()
    ours, theirs = ByteStream(near), ByteStream(far)
    theirs.unblock()
    assert theirs.is_quiet()
    assert theirs.read_at_once(RECEIVE_BYTES) is None
    data = os.urandom(3 << 20)
    writing = threading.Thread(target=ours.write, args=(data,))
    writing.start()
    came = b""
    while len(came) < len(data):
        assert select.select((theirs.fileno,), (), (), SECONDS_MAX)[0]
        came += theirs.read_at_once(RECEIVE_BYTES) or b""
    writing.join()
    assert came == data
    assert theirs.is_quiet()
    ours.close()
    assert select.select((theirs.fileno,), (), (), SECONDS_MAX)[0]
    assert not theirs.is_quiet()
    assert theirs.read_at_once(RECEIVE_BYTES) == b""
    theirs.close()


def test_records_without_content_do_not_keep_a_loop() -> None:
    """Another server sends tickets, and they serve as well as a caller's new keys. Ours sends none."""
    context = IDENTITY.server_context()
    context.num_tickets = 200
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        connected = socket.create_connection(listener.getsockname())
        near = TlsSocket.of_server(listener.accept()[0], context)
        calling = pool.submit(TlsSocket.of_caller, connected, IDENTITY.trust, time.monotonic() + SECONDS_MAX)
        assert near.shake_hands()
        ours = ByteStream(calling.result())
    ours.unblock()
    assert ours.read_at_once(1) is None
    assert select.select((ours.fileno,), (), (), 0)[0], "the loop has had its turn before the next part is read"
    near.sendall(b"content")
    while (came := ours.read_at_once(RECEIVE_BYTES)) is None:
        select.select((ours.fileno,), (), (), SECONDS_MAX)
    assert came == b"content"
    near.close()
    ours.close()


def test_a_part_of_a_record_gives_no_more_time() -> None:
    near, far = tls_sockets()
    below, record = far.detach(bytes(1_000))
    ours = ByteStream(near)
    below.sendall(record[:500])
    with pytest.raises(TimeoutError):
        ours.read(1_000, time.monotonic() + 0.02)
    assert not ours.is_quiet()
    ours.wait_at_most(None)
    ours.limit(SECONDS_MAX, 0.02)
    assert ours.read_at_once(RECEIVE_BYTES) is None
    below.sendall(record[500:600])
    assert ours.read_at_once(RECEIVE_BYTES) is None
    below.sendall(record[600:])
    ours.limit(SECONDS_MAX, SECONDS_MAX)
    assert ours.take(1_000) == bytes(1_000)
    below.close()
    ours.close()


def test_what_was_changed_on_the_way_is_not_read() -> None:
    near, far = tls_sockets()
    below, record = far.detach(b"rows")
    below.sendall(record[:-1] + bytes([record[-1] ^ 1]))
    with pytest.raises(OSError, match="BAD_RECORD_MAC"):
        ByteStream(near).take(4)
    near.close()
    below.close()


def test_keys_are_updated_while_both_ends_write(openssl: str) -> None:
    """Another implementation's caller asks for new keys: letter K of its commands."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [openssl, "s_client", "-connect", f"127.0.0.1:{listener.getsockname()[1]}", "-CAfile", str(OWN)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as other:
            connected = listener.accept()[0]
            ours = TlsSocket.of_server(connected, IDENTITY.server_context())
            while not ours.shake_hands():
                pass
            stream = ByteStream(ours)
            assert other.stdin is not None
            assert other.stdout is not None
            told = iter(other.stdout.readline, b"")
            for turn in range(3):
                for line, answer in ((b"K\n", b"KEYUPDATE\n"), (b"%d: said\n" % turn, b"%d: heard\n" % turn)):
                    other.stdin.write(line)
                    other.stdin.flush()
                    if line != b"K\n":
                        assert stream.take(len(line)) == line
                        stream.write(answer)
                    assert answer in told
            stream.close()


def test_a_worker_is_lost_as_without_tls() -> None:
    hub, recorder = Hub(tls=IDENTITY), Recorder()
    with hub.server() as server:
        remote = hub.peer(server)
        open_channel(remote, HELLO, recorder.receiver)
        end, theirs = hub.accepted()
        end.give_up(ClusterError("out of patience"))
        assert isinstance(recorder.closing(), ClusterError)
        assert theirs.closing() is not None
    with pytest.raises(WorkerLost, match=f"{remote.address} cannot be reached"):
        open_channel(remote, HELLO, Recorder().receiver, lost=WorkerLost)
