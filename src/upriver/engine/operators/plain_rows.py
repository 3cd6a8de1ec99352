"""Rows of one Arrow schema as named tuples of plain Python values, and what a user's function may give for a row."""

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from upriver.engine.operators.plain_values import Misfit, PlainValues, plain_values, shown
from upriver.engine.row_text import first_unreadable, row_text
from upriver.errors import ProtocolError, RowError

READ_ROWS = 4096
"""Rows that are turned into Python values at a time: they take many times the memory."""

Fields = Sequence[Any]
"""The values of a row, in the order of the schema."""


def python_columns(rows: pa.RecordBatch) -> list[list[Any]]:
    """The rows' values, column by column. Raises RowError for a row with a value that Python does not have."""
    try:
        return [column.to_pylist() for column in rows.columns]
    except (ValueError, OverflowError, KeyError, pa.ArrowException) as error:
        bad = [
            (place, name)
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
            if (place := first_unreadable(column)) is not None
        ]
        place, name = min(bad, key=itemgetter(0))
        what = f"column {name} has a value that Python does not have, in the row ({row_text(rows, place)})"
        raise RowError(f"{what}. Have the function called with Arrow batches, per='batch'") from error


class RowReader:
    """Reads rows of one schema, which has a column at least."""

    __slots__ = ("_make", "schema")

    def __init__(self, schema: pa.Schema, what: str) -> None:
        """what: to call a row by."""
        self.schema = schema
        # A column that Python could not name is named after its place: _0, _1, ...
        make_type: Any = namedtuple  # which mypy wants to be called with names that it can read
        self._make = make_type(what.title().replace(" ", ""), schema.names, rename=True)._make

    def read(self, rows: pa.RecordBatch) -> Iterator[Any]:
        """Each row as a named tuple. Raises RowError for a row with a value that Python does not have."""
        for start in range(0, rows.num_rows, READ_ROWS):
            part = rows.slice(start, READ_ROWS)
            yield from map(self._make, zip(*python_columns(part), strict=True))


class PlainRows(RowReader):
    """Reads and writes rows of one schema."""

    __slots__ = ("_columns", "_names", "_what")

    def __init__(self, schema: pa.Schema, what: str) -> None:
        """what: to call a row by. Raises ProtocolError for a type that :func:`plain_values` does not have."""
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

    def settled(self, row: Any) -> Any:
        """The named tuple that reading the row back would give. Raises Misfit."""
        fields = self.fields(row)
        try:
            return self._make(map(PlainValues.settled, self._columns, fields))
        except Misfit:
            self.written([fields])  # says which column it is
            raise

    def written(self, rows: Sequence[Fields]) -> pa.RecordBatch:
        """Raises Misfit, which tells the row, if a value does not fit its column."""
        columns = zip(*rows, strict=True) if rows else ((),) * len(self._names)
        arrays = []
        for name, values, column in zip(self._names, self._columns, columns, strict=True):
            try:
                arrays.append(values.array(column))
            except Misfit as misfit:
                raise Misfit(f"column {name} of the {self._what}: {misfit}", misfit.row) from misfit
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def fitted(self, rows: Any) -> pa.RecordBatch:
        """An Arrow batch or table as a batch of just this schema.

        Columns may come in any order, and as another type of the same kind, as long as no value is lost.
        Raises Misfit.
        """
        if isinstance(rows, pa.Table):
            rows = (
                rows.combine_chunks().to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], rows.schema)
            )
        if not isinstance(rows, pa.RecordBatch):
            raise Misfit(f"{shown(rows)} is no pyarrow.RecordBatch or Table of {self._wanted()}")
        if rows.schema.equals(self.schema):
            return rows
        if sorted(rows.schema.names) != sorted(self._names):
            raise Misfit(f"the columns {', '.join(rows.schema.names)} are not just {self._wanted()}")
        columns = [self._cast(rows.column(field.name), field) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _cast(self, values: pa.Array, field: pa.Field) -> pa.Array:
        if not _may_be_cast(values.type, field.type):
            raise Misfit(f"column {field.name} of the {self._what} is {values.type}, and declared as {field.type}")
        try:
            return pc.cast(values, field.type)
        except pa.ArrowException as error:
            raise Misfit(f"column {field.name} of the {self._what} does not fit {field.type}: {error}") from error

    def _wanted(self) -> str:
        return f"the {len(self._names)} columns {', '.join(self._names)}"


class Output:
    """Rows that are given out little by little, plain ones or Arrow's, on their way into one batch."""

    __slots__ = ("_parts", "_plain", "_shape", "rows")

    def __init__(self, shape: PlainRows) -> None:
        self._shape = shape
        self._plain: list[Fields] = []
        """The last of the parts, which may grow."""
        self._parts: list[list[Fields] | pa.RecordBatch] = [self._plain]
        self.rows = 0
        """How many there are."""

    def add(self, more: Any) -> None:
        """An Arrow batch or table, or any plain rows; ``None`` for no rows. Raises Misfit for what is no row."""
        if more is None:
            return
        if isinstance(more, pa.RecordBatch | pa.Table):
            batch = self._shape.fitted(more)
            self._plain = []
            self._parts += [batch, self._plain]
            self.rows += batch.num_rows
        else:
            before = len(self._plain)
            self._plain.extend(map(self._shape.fields, more))
            self.rows += len(self._plain) - before

    def written(self) -> pa.RecordBatch:
        """All rows, in order. Raises Misfit, which tells the row."""
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
    """Whether values of one type stand for such of the other, as long as none is lost."""
    if found == wanted or pa.types.is_null(found):
        return True
    kinds = _kind(found), _kind(wanted)
    return kinds in _WIDER or (kinds[0] is not None and kinds[0] == kinds[1])


def _kind(type: pa.DataType) -> str | None:
    return next((kind for kind, tests in _KINDS.items() if any(test(type) for test in tests)), None)
