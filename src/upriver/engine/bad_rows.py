"""BadRowFilter: where a table's rows enter a region, it keeps out the rows from which the view cannot be computed.

The filter runs a batch of a table's rows through every node that sees each row by itself. No operator has kept anything
of the batch by then. If the batch fails, the filter finds the bad rows by halving the batch. The table's policy
decides: the filter sets the bad rows aside, or the first of them makes the epoch fail.

A view may read a table more than once, in this region or in others. A row that is bad for one of these reads is left
out of all of them, so a view reflects the good rows only. The filter therefore also tries what other regions compute
from the row, only to see whether it fails.

An error in a later step, over several rows, belongs to no single row: it makes the epoch fail.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.builders import stateless_of
from upriver.engine.expressions import GUARD
from upriver.engine.operators.operator import ExpressionEvaluator, Operator, concatenated
from upriver.engine.row_text import row_text
from upriver.errors import RowError
from upriver.hashing import hash64
from upriver.plan.column_names import plain_columns
from upriver.plan.plan import DataflowPlan, ExplodeOp, FilterOp, LatestOp, Op, ProjectOp, RegionPlan
from upriver.plan.provenance import TableRows, one_by_one, table_rows
from upriver.state.columns import canonical
from upriver.state.indexes import first_equal, is_hashable
from upriver.state.vectors import Positions

Attempt = Callable[[Batch], object]
"""Raises RowError if any of the rows is bad. It keeps nothing of them, and sees each by itself."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """Rows of a table that were left out of a view. rows: with the table's schema. errors: what is wrong with each."""

    view: str
    table: str
    rows: pa.RecordBatch
    errors: Sequence[str]


def bad_rows(batch: Batch, attempt: Attempt) -> Iterator[tuple[int, str]]:
    """The rows on which the attempt fails, ascending, each with what is wrong; it fails on the whole batch.

    k bad rows of n take O(k log n) attempts, on O(n log k) rows in all.
    """

    def error(start: int, stop: int) -> str | None:
        try:
            attempt(batch.slice(start, stop))
        except RowError as failed:
            return str(failed)
        return None

    def among(start: int, stop: int) -> Iterator[tuple[int, str]]:
        """Finds the bad rows among these rows, which hold at least one."""
        if stop - start == 1:
            found = error(start, stop)
            if found is not None:
                yield start, found
            return
        middle = (start + stop) // 2
        first_is_bad = error(start, middle) is not None
        if first_is_bad:
            yield from among(start, middle)
        if not first_is_bad or error(middle, stop) is not None:
            yield from among(middle, stop)

    yield from among(0, len(batch))


_OR_SET_ASIDE = "or have such rows set aside: app.table(..., on_bad_row='set_aside')"

Flowing = dict[int, Batch]
"""What inputs and nodes have put out, by number, as :class:`RegionPlan` counts them."""

Check = Callable[[Mapping[int, Batch]], object]
"""Raises RowError if something else cannot be computed from the rows, given what their own nodes make of them."""


def passed(operator: Operator, inputs: Sequence[int], flowing: Mapping[int, Batch]) -> Batch | None:
    """What a node makes of what has come to it; ``None`` if nothing has."""
    changes = [
        operator.apply(place, flowing[source])
        for place, source in enumerate(inputs)
        if source in flowing and len(flowing[source])
    ]
    return concatenated(changes) if changes else None


class Trial:
    """Takes rows of one number through the nodes of its region that see each by itself."""

    __slots__ = ("_nodes", "_number")

    def __init__(self, plan: RegionPlan, number: int, operators: Mapping[int, Operator]) -> None:
        """operators: of those nodes; others may be among them."""
        self._number = number
        self._nodes = [
            (place, operators[place], plan.nodes[place - len(plan.inputs)].inputs) for place in one_by_one(plan, number)
        ]

    def run(self, batch: Batch) -> Flowing:
        """The rows, and what each of the nodes makes of them. Raises RowError if one is bad."""
        flowing = {self._number: batch}
        for number, operator, inputs in self._nodes:
            made = passed(operator, inputs, flowing)
            if made is not None:
                flowing[number] = made
        return flowing


class BadRowFilter:
    """Lets the good rows of a table into a region. ``table``: its name."""

    __slots__ = ("_checks", "_found_by", "_rows", "_sets_aside", "_trial", "_view")

    def __init__(
        self,
        view: str,
        rows: TableRows,
        trial: Trial,
        checks: Sequence[Check] = (),
        found_by: Sequence[str] = (),
        *,
        sets_aside: bool,
    ) -> None:
        """found_by: columns that find a row among the versions that came in with it; empty if the table's rows come in
        as they are. sets_aside: True leaves bad rows out; False makes the epoch fail."""
        self._view = view
        self._rows = rows
        self._trial = trial
        self._checks = checks
        self._found_by = found_by
        self._sets_aside = sets_aside

    def keep_good(self, flowing: Flowing) -> SetAside | None:
        """Replace the batch with its good rows, and add what nodes make of them; returns the bad rows.

        A bad row that is retracted is not returned: it was returned when it came. Raises RowError for a bad row if this
        table's bad rows are not set aside.
        """
        batch = flowing[self._rows.number]
        try:
            flowing.update(self._tried(batch))
        except RowError as error:
            found = bad_rows(batch, self._tried)
            if not self._sets_aside:
                place, what = next(found, (0, str(error)))
                row = row_text(batch.rows, place)
                raise RowError(f"{what} in the row ({row}). {GUARD}, {_OR_SET_ASIDE}") from error
            bad = dict(found)
            is_good = np.ones(len(batch), np.bool_)
            is_good[list(bad)] = False
            flowing.update(self._tried(batch.filtered(is_good)))
            return self._left_out(batch, bad, flowing[self._rows.port])
        return None

    def _tried(self, batch: Batch) -> Flowing:
        made = self._trial.run(batch)
        for check in self._checks:
            check(made)
        return made

    def _left_out(self, batch: Batch, bad: Mapping[int, str], came: Batch) -> SetAside | None:
        """bad: by place, what is wrong. came: the batch that came in at the port."""
        errors = {place: error for place, error in bad.items() if batch.weight is None or batch.weight[place] > 0}
        if not errors:
            return None
        rows = batch.undated.rows.take(pa.array(list(errors)))
        if self._found_by:
            rows = came.rows.take(pa.array(_last_equal(came.rows, rows, self._found_by)))
        return SetAside(self._view, self._rows.table, rows, tuple(errors.values()))


