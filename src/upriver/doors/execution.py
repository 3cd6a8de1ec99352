"""Executes queries over views: fetches the rows that a query needs, and has DuckDB evaluate it over them.

DuckDB has no access to files, the network or Python's variables, its settings are locked, and its memory, threads and
time are bounded. Only a text that :mod:`.queries` has made from a checked syntax tree reaches it.
"""

import atexit
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from upriver.client.client import Client
from upriver.client.scans import ScanReader
from upriver.doors.queries import ViewAccess, ViewQuery
from upriver.errors import Busy, DeclarationError, QueryCancelled, RowError, UnsupportedSql, WaitTimeout
from upriver.net.lookups import ViewRoute
from upriver.plan.plan import EVERYTHING_KEY

QUERY_ROWS_MAX = 1_000_000
"""Rows of one view that a query reads by a scan, and rows of an answer."""
QUERY_BYTES_MAX = 256 << 20
"""Bytes of the same."""
QUERY_KEYS_MAX = 100_000
"""Keys of one view that a query names."""
COMPUTED_ROWS_MAX = 10_000_000
"""Rows of tables from which a query without keys computes a partial view."""
QUERY_S_MAX = 60.0
"""Seconds that DuckDB may take for one query, and that a query waits for its turn."""
QUERIES_MAX = 8
"""Queries that one process evaluates at a time."""
ENGINES_MAX = 8
"""DuckDBs that a process keeps: one for each time zone and door."""
BATCH_ROWS = 65_536
"""Rows of an answer that are fetched at a time."""

DUCK_SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "enable_external_access": False,
        "python_enable_replacements": False,
        "temp_directory": "",
        "memory_limit": "1GB",
        "threads": 2,
        "ieee_floating_point_ops": False,  # division by zero is an error
    }
)
"""Of every DuckDB that sees a user's query."""


DIVISION = "Division by zero"
"""What DuckDB says of it."""


class QueryRows(Protocol):
    """What a query reads."""

    def routes(self) -> Mapping[str, ViewRoute]:
        """All views."""
        ...

    def definitions(self) -> Mapping[str, str]:
        """The SQL of all views, as they were declared."""
        ...

    def lookup(self, view: str, keys: pa.Table, /) -> pa.Table:
        """The rows of these keys, as of one epoch."""
        ...

    def scan(self, view: str, /) -> ScanReader:
        """All rows, as of one epoch. Raises DeclarationError if they are too many to compute."""
        ...


class ClientRows:
    """The rows that a client reads."""

    def __init__(
        self, client: Client, store: Mapping[str, str] = MappingProxyType({}), scan_s: float = QUERY_S_MAX
    ) -> None:
        """store: settings that open the lake's object store. scan_s: seconds in which a scan must have been read."""
        self._scan_s = scan_s
        self._client = client
        self._store = store

    def routes(self) -> Mapping[str, ViewRoute]:
        return self._client.routes()

    def definitions(self) -> Mapping[str, str]:
        return {view["name"]: view["sql"].strip() for view in self._client.views() if view["ended"] is None}

    def lookup(self, view: str, keys: pa.Table) -> pa.Table:
        return self._client.lookup(view, keys)

    def scan(self, view: str) -> ScanReader:
        scan = self._client.scan(view, timeout=self._scan_s, store=self._store)
        if scan.tables:
            tables = self._client.status()["tables"]
            count = sum(int(tables[table]["rows"]) for table in scan.tables if table in tables)
            if count > COMPUTED_ROWS_MAX:
                raise DeclarationError(
                    f"view {view!r} is partial, and its tables have {count:,} rows; a query without keys computes it "
                    f"from {COMPUTED_ROWS_MAX:,} at most. {_way_out(view, scan.schema)}"
                )
        return scan


def _way_out(view: str, schema: pa.Schema) -> str:
    return f"Name keys, by WHERE with = or IN for every column of the view's key, or use app.read({view!r})"


