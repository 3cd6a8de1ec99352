"""Rows of one Arrow schema as named tuples of plain Python values, and back without guessing.

Arrow itself would accept 1.5 as an integer, and a time without a zone as UTC. Here a value must have the class that
reading it back gives: an ``int`` for an integer, a ``str`` for a string. Scalars of Numpy and Arrow stand for the
Python value that they hold.

A function may change a list or an array after it has returned it. Rows are converted many at a time, so they are copied
when they are returned: otherwise a row would depend on where a batch ends.
"""

import math
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upriver.arguments import clipped_repr
from upriver.engine.row_text import UNREADABLE, row_text
from upriver.errors import ProtocolError, RowError
from upriver.state.columns import cell_type

VALUE_CHARS_MAX = 100
"""Characters of a value in a message."""

FLOAT_MAX = float(np.finfo(np.float32).max)
"""The greatest finite number of 32 bits."""

_REFUSALS = (pa.ArrowException, OverflowError, ValueError, TypeError)
"""What Arrow raises for a value that it cannot take."""


class Misfit(Exception):
    """A value is not as it was declared. row: the place of the row at fault, if there are several."""

    def __init__(self, message: str, row: int = 0) -> None:
        super().__init__(message)
        self.row = row


Test = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class PlainValues:
    """The values of one type.

    fits: whether a value that is not null has the right class, so that Arrow either takes it for what it is or refuses
    it. is_settled: true only for values that Arrow would give back unchanged.
    """

    type: pa.DataType
    expected: str
    fits: Test
    is_settled: Test

    def settled(self, value: Any) -> Any:
        """The value that Arrow gives back for this one. Raises Misfit."""
        if value is None or self.is_settled(value):
            return value
        return self.array([value])[0].as_py(maps_as_pydicts=_maps_as(self.type))

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Raises Misfit, which tells the row, if a value does not fit."""
        if not all(value is None or self.is_settled(value) or self.fits(value) for value in values):
            values = [self._checked(value, row) for row, value in enumerate(values)]
        try:
            return pa.array(values, self.type)
        except _REFUSALS as error:
            row, cause = self._culprit(values, error)
            raise Misfit(f"{shown(values[row])} does not fit {self.type}: {cause}", row) from cause

    def _checked(self, value: Any, row: int) -> Any:
        value = unwrapped(value)
        if value is not None and not self.fits(value):
            raise Misfit(f"{shown(value)} is not {self.expected}, which {self.type} needs", row)
        return value

    def _culprit(self, values: Sequence[Any], error: Exception) -> tuple[int, Exception]:
        for row, value in enumerate(values):
            try:
                pa.array([value], self.type)
            except _REFUSALS as refusal:
                return row, refusal
        return 0, error


def shown(value: Any) -> str:
    """A value in a message."""
    return clipped_repr(value, VALUE_CHARS_MAX)


def plain_values(type: pa.DataType) -> PlainValues | None:
    """``None`` for a type that a user's function can neither keep nor give."""
    if pa.types.is_nested(type):
        return _nested(type)
    for accepts, make in _SCALARS:
        if accepts(type):
            return make(type)
    return None


# Types of one value ------------------------------------------------------------------------------------------------


def _boolean(type: pa.DataType) -> PlainValues:
    return _of_class(type, bool, "a bool")


def _integer(type: pa.DataType) -> PlainValues:
    info = np.iinfo(cell_type(type))
    least, most = int(info.min), int(info.max)
    return PlainValues(
        type,
        "an int",
        lambda value: isinstance(value, int) and not isinstance(value, bool),
        lambda value: value.__class__ is int and least <= value <= most,
    )


def _floating(type: pa.DataType) -> PlainValues:
    is_double = pa.types.is_float64(type)

    def fits(value: Any) -> bool:
        is_number = isinstance(value, float | int) and not isinstance(value, bool)
        return is_number and (is_double or not FLOAT_MAX < abs(value) < math.inf)

    return PlainValues(
        type,
        "a float" if is_double else "a float of 32 bits",
        fits,
        lambda value: is_double and value.__class__ is float,
    )


