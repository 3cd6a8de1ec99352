"""The part of a JSON document at a path, as the text that Spark's ``get_json_object`` gives for it.

Spark copies what it finds: fields stay in their order, also two of one name; numbers with a fraction or an exponent
are doubles in Java's form; and all elements of a list, ``[*]``, lose the list around them if they are one. Documents
are parsed by the standard library, each different one of a batch once.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, Never

import pyarrow as pa

PATHS_MAX = 256
"""Paths whose steps are kept."""
_DIGITS_MAX = 15
"""Significant digits of a double that all versions of Java print alike."""
_LEAST_PRINTED, _MOST_PRINTED = 1e-3, 1e15
"""Between these, and 0, Java's form of a double is known."""

DEPTH_MAX = 100
"""Lists and objects around a value."""
_NUMBER_CHARS_MAX = 1000
"""Spark's parser takes no longer number."""

EACH = None
"""The step ``[*]``."""
Step = str | int | None
"""The name of a field, the place of an element, or :data:`EACH`."""

_PATH = re.compile(r"\$(?:\.[^\s.\[*'][^.\[*']*|\['[^'*?]+'\]|\[\d{1,9}\]|\[\*\])*")
_STEP = re.compile(r"\.([^.\[]+)|\['([^']+)'\]|\[(\d+)\]|\[(\*)\]")


class _Style(Enum):
    """How what is found is written."""

    RAW = 1
    """A string without quotes: no list is around it."""
    QUOTED = 2
    FLAT = 3
    """The elements of lists in place of the lists."""


class _Fields(tuple[tuple[str, Any], ...]):
    """The fields of an object, in order."""


class _Whole(str):
    """The text of a whole number."""


class _Double(str):
    """The text of a number with a fraction or an exponent."""


@lru_cache(PATHS_MAX)
def read_path(path: str) -> tuple[Step, ...] | None:
    """The steps of a path such as ``$.a[0]['b c'][*]``; ``None`` for a text of another form."""
    if not _PATH.fullmatch(path):
        return None
    return tuple(
        int(place) if place else EACH if each else name or quoted
        for name, quoted, place, each in _STEP.findall(path[1:])
    )


def parts_at(documents: pa.Array, path: str) -> pa.Array:
    """documents: a column of STRING. Gives a column of STRING, NULL where there is no such part, or no valid document.

    Raises ValueError for a document that Spark may read in another way.
    """
    steps = read_path(path)
    assert steps is not None
    different = documents.dictionary_encode()
    found = [None if text is None else _part(text, steps) for text in different.dictionary.to_pylist()]
    return pa.array(found, pa.string()).take(different.indices)


def _part(text: str, steps: Sequence[Step]) -> str | None:
    start = len(text) - len(text.lstrip(" \t\r\n"))
    if text.count("[") + text.count("{") > DEPTH_MAX and _depth(text) > DEPTH_MAX:
        raise ValueError(f"JSON of more than {DEPTH_MAX} levels is too far to compute with")
    try:
        value, end = _DECODER.raw_decode(text, start)
    except ValueError as error:
        if "'" in text:
            raise ValueError("JSON in single quotes is too far to compute with") from error
        return None
    except _TooFar as error:
        raise ValueError("JSON with so long a number is too far to compute with") from error
    if text[start] not in "{[" and text[end:].strip(" \t\r\n"):
        raise ValueError("JSON with more behind its value is too far to compute with")
    found, is_found = _Writer(_CONTROLS_AND_WIDE).written(value, steps, _Style.RAW)
    if len(found) > 1 and is_found:
        raise ValueError("JSON with two fields of one name at the path is too far to compute with")
    if any("\ud800" <= letter <= "\udfff" for part in found for letter in part):
        raise ValueError("JSON with half of a surrogate pair is too far to compute with")
    return found[0] if is_found else None


