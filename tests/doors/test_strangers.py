"""Strangers at one door keep no rightful caller out of any: all listeners of a process stand behind one gate."""

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import httpx
import psycopg
import pyarrow.flight as flight
import pytest
from descriptors_kit import no_descriptors
from doors_kit import KeptRows
from http_kit import BEARER, NO_TLS, HttpApp
from postgres_kit import startup
from server_kit import KEYS, SECONDS_MAX, TOKEN, client_of
from standby_kit import await_that

from upriver.doors.flight.messages import MESSAGE_BYTES_MAX
from upriver.doors.flight.relay import UNPROVED_BYTES_MAX
from upriver.doors.flight.server import FlightDoor
from upriver.doors.postgres.server import PostgresServer
from upriver.errors import UpriverError
from upriver.net.gate import CallerGate, Places
from upriver.net.handshake import Purpose
from upriver.net.remote import Connection
from upriver.net.server import Calls, Listen, Server

SUPPORT = Path(__file__).parents[1] / "support"
CHAIN = SUPPORT / "tls" / "certificate.pem"
FILES = 512
"""That the process with the doors may open: a stranger alone could hold all of them."""
RIGHTFUL = 20
SERVED_MIN = 19
STRANGERS = 1_000
LINES_MAX = 20
"""That a process may write on stderr, whatever strangers do."""
PROBE = b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HEAD = b"GET /v1/views HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "


@dataclass(frozen=True)
class RunningDoors:
    """The doors of a process. addresses: ``host:port`` by door. context: of callers; ``None``: they do not encrypt."""

    process: int
    addresses: Mapping[str, str]
    context: ssl.SSLContext | None = None

    def reach(self, door: str) -> socket.socket:
        host, _, port = self.addresses[door].rpartition(":")
        return socket.create_connection((host, int(port)), SECONDS_MAX)

    def get(self, path: str, headers: Mapping[str, str] = BEARER) -> httpx.Response:
        kind = "http" if self.context is None else "https"
        url, verify = f"{kind}://{self.addresses['http']}{path}", self.context or NO_TLS
        return httpx.get(url, headers=dict(headers), timeout=SECONDS_MAX, verify=verify)

    def descriptors(self) -> int:
        """How many the process has open."""
        return len(list(Path(f"/proc/{self.process}/fd").iterdir()))

    def most_bytes(self) -> int:
        """The most memory that the process has taken so far."""
        told = Path(f"/proc/{self.process}/status").read_text()
        return 1024 * next(int(line.split()[1]) for line in told.splitlines() if line.startswith("VmHWM"))


@contextmanager
def running(kind: str) -> Iterator[RunningDoors]:
    command = [sys.executable, str(SUPPORT / "door_process.py"), str(FILES), kind]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # the same code as here, wherever that is
    with TemporaryFile("w+") as errors:
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=env)
        try:
            yield from _running(process, kind)
        finally:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.kill()
            process.wait()
            process.stdout.close()
        errors.seek(0)
        lines = errors.readlines()
        assert len(lines) <= LINES_MAX, lines[:LINES_MAX]


def _running(process: "subprocess.Popen[str]", kind: str) -> Iterator[RunningDoors]:
    assert process.stdout is not None
    context = ssl.create_default_context(cafile=str(CHAIN)) if kind == "tls" else None
    doors = RunningDoors(process.pid, json.loads(process.stdout.readline()), context)
    await_that(lambda: doors.get("/readyz", {}).text == "ready\n")
    yield doors
    assert process.poll() is None


@pytest.fixture(scope="module")
def doors() -> Iterator[RunningDoors]:
    with running("clear") as found:
        yield found


@pytest.fixture(scope="module")
def encrypted() -> Iterator[RunningDoors]:
    with running("tls") as found:
        yield found


# Rightful callers, each with a connection of its own


def asks_http(doors: RunningDoors) -> bool:
    return doors.get("/v1/views").status_code == 200


def asks_for_its_health(doors: RunningDoors) -> bool:
    return doors.get("/healthz", {}).text == "ok\n" and doors.get("/readyz", {}).text == "ready\n"


def asks_postgres(doors: RunningDoors) -> bool:
    host, _, port = doors.addresses["postgres"].rpartition(":")
    mode = "disable" if doors.context is None else "require"
    told = f"host={host} port={port} user=reader password={TOKEN} sslmode={mode} connect_timeout={int(SECONDS_MAX)}"
    with psycopg.connect(told) as connection:
        return connection.execute("SHOW server_encoding").fetchall() == [("UTF8",)]


BEARER_OPTIONS = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {TOKEN}".encode())], timeout=SECONDS_MAX)


def flight_client(doors: RunningDoors) -> Any:
    kind, roots = ("grpc", None) if doors.context is None else ("grpc+tls", CHAIN.read_bytes())
    return flight.FlightClient(f"{kind}://{doors.addresses['flight']}", tls_root_certs=roots)


