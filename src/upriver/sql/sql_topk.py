"""The first rows: of each partition, by ROW_NUMBER and its kin with a bound; of a whole query, by ORDER BY LIMIT."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from upriver.plan.algebra import Relation, Scalar
from upriver.plan.ops import Order, Ranking, TopK
from upriver.plan.sql_source import ELSEWHERE, Source
from upriver.plan.sql_types import duck_name, is_null
from upriver.sql.sql_aggregates import AGGREGATES
from upriver.sql.sql_relations import UNBOUNDED, Output, computed, projected, with_values
from upriver.sql.sql_scalar import Context, column_scalar, construct, typed_name
from upriver.sql.sql_scope import unique, worded

RANK_TYPE = pa.int32()

_RANKINGS = {ranking.value: ranking for ranking in Ranking}
_GROUP = (
    "GROUP BY in a subquery, and join with it: FROM t JOIN (SELECT k, sum(x) AS x FROM t GROUP BY k) AS s ON s.k = t.k."
)
_UP_TO_EACH = (
    "Join each time with the rows up to it: SELECT a.k, a.at, sum(b.x) AS x FROM (SELECT DISTINCT k, at FROM t) AS a "
    "JOIN t AS b ON a.k = b.k AND b.at <= a.at GROUP BY a.k, a.at."
)
_IN_ORDER = (
    "There are ROW_NUMBER(), RANK() and DENSE_RANK(). app.stateful_map() has a function see a key's rows in order."
)
_BOUND = "Keep the first rows: SELECT * FROM (SELECT ..., ROW_NUMBER() OVER (...) AS n FROM ...) WHERE n <= 10."


@dataclass(frozen=True, slots=True)
class SortKey:
    """A value to sort by. name: of the column, if one is computed for it."""

    value: Scalar
    name: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Numbered:
    """``ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...)``, or RANK or DENSE_RANK."""

    ranking: Ranking
    partition: tuple[Output, ...]
    order: tuple[SortKey, ...]


def check_window(source: Source, node: exp.Expr) -> None:
    """Raises UnsupportedSql for any window function but those that number rows, and for what is odd about it."""
    function = node.this
    while not isinstance(function, exp.Anonymous) and isinstance(function.this, exp.Expr):
        function = function.this
    if not isinstance(function, exp.Anonymous) or function.name.lower() not in _RANKINGS or function.expressions:
        what = f"{function.name}() OVER" if isinstance(function, exp.Anonymous) else f"{construct(function)} OVER"
        raise source.unsupported(node, what, _instead_of(node, function))
    for part, instead in (("alias", "Write the window out, behind OVER."), ("spec", "Leave the frame out.")):
        if node.args.get(part):
            raise source.unsupported(node, "a named window" if part == "alias" else "ROWS or RANGE", instead)
    if node.args.get("order") is None:
        raise source.wrong(node, f"{function.name}() OVER without ORDER BY", "Say which rows come first.")


def _instead_of(node: exp.Expr, function: exp.Expr) -> str:
    """What to do instead of a window function."""
    if not isinstance(function, exp.Anonymous) or function.name.lower() not in AGGREGATES:
        return _IN_ORDER
    return _GROUP if node.args.get("order") is None else _UP_TO_EACH


def numbered(context: Context, node: exp.Expr) -> Numbered:
    """A bound window node, translated."""
    partition = tuple(Output(worded(part), _comparable(context, part)) for part in node.args.get("partition_by") or ())
    order = tuple(sort_key(context, part, part.this) for part in node.args["order"].expressions)
    return Numbered(_RANKINGS[node.this.name.lower()], partition, order)


def sort_key(context: Context, ordered: exp.Expr, node: exp.Expr) -> SortKey:
    """One of ORDER BY. node: what is sorted by, bound."""
    context.only(ordered, "this", "desc", "nulls_first")
    descending = bool(ordered.args.get("desc"))
    return SortKey(_comparable(context, node), worded(node), descending, bool(ordered.args.get("nulls_first")))


def ranked(relation: Relation, wanted: Numbered, rank: str, place: int | None) -> Relation:
    """All rows with their number in the column ``rank``. It is for a condition to bound it."""
    values = [*wanted.partition, *(Output(key.name, key.value) for key in wanted.order)]
    relation, names = with_values(relation, values, {name.lower() for name in (*relation.schema.names, rank)})
    partition = tuple(dict.fromkeys(names[: len(wanted.partition)]))
    order = _orders(names[len(wanted.partition) :], wanted.order)
    op = TopK(partition, order, UNBOUNDED, wanted.ranking, rank)
    return Relation(op, (relation,), pa.schema([*relation.schema, pa.field(rank, RANK_TYPE)]), place)


def first_rows(
    relation: Relation,
    outputs: Sequence[Output],
    keys: Sequence[SortKey],
    uses: Mapping[str, int],
    limit: int,
    place: int | None,
) -> Relation:
    """The outputs, of the rows that come first. keys: of the same relation as the outputs. uses: how often these name
    each column of it."""
    taken = {output.name.lower() for output in outputs}
    known = {output.value.sql: output.name for output in reversed(outputs)}
    more: dict[str, Output] = {}
    for key in keys:
        if key.value.sql not in known and key.value.sql not in more:
            more[key.value.sql] = Output(unique(key.name, taken), key.value)
    names = [known[key.value.sql] if key.value.sql in known else more[key.value.sql].name for key in keys]
    source = computed(relation, [*outputs, *more.values()], uses, place)
    found = Relation(TopK((), _orders(names, keys), limit, Ranking.ROW_NUMBER, None), (source,), source.schema, place)
    if not more:
        return found
    return projected(found, [Output(one.name, column_scalar(one.name, one.value.type)) for one in outputs], None)


def unbounded_rank(source: Source, place: int | None) -> Exception:
    """The error for rows that are all numbered."""
    return source.unsupported(place, "numbering all rows", _BOUND)


def _orders(names: Sequence[str], keys: Sequence[SortKey]) -> tuple[Order, ...]:
    """By each column once: by the same one again, nothing is sorted any further."""
    orders: dict[str, Order] = {}
    for name, key in zip(names, keys, strict=True):
        orders.setdefault(name, Order(name, key.descending, key.nulls_first))
    return tuple(orders.values())


def _comparable(context: Context, node: exp.Expr) -> Scalar:
    value = context.translate(node)
    if is_null(value.type) or duck_name(value.type) is None:
        raise context.unsupported(node, f"sorting by {typed_name(value)}", ELSEWHERE)
    return value
