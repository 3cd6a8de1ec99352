"""Executes queries over views: fetches the rows that a query needs, and has DuckDB evaluate it over them.

DuckDB runs in a process of its own (:mod:`.query_processes`). It has no access to files, the network or Python's
variables, its settings are locked, and its memory, threads and time are bounded. Only a text that :mod:`.queries` has
made from a checked syntax tree reaches it.
"""

import re
import signal
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Protocol

import duckdb
import pyarrow as pa

from upriver.client.client import Client, Keys
from upriver.client.scans import ScanReader
from upriver.doors.cancellation import Cancellation, RowReads
from upriver.doors.key_queries import KeyQuery
from upriver.doors.queries import ViewAccess, ViewQuery, depth_refused
from upriver.doors.query_processes import (
    CALLER_WAITING_MAX,
    HOST_WAITING_MAX,
    PROCESSES,
    QUERY_S_MAX,
    WAITING_MAX,
    ProcessEnded,
    QueryProcess,
    QueryProcesses,
)
from upriver.doors.query_program import (
    MEMORY_STATUS,
    NO_ROWS,
    NO_UTF8,
    OUT_OF_MEMORY,
    QUERY_BYTES_MAX,
    QUERY_ROWS_MAX,
    TOO_LARGE,
    QueryFault,
    QueryTask,
    not_utf8,
    unread_text,
)
from upriver.doors.shares import OWN_CALLER, Bounds, FairTurns, QueryCaller, SharedBytes
from upriver.errors import DeclarationError, RowError, UnsupportedSql
from upriver.plan.schemas import EVERYTHING_KEY
from upriver.protocol.lookups import ViewRoute

QUERY_KEYS_MAX = 100_000
"""Keys of one view that a query names."""
COMPUTED_ROWS_MAX = 10_000_000
"""Rows of tables from which a query without keys computes a partial view."""
_MEMORY_STATUSES = (MEMORY_STATUS, -signal.SIGABRT, -signal.SIGKILL)
"""How a process ends that takes too much memory: by itself, by C++, or by the operating system."""
ANSWERS_BYTES_MAX = 1 << 30
"""Bytes of large answers in this process that their callers have not read."""
HOST_ANSWERS_BYTES_MAX = 768 << 20
"""Of them, those of callers of one host."""
CALLER_ANSWERS_BYTES_MAX = 512 << 20
"""Of them, those of one caller."""
LONG_CHARS = 10_000
"""Characters from which a query is long: its parse takes the driver a second or more."""
PARSES_MAX = 2
"""Long queries that the driver parses at a time: one of callers of one host."""
LARGE_BYTES = 65_536
"""Bytes from which an answer is large."""
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

    def lookup(self, view: str, keys: Keys, /) -> pa.Table:
        """The rows of these keys, as of one epoch."""
        ...

    def scan(self, view: str, /) -> ScanReader:
        """All rows, as of one epoch. Raises DeclarationError if they are too many to compute."""
        ...


class ClientRows:
    """The rows that a client reads."""

    def __init__(
        self,
        connected: Callable[[], Client],
        store: Mapping[str, str] = MappingProxyType({}),
        scan_s: float = QUERY_S_MAX,
    ) -> None:
        """connected: the client, or raises why there is none yet. store: settings that open the lake's object store.
        scan_s: seconds in which a scan must have been read."""
        self._scan_s = scan_s
        self._connected = connected
        self._store = store

    def routes(self) -> Mapping[str, ViewRoute]:
        return self._connected().routes()

    def definitions(self) -> Mapping[str, str]:
        return {view["name"]: view["sql"].strip() for view in self._connected().views() if view["ended"] is None}

    def lookup(self, view: str, keys: Keys) -> pa.Table:
        return self._connected().lookup(view, keys)

    def scan(self, view: str) -> ScanReader:
        scan = self._connected().scan(view, timeout=self._scan_s, store=self._store)
        if scan.tables:
            tables = self._connected().status()["tables"]
            count = sum(int(tables[table]["rows"]) for table in scan.tables if table in tables)
            if count > COMPUTED_ROWS_MAX:
                raise DeclarationError(
                    f"view {view!r} is partial, and its tables have {count:,} rows; a query without keys computes it "
                    f"from {COMPUTED_ROWS_MAX:,} at most. {_way_out(view, scan.schema)}"
                )
        return scan


