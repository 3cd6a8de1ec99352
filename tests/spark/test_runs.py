"""Runs as Spark writes them: each row once per index, in order, under the hash64 that is also ours."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import examples

from upriver.errors import DeclarationError
from upriver.hashing import hash64
from upriver.ids import Channel, Epoch, Term, VnodeId
from upriver.lake.lake import Lake
from upriver.lake.manifests import Manifest
from upriver.plan.plan import TableSpec, lake_channel
from upriver.spark.runs import (
    BATCH_BYTES,
    BATCH_ROWS,
    UNLIMITED,
    UNTOUCHED,
    BatchSizes,
    Lot,
    RunWriter,
    SparkRows,
    check_columns,
    gathered,
    rewrite_runs,
    shuffle_runs,
    write_runs,
)
from upriver.spark.schema import arrow_schema
from upriver.state.runs import RunInfo, run_schema
from upriver.vnodes import vnodes_of

VNODES = 16
GROUPS = 3
Written = dict[Channel, tuple[RunInfo, ...]]


def writer(root: Path, rows: Any, *indexes: tuple[str, ...], order_by: tuple[str, ...] = (), **more: Any) -> RunWriter:
    table = TableSpec("events", arrow_schema(rows, "events"), indexes[0], order_by)
    lots = tuple(Lot(7, index) for index in indexes)
    plan = RunWriter(root=str(root), table=table, lots=lots, vnodes=VNODES, groups=GROUPS)
    return replace(plan, **more)


def read_back(plan: RunWriter, infos: Sequence[RunInfo]) -> pa.Table:
    schema = run_schema(plan.table.schema)
    lake = Lake(plan.root)
    return pa.Table.from_batches([lake.open_run(info, schema).all_rows() for info in infos], schema=schema)


def assert_runs_are_right(plan: RunWriter, written: Written) -> None:
    """What must be true of all runs: their hashes, their order, their place and what is said of them."""
    for number, key in plan.lot_keys().items():
        groups_seen = []
        for info in written[plan.channel(number)]:
            rows = read_back(plan, [info])
            hashes = rows.column("hash64").to_numpy()
            np.testing.assert_array_equal(hashes, hash64([rows.column(name) for name in key]))
            assert (np.diff(hashes.astype(object)) >= 0).all()
            present, counts = np.unique(vnodes_of(hashes, plan.vnodes), return_counts=True)
            assert info.vnode_rows == tuple(zip(present.tolist(), counts.tolist(), strict=True))
            (group,) = {vnode * plan.groups // plan.vnodes for vnode in present.tolist()}
            groups_seen.append(group)
            assert info.path.startswith(f"tables/{plan.channel(number)}/{plan.lots[number].batch:012d}-")
        assert groups_seen == sorted(groups_seen)


def sorted_rows(table: pa.Table) -> list[str]:
    return sorted(repr(row) for row in table.to_pylist())


def assert_each_row_once(plan: RunWriter, written: Written, rows: Any) -> None:
    expected = sorted_rows(rows.toArrow().cast(plan.table.schema))
    for number in range(len(plan.lots)):
        table = read_back(plan, written[plan.channel(number)])
        assert sorted_rows(table.drop_columns("hash64")) == expected


@pytest.fixture
def small_batches(spark: Any) -> Iterator[None]:
    """Spark hands rows to Python a few at a time."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "16")
    yield
    spark.conf.set(name, before)


EVENTS = """
    SELECT id, nullif(concat('k', pow(id, 3) % 41), 'k0') AS name, nullif(id % 5, 4) AS kind,
           nullif(id * 7919 % 13, 3) AS ts, nullif(concat('s', id % 3), 's1') AS step,
           array(id, null) AS list, map('a', id) AS map, named_struct('x', id, 'y', null) AS struct,
           cast(id AS decimal(20, 2)) AS price, timestamp_seconds(id) AS at
    FROM range(1000)
"""


@pytest.mark.spark
def test_every_row_is_in_one_run_of_each_index(spark: Any, tmp_path: Path) -> None:
    rows = spark.sql(EVENTS)
    plan = writer(tmp_path, rows, ("name",), ("kind", "name"), ("price", "at", "id"))
    written = shuffled(rows, plan)
    assert list(written) == ["events/name", "events/kind,name", "events/price,at,id"]
    assert_runs_are_right(plan, written)
    assert_each_row_once(plan, written, rows)
    assert len(written[plan.channel(2)]) == GROUPS


