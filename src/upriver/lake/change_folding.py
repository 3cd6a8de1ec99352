"""Folding of the change log: many small commits become few large ones, and versions that have been kept for long enough
become one.

*Merging.* Sixteen adjacent commits or folds of one level become a fold of the next level, with the same changes. So
the log has at most sixteen files for each level, and a change is written anew once for each level.

*Retention.* Once the changes of a view's oldest versions are older than the retention, and at least half as many as the
rows that they change, a fold has the view's rows as of the last of those versions, as inserts: its *base*. The log
begins there from then on. So the log is at most a few times as large as the view and the changes that are kept.

Folds change no file, and take the place of what they fold as soon as they are there. That stays for some time, for the
readers that have begun. docs/internals/changes.md.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, takewhile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upriver.engine.batch import Batch
from upriver.engine.operators.operator import consolidated
from upriver.errors import CorruptFile
from upriver.hashing import HASH64_MAX
from upriver.ids import Epoch
from upriver.lake.change_log import ChangeLog, StampedVersion, commit_fold, cover, ends_of, first_of, folded_to
from upriver.lake.change_parts import PART_BYTES_MAX, in_order, read_part, write_parts
from upriver.lake.lake import OwnedLake
from upriver.state.changes import (
    CHANGE_FIELDS,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    INSERT,
    POSTIMAGE,
    ChangeCommit,
    ChangePart,
    part_schema,
)
from upriver.state.runs import HASH_COLUMN

SPREADS = 4
"""A fold of versions that are still kept has those of at most this fraction of the retention, so that they go soon
after it."""


@dataclass(frozen=True, slots=True)
class FoldLimits:
    """fanout: commits or folds of one level that become one of the next. merge_bytes_max: of what is merged; larger
    folds stay as they are. net_bytes_max: of files whose rows are added up at a time; more are divided by their keys'
    hash64. part_bytes_max: of a part, in memory."""

    fanout: int = 16
    merge_bytes_max: int = 256 << 20
    net_bytes_max: int = 64 << 20
    part_bytes_max: int = PART_BYTES_MAX


USUAL_LIMITS = FoldLimits()

Check = Callable[[], None]
"""Raises what ends the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """What becomes one. commits: adjacent ones. added_up: views whose changes become their rows as of the last version.
    merged: views whose files become fewer. Files of other views stay as they are."""

    commits: tuple[ChangeCommit, ...]
    added_up: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()

    @property
    def newest(self) -> ChangeCommit:
        return self.commits[-1]

    def parts_of(self, view: str) -> list[ChangePart]:
        """The parts of the view's log; those of an earlier log of this name are not read any more."""
        begins = self.newest.begins[view]
        return [part for commit in self.commits for part in commit.parts_of(view, begins)]

    def earliest_of(self, view: str) -> Epoch:
        """The version at which the view's log begins, within these commits."""
        return first_of(view, self.newest.begins[view], self.commits)

    def folded_to(self, view: str) -> StampedVersion | None:
        """The version at which the view's log begins because an earlier fold has added it up; ``None``: none has."""
        return folded_to(view, self.newest.begins[view], self.commits)


def due(
    commits: Sequence[ChangeCommit], now: float, retention_s: float | None, limits: FoldLimits = USUAL_LIMITS
) -> Fold | None:
    """What to fold next, if anything. commits: all, oldest first. now: seconds since 1970. retention_s: how long
    versions are kept; ``None``: for good."""
    cut = None if retention_s is None else now - retention_s
    old = [] if cut is None else list(takewhile(lambda commit: commit.made_at < cut, commits))
    if len(old) > 1 and (fold := _expired(tuple(old))) is not None:
        return fold
    spread_s = None if retention_s is None else retention_s / SPREADS
    return _merge(commits, len(old), spread_s, limits)


def _expired(commits: tuple[ChangeCommit, ...]) -> Fold | None:
    """The fold of commits whose versions are all too old, if it has changes to add up, or a log that has ended."""
    fold = Fold(commits=commits)
    fold = replace(fold, added_up=tuple(view for view in sorted(fold.newest.begins) if _is_worth_it(fold, view)))
    kept = {part.path for view in fold.newest.begins for part in fold.parts_of(view)}
    has_ended = any(part.path not in kept for commit in commits for part in commit.parts)
    return fold if fold.added_up or has_ended else None


def _is_worth_it(fold: Fold, view: str) -> bool:
    first, parts = fold.earliest_of(view), fold.parts_of(view)
    changes = sum(part.rows for part in parts if part.last > first)
    return changes > 0 and 2 * changes >= sum(part.rows for part in parts if part.last <= first)


