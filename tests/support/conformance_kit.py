"""Conformance files: tables, epochs of changes, and queries, in the form of sqllogictest.

Records are separated by empty lines; a line that begins with ``#`` is a comment.

``statement ok``
    SQL that DuckDB executes: CREATE TABLE, INSERT, and, of a table with a PRIMARY KEY, UPDATE and DELETE.
``epoch``, ``epoch 2024-01-01 00:00:00``
    The end of an epoch: what has changed since the last one comes as one batch of each table. With its instant in UTC,
    for views that depend on the clock; otherwise it is that of the epoch before.
``query KEY ...``
    A view and the columns by which it is looked up. What Spark says of its rows after each epoch is recorded beside the
    file (``recorded_answers.py``).
``query error WORDS``
    A view that is refused, with these words.
``bad rows KEY ...``
    A view over tables that set their bad rows aside: the rows on which Spark raises.
``expressions TABLE``
    Expressions over a table whose first column numbers its rows, each with a semicolon behind it.
``samples TABLE``
    The samples of the table of functions, as such expressions.
``zone NAME``
    The time zone of Spark's session, if it is not UTC, before any table.
``table NAME MADE``
    A table whose values no SQL text can write (``awkward_rows.py``).

A table with a PRIMARY KEY is an upsert table: it has two more columns, ``seq_`` and ``gone_``. Other tables only grow.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from awkward_rows import MADE
from function_calls import samples
from plain_values import settled
from sql_kit import spec

from upriver.plan.plan import TableSpec

SEQ, GONE = "seq_", "gone_"
_CREATED = re.compile(r"CREATE TABLE (\w+)", re.IGNORECASE)
_PRIMARY = re.compile(r"(\w+) \w+(?:\([\d, ]+\))? PRIMARY KEY|PRIMARY KEY \(([\w, ]+)\)", re.IGNORECASE)


@dataclass(frozen=True)
class View:
    """key: columns by which it is looked up. error: the words of its refusal, or ``None``. line: of its record.
    sets_aside: whether its tables set bad rows aside."""

    key: tuple[str, ...]
    sql: str
    error: str | None
    line: int
    sets_aside: bool = False


@dataclass(frozen=True)
class Expressions:
    """Expressions over a table. are_samples: whether they are those of the table of functions."""

    table: str
    texts: tuple[str, ...]
    line: int
    are_samples: bool


@dataclass
class ConformanceFile:
    """A file, run by DuckDB. contents: of each table after each epoch. changes: the rows that each epoch brings.
    instants: of each epoch, in microseconds since 1970. made: the rows of tables that are made in Python. timezone: of
    Spark's session."""

    tables: dict[str, TableSpec] = field(default_factory=dict)
    contents: list[dict[str, pa.Table]] = field(default_factory=list)
    changes: list[dict[str, pa.RecordBatch]] = field(default_factory=list)
    instants: list[int] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    expressions: list[Expressions] = field(default_factory=list)
    made: dict[str, pa.Table] = field(default_factory=dict)
    timezone: str = "UTC"

    def rows_of(self, table: str) -> pa.RecordBatch:
        """All rows of a table, at the end."""
        (rows,) = self.contents[-1][table].combine_chunks().to_batches()
        return rows


