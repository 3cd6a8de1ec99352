"""The order in which a stateful map gets the rows of a key, and the columns that carry it.

The order follows from data alone, wherever the rows were computed, and in whatever pieces they have come:

1. the row's epoch;
2. the place of its source among the map's sources;
3. of a table's rows: ``order_by``, then the task that wrote the row, then its place there. Of another map's rows: that
   map's key, by its hash64 and then by its values, and the number of the row among those that the function gave for
   the key in this epoch. Of a view's changes: their kinds, then their values.

A row that a map gives is of the epoch of the row that it was given for. So a map that feeds another one is called for
one epoch of a key at a time, also when many epochs are read at once. Its rows carry the columns below behind their own.
A map that sets rows aside is called so, too, unless it is called row by row: which rows fail together follows from data
alone.
The rows of a table carry their epoch. No function sees these columns.
"""

from collections.abc import Iterable

import pyarrow as pa

EPOCH_COLUMN = "upriver epoch"
"""The epoch of a row. The lake keeps it in merged runs."""
UPSTREAM_COLUMN = "upriver upstream"
"""The hash64 of the key of the map that gave the row."""
SEQUENCE_COLUMN = "upriver sequence"
"""The number of the row among those of that key in this epoch, from 0 on."""
ORDER_COLUMNS = frozenset({EPOCH_COLUMN, UPSTREAM_COLUMN, SEQUENCE_COLUMN})
EPOCH_FIELD = pa.field(EPOCH_COLUMN, pa.uint32())
GIVEN_FIELDS = (EPOCH_FIELD, pa.field(UPSTREAM_COLUMN, pa.uint64()), pa.field(SEQUENCE_COLUMN, pa.int64()))
"""Behind the columns of the rows that a map gives to another one."""


def dated_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a table, and each row's epoch."""
    return schema.append(EPOCH_FIELD)


def given_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a map's rows, and those of their order."""
    return pa.schema([*schema, *GIVEN_FIELDS])


def without_order(schema: pa.Schema) -> pa.Schema:
    """The columns that a function sees."""
    return pa.schema([field for field in schema if field.name not in ORDER_COLUMNS])


def has_order(names: Iterable[str]) -> bool:
    """Whether rows with these columns carry their epoch."""
    return EPOCH_COLUMN in names
