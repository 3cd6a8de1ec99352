"""A user's functions on their way to the workers, and the columns that go with them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from upriver.engine.stateful import ANY_STATE, AnyState, MapInputs, stateful_map_op
from upriver.errors import DeclarationError
from upriver.plan.plan import Per, StatefulMapOp
from upriver.spark.definitions import definition_of
from upriver.spark.schema import in_arrow

ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    Per.ROW: ("key", "row", "state"),
    Per.KEY: ("key", "rows", "state"),
    Per.BATCH: ("keys", "rows", "states"),
}
"""The arguments of a function, in order."""

Columns: TypeAlias = str | StructType | pa.Schema
"""Columns as users declare them: in Spark's DDL, ``"trips INT, last TIMESTAMP"``, or as a schema."""


def declare_stateful_map(
    name: str,
    inputs: MapInputs,
    function: Callable[..., Any],
    schema: Columns,
    state: Columns | None = None,
    *,
    per: str = Per.ROW,
    version: str | int | None = None,
    on_bad_row: str = "fail",
    timezone: str,
) -> StatefulMapOp:
    """:func:`stateful_map_op` from a user's declaration. state: ``None`` for any plain value. version: in place of the
    function's code, says whether it is another one.

    timezone: the session's, which must run if columns are in DDL. Raises DeclarationError, KeyTypeError.
    """
    about = f"stateful map {name!r}"
    if not callable(function):
        raise DeclarationError(f"{about}: {function!r} is no function")
    check_returns(function, f"{about}: its function")
    check_arguments(function, per, about)
    rows = declared_columns(schema, f"{about}: schema", timezone)
    if state is None:
        sent, kept = pickled(AnyState(function), about), ANY_STATE
    else:
        sent, kept = pickled(function, about), declared_columns(state, f"{about}: state", timezone)
    if version is not None and (isinstance(version, bool) or not isinstance(version, str | int)):
        raise DeclarationError(f"{about}: version={version!r}: give a text or a whole number")
    definition = definition_of(function, version)
    return stateful_map_op(name, inputs, sent, rows, kept, per=per, definition=definition, on_bad_row=on_bad_row)


def check_arguments(function: Callable[..., Any], per: str, about: str) -> None:
    """Raise DeclarationError if the function cannot be called as ``per`` says."""
    wanted = ARGUMENTS.get(per) if isinstance(per, str) else None
    if wanted is not None:  # another one is refused where it is read
        check_call(function, wanted, f"{about}: its function", f"with per={str(per)!r} it is called")


_ANSWERS_LATER: Mapping[str, Callable[[object], bool]] = MappingProxyType(
    {
        "a coroutine": inspect.iscoroutinefunction,
        "an asynchronous generator": inspect.isasyncgenfunction,
        "a generator": inspect.isgeneratorfunction,
    }
)
"""What a call of a function returns in place of its result, and the test for such functions."""


def check_returns(function: Callable[..., Any], what: str) -> None:
    """Raise DeclarationError if a call of the function would return before its code runs. what: words of the
    message."""
    for made, makes in _ANSWERS_LATER.items():
        if makes(function) or makes(getattr(function, "__call__", None)):  # noqa: B004  # an object's own method
            raise DeclarationError(
                f"{what} makes {made}, and its code would not run: use def and return, not async or yield"
            )


def check_call(function: Callable[..., Any], arguments: Sequence[str], what: str, called: str) -> None:
    """Raise DeclarationError if the function cannot be called with so many arguments. A function that hides its
    arguments, as some that are not written in Python do, is accepted. what, called: words of the message."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise DeclarationError(
            f"{what} takes {signature}, and {called} with ({', '.join(arguments)}): {error}"
        ) from error


def pickled(function: Callable[..., Any], about: str) -> bytes:
    """The function in the form that :func:`pickle.loads` reads on a worker. about: names its owner in messages.

    What the function refers to goes with it, as with Spark's own functions: by value if the program itself defines it.
    If a module defines it, it goes by name, and the workers must have the module. Raises DeclarationError if it cannot
    be pickled.
    """
    dumps: Any = cloudpickle.dumps  # it has no types
    try:
        made: bytes = dumps(function)
        return made
    except Exception as error:  # of any class: each object has its own error for pickling
        raise DeclarationError(
            f"{about}: its function cannot be sent to the workers: {type(error).__name__}: {error}. "
            "What it needs of this process (a session, a connection, a lock) it has to make for itself"
        ) from error


def declared_columns(columns: Columns, about: str, timezone: str) -> pa.Schema:
    """The columns in Arrow's terms. timezone: the session's, which must run for DDL. Raises DeclarationError."""
    if isinstance(columns, pa.Schema):
        return columns
    try:
        declared = StructType.fromDDL(columns) if isinstance(columns, str) else columns
        if not isinstance(declared, StructType):
            raise TypeError(f"it is {declared}")
        return in_arrow(declared, timezone)
    except (PySparkException, TypeError) as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise DeclarationError(
            f"{about}: {columns!r} is no list of columns such as 'trips INT, last TIMESTAMP': {first}"
        ) from error
