"""What a table's DataFrame computes over its source, row by row: conditions and columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from upriver.plan.column_names import columns_in
from upriver.plan.plan import FilterOp, ProjectOp


@dataclass(frozen=True, slots=True)
class RowSteps:
    """Steps over the rows of a source, the first one first. columns: those of the source that the steps use. schema: of
    the rows after the last step. Picklable."""

    columns: pa.Schema
    steps: tuple[FilterOp | ProjectOp, ...]
    schema: pa.Schema

    @classmethod
    def over(cls, source: pa.Schema, steps: Sequence[FilterOp | ProjectOp], schema: pa.Schema) -> "RowSteps":
        """The steps, with the columns of ``source`` that they use."""
        used = set(schema.names)
        for step in reversed(steps):
            match step:
                case FilterOp(predicate):
                    used |= columns_in(predicate)
                case ProjectOp(projection):
                    used = {column for expression in projection.expressions for column in columns_in(expression)}
        return cls(pa.schema([field for field in source if field.name in used]), tuple(steps), schema)
