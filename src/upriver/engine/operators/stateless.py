"""Stateless operators: Filter, Project, Union, Salt, Replicate and Explode.

Filter passes the rows for which a predicate is true; a retraction passes where its row passed. Project computes other
columns for the same rows. Most expressions are the plain name of a column: these pass without a copy, and only the
others go to the evaluator. As operators of a region, Filter and Project pass each row by itself, with its hash64 and
its weight.

Union passes the rows of several inputs as they come (UNION ALL).

Salt gives each row a slot that follows from its values alone, so that a retraction gets the slot of its row. Replicate
gives each row to every slot. A join by the slot then brings each row of one side to all rows of the other.

Explode gives each row once for each element of a list that it computes from the row. The list is not kept.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.operators.operator import ExpressionEvaluator
from upriver.hashing import hash64
from upriver.plan.column_names import plain_columns
from upriver.plan.plan import ExplodeOp, Projection, ReplicateOp, SaltOp
from upriver.state.columns import canonical, cells_of
from upriver.state.vectors import spread


class Filter:
    """SQL's WHERE over the columns of a table."""

    __slots__ = ("_evaluator", "_predicate")

    def __init__(self, predicate: str, evaluator: ExpressionEvaluator) -> None:
        """predicate: DuckDB SQL."""
        self._predicate = predicate
        self._evaluator = evaluator

    def apply(self, batch: Batch) -> Batch:
        """The rows to keep, in order, with their hashes and weights. Raises RowError as the evaluator does."""
        return batch.filtered(self._evaluator.mask(batch.rows, self._predicate))


class Project:
    """SQL's SELECT list."""

    __slots__ = ("_computed", "_evaluator", "_plain", "_schema")

    def __init__(self, projection: Projection, evaluator: ExpressionEvaluator) -> None:
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


class Filtering:
    """The rows for which a predicate is true."""

    __slots__ = ("_filter",)

    def __init__(self, predicate: str, evaluator: ExpressionEvaluator) -> None:
        self._filter = Filter(predicate, evaluator)

    def apply(self, port: int, batch: Batch) -> Batch:
        """Raises RowError if the predicate fails on a row."""
        return self._filter.apply(batch)


class Projecting:
    """Other columns for the same rows."""

    __slots__ = ("_project",)

    def __init__(self, projection: Projection, evaluator: ExpressionEvaluator) -> None:
        self._project = Project(projection, evaluator)

    def apply(self, port: int, batch: Batch) -> Batch:
        """Raises RowError if an expression fails on a row."""
        return batch.replaced(self._project.apply(batch.rows))


class Union:
    """Passes the rows of inputs that agree in the names and types of their columns; ``schema`` is the output's."""

    __slots__ = ("_schema",)

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def apply(self, port: int, batch: Batch) -> Batch:
        """The changes of any input."""
        return batch.replaced(pa.RecordBatch.from_arrays(batch.rows.columns, schema=self._schema))


class Salt:
    """Rows with their slot; ``schema`` is the output's."""

    __slots__ = ("_columns", "_schema", "_slots")

    def __init__(self, op: SaltOp, schema: pa.Schema) -> None:
        self._columns = op.columns
        self._slots = np.uint64(op.slots)
        self._schema = schema

    def apply(self, port: int, batch: Batch) -> Batch:
        """The changes, each in its slot."""
        hashes = hash64([canonical(batch.rows.column(name)) for name in self._columns], len(batch))
        slots = pa.array((hashes % self._slots).astype(np.int32))
        return batch.replaced(pa.RecordBatch.from_arrays([*batch.rows.columns, slots], schema=self._schema))


class Replicate:
    """Rows once for each slot; ``schema`` is the output's."""

    __slots__ = ("_schema", "_slots")

    def __init__(self, op: ReplicateOp, schema: pa.Schema) -> None:
        self._slots = op.slots
        self._schema = schema

    def apply(self, port: int, batch: Batch) -> Batch:
        """The changes, each in every slot."""
        places = np.repeat(np.arange(len(batch)), self._slots)
        slots = pa.array(np.tile(np.arange(self._slots, dtype=np.int32), len(batch)))
        taken = batch.rows.take(pa.array(places))
        rows = pa.RecordBatch.from_arrays([*taken.columns, slots], schema=self._schema)
        return Batch(rows, batch.hash64[places], None if batch.weight is None else batch.weight[places])


class Explode:
    """Rows once for each element of their list; ``schema`` is the output's."""

    __slots__ = ("_evaluator", "_lists", "_op", "_schema")

    def __init__(self, op: ExplodeOp, schema: pa.Schema, evaluator: ExpressionEvaluator) -> None:
        self._op = op
        self._schema = schema
        self._evaluator = evaluator
        self._lists = Projection((op.elements,), pa.schema([("elements", pa.list_(op.type))]))

    def apply(self, port: int, batch: Batch) -> Batch:
        """The changes, each once for each of its elements. Raises RowError if the list cannot be computed for a row."""
        lists = self._evaluator.project(batch.rows, self._lists).column(0)
        counts = cells_of(lists.value_lengths().fill_null(0)).astype(np.int64)
        times = np.maximum(counts, 1) if self._op.keeps_empty else counts
        places = np.repeat(np.arange(len(batch)), times)
        is_missing = np.repeat(counts == 0, times)
        values = lists.flatten()
        if is_missing.any():
            values = values.take(pa.array(np.cumsum(~is_missing) - 1, mask=is_missing))
        made = values.flatten() if pa.types.is_struct(values.type) else [values]
        if self._op.position is not None:
            positions = spread(np.zeros_like(times), times).astype(np.int32)
            made = [pa.array(positions, mask=is_missing), *made]
        rows = pa.RecordBatch.from_arrays([*batch.rows.take(pa.array(places)).columns, *made], schema=self._schema)
        return Batch(rows, batch.hash64[places], None if batch.weight is None else batch.weight[places])
