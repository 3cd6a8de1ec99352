"""A view's dataflow as workers run it: regions, joined by edges.

A **region** is what lies between two exchanges (DESIGN section 2). All its inputs are hashed by one routing key, and
all its state is kept by that key or by something finer. A region's *depth* is 0 if only lake edges feed it, else one
more than that of the deepest region that does.
"""

from dataclasses import dataclass

import pyarrow as pa

from upriver.dataflow.ops import Op
from upriver.dataflow.plan import AggregatePlan, Projection


@dataclass(frozen=True, slots=True)
class LakeEdge:
    """A worker reads its vnodes' slices of a table's runs. index: the routing key, columns of the table."""

    table: str
    index: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExchangeEdge:
    """Rows that another region of the view puts out, worker to worker. key: the routing key, columns of those rows."""

    region: str
    key: tuple[str, ...]


Edge = LakeEdge | ExchangeEdge


@dataclass(frozen=True, slots=True)
class Input:
    """What comes in at one port of a region. schema: of the rows that come."""

    edge: Edge
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Node:
    """An operator in a region. inputs: numbers of what feeds it: the region's inputs are 0, 1, ..., and the nodes
    follow in order, so a node's inputs have smaller numbers than it has. schema: of its output."""

    op: Op
    inputs: tuple[int, ...]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class ViewStore:
    """How the last region of a view keeps what can be looked up.

    key: columns of what is kept that are the routing key, in its order. aggregate: what is kept is groups, of the rows
    that come; ``None``: the rows. having: a predicate over what is kept, applied when it is read; ``None`` for none.
    output: the view's columns, computed from what is kept when it is read.
    """

    key: tuple[str, ...]
    aggregate: AggregatePlan | None
    having: str | None
    output: Projection


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """One region. The rows of the last node (or of the only input, if there are no nodes) leave it over exchange edges,
    or go into the store of the view.

    name: the view's for its last region; ``view/0``, ``view/1``, ... for those before it. why: for ``explain``, in
    words: why it is cut here, why it has this key.
    """

    name: str
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    store: ViewStore | None
    why: str