def _merge(commits: Sequence[ChangeCommit], old: int, spread_s: float | None, limits: FoldLimits) -> Fold | None:
    """The oldest adjacent ones of one level, and of the same logs. old: how many of them have no version that is
    kept."""
    logs = {log for commit in commits for log in commit.begins.items()}
    firsts = {log: first_of(*log, commits) for log in logs}
    places, fanout = range(len(commits)), limits.fanout
    for _, group in groupby(places, lambda place: (_level(commits[place], fanout), commits[place].begins)):
        alike = [place for place in group if not _has_base(commits[place], firsts)]
        for start in range(len(alike) - fanout + 1):
            last = alike[start + fanout - 1]
            some = tuple(commits[alike[start] : last + 1])
            is_short = spread_s is None or some[-1].made_at - some[0].made_at <= spread_s
            is_small = sum(part.bytes for commit in some for part in commit.parts) <= limits.merge_bytes_max
            if len(some) == fanout and is_small and (is_short or last < old):
                return Fold(commits=some, merged=tuple(some[-1].begins))
    return None


def _has_base(commit: ChangeCommit, firsts: Mapping[tuple[str, Epoch], Epoch]) -> bool:
    """Whether it has rows with which a log begins: they are not written anew each time. firsts: by log, the version
    at which it begins."""
    logged = (part for part in commit.parts if part.view in commit.begins)
    return any(part.first <= firsts[part.view, commit.begins[part.view]] for part in logged)


def _level(commit: ChangeCommit, fanout: int) -> int:
    level, count = 0, commit.number - commit.first + 1
    while count >= fanout:
        level, count = level + 1, count // fanout
    return level


@dataclass(frozen=True, slots=True)
class RemovedChanges:
    """What was removed. files: commits and folds. parts: files of rows; bytes: theirs."""

    files: int = 0
    parts: int = 0
    bytes: int = 0


