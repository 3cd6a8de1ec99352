"""The Arrow Flight door: lookups, scans and queries for programs in other languages, as streams of Arrow batches.

A descriptor's path is a view's name, and stands for all of its rows. A descriptor's command is a SELECT, or a ticket. A
ticket is JSON: ``{"view": "totals"}`` gives all rows, with ``"keys": [["ada"], ["bob"]]`` those of the keys, and
``{"query": "SELECT ..."}`` the answer of a query. A caller shows the token in each call's header, as Bearer, or as the
password of a Basic handshake. A command, a ticket or an action of Flight SQL goes to :mod:`.sql`.
"""

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from upriver.client.key_texts import keys_of_texts
from upriver.doors.cancellation import Cancellation
from upriver.doors.doors import cannot_listen
from upriver.doors.execution import QueryRows, batches_of, describe, execute, parse_turn
from upriver.doors.flight.errors import UntracedError, flight_errors, flight_sql_errors
from upriver.doors.flight.relay import DESCRIPTORS, FlightRelay
from upriver.doors.flight.sql import ACTIONS, UNSUPPORTED_ACTIONS, FlightSql, is_sql
from upriver.doors.flight.streams import RowStreams
from upriver.doors.flight.tickets import RowsTicket
from upriver.doors.gateway import Gateway
from upriver.doors.queries import ViewQuery
from upriver.doors.shares import QueryCaller
from upriver.errors import DeclarationError
from upriver.net.gate import NO_PLACE, CallerGate, GatedListener
from upriver.net.server import Listen, listening_socket
from upriver.options import Tls
from upriver.protocol.lookups import route_among

SCAN_S_MAX = 3600.0
"""Seconds in which a caller must have read a scan."""
DIRECTORY_CHARS_MAX = 60
"""Characters of the directory of temporary files. The path of a Unix socket has at most 104."""
DIALECT = "postgres"
"""The SQL of queries: as at the PostgreSQL door."""


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