def row_filters(
    view: DataflowPlan,
    region: RegionPlan,
    operators: Sequence[Operator],
    evaluator: ExpressionEvaluator,
    sets_aside: Collection[str],
) -> dict[int, BadRowFilter]:
    """One filter for each number at which a table's rows, or versions of them, come into the region.

    operators: those of the region's nodes. sets_aside: the tables whose bad rows are set aside.
    """
    trials = partial(Trial, region, operators=dict(enumerate(operators, start=len(region.inputs))))
    filters: dict[int, BadRowFilter] = {}
    for rows in table_rows(region):
        is_aside = rows.table in sets_aside
        checks = list(_elsewhere(view, region, rows, evaluator.without_row_text())) if is_aside else []
        if rows.number == rows.port:
            filters[rows.port] = BadRowFilter(view.name, rows, trials(rows.port), checks, sets_aside=is_aside)
            continue
        latest = region.nodes[rows.number - len(region.inputs)]
        assert isinstance(latest.op, LatestOp)
        found_by = (*latest.op.key, *latest.op.order_by)
        versions = replace(rows, number=rows.port)
        deleted = (
            [_deletion(latest.op, latest.inputs[0], evaluator.without_row_text())]
            if is_aside and latest.op.deleted
            else []
        )
        filters[rows.port] = BadRowFilter(view.name, versions, trials(rows.port), deleted, sets_aside=is_aside)
        filters[rows.number] = BadRowFilter(view.name, rows, trials(rows.number), checks, found_by, sets_aside=is_aside)
    return filters


def _deletion(op: LatestOp, number: int, evaluator: ExpressionEvaluator) -> Check:
    """number: of the versions that the node sees. The node evaluates the same predicate, but only once it has begun."""
    return lambda flowing: op.deleted is None or evaluator.mask(flowing[number].rows, op.deleted)


def _elsewhere(
    view: DataflowPlan, region: RegionPlan, rows: TableRows, evaluator: ExpressionEvaluator
) -> Iterator[Check]:
    """What else the view computes from each of these rows: behind this point, and where another region reads the
    table."""
    yield from _beyond(view, region, rows.number, evaluator)
    for other in view.regions:
        for again in table_rows(other):
            if again.table == rows.table and (other.name, again.number) != (region.name, rows.number):
                yield from _afresh(view, other, again.number, evaluator, rows.number)


def _beyond(view: DataflowPlan, region: RegionPlan, number: int, evaluator: ExpressionEvaluator) -> Iterator[Check]:
    """What the receiving regions compute, if the rows leave this region one by one."""
    if region.sent in (number, *one_by_one(region, number)):
        regions = {other.name: other for other in view.regions}
        for send in view.sends_here(region.name):
            yield from _afresh(view, regions[send.to], send.port, evaluator, region.sent)


def _afresh(
    view: DataflowPlan, region: RegionPlan, number: int, evaluator: ExpressionEvaluator, source: int
) -> Iterator[Check]:
    """What a region computes from its rows of this number; here the rows are those of the number ``source``."""
    numbers = one_by_one(region, number)
    trial = Trial(region, number, stateless_of(region, numbers, evaluator))
    beyond = list(_beyond(view, region, number, evaluator))
    nodes = (region.nodes[place - len(region.inputs)].op for place in numbers)
    if beyond or any(map(_may_fail, nodes)):
        yield partial(_run, trial, beyond, source)


def _run(trial: Trial, beyond: Sequence[Check], source: int, flowing: Mapping[int, Batch]) -> None:
    if source in flowing:
        made = trial.run(flowing[source])
        for check in beyond:
            check(made)


def _may_fail(op: Op) -> bool:
    return isinstance(op, FilterOp | ExplodeOp) or (
        isinstance(op, ProjectOp) and len(plain_columns(op.projection)) < len(op.projection.expressions)
    )


def _last_equal(versions: pa.RecordBatch, rows: pa.RecordBatch, columns: Sequence[str]) -> Positions:
    """For each row the last of the versions that agrees with it in these columns. There is always one."""
    backwards = pa.array(np.arange(versions.num_rows)[::-1])
    values = [
        canonical(pa.concat_arrays([versions.column(name).take(backwards), rows.column(name)])) for name in columns
    ]
    hashes = hash64([column for column in values if is_hashable(column.type)], len(values[0]))
    found: Positions = versions.num_rows - 1 - first_equal(hashes, values)[versions.num_rows :]
    return found
