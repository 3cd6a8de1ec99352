"""The Arrow Flight door, asked from Python and from Go."""

import json
import select
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from doors_kit import ENDLESS, FREED_S_MAX, ROUTES, TOTALS, KeptRows, WatchedRows

from upriver.client.scans import ScanReader
from upriver.doors.flight.relay import DESCRIPTORS, UNPROVED_BYTES_MAX, FlightRelay
from upriver.doors.flight.server import FlightDoor
from upriver.doors.query_processes import CALLER_QUERIES_MAX, QUERIES_MAX
from upriver.errors import AccessDenied, Busy, LakeError, WaitTimeout
from upriver.net.gate import NO_PLACE, UNPROVED_S_MAX, CallerGate, GatedListener, Places
from upriver.net.server import Listen, listening_socket

TOKEN = "s3cret-t0ken"
CLIENT_S_MAX = 10.0
GO = Path(__file__).parents[2] / "support" / "flight_go"
GO_S_MAX = 240.0
"""Seconds in which Go must fetch its modules and build the program."""


@pytest.fixture(scope="module")
def door() -> Iterator[FlightDoor]:
    running = FlightDoor(KeptRows(), lambda token: token == TOKEN, Listen("127.0.0.1", 0))
    yield running
    running.close()


@pytest.fixture
def client(door: FlightDoor) -> Iterator[Any]:
    with flight.FlightClient(f"grpc://{door.address}") as opened:
        yield opened


BEARER_HEADERS = [(b"authorization", b"Bearer " + TOKEN.encode())]
BEARER = flight.FlightCallOptions(headers=BEARER_HEADERS)


def rows_of(client: Any, ticket: bytes) -> pa.Table:
    return client.do_get(flight.Ticket(ticket), BEARER).read_all()


def test_views_are_listed_with_their_columns_and_a_ticket_for_all_rows(client: Any) -> None:
    listed = {info.descriptor.path[0].decode(): info for info in client.list_flights(options=BEARER)}
    assert sorted(listed) == ["Routes", "everything", "totals"]
    assert listed["totals"].schema == TOTALS.schema
    (endpoint,) = listed["Routes"].endpoints
    found = rows_of(client, endpoint.ticket.ticket)
    assert found.equals(ROUTES)
    assert found.schema.metadata[b"upriver.epoch"] == b"7"


def test_a_ticket_names_keys(client: Any) -> None:
    assert rows_of(client, b'{"view": "totals", "keys": [["ada"], "bob", [null]]}')["n"].to_pylist() == [2, 1, 5]
    assert rows_of(client, b'{"view": "Routes", "keys": [["JFK", 2]]}')["delays"].to_pylist() == [[]]


def test_a_command_is_a_query(client: Any) -> None:
    command = flight.FlightDescriptor.for_command("SELECT n, total FROM totals WHERE customer = 'ada'")
    info = client.get_flight_info(command, BEARER)
    assert info.schema == pa.schema([("n", pa.int64()), ("total", pa.decimal128(10, 2))])
    assert client.get_schema(command, BEARER).schema == info.schema
    assert rows_of(client, info.endpoints[0].ticket.ticket)["n"].to_pylist() == [2]


def test_a_basic_handshake_gives_the_header_of_further_calls(client: Any) -> None:
    header = client.authenticate_basic_token("anything", TOKEN)
    options = flight.FlightCallOptions(headers=[header])
    assert len(list(client.list_flights(options=options))) == 3


def test_a_caller_that_goes_around_the_gate_is_refused(door: FlightDoor) -> None:
    with (
        flight.FlightClient(flight.Location.for_grpc_unix(str(door.grpc_path))) as around,
        pytest.raises(flight.FlightUnavailableError),
    ):
        list(around.list_flights(options=BEARER))


def test_grpc_listens_where_no_other_user_and_no_network_reaches_it() -> None:
    opened = FlightDoor(KeptRows(), lambda token: token == TOKEN, Listen("127.0.0.1", 0))
    directory = opened.grpc_path.parent
    try:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        with flight.FlightClient(f"grpc://{opened.address}") as client:
            assert len(list(client.list_flights(options=BEARER))) == 3
            assert list(directory.iterdir()) == [opened.grpc_path]
        assert opened.port == -1
    finally:
        opened.close()
    assert not directory.exists()


def test_the_path_of_grpc_s_socket_is_short_in_any_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("long" * 30)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    opened = FlightDoor(KeptRows(), lambda token: token == TOKEN, Listen("127.0.0.1", 0))
    opened.close()
    assert len(str(opened.grpc_path)) < 104


