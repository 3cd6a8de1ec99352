"""Statements of PostgreSQL's wire: queries over views and the catalog, cursors, plans, and what a session says about
itself.

Everything is read only, so transactions change nothing: each query sees the newest epoch.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlglot import exp

from upriver.doors.cancellation import Cancellation
from upriver.doors.column_titles import with_postgres_names
from upriver.doors.exact_numbers import with_decimals, with_exact_numerics
from upriver.doors.execution import DoorTables, QueryRows, describe, execute, look_up, parse_turn
from upriver.doors.key_queries import KeyQuery
from upriver.doors.parameters import (
    PARAMETER,
    PARAMETERS_MAX,
    QUERY_PARTS,
    part_as_parsed,
    with_casts,
    with_parameters,
)
from upriver.doors.postgres.catalog import MACROS, PREFIX, SETTINGS, adapted, column_types
from upriver.doors.postgres.copies import CopyForm, copied_query
from upriver.doors.postgres.cursors import CursorStep, Declaration, SessionCursors
from upriver.doors.postgres.messages import WireError
from upriver.doors.postgres.types import BY_OID, ELEMENTS, NUMERIC, TEXT, TYPES, decoded
from upriver.doors.queries import QUERY_CHARS_MAX, ViewQuery, parameter_number, parsed, zone_of
from upriver.errors import UnsupportedSql
from upriver.protocol.lookups import ViewRoute

_TRANSACTIONS: Mapping[str, str] = {
    "BEGIN": "BEGIN",
    "START": "START TRANSACTION",
    "COMMIT": "COMMIT",
    "END": "COMMIT",
    "ROLLBACK": "ROLLBACK",
    "ABORT": "ROLLBACK",
}
"""What the server says of a statement that begins or ends a transaction, by its first word."""
_SILENT = ("SET", "RESET", "DISCARD", "DEALLOCATE", "SAVEPOINT", "RELEASE", "LISTEN", "UNLISTEN", "LOCK")
"""First words of statements that change nothing here."""
_QUERIES = ("SELECT", "WITH", "VALUES", "TABLE", "(")
_WRITES = (
    *("INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE", "CREATE", "ALTER", "DROP", "GRANT", "REVOKE", "COMMENT"),
    *("REFRESH", "IMPORT", "REINDEX", "CLUSTER", "VACUUM", "ANALYZE", "CALL", "DO"),
)
_PLAN = pa.schema([("QUERY PLAN", pa.string())])
_EXPLAIN = re.compile(
    r"EXPLAIN\s*(?:\((?P<options>[^)]*)\)\s*)?(?P<words>(?:(?:ANALYZE|ANALYSE|VERBOSE)\s+)*)(?P<query>.+)",
    re.IGNORECASE | re.DOTALL,
)
_SET = re.compile(r"SET\s+(?:SESSION\s+|LOCAL\s+)?([\w.]+)\s*(?:=|\s+TO\s+|\s)\s*(.*)", re.IGNORECASE | re.DOTALL)
_SHOWN_NAMES = {
    "TRANSACTION ISOLATION LEVEL": "transaction_isolation",
    "TIME ZONE": "TimeZone",
    "SESSION AUTHORIZATION": "session_authorization",
}


@dataclass
class SessionSettings:
    """What a session has set; it is told again and has no effect. zone: of the views' times."""

    values: dict[str, str] = field(default_factory=dict)
    zone: str = "UTC"

    def show(self, name: str) -> tuple[str, str]:
        """The setting's own spelling, and its value. Raises WireError."""
        wanted = _SHOWN_NAMES.get(" ".join(name.upper().split()), name.strip().strip('"'))
        known = {setting.lower(): setting for setting in (*SETTINGS, *self.values)}
        if wanted.lower() not in known:
            raise WireError("42704", f'unrecognized configuration parameter "{wanted}"')
        setting = known[wanted.lower()]
        if setting == "TimeZone":
            return setting, self.zone
        return setting, self.values.get(setting, SETTINGS.get(setting, ""))

    def take_zone(self, routes: Mapping[str, ViewRoute]) -> None:
        """From now on, times are of the zone of these views."""
        self.zone = zone_of(routes)

    def set(self, statement: str) -> tuple[str, str] | None:
        """Keep what a SET says; returns the name and the value. Raises WireError for another encoding than UTF-8."""
        match = _SET.fullmatch(statement.strip().rstrip(";"))
        if match is None or match[1].upper() in ("TRANSACTION", "SESSION", "LOCAL", "TIME", "CONSTRAINTS"):
            return None
        name, value = match[1], match[2].strip().strip("'")
        name = next((known for known in SETTINGS if known.lower() == name.lower()), name)
        if name == "client_encoding" and value.upper().replace("-", "") not in ("UTF8", "UNICODE", "DEFAULT"):
            raise WireError("22023", f"client_encoding {value!r}: texts are UTF8 here")
        if len(self.values) >= len(SETTINGS) + 100 and name not in self.values:
            raise WireError("53400", "the session has set too many settings")
        self.values[name] = value
        return name, value