class Cancellation:
    """Ends a query from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: duckdb.DuckDBPyConnection | None = None
        self.is_requested = False

    def request(self) -> None:
        """End the query that DuckDB evaluates now, if there is one."""
        with self._lock:
            if self._under_way is not None:
                self.is_requested = True
                self._under_way.interrupt()

    @contextmanager
    def covers(self, duck: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """The query of this connection is under way."""
        with self._lock:
            self._under_way, self.is_requested = duck, False
        try:
            yield
        finally:
            with self._lock:
                self._under_way = None


@dataclass(frozen=True, slots=True)
class DoorTables:
    """What a door adds to the views. tables: by name. macros: statements of DuckDB that define functions."""

    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    macros: tuple[str, ...] = ()


NO_TABLES = DoorTables()


def execute(
    query: ViewQuery,
    rows: QueryRows,
    parameters: Sequence[Any] = (),
    added: DoorTables = NO_TABLES,
    cancellation: Cancellation | None = None,
) -> pa.Table:
    """The answer of a query. parameters: values of ``$1``, ``$2``, ...

    The rows of each view are as of the end of one epoch. Raises UnsupportedSql for what DuckDB refuses, RowError for an
    expression that fails, DeclarationError for too many rows or keys, WaitTimeout, Busy, and the errors of lookups.
    """
    cancellation = cancellation or Cancellation()
    with _ENGINES.cursor(query.zone, added.macros) as duck, cancellation.covers(duck):
        for access in query.accesses:
            duck.register(access.view, _rows_of(access, query.routes[access.view], rows, duck, parameters))
        for name, table in added.tables.items():
            duck.register(name, table)
        return _answer(duck, query.sql, _used(query, parameters))


def describe(query: ViewQuery, parameters: Sequence[Any] = (), added: DoorTables = NO_TABLES) -> pa.Schema:
    """Names and types of the answer's columns. parameters: of the types that they will have."""
    with _ENGINES.cursor(query.zone, added.macros) as duck:
        for name, table in added.tables.items():
            duck.register(name, table.slice(0, 0))
        for view, route in query.routes.items():
            duck.register(view, route.schema.empty_table())
        return _answer(duck, query.sql, _used(query, parameters)).schema


def _used(query: ViewQuery, parameters: Sequence[Any]) -> dict[str, Any]:
    return {str(place): value for place, value in enumerate(parameters, start=1) if f"${place}" in query.sql}


def _rows_of(
    access: ViewAccess, route: ViewRoute, rows: QueryRows, duck: duckdb.DuckDBPyConnection, parameters: Sequence[Any]
) -> pa.Table:
    if access.keys is None:
        return _scanned(access, rows.scan(access.view))
    if route.key_schema == EVERYTHING_KEY:
        keys = pa.table({"()": pa.array([0], EVERYTHING_KEY.field(0).type)})
        return rows.lookup(access.view, keys)
    limited = f"SELECT DISTINCT * FROM ({access.keys}) LIMIT {QUERY_KEYS_MAX + 1}"
    used = {str(place): value for place, value in enumerate(parameters, start=1) if f"${place}" in access.keys}
    keys = _answer(duck, limited, used)
    if keys.num_rows > QUERY_KEYS_MAX:
        raise DeclarationError(
            f"view {access.view!r}: the query names more than {QUERY_KEYS_MAX:,} keys; give them in several queries"
        )
    return rows.lookup(access.view, keys.cast(route.key_schema))


def _scanned(access: ViewAccess, scan: ScanReader) -> pa.Table:
    """The rows of a scan, or as many as are enough."""
    batches: list[pa.RecordBatch] = []
    count = nbytes = 0
    enough = QUERY_ROWS_MAX + 1 if access.enough is None else access.enough
    for batch in scan:
        if count >= enough:
            break
        batches.append(batch)
        count, nbytes = count + batch.num_rows, nbytes + batch.nbytes
        if count > QUERY_ROWS_MAX or nbytes > QUERY_BYTES_MAX:
            raise DeclarationError(
                f"view {access.view!r} has more than {QUERY_ROWS_MAX:,} rows, or {QUERY_BYTES_MAX >> 20} MiB: too many "
                f"for a query without keys. {_way_out(access.view, scan.schema)}"
            )
    return pa.Table.from_batches(batches, scan.schema)