def _decimal(type: pa.DataType) -> PlainValues:
    return PlainValues(
        type,
        "a Decimal",
        lambda value: isinstance(value, Decimal | int) and not isinstance(value, bool),
        lambda value: False,
    )


def _string(type: pa.DataType) -> PlainValues:
    # A character beyond ASCII may be half of a surrogate pair, which is no text.
    return PlainValues(
        type,
        "a str",
        lambda value: isinstance(value, str),
        lambda value: value.__class__ is str and value.isascii(),
    )


def _binary(type: pa.DataType) -> PlainValues:
    return _of_class(type, bytes, "bytes")


def _date(type: pa.DataType) -> PlainValues:
    return PlainValues(
        type,
        "a date",
        lambda value: isinstance(value, date) and not isinstance(value, datetime),
        lambda value: value.__class__ is date,
    )


def _timestamp(type: pa.DataType) -> PlainValues:
    zoned = type.tz is not None
    return PlainValues(
        type,
        "a datetime with a time zone" if zoned else "a datetime without a time zone",
        lambda value: isinstance(value, datetime) and (value.tzinfo is not None) == zoned and not _is_cut(value),
        lambda value: value.__class__ is datetime and value.tzinfo is None and not zoned and not value.fold,
    )


def _is_cut(moment: datetime) -> bool:
    """Whether it has nanoseconds, as pandas' has, which Arrow would drop."""
    return bool(getattr(moment, "nanosecond", 0))


def _of_class(type: pa.DataType, cls: type[Any], expected: str) -> PlainValues:
    return PlainValues(type, expected, lambda value: isinstance(value, cls), lambda value: value.__class__ is cls)


def _is_micros(type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type)) and type.unit == "us"


_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], PlainValues]], ...] = (
    (pa.types.is_boolean, _boolean),
    (pa.types.is_signed_integer, _integer),
    (pa.types.is_float32, _floating),
    (pa.types.is_float64, _floating),
    (pa.types.is_decimal128, _decimal),
    (pa.types.is_string, _string),
    (pa.types.is_large_string, _string),
    (pa.types.is_binary, _binary),
    (pa.types.is_large_binary, _binary),
    (pa.types.is_date32, _date),
    (_is_micros, _timestamp),
)


# Nested types ------------------------------------------------------------------------------------------------------


def _nested(type: pa.DataType) -> PlainValues | None:
    if pa.types.is_map(type):
        return _of_parts(type, [type.key_type, type.item_type], _map)
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return _of_parts(type, [type.value_type], _list)
    if pa.types.is_struct(type):
        return _of_parts(type, [type.field(place).type for place in range(type.num_fields)], _struct)
    return None


Parts = Sequence[PlainValues]


def _of_parts(
    type: pa.DataType, inner: Sequence[pa.DataType], make: Callable[[pa.DataType, Parts], PlainValues]
) -> PlainValues | None:
    parts = [values for values in map(plain_values, inner) if values is not None]
    return make(type, parts) if len(parts) == len(inner) else None


def _list(type: pa.DataType, parts: Parts) -> PlainValues:
    (item,) = parts

    def fits(value: Any) -> bool:
        return isinstance(value, list | tuple) and all(map(_or_null(item), value))

    return PlainValues(type, f"a list, each item {item.expected}", fits, _never)


def _struct(type: pa.DataType, parts: Parts) -> PlainValues:
    fields = {type.field(place).name: _or_null(part) for place, part in enumerate(parts)}
    wanted = (f"{type.field(place).name}: {part.expected}" for place, part in enumerate(parts))

    def fits(value: Any) -> bool:
        is_whole = isinstance(value, Mapping) and value.keys() == fields.keys()
        return is_whole and all(test(value[name]) for name, test in fields.items())

    return PlainValues(type, f"a dict of {', '.join(wanted)}", fits, _never)


