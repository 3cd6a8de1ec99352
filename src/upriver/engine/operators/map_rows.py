"""MapRows: what the function of a stateful map gets, out of the rows that have come over the map's inputs.

The rows of each input are put into the order of :mod:`upriver.plan.row_order`. Those of several inputs become rows with
the columns of all, behind the name of the source and the kind of change. Changes of a view, or of an upsert table, are
net, and get their kinds by the map's key.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.engine.batch import Batch, one_batch
from upriver.engine.change_kinds import ChangeKind, Kinds, in_kinds
from upriver.engine.operators.operator import consolidated
from upriver.engine.operators.topk import SortKey, in_order
from upriver.errors import ProtocolError
from upriver.hashing import Hashes
from upriver.ids import BEGINNING, Epoch
from upriver.plan.plan import DataflowPlan, MapSource, StatefulMapOp, TableSpec
from upriver.plan.row_order import EPOCH_COLUMN, SEQUENCE_COLUMN, UPSTREAM_COLUMN, has_order, without_order
from upriver.state.columns import canonical, cells_of
from upriver.state.indexes import first_equal
from upriver.state.vectors import Positions

SOURCE_COLUMN = "source"
"""The name of a row's source, before the columns of all sources."""
CHANGE_COLUMN = "change_type"
"""The kind of a change, as the change log names it; of a row that is only added, ``insert``."""
_KINDS = pa.array([kind.text for kind in ChangeKind])

RowEpochs = npt.NDArray[np.int64]


def rows_schema(op: StatefulMapOp, sources: Sequence[pa.Schema]) -> pa.Schema:
    """Of the rows that the function gets. sources: the columns of each input."""
    fields: dict[str, pa.Field] = {}
    if op.tells_source:
        fields[SOURCE_COLUMN] = pa.field(SOURCE_COLUMN, pa.string())
    if op.tells_source or op.inputs[0].changes:
        fields[CHANGE_COLUMN] = pa.field(CHANGE_COLUMN, pa.string())
    for source in sources:
        for field in without_order(source):
            fields.setdefault(field.name, pa.field(field.name, field.type))
    return pa.schema(list(fields.values()))


def maps_in(plan: DataflowPlan) -> Iterator[tuple[StatefulMapOp, pa.Schema]]:
    """The stateful maps of a view, each with the columns of the rows that its function gets."""
    for region in plan.regions:
        schemas = [*(entry.schema for entry in region.inputs), *(node.schema for node in region.nodes)]
        for node in region.nodes:
            if isinstance(node.op, StatefulMapOp):
                yield node.op, rows_schema(node.op, [schemas[number] for number in node.inputs])


def rows_set_aside(plan: DataflowPlan) -> Iterator[TableSpec]:
    """What the stateful maps of a view set aside: rows as their functions get them, under the maps' names."""
    return (TableSpec(op.name, rows, ()) for op, rows in maps_in(plan) if op.sets_aside)


@dataclass(frozen=True, slots=True)
class Arrived:
    """Rows for the function, those of one key and one epoch in order. keys: the key's columns, canonical. hash64: of
    the routing key. epochs: of each row; ``None`` if rows have none, and those of one key are in order."""

    rows: pa.RecordBatch
    keys: list[pa.Array]
    hash64: Hashes
    epochs: RowEpochs | None

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def taken(self, order: Positions) -> "Arrived":
        """The rows at these positions."""
        places = pa.array(order)
        keys = [column.take(places) for column in self.keys]
        epochs = None if self.epochs is None else self.epochs[order]
        return Arrived(self.rows.take(places), keys, self.hash64[order], epochs)


