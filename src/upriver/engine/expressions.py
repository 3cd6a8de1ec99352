"""Evaluates the expressions of plans over batches of rows, vectorised, with DuckDB as the library.

Each projection and each predicate becomes a prepared statement over a source that holds the current batch, so a call
costs a fraction of a millisecond. DuckDB's optimizer is off: it may reorder and fold expressions, and a scan with a
SELECT list leaves nothing to optimise.

Generated SQL may call the macros of :mod:`upriver.engine.macros` and the kernels of :mod:`upriver.engine.kernels`. An
Evaluator defines those that its expressions call.
"""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any
from weakref import finalize

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upriver.engine.function_calls import LOCAL, FunctionCaller
from upriver.engine.kernels import define
from upriver.engine.row_text import escaped, value_text
from upriver.engine.user_functions import ColumnCall, define_function
from upriver.errors import ProtocolError, RowError
from upriver.plan.column_names import plain_column
from upriver.plan.plan import Projection, UserFunction
from upriver.plan.types import (
    duck_name,
    field_name,
    is_instant,
    is_interval,
    is_nested,
    parts_of,
    spark_name,
    with_parts,
)
from upriver.state.columns import elements_of, exact, is_listed, spans_of

GUARD = "Guard against it in the query, by CASE, WHERE or try_divide"
"""Advice about an expression that fails."""

ERROR_CHARS_MAX = 300
"""Characters of DuckDB's message about a row; it may quote a value of any length."""

STATEMENTS_MAX = 256
"""Prepared statements kept at a time. A worker has a few for each view; the oldest is dropped first."""

_WORDS = re.compile(r"""'(?:[^']|'')*'|"((?:[^"]|"")+)\"""")
_SPARK_TYPES = {"INT8": "TINYINT", "INT16": "SMALLINT", "INT32": "INT", "INT64": "BIGINT", "VARCHAR": "STRING"}
_DUCK_TYPES = re.compile(rf"\b(of|[Tt]ype) ({'|'.join(_SPARK_TYPES)})\b")
"""What DuckDB's messages call types that have another name in Spark."""
_ROWS_AT_FAULT = (duckdb.OutOfRangeException, duckdb.ConversionException, duckdb.InvalidInputException)
_BROKEN = (duckdb.InternalException, duckdb.FatalException)
"""After these errors DuckDB must be opened anew."""
_CALLS = re.compile(r"[a-z_0-9]+(?=\()", re.IGNORECASE)
_ANY_BYTES = re.compile(
    "cast|coalesce|contains|decimal|encode|error|greatest|isnan|least|md5|sha1|sha256|starts_with|strlen|suffix|"
    "abs|ceil|day|dayofmonth|dayofweek|dayofyear|epoch_us|floor|hour|isinf|list_transform|make_date|make_timestamp|"
    "minute|month|quarter|replace|round|second|sqrt|to_microseconds|to_months|trunc|xor|year|"
    "spark_(?:ceil|clock|day|div|divide|double_to_bigint|floor|fmod|group|mod|pmod|signum|try_divide|units)|"
    "spark_shift(?:left|right|rightunsigned)(?:32|64)|"
    "spark_text_of_(?:date|timestamp)|kernel_decimal_[a-z_0-9]+",
    re.IGNORECASE,
)
"""Functions that accept any bytes as text, as Spark does, or take no text. Others need UTF-8, or DuckDB breaks."""
_ANY_MOMENT = re.compile("coalesce|decimal|greatest|least", re.IGNORECASE)
_CONSTANT = re.compile(r"CAST\((?:NULL|[-+.\de]+) AS \w+(?:\(\d+, \d+\))?\)", re.IGNORECASE)
_REACHING = re.compile(r"[+-]")
_FIRST_AND_LAST = {32: (2 - 2**31, 2**31 - 2), 64: (-9_223_372_022_400_000_000, 2**63 - 2)}
"""DuckDB's first and last date, and time, as numbers, by their bits."""
_WORD = re.compile(r"\b(?:like|ilike|glob|similar)\b|~~", re.IGNORECASE)
_LIKE = re.compile(r"\b(?:NOT )?LIKE '(?:[^'_\\]|'')*' ESCAPE '\\'")
"""A pattern that counts no letters: it compares bytes, as Spark's does."""
_CONFIG: dict[str, Any] = {
    "threads": 1,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "enable_external_access": False,
    "python_enable_replacements": False,
}


