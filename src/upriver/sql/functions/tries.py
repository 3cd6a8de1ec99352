"""``try_add``, ``try_cast`` and their kin: NULL where the function without ``try_`` raises.

An error of an operand is raised all the same, so operands that can fail are computed outside.
"""

import re
from dataclasses import replace

import pyarrow as pa

from upriver.engine.kernels import OR_NULL
from upriver.engine.macros import LENIENT, lenient_name
from upriver.plan.relation import Scalar, any_fails
from upriver.plan.source import Place
from upriver.plan.types import is_date, is_instant, is_string, is_wall_clock
from upriver.sql.functions.casts import cast, check_word
from upriver.sql.functions.scalars import Context, intolerant
from upriver.sql.functions.signatures import Operands, Special

_OF_TEXT = re.compile(r"^(kernel_\w+_of_text)\(")
_PARTS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")+"|\b(spark_\w+|kernel_decimal_\w+)(?=\()""")


def tried(build: Special) -> Special:
    """The rule of a function with ``try_``, from that of the function without it."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        apart = any_fails(operands)
        taken = [
            replace(one, sql=f"w.w{number}", fails=False, nulls=None) if apart and one.constant is None else one
            for number, one in enumerate(operands)
        ]
        value = build(context, place, taken)
        sql = or_null(value.sql) if value.fails else value.sql
        if apart:
            given = ", ".join(f"'w{number}': {one.sql}" for number, one in enumerate(operands) if one.constant is None)
            sql = f"list_transform([{{{given}}}], lambda w: {sql})[1]"
        return intolerant(Scalar(sql, value.type, apart), operands)

    return rule


def tried_cast(type: pa.DataType) -> Special:
    """The rule of ``TRY_CAST`` to a type."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        (value,) = operands
        if is_string(value.type) and (is_instant(type) or is_wall_clock(type) or is_date(type)):
            if isinstance(value.constant, str):
                check_word(context, place, value.constant, type)
                value = replace(value, constant=None)
            if not is_date(type):  # outside of TRY, which hides also what the kernel cannot compute
                read = cast(context, place, value, type)
                return replace(read, sql=_OF_TEXT.sub(rf"\1{OR_NULL}(", read.sql, count=1))
        operands = (value,)
        return tried(lambda context, place, operands: cast(context, place, operands[0], type))(context, place, operands)

    return rule


def or_null(sql: str) -> str:
    """The DuckDB SQL with NULL in place of its errors. DuckDB's TRY accepts no ``error()``, so macros that call it are
    replaced by those that give NULL instead."""
    return f"TRY({_PARTS.sub(_tolerant, sql)})"


def _tolerant(part: re.Match[str]) -> str:
    name = part[1]
    if name is None:
        return part[0]
    if name.startswith("kernel_"):
        return name if name.endswith(OR_NULL) else f"{name}{OR_NULL}"
    return lenient_name(name) if name in LENIENT else name
