"""Windows of time, and the first rows of a query, by ORDER BY LIMIT.

Windows of time: ``window(ts, '10 minutes'[, slide[, start]])``, as Spark's TimeWindowing defines it. A window is two
columns of the relation, its start and its end. If the slide is shorter than the window, a row is in several windows:
the relation is then a union of copies of the rows, each with the next older window.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from upriver.plan.plan import Order, Ranking, SetKind, SetOperationOp, TopKOp
from upriver.plan.relation import Relation, Scalar
from upriver.plan.source import ELSEWHERE
from upriver.plan.types import is_instant, is_null, is_ordered, is_wall_clock
from upriver.sql.clauses import Part
from upriver.sql.detached import detach
from upriver.sql.operators import micros_of
from upriver.sql.pushdown import filtered
from upriver.sql.relations import Output, computed, projected, union, widened, with_equal_values
from upriver.sql.scalars import Context, column_scalar, macro, null, typed_name
from upriver.sql.scope import Scope, ScopeColumn, Setting, unique, worded
from upriver.sql.sessions import SESSION, opened

WINDOWS_PER_ROW_MAX = 100

_TITLE = "window"
_DURATION = "Give how long it is in quotes, from microseconds to weeks: window(ts, '10 minutes', '5 minutes')."


@dataclass(frozen=True, slots=True)
class Windows:
    """All lengths in microseconds. long: of a window. slide: from one start to the next. start: of any one window."""

    moment: Scalar
    long: int
    slide: int
    start: int

    @property
    def per_row(self) -> int:
        return -(-self.long // self.slide)

    def opened(self, number: int) -> str:
        """The start of the number-th last window that may contain a row, in microseconds since 1970."""
        since = f"(epoch_us({self.moment.sql}) - CAST({self.start} AS BIGINT))"
        into = macro("spark_pmod", since, f"CAST({self.slide} AS BIGINT)")
        return f"(epoch_us({self.moment.sql}) - {into} - CAST({number * self.slide} AS BIGINT))"


def spread(
    setting: Setting, relation: Relation, scope: Scope, select: exp.Select, taken: set[str]
) -> tuple[Relation, Scope]:
    """The rows with their windows, if the SELECT calls window() or session_window(); the calls become names. taken:
    names that no other column may have, lower case; the new names are added."""
    calls = [node for node in select.find_all(exp.Anonymous) if _is_call(node) and node.parent_select is select]
    if not calls:
        return relation, scope
    first, *others = [scope.bind(detach(node.copy())) for node in calls]
    for node, other in zip(calls[1:], others, strict=True):
        if other != first:
            what = f"a second {node.name}() in one SELECT"
            raise setting.source.unsupported(node, what, "Take it in a subquery.")
    relation, first = setting.attach(setting, relation, scope, first, taken, None)
    context = setting.context(relation.schema, fails=relation.deferred, certain=relation.certain)
    title = calls[0].name.lower()
    windows = None if title == SESSION else _windows(context, first)
    taken.update(name.lower() for name in relation.schema.names)
    column = ScopeColumn(title, unique(f"{title}.start", taken), unique(f"{title}.end", taken))
    for node in calls:
        _name(node, title)
    if windows is None:
        return opened(context, relation, first, column, setting.source.place(calls[0])), scope.hiding(column)
    return _spread(relation, windows, column, setting.source.place(calls[0])), scope.hiding(column)


def _is_call(node: exp.Anonymous) -> bool:
    return node.name.lower() in (_TITLE, SESSION)


def _name(call: exp.Expr, title: str) -> None:
    """Replace the call by the window's name: ``window(ts, '1 hour').start`` becomes ``window.start``."""
    start = exp.to_identifier(title)
    start.meta.update(call.meta if "start" in call.meta else _first_meta(call))
    if isinstance(call.parent, exp.Dot) and call.arg_key == "this":
        call.parent.replace(exp.Column(this=call.parent.expression, table=start))
    else:
        call.replace(exp.Column(this=start))


def _first_meta(node: exp.Expr) -> dict[str, object]:
    return next((dict(part.meta) for part in node.walk() if "start" in part.meta), {})


def _windows(context: Context, call: exp.Expr) -> Windows:
    operands = call.expressions
    if not 2 <= len(operands) <= 4:
        raise context.unsupported(call, f"window() of {len(operands)} operands", _DURATION)
    moment = context.translate(operands[0])
    if not (is_wall_clock(moment.type) or is_instant(moment.type)):
        raise context.unsupported(call, f"window() of {typed_name(moment)}", "CAST it to TIMESTAMP.")
    lengths = [_length(context, node) for node in operands[1:]]
    long, slide, start = [*lengths, lengths[0], 0] if len(lengths) == 1 else [*lengths, 0][:3]
    if not 0 < slide <= long or abs(start) >= slide:
        raise context.unsupported(call, "window() of these lengths", "A window slides by no more than it is long.")
    windows = Windows(moment, long, slide, start)
    if windows.per_row > WINDOWS_PER_ROW_MAX:
        what = f"window() that puts each row in {windows.per_row} windows"
        raise context.unsupported(call, what, f"Let it slide further: {WINDOWS_PER_ROW_MAX} windows are the most.")
    return windows


