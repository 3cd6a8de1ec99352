"""The log of epochs: a commit whose answer was lost counts once. Needs no session."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from upriver.errors import LakeInUse, NotWritten
from upriver.ids import Channel, Epoch
from upriver.lake.files import Files
from upriver.lake.ingest_history import IngestHistory
from upriver.lake.lake import LakeRecord, OwnedLake
from upriver.lake.manifests import Manifest
from upriver.plan.plan import TableSpec
from upriver.spark.ingest import EpochLog

TABLES = tuple(TableSpec(name, pa.schema([("k", pa.int64())]), ("k",)) for name in ("a", "b"))
RUNS = {"a": {Channel("a/k"): ()}, "b": {Channel("b/k"): ()}}


class Losing:
    """Files that create what they are told, and say once that they did not."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.loses = False
        self.creates = True

    def create(self, path: str, content: bytes | pa.Buffer) -> None:
        if self.creates:
            self._files.create(path, content)
        if self.loses:
            self.loses, self.creates = False, True
            raise NotWritten(f"{path}: no answer")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class LoggedLake:
    """A lake, its log, and what the log has told."""

    def __init__(self, root: Path) -> None:
        record = LakeRecord(8, TABLES, {"a": (("k",),), "b": (("k",),)})
        self.lake = OwnedLake(str(root), record, {})
        self.files = self.lake.files = Losing(self.lake.files)
        self.told: list[tuple[int, str, int]] = []
        self.log = EpochLog(self.lake, IngestHistory(), self.tell)

    def tell(self, manifest: Manifest) -> None:
        self.told.append((manifest.epoch, manifest.table, manifest.batch))

    def publish(self, table: str, batch: int) -> None:
        assert self.log.publish(table, "q", batch, RUNS[table]) == ()

    def lose(self, table: str, batch: int, *, creates: bool = True) -> None:
        self.files.loses, self.files.creates = True, creates
        with pytest.raises(NotWritten, match="no answer"):
            self.log.publish(table, "q", batch, RUNS[table])

    def there(self) -> list[tuple[int, str, int]]:
        epochs = range(1, self.lake.last_epoch() + 1)
        manifests = (self.lake.manifest(Epoch(epoch)) for epoch in epochs)
        return [(manifest.epoch, manifest.table, manifest.batch) for manifest in manifests]


@pytest.fixture
def logged(tmp_path: Path) -> Any:
    logged = LoggedLake(tmp_path / "lake")
    yield logged
    logged.lake.release()


def test_a_commit_without_an_answer_is_found_by_the_next_attempt(logged: LoggedLake) -> None:
    """Rule lake.own_epoch_is_found."""
    logged.publish("a", 0)
    logged.lose("a", 1)
    assert logged.told == [(1, "a", 0)]
    logged.publish("a", 1)
    logged.publish("a", 2)
    assert logged.told == logged.there() == [(1, "a", 0), (2, "a", 1), (3, "a", 2)]
    assert logged.log.last_batch("a") == 2


def test_another_table_finds_it_too(logged: LoggedLake) -> None:
    logged.lose("a", 0)
    logged.publish("b", 0)
    assert logged.told == logged.there() == [(1, "a", 0), (2, "b", 0)]
    assert logged.log.last_batch("a") == 0  # so its next attempt is skipped


def test_an_index_is_kept_from_behind_it_on(logged: LoggedLake) -> None:
    logged.lose("a", 0)
    assert logged.log.keep("a", ()) == 1
    assert logged.told == [(1, "a", 0)]


def test_a_commit_that_did_fail_is_made_again(logged: LoggedLake) -> None:
    logged.lose("a", 0, creates=False)
    logged.publish("b", 0)
    logged.publish("a", 0)
    assert logged.told == logged.there() == [(1, "b", 0), (2, "a", 0)]


def test_another_drivers_epoch_is_not_ones_own(logged: LoggedLake) -> None:
    logged.lose("a", 0, creates=False)
    other = Manifest(epoch=Epoch(1), term=logged.lake.term, table="a", query="q", batch=0, runs=RUNS["a"])
    logged.lake.write_record("epochs/000000000001.json", {**other.to_json(), "term": other.term + 1})
    with pytest.raises(LakeInUse):
        logged.publish("a", 0)
    assert logged.told == []


# The clock ------------------------------------------------------------------------------------------------------------


def test_a_tick_is_an_epoch_without_rows_that_repeats_the_last_batch(logged: LoggedLake) -> None:
    now = [100.0]
    log = EpochLog(logged.lake, IngestHistory(), logged.tell, clock=lambda: now[0])
    assert log.tick(10.0) == 10.0  # there is no epoch yet, and no row
    log.publish("a", "q", 4, RUNS["a"])
    assert log.tick(10.0) == 10.0
    now[0] = 107.0
    assert log.tick(10.0) == 3.0
    now[0] = 110.0
    assert log.tick(10.0) == 10.0
    assert logged.told == [(1, "a", 4), (2, "a", 4)]
    assert log.last_batch("a") == 4
    log.publish("a", "q", 5, RUNS["a"])
    assert logged.told[-1] == (3, "a", 5)


def test_instants_never_fall_though_the_clock_goes_back(logged: LoggedLake) -> None:
    now = [100.0]
    log = EpochLog(logged.lake, IngestHistory(), logged.tell, clock=lambda: now[0])
    for batch, now[0] in enumerate((100.0, 60.0, 130.0)):
        log.publish("a", "q", batch, RUNS["a"])
    instants = [logged.lake.clock(Epoch(epoch)) for epoch in (1, 2, 3)]
    assert instants == [100_000_000, 100_000_000, 130_000_000]
