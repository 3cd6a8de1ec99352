"""The doors with a certificate: callers check it, and callers without TLS are served nothing."""

import shutil
import socket
import ssl
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pyarrow.flight as flight
import pytest
from doors_kit import ENDLESS, KeptRows
from http_kit import BEARER, HttpApp
from postgres_kit import PASSWORD, asking_to_cancel, said, startup
from server_kit import SECONDS_MAX, TOKEN
from tls_kit import AUTHORITY, FILES, ISSUED_KEY
from tls_kit import OWN as CHAIN
from tls_kit import OWN_KEY as KEY

from upriver.doors.flight.server import FlightDoor
from upriver.doors.postgres.scram import TokenVerifiers
from upriver.doors.postgres.server import PostgresServer
from upriver.doors.postgres.session import PostgresSession
from upriver.errors import DeclarationError, UpriverWarning
from upriver.net.server import Listen
from upriver.options import Doors, Tls

SSL_REQUEST = b"\0\0\0\x08\x04\xd2\x16\x2f"


@pytest.fixture(scope="module")
def certificate() -> Tls:
    made = Tls(certificate=CHAIN, key=str(KEY))
    assert made is not None
    return made


@pytest.fixture(scope="module")
def http(certificate: Tls) -> Iterator[HttpApp]:
    running = HttpApp(tls=certificate)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def postgres(certificate: Tls) -> Iterator[PostgresServer]:
    running = PostgresServer(KeptRows(), {"operator": PASSWORD}, Listen("127.0.0.1", 0), certificate)
    yield running
    running.close()


@contextmanager
def connected(door: Any) -> Iterator[socket.socket]:
    host, _, port = door.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS_MAX) as made:
        yield made


def test_a_browser_logs_in_and_its_cookie_is_only_for_tls(http: HttpApp) -> None:
    base, trusted = f"https://{http.server.address}", ssl.create_default_context(cafile=str(CHAIN))
    with httpx.Client(base_url=base, verify=trusted, timeout=SECONDS_MAX) as caller:
        assert caller.get("/v1/status", headers=BEARER).json()["epoch"] == 5
        cookie = caller.post("/login", data={"token": TOKEN}, headers={"origin": base}).headers["set-cookie"]
        assert cookie.endswith("HttpOnly; SameSite=Strict; Secure")
        assert caller.get("/v1/status").status_code == 200
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        httpx.get(base, timeout=SECONDS_MAX)
    with pytest.raises(httpx.RemoteProtocolError), http.caller() as in_the_clear:
        in_the_clear.get("/v1/status")


def test_a_refusal_is_delivered_whole(http: HttpApp) -> None:
    base, trusted = f"https://{http.server.address}", ssl.create_default_context(cafile=str(CHAIN))
    with httpx.Client(base_url=base, verify=trusted, timeout=SECONDS_MAX, headers=BEARER) as caller:
        for body in (b" " * (5 << 20), iter([b" " * (1 << 20)] * 5)):
            refused = caller.post("/v1/views/planes/lookup", content=body)
            assert (refused.status_code, refused.json()["title"]) == (413, "BodyTooLarge")
        refused = caller.get("/healthz", headers={"x": "y" * 120_000})
        assert (refused.status_code, refused.json()["title"]) == (431, "HeadTooLarge")


def test_old_versions_of_tls_are_refused(certificate: Tls) -> None:
    assert certificate.context().minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("mode", ["require", "verify-full"])
def test_psycopg_asks_over_tls(postgres: PostgresServer, mode: str) -> None:
    host, _, port = postgres.address.rpartition(":")
    told = f"host={host} port={port} user=reader dbname=upriver password={PASSWORD} sslmode={mode} sslrootcert={CHAIN}"
    with psycopg.connect(told) as connection:
        assert connection.execute("SELECT n FROM totals WHERE customer = 'ada'").fetchall() == [(2,)]
        assert connection.pgconn.ssl_in_use


