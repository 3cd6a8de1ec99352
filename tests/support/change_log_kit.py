"""Reads of the log of a view's changes, checked as they are read."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from upriver.ids import Epoch
from upriver.lake.change_log import ChangeLog

Row = tuple[Any, ...]
COMES = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}


def versions_of(log: ChangeLog, view: str, after: int | None = None) -> Iterator[tuple[int, Counter[Row]]]:
    """All versions with changes after one, each with its rows and by how much their numbers change."""
    given = None if after is None else Epoch(after)
    yield from by_version(log.changes(view, given, log.last(view)))


def by_version(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Counter[Row]]]:
    version, changed = -1, Counter[Row]()
    for batch in batches:
        for row in batch.to_pylist():
            kind, at = row.pop("_change_type"), row.pop("_commit_version")
            row.pop("_commit_timestamp")
            if at != version:
                assert at > version, "versions come in order"
                if changed:
                    yield version, changed
                version, changed = at, Counter()
            changed[tuple(row.values())] += COMES[kind]
    if changed:
        yield version, changed


def replayed(log: ChangeLog, view: str) -> Counter[Row]:
    """The view's rows by its log from the start. Each row that goes is there, so no change comes twice or too early."""
    rows = Counter[Row]()
    for version, changed in versions_of(log, view):
        assert all(changed.values()), f"version {version} has changes that cancel out"
        for row, by in changed.items():
            rows[row] += by
            assert rows[row] >= 0, f"version {version} takes back {row}, which is not there"
    return +rows
