"""Declares a stateful map. A wrong declaration is refused here, before any row comes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

from upriver.arguments import as_spelled, at_least
from upriver.engine.operators.map_rows import CHANGE_COLUMN, SOURCE_COLUMN
from upriver.engine.operators.plain_rows import Misfit, plain_values, shown
from upriver.engine.plain_state import KINDS, decode_state, encode_state
from upriver.errors import DeclarationError
from upriver.hashing import check_hashable
from upriver.plan.plan import Keep, MapSource, Per, StatefulMapOp, TableSpec
from upriver.plan.retention import retain_of
from upriver.plan.row_order import ORDER_COLUMNS
from upriver.plan.types import same_type, spark_name

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
        what = str(error) if isinstance(error, RecursionError) else f"it holds a {error}"
        raise Misfit(
            f"the state {shown(state)} cannot be kept as it is: {what}. Keep plain values ({KINDS}), or declare the "
            "columns of the state with state=..."
        ) from error


@dataclass(frozen=True, slots=True)
class Readable:
    """What a stateful map may read. what: for messages, such as ``the table``. upstream: the key of the map that it is;
    ``()``: it is none. changes: its rows may be taken back, so a map reads its changes."""

    what: str
    name: str
    schema: pa.Schema
    upstream: tuple[str, ...] = ()
    changes: bool = False

    @classmethod
    def of_table(cls, table: TableSpec) -> "Readable":
        return cls("the table", table.name, table.schema, changes=bool(table.primary_key))

    def missing(self, column: str) -> str:
        """That there is no such column."""
        return f"{self.what} {self.name!r} has no column {column!r}; it has {', '.join(self.schema.names)}"


@dataclass(frozen=True, slots=True)
class MapInputs:
    """The sources of a stateful map that is declared, in order, each with the columns that are the map's key.

    tells_source: as :class:`StatefulMapOp` has it.
    """

    sources: tuple[tuple[Readable, tuple[str, ...]], ...]
    tells_source: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """The key's columns, as the first source names them."""
        return self.sources[0][1]

    def checked(self, about: str) -> "MapInputs":
        """With the key's columns in the spelling of the sources. Raises DeclarationError, KeyTypeError."""
        checked = []
        for source, key in self.sources:
            spelled = as_spelled(key, source.schema.names)
            _check_key(about, source, spelled)
            checked.append((source, spelled))
        self._check_types(about, checked)
        told = [CHANGE_COLUMN] * (self.tells_source or checked[0][0].changes) + [SOURCE_COLUMN] * self.tells_source
        for source, _ in checked:
            taken = [name for name in source.schema.names if name.lower() in told]
            if taken:
                raise DeclarationError(
                    f"{about}: {source.what} {source.name!r} has a column {taken[0]!r}, and its rows get one of this "
                    "name: read a view of it that names the column otherwise"
                )
        return replace(self, sources=tuple(checked))

    @staticmethod
    def _check_types(about: str, sources: Sequence[tuple[Readable, tuple[str, ...]]]) -> None:
        first, of_first = sources[0]
        types: dict[str, tuple[str, pa.Field]] = {}
        for source, key in sources:
            if len(key) != len(of_first):
                raise DeclarationError(
                    f"{about}: its key has {len(of_first)} columns of {first.name!r}, and {len(key)} of {source.name!r}"
                )
            for own, other in zip(of_first, key, strict=True):
                one, another = first.schema.field(own).type, source.schema.field(other).type
                if not same_type(one, another):
                    raise DeclarationError(
                        f"{about}: its key is {first.name}.{own}, {spark_name(one)}, and {source.name}.{other}, "
                        f"{spark_name(another)}: read a view that casts one of them"
                    )
            for field in source.schema:
                where, known = types.setdefault(field.name.lower(), (source.name, field))
                if not same_type(known.type, field.type) or known.name != field.name:
                    raise DeclarationError(
                        f"{about}: {where}.{known.name} is {spark_name(known.type)}, and {source.name}.{field.name} is "
                        f"{spark_name(field.type)}: its rows have the columns of all sources, those of one name with "
                        "one type. Read a view that casts or renames one of them"
                    )


