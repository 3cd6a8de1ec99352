"""How fresh views are, and whether the app is ready: pure bookkeeping over what sources offered and workers reflect.

A source is **read through** as of a moment when every row that it had offered by then is in a published epoch. Such a
mark, a moment and an epoch, counts once that epoch has ended at every worker. Each table has a newest mark that counts;
a view's age is the time since the oldest of these among its tables. A source that is alive and offers nothing is read
through again and again, so its views stay fresh although no epoch comes. A failed source is not, and its age grows.

A table is **ready** once the workers reflect all epochs that were in the lake at the start, and a mark counts: one of
this start, or the last one of the run before, from which the age tells. As long as a source has failed, a table that
had rows at the start is ready without a mark: it serves what it has, and every answer names the failed source. The app
is ready when each table has a mark of this start, or has one of the run before and a source that has failed and is to
be tried again. A table that is added to a running app does not count there: an app that is ready stays so.

``TableCounts``: a table's rows, epochs, and recent rows a second. Status and metrics read it here.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from upriver.ids import BEGINNING, Epoch, WorkerId
from upriver.protocol.freshness import FreshnessReport, SourceState, TableFreshness

MARKS_MAX = 64
"""Marks of one source that wait for their epochs to end. If there are more, every second one is forgotten."""
RUNNING, STALLED, FAILING, FAILED, FINISHED = SourceState


@dataclass(frozen=True, slots=True)
class ReadThrough:
    """Every row that a source had offered by ``at``, in seconds of one clock, is in epochs up to ``epoch``."""

    at: float
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the workers stand. ended: the last epoch that has ended at every worker. published: the last one in the
    lake. missing: places without a worker."""

    ended: Epoch
    published: Epoch
    missing: tuple[WorkerId, ...] = ()


@dataclass(slots=True)
class _TableSource:
    """had_rows: at the start. before: the mark that the run before has left. is_later: the table was added to a running
    app. reflected: the newest mark that counts. pending: marks that do not, oldest first. first: the epoch of the first
    mark of this start. error: why the source has failed or stalled, in one line. is_final: it has failed for good."""

    had_rows: bool
    before: ReadThrough | None = None
    is_later: bool = False
    state: str = RUNNING
    error: str | None = None
    is_final: bool = False
    first: Epoch | None = None
    reflected: ReadThrough | None = None
    pending: list[ReadThrough] = field(default_factory=list)
    is_ready: bool = False

    def __post_init__(self) -> None:
        if self.before is not None:
            self.pending.append(self.before)

    def add(self, mark: ReadThrough) -> None:
        if self.first is None:
            self.first = mark.epoch
        self.pending.append(mark)
        if len(self.pending) > MARKS_MAX:
            self.pending = self.pending[1::2]  # the newest stays

    def reflect(self, ended: Epoch) -> None:
        counts = [mark for mark in self.pending if mark.epoch <= ended]
        if counts:
            self.reflected = max(counts, key=lambda mark: mark.at)
            self.pending = [mark for mark in self.pending if mark.epoch > ended]

    @property
    def is_read(self) -> bool:
        """Whether a mark of this start counts."""
        return self.reflected is not None and self.reflected is not self.before


