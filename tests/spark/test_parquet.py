"""Files of Parquet as Arrow: which row groups a range has, and which files are left to Spark."""

import pickle
import re
from dataclasses import replace
from datetime import date
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from s3_kit import BUCKET, SECRET, S3Server

from upriver.lake.address import Root
from upriver.lake.object_store import open_object_store
from upriver.spark.file_scans import shared
from upriver.spark.parquet import READ_BYTES_MAX, FileChanged, FileRange, FileScan, NotAsArrow, ScannedColumn, groups_in

EVERYTHING = 1 << 60
K = ScannedColumn(pa.int64(), "k")


def read(
    path: Path, *columns: ScannedColumn, is_case_sensitive: bool = False, **of_range: object
) -> list[dict[str, object]]:
    each = FileRange(str(path), 0, EVERYTHING, **of_range)  # type: ignore[arg-type]
    scan = FileScan(((each,),), columns, is_case_sensitive)
    return [row for rows in scan.rows(0) for row in rows.to_pylist()]


@given(st.lists(st.integers(0, 4000), max_size=6), st.integers(1, 7))
def test_each_row_group_belongs_to_one_range(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], group: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "file"
    pq.write_table(pa.table({"k": range(20), "t": [f"text {n}" for n in range(20)]}), path, row_group_size=group)
    metadata = pq.read_metadata(path)
    ends = [0, *sorted(cuts), EVERYTHING]
    found = [number for start, end in pairwise(ends) for number in groups_in(metadata, start, end)]
    assert found == list(range(metadata.num_row_groups))


@given(st.lists(st.integers(0, 100), max_size=20), st.integers(1, 8))
def test_ranges_are_shared_in_their_order(sizes: list[int], tasks: int) -> None:
    ranges = [FileRange(f"{number}", 0, size) for number, size in enumerate(sizes)]
    parts = shared(ranges, tasks)
    assert [each for part in parts for each in part] == ranges
    assert 1 <= len(parts) <= tasks
    fair = sum(sizes) / len(parts) + max(sizes, default=0)
    assert all(sum(each.end for each in part) <= fair for part in parts)


def test_columns_are_found_by_name_and_missing_ones_are_null(tmp_path: Path) -> None:
    pq.write_table(pa.table({"other": [1.5], "K": [7]}), tmp_path / "f")
    columns = (K, ScannedColumn(pa.string(), "gone"), ScannedColumn(pa.date32(), place=0), ScannedColumn(pa.int8()))
    assert read(tmp_path / "f", *columns, values=(1,)) == [{"c0": 7, "c1": None, "c2": date(1970, 1, 2), "c3": None}]
    assert read(tmp_path / "f", K, is_case_sensitive=True) == [{"c0": None}]


def test_a_scan_without_columns_of_the_file_has_its_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [1, 2, 3]}), tmp_path / "f", row_group_size=2)
    assert read(tmp_path / "f", ScannedColumn(pa.int8(), "gone")) == [{"c0": None}] * 3


def julian(path: Path, version: str, note: str | None) -> None:
    notes = {"org.apache.spark.version": version} | ({} if note is None else {note: ""})
    days = pa.table({"d": pa.array([date(1500, 1, 1)])})
    pq.write_table(days.replace_schema_metadata(notes), path)


@pytest.mark.parametrize(("version", "note"), [("2.4.8", None), ("3.5.0", "org.apache.spark.legacyDateTime")])
def test_days_of_the_julian_calendar_are_left_to_spark(tmp_path: Path, version: str, note: str | None) -> None:
    julian(tmp_path / "f", version, note)
    with pytest.raises(NotAsArrow, match="calendar"):
        read(tmp_path / "f", ScannedColumn(pa.date32(), "d"))
    julian(tmp_path / "g", "4.0.0", None)
    assert read(tmp_path / "g", ScannedColumn(pa.date32(), "d")) == [{"c0": date(1500, 1, 1)}]


