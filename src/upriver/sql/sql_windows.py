"""Windows of time: ``window(ts, '10 minutes'[, slide[, start]])``, as Spark's TimeWindowing has it.

A window is two columns of the relation, its start and its end. Where windows slide by less than they are long, a row is
in several: the relation is then a union of as many copies of the rows, each with the next older window.
"""

from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from upriver.plan.algebra import Relation, Scalar
from upriver.plan.sql_types import is_instant, is_wall_clock
from upriver.sql.sql_intervals import micros_of
from upriver.sql.sql_pushdown import filtered
from upriver.sql.sql_relations import Output, union, widened
from upriver.sql.sql_scalar import Context, macro, typed_name
from upriver.sql.sql_scope import Column, Scope, unique
from upriver.sql.sql_setting import Setting

WINDOWS_PER_ROW_MAX = 100

_TITLE = "window"
_DURATION = "Give how long it is in quotes, from microseconds to weeks: window(ts, '10 minutes', '5 minutes')."


@dataclass(frozen=True, slots=True)
class Windows:
    """All lengths in microseconds. long: of a window. slide: from one's start to the next one's. start: of some one."""

    moment: Scalar
    long: int
    slide: int
    start: int

    @property
    def per_row(self) -> int:
        return -(-self.long // self.slide)

    def opened(self, number: int) -> str:
        """The start of the number-th last window that a row may be in, in microseconds since 1970."""
        since = f"(epoch_us({self.moment.sql}) - CAST({self.start} AS BIGINT))"
        into = macro("spark_pmod", since, f"CAST({self.slide} AS BIGINT)")
        return f"(epoch_us({self.moment.sql}) - {into} - CAST({number * self.slide} AS BIGINT))"


def spread(setting: Setting, relation: Relation, scope: Scope, select: exp.Select) -> tuple[Relation, Scope]:
    """The rows with the windows that they are in, if the SELECT calls window(), whose calls become names."""
    calls = [node for node in select.find_all(exp.Anonymous) if _is_call(node) and node.parent_select is select]
    if not calls:
        return relation, scope
    first, *others = [scope.bind(node.copy()) for node in calls]
    for node, other in zip(calls[1:], others, strict=True):
        if other != first:
            raise setting.source.unsupported(node, "a second window() in one SELECT", "Take it in a subquery.")
    context = setting.context(relation.schema, fails=relation.deferred)
    windows = _windows(context, first)
    taken = {name.lower() for name in relation.schema.names}
    column = Column(_TITLE, unique("window.start", taken), unique("window.end", taken))
    for node in calls:
        _name(node)
    return _spread(relation, windows, column, setting.source.place(calls[0])), scope.hiding(column)


def _is_call(node: exp.Anonymous) -> bool:
    return bool(node.name.lower() == "window")


def _name(call: exp.Expr) -> None:
    """Put the window's name where the call is: ``window(ts, '1 hour').start`` becomes ``window.start``."""
    start = exp.to_identifier(_TITLE)
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


def _spread(relation: Relation, windows: Windows, column: Column, place: int | None) -> Relation:
    present = filtered(relation, Scalar(f"({windows.moment.sql} IS NOT NULL)", pa.bool_(), windows.moment.fails), place)
    copies = [_copy(present, windows, column, number, place) for number in range(windows.per_row)]
    return copies[0] if len(copies) == 1 else union(copies, place)


def _copy(relation: Relation, windows: Windows, column: Column, number: int, place: int | None) -> Relation:
    """The rows in their number-th last window; of the last number, not every row is in that many."""
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
