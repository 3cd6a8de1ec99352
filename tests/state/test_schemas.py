"""Rows of an older schema in a newer one, and runs that have one, read whole and in parts."""

from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from upriver.errors import LakeError
from upriver.state.schemas import SchemaChange, can_become, places_of

OLD = pa.schema(
    [
        ("gone", pa.string()),
        ("n", pa.int8()),
        ("x", pa.float32()),
        ("d", pa.decimal128(4, 2)),
        ("day", pa.date32()),
        ("same", pa.string()),
    ]
)
NEW = pa.schema(
    [
        ("same", pa.string()),
        ("n", pa.int64()),
        ("note", pa.list_(pa.string())),
        ("x", pa.float64()),
        ("d", pa.decimal128(20, 5)),
        ("day", pa.timestamp("us")),
    ]
)
ROWS = [
    {"gone": "g", "n": -128, "x": 0.5, "d": Decimal("-99.99"), "day": date(1, 1, 1), "same": "s"},
    dict.fromkeys(OLD.names),
]


def test_columns_are_widened_added_left_out_and_reordered() -> None:
    rows = pa.RecordBatch.from_pylist(ROWS, OLD)
    changed = SchemaChange.between(OLD, NEW).of(rows)
    assert changed.schema.equals(NEW)
    first = {"same": "s", "n": -128, "note": None, "x": 0.5, "d": Decimal("-99.99000"), "day": datetime(1, 1, 1)}
    assert changed.to_pylist() == [first, dict.fromkeys(NEW.names)]
    assert changed.column(0).buffers()[2].address == rows.column(5).buffers()[2].address
    part = SchemaChange.between(OLD, NEW).of(rows.slice(1))
    assert part.to_pylist() == [dict.fromkeys(NEW.names)]


def test_a_float_becomes_the_double_of_the_same_value() -> None:
    old, new = pa.schema([("x", pa.float32())]), pa.schema([("x", pa.float64())])
    values = np.array([0.1, np.nan, np.inf, -0.0, 1e-45], np.float32)
    changed = SchemaChange.between(old, new).of(pa.RecordBatch.from_arrays([pa.array(values)], schema=old))
    assert changed.column(0).to_numpy().tobytes() == values.astype(np.float64).tobytes()


def test_a_date_beyond_all_timestamps_is_an_error_that_names_the_column() -> None:
    old, new = pa.schema([("day", pa.date32())]), pa.schema([("day", pa.timestamp("us"))])
    late = pa.array([2**31 - 1], pa.int32()).cast(pa.date32())
    with pytest.raises(LakeError, match="column 'day': a DATE cannot be TIMESTAMP_NTZ"):
        SchemaChange.between(old, new).of(pa.RecordBatch.from_arrays([late], schema=old))


@pytest.mark.parametrize(("columns", "expected"), [(NEW.names, [5, 1, 2, 3, 4]), (["note"], []), ([], [])])
def test_the_places_of_columns(columns: Iterable[str], expected: list[int]) -> None:
    assert places_of(list(columns), OLD) == expected


def test_no_type_becomes_narrower() -> None:
    assert can_become(OLD, NEW)
    assert not can_become(NEW, OLD)
    assert can_become(OLD, OLD)
    assert can_become(pa.schema([]), NEW)
