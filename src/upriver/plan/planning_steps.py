"""A query as the planner handles it: steps, each of which is there once however often the query does the same."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from upriver.plan.column_names import columns_in, plain_columns, quoted, with_columns
from upriver.plan.ops import Aggregate, Filter, Join, JoinKind, Latest, Op, Project, Scan, SetOperation, TopK, Union
from upriver.plan.plan import Projection
from upriver.plan.routing import LEFT_HOLDS, RIGHT_HOLDS

RETRACTING_JOINS = frozenset({JoinKind.LEFT, JoinKind.RIGHT, JoinKind.FULL, JoinKind.SEMI, JoinKind.ANTI})
"""Joins that may take a row back although none of their inputs does."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An operator over other steps. Equal steps are one: :class:`Steps` sees to that. schema: of its rows.

    retracts: whether a row of it may be taken back. stateless: whether all that it does can be forgotten at once.
    """

    op: Op
    inputs: tuple["Step", ...]
    schema: pa.Schema
    retracts: bool
    stateless: bool


class Steps:
    """Makes steps. Filters and projections sink below unions, and become as few as they can be."""

    def __init__(self) -> None:
        self._made: dict[tuple[Op, tuple[int, ...], pa.Schema], Step] = {}

    def make(self, op: Op, inputs: Sequence[Step], schema: pa.Schema) -> Step:
        """This very operator over these steps."""
        key = (op, tuple(map(id, inputs)), schema)
        step = self._made.get(key)
        if step is None:
            retracts = _retracts(op) or any(step.retracts for step in inputs)
            stateless = isinstance(op, Scan | Filter | Project | Union) and all(step.stateless for step in inputs)
            step = self._made[key] = Step(op, tuple(inputs), schema, retracts, stateless)
        return step

    def filter(self, step: Step, predicate: str) -> Step:
        """The rows of the step for which the predicate is true."""
        if isinstance(step.op, Union):
            return self.union([self.filter(part, predicate) for part in step.inputs], step.schema)
        if isinstance(step.op, Project):
            (source,), sources = step.inputs, plain_columns(step.op.projection)
            if columns_in(predicate) <= set(sources):
                return self.project(self.filter(source, with_columns(predicate, sources)), step.op.projection)
        side = _side(step, predicate)
        if side is not None:
            inputs = list(step.inputs)
            inputs[side] = self.filter(inputs[side], predicate)
            return self.make(step.op, inputs, step.schema)
        return self.make(Filter(predicate), [step], step.schema)

    def project(self, step: Step, projection: Projection) -> Step:
        """The projection of the step's rows."""
        if projection.schema == step.schema and plain_columns(projection) == {name: name for name in step.schema.names}:
            return step
        if isinstance(step.op, Union):
            return self.union([self.project(part, projection) for part in step.inputs], projection.schema)
        if isinstance(step.op, Project):
            merged = _merged(projection, step.op.projection)
            if merged is not None:
                return self.project(step.inputs[0], merged)
        return self.make(Project(projection), [step], projection.schema)

    def union(self, parts: Iterable[Step], schema: pa.Schema) -> Step:
        """The rows of all parts. Those that keep nothing are together: one region can read them all."""
        flat = [inner for part in parts for inner in (part.inputs if isinstance(part.op, Union) else [part])]
        easy = [part for part in flat if part.stateless]
        if 1 < len(easy) < len(flat):
            flat = [self.make(Union(), easy, schema), *(part for part in flat if not part.stateless)]
        return flat[0] if len(flat) == 1 else self.make(Union(), flat, schema)

    def narrowed(self, step: Step, columns: Iterable[str]) -> Step:
        """The step's rows with these columns of its own only, in the order in which the step has them."""
        wanted = set(columns)
        return self.project(step, plain(field for field in step.schema if field.name in wanted))


def plain(fields: Iterable[pa.Field]) -> Projection:
    """To these columns as they are."""
    schema = pa.schema(list(fields))
    return Projection(tuple(map(quoted, schema.names)), schema)


def _retracts(op: Op) -> bool:
    """Whether the operator takes rows back, even if none that it has seen is taken back."""
    return isinstance(op, Aggregate | TopK | SetOperation | Latest) or (
        isinstance(op, Join) and op.kind in RETRACTING_JOINS
    )


def _side(step: Step, predicate: str) -> int | None:
    """The input of a join on which the predicate can be decided, if the join gives none of its rows changed."""
    if isinstance(step.op, Join) and (named := columns_in(predicate)):
        for side, kinds in enumerate((LEFT_HOLDS, RIGHT_HOLDS)):
            if step.op.kind in kinds and named <= set(step.inputs[side].schema.names):
                return side
    return None


def _merged(outer: Projection, inner: Projection) -> Projection | None:
    """One projection for two, if nothing would be computed twice, or be computed that was not before."""
    computed = dict(zip(inner.schema.names, inner.expressions, strict=True))
    inner_plain, outer_plain = plain_columns(inner), plain_columns(outer)
    expressions = []
    for expression, name in zip(outer.expressions, outer.schema.names, strict=True):
        if name in outer_plain:
            expressions.append(computed[outer_plain[name]])
        elif columns_in(expression) <= set(inner_plain):
            expressions.append(with_columns(expression, inner_plain))
        else:
            return None
    repeated = [text for text in expressions if text not in map(quoted, inner_plain.values())]
    if len(set(repeated)) < len(repeated):
        return None
    return Projection(tuple(expressions), outer.schema)
