"""Which source feeds a table: one that replaces another does so once, wherever the driver was killed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from upriver.lake.lake import LakeRecord, OwnedLake
from upriver.lake.source_records import SourceRecord, current_source, source_of
from upriver.plan.plan import TableSpec

TABLE = TableSpec("orders", pa.schema([("k", pa.int64())]), ("k",))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    lake = OwnedLake(str(tmp_path / "lake"), LakeRecord(4, (TABLE,), {"orders": (("k",),)}), {})
    yield lake
    lake.release()


def started(lake: OwnedLake, source: str, last_query: str | None, *, replace: bool = False) -> SourceRecord:
    return source_of(lake, "orders", source, last_query, replaces_others=replace)


def spark_has(lake: OwnedLake, record: SourceRecord, query: str) -> None:
    """Spark has begun a checkpoint."""
    lake.files.create(f"{record.directory('orders')}/metadata", json.dumps({"id": query}).encode())


def test_a_table_keeps_its_source(lake: OwnedLake) -> None:
    assert current_source(lake, "orders") is None
    first = started(lake, "a", None)
    assert (first, first.directory("orders")) == (SourceRecord("a"), "ingest/orders")
    spark_has(lake, first, "q")
    assert started(lake, "a", "q") == first
    assert lake.files.names("sources/orders") == ["1.json"]
    assert first.accepts(None, "q")
    assert first.accepts("q", "q")
    assert not first.accepts("other", "q")


def test_a_source_is_replaced_once(lake: OwnedLake) -> None:
    spark_has(lake, started(lake, "a", None), "q")
    second = started(lake, "b", "q", replace=True)
    assert (second, second.directory("orders")) == (SourceRecord("b", 1, "q"), "ingest/orders.1")
    assert second.accepts("q", "r")
    assert second.accepts("r", "r")
    assert not second.accepts("p", "r")
    for replace in (True, False, True):  # killed before, or after, Spark has begun; then before its first epoch
        assert started(lake, "b", "q", replace=replace) == second
    spark_has(lake, second, "r")
    for last in ("q", "r", "r"):
        assert started(lake, "b", last, replace=True) == started(lake, "b", last) == second
    assert len(lake.files.names("sources/orders")) == 2
    third = started(lake, "a", "r", replace=True)
    assert third == SourceRecord("a", 2, "r")
    assert started(lake, "a", "r", replace=True) == current_source(lake, "orders") == third


def test_a_source_that_is_there_from_the_start_replaces_none(lake: OwnedLake) -> None:
    first = started(lake, "a", None, replace=True)
    assert first == SourceRecord("a")
    assert started(lake, "a", None, replace=True) == first
    spark_has(lake, first, "q")
    assert started(lake, "a", "q", replace=True) == first
    assert started(lake, "b", None, replace=True) == SourceRecord("b", 1, None)


def test_a_source_goes_on_where_a_load_was(lake: OwnedLake) -> None:
    refused = started(lake, "a", "load")
    assert not refused.accepts("load", "q")
    spark_has(lake, refused, "q")
    replacing = started(lake, "a", "load", replace=True)
    assert replacing == SourceRecord("a", 1, "load")
    assert replacing.accepts("load", "r")


def test_a_lost_checkpoint_is_replaced_where_that_is_asked_for(lake: OwnedLake) -> None:
    first = started(lake, "a", None)
    assert not started(lake, "a", "q").accepts("q", "r")  # Spark begins another one
    spark_has(lake, first, "r")
    assert started(lake, "a", "q", replace=True) == SourceRecord("a", 1, "q")


def test_a_source_that_moves_without_being_replaced_keeps_its_checkpoint(lake: OwnedLake) -> None:
    spark_has(lake, started(lake, "a", None), "q")
    assert started(lake, "b", "q") == SourceRecord("b")
    assert started(lake, "b", "q", replace=True) == SourceRecord("b")  # it is the current one
    assert started(lake, "a", "q", replace=True) == SourceRecord("a", 1, "q")


def test_a_table_from_before_sources_were_recorded(lake: OwnedLake) -> None:
    spark_has(lake, SourceRecord("a"), "q")
    assert started(lake, "a", "q") == SourceRecord("a")
    lake.files.remove("sources/orders/1.json")
    assert started(lake, "a", "q", replace=True) == SourceRecord("a", 1, "q")
