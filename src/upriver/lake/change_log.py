"""The log of views' changes in the lake (docs/internals/changes.md).

::

    changes/views/<view>/<version>.json      a log that begins at that version: the view's key, columns and fingerprint
    changes/rows/<view>/<name>-<id>.arrow    parts: changes of one view (change_parts.py)
    changes/commits/<number>.json            a commit: its existence makes the changes of its epochs readable
    changes/folds/<last>-<first>.json        a fold: these commits as one (change_folding.py)

ChangeLog reads it: any process may, without Spark. The driver that owns the root commits. The first write of a commit's
number counts, so commits come in the order of their epochs, and no epoch is committed twice.
"""

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

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
from upriver.lake.change_parts import ROWS, in_order, read_part
from upriver.lake.lake import Lake, OwnedLake, sealed
from upriver.plan.plan import DataflowPlan
from upriver.plan.schemas import schema_from_json, schema_to_json
from upriver.records import typed
from upriver.state.changes import CHANGE_COLUMNS, COMMIT_TIMESTAMP, COMMIT_VERSION, ChangeCommit, ChangePart
from upriver.state.runs import HASH_COLUMN
from upriver.vnodes import VnodeGroup

COMMITS, FOLDS, VIEWS = "changes/commits", "changes/folds", "changes/views"
BATCH_ROWS_MAX = 65_536
"""Rows of one batch that a reader gets."""
BEGIN_S_MAX, BEGIN_POLL_S = 60.0, 0.1
"""Seconds to wait for the beginning of a log, and between two looks."""
READS_MAX = 3
"""How often in turn a reader finds a file gone because it was folded meanwhile, until it takes that for damage."""
_FOLD = re.compile(r"(\d{12})-(\d{12})\.json")


def commit_path(number: int) -> str:
    return f"{COMMITS}/{number:012d}.json"


def fold_path(first: int, last: int) -> str:
    return f"{FOLDS}/{last:012d}-{first:012d}.json"


def view_path(view: str, begins: Epoch) -> str:
    return f"{VIEWS}/{view}/{begins:012d}.json"


@dataclass(frozen=True, slots=True, order=True)
class CommitFile:
    """A commit or a fold. first, last: the numbers of its commits."""

    first: int
    last: int
    path: str


def cover(files: Iterable[CommitFile]) -> list[CommitFile]:
    """The fewest of these files with all commits, oldest first. Raises FileNotFoundError if none has a commit."""
    longest = {file.first: file for file in sorted(files)}
    chosen: list[CommitFile] = []
    at, last = 1, max((file.last for file in longest.values()), default=0)
    while at <= last:
        if at not in longest:
            raise FileNotFoundError(commit_path(at))
        chosen.append(longest[at])
        at = longest[at].last + 1
    return chosen


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
        record = cls(
            view=json["view"],
            begins=Epoch(json["begins"]),
            key=tuple(json["key"]),
            schema=schema_from_json(json["schema"]),
            fingerprint=json["fingerprint"],
        )
        return typed(record)


