"""Region: one view's operators at one worker, from the lake edge to the answer.

Rows of the table flow through filter and project into the store (an aggregate, or the rows themselves); reads go to
the view operator, which sees the store as it is after the last batch applied. All state of a region is keyed by its
routing key, the plan's ``index``, or by something finer.
"""

from collections.abc import Sequence
from functools import partial
from typing import Self

import numpy as np
import pyarrow as pa

from upriver.dataflow import ops
from upriver.dataflow.batch import Batch, Hashes, Outgoing
from upriver.dataflow.graph import DataflowPlan, RegionPlan, ViewStore
from upriver.dataflow.operators.aggregate import Aggregate
from upriver.dataflow.operators.evaluator import Evaluator
from upriver.dataflow.operators.filter import Filter
from upriver.dataflow.operators.project import Project, quoted
from upriver.dataflow.operators.rows import Rows
from upriver.dataflow.operators.turnover import Turnover
from upriver.dataflow.operators.view import Store, View
from upriver.dataflow.plan import AggregatePlan, Projection
from upriver.errors import ProtocolError


class Region:
    """The share of one view that one worker keeps."""

    __slots__ = ("_filter", "_project", "_store", "_view")

    def __init__(self, filter: Filter | None, project: Project, store: Store, view: View) -> None:
        self._filter = filter
        self._project = project
        self._store = store
        self._view = view

    @classmethod
    def build(cls, view: DataflowPlan, region: RegionPlan, evaluator: Evaluator) -> Self:
        """An empty region. Raises ProtocolError for a plan that contradicts itself.

        vnodes: the lake's. Scans are sorted by hash64, hence grouped by vnode, however many vnodes there are.
        """
        predicate, project, kept = None, None, region.store
        for node in region.nodes:
            if isinstance(node.op, ops.Filter):
                predicate = node.op.predicate
            elif isinstance(node.op, ops.Project):
                project = node.op.projection
        if project is None or kept is None or len(region.inputs) != 1:
            raise ProtocolError(f"region {region.name!r} is of a kind that is not built yet")
        store = Turnover(partial(store_of, view.name, kept, project.schema))
        return cls(
            None if predicate is None else Filter(predicate, evaluator),
            Project(project, evaluator),
            store,
            View(store, kept.output, kept.having, evaluator),
        )

    @property
    def gathered(self) -> int:
        return 0

    def settle(self) -> int:
        return 0

    def drain(self) -> Sequence[Outgoing]:
        return ()

    def apply(self, port: int, batch: Batch) -> None:
        """Take in rows of the table, in the order in which they came off the edge.

        Raises RowError if a row makes an expression or an aggregate fail. The region is of no use then: a part of the
        batch may be in its state.
        """
        if self._filter is not None:
            batch = self._filter.apply(batch)
        if len(batch):
            self._store.apply(batch.replaced(self._project.apply(batch.rows)))

    def lookup(self, hash64: Hashes, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The view's rows of these keys, in the order in which the keys are first mentioned; a null matches a null.

        keys: one column for each of the routing key's, in that order, of the table's types. hash64: theirs.
        Raises RowError if an output expression fails.
        """
        return self._view.lookup(hash64, keys.columns)

    def scan(self) -> pa.Table:
        """All of the view's rows, sorted by hash64. Raises RowError if an output expression fails."""
        return self._view.scan()

    def keys_of(self, vnode: int, vnodes: int) -> Hashes:
        """The hash64 of all keys of that vnode that have state here, ascending and unique. vnodes: the lake's."""
        width = 2**64 // vnodes
        return np.unique(self._store.hashes_between(vnode * width, (vnode + 1) * width - 1))

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """All state of the keys with these hash64 (ascending, unique), for :meth:`install` in another region of the
        same plan. It stays here until :meth:`drop`. Each batch's schema depends on the plan only."""
        return self._store.collect(keys)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        """Take in what another region has collected, as if all rows of those keys had come here.

        Raises ProtocolError if there is state of them here already.
        """
        self._store.install(state)

    def drop(self, keys: Hashes) -> None:
        """Forget the keys with these hash64 (ascending, unique), as if they had never been."""
        self._store.drop(keys)

    def stats(self) -> dict[str, int]:
        """rows: held, before HAVING. keys: routing keys that have rows. bytes: of memory. Costs no more with size."""
        return {"rows": self._store.held, "keys": self._store.keys, "bytes": self._store.nbytes}


def store_of(view: str, store: ViewStore, source: pa.Schema) -> Store:
    """An empty store. Raises ProtocolError for a plan that contradicts itself."""
    kept = source.names if store.aggregate is None else store.aggregate.group
    if not set(store.key) <= set(kept):
        raise ProtocolError(f"view {view!r}: its key {store.key} is not a column of what it keeps, {kept}")
    if store.aggregate is None:
        return Rows(source, store.key)
    return Aggregate(store.aggregate, source, store.key, _titles(store.output, store.aggregate))


def _titles(output: Projection, aggregate: AggregatePlan) -> dict[str, str]:
    """For each column of the aggregate, the view's columns that are made of it: what the user knows it by."""
    outputs = list(zip(output.expressions, output.schema.names, strict=True))
    made_of = {
        column: [name for expression, name in outputs if quoted(column) in expression]
        for column in (*aggregate.group, *(call.output for call in aggregate.calls))
    }
    return {column: " and ".join(titles) for column, titles in made_of.items() if titles}
