"""Catalyst's expressions as DuckDB SQL, by the rules that Upriver has for functions and operators.

Spark has found the types: each operand has the one that the operator takes, by a cast if need be. So a rule here names
the operator, and checks nothing of its operands that Spark has checked. What is checked is the result: its type is
Spark's.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from upriver.plan.relation import Scalar, any_fails
from upriver.plan.source import ELSEWHERE, Place, Source
from upriver.plan.types import (
    is_date,
    is_floating,
    is_integer,
    is_interval,
    is_nested,
    is_struct,
    parts_of,
    same_type,
    spark_name,
)
from upriver.sql.constants import constant
from upriver.sql.functions.aggregates import INSTEAD
from upriver.sql.functions.arithmetic import (
    DAY_MICROS,
    Interval,
    arithmetic,
    as_condition,
    between,
    bits,
    divide,
    flipped,
    modulo,
    moved_clock,
    moved_date,
    negated,
    shifted,
    whole_divide,
)
from upriver.sql.functions.arrays import zipped
from upriver.sql.functions.casts import cast
from upriver.sql.functions.constructors import named
from upriver.sql.functions.lists import sequence
from upriver.sql.functions.logic import (
    choose,
    compare,
    connect,
    is_null_test,
    like,
    like_any_case,
    negation,
    not_null_test,
    within,
)
from upriver.sql.functions.nested_values import field_sql
from upriver.sql.functions.numbers import try_divide
from upriver.sql.functions.parts import element, fields_of, of_key
from upriver.sql.functions.scalars import FALSE, TRUE, Context, intolerant, literal, null, strict
from upriver.sql.functions.signatures import Lambda, Operands, call
from upriver.sql.functions.strings import located, substring, trimmed
from upriver.sql.functions.table import CHANGING, FUNCTIONS, REFUSED
from upriver.sql.functions.times import part
from upriver.sql.functions.tries import tried, tried_cast
from upriver.sql.tree import TreeNode, conjuncts
from upriver.sql.user_functions import UserFunctions

Leaf = Callable[[TreeNode], Scalar | None]
Combine = Callable[[Context, Place, Scalar, Scalar], Scalar]
CLOCKS = frozenset({"CurrentDate", "CurrentTimestamp", "LocalTimestamp", "Now"})
"""Classes that give the time."""
_CONDITIONAL = frozenset({"And", "CaseWhen", "Coalesce", "If", "NullIf", "Or"})
"""Classes that do not compute all of their operands for each row."""
_INTERVAL_INSTEAD = "Add or take away an INTERVAL that is written out: t + INTERVAL '5' MINUTE."


class Expressions:
    """Expressions over rows. leaf: the value of a column, a group or a result, tried before any rule; ``None`` for a
    node that is none. zone: the session's. functions: the user's own."""

    def __init__(self, source: Source, zone: str, leaf: Leaf, functions: UserFunctions) -> None:
        self.context, self.functions = Context(source, zone), functions
        self.leaf = leaf
        self._variables: dict[int, Scalar] = {}
        """The variables of the lambdas around, by id."""
        self._lambdas = 0
        self._conditional = 0
        """How many constructs around may skip what is translated."""

    def of(self, node: TreeNode, is_conditional: bool = False) -> Scalar:
        """Raises UnsupportedSql, with the place, for any class that may mean something else in DuckDB. is_conditional:
        whether what is around may skip it: a constant that fails is not refused then."""
        if is_conditional:
            with self.conditionally():
                return self.of(node)
        known = self.leaf(node)
        if known is not None:
            return known
        if node.type is None:
            raise self._untyped(node)
        if not node.deterministic:
            raise self._unknown(_changing(node))
        check_modes(self.context, node)
        rule = RULES.get(node.kind, Expressions.function)
        self._conditional += node.kind in _CONDITIONAL
        try:
            made = rule(self, node)
        finally:
            self._conditional -= node.kind in _CONDITIONAL
        if not same_type(made.type, node.type):
            what = f"{node.name or node.kind} of type {spark_name(node.type)}, here {spark_name(made.type)},"
            raise self.context.unsupported(node.place, what, ELSEWHERE)
        return self.context.checked(node.place, made, self._conditional > 0)

    def all(self, nodes: Iterable[TreeNode]) -> list[Scalar]:
        return [self.of(node) for node in nodes]

    def condition(self, node: TreeNode) -> list[Scalar]:
        """The conditions that a node joins by AND. A row that fails one needs no other."""
        return [as_condition(self.context, one.place, self.of(one, is_conditional=True)) for one in conjuncts(node)]

    @contextmanager
    def conditionally(self) -> Iterator[None]:
        """What is translated within may be computed for no row."""
        self._conditional += 1
        try:
            yield
        finally:
            self._conditional -= 1

    # Functions

    def function(self, node: TreeNode) -> Scalar:
        """A call of a function of the table, by its name."""
        name = node.name.lower()
        function = None if node.kind in _NAMED_BY_USERS else FUNCTIONS.get(name)
        if node.parameters is not None:
            return self.of(node.children[0])
        if function is None:
            raise self._unknown(node)
        lambdas = [self._lambda(one) for one in node.children if one.kind == _LAMBDA]
        operands = [null(pa.null()) if one.kind == _LAMBDA else self.of(one) for one in node.children]
        return call(self.context, node.place, name, function, operands, lambdas)

    def called(self, node: TreeNode, name: str, operands: Operands) -> Scalar:
        """A call of a function of this name."""
        return call(self.context, node.place, name, FUNCTIONS[name], operands)

    def _lambda(self, node: TreeNode) -> Lambda:
        variables = node.fields["arguments"]

        def body(values: Sequence[Scalar]) -> Scalar:
            around = self._variables
            self._variables = around | {one.id: value for one, value in zip(variables, values, strict=True)}
            self._lambdas += 1
            try:
                with self.conditionally():
                    return self.of(node.fields["function"])
            finally:
                self._variables = around
                self._lambdas -= 1

        return Lambda(len(variables), self._lambdas, body)

    def variable(self, node: TreeNode) -> Scalar:
        """Of a lambda."""
        return self._variables[node.id]

    def _untyped(self, node: TreeNode) -> Exception:
        """The error for a value of a type that no column has here: of its part that brings the type in."""
        inner = next((one for one in node.children if one.type is None and one.kind != "ResolvedCollation"), None)
        written = node.fields.get("dataType")
        if inner is not None and written is None:
            return self._untyped(inner)
        type = _type_text(written) if written is not None else f"that {node.name or node.kind}() gives"
        return self.context.unsupported(node.place, f"a value of the type {type}", ELSEWHERE)

    def _unknown(self, node: TreeNode) -> Exception:
        """The error for what no rule translates."""
        inner = next((one for one in node.children if not one.deterministic), None)
        if not node.deterministic and inner is not None:
            return self._unknown(inner)
        name = str(node.fields["name"]) if node.kind == "PythonUDF" else node.name.lower()
        if name in ("now", "current_timestamp", "current_date", "localtimestamp"):
            instead = f"Select it in a subquery: (SELECT *, {name}() AS clock FROM t)."
            return self.context.unsupported(node.place, f"{name}() in this place", instead)
        if CHANGING.fullmatch(name) or not node.deterministic:
            what = f"{name}(), which gives another answer each time,"
            instead = "A view must depend on its rows alone: make it a column."
            return self.context.unsupported(node.place, what, instead)
        instead = INSTEAD.get(name, REFUSED.get(name, ELSEWHERE))
        what = _IN_SQL.get(name) or f"the function {name or node.kind}()"
        return self.context.unsupported(node.place, what, instead)


def _changing(node: TreeNode) -> TreeNode:
    """The part of an expression that gives another answer each time."""
    return next((_changing(one) for one in node.children if not one.deterministic), node)


Rule = Callable[[Expressions, TreeNode], Scalar]
_IN_SQL = {
    **dict.fromkeys(("multiplydtinterval", "multiplyyminterval"), "an INTERVAL times a number"),
    **dict.fromkeys(("dividedtinterval", "divideyminterval"), "an INTERVAL divided by a number"),
}
"""Spark's names of operators, in words."""
_LAMBDA = "LambdaFunction"
_NAMED_BY_USERS = frozenset(
    {
        "ApplyFunctionExpression",
        "HiveGenericUDF",
        "HiveSimpleUDF",
        "Invoke",
        "PythonUDF",
        "SQLFunctionExpression",
        "SQLScalarFunction",
        "ScalaUDF",
        "StaticInvoke",
    }
)
"""Classes whose name is not that of one of Spark's functions, even if it is spelled like one."""


