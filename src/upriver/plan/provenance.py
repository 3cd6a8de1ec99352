"""Key provenance (document 004): by which rows of a table it is known where the keys of an exchange edge come from.

To fill a key X of a region that an exchange edge feeds, one must know which keys t of the region that feeds it, the
*producer*, may put out rows for X. Rows keep their routing key on their way through a region. So if the columns of X
can be traced back through the producer's operators to columns of a table that comes in over a lake edge, then every row
for X that comes out under t goes back to a row of that table that has X in those columns, and t in those of the lake
edge's index. An index of the table by the columns of X, a supplement index of document 004, has all such rows at hand.

Rows may have come to the producer over an exchange edge themselves, those of an upsert table that is kept by another
key, say. That edge's columns hold their t then. So both are traced on, the columns of X and those of t, through the
regions that the rows have come through, to one row of a table that has them all.

There may be more of them than count: a row that is filtered, that finds no partner in a join, or an old version of a
row of an upsert table, names its t all the same. That t is asked for nothing, which costs time and does no harm. A
deletion is a version too, and names t by whatever it has in the columns of X. What matters is that none is missing as
of the end of any epoch; and none is, for a row comes out in the epoch of the last row that it is made of, or later.

Where a column is computed, or comes out of several rows, there is nothing to look up: the edge is untraced.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from upriver.ids import Channel
from upriver.plan.column_names import plain_columns
from upriver.plan.graph import DataflowPlan, ExchangeEdge, Input, LakeEdge, Node, RegionPlan
from upriver.plan.ops import (
    Aggregate,
    Filter,
    Join,
    JoinKind,
    Latest,
    Op,
    Project,
    Scan,
    SetKind,
    SetOperation,
    StatefulMap,
    TopK,
    Union,
)
from upriver.plan.origins import Origins, listed
from upriver.plan.plan import TableSpec
from upriver.plan.routing import LEFT_HOLDS, RIGHT_HOLDS, Key


@dataclass(frozen=True, slots=True)
class Trace:
    """By which rows of a table the keys of an exchange edge are known: each names a key of the consumer, and one of the
    producer that may put out rows for it. Values are equal where hash64 sees no difference; a null equals a null.

    table: one that is read over a lake edge, by the producer or by a region that feeds it. consumer_key, producer_key:
    columns of the table: the routing keys of both, each in its order, and of its types.
    """

    table: str
    consumer_key: Key
    producer_key: Key

    @property
    def edge(self) -> LakeEdge:
        """The index that the rows are looked up in."""
        return LakeEdge(self.table, self.consumer_key)

    @property
    def channel(self) -> Channel:
        """Of that index."""
        return self.edge.channel


Found = tuple[Trace, ...] | str
"""The traces of all rows; or why some of them have none, in words."""


def traces(plan: DataflowPlan, region: str, port: int) -> tuple[Trace, ...] | None:
    """Of the exchange edge at that port of a region, its consumer: every row that comes over it is known by one of
    them. ``None`` if some may not be."""
    found = _found(plan, _named(plan, region), port)
    return None if isinstance(found, str) else found


def why_untraced(plan: DataflowPlan) -> str | None:
    """Which exchange edge has no traces and why not, in words; ``None`` if all have, or there are none."""
    return next((found for found in _all_found(plan) if isinstance(found, str)), None)


def trace_edges(plan: DataflowPlan) -> tuple[LakeEdge, ...]:
    """The indexes that traces are looked up in, each once."""
    edges = (trace.edge for found in _all_found(plan) if not isinstance(found, str) for trace in found)
    return tuple(dict.fromkeys(edges))


def lake_edges(plan: DataflowPlan) -> tuple[LakeEdge, ...]:
    """All indexes that the lake must hold for the view, each once: those that feed it and, if it is partial, those that
    its traces are looked up in."""
    edges = [entry.edge for region in plan.regions for entry in region.inputs]
    feeding = [edge for edge in edges if isinstance(edge, LakeEdge)]
    return tuple(dict.fromkeys([*feeding, *(trace_edges(plan) if plan.full_because is None else ())]))


def indexes_of(tables: Iterable[TableSpec], plans: Iterable[DataflowPlan]) -> dict[str, tuple[Key, ...]]:
    """Per table the keys that the lake keeps it in the order of: its own, its primary key, those that views need."""
    edges = [edge for plan in plans for edge in lake_edges(plan)]
    return {
        table.name: tuple(
            dict.fromkeys(
                [
                    *(key for key in (table.key, table.primary_key) if key),
                    *(edge.index for edge in edges if edge.table == table.name),
                ]
            )
        )
        for table in tables
    }


def _all_found(plan: DataflowPlan) -> Iterator[Found]:
    """Of each exchange edge."""
    for region in plan.regions:
        for port, entry in enumerate(region.inputs):
            if isinstance(entry.edge, ExchangeEdge):
                yield _found(plan, region, port)


def _named(plan: DataflowPlan, name: str) -> RegionPlan:
    return next(region for region in plan.regions if region.name == name)


def _found(plan: DataflowPlan, consumer: RegionPlan, port: int) -> Found:
    edge = consumer.inputs[port].edge
    assert isinstance(edge, ExchangeEdge), f"a lake edge feeds port {port} of region {consumer.name}"
    if not edge.key:
        return _in_one_place(consumer, edge)
    producer = _Producer(plan, edge.region)
    found = producer.traces(_Sought(edge.key, None, _types(consumer.inputs[port])))
    if isinstance(found, str):
        return f"rows of region {edge.region} cannot be found by {producer.names(edge.key)}: {found}"
    return found


def _in_one_place(consumer: RegionPlan, edge: ExchangeEdge) -> str:
    return f"region {consumer.name} needs all rows of region {edge.region} in one place"


def _types(entry: Input) -> tuple[pa.DataType, ...]:
    """Of the routing key."""
    return tuple(entry.schema.field(column).type for column in entry.edge.key)


@dataclass(frozen=True, slots=True)
class _Sought:
    """The columns of some rows that hold both keys of an exchange edge that the rows reach later.

    consumer: the routing key of the edge's consumer. producer: that of its producer, in rows that come to it over an
    exchange edge; ``None`` in the producer itself, all of whose rows are routed by it. types: that all of these columns
    must have in a table.
    """

    consumer: Key
    producer: Key | None
    types: tuple[pa.DataType, ...]

    @property
    def columns(self) -> Key:
        return (*self.consumer, *(self.producer or ()))

    def before(self, sources: Mapping[str, str]) -> Self:
        """The same in the rows that these were made of. sources: for each of these columns, theirs that holds it."""
        producer = None if self.producer is None else tuple(sources[column] for column in self.producer)
        return replace(self, consumer=tuple(sources[column] for column in self.consumer), producer=producer)

    def beyond(self, entry: Input) -> Self:
        """The same in the rows of the region that puts out what comes there, over an exchange edge."""
        if self.producer is not None:
            return self
        return replace(self, producer=entry.edge.key, types=(*self.types, *_types(entry)))


class _Producer:
    """A region whose rows leave it over an exchange edge. Its inputs and nodes are numbered as in the plan."""

    def __init__(self, plan: DataflowPlan, name: str) -> None:
        self._plan = plan
        self._region = region = _named(plan, name)
        self._origins = Origins(plan)
        self._schemas = [*(entry.schema for entry in region.inputs), *(node.schema for node in region.nodes)]

    @property
    def _last(self) -> int:
        return len(self._schemas) - 1

    def names(self, columns: Sequence[str]) -> str:
        """What columns of the rows that leave it are, for people."""
        return listed([self._names(self._last, columns)])

    def traces(self, sought: _Sought) -> Found:
        """Of rows that leave it, by these columns."""
        return self._traced(self._last, sought)

    def _names(self, number: int, columns: Sequence[str]) -> str:
        return ", ".join(self._origins.of(self._region, number, column) for column in columns)

    def _traced(self, number: int, sought: _Sought) -> Found:
        """Of the rows of an input or a node, by these of its columns.

        Whatever holds of the rows that come holds of those that are taken back: each has come before.
        """
        ports = len(self._region.inputs)
        if number < ports:
            return self._at_port(number, sought)
        node = self._region.nodes[number - ports]
        match node.op:
            case Join():
                return self._of_join(number, node, sought)
            case Union():
                return _of_all([self._traced(source, sought) for source in node.inputs])
            case SetOperation(kind):
                # A row of an intersection is one of either input's, a row of a difference one of the first's.
                sources = node.inputs if kind is SetKind.INTERSECT else node.inputs[:1]
                return _first([self._traced(source, sought) for source in sources])
            case _:
                return self._of_one(number, node, sought)

    def _at_port(self, port: int, sought: _Sought) -> Found:
        entry = self._region.inputs[port]
        if isinstance(entry.edge, ExchangeEdge):
            if not entry.edge.key:
                return _in_one_place(self._region, entry.edge)
            return _Producer(self._plan, entry.edge.region).traces(sought.beyond(entry))
        key = sought.consumer
        if len(set(key)) < len(key):
            return f"{self._names(port, key)} names a column twice, which no index does"
        if tuple(entry.schema.field(column).type for column in sought.columns) != sought.types:
            return f"{self._names(port, sought.columns)} is of another type in table {entry.edge.table}"
        return (Trace(entry.edge.table, key, entry.edge.index if sought.producer is None else sought.producer),)

    def _of_one(self, number: int, node: Node, sought: _Sought) -> Found:
        """Of an operator with one input."""
        sources = _passed_on(node.op, node.schema)
        computed = [column for column in sought.columns if column not in sources]
        if computed:
            return f"{self._names(number, computed)} is computed"
        return self._traced(node.inputs[0], sought.before(sources))

    def _of_join(self, number: int, node: Node, sought: _Sought) -> Found:
        """By columns of that input, or either, of which each of the join's rows holds a row."""
        assert isinstance(node.op, Join)
        inputs = [self._schemas[source] for source in node.inputs]
        found = [
            self._traced(node.inputs[side], sought.before(sources))
            for side, sources in _held(node.op, inputs)
            if sources.keys() >= set(sought.columns)
        ]
        names = self._names(number, tuple(dict.fromkeys(sought.columns)))
        return _first(found) if found else f"no input of the {node.op.kind} join has {names} always"


