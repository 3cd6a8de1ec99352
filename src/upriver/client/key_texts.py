"""Keys as texts, of a command line or in JSON, read in the types of the view's key columns.

A number in JSON keeps its text (:class:`Numeral`), because a double would not have all digits of a decimal.
"""

import datetime
import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from itertools import accumulate
from typing import Any, Self

import numpy as np
import pyarrow as pa

from upriver.client.key_values import KeyPlace, shown
from upriver.errors import KeyTypeError
from upriver.plan.schemas import EVERYTHING_KEY
from upriver.state.columns import exact_type
from upriver.zones import zone_info

_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")
_NO_NUMBER = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
NUMBER_CHARS_MAX = 1_000
"""Characters of a number that is read."""
EXACT_DIGITS = 1_100
"""Digits of the arithmetic that compares a number with a double, which has 767 at most."""
_DATE = re.compile(r"([+-]?\d{4,7})-(\d{1,2})-(\d{1,2})", re.ASCII)
_TIME = re.compile(
    r"([+-]?\d{4,7}-\d{1,2}-\d{1,2})(?:[ T](\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?)?"
    r" ?(?:(Z|UTC)|([+-])(\d{1,2}):?(\d{2})?)?",
    re.ASCII,
)
_DURATION = re.compile(r"([+-]?)PT(\d{1,13})(?:\.(\d{1,6}))?S", re.ASCII)
_BYTES = re.compile(r"[Xx]'((?:[0-9A-Fa-f]{2})*)'")
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
"""The calendar repeats after so many years."""
_DAY_MICROS = 86_400_000_000


class Numeral(float):
    """A number with a point or an exponent in JSON, as a double and as it is written."""

    text: str

    def __new__(cls, text: str) -> Self:
        made = super().__new__(cls, text)
        made.text = text
        return made


def json_text(parts: Sequence[Any]) -> str:
    """The JSON list of a key's parts, in which each :class:`Numeral` is as it was written. Raises KeyTypeError if they
    are nested too deeply."""
    try:
        return f"[{', '.join(map(_part_text, parts))}]"
    except RecursionError:
        raise KeyTypeError("a key is nested too deeply: no column's type is") from None


def _part_text(part: Any) -> str:
    if isinstance(part, list):
        return f"[{', '.join(map(_part_text, part))}]"
    if isinstance(part, dict):
        return f"{{{', '.join(f'{json.dumps(name)}: {_part_text(each)}' for name, each in part.items())}}}"
    return part.text if isinstance(part, Numeral) else json.dumps(part)


def keys_of_texts(view: str, key_schema: pa.Schema, texts: Sequence[str]) -> pa.Table:
    """The keys as a table of ``key_schema``. The text of a one-column key is its value, or a JSON list of it; that of a
    longer key is a JSON list. Arrays and structs are lists and objects within that list. Raises KeyTypeError, which
    names the accepted forms."""
    rows = [_parts(view, key_schema, text) for text in texts]
    columns = [
        _text_column(KeyPlace(view, field), field.type, [row[place] for row in rows])
        for place, field in enumerate(key_schema)
    ]
    return pa.Table.from_arrays(columns, schema=key_schema)


def _parts(view: str, schema: pa.Schema, text: str) -> list[Any]:
    """A value for each column: a text, or a value of JSON."""
    listed = _listed(text)
    if schema == EVERYTHING_KEY:
        if text.strip() not in ("[]", "()"):
            raise KeyTypeError(f"view {view!r}: {text!r} is no key: the key has no column, give '[]'")
        return [0]
    if len(schema) > 1:
        if listed is None or len(listed) != len(schema):
            names = ", ".join(schema.names)
            raise KeyTypeError(
                f"view {view!r}: {text!r} is no key: give a JSON list of {len(schema)} values, of {names}: "
                f"'{json.dumps([_example(field.type) for field in schema])}'"
            )
        return listed
    is_key = listed is not None and len(listed) == 1
    if pa.types.is_string(schema.field(0).type):  # a text may look like a list of anything
        is_key = is_key and isinstance(listed[0], str | None) if listed is not None else False
    return listed if is_key and listed is not None else [text]


