"""Roots that old versions have left: what is in them is read, merged and collected like everything else."""

import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from old_root_kit import FILES, OLD_ROOTS, PRICES, VNODES, rows_of

from upriver.ids import Channel, Epoch, VnodeId
from upriver.lake.checkpoints import places, sweep_places
from upriver.lake.collection import collect, remove_litter, superseded
from upriver.lake.control import find_control
from upriver.lake.lake import Lake, LakeRecord, OwnedLake
from upriver.lake.report import report_of
from upriver.lake.spans import FAN_IN
from upriver.lake.upkeep import compact
from upriver.plan.plan import lake_channel

VERSIONS = {"0.1": 2, "0.2": 3}
"""With the formats that they wrote."""
EPOCHS = 2 * FILES + 1
ROWS = {
    "events": Counter(row for file in range(FILES) for row in rows_of("events", file)),
    "users": Counter(row for file in range(FILES) for row in rows_of("users", file)),
    "prices": Counter(PRICES),
}
INDEXES = [("events", "k"), ("events", "g"), ("users", "k"), ("prices", "g")]


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def root(version: str, tmp_path: Path) -> str:
    with tarfile.open(OLD_ROOTS / f"{version}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return str(tmp_path)


def record_of(lake: Lake) -> LakeRecord:
    record = lake.record()
    assert record is not None
    return record


def rows_in(lake: Lake, channel: Channel) -> Counter[tuple[Any, ...]]:
    """All rows on a lake edge, of all epochs."""
    tables = {table.name: table for table in record_of(lake).tables}
    found: Counter[tuple[Any, ...]] = Counter()
    for span in lake.spans(lake.last_epoch()):
        for batch in lake.read(
            lake.epochs(span), channel, frozenset(map(VnodeId, range(VNODES))), tables[channel.partition("/")[0]]
        ):
            found.update(zip(*(column.to_pylist() for column in batch.columns[1:]), strict=True))
    return found


def test_every_row_of_an_old_root_is_read(root: str, version: str) -> None:
    lake = Lake(root)
    assert (lake.read_record("app.json")["format"], lake.last_epoch()) == (VERSIONS[version], EPOCHS)
    for table, key in INDEXES:
        assert rows_in(lake, lake_channel(table, (key,))) == ROWS[table], (table, key)
    assert report_of(lake, 0.0).epochs == EPOCHS


def test_what_an_old_driver_has_left_is_known_or_passed_over(root: str, version: str) -> None:
    lake = Lake(root)
    found = find_control(lake)
    assert found.damaged == ()
    assert lake.sets_aside() == frozenset()
    assert lake.files.names("checkpoints") != []
    assert places(lake) == []


def test_checkpoints_of_an_old_driver_are_removed_by_the_first_sweep(root: str) -> None:
    lake = OwnedLake(root, record_of(Lake(root)), {})
    try:
        found = [file for name in lake.files.names("checkpoints") for file in lake.files.names(f"checkpoints/{name}")]
        assert sweep_places(lake, []) == len(found) > 0
        assert lake.files.names("checkpoints") == []
    finally:
        lake.release()


def test_old_epochs_become_a_segment(root: str) -> None:
    record = record_of(Lake(root))
    lake = OwnedLake(root, record, {})
    try:
        assert lake.record() == record
        for epoch in range(EPOCHS + 1, FAN_IN + 1):  # as many as a segment needs: of the rows of the first epoch
            lake.publish(replace(lake.manifest(Epoch(1)), epoch=Epoch(epoch), term=lake.term, batch=EPOCHS + epoch))
        by_g = lake_channel("events", ("g",))
        before = rows_in(lake, by_g)
        (segment,) = compact(lake, lake.last_epoch())
        collect(lake, superseded(lake, lake.last_epoch(), segment.made_at + 1))
        remove_litter(lake, lake.run_paths())
        assert list(lake.numbers("epochs")) == []
        assert rows_in(lake, by_g) == before
        assert sum(before.values()) >= sum(ROWS["events"].values())
    finally:
        lake.release()