def read_file(path: Path) -> ConformanceFile:
    """Raises ValueError for a record of an unknown kind."""
    found = ConformanceFile()
    with duckdb.connect(config={"threads": 1}) as duck:
        duck.execute("SET TimeZone = 'UTC'")
        for number, head, body in _records(path.read_text()):
            kind, _, rest = head.partition(" ")
            if kind == "statement":
                duck.execute(body.replace("TIMESTAMP_NTZ", "TIMESTAMP"))
                if created := _CREATED.match(body):
                    _declare(found, duck, created[1], body)
            elif kind == "epoch":
                last = found.instants[-1] if found.instants else 0
                found.instants.append(_instant(rest) if rest else last)
                _end_epoch(found, duck)
            elif kind == "query":
                error = rest.removeprefix("error ") if rest.startswith("error ") else None
                found.views.append(View(() if error else tuple(rest.split()), body, error, number))
            elif kind == "bad":
                found.views.append(View(tuple(rest.split()[1:]), body, None, number, sets_aside=True))
            elif kind in ("expressions", "samples"):
                texts = samples() if kind == "samples" else listed(body)
                found.expressions.append(Expressions(rest, tuple(texts), number, kind == "samples"))
            elif kind == "zone":
                found.timezone = rest
                duck.execute(f"SET TimeZone = '{rest}'")
            elif kind == "table":
                name, made = rest.split()
                found.made[name] = pa.Table.from_batches([MADE[made]()])
                found.tables[name] = spec(name, found.made[name].schema)
            else:
                raise ValueError(f"{path.name}, line {number}: {head}")
    return found


def used_tables(file: ConformanceFile, view: View) -> dict[str, pa.RecordBatch]:
    """The tables that the view names, and all their rows."""
    return {name: file.rows_of(name) for name in file.tables if re.search(rf"\b{name}\b", view.sql)}


def listed(text: str) -> list[str]:
    """The expressions of a text, each with a semicolon behind it."""
    return [" ".join(part.strip().splitlines()) for part in text.split(";") if part.strip()]


def _instant(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000_000)


def _records(text: str) -> Iterator[tuple[int, str, str]]:
    """The line number of each record, its first line, and the rest."""
    number = 1
    for part in re.split(r"\n[ ]*\n", text):
        lines = [line for line in part.splitlines() if not line.startswith("#") and line.strip()]
        if lines:
            yield number, lines[0].strip(), "\n".join(lines[1:])
        number += part.count("\n") + 2


def _declare(found: ConformanceFile, duck: duckdb.DuckDBPyConnection, name: str, ddl: str) -> None:
    schema = duck.table(name).to_arrow_table().schema
    primary = _PRIMARY.search(ddl)
    key = tuple(re.split(r", *", primary[1] or primary[2])) if primary else ()
    if key:
        schema = schema.append(pa.field(SEQ, pa.int64())).append(pa.field(GONE, pa.bool_()))
    order_by, deletes = ((SEQ,), f'"{GONE}"') if key else ((), None)
    found.tables[name] = TableSpec(name, schema, key or (schema.names[0],), order_by, key, deletes)


def _end_epoch(found: ConformanceFile, duck: duckdb.DuckDBPyConnection) -> None:
    now = {name: found.made[name] if name in found.made else duck.table(name).to_arrow_table() for name in found.tables}
    number = len(found.contents)
    before = found.contents[-1] if found.contents else {}
    changes = {name: _changes(spec, before.get(name), now[name], number) for name, spec in found.tables.items()}
    found.changes.append({name: batch for name, batch in changes.items() if batch.num_rows})
    found.contents.append(now)


def _changes(spec: TableSpec, before: pa.Table | None, now: pa.Table, number: int) -> pa.RecordBatch:
    """What an epoch brings of a table."""
    if not spec.primary_key:
        later = now.slice(0 if before is None else before.num_rows)
        return pa.RecordBatch.from_arrays([column.combine_chunks() for column in later.columns], schema=spec.schema)
    old = {} if before is None else _by_key(spec, before)
    new = _by_key(spec, now)
    rows = [{**row, SEQ: number, GONE: False} for key, row in new.items() if repr(old.get(key)) != repr(row)]
    rows += [{**row, SEQ: number, GONE: True} for key, row in old.items() if key not in new]
    return pa.RecordBatch.from_pylist(rows, spec.schema)


def _by_key(spec: TableSpec, table: pa.Table) -> dict[tuple[object, ...], Mapping[str, object]]:
    return {tuple(row[name] for name in spec.primary_key): row for row in table.to_pylist()}


def with_one_form(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows, with one form of each nested value: maps have no order."""
    return [tuple(settled(value) if isinstance(value, list | dict) else value for value in row) for row in rows]