def _way_out(view: str, schema: pa.Schema) -> str:
    return f"Name keys, by WHERE with = or IN for every column of the view's key, or use app.read({view!r})"


@dataclass(frozen=True, slots=True)
class DoorTables:
    """What a door adds to the views. tables: by name. macros: statements of DuckDB that define functions."""

    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    macros: tuple[str, ...] = ()


NO_TABLES = DoorTables()


_PARSES = FairTurns(Bounds(PARSES_MAX, 1, 1), Bounds(WAITING_MAX, HOST_WAITING_MAX, CALLER_WAITING_MAX), QUERY_S_MAX)


@contextmanager
def parse_turn(text: str, cancellation: Cancellation) -> Iterator[None]:
    """What is made of a query's text in this process. A long text waits for its turn, so the texts of one host do not
    take the driver from all others.

    Raises UnsupportedSql for what is nested too deeply, Busy, QueryCancelled."""
    with depth_refused():
        if len(text) < LONG_CHARS:
            yield
            return
        with cancellation.covers():
            turn = _PARSES.take(cancellation.caller, cancellation.check)
            try:
                yield
            finally:
                _PARSES.end(turn)
            cancellation.check()


def execute(
    query: ViewQuery,
    rows: QueryRows,
    parameters: Sequence[Any] = (),
    added: DoorTables = NO_TABLES,
    cancellation: Cancellation | None = None,
    processes: QueryProcesses = PROCESSES,
    seconds: float = QUERY_S_MAX,
) -> pa.Table:
    """The answer of a query. parameters: values of ``$1``, ``$2``, ... cancellation: ends it, and says whose share it
    takes. processes: evaluate it. seconds: that it may take, once it has its turn.

    The rows of each view are as of the end of one epoch. Raises UnsupportedSql for what DuckDB refuses, RowError for an
    expression that fails, DeclarationError for too many rows or keys, WaitTimeout, Busy, QueryCancelled, and the errors
    of lookups.
    """
    cancellation = cancellation or Cancellation()
    with cancellation.covers(), processes.process(cancellation) as process:
        cancellation.limit(seconds)
        evaluation = _Evaluation(process, query, added.macros, cancellation)
        tables = dict(added.tables)
        if query.accesses:
            evaluation.check(_without_rows(query, added))
        left = QUERY_BYTES_MAX
        for access in query.accesses:
            route = query.routes[access.view]
            tables[access.view] = _rows_of(access, route, rows, evaluation, parameters, left)
            left -= tables[access.view].nbytes
            if left < 0:
                raise _too_much(access.view, route.schema)
        found = evaluation.answer(query.sql, _used(query.sql, parameters), tables)
        return _ANSWERS.held(found, cancellation.caller)


def look_up(
    query: KeyQuery, key: tuple[Any, ...], rows: QueryRows, answer: pa.Schema, cancellation: Cancellation
) -> pa.Table | None:
    """The answer of a query that is one lookup; ``None`` if the view is another one by now. answer: its schema, which
    fits the query. Raises as ``execute`` does."""
    if None in key:  # nothing equals NULL
        return answer.empty_table()
    keys = [key if len(key) > 1 else key[0]]
    with cancellation.covers():
        cancellation.limit(QUERY_S_MAX)
        found = _READS.read(lambda _: rows.lookup(query.view, keys), cancellation)
    if not found.schema.equals(query.route.schema):
        return None
    if found.num_rows > QUERY_ROWS_MAX or found.nbytes > QUERY_BYTES_MAX:
        raise _too_much(query.view, found.schema)
    read = found.select(query.columns)
    if wrong := not_utf8(read):
        raise RowError(unread_text(query.view, wrong[0]))
    columns = read.columns
    return _ANSWERS.held(pa.Table.from_arrays(columns, schema=answer), cancellation.caller)


def batches_of(answer: pa.Table) -> Iterator[pa.RecordBatch]:
    """The batches of an answer, which counts as held until they have been read."""
    yield from answer.to_batches()


_ANSWER_BOUNDS = Bounds(ANSWERS_BYTES_MAX, HOST_ANSWERS_BYTES_MAX, CALLER_ANSWERS_BYTES_MAX)


