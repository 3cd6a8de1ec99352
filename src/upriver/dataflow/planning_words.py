"""Why a region is keyed as it is, and why it ends where it does, in words for ``explain``."""

from collections.abc import Iterable

from upriver.dataflow.operators.project import plain_columns
from upriver.dataflow.ops import Aggregate, Filter, Join, Latest, Project, SetOperation, StatefulMap, TopK, Union
from upriver.dataflow.planning_keys import inward
from upriver.dataflow.planning_steps import Step
from upriver.dataflow.routing import Key


def listed(columns: Iterable[str]) -> str:
    """``(a, b)``."""
    return f"({', '.join(columns)})"


def why_looked_up(key: Key) -> str:
    """Of the last region."""
    return f"keyed by {listed(key)}, by which the view is looked up"


def why_keyed(step: Step, keys: tuple[Key, ...] | None) -> str:
    """Of a region whose key is the choice of ``step``, which wants its inputs by ``keys``."""
    if keys is None:
        return "keeps nothing, so its rows come by the tables' own keys"
    if not keys[0]:
        return "has all rows in one place, for all of them are compared with each other"
    return f"keyed by {' and '.join(dict.fromkeys(map(listed, keys)))}, {_what_for(step)}"


def why_cut(step: Step, key: Key, user: str) -> str:
    """user: the region that needs the rows of ``step`` by ``key``."""
    obstacle = "" if not key else _obstacle(step, key)
    return f"ends here because {user} needs its rows {f'by {listed(key)}' if key else 'in one place'}{obstacle}"


def _what_for(step: Step) -> str:
    match step.op:
        case Aggregate(plan):
            return f"for groups by {listed(plan.group)}"
        case Join():
            pairs = zip(step.op.left_key, step.op.right_key, strict=True)
            return f"for the {step.op.kind} join on {' and '.join(f'{left} = {right}' for left, right in pairs)}"
        case TopK():
            return f"for the first {step.op.limit} of each {listed(step.op.partition)}"
        case Latest():
            return f"for the latest row of each {listed(step.op.key)}"
        case StatefulMap():
            return f"for the stateful map of each {listed(step.op.key)}"
        case SetOperation():
            return f"for {step.op.kind}, which compares whole rows"
        case _:
            return "which all of its inputs have"


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
            return f", and {listed(computed)} is computed" if computed else ""
        case Aggregate(plan):
            return f", which is more than {listed(plan.group)}, by which rows are grouped"
        case Join():
            return f", which is not what the {step.op.kind} join compares"
        case TopK():
            return f", which is more than {listed(step.op.partition)}, within which rows are ranked"
        case Latest():
            return f", which is more than the primary key {listed(step.op.key)}"
        case StatefulMap():
            return f", which is more than {listed(step.op.key)}, of which the stateful map has a state"
        case _:
            return ""