def stateful_map_op(
    name: str,
    inputs: MapInputs,
    function: bytes,
    schema: pa.Schema,
    state: pa.Schema = ANY_STATE,
    *,
    per: str = Per.ROW,
    definition: str = "",
    on_bad_row: str = "fail",
) -> StatefulMapOp:
    """The operator of the view ``name``. docs/guide/stateful-maps.md says what the function takes and gives.

    function: pickled by cloudpickle; of an :class:`AnyState`, if the state is not declared. schema: of the rows that
    the function gives, which follow the key's columns. per: ``"row"``, ``"key"`` or ``"batch"``. definition: as
    :class:`StatefulMapOp` has it. on_bad_row: ``"fail"`` or ``"set_aside"``.

    Raises DeclarationError, KeyTypeError.
    """
    about = f"stateful map {name!r}"
    if per not in list(Per):
        raise DeclarationError(f"{about}: per={per!r}; it is one of {', '.join(map(repr, map(str, Per)))}")
    if on_bad_row not in ("fail", "set_aside"):
        raise DeclarationError(f"{about}: on_bad_row={on_bad_row!r}; it is 'fail' or 'set_aside'")
    if per == Per.BATCH and state is ANY_STATE:
        raise DeclarationError(f"{about}: per='batch' needs a state with columns: declare state=...")
    inputs = inputs.checked(about)
    first, key = inputs.sources[0]
    keys = [pa.field(column, first.schema.field(column).type) for column in key]
    _check_columns(about, "schema", schema, taken=key)
    _check_columns(about, "state", state)
    output = pa.schema([*keys, *(pa.field(field.name, field.type) for field in schema)])
    columns = pa.schema([pa.field(field.name, field.type) for field in state])
    sources = tuple(MapSource(one.name, by, one.upstream, one.changes) for one, by in inputs.sources)
    return StatefulMapOp(
        key,
        function,
        Per(per),
        columns,
        output,
        sources,
        inputs.tells_source,
        name=name,
        definition=definition,
        sets_aside=on_bad_row == "set_aside",
    )


def keep_of(about: str, schema: pa.Schema, given: Any) -> Keep | None:
    """Which rows of a stateful map stay, as the user declares it: ``None`` for all, a number of rows of each key, or a
    column and an interval. schema: of the map's rows. Raises DeclarationError."""
    if given is None:
        return None
    if isinstance(given, tuple | list):
        retain = retain_of(f"{about}: keep={given!r}", schema, given)
        if retain is None or retain.interval is None:
            raise DeclarationError(f'{about}: keep={given!r} has no interval; give one, such as keep=("at", "30 days")')
        return Keep(None, retain.column, retain.interval)
    if isinstance(given, str | timedelta):
        raise DeclarationError(f'{about}: keep={given!r} names no column; give one, such as keep=("at", "30 days")')
    return Keep(at_least(f"{about}: keep", given, 0))


def in_order(source: TableSpec, order_by: Sequence[str], about: str) -> TableSpec:
    """The table with ``order_by`` as the order of a key's rows. about: what needs this order, for the message.

    A table has one order. Raises DeclarationError if it has another one.
    """
    if missing := [column for column in order_by if column not in source.schema.names]:
        raise DeclarationError(f"{about}: order_by: {Readable.of_table(source).missing(missing[0])}")
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


def _check_key(about: str, source: Readable, key: Sequence[str]) -> None:
    if not key:
        raise DeclarationError(f"{about}: its key has no column")
    if len(set(key)) < len(key):
        raise DeclarationError(f"{about}: its key names a column twice: {', '.join(key)}")
    for column in key:
        if column not in source.schema.names:
            raise DeclarationError(f"{about}: key: {source.missing(column)}")
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
        if field.name.lower() in ORDER_COLUMNS:
            raise DeclarationError(f"{about}: {what}: the column name {field.name!r} is reserved; rename it")
        if lower.count(field.name.lower()) > 1:
            raise DeclarationError(f"{about}: {what}: two columns differ at most in case: {field.name!r}")
        if plain_values(field.type) is None:
            raise DeclarationError(
                f"{about}: {what}: column {field.name!r} is {field.type}, which is not supported; supported are "
                "booleans, signed integers, floats, decimals, strings, binaries, dates, timestamps in microseconds, "
                "and lists, structs and maps of them"
            )
