"""What a query is compiled in: which tables, views and WITH queries its FROM may name, and whose SQL it is."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from upriver.plan.algebra import Scalar
from upriver.plan.plan import TableSpec
from upriver.plan.sql_source import ELSEWHERE, Source
from upriver.plan.sql_types import duck_name, spark_name
from upriver.sql.sql_functions import RULES
from upriver.sql.sql_scalar import Context, column_scalar
from upriver.sql.sql_scope import Rows


@dataclass(frozen=True, slots=True)
class Setting:
    """timezone: the Spark session's. view: the rows of a declared view, or ``None`` if there is none of that name.

    queries: those of WITH, by name in lower case. compile: what a subquery comes to, in a setting. untyped: whether
    a column may be nothing but NULL: what the query is united with gives it its type.
    """

    source: Source
    timezone: str
    tables: Mapping[str, TableSpec]
    view: Callable[[str], Rows | None]
    compile: Callable[["Setting", exp.Expr], Rows]
    queries: Mapping[str, Rows]
    untyped: bool = False

    def knowing(self, queries: Mapping[str, Rows]) -> "Setting":
        """With more queries of WITH."""
        return replace(self, queries={**self.queries, **queries})

    def context(self, *schemas: pa.Schema, fails: Collection[str] = ()) -> Context:
        """For expressions over rows that have the columns of all these schemas. fails: columns that a row can make an
        error, wherever they are needed."""
        types = {field.name: field.type for schema in schemas for field in schema}

        def leaf(node: exp.Expr) -> Scalar | None:
            if not isinstance(node, exp.Column):
                return None
            type = types[node.name]
            if duck_name(type) is None:
                raise self.source.unsupported(node, f"an expression over {spark_name(type)}", ELSEWHERE)
            return replace(column_scalar(node.name, type), fails=node.name in fails)

        return Context(self.source, self.timezone, leaf, RULES)
