"""Project: other columns for the same rows. Stateless.

Most expressions are the plain name of a column. Those are passed on as they are, without a copy; only the rest goes
to the evaluator, and nothing does if there is no rest.
"""

from collections.abc import Mapping

import pyarrow as pa

from upriver.engine.operators.evaluator import Evaluator
from upriver.plan.column_names import plain_columns
from upriver.plan.plan import Projection


class Project:
    """SQL's SELECT list."""

    __slots__ = ("_computed", "_evaluator", "_plain", "_schema")

    def __init__(self, projection: Projection, evaluator: Evaluator) -> None:
        self._schema = projection.schema
        self._evaluator = evaluator
        self._plain: Mapping[str, str] = plain_columns(projection)
        computed = [place for place, name in enumerate(projection.schema.names) if name not in self._plain]
        self._computed = Projection(
            tuple(projection.expressions[place] for place in computed),
            pa.schema([projection.schema.field(place) for place in computed]),
        )

    @property
    def plain(self) -> Mapping[str, str] | None:
        """The source of each output column, in order, if all are plain; otherwise ``None``."""
        return None if self._computed.expressions else self._plain

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The projected rows, in order. Raises RowError as the evaluator does."""
        columns = {output: rows.column(name) for output, name in self._plain.items()}
        if self._computed.expressions:
            computed = self._evaluator.project(rows, self._computed)
            columns.update(zip(computed.schema.names, computed.columns, strict=True))
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
