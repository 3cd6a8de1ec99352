"""Epochs that several tasks have written: every reader has the rows that it has of one task's runs, in the same order
where ``order_by`` decides."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from segments_kit import (
    BY_ID,
    BY_K,
    BY_N,
    BY_TOWN,
    EVENTS,
    USERS,
    VNODES,
    Row,
    compacted,
    owned,
    publish,
    rows_in,
    rows_through,
    table_of,
)
from soak import examples

from upriver.hashing import hash64
from upriver.ids import Channel, Epoch
from upriver.lake.history import KeyHistory, Merging
from upriver.lake.lake import Lake, OwnedLake
from upriver.lake.scan import TableScan
from upriver.plan.plan import TableSpec
from upriver.vnodes import VnodeGroup

CHANNELS = (BY_K, BY_N, BY_ID, BY_TOWN)
TASKS = st.integers(0, 3)
EVENT_ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), TASKS), max_size=12)
USER_ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-9, 9), st.sampled_from(["Ulm", "Bonn", None]), TASKS),
    unique_by=lambda row: row[1],
    max_size=12,
)
EPOCHS = st.lists(st.tuples(st.just(EVENTS), EVENT_ROWS) | st.tuples(st.just(USERS), USER_ROWS), min_size=3, max_size=8)
MERGING = st.builds(
    Merging, together=st.integers(2, 3), small_bytes=st.sampled_from([0, 1_500, 1 << 20]), tidied_max=st.integers(1, 9)
)


@contextmanager
def lakes(directory: Path, epochs: list[tuple[TableSpec, list[Row]]]) -> Iterator[tuple[OwnedLake, OwnedLake]]:
    """The same epochs as one task writes them, and as some tasks do: the last of each row is its task."""
    with ExitStack() as stack:
        of_one, of_tasks = (stack.enter_context(owned(directory / name)) for name in ("one", "tasks"))
        for table, rows in epochs:
            user = [row[:-1] for row in rows]
            publish(of_one, table, user)
            publish(of_tasks, table, user, tasks=[row[-1] for row in rows])
        yield of_one, of_tasks


def alike(channel: Channel, rows: list[Row]) -> object:
    """What is equal in both lakes: the order of rows without ``order_by`` may differ."""
    return rows if table_of(channel).order_by else Counter(rows)


def by_key(lake: Lake, channel: Channel, keys: np.ndarray, through: int, history: KeyHistory) -> list[Row]:
    found = history.rows_of(channel, table_of(channel), keys, Epoch(through))
    return list(zip(found.hash64.tolist(), *(column.to_pylist() for column in found.rows.columns), strict=True))


@settings(derandomize=True, deadline=None, max_examples=examples(25))
@given(EPOCHS, MERGING, st.integers(1, 4), st.booleans())
def test_every_reader_has_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory,
    epochs: list[tuple[TableSpec, list[Row]]],
    merging: Merging,
    runs_max: int,
    few: bool,
) -> None:
    with lakes(tmp_path_factory.mktemp("lakes"), epochs) as (one, tasks):
        last = int(one.last_epoch())
        histories = {lake: KeyHistory(lake, runs_max, merging=merging) for lake in (one, tasks)}
        for channel in CHANNELS:
            for epoch in (epoch for epoch in range(1, last + 1) if channel in tasks.manifest(Epoch(epoch)).runs):
                found = [rows_in(lake, lake.manifest(Epoch(epoch)), channel) for lake in (one, tasks)]
                assert alike(channel, found[0]) == alike(channel, found[1])
            keys = np.array(sorted({row[0] for row in rows_through(one, channel)}), np.uint64)
            for through in (last // 2, last):
                asked = keys[:2] if few else np.union1d(keys, np.arange(20, dtype=np.uint64))
                expected = [row for row in rows_through(tasks, channel, through) if row[0] in set(asked.tolist())]
                assert by_key(tasks, channel, asked, through, histories[tasks]) == expected
                assert alike(channel, by_key(one, channel, asked, through, histories[one])) == alike(channel, expected)


@settings(derandomize=True, deadline=None, max_examples=examples(15))
@given(EPOCHS, st.sampled_from([1, 1 << 20]), st.booleans())
def test_scans_have_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory,
    epochs: list[tuple[TableSpec, list[Row]]],
    held_rows_max: int,
    has_keys: bool,
) -> None:
    wanted = np.sort(hash64([pa.array([0, 1], pa.int64())], 2)) if has_keys else None
    with lakes(tmp_path_factory.mktemp("lakes"), epochs) as (one, tasks):
        for table in (EVENTS, USERS):
            found = []
            for lake in (one, tasks):
                scan = TableScan(lake.root, table, table.key, held_rows_max)
                rows = scan.rows(lake.last_epoch(), VnodeGroup(0, VNODES, VNODES), wanted)
                found.append(Counter(str(row) for batch in rows for row in batch.to_pylist()))
            assert found[0] == found[1]


@settings(derandomize=True, deadline=None, max_examples=examples(10))
@given(EPOCHS)
def test_segments_have_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, epochs: list[tuple[TableSpec, list[Row]]]
) -> None:
    with lakes(tmp_path_factory.mktemp("lakes"), epochs) as (one, tasks):
        before = {channel: rows_through(tasks, channel) for channel in CHANNELS}
        for lake in (one, tasks):
            while lake.last_epoch() < 16:
                publish(lake, EVENTS, [])
            (segment,) = compacted(lake)
            assert len(segment.span) == 16
        for channel in CHANNELS:
            found = [rows_through(lake, channel) for lake in (one, tasks)]
            assert alike(channel, found[0]) == alike(channel, found[1])
            if channel in (BY_K, BY_N):
                assert found[1] == before[channel]