def _map(type: pa.DataType, parts: Parts) -> PlainValues:
    """Arrow takes a list of pairs as well, even if it has a key twice, which no map of Spark's has."""
    key, item = parts
    item_fits = _or_null(item)

    def fits_pair(pair: Any) -> bool:
        return isinstance(pair, tuple | list) and len(pair) == 2 and key.fits(pair[0]) and item_fits(pair[1])

    def fits(value: Any) -> bool:
        pairs = value.items() if isinstance(value, Mapping) else value
        is_right = isinstance(value, Mapping | list) and all(map(fits_pair, pairs))
        return is_right and len({_frozen(key) for key, _ in pairs}) == len(pairs)

    return PlainValues(type, f"a dict from {key.expected} to {item.expected}, no key twice", fits, _never)


def _frozen(key: Any) -> Any:
    """The key of a map in a form that has a hash."""
    if isinstance(key, Mapping):
        return frozenset((name, _frozen(value)) for name, value in key.items())
    return tuple(map(_frozen, key)) if isinstance(key, list | tuple) else key


def _or_null(values: PlainValues) -> Test:
    return lambda value: value is None or values.fits(value)


def _never(value: Any) -> bool:
    """Arrow gives a list back as a new list: a list that is in use must not be changed."""
    return False


_CONSTANT = frozenset({type(None), bool, int, float, str, bytes, Decimal, date, datetime})
"""Python's own classes whose values cannot change."""


def unwrapped(value: Any) -> Any:
    """A copy that no later change to the value reaches, with Python's values for Numpy's and Arrow's. Raises Misfit for
    a value that holds itself."""
    try:
        return value if type(value) in _CONSTANT else _unwrapped(value)
    except RecursionError as error:
        raise Misfit(f"{shown(value)} holds itself, or has too many levels of values within values") from error


def _unwrapped(value: Any) -> Any:
    if isinstance(value, list):
        return list(value if _CONSTANT.issuperset(map(type, value)) else map(_unwrapped, value))
    if isinstance(value, tuple):
        return tuple(value if _CONSTANT.issuperset(map(type, value)) else map(_unwrapped, value))
    if isinstance(value, Mapping):
        keys, parts = _unwrapped(tuple(value)), _unwrapped(tuple(value.values()))
        return dict(zip(keys, parts, strict=True))
    # Numpy's texts are Python's as well, and lose zeros at their end as Numpy's.
    if isinstance(value, np.generic | np.ndarray) and not isinstance(value, str | bytes):
        return _unwrapped(value.tolist()) if value.dtype == object else value.tolist()
    return value.as_py() if isinstance(value, pa.Scalar) else value


READ_ROWS = 4096
"""Rows converted to Python values at a time: as such they take many times the memory."""

Fields = Sequence[Any]
"""The values of a row, in the order of the schema."""


def python_columns(rows: pa.RecordBatch) -> list[list[Any]]:
    """The rows' values, column by column. Raises RowError for a value that has no Python form."""
    try:
        return [_python_values(column) for column in rows.columns]
    except UNREADABLE as error:
        bad = [
            (place, name)
            for place in range(rows.num_rows)
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
            if not _is_readable(column.slice(place, 1))
        ]
        place, name = bad[0]
        what = f"column {name} has a value that Python does not have, in the row ({row_text(rows, place)})"
        raise RowError(f"{what}. Have the function called with Arrow batches, per='batch'") from error


def _python_values(values: pa.Array) -> list[Any]:
    """The values as Python values, maps as dicts. Raises UNREADABLE for a value that has no Python form, such as a map
    with a key twice."""
    listed: list[Any] = values.to_pylist(maps_as_pydicts=_maps_as(values.type))
    return listed


def _maps_as(type: pa.DataType) -> Literal["strict"] | None:
    """What Arrow is told for a value with maps to get dicts. ``None``, by which lists are read many times faster, if
    there are no maps; and if keys of a map are lists or structs, which are no keys of a dict."""
    keys = list(_map_keys(type))
    return "strict" if keys and not any(map(pa.types.is_nested, keys)) else None