def asks_flight(doors: RunningDoors) -> bool:
    with flight_client(doors) as client:
        return len(list(client.list_flights(options=BEARER_OPTIONS))) == 3


def asks_the_coordinator(doors: RunningDoors) -> bool:
    with Connection(client_of(doors.addresses["native"])) as connection:
        return "epoch" in connection.act("status", timeout=SECONDS_MAX)


CALLERS: Mapping[str, Callable[[RunningDoors], bool]] = {
    "http": asks_http,
    "health": asks_for_its_health,
    "postgres": asks_postgres,
    "flight": asks_flight,
    "native": asks_the_coordinator,
}
ERRORS = (OSError, httpx.HTTPError, psycopg.Error, flight.FlightError)


def served(doors: RunningDoors, caller: str) -> int:
    """How many of ``RIGHTFUL`` callers get an answer."""
    count = 0
    for _ in range(RIGHTFUL):
        with suppress(*ERRORS):
            count += CALLERS[caller](doors)
    return count


def check_all_are_served(doors: RunningDoors) -> None:
    counts = {caller: served(doors, caller) for caller in CALLERS}
    assert min(counts.values()) >= SERVED_MIN, counts


# Strangers


@contextmanager
def repeated(threads: int, act: Callable[[], None], pause_s: float = 0.0) -> Iterator[None]:
    """Meanwhile, threads do this again and again."""
    stopping = threading.Event()

    def run() -> None:
        while not stopping.wait(pause_s):
            with suppress(*ERRORS):
                act()

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in running:
            thread.join()


@contextmanager
def held(count: int) -> Iterator[Callable[[socket.socket], None]]:
    """Keeps the last connections open that it is given."""
    kept: deque[socket.socket] = deque()

    def keep(one: socket.socket) -> None:
        kept.append(one)
        if len(kept) > count:
            kept.popleft().close()

    try:
        yield keep
    finally:
        for one in kept:
            one.close()


@pytest.mark.parametrize("door", ["http", "postgres", "flight", "native"])
def test_idle_strangers_keep_nobody_out(doors: RunningDoors, door: str) -> None:
    with held(STRANGERS) as keep:
        for _ in range(STRANGERS):
            keep(doors.reach(door))
        check_all_are_served(doors)


@pytest.mark.parametrize("door", ["http", "postgres", "flight", "native"])
def test_a_flood_of_connections_keeps_nobody_out(doors: RunningDoors, door: str) -> None:
    with held(STRANGERS) as keep, repeated(2, lambda: keep(doors.reach(door)), 0.001):
        check_all_are_served(doors)


def test_slow_heads_keep_nobody_out(doors: RunningDoors) -> None:
    slow: deque[socket.socket] = deque()

    def send_a_byte() -> None:
        one = slow.popleft()
        try:
            one.sendall(b"x")
        except OSError:
            one.close()
            one = doors.reach("http")
            one.sendall(HEAD)
        slow.append(one)

    for _ in range(300):
        slow.append(doors.reach("http"))
        slow[-1].sendall(HEAD)
    with repeated(1, send_a_byte, 0.001):
        check_all_are_served(doors)
    for one in slow:
        one.close()


def test_silence_in_the_handshake_of_tls_keeps_nobody_out(encrypted: RunningDoors) -> None:
    def be_silent() -> None:
        for door in ("http", "postgres", "flight"):
            keep(encrypted.reach(door))

    with held(STRANGERS) as keep, repeated(1, be_silent, 0.02):
        check_all_are_served(encrypted)


def test_probes_without_end_keep_nobody_out(doors: RunningDoors) -> None:
    def probe() -> None:
        with doors.reach("http") as caller:
            for _ in range(20):
                caller.sendall(PROBE)
                if not caller.recv(1 << 12):
                    return

    with repeated(48, probe):
        check_all_are_served(doors)


def test_requests_that_are_sent_ahead_keep_nobody_out(doors: RunningDoors) -> None:
    def send_ahead() -> None:
        caller = doors.reach("http")
        keep(caller)
        caller.sendall(PROBE * 1_000)

    with held(300) as keep, repeated(1, send_ahead, 0.01):
        check_all_are_served(doors)


@pytest.mark.parametrize("size", [64 << 20, pytest.param(512 << 20, marks=pytest.mark.verify)])
@pytest.mark.parametrize("token", ["wrong", None])
def test_a_stranger_s_message_to_flight_is_not_taken_in(doors: RunningDoors, size: int, token: str | None) -> None:
    assert asks_flight(doors)
    before = doors.most_bytes()
    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    options = flight.FlightCallOptions(headers=headers, timeout=6 * SECONDS_MAX)
    with flight.FlightClient(f"grpc://{doors.addresses['flight']}") as client, pytest.raises(flight.FlightError):
        list(client.do_action(flight.Action("CreatePreparedStatement", bytes(size)), options))
    check_all_are_served(doors)
    assert doors.most_bytes() - before < 32 * UNPROVED_BYTES_MAX


