"""Declares a stateful map. A wrong declaration is refused here, before any row comes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from upriver.arguments import as_spelled
from upriver.engine.operators.plain_rows import Misfit, plain_values, shown
from upriver.engine.plain_state import KINDS, decode_state, encode_state
from upriver.errors import DeclarationError
from upriver.hashing import check_hashable
from upriver.plan.plan import Per, StatefulMapOp, TableSpec

ANY_STATE = pa.schema([("state", pa.binary())])
"""The schema of a state that is not declared; :class:`AnyState` makes such states."""


@dataclass(frozen=True, slots=True)
class AnyState:
    """A function per row or per key that keeps any plain value, for a state of ``ANY_STATE``."""

    function: Callable[[Any, Any, Any], Any]

    def __call__(self, key: Any, rows: Any, state: Any) -> Any:
        answer = self.function(key, rows, None if state is None else decode_state(state.state))
        if not isinstance(answer, tuple) or len(answer) != 2:
            return answer  # the caller reports what is wrong with it
        output, kept = answer
        return output, None if kept is None else (_encoded(kept),)


def _encoded(state: Any) -> bytes:
    try:
        return encode_state(state)
    except (TypeError, RecursionError) as error:
        what = "it holds itself" if isinstance(error, RecursionError) else f"it holds a {error}"
        raise Misfit(
            f"the state {shown(state)} cannot be kept as it is: {what}. Keep plain values ({KINDS}), or declare the "
            "columns of the state with state=..."
        ) from error


def stateful_map_op(
    name: str,
    source: TableSpec,
    key: Sequence[str],
    function: bytes,
    schema: pa.Schema,
    state: pa.Schema = ANY_STATE,
    *,
    per: str = Per.ROW,
    order_by: Sequence[str] = (),
) -> StatefulMapOp:
    """The operator of the view ``name``. docs/guide/stateful-maps.md says what the function takes and gives.

    key: columns of the source by which the function is called and the view is looked up. function: pickled by
    cloudpickle; of an :class:`AnyState`, if the state is not declared. schema: of the rows that the function gives,
    which follow the key's columns. per: ``"row"``, ``"key"`` or ``"batch"``. order_by: the order in which the function
    needs a key's rows, which must be the source's (see :func:`in_order`).

    Raises DeclarationError, KeyTypeError.
    """
    about = f"stateful map {name!r}"
    if source.primary_key:
        raise DeclarationError(
            f"{about}: {source.name!r} has a primary key, so its rows may change; a function cannot take back what it "
            "has made of a row: declare the changes as a table without a primary key"
        )
    if per not in list(Per):
        raise DeclarationError(f"{about}: per={per!r}; it is one of {', '.join(map(repr, map(str, Per)))}")
    if per == Per.BATCH and state is ANY_STATE:
        raise DeclarationError(f"{about}: per='batch' needs a state with columns: declare state=...")
    key, order_by = as_spelled(key, source.schema.names), as_spelled(order_by, source.schema.names)
    _check_key(about, source, key)
    keys = [pa.field(column, source.schema.field(column).type) for column in key]
    _check_columns(about, "schema", schema, taken=key)
    _check_columns(about, "state", state)
    if in_order(source, order_by, about) != source:
        raise DeclarationError(f"{about}: declare the table {source.name!r} with order_by={list(order_by)}")
    output = pa.schema([*keys, *(pa.field(field.name, field.type) for field in schema)])
    columns = pa.schema([pa.field(field.name, field.type) for field in state])
    return StatefulMapOp(tuple(key), function, Per(per), columns, output)


def in_order(source: TableSpec, order_by: Sequence[str], about: str) -> TableSpec:
    """The table with ``order_by`` as the order of a key's rows. about: what needs this order, for the message.

    A table has one order. Raises DeclarationError if it has another one.
    """
    if missing := [column for column in order_by if column not in source.schema.names]:
        raise DeclarationError(f"{about}: order_by: {_no_column(source, missing[0])}")
    if source.order_by[: len(order_by)] == tuple(order_by):
        return source
    if source.order_by:
        raise DeclarationError(
            f"{about}: order_by={list(order_by)}, but the table {source.name!r} is ordered by {list(source.order_by)}, "
            "and has one order for all: declare the one that both need"
        )
    ordered = replace(source, order_by=tuple(order_by))
    check_order(about, ordered)
    return ordered


def check_order(about: str, table: TableSpec) -> None:
    """Raise DeclarationError for a column of ``order_by`` whose values have no order. about: what names the column."""
    for column in table.order_by:
        type = table.schema.field(column).type
        if pa.types.is_nested(type) or pa.types.is_interval(type):
            raise DeclarationError(
                f"{about}: order_by names {column!r}, and {type} has no order; make a column of the part that has one"
            )


def _check_key(about: str, source: TableSpec, key: Sequence[str]) -> None:
    if not key:
        raise DeclarationError(f"{about}: its key has no column")
    if len(set(key)) < len(key):
        raise DeclarationError(f"{about}: its key names a column twice: {', '.join(key)}")
    for column in key:
        if column not in source.schema.names:
            raise DeclarationError(f"{about}: key: {_no_column(source, column)}")
        check_hashable(source.schema.field(column).type, column)


def _check_columns(about: str, what: str, schema: pa.Schema, taken: Sequence[str] = ()) -> None:
    """taken: names of columns that exist already."""
    if not len(schema):
        raise DeclarationError(f"{about}: its {what} has no column")
    lower = [name.lower() for name in schema.names]
    for field in schema:
        if field.name.lower() in [name.lower() for name in taken]:
            raise DeclarationError(
                f"{about}: {what}: the column {field.name!r} is the key's, which stands before the others by itself: "
                "leave it out, and out of the rows that the function gives"
            )
        if lower.count(field.name.lower()) > 1:
            raise DeclarationError(f"{about}: {what}: two columns differ at most in case: {field.name!r}")
        if plain_values(field.type) is None:
            raise DeclarationError(
                f"{about}: {what}: column {field.name!r} is {field.type}, which is not supported; supported are "
                "booleans, signed integers, floats, decimals, strings, binaries, dates, timestamps in microseconds, "
                "and lists, structs and maps of them"
            )


def _no_column(source: TableSpec, column: str) -> str:
    return f"the table {source.name!r} has no column {column!r}; it has {', '.join(source.schema.names)}"
