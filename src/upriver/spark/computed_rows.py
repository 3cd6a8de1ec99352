"""What a table's DataFrame computes over the columns of files, in the tasks that read these."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pyarrow as pa

from upriver.engine.expressions import Evaluator
from upriver.plan.plan import FilterOp, ProjectOp
from upriver.plan.row_steps import RowSteps


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """Steps over the columns of a scan; picklable. table: the columns of the table; null where the DataFrame has
    none."""

    steps: RowSteps
    table: pa.Schema

    @contextmanager
    def evaluating(self) -> Iterator[Callable[[pa.RecordBatch], pa.RecordBatch]]:
        """What makes the table's rows, in its columns, which are numbered, of those of the scan. It raises RowError."""
        with closing(Evaluator()) as evaluator:
            yield lambda rows: self._applied(rows, evaluator)

    def _applied(self, rows: pa.RecordBatch, evaluator: Evaluator) -> pa.RecordBatch:
        found = pa.RecordBatch.from_arrays(rows.columns, names=self.steps.columns.names).cast(self.steps.columns)
        for step in self.steps.steps:
            match step:
                case FilterOp(predicate):
                    found = found.filter(pa.array(evaluator.mask(found, predicate)))
                case ProjectOp(projection):
                    found = evaluator.project(found, projection)
        named = dict(zip(self.steps.schema.names, found.columns, strict=True))
        arrays = [
            named[field.name].cast(field.type) if field.name in named else pa.nulls(len(found), field.type)
            for field in self.table
        ]
        return pa.RecordBatch.from_arrays(arrays, names=[f"c{place}" for place in range(len(arrays))])
