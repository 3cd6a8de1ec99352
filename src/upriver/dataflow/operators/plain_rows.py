"""Rows of one Arrow schema as named tuples of plain Python values, and what a user's function may give for a row."""

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from upriver.dataflow.operators.plain_values import Misfit, PlainValues, plain_values, shown
from upriver.errors import ProtocolError

READ_ROWS = 4096
"""Rows that are turned into Python values at a time: they take many times the memory."""

Fields = Sequence[Any]
"""The values of a row, in the order of the schema."""


class PlainRows:
    """Rows of one schema, which has a column at least."""

    __slots__ = ("_columns", "_make", "_names", "_what", "schema")

    def __init__(self, schema: pa.Schema, what: str) -> None:
        """what: to call a row by, in messages. Raises ProtocolError for a type that has no plain values."""
        self.schema = schema
        self._what = what
        self._names = schema.names
        # A column that Python could not name is named after its place: _0, _1, ...
        make_type: Any = namedtuple  # which mypy wants to be called with names that it can read
        self._make = make_type(what.title().replace(" ", ""), schema.names, rename=True)._make
        columns = {field.name: plain_values(field.type) for field in schema}
        if missing := [name for name, values in columns.items() if values is None]:
            raise ProtocolError(f"column {missing[0]} of a {what} has no plain values: {schema.field(missing[0]).type}")
        self._columns: Sequence[PlainValues] = [values for values in columns.values() if values is not None]

    def read(self, rows: pa.RecordBatch) -> Iterator[Any]:
        """Each row as a named tuple."""
        for start in range(0, rows.num_rows, READ_ROWS):
            columns = rows.slice(start, READ_ROWS).columns
            yield from map(self._make, zip(*(column.to_pylist() for column in columns), strict=True))

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
        if _kind(values.type) not in (_kind(field.type), "null"):
            raise Misfit(f"column {field.name} of the {self._what} is {values.type}, and declared as {field.type}")
        try:
            return pc.cast(values, field.type)
        except pa.ArrowException as error:
            raise Misfit(f"column {field.name} of the {self._what} does not fit {field.type}: {error}") from error

    def _wanted(self) -> str:
        return f"the {len(self._names)} columns {', '.join(self._names)}"


_KINDS = {
    "number": (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    "string": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "binary": (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
    "null": (pa.types.is_null,),
}


def _kind(type: pa.DataType) -> Any:
    """Types of one kind are cast to each other; any other type is a kind of its own."""
    if pa.types.is_timestamp(type):
        return "instant" if type.tz else "wall clock"
    return next((kind for kind, tests in _KINDS.items() if any(test(type) for test in tests)), type)