def _passed_on(op: Op, schema: pa.Schema) -> Mapping[str, str]:
    """For each output column that holds what a column of the only input holds, in a row of that input's: that column.

    schema: of the output.
    """
    match op:
        case Filter() | Latest():
            return {name: name for name in schema.names}
        case TopK():
            return {name: name for name in schema.names if name != op.rank}
        case Project(projection):
            return plain_columns(projection)
        case Aggregate(plan):
            return {name: name for name in plan.group}
        case StatefulMap(key):
            return {name: name for name in key}
        case Scan() | Join() | Union() | SetOperation():
            raise AssertionError(f"{op} has not one input")


def _held(op: Join, inputs: Sequence[pa.Schema]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """The inputs of which each row of a join holds a row; with the columns of that input for the output's columns.

    Columns that an inner join compares hold the same in all of its rows. In an outer join's they need not.
    """
    keys = op.left_key, op.right_key
    for side, kinds in enumerate((LEFT_HOLDS, RIGHT_HOLDS)):
        if op.kind in kinds:
            compared = dict(zip(keys[1 - side], keys[side], strict=True)) if op.kind is JoinKind.INNER else {}
            yield side, {**compared, **{name: name for name in inputs[side].names}}


def _of_all(parts: Sequence[Found]) -> Found:
    """Of rows that come from several inputs."""
    found: dict[Trace, None] = {}
    for part in parts:
        if isinstance(part, str):
            return part
        found.update(dict.fromkeys(part))
    return tuple(found)


def _first(parts: Sequence[Found]) -> Found:
    """Of rows that are known by either input: the first that has traces; if none has, why the first has none."""
    return next((part for part in parts if not isinstance(part, str)), parts[0])
