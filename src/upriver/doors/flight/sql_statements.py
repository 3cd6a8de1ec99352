"""Statements of Flight SQL: a query with the values of its parameters, and nothing that the server must remember.

The handle of a prepared statement is the statement itself. When a caller binds parameters, it gets a new handle that
holds them. So there is nothing to expire, and every handle is checked as the query that it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, Self

import pyarrow as pa
import pyarrow.types as kinds
from sqlglot import exp

from upriver.client.key_values import exactly_cast
from upriver.doors.cancellation import Cancellation
from upriver.doors.column_titles import with_postgres_names
from upriver.doors.exact_numbers import alike_decimals, value_of_text, with_decimals, with_exact_numerics
from upriver.doors.execution import QueryRows, batches_of, execute, parse_turn
from upriver.doors.flight.protobuf import ProtobufMessage, encoded
from upriver.doors.flight.sql_schemas import QuerySchemas
from upriver.doors.parameters import parameter_count, with_calls, with_casts, with_parameters
from upriver.doors.queries import ViewQuery, column_type, depth_refused, parsed
from upriver.errors import DeclarationError, ProtocolError
from upriver.net.wire import read_stream
from upriver.plan.types import is_floating, is_instant, is_null

PARAMETER_BYTES_MAX = 1 << 20
"""Bytes of a statement's bound parameters, as Arrow's IPC stream."""
_QUERY, _BOUND = 1, 2
"""Fields of a handle."""
_OF_A_SCAN = {"expressions", "from_"}
"""Parts of the syntax tree of ``SELECT * FROM view``."""
UNKNOWN_TYPE = "VARCHAR"
"""What a caller is told of a parameter whose type the query does not show."""


@dataclass(frozen=True)
class FlightStatement:
    """query: text of a SELECT. bound: one row, a column for each parameter; ``None``: none are bound."""

    query: str
    bound: pa.RecordBatch | None = None

    @classmethod
    def of(cls, handle: bytes) -> Self:
        """Raises DeclarationError for bytes that are no handle."""
        message = ProtobufMessage.of(handle)
        if not message.has(_QUERY):
            raise DeclarationError("the handle is none of a statement: prepare it again")
        stream = message.data(_BOUND)
        return cls(message.text(_QUERY), _read(stream) if stream else None)

    def to_handle(self) -> bytes:
        """Raises DeclarationError for too many bytes of parameters."""
        fields: list[tuple[int, bytes]] = [(_QUERY, self.query.encode())]
        if self.bound is not None:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self.bound.schema) as writer:
                writer.write_batch(self.bound)
            stream = sink.getvalue().to_pybytes()
            _check_size(len(stream))
            fields.append((_BOUND, stream))
        return encoded(fields)


class PreparedStatement:
    """A statement whose views and parameters are known."""

    def __init__(
        self, statement: FlightStatement, rows: QueryRows, schemas: QuerySchemas, cancellation: Cancellation
    ) -> None:
        """cancellation: of the call that asks. Raises UnsupportedSql, UnknownView."""
        with parse_turn(statement.query, cancellation):
            tree = with_postgres_names(with_parameters(parsed(with_calls(statement.query), "postgres")))
            self._query = ViewQuery.of(tree, rows.routes())
        self._bound = statement.bound
        self._rows, self._schemas, self._cancellation = rows, schemas, cancellation
        self._count = parameter_count(self._query)
        shown = self._query.parameter_types()
        self._shown = [shown.get(place + 1) for place in range(self._count)]

    @cached_property
    def parameter_schema(self) -> pa.Schema:
        """A column for each parameter; a text if the query does not show its type."""
        if not self._count:
            return pa.schema([])
        types = [shown or UNKNOWN_TYPE for shown in self._shown]
        columns = [
            exp.alias_(exp.cast(exp.Null(), exp.DataType.build(type, dialect="duckdb")), str(place), quoted=True)
            for place, type in enumerate(types, start=1)
        ]
        return self._schemas.of(ViewQuery(exp.select(*columns), {}, self._query.zone), (), self._cancellation)

    @cached_property
    def _scanned_view(self) -> str | None:
        """The name of the view, if the query is ``SELECT * FROM view``: all of its rows, as they are."""
        tree = self._query.tree
        if not isinstance(tree, exp.Select) or {name for name, part in tree.args.items() if part} != _OF_A_SCAN:
            return None
        table, columns = tree.args["from_"].this, tree.expressions
        is_plain = isinstance(table, exp.Table) and not any(part for name, part in table.args.items() if name != "this")
        is_all = len(columns) == 1 and isinstance(columns[0], exp.Star) and not any(columns[0].args.values())
        if not is_plain or not is_all or self._bound is not None:
            return None
        route = self._query.routes.get(table.name)  # of a function there is none
        return table.name if route is not None and route.key else None  # without a key, a lookup is cheaper

    def schema(self) -> pa.Schema:
        """Of the rows. Parameters that are not bound are NULL, of the types that the query shows."""
        if self._scanned_view is not None:
            return self._query.routes[self._scanned_view].schema
        query, values = self._typed(must_be_bound=False)
        return self._schemas.of(query, values, self._cancellation)

    def stream(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The rows. All rows of a view are read as they are pulled, so they may be more than a query takes.

        Raises as ``execute`` does, and DeclarationError if parameters are not bound."""
        if self._scanned_view is not None:
            scan = self._rows.scan(self._scanned_view)
            return scan.schema, iter(scan)
        query, values = self._typed(must_be_bound=True)
        found = execute(query, self._rows, values, cancellation=self._cancellation)
        return found.schema, batches_of(found)

    @depth_refused()
    def _typed(self, must_be_bound: bool) -> tuple[ViewQuery, list[Any]]:
        """The query with the types of its parameters, and their values."""
        if self._bound is None:
            if self._count and must_be_bound:
                raise DeclarationError(f"the query has {self._count} parameters, and none are bound")
            types, values = self._shown, [None] * self._count
        else:
            if self._bound.num_columns != self._count:
                given = self._bound.num_columns
                raise DeclarationError(f"{given} parameters are bound, and the query has {self._count}")
            fitted = [self._fitted(place) for place in range(self._count)]
            types, values = [type for type, _ in fitted], [value for _, value in fitted]
        tree = self._query.tree.copy()
        with_exact_numerics(tree, self._query.column_types(), [type or "DECIMAL" for type in types])
        tree = with_decimals(with_casts(tree, types), values)
        return ViewQuery(tree, self._query.routes, self._query.zone), values

    def _fitted(self, place: int) -> tuple[str | None, Any]:
        """DuckDB's type of a parameter, and its value: of the type that the query shows, if that loses nothing.
        ``None``: of any type."""
        assert self._bound is not None
        column, shown = _plain(self._bound.column(place), place + 1), self._shown[place]
        wanted = self.parameter_schema.field(place).type
        if is_null(column.type) or not column[0].is_valid:
            return shown, None
        try:
            held = None if shown is None else _held(column, wanted, shown)
        except (ValueError, OverflowError) as error:
            raise DeclarationError(f"parameter {place + 1} is no {shown}: {error}") from None
        if held is None:
            return _duck_name(column.type), column[0].as_py()
        is_of_digits = kinds.is_string(column.type) and isinstance(held[0], Decimal)
        return None if is_of_digits else shown, held[0]


