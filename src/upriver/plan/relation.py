"""A query as a tree of relations, before the planner decides where its rows are."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

import pyarrow as pa

from upriver.plan.clock import ClockOp
from upriver.plan.column_names import plain_column
from upriver.plan.plan import (
    ExplodeOp,
    FilterOp,
    JoinKind,
    JoinOp,
    Op,
    ProjectOp,
    Ranking,
    ReplicateOp,
    SaltOp,
    TopKOp,
    UnionOp,
    WindowOp,
)

Constant = bool | int | float | Decimal | str


@dataclass(frozen=True, slots=True)
class Scalar:
    """A translated expression.

    sql: DuckDB SQL whose type is exactly the DuckDB type of ``type``. type: what Spark gives the expression. fails:
    whether it can fail on a row, so that Spark's order of evaluation matters. constant: the value of a literal, else
    ``None``. letters: the argument of upper() and lower(). nulls: as :attr:`null_by`; ``None`` for the expression
    itself. rejected: as :attr:`rejects`; ``None`` for those of ``null_by``. whole: as :attr:`is_whole`; ``None`` for
    whether it is a plain column. is_test: whether it is a test for NULL, ``x IS NOT NULL``; its ``whole`` is of ``x``.
    """

    sql: str
    type: pa.DataType
    fails: bool = False
    constant: Constant | None = None
    letters: "Scalar | None" = None
    nulls: frozenset[str] | None = None
    rejected: frozenset[str] | None = None
    whole: bool | None = None
    is_test: bool = False

    @property
    def null_by(self) -> frozenset[str]:
        """DuckDB SQL of values: this one is NULL exactly if one of them is."""
        if self.constant is not None:
            return frozenset()
        return frozenset({self.sql}) if self.nulls is None else self.nulls

    @property
    def rejects(self) -> frozenset[str]:
        """DuckDB SQL of values that Spark knows not to be NULL where this one is not NULL, and, for a condition, true.
        Spark looks only into the functions that it calls null-intolerant."""
        return self.null_by if self.rejected is None else self.rejected

    @property
    def is_whole(self) -> bool:
        """Whether it is made of columns and of Spark's null-intolerant functions, without a constant."""
        return plain_column(self.sql) is not None if self.whole is None else self.whole


def any_fails(scalars: Iterable[Scalar]) -> bool:
    return any(scalar.fails for scalar in scalars)


@dataclass(frozen=True, slots=True)
class Relation:
    """An operator over relations. schema: of its rows; names as :mod:`upriver.plan.plan` says.

    place: its offset in the view's SQL, for messages and ``explain``; ``None`` if it has none. fails: of a projection,
    the columns that can fail on a row; also those that are upper() or lower(), which Spark merges into another such
    call. values: of a projection, the computed columns. asks: the conditions of a filter or a join, in the order in
    which they were written; of an ExplodeOp, its list.

    deferred: the columns whose expression can fail and is in reach of a filter above, which evaluates it itself
    (:mod:`upriver.sql.pushdown`). certain: columns that are never NULL, by their expressions. can_fail: whether
    anything in the tree can fail on a row.
    """

    op: Op
    inputs: tuple["Relation", ...]
    schema: pa.Schema
    place: int | None = None
    fails: frozenset[str] = frozenset()
    asks: tuple[Scalar, ...] = ()
    values: Mapping[str, Scalar] = field(default_factory=dict, compare=False)
    deferred: frozenset[str] = field(init=False, compare=False)
    certain: frozenset[str] = field(init=False, compare=False)
    can_fail: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "deferred", self._deferred())
        object.__setattr__(self, "certain", self._certain())
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
            case FilterOp() | SaltOp() | ReplicateOp() | ExplodeOp() | ClockOp() | UnionOp() | JoinOp():
                return frozenset[str]().union(*(part.deferred for part in self.inputs))
            case _:
                return frozenset()

    def _certain(self) -> frozenset[str]:
        match self.op:
            case ProjectOp(projection):
                (below,) = (part.certain for part in self.inputs)
                pairs = zip(projection.schema.names, projection.expressions, strict=True)
                computed = frozenset(name for name, value in self.values.items() if not value.null_by)
                return computed | frozenset(name for name, text in pairs if plain_column(text) in below)
            case FilterOp() | SaltOp() | ReplicateOp() | ExplodeOp():
                return self.inputs[0].certain
            case TopKOp(rank=rank):
                return self.inputs[0].certain | ({rank} if rank is not None else frozenset())
            case WindowOp(calls=calls):
                numbers = (call.output for call in calls if call.function in frozenset(Ranking))
                return self.inputs[0].certain.union(numbers)
            case ClockOp(columns=columns):
                return self.inputs[0].certain.union(column.output for column in columns)
            case JoinOp(JoinKind.LEFT | JoinKind.SEMI | JoinKind.ANTI):
                return self.inputs[0].certain
            case JoinOp(JoinKind.RIGHT):
                return self.inputs[1].certain
            case JoinOp(JoinKind.INNER):
                return self.inputs[0].certain | self.inputs[1].certain
            case UnionOp():
                return frozenset(self.schema.names).intersection(*(part.certain for part in self.inputs))
            case _:
                return frozenset()
