"""A lake for simulated dataflows: rows at random."""

from random import Random

import pyarrow as pa
from dataflow_kit import ROWS, TABLES
from hypothesis import strategies as st
from state_kit import Row

VERSIONS_MAX = 100
"""Rows of an upsert table."""


class Lake:
    """All rows so far, and the next ones. Versions of an upsert table come in any order."""

    def __init__(self, data: st.DataObject, rng: Random) -> None:
        self._data = data
        self._versions = iter(rng.sample(range(VERSIONS_MAX), VERSIONS_MAX))
        self.rows = {name: table.schema.empty_table() for name, table in TABLES.items()}

    def next_rows(self, most: int) -> dict[str, pa.RecordBatch]:
        """Of each table at most so many."""
        drawn = {name: self._drawn(name, most) for name in self.rows if self._data.draw(st.booleans())}
        for name, rows in drawn.items():
            self.rows[name] = pa.concat_tables([self.rows[name], pa.Table.from_batches([rows])])
        return drawn

    def _drawn(self, name: str, most: int) -> pa.RecordBatch:
        rows: list[Row] = self._data.draw(st.lists(ROWS[name], max_size=most))
        if name == "sales":
            rows = [(*row, self.rows[name].num_rows + number) for number, row in enumerate(rows)]
        if name == "stock":
            rows = [(*row, next(self._versions), self._data.draw(st.sampled_from([None, False, True]))) for row in rows]
        schema = TABLES[name].schema
        columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(schema)]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
