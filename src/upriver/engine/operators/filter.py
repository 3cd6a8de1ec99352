"""Filter: the rows for which a predicate is true. Stateless; a retraction passes where its row passed."""

from upriver.engine.batch import Batch
from upriver.engine.operators.evaluator import Evaluator


class Filter:
    """SQL's WHERE over the columns of a table."""

    __slots__ = ("_evaluator", "_predicate")

    def __init__(self, predicate: str, evaluator: Evaluator) -> None:
        """predicate: DuckDB SQL."""
        self._predicate = predicate
        self._evaluator = evaluator

    def apply(self, batch: Batch) -> Batch:
        """The rows to keep, in order, with their hashes and weights. Raises RowError as the evaluator does."""
        return batch.filtered(self._evaluator.mask(batch.rows, self._predicate))
