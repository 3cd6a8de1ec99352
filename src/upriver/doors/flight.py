"""The Arrow Flight door: lookups, scans and queries for programs in other languages, as streams of Arrow batches.

A descriptor's path is a view's name, and stands for all of its rows. A descriptor's command is a SELECT, or a ticket. A
ticket is JSON: ``{"view": "totals"}`` gives all rows, with ``"keys": [["ada"], ["bob"]]`` those of the keys, and
``{"query": "SELECT ..."}`` the answer of a query. A caller shows the token in each call's header, as Bearer, or as the
password of a Basic handshake.
"""

import base64
import binascii
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import UnionType
from typing import Any, Self

import pyarrow as pa
import pyarrow.flight as flight

from upriver.client.keys import keys_of_texts
from upriver.doors.doors import cannot_listen
from upriver.doors.execution import ClientRows, QueryRows, describe, execute
from upriver.doors.gateway import Gateway
from upriver.doors.queries import QUERY_CHARS_MAX, ViewQuery
from upriver.errors import (
    AccessDenied,
    Busy,
    DeclarationError,
    NotReady,
    QueryCancelled,
    UpriverError,
    UserError,
    WaitTimeout,
    WorkerLost,
)
from upriver.net.lookups import route_among
from upriver.net.server import Listen

_LOG = logging.getLogger(__name__)
STREAMS_MAX = 32
"""Streams of rows at a time."""
KEYS_MAX = 100_000
"""Keys of one ticket."""
SCAN_S_MAX = 3600.0
"""Seconds in which a caller must have read a scan."""
ERROR_CHARS_MAX = 2_000
"""Characters of an error's text: it is sent in a header, and a long one is dropped with all that it says."""
DIALECT = "postgres"
"""The SQL of queries: as at the PostgreSQL door."""


@dataclass(frozen=True, slots=True)
class RowsTicket:
    """What a caller wants. One of view and query is given. keys: texts of the keys, ``None`` for all rows."""

    view: str | None
    keys: tuple[str, ...] | None
    query: str | None

    @classmethod
    def of(cls, text: bytes) -> Self:
        """From a ticket, or a descriptor's command. Raises DeclarationError."""
        try:
            told = json.loads(text)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict) or set(told) - {"view", "keys", "query"}:
            raise DeclarationError(f"{text[:100]!r} is no ticket: give {_FORMS}")
        view, keys, query = told.get("view"), told.get("keys"), told.get("query")
        is_of_query = isinstance(query, str) and view is None and keys is None
        is_of_view = isinstance(view, str) and query is None and isinstance(keys, list | None)
        if not (is_of_query or is_of_view):
            raise DeclarationError(f"{text[:100]!r} is no ticket: give {_FORMS}")
        if keys is not None and len(keys) > KEYS_MAX:
            raise DeclarationError(f"{len(keys):,} keys in one ticket: at most {KEYS_MAX:,} are taken")
        texts = None if keys is None else tuple(json.dumps(key if isinstance(key, list) else [key]) for key in keys)
        return cls(view, texts, query)

    @classmethod
    def of_descriptor(cls, descriptor: Any) -> Self:
        """Raises DeclarationError."""
        if descriptor.descriptor_type == flight.DescriptorType.PATH:
            if len(descriptor.path) != 1:
                raise DeclarationError(f"a path of {len(descriptor.path)} parts: it is the name of a view")
            return cls(descriptor.path[0].decode("utf-8", "replace"), None, None)
        command = descriptor.command
        if command.lstrip()[:1] == b"{":
            return cls.of(command)
        if len(command) > 4 * QUERY_CHARS_MAX:
            raise DeclarationError(f"a query of {len(command):,} bytes is too long")
        return cls(None, None, command.decode("utf-8", "replace"))

    def to_json(self) -> bytes:
        if self.query is not None:
            return json.dumps({"query": self.query}).encode()
        keys = {} if self.keys is None else {"keys": [json.loads(key) for key in self.keys]}
        return json.dumps({"view": self.view, **keys}).encode()