@pytest.mark.spark
@pytest.mark.parametrize("order_by", [("ts", "step"), ("step", "ts", "id"), ("at",)])
def test_rows_of_a_key_come_in_order(spark: Any, tmp_path: Path, order_by: tuple[str, ...]) -> None:
    """Nulls first, as Spark orders; rows that tie in all columns come in any order."""
    rows = spark.sql(EVENTS).repartition(4)
    plan = writer(tmp_path, rows, ("name",), ("kind",), order_by=order_by)
    written = shuffled(rows, plan)
    assert_runs_are_right(plan, written)
    for number, key in plan.lot_keys().items():
        of_key = defaultdict(list)
        for row in read_back(plan, written[plan.channel(number)]).to_pylist():
            of_key[row[key[0]]].append([(row[name] is not None, row[name]) for name in order_by])
        assert len(of_key) > 4
        assert all(order == sorted(order) for order in of_key.values())


@pytest.mark.spark
@pytest.mark.usefixtures("small_batches")
def test_long_runs_are_cut(spark: Any, tmp_path: Path) -> None:
    """Into runs that are read in order: a key's rows may go on from one to the next."""
    rows = spark.sql(EVENTS)
    plan = writer(tmp_path, rows, ("kind",), order_by=("ts", "id"), rows_max=50)
    written = shuffled(rows, plan)[plan.channel(0)]
    assert_runs_are_right(plan, {plan.channel(0): written})
    assert_each_row_once(plan, {plan.channel(0): written}, rows)
    assert len(written) >= 1000 / 50
    assert max(info.rows for info in written) <= 50
    whole = read_back(plan, written)
    assert (np.diff(whole.column("hash64").to_numpy().astype(object)) >= 0).all()
    in_order = [(row["hash64"], row["ts"] is not None, row["ts"], row["id"]) for row in whole.to_pylist()]
    assert in_order == sorted(in_order)


def shuffled(rows: Any, plan: RunWriter) -> Written:
    return shuffle_runs(SparkRows(rows), plan)


def write_by_three(rows: Any, plan: RunWriter) -> Written:
    return write_runs(SparkRows(rows), plan, 3)


def write_alone(rows: Any, plan: RunWriter) -> Written:
    return write_runs(SparkRows(rows), plan, 1)


WRITES = pytest.mark.parametrize("write", [shuffled, write_alone, write_by_three])


@pytest.mark.spark
@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("order_by", [(), ("ts", "id")])
@pytest.mark.parametrize(("rows_max", "chunk_rows_max"), [(1_000_000, 1_000_000), (50, 1_000_000), (300, 100)])
def test_one_task_writes_what_several_do(
    spark: Any, tmp_path: Path, order_by: tuple[str, ...], rows_max: int, chunk_rows_max: int
) -> None:
    rows = spark.sql(EVENTS).repartition(4)
    plan = writer(tmp_path, rows, ("name",), ("kind", "name"), order_by=order_by, rows_max=rows_max)
    plan = replace(plan, chunk_rows_max=chunk_rows_max)
    alone = write_alone(rows, plan)
    assert_runs_are_right(replace(plan, groups=1), alone)
    assert_each_row_once(plan, alone, rows)
    assert max(run.rows for runs in alone.values() for run in runs) <= rows_max
    if order_by:  # which no two rows share
        shared = shuffled(rows, plan)
        for channel, runs in shared.items():
            assert read_back(plan, alone[channel]) == read_back(plan, runs)


@pytest.mark.spark
@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("chunk_rows_max", [1_000_000, 50])
def test_each_task_writes_its_own_rows(spark: Any, tmp_path: Path, chunk_rows_max: int) -> None:
    """In runs that have keys in common; a reader has the rows in the order of one task's."""
    rows = spark.sql(EVENTS).repartition(5)
    plan = writer(tmp_path, rows, ("name",), ("kind", "name"), order_by=("ts", "id"), rows_max=200)
    plan = replace(plan, chunk_rows_max=chunk_rows_max)
    alone, written = write_alone(rows, plan), write_by_three(rows, plan)
    assert_each_row_once(plan, written, rows)
    for channel, runs in written.items():
        tasks = [run.task for run in runs]
        assert tasks == sorted(tasks)
        assert set(tasks) == {0, 1, 2}
        for task in range(3):
            of_task = [run for run in runs if run.task == task]
            nothing = dict.fromkeys(written, ())
            assert_runs_are_right(replace(plan, groups=1), {**nothing, channel: tuple(of_task)})
            hashes = read_back(plan, of_task).column("hash64").to_numpy()
            assert (hashes[1:] >= hashes[:-1]).all()
        manifest = Manifest(epoch=Epoch(1), term=Term(1), table="events", query="q", batch=1, runs=written)
        read = Lake(plan.root).read(manifest, channel, frozenset(map(VnodeId, range(VNODES))), plan.table)
        assert pa.Table.from_batches(read) == read_back(plan, alone[channel])


