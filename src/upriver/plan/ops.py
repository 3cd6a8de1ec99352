"""What a dataflow can do with rows: one record for each kind of operator, which says all that there is to say of it.

The SQL front end makes trees of these (:mod:`upriver.plan.algebra`), the planner cuts the trees into regions
(:mod:`upriver.plan.graph`), and a worker builds an operator from each (:mod:`upriver.engine.operators`). Columns
are named; no two columns of one operator's output, or of all its inputs, have names that differ in case alone.
Expressions are DuckDB SQL over the input's columns, as :mod:`upriver.engine.expressions` evaluates them.

All operators take and give signed batches: a row with weight -1 takes one equal row back. Two rows are equal if all
their values are; a null equals a null, NaN equals NaN, and -0.0 equals 0.0, but where an operator's own words differ.
"""

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from upriver.plan.plan import AggregatePlan, Projection


@dataclass(frozen=True, slots=True)
class Scan:
    """The rows of a declared table: of an upsert table, the row of each primary key as it is now. No inputs."""

    table: str


@dataclass(frozen=True, slots=True)
class Filter:
    """The rows for which the predicate is true. One input, whose columns it keeps."""

    predicate: str


@dataclass(frozen=True, slots=True)
class Project:
    """One row for each. One input."""

    projection: Projection


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One row for each group that has rows: the group's columns, then one for each call. One input."""

    plan: AggregatePlan


class JoinKind(StrEnum):
    """semi, anti: the left rows that have, or do not have, a match; all others: rows of both sides."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    SEMI = "semi"
    ANTI = "anti"


@dataclass(frozen=True, slots=True)
class Join:
    """Pairs of rows, one of each of two inputs, that agree in the key and for which the condition is true.

    left_key, right_key: columns of the two inputs, pairwise of one type; at least one pair. null_safe: for each pair,
    whether a null agrees with a null (``<=>``) or with nothing (``=``). condition: a predicate over the columns of both
    inputs, or ``None``. Output: the columns of the left input, then (unless semi or anti) those of the right one; what
    an outer join has no row for is null.
    """

    kind: JoinKind
    left_key: tuple[str, ...]
    right_key: tuple[str, ...]
    null_safe: tuple[bool, ...]
    condition: str | None


@dataclass(frozen=True, slots=True)
class Order:
    """A column to sort by, in Spark's order of its type."""

    column: str
    descending: bool
    nulls_first: bool


class Ranking(StrEnum):
    """How rows that are equal in all that they are sorted by are numbered, from 1 on."""

    ROW_NUMBER = "row_number"
    RANK = "rank"
    DENSE_RANK = "dense_rank"


@dataclass(frozen=True, slots=True)
class TopK:
    """The rows of each partition whose number, counted from 1, is at most ``limit``. One input.

    partition: columns; may be none only if the region's key is. rank: the name of an output column, a 32-bit integer
    behind the input's columns, that holds the number; ``None`` for no such column. Rows that tie under ``row_number``
    are numbered in the order of all their columns, so that the result depends on the rows alone.
    """

    partition: tuple[str, ...]
    order: tuple[Order, ...]
    limit: int
    ranking: Ranking
    rank: str | None


@dataclass(frozen=True, slots=True)
class Union:
    """The rows of all inputs, one or more, which have one schema (UNION ALL)."""


class SetKind(StrEnum):
    EXCEPT = "except"
    INTERSECT = "intersect"


@dataclass(frozen=True, slots=True)
class SetOperation:
    """Rows of the first of two inputs of one schema, as the other has them. all: whether repeats count."""

    kind: SetKind
    all: bool


@dataclass(frozen=True, slots=True)
class Latest:
    """Of the versions of each primary key, the row of the highest; none, if that one is a deletion. One input.

    key, order_by: columns. Of versions that are equal in ``order_by`` the one that comes last counts. deleted: a
    predicate that is true for a deletion; ``None`` if there are none. Rows come with weight +1 only.
    """

    key: tuple[str, ...]
    order_by: tuple[str, ...]
    deleted: str | None


class Per(StrEnum):
    """For what a user's function is called once: for each row, for each key of a batch, or for each batch."""

    ROW = "row"
    KEY = "key"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class StatefulMap:
    """A user's Python function over the rows of each key, in order, with a state of its own. One input, append only.

    key: columns. function: made by cloudpickle; docs/stateful_map.md says what it takes and gives, by ``per``. state:
    the schema of a key's state. output: the key's columns, then those of the rows that the function gives.
    """

    key: tuple[str, ...]
    function: bytes
    per: Per
    state: pa.Schema
    output: pa.Schema


Op = Scan | Filter | Project | Aggregate | Join | TopK | Union | SetOperation | Latest | StatefulMap
