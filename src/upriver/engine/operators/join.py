"""Join: pairs of rows of two inputs that agree in a key, kept up to date under changes of both.

A batch of one side is joined with what is kept of the other side, and then kept itself. Both sides keep their rows by
the join's key (:mod:`join_store`). A row with a null in its key that agrees with nothing is never kept: what it gives,
it gives at once.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch, no_rows
from upriver.engine.operators.consolidate import concatenated
from upriver.engine.operators.evaluator import Evaluator
from upriver.engine.operators.join_shape import JoinShape
from upriver.engine.operators.join_store import JoinStore
from upriver.engine.operators.turning import USUAL, Eagerness, Turning
from upriver.plan import ops
from upriver.state.columns import validity


class Join(Turning[JoinStore]):
    """An operator with two ports, the left and the right input. ``schema``: of its output, all of it nullable."""

    __slots__ = ("_nothing", "_shape", "schema")

    parts = 2

    def __init__(
        self,
        op: ops.Join,
        left: pa.Schema,
        right: pa.Schema,
        left_routing: Sequence[str],
        right_routing: Sequence[str],
        evaluator: Evaluator,
        eagerness: Eagerness = USUAL,
    ) -> None:
        """left, right: of the rows to come. left_routing, right_routing: the routing key as columns of each: some of
        the join's key, or all of it. eagerness: to give memory back."""
        self._shape = JoinShape.of(op, (left, right), (left_routing, right_routing))
        super().__init__(partial(JoinStore, self._shape, evaluator), eagerness)
        self.schema = self._shape.output
        self._nothing = no_rows(self.schema)

    def apply(self, port: int, batch: Batch) -> Batch:
        """port: 0 for changes of the left input, 1 for the right. Raises RowError if the condition fails on a pair, and
        ProtocolError if a row is retracted that is not there."""
        if batch.weight is not None:
            batch = batch.filtered(batch.weight != 0)
        keys = [batch.rows.column(name) for name in self._shape.sides[port].strict]
        outputs: list[Batch] = []
        if any(key.null_count for key in keys):
            matches = np.logical_and.reduce([validity(key) for key in keys])
            outputs += self._without_match(port, batch.filtered(~matches))
            batch = batch.filtered(matches)
        for store, part in self.split(batch):
            outputs += store.apply(port, part)
        self.tidy()
        return concatenated([output for output in outputs if len(output)] or [self._nothing])

    def _without_match(self, port: int, batch: Batch) -> list[Batch]:
        """What follows from rows that match nothing."""
        if self._shape.sides[port].alone is not False:
            return []
        columns = [
            batch.rows.column(field.name) if side == port else pa.nulls(len(batch), field.type)
            for side, shape in enumerate(self._shape.sides)
            for field in list(shape.kept)[: shape.shown]
        ]
        return [batch.replaced(pa.RecordBatch.from_arrays(columns, schema=self.schema))]