class StampedVersion(NamedTuple):
    """A version of a view, and when it was committed."""

    version: Epoch
    at: datetime


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
        return self.log_of(view, _newest(view, self.commits()).begins[view])

    def first(self, view: str) -> Epoch:
        """The version at which the log begins: it has all rows of the view at that version, as inserts. Raises
        UnknownView for a view without a log."""
        return _first(view, self.commits())

    def folded(self, view: str) -> StampedVersion | None:
        """The version at which the log begins because what was committed before it is gone; ``None``: nothing is gone.
        Raises UnknownView."""
        commits = self.commits()
        return folded_to(view, _newest(view, commits).begins[view], commits)

    def last(self, view: str) -> Epoch:
        """The newest version that may be read. Raises UnknownView."""
        return _newest(view, self.commits()).through

    def version_at(self, view: str, at: datetime) -> StampedVersion | None:
        """The first version with changes that was committed at a moment or later; ``None``: there is none yet.

        at: with a time zone. The answer is as right as the driver's clock was. Raises UnknownView, ChangesGone,
        CorruptFile.
        """
        first, last = self.first(view), self.last(view)
        older = [each.through for each in self.commits() if each.made_at < at.timestamp() and each.through >= first]
        for rows in self.changes(view, max(older, default=None), last):
            stamps = rows.column(COMMIT_TIMESTAMP)
            place = pc.index(pc.greater_equal(stamps, pa.scalar(at, stamps.type)), True).as_py()
            if place >= 0:
                return StampedVersion(Epoch(rows.column(COMMIT_VERSION)[place].as_py()), stamps[place].as_py())
        return None

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
        given: _Given | None = None
        first, misses = self.first(view), 0
        while True:
            try:
                for rows in self._rows(view, after, through, _WantedKeys(group, keys), first, given):
                    yield from _cut(rows)
                    given, misses = _Given.through(rows), 0
                return
            except FileNotFoundError as error:  # folded since the commits were read
                misses += 1
                if misses == READS_MAX:
                    raise CorruptFile(f"{self._lake.root}: a file of the changes of view {view!r} is gone") from error

    def _rows(
        self,
        view: str,
        after: Epoch | None,
        through: Epoch,
        wanted: "_WantedKeys",
        begun: Epoch,
        given: "_Given | None",
    ) -> Iterator[pa.RecordBatch]:
        """The wanted rows of these versions in order, in pieces of one version, but those that were given already.
        begun: at which version the log began when the reader did."""
        commits = self.commits()
        newest, first = _newest(view, commits), _first(view, commits)
        if through > newest.through:
            raise ProtocolError(
                f"view {view!r}: changes through {through} were asked for, and {newest.through} is last"
            )
        if after is not None and given is None and after < first:
            raise _gone(view, after, first)
        if given is not None and given.version <= first != begun:
            raise _gone(view, given.version, first)
        record = self.log_of(view, newest.begins[view])
        since = Epoch(given.version - 1) if given is not None else Epoch(-1) if after is None else after

        def read(part: ChangePart) -> pa.RecordBatch:
            return wanted.of(_of_versions(read_part(self._lake, part, record.schema), since, through))

        for commit in commits:
            parts = commit.parts_of(view, record.begins)
            some = [p for p in parts if p.last > since and p.first <= through and wanted.may_be_in(p)]
            for rows in in_order(some, read):
                for piece in _by_version(rows):
                    rest = piece if given is None else given.rest_of(piece)
                    if rest.num_rows:
                        yield rest

    def commits(self) -> list[ChangeCommit]:
        """All commits, oldest first; those that were folded, as one. Raises CorruptFile."""
        for _ in range(READS_MAX):
            files = self.files()
            try:
                commits = {file.path: self.commit_of(file) for file in cover(files)}
            except FileNotFoundError as error:  # folded since the files were listed
                missing = error
            else:
                self._commits = commits
                return list(commits.values())
        raise CorruptFile(f"{self._lake.root}: a commit of the change log is gone ({missing})")

    def files(self) -> list[CommitFile]:
        """All commits and folds that are there, those that were folded too. Raises CorruptFile."""
        names = self._lake.files.names(COMMITS)  # before the folds, which take the place of those that go
        commits = [CommitFile(int(n), int(n), f"{COMMITS}/{n}.json") for n in (n.removesuffix(".json") for n in names)]
        return [*commits, *self._folds()]

    def _folds(self) -> Iterator[CommitFile]:
        self._lake.look_for_seal()
        for name, path in self._lake.counted(FOLDS).items():
            match = _FOLD.fullmatch(name)
            if match is None:
                raise CorruptFile(f"{self._lake.root}/{path}: not a file of this lake")
            yield CommitFile(int(match[2]), int(match[1]), path)

    def commit_of(self, file: CommitFile) -> ChangeCommit:
        """What a file says. Raises CorruptFile, FileNotFoundError."""
        commit = self._commits.get(file.path)
        return self._lake.read_as(file.path, ChangeCommit.from_json) if commit is None else commit

    def log_of(self, view: str, begins: Epoch) -> LogRecord:
        """The log of a view that begins at a version. Raises CorruptFile."""
        record = self._records.get((view, begins))
        if record is None:
            try:
                record = self._lake.read_as(path := view_path(view, begins), LogRecord.from_json)
            except FileNotFoundError as error:
                raise CorruptFile(f"{self._lake.root}/{path}: the file is gone") from error
            self._records[view, begins] = record
        return record

    def end(self) -> "LogEnd":
        """Where the logs end. Raises CorruptFile."""
        commits = self.commits()
        ends = {view: at for commit in commits for view, at in ends_of(commit).items()}
        if not commits:
            return LogEnd(begins={}, ends={})
        newest = commits[-1]
        marks = {view: (at, self.log_of(view, at).fingerprint) for view, at in newest.begins.items()}
        return LogEnd(number=newest.number, through=newest.through, begins=marks, ends=ends)


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
    return first_of(view, _newest(view, commits).begins[view], commits)