def _map_keys(type: pa.DataType) -> Iterator[pa.DataType]:
    """The types of the keys of all maps in it."""
    if pa.types.is_map(type):
        yield type.key_type
    if pa.types.is_nested(type):
        for place in range(type.num_fields):
            yield from _map_keys(type.field(place).type)


def _is_readable(value: pa.Array) -> bool:
    try:
        _python_values(value)
    except UNREADABLE:
        return False
    return True


class RowReader:
    """Reads rows of one schema, which has at least one column."""

    __slots__ = ("_make", "schema")

    def __init__(self, schema: pa.Schema, what: str) -> None:
        """what: how messages call a row."""
        self.schema = schema
        # A column that Python could not name is named after its place: _0, _1, ...
        make_type: Any = namedtuple  # mypy wants names that it can read
        self._make = make_type(what.title().replace(" ", ""), schema.names, rename=True)._make

    def read(self, rows: pa.RecordBatch) -> Iterator[Any]:
        """Each row as a named tuple. Raises RowError for a value that has no Python form."""
        for start in range(0, rows.num_rows, READ_ROWS):
            part = rows.slice(start, READ_ROWS)
            yield from map(self._make, zip(*python_columns(part), strict=True))


class PlainRows(RowReader):
    """Reads and writes rows of one schema."""

    __slots__ = ("_columns", "_names", "_what")

    def __init__(self, schema: pa.Schema, what: str) -> None:
        """what: how messages call a row. Raises ProtocolError for a type that :func:`plain_values` does not have."""
        super().__init__(schema, what)
        self._what = what
        self._names = schema.names
        self._columns = [_written_as(field) for field in schema]

    def fields(self, row: Any) -> Fields:
        """The values of a row that is a tuple, a list, or a mapping by column. Raises Misfit for anything else."""
        if isinstance(row, tuple | list):
            if len(row) != len(self._names):
                raise Misfit(f"the {self._what} {shown(row)} has {len(row)} values, not {self._wanted()}")
            return row
        if not isinstance(row, Mapping):
            raise Misfit(f"{shown(row)} is no {self._what}: that is a tuple or a dict of {self._wanted()}")
        if row.keys() != set(self._names):
            raise Misfit(f"the {self._what} {shown(row)} does not have just {self._wanted()}")
        return [row[name] for name in self._names]

    def copied(self, row: Any) -> Fields:
        """Like :meth:`fields`, but no later change to the row reaches them."""
        fields = self.fields(row)
        if _CONSTANT.issuperset(map(type, fields)):
            return tuple(fields)
        return [field if type(field) in _CONSTANT else unwrapped(field) for field in fields]

    def settled(self, row: Any) -> Any:
        """The named tuple that reading the row back would give. Raises Misfit."""
        fields = self.fields(row)
        try:
            return self._make(map(PlainValues.settled, self._columns, fields))
        except Misfit:
            self.written([fields])  # names the column in its error
            raise

    def written(self, rows: Sequence[Fields]) -> pa.RecordBatch:
        """Raises Misfit, which names the row, if a value does not fit its column."""
        columns = zip(*rows, strict=True) if rows else ((),) * len(self._names)
        arrays = []
        for name, values, column in zip(self._names, self._columns, columns, strict=True):
            try:
                arrays.append(values.array(column))
            except Misfit as misfit:
                raise Misfit(f"column {name} of the {self._what}: {misfit}", misfit.row) from misfit
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def fitted(self, rows: Any) -> pa.RecordBatch:
        """An Arrow batch or table as a batch of exactly this schema, which shares no memory with it.

        Columns may come in any order, and as another type of the same kind, if no value is lost. Raises Misfit.
        """
        if isinstance(rows, pa.Table):
            rows = (
                rows.combine_chunks().to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], rows.schema)
            )
        if not isinstance(rows, pa.RecordBatch):
            raise Misfit(f"{shown(rows)} is no pyarrow.RecordBatch or Table of {self._wanted()}")
        if not rows.schema.equals(self.schema):
            if sorted(rows.schema.names) != sorted(self._names):
                raise Misfit(f"the columns {', '.join(rows.schema.names)} are not just {self._wanted()}")
            columns = [self._cast(rows.column(field.name), field) for field in self.schema]
            rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return pa.concat_batches([rows, rows.slice(0, 0)])  # of two batches Arrow copies their rows, of one nothing

    def _cast(self, values: pa.Array, field: pa.Field) -> pa.Array:
        if not _may_be_cast(values.type, field.type):
            raise Misfit(f"column {field.name} of the {self._what} is {values.type}, and declared as {field.type}")
        try:
            cast = pc.cast(values, field.type)
        except pa.ArrowException as error:
            raise Misfit(f"column {field.name} of the {self._what} does not fit {field.type}: {error}") from error
        if pa.types.is_float32(field.type) and pa.types.is_float64(values.type):
            beyond = pc.and_(pc.is_inf(cast), pc.is_finite(values))
            if pc.any(beyond).as_py():
                value = values[beyond.index(True).as_py()]
                raise Misfit(f"column {field.name} of the {self._what}: {value} does not fit {field.type}")
        return cast

    def _wanted(self) -> str:
        return f"the {len(self._names)} columns {', '.join(self._names)}"


