"""hash64 against Spark itself: Hypothesis makes tables of all key types, Spark hashes them, one job a table."""

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hashing_kit import KEY_VALUES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from upriver.hashing import hash64

ROWS = 25
NAMES = [f"c{place}" for place in range(len(KEY_VALUES))]


@st.composite
def key_tables(draw: st.DrawFn) -> pa.Table:
    """A column of each key type, with nulls."""
    columns = [
        pa.array(draw(st.lists(st.none() | values, min_size=ROWS, max_size=ROWS)), type) for type, values in KEY_VALUES
    ]
    return pa.table(columns, names=NAMES)


@pytest.mark.spark
@settings(
    derandomize=True,
    deadline=None,
    max_examples=12,
    suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow],
)
@given(table=key_tables(), order=st.permutations(NAMES))
def test_equals_spark(spark: Any, table: pa.Table, order: list[str]) -> None:
    """Every column alone, every two neighbours, and all of them in some order."""
    keys = [[name] for name in NAMES] + [list(pair) for pair in itertools.pairwise(order)] + [order]
    # Without the coalesce, the optimizer would fold a local table by interpreting: jobs run compiled code.
    rows = spark.createDataFrame(table).coalesce(1)
    hashes = rows.selectExpr(*(f"xxhash64({','.join(key)})" for key in keys)).toArrow()
    for key, signed in zip(keys, hashes.columns, strict=True):
        ours = hash64([table[name] for name in key])
        spark_hashes = [number % 2**64 for number in signed.to_pylist()]
        assert ours.tolist() == spark_hashes, key