def first_of(view: str, begins: Epoch, commits: Iterable[ChangeCommit]) -> Epoch:
    """The version at which a log begins by now. begins: at which it began at first."""
    folded = folded_to(view, begins, commits)
    return begins if folded is None else folded.version


def folded_to(view: str, begins: Epoch, commits: Iterable[ChangeCommit]) -> StampedVersion | None:
    """As :meth:`ChangeLog.folded`. begins: the version at which the log began at first."""
    folds = [commit for commit in commits if view in commit.earliest and commit.begins.get(view) == begins]
    if not folds:
        return None
    newest = max(folds, key=lambda fold: fold.earliest[view])
    at = newest.earliest_at.get(view, newest.made_at)  # at the latest
    return StampedVersion(newest.earliest[view], datetime.fromtimestamp(at, UTC))


def ends_of(commit: ChangeCommit) -> dict[str, Epoch]:
    """The last versions of all logs that a commit knows of, by view."""
    return {**commit.ended, **dict.fromkeys(commit.begins, commit.through)}


def _gone(view: str, after: Epoch, first: Epoch) -> ChangesGone:
    return ChangesGone(
        f"view {view!r}: its changes after version {after} are gone. The oldest version that its log has is {first}: "
        f"read it from the start (without a version) to get all rows of that version, and what follows"
    )


@dataclass(frozen=True, slots=True)
class _Given:
    """How far a reader has got: through all rows up to this version and, within it, this hash64."""

    version: Epoch
    hash64: int

    @classmethod
    def through(cls, rows: pa.RecordBatch) -> Self:
        """rows: one or more, of one version."""
        return cls(Epoch(rows.column(COMMIT_VERSION)[0].as_py()), rows.column(HASH_COLUMN)[-1].as_py())

    def rest_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Those that come later. rows: of one version."""
        if rows.column(COMMIT_VERSION)[0].as_py() > self.version:
            return rows
        return rows.slice(int(np.searchsorted(rows.column(HASH_COLUMN).to_numpy(), np.uint64(self.hash64), "right")))


def _of_versions(rows: pa.RecordBatch, since: Epoch, through: Epoch) -> pa.RecordBatch:
    """rows: sorted by version."""
    start, stop = np.searchsorted(rows.column(COMMIT_VERSION).to_numpy(), (since, through), "right")
    return rows.slice(start, stop - start)


@dataclass(frozen=True, slots=True)
class _WantedKeys:
    """Which keys a reader wants. ``None``: all."""

    group: VnodeGroup | None
    keys: Hashes | None

    def may_be_in(self, part: ChangePart) -> bool:
        return self.group is None or part.may_have(*self.group.hashes)

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        hashes = rows.column(HASH_COLUMN).to_numpy()
        mask = np.ones(len(hashes), np.bool_)
        if self.group is not None:
            least, most = map(np.uint64, self.group.hashes)
            mask &= (hashes >= least) & (hashes <= most)
        if self.keys is not None:
            mask &= np.isin(hashes, self.keys)
        return rows if mask.all() else rows.filter(pa.array(mask))


def _by_version(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows of each version. rows: sorted by version."""
    starts = np.flatnonzero(np.diff(rows.column(COMMIT_VERSION).to_numpy(), prepend=-1))
    for start, stop in zip(starts, [*starts[1:], rows.num_rows], strict=True):
        yield rows.slice(start, stop - start)


