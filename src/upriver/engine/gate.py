"""Gate: where rows come into a region, and what becomes of those that the view cannot be computed from."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from upriver.engine.batch import Batch
from upriver.engine.operators.evaluator import Evaluator
from upriver.engine.operators.operator import Operator
from upriver.engine.operators.stateful_map import StatefulMap
from upriver.engine.set_aside import SetAside
from upriver.engine.sieve import Flowing, sieves_of
from upriver.errors import RowError
from upriver.plan.graph import DataflowPlan, LakeEdge, RegionPlan
from upriver.plan.table_rows import table_rows

NOBODYS = (
    ". It is not set aside: that is done with one row of a table, and what fails here was made of several, by a join, "
    "an aggregate or the like"
)
"""Said of an error that may be due to rows of a table that sets aside, but not to any one of them."""


class Gate:
    """``operators``: those of the region's nodes, which set aside what they are to."""

    __slots__ = ("_aside", "_sets_aside", "_sieves", "_tables", "operators")

    def __init__(
        self,
        view: DataflowPlan,
        region: RegionPlan,
        operators: Sequence[Operator],
        evaluator: Evaluator,
        sets_aside: Collection[str],
    ) -> None:
        """operators: of the region's nodes. sets_aside: the tables whose bad rows are set aside."""
        edges = [entry.edge for each in view.regions for entry in each.inputs]
        self._tables = {
            port: entry.edge.table for port, entry in enumerate(region.inputs) if isinstance(entry.edge, LakeEdge)
        }
        self._sets_aside = {edge.table for edge in edges if isinstance(edge, LakeEdge)}.intersection(sets_aside)
        self._sieves = sieves_of(view, region, operators, evaluator, self._sets_aside)
        self._aside: list[SetAside] = []
        come = {rows.number: rows.table for rows in table_rows(region) if rows.table in self._sets_aside}
        self.operators = tuple(
            _SiftingMap(operator, view.name, come[node.inputs[0]], self._aside)
            if isinstance(operator, StatefulMap) and node.inputs[0] in come
            else operator
            for operator, node in zip(operators, region.nodes, strict=True)
        )

    def let_in(self, number: int, flowing: Flowing) -> None:
        """If rows of a table come into the region with this number, keep bad ones out, and add what comes of the others
        as far as each goes by itself. Raises RowError for a bad row that is not to be set aside."""
        if number in self._sieves:
            aside = self._sieves[number].sift(flowing)
            if aside is not None:
                self._aside.append(aside)

    def left_out(self) -> list[SetAside]:
        """The rows that were kept out since the last time."""
        aside = self._aside.copy()
        self._aside.clear()
        return aside

    @contextmanager
    def naming(self, port: int | None) -> Iterator[None]:
        """Errors tell the table, if rows have come in at the port of a lake edge, and why they were not set aside."""
        table = None if port is None else self._tables[port]
        try:
            yield
        except RowError as error:
            is_downstream = bool(self._sets_aside) if table is None else table in self._sets_aside
            where = "" if table is None else f"table {table!r}: "
            raise RowError(f"{where}{error}{NOBODYS if is_downstream else ''}") from error


class _SiftingMap:
    """A stateful map as an operator that sets aside the rows on which the function fails."""

    __slots__ = ("_aside", "_map", "_table", "_view")

    def __init__(self, operator: StatefulMap, view: str, table: str, aside: list[SetAside]) -> None:
        """aside: where to put them."""
        self._map = operator
        self._view = view
        self._table = table
        self._aside = aside

    def apply(self, port: int, batch: Batch) -> Batch:
        made, bad, errors = self._map.apply_good(batch)
        if errors:
            self._aside.append(SetAside(self._view, self._table, bad, errors))
        return made