def _short_directory() -> str | None:
    """Where a Unix socket's path is not too long; ``None``: where temporary files are."""
    return "/tmp" if len(gettempdir()) > DIRECTORY_CHARS_MAX else None


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

    def __init__(
        self,
        rows: QueryRows,
        knows: Callable[[str], bool],
        listen: Listen,
        tls: Tls | None = None,
        gate: CallerGate | None = None,
    ) -> None:
        """knows: whether a text is one of the app's tokens. tls: ``None``: it does not encrypt. gate: ``None``: the
        process's. Raises OSError, pa.ArrowException if it cannot listen."""
        self._rows = rows
        self._sql = FlightSql(rows)
        self._streams = RowStreams()
        context = None if tls is None else tls.context()
        if context is not None:
            context.set_alpn_protocols(["h2"])  # clients of gRPC end a connection to a server that does not choose it
        listening = listening_socket(listen.host, listen.port)
        self._directory = TemporaryDirectory(prefix="upriver-", dir=_short_directory())
        self.grpc_path = Path(self._directory.name) / "grpc"
        """The Unix socket on which gRPC listens. Calls that do not come to it through the relay are refused."""
        try:
            super().__init__(
                flight.Location.for_grpc_unix(str(self.grpc_path)),
                auth_handler=_AnyHandshake(),
                middleware={"token": _Authentication(knows)},
            )
        except BaseException:
            listening.close()
            self._directory.cleanup()
            raise
        self._relay = FlightRelay(GatedListener(listening, gate, cost=DESCRIPTORS), self.grpc_path, context)
        self.address = listen.address(listening.getsockname()[1])

    def close(self) -> None:
        """Take no more calls, and end those under way."""
        self._relay.stop()
        self.shutdown()
        self._directory.cleanup()

    def _admit(self, context: Any) -> None:
        """Admit the caller of a call that has shown a token. Raises FlightUnavailableError if there is no place."""
        if not self._relay.admit(context.peer()):
            raise flight.FlightUnavailableError(NO_PLACE)

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        self._admit(context)
        with flight_errors():
            routes = self._rows.routes()
        for view, route in routes.items():
            ticket = RowsTicket(view, None, None)
            yield _info(flight.FlightDescriptor.for_path(view), ticket.to_json(), route.schema)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        self._admit(context)
        if _is_sql_command(descriptor):
            with flight_sql_errors():
                schema, sql_ticket = self._sql.ticketed(descriptor.command, _cancellation(context))
                return _info(descriptor, sql_ticket, schema)
        with flight_errors():
            ticket = RowsTicket.of_descriptor(descriptor)
            return _info(descriptor, ticket.to_json(), self._schema(ticket, _cancellation(context)))

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        self._admit(context)
        if _is_sql_command(descriptor):
            with flight_sql_errors():
                return flight.SchemaResult(self._sql.ticketed(descriptor.command, _cancellation(context))[0])
        try:
            with flight_errors():
                return flight.SchemaResult(self._schema(RowsTicket.of_descriptor(descriptor), _cancellation(context)))
        except flight.FlightError as error:
            told = UntracedError(str(error))
        raise told

    def do_get(self, context: Any, ticket: Any) -> Any:
        self._admit(context)
        stream = self._streams.open()
        is_of_sql = is_sql(ticket.ticket)
        told = flight_sql_errors if is_of_sql else flight_errors
        try:
            with told():
                cancellation = _cancellation(context)
                schema, batches = (
                    self._sql.stream(ticket.ticket, cancellation)
                    if is_of_sql
                    else self._stream(RowsTicket.of(ticket.ticket), cancellation)
                )
        except BaseException:
            stream.close()
            raise
        return flight.GeneratorStream(schema, stream.begin(batches, told))

    def list_actions(self, context: Any) -> list[Any]:
        self._admit(context)
        return list(ACTIONS.items())

    def do_action(self, context: Any, action: Any) -> Any:
        self._admit(context)
        if action.type in ACTIONS or action.type in UNSUPPORTED_ACTIONS:
            with flight_sql_errors():
                results = self._sql.act(action.type, action.body.to_pybytes(), _cancellation(context))
                return iter([flight.Result(result) for result in results])
        with flight_errors():
            raise DeclarationError(f"action {action.type[:100]!r}: there are {', '.join(ACTIONS)}; read by DoGet")

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._admit(context)
        if _is_sql_command(descriptor):
            with flight_sql_errors():
                writer.write(self._sql.bind(descriptor.command, reader, _cancellation(context)))
            return
        with flight_errors():
            raise DeclarationError("DoPut: views are only read here, by DoGet")

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._admit(context)
        with flight_errors():
            raise DeclarationError("DoExchange: views are only read here, by DoGet")

    def _parsed(self, query: str, cancellation: Cancellation) -> ViewQuery:
        with parse_turn(query, cancellation):
            return ViewQuery.parse(query, DIALECT, self._rows.routes())

    def _schema(self, ticket: RowsTicket, cancellation: Cancellation) -> pa.Schema:
        if ticket.query is not None:
            return describe(self._parsed(ticket.query, cancellation), cancellation=cancellation)
        assert ticket.view is not None
        return route_among(ticket.view, self._rows.routes()).schema

    def _stream(self, ticket: RowsTicket, cancellation: Cancellation) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        if ticket.query is not None:
            query = self._parsed(ticket.query, cancellation)
            found = execute(query, self._rows, cancellation=cancellation)
            return found.schema, batches_of(found)
        assert ticket.view is not None
        route = route_among(ticket.view, self._rows.routes())
        if ticket.keys is None:
            scan = self._rows.scan(ticket.view)
            return scan.schema.with_metadata({"upriver.epoch": str(scan.epoch)}), iter(scan)
        found = self._rows.lookup(ticket.view, keys_of_texts(ticket.view, route.key_schema, ticket.keys))
        return found.schema, iter(found.to_batches())


def _cancellation(context: Any) -> Cancellation:
    """Ends the query of a call when its caller cancels it, or hangs up. context: of a call that is not over."""
    return Cancellation(context.is_cancelled, _caller(context.peer()))


def _caller(peer: str) -> QueryCaller:
    """A connection, which all calls of a client share. peer: as gRPC has it, ``unix:/tmp/upriver-x/7``."""
    host, _, name = peer.rpartition("/")
    return QueryCaller(host, name)


def _info(descriptor: Any, ticket: bytes, schema: pa.Schema) -> Any:
    endpoint = flight.FlightEndpoint(flight.Ticket(ticket), [])  # no location: this same server
    return flight.FlightInfo(schema, descriptor, [endpoint], -1, -1)


def _is_sql_command(descriptor: Any) -> bool:
    return descriptor.descriptor_type == flight.DescriptorType.CMD and is_sql(descriptor.command)


def serve(gateway: Gateway, listen: Listen, tls: Tls | None) -> FlightDoor:
    """Open the door. Raises ClusterError if it cannot listen."""
    try:
        return FlightDoor(gateway.rows(SCAN_S_MAX), lambda token: gateway.role(token) is not None, listen, tls)
    except (OSError, pa.ArrowException) as error:
        raise cannot_listen("flight", listen, OSError(str(error))) from None
