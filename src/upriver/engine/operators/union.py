"""Union: the rows of several inputs, as they come (UNION ALL). Stateless."""

import pyarrow as pa

from upriver.engine.batch import Batch


class Union:
    """Inputs agree in the names and types of their columns; the output is of this schema."""

    __slots__ = ("_schema",)

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def apply(self, port: int, batch: Batch) -> Batch:
        """The changes of any input."""
        return batch.replaced(pa.RecordBatch.from_arrays(batch.rows.columns, schema=self._schema))
