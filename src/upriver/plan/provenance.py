"""Provenance: where a region has the rows of tables unchanged, before an operator combines several of them.

If an expression over a single row of a table fails, that row is bad, and can be set aside. This module finds, in a
plan, the places where rows are still single.

It also describes a column inside a dataflow to people, because the internal names are the front end's own. The
description is the table's column, or how it is computed from such columns.

Key provenance (document 004): the rows of a table from which the keys of an exchange edge come. To fill a key X of a
region that an exchange edge feeds, a worker must know which keys t of the region that feeds it, the *producer*, may put
out rows for X. Rows keep their routing key on their way through a region. Suppose the columns of X can be traced back
through the producer's operators to columns of a table that comes in over a lake edge. Then every row for X that comes
out under t goes back to a row of that table that has X in those columns, and t in the columns of the lake edge's index.
An index of the table by the columns of X, a supplement index of document 004, has all such rows.

Rows may reach the producer over an exchange edge themselves, for instance from an upsert table with another key. Then
that edge's columns hold their t. So the columns of X and of t are both traced further, through the regions that the
rows have passed, to one row of a table that has them all.

This may find too many t. A filtered row, a row without a partner in a join, or an old version of a row still names its
t. That t is then read in vain, which costs time and does no harm. A deletion is a version too, and names t by the
values in its columns of X. But none may be missing as of the end of any epoch. None is, because a row comes out in the
epoch of the last row that it is made of, or later.

If a column is computed, or comes from several rows, there is nothing to look up: the edge is untraced.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Self

import pyarrow as pa

from upriver.ids import Channel
from upriver.plan.clock import ClockOp
from upriver.plan.column_names import columns_in, plain_columns, quoted, with_texts
from upriver.plan.plan import (
    ALL_ALIKE,
    USER_PREFIX,
    AggregateCall,
    AggregateOp,
    AggregatePlan,
    ConstantEdge,
    DataflowPlan,
    ExchangeEdge,
    ExplodeOp,
    FilterOp,
    Input,
    JoinKind,
    JoinOp,
    LakeEdge,
    LatestOp,
    MapScan,
    Node,
    Op,
    ProjectOp,
    RegionPlan,
    ReplicateOp,
    SaltOp,
    Scan,
    SetKind,
    SetOperationOp,
    StatefulMapOp,
    TableSpec,
    TopKOp,
    UnionOp,
    ValuesOp,
    WindowCall,
    WindowOp,
    is_in_one_place,
)
from upriver.plan.routing import LEFT_HOLDS, RIGHT_HOLDS, Key

EXPRESSION_CHARS_MAX = 60
"""Characters of an expression that stands for a column; a longer one is described by its sources only."""

ALIKE = "()"
"""The description of a column that all rows have alike."""
A_CONSTANT = "a constant"
"""The description of a column of rows that the query itself has."""

Below = Callable[[int, str], str]
"""Describes a column of an operator's input, given the input's number and the column."""


@dataclass(frozen=True, slots=True)
class Origins:
    """The descriptions of the columns of a plan's regions, traced back over exchange edges to the tables."""

    plan: DataflowPlan

    def of(self, region: RegionPlan, number: int, column: str) -> str:
        """Describes a column of an input or a node of a region. number: as the region counts them."""
        if number >= len(region.inputs):
            node = region.nodes[number - len(region.inputs)]
            return origin(node.op, column, *self.below(region, node))
        edge = region.inputs[number].edge
        if isinstance(edge, LakeEdge):
            return f"{edge.table}.{column}"
        if isinstance(edge, ConstantEdge):
            return ALIKE if ALL_ALIKE in column else A_CONSTANT
        source = next((other for other in self.plan.regions if other.name == edge.region), None)
        return f"{edge.region}.{column}" if source is None else self.of(source, source.sent, column)

    def below(self, region: RegionPlan, node: Node) -> tuple[list[pa.Schema], Below]:
        """The schemas of a node's inputs, and the descriptions of their columns."""
        schemas = [*(entry.schema for entry in region.inputs), *(other.schema for other in region.nodes)]
        names = [partial(self.of, region, number) for number in node.inputs]
        return [schemas[number] for number in node.inputs], lambda place, name: names[place](name)


