"""Cursors of PostgreSQL's SQL: DECLARE keeps an answer, FETCH and MOVE step through it, CLOSE lets go of it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from upriver.doors.postgres.messages import WireError

CURSORS_MAX = 100
"""Cursors of one session."""
_NAME = r'(?P<name>"(?:[^"]|"")+"|[^\W\d][\w$]*)'
_DECLARE = re.compile(
    rf"DECLARE\s+{_NAME}\s+(?P<options>(?:(?:BINARY|ASENSITIVE|INSENSITIVE|NO\s+SCROLL|SCROLL)\s+)*)CURSOR\s+"
    r"(?:(?P<hold>WITH|WITHOUT)\s+HOLD\s+)?FOR\s+(?P<query>.+)",
    re.IGNORECASE | re.DOTALL,
)
_STEP = re.compile(
    r"(?:FETCH|MOVE)\s+(?:(?P<word>NEXT|PRIOR|FIRST|LAST|ABSOLUTE|RELATIVE|FORWARD|BACKWARD)\s+)?"
    rf"(?:(?P<count>[+-]?\d{{1,18}}|ALL)\s+)?(?:(?:FROM|IN)\s+)?{_NAME}",
    re.IGNORECASE,
)
_CLOSE = re.compile(rf"CLOSE\s+{_NAME}", re.IGNORECASE)
_ALL = 1 << 62
"""More rows than any answer has."""


def unquoted(name: str) -> str:
    """A name as PostgreSQL keeps it."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


@dataclass(frozen=True, slots=True)
class Declaration:
    """A DECLARE: a cursor's name, whether it outlives its transaction, and its query."""

    name: str
    is_held: bool
    query: str

    @classmethod
    def of(cls, statement: str) -> Self:
        """Raises WireError."""
        found = _DECLARE.fullmatch(statement)
        if found is None:
            raise WireError("42601", "a cursor is declared by DECLARE name CURSOR [WITH HOLD] FOR SELECT ...")
        if "BINARY" in found["options"].upper():
            raise WireError("0A000", "binary cursors: leave BINARY out, and ask for binary values by the protocol")
        return cls(unquoted(found["name"]), (found["hold"] or "").upper() == "WITH", found["query"])


@dataclass(frozen=True, slots=True)
class CursorStep:
    """A FETCH or a MOVE. kind: how it goes: ``ABSOLUTE``, ``RELATIVE`` or ``FORWARD``. count: rows, or the row's
    number."""

    name: str
    kind: str
    count: int

    @classmethod
    def of(cls, statement: str) -> Self:
        """Raises WireError."""
        found = _STEP.fullmatch(statement)
        if found is None:
            raise WireError("42601", "rows are fetched by FETCH [count | ALL | FORWARD ... | ABSOLUTE ...] FROM cursor")
        word, given = (found["word"] or "FORWARD").upper(), (found["count"] or "1").upper()
        count = _ALL if given == "ALL" else int(given)
        kind, count = {
            "NEXT": ("FORWARD", 1),
            "PRIOR": ("FORWARD", -1),
            "FIRST": ("ABSOLUTE", 1),
            "LAST": ("ABSOLUTE", -1),
            "BACKWARD": ("FORWARD", -count),
        }.get(word, (word, count))
        return cls(unquoted(found["name"]), kind, count)


@dataclass
class DeclaredCursor:
    """An answer, and a place in it. at: the number of the row, from 1 on; 0: before the first."""

    rows: pa.Table
    is_held: bool
    at: int = 0

    def step(self, step: CursorStep) -> pa.Table:
        """The rows over which a step goes, in its order."""
        end = self.rows.num_rows + 1
        if step.kind == "FORWARD" and step.count:
            before, self.at = self.at, min(max(self.at + step.count, 0), end)
            if step.count > 0:
                return self.rows.slice(before, min(self.at, end - 1) - before)
            first = max(self.at, 1)
            backward = self.rows.slice(first - 1, max(before - first, 0))
            return backward.take(pa.array(range(backward.num_rows - 1, -1, -1), pa.int64()))
        is_from_end = step.kind == "ABSOLUTE" and step.count < 0
        origin = end if is_from_end else 0 if step.kind == "ABSOLUTE" else self.at
        self.at = min(max(origin + step.count, 0), end)
        return self.rows.slice(self.at - 1, 1) if 0 < self.at < end else self.rows.schema.empty_table()


class SessionCursors:
    """The cursors of one session, by name."""

    def __init__(self) -> None:
        self._open: dict[str, DeclaredCursor] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._open

    def __iter__(self) -> Iterator[str]:
        return iter(self._open)

    def declare(self, declaration: Declaration, rows: pa.Table) -> None:
        """Raises WireError."""
        if declaration.name in self._open:
            raise WireError("42P03", f'the cursor "{declaration.name}" exists already')
        if len(self._open) >= CURSORS_MAX:
            raise WireError("53400", f"a session has at most {CURSORS_MAX} cursors: close some")
        self._open[declaration.name] = DeclaredCursor(rows, declaration.is_held)

    def adopt(self, name: str, cursor: DeclaredCursor) -> None:
        """A portal of the protocol is a cursor, too."""
        self._open[name] = cursor

    def forget(self, name: str) -> None:
        """Close one of that name, if there is one."""
        self._open.pop(name, None)

    def schema(self, name: str) -> pa.Schema:
        """Of a cursor's rows. Raises WireError."""
        return self._found(name).rows.schema

    def step(self, step: CursorStep) -> pa.Table:
        """The rows over which a step goes. Raises WireError."""
        return self._found(step.name).step(step)

    def close(self, statement: str) -> str:
        """Do what a CLOSE says; returns its tag. Raises WireError."""
        found = _CLOSE.fullmatch(statement)
        if found is None:
            raise WireError("42601", "a cursor is closed by CLOSE name, and all are by CLOSE ALL")
        if found["name"].upper() == "ALL":
            self.close_all()
            return "CLOSE CURSOR ALL"
        self._found(unquoted(found["name"]))
        del self._open[unquoted(found["name"])]
        return "CLOSE CURSOR"

    def close_all(self) -> None:
        self._open.clear()

    def end_transaction(self) -> None:
        """Close those that are not held."""
        self._open = {name: cursor for name, cursor in self._open.items() if cursor.is_held}

    def _found(self, name: str) -> DeclaredCursor:
        if name not in self._open:
            raise WireError(
                "34000", f'there is no cursor "{name}": cursors end with their transaction, unless WITH HOLD'
            )
        return self._open[name]
