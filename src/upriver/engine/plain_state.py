"""A state without declared columns as bytes and back, by value: no class is named, so reading it runs no code.

States go through checkpoints, which any writer of the lake can change, and from worker to worker. A pickle there would
run code. So a state consists of the values listed here, each of exactly its class, and is written as JSON. A value that
JSON has no form for is a list that begins with a tag. Two references to one list come back as two lists.
"""

import json
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np

KINDS = (
    "None, bool, int, float, str, bytes, Decimal, date, time, datetime, timedelta, UUID, numpy's scalars and arrays, "
    "and list, tuple, dict, set, frozenset, deque, OrderedDict and Counter of such values"
)
_LONG = 1 << 63
"""Whole numbers from here on are written in hexadecimal: Python limits how many decimal digits it reads."""


def encode_state(value: Any) -> bytes:
    """Raises TypeError for a value of a class that is not in ``KINDS``, RecursionError for a value that holds
    itself."""
    return _COMPACT.encode(_written(value)).encode("ascii")


def decode_state(encoded: bytes) -> Any:
    """The inverse of :func:`encode_state`. Raises ValueError for anything else."""
    try:
        return _read(json.loads(encoded))
    except (LookupError, TypeError, ArithmeticError, RecursionError, AttributeError) as error:
        raise ValueError(f"{len(encoded)} bytes that are no state: {error!r}") from error


_COMPACT = json.JSONEncoder(separators=(",", ":"))


def _written(value: Any) -> Any:
    write = _WRITERS.get(type(value))
    if write is not None:
        return write(value)
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biufcmMSU":
        array = np.ascontiguousarray(value)
        shape = None if isinstance(value, np.generic) else list(value.shape)
        return ["np", value.dtype.str, shape, b64encode(array.tobytes()).decode("ascii")]
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__}{_way_out(value)}")


def _way_out(value: Any) -> str:
    """How a value of a class that is not listed becomes one that is, behind the name of the class."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return ", a named tuple: keep tuple(x), or x._asdict()"
    if is_dataclass(value):
        return ", a dataclass: keep dataclasses.astuple(x), or asdict(x)"
    if isinstance(value, Enum):
        return ", an Enum: keep x.value"
    plain = next((kind for kind in type(value).__mro__ if kind in _WRITERS), None)
    return "" if plain is None else f", a kind of {plain.__name__}: keep {plain.__name__}(x)"


def _read(said: Any) -> Any:
    return _READERS[said[0]](said) if isinstance(said, list) else said


def _same(value: Any) -> Any:
    return value


def _int(value: int) -> Any:
    return value if -_LONG < value < _LONG else ["i", hex(value)]


def _items(tag: str) -> Callable[[Any], list[Any]]:
    return lambda values: [tag, *map(_written, values)]


def _pairs(tag: str) -> Callable[[Any], list[Any]]:
    return lambda values: [tag, *(_written(part) for pair in values.items() for part in pair)]


def _read_pairs(said: list[Any]) -> Any:
    parts = [_read(part) for part in said[1:]]
    return zip(parts[::2], parts[1::2], strict=True)


def _read_numpy(said: list[Any]) -> Any:
    _, name, shape, text = said
    dtype = np.dtype(name)
    if dtype.kind not in "biufcmMSU":
        raise ValueError(f"numpy's {name}")
    values = np.frombuffer(b64decode(text, validate=True), dtype)
    return values[0] if shape is None else values.reshape(shape).copy()


def _zone(zone: tzinfo | None) -> Any:
    """The name of a named zone; the seconds of a fixed offset."""
    if zone is None:
        return None
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if isinstance(name, str):
        return name
    if type(zone) is timezone:
        return zone.utcoffset(None).total_seconds()
    raise TypeError(f"a time zone of class {type(zone).__module__}.{type(zone).__qualname__}")


def _read_zone(said: Any) -> tzinfo | None:
    if said is None:
        return None
    return ZoneInfo(said) if isinstance(said, str) else timezone(timedelta(seconds=said))


def _instant(tag: str) -> Callable[[Any], list[Any]]:
    """For a time or a datetime: the wall clock, its fold, and the zone."""
    return lambda value: [tag, value.replace(tzinfo=None).isoformat(), value.fold, _zone(value.tzinfo)]


def _read_instant(kind: Any) -> Callable[[list[Any]], Any]:
    return lambda said: kind.fromisoformat(said[1]).replace(fold=said[2], tzinfo=_read_zone(said[3]))


_WRITERS: Mapping[type, Callable[[Any], Any]] = MappingProxyType(
    {
        type(None): _same,
        bool: _same,
        int: _int,
        float: _same,
        str: _same,
        bytes: lambda value: ["b", b64encode(value).decode("ascii")],
        list: _items("l"),
        tuple: _items("t"),
        dict: _pairs("d"),
        set: _items("s"),
        frozenset: _items("f"),
        deque: lambda value: ["q", value.maxlen, *map(_written, value)],
        OrderedDict: _pairs("o"),
        Counter: _pairs("c"),
        Decimal: lambda value: ["n", str(value)],
        date: lambda value: ["day", value.isoformat()],
        time: _instant("time"),
        datetime: _instant("at"),
        timedelta: lambda value: ["for", value.days, value.seconds, value.microseconds],
        UUID: lambda value: ["uuid", value.hex],
    }
)
_READERS: Mapping[str, Callable[[list[Any]], Any]] = MappingProxyType(
    {
        "i": lambda said: int(said[1], 16),
        "b": lambda said: b64decode(said[1], validate=True),
        "l": lambda said: [_read(item) for item in said[1:]],
        "t": lambda said: tuple(_read(item) for item in said[1:]),
        "d": lambda said: dict(_read_pairs(said)),
        "s": lambda said: {_read(item) for item in said[1:]},
        "f": lambda said: frozenset(_read(item) for item in said[1:]),
        "q": lambda said: deque((_read(item) for item in said[2:]), said[1]),
        "o": lambda said: OrderedDict(_read_pairs(said)),
        "c": lambda said: Counter(dict(_read_pairs(said))),
        "n": lambda said: Decimal(said[1]),
        "day": lambda said: date.fromisoformat(said[1]),
        "time": _read_instant(time),
        "at": _read_instant(datetime),
        "for": lambda said: timedelta(*said[1:]),
        "uuid": lambda said: UUID(hex=said[1]),
        "np": _read_numpy,
    }
)
