"""Functions of users as they come to a worker."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from upriver.plan.plan import FunctionForm, UserFunction


def user_function(
    name: str,
    function: Callable[..., Any],
    arguments: Sequence[pa.DataType],
    returns: pa.DataType,
    form: FunctionForm = FunctionForm.ROW,
) -> UserFunction:
    return UserFunction(name, tuple(arguments), returns, form, cloudpickle.dumps(function))  # type: ignore[no-untyped-call]
