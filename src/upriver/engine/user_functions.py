"""A user's scalar functions, called for columns: by the workers' DuckDB, and by Spark for what Spark computes.

A function takes the values of a row, or whole columns as Arrow's arrays or as pandas' Series. What it returns is
checked against its declaration, so a worker and Spark get the same values or the same error.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import Parameter, Signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from upriver.engine.operators.map_calls import THIS_PROCESS, CallingProcess, line_of, loaded
from upriver.engine.operators.plain_rows import Misfit, PlainRows, python_columns, unwrapped
from upriver.engine.row_text import error_text
from upriver.errors import RowError
from upriver.plan.plan import FunctionForm, UserFunction
from upriver.plan.types import duck_name

if TYPE_CHECKING:
    import duckdb  # a process that only calls functions does without

VALUE = "value"
"""What messages call the value that a function returns."""
LOADED_MAX = 256
"""Functions of users that a process keeps loaded."""


ColumnCall = Callable[..., pa.Array]
"""Takes columns of a function's arguments, gives its values. Raises RowError, FunctionFailed, DeclarationError."""


class ColumnFunction:
    """A user's function, ready to be called for columns."""

    def __init__(self, function: UserFunction, process: CallingProcess = THIS_PROCESS) -> None:
        """Raises DeclarationError if the function cannot be loaded here."""
        self._about = about_function(function)
        self._arguments = function.arguments
        self._result = PlainRows(pa.schema([(VALUE, function.returns)]), "result")
        self._call = _FORMS[function.form]
        self._passes = process.passes
        self._function: Callable[..., Any] = loaded(function.function, self._about, process)

    def __call__(self, *columns: pa.Array) -> pa.Array:
        """A value for each row. columns: of the declared types, except for time zones.

        Raises RowError if the function raises, or returns what is not declared.
        """
        try:
            given = pa.RecordBatch.from_arrays(
                [retyped(column, type) for column, type in zip(columns, self._arguments, strict=True)],
                [str(place) for place in range(len(columns))],
            )
            return self._call(self._function, given, self._result)
        except Misfit as misfit:
            raise RowError(f"{self._about} returned what is not declared: {misfit}") from misfit
        except RowError:
            raise
        except self._passes:
            raise
        except BaseException as error:  # of any class: it is the user's code
            raise RowError(f"{self._about} raised {error_text(error)}{line_of(error)}") from error


def about_function(function: UserFunction) -> str:
    """What messages call the function."""
    return f"the function {function.name}()"


def define_function(
    duck: "duckdb.DuckDBPyConnection", function: UserFunction, call: ColumnCall, note: Callable[[Exception], object]
) -> None:
    """Let SQL on this connection call the function by its ``sql_name``. call: the function. note: takes an error that
    no row is to blame for; DuckDB would make an error of a row of it."""
    without_zone = _wall_clock(function.returns)

    def compute(*columns: pa.ChunkedArray | pa.Array) -> pa.Array:
        given = [one.combine_chunks() if isinstance(one, pa.ChunkedArray) else one for one in columns]
        try:
            return retyped(call(*given), without_zone)
        except RowError:
            raise
        except Exception as error:
            note(error)
            raise

    named = [Parameter(f"c{place}", Parameter.POSITIONAL_ONLY) for place in range(len(function.arguments))]
    compute.__signature__ = Signature(named)  # type: ignore[attr-defined]  # DuckDB counts the parameters
    takes: list[Any] = [duck_name(type) for type in function.arguments]
    options: Any = {"type": "arrow", "null_handling": "special"}
    duck.create_function(function.sql_name, compute, takes, duck_name(function.returns), **options)


def _wall_clock(type: pa.DataType) -> pa.DataType:
    return pa.timestamp("us") if pa.types.is_timestamp(type) else type


def retyped(column: pa.Array, type: pa.DataType) -> pa.Array:
    """The column with this type, another one of the same kind: with or without a time zone, or with larger offsets."""
    if column.type == type:
        return column
    return column.view(type) if pa.types.is_timestamp(type) else column.cast(type)


@lru_cache(LOADED_MAX)
def column_function(function: UserFunction) -> ColumnFunction:
    """The function as it is called in this process. Raises DeclarationError if it cannot be loaded here."""
    return ColumnFunction(function)


def _by_row(function: Callable[..., Any], given: pa.RecordBatch, result: PlainRows) -> pa.Array:
    rows = zip(*python_columns(given), strict=True)
    return result.written([(unwrapped(function(*row)),) for row in rows]).column(0)


def _by_arrow(function: Callable[..., Any], given: pa.RecordBatch, result: PlainRows) -> pa.Array:
    return _whole(function(*given.columns), given.num_rows, result)


def _by_pandas(function: Callable[..., Any], given: pa.RecordBatch, result: PlainRows) -> pa.Array:
    import pandas  # type: ignore[import-untyped]  # not before a function needs it: that takes long

    made = function(*(column.to_pandas() for column in given.columns))
    if not isinstance(made, pandas.Series):
        raise Misfit(f"{type(made).__name__}, which is no Series")
    return _whole(_of_series(made, result), given.num_rows, result)


def _of_series(made: Any, result: PlainRows) -> pa.Array:
    """The values of a Series, in which NaN stands for NULL, as Arrow has them. Raises Misfit.

    pandas has no type for integers beside NULL, nor for dates: it gives them as floats and as times at midnight.
    """
    if made.dtype == object:
        return result.written([(one,) for one in made.where(made.notna(), None).tolist()]).column(0)
    found, wanted = pa.Array.from_pandas(made), result.schema.field(0).type
    if pa.types.is_dictionary(found.type):
        found = found.dictionary_decode()
    is_whole = pa.types.is_integer(wanted) and pa.types.is_floating(found.type)
    is_day = pa.types.is_date32(wanted) and pa.types.is_timestamp(found.type) and found.type.tz is None
    if not (is_whole or is_day):
        return found
    try:
        cast = found.cast(wanted)
    except pa.ArrowException as error:
        raise Misfit(f"{VALUE} does not fit {wanted}: {error}") from error
    if is_day and cast.cast(found.type) != found:
        raise Misfit(f"{VALUE} has times of day, and is declared as {wanted}")
    return cast


def _whole(made: Any, rows: int, result: PlainRows) -> pa.Array:
    """The values that a function returned for so many rows. Raises Misfit."""
    if isinstance(made, pa.ChunkedArray):
        made = made.combine_chunks()
    if not isinstance(made, pa.Array):
        raise Misfit(f"{type(made).__name__}, which is no Arrow array")
    if len(made) != rows:
        raise Misfit(f"{len(made)} values for {rows} rows")
    return result.fitted(pa.RecordBatch.from_arrays([made], [VALUE])).column(0)


_FORMS: Mapping[FunctionForm, Callable[[Callable[..., Any], pa.RecordBatch, PlainRows], pa.Array]] = MappingProxyType(
    {FunctionForm.ROW: _by_row, FunctionForm.ARROW: _by_arrow, FunctionForm.PANDAS: _by_pandas}
)
