"""How far the app's epochs have come: which are committed, which have ended, and how fresh the tables are."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from upriver.coordinator.freshness import Freshness, Progress, ReadThrough
from upriver.ids import BEGINNING, Epoch, WorkerId
from upriver.lake.manifests import LakeEpochs
from upriver.protocol.freshness import FreshnessReport
from upriver.runtime.measures import EpochTimes, LakeTally

COMMITS_KEPT_MAX = 10_000
"""How many epochs, the last ones, have their commit time kept in memory."""


class AppProgress:
    """Called by any thread. changed: announces each change.

    published: the last epoch that the coordinator knows to be in the lake. missing: worker slots without a process.
    ready: called once, as soon as the app is ready.
    """

    def __init__(
        self,
        changed: threading.Condition,
        published: Callable[[], Epoch],
        missing: Callable[[], Iterable[WorkerId]],
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._changed = changed
        self._published = published
        self._missing = missing
        self._ready = ready
        self._was_ready = False
        self._freshness = Freshness()
        self._has_begun = False
        """Whether the epochs that were in the lake at the start are known, and all others are new."""
        self._ended = BEGINNING
        self._by_view: Mapping[str, Epoch] = {}
        self.epochs = EpochTimes()
        self.lake = LakeTally()
        self._commits: dict[Epoch, float] = {}
        """When the last epochs were committed, in seconds since 1970."""

    @property
    def ended(self) -> Epoch:
        """The last epoch that every view reflects, at every worker, but those that are built."""
        return self._ended

    def reflects(self, epoch: Epoch, view: str | None) -> bool:
        """Whether a view reflects this epoch, or all do (``None``), those that are built too."""
        if view is not None:
            return self._by_view.get(view, self._ended) >= epoch
        return self._ended >= epoch and all(reflected >= epoch for reflected in self._by_view.values())

    def stand(self, ended: Epoch, by_view: Mapping[str, Epoch]) -> None:
        """Views reflect these epochs by now. ended: see :attr:`ended`."""
        is_further = ended > self._ended
        with self._changed:
            self._ended, self._by_view = ended, by_view
            self._changed.notify_all()
        if is_further:
            self.epochs.ended(ended, time.monotonic())
            self._look_whether_ready()

    def commit(self, manifest: LakeEpochs) -> None:
        """An epoch is in the lake."""
        self.epochs.committed(manifest, time.monotonic())
        self.lake.add(manifest, is_new=self._has_begun)
        if manifest.committed_at is None:
            return
        with self._changed:
            self._commits[manifest.epoch] = manifest.committed_at
            if len(self._commits) > COMMITS_KEPT_MAX:
                del self._commits[next(iter(self._commits))]

    def committed_at(self, epoch: Epoch) -> float | None:
        """When an epoch was committed, in seconds since 1970; ``None`` if that is not known, or was long ago."""
        return self._commits.get(epoch)

    def expect_sources(
        self, tables: Mapping[str, bool], committed: Epoch, before: Mapping[str, ReadThrough] = MappingProxyType({})
    ) -> None:
        """The sources are about to start. tables: by name, whether the lake has rows of the table. committed: the last
        epoch in the lake. before: :meth:`marks` of the run before; a mark that is still to come, by our clock, says
        nothing."""
        marks = _by_our_clock(before)
        with self._changed:
            self._freshness = Freshness(tables, committed, marks)
            self._has_begun = True
        self.epochs.begin()

    def expect_source(self, table: str, *, had_rows: bool, before: Mapping[str, ReadThrough]) -> None:
        """The source of one more table is about to start, beside the others. had_rows: whether the lake has rows of the
        table. before: :meth:`marks` of its last source among others, as for :meth:`expect_sources`."""
        mark = _by_our_clock(before).get(table)
        with self._changed:
            self._freshness.add(table, had_rows=had_rows, before=mark)
            self._changed.notify_all()

    def forget_source(self, table: str) -> None:
        """The table is dropped, and its source reports nothing any more."""
        with self._changed:
            self._freshness.forget(table)
            self._changed.notify_all()
        self._look_whether_ready()

    def read_through(self, table: str, at: float, epoch: Epoch) -> None:
        """Every row that the table's source had offered by ``at``, monotonic, is in epochs up to ``epoch``."""
        with self._changed:
            self._freshness.read_through(table, ReadThrough(at, epoch))
            self._changed.notify_all()
        self._look_whether_ready()

    def marks(self) -> dict[str, ReadThrough]:
        """By table, the newest moment whose rows all workers reflect, in seconds since 1970."""
        behind = time.time() - time.monotonic()
        with self._changed:
            marks = self._freshness.marks(self._ended)
        return {table: ReadThrough(mark.at + behind, mark.epoch) for table, mark in marks.items()}

    def _look_whether_ready(self) -> None:
        if self._has_begun and not self._was_ready and self.lacks() is None:
            self._was_ready = True
            self._ready()

    def source_stands(self, table: str, state: str, error: str | None = None, *, is_final: bool = False) -> None:
        """As :meth:`Freshness.stands`."""
        with self._changed:
            self._freshness.stands(table, state, error, is_final=is_final)
            self._changed.notify_all()

    def freshness(self) -> FreshnessReport:
        """How fresh each table is, and what it lacks to be ready."""
        with self._changed:
            progress = Progress(self._ended, self._published(), tuple(sorted(self._missing())))
            return self._freshness.report(progress, time.monotonic())

    def lacks(self) -> str | None:
        """As :meth:`FreshnessReport.app_lacks`."""
        return self.freshness().app_lacks()


def _by_our_clock(marks: Mapping[str, ReadThrough]) -> dict[str, ReadThrough]:
    """Marks in seconds since 1970 as monotonic ones, without those that are still to come."""
    today = time.time()
    behind = today - time.monotonic()
    return {table: replace(mark, at=mark.at - behind) for table, mark in marks.items() if mark.at <= today}
