"""The caller's side: connections to servers, after each end has proved to the other that it knows the key."""

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

import pyarrow as pa

from upriver.arguments import whole
from upriver.errors import AccessDenied, ClusterError, ProtocolError, SealBroken, UserError, WaitTimeout
from upriver.net.byte_stream import SECONDS_MIN, ByteStream
from upriver.net.handshake import (
    ANSWER,
    GREETING,
    MAGIC,
    TLS_ONLY,
    Exchange,
    Identity,
    Purpose,
    Session,
    Verdict,
    hello,
    is_same,
    nonce,
)
from upriver.net.line import ANSWER_TERMS, CALL_TERMS, Frame, Line
from upriver.net.tls import PlainServer, TlsSocket, TlsTrust
from upriver.net.wire import encode_json, error_from_json, refusing_malformed

CONNECT_S_MAX = 5.0
"""Seconds in which a server must accept a connection and prove itself."""
TOKEN_CHARS_MAX = 4_096
"""Characters of a token."""
IDLE_LINES_MAX = 4
"""Lines that a connection keeps open while no call needs them."""
IDLE_S_MAX = 120.0
"""Seconds for which it keeps them: fewer than the server, which might close a line just as a call uses it."""

PORT_MAX = 65_535
"""The highest number of a TCP port."""
_HOST_AND_PORT = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]):(?P<port>[0-9]{1,5})", re.ASCII)
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_SCHEMES = ("", "grpc", "grpc+tcp", "grpc+tls")
"""Schemes of addresses; those of the first releases, which spoke Arrow Flight, still name the same server."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A server as a caller sees it. address: ``host:port``. key: the app's token, or the cluster's secret.

    tls: how the server is verified; ``None``: it does not encrypt.
    """

    address: str
    key: bytes = field(repr=False)
    tls: TlsTrust | None = None

    def __post_init__(self) -> None:
        host, colon, port = self.address.rpartition(":")
        if not (host and colon and port.isdecimal()) or "/" in host:
            raise _no_address(self.address)

    @classmethod
    def parse(cls, address: str, token: str, tls: object = None) -> Self:
        """A client's, from ``host:port``, ``grpc://host:port`` or, with ``tls``, ``grpc+tls://host:port``. tls: as
        ``connect`` takes it, or a TlsTrust.

        Raises UserError for any other form, for a malformed token, and for certificates that cannot be read.
        """
        if not isinstance(address, str):
            raise _no_address(address, token)
        check_token(token)
        scheme, _, rest = address.rpartition("://")
        if scheme == "grpc+tls" and tls is None:
            raise UserError(f"address {address!r} asks for TLS: give tls=, the certificates to trust")
        place = rest if scheme in _SCHEMES else address
        found = _HOST_AND_PORT.fullmatch(place)
        if found is None or int(found["port"]) > PORT_MAX:
            raise _no_address(address, token)
        if tls is not None and not isinstance(tls, TlsTrust):
            tls = TlsTrust.of_client(tls, place.rpartition(":")[0])
        return cls(place, token.encode(), tls)

    def at(self, address: str) -> Self:
        """Another server of the same app."""
        return type(self)(address, self.key, self.tls)


def check_token(token: str) -> None:
    """Raise UserError for a malformed token. The message does not repeat it."""
    is_text = isinstance(token, str) and token.isascii() and token.isprintable() and token == token.strip()
    if not is_text or not 0 < len(token) <= TOKEN_CHARS_MAX:
        raise UserError(f"a token is 1 to {TOKEN_CHARS_MAX:,} printable ASCII characters, without blanks around them")


def _no_address(address: object, token: object = "") -> UserError:
    """The message repeats neither: a user may have given one in place of the other."""
    if isinstance(token, str) and _HOST_AND_PORT.fullmatch(token):
        why = ", but the token is: give the address first, then the token"
    elif isinstance(address, str) and ":" not in address:
        why = ": it has no port"
    else:
        why = f", as a text with a port up to {PORT_MAX}"
    return UserError(f"the address is not of the form host:port or grpc://host:port{why}")


# Reaching a server