class HeldAnswers:
    """Counts the large answers that are in memory: a caller may let many wait, and read none."""

    def __init__(self, nbytes: Bounds = _ANSWER_BOUNDS) -> None:
        self._bytes = SharedBytes(nbytes)

    def held(self, answer: pa.Table, caller: QueryCaller = OWN_CALLER) -> pa.Table:
        """The answer, which counts until it is garbage. Raises Busy if it is one too many."""
        nbytes = answer.nbytes
        if nbytes >= LARGE_BYTES:
            self._bytes.take(caller, nbytes)
            weakref.finalize(answer, self._bytes.give_back, caller, nbytes).atexit = False
        return answer


_ANSWERS = HeldAnswers()
_READS = RowReads(wait_s_max=QUERY_S_MAX)


def describe(
    query: ViewQuery,
    parameters: Sequence[Any] = (),
    added: DoorTables = NO_TABLES,
    cancellation: Cancellation | None = None,
) -> pa.Schema:
    """Names and types of the answer's columns. parameters: of the types that they will have. Raises as ``execute``."""
    cancellation = cancellation or Cancellation()
    with cancellation.covers(), PROCESSES.process(cancellation) as process:
        cancellation.limit(QUERY_S_MAX)
        evaluation = _Evaluation(process, query, added.macros, cancellation)
        return evaluation.answer(
            query.sql, _used(query.sql, parameters), _without_rows(query, added), wants="schema"
        ).schema


def _without_rows(query: ViewQuery, added: DoorTables) -> dict[str, pa.Table]:
    """The tables of a query, empty."""
    tables = {name: table.slice(0, 0) for name, table in added.tables.items()}
    return tables | {view: route.schema.empty_table() for view, route in query.routes.items()}


_PARAMETERS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(?P<number>\d+)""")
"""Texts and names of DuckDB's SQL, and the parameters beside them."""


def _used(sql: str, parameters: Sequence[Any]) -> dict[str, Any]:
    """The parameters that a text has: DuckDB refuses others."""
    numbers = {int(found["number"]) for found in _PARAMETERS.finditer(sql) if found["number"]}
    return {str(place): value for place, value in enumerate(parameters, start=1) if place in numbers}


def _rows_of(
    access: ViewAccess,
    route: ViewRoute,
    rows: QueryRows,
    evaluation: "_Evaluation",
    parameters: Sequence[Any],
    nbytes_max: int,
) -> pa.Table:
    """nbytes_max: bytes that a scan may have."""
    cancellation = evaluation.cancellation
    if access.keys is None:
        return _READS.read(partial(_scanned, access, rows, nbytes_max), cancellation)
    if route.key_schema == EVERYTHING_KEY:
        keys = pa.table({"()": pa.array([0], EVERYTHING_KEY.field(0).type)})
        return _READS.read(lambda _: rows.lookup(access.view, keys), cancellation)
    limited = f"SELECT DISTINCT * FROM ({access.keys}) LIMIT {QUERY_KEYS_MAX + 1}"
    keys = evaluation.answer(limited, _used(access.keys, parameters), {})
    if keys.num_rows > QUERY_KEYS_MAX:
        raise DeclarationError(
            f"view {access.view!r}: the query names more than {QUERY_KEYS_MAX:,} keys; give them in several queries"
        )
    return _READS.read(lambda _: rows.lookup(access.view, keys.cast(route.key_schema)), cancellation)


def _scanned(access: ViewAccess, rows: QueryRows, nbytes_max: int, is_wanted: Callable[[], bool]) -> pa.Table:
    """The rows of a scan, or as many as are enough, or those up to when none are wanted any more."""
    batches: list[pa.RecordBatch] = []
    count = nbytes = 0
    enough = QUERY_ROWS_MAX + 1 if access.enough is None else access.enough
    scan = rows.scan(access.view)
    for batch in scan:
        if count >= enough or not is_wanted():
            break
        batches.append(batch)
        count, nbytes = count + batch.num_rows, nbytes + batch.nbytes
        if count > QUERY_ROWS_MAX or nbytes > nbytes_max:
            raise _too_much(access.view, scan.schema)
    return pa.Table.from_batches(batches, scan.schema)


