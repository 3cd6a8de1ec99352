"""Catalyst's aggregate functions as calls in the plan's terms."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from upriver.plan.relation import Scalar
from upriver.plan.source import ELSEWHERE, Place
from upriver.plan.types import array_type, is_string, same_type, spark_name, struct_type
from upriver.sql.expressions import Expressions, mode
from upriver.sql.functions.aggregates import (
    INSTEAD,
    Call,
    approximate_count,
    approximate_percentile,
    call_of_one,
    call_of_two,
    comparable_value,
    count_call,
    end_call,
    filtered_call,
    number,
    of_fractions,
)
from upriver.sql.functions.logic import not_null_test
from upriver.sql.functions.nested_values import each, field_sql, once, order_form, struct_sql
from upriver.sql.functions.scalars import group_value, macro, string_sql
from upriver.sql.literals import whole, written
from upriver.sql.tree import TreeNode

_ONE = {
    "Average": "avg",
    "BitAndAgg": "bit_and",
    "BitOrAgg": "bit_or",
    "BitXorAgg": "bit_xor",
    "BoolAnd": "bool_and",
    "BoolOr": "bool_or",
    "CollectList": "collect_list",
    "CollectSet": "collect_set",
    "CountIf": "count_if",
    "Kurtosis": "kurtosis",
    "Max": "max",
    "Median": "median",
    "Min": "min",
    "Skewness": "skewness",
    "StddevPop": "stddev_pop",
    "StddevSamp": "stddev_samp",
    "Sum": "sum",
    "VariancePop": "var_pop",
    "VarianceSamp": "var_samp",
}
"""Functions of one value."""
_TWO = {
    "Corr": "corr",
    "CovPopulation": "covar_pop",
    "CovSample": "covar_samp",
    "MaxBy": "max_by",
    "MinBy": "min_by",
    "RegrAvgX": "regr_avgx",
    "RegrAvgY": "regr_avgy",
    "RegrCount": "regr_count",
    "RegrIntercept": "regr_intercept",
    "RegrR2": "regr_r2",
    "RegrSXX": "regr_sxx",
    "RegrSXY": "regr_sxy",
    "RegrSYY": "regr_syy",
    "RegrSlope": "regr_slope",
}
"""Functions of two values, in this order."""
_ENDS = {"First": "first", "Last": "last", "AnyValue": "any_value"}
_ONE_WAY = "Let all go one way, with NULLs first if it is up: ORDER BY x, y or ORDER BY x DESC, y DESC."


@dataclass(frozen=True, slots=True)
class Planned:
    """An aggregate as a call. made: what its result makes of the column that the call fills; ``None`` if it is that."""

    call: Call
    made: Callable[[Scalar], Scalar] | None = None

    @property
    def is_made(self) -> bool:
        return self.made is not None

    def value(self, result: Scalar) -> Scalar:
        """The value of the aggregate. result: the column that the call fills."""
        return result if self.made is None else self.made(result)


def planned(node: TreeNode, over: Expressions) -> Planned:
    """An AggregateExpression over rows. Raises UnsupportedSql."""
    function, where = node.children[0], node.fields["filter"]
    found = _planned(function, node, over)
    call = found.call if where is None else filtered_call(found.call, over.condition(where))
    if node.type is not None and not same_type(found.value(Scalar("NULL", call.type)).type, node.type):
        what = f"{function.name}() with the type {spark_name(node.type)}"
        raise over.context.unsupported(node.place, what, ELSEWHERE)
    return Planned(call, found.made)


def _planned(function: TreeNode, node: TreeNode, over: Expressions) -> Planned:
    kind, context, place = function.kind, over.context, function.place
    distinct = bool(node.fields["isDistinct"])
    if kind == "ListAgg":
        return _listed(function, distinct, over)
    if kind == "Count":
        return Planned(_count(function, distinct, over))
    if kind in _ONE:
        value = over.of(function.children[0])
        return Planned(call_of_one(context, place, _name(function, over), value, distinct))
    if kind in _TWO:
        if distinct and kind not in ("MaxBy", "MinBy"):
            raise _of_each_once(function, over)
        first, second = (over.of(one) for one in function.children[:2])
        return Planned(call_of_two(context, place, _TWO[kind], first, second))
    if kind in _ENDS:
        value = over.of(function.children[0])
        return Planned(end_call(context, place, _ENDS[kind], value, bool(function.fields["ignoreNulls"])))
    rule = _OTHERS.get(kind)
    if rule is None:
        name = str(function.fields["name"]) if kind == "PythonUDAF" else function.name.lower()
        raise context.unsupported(place, f"the aggregate {name}()", INSTEAD.get(name, ELSEWHERE))
    if distinct and kind != "HyperLogLogPlusPlus":
        raise _of_each_once(function, over)
    return Planned(rule(function, over))


def _of_each_once(function: TreeNode, over: Expressions) -> Exception:
    instead = "Take it of a subquery: FROM (SELECT DISTINCT ...)."
    return over.context.unsupported(function.place, f"{function.name}(DISTINCT ...)", instead)


def _name(function: TreeNode, over: Expressions) -> str:
    """The name of a function of one value: Spark has one class for ``sum`` and ``try_sum``."""
    name = _ONE[function.kind]
    if function.fields.get("ignoreNulls") is False:
        raise over.context.unsupported(function.place, f"{name}() with RESPECT NULLS", "Leave the words out.")
    if function.kind not in ("Sum", "Average"):
        return name
    if mode(function) == "LEGACY":
        raise over.context.unsupported(function.place, f"{name}() without ANSI mode", "Set spark.sql.ansi.enabled.")
    return f"try_{name}" if mode(function) == "TRY" else name


def _count(function: TreeNode, distinct: bool, over: Expressions) -> Call:
    context, place = over.context, function.place
    if not distinct and len(function.children) == 1 and written(function.children[0]) is not None:
        return Call("count_star", None, pa.int64())
    values = [over.of(one) for one in function.children]
    if len(values) > 1:
        return count_call(context, place, values, distinct)
    return call_of_one(context, place, "count", values[0], distinct)


# Percentiles and the like


def _percentile(function: TreeNode, over: Expressions) -> Call:
    """``percentile(x, p[, frequency])``, and ``percentile_cont(p) WITHIN GROUP (ORDER BY x)``."""
    value, share, *frequency = function.children
    name = function.name.lower()
    if frequency and whole(frequency[0]) != 1:
        raise over.context.unsupported(function.place, f"{name}() with a frequency", "Give it two operands.")
    return _of_shares(function, over, value, share, "percentile")


def _discrete(function: TreeNode, over: Expressions) -> Call:
    if function.fields.get("legacyCalculation"):
        what = "percentile_disc() by its legacy calculation"
        raise over.context.unsupported(function.place, what, "Unset the setting for it.")
    value, share = function.children[:2]
    return _of_shares(function, over, value, share, "percentile_disc")


def _of_shares(function: TreeNode, over: Expressions, value: TreeNode, share: TreeNode, name: str) -> Call:
    if function.fields.get("reverse"):
        what = f"{function.name}() WITHIN GROUP by anything but one value, ascending,"
        raise over.context.unsupported(function.place, what, "Write ORDER BY x.")
    taken = number(over.context, function.place, function.name, over.of(value))
    return of_fractions(Call(name, taken, pa.float64()), *_shares(share, function.place, over))


def _approximate(function: TreeNode, over: Expressions) -> Call:
    value, share, accuracy = function.children
    exact = whole(accuracy)
    if exact is None or exact < 1:
        what = "percentile_approx() with this accuracy"
        raise over.context.unsupported(function.place, what, "Write it as a whole number: 10000.")
    shares, is_array = _shares(share, function.place, over)
    return approximate_percentile(over.context, function.place, over.of(value), shares, is_array, exact)


def _shares(node: TreeNode, place: Place, over: Expressions) -> tuple[list[float], bool]:
    """The percentages, and whether they are an array."""
    given = written(node)
    listed = given if isinstance(given, list) else [given]
    if not listed or any(isinstance(one, bool | str | None) or not 0 <= one <= 1 for one in listed):
        what = "a percentage that is no number from 0 to 1"
        raise over.context.unsupported(place, what, "Write it as a number: 0.5.")
    return [float(one) for one in listed], isinstance(given, list)


def _mode(function: TreeNode, over: Expressions) -> Call:
    """Of several values Spark gives any, the least or the greatest; in place of any, here it is the least."""
    value = group_value(comparable_value(over.context, function.place, over.of(function.children[0])))
    return Call("greatest_mode" if function.fields["reverseOpt"] is False else "mode", value, value.type)


def _approximate_count(function: TreeNode, over: Expressions) -> Call:
    value = over.of(function.children[0])
    return approximate_count(over.context, function.place, value, float(function.fields["relativeSD"]))


_OTHERS: Mapping[str, Callable[[TreeNode, Expressions], Call]] = {
    "ApproximatePercentile": _approximate,
    "HyperLogLogPlusPlus": _approximate_count,
    "Mode": _mode,
    "Percentile": _percentile,
    "PercentileCont": _percentile,
    "PercentileDisc": _discrete,
}

# Lists of texts


def _listed(function: TreeNode, distinct: bool, over: Expressions) -> Planned:
    """``listagg(x, ',') WITHIN GROUP (ORDER BY y, ...)``: an aggregate by itself, if it lists texts in their own order.
    Otherwise it collects them with what they are sorted by."""
    order, value = function.fields["orderExpressions"], over.of(function.children[0])
    if not is_string(value.type):
        what = f"{function.name}() of {spark_name(value.type)}"
        raise over.context.unsupported(function.place, what, "CAST what it lists to STRING.")
    between = written(function.fields["delimiter"])
    if not isinstance(between, str | None):
        raise over.context.unsupported(function.place, f"this {function.name}()", "Write what is between in quotes.")
    mark = between or ""
    own = not order or (
        len(order) == 1
        and order[0].children[0].meaning == function.children[0].meaning
        and order[0].fields["direction"] == "Ascending"
    )
    if own:
        return Planned(Call("listagg", value, value.type, distinct, between=mark))
    return _joined(function, value, distinct, order, mark, over)


def _joined(
    function: TreeNode, value: Scalar, distinct: bool, order: Sequence[TreeNode], mark: str, over: Expressions
) -> Planned:
    downs = {one.fields["direction"] == "Descending" for one in order}
    odd = [
        one
        for one in order
        if (one.fields["direction"] == "Descending") == (one.fields["nullOrdering"] == "NullsFirst")
    ]
    if len(downs) > 1 or odd:
        what = "listagg() in an order that goes both ways"
        raise over.context.unsupported((odd or order)[-1].place, what, _ONE_WAY)
    keys = [comparable_value(over.context, one.place, over.of(one.children[0])) for one in order]
    fields = [*keys, value]
    names = [*(f"k{place}" for place in range(len(keys))), "x"]
    type = struct_type(names, [one.type for one in fields])
    rows = group_value(Scalar(struct_sql([one.sql for one in fields]), type, any(one.fails for one in fields)))
    call = Call("collect_list", rows, array_type(type), distinct, where=not_null_test(value))
    way = "'DESC', 'NULLS LAST'" if downs == {True} else "'ASC', 'NULLS FIRST'"

    def texts(collected: Scalar) -> Scalar:
        """NULL, if nothing is listed."""

        def joined(given: str) -> str:
            keyed = each(given, lambda one: f"{{'k': {order_form(one, type)}, 'v': {field_sql(one, len(keys))}}}")
            listed = each(f"list_sort({keyed}, {way})", lambda one: f"{one}.v")
            return f"CASE WHEN len({given}) > 0 THEN {macro('spark_array_join', listed, string_sql(mark))} END"

        return Scalar(once(collected.sql, joined), pa.string())

    return Planned(call, texts)