def test_more_callers_than_there_are_places_are_told_to_come_again() -> None:
    gate = CallerGate(Places(clients=DESCRIPTORS))
    full = FlightDoor(KeptRows(), lambda token: token == TOKEN, Listen("127.0.0.1", 0), gate=gate)
    address = f"grpc://{full.address}"
    try:
        with (
            flight.FlightClient(address) as first,
            flight.FlightClient(address, disable_server_verification=False) as two,
        ):
            assert len(list(first.list_flights(options=BEARER))) == 3
            with pytest.raises(flight.FlightUnavailableError, match=NO_PLACE):
                list(two.list_flights(options=BEARER))
            assert len(list(first.list_flights(options=BEARER))) == 3
    finally:
        full.close()


def test_a_stranger_is_dropped_in_time_also_while_the_server_takes_nothing() -> None:
    """As gRPC does without descriptors."""
    now = [0.0]
    gate = CallerGate(clock=lambda: now[0])
    with TemporaryDirectory(dir="/tmp") as directory, socket.socket(socket.AF_UNIX) as server:
        path = Path(directory) / "grpc"
        server.bind(str(path))
        server.listen()
        listening = listening_socket("127.0.0.1", 0)
        address = listening.getsockname()
        relay = FlightRelay(GatedListener(listening, gate, cost=DESCRIPTORS), path)
        try:
            with socket.create_connection(address, CLIENT_S_MAX) as caller:
                caller.sendall(bytes(UNPROVED_BYTES_MAX))
                assert select.select([server], [], [], CLIENT_S_MAX)[0]  # the relay has connected
                now[0] = UNPROVED_S_MAX
                socket.create_connection(address, CLIENT_S_MAX).close()  # so that the relay looks at the clock
                with suppress(ConnectionError):
                    assert caller.recv(1) == b""
            taken, _ = server.accept()
            with taken:
                taken.settimeout(CLIENT_S_MAX)
                assert bytes(UNPROVED_BYTES_MAX).startswith(b"".join(iter(lambda: taken.recv(1 << 16), b"")))
        finally:
            relay.stop()


def test_without_a_token_nothing_is_told(client: Any) -> None:
    wrong = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer wrong")])
    for options in (wrong, flight.FlightCallOptions()):
        with pytest.raises(flight.FlightUnauthenticatedError, match="app's token"):
            list(client.list_flights(options=options))
        with pytest.raises(flight.FlightUnauthenticatedError, match="app's token"):
            client.do_get(flight.Ticket(b'{"view": "totals"}'), options).read_all()
    with pytest.raises(flight.FlightUnauthenticatedError, match="app's token"):
        client.authenticate_basic_token("anything", "wrong")


def refusal(error: type[Exception] | tuple[type[Exception], ...], said: str, call: Callable[[], Any]) -> Exception:
    """The error of a call: one line that tells nothing of the server's files."""
    with pytest.raises(error, match=said) as caught:
        call()
    text = str(caught.value)
    assert "Traceback" not in text
    assert ".py" not in text
    assert "\n" not in text
    return caught.value


@pytest.mark.parametrize(
    ("ticket", "name", "said"),
    [
        (b'{"view": "nothing"}', b"UnknownView", "there are: Routes, everything, totals"),
        (b'{"view": "' + b"n" * 100_000 + b'"}', b"UnknownView", "no view 'nnn"),
        (b'{"view": "Routes", "keys": ["JFK"]}', b"KeyTypeError", "KeyTypeError"),
        (b'{"query": "DELETE FROM totals"}', b"UnsupportedSql", "views are only read here"),
        (b'{"query": "SELECT nothing FROM totals"}', b"UnsupportedSql", "nothing"),
        (b'{"query": "SELECT CAST(customer AS INT) FROM totals"}', b"RowError", "Could not convert string"),
        (b'{"query": "SELECT 1", "view": "totals"}', b"DeclarationError", "is no ticket"),
        (b"\xff\x00", b"DeclarationError", "is no ticket"),
        (b"[" * 100_000, b"DeclarationError", "is no ticket"),
    ],
)
def test_a_wrong_ticket_is_refused_in_one_line(client: Any, ticket: bytes, name: bytes, said: str) -> None:
    refused = refusal(flight.FlightServerError, said, lambda: rows_of(client, ticket))
    assert refused.extra_info == name  # type: ignore[attr-defined]


