"""What is counted where it happens, to be read by :mod:`upriver.runtime.metrics`.

``WorkerMeasures``: the lookups of one worker's process, by view, as counts that only grow. ``measures_reported`` sends
them to the coordinator once a second at most, behind everything else on the worker's channel, and only if they have
changed. ``LookupTotals``: the coordinator's sums over all workers, which go on when a worker is lost.

``EpochTimes``: how long epochs take, by stage, and what is committed and not reflected yet. ``LakeTally``: runs and
bytes in the lake.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from upriver.errors import ClusterError, ProtocolError, UnknownView, UpriverError
from upriver.ids import Epoch, Incarnation, WorkerId
from upriver.lake.manifests import LakeEpochs
from upriver.traces import trace_epoch

LOOKUP_BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0),
)
"""Upper bounds of the buckets of a lookup's seconds."""
EPOCH_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The same for a stage of an epoch."""
REPORT_S = 1.0
"""Seconds between two reports of a worker's measures."""
VIEWS_MAX = 10_000
"""Views, past ones too, whose lookups a process counts. Lookups of further ones are not counted."""


@dataclass(slots=True)
class Buckets:
    """A histogram. counts: of each bucket, by itself, the last without a bound. total: of all values. Not locked."""

    bounds: Sequence[float]
    counts: list[int]
    total: float = 0.0

    @classmethod
    def empty(cls, bounds: Sequence[float]) -> "Buckets":
        return cls(bounds, [0] * (len(bounds) + 1))

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add another histogram with the same bounds."""
        self.counts = [mine + more for mine, more in zip(self.counts, counts, strict=True)]
        self.total += total

    def copy(self) -> "Buckets":
        return Buckets(self.bounds, list(self.counts), self.total)

    def cumulative(self) -> list[tuple[str, float]]:
        """As Prometheus has them: each bucket's upper bound, and how many values are at most that."""
        bounds, so_far, told = [*map(str, self.bounds), "+Inf"], 0, list[tuple[str, float]]()
        for bound, count in zip(bounds, self.counts, strict=True):
            so_far += count
            told.append((bound, float(so_far)))
        return told


_COUNTS = ("keys", "waits", "errors")


class _ViewLookups:
    """The lookups of one view. keys: looked up. waits: lookups whose keys were missing at first, or about to move.
    errors: lookups without an answer."""

    __slots__ = ("errors", "keys", "seconds", "waits")

    def __init__(self) -> None:
        self.seconds = Buckets.empty(LOOKUP_BOUNDS_S)
        self.keys = self.waits = self.errors = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "counts": list(self.seconds.counts),
            "seconds": self.seconds.total,
            **{name: getattr(self, name) for name in _COUNTS},
        }


class WorkerMeasures:
    """The lookups that a worker's process has answered. Any thread calls everything."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._views: dict[str, _ViewLookups] = {}
        """By view that exists, or has existed: lookups of any other name are not counted."""

    def answered(self, view: str, lookups: int, keys: int, seconds: float, *, held_up: bool) -> None:
        """Lookups of the view were answered, each in so many seconds. keys: of all of them."""
        with self._lock:
            of_view = self._of(view)
            if of_view is None:
                return
            of_view.seconds.observe(seconds, lookups)
            of_view.keys += keys
            of_view.waits += lookups * held_up

    def refused(self, view: str, error: UpriverError) -> None:
        """A lookup has no answer."""
        if isinstance(error, UnknownView):
            return
        with self._lock:
            if (of_view := self._of(view)) is not None:
                of_view.errors += 1

    def _of(self, view: str) -> _ViewLookups | None:
        found = self._views.get(view)
        if found is None and len(self._views) < VIEWS_MAX:
            found = self._views[view] = _ViewLookups()
        return found

    def to_json(self) -> dict[str, Any]:
        """By view, the counts since the process began."""
        with self._lock:
            return {view: lookups.to_json() for view, lookups in self._views.items()}


@contextmanager
def measures_reported(read: Callable[[], dict[str, Any]], send: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """While the block runs, send what ``read`` gives every ``REPORT_S`` seconds if it has changed, and once at the end.

    send: raises ClusterError if the coordinator is gone, which ends the reports.
    """
    is_over = threading.Event()

    def report() -> None:
        last, ends = read(), False
        with suppress(ClusterError):
            while not ends:
                ends = is_over.wait(REPORT_S)
                if (found := read()) != last:
                    send(found)
                    last = found

    thread = threading.Thread(target=report, name="upriver-measures", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class LookupTotals:
    """Lookups by view, over all workers and all their processes. Any thread calls everything."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[Incarnation, Mapping[str, Any]] = {}
        """What each process that is up has reported last."""
        self._views: dict[str, _ViewLookups] = {}
        self._upqueries = Counter[str]()
        self._workers = Counter[WorkerId]()

    def hear(self, worker: WorkerId, incarnation: Incarnation, report: Mapping[str, Any]) -> None:
        """A worker's process has reported its measures. Raises ProtocolError for a report of another form."""
        with self._lock:
            last = self._last.get(incarnation, {"views": {}, "upqueries": {}})
            try:
                for view, counts in report["views"].items():
                    self._add(worker, view, counts, last["views"].get(view))
                for view, count in report["upqueries"].items():
                    self._upqueries[view] += count - last["upqueries"].get(view, 0)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ProtocolError(f"worker {worker}: its measures are malformed: {error!r}") from error
            self._last[incarnation] = report

    def forget(self, incarnation: Incarnation) -> None:
        """The process is gone; its lookups still count."""
        with self._lock:
            self._last.pop(incarnation, None)

    def _add(self, worker: WorkerId, view: str, now: Mapping[str, Any], last: Mapping[str, Any] | None) -> None:
        total = self._views.setdefault(view, _ViewLookups())
        before = last or _ViewLookups().to_json()
        counts = [count - old for count, old in zip(now["counts"], before["counts"], strict=True)]
        total.seconds.add(counts, now["seconds"] - before["seconds"])
        for name in _COUNTS:
            setattr(total, name, getattr(total, name) + now[name] - before[name])
        self._workers[worker] += sum(counts) + now["errors"] - before["errors"]

    def seconds(self) -> dict[str, Buckets]:
        """By view, the seconds of answered lookups."""
        with self._lock:
            return {view: lookups.seconds.copy() for view, lookups in self._views.items()}

    def counts(self, name: str) -> dict[str, int]:
        """By view: ``keys``, ``waits`` or ``errors``."""
        with self._lock:
            return {view: int(getattr(lookups, name)) for view, lookups in self._views.items()}

    def upqueries(self) -> dict[str, int]:
        """By view, how many were begun."""
        with self._lock:
            return dict(self._upqueries)

    def by_worker(self) -> dict[WorkerId, int]:
        """Lookups that each worker has answered or refused."""
        with self._lock:
            return dict(self._workers)


