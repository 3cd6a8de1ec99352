"""Calls: which callers are served, what errors become, and that a server stops whatever its clients do.

Where servers listen, and what they advertise.
"""

import multiprocessing
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from server_kit import KEYS, SECONDS_MAX, SECRET, TOKEN, calls_server, client_of, peer_of

from upriver.errors import (
    AccessDenied,
    ClusterError,
    DeclarationError,
    ProtocolError,
    RowError,
    UnknownView,
    UpriverError,
    UserError,
    WaitTimeout,
    WorkerLost,
)
from upriver.net.handshake import HandshakeKeys, Purpose
from upriver.net.line import ERROR_TEXT_CHARS_MAX
from upriver.net.remote import Connection, Remote, dial
from upriver.net.server import (
    GET_ROWS_MAX,
    Caller,
    Listen,
    Server,
    SparkHosts,
    is_loopback,
    listen_at,
    listen_for,
    local_address_to,
    outward_address,
)

NUMBERS = pa.schema([("n", pa.int64())])


def not_held(_: Mapping[str, Any], first: int) -> pa.Table:
    raise WaitTimeout("snapshot 3 is no longer held")


def fail_with(error: Exception) -> Callable[[Mapping[str, Any]], Any]:
    def handler(_: Mapping[str, Any]) -> Any:
        raise error

    return handler


@pytest.fixture
def server() -> Iterator[Server]:
    actions = {
        "add": lambda asked: {"sum": asked["a"] + asked["b"]},
        "refuse": fail_with(UnknownView("no view 'x'; there are: planes")),
        "fail": fail_with(ZeroDivisionError("division by zero")),
        "ramble": fail_with(RowError("ü" * 100_000)),
        "odd": lambda _: {"when": object()},
    }
    gets = {
        "numbers": lambda asked, _: pa.table({"n": range(asked["rows"])}),
        "refuse": not_held,
    }
    with calls_server(actions, gets) as running:
        yield running


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    with Connection(client_of(server.address)) as open_connection:
        yield open_connection


# Which callers may call


CALLS: list[Callable[[Connection], Any]] = [
    lambda connection: connection.act("add", {"a": 1, "b": 2}, timeout=SECONDS_MAX),
    lambda connection: list(connection.get("numbers", {"rows": 3}, NUMBERS, timeout=SECONDS_MAX)),
]


@pytest.mark.parametrize("call", CALLS, ids=["action", "get"])
@pytest.mark.parametrize("token", ["s3cret-t0keN", "s3cret-t0ken0", "x"])
def test_no_call_is_served_without_the_token(server: Server, call: Callable[[Connection], Any], token: str) -> None:
    with Connection(Remote.parse(server.address, token)) as stranger, pytest.raises(AccessDenied) as refusal:
        call(stranger)
    assert server.address in str(refusal.value)
    assert token not in str(refusal.value)
    assert TOKEN not in str(refusal.value)


