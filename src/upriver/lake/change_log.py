"""The log of views' changes in the lake (docs/internals/changes.md).

::

    changes/views/<view>/<version>.json      a log that begins at that version: the view's key, columns and fingerprint
    changes/rows/<view>/<cut>-<worker>-<id>.arrow     parts: one worker's changes of one view
    changes/commits/<number>.json            a commit: its existence makes the changes of its epochs readable
    changes/folds/<last>-<first>.json        these commits as one, with fewer and larger parts

ChangeLog reads it: any process may, without Spark. The driver that owns the root commits. The first write of a commit's
number counts, so commits come in the order of their epochs, and no epoch is committed twice.
"""

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upriver.errors import (
    ChangesGone,
    CorruptFile,
    DeclarationError,
    LakeInUse,
    ProtocolError,
    UnknownView,
    WaitTimeout,
)
from upriver.hashing import Hashes
from upriver.ids import BEGINNING, Epoch
from upriver.lake.lake import Lake, OwnedLake, sealed
from upriver.plan.plan import DataflowPlan, schema_from_json, schema_to_json
from upriver.state.changes import CHANGE_COLUMNS, COMMIT_VERSION, ChangeCommit, ChangePart, part_schema
from upriver.state.runs import HASH_COLUMN, checksum_of, encode_rows
from upriver.vnodes import VnodeGroup

COMMITS, FOLDS, ROWS, VIEWS = "changes/commits", "changes/folds", "changes/rows", "changes/views"
BATCH_ROWS_MAX = 65_536
"""Rows of one batch that a reader gets."""
BEGIN_S_MAX, BEGIN_POLL_S = 60.0, 0.1
"""Seconds to wait for the beginning of a log, and between two looks."""
READS_MAX = 3
"""How often a reader looks for the files anew, if one is gone because it was folded meanwhile."""
_FOLD = re.compile(r"(\d{12})-(\d{12})\.json")


def commit_path(number: int) -> str:
    return f"{COMMITS}/{number:012d}.json"


