"""Hashes of values of any type, as Spark has them: ``hash`` and ``xxhash64``, and ``crc32``."""

from collections.abc import Callable

import pyarrow as pa

from upriver.plan.relation import Scalar, any_fails
from upriver.plan.source import Place
from upriver.plan.types import (
    is_boolean,
    is_date,
    is_decimal,
    is_instant,
    is_integer,
    is_null,
    is_string,
    is_wall_clock,
)
from upriver.sql.functions.scalars import Context, literal, never_null, typed_name
from upriver.sql.functions.signatures import Function, OperandKind, Operands, Special

_LONG_DIGITS = 18
"""Digits of a DECIMAL that is hashed as a BIGINT."""


def _as_whole(value: Scalar) -> tuple[str, str] | None:
    """The type of the integer that a value is hashed as, and its DuckDB SQL; ``None`` for other types."""
    type, sql = value.type, value.sql
    if is_date(type):
        return "integer", f"CAST({sql} - DATE '1970-01-01' AS INTEGER)"
    if is_instant(type) or is_wall_clock(type):
        return "bigint", f"epoch_us({sql})"
    if is_decimal(type) and type.precision <= _LONG_DIGITS:
        return "bigint", f"CAST(replace(CAST({sql} AS VARCHAR), '.', '') AS BIGINT)"
    if type == pa.int64():
        return "bigint", sql
    return ("integer", f"CAST({sql} AS INTEGER)") if is_integer(type) or is_boolean(type) else None


def _hashed(seed: Scalar, how: Callable[[Scalar], tuple[str, str] | None]) -> Special:
    """Of each operand, with the hash of those before it as the seed. how: the kernel of an operand, and its SQL."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        sql = seed.sql
        for value in operands:
            if is_null(value.type):
                continue
            found = how(value)
            if found is None:
                raise context.unsupported(place, f"a hash of {typed_name(value)}", "CAST it to a type that has one.")
            sql = f"{found[0]}({sql}, {found[1]})"
        return never_null(Scalar(sql, seed.type, any_fails(operands)))

    return rule


def _xxhash(value: Scalar) -> tuple[str, str] | None:
    whole = _as_whole(value)
    if whole is not None:
        return f"kernel_xxhash_{whole[0]}", whole[1]
    names = {pa.float32(): "float", pa.float64(): "double", pa.string(): "varchar", pa.binary(): "blob"}
    name = names.get(value.type)
    return None if name is None else (f"kernel_xxhash_{name}", value.sql)


def hash_of(context: Context, place: Place, value: Scalar) -> Scalar:
    """``xxhash64(value)``."""
    return _hashed(literal(42, pa.int64()), _xxhash)(context, place, (value,))


def _murmur(value: Scalar) -> tuple[str, str] | None:
    whole = _as_whole(value)
    if whole is not None:
        return f"kernel_hash_{whole[0]}", whole[1]
    if is_string(value.type) or value.type == pa.binary():
        return "kernel_hash_blob", f"encode({value.sql})" if is_string(value.type) else value.sql
    name = {pa.float32(): "float", pa.float64(): "double"}.get(value.type)
    return None if name is None else (f"kernel_hash_{name}", value.sql)


_SAMPLES = (
    "i",
    "l, s",
    "s",
    "x",
    "f",
    "d, n",
    "t",
    "b, y, h",
    "p",
    "bin",
    "k, u",
    "lmax, imax, ymax",
    "z, w",
    "NULL, i",
)


def _samples(name: str) -> str:
    return "; ".join(f"{name}({operands})" for operands in _SAMPLES)


HASHES: tuple[Function, ...] = (
    Function(
        "xxhash64",
        (OperandKind.ANY,),
        _hashed(literal(42, pa.int64()), _xxhash),
        "BIGINT",
        repeats=True,
        nulls="never",
        samples=_samples("xxhash64"),
    ),
    Function(
        "hash",
        (OperandKind.ANY,),
        _hashed(literal(42, pa.int32()), _murmur),
        "INT",
        repeats=True,
        nulls="never",
        samples=_samples("hash"),
    ),
    Function("crc32", (OperandKind.BYTES,), "kernel_crc32({0})", pa.int64(), samples="crc32(s); crc32(bin); crc32(k)"),
)
"""Hashes of values."""