def origin(op: Op, column: str, inputs: Sequence[pa.Schema], below: Below) -> str:
    """Describes a column of an operator's output. inputs: the schemas of the operator's inputs."""
    match op:
        case ProjectOp() | AggregateOp() if ALL_ALIKE in column:
            return ALIKE
        case ProjectOp(projection):
            return shown(projection.expressions[projection.schema.get_field_index(column)], lambda name: below(0, name))
        case AggregateOp(plan) if column not in plan.group:
            return result(plan, column, lambda name: below(0, name))
        case TopKOp() if column == op.rank:
            return f"{op.ranking}()"
        case WindowOp() if column in op.outputs:
            call = next(call for call in op.calls if call.output == column)
            return windowed(call, lambda name: below(0, name))
        case ClockOp() if column in op.outputs:
            value = next((value for value in op.columns if value.output == column), None)
            if value is not None:
                return value.sql
            test = next(test for test in op.tests if test.output == column)
            return f"{below(0, test.column)} {test.comparison} {test.sql}"
        case StatefulMapOp(key):
            return below(0, op.inputs[0].key[key.index(column)]) if column in key else f"{op.name}.{column}"
        case SaltOp() | ReplicateOp() if column == op.column:
            return f"one of {op.slots} slots"
        case ExplodeOp(elements) if column in op.made:
            what = "place" if column == op.position else "element"
            return f"{what} in {shown(elements, lambda name: below(0, name))}"
        case ValuesOp():
            return A_CONSTANT
        case _:
            place = next(place for place, schema in enumerate(inputs) if column in schema.names)
            return below(place, column)


def result(plan: AggregatePlan, column: str, name_of: Callable[[str], str]) -> str:
    """Describes a column of an aggregate's output. name_of: describes a column of its input."""
    call = next((call for call in plan.calls if call.output == column), None)
    return name_of(column) if call is None else called(call, name_of)


def called(call: AggregateCall, name_of: Callable[[str], str]) -> str:
    """``sum(DISTINCT table.column) FILTER (WHERE ...)``."""
    columns = call.columns[call.gives : call.gives + 1] if call.function in ("first", "last") else call.columns
    argument = f"{'DISTINCT ' if call.distinct else ''}{', '.join(map(name_of, columns)) or '*'}"
    where = "" if call.where is None else f" FILTER (WHERE {name_of(call.where)})"
    return f"{call.function.removesuffix('_star').removeprefix('greatest_')}({argument}){where}"


def windowed(call: WindowCall, name_of: Callable[[str], str]) -> str:
    """``sum(table.column) OVER``, with the number and the default of those functions that have them."""
    if call.aggregate is not None:
        return f"{called(call.aggregate, name_of)} OVER"
    numbers = [str(call.number)] if call.function in ("ntile", "lag", "lead", "nth_value") else []
    operands = [name_of(name) for name in (call.argument,) if name is not None]
    operands += numbers + [name_of(name) for name in (call.default,) if name is not None]
    if call.function == "count_star":
        operands = ["*"]
    where = "" if call.where is None else f" FILTER (WHERE {name_of(call.where)})"
    nulls = " IGNORE NULLS" if call.ignores_nulls else ""
    return f"{call.function.removesuffix('_star')}({', '.join(operands)}){where}{nulls} OVER"


def shown(expression: str, name_of: Callable[[str], str]) -> str:
    """As :func:`spelled`; if that is too long to stand for a column, ``f(...)`` of its sources."""
    name_once = cache(name_of)  # twice at every level would be 2^levels times
    text = spelled(expression, name_once)
    if len(text) <= EXPRESSION_CHARS_MAX or expression in map(quoted, columns_in(expression)):
        return text
    return _made_of(expression, name_once)


def spelled(expression: str, name_of: Callable[[str], str]) -> str:
    """The expression over its columns' descriptions, with Spark's names of types; ``f(...)`` if it has words of the
    engine that evaluates it."""
    parts = _QUOTED.split(expression)
    words = [_OF_USERS.sub(r"\1(", _OF_SPARK.sub(r"\1(", part)) for part in parts[::2]]
    if any(_FOREIGN.search(part) for part in words):
        return _made_of(expression, name_of)
    parts[::2] = [_CONSTANT.sub(r"\1", _typed(part)) for part in words]  # a column's name may look like a CAST
    return with_texts("".join(parts), name_of)


def _made_of(expression: str, name_of: Callable[[str], str]) -> str:
    return f"f{listed(dict.fromkeys(name_of(column) for column in sorted(columns_in(expression))))}"