class Evaluator:
    """One in-process DuckDB without files, network or extensions. For one thread, and not shared.

    No two columns of a batch may differ in case alone. A TIMESTAMP enters and leaves as its UTC wall clock.
    """

    def __init__(self, caller: FunctionCaller = LOCAL) -> None:
        """caller: how functions of users are called."""
        self._engine = _Engine(caller)
        self._blames = True

    def define(self, functions: Sequence[UserFunction]) -> None:
        """Let expressions call these functions of users, by their ``sql_name``. Raises DeclarationError for one that
        cannot be loaded here."""
        for function in functions:
            self._engine.define(function)

    def without_row_text(self) -> "Evaluator":
        """The same evaluator with short errors: they do not name the row at fault, because finding it takes time."""
        other = copy.copy(self)
        other._blames = False
        return other

    def project(self, rows: pa.RecordBatch, projection: Projection) -> pa.RecordBatch:
        """The projection's columns, one row for each of ``rows``, in order; a plain column is not copied.

        Raises RowError, with the values of the first row that fails.
        """
        schema = projection.schema
        columns: list[pa.Array | None] = [_plain(rows, expression) for expression in projection.expressions]
        places = [place for place, found in enumerate(columns) if found is None]
        if places:
            wanted = pa.schema([schema.field(place) for place in places])
            expressions = tuple(projection.expressions[place] for place in places)
            computed = self._compute(rows, expressions, wanted, [f"column {name}" for name in wanted.names])
            for place, values in zip(places, computed, strict=True):
                columns[place] = values
        exact = [_exactly(values, field.type) for values, field in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(exact, schema=schema)

    def mask(self, rows: pa.RecordBatch, predicate: str) -> npt.NDArray[np.bool_]:
        """Where the predicate is true; NULL counts as false. Raises RowError."""
        (truth,) = self._compute(rows, (f"coalesce(({predicate}), FALSE)",), _TRUTH, ["a condition"])
        mask: npt.NDArray[np.bool_] = truth.to_numpy(zero_copy_only=False)
        return mask

    def close(self) -> None:
        """Free DuckDB's memory; the evaluator cannot be used after that."""
        self._engine.close()

    def _compute(
        self, rows: pa.RecordBatch, expressions: tuple[str, ...], schema: pa.Schema, titles: Sequence[str]
    ) -> Sequence[pa.Array]:
        """One array for each expression. titles: how errors call each of them."""
        if not rows.num_rows:
            return [pa.array([], field.type) for field in schema]
        try:
            return self._engine.run(rows, expressions, schema)
        except _RowFault as fault:
            raise RowError(self._told(rows, expressions, schema, titles, str(fault))) from fault
        except duckdb.Error as error:
            raise ProtocolError(f"DuckDB cannot evaluate {' and '.join(expressions)}: {error}") from error

    def _told(
        self, rows: pa.RecordBatch, expressions: tuple[str, ...], schema: pa.Schema, titles: Sequence[str], what: str
    ) -> str:
        """The error with the expression at fault, if the row is known, and with the row, if it was looked for."""
        if self._blames:
            rows = self._first_failing(rows, expressions, schema)
        if rows.num_rows > 1:
            return what
        each = zip(expressions, schema, titles, strict=True)
        at_fault = (
            title
            for expression, field, title in each
            if len(titles) == 1 or self._fails(rows, (expression,), pa.schema([field]))
        )
        title = next(at_fault, ", ".join(titles))
        return f"{title}: {what}" + (f"{_row_text(rows, expressions)}. {GUARD}" if self._blames else "")

    def _first_failing(self, rows: pa.RecordBatch, expressions: tuple[str, ...], schema: pa.Schema) -> pa.RecordBatch:
        """The first row on which the expressions fail."""
        while rows.num_rows > 1:
            half = rows.num_rows // 2
            first = rows.slice(0, half)
            rows = first if self._fails(first, expressions, schema) else rows.slice(half)
        return rows

    def _fails(self, rows: pa.RecordBatch, expressions: tuple[str, ...], schema: pa.Schema) -> bool:
        try:
            self._engine.run(rows, expressions, schema)
        except (_RowFault, duckdb.Error):
            return True
        return False


class _RowFault(Exception):
    """An expression fails on some row; what DuckDB says of it."""


_TRUTH = pa.schema([("truth", pa.bool_())])


class _Engine:
    """DuckDB and its prepared statements. It is opened anew when it breaks."""

    def __init__(self, caller: FunctionCaller) -> None:
        self._caller = caller
        self._functions: dict[str, tuple[UserFunction, ColumnCall]] = {}
        self._interruptions: list[Exception] = []
        """Errors of users' functions in this run that no row is to blame for."""
        self.duck = self._opened()
        self._defined: set[str] = set()
        """The kernels and macros that DuckDB has."""
        self._statements: dict[tuple[tuple[str, ...], pa.Schema, pa.Schema], _Statement] = {}
        self._numbers = count(1)
        """Numbers of the next statements."""

    def run(self, rows: pa.RecordBatch, expressions: tuple[str, ...], schema: pa.Schema) -> list[pa.Array]:
        """One array for each expression. Raises _RowFault if a row is at fault, and DuckDB's other errors. Raises what
        interrupts a user's function: FunctionFailed, DeclarationError."""
        self._interruptions.clear()
        try:
            made = self._run(rows, expressions, schema)
        except (_RowFault, duckdb.Error) as error:
            if self._interruptions:
                raise self._interruptions[0] from error
            raise
        if self._interruptions:  # DuckDB has made NULL of it
            raise self._interruptions[0]
        return made

    def _run(self, rows: pa.RecordBatch, expressions: tuple[str, ...], schema: pa.Schema) -> list[pa.Array]:
        statement = self._statement(expressions, schema, rows.schema)
        try:
            return statement.run(rows)
        except _ROWS_AT_FAULT as error:
            raise _RowFault(_said(error)) from error
        except UnicodeDecodeError as error:  # DuckDB's message quotes a text
            raise _RowFault("a text whose bytes are no UTF-8") from error
        except _BROKEN as error:
            self.close()
            self.duck = self._opened()
            self._defined.clear()
            raise _RowFault(f"DuckDB cannot compute it: {_said(error)}") from error

    def define(self, function: UserFunction) -> None:
        if function.sql_name not in self._functions:
            call = self._caller.column_function(function)
            define_function(self.duck, function, call, self._interruptions.append)
            self._functions[function.sql_name] = function, call

    def close(self) -> None:
        self._statements.clear()
        self.duck.close()

    def _opened(self) -> duckdb.DuckDBPyConnection:
        """A DuckDB that is closed when the engine is gone: at the end of the process it would complain."""
        duck = duckdb.connect(":memory:", config=_CONFIG)
        finalize(self, duck.close)
        duck.execute("PRAGMA disable_optimizer")
        for function, call in self._functions.values():
            define_function(duck, function, call, self._interruptions.append)
        duck.execute("SET lock_configuration = true")
        return duck

    def _statement(self, expressions: tuple[str, ...], schema: pa.Schema, rows: pa.Schema) -> "_Statement":
        key = (expressions, schema, rows)
        statement = self._statements.get(key)
        if statement is None:
            if len(self._statements) >= STATEMENTS_MAX:
                oldest = next(iter(self._statements))
                self._statements.pop(oldest).drop()
            for expression in expressions:
                define(self.duck, expression, self._defined)
            statement = _Statement(self.duck, f"s{next(self._numbers)}", expressions, schema, rows)
            self._statements[key] = statement
        return statement


class _Batch:
    """What a statement scans: the current batch, through Arrow's C stream."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._rows: pa.RecordBatch | None = None

    def hold(self, rows: pa.RecordBatch | None) -> None:
        self._rows = rows

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.RecordBatchReader.from_batches(self.schema, [self._rows]).__arrow_c_stream__()


class _Statement:
    """Prepared expressions over batches of one schema. DuckDB sees only the columns that they name, renamed."""

    def __init__(
        self, duck: duckdb.DuckDBPyConnection, name: str, expressions: Sequence[str], schema: pa.Schema, rows: pa.Schema
    ) -> None:
        self._duck = duck
        self._name = name
        self.schema = schema
        self._names = sorted({column for text in expressions for column in _columns(text)})
        self._places = [rows.get_field_index(column) for column in self._names]
        if -1 in self._places:
            raise ProtocolError(f"{' and '.join(expressions)} names a column that is not in {rows.names}")
        types = [_duck_form(rows.field(place).type) for place in self._places] or [pa.null()]
        strict = {name for text in expressions if not _takes_any_bytes(text) for name in _columns(text)}
        reaching = {name for text in expressions if not _takes_any_moment(text) for name in _columns(text)}
        named = list(zip(self._names, types, strict=False))
        self._texts = [name for name, type in named if name in strict and _has(pa.types.is_string, type)]
        self._moments = [name for name, type in named if name in reaching and _has(pa.types.is_temporal, type)]
        self._batch = _Batch(pa.schema([pa.field(f"c{number}", type) for number, type in enumerate(types)]))
        short = {column: f"c{number}" for number, column in enumerate(self._names)}
        outputs = ", ".join(
            f"CAST({_renamed(text, short)} AS {duck_name(field.type)}) AS r{number}"
            for number, (text, field) in enumerate(zip(expressions, schema, strict=True))
        )
        duck.register(name, self._batch)
        try:
            duck.execute(f"PREPARE {name} AS SELECT {outputs} FROM {name}")
        except duckdb.Error as error:
            duck.unregister(name)
            raise ProtocolError(f"DuckDB cannot prepare {outputs}: {error}") from error

    def run(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """One array for each expression. Raises DuckDB's errors, and _RowFault for a text that would break DuckDB."""
        for name in self._texts:
            if not all(map(_is_utf8, _leaves(pa.types.is_string, rows.column(name)))):
                raise _RowFault(f"the text in {name} is no UTF-8")
        for name in self._moments:
            for moments in _leaves(pa.types.is_temporal, rows.column(name)):
                if _is_at_an_end(moments):
                    raise _RowFault(f"the {spark_name(moments.type)} in {name} is too far to compute with")
        columns = [_retyped(rows.column(place)) for place in self._places] or [pa.nulls(rows.num_rows)]
        self._batch.hold(pa.RecordBatch.from_arrays(columns, schema=self._batch.schema))
        try:
            table = self._duck.sql(f"EXECUTE {self._name}").to_arrow_table(rows.num_rows)
        finally:
            self._batch.hold(None)
        return [_one(column) for column in table.columns]

    def drop(self) -> None:
        self._duck.execute(f"DEALLOCATE {self._name}")
        self._duck.unregister(self._name)


def _columns(text: str) -> list[str]:
    """The columns that an expression names."""
    return [match[1].replace('""', '"') for match in _WORDS.finditer(text) if match[1] is not None]


def _row_text(rows: pa.RecordBatch, expressions: Sequence[str]) -> str:
    """The first row, limited to the columns that the expressions name."""
    names = sorted({column for text in expressions for column in _columns(text)})
    return f" (row: {', '.join(f'{name} = {value_text(rows.column(name))}' for name in names)})" if names else ""


def _takes_any_bytes(expression: str) -> bool:
    """Whether DuckDB computes it from text of any bytes as Spark does."""
    words = _WORDS.sub("", _LIKE.sub("", expression))
    return _WORD.search(words) is None and all(map(_ANY_BYTES.fullmatch, _CALLS.findall(words)))


def _takes_any_moment(expression: str) -> bool:
    """Whether it only compares points in time, or chooses between them."""
    words = _CONSTANT.sub("", _WORDS.sub("", expression))
    return _REACHING.search(words) is None and all(map(_ANY_MOMENT.fullmatch, _CALLS.findall(words)))


def _is_at_an_end(moments: pa.Array) -> bool:
    """Whether some values are infinite for DuckDB, or beyond its calendar; Spark treats them like others."""
    least, most = _FIRST_AND_LAST[moments.type.bit_width]
    found = pc.min_max(exact(moments)).as_py()
    return found["min"] is not None and not (least <= found["min"] and found["max"] <= most)


def _is_utf8(texts: pa.Array) -> bool:
    if _is_ascii(texts):
        return True
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_ascii(texts: pa.Array) -> bool:
    """Ten times as fast as reading UTF-8."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return True
    ends = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4)
    letters = np.frombuffer(data, np.int8, int(ends[-1] - ends[0]), int(ends[0]))
    return bool(letters.min(initial=0) >= 0)


def _renamed(text: str, names: dict[str, str]) -> str:
    return _WORDS.sub(lambda match: match[0] if match[1] is None else names[match[1].replace('""', '"')], text)


def _plain(rows: pa.RecordBatch, expression: str) -> pa.Array | None:
    """The column, if the expression is nothing but its name."""
    column = plain_column(expression)
    place = -1 if column is None else rows.schema.get_field_index(column)
    return rows.column(place) if place >= 0 else None


def _duck_form(type: pa.DataType) -> pa.DataType:
    """The type as DuckDB sees it: it would read a TIMESTAMP with a time zone of its own, has intervals of another kind,
    and names the fields of structs by numbers."""
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field_name(place), _duck_form(part)) for place, part in enumerate(parts_of(type))])
    if is_nested(type):
        return with_parts(type, [_duck_form(part) for part in parts_of(type)])
    return pa.timestamp("us") if is_instant(type) else pa.int64() if is_interval(type) else type


def _retyped(values: pa.Array) -> pa.Array:
    type = _duck_form(values.type)
    return values if type is values.type else values.view(type)


def _exactly(values: pa.Array, type: pa.DataType) -> pa.Array:
    """The values as exactly that type; DuckDB's have the same representation."""
    if values.type == type and not is_nested(type):
        return values
    as_they_lie = pa.types.is_timestamp(type) or is_interval(type) or is_nested(type)
    return values.view(type) if as_they_lie else values.cast(type)


def _has(is_kind: Callable[[pa.DataType], bool], type: pa.DataType) -> bool:
    """Whether the type is of this kind, or some part of it."""
    return is_kind(type) or any(_has(is_kind, part) for part in parts_of(type))


def _leaves(is_kind: Callable[[pa.DataType], bool], values: pa.Array) -> Iterator[pa.Array]:
    """The values, and all values in them, of this kind."""
    if is_kind(values.type):
        yield values
    elif not _has(is_kind, values.type):
        return
    elif pa.types.is_struct(values.type):
        for part in values.flatten():
            yield from _leaves(is_kind, part)
    elif is_listed(values.type) and len(values):
        starts, lengths = spans_of(values)
        first = int(starts[0])
        yield from _leaves(is_kind, elements_of(values).slice(first, int((starts + lengths).max()) - first))


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _said(error: duckdb.Error) -> str:
    """DuckDB's message without its kind and its stack, and with Spark's names of types; bounded."""
    text = re.split(r"\n\n(?:Stack Trace|LINE \d+):", str(error).strip(), maxsplit=1)[0]
    text = re.sub(r"Python exception occurred while executing the UDF: \w+: ", "", text)
    text = re.sub(
        r"^[A-Z][A-Za-z ]* Error: | when casting from source column c\d+|\n\nLINE \d+:.*", "", text, flags=re.DOTALL
    )
    text = _DUCK_TYPES.sub(lambda match: f"{match[1]} {_SPARK_TYPES[match[2]]}", escaped(text.strip()))
    if len(text) <= ERROR_CHARS_MAX:
        return text
    return f"{text[: ERROR_CHARS_MAX // 2]}...{text[-ERROR_CHARS_MAX // 2 :]}"