def _length(context: Context, node: exp.Expr) -> int:
    micros = micros_of(node.this) if isinstance(node, exp.Literal) and node.is_string else None
    if micros is None:
        raise context.unsupported(node, "window() by anything but a length in quotes", _DURATION)
    return micros


def _spread(relation: Relation, windows: Windows, column: ScopeColumn, place: int | None) -> Relation:
    test = Scalar(f"({windows.moment.sql} IS NOT NULL)", pa.bool_(), windows.moment.fails)
    present = filtered(relation, test, place) if windows.moment.null_by else relation
    copies = [_copy(present, windows, column, number, place) for number in range(windows.per_row)]
    return copies[0] if len(copies) == 1 else union(copies, place)


def _copy(relation: Relation, windows: Windows, column: ScopeColumn, number: int, place: int | None) -> Relation:
    """The rows in their number-th last window; for the highest number, not every row is in that many."""
    opened = windows.opened(number)
    closed = f"({opened} + CAST({windows.long} AS BIGINT))"
    if (number + 1) * windows.slide > windows.long:
        relation = filtered(
            relation, Scalar(f"(epoch_us({windows.moment.sql}) < {closed})", pa.bool_(), windows.moment.fails), place
        )
    bounds = [
        Output(name, Scalar(f"make_timestamp({micros})", windows.moment.type, fails=True))
        for name, micros in ((column.name, opened), (column.end or "", closed))
    ]
    return widened(relation, bounds, place)


@dataclass(frozen=True, slots=True)
class OrderKey:
    """A value to sort by. name: of its column, if one is computed for it."""

    value: Scalar
    name: str
    descending: bool
    nulls_first: bool


def sort_key(context: Context, ordered: exp.Expr, node: exp.Expr) -> OrderKey:
    """One item of ORDER BY. node: the sort expression, bound."""
    context.only(ordered, "this", "desc", "nulls_first")
    descending = bool(ordered.args.get("desc"))
    return OrderKey(sortable(context, node), worded(node), descending, bool(ordered.args.get("nulls_first")))


def first_rows(
    relation: Relation,
    outputs: Sequence[Output],
    keys: Sequence[OrderKey],
    uses: Mapping[str, int],
    part: Part,
    place: int | None,
    apart: Sequence[str] = (),
) -> Relation:
    """The outputs, for some rows only. keys: of the same relation as the outputs. uses: how often these name each
    column of it. apart: outputs for whose values each combination has a part of its own."""
    taken = {output.name.lower() for output in outputs}
    known = {output.value.sql: output.name for output in reversed(outputs)}
    more: dict[str, Output] = {}
    for key in keys:
        if key.value.sql not in known and key.value.sql not in more:
            more[key.value.sql] = Output(unique(key.name, taken), key.value)
    names = [known[key.value.sql] if key.value.sql in known else more[key.value.sql].name for key in keys]
    source = computed(relation, [*outputs, *more.values()], uses, place)
    found = _cut(source, tuple(apart), orders(names, keys), part, place)
    if not more:
        return found
    return projected(found, [Output(one.name, column_scalar(one.name, one.value.type)) for one in outputs], None)


def _cut(rows: Relation, apart: tuple[str, ...], order: tuple[Order, ...], part: Part, place: int | None) -> Relation:
    """The rows of a part. Those behind an OFFSET are all but the first ones."""
    found = rows if part.limit is None else _first(rows, apart, order, part.offset + part.limit, place)
    if not part.offset:
        return found
    skipped = _first(rows, apart, order, part.offset, place)
    inputs = with_equal_values(found), with_equal_values(skipped)
    return Relation(SetOperationOp(SetKind.EXCEPT, all=True), inputs, inputs[0].schema, place)


def _first(rows: Relation, apart: tuple[str, ...], order: tuple[Order, ...], count: int, place: int | None) -> Relation:
    return Relation(TopKOp(apart, order, count, Ranking.ROW_NUMBER, None), (rows,), rows.schema, place)


def orders(names: Sequence[str], keys: Sequence[OrderKey]) -> tuple[Order, ...]:
    """The sort columns, by their names; each once: a repeated sort key changes nothing."""
    orders: dict[str, Order] = {}
    for name, key in zip(names, keys, strict=True):
        orders.setdefault(name, Order(name, key.descending, key.nulls_first))
    return tuple(orders.values())


def sortable(context: Context, node: exp.Expr) -> Scalar:
    """A value to sort, or to partition, by. Raises UnsupportedSql for one of a type without an order."""
    value = context.translate(node)
    if is_null(value.type):
        return null(pa.int32())
    if not is_ordered(value.type):
        raise context.unsupported(node, f"sorting by {typed_name(value)}", ELSEWHERE)
    return value
