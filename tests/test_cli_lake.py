"""``upriver lake``: what a root has, and compaction and collection of a root whose app is stopped."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from upriver.cli import main
from upriver.ids import Epoch, Term, VnodeId
from upriver.lake.checkpoints import newest, publish
from upriver.lake.lake import Lake, LakeRecord, OwnedLake, epoch_path, term_path
from upriver.lake.manifests import Manifest
from upriver.plan.plan import TableSpec, lake_channel
from upriver.state.checkpoint import Checkpoint
from upriver.state.runs import describe_run, encode_run, run_schema

VNODES, EPOCHS = 4, 40
TABLE = TableSpec("events", pa.schema([("k", pa.uint64()), ("n", pa.int64())]), ("k",))
RECORD = LakeRecord(VNODES, (TABLE,), {"events": (("k",),)})
CHANNEL = lake_channel("events", ("k",))
ALL = frozenset(map(VnodeId, range(VNODES)))
KEYS = np.array([1, 2**62, 2**63, 2**64 - 1], np.uint64)


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A stopped app's root: 40 epochs of four rows each."""
    lake = OwnedLake(str(tmp_path / "lake"), RECORD, {"set_aside": ["events"], "workers": 3})
    for epoch in range(1, EPOCHS + 1):
        rows = pa.table([KEYS, KEYS, [epoch] * len(KEYS)], schema=run_schema(TABLE.schema))
        encoded, path = encode_run(rows), f"tables/{CHANNEL}/{epoch:012d}-x-0.arrow"
        lake.files.create(path, encoded)
        runs = {CHANNEL: (describe_run(path, encoded, KEYS, VNODES),)}
        lake.publish(Manifest(epoch=Epoch(epoch), term=lake.term, table="events", query="q", batch=epoch, runs=runs))
    lake.release()
    return lake.root


@pytest.fixture
def in_use(root: str) -> Iterator[OwnedLake]:
    lake = OwnedLake(root, RECORD, {})
    yield lake
    lake.release()


