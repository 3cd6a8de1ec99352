"""What a function takes and gives: one record for each of Spark's functions, and how a call of it is translated."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from upriver.plan.plan import UserFunction
from upriver.plan.relation import Scalar
from upriver.plan.source import Place
from upriver.plan.types import (
    common_type,
    duck_name,
    is_boolean,
    is_date,
    is_instant,
    is_integer,
    is_nested,
    is_null,
    is_numeric,
    is_string,
    is_wall_clock,
    same_type,
    spark_name,
)
from upriver.sql.functions.arithmetic import CAST_IT
from upriver.sql.functions.casts import cast, within_range
from upriver.sql.functions.scalars import Context, in_order, intolerant, macro, null, opaque, strict, typed_name


class OperandKind(Enum):
    """A kind of operand, in the words of messages and documents."""

    STRING = "a STRING"
    INT = "an INT"
    WHOLE = "an integer"
    DOUBLE = "a number"
    BINARY = "a BINARY"
    BYTES = "a STRING or a BINARY"
    CONDITION = "a BOOLEAN"
    DATE = "a DATE"
    CLOCK = "a TIMESTAMP"
    INSTANT = "a TIMESTAMP with time zone"
    MOMENT = "a DATE or a TIMESTAMP"
    WRITTEN = "a constant in quotes"
    NUMBER = "any number"
    ANY = "anything"
    LAMBDA = "a lambda"


Operands = Sequence[Scalar]
Special = Callable[[Context, Place, Operands], Scalar]


@dataclass(frozen=True, slots=True)
class Lambda:
    """A lambda that is an operand. count: how many variables it has. depth: how many lambdas it stands in. body: its
    value, from those of its variables."""

    count: int
    depth: int
    body: Callable[[Sequence[Scalar]], Scalar]


@dataclass(frozen=True, slots=True)
class OfLambdas:
    """The rule of a function that takes lambdas. Each stands for NULL among the operands."""

    rule: Callable[[Context, Place, Operands, Sequence[Lambda]], Scalar]


RAISES = "raises too"
"""Of a function that fails without ANSI mode as it does with it."""


@dataclass(frozen=True, slots=True)
class Function:
    """One of Spark's functions.

    names: those that Spark has for it, separated by spaces. takes: the kinds of its operands. how: DuckDB SQL with {0},
    {1}, ... in the places of the operands; or the name of one of our macros or kernels; or a rule of its own, which
    takes the operands as they are; ``None`` if more than values decides, as names of fields do. gives: the type of the
    result; for a rule, in words.

    least: how many operands it needs, if not all. repeats: whether any number of the last kind may follow. nulls: when
    it is NULL, if not exactly where an operand is. fails: when it raises although its operands do not; empty for never.
    lenient: what Spark gives instead without ANSI mode. is_opaque: whether Spark does not call it null-intolerant.
    is_rough: whether its last digit may differ. samples: calls for tests, separated by semicolons; if there are none,
    they are made from the kinds of operands.
    """

    names: str
    takes: tuple[OperandKind, ...]
    how: str | Special | OfLambdas | None
    gives: pa.DataType | str
    least: int | None = None
    repeats: bool = False
    nulls: str = ""
    fails: str = ""
    lenient: str = "NULL"
    is_opaque: bool = False
    is_rough: bool = False
    samples: str = ""

    @property
    def all_names(self) -> tuple[str, ...]:
        return tuple(self.names.split())

    @property
    def counts(self) -> tuple[int, int | None]:
        """The least and the greatest number of operands; ``None`` for any number."""
        most = None if self.repeats else len(self.takes)
        return len(self.takes) if self.least is None else self.least, most


def call(
    context: Context,
    place: Place,
    name: str,
    function: Function,
    operands: Operands,
    lambdas: Sequence[Lambda] = (),
) -> Scalar:
    """The call as a scalar. Raises UnsupportedSql if the function does not take these operands."""
    check_count(context, place, name, function, operands)
    assert function.how is not None, "it has names or an interval among its operands"
    if isinstance(function.how, OfLambdas):
        if len(lambdas) != function.takes[: len(operands)].count(OperandKind.LAMBDA):
            raise context.unsupported(place, f"{name}() without a lambda", f"Write one: {name}(a, x -> x + 1).")
        return function.how.rule(context, place, operands, lambdas)
    if not isinstance(function.how, str):
        return function.how(context, place, operands)
    assert isinstance(function.gives, pa.DataType)
    taken = in_order(*(take(context, place, *pair) for pair in zip(function.takes, operands, strict=False)))
    sql, fails = written(function.how, *taken), bool(function.fails)
    value = strict(sql, function.gives, taken, fails)
    if function.nulls:
        value = intolerant(Scalar(sql, function.gives, value.fails), taken)
    return opaque(value) if function.is_opaque else value


def check_count(context: Context, place: Place, name: str, function: Function, operands: Sequence[object]) -> None:
    """Raises UnsupportedSql if the function does not take so many operands."""
    least, most = function.counts
    if len(operands) < least or (most is not None and len(operands) > most):
        count = f"{least}" if least == most else f"{least} or more" if most is None else f"{least} to {most}"
        raise context.unsupported(place, f"{name}() of {len(operands)} operands", f"Here it takes {count}.")


def call_of_users(context: Context, place: Place, function: UserFunction, operands: Operands) -> Scalar:
    """A call of a user's function. It may raise on any row, and Spark does not look into it."""
    types = function.arguments
    if len(operands) != len(types):
        what = f"{function.name}() of {len(operands)} operands"
        raise context.source.wrong(place, what, f"It is declared with {len(types)} arguments.")
    given: list[str] = []
    for operand, type in zip(operands, types, strict=True):
        wider = common_type(operand.type, type)
        if wider is None or not same_type(wider, type):
            what = f"{typed_name(operand)} as an argument of {function.name}() that is {spark_name(type)}"
            raise context.unsupported(place, what, CAST_IT)
        given.append((null(type) if is_null(operand.type) else cast(context, place, operand, type)).sql)
    return opaque(Scalar(f"{function.sql_name}({', '.join(given)})", function.returns, fails=True))


