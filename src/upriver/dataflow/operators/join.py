"""Join: pairs of rows of two inputs that agree in a key, kept up to date under changes of both.

A batch of one side is joined with what is kept of the other side, and then kept itself. Both sides keep their rows by
the join's key (:mod:`join_store`). A row with a null in its key that agrees with nothing is never kept: what it gives,
it gives at once.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from upriver.dataflow import ops
from upriver.dataflow.batch import Batch
from upriver.dataflow.operators.consolidate import concatenated
from upriver.dataflow.operators.evaluator import Evaluator
from upriver.dataflow.operators.join_shape import JoinShape
from upriver.dataflow.operators.join_store import JoinStore
from upriver.dataflow.operators.turning import Turning
from upriver.state.columns import validity
from upriver.state.vectors import Hashes


class Join:
    """An operator with two ports, the left and the right input. ``schema``: of its output, all of it nullable."""

    __slots__ = ("_nothing", "_shape", "_stores", "schema")

    def __init__(
        self,
        op: ops.Join,
        left: pa.Schema,
        right: pa.Schema,
        left_routing: Sequence[str],
        right_routing: Sequence[str],
        evaluator: Evaluator,
        turning: Callable[[Callable[[], JoinStore]], Turning[JoinStore]] = Turning,
    ) -> None:
        """left, right: of the rows to come. left_routing, right_routing: the routing key as columns of each: some of
        the join's key, or all of it. turning: how memory is given back."""
        self._shape = JoinShape.of(op, (left, right), (left_routing, right_routing))
        self._stores = turning(partial(JoinStore, self._shape, evaluator))
        self.schema = self._shape.output
        self._nothing = Batch(pa.RecordBatch.from_pylist([], self.schema), np.empty(0, np.uint64))

    @property
    def parts(self) -> int:
        return len(self._shape.sides)

    @property
    def held(self) -> int:
        """How many different rows are kept, of both sides."""
        return self._stores.held

    @property
    def nbytes(self) -> int:
        return self._stores.nbytes

    def apply(self, port: int, batch: Batch) -> Batch:
        """port: 0 for changes of the left input, 1 for the right. Raises RowError if the condition fails on a pair, and
        ProtocolError if a row is retracted that is not there."""
        if batch.weight is not None:
            batch = batch.filtered(batch.weight != 0)
        strangers = np.zeros(len(batch), np.bool_)
        for name in self._shape.sides[port].strict:
            if batch.rows.column(name).null_count:
                strangers |= ~validity(batch.rows.column(name))
        outputs: list[Batch] = []
        if strangers.any():
            outputs += self._without_match(port, batch.filtered(strangers))
            batch = batch.filtered(~strangers)
        for store, share in self._stores.shares(batch.hash64):
            if share.any():
                outputs += store.apply(port, batch.filtered(share))
        self._stores.tidy()
        return concatenated([output for output in outputs if len(output)] or [self._nothing])

    def hashes_between(self, least: int, most: int) -> Hashes:
        return self._stores.hashes_between(least, most)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """The rows of the left side, then those of the right: hash64, how often each is there, how many rows it matches
        if that is counted, its columns."""
        return self._stores.collect(keys)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        """Raises ProtocolError if something is kept of one of the keys."""
        self._stores.install(state)

    def drop(self, keys: Hashes) -> None:
        self._stores.drop(keys)

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
