"""A state without declared columns as bytes and back, by value: no class is named, so reading it runs no code.

States go through checkpoints, which any writer of the lake can change, and from worker to worker. A pickle there would
run code. So a state consists of the values listed here, each of exactly its class, and is written as JSON. A value that
JSON has no form for is a list that begins with a tag. Two references to one list come back as two lists.
"""

import json
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from itertools import chain
from types import MappingProxyType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np

KINDS = (
    "None, bool, int, float, str, bytes, Decimal, date, time, datetime, timedelta, UUID, numpy's scalars and arrays, "
    "and list, tuple, dict, set, frozenset, deque, OrderedDict and Counter of such values"
)
DEPTH_MAX = 100
"""Levels of values within values. Reading a level takes up to four of the 1,000 nested calls that Python allows."""
_LONG = 1 << 63
"""Whole numbers from here on are written in hexadecimal: Python limits how many decimal digits it reads."""


def encode_state(value: Any) -> bytes:
    """Raises TypeError for a value of a class that is not in ``KINDS`` or that would not come back equal,
    RecursionError for a value of more than ``DEPTH_MAX`` levels, such as one that holds itself."""
    return _COMPACT.encode(_written(value)).encode("utf-8", "surrogatepass")


def decode_state(encoded: bytes) -> Any:
    """The inverse of :func:`encode_state`. Raises ValueError for anything else."""
    try:
        return _read(json.loads(encoded))
    except (LookupError, TypeError, ArithmeticError, RecursionError, AttributeError, OSError) as error:
        raise ValueError(f"{len(encoded)} bytes that are no state: {error!r}") from error


_COMPACT = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
"""Escapes would make one character of two halves of a surrogate pair."""


def _written(value: Any, levels: int = DEPTH_MAX) -> Any:
    """levels: how many the value may have."""
    write = _WRITERS.get(type(value))
    if write is not None:
        return write(value)
    holder = _HOLDERS.get(type(value))
    if holder is not None:
        if not levels:
            raise RecursionError(f"it holds itself, or has more than {DEPTH_MAX} levels of values within values")
        tag, parts = holder
        return [tag, *(_written(part, levels - 1) for part in parts(value))]
    if _is_plain_numpy(value):
        shape = None if isinstance(value, np.generic) else list(value.shape)
        return ["np", value.dtype.str, shape, _base64(value.tobytes())]
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__}{_way_out(value)}")


def _is_plain_numpy(value: Any) -> bool:
    """Of exactly numpy's classes: a kind of array, such as a masked one, is more than its values."""
    is_numpy = isinstance(value, np.generic | np.ndarray) and type(value) in (np.ndarray, value.dtype.type)
    return is_numpy and value.dtype.kind in "biufcmMSU" and value.dtype.itemsize > 0


def _base64(content: bytes) -> str:
    return b64encode(content).decode("ascii")


def _way_out(value: Any) -> str:
    """How a value of a class that is not listed becomes one that is, behind the name of the class."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return ", a named tuple: keep tuple(x), or x._asdict()"
    if is_dataclass(value):
        return ", a dataclass: keep dataclasses.astuple(x), or asdict(x)"
    if isinstance(value, Enum):
        return ", an Enum: keep x.value"
    if isinstance(value, np.ma.MaskedArray):
        return ", an array with a mask: keep (x.data, x.mask)"
    if type(value) is np.ndarray:
        return f" of {value.dtype}: keep x.tolist()"
    kinds = {*_WRITERS, *_HOLDERS, np.ndarray}
    plain = next((kind for kind in type(value).__mro__ if kind in kinds), None)
    if plain is np.ndarray:
        return ", a kind of array: keep numpy.asarray(x)"
    return "" if plain is None else f", a kind of {plain.__name__}: keep {plain.__name__}(x)"


def _read(said: Any) -> Any:
    return _READERS[said[0]](said) if isinstance(said, list) else said


def _same(value: Any) -> Any:
    return value


def _int(value: int) -> Any:
    return value if -_LONG < value < _LONG else ["i", hex(value)]


def _pairs(values: Mapping[Any, Any]) -> Iterable[Any]:
    return chain.from_iterable(values.items())


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


def _zone(moment: time | datetime) -> Any:
    """The name of a named zone; the seconds of a fixed offset. Raises TypeError for one that would be another one when
    it is read."""
    zone = moment.tzinfo
    if zone is None:
        return None
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if type(zone) is timezone:
        return zone.utcoffset(None).total_seconds()
    kind = f"a time zone of class {type(zone).__module__}.{type(zone).__qualname__}"
    if not isinstance(name, str):
        raise TypeError(kind)
    try:
        read = moment.replace(tzinfo=_read_zone(name))
    except (ValueError, LookupError, OSError) as error:
        raise TypeError(f"{kind}: {name!r} is not in the time zone database") from error
    if read.utcoffset() != moment.utcoffset():
        raise TypeError(f"{kind}: its offset is not that of {name!r} in the time zone database; use zoneinfo.ZoneInfo")
    return name


def _read_zone(said: Any) -> tzinfo | None:
    if said is None:
        return None
    return ZoneInfo(said) if isinstance(said, str) else timezone(timedelta(seconds=said))


def _instant(tag: str) -> Callable[[Any], list[Any]]:
    """For a time or a datetime: the wall clock, its fold, and the zone."""
    return lambda value: [tag, value.replace(tzinfo=None).isoformat(), value.fold, _zone(value)]


def _read_instant(kind: Any) -> Callable[[list[Any]], Any]:
    return lambda said: kind.fromisoformat(said[1]).replace(fold=said[2], tzinfo=_read_zone(said[3]))


_WRITERS: Mapping[type, Callable[[Any], Any]] = MappingProxyType(
    {
        type(None): _same,
        bool: _same,
        int: _int,
        float: _same,
        str: _same,
        bytes: lambda value: ["b", _base64(value)],
        Decimal: lambda value: ["n", str(value)],
        date: lambda value: ["day", value.isoformat()],
        time: _instant("time"),
        datetime: _instant("at"),
        timedelta: lambda value: ["for", value.days, value.seconds, value.microseconds],
        UUID: lambda value: ["uuid", value.hex],
        # As an array of no dimension they would lose zeros at their end.
        np.str_: lambda value: ["npu", str.__str__(value)],
        np.bytes_: lambda value: ["nps", _base64(value)],
    }
)
_HOLDERS: Mapping[type, tuple[str, Callable[[Any], Iterable[Any]]]] = MappingProxyType(
    {
        list: ("l", iter),
        tuple: ("t", iter),
        dict: ("d", _pairs),
        set: ("s", iter),
        frozenset: ("f", iter),
        deque: ("q", lambda value: (value.maxlen, *value)),
        OrderedDict: ("o", _pairs),
        Counter: ("c", _pairs),
    }
)
"""The tag and the parts of values that hold others."""
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
        "npu": lambda said: np.str_(said[1]),
        "nps": lambda said: np.bytes_(b64decode(said[1], validate=True)),
    }
)
