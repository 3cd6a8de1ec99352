"""DuckDB for tests: an oracle for queries, and an evaluator of expressions for operators."""

from collections.abc import Sequence
from functools import cache

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.plan.plan import Projection, UserFunction


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    """One for the whole run: each takes longer to open than a query takes."""
    return duckdb.connect()


def by_duckdb(sql: str, **tables: pa.Table) -> pa.Table:
    """The answer to a query over these tables."""
    for name, table in tables.items():
        _duckdb().register(name, table)
    return _duckdb().sql(sql).to_arrow_table()


class DuckDbEvaluator:
    """Evaluates DuckDB SQL in the simplest way, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.calls = 0

    def define(self, functions: Sequence[UserFunction]) -> None:
        assert not functions, "it calls no functions of users"

    def without_row_text(self) -> "DuckDbEvaluator":
        return self

    def project(self, rows: pa.RecordBatch, projection: Projection) -> pa.RecordBatch:
        columns = zip(projection.expressions, projection.schema.names, strict=True)
        answer = self._query(rows, ", ".join(f'{expression} AS "{name}"' for expression, name in columns))
        return answer.cast(projection.schema).combine_chunks().to_batches()[0] if rows.num_rows else _none(projection)

    def mask(self, rows: pa.RecordBatch, predicate: str) -> npt.NDArray[np.bool_]:
        answer = self._query(rows, f"coalesce({predicate}, false) AS passes")
        mask: npt.NDArray[np.bool_] = answer.column("passes").to_numpy()
        return mask

    def _query(self, rows: pa.RecordBatch, select: str) -> pa.Table:
        self.calls += 1
        return by_duckdb(f"SELECT {select} FROM input", input=pa.Table.from_batches([rows]))


def _none(projection: Projection) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], projection.schema)
