"""How users' functions are called: the interface, and the ways that need no other process.

An evaluator and a stateful map call functions through a ``FunctionCaller``. A worker's gives the calls to a process of
their own (:mod:`upriver.runtime.function_process`).
"""

from typing import Protocol

import numpy as np
import pyarrow as pa

from upriver.engine.operators.map_calls import Call, Given, Made, given_by, map_call
from upriver.engine.user_functions import ColumnCall, column_function
from upriver.plan.plan import StatefulMapOp, UserFunction
from upriver.state.vectors import Mask


class FunctionCaller(Protocol):
    """Makes functions callable.

    What it makes raises RowError for a row at fault, and FunctionFailed for a function that does not return or ends its
    process. A function that cannot be loaded is a DeclarationError, here or at the first call.
    """

    def column_function(self, function: UserFunction) -> ColumnCall:
        """A scalar function, to be called for columns."""
        ...

    def map_call(self, op: StatefulMapOp, source: pa.Schema) -> Call:
        """The function of a stateful map. source: of the rows that will come."""
        ...


class LocalCaller:
    """Calls functions in this process, on the thread that needs the values."""

    def column_function(self, function: UserFunction) -> ColumnCall:
        return column_function(function)

    def map_call(self, op: StatefulMapOp, source: pa.Schema) -> Call:
        return map_call(op, source)


class SilentCaller:
    """Calls nothing: scalar functions give NULL, and stateful maps give no rows and change no state. For made-up
    rows."""

    def column_function(self, function: UserFunction) -> ColumnCall:
        return lambda *columns: pa.nulls(len(columns[0]), function.returns)

    def map_call(self, op: StatefulMapOp, source: pa.Schema) -> Call:
        nothing = pa.RecordBatch.from_pylist([], given_by(op))
        return lambda given: Made(nothing, np.empty(0, np.int64), given.states, _all(given))


LOCAL = LocalCaller()


def _all(given: Given) -> Mask:
    return np.ones(len(given.known), np.bool_)
