"""The aggregate functions: which there are, how each is planned, and its type."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from upriver.plan.plan import AggregateCall, register_bits
from upriver.plan.relation import Scalar, any_fails
from upriver.plan.source import ELSEWHERE, Place
from upriver.plan.types import (
    DECIMAL_DIGITS_MAX,
    DIGITS_OF_SUM,
    array_type,
    bounded_decimal,
    decimal_sum_type,
    is_boolean,
    is_date,
    is_decimal,
    is_integer,
    is_nested,
    is_null,
    is_numeric,
    is_ordered,
    is_string,
)
from upriver.sql.functions.casts import cast
from upriver.sql.functions.hashes import hash_of
from upriver.sql.functions.logic import connect
from upriver.sql.functions.scalars import Context, group_value, typed_name
from upriver.sql.pushdown import filter_condition

_SPREADS = frozenset({"stddev_samp", "stddev_pop", "var_samp", "var_pop"})
_CONDITIONS = frozenset({"bool_and", "every", "bool_or", "some", "any", "count_if"})
_COUNTS = frozenset({"count", "count_star", "approx_count_distinct"})
_ANY_OF_EQUAL = frozenset({"min", "max", "any_value", "bool_and", "bool_or"})
"""Functions whose result does not depend on whether equal values count once."""
_WHOLE = frozenset({"median", "skewness", "kurtosis"})
_OBJECTS = frozenset(
    {
        "approx_count_distinct",
        "collect_list",
        "listagg",
        "median",
        "mode",
        "percentile",
        "percentile_approx",
        "percentile_disc",
    }
)
"""Functions whose state Spark keeps in objects."""
_MORE_DIGITS = 4
"""How many more digits behind the point an average has than its argument, if that is DECIMAL."""
_EACH_ONCE = "Take it of a subquery: FROM (SELECT DISTINCT ...)."
_OF_ALL_ROWS = "Make a view of the rows, and compute it from what a lookup gives: that is all rows of its key."
INSTEAD = {
    **dict.fromkeys(("histogram_numeric", "count_min_sketch"), _OF_ALL_ROWS),
}
"""What to do instead of one of Spark's aggregate functions that is not supported."""


@dataclass(frozen=True, slots=True)
class Call:
    """An aggregate in the plan's terms. argument: ``None`` for count_star. where: which rows count; ``None`` for
    all. coded: the same in the order of the code that Spark may generate, if a FILTER makes that matter. others,
    fraction, fractions, between: as of AggregateCall. A ``first`` or ``last`` gives the value of the same row as the
    others of a query do (:func:`of_one_row`)."""

    function: str
    argument: Scalar | None
    type: pa.DataType
    distinct: bool = False
    where: Scalar | None = None
    coded: Scalar | None = None
    others: tuple[Scalar, ...] = ()
    fraction: float = 0.0
    fractions: tuple[float, ...] = ()
    between: str = ""


def over_no_rows(call: AggregateCall, result: Scalar) -> Scalar:
    """The value of a call, whose result is NULL for want of a group: a count of no rows is 0."""
    if call.function == "collect_list":
        return Scalar(f"coalesce({result.sql}, [])", result.type, nulls=frozenset())
    if call.function not in _COUNTS:
        return result
    return Scalar(f"coalesce({result.sql}, CAST(0 AS BIGINT))", result.type, nulls=frozenset())


def may_have_code(call: Call) -> bool:
    """Whether Spark generates code for a query with this aggregate, if it may for each of the others: its state is of
    values with a fixed width."""
    held = [] if call.function == "count" else [call.type, *(value.type for value in call.others)]
    return call.function not in _OBJECTS and not any(map(_is_wide, held))


def _is_wide(type: pa.DataType) -> bool:
    return is_string(type) or pa.types.is_binary(type) or is_nested(type)


def call_of_one(context: Context, place: Place, name: str, value: Scalar, distinct: bool) -> Call:
    """The call of a function of one value, by Spark's name. Raises UnsupportedSql."""
    if is_null(value.type) or not (is_ordered(value.type) or (name == "count" and not distinct)):
        raise context.unsupported(place, f"{name}() of {typed_name(value)}", ELSEWHERE)
    function = AGGREGATES[name]
    if name in _CONDITIONS and not is_boolean(value.type):
        raise context.unsupported(place, f"{name}() of {typed_name(value)}", "Give it a condition.")
    if name == "count_if":
        return Call(function, None, pa.int64(), where=value)
    if function in ("bit_and", "bit_or", "bit_xor"):
        return _bits(context, place, function, value, distinct)
    if function == "collect_list":
        return Call(function, group_value(value), array_type(value.type), distinct or name == "collect_set")
    if function in _ANY_OF_EQUAL:
        return Call(function, value, value.type)
    if function == "count" and not distinct and not value.null_by:  # as in Spark's optimizer
        return Call("count_star", None, pa.int64())
    if function == "count":
        return Call(function, value, pa.int64(), distinct)
    if not is_numeric(value.type):
        raise context.unsupported(place, f"{name}() of {typed_name(value)}", "CAST it to a number.")
    if distinct and function in _WHOLE:
        raise context.unsupported(place, f"{name}(DISTINCT ...)", _EACH_ONCE)
    if function == "median":
        return Call("percentile", value, pa.float64(), fraction=0.5)
    if function in ("skewness", "kurtosis"):
        return Call(function, cast(context, place, value, pa.float64()), pa.float64())
    if function in ("try_sum", "try_avg"):
        return _trying(context, place, name, value, distinct)
    if function in _SPREADS:
        return Call(function, cast(context, place, value, pa.float64()), pa.float64(), distinct)
    return Call(function, value, _type_of_sum(function, value.type), distinct)