def _listed(text: str) -> list[Any] | None:
    """The JSON list that a text is; ``None`` if it is none."""
    if not text.startswith("["):
        return None
    try:
        found = json.loads(text, parse_float=Numeral)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def _text_column(place: KeyPlace, type: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """The values in this type, which is that of the key column or of a part of it."""
    if pa.types.is_list(type):
        given = [[] if value is None else value for value in _checked(place, type, list, values)]
        ends = [0, *accumulate(map(len, given))]
        elements = _text_column(place, type.value_type, [part for value in given for part in value])
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), elements, type=type, mask=mask)
    if pa.types.is_struct(type):
        names = {field.name for field in type}
        for value in _checked(place, type, dict, values):
            if value is not None and (value.keys() != names or len(names) < type.num_fields):
                raise _refusal(place, type, value)
        parts = [
            _text_column(place, field.type, [None if value is None else value[field.name] for value in values])
            for field in type
        ]
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(parts, fields=list(type), mask=mask)
    _, read, *_ = _kind_of(type)
    as_number = exact_type(type) if pa.types.is_temporal(type) else type
    found = []
    for value in values:
        try:
            part = None if value is None else read(type, _as_text(type, value))
            found.append(pa.scalar(part, as_number) if not isinstance(part, pa.Scalar) else part)
        except (ValueError, OverflowError, pa.ArrowException) as error:
            raise _refusal(place, type, value) from error
    array = pa.array(found, as_number)
    return array if as_number == type else array.view(type)


def _checked(place: KeyPlace, type: pa.DataType, wanted: Any, values: Sequence[Any]) -> Sequence[Any]:
    for value in values:
        if not isinstance(value, wanted | None):
            raise _refusal(place, type, value)
    return values


def _refusal(place: KeyPlace, type: pa.DataType, value: Any) -> KeyTypeError:
    _, _, form, example = _kind_of(type)
    column = f"key column {place.field.name!r}, which is {place.field.type}"
    return KeyTypeError(
        f"view {place.view!r}: {shown(value)} is no value of {column}: give {form}, as in {example}; or '[null]'"
    )


def _as_text(type: pa.DataType, value: Any) -> str:
    """The text of a single value: JSON also has numbers and booleans."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) and pa.types.is_boolean(type):
        return json.dumps(value)
    is_number = pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type)
    if isinstance(value, int | float) and not isinstance(value, bool) and is_number:
        return value.text if isinstance(value, Numeral) else repr(value)
    raise ValueError("another kind of value")


def _whole(type: pa.DataType, text: str) -> int:
    if _WHOLE.fullmatch(text.strip()) is None:
        raise ValueError("no whole number")
    return int(text)


def _number(text: str) -> str:
    """The number without blanks around it. Raises ValueError."""
    number = text.strip()
    if len(number) > NUMBER_CHARS_MAX or _NUMBER.fullmatch(number) is None:
        raise ValueError("no number")
    return number


def _decimal(type: pa.DataType, text: str) -> pa.Scalar:
    return pa.scalar(_number(text), pa.string()).cast(type)


def _float(type: pa.DataType, text: str) -> float:
    """The nearest value, if it is the text once it is rounded to as many digits: 0.1 is one, 2^53 + 1 is none. Where it
    lies between two texts of as many digits, as 2^-24 does, it is both."""
    if _NO_NUMBER.fullmatch(text.strip()) is not None:
        return float(text)
    number = Decimal(_number(text))
    with np.errstate(over="ignore"):
        nearest = float(type.to_pandas_dtype()(str(number)))
    with localcontext(prec=EXACT_DIGITS):
        exponent = number.normalize().as_tuple().exponent if number else 0
        is_it = Decimal(nearest) == number or (
            isinstance(exponent, int) and 2 * abs(Decimal(nearest) - number) <= Decimal(10) ** exponent
        )
    if not is_it:
        raise ValueError("no such value")
    return nearest


def _no_text(type: pa.DataType, text: str) -> Any:
    raise ValueError("no text")


def _text(type: pa.DataType, text: str) -> str:
    return text


def _truth(type: pa.DataType, text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("no truth")
    return word == "true"


def _bytes(type: pa.DataType, text: str) -> bytes:
    written = _BYTES.fullmatch(text)
    return text.encode() if written is None else bytes.fromhex(written[1])


def _day(type: pa.DataType, text: str) -> int:
    """Days since 1970."""
    match = _DATE.fullmatch(text.strip())
    if match is None:
        raise ValueError("no date")
    cycles, year = divmod(int(match[1]) - 1, _CYCLE_YEARS)
    day = datetime.date(year + 1, int(match[2]), int(match[3]))
    return cycles * _CYCLE_DAYS + day.toordinal() - datetime.date(1970, 1, 1).toordinal()


def _moment(type: pa.DataType, text: str) -> int:
    """Microseconds since 1970. A text without an offset is in the column's zone, if that has one."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError("no time")
    day, hour, minute, second, fraction, is_utc, sign, hours, minutes = match.groups()
    clock = datetime.time(int(hour or 0), int(minute or 0), int(second or 0), int((fraction or "").ljust(6, "0")))
    micros = (clock.hour * 3600 + clock.minute * 60 + clock.second) * 1_000_000 + clock.microsecond
    micros += _day(type, day) * _DAY_MICROS
    if type.tz is None:
        if is_utc or sign:
            raise ValueError("a time with a zone")
        return micros
    if is_utc:
        return micros
    if sign:
        away = (int(hours) * 60 + int(minutes or 0)) * 60_000_000
        return micros + away if sign == "-" else micros - away
    local = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=micros)
    offset = local.replace(tzinfo=zone_info(type.tz)).utcoffset()
    return micros - (offset or datetime.timedelta()) // datetime.timedelta(microseconds=1)


