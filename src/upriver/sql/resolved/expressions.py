"""Catalyst's expressions as DuckDB SQL, by the rules that Upriver has for functions and operators."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa

from upriver.plan.plan import UserFunction
from upriver.plan.relation import Scalar, any_fails
from upriver.plan.source import ELSEWHERE, Source
from upriver.plan.types import is_decimal, same_type, spark_name
from upriver.sql import strings
from upriver.sql.casts import cast
from upriver.sql.function_table import FUNCTIONS
from upriver.sql.logic import choose, compare, connect, is_null_test, negation, not_null_test
from upriver.sql.nested_values import field_sql, struct_sql
from upriver.sql.operators import (
    Interval,
    arithmetic,
    between,
    divide,
    modulo,
    negated,
    shifted,
    whole_divide,
)
from upriver.sql.operators import (
    _clock as clock_moved,
)
from upriver.sql.operators import (
    _date as date_moved,
)
from upriver.sql.parts import element, of_key
from upriver.sql.resolved.tree import Node, chain, conjuncts
from upriver.sql.scalars import Context, intolerant, literal, never_null, null, strict, string_sql
from upriver.sql.signatures import call
from upriver.sql.strings import concatenated
from upriver.sql.tries import tried, tried_cast

Leaf = Callable[[Node], Scalar | None]
SIGNS = {
    "EqualTo": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "EqualNullSafe": "IS NOT DISTINCT FROM",
}
ARITHMETIC = {"Add": "+", "Subtract": "-", "Multiply": "*"}
TRANSPARENT = {
    "Alias",
    "KnownNullable",
    "KnownNotNull",
    "KnownFloatingPointNormalized",
    "NormalizeNaNAndZero",
    "PromotePrecision",
    "TempResolvedColumn",
    "UpCast",
    "AnsiCast",
}
"""Nodes that have the value of their only child."""
NAMES = {
    "concat": "concat",
    "substr": "substring",
    "dateadd": "date_add",
    "in": "",
    "lcase": "lower",
    "ucase": "upper",
    "date_sub": "date_sub",
}


class Expressions:
    """Translates over rows. leaf: the values of columns, groups and results."""

    def __init__(self, source: Source, zone: str, leaf: Leaf, functions: Mapping[str, UserFunction]) -> None:
        self.source, self.leaf = source, leaf
        self.context = Context(source, zone, lambda node: None, {}, functions)
        self.defined: dict[str, Scalar] = {}

    def of(self, node: Node) -> Scalar:
        known = self.leaf(node)
        if known is not None:
            return known
        made = self._made(node)
        if node.type is not None and not same_type(made.type, node.type):
            raise self.context.unsupported(
                node.place, f"{node.kind}: {spark_name(made.type)} for {spark_name(node.type)}", ELSEWHERE
            )
        return made

    def condition(self, node: Node) -> list[Scalar]:
        return [self.of(part) for part in conjuncts(node)]

    def _made(self, node: Node) -> Scalar:
        kind, context, place = node.kind, self.context, node.place
        if kind in TRANSPARENT:
            return self.of(node.children[0])
        if kind == "Literal":
            return self._literal(node)
        if kind in SIGNS:
            return compare(context, place, SIGNS[kind], *map(self.of, node.children))
        if kind in ("And", "Or"):
            return connect(kind.upper(), [self.of(one) for one in chain(node, kind)])
        if kind == "Not":
            if node.children[0].kind == "IsNull":
                return not_null_test(self.of(node.children[0].children[0]))
            return negation(self.of(node.children[0]))
        if kind == "IsNull":
            return is_null_test(self.of(node.children[0]))
        if kind == "IsNotNull":
            return not_null_test(self.of(node.children[0]))
        if kind in ARITHMETIC or kind in ("Divide", "IntegralDivide", "Remainder"):
            return self._arithmetic(node, _mode(node.fields.get("evalContext")))
        if kind == "UnaryMinus":
            return negated(context, place, self.of(node.children[0]))
        if kind == "Cast":
            return self._cast(node)
        if kind in ("CaseWhen", "If"):
            if kind == "If":
                branches, otherwise = [(node.fields["predicate"], node.fields["trueValue"])], node.fields["falseValue"]
            else:
                branches, otherwise = node.fields["branches"], node.fields["elseValue"]
            last = null(node.type) if otherwise is None else self.of(otherwise)
            return choose(context, place, [(self.of(a), self.of(b)) for a, b in branches], last)
        if kind == "In":
            return self._in(node)
        if kind in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
            left, right = map(self.of, node.children)
            sign = {"BitwiseAnd": "&", "BitwiseOr": "|"}.get(kind)
            return strict(
                f"({left.sql} {sign} {right.sql})" if sign else f"xor({left.sql}, {right.sql})",
                left.type,
                (left, right),
            )
        if kind in ("ShiftLeft", "ShiftRight", "ShiftRightUnsigned"):
            return shifted(kind.lower())(context, place, *map(self.of, node.children))
        if kind == "GetStructField":
            value = self.of(node.children[0])
            return intolerant(Scalar(field_sql(value.sql, node.fields["ordinal"]), node.type, value.fails), (value,))
        if kind == "GetArrayItem":
            return element(context, place, *map(self.of, node.children), "spark_item")
        if kind == "GetMapValue":
            return of_key(context, place, *map(self.of, node.children))
        if kind == "CreateNamedStruct":
            parts = [self.of(one) for one in node.children[1::2]]
            return never_null(Scalar(struct_sql([one.sql for one in parts]), node.type, any_fails(parts)))
        if kind == "Concat":
            return concatenated(context, place, [self.of(one) for one in node.children])
        if kind == "Like":
            return self._like(node)
        if kind == "SubtractDates" or kind == "SubtractTimestamps":
            return between(context, place, *map(self.of, node.children))
        if kind in ("TimestampAddInterval", "TimeAdd", "DateAddYMInterval", "TimestampAddYMInterval"):
            return self._moved(node)
        if kind in ("DateAdd", "DateSub"):
            length, sign = node.children[1], 1 if kind == "DateAdd" else -1
            while length.kind == "UnaryMinus":
                length, sign = length.children[0], -sign
            if length.kind == "ExtractANSIIntervalDays":
                length = length.children[0]
                while length.kind == "UnaryMinus":
                    length, sign = length.children[0], -sign
                if length.kind == "Literal":
                    return date_moved(
                        context, place, self.of(node.children[0]), Interval(0, length.fields["value"], True), sign
                    )
        if kind == "CommonExpressionRef":
            return self.defined[str(node.fields["id"])]
        if kind == "With":
            for one in node.fields["defs"]:
                self.defined[str(one.fields["id"])] = self.of(one.children[0])
            return self.of(node.children[0])
        if kind in PRECISE:
            value = self.of(node.children[0])
            return strict(
                f"epoch_us({value.sql})" if node.type == pa.int64() else f"make_timestamp({value.sql})",
                node.type,
                (value,),
            )
        if kind == "OuterReference":
            raise context.unsupported(place, "a name of the query around in this place", ELSEWHERE)
        if kind in SPECIAL:
            return SPECIAL[kind](context, place, [self.of(one) for one in node.children])
        if kind in TRIMS:
            given = [self.of(node.fields["srcStr"])] + (
                [] if node.fields["trimStr"] is None else [self.of(node.fields["trimStr"])]
            )
            return strings._trimmed(context, place, TRIMS[kind], given)
        if kind == "AttributeReference":
            raise self.context.unsupported(place, f"a name of the query around: {node.fields['name']}", ELSEWHERE)
        function = FUNCTIONS.get(node.name)
        if node.parameters is not None:
            if function is not None and all(
                self.leaf(one) is not None
                for part in node.parameters
                for one in part.walk()
                if one.kind == "AttributeReference"
            ):
                return call(context, place, node.name, function, [self.of(one) for one in node.parameters])
            return self.of(node.children[0])
        if function is not None:
            return call(context, place, node.name, function, [self.of(one) for one in node.children])
        raise context.unsupported(place, f"{kind} ({node.name})", ELSEWHERE)

    def _literal(self, node: Node) -> Scalar:
        value, type = node.fields["value"], node.type
        if type is None:
            raise self.context.unsupported(node.place, f"a constant of {node.fields['dataType']}", ELSEWHERE)
        if value is None:
            return null(type)
        if is_decimal(type):
            return literal(Decimal(value), type)
        if type in (pa.float64(), pa.float32()):
            return (
                literal(float(value), type)
                if type == pa.float64()
                else never_null(Scalar(f"CAST('{value}' AS FLOAT)", type))
            )
        if type == pa.date32():
            return never_null(Scalar(f"(DATE '1970-01-01' + CAST({value} AS INTEGER))", type))
        if type == pa.duration("us"):
            return Scalar(f"CAST({value} AS BIGINT)", type)
        if pa.types.is_timestamp(type):
            return never_null(Scalar(f"make_timestamp(CAST({value} AS BIGINT))", type))
        if type == pa.binary():
            return never_null(Scalar(f"from_hex('{base64.b64decode(value).hex()}')", type))
        return literal(value, type)

    def _arithmetic(self, node: Node, mode: str) -> Scalar:
        left, right = map(self.of, node.children)
        context, place = self.context, node.place
        how = {"Divide": divide, "IntegralDivide": whole_divide, "Remainder": modulo}.get(node.kind)
        if how is None:
            sign = ARITHMETIC[node.kind]
            if left.type == pa.duration("us"):
                return strict(f"({left.sql} {sign} {right.sql})", left.type, (left, right), fails=True)

            def how(context, place, one, other):
                return arithmetic(context, place, sign, one, other)

        if mode == "LEGACY":
            raise context.unsupported(place, "arithmetic without ANSI mode", ELSEWHERE)
        if mode == "TRY":
            return tried(lambda c, p, ops: how(c, p, *ops))(context, place, (left, right))
        return how(context, place, left, right)

    def _cast(self, node: Node) -> Scalar:
        mode = node.fields.get("evalMode")
        value = self.of(node.children[0])
        if node.type is None:
            raise self.context.unsupported(node.place, f"a cast to {node.fields['dataType']}", ELSEWHERE)
        if mode == "TRY":
            return replace(tried_cast(node.type)(self.context, node.place, (value,)), constant=None)
        return cast(self.context, node.place, value, node.type)

    def _in(self, node: Node) -> Scalar:
        value, *items = [self.of(one) for one in node.children]
        if len(items) == 1 and items[0].constant is not None:
            return compare(self.context, node.place, "=", value, items[0])
        if any_fails(items):
            return connect("OR", [compare(self.context, node.place, "=", value, one) for one in items])
        return Scalar(f"({value.sql} IN ({', '.join(one.sql for one in items)}))", pa.bool_(), value.fails)

    def _like(self, node: Node) -> Scalar:
        value, pattern = map(self.of, node.children)
        if not isinstance(pattern.constant, str):
            raise self.context.unsupported(node.place, "LIKE by a computed pattern", ELSEWHERE)
        return strict(
            f"({value.sql} LIKE {pattern.sql} ESCAPE {string_sql(node.fields.get('escapeChar') or chr(92))})",
            pa.bool_(),
            (value, pattern),
        )

    def _moved(self, node: Node) -> Scalar:
        moment, length = node.children
        value = self.of(moment)
        sign = 1
        while length.kind == "UnaryMinus":
            sign, length = -sign, length.children[0]
        if length.kind == "Cast":
            length = length.children[0]
        if length.kind != "Literal" or not isinstance(length.fields["value"], int):
            raise self.context.unsupported(node.place, "this INTERVAL", ELSEWHERE)
        number = length.fields["value"]
        is_months = "month" in str(length.fields["dataType"]) or "year" in str(length.fields["dataType"])
        interval = Interval(number, 0, False) if is_months else Interval(0, number, number % 86_400_000_000 == 0)
        moved = date_moved if value.type == pa.date32() else clock_moved
        return moved(self.context, node.place, value, interval, sign)


SPECIAL = {"Substring": strings.substring, "StringLocate": strings._located}
TRIMS = {"StringTrim": "trim", "StringTrimLeft": "ltrim", "StringTrimRight": "rtrim"}
PRECISE = {"PreciseTimestampConversion"}


def _mode(written: object) -> str:
    return str(written[1]) if isinstance(written, list) else "ANSI"
