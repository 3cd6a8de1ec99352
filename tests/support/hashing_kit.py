"""Keys of all types that Spark can hash, by lot."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

MICROS_UTC = pa.timestamp("us", tz="UTC")
MICROS = pa.timestamp("us")


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    digits = st.integers(0, precision).flatmap(lambda n: st.integers(-(10**n) + 1, 10**n - 1))
    return digits.map(lambda unscaled: Decimal(f"{unscaled}E-{scale}"))


def texts() -> st.SearchStrategy[str]:
    """Short ones, and ones of up to hundreds of bytes."""
    return st.text(max_size=20) | st.builds(str.__mul__, st.text(min_size=1, max_size=9), st.integers(0, 40))


# What Spark and we can key on. Dates and timestamps are drawn as the numbers that they are.
KEY_VALUES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), integers(8)),
    (pa.int16(), integers(16)),
    (pa.int32(), integers(32)),
    (pa.int64(), integers(64)),
    (pa.float32(), st.floats(width=32) | st.sampled_from([0.0, -0.0])),
    (pa.float64(), st.floats() | st.sampled_from([0.0, -0.0])),
    (pa.decimal128(9, 2), decimals(9, 2)),
    (pa.decimal128(18, 0), decimals(18, 0)),
    (pa.decimal128(19, 4), decimals(19, 4)),
    (pa.decimal128(38, 10), decimals(38, 10)),
    (pa.string(), texts()),
    (pa.binary(), st.binary(max_size=70)),
    (pa.date32(), st.integers(-700_000, 2_900_000)),
    (MICROS_UTC, st.integers(-(10**16), 10**17)),
    (MICROS, st.integers(-(10**16), 10**17)),
]
