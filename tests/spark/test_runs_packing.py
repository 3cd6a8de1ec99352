"""Packing rows for the shuffle, and unpacking them in order, against plain Python."""

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.hashing import hash64
from upriver.plan.plan import TableSpec
from upriver.spark.runs import SHELVES_PER_GROUP, KeySlice, Lot, RunWriter, Shelves, in_order, pack, sorted_lots, unpack
from upriver.vnodes import vnodes_of

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("tags", pa.list_(pa.int32()))])
FLOATS = st.none() | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -1.5, 5e-324])
ROWS = st.lists(
    st.tuples(
        st.none() | st.sampled_from("abcdefgh"),
        st.none() | st.integers(-3, 3),
        FLOATS,
        st.none() | st.lists(st.integers(0, 9), max_size=2),
    ),
    min_size=1,
    max_size=40,
)
SHELVES = st.tuples(st.sampled_from([1, 2, 16, 256]), st.integers(1, 5)).map(lambda v: Shelves(v[0], min(v)))


def table(rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def shuffled(packed: list[pa.RecordBatch], partition: int) -> list[pa.RecordBatch]:
    """What one task gets from Spark: its partition's values, by shelf."""
    whole = pa.Table.from_batches(packed)
    mine = whole.filter(pa.array([number == partition for number in whole.column("partition").to_pylist()]))
    batches: list[pa.RecordBatch] = mine.sort_by("shelf").to_batches()
    return batches


def spark_order(row: dict[str, Any], order_by: list[str]) -> tuple[Any, ...]:
    """Nulls first, NaN last, -0.0 equal to 0.0."""
    keys: list[Any] = [row["hash64"]]
    for name in order_by:
        value = row[name]
        is_nan = isinstance(value, float) and math.isnan(value)
        keys.append((value is not None, is_nan, 0 if value is None or is_nan else value))
    return tuple(keys)


@given(st.lists(ROWS, min_size=1, max_size=3), SHELVES, st.sampled_from([[], ["n"], ["x", "n"], ["n", "k"]]))
def test_each_index_gets_every_row_once_in_order(
    batches: list[list[tuple[Any, ...]]], shelves: Shelves, order_by: list[str]
) -> None:
    indexes = [("k",), ("n", "x")]
    packed = [part for rows in batches for part in pack(table(rows), SCHEMA, dict(enumerate(indexes)), shelves)]
    expected = sorted(repr(row) for rows in batches for row in table(rows).to_pylist())
    for number, key in enumerate(indexes):
        found: list[dict[str, Any]] = []
        for group in range(shelves.groups):
            parts = list(unpack(shuffled(packed, number * shelves.groups + group), SCHEMA, order_by))
            rows = [row for part in parts for row in part.to_pylist()]
            hashes = [hash64([part.column(name) for name in key], part.num_rows) for part in parts]
            assert [row["hash64"] for row in rows] == [int(value) for part in hashes for value in part]
            assert [spark_order(row, order_by) for row in rows] == sorted(spark_order(row, order_by) for row in rows)
            found += rows
        assert sorted(repr({k: v for k, v in row.items() if k != "hash64"}) for row in found) == expected


@pytest.mark.smoke
@pytest.mark.parametrize(("vnodes", "groups"), [(1, 1), (2, 2), (256, 1), (256, 7), (65_536, 1000)])
def test_a_shelf_is_a_range_of_vnodes_of_one_group(vnodes: int, groups: int) -> None:
    shelves = Shelves(vnodes, groups)
    hashes = hash64([pa.array(range(20_000))])
    for vnode, shelf in zip(vnodes_of(hashes, vnodes).tolist(), shelves.of(hashes).tolist(), strict=True):
        assert shelf // shelves.per_group == vnode * groups // vnodes
    assert shelves.per_group == max(1, min(SHELVES_PER_GROUP, vnodes // groups))


@given(ROWS, st.lists(st.integers(0, 40), max_size=4), st.sampled_from([(), ("n",), ("x", "n")]))
def test_chunks_that_lie_on_disk_are_merged_as_if_all_were_sorted_at_once(
    rows: list[tuple[Any, ...]], ends: list[int], order_by: tuple[str, ...]
) -> None:
    """So rows that tie stay in their order."""
    whole, cuts = table(rows), sorted(min(end, len(rows)) for end in ends)
    chunks = [whole.slice(first, end - first) for first, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    spec, lots = TableSpec("t", SCHEMA, ("k",), order_by), (Lot(1, ("k",)), Lot(1, ("n", "k")))
    writer = RunWriter(root="", table=spec, lots=lots, vnodes=16, groups=1)
    merged = [pa.Table.from_batches(ordered) for ordered in sorted_lots(writer, [each for each in chunks if len(each)])]
    assert [str(each.to_pylist()) for each in merged] == [
        str(in_order(whole, SCHEMA, lot.index, order_by).to_pylist()) for lot in lots
    ]


@given(ROWS, st.integers(1, 5), st.integers(1, 40))
def test_slices_are_sets_of_keys_by_spark_s_hash(rows: list[tuple[Any, ...]], of: int, chunk: int) -> None:
    """``pmod(xxhash64(k), of)``, of a signed hash."""
    whole, spec = table(rows), TableSpec("t", SCHEMA, ("k",), ("n",))
    cut = [Lot(number, ("n",), KeySlice(number, of)) for number in range(of)]
    writer = RunWriter(root="", table=spec, lots=(*cut, Lot(9, ("k",))), vnodes=16, groups=1)
    chunks = [whole.slice(start, chunk) for start in range(0, len(rows), chunk)]
    lots = [[row for part in ordered for row in part.to_pylist()] for ordered in sorted_lots(writer, chunks)]
    *slices, all_rows = lots or [[] for _ in writer.lots]
    numbers = [(value - (value >> 63 << 64)) % of for value in hash64([whole.column("k")], len(whole)).tolist()]
    for number, found in enumerate(slices):
        mine = whole.filter(pa.array([each == number for each in numbers], pa.bool_()))
        expected = in_order(mine, SCHEMA, ("n",), ("n",)).to_pylist() if len(mine) else []
        assert str(found) == str(expected)
    assert len(all_rows) == len(rows)