_FORMS = '{"view": name}, {"view": name, "keys": [[value of each key column], ...]} or {"query": "SELECT ..."}'


class _Authentication(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Admits calls that show a token."""

    def __init__(self, knows: Callable[[str], bool]) -> None:
        super().__init__()
        self._knows = knows

    def start_call(self, info: Any, headers: Mapping[str, list[Any]]) -> "_Admitted":
        given = next((values[0] for name, values in headers.items() if name.lower() == "authorization"), "")
        scheme, _, credentials = str(given).partition(" ")
        token = _password(credentials) if scheme.lower() == "basic" else credentials
        if scheme.lower() not in ("basic", "bearer") or not self._knows(token):
            raise flight.FlightUnauthenticatedError(
                "show the app's token: as 'authorization: Bearer TOKEN', or as the password of a Basic handshake"
            )
        return _Admitted(token if scheme.lower() == "basic" else None)


def _password(credentials: str) -> str:
    padded = credentials.rstrip("=") + "=" * (-len(credentials.rstrip("=")) % 4)  # Go's client leaves the padding out
    try:
        return base64.b64decode(padded, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


class _Admitted(flight.ServerMiddleware):  # type: ignore[misc]
    """Gives the caller of a Basic handshake the header of its further calls."""

    def __init__(self, token: str | None) -> None:
        super().__init__()
        self._token = token

    def sending_headers(self) -> dict[str, str]:
        return {} if self._token is None else {"authorization": f"Bearer {self._token}"}


class _AnyHandshake(flight.ServerAuthHandler):  # type: ignore[misc]
    """The handshake itself: the header has the credentials, which the middleware has checked."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Nothing is exchanged."""

    def is_valid(self, token: bytes) -> str:
        return ""


class FlightDoor(flight.FlightServerBase):  # type: ignore[misc]
    """The server; it listens from construction until ``close``."""

    def __init__(self, rows: QueryRows, knows: Callable[[str], bool], listen: Listen) -> None:
        """knows: whether a text is one of the app's tokens. Raises OSError, pa.ArrowException if it cannot listen."""
        self._rows = rows
        self._streams = threading.BoundedSemaphore(STREAMS_MAX)
        host = f"[{listen.host}]" if ":" in listen.host else listen.host
        middleware = {"token": _Authentication(knows)}
        super().__init__(f"grpc://{host}:{listen.port}", auth_handler=_AnyHandshake(), middleware=middleware)
        self.address = listen.address(self.port)

    def close(self) -> None:
        """Take no more calls, and end those under way."""
        self.shutdown()

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        with _flight_errors():
            routes = self._rows.routes()
        for view, route in routes.items():
            yield self._info(flight.FlightDescriptor.for_path(view), RowsTicket(view, None, None), route.schema)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        with _flight_errors():
            ticket = RowsTicket.of_descriptor(descriptor)
            return self._info(descriptor, ticket, self._schema(ticket))

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        try:
            with _flight_errors():
                return flight.SchemaResult(self._schema(RowsTicket.of_descriptor(descriptor)))
        except flight.FlightError as error:
            told = UntracedError(str(error))
        raise told

    def do_get(self, context: Any, ticket: Any) -> Any:
        if not self._streams.acquire(blocking=False):
            raise flight.FlightUnavailableError(f"{STREAMS_MAX} streams are under way already: try again soon")
        try:
            with _flight_errors():
                schema, batches = self._stream(RowsTicket.of(ticket.ticket))
        except BaseException:
            self._streams.release()
            raise
        return flight.GeneratorStream(schema, self._counted(batches))

    def list_actions(self, context: Any) -> list[Any]:
        return []

    def do_action(self, context: Any, action: Any) -> Any:
        with _flight_errors():
            raise DeclarationError(f"action {action.type[:100]!r}: there are none here; read by DoGet")

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with _flight_errors():
            raise DeclarationError("DoPut: views are only read here, by DoGet")

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with _flight_errors():
            raise DeclarationError("DoExchange: views are only read here, by DoGet")

    def _counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            with _flight_errors():
                yield from batches
        finally:
            self._streams.release()

    def _info(self, descriptor: Any, ticket: RowsTicket, schema: pa.Schema) -> Any:
        endpoint = flight.FlightEndpoint(flight.Ticket(ticket.to_json()), [])  # no location: this same server
        return flight.FlightInfo(schema, descriptor, [endpoint], -1, -1)

    def _schema(self, ticket: RowsTicket) -> pa.Schema:
        if ticket.query is not None:
            return describe(ViewQuery.parse(ticket.query, DIALECT, self._rows.routes()))
        assert ticket.view is not None
        return route_among(ticket.view, self._rows.routes()).schema

    def _stream(self, ticket: RowsTicket) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        if ticket.query is not None:
            found = execute(ViewQuery.parse(ticket.query, DIALECT, self._rows.routes()), self._rows)
            return found.schema, iter(found.to_batches())
        assert ticket.view is not None
        route = route_among(ticket.view, self._rows.routes())
        if ticket.keys is None:
            scan = self._rows.scan(ticket.view)
            return scan.schema.with_metadata({"upriver.epoch": str(scan.epoch)}), iter(scan)
        found = self._rows.lookup(ticket.view, keys_of_texts(ticket.view, route.key_schema, ticket.keys))
        return found.schema, iter(found.to_batches())


@contextmanager
def _flight_errors() -> Iterator[None]:
    """Errors as Flight's clients know them, each on one line.

    Arrow shows a client the whole traceback of any exception that is not Flight's own, also of its ArrowInvalid and
    ArrowKeyError. So only Flight's own leave a method of the server."""
    try:
        yield
    except flight.FlightError:
        raise
    except UpriverError as error:
        told = _told(error)
    except Exception as error:
        _LOG.exception("a call over Arrow Flight has failed")
        told = flight.FlightInternalError(f"{type(error).__name__}: a fault of Upriver; the app's log has more", b"")
    else:
        return
    raise told


class UntracedError(pa.ArrowInvalid):  # type: ignore[misc]
    """An error without a traceback for the client. Of GetSchema, pyarrow shows the traceback of Flight's errors, too.
    Arrow sends only the name of the class if the traceback cannot be formatted."""

    @property
    def __cause__(self) -> None:
        raise AttributeError("the traceback is not for the client")


def _told(error: UpriverError) -> Exception:
    """extra_info of the result is the name of the error's class."""
    name = type(error).__name__
    kind = next((kind for ours, kind in _KINDS if isinstance(error, ours)), flight.FlightInternalError)
    told: Exception = kind(f"{name}: {' '.join(str(error).split())}"[:ERROR_CHARS_MAX], name.encode())
    return told


_KINDS: tuple[tuple[type[UpriverError] | UnionType, type[Exception]], ...] = (
    (AccessDenied, flight.FlightUnauthenticatedError),
    (QueryCancelled, flight.FlightCancelledError),
    (WaitTimeout, flight.FlightTimedOutError),
    (Busy | NotReady | WorkerLost, flight.FlightUnavailableError),
    (UserError, flight.FlightServerError),
)
"""Flight's error by kind of ours; the first match counts."""


def serve(gateway: Gateway, listen: Listen) -> FlightDoor:
    """Open the door. Raises ClusterError if it cannot listen."""
    rows = ClientRows(gateway.client, gateway.store, scan_s=SCAN_S_MAX)
    try:
        return FlightDoor(rows, lambda token: gateway.role(token) is not None, listen)
    except (OSError, pa.ArrowException) as error:
        raise cannot_listen("flight", listen, OSError(str(error))) from None
