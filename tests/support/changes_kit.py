"""Changes of views as tests want them: a random history of a multiset of rows, and what becomes of a table by them."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from upriver.hashing import hash64
from upriver.ids import Epoch
from upriver.lake.change_log import LogRecord, commit_changes
from upriver.lake.change_parts import write_parts
from upriver.lake.lake import LakeRecord, OwnedLake
from upriver.state.changes import ChangeCommit, changes_schema, part_schema

SCHEMA = "k string, n long, _change_type string, _commit_version long, _commit_timestamp timestamp"
VIEW = pa.schema([("k", pa.string()), ("n", pa.int64())])
ARROW_SCHEMA = changes_schema(VIEW)
AT = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = ("a", "b", "c", "d", None)

Rows = Counter[tuple[Any, ...]]
"""A multiset of rows."""
Change = tuple[Any, ...]
"""A row, and how it has changed: type, version, timestamp."""


def change(row: Sequence[Any], kind: str, version: int) -> Change:
    return (*row, kind, version, AT)


def stamped(changes: Iterable[Change]) -> list[Change]:
    """Each version was committed as many seconds after ``AT``."""
    return [(*rest, version, AT + timedelta(seconds=version)) for *rest, version, _ in changes]


def random_history(seed: int, versions: int, *, one_row: bool) -> tuple[list[list[Change]], list[Rows]]:
    """By version: the changes, and the rows after it. one_row: whether each key has one row at most."""
    draw, now = random.Random(seed), Rows()
    changes, states = [], []
    for version in range(1, versions + 1):
        told = []
        for key in draw.sample(KEYS, draw.randint(1, 3)):
            own = [row for row in now.elements() if row[0] == key]
            row = (key, draw.randint(0, 2))
            if own and draw.random() < 0.5:
                before = draw.choice(own)
                if before != row:
                    told += [change(before, "update_preimage", version), change(row, "update_postimage", version)]
                    now[row] += 1
                    now[before] -= 1
            elif own and draw.random() < 0.5:
                gone = draw.choice(own)
                told.append(change(gone, "delete", version))
                now[gone] -= 1
            elif not (own and one_row):
                copies = 1 if one_row else draw.randint(1, 3)
                told += [change(row, "insert", version)] * copies
                now[row] += copies
        changes.append(told)
        states.append(+now)
    return changes, states


def merged(table: Rows, rows: Iterable[Sequence[Any]]) -> Rows:
    """What the MERGE makes of a table. rows: (action, columns ...), the first column being the key."""
    told = [tuple(row) for row in rows]
    deleted = [row[1] for row in told if row[0] == "delete"]
    assert len(deleted) == len(set(deleted))
    kept = Rows({row: count for row, count in table.items() if row[0] not in deleted})
    return kept + Rows(row[1:] for row in told if row[0] == "insert")


def sum_of(changes: Iterable[Sequence[Any]]) -> Rows:
    """The rows that a view has after changes from its start. changes: as ``change`` makes them."""
    total = Rows()
    for *row, kind, _, _ in changes:
        total[tuple(row)] += 1 if kind in ("insert", "update_postimage") else -1
    assert min(total.values(), default=0) >= 0
    return +total


class WrittenLog:
    """The log of a view in a lake without tables. It begins with version 1."""

    def __init__(self, root: Path, view: str, vnodes: int = 16) -> None:
        self.root, self.view = str(root), view
        self._lake = OwnedLake(self.root, LakeRecord(vnodes, (), {}), {})
        self._commits = 0
        self._begins = Epoch(1)

    def commit(
        self,
        through: int,
        changes: Sequence[Change],
        begins: int | None = None,
        earliest: int | None = None,
        earliest_at: datetime | None = None,
    ) -> None:
        """The changes up to a version. begins: a new log does, at this version. earliest: older versions are gone.
        earliest_at: when that one was committed; folds of older releases do not say it."""
        self._begins = self._begins if begins is None else Epoch(begins)
        self._commits += 1
        parts = write_parts(self._lake, self.view, "test", _part(changes)) if changes else ()
        made = ChangeCommit(
            number=self._commits,
            through=Epoch(through),
            term=self._lake.term,
            made_at=AT.timestamp() + through,
            begins={self.view: self._begins},
            parts=parts,
            first=self._commits,
            earliest={} if earliest is None else {self.view: Epoch(earliest)},
            earliest_at={} if earliest_at is None else {self.view: earliest_at.timestamp()},
        )
        record = LogRecord(view=self.view, begins=self._begins, key=("k",), schema=VIEW, fingerprint="f")
        commit_changes(self._lake, made, [record])

    def release(self) -> None:
        self._lake.release()


def arrow_changes(changes: Sequence[Change]) -> pa.Table:
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*changes, strict=True), ARROW_SCHEMA, strict=True)
    ]
    return pa.table(columns, schema=ARROW_SCHEMA)


def _part(changes: Sequence[Change]) -> pa.Table:
    rows = arrow_changes(changes)
    hashes = hash64([rows.column("k").combine_chunks()], rows.num_rows)
    order = np.lexsort((hashes, rows.column("_commit_version").to_numpy()))
    return pa.table([pa.array(hashes), *rows.columns], schema=part_schema(VIEW)).take(pa.array(order))
