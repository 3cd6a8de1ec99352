"""Addresses that clients may give, and servers that prove themselves before anything is said to them."""

import socket
import threading

import pytest
from server_kit import SECONDS_MAX, TOKEN, calls_server, client_of
from tls_kit import OWN, client_trust

from upriver.errors import AccessDenied, ProtocolError, UserError
from upriver.net.handshake import ANSWER, GREETING, HELLO, Verdict, greeting, nonce
from upriver.net.remote import Connection, Remote
from upriver.net.server import Listen


@pytest.mark.parametrize("address", ["host:80", "grpc://host:80", "grpc+tcp://host:80"])
def test_an_address_may_have_a_scheme(address: str) -> None:
    assert Remote.parse(address, TOKEN) == Remote("host:80", TOKEN.encode())


@pytest.mark.parametrize("address", ["", "host", ":80", "host:", "host:http", "http://host:80", "host:80/path"])
def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="host:port"):
        Remote.parse(address, TOKEN)


@pytest.mark.parametrize(
    ("address", "token", "why"),
    [
        ("0f8c-secret", "127.0.0.1:7000", ", but the token is: give the address first, then the token"),
        (b"0f8c-secret", "127.0.0.1:7000", ", but the token is: give the address first, then the token"),
        ("0f8c-secret", TOKEN, ": it has no port"),
        ("0f8c:secret", TOKEN, ", as a text with a port up to 65535"),
        (b"0f8c-secret", TOKEN, ", as a text with a port up to 65535"),
    ],
)
def test_what_may_be_a_token_is_not_repeated(address: str, token: str, why: str) -> None:
    with pytest.raises(UserError) as raised:
        Remote.parse(address, token)
    assert str(raised.value) == f"the address is not of the form host:port or grpc://host:port{why}"


def test_a_tls_address_needs_certificates_to_trust() -> None:
    with pytest.raises(UserError, match="give tls="):
        Remote.parse("grpc+tls://host:80", TOKEN)
    parsed = Remote.parse("grpc+tls://host:80", TOKEN, OWN)
    assert parsed.at("other:81") == Remote("other:81", TOKEN.encode(), client_trust(host="host"))


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        (Listen(), "127.0.0.1:80"),
        (Listen("::1"), "[::1]:80"),
        (Listen("0.0.0.0", advertised="node7"), "node7:80"),
        (Listen("0.0.0.0"), f"{socket.gethostname()}:80"),
    ],
)
def test_an_address_is_one_that_others_can_reach(listen: Listen, address: str) -> None:
    assert listen.address(80) == address


def test_a_server_of_another_kind_is_told_from_an_app() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            caller, _ = listener.accept()
            with caller:
                caller.sendall(b"HTTP/1.1 400 Bad Request\r\n".ljust(GREETING.size))

        thread = threading.Thread(target=greet)
        thread.start()
        remote = client_of(f"127.0.0.1:{listener.getsockname()[1]}")
        with Connection(remote) as connection, pytest.raises(ProtocolError, match="not an app of this version"):
            connection.act("ping", timeout=SECONDS_MAX)
        thread.join()


def test_a_server_that_does_not_know_the_token_is_not_trusted() -> None:
    """It lets every caller in, but cannot prove itself."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            caller, _ = listener.accept()
            with caller:
                caller.sendall(greeting(nonce()))
                caller.recv(HELLO.size, socket.MSG_WAITALL)
                caller.sendall(ANSWER.pack(Verdict.WELCOME, 0, bytes(32)))

        thread = threading.Thread(target=pretend)
        thread.start()
        remote = client_of(f"127.0.0.1:{listener.getsockname()[1]}")
        with Connection(remote) as connection, pytest.raises(AccessDenied, match="another server"):
            connection.act("ping", timeout=SECONDS_MAX)
        thread.join()


def test_the_token_never_crosses_the_wire() -> None:
    """All that a caller sends, and all that it is sent, in a handshake and a call."""
    heard: list[bytes] = []
    with calls_server() as server, socket.create_server(("127.0.0.1", 0)) as listener:

        def carry(source: socket.socket, target: socket.socket) -> None:
            while some := source.recv(1 << 16):
                heard.append(some)
                target.sendall(some)
            target.shutdown(socket.SHUT_WR)

        def relay() -> None:
            caller, _ = listener.accept()
            with caller, socket.create_connection(("127.0.0.1", server.port)) as callee:
                back = threading.Thread(target=carry, args=(callee, caller))
                back.start()
                carry(caller, callee)
                back.join()

        thread = threading.Thread(target=relay)
        thread.start()
        with Connection(client_of(f"127.0.0.1:{listener.getsockname()[1]}")) as connection:
            assert connection.act("ping", timeout=SECONDS_MAX) == {}
        thread.join()
    said = b"".join(heard)
    assert b"ping" in said
    assert TOKEN.encode() not in said