def _typed(expression: str) -> str:
    """With Spark's names of types after AS."""
    return _TYPE.sub(lambda match: f" AS {_TYPES[match[1]]}", expression)


_QUOTED = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")+")""")
"""A text, or a column's name."""
_CONSTANT = re.compile(r"CAST\((-?\d+(?:\.\d+)?) AS \w+(?:\(\d+, ?\d+\))?\)")
"""A number with a written type."""
_TYPES = {"INTEGER": "INT", "VARCHAR": "STRING", "HUGEINT": "DECIMAL(38,0)"}
_TYPE = re.compile(rf" AS ({'|'.join(_TYPES)})\b")
_OF_SPARK = re.compile(r"\bspark_(upper|lower|reverse|lpad|rpad|split_part|substring|right|floor|ceil)\(")
"""Macros that are called as Spark's functions are."""
_OF_USERS = re.compile(rf"{USER_PREFIX}(\w+)_[0-9a-f]{{16}}\(")
"""Functions of users, with their digests."""
_FOREIGN = re.compile(
    r"(?:spark|kernel)_\w+\(|string_split|generate_series|map_entries|"
    r"list_transform|regexp_\w+\(|strftime|epoch_us|to_months|\bDECIMAL\(38, |ESCAPE|//|\bCASE WHEN NOT "
)
"""Words of the engine that evaluates expressions."""


def listed(columns: Iterable[str]) -> str:
    """``(a, b)``."""
    return f"({', '.join(columns)})"


@dataclass(frozen=True, slots=True)
class KeyTrace:
    """The rows of a table that name the keys of an exchange edge: each row names a key of the consumer, and a key of
    the producer that may put out rows for it. Values are equal where hash64 sees no difference; a null equals a null.

    table: read over a lake edge, by the producer or by a region that feeds it. consumer_key, producer_key: columns of
    the table: the routing keys of both, each in its order, and of its types.
    """

    table: str
    consumer_key: Key
    producer_key: Key

    @property
    def edge(self) -> LakeEdge:
        """The index in which the rows are looked up."""
        return LakeEdge(self.table, self.consumer_key)

    @property
    def channel(self) -> Channel:
        """The channel of that index."""
        return self.edge.channel


Found = tuple[KeyTrace, ...] | str
"""The traces of all rows; or why some of them have none, in words."""


def traces(plan: DataflowPlan, region: str, port: int) -> tuple[KeyTrace, ...] | None:
    """The traces of the exchange edge at that port of a region, its consumer: one of them covers every row on the edge.
    ``None`` if some rows may have none."""
    found = _found(plan, _named(plan, region), port)
    return None if isinstance(found, str) else found


def why_untraced(plan: DataflowPlan) -> str | None:
    """Which exchange edge has no traces and why, in words; ``None`` if all have, or there are no exchange edges."""
    if plan.depth and plan.is_clocked:
        return "its rows are exchanged, and change by themselves as time passes"
    return next((found for found in _all_found(plan) if isinstance(found, str)), None)


def trace_edges(plan: DataflowPlan) -> tuple[LakeEdge, ...]:
    """The indexes in which traces are looked up, each once."""
    edges = (trace.edge for found in _all_found(plan) if not isinstance(found, str) for trace in found)
    return tuple(dict.fromkeys(edges))


def lake_edges(plan: DataflowPlan) -> tuple[LakeEdge, ...]:
    """All indexes that the lake must hold for the view, each once: those that feed it and, if it is partial, those in
    which its traces are looked up."""
    edges = [entry.edge for region in plan.regions for entry in region.inputs]
    feeding = [edge for edge in edges if isinstance(edge, LakeEdge)]
    return tuple(dict.fromkeys([*feeding, *(trace_edges(plan) if plan.full_because is None else ())]))


def indexes_of(tables: Iterable[TableSpec], plans: Iterable[DataflowPlan]) -> dict[str, tuple[Key, ...]]:
    """For each table, the keys in whose order the lake keeps it: its own, its primary key, those that views need."""
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
    """The traces of each exchange edge."""
    for region in plan.regions:
        for port, entry in enumerate(region.inputs):
            if isinstance(entry.edge, ExchangeEdge):
                yield _found(plan, region, port)


def _named(plan: DataflowPlan, name: str) -> RegionPlan:
    return next(region for region in plan.regions if region.name == name)


