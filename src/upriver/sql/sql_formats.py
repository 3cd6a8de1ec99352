"""``date_format``: patterns of letters that mean the same to Java and to DuckDB's strftime."""

import re

import pyarrow as pa
from sqlglot import exp

from upriver.plan.algebra import Scalar
from upriver.sql.sql_casts import cast
from upriver.sql.sql_scalar import Context, macro, string_sql
from upriver.sql.sql_signatures import Functions, Operands, Spoken

_LETTERS = {
    "yyyy": "%Y",
    "yy": "%y",
    "MM": "%m",
    "M": "%-m",
    "MMM": "%b",
    "MMMM": "%B",
    "dd": "%d",
    "d": "%-d",
    **dict.fromkeys(("E", "EE", "EEE"), "%a"),
    "EEEE": "%A",
    "HH": "%H",
    "H": "%-H",
    "hh": "%I",
    "h": "%-I",
    "a": "%p",
    "mm": "%M",
    "m": "%-M",
    "ss": "%S",
    "s": "%-S",
    "SSS": "%g",
    "SSSSSS": "%f",
}
_PART = re.compile(r"([A-Za-z])\1*|'(?:[^']|'')*'|[^A-Za-z'\[\]{}#]")
_INSTEAD = f"Give one in quotes, of these: {' '.join(_LETTERS)}."


def _strftime(pattern: str) -> str | None:
    """The pattern as strftime has it; ``None`` for letters that we do not know."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        match = _PART.match(pattern, at)
        text = None if match is None else _part(match[0])
        if match is None or text is None:
            return None
        parts.append(text)
        at = match.end()
    return "".join(parts)


def _part(text: str) -> str | None:
    if text[0].isascii() and text[0].isalpha():
        return _LETTERS.get(text)
    quoted = text[1:-1].replace("''", "'") or "'" if text[0] == "'" else text
    return quoted.replace("%", "%%")


def _formatted(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    """``date_format(time, pattern)``: whatever it is given, Spark makes it a TIMESTAMP first."""
    pattern = operands[1].constant
    form = _strftime(pattern) if isinstance(pattern, str) else None
    if form is None:
        raise context.unsupported(node, f"date_format() by {pattern!r}" if pattern else "this date_format()", _INSTEAD)
    context.need_utc(node, "date_format()")
    moment = cast(context, node, operands[0], pa.timestamp("us", tz=context.timezone))
    return Scalar(macro("spark_formatted", moment.sql, string_sql(form)), pa.string(), fails=True)


FORMATS: Functions = {"date_format": Spoken((2, 2), _formatted)}
