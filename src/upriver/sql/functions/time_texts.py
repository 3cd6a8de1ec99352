"""Dates and times as text in a form that is written: ``date_format``, and reading such a text.

The letters mean the same to Java and to DuckDB's strftime, or are read by a regular expression. All others are refused.
"""

import re

import pyarrow as pa

from upriver.plan.relation import Scalar
from upriver.plan.source import Place
from upriver.sql.functions.casts import local
from upriver.sql.functions.scalars import Context, macro, strict, string_sql
from upriver.sql.functions.signatures import OperandKind, Operands, as_instant, take

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
    """The pattern in strftime's terms; ``None`` for letters that are not supported."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        match = _PART.match(pattern, at)
        text = None if match is None else _strftime_part(match[0])
        if match is None or text is None:
            return None
        parts.append(text)
        at = match.end()
    return "".join(parts)


def _strftime_part(text: str) -> str | None:
    if text[0].isascii() and text[0].isalpha():
        return _LETTERS.get(text)
    quoted = text[1:-1].replace("''", "'") or "'" if text[0] == "'" else text
    return quoted.replace("%", "%%")


def formatted(context: Context, place: Place, operands: Operands) -> Scalar:
    """``date_format(time, pattern)``: Spark first makes any argument a TIMESTAMP."""
    pattern = operands[1].constant
    form = _strftime(pattern) if isinstance(pattern, str) else None
    if form is None:
        what = "this date_format()" if pattern is None else f"date_format() by {pattern!r}"
        raise context.unsupported(place, what, _INSTEAD)
    clock = local(context, as_instant(context, place, operands[0]))
    if not form:  # strftime takes no empty form
        return strict(f"CASE WHEN {clock.sql} IS NOT NULL THEN '' END", pa.string(), (clock, operands[1]))
    return strict(macro("spark_formatted", clock.sql, string_sql(form)), pa.string(), (clock, operands[1]), fails=True)


_READ = {
    "yyyy": ("y", "[0-9]{4}|[+][0-9]{5,6}"),
    "MM": ("mo", "[0-9]{2}"),
    "M": ("mo", "[0-9]{1,9}"),
    "dd": ("d", "[0-9]{2}"),
    "d": ("d", "[0-9]{1,9}"),
    "HH": ("h", "[0-9]{2}"),
    "H": ("h", "[0-9]{1,9}"),
    "mm": ("m", "[0-9]{2}"),
    "m": ("m", "[0-9]{1,9}"),
    "ss": ("s", "[0-9]{2}"),
    "s": ("s", "[0-9]{1,9}"),
    **{"S" * count: ("f", f"[0-9]{{{count}}}") for count in range(1, 7)},
}
"""By letters: the field, and the digits that it has in a text."""
_UNREAD = "Read yyyy MM dd HH mm ss and SSS, each once; put digits of a single letter before a separator."


def parsed(context: Context, place: Place, name: str, value: Scalar, form: Scalar) -> Scalar:
    """The wall clock in a text of this form. It raises for a text of another form."""
    found = _reading(form.constant) if isinstance(form.constant, str) else None
    if found is None:
        what = f"this {name}()" if form.constant is None else f"{name}() by {form.constant!r}"
        raise context.unsupported(place, what, _UNREAD)
    pattern, places = found
    text = take(context, place, OperandKind.STRING, value)

    def field(letter: str, missing: str) -> str:
        if letter not in places:
            return f"'{missing}'"
        return f"regexp_extract({text.sql}, {string_sql(pattern)}, {places[letter]})"

    micros = f"{field('s', '0')} || rpad({field('f', '0')}, 6, '0')"
    given = (text.sql, *(field(*pair) for pair in (("y", "1970"), ("mo", "1"), ("d", "1"), ("h", "0"), ("m", "0"))))
    return strict(macro("spark_parsed", *given, micros), pa.timestamp("us"), (text,), fails=True)


def _reading(form: str) -> tuple[str, dict[str, int]] | None:
    """A regular expression for texts of the form, and the group of each field; ``None`` if the form has other letters,
    or one twice."""
    parts: list[str] = []
    places: dict[str, int] = {}
    at, is_open = 0, False
    while at < len(form):
        match = _PART.match(form, at)
        if match is None:
            return None
        text = match[0]
        if text[0].isascii() and text[0].isalpha():
            if text not in _READ or is_open or _READ[text][0] in places:
                return None
            letter, digits = _READ[text]
            places[letter] = len(places) + 1
            parts.append(f"({digits})")
            is_open = "1,9" in digits
        else:
            plain = text[1:-1].replace("''", "'") or "'" if text[0] == "'" else text
            if plain[:1].isdigit() or not plain.isascii():
                return None
            parts.append(re.escape(plain))
            is_open = False
        at = match.end()
    return (f"^{''.join(parts)}$", places) if "y" in places else None
