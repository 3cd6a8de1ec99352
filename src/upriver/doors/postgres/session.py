"""One caller's session: its bytes in, ours out. A machine without a socket, clock or thread.

``receive`` takes bytes and gives what to send, piece by piece. Queries run inside it.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb
import pyarrow as pa

from upriver.doors.cancellation import Cancellation
from upriver.doors.execution import DIVISION, QueryRows
from upriver.doors.postgres import messages
from upriver.doors.postgres.catalog import SETTINGS
from upriver.doors.postgres.copies import ROWS_AT_A_TIME, copied
from upriver.doors.postgres.cursors import DeclaredCursor, SessionCursors, unquoted
from upriver.doors.postgres.messages import (
    CANCEL_REQUEST,
    GSS_REQUEST,
    SSL_REQUEST,
    VERSION,
    BodyReader,
    MessageReader,
    WireError,
    WireMessage,
    violation,
)
from upriver.doors.postgres.scram import MECHANISM, ScramExchange, TokenVerifiers
from upriver.doors.postgres.statements import (
    Outcome,
    PreparedQuery,
    SessionSettings,
    ends_failure,
    first_word,
    split,
    transaction_after,
)
from upriver.doors.postgres.types import encoded, field_of
from upriver.errors import (
    AccessDenied,
    Busy,
    DeclarationError,
    FunctionFailed,
    KeyTypeError,
    NotReady,
    QueryCancelled,
    RowError,
    UnknownView,
    UnsupportedSql,
    UpriverError,
    UserError,
    ViewCrashed,
    WaitTimeout,
)

_LOG = logging.getLogger("upriver.postgres")
STATEMENTS_MAX = 1_000
"""Prepared statements of one session."""
STATEMENT_CHARS_MAX = 256 << 10
"""Characters of a session's prepared statements that have a name. Each takes about 500 bytes of memory."""
USER_CHARS_MAX = 63
"""Characters of a user's name that tell a host's callers apart."""
PORTALS_MAX = 100
"""Portals of one session."""
_TOLD = (
    *("server_version", "server_encoding", "client_encoding", "DateStyle", "IntervalStyle", "integer_datetimes"),
    *("standard_conforming_strings", "is_superuser", "session_authorization", "default_transaction_read_only"),
)
"""Settings that a caller is told at the start."""

_CODES: tuple[tuple[type[UpriverError], str], ...] = (
    (UnknownView, "42P01"),
    (UnsupportedSql, "42601"),
    (RowError, "22000"),
    (FunctionFailed, "38000"),
    (ViewCrashed, "58000"),
    (KeyTypeError, "22P02"),
    (QueryCancelled, "57014"),
    (DeclarationError, "54000"),
    (AccessDenied, "28P01"),
    (UserError, "42000"),
    (WaitTimeout, "57014"),
    (Busy, "53300"),
    (NotReady, "57P03"),
    (UpriverError, "58000"),
)
"""SQLSTATE by kind of error; the first match counts."""


def sqlstate(error: UpriverError) -> str:
    """The code that clients know."""
    if isinstance(error, WireError):
        return error.code
    cause = error.__cause__
    if isinstance(error, RowError):
        return _row_state(str(error))
    if isinstance(cause, duckdb.CatalogException):
        return "42883"
    if isinstance(cause, duckdb.BinderException):
        return "42703"
    return next(code for kind, code in _CODES if isinstance(error, kind))


def _row_state(text: str) -> str:
    """Of an expression that fails."""
    if text == DIVISION.lower():
        return "22012"
    if text.startswith("Out of Range Error") or "out of range" in text:
        return "22003"
    if "not UTF-8" in text:
        return "22021"
    return "22P02" if text.startswith("Conversion Error") else "22000"


@dataclass
class Portal:
    """A statement with its parameters. rows: of its answer, and which was sent last, once it has run."""

    statement: PreparedQuery
    parameters: Sequence[Any]
    formats: Sequence[int]
    outcome: Outcome | None = None
    rows: DeclaredCursor | None = None