def view_path(view: str, begins: Epoch) -> str:
    return f"{VIEWS}/{view}/{begins:012d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """A log: the changes of one view from the version ``begins`` on. fingerprint: of the view's declaration."""

    view: str
    begins: Epoch
    key: tuple[str, ...]
    schema: pa.Schema
    fingerprint: str

    @classmethod
    def of(cls, plan: DataflowPlan, begins: Epoch, fingerprint: str) -> Self:
        return cls(view=plan.name, begins=begins, key=plan.key, schema=plan.schema, fingerprint=fingerprint)

    def to_json(self) -> dict[str, Any]:
        return {
            "view": self.view,
            "begins": self.begins,
            "key": list(self.key),
            "schema": schema_to_json(self.schema),
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        return cls(
            view=json["view"],
            begins=Epoch(json["begins"]),
            key=tuple(json["key"]),
            schema=schema_from_json(json["schema"]),
            fingerprint=json["fingerprint"],
        )


class ChangeLog:
    """The logs of one lake. It remembers the commits that it has read, which never change. Usable by many threads."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._commits: dict[str, ChangeCommit] = {}
        """By path: as many as there are files, which folding bounds."""
        self._records: dict[tuple[str, Epoch], LogRecord] = {}

    def views(self) -> list[str]:
        """The views whose log has begun, also of those that are declared no more."""
        return sorted({view for commit in self.commits() for view in commit.begins})

    def record(self, view: str) -> LogRecord:
        """The newest log of a view. Raises UnknownView."""
        return self._record(view, _newest(view, self.commits()).begins[view])

    def first(self, view: str) -> Epoch:
        """The version at which the log begins: it has all rows of the view at that version, as inserts. Raises
        UnknownView for a view without a log."""
        return _first(view, self.commits())

    def last(self, view: str) -> Epoch:
        """The newest version that may be read. Raises UnknownView."""
        return _newest(view, self.commits()).through

    def changes(
        self,
        view: str,
        after: Epoch | None,
        through: Epoch,
        group: VnodeGroup | None = None,
        keys: Hashes | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The changes of the versions after ``after`` and up to ``through``, ordered by version, within it by key; of
        the columns ``changes_schema``. A version's changes may come in several batches.

        after: ``None``: from the start of the log, which begins with all rows as inserts. through: at most ``last``.
        group, keys: only keys of these vnodes, with one of these hash64. Raises UnknownView, ChangesGone if changes
        after ``after`` are in the lake no more, CorruptFile.
        """
        done: Epoch | None = after
        for attempt in range(READS_MAX):
            try:
                for version, rows in self._versions(view, done, through, group, keys):
                    yield from _cut(rows)
                    done = version
                return
            except FileNotFoundError as error:  # folded since the commit was read
                self._commits.clear()
                if attempt == READS_MAX - 1:
                    raise CorruptFile(f"{self._lake.root}: a file of the changes of view {view!r} is gone") from error

    def _versions(
        self, view: str, after: Epoch | None, through: Epoch, group: VnodeGroup | None, keys: Hashes | None
    ) -> Iterator[tuple[Epoch, pa.RecordBatch]]:
        """The versions that have changes, each with its rows."""
        commits = self.commits()
        newest, first = _newest(view, commits), _first(view, commits)
        if through > newest.through:
            raise ProtocolError(
                f"view {view!r}: changes through {through} were asked for, and {newest.through} is last"
            )
        if after is not None and after < first:
            raise ChangesGone(
                f"view {view!r}: its changes after version {after} are gone. The oldest version that its log has is "
                f"{first}: read it from the start (without a version) to get all rows of that version, and what follows"
            )
        record = self._record(view, newest.begins[view])
        since = Epoch(-1) if after is None else after
        for commit in commits:
            if commit.through <= since or commit.begins.get(view) != record.begins:
                continue
            parts = [part for part in commit.parts if part.view == view and part.last > since and part.first <= through]
            if parts:
                read = [_filtered(self._read(part, record), since, through, group, keys) for part in parts]
                yield from _by_version(pa.Table.from_batches(read))
            if commit.through >= through:
                return

    def commits(self) -> list[ChangeCommit]:
        """All commits, oldest first; those that were folded as one."""
        found = {int(name.removesuffix(".json")): f"{COMMITS}/{name}" for name in self._lake.files.names(COMMITS)}
        folds = sorted(self._folds(), key=lambda fold: (-(fold[1] - fold[0]), fold))
        paths: dict[int, str] = dict(found)
        hidden: set[int] = set()
        for first, last, path in folds:  # the longest first: shorter ones are within
            if last in hidden:
                continue
            numbers = range(first, last + 1)
            hidden.update(numbers)
            for number in numbers:
                paths.pop(number, None)
            paths[last] = path
        return [self._commit(paths[number]) for number in sorted(paths)]

    def paths(self) -> set[str]:
        """The files of all commits."""
        return {part.path for commit in self.commits() for part in commit.parts}

    def _folds(self) -> Iterator[tuple[int, int, str]]:
        for name in self._lake.files.names(FOLDS):
            match = _FOLD.fullmatch(name)
            if match is None:
                raise CorruptFile(f"{self._lake.root}/{FOLDS}/{name}: not a file of this lake")
            yield int(match[2]), int(match[1]), f"{FOLDS}/{name}"

    def _commit(self, path: str) -> ChangeCommit:
        commit = self._commits.get(path)
        if commit is None:
            commit = self._commits[path] = ChangeCommit.from_json(self._lake.read_record(path))
        return commit

    def _record(self, view: str, begins: Epoch) -> LogRecord:
        record = self._records.get((view, begins))
        if record is None:
            record = LogRecord.from_json(self._lake.read_record(view_path(view, begins)))
            self._records[view, begins] = record
        return record

    def end(self) -> "LogEnd":
        """Where the logs end. Raises CorruptFile."""
        commits = self.commits()
        ends = {view: commit.through for commit in commits for view in commit.begins}
        if not commits:
            return LogEnd(begins={}, ends={})
        newest = commits[-1]
        marks = {view: (at, self._record(view, at).fingerprint) for view, at in newest.begins.items()}
        return LogEnd(number=newest.number, through=newest.through, begins=marks, ends=ends)

    def _read(self, part: ChangePart, record: LogRecord) -> pa.RecordBatch:
        """The rows of a part, verified."""
        path = f"{self._lake.root}/{part.path}"
        encoded = self._lake.files.read(part.path)
        if checksum_of(encoded) != part.checksum:
            raise CorruptFile(f"{path}: its checksum is not that of its commit")
        rows = pa.ipc.open_file(encoded).get_batch(0)
        if not rows.schema.equals(part_schema(record.schema)):
            raise CorruptFile(f"{path}: its columns are not those of the log of view {record.view!r}")
        return rows


def _newest(view: str, commits: Sequence[ChangeCommit]) -> ChangeCommit:
    """The newest commit that has the view's log. Raises UnknownView."""
    for commit in reversed(commits):
        if view in commit.begins:
            return commit
    raise UnknownView(
        f"view {view!r} has no log of changes: declare it with changes=True, and wait for the next epoch; logs are "
        f"kept of: {', '.join(sorted({name for commit in commits for name in commit.begins})) or 'none'}"
    )


def _first(view: str, commits: Sequence[ChangeCommit]) -> Epoch:
    """As :meth:`ChangeLog.first`."""
    begins = _newest(view, commits).begins[view]
    folded = (
        commit.earliest[view] for commit in commits if view in commit.earliest and commit.begins.get(view) == begins
    )
    return max([begins, *folded])


def _filtered(
    rows: pa.RecordBatch, since: Epoch, through: Epoch, group: VnodeGroup | None, keys: Hashes | None
) -> pa.RecordBatch:
    """The rows of these versions and keys."""
    versions = rows.column(COMMIT_VERSION).to_numpy()
    mask = (versions > since) & (versions <= through)
    hashes = rows.column(HASH_COLUMN).to_numpy()
    if group is not None:
        least, most = map(np.uint64, group.hashes)
        mask &= (hashes >= least) & (hashes <= most)
    if keys is not None:
        mask &= np.isin(hashes, keys)
    return rows if mask.all() else rows.filter(pa.array(mask))


def _by_version(rows: pa.Table) -> Iterator[tuple[Epoch, pa.RecordBatch]]:
    """The rows of each version, by hash64; the rows of one key come in the order in which they lie in their part."""
    rows = rows.combine_chunks()
    if not rows.num_rows:
        return
    versions, hashes = rows.column(COMMIT_VERSION).to_numpy(), rows.column(HASH_COLUMN).to_numpy()
    order = np.lexsort((hashes, versions))  # stable
    (batch,) = rows.take(pa.array(order)).combine_chunks().to_batches()
    starts = np.flatnonzero(np.diff(versions[order], prepend=np.int64(-1)))
    for start, stop in zip(starts, [*starts[1:], len(order)], strict=True):
        yield Epoch(int(versions[order[start]])), batch.slice(start, stop - start)


def _cut(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows for a reader, without their hash64."""
    shown = rows.select(rows.schema.names[1:])
    for start in range(0, shown.num_rows, BATCH_ROWS_MAX):
        yield shown.slice(start, BATCH_ROWS_MAX)


# Writing --------------------------------------------------------------------------------------------------------------


def write_part(lake: Lake, view: str, name: str, rows: pa.Table) -> ChangePart:
    """Write a part; when this returns it is in the lake, and nothing names it. rows: of ``part_schema``, one or more,
    sorted by version and hash64. name: what is unique about it, but for a random number. Raises NotWritten."""
    encoded = encode_rows(rows)
    path = f"{ROWS}/{view}/{name}-{uuid4().hex[:16]}.arrow"
    lake.files.create(path, encoded)
    versions = pc.min_max(rows.column(COMMIT_VERSION)).as_py()
    return ChangePart(
        view=view,
        path=path,
        rows=rows.num_rows,
        bytes=encoded.size,
        checksum=checksum_of(encoded),
        first=Epoch(versions["min"]),
        last=Epoch(versions["max"]),
    )


def commit_changes(lake: OwnedLake, commit: ChangeCommit, records: Iterable[LogRecord]) -> None:
    """Make the changes of a commit readable. records: of the logs that may begin with it.

    The same commit again changes nothing. Raises LakeInUse if another driver has taken the root, NotWritten.
    """
    lake.check_owner()
    for record in records:
        if commit.begins.get(record.view) == record.begins:
            _create_once(lake, view_path(record.view, record.begins), record.to_json())
    _create_once(lake, commit_path(commit.number), commit.to_json())


def _create_once(lake: OwnedLake, path: str, record: Mapping[str, Any]) -> None:
    content = sealed(record)
    try:
        lake.files.create(path, content)
    except FileExistsError as error:
        if lake.files.read(path).to_pybytes() != content:
            raise LakeInUse(f"{lake.root}/{path} was written by another driver") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """Where the logs end when a driver starts. number: of the last commit. through: its last epoch. begins: of the
    logs that it continues, each with the fingerprint of its view. ends: the last version of every log there has ever
    been, by view."""

    number: int = 0
    through: Epoch = BEGINNING
    begins: Mapping[str, tuple[Epoch, str]]
    ends: Mapping[str, Epoch]


def wait_begun(lake: Lake, view: str) -> None:
    """Block until the view has a log. Raises WaitTimeout after ``BEGIN_S_MAX`` seconds."""
    give_up_at, log, pause = time.monotonic() + BEGIN_S_MAX, ChangeLog(lake), threading.Event()
    while view not in log.views():
        if time.monotonic() >= give_up_at:
            raise WaitTimeout(
                f"the log of view {view!r} has not begun in {BEGIN_S_MAX:.0f} s: it begins when all workers have read "
                f"what there was at the start, between two rescales; app.status() shows how far they are"
            )
        pause.wait(BEGIN_POLL_S)


def sweep_changes(lake: OwnedLake, log: ChangeLog) -> None:
    """Remove the parts that no commit names. No worker may be writing any, and the driver must fold none."""
    named = log.paths()
    lake.files.remove_all(path for path in lake.files.tree(ROWS) if path not in named)


def with_change_log(plan: DataflowPlan) -> DataflowPlan:
    """The view, with a log of its changes. Raises DeclarationError if a column is named as one of the log's."""
    taken = [name for name in plan.schema.names if name.lower() in CHANGE_COLUMNS]
    if taken:
        raise DeclarationError(
            f"view {plan.name!r}: its changes have columns {', '.join(CHANGE_COLUMNS)} beside the view's own, and it "
            f"has {', '.join(taken)}: give it another name (AS ...), or leave out changes=True"
        )
    return replace(plan, logs_changes=True)
