"""Window functions: ``f(...) OVER (PARTITION BY ... ORDER BY ... ROWS ...)``.

Functions with the same partition and order become one operator. ROW_NUMBER, RANK and DENSE_RANK become a TopK first,
whose limit a later condition may set (:func:`upriver.sql.relations.bounded`). One that has no limit in the end becomes
a window function like the others.

A named window (``WINDOW w AS (...)``) is written out where it is used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from upriver.plan.plan import (
    Order,
    Ranking,
    TopKOp,
    WindowCall,
    WindowOp,
)
from upriver.plan.relation import Relation, Scalar
from upriver.sql.relations import UNBOUNDED, Output, windowed, with_values


@dataclass(frozen=True, slots=True)
class OrderKey:
    """A value to sort by. name: of its column, if one is computed for it."""

    value: Scalar
    name: str
    descending: bool
    nulls_first: bool


def orders(names: Sequence[str], keys: Sequence[OrderKey]) -> tuple[Order, ...]:
    """The sort columns, by their names; each once: a repeated sort key changes nothing."""
    orders: dict[str, Order] = {}
    for name, key in zip(names, keys, strict=True):
        orders.setdefault(name, Order(name, key.descending, key.nulls_first))
    return tuple(orders.values())


_RANK_TYPE = pa.int32()
_RANKINGS = {ranking.value: ranking for ranking in Ranking}
AGGREGATED = frozenset(
    {"count_star", "count", "sum", "avg", "min", "max", "bool_and", "bool_or"}
    | {"stddev_samp", "stddev_pop", "var_samp", "var_pop", "collect_list"}
)
"""Those aggregates that window functions have themselves."""
FRAMED = frozenset(
    {
        "min_by",
        "max_by",
        "mode",
        "greatest_mode",
        "percentile",
        "percentile_disc",
        "percentile_approx",
        "approx_count_distinct",
    }
    | {"bit_and", "bit_or", "bit_xor", "try_sum", "skewness", "kurtosis", "corr", "covar_pop", "covar_samp"}
    | {"regr_avgx", "regr_avgy", "regr_r2", "regr_slope", "regr_intercept", "regr_sxx", "regr_syy", "regr_sxy"}
)
"""Those that are computed of each frame as of a group."""


OTHER = "other"
"""The field of a further value of an aggregate begins so."""


RANGE_DIGITS_MAX = 18
"""Digits of a DECIMAL that RANGE goes by."""
WHOLE_SORT = (
    f"Sort by one column that is a whole number, a DOUBLE, a DECIMAL of at most {RANGE_DIGITS_MAX} digits, a DATE or "
    f"a TIMESTAMP; or count in ROWS."
)


@dataclass(frozen=True, slots=True)
class WindowFunction:
    """A window function, translated. name: of the column of its results. values: of those of its columns that are
    computed, by the field of ``call``, whose own names are not yet those of columns."""

    call: WindowCall
    values: Mapping[str, Output]
    partition: tuple[Output, ...]
    order: tuple[OrderKey, ...]
    place: int | None

    @property
    def name(self) -> str:
        return self.call.output

    @property
    def inputs(self) -> list[Output]:
        """All values that it needs: of the partition, of the order, and of the call."""
        return [*self.partition, *(Output(key.name, key.value) for key in self.order), *self.values.values()]


def with_window_functions(relation: Relation, functions: Sequence[WindowFunction]) -> Relation:
    """All rows with a column for each function. Ranks come last, so that a condition can bound them."""
    taken = {name.lower() for name in (*relation.schema.names, *(function.name for function in functions))}
    inputs = [value for function in functions for value in function.inputs]
    relation, names = with_values(relation, inputs, taken)
    known = iter(names)
    ranks: list[tuple[TopKOp, int | None]] = []
    windows: dict[tuple[tuple[str, ...], tuple[Order, ...]], list[tuple[WindowCall, int | None]]] = {}
    for function in functions:
        partition = tuple(dict.fromkeys([next(known) for _ in function.partition]))
        order = orders([next(known) for _ in function.order], function.order)
        columns = {field: next(known) for field in function.values}
        call = _of_columns(function.call, columns)
        if call.function in _RANKINGS:
            ranks.append((TopKOp(partition, order, UNBOUNDED, _RANKINGS[call.function], call.output), function.place))
        else:
            windows.setdefault((partition, order), []).append((call, function.place))
    for (partition, order), calls in windows.items():
        relation = windowed(relation, WindowOp(partition, order, tuple(call for call, _ in calls)), calls[0][1])
    for op, place in ranks:
        assert op.rank is not None, "a rank has a column"
        relation = Relation(op, (relation,), relation.schema.append(pa.field(op.rank, _RANK_TYPE)), place)
    return relation


def _of_columns(call: WindowCall, columns: Mapping[str, str]) -> WindowCall:
    """The call with the names of its columns, which are given by field."""
    argument, where, default = (columns.get(field) for field in ("argument", "where", "default"))
    of = call.aggregate
    if of is None:
        return replace(call, argument=argument, where=where, default=default)
    others = tuple(columns[f"{OTHER}{number}"] for number in range(len(of.others)))
    return replace(call, aggregate=replace(of, argument=argument, where=where, others=others))


def all_numbered(relation: Relation) -> Relation:
    """The tree with a window function for each rank that no condition bounds."""
    done: dict[int, Relation] = {}

    def rewritten(part: Relation) -> Relation:
        if id(part) not in done:
            inputs = tuple(rewritten(below) for below in part.inputs)
            same = all(new is old for new, old in zip(inputs, part.inputs, strict=True))
            whole = isinstance(part.op, TopKOp) and part.op.limit == UNBOUNDED
            done[id(part)] = _numbered(part, inputs[0]) if whole else part if same else replace(part, inputs=inputs)
        return done[id(part)]

    return rewritten(relation)


def _numbered(relation: Relation, below: Relation) -> Relation:
    """A rank over all rows of ``below``, by the operator of the other functions of its window, if that comes next."""
    op = relation.op
    assert isinstance(op, TopKOp)
    assert op.rank is not None, "only a numbering has no limit"
    call = WindowCall(op.ranking, None, op.rank, _RANK_TYPE)
    found = _joining(below, WindowOp(op.partition, op.order, (call,)))
    return windowed(below, WindowOp(op.partition, op.order, (call,)), relation.place) if found is None else found


def _joining(relation: Relation, op: WindowOp) -> Relation | None:
    """The relation with more functions of a window that it has already; ``None`` if it has no such window."""
    if not isinstance(relation.op, WindowOp):
        return None
    (below,) = relation.inputs
    if (relation.op.partition, relation.op.order) == (op.partition, op.order):
        return windowed(below, replace(op, calls=(*relation.op.calls, *op.calls)), relation.place)
    if not {*op.partition, *(one.column for one in op.order)} <= set(below.schema.names):
        return None
    found = _joining(below, op)
    return None if found is None else windowed(found, relation.op, relation.place)


# Functions ------------------------------------------------------------------------------------------------------------


# Frames ---------------------------------------------------------------------------------------------------------------
