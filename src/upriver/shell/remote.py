"""The client's side of Arrow Flight: every call shows the app's token, every failure is an UpriverError."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

import pyarrow as pa
from pyarrow import flight

from upriver.errors import AccessDenied, ClusterError, ProtocolError, UpriverError, UserError, WaitTimeout
from upriver.shell.wire import decode_json, encode_json, error_from_json

CONNECT_MS_MAX = 5000
"""Milliseconds in which a server must accept a connection and speak."""
TOKEN_CHARS_MAX = 4_096
"""Characters of a token: a header has room for some thousands."""
PING = "ping"
"""An action that every server has, and that does nothing."""

_CLIENT_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # workers are reached directly, whatever the environment says
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS_MAX),  # gRPC's name for the time limit on connecting
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Remote:
    """A server as a client sees it. address: ``host:port``. tls_roots: PEM; ``None`` means no TLS."""

    address: str
    token: str = field(repr=False)
    tls_roots: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        host, colon, port = self.address.rpartition(":")
        if not (host and colon and port.isdecimal()) or "/" in host:
            raise _no_address(self.address)

    @classmethod
    def parse(cls, address: str, token: str, tls_roots: bytes | None = None) -> Self:
        """From ``host:port``, ``grpc://host:port`` or, with ``tls_roots``, ``grpc+tls://host:port``.

        Raises UserError for any other form.
        """
        if not isinstance(address, str):
            raise _no_address(address)
        scheme, _, rest = address.rpartition("://")
        if scheme == "grpc+tls" and tls_roots is None:
            raise UserError(f"address {address!r} asks for TLS: give tls_roots, the certificates to trust")
        return cls(rest if scheme in ("", "grpc", "grpc+tcp", "grpc+tls") else address, token, tls_roots)

    def at(self, address: str) -> Self:
        """Another server of the same app."""
        return type(self)(address, self.token, self.tls_roots)


def check_token(token: str) -> None:
    """Raise UserError unless the token can be a header's value. It is not repeated in the message."""
    is_text = isinstance(token, str) and token.isascii() and token.isprintable() and token == token.strip()
    if not is_text or not 0 < len(token) <= TOKEN_CHARS_MAX:
        raise UserError(f"a token is 1 to {TOKEN_CHARS_MAX:,} printable ASCII characters, without blanks around them")


def _no_address(address: object) -> UserError:
    return UserError(f"address {address!r} is not of the form host:port or grpc://host:port")


class Connection:
    """A client's connection to one server; every method raises UpriverErrors only, the server's own among them.

    Connects when first used. lost: the error's class when the server cannot be reached. Usable by many threads.
    """

    def __init__(self, remote: Remote, lost: type[ClusterError] = ClusterError) -> None:
        check_token(remote.token)
        scheme = "grpc" if remote.tls_roots is None else "grpc+tls"
        self.address = remote.address
        self.is_over_tls = remote.tls_roots is not None
        self._lost = lost
        self._headers = [(b"authorization", f"Bearer {remote.token}".encode())]
        try:
            self._client: flight.FlightClient | None = flight.FlightClient(
                f"{scheme}://{remote.address}",
                tls_root_certs=remote.tls_roots,
                generic_options=list(_CLIENT_OPTIONS),
            )
        except (pa.ArrowInvalid, UnicodeError):
            raise _no_address(remote.address) from None

    def act(self, action: str, fields: Mapping[str, Any] = _NOTHING, *, timeout: float) -> dict[str, Any]:
        """The answer of an action. Raises WaitTimeout after ``timeout`` seconds, and what the handler raised."""
        options = flight.FlightCallOptions(timeout=timeout, headers=self._headers)
        try:
            (answer,) = self._open_client().do_action(flight.Action(action, encode_json(fields)), options)
        except pa.ArrowException as error:
            raise self.error(error) from None
        return decode_json(answer.body)

    def get(self, name: str, fields: Mapping[str, Any], *, timeout: float) -> Iterator[pa.RecordBatch]:
        """The rows of a get, as they come. Raises as :meth:`act` does; ``timeout`` is for all of them."""
        options = flight.FlightCallOptions(timeout=timeout, headers=self._headers)
        ticket = flight.Ticket(encode_json({**fields, "get": name}))
        try:
            reader = self._open_client().do_get(ticket, options)
            try:
                for chunk in reader:
                    yield chunk.data
            finally:
                reader.cancel()  # whoever stops early does not wait for the rest
        except pa.ArrowException as error:
            raise self.error(error) from None

    def error(self, error: BaseException) -> UpriverError:
        """What a Flight error means."""
        return _from_flight(error, self.address, self._lost)

    def close(self) -> None:
        """Drop the connection; calls of other threads go on."""
        self._client = None  # closing it by hand, while another thread begins a call, would crash

    def _open_client(self) -> Any:
        client = self._client
        if client is None:
            raise self._lost(f"{self.address}: the connection is closed")
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _from_flight(error: BaseException, address: str, lost: type[ClusterError]) -> UpriverError:
    match error:
        case UpriverError():
            return error
        case flight.FlightServerError() if error.extra_info:
            return error_from_json(decode_json(error.extra_info))
        case flight.FlightUnauthenticatedError():
            return AccessDenied(f"{address}: {brief(error)}")
        case flight.FlightTimedOutError():
            return WaitTimeout(f"{address} did not answer in time")
        case flight.FlightUnavailableError() | flight.FlightCancelledError():
            return lost(f"{address} cannot be reached: {brief(error)}")
    return ProtocolError(f"{address}: {type(error).__name__}: {brief(error)}")


def brief(error: BaseException) -> str:
    """A Flight error's message without gRPC's own story."""
    text = str(error).partition(". gRPC client debug context")[0].partition(". Detail: ")[0]
    return text.rpartition("with message: ")[2] or type(error).__name__
