"""Records that another process has written as JSON: a value of another type than its field's is refused.

A dataclass takes any value for any field, so a record of the wrong form would fail later, far from its file.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from types import UnionType
from typing import Any, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from upriver.ids import Hash64

Record = TypeVar("Record")
Holds = Callable[[Any], bool]
"""Whether a value is one of some type."""

WHOLE = range(-(1 << 63), 1 << 63)
"""Whole numbers of a record: those that a column of 64 bits may have."""

HASHES = range(1 << 64)
"""Hashes of keys, which have no sign."""


def typed(record: Record) -> Record:
    """The same record, a dataclass. Raises ValueError unless each of its fields has a value of the field's type: whole
    numbers of 64 bits, hashes without a sign, finite numbers, texts."""
    kind: Any = type(record)
    for name, holds in _checks(kind):
        value = getattr(record, name)
        if not holds(value):
            raise ValueError(f"{name}={value!r:.100}")
    return record


@cache
def _checks(kind: Any) -> tuple[tuple[str, Holds], ...]:
    hints = get_type_hints(kind)
    return tuple((field.name, _holds(hints[field.name])) for field in fields(kind))


def _holds(kind: Any) -> Holds:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Hash64:
        return lambda value: type(value) is int and value in HASHES
    if isinstance(kind, NewType):
        return _holds(kind.__supertype__)
    if kind is int:
        return lambda value: type(value) is int and value in WHOLE
    if kind is float:
        return lambda value: type(value) in (int, float) and abs(value) <= WHOLE.stop and math.isfinite(value)
    if origin in (Union, UnionType):
        either = [_holds(argument) for argument in arguments]
        return lambda value: any(holds(value) for holds in either)
    if origin is tuple and arguments[-1] is Ellipsis:
        each = _holds(arguments[0])
        return lambda value: isinstance(value, tuple) and all(map(each, value))
    if origin is tuple:
        parts = [_holds(argument) for argument in arguments]
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(parts)
            and all(holds(part) for holds, part in zip(parts, value, strict=True))
        )
    if origin is not None and issubclass(origin, Mapping):
        holds_key, holds_value = map(_holds, arguments)
        return lambda value: (
            isinstance(value, Mapping) and all(holds_key(key) and holds_value(item) for key, item in value.items())
        )
    return lambda value: kind is Any or isinstance(value, origin or kind)
