"""Columns that nobody needs are left out, so that they are neither kept nor sent.

A step that several others use keeps what any of them needs, and stays one step.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from upriver.plan.column_names import columns_in
from upriver.plan.ops import Aggregate, Filter, Join, JoinKind, Latest, Project, Scan, TopK, Union
from upriver.plan.plan import AggregatePlan, Projection
from upriver.plan.planning_steps import Step, Steps

Needs = dict[Step, set[str]]
"""Of each step, the columns that are needed."""


def pruned(root: Step, steps: Steps) -> Step:
    """The same rows of ``root``, without what is not needed on the way to them."""
    needs = _needs(root)
    done: dict[Step, Step] = {}
    for step in reversed(list(needs)):
        inputs = [done[part] for part in step.inputs]
        done[step] = _rebuilt(step, needs[step], inputs, steps)
    return done[root]


def _needs(root: Step) -> Needs:
    """In such an order that a step comes before its inputs."""
    needs: Needs = {step: set() for step in _users_first(root)}
    needs[root] = set(root.schema.names)
    for step, needed in needs.items():
        for part, wanted in zip(step.inputs, _wanted(step, needed), strict=True):
            # Without any column, a batch would not know how many rows it has.
            needs[part] |= wanted or set(part.schema.names[:1])
    return needs


def _users_first(root: Step) -> list[Step]:
    seen: dict[Step, None] = {}

    def visit(step: Step) -> None:
        for part in step.inputs:
            if part not in seen:
                visit(part)
        seen[step] = None

    visit(root)
    return list(reversed(seen))


def _wanted(step: Step, needed: set[str]) -> list[set[str]]:
    """What a step needs of each of its inputs."""
    match step.op:
        case Scan():
            return []
        case Filter(predicate):
            return [needed | columns_in(predicate)]
        case Project(projection):
            outputs = zip(projection.schema.names, projection.expressions, strict=True)
            return [_named(expression for name, expression in outputs if name in needed)]
        case Aggregate(plan):
            return [_of_groups(_calls(plan, needed))]
        case Join():
            condition = set() if step.op.condition is None else columns_in(step.op.condition)
            of_all = needed | condition | {*step.op.left_key, *step.op.right_key}
            return [of_all & set(part.schema.names) for part in step.inputs]
        case Latest():
            deleted = set() if step.op.deleted is None else columns_in(step.op.deleted)
            return [{*needed, *step.op.key, *step.op.order_by, *deleted}]
        case TopK():
            return [(needed - {step.op.rank}) | {*step.op.partition, *(order.column for order in step.op.order)}]
        case Union():
            return [needed for _ in step.inputs]
        case _:
            return [set(part.schema.names) for part in step.inputs]


def _named(expressions: Iterable[str]) -> set[str]:
    return {column for expression in expressions for column in columns_in(expression)}


def _calls(plan: AggregatePlan, needed: set[str]) -> AggregatePlan:
    """The aggregate without the calls whose results nobody needs."""
    return replace(plan, calls=tuple(call for call in plan.calls if call.output in needed))


def _of_groups(plan: AggregatePlan) -> set[str]:
    columns = [column for call in plan.calls for column in (call.argument, call.where)]
    return {*plan.group, *(column for column in columns if column is not None)}


def _rebuilt(step: Step, needed: set[str], inputs: Sequence[Step], steps: Steps) -> Step:
    """The step over these inputs. It may give more columns than are needed, where they cost nothing."""
    wanted = _wanted(step, needed)
    match step.op:
        case Filter(predicate):
            return steps.filter(inputs[0], predicate)
        case Project(projection):
            return steps.project(inputs[0], _part(projection, needed))
    exact = [steps.narrowed(part, columns) for part, columns in zip(inputs, wanted, strict=True)]
    match step.op:
        case Union():
            return steps.union(exact, _fields(step.schema, needed))
        case Aggregate(plan):
            kept = _calls(plan, needed)
            outputs = {*kept.group, *(call.output for call in kept.calls)}
            return steps.make(Aggregate(kept), exact, _fields(step.schema, outputs))
        case Join():
            sides = exact[:1] if step.op.kind in (JoinKind.SEMI, JoinKind.ANTI) else exact
            names = {name for part in sides for name in part.schema.names}
            return steps.make(step.op, exact, _fields(step.schema, names))
        case Latest():
            return steps.make(step.op, exact, exact[0].schema)
        case TopK():
            # Ties are settled by the columns that are left: which of them is settled first, nobody asked.
            rank = step.op.rank if step.op.rank in needed else None
            ranked = [] if rank is None else [step.schema.field(rank)]
            return steps.make(replace(step.op, rank=rank), exact, pa.schema([*exact[0].schema, *ranked]))
        case _:
            return steps.make(step.op, exact, step.schema)


def _part(projection: Projection, needed: set[str]) -> Projection:
    places = [place for place, name in enumerate(projection.schema.names) if name in needed]
    expressions = tuple(projection.expressions[place] for place in places)
    return Projection(expressions, pa.schema([projection.schema.field(place) for place in places]))


def _fields(schema: pa.Schema, names: set[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name in names])
