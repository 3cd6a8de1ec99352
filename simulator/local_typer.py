"""A typer without Spark, for tests and the simulator. It gives our own types, which elsewhere Spark's confirm."""

from collections.abc import Mapping

import pyarrow as pa

from upriver.plan.plan import TableSpec, UserFunction
from upriver.plan.source import Source
from upriver.sql.queries import Views, output_fields, parsed


class LocalTyper:
    """Types a query over ``tables`` as Spark would in a session in UTC. Computed columns must have an alias."""

    def __init__(self, tables: Mapping[str, TableSpec], functions: Mapping[str, UserFunction] | None = None) -> None:
        self._tables = tables
        self.functions: Mapping[str, UserFunction] = functions or {}

    @property
    def timezone(self) -> str:
        return "UTC"

    def schema_of(self, sql: str) -> pa.Schema:
        """Raises UnsupportedSql, DeclarationError."""
        source = Source("", sql)
        rows = Views({}, self._tables, self.timezone, self.functions).compiled(source, parsed(source))
        fields = []
        for column, type in output_fields(source, rows):
            if column.title is None:
                raise source.wrong(column.node, "only Spark knows the name of this column", "Give it one: ... AS name.")
            fields.append(pa.field(column.title, type))
        return pa.schema(fields)

    def curve(self, bits: int) -> tuple[float, ...]:
        """None: only Spark has measured."""
        return ()