def test_what_the_door_does_not_do_is_refused_in_one_line(client: Any) -> None:
    path = flight.FlightDescriptor.for_path("nothing")
    assert [action.type for action in client.list_actions(BEARER)] == [
        "CreatePreparedStatement",
        "ClosePreparedStatement",
    ]
    for call in (
        lambda: client.get_flight_info(path, BEARER),
        lambda: client.get_schema(path, BEARER),
        lambda: list(client.do_action(flight.Action("stop", b""), BEARER)),
        lambda: client.do_put(path, TOTALS.schema, BEARER)[0].close(),
        lambda: client.do_exchange(path, BEARER)[0].close(),
    ):
        refusal((flight.FlightServerError, pa.ArrowInvalid), "UnknownView|DeclarationError", call)


@dataclass
class FailingRows(KeptRows):
    """Views that cannot be read. error: what reading them raises, at the call, or within the stream."""

    error: Exception = field(default_factory=ValueError)

    def scan(self, view: str) -> ScanReader:
        if view == "everything":
            raise self.error
        return ScanReader(TOTALS.schema, 7, (), self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        yield TOTALS.to_batches()[0]
        raise self.error


@pytest.mark.parametrize(
    ("raised", "error", "said"),
    [
        (Busy("too many"), flight.FlightUnavailableError, "Busy: too many"),
        (WaitTimeout("too late"), flight.FlightTimedOutError, "WaitTimeout: too late"),
        (AccessDenied("not yours"), flight.FlightUnauthenticatedError, "AccessDenied: not yours"),
        (LakeError("no file\nat all"), flight.FlightInternalError, "LakeError: no file at all"),
        (ValueError("/secret/path.py"), flight.FlightInternalError, "ValueError: a fault of Upriver"),
    ],
)
def test_a_failure_is_told_in_one_line_at_the_call_and_within_a_stream(
    raised: Exception, error: type[Exception], said: str
) -> None:
    failing = FlightDoor(FailingRows(error=raised), lambda token: token == TOKEN, Listen("127.0.0.1", 0))
    try:
        with flight.FlightClient(f"grpc://{failing.address}") as opened:
            for ticket in (b'{"view": "everything"}', b'{"view": "totals"}'):
                refusal(error, said, partial(rows_of, opened, ticket))
    finally:
        failing.close()


ASK = """
import sys, threading
import pyarrow.flight as flight
address, token, ticket, callers = sys.argv[1:]
options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + token.encode())])
def ask():
    flight.FlightClient(f"grpc://{address}").do_get(flight.Ticket(ticket.encode()), options).read_all()
for _ in range(int(callers)):
    threading.Thread(target=ask).start()
"""
"""A program that asks the same on several threads."""


def test_queries_of_callers_that_are_killed_or_give_up_leave_their_places() -> None:
    rows = WatchedRows()
    watched = FlightDoor(rows, lambda token: token == TOKEN, Listen("127.0.0.1", 0))
    ticket = json.dumps({"query": ENDLESS})
    in_time = flight.FlightCallOptions(headers=BEARER_HEADERS, timeout=FREED_S_MAX)
    impatient = flight.FlightCallOptions(headers=BEARER_HEADERS, timeout=0.5)
    asking = subprocess.Popen([sys.executable, "-c", ASK, watched.address, TOKEN, ticket, str(CALLER_QUERIES_MAX)])
    try:
        assert all(rows.begun.acquire(timeout=FREED_S_MAX) for _ in range(CALLER_QUERIES_MAX))
        asking.kill()
        with flight.FlightClient(f"grpc://{watched.address}") as opened:
            counted = flight.Ticket(b'{"query": "SELECT count(*) AS n FROM totals"}')
            assert opened.do_get(counted, in_time).read_all()["n"].to_pylist() == [4]
            for _ in range(QUERIES_MAX):
                with pytest.raises(flight.FlightTimedOutError):
                    opened.do_get(flight.Ticket(ticket.encode()), impatient).read_all()
            assert opened.do_get(counted, in_time).read_all()["n"].to_pylist() == [4]
    finally:
        asking.kill()
        asking.wait()
        watched.close()


@pytest.mark.long
def test_go_looks_up_scans_and_queries(door: FlightDoor, tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    program = tmp_path / "ask"
    try:
        build = ["go", "build", "-mod=mod", "-o", str(program), "."]
        built = subprocess.run(build, cwd=GO, capture_output=True, text=True, timeout=GO_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("Go could not fetch its modules in time")
    if built.returncode and "proxy" in built.stderr:
        pytest.skip("Go cannot fetch its modules")
    assert built.returncode == 0, built.stderr
    asked = subprocess.run([str(program), door.address, TOKEN], capture_output=True, text=True, timeout=60, check=False)
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout) == {
        "flights": ["Routes", "everything", "totals"],
        "lookup": ["ada 2", "bob 1"],
        "scan": 4,
        "query": ["eve 0"],
    }