def _bits(context: Context, place: Place, function: str, value: Scalar, distinct: bool) -> Call:
    if not is_integer(value.type):
        raise context.unsupported(place, f"{function}() of {typed_name(value)}", "CAST it to a whole number.")
    if distinct and function == "bit_xor":
        raise context.unsupported(place, f"{function}(DISTINCT ...)", _EACH_ONCE)
    return Call(function, value, value.type)


def _trying(context: Context, place: Place, name: str, value: Scalar, distinct: bool) -> Call:
    """try_sum and try_avg. Only sums of whole numbers and of long decimals can leave their types."""
    if is_decimal(value.type) and value.type.precision > DECIMAL_DIGITS_MAX - DIGITS_OF_SUM:
        most = DECIMAL_DIGITS_MAX - DIGITS_OF_SUM
        raise context.unsupported(place, f"{name}() of {typed_name(value)}", f"CAST it to at most {most} digits.")
    plain = name.removeprefix("try_")
    if distinct and plain == "sum" and is_integer(value.type):
        raise context.unsupported(place, f"{name}(DISTINCT ...)", _EACH_ONCE)
    function = name if plain == "sum" and is_integer(value.type) else plain
    return Call(function, value, _type_of_sum(plain, value.type), distinct)


def filtered_call(call: Call, parts: Sequence[Scalar]) -> Call:
    """The call with a FILTER of these conditions."""
    own = [] if call.where is None else [call.where]
    # Spark applies the FILTER of an aggregate with DISTINCT in a projection, ahead of the groups.
    is_coded = any_fails(parts) and not call.distinct
    coded = connect("AND", [filter_condition(parts), *own]) if is_coded else None
    return replace(call, where=connect("AND", [*parts, *own]), coded=coded)


# Functions of several values ------------------------------------------------------------------------------------------


def call_of_two(context: Context, place: Place, name: str, first: Scalar, second: Scalar) -> Call:
    """The call of min_by(), max_by(), corr() and their kin, by Spark's name. Raises UnsupportedSql."""
    if name in ("min_by", "max_by"):
        given, order = (group_value(comparable_value(context, place, one)) for one in (first, second))
        return Call(name, order, given.type, others=(given,))
    y, x = (cast(context, place, number(context, place, name, one), pa.float64()) for one in (first, second))
    if name == "regr_count":
        return Call("count", all_of([y, x]), pa.int64())
    return Call(SEVERAL[name], y, pa.float64(), others=(x,))


def approximate_count(context: Context, place: Place, value: Scalar, error: float) -> Call:
    """``approx_count_distinct(x[, error])``, over the codes of the values' hashes."""
    bits = register_bits(error)
    if not _REGISTER_BITS_MIN <= bits <= _REGISTER_BITS_MAX:
        instead = "Let the error be from 0.002 to 0.3, or take count(DISTINCT x)."
        raise context.unsupported(place, f"approx_count_distinct() with the error {error}", instead)
    hashed = hash_of(context, place, comparable_value(context, place, value))
    code = f"kernel_register_code({hashed.sql}, CAST({bits} AS INTEGER))"
    sql = f"CASE WHEN ({value.sql}) IS NOT NULL THEN {code} END"
    codes = Scalar(sql, pa.int64(), hashed.fails, nulls=value.null_by)
    return Call("approx_count_distinct", codes, pa.int64(), fraction=error)


def approximate_percentile(
    context: Context, place: Place, value: Scalar, fractions: Sequence[float], is_array: bool, accuracy: int
) -> Call:
    """``percentile_approx(x, p[, accuracy])``. Near 0 and 1, as the accuracy says, Spark gives the ends."""
    is_long = is_decimal(value.type) and value.type.precision > _DOUBLE_DIGITS
    if is_long or not (is_numeric(value.type) or is_date(value.type)):
        instead = f"CAST it to a DECIMAL of at most {_DOUBLE_DIGITS} digits, to BIGINT, DOUBLE or DATE."
        raise context.unsupported(place, f"percentile_approx() of {typed_name(value)}", instead)
    near = 1 / accuracy
    fractions = [0.0 if one <= near else 1.0 if one >= 1 - near else one for one in fractions]
    return of_fractions(Call("percentile_approx", value, value.type), fractions, is_array)


def end_call(context: Context, place: Place, name: str, value: Scalar, ignores_nulls: bool) -> Call:
    """The call of first(), last() or any_value(), by Spark's name; Spark may take any row. Raises UnsupportedSql."""
    value = group_value(comparable_value(context, place, value))
    call = Call(_ENDS[name], value, value.type)
    return _ignoring_nulls(call) if ignores_nulls else call


