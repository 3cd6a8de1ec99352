"""Arrow Flight servers as Upriver runs them: every call must show the app's token, every error stays itself.

A server (:class:`FlightBase`) is three tables from names to handlers: actions (JSON in, JSON out), gets (a table of
rows), and doors, which let callers in to sockets beside it. :class:`upriver.shell.remote.Connection` is the other side.

A server must be able to stop whatever its clients do, but Flight's ``shutdown`` waits for every open stream, and
pyarrow has no way to cancel a call from the server's side. So a server that stops does what a network may do at any
time: it cuts the connections.
"""

import atexit
import hmac
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import flight

from upriver.errors import ClusterError, ProtocolError
from upriver.shell.remote import PING, brief, check_token
from upriver.shell.sockets import cut_connections
from upriver.shell.wire import decode_json, encode_json, error_to_json

ERROR_TEXT_CHARS_MAX = 1000
"""Characters of an error that travel in a call's status: gRPC keeps all of it within 8 KiB of headers."""
GET_ROWS_MAX = 65_536
"""Rows of one batch of a get's answer."""

WILDCARDS = ("0.0.0.0", "::", "[::]")
"""Hosts that stand for all interfaces."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Tls:
    """A server's certificate chain and private key, both PEM."""

    cert_chain: bytes
    private_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a server listens. host: name or address of an interface. port: 0 takes any that is free.

    advertised: the host name that others reach it by; ``host``, unless that is a wildcard.
    """

    host: str = "127.0.0.1"
    port: int = 0
    advertised: str | None = None
    tls: Tls | None = None

    def address(self, port: int) -> str:
        """``host:port`` to tell others."""
        host = self.advertised or (socket.gethostname() if self.host in WILDCARDS else self.host)
        return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


class LetsIn(Protocol):
    """What gives callers a socket of its own; see :class:`upriver.shell.door.Door`."""

    def let_in(self, asked: Mapping[str, Any], /) -> Mapping[str, Any]:
        """A port, and a ticket to show there."""

    def stop(self) -> None:
        """End what goes over its sockets, in good order as far as that is possible soon."""


Action = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""JSON object in, JSON object out. An UpriverError goes to the caller."""
Get = Callable[[Mapping[str, Any]], pa.Table]
"""JSON object in, rows out."""


class FlightBase(flight.FlightServerBase):  # type: ignore[misc]
    """A Flight server that listens from construction until ``stop``, on threads of its own.

    token: what every caller must show. actions, gets: handlers by name; they are called on the server's threads, many
    at once. doors: by name, each an action as well; they end with the server. Also a context manager. Raises
    ClusterError if it cannot listen.
    """

    def __init__(
        self,
        token: str,
        *,
        listen: Listen = Listen(),
        actions: Mapping[str, Action] = _NOTHING,
        gets: Mapping[str, Get] = _NOTHING,
        doors: Mapping[str, LetsIn] = _NOTHING,
    ) -> None:
        check_token(token)
        self._doors = tuple(doors.values())
        self._actions = {PING: lambda _: {}, **actions, **{name: door.let_in for name, door in doors.items()}}
        self._gets = dict(gets)
        self._gate = _Gate(token)
        self._stopping = threading.Lock()
        host = listen.host if ":" not in listen.host or listen.host.startswith("[") else f"[{listen.host}]"
        tls = None if listen.tls is None else [(listen.tls.cert_chain, listen.tls.private_key)]
        try:
            super().__init__((host, listen.port), tls_certificates=tls, middleware={"gate": self._gate})
        except pa.ArrowException as error:
            for door in self._doors:
                door.stop()
            raise ClusterError(f"cannot listen on {listen.host}:{listen.port}: {brief(error)}") from None
        self.address = listen.address(self.port)
        atexit.register(self.stop)  # runs before pyarrow's own finalizer, which would wait for clients

    def stop(self) -> None:
        """Stop the doors, then cut whatever is left; returns when no call is running.

        Handlers that are running must return: nothing can stop those, so none may call this. A second call does
        nothing.
        """
        if not self._stopping.acquire(blocking=False):
            return
        atexit.unregister(self.stop)
        self._gate.shut()
        for door in self._doors:
            door.stop()
        cut_connections(self.port)
        self.shutdown()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Called by Flight

    def do_action(self, context: Any, action: Any) -> Any:
        try:
            handler = _named(self._actions, "action", action.type)
            answer = encode_json(handler(decode_json(action.body)))
        except Exception as error:
            raise _to_flight(error) from None
        return iter([answer])

    def do_get(self, context: Any, ticket: Any) -> Any:
        try:
            asked = decode_json(ticket.ticket)
            table = _named(self._gets, "get", str(asked.pop("get", None)))(asked)
        except Exception as error:
            raise _to_flight(error) from None
        return flight.RecordBatchStream(table.to_reader(max_chunksize=GET_ROWS_MAX))


class _Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls without the token, and any call once shut."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()
        self._is_shut = False

    def shut(self) -> None:
        self._is_shut = True

    def start_call(self, info: Any, headers: Mapping[str, Any]) -> None:
        shown = headers.get("authorization", ())
        if len(shown) != 1 or not hmac.compare_digest(_as_bytes(shown[0]), self._expected):
            raise flight.FlightUnauthenticatedError("a token is needed" if not shown else "not the app's token")
        if self._is_shut:
            raise flight.FlightUnavailableError("the server is stopping")


def _as_bytes(header: str | bytes) -> bytes:
    return header.encode() if isinstance(header, str) else header


def _named(handlers: Mapping[str, Any], what: str, name: str) -> Any:
    if name not in handlers:
        raise ProtocolError(f"no {what} {name!r}; there are: {', '.join(sorted(handlers)) or 'none'}")
    return handlers[name]


def _to_flight(error: Exception) -> Exception:
    """The error as Flight carries it."""
    fields = error_to_json(error, ERROR_TEXT_CHARS_MAX)
    carrier: Exception = flight.FlightServerError(fields["error"], extra_info=encode_json(fields))
    return carrier
