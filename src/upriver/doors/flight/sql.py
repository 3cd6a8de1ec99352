"""Flight SQL, as far as reading needs it: the commands, tickets and actions that ADBC's and JDBC's drivers send.

Each is a protobuf message within ``google.protobuf.Any``. Names and fields are those of FlightSql.proto.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from upriver.doors.cancellation import Cancellation
from upriver.doors.execution import QueryRows
from upriver.doors.flight.errors import UnsupportedCommand
from upriver.doors.flight.protobuf import ProtobufMessage, encoded, is_wrapped, unwrapped, wrapped
from upriver.doors.flight.sql_catalog import CATALOG_COMMANDS
from upriver.doors.flight.sql_schemas import QuerySchemas
from upriver.doors.flight.sql_statements import (
    PARAMETER_BYTES_MAX,
    FlightStatement,
    PreparedStatement,
    bound_parameters,
)
from upriver.doors.queries import QUERY_CHARS_MAX
from upriver.errors import DeclarationError

PACKAGE = "arrow.flight.protocol.sql."
COMMAND_BYTES_MAX = 4 * QUERY_CHARS_MAX + 2 * PARAMETER_BYTES_MAX
"""Bytes of a command, a ticket, or an action's body."""
PARAMETER_BATCHES_MAX = 16
"""Batches in which a caller puts parameters."""
QUERY, PREPARED_QUERY, TICKET = "CommandStatementQuery", "CommandPreparedStatementQuery", "TicketStatementQuery"
CREATE, CLOSE = "CreatePreparedStatement", "ClosePreparedStatement"
ACTIONS: Mapping[str, str] = {
    CREATE: "Checks a SELECT, and gives a handle of it, with the schemas of its rows and of its parameters.",
    CLOSE: "Does nothing: a handle needs no server's memory.",
}
UNSUPPORTED_ACTIONS = (
    *("BeginTransaction", "BeginSavepoint", "EndTransaction", "EndSavepoint", "CreatePreparedSubstraitPlan"),
    *("CancelQuery", "CancelFlightInfo", "RenewFlightEndpoint"),
    *("SetSessionOptions", "GetSessionOptions", "CloseSession"),
)
"""Actions of Flight and of Flight SQL that are not served."""


def is_sql(text: bytes) -> bool:
    """Whether a command or a ticket is Flight SQL's."""
    return is_wrapped(text, PACKAGE.encode())


class FlightSql:
    """Answers commands over an app's views. A call's cancellation ends its query."""

    def __init__(self, rows: QueryRows) -> None:
        self._rows = rows
        self._schemas = QuerySchemas()

    def ticketed(self, command: bytes, cancellation: Cancellation) -> tuple[pa.Schema, bytes]:
        """The schema of the rows that a command gives, and the ticket for them. Raises UnsupportedCommand,
        DeclarationError, and the errors of queries."""
        name, message = _command(command)
        if name in CATALOG_COMMANDS:
            return CATALOG_COMMANDS[name](message, self._rows.routes()).schema, command
        if name == QUERY:
            _refuse_transaction(message)
            statement = FlightStatement(message.text(1))
        elif name == PREPARED_QUERY:
            statement = FlightStatement.of(message.data(1))
        else:
            raise UnsupportedCommand(f"{name}: {_ONLY_READ}")
        schema = self._prepared(statement, cancellation).schema()
        return schema, wrapped(PACKAGE + TICKET, encoded([(1, statement.to_handle())]))

    def stream(self, ticket: bytes, cancellation: Cancellation) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The rows of a ticket. Raises as :meth:`ticketed`."""
        name, message = _command(ticket)
        if name in CATALOG_COMMANDS:
            found = CATALOG_COMMANDS[name](message, self._rows.routes())
            return found.schema, iter(found.to_batches())
        if name != TICKET:
            raise UnsupportedCommand(f"a ticket of kind {name}: get one by GetFlightInfo")
        return self._prepared(FlightStatement.of(message.data(1)), cancellation).stream()

    def act(self, action: str, body: bytes, cancellation: Cancellation) -> list[bytes]:
        """The results of an action. Raises as :meth:`ticketed`."""
        if action == CLOSE:
            return []
        if action != CREATE:
            raise UnsupportedCommand(f"{action}: {_ONLY_READ}")
        _, message = _command(body)
        _refuse_transaction(message)
        statement = FlightStatement(message.text(1))
        prepared = self._prepared(statement, cancellation)
        schema, parameters = prepared.schema(), prepared.parameter_schema
        fields = [(1, statement.to_handle()), (2, bytes(schema.serialize())), (3, bytes(parameters.serialize()))]
        return [wrapped(f"{PACKAGE}ActionCreatePreparedStatementResult", encoded(fields))]

    def bind(self, command: bytes, reader: Any, cancellation: Cancellation) -> bytes:
        """Bind the parameters that a caller puts; the result has the statement's new handle. reader: a
        FlightStreamReader. Raises as :meth:`ticketed`."""
        name, message = _command(command)
        if name != PREPARED_QUERY:
            raise UnsupportedCommand(f"{name}: {_ONLY_READ}")
        statement = FlightStatement.of(message.data(1))
        bound = FlightStatement(statement.query, bound_parameters(_batches(reader), reader.schema))
        self._prepared(bound, cancellation).schema()  # refuses parameters that do not fit
        return encoded([(1, bound.to_handle())])

    def _prepared(self, statement: FlightStatement, cancellation: Cancellation) -> PreparedStatement:
        return PreparedStatement(statement, self._rows, self._schemas, cancellation)


_ONLY_READ = "this server of Flight SQL only reads: queries in SQL, prepared statements, and the catalog of views"


def _command(text: bytes) -> tuple[str, ProtobufMessage]:
    """The name of a message, without its package, and its fields."""
    if len(text) > COMMAND_BYTES_MAX:
        raise DeclarationError(f"a message of {len(text):,} bytes: at most {COMMAND_BYTES_MAX:,} are taken")
    name, message = unwrapped(text)
    return name.removeprefix(PACKAGE)[:100], message


def _refuse_transaction(message: ProtobufMessage) -> None:
    if message.data(2):
        raise UnsupportedCommand(f"a transaction: {_ONLY_READ}; every query reads the newest epoch")


def _batches(reader: Any) -> list[pa.RecordBatch]:
    """What a caller puts, within the bounds, and with every value checked: Arrow trusts lengths that it has not
    computed, so a forged one could end the process."""
    found: list[pa.RecordBatch] = []
    size = 0
    for count, chunk in enumerate(reader, start=1):
        if chunk.data is not None:
            try:
                chunk.data.validate(full=True)
            except pa.ArrowException as error:
                raise DeclarationError(f"the parameters are malformed: {error}") from None
            size += chunk.data.nbytes
            found += [chunk.data] if chunk.data.num_rows else []
        if size > PARAMETER_BYTES_MAX or count > PARAMETER_BATCHES_MAX:
            raise DeclarationError(
                f"more than {PARAMETER_BYTES_MAX >> 20} MiB, or {PARAMETER_BATCHES_MAX} batches, of parameters"
            )
    return found
