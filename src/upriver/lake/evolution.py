"""What may change in a table's declaration from one start on a root to the next, and what its columns are then.

The lake keeps every column that a table has ever had, in its widest type. A start may declare more columns and wider
types: these become the table's. It may declare fewer columns: the lake keeps them, and new rows have null there. The
key, the primary key, ``order_by`` and ``deletes`` stay. A column by which the lake keeps rows cannot change its type,
because that would change its hash64.
"""

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from upriver.errors import DeclarationError
from upriver.plan.plan import TableSpec
from upriver.plan.types import is_date, is_wider, spark_name

_WIDENINGS = (
    "TINYINT, SMALLINT, INT, BIGINT; FLOAT, DOUBLE; DATE, TIMESTAMP_NTZ; a DECIMAL, one with no fewer digits before "
    "and behind its point"
)


def evolved(kept: TableSpec, declared: TableSpec, indexes: Iterable[tuple[str, ...]], root: str) -> TableSpec:
    """The table with all columns of both, in the order of ``kept``, then of ``declared``; ``kept`` if that is the same.

    indexes: by which the lake keeps the table, its key and its primary key among them. root: for messages. Raises
    DeclarationError, which names the table, the column and both types, and says what to do.
    """
    _check_names(kept, declared, root)
    by_index = {column: index for index in (*indexes, kept.primary_key, kept.key) for column in index}
    names = set(kept.schema.names)
    fields = [_evolved(field, declared, by_index.get(field.name), root) for field in kept.schema]
    fields += [field for field in declared.schema if field.name not in names]
    schema = pa.schema(fields)
    if schema.equals(kept.schema) and declared.deletes == kept.deletes:
        return kept
    return replace(kept, schema=schema, deletes=declared.deletes, deletes_sql=declared.deletes_sql)


def _check_names(kept: TableSpec, declared: TableSpec, root: str) -> None:
    """The names that a declaration gives to columns, and those of the columns."""
    for what in ("key", "order_by", "primary_key", "deletes"):
        before, now = getattr(kept, what), getattr(declared, what)
        if before != now and not (what == "deletes" and _is_same_condition(kept, declared)):
            raise DeclarationError(
                f"table {kept.name!r} is kept in {root} with {what} {before}, not {now}; declare it as it is kept, or "
                f"start on another root"
            )
    for column in (*kept.key, *kept.primary_key, *kept.order_by):
        if column not in declared.schema.names:
            type = spark_name(kept.schema.field(column).type)
            raise DeclarationError(
                f"table {kept.name!r}: the DataFrame lacks column {column!r}, which is {type} in {root}, and by which "
                f"its rows are kept or ordered. Give the column, or start on another root"
            )
    spelled = {name.lower(): name for name in kept.schema.names}
    for name in declared.schema.names:
        if (before := spelled.get(name.lower(), name)) != name:
            raise DeclarationError(
                f"table {kept.name!r}: column {name!r} is called {before!r} in {root}, which is the same name in SQL. "
                f"Rename it to {before!r}, or start on another root"
            )


def _is_same_condition(kept: TableSpec, declared: TableSpec) -> bool:
    """Whether both delete by one condition in SQL, which means something else for columns of other types."""
    return kept.deletes_sql is not None and kept.deletes_sql == declared.deletes_sql


def _evolved(field: pa.Field, declared: TableSpec, index: tuple[str, ...] | None, root: str) -> pa.Field:
    """A kept column as it is from now on. index: by which the lake keeps rows in the order of the column's hash."""
    if field.name not in declared.schema.names:
        return field.with_nullable(True)
    now = declared.schema.field(field.name)
    if now.type == field.type:
        return now if now.nullable else field
    old, new = _type_names(field.type, now.type)
    about = f"table {declared.name!r}: column {field.name!r} is {old} in {root} and {new} in the DataFrame"
    way_out = f"CAST it to {old} in the DataFrame that you give to app.table(), or start on another root"
    if not is_wider(now.type, field.type):
        raise DeclarationError(f"{about}. A column may only get a wider type, of the same row: {_WIDENINGS}. {way_out}")
    if index is not None:
        raise DeclarationError(
            f"{about}. The lake keeps the table by ({', '.join(index)}), in the order of a hash that depends on the "
            f"type, so the type of this column is fixed. {way_out}; views may CAST it to {new}"
        )
    if declared.retain is not None and declared.retain.column == field.name and is_date(field.type):
        raise DeclarationError(f"{about}. Its days say how long rows are retained, so its type is fixed. {way_out}")
    return now


def _type_names(old: pa.DataType, new: pa.DataType) -> tuple[str, str]:
    """Spark's names of two types; Arrow's if those are the same, as of two structs."""
    names = spark_name(old), spark_name(new)
    return names if names[0] != names[1] else (str(old), str(new))