def _found(plan: DataflowPlan, consumer: RegionPlan, port: int) -> Found:
    edge = consumer.inputs[port].edge
    assert isinstance(edge, ExchangeEdge), f"a lake edge feeds port {port} of region {consumer.name}"
    if is_in_one_place(edge.key):
        return _in_one_place(consumer, edge)
    producer = _Producer(plan, edge.region)
    found = producer.traces(_Sought(edge.key, None, _types(consumer.inputs[port])))
    if isinstance(found, str):
        return f"rows of region {edge.region} cannot be found by {producer.names(edge.key)}: {found}"
    return found


def _in_one_place(consumer: RegionPlan, edge: ExchangeEdge) -> str:
    return f"region {consumer.name} needs all rows of region {edge.region} in one place"


def _types(entry: Input) -> tuple[pa.DataType, ...]:
    """The types of the routing key's columns."""
    return tuple(entry.schema.field(column).type for column in entry.edge.key)


@dataclass(frozen=True, slots=True)
class _Sought:
    """The columns of some rows that hold both keys of an exchange edge that the rows reach later.

    consumer: the routing key of the edge's consumer. producer: the routing key of its producer, in rows that reach it
    over an exchange edge; ``None`` in the producer itself, which routes all of its rows by it. types: required of all
    these columns in a table.
    """

    consumer: Key
    producer: Key | None
    types: tuple[pa.DataType, ...]

    @property
    def columns(self) -> Key:
        return (*self.consumer, *(self.producer or ()))

    def before(self, sources: Mapping[str, str]) -> Self:
        """The same keys in the rows that these were made of. sources: for each of these columns, the source column."""
        producer = None if self.producer is None else tuple(sources[column] for column in self.producer)
        return replace(self, consumer=tuple(sources[column] for column in self.consumer), producer=producer)

    def beyond(self, entry: Input) -> Self:
        """The same keys in the rows of the region that sends them, over an exchange edge."""
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
        """Describes the columns of the rows that leave it, for people."""
        return listed([self._names(self._last, columns)])

    def traces(self, sought: _Sought) -> Found:
        """The traces of rows that leave it, by these columns."""
        return self._traced(self._last, sought)

    def _names(self, number: int, columns: Sequence[str]) -> str:
        return ", ".join(self._origins.of(self._region, number, column) for column in columns)

    def _traced(self, number: int, sought: _Sought) -> Found:
        """The traces of the rows of an input or a node, by these of its columns.

        A trace of a row also covers its retraction: the row itself has come before.
        """
        ports = len(self._region.inputs)
        if number < ports:
            return self._at_port(number, sought)
        node = self._region.nodes[number - ports]
        match node.op:
            case JoinOp():
                return self._of_join(number, node, sought)
            case UnionOp():
                return _of_all([self._traced(source, sought) for source in node.inputs])
            case SetOperationOp(kind):
                # A row of an intersection is a row of both inputs, a row of a difference one of the first's.
                sources = node.inputs if kind is SetKind.INTERSECT else node.inputs[:1]
                return _first([self._traced(source, sought) for source in sources])
            case _:
                return self._of_one(number, node, sought)

    def _at_port(self, port: int, sought: _Sought) -> Found:
        entry = self._region.inputs[port]
        if isinstance(entry.edge, ExchangeEdge):
            if is_in_one_place(entry.edge.key):
                return _in_one_place(self._region, entry.edge)
            return _Producer(self._plan, entry.edge.region).traces(sought.beyond(entry))
        if isinstance(entry.edge, ConstantEdge):
            return f"{self._names(port, sought.columns)} is in no table"
        key = sought.consumer
        if len(set(key)) < len(key):
            return f"{self._names(port, key)} names a column twice, which no index does"
        if tuple(entry.schema.field(column).type for column in sought.columns) != sought.types:
            return f"{self._names(port, sought.columns)} is of another type in table {entry.edge.table}"
        return (KeyTrace(entry.edge.table, key, entry.edge.index if sought.producer is None else sought.producer),)

    def _of_one(self, number: int, node: Node, sought: _Sought) -> Found:
        """The traces behind an operator with one input."""
        sources = _passed_on(node.op, node.schema)
        computed = [column for column in sought.columns if column not in sources]
        if computed:
            return f"{self._names(number, computed)} is computed"
        return self._traced(node.inputs[0], sought.before(sources))

    def _of_join(self, number: int, node: Node, sought: _Sought) -> Found:
        """Traces by the columns of an input whose row is in each of the join's rows; or of either such input."""
        assert isinstance(node.op, JoinOp)
        inputs = [self._schemas[source] for source in node.inputs]
        found = [
            self._traced(node.inputs[side], sought.before(sources))
            for side, sources in _held(node.op, inputs)
            if sources.keys() >= set(sought.columns)
        ]
        names = self._names(number, tuple(dict.fromkeys(sought.columns)))
        return _first(found) if found else f"no input of the {node.op.kind} join has {names} always"


