"""What a driver that was killed has left in Spark's checkpoint, and what of it is swept."""

import json
from pathlib import Path

import pytest
from store_kit import files_in_store_at

from upriver.lake.files import Files, LocalFiles
from upriver.lake.spark_checkpoint import query_of, sweep_checkpoint

UUID = "0c5a9f1c-4f5e-4b8c-9f5e-3a7c1d2e4f5a"
METADATA = {"metadata": json.dumps({"id": UUID}), ".metadata.crc": "crc"}
OFFSETS = {"offsets/0": 'v1\n{"batchWatermarkMs":0}\n{"logOffset":0}', "offsets/.0.crc": "crc"}
SOURCES = {"sources/0/0": 'v1\n{"path":"file:///events/0.parquet"}'}
UNFINISHED = {
    f"offsets/.0.{UUID}.tmp": "v1\n{",
    f"offsets/..0.{UUID}.tmp.crc": "",
    f".metadata.{UUID}.tmp": "",
    f"sources/0/.0.{UUID}.tmp": "v",
    f"state/0/0/.1.delta.{UUID}.tmp": "",
    "offsets/.0.any-name.tmp": "",
}
COMMITS = {"commits/0": "v1\n{}"}


@pytest.fixture(params=["local", "remote"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    local = LocalFiles(str(tmp_path))
    return local if request.param == "local" else files_in_store_at(tmp_path)


def left(root: Path) -> set[str]:
    directory = root / "ingest" / "t"
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def lay(root: Path, *parts: dict[str, str]) -> None:
    for path, text in (item for part in parts for item in part.items()):
        target = root / "ingest" / "t" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def test_a_table_without_a_checkpoint_has_nothing_to_sweep(files: Files) -> None:
    assert sweep_checkpoint(files, "ingest/t", has_epochs=False) == 0


@pytest.mark.parametrize("has_epochs", [False, True])
def test_unfinished_files_are_removed_wherever_they_lie(files: Files, tmp_path: Path, has_epochs: bool) -> None:
    whole = {**METADATA, **OFFSETS, **SOURCES, **(COMMITS if has_epochs else {})}
    lay(tmp_path, whole, UNFINISHED)
    assert sweep_checkpoint(files, "ingest/t", has_epochs) == len(UNFINISHED)
    assert left(tmp_path) == whole.keys()


@pytest.mark.parametrize("parts", [[METADATA], [METADATA, OFFSETS, SOURCES], [METADATA, SOURCES]])
def test_a_checkpoint_that_is_whole_stays(files: Files, tmp_path: Path, parts: list[dict[str, str]]) -> None:
    """It may say where a source is read from that begins with its newest rows."""
    lay(tmp_path, *parts)
    assert sweep_checkpoint(files, "ingest/t", has_epochs=False) == 0
    assert left(tmp_path) == set().union(*parts)


BROKEN = [
    {"offsets/0": OFFSETS["offsets/0"]},
    SOURCES,
    {**METADATA, "metadata": ""},
    {**METADATA, "metadata": '{"id":'},
    {**METADATA, "offsets/0": ""},
    {**METADATA, "offsets/0": "v1"},
    {**METADATA, "offsets/0": 'v1\n{"batchWatermarkMs":0}\n{"logOff'},
    {**METADATA, "offsets/0": "this is no log"},
    {**METADATA, **OFFSETS, "sources/0/0": ""},
    {"offsets/.0.crc": "crc"},
]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_checkpoint_is_removed_while_nothing_is_committed(
    files: Files, tmp_path: Path, broken: dict[str, str]
) -> None:
    lay(tmp_path, broken, UNFINISHED)
    assert sweep_checkpoint(files, "ingest/t", has_epochs=False) == len(broken) + len(UNFINISHED)
    assert left(tmp_path) == set()


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize(("has_epochs", "commits"), [(True, {}), (False, COMMITS), (True, COMMITS)])
def test_a_broken_checkpoint_of_committed_rows_is_left_for_its_owner(
    files: Files, tmp_path: Path, broken: dict[str, str], has_epochs: bool, commits: dict[str, str]
) -> None:
    lay(tmp_path, broken, commits, UNFINISHED)
    assert sweep_checkpoint(files, "ingest/t", has_epochs) == len(UNFINISHED)
    assert left(tmp_path) == broken.keys() | commits.keys()


def test_other_tables_are_left_alone(files: Files, tmp_path: Path) -> None:
    lay(tmp_path, UNFINISHED)
    assert sweep_checkpoint(files, "ingest/other", has_epochs=False) == 0
    assert left(tmp_path) == UNFINISHED.keys()


def test_a_checkpoint_tells_its_query(files: Files, tmp_path: Path) -> None:
    assert query_of(files, "ingest/t") is None
    lay(tmp_path, METADATA)
    assert query_of(files, "ingest/t") == UUID
    for torn in ("", "{", "[]", "{}"):
        lay(tmp_path, {"metadata": torn})
        assert query_of(files, "ingest/t") is None
