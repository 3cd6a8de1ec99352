"""The program of a process that evaluates queries for the doors: DuckDB under a limit of the operating system.

DuckDB counts its tables, and not the texts and lists that an expression makes on the way. So the process has a limit of
its own: what does not fit is an error of the query, and not the end of the driver. A task comes as JSON and Arrow
streams on the standard input; its answer goes out in the same form.
"""

import datetime
import json
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import IO, Any, Literal

import duckdb
import pyarrow as pa
import pyarrow.ipc as ipc
from duckdb.sqltypes import DuckDBPyType

from upriver.doors.query_grammar import SERIALIZED, QueryRefused, check_tree
from upriver.plan.column_names import quoted

QUERY_ROWS_MAX = 1_000_000
"""Rows of one view that a query reads by a scan, and rows of an answer."""
QUERY_BYTES_MAX = 256 << 20
"""Bytes of an answer, and of all rows that a query reads."""
BATCH_ROWS = 65_536
"""Rows of an answer that are fetched at a time."""
CHECKED_MAX = 64
"""Checked texts that a process remembers: a query is checked before its rows are read, and again when it runs."""
CHECKED_CHARS_MAX = 65_536
"""Characters of a text that is remembered so."""
TREE_LEVELS_MAX = 20_000
"""Levels of a query's tree as JSON, which has several for each of the query's."""
ENGINES_MAX = 4
"""DuckDBs that a process keeps: one for each time zone and door."""
DUCK_SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "enable_external_access": False,
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "allow_persistent_secrets": False,
        "temp_directory": "",
        "memory_limit": "768MB",
        "threads": 2,
        "ieee_floating_point_ops": False,  # division by zero is an error
    }
)
"""Of every DuckDB that sees a user's query."""
_TYPES_WITHOUT_FORM = ("bignum", "bit", "uhugeint")
"""DuckDB's types that Arrow has as bytes, or as numbers that may be others."""
_NESTED_TYPES = ("array", "list", "map", "struct", "union")
SIZE = struct.Struct("!Q")
"""The size of what comes next, in bytes."""
TOO_LARGE = "too large"
"""The kind of the error of an answer beyond the bounds."""
NO_ROWS = "no rows"
"""The kind of the error of a statement that is no query."""
OUT_OF_MEMORY = duckdb.OutOfMemoryException.__name__
"""The kind of the error of a query that takes more memory than it may."""
NO_UTF8 = "no UTF-8"
"""The kind of the error of a text that is not UTF-8, in what a query reads or computes."""
PARENT_LOOK_S = 1.0
"""Seconds between two looks whether the driver still runs."""
MEMORY_STATUS = 86
"""With what a process ends that cannot even say so."""


@dataclass(frozen=True, slots=True)
class QueryTask:
    """What a process evaluates. parameters: by name. zone: of times. macros: statements that define functions. tables:
    names of the Arrow tables that follow, the only ones that the query may read. wants: of the answer; ``check`` wants
    no more than to know that the query is allowed."""

    sql: str
    parameters: Mapping[str, Any]
    zone: str
    macros: tuple[str, ...]
    tables: tuple[str, ...]
    wants: Literal["rows", "schema", "check"] = "rows"


class QueryFault(Exception):
    """Why there is no answer. kind: DuckDB's class of error, or one of this module."""

    def __init__(self, kind: str, text: str = "") -> None:
        super().__init__(text)
        self.kind = kind