class OutputRows:
    """Rows that a function gives little by little, plain or Arrow's, collected into one batch."""

    __slots__ = ("_parts", "_plain", "_shape", "rows")

    def __init__(self, shape: PlainRows) -> None:
        self._shape = shape
        self._plain: list[Fields] = []
        """The last part, which may grow."""
        self._parts: list[list[Fields] | pa.RecordBatch] = [self._plain]
        self.rows = 0
        """How many rows there are."""

    def add(self, more: Any) -> None:
        """Add an Arrow batch or table, or any plain rows; ``None`` for no rows. Raises Misfit for anything else."""
        if more is None:
            return
        if isinstance(more, pa.RecordBatch | pa.Table):
            batch = self._shape.fitted(more)
            self._plain = []
            self._parts += [batch, self._plain]
            self.rows += batch.num_rows
        else:
            before = len(self._plain)
            self._plain.extend(map(self._shape.copied, more))
            self.rows += len(self._plain) - before

    def written(self) -> pa.RecordBatch:
        """All rows, in order. Raises Misfit, which names the row."""
        batches: list[pa.RecordBatch] = []
        done = 0
        for part in self._parts:
            try:
                batches.append(self._shape.written(part) if isinstance(part, list) else part)
            except Misfit as misfit:
                raise Misfit(str(misfit), done + misfit.row) from misfit
            done += len(part)
        return pa.concat_batches(batches)


def _written_as(field: pa.Field) -> PlainValues:
    values = plain_values(field.type)
    if values is None:
        raise ProtocolError(f"column {field.name!r} has no plain values: {field.type}")
    return values


_Test = Callable[[pa.DataType], bool]
_KINDS: Mapping[str, Sequence[_Test]] = {
    "integer": (pa.types.is_integer,),
    "float": (pa.types.is_floating,),
    "decimal": (pa.types.is_decimal,),
    "string": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "binary": (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
    "instant": (lambda type: pa.types.is_timestamp(type) and type.tz is not None,),
    "wall clock": (lambda type: pa.types.is_timestamp(type) and type.tz is None,),
}
_WIDER = {("integer", "float"), ("integer", "decimal")}


def _may_be_cast(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type stand for values of the other, if none is lost."""
    if found == wanted or pa.types.is_null(found):
        return True
    kinds = _kind(found), _kind(wanted)
    return kinds in _WIDER or (kinds[0] is not None and kinds[0] == kinds[1])


def _kind(type: pa.DataType) -> str | None:
    return next((kind for kind, tests in _KINDS.items() if any(test(type) for test in tests)), None)