@pytest.mark.spark
@pytest.mark.parametrize("rows_max", [1_000, 30])
def test_runs_are_written_once_more_in_other_orders(spark: Any, tmp_path: Path, rows_max: int) -> None:
    """Lots of two batches and two indexes, in one job: each is what it would be if written from the batch itself."""
    batches = [spark.sql(EVENTS).where("id % 3 = 0"), spark.sql(EVENTS).where("id % 3 > 0"), spark.sql(EVENTS).limit(0)]
    own, *others = [("name",), ("kind",), ("id", "name")]
    plans = [writer(tmp_path, rows, own, *others, order_by=("ts", "id"), rows_max=rows_max) for rows in batches]
    first = [shuffled(rows, plan) for rows, plan in zip(batches, plans, strict=True)]
    lots = tuple(Lot(number, index) for number in range(3) for index in others)
    plan = replace(plans[0], lots=lots)
    written = rewrite_runs(spark, [first[lot.batch][lake_channel("events", own)] for lot in lots], plan)
    for lot, runs in zip(lots, written, strict=True):
        alone = replace(plan, lots=(lot,), groups=1)
        assert_runs_are_right(alone, {alone.channel(0): runs})
        assert read_back(alone, runs) == read_back(alone, first[lot.batch][alone.channel(0)])
        assert max((run.rows for run in runs), default=0) <= rows_max


@pytest.mark.spark
@pytest.mark.parametrize(("vnodes", "groups"), [(1, 1), (2, 2), (256, 1), (256, 7)])
def test_any_vnodes_in_any_groups(spark: Any, tmp_path: Path, vnodes: int, groups: int) -> None:
    rows = spark.sql("SELECT id FROM range(300)")
    plan = writer(tmp_path, rows, ("id",), vnodes=vnodes, groups=groups)
    written = shuffled(rows, plan)
    assert_runs_are_right(plan, written)
    assert_each_row_once(plan, written, rows)
    assert len(written[plan.channel(0)]) == groups


@pytest.mark.spark
@pytest.mark.parametrize(
    "rows", ["SELECT id, 'a' AS k FROM range(0)", "SELECT id, 'a' AS k FROM range(9) WHERE id > 9"]
)
def test_no_rows_make_no_runs(spark: Any, tmp_path: Path, rows: str) -> None:
    plan = writer(tmp_path, spark.sql(rows), ("k",), ("id",))
    for write in (shuffled, write_alone, write_by_three):
        assert write(spark.sql(rows), plan) == {"events/k": (), "events/id": ()}


@pytest.mark.spark
def test_null_keys_are_keys(spark: Any, tmp_path: Path) -> None:
    rows = spark.sql("SELECT id, cast(null AS string) AS a, cast(null AS int) AS b FROM range(5)")
    plan = writer(tmp_path, rows, ("a", "b"))
    written = shuffled(rows, plan)
    assert_runs_are_right(plan, written)
    assert_each_row_once(plan, written, rows)


@pytest.mark.spark
@pytest.mark.parametrize(
    "name", ["a b", "a.b", "a`b", "`", "naïve 键 🚀", "select", "partition", "c1", "a,b/c%20", "'\"\\"]
)
def test_columns_may_have_any_name(spark: Any, tmp_path: Path, name: str) -> None:
    rows = spark.sql("SELECT id % 7, id, id % 3 FROM range(50)").toDF(name, f"{name}2", "other")
    plan = writer(tmp_path, rows, (name,), ("other", name), order_by=(f"{name}2",))
    for written, groups in ((shuffled(rows, plan), GROUPS), (write_alone(rows, plan), 1)):
        assert_runs_are_right(replace(plan, groups=groups), written)
        assert_each_row_once(plan, written, rows)
        table = read_back(plan, written[plan.channel(0)])
        assert table.column_names == ["hash64", name, f"{name}2", "other"]


