"""A user's scalar functions: their declaration, and how Spark calls them where Spark computes a view."""

import re
from collections.abc import Callable, Iterable
from datetime import UTC
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas import functions as of_pandas
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from upriver.arguments import class_name
from upriver.engine.user_functions import column_function
from upriver.errors import DeclarationError
from upriver.plan.plan import DECLARED_CALL, FunctionForm, UserFunction
from upriver.plan.types import duck_name, is_instant, is_nested, spark_name
from upriver.spark.functions import Columns, check_call, check_returns, declared_columns, pickled
from upriver.spark.session import unlogged

Returns: TypeAlias = str | DataType | pa.DataType
"""A type as users declare it: in Spark's DDL, ``"DOUBLE"``, or as an object of Spark or Arrow."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def declare_function(
    name: str,
    function: Callable[..., Any],
    returns: Returns,
    arguments: Columns,
    form: str,
    *,
    deterministic: bool,
    timezone: str,
) -> UserFunction:
    """A function from a user's declaration. timezone: the session's. Raises DeclarationError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DeclarationError(f"a function's name has letters, digits and _ only, and begins with no digit: {name!r}")
    about = f"function {name!r}"
    if not callable(function):
        raise DeclarationError(f"{about}: {function!r} is no function")
    if deterministic is not True:
        raise DeclarationError(
            f"{about}: it must give the same value for the same arguments, always and everywhere, because workers call "
            f"it again for old rows. Declare that it does: deterministic=True"
        )
    if not isinstance(form, str) or form not in list(FunctionForm):
        raise DeclarationError(f"{about}: form is one of {', '.join(map(repr, map(str, FunctionForm)))}, not {form!r}")
    taken = declared_columns(arguments, f"{about}: arguments", timezone)
    given = _returned(returns, about, timezone)
    if not len(taken):
        raise DeclarationError(f"{about}: it needs an argument: a function of nothing is a constant")
    for field in (*taken, pa.field("the result", given)):
        if duck_name(field.type) is None or is_nested(field.type):
            raise DeclarationError(
                f"{about}: {field.name} is {spark_name(field.type)}, which a function of yours does not take or give"
            )
    check_returns(function, f"{about}: it")
    check_call(function, taken.names, f"{about}: it", "is called")
    return UserFunction(name, tuple(taken.types), given, FunctionForm(form), pickled(function, about))


def _returned(returns: Returns, about: str, timezone: str) -> pa.DataType:
    if isinstance(returns, pa.DataType):
        return returns
    if not isinstance(returns, str | DataType):
        raise DeclarationError(f"{about}: returns is a type such as 'DOUBLE', not {class_name(returns)}")
    text = returns if isinstance(returns, str) else returns.simpleString()
    try:
        columns = declared_columns(f"result {text}", f"{about}: returns", timezone)
    except DeclarationError:
        columns = pa.schema([])
    if len(columns) != 1:
        raise DeclarationError(
            f"{about}: returns={text!r} is not one type of Spark, such as 'DOUBLE' or 'DECIMAL(10,2)'"
        )
    return columns.field(0).type


def check_function_name(session: SparkSession, name: str) -> None:
    """Raise DeclarationError for the name of a function of Spark's, or one that SQL does not read as a function's."""
    try:
        with unlogged():
            session.sql(f"SELECT {name}(1)")
        is_free = False
    except PySparkException as error:
        is_free = error.getCondition() == "UNRESOLVED_ROUTINE"
    if not is_free:
        raise DeclarationError(
            f"function {name!r}: {name}(...) means something in Spark's SQL already. Give it another name, as my_{name}"
        )


def register_functions(session: SparkSession, functions: Iterable[UserFunction]) -> None:
    """Let the session's SQL call these functions. What Spark computes with them is what a worker does."""
    for function in functions:
        session.udf.register(function.name, _called_by_spark(function))


def _called_by_spark(function: UserFunction) -> Any:
    def call(*columns: pa.Array) -> pa.Array:
        return column_function(function)(*columns)

    def call_of_row(*values: Any) -> Any:
        given = [
            pa.array([value.astimezone(UTC) if value is not None and is_instant(type) else value], type)
            for value, type in zip(values, function.arguments, strict=True)
        ]
        return column_function(function)(*given)[0].as_py()

    make: Any = getattr(of_pandas, "arrow_udf", None)  # since Spark 4.1
    called = call if make is not None else call_of_row
    called.__name__ = called.__qualname__ = DECLARED_CALL
    return (make or F.udf)(called, from_arrow_type(function.returns, prefer_timestamp_ntz=True))
