"""Rows leave a table when they are too old (docs/internals/retention.md).

The *cut* of a table at the end of an epoch is the newest time that the table has got by then, less the interval. It
never falls. A row remains while its time is above the cut; a row without a time stays. An epoch's changes are its own
rows that remain, and the retraction of earlier rows that its cut has reached. So every reader of the lake finds the
changes of an epoch from its rows and from two numbers in its manifest.

Of an upsert table, versions come and go in the same way, and the operator ``Latest`` decides: a version that comes too
late still replaces older ones, and the key has no row then.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.operators.operator import concatenated
from upriver.plan.plan import TableSpec
from upriver.plan.retention import Retain
from upriver.records import typed
from upriver.state.span import TIME_MIN, TimeSpan, times_of
from upriver.state.vectors import Mask


@dataclass(frozen=True, slots=True)
class Retention:
    """A table's retention at the end of an epoch. column: of the times, counted as in ``plan/retention.py``.

    newest: the newest time that the table has got. cut: rows up to and including it have left the table. before: the
    cut of the epoch before. ``None``: there is none yet.
    """

    column: str
    newest: int | None = None
    before: int | None = None
    cut: int | None = None

    @property
    def moves(self) -> bool:
        """Whether rows may leave with this epoch."""
        return self.cut is not None and self.cut != self.before

    def following(self) -> Self:
        """At the end of an epoch of another table."""
        return replace(self, before=self.cut)

    def advanced(self, interval: int | None, span: TimeSpan | None) -> Self:
        """At the end of the table's next epoch. interval: as declared. span: of the epoch's rows."""
        times = [time for time in (self.newest, None if span is None else span.newest) if time is not None]
        newest = max(times, default=None)
        cuts = [] if self.cut is None else [self.cut]
        cuts += [] if newest is None or interval is None else [newest - interval]
        return replace(self, newest=newest, before=self.cut, cut=max(cuts, default=None))

    def to_json(self) -> dict[str, Any]:
        return {"column": self.column, "newest": self.newest, "before": self.before, "cut": self.cut}

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        return typed(cls(json["column"], json["newest"], json["before"], json["cut"]))


def retained_after(
    before: Mapping[str, Retention], table: str, retain: Retain | None, span: TimeSpan | None
) -> dict[str, Retention]:
    """The retention of all tables at the end of the next epoch, which is the table's. before: at the end of the last
    one. retain: of the table. span: of the epoch's rows."""
    after = {name: retained.following() for name, retained in before.items()}
    if retain is not None:
        known = before.get(table, Retention(retain.column))
        after[table] = known.advanced(retain.interval, span)
    return after


def too_old(rows: pa.RecordBatch, column: str, cut: int | None) -> Mask:
    """Which rows have left the table: their time is not above the cut."""
    if cut is None:
        return np.zeros(rows.num_rows, np.bool_)
    times, known = times_of(rows.column(column))
    return known & (times <= cut)


def remaining(rows: pa.RecordBatch, table: TableSpec, column: str, cut: int | None) -> pa.RecordBatch:
    """The rows that a table still needs in the lake. rows: of any of its epochs, with its columns. cut: of the newest
    epoch that no reader needs apart.

    An upsert table loses no versions, unless its versions are ordered by their times, which are never null: a version
    that is too old else keeps older ones from coming back.
    """
    if not gives_up_rows(table, column):
        return rows
    gone = too_old(rows, column, cut)
    return rows.filter(pa.array(~gone)) if gone.any() else rows


def all_left(table: TableSpec, span: TimeSpan | None, column: str, cut: int | None) -> bool:
    """Whether ``remaining`` leaves nothing of a run, judged by its span. ``None``: not known."""
    if span is None or cut is None or not gives_up_rows(table, column):
        return False
    return not span.nulls and span.newest <= cut


def gives_up_rows(table: TableSpec, column: str) -> bool:
    """Whether the lake needs no row that is too old: of an upsert table that is so if every version that is older than
    one that is too old is too old itself."""
    return not table.primary_key or (table.order_by[:1] == (column,) and not table.schema.field(column).nullable)


def as_of(batch: Batch, table: TableSpec, column: str, cut: int | None) -> Batch:
    """The rows that come in, of an epoch or of several up to the one with this cut: of an append table those that
    remain, of an upsert table all versions, with weight 0 if they are too old to be a row."""
    gone = too_old(batch.rows, column, cut)
    if not gone.any():
        return batch
    if table.primary_key:
        return Batch(batch.rows, batch.hash64, np.where(gone, 0, 1))
    return batch.filtered(~gone)


def leaving(batch: Batch, column: str, before: int | None, cut: int | None) -> Batch:
    """Retractions of the rows that remain at one cut, and not at a later one. batch: of earlier epochs."""
    times, known = times_of(batch.rows.column(column))
    gone = known & (times > (TIME_MIN if before is None else before)) & (times <= (TIME_MIN if cut is None else cut))
    rows = batch.filtered(gone)
    return Batch(rows.rows, rows.hash64, np.full(len(rows), -1, np.int64))


def together(come: Batch, leave: Batch) -> Batch:
    """The rows of two batches sorted by hash64 as one: of each key first those that come."""
    if not len(leave):
        return come
    both = concatenated([come, leave])
    order = np.argsort(both.hash64, kind="stable")
    assert both.weight is not None
    return Batch(both.rows.take(pa.array(order)), both.hash64[order], both.weight[order])
