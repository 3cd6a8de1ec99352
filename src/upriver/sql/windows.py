"""Windows of time, and the first rows of a query, by ORDER BY LIMIT.

Windows of time: ``window(ts, '10 minutes'[, slide[, start]])``, as Spark's TimeWindowing defines it. A window is two
columns of the relation, its start and its end. If the slide is shorter than the window, a row is in several windows:
the relation is then a union of copies of the rows, each with the next older window.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from upriver.plan.plan import Order
from upriver.plan.relation import Scalar


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