WRITE, APPLY, END = "write", "apply", "end"
"""Stages of an epoch. ``write``: from the beginning of a batch until its epoch is committed. ``apply``: until every
worker has read its slices and applied their rows. ``end``: until every row that workers have exchanged is applied."""
STAGES = (WRITE, APPLY, END)


@dataclass(slots=True)
class _Unended:
    """An epoch that has not ended. committed: when, by the clock of the caller; ``None``: before this app started.
    finished: when a worker last reported it. rows: by table. epochs: how many there are, of a segment."""

    committed: float | None
    rows: Mapping[str, int]
    finished: float | None = None
    epochs: int = 1


class EpochTimes:
    """Epochs from their commit to their end. Any thread calls everything. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unended: dict[Epoch, _Unended] = {}
        """In order. Bounded by what the lake holds."""
        self._stages = {stage: Buckets.empty(EPOCH_BOUNDS_S) for stage in STAGES}
        self._is_live = False

    def begin(self) -> None:
        """Epochs that are committed from now on are new ones, which are timed."""
        self._is_live = True

    def wrote(self, seconds: float) -> None:
        """A batch was written and committed, in so many seconds."""
        with self._lock:
            self._stages[WRITE].observe(seconds)

    def committed(self, epochs: LakeEpochs, now: float) -> None:
        """An epoch is in the lake, or a segment of several."""
        rows = {table: last.rows for table, last in epochs.batches.items()}
        with self._lock:
            self._unended[epochs.epoch] = _Unended(now if self._is_live else None, rows, epochs=len(epochs.span))

    def finished(self, epoch: Epoch, now: float) -> None:
        """A worker has applied its slices of an epoch."""
        with self._lock:
            if (unended := self._unended.get(epoch)) is not None:
                unended.finished = now

    def ended(self, epoch: Epoch, now: float) -> None:
        """All epochs up to this one have ended."""
        for each, over in self._taken(epoch):
            if over.committed is not None:
                finished = now if over.finished is None else over.finished
                applied_s, ended_s = max(0.0, finished - over.committed), max(0.0, now - finished)
                with self._lock:
                    self._stages[APPLY].observe(applied_s)
                    self._stages[END].observe(ended_s)
                trace_epoch(each, sum(over.rows.values()), applied_s, ended_s)

    def _taken(self, through: Epoch) -> list[tuple[Epoch, _Unended]]:
        """Remove and return the epochs up to this one."""
        with self._lock:
            return [(each, self._unended.pop(each)) for each in list(self._unended) if each <= through]

    def seconds(self) -> dict[str, Buckets]:
        """By stage, the seconds of all epochs so far."""
        with self._lock:
            return {stage: buckets.copy() for stage, buckets in self._stages.items()}

    def left(self) -> dict[str, tuple[int, int]]:
        """By table: how many epochs with its rows are committed and have not ended, and how many rows."""
        left: dict[str, tuple[int, int]] = {}
        with self._lock:
            for unended in self._unended.values():
                for table, rows in unended.rows.items():
                    epochs, before = left.get(table, (0, 0))
                    left[table] = (epochs + unended.epochs, before + rows)
        return left


class LakeTally:
    """Runs and bytes of the lake that readers use, and those that ingest has written. Any thread calls everything."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: dict[Epoch, tuple[int, int]] = {}
        """By last epoch of a span: runs and bytes. As many as the lake's readers need."""
        self._written = (0, 0)

    def add(self, epochs: LakeEpochs, *, is_new: bool = False) -> None:
        """An epoch or a segment is in the lake, and takes the place of what it describes. is_new: ingest has just
        written it."""
        runs = [run for of_channel in epochs.runs.values() for run in of_channel]
        count, size, span = len(runs), sum(run.bytes for run in runs), epochs.span
        with self._lock:
            if len(span) > 1:
                self._spans = {last: kept for last, kept in self._spans.items() if last not in span}
            self._spans[span.last] = (count, size)
            if is_new:
                self._written = (self._written[0] + count, self._written[1] + size)

    def add_all(self, spans: Iterable[LakeEpochs]) -> None:
        for epochs in spans:
            self.add(epochs)

    def kept(self) -> tuple[int, int]:
        """Runs and bytes that readers of the lake use."""
        with self._lock:
            return sum(runs for runs, _ in self._spans.values()), sum(size for _, size in self._spans.values())

    def written(self) -> tuple[int, int]:
        """Runs and bytes that ingest has written since the app started."""
        return self._written