# Modes ---------------------------------------------------------------------------------------------------------------

_MODES = {
    "failOnError": True,
    "ansiEnabled": True,
    "followThreeValuedLogic": True,
    "nullOnDivideByZero": True,
    "legacySizeOfNull": False,
    "legacyNegativeIndex": False,
    "legacyCharsets": False,
    "legacyErrorAction": False,
    "legacyInterval": False,
    "legacyCalculation": False,
    "allowNullComparisonResult": False,
    "useStringTypeWhenEmpty": False,
}
"""What the settings of a session decide of an expression, and what Upriver computes."""
_TRIED = frozenset({"ElementAt", "MakeTimestamp", "ParseUrl", "UnBase64", "Unhex", "UrlDecode"})
"""Classes that do not fail on an error by another cause than a setting."""


def check_modes(context: Context, node: TreeNode) -> None:
    """Refuse an expression that a setting of the session makes another one."""
    for name, wanted in _MODES.items():
        found = node.fields.get(name, wanted)
        tolerates = name in ("failOnError", "ansiEnabled") and (node.kind in _TRIED or node.name.startswith("try_"))
        if found != wanted and not tolerates:
            raise context.unsupported(node.place, f"{node.name}() in a session with {name} = {found}", _SETTINGS)
    if mode(node) == "LEGACY":
        raise context.unsupported(node.place, f"{node.name} without ANSI mode", "Set spark.sql.ansi.enabled to true.")
    written = node.fields.get("evalContext")
    if isinstance(written, list) and written[2] is not True:
        what = f"{node.name} in a session that does not allow a loss of precision"
        raise context.unsupported(node.place, what, _SETTINGS)


