"""The threads that write changes: a worker's, and the driver's, which commits them.

Both do one thing at a time: the coordinator takes the next changes when the last ones are committed, or given up. After
a failure the worker's answer, or the driver's next attempt, waits for ``AGAIN_S``, so that a full disk costs little.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa

from upriver.engine.change_kinds import ChangeKind
from upriver.engine.pending_changes import ChangedRows
from upriver.engine.row_text import failure_text
from upriver.errors import NotRead, NotWritten
from upriver.ids import Epoch, WorkerId
from upriver.lake.change_log import ChangeLog, LogRecord, commit_changes, fence_changes, sweep_changes
from upriver.lake.change_parts import write_parts
from upriver.lake.lake import Lake, OwnedLake
from upriver.plan.plan import DataflowPlan
from upriver.plan.used_columns import with_used_columns
from upriver.protocol.coordinator_events import (
    ChangesPublished,
    ChangesUnpublished,
    CoordinatorEvent,
    PublishChanges,
)
from upriver.protocol.plans import plan_to_json
from upriver.protocol.worker_events import ChangesNotStored, ChangesStored, WriteChanges
from upriver.state.changes import ChangeCommit, part_schema
from upriver.state.runs import checksum_of

_LOG = logging.getLogger("upriver.changes")
MARK_FORMAT = 1
AGAIN_S = 1.0
"""Seconds after a failure until the coordinator hears of it, and tries again."""
Written = Callable[[ChangesStored | ChangesNotStored], None]
CommittedAt = Callable[[Epoch], float | None]
"""When an epoch was committed, in seconds since 1970; ``None`` if the lake does not know."""


def rows_of_part(changed: ChangedRows, committed_at: CommittedAt) -> pa.Table:
    """The rows of a part, of ``part_schema``."""
    versions, places = np.unique(changed.versions, return_inverse=True)
    seconds = [committed_at(Epoch(version)) for version in versions.tolist()]
    micros = pa.array([None if s is None else round(s * 1e6) for s in seconds], pa.timestamp("us", tz="UTC"))
    columns = [
        pa.array(changed.hash64, pa.uint64()),
        *changed.rows.columns,
        pa.array([kind.text for kind in ChangeKind]).take(pa.array(changed.kinds)),
        pa.array(changed.versions, pa.int64()),
        micros.take(pa.array(places)),
    ]
    return pa.Table.from_arrays(columns, schema=part_schema(changed.rows.schema))


class ChangeWriter:
    """Writes one worker's changes."""

    def __init__(self, lake: Lake, committed_at: CommittedAt) -> None:
        self._lake = lake
        self._committed_at = committed_at
        self._worker = WorkerId(0)
        self._ended = threading.Event()
        self._thread = ThreadPoolExecutor(1, "upriver-change-writer")

    def assign(self, worker: WorkerId) -> None:
        """The place whose changes these are."""
        self._worker = worker

    def write(self, action: WriteChanges, hear: Written) -> None:
        """Write these changes soon, and then report it. hear: takes the report, on another thread."""
        self._thread.submit(self._write, action, self._worker, hear)

    def close(self) -> None:
        """Begin nothing more."""
        self._ended.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _write(self, action: WriteChanges, worker: WorkerId, hear: Written) -> None:
        name = f"{action.at}-{worker}"
        try:
            parts = tuple(
                part
                for view, changed in action.rows.items()
                for part in write_parts(self._lake, view, name, rows_of_part(changed, self._committed_at))
            )
        except Exception as error:  # of any class: the coordinator waits for an answer
            why = failure_text(error)
            _LOG.warning("worker %s: the changes through epoch %s could not be written: %s", worker, action.at, why)
            self._ended.wait(AGAIN_S)
            hear(ChangesNotStored(taking=action.taking, error=why))
        else:
            hear(ChangesStored(taking=action.taking, parts=parts))


