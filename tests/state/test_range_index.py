"""RangeIndex against a search of all members: whatever the ranges, the levels and the dead."""

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY

from upriver.state import range_index
from upriver.state.range_index import FANOUT, LEAST, MOST, Intervals, RangeIndex, range_cells
from upriver.state.vectors import Slots


class Members:
    """All members, without an index. Numbers are drawn from ``values``, so that many are equal."""

    def __init__(self, seed: int, columns: int, owners: int, values: int) -> None:
        self.random = np.random.default_rng(seed)
        self.columns, self.owner_count, self.values = columns, owners, values
        self.owners = np.empty(0, np.int64)
        self.intervals = Intervals(np.empty((columns, 0), np.int64), np.empty((columns, 0), np.int64))
        self.alive = np.empty(0, np.bool_)

    def drawn(self, count: int, unknown: float) -> Intervals:
        """Values of so many members; a part of the members has unknown values."""
        cells = self.random.integers(0, self.values, (self.columns, count))
        all_of_it = self.random.random(count) < unknown
        return Intervals(np.where(all_of_it, LEAST, cells), np.where(all_of_it, MOST, cells))

    def add(self, index: RangeIndex, count: int, unknown: float) -> None:
        slots = np.arange(len(self.owners), len(self.owners) + count)
        owners, intervals = self.random.integers(0, self.owner_count, count), self.drawn(count, unknown)
        index.insert(owners, slots, intervals)
        self.owners = np.concatenate([self.owners, owners])
        self.intervals = Intervals(
            np.concatenate([self.intervals.least, intervals.least], axis=1),
            np.concatenate([self.intervals.most, intervals.most], axis=1),
        )
        self.alive = np.concatenate([self.alive, np.ones(count, np.bool_)])

    def living(self, slots: Slots) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return self.alive[slots]

    def check(self, index: RangeIndex, count: int) -> None:
        owners = np.sort(self.random.integers(0, self.owner_count + 1, count))
        ends = self.random.integers(-1, self.values + 1, (2, self.columns, count))
        open_ends = self.random.random((2, self.columns, count)) < 0.3
        ranges = Intervals(np.where(open_ends[0], LEAST, ends[0]), np.where(open_ends[1], MOST, ends[1]))
        found = [
            pair
            for places, slots in index.find(owners, ranges, self.living)
            for pair in zip(places, slots, strict=True)
        ]
        met = (self.owners == owners[:, None]) & self.alive
        for column in range(self.columns):
            met &= self.intervals.least[column] <= ranges.most[column][:, None]
            met &= self.intervals.most[column] >= ranges.least[column][:, None]
        living = sorted((int(place), int(slot)) for place, slot in found if self.alive[slot])
        assert living == list(zip(*(part.tolist() for part in np.nonzero(met)), strict=True))


@MANY
@given(
    seed=st.integers(0, 2**32),
    columns=st.integers(1, 3),
    owners=st.sampled_from([1, 3, 50]),
    sizes=st.lists(st.sampled_from([0, 1, 5, 40, 300, 1500]), min_size=1, max_size=4),
    unknown=st.sampled_from([0.0, 0.0, 0.05]),
)
def test_it_finds_what_is_in_the_ranges(seed: int, columns: int, owners: int, sizes: list[int], unknown: float) -> None:
    index, members = RangeIndex(), Members(seed, columns, owners, 100)
    for size in sizes:
        members.add(index, size, unknown)
        members.check(index, 20)
        members.alive &= members.random.random(len(members.alive)) < 0.7
    members.check(index, 20)


def test_many_pairs_come_some_at_a_time() -> None:
    members, index = Members(1, 1, 1, 10), RangeIndex()
    members.add(index, 3000, 0.0)
    everything = Intervals(np.full((1, 200), LEAST), np.full((1, 200), MOST))
    blocks = [len(slots) for _, slots in index.find(np.zeros(200, np.int64), everything, members.living)]
    assert sum(blocks) == 200 * 3000
    assert max(blocks) <= range_index.BLOCKS_MAX * (FANOUT + 1)


def test_members_that_are_gone_are_forgotten_with_their_level() -> None:
    index, alive = RangeIndex(), np.zeros(40_000, np.bool_)
    for start in range(0, 40_000, 1000):
        alive[:] = False
        alive[start : start + 1000] = True
        cells = np.arange(start, start + 1000)[None, :]
        index.insert(np.zeros(1000, np.int64), cells[0], Intervals(cells, cells))
        everything = Intervals(np.full((1, 1), LEAST), np.full((1, 1), MOST))
        found = [slots for _, slots in index.find(np.zeros(1, np.int64), everything, lambda slots: alive[slots])]
        assert sum(map(len, found)) <= 6000
    assert index.nbytes < 40_000 * 8


@pytest.mark.parametrize(
    "values",
    [
        pa.array([-128, -1, 0, 127], pa.int8()),
        pa.array([-(2**63), -1, 0, 2**63 - 1], pa.int64()),
        pa.array([-math.inf, -1.5, -0.0, 0.0, 5e-324, 2.5, math.inf, math.nan, -math.nan], pa.float64()),
        pa.array([-math.inf, -1.5, -0.0, 0.0, 2.5, math.inf, math.nan], pa.float32()),
        pa.array([-(2**31), -1, 0, 2**31 - 1], pa.int32()).cast(pa.date32()),
        pa.array([-(2**63), -1, 0, 2**63 - 1], pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array([Decimal("-99999999.99"), Decimal("-0.01"), Decimal(0), Decimal("99999999.99")], pa.decimal128(10, 2)),
        pa.array(
            [Decimal(text) for text in ("-1e37", "-18446744073709551617", "-2e18", "-1", "0", "1", "2e18", "1e37")],
            pa.decimal128(38, 0),
        ),
    ],
    ids=lambda values: str(values.type),
)
def test_numbers_stand_for_values_in_their_order(values: pa.Array) -> None:
    cells = range_cells(values).tolist()
    assert cells == sorted(cells)
    if pa.types.is_floating(values.type):
        floats = values.to_pylist()
        assert cells[floats.index(0.0)] == cells[floats.index(0.0) + 1]
        assert len({cell for cell, value in zip(cells, floats, strict=True) if math.isnan(value)}) == 1
    else:
        assert len(set(cells)) == len(cells)