def dial(
    remote: Remote, purpose: Purpose, timeout: float, lost: Callable[[str], ClusterError] = ClusterError
) -> tuple[ByteStream, Session]:
    """A connection for some purpose, once both ends have proved that they know the key. timeout: seconds.

    Raises the error that ``lost`` makes of the cause if the server cannot be reached; AccessDenied, also for a
    certificate that is not to be trusted; ClusterError if the server is full; UserError if one end alone speaks TLS.
    """
    host, _, port = remote.address.rpartition(":")
    timeout = max(SECONDS_MIN, timeout)
    try:
        connected = socket.create_connection((host.strip("[]"), int(port)), timeout)
    except TimeoutError:
        raise lost(f"{remote.address} cannot be reached in {timeout:.3g} s") from None
    except (UnicodeError, OverflowError):
        raise _no_address(remote.address) from None
    except OSError as error:
        raise lost(f"{remote.address} cannot be reached: {error}") from None
    try:
        return _met(connected, remote, purpose, time.monotonic() + timeout)
    except BaseException as error:
        connected.close()
        if isinstance(error, ssl.SSLCertVerificationError):
            raise AccessDenied(_untrusted(remote, error.verify_message)) from None
        if isinstance(error, PlainServer):  # net.no_silent_plain_text
            raise UserError(
                f"{remote.address} does not speak TLS, and nothing is sent to it in the clear: leave tls= out, or "
                f"start the app with App(tls=...)"
            ) from None
        if isinstance(error, TimeoutError):
            raise lost(f"{remote.address} cannot be reached in {timeout:.3g} s") from None
        if isinstance(error, OSError):
            raise lost(f"{remote.address} cannot be reached: {error}") from None
        raise


def _untrusted(remote: Remote, why: str) -> str:
    assert remote.tls is not None
    named = "" if remote.tls.host is None else f" for {remote.tls.host!r}"
    return (
        f"{remote.address} shows a certificate that is not trusted{named}: {why}. Give tls= the certificates that the "
        f"app's was issued by, or the app's own, and an address whose host it names"
    )


def _met(connected: socket.socket, remote: Remote, purpose: Purpose, give_up_at: float) -> tuple[ByteStream, Session]:
    if remote.tls is None:
        stream = ByteStream(connected)
        return stream, _meet(stream, remote, purpose, give_up_at)
    encrypted = TlsSocket.of_caller(connected, remote.tls, give_up_at)
    stream = ByteStream(encrypted)
    return stream, _meet(stream, remote, purpose, give_up_at, encrypted.other_certificate() or b"")


def _meet(stream: ByteStream, remote: Remote, purpose: Purpose, give_up_at: float, certificate: bytes = b"") -> Session:
    """The caller's side of the handshake. certificate: the server's, over TLS. Raises OSError, AccessDenied,
    ClusterError, ProtocolError."""
    stream.write(MAGIC)
    greeting = stream.read(GREETING.size, give_up_at)
    if len(greeting) < GREETING.size:
        raise ConnectionError("it has closed the connection")
    magic, server_nonce = GREETING.unpack(greeting)
    if magic == TLS_ONLY:  # net.no_silent_plain_text
        raise UserError(f"{remote.address} speaks TLS: give tls=, the certificates to trust")
    if magic != MAGIC:
        raise ProtocolError(f"{remote.address} is not an app of this version of Upriver: it greets with {magic!r}")
    exchange = Exchange(purpose, server_nonce, nonce(), certificate)
    stream.write(hello(exchange, remote.key)[len(MAGIC) :])
    answer = stream.read(ANSWER.size, give_up_at)
    if len(answer) < ANSWER.size:
        raise ConnectionError("it has closed the connection")
    verdict, number, proof = ANSWER.unpack(answer)
    needed = "cluster's secret" if purpose.needs is Identity.CLUSTER else "app's token"
    if verdict == Verdict.FULL:
        raise ClusterError(
            f"{remote.address} has places for {number} {purpose.needs} connections, three quarters of them at most for "
            f"clients of one host with one token, and none is free: close some clients, or let its process open more "
            f"files (ulimit -n)"
        )
    if verdict == Verdict.NOT_SERVED:
        raise ProtocolError(f"{remote.address} does not serve {purpose}")
    if verdict == Verdict.NO_CERTIFICATE:
        raise AccessDenied(f"{remote.address}: this process has shown no certificate of the app's")
    if verdict != Verdict.WELCOME:
        between = ", or another server ends TLS on the way" if certificate else ""
        raise AccessDenied(f"{remote.address}: not the {needed}{between}")
    if not is_same(proof, exchange.proof_of_server(remote.key)):
        raise AccessDenied(f"{remote.address} does not know the {needed} itself: it is another server")
    return exchange.session_of_caller(remote.key)


# Calling it


def check_schema(sender: str, rows: pa.RecordBatch, schema: pa.Schema) -> None:
    """Raise ProtocolError for rows of another schema. sender: its address."""
    if not rows.schema.equals(schema):
        raise ProtocolError(f"{sender} sent rows of ({_columns(rows.schema)}), where ({_columns(schema)}) belong")


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