def _answer(duck: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any]) -> pa.Table:
    """The rows of a query in DuckDB, within the bounds."""
    late = threading.Event()

    def interrupt() -> None:
        late.set()
        duck.interrupt()

    timer = threading.Timer(QUERY_S_MAX, interrupt)
    timer.daemon = True
    timer.start()
    try:
        relation = duck.sql(sql, params=dict(parameters)) if parameters else duck.sql(sql)
        if relation is None:
            raise UnsupportedSql("the query gives no rows to return: a query is one SELECT")
        reader = relation.to_arrow_reader(BATCH_ROWS)
        return pa.Table.from_batches(_bounded(reader), reader.schema)
    except (duckdb.Error, OSError, pa.ArrowException) as error:  # Arrow's, if it comes while rows are fetched
        if _is(error, "INTERRUPT Error") and not late.is_set():
            raise QueryCancelled("the query was cancelled by its caller") from None
        if late.is_set():
            raise WaitTimeout(f"the query took longer than {QUERY_S_MAX:g} s: name keys, or read fewer rows") from None
        raise _translated(error) from error
    finally:
        timer.cancel()


def _bounded(reader: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    count = nbytes = 0
    for batch in reader:
        count, nbytes = count + batch.num_rows, nbytes + batch.nbytes
        if count > QUERY_ROWS_MAX or nbytes > QUERY_BYTES_MAX:
            raise DeclarationError(
                f"the answer has more than {QUERY_ROWS_MAX:,} rows, or {QUERY_BYTES_MAX >> 20} MiB: add a LIMIT"
            )
        yield batch


class _Engines:
    """A DuckDB for each time zone. Queries share its memory; each has a cursor with tables of its own."""

    def __init__(self) -> None:
        self._turns = threading.BoundedSemaphore(QUERIES_MAX)
        self._lock = threading.Lock()
        self._open: dict[tuple[str, tuple[str, ...]], duckdb.DuckDBPyConnection] = {}

    @contextmanager
    def cursor(self, zone: str, macros: tuple[str, ...] = ()) -> Iterator[duckdb.DuckDBPyConnection]:
        """For one query. Raises Busy if there are too many at a time."""
        if not self._turns.acquire(timeout=QUERY_S_MAX):
            raise Busy(f"{QUERIES_MAX} queries are under way already: try again soon")
        try:
            with self._lock:
                cursor = self._engine(zone, macros).cursor()
            try:
                yield cursor
            finally:
                cursor.close()
        finally:
            self._turns.release()

    def _engine(self, zone: str, macros: tuple[str, ...]) -> duckdb.DuckDBPyConnection:
        if (zone, macros) not in self._open:
            if len(self._open) >= ENGINES_MAX:
                del self._open[next(iter(self._open))]  # cursors of queries under way keep it open
            duck = duckdb.connect(":memory:", config=dict(DUCK_SETTINGS))
            with suppress(duckdb.Error):  # a zone that DuckDB does not know: UTC stays
                duck.execute(f"SET GLOBAL TimeZone = '{zone.replace(chr(39), chr(39) * 2)}'")
            for macro in macros:
                duck.execute(macro)
            duck.execute("SET lock_configuration = true")
            self._open[zone, macros] = duck
        return self._open[zone, macros]

    def close(self) -> None:
        with self._lock:
            for duck in self._open.values():
                duck.close()
            self._open.clear()


_ENGINES = _Engines()
atexit.register(_ENGINES.close)


def _is(error: Exception, kind: str) -> bool:
    """Whether this is DuckDB's error of a kind. What Arrow raises in its place has its text alone."""
    return str(error).startswith(kind)


def _translated(error: Exception) -> Exception:
    """DuckDB's error as ours, on one line."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if DIVISION in text:
        return RowError(DIVISION.lower())
    if _is(error, "Conversion Error") or _is(error, "Out of Range Error"):
        return RowError(text)
    if _is(error, "Out of Memory Error"):
        return DeclarationError(f"the query needs more than {DUCK_SETTINGS['memory_limit']} of memory: read fewer rows")
    return UnsupportedSql(text)
