"""The log of views' changes, with files on disk."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from upriver.errors import ChangesGone, CorruptFile, LakeInUse, ProtocolError, UnknownView
from upriver.hashing import hash64
from upriver.ids import Epoch
from upriver.lake.change_log import ChangeLog, LogRecord, commit_changes
from upriver.lake.change_parts import ROWS, write_parts
from upriver.lake.lake import Lake, LakeRecord, OwnedLake
from upriver.state.changes import ChangeCommit, ChangePart, changes_schema, part_schema
from upriver.vnodes import VnodeGroup

VIEW = pa.schema([("k", pa.int64()), ("n", pa.int64())])
AT = datetime(2026, 1, 2, tzinfo=UTC)
Row = tuple[int, int, str, int]
"""key, value, change, version."""


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    owned = OwnedLake(str(tmp_path / "lake"), LakeRecord(8, (), {}), {})
    yield owned
    owned.release()


def part(lake: OwnedLake, rows: Sequence[Row], view: str = "v") -> ChangePart:
    keys = pa.array([row[0] for row in rows], pa.int64())
    columns = [
        pa.array(hash64([keys], len(rows))),
        keys,
        pa.array([row[1] for row in rows], pa.int64()),
        pa.array([row[2] for row in rows]),
        pa.array([row[3] for row in rows], pa.int64()),
        pa.array([AT] * len(rows), pa.timestamp("us", tz="UTC")),
    ]
    (written,) = write_parts(lake, view, "test", pa.Table.from_arrays(columns, schema=part_schema(VIEW)))
    return written


def commit(
    lake: OwnedLake, number: int, through: int, parts: Iterable[ChangePart], begins: int = 3, view: str = "v"
) -> None:
    record = LogRecord(view=view, begins=Epoch(begins), key=("k",), schema=VIEW, fingerprint=f"of {view}")
    made = ChangeCommit(
        number=number,
        through=Epoch(through),
        term=lake.term,
        made_at=float(through),
        begins={view: Epoch(begins)},
        parts=tuple(parts),
        first=number,
    )
    commit_changes(lake, made, [record])


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    rows = []
    for batch in batches:
        assert batch.schema.equals(changes_schema(VIEW))
        rows += [
            (row["k"], row["n"], row["_change_type"], row["_commit_version"])
            for row in batch.to_pylist()
            if row["_commit_timestamp"] == AT
        ]
    return rows


BASE = [(1, 10, "insert", 3), (2, 20, "insert", 3)]
FIFTH = [(1, 10, "update_preimage", 5), (1, 11, "update_postimage", 5)]
SIXTH = [(2, 20, "delete", 6), (7, 70, "insert", 6)]


@pytest.fixture
def three(lake: OwnedLake) -> OwnedLake:
    """The log of one view: all rows at version 3, and the changes of versions 5 and 6, from two workers."""
    commit(lake, 1, 3, [part(lake, BASE[1:]), part(lake, BASE[:1])])
    commit(lake, 2, 4, [])
    commit(lake, 3, 7, [part(lake, [*FIFTH, SIXTH[0]]), part(lake, SIXTH[1:])])
    return lake


def test_the_log_gives_all_rows_at_first_and_then_each_version_once(three: OwnedLake) -> None:
    log = ChangeLog(Lake(three.root))
    assert (log.first("v"), log.last("v"), log.views()) == (3, 7, ["v"])
    found = rows_of(log.changes("v", None, Epoch(7)))
    assert [row[3] for row in found] == [3, 3, 5, 5, 6, 6]
    assert sorted(found[:2]) == BASE
    assert found[2:4] == FIFTH
    assert sorted(found[4:]) == SIXTH


def test_a_reader_goes_on_after_the_version_that_it_has(three: OwnedLake) -> None:
    log = ChangeLog(three)
    assert rows_of(log.changes("v", Epoch(3), Epoch(5))) == FIFTH
    assert sorted(rows_of(log.changes("v", Epoch(5), Epoch(7)))) == SIXTH
    assert rows_of(log.changes("v", Epoch(7), Epoch(7))) == []


def test_a_log_sees_later_commits(three: OwnedLake) -> None:
    log = ChangeLog(three)
    assert log.last("v") == 7
    commit(three, 4, 8, [part(three, [(9, 90, "insert", 8)])])
    assert rows_of(log.changes("v", Epoch(7), log.last("v"))) == [(9, 90, "insert", 8)]


def test_groups_of_vnodes_share_the_changes_and_keys_pick_them(three: OwnedLake) -> None:
    log = ChangeLog(three)
    groups = [rows_of(log.changes("v", None, Epoch(7), group)) for group in VnodeGroup.all(8, 3)]
    assert sorted(row for rows in groups for row in rows) == sorted([*BASE, *FIFTH, *SIXTH])
    one = hash64([pa.array([1], pa.int64())], 1)
    assert rows_of(log.changes("v", None, Epoch(7), keys=one)) == [BASE[0], *FIFTH]
    assert rows_of(log.changes("v", None, Epoch(7), keys=np.empty(0, np.uint64))) == []


def test_changes_before_the_log_are_gone_and_the_error_says_how_to_go_on(three: OwnedLake) -> None:
    with pytest.raises(ChangesGone, match=r"after version 2 are gone.*is 3: read it from the start"):
        list(ChangeLog(three).changes("v", Epoch(2), Epoch(7)))


def test_a_view_that_is_declared_anew_begins_a_log(three: OwnedLake) -> None:
    commit(three, 4, 9, [part(three, [(5, 50, "insert", 8)])], begins=8)
    log = ChangeLog(three)
    assert rows_of(log.changes("v", None, Epoch(9))) == [(5, 50, "insert", 8)]
    with pytest.raises(ChangesGone, match="is 8"):
        list(log.changes("v", Epoch(7), Epoch(9)))


def test_a_view_without_a_log_is_named(three: OwnedLake) -> None:
    with pytest.raises(UnknownView, match=r"'w' has no log of changes.*kept of: v"):
        ChangeLog(three).last("w")
    with pytest.raises(ProtocolError, match="changes through 9"):
        list(ChangeLog(three).changes("v", None, Epoch(9)))


def test_the_first_write_of_a_commit_counts(three: OwnedLake) -> None:
    commit(three, 2, 4, [])  # again, as after an answer that was lost
    with pytest.raises(LakeInUse, match="written by another driver"):
        commit(three, 3, 7, [])
    assert ChangeLog(three).last("v") == 7


def test_the_end_of_the_logs_is_found(three: OwnedLake) -> None:
    commit(three, 4, 9, [], view="w", begins=9)  # which drops v
    end = ChangeLog(three).end()
    assert (end.number, end.through) == (4, 9)
    assert end.begins == {"w": (9, "of w")}
    assert end.ends == {"v": 7, "w": 9}


def test_a_damaged_part_is_named(three: OwnedLake, tmp_path: Path) -> None:
    (name, *_) = three.files.names(f"{ROWS}/v")
    path = tmp_path / "lake" / ROWS / "v" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(CorruptFile, match=name):
        list(ChangeLog(three).changes("v", None, Epoch(7)))
