"""Addresses that clients may give, and TLS."""

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from upriver.errors import AccessDenied, ClusterError, UserError
from upriver.shell.flight import FlightBase, Listen, Tls
from upriver.shell.remote import Connection, Remote

TOKEN = "s3cret-t0ken"
SECONDS_MAX = 10.0
"""Seconds that a test waits for what must come at once."""


@pytest.mark.parametrize("address", ["host:80", "grpc://host:80", "grpc+tcp://host:80"])
def test_an_address_may_have_a_scheme(address: str) -> None:
    assert Remote.parse(address, TOKEN) == Remote("host:80", TOKEN)


@pytest.mark.parametrize("address", ["", "host", ":80", "host:", "host:http", "http://host:80", "host:80/path"])
def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="host:port"):
        Remote.parse(address, TOKEN)


def test_a_tls_address_needs_certificates_to_trust() -> None:
    with pytest.raises(UserError, match="tls_roots"):
        Remote.parse("grpc+tls://host:80", TOKEN)
    assert Remote.parse("grpc+tls://host:80", TOKEN, b"PEM").at("other:81") == Remote("other:81", TOKEN, b"PEM")


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


def self_signed(directory: Path) -> Tls:
    """A certificate for 127.0.0.1 that signs itself."""
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return Tls(certificate.read_bytes(), key.read_bytes())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make a certificate with")
def test_calls_go_over_tls(tmp_path: Path) -> None:
    tls = self_signed(tmp_path)
    with FlightBase(TOKEN, listen=Listen(tls=tls), actions={"hi": lambda _: {"said": "hi"}}) as server:
        with Connection(Remote(server.address, TOKEN, tls.cert_chain)) as connection:
            assert connection.act("hi", timeout=SECONDS_MAX) == {"said": "hi"}
        with Connection(Remote(server.address, TOKEN)) as plain, pytest.raises(ClusterError):
            plain.act("hi", timeout=SECONDS_MAX)
        with Connection(Remote(server.address, "wrong", tls.cert_chain)) as stranger, pytest.raises(AccessDenied):
            stranger.act("hi", timeout=SECONDS_MAX)
    assert "PRIVATE" not in repr(tls)