_SETTINGS = "Leave Spark's settings as they are."


def mode(node: TreeNode) -> str:
    """ANSI, TRY or LEGACY."""
    written = node.fields.get("evalContext", node.fields.get("evalMode", "ANSI"))
    return str(written[1] if isinstance(written, list) else written)


def _type_text(written: Any) -> str:
    return str(written["type"] if isinstance(written, Mapping) else written).upper()


# Truth ---------------------------------------------------------------------------------------------------------------


def _compared(sign: str) -> Rule:
    def rule(over: Expressions, node: TreeNode) -> Scalar:
        left, right = _with_names_of_first(over.all(node.children))
        return compare(over.context, node.place, sign, left, right)

    return rule


def _with_names_of_first(values: Sequence[Scalar]) -> Sequence[Scalar]:
    """Values to compare. Spark compares structs by the places of their fields, whatever their names."""
    first, *others = values
    if not is_nested(first.type):
        return values
    return [
        first,
        *(replace(one, type=first.type) if _have_same_parts(first.type, one.type) else one for one in others),
    ]


def _have_same_parts(left: pa.DataType, right: pa.DataType) -> bool:
    parts = parts_of(left), parts_of(right)
    if not parts[0] or len(parts[0]) != len(parts[1]):
        return same_type(left, right)
    return is_struct(left) == is_struct(right) and all(map(_have_same_parts, *parts))