def _cut(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows for a reader, without their hash64."""
    shown = rows.select(rows.schema.names[1:])
    for start in range(0, shown.num_rows, BATCH_ROWS_MAX):
        yield shown.slice(start, BATCH_ROWS_MAX)


# Writing --------------------------------------------------------------------------------------------------------------


def commit_changes(lake: OwnedLake, commit: ChangeCommit, records: Iterable[LogRecord]) -> None:
    """Make the changes of a commit readable. records: of the logs that may begin with it.

    The same commit again changes nothing. Raises LakeInUse if another driver has taken the root, NotWritten.
    """
    lake.check_owner()
    for record in records:
        if commit.begins.get(record.view) == record.begins:
            _create_once(lake, view_path(record.view, record.begins), record.to_json())
    _create_once(lake, commit_path(commit.number), commit.to_json())


def commit_fold(lake: OwnedLake, fold: ChangeCommit) -> bool:
    """Put a fold in the place of its commits. Returns whether there was none of the same commits yet. Raises LakeInUse
    if another driver has taken the root, NotWritten."""
    lake.check_owner()
    try:
        lake.files.create(lake.own_path(fold_path(fold.first, fold.number)), sealed(fold.to_json()))
    except FileExistsError:
        return False
    return True


def _create_once(lake: OwnedLake, path: str, record: Mapping[str, Any]) -> None:
    content = sealed(record)
    try:
        lake.files.create(path, content)
    except FileExistsError as error:
        if lake.files.read(path).to_pybytes() != content:
            lake.check_owner()
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


def fence_changes(lake: OwnedLake, log: ChangeLog) -> None:
    """Make sure that no commit of an earlier driver comes to pass from now on: take its slot with a commit that has no
    changes. Does nothing where :meth:`OwnedLake.fence` does nothing, and after a commit of this driver."""
    if not lake.has_late_writes:
        return
    while True:
        newest = next(reversed(log.commits()), None)
        if newest is not None and newest.term == lake.term:
            return
        number = 1 if newest is None else newest.number + 1
        commit = ChangeCommit(
            number=number,
            through=BEGINNING if newest is None else newest.through,
            term=lake.term,
            made_at=time.time(),
            begins={} if newest is None else newest.begins,
            first=number,
        )
        lake.check_owner()  # after the look: a successor's fence has this number or a later one
        with suppress(FileExistsError):  # the last one of the driver before has come to pass
            lake.write_record(commit_path(number), commit.to_json())


def sweep_changes(lake: OwnedLake, log: ChangeLog) -> None:
    """Remove the parts that neither a commit nor a fold names; those that were folded stay for their readers. No worker
    may be writing any, and the driver must fold nothing. Raises CorruptFile, LakeInUse."""
    lake.fence()
    there = lake.files.tree(ROWS)
    if there:
        fence_changes(lake, log)
    named = {part.path for file in log.files() for part in log.commit_of(file).parts}
    lake.remove_all(path for path in there if path not in named)


def with_change_log(plan: DataflowPlan) -> DataflowPlan:
    """The view, with a log of its changes. Raises DeclarationError if a column is named as one of the log's."""
    taken = [name for name in plan.schema.names if name.lower() in CHANGE_COLUMNS]
    if taken:
        raise DeclarationError(
            f"view {plan.name!r}: its changes have columns {', '.join(CHANGE_COLUMNS)} beside the view's own, and it "
            f"has {', '.join(taken)}: give it another name (AS ...), or leave out changes=True"
        )
    return replace(plan, logs_changes=True)
