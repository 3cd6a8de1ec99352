"""Where the routing key is: the columns that hold it, from a region's inputs through each of its operators.

The planner needs to know whether an operator's rows are where it needs them. A worker needs the columns in which the
operator finds them. Both ask here. Two columns hold the same value if they are equal wherever hash64 sees no
difference: an inner join on ``a = x`` gives rows that have the routing key in both.
"""

from collections.abc import Iterable, Sequence

from upriver.plan.clock import ClockOp
from upriver.plan.column_names import plain_columns
from upriver.plan.plan import (
    AggregateOp,
    ExplodeOp,
    FilterOp,
    JoinKind,
    JoinOp,
    LatestOp,
    MapScan,
    Op,
    ProjectOp,
    RegionPlan,
    ReplicateOp,
    SaltOp,
    Scan,
    StatefulMapOp,
    TopKOp,
    ValuesOp,
    WindowOp,
)

Key = tuple[str, ...]
"""Columns, in the order in which hash64 takes them."""

Routing = tuple[frozenset[str], ...]
"""For each column of the routing key, in order, the columns that hold its value; empty if no column does."""

LEFT_HOLDS = frozenset({JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI})
"""The joins all of whose rows hold the key in the left input's columns: no row of the right input stands alone."""

RIGHT_HOLDS = frozenset({JoinKind.INNER, JoinKind.RIGHT})
"""The same for the right input's columns."""


def routings(plan: RegionPlan) -> tuple[Routing, ...]:
    """The routing of the rows of each input, then of each node."""
    found = [_routing(entry.edge.key) for entry in plan.inputs]
    for node in plan.nodes:
        found.append(through(node.op, [found[number] for number in node.inputs]))
    return tuple(found)


def through(op: Op, inputs: Sequence[Routing]) -> Routing:
    """The routing of an operator's rows, given the routings of its inputs."""
    match op:
        case FilterOp() | TopKOp() | WindowOp() | ClockOp() | LatestOp() | SaltOp() | ReplicateOp() | ExplodeOp():
            return inputs[0]
        case ProjectOp(projection):
            sources = plain_columns(projection)
            return tuple(frozenset(name for name, source in sources.items() if source in held) for held in inputs[0])
        case AggregateOp(plan):
            return tuple(held & frozenset(plan.group) for held in inputs[0])
        case JoinOp():
            return _joined(op, *inputs)
        case StatefulMapOp():
            pairs = zip(op.inputs, inputs, strict=True)
            return _in_all([tuple(_renamed(held, source.key, op.key) for held in routing) for source, routing in pairs])
        case Scan() | MapScan() | ValuesOp():
            raise AssertionError("a region reads tables, and maps of its flow, at its edges")
        case _:
            return _in_all(inputs)


def found_in(routing: Routing, columns: Iterable[str]) -> Key | None:
    """The routing key as some of these columns; ``None`` if none of them holds one of its columns."""
    columns = tuple(columns)
    chosen = [next((column for column in columns if column in held), None) for held in routing]
    return None if None in chosen else tuple(column for column in chosen if column is not None)


def of_join(op: JoinOp, left: Routing, right: Routing) -> tuple[Key, Key] | None:
    """The routing key as the columns that a join compares, for both sides; ``None`` if it does not compare them."""
    pairs = list(zip(op.left_key, op.right_key, strict=True))
    chosen = [
        next(((one, other) for one, other in pairs if one in lefts and other in rights), None)
        for lefts, rights in zip(left, right, strict=True)
    ]
    found = [pair for pair in chosen if pair is not None]
    return (tuple(one for one, _ in found), tuple(other for _, other in found)) if len(found) == len(chosen) else None


def _renamed(held: frozenset[str], key: Key, names: Key) -> frozenset[str]:
    """Of the columns of a key those that are held, by their other names."""
    return frozenset(name for own, name in zip(key, names, strict=True) if own in held)


def _routing(key: Key) -> Routing:
    return tuple(frozenset({column}) for column in key)


def _joined(op: JoinOp, left: Routing, right: Routing) -> Routing:
    keys = of_join(op, left, right)
    if keys is None:
        return tuple(frozenset[str]() for _ in left)
    held = zip(left, right, strict=True)
    return tuple(
        (lefts if op.kind in LEFT_HOLDS else frozenset[str]())
        | (rights if op.kind in RIGHT_HOLDS else frozenset[str]())
        for lefts, rights in held
    )


def _in_all(inputs: Sequence[Routing]) -> Routing:
    """The routing of rows from several inputs. Inputs with different routings may meet in a stateless operator."""
    length = max(map(len, inputs))
    if any(len(routing) < length for routing in inputs):
        return tuple(frozenset[str]() for _ in range(length))
    return tuple(frozenset.intersection(*held) for held in zip(*inputs, strict=True))
