"""Scans of the lake: the groups of vnodes share out all rows, and a scan of keys has the rows of these."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from dataflow_kit import CURRENT, ITEMS, QUERIES, SALES, STOCK, TABLES, Query
from dataflow_lake import Lake
from duckdb_kit import by_duckdb
from hypothesis import given, settings
from hypothesis import strategies as st
from relation_kit import count, scan
from scan_kit import WrittenLake
from state_kit import Row, plain_rows

from upriver.engine.retention import Retention
from upriver.errors import CorruptFile
from upriver.hashing import Hashes, hash64
from upriver.ids import Epoch
from upriver.lake.scan import LakeScan, TableScan, ViewScan, prunable, scan_from_json, scan_key
from upriver.plan.plan import TableSpec
from upriver.state.key_filter import KeyFilter
from upriver.vnodes import VnodeGroup, hashes_in

VNODES = 8
EXAMPLES = settings(derandomize=True, deadline=None, max_examples=3)
GROUPS = st.sampled_from([1, 3])
"""Each scan of a view opens an engine for expressions, so few groups."""
SHARED_OUT = {"groups", "latest by another key", "join of three", "top of all"}
"""The queries that every run asks for: one region and several, with a key of their own and without one."""


@contextmanager
def written(query: Query | None, data: st.DataObject) -> Iterator[tuple[WrittenLake, list[dict[str, pa.Table]]]]:
    """A lake by lot, and all rows of the tables as of each epoch."""
    rows = Lake(data, Random(7))
    with tempfile.TemporaryDirectory() as root:
        lake = WrittenLake(Path(root) / "lake", [query.plan("v")] if query else [], VNODES)
        history = [dict(rows.rows)]
        for _ in range(3):
            before = dict(rows.rows)
            for table, batch in rows.next_rows(12).items():
                lake.publish(table, batch)
                before[table] = rows.rows[table]
                history.append(dict(before))
        yield lake, history
        lake.release()


def rows_in(scan: LakeScan, epoch: Epoch, group: VnodeGroup, wanted: Hashes | None = None) -> pa.Table:
    return pa.Table.from_batches(scan.rows(epoch, group, wanted), scan.schema)


def counted(rows: pa.Table) -> Counter[Row]:
    return Counter(plain_rows(rows))


def check(scan: LakeScan, epoch: Epoch, groups: int, expected: pa.Table) -> None:
    """Each group has the rows of its vnodes alone, and all together have the expected ones; so with keys."""
    parts = []
    for group in VnodeGroup.all(VNODES, groups):
        part = rows_in(scan, epoch, group)
        hashes = np.sort(hash64([part.column(name) for name in scan.key], part.num_rows))
        assert hashes_in(group.hashes, hashes) == slice(0, part.num_rows)
        parts.append(part)
    whole = pa.concat_tables(parts)
    assert counted(whole) == counted(expected.rename_columns(whole.schema.names))
    keys = whole.select(list(scan.key)).slice(whole.num_rows // 2).combine_chunks().to_batches()
    chosen = KeyFilter(keys[0] if keys else pa.RecordBatch.from_pylist([], whole.select(list(scan.key)).schema))
    found = [rows_in(scan, epoch, group, chosen.hashes) for group in VnodeGroup.all(VNODES, groups)]
    wanted = [chosen.rows_of(batch) for batch in whole.to_batches()]
    exact = [chosen.rows_of(batch) for part in found for batch in part.to_batches()]
    assert counted(pa.Table.from_batches(exact, whole.schema)) == counted(pa.Table.from_batches(wanted, whole.schema))
    assert sum(part.num_rows for part in found) <= whole.num_rows


@pytest.mark.parametrize(
    "name", [name if name in SHARED_OUT else pytest.param(name, marks=pytest.mark.verify) for name in QUERIES]
)
@EXAMPLES
@given(data=st.data(), groups=GROUPS, held=st.sampled_from([1, 1 << 20]))
def test_a_view_is_shared_out_by_vnodes(name: str, data: st.DataObject, groups: int, held: int) -> None:
    query = QUERIES[name]
    with written(query, data) as (lake, history):
        view = ViewScan(lake.root, query.plan("v"), tuple(TABLES.values()), held)
        for epoch in {len(history) // 2, len(history) - 1}:
            check(view, Epoch(epoch), groups, by_duckdb(query.sql, **history[epoch]))


@pytest.mark.parametrize(
    ("table", "sql"), [(SALES, "FROM sales"), (ITEMS, "FROM items"), (STOCK, f"FROM {CURRENT}")], ids=lambda each: ""
)
@EXAMPLES
@given(data=st.data(), groups=GROUPS, held=st.sampled_from([1, 1 << 20]))
def test_a_table_is_shared_out_by_vnodes(
    table: TableSpec, sql: str, data: st.DataObject, groups: int, held: int
) -> None:
    with written(None, data) as (lake, history):
        scan = TableScan(lake.root, table, scan_key(table), held)
        for epoch in range(len(history)):
            check(scan, Epoch(epoch), groups, by_duckdb(sql, **history[epoch]))


def test_an_upsert_table_is_divided_so_that_versions_stay_together() -> None:
    schema = pa.schema([("id", pa.int64()), ("country", pa.string()), ("at", pa.int64())])

    def key_of(key: tuple[str, ...], primary_key: tuple[str, ...]) -> tuple[str, ...]:
        return scan_key(TableSpec("t", schema, key, ("at",), primary_key))

    assert key_of(("country",), ()) == ("country",)
    assert key_of(("country",), ("country", "id")) == ("country",)
    assert key_of(("country",), ("id",)) == ("id",)


def test_a_scan_reads_no_run_without_its_keys(tmp_path: Path) -> None:
    table = TableSpec("t", pa.schema([("k", pa.int64())]), ("k",))
    lake = WrittenLake(tmp_path / "lake", [], 256, {"t": table})
    for first in (0, 100):
        lake.publish("t", pa.record_batch([pa.array(range(first, first + 5))], schema=table.schema))
    lake.release()
    for run in (tmp_path / "lake/tables/t/k").glob("1-*"):
        run.unlink()
    scan, group = TableScan(lake.root, table, ("k",)), VnodeGroup(0, 256, 256)
    keys = KeyFilter(pa.record_batch({"k": [103]}))
    assert rows_in(scan, lake.last, group, keys.hashes).to_pylist() == [{"k": 103}]
    with pytest.raises(CorruptFile, match="the file is gone"):
        rows_in(scan, lake.last, group)


@pytest.mark.parametrize("primary_key", [(), ("k",)])
def test_rows_that_a_table_no_longer_retains_are_left_out(tmp_path: Path, primary_key: tuple[str, ...]) -> None:
    """A version that is too old to be a row keeps older versions from coming back, and a late one does so too."""
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("at", pa.int64())])
    table = TableSpec("t", schema, ("k",), ("n",), primary_key)
    lake = WrittenLake(tmp_path / "lake", [], VNODES, {"t": table})
    rows = [[(1, 1, 10), (2, 1, 99), (3, 1, 50)], [(1, 2, 100), (2, 2, 40), (4, 1, 30)]]
    for epoch, cut in enumerate([None, 50]):
        columns = zip(*rows[epoch], strict=True)
        retention = Retention("at", newest=100, cut=cut)
        lake.publish("t", pa.record_batch([pa.array(column) for column in columns], schema=schema), {"t": retention})
    lake.release()
    scan, group = TableScan(lake.root, table, ("k",)), VnodeGroup(0, VNODES, VNODES)
    assert counted(rows_in(scan, Epoch(1), group)) == Counter(rows[0])
    remaining = [(1, 2, 100)] if primary_key else [(2, 1, 99), (1, 2, 100)]
    assert counted(rows_in(scan, Epoch(2), group)) == Counter(remaining)


def test_a_scan_is_the_same_in_json(tmp_path: Path) -> None:
    view = ViewScan("/lake", QUERIES["join, then groups"].plan("v"), (SALES, ITEMS))
    for each in (view, TableScan("/lake", STOCK, scan_key(STOCK))):
        assert scan_from_json(each.to_json()) == each


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: QUERIES["groups"], {"sales": ("shop", "item")}),
        (lambda: QUERIES["latest"], {"stock": ("shop",)}),
        (lambda: QUERIES["except"], {"sales": ("item",), "items": ("item",)}),
        (lambda: QUERIES["computed key"], {}),
        (lambda: QUERIES["union"], {"sales": ("item",), "items": ("maker",)}),
        (lambda: QUERIES["join of three"], {}),
        (lambda: QUERIES["greatest group"], {"sales": ("shop",)}),
        (lambda: Query(count(scan(SALES), "amount"), ("amount",), ""), {"sales": ("amount",)}),
    ],
)
def test_which_tables_some_keys_need_only_in_part(
    make: Callable[[], Query], expected: dict[str, tuple[str, ...]]
) -> None:
    assert prunable(make().plan("v")) == expected