def test_the_token_is_in_no_repr_and_no_output(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    remote = client_of(server.address)
    with Connection(remote) as connection:
        shown = [repr(remote), repr(connection), repr(server), str(vars(server))]
        with pytest.raises(ProtocolError):
            connection.act("fail", timeout=SECONDS_MAX)
    printed = "".join([*shown, *capfd.readouterr()])
    assert TOKEN not in printed
    assert repr(SECRET) not in printed


@pytest.mark.parametrize("token", ["", " padded ", "new\nline", "naïve"])
def test_a_token_that_is_none_is_refused_by_both_sides(token: str) -> None:
    with pytest.raises(UserError, match="token"):
        Server(HandshakeKeys(token, SECRET))
    with pytest.raises(UserError, match="token"):
        Remote.parse("127.0.0.1:1", token)


# What calls give


def test_an_action_answers(connection: Connection) -> None:
    assert connection.act("add", {"a": 1, "b": 2}, timeout=SECONDS_MAX) == {"sum": 3}


@pytest.mark.parametrize("rows", [0, 1, GET_ROWS_MAX + 1])
def test_a_get_gives_all_rows_in_bounded_batches(connection: Connection, rows: int) -> None:
    batches = list(connection.get("numbers", {"rows": rows}, NUMBERS, timeout=SECONDS_MAX))
    assert [number for batch in batches for number in batch.column(0).to_pylist()] == list(range(rows))
    assert all(batch.num_rows <= GET_ROWS_MAX for batch in batches)


def test_a_reader_that_stops_reading_a_get_does_not_wait_for_the_rest(connection: Connection) -> None:
    rows = connection.get("numbers", {"rows": 50 * GET_ROWS_MAX}, NUMBERS, timeout=SECONDS_MAX)
    assert next(rows).num_rows == GET_ROWS_MAX
    assert isinstance(rows, Generator)
    rows.close()
    assert connection.act("add", {"a": 1, "b": 1}, timeout=SECONDS_MAX) == {"sum": 2}


@pytest.mark.parametrize(
    ("action", "kind", "message"),
    [
        ("refuse", UnknownView, "no view 'x'; there are: planes"),
        ("fail", ProtocolError, "ZeroDivisionError: division by zero"),
        ("odd", ProtocolError, "cannot be written as JSON: Encoding objects of type object is unsupported"),
        ("nothing", ProtocolError, "no action 'nothing'; there are: add, fail, odd, ping, ramble, refuse"),
        ("add", ProtocolError, "the question lacks the field 'a'"),
    ],
)
def test_an_action_s_error_arrives_as_it_was(
    connection: Connection, action: str, kind: type[UpriverError], message: str
) -> None:
    with pytest.raises(kind) as raised:
        connection.act(action, timeout=SECONDS_MAX)
    assert type(raised.value) is kind
    assert str(raised.value) == message


def test_a_long_error_arrives_cut(connection: Connection) -> None:
    with pytest.raises(RowError) as raised:
        connection.act("ramble", timeout=SECONDS_MAX)
    assert str(raised.value).startswith("ü" * ERROR_TEXT_CHARS_MAX)
    assert str(raised.value).endswith("more characters)")


def test_a_get_s_error_arrives_as_it_was(connection: Connection) -> None:
    with pytest.raises(WaitTimeout, match=r"^snapshot 3 is no longer held$"):
        list(connection.get("refuse", {}, NUMBERS, timeout=SECONDS_MAX))
    with pytest.raises(ProtocolError, match="no get 'nothing'; there are: numbers, refuse"):
        list(connection.get("nothing", {}, NUMBERS, timeout=SECONDS_MAX))


# Servers that do not answer


@pytest.mark.parametrize("lost", [ClusterError, WorkerLost])
def test_a_server_that_is_gone_is_named(lost: type[ClusterError]) -> None:
    with calls_server() as server:
        address = server.address
    with Connection(client_of(address), lost) as connection, pytest.raises(lost, match=address) as raised:
        connection.act("add", timeout=SECONDS_MAX)
    assert type(raised.value) is lost


def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with Connection(client_of(address)) as connection, pytest.raises(ClusterError, match=address):
            connection.act("add", timeout=0.2)
        with pytest.raises(WorkerLost, match=r"in 0\.2 s"):
            dial(peer_of(address), Purpose.CHANNEL, 0.2, WorkerLost)


def test_a_handler_that_takes_too_long_is_given_up() -> None:
    answer = threading.Event()
    actions = {"wait": lambda _: {"waited": answer.wait(SECONDS_MAX)}}
    with calls_server(actions) as server, Connection(client_of(server.address)) as connection:
        with pytest.raises(WaitTimeout, match=server.address):
            connection.act("wait", timeout=0.1)
        answer.set()


def test_a_closed_connection_says_so(server: Server) -> None:
    connection = Connection(client_of(server.address), WorkerLost)
    connection.close()
    for call in CALLS:
        with pytest.raises(WorkerLost, match="closed"):
            call(connection)


# Stopping


class Hall:
    """A service that is asked whether it was stopped."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def serve(self, caller: Caller) -> None:
        caller.stream.write(b"hello")

    def stop(self) -> None:
        self.stopped.set()


def test_services_are_open_to_callers_and_end_with_the_server() -> None:
    hall = Hall()
    server = Server(KEYS, {Purpose.CHANNEL: hall})
    stream, _ = dial(peer_of(server.address), Purpose.CHANNEL, SECONDS_MAX)
    assert stream.take(5) == b"hello"
    stream.close()
    assert not hall.stopped.is_set()
    server.stop()
    assert hall.stopped.is_set()
    server.stop()  # again: nothing happens


def test_services_of_a_server_that_cannot_listen_are_stopped(server: Server) -> None:
    hall = Hall()
    with pytest.raises(ClusterError, match="cannot listen"):
        Server(KEYS, {Purpose.CHANNEL: hall}, listen=Listen(port=server.port))
    assert hall.stopped.is_set()


def call_and_freeze(address: str, ready: Any) -> None:
    """A client process that reads some of a get's rows, and then does nothing any more."""
    with Connection(client_of(address)) as connection:
        rows = connection.get("numbers", {"rows": 50 * GET_ROWS_MAX}, NUMBERS, timeout=SECONDS_MAX)
        next(rows)
        ready.send(os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP)


def test_a_frozen_client_does_not_keep_a_server_from_stopping(server: Server) -> None:
    spawn = multiprocessing.get_context("spawn")
    ready, told = spawn.Pipe()
    client = spawn.Process(target=call_and_freeze, args=(server.address, told))
    client.start()
    try:
        assert ready.poll(SECONDS_MAX * 3)
        server.stop()
        assert client.is_alive()
    finally:
        client.kill()
        client.join()


def test_a_stopping_server_waits_for_handlers_and_refuses_new_calls() -> None:
    entered, leave = threading.Event(), threading.Event()

    def linger(_: Mapping[str, Any]) -> Mapping[str, Any]:
        entered.set()
        return {"left": leave.wait(SECONDS_MAX)}

    server = calls_server({"linger": linger})
    with ThreadPoolExecutor(2) as pool, Connection(client_of(server.address)) as connection:
        call = pool.submit(connection.act, "linger", timeout=SECONDS_MAX)
        assert entered.wait(SECONDS_MAX)
        stop = pool.submit(server.stop)
        with pytest.raises(ClusterError, match=server.address):
            call.result(SECONDS_MAX)
        with pytest.raises(ClusterError, match=server.address):
            connection.act("linger", timeout=SECONDS_MAX)
        assert not stop.done()
        leave.set()
        stop.result(SECONDS_MAX)


def test_a_port_that_is_taken_is_a_clear_error() -> None:
    with calls_server() as server, pytest.raises(ClusterError, match=f"cannot listen on 127.0.0.1:{server.port}"):
        Server(KEYS, listen=Listen(port=server.port))


@pytest.mark.parametrize("host", ["192.0.2.1", "x" * 64])
def test_a_host_that_is_none_of_this_machine_is_named_without_a_port_that_was_not_given(host: str) -> None:
    with pytest.raises(ClusterError) as raised:
        Server(KEYS, listen=Listen(host))
    assert re.match(
        rf"cannot listen on {re.escape(host)} \([^0]+\): give App\(listen=\.\.\.\) an address of this machine\.",
        str(raised.value),
    )


NAMES = {
    "localhost": ["127.0.0.1", "::1"],
    "debian": ["127.0.1.1"],
    "driver-svc": ["10.9.0.1"],
    "mixed": ["127.0.0.1", "10.0.0.1"],
}
LAPTOP = SparkHosts(master="local[4]", executors_are_here=True, driver_host="192.168.1.7", driver_bind=None)
ON_LOOPBACK = SparkHosts(
    master="spark://127.0.0.1:7077", executors_are_here=False, driver_host="127.0.0.1", driver_bind=None
)
CLUSTER = SparkHosts(master="spark://m:7077", executors_are_here=False, driver_host="10.77.0.1", driver_bind=None)
POD = SparkHosts(master="k8s://api", executors_are_here=False, driver_host="driver-svc", driver_bind="10.1.2.3")


def resolve(name: str) -> Sequence[str]:
    return NAMES.get(name, [])


def listen(address: str | None, spark: SparkHosts) -> Listen:
    given = None if address is None else listen_at("listen", address)
    return listen_for(given, spark, resolve=resolve, outward=lambda: "192.168.1.7")


@pytest.mark.parametrize(
    ("given", "spark", "host", "address"),
    [
        (None, LAPTOP, "127.0.0.1", "127.0.0.1:7"),
        (None, ON_LOOPBACK, "127.0.0.1", "127.0.0.1:7"),
        (None, CLUSTER, "10.77.0.1", "10.77.0.1:7"),
        (None, POD, "10.1.2.3", "driver-svc:7"),
        ("0.0.0.0:0", LAPTOP, "0.0.0.0", "192.168.1.7:7"),
        ("0.0.0.0:0", ON_LOOPBACK, "0.0.0.0", "192.168.1.7:7"),
        ("0.0.0.0:0", CLUSTER, "0.0.0.0", "10.77.0.1:7"),
        ("[::]:0", POD, "::", "driver-svc:7"),
        ("127.0.0.1:0", LAPTOP, "127.0.0.1", "127.0.0.1:7"),
        ("localhost:0", ON_LOOPBACK, "localhost", "localhost:7"),
        ("[::1]:0", LAPTOP, "::1", "[::1]:7"),
        ("10.77.0.9:0", CLUSTER, "10.77.0.9", "10.77.0.9:7"),
        ("driver-svc:0", CLUSTER, "driver-svc", "driver-svc:7"),
    ],
)
def test_where_the_coordinator_listens_and_what_it_advertises(
    given: str | None, spark: SparkHosts, host: str, address: str
) -> None:
    chosen = listen(given, spark)
    assert (chosen.host, chosen.address(7)) == (host, address)


def test_a_port_that_is_given_stays() -> None:
    for spark in (LAPTOP, CLUSTER, POD):
        assert listen("0.0.0.0:7000", spark).port == 7000


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.9.9.9", "debian"])
def test_loopback_where_executors_are_elsewhere_is_refused_with_the_way_out(host: str) -> None:
    with pytest.raises(DeclarationError, match=r"listen=.*spark://m:7077.*Leave listen out.*on 10\.77\.0\.1\. If all"):
        listen(f"{host}:0", CLUSTER)


@pytest.mark.parametrize("given", ["127.0.0.1", "::1:5555", "grpc://node:1", " node:1", "a/b:1", "node:99999", "", 5])
def test_what_is_no_address_is_refused_with_what_to_write(given: Any) -> None:
    with pytest.raises(DeclarationError) as refused:
        listen_at("listen", given)
    assert f'listen={given!r}: give "host:port", as in "127.0.0.1:8080"; port 0' in str(refused.value)


@pytest.mark.parametrize(
    ("host", "answer"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("debian", True), ("mixed", False), ("10.0.0.1", False),
     ("unknown", False), ("0.0.0.0", False)],
)  # fmt: skip
def test_loopback_is_what_this_machine_alone_reaches(host: str, answer: bool) -> None:
    assert is_loopback(host, resolve) == answer


@pytest.mark.parametrize("interface", ["127.0.0.1", "127.0.0.2"])
def test_a_worker_advertises_the_local_address_by_which_it_reached_the_coordinator(interface: str) -> None:
    with socket.create_server((interface, 0)) as server:
        found = local_address_to(f"{interface}:{server.getsockname()[1]}")
        server.accept()[0].close()
    assert is_loopback(found)


def test_an_address_that_cannot_be_reached_is_named_with_the_host_that_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(ClusterError, match=f"{address} cannot be reached from {socket.gethostname()}: "):
        local_address_to(address)
    with pytest.raises(ClusterError, match=r"nowhere\.invalid:1 cannot be reached"):
        local_address_to("nowhere.invalid:1")


def test_this_machine_has_an_address_to_advertise() -> None:
    assert socket.inet_aton(outward_address())
