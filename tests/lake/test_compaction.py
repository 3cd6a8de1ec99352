"""Segments: what is merged, in which order, and what stays as it was.

The newest version of each primary key, against a loop over the versions.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from duckdb_kit import DuckDbEvaluator
from hypothesis import given, settings
from hypothesis import strategies as st
from segments_kit import (
    ALL,
    BY_ID,
    BY_K,
    BY_N,
    BY_TOWN,
    EVENTS,
    USERS,
    Row,
    compacted,
    owned,
    publish,
    rows_in,
    rows_through,
    write_run,
)
from soak import examples
from state_kit import MANY, order_of

from upriver.engine.expressions import Evaluator
from upriver.engine.retention import Retention
from upriver.ids import Epoch, VnodeId
from upriver.lake.compaction import Merge, SegmentPlanner, merge_runs, newest_versions
from upriver.lake.lake import Lake, OwnedLake
from upriver.lake.manifests import LastBatch, Manifest, Segment
from upriver.lake.spans import EpochSpan
from upriver.lake.upkeep import compact
from upriver.plan.plan import TableSpec
from upriver.plan.retention import Retain
from upriver.plan.row_order import EPOCH_COLUMN, dated_schema
from upriver.state.runs import RunInfo, run_schema
from upriver.state.span import TimeSpan

FIRST = EpochSpan(Epoch(1), Epoch(16))
VERSIONS = st.tuples(st.integers(0, 3), st.integers(0, 4), st.sampled_from(["Ulm", "Bonn", None]))
EVENT_ROWS = st.tuples(st.integers(0, 5), st.integers(0, 3))
EPOCH = st.tuples(st.just(EVENTS), st.lists(EVENT_ROWS, max_size=6)) | st.tuples(
    st.just(USERS), st.lists(VERSIONS, max_size=6)
)
CHANNELS = (BY_K, BY_N, BY_ID, BY_TOWN)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    with owned(tmp_path) as lake:
        yield lake


def publish_empty(lake: OwnedLake, through: int) -> None:
    while lake.last_epoch() < through:
        publish(lake, EVENTS, [])


def newest(rows: list[Row]) -> list[Row]:
    """The last of the highest versions of each primary key, of those with one hash64, in the order of the rows."""
    best: dict[tuple[int, int], tuple[int, int]] = {}
    for place, (hash64, key, version, _) in enumerate(rows):
        best[hash64, key] = max(best.get((hash64, key), (version, place)), (version, place))
    return [rows[place] for place in sorted(place for _, place in best.values())]


@settings(max_examples=examples(4))
@given(st.lists(EPOCH, min_size=16, max_size=18), st.sampled_from([1, 700, 1 << 20]))
def test_a_segment_has_the_rows_of_its_epochs_in_their_order(
    tmp_path_factory: pytest.TempPathFactory, epochs: list[tuple[object, list[Row]]], merge_bytes: int
) -> None:
    with owned(tmp_path_factory.mktemp("lake")) as lake:
        for table, rows in epochs:
            publish(lake, table, rows)  # type: ignore[arg-type]
        before = {channel: rows_through(lake, channel, 16) for channel in CHANNELS}
        whole = {channel: rows_through(lake, channel) for channel in CHANNELS}
        last = [lake.manifest(Epoch(epoch)) for epoch in range(1, 17)]
        plan = SegmentPlanner(lake, 8, merge_bytes).plan(FIRST)
        assert plan is not None
        tables = {"events": EVENTS, "users": USERS}
        merged = [
            merge_runs(lake, merge, tables[merge.channel.partition("/")[0]], 8, Evaluator()) for merge in plan.merges
        ]
        lake.publish_segment(plan.segment(merged, lake.term, 5.0))
        segment = lake.segment(FIRST)
        for channel in CHANNELS:
            found, one_part = rows_in(lake, segment, channel), channel not in {merge.channel for merge in plan.merges}
            is_append = channel in (BY_K, BY_N)
            assert found == (before[channel] if is_append or one_part else newest(before[channel]))
            if is_append:
                assert rows_through(lake, channel) == whole[channel]
        for table in ("events", "users"):
            of_table = [manifest for manifest in last if manifest.table == table]
            if not of_table:
                assert table not in segment.batches
                continue
            rows_of = sum(manifest.batches[table].rows for manifest in of_table)
            end = of_table[-1]
            assert segment.batches[table] == LastBatch(
                query="q",
                batch=end.batch,
                epoch=end.epoch,
                committed_at=end.committed_at,
                epochs=len(of_table),
                rows=rows_of,
            )
        assert (segment.committed_at, segment.made_at, segment.first) == (last[-1].committed_at, 5.0, 1)


def test_a_merge_and_a_segment_come_back_as_they_were(lake: OwnedLake) -> None:
    sources = (write_run(lake, EVENTS, ("k",), [(1, 1)]), write_run(lake, EVENTS, ("k",), [(2, 1), (3, 3)]))
    for retention in (None, Retention("n", 9, None, 4)):
        merge = Merge(BY_K, "a-b", VnodeId(2), VnodeId(4), sources, (Epoch(3), Epoch(9)), retention)
        assert Merge.from_json(merge.to_json()) == merge
    publish_empty(lake, 16)
    (segment,) = compacted(lake)
    assert Segment.from_json(segment.to_json()) == segment == lake.segment(FIRST)


def test_rows_keep_their_epochs_through_all_merges(lake: OwnedLake) -> None:
    def merged(span: EpochSpan, sources: tuple[tuple[RunInfo, int], ...]) -> RunInfo:
        runs, epochs = tuple(run for run, _ in sources), tuple(Epoch(epoch) for _, epoch in sources)
        made = merge_runs(lake, Merge(BY_K, span.name, VnodeId(0), VnodeId(8), runs, epochs), EVENTS, 8, Evaluator())
        assert made is not None
        return made

    runs = [(write_run(lake, EVENTS, ("k",), [(1, number), (2, number)]), number) for number in (3, 9, 20)]
    first = merged(FIRST, tuple(runs[:2]))
    second = merged(EpochSpan(Epoch(1), Epoch(256)), ((first, 16), runs[2]))
    schema = run_schema(dated_schema(EVENTS.schema))
    rows = lake.open_run(second, schema).all_rows().to_pylist()
    assert [(row["n"], row[EPOCH_COLUMN]) for row in rows] == 2 * [(3, 3), (9, 9), (20, 20)]
    assert lake.open_run(second, run_schema(EVENTS.schema)).all_rows().schema.names == ["hash64", "k", "n"]


def test_an_index_with_rows_in_one_epoch_keeps_its_runs(lake: OwnedLake) -> None:
    publish(lake, USERS, [(1, 1, "Ulm"), (1, 2, "Ulm")])
    publish_empty(lake, 16)
    (segment,) = compacted(lake)
    assert segment.runs[BY_ID] == tuple(replace(run, epoch=1) for run in lake.manifest(Epoch(1)).runs[BY_ID])
    assert segment.runs[BY_K] == ()
    assert segment.batches["events"].epochs == 15


def test_a_segment_is_made_of_segments_and_of_what_is_apart(lake: OwnedLake) -> None:
    for number in range(40):
        publish(lake, EVENTS, [(number % 3, number)])
    assert len(compacted(lake)) == 2
    publish_empty(lake, 256)
    whole = rows_through(lake, BY_K)
    segments = compacted(lake)
    assert [len(segment.span) for segment in segments] == [16] * 14 + [256]
    assert rows_in(lake, segments[-1], BY_K) == whole
    assert segments[-1].batches["events"] == replace(segments[-2].batches["events"], epochs=256, rows=40)
    assert lake.spans(lake.last_epoch()) == [segments[-1].span]
    assert compacted(lake) == []


def test_epochs_of_large_vnodes_or_large_indexes_stay_as_they_are(lake: OwnedLake) -> None:
    for number in range(32):
        publish(lake, EVENTS, [(number % 3, number)] if number < 16 else [])
    assert SegmentPlanner(lake, 8).plan(FIRST) is not None
    for plans in (SegmentPlanner(lake, 8, vnode_bytes_max=2_000), SegmentPlanner(lake, 8, index_bytes_max=2_000)):
        first, second = plans.due(Epoch(32))
        assert plans.plan(first) is None
        assert plans.plan(second) is not None
        assert list(plans.due(Epoch(32))) == [second]


def test_a_merge_takes_whole_vnodes_of_about_the_bytes_it_may(lake: OwnedLake) -> None:
    for _ in range(16):
        publish(lake, EVENTS, [(number, 0) for number in range(200)])
    (run,) = lake.manifest(Epoch(1)).runs[BY_K]
    plan = SegmentPlanner(lake, 8, merge_bytes=5 * run.bytes).plan(FIRST)
    assert plan is not None
    merges = [merge for merge in plan.merges if merge.channel == BY_K]
    assert [merge.first for merge in merges] == [0, *(merge.end for merge in merges[:-1])]
    assert merges[-1].end == 8
    assert len(merges) == 4
    assert all(len(merge.sources) == 16 for merge in merges)


def test_rows_that_retention_has_removed_are_left_out(lake: OwnedLake) -> None:
    retained = replace(EVENTS, retain=Retain("n", 10, ""))
    cuts = [None, *range(4, 19)]
    for epoch, cut in enumerate(cuts, 1):
        run = write_run(lake, EVENTS, ("k",), [(epoch % 2, epoch), (7, 0)])
        before = cuts[epoch - 2] if epoch > 1 else None
        lake.publish(
            Manifest(
                epoch=Epoch(epoch),
                term=lake.term,
                table="events",
                query="q",
                batch=epoch,
                runs={BY_K: (run,)},
                retained={"events": Retention("n", epoch, before, cut)},
            )
        )
    plans = SegmentPlanner(lake, 8)
    early = plans.plan(FIRST)
    assert early is not None
    (merge,) = early.merges
    assert merge.retention is not None
    assert merge.retention.cut == 18
    assert merge_runs(lake, merge, retained, 8, Evaluator()) is None
    recorded = TableSpec.from_json(retained.to_json())  # the lake's record has no retain
    rest = merge_runs(lake, replace(merge, retention=Retention("n", 16, 3, 14)), recorded, 8, Evaluator())
    assert rest is not None
    assert (rest.rows, rest.span) == (2, TimeSpan(15, 16, 0))
    segment = early.segment([None], lake.term, 1.0)
    assert segment.runs == {BY_K: ()}
    assert segment.retained == {"events": Retention("n", 16, None, 18)}


def test_an_index_that_is_not_complete_is_in_no_segment_that_has_epochs_without_it(tmp_path: Path) -> None:
    with owned(tmp_path, {"events": (("k",),), "users": (("id",),)}) as lake:
        for number in range(48):
            indexes = [("k",)] if number < 8 else [("k",), ("n",)]
            publish(lake, EVENTS, [(number % 3, number)], indexes)
        mixed, later, last = compacted(lake)
        assert set(mixed.runs) == {BY_K}
        assert set(later.runs) == set(last.runs) == {BY_K, BY_N}
        rows = rows_in(lake, mixed, BY_K)
        supplement = write_run(lake, EVENTS, ("n",), [row[1:] for row in rows])
        lake.supplement(BY_N, mixed.span, [supplement])
        lake.complete("events", ("n",))
        found = rows_through(Lake(lake.root), BY_N)
        assert Counter(row[1:] for row in found) == Counter(row[1:] for row in rows_through(lake, BY_K))


def test_wider_columns_are_merged_as_the_table_has_them_now(tmp_path: Path) -> None:
    with owned(tmp_path) as lake:
        for number in range(15):
            publish(lake, EVENTS, [(number, number)])
    wider = replace(EVENTS, schema=EVENTS.schema.append(pa.field("more", pa.string())))
    record = replace(lake.record(), tables=(wider, USERS))  # type: ignore[type-var]
    assert record is not None
    again = OwnedLake(lake.root, record, {})
    try:
        run = write_run(again, wider, ("k",), [(3, 15, "x")])
        by_n = write_run(again, wider, ("n",), [(3, 15, "x")])
        again.publish(
            Manifest(
                epoch=Epoch(16),
                term=again.term,
                table="events",
                query="q",
                batch=16,
                runs={BY_K: (run,), BY_N: (by_n,)},
            )
        )
        (segment,) = compact(again, Epoch(16))
        rows = [row for batch in again.read(segment, BY_K, ALL, wider) for row in batch.to_pylist()]
        assert Counter((row["k"], row["n"], row["more"]) for row in rows) == Counter(
            [*((number, number, None) for number in range(15)), (3, 15, "x")]
        )
        assert [row["more"] for row in rows if row["k"] == 3] == [None, "x"]
    finally:
        again.release()


SCHEMA = pa.schema(
    [("a", pa.float64()), ("b", pa.string()), ("v", pa.float64()), ("w", pa.string()), ("op", pa.string())]
)
TABLE = TableSpec("t", SCHEMA, ("a",), ("v", "w"), ("a", "b"), "\"op\" = 'D'")
UNEVALUABLE = TableSpec("t", SCHEMA, ("a",), ("v", "w"), ("a", "b"), 'CAST("op" AS INTEGER) = 1')
NUMBERS = st.none() | st.sampled_from([0.0, -0.0, math.nan, -math.nan, 1.0, -math.inf])
TEXTS = st.none() | st.sampled_from(["", "a", "ab", "ä"])
ROWS = st.lists(
    st.tuples(st.integers(0, 2), NUMBERS, TEXTS, NUMBERS, TEXTS, st.sampled_from(["U", "D", None])), max_size=25
)


def rank(value: Any) -> tuple[Any, ...]:
    """Sorts as Spark does: nulls first, NaN last and equal to itself, -0.0 equal to 0.0."""
    if value is None:
        return (False,)
    return (True, value.encode() if isinstance(value, str) else order_of(value))


def newest_of_a_loop(rows: list[Row], order_by: tuple[int, ...]) -> list[int]:
    best: dict[tuple[Any, ...], tuple[list[Any], int]] = {}
    for place, row in enumerate(rows):
        key, order = (row[0], rank(row[1]), rank(row[2])), [rank(row[at]) for at in order_by]
        if key not in best or order >= best[key][0]:
            best[key] = (order, place)
    return sorted(place for _, place in best.values())


def batch_of(rows: list[Row]) -> tuple[np.ndarray, pa.RecordBatch]:
    columns = list(zip(*rows, strict=True)) or [()] * 6
    arrays = [pa.array(column, field.type) for column, field in zip(columns[1:], SCHEMA, strict=True)]
    return np.array(columns[0], np.uint64), pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@MANY
@given(ROWS, st.sampled_from([(), ("v",), ("v", "w")]))
def test_the_last_of_the_highest_versions_of_each_key_with_one_hash64_stays(
    rows: list[Row], order_by: tuple[str, ...]
) -> None:
    """Rows with one hash64 may have several keys, and those of one key several hash64: by an index that is not its
    own."""
    table = TableSpec("t", SCHEMA, ("a",), order_by, ("a", "b"), TABLE.deletes)
    found = newest_versions(*batch_of(rows), table, DuckDbEvaluator())
    assert found.tolist() == newest_of_a_loop(rows, tuple(1 + SCHEMA.get_field_index(name) for name in order_by))


def test_all_versions_stay_if_one_cannot_be_judged() -> None:
    rows: list[Row] = [(0, 1.0, "a", 1.0, "", "1"), (0, 1.0, "a", 2.0, "", "0"), (0, 1.0, "a", 0.0, "", "x")]
    assert newest_versions(*batch_of(rows), UNEVALUABLE, Evaluator()).tolist() == [0, 1, 2]
    assert newest_versions(*batch_of(rows[:2]), UNEVALUABLE, Evaluator()).tolist() == [1]


def test_without_deletes_nothing_is_judged() -> None:
    table = TableSpec("t", SCHEMA, ("a",), ("v",), ("a",))
    rows: list[Row] = [(0, 1.0, "a", 1.0, "", "1"), (0, 1.0, "b", 1.0, "", "x")]
    assert newest_versions(*batch_of(rows), table, DuckDbEvaluator()).tolist() == [1]
