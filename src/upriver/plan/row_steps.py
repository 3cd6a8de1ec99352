"""What a table's DataFrame computes over its source, row by row: conditions and columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from upriver.plan.plan import FilterOp, ProjectOp
from upriver.plan.used_columns import used_by


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
            used = used_by(step, used, source)
        return cls(pa.schema([field for field in source if field.name in used]), tuple(steps), schema)