@dataclass
class Prepared:
    """What a session has prepared, by name."""

    statements: dict[str, PreparedQuery] = field(default_factory=dict)
    portals: dict[str, Portal] = field(default_factory=dict)
    cursors: SessionCursors = field(default_factory=SessionCursors)

    def check_statement(self, name: str, text: str) -> None:
        """Raises WireError if no statement of this text can be prepared by this name."""
        if name and name in self.statements:
            raise WireError("42P05", f'the prepared statement "{name}" exists already')
        if len(self.statements) >= STATEMENTS_MAX:
            raise WireError("53400", f"a session has at most {STATEMENTS_MAX:,} prepared statements: close some")
        chars = len(text) + sum(len(statement.text) for each, statement in self.statements.items() if each)
        if name and chars > STATEMENT_CHARS_MAX:
            raise WireError(
                "53400",
                f"a session's prepared statements with a name have at most {STATEMENT_CHARS_MAX:,} characters, and "
                f"this would make {chars:,}: close some, or prepare it without a name",
            )

    def keep_statement(self, name: str, statement: PreparedQuery) -> None:
        self.statements[name] = statement

    def close_statement(self, name: str) -> None:
        self.statements.pop(name, None)

    def check_portal(self, name: str) -> None:
        """Raises WireError if no portal can be bound by this name."""
        if name and name in self.portals:
            raise WireError("42P03", f'the portal "{name}" exists already')
        if len(self.portals) >= PORTALS_MAX:
            raise WireError("53400", f"a session has at most {PORTALS_MAX:,} portals: close some")

    def keep_portal(self, name: str, portal: Portal) -> None:
        self.portals[name] = portal

    def close_portal(self, name: str) -> None:
        """Also forget the cursor that steps through it."""
        self.portals.pop(name, None)
        self.cursors.forget(name)

    def end_transaction(self) -> None:
        """Let go of what lives as long as a transaction."""
        self.portals.clear()
        self.cursors.end_transaction()

    def deallocate(self, statement: str) -> None:
        """Do what a DEALLOCATE or a DISCARD says. Raises WireError."""
        *_, name = statement.split()
        if name.upper() == "ALL":
            self.statements.clear()
            if first_word(statement) == "DISCARD":
                self.cursors.close_all()
        elif first_word(statement) == "DEALLOCATE" and self.statements.pop(unquoted(name), None) is None:
            raise WireError("26000", f"there is no prepared statement {name}")