def _duration(type: pa.DataType, text: str) -> int:
    """Microseconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError("no duration")
    micros = int(match[2]) * 1_000_000 + int((match[3] or "").ljust(6, "0"))
    return -micros if match[1] == "-" else micros


_Kind = tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, str], Any], str, str]
_WRITTEN_KINDS: tuple[_Kind, ...] = (
    (pa.types.is_string, _text, "a text, or a JSON list with a text", """a or '["a"]'"""),
    (pa.types.is_boolean, _truth, "true or false", "true"),
    (pa.types.is_integer, _whole, "a whole number that fits", "-7"),
    (pa.types.is_decimal, _decimal, "a decimal number that fits", "1.50"),
    (pa.types.is_floating, _float, "a number that fits, NaN or inf", "2.5"),
    (pa.types.is_date32, _day, "a date", "2024-02-29"),
    (
        lambda type: bool(pa.types.is_timestamp(type) and type.tz is None),
        _moment,
        "a time without a zone",
        "'2024-02-29 12:00:00'",
    ),
    (
        pa.types.is_timestamp,
        _moment,
        "a time, which is in the view's zone unless an offset is behind it",
        "'2024-02-29 12:00:00' or 2024-02-29T12:00:00+05:30",
    ),
    (pa.types.is_duration, _duration, "a duration in seconds", "PT90.5S"),
    (pa.types.is_binary, _bytes, "bytes as a text, or in hexadecimal digits", """abc or "X'00FF'" """.strip()),
    (pa.types.is_list, _no_text, "a list within the JSON list of the key", "[[1, 2]]"),
    (pa.types.is_struct, _no_text, "an object with its fields within the JSON list of the key", """'[{"a": 1}]'"""),
    (lambda type: True, _no_text, "NULL: nothing else is of this type", "[null]"),
)
"""Kinds of columns: a test of the type, how to read a value, a description of its form, and an example. The first
match counts."""


def _kind_of(type: pa.DataType) -> _Kind:
    return next(kind for kind in _WRITTEN_KINDS if kind[0](type))


def _example(type: pa.DataType) -> Any:
    return 1 if pa.types.is_integer(type) else "a" if pa.types.is_string(type) else "..."