class ChangePublisher:
    """Commits changes for one driver. found: the last version of each log that goes on with these views. ended: the
    last version of every log there has ever been."""

    def __init__(
        self,
        lake: OwnedLake,
        plans: Iterable[DataflowPlan],
        clock: Callable[[], float] = time.time,
        *,
        anew: Collection[str] = (),
    ) -> None:
        """Also removes what no commit names: no worker is writing changes yet. clock: seconds since 1970. anew: views
        that may have other rows than before, so that their logs begin anew. Raises CorruptFile."""
        self._lake = lake
        self._clock = clock
        self._hear: Callable[[CoordinatorEvent], None] | None = None
        self._stopping = threading.Event()
        self._thread = ThreadPoolExecutor(1, "upriver-change-publisher")
        log, marks = ChangeLog(lake), log_fingerprints(plans)
        lake.fence()
        if marks or log.files():
            fence_changes(lake, log)
        end = log.end()
        sweep_changes(lake, log)
        self.ended: Mapping[str, Epoch] = end.ends
        # A log whose last version is within a segment begins anew: later epochs cannot be told from earlier ones.
        same = [view for view, (_, mark) in end.begins.items() if marks.get(view) == mark and view not in anew]
        if same and end.through and not lake.ends_a_span(end.through):
            same = []
        self.found: Mapping[str, Epoch] = dict.fromkeys(same, end.through)
        self._begins = {view: end.begins[view][0] for view in same}
        """The version at which each log begins that goes on. The thread's own, as what follows is."""
        self._number = end.number
        """Of the last commit."""

    def start(self, hear: Callable[[CoordinatorEvent], None]) -> None:
        """hear: tells the coordinator, from any thread."""
        self._hear = hear

    def carry_out(self, action: PublishChanges, plans: Iterable[DataflowPlan]) -> None:
        """Commit these changes soon, and then report it. plans: the coordinator's at this moment."""
        self._thread.submit(self._publish, action, tuple(plans))

    def stop(self) -> None:
        """Commit what is under way, and end."""
        self._stopping.set()
        self._thread.shutdown()

    def _publish(self, action: PublishChanges, plans: tuple[DataflowPlan, ...]) -> None:
        assert self._hear is not None
        begins = {view: action.at if view in action.begins else self._begins[view] for view in action.views}
        number = self._number + 1
        commit = ChangeCommit(
            number=number,
            through=action.at,
            term=self._lake.term,
            made_at=self._clock(),
            begins=begins,
            parts=action.parts,
            first=number,
        )
        marks = log_fingerprints(plans)
        records = [LogRecord.of(plan, action.at, marks[plan.name]) for plan in plans if plan.name in action.begins]
        try:
            self._commit(commit, records)
        except Exception as error:  # of any class: the coordinator waits for an answer
            why = failure_text(error)
            _LOG.warning("the changes through epoch %s could not be committed: %s", action.at, why)
            self._stopping.wait(AGAIN_S)
            self._hear(ChangesUnpublished(taking=action.taking, error=why))
        else:
            self._number, self._begins = commit.number, begins
            self._hear(ChangesPublished(taking=action.taking))

    def _commit(self, commit: ChangeCommit, records: Sequence[LogRecord]) -> None:
        """Commit until the lake says yes, or the app stops. A lake that has refused a file may have it all the same:
        readers may have seen the commit, so no commit with other changes may have its number."""
        while True:
            try:
                return commit_changes(self._lake, commit, records)
            except (NotRead, NotWritten) as error:
                _LOG.warning("the changes through epoch %s are not committed yet: %s", commit.through, error)
                if self._stopping.wait(AGAIN_S):
                    raise


def log_fingerprints(plans: Iterable[DataflowPlan]) -> dict[str, str]:
    """The mark of each logged view, by view: a digest of its plan, with the types of the columns that it uses. A log
    goes on only for the same view, of the same name."""
    return {plan.name: _mark(plan) for plan in plans if plan.logs_changes and plan.full_because is not None}


def with_marks(plans: Iterable[DataflowPlan], alone: Iterable[DataflowPlan]) -> tuple[DataflowPlan, ...]:
    """Plans that were made together, with the marks of the same views planned by themselves: so a log goes on when
    another view comes to read the same maps, or ceases to."""
    marks = log_fingerprints(alone)
    return tuple(replace(plan, mark=marks[plan.name]) if plan.name in marks else plan for plan in plans)


def _mark(plan: DataflowPlan) -> str:
    if plan.mark:
        return plan.mark
    form = plan_to_json(with_used_columns(plan))
    if not plan.functions:
        del form["functions"]  # plans had none, and keep their marks
    return checksum_of(json.dumps([MARK_FORMAT, form], sort_keys=True).encode())