def _connected(word: str) -> Rule:
    def parts(over: Expressions, node: TreeNode, kind: str) -> list[Scalar]:
        known = over.leaf(node)
        if known is None and node.kind == kind:
            return [part for one in node.children for part in parts(over, one, kind)]
        return [as_condition(over.context, node.place, over.of(node))]

    return lambda over, node: connect(word, [part for one in node.children for part in parts(over, one, node.kind)])


def _is_null(over: Expressions, node: TreeNode) -> Scalar:
    (tested,) = node.children
    if is_never_null(tested):
        return FALSE
    return is_null_test(over.of(tested))


def _not_null(over: Expressions, node: TreeNode) -> Scalar:
    (tested,) = node.children
    if is_never_null(tested):
        return TRUE
    return not_null_test(over.of(tested))


def is_never_null(node: TreeNode) -> bool:
    """Whether it is a value of the clock alone, which is never NULL: it is not computed for such a test."""
    return not node.nullable and not node.references and any(one.kind in CLOCKS for one in node.walk())


def _not(over: Expressions, node: TreeNode) -> Scalar:
    (tested,) = node.children
    if tested.kind == "IsNull" and over.leaf(tested) is None:
        return not_null_test(over.of(tested.children[0]))
    return negation(as_condition(over.context, node.place, over.of(tested)))


def _case(over: Expressions, node: TreeNode) -> Scalar:
    branches = [
        (as_condition(over.context, node.place, over.of(when)), over.of(then)) for when, then in _branches(node)
    ]
    otherwise = node.fields["elseValue"]
    return choose(over.context, node.place, branches, null(pa.null()) if otherwise is None else over.of(otherwise))


def _branches(node: TreeNode) -> Sequence[tuple[TreeNode, TreeNode]]:
    return [(when, then) for when, then in node.fields["branches"]]


def _if(over: Expressions, node: TreeNode) -> Scalar:
    condition, value, otherwise = over.all(node.children)
    return choose(over.context, node.place, [(as_condition(over.context, node.place, condition), value)], otherwise)


def _null_if(over: Expressions, node: TreeNode) -> Scalar:
    condition, value = over.all(node.children)
    return choose(over.context, node.place, [(condition, null(value.type))], value)


def _in(over: Expressions, node: TreeNode) -> Scalar:
    if node.children[0].kind == "Cast":  # Spark computes the constants among the items while it plans the query
        values = over.all(node.children)
    else:
        with over.conditionally():
            values = over.all(node.children)
    first, *others = _with_names_of_first(values)
    return within(over.context, node.place, first, others)


def _enough(over: Expressions, node: TreeNode) -> Scalar:
    """Whether so many values are there: neither NULL nor NaN."""
    values = over.all(node.children)
    there = [
        f"coalesce(NOT isnan({one.sql}), FALSE)" if is_floating(one.type) else f"({one.sql} IS NOT NULL)"
        for one in values
    ]
    counted = " + ".join(f"CAST({one} AS INTEGER)" for one in there)
    return Scalar(f"(({counted}) >= {int(node.fields['n'])})", pa.bool_(), any_fails(values), nulls=frozenset())


def _like(over: Expressions, node: TreeNode) -> Scalar:
    value, pattern = over.all(node.children)
    return like(over.context, node.place, value, pattern, node.fields["escapeChar"])


def _like_any_case(over: Expressions, node: TreeNode) -> Scalar:
    value, pattern = over.all(node.children)
    return like_any_case(over.context, node.place, value, pattern, node.fields["escapeChar"])


def _like_each(word: str, is_negated: bool) -> Rule:
    """``LIKE ANY (...)`` and ``LIKE ALL (...)`` of constants."""

    def rule(over: Expressions, node: TreeNode) -> Scalar:
        (value,) = over.all(node.children)
        patterns = [null(pa.string()) if one is None else literal(one, pa.string()) for one in node.fields["patterns"]]
        return connect(word, [like(over.context, node.place, value, one, "\\", is_negated) for one in patterns])

    return rule