def _held(column: pa.Array, wanted: pa.DataType, shown: str) -> list[Any] | None:
    """The values in the type that a query shows, ``None`` if that loses something. shown: DuckDB's name of ``wanted``.

    Raises ValueError for a text that is no value of the type."""
    type = column.type
    if kinds.is_list(type) and kinds.is_list(wanted):
        inner = _held(column.flatten(), wanted.value_type, shown.removesuffix("[]"))
        is_of_digits = inner is not None and any(isinstance(value, Decimal) for value in inner)
        return None if inner is None else [alike_decimals(inner) if is_of_digits else inner]
    if kinds.is_string(type) and not kinds.is_string(wanted):
        return [None if text is None else value_of_text(shown, text) for text in column.to_pylist()]
    if kinds.is_temporal(type) or kinds.is_temporal(wanted):
        is_same = type.id == wanted.id and is_instant(type) == is_instant(wanted)
        return list(column.to_pylist()) if is_same else None
    if is_floating(type) and not is_floating(wanted):
        return None
    with suppress(pa.ArrowException):
        cast = exactly_cast(column, wanted)
        return None if cast is None else list(cast.to_pylist())
    return None


def bound_parameters(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch | None:
    """The only row of what a caller has bound; ``None`` if it has no columns. Raises DeclarationError."""
    count = sum(batch.num_rows for batch in batches)
    if not len(schema):
        return None
    if count != 1:
        raise DeclarationError(
            f"{count} rows of parameters are bound: a query takes one row. For many keys, bind a list: WHERE k = ANY(?)"
        )
    row = next(batch for batch in batches if batch.num_rows)
    for place, column in enumerate(row.columns, start=1):
        _plain(column, place)
    return row


def _read(stream: bytes) -> pa.RecordBatch:
    _check_size(len(stream))
    try:
        batch = read_stream(pa.py_buffer(stream))
    except ProtocolError as error:
        raise DeclarationError(f"the handle's parameters cannot be read ({error}): bind them again") from None
    bound = bound_parameters([batch], batch.schema)
    if bound is None:
        raise DeclarationError("the handle's parameters cannot be read: bind them again")
    return bound


def _check_size(size: int) -> None:
    if size > PARAMETER_BYTES_MAX:
        raise DeclarationError(f"parameters of {size:,} bytes: at most {PARAMETER_BYTES_MAX >> 20} MiB are taken")


def _duck_name(type: pa.DataType) -> str:
    return f"{column_type(type.value_type)}[]" if kinds.is_list(type) else column_type(type) or UNKNOWN_TYPE


def _plain(column: pa.Array, place: int) -> pa.Array:
    """A parameter in one of the types that views have. Raises DeclarationError."""
    type = _plain_type(column.type)
    try:
        if type is not None:
            return column if column.type == type else column.cast(type)
    except pa.ArrowException as error:
        raise DeclarationError(f"parameter {place} cannot be {type}: {error}") from None
    raise DeclarationError(
        f"parameter {place} is of type {column.type}: bind numbers, texts, binary values, booleans, dates, timestamps, "
        "or lists of these"
    )


def _plain_type(type: pa.DataType) -> pa.DataType | None:
    if kinds.is_list(type) or kinds.is_large_list(type) or kinds.is_fixed_size_list(type):
        element = None if kinds.is_nested(type.value_type) else _plain_type(type.value_type)
        return None if element is None else pa.list_(element)
    if kinds.is_dictionary(type):
        return _plain_type(type.value_type)
    if kinds.is_decimal(type):
        return pa.decimal128(type.precision, type.scale) if type.precision <= 38 else None
    if kinds.is_timestamp(type):
        return pa.timestamp("us", type.tz if is_instant(type) else None)
    return _PLAIN.get(type)


_PLAIN: Mapping[pa.DataType, pa.DataType] = {
    **{type: type for type in (pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{type: type for type in (pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32())},
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
"""The types of views by those that callers bind."""
