"""A view's dataflow as workers run it: regions, joined by edges.

A **region** is what lies between two exchanges (DESIGN section 2). All its inputs are hashed by one routing key, and
all its state is kept by that key or by something finer. A region's *depth* is 0 if only lake edges feed it, else one
more than that of the deepest region that does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from upriver.ids import Channel
from upriver.plan.ops import Op
from upriver.plan.plan import AggregatePlan, Projection, lake_channel


@dataclass(frozen=True, slots=True)
class LakeEdge:
    """A worker reads its vnodes' slices of a table's runs. index: the routing key, columns of the table."""

    table: str
    index: tuple[str, ...]

    @property
    def channel(self) -> Channel:
        return lake_channel(self.table, self.index)

    @property
    def key(self) -> tuple[str, ...]:
        """The routing key, columns of the rows that come."""
        return self.index


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
    output: the view's columns, computed from what is kept when it is read. retracts: whether rows that come may be
    taken back; rows that never are stay in the order in which they came.
    """

    key: tuple[str, ...]
    aggregate: AggregatePlan | None
    having: str | None
    output: Projection
    retracts: bool = False


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

    @property
    def lake_ports(self) -> tuple[tuple[int, Channel], ...]:
        """The ports that lake edges feed, each with its channel."""
        edges = enumerate(entry.edge for entry in self.inputs)
        return tuple((port, edge.channel) for port, edge in edges if isinstance(edge, LakeEdge))


@dataclass(frozen=True, slots=True)
class Send:
    """An exchange edge as its sender sees it. key: the receiver's routing key, columns of the sender's output."""

    to: str
    port: int
    key: tuple[str, ...]


NOT_WANTED = "it is declared with partial=False"


@dataclass(frozen=True)
class DataflowPlan:
    """A compiled view: what the driver works out once, and every worker builds its regions from.

    name, sql: as declared. key: the view's key, columns of ``schema``, in the order of the last region's routing key.
    regions: each after those that feed it; the last one has the store, and the view's name. full_because: why all keys
    are kept, in words; ``None``: only those are that are looked up, and the view is partial.
    """

    name: str
    sql: str
    key: tuple[str, ...]
    schema: pa.Schema
    regions: tuple[RegionPlan, ...]
    full_because: str | None = NOT_WANTED

    @cached_property
    def key_schema(self) -> pa.Schema:
        """Names and types of the key."""
        return pa.schema([self.schema.field(name) for name in self.key])

    @cached_property
    def depths(self) -> Mapping[str, int]:
        """By region: 0 if only lake edges feed it, else one more than the deepest region that does."""
        depths: dict[str, int] = {}
        for region in self.regions:
            fed_by = [depths[entry.edge.region] for entry in region.inputs if isinstance(entry.edge, ExchangeEdge)]
            depths[region.name] = 1 + max(fed_by, default=-1)
        return depths

    @property
    def is_cone(self) -> bool:
        """Whether each worker computes by itself what is looked up at it (``partial/cone.py``)."""
        return self.full_because is None and self.depth > 0

    @property
    def spread(self) -> tuple[RegionPlan, ...]:
        """The regions that are spread over all workers, and to which rows come. To a cone none come: it reads them."""
        return (replace(self.regions[-1], inputs=()),) if self.is_cone else self.regions

    @property
    def stages(self) -> Mapping[str, int]:
        """Of the regions that are spread: the stage of an epoch in which rows that were exchanged are taken in; 0 where
        none are."""
        return {self.name: 0} if self.is_cone else self.depths

    @property
    def channels(self) -> frozenset[Channel]:
        """The lake edges that feed it."""
        return frozenset(channel for region in self.regions for _, channel in region.lake_ports)

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """The tables that it reads, by itself or through other views."""
        edges = (entry.edge for region in self.regions for entry in region.inputs)
        return tuple(sorted({edge.table for edge in edges if isinstance(edge, LakeEdge)}))

    @property
    def depth(self) -> int:
        """Of the deepest region: 0 if nothing is exchanged."""
        return max(self.depths.values())

    def sends(self, region: str) -> tuple[Send, ...]:
        """Where a region's rows go."""
        return tuple(
            Send(to.name, port, entry.edge.key)
            for to in self.regions
            for port, entry in enumerate(to.inputs)
            if isinstance(entry.edge, ExchangeEdge) and entry.edge.region == region
        )
