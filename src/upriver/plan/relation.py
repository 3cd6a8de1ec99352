"""A query as a tree of relations, before the planner decides where its rows are."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal

import pyarrow as pa

from upriver.plan.column_names import plain_column
from upriver.plan.plan import FilterOp, JoinKind, JoinOp, Op, ProjectOp, UnionOp

Constant = bool | int | float | Decimal | str


@dataclass(frozen=True, slots=True)
class Scalar:
    """A translated expression.

    sql: DuckDB SQL whose type is exactly the DuckDB type of ``type``. type: what Spark gives the expression. fails:
    whether it can fail on a row, so that Spark's order of evaluation matters. constant: the value of a literal, else
    ``None``. letters: the argument of upper() and lower(). nulls: as :attr:`null_by`; ``None`` for the expression
    itself. present: as :attr:`rejects`; ``None`` for those of ``null_by``.
    """

    sql: str
    type: pa.DataType
    fails: bool = False
    constant: Constant | None = None
    letters: "Scalar | None" = None
    nulls: frozenset[str] | None = None
    present: frozenset[str] | None = None

    @property
    def null_by(self) -> frozenset[str]:
        """DuckDB SQL of values: this one is NULL exactly if one of them is."""
        if self.constant is not None:
            return frozenset()
        return frozenset({self.sql}) if self.nulls is None else self.nulls

    @property
    def rejects(self) -> frozenset[str]:
        """DuckDB SQL of values that are all not NULL where this one, a condition, is true."""
        return self.null_by if self.present is None else self.present


def any_fails(scalars: Iterable[Scalar]) -> bool:
    return any(scalar.fails for scalar in scalars)


@dataclass(frozen=True, slots=True)
class Relation:
    """An operator over relations. schema: of its rows; names as :mod:`upriver.plan.plan` says.

    place: its offset in the view's SQL, for messages and ``explain``; ``None`` if it has none. fails: of a projection,
    the columns that can fail on a row; also those that are upper() or lower(), which Spark merges into another such
    call. asks: the conditions of a filter or a join, in the order in which they are applied.

    deferred: the columns whose expression can fail and is in reach of a filter above, which evaluates it itself
    (:mod:`upriver.sql.relations`). can_fail: whether anything in the tree can fail on a row.
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
            case ProjectOp(projection):
                (below,) = (part.deferred for part in self.inputs)
                pairs = zip(projection.schema.names, projection.expressions, strict=True)
                return self.fails | {name for name, text in pairs if plain_column(text) in below}
            case JoinOp(JoinKind.SEMI | JoinKind.ANTI):
                return self.inputs[0].deferred
            case FilterOp() | UnionOp() | JoinOp():
                return frozenset[str]().union(*(part.deferred for part in self.inputs))
            case _:
                return frozenset()
