"""A view's dataflow as workers run it: regions, joined by edges. All of it is frozen, comparable data.

A **region** is the part of a dataflow between two exchanges (docs/internals/dataflow.md). All its inputs are hashed by
one routing key, and all its state is kept by that key or by something finer. A region's *depth* is 0 if only lake edges
feed it, else one more than that of the deepest region that feeds it.

The operators are one record for each kind, which says everything about it. The SQL front end makes trees of these
(:mod:`upriver.plan.relation`), the planner cuts the trees into regions, and a worker builds an operator from each
(:mod:`upriver.engine.operators`). Columns are named. No two columns of one operator's output, or of all its inputs,
have names that differ in case alone.

Expressions are DuckDB SQL over the input's columns, as :mod:`upriver.engine.expressions` evaluates them; they may call
its macros. Double quotes hold nothing but column names, and a plain column is its quoted name alone.

All operators take and give signed batches: a row with weight -1 takes one equal row back. Two rows are equal if all
their values are. A null equals a null, NaN equals NaN, and -0.0 equals 0.0, unless an operator's own words differ.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Self
from urllib.parse import quote

import pyarrow as pa
import xxhash

from upriver.ids import Channel
from upriver.plan.clock import ClockOp
from upriver.plan.retention import Retain
from upriver.plan.schemas import EVERYTHING_KEY, key_schema, schema_from_json, schema_to_json
from upriver.records import typed

ALL_ALIKE = "() of all rows"
"""A part of the name of a column that holds one value in all rows, and so routes all rows to one place."""
ALL_ALIKE_TYPE = EVERYTHING_KEY.field(0).type
ALL_ALIKE_SQL = "CAST(0 AS TINYINT)"

SLOTS = 64
"""Slots over which rows are spread that meet by no column: how many workers may share them, and how often the rows of
the other side of a join are kept."""
REPLICATED_ROWS_MAX = 100_000
"""Rows of a side of a join that are kept in all slots."""


@dataclass(frozen=True, slots=True)
class Replicated:
    """The side of a join that is in all slots. port: 0 for the left input, 1 for the right. tables: that its rows come
    from."""

    port: int
    tables: tuple[str, ...]

    @property
    def advice(self) -> str:
        """What is wrong if the side has more than ``REPLICATED_ROWS_MAX`` rows, and what to do."""
        named = " and ".join(map(repr, self.tables)) or "the query itself"
        return (
            f"a join without an equality has more than {REPLICATED_ROWS_MAX:,} rows from {named} on the side that it "
            f"keeps {SLOTS} times. Put a column of equality into its ON, such as a.day = b.day AND a.at > b.at; or "
            "filter or group that side in a subquery"
        )


SALT_COLUMNS_MAX = 2
"""Columns from which a row's slot follows."""

CHANNEL_CHARS_MAX = 150
"""Characters of an index's columns in the name of its channel."""


def lake_channel(table: str, index: tuple[str, ...]) -> Channel:
    """The channel of a lake edge: a table, in the order of one index key. Also the directory of its runs.

    A name that a filesystem may refuse (long, or ``..``) is replaced by a hash.
    """
    name = ",".join(quote(column, safe="") for column in index)
    if len(name) > CHANNEL_CHARS_MAX or name.startswith("."):
        name = xxhash.xxh3_128_hexdigest(name.encode())
    return Channel(f"{table}/{name}")