class Engines:
    """A DuckDB for each time zone and door; each query has a cursor with tables of its own."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, tuple[str, ...]], duckdb.DuckDBPyConnection] = {}
        self._checked: dict[tuple[object, ...], None] = {}
        """Queries that are allowed, the newest last."""

    @contextmanager
    def cursor(self, zone: str, macros: tuple[str, ...] = ()) -> Iterator[duckdb.DuckDBPyConnection]:
        """For one query."""
        cursor = self._engine(zone, macros).cursor()
        try:
            yield cursor
        finally:
            cursor.close()

    def _engine(self, zone: str, macros: tuple[str, ...]) -> duckdb.DuckDBPyConnection:
        if (zone, macros) not in self._open:
            if len(self._open) >= ENGINES_MAX:
                self._open.pop(next(iter(self._open))).close()
            duck = duckdb.connect(":memory:", config=dict(DUCK_SETTINGS))
            with suppress(duckdb.Error):  # a zone that DuckDB does not know: UTC stays
                duck.execute(f"SET GLOBAL TimeZone = {_literal(zone)}")
            for macro in macros:
                duck.execute(macro)
            duck.execute("SET lock_configuration = true")
            self._open[zone, macros] = duck
        return self._open[zone, macros]

    def answer(self, task: QueryTask, tables: Mapping[str, pa.Table]) -> pa.Table:
        """The rows of a task, within the bounds. Raises QueryFault."""
        unread: list[str] = []
        try:
            with self.cursor(task.zone, task.macros) as duck:
                self._check(duck, task, tables)
                if task.wants == "check":
                    return pa.table({})
                for name, table in tables.items():
                    unread += _register(duck, name, table)
                relation = duck.sql(task.sql, params=dict(task.parameters)) if task.parameters else duck.sql(task.sql)
                if relation is None:
                    raise QueryFault(NO_ROWS)
                _check_types(relation)
                reader = relation.to_arrow_reader(BATCH_ROWS)
                if task.wants == "schema":
                    return reader.schema.empty_table()
                return pa.Table.from_batches(_bounded(reader), reader.schema)
        except MemoryError:
            raise QueryFault(OUT_OF_MEMORY) from None
        except (duckdb.Error, OSError, pa.ArrowException) as error:  # Arrow's, if it comes while rows are fetched
            for refusal in unread:
                if refusal in str(error):
                    raise QueryFault(NO_UTF8, refusal) from None
            raise QueryFault(type(error).__name__, str(error)) from None
        except UnicodeDecodeError:  # in place of DuckDB's error
            raise QueryFault(NO_UTF8, "the query fails on a text that is not UTF-8, which it computes") from None

    def _check(self, duck: duckdb.DuckDBPyConnection, task: QueryTask, tables: Mapping[str, pa.Table]) -> None:
        """Raise QueryFault for a query that is not allowed."""
        columns = {name for table in tables.values() for name in table.schema.names}
        query = (task.sql, task.macros, task.tables, frozenset(columns))
        if query in self._checked:
            return
        ((tree,),) = duck.execute(SERIALIZED, [task.sql]).fetchall()
        try:
            check_tree(json.loads(tree), task.tables, columns, [_macro_name(macro) for macro in task.macros])
        except QueryRefused as refusal:
            kind = duckdb.CatalogException if refusal.is_function else duckdb.ParserException
            raise QueryFault(kind.__name__, str(refusal)) from None
        except RecursionError:
            raise QueryFault(duckdb.ParserException.__name__, "the query is nested too deeply") from None
        if len(task.sql) <= CHECKED_CHARS_MAX:
            if len(self._checked) >= CHECKED_MAX:
                self._checked.pop(next(iter(self._checked)))
            self._checked[query] = None


def _check_types(relation: duckdb.DuckDBPyRelation) -> None:
    """Raise QueryFault for a column whose values Arrow has in another form: the caller could not read them."""
    for name, type in zip(relation.columns, relation.types, strict=True):
        if _has_no_form(type):
            text = f"column {name!r} of the answer has the type {type}, which answers cannot have: cast it to VARCHAR"
            raise QueryFault(duckdb.NotImplementedException.__name__, text)


def _has_no_form(type: DuckDBPyType) -> bool:
    if type.id in _NESTED_TYPES:
        return any(_has_no_form(part) for _, part in type.children if isinstance(part, DuckDBPyType))
    return type.id in _TYPES_WITHOUT_FORM


def _macro_name(statement: str) -> str:
    """The function that a ``CREATE MACRO`` defines."""
    return statement.partition("(")[0].split()[-1]


def _bounded(reader: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    count = nbytes = 0
    for batch in reader:
        count, nbytes = count + batch.num_rows, nbytes + batch.nbytes
        if count > QUERY_ROWS_MAX or nbytes > QUERY_BYTES_MAX:
            raise QueryFault(TOO_LARGE)
        if wrong := not_utf8(batch):
            raise QueryFault(NO_UTF8, f"column {wrong[0]!r} of the answer: the query computes a text that is not UTF-8")
        yield batch


def not_utf8(rows: pa.Table | pa.RecordBatch) -> list[str]:
    """The columns that have a text that is not UTF-8, also within a value: Spark has such texts, and DuckDB fails on
    them or computes anything."""
    return [name for name, column in zip(rows.schema.names, rows.columns, strict=True) if not _is_utf8(column)]


def _is_utf8(column: pa.Array | pa.ChunkedArray) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:  # another is of a number that is too long for its type
        return "UTF8" not in str(error)
    return True


def unread_text(view: str, column: str) -> str:
    """The error of a query that reads such a column."""
    return (
        f"view {view!r}, column {column!r}: it has a text that is not UTF-8, which a query cannot read. Leave the "
        "column out, or read its bytes by a lookup or a scan"
    )


def _register(duck: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> list[str]:
    """Have queries read a table. Returns the errors of those that read a column whose texts are not UTF-8."""
    wrong = not_utf8(table)
    if not wrong:
        duck.register(name, table)
        return []
    errors = [unread_text(name, column) for column in wrong]
    for column in wrong:
        place = table.schema.get_field_index(column)
        field = table.schema.field(place)
        table = table.set_column(place, field, pa.nulls(table.num_rows, field.type))
    rows = f"rows of {name}"
    duck.register(rows, table)
    replaced = ", ".join(  # DuckDB drops what a query does not read
        f"if(error({_literal(error)}) IS NULL, {quoted(column)}, NULL) AS {quoted(column)}"
        for error, column in zip(errors, wrong, strict=True)
    )
    duck.execute(f"CREATE TEMP VIEW {quoted(name)} AS SELECT * REPLACE ({replaced}) FROM {quoted(rows)}")
    return errors


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# What goes between the processes


def send_task(out: IO[bytes], task: QueryTask, tables: Mapping[str, pa.Table]) -> None:
    """tables: in the order of the task's names."""
    told = asdict(task) | {"parameters": {name: _told(value) for name, value in task.parameters.items()}}
    _send_sized(out, json.dumps(told).encode())
    for table in tables.values():
        _send_table(out, table)
    out.flush()