@pytest.mark.parametrize("kind", ["doors", "encrypted"])
def test_a_caller_s_large_message_to_flight_is_not_taken_in(kind: str, request: pytest.FixtureRequest) -> None:
    doors: RunningDoors = request.getfixturevalue(kind)
    before = doors.most_bytes()
    with flight_client(doors) as client:
        assert len(list(client.list_flights(options=BEARER_OPTIONS))) == 3
        with pytest.raises(flight.FlightError):
            list(client.do_action(flight.Action("CreatePreparedStatement", bytes(128 << 20)), BEARER_OPTIONS))
    assert asks_flight(doors)
    assert doors.most_bytes() - before < 4 * MESSAGE_BYTES_MAX


FIRST_WORDS: Mapping[str, bytes] = {
    "http": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "postgres": startup(),
    "flight": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5),
    "native": b"",
}
"""By door: what a caller without a token says, and gets an answer to."""


def client_hello() -> bytes:
    """The first message of TLS."""
    said = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        NO_TLS.wrap_bio(ssl.MemoryBIO(), said, server_hostname="localhost").do_handshake()
    return said.read()


def test_strangers_that_break_off_the_handshake_of_tls_leave_nothing_behind(encrypted: RunningDoors) -> None:
    assert all(asks(encrypted) for asks in CALLERS.values())
    before = encrypted.descriptors()
    for door in ("http", "postgres", "flight"):
        for words in (b"", FIRST_WORDS[door], client_hello()[:7], client_hello()):
            for _ in range(RIGHTFUL):
                with encrypted.reach(door) as caller:
                    caller.sendall(words)
    assert all(asks(encrypted) for asks in CALLERS.values())
    await_that(lambda: encrypted.descriptors() <= before, lambda: f"{encrypted.descriptors()} after {before}")


def test_callers_that_have_gone_leave_nothing_behind(doors: RunningDoors) -> None:
    assert all(asks(doors) for asks in CALLERS.values())
    before = doors.descriptors()
    for door, words in FIRST_WORDS.items():
        for _ in range(RIGHTFUL):
            with doors.reach(door):
                pass
            with doors.reach(door) as caller:
                caller.sendall(words[: len(words) // 2])
            with doors.reach(door) as caller:
                caller.sendall(words)
                assert caller.recv(1)
    assert all(asks(doors) for asks in CALLERS.values())
    await_that(lambda: doors.descriptors() <= before, lambda: f"{doors.descriptors()} after {before}")


def test_doors_accept_again_after_a_time_without_descriptors_and_serve_their_callers_meanwhile() -> None:
    with ExitStack() as opened:
        app = HttpApp(gate=CallerGate())
        opened.callback(app.stop)
        postgres = PostgresServer(KeptRows(), {"operator": TOKEN}, Listen(), gate=CallerGate())
        opened.callback(postgres.close)
        grpc = FlightDoor(KeptRows(), lambda token: token == TOKEN, Listen(), gate=CallerGate())
        opened.callback(grpc.close)
        native = opened.enter_context(Server(KEYS, gate=CallerGate()))
        addresses = {
            "http": app.server.address,
            "postgres": postgres.address,
            "flight": grpc.address,
            "native": native.address,
        }
        callers = {door: opened.enter_context(socket.socket()) for door in FIRST_WORDS}
        known = opened.enter_context(flight.FlightClient(f"grpc://{grpc.address}"))
        options = flight.FlightCallOptions(
            headers=[(b"authorization", f"Bearer {TOKEN}".encode())], timeout=SECONDS_MAX
        )
        assert len(list(known.list_flights(options=options))) == 3
        with no_descriptors():
            for door, caller in callers.items():
                host, _, port = addresses[door].rpartition(":")
                caller.settimeout(SECONDS_MAX)
                caller.connect((host, int(port)))
                caller.sendall(FIRST_WORDS[door])
            for _ in range(RIGHTFUL):
                assert len(list(known.list_flights(options=options))) == 3
        for door, caller in callers.items():
            assert caller.recv(1), door


@pytest.mark.parametrize("door", ["postgres", "native"])
def test_a_caller_for_whom_there_is_no_thread_ends_no_door(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, refused = threading.Thread.start, list[str]()

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(("upriver-postgres-", "upriver-calls")) and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        begin(thread)

    gate = CallerGate(Places(unauthenticated=1, clients=1))
    with ExitStack() as opened:
        postgres = PostgresServer(KeptRows(), {"operator": TOKEN}, Listen(), gate=gate)
        opened.callback(postgres.close)
        native = opened.enter_context(
            Server(KEYS, {Purpose.CALLS: Calls({"status": lambda _: {"epoch": 1}})}, gate=gate)
        )
        running = RunningDoors(os.getpid(), {"postgres": postgres.address, "native": native.address})
        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises((psycopg.Error, UpriverError)):
            CALLERS[door](running)
        assert refused
        await_that(lambda: CALLERS[door](running))  # its place is free again