# Numbers -------------------------------------------------------------------------------------------------------------


def _computed(how: Combine, how_tried: Combine | None = None) -> Rule:
    """An operator of two numbers. how_tried: with ``try_``, if it is not the same with NULL in place of errors."""

    def rule(over: Expressions, node: TreeNode) -> Scalar:
        left, right = over.all(node.children)
        if mode(node) != "TRY":
            return how(over.context, node.place, left, right)
        if how_tried is not None:
            return how_tried(over.context, node.place, left, right)
        return tried(lambda context, place, given: how(context, place, *given))(over.context, node.place, (left, right))

    return rule


def _signed(sign: str) -> Combine:
    def combine(context: Context, place: Place, left: Scalar, right: Scalar) -> Scalar:
        if is_interval(left.type) and is_interval(right.type):
            return strict(f"({left.sql} {sign} {right.sql})", left.type, (left, right), fails=True)
        return arithmetic(context, place, sign, left, right)

    return combine


def _with_two(how: Combine) -> Rule:
    def rule(over: Expressions, node: TreeNode) -> Scalar:
        left, right = over.all(node.children)
        return how(over.context, node.place, left, right)

    return rule


def _negated(over: Expressions, node: TreeNode) -> Scalar:
    (value,) = over.all(node.children)
    number = value.constant
    if isinstance(number, int) and not isinstance(number, bool) and number > 0:
        return literal(-number, value.type)
    if is_interval(value.type):
        return strict(f"(-{value.sql})", value.type, (value,), fails=True)
    return negated(over.context, node.place, value)


def _flipped(over: Expressions, node: TreeNode) -> Scalar:
    return flipped(over.context, node.place, *over.all(node.children))


# Casts and constants -------------------------------------------------------------------------------------------------


def _cast(over: Expressions, node: TreeNode) -> Scalar:
    (value,) = over.all(node.children)
    assert node.type is not None
    if mode(node) == "TRY":
        return replace(tried_cast(node.type)(over.context, node.place, (value,)), constant=None)
    return cast(over.context, node.place, value, node.type)


def _literal(over: Expressions, node: TreeNode) -> Scalar:
    assert node.type is not None
    return constant(over.context, node.place, node.fields["value"], node.type)


def _same(over: Expressions, node: TreeNode) -> Scalar:
    """A node that has the value of its only child."""
    return over.of(node.children[0])


# Nested values -------------------------------------------------------------------------------------------------------


def _field(over: Expressions, node: TreeNode) -> Scalar:
    (value,) = over.all(node.children)
    made = Scalar(field_sql(value.sql, node.fields["ordinal"]), value.type.field(node.fields["ordinal"]).type)
    return intolerant(replace(made, fails=value.fails), (value,))


def _fields(over: Expressions, node: TreeNode) -> Scalar:
    (value,) = over.all(node.children)
    return fields_of(value, node.fields["ordinal"])


def _item(over: Expressions, node: TreeNode) -> Scalar:
    _check_index(over, node)
    array, index = over.all(node.children)
    return element(over.context, node.place, array, index, "spark_item")


def _of_key(over: Expressions, node: TreeNode) -> Scalar:
    value, key = over.all(node.children)
    return of_key(over.context, node.place, value, key)


def _check_index(over: Expressions, node: TreeNode) -> None:
    """Refuse an element that Spark takes for never NULL although its index may be: its code reads another one then."""
    if not node.nullable and node.children[1].nullable and node.fields["failOnError"]:
        what = "an element of an array without NULL by an index that may be NULL, which Spark computes wrongly,"
        raise over.context.unsupported(node.place, what, "Write get(a, i), or coalesce(i, 0) for the index.")