class Connection:
    """A client's calls to one server; every method raises only UpriverErrors, the server's own among them.

    Connects when first used. lost: makes the error from its cause when the server cannot be reached. Usable by many
    threads.
    """

    def __init__(self, remote: Remote, lost: Callable[[str], ClusterError] = ClusterError) -> None:
        self.remote = remote
        self._lost = lost
        self._lock = threading.Lock()
        """Guards all that follows."""
        self._idle: list[tuple[Line, float]] = []
        """Each with the time of its last use, by the monotonic clock."""
        self._is_closed = False

    @property
    def address(self) -> str:
        return self.remote.address

    def act(self, action: str, fields: Mapping[str, Any] = _NOTHING, *, timeout: float) -> dict[str, Any]:
        """The answer of an action. Raises WaitTimeout after ``timeout`` seconds, and the handler's errors."""
        with self._asking({"act": action, "fields": dict(fields)}, time.monotonic() + timeout) as frame:
            return dict(frame.head["answer"])

    def get(
        self, name: str, fields: Mapping[str, Any], schema: pa.Schema, *, timeout: float
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a get, as they are pulled. schema: theirs. Raises as :meth:`act` does; ``timeout`` is for all
        rows together."""
        give_up_at, done, rows = time.monotonic() + timeout, 0, 1
        while done < rows:
            with self._asking({"get": name, "fields": dict(fields), "from": done}, give_up_at) as frame:
                batch, rows = frame.batch, whole("rows", frame.head["rows"])
                if batch is not None:
                    check_schema(self.address, batch, schema)
                elif done < rows:
                    raise ProtocolError(f"{self.address} sent no rows of {name!r}, of which {rows - done:,} are left")
            if batch is None or not batch.num_rows:
                return
            done += batch.num_rows
            yield batch

    def piece(
        self, name: str, fields: Mapping[str, Any], *, timeout: float
    ) -> tuple[dict[str, Any], pa.RecordBatch | None]:
        """The answer of an action that gives rows, too. Raises as :meth:`act` does."""
        with self._asking({"piece": name, "fields": dict(fields)}, time.monotonic() + timeout) as frame:
            return dict(frame.head["answer"]), frame.batch

    def close(self) -> None:
        """Drop the connection; calls of other threads go on."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for line, _ in idle:
            line.close()

    @contextmanager
    def _asking(self, question: Mapping[str, Any], give_up_at: float) -> Iterator[Frame]:
        """The answer, for a block that reads it. The line is used again if it could. Raises ProtocolError if not."""
        if (size := len(encode_json(question))) > CALL_TERMS.head_bytes_max:
            raise UserError(f"a call of {size:,} bytes: at most {CALL_TERMS.head_bytes_max:,} are taken; ask in parts")
        line = self._line(give_up_at)
        try:
            line.wait_at_most(give_up_at - time.monotonic())
            line.send(question)
            frame = line.receive()
            line.wait_at_most(None)
        except TimeoutError:
            line.close()
            raise WaitTimeout(f"{self.address} did not answer in time") from None
        except OSError as error:
            line.close()
            raise self._lost(f"{self.address} cannot be reached: {error}") from None
        except BaseException:
            line.close()
            raise
        if frame is None:
            line.close()
            raise self._lost(f"{self.address} cannot be reached: it has closed the connection")
        if "error" in frame.head:
            told = error_from_json(frame.head)
            if isinstance(told, SealBroken):
                line.close()  # as the server does
            else:
                self._give_back(line)
            raise told
        try:
            with refusing_malformed(self.address):
                yield frame
        except ProtocolError:
            line.close()
            raise
        self._give_back(line)

    def _line(self, give_up_at: float) -> Line:
        """An open line that no other call uses."""
        while True:
            with self._lock:
                if self._is_closed:
                    raise self._lost(f"{self.address}: the connection is closed")
                idle = self._idle.pop() if self._idle else None
            if idle is None:
                break
            line, used_at = idle
            if time.monotonic() < used_at + IDLE_S_MAX and line.is_quiet:
                return line
            line.close()
        timeout = min(CONNECT_S_MAX, max(0.001, give_up_at - time.monotonic()))
        stream, session = dial(self.remote, Purpose.CALLS, timeout, self._lost)
        return Line(stream, ANSWER_TERMS, session)

    def _give_back(self, line: Line) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < IDLE_LINES_MAX:
                self._idle.append((line, time.monotonic()))
                return
        line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