_VALUE_FORMS: Mapping[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = MappingProxyType(
    {
        bytes: (bytes.hex, bytes.fromhex),
        Decimal: (str, Decimal),
        datetime.datetime: (datetime.datetime.isoformat, datetime.datetime.fromisoformat),
        datetime.date: (datetime.date.isoformat, datetime.date.fromisoformat),
        datetime.time: (datetime.time.isoformat, datetime.time.fromisoformat),
    }
)
"""By type of a parameter that JSON does not have: to a text, and back."""
_FORM_TYPES = {type.__name__: type for type in _VALUE_FORMS}


def _told(value: Any) -> Any:
    """A parameter as JSON."""
    if isinstance(value, list):
        return list(map(_told, value))
    if type(value) in _VALUE_FORMS:
        return {type(value).__name__: _VALUE_FORMS[type(value)][0](value)}
    return value


def _value_of(told: Any) -> Any:
    if isinstance(told, list):
        return list(map(_value_of, told))
    if isinstance(told, dict):
        ((name, text),) = told.items()
        return _VALUE_FORMS[_FORM_TYPES[name]][1](text)
    return told


def received_answer(source: IO[bytes]) -> tuple[pa.Table, bool]:
    """An answer, and whether the process holds too much memory to go on. Raises QueryFault; EOFError, OSError,
    pa.ArrowException if the process has ended."""
    head = json.loads(_received_sized(source))
    if head["kind"] is not None:
        raise QueryFault(head["kind"], head["text"])
    with ipc.open_stream(source) as stream:
        return stream.read_all(), head["is_spent"]


def _send_sized(out: IO[bytes], data: bytes) -> None:
    out.write(SIZE.pack(len(data)) + data)


def _received_sized(source: IO[bytes]) -> bytes:
    (size,) = SIZE.unpack(_exactly(source, SIZE.size))
    return _exactly(source, size)


def _exactly(source: IO[bytes], size: int) -> bytes:
    data = source.read(size)
    if len(data) < size:
        raise EOFError("the other process has ended")
    return data


def _send_table(out: IO[bytes], table: pa.Table) -> None:
    with ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table, max_chunksize=BATCH_ROWS)


# The program


def _data_bytes() -> int:
    """Bytes of memory that count for the limit, as Linux tells; 0 elsewhere."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[5])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _limit_memory(more: int) -> None:
    """Let this process take so many bytes more. Linux counts them; other systems take the call, and may do nothing."""
    import resource  # there is none on Windows

    limit = _data_bytes() + more
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _end_with(driver: int) -> None:
    """End when the driver has ended, also within a query. driver: its process."""
    while os.getppid() == driver:
        time.sleep(PARENT_LOOK_S)
    os._exit(0)


def main() -> None:
    """Answer tasks until the standard input ends. The argument: bytes of memory that queries may take."""
    memory = int(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver's terminal means the driver
    source, out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    sys.setrecursionlimit(TREE_LEVELS_MAX)  # of the decoder of JSON
    engines = Engines()
    with engines.cursor("UTC") as duck:
        duck.execute("SELECT 1").fetchall()  # DuckDB's threads are there before the count begins
    begun = _data_bytes()
    _limit_memory(memory)
    try:
        while True:
            task, tables = _received_task(source)
            _answer(out, engines, task, tables, begun + memory // 2)
            del task, tables
    except (EOFError, BrokenPipeError):
        os._exit(0)  # the driver has ended
    except MemoryError:
        os._exit(MEMORY_STATUS)


def _received_task(source: IO[bytes]) -> tuple[QueryTask, dict[str, pa.Table]]:
    told = json.loads(_received_sized(source))
    parameters = {name: _value_of(value) for name, value in told["parameters"].items()}
    lists = {name: tuple(told[name]) for name in ("macros", "tables")}
    task = QueryTask(**{**told, "parameters": parameters, **lists})
    tables = {}
    for name in task.tables:
        with ipc.open_stream(source) as stream:
            tables[name] = stream.read_all()
    return task, tables


def _answer(out: IO[bytes], engines: Engines, task: QueryTask, tables: Mapping[str, pa.Table], spent_from: int) -> None:
    found: pa.Table | None = None
    head: dict[str, Any] = {"kind": None, "text": ""}
    try:
        found = engines.answer(task, tables)
    except QueryFault as fault:
        head = {"kind": fault.kind, "text": str(fault)}
    head["is_spent"] = _data_bytes() > spent_from
    _send_sized(out, json.dumps(head).encode())
    if found is not None:
        _send_table(out, found)
    out.flush()