def _element_at(over: Expressions, node: TreeNode) -> Scalar:
    if node.fields.get("defaultValueOutOfBound") is not None:
        raise over.context.unsupported(node.place, "element_at() with another value than NULL", ELSEWHERE)
    _check_index(over, node)
    name = "element_at" if node.fields["failOnError"] else "try_element_at"
    return over.called(node, name, over.all(node.children))


def _struct(over: Expressions, node: TreeNode) -> Scalar:
    assert node.type is not None
    names = [one.name for one in node.type]
    return named(over.context, node.place, names, over.all(node.children[1::2]))


def _zipped(over: Expressions, node: TreeNode) -> Scalar:
    assert node.type is not None
    names = [one.name for one in node.type.value_type]
    return zipped(over.context, node.place, names, over.all(node.children))


def _sorted(over: Expressions, node: TreeNode) -> Scalar:
    """``array_sort(a)``. Spark gives it a comparison that is written out."""
    array, function = node.children
    if not _is_natural(function.fields["function"], function.fields["arguments"]):
        what = "array_sort() by a comparison of your own"
        raise over.context.unsupported(node.place, what, "Sort by what they compare: array_sort(transform(a, ...)).")
    return over.called(node, "array_sort", [over.of(array)])


def _is_natural(comparison: TreeNode, variables: Sequence[TreeNode]) -> bool:
    """Whether it is the comparison of array_sort() without one: NULL is greater than all values."""
    left, right = (one.id for one in variables)

    def text(node: TreeNode) -> str:
        if node.kind == "NamedLambdaVariable":
            return {left: "l", right: "r"}.get(node.id, "?")
        if node.kind == "Literal":
            return str(node.fields["value"])
        return f"{node.kind}({','.join(map(text, node.children))})"

    return text(comparison) == _NATURAL


_NATURAL = (
    "If(And(IsNull(l),IsNull(r)),0,If(IsNull(l),1,If(IsNull(r),-1,If(LessThan(l,r),-1,If(GreaterThan(l,r),1,0)))))"
)


def _sequence(over: Expressions, node: TreeNode) -> Scalar:
    start, stop, *step = node.children
    by = interval_of(step[0]) if step else None
    given = by if by is not None or not step else over.of(step[0])
    return sequence(over.context, node.place, over.all((start, stop)), given)


# Texts ---------------------------------------------------------------------------------------------------------------


def _trimmed(function: str) -> Rule:
    return lambda over, node: trimmed(over.context, node.place, function, over.all(node.children))


def _substring(over: Expressions, node: TreeNode) -> Scalar:
    return substring(over.context, node.place, over.all(node.children))


def _located(over: Expressions, node: TreeNode) -> Scalar:
    text, letters, start = over.all(node.children)
    return located(over.context, node.place, [text, letters] + ([] if start.constant == 1 else [start]))


def _without_last(default: int) -> Rule:
    """A function whose last operand Spark adds if it is not given, which Upriver does not have otherwise."""

    def rule(over: Expressions, node: TreeNode) -> Scalar:
        *operands, last = over.all(node.children)
        return over.called(node, node.name, operands if last.constant == default else [*operands, last])

    return rule


def _without_failing(otherwise: str) -> Rule:
    """A function with another name if it does not fail."""

    def rule(over: Expressions, node: TreeNode) -> Scalar:
        name = node.name if node.fields["failOnError"] else otherwise
        return over.called(node, name, over.all(node.children))

    return rule


def _tried(over: Expressions, node: TreeNode) -> Scalar:
    """``TryEval``, of ``to_binary`` alone."""
    (inner,) = node.children
    if inner.kind != "ToBinary":
        raise over.context.unsupported(node.place, f"NULL for errors of {inner.name}()", ELSEWHERE)
    return over.called(node, "try_to_binary", over.all(inner.children))


def _hashed(over: Expressions, node: TreeNode) -> Scalar:
    if node.fields["seed"] != _SEED:
        raise over.context.unsupported(node.place, f"{node.name}() with another seed than {_SEED}", ELSEWHERE)
    return over.called(node, node.name, over.all(node.children))


