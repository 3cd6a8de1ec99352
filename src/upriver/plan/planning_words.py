"""Why a region is keyed as it is, and why it ends where it does, in words for ``explain``."""

from collections.abc import Iterable

from upriver.plan.column_names import plain_columns
from upriver.plan.ops import Aggregate, Filter, Join, Latest, Project, Scan, SetOperation, StatefulMap, TopK, Union
from upriver.plan.origins import listed, origin
from upriver.plan.planning_keys import inward
from upriver.plan.planning_steps import Step
from upriver.plan.routing import Key


def why_looked_up(key: Key) -> str:
    """Of the last region. key: of the view."""
    return f"keyed by {listed(key)}, by which the view is looked up"


def why_keyed(step: Step, keys: tuple[Key, ...] | None) -> str:
    """Of a region whose key is the choice of ``step``, which wants its inputs by ``keys``."""
    if keys is None:
        return "keeps nothing, so its rows come by the tables' own keys"
    if not keys[0]:
        return "has all rows in one place, for all of them are compared with each other"
    names = [_origins(part, key) for part, key in zip(step.inputs, keys, strict=True)]
    return f"keyed by {' and '.join(dict.fromkeys(names))}, {_what_for(step)}"


def why_cut(step: Step, key: Key, user: str) -> str:
    """user: the region that needs the rows of ``step`` by ``key``."""
    if not key:
        return f"ends here because {user} needs its rows in one place"
    return f"ends here because {user} needs its rows by {_origins(step, key)}{_obstacle(step, key)}"


def _origin(step: Step, column: str) -> str:
    if isinstance(step.op, Scan):
        return f"{step.op.table}.{column}"
    schemas = [part.schema for part in step.inputs]
    return origin(step.op, column, schemas, lambda place, name: _origin(step.inputs[place], name))


def _origins(step: Step, columns: Iterable[str]) -> str:
    return listed(_origin(step, column) for column in columns)


def _what_for(step: Step) -> str:
    source = step.inputs[0]
    match step.op:
        case Aggregate(plan):
            return f"for groups by {_origins(source, plan.group)}"
        case Join():
            return f"for the {step.op.kind} join on {_pairs(step, step.op)}"
        case TopK():
            return f"for the first {step.op.limit} of each {_origins(source, step.op.partition)}"
        case Latest():
            return f"for the latest row of each {_origins(source, step.op.key)}"
        case StatefulMap():
            return f"for the stateful map of each {_origins(source, step.op.key)}"
        case SetOperation():
            return f"for {step.op.kind}, which compares whole rows"
        case _:
            return "which all of its inputs have"


def _pairs(step: Step, op: Join) -> str:
    left, right = step.inputs
    pairs = zip(op.left_key, op.right_key, strict=True)
    return " and ".join(f"{_origin(left, one)} = {_origin(right, other)}" for one, other in pairs)


def _obstacle(step: Step, key: Key) -> str:
    """What keeps the rows from being there by the key at once; if nothing does, why they are exchanged so late."""
    inputs = inward(step, key)
    if inputs is None:
        return _missing(step, key)
    if isinstance(step.op, Filter | Project | Union):
        found = (_obstacle(part, wanted) for part, wanted in zip(step.inputs, inputs, strict=True))
        return next((obstacle for obstacle in found if obstacle), "")
    return ", and fewer rows are exchanged here than before"


def _missing(step: Step, key: Key) -> str:
    match step.op:
        case Project(projection):
            computed = [column for column in key if column not in plain_columns(projection)]
            return f", and {_origins(step, computed)} is computed" if computed else ""
        case Aggregate(plan):
            return f", which is more than {_origins(step, plan.group)}, by which rows are grouped"
        case Join():
            return f", which is not what the {step.op.kind} join compares"
        case TopK():
            return f", which is more than {_origins(step, step.op.partition)}, within which rows are ranked"
        case Latest():
            return f", which is more than the primary key {_origins(step, step.op.key)}"
        case StatefulMap():
            return f", which is more than {_origins(step, step.op.key)}, of which the stateful map has a state"
        case _:
            return ""