def _ignoring_nulls(call: Call) -> Call:
    return replace(call, function=_ALONE.get(call.function, call.function))


def of_one_row(calls: Sequence[AggregateCall]) -> tuple[AggregateCall, ...]:
    """The calls, in which those of ``first`` that count the same rows give the columns of one row; so do those of
    ``last``. One alone gives the least value, or the greatest."""
    found = []
    for call in calls:
        if call.function in _ALONE:
            alike = [one.argument for one in calls if (one.function, one.where) == (call.function, call.where)]
            first, *others = [name for name in alike if name is not None]
            place = alike.index(call.argument)
            function = call.function if others else _ALONE[call.function]
            call = replace(call, function=function, argument=first, others=tuple(others), gives=place)
        found.append(call)
    return tuple(found)


def count_call(context: Context, place: Place, values: Sequence[Scalar], distinct: bool) -> Call:
    """Rows in which none of several values is NULL; or how many combinations they have."""
    values = [group_value(comparable_value(context, place, value)) for value in values]
    if not distinct:
        return Call("count", all_of(values), pa.int64())
    return Call("count", values[0], pa.int64(), distinct=True, others=tuple(values[1:]))


def all_of(values: Sequence[Scalar]) -> Scalar:
    """A value that is NULL if one of these is."""
    test = " AND ".join(f"({value.sql}) IS NOT NULL" for value in values)
    return Scalar(f"CASE WHEN {test} THEN TRUE END", pa.bool_(), any_fails(values))


def comparable_value(context: Context, place: Place, value: Scalar) -> Scalar:
    """The value, if it can be compared with others. Raises UnsupportedSql."""
    if is_null(value.type) or not is_ordered(value.type):
        raise context.unsupported(place, f"an aggregate of {typed_name(value)}", ELSEWHERE)
    return value


def number(context: Context, place: Place, name: str, value: Scalar) -> Scalar:
    """The value, if it is a number. name: of the function. Raises UnsupportedSql."""
    if not is_numeric(value.type):
        raise context.unsupported(place, f"{name}() of {typed_name(value)}", "CAST it to a number.")
    return value


def of_fractions(call: Call, fractions: Sequence[float], is_array: bool) -> Call:
    """The call for one fraction, or for an array of them."""
    if is_array:
        return replace(call, type=array_type(call.type), fractions=tuple(fractions))
    return replace(call, fraction=fractions[0])


def _type_of_sum(function: str, type: pa.DataType) -> pa.DataType:
    """The type that Spark gives a sum or an average."""
    if is_decimal(type):
        if function == "sum":
            return decimal_sum_type(type)
        return bounded_decimal(type.precision + _MORE_DIGITS, type.scale + _MORE_DIGITS)
    return pa.int64() if function == "sum" and is_integer(type) else pa.float64()


_ENDS = {"first": "first", "first_value": "first", "last": "last", "last_value": "last", "any_value": "any_value"}
_ALONE = {"first": "min", "last": "max"}
"""What gives the value of a first row alone, and of a last one: rows are in the order of these values."""
_REGISTER_BITS_MIN, _REGISTER_BITS_MAX = 4, 20
_DOUBLE_DIGITS = 15
"""Digits of a decimal that a double has."""
SEVERAL = {
    "approx_count_distinct": "approx_count_distinct",
    "percentile_approx": "percentile_approx",
    "approx_percentile": "percentile_approx",
    **{name: name for name in ("min_by", "max_by", "mode", "percentile", "percentile_disc", "listagg")},
    **{name: name for name in ("corr", "covar_pop", "covar_samp", "regr_avgx", "regr_avgy", "regr_r2")},
    **{name: name for name in ("regr_slope", "regr_intercept", "regr_sxx", "regr_syy", "regr_sxy")},
    "regr_count": "count",
    "percentile_cont": "percentile",
    "string_agg": "listagg",
}
"""Those that take several operands."""
AGGREGATES = {
    "count": "count",
    "count_if": "count_star",
    "sum": "sum",
    "avg": "avg",
    "mean": "avg",
    "min": "min",
    "max": "max",
    "stddev": "stddev_samp",
    "stddev_samp": "stddev_samp",
    "std": "stddev_samp",
    "stddev_pop": "stddev_pop",
    "variance": "var_samp",
    "var_samp": "var_samp",
    "var_pop": "var_pop",
    "bool_and": "bool_and",
    "every": "bool_and",
    "bool_or": "bool_or",
    "some": "bool_or",
    "any": "bool_or",
    "bit_and": "bit_and",
    "bit_or": "bit_or",
    "bit_xor": "bit_xor",
    "collect_list": "collect_list",
    "collect_set": "collect_list",
    "array_agg": "collect_list",
    "median": "median",
    "skewness": "skewness",
    "kurtosis": "kurtosis",
    "try_sum": "try_sum",
    "try_avg": "try_avg",
    **SEVERAL,
    **_ENDS,
}
"""Spark's name to ours."""