def written(how: str, *operands: Scalar) -> str:
    """The operands in the places of the DuckDB SQL, or as those of the macro of this name."""
    texts = [operand.sql for operand in operands]
    return how.format(*texts) if "{" in how else macro(how, *texts)


def take(context: Context, place: Place, kind: OperandKind, value: Scalar) -> Scalar:
    """The operand in the type that the function takes. An operand that Spark would cast from text is refused, unless it
    is a date or time in quotes."""
    type = value.type
    if kind in (OperandKind.ANY, OperandKind.NUMBER, OperandKind.WRITTEN, OperandKind.LAMBDA):
        return value
    target = _TARGETS[kind]
    if is_null(type):
        return null(target)
    if isinstance(value.constant, str) and kind in _IN_QUOTES:
        return cast(context, place, value, target)
    if _ACCEPTS[kind](type):
        if kind is OperandKind.BYTES:
            return as_bytes(value)
        value = within_range(value)
        return value if kind is OperandKind.CLOCK else cast(context, place, value, target)
    raise context.unsupported(place, f"{typed_name(value)} where {kind.value} is wanted", CAST_IT)


def as_bytes(value: Scalar) -> Scalar:
    """A STRING or BINARY as BINARY."""
    return strict(f"encode({value.sql})", pa.binary(), (value,)) if is_string(value.type) else value


def as_instant(context: Context, place: Place, value: Scalar) -> Scalar:
    """A DATE or any TIMESTAMP as TIMESTAMP in the session's time zone."""
    if not (_is_day(value.type) or is_null(value.type) or isinstance(value.constant, str)):
        raise context.unsupported(place, f"{typed_name(value)} where {OperandKind.MOMENT.value} is wanted", CAST_IT)
    return cast(context, place, value, pa.timestamp("us", tz=context.timezone))


def _is_int(type: pa.DataType) -> bool:
    return is_integer(type) and type != pa.int64()


def _is_day(type: pa.DataType) -> bool:
    return is_date(type) or is_wall_clock(type) or is_instant(type)


def _is_bytes(type: pa.DataType) -> bool:
    return bool(type == pa.binary())


_TARGETS = {
    OperandKind.STRING: pa.string(),
    OperandKind.INT: pa.int32(),
    OperandKind.WHOLE: pa.int64(),
    OperandKind.DOUBLE: pa.float64(),
    OperandKind.BINARY: pa.binary(),
    OperandKind.BYTES: pa.binary(),
    OperandKind.CONDITION: pa.bool_(),
    OperandKind.DATE: pa.date32(),
    OperandKind.CLOCK: pa.timestamp("us"),
    OperandKind.INSTANT: pa.timestamp("us", tz="UTC"),
    OperandKind.MOMENT: pa.timestamp("us", tz="UTC"),
}
_ACCEPTS: Mapping[OperandKind, Callable[[pa.DataType], bool]] = {
    OperandKind.STRING: lambda type: duck_name(type) is not None and not (is_nested(type) or _is_bytes(type)),
    OperandKind.INT: _is_int,
    OperandKind.WHOLE: is_integer,
    OperandKind.DOUBLE: is_numeric,
    OperandKind.BINARY: _is_bytes,
    OperandKind.BYTES: lambda type: is_string(type) or _is_bytes(type),
    OperandKind.CONDITION: is_boolean,
    OperandKind.DATE: _is_day,
    OperandKind.CLOCK: lambda type: is_wall_clock(type) or is_instant(type),
    OperandKind.INSTANT: is_instant,
    OperandKind.MOMENT: _is_day,
}
_IN_QUOTES = frozenset({OperandKind.DATE, OperandKind.INSTANT, OperandKind.MOMENT})


def constant_text(context: Context, place: Place, name: str, value: Scalar) -> str:
    """An operand that must be written as a string in quotes."""
    if not isinstance(value.constant, str):
        raise context.unsupported(place, f"{name}() by a computed unit", "Write the unit in quotes.")
    return value.constant