class PostgresSession:
    """One caller. process, secret: what the caller must show to cancel its query from another connection. cancellation:
    of its queries; its caller is named once the caller is known. needs_tls: a caller must ask for TLS before anything
    else."""

    def __init__(
        self,
        rows: QueryRows,
        verifiers: TokenVerifiers,
        process: int,
        secret: int,
        cancellation: Cancellation | None = None,
        *,
        needs_tls: bool = False,
    ) -> None:
        self.cancellation = cancellation or Cancellation()
        self.awaits_tls = False
        """Whether the next bytes are those of the handshake of TLS, which are not for this session."""
        self._needs_tls = needs_tls
        self.cancels: tuple[int, int] | None = None
        """The process and the secret of the session whose query this caller wants to cancel."""
        self.is_over = False
        self.is_trusted = False
        self.token = ""
        """The name of the token that the caller has proved to know."""
        self._rows = rows
        self._key = (process, secret)
        self._exchange = ScramExchange(verifiers)
        self._reader = MessageReader()
        self._settings = SessionSettings()
        self._prepared = Prepared()
        self._transaction = b"I"
        self._skips = False
        """Whether messages up to the next Sync are skipped, after an error."""
        self._step: Callable[[WireMessage], Iterator[bytes]] = self._start

    def receive(self, data: bytes) -> Iterator[bytes]:
        """What to send for these bytes. Raises nothing: an error becomes a message, and perhaps the end."""
        try:
            self._reader.take(data)
            while not self.is_over and not self.awaits_tls and (message := self._reader.next()) is not None:
                yield from self._step(message)
        except WireError as error:
            self.is_over = True
            yield messages.error(error.code, str(error), is_fatal=True)
        except UpriverError as error:
            self.is_over = True
            yield messages.error(sqlstate(error), str(error), is_fatal=True)

    def tls_began(self) -> None:
        """The handshake of TLS is over: what comes now was encrypted."""
        self.awaits_tls = self._needs_tls = False

    def refuse(self, code: str, why: str) -> bytes:
        """End the session."""
        self.is_over = True
        return messages.error(code, why, is_fatal=True)

    # Before the caller is known

    def _start(self, message: WireMessage) -> Iterator[bytes]:
        body = BodyReader(message.body)
        version = body.int32()
        if version == SSL_REQUEST and self._needs_tls:
            if self._reader.has_more:  # in the clear: an attacker may have put it there
                raise violation("bytes came between the request for TLS and its answer")
            self.awaits_tls = True
            yield b"S"
            return
        if version in (SSL_REQUEST, GSS_REQUEST):
            yield b"N"
            return
        if version == CANCEL_REQUEST:
            self.cancels, self.is_over = (body.int32(), body.int32() & 0xFFFFFFFF), True
            return
        if version >> 16 != VERSION >> 16:
            raise violation(f"protocol {version >> 16}.{version & 0xFFFF} is not spoken here: 3.0 is")
        if self._needs_tls:
            raise WireError("28000", "only encrypted connections are served here: sslmode=verify-full", is_fatal=True)
        told: dict[str, str] = {}
        while not body.is_at_end and (name := body.text()):
            told[name] = body.text()
        if "user" not in told:
            raise WireError("28000", "no user is given: any name will do, and the password is the app's token", True)
        if told.get("replication", "false").lower() not in ("false", "off", "0", "no"):
            raise WireError("0A000", "there is no replication here", is_fatal=True)
        self.cancellation.caller = replace(self.cancellation.caller, name=told["user"][:USER_CHARS_MAX])
        self._settings = SessionSettings({"application_name": told.get("application_name", "")})
        self._reader.start()
        unknown = [name for name in told if name.startswith("_pq_.")]
        if version != VERSION or unknown:
            names = b"".join(map(messages.text, unknown))
            yield messages.message(b"v", messages.int32(VERSION), messages.int32(len(unknown)), names)
        yield messages.authentication(10, messages.text(MECHANISM) + b"\0")
        self._step = self._prove_first

    def _prove_first(self, message: WireMessage) -> Iterator[bytes]:
        body = _password(message)
        if (mechanism := body.text()) != MECHANISM:
            raise AccessDenied(f"{mechanism}: the password is proved by {MECHANISM} here")
        first = body.value()
        yield messages.authentication(11, self._exchange.first(first or b""))
        self._step = self._prove_final

    def _prove_final(self, message: WireMessage) -> Iterator[bytes]:
        body = _password(message)
        self.token, proof = self._exchange.final(body.rest())
        caller = self.cancellation.caller
        self.cancellation.caller = replace(caller, name=f"{self.token} {caller.name}")
        self._reader.trust()
        self.is_trusted = True
        self._settings.take_zone(self._rows.routes())
        yield messages.authentication(12, proof) + messages.authentication(0)
        for name in _TOLD:
            yield messages.parameter_status(name, SETTINGS[name])
        yield messages.parameter_status("TimeZone", self._settings.zone)
        yield messages.parameter_status("application_name", self._settings.values["application_name"])
        yield messages.message(b"K", *map(messages.int32, self._key))
        yield messages.ready(self._transaction)
        self._step = self._serve

    # Queries

    def _serve(self, message: WireMessage) -> Iterator[bytes]:
        kind = message.kind
        if kind == b"X":
            self.is_over = True
        elif kind == b"S":
            self._skips = False
            yield self._ready()
        elif kind not in b"QPBDECHF" + b"dcf":
            raise violation(f"a message of kind {kind!r}")
        elif self._skips and kind != b"Q":
            return
        elif kind == b"Q":
            self._skips = False
            yield from self._errors_told(self._simple(message.body))
            yield self._ready()
        else:
            yield from self._errors_told(self._extended(kind, BodyReader(message.body)), skips=True)

    def _errors_told(self, sent: Iterator[bytes], skips: bool = False) -> Iterator[bytes]:
        """What is sent, and an error's message where it ends."""
        try:
            yield from sent
        except UpriverError as error:
            if isinstance(error, WireError) and error.is_fatal:
                raise
            if self._transaction == b"T":
                self._transaction = b"E"
            self._skips = skips
            yield messages.error(sqlstate(error), str(error))
        except Exception as error:  # a fault of ours ends the query, and not the caller's session
            _LOG.exception("a query over PostgreSQL's wire has failed")
            self._transaction = b"E" if self._transaction == b"T" else self._transaction
            self._skips = skips
            yield messages.error("XX000", f"{type(error).__name__}: {error}")

    def _simple(self, body: bytes) -> Iterator[bytes]:
        statements = split(BodyReader(body).text())
        if not statements:
            yield messages.EMPTY_QUERY
        for text in statements:
            portal = Portal(self._parsed(text, ()), (), ())
            outcome = self._run(portal)
            if outcome.rows is not None and outcome.copy is None:
                fields = [field_of(each) for each in outcome.rows.schema]
                yield messages.row_description(fields, [0] * len(fields))
            yield from self._rows_of(portal, 0)

    def _extended(self, kind: bytes, body: BodyReader) -> Iterator[bytes]:
        steps = {b"P": self._parse, b"B": self._bind, b"D": self._describe, b"E": self._execute, b"C": self._close}
        if kind in steps:
            yield from steps[kind](body)
        elif kind == b"F":
            raise WireError("0A000", "functions are not called by the protocol: use SELECT")

    def _parsed(self, text: str, oids: Sequence[int]) -> PreparedQuery:
        return PreparedQuery(text, self._rows, self._settings, self._prepared.cursors, oids, self.cancellation)

    def _parse(self, body: BodyReader) -> Iterator[bytes]:
        name, text, oids = body.text(), body.text(), body.int32s()
        texts = split(text)
        if len(texts) > 1:
            raise WireError("42601", "a prepared statement is one statement")
        statement = texts[0] if texts else ""
        self._prepared.check_statement(name, statement)
        self._prepared.keep_statement(name, self._parsed(statement, oids))
        yield messages.PARSE_COMPLETE

    def _bind(self, body: BodyReader) -> Iterator[bytes]:
        portal, name = body.text(), body.text()
        statement = self._statement(name)
        formats, values = body.int16s(), body.values()
        self._prepared.check_portal(portal)
        self._prepared.keep_portal(portal, Portal(statement, statement.decode(values, formats), body.int16s()))
        yield messages.BIND_COMPLETE

    def _describe(self, body: BodyReader) -> Iterator[bytes]:
        kind, name = body.raw(1), body.text()
        if kind == b"S":
            statement = self._statement(name)
            oids = [messages.int32(oid) for oid in statement.parameters]
            schema, formats = statement.schema(self.cancellation), [0]
            yield messages.message(b"t", messages.int16(len(oids)), *oids)
        elif name in self._prepared.cursors:
            schema, formats = self._prepared.cursors.schema(name), [0]
        else:
            portal = self._portal(name)
            schema, formats = portal.statement.schema(self.cancellation), list(portal.formats)
        if schema is None:
            yield messages.NO_DATA
            return
        yield messages.row_description([field_of(each) for each in schema], _each_format(formats, len(schema)))

    def _execute(self, body: BodyReader) -> Iterator[bytes]:
        portal, most = self._portal(body.text()), body.int32()
        if not portal.statement.word:
            yield messages.EMPTY_QUERY
            return
        if portal.outcome is None:
            self._run(portal)
        yield from self._rows_of(portal, max(0, most))

    def _close(self, body: BodyReader) -> Iterator[bytes]:
        kind, name = body.raw(1), body.text()
        if kind == b"S":
            self._prepared.close_statement(name)
        else:
            self._prepared.close_portal(name)
        yield messages.CLOSE_COMPLETE

    def _ready(self) -> bytes:
        """The end of a caller's turn."""
        if self._transaction == b"I":
            self._prepared.end_transaction()
        return messages.ready(self._transaction)

    def _run(self, portal: Portal) -> Outcome:
        """Run the statement of a portal."""
        statement = portal.statement
        if self._transaction == b"E" and not ends_failure(statement.word):
            raise WireError("25P02", "the transaction has failed: end it by ROLLBACK")
        declaration = statement.declaration
        if declaration is not None and not declaration.is_held and self._transaction == b"I":
            raise WireError("25P01", "DECLARE CURSOR can only be used in transaction blocks, or WITH HOLD")
        self._run_stepped(statement.cursor)
        portal.outcome = statement.run(portal.parameters, self.cancellation)
        if portal.outcome.rows is not None:
            portal.rows = DeclaredCursor(portal.outcome.rows, is_held=False)
        if statement.word in ("COMMIT", "END") and self._transaction == b"E":
            portal.outcome = Outcome(None, "ROLLBACK")
        if statement.word in ("DEALLOCATE", "DISCARD"):
            self._prepared.deallocate(statement.text)
        self._transaction = transaction_after(statement, self._transaction)
        return portal.outcome

    def _run_stepped(self, name: str | None) -> None:
        """Run the portal of that name, if it is one through which FETCH or MOVE is about to step."""
        stepped = None if name is None else self._prepared.portals.get(name)
        if name is None or stepped is None or name in self._prepared.cursors:
            return
        if stepped.outcome is None:
            self._run(stepped)
        if stepped.rows is not None:
            self._prepared.cursors.adopt(name, stepped.rows)

    def _rows_of(self, portal: Portal, most: int) -> Iterator[bytes]:
        """Rows that were not sent yet, ``most`` of them at most if that is not 0, and then the end."""
        outcome = portal.outcome
        assert outcome is not None
        if outcome.copy is not None and outcome.rows is not None:
            yield from copied(outcome.rows, outcome.copy)
            yield messages.message(b"C", messages.text(outcome.tag_of(outcome.rows.num_rows)))
            return
        sent = 0
        if outcome.rows is not None and portal.rows is not None:
            formats = _each_format(portal.formats, outcome.rows.num_columns)
            place, count = portal.rows, outcome.rows.num_rows
            until = count if most == 0 else min(count, place.at + most)
            while place.at < until:
                part = outcome.rows.slice(place.at, min(ROWS_AT_A_TIME, until - place.at))
                place.at, sent = place.at + part.num_rows, sent + part.num_rows
                yield b"".join(messages.data_rows(_encoded(part, formats), part.num_rows))
            if place.at < count or (most and sent == most):
                yield messages.PORTAL_SUSPENDED
                return
            empty = outcome.rows.schema.empty_table()
            portal.outcome, portal.rows = Outcome(empty, outcome.tag), DeclaredCursor(empty, is_held=False)
        yield messages.message(b"C", messages.text(outcome.tag_of(sent)))

    def _statement(self, name: str) -> PreparedQuery:
        if name not in self._prepared.statements:
            raise WireError("26000", f'there is no prepared statement "{name}"')
        return self._prepared.statements[name]

    def _portal(self, name: str) -> Portal:
        if name not in self._prepared.portals:
            raise WireError("34000", f'there is no portal "{name}"')
        return self._prepared.portals[name]


def _password(message: WireMessage) -> BodyReader:
    if message.kind != b"p":
        raise violation("a password message was expected")
    return BodyReader(message.body)


def _each_format(formats: Sequence[int], columns: int) -> list[int]:
    """A format for each column: none given stands for text, one for all."""
    if len(formats) not in (0, 1, columns):
        raise WireError("08P01", f"{len(formats)} formats are given for {columns} columns")
    return list(formats) * columns if len(formats) == 1 else list(formats) or [0] * columns


def _encoded(rows: pa.Table, formats: Sequence[int]) -> list[list[bytes | None]]:
    return [encoded(column, format) for column, format in zip(rows.columns, formats, strict=True)]