class MapRows:
    """Makes the rows of one map. ``schema`` is theirs."""

    __slots__ = ("_columns", "_epoch", "_op", "schema")

    def __init__(self, op: StatefulMapOp, sources: Sequence[pa.Schema]) -> None:
        """sources: the columns of each input."""
        self._op = op
        self._epoch = BEGINNING
        self._columns = [without_order(source) for source in sources]
        self.schema = rows_schema(op, sources)

    def begin(self, epoch: Epoch) -> None:
        """Changes of this epoch come from now on."""
        self._epoch = epoch

    def of(self, batches: Sequence[Batch | None]) -> Arrived | None:
        """The rows of these batches, one for each input; ``None`` if there are none. Raises ProtocolError for a row
        that is taken back, and none of whose source is."""
        parts = [
            self._of_changes(place, source, batch) if source.changes else self._of_rows(place, source, batch)
            for place, (source, batch) in enumerate(zip(self._op.inputs, batches, strict=True))
            if batch is not None and len(batch)
        ]
        parts = [part for part in parts if len(part)]
        if len(parts) < 2:
            return parts[0] if parts else None
        dated = [part.epochs for part in parts if part.epochs is not None]
        return Arrived(
            one_batch([part.rows for part in parts]),
            [pa.concat_arrays(columns) for columns in zip(*(part.keys for part in parts), strict=True)],
            np.concatenate([part.hash64 for part in parts]),
            np.concatenate(dated) if len(dated) == len(parts) else None,
        )

    def _of_rows(self, place: int, source: MapSource, batch: Batch) -> Arrived:
        if batch.weight is not None and (batch.weight < 0).any():
            raise ProtocolError("a row was retracted that a stateful map has seen: its input is append only")
        batch = batch.repeated()
        epochs = None
        if has_order(batch.rows.schema.names):
            epochs = cells_of(batch.rows.column(EPOCH_COLUMN)).astype(np.int64)
        if source.upstream:
            assert epochs is not None
            order = self._order_of_given(source, batch.rows, epochs)
            batch, epochs = batch.replaced(batch.rows.take(pa.array(order))), epochs[order]
            batch = Batch(batch.rows, batch.hash64[order])
        return self._arrived(place, source, batch, epochs, None)

    def _order_of_given(self, source: MapSource, rows: pa.RecordBatch, epochs: RowEpochs) -> Positions:
        """The rows that a map gives, by epoch, the map's key and their number."""
        names = (UPSTREAM_COLUMN, *source.upstream, SEQUENCE_COLUMN)
        columns = [rows.column(name) for name in names]
        keys = [SortKey(number, column.type) for number, column in enumerate(columns)]
        order, _ = in_order(epochs, keys, lambda number, places: columns[number].take(pa.array(places)))
        return order

    def _of_changes(self, place: int, source: MapSource, batch: Batch) -> Arrived:
        net = consolidated(batch)
        weight = np.ones(len(net), np.int64) if net.weight is None else net.weight
        columns = net.rows.columns
        groups = first_equal(net.hash64, [canonical(net.rows.column(name)) for name in source.key])
        by_value = [SortKey(number, column.type) for number, column in enumerate(columns)]
        order, _ = in_order(groups, by_value, lambda number, places: columns[number].take(pa.array(places)))
        each = np.repeat(order, np.abs(weight[order]))
        in_turn, kinds = in_kinds(groups[each], weight[each] > 0)
        places = each[in_turn]
        changes = Batch(net.rows.take(pa.array(places)), net.hash64[places])
        return self._arrived(place, source, changes, np.full(len(places), self._epoch, np.int64), kinds)

    def _arrived(
        self, place: int, source: MapSource, batch: Batch, epochs: RowEpochs | None, kinds: Kinds | None
    ) -> Arrived:
        """kinds: of each row; ``None``: all are only added."""
        keys = [canonical(batch.rows.column(name)) for name in source.key]
        return Arrived(self._told(place, source, batch.rows, kinds), keys, batch.hash64, epochs)

    def _told(self, place: int, source: MapSource, rows: pa.RecordBatch, kinds: Kinds | None) -> pa.RecordBatch:
        """The rows with all columns that the function gets."""
        own = self._columns[place].names
        if rows.schema.names == self.schema.names:
            return rows
        found: list[pa.Array] = []
        for field in self.schema:
            if field.name in own:
                found.append(rows.column(field.name))
            elif field.name == SOURCE_COLUMN and self._op.tells_source:
                found.append(pa.repeat(pa.scalar(source.name), len(rows)))
            elif field.name == CHANGE_COLUMN and (self._op.tells_source or source.changes):
                codes = np.full(len(rows), ChangeKind.INSERT, np.int8) if kinds is None else kinds
                found.append(_KINDS.take(pa.array(codes)))
            else:
                found.append(pa.nulls(len(rows), field.type))
        return pa.RecordBatch.from_arrays(found, schema=self.schema)
