"""Filter and Project as the operators of a region: each row goes through by itself, with its hash64 and its weight."""

from upriver.engine.batch import Batch
from upriver.engine.operators.evaluator import Evaluator
from upriver.engine.operators.filter import Filter
from upriver.engine.operators.project import Project
from upriver.plan.plan import Projection


class Filtering:
    """The rows for which a predicate is true."""

    __slots__ = ("_filter",)

    def __init__(self, predicate: str, evaluator: Evaluator) -> None:
        self._filter = Filter(predicate, evaluator)

    def apply(self, port: int, batch: Batch) -> Batch:
        """Raises RowError if the predicate fails on a row."""
        return self._filter.apply(batch)


class Projecting:
    """Other columns for the same rows."""

    __slots__ = ("_project",)

    def __init__(self, projection: Projection, evaluator: Evaluator) -> None:
        self._project = Project(projection, evaluator)

    def apply(self, port: int, batch: Batch) -> Batch:
        """Raises RowError if an expression fails on a row."""
        return batch.replaced(self._project.apply(batch.rows))
