"""The interface of a region's operators, and what they share.

An operator takes changes and gives changes. It needs an evaluator for scalar expressions
(:class:`ExpressionEvaluator`). The state of some keys goes from one operator, or store, to another in batches, the
*parts*.

:func:`net_changes` gives a batch's net change of each entry. A batch is a multiset of changes: a row may come before it
goes, or after. :func:`consolidated` reduces changes to few rows: additions and retractions that cancel out leave no
trace.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.errors import ProtocolError
from upriver.hashing import Hashes, hash64
from upriver.plan.plan import Projection, UserFunction
from upriver.state.columns import array_of, canonical
from upriver.state.indexes import first_equal, is_hashable
from upriver.state.vectors import Positions, Slots, Weights, true_at


class Operator(Protocol):
    """Changes in, changes out. Each row goes with the hash64 of the region's routing key, which an operator keeps."""

    def apply(self, port: int, batch: Batch) -> Batch:
        """Take in changes of one input (ports count from 0); returns the changes of the output that follow.

        After each call the output is as if all rows so far had come at once. Raises RowError for a row at fault; the
        operator must not be used after that.
        """
        ...


class Stateful(Operator, Protocol):
    """An operator that keeps state by the routing key or by something finer. Its state can be moved."""

    @property
    def parts(self) -> int:
        """How many batches :meth:`collect` gives. It depends on the plan only."""
        ...

    @property
    def held(self) -> int:
        """How many rows, or states, are kept."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of memory, without reserved room that is not used yet. Costs no more with size."""
        ...

    @property
    def live_nbytes(self) -> int:
        """The part of ``nbytes`` that live entries use; compaction gives the rest back."""
        ...

    def hashes_between(self, least: int, most: int) -> Hashes:
        """The hash64 of the routing keys that have state, from ``least`` to ``most`` inclusive.

        In no particular order, each any number of times.
        """
        ...

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """All state of the routing keys with these hash64, ascending and unique; the operator keeps it, too.

        ``parts`` batches, whose schemas depend on the plan only, with the routing key's hash64 as the first column. Any
        of them may have no rows.
        """
        ...

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        """Install what another operator of the same plan has collected. These keys must have no state here yet."""
        ...

    def drop(self, keys: Hashes) -> None:
        """Forget all state of the routing keys with these hash64, ascending and unique. Compaction gives memory
        back."""
        ...


class ExpressionEvaluator(Protocol):
    """Evaluates DuckDB SQL over the columns of a batch; raises RowError when a row makes an expression fail."""

    def define(self, functions: Sequence[UserFunction]) -> None:
        """Let expressions call these functions of users."""
        ...

    def without_row_text(self) -> "ExpressionEvaluator":
        """The same evaluator with short errors: they do not say which row fails, because finding it takes time."""
        ...

    def project(self, rows: pa.RecordBatch, projection: Projection) -> pa.RecordBatch:
        """The projection's columns, one row for each of ``rows``, in order."""
        ...

    def mask(self, rows: pa.RecordBatch, predicate: str) -> npt.NDArray[np.bool_]:
        """Where the predicate is true; null counts as false."""
        ...


def part_of(hashes: Hashes, columns: Sequence[pa.Array]) -> pa.RecordBatch:
    """A part: the hash64 of each row's routing key, then the columns, named by their numbers."""
    columns = [array_of(pa.uint64(), hashes), *columns]
    return pa.RecordBatch.from_arrays(columns, [str(place) for place in range(len(columns))])


def check_new(are_new: bool) -> None:
    """Raises ProtocolError unless the installed keys had no state."""
    if not are_new:
        raise ProtocolError("state was installed of a key that has state here")


class Net(NamedTuple):
    """slots: of the entries that a batch names, ascending and unique. first: the first row of each.

    weight: by how much the count of each entry changes, which may be zero.
    """

    slots: Slots
    first: Positions
    weight: Weights


def net_changes(slots: Slots, weight: Weights | None) -> Net:
    """Add up the weights of rows of the same entry. slots: the entry of each row. weight: ``None`` is 1 for each."""
    if weight is None:
        return Net(*np.unique(slots, return_index=True, return_counts=True))
    named, first, places = np.unique(slots, return_index=True, return_inverse=True)
    net = np.zeros(len(named), np.int64)
    np.add.at(net, places, weight)
    return Net(named, first, net)


SAMPLE_ROWS = 512
"""Rows that are sampled before all rows are compared with each other."""


def concatenated(batches: Sequence[Batch]) -> Batch:
    """Batches of one schema, one or more, as one."""
    if len(batches) == 1:
        return batches[0]
    schema = batches[0].rows.schema
    weights = [np.ones(len(batch), np.int64) if batch.weight is None else batch.weight for batch in batches]
    return Batch(
        pa.concat_batches([_of_schema(batch.rows, schema) for batch in batches]),
        np.concatenate([batch.hash64 for batch in batches]),
        None if all(batch.weight is None for batch in batches) else np.concatenate(weights),
    )


def consolidated(batch: Batch) -> Batch:
    """The same changes without rows that cancel out, and without rows of weight zero.

    Equal rows become one, with the sum of their weights. If nothing is taken back and few rows seem to be equal, rows
    stay as they are, because comparing them would save nothing. Rows are equal as :mod:`upriver.plan.plan` says. Each
    row keeps the hash64 of the first of its equals.
    """
    weight = np.ones(len(batch), np.int64) if batch.weight is None else batch.weight
    if (weight > 0).all() and not _repeats(batch.rows):
        return batch
    if not weight.all():
        batch, weight = batch.filtered(weight != 0), weight[weight != 0]
    columns = [canonical(column) for column in batch.rows.columns]
    first = first_equal(row_hashes(columns, len(batch)), columns)
    net = np.zeros(len(batch), np.int64)
    np.add.at(net, first, weight)
    kept = true_at(net)
    return Batch(batch.rows.take(pa.array(kept)), batch.hash64[kept], net[kept])


def _repeats(rows: pa.RecordBatch) -> bool:
    """Whether many rows are equal, judged by a sample."""
    places = np.linspace(0, rows.num_rows - 1, min(rows.num_rows, SAMPLE_ROWS)).astype(np.int64)
    hashes = row_hashes([canonical(column.take(pa.array(places))) for column in rows.columns], len(places))
    return 2 * len(np.unique(hashes)) < len(places)


def row_hashes(columns: Sequence[pa.Array], rows: int) -> Hashes:
    """Equal hashes for equal rows. Columns that cannot be hashed are left out; equality is checked later."""
    return hash64([column for column in columns if is_hashable(column.type)], rows)


def _of_schema(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with this schema. Schemas of one relation may differ in which columns may be null, as joins see it."""
    return rows if rows.schema is schema else pa.RecordBatch.from_arrays(rows.columns, schema=schema)
