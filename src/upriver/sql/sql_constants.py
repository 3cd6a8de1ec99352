"""What an expression comes to that depends on no row: it is computed while a view is declared."""

from functools import lru_cache

import pyarrow as pa

from upriver.engine.expressions import Evaluator
from upriver.errors import RowError
from upriver.plan.plan import Projection

ANSWERS_MAX = 1_024
"""Expressions of which is remembered what they come to: to open an evaluator takes some milliseconds."""
_VALUE = "value"


@lru_cache(ANSWERS_MAX)
def why_failing(expression: str, type: pa.DataType) -> str | None:
    """Why an expression without columns fails; ``None`` if it gives a value. type: of the value."""
    evaluator = Evaluator()
    row = pa.record_batch({"row": [0]})
    try:
        evaluator.curt().project(row, Projection((expression,), pa.schema([(_VALUE, type)])))
    except RowError as error:
        return str(error).removeprefix(f"column {_VALUE}: ")
    finally:
        evaluator.close()
    return None


@lru_cache(ANSWERS_MAX)
def refuses_nulls(condition: str, columns: pa.Schema) -> bool:
    """Whether a condition on these columns is not fulfilled where all of them are NULL."""
    evaluator = Evaluator()
    row = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in columns], schema=columns)
    try:
        return not evaluator.curt().mask(row, condition).any()
    except RowError:
        return False
    finally:
        evaluator.close()