def _depth(text: str) -> int:
    """How many lists and objects are around the innermost value."""
    depth = deepest = 0
    for bracket in re.sub(r'"(?:[^"\\]|\\.)*"|[^][{}"]', "", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


@dataclass(frozen=True, slots=True)
class _Writer:
    """escaped: the letters that are written as escapes."""

    escaped: re.Pattern[str]

    def written(self, value: Any, steps: Sequence[Step], style: _Style) -> tuple[list[str], bool]:
        """The texts that are written for the part at these steps, and whether it counts as found."""
        if not steps:
            return self._copied(value, style)
        step, rest = steps[0], steps[1:]
        if isinstance(value, _Fields) and isinstance(step, str):
            return self._of_field(value, step, rest, style)
        if isinstance(value, list) and isinstance(step, int):
            if step >= len(value):
                return [], False
            return self.written(value[step], rest, _Style.QUOTED if rest and rest[0] is EACH else style)
        if isinstance(value, list) and step is EACH:
            return self._of_each(value, rest, style)
        return [], False

    def _copied(self, value: Any, style: _Style) -> tuple[list[str], bool]:
        if style is _Style.FLAT and isinstance(value, list):
            return self._all_of(value, (), style)
        if style is _Style.RAW and type(value) is str:
            return [value], True
        return [self._rendered(value)], True

    def _of_field(self, fields: _Fields, name: str, rest: Sequence[Step], style: _Style) -> tuple[list[str], bool]:
        """Of the first field of that name in which the rest of the path is found."""
        found: list[str] = []
        for title, value in fields:
            if title == name and value is not None:
                texts, is_found = self.written(value, rest, style)
                found += texts
                if is_found:
                    return found, True
        return found, False

    def _of_each(self, values: list[Any], rest: Sequence[Step], style: _Style) -> tuple[list[str], bool]:
        if rest and rest[0] is EACH:
            found, is_found = self._all_of(values, rest[1:], _Style.FLAT)
            return [f"[{','.join(found)}]"], is_found
        if style is _Style.QUOTED:
            found, is_found = self._all_of(values, rest, style)
            return [f"[{','.join(found)}]"], is_found
        aside, inner = _Writer(_CONTROLS), _Style.QUOTED if style is _Style.RAW else style
        pieces = [aside.written(value, rest, inner) for value in values]
        text = ",".join(part for texts, _ in pieces for part in texts)
        count = sum(is_found for _, is_found in pieces)
        return ([f"[{text}]" if count > 1 else text] if count else []), count > 0

    def _all_of(self, values: list[Any], rest: Sequence[Step], style: _Style) -> tuple[list[str], bool]:
        pieces = [self.written(value, rest, style) for value in values]
        return [part for texts, _ in pieces for part in texts], any(is_found for _, is_found in pieces)

    def _rendered(self, value: Any) -> str:
        """The JSON of a value, without blanks."""
        if isinstance(value, _Whole):
            return str(value)
        if isinstance(value, _Double):
            return _printed(value)
        if isinstance(value, str):
            return self._quoted(value)
        if isinstance(value, _Fields):
            return "{" + ",".join(f"{self._quoted(name)}:{self._rendered(part)}" for name, part in value) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(self._rendered, value)) + "]"
        return "null" if value is None else "true" if value else "false"

    def _quoted(self, text: str) -> str:
        return '"' + self.escaped.sub(_escape, text) + '"'


_CONTROLS = re.compile(r'["\\\x00-\x1f]')
"""What Spark escapes in elements of lists that it writes aside first."""
_CONTROLS_AND_WIDE = re.compile(r'["\\\x00-\x1f]|[^\x00-\uffff]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(match: re.Match[str]) -> str:
    """Letters beyond 16 bits become two escapes, as Jackson writes them."""
    letter = match[0]
    units = letter.encode("utf-16-be").hex().upper()
    return _SHORT.get(letter) or "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _printed(number: _Double) -> str:
    """As Java prints a double."""
    value = float(number)
    digits = repr(abs(value))
    short = "".join(map(str, Decimal(digits).as_tuple().digits)).strip("0")
    if value and not (len(short) <= _DIGITS_MAX and _LEAST_PRINTED <= abs(value) < _MOST_PRINTED):
        raise ValueError(f"The number {number} in JSON is too far to compute with")
    minus = "-" if math.copysign(1, value) < 0 else ""
    if abs(value) < 1e7:
        return minus + digits
    return f"{minus}{short[0]}.{short[1:] or '0'}E{Decimal(digits).adjusted()}"


class _TooFar(Exception):
    """No ValueError, which the parser's own are."""


def _whole(text: str) -> _Whole:
    if len(text) > _NUMBER_CHARS_MAX:
        raise _TooFar
    return _Whole("0" if text == "-0" else text)


def _refused(word: str) -> Never:
    """NaN and its kin, which the standard library takes for numbers."""
    raise ValueError(f"{word} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Fields,
    parse_float=_Double,
    parse_int=_whole,
    parse_constant=_refused,
    strict=False,
)
