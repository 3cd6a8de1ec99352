"""Values that Spark can hold and that are awkward elsewhere, of every type that a column can have."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

NAN, INF = float("nan"), float("inf")
NANS = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001], np.uint64).view(np.float64)
"""Of several bits."""
DAYS_MAX, MICROS_MAX = 2**31 - 1, 2**63 - 1
FAR_DAYS = [2_932_897, -719_529, -719_528, DAYS_MAX, -DAYS_MAX, -DAYS_MAX - 1, DAYS_MAX - 1, 0, -719_163, 2_932_896]
"""Of the years 10000, -1, 0, and at the ends of the range; then of 1970 and where Python's calendar ends."""
FAR_MICROS = [day * 86_400_000_000 + 1 for day in FAR_DAYS[:3]]
FAR_MICROS += [MICROS_MAX, -MICROS_MAX, -MICROS_MAX - 1, MICROS_MAX - 1, 0, -62_135_596_800_000_000, 1_500_000]
BYTES = [b"a\xffb", b"ok", b"\xc3", b"\xff", b"", b"\x00", b"\x1b[31m\n", b"x" * 3000, "ΑΣ".encode(), None]
"""Of texts; the first few are no UTF-8."""


def text(values: Sequence[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary()).view(pa.string())


def dates(days: Sequence[int | None]) -> pa.Array:
    return pa.array(days, pa.int32()).view(pa.date32())


def times(micros: Sequence[int | None], zone: str | None = None) -> pa.Array:
    return pa.array(micros, pa.int64()).view(pa.timestamp("us", zone))


def awkward(zone: str = "UTC") -> pa.Table:
    """Ten rows: ``id`` numbers them, ``v`` is 0 in every third, and each other column is named after its type."""
    k, d, t = text(BYTES), dates(FAR_DAYS), times(FAR_MICROS, zone)
    ones = pa.array(range(11), pa.int32())
    columns: dict[str, Any] = {
        "id": pa.array(range(10), pa.int32()),
        "v": pa.array([row % 3 for row in range(10)], pa.int32()),
        "y": pa.array([127, -128, None, 0, 1, -1, 2, 3, 4, 5], pa.int8()),
        "l": pa.array([2**63 - 1, -(2**63), None, 0, 1, -1, 2, 3, 4, 5], pa.int64()),
        "f": pa.array([NAN, INF, -INF, -0.0, 0.0, None, 3e38, 1e-45, 1.5, -1.5], pa.float32()),
        "x": pa.array([NAN, INF, -INF, -0.0, 0.0, None, 1e308, 5e-324, *NANS[1:]], pa.float64()),
        "p": pa.array([Decimal(sign + "9" * 38) for sign in ("", "-")] + [None] + [Decimal(row) for row in range(7)],
                      pa.decimal128(38, 0)),
        "b": pa.array([True, False, None] * 3 + [True], pa.bool_()),
        "z": pa.array([b"\x00\xff", b"", None, b"a"] * 2 + [b"b" * 300, b"\xff" * 3], pa.binary()),
        "k": k,
        "d": d,
        "n": times(FAR_MICROS),
        "t": t,
        "a": pa.ListArray.from_arrays(ones, d),
        "m": pa.MapArray.from_arrays(ones, k.fill_null("none"), t),
        "r": pa.StructArray.from_arrays([k, d, t], names=["k", "d", "t"]),
    }  # fmt: skip
    return pa.table(columns)