def _too_much(view: str, schema: pa.Schema) -> DeclarationError:
    return DeclarationError(
        f"view {view!r} has more than {QUERY_ROWS_MAX:,} rows, or the views of the query more than "
        f"{QUERY_BYTES_MAX >> 20} MiB: too many for a query. {_way_out(view, schema)}"
    )


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """What one query has evaluated, step by step. macros: of the door."""

    process: QueryProcess
    query: ViewQuery
    macros: tuple[str, ...]
    cancellation: Cancellation

    def check(self, tables: Mapping[str, pa.Table]) -> None:
        """Raise UnsupportedSql if the query has what is not allowed, before its rows are read. tables: without rows."""
        self.answer(self.query.sql, {}, tables, wants="check")

    def answer(
        self,
        sql: str,
        parameters: Mapping[str, Any],
        tables: Mapping[str, pa.Table],
        wants: Literal["rows", "schema", "check"] = "rows",
    ) -> pa.Table:
        """The rows of a query in DuckDB, within the bounds, or what else is wanted of it. Raises as ``execute``."""
        task = QueryTask(sql, parameters, self.query.zone, self.macros, tuple(tables), wants)
        self.cancellation.check()
        try:
            return self.process.answer(
                task, tables, self.cancellation.seconds_left, lambda: self.cancellation.is_requested
            )
        except QueryFault as fault:
            raise _translated(fault, self.process.memory, self.query.routes) from getattr(
                duckdb, fault.kind, duckdb.Error
            )(str(fault))
        except ProcessEnded as ended:
            self.cancellation.check()
            if ended.is_late:
                raise self.cancellation.late() from None
            if ended.status in _MEMORY_STATUSES:
                raise _too_much_memory(self.process.memory) from ended
            raise UnsupportedSql(
                f"DuckDB fails on this query (its process ended with status {ended.status}): write it in another way"
            ) from ended


def _too_much_memory(memory: int) -> DeclarationError:
    return DeclarationError(
        f"the query needs more than {memory >> 20:,} MiB of memory: read fewer rows, or make shorter texts and lists"
    )


_NO_COLUMN = re.compile(
    r"""Binder\ Error:\ (?:Referenced\ column\ "(?P<column>.*)"\ not\ found\ in\ FROM\ clause!
    |[^"]*"(?P<owner>.*)"\ does\ not\ have\ a\ column\ named\ "(?P<owned>.*)"
    |Column\ "(?P<joined>.*)"\ does\ not\ exist\ on\ (?:left|right)\ side\ of\ join!)""",
    re.VERBOSE,
)
"""How DuckDB says that a query names a column that there is not."""
_CANDIDATES = re.compile(r"^Candidate bindings: (.*)$", re.MULTILINE)


def _no_column(text: str, routes: Mapping[str, ViewRoute]) -> str | None:
    """What is wrong if DuckDB's error is of a missing column; ``None`` for another error. routes: of the query."""
    if (found := _NO_COLUMN.match(text)) is None:
        return None
    column = found["column"] or found["owned"] or found["joined"]
    columns = {view: route.schema.names for view, route in routes.items()}
    candidates = _CANDIDATES.search(text)
    known = [name for names in columns.values() for name in names]
    known += re.findall(r'"([^"]+)"', candidates[1]) if candidates else []  # of a subquery
    near = get_close_matches(column.lower(), dict.fromkeys(name.lower() for name in known), 1)
    advice = [f"did you mean {next(name for name in known if name.lower() == near[0])!r}?"] if near else []
    advice += [f"view {view!r} has {', '.join(names)}" for view, names in columns.items()]
    owner = f" in {found['owner']!r}" if found["owner"] else ""
    return "; ".join([f"no column {column!r}{owner}", *advice])


def _translated(fault: QueryFault, memory: int, routes: Mapping[str, ViewRoute]) -> Exception:
    """DuckDB's error as ours, on one line. What Arrow raises in its place has its text alone.
    memory: bytes that the query might take. routes: of the query's views."""
    if fault.kind == NO_ROWS:
        return UnsupportedSql("the query gives no rows to return: a query is one SELECT")
    if fault.kind == TOO_LARGE:
        return DeclarationError(
            f"the answer has more than {QUERY_ROWS_MAX:,} rows, or {QUERY_BYTES_MAX >> 20} MiB: add a LIMIT"
        )
    if fault.kind == NO_UTF8:
        return RowError(str(fault))
    text = str(fault).splitlines()[0] if str(fault) else fault.kind
    if DIVISION in text:
        return RowError(DIVISION.lower())
    if text.startswith(("Conversion Error", "Out of Range Error")):
        return RowError(text)
    if fault.kind == OUT_OF_MEMORY or text.startswith("Out of Memory Error"):
        return _too_much_memory(memory)
    return UnsupportedSql(_no_column(str(fault), routes) or text)
