"""Functions that choose between values, and tests for NULL."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from upriver.plan.relation import Scalar, any_fails
from upriver.plan.source import Place
from upriver.plan.types import is_nested, is_null
from upriver.sql.functions.arithmetic import as_condition, to_common
from upriver.sql.functions.logic import choose, compare, is_null_test, not_null_test
from upriver.sql.functions.scalars import Context, literal, never_null, null, typed_name
from upriver.sql.functions.signatures import Function, OperandKind, Operands, Special

_ANY, _NUMBER, _CONDITION = OperandKind.ANY, OperandKind.NUMBER, OperandKind.CONDITION


def _coalesced(context: Context, place: Place, operands: Operands) -> Scalar:
    given = to_common(context, place, operands)
    if is_null(given[0].type):
        return null(pa.null())
    values = _needed([value for value, operand in zip(given, operands, strict=True) if not is_null(operand.type)])
    if len(values) == 1:
        return replace(values[0], constant=None, nulls=values[0].null_by)
    return _unless_one_is_there(Scalar(f"coalesce({', '.join(v.sql for v in values)})", values[0].type), values)


def _needed(values: Sequence[Scalar]) -> Sequence[Scalar]:
    """The values up to the first that is never NULL."""
    last = next((place for place, value in enumerate(values) if not value.null_by), len(values))
    return values[: last + 1]


def _if(context: Context, place: Place, operands: Operands) -> Scalar:
    test, value, otherwise = operands
    return choose(context, place, [(as_condition(context, place, test), value)], otherwise)


def _nvl2(context: Context, place: Place, operands: Operands) -> Scalar:
    tested, value, otherwise = operands
    return choose(context, place, [(not_null_test(tested), value)], otherwise)


def _null_if(context: Context, place: Place, operands: Operands) -> Scalar:
    value, other = operands
    return choose(context, place, [(compare(context, place, "=", value, other), null(value.type))], value)


def _extreme(function: str) -> Special:
    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        values = to_common(context, place, operands)
        if is_nested(values[0].type):
            instead = "Write CASE WHEN a < b THEN a ELSE b END, as it shall be for NULL."
            raise context.unsupported(place, f"{function}() of {typed_name(values[0])}", instead)
        return _unless_one_is_there(Scalar(f"{function}({', '.join(v.sql for v in values)})", values[0].type), values)

    return rule


def _unless_one_is_there(value: Scalar, operands: Sequence[Scalar]) -> Scalar:
    """A value that is NULL only if all operands are."""
    value = replace(value, fails=any_fails(operands))
    return value if all(operand.null_by for operand in operands) else never_null(value)


def _equal_null(context: Context, place: Place, operands: Operands) -> Scalar:
    return compare(context, place, "IS NOT DISTINCT FROM", *operands)


def _zero(context: Context, place: Place, operands: Operands) -> Scalar:
    """``nullifzero(x)``."""
    return _null_if(context, place, (operands[0], literal(0, pa.int32())))


def _or_zero(context: Context, place: Place, operands: Operands) -> Scalar:
    """``zeroifnull(x)``."""
    return _coalesced(context, place, (operands[0], literal(0, pa.int32())))


_COMMON = "the common type"
_ALL = "where all operands are"

CHOICES: tuple[Function, ...] = (
    Function(
        "if",
        (_CONDITION, _ANY, _ANY),
        _if,
        _COMMON,
        nulls="where the chosen value is",
        samples="`if`(b, i, l); `if`(i > 0, s, NULL)",
    ),
    Function(
        "coalesce",
        (_ANY,),
        _coalesced,
        _COMMON,
        repeats=True,
        nulls=_ALL,
        samples="coalesce(i, j, 0); coalesce(s, u); coalesce(x, p); coalesce(d, n)",
    ),
    Function("nvl ifnull", (_ANY, _ANY), _coalesced, _COMMON, nulls=_ALL, samples="nvl(i, l); ifnull(s, u); nvl(f, 1)"),
    Function(
        "nvl2",
        (_ANY, _ANY, _ANY),
        _nvl2,
        _COMMON,
        nulls="where the chosen value is",
        samples="nvl2(i, s, u); nvl2(s, i, p)",
    ),
    Function(
        "nullif",
        (_ANY, _ANY),
        _null_if,
        "the first operand's type",
        nulls="also where both are equal",
        samples="nullif(i, j); nullif(s, ''); nullif(x, 0)",
    ),
    Function(
        "greatest",
        (_ANY, _ANY),
        _extreme("greatest"),
        _COMMON,
        repeats=True,
        nulls=_ALL,
        samples="greatest(i, j, l); greatest(x, w); greatest(s, u); greatest(d, e)",
    ),
    Function(
        "least",
        (_ANY, _ANY),
        _extreme("least"),
        _COMMON,
        repeats=True,
        nulls=_ALL,
        samples="least(i, j, l); least(x, w); least(s, u); least(p, 1)",
    ),
    Function(
        "isnull",
        (_ANY,),
        lambda context, place, operands: is_null_test(operands[0]),
        "BOOLEAN",
        nulls="never",
        samples="isnull(s); isnull(x)",
    ),
    Function(
        "isnotnull",
        (_ANY,),
        lambda context, place, operands: not_null_test(operands[0]),
        "BOOLEAN",
        nulls="never",
        samples="isnotnull(s); isnotnull(x)",
    ),
    Function(
        "equal_null",
        (_ANY, _ANY),
        _equal_null,
        "BOOLEAN",
        nulls="never",
        samples="equal_null(i, j); equal_null(s, u); equal_null(x, w)",
    ),
    Function(
        "nullifzero",
        (_NUMBER,),
        _zero,
        "the operand's type",
        nulls="also for 0",
        samples="nullifzero(i); nullifzero(x)",
    ),
    Function(
        "zeroifnull", (_NUMBER,), _or_zero, "the operand's type", nulls="never", samples="zeroifnull(l); zeroifnull(x)"
    ),
)
"""Choices between values."""