_SEED = 42


# Times ---------------------------------------------------------------------------------------------------------------


def interval_of(node: TreeNode) -> Interval | None:
    """An interval that is written out: of days and shorter units, or of months."""
    if node.kind == "UnaryMinus":
        found = interval_of(node.children[0])
        return None if found is None else Interval(-found.months, -found.micros, found.in_days)
    if node.kind == "Cast":
        return interval_of(node.children[0]) if _is_interval(node) else None
    if node.kind != "Literal" or not _is_interval(node) or not isinstance(node.fields["value"], int):
        return None
    unit, number = str(node.fields["dataType"]), node.fields["value"]
    if "month" in unit or "year" in unit:
        return Interval(number, 0, in_days=False)
    return Interval(0, number, in_days=unit == "interval day")


def _is_interval(node: TreeNode) -> bool:
    return str(node.fields.get("dataType")).startswith("interval ")


def _moved(over: Expressions, node: TreeNode) -> Scalar:
    """A date or a time, and an interval."""
    moment, length = node.children
    interval = interval_of(length)
    if interval is None:
        what = f"{spark_name(moment.type) if moment.type is not None else 'a time'} and this INTERVAL"
        raise over.context.unsupported(node.place, what, _INTERVAL_INSTEAD)
    value = over.of(moment)
    return (moved_date if is_date(value.type) else moved_clock)(over.context, node.place, value, interval, 1)


def _between(over: Expressions, node: TreeNode) -> Scalar:
    return between(over.context, node.place, *over.all(node.children))


def _interval_days(over: Expressions, node: TreeNode) -> Scalar:
    interval = interval_of(node.children[0])
    if interval is not None:
        days = abs(interval.micros) // DAY_MICROS
        return literal(days if interval.micros >= 0 else -days, pa.int32())
    return part(over.context, node.place, "day", *over.all(node.children))


def _part(field: str) -> Rule:
    return lambda over, node: part(over.context, node.place, field, *over.all(node.children))


def _with_unit(name: str) -> Rule:
    """A function whose first operand is a unit of time."""

    def rule(over: Expressions, node: TreeNode) -> Scalar:
        unit = literal(str(node.fields["unit"]), pa.string())
        return over.called(node, name, [unit, *over.all(node.children)])

    return rule


def _made_moment(over: Expressions, node: TreeNode) -> Scalar:
    """``make_timestamp`` and its kin."""
    operands = over.all(node.children)
    name = "make_timestamp_ntz" if node.fields["dataType"] == "timestamp_ntz" else "make_timestamp"
    return over.called(node, name if node.fields["failOnError"] else f"try_{name}", operands)


def _zones_converted(over: Expressions, node: TreeNode) -> Scalar:
    """``convert_timezone``: from the session's zone, if none is given."""
    operands = [over.of(one) for one in node.children if one.kind != "CurrentTimeZone"]
    return over.called(node, "convert_timezone", operands)


def _precise(over: Expressions, node: TreeNode) -> Scalar:
    """A time as its microseconds, or the reverse: windows of time compute with it."""
    (value,) = over.all(node.children)
    assert node.type is not None
    how = "epoch_us" if is_integer(node.type) else "make_timestamp"
    return strict(f"{how}({value.sql})", node.type, (value,))


# Users' functions, and what has no value here -------------------------------------------------------------------------


def _users(over: Expressions, node: TreeNode) -> Scalar:
    return over.functions.call(over.context, node, over.all(node.children))


def _around(over: Expressions, node: TreeNode) -> Scalar:
    name = node.fields.get("name") or node.name
    what = f"a name of the query around in this place: {name}"
    raise over.context.unsupported(node.place, what, "Name it in the subquery's WHERE, or join with the subquery.")


def _subquery(over: Expressions, node: TreeNode) -> Scalar:
    raise over.context.unsupported(node.place, "a subquery in this place", "Join with the subquery.")


