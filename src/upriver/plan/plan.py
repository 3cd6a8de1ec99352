"""What plans are made of: tables and their lake edges, projections and aggregates. All of it frozen, comparable data.

Expressions are DuckDB SQL over named columns, which may call the macros of sql_macros; double quotes hold nothing but
column names, and a column as it is is its quoted name alone. A view's whole plan is :mod:`upriver.plan.graph`'s.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import pyarrow as pa
import xxhash

from upriver.ids import Channel

CHANNEL_CHARS_MAX = 150
"""Characters of an index's columns in the name of its channel."""


def schema_to_json(schema: pa.Schema) -> str:
    """An Arrow schema as base64 of its IPC form."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def schema_from_json(text: str) -> pa.Schema:
    """The inverse of :func:`schema_to_json`."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def lake_channel(table: str, index: tuple[str, ...]) -> Channel:
    """The channel of a lake edge: a table, in the order of one index key. Also the directory of its runs.

    Names that a filesystem may not take (long ones, ``..``) are told by a hash.
    """
    name = ",".join(quote(column, safe="") for column in index)
    if len(name) > CHANNEL_CHARS_MAX or name.startswith("."):
        name = xxhash.xxh3_128_hexdigest(name.encode())
    return Channel(f"{table}/{name}")


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A declared table. ``key``, ``order_by`` and ``primary_key`` are column names; ``schema`` is its rows'.

    primary_key: of an upsert table, whose rows are versions: of the versions of one primary key the one that is last by
    ``order_by`` counts, and the key has no row if ``deletes``, a DuckDB predicate over the columns, is true for it;
    ``None`` if no version deletes. Of an append table, all of whose rows count, ``()``.
    """

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    primary_key: tuple[str, ...] = ()
    deletes: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "schema": schema_to_json(self.schema),
            "key": list(self.key),
            "order_by": list(self.order_by),
            "primary_key": list(self.primary_key),
            "deletes": self.deletes,
        }

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """A record from before there were upsert tables is an append table's."""
        return cls(
            name=json["name"],
            schema=schema_from_json(json["schema"]),
            key=tuple(json["key"]),
            order_by=tuple(json["order_by"]),
            primary_key=tuple(json.get("primary_key", ())),
            deletes=json.get("deletes"),
        )


@dataclass(frozen=True, slots=True)
class Projection:
    """Output columns, in order: ``schema`` names and types them, ``expressions`` computes them (DuckDB SQL)."""

    expressions: tuple[str, ...]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One aggregate.

    function: count_star, count, sum, avg, min, max, any_value, stddev_samp, stddev_pop, var_samp, var_pop, bool_and or
    bool_or. argument: a column of the input; ``None`` for count_star. output, type: the result's, as Spark gives them.
    distinct: whether equal values of a group count once. where: a BOOLEAN column of the input; only rows in which it is
    true count. ``None``: all do.
    """

    function: str
    argument: str | None
    output: str
    type: pa.DataType
    distinct: bool = False
    where: str | None = None


@dataclass(frozen=True, slots=True)
class AggregatePlan:
    """Group by the input columns ``group``, among which are the routing key's, whatever their order.

    Each has the value that Spark groups by (one zero, one NaN). Output columns: the group columns, then one per call.
    retracts: whether rows may be taken back. If not, less is kept: of extremes only the best, of sums of floats not
    every bit.
    """

    group: tuple[str, ...]
    calls: tuple[AggregateCall, ...]
    retracts: bool = False