def told(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> dict[str, Any]:
    assert main(["lake", *arguments, "--json"]) == status
    answer: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return answer


def rows_of(lake: Lake) -> list[tuple[int, int]]:
    """All rows, as a view that is new would read them."""
    found: list[tuple[int, int]] = []
    for span in lake.spans(lake.last_epoch()):
        for batch in lake.read(lake.epochs(span), CHANNEL, ALL, TABLE):
            found += zip(*(column.to_pylist() for column in batch.columns[1:]), strict=True)
    return sorted(found)


def checkpoint_at(lake: OwnedLake, epoch: int) -> None:
    publish(lake, Checkpoint(epoch=Epoch(epoch), base=None, regions={}, files=()))


def test_a_report_names_runs_by_index_and_level(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = told(capsys, root)
    assert (before["epochs"], before["spans"], before["manifests"], before["segments"]) == (40, 40, 40, 0)
    assert before["due"] == 2
    (level,) = before["indexes"][CHANNEL].items()
    assert level[0] == "0"
    assert (level[1]["spans"], level[1]["runs"], level[1]["rows"]) == (40, 40, 160)
    assert before["removable"] == {"epochs": 0, "runs": 0, "bytes": 0}


def test_compaction_and_collection_leave_all_rows(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = rows_of(Lake(root))
    assert told(capsys, "compact", root) == {"horizon": 40, "made": 2, "spans": 10}
    report = told(capsys, root, "--grace", "0")
    assert (report["manifests"], report["segments"], report["due"]) == (40, 2, 0)
    assert {level: tier["runs"] for level, tier in report["indexes"][CHANNEL].items()} == {"0": 8, "1": 2}
    assert told(capsys, "collect", root)["removed"]["epochs"] == 0  # the usual grace is an hour
    assert told(capsys, "collect", root, "--grace", "0")["removed"] == report["removable"]
    lake = Lake(root)
    assert sorted(lake.numbers("epochs")) == list(range(33, 41))
    assert len(lake.files.names(f"tables/{CHANNEL}")) == 10
    assert rows_of(lake) == before


def test_collection_removes_runs_that_nothing_names(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    Lake(root).files.create(f"tables/{CHANNEL}/litter.arrow", b"of a batch that was never published")
    assert told(capsys, "collect", root)["removed"]["runs"] == 1
    assert len(Lake(root).files.names(f"tables/{CHANNEL}")) == EPOCHS


def test_compact_names_a_damaged_run_and_compacts_all_other_epochs(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before, name = rows_of(Lake(root)), Lake(root).manifest(Epoch(20)).runs[CHANNEL][0].path
    content = Path(root, name).read_bytes()
    Path(root, name).write_bytes(content[: len(content) // 2])
    assert main(["lake", "compact", root, "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"horizon": 40, "made": 1, "spans": 25}
    assert f"epochs 17 to 32 stay as they are: {name}" in printed.err
    Path(root, name).write_bytes(content)
    assert told(capsys, "compact", root) == {"horizon": 40, "made": 1, "spans": 10}
    assert rows_of(Lake(root)) == before


def test_a_damaged_segment_is_made_again_from_its_epochs(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    before, segment = rows_of(Lake(root)), Path(root, "segments/000000000032-000000000017.json")
    told(capsys, "compact", root)
    segment.write_bytes(b"")
    assert main(["lake", root]) == 1
    error = capsys.readouterr().err
    assert str(segment) in error
    assert "the next start of the app" in error
    assert told(capsys, "compact", root)["made"] == 1
    told(capsys, "collect", root, "--grace", "0")
    assert rows_of(Lake(root)) == before


def test_no_segment_contains_the_end_of_the_newest_checkpoint(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    owned = OwnedLake(root, RECORD, {})
    checkpoint_at(owned, 5)
    checkpoint_at(owned, 20)
    owned.release()
    assert told(capsys, "compact", root) == {"horizon": 20, "made": 1, "spans": 25}
    told(capsys, "collect", root, "--grace", "0")
    assert Lake(root).ends_a_span(Epoch(20))
    assert newest(Lake(root)) == 20
    assert newest(Lake(root), before=Epoch(20)) is None  # checkpoints.not_within_a_segment


def test_the_next_driver_finds_what_the_last_one_recorded(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "compact", root)
    lake = Lake(root)
    facts = lake.read_record(term_path(Term(lake.last_number("control"))))
    assert (lake.sets_aside(), facts["workers"]) == (frozenset({"events"}), 3)
    assert lake.files.names("schemas") == []


def test_a_root_in_use_is_refused(in_use: OwnedLake, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lake", "compact", in_use.root]) == 1
    error = capsys.readouterr().err
    assert "is in use by process" in error
    assert "a running app compacts and collects by itself" in error
    assert told(capsys, in_use.root)["spans"] == EPOCHS  # a report needs no lock
    in_use.check_owner()


def test_lost_manifests_are_found_before_anything_is_removed(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    lake = Lake(root)
    lake.files.remove(epoch_path(Epoch(40)))
    lake.files.create("ingest/events/commits/40", b"")
    assert main(["lake", "collect", root, "--grace", "0"]) == 1
    assert "the last manifests are gone" in capsys.readouterr().err
    assert len(lake.files.names(f"tables/{CHANNEL}")) == EPOCHS


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{root}/none"], "there is no app's lake"),
        (["compact", "{root}/none"], "there is no app's lake"),
        (["compact", "{root}", "--grace", "1"], "--grace goes without compact"),
        (["collect", "{root}", "--grace", "-1"], "--grace=-1.0: give a number of seconds, 0 or more"),
        (["collect", "s3://bucket/lake"], "stop it, and give --stopped"),
    ],
)
def test_wrong_requests_end_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["lake", *(argument.format(root=tmp_path) for argument in arguments)]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_person_gets_tables(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([root], ["compact", root], ["collect", root]):
        assert main(["lake", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{root}: 40 epochs in 40 spans (40 manifests, 0 segments)"
    assert lines[2].split() == ["index", "level", "spans", "runs", "rows", "size"]
    assert lines[4].split()[:5] == ["events/k", "0", "40", "40", "160"]
    assert lines[-2:] == [
        "made 2 segments up to epoch 40: 10 spans",
        "removed 0 manifests and segments, 0 runs (0 B of those named)",
    ]