RULES: dict[str, Rule] = {
    "Alias": _same,
    "Add": _computed(_signed("+")),
    "And": _connected("AND"),
    "ArraySort": _sorted,
    "ArraysZip": _zipped,
    "AtLeastNNonNulls": _enough,
    "AttributeReference": _around,
    "BitwiseAnd": _with_two(bits("&")),
    "BitwiseNot": _flipped,
    "BitwiseOr": _with_two(bits("|")),
    "BitwiseXor": _with_two(bits("^")),
    "CaseWhen": _case,
    "Cast": _cast,
    "ConvertTimezone": _zones_converted,
    "CreateNamedStruct": _struct,
    "DateAddYMInterval": _moved,
    "Divide": _computed(divide, try_divide),
    "ElementAt": _element_at,
    "EqualNullSafe": _compared("IS NOT DISTINCT FROM"),
    "EqualTo": _compared("="),
    "ExtractANSIIntervalDays": _interval_days,
    "ExtractANSIIntervalHours": _part("hour"),
    "ExtractANSIIntervalMinutes": _part("minute"),
    "ExtractANSIIntervalSeconds": _part("second"),
    "GetArrayItem": _item,
    "GetArrayStructFields": _fields,
    "GetMapValue": _of_key,
    "GetStructField": _field,
    "GreaterThan": _compared(">"),
    "GreaterThanOrEqual": _compared(">="),
    "ILike": _like_any_case,
    "If": _if,
    "In": _in,
    "IntegralDivide": _computed(whole_divide),
    "IsNotNull": _not_null,
    "IsNull": _is_null,
    "KnownNotNull": _same,
    "KnownNullable": _same,
    "LessThan": _compared("<"),
    "LessThanOrEqual": _compared("<="),
    "Like": _like,
    "LikeAll": _like_each("AND", is_negated=False),
    "LikeAny": _like_each("OR", is_negated=False),
    "Literal": _literal,
    "MakeTimestamp": _made_moment,
    "Multiply": _computed(_signed("*")),
    "Murmur3Hash": _hashed,
    "NamedLambdaVariable": Expressions.variable,
    "Not": _not,
    "NotLikeAll": _like_each("AND", is_negated=True),
    "NotLikeAny": _like_each("OR", is_negated=True),
    "NullIfResult": _null_if,
    "Or": _connected("OR"),
    "OuterReference": _around,
    "ParseUrl": _without_failing("try_parse_url"),
    "PreciseTimestampConversion": _precise,
    "PythonUDF": _users,
    "RegExpInStr": _without_last(0),
    "RegExpReplace": _without_last(1),
    "Remainder": _computed(modulo),
    "ScalarSubquery": _subquery,
    "SecondWithFraction": _part("second"),
    "Sequence": _sequence,
    "ShiftLeft": _with_two(shifted("shiftleft")),
    "ShiftRight": _with_two(shifted("shiftright")),
    "ShiftRightUnsigned": _with_two(shifted("shiftrightunsigned")),
    "StringLocate": _located,
    "StringTrim": _trimmed("trim"),
    "StringTrimLeft": _trimmed("ltrim"),
    "StringTrimRight": _trimmed("rtrim"),
    "Substring": _substring,
    "Subtract": _computed(_signed("-")),
    "SubtractDates": _between,
    "SubtractTimestamps": _between,
    "TempResolvedColumn": _same,
    "TimestampAdd": _with_unit("timestampadd"),
    "TimestampAddInterval": _moved,
    "TimestampAddYMInterval": _moved,
    "TimestampDiff": _with_unit("timestampdiff"),
    "TryEval": _tried,
    "UnaryMinus": _negated,
    "UrlDecode": _without_failing("try_url_decode"),
    "XxHash64": _hashed,
    "YearOfWeek": _part("yearofweek"),
}
"""By Catalyst's class; all others are functions of the table, by their name."""
