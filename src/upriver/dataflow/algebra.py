"""A query as a tree of relations, before anybody has thought of where its rows are."""

from dataclasses import dataclass, field

import pyarrow as pa

from upriver.dataflow.column_names import plain_column
from upriver.dataflow.ops import Filter, Join, JoinKind, Op, Project, Union
from upriver.dataflow.sql_scalar import Scalar, any_fails


@dataclass(frozen=True, slots=True)
class Relation:
    """An operator over relations. schema: of its rows; names as :mod:`upriver.dataflow.ops` says.

    place: the offset of what it is in the view's SQL, for messages and ``explain``; ``None`` if it stands nowhere.
    fails: of a projection, the columns that a row can make an error; and those that are upper() or lower(), which Spark
    takes into another of these. asks: the conditions of a filter or a join, in the order in which they are asked.

    deferred: the columns whose expression can fail and is in reach of a filter from above, which evaluates it itself
    (:mod:`upriver.dataflow.sql_pushdown`). can_fail: whether anything in the tree can fail on a row.
    """

    op: Op
    inputs: tuple["Relation", ...]
    schema: pa.Schema
    place: int | None = None
    fails: frozenset[str] = frozenset()
    asks: tuple[Scalar, ...] = ()
    deferred: frozenset[str] = field(init=False, compare=False)
    can_fail: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "deferred", self._deferred())
        can_fail = bool(self.fails) or any_fails(self.asks) or any(one.can_fail for one in self.inputs)
        object.__setattr__(self, "can_fail", can_fail)

    def _deferred(self) -> frozenset[str]:
        match self.op:
            case Project(projection):
                (below,) = (part.deferred for part in self.inputs)
                pairs = zip(projection.schema.names, projection.expressions, strict=True)
                return self.fails | {name for name, text in pairs if plain_column(text) in below}
            case Join(JoinKind.SEMI | JoinKind.ANTI):
                return self.inputs[0].deferred
            case Filter() | Union() | Join():
                return frozenset[str]().union(*(part.deferred for part in self.inputs))
            case _:
                return frozenset()
