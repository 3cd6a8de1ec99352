"""A scalar expression on its way from Spark SQL to DuckDB SQL, and the context in which it is translated.

An expression that depends on no row is computed while a view is declared.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from typing import Final

import pyarrow as pa

from upriver.engine.expressions import Evaluator
from upriver.errors import RowError, UnsupportedSql
from upriver.plan.column_names import columns_in, quoted
from upriver.plan.plan import USER_PREFIX, Projection
from upriver.plan.relation import Constant, Scalar, any_fails
from upriver.plan.source import ELSEWHERE, Place, Source
from upriver.plan.types import DECIMAL_DIGITS_MAX, duck_name, is_floating, is_null, spark_name
from upriver.sql.functions.nested_values import remade
from upriver.state.columns import has_floats

ANSWERS_MAX = 1_024
"""Expressions whose results are cached: opening an evaluator takes some milliseconds."""
_VALUE = "value"


@lru_cache(ANSWERS_MAX)
def why_failing(expression: str, type: pa.DataType) -> str | None:
    """Why an expression without columns fails; ``None`` if it gives a value. type: of the value."""
    evaluator = Evaluator()
    row = pa.record_batch({"row": [0]})
    try:
        evaluator.without_row_text().project(row, Projection((expression,), pa.schema([(_VALUE, type)])))
    except RowError as error:
        return str(error).removeprefix(f"column {_VALUE}: ")
    finally:
        evaluator.close()
    return None


@lru_cache(ANSWERS_MAX)
def refuses_nulls(condition: str, columns: pa.Schema) -> bool:
    """Whether a condition on these columns is not true when all of them are NULL."""
    if USER_PREFIX in condition:
        return False
    evaluator = Evaluator()
    row = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in columns], schema=columns)
    try:
        return not evaluator.without_row_text().mask(row, condition).any()
    except RowError:
        return False
    finally:
        evaluator.close()


TRUE: Final = Scalar("TRUE", pa.bool_(), nulls=frozenset())
FALSE: Final = Scalar("FALSE", pa.bool_(), nulls=frozenset())
TEXT_CHARS_MAX: Final = 100_000
"""Characters of one translated expression. Some constructs repeat their operands, so nested ones can explode."""


UTC_ZONES = frozenset(
    {"UTC", "ETC/UTC", "GMT", "ETC/GMT", "Z", "UTC+00:00", "+00:00", "GMT0", "ZULU", "ETC/UCT", "UCT"}
)


@dataclass(frozen=True, slots=True)
class Context:
    """The context of an expression. timezone: the Spark session's."""

    source: Source
    timezone: str

    def checked(self, place: Place, scalar: Scalar, is_conditional: bool) -> Scalar:
        """The scalar, unless it is too large, or a constant that fails. is_conditional: whether it stands inside a
        construct that may skip it."""
        if len(scalar.sql) > TEXT_CHARS_MAX:
            raise self.unsupported(
                place, "an expression as large as this", "Compute it in steps, or " + _lower(ELSEWHERE)
            )
        is_constant = not columns_in(scalar.sql) and USER_PREFIX not in scalar.sql
        if scalar.fails and is_constant and not is_conditional:
            self._check_constant(place, scalar)
        return scalar

    def _check_constant(self, place: Place, scalar: Scalar) -> None:
        """Refuse an expression that fails for every row."""
        why = why_failing(scalar.sql, scalar.type)
        if why is not None:
            raise self.source.wrong(place, f"this fails for every row: {why}", "Write NULL, if that is meant.")

    def unsupported(self, place: Place, what: str, instead: str) -> UnsupportedSql:
        """The error. An interval cannot be cast, whatever the way out is for other types."""
        return self.source.unsupported(place, what, _NUMBER if _INTERVAL in what else instead)

    def need_utc(self, place: Place, what: str) -> None:
        """Refuse an expression that reads the wall clock of a TIMESTAMP, unless the session's zone is UTC."""
        if self.timezone.upper() not in UTC_ZONES:
            raise self.unsupported(
                place,
                f"{what} depends on the session's time zone ({self.timezone}), which",
                "Set spark.sql.session.timeZone to UTC, or use TIMESTAMP_NTZ.",
            )


_INTERVAL = spark_name(pa.duration("us"))
_NUMBER = "Take a number in its place: timestampdiff(SECOND, a, b)."


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def column_scalar(name: str, type: pa.DataType) -> Scalar:
    return Scalar(quoted(name), type)


