"""Users' keys as Arrow columns of exactly the view's key types.

Nothing is guessed: a value of another kind than the column's, or that the column cannot hold exactly, is refused
(:mod:`.key_values`). The error names the view, the column, and both types. A value may be widened if it stays exact:
integers of any size, an integer for a decimal or a floating column, any form of string.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from upriver.client.key_values import KeyPlace, shown
from upriver.errors import KeyTypeError
from upriver.hashing import Hashes
from upriver.plan.schemas import EVERYTHING_KEY
from upriver.state.indexes import first_equal
from upriver.state.vectors import is_any_twice

Keys: TypeAlias = Iterable[Any] | pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table
"""Values for a key of one column; tuples, or dicts by column name, for any key; or Arrow data. ``None`` is the null
key."""

KeyColumns: TypeAlias = Sequence[pa.Array]
"""An array for each column of the key, all of one length."""

_Column: TypeAlias = Sequence[Any] | pa.Array | pa.ChunkedArray


def key_columns(view: str, key_schema: pa.Schema, keys: Keys) -> KeyColumns:
    """``keys`` as columns of ``key_schema``, in their order. Raises KeyTypeError."""
    columns = _split(view, key_schema, keys)
    return [KeyPlace(view, field).column(column) for field, column in zip(key_schema, columns, strict=True)]


def key_batch(view: str, key_schema: pa.Schema, keys: Keys) -> pa.RecordBatch:
    """As :func:`key_columns`, as a batch. Arrow releases Python's lock to make one, so with many threads each waits for
    its turn once more."""
    return pa.RecordBatch.from_arrays(key_columns(view, key_schema, keys), schema=key_schema)


def distinct_keys(keys: pa.RecordBatch, hash64: Hashes) -> tuple[pa.RecordBatch, Hashes]:
    """Each key once, with its hash, in the order of first appearance. hash64: one per row of ``keys``."""
    if not is_any_twice(hash64):
        return keys, hash64
    rows = np.unique(first_equal(hash64, keys.columns))
    return keys.take(pa.array(rows)), hash64[rows]


# Keys to columns


def _split(view: str, key_schema: pa.Schema, keys: Keys) -> Sequence[_Column]:
    if isinstance(keys, np.ndarray) and keys.dtype != object and keys.ndim == 1:
        keys = _of_numpy(view, key_schema, keys)
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        if len(key_schema) > 1:
            raise _not_the_key(view, key_schema, "one array")
        return [keys]
    if isinstance(keys, pa.RecordBatch | pa.Table):
        if sorted(keys.schema.names) != sorted(key_schema.names):
            raise _not_the_key(view, key_schema, f"a table with the columns {', '.join(keys.schema.names)}")
        return [keys.column(name) for name in key_schema.names]
    is_frame = hasattr(type(keys), "columns")  # of pandas or polars: iterating over it does not give its rows
    if isinstance(keys, str | bytes | Mapping) or is_frame or not isinstance(keys, Iterable):
        raise _not_the_key(view, key_schema, f"one {type(keys).__name__}, where a list of keys belongs")
    return _split_values(view, key_schema, list(keys))


def _split_values(view: str, key_schema: pa.Schema, values: list[Any]) -> Sequence[_Column]:
    kinds = set(map(type, values))
    if key_schema == EVERYTHING_KEY:
        return _split_empty(view, key_schema, values)
    if len(key_schema) == 1:
        return [[_only_part(view, key_schema, value) if isinstance(value, dict) else value for value in values]]
    if kinds and all(issubclass(kind, dict) for kind in kinds):
        return _split_dicts(view, key_schema, values)
    for kind in kinds:
        if not issubclass(kind, tuple | list):
            raise _not_the_key(view, key_schema, f"a {kind.__name__}, where a tuple belongs")
    for width in set(map(len, values)):
        if width != len(key_schema):
            raise _not_the_key(view, key_schema, f"a tuple of {width}")
    return list(zip(*values, strict=True)) or [()] * len(key_schema)


def _of_numpy(view: str, key_schema: pa.Schema, keys: np.ndarray[Any, Any]) -> pa.Array:
    try:
        return pa.array(keys)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise _not_the_key(view, key_schema, f"an array of numpy's {keys.dtype}: {error}") from error


def _only_part(view: str, key_schema: pa.Schema, value: dict[Any, Any]) -> Any:
    """The value of a key of one column, given as a dict by column name, or as the struct that it is."""
    field = key_schema.field(0)
    if value.keys() == {field.name}:
        return value[field.name]
    if pa.types.is_struct(field.type):
        return value
    raise _not_the_key(view, key_schema, f"a dict of {', '.join(map(str, value))}")


def _split_empty(view: str, key_schema: pa.Schema, values: list[Any]) -> Sequence[_Column]:
    """The key without columns: ``()``, or an empty dict, each time."""
    for value in values:
        if not isinstance(value, tuple | list | dict) or value:
            raise _not_the_key(view, key_schema, shown(value))
    return [[0] * len(values)]


def _split_dicts(view: str, key_schema: pa.Schema, values: list[Any]) -> Sequence[_Column]:
    for value in values:
        if value.keys() != set(key_schema.names):
            raise _not_the_key(view, key_schema, f"a dict of {', '.join(map(str, value))}")
    return [[value[name] for value in values] for name in key_schema.names]


def _not_the_key(view: str, key_schema: pa.Schema, given: str) -> KeyTypeError:
    columns = ", ".join(f"{field.name} {field.type}" for field in key_schema) if key_schema != EVERYTHING_KEY else ""
    return KeyTypeError(f"view {view!r}: its key is ({columns}); given was {given}")
