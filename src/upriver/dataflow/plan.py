"""A compiled view: what the driver works out once, and every worker builds operators from.

A plan is data: frozen, comparable, JSON both ways. Expressions are DuckDB SQL over named columns, which may call the
macros of sql_macros; double quotes hold nothing but column names, and a column as it is is its quoted name alone. The
SQL that the user wrote is kept beside them for messages and for ``explain``.
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

    def to_json(self) -> dict[str, Any]:
        return {"expressions": list(self.expressions), "schema": schema_to_json(self.schema)}

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        return cls(tuple(json["expressions"]), schema_from_json(json["schema"]))


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One aggregate. ``function`` is count_star, count, sum, avg, min, max, any_value, stddev_samp, stddev_pop,
    var_samp or var_pop; ``argument`` is a column of the input (``None`` for count_star; a DOUBLE for the last four);
    ``output`` and ``type`` are the result's, as Spark gives them. distinct: whether equal values of a group count once.
    where: a BOOLEAN column of the input; only rows in which it is true count (``None``: all do)."""

    function: str
    argument: str | None
    output: str
    type: pa.DataType
    distinct: bool = False
    where: str | None = None


@dataclass(frozen=True, slots=True)
class AggregatePlan:
    """Group by the input columns ``group`` (may be empty of extras but always holds the routing key's columns).

    The routing key's columns come first in ``group``, in the order of the plan's ``index``; then the others. Each has
    the value that Spark groups by (one zero, one NaN). Output columns: the group columns, then one per call.
    """

    group: tuple[str, ...]
    calls: tuple[AggregateCall, ...]

    def to_json(self) -> dict[str, Any]:
        fields = [pa.field(call.output, call.type) for call in self.calls]
        return {
            "group": list(self.group),
            "calls": [[call.function, call.argument, call.distinct, call.where] for call in self.calls],
            "outputs": schema_to_json(pa.schema(fields)),
        }

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        outputs = schema_from_json(json["outputs"])
        calls = (
            AggregateCall(function, argument, field.name, field.type, distinct, where)
            for (function, argument, distinct, where), field in zip(json["calls"], outputs, strict=True)
        )
        return cls(tuple(json["group"]), tuple(calls))


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """One view as one region: lake edge, filter, projection, aggregate or rows, output projection.

    name, sql: as declared. table, index: the lake edge; ``index`` is the routing key in the table's column names.
    key: the view's key in output column names, in the order of ``index`` (``key[i]`` holds the values of
    ``index[i]``). filter: a DuckDB predicate over the table's columns, or ``None``. project: columns computed from
    the table's rows, the input of the aggregate or the stored rows. aggregate: ``None`` for a view of rows.
    having: a DuckDB predicate over the aggregate's output, or ``None``. output: the view's columns, computed from
    the aggregate's output (or the stored rows) when the view is read; its schema is the view's.
    """

    name: str
    sql: str
    table: str
    index: tuple[str, ...]
    key: tuple[str, ...]
    filter: str | None
    project: Projection
    aggregate: AggregatePlan | None
    having: str | None
    output: Projection

    @property
    def channel(self) -> Channel:
        """The lake edge that feeds this view."""
        return lake_channel(self.table, self.index)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "sql": self.sql,
            "table": self.table,
            "index": list(self.index),
            "key": list(self.key),
            "filter": self.filter,
            "project": self.project.to_json(),
            "aggregate": None if self.aggregate is None else self.aggregate.to_json(),
            "having": self.having,
            "output": self.output.to_json(),
        }

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        aggregate = json["aggregate"]
        return cls(
            name=json["name"],
            sql=json["sql"],
            table=json["table"],
            index=tuple(json["index"]),
            key=tuple(json["key"]),
            filter=json["filter"],
            project=Projection.from_json(json["project"]),
            aggregate=None if aggregate is None else AggregatePlan.from_json(aggregate),
            having=json["having"],
            output=Projection.from_json(json["output"]),
        )