def string_sql(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def literal(value: Constant, type: pa.DataType) -> Scalar:
    """A constant of exactly this type."""
    if isinstance(value, str):
        return Scalar(string_sql(value), type, constant=value)
    if isinstance(value, bool):
        return Scalar("TRUE" if value else "FALSE", type, constant=value)
    text = f"'{value}'" if isinstance(value, float) else str(value)
    if isinstance(value, Decimal):
        text = format(value, "f")
        if sum(map(str.isdigit, text)) > DECIMAL_DIGITS_MAX:  # with a zero before its point; DuckDB would make a DOUBLE
            text = f"'{text}'"
    return Scalar(f"CAST({text} AS {duck_name(type)})", type, constant=value)


def null(type: pa.DataType) -> Scalar:
    name = duck_name(type)
    return Scalar("NULL" if name is None else f"CAST(NULL AS {name})", type)


def is_nothing(value: Scalar) -> bool:
    """Whether it is NULL as it is written, whatever its type."""
    return is_null(value.type) or value.sql == null(value.type).sql


def macro(name: str, *operands: str) -> str:
    """A call of one of our macros (:mod:`upriver.engine.expressions`), as DuckDB SQL.

    A macro repeats its operands. So an operand that calls a macro or a kernel itself is computed once, and passed as
    part of a list of one element. Otherwise nested calls would grow exponentially.
    """
    if not any("spark_" in operand or "kernel_" in operand for operand in operands):
        return f"{name}({', '.join(operands)})"
    bound = [number for number, operand in enumerate(operands) if not _IN_QUOTES.fullmatch(operand)]
    given = ", ".join(f"'v{number}': {operands[number]}" for number in bound)
    taken = ", ".join(f"v.v{number}" if number in bound else operand for number, operand in enumerate(operands))
    return f"list_transform([{{{given}}}], lambda v: {name}({taken}))[1]"


def group_value(value: Scalar) -> Scalar:
    """The value that Spark groups by: one zero and one NaN, in structs and arrays too."""
    if not has_floats(value.type):
        return value
    return Scalar(remade(value.sql, value.type, _group_leaf), value.type, value.fails)


def _group_leaf(sql: str, type: pa.DataType) -> str:
    return f"CAST({macro('spark_group', sql)} AS {duck_name(type)})" if is_floating(type) else sql


_IN_QUOTES = re.compile(r"'(?:[^']|'')*'")
"""DuckDB needs some operands as constants."""


def strict(sql: str, type: pa.DataType, operands: Iterable[Scalar], fails: bool = False) -> Scalar:
    """An expression that is NULL exactly if an operand is, and that Spark calls null-intolerant. fails: whether it can
    fail where its operands do not."""
    operands = tuple(operands)
    nulls = frozenset[str]().union(*(operand.null_by for operand in operands))
    return intolerant(Scalar(sql, type, fails or any_fails(operands), nulls=nulls), operands)


def intolerant(value: Scalar, operands: Iterable[Scalar]) -> Scalar:
    """A value that Spark calls null-intolerant; it may be NULL where no operand is. An operand that tests for NULL is
    never NULL itself, so it says nothing of what it tests."""
    operands = tuple(operands)
    rejected = frozenset[str]().union(*(operand.rejects for operand in operands if not operand.is_test))
    return replace(value, rejected=rejected, whole=all(operand.is_whole for operand in operands))


def opaque(value: Scalar) -> Scalar:
    """A value into which Spark does not look for columns that must not be NULL."""
    return replace(value, rejected=frozenset(), whole=False)


def never_null(value: Scalar) -> Scalar:
    return replace(value, nulls=frozenset())


def in_order(*operands: Scalar) -> tuple[Scalar, ...]:
    """The operands of a strict expression, in the order in which Spark evaluates them. Spark stops at the first NULL.
    So an operand that can fail is computed only if those before it are not NULL."""
    taken: list[Scalar] = []
    before: frozenset[str] = frozenset()
    for operand in operands:
        nulls = operand.null_by
        if operand.fails and before:
            are_null = " OR ".join(f"{sql} IS NULL" for sql in sorted(before))
            operand = replace(operand, sql=f"CASE WHEN {are_null} THEN NULL ELSE {operand.sql} END", nulls=nulls)
        before |= nulls
        taken.append(operand)
    return tuple(taken)


def typed_name(scalar: Scalar) -> str:
    """The type of a value, for a message."""
    return "NULL" if is_null(scalar.type) else spark_name(scalar.type)