@pytest.mark.verify
def test_a_query_over_tls_is_cancelled(postgres: PostgresServer) -> None:
    host, _, port = postgres.address.rpartition(":")
    told = f"host={host} port={port} user=reader dbname=upriver password={PASSWORD} sslmode=require"
    cancelled = pytest.raises(psycopg.errors.QueryCanceled, match="cancelled by its caller")
    with psycopg.connect(told, autocommit=True) as connection, asking_to_cancel(connection), cancelled:
        connection.execute(ENDLESS)


def test_postgres_serves_nothing_in_the_clear(postgres: PostgresServer) -> None:
    host, _, port = postgres.address.rpartition(":")
    told = f"host={host} port={port} user=reader password={PASSWORD}"
    with pytest.raises(psycopg.OperationalError, match="only encrypted connections are served here: sslmode="):
        psycopg.connect(f"{told} sslmode=disable")
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        psycopg.connect(f"{told} sslmode=verify-full sslrootcert=system")


@pytest.mark.skipif(shutil.which("psql") is None, reason="psql is not installed")
def test_psql_connects_over_tls_by_itself(postgres: PostgresServer) -> None:
    address = f"postgresql://reader:{PASSWORD}@{postgres.address}/upriver"
    command = ["psql", "-XAt", address, "-c", r"\conninfo", "-c", "SELECT n FROM totals WHERE customer = 'ada'"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=True).stdout
    assert "TLS" in told
    assert told.endswith("2\n")


def test_what_comes_before_the_handshake_is_not_taken_for_encrypted() -> None:
    session = PostgresSession(KeptRows(), TokenVerifiers({"operator": PASSWORD}), 7, 11, needs_tls=True)
    ((kind, body),) = said(session, SSL_REQUEST + startup())
    assert (kind, session.is_over, session.awaits_tls) == (b"E", True, False)
    assert b"between the request for TLS and its answer" in body
    session = PostgresSession(KeptRows(), TokenVerifiers({"operator": PASSWORD}), 7, 11, needs_tls=True)
    assert (list(session.receive(SSL_REQUEST)), session.awaits_tls) == ([b"S"], True)
    session.tls_began()
    assert list(session.receive(SSL_REQUEST)) == [b"N"]
    assert [kind for kind, _ in said(session, startup())] == [b"R"]


def test_a_query_is_cancelled_in_the_clear_as_older_clients_do() -> None:
    """They show the secret of their session."""
    session = PostgresSession(KeptRows(), TokenVerifiers({"operator": PASSWORD}), 7, 11, needs_tls=True)
    assert list(session.receive(struct.pack("!iiii", 16, 80877102, 5, 6))) == []
    assert (session.cancels, session.is_over) == ((5, 6), True)


def test_a_caller_that_leaves_amid_the_handshake_gives_its_place_back(postgres: PostgresServer) -> None:
    for _ in range(40):  # more than may be unproved at a time
        with connected(postgres) as caller:
            caller.sendall(SSL_REQUEST)
            assert caller.recv(1) == b"S"
            caller.sendall(b"no hello")
            with suppress(ConnectionError):
                while caller.recv(1000):  # until the server has ended it
                    pass


def test_flight_over_tls(certificate: Tls) -> None:
    door = FlightDoor(KeptRows(), lambda token: token == TOKEN, Listen("127.0.0.1", 0), certificate)
    bearer = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + TOKEN.encode())], timeout=SECONDS_MAX)
    ticket = flight.Ticket(b'{"view": "totals", "keys": [["ada"]]}')
    try:
        with flight.FlightClient(f"grpc+tls://{door.address}", tls_root_certs=CHAIN.read_bytes()) as client:
            assert client.do_get(ticket, bearer).read_all()["n"].to_pylist() == [2]
        with flight.FlightClient(f"grpc://{door.address}") as client, pytest.raises(flight.FlightUnavailableError):
            client.do_get(ticket, bearer)
    finally:
        door.close()