def test_what_spark_reads_in_its_own_way_is_left_to_it(tmp_path: Path) -> None:
    unsigned = pa.array([2**63], pa.uint64())
    pq.write_table(pa.table([[[1]], unsigned, [1], [2]], ["list", "unsigned", "d.t", "t"]), tmp_path / "f")
    for column in (
        ScannedColumn(pa.list_(pa.int64()), "list"),
        ScannedColumn(pa.int64(), "unsigned"),
        ScannedColumn(pa.int64(), "d.t"),
        ScannedColumn(pa.string(), "t"),
    ):
        with pytest.raises(NotAsArrow, match=str(column.name)):
            read(tmp_path / "f", column)
    pq.write_table(pa.table([[1], [2]], ["k", "K"]), tmp_path / "twice")
    with pytest.raises(NotAsArrow, match="several"):
        read(tmp_path / "twice", K)


@pytest.mark.parametrize(
    ("column", "name"),
    [
        (pa.array(["a long text" * 100] * 50_000).dictionary_encode(), "k"),
        (pa.nulls(1_500_000, pa.int64()), "k"),
        (pa.nulls(3_000_000, pa.int8()), "gone"),
    ],
)
def test_batches_are_as_large_in_memory_however_small_the_file(tmp_path: Path, column: pa.Array, name: str) -> None:
    pq.write_table(pa.table({"k": column}), tmp_path / "f", row_group_size=3_000_000)
    type = column.type.value_type if pa.types.is_dictionary(column.type) else pa.int64()
    each = FileRange(str(tmp_path / "f"), 0, EVERYTHING)
    column_scanned = ScannedColumn(pa.int8() if name == "gone" else type, name)
    sizes = [(len(rows), rows.nbytes) for rows in FileScan(((each,),), (column_scanned,), False).rows(0)]
    assert sum(rows for rows, _ in sizes) == len(column)
    assert max(size for _, size in sizes) <= READ_BYTES_MAX * 1.2


def test_files_in_a_bucket_are_read_with_its_settings(s3: S3Server, tmp_path: Path) -> None:
    root = Root(f"s3a://{BUCKET}", s3.options)
    pq.write_table(pa.table({"k": range(5000), "t": ["text"] * 5000}), tmp_path / "f", row_group_size=1000)
    open_object_store(root).create("files/with space.parquet", (tmp_path / "f").read_bytes())
    path = f"{root}/files/with space.parquet"
    ranges = FileRange(path, 0, 8000), FileRange(path, 8000, EVERYTHING)
    scan = FileScan((ranges,), (K, ScannedColumn(pa.string(), "t")), False, (root,))
    again = pickle.loads(pickle.dumps(scan))
    assert sorted(row["c0"] for rows in again.rows(0) for row in rows.to_pylist()) == list(range(5000))
    assert SECRET not in repr(again)
    for wrong in (FileRange(f"{root}/gone", 0, 9), FileRange(path, 0, 9, size=9, modified_ms=9)):
        with pytest.raises((NotAsArrow, FileChanged), match=re.escape(wrong.path)):
            list(replace(scan, tasks=((wrong,),)).rows(0))
    with pytest.raises(NotAsArrow, match=re.escape(path)):
        list(replace(scan, buckets=()).rows(0))


def test_files_that_are_broken_gone_or_changed_are_named(tmp_path: Path) -> None:
    path = tmp_path / "f"
    pq.write_table(pa.table({"k": [1]}), path)
    at = path.stat()
    assert read(path, K, size=at.st_size, modified_ms=at.st_mtime_ns // 1_000_000) == [{"c0": 1}]
    with pytest.raises(FileChanged, match="has changed"):
        read(path, K, size=at.st_size, modified_ms=at.st_mtime_ns // 1_000_000 - 1)
    whole = path.read_bytes()
    for content in (b"", b"PAR1", whole[:-9], whole[:4] + b"\xff" * (len(whole) - 40) + whole[-36:]):
        path.write_bytes(content)
        with pytest.raises(NotAsArrow, match=str(path)):
            read(path, K)
    path.unlink()
    with pytest.raises(NotAsArrow, match=str(path)):
        read(path, K)