def _passed_on(op: Op, schema: pa.Schema) -> Mapping[str, str]:
    """For each output column that is an unchanged column of the only input, in a row of that input: the input's column.

    schema: of the output.
    """
    match op:
        case FilterOp() | LatestOp():
            return {name: name for name in schema.names}
        case TopKOp():
            return {name: name for name in schema.names if name != op.rank}
        case WindowOp() | ClockOp():
            return {name: name for name in schema.names if name not in op.outputs}
        case SaltOp() | ReplicateOp():
            return {name: name for name in schema.names if name != op.column}
        case ExplodeOp():
            return {name: name for name in schema.names if name not in op.made}
        case ProjectOp(projection):
            return plain_columns(projection)
        case AggregateOp(plan):
            return {name: name for name in plan.group}
        case StatefulMapOp(key):
            return dict(zip(key, op.inputs[0].key, strict=True)) if len(op.inputs) == 1 else {}
        case Scan() | MapScan() | ValuesOp() | JoinOp() | UnionOp() | SetOperationOp():
            raise AssertionError(f"{op} has not one input")


def _held(op: JoinOp, inputs: Sequence[pa.Schema]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """The inputs that have a row in each row of a join; with that input's columns for the output's columns.

    Columns that an inner join compares hold the same in all of its rows. In an outer join they may differ.
    """
    keys = op.left_key, op.right_key
    for side, kinds in enumerate((LEFT_HOLDS, RIGHT_HOLDS)):
        if op.kind in kinds:
            compared = dict(zip(keys[1 - side], keys[side], strict=True)) if op.kind is JoinKind.INNER else {}
            yield side, {**compared, **{name: name for name in inputs[side].names}}


def _of_all(parts: Sequence[Found]) -> Found:
    """The traces of rows that come from several inputs."""
    found: dict[KeyTrace, None] = {}
    for part in parts:
        if isinstance(part, str):
            return part
        found.update(dict.fromkeys(part))
    return tuple(found)


def _first(parts: Sequence[Found]) -> Found:
    """The traces of rows that either input covers: the first input's that has traces; if none has, the first's
    reason."""
    return next((part for part in parts if not isinstance(part, str)), parts[0])


_ONE_BY_ONE = (FilterOp, ProjectOp, ExplodeOp, UnionOp)


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table's rows in a region, all of its columns or some. port: where the lake edge comes in. number: of the port;
    for an upsert table, of the node that makes rows of the versions that come in."""

    table: str
    port: int
    number: int


def table_rows(plan: RegionPlan) -> tuple[TableRows, ...]:
    """The rows of tables that a region reads. Numbers are those of :class:`RegionPlan`."""
    return tuple(
        TableRows(entry.edge.table, port, _latest(plan, port))
        for port, entry in enumerate(plan.inputs)
        if isinstance(entry.edge, LakeEdge)
    )


def one_by_one(plan: RegionPlan, number: int) -> tuple[int, ...]:
    """The nodes that process only the rows with this number, each row by itself. In order."""
    seen = {number}
    for place, node in _numbered(plan):
        if isinstance(node.op, _ONE_BY_ONE) and seen.issuperset(node.inputs):
            seen.add(place)
    return tuple(sorted(seen - {number}))


def _latest(plan: RegionPlan, port: int) -> int:
    """The node that makes rows of the versions that come in at a port; the port itself, if rows come in."""
    seen = {port, *one_by_one(plan, port)}
    made = (place for place, node in _numbered(plan) if isinstance(node.op, LatestOp) and seen.issuperset(node.inputs))
    return next(made, port)


def _numbered(plan: RegionPlan) -> Iterator[tuple[int, Node]]:
    return enumerate(plan.nodes, start=len(plan.inputs))
