"""A typer without Spark, for tests and the simulator: our own types, which elsewhere are checked against Spark's."""

from collections.abc import Mapping

import pyarrow as pa

from upriver.dataflow.plan import TableSpec
from upriver.dataflow.sql import compile_query
from upriver.dataflow.sql_query import read, resolve
from upriver.dataflow.sql_source import Source


class LocalTyper:
    """Types a query over ``tables`` as Spark would in a session in UTC. Computed columns must have an alias."""

    def __init__(self, tables: Mapping[str, TableSpec]) -> None:
        self._tables = tables

    @property
    def timezone(self) -> str:
        return "UTC"

    def schema_of(self, sql: str) -> pa.Schema:
        """Raises UnsupportedSql, DeclarationError."""
        source = Source("", sql)
        query = resolve(read(source, self._tables))
        fields = []
        for item, value in zip(query.items, compile_query(query, self.timezone).outputs, strict=True):
            if item.name is None:
                raise source.wrong(item.node, "only Spark knows the name of this column", "Give it one: ... AS name.")
            fields.append(pa.field(item.name, value.type))
        return pa.schema(fields)
