"""A date or a time, moved by an INTERVAL."""

from sqlglot import exp

from upriver.plan.algebra import Scalar
from upriver.plan.sql_source import ELSEWHERE
from upriver.plan.sql_types import is_date, is_instant, is_wall_clock
from upriver.sql.sql_casts import within_range
from upriver.sql.sql_intervals import DAY_MICROS, Interval, interval_of
from upriver.sql.sql_scalar import Context, typed_name


def moved(context: Context, node: exp.Expr) -> Scalar | None:
    """``moment + INTERVAL ...`` or ``moment - INTERVAL ...``; ``None`` if there is no interval in it."""
    moment, written = node.this, node.args["expression"]
    if isinstance(moment, exp.Interval) and isinstance(node, exp.Add):
        moment, written = written, moment
    if not isinstance(written, exp.Interval):
        return None
    interval = interval_of(written)
    if interval is None or isinstance(moment, exp.Interval):
        raise context.unsupported(node, "this INTERVAL", "Give it one number and one unit: INTERVAL '5' MINUTE.")
    value = within_range(context.translate(moment))
    sign = -1 if isinstance(node, exp.Sub) else 1
    if is_date(value.type):
        return _date(context, node, value, interval, sign)
    if is_wall_clock(value.type) or is_instant(value.type):
        return _clock(context, node, value, interval, sign)
    raise context.unsupported(node, f"{typed_name(value)} and INTERVAL", ELSEWHERE)


def _date(context: Context, node: exp.Expr, value: Scalar, interval: Interval, sign: int) -> Scalar:
    if interval.months:
        sql = f"CAST({value.sql} + to_months(CAST({sign * interval.months} AS INTEGER)) AS DATE)"
        return Scalar(sql, value.type, fails=True)
    if not interval.in_days:
        raise context.unsupported(node, "DATE and INTERVAL of less than days", "CAST the DATE to TIMESTAMP.")
    return Scalar(f"({value.sql} + CAST({sign * interval.micros // DAY_MICROS} AS INTEGER))", value.type, fails=True)


def _clock(context: Context, node: exp.Expr, value: Scalar, interval: Interval, sign: int) -> Scalar:
    if is_instant(value.type) and (interval.months or abs(interval.micros) >= DAY_MICROS):
        context.need_utc(node, "TIMESTAMP and INTERVAL of days or more")
    by = f"to_microseconds(CAST({sign * interval.micros} AS BIGINT))"
    if interval.months:
        by = f"to_months(CAST({sign * interval.months} AS INTEGER))"
    return Scalar(f"({value.sql} + {by})", value.type, fails=True)
