"""Grouped: GROUP BY inside a dataflow. It retracts the old row of each group that a batch changes, and adds the new.

Without aggregate functions it is DISTINCT.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch, no_rows
from upriver.engine.operators.aggregate import Aggregate
from upriver.engine.operators.compacted import USUAL, CompactionPace, TwoStores
from upriver.engine.operators.operator import concatenated
from upriver.plan.plan import AggregatePlan
from upriver.state.columns import canonical, same
from upriver.state.vectors import Mask, true_at


class Grouped(TwoStores[Aggregate]):
    """The operator of :class:`upriver.plan.plan.Aggregate`. ``schema`` is of its output."""

    __slots__ = ("_calls", "_group", "_nothing", "schema")

    parts = 1

    def __init__(
        self,
        plan: AggregatePlan,
        source: pa.Schema,
        routing: Sequence[str],
        eagerness: CompactionPace = USUAL,
    ) -> None:
        """source, routing: as of :class:`Aggregate`. eagerness: how soon and how fast to compact."""
        super().__init__(partial(Aggregate, plan, source, routing), eagerness)
        self._group = plan.group
        self._calls = tuple(call.output for call in plan.calls)
        self.schema = self._stores[0].schema
        self._nothing = no_rows(self.schema)

    def apply(self, port: int, batch: Batch) -> Batch:
        """Add the batch's rows to their groups; returns the changes of the rows of groups that have changed.

        Raises RowError if a result overflows, and ProtocolError as :meth:`Aggregate.apply` does.
        """
        changes = [self._change(groups, part) for groups, part in self.split(batch)]
        self.tidy()
        return concatenated(changes) if changes else self._nothing

    def _change(self, groups: Aggregate, batch: Batch) -> Batch:
        slots = groups.assign(batch)
        touched, first = np.unique(slots, return_index=True)
        was = groups.counts(touched) > 0
        old = [groups.column(name, touched[was]) for name in self._calls]
        groups.add(batch, slots)
        now = groups.counts(touched) > 0
        new = [groups.column(name, touched[now]) for name in self._calls]
        goes, comes, stays = was.copy(), now.copy(), was & now
        goes[stays] = comes[stays] = _differ(old, stays[was], new, stays[now])
        places = np.concatenate([true_at(goes), true_at(comes)])
        columns = [groups.column(name, touched[places]) for name in self._group]
        columns += [_joined(*pair, goes[was], comes[now]) for pair in zip(old, new, strict=True)]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        gone = int(np.count_nonzero(goes))
        return Batch(
            rows, batch.hash64[first[places]], np.repeat([-1, 1], [gone, len(places) - gone]) if gone else None
        )


def _differ(old: Sequence[pa.Array], old_mask: Mask, new: Sequence[pa.Array], new_mask: Mask) -> Mask:
    """Which of the groups that were there before, and still are, have another result now."""
    differ = np.zeros(np.count_nonzero(old_mask), np.bool_)
    if len(differ):
        for before, now in zip(old, new, strict=True):
            differ |= ~same(canonical(_filtered(before, old_mask)), canonical(_filtered(now, new_mask)))
    return differ


def _joined(old: pa.Array, new: pa.Array, old_mask: Mask, new_mask: Mask) -> pa.Array:
    if not old_mask.any():
        return _filtered(new, new_mask)
    return pa.concat_arrays([_filtered(old, old_mask), _filtered(new, new_mask)])


def _filtered(values: pa.Array, mask: Mask) -> pa.Array:
    return values if mask.all() else values.filter(pa.array(mask))