def table_of(channel: Channel) -> str:
    """The table of a lake edge."""
    return channel.partition("/")[0]


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A declared table. ``key``, ``order_by`` and ``primary_key`` are column names; ``schema`` is its rows'.

    primary_key: of an upsert table, whose rows are versions. Among the versions of one primary key, the last by
    ``order_by`` counts. The key has no row if ``deletes``, a DuckDB predicate over the columns, is true for that
    version; ``None`` if no version deletes. An append table, all of whose rows count, has ``()``.
    retain: how long rows stay; ``None``: for good. Each driver declares it anew, so a lake's record lacks it.
    deletes_sql: the condition as it was declared; ``None`` in records that are older than this field.
    """

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    primary_key: tuple[str, ...] = ()
    deletes: str | None = None
    retain: Retain | None = None
    deletes_sql: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "schema": schema_to_json(self.schema),
            "key": list(self.key),
            "order_by": list(self.order_by),
            "primary_key": list(self.primary_key),
            "deletes": self.deletes,
            "deletes_sql": self.deletes_sql,
        }

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """A record that is older than upsert tables describes an append table."""
        table = cls(
            name=json["name"],
            schema=schema_from_json(json["schema"]),
            key=tuple(json["key"]),
            order_by=tuple(json["order_by"]),
            primary_key=tuple(json.get("primary_key", ())),
            deletes=json.get("deletes"),
            deletes_sql=json.get("deletes_sql"),
        )
        return typed(table)


@dataclass(frozen=True, slots=True)
class Projection:
    """Output columns, in order: ``schema`` names and types them, ``expressions`` computes them (DuckDB SQL)."""

    expressions: tuple[str, ...]
    schema: pa.Schema

    def longer(self, expressions: Sequence[str], fields: Sequence[pa.Field]) -> "Projection":
        """With more columns behind its own."""
        return Projection((*self.expressions, *expressions), pa.schema([*self.schema, *fields]))


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One aggregate.

    function: count_star, count, sum, try_sum, avg, min, max, any_value, min_by, max_by, stddev_samp, stddev_pop,
    var_samp, var_pop, bool_and, bool_or, bit_xor, or one of the engine's ``VALUE_FUNCTIONS`` and ``PAIR_MOMENTS``.
    argument: a column of the input; ``None`` for count_star. output, type: of the result, as Spark gives them.
    others: further columns of the input, for a function of several values; rows in which one of them is NULL do not
    count. For min_by and max_by, the values of ``argument`` decide, one of ``others`` is given, and may be NULL. For
    first and last, which have others, all rows count, the least or the greatest decides, and the column of the place
    ``gives`` is given.
    fraction: of percentiles; of approx_count_distinct, its relative error. fractions: of a percentile that gives an
    array, one for each element. curve: of approx_count_distinct, by
    Spark's measure: the greatest number that it counts by unused registers, then raw estimates, then by how much each
    is too high. between: what stands between the texts of listagg. distinct: whether
    equal values of a group count once. where: a BOOLEAN column of the input; only rows in which it is true count.
    ``None``: all do.
    """

    function: str
    argument: str | None
    output: str
    type: pa.DataType
    distinct: bool = False
    where: str | None = None
    others: tuple[str, ...] = ()
    fraction: float = 0.0
    between: str = ""
    gives: int = 0
    fractions: tuple[float, ...] = ()
    curve: tuple[float, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of its values."""
        return () if self.argument is None else (self.argument, *self.others)


@dataclass(frozen=True, slots=True)
class AggregatePlan:
    """Group by the input columns ``group``, which include the routing key's, in any order.

    Each has the value that Spark groups by (one zero, one NaN). Output columns: the group columns, then one per call.
    retracts: whether rows may be taken back. If not, the operator keeps less: only the best of extremes, and inexact
    sums of floats.
    """

    group: tuple[str, ...]
    calls: tuple[AggregateCall, ...]
    retracts: bool = False


@dataclass(frozen=True, slots=True)
class Scan:
    """The rows of a declared table: of an upsert table, the row of each primary key as it is now. No inputs.

    retracts: whether rows leave the table. is_dated: whether rows have their epoch (``plan/row_order.py``). The planner
    knows, and the SQL front end does not ask.
    """

    table: str
    retracts: bool = False
    is_dated: bool = False


@dataclass(frozen=True, slots=True)
class ValuesOp:
    """Rows that the query itself has, such as those of VALUES. No inputs. rows: of one Arrow IPC stream."""

    rows: bytes


@dataclass(frozen=True, slots=True)
class SaltOp:
    """Each input row with its slot, a number that follows from the values in ``columns``: 0 to ``slots - 1``. One
    input. column: the name of the slot, a 32-bit integer behind the input's columns."""

    column: str
    columns: tuple[str, ...]
    slots: int


@dataclass(frozen=True, slots=True)
class ReplicateOp:
    """Each input row once for each slot from 0 to ``slots - 1``, which is in ``column``, as of SaltOp. One input."""

    column: str
    slots: int


@dataclass(frozen=True, slots=True)
class FilterOp:
    """The rows for which the predicate is true. One input, whose columns it keeps."""

    predicate: str


@dataclass(frozen=True, slots=True)
class ProjectOp:
    """One output row for each input row. One input."""

    projection: Projection


@dataclass(frozen=True, slots=True)
class ExplodeOp:
    """Each input row once for each element of a list that follows from it. One input.

    elements: DuckDB SQL of the list. type: of an element; a struct has a column for each of its fields, another type
    has one. position: the name of the column with the place of the element, a 32-bit integer from 0 on; ``None`` for
    none. keeps_empty: whether a row without an element stays, once, with nulls. Output: the input's columns, then the
    position, then ``outputs``.
    """

    elements: str
    type: pa.DataType
    outputs: tuple[str, ...]
    position: str | None = None
    keeps_empty: bool = False

    @property
    def made(self) -> tuple[str, ...]:
        """The columns behind those of the input."""
        return (*([] if self.position is None else [self.position]), *self.outputs)

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """Names and types of ``made``."""
        parts = [part.type for part in self.type] if pa.types.is_struct(self.type) else [self.type]
        places = [] if self.position is None else [pa.int32()]
        return tuple(pa.field(name, type) for name, type in zip(self.made, [*places, *parts], strict=True))


@dataclass(frozen=True, slots=True)
class AggregateOp:
    """One row for each group that has rows: the group's columns, then one for each call. One input."""

    plan: AggregatePlan


class JoinKind(StrEnum):
    """semi, anti: the left rows with, or without, a match; all others: rows of both sides."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    SEMI = "semi"
    ANTI = "anti"


@dataclass(frozen=True, slots=True)
class Band:
    """A comparison of a column of the left input with one of the right, both of one type that has ranges
    (:func:`upriver.plan.types.has_ranges`): the left value is at most the right one, or at least. Of nulls it is not
    true."""

    left: str
    right: str
    at_most: bool


@dataclass(frozen=True, slots=True)
class JoinOp:
    """Pairs of rows, one from each of two inputs, that agree in the key, and for which all bands and the condition are
    true.

    left_key, right_key: columns of the two inputs, pairwise of one type; at least one pair. null_safe: for each pair,
    whether a null agrees with a null (``<=>``) or with nothing (``=``). condition: a predicate over the columns of both
    inputs, or ``None``. It is evaluated only for pairs for which the bands are true. tried: columns of bands that are
    null where they cannot be computed. All bands are true of a row with a null in one of them and a row without nulls
    in the others. can_fail: whether the condition may fail on a pair; rows then wait for the rest of their epoch.
    replicated: a side that may have only so many rows, if the key is a slot. Output: the columns of the left input,
    then (unless semi or anti) those of the right one. An outer join gives nulls for a missing row.
    """

    kind: JoinKind
    left_key: tuple[str, ...]
    right_key: tuple[str, ...]
    null_safe: tuple[bool, ...]
    condition: str | None
    bands: tuple[Band, ...] = ()
    tried: tuple[str, ...] = ()
    can_fail: bool = False
    replicated: Replicated | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """A column to sort by, in Spark's order of its type."""

    column: str
    descending: bool
    nulls_first: bool


class Ranking(StrEnum):
    """How rows that tie in all sort columns are numbered, from 1 on."""

    ROW_NUMBER = "row_number"
    RANK = "rank"
    DENSE_RANK = "dense_rank"


@dataclass(frozen=True, slots=True)
class TopKOp:
    """The rows of each partition whose number, counted from 1, is at most ``limit``. One input.

    partition: columns; may be empty only if the region's key is. rank: the name of an output column with the number, a
    32-bit integer behind the input's columns; ``None`` for no such column. Rows that tie under ``row_number`` are
    numbered in the order of all their columns, so that the result depends on the rows alone.
    """

    partition: tuple[str, ...]
    order: tuple[Order, ...]
    limit: int
    ranking: Ranking
    rank: str | None


class FrameUnit(StrEnum):
    """What the bounds of a frame count: rows, or the distance of the sort value."""

    ROWS = "rows"
    RANGE = "range"


@dataclass(frozen=True, slots=True)
class WindowFrame:
    """The rows of a partition that a window function takes in for a row.

    start, end: how far the first and the last row lie behind the row itself; below zero: before it. ``None``: at the
    end of the partition. Under RANGE, rows that tie in all sort columns are all in the frame or all outside; 0 is where
    the ties of the row begin, or end. Another distance is one of the only sort column, a number, date or time, in the
    direction of the sort: in its units, of a DECIMAL its last digit, days or microseconds. Of a DOUBLE it is a float,
    else a whole number.
    """

    unit: FrameUnit
    start: float | None
    end: float | None


WHOLE_PARTITION = WindowFrame(FrameUnit.ROWS, None, None)


@dataclass(frozen=True, slots=True)
class WindowCall:
    """One window function.

    function: row_number, rank, dense_rank, percent_rank, cume_dist, ntile, lag, lead, first_value, last_value,
    nth_value, or a function of :class:`AggregateCall`. argument: a column of the input, or ``None`` for none. output,
    type: of the result, as Spark gives them. frame: of the functions from first_value on. where: a BOOLEAN column; an
    aggregate takes in only rows in which it is true; ``None``: all. number: of ntile, how many groups; of lag and lead,
    how many rows back or ahead; of nth_value, which row. default: a column, whose value lag and lead give where there
    is no such row; ``None``: null. ignores_nulls: whether rows whose argument is null do not count. aggregate: the
    aggregate of the rows of a frame, if window functions have none of that name themselves; it has the columns then.
    """

    function: str
    argument: str | None
    output: str
    type: pa.DataType
    frame: WindowFrame = WHOLE_PARTITION
    where: str | None = None
    number: int = 0
    default: str | None = None
    ignores_nulls: bool = False
    aggregate: AggregateCall | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the input that it reads."""
        of = () if self.aggregate is None else (*self.aggregate.columns, self.aggregate.where)
        return tuple(name for name in (self.argument, self.where, self.default, *of) if name is not None)


@dataclass(frozen=True, slots=True)
class WindowOp:
    """All rows, each with the results of window functions. One input, whose columns come first; then one for each call.

    partition: columns; may be empty only if the region's key is. Rows that tie in all sort columns are in the order of
    all their columns, so that the result depends on the rows alone.
    """

    partition: tuple[str, ...]
    order: tuple[Order, ...]
    calls: tuple[WindowCall, ...]

    @property
    def outputs(self) -> frozenset[str]:
        """The names of the results."""
        return frozenset(call.output for call in self.calls)


@dataclass(frozen=True, slots=True)
class UnionOp:
    """The rows of all inputs, one or more, which have one schema (UNION ALL)."""


class SetKind(StrEnum):
    EXCEPT = "except"
    INTERSECT = "intersect"


@dataclass(frozen=True, slots=True)
class SetOperationOp:
    """Rows of the first of two inputs of one schema, selected by those of the other. all: whether repeats count."""

    kind: SetKind
    all: bool


@dataclass(frozen=True, slots=True)
class LatestOp:
    """For each primary key, the row of its highest version; none, if that version is a deletion. One input.

    key, order_by: columns. Among versions that tie in ``order_by`` the one that comes last counts. deleted: a predicate
    that is true for a deletion; ``None`` if there are none. at: the column by which rows are retained, or ``None``.

    Versions come with weight +1. If there is an ``at``, also with weight 0, if they come too late to be a row, and with
    -1, if they are too old from now on: then the key has no row, unless another version has replaced this one.
    """

    key: tuple[str, ...]
    order_by: tuple[str, ...]
    deleted: str | None
    at: str | None = None


class Per(StrEnum):
    """How often a user's function is called: for each row, for each key of a batch, or for each batch."""

    ROW = "row"
    KEY = "key"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class MapSource:
    """An input of a stateful map. name: of the table, map or view. key: its columns that are the map's key, in order.
    upstream: the key of the map that gives its rows; ``()``: no map does. changes: its rows may be taken back: the
    function gets the net changes of an epoch, each with its kind."""

    name: str
    key: tuple[str, ...]
    upstream: tuple[str, ...] = ()
    changes: bool = False


@dataclass(frozen=True, slots=True)
class StatefulMapOp:
    """A user's Python function over the rows of each key, in order, with a state for each key.

    key: columns of the output. function: pickled by cloudpickle; docs/guide/stateful-maps.md says what it takes and
    gives, by ``per``. state: the schema of a key's state. output: the key's columns, then those of the rows that the
    function gives. name: the map's, for people.
    sources: of the inputs, in order; ``()``: one, whose rows are only added, come in order, and have the key's columns.
    tells_source: the function's rows are those of all inputs, with all their columns, behind the names of the source
    and of the kind of change. Without that, the only input's changes have their kind before their columns.
    definition: differs for functions that do not do the same; empty: ``function`` tells.
    sets_aside: the rows on which the function fails are set aside, under the map's name.
    is_ordered: its rows go to another map, and have the columns of ``given_schema`` (``plan/row_order.py``).
    """

    key: tuple[str, ...]
    function: bytes
    per: Per
    state: pa.Schema
    output: pa.Schema
    sources: tuple[MapSource, ...] = ()
    tells_source: bool = False
    is_ordered: bool = False
    name: str = ""
    definition: str = ""
    sets_aside: bool = False

    @property
    def inputs(self) -> tuple[MapSource, ...]:
        """One for each input."""
        return self.sources or (MapSource("", self.key),)

    @property
    def reads_epochs(self) -> bool:
        """Whether the rows of a table come to it with their epochs: they are merged with others, or go to another map,
        or fail together with those that their key has in their epoch."""
        return self.is_ordered or len(self.sources) > 1 or self.per is not Per.ROW

    @property
    def waits(self) -> bool:
        """Whether rows of a key that come one after the other wait for the rest of their epoch."""
        return len(self.sources) > 1 or any(source.changes for source in self.sources)


class FunctionForm(StrEnum):
    """What a scalar function of a user's takes: the values of a row, or whole columns."""

    ROW = "row"
    ARROW = "arrow"
    PANDAS = "pandas"


DECLARED_CALL = "call_of_upriver"
"""The name of the Python code by which Spark calls a declared function: so a plan tells it from one of the session."""
USER_PREFIX = "user_function_"
"""The beginning of the name of each user's function in DuckDB's SQL."""


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A user's deterministic scalar function, for expressions. function: pickled by cloudpickle;
    docs/guide/user-functions.md says what it takes and gives, by ``form``. arguments: their types, at least one."""

    name: str
    arguments: tuple[pa.DataType, ...]
    returns: pa.DataType
    form: FunctionForm
    function: bytes

    @property
    def digest(self) -> str:
        """Differs for functions that differ in anything but their name."""
        types = ", ".join(map(str, (*self.arguments, self.returns)))
        return xxhash.xxh3_64_hexdigest(self.function + f"{types} {self.form}".encode())

    @property
    def sql_name(self) -> str:
        """Its name in DuckDB's SQL."""
        return f"{USER_PREFIX}{re.sub(r'[^0-9a-z_]', '_', self.name.lower())}_{self.digest}"


@dataclass(frozen=True, slots=True)
class MapScan:
    """The rows of a stateful map that is in the same flow, in regions of its own, with the columns of ``given_schema``
    (``plan/row_order.py``). Only the planner's: they come over an exchange edge. key: the map's."""

    name: str
    key: tuple[str, ...]


Op = (
    Scan
    | MapScan
    | ValuesOp
    | SaltOp
    | ReplicateOp
    | ExplodeOp
    | FilterOp
    | ProjectOp
    | AggregateOp
    | JoinOp
    | TopKOp
    | WindowOp
    | ClockOp
    | UnionOp
    | SetOperationOp
    | LatestOp
    | StatefulMapOp
)


@dataclass(frozen=True, slots=True)
class LakeEdge:
    """A worker reads its vnodes' slices of a table's runs. index: the routing key, columns of the table. is_dated: each
    row has its epoch."""

    table: str
    index: tuple[str, ...]
    is_dated: bool = False

    @property
    def channel(self) -> Channel:
        return lake_channel(self.table, self.index)

    @property
    def key(self) -> tuple[str, ...]:
        """The routing key, columns of the rows that come."""
        return self.index


@dataclass(frozen=True, slots=True)
class ConstantEdge:
    """Rows of a ValuesOp, which come once, as if the first epoch had them. key: the routing key, columns of them."""

    rows: bytes
    key: tuple[str, ...]

    @property
    def channel(self) -> Channel:
        """Differs from those of all tables: no table's name has a bracket."""
        return Channel(f"({xxhash.xxh3_128_hexdigest(self.rows)})/{xxhash.xxh3_64_hexdigest(repr(self.key).encode())}")


@dataclass(frozen=True, slots=True)
class ExchangeEdge:
    """Rows that another region of the flow sends, worker to worker. key: the routing key, columns of those rows.
    region: of the same view; or the last one of a stateful map in the same flow, and named as the map."""

    region: str
    key: tuple[str, ...]


Edge = LakeEdge | ConstantEdge | ExchangeEdge


@dataclass(frozen=True, slots=True)
class Input:
    """The input at one port of a region. schema: of its rows."""

    edge: Edge
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Node:
    """An operator in a region. inputs: the numbers of its inputs. The region's inputs are 0, 1, ..., and the nodes
    follow in order, so a node's inputs have smaller numbers than the node. schema: of its output."""

    op: Op
    inputs: tuple[int, ...]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Keep:
    """Which rows of a stateful map stay: of each key the last ``rows``; or those whose ``column`` is less than
    ``interval``, in its unit, before the key's newest."""

    rows: int | None = None
    column: str = ""
    interval: int = 0


@dataclass(frozen=True, slots=True)
class ViewStore:
    """How the last region of a view keeps the rows for lookups.

    key: the kept columns that are the routing key, in its order. aggregate: the store keeps groups of the rows that
    come; ``None``: it keeps the rows. having: a predicate over kept rows, applied by each read; ``None`` for none.
    output: the view's columns, computed from kept rows by each read. retracts: whether rows that come may be taken
    back. Without retractions, rows stay in the order in which they came. keep: which of them stay; ``None``: all.
    """

    key: tuple[str, ...]
    aggregate: AggregatePlan | None
    having: str | None
    output: Projection
    retracts: bool = False
    keep: Keep | None = None


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """One region. The rows of the last node (or of the only input, if there are no nodes) leave it over exchange edges,
    or go into the store of the view.

    name: the view's for its last region; ``view/0``, ``view/1``, ... for those before it. why: for ``explain``, in
    words: why the region ends here, and why it has this key. leaves: the number of the node whose rows leave a region
    that has a store, too: that of a stateful map which feeds others; ``None``: no rows leave it but those of the last
    node.
    """

    name: str
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    store: ViewStore | None
    why: str
    leaves: int | None = None

    @property
    def last(self) -> int:
        """The number of the last node, or of the only input."""
        return len(self.inputs) + len(self.nodes) - 1

    @property
    def sent(self) -> int:
        """The number of the rows that leave over exchange edges."""
        return self.last if self.leaves is None else self.leaves

    @property
    def unsure(self) -> tuple[int, ...]:
        """The numbers of the filters and projections above an operator that combines rows, of the joins whose condition
        can fail, and of the stateful maps that must see a key's rows of an epoch at once. If the rows of a key come one
        after the other, they may be given some that the rest takes back, so what they fail on may be a row that no
        epoch ends with."""
        combined: set[int] = set()
        unsure: list[int] = []
        for number, node in enumerate(self.nodes, start=len(self.inputs)):
            is_fed = not combined.isdisjoint(node.inputs)
            if is_fed or not isinstance(node.op, (FilterOp, ProjectOp, UnionOp, SaltOp, ReplicateOp)):
                combined.add(number)
            fails_on_pairs = isinstance(node.op, JoinOp) and node.op.can_fail
            waits = isinstance(node.op, StatefulMapOp) and node.op.waits
            if fails_on_pairs or waits or (is_fed and isinstance(node.op, (FilterOp, ProjectOp))):
                unsure.append(number)
        return tuple(unsure)

    @property
    def lake_ports(self) -> tuple[tuple[int, Channel], ...]:
        """The ports that lake edges feed, and constant ones, each with its channel."""
        edges = enumerate(entry.edge for entry in self.inputs)
        return tuple((port, edge.channel) for port, edge in edges if not isinstance(edge, ExchangeEdge))


@dataclass(frozen=True, slots=True)
class SendEdge:
    """An exchange edge as its sender sees it. key: the receiver's routing key, columns of the sender's output."""

    to: str
    port: int
    key: tuple[str, ...]


def register_bits(error: float) -> int:
    """How many bits of a hash name the register of a value, in approx_count_distinct with this relative error."""
    return math.ceil(2.0 * math.log(1.106 / error) / math.log(2.0))


def is_in_one_place(key: tuple[str, ...]) -> bool:
    """Whether rows that are routed by these columns are all in one place."""
    return all(ALL_ALIKE in column for column in key)


def view_of(region: str) -> str:
    """The view that a region belongs to, by their names."""
    return region.partition("/")[0]


FRAME_OF = "DataFrame"
"""The first line of the plan of a view that is declared as a DataFrame, in the place of a view's SQL."""
NOT_WANTED = "it is declared with partial=False"


@dataclass(frozen=True)
class DataflowPlan:
    """A compiled view: the driver makes it once, and every worker builds its regions from it.

    name, sql: as declared; of a DataFrame, its plan in Spark's words, behind ``FRAME_OF``. key: the view's key, columns
    of ``schema``, in the order of the last region's routing key. A key without columns is ``()``: all rows of the view
    have it. regions: each after those that feed it; the last one has the store, and the view's name. full_because: why
    all keys are kept, in words; ``None``: the view is partial and keeps only looked-up keys. functions: those of the
    user's that its expressions call. logs_changes: its changes are written to the change log. ignored: what its SQL
    says to no effect, in words. feeds: of a stateful map, where its rows go in the other plans of its flow
    (``plan/flows.py``). One that only feeds others has no store, and cannot be looked up. mark: of one that was planned
    together with others, what tells its change log that it is the same view, however it is planned.
    """

    name: str
    sql: str
    key: tuple[str, ...]
    schema: pa.Schema
    regions: tuple[RegionPlan, ...]
    full_because: str | None = NOT_WANTED
    functions: tuple[UserFunction, ...] = ()
    logs_changes: bool = False
    ignored: tuple[str, ...] = ()
    feeds: tuple[SendEdge, ...] = ()
    mark: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether it has rows to look up."""
        return self.regions[-1].store is not None

    @cached_property
    def key_schema(self) -> pa.Schema:
        """Names and types of the key."""
        return key_schema(self.key, self.schema)

    @property
    def constants(self) -> Mapping[Channel, ConstantEdge]:
        """The constant edges that feed it, by channel."""
        edges = (entry.edge for region in self.regions for entry in region.inputs)
        return {edge.channel: edge for edge in edges if isinstance(edge, ConstantEdge)}

    @cached_property
    def depths(self) -> Mapping[str, int]:
        """By region: 0 if only lake edges feed it, and other plans; else one more than the deepest region that does."""
        depths: dict[str, int] = {}
        for region in self.regions:
            edges = [entry.edge for entry in region.inputs]
            fed_by = [depths[edge.region] for edge in edges if isinstance(edge, ExchangeEdge) and edge.region in depths]
            depths[region.name] = 1 + max(fed_by, default=-1)
        return depths

    @cached_property
    def is_clocked(self) -> bool:
        """Whether its rows change by themselves as time passes."""
        return any(isinstance(node.op, ClockOp) for region in self.regions for node in region.nodes)

    @property
    def is_cone(self) -> bool:
        """Whether the worker that gets a lookup computes its rows by itself (``partial/cone.py``)."""
        return self.full_because is None and self.depth > 0

    @property
    def spread(self) -> tuple[RegionPlan, ...]:
        """The regions that are spread over all workers and receive rows. A cone receives none: it reads them."""
        return (replace(self.regions[-1], inputs=()),) if self.is_cone else self.regions

    def unsure(self, region: RegionPlan) -> tuple[int, ...]:
        """The nodes whose failures are tried again once all rows of a key have come, and the maps that wait for that.
        In a full region, the rows of one input come all at once, and meet each other only in a node of several
        inputs. Only the clock adds others."""
        is_line = len(region.inputs) == 1 and all(len(node.inputs) == 1 for node in region.nodes)
        if not is_line or self.full_because is None:
            return region.unsure
        ops = dict(enumerate((node.op for node in region.nodes), start=len(region.inputs)))
        is_clocked = any(isinstance(op, ClockOp) for op in ops.values())
        return tuple(number for number in region.unsure if is_clocked and isinstance(ops[number], StatefulMapOp))

    def takes_parts(self, region: RegionPlan) -> bool:
        """Whether a key's rows of one epoch and one edge may come some at a time: no node fails for good on rows
        that the rest takes back, and none computes a key anew, or must see all of its rows, whenever some come."""
        needs_all = any(isinstance(node.op, WindowOp | StatefulMapOp) for node in region.nodes)
        return not needs_all and set(region.unsure) <= set(self.unsure(region))

    @property
    def channels(self) -> frozenset[Channel]:
        """The lake edges that feed it, and the constant ones."""
        return frozenset(channel for region in self.regions for _, channel in region.lake_ports)

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """The tables that it reads, directly or through other views."""
        edges = (entry.edge for region in self.regions for entry in region.inputs)
        return tuple(sorted({edge.table for edge in edges if isinstance(edge, LakeEdge)}))

    @cached_property
    def maps(self) -> Mapping[str, str]:
        """The stateful maps whose rows it computes, each with the definition of its function."""
        nodes = (node for region in self.regions for node in region.nodes)
        return {node.op.name: node.op.definition for node in nodes if isinstance(node.op, StatefulMapOp)}

    @cached_property
    def counts_changes(self) -> bool:
        """Whether a stateful map of it gets the net changes of each epoch: of epochs that are merged it gets fewer."""
        nodes = (node for region in self.regions for node in region.nodes)
        return any(source.changes for node in nodes if isinstance(node.op, StatefulMapOp) for source in node.op.inputs)

    @property
    def depth(self) -> int:
        """The depth of the deepest region: 0 without exchanges."""
        return max(self.depths.values())

    def sends(self, region: str) -> tuple[SendEdge, ...]:
        """Where a region's rows go."""
        return (*self.sends_here(region), *(self.feeds if region == self.name else ()))

    def sends_here(self, region: str) -> tuple[SendEdge, ...]:
        """Where the rows of a region, of this plan or another, go within this plan."""
        return tuple(
            SendEdge(to.name, port, entry.edge.key)
            for to in self.regions
            for port, entry in enumerate(to.inputs)
            if isinstance(entry.edge, ExchangeEdge) and entry.edge.region == region
        )

    @cached_property
    def fed_by(self) -> frozenset[str]:
        """The stateful maps in other plans of its flow whose rows it reads."""
        edges = (entry.edge for region in self.regions for entry in region.inputs)
        return frozenset(
            edge.region for edge in edges if isinstance(edge, ExchangeEdge) and view_of(edge.region) != self.name
        )