@pytest.mark.parametrize("name", ["hash64", "HASH64"])
def test_our_own_column_name_is_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match=f"table 't': the column name '{name}' is reserved"):
        check_columns(pa.schema([("a", pa.int64()), (name, pa.int64())]), "t")


@pytest.mark.spark
@WRITES
def test_a_failing_batch_raises(spark: Any, tmp_path: Path, write: Any) -> None:
    rows = spark.sql("SELECT id, assert_true(id < 40) AS ok FROM range(50)")
    plan = writer(tmp_path, rows.select("id"), ("id",))
    with pytest.raises(Exception, match="USER_RAISED_EXCEPTION"):
        write(rows.where("ok is null"), plan)


@settings(derandomize=True, deadline=None, max_examples=examples(25))
@given(st.lists(st.integers(0, 12), max_size=12), st.integers(1, 20), st.integers(8, 200))
def test_batches_are_gathered_up_to_the_limits(sizes: list[int], rows_max: int, bytes_max: int) -> None:
    numbers = iter(range(sum(sizes)))
    batches = [pa.record_batch({"n": pa.array([next(numbers) for _ in range(size)], pa.int64())}) for size in sizes]
    tables = list(gathered(batches, rows_max, bytes_max))
    assert [n for table in tables for n in table.column("n").to_pylist()] == list(range(sum(sizes)))
    for table in tables:
        parts = [chunk for chunk in table.column("n").chunks if len(chunk)]
        assert parts
        assert len(parts) == 1 or (table.num_rows <= rows_max and table.nbytes <= bytes_max)
    for table, following in itertools.pairwise(tables):
        first = next(chunk for chunk in following.column("n").chunks if len(chunk))
        assert table.num_rows + len(first) > rows_max or table.nbytes + first.nbytes > bytes_max


@pytest.mark.parametrize(
    ("columns", "row_bytes", "user_s", "rows_and_size"),
    [
        ("id; id * 2 AS v; true AS b; date'2026-01-01' AS d", None, UNTOUCHED, ("10000", UNLIMITED)),
        ("id; CAST(id AS STRING) AS s", None, UNTOUCHED, ("10000", UNTOUCHED)),
        ("id; CAST(id AS STRING) AS s", 100.0, UNTOUCHED, ("256", UNLIMITED)),
        ("id; CAST(id AS STRING) AS s", 70_000.0, UNTOUCHED, ("10000", UNTOUCHED)),
        ("id; array(id) AS a", 100.0, UNTOUCHED, ("256", UNLIMITED)),
        ("; ".join(f"id + {number} AS c{number}" for number in range(400)), None, UNTOUCHED, ("10000", UNTOUCHED)),
        ("id", 100.0, "1m", ("10000", "1m")),
    ],
)
def test_a_batch_is_measured_unless_the_rows_before_were_small(
    spark: Any, columns: str, row_bytes: float | None, user_s: str, rows_and_size: tuple[str, str]
) -> None:
    own = spark.newSession()
    own.conf.set(BATCH_BYTES, user_s)
    BatchSizes(own.range(1).selectExpr(*columns.split("; ")), runs_python=False).follow(row_bytes)
    assert (own.conf.get(BATCH_ROWS), own.conf.get(BATCH_BYTES)) == rows_and_size
    assert spark.conf.get(BATCH_BYTES) == UNTOUCHED


def test_large_rows_are_measured_again(spark: Any) -> None:
    own = spark.newSession()
    sizes = BatchSizes(own.range(1).selectExpr("CAST(id AS STRING) AS s"), runs_python=False)
    sizes.follow(100.0)
    sizes.follow(70_000.0)
    assert (own.conf.get(BATCH_ROWS), own.conf.get(BATCH_BYTES)) == ("10000", UNTOUCHED)


def test_a_stream_with_functions_in_python_keeps_its_sizes(spark: Any) -> None:
    own = spark.newSession()
    BatchSizes(own.range(1), runs_python=True).follow(100.0)
    assert (own.conf.get(BATCH_ROWS), own.conf.get(BATCH_BYTES)) == ("10000", UNTOUCHED)
