"""Rows with values of the clock as columns."""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from upriver.plan.clock import ClockColumn, ClockOp
from upriver.plan.column_names import plain_columns, quoted, unique
from upriver.plan.plan import ProjectOp
from upriver.plan.relation import Relation


def clocked(rows: Relation, op: ClockOp, place: int | None) -> Relation:
    """The rows with results of the clock."""
    return Relation(op, (rows,), pa.schema([*rows.schema, *op.fields]), place)


def with_clock_column(
    relation: Relation, column: ClockColumn, taken: set[str], place: int | None
) -> tuple[Relation, str]:
    """The rows with a value of the clock, and its column's name. taken: names that no other column may have, lower
    case; the name is added.

    Rows wait once, whatever the number of values: so a value that the rows have already stays it, and another one is
    computed beside it. Below a projection that can fail, so that expressions above can still take it in.
    """
    name = unique(column.output, taken | set(_names(relation)))
    taken.add(name.lower())
    return _with(relation, replace(column, output=name), place)


def _names(relation: Relation) -> Iterator[str]:
    """All names, in lower case, from these rows down to those that have the clock."""
    yield from (name.lower() for name in relation.schema.names)
    if isinstance(relation.op, ProjectOp | ClockOp):
        yield from _names(relation.inputs[0])


def _with(relation: Relation, column: ClockColumn, place: int | None) -> tuple[Relation, str]:
    op = relation.op
    if isinstance(op, ClockOp):
        (rows,) = relation.inputs
        known = next((one.output for one in op.columns if replace(one, output="") == replace(column, output="")), None)
        if known is not None:
            return relation, known
        return clocked(rows, replace(op, columns=(*op.columns, column)), relation.place), column.output
    if isinstance(op, ProjectOp) and (relation.fails or isinstance(relation.inputs[0].op, ClockOp)):
        below, name = _with(relation.inputs[0], column, place)
        known = next((seen for seen, source in plain_columns(op.projection).items() if source == name), None)
        if known is not None:
            return relation, known
        projection = op.projection.longer([quoted(name)], [pa.field(column.output, column.type)])
        made = replace(relation, op=ProjectOp(projection), inputs=(below,), schema=projection.schema)
        return made, column.output
    return clocked(relation, ClockOp((), (column,)), place), column.output