@pytest.mark.parametrize(
    ("chain", "key", "message"),
    [
        (CHAIN, None, r"Tls: key=None: give a text"),
        (None, KEY, r"Tls: certificate=None: give a text"),
        ("absent.pem", KEY, r"Tls: certificate: 'absent.pem' cannot be read: No such file"),
        (FILES, KEY, "cannot be read: Is a directory"),
        (CHAIN, FILES / "another_key.pem", "the key does not belong to the first certificate of"),
        (CHAIN, FILES / "locked_key.pem", r"Tls\(key=.*locked_key.pem'.: the key has a password"),
        (KEY, KEY, r"\(certificate=, key=\): \S+/key.pem has no certificate as PEM$"),
        (CHAIN, CHAIN, r"\(certificate=, key=\): \S+/certificate.pem has no private key as PEM$"),
        (KEY, CHAIN, r"/key.pem has no certificate as PEM and \S+/certificate.pem has no private key as PEM$"),
        (b"-----BEGIN", KEY, r"Tls: certificate: give the path of the file, not what the file has"),
    ],
)
def test_files_that_cannot_be_used_are_refused(chain: Any, key: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        Tls(certificate=chain, key=key)


@pytest.mark.parametrize(
    ("name", "roots", "why"),
    [
        ("expired", None, "certificate has expired"),
        ("issued", CHAIN, r"would not trust it by roots='\S+/certificate.pem': unable to get local issuer certificate"),
        ("for_servers", AUTHORITY, "unsuitable certificate purpose"),
        ("issued", KEY, r"Tls\(roots='\S+/key.pem'\): it has no certificates as PEM"),
        ("issued", "absent.pem", "Tls: roots: 'absent.pem' cannot be read"),
    ],
)
def test_a_certificate_that_the_app_s_processes_would_not_trust_is_refused(name: str, roots: Any, why: str) -> None:
    with pytest.raises(DeclarationError, match=why):
        Tls(certificate=FILES / f"{name}.pem", key=ISSUED_KEY, roots=roots)


@pytest.mark.parametrize(("name", "roots"), [("issued", None), ("issued", AUTHORITY), ("for_servers", None)])
def test_a_certificate_that_they_would_trust_is_taken(name: str, roots: Any) -> None:
    identity = Tls(certificate=FILES / f"{name}.pem", key=ISSUED_KEY, roots=roots).identity()
    assert identity.roots == (None if roots is None else AUTHORITY.read_bytes())


def made(directory: Path, *kind: str) -> tuple[Path, Path]:
    """A certificate for three days, and its key. kind: of the key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    chain, key = directory / "soon.pem", directory / "key.pem"
    given = ["-nodes", "-out", str(chain), "-keyout", str(key), "-subj", "/CN=soon", "-days", "3"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", *kind, *given], capture_output=True, check=True)
    return chain, key


def test_a_certificate_that_expires_soon_is_warned_of(tmp_path: Path) -> None:
    chain, key = made(tmp_path, "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    with pytest.warns(
        UpriverWarning, match=r"soon.pem.*: it expires on 20\d\d-\d\d-\d\d; nothing connects after"
    ) as warned:
        Tls(certificate=chain, key=key)
    assert warned[0].filename == __file__


def test_a_key_that_is_too_short_is_called_so(tmp_path: Path) -> None:
    chain, key = made(tmp_path, "rsa:512")
    with pytest.raises(DeclarationError, match=r"the key of \S+/soon.pem is too short: make an elliptic one"):
        Tls(certificate=chain, key=key)


def test_the_doors_have_no_certificate_of_their_own(certificate: Tls) -> None:
    with pytest.raises(DeclarationError, match=r"tls= is App\(tls=...\) now, and is for everything"):
        Doors(http="127.0.0.1:0", tls=certificate)