def split(text: str) -> list[str]:
    """The statements of a text, without those that are empty and without comments; ``$1`` becomes a call of
    ``PARAMETER``, because sqlglot takes two parameters for a text in dollars. Raises WireError."""
    if len(text) > QUERY_CHARS_MAX:
        raise WireError("54000", f"a query of {len(text):,} characters: at most {QUERY_CHARS_MAX:,} are taken")
    found: list[list[str]] = [[]]
    place = 0
    for match in QUERY_PARTS.finditer(text):
        found[-1].append(text[place : match.start()])
        place = match.end()
        if match[0] == ";":
            found.append([])
        elif match["number"] is not None:
            found[-1].append(f" {PARAMETER}({match['number']}) ")
        else:
            found[-1].append(part_as_parsed(match))
    found[-1].append(text[place:])
    statements = ("".join(parts).strip() for parts in found)
    return [statement for statement in statements if statement]


def first_word(statement: str) -> str:
    """In capitals."""
    found = re.match(r"\(|\w+", statement.lstrip())
    return found[0].upper() if found else ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a statement gives. rows: ``None`` for one that gives none. tag: as CommandComplete has it; the number of
    rows is put behind that of a query."""

    rows: pa.Table | None
    tag: str
    copy: CopyForm | None = None
    """How the rows are copied, if they are the answer of a COPY."""

    def tag_of(self, rows: int) -> str:
        return f"{self.tag} {rows}" if self.rows is not None and self.tag in ("SELECT", "FETCH", "COPY") else self.tag


class PreparedQuery:
    """A statement that was parsed: it can be described, and run with any parameters of its types."""

    def __init__(
        self,
        text: str,
        rows: QueryRows,
        settings: SessionSettings,
        cursors: SessionCursors,
        oids: Sequence[int] = (),
        cancellation: Cancellation | None = None,
    ) -> None:
        """oids: types of the parameters, as far as the caller knows them; 0 for unknown. cancellation: of the parse,
        and whose share it takes. Raises WireError, UnsupportedSql, UnknownView, Busy, QueryCancelled."""
        self.text, self.word = text, first_word(text)
        self.parameters: tuple[int, ...] = ()
        self.declaration: Declaration | None = None
        """Of a DECLARE."""
        self._rows, self._settings, self._cursors = rows, settings, cursors
        self._query: ViewQuery | None = None
        self._by_key: KeyQuery | None = None
        """The query, if it is one lookup."""
        self._added = DoorTables()
        self._schema: pa.Schema | None = None
        self._step: CursorStep | None = None
        self._copy: CopyForm | None = None
        with parse_turn(text, cancellation or Cancellation()):
            self._parse(text, oids)

    def _parse(self, text: str, oids: Sequence[int]) -> None:
        if self.word in _QUERIES:
            self._take_query(text, oids)
        elif self.word == "DECLARE":
            self.declaration = Declaration.of(text)
            self._take_query(self.declaration.query, oids)
        elif self.word == "EXPLAIN":
            self._take_query(_explained(text), oids)
        elif self.word == "COPY":
            query, self._copy = copied_query(text)
            self._take_query(query, oids)
        elif self.word in ("FETCH", "MOVE"):
            self._step = CursorStep.of(text)
        elif self.word in _WRITES:
            raise _read_only(self.word)
        elif self.word and self.word not in (*_TRANSACTIONS, *_SILENT, "SHOW", "CLOSE"):
            raise WireError("0A000", f"{self.word}: views are only read here; a query is one SELECT")

    def _take_query(self, text: str, oids: Sequence[int]) -> None:
        routes = self._rows.routes()
        self._settings.take_zone(routes)
        tree = with_postgres_names(with_parameters(parsed(text, "postgres")))
        if (write := tree.find(exp.Into, exp.DML)) is not None:
            raise _read_only(f"SELECT {write.key.upper()}" if isinstance(write, exp.Into) else write.key.upper())
        tree, tables = adapted(tree, routes, self._rows.definitions)
        self._added = DoorTables(tables, MACROS)
        query = ViewQuery.of(tree, routes, tables)
        self.parameters = _parameter_oids(query, oids, column_types(tables.values()))
        with_exact_numerics(query.tree, query.column_types(), [_duck_type(oid) for oid in self.parameters])
        # A NUMERIC has the digits of its value, so it is cast to nothing.
        types = [None if _is_numeric(oid) else _duck_type(oid) for oid in self.parameters]
        self._query = ViewQuery(with_casts(query.tree, types), query.routes, query.zone)
        self._by_key = KeyQuery.of(self._query)

    @property
    def cursor(self) -> str | None:
        """The name of the cursor through which a FETCH or a MOVE steps."""
        return None if self._step is None else self._step.name

    def schema(self, cancellation: Cancellation) -> pa.Schema | None:
        """Of the rows; ``None`` for a statement that gives none. Raises as ``describe`` does."""
        if self.word == "SHOW":
            return self._shown().schema
        if self.word == "EXPLAIN":
            return _PLAN
        if self._step is not None and self.word == "FETCH":
            return self._cursors.schema(self._step.name)
        if self.declaration is not None or self._copy is not None:
            return None
        if self._query is not None and self._schema is None:
            query = self._written([_SAMPLES.get(oid) for oid in self.parameters])
            self._schema = describe(query, [None] * len(self.parameters), self._added, cancellation)
        return self._schema

    def _shown(self) -> pa.Table:
        name = self.text.strip().rstrip(";")[4:]
        if name.strip().upper() != "ALL":
            setting, value = self._settings.show(name)
            return pa.table({setting: [value]})
        all_of = [
            self._settings.show(each) for each in (*SETTINGS, *sorted(set(self._settings.values) - set(SETTINGS)))
        ]
        names, values = zip(*all_of, strict=True)
        return pa.table({"name": names, "setting": values, "description": pa.nulls(len(names), pa.string())})

    def decode(self, values: Sequence[bytes | None], formats: Sequence[int]) -> list[Any]:
        """The parameters of a Bind. Raises WireError."""
        if len(values) != len(self.parameters):
            raise WireError("08P01", f"{len(values)} parameters are given, and the query has {len(self.parameters)}")
        if len(formats) not in (0, 1, len(values)):
            raise WireError("08P01", f"{len(formats)} formats are given for {len(values)} parameters")
        each = list(formats) * len(values) if len(formats) == 1 else list(formats) or [0] * len(values)
        return [decoded(value, each[place], self.parameters[place]) for place, value in enumerate(values)]

    def _written(self, parameters: Sequence[Any]) -> ViewQuery:
        """The query in which decimals are written out."""
        assert self._query is not None
        tree = with_decimals(self._query.tree, parameters)
        return self._query if tree is self._query.tree else replace(self._query, tree=tree)

    def run(self, parameters: Sequence[Any], cancellation: Cancellation) -> Outcome:
        """Raises as ``execute`` does."""
        if self.word == "EXPLAIN":
            return Outcome(self._plan(), "EXPLAIN")
        if self._query is not None:
            found = self._looked_up(parameters, cancellation)
            if found is None:
                found = execute(self._written(parameters), self._rows, parameters, self._added, cancellation)
            if self.declaration is None:
                return Outcome(found, "SELECT") if self._copy is None else Outcome(found, "COPY", self._copy)
            self._cursors.declare(self.declaration, found)
            return Outcome(None, "DECLARE CURSOR")
        if self._step is not None:
            stepped = self._cursors.step(self._step)
            return Outcome(stepped, "FETCH") if self.word == "FETCH" else Outcome(None, f"MOVE {stepped.num_rows}")
        if self.word == "CLOSE":
            return Outcome(None, self._cursors.close(self.text))
        if self.word == "SHOW":
            return Outcome(self._shown(), "SHOW")
        if self.word == "SET":
            self._settings.set(self.text)
        return Outcome(None, _TRANSACTIONS.get(self.word, self.word))

    def _looked_up(self, parameters: Sequence[Any], cancellation: Cancellation) -> pa.Table | None:
        """The answer by one lookup; ``None`` if DuckDB must evaluate the query. It has described the answer before."""
        key, answer = None if self._by_key is None else self._by_key.key(parameters), self._schema
        if self._by_key is None or key is None or answer is None or not self._by_key.fits(answer):
            return None
        return look_up(self._by_key, key, self._rows, answer, cancellation)

    def _plan(self) -> pa.Table:
        """How the query would be answered."""
        assert self._query is not None
        lines = ["DuckDB evaluates the query over the rows of:"]
        for access in self._query.accesses:
            route = self._query.routes[access.view]
            if access.keys is not None:
                how = f"lookup by its key ({', '.join(route.key)})" if route.key else "lookup of all its rows"
            else:
                how = "scan of all rows" if access.enough is None else f"scan of the first {access.enough:,} rows"
            lines.append(f"  ->  view {access.view}: {how}")
        lines += [f"  ->  catalog: {name.removeprefix(PREFIX)}" for name in self._added.tables]
        return pa.table([lines if len(lines) > 1 else ["DuckDB evaluates the query, which reads no view"]], _PLAN)


def _read_only(word: str) -> WireError:
    """The error that a client of PostgreSQL knows from replicas."""
    return WireError(
        "25006",
        f"cannot execute {word} in a read-only transaction: views are only read here, and there are no temporary "
        "tables; use WITH for what a query needs in between",
    )


def _explained(statement: str) -> str:
    """The query of an EXPLAIN. Raises WireError for what is not told."""
    found = _EXPLAIN.fullmatch(statement)
    if found is None:
        raise WireError("42601", "a query is explained by EXPLAIN SELECT ...")
    options = [option.split() for option in (found["options"] or "").upper().split(",") if option.strip()]
    for name, *value in options:
        if name == "FORMAT" and value != ["TEXT"]:
            raise WireError("0A000", f"EXPLAIN in {' '.join(value)[:20]}: plans are texts here")
    asks = [*((name, *value) for name, *value in options), *((word,) for word in found["words"].upper().split())]
    if any(name in ("ANALYZE", "ANALYSE") and value not in (["FALSE"], ["OFF"], ["0"]) for name, *value in asks):
        raise WireError("0A000", "EXPLAIN ANALYZE: a plan is told without its query being run: use EXPLAIN")
    if first_word(found["query"]) not in _QUERIES:
        raise WireError("0A000", "EXPLAIN: only a SELECT has a plan here")
    return found["query"]


def transaction_after(statement: PreparedQuery, before: bytes) -> bytes:
    """The state of the transaction after a statement: ``I`` for none, ``T`` within one."""
    words = statement.text.upper().split()
    if statement.word in ("BEGIN", "START"):
        return b"T"
    if statement.word in ("COMMIT", "END", "ABORT") or (statement.word == "ROLLBACK" and "TO" not in words):
        return b"I"
    return b"T" if statement.word == "ROLLBACK" and before == b"E" else before


def ends_failure(word: str) -> bool:
    """Whether a statement may come in a transaction that has failed."""
    return word in ("COMMIT", "END", "ABORT", "ROLLBACK")


def _parameter_oids(query: ViewQuery, oids: Sequence[int], others: Mapping[str, str]) -> tuple[int, ...]:
    numbers = {parameter_number(node) for node in query.tree.find_all(exp.Parameter, exp.Placeholder)}
    if None in numbers:
        raise UnsupportedSql("parameters are $1, $2, ...")
    count = max([len(oids), *(number for number in numbers if number is not None)])
    if count > PARAMETERS_MAX or 0 in numbers:
        raise WireError("54000", f"a statement has at most {PARAMETERS_MAX:,} parameters, from $1 on")
    shown = query.parameter_types(others)
    given = [*oids, *[0] * (count - len(oids))]
    unknown = (0, 705)
    return tuple(_oid_of(shown.get(place)) if oid in unknown else oid for place, oid in enumerate(given, start=1))


def _oid_of(duck: str | None) -> int:
    """The OID of a type by DuckDB's name; text if it is not known."""
    if duck is None:
        return TEXT.oid
    name, is_array = duck.removesuffix("[]").upper().split("(")[0], duck.endswith("[]")
    name = {"INT": "INTEGER", "TEXT": "VARCHAR", "REAL": "FLOAT"}.get(name, name)
    known = next((type for type in TYPES if type.duck.split("(")[0] == name), TEXT)
    return known.array if is_array else known.oid


_SAMPLES: Mapping[int, Any] = {NUMERIC.oid: Decimal(0), NUMERIC.array: [Decimal(0)]}
"""Parameters with which a query is described, by their types; of any other type NULL."""


def _is_numeric(oid: int) -> bool:
    return oid in _SAMPLES


def _duck_type(oid: int) -> str:
    return f"{ELEMENTS[oid].duck}[]" if oid in ELEMENTS else BY_OID[oid].duck if oid in BY_OID else "VARCHAR"
