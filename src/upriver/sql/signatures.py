"""What a function takes and gives. Most are one line: kinds of operands, the DuckDB SQL, and the result's type."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
from sqlglot import exp

from upriver.plan.relation import Scalar
from upriver.plan.types import is_date, is_instant, is_integer, is_null, is_string, is_wall_clock
from upriver.sql.casts import cast, within_range
from upriver.sql.operators import CAST_IT
from upriver.sql.scalars import Context, in_order, macro, null, opaque, strict, typed_name


class OperandKind(Enum):
    """A kind of operand."""

    STRING = "a STRING"
    INT = "an INT"
    WHOLE = "an integer"
    DATE = "a DATE"
    CLOCK = "a TIMESTAMP"
    INSTANT = "a TIMESTAMP with time zone"
    ANY = "anything"


@dataclass(frozen=True, slots=True)
class Signature:
    """A function that is one DuckDB expression. It gives NULL exactly if an operand is NULL, as Spark's does.

    sql: with {0}, {1}, ... in the places of the operands; or the name of one of our macros. fails: whether it can fail
    where its operands do not. is_opaque: whether Spark does not call it null-intolerant.
    """

    takes: tuple[OperandKind, ...]
    sql: str
    gives: pa.DataType
    fails: bool = False
    is_opaque: bool = False


Operands = Sequence[Scalar]
Special = Callable[[Context, exp.Expr, Operands], Scalar]


@dataclass(frozen=True, slots=True)
class Spoken:
    """A function with a rule of its own. operands: the least and the greatest number that it takes."""

    operands: tuple[int, int]
    rule: Special


Function = Signature | Spoken
Functions = Mapping[str, Function]


def call(context: Context, node: exp.Expr, name: str, function: Function, operands: Operands) -> Scalar:
    """The call as a scalar. Raises UnsupportedSql if the function does not take these operands."""
    least, most = function.operands if isinstance(function, Spoken) else (len(function.takes),) * 2
    if not least <= len(operands) <= most:
        count = f"{least}" if least == most else f"{least} to {most}"
        raise context.unsupported(node, f"{name}() of {len(operands)} operands", f"Here it takes {count}.")
    if isinstance(function, Spoken):
        return function.rule(context, node, operands)
    taken = in_order(*(take(context, node, *pair) for pair in zip(function.takes, operands, strict=True)))
    texts = [operand.sql for operand in taken]
    sql = function.sql.format(*texts) if "{" in function.sql else macro(function.sql, *texts)
    value = strict(sql, function.gives, taken, function.fails)
    return opaque(value) if function.is_opaque else value


def take(context: Context, node: exp.Expr, kind: OperandKind, value: Scalar) -> Scalar:
    """The operand in the type that the function takes. An operand that Spark would cast from text is refused."""
    type = value.type
    if kind is OperandKind.ANY:
        return value
    target = _TARGETS[kind]
    if is_null(type):
        return null(target)
    if _ACCEPTS[kind](type):
        value = within_range(value)
        return value if kind is OperandKind.CLOCK else cast(context, node, value, target)
    raise context.unsupported(node, f"{typed_name(value)} where {kind.value} is wanted", CAST_IT)


def _is_int(type: pa.DataType) -> bool:
    return is_integer(type) and type != pa.int64()


def _is_day(type: pa.DataType) -> bool:
    return is_date(type) or is_wall_clock(type) or is_instant(type)


_TARGETS = {
    OperandKind.STRING: pa.string(),
    OperandKind.INT: pa.int32(),
    OperandKind.WHOLE: pa.int64(),
    OperandKind.DATE: pa.date32(),
    OperandKind.CLOCK: pa.timestamp("us"),
    OperandKind.INSTANT: pa.timestamp("us", tz="UTC"),
}
_ACCEPTS: Mapping[OperandKind, Callable[[pa.DataType], bool]] = {
    OperandKind.STRING: is_string,
    OperandKind.INT: _is_int,
    OperandKind.WHOLE: is_integer,
    OperandKind.DATE: _is_day,
    OperandKind.CLOCK: lambda type: is_wall_clock(type) or is_instant(type),
    OperandKind.INSTANT: is_instant,
}


def constant_text(context: Context, node: exp.Expr, name: str, value: Scalar) -> str:
    """An operand that must be written as a string in quotes."""
    if not isinstance(value.constant, str):
        raise context.unsupported(node, f"{name}() by a computed unit", "Write the unit in quotes.")
    return value.constant
