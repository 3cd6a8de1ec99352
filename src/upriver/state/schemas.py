"""Rows of an older schema of a table, in a newer one: a column that they lack is null, and types only become wider.

A run keeps the schema with which it was written. So does a file of rows that were set aside. A reader gives all rows in
the schema that it was asked for (lake.rows_in_the_schema_asked_for in docs/internals/lake.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from upriver.errors import LakeError
from upriver.plan.types import is_wider, spark_name


def can_become(old: pa.Schema, new: pa.Schema) -> bool:
    """Whether rows of ``old`` can be given in ``new``: no common column has a narrower or another type there."""
    common = ((old.field(field.name).type, field.type) for field in new if field.name in old.names)
    return all(before == now or is_wider(now, before) for before, now in common)


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """How rows of one schema become rows of another. places: for each column of ``schema``, its place in the rows that
    come; ``None`` if they lack it."""

    schema: pa.Schema
    places: tuple[int | None, ...]

    @classmethod
    def between(cls, old: pa.Schema, new: pa.Schema) -> Self:
        """For schemas that :func:`can_become` allows."""
        places = {name: place for place, name in enumerate(old.names)}
        return cls(new, tuple(places.get(name) for name in new.names))

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows in the other schema. Columns of an unchanged type are not copied. Raises LakeError for a value that
        the wider type cannot hold: a DATE that is later than every TIMESTAMP_NTZ."""
        columns = [self._column(rows, place, field) for place, field in zip(self.places, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _column(self, rows: pa.RecordBatch, place: int | None, field: pa.Field) -> pa.Array:
        if place is None:
            return pa.nulls(rows.num_rows, field.type)
        column = rows.column(place)
        try:
            return column if column.type == field.type else column.cast(field.type)
        except pa.ArrowInvalid as error:
            raise LakeError(
                f"column {field.name!r}: a {spark_name(column.type)} cannot be {spark_name(field.type)} ({error})"
            ) from error


def places_of(columns: Sequence[str], schema: pa.Schema) -> list[int]:
    """The places in a schema of those columns that it has, in their order."""
    return [schema.get_field_index(name) for name in columns if name in schema.names]
