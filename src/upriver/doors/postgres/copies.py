"""COPY ... TO STDOUT: an answer as texts, CSV or PostgreSQL's binary form, in which some drivers read every answer."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from upriver.doors.postgres import messages
from upriver.doors.postgres.messages import WireError
from upriver.doors.postgres.types import encoded

ROWS_AT_A_TIME = 1_000
"""Rows that are encoded, and then sent, together."""
OPTIONS_MAX = 100
"""Words of the options of a COPY."""
_COPY = re.compile(
    r'COPY\s++(?:\((?P<query>.*)\)|(?P<view>(?:"(?:[^"]|"")++"|[\w$.])++)(?:\s*+\((?P<columns>[^)]*+)\))?+)\s++'
    r"(?P<way>TO|FROM)\s+(?P<place>\w+|'(?:[^']|'')*')\s*(?P<options>.*)",
    re.IGNORECASE | re.DOTALL,
)
_OPTION = re.compile(r"'(?:[^']|'')*'|\w+|\*")
_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + messages.int32(0) + messages.int32(0)
_ESCAPED = {8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 92: b"\\\\"}
"""Bytes that a text has in another form."""


@dataclass
class CopyForm:
    """How rows are written. null: what stands for NULL."""

    format: str = "TEXT"
    delimiter: bytes | None = None
    null: bytes | None = None
    quote: bytes = b'"'
    escape: bytes | None = None
    has_header: bool = False
    quotes_all: bool = False

    @classmethod
    def of(cls, options: str) -> Self:
        """From ``(FORMAT csv, HEADER)``, or ``WITH CSV HEADER``. Raises WireError."""
        form = cls()
        words = [word for word in _OPTION.findall(options) if word.upper() not in ("WITH", "AS")]
        if len(words) > OPTIONS_MAX:
            raise WireError("54000", f"COPY with {len(words):,} words of options: at most {OPTIONS_MAX} are taken")
        while words:
            form._take(words.pop(0).upper(), words)
        if form.format not in ("TEXT", "CSV", "BINARY"):
            raise WireError("22023", f"COPY in the format {form.format[:20]}: there are text, csv and binary")
        for name in ("delimiter", "quote", "escape"):
            value = getattr(form, name)
            if value is not None and (len(value) != 1 or value in b"\r\n"):
                raise WireError("22023", f"COPY {name}: give one character")
        return form

    def _take(self, name: str, words: list[str]) -> None:
        if name in ("BINARY", "CSV"):
            self.format = name
        elif name == "HEADER":
            is_given = bool(words) and words[0].upper() in ("TRUE", "FALSE", "ON", "OFF", "1", "0")
            self.has_header = not is_given or words.pop(0).upper() in ("TRUE", "ON", "1")
        elif name in ("FORCE_QUOTE", "FORCE") and "*" in words[:2]:
            del words[: words.index("*") + 1]
            self.quotes_all = True
        elif name == "FORMAT" and words:
            self.format = words.pop(0).strip("'").upper()
        elif name in ("DELIMITER", "NULL", "QUOTE", "ESCAPE") and words and words[0].startswith("'"):
            setattr(self, name.lower(), words.pop(0)[1:-1].replace("''", "'").encode())
        elif name == "ENCODING" and words and words[0].upper().replace("-", "") in ("'UTF8'", "'UNICODE'"):
            words.pop(0)
        else:
            raise WireError("0A000", f"COPY with {name[:20]}: there are FORMAT, HEADER, DELIMITER, NULL, QUOTE, ESCAPE")


def copied_query(statement: str) -> tuple[str, CopyForm]:
    """The query of a COPY, and how its rows are written. Raises WireError."""
    found = _COPY.fullmatch(statement)
    if found is None:
        raise WireError("42601", "rows are copied by COPY (SELECT ...) TO STDOUT [(FORMAT csv)]")
    if found["way"].upper() == "FROM":
        raise WireError("25006", "cannot execute COPY FROM in a read-only transaction: views are only read here")
    if found["place"].upper() != "STDOUT":
        raise WireError("42501", "COPY goes TO STDOUT: nothing here writes files or starts programs")
    query = found["query"] or f"SELECT {found['columns'] or '*'} FROM {found['view']}"
    return query, CopyForm.of(found["options"])


def copied(rows: pa.Table, form: CopyForm) -> Iterator[bytes]:
    """The messages that carry all rows."""
    format = int(form.format == "BINARY")
    yield messages.message(
        b"H", bytes([format]), messages.int16(rows.num_columns), messages.int16(format) * rows.num_columns
    )
    if form.has_header and not format:
        yield messages.message(
            b"d", _line([name.encode() for name in rows.schema.names], replace(form, quotes_all=False))
        )
    signature = _SIGNATURE if format else b""  # drivers expect it before the first row, in one message
    for begin in range(0, rows.num_rows, ROWS_AT_A_TIME):
        part = rows.slice(begin, ROWS_AT_A_TIME)
        columns = [encoded(column, format) for column in part.columns]
        each = zip(*columns, strict=True) if columns else ((),) * part.num_rows
        texts = [_binary(row) if format else _line(row, form) for row in each]
        texts[0] = signature + texts[0]
        signature = b""
        yield b"".join(messages.message(b"d", text) for text in texts)
    if format:
        yield messages.message(b"d", signature + messages.int16(-1))
    yield messages.message(b"c")


def _binary(row: Sequence[bytes | None]) -> bytes:
    null = messages.int32(-1)
    values = (null if value is None else messages.int32(len(value)) + value for value in row)
    return messages.int16(len(row)) + b"".join(values)


def _line(row: Sequence[bytes | None], form: CopyForm) -> bytes:
    if form.format == "CSV":
        return (form.delimiter or b",").join(_csv(value, form) for value in row) + b"\n"
    delimiter, null = form.delimiter or b"\t", b"\\N" if form.null is None else form.null
    return delimiter.join(null if value is None else _text(value, delimiter) for value in row) + b"\n"


def _text(value: bytes, delimiter: bytes) -> bytes:
    if delimiter not in value and not any(byte in value for byte in _ESCAPED):
        return value
    escaped = _ESCAPED | ({} if delimiter[0] in _ESCAPED else {delimiter[0]: b"\\" + delimiter})
    return b"".join(escaped.get(byte, bytes([byte])) for byte in value)


def _csv(value: bytes | None, form: CopyForm) -> bytes:
    null = form.null or b""
    if value is None:
        return null
    marks = (form.delimiter or b",", form.quote, b"\n", b"\r")
    if not form.quotes_all and value not in (null, b"\\.") and not any(mark in value for mark in marks):
        return value
    escape = form.escape or form.quote
    inner = value if escape == form.quote else value.replace(escape, escape * 2)
    return form.quote + inner.replace(form.quote, escape + form.quote) + form.quote