class Freshness:
    """Freshness in one run of an app. Its owner makes sure that one thread at a time calls it.

    tables: by name, whether the lake had rows of it at the start. committed: the last epoch that was in the lake then.
    before: the marks that the run before has left.
    """

    def __init__(
        self,
        tables: Mapping[str, bool] | None = None,
        committed: Epoch = BEGINNING,
        before: Mapping[str, ReadThrough] = MappingProxyType({}),
    ) -> None:
        self._sources = {table: _TableSource(had_rows, before.get(table)) for table, had_rows in (tables or {}).items()}
        self._committed = committed

    def add(self, table: str, *, had_rows: bool, before: ReadThrough | None = None) -> None:
        """A table is added to the running app. had_rows: whether the lake has rows of it. before: the mark that its
        last source has left."""
        self._sources[table] = _TableSource(had_rows, before, is_later=True)

    def forget(self, table: str) -> None:
        """The table is dropped."""
        self._sources.pop(table, None)

    def read_through(self, table: str, mark: ReadThrough) -> None:
        """A source was read through. Marks of one table come in order."""
        self._sources[table].add(mark)

    def stands(self, table: str, state: str, error: str | None = None, *, is_final: bool = False) -> None:
        """The state of a source. error: why it has failed or stalled, in one line. is_final: it has failed for good."""
        source = self._sources[table]
        source.state, source.error, source.is_final = state, error, is_final

    def report(self, progress: Progress, now: float) -> FreshnessReport:
        """The report as of ``now``, by the clock of the marks."""
        tables = {table: self._report(source, progress, now) for table, source in self._sources.items()}
        unread = {
            table: _trouble(source) or _still_read(progress)
            for table, source in self._sources.items()
            if not source.is_later
            and not source.is_read
            and (source.is_final or source.before is None or source.state != FAILED)
        }
        later = tuple(table for table, source in self._sources.items() if source.is_later)
        return FreshnessReport(progress.ended, tables, unread, later)

    def marks(self, ended: Epoch) -> dict[str, ReadThrough]:
        """The newest mark that counts of each table that has one. ended: as in a report."""
        for source in self._sources.values():
            source.reflect(ended)
        return {table: source.reflected for table, source in self._sources.items() if source.reflected is not None}

    def _report(self, source: _TableSource, progress: Progress, now: float) -> TableFreshness:
        source.reflect(progress.ended)
        lacks = self._lacks(source, progress)
        return TableFreshness(
            state=source.state,
            age_s=None if source.reflected is None else max(0.0, now - source.reflected.at),
            cause=_cause(source, progress),
            lacks=lacks,
        )

    def _lacks(self, source: _TableSource, progress: Progress) -> str | None:
        """What a table lacks until it is ready; ``None`` if it is, which it stays."""
        if source.is_ready:
            return None
        if progress.ended < self._committed:
            return _behind(progress, self._committed)
        if source.reflected is None:
            if source.state == FAILED and source.had_rows:
                return None  # until the source is back, and may be amid its first rows
            if source.state == FAILED or source.first is None:
                return _trouble(source) or _still_read(progress)
            return _behind(progress, source.first)
        source.is_ready = True
        return None


def _cause(source: _TableSource, progress: Progress) -> str:
    """Why a table is not fresher than it is."""
    if trouble := _trouble(source):
        return trouble
    if source.pending:
        return _behind(progress, source.pending[0].epoch)
    if progress.published > progress.ended:
        return _behind(progress, progress.published)
    return "its source has not answered since, or has rows that are not committed yet"


def _trouble(source: _TableSource) -> str | None:
    """Why a table's source does not go on, or has not gone on yet after a failure; ``None`` if it does."""
    if source.state == FAILED:
        return f"its source has failed: {source.error}"
    if source.state == FAILING:
        return f"its source has failed, and is being tried again: {source.error}"
    if source.state == STALLED:
        return "its source has stalled" + (f": {source.error}" if source.error else "")
    return None


def _still_read(progress: Progress) -> str:
    return f"its source is still being read ({_epochs(progress.published)} so far)"


def _behind(progress: Progress, epoch: Epoch) -> str:
    behind = f"epoch {progress.ended} of {epoch} is reflected"
    if not progress.missing:
        return behind
    workers = ", ".join(map(str, progress.missing))
    are = f"worker {workers} is" if len(progress.missing) == 1 else f"workers {workers} are"
    return f"{behind}, and {are} not up"


def _epochs(count: int) -> str:
    return f"{count} epoch" if count == 1 else f"{count} epochs"


RATE_WINDOW_S = 60
"""The rate is the mean over this many whole seconds before now."""


class TableCounts:
    """One table's epochs, counted as they are committed."""

    def __init__(self) -> None:
        self.rows = 0
        """Rows of all epochs; versions, in an upsert table."""
        self.epochs = 0
        self.last_epoch = Epoch(0)
        """The table's last one; 0 if it has none."""
        self.committed_at: float | None = None
        """When the last one was, in seconds since 1970; ``None`` if there is none, or nothing says when."""
        self._recent: deque[tuple[int, int]] = deque()
        """(second, rows committed in it), of at most ``RATE_WINDOW_S`` seconds."""

    def add(self, epoch: Epoch, rows: int, committed_at: float | None, epochs: int = 1) -> None:
        """An epoch of the table is in the lake, an old one or a new one; or several, up to this one."""
        self.rows += rows
        self.epochs += epochs
        self.last_epoch = epoch
        self.committed_at = committed_at
        if committed_at is not None:
            second = int(committed_at)
            if self._recent and self._recent[-1][0] >= second:
                second, before = self._recent.pop()
                rows += before
            self._recent.append((second, rows))
            while self._recent[0][0] <= second - RATE_WINDOW_S:
                self._recent.popleft()

    def age_s(self, now: float) -> float | None:
        """Seconds since the last epoch was committed. now: in seconds since 1970."""
        return None if self.committed_at is None else max(0.0, now - self.committed_at)

    def rows_per_s(self, now: float) -> float:
        """Rows a second, over the last ``RATE_WINDOW_S`` seconds."""
        return sum(rows for second, rows in self._recent if second > now - RATE_WINDOW_S) / RATE_WINDOW_S