class ChangeFolding:
    """Folds the log of one lake, on the caller's thread. retention_s: seconds for which versions are kept; ``None``:
    for good. clock: seconds since 1970. check: called often."""

    def __init__(
        self,
        lake: OwnedLake,
        retention_s: float | None,
        clock: Callable[[], float] = time.time,
        check: Check = lambda: None,
        limits: FoldLimits = USUAL_LIMITS,
    ) -> None:
        self._lake = lake
        self._log = ChangeLog(lake)
        self._retention_s = retention_s
        self._clock = clock
        self._check = check
        self._limits = limits

    @property
    def log(self) -> ChangeLog:
        return self._log

    def fold(self) -> Fold | None:
        """Carry out what is due first; returns it. Raises CorruptFile, NotWritten, LakeInUse."""
        fold = due(self._log.commits(), self._clock(), self._retention_s, self._limits)
        if fold is not None:
            self._carry_out(fold)
        return fold

    def remove(self, grace_s: float) -> RemovedChanges:
        """Remove what was folded that many seconds ago or earlier. Raises CorruptFile, LakeInUse."""
        files = self._log.files()
        folded_before = self._clock() - grace_s
        old = [file for file in cover(files) if 0 < self._log.commit_of(file).folded_at <= folded_before]
        gone = {
            file
            for file in files
            if any(fold.first <= file.first and file.last <= fold.last and fold != file for fold in old)
        }
        if not gone:
            return RemovedChanges()
        # A fold may have taken over a part as it is; no other file names one of theirs.
        others = [
            file
            for file in files
            if file not in gone and any(file.first <= each.last and each.first <= file.last for each in gone)
        ]
        named = {part.path for file in others for part in self._log.commit_of(file).parts}
        of_gone = [part for file in gone for part in self._log.commit_of(file).parts]
        parts = {part.path: part.bytes for part in of_gone if part.path not in named}
        self._lake.remove_all(file.path for file in gone)  # first, so that no commit names a part that is gone
        self._lake.remove_all(parts)
        return RemovedChanges(len(gone), len(parts), sum(parts.values()))

    def _carry_out(self, fold: Fold) -> None:
        newest, oldest = fold.newest, fold.commits[0]
        parts: list[ChangePart] = []
        bases: dict[str, StampedVersion] = {}
        for view in sorted(newest.begins):
            of_view = fold.parts_of(view)
            base = fold.folded_to(view)
            if view in fold.added_up:
                base = self._newest_of(of_view, fold)
                of_view = list(self._base(view, fold, base))
            elif view in fold.merged:
                of_view = list(self._merged(view, fold))
            parts += of_view
            if base is not None:
                bases[view] = base
        ends = {view: at for commit in fold.commits for view, at in ends_of(commit).items()}
        made = ChangeCommit(
            number=newest.number,
            through=newest.through,
            term=self._lake.term,
            made_at=newest.made_at,
            begins=newest.begins,
            parts=tuple(parts),
            first=oldest.first,
            earliest={view: base.version for view, base in bases.items()},
            earliest_at={view: base.at.timestamp() for view, base in bases.items()},
            ended={view: at for view, at in ends.items() if view not in newest.begins},
            folded_at=self._clock(),
        )
        if not commit_fold(self._lake, made):
            kept = {part.path for commit in fold.commits for part in commit.parts}
            self._lake.files.remove_all(part.path for part in parts if part.path not in kept)

    def _write(self, view: str, fold: Fold, rows: pa.Table) -> tuple[ChangePart, ...]:
        return write_parts(self._lake, view, f"{fold.newest.through}-fold", rows, self._limits.part_bytes_max)

    def _merged(self, view: str, fold: Fold) -> Iterator[ChangePart]:
        """The same changes in fewer files."""
        held: list[pa.RecordBatch] = []
        for rows in in_order(fold.parts_of(view), lambda part: self._read(part, fold)):
            held.append(rows)
            if sum(each.nbytes for each in held) >= self._limits.part_bytes_max:
                yield from self._write(view, fold, pa.Table.from_batches(held))
                held = []
        if held:
            yield from self._write(view, fold, pa.Table.from_batches(held))

    def _base(self, view: str, fold: Fold, base: StampedVersion) -> Iterator[ChangePart]:
        """The rows that the view had as of a version, as inserts."""
        parts = fold.parts_of(view)
        count = -(-sum(part.bytes for part in parts) // self._limits.net_bytes_max)
        bounds = [HASH64_MAX * place // count for place in range(count + 1)]
        for place, (least, most) in enumerate(pairwise(bounds)):
            least += place > 0  # the one before has that one
            some = [_between(self._read(part, fold), least, most) for part in parts if part.may_have(least, most)]
            net = _net(self._lake.root, view, [rows for rows in some if rows.num_rows])
            if net is not None:
                yield from self._write(view, fold, _inserts(net, base))

    def _newest_of(self, parts: Collection[ChangePart], fold: Fold) -> StampedVersion:
        """The last version of these parts."""
        newest = max(parts, key=lambda part: part.last)
        return StampedVersion(newest.last, self._read(newest, fold).column(COMMIT_TIMESTAMP)[-1].as_py())

    def _read(self, part: ChangePart, fold: Fold) -> pa.RecordBatch:
        self._check()
        try:
            return read_part(self._lake, part, self._log.log_of(part.view, fold.newest.begins[part.view]).schema)
        except FileNotFoundError as error:
            raise CorruptFile(f"{self._lake.root}/{part.path} is gone, and the change log names it") from error


def _between(rows: pa.RecordBatch, least: int, most: int) -> pa.RecordBatch:
    """The rows of keys with a hash64 between these two, both included."""
    hashes = rows.column(HASH_COLUMN).to_numpy()
    return rows.filter(pa.array((hashes >= np.uint64(least)) & (hashes <= np.uint64(most))))


def _net(root: str, view: str, changes: Sequence[pa.RecordBatch]) -> Batch | None:
    """The rows that changes leave, by hash64; ``None``: none."""
    if not changes:
        return None
    rows = pa.concat_batches(changes)
    adds = pc.is_in(rows.column(CHANGE_TYPE), pa.array([INSERT, POSTIMAGE])).to_numpy(zero_copy_only=False)
    of_view = rows.select(rows.schema.names[1 : -len(CHANGE_FIELDS)])
    hashes = rows.column(HASH_COLUMN).to_numpy()
    net = consolidated(Batch(of_view, hashes, np.where(adds, 1, -1).astype(np.int64)))
    if net.weight is not None and (net.weight < 0).any():
        raise CorruptFile(f"{root}: the change log of view {view!r} removes a row that the view did not have")
    left = net.repeated()
    if not len(left):
        return None
    order = np.argsort(left.hash64, kind="stable")
    return Batch(left.rows.take(pa.array(order)), left.hash64[order])


def _inserts(rows: Batch, base: StampedVersion) -> pa.Table:
    """The rows as a part of one version has them."""
    count, schema = len(rows), part_schema(rows.rows.schema)
    columns = [
        pa.array(rows.hash64),
        *rows.rows.columns,
        pa.repeat(INSERT, count),
        pa.repeat(pa.scalar(base.version, pa.int64()), count),
        pa.repeat(pa.scalar(base.at, schema.field(COMMIT_TIMESTAMP).type), count),
    ]
    return pa.Table.from_arrays(columns, schema=schema)
